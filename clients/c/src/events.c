/* Event loops: a descriptor that becomes readable when there is something to look at.
 *
 *     broker ──epoch, wake──▶ the stage's one thread ──write──▶ eventfd of each cbd_events ──▶ poll
 *
 * The thread runs from the first cbd_events to the last, or until the stage is closed. It sleeps on the epoch, looks at
 * the socket every turn like whoever waits (R4), and so takes the session up again as they do (reattach.c). It writes
 * when the epoch moved, when the broker was lost or came back, and when the session is over: whatever makes the next
 * call go another way.
 *
 * No epoch is missed: draining clears the descriptor first and loads the epoch afterwards, and the thread writes after
 * it has seen an epoch. So what is sealed after the load makes the descriptor readable again. What is sealed
 * between the two does so too, though it was seen: a wake-up too many.
 *
 * Stopping has nobody else to wake the thread: closing wakes the futex itself, which needs no more than a mapping that
 * can be read. It wakes everybody on this stage's epoch, who look again and go on; closing is rare.
 */
#include "client.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STOP_TURN_NS UINT64_C(1000000) /* a wake that came just before the thread slept is repeated */

struct cbd_events {
    cbd_stage *stage;
    int fd; /* -1 in a forked child */
    _Atomic uint64_t drained; /* the epoch that draining gave last */
    struct cbd_events *next;
};

/* The low half of the epoch is the futex word (R4); little-endian. */
static uint32_t *epoch_word(cbd_stage *stage) { return (uint32_t *)(uintptr_t)&stage->directory->epoch; }

static void signal_one(const cbd_events *events)
{
    uint64_t one = 1;
    ssize_t written = write(events->fd, &one, sizeof one); /* fails where it is readable for long already */
    (void)written;
}

static void signal_all(cbd_stage *stage)
{
    pthread_mutex_lock(&stage->events.lock);
    for (const cbd_events *events = stage->events.first; events != NULL; events = events->next)
        signal_one(events);
    pthread_mutex_unlock(&stage->events.lock);
}

/* ---- the thread ------------------------------------------------------------------------ */

/* Grows when a broker is lost, and again when one has taken the session up. */
static uint64_t link_count(cbd_stage *stage)
{
    bool up = atomic_load(&stage->reattach.link) == LINK_UP;
    return 2 * atomic_load(&stage->ring.life) + up;
}

static void *run(void *context)
{
    cbd_stage *stage = context;
    uint64_t epoch = 0, link = link_count(stage), looked = cbdi_now_ns();
    while (!atomic_load(&stage->events.stop) && cbdi_ended(stage, NULL) == CBD_STATUS_OK) {
        uint64_t seen = load64(&stage->directory->epoch), seen_link = link_count(stage);
        if (seen != epoch || seen_link != link) {
            epoch = seen;
            link = seen_link;
            signal_all(stage);
        }
        uint64_t now = cbdi_now_ns(), turn = cbdi_reattach_turn(stage, WAIT_TURN_NS);
        if (now - looked >= turn) {
            looked = now;
            cbdi_look_at_socket(stage);
            if (link_count(stage) != link || cbdi_ended(stage, NULL) != CBD_STATUS_OK)
                continue;
        }
        if (!atomic_load(&stage->events.stop))
            cbdi_futex_wait(epoch_word(stage), (uint32_t)epoch, turn);
    }
    signal_all(stage); /* for the session's end */
    store32(&stage->events.gone, 1);
    cbdi_futex_wake(&stage->events.gone, 1);
    return NULL;
}

/* With gate held; the next two as well. */
static int start(cbd_stage *stage)
{
    struct events *e = &stage->events;
    if (e->running)
        return 0;
    atomic_store(&e->stop, 0);
    store32(&e->gone, 0);
    int failed = cbdi_thread_start(&e->thread, run, stage);
    e->running = failed == 0;
    return failed;
}

static void stop(cbd_stage *stage)
{
    struct events *e = &stage->events;
    if (!e->running)
        return;
    atomic_store(&e->stop, 1);
    while (load32(&e->gone) == 0) {
        cbdi_futex_wake(epoch_word(stage), INT_MAX);
        cbdi_futex_wait(&e->gone, 0, STOP_TURN_NS);
    }
    pthread_join(e->thread, NULL);
    e->running = false;
}

/* ---- the list ----------------------------------------------------------------------------- */

/* A child must know every descriptor: none is made or closed while a fork is under way. */
static int add(cbd_stage *stage, cbd_events *events)
{
    pthread_mutex_lock(&stage->events.lock);
    cbdi_descriptors_lock();
    events->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failed = events->fd < 0 ? errno : 0;
    if (!failed) {
        events->next = stage->events.first;
        stage->events.first = events;
    }
    cbdi_descriptors_unlock();
    pthread_mutex_unlock(&stage->events.lock);
    return failed;
}

/* Another thread of the parent may have held `lock` at the fork; in the child nobody else looks at the list. */
static void take_out(cbd_stage *stage, cbd_events *events)
{
    bool foreign = atomic_load(&stage->foreign) != 0;
    if (!foreign)
        pthread_mutex_lock(&stage->events.lock);
    cbdi_descriptors_lock();
    cbd_events **at = &stage->events.first;
    while (*at != events)
        at = &(*at)->next;
    *at = events->next;
    if (events->fd >= 0)
        close(events->fd);
    cbdi_descriptors_unlock();
    if (!foreign)
        pthread_mutex_unlock(&stage->events.lock);
}

void cbdi_events_init(cbd_stage *stage)
{
    pthread_mutex_init(&stage->events.gate, NULL);
    pthread_mutex_init(&stage->events.lock, NULL);
}

void cbdi_events_free(cbd_stage *stage)
{
    pthread_mutex_destroy(&stage->events.gate);
    pthread_mutex_destroy(&stage->events.lock);
}

void cbdi_events_close(cbd_stage *stage)
{
    pthread_mutex_lock(&stage->events.gate);
    stop(stage);
    pthread_mutex_unlock(&stage->events.gate);
    signal_all(stage); /* the thread may have ended before, with the session */
}

void cbdi_events_forked(cbd_stage *stage)
{
    for (cbd_events *events = stage->events.first; events != NULL; events = events->next) {
        if (events->fd >= 0)
            close(events->fd);
        events->fd = -1;
    }
}

/* ---- the calls ------------------------------------------------------------------------------ */

cbd_status cbd_events_open(cbd_stage *stage, cbd_events **out, cbd_error *error)
{
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "events: expected a place for the handle, got NULL");
    *out = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_events *events = calloc(1, sizeof *events);
    if (events == NULL) {
        cbdi_leave(stage);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for events");
    }
    events->stage = stage;
    pthread_mutex_lock(&stage->events.gate); /* closing stops the thread behind it: none starts later */
    status = cbdi_ended(stage, error);
    if (status == CBD_STATUS_OK) {
        int failed = add(stage, events);
        if (failed) {
            status = cbdi_fail(error, failed == EMFILE || failed == ENFILE ? CBD_STATUS_LIMIT : CBD_STATUS_OUT_OF_MEMORY,
                               "no descriptor for events: %s", strerror(failed));
        } else if ((failed = start(stage)) != 0) {
            take_out(stage, events);
            status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no thread to wait for epochs: %s", strerror(failed));
        }
    }
    pthread_mutex_unlock(&stage->events.gate);
    if (status == CBD_STATUS_OK) {
        cbdi_stage_retain(stage);
        if (load64(&stage->directory->epoch) != 0 || cbdi_ended(stage, NULL) != CBD_STATUS_OK)
            signal_one(events); /* the thread may have told the others already */
        *out = events;
    } else {
        free(events);
    }
    cbdi_leave(stage);
    return status;
}

int cbd_events_fileno(const cbd_events *events) { return events == NULL ? -1 : events->fd; }

cbd_status cbd_events_drain(cbd_events *events, uint64_t *epoch, cbd_error *error)
{
    if (epoch != NULL)
        *epoch = 0;
    if (events == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "events is NULL");
    cbd_stage *stage = events->stage;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint64_t times;
    ssize_t got = read(events->fd, &times, sizeof times); /* nothing is there to read: fine */
    (void)got;
    uint64_t seen = load64(&stage->directory->epoch);
    bool newer = atomic_exchange(&events->drained, seen) != seen;
    if (cbdi_ended(stage, NULL) != CBD_STATUS_OK) {
        signal_one(events); /* that stays */
        if (!newer) /* what was sealed before comes first, as from cbd_follow */
            status = cbdi_ended(stage, error);
    }
    cbdi_leave(stage);
    if (status == CBD_STATUS_OK && epoch != NULL)
        *epoch = seen;
    return status;
}

void cbd_events_release(cbd_events *events)
{
    if (events == NULL)
        return;
    cbd_stage *stage = events->stage;
    if (atomic_load(&stage->foreign)) {
        take_out(stage, events);
    } else {
        pthread_mutex_lock(&stage->events.gate);
        take_out(stage, events);
        if (stage->events.first == NULL)
            stop(stage); /* after close there is none */
        pthread_mutex_unlock(&stage->events.gate);
    }
    cbdi_stage_drop(stage);
    free(events);
}
