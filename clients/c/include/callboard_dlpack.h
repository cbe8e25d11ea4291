/* Callboard and DLPack: tensors out to, and in from, any library that speaks DLPack 1.x.
 *
 *     out   a tensor of the caller, a read group, a map group ──▶ DLManagedTensor, DLManagedTensorVersioned
 *     in    DLManagedTensor, DLManagedTensorVersioned ──▶ cbd_tensor, to be written or published
 *
 * The managed structs are named by the standard's tags and only declared here, so that this header goes with
 * the standard's own one, before it or behind it. A program without that one uses the cbd_dlpack_* structs, which
 * have the same bytes: (cbd_dlpack_versioned *)managed. Where the standard's header was included before, the compiler
 * checks that they agree.
 *
 * The conventions of callboard.h hold. A deleter may be called on any thread, after cbd_stage_close and
 * cbd_stage_release, and in a process that shuts down: it waits for nobody, and runs nothing but this library and
 * the caller's own `release`.
 */
#ifndef CALLBOARD_DLPACK_H
#define CALLBOARD_DLPACK_H

#include "callboard.h"

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* ---- the standard's structs, with names of our own ------------------------- */

/* One description of memory. */
typedef struct cbd_dlpack_tensor {
    void *data;
    int32_t device_type; /* CBD_DEVICE_* and others */
    int32_t device_id;
    int32_t ndim;
    uint8_t code; /* CBD_DTYPE_* */
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL, compact, only from producers before DLPack 1.2 */
    uint64_t byte_offset;
} cbd_dlpack_tensor;

/* struct DLManagedTensor: cannot say that it is read-only. */
typedef struct cbd_dlpack_managed {
    cbd_dlpack_tensor tensor;
    void *manager_context;
    void (*deleter)(struct DLManagedTensor *managed); /* NULL: nothing to do */
} cbd_dlpack_managed;

/* struct DLManagedTensorVersioned, of DLPack 1.0 and later. */
typedef struct cbd_dlpack_versioned {
    uint32_t major, minor;
    void *manager_context;
    void (*deleter)(struct DLManagedTensorVersioned *managed); /* NULL: nothing to do */
    uint64_t flags;                                            /* CBD_DLPACK_* */
    cbd_dlpack_tensor tensor;
} cbd_dlpack_versioned;

/* The standard's flags; as an argument they ask for what the flag says. */
enum {
    CBD_DLPACK_READ_ONLY = 1, /* the consumer must not write */
    CBD_DLPACK_COPY = 2       /* a private copy, row-major, made for the consumer, who may write to it */
};

#define CBD_TENSOR_NDIM_MAX 64 /* dimensions of a tensor that comes in or goes out */

/* ---- groups as tensors ------------------------------------------------------ */

/* Describes a read group's data: of fixed kind `index` is 0 and the shape is (rows, *row_shape[, lanes]), of which
 * index_map says whose is which; of array kind `index` is a prim's and the shape (elements[, lanes]). Elements have
 * one lane. *tensor is a description only: it borrows the group's data, and `shape` of the caller, and holds nothing.
 * INVALID_ARGUMENT: no such index, or a group of deletes. */
CBD_API cbd_status cbd_read_group_tensor(const cbd_read_group *group, uint64_t index, int64_t shape[CBD_NDIM_MAX],
                                         cbd_tensor *tensor, cbd_error *error);

/* The same of a map group, whose memory may be written (cast the const away) until it is handed back.
 * INVALID_HANDLE when it was. */
CBD_API cbd_status cbd_group_tensor(const cbd_group *group, uint64_t index, int64_t shape[CBD_NDIM_MAX], cbd_tensor *tensor,
                                    cbd_error *error);

/* ---- out -------------------------------------------------------------------- */

/* What was lent is not needed any more. Called once, by the export's deleter, on its thread. */
typedef void cbd_dlpack_release(void *context);

/* Exports a tensor. Whoever gets *managed calls its deleter once, which frees the description and then calls release.
 * Strides are always written. The shape and strides of `tensor` are copied.
 *
 *     release NULL   a view: the tensor's data must outlive the consumer, and nothing says so but the program
 *     release        ownership: the data lives until release(context), which only a success leads to
 *
 * flags: CBD_DLPACK_READ_ONLY, and CBD_DLPACK_COPY: then nothing is lent, and release is called before this returns.
 * A tensor on a GPU goes out as CBD_DEVICE_CUDA with its ordinal, all else as CBD_DEVICE_CPU, pinned memory too.
 * To several consumers the same data goes by several exports whose releases count. Any strides and up to
 * CBD_TENSOR_NDIM_MAX dimensions, none too. INVALID_ARGUMENT: NULL, flags that are none, a tensor that is not valid;
 * NOT_SUPPORTED: an element type or a device that this version has not, CBD_DLPACK_COPY of what lies on a GPU, and
 * CBD_DLPACK_READ_ONLY without CBD_DLPACK_COPY in the form that cannot say it. OUT_OF_MEMORY. */
CBD_API cbd_status cbd_dlpack_export(const cbd_tensor *tensor, uint32_t flags, cbd_dlpack_release *release, void *context,
                                     struct DLManagedTensor **managed, cbd_error *error);
CBD_API cbd_status cbd_dlpack_export_versioned(const cbd_tensor *tensor, uint32_t flags, cbd_dlpack_release *release,
                                               void *context, struct DLManagedTensorVersioned **managed, cbd_error *error);

/* Exports what cbd_read_group_tensor describes, with a reference on the group's pin: the export is independent of the
 * group, of the read and of the stage, and its deleter unpins. What is read is read-only, so that the form without a
 * version is NOT_SUPPORTED unless it is a copy. So is "@path" unless it is a copy: its data is the group's own. Of a group
 * on a GPU there is nothing to wait for, whatever the consumer's stream, and the deleter must not be called before
 * what reads it has ended there. In other memory than it lies in: export what cbd_read_group_in gives. */
CBD_API cbd_status cbd_dlpack_export_read(const cbd_read_group *group, uint64_t index, uint32_t flags,
                                          struct DLManagedTensor **managed, cbd_error *error);
CBD_API cbd_status cbd_dlpack_export_read_versioned(const cbd_read_group *group, uint64_t index, uint32_t flags,
                                                    struct DLManagedTensorVersioned **managed, cbd_error *error);

/* Exports what cbd_group_tensor describes, for a consumer that fills it. The memory stays mapped until the deleter,
 * also after cbd_session_release. It must not be written after the unmap (of a group on a GPU: nor anything that writes
 * be queued after it): while an export is alive then, the unmap copies the data (as with CBD_FLAG_COPY), and what the memory holds afterwards is nobody's business. */
CBD_API cbd_status cbd_dlpack_export_map(cbd_group *group, uint64_t index, uint32_t flags, struct DLManagedTensor **managed,
                                         cbd_error *error);
CBD_API cbd_status cbd_dlpack_export_map_versioned(cbd_group *group, uint64_t index, uint32_t flags,
                                                   struct DLManagedTensorVersioned **managed, cbd_error *error);

/* ---- in ----------------------------------------------------------------------- */

/* Describes a producer's tensor without a copy, for cbd_write_attribute and cbd_publish. It borrows data and shape:
 * *tensor is good until the deleter is called, which stays the caller's to do, also on failure. Strides that are those
 * of row-major order are accepted and left out; where a dimension is 1 its stride does not matter, nor does any of an
 * empty tensor; of a tensor on a GPU any are accepted, and kept. Any alignment.
 *
 * Devices: CBD_DEVICE_CPU and CBD_DEVICE_CUDA_HOST, pinned memory, are the host. CBD_DEVICE_CUDA and
 * CBD_DEVICE_CUDA_MANAGED need libcallboard_cuda, which asks the driver whether the data lies there. Nobody waits here for a
 * producer's stream: name it in cbd_write_options.sync, or ask the producer to order its work behind one of yours.
 * INVALID_ARGUMENT: NULL, another ndim than 0 to CBD_TENSOR_NDIM_MAX, no shape, a negative extent, no data,
 * bytes beyond the address space, a device that is none or does not hold the data, lanes, a code and bits that are no
 * type; NOT_SUPPORTED: another major version, elements below 8 bits, a device of another sort, one of CUDA without
 * libcallboard_cuda, and strides of another order on the host: use cbd_dlpack_import_copy. */
CBD_API cbd_status cbd_dlpack_import(const struct DLManagedTensor *managed, cbd_tensor *tensor, cbd_error *error);
CBD_API cbd_status cbd_dlpack_import_versioned(const struct DLManagedTensorVersioned *managed, cbd_tensor *tensor,
                                               cbd_error *error);

/* Copies a producer's tensor, of any strides (negative and 0 too), into row-major order. *tensor is the caller's:
 * cbd_tensor_free. The producer's may go when this returns; its deleter stays the caller's to call. Errors as above,
 * but for strides; NOT_SUPPORTED: a tensor on a GPU; OUT_OF_MEMORY. */
CBD_API cbd_status cbd_dlpack_import_copy(const struct DLManagedTensor *managed, cbd_tensor **tensor, cbd_error *error);
CBD_API cbd_status cbd_dlpack_import_copy_versioned(const struct DLManagedTensorVersioned *managed, cbd_tensor **tensor,
                                                    cbd_error *error);

/* The same of any tensor. */
CBD_API cbd_status cbd_tensor_copy(const cbd_tensor *from, cbd_tensor **tensor, cbd_error *error);

/* Gives a tensor of the above back, with its data. Its memory may be written until then. */
CBD_API void cbd_tensor_free(cbd_tensor *tensor);

/* ---- Python's buffer protocol -------------------------------------------------- */

/* What a Py_buffer is to say of a tensor. */
typedef struct cbd_buffer {
    const void *data;
    uint64_t item_bytes;   /* of one lane */
    uint64_t length_bytes; /* of all elements */
    const char *format;    /* as the struct module writes it; static */
    int32_t read_only;
    int32_t ndim; /* lanes above 1 are one more dimension, the last */
    int64_t shape[CBD_TENSOR_NDIM_MAX];
    int64_t strides[CBD_TENSOR_NDIM_MAX]; /* in bytes */
} cbd_buffer;

/* Fills *buffer, which borrows the data. read_only: as the caller knows it. Errors as of cbd_dlpack_export;
 * NOT_SUPPORTED: a tensor on a GPU. */
CBD_API cbd_status cbd_buffer_of_tensor(const cbd_tensor *tensor, int read_only, cbd_buffer *buffer, cbd_error *error);

/* The format of one lane, static: "f" of float32. Types that Python has no letter for, bfloat16 and float8, are
 * unsigned integers of their width. NULL: no type. */
CBD_API const char *cbd_buffer_format(uint8_t code, uint8_t bits);

#ifdef __cplusplus
}
#endif

#endif

/* Outside of the guard: where the standard's header comes later, including this one once more checks it. */
#if defined(DLPACK_DLPACK_H_) && !defined(CALLBOARD_DLPACK_CHECKED)
#define CALLBOARD_DLPACK_CHECKED
#if defined(__cplusplus)
#define CBD_DLPACK_ASSERT(condition, text) static_assert(condition, text)
#else
#define CBD_DLPACK_ASSERT(condition, text) _Static_assert(condition, text)
#endif
CBD_DLPACK_ASSERT(sizeof(DLTensor) == sizeof(cbd_dlpack_tensor) &&
                      offsetof(DLTensor, ndim) == offsetof(cbd_dlpack_tensor, ndim) &&
                      offsetof(DLTensor, dtype) == offsetof(cbd_dlpack_tensor, code) &&
                      offsetof(DLTensor, shape) == offsetof(cbd_dlpack_tensor, shape) &&
                      offsetof(DLTensor, byte_offset) == offsetof(cbd_dlpack_tensor, byte_offset),
                  "DLTensor is not what Callboard was made for");
CBD_DLPACK_ASSERT(sizeof(struct DLManagedTensor) == sizeof(cbd_dlpack_managed) &&
                      offsetof(struct DLManagedTensor, deleter) == offsetof(cbd_dlpack_managed, deleter),
                  "DLManagedTensor is not what Callboard was made for");
#if defined(DLPACK_MAJOR_VERSION) /* DLPack 1.0 and later */
CBD_DLPACK_ASSERT(DLPACK_MAJOR_VERSION == 1 && sizeof(struct DLManagedTensorVersioned) == sizeof(cbd_dlpack_versioned) &&
                      offsetof(struct DLManagedTensorVersioned, deleter) == offsetof(cbd_dlpack_versioned, deleter) &&
                      offsetof(struct DLManagedTensorVersioned, flags) == offsetof(cbd_dlpack_versioned, flags) &&
                      offsetof(struct DLManagedTensorVersioned, dl_tensor) == offsetof(cbd_dlpack_versioned, tensor),
                  "DLManagedTensorVersioned is not what Callboard was made for");
#endif
#undef CBD_DLPACK_ASSERT
#endif
