/* Read, and the methods of Stage that read: sealed state, in place. */
#include "native.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    cbd_read *read; /* NULL: released, or everything was fetched */
    PyObject *name; /* of all its groups, or NULL */
    uint64_t epoch, ordinal;
    uint32_t device_type, device_id; /* where its groups are to lie; 0: where the attributes do */
    bool open; /* nothing is waited for any more */
} Read;

/* Takes the read. */
static PyObject *read_new(cbd_read *read, PyObject *name, bool open)
{
    Read *self = PyObject_New(Read, Read_Type);
    if (self == NULL) {
        cbd_read_release(read);
        return NULL;
    }
    self->read = read;
    self->name = Py_XNewRef(name);
    self->epoch = cbd_read_epoch(read);
    self->ordinal = cbd_read_ordinal(read);
    self->device_type = self->device_id = 0;
    self->open = open;
    return (PyObject *)self;
}

static void read_finalize(PyObject *self)
{
    Read *read = (Read *)self;
    if (read->read == NULL)
        return;
    cbd_read_release(read->read);
    read->read = NULL;
    warn_dropped(self, "a read was neither released nor fetched to its end");
}

static void read_dealloc(PyObject *self)
{
    if (finalizer_revives(self, read_finalize))
        return;
    Py_XDECREF(((Read *)self)->name);
    object_free(self);
}

static PyObject *read_release(PyObject *self, PyObject *Py_UNUSED(args))
{
    cbd_read_release(((Read *)self)->read);
    ((Read *)self)->read = NULL;
    Py_RETURN_NONE;
}

static PyObject *fetch(Read *read, bool managed)
{
    if (read->read == NULL)
        return NULL; /* END, and END again */
    const cbd_read_group *group;
    cbd_error error;
    cbd_read *pointer = read->read;
    cbd_status status = CBD_STATUS_TIMEOUT;
    bool quick = read->open && read->device_type == 0;
    if (quick)
        status = cbd_fetch_read_next(pointer, &group, NULL); /* END mostly, which needs no text */
    if (!quick || (status != CBD_STATUS_OK && status != CBD_STATUS_END)) { /* the query may still be running, rows be copied */
        read->read = NULL; /* ours alone meanwhile */
        Py_BEGIN_ALLOW_THREADS
        status = cbd_fetch_read_next_in(pointer, read->device_type, read->device_id, &group, &error);
        Py_END_ALLOW_THREADS
        read->read = pointer;
        read->epoch = cbd_read_epoch(pointer);
        read->ordinal = cbd_read_ordinal(pointer);
        read->open = status == CBD_STATUS_OK || status == CBD_STATUS_END;
    }
    if (status == CBD_STATUS_OK)
        return read_group_new(group, read->name, managed);
    cbd_read_release(read->read); /* what failed is over, too, as an iterator is */
    read->read = NULL;
    return status == CBD_STATUS_END ? NULL : raise_error(status, &error);
}

static PyObject *read_next(PyObject *self)
{
    return fetch((Read *)self, true);
}

static PyObject *read_fetch(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *group = fetch((Read *)self, false);
    if (group == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return group;
}

static PyObject *read_begin(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(self);
}

static PyMemberDef read_members[] = {
    {"epoch", T_ULONGLONG, offsetof(Read, epoch), READONLY, "The epoch that the read is of; 0: nothing was sealed."},
    {"ordinal", T_ULONGLONG, offsetof(Read, ordinal), READONLY,
     "The ordinal that the read is as of, given or common; 0: it is of the newest state or of a stamp."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef read_methods[] = {
    {"fetch_read_next", read_fetch, METH_NOARGS,
     "fetch_read_next($self)\n--\n\nThe next ReadGroup, which the caller releases, or None. Iterating gives groups that need no\n"
     "release: they end with their last reference, without a warning."},
    {"release", read_release, METH_NOARGS, "release($self)\n--\n\nGives the read back; groups that were fetched stay valid."},
    {"__enter__", read_begin, METH_NOARGS, NULL},
    {"__exit__", read_release, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot read_slots[] = {
    {Py_tp_doc, "The groups of one read, all of one epoch. Iterates over them; a context manager."},
    {Py_tp_dealloc, read_dealloc},
    {Py_tp_finalize, read_finalize},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, read_next},
    {Py_tp_methods, read_methods},
    {Py_tp_members, read_members},
    {0, NULL},
};

PyType_Spec Read_Spec = {.name = "callboard.Read", .basicsize = sizeof(Read), .flags = OBJECT_FLAGS, .slots = read_slots};

/* ---- opening one ------------------------------------------------------------------- */

PyObject *read_open(Stage *stage, cbd_snapshot *snapshot, PyObject *query, PyObject *attributes, const cbd_range *range,
                    const cbd_cursor *since, PyObject *device)
{
    struct texts texts;
    uint32_t device_type = 0, device_id = 0;
    cbd_query *pointer = convert_device(device, "device", &device_type, &device_id) < 0 ? NULL : query_enter(query);
    if (pointer == NULL)
        return NULL;
    PyObject *object = NULL;
    if (attributes_open(&texts, stage, attributes, "attributes") == 0) {
        cbd_read *read = NULL;
        cbd_error error;
        cbd_status status = CBD_STATUS_TIMEOUT;
        if (snapshot == NULL && range == NULL)
            status = cbd_try_read_attributes(stage->stage, pointer, texts.texts, texts.count, &read, &error);
        bool open = status != CBD_STATUS_TIMEOUT;
        if (!open) {
            Py_BEGIN_ALLOW_THREADS
            status = snapshot != NULL
                         ? cbd_snapshot_read_since(snapshot, pointer, texts.texts, texts.count, since, &read, &error)
                         : cbd_read_range(stage->stage, pointer, texts.texts, texts.count, range, &read, &error);
            Py_END_ALLOW_THREADS
        }
        if (status != CBD_STATUS_OK)
            raise_error(status, &error);
        else
            object = read_new(read, PyUnicode_Check(texts.keep) ? texts.keep : NULL, open);
        if (object != NULL) {
            ((Read *)object)->device_type = device_type;
            ((Read *)object)->device_id = device_id;
        }
        texts_close(&texts);
    }
    query_leave(query);
    return object;
}

/* ---- Stage's methods ------------------------------------------------------------------------- */

/* Which of at, aligned, stamp_ns and nearest is given. 0, or -1 with an exception. */
static int convert_range(PyObject *at, bool aligned, PyObject *stamp_ns, bool nearest, PyObject *since, cbd_range *range)
{
    if ((at != Py_None) + aligned + (stamp_ns != Py_None) > 1) {
        PyErr_SetString(PyExc_ValueError, "at, aligned and stamp_ns exclude one another: a read is as of one of them");
        return -1;
    }
    if (nearest && stamp_ns == Py_None) {
        PyErr_SetString(PyExc_ValueError, "nearest needs stamp_ns, the stamp to be near to");
        return -1;
    }
    if (at != Py_None)
        range->at_what = CBD_AT_ORDINAL;
    else if (aligned)
        range->at_what = CBD_AT_COMMON;
    else if (stamp_ns != Py_None)
        range->at_what = nearest ? CBD_AT_NEAREST_STAMP : CBD_AT_STAMP;
    range->has_since = since != Py_None;
    if ((at != Py_None && convert_u64(at, "at", &range->at) < 0) ||
        (stamp_ns != Py_None && convert_u64(stamp_ns, "stamp_ns", &range->at) < 0) ||
        (since != Py_None && convert_u64(since, "since", &range->since) < 0))
        return -1;
    return 0;
}

static PyObject *stage_read_attributes(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *given)
{
    static const char *const names[] = {"query", "attributes", "at", "since", "aligned", "stamp_ns", "nearest", "device", NULL};
    static const struct arguments arguments = {"read_attributes", names, 2, 2};
    PyObject *values[] = {NULL, NULL, Py_None, Py_None, NULL, Py_None, NULL, Py_None};
    bool aligned = false, nearest = false;
    cbd_range range = {0, 0, 0, 0};
    if (arguments_sort(&arguments, args, count, given, values) < 0 || convert_truth(values[4], &aligned) < 0 ||
        convert_truth(values[6], &nearest) < 0 || convert_range(values[2], aligned, values[5], nearest, values[3], &range) < 0)
        return NULL;
    bool newest = range.at_what == CBD_AT_NEWEST && !range.has_since;
    return read_open((Stage *)self, NULL, values[0], values[1], newest ? NULL : &range, NULL, values[7]);
}

static PyObject *stage_frontier(PyObject *self, PyObject *name)
{
    const char *text = convert_attribute((Stage *)self, name, "name");
    uint64_t frontier;
    cbd_error error;
    cbd_status status;
    if (text == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_frontier(((Stage *)self)->stage, text, &frontier, &error);
    Py_END_ALLOW_THREADS
    return status == CBD_STATUS_OK ? PyLong_FromUnsignedLongLong(frontier) : raise_error(status, &error);
}

static PyObject *stage_latest(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *given)
{
    static const char *const names[] = {"name", "device", NULL};
    static const struct arguments arguments = {"latest", names, 1, 1};
    PyObject *values[] = {NULL, Py_None};
    uint32_t device_type = 0, device_id = 0;
    if (arguments_sort(&arguments, args, count, given, values) < 0 || convert_device(values[1], "device", &device_type, &device_id) < 0)
        return NULL;
    PyObject *name = attribute_name((Stage *)self, values[0], "name");
    const char *text = name == NULL ? NULL : convert_text(name, "name");
    if (text == NULL)
        return NULL;
    const cbd_read_group *group;
    cbd_error error;
    cbd_status status = CBD_STATUS_TIMEOUT;
    if (device_type == 0)
        status = cbd_try_latest(((Stage *)self)->stage, text, &group, &error);
    if (status == CBD_STATUS_TIMEOUT) {
        Py_BEGIN_ALLOW_THREADS
        status = cbd_latest_in(((Stage *)self)->stage, text, device_type, device_id, &group, &error);
        Py_END_ALLOW_THREADS
    }
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    View *view = view_of_read_group(group, name, 0, false);
    cbd_release_group(group);
    return (PyObject *)view;
}

PyMethodDef stage_read_methods[] = {
    {"read_attributes", (PyCFunction)(void (*)(void))stage_read_attributes, METH_FASTCALL | METH_KEYWORDS,
     "read_attributes($self, query, attributes, *, at=None, since=None, aligned=False, stamp_ns=None, nearest=False, device=None)\n--\n\nThe newest sealed state of the attributes (a name or "
     "a list) on the query's prims: a Read of groups,\nall of one epoch. Asks nobody and waits for nobody. What does not "
     "exist or was never sealed gives no\ngroup.\n\n"
     "at: the state as of an ordinal, exactly. since: only what changed after an ordinal (0 is one): the rows\nthat were "
     "written, and groups with is_delete of prims that are gone. Both: what changed up to at.\n\n"
     "aligned: attributes of producers that are not equally far, at one tick: as of the highest ordinal through which\n"
     "all of them are sealed, which Read.ordinal tells. Those that nobody wrote or sealed do not count. stamp_ns: attributes\n"
     "that have no ordinals in common, at one time: of each what was sealed last with a stamp of at most stamp_ns, or,\n"
     "with nearest, what came after it where its stamp is nearer; ReadGroup.stamp_ns tells what was found. Stamps are those of\n"
     "the seals (advance_write_floor's stamp_ns, or the broker's clock) and are expected to rise. An attribute that runs\n"
     "ahead of others needs as many versions as it is ahead: declare(retain=).\n\n"
     "device: where the groups' rows are to lie; None: where the attribute does. 'cpu' gives those of attributes on a GPU on the\n"
     "host, and 'cuda:0' the other way: the broker makes that copy once for each version, and all readers share it.\n\n"
     "Raises LimitReached when this client has too much pinned, naming its oldest pins; FloorViolation for an\nat above "
     "an attribute's write floor; OutOfRange for a state that is not retained or never was one of its own,\nand for a since "
     "before the frontier; InvalidArgument for a since above at, or with a stamp."},
    {"frontier", stage_frontier, METH_O,
     "frontier($self, name, /)\n--\n\nThe ordinal after which all changes of the attribute are known exactly: read_attributes with an "
     "earlier\nsince raises OutOfRange. It rises when more prims were deleted than are remembered, at least 65536."},
    {"latest", (PyCFunction)(void (*)(void))stage_latest, METH_FASTCALL | METH_KEYWORDS,
     "latest($self, name, *, device=None)\n--\n\nThe newest sealed value of the attribute on the prim \"/\": a View of shape row_shape[, lanes].\n"
     "device: as of read_attributes. Raises NotFound."},
    {"snapshot", stage_snapshot, METH_NOARGS,
     "snapshot($self)\n--\n\nA Snapshot of everything at the newest epoch: any number of reads see that one state."},
    {"_snapshot", stage_managed_snapshot, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
