/* DLPack's table of C functions (1.3): what a type offers as __dlpack_c_exchange_api__, so that tensors pass without
 * a call into Python. View offers one, and from other types it is taken where it is there.
 *
 * The standard gives each function's contract; the structs here have its layout, checked by a test that is compiled
 * against its header. "No sync" is no matter for what goes out: host memory has no streams, and what we have on a GPU is
 * complete. What comes in from a GPU is not taken this way but by __dlpack__, which orders it before our stream. */
#include "native.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const NAME = "dlpack_exchange_api";

#define ALIGNMENT 64 /* of what we allocate for others: a cache line */

typedef void set_error(void *context, const char *kind, const char *message);

/* Whoever knows another major version may only read the header. */
struct header {
    uint32_t major, minor;
    struct header *previous; /* a table of an older version, or NULL */
};

/* Each gives 0, or -1 with an exception, but for `allocate`, which runs without Python and tells its error by a call. */
struct table {
    struct header header;
    int (*allocate)(const cbd_dlpack_tensor *like, cbd_dlpack_versioned **out, void *context, set_error *fail);
    int (*from_object)(void *object, cbd_dlpack_versioned **out);
    int (*to_object)(cbd_dlpack_versioned *managed, void **object); /* takes the tensor where it gives 0 */
    int (*borrow)(void *object, cbd_dlpack_tensor *out);            /* may be NULL */
    int (*stream)(int32_t device_type, int32_t device_id, void **stream);
};

/* ---- out ------------------------------------------------------------------------- */

static void report(set_error *fail, void *context, cbd_status status, const cbd_error *error)
{
    if (fail != NULL)
        fail(context, status == CBD_STATUS_OUT_OF_MEMORY ? "MemoryError" : "BufferError", error->text);
}

/* Memory for a tensor that looks like `like`: dtype, shape and device count. Not initialised. */
static int allocate(const cbd_dlpack_tensor *like, cbd_dlpack_versioned **out, void *context, set_error *fail)
{
    static char nothing[1];
    cbd_error error;
    cbd_buffer buffer;
    struct DLManagedTensorVersioned *managed = NULL;
    cbd_tensor tensor;
    cbd_dlpack_tensor wanted = *like;
    wanted.data = nothing;
    wanted.strides = NULL;
    wanted.byte_offset = 0;
    cbd_status status = CBD_STATUS_OK;
    if (like->device_type != CBD_DEVICE_CPU || like->device_id != 0) {
        status = CBD_STATUS_NOT_SUPPORTED;
        snprintf(error.text, sizeof error.text, "the tensor is to lie on device (%d, %d): memory is allocated here on the host alone, (%d, 0)",
                 (int)like->device_type, (int)like->device_id, CBD_DEVICE_CPU);
    } else {
        status = cbd_dlpack_describe(&wanted, &tensor, &error); /* all else that may be wrong with it */
    }
    if (status == CBD_STATUS_OK)
        status = cbd_buffer_of_tensor(&tensor, 0, &buffer, &error); /* its size */
    if (status == CBD_STATUS_OK) {
        uint64_t bytes = (buffer.length_bytes / ALIGNMENT + 1) * ALIGNMENT; /* never 0 */
        void *memory = aligned_alloc(ALIGNMENT, bytes);
        tensor.data = memory;
        if (memory == NULL) {
            status = CBD_STATUS_OUT_OF_MEMORY;
            snprintf(error.text, sizeof error.text, "no memory for a tensor of %llu bytes", (unsigned long long)buffer.length_bytes);
        } else {
            status = cbd_dlpack_export_versioned(&tensor, 0, free, memory, &managed, &error);
            if (status != CBD_STATUS_OK)
                free(memory);
        }
    }
    *out = (cbd_dlpack_versioned *)managed;
    if (status != CBD_STATUS_OK)
        report(fail, context, status, &error);
    return status == CBD_STATUS_OK ? 0 : -1;
}

static int from_object(void *object, cbd_dlpack_versioned **out)
{
    *out = NULL;
    if (!PyObject_TypeCheck((PyObject *)object, View_Type)) {
        PyErr_SetString(PyExc_TypeError, "the exchange table of callboard.View was called with another object");
        return -1;
    }
    const View *view = object;
    *out = view_export(view, true, view->readonly ? CBD_DLPACK_READ_ONLY : 0);
    return *out == NULL ? -1 : 0;
}

/* A tensor that came in by this table becomes a View: its memory, in row-major order, lanes as the last dimension. */
static int to_object(cbd_dlpack_versioned *managed, void **object)
{
    *object = NULL;
    cbd_error error;
    cbd_tensor tensor;
    cbd_buffer buffer;
    cbd_status status = cbd_dlpack_import_versioned((struct DLManagedTensorVersioned *)managed, &tensor, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_buffer_of_tensor(&tensor, 0, &buffer, &error);
    if (status != CBD_STATUS_OK) {
        PyErr_SetString(PyExc_BufferError, error.text);
        return -1;
    }
    if (buffer.ndim > CBD_NDIM_MAX) {
        PyErr_Format(PyExc_BufferError, "the tensor has %d dimensions, a callboard.View at most %d", (int)buffer.ndim, CBD_NDIM_MAX);
        return -1;
    }
    struct lease *lease = lease_of_managed(managed);
    if (lease == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    lease_retain(lease); /* whatever fails, the tensor is still the caller's */
    *object = view_new(lease, tensor.data, (managed->flags & CBD_DLPACK_READ_ONLY) != 0, tensor.code, tensor.bits, buffer.ndim, buffer.shape);
    if (*object == NULL) {
        free(lease);
        return -1;
    }
    lease_drop(lease);
    return 0;
}

static int stream(int32_t device_type, int32_t device_id, void **stream)
{
    *stream = NULL;
    if (device_type == CBD_DEVICE_CPU || device_type == CBD_DEVICE_CUDA)
        return 0; /* on a GPU the legacy default one: nothing of ours is queued anywhere */
    PyErr_Format(PyExc_BufferError, "callboard.View is in host memory or on a GPU of CUDA, and knows no stream of device (%d, %d)", (int)device_type,
                 (int)device_id);
    return -1;
}

/* No `borrow`: a bare description cannot say that it is read-only, and a stray write would reach every reader. */
static struct table ours = {{1, 3, NULL}, allocate, from_object, to_object, NULL, stream};

int exchange_offer(void)
{
    PyObject *capsule = PyCapsule_New(&ours, NAME, NULL);
    if (capsule == NULL)
        return -1;
    int set = PyObject_SetAttrString((PyObject *)View_Type, "__dlpack_c_exchange_api__", capsule);
    Py_DECREF(capsule);
    return set;
}

/* ---- in --------------------------------------------------------------------------- */

/* Whether a tensor may be read by the host; then nobody's stream is before it. */
static bool is_on_host(const cbd_dlpack_versioned *managed)
{
    const cbd_dlpack_tensor *tensor = &managed->tensor;
    return managed->major != 1 || (tensor->device_type != CBD_DEVICE_CUDA && tensor->device_type != CBD_DEVICE_CUDA_MANAGED);
}

int exchange_take(PyObject *from, struct input *input)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)Py_TYPE(from), "__dlpack_c_exchange_api__");
    if (capsule == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    const struct header *header = PyCapsule_IsValid(capsule, NAME) ? PyCapsule_GetPointer(capsule, NAME) : NULL;
    Py_DECREF(capsule); /* the table lives as long as the process */
    while (header != NULL && header->major != 1)
        header = header->previous;
    const struct table *table = (const struct table *)header;
    if (table == NULL || table->from_object == NULL)
        return 0;
    cbd_dlpack_versioned *managed = NULL;
    if (table->from_object(from, &managed) != 0 || managed == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_BufferError, "the exchange table of %R gave neither a tensor nor an error", Py_TYPE(from));
        return -1;
    }
    if (!is_on_host(managed) && PyObject_HasAttrString(from, "__dlpack__")) {
        if (managed->deleter != NULL)
            managed->deleter((struct DLManagedTensorVersioned *)managed);
        return 0;
    }
    return dlpack_take_versioned(managed, input) < 0 ? -1 : 1;
}
