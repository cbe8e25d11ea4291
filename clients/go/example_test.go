package callboard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
	"callboard/tensor"
)

// The examples run beside a real broker, to which the environment leads them.
func TestMain(m *testing.M) { os.Exit(harness.RunWithBroker(m)) }

func Example() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{Name: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()

	// One copy, then every process sees it.
	ordinal, err := stage.Publish(ctx, "pose", [7]float64{0, 0, 1, 0, 0, 0, 1})
	if err != nil {
		log.Fatal(err)
	}
	// No copy: the values lie where the stage has them, and stay so until Release.
	pose, err := stage.Latest(ctx, "pose")
	if err != nil {
		log.Fatal(err)
	}
	defer pose.Release()
	values, err := callboard.Values[float64](pose)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ordinal, pose.DType(), pose.Shape(), values)
	// Output: 1 float64 [7] [0 0 1 0 0 0 1]
}

// Rows of one's own type, filled in place by a producer and read in place by a consumer.
func ExampleRows() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	robots, err := stage.QueryFromPathList(ctx, []string{"/World/R0", "/World/R1"})
	if err != nil {
		log.Fatal(err)
	}
	defer robots.Release()

	points, err := callboard.ParseDType("float32x3")
	if err != nil {
		log.Fatal(err)
	}
	session, err := stage.MapAttribute(ctx, robots, "position", callboard.MapOptions{Ordinal: 1, DType: points})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Abort() // does nothing once it was committed
	for group, err := range session.Groups(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		rows, err := callboard.Rows[[3]float32](group)
		if err != nil {
			log.Fatal(err)
		}
		for i := range rows {
			rows[i] = [3]float32{float32(i), 0.5, 2}
		}
	}
	if err := session.Commit(ctx); err != nil {
		log.Fatal(err)
	}
	seal, err := stage.AdvanceWriteFloor(1, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{"position"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := seal.Wait(ctx); err != nil {
		log.Fatal(err)
	}

	type point struct{ X, Y, Z float32 }
	read, err := stage.ReadAttributes(ctx, robots, []string{"position"}, callboard.ReadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer read.Release()
	for group, err := range read.Groups() {
		if err != nil {
			log.Fatal(err)
		}
		rows, err := callboard.Rows[point](group)
		if err != nil {
			log.Fatal(err)
		}
		for i := range group.Prims() {
			fmt.Println(rows[group.Row(i)])
		}
		group.Release()
	}
	// Output:
	// {0 0.5 2}
	// {1 0.5 2}
}

// Of kind array each prim has a row of its own length.
func ExampleRow() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	meshes, err := stage.QueryFromPathList(ctx, []string{"/World/Cube", "/World/Nothing"})
	if err != nil {
		log.Fatal(err)
	}
	defer meshes.Release()
	op, err := stage.WriteAttribute(ctx, meshes, "indices", [][]uint32{{0, 1, 2, 2, 3, 0}, {}}, callboard.WriteOptions{Ordinal: 1, IsArray: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := op.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	seal, err := stage.AdvanceWriteFloor(1, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{"indices"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := seal.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	read, err := stage.ReadAttributes(ctx, meshes, []string{"indices"}, callboard.ReadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer read.Release()
	group, err := read.Group("indices")
	if err != nil {
		log.Fatal(err)
	}
	defer group.Release()
	for i := range group.Prims() {
		row, err := callboard.Row[uint32](group, i)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(row)
	}
	// Output:
	// [0 1 2 2 3 0]
	// []
}

// A group is a lease. Whoever needs the data longer than its owner takes one as well; writers never wait for either.
func ExampleGroup_Retain() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	if _, err := stage.Publish(ctx, "frame", []uint8{1, 2, 3}); err != nil {
		log.Fatal(err)
	}
	frame, err := stage.Latest(ctx, "frame")
	if err != nil {
		log.Fatal(err)
	}
	lease, err := frame.Retain()
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan []uint8)
	go func() {
		defer lease.Release()
		pixels, err := callboard.Values[uint8](lease)
		if err != nil {
			log.Fatal(err)
		}
		done <- append([]uint8(nil), pixels...)
	}()
	frame.Release()
	if _, err := stage.Publish(ctx, "frame", []uint8{7, 8, 9}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-done)
	// Output: [1 2 3]
}

// A library in C gets the data as DLPack: the export is a lease of its own, and its deleter gives it back.
func ExampleGroup_ExportVersioned() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	if _, err := stage.Publish(ctx, "weights", [2][3]float32{{1, 2, 3}, {4, 5, 6}}); err != nil {
		log.Fatal(err)
	}
	weights, err := stage.Latest(ctx, "weights")
	if err != nil {
		log.Fatal(err)
	}
	managed, err := weights.ExportVersioned(0, 0)
	if err != nil {
		log.Fatal(err)
	}
	weights.Release()
	fmt.Println(managed.Tensor.NDim, managed.Tensor.DType, managed.Flags == tensor.FlagReadOnly)
	// By cgo: C.library_takes((*C.struct_DLManagedTensorVersioned)(unsafe.Pointer(managed)))
	tensor.Discard(managed) // nobody took it
	// Output: 2 float32 true
}

// Watch gives a snapshot for each change, and ends with its context.
func ExampleStage_Watch() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	publish := func(value float64) {
		if _, err := stage.Publish(ctx, "temperature", value); err != nil {
			log.Fatal(err)
		}
	}
	publish(20)
	for snapshot, err := range stage.Watch(ctx, "temperature") {
		if err != nil {
			log.Fatal(err)
		}
		now, err := snapshot.Latest(ctx, "temperature")
		if err != nil {
			log.Fatal(err)
		}
		value, err := callboard.Values[float64](now)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(value[0])
		now.Release()
		if value[0] > 21 {
			break
		}
		publish(value[0] + 1)
	}
	// Output:
	// 20
	// 21
	// 22
}

// From snapshot to snapshot a reader sees each change once.
func ExampleSnapshot_ReadSince() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	all, err := stage.QueryFromPathList(ctx, []string{"/p0", "/p1", "/p2"})
	if err != nil {
		log.Fatal(err)
	}
	defer all.Release()
	tick := func(ordinal uint64, rows []int32, o callboard.Selection) {
		op, err := stage.WriteAttribute(ctx, all, "count", rows, callboard.WriteOptions{Ordinal: ordinal, Selection: &o})
		if err != nil {
			log.Fatal(err)
		}
		if err := op.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		if op, err = stage.AdvanceWriteFloor(ordinal, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{"count"}}); err != nil {
			log.Fatal(err)
		}
		if err := op.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	var cursor callboard.Cursor // before everything
	delta := func() {
		snapshot, err := stage.Snapshot(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer snapshot.Release()
		read, err := snapshot.ReadSince(ctx, all, cursor, "count")
		if err != nil {
			log.Fatal(err)
		}
		defer read.Release()
		for group, err := range read.Groups() {
			if err != nil {
				log.Fatal(err)
			}
			paths, err := stage.Resolve(group.Prims()...)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(paths, group.RowOrdinals())
			group.Release()
		}
		cursor = snapshot.Cursor()
	}
	tick(1, []int32{1, 1, 1}, callboard.Selection{Count: callboard.AllPrims})
	delta()
	tick(2, []int32{2}, callboard.Selection{Count: 1}) // of the first prim alone
	delta()
	// Output:
	// [/p0 /p1 /p2] [1 1 1]
	// [/p0] [2]
}

// Every error has a kind, and a text for people. A failed operation is ErrOpFailed as well; a wait that was given up is
// no failure of what was waited for.
func ExampleError() {
	ctx := context.Background()
	stage, err := callboard.Dial(ctx, callboard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stage.Close()
	_, err = stage.Latest(ctx, "nothing")
	fmt.Println(errors.Is(err, callboard.ErrNotFound), errors.Is(err, callboard.ErrOpFailed))

	if _, err := stage.Publish(ctx, "sealed", 1.0); err != nil {
		log.Fatal(err)
	}
	q, err := stage.QueryFromPathList(ctx, []string{"/"})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Release()
	_, err = stage.WriteAttribute(ctx, q, "sealed", []float64{2}, callboard.WriteOptions{Ordinal: 1})
	fmt.Println(errors.Is(err, callboard.ErrFloorViolation), errors.Is(err, callboard.ErrOpFailed))
	var refused *callboard.Error
	fmt.Println(errors.As(err, &refused), refused.Status)

	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = stage.Follow(soon, stage.Epoch())
	fmt.Println(errors.Is(err, callboard.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, callboard.ErrOpFailed))
	// Output:
	// true false
	// true true
	// true FLOOR_VIOLATION
	// true true false
}
