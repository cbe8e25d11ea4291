/* Op: something that was submitted. */
#include "native.h"

#include <structmember.h>

static void give_back(void *op)
{
    cbd_op_release(op);
}

/* Says so in the exception that is set. */
static void note_sealed_maybe(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value == NULL || PyObject_SetAttrString(value, "sealed_maybe", Py_True) < 0)
        PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

int op_finish(cbd_op *op, uint64_t timeout_ns, cbd_op_result *result)
{
    cbd_op_result local;
    cbd_error error;
    if (result == NULL)
        result = &local;
    result->status = UINT32_MAX; /* until the op is done */
    uint64_t deadline = 0;
    cbd_status status = cbd_op_wait(op, 0, result, &error);
    while (status == CBD_STATUS_TIMEOUT && result->status == UINT32_MAX) {
        if (deadline == 0)
            deadline = deadline_after(timeout_ns);
        uint64_t turn = timeout_ns == 0 ? 0 : turn_before(deadline);
        if (turn == 0)
            break;
        Py_BEGIN_ALLOW_THREADS
        status = cbd_op_wait(op, turn, result, &error);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
    if (status == CBD_STATUS_OK)
        return 0;
    if (status == CBD_STATUS_TIMEOUT && result->status == UINT32_MAX)
        raise_format(status, "op %llu is not done after %.3g s (op %llu is the lowest that it waits for); it can be waited for again",
                     (unsigned long long)cbd_op_id(op), (double)timeout_ns / 1e9,
                     (unsigned long long)cbd_op_lowest_pending(op));
    else
        raise_error(status, &error);
    if (status == CBD_STATUS_BROKER_RESTARTED && result->status == status && (result->flags & CBD_COMPLETION_SEALED_MAYBE))
        note_sealed_maybe();
    return -1;
}

PyObject *op_new(Stage *stage, cbd_op *op)
{
    Op *self = PyObject_New(Op, Op_Type);
    if (self == NULL) {
        cbd_op_release(op);
        return NULL;
    }
    self->handle = (struct handle){op, 0, false};
    self->stage = (Stage *)Py_NewRef((PyObject *)stage);
    self->result = (cbd_op_result){0};
    self->done = false;
    self->keep = NULL;
    return (PyObject *)self;
}

void op_keep(PyObject *op, PyObject *object)
{
    replace(&((Op *)op)->keep, Py_NewRef(object));
}

/* A dropped op goes on: no warning. */
static void op_dealloc(PyObject *self)
{
    handle_release(&((Op *)self)->handle, give_back);
    Py_XDECREF(((Op *)self)->keep);
    Py_DECREF(((Op *)self)->stage);
    object_free(self);
}

/* 0, or -1 with an exception; notes the outcome either way. */
static int finish(Op *op, uint64_t timeout_ns)
{
    cbd_op *pointer = handle_enter(&op->handle, "op");
    if (pointer == NULL)
        return -1;
    cbd_op_result result;
    int outcome = op_finish(pointer, timeout_ns, &result);
    if (result.status != UINT32_MAX) {
        op->result = result;
        op->done = true;
    }
    handle_leave(&op->handle, give_back);
    if (op->done && op->keep != NULL) { /* an exception may be on its way */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_CLEAR(op->keep);
        PyErr_Restore(type, value, traceback);
    }
    return outcome;
}

static PyObject *op_wait(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    uint64_t timeout_ns;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:wait", names, &timeout) ||
        convert_timeout(timeout, &timeout_ns) < 0 || finish((Op *)self, timeout_ns) < 0)
        return NULL;
    return Py_NewRef(self);
}

static PyObject *op_release(PyObject *self, PyObject *Py_UNUSED(unused))
{
    handle_release(&((Op *)self)->handle, give_back);
    Py_RETURN_NONE;
}

/* Looks once, without an exception of the op's own. */
static int look(Op *op)
{
    if (op->done || op->handle.released)
        return op->done;
    if (finish(op, 0) < 0) {
        if (!op->done && !PyErr_ExceptionMatches(native.errors[CBD_STATUS_TIMEOUT]))
            return -1;
        PyErr_Clear();
    }
    return op->done;
}

static PyObject *op_done(PyObject *self, void *Py_UNUSED(closure))
{
    int done = look((Op *)self);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *op_number(PyObject *self, void *field)
{
    Op *op = (Op *)self;
    int done = look(op);
    if (done < 0)
        return NULL;
    if (!done)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)&op->result + (size_t)field));
}

static PyObject *op_flag(PyObject *self, void *flag)
{
    Op *op = (Op *)self;
    int done = look(op);
    if (done < 0)
        return NULL;
    if (!done)
        Py_RETURN_NONE;
    return PyBool_FromLong((op->result.flags & (uint32_t)(size_t)flag) != 0);
}

static PyObject *op_id(PyObject *self, void *Py_UNUSED(closure))
{
    Op *op = (Op *)self;
    cbd_op *pointer = handle_enter(&op->handle, "op");
    if (pointer == NULL)
        return NULL;
    PyObject *id = PyLong_FromUnsignedLongLong(cbd_op_id(pointer));
    handle_leave(&op->handle, give_back);
    return id;
}

#define NUMBER(name, field, doc) {name, op_number, NULL, doc, (void *)offsetof(cbd_op_result, field)}
#define FLAG(name, flag, doc) {name, op_flag, NULL, doc, (void *)(size_t)(flag)}

static PyGetSetDef op_getset[] = {
    {"id", op_id, NULL, "The op's number, from 1, growing.", NULL},
    {"done", op_done, NULL, "True once it has ended, well or not. Looks, and does not raise the op's error.", NULL},
    NUMBER("ordinal", ordinal, "The ordinal that it ended up with; None while it is pending."),
    NUMBER("epoch", epoch, "The epoch that a seal published, else the current one; None while it is pending."),
    NUMBER("floor", value, "Of a seal: the write floor; None while it is pending."),
    FLAG("sealed_maybe", CBD_COMPLETION_SEALED_MAYBE,
         "Of an op that ended with BrokerRestarted: its ordinal is at or below the floor, and it may have been sealed."),
    FLAG("adopted", CBD_COMPLETION_ADOPTED, "Of an unmap: the block became the version, nothing was copied."),
    FLAG("adopt_refused", CBD_COMPLETION_ADOPT_REFUSED, "Of an unmap: it was copied because views of it are alive."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef op_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))op_wait, METH_VARARGS | METH_KEYWORDS,
     "wait($self, timeout=None)\n--\n\nWaits until the op has ended; returns the op. timeout: seconds; None: for ever; 0: looks "
     "once.\nRaises the class of the op's own error, Timeout (the op is pending and can be waited for again),\n"
     "SessionEnded, InvalidHandle after release. May be called again, and from several threads."},
    {"release", op_release, METH_NOARGS, "release($self)\n--\n\nGives the op back; where it is pending, it goes on."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot op_slots[] = {
    {Py_tp_doc, "Something that was submitted and may be waited for. Accepted is not done."},
    {Py_tp_dealloc, op_dealloc},
    {Py_tp_methods, op_methods},
    {Py_tp_getset, op_getset},
    {0, NULL},
};

PyType_Spec Op_Spec = {.name = "callboard.Op", .basicsize = sizeof(Op), .flags = OBJECT_FLAGS, .slots = op_slots};
