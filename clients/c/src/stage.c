/* What a stage tells about itself, its attributes and its strings; and waiting for
 * the next epoch.
 */
#include "client.h"

#include <string.h>

#define TURN_NS UINT64_C(100000000)

cbd_status cbd_stage_get_info(cbd_stage *stage, cbd_stage_info *info, cbd_error *error)
{
    if (info == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "info is NULL");
    memset(info, 0, sizeof *info);
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    const cbd_abi_directory_header *d = stage->directory;
    cbdi_copy_text(info->name, sizeof info->name, d->stage_name, sizeof d->stage_name);
    cbdi_copy_text(info->host, sizeof info->host, d->host_name, sizeof d->host_name);
    info->generation = stage->generation;
    info->incarnation = stage->incarnation;
    info->broker_incarnation = atomic_load(&stage->broker_incarnation);
    info->started_ns = load64(&d->started_ns);
    info->features = atomic_load(&stage->features);
    info->epoch = load64(&d->epoch);
    info->pinned_bytes = atomic_load(&stage->pinned_bytes);
    info->pinned_bytes_max = load64(&d->pinned_bytes_max);
    info->memory_bytes_max = load64(&d->memory_bytes_max);
    info->unsealed_bytes_max = load64(&d->unsealed_bytes_max);
    info->retain_default = load32(&d->retain_default);
    info->handoff_default = load32(&d->handoff_default_mode);
    info->attribute_count = load32(&d->attribute_count);
    info->abi_version = stage->abi_version;
    cbdi_leave(stage);
    return CBD_STATUS_OK;
}

uint64_t cbd_epoch(cbd_stage *stage)
{
    if (cbdi_enter(stage, NULL) != CBD_STATUS_OK)
        return 0;
    uint64_t epoch = load64(&stage->directory->epoch);
    cbdi_leave(stage);
    return epoch;
}

cbd_status cbd_follow(cbd_stage *stage, uint64_t after, uint64_t timeout_ns, uint64_t *epoch, cbd_error *error)
{
    uint64_t seen = 0;
    if (epoch != NULL)
        *epoch = 0;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint64_t start = cbdi_now_ns(), looked = start;
    for (;;) {
        seen = load64(&stage->directory->epoch);
        if (seen > after)
            break;
        status = cbdi_ended(stage, error);
        if (status != CBD_STATUS_OK)
            break;
        uint64_t now = cbdi_now_ns(), turn = cbdi_reattach_turn(stage, WAIT_TURN_NS);
        if (timeout_ns != UINT64_MAX && now - start >= timeout_ns) {
            cbdi_look_at_socket(stage);
            status = cbdi_fail(error, CBD_STATUS_TIMEOUT, "the epoch is still %llu after %llu ns", (unsigned long long)seen,
                               (unsigned long long)timeout_ns);
            break;
        }
        if (now - looked >= turn) {
            looked = now;
            cbdi_look_at_socket(stage);
        }
        if (timeout_ns != UINT64_MAX && timeout_ns - (now - start) < turn)
            turn = timeout_ns - (now - start);
        /* The low half of the epoch is the futex word (R4); little-endian. */
        cbdi_futex_wait((const uint32_t *)(const void *)&stage->directory->epoch, (uint32_t)seen, turn);
    }
    cbdi_leave(stage);
    if (epoch != NULL)
        *epoch = seen;
    return status;
}

cbd_status cbd_resolve(cbd_stage *stage, uint64_t id, const char **text, size_t *length, cbd_error *error)
{
    const char *found = NULL;
    uint32_t bytes = 0;
    if (text == NULL || length == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "text or length is NULL");
    *text = NULL;
    *length = 0;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_mutex_lock(&stage->cache_lock);
    status = cbdi_string(stage, id, &found, &bytes, error);
    pthread_mutex_unlock(&stage->cache_lock);
    cbdi_leave(stage);
    if (status == CBD_STATUS_OK) {
        *text = found;
        *length = bytes;
    }
    return status;
}

cbd_status cbdi_look_begin(cbd_stage *stage, void *info, size_t bytes, cbd_error *error)
{
    if (info == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "info is NULL");
    memset(info, 0, bytes);
    cbd_status status = cbdi_enter(stage, error);
    if (status == CBD_STATUS_OK)
        pthread_mutex_lock(&stage->cache_lock);
    return status;
}

cbd_status cbdi_look_end(cbd_stage *stage, cbd_status status)
{
    pthread_mutex_unlock(&stage->cache_lock);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_attribute_at(cbd_stage *stage, uint32_t index, cbd_attribute_info *info, cbd_error *error)
{
    cbd_status status = cbdi_look_begin(stage, info, sizeof *info, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_columns_refresh(stage, error);
    if (status == CBD_STATUS_OK && index == CBD_FLOOR_COLUMN)
        status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "column 0 holds the floors; attributes start at 1");
    else if (status == CBD_STATUS_OK && index >= stage->column_count)
        status = cbdi_fail(error, CBD_STATUS_END, "the stage has columns 1 to %u",
                           stage->column_count == 0 ? 0 : stage->column_count - 1);
    if (status == CBD_STATUS_OK) {
        const struct column *column = stage->columns[index];
        const cbd_abi_attribute_entry *entry = column->entry;
        cbdi_copy_text(info->name, sizeof info->name, column->name, column->name_bytes);
        info->name_bytes = column->name_bytes;
        info->name_id = column->name_id;
        info->column = index;
        info->retain = load32(&entry->retain);
        info->handoff = load32(&entry->handoff);
        info->schema = column->schema;
        cbdi_schema_out(stage, &info->schema);
        info->row_bytes = column->row_bytes;
        info->version_count = load64(&entry->version_count);
        info->adopted_count = load64(&entry->adopted_count);
        info->scattered_count = load64(&entry->scattered_count);
        info->adopt_refused_count = load64(&entry->adopt_refused_count);
        info->copied_bytes = load64(&entry->copied_bytes);
    }
    return cbdi_look_end(stage, status);
}

cbd_status cbd_attribute_schema(cbd_stage *stage, const char *name, cbd_schema *schema, cbd_error *error)
{
    size_t length;
    bool found = false;
    if (schema == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "schema is NULL");
    memset(schema, 0, sizeof *schema);
    cbd_status status = cbdi_name_check(name, false, &length, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_schema_of(stage, name, length, schema, &found, error);
    if (found) {
        pthread_mutex_lock(&stage->cache_lock);
        cbdi_schema_out(stage, schema);
        pthread_mutex_unlock(&stage->cache_lock);
    }
    cbdi_leave(stage);
    if (status == CBD_STATUS_OK && !found)
        status = cbdi_fail(error, CBD_STATUS_NOT_FOUND, "nobody declared or wrote an attribute \"%.200s\"", name);
    return status;
}
