/* A consumer that runs no Python: it takes tensors out of capsules and deletes them on threads that no interpreter knows,
 * or when the process ends. And an allocator of Python's that fails when it is told to. Compiled by test_lifetime.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "callboard_dlpack.h"

/* ---- what was taken ------------------------------------------------------------------ */

#define MOST 16384

static void *kept[MOST];
static bool versioned[MOST];
static size_t count, next;

/* take(capsule): consumes it, as the standard says. */
static PyObject *take(PyObject *module, PyObject *capsule)
{
    (void)module;
    bool is_versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
    void *managed = PyCapsule_GetPointer(capsule, is_versioned ? "dltensor_versioned" : "dltensor");
    if (managed == NULL || PyCapsule_SetName(capsule, is_versioned ? "used_dltensor_versioned" : "used_dltensor") != 0)
        return NULL;
    if (count == MOST)
        return PyErr_NoMemory();
    versioned[count] = is_versioned;
    kept[count++] = managed;
    Py_RETURN_NONE;
}

static void *delete_all(void *unused)
{
    size_t at;
    while ((at = __atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST)) < count)
        if (versioned[at])
            ((cbd_dlpack_versioned *)kept[at])->deleter(kept[at]);
        else
            ((cbd_dlpack_managed *)kept[at])->deleter(kept[at]);
    return unused;
}

/* delete_on_threads(): all that was taken, on threads without a thread state, while this one holds the GIL. */
static PyObject *delete_on_threads(PyObject *module, PyObject *unused)
{
    pthread_t threads[4];
    (void)module, (void)unused;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, delete_all, NULL) != 0)
            return PyErr_NoMemory();
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    size_t deleted = count;
    count = next = 0;
    return PyLong_FromSize_t(deleted);
}

static void at_exit(void)
{
    size_t deleted = count;
    if (Py_IsInitialized())
        _Exit(3);
    delete_all(NULL);
    printf("deleted %zu\n", deleted);
    fflush(stdout);
}

/* delete_at_exit(): all that was taken, when the process ends and Python has ended. */
static PyObject *delete_at_exit(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    if (atexit(at_exit) != 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- allocations that fail ------------------------------------------------------------- */

static long fails_at; /* allocation number so many fails; 0: none does */

static bool fails(void) { return fails_at > 0 && --fails_at == 0; }

static void *hook_malloc(void *real, size_t bytes)
{
    return fails() ? NULL : ((PyMemAllocatorEx *)real)->malloc(((PyMemAllocatorEx *)real)->ctx, bytes);
}

static void *hook_calloc(void *real, size_t n, size_t bytes)
{
    return fails() ? NULL : ((PyMemAllocatorEx *)real)->calloc(((PyMemAllocatorEx *)real)->ctx, n, bytes);
}

static void *hook_realloc(void *real, void *old, size_t bytes)
{
    return fails() ? NULL : ((PyMemAllocatorEx *)real)->realloc(((PyMemAllocatorEx *)real)->ctx, old, bytes);
}

static void hook_free(void *real, void *old) { ((PyMemAllocatorEx *)real)->free(((PyMemAllocatorEx *)real)->ctx, old); }

/* call_failing(function, n) -> (it was reached, the exception's type or None): calls it, and allocation n in it fails. */
static PyObject *call_failing(PyObject *module, PyObject *args)
{
    static PyMemAllocatorEx real[2];
    static const PyMemAllocatorDomain domains[2] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    PyObject *function;
    long n;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ol", &function, &n))
        return NULL;
    for (int i = 0; i < 2; i++) {
        PyMem_GetAllocator(domains[i], &real[i]);
        PyMem_SetAllocator(domains[i], &(PyMemAllocatorEx){&real[i], hook_malloc, hook_calloc, hook_realloc, hook_free});
    }
    fails_at = n;
    PyObject *result = PyObject_CallNoArgs(function);
    bool reached = fails_at == 0;
    fails_at = 0;
    for (int i = 0; i < 2; i++)
        PyMem_SetAllocator(domains[i], &real[i]);
    PyObject *type = result == NULL ? PyErr_Occurred() : Py_None;
    if (type == NULL)
        return PyErr_Format(PyExc_SystemError, "a call failed without an exception");
    Py_INCREF(type);
    PyErr_Clear();
    Py_XDECREF(result);
    return Py_BuildValue("(ON)", reached ? Py_True : Py_False, type);
}

/* ---- the module -------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"take", take, METH_O, NULL},
    {"delete_on_threads", delete_on_threads, METH_NOARGS, NULL},
    {"delete_at_exit", delete_at_exit, METH_NOARGS, NULL},
    {"call_failing", call_failing, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "lifetime_driver", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_lifetime_driver(void)
{
    return PyModule_Create(&definition);
}
