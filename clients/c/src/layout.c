/* Row maps: which of a query's prims a version holds, and in which rows.
 *
 * A layout lists rows {path, birth, death}; it only gains rows, and its generation
 * changes exactly when membership does (L2). So a map made once for (query,
 * generation) serves every version of that generation, and a read of a warm query
 * looks nothing up. With cache_lock held.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

#define NO_ROW UINT32_MAX

static uint64_t mix(uint64_t x) /* the finalizer of SplitMix64 (Steele, Lea, Flood 2014) */
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Path id → its first place in the query: open addressing, half full at most. */
static bool make_table(cbd_query *query)
{
    if (query->table != NULL)
        return true;
    uint64_t room = 8;
    while (room < query->count * 2)
        room *= 2;
    query->table = calloc(room, sizeof *query->table);
    if (query->table == NULL)
        return false;
    query->table_mask = room - 1;
    for (uint64_t i = 0; i < query->count; i++) {
        uint64_t at = mix(query->ids[i]) & query->table_mask;
        while (query->table[at] != 0 && query->ids[query->table[at] - 1] != query->ids[i])
            at = (at + 1) & query->table_mask;
        if (query->table[at] == 0)
            query->table[at] = (uint32_t)i + 1;
    }
    return true;
}

uint32_t cbdi_query_place(const cbd_query *query, uint64_t id)
{
    uint64_t at = mix(id) & query->table_mask;
    while (query->table[at] != 0 && query->ids[query->table[at] - 1] != id)
        at = (at + 1) & query->table_mask;
    return query->table[at];
}

void cbdi_row_map_release(struct row_map *map)
{
    if (map == NULL || atomic_fetch_sub(&map->refs, 1) != 1)
        return;
    free(map->index);
    free(map->prims);
    free(map);
}

/* row_of[i]: the row of the query's prim i, or NO_ROW. */
static cbd_status rows_of(cbd_query *query, const struct version *version, uint64_t epoch, uint32_t *row_of,
                          cbd_error *error)
{
    cbd_stage *stage = query->stage;
    const uint8_t *bytes;
    if (version->rows >= NO_ROW)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "a version has %llu rows, the most are %u",
                         (unsigned long long)version->rows, NO_ROW - 1);
    cbd_status status = cbdi_place(stage, version->layout.segment, version->layout.offset_bytes,
                                   sizeof(cbd_abi_layout_header) + version->rows * sizeof(cbd_abi_layout_row), "a layout",
                                   &bytes, NULL, error);
    if (status != CBD_STATUS_OK)
        return status;
    const cbd_abi_layout_row *rows = (const cbd_abi_layout_row *)(bytes + sizeof(cbd_abi_layout_header));
    for (uint64_t i = 0; i < query->count; i++)
        row_of[i] = NO_ROW;
    for (uint64_t row = 0; row < version->rows; row++) {
        uint32_t place = cbdi_query_place(query, load64(&rows[row].path_id));
        if (place != 0 && load64(&rows[row].birth) <= epoch && epoch < load64(&rows[row].death))
            row_of[place - 1] = (uint32_t)row;
    }
    for (uint64_t i = 0; i < query->count; i++) { /* a query may name a prim twice (behaviour 91) */
        uint32_t first = cbdi_query_place(query, query->ids[i]) - 1;
        if (first != i)
            row_of[i] = row_of[first];
    }
    return CBD_STATUS_OK;
}

/* Appends a prim; *contiguous stays true while the rows are a run. */
static void add_row(struct row_map *map, uint64_t prim, uint32_t row, bool *contiguous)
{
    if (map->count == 0)
        map->first_row = row;
    *contiguous = *contiguous && row == map->first_row + map->count;
    map->index[map->count] = row;
    map->prims[map->count++] = prim;
}

/* A map without prims yet, with room for some. */
static struct row_map *empty_map(uint64_t room)
{
    struct row_map *map = calloc(1, sizeof *map);
    if (map == NULL)
        return NULL;
    atomic_store(&map->refs, 1);
    map->index = malloc((room + 1) * sizeof *map->index);
    map->prims = malloc((room + 1) * sizeof *map->prims);
    if (map->index == NULL || map->prims == NULL) {
        cbdi_row_map_release(map);
        return NULL;
    }
    return map;
}

/* A run of rows needs no index. */
static struct row_map *finish_map(struct row_map *map, bool contiguous)
{
    if (contiguous) {
        free(map->index);
        map->index = NULL;
    }
    return map;
}

static struct row_map *make_map(const cbd_query *query, const struct version *version, const uint32_t *row_of)
{
    struct row_map *map = empty_map(query->count);
    if (map == NULL)
        return NULL;
    map->generation = version->layout_generation;
    map->rows = version->rows;
    map->layout = version->layout;
    bool contiguous = true;
    for (uint64_t i = 0; i < query->count; i++)
        if (row_of[i] != NO_ROW)
            add_row(map, query->ids[i], row_of[i], &contiguous);
    return finish_map(map, contiguous);
}

struct row_map *cbdi_row_map_changed(const struct row_map *from, const uint64_t *row_ordinals, uint64_t since)
{
    uint64_t count = 0; /* mostly few of many: room is taken for those alone */
    for (uint64_t i = 0; i < from->count; i++)
        count += row_ordinals[from->index ? from->index[i] : from->first_row + i] > since;
    struct row_map *map = empty_map(count);
    bool contiguous = true;
    for (uint64_t i = 0; map != NULL && i < from->count && map->count < count; i++) {
        uint64_t row = from->index ? from->index[i] : from->first_row + i;
        if (row_ordinals[row] > since)
            add_row(map, from->prims[i], (uint32_t)row, &contiguous);
    }
    return map == NULL ? NULL : finish_map(map, contiguous);
}

struct row_map *cbdi_row_map_of_prims(uint64_t *prims, uint64_t count)
{
    struct row_map *map = calloc(1, sizeof *map);
    if (map == NULL) {
        free(prims);
        return NULL;
    }
    atomic_store(&map->refs, 1);
    map->prims = prims;
    map->count = count;
    return map;
}

cbd_status cbdi_row_map(cbd_query *query, const struct version *version, uint64_t epoch, struct row_map **out,
                        cbd_error *error)
{
    struct row_map *map;
    int i;
    for (i = 0; i < ROW_MAPS_KEPT && (map = query->maps[i]) != NULL; i++)
        if (map->generation == version->layout_generation && map->rows == version->rows &&
            map->layout.segment == version->layout.segment && map->layout.offset_bytes == version->layout.offset_bytes) {
            memmove(&query->maps[1], &query->maps[0], (size_t)i * sizeof map); /* the newest first */
            query->maps[0] = map;
            atomic_fetch_add(&map->refs, 1);
            *out = map;
            return CBD_STATUS_OK;
        }
    if (query->stage->at_once)
        return CBD_STATUS_TIMEOUT;
    uint32_t *row_of = malloc((query->count + 1) * sizeof *row_of);
    if (row_of == NULL || !make_table(query)) {
        free(row_of);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the rows of %llu prims",
                         (unsigned long long)query->count);
    }
    cbd_status status = rows_of(query, version, epoch, row_of, error);
    map = status == CBD_STATUS_OK ? make_map(query, version, row_of) : NULL;
    free(row_of);
    if (map == NULL)
        return status != CBD_STATUS_OK ? status
                                       : cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the rows of %llu prims",
                                                   (unsigned long long)query->count);
    cbdi_row_map_release(query->maps[ROW_MAPS_KEPT - 1]);
    memmove(&query->maps[1], &query->maps[0], (ROW_MAPS_KEPT - 1) * sizeof map);
    query->maps[0] = map;
    atomic_fetch_add(&map->refs, 1);
    *out = map;
    return CBD_STATUS_OK;
}
