/* Loading the driver, the devices of this process and their contexts.
 *
 * A context is retained, and a stream of our own kept, as long as a stage uses the device, something is open in it or a call
 * is under way: with the last of them this process has given everything back.
 */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MAX 64

enum { NON_BLOCKING = 1 }; /* of a stream: it does not wait for the legacy default one */

static struct {
    CUdevice device;
    uint8_t uuid[16];
    uint32_t users; /* stages, imports, and calls under way */
    CUcontext context;
    CUstream stream; /* NULL: not made yet */
} devices[DEVICES_MAX];

struct driver cbdc_driver;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that is not loaded or made yet */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Atomic bool loaded, forked;
static bool linked; /* the functions were found */
static uint32_t device_count;

cbd_status cbdc_fail(cbd_error *error, cbd_status status, const char *format, ...)
{
    if (error == NULL)
        return status;
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(error->text, sizeof error->text, format, arguments) < 0)
        error->text[0] = 0;
    va_end(arguments);
    error->status = status;
    return status;
}

cbd_status cbdc_refused(cbd_error *error, const char *function, CUresult code)
{
    static const struct {
        CUresult code;
        cbd_status status;
        const char *hint;
    } known[] = {
        {1, CBD_STATUS_INVALID_ARGUMENT, ""},
        {2, CBD_STATUS_OUT_OF_MEMORY, ""},
        {3, CBD_STATUS_NOT_SUPPORTED, ": the driver is not initialised; was it loaded before a fork?"},
        {34, CBD_STATUS_NOT_SUPPORTED, ": this is the toolkit's stub, not a driver"},
        {46, CBD_STATUS_NOT_SUPPORTED, ""},
        {100, CBD_STATUS_NOT_SUPPORTED, ": this process sees no GPU"},
        {201, CBD_STATUS_OP_FAILED, ": what another process exported opens only where both share a PID namespace"},
        {400, CBD_STATUS_INVALID_ARGUMENT, ": the stream or event is none, or of another GPU"},
        {700, CBD_STATUS_OP_FAILED, ": a kernel of this process failed before; CUDA needs a new process"},
        {719, CBD_STATUS_OP_FAILED, ": a kernel of this process failed before; CUDA needs a new process"},
        {800, CBD_STATUS_NOT_SUPPORTED, ""},
        {801, CBD_STATUS_NOT_SUPPORTED, ""},
    };
    const char *name = NULL, *hint = "";
    cbd_status status = CBD_STATUS_OP_FAILED;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].code == code) {
            status = known[i].status;
            hint = known[i].hint;
        }
    if (cbdc_driver.error_name == NULL || cbdc_driver.error_name(code, &name) != 0 || name == NULL)
        name = "an error of CUDA";
    return cbdc_fail(error, status, "%s: %s (%d)%s", function, name, code, hint);
}

/* ---- loading ---------------------------------------------------------------------- */

bool cbdc_forked(void) { return atomic_load(&forked); }

/* Another thread of the parent may have had the lock, and what it was doing is gone. */
static void after_fork_in_child(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
    atomic_store(&forked, true);
    cbdc_forget_imports();
}

static void install_fork_handler(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static cbd_status link_functions(cbd_error *error)
{
    const char *path = getenv("CALLBOARD_CUDA_LIBRARY");
    if (path == NULL || path[0] == 0)
        path = "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return cbdc_fail(error, CBD_STATUS_NOT_SUPPORTED, "no driver of CUDA: %.300s; install NVIDIA's, or name one by CALLBOARD_CUDA_LIBRARY",
                         dlerror());
    struct driver found;
    void *symbol;
    const char *missing = NULL;
#define CUDA_FIND(name, text, parameters)                  \
    symbol = dlsym(library, text);                         \
    if (symbol == NULL)                                    \
        missing = text;                                    \
    memcpy(&found.name, &symbol, sizeof symbol);
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    if (missing != NULL) {
        dlclose(library);
        return cbdc_fail(error, CBD_STATUS_NOT_SUPPORTED, "%.300s is no driver of CUDA, or too old a one: it has no %s", path, missing);
    }
    cbdc_driver = found;
    linked = true;
    return CBD_STATUS_OK;
}

static cbd_status find_devices(cbd_error *error)
{
    int count = 0;
    CUresult code = cbdc_driver.init(0);
    if (code != 0)
        return cbdc_refused(error, "cuInit", code);
    if ((code = cbdc_driver.device_count(&count)) != 0)
        return cbdc_refused(error, "cuDeviceGetCount", code);
    for (int i = 0; i < count && i < DEVICES_MAX; i++) {
        CUuuid uuid;
        if ((code = cbdc_driver.device_get(&devices[i].device, i)) != 0)
            return cbdc_refused(error, "cuDeviceGet", code);
        if ((code = cbdc_driver.device_uuid(&uuid, devices[i].device)) != 0)
            return cbdc_refused(error, "cuDeviceGetUuid", code);
        memcpy(devices[i].uuid, uuid.bytes, sizeof devices[i].uuid);
    }
    device_count = count > DEVICES_MAX ? DEVICES_MAX : count < 0 ? 0 : (uint32_t)count;
    return device_count != 0 ? CBD_STATUS_OK : cbdc_fail(error, CBD_STATUS_NOT_SUPPORTED, "this process sees no GPU (CUDA_VISIBLE_DEVICES?)");
}

cbd_status cbdc_load(cbd_error *error)
{
    if (atomic_load(&forked))
        return cbdc_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "this process was forked from one that had loaded the driver of CUDA, which cannot be used here: start it anew (exec, \"spawn\")");
    if (atomic_load(&loaded))
        return CBD_STATUS_OK;
    pthread_mutex_lock(&lock);
    cbd_status status = linked ? CBD_STATUS_OK : link_functions(error);
    if (status == CBD_STATUS_OK && !atomic_load(&loaded)) {
        pthread_once(&fork_once, install_fork_handler);
        status = find_devices(error); /* what failed may go another time (behaviour 306) */
        if (status == CBD_STATUS_OK)
            atomic_store(&loaded, true);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- devices ------------------------------------------------------------------------ */

cbd_status cbdc_count(uint32_t *count, cbd_error *error)
{
    cbd_status status = cbdc_load(error);
    *count = status == CBD_STATUS_OK ? device_count : 0;
    return status;
}

static cbd_status known(uint32_t ordinal, cbd_error *error)
{
    cbd_status status = cbdc_load(error);
    if (status == CBD_STATUS_OK && ordinal >= device_count)
        status = cbdc_fail(error, CBD_STATUS_INVALID_ARGUMENT, "GPU %u: this process has %u, from number 0 on", ordinal, device_count);
    return status;
}

cbd_status cbdc_uuid_of(uint32_t ordinal, uint8_t uuid[16], cbd_error *error)
{
    cbd_status status = known(ordinal, error);
    if (status == CBD_STATUS_OK)
        memcpy(uuid, devices[ordinal].uuid, sizeof devices[ordinal].uuid);
    return status;
}

cbd_status cbdc_ordinal_of(const uint8_t uuid[16], uint32_t *ordinal, cbd_error *error)
{
    cbd_status status = cbdc_load(error);
    *ordinal = CBD_DEVICE_ELSEWHERE;
    for (uint32_t i = 0; status == CBD_STATUS_OK && i < device_count; i++)
        if (memcmp(uuid, devices[i].uuid, sizeof devices[i].uuid) == 0) {
            *ordinal = i;
            break;
        }
    return status;
}

cbd_status cbdc_enter(uint32_t ordinal, cbd_error *error)
{
    cbd_status status = known(ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    const char *function = "cuDevicePrimaryCtxRetain";
    pthread_mutex_lock(&lock);
    CUresult code = devices[ordinal].users != 0 ? 0 : cbdc_driver.primary_retain(&devices[ordinal].context, devices[ordinal].device);
    if (code == 0) {
        function = "cuCtxPushCurrent";
        code = cbdc_driver.push(devices[ordinal].context);
        if (code == 0)
            devices[ordinal].users++;
        else if (devices[ordinal].users == 0)
            (void)cbdc_driver.primary_release(devices[ordinal].device);
    }
    pthread_mutex_unlock(&lock);
    return code == 0 ? CBD_STATUS_OK : cbdc_refused(error, function, code);
}

void cbdc_leave(uint32_t ordinal)
{
    CUcontext ours;
    pthread_mutex_lock(&lock);
    bool last = --devices[ordinal].users == 0;
    if (last && devices[ordinal].stream != NULL) {
        (void)cbdc_driver.stream_destroy(devices[ordinal].stream);
        devices[ordinal].stream = NULL;
    }
    (void)cbdc_driver.pop(&ours); /* what was current before is again */
    if (last)
        (void)cbdc_driver.primary_release(devices[ordinal].device);
    pthread_mutex_unlock(&lock);
}

void cbdc_keep(uint32_t ordinal, int by)
{
    pthread_mutex_lock(&lock);
    devices[ordinal].users += (uint32_t)by;
    pthread_mutex_unlock(&lock);
}

cbd_status cbdc_hold_device(uint32_t ordinal, cbd_error *error)
{
    cbd_status status = cbdc_enter(ordinal, error);
    if (status == CBD_STATUS_OK) {
        cbdc_keep(ordinal, 1);
        cbdc_leave(ordinal);
    }
    return status;
}

void cbdc_drop_device(uint32_t ordinal)
{
    if (cbdc_enter(ordinal, NULL) != CBD_STATUS_OK)
        return; /* a forked child, whose context it never was */
    cbdc_keep(ordinal, -1);
    cbdc_leave(ordinal);
}

uint32_t cbdc_any_device(void)
{
    uint32_t ordinal = 0;
    pthread_mutex_lock(&lock);
    while (ordinal < device_count && devices[ordinal].users == 0)
        ordinal++;
    ordinal = ordinal < device_count ? ordinal : 0;
    pthread_mutex_unlock(&lock);
    return ordinal;
}

cbd_status cbdc_own_stream(uint32_t ordinal, CUstream *stream, cbd_error *error)
{
    pthread_mutex_lock(&lock);
    CUresult code = devices[ordinal].stream != NULL ? 0 : cbdc_driver.stream_create(&devices[ordinal].stream, NON_BLOCKING);
    *stream = code == 0 ? devices[ordinal].stream : NULL;
    if (code != 0)
        devices[ordinal].stream = NULL;
    pthread_mutex_unlock(&lock);
    return code == 0 ? CBD_STATUS_OK : cbdc_refused(error, "cuStreamCreate", code);
}
