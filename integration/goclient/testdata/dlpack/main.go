// The DLPack bridge of Go with a consumer and a producer in C, in one process: by cgo, and on threads of C's own. Run by
// dlpack_test.go.
//
//	dlpack STAGE
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../../../clients/c/include
#cgo LDFLAGS: ${SRCDIR}/../../../../clients/c/build/libcallboard.a -lpthread

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "callboard_dlpack.h"

// What a consumer does on a thread that Go does not know.
struct work {
	struct DLManagedTensorVersioned *managed;
	double sum;
	float fill; // 0: it only looks
	int keep;   // 1: the deleter is called later
	cbd_status status;
};

static void *consume(void *argument)
{
	struct work *w = argument;
	cbd_tensor t;
	w->status = cbd_dlpack_import_versioned(w->managed, &t, NULL);
	if (w->status != CBD_STATUS_OK)
		return NULL;
	int64_t n = t.lanes;
	for (int32_t i = 0; i < t.ndim; i++)
		n *= t.shape[i];
	for (int64_t i = 0; i < n; i++) {
		if (w->fill != 0)
			((float *)(uintptr_t)t.data)[i] = w->fill + (float)i;
		w->sum += ((const float *)t.data)[i];
	}
	if (!w->keep)
		((cbd_dlpack_versioned *)w->managed)->deleter(w->managed);
	return NULL;
}

static void on_a_thread(struct work *w)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, consume, w) != 0)
		abort();
	pthread_join(thread, NULL);
}

static void delete_versioned(struct DLManagedTensorVersioned *m) { ((cbd_dlpack_versioned *)m)->deleter(m); }
static void delete_managed(struct DLManagedTensor *m) { ((cbd_dlpack_managed *)m)->deleter(m); }

// A bin of exports that a thread empties.
enum { ROOM = 64 };
static _Atomic(struct DLManagedTensor *) bin[ROOM];
static _Atomic int stop;

static void *empty_bin(void *unused)
{
	for (int last = 0; !last;) {
		last = atomic_load(&stop);
		for (int i = 0; i < ROOM; i++) {
			struct DLManagedTensor *m = atomic_exchange(&bin[i], NULL);
			if (m != NULL)
				delete_managed(m);
		}
		sched_yield();
	}
	return unused;
}

static pthread_t emptiers[3];

static void start_emptiers(void)
{
	for (int i = 0; i < 3; i++)
		if (pthread_create(&emptiers[i], NULL, empty_bin, NULL) != 0)
			abort();
}

static void stop_emptiers(void)
{
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		pthread_join(emptiers[i], NULL);
}

static void throw_away(struct DLManagedTensor *m, int i)
{
	struct DLManagedTensor *before = atomic_exchange(&bin[i % ROOM], m);
	if (before != NULL)
		delete_managed(before);
}

// A producer.
static _Atomic int released;
static float own[6] = {0, 1, 2, 3, 4, 5};
static void count(void *unused) { (void)unused; atomic_fetch_add(&released, 1); }
static void *own_data(void) { return own; }
static int released_now(void) { return atomic_load(&released); }

static struct DLManagedTensorVersioned *produce(int turned)
{
	static const int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
	struct DLManagedTensorVersioned *out;
	cbd_tensor t = {.data = own, .ndim = 2, .shape = shape, .strides = turned ? strides : NULL, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
	return cbd_dlpack_export_versioned(&t, CBD_DLPACK_READ_ONLY, count, NULL, &out, NULL) == CBD_STATUS_OK ? out : NULL;
}
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	callboard "callboard/clients/go"
	"callboard/tensor"
)

const rounds = 10000

var ctx = context.Background()

func main() {
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: os.Args[1]})
	check(err)
	ownTensors()
	tensorsOfC()
	views(stage)
	fills(stage)
	manyDeleters(stage)
	viewsOutliveTheStage(stage)
	fmt.Println("ok")
}

// A tensor of Go's heap, read and given back by a thread of C.
func ownTensors() {
	var released atomic.Int32
	for range 100 {
		t, err := callboard.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
		check(err)
		m, err := tensor.ExportVersioned(&t, 0, func() { released.Add(1) })
		check(err)
		runtime.GC()
		expect(consume(m, 0, false) == 21)
	}
	until("100 releases", func() bool { return released.Load() == 100 })
}

// consume lets a thread of C look at an export, or fill it, and call its deleter unless it keeps it.
func consume(m *tensor.DLManagedTensorVersioned, fill float32, keep bool) float64 {
	w := (*C.struct_work)(C.calloc(1, C.sizeof_struct_work))
	defer C.free(unsafe.Pointer(w))
	w.managed, w.fill = (*C.struct_DLManagedTensorVersioned)(unsafe.Pointer(m)), C.float(fill)
	if keep {
		w.keep = 1
	}
	C.on_a_thread(w)
	expect(w.status == C.CBD_STATUS_OK)
	return float64(w.sum)
}

func discard(m *tensor.DLManagedTensorVersioned) {
	C.delete_versioned((*C.struct_DLManagedTensorVersioned)(unsafe.Pointer(m)))
}

// A tensor of C comes in as it lies, or as a copy; its deleter is the caller's to call.
func tensorsOfC() {
	m := (*tensor.DLManagedTensorVersioned)(unsafe.Pointer(C.produce(0)))
	t, err := tensor.ImportVersioned(m)
	check(err)
	expect(t.ReadOnly && unsafe.Pointer(unsafe.SliceData(t.Data)) == C.own_data() && len(t.Data) == 24)
	discard(m)
	m = (*tensor.DLManagedTensorVersioned)(unsafe.Pointer(C.produce(1)))
	_, err = tensor.ImportVersioned(m)
	expect(errors.Is(err, tensor.ErrNotSupported))
	t, err = tensor.ImportVersionedCopy(m)
	check(err)
	discard(m)
	expect(C.released_now() == 2)
	expect(*(*float32)(unsafe.Pointer(&t.Data[4])) == 2 && *(*float32)(unsafe.Pointer(&t.Data[20])) == 5)
}

// A view that C holds pins what it shows, whatever becomes of the group, and no longer than until its deleter.
func views(stage *callboard.Stage) {
	op, err := stage.Publish(ctx, "view", []float32{1, 2, 3})
	check(err)
	_ = op
	g, err := stage.Latest(ctx, "view")
	check(err)
	m, err := g.ExportVersioned(0, 0)
	check(err)
	expect(m.Flags == tensor.FlagReadOnly)
	_, err = g.ExportManaged(0, 0) // behaviour 282
	expect(errors.Is(err, callboard.ErrNotSupported))
	_, err = g.ExportVersioned(1, 0)
	expect(errors.Is(err, callboard.ErrInvalidArgument))
	g.Release()
	_, err = g.ExportVersioned(0, 0)
	expect(errors.Is(err, callboard.ErrInvalidHandle))
	for i := range 20 {
		_, err := stage.Publish(ctx, "view", []float32{9, 9, float32(i)})
		check(err)
	}
	expect(pins(stage) > 0)
	expect(consume(m, 0, true) == 6)
	expect(consume(m, 0, false) == 6)
	until("no pins", func() bool { return pins(stage) == 0 })
}

func pins(stage *callboard.Stage) int {
	info, err := stage.Info()
	check(err)
	return info.Pins
}

// C fills a group; what it writes after the unmap is not seen (rule M1).
func fills(stage *callboard.Stage) {
	q, err := stage.QueryFromPathList(ctx, []string{"/a", "/b"})
	check(err)
	defer q.Release()
	points, err := callboard.ParseDType("float32x3")
	check(err)
	m, err := stage.MapAttribute(ctx, q, "filled", callboard.MapOptions{Ordinal: 1, DType: points})
	check(err)
	var lent *tensor.DLManagedTensorVersioned
	var group *callboard.MapGroup
	for g, err := range m.Groups(ctx) {
		check(err)
		group = g
		lent, err = g.ExportVersioned(0, 0)
		check(err)
	}
	expect(lent.Flags == 0 && lent.Tensor.NDim == 2)
	expect(consume(lent, 1, true) == 21)
	op, err := m.UnmapAttribute()
	check(err)
	check(op.Wait(ctx))
	op, err = stage.AdvanceWriteFloor(1, callboard.SealOptions{})
	check(err)
	check(op.Wait(ctx))
	expect(consume(lent, 100, true) == 615)
	_, err = group.ExportVersioned(0, 0)
	expect(errors.Is(err, callboard.ErrInvalidHandle))
	r, err := stage.ReadAttributes(ctx, q, []string{"filled"}, callboard.ReadOptions{})
	check(err)
	g, err := r.Group("filled")
	check(err)
	rows, err := callboard.Rows[[3]float32](g)
	check(err)
	expect(!g.Adopted() && rows[0] == [3]float32{1, 2, 3} && rows[1] == [3]float32{4, 5, 6})
	g.Release()
	r.Release()
	expect(errors.Is(stage.CloseIfIdle(), callboard.ErrOpFailed)) // the export
	discard(lent)
}

// 10 000 exports of views and of Go's memory, given back by threads of C in any order (behaviour 288, field report G15).
func manyDeleters(stage *callboard.Stage) {
	var released atomic.Int32
	C.start_emptiers()
	for i := range rounds {
		if i%100 == 99 { // threads of C may be far ahead of the goroutine that takes back what they return
			until("room for pins", func() bool { return pins(stage) < 1000 })
		}
		if i%2 == 0 {
			t, err := callboard.FromSlice([]float32{1, 2, float32(i)})
			check(err)
			m, err := tensor.ExportManaged(&t, 0, func() { released.Add(1) })
			check(err)
			C.throw_away((*C.struct_DLManagedTensor)(unsafe.Pointer(m)), C.int(i))
			continue
		}
		g, err := stage.Latest(ctx, "view")
		check(err)
		m, err := g.ExportManaged(0, tensor.FlagIsCopied)
		check(err)
		v, err := g.ExportVersioned(0, 0)
		check(err)
		g.Release()
		C.throw_away((*C.struct_DLManagedTensor)(unsafe.Pointer(m)), C.int(i))
		discard(v)
	}
	C.stop_emptiers()
	until("all released", func() bool { return released.Load() == rounds/2 && pins(stage) == 0 })
}

// The deleter is called after the stage is closed.
func viewsOutliveTheStage(stage *callboard.Stage) {
	g, err := stage.Latest(ctx, "view")
	check(err)
	m, err := g.ExportVersioned(0, 0)
	check(err)
	g.Release()
	check(stage.Close())
	expect(consume(m, 0, true) == 37)
	discard(m)
}

func until(what string, done func() bool) {
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			fail("waited in vain for " + what)
		}
	}
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func expect(holds bool) {
	if !holds {
		fail("it is not so")
	}
}

func fail(what string) {
	_, file, line, _ := runtime.Caller(2)
	fmt.Printf("not ok %s:%d: %s\n", file, line, what)
	os.Exit(1)
}
