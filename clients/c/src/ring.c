/* The submission and completion rings (design D4, rules R1 to R5).
 *
 *     submit   room for arguments and results → entry → SqTail → unlock → doorbell
 *     drain    CqTail → copy the entry → results copied out, room given back → op done → CqHead
 *
 * The ring is single producer and single consumer between two processes; within
 * this process one mutex makes the many threads one. It is held for copying at most
 * one argument room, and never while sleeping or asking the broker anything.
 *
 * Order, with the broker's loads and stores that pair:
 *   SqTail is stored after the entry is filled      ↔ loaded by the broker's drain, before it copies the entry
 *   Rings is incremented after SqTail               ↔ read by the broker before Sleeping = 1, then it looks at SqTail again (R3)
 *   CqTail is loaded before an entry is copied      ↔ stored by the broker after the entry is filled
 *   CqHead is stored after the entry was copied     ↔ loaded by the broker before it reuses the entry
 */
#include "ring.h"
#include "python_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool part_fits(uint64_t offset, uint64_t bytes, uint64_t channel_bytes)
{
    return offset % 4096 == 0 && offset >= CBD_SEGMENT_HEADER_BYTES && offset <= channel_bytes &&
           bytes <= channel_bytes - offset;
}

static bool ring_size_ok(uint32_t entries)
{
    return entries != 0 && entries <= CBD_RING_ENTRIES_MAX && (entries & (entries - 1)) == 0;
}

cbd_status cbdi_ring_init(cbd_stage *stage, const cbd_abi_channel_header *h, cbd_error *error)
{
    struct ring *ring = &stage->ring;
    if (!ring_size_ok(h->sq_entries) || !ring_size_ok(h->cq_entries) || h->argument_bytes > CBD_AREA_BYTES_MAX ||
        h->result_bytes > CBD_AREA_BYTES_MAX || h->result_bytes < OP_TEXT_BYTES ||
        !part_fits(h->sq_offset_bytes, h->sq_entries * sizeof *ring->sq, stage->channel_bytes) ||
        !part_fits(h->cq_offset_bytes, h->cq_entries * sizeof *ring->cq, stage->channel_bytes) ||
        !part_fits(h->argument_offset_bytes, h->argument_bytes, stage->channel_bytes) ||
        !part_fits(h->result_offset_bytes, h->result_bytes, stage->channel_bytes))
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "the channel, %llu bytes, has parts that do not fit: sq %u at %llu, cq %u at %llu, arguments %u at "
                         "%llu, results %u at %llu",
                         (unsigned long long)stage->channel_bytes, h->sq_entries, (unsigned long long)h->sq_offset_bytes,
                         h->cq_entries, (unsigned long long)h->cq_offset_bytes, h->argument_bytes,
                         (unsigned long long)h->argument_offset_bytes, h->result_bytes,
                         (unsigned long long)h->result_offset_bytes);
    ring->control = (cbd_abi_channel_control *)(stage->channel + CBD_CHANNEL_CONTROL_OFFSET);
    store64(&ring->control->pinned_bytes, 0);
    ring->sq = (cbd_abi_submission_entry *)(stage->channel + h->sq_offset_bytes);
    ring->cq = (cbd_abi_completion_entry *)(stage->channel + h->cq_offset_bytes);
    ring->sq_entries = h->sq_entries;
    ring->cq_entries = h->cq_entries;
    ring->sq_tail = load64(&ring->control->sq_tail);
    atomic_store(&ring->cq_head, load64(&ring->control->cq_head));
    atomic_store(&ring->life, 1);
    ring->spin = sysconf(_SC_NPROCESSORS_ONLN) > 2;
    ring->pending = calloc(ring->cq_entries, sizeof *ring->pending);
    if (ring->pending == NULL ||
        !cbdi_rooms_init(&ring->arguments, stage->channel + h->argument_offset_bytes, h->argument_bytes, ring->cq_entries) ||
        !cbdi_rooms_init(&ring->results, stage->channel + h->result_offset_bytes, h->result_bytes, ring->cq_entries))
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a ring of %u ops", ring->cq_entries);
    return CBD_STATUS_OK;
}

void cbdi_ring_free(struct ring *ring)
{
    for (uint32_t i = 0; ring->pending != NULL && i < ring->cq_entries; i++)
        free(ring->pending[i]); /* abandoned ones only: others hold the stage */
    free(ring->pending);
    while (ring->spare != NULL) {
        cbd_op *op = ring->spare;
        ring->spare = op->next;
        free(op);
    }
    while (ring->deferred != NULL) {
        struct deferred *what = ring->deferred;
        ring->deferred = what->next;
        free(what);
    }
    free(ring->sessions_closed);
    free(ring->unsealed.entries);
    free(ring->arguments.free);
    free(ring->results.free);
}

/* ---- submitting ------------------------------------------------------------- */

void cbdi_ring_doorbell(cbd_stage *stage)
{
    add32(&stage->doorbell->rings, 1);
    if (load32(&stage->directory->sleeping))
        cbdi_futex_wake(&stage->doorbell->rings, 1);
}

/* Room for one more entry, or why not. */
static cbd_status ring_has_room(cbd_stage *stage, cbd_error *error)
{
    struct ring *ring = &stage->ring;
    if (ring->outstanding >= ring->cq_entries)
        return cbdi_fail(error, CBD_STATUS_QUEUE_FULL, "%u ops are outstanding, as many as this channel holds; wait for one",
                         ring->outstanding);
    uint64_t head = load64(&ring->control->sq_head), queued = ring->sq_tail - head;
    if (queued > ring->sq_entries) {
        cbdi_end(stage, CBD_STATUS_INTERNAL, "the broker's submission head is %llu at our tail %llu of %u entries",
                 (unsigned long long)head, (unsigned long long)ring->sq_tail, ring->sq_entries);
        return cbdi_ended(stage, error);
    }
    if (queued == ring->sq_entries)
        return cbdi_fail(error, CBD_STATUS_QUEUE_FULL,
                         "all %u submission entries wait for the broker; wait for an op, or try again", ring->sq_entries);
    return CBD_STATUS_OK;
}

static uint32_t round8(uint32_t bytes) { return (bytes + 7) & ~7u; }

static cbd_op *new_op(struct ring *ring)
{
    cbd_op *op = ring->spare;
    if (op == NULL)
        return calloc(1, sizeof *op);
    ring->spare = op->next;
    memset(op, 0, sizeof *op);
    return op;
}

static cbd_status begin_locked(cbd_stage *stage, struct submission *s, uint32_t argument_bytes, uint32_t result_bytes,
                               cbd_error *error)
{
    struct ring *ring = &stage->ring;
    uint32_t arguments = round8(argument_bytes), results = round8(result_bytes);
    uint32_t argument_offset = 0, result_offset = 0;
    cbd_status status = cbdi_ended(stage, error);
    if (status == CBD_STATUS_OK && ring->lost)
        status = cbdi_reattach_refuse(stage, error);
    else if (status == CBD_STATUS_OK && s->life != 0 && s->life != atomic_load(&ring->life))
        status = cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED,
                           "the broker restarted, and this session is of the time before: nothing of it was sealed; map it anew");
    if (status == CBD_STATUS_OK)
        status = ring_has_room(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (arguments != 0 && !cbdi_rooms_take(&ring->arguments, arguments, &argument_offset))
        return cbdi_fail(error, CBD_STATUS_QUEUE_FULL, "%u bytes of arguments find no room beside those of %u outstanding ops",
                         arguments, ring->outstanding);
    if (!cbdi_rooms_take(&ring->results, results, &result_offset)) {
        cbdi_rooms_give(&ring->arguments, argument_offset, arguments);
        return cbdi_fail(error, CBD_STATUS_QUEUE_FULL, "%u bytes of results find no room beside those of %u outstanding ops",
                         results, ring->outstanding);
    }
    if ((s->op = new_op(ring)) == NULL) {
        cbdi_rooms_give(&ring->arguments, argument_offset, arguments);
        cbdi_rooms_give(&ring->results, result_offset, results);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for an op");
    }
    s->op->stage = stage;
    s->op->argument_offset = argument_offset;
    s->op->argument_bytes = arguments;
    s->op->result_offset = result_offset;
    s->op->result_room = results;
    s->argument_bytes = argument_bytes;
    s->arguments = ring->arguments.base + argument_offset;
    return CBD_STATUS_OK;
}

static void commit_locked(cbd_stage *stage, struct submission *s)
{
    struct ring *ring = &stage->ring;
    cbd_op *op = s->op;
    op->id = ++ring->next_id;
    op->into = s->into;
    op->into_bytes = s->into_bytes;
    op->opcode = s->opcode;
    op->flags = s->flags;
    op->ordinal = s->about != 0 ? s->about_ordinal : s->ordinal;
    op->value = s->value;
    op->about = s->about;
    op->target = s->query != NULL ? s->query->handle : s->handle;
    op->argument_length = s->argument_bytes;
    op->epoch = load64(&stage->directory->epoch);
    uint32_t place = (uint32_t)(op->id & (ring->cq_entries - 1));
    while (ring->pending[place] != NULL) /* outstanding < cq_entries, so there is a free one */
        place = (place + 1) & (ring->cq_entries - 1);
    ring->pending[place] = op;
    ring->outstanding++;

    cbd_abi_submission_entry *entry = &ring->sq[ring->sq_tail & (ring->sq_entries - 1)];
    *entry = (cbd_abi_submission_entry){
        .op_id = op->id,
        .opcode = s->opcode,
        .flags = s->flags,
        .handle = op->target,
        .ordinal = s->ordinal,
        .value = s->value,
        .argument_offset_bytes = s->argument_bytes ? op->argument_offset : 0,
        .argument_bytes = s->argument_bytes,
        .result_offset_bytes = op->result_offset,
        .result_bytes = op->result_room,
    };
    store64(&ring->control->sq_tail, ++ring->sq_tail);
}

/* Whether one more deferred op leaves room for a call that does not wait. */
static bool room_to_spare(const struct ring *ring)
{
    uint32_t most = ring->results.size_bytes / OP_TEXT_BYTES;
    most = most < ring->sq_entries ? most : ring->sq_entries;
    most = most < ring->cq_entries ? most : ring->cq_entries;
    return ring->patient == 0 && ring->outstanding < most - most / 4;
}

bool cbdi_flush_deferred(cbd_stage *stage)
{
    struct ring *ring = &stage->ring;
    bool any = false;
    while (ring->deferred != NULL && room_to_spare(ring)) {
        struct deferred *what = ring->deferred;
        if (what->life != atomic_load(&ring->life)) { /* the restart has returned it already */
            ring->deferred = what->next;
            free(what);
            continue;
        }
        struct submission s = {.opcode = what->opcode, .flags = what->flags, .handle = what->handle, .value = what->value};
        if (begin_locked(stage, &s, 0, OP_TEXT_BYTES, NULL) != CBD_STATUS_OK)
            break;
        ring->deferred = what->next;
        free(what);
        s.op->abandoned = true;
        commit_locked(stage, &s);
        any = true;
    }
    return any;
}

cbd_status cbdi_submit_begin(cbd_stage *stage, struct submission *s, size_t argument_bytes, size_t result_bytes,
                             cbd_error *error)
{
    struct ring *ring = &stage->ring;
    if (argument_bytes > ring->arguments.size_bytes)
        return cbdi_fail(error, CBD_STATUS_LIMIT,
                         "the arguments have %zu bytes, the channel's area %u; connect with a larger argument_bytes",
                         argument_bytes, ring->arguments.size_bytes);
    if (result_bytes < OP_TEXT_BYTES)
        result_bytes = OP_TEXT_BYTES;
    if (result_bytes > ring->results.size_bytes)
        return cbdi_fail(error, CBD_STATUS_LIMIT,
                         "the results have up to %zu bytes, the channel's area %u; connect with a larger result_bytes",
                         result_bytes, ring->results.size_bytes);
    for (bool patient = false;;) {
        uint32_t bell = load32(&ring->control->client_bell); /* before the drain: what comes after it ends the sleep */
        pthread_mutex_lock(&ring->lock);
        ring->patient -= patient;
        cbdi_drain(stage); /* what is done gives its room back */
        bool rings = !patient && cbdi_flush_deferred(stage);
        bool lost = ring->lost, old = s->query != NULL && s->query->life != atomic_load(&ring->life) && !lost;
        cbd_status status = old ? CBD_STATUS_OK : cbdi_unsealed_refuse(stage, s->opcode, error);
        if (status == CBD_STATUS_OK && !old)
            status = begin_locked(stage, s, (uint32_t)argument_bytes, (uint32_t)result_bytes, error);
        if (status == CBD_STATUS_OK && !old) {
            memset(s->arguments, 0, s->argument_bytes);
            return status;
        }
        patient = status == CBD_STATUS_QUEUE_FULL && s->waits;
        ring->patient += patient;
        pthread_mutex_unlock(&ring->lock);
        if (rings)
            cbdi_ring_doorbell(stage);
        if (status == CBD_STATUS_QUEUE_FULL || status == CBD_STATUS_BROKER_RESTARTED)
            cbdi_look_at_socket(stage); /* who only ever submits must hear of a broker that is gone, and of the next one */
        if (patient) {
            cbdi_sleep_on_bell(stage, NULL, bell, cbdi_reattach_turn(stage, WAIT_TURN_NS));
            if (!cbdi_interrupted())
                continue;
            pthread_mutex_lock(&ring->lock);
            ring->patient--;
            pthread_mutex_unlock(&ring->lock);
        }
        if (status == CBD_STATUS_BROKER_RESTARTED && lost && atomic_load(&stage->reattach.link) == LINK_UP)
            continue;
        if (status == CBD_STATUS_OK)
            status = cbdi_query_renew(s->query, error);
        if (status != CBD_STATUS_OK)
            return status;
    }
}

void cbdi_submit_commit(cbd_stage *stage, struct submission *s, cbd_op **op)
{
    if (op == NULL) {
        s->op->abandoned = true;
    } else {
        cbdi_stage_retain(stage);
        atomic_fetch_add(&stage->ops, 1);
        *op = s->op;
    }
    commit_locked(stage, s);
    pthread_mutex_unlock(&stage->ring.lock);
    cbdi_ring_doorbell(stage);
}

void cbdi_submit_cancel(cbd_stage *stage, struct submission *s)
{
    struct ring *ring = &stage->ring;
    cbdi_rooms_give(&ring->arguments, s->op->argument_offset, s->op->argument_bytes);
    cbdi_rooms_give(&ring->results, s->op->result_offset, s->op->result_room);
    s->op->next = ring->spare;
    ring->spare = s->op;
    pthread_mutex_unlock(&ring->lock);
}

static void put_deferred(struct ring *ring, struct deferred *what)
{
    what->next = NULL;
    *(ring->deferred == NULL ? &ring->deferred : &ring->deferred_last->next) = what;
    ring->deferred_last = what;
}

void cbdi_defer(cbd_stage *stage, struct deferred *what)
{
    if (what == NULL)
        return;
    if (cbdi_enter(stage, NULL) != CBD_STATUS_OK) { /* the hang-up has returned it already (I2) */
        free(what);
        return;
    }
    struct ring *ring = &stage->ring;
    pthread_mutex_lock(&ring->lock);
    cbdi_drain(stage);
    put_deferred(ring, what);
    bool any = cbdi_flush_deferred(stage);
    pthread_mutex_unlock(&ring->lock);
    if (any)
        cbdi_ring_doorbell(stage);
    cbdi_leave(stage);
}

bool cbdi_ring_owes(cbd_stage *stage, uint32_t opcode)
{
    struct ring *ring = &stage->ring;
    pthread_mutex_lock(&ring->lock);
    cbdi_drain(stage);
    bool any = cbdi_flush_deferred(stage), owes = false;
    for (const struct deferred *what = ring->deferred; what != NULL; what = what->next)
        owes = owes || what->opcode == opcode;
    for (uint32_t i = 0; i < ring->cq_entries; i++)
        owes = owes || (ring->pending[i] != NULL && ring->pending[i]->opcode == opcode);
    owes = owes && !ring->lost;
    pthread_mutex_unlock(&ring->lock);
    if (any)
        cbdi_ring_doorbell(stage);
    return owes;
}

/* ---- draining ----------------------------------------------------------------- */

static cbd_op *take_pending(struct ring *ring, uint64_t id)
{
    uint32_t mask = ring->cq_entries - 1;
    for (uint32_t i = 0; i < ring->cq_entries; i++) {
        cbd_op **place = &ring->pending[(id + i) & mask];
        if (*place != NULL && (*place)->id == id) {
            cbd_op *op = *place;
            *place = NULL;
            return op;
        }
    }
    return NULL;
}

static void finish(struct ring *ring, cbd_op *op)
{
    cbdi_rooms_give(&ring->arguments, op->argument_offset, op->argument_bytes);
    cbdi_rooms_give(&ring->results, op->result_offset, op->result_room);
    ring->outstanding--;
    if (op->abandoned) {
        op->next = ring->spare;
        ring->spare = op;
    } else {
        atomic_store(&op->done, 1);
    }
}

static void complete(cbd_stage *stage, cbd_op *op, const cbd_abi_completion_entry *entry)
{
    struct ring *ring = &stage->ring;
    const uint8_t *results = ring->results.base + op->result_offset;
    op->result = (cbd_op_result){entry->status, entry->flags, entry->ordinal, entry->epoch, entry->value, entry->count};
    op->handle = entry->handle;
    if (entry->result_bytes > op->result_room) {
        op->result.status = CBD_STATUS_INTERNAL;
        snprintf(op->text, sizeof op->text, "op %llu has %u bytes of results in a room of %u", (unsigned long long)op->id,
                 entry->result_bytes, op->result_room);
    } else if (entry->status != CBD_STATUS_OK) {
        cbdi_copy_text(op->text, sizeof op->text, results, entry->result_bytes);
        if (op->text[0] == 0)
            cbdi_copy_text(op->text, sizeof op->text, cbd_status_text(entry->status), strlen(cbd_status_text(entry->status)));
    } else if (op->into != NULL) {
        op->got_bytes = entry->result_bytes < op->into_bytes ? entry->result_bytes : op->into_bytes;
        memcpy(op->into, results, op->got_bytes);
    }
    cbdi_unsealed_note(stage, op, ring->arguments.base + op->argument_offset);
    finish(ring, op);
}

void cbdi_drain(cbd_stage *stage)
{
    struct ring *ring = &stage->ring;
    if (ring->lost)
        return;
    uint64_t head = atomic_load(&ring->cq_head), tail = load64(&ring->control->cq_tail);
    if (tail == head)
        return;
    if (tail - head > ring->outstanding) {
        cbdi_end(stage, CBD_STATUS_INTERNAL, "the broker's completion tail is %llu at our head %llu with %u ops outstanding",
                 (unsigned long long)tail, (unsigned long long)head, ring->outstanding);
        return;
    }
    while (head != tail) {
        cbd_abi_completion_entry entry = ring->cq[head & (ring->cq_entries - 1)]; /* a copy; then check, then use */
        cbd_op *op = take_pending(ring, entry.op_id);
        if (op == NULL) {
            cbdi_end(stage, CBD_STATUS_INTERNAL, "the broker completed op %llu, which is not outstanding (last op %llu)",
                     (unsigned long long)entry.op_id, (unsigned long long)ring->next_id);
            return;
        }
        complete(stage, op, &entry);
        head++;
        atomic_store(&ring->cq_head, head); /* after done: a waiter that sees it sees its op */
        store64(&ring->control->cq_head, head);
    }
}

/* ---- the broker's restart (rule B1) --------------------------------------------- */

void cbdi_ring_lose(cbd_stage *stage)
{
    struct ring *ring = &stage->ring;
    pthread_mutex_lock(&ring->lock);
    cbdi_drain(stage); /* what it completed, it completed */
    ring->lost = true;
    atomic_fetch_add(&ring->life, 1);
    ring->sessions_before += ring->sessions;
    ring->sessions = 0;
    atomic_store(&stage->reattach.link, LINK_LOST);
    pthread_mutex_unlock(&ring->lock);
}

void cbdi_ring_wake(cbd_stage *stage)
{
    add32(&stage->ring.control->client_bell, 1);
    cbdi_futex_wake(&stage->ring.control->client_bell, INT32_MAX);
}

/* With ring.lock held: when the last session of an earlier life is gone, the broker may use its memory again. */
static bool confirm_sessions(cbd_stage *stage)
{
    struct ring *ring = &stage->ring;
    if (ring->lost || ring->sessions_before != 0 || ring->sessions_closed == NULL)
        return false;
    put_deferred(ring, ring->sessions_closed);
    ring->sessions_closed = NULL;
    return cbdi_flush_deferred(stage);
}

bool cbdi_ring_renew(cbd_stage *stage, const struct outcomes *outcomes, struct deferred *closed, cbd_error *error)
{
    struct ring *ring = &stage->ring;
    pthread_mutex_lock(&ring->lock);
    bool adopted = atomic_load(&stage->reattach.link) == LINK_ADOPTED;
    uint64_t tail = load64(&ring->control->sq_tail), head = load64(&ring->control->cq_head);
    if (adopted && (load64(&ring->control->sq_head) != tail || load64(&ring->control->cq_tail) != head)) {
        cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker took the channel up again with rings that are not empty: sq %llu to %llu, cq %llu to %llu",
                  (unsigned long long)load64(&ring->control->sq_head), (unsigned long long)tail, (unsigned long long)head,
                  (unsigned long long)load64(&ring->control->cq_tail));
        adopted = false;
    }
    if (!adopted) {
        pthread_mutex_unlock(&ring->lock);
        free(closed);
        return false;
    }
    ring->sq_tail = tail;
    for (uint32_t i = 0; i < ring->cq_entries; i++) {
        cbd_op *op = ring->pending[i];
        if (op == NULL)
            continue;
        ring->pending[i] = NULL;
        cbdi_outcome(outcomes, op, ring->arguments.base + op->argument_offset);
        finish(ring, op);
    }
    cbdi_unsealed_lost(stage, outcomes);
    atomic_store(&ring->cq_head, head); /* after done, as in a drain */
    store32(&ring->control->client_sleeping, 0);
    free(ring->sessions_closed);
    ring->sessions_closed = closed;
    closed->opcode = CBD_OP_SESSIONS_CLOSED;
    closed->life = atomic_load(&ring->life);
    ring->lost = false;
    atomic_store(&stage->reattach.link, LINK_UP);
    cbdi_flush_deferred(stage); /* lets go of those of earlier lives */
    confirm_sessions(stage);
    pthread_mutex_unlock(&ring->lock);
    cbdi_ring_doorbell(stage);
    return true;
}

uint64_t cbdi_session_opened(cbd_stage *stage)
{
    stage->ring.sessions++;
    atomic_fetch_add(&stage->open_sessions, 1);
    return atomic_load(&stage->ring.life);
}

bool cbdi_session_claimed(cbd_stage *stage, uint64_t life)
{
    pthread_mutex_lock(&stage->ring.lock);
    bool current = life == atomic_load(&stage->ring.life);
    if (current)
        cbdi_session_opened(stage);
    pthread_mutex_unlock(&stage->ring.lock);
    return current;
}

void cbdi_session_closed(cbd_stage *stage, uint64_t life)
{
    struct ring *ring = &stage->ring;
    if (life == 0 || atomic_load(&stage->foreign))
        return;
    pthread_mutex_lock(&ring->lock);
    bool before = life != atomic_load(&ring->life);
    before ? ring->sessions_before-- : ring->sessions--;
    bool rang = before && !atomic_load(&stage->closed) && confirm_sessions(stage);
    pthread_mutex_unlock(&ring->lock);
    if (rang)
        cbdi_ring_doorbell(stage);
}
