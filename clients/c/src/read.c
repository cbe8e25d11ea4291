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
#include "read.h"

#include "callboard_python.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_TRIES 16

/* A read of a query that was running: it opens with the first fetch (behaviour 140). */
struct later {
    cbd_query *query;
    cbd_range range;
    size_t n;
    const char *names[]; /* the texts lie behind */
};

/* Before any look at what cache_lock guards. */
cbd_status cbdi_read_begin(cbd_stage *stage, const struct window *window)
{
    if (!window->at_once)
        pthread_mutex_lock(&stage->cache_lock);
    else if (pthread_mutex_trylock(&stage->cache_lock) != 0)
        return CBD_STATUS_TIMEOUT;
    stage->at_once = window->at_once;
    return CBD_STATUS_OK;
}

void cbdi_read_end(cbd_stage *stage)
{
    stage->at_once = false;
    pthread_mutex_unlock(&stage->cache_lock);
}

void cbd_read_release(cbd_read *read)
{
    if (read == NULL)
        return;
    while (read->next < read->count)
        cbdi_group_release(read->groups[read->next++]);
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
    return cbd_fetch_read_next_in(read, 0, 0, group, error);
}

cbd_status cbd_fetch_read_next_in(cbd_read *read, uint32_t device_type, uint32_t device_id, const cbd_read_group **group, cbd_error *error)
{
    struct group *given;
    if (read == NULL || group == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "read or the place for the group is NULL");
    *group = NULL;
    cbd_status status = read->later != NULL ? open_later(read, error) : CBD_STATUS_OK;
    if (status != CBD_STATUS_OK)
        return status;
    if (read->next == read->count)
        return cbdi_fail(error, CBD_STATUS_END, "all %zu groups were fetched", read->count);
    status = cbdi_group_in(read->groups[read->next], device_type, device_id, &given, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbdi_group_release(read->groups[read->next++]); /* given has a reference of its own */
    *group = &given->view;
    return CBD_STATUS_OK;
}

void cbdi_plan_free(struct plan *plan)
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
cbd_status cbdi_plan_make(cbd_stage *stage, const char *const *names, size_t n, struct plan *plan, cbd_error *error)
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
            cbdi_plan_free(plan);
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
    struct change *changes = cbdi_is_delta(window) ? calloc(plan->n + 1, sizeof *changes) : NULL;
    cbd_status status = CBD_STATUS_OK;
    if (read->groups == NULL || (cbdi_is_delta(window) && changes == NULL))
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
            status = cbdi_add_column(read, query, plan->columns[i], &version, shared ? shared : plan->pins[i], &floors, window,
                                changes != NULL ? &changes[i] : NULL, error);
    }
    for (size_t i = 1; status == CBD_STATUS_OK && changes != NULL && i < plan->n; i++)
        if (changes[i].count != 0)
            status = cbdi_add_deletes(read, query, &changes[i], changes, plan->n, shared ? shared : plan->pins[i], &floors, error);
    if (status == CBD_STATUS_OK && !cbdi_is_delta(window) && asks_paths(names, n))
        status = cbdi_add_paths(read, query, &floors, error);
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

    cbd_status status = cbdi_read_begin(stage, &window);
    if (status == CBD_STATUS_OK) {
        status = cbdi_plan_make(stage, names, n, &plan, error);
        cbdi_read_end(stage);
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
        status = cbdi_read_begin(stage, &window);
        if (status == CBD_STATUS_OK) {
            if (snapshot == NULL)
                status = cbdi_columns_refresh(stage, error);
            *outdated = snapshot == NULL && stage->column_count != plan.known;
            if (status == CBD_STATUS_OK && !*outdated)
                status = fill(read, query, names, n, &plan, snapshot ? snapshot->pin : NULL, &window, error);
            cbdi_read_end(stage);
        }
    }
    for (size_t i = 0; pinned && i < plan.n; i++)
        cbd_pin_release(plan.pins[i]); /* the groups have their own references */
    cbdi_plan_free(&plan);
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
cbd_status cbdi_read_make(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_snapshot *snapshot,
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
        status = cbdi_read_make(stage, query, names, n, NULL, window, read, error);
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
