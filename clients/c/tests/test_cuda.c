/* Device memory, against the emulated driver: rules C1, C2, C3, C5, C6, B3, and behaviours 230, 283, 302 to 307. The broker is a fake, and
 * what a broker does with a driver is done by a process beside it. This process sees the two GPUs the other way round.
 */
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

static void *driver_function(const char *symbol)
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

static void use_gpu(uint32_t ordinal)
{
    CUdevice device;
    CUDA("cuInit", (unsigned), 0);
    CUDA("cuDeviceGet", (CUdevice *, int), &device, (int)ordinal);
    if (contexts[ordinal] == NULL)
        CUDA("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &contexts[ordinal], device);
    CUDA("cuCtxSetCurrent", (CUcontext), contexts[ordinal]);
}

static CUcontext current(void)
{
    CUcontext now;
    CUDA("cuCtxGetCurrent", (CUcontext *), &now);
    return now;
}

static uint8_t *gpu_alloc(uint32_t ordinal, const void *bytes, size_t n)
{
    CUdeviceptr at;
    use_gpu(ordinal);
    CUDA("cuMemAlloc_v2", (CUdeviceptr *, size_t), &at, n);
    CUDA("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), at, bytes, n);
    return (uint8_t *)(uintptr_t)at;
}

static void gpu_free(uint32_t ordinal, const void *at)
{
    use_gpu(ordinal);
    CUDA("cuMemFree_v2", (CUdeviceptr), (CUdeviceptr)(uintptr_t)at);
}

static void gpu_get(uint32_t ordinal, void *to, const void *from, size_t n)
{
    use_gpu(ordinal);
    CUDA("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), to, (CUdeviceptr)(uintptr_t)from, n);
}

/* What the emulation counts of this process. */
static uint64_t counted(int what)
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

static void on_device(struct fake *f, const cbd_abi_device_request *request, cbd_abi_device_reply *reply)
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
static bool on_op(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
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

static uint32_t count_of(uint32_t opcode) { return atomic_load(&sent.count[opcode]); }

static cbd_abi_segment_entry *segment_entry(uint64_t id)
{
    cbd_abi_ref at = broker->directory->segment_pages[0];
    return (cbd_abi_segment_entry *)(broker->segments[at.segment - 1] + at.offset_bytes) + (id - 1);
}

static uint32_t column; /* "x", on the broker's GPU 0 */
static const float rows[6] = {0, 1, 2, 3, 4, 5}, mirrored[6] = {10, 11, 12, 13, 14, 15};

static void publish(const float *bytes, uint64_t ordinal)
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

static void begin(void)
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
static void end(void)
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

static cbd_status read_x(uint32_t type, uint32_t id, const cbd_read_group **group)
{
    cbd_read *read = NULL;
    *group = NULL;
    cbd_status status = cbd_read_attributes(stage, query, &name, 1, &read, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_fetch_read_next_in(read, type, id, group, &error);
    cbd_read_release(read);
    return status;
}

/* ---- without the library --------------------------------------------------------------------- */

/* Numbers are the broker's, what lies on a GPU is read on the host, and the errors say what to do. */
static void without_the_library_there_is_the_host(void)
{
    begin();
    cbd_device_info info;
    cbd_schema schema;
    CHECK_STATUS(cbd_device_at(stage, 1, &info, &error), CBD_STATUS_OK);
    CHECK(info.index == 1 && info.device_id == 1 && info.memory_bytes == (uint64_t)8 << 30 && memcmp(info.uuid, uuids[1], 16) == 0);
    CHECK_STATUS(cbd_device_at(stage, 2, &info, &error), CBD_STATUS_END);
    CHECK_STATUS(cbd_attribute_schema(stage, name, &schema, &error), CBD_STATUS_OK);
    CHECK(schema.device_type == CBD_DEVICE_CUDA && schema.device_id == 0);

    cbd_read *read;
    const cbd_read_group *group, *latest;
    CHECK_STATUS(cbd_read_attributes(stage, query, &name, 1, &read, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("link libcallboard_cuda and call cbd_cuda_enable");
    CHECK_STATUS(cbd_fetch_read_next_in(read, CBD_DEVICE_CPU, 0, &group, &error), CBD_STATUS_OK); /* it is still the next one */
    CHECK(group->device_type == CBD_DEVICE_CPU && group->device_id == 0 && memcmp(group->data, mirrored, sizeof mirrored) == 0);
    CHECK(group->schema.device_type == CBD_DEVICE_CUDA && group->prim_count == 2 && group->pin != NULL);
    CHECK(sent.entry[CBD_OP_MIRROR].handle == column && sent.entry[CBD_OP_MIRROR].ordinal == group->epoch && sent.entry[CBD_OP_MIRROR].value == 0);
    CHECK_STATUS(cbd_fetch_read_next(read, &latest, &error), CBD_STATUS_END);
    cbd_release_group(group);
    cbd_read_release(read);

    cbd_session *session;
    cbd_map_options map = {.ordinal = 5};
    CHECK_STATUS(cbd_map_attribute(stage, query, name, &map, &session, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("link libcallboard_cuda");
    CHECK(count_of(CBD_OP_MAP) == 0);
    map.staging_type = CBD_DEVICE_CPU;
    cbd_group *staged;
    CHECK_STATUS(cbd_map_attribute(stage, query, name, &map, &session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(session, &staged, &error), CBD_STATUS_OK);
    CHECK(staged->device_type == CBD_DEVICE_CPU && staged->schema.device_type == CBD_DEVICE_CUDA);
    memset(staged->data, 0, 24);
    const cbd_cuda_sync sync = {.stream = 1};
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &sync, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("lies on the host");
    cbd_session_release(session);

    int64_t two[2] = {2, 3};
    cbd_tensor tensor = {.data = rows, .ndim = 2, .shape = two, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
    cbd_write_options o = cbd_write_options_default();
    cbd_op *op;
    o.ordinal = 5;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &tensor, &o, &op, &error), CBD_STATUS_OK); /* of the host, wherever it lies */
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_abi_write_entry entry;
    memcpy(&entry, sent.arguments[CBD_OP_WRITE] + sizeof(cbd_abi_write_arguments), sizeof entry);
    CHECK(entry.schema.device_type == 0 && entry.schema.device_id == 0);
    tensor.device_type = CBD_DEVICE_CUDA;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &tensor, &o, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("link libcallboard_cuda");
    schema = (cbd_schema){.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, &op, &error), CBD_STATUS_OK); /* by the broker's number */
    cbd_op_release(op);
    schema.device_id = 2;
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("GPU 2, which this broker does not serve; it has 2");
    schema.kind = CBD_KIND_ARRAY;
    schema.device_id = 1;
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK(counted(IMPORTS) == 0);
    end();
}

/* ---- with it ------------------------------------------------------------------------------------- */

/* Behaviour 306: what failed is tried again. */
static void a_driver_that_is_not_there_is_looked_for_again(void)
{
    uint32_t count = 7;
    CHECK_STATUS(cbd_cuda_device_count(NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    setenv("CALLBOARD_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    CHECK_STATUS(cbd_cuda_device_count(&count, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("no driver of CUDA: /nonexistent/libcuda.so.1");
    CHECK(count == 0);
    setenv("CALLBOARD_CUDA_LIBRARY", "libc.so.6", 1);
    CHECK_STATUS(cbd_cuda_device_count(&count, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("libc.so.6 is no driver of CUDA");
    setenv("CALLBOARD_CUDA_LIBRARY", EMULATED, 1);
    CHECK_STATUS(cbd_cuda_enable(&error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_cuda_enable(NULL), CBD_STATUS_OK);
    CHECK_STATUS(cbd_cuda_device_count(&count, &error), CBD_STATUS_OK);
    CHECK(count == 2);
}

/* What the Python client asks for beside: a stream that a producer puts its work before, copies, whose an address is. */
static void streams_and_copies_of_our_own(void)
{
    begin();
    float data[3] = {1, 2, 3}, got[3] = {0};
    uint8_t *there = gpu_alloc(1, data, sizeof data);
    uint64_t stream = 0, again = 1;
    uint32_t device = 9;
    void *copy = NULL;
    CHECK_STATUS(cbd_cuda_stream(1, &stream, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_cuda_stream(1, &again, &error), CBD_STATUS_OK);
    CHECK(stream > 2 && stream == again);
    CHECK_STATUS(cbd_cuda_stream(7, &again, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("GPU 7");
    CHECK_STATUS(cbd_cuda_stream(1, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    cbd_cuda_stream_release(1);
    cbd_cuda_stream_release(1);
    CHECK_STATUS(cbd_cuda_device_of(there, &device, &error), CBD_STATUS_OK);
    CHECK(device == 1);
    CHECK_STATUS(cbd_cuda_device_of(data, &device, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_cuda_device_of(there, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_cuda_clone(there, sizeof data, 1, &copy, &error), CBD_STATUS_OK);
    use_gpu(1);
    CUDA("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), got, (CUdeviceptr)(uintptr_t)copy, sizeof got);
    CHECK(copy != there && memcmp(got, data, sizeof got) == 0);
    cbd_cuda_free(copy, 1);
    cbd_cuda_free(NULL, 1);
    CHECK_STATUS(cbd_cuda_clone(NULL, 4, 1, &copy, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_cuda_clone(there, 0, 1, &copy, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_cuda_clone(there, (uint64_t)1 << 50, 1, &copy, &error), CBD_STATUS_OUT_OF_MEMORY);
    CHECK(copy == NULL);
    end();
}

/* Rule C2: numbers are this process's, by UUID. */
static void numbers_are_those_of_the_process(void)
{
    begin();
    cbd_device_info info;
    cbd_schema schema;
    cbd_attribute_info about;
    CHECK_STATUS(cbd_device_at(stage, 0, &info, &error), CBD_STATUS_OK);
    CHECK(info.index == 0 && info.device_id == 1);
    CHECK_STATUS(cbd_attribute_schema(stage, name, &schema, &error), CBD_STATUS_OK);
    CHECK(schema.device_type == CBD_DEVICE_CUDA && schema.device_id == 1);
    CHECK_STATUS(cbd_attribute_at(stage, column, &about, &error), CBD_STATUS_OK);
    CHECK(about.schema.device_id == 1);
    cbd_op *op;
    schema.device_id = 0;
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, &op, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    cbd_abi_declare_arguments declared;
    memcpy(&declared, sent.arguments[CBD_OP_DECLARE], sizeof declared);
    CHECK(declared.schema.device_type == CBD_DEVICE_CUDA && declared.schema.device_id == 1);
    schema.device_id = 2; /* behaviour 230 */
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("GPU 2: this process has 2");
    schema.device_type = 10;
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    schema = (cbd_schema){.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .device_id = 1};
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    end();
    served = 1; /* our GPU 0 is not its any more */
    begin();
    schema = (cbd_schema){.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .device_type = CBD_DEVICE_CUDA};
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("GPU 0, GPU-");
    SAYS("which this broker does not serve");
    end();
    served = 0;
    begin();
    CHECK_STATUS(cbd_device_at(stage, 0, &(cbd_device_info){0}, &error), CBD_STATUS_END);
    CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("this broker serves no GPU");
    served = 2; /* behaviour 306: whoever asked before sees them as well, after a while */
    cbd_status status;
    for (uint32_t limit = 60000; (status = cbd_declare(stage, "y", &schema, 0, 0, NULL, &error)) == CBD_STATUS_NOT_SUPPORTED && limit > 0; limit--)
        usleep(1000);
    CHECK_STATUS(status, CBD_STATUS_OK);
    CHECK_STATUS(cbd_device_at(stage, 1, &info, &error), CBD_STATUS_OK);
    end();
}

/* A device that is not served now keeps its number: the others are found behind it, and of it the broker says why. */
static void a_device_that_is_not_served_keeps_its_number(void)
{
    cbd_device_info info;
    cbd_op *op;
    cbd_abi_declare_arguments declared;
    hole = 0;
    begin();
    CHECK_STATUS(cbd_device_at(stage, 0, &info, &error), CBD_STATUS_OK);
    CHECK(info.index == 1 && info.device_id == 0 && memcmp(info.uuid, uuids[1], 16) == 0);
    CHECK_STATUS(cbd_device_at(stage, 1, &info, &error), CBD_STATUS_END);
    for (uint32_t ordinal = 0; ordinal < 2; ordinal++) {
        cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .device_type = CBD_DEVICE_CUDA, .device_id = ordinal};
        CHECK_STATUS(cbd_declare(stage, "y", &schema, 0, 0, &op, &error), CBD_STATUS_OK);
        CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
        cbd_op_release(op);
        memcpy(&declared, sent.arguments[CBD_OP_DECLARE], sizeof declared);
        CHECK(declared.schema.device_id == 1 - ordinal);
    }
    end();
    hole = UINT32_MAX;
}

/* Rules C1, C2: in place, opened once; DLPack; the caller's context stays. */
static void a_group_on_a_gpu_is_read_in_place(void)
{
    begin();
    const cbd_read_group *group, *again;
    float got[6];
    DLManagedTensorVersioned *v;
    DLManagedTensor *m;
    use_gpu(0);
    CUcontext mine = current();
    cbd_read *read;
    CHECK_STATUS(cbd_write_floor(stage, name, &(uint64_t){0}, &error), CBD_STATUS_OK);
    CHECK(cbd_try_read_attributes(stage, query, &name, 1, &read, NULL) == CBD_STATUS_TIMEOUT && counted(IMPORTS) == 0);
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    CHECK(current() == mine);
    CHECK(group->device_type == CBD_DEVICE_CUDA && group->device_id == 1 && group->contiguous && group->rows == 2 && group->data != NULL);
    gpu_get(1, got, group->data, sizeof got);
    CHECK(memcmp(got, rows, sizeof got) == 0 && count_of(CBD_OP_MIRROR) == 0);
    CHECK_STATUS(read_x(CBD_DEVICE_CUDA, 1, &again), CBD_STATUS_OK);
    CHECK(again->data == group->data && counted(IMPORTS) == 1);
    cbd_release_group(again);

    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error), CBD_STATUS_OK);
    CHECK(v->dl_tensor.device.device_type == kDLCUDA && v->dl_tensor.device.device_id == 1 && v->dl_tensor.data == group->data);
    CHECK(v->dl_tensor.byte_offset == 0 && v->dl_tensor.strides != NULL && v->dl_tensor.strides[0] == 3 && v->flags == CBD_DLPACK_READ_ONLY);
    CHECK_STATUS(cbd_dlpack_export_read(group, 0, 0, &m, &error), CBD_STATUS_NOT_SUPPORTED);
    CHECK_STATUS(cbd_dlpack_export_read(group, 0, CBD_DLPACK_COPY, &m, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("lies on GPU 1: copy it there");
    cbd_tensor t;
    cbd_buffer buffer;
    int64_t shape[CBD_NDIM_MAX];
    CHECK_STATUS(cbd_dlpack_import_versioned(v, &t, &error), CBD_STATUS_OK);
    CHECK(t.device_type == CBD_DEVICE_CUDA && t.device_id == 1 && t.data == group->data);
    CHECK_STATUS(cbd_read_group_tensor(group, 0, shape, &t, &error), CBD_STATUS_OK);
    CHECK(t.device_type == CBD_DEVICE_CUDA && t.device_id == 1);
    CHECK_STATUS(cbd_buffer_of_tensor(&t, 1, &buffer, &error), CBD_STATUS_NOT_SUPPORTED);
    cbd_release_group(group);
    gpu_get(1, got, v->dl_tensor.data, sizeof got); /* the export keeps it */
    CHECK(memcmp(got, rows, sizeof got) == 0);
    v->deleter(v);
    CHECK(fake_pins_held(broker) == 0);
    CHECK_STATUS(cbd_try_read_attributes(stage, query, &name, 1, &read, &error), CBD_STATUS_OK); /* now it need not wait */
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
    CHECK(group->device_id == 1);
    cbd_release_group(group);
    cbd_read_release(read);

    cbd_snapshot *snapshot;
    CHECK_STATUS(cbd_snapshot_open(stage, &snapshot, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_snapshot_read(snapshot, query, &name, 1, &read, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_read_next_in(read, CBD_DEVICE_CUDA, 0, &group, &error), CBD_STATUS_OK); /* to the other one */
    CHECK(group->device_id == 0 && sent.entry[CBD_OP_MIRROR].value == 2 && counted(IMPORTS) == 2);
    cbd_release_group(group);
    cbd_read_release(read);
    cbd_snapshot_release(snapshot);
    end();
}

/* Rule C5: the copy is asked for once for each version, and shared. */
static void a_mirror_is_asked_for_once(void)
{
    begin();
    const cbd_read_group *on_gpu, *first, *second, *third, *back, *same;
    CHECK_STATUS(read_x(0, 0, &on_gpu), CBD_STATUS_OK);
    CHECK_STATUS(cbd_read_group_in(on_gpu, CBD_DEVICE_CPU, 0, &first, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_read_group_in(on_gpu, CBD_DEVICE_CPU, 0, &second, &error), CBD_STATUS_OK);
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &third), CBD_STATUS_OK);
    CHECK(count_of(CBD_OP_MIRROR) == 1 && first->data == second->data && second->data == third->data);
    CHECK(memcmp(first->data, mirrored, sizeof mirrored) == 0 && first->device_type == CBD_DEVICE_CPU && first->device_id == 0);
    CHECK(first->prim_count == 2 && strcmp(first->name, name) == 0 && first->prims[0] == on_gpu->prims[0]);
    CHECK_STATUS(cbd_read_group_in(first, CBD_DEVICE_CUDA, 1, &back, &error), CBD_STATUS_OK); /* where it came from */
    CHECK(back->data == on_gpu->data && back->device_type == CBD_DEVICE_CUDA && count_of(CBD_OP_MIRROR) == 1);
    CHECK_STATUS(cbd_read_group_in(first, 0, 0, &same, &error), CBD_STATUS_OK);
    CHECK(same == first);
    cbd_release_group(same);
    uint64_t ordinals[2];
    CHECK_STATUS(cbd_group_row_ordinals(first, ordinals, &error), CBD_STATUS_OK);
    CHECK(ordinals[0] == 1);
    cbd_release_group(on_gpu); /* each keeps the version by itself */
    cbd_release_group(back);
    cbd_release_group(second);
    cbd_release_group(third);
    CHECK(fake_pins_held(broker) != 0 && memcmp(first->data, mirrored, sizeof mirrored) == 0);
    static const float newer[6] = {20, 21, 22, 23, 24, 25};
    publish(newer, 2);
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &second), CBD_STATUS_OK); /* of another version */
    CHECK(count_of(CBD_OP_MIRROR) == 2 && second->epoch != first->epoch);
    cbd_release_group(first);
    cbd_release_group(second);
    CHECK(fake_pins_held(broker) == 0);
    publish(rows, 3);
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &first), CBD_STATUS_OK); /* the record of a version is used anew: its mirrors are not */
    CHECK(count_of(CBD_OP_MIRROR) == 3);
    cbd_release_group(first);

    const cbd_read_group *none;
    CHECK_STATUS(read_x(CBD_DEVICE_CUDA, 7, &none), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("GPU 7: this process has 2");
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 1, &none), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(read_x(10, 0, &none), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_read_group_in(NULL, 1, 0, &none, &error), CBD_STATUS_INVALID_ARGUMENT);
    static const char *const path = CBD_PATH_NAME;
    cbd_read *read;
    CHECK_STATUS(cbd_read_attributes(stage, query, &path, 1, &read, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_read_next_in(read, CBD_DEVICE_CUDA, 1, &none, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("path ids lie on the host alone");
    CHECK_STATUS(cbd_fetch_read_next_in(read, CBD_DEVICE_CPU, 0, &none, &error), CBD_STATUS_OK);
    cbd_release_group(none);
    cbd_read_release(read);
    fails_opcode = CBD_OP_MIRROR;
    publish(rows, 4);
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &none), CBD_STATUS_OP_FAILED);
    CHECK(fake_pins_held(broker) == 0);
    end();
}

/* Rule C6: closed when retired and not looked at, and the broker is told. */
static void a_retired_arena_is_closed(void)
{
    begin();
    const cbd_read_group *group;
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_RETIRED);
    store32(&broker->directory->retired_count, 1);
    cbd_epoch(stage);
    CHECK(counted(IMPORTS) == 1 && count_of(CBD_OP_ARENA_CLOSED) == 0);
    cbd_release_group(group);
    cbd_epoch(stage);
    CHECK(counted(IMPORTS) == 0);
    while (count_of(CBD_OP_ARENA_CLOSED) == 0)
        usleep(1000);
    CHECK(sent.entry[CBD_OP_ARENA_CLOSED].value == ARENA_0);
    end();
}

/* Rules B4, C6: a program that closes its stage and runs on has told the broker of what it closed; what a group uses is
 * closed with that, and nobody is told. */
static void closing_tells_of_arenas(void)
{
    for (uint32_t used = 0; used < 2; used++) {
        begin();
        const cbd_read_group *group, *other;
        CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
        CHECK_STATUS(read_x(0, 0, &other), CBD_STATUS_OK);
        CHECK(counted(IMPORTS) == 1);
        if (!used)
            cbd_release_group(group);
        cbd_release_group(other);
        cbd_stage_close(stage);
        CHECK(count_of(CBD_OP_ARENA_CLOSED) == 1 - used);
        if (!used)
            CHECK(sent.entry[CBD_OP_ARENA_CLOSED].value == ARENA_0);
        CHECK(counted(IMPORTS) == used);
        if (used) {
            float got[6];
            gpu_get(1, got, group->data, sizeof got);
            CHECK(memcmp(got, rows, sizeof got) == 0);
            cbd_release_group(group);
        }
        end();
    }
}

static cbd_group *map_on_gpu(cbd_session **session, uint64_t ordinal)
{
    cbd_map_options map = {.ordinal = ordinal};
    cbd_group *group;
    CHECK_STATUS(cbd_map_attribute(stage, query, name, &map, session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(*session, &group, &error), CBD_STATUS_OK);
    return group;
}

static cbd_abi_unmap_arguments unmapped(uint32_t opcode)
{
    cbd_abi_unmap_arguments arguments;
    memcpy(&arguments, sent.arguments[opcode], sizeof arguments);
    return arguments;
}

static void wait_for(cbd_op *op, cbd_status wanted)
{
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), wanted);
    cbd_op_release(op);
}

/* Rule C3, behaviour 305: the event is recorded behind what the caller names, and the op says so. */
static void an_unmap_records_the_event(void)
{
    begin();
    cbd_session *session;
    cbd_op *op;
    CUstream stream;
    CUevent event;
    use_gpu(1);
    CUcontext mine = current();
    CUDA("cuStreamCreate", (CUstream *, unsigned), &stream, 1);
    CUDA("cuEventCreate", (CUevent *, unsigned), &event, 2);

    cbd_group *group = map_on_gpu(&session, 5);
    CHECK(group->device_type == CBD_DEVICE_CUDA && group->device_id == 1 && group->rows == 2 && group->row_bytes == 12 && group->schema.device_id == 1);
    cbd_abi_map_arguments asked;
    memcpy(&asked, sent.arguments[CBD_OP_MAP], sizeof asked);
    CHECK(asked.schema.device_type == 0 && asked.staging_type == 0);
    CUDA("cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream), (CUdeviceptr)(uintptr_t)group->data, 7, 24, stream);
    const cbd_cuda_sync on_stream = {.stream = (uint64_t)(uintptr_t)stream};
    CHECK_STATUS(cbd_unmap_attribute_after(session, CBD_FLAG_SEAL, &on_stream, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    cbd_abi_unmap_arguments arguments = unmapped(CBD_OP_UNMAP_ATTRIBUTE);
    CHECK(arguments.event_used == 1 && arguments.event_index == EVENT && arguments.selection.count == CBD_ALL &&
          arguments.selection.sort == CBD_SELECT_ROWS && sent.entry[CBD_OP_UNMAP_ATTRIBUTE].flags == CBD_FLAG_SEAL);
    CHECK(count_of(CBD_OP_UNMAP_GROUP) == 0 && count_of(CBD_OP_UNMAP_ATTRIBUTE) == 1 && current() == mine);
    exporter_event_wait(events[0] - 1);
    uint8_t bytes[24];
    exporter_get(arenas[0] - 1, BLOCK, bytes, sizeof bytes);
    CHECK(bytes[0] == 7 && bytes[23] == 7);
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &on_stream, NULL, &error), CBD_STATUS_INVALID_HANDLE);
    cbd_session_release(session);
    CHECK(broker->aborts == 0 && counted(IMPORTED_EVENTS) == 1); /* it is kept for the next lease */

    group = map_on_gpu(&session, 6);
    CUDA("cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream), (CUdeviceptr)(uintptr_t)group->data, 8, 24, stream);
    CUDA("cuEventRecord", (CUevent, CUstream), event, stream);
    const cbd_cuda_sync after_event = {.wait_event = (uint64_t)(uintptr_t)event};
    CHECK_STATUS(cbd_unmap_group_after(group, 0, &after_event, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    CHECK(unmapped(CBD_OP_UNMAP_GROUP).event_used == 1);
    exporter_event_wait(events[0] - 1);
    exporter_get(arenas[0] - 1, BLOCK, bytes, sizeof bytes);
    CHECK(bytes[0] == 8);
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &on_stream, &op, &error), CBD_STATUS_OK); /* nothing is left to record for */
    wait_for(op, CBD_STATUS_OK);
    cbd_session_release(session);

    map_on_gpu(&session, 7);
    const cbd_cuda_sync nothing = {0};
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &nothing, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    CHECK(sent.entry[CBD_OP_UNMAP_ATTRIBUTE].argument_bytes == 0);
    cbd_session_release(session);

    uint32_t ends = count_of(CBD_OP_UNMAP_ATTRIBUTE);
    map_on_gpu(&session, 8);
    fails_opcode = CBD_OP_UNMAP_ATTRIBUTE;
    const cbd_cuda_sync legacy = {.stream = 1};
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &legacy, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OP_FAILED);
    cbd_session_release(session);
    CHECK(count_of(CBD_OP_UNMAP_ATTRIBUTE) == ends + 1); /* the session has ended with it */

    group = map_on_gpu(&session, 9);
    const cbd_cuda_sync wrong = {.stream = 0x1234560};
    CHECK_STATUS(cbd_unmap_group_after(group, 0, &wrong, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("cuEventRecord: CUDA_ERROR");
    const cbd_cuda_sync wrong_event = {.wait_event = 0x1234560};
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &wrong_event, &op, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("cuStreamWaitEvent");
    CHECK(current() == mine);
    DLManagedTensorVersioned *v;
    CHECK_STATUS(cbd_dlpack_export_map_versioned(group, 0, 0, &v, &error), CBD_STATUS_OK); /* nothing was handed back */
    CHECK(v->dl_tensor.device.device_type == kDLCUDA && v->dl_tensor.device.device_id == 1 && v->dl_tensor.data == group->data);
    const cbd_cuda_sync per_thread = {.stream = 2};
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &per_thread, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    CHECK(sent.entry[CBD_OP_UNMAP_ATTRIBUTE].flags & CBD_FLAG_COPY); /* the export is alive */
    cbd_session_release(session);
    v->deleter(v);
    CUDA("cuStreamDestroy_v2", (CUstream), stream);
    CUDA("cuEventDestroy_v2", (CUevent), event);
    end();
}

/* Behaviours 302 to 304: through staging on the tensor's GPU, wherever the attribute lies. */
static void a_tensor_on_a_gpu_is_written(void)
{
    begin();
    float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, got[6];
    uint8_t *tensor_data = gpu_alloc(1, data, sizeof data);
    uint8_t *elsewhere = gpu_alloc(0, data, sizeof data);
    int64_t shape[2] = {2, 3}, strides[2] = {6, 2};
    cbd_tensor t = {.data = tensor_data, .ndim = 2, .shape = shape, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1,
                    .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    cbd_abi_map_arguments asked;
    cbd_op *op;
    o.ordinal = 5;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    memcpy(&asked, sent.arguments[CBD_OP_MAP], sizeof asked);
    CHECK(asked.schema.device_type == 0 && asked.staging_type == CBD_DEVICE_CUDA && asked.staging_id == 0);
    exporter_get(arenas[0] - 1, BLOCK, got, sizeof got); /* without a stream it is there when the call returns */
    CHECK(memcmp(got, data, sizeof got) == 0 && count_of(CBD_OP_UNMAP_GROUP) == 0 && count_of(CBD_OP_WRITE) == 0);

    CUstream stream;
    use_gpu(1);
    CUcontext mine = current();
    CUDA("cuStreamCreate", (CUstream *, unsigned), &stream, 1);
    o.sync.stream = (uint64_t)(uintptr_t)stream;
    t.strides = strides; /* columns 0, 2, 4 of rows of 6 */
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    CHECK(unmapped(CBD_OP_UNMAP_ATTRIBUTE).event_used == 1 && unmapped(CBD_OP_UNMAP_ATTRIBUTE).event_index == EVENT && current() == mine);
    exporter_event_wait(events[0] - 1);
    exporter_get(arenas[0] - 1, BLOCK, got, sizeof got);
    CHECK(got[0] == 0 && got[1] == 2 && got[2] == 4 && got[3] == 6 && got[5] == 10);

    static const uint32_t index_map[2] = {3, 1};
    int64_t four[2] = {4, 3};
    t.shape = four;
    t.strides = NULL;
    o.index_map = index_map;
    o.index_map_count = o.count = 2;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    exporter_event_wait(events[0] - 1);
    exporter_get(arenas[0] - 1, BLOCK, got, sizeof got);
    CHECK(got[0] == 9 && got[3] == 3);
    o.index_map = NULL;
    t.shape = shape;
    uint64_t mask = 2;
    o.mask = &mask;
    o.mask_words = 1;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    cbd_abi_unmap_arguments part = unmapped(CBD_OP_UNMAP_ATTRIBUTE);
    CHECK(part.selection.sort == CBD_SELECT_MASK && part.selection.count == 2 && part.event_used == 1);
    o.mask = NULL;
    o.count = CBD_ALL;

    o.device_type = CBD_DEVICE_CUDA; /* a new attribute on our GPU 1 */
    o.device_id = 1;
    CHECK_STATUS(cbd_write_attribute(stage, query, "new", &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    memcpy(&asked, sent.arguments[CBD_OP_MAP], sizeof asked);
    CHECK(asked.schema.device_type == CBD_DEVICE_CUDA && asked.schema.device_id == 0);
    memset(&asked, 0, sizeof asked);
    CHECK_STATUS(cbd_publish(stage, "image", &t, 0, &op, &error), CBD_STATUS_OK); /* it lies where its tensor does */
    wait_for(op, CBD_STATUS_OK);
    memcpy(&asked, sent.arguments[CBD_OP_MAP], sizeof asked);
    CHECK(asked.schema.device_type == CBD_DEVICE_CUDA && asked.schema.device_id == 0 && asked.staging_id == 0);
    CHECK((sent.entry[CBD_OP_UNMAP_ATTRIBUTE].flags & (CBD_FLAG_SEAL | CBD_FLAG_NEXT_ORDINAL)) == (CBD_FLAG_SEAL | CBD_FLAG_NEXT_ORDINAL));
    int64_t none[2] = {0, 3};
    cbd_query *empty;
    CHECK_STATUS(cbd_query_from_path_list(stage, NULL, NULL, 0, &empty, &error), CBD_STATUS_OK);
    o.device_type = 0, o.device_id = 0;
    t.shape = none;
    CHECK_STATUS(cbd_write_attribute(stage, empty, "new", &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    cbd_query_release(empty);
    t.shape = shape;

    uint32_t before = count_of(CBD_OP_MAP);
#define BAD(change, wanted, text)                                                                                   \
    do {                                                                                                            \
        cbd_tensor t_ = t;                                                                                          \
        cbd_write_options o_ = o;                                                                                   \
        change;                                                                                                     \
        CHECK_STATUS(cbd_write_attribute(stage, query, name, &t_, &o_, &op, &error), CBD_STATUS_##wanted);          \
        SAYS(text);                                                                                                 \
        CHECK(op == NULL);                                                                                          \
    } while (0)
    BAD(t_.device_id = 2, INVALID_ARGUMENT, "GPU 2: this process has 2"); /* behaviour 230 */
    BAD(t_.device_id = 0, INVALID_ARGUMENT, "is said to lie on GPU 0 (device type 2), but at"); /* field report G18 */
    BAD(t_.data = elsewhere, INVALID_ARGUMENT, "is memory of GPU 0");
    BAD(t_.data = data, INVALID_ARGUMENT, "is it memory of the host?");
    int64_t long_shape[2] = {2, EXPORTED_ARENA_BYTES / 8 + 1}, far[2] = {EXPORTED_ARENA_BYTES / 4, 1}, before_it[2] = {-1, 1};
    BAD(t_.shape = long_shape, INVALID_ARGUMENT, "to have 2097160 bytes at"); /* an allocation of the emulation has 2 MiB */
    SAYS("on GPU 1, but at most 2097152 of them lie in memory of that GPU");
    BAD(t_.strides = far, INVALID_ARGUMENT, "to have 2097164 bytes at");
    BAD((t_.data = tensor_data + 2097152 - 20), INVALID_ARGUMENT, "but at most 20 of them");
    BAD(t_.strides = before_it, INVALID_ARGUMENT, "the driver knows nothing at");
    BAD(t_.data = NULL, INVALID_ARGUMENT, "no data");
    BAD(t_.code = CBD_DTYPE_INT, INVALID_ARGUMENT, "int32");
    BAD((o_.device_type = CBD_DEVICE_CUDA, o_.device_id = 0), INVALID_ARGUMENT, "lies on (2, 0)");
    BAD(o_.device_type = CBD_DEVICE_CPU, INVALID_ARGUMENT, "name none to write where it lies");
    BAD((o_.is_array = 1, o_.tensor_count = 0), NOT_SUPPORTED, "rows of array kind lie on the host");
    CHECK(count_of(CBD_OP_MAP) == before);
    BAD(o_.sync.wait_event = 0x1234560, INVALID_ARGUMENT, "cuStreamWaitEvent"); /* nothing of it stays */
    cbd_write_entry entry = {name, &t, NULL};
    CHECK_STATUS(cbd_write_attributes(stage, query, &entry, 1, 5, 0, NULL, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("is written alone");
    t.device_type = CBD_DEVICE_CUDA_MANAGED; /* the emulation has none, but what is the device's is */
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);

    end(); /* what is queued is waited for there: this broker did not */
    served = 1; /* a broker that serves the other one only */
    begin();
    t.data = elsewhere;
    t.device_type = CBD_DEVICE_CUDA;
    t.device_id = 0;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("the tensor names GPU 0, GPU-");
    served = 2;
    use_gpu(1);
    CUDA("cuStreamSynchronize", (CUstream), stream);
    CUDA("cuStreamDestroy_v2", (CUstream), stream);
    gpu_free(1, tensor_data);
    gpu_free(0, elsewhere);
    end();
}

/* A tensor of too many pieces is refused before anything is copied; one that lies together is one piece. */
static void pieces_are_counted(void)
{
    enum { N = 5000 };
    begin();
    static uint8_t zeros[3 * N * 4];
    uint8_t *data = gpu_alloc(1, zeros, sizeof zeros);
    int64_t shape[3] = {2, N / 2, 3}, strides[3] = {N / 2 * 3 + 3, 3, 1}, apart[3] = {1, 2, N};
    uint64_t row_shape = N / 2;
    cbd_tensor t = {.data = data, .ndim = 3, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1,
                    .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    o.ordinal = 5;
    o.row_ndim = 1;
    o.row_shape[0] = row_shape;
    cbd_op *op;
    shape[0] = 2;
    strides[0] = N / 2 * 3;
    CHECK_STATUS(cbd_write_attribute(stage, query, "wide", &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    t.strides = apart;
    CHECK_STATUS(cbd_write_attribute(stage, query, "wide", &t, &o, &op, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("in more than 4096 pieces: make it contiguous");
    CHECK(broker->aborts == 0 || broker->aborts == 1);
    gpu_free(1, data);
    end();
}

/* Rule B3: what a dead broker had exported is closed, and nothing of it is taken for the next one's. */
static void a_restart_makes_imports_void(void)
{
    begin();
    const cbd_read_group *group;
    cbd_session *session;
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    map_on_gpu(&session, 5);
    CHECK(counted(IMPORTS) == 1 && counted(IMPORTED_EVENTS) == 1);
    fake_die(broker);
    uint32_t old_arena = arenas[0], old_event = events[0];
    broker->directory->started_ns = ++life;
    arenas[0] = events[0] = 0;
    fake_rise(broker);
    while (!cbd_stage_is_alive(stage) || atomic_load(&stage->reattach.link) != 0)
        usleep(1000);
    const cbd_cuda_sync legacy = {.stream = 1};
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error), CBD_STATUS_BROKER_RESTARTED);
    cbd_session_release(session);
    int64_t shape[] = {2, 3};
    cbd_tensor of_before = {.data = (void *)(uintptr_t)group->data, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .ndim = 2, .shape = shape,
                            .device_type = CBD_DEVICE_CUDA, .device_id = group->device_id};
    CHECK_STATUS(cbd_publish(stage, "z", &of_before, CBD_SEMANTIC_NONE, NULL, &error), CBD_STATUS_BROKER_RESTARTED);
    SAYS("the tensor lay in device memory of the time before");
    cbd_release_group(group);
    cbd_epoch(stage);
    CHECK(counted(IMPORTS) == 0 && count_of(CBD_OP_ARENA_CLOSED) == 0);
    publish(rows, 7);
    store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_LIVE);
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    CHECK(counted(IMPORTS) == 1);
    float got[6];
    gpu_get(1, got, group->data, sizeof got);
    CHECK(memcmp(got, rows, sizeof got) == 0);
    cbd_release_group(group);
    map_on_gpu(&session, 8);
    CHECK(counted(IMPORTED_EVENTS) == 1); /* the old one went as the new one came */
    cbd_session_release(session);
    exporter_free(old_arena - 1);
    exporter_destroy(old_event - 1);
    end();
}

/* CUDA cannot be used after a fork: giving back touches no driver, and the rest says so. */
static void a_child_has_no_driver(void)
{
    begin();
    const cbd_read_group *group;
    cbd_session *session;
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    map_on_gpu(&session, 5);
    pid_t child = fork();
    if (child == 0) {
        uint32_t count;
        CHECK_STATUS(cbd_cuda_device_count(&count, &error), CBD_STATUS_NOT_SUPPORTED);
        SAYS("forked from one that had loaded the driver");
        cbd_release_group(group);
        cbd_session_release(session);
        cbd_query_release(query);
        cbd_stage_release(stage);
        fake_child_ends();
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    CHECK(counted(IMPORTS) == 1);
    cbd_release_group(group);
    cbd_session_release(session);
    end();
}

/* What a broker says that cannot be is refused by name, and costs nothing. */
static void a_broker_that_lies_is_refused(void)
{
    begin();
    const cbd_read_group *group;
    cbd_abi_version_slot *slot = NULL;
    for (uint32_t i = 0; i < 4; i++)
        if (fake_slot(broker, column, i)->death == CBD_INFINITE && fake_slot(broker, column, i)->birth != CBD_INFINITE)
            slot = fake_slot(broker, column, i);
    const cbd_abi_version_slot good = *slot;
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &group), CBD_STATUS_OK); /* segment 3 is memory of the host, and mapped */
    cbd_release_group(group);
#define LIE(change, wanted, text)                                            \
    do {                                                                     \
        change;                                                              \
        CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_##wanted);             \
        SAYS(text);                                                          \
        CHECK(fake_pins_held(broker) == 0);                                  \
        *slot = good;                                                        \
    } while (0)
    LIE(slot->block.segment = 0, INTERNAL, "segment id 0");
    LIE(slot->block.segment = UINT64_C(1) << 40, INTERNAL, "segment id");
    LIE(slot->block.segment = 9, INTERNAL, "refused arena 9");
    LIE(slot->block.segment = 3, INTERNAL, "segment 3, which is memory of the host");
    LIE(slot->device_number = 2, INTERNAL, "device number 2, generation");
    LIE(slot->arena_generation = 1, INTERNAL, "generation 1: known is device number 1");
    LIE((slot->block.segment = 9, slot->device_number = 9), INTERNAL, "names its GPU 8, it has 2");
    LIE(slot->block.segment = ARENA_1, INTERNAL, "is on the broker's GPU 1, it was said to be on 0");
    LIE((slot->block.segment = ARENA_1, slot->device_number = 2, slot->arena_generation = 1), BROKER_RESTARTED, "of the time before, which is gone");
    LIE(slot->block.offset_bytes = EXPORTED_ARENA_BYTES, INTERNAL, "of arena 5, which has 2097152");
    LIE(slot->block.length_bytes = 8, INTERNAL, "rows of 12 bytes in a block of 8");
    LIE(slot->device_number = 0, INTERNAL, "device memory: expected memory of the host");
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    cbd_release_group(group);
    end();
}

/* ---- allocations that fail ----------------------------------------------------------------- */

static _Thread_local long fails_at;

static bool fails(void) { return fails_at > 0 && --fails_at == 0; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
int __real_posix_memalign(void **at, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
int __wrap_posix_memalign(void **at, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return fails() ? NULL : __real_calloc(n, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return fails() ? NULL : __real_realloc(old, bytes); }
int __wrap_posix_memalign(void **at, size_t alignment, size_t bytes)
{
    return fails() ? ENOMEM : __real_posix_memalign(at, alignment, bytes);
}

static cbd_status everything(const uint8_t *data)
{
    const cbd_read_group *group = NULL, *other = NULL;
    cbd_session *session = NULL;
    DLManagedTensorVersioned *v = NULL;
    cbd_map_options map = {.ordinal = 5};
    const cbd_cuda_sync legacy = {.stream = 1};
    int64_t shape[2] = {2, 3}, strides[2] = {6, 2};
    cbd_tensor t = {.data = data, .ndim = 2, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1,
                    .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    o.ordinal = 5;
    cbd_status status = read_x(0, 0, &group);
    if (status == CBD_STATUS_OK)
        status = cbd_read_group_in(group, CBD_DEVICE_CPU, 0, &other, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_map_attribute(stage, query, name, &map, &session, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_write_attribute(stage, query, name, &t, &o, NULL, &error);
    if (v != NULL)
        v->deleter(v);
    cbd_release_group(other);
    cbd_release_group(group);
    cbd_session_release(session);
    return status;
}

static void an_allocation_that_fails_costs_its_call_alone(void)
{
    float data[12] = {0};
    uint8_t *at = gpu_alloc(1, data, sizeof data);
    int failed = 0;
    for (long n = 1;; n++) {
        begin();
        fails_at = n;
        cbd_status status = everything(at);
        bool reached = fails_at <= 0;
        fails_at = 0;
        if (status != CBD_STATUS_OK)
            CHECK_STATUS(status, CBD_STATUS_OUT_OF_MEMORY);
        failed += status != CBD_STATUS_OK;
        CHECK(fake_pins_held(broker) == 0);
        CHECK_STATUS(everything(at), CBD_STATUS_OK);
        end();
        if (!reached)
            break;
    }
    printf("  %d calls failed\n", failed);
    CHECK(failed >= 10);
    gpu_free(1, at);
}

/* ---- what the driver refuses, in processes of their own ------------------------------------------ */

static void opening_fails(void)
{
    begin();
    cbd_read *read;
    const cbd_read_group *group;
    CHECK_STATUS(cbd_read_attributes(stage, query, &name, 1, &read, &error), CBD_STATUS_OK); /* the first open fails: no matter */
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OP_FAILED);           /* and the second */
    SAYS("CUDA_ERROR_INVALID_CONTEXT (201)");
    SAYS("share a PID namespace");
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK); /* behaviour 306 */
    cbd_release_group(group);
    cbd_read_release(read);
    end();
}

static void copying_fails(void)
{
    begin();
    float data[12] = {0};
    uint8_t *at = gpu_alloc(1, data, sizeof data);
    int64_t shape[2] = {2, 3}, strides[2] = {6, 2};
    cbd_tensor t = {.data = at, .ndim = 2, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1,
                    .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    o.ordinal = 5;
    o.sync.stream = 1;
    cbd_op *op;
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OUT_OF_MEMORY);
    SAYS("cuMemcpyDtoDAsync");
    cbd_op *barrier; /* aborted by then */
    CHECK_STATUS(cbd_advance_write_floor(stage, 1, CBD_SCOPE_INCLUDE, &name, 1, 0, &barrier, &error), CBD_STATUS_OK);
    wait_for(barrier, CBD_STATUS_OK);
    CHECK(atomic_load(&broker->aborts) == 1);
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OUT_OF_MEMORY);
    SAYS("cuEventRecord");
    CHECK_STATUS(cbd_write_attribute(stage, query, name, &t, &o, &op, &error), CBD_STATUS_OK);
    wait_for(op, CBD_STATUS_OK);
    exporter_event_wait(events[0] - 1);
    gpu_free(1, at);
    end();
}

/* Rule V8: what a stream reads keeps its bytes until it has read them. */
static void a_group_is_released_behind_a_stream(void)
{
    begin();
    const cbd_read_group *group, *on_host;
    CUstream stream;
    float got[6];
    const float none[6] = {0};
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &on_host), CBD_STATUS_OK);
    uint8_t *to = gpu_alloc(1, none, sizeof none);
    CUcontext mine = current();
    CUDA("cuStreamCreate", (CUstream *, unsigned), &stream, 1);
    CUDA("cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream), (CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)group->data,
         sizeof rows, stream);
    CHECK_STATUS(cbd_cuda_release_group(group, 0, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_cuda_release_group(NULL, 1, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_cuda_release_group(group, 0x1234560, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("cuStreamSynchronize: CUDA_ERROR");
    CHECK_STATUS(cbd_cuda_release_group(on_host, 1, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("\"x\" lies on the host");
    cbd_release_group(on_host);
    CHECK(fake_pins_held(broker) == 1);
    CHECK_STATUS(cbd_cuda_release_group(group, (uint64_t)(uintptr_t)stream, &error), CBD_STATUS_OK);
    CHECK(fake_pins_held(broker) == 0 && current() == mine);
    exporter_put(arenas[0] - 1, 8192, none, sizeof none); /* another version, in its place */
    gpu_get(1, got, to, sizeof got);
    CHECK(memcmp(got, rows, sizeof got) == 0);
    use_gpu(1);
    CUDA("cuStreamDestroy_v2", (CUstream), stream);
    gpu_free(1, to);
    end();
}

/* However many calls there are, and nothing open in between: one context for the stage, and it goes with that. Any further
 * one would fail here; the first is the program's own. */
static void a_context_is_made_once(void)
{
    begin();
    float data[6] = {0};
    uint8_t *at = gpu_alloc(1, data, sizeof data);
    int64_t shape[2] = {2, 3};
    cbd_tensor t = {.data = at, .ndim = 2, .shape = shape, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    const cbd_read_group *group;
    uint32_t device;
    o.ordinal = 5;
    for (int i = 0; i < 2; i++) {
        cbd_op *op;
        CHECK_STATUS(cbd_write_attribute(stage, query, "new", &t, &o, &op, &error), CBD_STATUS_OK); /* which lies on the host */
        wait_for(op, CBD_STATUS_OK);
        CHECK_STATUS(cbd_cuda_device_of(at, &device, &error), CBD_STATUS_OK);
        CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
        cbd_release_group(group);
        store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_RETIRED);
        store32(&broker->directory->retired_count, broker->directory->retired_count + 1);
        cbd_epoch(stage);
        store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_LIVE);
        CHECK(counted(CONTEXTS) == 1 && counted(IMPORTS) == 0);
    }
    gpu_free(1, at);
    CUdevice own;
    CUDA("cuDeviceGet", (CUdevice *, int), &own, 1);
    CUDA("cuDevicePrimaryCtxRelease_v2", (CUdevice), own);
    contexts[1] = NULL;
    CHECK(counted(CONTEXTS) == 1); /* the stage has it */
    end();
}

static void there_is_no_gpu(void)
{
    begin();
    uint32_t count;
    const cbd_read_group *group;
    cbd_schema schema;
    CHECK_STATUS(cbd_cuda_device_count(&count, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("this process sees no GPU");
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_NOT_SUPPORTED);
    SAYS("this process sees no GPU");
    CHECK_STATUS(read_x(CBD_DEVICE_CPU, 0, &group), CBD_STATUS_OK);
    cbd_release_group(group);
    CHECK_STATUS(cbd_attribute_schema(stage, name, &schema, &error), CBD_STATUS_OK);
    CHECK(schema.device_id == 0); /* the broker's number */
    end();
}

/* Rule B4: closing waits for what was handed over, though nobody waited for its op, and tells the broker what it closed. */
static void closing_waits_for_what_is_queued(void)
{
    begin();
    cbd_session *session;
    const cbd_cuda_sync legacy = {.stream = 1};
    map_on_gpu(&session, 5);
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    cbd_query_release(query);
    query = NULL;
    cbd_stage_close(stage);
    CHECK(count_of(CBD_OP_ARENA_CLOSED) == 1 && counted(IMPORTS) == 0);
    end();
}

/* And not for ever, whatever a broker's answer may take: what goes on keeps what it fills. */
static void closing_waits_no_longer(void)
{
    connecting.timeout_ns = UINT64_C(3600000000000);
    begin();
    cbd_session *session;
    const cbd_cuda_sync legacy = {.stream = 1};
    map_on_gpu(&session, 5);
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(broker);
    CHECK(count_of(CBD_OP_ARENA_CLOSED) == 0 && counted(IMPORTS) == 1 && counted(IMPORTED_EVENTS) == 1);
}

/* This process sees the broker's GPU 1 alone. */
static void the_gpu_is_hidden(void)
{
    begin();
    cbd_device_info info;
    cbd_schema schema;
    const cbd_read_group *group;
    CHECK_STATUS(cbd_device_at(stage, 0, &info, &error), CBD_STATUS_OK);
    CHECK(info.device_id == CBD_DEVICE_ELSEWHERE);
    CHECK_STATUS(cbd_attribute_schema(stage, name, &schema, &error), CBD_STATUS_OK);
    CHECK(schema.device_id == CBD_DEVICE_ELSEWHERE);
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_NOT_SUPPORTED);
    SAYS("which this process does not see (CUDA_VISIBLE_DEVICES)");
    CHECK_STATUS(read_x(CBD_DEVICE_CUDA, 0, &group), CBD_STATUS_OK); /* a copy on the one that it sees */
    CHECK(group->device_id == 0);
    cbd_release_group(group);
    end();
}

static const struct {
    const char *name;
    void (*run)(void);
    const char *setting, *value;
} alone[] = {
    {"opening_fails", opening_fails, "CUDAEMU_FAIL", "cuIpcOpenMemHandle:1:201;cuIpcOpenMemHandle:2:201"},
    {"copying_fails", copying_fails, "CUDAEMU_FAIL", "cuMemcpyDtoDAsync:2:2;cuEventRecord:1:2"},
    {"closing_waits_for_what_is_queued", closing_waits_for_what_is_queued, "CUDAEMU_DELAY_US", "50000"},
    {"a_group_is_released_behind_a_stream", a_group_is_released_behind_a_stream, "CUDAEMU_DELAY_US", "50000"},
    {"closing_waits_no_longer", closing_waits_no_longer, "CUDAEMU_STALL_EVENTS", "1"},
    {"a_context_is_made_once", a_context_is_made_once, "CUDAEMU_FAIL", "cuDevicePrimaryCtxRetain:3:2"},
    {"there_is_no_gpu", there_is_no_gpu, "CUDAEMU_NO_DEVICE", "1"},
    {"the_gpu_is_hidden", the_gpu_is_hidden, "CUDA_VISIBLE_DEVICES", "1"},
};

/* Runs this program once more for one test, with a setting that the driver reads as it is loaded. */
static void run_alone(const char *program, size_t i)
{
    pid_t child = fork();
    if (child == 0) {
        setenv(alone[i].setting, alone[i].value, 1);
        execl(program, program, alone[i].name, (char *)NULL);
        _exit(127);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static char dir[] = "/tmp/cbd-cudaemu-XXXXXX";

static void clean(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
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
    if (argc == 2) {
        CHECK_STATUS(cbd_cuda_enable(&error), CBD_STATUS_OK);
        for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
            if (strcmp(alone[i].name, argv[1]) == 0) {
                alone[i].run();
                printf("ok %s\n", alone[i].name);
            }
        exporter_stop();
        return 0;
    }
    RUN(without_the_library_there_is_the_host);
    RUN(a_driver_that_is_not_there_is_looked_for_again);
    RUN(streams_and_copies_of_our_own);
    RUN(numbers_are_those_of_the_process);
    RUN(a_device_that_is_not_served_keeps_its_number);
    RUN(a_group_on_a_gpu_is_read_in_place);
    RUN(a_mirror_is_asked_for_once);
    RUN(a_retired_arena_is_closed);
    RUN(closing_tells_of_arenas);
    RUN(an_unmap_records_the_event);
    RUN(a_tensor_on_a_gpu_is_written);
    RUN(pieces_are_counted);
    RUN(a_restart_makes_imports_void);
    RUN(a_child_has_no_driver);
    RUN(a_broker_that_lies_is_refused);
    RUN(an_allocation_that_fails_costs_its_call_alone);
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        run_alone(argv[0], i);
    exporter_stop();
    clean();
    return 0;
}
