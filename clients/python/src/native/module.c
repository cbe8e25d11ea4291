/* The module callboard._native: its types, its errors, and handles that threads share. */
#include "native.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct native native;

/* ---- errors -------------------------------------------------------------------- */

PyObject *raise_text(cbd_status status, const char *text)
{
    if (text == NULL || text[0] == 0)
        text = cbd_status_text(status);
    PyObject *type = status < CBD_STATUS_COUNT ? native.errors[status] : NULL;
    bool known = type != NULL;
    if (!known)
        type = native.operation_failed;
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *error = message == NULL ? NULL : PyObject_CallFunctionObjArgs(type, message, NULL);
    Py_XDECREF(message);
    if (error == NULL)
        return NULL;
    if (!known) { /* a code of a newer broker */
        PyObject *code = PyLong_FromUnsignedLong(status);
        if (code == NULL || PyObject_SetAttrString(error, "code", code) < 0)
            PyErr_Clear();
        Py_XDECREF(code);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

PyObject *raise_error(cbd_status status, const cbd_error *error)
{
    if (PyErr_Occurred()) /* a signal's handler raised while we waited: see look_at_signals */
        return NULL;
    return raise_text(status, error->status == status ? error->text : NULL);
}

PyObject *raise_format(cbd_status status, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return raise_text(status, text);
}

void warn_dropped(PyObject *self, const char *what)
{
    PyObject *type, *value, *traceback;
    cbd_log_dropped(what);
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_ResourceWarning(self, 1, "%s; it was garbage-collected and is given back now", what) < 0)
        PyErr_WriteUnraisable(self);
    PyErr_Restore(type, value, traceback);
}

/* ---- handles -------------------------------------------------------------------------- */

void *handle_enter(struct handle *handle, const char *what)
{
    if (handle->released) {
        raise_format(CBD_STATUS_INVALID_HANDLE, "this %s was released", what);
        return NULL;
    }
    handle->busy++;
    return handle->pointer;
}

void handle_leave(struct handle *handle, void (*give_back)(void *))
{
    if (--handle->busy == 0 && handle->released) {
        void *pointer = handle->pointer;
        handle->pointer = NULL;
        give_back(pointer);
    }
}

void handle_release(struct handle *handle, void (*give_back)(void *))
{
    if (handle->released)
        return;
    handle->released = true;
    if (handle->busy == 0) {
        void *pointer = handle->pointer;
        handle->pointer = NULL;
        if (pointer != NULL)
            give_back(pointer);
    }
}

/* ---- signals ---------------------------------------------------------------------------- */

/* Runs inside a call that waits for the broker without the GIL. Only the main thread has
 * signals to look at; the exception that their handler raised stays set, and is raised
 * when the call returns. */
static int look_at_signals(void)
{
    if (syscall(SYS_gettid) != getpid())
        return 0;
    PyGILState_STATE state = PyGILState_Ensure();
    int raised = PyErr_CheckSignals() < 0;
    PyGILState_Release(state);
    return raised;
}

/* ---- the module -------------------------------------------------------------------------- */

/* setup(errors, operation_failed, dtype_type, dtype, semantics, cuda_sync): the package hands over what is written in Python. */
static PyObject *setup(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *errors, *operation_failed, *dtype_type, *dtype, *semantics, *cuda_sync;
    if (!PyArg_ParseTuple(args, "O!OOOO!O", &PyDict_Type, &errors, &operation_failed, &dtype_type, &dtype,
                          &PyTuple_Type, &semantics, &cuda_sync))
        return NULL;
    for (unsigned status = 0; status < CBD_STATUS_COUNT; status++) {
        PyObject *number = PyLong_FromUnsignedLong(status);
        if (number == NULL)
            return NULL;
        replace(&native.errors[status], Py_XNewRef(PyDict_GetItemWithError(errors, number)));
        Py_DECREF(number);
    }
    replace(&native.operation_failed, Py_NewRef(operation_failed));
    replace(&native.dtype_type, Py_NewRef(dtype_type));
    replace(&native.dtype, Py_NewRef(dtype));
    replace(&native.semantics, Py_NewRef(semantics));
    replace(&native.cuda_sync, Py_NewRef(cuda_sync));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "Hands over the classes that are written in Python."},
    {"log_install", log_install, METH_VARARGS, "See callboard.install_log."},
    {"log_flush", log_flush, METH_O, "See callboard.flush_log."},
    {"log_remove", log_remove, METH_NOARGS, "See callboard.remove_log."},
    {NULL, NULL, 0, NULL},
};

/* A type's methods may stand in several files: the lists are joined once. */
PyMethodDef *joined(PyMethodDef *const lists[], size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        for (PyMethodDef *method = lists[i]; method->ml_name != NULL; method++)
            total++;
    PyMethodDef *all = PyMem_New(PyMethodDef, total + 1);
    if (all == NULL)
        return (PyMethodDef *)PyErr_NoMemory();
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        for (PyMethodDef *method = lists[i]; method->ml_name != NULL; method++)
            all[at++] = *method;
    all[at] = (PyMethodDef){NULL, NULL, 0, NULL};
    return all;
}

PyTypeObject *Stage_Type, *Query_Type, *Op_Type, *MapSession_Type, *Group_Type, *Read_Type, *View_Type, *ReadGroup_Type, *Snapshot_Type,
    *Cursor_Type, *Events_Type;

/* Adds the types, which a second import finds made: they live as long as the process, and so do the objects. */
static int add_types(PyObject *module)
{
    const struct {
        PyTypeObject **type;
        PyType_Spec *spec;
    } all[] = {
        {&Stage_Type, Stage_Type == NULL ? stage_spec() : NULL},
        {&Query_Type, &Query_Spec},
        {&Op_Type, &Op_Spec},
        {&MapSession_Type, &MapSession_Spec},
        {&Group_Type, &Group_Spec},
        {&Read_Type, &Read_Spec},
        {&View_Type, &View_Spec},
        {&ReadGroup_Type, &ReadGroup_Spec},
        {&Snapshot_Type, &Snapshot_Spec},
        {&Cursor_Type, &Cursor_Spec},
        {&Events_Type, &Events_Spec},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (*all[i].type == NULL && all[i].spec != NULL)
            *all[i].type = (PyTypeObject *)PyType_FromSpec(all[i].spec);
        if (*all[i].type == NULL || PyModule_AddType(module, *all[i].type) < 0)
            return -1;
    }
    return exchange_offer();
}

static int fill(PyObject *module)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "callboard works in the main interpreter only: its objects and its log thread are of one");
        return -1;
    }
    if (add_types(module) < 0 || PyModule_AddStringConstant(module, "ABI_VERSION", cbd_abi_version()) < 0)
        return -1;
    cbd_set_interrupt_check(look_at_signals);
    cbd_error error;
    cbd_status status = cbd_cuda_enable(&error); /* loads nothing */
    if (status != CBD_STATUS_OK)
        PyErr_SetString(PyExc_ImportError, error.text);
    return status == CBD_STATUS_OK ? 0 : -1;
}

/* Without Py_mod_gil: what threads share here (struct handle, unmapped of struct staging, what is made at the first use)
 * is guarded by the GIL, so that a free-threaded Python turns it on when this is imported. */
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "callboard._native",
    .m_doc = "The C client of Callboard and the objects of Python around it.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
