/* The main verbs against a real broker: test_live [stage]. Prints an ok line for
 * each part and exits non-zero at the first failure. Attribute names carry the
 * process id, so that it may run again on the same stage.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "callboard.h"

static cbd_error error;
static cbd_stage *stage;
static const char *stage_name;

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            printf("not ok %s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, error.text); \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

static void expect_at(int line, const char *what, cbd_status got, cbd_status wanted)
{
    if (got == wanted)
        return;
    printf("not ok line %d: %s gave %s, expected %s: %s\n", line, what, cbd_status_name(got), cbd_status_name(wanted), error.text);
    exit(1);
}
#define EXPECT(call, wanted) expect_at(__LINE__, #call, call, wanted)
#define OK(call) expect_at(__LINE__, #call, call, CBD_STATUS_OK)

static const char *name(const char *base)
{
    static char names[8][64];
    static int next;
    char *text = names[next++ % 8];
    snprintf(text, 64, "%s.%ld", base, (long)getpid());
    return text;
}

static cbd_op_result wait_for(cbd_op *op, cbd_status wanted)
{
    cbd_op_result result = {0};
    expect_at(__LINE__, "cbd_op_wait", cbd_op_wait(op, UINT64_C(20000000000), &result, &error), wanted);
    if (wanted != CBD_STATUS_OK)
        CHECK(cbd_op_error(op)[0] != 0);
    cbd_op_release(op);
    return result;
}

static cbd_op_result seal(uint64_t ordinal, const char *attribute)
{
    cbd_op *op;
    OK(cbd_advance_write_floor(stage, ordinal, CBD_SCOPE_INCLUDE, &attribute, 1, 0, &op, &error));
    return wait_for(op, CBD_STATUS_OK);
}

static const cbd_read_group *read_one(cbd_query *query, const char *attribute)
{
    cbd_read *read;
    const cbd_read_group *group = NULL, *more;
    OK(cbd_read_attributes(stage, query, &attribute, 1, &read, &error));
    if (cbd_fetch_read_next(read, &group, &error) == CBD_STATUS_OK)
        EXPECT(cbd_fetch_read_next(read, &more, &error), CBD_STATUS_END);
    cbd_read_release(read);
    return group;
}

static cbd_tensor tensor(const void *data, uint8_t code, uint8_t bits, int32_t ndim, const int64_t *shape)
{
    return (cbd_tensor){.data = data, .ndim = ndim, .shape = shape, .code = code, .bits = bits, .lanes = 1};
}

static cbd_query *robots(size_t n)
{
    char (*texts)[48] = malloc(n * sizeof *texts);
    const char **paths = malloc(n * sizeof *paths);
    cbd_query *query;
    for (size_t i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], "/World/p%ld/R%zu", (long)getpid(), i);
        paths[i] = texts[i];
    }
    OK(cbd_query_from_path_list(stage, paths, NULL, n, &query, &error));
    CHECK(cbd_query_size(query) == n);
    if (n > 0) {
        const char *text;
        size_t length;
        OK(cbd_resolve(stage, cbd_query_ids(query)[n - 1], &text, &length, &error));
        CHECK(length == strlen(paths[n - 1]) && memcmp(text, paths[n - 1], length) == 0);
    }
    free(texts);
    free(paths);
    return query;
}

/* Behaviours 1, 102, 104, 106, 107: write, seal, read; floors. */
static void write_seal_read(void)
{
    cbd_query *query = robots(3);
    const char *pose = name("pose");
    float data[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    int64_t shape[2] = {3, 3};
    cbd_tensor t = tensor(data, CBD_DTYPE_FLOAT, 32, 2, shape);
    cbd_write_options o = cbd_write_options_default();
    cbd_op *first, *second;
    o.ordinal = 7;
    o.semantic = CBD_SEMANTIC_POINT;
    OK(cbd_write_attribute(stage, query, pose, &t, &o, &first, &error));
    data[0] = 100; /* the same ordinal again: the second wins; and nobody waits for either */
    OK(cbd_write_attribute(stage, query, pose, &t, &o, &second, &error));
    CHECK(cbd_op_id(second) > cbd_op_id(first));
    cbd_op_result sealed = seal(7, pose);
    CHECK(sealed.value == 7 && sealed.epoch != 0);
    wait_for(first, CBD_STATUS_OK);
    wait_for(second, CBD_STATUS_OK);

    const cbd_read_group *group = read_one(query, pose);
    CHECK(group != NULL && group->prim_count == 3 && group->ordinal == 7 && group->floor == 7 && group->epoch >= sealed.epoch);
    CHECK(group->ndim == 2 && group->shape[1] == 3 && group->schema.lanes == 3 && group->schema.semantic == CBD_SEMANTIC_POINT);
    CHECK(group->contiguous && memcmp(group->data, data, sizeof data) == 0 && ((uintptr_t)group->data) % 64 == 0);
    CHECK(memcmp(group->prims, cbd_query_ids(query), 3 * sizeof(uint64_t)) == 0);

    EXPECT(cbd_write_attribute(stage, query, pose, &t, &o, &first, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK(first == NULL && strstr(error.text, "7") != NULL);
    CHECK(seal(4, pose).value == 7); /* backwards: not an error, and nothing moves */
    uint64_t floor;
    OK(cbd_write_floor(stage, pose, &floor, &error));
    CHECK(floor == 7);
    cbd_schema schema;
    OK(cbd_attribute_schema(stage, pose, &schema, &error));
    CHECK(schema.lanes == 3 && schema.bits == 32 && schema.kind == CBD_KIND_FIXED);
    EXPECT(cbd_attribute_schema(stage, name("nobody"), &schema, &error), CBD_STATUS_NOT_FOUND);

    /* A held view never changes. */
    float other[9] = {9, 9, 9, 9, 9, 9, 9, 9, 9};
    t.data = other;
    for (o.ordinal = 8; o.ordinal < 30; o.ordinal++) {
        OK(cbd_write_attribute(stage, query, pose, &t, &o, NULL, &error));
        seal(o.ordinal, pose);
    }
    CHECK(memcmp(group->data, data, sizeof data) == 0);
    cbd_release_group(group);
    group = read_one(query, pose);
    CHECK(group->ordinal == 29 && memcmp(group->data, other, sizeof other) == 0);
    cbd_release_group(group);
    cbd_query_release(query);
    printf("ok write, seal, read\n");
}

/* Behaviour 18: a partial write touches its rows only. */
static void partial_update(void)
{
    cbd_query *five = robots(5), *two;
    char texts[2][48];
    const char *paths[2] = {texts[0], texts[1]}, *mass = name("mass");
    snprintf(texts[0], sizeof texts[0], "/World/p%ld/R3", (long)getpid());
    snprintf(texts[1], sizeof texts[1], "/World/p%ld/R1", (long)getpid());
    OK(cbd_query_from_path_list(stage, paths, NULL, 2, &two, &error));
    double all[5] = {1, 2, 3, 4, 5}, some[2] = {40, 20};
    int64_t n5 = 5, n2 = 2;
    cbd_write_options o = cbd_write_options_default();
    cbd_tensor t = tensor(all, CBD_DTYPE_FLOAT, 64, 1, &n5);
    o.ordinal = 1;
    OK(cbd_write_attribute(stage, five, mass, &t, &o, NULL, &error));
    seal(1, mass);
    t = tensor(some, CBD_DTYPE_FLOAT, 64, 1, &n2);
    o.ordinal = 2;
    OK(cbd_write_attribute(stage, two, mass, &t, &o, NULL, &error));
    seal(2, mass);
    const cbd_read_group *group = read_one(five, mass);
    double expected[5] = {1, 20, 3, 40, 5};
    CHECK(group != NULL && memcmp(group->data, expected, sizeof expected) == 0);
    cbd_release_group(group);
    group = read_one(two, mass); /* rows 3 and 1: not contiguous, so an index map (behaviour 16) */
    CHECK(group->index_map != NULL && group->prim_count == 2);
    CHECK(((const double *)group->data)[group->index_map[0]] == 40 && ((const double *)group->data)[group->index_map[1]] == 20);
    cbd_release_group(group);
    cbd_query_release(five);
    cbd_query_release(two);
    printf("ok partial update\n");
}

/* M1, M3: in place, committed, dropped; the large way of writing. */
static void map_in_place(void)
{
    enum { N = 4096 };
    cbd_query *query = robots(N);
    const char *points = name("points");
    cbd_session *session;
    cbd_group *group;
    cbd_op *op;
    cbd_map_options o = {.ordinal = 1, .init = CBD_INIT_ZERO, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 3};
    for (int turn = 1; turn <= 5; turn++) {
        o.ordinal = (uint64_t)turn;
        OK(cbd_map_attribute(stage, query, points, &o, &session, &error));
        OK(cbd_fetch_map_next(session, &group, &error));
        CHECK(group->rows == N && group->row_bytes == 12);
        float *rows = group->data;
        for (int i = 0; turn == 1 && i < 3 * N; i++)
            CHECK(rows[i] == 0);
        for (int i = 0; i < 3 * N; i++)
            rows[i] = (float)(i + turn);
        OK(cbd_unmap_attribute(session, 0, &op, &error));
        seal((uint64_t)turn, points);
        wait_for(op, CBD_STATUS_OK);
        EXPECT(cbd_unmap_attribute(session, 0, NULL, &error), CBD_STATUS_INVALID_HANDLE);
        cbd_session_release(session);
        const cbd_read_group *seen = read_one(query, points);
        CHECK(seen != NULL && seen->ordinal == (uint64_t)turn);
        for (int i = 0; i < 3 * N; i++)
            CHECK(((const float *)seen->data)[i] == (float)(i + turn));
        cbd_release_group(seen);
    }
    o.ordinal = 6; /* dropped while open: nothing happens */
    OK(cbd_map_attribute(stage, query, points, &o, &session, &error));
    OK(cbd_fetch_map_next(session, &group, &error));
    memset(group->data, 0xff, N * 12);
    cbd_session_release(session);
    seal(6, points);
    const cbd_read_group *seen = read_one(query, points);
    CHECK(seen->ordinal == 5 && ((const float *)seen->data)[0] == 5);
    cbd_release_group(seen);

    o.ordinal = 7; /* sealed over: FLOOR_VIOLATION, and invisible (O3) */
    OK(cbd_map_attribute(stage, query, points, &o, &session, &error));
    seal(7, points);
    OK(cbd_unmap_attribute(session, 0, &op, &error));
    wait_for(op, CBD_STATUS_FLOOR_VIOLATION);
    cbd_session_release(session);

    static float big[N][64];
    for (int i = 0; i < N; i++)
        big[i][63] = (float)i;
    int64_t shape[2] = {N, 64};
    const char *wide = name("wide");
    cbd_tensor t = tensor(big, CBD_DTYPE_FLOAT, 32, 2, shape);
    cbd_write_options w = cbd_write_options_default();
    w.ordinal = 1;
    OK(cbd_write_attribute(stage, query, wide, &t, &w, &op, &error)); /* 1 MiB: through staging memory */
    wait_for(op, CBD_STATUS_OK);
    seal(1, wide);
    seen = read_one(query, wide);
    CHECK(seen != NULL && seen->schema.lanes == 64 && memcmp(seen->data, big, sizeof big) == 0);
    cbd_release_group(seen);
    cbd_query_release(query);
    printf("ok map in place\n");
}

/* O6, V9: one epoch for everything. */
static void snapshots(void)
{
    cbd_query *query = robots(1);
    const char *both[2] = {name("left"), name("right")};
    int64_t one = 1;
    cbd_snapshot *held = NULL;
    uint64_t held_value = 0;
    for (uint64_t i = 1; i <= 20; i++) {
        cbd_write_options o = cbd_write_options_default();
        cbd_tensor t = tensor(&i, CBD_DTYPE_UINT, 64, 1, &one);
        cbd_op *op;
        o.ordinal = i;
        OK(cbd_write_attribute(stage, query, both[0], &t, &o, NULL, &error));
        OK(cbd_write_attribute(stage, query, both[1], &t, &o, NULL, &error));
        OK(cbd_advance_write_floor(stage, i, CBD_SCOPE_INCLUDE, both, 2, 1000 + i, &op, &error));
        wait_for(op, CBD_STATUS_OK);
        cbd_snapshot *snapshot;
        OK(cbd_snapshot_open(stage, &snapshot, &error));
        cbd_read *read;
        const cbd_read_group *group;
        OK(cbd_snapshot_read(snapshot, query, both, 2, &read, &error));
        for (int k = 0; k < 2; k++) {
            OK(cbd_fetch_read_next(read, &group, &error));
            CHECK(*(const uint64_t *)group->data == i && group->epoch == cbd_snapshot_epoch(snapshot));
            cbd_release_group(group);
        }
        cbd_read_release(read);
        uint64_t floor;
        OK(cbd_snapshot_floor(snapshot, both[0], &floor, &error));
        CHECK(floor == i && cbd_snapshot_stamp(snapshot) == 1000 + i);
        if (i == 3) {
            held = snapshot;
            held_value = i;
        } else {
            cbd_snapshot_release(snapshot);
        }
    }
    cbd_read *read;
    const cbd_read_group *group;
    OK(cbd_snapshot_read(held, query, both, 2, &read, &error));
    OK(cbd_fetch_read_next(read, &group, &error));
    cbd_snapshot_release(held);
    cbd_read_release(read);
    CHECK(*(const uint64_t *)group->data == held_value && group->floor == held_value); /* the group alone keeps it */
    cbd_release_group(group);
    cbd_query_release(query);
    printf("ok snapshots\n");
}

static void *publish_soon(void *attribute)
{
    float value = 42;
    cbd_error why;
    cbd_tensor t = tensor(&value, CBD_DTYPE_FLOAT, 32, 0, NULL);
    cbd_op *op;
    usleep(30000);
    if (cbd_publish(stage, attribute, &t, 0, &op, &why) != CBD_STATUS_OK)
        return (void *)1;
    cbd_status status = cbd_op_wait(op, UINT64_MAX, NULL, &why);
    cbd_op_release(op);
    return (void *)(uintptr_t)status;
}

/* O8: publish, latest, follow. */
static void publish_and_follow(void)
{
    const char *frame = name("camera/rgb");
    static uint8_t image[48][64][3];
    int64_t shape[3] = {48, 64, 3};
    const cbd_read_group *group;
    EXPECT(cbd_latest(stage, frame, &group, &error), CBD_STATUS_NOT_FOUND);
    for (int i = 1; i <= 10; i++) {
        image[47][63][2] = (uint8_t)i;
        cbd_tensor t = tensor(image, CBD_DTYPE_UINT, 8, 3, shape);
        cbd_op *op;
        OK(cbd_publish(stage, frame, &t, CBD_SEMANTIC_COLOR, &op, &error));
        CHECK(wait_for(op, CBD_STATUS_OK).ordinal == (uint64_t)i);
        OK(cbd_latest(stage, frame, &group, &error));
        CHECK(group->ndim == 3 && group->shape[0] == 48 && group->shape[2] == 3 && group->ordinal == (uint64_t)i);
        CHECK(memcmp(group->data, image, sizeof image) == 0);
        cbd_release_group(group);
    }
    pthread_t thread;
    uint64_t before = cbd_epoch(stage), after;
    char scalar[64];
    snprintf(scalar, sizeof scalar, "gain.%ld", (long)getpid());
    pthread_create(&thread, NULL, publish_soon, scalar);
    OK(cbd_follow(stage, before, UINT64_C(20000000000), &after, &error));
    CHECK(after > before);
    void *result;
    pthread_join(thread, &result);
    CHECK(result == NULL);
    OK(cbd_latest(stage, scalar, &group, &error));
    CHECK(group->ndim == 0 && *(const float *)group->data == 42);
    cbd_release_group(group);
    EXPECT(cbd_follow(stage, cbd_epoch(stage) + 1000000, 1000000, &after, &error), CBD_STATUS_TIMEOUT);

    cbd_query *root; /* in place: map at the next ordinal, seal at unmap */
    cbd_session *session;
    cbd_group *buffer;
    cbd_op *op;
    cbd_map_options o = {.next_ordinal = 1, .code = CBD_DTYPE_UINT, .bits = 8, .lanes = 1, .row_ndim = 3, .row_shape = {48, 64, 3}};
    OK(cbd_root_query(stage, &root, &error));
    OK(cbd_map_attribute(stage, root, frame, &o, &session, &error));
    OK(cbd_fetch_map_next(session, &buffer, &error));
    memset(buffer->data, 77, sizeof image);
    OK(cbd_unmap_attribute(session, CBD_FLAG_NEXT_ORDINAL | CBD_FLAG_SEAL, &op, &error));
    CHECK(wait_for(op, CBD_STATUS_OK).ordinal == 11);
    cbd_session_release(session);
    cbd_query_release(root);
    OK(cbd_latest(stage, frame, &group, &error));
    CHECK(group->ordinal == 11 && ((const uint8_t *)group->data)[100] == 77);
    cbd_release_group(group);
    printf("ok publish and follow\n");
}

static void declare_and_errors(void)
{
    const char *joint = name("joint");
    cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 64, .lanes = 1, .row_ndim = 1, .row_shape = {7}};
    cbd_query *query = robots(2), *none = robots(0);
    double rows[14] = {0};
    float wrong[14] = {0};
    int64_t shape[2] = {2, 7}, zero = 0;
    cbd_op *op;
    OK(cbd_declare(stage, joint, &schema, 2, CBD_HANDOFF_DEFAULT, &op, &error));
    wait_for(op, CBD_STATUS_OK);
    cbd_schema known;
    OK(cbd_attribute_schema(stage, joint, &known, &error));
    CHECK(known.row_ndim == 1 && known.row_shape[0] == 7);
    cbd_write_options o = cbd_write_options_default();
    o.ordinal = 1;
    cbd_tensor t = tensor(rows, CBD_DTYPE_FLOAT, 64, 2, shape); /* (2, 7): the declared row shape needs no option */
    OK(cbd_write_attribute(stage, query, joint, &t, &o, &op, &error));
    wait_for(op, CBD_STATUS_OK);
    seal(1, joint);
    o.ordinal = 2;
    t = tensor(wrong, CBD_DTYPE_FLOAT, 32, 2, shape); /* the prims carry it of another type */
    EXPECT(cbd_write_attribute(stage, query, joint, &t, &o, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    const cbd_read_group *group = read_one(query, joint);
    CHECK(group != NULL && group->ndim == 2 && group->shape[1] == 7 && group->row_bytes == 56);
    cbd_release_group(group);
    CHECK(read_one(none, joint) == NULL);
    t = tensor(rows, CBD_DTYPE_FLOAT, 64, 1, &zero); /* behaviour 19: an empty query may be written */
    o.ordinal = 2;
    int64_t empty[2] = {0, 7};
    t.ndim = 2;
    t.shape = empty;
    OK(cbd_write_attribute(stage, none, joint, &t, &o, &op, &error));
    wait_for(op, CBD_STATUS_OK);
    const char *text;
    size_t length;
    EXPECT(cbd_resolve(stage, 1, &text, &length, &error), CBD_STATUS_NOT_FOUND);
    const char *bad = "relative/path";
    cbd_query *query2;
    EXPECT(cbd_query_from_path_list(stage, &bad, NULL, 1, &query2, &error), CBD_STATUS_INVALID_ARGUMENT);
    cbd_stage *other;
    EXPECT(cbd_connect("no-such-stage-anywhere", NULL, &other, &error), CBD_STATUS_NOT_FOUND);
    cbd_stage_release(other);
    cbd_query_release(query);
    cbd_query_release(none);
    printf("ok declare and errors\n");
}

/* Several attributes in one op: all or none. */
static void batches(void)
{
    cbd_query *query = robots(2);
    const char *pose = name("batch/pose"), *mass = name("batch/mass"), *other = name("batch/other");
    float poses[6] = {1, 2, 3, 4, 5, 6}, masses[2] = {7, 8};
    int64_t by3[2] = {2, 3}, two = 2;
    cbd_tensor p = tensor(poses, CBD_DTYPE_FLOAT, 32, 2, by3), m = tensor(masses, CBD_DTYPE_FLOAT, 32, 1, &two);
    cbd_write_options point = cbd_write_options_default();
    point.semantic = CBD_SEMANTIC_POINT;
    cbd_write_entry entries[3] = {{pose, &p, &point}, {mass, &m, NULL}, {mass, &m, NULL}};
    cbd_op *op;
    OK(cbd_write_attributes(stage, query, entries, 2, 5, CBD_MODE_UPSERT, &op, &error));
    wait_for(op, CBD_STATUS_OK);
    const char *both[2] = {pose, mass};
    OK(cbd_advance_write_floor(stage, 5, CBD_SCOPE_INCLUDE, both, 2, 0, &op, &error));
    wait_for(op, CBD_STATUS_OK);
    const cbd_read_group *group = read_one(query, pose);
    CHECK(group != NULL && group->ordinal == 5 && group->schema.semantic == CBD_SEMANTIC_POINT && group->shape[1] == 3);
    CHECK(memcmp(group->data, poses, sizeof poses) == 0);
    cbd_release_group(group);
    group = read_one(query, mass);
    CHECK(group != NULL && ((const float *)group->data)[1] == 8);
    cbd_release_group(group);

    EXPECT(cbd_write_attributes(stage, query, entries, 3, 6, CBD_MODE_UPSERT, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    EXPECT(cbd_write_attributes(stage, query, entries, 2, 5, CBD_MODE_UPSERT, &op, &error), CBD_STATUS_FLOOR_VIOLATION);
    entries[0] = (cbd_write_entry){other, &p, NULL}; /* a new one, and one that is sealed at 9: neither happens */
    seal(9, mass);
    EXPECT(cbd_write_attributes(stage, query, entries, 2, 6, CBD_MODE_UPSERT, &op, &error), CBD_STATUS_FLOOR_VIOLATION);
    cbd_schema schema;
    EXPECT(cbd_attribute_schema(stage, other, &schema, &error), CBD_STATUS_NOT_FOUND);
    cbd_query_release(query);
    printf("ok batches\n");
}

static void *publish_many(void *attribute)
{
    cbd_error why;
    for (uint64_t i = 1; i <= 200; i++) {
        cbd_tensor t = tensor(&i, CBD_DTYPE_UINT, 64, 0, NULL);
        cbd_op *op;
        if (cbd_publish(stage, attribute, &t, 0, &op, &why) != CBD_STATUS_OK ||
            cbd_op_wait(op, UINT64_MAX, NULL, &why) != CBD_STATUS_OK)
            return strdup(why.text);
        cbd_op_release(op);
        const cbd_read_group *group;
        if (cbd_latest(stage, attribute, &group, &why) != CBD_STATUS_OK)
            return strdup(why.text);
        if (*(const uint64_t *)group->data != i)
            return strdup("a read after a completed seal showed an older value");
        cbd_release_group(group);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t many[4];
    char names[4][64];
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "thread%d.%ld", i, (long)getpid());
        pthread_create(&many[i], NULL, publish_many, names[i]);
    }
    for (int i = 0; i < 4; i++) {
        void *text;
        pthread_join(many[i], &text);
        if (text != NULL) {
            printf("not ok threads: %s\n", (char *)text);
            exit(1);
        }
    }
    printf("ok threads\n");
}

static void large_query(void)
{
    cbd_query *query = robots(100000);
    cbd_query_release(query);
    printf("ok 100000 paths\n");
}

static void fork_and_close(void)
{
    const char *kept = name("kept");
    uint64_t value = 5;
    cbd_tensor t = tensor(&value, CBD_DTYPE_UINT, 64, 0, NULL);
    cbd_op *op;
    const cbd_read_group *group;
    OK(cbd_publish(stage, kept, &t, 0, &op, &error));
    wait_for(op, CBD_STATUS_OK);
    OK(cbd_latest(stage, kept, &group, &error));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { /* I4: refused here, but the child may connect anew */
        cbd_stage *own;
        EXPECT(cbd_follow(stage, 0, 0, NULL, &error), CBD_STATUS_SESSION_ENDED);
        cbd_release_group(group);
        OK(cbd_connect(stage_name, NULL, &own, &error));
        OK(cbd_latest(own, kept, &group, &error));
        CHECK(*(const uint64_t *)group->data == 5);
        cbd_release_group(group);
        cbd_stage_release(own);
        execlp("true", "true", (char *)NULL); /* what is left is the parent's, and no leak */
        _exit(127);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    CHECK(cbd_stage_is_alive(stage));
    cbd_stage_close(stage);
    CHECK(*(const uint64_t *)group->data == 5); /* I2: views outlive close */
    EXPECT(cbd_follow(stage, 0, 0, NULL, &error), CBD_STATUS_SESSION_ENDED);
    cbd_release_group(group);
    cbd_stage_release(stage);
    printf("ok fork and close\n");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    stage_name = argc > 1 ? argv[1] : NULL;
    cbd_connect_options options = {.client_name = "test_live"};
    cbd_stage_info info;
    OK(cbd_connect(stage_name, &options, &stage, &error));
    OK(cbd_stage_get_info(stage, &info, &error));
    CHECK(info.incarnation != 0 && info.generation != 0 && info.abi_version >> 16 == CBD_ABI_MAJOR);
    printf("ok connected to %s, generation %" PRIu64 "\n", info.name, info.generation);
    write_seal_read();
    partial_update();
    map_in_place();
    snapshots();
    publish_and_follow();
    declare_and_errors();
    batches();
    threads();
    large_query();
    fork_and_close();
    printf("ok all\n");
    return 0;
}
