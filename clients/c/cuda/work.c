/* Events, copies, and whose a pointer is. Nothing here waits for a stream but copies for which the caller named none, the end
 * of a stage, and the release of a group behind a stream. */
#include "driver.h"

#include <time.h>

enum { INVALID_VALUE = 1, NOT_READY = 600 };

enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 }; /* attributes of a pointer */
enum { TYPE_DEVICE = 2 };                                     /* of memory */

/* The caller's stream, or our own, behind the caller's event; within enter and leave. */
static cbd_status stream_of(uint32_t ordinal, const cbd_cuda_sync *sync, CUstream *stream, cbd_error *error)
{
    *stream = (CUstream)(uintptr_t)sync->stream; /* 1 and 2 are handles of the driver's, too */
    cbd_status status = sync->stream != 0 ? CBD_STATUS_OK : cbdc_own_stream(ordinal, stream, error);
    if (status != CBD_STATUS_OK || sync->wait_event == 0)
        return status;
    CUresult code = cbdc_driver.stream_wait(*stream, (CUevent)(uintptr_t)sync->wait_event, 0);
    return code == 0 ? CBD_STATUS_OK : cbdc_refused(error, "cuStreamWaitEvent", code);
}

cbd_status cbdc_record(struct cbdi_import *event, const cbd_cuda_sync *sync, cbd_error *error)
{
    const struct import *import = (const struct import *)event;
    CUstream stream;
    cbd_status status = cbdc_enter(import->ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = stream_of(import->ordinal, sync, &stream, error);
    CUresult code = status == CBD_STATUS_OK ? cbdc_driver.event_record(import->event, stream) : 0;
    cbdc_leave(import->ordinal);
    return code == 0 ? status : cbdc_refused(error, "cuEventRecord", code);
}

bool cbdc_finish(struct cbdi_import *event, uint64_t timeout_ns)
{
    const struct import *import = (const struct import *)event;
    struct timespec pause = {.tv_nsec = 20000};
    CUresult code = NOT_READY;
    if (cbdc_enter(import->ordinal, NULL) != CBD_STATUS_OK)
        return false;
    for (uint64_t waited = 0; (code = cbdc_driver.event_query(import->event)) == NOT_READY && waited < timeout_ns;) {
        nanosleep(&pause, NULL);
        waited += (uint64_t)pause.tv_nsec;
        pause.tv_nsec = pause.tv_nsec < 5000000 ? 2 * pause.tv_nsec : pause.tv_nsec;
    }
    cbdc_leave(import->ordinal);
    return code == 0;
}

cbd_status cbdc_copy(uint32_t ordinal, uint8_t *to, const struct cbdi_run *runs, size_t n, const cbd_cuda_sync *sync,
                     struct cbdi_import *event, bool *recorded, cbd_error *error)
{
    CUstream stream;
    CUresult code = 0;
    const char *function = "cuMemcpyDtoDAsync";
    *recorded = false;
    cbd_status status = cbdc_enter(ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = stream_of(ordinal, sync, &stream, error);
    if (status != CBD_STATUS_OK) {
        cbdc_leave(ordinal);
        return status;
    }
    for (size_t i = 0; i < n && code == 0; i++)
        code = cbdc_driver.copy((CUdeviceptr)(uintptr_t)(to + runs[i].to_offset), (CUdeviceptr)(uintptr_t)runs[i].from, runs[i].bytes, stream);
    if (code == 0 && sync->stream != 0) {
        function = "cuEventRecord";
        code = cbdc_driver.event_record(((const struct import *)event)->event, stream);
        *recorded = code == 0;
    }
    if (!*recorded) { /* also where something failed: those that are queued would write to memory that is given back */
        CUresult waited = cbdc_driver.stream_synchronize(stream);
        if (code == 0 && waited != 0) {
            function = "cuStreamSynchronize";
            code = waited;
        }
    }
    cbdc_leave(ordinal);
    return code == 0 ? CBD_STATUS_OK : cbdc_refused(error, function, code);
}

/* What lies at an address; within enter and leave. OK where it is of the device, or managed and so of all. */
static cbd_status check_at(CUdeviceptr at, uint32_t device_type, uint32_t ordinal, cbd_error *error)
{
    unsigned managed = 0, type = 0;
    int device = -1;
    CUresult code = cbdc_driver.pointer_attribute(&type, MEMORY_TYPE, at);
    if (code == 0 && cbdc_driver.pointer_attribute(&managed, IS_MANAGED, at) != 0)
        managed = 0;
    if (code == 0 && !managed)
        code = cbdc_driver.pointer_attribute(&device, DEVICE_ORDINAL, at);
    if (code == 0 && (managed || (type == TYPE_DEVICE && device == (int)ordinal)))
        return CBD_STATUS_OK;
    if (code == 0)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the tensor is said to lie on GPU %u (device type %u), but at 0x%llx is %s %d", ordinal,
                         device_type, at, type == TYPE_DEVICE ? "memory of GPU" : "pinned memory of the host, of GPU", device);
    if (code != INVALID_VALUE)
        return cbdc_refused(error, "cuPointerGetAttribute", code);
    return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                     "the tensor is said to lie on GPU %u (device type %u), but the driver knows nothing at 0x%llx: is it memory of the host?", ordinal,
                     device_type, at);
}

cbd_status cbdc_check(const void *data, uint64_t bytes, uint32_t device_type, uint32_t ordinal, cbd_error *error)
{
    uint8_t uuid[16];
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)data, last = first + (bytes - 1), at = first, base;
    size_t size;
    if (bytes == 0)
        return cbdc_uuid_of(ordinal, uuid, error); /* nothing to look at, but the device */
    cbd_status status = cbdc_enter(ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    while ((status = check_at(at, device_type, ordinal, error)) == CBD_STATUS_OK && at != last) {
        /* Several mappings may follow each other, as some frameworks' allocators make them. Of memory that the driver keeps no
         * range of, the ends must do. */
        bool ranged = cbdc_driver.address_range(&base, &size, at) == 0 && size > at - base;
        at = ranged && size - 1 < last - base ? base + size : last;
    }
    cbdc_leave(ordinal);
    if (status == CBD_STATUS_INVALID_ARGUMENT && at > first)
        return cbdc_fail(error, status, "the tensor is said to have %llu bytes at %p on GPU %u, but at most %llu of them lie in memory of that GPU",
                         (unsigned long long)bytes, data, ordinal, at - first);
    return status;
}

cbd_status cbdc_finish_stream(uint32_t ordinal, uint64_t stream, cbd_error *error)
{
    cbd_status status = cbdc_enter(ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    CUresult code = cbdc_driver.stream_synchronize((CUstream)(uintptr_t)stream);
    cbdc_leave(ordinal);
    return code == 0 ? CBD_STATUS_OK : cbdc_refused(error, "cuStreamSynchronize", code);
}

/* Within enter and leave. */
static CUresult clone(const void *data, uint64_t bytes, CUstream stream, CUdeviceptr *copy, const char **function)
{
    *function = "cuMemAlloc";
    CUresult code = cbdc_driver.memory_alloc(copy, bytes);
    if (code != 0)
        return code;
    *function = "cuMemcpyDtoDAsync";
    code = cbdc_driver.copy(*copy, (CUdeviceptr)(uintptr_t)data, bytes, stream);
    if (code == 0) {
        *function = "cuStreamSynchronize";
        code = cbdc_driver.stream_synchronize(stream);
    }
    if (code != 0)
        (void)cbdc_driver.memory_free(*copy);
    return code;
}

cbd_status cbdc_clone(const void *data, uint64_t bytes, uint32_t ordinal, void **copy, cbd_error *error)
{
    CUstream stream;
    CUdeviceptr made = 0;
    const char *function = "";
    CUresult code = 0;
    cbd_status status = cbdc_enter(ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdc_own_stream(ordinal, &stream, error);
    if (status == CBD_STATUS_OK)
        code = clone(data, bytes, stream, &made, &function);
    if (status == CBD_STATUS_OK && code == 0) {
        *copy = (void *)(uintptr_t)made;
        cbdc_keep(ordinal, 1);
    }
    cbdc_leave(ordinal);
    return code == 0 ? status : cbdc_refused(error, function, code);
}

cbd_status cbdc_device_of(const void *data, uint32_t *ordinal, cbd_error *error)
{
    int device = -1;
    uint32_t asked = cbdc_any_device(); /* the question needs a context, and any will do */
    cbd_status status = cbdc_enter(asked, error);
    if (status != CBD_STATUS_OK)
        return status;
    CUresult code = cbdc_driver.pointer_attribute(&device, DEVICE_ORDINAL, (CUdeviceptr)(uintptr_t)data);
    cbdc_leave(asked);
    if (code != 0 || device < 0)
        return cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the driver knows of no memory at %p: is it of the host?", data);
    *ordinal = (uint32_t)device;
    return CBD_STATUS_OK;
}
