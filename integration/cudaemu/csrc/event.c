/* Events: counts of records made and records reached, in memory that other processes can map for interprocess events.
 *
 * A record takes the next number when it is called, and the stream notes that number when it gets there. An event is
 * complete when its latest number was noted, or when it has none. What a killed process had queued is never noted.
 */
#include "emu.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* done is kept for this many records, so that a wait for an older one is not satisfied by a newer one on another stream. */
enum { RECORDS_KEPT = 64 };

struct state {
    uint64_t id;       /* 0: free. Written by the exporter. */
    uint32_t destroyed; /* by the exporter */
    uint32_t wake;     /* a futex; grows with every record that is reached, whoever made it */
    uint64_t recorded; /* the latest record's number, 0 before the first */
    uint64_t done[RECORDS_KEPT]; /* at record mod RECORDS_KEPT, the number of the latest such that is complete */
};

_Static_assert(sizeof(struct state) <= EVENT_BYTES, "an event has one page");

struct event {
    struct event *next;
    struct context *context;
    unsigned flags;
    bool imported, destroyed;
    unsigned refs;
    uint64_t id;
    struct state *state;
    int slot; /* in the arena; -1: none */
};

static struct event *events;

/* ---- where states lie -------------------------------------------------------------------------------------------------- */

/* [issue] PyTorch met a limit of about 22000 interprocess events and keeps to 1000 (CudaIPCTypes.h). Slots are used again
 * last, so that what an importer still waits for stays what it was for as long as can be. */
enum { SLOTS = 22000 };

static struct {
    int fd;
    unsigned char *pages;
    uint64_t file;
    uint64_t next_id;
    int unused[SLOTS];
    int head, count; /* a ring of unused slots */
} arena = {.fd = -1};

static CUresult arena_open(void)
{
    if (arena.fd >= 0)
        return CU_OK;
    int fd = memfd_create("callboard-cudaemu-events", MFD_CLOEXEC);
    if (fd < 0)
        return CU_OPERATING_SYSTEM;
    size_t bytes = (size_t)SLOTS * EVENT_BYTES;
    void *pages = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages == MAP_FAILED) {
        close(fd);
        return CU_OUT_OF_MEMORY;
    }
    arena.fd = fd;
    arena.pages = pages;
    arena.file = emu_file_id(fd);
    for (int i = 0; i < SLOTS; i++)
        arena.unused[i] = i;
    arena.count = SLOTS;
    return CU_OK;
}

static CUresult state_new(struct event *event)
{
    event->slot = -1;
    if (!(event->flags & CU_EVENT_INTERPROCESS)) {
        event->state = calloc(1, sizeof *event->state);
        if (event->state == NULL)
            return CU_OUT_OF_MEMORY;
    } else {
        CUresult result = arena_open();
        if (result != CU_OK)
            return result;
        if (arena.count == 0)
            return CU_OUT_OF_MEMORY;
        event->slot = arena.unused[arena.head];
        arena.head = (arena.head + 1) % SLOTS;
        arena.count--;
        event->state = (struct state *)(arena.pages + (size_t)event->slot * EVENT_BYTES);
        memset(event->state, 0, sizeof *event->state);
    }
    event->id = ++arena.next_id;
    __atomic_store_n(&event->state->id, event->id, __ATOMIC_RELEASE);
    return CU_OK;
}

static void state_drop(struct event *event)
{
    if (event->imported) {
        munmap(event->state, EVENT_BYTES);
    } else if (event->slot >= 0) {
        arena.unused[(arena.head + arena.count++) % SLOTS] = event->slot;
    } else {
        free(event->state);
    }
}

/* ---- records ----------------------------------------------------------------------------------------------------------- */

static bool reached(const struct state *state, uint64_t record)
{
    return record == 0 || __atomic_load_n(&state->done[record % RECORDS_KEPT], __ATOMIC_ACQUIRE) >= record;
}

static uint64_t latest(const struct event *event)
{
    return __atomic_load_n(&event->state->recorded, __ATOMIC_ACQUIRE);
}

static bool stale(const struct event *event)
{
    return __atomic_load_n(&event->state->id, __ATOMIC_ACQUIRE) != event->id ||
           __atomic_load_n(&event->state->destroyed, __ATOMIC_ACQUIRE) != 0;
}

void emu_event_done(struct event *event, uint64_t record)
{
    if (emu_settings.stall_events || (event->imported && stale(event)))
        return;
    uint64_t *done = &event->state->done[record % RECORDS_KEPT], before = __atomic_load_n(done, __ATOMIC_RELAXED);
    while (before < record && !__atomic_compare_exchange_n(done, &before, record, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        continue;
    __atomic_add_fetch(&event->state->wake, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &event->state->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Waits, with the lock, which it lets go meanwhile, until the record is reached, the stream's or the context's work is dropped, or an import is stale:
 * the exporter destroyed it, and what this wait is then worth is not defined. stream may be NULL. */
void emu_event_await(struct event *event, uint64_t record, const struct stream *stream, const struct context *context)
{
    struct state *state = event->state;
    pthread_mutex_unlock(&emu_lock);
    for (;;) {
        uint32_t wake = __atomic_load_n(&state->wake, __ATOMIC_ACQUIRE);
        if (reached(state, record) || (stream && __atomic_load_n(&stream->cancelled, __ATOMIC_ACQUIRE)) ||
            __atomic_load_n(&context->lost, __ATOMIC_ACQUIRE) != CU_OK || (event->imported && stale(event)))
            break;
        struct timespec soon = {0, 10 * 1000 * 1000}; /* to look at what nobody wakes for */
        syscall(SYS_futex, &state->wake, FUTEX_WAIT, wake, &soon, NULL, 0);
    }
    pthread_mutex_lock(&emu_lock);
}

/* ---- the objects ------------------------------------------------------------------------------------------------------- */

void emu_event_unref(struct event *event)
{
    if (event == NULL || --event->refs > 0)
        return;
    state_drop(event);
    free(event);
}

static struct event *find(const struct event *handle)
{
    struct event *event = events;
    while (event && event != handle)
        event = event->next;
    return event;
}

/* The event of a handle, for use. [hdr] Using an import after the exporter destroyed the event "will result in undefined
 * behavior"; real programs met it: LMCache#3236, #4419. Here it ends the process that does it. */
static CUresult use(CUevent handle, struct event **out)
{
    struct event *event = find(handle);
    if (event == NULL)
        return CU_INVALID_HANDLE;
    if (event->imported && stale(event))
        emu_trap("an imported event is used after its exporter destroyed it: undefined behaviour in CUDA");
    *out = event;
    return CU_OK;
}

static void retire(struct event *event)
{
    for (struct event **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    if (!event->imported)
        __atomic_store_n(&event->state->destroyed, 1, __ATOMIC_RELEASE);
    emu_count(event->imported ? COUNT_IMPORTED_EVENTS : COUNT_EVENTS, -1);
    emu_event_unref(event);
}

void emu_event_release_all(struct context *context)
{
    for (struct event *event = events, *next; event; event = next) {
        next = event->next;
        if (event->context == context)
            retire(event);
    }
}

static void keep(struct event *event, struct context *context)
{
    event->context = context;
    event->refs = 1;
    event->next = events;
    events = event;
    emu_count(event->imported ? COUNT_IMPORTED_EVENTS : COUNT_EVENTS, 1);
}

/* [hdr] "CU_EVENT_DISABLE_TIMING must be set" with CU_EVENT_INTERPROCESS. */
CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (out == NULL || (flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return emu_leave(CU_INVALID_VALUE);
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return emu_leave(CU_OUT_OF_MEMORY);
    event->flags = flags;
    result = state_new(event);
    if (result != CU_OK) {
        free(event);
        return emu_leave(result);
    }
    keep(event, context);
    *out = event;
    return emu_leave(CU_OK);
}

/* [hdr] "An event may be destroyed before it is complete": what is queued keeps it. */
CUresult cuEventDestroy_v2(CUevent handle)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    struct event *event = find(handle);
    if (event == NULL)
        return emu_leave(CU_INVALID_HANDLE);
    retire(event);
    return emu_leave(CU_OK);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct event *event;
    struct stream *stream;
    result = use(handle, &event);
    if (result == CU_OK)
        result = emu_stream_find(context, stream_handle, &stream);
    if (result == CU_OK && event->context != stream->context)
        result = CU_INVALID_HANDLE; /* [hdr] "hEvent and hStream must be from the same context" */
    if (result != CU_OK)
        return emu_leave(result);
    uint64_t record = __atomic_add_fetch(&event->state->recorded, 1, __ATOMIC_ACQ_REL);
    event->refs++;
    struct op op = {.kind = OP_RECORD, .function = __func__, .event = event, .record = record};
    return emu_leave(emu_stream_issue(stream, &op));
}

/* [hdr] It captures "the most recent call to cuEventRecord" at the time of this call; without one it does nothing. The event
 * may be of another context. */
CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct event *event;
    struct stream *stream;
    if (flags != 0)
        return emu_leave(CU_INVALID_VALUE);
    result = use(handle, &event);
    if (result == CU_OK)
        result = emu_stream_find(context, stream_handle, &stream);
    if (result != CU_OK)
        return emu_leave(result);
    event->refs++;
    struct op op = {.kind = OP_WAIT, .function = __func__, .event = event, .record = latest(event)};
    return emu_leave(emu_stream_issue(stream, &op));
}

/* [hdr] An event that was never recorded is complete. */
CUresult cuEventQuery(CUevent handle)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct event *event;
    result = use(handle, &event);
    if (result == CU_OK && event->context->lost != CU_OK)
        result = event->context->lost;
    if (result == CU_OK && !reached(event->state, latest(event)))
        result = CU_NOT_READY;
    return emu_leave(result);
}

CUresult cuEventSynchronize(CUevent handle)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct event *event;
    result = use(handle, &event);
    if (result != CU_OK)
        return emu_leave(result);
    context = event->context;
    uint64_t record = latest(event);
    event->refs++;
    emu_event_await(event, record, NULL, context);
    emu_event_unref(event);
    return emu_leave(context->lost);
}

/* ---- between processes ------------------------------------------------------------------------------------------------- */

/* [hdr] Only for an event with CU_EVENT_INTERPROCESS. IPC_EVENT_SUPPORTED is 0 on machines that cannot. */
CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent handle)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct event *event;
    result = use(handle, &event);
    if (result != CU_OK)
        return emu_leave(result);
    if (out == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (event->slot < 0) /* of this process alone, or imported: [inferred] that is not passed on */
        return emu_leave(CU_INVALID_HANDLE);
    int supported = 1;
    if (emu_attribute(125, event->context->device, &supported) == CU_OK && supported == 0)
        return emu_leave(CU_NOT_SUPPORTED);
    struct handle made = {.magic = emu_handle_magic,
                          .kind = HANDLE_EVENT,
                          .pid = (uint32_t)getpid(),
                          .fd = (uint32_t)arena.fd,
                          .device = (uint32_t)event->context->device,
                          .file = arena.file,
                          .id = event->id,
                          .offset = (uint64_t)event->slot * EVENT_BYTES};
    memcpy(out, &made, sizeof made);
    return emu_leave(CU_OK);
}

/* [hdr] Every open makes an event of its own, with CU_EVENT_DISABLE_TIMING, that cuEventDestroy frees.
 * [issue] It may block while the device is busy (pytorch/pytorch#15937): CUDAEMU_SLOW_OPEN_US. */
CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (out == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (emu_settings.slow_open_us > 0) {
        pthread_mutex_unlock(&emu_lock);
        emu_sleep_us(emu_settings.slow_open_us);
        pthread_mutex_lock(&emu_lock);
    }
    struct handle parsed;
    int fd;
    memcpy(&parsed, &handle, sizeof parsed);
    result = emu_handle_open(&parsed, HANDLE_EVENT, context, &fd);
    if (result != CU_OK)
        return emu_leave(result);
    struct event *event = calloc(1, sizeof *event);
    void *page = MAP_FAILED;
    if (parsed.offset % EVENT_BYTES == 0 && parsed.offset < (uint64_t)SLOTS * EVENT_BYTES)
        page = mmap(NULL, EVENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)parsed.offset);
    close(fd);
    if (event == NULL || page == MAP_FAILED) {
        free(event);
        if (page != MAP_FAILED)
            munmap(page, EVENT_BYTES);
        return emu_leave(CU_MAP_FAILED);
    }
    event->imported = true;
    event->slot = -1;
    event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    event->id = parsed.id;
    event->state = page;
    if (stale(event)) {
        munmap(page, EVENT_BYTES);
        free(event);
        return emu_leave(CU_INVALID_VALUE);
    }
    keep(event, context);
    *out = event;
    return emu_leave(CU_OK);
}
