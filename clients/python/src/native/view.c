/* View: an array in shared memory, with what is known of it. NumPy looks at it through
 * the buffer protocol, everybody else through DLPack (dlpack.c). */
#include "native.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

static char nothing[1]; /* where a view without bytes points to */

View *view_new(struct lease *lease, const void *data, bool readonly, uint8_t code, uint8_t bits, int ndim,
               const int64_t *shape)
{
    if (lease == NULL)
        return (View *)PyErr_NoMemory();
    View *view = PyObject_New(View, View_Type);
    if (view == NULL) {
        lease_drop(lease);
        return NULL;
    }
    view->lease = lease;
    view->data = data == NULL ? nothing : (void *)data;
    view->readonly = readonly;
    view->code = code;
    view->bits = bits;
    view->device_type = CBD_DEVICE_CPU;
    view->device_id = 0;
    view->group = NULL;
    view->ndim = ndim;
    view->item_bytes = bits / 8;
    size_t length = (size_t)view->item_bytes, step = length; /* of an empty one both may wrap: no stride is used */
    for (int i = ndim - 1; i >= 0; i--) {
        view->shape[i] = (Py_ssize_t)shape[i];
        /* As NumPy has it: an empty dimension does not make the strides of the others 0. */
        view->strides[i] = (Py_ssize_t)step;
        step *= shape[i] > 0 ? (size_t)shape[i] : 1;
        length *= (size_t)shape[i];
    }
    view->length_bytes = (Py_ssize_t)length;
    view->attribute = NULL;
    view->semantic = 0;
    view->ordinal = view->epoch = view->floor = view->stamp_ns = 0;
    view->weakrefs = NULL;
    return view;
}

View *view_on(View *view, uint32_t device_type, uint32_t device_id)
{
    if (view == NULL || device_type != CBD_DEVICE_CUDA)
        return view;
    view->device_type = device_type;
    view->device_id = device_id;
    if (view->data == nothing)
        view->data = NULL;
    return view;
}

int check_on_host(const View *view)
{
    if (view->device_type == CBD_DEVICE_CPU)
        return 0;
    PyErr_Format(PyExc_BufferError,
                 view->group != NULL
                     ? "this view lies on cuda:%u, where the host cannot look: read it with device='cpu' (latest, read_attributes, Snapshot.read), "
                       "export it with dl_device=(1, 0), or give it to a library that is on that GPU, by DLPack"
                     : "this view lies on cuda:%u, where the host cannot look: give it to a library that is on that GPU, by DLPack, or map with "
                       "staging='cpu'",
                 (unsigned)view->device_id);
    return -1;
}

View *view_of_elements(struct lease *lease, const void *data, bool readonly, const cbd_schema *schema, uint64_t elements)
{
    const int64_t shape[2] = {(int64_t)elements, schema->lanes};
    return view_new(lease, data, readonly, schema->code, schema->bits, schema->lanes > 1 ? 2 : 1, shape);
}

static void view_dealloc(PyObject *self)
{
    View *view = (View *)self;
    if (view->weakrefs != NULL)
        PyObject_ClearWeakRefs(self);
    lease_drop(view->lease);
    Py_XDECREF(view->attribute);
    object_free(self);
}

/* The same bytes as unsigned integers of their width. */
static View *view_of_bits(const View *view)
{
    int64_t shape[CBD_NDIM_MAX];
    for (int i = 0; i < view->ndim; i++)
        shape[i] = view->shape[i];
    lease_retain(view->lease);
    View *bits = view_on(view_new(view->lease, view->data, view->readonly, CBD_DTYPE_UINT, view->bits, view->ndim, shape), view->device_type,
                         view->device_id);
    if (bits != NULL) {
        bits->group = view->group;
        bits->attribute = Py_XNewRef(view->attribute);
        bits->ordinal = view->ordinal;
        bits->epoch = view->epoch;
        bits->floor = view->floor;
        bits->stamp_ns = view->stamp_ns;
    }
    return bits;
}

View *view_flat(View *view)
{
    if (view == NULL)
        return NULL;
    int64_t count = view->length_bytes / view->item_bytes;
    lease_retain(view->lease);
    View *flat = view_on(view_new(view->lease, view->data, view->readonly, view->code, view->bits, 1, &count), view->device_type, view->device_id);
    if (flat != NULL)
        flat->group = view->group;
    Py_DECREF(view);
    return flat;
}

/* The array of a type that NumPy lacks, by way of its bits. Takes them. */
static PyObject *opaque_array(const View *view, PyObject *bits)
{
    PyObject *dtype = bits == NULL ? NULL : dtype_object(view->code, view->bits, 1);
    PyObject *has = dtype == NULL ? NULL : PyObject_GetAttrString(dtype, "numpy");
    PyObject *array = has == NULL ? NULL : PyObject_CallMethod(bits, "view", "O", has);
    Py_XDECREF(has);
    Py_XDECREF(dtype);
    Py_XDECREF(bits);
    return array;
}

PyObject *view_array(View *view)
{
    if (view == NULL || view->device_type != CBD_DEVICE_CPU)
        return (PyObject *)view;
    View *bits = is_opaque(view->code) ? view_of_bits(view) : NULL;
    PyObject *array = is_opaque(view->code) && bits == NULL ? NULL : numpy_array(bits != NULL ? bits : view);
    if (array == NULL && !PyErr_Occurred()) { /* there is no NumPy */
        Py_XDECREF((PyObject *)bits);
        return (PyObject *)view;
    }
    if (bits != NULL)
        array = opaque_array(view, array);
    Py_XDECREF((PyObject *)bits);
    Py_DECREF(view);
    return array;
}

PyObject *array_of_copy(const void *data, size_t n, uint8_t code, uint8_t bits)
{
    size_t bytes = n * (bits / 8);
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy != NULL && bytes > 0)
        memcpy(copy, data, bytes);
    int64_t shape = (int64_t)n;
    return view_array(view_new(lease_of_memory(copy), copy, true, code, bits, 1, &shape));
}

/* ---- the buffer protocol ------------------------------------------------------- */

/* Row-major is column-major too where at most one dimension has more than one step. */
static bool is_column_major(const View *view)
{
    int wide = 0;
    for (int i = 0; i < view->ndim; i++)
        wide += view->shape[i] != 1;
    return wide <= 1 || view->length_bytes == 0;
}

static int view_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
    View *view = (View *)self;
    const char *refused = NULL;
    buffer->obj = NULL;
    if (check_on_host(view) < 0)
        return -1;
    if ((flags & PyBUF_WRITABLE) && view->readonly)
        refused = "this view is read-only: others look at the same memory";
    else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_column_major(view))
        refused = "this view is row-major";
    else if ((flags & PyBUF_FORMAT) && is_opaque(view->code))
        refused = "a buffer has no format for bfloat16 and float8: take the view's bits, its numpy() or DLPack";
    if (refused != NULL) {
        PyErr_SetString(PyExc_BufferError, refused);
        return -1;
    }
    bool shaped = (flags & PyBUF_ND) == PyBUF_ND; /* else bytes, one after the other */
    bool dimensions = shaped && view->ndim > 0;   /* a single value has neither extents nor strides */
    buffer->buf = view->data;
    buffer->len = view->length_bytes;
    buffer->itemsize = view->item_bytes;
    buffer->readonly = view->readonly;
    buffer->ndim = shaped ? view->ndim : 1;
    buffer->format = (flags & PyBUF_FORMAT) ? (char *)cbd_buffer_format(view->code, view->bits) : NULL;
    buffer->shape = dimensions ? view->shape : NULL;
    buffer->strides = dimensions && (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? view->strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    buffer->obj = Py_NewRef(self);
    return 0;
}

/* ---- as an array ----------------------------------------------------------------------- */

/* The NumPy array, or without NumPy a memoryview, which of a type without a format shows the bits. */
static PyObject *view_plain(PyObject *self)
{
    if (check_on_host((View *)self) < 0)
        return NULL;
    PyObject *array = view_array((View *)Py_NewRef(self));
    if (array != self)
        return array;
    Py_DECREF(array);
    PyObject *bits = is_opaque(((View *)self)->code) ? (PyObject *)view_of_bits((View *)self) : Py_NewRef(self);
    PyObject *memory = bits == NULL ? NULL : PyMemoryView_FromObject(bits);
    Py_XDECREF(bits);
    return memory;
}

static PyObject *view_numpy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (check_on_host((View *)self) < 0)
        return NULL;
    PyObject *array = view_array((View *)Py_NewRef(self));
    if (array == self) {
        Py_DECREF(array);
        PyErr_SetString(PyExc_ImportError, "NumPy is not installed");
        return NULL;
    }
    return array;
}

static PyObject *view_as_array(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO", names, &dtype, &copy))
        return NULL;
    int wanted = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (wanted < 0)
        return NULL;
    PyObject *array = view_numpy(self, NULL);
    if (array == NULL || (dtype == Py_None && !wanted))
        return array;
    PyObject *has = PyObject_GetAttrString(array, "dtype");
    int same = has == NULL ? -1 : dtype == Py_None ? 1 : PyObject_RichCompareBool(has, dtype, Py_EQ);
    PyObject *result = NULL;
    if (same > 0 && !wanted)
        result = Py_NewRef(array);
    else if (same == 0 && copy == Py_False)
        PyErr_SetString(PyExc_ValueError, "another dtype needs a copy, and copy=False forbids it");
    else if (same >= 0)
        result = PyObject_CallMethod(array, "astype", "O", dtype == Py_None ? has : dtype);
    Py_XDECREF(has);
    Py_DECREF(array);
    return result;
}

/* A copy on the GPU, by PyTorch, which is done when this returns: what was copied from may go then. Takes the tensor. */
static PyObject *torch_copy(PyObject *tensor)
{
    PyObject *copy = tensor == NULL ? NULL : PyObject_CallMethod(tensor, "clone", NULL), *waited = NULL;
    PyObject *device = copy == NULL ? NULL : PyObject_GetAttrString(copy, "device");
    PyObject *cuda = device == NULL ? NULL : PyImport_ImportModule("torch.cuda");
    PyObject *stream = cuda == NULL ? NULL : PyObject_CallMethod(cuda, "current_stream", "O", device);
    if (stream != NULL)
        waited = PyObject_CallMethod(stream, "synchronize", NULL);
    if (waited == NULL)
        Py_CLEAR(copy);
    Py_XDECREF(waited);
    Py_XDECREF(stream);
    Py_XDECREF(cuda);
    Py_XDECREF(device);
    Py_XDECREF(tensor);
    return copy;
}

static PyObject *view_torch(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"copy", NULL};
    int copy = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$p", names, &copy))
        return NULL;
    PyObject *torch = PyImport_ImportModule("torch.utils.dlpack");
    if (torch == NULL)
        return NULL;
    bool here = ((View *)self)->device_type == CBD_DEVICE_CPU;
    PyObject *capsule = view_capsule((View *)self, false, copy && here ? CBD_DLPACK_COPY : 0);
    PyObject *result = capsule == NULL ? NULL : PyObject_CallMethod(torch, "from_dlpack", "O", capsule);
    Py_XDECREF(capsule);
    Py_DECREF(torch);
    return copy && !here ? torch_copy(result) : result;
}

static PyObject *view_item(PyObject *self, PyObject *Py_UNUSED(unused))
{
    View *view = (View *)self;
    if (check_on_host(view) < 0)
        return NULL;
    if (view->length_bytes != view->item_bytes) {
        PyErr_Format(PyExc_ValueError, "item() needs one value, this view has %zd",
                     view->length_bytes / view->item_bytes);
        return NULL;
    }
    View *one = view_new((lease_retain(view->lease), view->lease), view->data, true, view->code, view->bits, 0, NULL);
    PyObject *plain = one == NULL ? NULL : view_plain((PyObject *)one);
    Py_XDECREF((PyObject *)one);
    PyObject *empty = plain == NULL ? NULL : PyTuple_New(0);
    PyObject *value = empty == NULL ? NULL : PyObject_GetItem(plain, empty);
    Py_XDECREF(empty);
    Py_XDECREF(plain);
    if (value != NULL && PyObject_HasAttrString(value, "item")) /* a scalar of NumPy */
        replace(&value, PyObject_CallMethod(value, "item", NULL));
    return value;
}

static PyObject *view_float(PyObject *self)
{
    PyObject *item = view_item(self, NULL);
    PyObject *number = item == NULL ? NULL : PyNumber_Float(item);
    Py_XDECREF(item);
    return number;
}

static PyObject *view_int(PyObject *self)
{
    PyObject *item = view_item(self, NULL);
    PyObject *number = item == NULL ? NULL : PyNumber_Long(item);
    Py_XDECREF(item);
    return number;
}

static int view_bool(PyObject *self)
{
    PyObject *plain = view_plain(self);
    int truth = -1;
    if (plain != NULL && PyMemoryView_Check(plain)) {
        PyObject *item = view_item(self, NULL);
        truth = item == NULL ? -1 : PyObject_IsTrue(item);
        Py_XDECREF(item);
    } else if (plain != NULL) {
        truth = PyObject_IsTrue(plain); /* NumPy's own answer, and its refusal */
    }
    Py_XDECREF(plain);
    return truth;
}

static Py_ssize_t view_length(PyObject *self)
{
    View *view = (View *)self;
    if (view->ndim > 0)
        return view->shape[0];
    PyErr_SetString(PyExc_TypeError, "a view without dimensions has no length");
    return -1;
}

static PyObject *view_subscript(PyObject *self, PyObject *key)
{
    PyObject *plain = view_plain(self);
    PyObject *value = plain == NULL ? NULL : PyObject_GetItem(plain, key);
    Py_XDECREF(plain);
    return value;
}

static int view_assign(PyObject *self, PyObject *key, PyObject *value)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "elements of a view cannot be deleted");
        return -1;
    }
    PyObject *plain = view_plain(self);
    int result = plain == NULL ? -1 : PyObject_SetItem(plain, key, value);
    Py_XDECREF(plain);
    return result;
}

static PyObject *view_iter(PyObject *self)
{
    PyObject *plain = view_plain(self);
    PyObject *iterator = plain == NULL ? NULL : PyObject_GetIter(plain);
    Py_XDECREF(plain);
    return iterator;
}

/* ---- what is known of it ------------------------------------------------------------------ */

static PyObject *view_shape(PyObject *self, void *Py_UNUSED(closure))
{
    return shape_object(((View *)self)->shape, ((View *)self)->ndim);
}

static PyObject *view_strides(PyObject *self, void *Py_UNUSED(closure))
{
    return shape_object(((View *)self)->strides, ((View *)self)->ndim);
}

static PyObject *view_dtype(PyObject *self, void *Py_UNUSED(closure))
{
    return dtype_object(((View *)self)->code, ((View *)self)->bits, 1);
}

static PyObject *view_size(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((View *)self)->length_bytes / ((View *)self)->item_bytes);
}

static PyObject *view_bits(PyObject *self, void *Py_UNUSED(closure))
{
    const View *view = (View *)self;
    return view->bits <= 64 ? (PyObject *)view_of_bits(view)
                            : raise_format(CBD_STATUS_NOT_SUPPORTED, "there are no unsigned integers of %d bits", view->bits);
}

static PyObject *view_semantic(PyObject *self, void *Py_UNUSED(closure))
{
    return semantic_object(((View *)self)->semantic);
}

static PyObject *view_attribute(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *attribute = ((View *)self)->attribute;
    return Py_NewRef(attribute == NULL ? Py_None : attribute);
}

static PyObject *view_device(PyObject *self, void *Py_UNUSED(closure))
{
    return device_object(((View *)self)->device_type, ((View *)self)->device_id);
}

static PyObject *view_pointer(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong((uintptr_t)((View *)self)->data);
}

static PyObject *view_repr(PyObject *self)
{
    View *view = (View *)self;
    PyObject *dtype = view_dtype(self, NULL), *shape = view_shape(self, NULL), *name = view_attribute(self, NULL);
    PyObject *text = NULL, *place = view->device_type == CBD_DEVICE_CPU ? PyUnicode_FromString("")
                                                                       : PyUnicode_FromFormat(" on cuda:%u", (unsigned)view->device_id);
    if (dtype != NULL && shape != NULL && place != NULL)
        text = PyUnicode_FromFormat("<callboard.View of %R: %S %S%S%s, ordinal %llu, epoch %llu>", name, dtype, shape, place,
                                    view->readonly ? "" : ", writable", (unsigned long long)view->ordinal,
                                    (unsigned long long)view->epoch);
    Py_XDECREF(place);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_DECREF(name);
    return text;
}

static PyGetSetDef view_getset[] = {
    {"shape", view_shape, NULL, "The extents, a tuple.", NULL},
    {"strides", view_strides, NULL, "The steps in bytes, a tuple; always compact and row-major.", NULL},
    {"dtype", view_dtype, NULL, "The element type, a callboard.DType of one lane: lanes are the last dimension.", NULL},
    {"bits", view_bits, NULL,
     "The same memory as a View of unsigned integers of the element's width: of bfloat16 and float8, which buffers have\n"
     "no format for, and of bool, whose bytes somebody may have filled with more than 0 and 1. Raises NotSupported for\n"
     "complex128.", NULL},
    {"size", view_size, NULL, "The number of elements.", NULL},
    {"semantic", view_semantic, NULL, "What the numbers stand for, a callboard.Semantic.", NULL},
    {"attribute", view_attribute, NULL, "The attribute's name, or None.", NULL},
    {"device", view_device, NULL, "Where it lies: 'cpu', or 'cuda:0' with the number that this process has for the GPU.", NULL},
    {"pointer", view_pointer, NULL, "The address of its first byte, an int: on a GPU a device pointer. It is good as long as the view.", NULL},
    {"__cuda_array_interface__", view_cuda_array_interface, NULL,
     "CUDA's array interface, version 3, of a view on a GPU; else AttributeError, also of bfloat16 and float8. It keeps nothing:\n"
     "whoever takes it keeps the view.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef view_members[] = {
    WEAKREFS(View),
    {"ndim", T_INT, offsetof(View, ndim), READONLY, "The number of dimensions."},
    {"itemsize", T_PYSSIZET, offsetof(View, item_bytes), READONLY, "Bytes of one element."},
    {"nbytes", T_PYSSIZET, offsetof(View, length_bytes), READONLY, "Bytes of all elements."},
    {"readonly", T_BOOL, offsetof(View, readonly), READONLY, "False for memory of a map session."},
    {"ordinal", T_ULONGLONG, offsetof(View, ordinal), READONLY, "The highest ordinal written in this version."},
    {"epoch", T_ULONGLONG, offsetof(View, epoch), READONLY, "The epoch it was read at."},
    {"floor", T_ULONGLONG, offsetof(View, floor), READONLY, "The attribute's write floor at that epoch."},
    {"stamp_ns", T_ULONGLONG, offsetof(View, stamp_ns), READONLY, "The time of its seal, ns since 1970."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef view_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_FASTCALL | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "The view as a DLPack capsule, which keeps the data. Read-only data needs max_version >= (1, 0)\n"
     "or copy=True, else BufferError: the legacy capsule could not say that it is read-only.\n"
     "stream: None in host memory. On a GPU None, 1, 2, -1 or a stream's handle, and no 0; there is nothing to wait for: what is\n"
     "sealed is complete. dl_device: where the data lies, or (1, 0) for what was read on a GPU: that is a copy, by way of\n"
     "the broker's. copy=True of what lies on a GPU is a copy there, in memory of this process, made when this returns."},
    {"__dlpack_device__", view_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\n(1, 0): host memory; (2, number): a GPU, by the number that this process has for it."},
    {"__array__", (PyCFunction)(void (*)(void))view_as_array, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\nA NumPy array; the same memory where that is possible. bfloat16 and float8 are of "
     "ml_dtypes'\ntypes; without that package they are unsigned integers of their width, the bits."},
    {"numpy", view_numpy, METH_NOARGS,
     "numpy($self)\n--\n\nA numpy.ndarray over the same memory, which it keeps. Read-only as the view is. Types\n"
     "as of __array__. Raises ImportError without NumPy, BufferError on a GPU."},
    {"torch", (PyCFunction)(void (*)(void))view_torch, METH_VARARGS | METH_KEYWORDS,
     "torch($self, *, copy=True)\n--\n\nA torch.Tensor. PyTorch knows no read-only tensors: with copy=False a write to it\n"
     "stops the process or, in a map session, lands in the mapped memory. On a GPU the copy is made there, and waited for;\n"
     "with copy=False a write changes what others see, and the tensor stays until what reads it on a stream has ended."},
    {"item", view_item, METH_NOARGS, "item($self)\n--\n\nThe one value, as a number of Python."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "An array in shared memory, of the host or of a GPU. Keeps its data as long as it, or anything made from it, lives: also after\n"
                "its group, snapshot or stage is gone. numpy.asarray, memoryview and DLPack share the memory.\n\n"
                "As a buffer it is row-major, in native byte order, with the struct module's formats ('?', 'e', 'f', ...;\n"
                "complex is 'Zf' and 'Zd', as NumPy writes it). Raises BufferError for a writable buffer of a read-only view,\n"
                "for column-major order, and for the format of bfloat16 and float8, which have none: see bits.\n\n"
                "On a GPU only DLPack and __cuda_array_interface__ give the data, to libraries that are there; what looks at it on the\n"
                "host raises BufferError. A kernel that reads it must have ended before the view, and what was made from it, is\n"
                "dropped: synchronise its stream first."},
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_repr, view_repr},
    {Py_tp_iter, view_iter},
    {Py_nb_float, view_float},
    {Py_nb_int, view_int},
    {Py_nb_bool, view_bool},
    {Py_mp_length, view_length},
    {Py_mp_subscript, view_subscript},
    {Py_mp_ass_subscript, view_assign},
    {Py_bf_getbuffer, view_getbuffer},
    {Py_tp_methods, view_methods},
    {Py_tp_members, view_members},
    {Py_tp_getset, view_getset},
    {0, NULL},
};

PyType_Spec View_Spec = {.name = "callboard.View", .basicsize = sizeof(View), .flags = OBJECT_FLAGS, .slots = view_slots};
