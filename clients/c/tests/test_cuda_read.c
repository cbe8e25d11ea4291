/* Looking at device memory, and at what there is of it: rules C1, C2, C5, V8, and behaviours 230, 283, 306, 307. */
#include "cuda_scene.h"

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

/* ---- in processes of their own ------------------------------------------------------------- */

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

static void together(void)
{
    RUN(without_the_library_there_is_the_host);
    RUN(a_driver_that_is_not_there_is_looked_for_again);
    RUN(streams_and_copies_of_our_own);
    RUN(numbers_are_those_of_the_process);
    RUN(a_device_that_is_not_served_keeps_its_number);
    RUN(a_group_on_a_gpu_is_read_in_place);
    RUN(a_mirror_is_asked_for_once);
    RUN(a_broker_that_lies_is_refused);
}

static const struct alone alone[] = {
    ALONE(opening_fails, "CUDAEMU_FAIL", "cuIpcOpenMemHandle:1:201;cuIpcOpenMemHandle:2:201"),
    ALONE(a_group_is_released_behind_a_stream, "CUDAEMU_DELAY_US", "50000"),
    ALONE(there_is_no_gpu, "CUDAEMU_NO_DEVICE", "1"),
    ALONE(the_gpu_is_hidden, "CUDA_VISIBLE_DEVICES", "1"),
};

int main(int argc, char **argv) { return cuda_tests(argc, argv, together, alone, sizeof alone / sizeof alone[0]); }
