/* Deleting: ordered like a write, shown with the seal of its ordinal (L2, O7). Until then
 * sealed state does not tell what this client may write: fit.c leaves it to the broker.
 */
#include "client.h"

#include <string.h>

static cbd_status check(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, uint64_t ordinal,
                        cbd_error *error)
{
    cbd_status status = cbdi_query_check(stage, query, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (stage->read_only)
        return cbdi_fail(error, CBD_STATUS_ACCESS_DENIED, "this client connected with read_only: it cannot delete");
    if (!(stage->features & CBD_FEATURE_DELETE))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "deletes are not part of this broker's version");
    if (ordinal == 0)
        return cbdi_fail(error, CBD_STATUS_FLOOR_VIOLATION, "a delete at ordinal 0 is at or below every write floor; the lowest is 1");
    for (size_t i = 0; i < n && status == CBD_STATUS_OK; i++)
        status = cbdi_ordinal_check(stage, names[i], strlen(names[i]), ordinal, error);
    return status;
}

static void note(cbd_stage *stage, uint64_t ordinal)
{
    uint64_t seen = atomic_load(&stage->deleted_highest);
    while (seen < ordinal && !atomic_compare_exchange_weak(&stage->deleted_highest, &seen, ordinal))
        ;
}

cbd_status cbd_delete_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, uint64_t ordinal,
                                 cbd_op **op, cbd_error *error)
{
    if (op != NULL)
        *op = NULL;
    cbd_status status = cbdi_names_check(names, n, true, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = check(stage, query, names, n, ordinal, error);
    if (status == CBD_STATUS_OK) {
        struct submission s = {.opcode = CBD_OP_DELETE, .query = query, .ordinal = ordinal};
        status = cbdi_submit_begin(stage, &s, cbdi_string_list_bytes(names, NULL, n), 0, error);
        if (status == CBD_STATUS_OK) {
            cbdi_string_list_put(s.arguments, names, NULL, n);
            note(stage, ordinal); /* before it can take effect */
            cbdi_submit_commit(stage, &s, op);
        }
    }
    cbdi_leave(stage);
    return status;
}
