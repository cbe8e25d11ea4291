/* History: the state as of an ordinal or of a seal's stamp (rules O4, V5), and the deletes that a column
 * remembers (O7). What changed of rows, their ordinals tell: see read.c.
 */
#include "client.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS 16
#define RING_ATTEMPTS 1000 /* a ring is replaced by three stores */

cbd_status cbdi_version_at(cbd_stage *stage, struct column *column, const struct moment *moment, struct version *version,
                           cbd_pin **pin, cbd_error *error)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct version found;
        uint64_t epoch = moment->by == CBD_AT_ORDINAL ? load64(&stage->directory->epoch) : moment->epoch;
        *pin = NULL;
        cbd_status status = cbdi_find_version_at(stage, column, moment, epoch, &found, error);
        if (status != CBD_STATUS_OK)
            return status;
        uint64_t last = found.death - 1 < epoch ? found.death - 1 : epoch;
        status = cbdi_pin_past(stage, column, last, pin, error);
        if (status != CBD_STATUS_OK)
            return status;
        if (*pin == NULL) {
            if (last < epoch || moment->by != CBD_AT_ORDINAL)
                break; /* it was given up, and no later look finds it */
            continue;
        }
        /* Between look and pin the slot may have become another version's. */
        status = cbdi_find_version(stage, column, last, version, error);
        if (status == CBD_STATUS_OK && version->birth == found.birth)
            return status;
        cbd_pin_release(*pin);
        *pin = NULL;
        if (status != CBD_STATUS_OK && status != CBD_STATUS_NOT_FOUND)
            return status;
    }
    return cbdi_not_retained(column, moment, error);
}

/* ---- tombstones ----------------------------------------------------------------------- */

/* Finds the ring. There is never the same capacity twice, so that place and size which
 * were seen between two looks at one capacity belong together. */
static cbd_status find_ring(cbd_stage *stage, const struct column *column, const cbd_abi_tombstone_row **rows, uint64_t *size,
                            cbd_error *error)
{
    const cbd_abi_attribute_entry *entry = column->entry;
    for (int attempt = 0; attempt < RING_ATTEMPTS; attempt++) {
        uint64_t capacity = load64(&entry->tombstone_capacity);
        uint64_t segment = load64(&entry->tombstones.segment), offset = load64(&entry->tombstones.offset_bytes);
        const uint8_t *bytes;
        struct segment *where;
        if (capacity == 0 || load64(&entry->tombstone_capacity) != capacity) {
            sched_yield();
            continue;
        }
        if (capacity > UINT64_MAX / sizeof(cbd_abi_tombstone_row))
            return cbdi_fail(error, CBD_STATUS_INTERNAL, "attribute \"%.*s\" has room for %llu deletes", (int)column->name_bytes,
                             column->name, (unsigned long long)capacity);
        cbd_status status = cbdi_place(stage, segment, offset, capacity * sizeof(cbd_abi_tombstone_row), "a ring of deletes",
                                       &bytes, &where, error);
        if (status != CBD_STATUS_OK)
            return status;
        where->kept = true;
        *rows = (const cbd_abi_tombstone_row *)bytes;
        *size = capacity;
        return CBD_STATUS_OK;
    }
    return cbdi_fail(error, CBD_STATUS_TIMEOUT, "attribute \"%.*s\": its ring of deletes is being replaced; try again",
                     (int)column->name_bytes, column->name);
}

static int by_place(const void *a, const void *b)
{
    uint32_t x = ((const struct tombstone *)a)->place, y = ((const struct tombstone *)b)->place;
    return (x > y) - (x < y);
}

/* Collects from a ring, the newest first: the ordinals of deletes never rise again on the way back. */
static size_t collect(const cbd_query *query, const cbd_abi_tombstone_row *rows, uint64_t size, uint64_t count, uint64_t epoch,
                      uint64_t since, uint64_t end, uint8_t *seen, struct tombstone *list)
{
    size_t found = 0;
    for (uint64_t n = count; n > 0 && count - n < size; n--) {
        const cbd_abi_tombstone_row *row = &rows[(n - 1) % size];
        uint64_t shown = load64(&row->epoch);
        struct tombstone t = {load64(&row->path_id), load64(&row->ordinal), 0};
        if (shown > epoch || load64(&row->epoch) != shown || t.ordinal > end)
            continue;
        if (t.ordinal <= since)
            break;
        uint32_t place = cbdi_query_place(query, t.prim);
        if (place == 0 || seen[place - 1])
            continue;
        seen[place - 1] = 1;
        t.place = place - 1;
        list[found++] = t;
    }
    return found;
}

cbd_status cbdi_tombstones(cbd_query *query, struct column *column, uint64_t epoch, uint64_t since, uint64_t end,
                           struct tombstone **list, size_t *found, cbd_error *error)
{
    const cbd_abi_tombstone_row *rows = NULL;
    uint64_t size = 0;
    cbd_status status = CBD_STATUS_OK;
    *list = NULL;
    *found = 0;
    if (load64(&column->entry->tombstone_count) != 0 && query->count != 0) {
        uint8_t *seen = calloc(query->count, sizeof *seen);
        *list = malloc(query->count * sizeof **list);
        if (seen == NULL || *list == NULL)
            status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the deletes of %llu prims",
                               (unsigned long long)query->count);
        while (status == CBD_STATUS_OK) {
            status = find_ring(query->stage, column, &rows, &size, error);
            if (status != CBD_STATUS_OK)
                break;
            *found = collect(query, rows, size, load64(&column->entry->tombstone_count), epoch, since, end, seen, *list);
            if (load64(&column->entry->tombstone_capacity) == size)
                break;
            /* A ring that was replaced meanwhile stays, but not for a broker that starts again. */
            memset(seen, 0, query->count * sizeof *seen);
        }
        if (status == CBD_STATUS_OK)
            qsort(*list, *found, sizeof **list, by_place);
        free(seen);
    }
    uint64_t frontier = load64(&column->entry->frontier_ordinal); /* after the rows: it rises before they go */
    if (status == CBD_STATUS_OK && frontier > since)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_RANGE,
                           "attribute \"%.*s\": deletes after ordinal %llu are not all known any more, only those after %llu; "
                           "read the newest state as a whole", (int)column->name_bytes, column->name,
                           (unsigned long long)since, (unsigned long long)frontier);
    if (status != CBD_STATUS_OK) {
        free(*list);
        *list = NULL;
        *found = 0;
    }
    return status;
}
