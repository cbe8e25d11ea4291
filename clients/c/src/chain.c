/* What an op waits for: earlier ops of this client that are about the same attribute at an ordinal that is not above
 * its own, that make the query it uses, or that are of the same map session; and what those wait for (behaviour 209).
 *
 * Everything here runs with ring.lock held.
 */
#include "ring.h"

#include <stdlib.h>

static bool changes(const cbd_op *op)
{
    return op->opcode == CBD_OP_WRITE || op->opcode == CBD_OP_MAP || op->opcode == CBD_OP_UNMAP_GROUP || op->opcode == CBD_OP_UNMAP_ATTRIBUTE ||
           op->opcode == CBD_OP_DELETE || op->opcode == CBD_OP_SEAL;
}

static bool on_session(const cbd_op *op) { return op->opcode == CBD_OP_UNMAP_GROUP || op->opcode == CBD_OP_UNMAP_ATTRIBUTE; }

static bool makes_query(const cbd_op *op) { return op->target != 0 && (op->opcode == CBD_OP_QUERY_FILTER || op->opcode == CBD_OP_QUERY_PATHS); }

static bool uses_query(const cbd_op *op)
{
    return op->opcode == CBD_OP_QUERY_PATHS || op->opcode == CBD_OP_QUERY_RELEASE || op->opcode == CBD_OP_QUERY_PRIMS ||
           op->opcode == CBD_OP_QUERY_ATTRIBUTES || op->opcode == CBD_OP_WRITE || op->opcode == CBD_OP_MAP || op->opcode == CBD_OP_DELETE;
}

static const uint8_t *arguments_of(const struct ring *ring, const cbd_op *op) { return ring->arguments.base + op->argument_offset; }

/* Looking through the names of one op for what another is about. */
struct meeting {
    const struct ring *ring;
    const cbd_op *other;
    uint64_t hash;
    bool found, met;
};

static void find(void *context, uint64_t hash)
{
    struct meeting *m = context;
    m->found |= hash == m->hash;
}

/* Whether the op is about the attribute. */
static bool about(struct meeting *m, const cbd_op *op, uint64_t hash)
{
    m->hash = hash;
    m->found = false;
    bool named = cbdi_op_names(op, arguments_of(m->ring, op), find, m);
    return !named || m->found != (op->opcode == CBD_OP_SEAL && op->value == CBD_SCOPE_EXCLUDE);
}

static void meet(void *context, uint64_t hash)
{
    struct meeting *m = context, inner = {.ring = m->ring};
    m->met |= about(&inner, m->other, hash);
}

/* Whether two ops are about an attribute in common. */
static bool share(const struct ring *ring, const cbd_op *a, const cbd_op *b)
{
    bool but = a->opcode == CBD_OP_SEAL && a->value == CBD_SCOPE_EXCLUDE;
    const cbd_op *listed = but ? b : a, *other = but ? a : b;
    struct meeting m = {.ring = ring, .other = other};
    if (listed->opcode == CBD_OP_SEAL && listed->value == CBD_SCOPE_EXCLUDE)
        return true; /* both leave some out */
    return !cbdi_op_names(listed, arguments_of(ring, listed), meet, &m) || m.met; /* without names: about all */
}

static bool depends(const struct ring *ring, const cbd_op *op, const cbd_op *earlier)
{
    if ((uses_query(op) && makes_query(earlier) && op->target == earlier->target) ||
        (on_session(op) && on_session(earlier) && op->target == earlier->target))
        return true;
    bool next = (op->flags & CBD_FLAG_NEXT_ORDINAL) != 0; /* the ordinal is still to be chosen, above all */
    return changes(op) && changes(earlier) && (next || earlier->ordinal <= op->ordinal) && share(ring, op, earlier);
}

static int by_id_down(const void *a, const void *b)
{
    uint64_t x = (*(cbd_op *const *)a)->id, y = (*(cbd_op *const *)b)->id;
    return x < y ? 1 : x > y ? -1 : 0;
}

uint64_t cbdi_lowest_in_chain(struct ring *ring, const cbd_op *op)
{
    cbd_op **ops = calloc(ring->outstanding + 1, sizeof(cbd_op *));
    size_t count = 0, members = 0;
    uint64_t lowest = op->id;
    if (ops == NULL || atomic_load(&op->done)) {
        free(ops);
        return lowest; /* without memory the op itself is all that can be said */
    }
    for (uint32_t i = 0; i < ring->cq_entries && count < ring->outstanding; i++)
        if (ring->pending[i] != NULL && ring->pending[i]->id <= op->id)
            ops[count++] = ring->pending[i];
    qsort(ops, count, sizeof *ops, by_id_down);
    for (size_t i = 0; i < count; i++) { /* the members so far lie at the front */
        bool member = ops[i] == op;
        for (size_t k = 0; k < members && !member; k++)
            member = depends(ring, ops[k], ops[i]);
        if (member) {
            lowest = ops[i]->id;
            ops[members++] = ops[i];
        }
    }
    free(ops);
    return lowest;
}
