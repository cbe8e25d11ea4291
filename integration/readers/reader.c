/* A reader in C for the integration tests, beside those in Go and Python.
 *
 *     reader stress N   takes snapshots, checks every row and reports in one JSON line: after a
 *                       line on standard input, and not before N snapshots
 *     reader latest A   prints the first eight bytes of attribute A, newest state, as a number
 *
 * What does not work is told on standard error, by its name and text, with exit status 1.
 * Stamps, columns and checks are those of stress_roles_test.go.
 */
#include <callboard.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALPHA_ROWS = 512, GAMMA_ROWS = 3072, SCATTER_PARTS = 6, HELD_FOR = 12, WORDS = 4 };

static struct {
    uint64_t snapshots, held, torn, mixed, refused;
    char first[700]; /* of the last three */
} report;

static int fail(const char *doing, const cbd_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", doing, cbd_status_name(error->status), error->text);
    return 1;
}

/* Counts what must not be and keeps the first text, without what JSON would have to escape. */
static void note(uint64_t *count, const char *format, ...)
{
    ++*count;
    if (report.first[0] != '\0')
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report.first, sizeof report.first, format, arguments);
    va_end(arguments);
    for (char *c = report.first; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = '\'';
}

/* The ordinal that wrote a row of gamma, as ordinal n shows it. */
static uint64_t written_by(uint64_t n, uint64_t row)
{
    uint64_t back = (n + SCATTER_PARTS - row % SCATTER_PARTS) % SCATTER_PARTS;
    return n > back + 1 ? n - back : 1;
}

static void check(const cbd_read_group *group, int scattered)
{
    const uint64_t(*rows)[WORDS] = group->data;
    for (uint64_t i = 0; i < group->prim_count; i++) {
        uint64_t row = group->index_map ? group->index_map[i] : i;
        uint64_t want = (scattered ? written_by(group->ordinal, i) : group->ordinal) << 20 | i;
        for (int word = 0; word < WORDS; word++)
            if (rows[row][word] != want) {
                note(&report.torn, "C: %s, epoch %" PRIu64 ", ordinal %" PRIu64 ": row %" PRIu64 " has %" PRIx64 ", expected %" PRIx64,
                     group->name, group->epoch, group->ordinal, i, rows[row][word], want);
                break;
            }
    }
}

/* Two columns that are sealed together, and the query of their prims. */
struct pair {
    const char *names[2];
    cbd_query *query;
    uint64_t rows;
    int scattered;
};

/* Takes one group for each of the pair's names. */
static cbd_status take(cbd_snapshot *snapshot, const struct pair *pair, const cbd_read_group **groups, cbd_error *error)
{
    cbd_read *read;
    cbd_status status = cbd_snapshot_read(snapshot, pair->query, pair->names, 2, &read, error);
    for (int i = 0; i < 2 && status == CBD_STATUS_OK; i++)
        status = cbd_fetch_read_next(read, &groups[i], error);
    cbd_read_release(read);
    for (int i = 0; i < 2 && status == CBD_STATUS_OK; i++) {
        uint64_t floor;
        status = cbd_snapshot_floor(snapshot, groups[i]->name, &floor, error);
        if (status == CBD_STATUS_OK && floor != groups[i]->ordinal)
            note(&report.mixed, "C: epoch %" PRIu64 ": %s has ordinal %" PRIu64 " and floor %" PRIu64, groups[i]->epoch,
                 groups[i]->name, groups[i]->ordinal, floor);
        if (groups[i]->prim_count != pair->rows)
            note(&report.mixed, "C: epoch %" PRIu64 ": %s has %" PRIu64 " rows, expected %" PRIu64, groups[i]->epoch,
                 groups[i]->name, groups[i]->prim_count, pair->rows);
    }
    if (status == CBD_STATUS_OK && groups[0]->ordinal != groups[1]->ordinal)
        note(&report.mixed, "C: epoch %" PRIu64 ": %s has ordinal %" PRIu64 ", %s %" PRIu64, groups[0]->epoch,
             groups[0]->name, groups[0]->ordinal, groups[1]->name, groups[1]->ordinal);
    return status;
}

/* Reads both pairs at one epoch and checks them; `hold`: once more over later commits. */
static cbd_status look(cbd_stage *stage, const struct pair *pairs, int hold, cbd_error *error)
{
    cbd_snapshot *snapshot;
    const cbd_read_group *groups[4] = {NULL};
    cbd_status status = cbd_snapshot_open(stage, &snapshot, error);
    if (status != CBD_STATUS_OK)
        return status;
    report.snapshots++;
    for (int i = 0; i < 2 && status == CBD_STATUS_OK; i++)
        status = take(snapshot, &pairs[i], groups + 2 * i, error);
    for (int again = 0; again <= hold && status == CBD_STATUS_OK; again++) {
        uint64_t from = cbd_snapshot_epoch(snapshot), later = from;
        while (again && later < from + HELD_FOR && status == CBD_STATUS_OK)
            status = cbd_follow(stage, later, UINT64_MAX, &later, error);
        for (int i = 0; i < 4 && status == CBD_STATUS_OK; i++)
            check(groups[i], pairs[i / 2].scattered);
        if (again && status == CBD_STATUS_OK)
            report.held++;
    }
    for (int i = 0; i < 4; i++)
        cbd_release_group(groups[i]);
    cbd_snapshot_release(snapshot);
    return status;
}

static cbd_status query(cbd_stage *stage, const char *kind, uint64_t n, cbd_query **out, cbd_error *error)
{
    static char texts[GAMMA_ROWS][16];
    static const char *paths[GAMMA_ROWS];
    for (uint64_t i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], "/%s/%u", kind, (unsigned)i);
        paths[i] = texts[i];
    }
    return cbd_query_from_path_list(stage, paths, NULL, n, out, error);
}

static int stress(cbd_stage *stage, uint64_t least)
{
    struct pair pairs[2] = {{{"alpha", "beta"}, NULL, ALPHA_ROWS, 0}, {{"gamma", "delta"}, NULL, GAMMA_ROWS, 1}};
    cbd_error error;
    if (query(stage, "a", ALPHA_ROWS, &pairs[0].query, &error) != CBD_STATUS_OK ||
        query(stage, "g", GAMMA_ROWS, &pairs[1].query, &error) != CBD_STATUS_OK)
        return fail("making a query", &error);
    puts("\"ready\"");
    fflush(stdout);
    struct pollfd orders = {STDIN_FILENO, POLLIN, 0};
    for (uint64_t epoch = 0; report.snapshots < least || poll(&orders, 1, 0) == 0;) {
        if (orders.revents & POLLHUP)
            return 0; /* whoever started us is gone */
        if (cbd_follow(stage, epoch, UINT64_MAX, &epoch, &error) != CBD_STATUS_OK)
            return fail("refused wait", &error);
        if (look(stage, pairs, report.snapshots % 8 == 7, &error) != CBD_STATUS_OK)
            note(&report.refused, "C: read after %" PRIu64 " snapshots: %s: %s", report.snapshots,
                 cbd_status_name(error.status), error.text);
    }
    printf("{\"Snapshots\":%" PRIu64 ",\"Held\":%" PRIu64 ",\"Torn\":%" PRIu64 ",\"Mixed\":%" PRIu64 ",\"Refused\":%" PRIu64
           ",\"First\":\"%s\"}\n",
           report.snapshots, report.held, report.torn, report.mixed, report.refused, report.first);
    cbd_query_release(pairs[0].query);
    cbd_query_release(pairs[1].query);
    return 0;
}

static int latest(cbd_stage *stage, const char *name)
{
    const cbd_read_group *group;
    cbd_error error;
    if (cbd_latest(stage, name, &group, &error) != CBD_STATUS_OK)
        return fail("reading", &error);
    printf("%" PRIu64 "\n", *(const uint64_t *)group->data);
    cbd_release_group(group);
    return 0;
}

int main(int argc, char **argv)
{
    cbd_connect_options options = {.client_name = "reader", .read_only = 1};
    cbd_error error;
    cbd_stage *stage;
    if (argc != 3) {
        fprintf(stderr, "usage: reader stress N | latest ATTRIBUTE\n");
        return 2;
    }
    if (cbd_connect(NULL, &options, &stage, &error) != CBD_STATUS_OK)
        return fail("connecting", &error);
    int status = strcmp(argv[1], "stress") == 0 ? stress(stage, strtoull(argv[2], NULL, 10)) : latest(stage, argv[2]);
    cbd_stage_release(stage);
    return status;
}
