/* MapSession and Group: staging memory to fill in place.
 *
 * The memory is held by leases (lease.c) and by the session, not by these objects. A
 * lease that is alive when its group is unmapped means that somebody may still write:
 * then the broker copies the block and does not adopt it (rule M1), and does not use it anew
 * after a restart (rule B1). */
#include "native.h"

#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    Stage *stage;
    struct hold *hold;
    PyObject *name;
    uint32_t unmap_flags;
    cbd_cuda_sync sync;    /* what its rows on a GPU wait for when it ends */
    bool root;             /* one row, of the prim "/": `array` has no axis of rows */
    bool ended;            /* committed, aborted or given up */
    bool claimed;          /* one group of another client's session, which has no MapSession for the user */
    bool fetching;         /* a thread claims a group, without the GIL */
    struct staging **groups;
    size_t count, room, next; /* next: that iteration hands out */
    PyObject *op;          /* of the final unmap */
} MapSession;

typedef struct {
    PyObject_HEAD
    MapSession *session;
    struct staging *staging;
    PyObject *prims;
} Group;

PyObject *session_new(Stage *stage, cbd_session *session, PyObject *name, uint32_t unmap_flags, bool root)
{
    struct hold *hold = hold_new(session);
    MapSession *self = hold == NULL ? NULL : PyObject_New(MapSession, MapSession_Type);
    if (self == NULL) {
        if (hold != NULL)
            hold_drop(hold);
        else
            cbd_session_release(session);
        return hold == NULL ? PyErr_NoMemory() : NULL;
    }
    self->stage = (Stage *)Py_NewRef((PyObject *)stage);
    self->hold = hold;
    self->name = Py_NewRef(name);
    self->unmap_flags = unmap_flags;
    self->sync = (cbd_cuda_sync){0, 0};
    self->root = root;
    self->ended = self->claimed = self->fetching = false;
    self->groups = NULL;
    self->count = self->room = self->next = 0;
    self->op = NULL;
    return (PyObject *)self;
}

static void end(MapSession *session)
{
    if (session->ended)
        return;
    session->ended = true;
    cbd_abort(session->hold->session, NULL);
}

static void session_finalize(PyObject *self)
{
    MapSession *session = (MapSession *)self;
    bool dropped = !session->ended && !session->stage->closed && !cbd_stage_is_foreign(session->stage->stage);
    end(session);
    if (dropped)
        warn_dropped(self, session->claimed ? "a claimed group was neither unmapped nor given up; somebody else may claim it now"
                                            : "a map session was neither unmapped nor aborted, nothing of it is published");
}

static void session_dealloc(PyObject *self)
{
    if (finalizer_revives(self, session_finalize))
        return;
    MapSession *session = (MapSession *)self;
    for (size_t i = 0; i < session->count; i++)
        staging_drop(session->groups[i]);
    PyMem_Free(session->groups);
    hold_drop(session->hold);
    Py_XDECREF(session->op);
    Py_DECREF(session->name);
    Py_DECREF(session->stage);
    object_free(self);
}

static int check_open(MapSession *session)
{
    if (session->fetching) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is about to claim a group of this map session");
        return -1;
    }
    if (!session->ended)
        return 0;
    raise_format(CBD_STATUS_INVALID_HANDLE, "this map session of '%.200s' has ended", PyUnicode_AsUTF8AndSize(session->name, NULL));
    return -1;
}

/* Group `index` of the session, borrowed; NULL at the end, or with an exception. */
static struct staging *group_at(MapSession *session, size_t index)
{
    if (check_open(session) < 0)
        return NULL;
    while (session->count <= index) {
        cbd_group *group;
        cbd_error error;
        if (session->count == session->room) {
            size_t room = session->room == 0 ? 4 : 2 * session->room;
            struct staging **groups = PyMem_Resize(session->groups, struct staging *, room);
            if (groups == NULL) {
                PyErr_NoMemory();
                return NULL;
            }
            session->groups = groups;
            session->room = room;
        }
        cbd_status status;
        session->fetching = true; /* of a session of several groups, each is claimed */
        Py_BEGIN_ALLOW_THREADS
        status = cbd_fetch_map_next(session->hold->session, &group, &error);
        Py_END_ALLOW_THREADS
        session->fetching = false;
        if (status == CBD_STATUS_END)
            return NULL;
        if (status != CBD_STATUS_OK) {
            raise_error(status, &error);
            return NULL;
        }
        struct staging *staging = staging_new(session->hold, group);
        if (staging == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        session->groups[session->count++] = staging;
    }
    return session->groups[index];
}

static PyObject *session_next(PyObject *self)
{
    MapSession *session = (MapSession *)self;
    struct staging *staging = group_at(session, session->next);
    Group *group = staging == NULL ? NULL : PyObject_New(Group, Group_Type);
    if (group == NULL)
        return NULL;
    session->next++;
    group->session = (MapSession *)Py_NewRef((PyObject *)session);
    staging_retain(staging);
    group->staging = staging;
    group->prims = NULL;
    return (PyObject *)group;
}

PyObject *claimed_group_new(Stage *stage, cbd_group *group)
{
    PyObject *name = PyUnicode_DecodeUTF8(group->attribute, (Py_ssize_t)strlen(group->attribute), "replace");
    MapSession *session = NULL;
    if (name != NULL)
        session = (MapSession *)session_new(stage, group->session, name, 0, false);
    else
        cbd_session_release(group->session);
    Py_XDECREF(name);
    if (session == NULL)
        return NULL;
    session->claimed = true;
    struct staging **groups = PyMem_New(struct staging *, 1), *staging = groups == NULL ? NULL : staging_new(session->hold, group);
    session->groups = groups;
    PyObject *object = NULL;
    if (staging == NULL) {
        PyErr_NoMemory();
    } else {
        groups[0] = staging;
        session->count = session->room = 1;
        object = session_next((PyObject *)session);
    }
    if (object == NULL)
        end(session);
    Py_DECREF(session);
    return object;
}

static PyObject *session_fetch(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *group = session_next(self);
    if (group == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return group;
}

/* Submits the final unmap with the GIL held: no view is made between the C client's look at
 * what is lent and the end. Borrowed from session->op. */
static PyObject *unmap(MapSession *session, uint32_t flags, const cbd_cuda_sync *sync)
{
    if (check_open(session) < 0)
        return NULL;
    cbd_op *op;
    cbd_error error;
    cbd_status status = cbd_unmap_attribute_after(session->hold->session, flags, sync, &op, &error);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    session->ended = true;
    for (size_t i = 0; i < session->count; i++)
        session->groups[i]->unmapped = true;
    replace(&session->op, op_new(session->stage, op));
    return session->op;
}

static PyObject *session_unmap(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"copy", "seal", "cuda_sync", NULL};
    int copy = 0, seal = 0;
    PyObject *from = NULL;
    MapSession *session = (MapSession *)self;
    cbd_cuda_sync sync;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$ppO:unmap_attribute", names, &copy, &seal, &from) ||
        convert_sync(from, "cuda_sync", &sync) < 0)
        return NULL;
    if (from == NULL || from == Py_None)
        sync = session->sync;
    return Py_XNewRef(unmap(session, session->unmap_flags | (copy ? CBD_FLAG_COPY : 0) | (seal ? CBD_FLAG_SEAL : 0), &sync));
}

static PyObject *session_abort(PyObject *self, PyObject *Py_UNUSED(unused))
{
    MapSession *session = (MapSession *)self;
    session->ended = true;
    cbd_abort(session->hold->session, NULL); /* also where the final unmap waits for other clients */
    Py_RETURN_NONE;
}

static PyObject *session_begin(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return check_open((MapSession *)self) < 0 ? NULL : Py_NewRef(self);
}

/* Leaving the block commits and waits, so that no error is lost; an exception aborts. */
static PyObject *session_end(PyObject *self, PyObject *args)
{
    PyObject *type, *value, *traceback;
    MapSession *session = (MapSession *)self;
    if (!PyArg_ParseTuple(args, "OOO:__exit__", &type, &value, &traceback))
        return NULL;
    if (type != Py_None) {
        end(session);
    } else if (!session->ended) {
        PyObject *op = unmap(session, session->unmap_flags, &session->sync);
        PyObject *waited = op == NULL ? NULL : PyObject_CallMethod(op, "wait", NULL);
        if (waited == NULL) {
            PyErr_Fetch(&type, &value, &traceback);
            session->ended = true;
            cbd_abort(session->hold->session, NULL);
            PyErr_Restore(type, value, traceback);
            return NULL;
        }
        Py_DECREF(waited);
    }
    Py_RETURN_NONE;
}

/* The view of tensor `index` of a group. */
static View *group_view(MapSession *session, struct staging *staging, Py_ssize_t index, bool readonly, bool row)
{
    const cbd_group *group = staging->group;
    int skip = row ? 1 : 0;
    cbd_error error;
    cbd_status status = cbd_group_lend(staging->group, &error);
    if (status != CBD_STATUS_OK) {
        raise_error(status, &error);
        return NULL;
    }
    struct lease *lease = lease_of_staging(staging);
    View *view = group->arrays != NULL
                     ? view_of_elements(lease, group->arrays[index].data, readonly, &group->schema, group->arrays[index].elements)
                     : view_new(lease, group->data, readonly, group->schema.code, group->schema.bits, group->ndim - skip,
                                group->shape + skip);
    view = view_on(view, group->device_type, group->device_id);
    if (view != NULL) {
        view->attribute = Py_NewRef(session->name);
        view->semantic = group->schema.semantic;
        view->ordinal = group->ordinal;
    }
    return view;
}

/* The first group, for sessions that have one. */
static struct staging *only_group(MapSession *session)
{
    if (cbd_session_group_count(session->hold->session) > 1) {
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "this map session of '%.200s' has several groups, each with memory of its own: iterate over it",
                     PyUnicode_AsUTF8AndSize(session->name, NULL));
        return NULL;
    }
    struct staging *staging = group_at(session, 0);
    if (staging == NULL && !PyErr_Occurred())
        raise_format(CBD_STATUS_NOT_FOUND, "this map session has no group");
    if (staging != NULL && staging->group->arrays != NULL) {
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "'%.200s' is of kind array: each prim's row has a length of its own; use the "
                     "group's array(i)", PyUnicode_AsUTF8AndSize(session->name, NULL));
        return NULL;
    }
    return staging;
}

static PyObject *session_array(PyObject *self, void *Py_UNUSED(closure))
{
    MapSession *session = (MapSession *)self;
    struct staging *staging = only_group(session);
    return staging == NULL ? NULL : view_array(group_view(session, staging, 0, false, session->root));
}

static PyObject *session_view(PyObject *self, void *Py_UNUSED(closure))
{
    MapSession *session = (MapSession *)self;
    struct staging *staging = only_group(session);
    return staging == NULL ? NULL : (PyObject *)group_view(session, staging, 0, false, session->root);
}

static PyObject *session_op(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *op = ((MapSession *)self)->op;
    return Py_NewRef(op == NULL ? Py_None : op);
}

static PyObject *session_sync(PyObject *self, void *Py_UNUSED(closure))
{
    return sync_object(&((MapSession *)self)->sync);
}

static int session_set_sync(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    cbd_cuda_sync sync;
    if (convert_sync(value, "cuda_sync", &sync) < 0)
        return -1;
    ((MapSession *)self)->sync = sync;
    return 0;
}

static PyObject *session_group_count(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(cbd_session_group_count(((MapSession *)self)->hold->session));
}

static PyObject *session_ended(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((MapSession *)self)->ended);
}

static PyGetSetDef session_getset[] = {
    {"array", session_array, NULL,
     "The memory to fill: a writable array of the first group, shape (rows, *row_shape[, lanes]); in the short form,\n"
     "stage.map, row_shape alone. A new object each time: one that is kept past the end makes the broker copy.", NULL},
    {"view", session_view, NULL, "The same memory as a callboard.View, for DLPack.", NULL},
    {"cuda_sync", session_sync, session_set_sync,
     "What rows on a GPU wait for when the session ends without a cuda_sync of its own, as at the end of a with-block: a\n"
     "callboard.CudaSync, to be set; None: nothing, the caller has synchronised.", NULL},
    {"op", session_op, NULL, "The Op of the final unmap, with its ordinal and epoch; None before.", NULL},
    {"group_count", session_group_count, NULL, "How many groups the session has, whoever fills them.", NULL},
    {"ended", session_ended, NULL, "True after unmap_attribute, abort, or the end of the block.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef session_members[] = {
    {"attribute", T_OBJECT, offsetof(MapSession, name), READONLY, "The attribute's name."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef session_methods[] = {
    {"fetch_map_next", session_fetch, METH_NOARGS,
     "fetch_map_next($self)\n--\n\nThe next Group, or None. Of a session of several groups (group_rows) it claims one that nobody has."},
    {"unmap_attribute", (PyCFunction)(void (*)(void))session_unmap, METH_VARARGS | METH_KEYWORDS,
     "unmap_attribute($self, *, copy=False, seal=False, cuda_sync=None)\n--\n\nCommits what is not committed yet and ends the session; returns an "
     "Op.\ncopy: the broker copies, although it could take the block over. seal: seals the ordinal in the same step.\n"
     "cuda_sync, a CudaSync, of rows on a GPU: they count as written when the event, and what is queued on the stream by now, have\n"
     "happened; nobody waits here, and nothing more that writes may be queued. None: what the attribute cuda_sync says.\n"
     "The Op of a session of several groups is done when every group was unmapped, by whomever.\n"
     "Raises InvalidHandle when the session has ended, FloorViolation."},
    {"abort", session_abort, METH_NOARGS, "abort($self)\n--\n\nEnds the session; nothing of it becomes visible. One of several "
     "groups can be\naborted while its final unmap still waits for other clients. It does not wait for the broker: another\n"
     "client that is told of it must not seal the ordinal before an op that was submitted after it has ended (R7)."},
    {"__enter__", session_begin, METH_NOARGS, NULL},
    {"__exit__", session_end, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot map_session_slots[] = {
    {Py_tp_doc, "Staging memory to fill in place. Iterates over its groups. As a context manager it commits at the end of\n"
                "the block, and aborts on an exception."},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_finalize, session_finalize},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, session_next},
    {Py_tp_methods, session_methods},
    {Py_tp_members, session_members},
    {Py_tp_getset, session_getset},
    {0, NULL},
};

PyType_Spec MapSession_Spec = {.name = "callboard.MapSession", .basicsize = sizeof(MapSession), .flags = OBJECT_FLAGS, .slots = map_session_slots};

/* ---- groups ------------------------------------------------------------------------------- */

static void group_dealloc(PyObject *self)
{
    Group *group = (Group *)self;
    staging_drop(group->staging);
    Py_XDECREF(group->prims);
    Py_DECREF(group->session);
    object_free(self);
}

/* NULL with an exception: the group was handed back. */
static const cbd_group *group_open(PyObject *self)
{
    Group *group = (Group *)self;
    if (!group->staging->unmapped && !group->session->ended)
        return group->staging->group;
    raise_format(CBD_STATUS_INVALID_HANDLE, "this group of '%.200s' was unmapped or its session has ended",
                 PyUnicode_AsUTF8AndSize(group->session->name, NULL));
    return NULL;
}

/* group_open, where the group has tensor `index`. */
static const cbd_group *group_with(PyObject *self, Py_ssize_t index)
{
    const cbd_group *group = group_open(self);
    if (group == NULL)
        return NULL;
    return check_index(index, group->arrays != NULL ? group->rows : 1) < 0 ? NULL : group;
}

static PyObject *group_array(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"i", "flat", "readonly", NULL};
    Py_ssize_t index = 0;
    int flat = 0, readonly = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|n$pp:array", names, &index, &flat, &readonly) ||
        group_with(self, index) == NULL)
        return NULL;
    View *view = group_view(((Group *)self)->session, ((Group *)self)->staging, index, readonly != 0, false);
    return view_array(flat ? view_flat(view) : view);
}

static PyObject *group_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"i", "readonly", NULL};
    Py_ssize_t index = 0;
    int readonly = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|np:dlpack", names, &index, &readonly) || group_with(self, index) == NULL)
        return NULL;
    return (PyObject *)group_view(((Group *)self)->session, ((Group *)self)->staging, index, readonly != 0, false);
}

static PyObject *group_unmap(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"copy", "cuda_sync", NULL};
    int copy = 0;
    PyObject *from = NULL;
    cbd_cuda_sync sync;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$pO:unmap", names, &copy, &from) || convert_sync(from, "cuda_sync", &sync) < 0 ||
        group_open(self) == NULL)
        return NULL;
    Group *group = (Group *)self;
    if (from == NULL || from == Py_None)
        sync = group->session->sync;
    cbd_op *op;
    cbd_error error;
    cbd_status status = cbd_unmap_group_after(group->staging->group, copy ? CBD_FLAG_COPY : 0, &sync, &op, &error);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    group->staging->unmapped = true;
    if (group->session->claimed)
        group->session->ended = true;
    return op_new(group->session->stage, op);
}

static PyObject *group_give_up(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Group *group = (Group *)self;
    if (group->staging->unmapped || group->session->ended)
        Py_RETURN_NONE;
    cbd_error error;
    cbd_status status = cbd_give_up_group(group->staging->group, &error);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    group->staging->unmapped = true;
    if (group->session->claimed)
        group->session->ended = true;
    Py_RETURN_NONE;
}

static PyObject *group_prims(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    if (group == NULL)
        return NULL;
    Group *object = (Group *)self;
    if (object->prims == NULL)
        object->prims = array_of_copy(group->prims, group->rows, CBD_DTYPE_UINT, 64);
    return Py_XNewRef(object->prims);
}

static PyObject *group_number(PyObject *self, void *field)
{
    const cbd_group *group = group_open(self);
    return group == NULL ? NULL : PyLong_FromUnsignedLongLong(*(const uint64_t *)((const char *)group + (size_t)field));
}

static PyObject *group_attribute(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((Group *)self)->session->name);
}

static PyObject *group_shape(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    if (group != NULL && group->arrays != NULL)
        Py_RETURN_NONE;
    return group == NULL ? NULL : shape_object(group->shape, group->ndim);
}

static PyObject *group_row_shape(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    return group == NULL ? NULL : shape_object(group->schema.row_shape, group->schema.row_ndim);
}

static PyObject *group_dtype(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    return group == NULL ? NULL : dtype_object(group->schema.code, group->schema.bits, group->schema.lanes);
}

static PyObject *group_semantic(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    return group == NULL ? NULL : semantic_object(group->schema.semantic);
}

static PyObject *group_device(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    return group == NULL ? NULL : device_object(group->device_type, group->device_id);
}

static PyObject *group_is_array(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_group *group = group_open(self);
    return group == NULL ? NULL : PyBool_FromLong(group->schema.kind == CBD_KIND_ARRAY);
}

#define NUMBER(name, field, doc) {name, group_number, NULL, doc, (void *)offsetof(cbd_group, field)}

static PyGetSetDef group_getset[] = {
    {"attribute", group_attribute, NULL, "The attribute's name.", NULL},
    {"prims", group_prims, NULL, "The path ids of the rows: uint64, shape (rows,), a copy.", NULL},
    {"shape", group_shape, NULL, "The shape of array(0): (rows, *row_shape[, lanes]). None of array kind.", NULL},
    {"row_shape", group_row_shape, NULL, "The shape of one row, without lanes.", NULL},
    {"dtype", group_dtype, NULL, "The element type with its lanes, a callboard.DType.", NULL},
    {"semantic", group_semantic, NULL, "What the numbers stand for.", NULL},
    {"device", group_device, NULL, "Where array(0) lies: 'cpu', or 'cuda:0' with this process's number of the GPU.", NULL},
    {"is_array", group_is_array, NULL, "True for the array kind: array(i) is row i, of as many elements as element_sizes said.", NULL},
    NUMBER("rows", rows, "The number of rows."),
    NUMBER("index", index, "Which group of the session this is."),
    NUMBER("attempt", attempt, "How often the group was claimed: 1, or more when a claimant died or gave it up."),
    NUMBER("first_prim", first_prim, "Row 0 is this prim of the query, row 1 the next."),
    NUMBER("ordinal", ordinal, "The session's ordinal; 0: taken at the end."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef group_methods[] = {
    {"array", (PyCFunction)(void (*)(void))group_array, METH_VARARGS | METH_KEYWORDS,
     "array($self, i=0, *, flat=False, readonly=False)\n--\n\nThe memory to fill, a writable numpy.ndarray of shape (rows, "
     "*row_shape[, lanes]), of kind array\n(n[, lanes]); flat: one dimension; readonly: to look at what is there. Without NumPy, "
     "and on a GPU,\na View. One that is kept\npast the end makes the broker copy (rule M1). Nothing looks at what is filled in: bool is 0 or "
     "1.\nRaises IndexError for a tensor that does not exist, InvalidHandle after the group was handed back."},
    {"dlpack", (PyCFunction)(void (*)(void))group_dlpack, METH_VARARGS | METH_KEYWORDS,
     "dlpack($self, i=0, readonly=False)\n--\n\nThe same memory as a View, which any DLPack consumer takes; readonly: one that must "
     "not write. Raises as array."},
    {"unmap", (PyCFunction)(void (*)(void))group_unmap, METH_VARARGS | METH_KEYWORDS,
     "unmap($self, *, copy=False, cuda_sync=None)\n--\n\nCommits this group alone; returns an Op. cuda_sync: as of unmap_attribute. Raises InvalidHandle the second time. Of a\n"
     "group that was claimed the Op fails with InvalidHandle when the session was aborted meanwhile, and with FloorViolation\n"
     "when a seal passed its ordinal."},
    {"give_up", group_give_up, METH_NOARGS,
     "give_up($self)\n--\n\nGives a group of a session of several back unfilled, for somebody else to claim. Does nothing to one that\n"
     "was handed back. Raises InvalidHandle where the session has one group only: abort that."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_doc, "Some rows of a map session. Belongs to its session."},
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, group_getset},
    {0, NULL},
};

PyType_Spec Group_Spec = {.name = "callboard.Group", .basicsize = sizeof(Group), .flags = OBJECT_FLAGS, .slots = group_slots};
