/* Snapshot: everything as of one epoch. */
#include "native.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    struct handle handle; /* cbd_snapshot */
    Stage *stage;
    uint64_t epoch, stamp_ns;
    bool managed;     /* made by watch() */
    PyObject *cursor; /* made at the first use */
} Snapshot;

typedef struct {
    PyObject_HEAD
    cbd_cursor *cursor;
} Cursor;

static void give_back(void *snapshot)
{
    cbd_snapshot_release(snapshot);
}

static PyObject *snapshot_new(Stage *stage, cbd_snapshot *snapshot)
{
    Snapshot *self = PyObject_New(Snapshot, Snapshot_Type);
    if (self == NULL) {
        cbd_snapshot_release(snapshot);
        return NULL;
    }
    self->handle = (struct handle){snapshot, 0, false};
    self->stage = (Stage *)Py_NewRef((PyObject *)stage);
    self->epoch = cbd_snapshot_epoch(snapshot);
    self->stamp_ns = cbd_snapshot_stamp(snapshot);
    self->managed = false;
    self->cursor = NULL;
    return (PyObject *)self;
}

static void snapshot_finalize(PyObject *self)
{
    Snapshot *snapshot = (Snapshot *)self;
    bool dropped = !snapshot->handle.released && !snapshot->managed;
    handle_release(&snapshot->handle, give_back);
    if (dropped)
        warn_dropped(self, "a snapshot was not released");
}

static void snapshot_dealloc(PyObject *self)
{
    if (finalizer_revives(self, snapshot_finalize))
        return;
    Py_DECREF(((Snapshot *)self)->stage);
    Py_XDECREF(((Snapshot *)self)->cursor);
    object_free(self);
}

static PyObject *snapshot_release(PyObject *self, PyObject *Py_UNUSED(args))
{
    handle_release(&((Snapshot *)self)->handle, give_back);
    Py_RETURN_NONE;
}

static PyObject *snapshot_begin(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Snapshot *snapshot = (Snapshot *)self;
    if (handle_enter(&snapshot->handle, "snapshot") == NULL)
        return NULL;
    handle_leave(&snapshot->handle, give_back);
    return Py_NewRef(self);
}

static PyObject *snapshot_read(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"query", "attributes", "since", "device", NULL};
    PyObject *query, *attributes, *since = Py_None, *device = Py_None;
    Snapshot *snapshot = (Snapshot *)self;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$OO:read", names, &query, &attributes, &since, &device))
        return NULL;
    if (since != Py_None && !Py_IS_TYPE(since, Cursor_Type)) {
        refuse_type("since", "the cursor of a snapshot or None", since);
        return NULL;
    }
    cbd_snapshot *pointer = handle_enter(&snapshot->handle, "snapshot");
    if (pointer == NULL)
        return NULL;
    PyObject *read = read_open(snapshot->stage, pointer, query, attributes, NULL, since == Py_None ? NULL : ((Cursor *)since)->cursor, device);
    handle_leave(&snapshot->handle, give_back);
    return read;
}

/* The attribute's row of the prim "/". */
static PyObject *snapshot_get(PyObject *self, PyObject *name)
{
    Snapshot *snapshot = (Snapshot *)self;
    name = attribute_name(snapshot->stage, name, "name");
    const char *text = name == NULL ? NULL : convert_text(name, "name");
    cbd_snapshot *pointer = text == NULL ? NULL : handle_enter(&snapshot->handle, "snapshot");
    if (pointer == NULL)
        return NULL;
    cbd_query *root = NULL;
    cbd_read *read = NULL;
    const cbd_read_group *group = NULL;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_root_query(snapshot->stage->stage, &root, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_snapshot_read(pointer, root, &text, 1, &read, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_fetch_read_next(read, &group, &error);
    cbd_read_release(read);
    cbd_query_release(root);
    Py_END_ALLOW_THREADS
    handle_leave(&snapshot->handle, give_back);
    if (status == CBD_STATUS_END)
        return raise_format(CBD_STATUS_NOT_FOUND,
                            "the snapshot of epoch %llu has no '%.200s' on the prim \"/\"; use read() for other prims",
                            (unsigned long long)snapshot->epoch, text);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    View *view = view_of_read_group(group, name, 0, true);
    cbd_release_group(group);
    return (PyObject *)view;
}

static PyObject *snapshot_torch(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "copy", NULL};
    PyObject *name, *copy = Py_True, *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O:torch", names, &name, &copy))
        return NULL;
    PyObject *view = snapshot_get(self, name), *method = NULL, *none = NULL, *options = NULL;
    if (view != NULL && (method = PyObject_GetAttrString(view, "torch")) != NULL && (none = PyTuple_New(0)) != NULL &&
        (options = Py_BuildValue("{s:O}", "copy", copy)) != NULL)
        result = PyObject_Call(method, none, options);
    Py_XDECREF(options);
    Py_XDECREF(none);
    Py_XDECREF(method);
    Py_XDECREF(view);
    return result;
}

static PyObject *snapshot_floor(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", NULL};
    PyObject *name = Py_None;
    const char *text = NULL;
    Snapshot *snapshot = (Snapshot *)self;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:floor", names, &name) ||
        (name != Py_None && (text = convert_attribute(snapshot->stage, name, "name")) == NULL))
        return NULL;
    cbd_snapshot *pointer = handle_enter(&snapshot->handle, "snapshot");
    if (pointer == NULL)
        return NULL;
    uint64_t floor;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_snapshot_floor(pointer, text, &floor, &error);
    Py_END_ALLOW_THREADS
    handle_leave(&snapshot->handle, give_back);
    return status == CBD_STATUS_OK ? PyLong_FromUnsignedLongLong(floor) : raise_error(status, &error);
}

static PyObject *snapshot_cursor(PyObject *self, void *Py_UNUSED(closure))
{
    Snapshot *snapshot = (Snapshot *)self;
    if (snapshot->cursor != NULL)
        return Py_NewRef(snapshot->cursor);
    cbd_snapshot *pointer = handle_enter(&snapshot->handle, "snapshot");
    if (pointer == NULL)
        return NULL;
    cbd_cursor *cursor;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_snapshot_cursor(pointer, &cursor, &error);
    Py_END_ALLOW_THREADS
    handle_leave(&snapshot->handle, give_back);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    Cursor *object = PyObject_New(Cursor, Cursor_Type);
    if (object == NULL) {
        cbd_cursor_release(cursor);
        return NULL;
    }
    object->cursor = cursor;
    replace(&snapshot->cursor, (PyObject *)object); /* another thread may have been faster */
    return Py_NewRef(snapshot->cursor);
}

static PyObject *snapshot_repr(PyObject *self)
{
    Snapshot *snapshot = (Snapshot *)self;
    return PyUnicode_FromFormat("<callboard.Snapshot of epoch %llu%s>", (unsigned long long)snapshot->epoch,
                                snapshot->handle.released ? ", released" : "");
}

static PyMemberDef snapshot_members[] = {
    {"epoch", T_ULONGLONG, offsetof(Snapshot, epoch), READONLY, "The epoch; 0: nothing was sealed."},
    {"stamp_ns", T_ULONGLONG, offsetof(Snapshot, stamp_ns), READONLY, "The time of its last seal, ns since 1970; 0: none."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef snapshot_getset[] = {
    {"cursor", snapshot_cursor, NULL,
     "How far the snapshot goes, a Cursor: what read(since=...) of a later snapshot begins after. It outlives the\nsnapshot, "
     "but is to be asked for before its release.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef snapshot_methods[] = {
    {"read", (PyCFunction)(void (*)(void))snapshot_read, METH_VARARGS | METH_KEYWORDS,
     "read($self, query, attributes, *, since=None, device=None)\n--\n\nAs Stage.read_attributes, at the snapshot's epoch. since, the cursor of an "
     "earlier snapshot: only what changed\nin between, the rows that were written and groups with is_delete of prims that are "
     "gone. Reads from cursor to\ncursor have each sealed change exactly once; the first of them is one without since. Raises "
     "OutOfRange when\nmore was deleted since than is remembered: then read the whole."},
    {"floor", (PyCFunction)(void (*)(void))snapshot_floor, METH_VARARGS | METH_KEYWORDS,
     "floor($self, name=None)\n--\n\nAs Stage.write_floor, at the snapshot's epoch."},
    {"torch", (PyCFunction)(void (*)(void))snapshot_torch, METH_VARARGS | METH_KEYWORDS,
     "torch($self, name, *, copy=True)\n--\n\nsnapshot[name] as a torch.Tensor; see View.torch."},
    {"release", snapshot_release, METH_NOARGS, "release($self)\n--\n\nGives the snapshot back; views stay valid."},
    {"__enter__", snapshot_begin, METH_NOARGS, NULL},
    {"__exit__", snapshot_release, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot snapshot_slots[] = {
    {Py_tp_doc, "Everything as of one epoch. snapshot[name] is the View of an attribute's value on the prim \"/\". A context\n"
                "manager."},
    {Py_tp_dealloc, snapshot_dealloc},
    {Py_tp_finalize, snapshot_finalize},
    {Py_tp_repr, snapshot_repr},
    {Py_mp_subscript, snapshot_get},
    {Py_tp_methods, snapshot_methods},
    {Py_tp_members, snapshot_members},
    {Py_tp_getset, snapshot_getset},
    {0, NULL},
};

PyType_Spec Snapshot_Spec = {.name = "callboard.Snapshot", .basicsize = sizeof(Snapshot), .flags = OBJECT_FLAGS, .slots = snapshot_slots};

/* ---- cursors --------------------------------------------------------------------------- */

static void cursor_dealloc(PyObject *self)
{
    cbd_cursor_release(((Cursor *)self)->cursor);
    object_free(self);
}

static PyObject *cursor_epoch(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(cbd_cursor_epoch(((Cursor *)self)->cursor));
}

static PyObject *cursor_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<callboard.Cursor of epoch %llu>", (unsigned long long)cbd_cursor_epoch(((Cursor *)self)->cursor));
}

static PyGetSetDef cursor_getset[] = {
    {"epoch", cursor_epoch, NULL, "The epoch of its snapshot.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot cursor_slots[] = {
    {Py_tp_doc, "How far a snapshot goes: see Snapshot.read. It holds nothing of the stage, whose generation it is of."},
    {Py_tp_dealloc, cursor_dealloc},
    {Py_tp_repr, cursor_repr},
    {Py_tp_getset, cursor_getset},
    {0, NULL},
};

PyType_Spec Cursor_Spec = {.name = "callboard.Cursor", .basicsize = sizeof(Cursor), .flags = OBJECT_FLAGS, .slots = cursor_slots};

/* ---- making one, for Stage ------------------------------------------------------------ */

static PyObject *open_snapshot(PyObject *self, bool managed)
{
    cbd_snapshot *snapshot;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_snapshot_open(((Stage *)self)->stage, &snapshot, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    PyObject *object = snapshot_new((Stage *)self, snapshot);
    if (object != NULL)
        ((Snapshot *)object)->managed = managed;
    return object;
}

PyObject *stage_snapshot(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return open_snapshot(self, false);
}

PyObject *stage_managed_snapshot(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return open_snapshot(self, true);
}
