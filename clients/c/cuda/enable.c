/* The public functions, and the table that the core calls. */
#include "driver.h"

static const struct cbdi_cuda table = {
    .version = CBDI_CUDA_VERSION,
    .count = cbdc_count,
    .uuid_of = cbdc_uuid_of,
    .ordinal_of = cbdc_ordinal_of,
    .hold_device = cbdc_hold_device,
    .drop_device = cbdc_drop_device,
    .open = cbdc_open,
    .hold = cbdc_hold,
    .let_go = cbdc_let_go,
    .record = cbdc_record,
    .copy = cbdc_copy,
    .finish = cbdc_finish,
    .check = cbdc_check,
};

cbd_status cbd_cuda_enable(cbd_error *error) { return cbdi_cuda_offer(&table, error); }

cbd_status cbd_cuda_device_count(uint32_t *count, cbd_error *error)
{
    if (count == NULL)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "count: expected a place for it, got NULL");
    return cbdc_count(count, error);
}

cbd_status cbd_cuda_stream(uint32_t device_id, uint64_t *stream, cbd_error *error)
{
    CUstream own = NULL;
    if (stream == NULL)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "stream: expected a place for it, got NULL");
    cbd_status status = cbdc_enter(device_id, error);
    if (status == CBD_STATUS_OK) {
        status = cbdc_own_stream(device_id, &own, error);
        if (status == CBD_STATUS_OK)
            cbdc_keep(device_id, 1);
        cbdc_leave(device_id);
    }
    *stream = (uint64_t)(uintptr_t)own;
    return status;
}

void cbd_cuda_stream_release(uint32_t device_id) { cbdc_drop_device(device_id); }

cbd_status cbd_cuda_release_group(const cbd_read_group *group, uint64_t stream, cbd_error *error)
{
    if (group == NULL || stream == 0)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "expected a group and a stream, got %p and %llu; 1 is the legacy default stream, and without one there is cbd_release_group",
                         (const void *)group, (unsigned long long)stream);
    if (group->device_type != CBD_DEVICE_CUDA)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "the group of \"%.200s\" lies on the host: wait for what reads it, then cbd_release_group", group->name);
    cbd_status status = cbdc_finish_stream(group->device_id, stream, error);
    if (status == CBD_STATUS_OK)
        cbd_release_group(group);
    return status;
}

cbd_status cbd_cuda_clone(const void *data, uint64_t bytes, uint32_t device_id, void **copy, cbd_error *error)
{
    if (data == NULL || bytes == 0 || copy == NULL)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "expected data, its bytes and a place for the copy, got %p, %llu and %p", data,
                         (unsigned long long)bytes, (void *)copy);
    *copy = NULL;
    return cbdc_clone(data, bytes, device_id, copy, error);
}

void cbd_cuda_free(void *copy, uint32_t device_id)
{
    if (copy == NULL || cbdc_enter(device_id, NULL) != CBD_STATUS_OK)
        return; /* of a forked child's parent, or of a driver that is gone */
    (void)cbdc_driver.memory_free((CUdeviceptr)(uintptr_t)copy);
    cbdc_keep(device_id, -1);
    cbdc_leave(device_id);
}

cbd_status cbd_cuda_device_of(const void *data, uint32_t *device_id, cbd_error *error)
{
    if (device_id == NULL)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "device_id: expected a place for it, got NULL");
    *device_id = 0;
    return cbdc_device_of(data, device_id, error);
}
