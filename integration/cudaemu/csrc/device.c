/* Initialisation, names of errors, and devices. */
#include "emu.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

int callboard_cudaemu_version(void)
{
    return 1;
}

/* ---- initialisation ---------------------------------------------------------------------------------------------------- */

static pid_t initialised; /* the process that called cuInit with success, 0 while none did */
static int visible[DEVICES_MAX];
static int visible_count;

/* [issue] fork after cuInit is not usable: the child has no worker threads and no context. Here it is told so. */
CUresult emu_init_result(void)
{
    return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) == getpid() ? CU_OK : CU_NOT_INITIALIZED;
}

static void device_uuid(int device, unsigned char *out)
{
    static const unsigned char prefix[15] = {0xca, 0x11, 0xb0, 0xa2, 0xde, 0x70, 0x40, 0x00, 0x80, 0x00};
    memcpy(out, prefix, sizeof prefix);
    out[15] = (unsigned char)device;
}

static void uuid_text(int device, char out[48])
{
    unsigned char uuid[16];
    int at = sprintf(out, "GPU-");
    device_uuid(device, uuid);
    for (int i = 0; i < 16; i++)
        at += sprintf(out + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* The device that an entry of CUDA_VISIBLE_DEVICES names, -1 for none. */
static int device_named(const char *entry)
{
    if (strncasecmp(entry, "GPU-", 4) == 0) {
        char text[48];
        int found = -1;
        for (int i = 0; i < emu_settings.devices; i++) {
            uuid_text(i, text);
            if (strncasecmp(text, entry, strlen(entry)) == 0) {
                if (found >= 0)
                    return -1; /* [doc] an abbreviation must be unique */
                found = i;
            }
        }
        return found;
    }
    char *end;
    long index = strtol(entry, &end, 10);
    return end != entry && *end == 0 && index >= 0 && index < emu_settings.devices ? (int)index : -1;
}

/* [doc] CUDA_VISIBLE_DEVICES: "only the devices whose index is present in the sequence are visible, in the order of the
 * sequence"; after an invalid entry nothing more is visible. */
static void read_visible(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    for (int i = 0; i < DEVICES_MAX; i++)
        emu_contexts[i] = (struct context){.device = i, .ordinal = -1};
    if (list == NULL) {
        for (int i = 0; i < emu_settings.devices; i++)
            visible[visible_count++] = i;
    } else {
        char *copy = strdup(list), *save = NULL;
        for (char *entry = copy ? strtok_r(copy, ",", &save) : NULL; entry; entry = strtok_r(NULL, ",", &save)) {
            while (isspace((unsigned char)*entry))
                entry++;
            int device = device_named(entry);
            bool again = false;
            for (int i = 0; i < visible_count; i++)
                again |= visible[i] == device;
            if (device < 0 || again)
                break;
            visible[visible_count++] = device;
        }
        free(copy);
    }
    for (int i = 0; i < visible_count; i++)
        emu_contexts[visible[i]].ordinal = i;
}

CUresult cuInit(unsigned flags)
{
    emu_settings_read();
    CUresult fault = emu_fault(__func__);
    if (fault != CU_OK)
        return fault;
    if (flags != 0)
        return CU_INVALID_VALUE; /* [hdr] "currently must be 0" */
    if (emu_settings.stub)
        return CU_STUB_LIBRARY;
    pthread_mutex_lock(&emu_lock);
    CUresult result = CU_OK;
    if (initialised == 0) {
        read_visible();
        if (emu_settings.no_device || visible_count == 0)
            result = CU_NO_DEVICE; /* as driver 535 and 550 answer without a GPU, seen */
        else
            result = emu_report_open();
        if (result == CU_OK)
            __atomic_store_n(&initialised, getpid(), __ATOMIC_RELEASE);
    } else {
        result = emu_init_result();
    }
    pthread_mutex_unlock(&emu_lock);
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    emu_settings_read();
    CUresult fault = emu_fault(__func__);
    if (fault != CU_OK)
        return fault;
    if (version == NULL)
        return CU_INVALID_VALUE;
    *version = 12040;
    return CU_OK;
}

/* ---- errors ------------------------------------------------------------------------------------------------------------ */

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_words(CUresult code, bool name, const char **out)
{
    if (out == NULL)
        return CU_INVALID_VALUE;
    *out = NULL; /* [hdr] for a code that is not known, with CUDA_ERROR_INVALID_VALUE */
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            *out = name ? errors[i].name : errors[i].text;
    return *out ? CU_OK : CU_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **out)
{
    return error_words(code, true, out);
}

CUresult cuGetErrorString(CUresult code, const char **out)
{
    return error_words(code, false, out);
}

/* ---- devices ----------------------------------------------------------------------------------------------------------- */

static bool known(CUdevice device)
{
    return device >= 0 && device < visible_count;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (count == NULL)
        return emu_leave(CU_INVALID_VALUE);
    *count = visible_count;
    return emu_leave(CU_OK);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (device == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(ordinal))
        return emu_leave(CU_INVALID_DEVICE);
    *device = ordinal;
    return emu_leave(CU_OK);
}

/* The name has the machine's number of the device, which CUDA_VISIBLE_DEVICES does not change. */
CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (name == NULL || length <= 0)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    snprintf(name, (size_t)length, "Callboard emulated GPU %d", visible[device]);
    return emu_leave(CU_OK);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (uuid == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    device_uuid(visible[device], uuid->bytes);
    return emu_leave(CU_OK);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (bytes == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    *bytes = emu_settings.memory_bytes;
    return emu_leave(CU_OK);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (value == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    return emu_leave(emu_attribute(attribute, visible[device], value));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (context == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    struct context *primary = &emu_contexts[visible[device]];
    if (primary->retained > 0 && primary->lost != CU_OK)
        return emu_leave(primary->lost);
    if (primary->retained++ == 0)
        emu_count(COUNT_CONTEXTS, 1);
    *context = primary;
    return emu_leave(CU_OK);
}

/* The last release ends the context, and with it everything in it: [hdr] "the primary context is destroyed". */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    struct context *primary = &emu_contexts[visible[device]];
    if (primary->retained == 0)
        return emu_leave(CU_INVALID_CONTEXT);
    if (primary->retained == 1) {
        emu_context_abandon(primary);
        emu_event_release_all(primary);
        emu_memory_release_all(primary);
        emu_count(COUNT_CONTEXTS, -1);
    }
    primary->retained--; /* the error of a lost one stays: [hdr] the process must be terminated and started anew */
    return emu_leave(CU_OK);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (flags == NULL || active == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(device))
        return emu_leave(CU_INVALID_DEVICE);
    *flags = 0;
    *active = emu_contexts[visible[device]].retained > 0;
    return emu_leave(CU_OK);
}
