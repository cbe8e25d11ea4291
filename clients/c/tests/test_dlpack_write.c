/* Tensors of other libraries are written (behaviour 291, 292, 295, 297, 298). The broker is a fake, which keeps what arrives. */
#include "standin_dlpack.h"

#include "callboard_dlpack.h"
#include "scene.h"

#include <sys/mman.h>
#include <unistd.h>

static cbd_error error;

static bool keep(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    (void)c;
    if (e->opcode == CBD_OP_WRITE)
        arrived(f, e);
    return true;
}

static void deleted(DLManagedTensorVersioned *self) { ++*(int *)self->manager_ctx; }

static void deleted_legacy(DLManagedTensor *self) { ++*(int *)self->manager_ctx; }

static DLManagedTensorVersioned produced(void *data, DLDataType dtype, int32_t ndim, int64_t *shape, int *deletes)
{
    return (DLManagedTensorVersioned){.version = {1, 0}, .manager_ctx = deletes, .deleter = deleted,
                                      .dl_tensor = {data, {kDLCPU, 0}, ndim, dtype, shape, NULL, 0}};
}

static const DLDataType float32 = {kDLFloat, 32, 1};

static cbd_op *submit(struct scene *s, const cbd_tensor *tensor, uint32_t is_array)
{
    cbd_op *op;
    cbd_write_options options = cbd_write_options_default();
    options.ordinal = 1;
    options.is_array = is_array;
    CHECK_STATUS(cbd_write_attribute(s->stage, s->query, "x", tensor, &options, &op, &error), CBD_STATUS_OK);
    return op;
}

/* What arrived has these lanes, and this payload. */
static cbd_abi_write_entry arrives(cbd_op *op, uint16_t lanes, const void *wanted, size_t bytes)
{
    cbd_abi_write_entry entry;
    CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
    cbd_op_release(op);
    memcpy(&entry, sent.arguments + sizeof(cbd_abi_write_arguments), sizeof entry);
    CHECK(entry.schema.dtype_lanes == lanes && entry.payload.segment == 0 && entry.payload.length_bytes == bytes);
    CHECK(memcmp(sent.arguments + entry.payload.offset_bytes, wanted, bytes) == 0);
    return entry;
}

/* Behaviour 291: both forms, of any strides; the producer's memory may change and go as soon as the call returns. */
static void what_a_producer_has_is_copied_before_the_call_returns(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    int64_t shape[2] = {2, 3}, transposed[2] = {1, 2};
    for (int form = 0; form < 3; form++) {
        float data[6] = {0, 1, 2, 3, 4, 5};
        int deletes = 0;
        cbd_tensor borrowed, *copy = NULL;
        DLManagedTensorVersioned v = produced(data, float32, 2, shape, &deletes);
        DLManagedTensor m = {.dl_tensor = v.dl_tensor, .manager_ctx = &deletes, .deleter = deleted_legacy};
        if (form == 0)
            CHECK_STATUS(cbd_dlpack_import_versioned(&v, &borrowed, &error), CBD_STATUS_OK);
        else if (form == 1)
            CHECK_STATUS(cbd_dlpack_import(&m, &borrowed, &error), CBD_STATUS_OK);
        else {
            v.dl_tensor.strides = transposed;
            CHECK_STATUS(cbd_dlpack_import_copy_versioned(&v, &copy, &error), CBD_STATUS_OK);
        }
        cbd_op *op = submit(&s, copy != NULL ? copy : &borrowed, 0);
        memset(data, 0xee, sizeof data);
        if (form == 1)
            m.deleter(&m);
        else
            v.deleter(&v);
        cbd_tensor_free(copy);
        CHECK(deletes == 1);
        arrives(op, 3, form < 2 ? (float[]){0, 1, 2, 3, 4, 5} : (float[]){0, 2, 4, 1, 3, 5}, sizeof data);
    }
    scene_end(&s);
}

/* Behaviour 292: in C a type is said by the description, and its pointer stays the producer's. */
static void trailing_axes_are_described_as_lanes(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct {
        int32_t ndim;
        int64_t shape[3];
        uint16_t lanes;
    } cases[] = {{2, {2, 3}, 3}, {2, {2, 4}, 4}, {3, {2, 2, 2}, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cbd_tensor t;
        const DLManagedTensorVersioned v = produced(data, float32, cases[i].ndim, cases[i].shape, NULL);
        CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
        t.ndim = 1;
        t.lanes = cases[i].lanes;
        CHECK(t.data == data && t.shape[0] == 2);
        cbd_abi_write_entry entry = arrives(submit(&s, &t, 0), cases[i].lanes, data, 2u * cases[i].lanes * sizeof *data);
        CHECK(entry.payload_rows == 2 && entry.schema.dtype_code == CBD_DTYPE_FLOAT && entry.schema.dtype_bits == 32 && entry.schema.row_dimensions == 0);
        DLManagedTensorVersioned *back; /* a description goes out as it is */
        int64_t rows = 2;
        t.shape = &rows;
        CHECK_STATUS(cbd_dlpack_export_versioned(&t, 0, NULL, NULL, &back, &error), CBD_STATUS_OK);
        CHECK(back->dl_tensor.data == data && back->dl_tensor.ndim == 1 && back->dl_tensor.dtype.lanes == cases[i].lanes);
        back->deleter(back);
    }
    scene_end(&s);
}

/* Behaviour 295: (4, 3) without such a description is 12 numbers of an array attribute. */
static void nothing_is_folded_into_an_array_attribute(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int64_t shape[2] = {4, 3};
    cbd_tensor t;
    const DLManagedTensorVersioned v = produced(data, float32, 2, shape, NULL);
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
    cbd_abi_write_entry entry = arrives(submit(&s, &t, 1), 1, data, sizeof data);
    uint64_t sizes[2];
    CHECK(entry.schema.kind == CBD_KIND_ARRAY && entry.element_sizes_count == 2);
    memcpy(sizes, sent.arguments + entry.element_sizes_offset_bytes, sizeof sizes);
    CHECK(sizes[0] == 6 && sizes[1] == 6);
    scene_end(&s);
}

/* Behaviour 297. */
static void lanes_255_and_no_more(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    uint8_t data[512];
    int64_t shape[1] = {2};
    cbd_tensor t;
    for (int i = 0; i < 512; i++)
        data[i] = (uint8_t)i;
    DLManagedTensorVersioned v = produced(data, (DLDataType){kDLUInt, 8, 255}, 1, shape, NULL);
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
    CHECK(t.data == data && t.lanes == 255);
    CHECK(arrives(submit(&s, &t, 0), 255, data, 510).payload_rows == 2);
    v.dl_tensor.dtype.lanes = 256;
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "lanes is 256: expected 1 to 255") != NULL);
    scene_end(&s);
}

/* Behaviour 298: of memory that the processor lets nobody write to. */
static void a_read_only_producer_is_written_from(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int64_t shape[1] = {2};
    cbd_tensor t;
    float *data = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    data[0] = 3, data[1] = 4;
    CHECK(mprotect(data, page, PROT_READ) == 0);
    DLManagedTensorVersioned v = produced(data, float32, 1, shape, NULL);
    v.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
    cbd_op *op = submit(&s, &t, 0);
    CHECK(munmap(data, page) == 0);
    arrives(op, 1, (float[]){3, 4}, 8);
    scene_end(&s);
}

int main(void)
{
    RUN(what_a_producer_has_is_copied_before_the_call_returns);
    RUN(trailing_axes_are_described_as_lanes);
    RUN(nothing_is_folded_into_an_array_attribute);
    RUN(lanes_255_and_no_more);
    RUN(a_read_only_producer_is_written_from);
    return 0;
}
