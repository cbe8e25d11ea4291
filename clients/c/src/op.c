/* Waiting for an op.
 *
 * Drain; if the op is not done, sleep on ClientBell and drain again. The broker adds
 * 1 to the bell after it stored CqTail and wakes only if ClientSleeping is not 0:
 *
 *     waiter  read bell → ClientSleeping += 1 → look at CqTail, and at the op → sleep on the value read
 *     broker  CqTail → bell += 1 → look at ClientSleeping → wake
 *
 * Whoever comes second sees the other. Another thread may drain our completion: it
 * sets `done` before cq_head, and we look at cq_head before `done`.
 */
#include "ring.h"
#include "python_support.h"

#include <stdlib.h>
#include <string.h>

#define SPINS 2000

static bool op_done(cbd_op *op) { return atomic_load(&op->done) != 0; }

static void drain(cbd_stage *stage)
{
    pthread_mutex_lock(&stage->ring.lock);
    cbdi_drain(stage);
    bool any = cbdi_flush_deferred(stage);
    pthread_mutex_unlock(&stage->ring.lock);
    if (any)
        cbdi_ring_doorbell(stage);
}

static bool completions_wait(struct ring *ring)
{
    return load64(&ring->control->cq_tail) != atomic_load(&ring->cq_head);
}

/* One sleep on the bell. A broker that takes the channel up again starts ClientSleeping anew, so who slept in
 * an earlier life does not count there any more; between two brokers nobody counts. */
void cbdi_sleep_on_bell(cbd_stage *stage, cbd_op *op, uint32_t bell, uint64_t turn)
{
    struct ring *ring = &stage->ring;
    pthread_mutex_lock(&ring->lock);
    uint64_t life = ring->lost ? 0 : atomic_load(&ring->life);
    if (life != 0)
        add32(&ring->control->client_sleeping, 1);
    pthread_mutex_unlock(&ring->lock);
    if ((life == 0 || !completions_wait(ring)) && (op == NULL || !op_done(op)) && !atomic_load(&stage->closed) && !atomic_load(&stage->ended))
        cbdi_futex_wait(&ring->control->client_bell, bell, turn);
    pthread_mutex_lock(&ring->lock);
    if (life != 0 && life == atomic_load(&ring->life))
        add32(&ring->control->client_sleeping, (uint32_t)-1);
    pthread_mutex_unlock(&ring->lock);
}

uint64_t cbd_op_lowest_pending(cbd_op *op)
{
    pthread_mutex_lock(&op->stage->ring.lock);
    uint64_t lowest = cbdi_lowest_in_chain(&op->stage->ring, op);
    pthread_mutex_unlock(&op->stage->ring.lock);
    return lowest;
}

/* Until done, the deadline, or the end of the session. */
static cbd_status wait_done(cbd_stage *stage, cbd_op *op, uint64_t timeout_ns, cbd_error *error)
{
    struct ring *ring = &stage->ring;
    uint64_t start = timeout_ns == 0 || timeout_ns == UINT64_MAX ? 0 : cbdi_now_ns();
    uint32_t spins = ring->spin && timeout_ns != 0 ? SPINS : 0;
    for (;;) {
        cbd_status ended = cbdi_ended(stage, error); /* before the drain: what came first is still taken */
        drain(stage);
        if (op_done(op))
            return CBD_STATUS_OK;
        if (ended != CBD_STATUS_OK)
            return ended;
        uint64_t turn = WAIT_TURN_NS;
        if (timeout_ns != UINT64_MAX) {
            uint64_t spent = start == 0 ? 0 : cbdi_now_ns() - start;
            if (spent >= timeout_ns) {
                cbdi_look_at_socket(stage); /* who only ever polls must hear of the end as well */
                return cbdi_fail(error, CBD_STATUS_TIMEOUT,
                                 "op %llu is not done after %llu ns (op %llu is the lowest that it waits for); it may be waited for again",
                                 (unsigned long long)op->id, (unsigned long long)timeout_ns,
                                 (unsigned long long)cbd_op_lowest_pending(op));
            }
            if (timeout_ns - spent < turn)
                turn = timeout_ns - spent;
        }
        for (; spins > 0 && !completions_wait(ring) && !op_done(op); spins--)
            atomic_signal_fence(memory_order_seq_cst);
        uint64_t before = cbdi_now_ns(), next = cbdi_reattach_turn(stage, WAIT_TURN_NS);
        cbdi_sleep_on_bell(stage, op, load32(&ring->control->client_bell), turn < next ? turn : next);
        if (cbdi_now_ns() - before >= next - next / 100)
            cbdi_look_at_socket(stage);
    }
}

cbd_status cbd_op_wait(cbd_op *op, uint64_t timeout_ns, cbd_op_result *result, cbd_error *error)
{
    if (op == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "op is NULL");
    if (!op_done(op)) {
        cbd_status status = cbdi_enter(op->stage, error);
        if (status != CBD_STATUS_OK)
            return status;
        status = wait_done(op->stage, op, timeout_ns, error);
        cbdi_leave(op->stage);
        if (status != CBD_STATUS_OK)
            return status;
    }
    if (result != NULL)
        *result = op->result;
    if (op->result.status != CBD_STATUS_OK)
        return cbdi_fail(error, op->result.status, "%s", op->text);
    return CBD_STATUS_OK;
}

uint64_t cbd_op_id(const cbd_op *op) { return op == NULL ? 0 : op->id; }

const char *cbd_op_error(const cbd_op *op)
{
    return op != NULL && atomic_load(&((cbd_op *)(uintptr_t)op)->done) ? op->text : "";
}

void cbd_op_release(cbd_op *op)
{
    if (op == NULL)
        return;
    cbd_stage *stage = op->stage;
    if (atomic_load(&stage->foreign)) {
        /* The lock may be held for ever in this child; the little memory is left. */
    } else {
        pthread_mutex_lock(&stage->ring.lock);
        if (op_done(op)) {
            op->next = stage->ring.spare;
            stage->ring.spare = op;
        } else {
            op->abandoned = true; /* its room stays taken until the broker is done with it */
            op->into = NULL;
        }
        pthread_mutex_unlock(&stage->ring.lock);
    }
    atomic_fetch_sub(&stage->ops, 1);
    cbdi_stage_drop(stage);
}

cbd_status cbdi_op_finish(cbd_op *op, cbd_op_result *result, uint64_t *handle, uint32_t *got_bytes, cbd_error *error)
{
    cbd_status status;
    bool done;
    do {
        done = op_done(op); /* else it may be by the time that its time-out is here */
        status = cbd_op_wait(op, WAIT_TURN_NS, result, error);
    } while (status == CBD_STATUS_TIMEOUT && !done && !cbdi_interrupted());
    if (status == CBD_STATUS_OK && handle != NULL)
        *handle = op->handle;
    if (status == CBD_STATUS_OK && got_bytes != NULL)
        *got_bytes = op->got_bytes;
    cbd_op_release(op);
    return status;
}
