/* Pins, versions, layouts, floors: reading a hand-made directory (rules V1 to V9, L2,
 * I3, I4, S2), also one that is broken or changes while it is read.
 */
#include "fake_broker.h"

#include "callboard_python.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static cbd_error error;
static const char *const names[] = {"x"};

static cbd_query *query_of(cbd_stage *stage, const char *const *paths, size_t n)
{
    cbd_query *query;
    CHECK_STATUS(cbd_query_from_path_list(stage, paths, NULL, n, &query, &error), CBD_STATUS_OK);
    return query;
}

/* The one group of attribute x, or NULL. */
static const cbd_read_group *read_x(cbd_stage *stage, cbd_query *query)
{
    cbd_read *read;
    const cbd_read_group *group = NULL, *more;
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_OK);
    if (cbd_fetch_read_next(read, &group, &error) == CBD_STATUS_OK)
        CHECK(cbd_fetch_read_next(read, &more, &error) == CBD_STATUS_END && more == NULL);
    cbd_read_release(read); /* the group lives on by itself */
    return group;
}

static const char *const abc[] = {"/a", "/b", "/c"};

static void nothing_sealed_and_unknown_names_give_no_group(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    CHECK(read_x(stage, query) == NULL); /* epoch 0 */
    uint32_t x = fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    fake_epoch(f, 1);
    CHECK(read_x(stage, query) == NULL); /* known, never sealed: O5 */
    float rows[3] = {1, 2, 3};
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 2), 3, rows, sizeof rows, 1);
    const cbd_read_group *group = read_x(stage, query);
    CHECK(group != NULL && group->epoch == 2 && group->rows == 3 && ((const float *)group->data)[2] == 3);
    CHECK(fake_pins_held(f) == 1); /* the floors' pin is gone, the group's stays */
    cbd_release_group(group);
    CHECK(fake_pins_held(f) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* V4, O6: a snapshot shows what lived at its epoch, whatever is published later. */
static void a_snapshot_shows_the_version_born_before_and_not_dead_at_its_epoch(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    cbd_abi_ref layout = fake_layout(f, abc, 3, 1);
    cbd_snapshot *snapshots[40];
    for (int i = 0; i < 40; i++) { /* over the end of the first page of slots */
        int32_t rows[3] = {i, i, i};
        fake_publish(f, x, (uint32_t)i, layout, 3, rows, sizeof rows, (uint64_t)i + 1);
        CHECK_STATUS(cbd_snapshot_open(stage, &snapshots[i], &error), CBD_STATUS_OK);
    }
    for (int hint = 0; hint < 3; hint++) { /* the hint is only a hint */
        fake_attribute(f, x)->latest_slot = hint == 0 ? 39 : hint == 1 ? 1234567 : UINT64_MAX;
        for (int i = 0; i < 40; i++) {
            /* fake_publish ends versions of the first page only; end the others by hand. */
            if (i + 1 < 40)
                fake_slot(f, x, (uint32_t)i)->death = (uint64_t)i + 2;
            cbd_read *read;
            const cbd_read_group *group;
            CHECK_STATUS(cbd_snapshot_read(snapshots[i], query, names, 1, &read, &error), CBD_STATUS_OK);
            CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
            CHECK(((const int32_t *)group->data)[1] == i && group->ordinal == (uint64_t)i + 1);
            CHECK(group->epoch == cbd_snapshot_epoch(snapshots[i]) && cbd_read_epoch(read) == group->epoch);
            cbd_release_group(group);
            cbd_read_release(read);
        }
    }
    CHECK(fake_pins(f)[0].attribute == CBD_PIN_ALL);
    for (int i = 0; i < 40; i++)
        cbd_snapshot_release(snapshots[i]);
    CHECK(fake_pins_held(f) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* V2: a horizon above the epoch refuses; after 16 refusals the broker stores the pins. */
static void a_horizon_that_stays_above_ends_in_a_pin_by_the_broker(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    cbd_release_group(read_x(stage, query));
    CHECK(atomic_load(&f->pins_by_op) == 0);
    fake_attribute(f, x)->horizon = 5;
    const cbd_read_group *group = read_x(stage, query);
    CHECK(group != NULL && atomic_load(&f->pins_by_op) == 1 && fake_pins_held(f) == 1);
    cbd_release_group(group);
    f->directory->horizon_any = 9;
    cbd_snapshot *snapshot;
    CHECK_STATUS(cbd_snapshot_open(stage, &snapshot, &error), CBD_STATUS_OK);
    CHECK(atomic_load(&f->pins_by_op) == 2 && cbd_snapshot_epoch(snapshot) == 1);
    cbd_snapshot_release(snapshot);
    CHECK(fake_pins_held(f) == 0);

    fake_hang_up(f, NULL); /* nobody can pin for us any more: an error, and no slot is lost */
    cbd_read *read;
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(read == NULL && fake_pins_held(f) == 0);
    fake_attribute(f, x)->horizon = 0; /* but sealed data can be read on without a broker */
    group = read_x(stage, query);
    CHECK(group != NULL);
    cbd_release_group(group);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* ---- the race that the rules are about -------------------------------------------- */

enum { SLOTS = 5, WORDS = 64 };

struct race {
    struct fake *fake;
    cbd_stage *stage;
    cbd_query *query;
    uint32_t column;
    _Atomic int stop;
    _Atomic uint64_t published, reads;
};

static bool pinned(struct fake *f, uint32_t column, uint64_t birth, uint64_t death)
{
    cbd_abi_channel_control *control = (cbd_abi_channel_control *)(f->channel + CBD_CHANNEL_CONTROL_OFFSET);
    uint32_t high = load32(&control->pin_high_water);
    for (uint32_t i = 0; i < high; i++) {
        uint64_t epoch = load64(&fake_pins(f)[i].epoch);
        uint32_t attribute = load32(&fake_pins(f)[i].attribute);
        if (epoch != 0 && (attribute == column || attribute == CBD_PIN_ALL) && birth <= epoch && epoch < death)
            return true;
    }
    return false;
}

/* The broker's half of V3 and V4: reuse a dead version's block in place, as fast as can be. */
static void *republish(void *argument)
{
    struct race *r = argument;
    struct fake *f = r->fake;
    cbd_abi_attribute_entry *entry = fake_attribute(f, r->column);
    uint32_t last = 0;
    while (!atomic_load(&r->stop)) {
        uint64_t epoch = f->directory->epoch;
        for (uint32_t i = 0; i < SLOTS; i++) {
            cbd_abi_version_slot *slot = fake_slot(f, r->column, i);
            if (i == last || slot->death > epoch || pinned(f, r->column, slot->birth, slot->death))
                continue;
            if (entry->horizon < slot->death) {
                store64(&entry->horizon, slot->death);
                store64(&f->directory->horizon_any, slot->death);
            }
            if (pinned(f, r->column, slot->birth, slot->death))
                continue;
            store64(&slot->birth, CBD_INFINITE);
            store64(&slot->death, CBD_INFINITE);
            uint64_t *words = (uint64_t *)(f->segments[slot->block.segment - 1] + slot->block.offset_bytes);
            for (int w = 0; w < WORDS; w++)
                words[w] = epoch + 1;
            store64(&slot->ordinal_highest, epoch + 1);
            store64(&slot->birth, epoch + 1);
            store64(&fake_slot(f, r->column, last)->death, epoch + 1);
            store64(&entry->latest_slot, i);
            fake_epoch(f, epoch + 1);
            last = i;
            atomic_fetch_add(&r->published, 1);
            break;
        }
    }
    return NULL;
}

static void *read_on(void *argument)
{
    struct race *r = argument;
    uint64_t seen = 0;
    cbd_error why;
    while (!atomic_load(&r->stop)) {
        cbd_read *read;
        const cbd_read_group *group;
        bool whole = atomic_load(&r->reads) % 3 == 0;
        cbd_snapshot *snapshot = NULL;
        if (whole) {
            CHECK(cbd_snapshot_open(r->stage, &snapshot, &why) == CBD_STATUS_OK);
            CHECK(cbd_snapshot_read(snapshot, r->query, names, 1, &read, &why) == CBD_STATUS_OK);
            cbd_snapshot_release(snapshot);
        } else {
            CHECK(cbd_read_attributes(r->stage, r->query, names, 1, &read, &why) == CBD_STATUS_OK);
        }
        CHECK(cbd_fetch_read_next(read, &group, &why) == CBD_STATUS_OK);
        cbd_read_release(read);
        const uint64_t *words = group->data;
        CHECK(group->ordinal == group->epoch && group->epoch >= seen); /* a version for each epoch here */
        seen = group->epoch;
        for (int turn = 0; turn < 3; turn++)
            for (int w = 0; w < WORDS; w++)
                CHECK(words[w] == group->epoch);
        cbd_release_group(group);
        atomic_fetch_add(&r->reads, 1);
    }
    return NULL;
}

static void refills_while_reading_are_never_seen(void)
{
    struct race r = {.fake = fake_start()};
    r.fake->directory->pinned_bytes_max = 0;
    r.stage = fake_connect(r.fake);
    static const char *const one[] = {"/a"};
    uint64_t shape = WORDS, words[WORDS];
    r.query = query_of(r.stage, one, 1);
    r.column = fake_column(r.fake, "x", CBD_DTYPE_UINT, 64, 1, 1, &shape);
    cbd_abi_ref layout = fake_layout(r.fake, one, 1, 1);
    for (uint32_t i = 0; i < SLOTS; i++) {
        for (int w = 0; w < WORDS; w++)
            words[w] = i + 1;
        fake_publish(r.fake, r.column, SLOTS - 1 - i, layout, 1, words, sizeof words, i + 1);
    }
    atomic_store(&fake_shaking, 4);
    pthread_t writer, readers[3];
    pthread_create(&writer, NULL, republish, &r);
    for (int i = 0; i < 3; i++)
        pthread_create(&readers[i], NULL, read_on, &r);
    uint64_t enough = 3000;
    for (int i = 0; i < 6000 && (atomic_load(&r.published) < enough || atomic_load(&r.reads) < enough); i++) {
        usleep(10000);
        enough = i < 200 ? 3000 : 101; /* a slow machine may have fewer */
    }
    atomic_store(&r.stop, 1);
    pthread_join(writer, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(readers[i], NULL);
    atomic_store(&fake_shaking, 0);
    printf("  %llu versions, %llu reads, %d by op PIN\n", (unsigned long long)r.published, (unsigned long long)r.reads,
           atomic_load(&r.fake->pins_by_op));
    CHECK(r.published > 100 && r.reads > 100 && fake_pins_held(r.fake) == 0);
    cbd_query_release(r.query);
    cbd_stage_release(r.stage);
    fake_stop(r.fake);
}

/* ---- rows ----------------------------------------------------------------------------- */

/* L2, behaviours 16 and 91: rows in the query's order, absent prims, prims named twice. */
static void rows_come_in_the_order_of_the_query(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    static const char *const paths[] = {"/a", "/b", "/c", "/d", "/e"};
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 16, 3, 0, NULL);
    cbd_abi_ref layout = fake_layout(f, paths, 5, 1);
    cbd_abi_layout_row *rows = (cbd_abi_layout_row *)(f->segments[0] + layout.offset_bytes + sizeof(cbd_abi_layout_header));
    rows[4].death = 1; /* "/e" is not there any more */
    int16_t data[5][3] = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {4, 4, 4}};
    fake_publish(f, x, 0, layout, 5, data, sizeof data, 1);

    static const char *const middle[] = {"/b", "/nobody", "/c", "/d", "/e"};
    cbd_query *query = query_of(stage, middle, 5);
    const cbd_read_group *group = read_x(stage, query);
    CHECK(group->contiguous && group->index_map == NULL && group->rows == 3 && group->prim_count == 3);
    CHECK(group->ndim == 2 && group->shape[0] == 3 && group->shape[1] == 3);
    CHECK(((const int16_t *)group->data)[0] == 1 && group->prims[1] == cbd_query_ids(query)[2]);
    const cbd_read_group *again = read_x(stage, query);
    CHECK(again->prims == group->prims); /* the same cached map */
    cbd_release_group(again);
    cbd_query_release(query); /* before its group */
    CHECK(group->prims[0] != 0);
    cbd_release_group(group);

    static const char *const backwards[] = {"/d", "/a", "/d"};
    query = query_of(stage, backwards, 3);
    group = read_x(stage, query);
    CHECK(!group->contiguous && group->rows == 5 && group->prim_count == 3);
    CHECK(group->index_map[0] == 3 && group->index_map[1] == 0 && group->index_map[2] == 3);
    cbd_release_group(group);
    cbd_query_release(query);

    static const char *const nobody[] = {"/nobody"};
    query = query_of(stage, nobody, 1);
    CHECK(read_x(stage, query) == NULL && fake_pins_held(f) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void latest_is_one_row_without_the_axis_of_rows(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    static const char *const two[] = {"/other", "/"};
    uint64_t shape[2] = {2, 3};
    float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const cbd_read_group *group;
    CHECK_STATUS(cbd_latest(stage, "x", &group, &error), CBD_STATUS_NOT_FOUND);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 2, shape);
    fake_publish(f, x, 0, fake_layout(f, two, 2, 1), 2, data, sizeof data, 1);
    CHECK_STATUS(cbd_latest(stage, "x", &group, &error), CBD_STATUS_OK);
    CHECK(group->ndim == 2 && group->shape[0] == 2 && group->shape[1] == 3 && ((const float *)group->data)[0] == 6);
    cbd_release_group(group);
    cbd_schema schema;
    CHECK_STATUS(cbd_attribute_schema(stage, "x", &schema, &error), CBD_STATUS_OK);
    CHECK(schema.row_ndim == 2 && schema.row_shape[1] == 3 && schema.bits == 32);
    CHECK_STATUS(cbd_attribute_schema(stage, "y", &schema, &error), CBD_STATUS_NOT_FOUND);
    cbd_attribute_info info;
    CHECK_STATUS(cbd_attribute_at(stage, 1, &info, &error), CBD_STATUS_OK);
    CHECK(strcmp(info.name, "x") == 0 && info.row_bytes == 24);
    CHECK_STATUS(cbd_attribute_at(stage, 2, &info, &error), CBD_STATUS_END);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* What is tried gives the same as the call that may wait, or TIMEOUT and keeps nothing. */
static void what_would_wait_is_not_waited_for(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    static const char *const root[] = {"/"};
    cbd_query *query = query_of(stage, root, 1);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t value = 7;
    fake_publish(f, x, 0, fake_layout(f, root, 1, 1), 1, &value, sizeof value, 1);
    const cbd_read_group *group;
    cbd_read *read;
    /* nothing is known of the column, and no query of "/" was made */
    CHECK(cbd_try_latest(stage, "x", &group, &error) == CBD_STATUS_TIMEOUT && group == NULL);
    CHECK(cbd_try_read_attributes(stage, query, names, 1, &read, &error) == CBD_STATUS_TIMEOUT && read == NULL);
    CHECK(fake_pins_held(f) == 0);
    CHECK_STATUS(cbd_latest(stage, "x", &group, &error), CBD_STATUS_OK);
    cbd_release_group(group);
    /* the rows of another query are not worked out */
    CHECK(cbd_try_read_attributes(stage, query, names, 1, &read, &error) == CBD_STATUS_TIMEOUT && read == NULL);
    CHECK(fake_pins_held(f) == 0);
    cbd_release_group(read_x(stage, query));
    for (int i = 0; i < 2; i++) { /* warm: the second time as the first */
        CHECK_STATUS(cbd_try_latest(stage, "x", &group, &error), CBD_STATUS_OK);
        CHECK(group->ndim == 0 && *(const int32_t *)group->data == 7 && group->epoch == 1);
        cbd_release_group(group);
        CHECK_STATUS(cbd_try_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
        CHECK(group->rows == 1 && *(const int32_t *)group->data == 7);
        cbd_release_group(group);
        cbd_read_release(read);
        CHECK_STATUS(cbd_try_latest(stage, "y", &group, &error), CBD_STATUS_NOT_FOUND);
        CHECK_STATUS(cbd_try_latest(stage, "@x", &group, &error), CBD_STATUS_NOT_SUPPORTED);
    }
    pthread_mutex_lock(&stage->cache_lock); /* as another thread has it that maps a segment */
    CHECK(cbd_try_latest(stage, "x", &group, &error) == CBD_STATUS_TIMEOUT && group == NULL);
    CHECK(cbd_try_read_attributes(stage, query, names, 1, &read, &error) == CBD_STATUS_TIMEOUT && read == NULL);
    pthread_mutex_unlock(&stage->cache_lock);
    fake_attribute(f, x)->horizon = 5; /* only the broker could pin it now */
    CHECK(cbd_try_latest(stage, "x", &group, &error) == CBD_STATUS_TIMEOUT && group == NULL);
    CHECK(atomic_load(&f->pins_by_op) == 0 && fake_pins_held(f) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* V9: the row of the name, else the default; the global one apart. */
static void floors_are_those_of_the_epoch(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    uint64_t floor;
    CHECK_STATUS(cbd_write_floor(stage, NULL, &floor, &error), CBD_STATUS_OK);
    CHECK(floor == 0);
    fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    cbd_abi_floor_row rows[2] = {{fake_attribute(f, 1)->name_id, 12}, {fake_string(f, CBD_STRING_TOKEN, "unborn"), 9}};
    fake_floors(f, 0, 5, 7, rows, 2);
    cbd_snapshot *snapshot;
    CHECK_STATUS(cbd_snapshot_open(stage, &snapshot, &error), CBD_STATUS_OK);
    fake_floors(f, 1, 50, 70, rows, 0);
    CHECK_STATUS(cbd_write_floor(stage, "x", &floor, &error), CBD_STATUS_OK);
    CHECK(floor == 70);
    CHECK_STATUS(cbd_write_floor(stage, NULL, &floor, &error), CBD_STATUS_OK);
    CHECK(floor == 50);
    CHECK_STATUS(cbd_snapshot_floor(snapshot, "x", &floor, &error), CBD_STATUS_OK);
    CHECK(floor == 12);
    CHECK_STATUS(cbd_snapshot_floor(snapshot, "unborn", &floor, &error), CBD_STATUS_OK);
    CHECK(floor == 9);
    CHECK_STATUS(cbd_snapshot_floor(snapshot, "other", &floor, &error), CBD_STATUS_OK);
    CHECK(floor == 7 && cbd_snapshot_stamp(snapshot) == 99);
    cbd_snapshot_release(snapshot);
    CHECK(fake_pins_held(f) == 0);
    uint64_t epoch;
    CHECK_STATUS(cbd_follow(stage, 1, 0, &epoch, &error), CBD_STATUS_OK);
    CHECK(epoch == 2);
    CHECK_STATUS(cbd_follow(stage, 2, 20000000, &epoch, &error), CBD_STATUS_TIMEOUT);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* V7: bytes of distinct versions; two views of one version count once. */
static void too_many_pinned_bytes_are_limit_and_name_the_oldest(void)
{
    struct fake *f = fake_start();
    f->directory->pinned_bytes_max = 100;
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 1);
    uint64_t shape = 10;
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 1, &shape);
    cbd_abi_ref layout = fake_layout(f, abc, 1, 1);
    int32_t row[10] = {0};
    const cbd_read_group *held[5];
    for (uint32_t i = 0; i < 2; i++) {
        fake_publish(f, x, i, layout, 1, row, sizeof row, i + 1);
        held[2 * i] = read_x(stage, query);
        held[2 * i + 1] = read_x(stage, query);
    }
    cbd_stage_info info;
    CHECK_STATUS(cbd_stage_get_info(stage, &info, &error), CBD_STATUS_OK);
    CHECK(info.pinned_bytes == 80 && strcmp(info.name, "fake") == 0);
    fake_publish(f, x, 2, layout, 1, row, sizeof row, 3);
    cbd_read *read;
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_LIMIT);
    CHECK(strstr(error.text, "\"x\" at epoch 1") != NULL && strstr(error.text, "120") != NULL);
    CHECK(fake_pins_held(f) == 4);
    cbd_release_group(held[0]);
    cbd_pin *pin = cbd_pin_retain(held[1]->pin);
    cbd_release_group(held[1]);
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_LIMIT);
    cbd_pin_release(pin);
    held[4] = read_x(stage, query);
    CHECK(held[4] != NULL && held[4]->ordinal == 3);
    for (int i = 2; i < 5; i++)
        cbd_release_group(held[i]);
    CHECK_STATUS(cbd_stage_get_info(stage, &info, &error), CBD_STATUS_OK);
    CHECK(info.pinned_bytes == 0 && fake_pins_held(f) == 0);

    const cbd_read_group *all[64];
    for (int i = 0; i < 63; i++) /* a read needs one more for the floors */
        all[i] = read_x(stage, query);
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_LIMIT);
    CHECK(strstr(error.text, "64 pin slots") != NULL);
    for (int i = 0; i < 63; i++)
        cbd_release_group(all[i]);
    CHECK(fake_pins_held(f) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

static uint64_t pinned_shown(struct fake *f)
{
    return load64(&((cbd_abi_channel_control *)(f->channel + CBD_CHANNEL_CONTROL_OFFSET))->pinned_bytes);
}

static void *release_soon(void *pin)
{
    usleep(20000);
    cbd_pin_release(pin);
    return NULL;
}

/* V7: what the broker shows of this client follows every change, down as well as up. */
static void the_pinned_bytes_shown_follow_releases_and_refusals(void)
{
    struct fake *f = fake_start();
    f->directory->pinned_bytes_max = 100;
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 1);
    uint64_t shape = 10, large = 20;
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 1, &shape);
    uint32_t y = fake_column(f, "y", CBD_DTYPE_INT, 32, 1, 1, &large);
    cbd_abi_ref layout = fake_layout(f, abc, 1, 1);
    int32_t row[20] = {0};
    fake_publish(f, x, 0, layout, 1, row, 40, 1);
    fake_publish(f, y, 0, layout, 1, row, 80, 1);
    const cbd_read_group *one = read_x(stage, query), *two = read_x(stage, query);
    CHECK(pinned_shown(f) == 40); /* one version, however often */
    cbd_release_group(one);
    CHECK(pinned_shown(f) == 40);
    cbd_release_group(two);
    CHECK(pinned_shown(f) == 0);

    static const char *const both[] = {"x", "y"}, *const only[] = {"y"};
    cbd_read *read;
    CHECK_STATUS(cbd_read_attributes(stage, query, both, 2, &read, &error), CBD_STATUS_LIMIT);
    CHECK(pinned_shown(f) == 0); /* the attempt was rolled back */
    cbd_snapshot *snapshot;
    CHECK_STATUS(cbd_snapshot_open(stage, &snapshot, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_snapshot_read(snapshot, query, names, 1, &read, &error), CBD_STATUS_OK);
    cbd_read *refused;
    for (int i = 0; i < 3; i++) /* and leaves nothing with the snapshot's pin, which goes on */
        CHECK_STATUS(cbd_snapshot_read(snapshot, query, only, 1, &refused, &error), CBD_STATUS_LIMIT);
    CHECK(pinned_shown(f) == 40);
    cbd_read_release(read);
    cbd_snapshot_release(snapshot);
    CHECK(pinned_shown(f) == 0);

    one = read_x(stage, query); /* from another thread, after close: the channel is mapped as long as a pin lives */
    cbd_pin *pin = cbd_pin_retain(one->pin);
    cbd_release_group(one);
    cbd_query_release(query);
    cbd_stage_release(stage);
    CHECK(pinned_shown(f) == 40);
    pthread_t thread;
    pthread_create(&thread, NULL, release_soon, pin);
    pthread_join(thread, NULL);
    CHECK(pinned_shown(f) == 0 && fake_pins_held(f) == 0);
    fake_stop(f);
}

/* ---- a directory that lies --------------------------------------------------------------- */

static void lie_block_offset(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->block.offset_bytes = FAKE_SEGMENT_BYTES - 8; }
static void lie_block_length(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->block.length_bytes = UINT64_MAX - 7; }
static void lie_block_segment(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->block.segment = UINT64_C(1) << 60; }
static void lie_rows(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->rows = UINT64_C(1) << 31; }
static void lie_rows_over_block(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->block.length_bytes = 4; }
static void lie_layout(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->layout.offset_bytes = UINT64_MAX - 100; }
static void lie_odd_offset(struct fake *f, uint32_t x) { fake_slot(f, x, 0)->layout.offset_bytes += 1; }
static void lie_slot_page(struct fake *f, uint32_t x) { fake_attribute(f, x)->slot_pages.offset_bytes = FAKE_SEGMENT_BYTES - 64; }
static void lie_row_bytes(struct fake *f, uint32_t x) { fake_attribute(f, x)->row_bytes = 1; }
static void lie_dtype(struct fake *f, uint32_t x) { fake_attribute(f, x)->schema.dtype_code = 3; }
static void lie_row_dimensions(struct fake *f, uint32_t x) { fake_attribute(f, x)->schema.row_dimensions = 4000000; }
static void lie_dimensions_of_another_kind(struct fake *f, uint32_t x)
{
    fake_attribute(f, x)->schema.kind = CBD_KIND_ARRAY;
    fake_attribute(f, x)->schema.row_dimensions = 7;
}
static void lie_attribute_page(struct fake *f, uint32_t x) { (void)x; f->directory->attribute_pages[0].offset_bytes = UINT64_MAX - 7; }
static void lie_attribute_count(struct fake *f, uint32_t x) { (void)x; f->directory->attribute_count = UINT32_MAX; }
static void lie_string_page(struct fake *f, uint32_t x) { (void)x; f->directory->string_pages[0].segment = 0; }
static void lie_floor_count(struct fake *f, uint32_t x)
{
    (void)x;
    fake_floors(f, 0, 1, 1, NULL, 0);
    cbd_abi_version_slot *slot = fake_slot(f, 0, 0);
    ((cbd_abi_floor_table *)(f->segments[0] + slot->block.offset_bytes))->count = UINT64_MAX / 8;
}
static void lie_slot_loop(struct fake *f, uint32_t x)
{
    cbd_abi_ref self = fake_attribute(f, x)->slot_pages;
    fake_slot(f, x, 0)->birth = CBD_INFINITE; /* so that the whole chain is walked */
    ((cbd_abi_slot_page *)(f->segments[0] + self.offset_bytes))->next = self;
}

static void every_lie_of_the_directory_is_internal_with_numbers(void)
{
    static void (*const lies[])(struct fake *, uint32_t) = {
        lie_block_offset, lie_block_length, lie_block_segment, lie_rows, lie_rows_over_block, lie_layout, lie_odd_offset,
        lie_slot_page, lie_row_bytes, lie_dtype, lie_row_dimensions, lie_dimensions_of_another_kind, lie_attribute_page, lie_attribute_count,
        lie_string_page, lie_floor_count, lie_slot_loop,
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct fake *f = fake_start();
        cbd_stage *stage = fake_connect(f);
        cbd_query *query = query_of(stage, abc, 3);
        uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
        int32_t rows[3] = {1, 2, 3};
        fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
        lies[i](f, x);
        cbd_read *read;
        cbd_status status = cbd_read_attributes(stage, query, names, 1, &read, &error);
        if (status != CBD_STATUS_INTERNAL) {
            fprintf(stderr, "lie %zu gave %s\n", i, cbd_status_name(status));
            exit(1);
        }
        CHECK(read == NULL && error.text[0] != 0 && fake_pins_held(f) == 0);
        if (lies[i] == lie_slot_loop)
            CHECK(stage->columns[x]->page_count < 4); /* it was seen, not walked until there were too many */
        cbd_query_release(query);
        cbd_stage_release(stage);
        fake_stop(f);
    }
}

/* S2, field report A25: whoever hands out a descriptor may hand out the wrong one. Nothing of a segment is
 * believed before its header says that it is the one that was asked for. */
static void a_segment_that_is_another_one_is_refused_with_what_it_is(void)
{
    static const struct {
        const char *what, *text;
    } cases[] = {
        {"another id", "segment 3 has magic 0x544d474553444243, version 1.0, id 4, generation 1700000000000000000; expected magic "
                       "0x544d474553444243, version 1, generation 1700000000000000000"},
        {"another generation", "segment 3 has magic 0x544d474553444243, version 1.0, id 3, generation 1700000000000000001;"},
        {"no header", "segment 3 has magic 0x0, version 0.0, id 0, generation 0;"},
        {"another sort of region", "segment 3 has magic 0x4c4e414843444243, version 1.0, id 3,"},
        {"still being made", "segment 3 has magic 0x544d474553444243, version 0.0, id 3,"},
        {"another major version", "segment 3 has magic 0x544d474553444243, version 2.0, id 3,"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake *f = fake_start();
        cbd_stage *stage = fake_connect(f);
        cbd_query *query = query_of(stage, abc, 3);
        uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
        int32_t rows[3] = {1, 2, 3};
        fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1); /* in segment 3 */
        cbd_abi_region_header *header = (cbd_abi_region_header *)f->segments[2], sound = *header;
        switch (i) {
        case 0:
            header->region_id = 4;
            break;
        case 1:
            header->generation++;
            break;
        case 2:
            memset(header, 0, sizeof *header);
            break;
        case 3:
            header->magic = CBD_MAGIC_CHANNEL;
            break;
        case 4:
            header->version = 0;
            break;
        default:
            header->version = 2u << 16;
        }
        cbd_read *read;
        for (int again = 0; again < 2; again++) { /* it was not kept */
            CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_INTERNAL);
            if (strncmp(error.text, cases[i].text, strlen(cases[i].text)) != 0) {
                fprintf(stderr, "%s: got \"%s\"\n", cases[i].what, error.text);
                exit(1);
            }
        }
        CHECK(read == NULL && fake_pins_held(f) == 0 && stage->segments[2] == NULL);
        *header = sound;
        cbd_release_group(read_x(stage, query));
        CHECK(stage->segments[2] != NULL);
        cbd_query_release(query);
        cbd_stage_release(stage);
        fake_stop(f);
    }
}

/* What is referred to and refused is an error; NOT_FOUND would read as "nothing was ever sealed". */
static void a_segment_that_the_broker_does_not_know_is_no_empty_answer(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    uint64_t floor;
    cbd_read *read;
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    fake_floors(f, 0, 1, 1, NULL, 0);
    fake_attribute(f, x)->slot_pages.segment = 5;
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_INTERNAL);
    CHECK(strstr(error.text, "the broker refused segment 5") != NULL);
    fake_slot(f, CBD_FLOOR_COLUMN, 0)->block.segment = 6;
    CHECK_STATUS(cbd_write_floor(stage, NULL, &floor, &error), CBD_STATUS_INTERNAL);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* The pages of the directory never go. A table that calls their segment retired must not take away what
 * columns, names and resolved texts point into. */
static void a_segment_of_the_directory_stays_whatever_the_table_says(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    const char *text;
    size_t length;
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    cbd_release_group(read_x(stage, query));
    CHECK_STATUS(cbd_resolve(stage, fake_attribute(f, x)->name_id, &text, &length, &error), CBD_STATUS_OK);
    cbd_abi_segment_entry *entries = (cbd_abi_segment_entry *)(f->segments[0] + f->directory->segment_pages[0].offset_bytes);
    entries[0].state = entries[2].state = CBD_SEGMENT_RETIRED;
    store32(&f->directory->retired_count, 2);
    const struct segment *before = stage->segments[0];
    const cbd_read_group *group = read_x(stage, query);
    CHECK(stage->segments[0] == before); /* the same mapping, not a new one in the same place */
    CHECK(group != NULL && ((const int32_t *)group->data)[1] == 2);
    CHECK(length == 1 && text[0] == 'x');
    cbd_release_group(group);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* A version whose block moves to another segment, which no honest one does, keeps both while views look at them. */
static void a_snapshot_keeps_every_segment_that_its_views_look_at(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    cbd_snapshot *snapshot;
    const cbd_read_group *groups[2];
    cbd_read *read;
    CHECK_STATUS(cbd_snapshot_open(stage, &snapshot, &error), CBD_STATUS_OK);
    for (int i = 0; i < 2; i++) {
        fake_slot(f, x, 0)->block.segment = 3 + (uint64_t)i;
        CHECK_STATUS(cbd_snapshot_read(snapshot, query, names, 1, &read, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_fetch_read_next(read, &groups[i], &error), CBD_STATUS_OK);
        cbd_read_release(read);
    }
    cbd_abi_segment_entry *entries = (cbd_abi_segment_entry *)(f->segments[0] + f->directory->segment_pages[0].offset_bytes);
    entries[2].state = entries[3].state = CBD_SEGMENT_RETIRED;
    store32(&f->directory->retired_count, 2);
    static const char *const other[] = {"y"};
    CHECK_STATUS(cbd_read_attributes(stage, query, other, 1, &read, &error), CBD_STATUS_OK);
    cbd_read_release(read);
    CHECK(stage->segments[2] != NULL && stage->segments[3] != NULL);
    CHECK(((const int32_t *)groups[0]->data)[0] == 1 && ((const int32_t *)groups[1]->data)[0] == 0);
    for (int i = 0; i < 2; i++)
        cbd_release_group(groups[i]);
    cbd_snapshot_release(snapshot);
    CHECK_STATUS(cbd_read_attributes(stage, query, other, 1, &read, &error), CBD_STATUS_OK);
    cbd_read_release(read);
    CHECK(stage->segments[2] == NULL && stage->segments[3] == NULL);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* behaviour 313: what a newer broker accepted as a semantic is no reason to refuse its stage. */
static void a_semantic_that_is_newer_than_this_client_is_shown_as_it_is(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    fake_attribute(f, x)->schema.semantic = 200;
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    const cbd_read_group *group = read_x(stage, query);
    CHECK(group != NULL && group->schema.semantic == 200);
    cbd_release_group(group);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void an_id_of_another_generation_is_not_found(void) /* L3 */
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    const char *text;
    size_t length;
    uint64_t ids[2] = {0, UINT64_C(0x123456) << 40 | 1};
    for (int i = 0; i < 2; i++)
        CHECK_STATUS(cbd_resolve(stage, ids[i], &text, &length, &error), CBD_STATUS_NOT_FOUND);
    CHECK_STATUS(cbd_resolve(stage, UINT64_C(0xabcdef) << 40 | 99, &text, &length, &error), CBD_STATUS_NOT_FOUND);
    const char *token = "kept";
    uint64_t id;
    CHECK_STATUS(cbd_intern(stage, 0, &token, NULL, 1, &id, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_resolve(stage, id, &text, &length, &error), CBD_STATUS_OK);
    CHECK(length == 4 && memcmp(text, "kept", 4) == 0);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* ---- lifetimes ------------------------------------------------------------------------------ */

/* I2, I3: views outlive close, and the proof of life with them. */
static void a_view_outlives_close_with_its_pin_and_the_proof_of_life(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    const cbd_read_group *group = read_x(stage, query);
    const int32_t *data = group->data;
    cbd_pin *pin = cbd_pin_retain(group->pin);
    cbd_stage_close(stage);
    for (int i = 0; i < 30000 && f->connection >= 0; i++) /* the broker's end of it */
        usleep(1000);
    int with_channel = fake_entries("/proc/self/fd");
    cbd_read *read;
    CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_SESSION_ENDED);
    cbd_query_release(query);
    cbd_stage_release(stage);
    cbd_release_group(group);
    CHECK(data[2] == 3 && fake_pins_held(f) == 1);
    cbd_pin_release(pin);
    CHECK(fake_pins_held(f) == 0 && fake_entries("/proc/self/fd") == with_channel - 1);
    fake_stop(f);
}

/* I4: a child's release stores nothing into the parent's pins. */
static void a_forked_child_releases_nothing_of_its_parent(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    fake_publish(f, x, 0, fake_layout(f, abc, 3, 1), 3, rows, sizeof rows, 1);
    const cbd_read_group *group = read_x(stage, query);
    pid_t child = fork();
    if (child == 0) {
        cbd_read *read;
        CHECK(((const int32_t *)group->data)[1] == 2); /* the bytes are there, if unprotected */
        CHECK_STATUS(cbd_read_attributes(stage, query, names, 1, &read, &error), CBD_STATUS_SESSION_ENDED);
        cbd_release_group(group);
        cbd_query_release(query);
        cbd_stage_release(stage);
        fake_child_ends();
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    CHECK(fake_pins_held(f) == 1);
    cbd_release_group(group);
    CHECK(fake_pins_held(f) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* Whether the mapping that holds the address has the flag, in /proc/self/smaps (two letters, see proc(5)). */
static bool mapping_has(const void *address, const char *flag)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512], wanted[8];
    bool inside = false, found = false, has = false;
    CHECK(maps != NULL);
    snprintf(wanted, sizeof wanted, " %s", flag);
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long long low, high;
        if (sscanf(line, "%llx-%llx ", &low, &high) == 2)
            inside = (uintptr_t)address >= low && (uintptr_t)address < high;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            found = true;
            has = strstr(line, wanted) != NULL;
        }
    }
    fclose(maps);
    CHECK(found);
    return has;
}

/* I4: what a child could store into is not there ("dc": not copied on fork); what it may go on to read is. */
static void channel_and_doorbell_are_not_mapped_in_a_child(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    CHECK(mapping_has(stage->channel, "dc") && mapping_has(stage->channel + stage->channel_bytes - 1, "dc"));
    CHECK(mapping_has(stage->doorbell, "dc"));
    CHECK(!mapping_has(stage->directory, "dc"));
    cbd_stage_release(stage);
    fake_stop(f);
}

/* S2: asked for once, unmapped when retired, but not under a view. */
static void a_retired_segment_is_unmapped_when_nobody_looks(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_query *query = query_of(stage, abc, 3);
    uint32_t x = fake_column(f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t rows[3] = {1, 2, 3};
    cbd_abi_ref layout = fake_layout(f, abc, 3, 1);
    fake_publish(f, x, 0, layout, 3, rows, sizeof rows, 1); /* in segment 3 */
    const cbd_read_group *group = read_x(stage, query);
    int asked = atomic_load(&f->segment_asks);
    cbd_release_group(read_x(stage, query));
    CHECK(atomic_load(&f->segment_asks) == asked); /* warm */
    cbd_abi_segment_entry *entries = (cbd_abi_segment_entry *)(f->segments[0] + f->directory->segment_pages[0].offset_bytes);
    entries[2].state = CBD_SEGMENT_RETIRED;
    store32(&f->directory->retired_count, 1);
    cbd_release_group(read_x(stage, query));
    CHECK(stage->segments[2] != NULL && ((const int32_t *)group->data)[0] == 1);
    cbd_release_group(group);
    cbd_epoch(stage); /* a call of any kind */
    CHECK(stage->segments[2] == NULL && stage->segments[0] != NULL);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    RUN(nothing_sealed_and_unknown_names_give_no_group);
    RUN(a_snapshot_shows_the_version_born_before_and_not_dead_at_its_epoch);
    RUN(a_horizon_that_stays_above_ends_in_a_pin_by_the_broker);
    RUN(refills_while_reading_are_never_seen);
    RUN(rows_come_in_the_order_of_the_query);
    RUN(latest_is_one_row_without_the_axis_of_rows);
    RUN(what_would_wait_is_not_waited_for);
    RUN(floors_are_those_of_the_epoch);
    RUN(too_many_pinned_bytes_are_limit_and_name_the_oldest);
    RUN(the_pinned_bytes_shown_follow_releases_and_refusals);
    RUN(every_lie_of_the_directory_is_internal_with_numbers);
    RUN(a_segment_that_is_another_one_is_refused_with_what_it_is);
    RUN(a_segment_that_the_broker_does_not_know_is_no_empty_answer);
    RUN(a_segment_of_the_directory_stays_whatever_the_table_says);
    RUN(a_snapshot_keeps_every_segment_that_its_views_look_at);
    RUN(a_semantic_that_is_newer_than_this_client_is_shown_as_it_is);
    RUN(an_id_of_another_generation_is_not_found);
    RUN(a_view_outlives_close_with_its_pin_and_the_proof_of_life);
    RUN(a_forked_child_releases_nothing_of_its_parent);
    RUN_ON_LINUX(channel_and_doorbell_are_not_mapped_in_a_child, "it maps what MADV_DONTFORK leaves out");
    RUN(a_retired_segment_is_unmapped_when_nobody_looks);
    return 0;
}
