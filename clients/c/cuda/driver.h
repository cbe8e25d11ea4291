/* The driver of CUDA, as libcallboard_cuda uses it. Nothing here is public.
 *
 *     driver.c    loads the driver, knows the devices, makes their contexts current
 *     imports.c   what the broker exported, opened once for the process
 *     work.c      events, copies, whose a pointer is
 *     enable.c    the public functions, and the table that the core calls (src/device.h)
 *
 * The prototypes are our own, with CUDA's ABI; names with _v2 are those that CUDA's headers call by the plain name since
 * CUDA 3.2 to 4.1, and drivers keep them.
 */
#ifndef CBDC_DRIVER_H
#define CBDC_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../src/device.h"
#include "callboard_cuda.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct cbdc_context *CUcontext;
typedef struct cbdc_stream *CUstream;
typedef struct cbdc_event *CUevent;

typedef struct {
    uint8_t bytes[16];
} CUuuid;

/* Passed by value. */
typedef struct {
    uint8_t bytes[64];
} CUipcHandle;

#define CUDA_FUNCTIONS(F)                                                                   \
    F(init, "cuInit", (unsigned flags))                                                     \
    F(error_name, "cuGetErrorName", (CUresult code, const char **name))                     \
    F(device_count, "cuDeviceGetCount", (int *count))                                       \
    F(device_get, "cuDeviceGet", (CUdevice *device, int ordinal))                           \
    F(device_uuid, "cuDeviceGetUuid_v2", (CUuuid *uuid, CUdevice device))                   \
    F(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *context, CUdevice device))    \
    F(primary_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                   \
    F(push, "cuCtxPushCurrent_v2", (CUcontext context))                                     \
    F(pop, "cuCtxPopCurrent_v2", (CUcontext *context))                                      \
    F(pointer_attribute, "cuPointerGetAttribute", (void *data, int attribute, CUdeviceptr)) \
    F(address_range, "cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr))     \
    F(copy, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t, CUstream))   \
    F(memory_alloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t bytes))                         \
    F(memory_free, "cuMemFree_v2", (CUdeviceptr))                                           \
    F(stream_create, "cuStreamCreate", (CUstream *stream, unsigned flags))                  \
    F(stream_destroy, "cuStreamDestroy_v2", (CUstream stream))                              \
    F(stream_synchronize, "cuStreamSynchronize", (CUstream stream))                         \
    F(stream_wait, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))   \
    F(event_record, "cuEventRecord", (CUevent event, CUstream stream))                      \
    F(event_query, "cuEventQuery", (CUevent event))                                         \
    F(event_destroy, "cuEventDestroy_v2", (CUevent event))                                  \
    F(memory_open, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipcHandle, unsigned flags))   \
    F(memory_close, "cuIpcCloseMemHandle", (CUdeviceptr base))                              \
    F(event_open, "cuIpcOpenEventHandle", (CUevent *, CUipcHandle))

#define CUDA_FIELD(name, symbol, parameters) CUresult(*name) parameters;
struct driver {
    CUDA_FUNCTIONS(CUDA_FIELD)
};
#undef CUDA_FIELD

extern struct driver cbdc_driver; /* once cbdc_load was OK */

/* In a forked child of a process that had loaded it: the driver cannot be used, nor what was open. */
bool cbdc_forked(void);
/* Whenever the process forks after the driver was loaded; in the child. */
void cbdc_forget_imports(void);

cbd_status cbdc_fail(cbd_error *error, cbd_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The error of a call that the driver refused. */
cbd_status cbdc_refused(cbd_error *error, const char *function, CUresult code);

/* Loads the driver where that was not done; NOT_SUPPORTED says why it cannot be. */
cbd_status cbdc_load(cbd_error *error);
cbd_status cbdc_count(uint32_t *devices, cbd_error *error);
cbd_status cbdc_uuid_of(uint32_t ordinal, uint8_t uuid[16], cbd_error *error);
cbd_status cbdc_ordinal_of(const uint8_t uuid[16], uint32_t *ordinal, cbd_error *error);

/* Makes a device's primary context current, and the caller's again. */
cbd_status cbdc_enter(uint32_t ordinal, cbd_error *error);
void cbdc_leave(uint32_t ordinal);
/* What is open needs the context beyond the call that opened it; within enter and leave. */
void cbdc_keep(uint32_t ordinal, int by);
cbd_status cbdc_hold_device(uint32_t ordinal, cbd_error *error);
void cbdc_drop_device(uint32_t ordinal);
/* A device whose context is there, for what any will do; the first one where none is. */
uint32_t cbdc_any_device(void);
/* The library's own stream of the device, within enter and leave. */
cbd_status cbdc_own_stream(uint32_t ordinal, CUstream *stream, cbd_error *error);

struct import {
    struct cbdi_import shown; /* first */
    struct import *next;
    uint64_t generation, life, id;
    uint32_t is_event, ordinal, refs;
    CUevent event;
};

cbd_status cbdc_open(const struct cbdi_export *what, struct cbdi_import **import, cbd_error *error);
void cbdc_hold(struct cbdi_import *import);
void cbdc_let_go(struct cbdi_import *import);

cbd_status cbdc_record(struct cbdi_import *event, const cbd_cuda_sync *sync, cbd_error *error);
cbd_status cbdc_copy(uint32_t ordinal, uint8_t *to, const struct cbdi_run *runs, size_t n, const cbd_cuda_sync *sync,
                     struct cbdi_import *event, bool *recorded, cbd_error *error);
bool cbdc_finish(struct cbdi_import *event, uint64_t timeout_ns);
cbd_status cbdc_check(const void *data, uint64_t bytes, uint32_t device_type, uint32_t ordinal, cbd_error *error);
cbd_status cbdc_finish_stream(uint32_t ordinal, uint64_t stream, cbd_error *error);
cbd_status cbdc_clone(const void *data, uint64_t bytes, uint32_t ordinal, void **copy, cbd_error *error);
cbd_status cbdc_device_of(const void *data, uint32_t *ordinal, cbd_error *error);

#endif
