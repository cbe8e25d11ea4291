/* What a write sends, what it refuses before sending (R6), map sessions (M1, M3). */
#include "scene.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static cbd_error error;

static bool keep(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    (void)c;
    if (e->opcode != CBD_OP_QUERY_RELEASE)
        arrived(f, e);
    return true;
}

static cbd_abi_write_entry entry_sent(void)
{
    cbd_abi_write_entry entry;
    memcpy(&entry, sent.arguments + sizeof(cbd_abi_write_arguments), sizeof entry);
    CHECK(entry.payload.segment == 0 && entry.payload.offset_bytes % 8 == 0);
    CHECK(entry.payload.offset_bytes + entry.payload.length_bytes <= sent.entry.argument_bytes);
    return entry;
}

static void write_ok(struct scene s, const cbd_tensor *tensor, const cbd_write_options *options)
{
    cbd_op *op;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "pose", tensor, options, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
}

static cbd_tensor floats(const float *data, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    return (cbd_tensor){.data = data, .ndim = ndim, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
}

/* Behaviour 313: a semantic that is newer than this client is the broker's to judge. */
static void a_semantic_that_is_not_known_here_is_passed_on(void)
{
    static const uint32_t newer[] = {16, 200, UINT32_MAX};
    struct scene s = scene_begin(keep, 0);
    float data[2] = {0};
    int64_t shape[1] = {2};
    cbd_tensor tensor = floats(data, 1, shape, NULL);
    for (int i = 0; i < 3; i++) {
        cbd_write_options options = cbd_write_options_default();
        options.ordinal = (uint64_t)i + 1;
        options.semantic = newer[i];
        write_ok(s, &tensor, &options);
        CHECK(entry_sent().schema.semantic == newer[i]);
        cbd_map_options map = {.ordinal = 9, .semantic = newer[i], .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
        cbd_abi_map_arguments asked;
        cbd_session *session;
        CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "new", &map, &session, &error), CBD_STATUS_OK);
        memcpy(&asked, sent.arguments, sizeof asked);
        CHECK(sent.entry.opcode == CBD_OP_MAP && asked.schema.semantic == newer[i]);
        cbd_session_release(session);
    }
    scene_end(&s);
}

/* Behaviours 3, 4, 10, 11: folding, and every kind of stride. */
static void a_small_write_goes_inline_with_its_rows_gathered(void)
{
    struct scene s = scene_begin(keep, 0);
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    options.semantic = CBD_SEMANTIC_MATRIX;
    float data[32];
    for (int i = 0; i < 32; i++)
        data[i] = (float)i;
    int64_t shape[3] = {2, 4, 4};
    cbd_tensor tensor = floats(data, 3, shape, NULL);
    write_ok(s, &tensor, &options);
    cbd_abi_write_entry entry = entry_sent();
    CHECK(sent.entry.opcode == CBD_OP_WRITE && sent.entry.ordinal == 1 && sent.entry.flags == 0);
    CHECK(entry.schema.dtype_lanes == 16 && entry.schema.semantic == CBD_SEMANTIC_MATRIX && entry.schema.row_dimensions == 0);
    CHECK(entry.payload_rows == 2 && entry.payload.length_bytes == 128 && entry.selection.count == CBD_ALL);
    CHECK(entry.name_bytes == 4 && memcmp(sent.arguments + entry.name_offset_bytes, "pose", 4) == 0);
    CHECK(memcmp(sent.arguments + entry.payload.offset_bytes, data, sizeof data) == 0);

    const struct {
        int64_t strides[3];
        int start;
    } cases[] = {
        {{16, 4, 1}, 0},    /* compact, stated */
        {{16, 1, 4}, 0},    /* transposed */
        {{-16, 4, 1}, 16},  /* rows backwards */
        {{16, -4, -1}, 15}, /* all backwards within a row */
        {{0, 4, 1}, 0},     /* one row twice */
        {{0, 0, 0}, 7},     /* one value everywhere */
        {{1, 8, 2}, 0},     /* interleaved */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        tensor = floats(data + cases[c].start, 3, shape, cases[c].strides);
        write_ok(s, &tensor, &options);
        entry = entry_sent();
        float got[32];
        memcpy(got, sent.arguments + entry.payload.offset_bytes, sizeof got);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++)
                for (int k = 0; k < 4; k++)
                    CHECK(got[16 * i + 4 * j + k] ==
                          data[cases[c].start + i * cases[c].strides[0] + j * cases[c].strides[1] + k * cases[c].strides[2]]);
    }
    options.row_ndim = 2; /* a declared row shape does not fold (L4) */
    options.row_shape[0] = options.row_shape[1] = 4;
    options.seal = options.next_ordinal = 1;
    tensor = floats(data, 3, shape, NULL);
    write_ok(s, &tensor, &options);
    entry = entry_sent();
    CHECK(entry.schema.row_dimensions == 2 && entry.schema.row_shape[1] == 4 && entry.schema.dtype_lanes == 1);
    CHECK(sent.entry.flags == (CBD_FLAG_NEXT_ORDINAL | CBD_FLAG_SEAL) && sent.entry.ordinal == 0);
    scene_end(&s);
}

/* Behaviours 63, 70, 71, 82. */
static void count_mask_and_index_map_choose_rows(void)
{
    struct scene s = scene_begin(keep, 0);
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    float data[3] = {70, 80, 90};
    int64_t three = 3, one = 1, two = 2;
    const uint32_t map[2] = {2, 0};
    cbd_tensor tensor = floats(data, 1, &three, NULL);
    options.count = 2;
    options.index_map = map;
    options.index_map_count = 2;
    write_ok(s, &tensor, &options);
    cbd_abi_write_entry entry = entry_sent();
    float got[2];
    memcpy(got, sent.arguments + entry.payload.offset_bytes, sizeof got);
    CHECK(entry.payload_rows == 2 && got[0] == 90 && got[1] == 70); /* a gather, not a scatter */

    options.index_map = NULL;
    options.count = 1;
    tensor.shape = &one;
    write_ok(s, &tensor, &options);
    CHECK(entry_sent().selection.count == 1 && entry_sent().selection.sort == CBD_SELECT_ROWS);

    uint64_t mask = 2;
    options.count = 2;
    options.mask = &mask;
    options.mask_words = 1;
    tensor.shape = &two;
    write_ok(s, &tensor, &options);
    entry = entry_sent();
    CHECK(entry.selection.sort == CBD_SELECT_MASK && entry.selection.word_count == 1 && entry.selection.count == 2);
    CHECK(memcmp(sent.arguments + entry.selection.words_offset_bytes, &mask, 8) == 0);
    scene_end(&s);
}

/* Strides may be anything: what no address can be is refused, what is never used is not looked at. */
static void strides_that_overflow_are_refused_and_unused_ones_are_not(void)
{
    struct scene s = scene_begin(keep, 0);
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, INT64_MIN / 2, INT64_MIN / 4, INT64_MAX / 4, INT64_MAX / 2, INT64_MAX};
    int64_t shape[2] = {2, 4}, strides[2], one_row[1] = {4};
    cbd_tensor tensor = floats(data, 2, shape, strides);
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++)
        for (int at = 0; at < 2; at++) {
            strides[0] = 4;
            strides[1] = 1;
            strides[at] = extremes[i];
            CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "pose", &tensor, &options, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
            CHECK(strstr(error.text, "strides") != NULL && strstr(error.text, "address space") != NULL);
            cbd_tensor row = floats(data, 1, one_row, &extremes[i]); /* the row of a publish */
            CHECK_STATUS(cbd_publish(s.stage, "row", &row, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
        }
    strides[0] = INT64_MAX / 16; /* each fits, their sum does not */
    strides[1] = INT64_MAX / 16;
    shape[0] = 3;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "pose", &tensor, &options, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    shape[0] = 2; /* behind the rows one element: its stride means nothing */
    shape[1] = 1;
    strides[0] = 4;
    strides[1] = INT64_MIN;
    write_ok(s, &tensor, &options);
    float got[2];
    memcpy(got, sent.arguments + entry_sent().payload.offset_bytes, sizeof got);
    CHECK(got[0] == 1 && got[1] == 5);

    static const char *const a[] = {"/a"};
    cbd_query *single, *none;
    CHECK_STATUS(cbd_query_from_path_list(s.stage, a, NULL, 1, &single, &error), CBD_STATUS_OK);
    int64_t one[2] = {1, 4}, nothing[3] = {0, INT64_MAX, INT64_MAX};
    strides[0] = INT64_MIN;
    strides[1] = 2;
    cbd_op *op;
    tensor = floats(data, 2, one, strides);
    CHECK_STATUS(cbd_write_attribute(s.stage, single, "pose", &tensor, &options, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    memcpy(got, sent.arguments + entry_sent().payload.offset_bytes, sizeof got);
    CHECK(got[0] == 1 && got[1] == 3);
    tensor = floats(NULL, 3, nothing, NULL); /* no rows of a size that none can have */
    CHECK_STATUS(cbd_query_from_path_list(s.stage, NULL, NULL, 0, &none, &error), CBD_STATUS_OK);
    CHECK(cbd_write_attribute(s.stage, none, "pose", &tensor, &options, NULL, &error) != CBD_STATUS_OK);
    options.row_ndim = 2;
    options.row_shape[0] = options.row_shape[1] = UINT64_MAX;
    CHECK_STATUS(cbd_write_attribute(s.stage, none, "pose", &tensor, &options, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "(18446744073709551615, 18446744073709551615)") != NULL);
    cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .row_ndim = 2,
                         .row_shape = {UINT64_C(1) << 63, 2}};
    CHECK_STATUS(cbd_declare(s.stage, "pose", &schema, 0, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "(9223372036854775808, 2)") != NULL);
    cbd_query_release(single);
    cbd_query_release(none);
    scene_end(&s);
}

/* R6: INSERT is refused in the call itself, and sent to a broker that serves it (it then has deletes too). */
static void insert_is_sent_only_to_a_broker_that_serves_it(void)
{
    for (int serves = 0; serves < 2; serves++) {
        struct scene s = {.f = fake_start()};
        s.f->on_op = keep;
        if (serves)
            s.f->features |= CBD_FEATURE_DELETE;
        s.stage = fake_connect(s.f);
        CHECK_STATUS(cbd_query_from_path_list(s.stage, ab, NULL, 2, &s.query, &error), CBD_STATUS_OK);
        memset(&sent.entry, 0, sizeof sent.entry);
        cbd_status wanted = serves ? CBD_STATUS_OK : CBD_STATUS_NOT_SUPPORTED;
        float data[2] = {1, 2};
        int64_t two = 2;
        cbd_tensor tensor = floats(data, 1, &two, NULL);
        cbd_write_options options = cbd_write_options_default();
        options.ordinal = 1;
        options.prim_mode = CBD_MODE_INSERT;
        cbd_op *op;
        CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "pose", &tensor, &options, &op, &error), wanted);
        if (serves) {
            CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
            cbd_abi_write_arguments arguments;
            memcpy(&arguments, sent.arguments, sizeof arguments);
            CHECK(sent.entry.opcode == CBD_OP_WRITE && arguments.prim_mode == CBD_MODE_INSERT);
        } else {
            CHECK(op == NULL && strstr(error.text, "insert") != NULL);
        }
        cbd_op_release(op);
        cbd_write_entry entry = {"pose", &tensor, NULL};
        CHECK_STATUS(cbd_write_attributes(s.stage, s.query, &entry, 1, 1, CBD_MODE_INSERT, NULL, &error), wanted);
        cbd_map_options map = {.ordinal = 1, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .prim_mode = CBD_MODE_INSERT};
        cbd_session *session;
        CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "pose", &map, &session, &error), wanted);
        cbd_session_release(session);
        CHECK(serves || sent.entry.op_id == 0);
        if (serves) {
            /* behaviour 94: what is sealed decides at once */
            uint32_t mass = fake_column(s.f, "mass", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
            fake_publish(s.f, mass, 0, fake_layout(s.f, &ab[1], 1, 1), 1, data, sizeof data[0], 1);
            cbd_op *none;
            options.ordinal = 2;
            CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "pose", &tensor, &options, &none, &error), CBD_STATUS_ALREADY_EXISTS);
            CHECK(none == NULL && strstr(error.text, "/b") != NULL && strstr(error.text, "mass") != NULL && fake_pins_held(s.f) == 0);
            CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "pose", &map, &session, &error), CBD_STATUS_ALREADY_EXISTS);
        }
        scene_end(&s);
    }
}

/* Behaviour 147, 149: what is sent, what is refused at once, and that the broker decides what comes after. */
static void a_delete_sends_its_names_and_leaves_the_rest_to_the_broker(void)
{
    struct scene s = {.f = fake_start()};
    s.f->on_op = keep;
    s.f->features |= CBD_FEATURE_DELETE;
    s.stage = fake_connect(s.f);
    CHECK_STATUS(cbd_query_from_path_list(s.stage, ab, NULL, 2, &s.query, &error), CBD_STATUS_OK);
    float data[2] = {1, 2};
    int64_t two = 2;
    uint32_t mass = fake_column(s.f, "mass", CBD_DTYPE_FLOAT, 64, 1, 0, NULL);
    double rows[2] = {0};
    fake_publish(s.f, mass, 0, fake_layout(s.f, ab, 2, 1), 2, rows, sizeof rows, 3);
    cbd_abi_floor_row floor = {fake_string(s.f, CBD_STRING_TOKEN, "mass"), 3};
    fake_floors(s.f, 0, 0, 0, &floor, 1);
    cbd_tensor tensor = floats(data, 1, &two, NULL);
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 5;
    memset(&sent.entry, 0, sizeof sent.entry);
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "mass", &tensor, &options, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);

    static const char *const names[] = {"mass", "pose"}, *const reserved[] = {"@path"};
    CHECK_STATUS(cbd_delete_attributes(s.stage, s.query, names, 2, 3, NULL, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK_STATUS(cbd_delete_attributes(s.stage, s.query, NULL, 0, 0, NULL, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK_STATUS(cbd_delete_attributes(s.stage, s.query, reserved, 1, 4, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_delete_attributes(s.stage, NULL, names, 2, 4, NULL, &error), CBD_STATUS_INVALID_HANDLE);
    CHECK(sent.entry.op_id == 0);

    cbd_op *op;
    CHECK_STATUS(cbd_delete_attributes(s.stage, s.query, names, 2, 4, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_abi_string_list list;
    memcpy(&list, sent.arguments, sizeof list);
    CHECK(sent.entry.opcode == CBD_OP_DELETE && sent.entry.ordinal == 4 && sent.entry.flags == 0 && list.count == 2);
    CHECK(memcmp(sent.arguments + sizeof list + sizeof(uint32_t), "mass", 4) == 0);

    /* The delete is not sealed: another type may be what comes after it. */
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "mass", &tensor, &options, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    scene_end(&s);
}

/* R6: in the call itself, whatever takes a name or a list of texts; a list's error says which one. */
static void texts_that_cannot_be_are_refused_by_every_call(void)
{
    struct scene s = scene_begin(keep, 0);
    static const char *const bad[] = {"\xff", "pose\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80z"};
    static const char *const good[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf", "a"};
    float data[2] = {1, 2};
    int64_t two = 2;
    cbd_tensor tensor = floats(data, 1, &two, NULL);
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    cbd_map_options map = {.ordinal = 1, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_snapshot *snapshot;
    CHECK_STATUS(cbd_snapshot_open(s.stage, &snapshot, &error), CBD_STATUS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *const names[] = {"fine", bad[i]};
        cbd_write_entry entry = {bad[i], &tensor, NULL};
        cbd_session *session;
        cbd_read *read;
        const cbd_read_group *group;
        uint64_t floor;
        memset(&sent.entry, 0, sizeof sent.entry);
        cbd_stage *st = s.stage;
        const cbd_status calls[] = {
            cbd_write_attribute(st, s.query, bad[i], &tensor, &options, NULL, &error),
            cbd_write_attributes(st, s.query, &entry, 1, 1, 0, NULL, &error),
            cbd_publish(st, bad[i], &tensor, 0, NULL, &error),
            cbd_declare(st, bad[i], &schema, 0, 0, NULL, &error),
            cbd_map_attribute(st, s.query, bad[i], &map, &session, &error),
            cbd_latest(st, bad[i], &group, &error),
            cbd_write_floor(st, bad[i], &floor, &error),
            cbd_attribute_schema(st, bad[i], &schema, &error),
            cbd_snapshot_floor(snapshot, bad[i], &floor, &error),
            cbd_snapshot_read(snapshot, s.query, names, 2, &read, &error),
            cbd_read_attributes(st, s.query, names, 2, &read, &error),
            cbd_advance_write_floor(st, 1, CBD_SCOPE_INCLUDE, names, 2, 0, NULL, &error),
        };
        for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++)
            CHECK_STATUS(calls[k], CBD_STATUS_INVALID_ARGUMENT);
        CHECK(strstr(error.text, "names[1]") != NULL && strstr(error.text, "not UTF-8") != NULL);
        CHECK(sent.entry.op_id == 0 || sent.entry.opcode == CBD_OP_QUERY_PATHS); /* that of "/" */
        schema.kind = CBD_KIND_FIXED; /* cbd_attribute_schema cleared it */
        schema.code = CBD_DTYPE_FLOAT;
        schema.bits = 32;
        schema.lanes = 1;
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK_STATUS(cbd_declare(s.stage, good[i], &schema, 0, 0, NULL, &error), CBD_STATUS_OK);
    cbd_snapshot_release(snapshot);

    static const struct {
        const char *path, *why;
    } paths[] = {{"a", "start"}, {"", "empty"}, {"//a", "component"}, {"/a//b", "component"}, {"/a/", "ends"}, {"/\xff", "not UTF-8"}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const char *const list[] = {"/", "/b", paths[i].path};
        cbd_query *query;
        uint64_t ids[3];
        CHECK_STATUS(cbd_query_from_path_list(s.stage, list, NULL, 3, &query, &error), CBD_STATUS_INVALID_ARGUMENT);
        CHECK(query == NULL && strstr(error.text, "path 2 of the list") != NULL && strstr(error.text, paths[i].why) != NULL);
        CHECK_STATUS(cbd_intern(s.stage, 1, list, NULL, 3, ids, &error), CBD_STATUS_INVALID_ARGUMENT);
    }
    const char *const holes[] = {"a", "b\0c"};
    const size_t lengths[] = {1, 3};
    uint64_t ids[2];
    CHECK_STATUS(cbd_intern(s.stage, 0, holes, lengths, 2, ids, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "token 1 of the list") != NULL && strstr(error.text, "NUL") != NULL);
    scene_end(&s);
}

/* Each text names the one option that is wrong; and how many groups there may be is the broker's answer. */
static void a_map_names_the_option_that_is_wrong(void)
{
    struct scene s = scene_begin(keep, 0);
    const cbd_map_options good = {.ordinal = 1, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_session *session;
    cbd_map_options o = good;
    o.init = 9;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "pose", &o, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "init is 9") != NULL && strstr(error.text, "prim_mode") == NULL);
    o = good;
    o.row_ndim = 7;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "pose", &o, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "row_shape has 7") != NULL && strstr(error.text, "init") == NULL);
    o = good;
    o.prim_mode = 2;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "pose", &o, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "prim_mode is 2") != NULL && strstr(error.text, "init") == NULL);

    enum { N = 20000 }; /* descriptors of so many groups have no room in the channel */
    static char texts[N][12];
    static const char *paths[N];
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "/p%d", i % 100);
        paths[i] = texts[i];
    }
    cbd_query *many;
    CHECK_STATUS(cbd_query_from_path_list(s.stage, paths, NULL, N, &many, &error), CBD_STATUS_OK);
    o = good;
    o.group_rows = 1;
    memset(&sent.entry, 0, sizeof sent.entry);
    cbd_map_attribute(s.stage, many, "pose", &o, &session, &error);
    cbd_session_release(session);
    CHECK(sent.entry.opcode == CBD_OP_MAP || sent.entry.opcode == CBD_OP_UNMAP_ATTRIBUTE); /* it was asked */
    cbd_query_release(many);
    scene_end(&s);
}

/* Several attributes in one op, and what refuses all of them. */
static void a_batch_is_one_op_of_all_its_entries(void)
{
    struct scene s = scene_begin(keep, 0);
    float pose[6] = {1, 2, 3, 4, 5, 6}, mass[2] = {7, 8};
    static float large[2 * 200000];
    int64_t two = 2, by3[2] = {2, 3}, wide[2] = {2, 200000}, three = 3;
    cbd_tensor p = floats(pose, 2, by3, NULL), m = floats(mass, 1, &two, NULL), big = floats(large, 2, wide, NULL),
               wrong = floats(pose, 1, &three, NULL);
    cbd_write_entry entries[2] = {{"pose", &p, NULL}, {"mass", &m, NULL}};
    cbd_op *op;
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 2, 4, 0, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_abi_write_arguments arguments;
    cbd_abi_write_entry second;
    memcpy(&arguments, sent.arguments, sizeof arguments);
    memcpy(&second, sent.arguments + sizeof arguments + sizeof second, sizeof second);
    CHECK(sent.entry.opcode == CBD_OP_WRITE && sent.entry.ordinal == 4 && sent.entry.flags == 0 && arguments.entry_count == 2);
    CHECK(entry_sent().schema.dtype_lanes == 3 && second.payload.length_bytes == 8);
    CHECK(memcmp(sent.arguments + second.payload.offset_bytes, mass, 8) == 0);

    memset(&sent.entry, 0, sizeof sent.entry);
    entries[1] = (cbd_write_entry){"mass", &wrong, NULL};
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 2, 4, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "\"mass\"") != NULL && strstr(error.text, "3 rows") != NULL); /* which one it is (behaviour 224) */
    entries[1] = (cbd_write_entry){"pose", &p, NULL};
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 2, 4, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "entry 0 and entry 1") != NULL);
    cbd_write_options shape = cbd_write_options_default();
    shape.row_ndim = 1;
    shape.row_shape[0] = 200000;
    entries[1] = (cbd_write_entry){"large", &big, &shape};
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 2, 4, 0, &op, &error), CBD_STATUS_LIMIT);
    CHECK(strstr(error.text, "2 of 2 attributes") != NULL && strstr(error.text, "area has 262144") != NULL);
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 0, 4, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, NULL, 2, 4, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 1, 0, 0, &op, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 1, 4, 2, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_write_attributes(s.stage, s.query, entries, 1 << 20, 4, 0, &op, &error), CBD_STATUS_LIMIT); /* before it reads them */
    CHECK(op == NULL && sent.entry.op_id == 0);
    scene_end(&s);
}

struct bad {
    const char *what;
    cbd_tensor tensor;
    cbd_write_options options;
    const char *name;
    cbd_status status;
    const char *text;
};

/* R6: all of it synchronous, no op, nothing sent. Behaviours 8, 13, 15, 44, 51, 64, 65, 67, 74, 81, 101, 102. */
static void what_arguments_and_sealed_state_decide_is_refused_before_sending(void)
{
    struct scene s = scene_begin(keep, 0);
    float data[1024] = {0};
    static int64_t none[1] = {0}, two[1] = {2}, three[1] = {3}, wide[2] = {2, 300}, holes[2] = {2, 0}, minus[1] = {-2};
    static uint32_t map[2] = {0, 5};
    static uint64_t mask = 1;
    cbd_abi_floor_row floor = {0, 8};
    uint32_t x = fake_column(s.f, "old", CBD_DTYPE_FLOAT, 64, 1, 0, NULL);
    fake_publish(s.f, x, 0, fake_layout(s.f, ab, 2, 1), 2, data, 2 * sizeof(double), 8);
    floor.name_id = fake_string(s.f, CBD_STRING_TOKEN, "old");
    fake_floors(s.f, 0, 0, 0, &floor, 1);
    cbd_write_options at1 = cbd_write_options_default();
    at1.ordinal = 1;
#define OPTIONS_OF(from, ...) ({ __typeof__(from) o_ = from; __VA_ARGS__; o_; })
#define OPTIONS(...) OPTIONS_OF(at1, __VA_ARGS__)
    const struct bad cases[] = {
        {"too few rows", floats(data, 1, three, NULL), at1, "new", CBD_STATUS_INVALID_ARGUMENT, "attribute \"new\": tensor of shape (3,) has 3 rows"},
        {"rank 0", floats(data, 0, two, NULL), at1, "new", CBD_STATUS_INVALID_ARGUMENT, "rank 0"},
        {"folds too wide", floats(data, 2, wide, NULL), at1, "new", CBD_STATUS_NOT_SUPPORTED, "row_shape (300,)"},
        {"empty rows", floats(data, 2, holes, NULL), at1, "new", CBD_STATUS_INVALID_ARGUMENT, "at least one element"},
        {"negative extent", floats(data, 1, minus, NULL), at1, "new", CBD_STATUS_INVALID_ARGUMENT, "negative"},
        {"no data", floats(NULL, 1, two, NULL), at1, "new", CBD_STATUS_INVALID_ARGUMENT, "no data"},
        {"no rows for two prims", floats(data, 1, none, NULL), at1, "new", CBD_STATUS_INVALID_ARGUMENT, "0 rows"},
        {"ordinal 0", floats(data, 1, two, NULL), OPTIONS(o_.ordinal = 0), "new", CBD_STATUS_FLOOR_VIOLATION, "floor is 0"},
        {"count 0", floats(data, 1, two, NULL), OPTIONS(o_.count = 0), "new", CBD_STATUS_INVALID_ARGUMENT, "count is 0"},
        {"count too large", floats(data, 1, three, NULL), OPTIONS(o_.count = 3), "new", CBD_STATUS_INVALID_ARGUMENT, "2 prims"},
        {"map without count", floats(data, 1, two, NULL), OPTIONS(o_.index_map = map), "new", CBD_STATUS_INVALID_ARGUMENT, "count"},
        {"map out of range", floats(data, 1, two, NULL), OPTIONS(o_.index_map = map; o_.index_map_count = 2; o_.count = 2),
         "new", CBD_STATUS_INVALID_ARGUMENT, "index_map[1] is 5"},
        {"map too short", floats(data, 1, two, NULL), OPTIONS(o_.index_map = map; o_.index_map_count = 1; o_.count = 2),
         "new", CBD_STATUS_INVALID_ARGUMENT, "index_map has 1 entries (index_map_count): a count of 2 needs 2"},
        {"map of unknown length", floats(data, 1, two, NULL), OPTIONS(o_.index_map = map; o_.count = 2), "new",
         CBD_STATUS_INVALID_ARGUMENT, "index_map has 0 entries"},
        {"mask too short", floats(data, 1, two, NULL), OPTIONS(o_.mask = &mask; o_.count = 2), "new",
         CBD_STATUS_INVALID_ARGUMENT, "mask has 0 words of 64 bits (mask_words): a count of 2 needs 1"},
        {"another CPU", OPTIONS_OF(floats(data, 1, two, NULL), o_.device_type = CBD_DEVICE_CPU; o_.device_id = 5), at1, "new",
         CBD_STATUS_INVALID_ARGUMENT, "CPU device 5"},
        {"another device of no type", OPTIONS_OF(floats(data, 1, two, NULL), o_.device_id = 5), at1, "new",
         CBD_STATUS_INVALID_ARGUMENT, "CPU device 5"},
        {"map and mask", floats(data, 1, two, NULL), OPTIONS(o_.index_map = map; o_.mask = &mask; o_.count = 2), "new",
         CBD_STATUS_INVALID_ARGUMENT, "mask"},
        {"token id as float", floats(data, 1, two, NULL), OPTIONS(o_.semantic = CBD_SEMANTIC_TOKEN_ID), "new",
         CBD_STATUS_INVALID_ARGUMENT, "token_id"},
        {"reserved name", floats(data, 1, two, NULL), at1, "@floor", CBD_STATUS_NOT_SUPPORTED, "reserved"},
        {"empty name", floats(data, 1, two, NULL), at1, "", CBD_STATUS_INVALID_ARGUMENT, "0 bytes"},
        {"array kind", floats(data, 1, two, NULL), OPTIONS(o_.is_array = 1), "new", CBD_STATUS_NOT_SUPPORTED, "array"},
        {"other dtype", floats(data, 1, two, NULL), OPTIONS(o_.ordinal = 9), "old", CBD_STATUS_INVALID_ARGUMENT,
         "attribute \"old\": tensor of shape (2,) makes rows of float32: the attribute holds float64"},
        {"other row shape", floats(data, 1, two, NULL), OPTIONS(o_.row_ndim = 1; o_.row_shape[0] = 4), "old",
         CBD_STATUS_INVALID_ARGUMENT, "row_shape"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cbd_op *op = (cbd_op *)1;
        memset(&sent.entry, 0, sizeof sent.entry);
        cbd_status got = cbd_write_attribute(s.stage, s.query, cases[i].name, &cases[i].tensor, &cases[i].options, &op, &error);
        if (got != cases[i].status || op != NULL || strstr(error.text, cases[i].text) == NULL) {
            fprintf(stderr, "%s: %s: %s\n", cases[i].what, cbd_status_name(got), error.text);
            exit(1);
        }
        CHECK(error.status == got && sent.entry.op_id == 0);
    }
    /* L6: prims that do not carry the name may have it of another type. */
    static const char *const c[] = {"/c"};
    static int64_t one[1] = {1};
    cbd_query *elsewhere;
    CHECK_STATUS(cbd_query_from_path_list(s.stage, c, NULL, 1, &elsewhere, &error), CBD_STATUS_OK);
    cbd_write_options at9 = at1;
    at9.ordinal = 9;
    cbd_tensor narrow = floats(data, 1, one, NULL);
    cbd_op *sent_op;
    CHECK_STATUS(cbd_write_attribute(s.stage, elsewhere, "old", &narrow, &at9, &sent_op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(sent_op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(sent_op);
    cbd_query_release(elsewhere);
    double doubles[2] = {0};
    cbd_tensor tensor = {.data = doubles, .ndim = 1, .shape = two, .code = CBD_DTYPE_FLOAT, .bits = 64, .lanes = 1};
    cbd_write_options o = at1;
    o.ordinal = 8;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "old", &tensor, &o, NULL, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK(strstr(error.text, "ordinal 8") != NULL && strstr(error.text, "floor is 8") != NULL);
    tensor.lanes = 0;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "new", &tensor, &at1, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    tensor.lanes = 1;
    tensor.device_type = CBD_DEVICE_CUDA;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "new", &tensor, &at1, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_write_attribute(s.stage, NULL, "new", &tensor, &at1, NULL, &error), CBD_STATUS_INVALID_HANDLE);
    scene_end(&s);
}

/* Above the inline limit: map, copy, unmap; the op is the last one. */
static void a_large_write_maps_copies_and_unmaps(void)
{
    struct scene s = scene_begin(keep, 0);
    enum { N = 20000 };
    static float data[2 * N];
    for (int i = 0; i < 2 * N; i++)
        data[i] = (float)(i * 7 % 1000);
    int64_t shape[2] = {2, N};
    cbd_write_options options = cbd_write_options_default();
    options.row_ndim = 1;
    options.row_shape[0] = N;
    options.next_ordinal = options.seal = 1;
    cbd_tensor tensor = floats(data, 2, shape, NULL);
    write_ok(s, &tensor, &options);
    CHECK(sent.entry.opcode == CBD_OP_UNMAP_ATTRIBUTE && sent.entry.flags == (CBD_FLAG_NEXT_ORDINAL | CBD_FLAG_SEAL));
    CHECK(memcmp(s.f->segments[1] + 4096, data, sizeof data) == 0 && atomic_load(&s.f->aborts) == 0);
    scene_end(&s);
}

static cbd_abi_submission_entry unmapped; /* the last end of a session */
static cbd_abi_unmap_arguments unmapped_what;
static uint32_t unmap_status;

static bool keep_unmap(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    if (e->opcode == CBD_OP_UNMAP_ATTRIBUTE) {
        unmapped = *e;
        memcpy(&unmapped_what, f->channel + ((cbd_abi_channel_header *)f->channel)->argument_offset_bytes + e->argument_offset_bytes,
               sizeof unmapped_what);
        c->status = unmap_status;
    }
    return true;
}

/* Behaviour 63, 82: large rows of some prims, by the one op that ends the session. */
static void a_large_write_of_some_prims_hands_back_those_rows_only(void)
{
    struct scene s = scene_begin(keep, 0);
    enum { N = 400000 }; /* more than the argument area has room for */
    static float data[2 * N];
    int64_t shape[2] = {2, N};
    const uint64_t mask = 2;
    cbd_op *op;
    s.f->on_op = keep_unmap;
    for (int i = 0; i < 2 * N; i++)
        data[i] = (float)i;
    for (int masked = 0; masked < 2; masked++)
        for (int refused = 0; refused < 2; refused++) {
            cbd_write_options options = cbd_write_options_default();
            options.ordinal = 1;
            options.seal = 1;
            options.row_ndim = 1;
            options.row_shape[0] = N;
            options.count = (uint64_t)(shape[0] = masked ? 2 : 1);
            options.mask = masked ? &mask : NULL;
            options.mask_words = 1;
            unmap_status = refused ? CBD_STATUS_OUT_OF_MEMORY : CBD_STATUS_OK;
            cbd_tensor tensor = floats(data, 2, shape, NULL);
            CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "pose", &tensor, &options, &op, &error), CBD_STATUS_OK);
            CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), unmap_status);
            CHECK(unmapped.op_id == cbd_op_id(op) && unmapped.flags == CBD_FLAG_SEAL);
            CHECK(unmapped_what.selection.count == options.count &&
                  unmapped_what.selection.sort == (masked ? CBD_SELECT_MASK : CBD_SELECT_ROWS) &&
                  unmapped_what.selection.word_count == (uint32_t)masked);
            cbd_op_release(op);
            CHECK(atomic_load(&s.f->last_opcode) == CBD_OP_UNMAP_ATTRIBUTE && atomic_load(&s.f->aborts) == 0);
        }
    CHECK(memcmp(s.f->segments[1] + 4096, data, sizeof data) == 0);
    scene_end(&s);
}

/* M3: what is not committed never happened; handles die at unmap. */
static void a_session_commits_once_or_aborts(void)
{
    struct scene s = scene_begin(keep, 0);
    cbd_map_options options = {.ordinal = 3, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 3, .init = CBD_INIT_ZERO};
    cbd_session *session;
    cbd_group *group, *none;
    cbd_op *op;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "points", &options, &session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &group, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &none, &error), CBD_STATUS_END);
    CHECK(group->rows == 2 && group->row_bytes == 12 && group->ndim == 2 && group->shape[1] == 3 && group->ordinal == 3);
    CHECK(group->prims[1] == cbd_query_ids(s.query)[1]);
    memset(group->data, 7, 24);
    CHECK_STATUS(cbd_unmap_attribute(session, CBD_FLAG_NEXT_ORDINAL, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_unmap_group(group, CBD_FLAG_COPY, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    CHECK(sent.entry.opcode == CBD_OP_UNMAP_GROUP && sent.entry.flags == CBD_FLAG_COPY);
    CHECK_STATUS(cbd_unmap_group(group, 0, &op, &error), CBD_STATUS_INVALID_HANDLE);
    CHECK_STATUS(cbd_unmap_attribute(session, 0, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    CHECK_STATUS(cbd_unmap_attribute(session, 0, &op, &error), CBD_STATUS_INVALID_HANDLE);
    CHECK_STATUS(cbd_fetch_map_next(session, &none, &error), CBD_STATUS_INVALID_HANDLE);
    CHECK_STATUS(cbd_abort(session, &error), CBD_STATUS_OK); /* too late to matter */
    cbd_session_release(session);
    CHECK(atomic_load(&s.f->aborts) == 0);

    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "points", &options, &session, &error), CBD_STATUS_OK);
    cbd_session_release(session); /* dropped while open */
    for (int i = 0; i < 6000 && atomic_load(&s.f->aborts) == 0; i++)
        usleep(5000);
    CHECK(atomic_load(&s.f->aborts) == 1);
    options.lanes = 0;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "points", &options, &session, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(session == NULL && strstr(error.text, "dtype") != NULL);
    scene_end(&s);
}

/* What was handed back group by group is sealed by the end of the session: its flags are sent all the same. */
static void the_end_of_a_session_seals_what_was_handed_back_before(void)
{
    struct scene s = scene_begin(keep, 0);
    for (int next = 0; next < 2; next++) {
        cbd_map_options options = {.ordinal = 3, .next_ordinal = (uint32_t)next, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
        cbd_session *session;
        cbd_group *group;
        cbd_op *op;
        CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "points", &options, &session, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_fetch_map_next(session, &group, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_unmap_group(group, 0, NULL, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_unmap_attribute(session, CBD_FLAG_SEAL, &op, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
        cbd_op_release(op);
        CHECK(sent.entry.opcode == CBD_OP_UNMAP_ATTRIBUTE);
        CHECK(sent.entry.flags == (CBD_FLAG_SEAL | (next ? CBD_FLAG_NEXT_ORDINAL : 0u)));
        cbd_session_release(session);
    }
    scene_end(&s);
}

/* The memory stays mapped until the session is released, also over a close. */
static void mapped_memory_outlives_close(void)
{
    struct scene s = scene_begin(keep, 0);
    cbd_map_options options = {.ordinal = 3, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_session *session;
    cbd_group *group;
    CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "points", &options, &session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &group, &error), CBD_STATUS_OK);
    cbd_stage_close(s.stage);
    ((float *)group->data)[1] = 1;
    CHECK_STATUS(cbd_unmap_attribute(session, 0, NULL, &error), CBD_STATUS_SESSION_ENDED);
    cbd_query_release(s.query); /* and not scene_end: the session still has the stage */
    cbd_stage_release(s.stage);
    fake_stop(s.f);
    CHECK(((float *)group->data)[1] == 1);
    cbd_session_release(session);
}

/* M1: under GUARD a late write stops its writer. */
static void under_guard_a_write_after_unmap_is_a_fault(void)
{
    setenv("CALLBOARD_GUARD", "1", 1);
    struct scene s = scene_begin(keep, 0);
    unsetenv("CALLBOARD_GUARD");
    cbd_map_options options = {.ordinal = 3, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    for (int turn = 0; turn < 2; turn++) { /* the pages are writable again when they are leased again */
        cbd_session *session;
        cbd_group *group;
        CHECK_STATUS(cbd_map_attribute(s.stage, s.query, "points", &options, &session, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_fetch_map_next(session, &group, &error), CBD_STATUS_OK);
        ((float *)group->data)[0] = 1;
        CHECK_STATUS(cbd_unmap_attribute(session, 0, NULL, &error), CBD_STATUS_OK);
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            *(volatile float *)group->data = 2;
            _exit(0);
        }
        int how;
        CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV);
        cbd_session_release(session);
    }
    scene_end(&s);
}

static void seals_and_declarations_send_their_names(void)
{
    struct scene s = scene_begin(keep, 0);
    const char *const two[] = {"pose", "mass"};
    cbd_op *op;
    CHECK_STATUS(cbd_advance_write_floor(s.stage, 5, CBD_SCOPE_INCLUDE, two, 2, 123, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_abi_seal_arguments seal;
    cbd_abi_string_list list;
    memcpy(&seal, sent.arguments, sizeof seal);
    memcpy(&list, sent.arguments + sizeof seal, sizeof list);
    CHECK(sent.entry.opcode == CBD_OP_SEAL && sent.entry.ordinal == 5 && sent.entry.value == CBD_SCOPE_INCLUDE && seal.stamp_ns == 123);
    CHECK(list.count == 2 && list.total_bytes == sizeof list + 16 && sent.entry.argument_bytes == sizeof seal + list.total_bytes);
    CHECK_STATUS(cbd_advance_write_floor(s.stage, 5, CBD_SCOPE_ALL, two, 2, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_advance_write_floor(s.stage, 5, 3, NULL, 0, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);

    cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_UINT, .bits = 8, .lanes = 1, .row_ndim = 3, .row_shape = {480, 640, 3}};
    CHECK_STATUS(cbd_declare(s.stage, "rgb", &schema, 2, CBD_HANDOFF_COPY, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_abi_declare_arguments declared;
    memcpy(&declared, sent.arguments, sizeof declared);
    CHECK(declared.retain == 2 && declared.handoff == CBD_HANDOFF_COPY && declared.schema.row_shape[1] == 640 && declared.name_bytes == 3);
    schema.row_shape[1] = 0;
    CHECK_STATUS(cbd_declare(s.stage, "rgb", &schema, 0, 0, &op, &error), CBD_STATUS_INVALID_ARGUMENT);

    float value = 4;
    cbd_tensor scalar = floats(&value, 0, NULL, NULL); /* publish takes a single value */
    CHECK_STATUS(cbd_publish(s.stage, "gain", &scalar, 0, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    CHECK(entry_sent().payload_rows == 1 && entry_sent().schema.row_dimensions == 0);
    int64_t shape[2] = {1, 1};
    cbd_tensor image = floats(&value, 2, shape, NULL);
    CHECK_STATUS(cbd_publish(s.stage, "image", &image, CBD_SEMANTIC_COLOR, NULL, &error), CBD_STATUS_OK);
    scene_end(&s);
}

/* Field report G9: readers trust the type. */
static void a_bool_is_0_or_1(void)
{
    struct scene s = scene_begin(keep, 0);
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    uint8_t data[6] = {0, 1, 2, 1, 0, 255};
    int64_t shape[2] = {2, 1}, strides[2] = {3, 1}, one[1] = {1};
    cbd_tensor tensor = {.data = data, .ndim = 2, .shape = shape, .strides = strides, .code = CBD_DTYPE_BOOL, .bits = 8, .lanes = 1};
    write_ok(s, &tensor, &options); /* bytes 0 and 3 */
    tensor.lanes = 2;
    shape[0] = 1;
    shape[1] = 2;
    CHECK_STATUS(cbd_publish(s.stage, "lanes", &tensor, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT); /* bytes 0 to 3 */
    CHECK(strstr(error.text, "bool") != NULL && strstr(error.text, "uint8") != NULL);
    tensor = (cbd_tensor){.data = data + 2, .ndim = 1, .shape = one, .code = CBD_DTYPE_BOOL, .bits = 8, .lanes = 1};
    CHECK_STATUS(cbd_publish(s.stage, "one", &tensor, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    const cbd_tensor rows[2] = {{.data = data, .ndim = 1, .shape = one, .code = CBD_DTYPE_BOOL, .bits = 8, .lanes = 1}, tensor};
    options.is_array = 1;
    options.tensor_count = 2;
    CHECK_STATUS(cbd_write_attribute(s.stage, s.query, "rows", rows, &options, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "tensor 1") != NULL);
    tensor.code = CBD_DTYPE_UINT;
    CHECK_STATUS(cbd_publish(s.stage, "bytes", &tensor, 0, NULL, &error), CBD_STATUS_OK);
    scene_end(&s);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    RUN(a_semantic_that_is_not_known_here_is_passed_on);
    RUN(a_small_write_goes_inline_with_its_rows_gathered);
    RUN(count_mask_and_index_map_choose_rows);
    RUN(strides_that_overflow_are_refused_and_unused_ones_are_not);
    RUN(a_bool_is_0_or_1);
    RUN(insert_is_sent_only_to_a_broker_that_serves_it);
    RUN(a_delete_sends_its_names_and_leaves_the_rest_to_the_broker);
    RUN(texts_that_cannot_be_are_refused_by_every_call);
    RUN(a_map_names_the_option_that_is_wrong);
    RUN(a_batch_is_one_op_of_all_its_entries);
    RUN(what_arguments_and_sealed_state_decide_is_refused_before_sending);
    RUN(a_large_write_maps_copies_and_unmaps);
    RUN(a_large_write_of_some_prims_hands_back_those_rows_only);
    RUN(a_session_commits_once_or_aborts);
    RUN(the_end_of_a_session_seals_what_was_handed_back_before);
    RUN(mapped_memory_outlives_close);
    RUN(under_guard_a_write_after_unmap_is_a_fault);
    RUN(seals_and_declarations_send_their_names);
    return 0;
}
