/* The log callback (behaviour 316 to 320), and closing where nothing is in use (322, 323). */
#include "fake_broker.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static cbd_error error;

struct heard {
    _Atomic int count, inside, overlapped, foreign;
    _Atomic int block;
    pthread_t caller, thread;
    uint32_t severity;
    uint64_t time_ns;
    char all[1 << 16];
};

static void hear(void *context, uint32_t severity, uint64_t time_ns, const char *text)
{
    struct heard *h = context;
    if (atomic_fetch_add(&h->inside, 1) != 0)
        atomic_store(&h->overlapped, 1);
    if (pthread_equal(pthread_self(), h->caller))
        atomic_store(&h->foreign, 1);
    while (atomic_load(&h->block))
        usleep(1000);
    h->thread = pthread_self();
    h->severity = severity;
    h->time_ns = time_ns;
    if (strlen(h->all) + strlen(text) + 2 < sizeof h->all)
        strcat(strcat(h->all, text), "\n");
    atomic_fetch_add(&h->count, 1);
    atomic_fetch_sub(&h->inside, 1);
}

static struct heard *heard_new(void)
{
    struct heard *h = calloc(1, sizeof *h);
    CHECK(h != NULL);
    h->caller = pthread_self();
    return h;
}

static void visit(struct fake *f) { cbd_stage_release(fake_connect(f)); }

/* 317: installed at the lowest level, flushed, removed; 320: a thread of its own, one at a time. */
static void a_callback_is_installed_flushed_and_removed(void)
{
    struct fake *f = fake_start();
    struct heard *h = heard_new();
    CHECK_STATUS(cbd_log_flush(UINT64_MAX, &error), CBD_STATUS_OK); /* 319: nobody to wait for */
    CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_log_install(hear, h, CBD_LOG_DEBUG, NULL, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_log_install(hear, h, CBD_LOG_DEBUG, NULL, &error), CBD_STATUS_ALREADY_EXISTS);
    visit(f);
    CHECK_STATUS(cbd_log_flush(60000000000, &error), CBD_STATUS_OK);
    int count = atomic_load(&h->count);
    CHECK(count >= 2 && strstr(h->all, "session: attached to stage fake") != NULL && strstr(h->all, "session: closed") != NULL);
    CHECK(h->severity <= CBD_LOG_ERROR && h->time_ns > UINT64_C(1600000000000000000));
    CHECK_STATUS(cbd_log_flush(0, &error), CBD_STATUS_OK); /* a poll: all is delivered */
    atomic_store(&h->block, 1);
    visit(f); /* 320: nobody waits for a callback that does not return */
    CHECK_STATUS(cbd_log_flush(0, &error), CBD_STATUS_TIMEOUT);
    CHECK_STATUS(cbd_log_flush(20000000, &error), CBD_STATUS_TIMEOUT);
    for (int i = 0; i < 200; i++)
        visit(f);
    atomic_store(&h->block, 0);
    CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK); /* 317: delivers first */
    CHECK(atomic_load(&h->count) > count + 200 && strstr(h->all, "records were dropped") != NULL);
    count = atomic_load(&h->count);
    visit(f);
    CHECK_STATUS(cbd_log_flush(UINT64_MAX, &error), CBD_STATUS_OK);
    CHECK(atomic_load(&h->count) == count && !atomic_load(&h->overlapped) && !atomic_load(&h->foreign));
    free(h);
    fake_stop(f);
}

/* 318: a threshold and names of channels; 319: other text is refused. */
static void a_filter_suppresses_and_bad_text_is_refused(void)
{
    static const struct {
        uint32_t threshold;
        const char *channels;
        bool heard;
    } cases[] = {{CBD_LOG_DEBUG, "no.such-channel", false}, {CBD_LOG_NONE, "", false},      {CBD_LOG_ERROR, NULL, false},
                 {CBD_LOG_INFO, "handle, call", false},     {CBD_LOG_INFO, " session ", true}, {CBD_LOG_DEBUG, "x,session,memory", true}};
    static const char *const bad[] = {",", "session,", "session,,call", "Session", "session;call", "se ssion", " "};
    struct fake *f = fake_start();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct heard *h = heard_new();
        CHECK_STATUS(cbd_log_install(hear, h, cases[i].threshold, cases[i].channels, &error), CBD_STATUS_OK);
        visit(f);
        CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK);
        CHECK((atomic_load(&h->count) != 0) == cases[i].heard);
        free(h);
    }
    struct heard *h = heard_new();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_STATUS(cbd_log_install(hear, h, CBD_LOG_INFO, bad[i], &error), CBD_STATUS_INVALID_ARGUMENT);
        CHECK(strstr(error.text, "channels") != NULL);
    }
    CHECK_STATUS(cbd_log_install(hear, h, 5, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_log_install(NULL, h, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    visit(f);
    CHECK(atomic_load(&h->count) == 0);
    free(h);
    fake_stop(f);
}

static _Atomic int refused;

static void flush_within(void *context, uint32_t severity, uint64_t time_ns, const char *text)
{
    (void)context, (void)severity, (void)time_ns, (void)text;
    cbd_error why;
    if (cbd_log_flush(UINT64_MAX, &why) == CBD_STATUS_OP_FAILED && cbd_log_remove(&why) == CBD_STATUS_OP_FAILED)
        atomic_fetch_add(&refused, 1);
}

static void a_callback_that_would_wait_for_itself_is_refused(void)
{
    struct fake *f = fake_start();
    CHECK_STATUS(cbd_log_install(flush_within, NULL, CBD_LOG_DEBUG, NULL, &error), CBD_STATUS_OK);
    visit(f);
    CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK);
    CHECK(atomic_load(&refused) != 0);
    fake_stop(f);
}

static void a_forked_child_has_none(void)
{
    struct fake *f = fake_start();
    struct heard *h = heard_new();
    CHECK_STATUS(cbd_log_install(hear, h, CBD_LOG_DEBUG, NULL, &error), CBD_STATUS_OK);
    visit(f);
    CHECK_STATUS(cbd_log_flush(UINT64_MAX, &error), CBD_STATUS_OK);
    int count = atomic_load(&h->count);
    pid_t child = fork();
    if (child == 0) {
        cbd_stage *stage;
        CHECK_STATUS(cbd_connect("no such stage", NULL, &stage, &error), CBD_STATUS_INVALID_ARGUMENT);
        CHECK_STATUS(cbd_log_flush(UINT64_MAX, &error), CBD_STATUS_OK);
        CHECK(atomic_load(&h->count) == count);
        CHECK_STATUS(cbd_log_install(hear, h, CBD_LOG_DEBUG, NULL, &error), CBD_STATUS_OK); /* one of its own */
        CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK);
        fake_child_ends();
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    visit(f);
    CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK);
    CHECK(atomic_load(&h->count) > count);
    free(h);
    fake_stop(f);
}

/* What happens to sessions and handles is told; each by its severity and channel. */
static void what_a_program_should_know_is_told(void)
{
    struct fake *f = fake_start();
    struct heard *h = heard_new();
    f->features |= CBD_FEATURE_RECOVERY;
    CHECK_STATUS(cbd_log_install(hear, h, CBD_LOG_INFO, NULL, &error), CBD_STATUS_OK);
    cbd_stage *stage = fake_connect(f), *none;
    const char *paths[2] = {"/a", "/b"};
    cbd_query *query;
    CHECK_STATUS(cbd_query_from_path_list(stage, paths, NULL, 2, &query, &error), CBD_STATUS_OK);
    cbd_map_options options = {.ordinal = 4, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_session *session;
    CHECK_STATUS(cbd_map_attribute(stage, query, "x", &options, &session, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    fake_die(f);
    fake_rise(f);
    cbd_query *again;
    CHECK_STATUS(cbd_query_from_path_list(stage, paths, NULL, 1, &again, &error), CBD_STATUS_OK);
    cbd_query_release(again);
    cbd_query_release(query);
    fake_hang_up(f, "it was told to");
    CHECK_STATUS(cbd_follow(stage, 5, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    cbd_stage_release(stage);
    CHECK_STATUS(cbd_connect("other", NULL, &none, &error), CBD_STATUS_NOT_FOUND);
    CHECK_STATUS(cbd_log_remove(&error), CBD_STATUS_OK);
    static const char *const told[] = {"handle: stage fake: the session on \"x\" was released while it was open", "the broker hung up; another one",
                                       "took the session up again", "the session is over: the broker ended this session", "session: not attached: NOT_FOUND"};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        CHECK(strstr(h->all, told[i]) != NULL);
    free(h);
    fake_stop(f);
}

/* 322, 323: refused with a list, the stage as it was, and possible once they are given back. */
static void closing_with_live_handles_is_refused_with_a_list(void)
{
    struct fake *f = fake_start();
    const char *path = "/a", *name = "x";
    const float value = 1;
    uint32_t column = fake_column(f, "x", CBD_DTYPE_FLOAT, 32, 1, 0, NULL);
    cbd_stage *stage = fake_connect(f);
    cbd_query *query, *root;
    const cbd_read_group *group;
    cbd_read *read;
    cbd_op *op;
    cbd_snapshot *snapshot;
    CHECK_STATUS(cbd_query_from_path_list(stage, &path, NULL, 1, &query, &error), CBD_STATUS_OK);
    fake_publish(f, column, 0, fake_layout(f, &path, 1, 1), 1, &value, 4, 1);
    CHECK_STATUS(cbd_root_query(stage, &root, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_read_attributes(stage, query, &name, 1, &read, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_snapshot_open(stage, &snapshot, &error), CBD_STATUS_OK);
    atomic_store(&f->frozen, 1);
    CHECK_STATUS(cbd_advance_write_floor(stage, 1, CBD_SCOPE_ALL, NULL, 0, 0, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_stage_close_if_idle(stage, &error), CBD_STATUS_OP_FAILED);
    static const char *const listed[] = {"2 queries", "1 op", "2 reads or snapshots", "2 pins", "\"x\" at epoch 1", "everything at epoch 1"};
    for (size_t i = 0; i < sizeof listed / sizeof listed[0]; i++)
        CHECK(strstr(error.text, listed[i]) != NULL);
    CHECK(cbd_stage_is_alive(stage) && *(const float *)group->data == 1);
    atomic_store(&f->frozen, 0);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_query_release(query);
    cbd_query_release(root);
    cbd_read_release(read);
    cbd_snapshot_release(snapshot);
    CHECK_STATUS(cbd_stage_close_if_idle(stage, &error), CBD_STATUS_OP_FAILED);
    CHECK(strstr(error.text, "1 pin of a view") != NULL && strstr(error.text, "quer") == NULL && strstr(error.text, "op,") == NULL);
    cbd_release_group(group);
    CHECK_STATUS(cbd_stage_close_if_idle(stage, &error), CBD_STATUS_OK);
    CHECK(!cbd_stage_is_alive(stage));
    CHECK_STATUS(cbd_stage_close_if_idle(stage, &error), CBD_STATUS_OK);
    cbd_op_release(op); /* it is done, and did not count */
    cbd_stage_release(stage);
    fake_stop(f);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    RUN(a_callback_is_installed_flushed_and_removed);
    RUN(a_filter_suppresses_and_bad_text_is_refused);
    RUN(a_callback_that_would_wait_for_itself_is_refused);
    RUN_ON_LINUX(a_forked_child_has_none, "a forked child can make no thread");
    RUN(what_a_program_should_know_is_told);
    RUN(closing_with_live_handles_is_refused_with_a_list);
    return 0;
}
