/* Closing only where nothing is in use (behaviour 322, 323): counts what is alive, and names it in the refusal. */
#include "client.h"

#include <stdio.h>

/* Up to three of the pins that are held: "name" at its epoch. With cache_lock held. */
static void name_pins(cbd_stage *stage, uint32_t pins, char *text, size_t room)
{
    size_t used = 0;
    int named = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < stage->pin_count && named < 3; i++) {
        cbd_pin *pin = &stage->pins[i];
        uint32_t attribute = atomic_load(&pin->attribute);
        uint64_t epoch = atomic_load(&pin->epoch);
        if (!atomic_load(&pin->used) || epoch == 0)
            continue;
        bool column = attribute < stage->column_count;
        int wrote = snprintf(text + used, room - used, "%s%s%.*s%s at epoch %llu", named == 0 ? " (" : ", ", column ? "\"" : "",
                             column ? (int)(stage->columns[attribute]->name_bytes < 60 ? stage->columns[attribute]->name_bytes : 60) : 10,
                             column ? stage->columns[attribute]->name : "everything", column ? "\"" : "", (unsigned long long)epoch);
        if (wrote < 0 || (size_t)wrote >= room - used)
            break;
        used += (size_t)wrote;
        named++;
    }
    if (named != 0)
        snprintf(text + used, room - used, "%s)", (uint32_t)named < pins ? ", …" : "");
}

static void count(char *text, size_t room, size_t *used, uint64_t n, const char *one, const char *many, const char *which)
{
    if (n == 0)
        return;
    int wrote = snprintf(text + *used, room - *used, "%s%llu %s%s", *used != 0 ? ", " : "", (unsigned long long)n, n == 1 ? one : many, which);
    if (wrote > 0 && (size_t)wrote < room - *used)
        *used += (size_t)wrote;
}

cbd_status cbd_stage_close_if_idle(cbd_stage *stage, cbd_error *error)
{
    if (stage == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "stage is NULL");
    if (cbdi_enter(stage, NULL) != CBD_STATUS_OK) /* closed, or a child's: nothing to refuse */
        return cbd_stage_close(stage), CBD_STATUS_OK;
    char text[400], which[240];
    size_t used = 0;
    uint64_t sessions = atomic_load(&stage->open_sessions), ops = 0, pins = 0;
    pthread_mutex_lock(&stage->ring.lock);
    uint64_t inert = atomic_load(&stage->ops) + atomic_load(&stage->sessions_kept);
    for (uint32_t i = 0; i < stage->ring.cq_entries; i++)
        ops += stage->ring.pending[i] != NULL && !stage->ring.pending[i]->abandoned;
    pthread_mutex_unlock(&stage->ring.lock);
    for (uint32_t i = 0; i < stage->pin_count; i++)
        pins += atomic_load(&stage->pins[i].used) != 0;
    pthread_mutex_lock(&stage->cache_lock);
    uint64_t queries = atomic_load(&stage->queries), kept = atomic_load(&stage->queries_kept);
    name_pins(stage, (uint32_t)pins, which, sizeof which);
    pthread_mutex_unlock(&stage->cache_lock);
    /* Whatever holds the stage is one of these, an op or a session that has ended, the caller's own handle, or a read
     * or a snapshot. */
    uint64_t held = atomic_load(&stage->refs), known = 1 + kept + inert + pins;
    uint64_t reads = held > known ? held - known : 0;
    cbdi_leave(stage);
    count(text, sizeof text, &used, sessions, "map session", "map sessions", "");
    count(text, sizeof text, &used, queries, "query", "queries", "");
    count(text, sizeof text, &used, ops, "op", "ops", "");
    count(text, sizeof text, &used, reads, "read or snapshot", "reads or snapshots", "");
    count(text, sizeof text, &used, pins, "pin of a view, group or snapshot", "pins of views, groups or snapshots", which);
    if (used != 0) {
        cbdi_log(CBD_LOG_WARNING, CBDI_LOG_HANDLE, "stage %s: not closed: %s are in use", stage->name, text);
        return cbdi_fail(error, CBD_STATUS_OP_FAILED, "the stage is in use and stays open: %s; give them back and close again", text);
    }
    cbd_stage_close(stage);
    return CBD_STATUS_OK;
}
