/* A consumer: waits for each new snapshot and reads two robots' positions in place.
 *
 *     clients/c/build/consumer [stage]
 */
#include <callboard.h>
#include <stdio.h>

static int fail(const char *doing, const cbd_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", doing, cbd_status_name(error->status), error->text);
    return 1;
}

int main(int argc, char **argv)
{
    static const char *const paths[] = {"/World/Robot7", "/World/Robot3"};
    static const char *const names[] = {"position"};
    cbd_connect_options options = {.read_only = 1};
    cbd_error error;
    cbd_stage *stage;
    cbd_query *query;
    if (cbd_connect(argc > 1 ? argv[1] : NULL, &options, &stage, &error) != CBD_STATUS_OK)
        return fail("connecting", &error);
    if (cbd_query_from_path_list(stage, paths, NULL, 2, &query, &error) != CBD_STATUS_OK)
        return fail("making a query", &error);

    uint64_t epoch = 0;
    while (cbd_follow(stage, epoch, UINT64_MAX, &epoch, &error) == CBD_STATUS_OK) {
        cbd_read *read;
        const cbd_read_group *group;
        if (cbd_read_attributes(stage, query, names, 1, &read, &error) != CBD_STATUS_OK)
            return fail("reading", &error);
        while (cbd_fetch_read_next(read, &group, &error) == CBD_STATUS_OK) {
            /* The array may be the whole column; the index map says which row is whose. */
            const float (*position)[3] = group->data;
            for (uint64_t i = 0; i < group->prim_count; i++) {
                uint64_t row = group->index_map ? group->index_map[i] : i;
                const char *path;
                size_t length;
                if (cbd_resolve(stage, group->prims[i], &path, &length, &error) != CBD_STATUS_OK)
                    return fail("resolving a path", &error);
                printf("epoch %llu ordinal %llu %.*s: %.2f %.2f %.2f\n", (unsigned long long)group->epoch,
                       (unsigned long long)group->ordinal, (int)length, path, position[row][0], position[row][1],
                       position[row][2]);
            }
            cbd_release_group(group); /* until here nobody may reuse the memory; the producer does not wait for us */
        }
        cbd_read_release(read);
    }
    cbd_query_release(query);
    cbd_stage_release(stage);
    return fail("following", &error);
}
