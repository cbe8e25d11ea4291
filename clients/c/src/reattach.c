/* Taking the session up again after the broker's restart (design D9, rule B1).
 *
 *     UP ──hang-up──▶ LOST ──a broker listens──▶ HELLO ──it replies──▶ ADOPTED ──outcomes of ops──▶ UP
 *                      ▲  └──too late─▶ over      │ └─refused, or another life of the stage─▶ over   │
 *                      └──────────hung up─────────┴─────────────────────hung up──────────────────────┘
 *
 * There is no thread for it: whoever waits (for an op, an epoch, a segment; event loops by theirs), polls, or is refused a submission
 * takes a step, at most one thread at a time (socket_lock), and no step waits. Reads in place need none of this: the
 * directory and the pins stay as they are, and their memory belongs to no process.
 *
 * The channel's lock, this process's proof of life (I3), never lapses: the old descriptor is closed when the new one,
 * locked by the broker, is here.
 *
 * The last step needs the directory, and so cache_lock; who waits for a segment holds that lock, and is content with
 * a broker that answers. So nobody ever waits for another thread's step.
 */
#include "client.h"
#include "python_support.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAUSE_LEAST_NS UINT64_C(20000000)
#define PAUSE_MOST_NS UINT64_C(200000000)
#define HELLO_TURN_NS UINT64_C(5000000) /* between two looks for the answer */

static void try_again(cbd_stage *stage, uint64_t now, const char *why)
{
    struct reattach *r = &stage->reattach;
    cbdi_copy_text(r->why, sizeof r->why, why, strlen(why));
    r->next_ns = now + r->pause_ns;
    r->pause_ns = r->pause_ns * 2 < PAUSE_MOST_NS ? r->pause_ns * 2 : PAUSE_MOST_NS;
    cbdi_close_socket(stage);
    atomic_store(&r->link, LINK_LOST);
}

void cbdi_hung_up(cbd_stage *stage)
{
    struct reattach *r = &stage->reattach;
    if (r->wait_ns == 0 || !(atomic_load(&stage->features) & CBD_FEATURE_RECOVERY) || atomic_load(&stage->closed)) {
        cbdi_end(stage, CBD_STATUS_SESSION_ENDED,
                 "the broker hung up: it stopped, crashed or was replaced; connect again once it runs");
        return;
    }
    r->lost_ns = r->next_ns = cbdi_now_ns();
    r->pause_ns = PAUSE_LEAST_NS;
    cbdi_copy_text(r->why, sizeof r->why, "none yet", 8);
    cbdi_close_socket(stage);
    cbdi_ring_lose(stage);
    cbdi_log(CBD_LOG_WARNING, CBDI_LOG_SESSION, "stage %s: the broker hung up; another one is looked for, for up to %llu ms",
             stage->name, (unsigned long long)(r->wait_ns / 1000000));
}

/* Connects and says hello. */
static void call(cbd_stage *stage, uint64_t now)
{
    struct reattach *r = &stage->reattach;
    cbd_error why = {CBD_STATUS_OK, ""};
    cbdi_descriptors_lock();
    stage->socket = cbdi_discover_again(&r->place, PAUSE_LEAST_NS, &why);
    cbdi_descriptors_unlock();
    int failed = stage->socket < 0 ? 0 : cbdi_send(stage->socket, &r->hello, sizeof r->hello);
    if (stage->socket < 0 || failed)
        try_again(stage, now, failed ? strerror(failed) : why.text);
    else
        atomic_store(&r->link, LINK_HELLO);
}

/* The descriptors that came with the reply take the place of the old ones. With the descriptors' lock held. */
static cbd_status adopt(cbd_stage *stage, const cbd_abi_hello_reply *reply, const int fds[3], cbd_error *error)
{
    struct stat before, after, bell;
    if (reply->reattached == 0 || reply->generation != stage->generation || reply->incarnation != stage->incarnation)
        return cbdi_fail(error, CBD_STATUS_SESSION_ENDED,
                         "the stage was started anew: it is of generation %llu, this session of %llu; connect again. What was read stays valid",
                         (unsigned long long)reply->generation, (unsigned long long)stage->generation);
    if (fstat(stage->fds[0], &before) != 0 || fstat(fds[0], &after) != 0 || fstat(fds[2], &bell) != 0 ||
        before.st_dev != after.st_dev || before.st_ino != after.st_ino || reply->channel_bytes != stage->channel_bytes ||
        reply->doorbell_bytes != stage->doorbell_bytes || (uint64_t)bell.st_size < stage->doorbell_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "the broker took the session up again with another channel or doorbell: %llu and %llu bytes, they had %llu and %llu",
                         (unsigned long long)reply->channel_bytes, (unsigned long long)reply->doorbell_bytes,
                         (unsigned long long)stage->channel_bytes, (unsigned long long)stage->doorbell_bytes);
    /* In its old place: another thread may be ringing it. */
    if (mmap(stage->doorbell, stage->doorbell_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fds[2], 0) == MAP_FAILED)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "mapping the doorbell again: %s", strerror(errno));
    madvise(stage->doorbell, stage->doorbell_bytes, MADV_DONTFORK);
    return CBD_STATUS_OK;
}

/* Looks for the reply. */
static void listen_for_reply(cbd_stage *stage, uint64_t now)
{
    struct reattach *r = &stage->reattach;
    unsigned char message[CBD_MESSAGE_BYTES_MAX];
    cbd_abi_hello_reply reply;
    cbd_error why = {CBD_STATUS_OK, ""};
    cbd_status status = CBD_STATUS_OK;
    size_t bytes, count;
    int fds[3] = {-1, -1, -1};

    cbdi_descriptors_lock(); /* no fork comes in between, whose child would keep a descriptor that it does not know */
    int failed = cbdi_receive(stage->socket, message, sizeof message, &bytes, fds, 3, &count, 0);
    if (failed == 0) {
        status = cbdi_hello_reply(message, bytes, count, &reply, &why);
        if (status == CBD_STATUS_OK)
            status = adopt(stage, &reply, fds, &why);
        if (status == CBD_STATUS_OK) {
            int old = stage->fds[0];
            stage->fds[0] = fds[0];
            fds[0] = old;
        }
        for (int i = 0; i < 3; i++)
            if (fds[i] >= 0)
                close(fds[i]);
    }
    cbdi_descriptors_unlock();

    if (failed == EAGAIN || failed == EWOULDBLOCK)
        return;
    if (failed)
        try_again(stage, now, "it hung up before it answered");
    else if (status == CBD_STATUS_BROKER_RESTARTED)
        try_again(stage, now, why.text);
    else if (status != CBD_STATUS_OK)
        cbdi_end(stage, status == CBD_STATUS_INTERNAL || status == CBD_STATUS_INCOMPATIBLE_VERSION ? status : CBD_STATUS_SESSION_ENDED,
                 "the broker was restarted and does not take this session up again: %s", why.text);
    else {
        cbdi_limit_sending(stage->socket, stage->timeout_ns);
        atomic_store(&stage->broker_incarnation, reply.broker_incarnation);
        atomic_store(&stage->features, reply.features);
        atomic_store(&r->link, LINK_ADOPTED);
    }
}

void cbdi_reattach_step(cbd_stage *stage)
{
    struct reattach *r = &stage->reattach;
    uint32_t link = atomic_load(&r->link);
    if ((link != LINK_LOST && link != LINK_HELLO) || cbdi_ended(stage, NULL) != CBD_STATUS_OK)
        return;
    uint64_t now = cbdi_now_ns();
    if (now - r->lost_ns >= r->wait_ns) {
        cbdi_end(stage, CBD_STATUS_SESSION_ENDED,
                 "the broker hung up, and no other one took this session up again within %llu ms (the last try: %s); connect again once one runs",
                 (unsigned long long)(r->wait_ns / 1000000), link == LINK_HELLO ? "it did not answer" : r->why);
        cbdi_close_socket(stage);
        return;
    }
    if (link == LINK_LOST && now >= r->next_ns)
        call(stage, now);
    if (atomic_load(&r->link) == LINK_HELLO)
        listen_for_reply(stage, now);
}

void cbdi_reattach_settle(cbd_stage *stage)
{
    struct reattach *r = &stage->reattach;
    struct outcomes outcomes;
    cbd_error why = {CBD_STATUS_OK, ""};
    if (atomic_load(&r->link) != LINK_ADOPTED || r->settling || cbdi_ended(stage, NULL) != CBD_STATUS_OK)
        return;
    struct deferred *closed = calloc(1, sizeof *closed);
    if (closed == NULL)
        return; /* the next turn */
    r->settling = true;
    cbd_status status = cbdi_outcomes_read(stage, &outcomes, &why);
    r->settling = false;
    if (status == CBD_STATUS_OK) {
        if (!cbdi_ring_renew(stage, &outcomes, closed, &why))
            status = why.status; /* OK: another broker was lost meanwhile */
        else {
            atomic_store(&stage->retired_seen, load32(&stage->directory->retired_count) - 1); /* arenas of before are void (B3) */
            cbdi_log(CBD_LOG_INFO, CBDI_LOG_SESSION, "stage %s: broker %llu took the session up again at epoch %llu", stage->name,
                     (unsigned long long)atomic_load(&stage->broker_incarnation), (unsigned long long)outcomes.epoch);
        }
        cbdi_outcomes_free(&outcomes);
    } else {
        free(closed);
    }
    if (status != CBD_STATUS_OK && status != CBD_STATUS_BROKER_RESTARTED)
        cbdi_end(stage, status, "taking the session up again after the broker's restart: %s", why.text);
    cbdi_ring_wake(stage);
}

uint64_t cbdi_reattach_turn(cbd_stage *stage, uint64_t turn)
{
    uint32_t link = atomic_load(&stage->reattach.link);
    uint64_t least = link == LINK_HELLO ? HELLO_TURN_NS : PAUSE_LEAST_NS;
    return link == LINK_UP || turn < least ? turn : least;
}

cbd_status cbdi_reattach_refuse(cbd_stage *stage, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED,
                     "the broker is gone and another one is looked for, for up to %llu ms; nothing was submitted",
                     (unsigned long long)(stage->reattach.wait_ns / 1000000));
}

static bool there(cbd_stage *stage, bool cached)
{
    uint32_t link = atomic_load(&stage->reattach.link);
    return link == LINK_UP || (cached && link == LINK_ADOPTED);
}

cbd_status cbdi_reattach_wait(cbd_stage *stage, bool cached, cbd_error *error)
{
    struct ring *ring = &stage->ring;
    for (;;) {
        cbd_status status = cbdi_ended(stage, error);
        if (status != CBD_STATUS_OK || there(stage, cached))
            return status;
        uint32_t bell = load32(&ring->control->client_bell);
        if (!cached) {
            cbdi_look_at_socket(stage);
        } else if (pthread_mutex_trylock(&stage->socket_lock) == 0) {
            cbdi_reattach_step(stage);
            pthread_mutex_unlock(&stage->socket_lock);
        }
        if (cbdi_ended(stage, NULL) == CBD_STATUS_OK && !there(stage, cached)) {
            cbdi_futex_wait(&ring->control->client_bell, bell, cbdi_reattach_turn(stage, UINT64_MAX));
            if (!cached && cbdi_interrupted()) /* its answer may wait for who waits for cache_lock */
                return cbdi_fail(error, CBD_STATUS_TIMEOUT, "interrupted while the session waits for the next broker");
        }
    }
}
