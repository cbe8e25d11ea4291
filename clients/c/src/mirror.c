/* A group's rows in the memory that is asked for (rule C5): where they lie, or in a copy that the broker makes once for
 * each version and other memory, and that all readers share. The pin that keeps the version keeps the copy.
 */
#include "read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of the rows in a block; opens an arena. With cache_lock held. */
static cbd_status bytes_of(const struct group *group, const struct home *at, const uint8_t **bytes, struct segment **where, cbd_error *error)
{
    const cbd_read_group *view = &group->view;
    cbd_stage *stage = view->pin->stage;
    char what[CBD_NAME_BYTES_MAX + 3];
    uint64_t needed = group->first_byte + view->rows * view->row_bytes; /* the version's own was checked */
    snprintf(what, sizeof what, "\"%.200s\"", view->name);
    if (needed > at->block.length_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%s has %llu rows of %llu bytes in a block of %llu bytes", what,
                         (unsigned long long)view->rows, (unsigned long long)view->row_bytes, (unsigned long long)at->block.length_bytes);
    if (at->number == 0)
        return cbdi_place(stage, at->block.segment, at->block.offset_bytes, at->block.length_bytes, what, bytes, where, error);
    return cbdi_device_block(stage, what, &at->block, at->number, at->generation, at->block.length_bytes, bytes, where, error);
}

/* Sets where the group's data lies, and keeps that. With cache_lock held. */
static cbd_status place(struct group *group, const struct home *at, cbd_error *error)
{
    const struct version version = {.birth = group->birth, .block = group->home.block};
    cbd_read_group *view = &group->view;
    cbd_stage *stage = view->pin->stage;
    const uint8_t *bytes;
    struct segment *where;
    cbd_status status = bytes_of(group, at, &bytes, &where, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_pin_use(view->pin, stage->columns[view->column], &version, where, error);
    if (status != CBD_STATUS_OK)
        return status;
    view->data = bytes + group->first_byte;
    group->number = at->number;
    cbdi_device_out(stage, at->number, &view->device_type, &view->device_id);
    return CBD_STATUS_OK;
}

/* Asks the broker for the copy; nothing is locked while it makes it. */
static cbd_status ask(cbd_stage *stage, const struct group *group, uint32_t number, cbd_abi_mirror_results *at, uint64_t *life, cbd_error *error)
{
    uint32_t got = 0;
    cbd_status status;
    do {
        struct submission s = {.waits = true, .opcode = CBD_OP_MIRROR, .handle = group->view.column, .ordinal = group->birth, .value = number,
                               .into = at, .into_bytes = sizeof *at};
        cbd_op *op;
        status = cbdi_reattach_wait(stage, false, error);
        if (status == CBD_STATUS_OK)
            status = cbdi_submit_begin(stage, &s, 0, sizeof *at, error);
        if (status != CBD_STATUS_OK)
            continue;
        *life = atomic_load(&stage->ring.life);
        cbdi_submit_commit(stage, &s, &op);
        status = cbdi_op_finish(op, NULL, NULL, &got, error);
    } while (status == CBD_STATUS_BROKER_RESTARTED && group->home.number == 0); /* the version is still there */
    if (status == CBD_STATUS_OK && (got < sizeof *at || at->device_number != number))
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker described a mirror on device number %u in %u bytes, asked for was number %u",
                           at->device_number, got, number);
    return status;
}

/* The one that was asked for before, or NULL. With cache_lock held. */
static const struct mirror *known(const struct version_use *use, uint32_t number, uint64_t life)
{
    const struct mirror *mirror = use != NULL ? use->mirrors : NULL;
    while (mirror != NULL && (mirror->wanted != number || mirror->life != life))
        mirror = mirror->next;
    return mirror;
}

/* Remembers it for the next reader of the version in this process; without memory that one asks again. */
static void remember(struct version_use *use, uint32_t number, uint64_t life, const cbd_abi_mirror_results *at)
{
    struct mirror *mirror = use != NULL && known(use, number, life) == NULL ? malloc(sizeof *mirror) : NULL;
    if (mirror == NULL)
        return;
    *mirror = (struct mirror){.next = use->mirrors, .wanted = number, .life = life, .at = *at};
    use->mirrors = mirror;
}

/* One more group of the same rows, where its data is still to be set. */
static struct group *twin(const struct group *group)
{
    size_t bytes = sizeof *group + strlen(group->name) + 1;
    struct group *made = malloc(bytes);
    if (made == NULL)
        return NULL;
    memcpy(made, group, bytes);
    atomic_init(&made->refs, 1);
    atomic_fetch_add(&made->map->refs, 1);
    cbd_pin_retain(made->view.pin);
    made->view.name = made->name;
    return made;
}

static cbd_status mirror(cbd_stage *stage, struct group *group, uint32_t number, struct group **out, cbd_error *error)
{
    cbd_abi_mirror_results at;
    uint64_t life = atomic_load(&stage->ring.life);
    pthread_mutex_lock(&stage->cache_lock);
    const struct column *column = stage->columns[group->view.column];
    const struct mirror *before = known(cbdi_version_use(column, group->birth), number, life);
    if (before != NULL)
        at = before->at;
    pthread_mutex_unlock(&stage->cache_lock);
    cbd_status status = before != NULL ? CBD_STATUS_OK : ask(stage, group, number, &at, &life, error);
    struct group *made = status == CBD_STATUS_OK ? twin(group) : NULL;
    if (made == NULL)
        return status != CBD_STATUS_OK ? status : cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a group");
    const struct home home = {at.block, number, at.arena_generation};
    pthread_mutex_lock(&stage->cache_lock);
    if (before == NULL)
        remember(cbdi_version_use(column, group->birth), number, life, &at);
    status = place(made, &home, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status != CBD_STATUS_OK) {
        cbdi_group_release(made);
        return status;
    }
    *out = made;
    return CBD_STATUS_OK;
}

static cbd_status in_device(cbd_stage *stage, struct group *group, uint32_t device_type, uint32_t device_id, struct group **out,
                            cbd_error *error)
{
    uint32_t number = group->home.number;
    cbd_status status = CBD_STATUS_OK;
    if (device_type != 0 || device_id != 0)
        status = cbdi_device_in(stage, "the memory to read in", device_type, device_id, &number, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (number != group->number && number != group->home.number)
        return mirror(stage, group, number, out, error);
    if (number == group->number && group->view.data != NULL) {
        atomic_fetch_add(&group->refs, 1);
        *out = group;
        return CBD_STATUS_OK;
    }
    struct group *made = twin(group); /* a copy is asked for where it was copied from, or it was not open */
    if (made == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a group");
    pthread_mutex_lock(&stage->cache_lock);
    status = place(made, &made->home, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status != CBD_STATUS_OK)
        cbdi_group_release(made);
    else
        *out = made;
    return status;
}

cbd_status cbdi_group_in(struct group *group, uint32_t device_type, uint32_t device_id, struct group **out, cbd_error *error)
{
    cbd_read_group *view = &group->view;
    bool anywhere = device_type == 0 && device_id == 0, host = device_type == CBD_DEVICE_CPU && device_id == 0;
    bool here = view->data != NULL || view->rows == 0 || view->arrays != NULL;
    *out = NULL;
    if (view->is_delete || (here && (anywhere || (host && view->device_type == CBD_DEVICE_CPU)))) {
        atomic_fetch_add(&group->refs, 1);
        *out = group;
        return CBD_STATUS_OK;
    }
    if (view->pin == NULL || view->arrays != NULL)
        return cbdi_fail(error, device_type == CBD_DEVICE_CUDA ? CBD_STATUS_NOT_SUPPORTED : CBD_STATUS_INVALID_ARGUMENT,
                         "\"%.200s\" on device (%u, %u): %s on the host alone, (%u, 0)", view->name, device_type, device_id,
                         view->pin == NULL ? "path ids lie" : "rows of array kind lie", CBD_DEVICE_CPU);
    cbd_stage *stage = view->pin->stage;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = in_device(stage, group, device_type, device_id, out, error);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_read_group_in(const cbd_read_group *view, uint32_t device_type, uint32_t device_id, const cbd_read_group **in, cbd_error *error)
{
    struct group *made;
    if (view == NULL || in == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the group or the place for the other one is NULL");
    *in = NULL;
    cbd_status status = cbdi_group_in((struct group *)(uintptr_t)view, device_type, device_id, &made, error);
    if (status == CBD_STATUS_OK)
        *in = &made->view;
    return status;
}
