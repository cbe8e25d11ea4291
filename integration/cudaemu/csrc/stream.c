/* Streams: a queue and a worker thread each, first in, first out.
 *
 * The order between streams is CUDA's and no more: events, and the legacy stream, which runs after what all blocking streams
 * of its context were given before, and before what they are given after ([doc] programming guide, legacy default stream).
 */
#include "emu.h"

#include <signal.h>
#include <stdlib.h>

#define STREAM_LEGACY_HANDLE ((CUstream)1)     /* [hdr] CU_STREAM_LEGACY */
#define STREAM_PER_THREAD_HANDLE ((CUstream)2) /* [hdr] CU_STREAM_PER_THREAD */

static void unref(struct stream *stream)
{
    if (--stream->refs == 0)
        free(stream);
}

static void op_free(struct op *op)
{
    for (unsigned i = 0; i < op->dependency_count; i++)
        unref(op->dependencies[i].stream);
    free(op->dependencies);
    emu_event_unref(op->event);
    free(op->staging);
}

/* ---- the worker -------------------------------------------------------------------------------------------------------- */

/* Runs an operation. The lock is held before and after, not during. */
static void run(struct stream *stream, struct op *op)
{
    for (unsigned i = 0; i < op->dependency_count; i++)
        while (op->dependencies[i].stream->completed < op->dependencies[i].issued && !stream->cancelled)
            pthread_cond_wait(&emu_changed, &emu_lock);
    if (emu_settings.delay_us > 0 && !stream->cancelled) {
        pthread_mutex_unlock(&emu_lock);
        emu_sleep_us(emu_settings.delay_us);
        pthread_mutex_lock(&emu_lock);
    }
    while (!stream->cancelled && emu_held()) {
        pthread_mutex_unlock(&emu_lock);
        emu_sleep_us(1000);
        pthread_mutex_lock(&emu_lock);
    }
    if (stream->cancelled || stream->context->lost != CU_OK)
        return; /* it vanishes: no bytes, no event */
    switch (op->kind) {
    case OP_COPY:
    case OP_SET:
        emu_copy_run(stream, op);
        break;
    case OP_RECORD:
        emu_event_done(op->event, op->record);
        break;
    case OP_WAIT:
        emu_event_await(op->event, op->record, stream, stream->context);
        break;
    case OP_HOST:
        pthread_mutex_unlock(&emu_lock);
        emu_in_host_function = true;
        op->host(op->user);
        emu_in_host_function = false;
        pthread_mutex_lock(&emu_lock);
        break;
    }
}

static void *worker(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&emu_lock);
    for (;;) {
        while (stream->head == NULL && !stream->destroyed)
            pthread_cond_wait(&emu_changed, &emu_lock);
        struct op *op = stream->head;
        if (op == NULL)
            break;
        run(stream, op);
        stream->head = op->next;
        if (stream->head == NULL)
            stream->tail = NULL;
        stream->completed++;
        op_free(op);
        free(op);
        pthread_cond_broadcast(&emu_changed);
    }
    for (struct stream **at = &stream->context->streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    unref(stream);
    pthread_cond_broadcast(&emu_changed);
    pthread_mutex_unlock(&emu_lock);
    return NULL;
}

/* A program's signals are its own threads' affair: the Go runtime does not expect them on a thread it did not make. */
static bool start(struct stream *stream)
{
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, &detached, worker, stream) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return started;
}

static CUresult stream_new(struct context *context, const struct stream *like, struct stream **out)
{
    struct stream *stream = malloc(sizeof *stream);
    if (stream == NULL)
        return CU_OUT_OF_MEMORY;
    *stream = *like;
    stream->context = context;
    stream->refs = 1;
    if (!start(stream)) { /* it waits for the lock */
        free(stream);
        return CU_OUT_OF_MEMORY;
    }
    stream->next = context->streams;
    context->streams = stream;
    *out = stream;
    return CU_OK;
}

/* ---- handles ----------------------------------------------------------------------------------------------------------- */

/* The number of this thread among those that used CU_STREAM_PER_THREAD. */
static uint64_t thread_number(void)
{
    static uint64_t threads;
    static __thread uint64_t mine;
    if (mine == 0)
        mine = ++threads; /* under the lock */
    return mine;
}

CUresult emu_stream_find(struct context *current, CUstream handle, struct stream **out)
{
    struct stream like = {.kind = STREAM_CREATED};
    if (handle == NULL || handle == STREAM_LEGACY_HANDLE)
        like.kind = STREAM_LEGACY;
    else if (handle == STREAM_PER_THREAD_HANDLE)
        like = (struct stream){.kind = STREAM_PER_THREAD, .thread = thread_number()};
    for (int i = 0; i < DEVICES_MAX; i++) {
        struct context *context = &emu_contexts[i];
        if (like.kind != STREAM_CREATED && context != current)
            continue;
        for (struct stream *stream = context->streams; stream; stream = stream->next) {
            if (stream->destroyed || stream->kind != like.kind)
                continue;
            if (like.kind == STREAM_CREATED ? stream == handle : stream->thread == like.thread) {
                *out = stream;
                return context->lost;
            }
        }
    }
    return like.kind == STREAM_CREATED ? CU_INVALID_HANDLE : stream_new(current, &like, out);
}

CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return emu_leave(CU_INVALID_VALUE);
    struct stream like = {.kind = STREAM_CREATED, .non_blocking = flags & CU_STREAM_NON_BLOCKING};
    result = stream_new(context, &like, out);
    if (result == CU_OK)
        emu_count(COUNT_STREAMS, 1);
    return emu_leave(result);
}

/* [hdr] With work still queued it returns at once, and the resources go when the work is done. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct stream *stream;
    if (handle == NULL || handle == STREAM_LEGACY_HANDLE || handle == STREAM_PER_THREAD_HANDLE)
        return emu_leave(CU_INVALID_HANDLE);
    result = emu_stream_find(context, handle, &stream);
    if (result != CU_OK)
        return emu_leave(result);
    stream->destroyed = true;
    emu_count(COUNT_STREAMS, -1);
    pthread_cond_broadcast(&emu_changed);
    return emu_leave(CU_OK);
}

/* ---- queueing and waiting ---------------------------------------------------------------------------------------------- */

static bool must_wait(const struct stream *stream, const struct stream *other)
{
    if (other == stream || other->completed == other->issued)
        return false;
    if (stream->kind == STREAM_LEGACY)
        return !other->non_blocking;
    return other->kind == STREAM_LEGACY && !stream->non_blocking;
}

CUresult emu_stream_issue(struct stream *stream, const struct op *like)
{
    unsigned count = 0;
    for (struct stream *other = stream->context->streams; other; other = other->next)
        count += must_wait(stream, other);
    struct op *op = malloc(sizeof *op);
    struct dependency *dependencies = calloc(count + 1, sizeof *dependencies);
    if (op == NULL || dependencies == NULL) {
        struct op owned = *like;
        op_free(&owned);
        free(op);
        free(dependencies);
        return CU_OUT_OF_MEMORY;
    }
    *op = *like;
    op->next = NULL;
    op->dependencies = dependencies;
    op->dependency_count = 0;
    for (struct stream *other = stream->context->streams; other; other = other->next)
        if (must_wait(stream, other)) {
            other->refs++;
            dependencies[op->dependency_count++] = (struct dependency){other, other->issued};
        }
    if (stream->tail != NULL)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream->issued++;
    pthread_cond_broadcast(&emu_changed);
    return CU_OK;
}

CUresult emu_stream_wait(struct stream *stream, uint64_t issued)
{
    struct context *context = stream->context;
    stream->refs++;
    while (stream->completed < issued)
        pthread_cond_wait(&emu_changed, &emu_lock);
    CUresult result = stream->cancelled ? CU_CONTEXT_IS_DESTROYED : context->lost;
    unref(stream);
    return result;
}

/* [inferred] The legacy stream waits for others when it is given work, not when it is waited for: a program that counts on
 * more must say so with an event or cuCtxSynchronize. */
CUresult cuStreamSynchronize(CUstream handle)
{
    struct context *context;
    struct stream *stream;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    result = emu_stream_find(context, handle, &stream);
    if (result == CU_OK)
        result = emu_stream_wait(stream, stream->issued);
    return emu_leave(result);
}

CUresult cuStreamQuery(CUstream handle)
{
    struct context *context;
    struct stream *stream;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    result = emu_stream_find(context, handle, &stream);
    if (result == CU_OK && stream->completed < stream->issued)
        result = CU_NOT_READY;
    return emu_leave(result);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user)
{
    struct context *context;
    struct stream *stream;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (function == NULL)
        return emu_leave(CU_INVALID_VALUE);
    result = emu_stream_find(context, handle, &stream);
    if (result != CU_OK)
        return emu_leave(result);
    struct op op = {.kind = OP_HOST, .function = __func__, .host = function, .user = user};
    return emu_leave(emu_stream_issue(stream, &op));
}

void emu_context_drain(struct context *context)
{
    unsigned count = 0, at = 0;
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        count++;
    struct dependency *all = calloc(count + 1, sizeof *all);
    if (all == NULL)
        emu_trap("no memory to wait for %u streams", count);
    for (struct stream *stream = context->streams; stream; stream = stream->next) {
        stream->refs++;
        all[at++] = (struct dependency){stream, stream->issued};
    }
    for (at = 0; at < count; at++) {
        (void)emu_stream_wait(all[at].stream, all[at].issued);
        unref(all[at].stream);
    }
    free(all);
}

void emu_context_abandon(struct context *context)
{
    for (struct stream *stream = context->streams; stream; stream = stream->next) {
        if (stream->kind == STREAM_CREATED && !stream->destroyed)
            emu_count(COUNT_STREAMS, -1);
        __atomic_store_n(&stream->cancelled, true, __ATOMIC_RELEASE);
        stream->destroyed = true;
    }
    pthread_cond_broadcast(&emu_changed);
    while (context->streams != NULL)
        pthread_cond_wait(&emu_changed, &emu_lock);
}
