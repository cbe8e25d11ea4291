/* What tests of device memory begin with: the emulated driver, a fake broker that has two GPUs, and a process beside it that does
 * with a driver what a broker does. This process sees the GPUs the other way round.
 */
#ifndef CUDA_SCENE_H
#define CUDA_SCENE_H

#include "standin_dlpack.h"

#include "callboard_cuda.h"
#include "callboard_python.h"
#include "exporter.h"
#include "fake_broker.h"
#include "map.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda/driver.h"

#define ARENA_0 5 /* a segment on the broker's GPU 0, which is number 1 in layouts; this process's GPU 1 */
#define ARENA_1 6 /* on its GPU 1; our 0 */
#define EVENT 3
#define BLOCK 4096 /* where a group is leased */
#define LIFE UINT64_C(555)

static cbd_error error;
static const char *const ab[] = {"/a", "/b"}, *const name = "x";
static struct fake *broker;
static cbd_stage *stage;
static cbd_query *query;
static cbd_connect_options connecting;
static uint32_t arenas[2], events[1], made_arenas, made_events; /* numbers of the exporter */
static uint8_t arena_handles[2][64], event_handle[64], uuids[2][16];
static uint32_t served = 2;  /* GPUs of the broker */
static uint32_t hole = UINT32_MAX; /* the one of them that it does not serve now */
static uint64_t life = LIFE; /* of the broker */

#define SAYS(part)                                                                                     \
    do {                                                                                               \
        if (strstr(error.text, part) == NULL) {                                                        \
            fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__, error.text, part); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

/* ---- the program's own CUDA ---------------------------------------------------------- */

static inline void *driver_function(const char *symbol)
{
    static void *library;
    if (library == NULL)
        library = dlopen(EMULATED, RTLD_NOW | RTLD_LOCAL);
    void *found = library != NULL ? dlsym(library, symbol) : NULL;
    CHECK(found != NULL);
    return found;
}

#define CUDA(symbol, parameters, ...) CHECK(((CUresult(*) parameters)driver_function(symbol))(__VA_ARGS__) == 0)

static CUcontext contexts[2];

static inline void use_gpu(uint32_t ordinal)
{
    CUdevice device;
    CUDA("cuInit", (unsigned), 0);
    CUDA("cuDeviceGet", (CUdevice *, int), &device, (int)ordinal);
    if (contexts[ordinal] == NULL)
        CUDA("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &contexts[ordinal], device);
    CUDA("cuCtxSetCurrent", (CUcontext), contexts[ordinal]);
}

static inline CUcontext current(void)
{
    CUcontext now;
    CUDA("cuCtxGetCurrent", (CUcontext *), &now);
    return now;
}

static inline uint8_t *gpu_alloc(uint32_t ordinal, const void *bytes, size_t n)
{
    CUdeviceptr at;
    use_gpu(ordinal);
    CUDA("cuMemAlloc_v2", (CUdeviceptr *, size_t), &at, n);
    CUDA("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), at, bytes, n);
    return (uint8_t *)(uintptr_t)at;
}

static inline void gpu_free(uint32_t ordinal, const void *at)
{
    use_gpu(ordinal);
    CUDA("cuMemFree_v2", (CUdeviceptr), (CUdeviceptr)(uintptr_t)at);
}

static inline void gpu_get(uint32_t ordinal, void *to, const void *from, size_t n)
{
    use_gpu(ordinal);
    CUDA("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), to, (CUdeviceptr)(uintptr_t)from, n);
}

/* What the emulation counts of this process. */
static inline uint64_t counted(int what)
{
    char path[128];
    uint64_t words[18];
    snprintf(path, sizeof path, "%s/process-%d", getenv("CUDAEMU_DIR"), (int)getpid());
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    CHECK(fread(words, 1, sizeof words, file) == sizeof words);
    fclose(file);
    return words[2 + what];
}

enum { CONTEXTS = 0, IMPORTS = 3, IMPORTED_EVENTS = 5 };

/* ---- the broker --------------------------------------------------------------------------- */

static inline void on_device(struct fake *f, const cbd_abi_device_request *request, cbd_abi_device_reply *reply)
{
    (void)f;
    reply->arena_generation = life;
    if (request->sort == CBD_DEVICE_INFO && request->index < served) {
        reply->status = CBD_STATUS_OK;
        reply->device_id = request->index;
        reply->size_bytes = (uint64_t)8 << 30;
        memcpy(reply->uuid, uuids[request->index], 16);
        if (request->index == hole)
            reply->status = CBD_STATUS_NOT_FOUND;
    } else if (request->sort == CBD_DEVICE_ARENA && (request->segment == ARENA_0 || request->segment == ARENA_1)) {
        uint32_t device = request->segment == ARENA_1;
        if (arenas[device] == 0) {
            exporter_arena(device, arena_handles[device]);
            arenas[device] = ++made_arenas;
        }
        reply->status = CBD_STATUS_OK;
        reply->device_id = device;
        reply->size_bytes = EXPORTED_ARENA_BYTES;
        memcpy(reply->handle, arena_handles[device], 64);
    } else if (request->sort == CBD_DEVICE_EVENT && request->index == EVENT) {
        if (events[0] == 0) {
            exporter_event(0, event_handle);
            events[0] = ++made_events;
        }
        reply->status = CBD_STATUS_OK;
        reply->device_id = 0;
        memcpy(reply->handle, event_handle, 64);
    }
}

/* What arrived last of each op, and how many. */
static struct {
    cbd_abi_submission_entry entry[32];
    _Atomic uint32_t count[32];
    uint8_t arguments[32][512];
} sent;

static uint32_t fails_opcode; /* the next op of it fails */

/* Where rows lie, as the fake broker answers: by what is wanted; 0: the host. */
static inline bool on_op(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    const cbd_abi_channel_header *h = (cbd_abi_channel_header *)f->channel;
    const uint8_t *arguments = f->channel + h->argument_offset_bytes + e->argument_offset_bytes;
    uint8_t *results = f->channel + h->result_offset_bytes + e->result_offset_bytes;
    if (e->opcode < 32) {
        sent.entry[e->opcode] = *e;
        memset(sent.arguments[e->opcode], 0, sizeof sent.arguments[0]);
        memcpy(sent.arguments[e->opcode], arguments, e->argument_bytes < 512 ? e->argument_bytes : 512);
        atomic_fetch_add(&sent.count[e->opcode], 1);
    }
    if (e->opcode == fails_opcode) {
        fails_opcode = 0;
        c->status = CBD_STATUS_OP_FAILED;
        f->text = "the event did not complete in time";
        return true;
    }
    if (e->opcode == CBD_OP_MAP) {
        cbd_abi_map_arguments map;
        cbd_abi_group_descriptor group;
        memcpy(&map, arguments, sizeof map);
        memcpy(&group, results, sizeof group);
        uint32_t type = map.staging_type ? map.staging_type : map.schema.device_type, id = map.staging_type ? map.staging_id : map.schema.device_id;
        if (type == 0) /* where the attribute lies */
            type = map.name_bytes == 1 && arguments[map.name_offset_bytes] == 'x' ? CBD_DEVICE_CUDA : CBD_DEVICE_CPU;
        if (type == CBD_DEVICE_CUDA) {
            group.block = (cbd_abi_block_ref){ARENA_0 + id, BLOCK, group.block.length_bytes};
            group.device_number = id + 1;
            group.arena_generation = life;
            group.event_index = EVENT;
            if (map.name_bytes == 5) /* "image", which is published on "/" */
                group.rows = group.prim_count = 1;
            memcpy(results, &group, sizeof group);
        }
    } else if (e->opcode == CBD_OP_MIRROR) {
        cbd_abi_mirror_results at = {.block = {e->value == 0 ? 3 : ARENA_0 + e->value - 1, 64 << 10, 4096}, .device_number = (uint32_t)e->value,
                                     .arena_generation = e->value == 0 ? 0 : life};
        memcpy(results, &at, sizeof at);
        c->result_bytes = sizeof at;
    }
    return true;
}

static inline uint32_t count_of(uint32_t opcode) { return atomic_load(&sent.count[opcode]); }

static inline cbd_abi_segment_entry *segment_entry(uint64_t id)
{
    cbd_abi_ref at = broker->directory->segment_pages[0];
    return (cbd_abi_segment_entry *)(broker->segments[at.segment - 1] + at.offset_bytes) + (id - 1);
}

static uint32_t column; /* "x", on the broker's GPU 0 */
static const float rows[6] = {0, 1, 2, 3, 4, 5}, mirrored[6] = {10, 11, 12, 13, 14, 15};

static inline void publish(const float *bytes, uint64_t ordinal)
{
    static uint32_t place;
    cbd_abi_device_request request = {.sort = CBD_DEVICE_ARENA, .segment = ARENA_0};
    cbd_abi_device_reply reply;
    on_device(broker, &request, &reply); /* it is there before anybody asks */
    exporter_put(arenas[0] - 1, 8192, bytes, sizeof rows);
    cbd_abi_ref layout = fake_layout(broker, ab, 2, 1);
    place = (place + 1) % 4;
    fake_publish(broker, column, place, layout, 2, bytes, sizeof rows, ordinal);
    cbd_abi_version_slot *slot = fake_slot(broker, column, place);
    uint64_t birth = slot->birth;
    store64(&slot->birth, CBD_INFINITE); /* rule V4 */
    slot->block = (cbd_abi_block_ref){ARENA_0, 8192, sizeof rows};
    slot->device_number = 1;
    slot->arena_generation = life;
    store64(&slot->birth, birth);
}

static inline void begin(void)
{
    broker = fake_start();
    broker->on_op = on_op;
    broker->on_device = on_device;
    broker->features |= CBD_FEATURE_RECOVERY | CBD_FEATURE_ARRAY;
    broker->directory->started_ns = ++life;
    memset(&sent, 0, sizeof sent);
    memset(arenas, 0, sizeof arenas);
    memset(events, 0, sizeof events);
    for (uint64_t id = ARENA_0; id <= ARENA_1; id++)
        *segment_entry(id) = (cbd_abi_segment_entry){id, EXPORTED_ARENA_BYTES, 0, CBD_SEGMENT_LIVE, CBD_SEGMENT_BROKER | CBD_SEGMENT_ON_DEVICE};
    broker->directory->segment_count = ARENA_1;
    column = fake_column(broker, name, CBD_DTYPE_FLOAT, 32, 3, 0, NULL);
    fake_attribute(broker, column)->schema.device_type = CBD_DEVICE_CUDA;
    fake_floors(broker, 0, 1, 1, NULL, 0);
    publish(rows, 1);
    memcpy(broker->segments[2] + (64 << 10), mirrored, sizeof mirrored);
    CHECK_STATUS(cbd_connect("fake", &connecting, &stage, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_query_from_path_list(stage, ab, NULL, 2, &query, &error), CBD_STATUS_OK);
}

/* Ends, with nothing of the driver left open; the exporter then destroys what it made, which the emulation would not forgive. */
static inline void end(void)
{
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(broker);
    CHECK(counted(IMPORTS) == 0 && counted(IMPORTED_EVENTS) == 0);
    CHECK(counted(CONTEXTS) == (uint64_t)(contexts[0] != NULL) + (contexts[1] != NULL)); /* those of the program itself */
    for (int i = 0; i < 2; i++)
        if (arenas[i] != 0)
            exporter_free(arenas[i] - 1);
    if (events[0] != 0)
        exporter_destroy(events[0] - 1);
    stage = NULL;
}

static inline cbd_status read_x(uint32_t type, uint32_t id, const cbd_read_group **group)
{
    cbd_read *read = NULL;
    *group = NULL;
    cbd_status status = cbd_read_attributes(stage, query, &name, 1, &read, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_fetch_read_next_in(read, type, id, group, &error);
    cbd_read_release(read);
    return status;
}

static inline cbd_group *map_on_gpu(cbd_session **session, uint64_t ordinal)
{
    cbd_map_options map = {.ordinal = ordinal};
    cbd_group *group;
    CHECK_STATUS(cbd_map_attribute(stage, query, name, &map, session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(*session, &group, &error), CBD_STATUS_OK);
    return group;
}

static inline cbd_abi_unmap_arguments unmapped(uint32_t opcode)
{
    cbd_abi_unmap_arguments arguments;
    memcpy(&arguments, sent.arguments[opcode], sizeof arguments);
    return arguments;
}

static inline void wait_for(cbd_op *op, cbd_status wanted)
{
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), wanted);
    cbd_op_release(op);
}

/* ---- running ----------------------------------------------------------------------------- */

/* A test in a process of its own, with a setting that the driver reads as it is loaded. */
struct alone {
    const char *name;
    void (*run)(void);
    const char *setting, *value;
};

#define ALONE(test, setting, value) {#test, test, setting, value}

static inline void run_alone(const char *program, const struct alone *test)
{
    pid_t child = fork();
    if (child == 0) {
        setenv(test->setting, test->value, 1);
        execl(program, program, test->name, (char *)NULL);
        _exit(127);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

/* The tests of a program: those of one process, then each of the others in its own. */
static inline int cuda_tests(int argc, char **argv, void (*together)(void), const struct alone *alone, size_t count)
{
    char dir[] = "/tmp/cbd-cudaemu-XXXXXX", command[64];
    setvbuf(stdout, NULL, _IONBF, 0);
    if (getenv("CALLBOARD_TEST_QEMU") != NULL) {
        printf("not under QEMU: a static program loads no driver\n");
        return 0;
    }
    setenv("CUDAEMU_DEVICES", "2", 1);
    if (argc == 1) {
        CHECK(mkdtemp(dir) != NULL);
        setenv("CUDAEMU_DIR", dir, 1);
        setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
        setenv("CALLBOARD_CUDA_LIBRARY", EMULATED, 1);
    }
    exporter_start(EMULATED);
    for (uint32_t i = 0; i < 2; i++)
        exporter_uuid(i, uuids[i]);
    if (argc == 1)
        together();
    for (size_t i = 0; i < count; i++)
        if (argc == 1) {
            run_alone(argv[0], &alone[i]);
        } else if (strcmp(alone[i].name, argv[1]) == 0) {
            CHECK_STATUS(cbd_cuda_enable(&error), CBD_STATUS_OK);
            alone[i].run();
            printf("ok %s\n", alone[i].name);
        }
    exporter_stop();
    if (argc == 1) {
        snprintf(command, sizeof command, "rm -r %s", dir);
        CHECK(system(command) == 0);
    }
    return 0;
}

#endif
