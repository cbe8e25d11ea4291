#include "exporter.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "../cuda/driver.h"
#include "fake_broker.h"

#define EXPORTS_MAX 64

enum { UUID, ARENA, EVENT, PUT, GET, DONE, WAIT, FREE, DESTROY };

struct order {
    uint32_t what, number;
    uint64_t offset, n;
    uint8_t bytes[64];
};

static int to_child = -1;
static pid_t child;

/* ---- the child ------------------------------------------------------------------ */

static void *library;

static void *function(const char *name)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    return symbol;
}

#define CALL(name, parameters, ...) CHECK(((CUresult(*) parameters)function(name))(__VA_ARGS__) == 0)

static CUcontext contexts[2];

static void use(uint32_t device)
{
    CUdevice d;
    CALL("cuDeviceGet", (CUdevice *, int), &d, (int)device);
    if (contexts[device] == NULL)
        CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &contexts[device], d);
    CALL("cuCtxSetCurrent", (CUcontext), contexts[device]);
}

static void answer(int socket, const char *path)
{
    static CUdeviceptr arenas[EXPORTS_MAX];
    static CUevent events[EXPORTS_MAX];
    static uint32_t device_of_arena[EXPORTS_MAX], device_of_event[EXPORTS_MAX], arena_count, event_count;
    struct order o;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    CALL("cuInit", (unsigned), 0);
    while (recv(socket, &o, sizeof o, 0) == sizeof o) {
        CUdevice d;
        CUresult code;
        switch (o.what) {
        case UUID:
            CALL("cuDeviceGet", (CUdevice *, int), &d, (int)o.number);
            CALL("cuDeviceGetUuid_v2", (CUuuid *, CUdevice), (CUuuid *)o.bytes, d);
            break;
        case ARENA:
            use(o.number);
            CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &arenas[arena_count], EXPORTED_ARENA_BYTES);
            CALL("cuIpcGetMemHandle", (CUipcHandle *, CUdeviceptr), (CUipcHandle *)o.bytes, arenas[arena_count]);
            device_of_arena[arena_count++] = o.number;
            break;
        case EVENT:
            use(o.number);
            CALL("cuEventCreate", (CUevent *, unsigned), &events[event_count], 6);
            CALL("cuIpcGetEventHandle", (CUipcHandle *, CUevent), (CUipcHandle *)o.bytes, events[event_count]);
            device_of_event[event_count++] = o.number;
            break;
        case PUT:
            use(device_of_arena[o.number]);
            CALL("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), arenas[o.number] + o.offset, o.bytes, o.n);
            break;
        case GET:
            use(device_of_arena[o.number]);
            CALL("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), o.bytes, arenas[o.number] + o.offset, o.n);
            break;
        case DONE:
            use(device_of_event[o.number]);
            code = ((CUresult(*)(CUevent))function("cuEventQuery"))(events[o.number]);
            CHECK(code == 0 || code == 600);
            o.n = code == 0;
            break;
        case WAIT:
            use(device_of_event[o.number]);
            CALL("cuEventSynchronize", (CUevent), events[o.number]);
            break;
        case FREE:
            use(device_of_arena[o.number]);
            CALL("cuMemFree_v2", (CUdeviceptr), arenas[o.number]);
            break;
        case DESTROY:
            use(device_of_event[o.number]);
            CALL("cuEventDestroy_v2", (CUevent), events[o.number]);
            break;
        }
        CHECK(send(socket, &o, sizeof o, MSG_NOSIGNAL) == sizeof o);
    }
}

/* ---- the parent --------------------------------------------------------------------- */

void exporter_start(const char *path)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        unsetenv("CUDA_VISIBLE_DEVICES"); /* it is the machine's own order here */
        unsetenv("CUDAEMU_FAIL");
        unsetenv("CUDAEMU_NO_DEVICE");
        unsetenv("CUDAEMU_DELAY_US");
        answer(pair[1], path);
        fake_child_ends();
    }
    close(pair[1]);
    to_child = pair[0];
}

void exporter_stop(void)
{
    int how;
    close(to_child);
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static void give(struct order *o)
{
    CHECK(send(to_child, o, sizeof *o, MSG_NOSIGNAL) == sizeof *o);
    CHECK(recv(to_child, o, sizeof *o, 0) == sizeof *o);
}

void exporter_uuid(uint32_t device, uint8_t uuid[16])
{
    struct order o = {.what = UUID, .number = device};
    give(&o);
    memcpy(uuid, o.bytes, 16);
}

void exporter_arena(uint32_t device, uint8_t handle[64])
{
    struct order o = {.what = ARENA, .number = device};
    give(&o);
    memcpy(handle, o.bytes, 64);
}

void exporter_event(uint32_t device, uint8_t handle[64])
{
    struct order o = {.what = EVENT, .number = device};
    give(&o);
    memcpy(handle, o.bytes, 64);
}

void exporter_put(uint32_t arena, uint64_t offset, const void *bytes, uint64_t n)
{
    struct order o = {.what = PUT, .number = arena, .offset = offset, .n = n};
    CHECK(n <= sizeof o.bytes);
    memcpy(o.bytes, bytes, n);
    give(&o);
}

void exporter_get(uint32_t arena, uint64_t offset, void *bytes, uint64_t n)
{
    struct order o = {.what = GET, .number = arena, .offset = offset, .n = n};
    CHECK(n <= sizeof o.bytes);
    give(&o);
    memcpy(bytes, o.bytes, n);
}

int exporter_event_done(uint32_t event)
{
    struct order o = {.what = DONE, .number = event};
    give(&o);
    return o.n != 0;
}

void exporter_event_wait(uint32_t event)
{
    struct order o = {.what = WAIT, .number = event};
    give(&o);
}

void exporter_free(uint32_t arena)
{
    struct order o = {.what = FREE, .number = arena};
    give(&o);
}

void exporter_destroy(uint32_t event)
{
    struct order o = {.what = DESTROY, .number = event};
    give(&o);
}
