/* Filling device memory, and writing what lies there: rule C3, and behaviours 230, 302 to 305. */
#include "cuda_scene.h"

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

/* ---- in processes of their own ------------------------------------------------------------- */

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

static void together(void)
{
    CHECK_STATUS(cbd_cuda_enable(&error), CBD_STATUS_OK);
    RUN(an_unmap_records_the_event);
    RUN(a_tensor_on_a_gpu_is_written);
    RUN(pieces_are_counted);
}

static const struct alone alone[] = {
    ALONE(copying_fails, "CUDAEMU_FAIL", "cuMemcpyDtoDAsync:2:2;cuEventRecord:1:2"),
};

int main(int argc, char **argv) { return cuda_tests(argc, argv, together, alone, sizeof alone / sizeof alone[0]); }
