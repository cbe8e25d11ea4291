/* Many queries that are released at once. */
#include "driver.h"

static cbd_query *hoarded[4096];
static size_t hoarded_count;

cbd_status do_hoard(struct command *c)
{
    const char *const paths[1] = {arg(c, 0)};
    cbd_status status = CBD_STATUS_OK;
    for (uint64_t i = 0; status == CBD_STATUS_OK && i < number_of(c, "n") && hoarded_count < sizeof hoarded / sizeof *hoarded; i++) {
        status = cbd_query_from_path_list(stage, paths, NULL, 1, &hoarded[hoarded_count], &error);
        hoarded_count += status == CBD_STATUS_OK;
    }
    return status;
}

cbd_status do_discard(struct command *c)
{
    (void)c;
    for (size_t i = 0; i < hoarded_count; i++)
        cbd_query_release(hoarded[i]);
    say(" released=%zu", hoarded_count);
    hoarded_count = 0;
    return CBD_STATUS_OK;
}
