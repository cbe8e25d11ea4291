/* The driver's functions that the emulation exports, with CUDA's ABI.
 *
 * These are our own declarations: sizes, order and numbers are CUDA's, so that a program which was compiled against cuda.h,
 * or binds the symbols by name, cannot tell the two apart. Names without a comment mean what NVIDIA's driver API says; what
 * the emulation decides for itself is said where the function is.
 */
#ifndef CUDAEMU_API_H
#define CUDAEMU_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef void (*CUhostFn)(void *user);

typedef struct {
    unsigned char bytes[16];
} CUuuid;

/* Passed by value: 64 bytes are class MEMORY on amd64 and a pointer to a copy on arm64. */
typedef struct {
    unsigned char reserved[64];
} CUipcMemHandle;

typedef struct {
    unsigned char reserved[64];
} CUipcEventHandle;

typedef struct {
    size_t src_x_bytes, src_y;
    unsigned src_type;
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x_bytes, dst_y;
    unsigned dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width_bytes, height;
} CUmemcpy2D;

_Static_assert(sizeof(CUmemcpy2D) == 128, "CUDA_MEMCPY2D has 128 bytes on 64-bit machines");

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_STUB_LIBRARY = 34,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_CONTEXT = 201,
    CU_MAP_FAILED = 205,
    CU_PEER_ACCESS_UNSUPPORTED = 217,
    CU_OPERATING_SYSTEM = 304,
    CU_INVALID_HANDLE = 400,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_CONTEXT_IS_DESTROYED = 709,
    CU_HOST_ALREADY_REGISTERED = 712,
    CU_HOST_NOT_REGISTERED = 713,
    CU_LAUNCH_FAILED = 719,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,
};

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
enum { CU_IPC_LAZY_PEER_ACCESS = 1 };
enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3, CU_MEMORY_UNIFIED = 4 };
enum { CU_REGISTER_PORTABLE = 1, CU_REGISTER_DEVICEMAP = 2, CU_REGISTER_IOMEMORY = 4, CU_REGISTER_READ_ONLY = 8 };

#define CU_EXPORT __attribute__((visibility("default")))

/* The mark by which a program can tell that no GPU is behind the library. Real drivers do not have it. */
CU_EXPORT int callboard_cudaemu_version(void);

CU_EXPORT CUresult cuInit(unsigned flags);
CU_EXPORT CUresult cuDriverGetVersion(int *version);
CU_EXPORT CUresult cuGetErrorName(CUresult code, const char **out);
CU_EXPORT CUresult cuGetErrorString(CUresult code, const char **out);

CU_EXPORT CUresult cuDeviceGetCount(int *count);
CU_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal);
CU_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CU_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CU_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CU_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);

CU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CU_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CU_EXPORT CUresult cuCtxSetCurrent(CUcontext context);
CU_EXPORT CUresult cuCtxGetCurrent(CUcontext *context);
CU_EXPORT CUresult cuCtxGetDevice(CUdevice *device);
CU_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context);
CU_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context);
CU_EXPORT CUresult cuCtxSynchronize(void);

CU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
CU_EXPORT CUresult cuMemFree_v2(CUdeviceptr address);
CU_EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *total);
CU_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
CU_EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address);
CU_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags);
CU_EXPORT CUresult cuMemHostUnregister(void *pointer);
CU_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags);

CU_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CU_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
CU_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream);
CU_EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes);
CU_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes);
CU_EXPORT CUresult cuMemcpy2DAsync_v2(const CUmemcpy2D *copy, CUstream stream);
CU_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream);
CU_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream);

CU_EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags);
CU_EXPORT CUresult cuStreamDestroy_v2(CUstream stream);
CU_EXPORT CUresult cuStreamSynchronize(CUstream stream);
CU_EXPORT CUresult cuStreamQuery(CUstream stream);
CU_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CU_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user);

CU_EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags);
CU_EXPORT CUresult cuEventDestroy_v2(CUevent event);
CU_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream);
CU_EXPORT CUresult cuEventQuery(CUevent event);
CU_EXPORT CUresult cuEventSynchronize(CUevent event);

CU_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address);
CU_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags);
CU_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CU_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event);
CU_EXPORT CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle);

#endif
