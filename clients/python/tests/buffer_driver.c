/* Both sides of the buffer protocol, as Python alone cannot play them: what a view answers to each request, and
 * exporters of any format, strides and pointers. Compiled by test_buffer.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#define NDIM 4

static PyObject *numbers(const Py_ssize_t *values, int count)
{
    if (values == NULL)
        Py_RETURN_NONE;
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++)
        PyTuple_SetItem(tuple, i, PyLong_FromSsize_t(values[i]));
    return tuple;
}

/* ask(object, flags) -> what its buffer says */
static PyObject *ask(PyObject *module, PyObject *args)
{
    PyObject *object;
    int flags;
    Py_buffer buffer;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oi", &object, &flags) || PyObject_GetBuffer(object, &buffer, flags) < 0)
        return NULL;
    PyObject *told = Py_BuildValue("{s:z,s:i,s:n,s:n,s:O,s:O,s:N,s:N,s:K,s:O}", "format", buffer.format, "ndim", buffer.ndim, "itemsize", buffer.itemsize,
                                   "len", buffer.len, "readonly", buffer.readonly ? Py_True : Py_False, "suboffsets",
                                   buffer.suboffsets != NULL ? Py_True : Py_False, "shape", numbers(buffer.shape, buffer.ndim), "strides",
                                   numbers(buffer.strides, buffer.ndim), "address", (unsigned long long)(uintptr_t)buffer.buf, "owner", buffer.obj);
    PyBuffer_Release(&buffer);
    return told;
}

/* Exporter(bytes, format, itemsize, shape, strides, offset, pointers) gives exactly that. strides None: none, whatever
 * was asked for; False: no shape either. format "none": a request for one is refused. pointers: the first dimension is an array of addresses of rows. */
typedef struct {
    PyObject_HEAD
    PyObject *bytes;
    char format[16];
    char *rows[8];
    Py_ssize_t itemsize, ndim, offset, shape[NDIM], strides[NDIM], suboffsets[NDIM];
    int strided, shaped, pointers, lent;
} Exporter;

static PyObject *exporter_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *bytes, *shape, *strides;
    const char *format;
    Py_ssize_t itemsize, offset;
    int pointers;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "SsnO!Onp", &bytes, &format, &itemsize, &PyTuple_Type, &shape, &strides, &offset, &pointers))
        return NULL;
    Exporter *self = (Exporter *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(bytes);
    self->bytes = bytes;
    strncpy(self->format, format, sizeof self->format - 1);
    self->itemsize = itemsize;
    self->offset = offset;
    self->ndim = PyTuple_Size(shape);
    self->shaped = strides != Py_False;
    self->strided = self->shaped && strides != Py_None;
    self->pointers = pointers;
    for (Py_ssize_t i = 0; i < self->ndim && i < NDIM; i++) {
        self->shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        self->strides[i] = self->strided ? PyLong_AsSsize_t(PyTuple_GetItem(strides, i)) : 0;
        self->suboffsets[i] = i == 0 ? 0 : -1;
    }
    for (Py_ssize_t i = 0; pointers && i < self->shape[0] && i < 8; i++) /* the last row first */
        self->rows[i] = PyBytes_AsString(bytes) + (self->shape[0] - 1 - i) * self->shape[1] * itemsize;
    return (PyObject *)self;
}

static void exporter_dealloc(PyObject *self)
{
    Py_XDECREF(((Exporter *)self)->bytes);
    Py_TYPE(self)->tp_free(self);
}

static int exporter_get(PyObject *object, Py_buffer *buffer, int flags)
{
    Exporter *self = (Exporter *)object;
    buffer->obj = NULL;
    if (strcmp(self->format, "none") == 0 && (flags & PyBUF_FORMAT)) {
        PyErr_SetString(PyExc_BufferError, "there is no format");
        return -1;
    }
    Py_ssize_t length = self->itemsize;
    for (Py_ssize_t i = 0; i < self->ndim; i++)
        length *= self->shape[i];
    *buffer = (Py_buffer){
        .buf = self->pointers ? (void *)self->rows : PyBytes_AsString(self->bytes) + self->offset,
        .len = length,
        .itemsize = self->itemsize,
        .readonly = 1,
        .ndim = (int)self->ndim,
        .format = self->format[0] != 0 ? self->format : NULL,
        .shape = self->ndim > 0 && self->shaped ? self->shape : NULL,
        .strides = self->strided && self->ndim > 0 ? self->strides : NULL,
        .suboffsets = self->pointers ? self->suboffsets : NULL,
    };
    Py_INCREF(object);
    buffer->obj = object;
    self->lent++;
    return 0;
}

static void exporter_release(PyObject *object, Py_buffer *buffer)
{
    (void)buffer;
    ((Exporter *)object)->lent--;
}

static PyObject *exporter_lent(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((Exporter *)self)->lent);
}

static PyGetSetDef exporter_getset[] = {{"lent", exporter_lent, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyBufferProcs exporter_buffer = {exporter_get, exporter_release};

static PyTypeObject Exporter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "buffer_driver.Exporter",
    .tp_basicsize = sizeof(Exporter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = exporter_new,
    .tp_dealloc = exporter_dealloc,
    .tp_getset = exporter_getset,
    .tp_as_buffer = &exporter_buffer,
};

static PyMethodDef functions[] = {{"ask", ask, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "buffer_driver", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_buffer_driver(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyType_Ready(&Exporter_Type) < 0 || PyModule_AddObject(module, "Exporter", (PyObject *)&Exporter_Type) < 0)
        return NULL;
    static const struct {
        const char *name;
        int value;
    } flags[] = {
        {"SIMPLE", PyBUF_SIMPLE},           {"WRITABLE", PyBUF_WRITABLE},         {"FORMAT", PyBUF_FORMAT},
        {"ND", PyBUF_ND},                   {"STRIDES", PyBUF_STRIDES},           {"C_CONTIGUOUS", PyBUF_C_CONTIGUOUS},
        {"F_CONTIGUOUS", PyBUF_F_CONTIGUOUS}, {"ANY_CONTIGUOUS", PyBUF_ANY_CONTIGUOUS}, {"INDIRECT", PyBUF_INDIRECT},
        {"FULL", PyBUF_FULL},               {"FULL_RO", PyBUF_FULL_RO},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        PyModule_AddIntConstant(module, flags[i].name, flags[i].value);
    return module;
}
