/* What a commit costs beside the least that moving its bytes costs.
 *
 * A round changes some rows of a column that exists: map the rows, fill them from a payload, unmap them with the seal, wait
 * for that. Beside it the bytes are moved by a plain loop between memory of this program's own:
 *
 *     runs     rows of 4 KiB, one run of neighbours at a random place; beside it memcpy of as many bytes, from and to
 *              places of large arrays where nobody was lately, so that both are cold
 *     random   rows of 12 bytes, all over the column, one of 16 sets in turn (of 4, where these are a quarter of the rows
 *              or more); beside it a loop that copies each to its row of one of 8 arrays in turn, so that it is cold, too
 *     same     the same, but one set of rows again and again, as a producer writes them that has its own
 *     append   as many new prims, written first and sealed; beside it 1
 *     grow     as many new prims, each written first and sealed by itself
 *     delete   half of those, each deleted and sealed by itself
 *
 * One line a round: nanoseconds of the whole round, of unmap to the end of the seal, and of what is beside it.
 *
 * Rounds of the first three come IN_A_ROW: a pause, so many times what is beside, so many rounds. The broker copies ahead
 * in the pause, never while anything is timed: with 1 in a row, a tick apart, each round finds that done; with more,
 * only the first would, and is not printed.
 *
 * Usage: cost STAGE runs COLUMN_BYTES CHANGED_BYTES ROUNDS IN_A_ROW
 *        cost STAGE random|same ROWS CHANGED_ROWS ROUNDS IN_A_ROW
 *        cost STAGE append|grow|delete PRIMS 0 ROUNDS 1
 */
#include "../relay/rounds.h"

#include "callboard.h"

#include <sched.h>

#define WARM_UP 48 /* rounds until blocks are used again, and each set of rows has come twice */
#define PAUSE_NS 20000000 /* a tick */
#define IN_A_ROW_MAX 128
#define PLACES 16  /* different sets of rows, in turn */
#define MANY_PLACES 4 /* of many rows */
#define ARRAYS 8   /* that are scattered to in turn: more than caches hold */
#define RUN_ROW 4096u
#define SMALL_ROW 12u

static cbd_stage *stage;
static cbd_error error;
static uint64_t ordinal;
static char column[32]; /* this run's attribute */

static void check(cbd_status status, const char *what)
{
    if (status == CBD_STATUS_OK)
        return;
    fprintf(stderr, "bench: %s: %s: %s\n", what, cbd_status_name(status), error.text);
    exit(1);
}

static uint64_t next_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void *memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) {
        perror("bench: memory");
        exit(1);
    }
    memset(at, 1, bytes);
    return at;
}

/* A query of n of the prims /p0, /p1, …: those that which says. */
static cbd_query *query_of(const uint32_t *which, size_t n, const char *prefix)
{
    char *texts = malloc(n * 24);
    const char **paths = malloc(n * sizeof *paths);
    for (size_t i = 0; i < n; i++) {
        paths[i] = texts + i * 24;
        snprintf(texts + i * 24, 24, "/%s%u", prefix, which == NULL ? (uint32_t)i : which[i]);
    }
    cbd_query *query;
    cbd_status status;
    while ((status = cbd_query_from_path_list(stage, paths, NULL, n, &query, &error)) == CBD_STATUS_QUEUE_FULL)
        sched_yield(); /* so many queries were just released */
    check(status, "query");
    free(paths);
    free(texts);
    return query;
}

static void wait_and_release(cbd_op *op, const char *what)
{
    check(cbd_op_wait(op, UINT64_MAX, NULL, &error), what);
    cbd_op_release(op);
}

static void seal(void)
{
    cbd_op *op;
    const char *name = column;
    check(cbd_advance_write_floor(stage, ordinal, CBD_SCOPE_INCLUDE, &name, 1, 0, &op, &error), "seal");
    wait_and_release(op, "seal");
}

/* Writes rows of float32 × lanes in place and seals; tells when it handed them over. */
static uint64_t commit(cbd_query *query, uint16_t lanes, const void *payload, uint64_t bytes)
{
    cbd_map_options options = {.ordinal = ++ordinal, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1,
                               .row_ndim = 1, .row_shape = {lanes}};
    cbd_session *session;
    cbd_group *group;
    cbd_op *unmap;
    check(cbd_map_attribute(stage, query, column, &options, &session, &error), "map");
    check(cbd_fetch_map_next(session, &group, &error), "group");
    memcpy(group->data, payload, bytes);
    uint64_t handed = now_ns();
    check(cbd_unmap_attribute(session, CBD_FLAG_SEAL, &unmap, &error), "unmap");
    wait_and_release(unmap, "unmap");
    cbd_session_release(session);
    return handed;
}

static void print(uint64_t started, uint64_t handed, uint64_t ended, uint64_t beside)
{
    printf("%llu %llu %llu\n", (unsigned long long)(ended - started), (unsigned long long)(ended - handed),
           (unsigned long long)beside);
}

/* What is measured: a round that changes rows, and what is beside it. */
static struct {
    uint32_t changed;         /* rows */
    uint64_t bytes;           /* of these */
    unsigned sets;            /* of which and some */
    uint16_t lanes;
    cbd_query *some[PLACES];
    uint32_t *which[PLACES];
    char *from, *to;
    uint64_t array;           /* bytes of each of ARRAYS at to */
    uint64_t places;           /* how far from and to reach; 0: all rounds use their beginning */
} work;

static void move_run(unsigned i, uint64_t at)
{
    (void)i;
    memcpy(work.to + at, work.from + at, work.bytes);
}

static void scatter(unsigned i, uint64_t at)
{
    (void)at;
    const uint32_t *rows = work.which[i % work.sets];
    char *to = work.to + (size_t)(i % ARRAYS) * work.array;
    for (uint32_t k = 0; k < work.changed; k++)
        memcpy(to + (size_t)rows[k] * SMALL_ROW, work.from + (size_t)k * SMALL_ROW, SMALL_ROW);
}

static void measure(void (*beside)(unsigned i, uint64_t at), unsigned rounds, unsigned in_a_row)
{
    uint64_t alone[IN_A_ROW_MAX], at[IN_A_ROW_MAX] = {0};
    for (unsigned i = 0; i < WARM_UP + rounds; i += in_a_row) {
        for (unsigned k = 0; work.places > 0 && k < in_a_row; k++)
            at[k] = next_random() % (work.places - work.bytes) & ~63ull;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        for (unsigned k = 0; k < in_a_row; k++) {
            uint64_t before = now_ns();
            beside(i + k, at[k]);
            alone[k] = now_ns() - before;
        }
        for (unsigned k = 0; k < in_a_row; k++) {
            uint64_t started = now_ns();
            uint64_t handed = commit(work.some[(i + k) % work.sets], work.lanes, work.from + at[k], work.bytes);
            uint64_t ended = now_ns();
            if (i + k >= WARM_UP && (k > 0 || in_a_row == 1))
                print(started, handed, ended, alone[k]);
        }
    }
}

static void runs(uint64_t column_bytes, uint64_t changed_bytes, unsigned rounds, unsigned in_a_row)
{
    uint32_t rows = (uint32_t)(column_bytes / RUN_ROW);
    char *whole = memory(column_bytes);
    cbd_query *all = query_of(NULL, rows, "p");
    work.sets = PLACES;
    work.changed = (uint32_t)(changed_bytes / RUN_ROW);
    work.bytes = changed_bytes;
    work.lanes = RUN_ROW / 4;
    work.places = 256u << 20;
    work.from = memory(work.places);
    work.to = memory(work.places);
    uint32_t *which = malloc(work.changed * sizeof *which);
    for (int i = 0; i < PLACES; i++) {
        uint32_t first = (uint32_t)(next_random() % (rows - work.changed + 1));
        for (uint32_t k = 0; k < work.changed; k++)
            which[k] = first + k;
        work.some[i] = query_of(which, work.changed, "p");
    }
    commit(all, RUN_ROW / 4, whole, column_bytes);
    measure(move_run, rounds, in_a_row);
}

static void random_rows(unsigned sets, uint32_t rows, uint32_t changed, unsigned rounds, unsigned in_a_row)
{
    cbd_query *all = query_of(NULL, rows, "p");
    work.sets = sets;
    work.changed = changed;
    work.bytes = (uint64_t)changed * SMALL_ROW;
    work.lanes = SMALL_ROW / 4;
    work.array = (uint64_t)rows * SMALL_ROW;
    work.to = memory(work.array * ARRAYS);
    work.from = memory(work.bytes);
    for (unsigned i = 0; i < sets; i++) {
        work.which[i] = malloc(changed * sizeof **work.which);
        for (uint32_t k = 0; k < changed; k++)
            work.which[i][k] = (uint32_t)(next_random() % rows);
        work.some[i] = query_of(work.which[i], changed, "p");
    }
    commit(all, SMALL_ROW / 4, work.to, work.array);
    measure(scatter, rounds, in_a_row);
}

/* Rows of one float32 each, in one operation or each by itself; of the latter the time of the operations alone counts. */
static void grow_or_shrink(const char *way, uint32_t prims, unsigned rounds)
{
    float *values = memory(prims * sizeof *values + 1);
    int growing = strcmp(way, "grow") == 0;
    for (unsigned round = 0; round < rounds; round++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "r%u/", round);
        uint64_t took = 0;
        if (!growing) {
            cbd_query *all = query_of(NULL, prims, prefix);
            uint64_t started = now_ns();
            commit(all, 1, values, prims * sizeof *values);
            took = now_ns() - started;
            cbd_query_release(all);
        }
        if (strcmp(way, "append") == 0) {
            print(0, 0, took, 1);
            continue;
        }
        took = 0;
        for (uint32_t i = 0; i < prims; i += growing ? 1 : 2) {
            cbd_query *one = query_of(&i, 1, prefix);
            const char *name = column;
            cbd_op *op;
            uint64_t started = now_ns();
            if (growing) {
                commit(one, 1, values, sizeof *values);
            } else {
                check(cbd_delete_attributes(stage, one, &name, 1, ++ordinal, &op, &error), "delete");
                wait_and_release(op, "delete");
                seal();
            }
            took += now_ns() - started;
            cbd_query_release(one);
        }
        print(0, 0, took, 1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: cost STAGE runs|random|same|append|grow|delete SIZE CHANGED ROUNDS IN_A_ROW\n");
        return 2;
    }
    cbd_connect_options options = {.client_name = "bench cost"};
    check(cbd_connect(argv[1], &options, &stage, &error), "connecting");
    snprintf(column, sizeof column, "cost%d", (int)getpid());
    uint64_t size = strtoull(argv[3], NULL, 10), changed = strtoull(argv[4], NULL, 10);
    unsigned rounds = (unsigned)strtoul(argv[5], NULL, 10), in_a_row = (unsigned)strtoul(argv[6], NULL, 10);
    if (in_a_row < 1 || in_a_row > IN_A_ROW_MAX) {
        fprintf(stderr, "bench: %u rounds in a row: expected 1 to %d\n", in_a_row, IN_A_ROW_MAX);
        return 2;
    }
    if (strcmp(argv[2], "runs") == 0)
        runs(size, changed, rounds, in_a_row);
    else if (strcmp(argv[2], "random") == 0)
        random_rows(changed * 4 < size ? PLACES : MANY_PLACES, (uint32_t)size, (uint32_t)changed, rounds, in_a_row);
    else if (strcmp(argv[2], "same") == 0)
        random_rows(1, (uint32_t)size, (uint32_t)changed, rounds, in_a_row);
    else
        grow_or_shrink(argv[2], (uint32_t)size, rounds);
    cbd_stage_close(stage);
    return 0;
}
