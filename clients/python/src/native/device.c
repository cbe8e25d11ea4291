/* Where things lie, in words and numbers; streams and events of CUDA; tensors by __cuda_array_interface__.
 *
 * A driver is loaded when something of a GPU is looked at first, by the C client (callboard_cuda.h), and never before. */
#include "native.h"

#include <stdio.h>
#include <string.h>

/* ---- devices -------------------------------------------------------------------- */

PyObject *device_object(uint32_t type, uint32_t id)
{
    if (type != CBD_DEVICE_CUDA)
        return PyUnicode_FromString("cpu");
    return id == CBD_DEVICE_ELSEWHERE ? PyUnicode_FromString("cuda:?") : PyUnicode_FromFormat("cuda:%u", (unsigned)id);
}

static int refuse_device(const char *argument, PyObject *from)
{
    PyErr_Format(PyExc_ValueError, "%s is %R: expected 'cpu', 'cuda:0' or another number, or a pair as __dlpack_device__ gives it, (1, 0) or (2, 0)",
                 argument, from);
    return -1;
}

/* "cpu", "cuda:N" */
static int parse_device(const char *text, uint32_t *type, uint32_t *id)
{
    unsigned number;
    int end = 0;
    *id = 0;
    *type = CBD_DEVICE_CPU;
    if (strcmp(text, "cpu") == 0)
        return 0;
    *type = CBD_DEVICE_CUDA;
    if (sscanf(text, "cuda:%4u%n", &number, &end) != 1 || text[end] != 0 || text[5] < '0' || text[5] > '9')
        return -1;
    *id = number;
    return 0;
}

int convert_device(PyObject *from, const char *argument, uint32_t *type, uint32_t *id)
{
    long first, second;
    if (from == NULL || from == Py_None)
        return 0;
    if (is_pair(from, &first, &second)) {
        if (first < 0 || second < 0 || first > INT32_MAX || second > INT32_MAX)
            return refuse_device(argument, from);
        *type = (uint32_t)first;
        *id = (uint32_t)second;
        return 0;
    }
    PyErr_Clear();
    PyObject *words = PyUnicode_Check(from) ? Py_NewRef(from) : has_type_name(from, "device") ? PyObject_Str(from) : NULL; /* PyTorch's */
    if (words == NULL) {
        if (!PyErr_Occurred())
            refuse_type(argument, "a device such as 'cuda:0', a pair of integers or None", from);
        return -1;
    }
    const char *text = convert_text(words, argument);
    int result = text == NULL ? -1 : parse_device(text, type, id) < 0 ? refuse_device(argument, from) : 0;
    Py_DECREF(words);
    return result;
}

/* ---- streams and events ------------------------------------------------------------ */

int convert_sync(PyObject *from, const char *argument, cbd_cuda_sync *sync)
{
    char element[ELEMENT_BYTES];
    *sync = (cbd_cuda_sync){0, 0};
    if (from == NULL || from == Py_None)
        return 0;
    if (!PyTuple_Check(from) || !has_type_name(from, "CudaSync") || PyTuple_Size(from) != 2) {
        refuse_type(argument, "a callboard.CudaSync or None", from);
        return -1;
    }
    if (convert_u64(PyTuple_GetItem(from, 0), element_of(element, argument, 0), &sync->stream) < 0)
        return -1;
    return convert_u64(PyTuple_GetItem(from, 1), element_of(element, argument, 1), &sync->wait_event);
}

PyObject *sync_object(const cbd_cuda_sync *sync)
{
    return PyObject_CallFunction(native.cuda_sync, "KK", (unsigned long long)sync->stream, (unsigned long long)sync->wait_event);
}

int stream_for(struct input *input, uint32_t device_id, uint64_t *stream)
{
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS /* the first call loads the driver and makes a context */
    status = cbd_cuda_stream(device_id, stream, &error);
    Py_END_ALLOW_THREADS
    input->has_stream = status == CBD_STATUS_OK;
    input->stream_device = device_id;
    if (status != CBD_STATUS_OK)
        raise_error(status, &error);
    return status == CBD_STATUS_OK ? 0 : -1;
}

/* ---- out: __cuda_array_interface__, version 3 ------------------------------------------ */

/* NumPy's letter of an element type, or 0. */
static char letter_of(uint8_t code)
{
    switch (code) {
    case CBD_DTYPE_BOOL:
        return 'b';
    case CBD_DTYPE_INT:
        return 'i';
    case CBD_DTYPE_UINT:
        return 'u';
    case CBD_DTYPE_FLOAT:
        return 'f';
    case CBD_DTYPE_COMPLEX:
        return 'c';
    default:
        return 0;
    }
}

PyObject *view_cuda_array_interface(PyObject *self, void *Py_UNUSED(closure))
{
    const View *view = (const View *)self;
    char type[8];
    if (view->device_type != CBD_DEVICE_CUDA || letter_of(view->code) == 0) {
        PyErr_Format(PyExc_AttributeError, view->device_type != CBD_DEVICE_CUDA
                                               ? "this view is in host memory and has no __cuda_array_interface__"
                                               : "__cuda_array_interface__ has no type for bfloat16 and float8: take the view's bits, or DLPack");
        return NULL;
    }
    snprintf(type, sizeof type, "%c%c%d", view->bits == 8 ? '|' : '<', letter_of(view->code), (int)view->item_bytes);
    PyObject *shape = shape_object(view->shape, view->ndim);
    if (shape == NULL)
        return NULL;
    /* no stream: nothing is on its way to what is sealed, and nobody else writes to what is mapped */
    return Py_BuildValue("{s:N,s:s,s:(KO),s:O,s:O,s:i}", "shape", shape, "typestr", type, "data",
                         view->length_bytes == 0 ? 0ull : (unsigned long long)(uintptr_t)view->data, view->readonly ? Py_True : Py_False, "strides",
                         Py_None, "stream", Py_None, "version", 3);
}

/* ---- in --------------------------------------------------------------------------------- */

/* The extents or strides of the interface into `to`; how many, or -1. */
static int read_extents(PyObject *from, const char *what, int64_t *to)
{
    if (from == NULL || !PyTuple_Check(from) || PyTuple_Size(from) > CBD_NDIM_MAX) {
        PyErr_Format(PyExc_TypeError, "%s of __cuda_array_interface__ must be a tuple of at most %d integers", what, CBD_NDIM_MAX);
        return -1;
    }
    int count = (int)PyTuple_Size(from);
    for (int i = 0; i < count; i++) {
        to[i] = PyLong_AsLongLong(PyTuple_GetItem(from, i));
        if (to[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return count;
}

/* Element type, extents and steps. */
static int read_layout(PyObject *interface, struct input *input)
{
    cbd_tensor *tensor = &input->tensor;
    PyObject *typestr = PyDict_GetItemString(interface, "typestr"), *strides = PyDict_GetItemString(interface, "strides");
    uint16_t lanes;
    if (typestr == NULL || convert_dtype(typestr, &tensor->code, &tensor->bits, &lanes) < 0 || input_room(input, CBD_NDIM_MAX) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__ has no typestr");
        return -1;
    }
    tensor->lanes = 1;
    tensor->ndim = read_extents(PyDict_GetItemString(interface, "shape"), "shape", input->shape);
    tensor->shape = input->shape;
    if (tensor->ndim < 0)
        return -1;
    if (strides == NULL || strides == Py_None)
        return 0;
    int count = read_extents(strides, "strides", input->strides);
    tensor->strides = input->strides;
    for (int i = 0; i < count; i++) {
        if (input->strides[i] % (tensor->bits / 8) != 0)
            count = CBD_NDIM_MAX + 1;
        else
            input->strides[i] /= tensor->bits / 8;
    }
    if (count != tensor->ndim && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "strides of __cuda_array_interface__ must be whole elements, one for each dimension");
    return count == tensor->ndim ? 0 : -1;
}

static int read_interface(PyObject *interface, struct input *input)
{
    PyObject *data = PyDict_GetItemString(interface, "data"), *stream = PyDict_GetItemString(interface, "stream");
    PyObject *mask = PyDict_GetItemString(interface, "mask");
    uint64_t address, queued;
    cbd_error error;
    cbd_status status;
    if (mask != NULL && mask != Py_None) {
        PyErr_SetString(PyExc_ValueError, "the array has a mask, which would be lost: write only the prims that have values, with mask=");
        return -1;
    }
    if (data == NULL || !PyTuple_Check(data) || PyTuple_Size(data) != 2) {
        PyErr_SetString(PyExc_TypeError, "data of __cuda_array_interface__ must be a pair of an address and a flag");
        return -1;
    }
    if (convert_u64(PyTuple_GetItem(data, 0), "data[0]", &address) < 0 || read_layout(interface, input) < 0)
        return -1;
    if (stream != NULL && stream != Py_None && input->sync.stream == 0) { /* behind what is queued there */
        if (convert_u64(stream, "stream of __cuda_array_interface__", &queued) < 0)
            return -1;
        input->sync.stream = queued;
    }
    input->tensor.data = (const void *)(uintptr_t)address;
    input->tensor.device_type = CBD_DEVICE_CUDA;
    if (address == 0)
        return 0; /* empty, and then it may lie anywhere */
    Py_BEGIN_ALLOW_THREADS
    status = cbd_cuda_device_of(input->tensor.data, &input->tensor.device_id, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        raise_error(status, &error);
    return status == CBD_STATUS_OK ? 0 : -1;
}

int cuda_array_take(PyObject *from, struct input *input)
{
    PyObject *interface = PyObject_GetAttrString(from, "__cuda_array_interface__");
    if (interface == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int result = -1;
    if (PyDict_Check(interface))
        result = read_interface(interface, input);
    else
        PyErr_Format(PyExc_TypeError, "__cuda_array_interface__ of %R is no dict", Py_TYPE(from));
    Py_DECREF(interface);
    return result < 0 ? -1 : 1;
}
