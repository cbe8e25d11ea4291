/* A tensor of the caller, to be copied from: by the buffer protocol, by DLPack, by CUDA's array interface, or, for
 * numbers and nested lists, through NumPy. Nothing is converted: the types are as they come. */
#include "native.h"

#include <string.h>

#define ACCEPTED "accepted are bool, integers of 8 to 64 bits, float16 to float64, complex64, complex128, bfloat16 and float8, in native order"

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

/* The letters of the struct module that have a type here, and the bytes that they stand for, natively and by the
 * standard: 0, none. F and D are complex, which NumPy writes as Zf and Zd. */
static const struct letter {
    char letter;
    uint8_t code, native, standard;
} letters[] = {
    {'?', CBD_DTYPE_BOOL, 1, 1},  {'b', CBD_DTYPE_INT, 1, 1},   {'h', CBD_DTYPE_INT, 2, 2},      {'i', CBD_DTYPE_INT, 4, 4},
    {'l', CBD_DTYPE_INT, 8, 4},   {'q', CBD_DTYPE_INT, 8, 8},   {'n', CBD_DTYPE_INT, 8, 0},      {'B', CBD_DTYPE_UINT, 1, 1},
    {'c', CBD_DTYPE_UINT, 1, 1},  {'H', CBD_DTYPE_UINT, 2, 2},  {'I', CBD_DTYPE_UINT, 4, 4},     {'L', CBD_DTYPE_UINT, 8, 4},
    {'Q', CBD_DTYPE_UINT, 8, 8},  {'N', CBD_DTYPE_UINT, 8, 0},  {'e', CBD_DTYPE_FLOAT, 2, 2},    {'f', CBD_DTYPE_FLOAT, 4, 4},
    {'d', CBD_DTYPE_FLOAT, 8, 8}, {'F', CBD_DTYPE_COMPLEX, 8, 8}, {'D', CBD_DTYPE_COMPLEX, 16, 16},
};

static const struct letter *letter_of(const char *text)
{
    char letter = text[0] != 'Z' ? text[0] : text[1] == 'f' ? 'F' : text[1] == 'd' ? 'D' : 0;
    if (letter == 0 || text[text[0] == 'Z' ? 2 : 1] != 0)
        return NULL; /* several fields, or padding */
    for (size_t i = 0; i < sizeof letters / sizeof letters[0]; i++)
        if (letters[i].letter == letter)
            return &letters[i];
    return NULL;
}

/* The element type of a buffer, from the struct module's notation. */
static int format_of(PyObject *from, const Py_buffer *buffer, cbd_tensor *tensor)
{
    const char *format = buffer->format == NULL ? "B" : buffer->format;
    const struct letter *letter = letter_of(format + (strchr("@=<>!^", format[0]) != NULL && format[0] != 0));
    if (letter == NULL || (buffer->itemsize != letter->native && buffer->itemsize != letter->standard))
        return refuse_elements(from, format);
    if ((format[0] == '>' || format[0] == '!') && buffer->itemsize > 1) {
        PyErr_Format(PyExc_ValueError, "the array is big-endian (%s); convert it to native order first", format);
        return -1;
    }
    tensor->code = letter->code;
    tensor->bits = (uint8_t)(buffer->itemsize * 8);
    tensor->lanes = 1;
    return 0;
}

/* NumPy exports single dates as the bytes that they are made of. */
static bool is_date(PyObject *from)
{
    return has_type_name(from, "datetime64") || has_type_name(from, "timedelta64");
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

static int from_buffer(struct input *input, PyObject *from);
/* What gave no buffer, for a reason that is set: for want of a format, which bfloat16 and float8 lack, and dates. Of the
 * first NumPy gives the bits. Sets the exception anew where it knows more. */
static int from_formatless(struct input *input, PyObject *from)
{
    PyObject *type, *value, *traceback;
    uint8_t code = 0, bits = 0;
    uint16_t lanes;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *dtype = PyObject_GetAttrString(from, "dtype");
    int known = dtype == NULL ? -1 : convert_dtype(dtype, &code, &bits, &lanes);
    bool other = dtype == NULL || (known == 0 && !(is_opaque(code) && PyObject_HasAttrString(from, "__array_interface__")));
    Py_XDECREF(dtype);
    if (other) { /* it was something else */
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    if (known < 0)
        return refuse_elements(from, "?");
    PyObject *integers = PyObject_CallMethod(from, "view", "s", bits == 8 ? "u1" : "u2");
    int result = integers == NULL ? -1 : from_buffer(input, integers);
    Py_XDECREF(integers); /* the buffer keeps it */
    input->tensor.code = code;
    return result;
}

/* Rows of pointers, and steps that are not whole elements: a field of packed records. */
static bool must_be_gathered(const Py_buffer *buffer)
{
    for (int i = 0; i < buffer->ndim; i++)
        if ((buffer->suboffsets != NULL && buffer->suboffsets[i] >= 0) ||
            (buffer->strides != NULL && buffer->strides[i] % buffer->itemsize != 0))
            return true;
    return false;
}

static int from_buffer(struct input *input, PyObject *from)
{
    bool is_view = PyObject_TypeCheck(from, View_Type); /* it knows more than a format can say */
    if (PyObject_GetBuffer(from, &input->buffer, is_view ? PyBUF_STRIDED_RO : PyBUF_FULL_RO) < 0)
        return from_formatless(input, from);
    input->has_buffer = true;
    Py_buffer *buffer = &input->buffer;
    cbd_tensor *tensor = &input->tensor;
    if (is_view)
        *tensor = (cbd_tensor){.code = ((View *)from)->code, .bits = ((View *)from)->bits, .lanes = 1};
    else if (format_of(from, buffer, tensor) < 0)
        return -1;
    if (tensor->code == CBD_DTYPE_UINT && buffer->itemsize == 1 && is_date(from))
        return refuse_elements(from, "B");
    if (buffer->ndim > 0 && buffer->shape == NULL) {
        PyErr_Format(PyExc_BufferError, "the buffer has %d dimensions and no shape", buffer->ndim);
        return -1;
    }
    if (input_room(input, buffer->ndim) < 0)
        return -1;
    tensor->data = buffer->buf;
    tensor->ndim = buffer->ndim;
    tensor->shape = input->shape;
    tensor->strides = buffer->strides == NULL ? NULL : input->strides; /* of ctypes there are none, though asked for */
    for (int i = 0; i < buffer->ndim; i++) {
        input->shape[i] = buffer->shape[i];
        if (buffer->strides != NULL)
            input->strides[i] = buffer->strides[i] / buffer->itemsize;
    }
    if (!must_be_gathered(buffer))
        return 0;
    input->gathered = PyMem_Malloc(buffer->len > 0 ? (size_t)buffer->len : 1);
    if (input->gathered == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    tensor->data = input->gathered;
    tensor->strides = NULL;
    return PyBuffer_ToContiguous(input->gathered, buffer, buffer->len, 'C');
}

/* method(**options); takes the options. */
static PyObject *call_with(PyObject *method, PyObject *options)
{
    PyObject *none = PyTuple_New(0);
    PyObject *result = none == NULL || options == NULL ? NULL : PyObject_Call(method, none, options);
    Py_XDECREF(none);
    Py_XDECREF(options);
    return result;
}

/* Takes the capsule, NULL too. */
static int take_capsule(struct input *input, PyObject *capsule)
{
    int result = capsule == NULL ? -1 : dlpack_take(capsule, input);
    Py_XDECREF(capsule);
    return result;
}

/* Of a GPU the producer orders its work before the stream that will copy: the caller's, or the C client's own. */
static int from_gpu(struct input *input, PyObject *from, long id)
{
    uint64_t stream = input->sync.stream;
    if (id < 0 || id > INT32_MAX) {
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "the tensor is on GPU %ld: expected a number from 0 on", id);
        return -1;
    }
    PyObject *method = stream == 0 && stream_for(input, (uint32_t)id, &stream) < 0 ? NULL : PyObject_GetAttrString(from, "__dlpack__");
    if (method == NULL)
        return -1;
    PyObject *capsule = call_with(method, Py_BuildValue("{s:K,s:(ii)}", "stream", (unsigned long long)stream, "max_version", 1, 3));
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) { /* a producer from before version 1 */
        PyErr_Clear();
        capsule = call_with(method, Py_BuildValue("{s:K}", "stream", (unsigned long long)stream));
    }
    Py_DECREF(method);
    return take_capsule(input, capsule);
}

static int from_dlpack(struct input *input, PyObject *from)
{
    PyObject *device = PyObject_CallMethod(from, "__dlpack_device__", NULL);
    if (device == NULL)
        return -1;
    long type, id; /* enums of integers come here too */
    if (!is_pair(device, &type, &id)) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "__dlpack_device__ of %R gave %R: expected a tuple of two integers, the device's type and number",
                         Py_TYPE(from), device);
        }
        Py_DECREF(device);
        return -1;
    }
    Py_DECREF(device);
    bool on_gpu = type == CBD_DEVICE_CUDA || type == CBD_DEVICE_CUDA_MANAGED;
    if (type != CBD_DEVICE_CPU && type != CBD_DEVICE_CUDA_HOST && !on_gpu) {
        raise_format(CBD_STATUS_NOT_SUPPORTED,
                     "the tensor is on device (%ld, %ld): expected the host (types %d and %d) or a GPU of CUDA (%d and %d); copy it to the host first",
                     type, id, CBD_DEVICE_CPU, CBD_DEVICE_CUDA_HOST, CBD_DEVICE_CUDA, CBD_DEVICE_CUDA_MANAGED);
        return -1;
    }
    if (on_gpu)
        return from_gpu(input, from, id);
    if (type == CBD_DEVICE_CPU && id != 0) {
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "the tensor is on CPU device %ld: expected 0, there is no other", id);
        return -1;
    }
    PyObject *method = PyObject_GetAttrString(from, "__dlpack__");
    if (method == NULL)
        return -1;
    PyObject *capsule = call_with(method, Py_BuildValue("{s:(ii)}", "max_version", 1, 0));
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) { /* a producer from before version 1 */
        PyErr_Clear();
        capsule = PyObject_CallNoArgs(method);
    }
    Py_DECREF(method);
    return take_capsule(input, capsule);
}

static bool has_dlpack(PyObject *from)
{
    return PyObject_HasAttrString(from, "__dlpack__") && PyObject_HasAttrString(from, "__dlpack_device__");
}

/* What a buffer cannot say DLPack may: JAX gives none of bfloat16, or on a GPU, and TensorFlow one of a format of its own.
 * Where neither can, DLPack's error counts if there was no buffer at all, else the format's. */
static int from_buffer_or_dlpack(struct input *input, PyObject *from)
{
    PyObject *type, *value, *traceback;
    if (from_buffer(input, from) == 0)
        return 0;
    bool none = PyErr_ExceptionMatches(PyExc_BufferError), refused = none || PyErr_ExceptionMatches(PyExc_ValueError);
    PyErr_Fetch(&type, &value, &traceback);
    bool possible = refused && has_dlpack(from);
    input_close(input);
    int result = possible ? from_dlpack(input, from) : -1;
    if (result < 0 && !(possible && none)) {
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return result;
}

/* A list of tensors is not one tensor: NumPy would stack them, and the rows would be guessed. */
static int refuse_list_of_tensors(PyObject *list)
{
    Py_ssize_t size = PySequence_Size(list);
    PyObject *first = size <= 0 ? NULL : PySequence_GetItem(list, 0);
    if (first == NULL)
        return size == 0 ? 0 : -1;
    bool tensor = PyObject_HasAttrString(first, "__dlpack__") || PyMemoryView_Check(first) || PyBytes_Check(first);
    Py_DECREF(first);
    if (!tensor)
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
            refuse_type("the data", "an array (buffer protocol, DLPack, CUDA's array interface; with NumPy also numbers and lists)", from);
        return -1;
    }
    PyObject *array = PyObject_CallFunctionObjArgs(asarray, from, NULL);
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
    if (bits != tensor->bits || (code != tensor->code && !(is_opaque(code) && tensor->code == CBD_DTYPE_UINT))) {
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

/* numpy.ma: the buffer of an array has what lies under its mask, too. Arrays without any element masked are like others. */
static int refuse_masked(PyObject *from)
{
    if (has_type_name(from, "ndarray") || !PyObject_HasAttrString(from, "mask") || !PyObject_HasAttrString(from, "filled"))
        return 0;
    PyObject *mask = PyObject_GetAttrString(from, "mask");
    PyObject *any = mask == NULL ? NULL : PyObject_CallMethod(mask, "any", NULL);
    int masked = any == NULL ? -1 : PyObject_IsTrue(any);
    Py_XDECREF(mask);
    Py_XDECREF(any);
    if (masked == 1)
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "the array has masked elements, and its mask would be lost: fill them in with "
                                                  ".filled(), or write only the prims that have values, with mask=");
    return masked == 0 ? 0 : -1;
}

int input_open(struct input *input, PyObject *from, PyObject *dtype)
{
    memset(&input->tensor, 0, sizeof input->tensor);
    input->shape = input->few;
    input->has_buffer = input->versioned = input->has_stream = false;
    input->managed = input->gathered = NULL;
    input->folded = NULL;

    int result;
    if (PyObject_CheckBuffer(from))
        result = refuse_masked(from) < 0 ? -1 : from_buffer_or_dlpack(input, from);
    else if ((result = exchange_take(from, input)) != 0)
        result = result < 0 ? -1 : 0;
    else if (has_dlpack(from))
        result = from_dlpack(input, from);
    else if ((result = cuda_array_take(from, input)) != 0)
        result = result < 0 ? -1 : 0;
    else
        result = from_numbers(input, from);
    if (result == 0 && dtype != NULL && dtype != Py_None)
        result = apply_dtype(&input->tensor, dtype);
    if (result < 0)
        input_close(input);
    return result;
}

/* ---- elements of an array attribute --------------------------------------------------- */

/* Makes lanes of the trailing dimensions, in place where they lie compact. */
static int fold_lanes(struct input *input, uint16_t lanes)
{
    cbd_tensor *tensor = &input->tensor;
    int64_t folded = tensor->lanes;
    int32_t kept = tensor->ndim;
    bool compact = true;
    if (tensor->lanes == lanes)
        return 0;
    for (; kept > 1 && folded < lanes; kept--) { /* apply_dtype has seen that this ends at lanes */
        if (tensor->strides != NULL && tensor->shape[kept - 1] != 1 && tensor->strides[kept - 1] != folded / tensor->lanes)
            compact = false;
        folded *= tensor->shape[kept - 1];
    }
    int64_t by = folded / tensor->lanes;
    for (int32_t i = 0; i < kept && tensor->strides != NULL; i++)
        if (tensor->strides[i] % by != 0)
            compact = false;
    if (!compact) {
        cbd_error error;
        cbd_status status = cbd_tensor_copy(tensor, &input->folded, &error);
        if (status != CBD_STATUS_OK) {
            raise_error(status, &error);
            return -1;
        }
        tensor->data = input->folded->data;
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
    if (input->has_stream) {
        Py_BEGIN_ALLOW_THREADS /* its context may go with it */
        cbd_cuda_stream_release(input->stream_device);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(input->gathered);
    cbd_tensor_free(input->folded);
    if (input->shape != input->few)
        PyMem_Free(input->shape);
    input->shape = input->few;
    input->has_buffer = input->has_stream = false;
    input->gathered = NULL;
    input->folded = NULL;
    PyErr_Restore(type, value, traceback);
}
