/* Array kind: what a write sends, what a session hands out, and reading tables of rows,
 * also broken ones (behaviour 20 to 35, 75 to 80, 182).
 */
#include "scene.h"

static cbd_error error;
static const char *const names[] = {"x"};

static bool keep(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    (void)c;
    if (e->opcode == CBD_OP_WRITE || e->opcode == CBD_OP_MAP || e->opcode == CBD_OP_DECLARE)
        arrived(f, e);
    return true;
}

static cbd_tensor floats(const float *data, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    return (cbd_tensor){.data = data, .ndim = ndim, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
}

static cbd_write_options ragged(uint64_t tensors)
{
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    options.is_array = 1;
    options.tensor_count = tensors;
    return options;
}

/* Writes, and compares what arrived: the rows' sizes and all elements. */
static void sends(struct scene *s, const cbd_tensor *tensors, const cbd_write_options *options, size_t rows, const uint64_t *sizes,
                  size_t elements, const float *wanted)
{
    cbd_op *op;
    cbd_abi_write_entry entry;
    CHECK_STATUS(cbd_write_attribute(s->stage, s->query, "x", tensors, options, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    memcpy(&entry, sent.arguments + sizeof(cbd_abi_write_arguments), sizeof entry);
    CHECK(entry.schema.kind == CBD_KIND_ARRAY && entry.schema.row_dimensions == 0 && entry.payload_rows == rows);
    CHECK(entry.element_sizes_count == rows && entry.element_sizes_offset_bytes % 8 == 0);
    CHECK(memcmp(sent.arguments + entry.element_sizes_offset_bytes, sizes, rows * sizeof *sizes) == 0);
    CHECK(entry.payload.length_bytes == elements * sizeof *wanted && entry.payload.offset_bytes % 8 == 0);
    CHECK(memcmp(sent.arguments + entry.payload.offset_bytes, wanted, elements * sizeof *wanted) == 0);
}

static void rows_travel_one_after_the_other_with_their_sizes(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    const float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const int64_t three = 3, none = 0, six = 6, grid[2] = {2, 3}, every_other = 2, across[2] = {1, 2};
    cbd_tensor rows[3] = {floats(data, 1, &three, NULL), floats(NULL, 1, &none, NULL), floats(data + 6, 1, &three, &every_other)};
    cbd_write_options o = ragged(2);
    sends(&s, rows, &o, 2, (uint64_t[]){3, 0}, 3, data);
    sends(&s, rows + 1, &o, 2, (uint64_t[]){0, 3}, 3, (float[]){6, 8, 10});
    const uint32_t map[2] = {2, 0};
    o = ragged(3); /* a map picks source rows */
    o.index_map = map;
    o.index_map_count = 2;
    o.count = 2;
    sends(&s, rows, &o, 2, (uint64_t[]){3, 3}, 6, (float[]){6, 8, 10, 0, 1, 2});
    o = ragged(0); /* packed, of any shape: nothing folds */
    cbd_tensor packed = floats(data, 2, grid, NULL);
    sends(&s, &packed, &o, 2, (uint64_t[]){3, 3}, 6, data);
    packed = floats(data, 2, grid, across); /* in row-major order of its shape */
    sends(&s, &packed, &o, 2, (uint64_t[]){3, 3}, 6, (float[]){0, 2, 4, 1, 3, 5});
    o.index_map = map; /* the highest entry says that there are three rows: 2, then 0 */
    o.index_map_count = 2;
    o.count = 2;
    packed = floats(data, 1, &six, &every_other);
    sends(&s, &packed, &o, 2, (uint64_t[]){2, 2}, 4, (float[]){8, 10, 0, 2});
    o.count = 1;
    o.index_map = NULL;
    sends(&s, &packed, &o, 1, (uint64_t[]){6}, 6, (float[]){0, 2, 4, 6, 8, 10});
    scene_end(&s);
}

static void what_does_not_fit_is_refused_by_name(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    const float data[12] = {0};
    const int64_t three = 3, seven = 7, shape[1] = {1};
    const double wide[1] = {0};
    const uint32_t map[2] = {0, 3}, far[1] = {2};
    cbd_tensor f3 = floats(data, 1, &three, NULL), f7 = floats(data, 1, &seven, NULL), scalar = floats(data, 0, NULL, NULL);
    cbd_tensor d = {.data = wide, .ndim = 1, .shape = shape, .code = CBD_DTYPE_FLOAT, .bits = 64, .lanes = 1};
    cbd_tensor three_of[3] = {f3, f3, f3}, mixed[2] = {f3, d}, flat[2] = {f3, scalar};
    struct {
        const cbd_tensor *tensors;
        uint64_t count;
        const uint32_t *map;
        uint64_t prims;
        const char *text;
    } bad[] = {
        {&f7, 0, NULL, CBD_ALL, "7 elements: they do not divide into 2 rows, a number that comes from the number of addressed prims"},
        {&f7, 0, map, 2, "into 4 rows, a number that comes from the highest index map entry"},
        {&f3, 1, NULL, CBD_ALL, "1 tensors are given for 2 addressed prims: there is none for prim 1"},
        {three_of, 3, NULL, CBD_ALL, "3 tensors are given for 2 addressed prims: there is no prim for tensor 2"},
        {three_of, 2, far, 1, "index_map[0] is 2: 2 tensors"},
        {mixed, 2, NULL, CBD_ALL, "tensor 1 has elements of float64: those before it have float32"},
        {flat, 2, NULL, CBD_ALL, "tensor 1: tensor has rank 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cbd_write_options o = ragged(bad[i].count);
        o.index_map = bad[i].map;
        o.index_map_count = bad[i].prims;
        o.count = bad[i].prims;
        CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "x", bad[i].tensors, &o, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
        if (strstr(error.text, bad[i].text) == NULL)
            fprintf(stderr, "case %zu says: %s\n", i, error.text);
        CHECK(strstr(error.text, bad[i].text) != NULL);
    }
    cbd_write_options o = ragged(2);
    o.is_array = 0; /* behaviour 9: a list does not turn the kind into array */
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "x", three_of, &o, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "got 2 tensors, expected one") != NULL);
    o = ragged(0);
    o.row_ndim = 1;
    o.row_shape[0] = 1;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "x", &f3, &o, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    fake_column(s.f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    fake_publish(s.f, 1, 0, fake_layout(s.f, ab, 2, 1), 2, data, 8, 0);
    o = ragged(2); /* behaviour 28 */
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "x", three_of, &o, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "kind") != NULL && sent.entry.op_id == 0);
    scene_end(&s);
}

/* Behaviour 182. */
static void a_session_has_rows_of_the_sizes_that_were_asked_for(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    const uint64_t sizes[2] = {3, 0}, empty[2] = {0, 0};
    cbd_map_options o = {.ordinal = 1, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 2, .is_array = 1, .element_sizes = sizes, .element_size_count = 2};
    cbd_session *session;
    cbd_group *group;
    cbd_abi_map_arguments asked;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "x", &o, &session, &error), CBD_STATUS_OK);
    memcpy(&asked, sent.arguments, sizeof asked);
    CHECK(asked.schema.kind == CBD_KIND_ARRAY && asked.element_sizes_count == 2 && asked.element_sizes_offset_bytes % 8 == 0);
    CHECK(memcmp(sent.arguments + asked.element_sizes_offset_bytes, sizes, sizeof sizes) == 0);
    CHECK_STATUS(cbd_fetch_map_next(session, &group, &error), CBD_STATUS_OK);
    CHECK(group->rows == 2 && group->row_bytes == 8 && group->ndim == 0 && group->arrays[0].data == group->data);
    CHECK(group->arrays[0].elements == 3 && group->arrays[1].elements == 0 && group->arrays[1].data == NULL);
    memset(group->arrays[0].data, 1, 24);
    cbd_session_release(session);
    o.element_sizes = empty;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "x", &o, &session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &group, &error), CBD_STATUS_OK);
    CHECK(group->rows == 2 && group->data == NULL && group->arrays[1].elements == 0);
    cbd_session_release(session);

    o.element_size_count = 1;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "x", &o, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "element_sizes has 1 entries for 2 prims") != NULL);
    o.element_sizes = NULL;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "x", &o, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    o.element_sizes = sizes;
    o.is_array = 0;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "x", &o, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "element_sizes") != NULL && strstr(error.text, "fixed") != NULL);
    const uint64_t huge[2] = {UINT64_MAX / 4, UINT64_MAX / 4}; /* whatever the broker answers, it cannot have leased that */
    o.is_array = 1;
    o.element_sizes = huge;
    o.element_size_count = 2;
    CHECK(cbd_map_attribute(s.stage, s.query, "x", &o, &session, &error) != CBD_STATUS_OK && session == NULL);
    scene_end(&s);
}

/* A column of float32 arrays with one version, whose table is the test's to write. */
static cbd_abi_row_ref *publish_table(struct fake *f, const cbd_abi_row_ref *rows)
{
    uint32_t x = fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    cbd_abi_attribute_entry *entry = fake_attribute(f, x);
    entry->schema.kind = CBD_KIND_ARRAY;
    entry->row_bytes = sizeof *rows;
    fake_publish(f, x, 0, fake_layout(f, ab, 2, 1), 2, rows, 2 * sizeof *rows, 1);
    cbd_abi_block_ref block = fake_slot(f, x, 0)->block;
    return (cbd_abi_row_ref *)(f->segments[block.segment - 1] + block.offset_bytes);
}

static void arrays_are_read_in_place_and_every_lie_of_a_table_is_internal(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    float *data;
    cbd_read *read;
    const cbd_read_group *group;
    cbd_abi_ref at = fake_alloc(s.f, 3, 4096, (void **)&data), elsewhere = fake_alloc(s.f, 1, 64, NULL);
    for (int i = 0; i < 1024; i++)
        data[i] = (float)i;
    cbd_abi_row_ref *table = publish_table(s.f, (cbd_abi_row_ref[]){{3, at.offset_bytes + 4, 12}, {0, 77, 0}});
    CHECK_STATUS(cbd_read_attributes(s.stage, s.query, names, 1, &read, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
    cbd_read_release(read);
    CHECK(group->schema.kind == CBD_KIND_ARRAY && group->data == NULL && group->rows == 2 && group->row_bytes == 4 && group->ndim == 0);
    CHECK(group->arrays[0].elements == 3 && ((const float *)group->arrays[0].data)[2] == 3 && group->index_map == NULL);
    CHECK(group->arrays[1].elements == 0 && group->arrays[1].data == NULL);
    cbd_stage_info info;
    CHECK_STATUS(cbd_stage_get_info(s.stage, &info, &error), CBD_STATUS_OK);
    CHECK(info.pinned_bytes == 2 * sizeof *table + 12); /* the table, and the elements that were looked at */
    cbd_release_group(group);
    CHECK_STATUS(cbd_stage_get_info(s.stage, &info, &error), CBD_STATUS_OK);
    CHECK(info.pinned_bytes == 0);

    s.f->directory->pinned_bytes_max = 100; /* of elements too */
    table[1] = (cbd_abi_row_ref){1, elsewhere.offset_bytes, 64};
    CHECK_STATUS(cbd_read_attributes(s.stage, s.query, names, 1, &read, &error), CBD_STATUS_LIMIT);
    CHECK_STATUS(cbd_stage_get_info(s.stage, &info, &error), CBD_STATUS_OK);
    CHECK(info.pinned_bytes == 0);
    s.f->directory->pinned_bytes_max = 0;

    const cbd_abi_row_ref lies[] = {{3, at.offset_bytes, 13},           {3, FAKE_SEGMENT_BYTES - 4, 8}, {3, UINT64_MAX - 3, 8},
                                    {3, at.offset_bytes + 2, 8},        {0, 0, 8},                      {1u << 30, 0, 8},
                                    {3, 0, UINT64_MAX - UINT64_MAX % 4}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        table[1] = lies[i];
        CHECK_STATUS(cbd_read_attributes(s.stage, s.query, names, 1, &read, &error), CBD_STATUS_INTERNAL);
        CHECK(read == NULL && fake_pins_held(s.f) == 0);
    }
    table[1] = (cbd_abi_row_ref){0, 0, 0};
    fake_slot(s.f, 1, 0)->rows = 3; /* of two */
    CHECK_STATUS(cbd_read_attributes(s.stage, s.query, names, 1, &read, &error), CBD_STATUS_INTERNAL);
    scene_end(&s);
}

static void a_broker_without_arrays_is_asked_for_none(void)
{
    struct scene s = {.f = fake_start()};
    s.stage = fake_connect(s.f);
    CHECK_STATUS(cbd_query_from_path_list(s.stage, ab, NULL, 2, &s.query, &error), CBD_STATUS_OK);
    const float data[2] = {0};
    const int64_t two = 2;
    const uint64_t sizes[2] = {1, 1};
    cbd_tensor packed = floats(data, 1, &two, NULL);
    cbd_write_options o = ragged(0);
    cbd_map_options m = {.ordinal = 1, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .is_array = 1, .element_sizes = sizes, .element_size_count = 2};
    cbd_schema schema = {.kind = CBD_KIND_ARRAY, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_session *session;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "x", &packed, &o, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "x", &m, &session, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_declare(s.stage, "x", &schema, 0, 0, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    scene_end(&s);
}

int main(void)
{
    RUN(rows_travel_one_after_the_other_with_their_sizes);
    RUN(what_does_not_fit_is_refused_by_name);
    RUN(a_session_has_rows_of_the_sizes_that_were_asked_for);
    RUN(arrays_are_read_in_place_and_every_lie_of_a_table_is_internal);
    RUN(a_broker_without_arrays_is_asked_for_none);
    return 0;
}
