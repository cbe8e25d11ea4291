/* Which attributes an op is about, and what this client has written, with success, and was not sealed yet.
 *
 * When the broker is lost, accepted work above the floor is gone, and no op of it is in flight that could say so.
 * So the next submission that writes or seals is refused once, with the names.
 *
 * Everything here runs with ring.lock held.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the names of an op ----------------------------------------------------------------- */

/* The arguments lie in memory that a peer may write: bounds are checked, and nothing else is believed. */
static bool names_of(const uint8_t *bytes, uint64_t length, cbdi_each_name *each, void *context)
{
    cbd_abi_string_list list;
    if (length < sizeof list)
        return false;
    memcpy(&list, bytes, sizeof list);
    uint64_t at = sizeof list;
    for (uint32_t i = 0; i < list.count; i++) {
        uint32_t name;
        if (length - at < sizeof name)
            return false;
        memcpy(&name, bytes + at, sizeof name);
        at += sizeof name;
        uint64_t room = ((uint64_t)name + 3) & ~UINT64_C(3);
        if (room > length - at)
            return false;
        each(context, cbdi_hash((const char *)bytes + at, name));
        at += room;
    }
    return list.count != 0;
}

static bool entries_of(const uint8_t *arguments, uint64_t length, cbdi_each_name *each, void *context)
{
    cbd_abi_write_arguments head;
    if (length < sizeof head)
        return false;
    memcpy(&head, arguments, sizeof head);
    for (uint64_t i = 0; i < head.entry_count; i++) {
        cbd_abi_write_entry entry;
        uint64_t at = sizeof head + i * sizeof entry;
        if (at > length || length - at < sizeof entry)
            return false;
        memcpy(&entry, arguments + at, sizeof entry);
        if (entry.name_offset_bytes > length || entry.name_bytes > length - entry.name_offset_bytes)
            return false;
        each(context, cbdi_hash((const char *)arguments + entry.name_offset_bytes, entry.name_bytes));
    }
    return head.entry_count != 0;
}

bool cbdi_op_names(const cbd_op *op, const uint8_t *arguments, cbdi_each_name *each, void *context)
{
    uint64_t length = op->argument_length, head = sizeof(cbd_abi_seal_arguments);
    if (op->about != 0) {
        each(context, op->about);
        return true;
    }
    if (op->opcode == CBD_OP_WRITE)
        return entries_of(arguments, length, each, context);
    if (op->opcode == CBD_OP_DELETE)
        return names_of(arguments, length, each, context);
    return op->opcode == CBD_OP_SEAL && op->value != CBD_SCOPE_ALL && length >= head &&
           names_of(arguments + head, length - head, each, context);
}

/* ---- accepted and not sealed --------------------------------------------------------------- */

/* The place of the hash in a table of 2^n places, or a free one; NULL where there is no table. */
static struct unsealed_entry *place_of(const struct unsealed *u, uint64_t hash)
{
    uint64_t at = hash & u->mask;
    if (u->entries == NULL)
        return NULL;
    while (u->entries[at].hash != 0 && u->entries[at].hash != hash)
        at = (at + 1) & u->mask;
    return &u->entries[at];
}

/* Room for one more attribute; only the first write of an attribute comes here. */
static bool grow(struct unsealed *u)
{
    if (u->entries != NULL && 2 * (u->count + 1) <= u->mask)
        return true;
    struct unsealed old = *u;
    u->mask = old.entries != NULL ? 2 * old.mask + 1 : 31;
    u->entries = calloc(u->mask + 1, sizeof *u->entries);
    if (u->entries == NULL) {
        *u = old;
        return false;
    }
    for (uint64_t i = 0; old.entries != NULL && i <= old.mask; i++)
        if (old.entries[i].hash != 0)
            *place_of(u, old.entries[i].hash) = old.entries[i];
    free(old.entries);
    return true;
}

struct noting {
    struct unsealed *unsealed;
    uint64_t ordinal;
};

static void note(void *context, uint64_t hash)
{
    struct noting *n = context;
    struct unsealed_entry *entry = place_of(n->unsealed, hash);
    if (entry == NULL || entry->hash == 0) {
        if (!grow(n->unsealed))
            return; /* without memory its loss is not told */
        entry = place_of(n->unsealed, hash);
        entry->hash = hash;
        n->unsealed->count++;
    }
    if (entry->ordinal < n->ordinal)
        entry->ordinal = n->ordinal;
}

void cbdi_unsealed_note(cbd_stage *stage, const cbd_op *op, const uint8_t *arguments)
{
    struct noting n = {&stage->ring.unsealed, op->result.ordinal};
    bool writes = op->opcode == CBD_OP_WRITE || op->opcode == CBD_OP_DELETE || op->opcode == CBD_OP_UNMAP_GROUP ||
                  op->opcode == CBD_OP_UNMAP_ATTRIBUTE;
    if (op->result.status != CBD_STATUS_OK || !writes || (op->flags & (CBD_FLAG_SEAL | CBD_FLAG_ABORT)))
        return;
    if (!cbdi_op_names(op, arguments, note, &n) && n.unsealed->prims < n.ordinal)
        n.unsealed->prims = n.ordinal; /* a delete of all that the prims carry */
}

void cbdi_unsealed_lost(cbd_stage *stage, const struct outcomes *o)
{
    struct unsealed *u = &stage->ring.unsealed;
    char names[OP_TEXT_BYTES - 180];
    size_t used = 0, lost = 0;
    names[0] = 0;
    for (uint64_t i = 0; u->entries != NULL && i <= u->mask; i++) {
        struct unsealed_entry *entry = &u->entries[i];
        uint64_t ordinal = entry->ordinal, at = 0;
        entry->ordinal = 0;
        if (entry->hash == 0 || ordinal <= cbdi_outcomes_floor(o, entry->hash))
            continue;
        while (at < o->count && o->hashes[at] != entry->hash)
            at++;
        size_t room = sizeof names - used;
        int length = at < o->count ? (int)(o->lengths[at] < 60 ? o->lengths[at] : 60) : 0;
        const char *quote = length != 0 ? "\"" : "";
        int wrote = snprintf(names + used, room, "%s%s%.*s%s up to ordinal %llu", lost != 0 ? ", " : "", quote, length != 0 ? length : 60,
                             length != 0 ? o->names[at] : "an attribute that has no sealed data", quote, (unsigned long long)ordinal);
        if (wrote > 0 && (size_t)wrote < room)
            used += (size_t)wrote;
        else
            names[used] = 0; /* only the first of many are named */
        lost++;
    }
    bool prims = u->prims > cbdi_outcomes_floor(o, 0);
    u->prims = 0;
    if (lost == 0 && !prims)
        return;
    snprintf(u->told, sizeof u->told,
             "the broker restarted before this client's work was sealed, and it is gone: %s%s%s%zu attributes in all. Nothing was submitted: write it again",
             names, used != 0 ? "; " : "", prims ? "deletes of prims; " : "", lost);
    u->tell = true;
    cbdi_log(CBD_LOG_WARNING, CBDI_LOG_CALL, "stage %s: %s", stage->name, u->told);
}

cbd_status cbdi_unsealed_refuse(cbd_stage *stage, uint32_t opcode, cbd_error *error)
{
    struct unsealed *u = &stage->ring.unsealed;
    bool orders = opcode == CBD_OP_WRITE || opcode == CBD_OP_MAP || opcode == CBD_OP_UNMAP_GROUP ||
                  opcode == CBD_OP_UNMAP_ATTRIBUTE || opcode == CBD_OP_DELETE || opcode == CBD_OP_SEAL;
    if (!u->tell || !orders || stage->ring.lost)
        return CBD_STATUS_OK;
    u->tell = false;
    return cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED, "%s", u->told);
}
