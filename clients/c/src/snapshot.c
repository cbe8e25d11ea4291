/* Floors, snapshots and cursors (rules O6, V9). */
#include "read.h"

#include <stdlib.h>
#include <string.h>

/* The floor of a name, and the stamp, at a pinned epoch. */
static cbd_status floor_at(cbd_stage *stage, uint64_t epoch, const char *name, uint64_t *floor, uint64_t *stamp_ns,
                           cbd_error *error)
{
    struct floors floors;
    pthread_mutex_lock(&stage->cache_lock);
    cbd_status status = cbdi_columns_refresh(stage, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_floors_at(stage, epoch, &floors, error);
    if (status == CBD_STATUS_OK && floor != NULL)
        *floor = cbdi_floor_of(stage, &floors, name, name ? strlen(name) : 0);
    if (status == CBD_STATUS_OK && stamp_ns != NULL)
        *stamp_ns = floors.stamp_ns;
    pthread_mutex_unlock(&stage->cache_lock);
    return status;
}

cbd_status cbd_write_floor(cbd_stage *stage, const char *name, uint64_t *floor, cbd_error *error)
{
    size_t length;
    struct plan plan;
    uint64_t epoch = 0;
    if (floor == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "floor: expected a place for it, got NULL");
    *floor = 0;
    cbd_status status = name ? cbdi_name_check(name, false, &length, error) : CBD_STATUS_OK;
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_mutex_lock(&stage->cache_lock);
    status = cbdi_plan_make(stage, NULL, 0, &plan, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status == CBD_STATUS_OK) {
        status = cbdi_pin_take(stage, plan.columns, plan.attributes, plan.n, false, plan.pins, &epoch, error);
        if (status == CBD_STATUS_OK && epoch != 0) {
            status = floor_at(stage, epoch, name, floor, NULL, error);
            for (size_t i = 0; i < plan.n; i++)
                cbd_pin_release(plan.pins[i]);
        }
        cbdi_plan_free(&plan);
    }
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_snapshot_open(cbd_stage *stage, cbd_snapshot **out, cbd_error *error)
{
    struct column *everything = NULL;
    uint32_t attribute = CBD_PIN_ALL;
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "snapshot: expected a place for the handle, got NULL");
    *out = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (snapshot == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a snapshot");
    if (status == CBD_STATUS_OK) {
        snapshot->stage = stage;
        cbdi_stage_retain(stage);
        status = cbdi_pin_take(stage, &everything, &attribute, 1, false, &snapshot->pin, &snapshot->epoch, error);
        if (status != CBD_STATUS_OK)
            snapshot->pin = NULL; /* given back already */
    }
    if (status == CBD_STATUS_OK)
        status = floor_at(stage, snapshot->epoch, NULL, NULL, &snapshot->stamp_ns, error);
    cbdi_leave(stage);
    if (status != CBD_STATUS_OK) {
        cbd_snapshot_release(snapshot);
        return status;
    }
    *out = snapshot;
    return CBD_STATUS_OK;
}

cbd_status cbd_snapshot_read(cbd_snapshot *snapshot, cbd_query *query, const char *const *names, size_t n, cbd_read **read,
                             cbd_error *error)
{
    return cbd_snapshot_read_since(snapshot, query, names, n, NULL, read, error);
}

cbd_status cbd_snapshot_read_since(cbd_snapshot *snapshot, cbd_query *query, const char *const *names, size_t n,
                                   const cbd_cursor *since, cbd_read **read, cbd_error *error)
{
    const struct window window = {.cursor = since};
    if (snapshot == NULL || read == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "snapshot or the place for the read is NULL");
    *read = NULL;
    if (since != NULL && since->generation != snapshot->stage->generation)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "since is a cursor of generation %llu, the snapshot is of generation %llu",
                         (unsigned long long)since->generation, (unsigned long long)snapshot->stage->generation);
    cbd_status status = cbdi_names_check(names, n, false, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(snapshot->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_query_check(snapshot->stage, query, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_query_settle(query, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_read_make(snapshot->stage, query, names, n, snapshot, &window, read, error);
    cbdi_leave(snapshot->stage);
    return status;
}

cbd_status cbd_snapshot_cursor(cbd_snapshot *snapshot, cbd_cursor **cursor, cbd_error *error)
{
    struct floors floors;
    if (snapshot == NULL || cursor == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "snapshot or the place for the cursor is NULL");
    *cursor = NULL;
    cbd_stage *stage = snapshot->stage;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_mutex_lock(&stage->cache_lock);
    status = cbdi_columns_refresh(stage, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_floors_at(stage, snapshot->epoch, &floors, error);
    if (status == CBD_STATUS_OK) {
        cbd_cursor *made = malloc(sizeof *made + floors.count * sizeof made->rows[0]);
        if (made == NULL)
            status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a cursor");
        else {
            made->generation = stage->generation;
            made->epoch = snapshot->epoch;
            made->other = floors.other;
            made->count = floors.count;
            if (floors.count != 0)
                memcpy(made->rows, floors.rows, floors.count * sizeof made->rows[0]);
            *cursor = made;
        }
    }
    pthread_mutex_unlock(&stage->cache_lock);
    cbdi_leave(stage);
    return status;
}

uint64_t cbd_cursor_epoch(const cbd_cursor *cursor) { return cursor == NULL ? 0 : cursor->epoch; }

void cbd_cursor_release(cbd_cursor *cursor) { free(cursor); }

cbd_status cbd_frontier(cbd_stage *stage, const char *name, uint64_t *frontier, cbd_error *error)
{
    size_t length;
    if (frontier == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "frontier: expected a place for it, got NULL");
    *frontier = 0;
    cbd_status status = cbdi_name_check(name, false, &length, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_mutex_lock(&stage->cache_lock);
    status = cbdi_columns_refresh(stage, error);
    struct column *c = NULL;
    while (status == CBD_STATUS_OK && (c = cbdi_column_named(stage, name, length, c)) != NULL) {
        uint64_t of_column = load64(&c->entry->frontier_ordinal);
        *frontier = of_column > *frontier ? of_column : *frontier;
    }
    pthread_mutex_unlock(&stage->cache_lock);
    cbdi_leave(stage);
    return status;
}

uint64_t cbd_snapshot_epoch(const cbd_snapshot *snapshot) { return snapshot == NULL ? 0 : snapshot->epoch; }

uint64_t cbd_snapshot_stamp(const cbd_snapshot *snapshot) { return snapshot == NULL ? 0 : snapshot->stamp_ns; }

cbd_status cbd_snapshot_floor(cbd_snapshot *snapshot, const char *name, uint64_t *floor, cbd_error *error)
{
    size_t length;
    if (snapshot == NULL || floor == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "snapshot or the place for the floor is NULL");
    *floor = 0;
    cbd_status status = name ? cbdi_name_check(name, false, &length, error) : CBD_STATUS_OK;
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(snapshot->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = floor_at(snapshot->stage, snapshot->epoch, name, floor, NULL, error);
    cbdi_leave(snapshot->stage);
    return status;
}

void cbd_snapshot_release(cbd_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    cbd_pin_release(snapshot->pin);
    cbdi_stage_drop(snapshot->stage);
    free(snapshot);
}
