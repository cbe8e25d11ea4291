/* What is left when everything was given back: nothing (behaviour 289, 290; field reports B9, B11, G15, G16).
 *
 * Rounds of each way in which a tensor goes out, and then the books are as they were: pins, references, room in the
 * channel, descriptors, mappings, and under the address sanitizer every byte of the heap. Then every allocation of these
 * ways fails once, and the last deleters run where no language has a runtime any more.
 */
#include "standin_dlpack.h"

#include "callboard_dlpack.h"
#include "failing.h"
#include "fake_broker.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 10000 };

static cbd_error error;
static const char *const name = "x", *const ab[] = {"/a", "/b"};
static const float rows[6] = {0, 1, 2, 3, 4, 5};
static struct fake *broker;
static cbd_stage *stage;
static cbd_query *query;

/* ---- the books ------------------------------------------------------------------------- */

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

struct books {
    uint64_t descriptors, mappings, heap_bytes, pins, references, mapped, ops, sessions, queries, room;
};

static uint64_t room_of(const struct rooms *rooms)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < rooms->count; i++)
        bytes += rooms->free[i].bytes;
    return bytes;
}

/* Of the broker's objects: the C library may map what it likes. */
static uint64_t object_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint64_t count = 0;
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "memfd:") != NULL;
    fclose(maps);
    return count;
}

static struct books books(void)
{
    struct books b = {.descriptors = (uint64_t)fake_entries("/proc/self/fd"), .mappings = object_mappings()};
    if (stage != NULL) {
        cbd_op *op; /* what is deferred has gone once a later op is done, and so has all room */
        CHECK_STATUS(cbd_advance_write_floor(stage, 1, CBD_SCOPE_INCLUDE, &name, 1, 0, &op, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
        cbd_op_release(op);
        CHECK(stage->ring.deferred == NULL);
        b.pins = fake_pins_held(broker);
        b.references = atomic_load(&stage->refs);
        b.mapped = atomic_load(&stage->mapped);
        b.ops = atomic_load(&stage->ops);
        b.sessions = atomic_load(&stage->sessions_kept) + atomic_load(&stage->open_sessions);
        b.queries = atomic_load(&stage->queries_kept) + atomic_load(&stage->queries);
        b.room = room_of(&stage->ring.arguments) + room_of(&stage->ring.results);
    }
    if (__sanitizer_get_current_allocated_bytes != NULL)
        b.heap_bytes = __sanitizer_get_current_allocated_bytes();
    for (const cbd_op *op = stage != NULL && b.heap_bytes != 0 ? stage->ring.spare : NULL; op != NULL; op = op->next)
        b.heap_bytes -= sizeof *op; /* as many as were ever on their way at a time: their number is the channel's */
    return b;
}

static void balance(const struct books *before, const char *after)
{
    const struct books now = books();
#define SAME(entry)                                                                                                             \
    do {                                                                                                                        \
        if (now.entry != before->entry) {                                                                                       \
            fprintf(stderr, "after %s: " #entry " are %llu, they were %llu\n", after, (unsigned long long)now.entry,            \
                    (unsigned long long)before->entry);                                                                         \
            exit(1);                                                                                                            \
        }                                                                                                                       \
    } while (0)
    SAME(pins);
    SAME(references);
    SAME(mapped);
    SAME(ops);
    SAME(sessions);
    SAME(queries);
    SAME(room);
    SAME(descriptors);
    SAME(mappings);
    SAME(heap_bytes);
}

/* ---- the ways out, and in ------------------------------------------------------------------- */

/* Each gives back all that it got, whatever went wrong on the way. */
#define TRY(call)                     \
    do {                              \
        status = (call);              \
        if (status != CBD_STATUS_OK)  \
            goto done;                \
    } while (0)

#define REFUSED(call, wanted)                       \
    do {                                            \
        cbd_status is_ = (call);                    \
        if (is_ == CBD_STATUS_OUT_OF_MEMORY)        \
            return is_;                             \
        CHECK_STATUS(is_, CBD_STATUS_##wanted);     \
    } while (0)

static cbd_status next_group(const cbd_read_group **group)
{
    cbd_read *read = NULL;
    cbd_status status = cbd_read_attributes(stage, query, &name, 1, &read, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_fetch_read_next(read, group, &error);
    cbd_read_release(read);
    return status;
}

static cbd_status a_view_is_lent(void)
{
    const cbd_read_group *group = NULL;
    DLManagedTensorVersioned *v = NULL, *unused = NULL;
    DLManagedTensor *m = NULL;
    cbd_tensor *copy = NULL;
    cbd_status status;
    TRY(next_group(&group));
    TRY(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error));
    TRY(cbd_dlpack_export_read_versioned(group, 0, 0, &unused, &error));
    TRY(cbd_dlpack_export_read(group, 0, CBD_DLPACK_COPY, &m, &error));
    cbd_release_group(group);
    group = NULL;
    TRY(cbd_dlpack_import_copy_versioned(v, &copy, &error));
    CHECK(memcmp(copy->data, rows, sizeof rows) == 0 && memcmp(m->dl_tensor.data, rows, sizeof rows) == 0);
done:
    cbd_tensor_free(copy);
    if (group != NULL)
        cbd_release_group(group);
    if (v != NULL)
        v->deleter(v);
    if (unused != NULL)
        unused->deleter(unused);
    if (m != NULL)
        m->deleter(m);
    return status;
}

/* A consumer that gives up half-way gives back what it took. */
static cbd_status a_consumer_refuses(void)
{
    const cbd_read_group *group = NULL;
    DLManagedTensorVersioned *v = NULL;
    cbd_tensor t, *copy = NULL;
    cbd_status status;
    TRY(next_group(&group));
    TRY(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error));
    v->dl_tensor.device.device_type = kDLCUDA; /* it knows what it cannot take */
    CHECK_STATUS(cbd_dlpack_import_versioned(v, &t, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_dlpack_import_copy_versioned(v, &copy, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_dlpack_export_read(group, 0, 0, &(DLManagedTensor *){NULL}, &error), CBD_STATUS_NOT_SUPPORTED);
done:
    if (v != NULL)
        v->deleter(v);
    if (group != NULL)
        cbd_release_group(group);
    return status;
}

static const cbd_map_options points = {.ordinal = 3, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 3};

static cbd_status map_group(bool handed_back)
{
    cbd_session *session = NULL;
    cbd_group *group;
    cbd_op *op = NULL;
    DLManagedTensor *m = NULL;
    DLManagedTensorVersioned *v = NULL;
    cbd_status status;
    TRY(cbd_map_attribute(stage, query, "y", &points, &session, &error));
    TRY(cbd_fetch_map_next(session, &group, &error));
    TRY(cbd_dlpack_export_map(group, 0, 0, &m, &error));
    TRY(cbd_dlpack_export_map_versioned(group, 0, CBD_DLPACK_READ_ONLY, &v, &error));
    ((float *)m->dl_tensor.data)[5] = 1;
    if (handed_back) {
        TRY(cbd_unmap_attribute(session, 0, &op, &error));
        TRY(cbd_op_wait(op, UINT64_MAX, NULL, &error));
    }
done:
    cbd_op_release(op);
    cbd_session_release(session);
    if (m != NULL)
        m->deleter(m); /* after the session */
    if (v != NULL)
        v->deleter(v);
    return status;
}

static cbd_status a_group_is_lent_and_handed_back(void) { return map_group(true); }
static cbd_status a_group_is_lent_and_aborted(void) { return map_group(false); }

static cbd_status what_came_in_is_written(void)
{
    int64_t shape[2] = {2, 3}, turned[2] = {-3, 1};
    DLManagedTensorVersioned v = {.version = {1, 0}, .dl_tensor = {(void *)(uintptr_t)(rows + 3), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, turned, 0}};
    cbd_tensor *in = NULL;
    cbd_op *op = NULL;
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 3;
    cbd_status status;
    TRY(cbd_dlpack_import_copy_versioned(&v, &in, &error));
    TRY(cbd_write_attribute(stage, query, "y", in, &options, &op, &error));
    TRY(cbd_op_wait(op, UINT64_MAX, NULL, &error));
done:
    cbd_op_release(op);
    cbd_tensor_free(in);
    return status;
}

/* What is no write keeps no room and no pin. */
static cbd_status what_cannot_be_written_is_refused(void)
{
    int64_t three = 3, two = 2;
    cbd_op *op = (void *)1;
    cbd_write_options options = cbd_write_options_default();
    cbd_tensor t = {.data = rows, .ndim = 1, .shape = &three, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_session *session = NULL;
    options.ordinal = 3;
    REFUSED(cbd_write_attribute(stage, query, "y", &t, &options, &op, &error), INVALID_ARGUMENT); /* of another number of rows */
    t.shape = &two, t.bits = 24;
    REFUSED(cbd_write_attribute(stage, query, "y", &t, &options, &op, &error), INVALID_ARGUMENT);
    t.bits = 32, t.device_type = CBD_DEVICE_CUDA;
    REFUSED(cbd_write_attribute(stage, query, "y", &t, &options, &op, &error), NOT_SUPPORTED);
    cbd_map_options wrong = points;
    wrong.bits = 24;
    REFUSED(cbd_map_attribute(stage, query, "y", &wrong, &session, &error), INVALID_ARGUMENT);
    CHECK(op == NULL && session == NULL);
    return CBD_STATUS_OK;
}

static cbd_status a_snapshot_is_read_since_a_cursor(void)
{
    cbd_snapshot *snapshot = NULL;
    cbd_cursor *cursor = NULL;
    cbd_read *read = NULL;
    const cbd_read_group *group = NULL;
    cbd_status status;
    TRY(cbd_snapshot_open(stage, &snapshot, &error));
    TRY(cbd_snapshot_cursor(snapshot, &cursor, &error));
    TRY(cbd_snapshot_read_since(snapshot, query, &name, 1, NULL, &read, &error));
    TRY(cbd_fetch_read_next(read, &group, &error));
done:
    if (group != NULL)
        cbd_release_group(group);
    cbd_read_release(read);
    cbd_cursor_release(cursor);
    cbd_snapshot_release(snapshot);
    return status;
}

static cbd_status a_query_comes_and_goes(void)
{
    cbd_query *made = NULL;
    cbd_status status = cbd_query_from_path_list(stage, ab, NULL, 2, &made, &error);
    cbd_query_release(made);
    return status;
}

static const struct {
    const char *name;
    cbd_status (*walk)(void);
} ways[] = {
#define WAY(function) {#function, function}
    WAY(a_view_is_lent),
    WAY(a_consumer_refuses),
    WAY(a_group_is_lent_and_handed_back),
    WAY(a_group_is_lent_and_aborted),
    WAY(what_came_in_is_written),
    WAY(what_cannot_be_written_is_refused),
    WAY(a_snapshot_is_read_since_a_cursor),
    WAY(a_query_comes_and_goes),
};

/* ---- the tests --------------------------------------------------------------------------------- */

static void begin(void)
{
    broker = fake_start();
    stage = fake_connect(broker);
    CHECK_STATUS(cbd_query_from_path_list(stage, ab, NULL, 2, &query, &error), CBD_STATUS_OK);
    fake_publish(broker, fake_column(broker, name, CBD_DTYPE_FLOAT, 32, 3, 0, NULL), 0, fake_layout(broker, ab, 2, 1), 2, rows, sizeof rows, 1);
}

static void end(void)
{
    cbd_query_release(query);
    cbd_stage_release(stage);
    stage = NULL;
    CHECK(fake_pins_held(broker) == 0 && !fake_channel_locked(broker));
    fake_stop(broker);
}

static void rounds_leave_the_books_as_they_were(void)
{
    begin();
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        for (int round = 0; round < 16; round++) /* what is kept for the next one is there then */
            CHECK_STATUS(ways[way].walk(), CBD_STATUS_OK);
        books();
        const struct books before = books();
        for (int round = 0; round < ROUNDS; round++)
            CHECK_STATUS(ways[way].walk(), CBD_STATUS_OK);
        balance(&before, ways[way].name);
    }
    end();
}

/* Field report G16: each allocation of each way fails once, and then the way is walked well. */
static void an_allocation_that_fails_costs_nothing_but_its_call(void)
{
    unsigned failed = 0;
    begin();
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        CHECK_STATUS(ways[way].walk(), CBD_STATUS_OK);
        books();
        const struct books before = books();
        for (long at = 1;; at++) {
            fails_at = at;
            cbd_status status = ways[way].walk();
            bool reached = fails_at == 0;
            fails_at = 0;
            if (status != CBD_STATUS_OK)
                CHECK_STATUS(status, CBD_STATUS_OUT_OF_MEMORY);
            failed += status != CBD_STATUS_OK;
            CHECK_STATUS(ways[way].walk(), CBD_STATUS_OK);
            balance(&before, ways[way].name);
            if (!reached)
                break;
        }
    }
    printf("  %u calls failed\n", failed);
    CHECK(failed >= 20);
    end();
}

static void give_back_and_wait(cbd_stage *made)
{
    cbd_stage_release(made);
    for (int i = 0; i < 30000 && broker->connection >= 0; i++) /* the broker's end of it */
        usleep(1000);
    CHECK(broker->connection < 0);
}

/* Field report B11: nor does a session that could not be begun. */
static void a_connection_that_fails_leaves_nothing(void)
{
    unsigned failed = 0;
    broker = fake_start();
    give_back_and_wait(fake_connect(broker));
    const struct books before = books();
    for (long at = 1;; at++) {
        cbd_stage *made = NULL;
        fails_at = at;
        cbd_status status = cbd_connect("fake", NULL, &made, &error);
        bool reached = fails_at == 0;
        fails_at = 0;
        failed += status != CBD_STATUS_OK;
        if (status != CBD_STATUS_OK)
            CHECK_STATUS(status, CBD_STATUS_OUT_OF_MEMORY);
        give_back_and_wait(made);
        balance(&before, "a connection");
        if (!reached)
            break;
    }
    CHECK(failed >= 5);
    fake_stop(broker);
}

/* I4: a child may give back all that it inherited. Nothing of it reaches the parent. */
static void a_child_gives_back_its_copies_only(void)
{
    begin();
    const cbd_read_group *group;
    cbd_session *session;
    cbd_group *staged;
    DLManagedTensorVersioned *v;
    DLManagedTensor *m;
    CHECK_STATUS(next_group(&group), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error), CBD_STATUS_OK);
    cbd_release_group(group);
    CHECK_STATUS(cbd_map_attribute(stage, query, "y", &points, &session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &staged, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_map(staged, 0, 0, &m, &error), CBD_STATUS_OK);
    books();
    const struct books before = books();
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(memcmp(v->dl_tensor.data, rows, sizeof rows) == 0); /* what was sealed may be read on */
            v->deleter(v);
            m->deleter(m);
            cbd_session_release(session);
            cbd_query_release(query);
            cbd_stage_release(stage);
            fake_child_ends();
        }
        int how;
        CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
        balance(&before, "a child");
    }
    CHECK(atomic_load(&broker->aborts) == 0);
    v->deleter(v);
    m->deleter(m);
    cbd_session_release(session);
    end();
}

/* ---- where no runtime is any more (field report G15) ---------------------------------------------- */

static void delete_it(void *managed) { ((DLManagedTensorVersioned *)managed)->deleter(managed); }

static void *ends_with_it(void *key)
{
    const cbd_read_group *group;
    DLManagedTensorVersioned *v;
    CHECK_STATUS(next_group(&group), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error), CBD_STATUS_OK);
    cbd_release_group(group);
    CHECK(pthread_setspecific(*(pthread_key_t *)key, v) == 0);
    return NULL;
}

static void a_thread_ends_with_what_it_holds(void)
{
    begin();
    pthread_key_t key;
    CHECK(pthread_key_create(&key, delete_it) == 0);
    for (int round = 0; round < 1000; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ends_with_it, &key) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(fake_pins_held(broker) == 0);
    }
    pthread_key_delete(key);
    end();
}

static DLManagedTensorVersioned *last_view;
static DLManagedTensor *last_group;

static void at_exit(void)
{
    CHECK(fake_pins_held(broker) == 1 && fake_channel_locked(broker));
    CHECK(memcmp(last_view->dl_tensor.data, rows, sizeof rows) == 0);
    last_view->deleter(last_view);
    CHECK(fake_pins_held(broker) == 0 && fake_channel_locked(broker)); /* the group's memory is still mapped */
    ((float *)last_group->dl_tensor.data)[0] = 1;
    last_group->deleter(last_group);
    CHECK(!fake_channel_locked(broker));
    fake_stop(broker);
    printf("ok the_last_deleters_run_at_exit\n");
}

/* Nothing but the exports is left when main returns. */
static void the_last_deleters_run_at_exit(void)
{
    begin();
    const cbd_read_group *group;
    cbd_session *session;
    cbd_group *staged;
    CHECK_STATUS(next_group(&group), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &last_view, &error), CBD_STATUS_OK);
    cbd_release_group(group);
    CHECK_STATUS(cbd_map_attribute(stage, query, "y", &points, &session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &staged, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_map(staged, 0, 0, &last_group, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    cbd_query_release(query);
    cbd_stage_release(stage);
    CHECK(atexit(at_exit) == 0);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    RUN(rounds_leave_the_books_as_they_were);
    RUN(an_allocation_that_fails_costs_nothing_but_its_call);
    RUN(a_connection_that_fails_leaves_nothing);
    RUN(a_child_gives_back_its_copies_only);
    RUN(a_thread_ends_with_what_it_holds);
    the_last_deleters_run_at_exit();
    return 0;
}
