/* The groups of a read: what is shown of each column, by the query's prims (rules V4, V7).
 *
 *     version → row map → rows ──▶ a group, with a reference on the pin that keeps it
 *                     └─▶ deletes, in a read of changes
 */
#include "read.h"

#include <stdlib.h>
#include <string.h>

#define AT_ONCE_ROWS_MAX 1024 /* whose ordinals or arrays are looked at one by one: some microseconds */

/* The ordinal that a column's changes begin after. */
static uint64_t since_of(const struct window *window, const struct column *column)
{
    const cbd_cursor *cursor = window->cursor;
    if (cursor == NULL)
        return *window->since;
    for (uint64_t i = 0; i < cursor->count; i++)
        if (cursor->rows[i].name_id == column->name_id)
            return cursor->rows[i].floor;
    return cursor->other;
}

void cbdi_group_release(struct group *group)
{
    if (atomic_fetch_sub(&group->refs, 1) != 1)
        return;
    cbdi_row_map_release(group->map);
    free(group->deleted);
    free(group->arrays);
    cbd_pin_release(group->view.pin);
    free(group);
}

void cbd_release_group(const cbd_read_group *group)
{
    if (group != NULL)
        cbdi_group_release((struct group *)(uintptr_t)group);
}

cbd_status cbd_group_row_ordinals(const cbd_read_group *view, uint64_t *ordinals, cbd_error *error)
{
    if (view == NULL || ordinals == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the group or the place for its ordinals is NULL");
    const struct group *group = (const struct group *)(uintptr_t)view;
    for (uint64_t i = 0; i < view->prim_count; i++) {
        if (group->deleted != NULL)
            ordinals[i] = group->deleted[i];
        else if (group->row_ordinals != NULL)
            ordinals[i] = group->row_ordinals[group->map->index ? group->map->index[i] : group->map->first_row + i];
        else
            ordinals[i] = view->ordinal;
    }
    return CBD_STATUS_OK;
}

/* The highest ordinal of the map's rows (behaviour 133). */
static uint64_t highest_of(const struct row_map *map, const uint64_t *row_ordinals, uint64_t highest)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < map->count && found < highest; i++) {
        uint64_t ordinal = row_ordinals[map->index ? map->index[i] : map->first_row + i];
        found = ordinal > found ? ordinal : found;
    }
    return found;
}

/* Appends a group with what its column and version say. Takes the map, also when it fails. */
static struct group *append_group(cbd_read *read, const struct column *column, const struct version *version,
                                  struct row_map *map, cbd_pin *pin, const struct floors *floors, cbd_error *error)
{
    struct group *group = calloc(1, sizeof *group + column->name_bytes + 1);
    if (group == NULL) {
        cbdi_row_map_release(map);
        cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a group");
        return NULL;
    }
    memcpy(group->name, column->name, column->name_bytes);
    atomic_init(&group->refs, 1);
    group->map = map;
    group->home = (struct home){version->block, version->device_number, version->arena_generation};
    group->birth = version->birth;
    group->number = version->device_number;
    cbd_read_group *view = &group->view;
    view->name = group->name;
    view->column = column->index;
    view->version_flags = version->flags;
    view->epoch = read->epoch;
    view->ordinal = version->ordinal_highest;
    view->floor = cbdi_floor_of_id(floors, column->name_id);
    view->stamp_ns = version->stamp_ns;
    view->layout_generation = version->layout_generation;
    view->schema = column->schema;
    cbdi_schema_out(read->stage, &view->schema);
    cbdi_device_out(read->stage, version->device_number, &view->device_type, &view->device_id);
    view->row_bytes = column->schema.kind == CBD_KIND_ARRAY ? (uint64_t)column->schema.bits / 8 * column->schema.lanes : column->row_bytes;
    view->prims = map->prims;
    view->prim_count = map->count;
    view->pin = cbd_pin_retain(pin);
    read->groups[read->count++] = group;
    return group;
}

/* Appends the group of the map's rows. Takes the map, also when it fails. */
static cbd_status add_rows(cbd_read *read, struct column *column, const struct version *version,
                           const uint64_t *row_ordinals, struct row_map *map, cbd_pin *pin, const struct floors *floors,
                           cbd_error *error)
{
    struct segment *segment = NULL;
    const uint8_t *bytes = NULL;
    struct group *group = NULL;
    cbd_array *arrays = NULL;
    bool is_array = column->schema.kind == CBD_KIND_ARRAY, on_device = version->device_number != 0;
    cbd_status status = CBD_STATUS_OK;
    if (column->row_bytes != 0 && version->rows > version->block.length_bytes / column->row_bytes)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "\"%.*s\" has %llu rows of %llu bytes in a block of %llu bytes",
                           (int)column->name_bytes, column->name, (unsigned long long)version->rows,
                           (unsigned long long)column->row_bytes, (unsigned long long)version->block.length_bytes);
    if (status == CBD_STATUS_OK && on_device && is_array)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "\"%.*s\" has rows of array kind on device number %u", (int)column->name_bytes,
                           column->name, version->device_number);
    if (status == CBD_STATUS_OK && on_device) {
        status = cbdi_device_block(read->stage, "an attribute", &version->block, version->device_number, version->arena_generation,
                                   version->block.length_bytes, &bytes, &segment, NULL);
        if (status != CBD_STATUS_OK && status != CBD_STATUS_TIMEOUT) { /* the fetch tries again, and says why */
            status = CBD_STATUS_OK;
            segment = NULL;
            bytes = NULL;
        }
    } else if (status == CBD_STATUS_OK) {
        status = cbdi_place(read->stage, version->block.segment, version->block.offset_bytes, version->block.length_bytes,
                            "the rows of a version", &bytes, &segment, error);
    }
    if (status == CBD_STATUS_OK)
        status = cbdi_pin_use(pin, column, version, segment, error);
    if (status == CBD_STATUS_OK && is_array)
        status = cbdi_array_rows(read->stage, column, version, bytes, map, pin, &arrays, error);
    if (status != CBD_STATUS_OK) {
        cbdi_row_map_release(map);
        return status;
    }
    group = append_group(read, column, version, map, pin, floors, error);
    if (group == NULL) {
        free(arrays);
        return CBD_STATUS_OUT_OF_MEMORY;
    }
    cbd_read_group *view = &group->view;
    group->row_ordinals = row_ordinals;
    if (row_ordinals != NULL)
        view->ordinal = highest_of(map, row_ordinals, version->ordinal_highest);
    if (is_array) {
        view->arrays = group->arrays = arrays;
        view->rows = map->count;
        view->contiguous = 1;
        return CBD_STATUS_OK;
    }
    view->contiguous = map->index == NULL;
    view->rows = map->index == NULL ? map->count : version->rows;
    group->first_byte = map->index == NULL ? map->first_row * column->row_bytes : 0;
    view->data = bytes != NULL ? bytes + group->first_byte : NULL;
    view->index_map = map->index;
    view->ndim = cbdi_view_shape(&view->schema, view->rows, view->shape);
    return CBD_STATUS_OK;
}

/* Appends the group of one column, if it has any of the prims and any change that the window
 * shows, and notes its deletes. The pin is the caller's; a group takes a reference of its own. */
cbd_status cbdi_add_column(cbd_read *read, cbd_query *query, struct column *column, const struct version *version,
                             cbd_pin *pin, const struct floors *floors, const struct window *window, struct change *change,
                             cbd_error *error)
{
    cbd_stage *stage = read->stage;
    if ((column->schema.kind != CBD_KIND_FIXED && column->schema.kind != CBD_KIND_ARRAY) ||
        (column->schema.device_type != CBD_DEVICE_CPU && column->schema.device_type != CBD_DEVICE_CUDA))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "\"%.*s\" is of kind %u on device type %u; this version reads fixed "
                         "and array attributes on the host, and on GPUs of CUDA", (int)column->name_bytes, column->name,
                         column->schema.kind, column->schema.device_type);
    struct row_map *map;
    const uint8_t *ordinals = NULL;
    cbd_status status = cbdi_row_map(query, version, version->birth, &map, error); /* membership is that of all its life */
    if (status != CBD_STATUS_OK)
        return status;
    if (version->row_ordinals.segment != 0 && map->count != 0) {
        struct segment *where;
        status = cbdi_place(stage, version->row_ordinals.segment, version->row_ordinals.offset_bytes,
                            version->rows * sizeof(uint64_t), "the ordinals of rows", &ordinals, &where, error);
        if (status == CBD_STATUS_OK)
            status = cbdi_pin_use(pin, column, version, where, error);
        if (status != CBD_STATUS_OK) {
            cbdi_row_map_release(map);
            return status;
        }
    }
    const uint64_t *row_ordinals = (const uint64_t *)ordinals;
    if (window->at_once && map->count > AT_ONCE_ROWS_MAX && (row_ordinals != NULL || column->schema.kind == CBD_KIND_ARRAY)) {
        cbdi_row_map_release(map);
        return CBD_STATUS_TIMEOUT;
    }
    if (cbdi_is_delta(window)) {
        uint64_t since = since_of(window, column), end = window->by != CBD_AT_NEWEST ? window->at : UINT64_MAX;
        change->column = column;
        change->version = *version;
        change->all = map;
        atomic_fetch_add(&map->refs, 1);
        if (window->cursor == NULL || window->cursor->epoch != 0) /* who saw nothing knows nothing of what is gone */
            status = cbdi_tombstones(query, column, read->epoch > version->birth ? read->epoch : version->birth, since, end,
                                     &change->deletes, &change->count, error);
        struct row_map *changed = map;
        if (row_ordinals != NULL && status == CBD_STATUS_OK) {
            changed = cbdi_row_map_changed(map, row_ordinals, since);
            cbdi_row_map_release(map);
            map = changed;
            if (map == NULL)
                status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the changed rows");
        } else if (version->ordinal_highest <= since) {
            cbdi_row_map_release(map);
            return status;
        }
    }
    if (status != CBD_STATUS_OK || map->count == 0) {
        cbdi_row_map_release(map);
        return status;
    }
    return add_rows(read, column, version, row_ordinals, map, pin, floors, error);
}

/* Appends the group of a column's deletes, of those whose prims carry the name no more. Takes
 * nothing of the change. */
cbd_status cbdi_add_deletes(cbd_read *read, cbd_query *query, const struct change *change, const struct change *all, size_t n,
                              cbd_pin *pin, const struct floors *floors, cbd_error *error)
{
    size_t count = 0;
    uint8_t *carried = calloc(query->count + 1, sizeof *carried); /* by place in the query */
    uint64_t *prims = malloc(change->count * sizeof *prims), *ordinals = malloc(change->count * sizeof *ordinals);
    bool memory = carried != NULL && prims != NULL && ordinals != NULL;
    for (size_t i = 0; memory && i < n; i++)
        if (all[i].all != NULL && all[i].column->name_id == change->column->name_id)
            for (uint64_t j = 0; j < all[i].all->count; j++)
                carried[cbdi_query_place(query, all[i].all->prims[j]) - 1] = 1;
    for (size_t i = 0; memory && i < change->count; i++) {
        if (carried[change->deletes[i].place])
            continue;
        prims[count] = change->deletes[i].prim;
        ordinals[count++] = change->deletes[i].ordinal;
    }
    free(carried);
    if (!memory || count == 0) {
        free(prims);
        free(ordinals);
        return memory ? CBD_STATUS_OK : cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu deletes", change->count);
    }
    struct row_map *map = cbdi_row_map_of_prims(prims, count);
    struct group *group = map == NULL ? NULL : append_group(read, change->column, &change->version, map, pin, floors, error);
    if (group == NULL) {
        free(ordinals);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu deletes", count);
    }
    group->deleted = ordinals;
    group->view.is_delete = 1;
    group->view.ordinal = 0;
    for (size_t i = 0; i < count; i++)
        group->view.ordinal = ordinals[i] > group->view.ordinal ? ordinals[i] : group->view.ordinal;
    group->view.contiguous = 1;
    if (group->view.schema.kind == CBD_KIND_FIXED)
        group->view.ndim = cbdi_view_shape(&group->view.schema, 0, group->view.shape);
    return CBD_STATUS_OK;
}

/* Adds the group of "@path": a row for each of the query's prims, whether they exist or not
 * (behaviour 271). Its data is the group's own, and no pin keeps it. With cache_lock held. */
cbd_status cbdi_add_paths(cbd_read *read, cbd_query *query, const struct floors *floors, cbd_error *error)
{
    uint64_t count = query->count;
    if (count == 0)
        return CBD_STATUS_OK;
    uint64_t *ids = malloc(count * sizeof *ids);
    if (ids != NULL)
        memcpy(ids, query->ids, count * sizeof *ids);
    struct row_map *map = ids != NULL ? cbdi_row_map_of_prims(ids, count) : NULL;
    struct group *group = map != NULL ? calloc(1, sizeof *group + sizeof CBD_PATH_NAME) : NULL;
    if (group == NULL) {
        if (map != NULL)
            cbdi_row_map_release(map);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a group of %llu paths", (unsigned long long)count);
    }
    memcpy(group->name, CBD_PATH_NAME, sizeof CBD_PATH_NAME);
    atomic_init(&group->refs, 1);
    group->map = map;
    cbd_read_group *view = &group->view;
    view->name = group->name;
    view->column = CBD_NO_COLUMN;
    view->epoch = read->epoch;
    view->floor = floors->global;
    view->schema = (cbd_schema){.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_UINT, .bits = 64, .lanes = 1, .device_type = CBD_DEVICE_CPU};
    view->device_type = CBD_DEVICE_CPU;
    view->row_bytes = sizeof *ids;
    view->contiguous = 1;
    view->rows = view->prim_count = count;
    view->data = view->prims = map->prims;
    view->ndim = cbdi_view_shape(&view->schema, view->rows, view->shape);
    read->groups[read->count++] = group;
    return CBD_STATUS_OK;
}
