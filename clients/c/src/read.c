/* Reading sealed state in place (rules V2, V4, V7, V9). Warm, a read makes no system
 * call and asks nobody:
 *
 *     names → columns → pins → versions → row maps → groups
 *
 * Pins are taken with no lock held, since the last resort asks the broker. A read of
 * names takes a pin per column and one for the floors; a snapshot's reads share its
 * one pin of everything. Each group holds a reference on the pin that keeps it. A read
 * as of an ordinal or a stamp pins each column at an epoch of its own (V5).
 *
 * A read of changes shows the rows that were written after an ordinal, and at its end
 * groups of the prims that were deleted and did not come back, in whatever schema (O7).
 */
#include "client.h"

#include "callboard_python.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_TRIES 16

struct group {
    cbd_read_group view; /* first: what the caller has is what we have */
    struct row_map *map;
    const uint64_t *row_ordinals; /* of the version's rows; NULL: all are view.ordinal */
    uint64_t *deleted;            /* of a group of deletes: their ordinals, one a prim */
    cbd_array *arrays;            /* view.arrays */
    char name[];                  /* terminated */
};

/* A read of a query that was running: it opens with the first fetch (behaviour 140). */
struct later {
    cbd_query *query;
    cbd_range range;
    size_t n;
    const char *names[]; /* the texts lie behind */
};

#define GROUPS_FEW 6 /* room for a read of one column, beside that of the floors */

struct cbd_read {
    cbd_stage *stage;
    uint64_t epoch;
    uint64_t ordinal; /* that it is as of; 0: none */
    size_t count, next;
    struct group **groups; /* few, or allocated */
    struct group *few[GROUPS_FEW];
    struct later *later; /* until it is open */
};

struct cbd_snapshot {
    cbd_stage *stage;
    cbd_pin *pin; /* NULL at epoch 0 */
    uint64_t epoch;
    uint64_t stamp_ns;
};

struct cbd_cursor {
    uint64_t generation, epoch;
    uint64_t other; /* the floor of the names without a row */
    uint64_t count;
    cbd_abi_floor_row rows[];
};

/* Which part of the state a read shows. All zeros: the newest, whole. */
struct window {
    uint32_t by;              /* CBD_AT_*: as of `at` */
    uint64_t at;
    const uint64_t *since;    /* only what changed after an ordinal */
    const cbd_cursor *cursor; /* only what changed after a snapshot */
    bool at_once;             /* TIMEOUT, without a text, instead of waiting or working for long */
};

#define AT_ONCE_ROWS_MAX 1024 /* whose ordinals or arrays are looked at one by one: some microseconds */

/* Before any look at what cache_lock guards. */
static cbd_status begin(cbd_stage *stage, const struct window *window)
{
    if (!window->at_once)
        pthread_mutex_lock(&stage->cache_lock);
    else if (pthread_mutex_trylock(&stage->cache_lock) != 0)
        return CBD_STATUS_TIMEOUT;
    stage->at_once = window->at_once;
    return CBD_STATUS_OK;
}

static void end(cbd_stage *stage)
{
    stage->at_once = false;
    pthread_mutex_unlock(&stage->cache_lock);
}

static bool is_delta(const struct window *window) { return window->since != NULL || window->cursor != NULL; }

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

static void release_group(struct group *group)
{
    cbdi_row_map_release(group->map);
    free(group->deleted);
    free(group->arrays);
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
    if (read->later != NULL)
        cbd_query_release(read->later->query);
    cbdi_stage_drop(read->stage);
    free(read->later);
    if (read->groups != read->few)
        free(read->groups);
    free(read);
}

static cbd_status read_later(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_range *range,
                             cbd_read **out, cbd_error *error)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += strlen(names[i]) + 1;
    cbd_read *read = calloc(1, sizeof *read);
    struct later *later = calloc(1, sizeof *later + n * sizeof later->names[0] + bytes);
    if (read == NULL || later == NULL) {
        free(read);
        free(later);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a read");
    }
    char *at = (char *)&later->names[n];
    for (size_t i = 0; i < n; i++) {
        later->names[i] = strcpy(at, names[i]);
        at += strlen(at) + 1;
    }
    later->query = cbdi_query_retain(query);
    later->n = n;
    if (range != NULL)
        later->range = *range;
    read->stage = stage;
    read->later = later;
    cbdi_stage_retain(stage);
    *out = read;
    return CBD_STATUS_OK;
}

/* The query's error, or the read's; then the next fetch tries again. */
static cbd_status open_later(cbd_read *read, cbd_error *error)
{
    struct later *later = read->later;
    cbd_read *opened = NULL;
    cbd_status status = cbdi_query_settle(later->query, error);
    if (status == CBD_STATUS_OK)
        status = cbd_read_range(read->stage, later->query, later->names, later->n, &later->range, &opened, error);
    if (status != CBD_STATUS_OK)
        return status;
    read->epoch = opened->epoch;
    read->ordinal = opened->ordinal;
    read->count = opened->count;
    memcpy(read->few, opened->few, sizeof read->few);
    read->groups = opened->groups == opened->few ? read->few : opened->groups;
    read->later = NULL;
    opened->count = 0;
    opened->groups = NULL;
    cbd_read_release(opened);
    cbd_query_release(later->query);
    free(later);
    return CBD_STATUS_OK;
}

uint64_t cbd_read_epoch(const cbd_read *read) { return read == NULL ? 0 : read->epoch; }
uint64_t cbd_read_ordinal(const cbd_read *read) { return read == NULL ? 0 : read->ordinal; }

cbd_status cbd_fetch_read_next(cbd_read *read, const cbd_read_group **group, cbd_error *error)
{
    if (read == NULL || group == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "read or the place for the group is NULL");
    *group = NULL;
    cbd_status status = read->later != NULL ? open_later(read, error) : CBD_STATUS_OK;
    if (status != CBD_STATUS_OK)
        return status;
    if (read->next == read->count)
        return cbdi_fail(error, CBD_STATUS_END, "all %zu groups were fetched", read->count);
    *group = &read->groups[read->next++]->view;
    return CBD_STATUS_OK;
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
    group->map = map;
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
    bool is_array = column->schema.kind == CBD_KIND_ARRAY;
    cbd_status status = CBD_STATUS_OK;
    if (column->row_bytes != 0 && version->rows > version->block.length_bytes / column->row_bytes)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "\"%.*s\" has %llu rows of %llu bytes in a block of %llu bytes",
                           (int)column->name_bytes, column->name, (unsigned long long)version->rows,
                           (unsigned long long)column->row_bytes, (unsigned long long)version->block.length_bytes);
    if (status == CBD_STATUS_OK)
        status = cbdi_place(read->stage, version->block.segment, version->block.offset_bytes, version->block.length_bytes,
                            "the rows of a version", &bytes, &segment, error);
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
    view->data = map->index == NULL ? bytes + map->first_row * column->row_bytes : bytes;
    view->index_map = map->index;
    view->ndim = cbdi_view_shape(&view->schema, view->rows, view->shape);
    return CBD_STATUS_OK;
}

/* What a read of changes found of one column. */
struct change {
    struct column *column;
    struct version version;
    struct row_map *all; /* of its prims now */
    struct tombstone *deletes;
    size_t count;
};

/* Appends the group of one column, if it has any of the prims and any change that the window
 * shows, and notes its deletes. The pin is the caller's; a group takes a reference of its own. */
static cbd_status add_column(cbd_read *read, cbd_query *query, struct column *column, const struct version *version,
                             cbd_pin *pin, const struct floors *floors, const struct window *window, struct change *change,
                             cbd_error *error)
{
    cbd_stage *stage = read->stage;
    if ((column->schema.kind != CBD_KIND_FIXED && column->schema.kind != CBD_KIND_ARRAY) ||
        column->schema.device_type != CBD_DEVICE_CPU)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "\"%.*s\" is of kind %u on device type %u; this version reads fixed "
                         "and array attributes in host memory", (int)column->name_bytes, column->name, column->schema.kind,
                         column->schema.device_type);
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
    if (is_delta(window)) {
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
static cbd_status add_deletes(cbd_read *read, cbd_query *query, const struct change *change, const struct change *all, size_t n,
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

#define PLAN_FEW 4 /* columns of a read that needs no memory for its plan */

struct plan {
    size_t n;
    uint32_t known; /* columns of the stage when it was made */
    struct column **columns; /* [0] is the column of the floors */
    uint32_t *attributes;
    cbd_pin **pins;
    struct column *few_columns[PLAN_FEW];
    uint32_t few_attributes[PLAN_FEW];
    cbd_pin *few_pins[PLAN_FEW];
};

static void free_plan(struct plan *plan)
{
    if (plan->columns == plan->few_columns)
        return;
    free(plan->columns);
    free(plan->attributes);
    free(plan->pins);
}

/* Lists the columns of the names, after that of the floors, as far as there is room; how many there are. */
static size_t list_columns(cbd_stage *stage, const char *const *names, size_t n, struct column **columns, size_t room)
{
    size_t count = 0;
    if (stage->column_count != 0)
        columns[count++] = stage->columns[CBD_FLOOR_COLUMN];
    for (size_t i = 0; i < n; i++)
        for (struct column *c = NULL; (c = cbdi_column_named(stage, names[i], strlen(names[i]), c)) != NULL; count++)
            if (count < room)
                columns[count] = c;
    return count;
}

/* What a read pins and looks at. With cache_lock held. */
static cbd_status make_plan(cbd_stage *stage, const char *const *names, size_t n, struct plan *plan, cbd_error *error)
{
    plan->columns = plan->few_columns;
    plan->attributes = plan->few_attributes;
    plan->pins = plan->few_pins;
    memset(plan->few_pins, 0, sizeof plan->few_pins);
    plan->n = 0;
    cbd_status status = cbdi_columns_refresh(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    plan->known = stage->column_count;
    size_t count = list_columns(stage, names, n, plan->columns, PLAN_FEW);
    if (count > PLAN_FEW) {
        plan->columns = calloc(count, sizeof *plan->columns);
        plan->attributes = calloc(count, sizeof *plan->attributes);
        plan->pins = calloc(count, sizeof *plan->pins);
        if (plan->columns == NULL || plan->attributes == NULL || plan->pins == NULL) {
            free_plan(plan);
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to read %zu attributes", n);
        }
        list_columns(stage, names, n, plan->columns, count);
    }
    plan->n = count;
    for (size_t i = 0; i < plan->n; i++)
        plan->attributes[i] = plan->columns[i]->index;
    return CBD_STATUS_OK;
}

/* An explicit end must not be above the floor of any name (O5), also of one that nobody wrote. */
static cbd_status at_check(cbd_stage *stage, const char *const *names, size_t n, uint64_t at, const struct floors *floors,
                           cbd_error *error)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t floor = cbdi_floor_of(stage, floors, names[i], strlen(names[i]));
        if (at > floor && strcmp(names[i], CBD_PATH_NAME) != 0)
            return cbdi_fail(error, CBD_STATUS_FLOOR_VIOLATION,
                             "attribute \"%.200s\": a read as of ordinal %llu is above the write floor %llu; seal it first, or "
                             "read the newest state", names[i], (unsigned long long)at, (unsigned long long)floor);
    }
    return CBD_STATUS_OK;
}

/* The highest ordinal that is sealed for all of the names. Those that nobody wrote or sealed do not count: they have
 * no groups. */
static uint64_t common_ordinal(cbd_stage *stage, const char *const *names, size_t n, const struct floors *floors)
{
    uint64_t lowest = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(names[i]);
        uint64_t floor = cbdi_floor_of(stage, floors, names[i], length);
        if (floor != 0 && floor < lowest && cbdi_column_named(stage, names[i], length, NULL) != NULL)
            lowest = floor;
    }
    return lowest == UINT64_MAX ? 0 : lowest;
}

/* Adds the group of "@path": a row for each of the query's prims, whether they exist or not
 * (behaviour 271). Its data is the group's own, and no pin keeps it. With cache_lock held. */
static cbd_status add_paths(cbd_read *read, cbd_query *query, const struct floors *floors, cbd_error *error)
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
    group->map = map;
    cbd_read_group *view = &group->view;
    view->name = group->name;
    view->column = CBD_NO_COLUMN;
    view->epoch = read->epoch;
    view->floor = floors->global;
    view->schema = (cbd_schema){.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_UINT, .bits = 64, .lanes = 1, .device_type = CBD_DEVICE_CPU};
    view->row_bytes = sizeof *ids;
    view->contiguous = 1;
    view->rows = view->prim_count = count;
    view->data = view->prims = map->prims;
    view->ndim = cbdi_view_shape(&view->schema, view->rows, view->shape);
    read->groups[read->count++] = group;
    return CBD_STATUS_OK;
}

static bool asks_paths(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], CBD_PATH_NAME) == 0)
            return true;
    return false;
}

static cbd_status since_above(const struct window *window, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "since is %llu, above the end %llu; give an ordinal at or below it",
                     (unsigned long long)*window->since, (unsigned long long)window->at);
}

/* Fills the read from pins that are held already, plan->pins[i] for columns[i], from 1 on, or
 * that it takes of the past. The window of a common ordinal becomes that of the ordinal. With cache_lock held. */
static cbd_status fill(cbd_read *read, cbd_query *query, const char *const *names, size_t n, const struct plan *plan,
                       cbd_pin *shared, struct window *window, cbd_error *error)
{
    struct floors floors;
    size_t room = 2 * plan->n + 2; /* of rows and of deletes, and of paths */
    read->groups = room <= GROUPS_FEW ? read->few : calloc(room, sizeof *read->groups);
    struct change *changes = is_delta(window) ? calloc(plan->n + 1, sizeof *changes) : NULL;
    cbd_status status = CBD_STATUS_OK;
    if (read->groups == NULL || (is_delta(window) && changes == NULL))
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu groups", plan->n);
    if (status == CBD_STATUS_OK)
        status = cbdi_floors_at(read->stage, read->epoch, &floors, error);
    if (status == CBD_STATUS_OK && window->by == CBD_AT_COMMON) {
        window->by = CBD_AT_ORDINAL;
        window->at = common_ordinal(read->stage, names, n, &floors);
        if (window->since != NULL && *window->since > window->at)
            status = since_above(window, error);
    } else if (status == CBD_STATUS_OK && window->by == CBD_AT_ORDINAL) {
        status = at_check(read->stage, names, n, window->at, &floors, error);
    }
    if (window->by == CBD_AT_ORDINAL)
        read->ordinal = window->at;
    struct moment moment = {window->by, window->at, read->epoch};
    for (size_t i = 1; status == CBD_STATUS_OK && i < plan->n; i++) {
        struct version version;
        if (window->by == CBD_AT_ORDINAL && cbdi_floor_of_id(&floors, plan->columns[i]->name_id) == 0)
            continue; /* the read's epoch shows nothing of it: what is there now was sealed later */
        status = window->by != CBD_AT_NEWEST
                     ? cbdi_version_at(read->stage, plan->columns[i], &moment, &version, &plan->pins[i], error)
                     : cbdi_find_version(read->stage, plan->columns[i], read->epoch, &version, error);
        if (status == CBD_STATUS_NOT_FOUND)
            status = CBD_STATUS_OK; /* born later, or never sealed */
        else if (status == CBD_STATUS_OK)
            status = add_column(read, query, plan->columns[i], &version, shared ? shared : plan->pins[i], &floors, window,
                                changes != NULL ? &changes[i] : NULL, error);
    }
    for (size_t i = 1; status == CBD_STATUS_OK && changes != NULL && i < plan->n; i++)
        if (changes[i].count != 0)
            status = add_deletes(read, query, &changes[i], changes, plan->n, shared ? shared : plan->pins[i], &floors, error);
    if (status == CBD_STATUS_OK && !is_delta(window) && asks_paths(names, n))
        status = add_paths(read, query, &floors, error);
    for (size_t i = 0; changes != NULL && i < plan->n; i++) {
        cbdi_row_map_release(changes[i].all);
        free(changes[i].deletes);
    }
    free(changes);
    return status;
}

static cbd_status try_read(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_snapshot *snapshot,
                           struct window window, uint64_t *epoch, bool *outdated, cbd_read **out, cbd_error *error)
{
    struct plan plan;
    cbd_read *read = calloc(1, sizeof *read);
    if (read == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a read");
    read->stage = stage;
    cbdi_stage_retain(stage);

    cbd_status status = begin(stage, &window);
    if (status == CBD_STATUS_OK) {
        status = make_plan(stage, names, n, &plan, error);
        end(stage);
    }
    if (status != CBD_STATUS_OK) {
        cbd_read_release(read);
        return status;
    }
    size_t now = window.by != CBD_AT_NEWEST && plan.n > 1 ? 1 : plan.n; /* of the past only the floors are pinned here */
    if (snapshot != NULL)
        read->epoch = snapshot->epoch;
    else
        status = cbdi_pin_take(stage, plan.columns, plan.attributes, now, window.at_once, plan.pins, &read->epoch, error);
    bool pinned = status == CBD_STATUS_OK && snapshot == NULL;
    if (status == CBD_STATUS_OK) {
        status = begin(stage, &window);
        if (status == CBD_STATUS_OK) {
            if (snapshot == NULL)
                status = cbdi_columns_refresh(stage, error);
            *outdated = snapshot == NULL && stage->column_count != plan.known;
            if (status == CBD_STATUS_OK && !*outdated)
                status = fill(read, query, names, n, &plan, snapshot ? snapshot->pin : NULL, &window, error);
            end(stage);
        }
    }
    for (size_t i = 0; pinned && i < plan.n; i++)
        cbd_pin_release(plan.pins[i]); /* the groups have their own references */
    free_plan(&plan);
    *epoch = read->epoch;
    if (status != CBD_STATUS_OK || *outdated) {
        cbd_read_release(read);
        return status;
    }
    *out = read;
    return CBD_STATUS_OK;
}

/* A column that came since the names were looked up may have its first version at the pinned epoch, in one seal with
 * those of others: then all is done again. What is aligned is a state of the epoch that the read began with: seals may overtake it, and then there is a newer one. */
static cbd_status make_read(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_snapshot *snapshot,
                            const struct window *window, cbd_read **out, cbd_error *error)
{
    bool aligned = window->by != CBD_AT_NEWEST && window->by != CBD_AT_ORDINAL;
    cbd_status status;
    int tries = 0;
    for (;;) {
        uint64_t epoch = 0;
        bool outdated = false;
        status = try_read(stage, query, names, n, snapshot, *window, &epoch, &outdated, out, error);
        if (status == CBD_STATUS_OK && outdated)
            continue;
        if (!aligned || status != CBD_STATUS_OUT_OF_RANGE || epoch == load64(&stage->directory->epoch) || ++tries == ALIGN_TRIES)
            return status;
    }
}

/* window: that of the range, which a read keeps that opens later. */
static cbd_status read_window(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_range *range,
                              const struct window *window, cbd_read **read, cbd_error *error)
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
    if (status == CBD_STATUS_OK && atomic_load(&query->running))
        status = window->at_once ? CBD_STATUS_TIMEOUT : read_later(stage, query, names, n, range, read, error);
    else if (status == CBD_STATUS_OK)
        status = make_read(stage, query, names, n, NULL, window, read, error);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_read_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, cbd_read **read,
                               cbd_error *error)
{
    return cbd_read_range(stage, query, names, n, NULL, read, error);
}

cbd_status cbd_read_range(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_range *range,
                          cbd_read **read, cbd_error *error)
{
    struct window window = {0};
    if (read != NULL)
        *read = NULL;
    if (range != NULL) {
        window.by = range->at_what;
        window.at = range->at;
        window.since = range->has_since ? &range->since : NULL;
    }
    if (window.by > CBD_AT_NEAREST_STAMP)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "at_what is %u: expected 0 to %u, CBD_AT_*", window.by,
                         (unsigned)CBD_AT_NEAREST_STAMP);
    if (window.since != NULL && (window.by == CBD_AT_STAMP || window.by == CBD_AT_NEAREST_STAMP))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "since, an ordinal, together with a stamp: read what changed up to an ordinal, or the state at a stamp");
    if (window.by == CBD_AT_ORDINAL && window.since != NULL && range->since > range->at)
        return since_above(&window, error);
    return read_window(stage, query, names, n, range, &window, read, error);
}

cbd_status cbd_try_read_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, cbd_read **read,
                                   cbd_error *error)
{
    const struct window window = {.at_once = true};
    return read_window(stage, query, names, n, NULL, &window, read, error);
}

/* The query of "/", a reference of the library's own; the first time it is made. */
static cbd_status root_of(cbd_stage *stage, const struct window *window, cbd_query **root, cbd_error *error)
{
    *root = NULL;
    if (begin(stage, window) != CBD_STATUS_OK)
        return CBD_STATUS_TIMEOUT;
    *root = stage->root != NULL ? cbdi_query_retain(stage->root) : NULL;
    end(stage);
    if (*root != NULL || window->at_once)
        return *root != NULL ? CBD_STATUS_OK : CBD_STATUS_TIMEOUT;
    cbd_query *made;
    cbd_status status = cbd_root_query(stage, &made, error);
    if (status == CBD_STATUS_OK) {
        *root = cbdi_query_retain(made);
        cbd_query_release(made);
    }
    return status;
}

static cbd_status latest(cbd_stage *stage, const char *name, const struct window *window, const cbd_read_group **out, cbd_error *error)
{
    cbd_query *root = NULL;
    cbd_read *read = NULL;
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "group: expected a place for it, got NULL");
    *out = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_names_check(&name, 1, false, error);
    if (status == CBD_STATUS_OK)
        status = root_of(stage, window, &root, error);
    if (status == CBD_STATUS_OK)
        status = make_read(stage, root, &name, 1, NULL, window, &read, error);
    if (status == CBD_STATUS_OK && read->count == 0)
        status = cbdi_fail(error, CBD_STATUS_NOT_FOUND, "\"%.200s\" has no sealed value on the prim \"/\" at epoch %llu", name,
                           (unsigned long long)read->epoch);
    if (status == CBD_STATUS_OK) {
        cbd_read_group *view = &read->groups[read->next++]->view;
        *out = view;
        if (view->schema.kind == CBD_KIND_FIXED) {
            if (view->index_map != NULL) { /* one row only: cut it out */
                view->data = (const uint8_t *)view->data + view->index_map[0] * view->row_bytes;
                view->index_map = NULL;
            }
            view->rows = 1;
            view->contiguous = 1;
            view->ndim--;
            memmove(view->shape, view->shape + 1, sizeof view->shape - sizeof view->shape[0]);
        }
    }
    cbd_read_release(read);
    cbdi_query_drop(root);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_latest(cbd_stage *stage, const char *name, const cbd_read_group **group, cbd_error *error)
{
    const struct window window = {.at_once = false};
    return latest(stage, name, &window, group, error);
}

cbd_status cbd_try_latest(cbd_stage *stage, const char *name, const cbd_read_group **group, cbd_error *error)
{
    const struct window window = {.at_once = true};
    return latest(stage, name, &window, group, error);
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
        status = cbdi_pin_take(stage, plan.columns, plan.attributes, plan.n, false, plan.pins, &epoch, error);
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
        status = make_read(snapshot->stage, query, names, n, snapshot, &window, read, error);
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
