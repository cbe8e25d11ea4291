/* The directory: columns, strings, versions and floors, as the broker publishes
 * them (protocol/directory.go). Read-only memory of a peer that may be broken: every
 * Ref is checked against its segment, every count against its bound, every word is
 * loaded once.
 *
 * Tables double: page k holds base << k entries. Pages, strings and slot pages never
 * move and never go, so pointers to them are kept.
 *
 * Everything here runs with cache_lock held.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

#define COLUMNS_MAX (1u << 24)
#define SLOT_PAGES_MAX (1u << 16) /* a chain that is longer is a loop */

uint64_t cbdi_hash(const char *text, size_t length) /* FNV-1a, 64 bits (Fowler, Noll, Vo) */
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Entry i of a doubling table. */
static cbd_status table_entry(cbd_stage *stage, const cbd_abi_ref *pages, size_t page_count, uint64_t base, uint64_t i,
                              size_t entry_bytes, const char *what, const uint8_t **entry, cbd_error *error)
{
    uint64_t place = i, size = base;
    size_t page = 0;
    for (; page < page_count && place >= size; page++, size <<= 1)
        place -= size;
    if (page == page_count)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%s %llu: the table has %zu pages at most", what,
                         (unsigned long long)i, page_count);
    const uint8_t *bytes;
    struct segment *where;
    uint64_t segment = load64(&pages[page].segment), offset = load64(&pages[page].offset_bytes);
    cbd_status status = cbdi_place(stage, segment, offset, size * entry_bytes, what, &bytes, &where, error);
    if (status == CBD_STATUS_OK) {
        where->kept = true;
        *entry = bytes + place * entry_bytes;
    }
    return status;
}

#define PAGES(field) stage->directory->field, sizeof stage->directory->field / sizeof stage->directory->field[0]

/* ---- strings ------------------------------------------------------------------- */

cbd_status cbdi_string(cbd_stage *stage, uint64_t id, const char **text, uint32_t *length, cbd_error *error)
{
    uint64_t low = id & ((UINT64_C(1) << 40) - 1), tag = stage->directory->identity_tag & 0xffffff;
    if (low == 0 || id >> 40 != tag)
        return cbdi_fail(error, CBD_STATUS_NOT_FOUND, "id 0x%llx is not of this stage's generation (its ids start with 0x%06llx)",
                         (unsigned long long)id, (unsigned long long)tag);
    uint64_t count = load64(&stage->directory->string_count);
    if (low > count)
        return cbdi_fail(error, CBD_STATUS_NOT_FOUND, "id 0x%llx is number %llu of %llu strings", (unsigned long long)id,
                         (unsigned long long)low, (unsigned long long)count);
    const uint8_t *at, *bytes;
    cbd_status status = table_entry(stage, PAGES(string_pages), CBD_STRING_PAGE_BASE, low - 1, sizeof(cbd_abi_string_entry),
                                    "string entry", &at, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_abi_string_entry entry;
    memcpy(&entry, at, sizeof entry);
    if (entry.length_bytes > CBD_PATH_BYTES_MAX)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "string %llu has %u bytes, the longest may have %u",
                         (unsigned long long)low, entry.length_bytes, CBD_PATH_BYTES_MAX);
    if (entry.length_bytes == 0) {
        *text = "";
        *length = 0;
        return CBD_STATUS_OK;
    }
    struct segment *segment;
    status = cbdi_segment(stage, entry.bytes.segment, &segment, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (entry.bytes.offset_bytes > segment->size_bytes ||
        entry.length_bytes > segment->size_bytes - entry.bytes.offset_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "string %llu, %u bytes at offset %llu, leaves segment %llu of %llu bytes",
                         (unsigned long long)low, entry.length_bytes, (unsigned long long)entry.bytes.offset_bytes,
                         (unsigned long long)segment->id, (unsigned long long)segment->size_bytes);
    segment->kept = true;
    bytes = segment->base + entry.bytes.offset_bytes;
    *text = (const char *)bytes;
    *length = entry.length_bytes;
    return CBD_STATUS_OK;
}

/* ---- columns --------------------------------------------------------------------- */

static cbd_status learn_column(cbd_stage *stage, uint32_t index, struct column **out, cbd_error *error)
{
    const uint8_t *at;
    cbd_status status = table_entry(stage, PAGES(attribute_pages), CBD_ATTRIBUTE_PAGE_BASE, index,
                                    sizeof(cbd_abi_attribute_entry), "attribute entry", &at, error);
    if (status != CBD_STATUS_OK)
        return status;
    const cbd_abi_attribute_entry *entry = (const cbd_abi_attribute_entry *)at;
    struct column *column = calloc(1, sizeof *column);
    if (column == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for column %u", index);
    column->index = index;
    column->entry = entry;
    column->name_id = load64(&entry->name_id);
    column->name = "";
    if (index != CBD_FLOOR_COLUMN && load32(&entry->state) == CBD_ATTRIBUTE_LIVE) {
        cbd_abi_schema abi;
        uint64_t row_bytes = 0;
        memcpy(&abi, &entry->schema, sizeof abi);
        cbdi_schema_from_abi(&abi, &column->schema);
        column->row_bytes = load64(&entry->row_bytes);
        status = cbdi_string(stage, column->name_id, &column->name, &column->name_bytes, error);
        if (status == CBD_STATUS_OK && column->schema.row_ndim > CBD_ROW_NDIM_MAX) /* of whatever kind: others count on it */
            status = cbdi_fail(error, CBD_STATUS_INTERNAL, "column %u has rows of %u dimensions, the most are %u", index,
                               column->schema.row_ndim, CBD_ROW_NDIM_MAX);
        if (status == CBD_STATUS_OK && (column->schema.kind == CBD_KIND_FIXED || column->schema.kind == CBD_KIND_ARRAY)) {
            cbd_error why = {CBD_STATUS_OK, ""};
            cbd_status checked = cbd_schema_row_bytes(&column->schema, &row_bytes, &why);
            if (column->schema.kind == CBD_KIND_ARRAY) /* its versions hold tables of rows */
                row_bytes = sizeof(cbd_abi_row_ref);
            if (checked != CBD_STATUS_OK || row_bytes != column->row_bytes)
                status = cbdi_fail(error, CBD_STATUS_INTERNAL, "column %u says %llu bytes a row, its schema makes %llu: %.200s",
                                   index, (unsigned long long)column->row_bytes, (unsigned long long)row_bytes, why.text);
        }
        if (status != CBD_STATUS_OK) {
            free(column);
            return status;
        }
        column->name_hash = cbdi_hash(column->name, column->name_bytes);
    }
    *out = column;
    return CBD_STATUS_OK;
}

static void put_in_bucket(cbd_stage *stage, struct column *column)
{
    struct column **end = &stage->buckets[column->name_hash & (stage->bucket_count - 1)];
    while (*end != NULL) /* at the end: columns of one name stay in the order of their indices */
        end = &(*end)->next_of_bucket;
    column->next_of_bucket = NULL;
    *end = column;
}

static bool grow(cbd_stage *stage, uint32_t count)
{
    if (count <= stage->columns_room)
        return true;
    uint32_t room = stage->columns_room ? stage->columns_room : 64;
    while (room < count)
        room *= 2;
    struct column **columns = realloc(stage->columns, room * sizeof *columns);
    if (columns == NULL)
        return false;
    stage->columns = columns;
    struct column **buckets = calloc(room, sizeof *buckets);
    if (buckets == NULL)
        return false;
    free(stage->buckets);
    stage->buckets = buckets;
    stage->bucket_count = stage->columns_room = room;
    for (uint32_t i = 1; i < stage->column_count; i++)
        put_in_bucket(stage, stage->columns[i]);
    return true;
}

cbd_status cbdi_columns_refresh(cbd_stage *stage, cbd_error *error)
{
    uint32_t count = load32(&stage->directory->attribute_count);
    if (count == stage->column_count)
        return CBD_STATUS_OK;
    if (count < stage->column_count || count > COLUMNS_MAX)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "the directory has %u columns, it had %u; the most are %u", count,
                         stage->column_count, COLUMNS_MAX);
    while (stage->column_count < count) {
        struct column *column = NULL;
        if (!grow(stage, stage->column_count + 1)) /* by what was found, not by what is claimed */
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %u columns", count);
        cbd_status status = learn_column(stage, stage->column_count, &column, error);
        if (status != CBD_STATUS_OK)
            return status;
        stage->columns[stage->column_count++] = column;
        if (column->index != CBD_FLOOR_COLUMN)
            put_in_bucket(stage, column);
    }
    return CBD_STATUS_OK;
}

struct column *cbdi_column_named(cbd_stage *stage, const char *name, size_t length, const struct column *after)
{
    if (stage->bucket_count == 0 || length == 0)
        return NULL;
    uint64_t hash = after ? after->name_hash : cbdi_hash(name, length);
    struct column *column = after ? after->next_of_bucket : stage->buckets[hash & (stage->bucket_count - 1)];
    for (; column != NULL; column = column->next_of_bucket)
        if (column->name_hash == hash && column->name_bytes == length && memcmp(column->name, name, length) == 0)
            return column;
    return NULL;
}

void cbdi_mirrors_free(struct version_use *use)
{
    while (use->mirrors != NULL) {
        struct mirror *mirror = use->mirrors;
        use->mirrors = mirror->next;
        free(mirror);
    }
}

void cbdi_columns_free(cbd_stage *stage)
{
    for (uint32_t i = 0; i < stage->column_count; i++) {
        struct column *column = stage->columns[i];
        while (column->uses != NULL) {
            struct version_use *use = column->uses;
            column->uses = use->next;
            cbdi_mirrors_free(use);
            free(use);
        }
        free(column->pages);
        free(column);
    }
    free(stage->columns);
    free(stage->buckets);
}

/* ---- versions ----------------------------------------------------------------------- */

/* Page k of the column's chain; NULL at its end. */
static cbd_status slot_page(cbd_stage *stage, struct column *column, uint32_t k, const cbd_abi_slot_page **page,
                            cbd_error *error)
{
    *page = NULL;
    while (column->page_count <= k) {
        const cbd_abi_ref *next = column->page_count == 0 ? &column->entry->slot_pages
                                                          : &column->pages[column->page_count - 1]->next;
        uint64_t segment = load64(&next->segment); /* stored after offset_bytes, so loaded before */
        if (segment == 0)
            return CBD_STATUS_OK;
        const uint8_t *bytes;
        struct segment *where;
        uint32_t count = column->page_count;
        cbd_status status = cbdi_place(stage, segment, load64(&next->offset_bytes), sizeof(cbd_abi_slot_page),
                                       "a page of version slots", &bytes, &where, error);
        if (status != CBD_STATUS_OK)
            return status;
        /* A loop is met once the page at the last power of two comes round again (Brent 1980). */
        if (count == SLOT_PAGES_MAX || (count != 0 && (const uint8_t *)column->pages[column->lap] == bytes))
            return cbdi_fail(error, CBD_STATUS_INTERNAL, "the pages of version slots of column %u form a loop, or are more than %u",
                             column->index, SLOT_PAGES_MAX);
        if ((count & (count - 1)) == 0) { /* 0, or a power of two: the room is full */
            const cbd_abi_slot_page **pages = realloc(column->pages, (count ? 2 * count : 1) * sizeof *pages);
            if (pages == NULL)
                return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a page of column %u", column->index);
            column->pages = pages;
            column->lap = count;
        }
        where->kept = true;
        column->pages[column->page_count++] = (const cbd_abi_slot_page *)bytes;
    }
    *page = column->pages[k];
    return CBD_STATUS_OK;
}

/* Rule V4: birth, death, the other fields, birth again. A version that is dead or alive at the epoch. */
static bool take_any(const cbd_abi_version_slot *slot, uint64_t epoch, struct version *v)
{
    v->birth = load64(&slot->birth);
    v->death = load64(&slot->death);
    if (v->birth > epoch || v->birth == 0)
        return false;
    v->block.segment = load64(&slot->block.segment);
    v->block.offset_bytes = load64(&slot->block.offset_bytes);
    v->block.length_bytes = load64(&slot->block.length_bytes);
    v->rows = load64(&slot->rows);
    v->ordinal_lowest = load64(&slot->ordinal_lowest);
    v->ordinal_highest = load64(&slot->ordinal_highest);
    v->layout_generation = load64(&slot->layout_generation);
    v->layout.segment = load64(&slot->layout.segment);
    v->layout.offset_bytes = load64(&slot->layout.offset_bytes);
    v->row_ordinals.segment = load64(&slot->row_ordinals.segment);
    v->row_ordinals.offset_bytes = load64(&slot->row_ordinals.offset_bytes);
    v->flags = load32(&slot->flags);
    v->stamp_ns = load64(&slot->stamp_ns);
    v->device_number = load32(&slot->device_number);
    v->arena_generation = load64(&slot->arena_generation);
    return load64(&slot->birth) == v->birth;
}

static bool take_slot(const cbd_abi_version_slot *slot, uint64_t epoch, struct version *v)
{
    return take_any(slot, epoch, v) && v->death > epoch;
}

cbd_status cbdi_find_version(cbd_stage *stage, struct column *column, uint64_t epoch, struct version *version,
                             cbd_error *error)
{
    const cbd_abi_slot_page *page;
    uint64_t latest = load64(&column->entry->latest_slot); /* a hint; checked like any slot */
    if (latest / CBD_SLOTS_PER_PAGE < SLOT_PAGES_MAX) {
        cbd_status status = slot_page(stage, column, (uint32_t)(latest / CBD_SLOTS_PER_PAGE), &page, error);
        if (status != CBD_STATUS_OK)
            return status;
        if (page != NULL && take_slot(&page->slots[latest % CBD_SLOTS_PER_PAGE], epoch, version))
            return CBD_STATUS_OK;
    }
    for (uint32_t k = 0;; k++) {
        cbd_status status = slot_page(stage, column, k, &page, error);
        if (status != CBD_STATUS_OK)
            return status;
        if (page == NULL)
            return CBD_STATUS_NOT_FOUND;
        for (uint32_t i = 0; i < CBD_SLOTS_PER_PAGE; i++)
            if (take_slot(&page->slots[i], epoch, version))
                return CBD_STATUS_OK;
    }
}

cbd_status cbdi_not_retained(const struct column *column, const struct moment *moment, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_OUT_OF_RANGE,
                     "attribute \"%.*s\": its state as of %s %llu is not retained any more; it keeps %u versions, declare a "
                     "larger retain", (int)column->name_bytes, column->name, moment->by == CBD_AT_ORDINAL ? "ordinal" : "stamp",
                     (unsigned long long)moment->at, load32(&column->entry->retain));
}

/* What one pass over a column's versions takes: the last one that the moment has reached, and the first of all; or,
 * where `best` is known, what came after it. */
static cbd_status pass(cbd_stage *stage, struct column *column, const struct moment *moment, uint64_t epoch, bool again,
                       struct version *best, struct version *other, cbd_error *error)
{
    const cbd_abi_slot_page *page;
    struct version v;
    memset(other, 0, sizeof *other);
    for (uint32_t k = 0;; k++) {
        cbd_status status = slot_page(stage, column, k, &page, error);
        if (status != CBD_STATUS_OK || page == NULL)
            return status;
        for (uint32_t i = 0; i < CBD_SLOTS_PER_PAGE; i++) {
            if (!take_any(&page->slots[i], epoch, &v))
                continue;
            if (again ? v.birth == best->death : other->birth == 0 || v.birth < other->birth)
                *other = v;
            if (!again && (moment->by == CBD_AT_ORDINAL ? v.ordinal_lowest : v.stamp_ns) <= moment->at && v.birth > best->birth)
                *best = v;
        }
    }
}

cbd_status cbdi_find_version_at(cbd_stage *stage, struct column *column, const struct moment *moment, uint64_t epoch,
                                struct version *best, cbd_error *error)
{
    struct version other;
    memset(best, 0, sizeof *best);
    cbd_status status = pass(stage, column, moment, epoch, false, best, &other, error);
    if (status == CBD_STATUS_OK && best->birth != 0)
        status = pass(stage, column, moment, epoch, true, best, &other, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (best->birth == 0) { /* horizon 0: none was ever given up, so the first one is later */
        if (load64(&column->entry->horizon) != 0)
            return cbdi_not_retained(column, moment, error);
        *best = other;
        return moment->by == CBD_AT_NEAREST_STAMP && other.birth != 0 ? CBD_STATUS_OK : CBD_STATUS_NOT_FOUND;
    }
    if (moment->by == CBD_AT_ORDINAL && best->ordinal_highest > moment->at)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_RANGE,
                         "attribute \"%.*s\": ordinals %llu to %llu were sealed in one step, so there is no state as of %llu",
                         (int)column->name_bytes, column->name, (unsigned long long)best->ordinal_lowest,
                         (unsigned long long)best->ordinal_highest, (unsigned long long)moment->at);
    if (best->death <= epoch && other.birth == 0)
        return cbdi_not_retained(column, moment, error);
    if (moment->by == CBD_AT_NEAREST_STAMP && other.birth != 0 && other.stamp_ns - moment->at < moment->at - best->stamp_ns)
        *best = other;
    return CBD_STATUS_OK;
}

/* ---- floors (V9) ----------------------------------------------------------------------- */

cbd_status cbdi_floors_at(cbd_stage *stage, uint64_t epoch, struct floors *floors, cbd_error *error)
{
    memset(floors, 0, sizeof *floors);
    if (epoch == 0 || stage->column_count == 0)
        return CBD_STATUS_OK; /* nothing was ever sealed */
    struct version version;
    cbd_status status = cbdi_find_version(stage, stage->columns[CBD_FLOOR_COLUMN], epoch, &version, error);
    if (status == CBD_STATUS_NOT_FOUND)
        return CBD_STATUS_OK;
    const uint8_t *bytes;
    if (status == CBD_STATUS_OK)
        status = cbdi_place(stage, version.block.segment, version.block.offset_bytes, version.block.length_bytes,
                            "the table of floors", &bytes, NULL, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_abi_floor_table table;
    uint64_t room = version.block.length_bytes;
    if (room >= sizeof table)
        memcpy(&table, bytes, sizeof table);
    if (room < sizeof table || table.count > (room - sizeof table) / sizeof(cbd_abi_floor_row))
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "the table of floors at epoch %llu has %llu bytes for %llu rows",
                         (unsigned long long)epoch, (unsigned long long)room,
                         (unsigned long long)(room < sizeof table ? 0 : table.count));
    floors->global = table.global_floor;
    floors->other = table.default_floor;
    floors->stamp_ns = table.stamp_ns;
    floors->count = table.count;
    floors->rows = (const cbd_abi_floor_row *)(bytes + sizeof table);
    return CBD_STATUS_OK;
}

uint64_t cbdi_floor_of_id(const struct floors *floors, uint64_t name_id)
{
    for (uint64_t i = 0; i < floors->count; i++)
        if (floors->rows[i].name_id == name_id)
            return floors->rows[i].floor;
    return floors->other;
}

uint64_t cbdi_floor_of(cbd_stage *stage, const struct floors *floors, const char *name, size_t length)
{
    if (name == NULL)
        return floors->global;
    const struct column *column = cbdi_column_named(stage, name, length, NULL);
    if (column != NULL)
        return cbdi_floor_of_id(floors, column->name_id);
    for (uint64_t i = 0; i < floors->count; i++) {
        const char *text; /* a name that was sealed but has no column: by its text */
        uint32_t bytes;
        if (cbdi_string(stage, floors->rows[i].name_id, &text, &bytes, NULL) == CBD_STATUS_OK && bytes == length &&
            memcmp(text, name, length) == 0)
            return floors->rows[i].floor;
    }
    return floors->other;
}
