/* Writing several attributes in one op: all or none. The payloads travel inline, each checked
 * as if it were written alone.
 */
#include "write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Says of which of the attributes an error is, where its text does not. */
static void of_attribute(const char *name, cbd_error *error)
{
    char quoted[CBD_NAME_BYTES_MAX + 3];
    snprintf(quoted, sizeof quoted, "\"%.200s\"", name);
    if (error == NULL || strstr(error->text, quoted) != NULL)
        return;
    const cbd_error said = *error;
    cbdi_fail(error, said.status, "attribute %s: %s", quoted, said.text);
}

static cbd_status check_all(cbd_stage *stage, cbd_query *query, const cbd_write_entry *entries, size_t n,
                            uint64_t ordinal, uint32_t prim_mode, struct write *writes, uint64_t *room, cbd_error *error)
{
    cbd_status status = cbdi_query_check(stage, query, error);
    *room = sizeof(cbd_abi_write_arguments) + n * sizeof(cbd_abi_write_entry);
    if (status == CBD_STATUS_OK && *room > stage->ring.arguments.size_bytes)
        status = cbdi_fail(error, CBD_STATUS_LIMIT,
                           "%zu entries need %llu bytes of arguments, the channel's area has %u; connect with a larger argument_bytes",
                           n, (unsigned long long)*room, stage->ring.arguments.size_bytes);
    for (size_t i = 0; i < n && status == CBD_STATUS_OK; i++) {
        struct write *w = &writes[i];
        w->query = query;
        w->name = entries[i].name;
        w->tensor = entries[i].tensor;
        w->options = entries[i].options != NULL ? *entries[i].options : cbd_write_options_default();
        w->options.ordinal = ordinal;
        w->options.next_ordinal = w->options.seal = 0;
        w->options.prim_mode = prim_mode;
        status = cbdi_name_check(w->name, true, &w->name_bytes, error);
        for (size_t k = 0; k < i && status == CBD_STATUS_OK; k++)
            if (strcmp(w->name, writes[k].name) == 0)
                status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute \"%.200s\" is entry %zu and entry %zu: expected each once",
                                   w->name, k, i);
        if (status == CBD_STATUS_OK && w->tensor != NULL && cbdi_on_device(w->tensor))
            status = cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                               "attribute \"%.200s\": a tensor on a GPU is written alone, with write_attribute: a seal shows several together",
                               w->name);
        if (status == CBD_STATUS_OK) {
            status = cbdi_check_write(stage, w, error);
            if (status != CBD_STATUS_OK)
                of_attribute(w->name, error);
        }
        if (status == CBD_STATUS_OK) /* each is below 2^63, and the sum is looked at before the next */
            *room += cbdi_write_room(w);
        if (status == CBD_STATUS_OK && *room > stage->ring.arguments.size_bytes)
            status = cbdi_fail(error, CBD_STATUS_LIMIT,
                               "%zu of %zu attributes need %llu bytes of arguments, the channel's area has %u; connect with a larger "
                               "argument_bytes, or write the large attributes one by one: a seal shows them together",
                               i + 1, n, (unsigned long long)*room, stage->ring.arguments.size_bytes);
    }
    return status;
}

cbd_status cbd_write_attributes(cbd_stage *stage, cbd_query *query, const cbd_write_entry *entries, size_t n,
                                uint64_t ordinal, uint32_t prim_mode, cbd_op **op, cbd_error *error)
{
    uint64_t room = 0;
    if (op != NULL)
        *op = NULL;
    if (n == 0 || entries == NULL || n > UINT32_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%zu attributes to write%s: expected 1 to %u", n,
                         entries == NULL ? ", and entries is NULL" : "", UINT32_MAX);
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct write *writes = calloc(n, sizeof *writes);
    if (writes == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu entries", n);
    else
        status = check_all(stage, query, entries, n, ordinal, prim_mode, writes, &room, error);
    struct submission s = {.opcode = CBD_OP_WRITE, .ordinal = ordinal};
    if (status == CBD_STATUS_OK) {
        s.query = query;
        status = cbdi_submit_begin(stage, &s, room, 0, error);
    }
    if (status == CBD_STATUS_OK) {
        cbd_abi_write_arguments arguments = {.entry_count = (uint32_t)n, .prim_mode = prim_mode};
        uint64_t at = sizeof arguments + n * sizeof(cbd_abi_write_entry);
        memcpy(s.arguments, &arguments, sizeof arguments);
        for (size_t i = 0; i < n; i++) {
            cbd_abi_write_entry entry;
            cbdi_write_put(&writes[i], s.arguments, at, &entry);
            memcpy(s.arguments + sizeof arguments + i * sizeof entry, &entry, sizeof entry);
            at += cbdi_write_room(&writes[i]);
        }
        cbdi_submit_commit(stage, &s, op);
    }
    for (size_t i = 0; writes != NULL && i < n; i++)
        cbdi_write_free(&writes[i]);
    free(writes);
    cbdi_leave(stage);
    return status;
}
