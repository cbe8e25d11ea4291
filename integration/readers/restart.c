/* A producer or a follower that lives through deaths of the broker, until its input ends.
 *
 *     restart produce NAME   tick n: NAME by a copying write, NAME/map in place, both at ordinal n, one seal
 *     restart follow NAME    every state that it sees is one whole tick, and none goes backwards
 *
 * At the end it prints what it counted, as JSON. Any error but BROKER_RESTARTED ends it.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "callboard.h"

enum { ROWS = 64 };

static cbd_error error;
static uint64_t restarted, maybe;

static void must(cbd_status status, const char *what)
{
    if (status == CBD_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, cbd_status_name(status), error.text);
    exit(1);
}

static int goes_on(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) == 0;
}

static cbd_status finished(cbd_status status, cbd_op *op)
{
    cbd_op_result result = {0};
    if (status != CBD_STATUS_OK)
        return status;
    status = cbd_op_wait(op, UINT64_MAX, &result, &error);
    maybe += status == CBD_STATUS_BROKER_RESTARTED && (result.flags & CBD_COMPLETION_SEALED_MAYBE) != 0;
    cbd_op_release(op);
    return status;
}

static cbd_status tick(cbd_stage *stage, cbd_query *query, const char *const names[2], int64_t n)
{
    int64_t values[ROWS], rows = ROWS;
    cbd_tensor tensor = {.data = values, .ndim = 1, .shape = &rows, .code = CBD_DTYPE_INT, .bits = 64, .lanes = 1};
    cbd_write_options options = cbd_write_options_default();
    cbd_map_options map = {.ordinal = (uint64_t)n, .code = CBD_DTYPE_INT, .bits = 64, .lanes = 1};
    cbd_session *session;
    cbd_group *group;
    cbd_op *op;
    for (int i = 0; i < ROWS; i++)
        values[i] = n;
    options.ordinal = (uint64_t)n;
    cbd_status status = cbd_write_attribute(stage, query, names[0], &tensor, &options, NULL, &error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbd_map_attribute(stage, query, names[1], &map, &session, &error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbd_fetch_map_next(session, &group, &error);
    if (status == CBD_STATUS_OK) {
        memcpy(group->data, values, sizeof values);
        status = cbd_unmap_attribute(session, 0, NULL, &error);
    }
    cbd_session_release(session);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbd_advance_write_floor(stage, (uint64_t)n, CBD_SCOPE_INCLUDE, names, 2, 0, &op, &error);
    return finished(status, op);
}

static void produce(cbd_stage *stage, cbd_query *query, const char *const names[2])
{
    int64_t n = 0;
    while (goes_on()) {
        cbd_status status = tick(stage, query, names, n + 1);
        uint64_t floor = 0;
        if (status == CBD_STATUS_BROKER_RESTARTED || status == CBD_STATUS_FLOOR_VIOLATION) {
            restarted += status == CBD_STATUS_BROKER_RESTARTED;
            must(cbd_write_floor(stage, names[1], &floor, &error), "floor");
            if (floor < (uint64_t)n)
                must(CBD_STATUS_INTERNAL, "a floor fell");
            if (status == CBD_STATUS_FLOOR_VIOLATION && floor <= (uint64_t)n)
                must(status, "tick");
            if (status == CBD_STATUS_BROKER_RESTARTED)
                usleep(2000);
        } else if (status == CBD_STATUS_QUEUE_FULL) {
            usleep(1000);
        } else {
            must(status, "tick");
            floor = (uint64_t)n + 1;
        }
        n = floor > (uint64_t)n ? (int64_t)floor : n;
    }
    printf("{\"ticks\": %" PRIi64 ", \"restarted\": %" PRIu64 ", \"maybe\": %" PRIu64 "}\n", n, restarted, maybe);
}

static void follow(cbd_stage *stage, cbd_query *query, const char *const names[2])
{
    uint64_t epoch = 0, reads = 0;
    int64_t last = 0;
    for (int more = 1; more;) {
        more = goes_on(); /* before it looks: the last look is at what was there at the end */
        cbd_status status = cbd_follow(stage, epoch, 50000000, &epoch, &error);
        if (status != CBD_STATUS_TIMEOUT)
            must(status, "follow");
        cbd_read *read;
        const cbd_read_group *group;
        int64_t seen = 0;
        must(cbd_read_attributes(stage, query, names, 2, &read, &error), "read");
        while ((status = cbd_fetch_read_next(read, &group, &error)) == CBD_STATUS_OK) {
            const int64_t *values = group->data;
            for (uint64_t i = 0; i < group->rows; i++)
                if (values[i] != values[0] || (uint64_t)values[i] != group->ordinal || (seen != 0 && values[i] != seen) || values[i] < last) {
                    fprintf(stderr, "%s row %" PRIu64 " holds %" PRIi64 " at ordinal %" PRIu64 ", after %" PRIi64 "\n", group->name, i,
                            values[i], group->ordinal, last);
                    exit(1);
                }
            seen = values[0];
            cbd_release_group(group);
        }
        if (status != CBD_STATUS_END)
            must(status, "fetch");
        cbd_read_release(read);
        last = seen;
        reads++;
    }
    printf("{\"reads\": %" PRIu64 ", \"last\": %" PRIi64 "}\n", reads, last);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    char mapped[256], texts[ROWS][16];
    const char *paths[ROWS], *names[2] = {argv[2], mapped};
    cbd_stage *stage;
    cbd_query *query;
    snprintf(mapped, sizeof mapped, "%s/map", argv[2]);
    for (int i = 0; i < ROWS; i++) {
        snprintf(texts[i], sizeof texts[i], "/row/%d", i);
        paths[i] = texts[i];
    }
    must(cbd_connect(NULL, NULL, &stage, &error), "connect");
    must(cbd_query_from_path_list(stage, paths, NULL, ROWS, &query, &error), "query");
    puts("\"ready\"");
    fflush(stdout);
    strcmp(argv[1], "produce") == 0 ? produce(stage, query, names) : follow(stage, query, names);
    cbd_query_release(query);
    cbd_stage_release(stage);
    return 0;
}
