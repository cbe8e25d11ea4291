/* What warm.py does with `stage.map`, through the C client: map, fill, unmap with a seal, wait for it. A library that
 * warm.py loads, so that both clients run in one process, in turn, against one broker.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "callboard.h"

static cbd_stage *stage;
static cbd_query *root;

static void check(cbd_status status, const cbd_error *error, const char *what)
{
    if (status == CBD_STATUS_OK)
        return;
    fprintf(stderr, "bench: %s: %s: %s\n", what, cbd_status_name(status), error->text);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void map_connect(const char *name)
{
    cbd_error error;
    cbd_connect_options options = {.client_name = "bench C"};
    check(cbd_connect(name, &options, &stage, &error), &error, "connecting");
    check(cbd_root_query(stage, &root, &error), &error, "query");
}

/* One round of an attribute that exists, of float32; nanoseconds to the end of the unmap, and to that of the seal. */
void map_round(const char *attribute, float value, uint64_t *unmapped_ns, uint64_t *sealed_ns)
{
    cbd_error error;
    cbd_session *session;
    cbd_group *group;
    cbd_op *op;
    cbd_map_options options = {.next_ordinal = 1};
    uint64_t start = now_ns();
    check(cbd_map_attribute(stage, root, attribute, &options, &session, &error), &error, "map");
    check(cbd_fetch_map_next(session, &group, &error), &error, "group");
    *(float *)group->data = value;
    check(cbd_unmap_attribute(session, CBD_FLAG_SEAL, &op, &error), &error, "unmap");
    *unmapped_ns = now_ns() - start;
    check(cbd_op_wait(op, UINT64_MAX, NULL, &error), &error, "seal");
    cbd_op_release(op);
    cbd_session_release(session);
    *sealed_ns = now_ns() - start;
}

void map_close(void)
{
    cbd_query_release(root);
    cbd_stage_release(stage);
}
