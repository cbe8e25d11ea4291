/* Stage: connecting, what it tells about itself, waiting for the next epoch, strings. */
#include "native.h"

#include <structmember.h>

/* Never without the GIL: a string from cbd_resolve is borrowed until the stage is
 * closed, and is copied with the GIL held. Closing waits for nobody who may want it, but
 * where arenas were opened for the broker and who is in a call, for some seconds at most. */
static void close_stage(Stage *self)
{
    if (self->closed)
        return;
    self->closed = true;
    cbd_stage_close(self->stage);
}

/* The sizes of a channel: 0, or not given, is the default. */
static int convert_ring(PyObject *from, const char *argument, uint32_t *to)
{
    if (from == NULL)
        return 0;
    if (convert_u32(from, argument, 0, CBD_RING_ENTRIES_MAX, to) < 0)
        return -1;
    if ((*to & (*to - 1)) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be a power of two, or 0 for the default, not %u", argument, (unsigned)*to);
    return -1;
}

static int convert_area(PyObject *from, const char *argument, uint32_t *to)
{
    return from == NULL ? 0 : convert_u32(from, argument, 0, CBD_AREA_BYTES_MAX, to);
}

static PyObject *stage_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name",       "client_name", "guard",     "read_only",      "timeout",
                            "sq_entries", "cq_entries",  "pin_count", "argument_bytes", "result_bytes",
                            "reattach_timeout", NULL};
    PyObject *name = Py_None, *client_name = Py_None, *guard = Py_None, *timeout = Py_None, *sizes[5] = {NULL};
    PyObject *reattach = NULL;
    int read_only = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$OOpOOOOOOO:Stage", names, &name, &client_name, &guard, &read_only,
                                     &timeout, &sizes[0], &sizes[1], &sizes[2], &sizes[3], &sizes[4], &reattach))
        return NULL;
    cbd_connect_options options = {.language = CBD_LANGUAGE_PYTHON, .read_only = (uint32_t)read_only};
    const char *text = NULL;
    if (name != Py_None && (text = convert_text(name, "name")) == NULL)
        return NULL;
    if (client_name != Py_None && (options.client_name = convert_text(client_name, "client_name")) == NULL)
        return NULL;
    int guarded = guard == Py_None ? 0 : PyObject_IsTrue(guard);
    if (guarded < 0 || convert_timeout(timeout, &options.timeout_ns) < 0 ||
        convert_ring(sizes[0], "sq_entries", &options.sq_entries) < 0 ||
        convert_ring(sizes[1], "cq_entries", &options.cq_entries) < 0 ||
        (sizes[2] != NULL && convert_u32(sizes[2], "pin_count", 0, CBD_PIN_COUNT_MAX, &options.pin_count) < 0) ||
        convert_area(sizes[3], "argument_bytes", &options.argument_bytes) < 0 ||
        convert_area(sizes[4], "result_bytes", &options.result_bytes) < 0)
        return NULL;
    options.guard = (uint32_t)guarded;
    if (timeout == Py_None)
        options.timeout_ns = 0;
    if (reattach != NULL) {
        if (convert_timeout(reattach, &options.reattach_ns) < 0)
            return NULL;
        if (options.reattach_ns == 0)
            options.reattach_ns = CBD_REATTACH_NEVER;
        else if (options.reattach_ns == UINT64_MAX)
            options.reattach_ns = UINT64_MAX - 1; /* for ever */
    }

    Stage *self = (Stage *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->closed = true;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_connect(text, &options, &self->stage, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK) {
        Py_DECREF(self);
        return raise_error(status, &error);
    }
    self->closed = false;
    return (PyObject *)self;
}

static void stage_finalize(PyObject *self)
{
    Stage *stage = (Stage *)self;
    if (stage->closed)
        return;
    bool foreign = cbd_stage_is_foreign(stage->stage) != 0;
    close_stage(stage);
    if (!foreign)
        warn_dropped(self, "a stage was not closed");
}

static void stage_dealloc(PyObject *self)
{
    if (finalizer_revives(self, stage_finalize))
        return;
    Stage *stage = (Stage *)self;
    if (stage->weakrefs != NULL)
        PyObject_ClearWeakRefs(self);
    Py_XDECREF(stage->names);
    Py_XDECREF(stage->events);
    cbd_stage_release(stage->stage);
    object_free(self);
}

static PyObject *stage_close(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"if_idle", NULL};
    Stage *stage = (Stage *)self;
    int if_idle = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$p:close", names, &if_idle))
        return NULL;
    if (if_idle && !stage->closed) {
        cbd_error error;
        cbd_status status = cbd_stage_close_if_idle(stage->stage, &error); /* with the GIL, as close_stage */
        if (status != CBD_STATUS_OK)
            return raise_error(status, &error);
        stage->closed = true;
    }
    close_stage(stage);
    Py_RETURN_NONE;
}

static PyObject *stage_begin(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(self);
}

static PyObject *stage_end(PyObject *self, PyObject *Py_UNUSED(args))
{
    close_stage((Stage *)self);
    Py_RETURN_NONE;
}

/* ---- what it tells ------------------------------------------------------------------- */

static PyObject *stage_info(PyObject *self, PyObject *Py_UNUSED(unused))
{
    cbd_stage_info info;
    cbd_error error;
    cbd_status status = cbd_stage_get_info(((Stage *)self)->stage, &info, &error);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    return Py_BuildValue(
        "{s:s,s:s,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:s,s:(II)}", "name", info.name, "host", info.host,
        "generation", info.generation, "incarnation", info.incarnation, "broker_incarnation", info.broker_incarnation,
        "started_ns", info.started_ns, "features", info.features, "epoch", info.epoch, "pinned_bytes",
        info.pinned_bytes, "pinned_bytes_max", info.pinned_bytes_max, "memory_bytes_max", info.memory_bytes_max,
        "unsealed_bytes_max", info.unsealed_bytes_max, "retain", info.retain_default, "handoff",
        info.handoff_default == CBD_HANDOFF_COPY ? "copy" : "adopt", "abi_version", info.abi_version >> 16,
        info.abi_version & 0xffff);
}

static PyObject *attribute_object(const cbd_attribute_info *info)
{
    const cbd_schema *schema = &info->schema;
    return Py_BuildValue(
        "{s:s#,s:N,s:I,s:N,s:N,s:N,s:O,s:K,s:I,s:s,s:K,s:K,s:K,s:K,s:K}", "name", info->name, (Py_ssize_t)info->name_bytes,
        "device", device_object(schema->device_type, schema->device_id), "column", info->column, "dtype", dtype_object(schema->code, schema->bits, schema->lanes), "row_shape",
        shape_object(schema->row_shape, schema->row_ndim), "semantic", semantic_object(schema->semantic), "is_array",
        schema->kind == CBD_KIND_ARRAY ? Py_True : Py_False, "row_bytes", info->row_bytes, "retain", info->retain,
        "handoff", info->handoff == CBD_HANDOFF_COPY ? "copy" : "adopt", "version_count", info->version_count,
        "adopted_count", info->adopted_count, "scattered_count", info->scattered_count, "adopt_refused_count",
        info->adopt_refused_count, "copied_bytes", info->copied_bytes);
}

static PyObject *stage_attributes(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    for (uint32_t column = 1; list != NULL; column++) {
        cbd_attribute_info info;
        cbd_error error;
        cbd_status status = cbd_attribute_at(((Stage *)self)->stage, column, &info, &error);
        if (status == CBD_STATUS_END)
            return list;
        PyObject *item = status == CBD_STATUS_OK ? attribute_object(&info) : raise_error(status, &error);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return NULL;
}

static PyObject *stage_devices(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    for (uint32_t index = 0; list != NULL; index++) {
        cbd_device_info info;
        cbd_error error;
        cbd_status status;
        Py_BEGIN_ALLOW_THREADS
        status = cbd_device_at(((Stage *)self)->stage, index, &info, &error);
        Py_END_ALLOW_THREADS
        if (status == CBD_STATUS_END)
            return list;
        PyObject *item = status != CBD_STATUS_OK
                             ? raise_error(status, &error)
                             : Py_BuildValue("{s:I,s:N,s:y#,s:K}", "index", info.index, "device", device_object(CBD_DEVICE_CUDA, info.device_id),
                                             "uuid", info.uuid, (Py_ssize_t)sizeof info.uuid, "memory_bytes", info.memory_bytes);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return NULL;
}

static PyObject *stage_write_floor(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", NULL};
    PyObject *name = Py_None;
    const char *text = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:write_floor", names, &name) ||
        (name != Py_None && (text = convert_attribute((Stage *)self, name, "name")) == NULL))
        return NULL;
    uint64_t floor;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_write_floor(((Stage *)self)->stage, text, &floor, &error);
    Py_END_ALLOW_THREADS
    return status == CBD_STATUS_OK ? PyLong_FromUnsignedLongLong(floor) : raise_error(status, &error);
}

static PyObject *stage_follow(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"after", "timeout", NULL};
    PyObject *from = Py_None, *timeout = Py_None;
    cbd_stage *stage = ((Stage *)self)->stage;
    uint64_t after, timeout_ns;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:follow", names, &from, &timeout))
        return NULL;
    if (from == Py_None)
        after = cbd_epoch(stage);
    else if (convert_u64(from, "after", &after) < 0)
        return NULL;
    if (convert_timeout(timeout, &timeout_ns) < 0)
        return NULL;

    uint64_t deadline = deadline_after(timeout_ns), epoch;
    cbd_error error;
    for (;;) {
        cbd_status status;
        uint64_t turn = timeout_ns == 0 ? 0 : turn_before(deadline);
        Py_BEGIN_ALLOW_THREADS
        status = cbd_follow(stage, after, turn, &epoch, &error);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            return NULL;
        if (status == CBD_STATUS_OK)
            return PyLong_FromUnsignedLongLong(epoch);
        if (status != CBD_STATUS_TIMEOUT)
            return raise_error(status, &error);
        if (turn == 0)
            return raise_format(status, "the epoch is still %llu after %.3g s, waiting for one above %llu",
                                (unsigned long long)epoch, (double)timeout_ns / 1e9, (unsigned long long)after);
    }
}

/* ---- strings and queries ---------------------------------------------------------------- */

static PyObject *resolve(cbd_stage *stage, PyObject *from)
{
    uint64_t id;
    const char *text;
    size_t length;
    cbd_error error;
    if (convert_u64(from, "id", &id) < 0)
        return NULL;
    cbd_status status = cbd_resolve(stage, id, &text, &length, &error);
    return status == CBD_STATUS_OK ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace")
                                   : raise_error(status, &error);
}

static PyObject *stage_resolve(PyObject *self, PyObject *ids)
{
    cbd_stage *stage = ((Stage *)self)->stage;
    if (PyIndex_Check(ids) && !PySequence_Check(ids))
        return resolve(stage, ids);
    PyObject *iterator = PyObject_GetIter(ids), *list = iterator == NULL ? NULL : PyList_New(0);
    while (list != NULL) {
        PyObject *id = PyIter_Next(iterator);
        if (id == NULL) {
            if (PyErr_Occurred())
                Py_CLEAR(list);
            break;
        }
        PyObject *text = resolve(stage, id);
        if (text == NULL || PyList_Append(list, text) < 0)
            Py_CLEAR(list);
        Py_XDECREF(text);
        Py_DECREF(id);
    }
    Py_XDECREF(iterator);
    return list;
}

static PyObject *stage_intern(PyObject *self, PyObject *args)
{
    int paths;
    PyObject *from;
    struct texts texts;
    if (!PyArg_ParseTuple(args, "pO:intern", &paths, &from) || texts_open(&texts, from, "texts", true) < 0)
        return NULL;
    bool single = PyUnicode_Check(from) != 0;
    uint64_t *ids = PyMem_New(uint64_t, texts.count + 1);
    PyObject *result = NULL;
    if (ids == NULL) {
        PyErr_NoMemory();
    } else {
        cbd_error error;
        cbd_status status;
        Py_BEGIN_ALLOW_THREADS
        status = cbd_intern(((Stage *)self)->stage, paths, texts.texts, texts.lengths, texts.count, ids, &error);
        Py_END_ALLOW_THREADS
        if (status != CBD_STATUS_OK)
            raise_error(status, &error);
        else if (single)
            result = PyLong_FromUnsignedLongLong(ids[0]);
        else
            result = array_of_copy(ids, texts.count, CBD_DTYPE_UINT, 64);
    }
    PyMem_Free(ids);
    texts_close(&texts);
    return result;
}

static PyObject *stage_query_from_path_list(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"paths", NULL};
    PyObject *paths;
    struct texts texts;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:query_from_path_list", names, &paths) ||
        texts_open(&texts, paths, "paths", false) < 0)
        return NULL;
    cbd_query *query;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_query_from_path_list(((Stage *)self)->stage, texts.texts, texts.lengths, texts.count, &query, &error);
    Py_END_ALLOW_THREADS
    texts_close(&texts);
    return status == CBD_STATUS_OK ? query_new((Stage *)self, query) : raise_error(status, &error);
}

static PyObject *stage_list_groups(PyObject *self, PyObject *attribute)
{
    cbd_stage *stage = ((Stage *)self)->stage;
    const char *text = NULL;
    if (attribute != Py_None && (text = convert_attribute((Stage *)self, attribute, "attribute")) == NULL)
        return NULL;
    cbd_open_group *groups = NULL;
    size_t room = 0, count = 64;
    cbd_error error;
    cbd_status status = CBD_STATUS_OK;
    while (status == CBD_STATUS_OK && count > room) { /* more may have come since they were counted */
        cbd_open_group *more = PyMem_Resize(groups, cbd_open_group, count);
        if (more == NULL) {
            PyMem_Free(groups);
            return PyErr_NoMemory();
        }
        groups = more;
        room = count;
        Py_BEGIN_ALLOW_THREADS
        status = cbd_list_groups(stage, text, groups, room, &count, &error);
        Py_END_ALLOW_THREADS
    }
    PyObject *list = status == CBD_STATUS_OK ? PyList_New((Py_ssize_t)count) : raise_error(status, &error);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const cbd_open_group *g = &groups[i];
        PyObject *item = Py_BuildValue("(KKKKKI)", g->session, g->index, g->ordinal, g->first_prim, g->rows, g->attempt);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, item);
    }
    PyMem_Free(groups);
    return list;
}

static PyObject *stage_claim_group(PyObject *self, PyObject *args)
{
    PyObject *session, *index;
    uint64_t handle, place = CBD_ANY_GROUP;
    if (!PyArg_ParseTuple(args, "OO:claim_group", &session, &index) || convert_u64(session, "session", &handle) < 0 ||
        (index != Py_None && convert_u64(index, "index", &place) < 0))
        return NULL;
    cbd_group *group;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_claim_group(((Stage *)self)->stage, handle, place, &group, &error);
    Py_END_ALLOW_THREADS
    if (status == CBD_STATUS_END)
        Py_RETURN_NONE;
    return status == CBD_STATUS_OK ? claimed_group_new((Stage *)self, group) : raise_error(status, &error);
}

/* ---- the type ----------------------------------------------------------------------------- */

static PyObject *stage_epoch(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(cbd_epoch(((Stage *)self)->stage));
}

static PyObject *stage_closed(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((Stage *)self)->closed);
}

static PyObject *stage_alive(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!((Stage *)self)->closed && cbd_stage_is_alive(((Stage *)self)->stage));
}

static PyGetSetDef stage_getset[] = {
    {"epoch", stage_epoch, NULL, "The newest epoch; 0: nothing was sealed, or the stage is closed.", NULL},
    {"closed", stage_closed, NULL, "True after close().", NULL},
    {"alive", stage_alive, NULL,
     "True while the session runs, as far as is known without asking. False once the broker was stopped, or was\n"
     "killed and not started anew in time: waits and what needs the broker then raise SessionEnded, and what was sealed\n"
     "can be read on; see connect.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef stage_methods[] = {
    {"close", (PyCFunction)(void (*)(void))stage_close, METH_VARARGS | METH_KEYWORDS,
     "close($self, *, if_idle=False)\n--\n\nEnds the session: open map sessions are aborted, waits end with SessionEnded. Views "
     "stay valid. It waits, for a second at most, for work on a GPU that was handed over; where that takes longer,\n"
     "memory there stays open to this process until it ends.\nif_idle: refuses with OperationFailed while anything of the stage is in use, and lists it: map sessions,\n"
     "queries, ops, reads, snapshots, views. The stage then stays open, and close can be called again."},
    {"__enter__", stage_begin, METH_NOARGS, NULL},
    {"__exit__", stage_end, METH_VARARGS, NULL},
    {"info", stage_info, METH_NOARGS, "info($self)\n--\n\nWhat the stage tells about itself and this client, a dict."},
    {"attributes", stage_attributes, METH_NOARGS,
     "attributes($self)\n--\n\nA dict for each attribute: name, dtype, row_shape, semantic, settings and counters."},
    {"devices", stage_devices, METH_NOARGS,
     "devices($self)\n--\n\nA dict for each GPU that the broker serves: its index there, device (what this process calls it, 'cuda:0', or\n"
     "'cuda:?' where it does not see it), uuid, memory_bytes. Asks the broker, and loads a driver where there is one."},
    {"write_floor", (PyCFunction)(void (*)(void))stage_write_floor, METH_VARARGS | METH_KEYWORDS,
     "write_floor($self, name=None)\n--\n\nThe ordinal through which the attribute is sealed; None: everything. 0: never sealed."},
    {"follow", (PyCFunction)(void (*)(void))stage_follow, METH_VARARGS | METH_KEYWORDS,
     "follow($self, after=None, timeout=None)\n--\n\nWaits until the epoch is above `after` (None: the current one); returns it.\n"
     "timeout: seconds; None: for ever; 0: looks once. Raises Timeout, and SessionEnded when the broker was\n"
     "stopped, or was killed and not started anew in time, or close() was called."},
    {"query_from_path_list", (PyCFunction)(void (*)(void))stage_query_from_path_list, METH_VARARGS | METH_KEYWORDS,
     "query_from_path_list($self, paths)\n--\n\nA Query of the prims with these paths, in this order. They need not exist. Each\n"
     "starts with '/', and its names are not empty. Waits for the broker. Raises InvalidArgument, which names the path and\n"
     "its place in the list."},
    {"_list_groups", stage_list_groups, METH_O, NULL},
    {"_claim_group", stage_claim_group, METH_VARARGS, NULL},
    {"_resolve", stage_resolve, METH_O, NULL},
    {"_intern", stage_intern, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef stage_members[] = {WEAKREFS(Stage), {NULL, 0, 0, 0, NULL}};

PyType_Spec *stage_spec(void)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A session with a stage; see callboard.Stage."},
        {Py_tp_new, stage_new},
        {Py_tp_dealloc, stage_dealloc},
        {Py_tp_finalize, stage_finalize},
        {Py_tp_getset, stage_getset},
        {Py_tp_members, stage_members},
        {Py_tp_methods, NULL}, /* the last */
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "callboard._native.Stage", .basicsize = sizeof(Stage), .flags = BASE_FLAGS, .slots = slots};
    PyMethodDef *const lists[] = {stage_methods, stage_write_methods, stage_read_methods, stage_filter_methods, stage_events_methods};
    slots[sizeof slots / sizeof slots[0] - 2].pfunc = joined(lists, sizeof lists / sizeof lists[0]);
    return slots[sizeof slots / sizeof slots[0] - 2].pfunc == NULL ? NULL : &spec;
}
