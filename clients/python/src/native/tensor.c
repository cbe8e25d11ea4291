/* A tensor of the caller, to be copied from: by the buffer protocol, by DLPack, or, for
 * numbers and nested lists, through NumPy. Nothing is converted: the types are as they come. */
#include "native.h"

#include <string.h>

#define ACCEPTED "accepted are bool, integers of 8 to 64 bits, float16 to float64, complex64 and complex128 in native order"

/* Sets the error for elements that have no type here; the array's own word for them, where it has one. */
static int refuse_elements(PyObject *from, const char *format)
{
    PyErr_Clear();
    PyObject *dtype = PyObject_GetAttrString(from, "dtype");
    if (dtype == NULL)
        PyErr_Clear();
    if (dtype != NULL)
        PyErr_Format(PyExc_ValueError, "elements of dtype %S cannot be exchanged; " ACCEPTED, dtype);
    else
        PyErr_Format(PyExc_ValueError, "elements of format '%.100s' cannot be exchanged; " ACCEPTED, format);
    Py_XDECREF(dtype);
    return -1;
}

/* The element type of a buffer, from the struct module's notation. */
static int format_of(PyObject *from, const Py_buffer *buffer, cbd_tensor *tensor)
{
    const char *format = buffer->format == NULL ? "B" : buffer->format, *at = format;
    if (*at == '>' || *at == '!') {
        PyErr_Format(PyExc_ValueError, "the array is big-endian (%s); convert it to native order first", format);
        return -1;
    }
    if (*at == '@' || *at == '=' || *at == '<' || *at == '^')
        at++;
    bool complex = *at == 'Z';
    if (complex)
        at++;
    int code = -1;
    if (complex)
        code = *at == 'f' || *at == 'd' ? CBD_DTYPE_COMPLEX : -1;
    else if (*at != 0 && strchr("bhilqn", *at) != NULL)
        code = CBD_DTYPE_INT;
    else if (*at != 0 && strchr("BHILQNc", *at) != NULL)
        code = CBD_DTYPE_UINT;
    else if (*at != 0 && strchr("efd", *at) != NULL)
        code = CBD_DTYPE_FLOAT;
    else if (*at == '?')
        code = CBD_DTYPE_BOOL;
    if (code < 0 || at[1] != 0 || buffer->itemsize < 1 || buffer->itemsize > 16)
        return refuse_elements(from, format);
    tensor->code = (uint8_t)code;
    tensor->bits = (uint8_t)(buffer->itemsize * 8);
    tensor->lanes = 1;
    return 0;
}

/* NumPy exports single dates as the bytes that they are made of. */
static bool is_date(PyObject *from)
{
    const char *type = Py_TYPE(from)->tp_name;
    return strcmp(type, "numpy.datetime64") == 0 || strcmp(type, "numpy.timedelta64") == 0;
}

int input_room(struct input *input, int ndim)
{
    input->shape = input->few;
    if (ndim > CBD_NDIM_MAX && (input->shape = PyMem_New(int64_t, 2 * (size_t)ndim)) == NULL) {
        input->shape = input->few;
        PyErr_NoMemory();
        return -1;
    }
    input->strides = input->shape + (ndim > CBD_NDIM_MAX ? ndim : CBD_NDIM_MAX);
    return 0;
}

static int from_buffer(struct input *input, PyObject *from)
{
    if (is_date(from))
        return refuse_elements(from, "B");
    if (PyObject_GetBuffer(from, &input->buffer, PyBUF_RECORDS_RO) < 0) {
        if (PyErr_ExceptionMatches(PyExc_ValueError) && PyObject_HasAttrString(from, "dtype"))
            return refuse_elements(from, "?"); /* dates and times have no format */
        return -1;
    }
    input->has_buffer = true;
    Py_buffer *buffer = &input->buffer;
    cbd_tensor *tensor = &input->tensor;
    if (format_of(from, buffer, tensor) < 0)
        return -1;
    if (PyObject_TypeCheck(from, &View_Type)) /* it knows more than its format can say */
        tensor->code = ((View *)from)->code;
    if (input_room(input, buffer->ndim) < 0)
        return -1;
    tensor->data = buffer->buf;
    tensor->ndim = buffer->ndim;
    tensor->shape = input->shape;
    tensor->strides = input->strides;
    bool whole = true; /* strides are whole elements */
    for (int i = 0; i < buffer->ndim; i++) {
        input->shape[i] = buffer->shape[i];
        input->strides[i] = buffer->strides[i] / buffer->itemsize;
        if (buffer->strides[i] % buffer->itemsize != 0)
            whole = false;
    }
    if (!whole) { /* a field of packed records: made compact here */
        input->copy = PyMem_Malloc(buffer->len > 0 ? (size_t)buffer->len : 1);
        if (input->copy == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        if (PyBuffer_ToContiguous(input->copy, buffer, buffer->len, 'C') < 0)
            return -1;
        tensor->data = input->copy;
        tensor->strides = NULL;
    }
    return 0;
}

static int from_dlpack(struct input *input, PyObject *from)
{
    PyObject *device = PyObject_CallMethod(from, "__dlpack_device__", NULL);
    if (device == NULL)
        return -1;
    int type = 0, id = 0;
    int parsed = PyTuple_Check(device) && PyTuple_GET_SIZE(device) == 2;
    if (parsed) { /* enums of integers come here too */
        type = (int)PyLong_AsLong(PyTuple_GET_ITEM(device, 0));
        id = (int)PyLong_AsLong(PyTuple_GET_ITEM(device, 1));
    }
    Py_DECREF(device);
    if (PyErr_Occurred())
        return -1;
    if (!parsed || (type != CBD_DEVICE_CPU && type != CBD_DEVICE_CUDA_HOST)) {
        raise_format(CBD_STATUS_NOT_SUPPORTED,
                     "the tensor is on device (%d, %d), and device memory is not part of this version: copy it to the "
                     "host first",
                     type, id);
        return -1;
    }
    if (type == CBD_DEVICE_CPU && id != 0) {
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "the tensor is on CPU device %d: expected 0, there is no other", id);
        return -1;
    }
    PyObject *method = PyObject_GetAttrString(from, "__dlpack__");
    if (method == NULL)
        return -1;
    PyObject *none = PyTuple_New(0), *options = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
    PyObject *capsule = none == NULL || options == NULL ? NULL : PyObject_Call(method, none, options);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) { /* a producer from before version 1 */
        PyErr_Clear();
        capsule = PyObject_CallNoArgs(method);
    }
    Py_XDECREF(none);
    Py_XDECREF(options);
    Py_DECREF(method);
    if (capsule == NULL)
        return -1;
    int result = dlpack_take(capsule, input);
    Py_DECREF(capsule);
    return result;
}

/* A list of tensors is not one tensor: NumPy would stack them, and the rows would be guessed. */
static int refuse_list_of_tensors(PyObject *list)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(list);
    if (size == 0)
        return 0;
    PyObject *first = PySequence_Fast_GET_ITEM(list, 0);
    if (!PyObject_HasAttrString(first, "__dlpack__") && !PyMemoryView_Check(first) && !PyBytes_Check(first))
        return 0;
    raise_format(CBD_STATUS_INVALID_ARGUMENT, "got a list of %zd tensors, expected one tensor: a fixed attribute takes "
                                              "exactly one", size);
    return -1;
}

static int from_numbers(struct input *input, PyObject *from)
{
    bool list = PyList_Check(from) || PyTuple_Check(from);
    bool other = PyObject_HasAttrString(from, "__array__") || PyObject_HasAttrString(from, "__array_interface__");
    if (list && refuse_list_of_tensors(from) < 0)
        return -1;
    PyObject *asarray = NULL;
    if (list || other || PyFloat_Check(from) || PyLong_Check(from) || PyComplex_Check(from))
        asarray = numpy_function("asarray");
    if (asarray == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError,
                         "the data must be an array (buffer protocol or DLPack; with NumPy also numbers and lists), not "
                         "%.100s",
                         Py_TYPE(from)->tp_name);
        return -1;
    }
    PyObject *array = PyObject_CallOneArg(asarray, from);
    Py_DECREF(asarray);
    if (array == NULL)
        return -1;
    int result = from_buffer(input, array);
    Py_DECREF(array); /* the buffer keeps it */
    return result;
}

/* The caller's word on the type: lanes fold trailing dimensions, and types that NumPy
 * does not have may come as unsigned integers of their width. */
static int apply_dtype(cbd_tensor *tensor, PyObject *dtype)
{
    uint8_t code, bits;
    uint16_t lanes;
    if (convert_dtype(dtype, &code, &bits, &lanes) < 0)
        return -1;
    bool opaque = code == CBD_DTYPE_BFLOAT || code > CBD_DTYPE_BOOL;
    if (bits != tensor->bits || (code != tensor->code && !(opaque && tensor->code == CBD_DTYPE_UINT))) {
        PyObject *has = dtype_object(tensor->code, tensor->bits, tensor->lanes);
        PyErr_Format(PyExc_ValueError, "dtype is %S, the data is %S; nothing is converted", dtype, has);
        Py_XDECREF(has);
        return -1;
    }
    tensor->code = code;
    int64_t folded = tensor->lanes;
    for (int32_t i = tensor->ndim - 1; i > 0 && folded < lanes; i--)
        if (__builtin_mul_overflow(folded, tensor->shape[i], &folded))
            folded = INT64_MAX; /* above any number of lanes */
    if (folded != lanes) {
        PyErr_Format(PyExc_ValueError, "dtype has %d lanes, and the trailing dimensions of the data do not fold into that",
                     (int)lanes);
        return -1;
    }
    return 0;
}

int input_open(struct input *input, PyObject *from, PyObject *dtype)
{
    memset(&input->tensor, 0, sizeof input->tensor);
    input->shape = input->few;
    input->has_buffer = input->versioned = false;
    input->managed = input->copy = NULL;

    int result;
    if (PyObject_CheckBuffer(from))
        result = from_buffer(input, from);
    else if ((result = exchange_take(from, input)) != 0)
        result = result < 0 ? -1 : 0;
    else if (PyObject_HasAttrString(from, "__dlpack__") && PyObject_HasAttrString(from, "__dlpack_device__"))
        result = from_dlpack(input, from);
    else
        result = from_numbers(input, from);
    if (result == 0 && dtype != NULL && dtype != Py_None)
        result = apply_dtype(&input->tensor, dtype);
    if (result < 0)
        input_close(input);
    return result;
}

/* ---- elements of an array attribute --------------------------------------------------- */

/* Row-major, from dimension `at` on. */
static char *copy_compact(char *to, const char *from, const cbd_tensor *tensor, int32_t at, int64_t item)
{
    if (at == tensor->ndim) {
        memcpy(to, from, (size_t)item);
        return to + item;
    }
    for (int64_t i = 0; i < tensor->shape[at]; i++)
        to = copy_compact(to, from + i * tensor->strides[at] * item, tensor, at + 1, item);
    return to;
}

/* Makes lanes of the trailing dimensions, in place where they lie compact. */
static int fold_lanes(struct input *input, uint16_t lanes)
{
    cbd_tensor *tensor = &input->tensor;
    int64_t folded = tensor->lanes, item = tensor->bits / 8 * (int64_t)tensor->lanes, count = 1;
    int32_t kept = tensor->ndim;
    bool compact = true;
    if (tensor->lanes == lanes)
        return 0;
    for (; kept > 1 && folded < lanes; kept--) { /* apply_dtype has seen that this ends at lanes */
        if (tensor->strides != NULL && tensor->shape[kept - 1] != 1 && tensor->strides[kept - 1] * tensor->lanes != folded)
            compact = false;
        folded *= tensor->shape[kept - 1];
    }
    int64_t by = folded / tensor->lanes;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        count *= tensor->shape[i];
        if (i < kept && tensor->strides != NULL && tensor->strides[i] % by != 0)
            compact = false;
    }
    if (!compact && count > 0) {
        void *copy = PyMem_Malloc((size_t)(count * item));
        if (copy == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        copy_compact(copy, tensor->data, tensor, 0, item);
        PyMem_Free(input->copy);
        tensor->data = input->copy = copy;
        tensor->strides = NULL;
    }
    for (int32_t i = 0; i < kept && tensor->strides != NULL; i++)
        input->strides[i] /= by;
    tensor->ndim = kept;
    tensor->lanes = lanes;
    return 0;
}

int input_open_elements(struct input *input, PyObject *from, PyObject *dtype)
{
    PyObject *bytes = PyUnicode_Check(from) ? PyUnicode_AsUTF8String(from) : Py_NewRef(from);
    if (bytes == NULL)
        return -1;
    int result = input_open(input, bytes, dtype);
    Py_DECREF(bytes); /* the buffer keeps it */
    if (result < 0 || dtype == NULL || dtype == Py_None)
        return result;
    uint8_t code, bits;
    uint16_t lanes;
    if (convert_dtype(dtype, &code, &bits, &lanes) < 0 || fold_lanes(input, lanes) < 0) {
        input_close(input);
        return -1;
    }
    return 0;
}

void input_close(struct input *input)
{
    /* An exception may be on its way past here; the exporter must not disturb it. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (input->has_buffer)
        PyBuffer_Release(&input->buffer);
    if (input->managed != NULL)
        dlpack_give_back(input);
    PyMem_Free(input->copy);
    if (input->shape != input->few)
        PyMem_Free(input->shape);
    input->shape = input->few;
    input->has_buffer = false;
    input->copy = NULL;
    PyErr_Restore(type, value, traceback);
}
