/* Random damage to everything that a reader believes: the root of the directory, attributes,
 * slots, layouts, floors, strings, the table of segments, the rows, tables and ordinals of rows,
 * tombstones, the segments' own headers.
 * Every reading function gives a value or an error: it never crashes, never goes round for ever,
 * and allocates nothing that only a number in shared memory asks for (field report A25).
 *
 *     test_damage [seed [rounds]]
 */
#include "fake_broker.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUND_SECONDS 30  /* one round takes milliseconds; what takes so long has no end */
#define HELD 4

/* No honest read of this stage needs a tenth of it. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void) { return "max_allocation_size_mb=16"; }

static cbd_error error;
static const char *const paths[] = {"/a", "/b", "/c", "/d", "/"};
static const char *const names[] = {"x", "y", "scalar", "arrays"};

static uint64_t state;

static uint64_t next(void) /* SplitMix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t below(uint64_t n) { return next() % n; }

/* ---- a stage with something of everything ------------------------------------------------ */

struct area {
    uint8_t *at;
    uint64_t bytes;
};

static struct area areas[48]; /* where damage is done */
static size_t area_count;

static void area(void *at, uint64_t bytes) { areas[area_count++] = (struct area){at, bytes}; }

static void *where(struct fake *f, cbd_abi_ref ref) { return f->segments[ref.segment - 1] + ref.offset_bytes; }

static void build(struct fake *f)
{
    uint64_t two = 2;
    int32_t rows[5] = {1, 2, 3, 4, 5};
    float pairs[4 * 2 * 3] = {0};
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    uint32_t y = fake_column(f, "y", CBD_DTYPE_FLOAT, 32, 3, 1, &two);
    uint32_t scalar = fake_column(f, "scalar", CBD_DTYPE_INT, 32, 1, 0, NULL);
    uint32_t arrays = fake_column(f, "arrays", CBD_DTYPE_INT, 32, 1, 0, NULL);
    cbd_abi_ref layout = fake_layout(f, paths, 5, 1), mixed;
    cbd_abi_tombstone_row *ring;
    uint64_t *ordinals;
    static const char *const other[] = {"/d", "/gone", "/b", "/a"};
    mixed = fake_layout(f, other, 4, 1);
    cbd_abi_floor_row floors[3] = {{fake_string(f, CBD_STRING_TOKEN, "x"), 7},
                                   {fake_string(f, CBD_STRING_TOKEN, "unborn"), 9},
                                   {fake_string(f, CBD_STRING_TOKEN, "y"), 11}};
    for (uint32_t i = 0; i < 3; i++)
        fake_publish(f, x, i, layout, 5, rows, sizeof rows, i + 1);
    fake_publish(f, x, CBD_SLOTS_PER_PAGE + 2, layout, 5, rows, sizeof rows, 4); /* on a second page */
    fake_publish(f, y, 0, mixed, 4, pairs, sizeof pairs, 1);
    cbd_abi_ref root = fake_layout(f, &paths[4], 1, 1);
    fake_publish(f, scalar, 0, root, 1, rows, sizeof rows[0], 1);
    fake_attribute(f, arrays)->schema.kind = CBD_KIND_ARRAY;
    fake_attribute(f, arrays)->row_bytes = sizeof(cbd_abi_row_ref);
    cbd_abi_ref elements = fake_alloc(f, 3, 64, NULL);
    const cbd_abi_row_ref table[5] = {{3, elements.offset_bytes, 12}, {0, 0, 0}, {3, elements.offset_bytes + 12, 4},
                                      {1, elements.offset_bytes, 8}, {3, elements.offset_bytes, 64}};
    fake_publish(f, arrays, 0, layout, 5, table, sizeof table, 3);
    cbd_abi_version_slot *newest = fake_slot(f, x, CBD_SLOTS_PER_PAGE + 2);
    newest->row_ordinals = fake_alloc(f, 3, 5 * sizeof *ordinals, (void **)&ordinals);
    for (uint64_t i = 0; i < 5; i++)
        ordinals[i] = i;
    fake_attribute(f, x)->tombstones = fake_alloc(f, 1, 8 * sizeof *ring, (void **)&ring);
    fake_attribute(f, x)->tombstone_capacity = 8;
    fake_attribute(f, x)->tombstone_count = 5;
    for (uint64_t i = 0; i < 5; i++)
        ring[i] = (cbd_abi_tombstone_row){fake_string(f, CBD_STRING_PATH, i % 2 ? "/gone" : paths[i]), i, 2};
    fake_floors(f, 0, 5, 6, floors, 3);
    fake_floors(f, 1, 5, 6, floors, 3);

    area(&f->directory->epoch, 8);
    area(&f->directory->horizon_any, 8);
    area(&f->directory->pinned_bytes_max, 24);
    area(&f->directory->retain_default, 32); /* and the counts of attributes, retired segments, strings, segments */
    area((uint8_t *)f->directory + 512, 512);
    area(f->directory->attribute_pages, 64);
    area(f->directory->string_pages, 64);
    area(f->directory->segment_pages, 64);
    for (uint32_t i = 0; i < 6; i++) /* one more than there are columns */
        area(fake_attribute(f, i), sizeof(cbd_abi_attribute_entry));
    area(ring, 8 * sizeof *ring);
    area(ordinals, 5 * sizeof *ordinals);
    area(f->segments[2] + fake_slot(f, arrays, 0)->block.offset_bytes, sizeof table);
    for (uint32_t i = 0; i < 5; i++)
        area(fake_slot(f, i, 0), 3 * sizeof(cbd_abi_version_slot));
    area((uint8_t *)fake_slot(f, x, CBD_SLOTS_PER_PAGE) - offsetof(cbd_abi_slot_page, slots), 4 * sizeof(cbd_abi_version_slot));
    area(where(f, fake_attribute(f, x)->slot_pages), 128);
    area(where(f, layout), sizeof(cbd_abi_layout_header) + 5 * sizeof(cbd_abi_layout_row));
    area(where(f, mixed), sizeof(cbd_abi_layout_header) + 4 * sizeof(cbd_abi_layout_row));
    area(f->segments[0] + fake_slot(f, CBD_FLOOR_COLUMN, 1)->block.offset_bytes, sizeof(cbd_abi_floor_table) + sizeof floors);
    area(where(f, f->directory->string_pages[0]), 16 * sizeof(cbd_abi_string_entry));
    area(f->segments[0] + ((cbd_abi_string_entry *)where(f, f->directory->string_pages[0]))->bytes.offset_bytes, 64);
    area(where(f, f->directory->segment_pages[0]), 4 * sizeof(cbd_abi_segment_entry));
    area(f->segments[0], sizeof(cbd_abi_region_header));
    area(f->segments[2], sizeof(cbd_abi_region_header));
    area(f->segments[2] + fake_slot(f, x, 0)->block.offset_bytes, 4096);
}

/* ---- damage ----------------------------------------------------------------------------- */

static uint64_t bad_word(struct fake *f, uint64_t was)
{
    const struct area *from = &areas[below(area_count)];
    switch (below(10)) {
    case 0:
        return next();
    case 1:
        return UINT64_MAX - below(3);
    case 2:
        return below(6); /* also ids of segments, whether they exist or not */
    case 3:
        return was + below(17) - 8;
    case 4:
        return was ^ UINT64_C(1) << below(64);
    case 5:
        return FAKE_SEGMENT_BYTES - below(4096);
    case 6:
        return f->used[0] - 8 * below(1024);
    case 7:
        return UINT64_C(1) << below(64);
    case 8:
        return below(UINT64_C(1) << 24); /* counts that are not at once absurd */
    default:
        return *(const uint64_t *)(const void *)(from->at + 8 * below(from->bytes / 8)); /* a word from elsewhere */
    }
}

static void damage(struct fake *f)
{
    const struct area *only = below(2) ? &areas[below(area_count)] : NULL; /* several lies that belong together */
    for (uint64_t n = 1 + below(4); n > 0; n--) {
        const struct area *a = only != NULL ? only : &areas[below(area_count)];
        uint64_t *word = (uint64_t *)(void *)(a->at + 8 * below(a->bytes / 8)), bad = bad_word(f, *word);
        switch (below(4)) {
        case 0:
            memcpy(word, &bad, 4);
            break;
        case 1:
            memcpy((uint8_t *)word + 4, &bad, 4);
            break;
        default:
            *word = bad;
        }
    }
    if (below(8) == 0) /* a segment that goes, whichever it is */
        f->directory->retired_count = (uint32_t)next();
}

/* Everything that the stage has learnt and mapped, as if it had just attached. */
static void forget(cbd_stage *stage, cbd_query *query)
{
    cbdi_columns_free(stage);
    stage->columns = NULL;
    stage->buckets = NULL;
    stage->column_count = stage->columns_room = stage->bucket_count = 0;
    cbd_query *queries[] = {query, stage->root};
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < ROW_MAPS_KEPT; i++) {
            cbdi_row_map_release(queries[q]->maps[i]);
            queries[q]->maps[i] = NULL;
        }
    cbdi_segments_unmap(stage);
}

/* ---- reading -------------------------------------------------------------------------------- */

static uint64_t worked, failed; /* calls */

static bool ok(cbd_status status)
{
    CHECK(status < CBD_STATUS_COUNT);
    status == CBD_STATUS_OK ? worked++ : failed++;
    return status == CBD_STATUS_OK;
}

static void touch(const void *at, uint64_t bytes)
{
    static volatile uint8_t sum;
    for (uint64_t i = 0; i < bytes; i++)
        sum ^= ((const uint8_t *)at)[i];
}

static void use_group(const cbd_read_group *g)
{
    CHECK(g->ndim >= 0 && g->ndim <= (int32_t)CBD_NDIM_MAX && g->schema.row_ndim <= CBD_ROW_NDIM_MAX);
    touch(g->name, strlen(g->name));
    if (g->data != NULL)
        touch(g->data, g->rows * g->row_bytes);
    for (uint64_t i = 0; g->arrays != NULL && i < g->prim_count; i++)
        touch(g->arrays[i].data, g->arrays[i].elements * g->row_bytes);
    uint64_t *ordinals = malloc((g->prim_count + 1) * sizeof *ordinals);
    CHECK(ordinals != NULL && cbd_group_row_ordinals(g, ordinals, NULL) == CBD_STATUS_OK);
    free(ordinals);
    touch(g->prims, g->prim_count * sizeof *g->prims);
    for (uint64_t i = 0; i < g->prim_count; i++)
        CHECK(g->is_delete || (g->index_map == NULL ? i : g->index_map[i]) < g->rows);
}

static const cbd_read_group *held[HELD];
static size_t held_count;

static void give_back(size_t keep)
{
    while (held_count > keep) {
        use_group(held[--held_count]); /* whatever happened since, it is still mapped */
        cbd_release_group(held[held_count]);
    }
}

static void use_read(cbd_read *read)
{
    const cbd_read_group *group;
    while (ok(cbd_fetch_read_next(read, &group, &error))) {
        use_group(group);
        if (held_count < HELD && below(16) == 0)
            held[held_count++] = group;
        else
            cbd_release_group(group);
    }
    cbd_read_release(read);
}

static cbd_cursor *cursor; /* of an earlier round, perhaps a damaged one */

static void read_everything(struct fake *f, cbd_stage *stage, cbd_query *query)
{
    cbd_read *read;
    cbd_snapshot *snapshot;
    const cbd_read_group *group;
    cbd_stage_info info;
    uint64_t number;
    static const char *const asked[] = {NULL, "x", "y", "scalar", "unborn", "nobody"};

    if (ok(cbd_read_attributes(stage, query, names, 4, &read, &error)))
        use_read(read);
    for (uint32_t i = 1; i < 4; i++) {
        cbd_range range = {i & 1, i >> 1, below(8), below(4)};
        if (ok(cbd_read_range(stage, query, names, 4, &range, &read, &error)))
            use_read(read);
    }
    if (ok(cbd_snapshot_open(stage, &snapshot, &error))) {
        for (int i = 0; i < 2; i++) {
            if (ok(cbd_snapshot_read_since(snapshot, query, names, 4, cursor, &read, &error)))
                use_read(read);
            if (below(4) == 0)
                damage(f); /* while it is held */
        }
        for (int i = 0; i < 6; i++)
            ok(cbd_snapshot_floor(snapshot, asked[i], &number, &error));
        cbd_snapshot_stamp(snapshot);
        cbd_cursor_release(cursor);
        ok(cbd_snapshot_cursor(snapshot, &cursor, &error));
        cbd_snapshot_release(snapshot);
    }
    for (int i = 1; i < 6; i++)
        if (ok(cbd_latest(stage, asked[i], &group, &error))) {
            CHECK(group->rows == 1);
            use_group(group);
            cbd_release_group(group);
        }
    for (int i = 0; i < 6; i++)
        ok(cbd_write_floor(stage, asked[i], &number, &error));
    ok(cbd_frontier(stage, "x", &number, &error));
    for (uint64_t i = 0; i < 24; i++) {
        const char *text;
        size_t length;
        uint64_t id = f->directory->identity_tag << 40 | (i < 20 ? i : next() >> (24 + below(40)));
        if (ok(cbd_resolve(stage, id, &text, &length, &error)))
            touch(text, length);
    }
    for (uint32_t i = 0; i < 8; i++) {
        cbd_attribute_info about;
        if (!ok(cbd_attribute_at(stage, i < 6 ? i : (uint32_t)next(), &about, &error)))
            continue;
        CHECK(about.schema.row_ndim <= CBD_ROW_NDIM_MAX && strlen(about.name) < sizeof about.name);
    }
    for (int i = 1; i < 6; i++) {
        cbd_schema schema;
        if (ok(cbd_attribute_schema(stage, asked[i], &schema, &error)))
            CHECK(schema.row_ndim <= CBD_ROW_NDIM_MAX);
    }
    ok(cbd_stage_get_info(stage, &info, &error));
    ok(cbd_follow(stage, below(2) ? cbd_epoch(stage) : next(), 0, &number, &error));
}

/* ---- the rounds -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 0) : 3000;
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("seed %llu, %llu rounds\n", (unsigned long long)seed, (unsigned long long)rounds);
    state = seed;
    struct fake *f = fake_start();
    build(f);
    cbd_stage *stage = fake_connect(f);
    cbd_query *query;
    const cbd_read_group *group;
    CHECK_STATUS(cbd_query_from_path_list(stage, paths, NULL, 5, &query, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_latest(stage, "scalar", &group, &error), CBD_STATUS_OK); /* and the root query is made */
    cbd_release_group(group);

    uint8_t *sound[3] = {malloc(CBD_DIRECTORY_BYTES), malloc(f->used[0]), malloc(f->used[2])};
    uint8_t *live[3] = {(uint8_t *)f->directory, f->segments[0], f->segments[2]};
    uint64_t bytes[3] = {CBD_DIRECTORY_BYTES, f->used[0], f->used[2]};
    for (int i = 0; i < 3; i++)
        memcpy(sound[i], live[i], bytes[i]);
    for (uint64_t round = 0; round < rounds; round++) {
        alarm(ROUND_SECONDS);
        if (below(3) == 0) { /* else what was learnt earlier meets what is damaged now */
            give_back(0);
            forget(stage, query);
        }
        damage(f);
        read_everything(f, stage, query);
        give_back(below(HELD + 1));
        for (int i = 0; i < 3; i++)
            memcpy(live[i], sound[i], bytes[i]);
        CHECK(cbd_stage_is_alive(stage));
    }
    alarm(0);
    give_back(0);
    forget(stage, query);
    CHECK(fake_pins_held(f) == 0 && worked > rounds && failed > rounds);
    CHECK_STATUS(cbd_latest(stage, "scalar", &group, &error), CBD_STATUS_OK); /* nothing of it stays */
    CHECK(*(const int32_t *)group->data == 1);
    cbd_release_group(group);
    printf("ok %llu calls gave values, %llu gave errors\n", (unsigned long long)worked, (unsigned long long)failed);
    for (int i = 0; i < 3; i++)
        free(sound[i]);
    cbd_cursor_release(cursor);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
    return 0;
}
