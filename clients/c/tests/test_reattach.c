/* The broker's restart (rules B1, I3, I4; design D9). The fake broker checks that no handle of an earlier life
 * ever comes.
 */
#include "callboard_python.h"
#include "fake_broker.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static cbd_error error;
static const uint64_t SECOND = 1000000000;

static struct fake *recovering(void)
{
    struct fake *f = fake_start();
    f->features |= CBD_FEATURE_RECOVERY | CBD_FEATURE_DELETE;
    return f;
}

static cbd_stage *connect_for(uint64_t reattach_ns)
{
    cbd_connect_options options = {.reattach_ns = reattach_ns};
    cbd_stage *stage;
    CHECK_STATUS(cbd_connect("fake", &options, &stage, &error), CBD_STATUS_OK);
    return stage;
}

static cbd_query *query_of(cbd_stage *stage, const char *path)
{
    cbd_query *query;
    CHECK_STATUS(cbd_query_from_path_list(stage, &path, NULL, 1, &query, &error), CBD_STATUS_OK);
    return query;
}

static cbd_status write_one(cbd_stage *stage, cbd_query *query, const char *name, uint64_t ordinal, uint32_t next_and_seal,
                            cbd_op **op)
{
    static const float value = 1;
    static const int64_t shape = 1;
    cbd_tensor tensor = {.data = &value, .ndim = 1, .shape = &shape, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = ordinal;
    options.next_ordinal = options.seal = next_and_seal;
    return cbd_write_attribute(stage, query, name, &tensor, &options, op, &error);
}

static cbd_op *written(cbd_stage *stage, cbd_query *query, const char *name, uint64_t ordinal, uint32_t next_and_seal)
{
    cbd_op *op;
    CHECK_STATUS(write_one(stage, query, name, ordinal, next_and_seal, &op), CBD_STATUS_OK);
    return op;
}

static cbd_op *sealed(cbd_stage *stage, uint64_t ordinal, uint32_t scope, const char *name)
{
    cbd_op *op;
    CHECK_STATUS(cbd_advance_write_floor(stage, ordinal, scope, &name, name != NULL, 0, &op, &error), CBD_STATUS_OK);
    return op;
}

static void ends(cbd_op *op, cbd_status status, uint32_t flags)
{
    cbd_op_result result = {.status = CBD_STATUS_COUNT};
    CHECK_STATUS(cbd_op_wait(op, 20 * SECOND, &result, &error), status);
    CHECK(result.status == status && result.flags == flags);
    CHECK(status == CBD_STATUS_OK || strstr(cbd_op_error(op), "restarted") != NULL);
    cbd_op_release(op);
}

/* B1: what became of an op in flight is read from the floors, per attribute and scope. */
static void ops_in_flight_end_as_the_floors_say(void)
{
    struct fake *f = recovering();
    uint64_t x = fake_string(f, CBD_STRING_TOKEN, "x");
    fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    fake_column(f, "y", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    cbd_stage *stage = connect_for(0);
    cbd_query *query = query_of(stage, "/a");
    atomic_store(&f->frozen, 1);
    cbd_op *low = written(stage, query, "x", 5, 0), *high = written(stage, query, "x", 6, 0);
    cbd_op *other = written(stage, query, "y", 5, 0), *unheard = written(stage, query, "z", 4, 0);
    cbd_op *reached = sealed(stage, 5, CBD_SCOPE_INCLUDE, "x"), *above = sealed(stage, 6, CBD_SCOPE_INCLUDE, "x");
    cbd_op *rest = sealed(stage, 4, CBD_SCOPE_EXCLUDE, "x"), *rest_above = sealed(stage, 5, CBD_SCOPE_EXCLUDE, "x");
    cbd_op *all = sealed(stage, 3, CBD_SCOPE_ALL, NULL), *all_above = sealed(stage, 4, CBD_SCOPE_ALL, NULL);
    cbd_op *next = written(stage, query, "x", 0, 1), *high_again = written(stage, query, "x", 7, 0), *gone, *both;
    const char *name = "x", *names[2] = {"x", "y"};
    CHECK_STATUS(cbd_delete_attributes(stage, query, &name, 1, 6, &gone, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_delete_attributes(stage, query, names, 2, 5, &both, &error), CBD_STATUS_OK);
    uint64_t last = cbd_op_id(both);
    fake_die(f);
    cbd_abi_floor_row rows[2] = {{x, 5}, {fake_string(f, CBD_STRING_TOKEN, "y"), 4}}; /* what the broker sealed as its last */
    fake_floors(f, 0, 3, 3, rows, 2);
    atomic_store(&f->frozen, 0);
    CHECK(cbd_stage_is_alive(stage) && cbd_stage_is_alive(stage)); /* it is not over */
    CHECK_STATUS(write_one(stage, query, "x", 9, 0, NULL), CBD_STATUS_BROKER_RESTARTED); /* R6: nothing waits */
    CHECK_STATUS(cbd_op_wait(low, 0, NULL, &error), CBD_STATUS_TIMEOUT);
    fake_rise(f);
    ends(low, CBD_STATUS_BROKER_RESTARTED, CBD_COMPLETION_SEALED_MAYBE);
    CHECK(cbd_op_wait(next, 20 * SECOND, NULL, &error) == CBD_STATUS_BROKER_RESTARTED && strstr(cbd_op_error(next), "ordinal 0") == NULL);
    ends(high, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(other, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(unheard, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(reached, CBD_STATUS_OK, 0);
    ends(above, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(rest, CBD_STATUS_OK, 0);
    ends(rest_above, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(all, CBD_STATUS_OK, 0);
    ends(all_above, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(next, CBD_STATUS_BROKER_RESTARTED, CBD_COMPLETION_SEALED_MAYBE); /* the ordinal was the broker's to choose */
    ends(high_again, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(gone, CBD_STATUS_BROKER_RESTARTED, 0);
    ends(both, CBD_STATUS_BROKER_RESTARTED, CBD_COMPLETION_SEALED_MAYBE); /* at or below the floor of one of them */
    CHECK(stage->ring.outstanding <= 1 && cbd_stage_is_alive(stage));
    cbd_op *again = written(stage, query, "x", 6, 0); /* by the same query */
    CHECK(cbd_op_id(again) > last);
    ends(again, CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->queries) == 2 && atomic_load(&f->sessions_closed) == 1);
    cbd_stage_info info;
    CHECK_STATUS(cbd_stage_get_info(stage, &info, &error), CBD_STATUS_OK);
    CHECK(info.broker_incarnation == 2 && info.incarnation == 77);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* Work that had ended well and was not sealed is nobody's op any more: the next submission says what is gone, once. */
static void accepted_and_unsealed_work_is_told_once(void)
{
    struct fake *f = recovering();
    uint64_t x = fake_string(f, CBD_STRING_TOKEN, "x");
    fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    fake_column(f, "y", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    cbd_stage *stage = connect_for(0);
    cbd_query *query = query_of(stage, "/a");
    ends(written(stage, query, "x", 5, 0), CBD_STATUS_OK, 0);
    ends(written(stage, query, "y", 7, 0), CBD_STATUS_OK, 0);
    ends(written(stage, query, "y", 4, 0), CBD_STATUS_OK, 0);
    cbd_abi_floor_row rows[1] = {{x, 5}};
    fake_floors(f, 0, 0, 0, rows, 1); /* x was sealed */
    fake_die(f);
    fake_rise(f);
    cbd_query *other = query_of(stage, "/b"); /* waits for the next broker, and loses nothing itself */
    cbd_op *op;
    CHECK_STATUS(cbd_advance_write_floor(stage, 7, CBD_SCOPE_ALL, NULL, 0, 0, &op, &error), CBD_STATUS_BROKER_RESTARTED);
    CHECK(op == NULL && strstr(error.text, "\"y\" up to ordinal 7") != NULL && strstr(error.text, "\"x\"") == NULL);
    ends(sealed(stage, 7, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    fake_die(f); /* what was told is not told again */
    fake_rise(f);
    cbd_query_release(other);
    other = query_of(stage, "/b");
    ends(written(stage, query, "y", 8, 0), CBD_STATUS_OK, 0);
    cbd_query_release(other);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* Where the clock is slow, whoever has something to answer has answered before the time is known. */
static _Atomic bool slow_clock;

uint64_t __real_cbdi_now_ns(void);
uint64_t __wrap_cbdi_now_ns(void);
uint64_t __wrap_cbdi_now_ns(void)
{
    if (atomic_load(&slow_clock))
        usleep(3000);
    return __real_cbdi_now_ns();
}

/* The look at the socket with which a turn of a wait ends may be the one that ends its op. */
static void an_op_that_ends_with_the_turn_of_its_wait_is_no_time_out(void)
{
    struct fake *f = recovering();
    cbd_stage *stage = connect_for(0);
    for (int round = 0; round < 5; round++) {
        fake_die(f);
        fake_rise(f);
        atomic_store(&slow_clock, true);
        cbd_query_release(query_of(stage, "/a"));
        atomic_store(&slow_clock, false);
    }
    cbd_stage_release(stage);
    fake_stop(f);
}

/* A session's memory stays until its last view is gone, and only then the broker hears that it is (B1). */
static void map_sessions_end_and_their_memory_is_confirmed_when_it_is_free(void)
{
    struct fake *f = recovering();
    cbd_stage *stage = connect_for(0);
    cbd_query *query;
    const char *paths[2] = {"/a", "/b"};
    CHECK_STATUS(cbd_query_from_path_list(stage, paths, NULL, 2, &query, &error), CBD_STATUS_OK);
    cbd_map_options options = {.ordinal = 4, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_session *first, *second;
    cbd_group *group, *none;
    CHECK_STATUS(cbd_map_attribute(stage, query, "x", &options, &first, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_map_attribute(stage, query, "y", &options, &second, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(first, &group, &error), CBD_STATUS_OK);
    atomic_store(&f->frozen, 1);
    cbd_op *op;
    CHECK_STATUS(cbd_unmap_attribute(second, 0, &op, &error), CBD_STATUS_OK);
    fake_die(f);
    cbd_stage_is_alive(stage);
    atomic_store(&f->frozen, 0);
    memset(group->data, 7, group->rows * group->row_bytes); /* harmless: it is nobody else's yet */
    CHECK_STATUS(cbd_unmap_group(group, 0, NULL, &error), CBD_STATUS_BROKER_RESTARTED);
    fake_rise(f);
    ends(op, CBD_STATUS_BROKER_RESTARTED, 0);
    CHECK_STATUS(cbd_unmap_group(group, 0, NULL, &error), CBD_STATUS_BROKER_RESTARTED);
    CHECK_STATUS(cbd_fetch_map_next(first, &none, &error), CBD_STATUS_BROKER_RESTARTED);
    cbd_session *third;
    CHECK_STATUS(cbd_map_attribute(stage, query, "x", &options, &third, &error), CBD_STATUS_OK);
    ends(sealed(stage, 1, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->sessions_closed) == 0); /* the first one may still be written */
    CHECK_STATUS(cbd_group_lend(group, &error), CBD_STATUS_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(cbd_unmap_attribute(first, 0, NULL, &error), CBD_STATUS_BROKER_RESTARTED);
        CHECK(strstr(error.text, "map it anew") != NULL);
    }
    CHECK_STATUS(cbd_group_lend(group, &error), CBD_STATUS_BROKER_RESTARTED);
    ends(sealed(stage, 2, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->sessions_closed) == 0); /* by who borrowed it */
    CHECK(((uint8_t *)group->data)[0] == 7);
    cbd_group_unlend(group);
    ends(sealed(stage, 3, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->sessions_closed) == 1); /* the second one had ended: that its handle is kept does not count */
    CHECK_STATUS(cbd_fetch_map_next(first, &none, &error), CBD_STATUS_BROKER_RESTARTED);
    CHECK(((uint8_t *)group->data)[0] == 7); /* it stays mapped */
    cbd_session_release(second);
    cbd_session_release(first); /* aborts nothing: the broker knows no such session */
    ends(sealed(stage, 4, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->sessions_closed) == 1 && atomic_load(&f->aborts) == 0);
    cbd_session_release(third);
    ends(sealed(stage, 5, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->sessions_closed) == 1 && atomic_load(&f->aborts) == 1);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void *follow_all(void *argument)
{
    cbd_stage *stage = argument;
    cbd_error why;
    for (uint64_t seen = 0; seen < 3;)
        CHECK(cbd_follow(stage, seen, UINT64_MAX, &seen, &why) == CBD_STATUS_OK);
    return NULL;
}

static void *rise_soon(void *fake)
{
    usleep(150000);
    fake_rise(fake);
    return NULL;
}

/* Reads in place and waits for an epoch go on the whole time; memory that is met first meanwhile is waited for. */
static void readers_go_on_without_an_error(void)
{
    struct fake *f = recovering();
    static const char *const path = "/a", *const x = "x";
    const float values[3] = {1, 2, 3};
    uint32_t column = fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    cbd_abi_ref layout = fake_layout(f, &path, 1, 1);
    cbd_stage *stage = connect_for(0);
    cbd_query *query = query_of(stage, path);
    pthread_t follower, riser;
    CHECK(pthread_create(&follower, NULL, follow_all, stage) == 0);
    fake_publish(f, column, 0, layout, 1, &values[0], 4, 1); /* in segment 3, which nobody has mapped yet */
    fake_die(f);
    CHECK(pthread_create(&riser, NULL, rise_soon, f) == 0);
    for (int i = 0; i < 3; i++) {
        cbd_read *read;
        const cbd_read_group *group;
        CHECK_STATUS(cbd_read_attributes(stage, query, &x, 1, &read, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
        CHECK(*(const float *)group->data == values[i]);
        cbd_release_group(group);
        cbd_read_release(read);
        if (i == 0) {
            pthread_join(riser, NULL);
            CHECK(cbd_stage_is_alive(stage));
            fake_die(f);
        }
        if (i < 2)
            fake_publish(f, column, (uint32_t)i + 1, layout, 1, &values[i + 1], 4, (uint64_t)i + 2);
    }
    pthread_join(follower, NULL);
    CHECK(fake_pins_held(f) == 0);
    fake_rise(f);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

static _Atomic int stop_looking, lapses;

static void *look_at_the_lock(void *fake)
{
    while (!atomic_load(&stop_looking))
        if (!fake_channel_locked(fake))
            atomic_fetch_add(&lapses, 1);
    return NULL;
}

struct worker {
    cbd_stage *stage;
    cbd_query *query;
    _Atomic int *stop;
    uint64_t ok, restarted;
};

static _Atomic uint64_t progress;

static void *work(void *argument)
{
    struct worker *w = argument;
    for (uint64_t ordinal = 1; !atomic_load(w->stop); ordinal++) {
        cbd_op *op;
        cbd_error why;
        cbd_status status = write_one(w->stage, w->query, "x", ordinal, 0, &op);
        if (status == CBD_STATUS_OK) {
            status = cbd_op_wait(op, UINT64_MAX, NULL, &why);
            cbd_op_release(op);
        } else {
            usleep(1000);
        }
        CHECK(status == CBD_STATUS_OK || status == CBD_STATUS_BROKER_RESTARTED || status == CBD_STATUS_QUEUE_FULL);
        w->ok += status == CBD_STATUS_OK;
        atomic_fetch_add(&progress, status == CBD_STATUS_OK);
        w->restarted += status == CBD_STATUS_BROKER_RESTARTED;
    }
    return NULL;
}

/* Whoever notices, all go on; and the proof of life never lapses (I3). */
static void twenty_deaths_under_load(void)
{
    struct fake *f = recovering();
    fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    cbd_stage *stage = connect_for(0);
    struct worker workers[4];
    pthread_t threads[4], looker;
    _Atomic int stop = 0;
    cbd_query *query = query_of(stage, "/a");
    CHECK(pthread_create(&looker, NULL, look_at_the_lock, f) == 0);
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){stage, query, &stop, 0, 0};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 20; i++) {
        for (uint64_t before = atomic_load(&progress); atomic_load(&progress) < before + 20;)
            usleep(1000); /* until the one before has been taken up */
        fake_die(f);
        usleep(i % 3 * 10000u);
        fake_rise(f);
    }
    atomic_store(&stop, 1);
    uint64_t ok = 0, restarted = 0;
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ok += workers[i].ok;
        restarted += workers[i].restarted;
    }
    atomic_store(&stop_looking, 1);
    pthread_join(looker, NULL);
    printf("  %llu ops done, %llu times BROKER_RESTARTED\n", (unsigned long long)ok, (unsigned long long)restarted);
    CHECK(ok >= 400 && restarted > 0 && atomic_load(&lapses) == 0);
    cbd_op *last;
    cbd_status status = write_one(stage, query, "x", 1u << 30, 0, &last);
    if (status == CBD_STATUS_BROKER_RESTARTED) /* what the last life had accepted is told now */
        status = write_one(stage, query, "x", 1u << 30, 0, &last);
    CHECK_STATUS(status, CBD_STATUS_OK);
    ends(last, CBD_STATUS_OK, 0);
    CHECK(stage->ring.outstanding <= 1 && load32(&stage->ring.control->client_sleeping) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    CHECK(!fake_channel_locked(f));
    fake_stop(f);
}

/* Refused for good, another life of the stage, too late, not wanted: the session is over, and says which. */
static void what_cannot_be_taken_up_again_ends_with_the_reason(void)
{
    static const struct {
        uint32_t refuse;
        uint64_t incarnation, generation;
        const char *text;
    } cases[] = {{CBD_STATUS_LIMIT, 77, FAKE_GENERATION, "does not want anybody"},
                 {0, 78, FAKE_GENERATION, "started anew"},
                 {0, 77, FAKE_GENERATION + 1, "started anew"},
                 {CBD_STATUS_SESSION_ENDED, 77, FAKE_GENERATION, "does not want anybody"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake *f = recovering();
        cbd_stage *stage = connect_for(0);
        fake_die(f);
        f->refuse = cases[i].refuse;
        f->incarnation = cases[i].incarnation;
        f->generation = cases[i].generation;
        fake_rise(f);
        CHECK_STATUS(cbd_follow(stage, 5, 20 * SECOND, NULL, &error), CBD_STATUS_SESSION_ENDED);
        CHECK(strstr(error.text, cases[i].text) != NULL);
        CHECK(!cbd_stage_is_alive(stage));
        cbd_stage_release(stage);
        fake_stop(f);
    }
    struct fake *f = recovering();
    cbd_stage *stage = connect_for(SECOND / 5), *never = NULL;
    fake_die(f);
    uint64_t start = cbdi_now_ns();
    cbd_query *query;
    const char *path = "/a";
    CHECK_STATUS(cbd_query_from_path_list(stage, &path, NULL, 1, &query, &error), CBD_STATUS_OK + CBD_STATUS_SESSION_ENDED);
    CHECK(strstr(error.text, "200 ms") != NULL && strstr(error.text, "nobody listens") != NULL);
    CHECK(cbdi_now_ns() - start >= SECOND / 5);
    cbd_stage_release(stage);
    fake_rise(f);
    never = connect_for(CBD_REATTACH_NEVER);
    fake_die(f);
    start = cbdi_now_ns();
    CHECK_STATUS(cbd_follow(never, 5, 20 * SECOND, NULL, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(strstr(error.text, "hung up") != NULL && cbdi_now_ns() - start < 9 * SECOND); /* the others wait for 10 s */
    cbd_stage_release(never);
    fake_stop(f);
}

static void a_broker_that_is_not_ready_is_asked_again(void)
{
    struct fake *f = recovering();
    cbd_stage *stage = connect_for(0);
    cbd_query *query = query_of(stage, "/a");
    fake_die(f);
    f->refuse = CBD_STATUS_BROKER_RESTARTED;
    fake_rise(f);
    cbd_query *second = query_of(stage, "/b"); /* waits for the broker, and so for the next one */
    CHECK(f->refuse == 0);
    ends(written(stage, second, "x", 1, 0), CBD_STATUS_OK, 0);
    ends(written(stage, query, "x", 2, 0), CBD_STATUS_OK, 0);
    cbd_query_release(second);
    cbd_query_release(query);
    ends(sealed(stage, 2, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    CHECK(atomic_load(&f->releases) == 2);
    f->hang_up_status = CBD_STATUS_SESSION_ENDED; /* told to go: no taking up */
    fake_hang_up(f, "the broker was stopped");
    CHECK_STATUS(cbd_follow(stage, 5, 20 * SECOND, NULL, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(strstr(error.text, "the broker was stopped") != NULL);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void *close_soon(void *stage)
{
    usleep(50000);
    cbd_stage_close(stage);
    return NULL;
}

static void closing_ends_the_wait_for_the_next_broker(void)
{
    for (int which = 0; which < 3; which++) {
        struct fake *f = recovering();
        const float value = 1;
        const char *path = "/a", *name = "x";
        uint32_t column = fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
        cbd_stage *stage = connect_for(0);
        cbd_query *query = query_of(stage, path);
        fake_publish(f, column, 0, fake_layout(f, &path, 1, 1), 1, &value, 4, 1);
        atomic_store(&f->frozen, 1);
        cbd_op *op = sealed(stage, 1, CBD_SCOPE_ALL, NULL);
        fake_die(f);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, close_soon, stage) == 0);
        uint64_t start = cbdi_now_ns();
        cbd_read *read;
        if (which == 0)
            CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
        else if (which == 1)
            CHECK_STATUS(cbd_follow(stage, 5, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
        else
            CHECK_STATUS(cbd_read_attributes(stage, query, &name, 1, &read, &error), CBD_STATUS_SESSION_ENDED);
        CHECK(cbdi_now_ns() - start < 9 * SECOND); /* for the next broker it would have waited 10 s */
        pthread_join(thread, NULL);
        cbd_op_release(op);
        cbd_query_release(query);
        cbd_stage_release(stage);
        CHECK(!fake_channel_locked(f));
        fake_stop(f);
    }
}

/* I4: a child of that time is as foreign as any, and keeps nothing of its parent alive. */
static void a_child_forked_meanwhile_is_refused(void)
{
    struct fake *f = recovering();
    cbd_stage *stage = connect_for(0);
    cbd_query *query = query_of(stage, "/a");
    fake_die(f);
    CHECK(cbd_stage_is_alive(stage));
    int gate[2];
    CHECK(pipe(gate) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(cbd_stage_is_foreign(stage) && !cbd_stage_is_alive(stage));
        CHECK_STATUS(write_one(stage, query, "x", 1, 0, NULL), CBD_STATUS_SESSION_ENDED);
        cbd_query_release(query);
        cbd_stage_release(stage);
        close(gate[1]);
        CHECK(read(gate[0], &byte, 1) == 0); /* until the parent has closed */
        fake_child_ends();
    }
    fake_rise(f);
    for (int i = 0; i < 30000 && atomic_load(&stage->reattach.link) != LINK_UP; i++) {
        CHECK(cbd_stage_is_alive(stage)); /* who only ever looks takes the session up again as well */
        usleep(1000);
    }
    ends(sealed(stage, 1, CBD_SCOPE_ALL, NULL), CBD_STATUS_OK, 0);
    ends(written(stage, query, "x", 2, 0), CBD_STATUS_OK, 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    CHECK(!fake_channel_locked(f)); /* although the child lives */
    close(gate[0]);
    close(gate[1]);
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    fake_stop(f);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    RUN(ops_in_flight_end_as_the_floors_say);
    RUN(accepted_and_unsealed_work_is_told_once);
    RUN(an_op_that_ends_with_the_turn_of_its_wait_is_no_time_out);
    RUN(map_sessions_end_and_their_memory_is_confirmed_when_it_is_free);
    RUN(readers_go_on_without_an_error);
    RUN(what_cannot_be_taken_up_again_ends_with_the_reason);
    RUN(a_broker_that_is_not_ready_is_asked_again);
    RUN(closing_ends_the_wait_for_the_next_broker);
    RUN_ON_LINUX(a_child_forked_meanwhile_is_refused, "it maps what MADV_DONTFORK leaves out");
    RUN(twenty_deaths_under_load);
    atomic_store(&fake_shaking, 20);
    atomic_store(&stop_looking, 0);
    RUN(twenty_deaths_under_load);
    return 0;
}
