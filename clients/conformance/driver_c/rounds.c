/* Commands that do the same many times. */
#include <time.h>

#include "driver.h"

size_t __sanitizer_get_current_allocated_bytes(void); /* of the address sanitizer, which the driver is built with */

enum { ROUND_MS = 3, ROUNDS_MAX = 4096 };

static void sleep_until(uint64_t ms)
{
    struct timespec at = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL);
}

static cbd_status insert(const char *name, const char *path, uint64_t value, uint64_t when)
{
    int64_t one = 1;
    cbd_tensor t = {.data = &value, .ndim = 1, .shape = &one, .code = CBD_DTYPE_UINT, .bits = 64, .lanes = 1};
    cbd_write_options o = cbd_write_options_default();
    cbd_query *query;
    cbd_op *op = NULL;
    o.ordinal = 1;
    o.prim_mode = CBD_MODE_INSERT;
    cbd_status status = cbd_query_from_path_list(stage, &path, NULL, 1, &query, &error);
    if (status != CBD_STATUS_OK)
        return status;
    sleep_until(when);
    if ((status = cbd_write_attribute(stage, query, name, &t, &o, &op, &error)) == CBD_STATUS_OK)
        status = cbd_op_wait(op, LIMIT_NS, NULL, &error);
    cbd_op_release(op);
    cbd_query_release(query);
    return status;
}

/* Inserts a prim per round when the clock strikes, and tells in which rounds it was the first; another process does the
 * same. */
cbd_status do_race(struct command *c)
{
    static uint64_t rounds[2][ROUNDS_MAX];
    size_t count[2] = {0, 0};
    for (uint64_t i = 0; i < number_of(c, "n") && i < ROUNDS_MAX; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%" PRIu64, arg(c, 1), i);
        cbd_status status = insert(arg(c, 0), path, number_of(c, "value"), number_of(c, "clock") + i * ROUND_MS);
        if (status != CBD_STATUS_OK && status != CBD_STATUS_ALREADY_EXISTS)
            return status;
        int lost = status != CBD_STATUS_OK;
        rounds[lost][count[lost]++] = i;
    }
    say(" won=");
    say_numbers(rounds[0], count[0]);
    say(" lost=");
    say_numbers(rounds[1], count[1]);
    return CBD_STATUS_OK;
}

/* Writes, deletes and seals all rows n times, at ordinals of their own. */
cbd_status do_deletes(struct command *c)
{
    static uint8_t values[LIST_MAX];
    cbd_query *query = get(arg(c, 0), QUERY);
    const char *name = arg(c, 1);
    if (query == NULL)
        return CBD_STATUS_COUNT;
    int64_t rows = (int64_t)cbd_query_size(query);
    for (uint64_t i = 1; i < 2 * number_of(c, "n"); i += 2) {
        cbd_tensor t = {.data = values, .ndim = 1, .shape = &rows, .code = CBD_DTYPE_UINT, .bits = 8, .lanes = 1};
        cbd_write_options o = cbd_write_options_default();
        cbd_op *op = NULL;
        o.ordinal = i;
        cbd_status status = cbd_write_attribute(stage, query, name, &t, &o, NULL, &error);
        if (status == CBD_STATUS_OK)
            status = cbd_delete_attributes(stage, query, &name, 1, i + 1, NULL, &error);
        if (status == CBD_STATUS_OK)
            status = cbd_advance_write_floor(stage, i + 1, CBD_SCOPE_INCLUDE, &name, 1, 0, &op, &error);
        if (status == CBD_STATUS_OK)
            status = cbd_op_wait(op, LIMIT_NS, NULL, &error);
        cbd_op_release(op);
        if (status != CBD_STATUS_OK)
            return status;
    }
    return CBD_STATUS_OK;
}

/* Makes lists and gives them back, and tells by how many bytes the heap grew. */
cbd_status do_cycles(struct command *c)
{
    static const uint64_t ids[] = {1, 2, 3};
    cbd_status status = CBD_STATUS_OK;
    size_t before = __sanitizer_get_current_allocated_bytes();
    for (uint64_t i = 0, list; i < number_of(c, "n") && status == CBD_STATUS_OK; i++)
        if ((status = cbd_list_create(stage, ids, 3, &list, &error)) == CBD_STATUS_OK)
            status = cbd_list_release(stage, list, &error);
    size_t after = __sanitizer_get_current_allocated_bytes();
    say(" grown=%zu", after > before ? after - before : 0);
    return status;
}

/* Reads with one query, and a snapshot each time. */
cbd_status do_frames(struct command *c)
{
    cbd_query *query = get(arg(c, 0), QUERY);
    const char *name = arg(c, 1);
    uint64_t groups = 0;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    for (uint64_t i = 0; i < number_of(c, "n"); i++) {
        const cbd_read_group *group;
        cbd_snapshot *snapshot;
        cbd_read *read;
        cbd_status status = cbd_snapshot_open(stage, &snapshot, &error);
        if (status != CBD_STATUS_OK)
            return status;
        if ((status = cbd_snapshot_read_since(snapshot, query, &name, 1, NULL, &read, &error)) != CBD_STATUS_OK) {
            cbd_snapshot_release(snapshot);
            return status;
        }
        while (cbd_fetch_read_next(read, &group, &error) == CBD_STATUS_OK) {
            cbd_release_group(group);
            groups++;
        }
        cbd_read_release(read);
        cbd_snapshot_release(snapshot);
    }
    say(" groups=%" PRIu64, groups);
    return CBD_STATUS_OK;
}
