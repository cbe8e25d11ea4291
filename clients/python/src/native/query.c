/* Query: an ordered list of prims. */
#include "native.h"

#include <string.h>

static void give_back(void *query)
{
    cbd_query_release(query);
}

PyObject *query_new(Stage *stage, cbd_query *query)
{
    Query *self = PyObject_New(Query, Query_Type);
    if (self == NULL) {
        cbd_query_release(query);
        return NULL;
    }
    self->handle = (struct handle){query, 0, false};
    self->stage = (Stage *)Py_NewRef((PyObject *)stage);
    self->prims = NULL;
    self->keep = NULL;
    return (PyObject *)self;
}

cbd_query *query_enter(PyObject *query)
{
    if (!PyObject_TypeCheck(query, Query_Type)) {
        refuse_type("query", "a callboard.Query", query);
        return NULL;
    }
    return handle_enter(&((Query *)query)->handle, "query");
}

void query_leave(PyObject *query)
{
    handle_leave(&((Query *)query)->handle, give_back);
}

static void query_finalize(PyObject *self)
{
    Query *query = (Query *)self;
    bool dropped = !query->handle.released && !query->stage->closed && !cbd_stage_is_foreign(query->stage->stage);
    handle_release(&query->handle, give_back);
    if (dropped)
        warn_dropped(self, "a query was not released");
}

static void query_dealloc(PyObject *self)
{
    if (finalizer_revives(self, query_finalize))
        return;
    Py_XDECREF(((Query *)self)->prims);
    Py_XDECREF(((Query *)self)->keep);
    Py_DECREF(((Query *)self)->stage);
    object_free(self);
}

static PyObject *query_release(PyObject *self, PyObject *Py_UNUSED(unused))
{
    handle_release(&((Query *)self)->handle, give_back);
    Py_CLEAR(((Query *)self)->keep);
    Py_RETURN_NONE;
}

static PyObject *query_begin(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (query_enter(self) == NULL)
        return NULL;
    query_leave(self);
    return Py_NewRef(self);
}

static PyObject *query_end(PyObject *self, PyObject *Py_UNUSED(args))
{
    return query_release(self, NULL);
}

static PyObject *query_wait(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    uint64_t timeout_ns, deadline, turn;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:wait", names, &timeout) || convert_timeout(timeout, &timeout_ns) < 0)
        return NULL;
    cbd_query *query = query_enter(self);
    if (query == NULL)
        return NULL;
    cbd_error error;
    cbd_status status;
    deadline = deadline_after(timeout_ns);
    do {
        turn = timeout_ns == 0 ? 0 : turn_before(deadline);
        Py_BEGIN_ALLOW_THREADS
        status = cbd_query_wait(query, turn, &error);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            break;
    } while (status == CBD_STATUS_TIMEOUT && turn != 0);
    query_leave(self);
    if (PyErr_Occurred())
        return NULL;
    return status == CBD_STATUS_OK ? Py_NewRef(self) : raise_error(status, &error);
}

/* NULL where it is not known: with an exception, or, with one of TIMEOUT, while it runs. */
static PyObject *query_attributes(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_query_result *result;
    cbd_error error;
    cbd_query *query = query_enter(self);
    if (query == NULL)
        return NULL;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_query_get_result(query, &result, &error);
    Py_END_ALLOW_THREADS
    query_leave(self);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    PyObject *names = PyTuple_New((Py_ssize_t)result->attribute_count);
    for (size_t i = 0; names != NULL && i < result->attribute_count; i++) {
        PyObject *name = PyUnicode_DecodeUTF8(result->attributes[i], (Py_ssize_t)strlen(result->attributes[i]), "replace");
        if (name == NULL)
            Py_CLEAR(names);
        else
            PyTuple_SetItem(names, (Py_ssize_t)i, name);
    }
    cbd_query_result_release(result);
    return names;
}

static Py_ssize_t query_length(PyObject *self)
{
    cbd_query *query = query_enter(self);
    if (query == NULL)
        return -1;
    Py_ssize_t size = (Py_ssize_t)cbd_query_size(query);
    query_leave(self);
    return size;
}

static PyObject *query_prims(PyObject *self, void *Py_UNUSED(closure))
{
    cbd_query *query = query_enter(self);
    if (query == NULL)
        return NULL;
    Query *object = (Query *)self;
    cbd_error error;
    cbd_status status = cbd_query_wait(query, 0, &error);
    if (status != CBD_STATUS_OK)
        raise_error(status, &error);
    else if (object->prims == NULL)
        object->prims = array_of_copy(cbd_query_ids(query), cbd_query_size(query), CBD_DTYPE_UINT, 64);
    query_leave(self);
    return PyErr_Occurred() ? NULL : Py_XNewRef(object->prims);
}

static PyObject *query_repr(PyObject *self)
{
    Query *query = (Query *)self;
    if (query->handle.released)
        return PyUnicode_FromString("<callboard.Query, released>");
    return PyUnicode_FromFormat("<callboard.Query of %llu prims>",
                                (unsigned long long)cbd_query_size(query->handle.pointer));
}

static PyGetSetDef query_getset[] = {
    {"prims", query_prims, NULL, "The path ids in order: uint64, shape (len(query),), a copy. Raises Timeout while it runs.", NULL},
    {"attributes", query_attributes, NULL,
     "The attributes that Stage.query found on the prims, as a tuple; empty of explicit paths. Raises Timeout while it runs.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef query_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))query_wait, METH_VARARGS | METH_KEYWORDS,
     "wait($self, timeout=None)\n--\n\nWaits until a query that was made with wait=False is known; returns it. Before, its length\n"
     "is 0. Raises the query's own error, and Timeout: it may be waited for again."},
    {"release", query_release, METH_NOARGS, "release($self)\n--\n\nGives the query back. Groups made through it stay valid."},
    {"__enter__", query_begin, METH_NOARGS, NULL},
    {"__exit__", query_end, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot query_slots[] = {
    {Py_tp_doc, "An ordered list of prims, usable until released. A context manager."},
    {Py_tp_dealloc, query_dealloc},
    {Py_tp_finalize, query_finalize},
    {Py_tp_repr, query_repr},
    {Py_mp_length, query_length},
    {Py_tp_methods, query_methods},
    {Py_tp_getset, query_getset},
    {0, NULL},
};

PyType_Spec Query_Spec = {.name = "callboard.Query", .basicsize = sizeof(Query), .flags = OBJECT_FLAGS, .slots = query_slots};
