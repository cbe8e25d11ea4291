/* A producer: fills the positions of 1000 robots in place and seals them, ten times
 * a second, until it is interrupted.
 *
 *     callboard serve &
 *     make -C clients/c examples && clients/c/build/producer
 */
#include <callboard.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

enum { ROBOTS = 1000 };

static int fail(const char *doing, const cbd_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", doing, cbd_status_name(error->status), error->text);
    return 1;
}

int main(int argc, char **argv)
{
    cbd_error error;
    cbd_stage *stage;
    if (cbd_connect(argc > 1 ? argv[1] : NULL, NULL, &stage, &error) != CBD_STATUS_OK)
        return fail("connecting", &error);

    /* The prims whose rows we write, in this order. */
    static char text[ROBOTS][32];
    const char *paths[ROBOTS];
    for (int i = 0; i < ROBOTS; i++) {
        snprintf(text[i], sizeof text[i], "/World/Robot%d", i);
        paths[i] = text[i];
    }
    cbd_query *robots;
    if (cbd_query_from_path_list(stage, paths, NULL, ROBOTS, &robots, &error) != CBD_STATUS_OK)
        return fail("making a query", &error);

    /* One element of three lanes per row: x, y, z in metres. The broker takes the
     * next free ordinal, since this program has no clock of its own. */
    cbd_map_options options = {.next_ordinal = 1, .semantic = CBD_SEMANTIC_POINT,
                               .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 3};
    for (int tick = 0;; tick++) {
        cbd_session *session;
        cbd_group *group;
        cbd_op *op;
        cbd_op_result result;
        if (cbd_map_attribute(stage, robots, "position", &options, &session, &error) != CBD_STATUS_OK)
            return fail("mapping", &error);
        if (cbd_fetch_map_next(session, &group, &error) != CBD_STATUS_OK)
            return fail("fetching the buffer", &error);

        float (*position)[3] = group->data; /* shared memory: written here, read there, copied nowhere */
        for (int i = 0; i < ROBOTS; i++) {
            position[i][0] = (float)i;
            position[i][1] = sinf(0.1f * (float)(tick + i));
            position[i][2] = 0;
        }

        /* Commit and publish in one step. From here on the memory is not ours. */
        if (cbd_unmap_attribute(session, CBD_FLAG_NEXT_ORDINAL | CBD_FLAG_SEAL, &op, &error) != CBD_STATUS_OK)
            return fail("committing", &error);
        cbd_session_release(session);
        if (cbd_op_wait(op, UINT64_MAX, &result, &error) != CBD_STATUS_OK)
            return fail("publishing", &error);
        cbd_op_release(op);
        printf("tick %d is ordinal %llu, epoch %llu\n", tick, (unsigned long long)result.ordinal,
               (unsigned long long)result.epoch);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}
