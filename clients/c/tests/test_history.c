/* Reads of the past and of what changed, in a hand-made directory (rules O4, O5, O7, V5),
 * also one that is broken.
 */
#include "fake_broker.h"

#include <string.h>

static cbd_error error;
static const char *const names[] = {"x"}, *const abc[] = {"/a", "/b", "/c"};

struct scene {
    struct fake *f;
    cbd_stage *stage;
    cbd_query *query;
    uint32_t x;
    cbd_abi_ref layout;
};

static struct scene begin(void)
{
    struct scene s = {.f = fake_start()};
    s.stage = fake_connect(s.f);
    CHECK_STATUS(cbd_query_from_path_list(s.stage, abc, NULL, 3, &s.query, &error), CBD_STATUS_OK);
    s.x = fake_column(s.f, "x", CBD_DTYPE_INT, 32, 1, 0, NULL);
    s.layout = fake_layout(s.f, abc, 3, 1);
    return s;
}

static void end(struct scene *s)
{
    CHECK(fake_pins_held(s->f) == 0);
    cbd_query_release(s->query);
    cbd_stage_release(s->stage);
    fake_stop(s->f);
}

static void publish(struct scene *s, uint32_t place, int32_t value, uint64_t ordinal)
{
    int32_t rows[3] = {value, value, value};
    fake_publish(s->f, s->x, place, s->layout, 3, rows, sizeof rows, ordinal);
}

static void floors(struct scene *s, uint64_t floor) { fake_floors(s->f, 0, floor, floor, NULL, 0); }

static cbd_status range(struct scene *s, cbd_range r, const cbd_read_group **group)
{
    cbd_read *read;
    *group = NULL;
    cbd_status status = cbd_read_range(s->stage, s->query, names, 1, &r, &read, &error);
    if (status != CBD_STATUS_OK) {
        CHECK(read == NULL);
        return status;
    }
    if (cbd_fetch_read_next(read, group, &error) == CBD_STATUS_END)
        CHECK(*group == NULL);
    cbd_read_release(read);
    return status;
}

static cbd_status as_of(struct scene *s, uint64_t at, int32_t *value)
{
    const cbd_read_group *group;
    cbd_status status = range(s, (cbd_range){1, 0, at, 0}, &group);
    *value = group == NULL ? -1 : *(const int32_t *)group->data;
    if (group != NULL)
        CHECK(fake_pins_held(s->f) == 1 && group->ordinal <= at);
    cbd_release_group(group);
    return status;
}

/* O4, V5; behaviour 123, 158: exactly the state of an ordinal, each version pinned in its own life. */
static void as_of_an_ordinal_is_exact_or_refused(void)
{
    struct scene s = begin();
    int32_t value;
    CHECK_STATUS(as_of(&s, 1, &value), CBD_STATUS_FLOOR_VIOLATION); /* nothing is sealed */
    CHECK_STATUS(as_of(&s, 0, &value), CBD_STATUS_OK);
    CHECK(value == -1);
    publish(&s, 0, 20, 2); /* epochs 1, 2, 3 */
    publish(&s, 1, 50, 5);
    publish(&s, 2, 90, 9);
    fake_slot(s.f, s.x, 2)->ordinal_lowest = 7; /* 7 to 9 in one step */
    floors(&s, 10);
    const struct {
        uint64_t at;
        cbd_status status;
        int32_t value;
    } cases[] = {{0, CBD_STATUS_OK, -1},  {1, CBD_STATUS_OK, -1},           {2, CBD_STATUS_OK, 20},
                 {4, CBD_STATUS_OK, 20},  {5, CBD_STATUS_OK, 50},           {6, CBD_STATUS_OK, 50},
                 {7, CBD_STATUS_OUT_OF_RANGE, -1}, {8, CBD_STATUS_OUT_OF_RANGE, -1}, {9, CBD_STATUS_OK, 90},
                 {10, CBD_STATUS_OK, 90}, {11, CBD_STATUS_FLOOR_VIOLATION, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_STATUS(as_of(&s, cases[i].at, &value), cases[i].status);
        CHECK(value == cases[i].value);
    }

    cbd_abi_attribute_entry *entry = fake_attribute(s.f, s.x);
    entry->horizon = 2; /* the version of epoch 1 is given up; its slot is not refilled yet */
    CHECK_STATUS(as_of(&s, 2, &value), CBD_STATUS_OUT_OF_RANGE);
    CHECK_STATUS(as_of(&s, 1, &value), CBD_STATUS_OUT_OF_RANGE); /* whether there was one before is not known */
    CHECK_STATUS(as_of(&s, 5, &value), CBD_STATUS_OK);
    CHECK(value == 50);
    fake_slot(s.f, s.x, 0)->birth = CBD_INFINITE;
    CHECK_STATUS(as_of(&s, 2, &value), CBD_STATUS_OUT_OF_RANGE);
    fake_slot(s.f, s.x, 2)->birth = CBD_INFINITE; /* what came next is not known: 5 may not have been the last up to 6 */
    CHECK_STATUS(as_of(&s, 6, &value), CBD_STATUS_OUT_OF_RANGE);
    end(&s);
}

static cbd_status stamped(struct scene *s, uint32_t what, uint64_t at, int32_t *value)
{
    const cbd_read_group *group;
    cbd_status status = range(s, (cbd_range){what, 0, at, 0}, &group);
    *value = group == NULL ? -1 : *(const int32_t *)group->data;
    cbd_release_group(group);
    return status;
}

/* Stamps: the last seal at or before one, or the nearer of its neighbours; what was given up is not guessed. */
static void as_of_a_stamp_is_the_last_or_the_nearest_or_refused(void)
{
    struct scene s = begin();
    int32_t value;
    for (uint32_t what = CBD_AT_STAMP; what <= CBD_AT_NEAREST_STAMP; what++) {
        CHECK_STATUS(stamped(&s, what, 100, &value), CBD_STATUS_OK); /* nothing is sealed */
        CHECK(value == -1);
    }
    for (uint32_t i = 0; i < 3; i++) {
        publish(&s, i, (int32_t)i, i + 1); /* epochs 1, 2, 3 */
        fake_slot(s.f, s.x, i)->stamp_ns = 100 + 10 * i;
    }
    floors(&s, 3);
    const struct {
        uint64_t at;
        int32_t before, nearest;
    } cases[] = {{0, -1, 0},   {99, -1, 0},  {100, 0, 0}, {104, 0, 0}, {105, 0, 0}, /* as near: the earlier one */
                 {106, 0, 1},  {109, 0, 1},  {110, 1, 1}, {115, 1, 1}, {116, 1, 2}, {120, 2, 2},
                 {125, 2, 2},  {UINT64_MAX, 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_STATUS(stamped(&s, CBD_AT_STAMP, cases[i].at, &value), CBD_STATUS_OK);
        CHECK(value == cases[i].before);
        CHECK_STATUS(stamped(&s, CBD_AT_NEAREST_STAMP, cases[i].at, &value), CBD_STATUS_OK);
        CHECK(value == cases[i].nearest);
    }
    fake_slot(s.f, s.x, 1)->birth = CBD_INFINITE; /* the second is given up, and the first is pinned by somebody */
    store64(&fake_attribute(s.f, s.x)->horizon, 3);
    for (uint32_t what = CBD_AT_STAMP; what <= CBD_AT_NEAREST_STAMP; what++) {
        CHECK_STATUS(stamped(&s, what, 112, &value), CBD_STATUS_OUT_OF_RANGE); /* the first is not the last before it */
        CHECK(strstr(error.text, "stamp 112") != NULL && strstr(error.text, "retain") != NULL);
        CHECK_STATUS(stamped(&s, what, 99, &value), CBD_STATUS_OUT_OF_RANGE); /* there may have been more */
        CHECK_STATUS(stamped(&s, what, 120, &value), CBD_STATUS_OK);
        CHECK(value == 2);
    }
    const cbd_read_group *group;
    CHECK_STATUS(range(&s, (cbd_range){CBD_AT_STAMP, 1, 120, 1}, &group), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(range(&s, (cbd_range){CBD_AT_NEAREST_STAMP + 1, 0, 0, 0}, &group), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "at_what is 5") != NULL);
    end(&s);
}

/* The newest ordinal that no attribute is behind; those that nobody wrote or sealed are none. */
static void attributes_are_read_at_their_common_ordinal(void)
{
    struct scene s = begin();
    const char *const both[] = {"x", "y", "never", CBD_PATH_NAME};
    uint32_t y = fake_column(s.f, "y", CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t row[3] = {7, 7, 7};
    const struct {
        uint64_t x, y, common;
        int32_t of_x, of_y;
    } cases[] = {{9, 5, 5, 50, 7}, {5, 9, 5, 50, 7}, {9, 0, 9, 90, -1}, {4, 4, 4, 20, -1}};
    publish(&s, 0, 20, 2);
    publish(&s, 1, 50, 5);
    publish(&s, 2, 90, 9);
    fake_publish(s.f, y, 0, s.layout, 3, row, sizeof row, 5);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cbd_abi_floor_row rows[2] = {{fake_attribute(s.f, s.x)->name_id, cases[i].x}, {fake_attribute(s.f, y)->name_id, cases[i].y}};
        fake_floors(s.f, (uint32_t)i % 2, 0, 1, rows, 2); /* of "never" it is 1 */
        cbd_range common = {CBD_AT_COMMON, 0, 0, 0}, later = {CBD_AT_COMMON, 1, 0, 10};
        cbd_read *read;
        const cbd_read_group *group;
        CHECK_STATUS(cbd_read_range(s.stage, s.query, both, 4, &common, &read, &error), CBD_STATUS_OK);
        CHECK(cbd_read_ordinal(read) == cases[i].common);
        CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
        CHECK(*(const int32_t *)group->data == cases[i].of_x);
        cbd_release_group(group);
        if (cases[i].of_y >= 0) {
            CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
            CHECK(strcmp(group->name, "y") == 0 && *(const int32_t *)group->data == cases[i].of_y);
            cbd_release_group(group);
        }
        cbd_read_release(read);
        CHECK_STATUS(cbd_read_range(s.stage, s.query, both, 4, &later, &read, &error), CBD_STATUS_INVALID_ARGUMENT);
        CHECK(strstr(error.text, "since is 10") != NULL);
    }
    end(&s);
}

/* What happens once a read has its epoch, or just before it has: the broker is asked to pin, since the horizon of the
 * floors lets no pin of the client's own pass. */
static struct {
    struct scene *s;
    const char *born; /* the column is made now */
    uint32_t column, place;
    bool before;
} meanwhile;

static bool seal_meanwhile(struct fake *f, const cbd_abi_submission_entry *op, cbd_abi_completion_entry *done)
{
    struct scene *s = meanwhile.s;
    if (op->opcode != CBD_OP_PIN || s == NULL)
        return true;
    meanwhile.s = NULL;
    if (meanwhile.born != NULL)
        meanwhile.column = fake_column(f, meanwhile.born, CBD_DTYPE_INT, 32, 1, 0, NULL);
    int32_t row[3] = {1, 1, 1};
    fake_publish(f, meanwhile.column, 0, s->layout, 3, row, sizeof row, 1);
    cbd_abi_floor_row rows[2] = {{fake_attribute(f, s->x)->name_id, 1000}, {fake_attribute(f, meanwhile.column)->name_id, 1}};
    fake_floors(f, meanwhile.place, 0, 0, rows, 2);
    if (meanwhile.before)
        done->epoch = f->directory->epoch;
    for (uint32_t i = 0; meanwhile.before && i < f->pin_count; i++)
        if (load64(&fake_pins(f)[i].epoch) != 0)
            store64(&fake_pins(f)[i].epoch, f->directory->epoch);
    return true;
}

static void count_groups(struct scene *s, const char *const both[2], cbd_range r, uint64_t ordinal, int groups)
{
    cbd_read *read;
    const cbd_read_group *group;
    CHECK_STATUS(cbd_read_range(s->stage, s->query, both, 2, &r, &read, &error), CBD_STATUS_OK);
    CHECK(cbd_read_ordinal(read) == ordinal);
    for (int i = 0; i < groups; i++) {
        CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
        CHECK(strcmp(group->name, both[i]) == 0 && group->epoch == cbd_read_epoch(read));
        cbd_release_group(group);
    }
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_END);
    cbd_read_release(read);
}

/* Behaviour 120, 123: what was sealed for the first time after a read's epoch has no group as of an ordinal, though
 * that of its seal is lower. */
static void as_of_an_ordinal_shows_nothing_sealed_first_after_its_epoch(void)
{
    struct scene s = begin();
    const char *const with_y[] = {"x", "y"}, *const with_z[] = {"x", "z"};
    uint32_t y = fake_column(s.f, "y", CBD_DTYPE_INT, 32, 1, 0, NULL), z = fake_column(s.f, "z", CBD_DTYPE_INT, 32, 1, 0, NULL);
    cbd_range common = {CBD_AT_COMMON, 0, 0, 0}, one = {CBD_AT_ORDINAL, 0, 1, 0};
    cbd_read *read;
    publish(&s, 0, 7, 1);
    fake_floors(s.f, 0, 0, 0, (cbd_abi_floor_row[]){{fake_attribute(s.f, s.x)->name_id, 1000}}, 1);
    fake_attribute(s.f, CBD_FLOOR_COLUMN)->horizon = UINT64_MAX;
    s.f->on_op = seal_meanwhile;
    meanwhile.s = &s;
    meanwhile.born = NULL;
    meanwhile.column = y;
    meanwhile.place = 1;
    meanwhile.before = false;
    count_groups(&s, with_y, common, 1000, 1);
    CHECK(meanwhile.s == NULL);
    count_groups(&s, with_y, common, 1, 2);

    meanwhile.s = &s; /* an ordinal that is given is above a floor of the read's epoch, whatever is sealed by now */
    meanwhile.column = z;
    meanwhile.place = 2;
    CHECK_STATUS(cbd_read_range(s.stage, s.query, with_z, 2, &one, &read, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK(meanwhile.s == NULL && strstr(error.text, "\"z\"") != NULL);
    count_groups(&s, with_z, one, 1, 2);
    s.f->on_op = NULL;
    end(&s);
}

/* Behaviour 46: a column that came while the names were looked up is in the read of an epoch that has it. */
static void a_column_born_while_names_are_looked_up_is_read(void)
{
    static const char *const born[] = {"newest", "common", "one", "stamp"};
    const cbd_range ranges[] = {{CBD_AT_NEWEST, 0, 0, 0}, {CBD_AT_COMMON, 0, 0, 0}, {CBD_AT_ORDINAL, 0, 1, 0},
                                {CBD_AT_STAMP, 0, UINT64_MAX, 0}};
    struct scene s = begin();
    publish(&s, 0, 7, 1);
    fake_floors(s.f, 0, 0, 0, (cbd_abi_floor_row[]){{fake_attribute(s.f, s.x)->name_id, 1000}}, 1);
    fake_attribute(s.f, CBD_FLOOR_COLUMN)->horizon = UINT64_MAX;
    s.f->on_op = seal_meanwhile;
    for (uint32_t i = 0; i < 4; i++) {
        const char *const both[] = {"x", born[i]};
        meanwhile.s = &s;
        meanwhile.born = born[i];
        meanwhile.place = i + 1;
        meanwhile.before = true;
        count_groups(&s, both, ranges[i], i == 1 || i == 2, 2);
        CHECK(meanwhile.s == NULL);
    }
    s.f->on_op = NULL;
    end(&s);
}

/* O7; behaviour 127, 133: rows by their own ordinals. */
static void rows_have_ordinals_of_their_own(void)
{
    struct scene s = begin();
    const cbd_read_group *group;
    uint64_t *of_rows, got[3];
    publish(&s, 0, 1, 9);
    cbd_abi_version_slot *slot = fake_slot(s.f, s.x, 0);
    slot->row_ordinals = fake_alloc(s.f, 3, 3 * sizeof *of_rows, (void **)&of_rows);
    of_rows[0] = 4;
    of_rows[1] = 9;
    of_rows[2] = 6;
    CHECK_STATUS(range(&s, (cbd_range){0, 0, 0, 0}, &group), CBD_STATUS_OK);
    CHECK_STATUS(cbd_group_row_ordinals(group, got, &error), CBD_STATUS_OK);
    CHECK(group->ordinal == 9 && got[0] == 4 && got[1] == 9 && got[2] == 6);
    cbd_release_group(group);
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 4}, &group), CBD_STATUS_OK);
    CHECK_STATUS(cbd_group_row_ordinals(group, got, &error), CBD_STATUS_OK);
    CHECK(group->prim_count == 2 && group->contiguous && group->rows == 2 && got[0] == 9 && got[1] == 6);
    cbd_release_group(group);
    of_rows[1] = 1;
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 3}, &group), CBD_STATUS_OK); /* rows 0 and 2 */
    CHECK(group->prim_count == 2 && group->ordinal == 6 && group->rows == 3 && group->index_map[1] == 2);
    cbd_release_group(group);
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 6}, &group), CBD_STATUS_OK);
    CHECK(group == NULL);

    const cbd_abi_ref wrong[] = {{3, FAKE_SEGMENT_BYTES - 16}, {3, 4}, {1u << 30, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        slot->row_ordinals = wrong[i];
        CHECK_STATUS(range(&s, (cbd_range){0, 0, 0, 0}, &group), CBD_STATUS_INTERNAL);
    }
    end(&s);
}

static void bury(struct scene *s, cbd_abi_tombstone_row *ring, uint64_t size, const char *path, uint64_t ordinal, uint64_t epoch)
{
    cbd_abi_attribute_entry *entry = fake_attribute(s->f, s->x);
    ring[entry->tombstone_count % size] = (cbd_abi_tombstone_row){fake_string(s->f, CBD_STRING_PATH, path), ordinal, epoch};
    store64(&entry->tombstone_count, entry->tombstone_count + 1);
}

/* O7; behaviour 119, 150: the last delete of each prim, while it is known. */
static void deletes_since_are_exact_or_refused(void)
{
    struct scene s = begin();
    cbd_abi_attribute_entry *entry = fake_attribute(s.f, s.x);
    cbd_abi_tombstone_row *ring;
    const cbd_read_group *group;
    uint64_t got[3], frontier;
    const char *const only_b[] = {"/b"};
    s.layout = fake_layout(s.f, only_b, 1, 1);
    int32_t row = 1;
    fake_publish(s.f, s.x, 0, s.layout, 1, &row, sizeof row, 1);
    entry->tombstones = fake_alloc(s.f, 1, 4 * sizeof *ring, (void **)&ring);
    entry->tombstone_capacity = 4;
    bury(&s, ring, 4, "/c", 2, 1);
    bury(&s, ring, 4, "/elsewhere", 3, 1);
    bury(&s, ring, 4, "/b", 3, 1); /* it came back */
    bury(&s, ring, 4, "/a", 4, 1);
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 1}, &group), CBD_STATUS_OK);
    CHECK_STATUS(cbd_group_row_ordinals(group, got, &error), CBD_STATUS_OK);
    CHECK(group->is_delete && group->prim_count == 2 && group->data == NULL && group->rows == 0 && group->ordinal == 4);
    CHECK(group->prims[0] == cbd_query_ids(s.query)[0] && group->prims[1] == cbd_query_ids(s.query)[2]);
    CHECK(got[0] == 4 && got[1] == 2);
    cbd_release_group(group);
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 3}, &group), CBD_STATUS_OK);
    CHECK(group->is_delete && group->prim_count == 1 && group->prims[0] == cbd_query_ids(s.query)[0]);
    cbd_release_group(group);
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 4}, &group), CBD_STATUS_OK);
    CHECK(group == NULL);

    bury(&s, ring, 4, "/c", 6, 2); /* of an epoch that is not published; /c's first delete falls out */
    entry->frontier_ordinal = 2;
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 2}, &group), CBD_STATUS_OK);
    CHECK(group->prim_count == 1 && group->prims[0] == cbd_query_ids(s.query)[0]);
    cbd_release_group(group);
    CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 1}, &group), CBD_STATUS_OUT_OF_RANGE);
    CHECK_STATUS(cbd_frontier(s.stage, "x", &frontier, &error), CBD_STATUS_OK);
    CHECK(frontier == 2);

    const uint64_t capacities[] = {UINT64_MAX, 1u << 30, 0};
    for (int i = 0; i < 3; i++) { /* a ring that cannot be, and one that is for ever being replaced */
        entry->tombstone_capacity = capacities[i];
        CHECK_STATUS(range(&s, (cbd_range){0, 1, 0, 2}, &group), i < 2 ? CBD_STATUS_INTERNAL : CBD_STATUS_TIMEOUT);
    }
    end(&s);
}

/* O6: a cursor outlives its snapshot and its stage, and is of one generation. */
static void a_cursor_begins_after_the_floors_of_its_snapshot(void)
{
    struct scene s = begin();
    cbd_snapshot *snapshot;
    cbd_cursor *cursor;
    cbd_read *read;
    const cbd_read_group *group;
    publish(&s, 0, 1, 3);
    floors(&s, 3);
    CHECK_STATUS(cbd_snapshot_open(s.stage, &snapshot, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_snapshot_cursor(snapshot, &cursor, &error), CBD_STATUS_OK);
    CHECK(cbd_cursor_epoch(cursor) == 2);
    for (int i = 0; i < 2; i++) { /* nothing since, and then one change */
        CHECK_STATUS(cbd_snapshot_read_since(snapshot, s.query, names, 1, cursor, &read, &error), CBD_STATUS_OK);
        CHECK(cbd_fetch_read_next(read, &group, &error) == (i == 0 ? CBD_STATUS_END : CBD_STATUS_OK));
        CHECK(i == 0 || *(const int32_t *)group->data == 2);
        cbd_release_group(group);
        cbd_read_release(read);
        cbd_snapshot_release(snapshot);
        publish(&s, 1, 2, 4);
        CHECK_STATUS(cbd_snapshot_open(s.stage, &snapshot, &error), CBD_STATUS_OK);
    }
    s.stage->generation++;
    CHECK_STATUS(cbd_snapshot_read_since(snapshot, s.query, names, 1, cursor, &read, &error), CBD_STATUS_INVALID_ARGUMENT);
    s.stage->generation--;
    cbd_snapshot_release(snapshot);
    end(&s);
    cbd_cursor_release(cursor);
}

int main(void)
{
    RUN(as_of_an_ordinal_is_exact_or_refused);
    RUN(as_of_a_stamp_is_the_last_or_the_nearest_or_refused);
    RUN(attributes_are_read_at_their_common_ordinal);
    RUN(as_of_an_ordinal_shows_nothing_sealed_first_after_its_epoch);
    RUN(a_column_born_while_names_are_looked_up_is_read);
    RUN(rows_have_ordinals_of_their_own);
    RUN(deletes_since_are_exact_or_refused);
    RUN(a_cursor_begins_after_the_floors_of_its_snapshot);
    return 0;
}
