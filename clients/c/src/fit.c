/* Which column of a name a write is for. A name has a column for each schema (L6): the
 * write takes one that accepts it, and where none does the broker makes another,
 * unless the query's prims carry the name in sealed state: then what differs is the
 * error, at submission (R6). What is not sealed only the broker knows.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

/* Columns stay until the stage goes: the list is the caller's to free, they are not. */
static cbd_status columns_of(cbd_stage *stage, const char *name, size_t length, struct column ***out, size_t *n,
                             cbd_error *error)
{
    *out = NULL;
    *n = 0;
    pthread_mutex_lock(&stage->cache_lock);
    cbd_status status = cbdi_columns_refresh(stage, error);
    size_t room = 1;
    struct column *c = NULL;
    if (status == CBD_STATUS_OK && name == NULL)
        room = stage->column_count;
    while (status == CBD_STATUS_OK && name != NULL && (c = cbdi_column_named(stage, name, length, c)) != NULL)
        room++;
    struct column **list = calloc(room + 1, sizeof *list);
    if (status == CBD_STATUS_OK && list == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu columns", room);
    if (status == CBD_STATUS_OK && name != NULL)
        while ((c = cbdi_column_named(stage, name, length, c)) != NULL)
            list[(*n)++] = c;
    if (status == CBD_STATUS_OK && name == NULL)
        for (uint32_t i = CBD_FLOOR_COLUMN + 1; i < stage->column_count; i++)
            if (stage->columns[i]->name_bytes != 0)
                list[(*n)++] = stage->columns[i];
    pthread_mutex_unlock(&stage->cache_lock);
    if (status == CBD_STATUS_OK)
        *out = list;
    else
        free(list);
    return status;
}

/* The first of the columns that prims of the query carry in sealed state, and the first
 * such prim; NULL: none. Columns that are NULL are left out. */
static cbd_status carried(cbd_stage *stage, cbd_query *query, struct column *const *columns, size_t n,
                          struct column **which, uint64_t *prim, cbd_error *error)
{
    cbd_status status = CBD_STATUS_OK;
    *which = NULL;
    for (size_t i = 0; i < n && status == CBD_STATUS_OK && *which == NULL; i++) {
        cbd_pin *pin = NULL;
        uint64_t epoch = 0;
        struct version version;
        struct row_map *map = NULL;
        if (columns[i] == NULL)
            continue;
        status = cbdi_pin_take(stage, &columns[i], &columns[i]->index, 1, false, &pin, &epoch, error);
        if (status != CBD_STATUS_OK || epoch == 0)
            continue; /* 0: nothing was ever sealed */
        pthread_mutex_lock(&stage->cache_lock);
        status = cbdi_find_version(stage, columns[i], epoch, &version, error);
        if (status == CBD_STATUS_OK)
            status = cbdi_row_map(query, &version, epoch, &map, error);
        else if (status == CBD_STATUS_NOT_FOUND)
            status = CBD_STATUS_OK; /* never sealed, or born later */
        if (map != NULL && map->count != 0) {
            *which = columns[i];
            *prim = map->prims[0];
        }
        cbdi_row_map_release(map);
        pthread_mutex_unlock(&stage->cache_lock);
        cbd_pin_release(pin);
    }
    return status;
}

/* Whether a delete of this client may wait for its seal: then sealed state does not tell
 * what a write of the name may be. One ordinal for all names, which errs to the broker's side. */
static bool delete_unsealed(cbd_stage *stage, const char *name)
{
    uint64_t highest = atomic_load(&stage->deleted_highest), floor = 0;
    return highest != 0 && (cbd_write_floor(stage, name, &floor, NULL) != CBD_STATUS_OK || floor < highest);
}

cbd_status cbdi_fit(cbd_stage *stage, cbd_query *query, const char *name, size_t length, cbdi_try *attempt, void *context,
                    cbd_error *error)
{
    struct column **columns, *match = NULL, *have = NULL;
    size_t n, others = 0;
    uint64_t prim;
    cbd_error why = {CBD_STATUS_OK, ""}, first = why;
    cbd_status status = columns_of(stage, name, length, &columns, &n, error);
    if (status != CBD_STATUS_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        cbd_status refused = attempt(context, &columns[i]->schema, &why);
        if (refused == CBD_STATUS_OK && match == NULL) {
            match = columns[i];
            continue;
        }
        if (refused != CBD_STATUS_OK && first.status == CBD_STATUS_OK)
            first = why;
        columns[others++] = columns[i]; /* others <= i */
    }
    if (others != 0 && !delete_unsealed(stage, name)) {
        status = carried(stage, query, columns, others, &have, &prim, error);
        if (status == CBD_STATUS_OK && have != NULL)
            status = attempt(context, &have->schema, error); /* the one that counts says what differs */
        else if (status == CBD_STATUS_OK && match == NULL && query->count == 0 && !atomic_load(&query->running))
            status = cbdi_fail(error, first.status, "%s", first.text); /* nothing to make a column of */
    }
    free(columns);
    return status == CBD_STATUS_OK ? attempt(context, match != NULL ? &match->schema : NULL, error) : status;
}

cbd_status cbdi_carried_schema(cbd_stage *stage, cbd_query *query, const char *name, size_t length, cbd_schema *schema,
                               size_t *schemas, bool *found, cbd_error *error)
{
    struct column **columns, *have = NULL;
    uint64_t prim;
    *found = false;
    cbd_status status = columns_of(stage, name, length, &columns, schemas, error);
    if (status == CBD_STATUS_OK && *schemas == 1)
        have = columns[0];
    else if (status == CBD_STATUS_OK)
        status = carried(stage, query, columns, *schemas, &have, &prim, error);
    if (status == CBD_STATUS_OK && have != NULL) {
        *schema = have->schema;
        *found = true;
    }
    free(columns);
    return status;
}

cbd_status cbdi_insert_check(cbd_stage *stage, cbd_query *query, const char *name, cbd_error *error)
{
    struct column **columns, *have = NULL;
    size_t n;
    uint64_t prim = 0;
    const char *path = "";
    uint32_t path_bytes = 0;
    if (atomic_load(&stage->deleted_highest) != 0)
        return CBD_STATUS_OK; /* the broker will say */
    cbd_status status = columns_of(stage, NULL, 0, &columns, &n, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = carried(stage, query, columns, n, &have, &prim, error);
    free(columns);
    if (status != CBD_STATUS_OK || have == NULL)
        return status;
    pthread_mutex_lock(&stage->cache_lock);
    status = cbdi_string(stage, prim, &path, &path_bytes, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status != CBD_STATUS_OK)
        return status;
    return cbdi_fail(error, CBD_STATUS_ALREADY_EXISTS,
                     "attribute \"%.200s\": prim %.*s exists: it carries attribute \"%.*s\"; INSERT is for prims that carry none, use UPSERT",
                     name, (int)(path_bytes < 200 ? path_bytes : 200), path, (int)(have->name_bytes < 200 ? have->name_bytes : 200), have->name);
}
