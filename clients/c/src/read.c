/* Reading sealed state in place (rules V2, V4, V7, V9). Warm, a read makes no system
 * call and asks nobody:
 *
 *     names → columns → pins → versions → row maps → groups
 *
 * Pins are taken with no lock held, since the last resort asks the broker. A read of
 * names takes a pin per column and one for the floors; a snapshot's reads share its
 * one pin of everything. Each group holds a reference on the pin that keeps it.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

struct group {
    cbd_read_group view; /* first: what the caller has is what we have */
    struct row_map *map;
    char name[]; /* terminated */
};

struct cbd_read {
    cbd_stage *stage;
    uint64_t epoch;
    size_t count, next;
    struct group **groups;
};

struct cbd_snapshot {
    cbd_stage *stage;
    cbd_pin *pin; /* NULL at epoch 0 */
    uint64_t epoch;
    uint64_t stamp_ns;
};

static void release_group(struct group *group)
{
    cbdi_row_map_release(group->map);
    cbd_pin_release(group->view.pin);
    free(group);
}

void cbd_release_group(const cbd_read_group *group)
{
    if (group != NULL)
        release_group((struct group *)(uintptr_t)group);
}

void cbd_read_release(cbd_read *read)
{
    if (read == NULL)
        return;
    while (read->next < read->count)
        release_group(read->groups[read->next++]);
    cbdi_stage_drop(read->stage);
    free(read->groups);
    free(read);
}

uint64_t cbd_read_epoch(const cbd_read *read) { return read == NULL ? 0 : read->epoch; }

cbd_status cbd_fetch_read_next(cbd_read *read, const cbd_read_group **group, cbd_error *error)
{
    if (read == NULL || group == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "read or the place for the group is NULL");
    *group = NULL;
    if (read->next == read->count)
        return cbdi_fail(error, CBD_STATUS_END, "all %zu groups were fetched", read->count);
    *group = &read->groups[read->next++]->view;
    return CBD_STATUS_OK;
}

/* Appends the group of one column, if it has any of the prims at the epoch. The pin
 * is the caller's; a group takes a reference of its own. With cache_lock held. */
static cbd_status add_group(cbd_read *read, cbd_query *query, struct column *column, cbd_pin *pin,
                            const struct floors *floors, cbd_error *error)
{
    cbd_stage *stage = read->stage;
    struct version version;
    cbd_status status = cbdi_find_version(stage, column, read->epoch, &version, error);
    if (status == CBD_STATUS_NOT_FOUND)
        return CBD_STATUS_OK; /* born later, or never sealed */
    if (status != CBD_STATUS_OK)
        return status;
    if (column->schema.kind != CBD_KIND_FIXED || column->schema.device_type != CBD_DEVICE_CPU)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "\"%.*s\" is of kind %u on device type %u; this version reads fixed "
                         "attributes in host memory", (int)column->name_bytes, column->name, column->schema.kind,
                         column->schema.device_type);
    struct row_map *map;
    status = cbdi_row_map(query, &version, read->epoch, &map, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (map->count == 0) {
        cbdi_row_map_release(map);
        return CBD_STATUS_OK;
    }

    struct segment *segment = NULL;
    const uint8_t *bytes = NULL;
    struct group *group = NULL;
    if (column->row_bytes != 0 && version.rows > version.block.length_bytes / column->row_bytes)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "\"%.*s\" has %llu rows of %llu bytes in a block of %llu bytes",
                           (int)column->name_bytes, column->name, (unsigned long long)version.rows,
                           (unsigned long long)column->row_bytes, (unsigned long long)version.block.length_bytes);
    if (status == CBD_STATUS_OK)
        status = cbdi_place(stage, version.block.segment, version.block.offset_bytes, version.block.length_bytes,
                            "the rows of a version", &bytes, &segment, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_pin_use(pin, column, &version, segment, error);
    if (status == CBD_STATUS_OK && (group = calloc(1, sizeof *group + column->name_bytes + 1)) == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a group");
    if (status != CBD_STATUS_OK) {
        cbdi_row_map_release(map);
        return status;
    }
    memcpy(group->name, column->name, column->name_bytes);
    group->map = map;
    cbd_read_group *view = &group->view;
    view->name = group->name;
    view->column = column->index;
    view->version_flags = version.flags;
    view->epoch = read->epoch;
    view->ordinal = version.ordinal_highest;
    view->floor = cbdi_floor_of(stage, floors, column->name, column->name_bytes);
    view->stamp_ns = version.stamp_ns;
    view->layout_generation = version.layout_generation;
    view->schema = column->schema;
    view->row_bytes = column->row_bytes;
    view->contiguous = map->index == NULL;
    view->rows = map->index == NULL ? map->count : version.rows;
    view->data = map->index == NULL ? bytes + map->first_row * column->row_bytes : bytes;
    view->index_map = map->index;
    view->prims = map->prims;
    view->prim_count = map->count;
    view->ndim = cbdi_view_shape(&view->schema, view->rows, view->shape);
    view->pin = cbd_pin_retain(pin);
    read->groups[read->count++] = group;
    return CBD_STATUS_OK;
}

struct plan {
    size_t n;
    struct column **columns; /* [0] is the column of the floors */
    uint32_t *attributes;
    cbd_pin **pins;
};

static void free_plan(struct plan *plan)
{
    free(plan->columns);
    free(plan->attributes);
    free(plan->pins);
}

/* The columns of the names, after that of the floors. With cache_lock held. */
static cbd_status make_plan(cbd_stage *stage, const char *const *names, size_t n, struct plan *plan, cbd_error *error)
{
    memset(plan, 0, sizeof *plan);
    cbd_status status = cbdi_columns_refresh(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    size_t count = stage->column_count != 0; /* the floors */
    for (size_t i = 0; i < n; i++)
        for (struct column *c = NULL; (c = cbdi_column_named(stage, names[i], strlen(names[i]), c)) != NULL;)
            count++;
    plan->columns = calloc(count + 1, sizeof *plan->columns);
    plan->attributes = calloc(count + 1, sizeof *plan->attributes);
    plan->pins = calloc(count + 1, sizeof *plan->pins);
    if (plan->columns == NULL || plan->attributes == NULL || plan->pins == NULL) {
        free_plan(plan);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to read %zu attributes", n);
    }
    if (stage->column_count != 0)
        plan->columns[plan->n++] = stage->columns[CBD_FLOOR_COLUMN];
    for (size_t i = 0; i < n; i++)
        for (struct column *c = NULL; (c = cbdi_column_named(stage, names[i], strlen(names[i]), c)) != NULL;)
            plan->columns[plan->n++] = c;
    for (size_t i = 0; i < plan->n; i++)
        plan->attributes[i] = plan->columns[i]->index;
    return CBD_STATUS_OK;
}

/* Fills the read from pins that are held already; pins[i] for columns[i], from 1 on. */
static cbd_status fill(cbd_read *read, cbd_query *query, const struct plan *plan, cbd_pin *shared, cbd_error *error)
{
    struct floors floors;
    read->groups = calloc(plan->n + 1, sizeof *read->groups);
    if (read->groups == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu groups", plan->n);
    cbd_status status = cbdi_floors_at(read->stage, read->epoch, &floors, error);
    for (size_t i = 1; status == CBD_STATUS_OK && i < plan->n; i++)
        status = add_group(read, query, plan->columns[i], shared ? shared : plan->pins[i], &floors, error);
    return status;
}

static cbd_status make_read(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n,
                            const cbd_snapshot *snapshot, cbd_read **out, cbd_error *error)
{
    struct plan plan;
    cbd_read *read = calloc(1, sizeof *read);
    if (read == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a read");
    read->stage = stage;
    cbdi_stage_retain(stage);

    pthread_mutex_lock(&stage->cache_lock);
    cbd_status status = make_plan(stage, names, n, &plan, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status != CBD_STATUS_OK) {
        cbd_read_release(read);
        return status;
    }
    if (snapshot != NULL)
        read->epoch = snapshot->epoch;
    else
        status = cbdi_pin_take(stage, plan.columns, plan.attributes, plan.n, plan.pins, &read->epoch, error);
    bool pinned = status == CBD_STATUS_OK && read->epoch != 0 && snapshot == NULL;
    if (status == CBD_STATUS_OK && read->epoch != 0) {
        pthread_mutex_lock(&stage->cache_lock);
        status = fill(read, query, &plan, snapshot ? snapshot->pin : NULL, error);
        pthread_mutex_unlock(&stage->cache_lock);
    }
    for (size_t i = 0; pinned && i < plan.n; i++)
        cbd_pin_release(plan.pins[i]); /* the groups have their own references */
    free_plan(&plan);
    if (status != CBD_STATUS_OK) {
        cbd_read_release(read);
        return status;
    }
    *out = read;
    return CBD_STATUS_OK;
}

cbd_status cbd_read_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, cbd_read **read,
                               cbd_error *error)
{
    if (read == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "read: expected a place for the handle, got NULL");
    *read = NULL;
    cbd_status status = cbdi_names_check(names, n, false, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_query_check(stage, query, error);
    if (status == CBD_STATUS_OK)
        status = make_read(stage, query, names, n, NULL, read, error);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_latest(cbd_stage *stage, const char *name, const cbd_read_group **out, cbd_error *error)
{
    cbd_query *root = NULL;
    cbd_read *read = NULL;
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "group: expected a place for it, got NULL");
    *out = NULL;
    cbd_status status = cbd_root_query(stage, &root, error);
    if (status == CBD_STATUS_OK)
        status = cbd_read_attributes(stage, root, &name, 1, &read, error);
    if (status == CBD_STATUS_OK && read->count == 0)
        status = cbdi_fail(error, CBD_STATUS_NOT_FOUND, "\"%.200s\" has no sealed value on the prim \"/\" at epoch %llu", name,
                           (unsigned long long)read->epoch);
    if (status == CBD_STATUS_OK) {
        cbd_read_group *view = &read->groups[read->next++]->view;
        if (view->index_map != NULL) { /* one row only: cut it out */
            view->data = (const uint8_t *)view->data + view->index_map[0] * view->row_bytes;
            view->index_map = NULL;
        }
        view->rows = 1;
        view->contiguous = 1;
        view->ndim--;
        memmove(view->shape, view->shape + 1, sizeof view->shape - sizeof view->shape[0]);
        *out = view;
    }
    cbd_read_release(read);
    cbd_query_release(root);
    return status;
}

/* ---- floors and snapshots ------------------------------------------------------------ */

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
    status = make_plan(stage, NULL, 0, &plan, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status == CBD_STATUS_OK) {
        status = cbdi_pin_take(stage, plan.columns, plan.attributes, plan.n, plan.pins, &epoch, error);
        if (status == CBD_STATUS_OK && epoch != 0) {
            status = floor_at(stage, epoch, name, floor, NULL, error);
            for (size_t i = 0; i < plan.n; i++)
                cbd_pin_release(plan.pins[i]);
        }
        free_plan(&plan);
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
        status = cbdi_pin_take(stage, &everything, &attribute, 1, &snapshot->pin, &snapshot->epoch, error);
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
    if (snapshot == NULL || read == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "snapshot or the place for the read is NULL");
    *read = NULL;
    cbd_status status = cbdi_names_check(names, n, false, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(snapshot->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_query_check(snapshot->stage, query, error);
    if (status == CBD_STATUS_OK)
        status = make_read(snapshot->stage, query, names, n, snapshot, read, error);
    cbdi_leave(snapshot->stage);
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
