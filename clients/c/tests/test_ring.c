/* Rings, waiting, rooms, and the end of a session (rules R1 to R5, I2, I4). */
#include "fake_broker.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring.h"

static cbd_error error;

static cbd_op *nop(cbd_stage *stage)
{
    struct submission s = {.opcode = CBD_OP_NOP};
    cbd_op *op;
    CHECK_STATUS(cbdi_submit_begin(stage, &s, 0, 0, &error), CBD_STATUS_OK);
    cbdi_submit_commit(stage, &s, &op);
    return op;
}

/* Room never overlaps, and all of it comes back (R1, R2). */
static void rooms_taken_at_random_never_overlap(void)
{
    enum { SIZE = 4096, OPS = 64 };
    static uint8_t area[SIZE], owner[SIZE];
    struct {
        uint32_t offset, bytes;
    } held[OPS] = {{0, 0}};
    struct rooms rooms;
    unsigned seed = 20240611;
    printf("  seed %u\n", seed);
    CHECK(cbdi_rooms_init(&rooms, area, SIZE, OPS));
    for (int turn = 0; turn < 200000; turn++) {
        int i = rand_r(&seed) % OPS;
        if (held[i].bytes != 0) {
            for (uint32_t b = 0; b < held[i].bytes; b++) {
                CHECK(owner[held[i].offset + b] == i + 1);
                owner[held[i].offset + b] = 0;
            }
            cbdi_rooms_give(&rooms, held[i].offset, held[i].bytes);
            held[i].bytes = 0;
            continue;
        }
        uint32_t bytes = 8 * (1 + (uint32_t)rand_r(&seed) % 40), offset;
        if (!cbdi_rooms_take(&rooms, bytes, &offset))
            continue;
        CHECK(offset + bytes <= SIZE && offset % 8 == 0);
        for (uint32_t b = 0; b < bytes; b++) {
            CHECK(owner[offset + b] == 0);
            owner[offset + b] = (uint8_t)(i + 1);
        }
        held[i].offset = offset;
        held[i].bytes = bytes;
    }
    for (int i = 0; i < OPS; i++)
        cbdi_rooms_give(&rooms, held[i].offset, held[i].bytes);
    CHECK(rooms.count == 1 && rooms.free[0].offset == 0 && rooms.free[0].bytes == SIZE);
    free(rooms.free);
}

static void an_op_completes_once_with_its_id(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    cbd_op_result result;
    cbd_op *op = nop(stage);
    CHECK(cbd_op_id(op) == 1);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, &result, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, 0, &result, &error), CBD_STATUS_OK); /* again */
    cbd_op_release(op);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void waiting_past_the_time_is_timeout_and_may_be_repeated(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    atomic_store(&f->frozen, 1);
    cbd_op *op = nop(stage);
    uint64_t start = cbdi_now_ns();
    CHECK_STATUS(cbd_op_wait(op, 0, NULL, &error), CBD_STATUS_TIMEOUT);
    CHECK_STATUS(cbd_op_wait(op, 30000000, NULL, &error), CBD_STATUS_TIMEOUT);
    CHECK(cbdi_now_ns() - start >= 30000000);
    CHECK(cbd_op_error(op)[0] == 0);
    atomic_store(&f->frozen, 0);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* Submission never blocks (R6): a full ring says QUEUE_FULL, and comes to life again. */
static void a_full_ring_is_queue_full_and_pending_ops_may_be_released(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    atomic_store(&f->frozen, 1);
    cbd_op *ops[16];
    for (int i = 0; i < 16; i++)
        ops[i] = nop(stage);
    struct submission s = {.opcode = CBD_OP_NOP};
    CHECK_STATUS(cbdi_submit_begin(stage, &s, 0, 0, &error), CBD_STATUS_QUEUE_FULL);
    CHECK(strstr(error.text, "16") != NULL);
    for (int i = 0; i < 15; i++)
        cbd_op_release(ops[i]);
    atomic_store(&f->frozen, 0);
    CHECK_STATUS(cbd_op_wait(ops[15], UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(ops[15]);
    CHECK(stage->ring.outstanding == 0 && stage->ring.results.count == 1);
    cbd_stage_release(stage);
    fake_stop(f);
}

static bool fail_with_text(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    if (e->opcode == CBD_OP_NOP) {
        c->status = CBD_STATUS_FLOOR_VIOLATION;
        f->text = "ordinal 3 is at or below the floor 7";
    }
    return true;
}

static void the_text_of_an_error_lives_as_long_as_the_op(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    f->on_op = fail_with_text;
    cbd_op *first = nop(stage);
    CHECK_STATUS(cbd_op_wait(first, UINT64_MAX, NULL, &error), CBD_STATUS_FLOOR_VIOLATION);
    CHECK(strcmp(error.text, "ordinal 3 is at or below the floor 7") == 0);
    f->on_op = NULL;
    for (int i = 0; i < 100; i++) { /* its room is another op's by now */
        cbd_op *op = nop(stage);
        CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
        cbd_op_release(op);
    }
    CHECK(strcmp(cbd_op_error(first), "ordinal 3 is at or below the floor 7") == 0);
    cbd_op_release(first);
    cbd_stage_release(stage);
    fake_stop(f);
}

static bool too_many_results(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    (void)f;
    c->result_bytes = e->result_bytes + 8;
    return true;
}

static bool unknown_op(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    (void)f;
    (void)e;
    c->op_id = 4711;
    return true;
}

/* A broken broker is an INTERNAL error with numbers, never a crash (R5, the other way round). */
static void nonsense_from_the_broker_is_internal_with_numbers(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    f->on_op = too_many_results;
    cbd_op *op = nop(stage);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_INTERNAL);
    cbd_op_release(op);
    f->on_op = unknown_op;
    op = nop(stage);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_INTERNAL);
    CHECK(strstr(error.text, "4711") != NULL);
    cbd_op_release(op);
    struct submission s = {.opcode = CBD_OP_NOP};
    CHECK_STATUS(cbdi_submit_begin(stage, &s, 0, 0, &error), CBD_STATUS_INTERNAL);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void a_wild_ring_index_is_internal(void)
{
    for (int which = 0; which < 2; which++) {
        struct fake *f = fake_start();
        cbd_stage *stage = fake_connect(f);
        cbd_abi_channel_control *control = (cbd_abi_channel_control *)(f->channel + CBD_CHANNEL_CONTROL_OFFSET);
        store64(which ? &control->cq_tail : &control->sq_head, UINT64_C(1) << 63);
        struct submission s = {.opcode = CBD_OP_NOP};
        CHECK_STATUS(cbdi_submit_begin(stage, &s, 0, 0, &error), CBD_STATUS_INTERNAL);
        cbd_stage_release(stage);
        fake_stop(f);
    }
}

static void *hang_up_soon(void *fake)
{
    usleep(50000);
    fake_hang_up(fake, "more than 1000 malformed entries");
    return NULL;
}

/* I2, R4: a waiter hears of the end, with the broker's reason. */
static void a_hang_up_ends_waits_with_the_reason(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    atomic_store(&f->frozen, 1);
    cbd_op *op = nop(stage);
    pthread_t thread;
    pthread_create(&thread, NULL, hang_up_soon, f);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(strstr(error.text, "malformed") != NULL && strstr(error.text, "LIMIT") != NULL);
    pthread_join(thread, NULL);
    CHECK(!cbd_stage_is_alive(stage));
    CHECK_STATUS(cbd_follow(stage, 5, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    cbd_op_release(op);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void *close_soon(void *stage)
{
    usleep(50000);
    cbd_stage_close(stage);
    return NULL;
}

static void close_wakes_who_waits_in_another_thread(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    atomic_store(&f->frozen, 1);
    cbd_op *op = nop(stage);
    pthread_t thread;
    pthread_create(&thread, NULL, close_soon, stage);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    pthread_join(thread, NULL);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    cbd_stage_close(stage);
    CHECK(cbd_epoch(stage) == 0);
    cbd_stage_release(stage);
    cbd_op_release(op); /* in any order */
    fake_stop(f);
}

static _Atomic int served;

static void *many_ops(void *argument)
{
    cbd_stage *stage = argument;
    for (int i = 0; i < 500; i++) {
        struct submission s = {.opcode = CBD_OP_NOP};
        cbd_op *op;
        cbd_error why;
        cbd_status status = cbdi_submit_begin(stage, &s, 64, 0, &why);
        if (status == CBD_STATUS_QUEUE_FULL) {
            i--;
            continue;
        }
        CHECK(status == CBD_STATUS_OK);
        memset(s.arguments, 0xab, s.argument_bytes);
        cbdi_submit_commit(stage, &s, &op);
        CHECK(cbd_op_wait(op, UINT64_MAX, NULL, &why) == CBD_STATUS_OK);
        cbd_op_release(op);
        atomic_fetch_add(&served, 1);
    }
    return NULL;
}

static void eight_threads_share_one_ring(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, many_ops, stage);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&served) == 8 * 500);
    CHECK(stage->ring.outstanding == 0 && stage->ring.arguments.count == 1 && stage->ring.results.count == 1);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* B11: whatever goes wrong while attaching, nothing stays open. */
static void a_failed_attach_leaves_nothing_open(void)
{
    cbd_stage *stage;
    int before = fake_entries("/proc/self/fd");
    struct fake *f = fake_start();
    f->version = 9u << 16;
    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_INCOMPATIBLE_VERSION);
    CHECK(stage == NULL && strstr(error.text, "9.0") != NULL && strstr(error.text, "1.0") != NULL);
    f->version = CBD_VERSION_WORD;
    f->directory->header.magic++;
    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_INTERNAL);
    f->directory->header.magic--;
    cbd_abi_channel_header *h = (cbd_abi_channel_header *)f->channel;
    h->sq_entries = 17;
    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_INTERNAL);
    h->sq_entries = 16;
    for (int i = 0; i < 20; i++)
        cbd_stage_release(fake_connect(f));
    fake_stop(f);
    CHECK(fake_entries("/proc/self/fd") == before);

    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_NOT_FOUND);
    unsetenv("CALLBOARD_RUNTIME_DIR");
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    CHECK_STATUS(cbd_connect("nobody", NULL, &stage, &error), CBD_STATUS_NOT_FOUND);
    CHECK(strstr(error.text, "/nonexistent/callboard") != NULL && strstr(error.text, "/tmp/callboard-") != NULL);
    char parent[] = "/tmp/cbd-open-XXXXXX", place[64]; /* I5: open to others, or behind a link */
    CHECK(mkdtemp(parent) != NULL);
    snprintf(place, sizeof place, "%s/callboard", parent);
    CHECK(mkdir(place, 0700) == 0 && chmod(place, 0755) == 0);
    setenv("XDG_RUNTIME_DIR", parent, 1);
    CHECK_STATUS(cbd_connect("nobody", NULL, &stage, &error), CBD_STATUS_ACCESS_DENIED);
    CHECK(strstr(error.text, "0755") != NULL);
    CHECK(chmod(place, 0711) == 0); /* a broker that admits others; it is the stage's that is missing */
    CHECK_STATUS(cbd_connect("nobody", NULL, &stage, &error), CBD_STATUS_NOT_FOUND);
    if (geteuid() == 0) { /* only root can give a directory away */
        CHECK(chown(place, 12345, (gid_t)-1) == 0);
        CHECK_STATUS(cbd_connect("nobody", NULL, &stage, &error), CBD_STATUS_ACCESS_DENIED);
        CHECK(strstr(error.text, "uid 12345") != NULL && strstr(error.text, "CALLBOARD_TRUST_UID=12345") != NULL);
        setenv("CALLBOARD_TRUST_UID", "7, 12345", 1);
        CHECK_STATUS(cbd_connect("nobody", NULL, &stage, &error), CBD_STATUS_NOT_FOUND);
        CHECK(strstr(error.text, "/tmp/callboard-7") != NULL && strstr(error.text, "/tmp/callboard-12345") != NULL);
        unsetenv("CALLBOARD_TRUST_UID");
        CHECK(chown(place, 0, (gid_t)-1) == 0);
    }
    CHECK(rmdir(place) == 0 && symlink("/tmp", place) == 0);
    CHECK_STATUS(cbd_connect("nobody", NULL, &stage, &error), CBD_STATUS_ACCESS_DENIED);
    CHECK(strstr(error.text, "symbolic link") != NULL);
    CHECK(unlink(place) == 0 && rmdir(parent) == 0);
    CHECK_STATUS(cbd_connect("no/slash", NULL, &stage, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(fake_entries("/proc/self/fd") == before);
}

/* R3: every client may write all of the doorbell, so nothing in it can refuse the next one. */
static void a_scribbled_doorbell_refuses_nobody(void)
{
    struct fake *f = fake_start();
    memset(f->doorbell, 0xa5, CBD_DOORBELL_BYTES);
    cbd_stage *stage = fake_connect(f);
    cbd_op *op = nop(stage);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_stage_release(stage);
    int whole = f->doorbell_fd; /* but one that is not there is not mapped */
    f->doorbell_fd = memfd_create("cut", MFD_CLOEXEC);
    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_INTERNAL);
    CHECK(stage == NULL && strstr(error.text, "doorbell") != NULL);
    close(f->doorbell_fd);
    f->doorbell_fd = whole;
    fake_stop(f);
}

/* A runtime directory that is named outright may serve another stage than the one meant. */
static void another_stage_than_the_one_named_is_not_found(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage;
    int before = fake_entries("/proc/self/fd");
    CHECK_STATUS(cbd_connect("other", NULL, &stage, &error), CBD_STATUS_NOT_FOUND);
    CHECK(stage == NULL && strstr(error.text, f->dir) != NULL && strstr(error.text, "serves stage \"fake\", not \"other\"") != NULL);
    setenv("CALLBOARD_STAGE", "other", 1);
    CHECK_STATUS(cbd_connect(NULL, NULL, &stage, &error), CBD_STATUS_NOT_FOUND);
    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_OK); /* the argument comes first */
    cbd_stage_release(stage);
    setenv("CALLBOARD_STAGE", "", 1);
    CHECK_STATUS(cbd_connect("", NULL, &stage, &error), CBD_STATUS_OK); /* named nowhere: whatever it serves */
    cbd_stage_release(stage);
    unsetenv("CALLBOARD_STAGE");
    CHECK_STATUS(cbd_connect(NULL, NULL, &stage, &error), CBD_STATUS_OK);
    cbd_stage_release(stage);
    for (int i = 0; i < 6000 && fake_entries("/proc/self/fd") > before; i++)
        usleep(5000); /* the broker's end closes when it notices */
    CHECK(fake_entries("/proc/self/fd") == before);
    cbd_connect_options options = {.client_name = "caf\xe9"};
    CHECK_STATUS(cbd_connect("fake", &options, &stage, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "client_name") != NULL && strstr(error.text, "0xe9") != NULL);
    fake_stop(f);
}

/* The end's own name is not said twice, and a closed stage does not speak of C's functions. */
static void the_end_of_a_session_is_told_once(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    f->hang_up_status = CBD_STATUS_SESSION_ENDED;
    fake_hang_up(f, "the broker was stopped");
    CHECK_STATUS(cbd_follow(stage, 5, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(strcmp(error.text, "the broker ended this session: the broker was stopped") == 0);
    cbd_stage_close(stage);
    CHECK_STATUS(cbd_follow(stage, 5, UINT64_MAX, NULL, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(strcmp(error.text, "this stage was closed") == 0);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* I4: the child is not the client, and takes nothing down with it. */
static void a_forked_child_is_refused_and_the_parent_goes_on(void)
{
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    const char *path = "/a";
    cbd_query *query;
    CHECK_STATUS(cbd_query_from_path_list(stage, &path, NULL, 1, &query, &error), CBD_STATUS_OK);
    cbd_op *op = nop(stage);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    pid_t child = fork();
    if (child == 0) {
        CHECK(cbd_stage_is_foreign(stage));
        CHECK_STATUS(cbd_follow(stage, 0, 0, NULL, &error), CBD_STATUS_SESSION_ENDED);
        CHECK(strstr(error.text, "parent process") != NULL);
        cbd_op_release(op);
        cbd_query_release(query);
        cbd_stage_release(stage);
        fake_child_ends();
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    CHECK(!cbd_stage_is_foreign(stage) && cbd_stage_is_alive(stage));
    cbd_op_release(op);
    op = nop(stage);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

/* A list larger than the areas travels in pieces. */
static void a_long_path_list_travels_in_pieces(void)
{
    enum { N = 600 };
    struct fake *f = fake_start();
    cbd_stage *stage = fake_connect(f);
    static char texts[N][400];
    const char *paths[N];
    for (int i = 0; i < N; i++) {
        memset(texts[i], 'x', sizeof texts[i] - 1);
        snprintf(texts[i], sizeof texts[i], "/%d/", i);
        texts[i][strlen(texts[i])] = 'x'; /* long names: 400 bytes each, 240 KiB together */
        paths[i] = texts[i];
    }
    cbd_query *query;
    CHECK_STATUS(cbd_query_from_path_list(stage, paths, NULL, N, &query, &error), CBD_STATUS_OK);
    CHECK(cbd_query_size(query) == N && stage->ring.next_id > 3);
    for (int i = 0; i < N; i += 97) {
        const char *text;
        size_t length;
        CHECK_STATUS(cbd_resolve(stage, cbd_query_ids(query)[i], &text, &length, &error), CBD_STATUS_OK);
        CHECK(length == strlen(paths[i]) && memcmp(text, paths[i], length) == 0);
    }
    cbd_query_release(query);
    const char *bad[2] = {"/ok", "no-slash"};
    CHECK_STATUS(cbd_query_from_path_list(stage, bad, NULL, 2, &query, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(query == NULL && strstr(error.text, "path 1") != NULL);
    CHECK_STATUS(cbd_query_from_path_list(stage, NULL, NULL, 0, &query, &error), CBD_STATUS_OK);
    CHECK(cbd_query_size(query) == 0);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(f);
}

static void error_texts_are_cut_between_characters(void)
{
    char text[8];
    cbdi_copy_text(text, sizeof text, "abcdef\xc3\xa9", 8);
    CHECK(strcmp(text, "abcdef") == 0);
    for (uint32_t i = 0; i < CBD_STATUS_COUNT; i++) /* behaviour 222: every code has its own text */
        for (uint32_t j = 0; j < i; j++)
            CHECK(strcmp(cbd_status_text(i), cbd_status_text(j)) != 0 && strcmp(cbd_status_name(i), cbd_status_name(j)) != 0);
    cbd_error long_one;
    char many[2000];
    memset(many, 'z', sizeof many);
    many[sizeof many - 1] = 0;
    CHECK(cbdi_fail(&long_one, CBD_STATUS_LIMIT, "%s", many) == CBD_STATUS_LIMIT && strlen(long_one.text) == 511);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    RUN(rooms_taken_at_random_never_overlap);
    RUN(error_texts_are_cut_between_characters);
    RUN(an_op_completes_once_with_its_id);
    RUN(waiting_past_the_time_is_timeout_and_may_be_repeated);
    RUN(a_full_ring_is_queue_full_and_pending_ops_may_be_released);
    RUN(the_text_of_an_error_lives_as_long_as_the_op);
    RUN(nonsense_from_the_broker_is_internal_with_numbers);
    RUN(a_wild_ring_index_is_internal);
    RUN(a_hang_up_ends_waits_with_the_reason);
    RUN(close_wakes_who_waits_in_another_thread);
    RUN(eight_threads_share_one_ring);
    RUN(a_scribbled_doorbell_refuses_nobody);
    RUN(another_stage_than_the_one_named_is_not_found);
    RUN(the_end_of_a_session_is_told_once);
    RUN(a_forked_child_is_refused_and_the_parent_goes_on);
    RUN(a_long_path_list_travels_in_pieces);
    RUN(a_failed_attach_leaves_nothing_open);
    return 0;
}
