/* DLPack: groups and tensors out, tensors in, and what the buffer protocol says of one.
 *
 * An export is one allocation: the standard's struct, what keeps the data, shape and strides. Its deleter is libc and
 * atomics: a pin's or a session's last reference goes like any other. */
#include "callboard_python.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "map.h"

#define ALIGNMENT 64 /* of copies: a cache line, and what vector units like */

_Static_assert(sizeof(cbd_dlpack_tensor) == 48 && sizeof(cbd_dlpack_managed) == 64 && sizeof(cbd_dlpack_versioned) == 80,
               "the standard's sizes");

/* ---- tensors ----------------------------------------------------------------- */

/* As cbdi_tensor_check, where a single value is a tensor too. */
static cbd_status check_tensor(const cbd_tensor *tensor, uint64_t *bytes, cbd_error *error)
{
    static const int64_t one = 1;
    cbd_tensor single;
    if (tensor != NULL && tensor->ndim == 0) {
        single = *tensor;
        single.ndim = 1;
        single.shape = &one;
        single.strides = NULL;
        tensor = &single;
    }
    return cbdi_tensor_check(tensor, bytes, error);
}

/* Row-major strides in elements; an empty dimension does not make those of the others 0. Where they wrap,
 * the tensor is empty and none is used. */
static void row_major(const int64_t *shape, int32_t ndim, int64_t *strides)
{
    uint64_t step = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        strides[i] = (int64_t)step;
        step *= shape[i] > 0 ? (uint64_t)shape[i] : 1;
    }
}

static bool is_row_major(const cbd_tensor *tensor)
{
    int64_t step = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0)
            return true; /* and the product of the others may be anything */
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] == 1)
            continue; /* its stride is never used */
        if (tensor->strides[i] != step)
            return false;
        step *= tensor->shape[i];
    }
    return true;
}

cbd_status cbd_tensor_copy(const cbd_tensor *from, cbd_tensor **tensor, cbd_error *error)
{
    uint64_t bytes;
    void *block;
    if (tensor == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor: expected a place for the copy, got NULL");
    *tensor = NULL;
    cbd_status status = check_tensor(from, &bytes, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (cbdi_on_device(from))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "the tensor lies on GPU %u: copy it there, by the library that it is of, or read it on the host (cbd_read_group_in)",
                         from->device_id);
    size_t head = sizeof **tensor + (size_t)from->ndim * sizeof(int64_t);
    head = (head + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > SIZE_MAX - head || posix_memalign(&block, ALIGNMENT, head + bytes) != 0)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a copy of %llu bytes", (unsigned long long)bytes);
    cbd_tensor *copy = block;
    int64_t *shape = (int64_t *)(copy + 1);
    *copy = *from;
    copy->data = (uint8_t *)block + head;
    copy->shape = shape;
    copy->strides = NULL;
    copy->device_type = CBD_DEVICE_CPU;
    copy->device_id = 0;
    for (int32_t i = 0; i < from->ndim; i++)
        shape[i] = from->shape[i];
    if (from->ndim == 0)
        memcpy((uint8_t *)block + head, from->data, bytes);
    else
        cbdi_gather((uint8_t *)block + head, from, (uint64_t)from->shape[0], NULL);
    *tensor = copy;
    return CBD_STATUS_OK;
}

void cbd_tensor_free(cbd_tensor *tensor) { free(tensor); }

/* ---- groups as tensors ---------------------------------------------------------- */

static cbd_status describe(const cbd_schema *schema, const char *name, const void *data, const uint32_t device[2], int32_t ndim,
                           const int64_t *extents, uint64_t index, uint64_t count, int64_t shape[CBD_NDIM_MAX], cbd_tensor *tensor,
                           cbd_error *error)
{
    if (index >= count)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor %llu of the group of \"%.200s\": it has %llu",
                         (unsigned long long)index, name, (unsigned long long)count);
    memcpy(shape, extents, (size_t)ndim * sizeof *shape);
    *tensor = (cbd_tensor){.data = data, .ndim = ndim, .shape = shape, .code = schema->code, .bits = schema->bits, .lanes = 1,
                           .device_type = device[0], .device_id = device[1]};
    return CBD_STATUS_OK;
}

static cbd_status describe_row(const cbd_schema *schema, const char *name, const void *data, uint64_t elements, uint64_t index,
                               uint64_t count, int64_t shape[CBD_NDIM_MAX], cbd_tensor *tensor, cbd_error *error)
{
    const int64_t extents[2] = {(int64_t)elements, schema->lanes};
    const uint32_t host[2] = {CBD_DEVICE_CPU, 0};
    return describe(schema, name, data, host, schema->lanes > 1 ? 2 : 1, extents, index, count, shape, tensor, error);
}

cbd_status cbd_read_group_tensor(const cbd_read_group *group, uint64_t index, int64_t shape[CBD_NDIM_MAX], cbd_tensor *tensor,
                                 cbd_error *error)
{
    if (group == NULL || shape == NULL || tensor == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "group, shape or tensor is NULL");
    memset(tensor, 0, sizeof *tensor);
    if (group->is_delete)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the group of \"%.200s\" lists %llu prims that were deleted: it has no data",
                         group->name, (unsigned long long)group->prim_count);
    const uint32_t device[2] = {group->device_type, group->device_id};
    if (group->schema.kind != CBD_KIND_ARRAY)
        return describe(&group->schema, group->name, group->data, device, group->ndim, group->shape, index, 1, shape, tensor, error);
    const cbd_array none = {NULL, 0}, *row = index < group->prim_count ? &group->arrays[index] : &none;
    return describe_row(&group->schema, group->name, row->data, row->elements, index, group->prim_count, shape, tensor, error);
}

cbd_status cbd_group_tensor(const cbd_group *group, uint64_t index, int64_t shape[CBD_NDIM_MAX], cbd_tensor *tensor, cbd_error *error)
{
    if (group == NULL || shape == NULL || tensor == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "group, shape or tensor is NULL");
    memset(tensor, 0, sizeof *tensor);
    if (((const struct map_group *)group)->unmapped || atomic_load(&group->session->over))
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group %llu of \"%.200s\" was handed back already",
                         (unsigned long long)group->index, group->attribute);
    const uint32_t device[2] = {group->device_type, group->device_id};
    if (group->schema.kind != CBD_KIND_ARRAY)
        return describe(&group->schema, group->attribute, group->data, device, group->ndim, group->shape, index, 1, shape, tensor, error);
    const cbd_staged_array none = {NULL, 0}, *row = index < group->rows ? &group->arrays[index] : &none;
    return describe_row(&group->schema, group->attribute, row->data, row->elements, index, group->rows, shape, tensor, error);
}

/* ---- out ------------------------------------------------------------------------- */

struct exported {
    union {
        cbd_dlpack_managed legacy;
        cbd_dlpack_versioned versioned;
    } managed; /* first: the consumer gives back its address */
    cbd_dlpack_release *release;
    void *context;
    int64_t extents[]; /* shape, then strides */
};

static void exported_free(struct exported *exported)
{
    cbd_dlpack_release *release = exported->release;
    void *context = exported->context;
    free(exported);
    if (release != NULL)
        release(context);
}

static void legacy_deleter(struct DLManagedTensor *managed) { exported_free((struct exported *)managed); }

static void versioned_deleter(struct DLManagedTensorVersioned *managed) { exported_free((struct exported *)managed); }

static struct exported *describe_export(const cbd_tensor *tensor, uint32_t flags, bool versioned)
{
    struct exported *exported = calloc(1, sizeof *exported + 2 * (size_t)tensor->ndim * sizeof(int64_t));
    if (exported == NULL)
        return NULL;
    int64_t *shape = exported->extents, *strides = shape + tensor->ndim;
    for (int32_t i = 0; i < tensor->ndim; i++)
        shape[i] = tensor->shape[i];
    if (tensor->strides == NULL || is_row_major(tensor)) /* consumers differ in what they expect where an extent is 1 */
        row_major(shape, tensor->ndim, strides);
    else
        memcpy(strides, tensor->strides, (size_t)tensor->ndim * sizeof *strides);
    const cbd_dlpack_tensor described = {
        .data = (void *)(uintptr_t)tensor->data,
        .device_type = cbdi_on_device(tensor) ? (int32_t)tensor->device_type : CBD_DEVICE_CPU, /* pinned host memory is host memory */
        .device_id = cbdi_on_device(tensor) ? (int32_t)tensor->device_id : 0,
        .ndim = tensor->ndim,
        .code = tensor->code,
        .bits = tensor->bits,
        .lanes = tensor->lanes,
        .shape = tensor->ndim > 0 ? shape : NULL,
        .strides = tensor->ndim > 0 ? strides : NULL,
    };
    if (versioned)
        exported->managed.versioned = (cbd_dlpack_versioned){1, 0, exported, versioned_deleter, flags, described};
    else
        exported->managed.legacy = (cbd_dlpack_managed){described, exported, legacy_deleter};
    return exported;
}

static void release_copy(void *copy) { cbd_tensor_free(copy); }

static cbd_status export_tensor(const cbd_tensor *tensor, uint32_t flags, cbd_dlpack_release *release, void *context,
                                bool versioned, struct exported **out, cbd_error *error)
{
    uint64_t bytes;
    cbd_tensor *copy = NULL;
    cbd_status status = check_tensor(tensor, &bytes, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (flags & ~(uint32_t)(CBD_DLPACK_READ_ONLY | CBD_DLPACK_COPY))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "flags are 0x%x: expected READ_ONLY (1) and COPY (2) at most", flags);
    if (flags & CBD_DLPACK_COPY) {
        status = cbd_tensor_copy(tensor, &copy, error);
        if (status != CBD_STATUS_OK)
            return status;
        flags = CBD_DLPACK_COPY; /* a copy is the consumer's to write */
    } else if (!versioned && (flags & CBD_DLPACK_READ_ONLY)) {
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "the data is read-only, and a DLManagedTensor cannot say so: export it versioned, or with CBD_DLPACK_COPY");
    }
    struct exported *exported = describe_export(copy != NULL ? copy : tensor, flags, versioned);
    if (exported == NULL) {
        cbd_tensor_free(copy);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to describe a tensor of %d dimensions", tensor->ndim);
    }
    exported->release = copy != NULL ? release_copy : release;
    exported->context = copy != NULL ? copy : context;
    if (copy != NULL && release != NULL)
        release(context);
    *out = exported;
    return CBD_STATUS_OK;
}

static cbd_status no_place(cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "managed: expected a place for the exported tensor, got NULL");
}

/* What each form does with the same arguments: gives the place its NULL, and on success the struct. */
#define GIVE(managed, call)                                                \
    do {                                                                   \
        struct exported *exported_ = NULL;                                 \
        if ((managed) == NULL)                                             \
            return no_place(error);                                        \
        cbd_status status_ = (call);                                       \
        *(managed) = status_ == CBD_STATUS_OK ? (void *)exported_ : NULL;  \
        return status_;                                                    \
    } while (0)

cbd_status cbd_dlpack_export(const cbd_tensor *tensor, uint32_t flags, cbd_dlpack_release *release, void *context,
                             struct DLManagedTensor **managed, cbd_error *error)
{
    GIVE(managed, export_tensor(tensor, flags, release, context, false, &exported_, error));
}

cbd_status cbd_dlpack_export_versioned(const cbd_tensor *tensor, uint32_t flags, cbd_dlpack_release *release, void *context,
                                       struct DLManagedTensorVersioned **managed, cbd_error *error)
{
    GIVE(managed, export_tensor(tensor, flags, release, context, true, &exported_, error));
}

static void release_pin(void *pin) { cbd_pin_release(pin); }

static cbd_status export_read(const cbd_read_group *group, uint64_t index, uint32_t flags, bool versioned, struct exported **out,
                              cbd_error *error)
{
    int64_t shape[CBD_NDIM_MAX];
    cbd_tensor tensor;
    cbd_status status = cbd_read_group_tensor(group, index, shape, &tensor, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (group->pin == NULL && !(flags & CBD_DLPACK_COPY))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "the data of \"%.200s\" goes with its group, and an export would not keep it: use CBD_DLPACK_COPY", group->name);
    cbd_pin *pin = cbd_pin_retain(group->pin);
    status = export_tensor(&tensor, flags | CBD_DLPACK_READ_ONLY, release_pin, pin, versioned, out, error);
    if (status != CBD_STATUS_OK)
        cbd_pin_release(pin);
    return status;
}

cbd_status cbd_dlpack_export_read(const cbd_read_group *group, uint64_t index, uint32_t flags, struct DLManagedTensor **managed,
                                  cbd_error *error)
{
    GIVE(managed, export_read(group, index, flags, false, &exported_, error));
}

cbd_status cbd_dlpack_export_read_versioned(const cbd_read_group *group, uint64_t index, uint32_t flags,
                                            struct DLManagedTensorVersioned **managed, cbd_error *error)
{
    GIVE(managed, export_read(group, index, flags, true, &exported_, error));
}

static void release_map_group(void *group) { cbdi_group_unlend(group); }

static cbd_status export_map(cbd_group *group, uint64_t index, uint32_t flags, bool versioned, struct exported **out, cbd_error *error)
{
    int64_t shape[CBD_NDIM_MAX];
    cbd_tensor tensor;
    cbd_status status = cbd_group_tensor(group, index, shape, &tensor, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_group_lend((struct map_group *)group, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = export_tensor(&tensor, flags, release_map_group, group, versioned, out, error);
    if (status != CBD_STATUS_OK)
        cbdi_group_unlend((struct map_group *)group);
    return status;
}

cbd_status cbd_dlpack_export_map(cbd_group *group, uint64_t index, uint32_t flags, struct DLManagedTensor **managed, cbd_error *error)
{
    GIVE(managed, export_map(group, index, flags, false, &exported_, error));
}

cbd_status cbd_dlpack_export_map_versioned(cbd_group *group, uint64_t index, uint32_t flags,
                                           struct DLManagedTensorVersioned **managed, cbd_error *error)
{
    GIVE(managed, export_map(group, index, flags, true, &exported_, error));
}

/* ---- in --------------------------------------------------------------------------- */

/* A producer's word is checked as far as it can be: C tells nobody how much memory lies behind a pointer. */
cbd_status cbd_dlpack_describe(const cbd_dlpack_tensor *from, cbd_tensor *tensor, cbd_error *error)
{
    uint64_t bytes;
    uintptr_t first;
    bool on_device = from->device_type == CBD_DEVICE_CUDA || from->device_type == CBD_DEVICE_CUDA_MANAGED;
    if (from->ndim < 0 || from->ndim > CBD_TENSOR_NDIM_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "DLPack tensor has ndim %d: expected 0 to %d", from->ndim,
                         CBD_TENSOR_NDIM_MAX);
    if (from->ndim > 0 && from->shape == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "DLPack tensor has ndim %d and shape NULL", from->ndim);
    if (from->device_type < 1 || from->device_id < 0 || (from->device_type == CBD_DEVICE_CPU && from->device_id != 0))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "DLPack tensor is on device (%d, %d): expected a type from 1 and a number from 0, which is 0 for the CPU",
                         from->device_type, from->device_id);
    if (!on_device && from->device_type != CBD_DEVICE_CPU && from->device_type != CBD_DEVICE_CUDA_HOST)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "DLPack tensor is on device (%d, %d): expected memory of the host, types %d and %d, or of CUDA, %d and %d; copy it "
                         "there first",
                         from->device_type, from->device_id, CBD_DEVICE_CPU, CBD_DEVICE_CUDA_HOST, CBD_DEVICE_CUDA, CBD_DEVICE_CUDA_MANAGED);
    if (on_device && cbdi_cuda() == NULL) {
        char what[64];
        snprintf(what, sizeof what, "a DLPack tensor of device (%d, %d)", from->device_type, from->device_id);
        return cbdi_cuda_needed(what, error);
    }
    if (__builtin_add_overflow((uintptr_t)from->data, from->byte_offset, &first))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "DLPack tensor has byte_offset %llu: that is beyond the address space",
                         (unsigned long long)from->byte_offset);
    *tensor = (cbd_tensor){
        .data = from->data == NULL ? NULL : (const void *)first,
        .ndim = from->ndim,
        .shape = from->shape,
        .strides = from->ndim > 0 ? from->strides : NULL,
        .code = from->code,
        .bits = from->bits,
        .lanes = from->lanes,
        .device_type = (uint32_t)from->device_type,
        .device_id = (uint32_t)from->device_id,
    };
    return check_tensor(tensor, &bytes, error);
}

static cbd_status import(const cbd_dlpack_tensor *from, cbd_tensor *tensor, cbd_error *error)
{
    char shape[160], strides[160];
    cbd_tensor described;
    cbd_status status = cbd_dlpack_describe(from, &described, error);
    if (status != CBD_STATUS_OK)
        return status;
    bool row_major_order = described.strides == NULL || is_row_major(&described);
    if (!row_major_order && !cbdi_on_device(&described))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "DLPack tensor has shape %s and strides %s: without a copy it must be row-major; import it with a copy",
                         cbdi_shape_text(described.shape, described.ndim, shape),
                         cbdi_shape_text(described.strides, described.ndim, strides));
    if (row_major_order)
        described.strides = NULL;
    *tensor = described;
    return CBD_STATUS_OK;
}

static cbd_status import_copy(const cbd_dlpack_tensor *from, cbd_tensor **tensor, cbd_error *error)
{
    cbd_tensor described;
    cbd_status status = cbd_dlpack_describe(from, &described, error);
    return status == CBD_STATUS_OK ? cbd_tensor_copy(&described, tensor, error) : status;
}

/* The description in a producer's struct, or NULL with an error. */
static const cbd_dlpack_tensor *legacy_tensor(const struct DLManagedTensor *managed, cbd_status *status, cbd_error *error)
{
    *status = CBD_STATUS_OK;
    if (managed != NULL)
        return &((const cbd_dlpack_managed *)managed)->tensor;
    *status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "managed: expected a DLPack tensor, got NULL");
    return NULL;
}

static const cbd_dlpack_tensor *versioned_tensor(const struct DLManagedTensorVersioned *managed, cbd_status *status, cbd_error *error)
{
    const cbd_dlpack_versioned *versioned = (const cbd_dlpack_versioned *)managed;
    *status = CBD_STATUS_OK;
    if (managed == NULL)
        *status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "managed: expected a DLPack tensor, got NULL");
    else if (versioned->major != 1) /* all but the deleter may mean anything */
        *status = cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "the tensor comes as DLPack %u.%u: expected 1.x", versioned->major,
                            versioned->minor);
    return *status == CBD_STATUS_OK ? &versioned->tensor : NULL;
}

static cbd_status no_tensor(cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor: expected a place for the description, got NULL");
}

cbd_status cbd_dlpack_import(const struct DLManagedTensor *managed, cbd_tensor *tensor, cbd_error *error)
{
    cbd_status status;
    if (tensor == NULL)
        return no_tensor(error);
    memset(tensor, 0, sizeof *tensor);
    const cbd_dlpack_tensor *from = legacy_tensor(managed, &status, error);
    return from != NULL ? import(from, tensor, error) : status;
}

cbd_status cbd_dlpack_import_versioned(const struct DLManagedTensorVersioned *managed, cbd_tensor *tensor, cbd_error *error)
{
    cbd_status status;
    if (tensor == NULL)
        return no_tensor(error);
    memset(tensor, 0, sizeof *tensor);
    const cbd_dlpack_tensor *from = versioned_tensor(managed, &status, error);
    return from != NULL ? import(from, tensor, error) : status;
}

cbd_status cbd_dlpack_import_copy(const struct DLManagedTensor *managed, cbd_tensor **tensor, cbd_error *error)
{
    cbd_status status;
    if (tensor == NULL)
        return no_tensor(error);
    *tensor = NULL;
    const cbd_dlpack_tensor *from = legacy_tensor(managed, &status, error);
    return from != NULL ? import_copy(from, tensor, error) : status;
}

cbd_status cbd_dlpack_import_copy_versioned(const struct DLManagedTensorVersioned *managed, cbd_tensor **tensor, cbd_error *error)
{
    cbd_status status;
    if (tensor == NULL)
        return no_tensor(error);
    *tensor = NULL;
    const cbd_dlpack_tensor *from = versioned_tensor(managed, &status, error);
    return from != NULL ? import_copy(from, tensor, error) : status;
}

/* ---- the buffer protocol ------------------------------------------------------------- */

const char *cbd_buffer_format(uint8_t code, uint8_t bits)
{
    static const char *const ints[] = {"b", "h", "i", "q"}, *const uints[] = {"B", "H", "I", "Q"}, *const floats[] = {"e", "f", "d"};
    if (cbdi_dtype_check(code, bits, 1, NULL) != CBD_STATUS_OK)
        return NULL;
    int power = bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : 3;
    switch (code) {
    case CBD_DTYPE_INT:
        return ints[power];
    case CBD_DTYPE_FLOAT:
        return floats[power - 1];
    case CBD_DTYPE_COMPLEX:
        return bits == 64 ? "Zf" : "Zd";
    case CBD_DTYPE_BOOL:
        return "?";
    default:
        return uints[power];
    }
}

cbd_status cbd_buffer_of_tensor(const cbd_tensor *tensor, int read_only, cbd_buffer *buffer, cbd_error *error)
{
    uint64_t bytes;
    if (buffer == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "buffer: expected a place for what is known, got NULL");
    memset(buffer, 0, sizeof *buffer);
    cbd_status status = check_tensor(tensor, &bytes, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (cbdi_on_device(tensor))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "the tensor lies on GPU %u, where no program of the host can look: read it on the host",
                         tensor->device_id);
    int32_t ndim = tensor->ndim + (tensor->lanes > 1);
    if (ndim > CBD_TENSOR_NDIM_MAX)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "tensor has %d dimensions and %u lanes: a buffer has at most %d dimensions",
                         tensor->ndim, tensor->lanes, CBD_TENSOR_NDIM_MAX);
    buffer->data = tensor->data;
    buffer->item_bytes = tensor->bits / 8u;
    buffer->length_bytes = bytes;
    buffer->format = cbd_buffer_format(tensor->code, tensor->bits);
    buffer->read_only = read_only != 0;
    buffer->ndim = ndim;
    if (tensor->strides == NULL)
        row_major(tensor->shape, tensor->ndim, buffer->strides);
    else if (tensor->ndim > 0)
        memcpy(buffer->strides, tensor->strides, (size_t)tensor->ndim * sizeof *buffer->strides);
    for (int32_t i = 0; i < tensor->ndim; i++) {
        buffer->shape[i] = tensor->shape[i];
        buffer->strides[i] = (int64_t)((uint64_t)buffer->strides[i] * buffer->item_bytes * tensor->lanes); /* an unused one may wrap */
    }
    if (tensor->lanes > 1) {
        buffer->shape[ndim - 1] = tensor->lanes;
        buffer->strides[ndim - 1] = (int64_t)buffer->item_bytes;
    }
    return CBD_STATUS_OK;
}
