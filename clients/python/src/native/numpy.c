/* NumPy, where it is installed: its functions by name, and an array over a view.
 *
 * np.asarray finds out anew what a view is, which takes longer than all the rest of a warm read. So the array is made by
 * NumPy's C functions. They are taken from the table that NumPy hands to extensions, without its headers, so that NumPy
 * need not be there to build: their places, and the numbers of types, are its binary interface, the same in all of 1.x
 * from 1.7 on and in 2.x (numpy/_core/code_generators/numpy_api.py). Of another version np.asarray is called. */
#include "native.h"

#include <string.h>

static struct {
    bool looked, absent;
    PyObject *module, *asarray; /* kept for the life of the process, and so is what follows */
    PyTypeObject *type;         /* NULL: not a version that we know */
    PyObject *(*descr_from_type)(int number);
    PyObject *(*new_from_descr)(PyTypeObject *type, PyObject *descr, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                                void *data, int flags, PyObject *like); /* takes descr */
    int (*set_base)(PyObject *array, PyObject *base);                   /* takes base */
} numpy;

enum { TABLE_VERSION = 0, TABLE_TYPE = 2, TABLE_DESCR_FROM_TYPE = 45, TABLE_NEW_FROM_DESCR = 94, TABLE_SET_BASE = 282 };

#define FLAG_WRITEABLE 0x0400 /* of an array; the others follow from its strides */

/* Takes the C functions, where this is a NumPy that we know. */
static void take_functions(void)
{
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    if (module == NULL) { /* before NumPy 2 */
        PyErr_Clear();
        module = PyImport_ImportModule("numpy.core._multiarray_umath");
    }
    PyObject *capsule = module == NULL ? NULL : PyObject_GetAttrString(module, "_ARRAY_API");
    void **table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    PyErr_Clear();
    Py_XDECREF(capsule);
    Py_XDECREF(module);
    if (table == NULL)
        return;
    unsigned version = ((unsigned (*)(void))table[TABLE_VERSION])() >> 24;
    if (version != 1 && version != 2)
        return;
    numpy.type = table[TABLE_TYPE];
    numpy.descr_from_type = (PyObject * (*)(int)) table[TABLE_DESCR_FROM_TYPE];
    numpy.new_from_descr = (PyObject * (*)(PyTypeObject *, PyObject *, int, const Py_ssize_t *, const Py_ssize_t *, void *, int, PyObject *))
        table[TABLE_NEW_FROM_DESCR];
    numpy.set_base = (int (*)(PyObject *, PyObject *))table[TABLE_SET_BASE];
}

/* 0 where NumPy is there; else -1, without an exception where it is not installed. */
static int look(void)
{
    if (numpy.module != NULL || numpy.absent)
        return numpy.absent ? -1 : 0;
    PyObject *module = PyImport_ImportModule("numpy"), *asarray = module == NULL ? NULL : PyObject_GetAttrString(module, "asarray");
    if (asarray == NULL) {
        numpy.absent = module == NULL && PyErr_ExceptionMatches(PyExc_ImportError);
        if (numpy.absent)
            PyErr_Clear();
        Py_XDECREF(module);
        return -1;
    }
    take_functions();
    numpy.asarray = asarray;
    numpy.module = module;
    return 0;
}

PyObject *numpy_function(const char *name)
{
    return look() < 0 ? NULL : PyObject_GetAttrString(numpy.module, name);
}

/* NumPy's number of an element type, or -1. */
static int type_number(uint8_t code, uint8_t bits)
{
    switch (code) {
    case CBD_DTYPE_BOOL:
        return bits == 8 ? 0 : -1;
    case CBD_DTYPE_INT: /* long and unsigned long are of 64 bits where we run */
        return bits == 8 ? 1 : bits == 16 ? 3 : bits == 32 ? 5 : bits == 64 ? 7 : -1;
    case CBD_DTYPE_UINT:
        return bits == 8 ? 2 : bits == 16 ? 4 : bits == 32 ? 6 : bits == 64 ? 8 : -1;
    case CBD_DTYPE_FLOAT:
        return bits == 16 ? 23 : bits == 32 ? 11 : bits == 64 ? 12 : -1;
    case CBD_DTYPE_COMPLEX:
        return bits == 64 ? 14 : bits == 128 ? 15 : -1;
    default:
        return -1;
    }
}

PyObject *numpy_array(View *view)
{
    if (look() < 0)
        return NULL;
    int number = type_number(view->code, view->bits);
    if (numpy.type == NULL || number < 0)
        return PyObject_CallFunctionObjArgs(numpy.asarray, (PyObject *)view, NULL);
    PyObject *descr = numpy.descr_from_type(number);
    PyObject *array = descr == NULL ? NULL
                                    : numpy.new_from_descr(numpy.type, descr, view->ndim, view->shape, view->strides, view->data,
                                                           view->readonly ? 0 : FLAG_WRITEABLE, NULL);
    if (array != NULL && numpy.set_base(array, Py_NewRef((PyObject *)view)) < 0)
        Py_CLEAR(array);
    return array;
}
