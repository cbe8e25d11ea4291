/* What the limited API of Python lacks, in terms of it. */
#include "native.h"

#include <string.h>

void object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

bool finalizer_revives(PyObject *self, destructor finalize)
{
#ifdef Py_LIMITED_API
    Py_SET_REFCNT(self, 1); /* whoever hears the warning may look at it, and keep it */
    finalize(self);
    Py_SET_REFCNT(self, Py_REFCNT(self) - 1);
    return Py_REFCNT(self) > 0;
#else
    (void)finalize;
    return PyObject_CallFinalizerFromDealloc(self) < 0;
#endif
}

void replace(PyObject **place, PyObject *with)
{
    PyObject *before = *place;
    *place = with;
    Py_XDECREF(before);
}

static PyObject *type_name(PyObject *object)
{
#if PY_VERSION_HEX >= 0x030B0000
    return PyType_GetName(Py_TYPE(object));
#else
    const char *name = Py_TYPE(object)->tp_name, *dot = strrchr(name, '.');
    return PyUnicode_FromString(dot == NULL ? name : dot + 1);
#endif
}

void refuse_type(const char *argument, const char *expected, PyObject *got)
{
    PyObject *name = type_name(got);
    if (name != NULL)
        PyErr_Format(PyExc_TypeError, "%s must be %s, not %U", argument, expected, name);
    Py_XDECREF(name);
}

bool has_type_name(PyObject *object, const char *name)
{
    PyObject *has = type_name(object);
    bool same = has != NULL && PyUnicode_CompareWithASCIIString(has, name) == 0;
    Py_XDECREF(has);
    return same;
}
