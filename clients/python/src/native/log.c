/* The log callback: the C client's thread calls it with the GIL. */
#include "native.h"

static PyObject *callback; /* guarded by the GIL; NULL: none is installed */

static void tell(void *context, uint32_t severity, uint64_t time_ns, const char *text)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *level = PyObject_CallFunction(native.severity, "I", severity);
    PyObject *result = level == NULL ? NULL : PyObject_CallFunction(context, "OKs", level, (unsigned long long)time_ns, text);
    if (result == NULL)
        PyErr_WriteUnraisable(context);
    Py_XDECREF(result);
    Py_XDECREF(level);
    PyGILState_Release(state);
}

PyObject *log_install(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *call, *channels, *severity;
    const char *text;
    uint32_t threshold;
    if (!PyArg_ParseTuple(args, "OOOO:install_log", &call, &severity, &channels, &native.severity))
        return NULL;
    if (!PyCallable_Check(call)) {
        refuse_type("callback", "callable", call);
        return NULL;
    }
    if (convert_u32(severity, "threshold", CBD_LOG_DEBUG, CBD_LOG_NONE, &threshold) < 0 ||
        (text = convert_text(channels, "channels")) == NULL)
        return NULL;
    cbd_error error;
    Py_INCREF(call);
    cbd_status status = cbd_log_install(tell, call, threshold, text, &error);
    if (status != CBD_STATUS_OK) {
        Py_DECREF(call);
        return raise_error(status, &error);
    }
    replace(&callback, call); /* a forked child may hold its parent's */
    Py_RETURN_NONE;
}

PyObject *log_flush(PyObject *Py_UNUSED(module), PyObject *timeout)
{
    uint64_t timeout_ns;
    if (convert_timeout(timeout, &timeout_ns) < 0)
        return NULL;
    uint64_t deadline = deadline_after(timeout_ns);
    for (;;) {
        cbd_error error;
        cbd_status status;
        uint64_t turn = timeout_ns == 0 ? 0 : turn_before(deadline);
        Py_BEGIN_ALLOW_THREADS
        status = cbd_log_flush(turn, &error);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            return NULL;
        if (status == CBD_STATUS_OK)
            Py_RETURN_TRUE;
        if (status != CBD_STATUS_TIMEOUT)
            return raise_error(status, &error);
        if (turn == 0)
            Py_RETURN_FALSE;
    }
}

PyObject *log_remove(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_log_remove(&error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    Py_CLEAR(callback);
    Py_RETURN_NONE;
}
