/* What became of the ops that were in flight when the broker was lost (rule B1): the floors tell. A seal whose
 * floor was reached is done. Whatever else was on its way did not happen, or, at or below the floor, may have.
 *
 * The floors are copied out at one epoch without a pin, which might need the broker: a horizon that is not above
 * the epoch afterwards says that nothing of it was reused meanwhile (V3).
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(struct outcomes *o, const char *name, uint32_t length, uint64_t hash, uint64_t floor)
{
    o->names[o->count] = name;
    o->lengths[o->count] = length;
    o->hashes[o->count] = hash;
    o->floors[o->count++] = floor;
}

static cbd_status copy(cbd_stage *stage, const struct floors *floors, struct outcomes *o, cbd_error *error)
{
    uint64_t most = floors->count + stage->column_count + 1;
    o->other = floors->other;
    o->hashes = calloc(most, sizeof *o->hashes);
    o->floors = calloc(most, sizeof *o->floors);
    o->names = calloc(most, sizeof *o->names);
    o->lengths = calloc(most, sizeof *o->lengths);
    if (o->hashes == NULL || o->floors == NULL || o->names == NULL || o->lengths == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu floors", (unsigned long long)most);
    for (uint64_t i = 0; i < floors->count; i++) {
        const char *name;
        uint32_t length;
        cbd_status status = cbdi_string(stage, floors->rows[i].name_id, &name, &length, error);
        if (status != CBD_STATUS_OK)
            return status;
        put(o, name, length, cbdi_hash(name, length), floors->rows[i].floor);
    }
    for (uint32_t i = CBD_FLOOR_COLUMN + 1; i < stage->column_count; i++) {
        const struct column *column = stage->columns[i];
        if (column->name_bytes == 0)
            continue; /* none that lives */
        put(o, column->name, column->name_bytes, column->name_hash,
            cbdi_floor_of(stage, floors, column->name, column->name_bytes));
    }
    return CBD_STATUS_OK;
}

cbd_status cbdi_outcomes_read(cbd_stage *stage, struct outcomes *o, cbd_error *error)
{
    for (;;) {
        struct floors floors;
        memset(o, 0, sizeof *o);
        cbd_status status = cbdi_columns_refresh(stage, error);
        o->epoch = load64(&stage->directory->epoch);
        if (status == CBD_STATUS_OK)
            status = cbdi_floors_at(stage, o->epoch, &floors, error);
        if (status == CBD_STATUS_OK)
            status = copy(stage, &floors, o, error);
        bool stood = stage->column_count == 0 || load64(&stage->columns[CBD_FLOOR_COLUMN]->entry->horizon) <= o->epoch;
        if (stood && status == CBD_STATUS_OK)
            return CBD_STATUS_OK;
        cbdi_outcomes_free(o);
        if (stood)
            return status;
    }
}

void cbdi_outcomes_free(struct outcomes *o)
{
    free(o->hashes);
    free(o->floors);
    free(o->names);
    free(o->lengths);
    memset(o, 0, sizeof *o);
}

uint64_t cbdi_outcomes_floor(const struct outcomes *o, uint64_t hash)
{
    for (uint64_t i = 0; i < o->count; i++)
        if (o->hashes[i] == hash)
            return o->floors[i];
    return o->other;
}

/* The floors of what an op is about: a seal is done where all of them have reached it; what is about
 * several names may have been sealed where any has. */
struct scope {
    const struct outcomes *outcomes;
    uint64_t lowest, highest;
};

static void include(struct scope *scope, uint64_t floor)
{
    scope->lowest = floor < scope->lowest ? floor : scope->lowest;
    scope->highest = floor > scope->highest ? floor : scope->highest;
}

static void include_name(void *context, uint64_t hash)
{
    struct scope *scope = context;
    include(scope, cbdi_outcomes_floor(scope->outcomes, hash));
}

/* All names that are known but those of a seal's list. */
struct others {
    uint64_t hash;
    bool named;
};

static void find_name(void *context, uint64_t hash)
{
    struct others *others = context;
    others->named |= others->hash == hash;
}

static void include_others(const cbd_op *op, const uint8_t *arguments, struct scope *scope)
{
    const struct outcomes *o = scope->outcomes;
    for (uint64_t i = 0; i < o->count; i++) {
        struct others others = {o->hashes[i], false};
        if (op->value == CBD_SCOPE_EXCLUDE)
            cbdi_op_names(op, arguments, find_name, &others);
        if (!others.named)
            include(scope, o->floors[i]);
    }
}

static struct scope floors_of(const struct outcomes *o, const cbd_op *op, const uint8_t *arguments)
{
    struct scope scope = {o, UINT64_MAX, 0};
    if (op->opcode == CBD_OP_SEAL && op->value != CBD_SCOPE_INCLUDE) {
        include_others(op, arguments, &scope);
        if (op->value == CBD_SCOPE_ALL)
            include(&scope, o->other);
        scope.highest = scope.lowest; /* it names nothing: others' floors are not its doing */
    } else if (!cbdi_op_names(op, arguments, include_name, &scope)) { /* a delete of prims */
        include_others(op, arguments, &scope);
    }
    return scope;
}

static const char *ordinal_text(const cbd_op *op, char *text, size_t room)
{
    if (op->flags & CBD_FLAG_NEXT_ORDINAL)
        return "the next ordinal";
    snprintf(text, room, "ordinal %llu", (unsigned long long)op->ordinal);
    return text;
}

void cbdi_outcome(const struct outcomes *o, cbd_op *op, const uint8_t *arguments)
{
    struct scope scope = floors_of(o, op, arguments);
    uint64_t floor = scope.highest;
    char at[48];
    op->result = (cbd_op_result){.status = CBD_STATUS_BROKER_RESTARTED, .ordinal = op->ordinal, .epoch = o->epoch};
    bool orders = op->opcode == CBD_OP_WRITE || op->opcode == CBD_OP_UNMAP_GROUP || op->opcode == CBD_OP_UNMAP_ATTRIBUTE ||
                  op->opcode == CBD_OP_SEAL || op->opcode == CBD_OP_DELETE;
    bool next = (op->flags & CBD_FLAG_NEXT_ORDINAL) != 0; /* the ordinal was the broker's to choose: nobody can tell */
    if (op->opcode == CBD_OP_SEAL && scope.lowest >= op->ordinal) {
        op->result.status = CBD_STATUS_OK;
        op->result.value = scope.lowest == UINT64_MAX ? op->ordinal : scope.lowest;
    } else if (!orders) {
        snprintf(op->text, sizeof op->text, "the broker restarted before it answered op %llu; submit it again",
                 (unsigned long long)op->id);
    } else if (next ? op->epoch != o->epoch : op->ordinal <= floor) {
        op->result.flags = CBD_COMPLETION_SEALED_MAYBE;
        snprintf(op->text, sizeof op->text,
                 "the broker restarted before it answered op %llu, at %s (the floor is %llu): it may have been sealed; read to see",
                 (unsigned long long)op->id, ordinal_text(op, at, sizeof at), (unsigned long long)floor);
    } else {
        snprintf(op->text, sizeof op->text,
                 "the broker restarted before op %llu, at %s, was sealed (the floor is %llu): it did not happen; submit it again",
                 (unsigned long long)op->id, ordinal_text(op, at, sizeof at), (unsigned long long)floor);
    }
}
