/* ReadGroup: some prims of one attribute, in place, and views of them. */
#include "native.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    const cbd_read_group *group; /* NULL: released */
    PyObject *name;
    PyObject *prims, *index_map, *row_ordinals; /* made at the first use */
    bool managed;                /* made by iteration: ends with its last reference, and that is no oversight */
    PyObject *weakrefs;
} ReadGroup;

PyObject *read_group_new(const cbd_read_group *group, PyObject *name, bool managed)
{
    name = name != NULL ? Py_NewRef(name) : PyUnicode_DecodeUTF8(group->name, (Py_ssize_t)strlen(group->name), "replace");
    ReadGroup *self = name == NULL ? NULL : PyObject_New(ReadGroup, ReadGroup_Type);
    if (self == NULL) {
        Py_XDECREF(name);
        cbd_release_group(group);
        return NULL;
    }
    self->group = group;
    self->name = name;
    self->prims = self->index_map = self->row_ordinals = NULL;
    self->managed = managed;
    self->weakrefs = NULL;
    return (PyObject *)self;
}

static void group_finalize(PyObject *self)
{
    ReadGroup *group = (ReadGroup *)self;
    if (group->group == NULL)
        return;
    cbd_release_group(group->group);
    group->group = NULL;
    if (!group->managed)
        warn_dropped(self, "a group was not released");
}

static void group_dealloc(PyObject *self)
{
    if (finalizer_revives(self, group_finalize))
        return;
    ReadGroup *group = (ReadGroup *)self;
    if (group->weakrefs != NULL)
        PyObject_ClearWeakRefs(self);
    Py_DECREF(group->name);
    Py_XDECREF(group->prims);
    Py_XDECREF(group->index_map);
    Py_XDECREF(group->row_ordinals);
    object_free(self);
}

/* NULL with an exception: released. */
static const cbd_read_group *group_open(PyObject *self)
{
    ReadGroup *group = (ReadGroup *)self;
    if (group->group == NULL)
        raise_format(CBD_STATUS_INVALID_HANDLE, "this group of '%.200s' was released", PyUnicode_AsUTF8AndSize(group->name, NULL));
    return group->group;
}

View *view_of_read_group(const cbd_read_group *group, PyObject *name, Py_ssize_t index, bool row)
{
    const char *data = group->data;
    int skip = 0;
    if (row && group->arrays == NULL) {
        skip = 1;
        if (group->index_map != NULL)
            data += group->index_map[0] * group->row_bytes;
    }
    struct lease *lease;
    const cbd_read_group *kept = NULL;
    if (group->device_type == CBD_DEVICE_CUDA) { /* the same group once more: its copy on the host may be asked for */
        cbd_error error;
        cbd_status status = cbd_read_group_in(group, 0, 0, &kept, &error);
        if (status != CBD_STATUS_OK)
            return (View *)raise_error(status, &error);
        lease = lease_of_group(kept);
    } else if (group->pin != NULL || group->is_delete) {
        lease = lease_of_pin(group->pin);
    } else { /* of "@path": the group's own */
        size_t bytes = (size_t)(group->rows * group->row_bytes);
        char *copy = malloc(bytes + 1);
        if (copy != NULL)
            data = memcpy(copy, data, bytes);
        lease = copy == NULL ? NULL : lease_of_memory(copy);
    }
    View *view = group->arrays != NULL
                     ? view_of_elements(lease, group->arrays[index].data, true, &group->schema, group->arrays[index].elements)
                     : view_new(lease, data, true, group->schema.code, group->schema.bits, group->ndim - skip,
                                group->shape + skip);
    view = view_on(view, group->device_type, group->device_id);
    if (view != NULL) {
        view->group = kept;
        view->attribute = Py_NewRef(name);
        view->semantic = group->schema.semantic;
        view->ordinal = group->ordinal;
        view->epoch = group->epoch;
        view->floor = group->floor;
        view->stamp_ns = group->stamp_ns;
    }
    return view;
}

int check_index(Py_ssize_t index, uint64_t count)
{
    if (index >= 0 && (uint64_t)index < count)
        return 0;
    PyErr_Format(PyExc_IndexError, "tensor %zd does not exist: this group has %llu, counted from 0; one of a fixed attribute has one",
                 index, (unsigned long long)count);
    return -1;
}

/* group_open, where the group has tensor `index`. */
static const cbd_read_group *group_with(PyObject *self, Py_ssize_t index)
{
    const cbd_read_group *group = group_open(self);
    if (group == NULL)
        return NULL;
    if (!group->is_delete)
        return check_index(index, group->arrays != NULL ? group->prim_count : 1) < 0 ? NULL : group;
    PyErr_SetString(PyExc_IndexError, "a group of deletes has no tensors");
    return NULL;
}

static PyObject *group_array(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *given)
{
    static const char *const names[] = {"i", "flat", NULL};
    static const struct arguments arguments = {"array", names, 1, 0};
    PyObject *values[] = {NULL, NULL};
    Py_ssize_t index = 0;
    bool flat = false;
    const cbd_read_group *group;
    if (arguments_sort(&arguments, args, count, given, values) < 0 || convert_index(values[0], &index) < 0 ||
        convert_truth(values[1], &flat) < 0 || (group = group_with(self, index)) == NULL)
        return NULL;
    View *view = view_of_read_group(group, ((ReadGroup *)self)->name, index, false);
    return view_array(flat ? view_flat(view) : view);
}

static PyObject *group_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *given)
{
    static const char *const names[] = {"i", "readonly", NULL};
    static const struct arguments arguments = {"dlpack", names, 2, 0};
    PyObject *values[] = {NULL, NULL};
    Py_ssize_t index = 0;
    bool readonly = true;
    const cbd_read_group *group;
    if (arguments_sort(&arguments, args, count, given, values) < 0 || convert_index(values[0], &index) < 0 ||
        convert_truth(values[1], &readonly) < 0 || (group = group_with(self, index)) == NULL)
        return NULL;
    if (!readonly) {
        PyErr_SetString(PyExc_BufferError, "sealed data is read-only: others look at the same memory; copy it instead");
        return NULL;
    }
    return (PyObject *)view_of_read_group(group, ((ReadGroup *)self)->name, index, false);
}

static PyObject *group_texts(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const cbd_read_group *group = group_open(self);
    if (group == NULL)
        return NULL;
    if (group->arrays == NULL || group->schema.code != CBD_DTYPE_UINT || group->schema.bits != 8 || group->schema.lanes != 1)
        return raise_format(CBD_STATUS_INVALID_ARGUMENT, "'%.200s' holds no text: that is kind array of uint8", group->name);
    PyObject *list = PyList_New((Py_ssize_t)group->prim_count);
    for (uint64_t i = 0; list != NULL && i < group->prim_count; i++) {
        const char *data = group->arrays[i].data == NULL ? "" : group->arrays[i].data;
        PyObject *text = PyUnicode_DecodeUTF8(data, (Py_ssize_t)group->arrays[i].elements, NULL);
        if (text == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, text);
    }
    return list;
}

static PyObject *group_end(PyObject *self, PyObject *Py_UNUSED(args))
{
    ReadGroup *group = (ReadGroup *)self;
    cbd_release_group(group->group);
    group->group = NULL;
    Py_RETURN_NONE;
}

/* Behind what is queued in a stream. Nobody else has the group while this waits for it. */
static PyObject *release_after(ReadGroup *group, PyObject *stream)
{
    cbd_cuda_sync sync;
    cbd_error error;
    cbd_status status;
    PyObject *of = PyObject_CallFunctionObjArgs(native.cuda_sync, stream, NULL);
    int result = of == NULL ? -1 : convert_sync(of, "stream", &sync);
    Py_XDECREF(of);
    if (result < 0 || group_open((PyObject *)group) == NULL)
        return NULL;
    const cbd_read_group *held = group->group;
    group->group = NULL;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_cuda_release_group(held, sync.stream, &error);
    Py_END_ALLOW_THREADS
    if (status == CBD_STATUS_OK)
        Py_RETURN_NONE;
    group->group = held;
    raise_error(status, &error);
    return NULL;
}

static PyObject *group_release(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", NULL};
    PyObject *stream = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O:release", names, &stream))
        return NULL;
    return stream == Py_None ? group_end(self, NULL) : release_after((ReadGroup *)self, stream);
}

static PyObject *group_begin(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return group_open(self) == NULL ? NULL : Py_NewRef(self);
}

static PyObject *group_attribute(PyObject *self, void *Py_UNUSED(closure))
{
    return group_open(self) == NULL ? NULL : Py_NewRef(((ReadGroup *)self)->name);
}

static PyObject *group_number(PyObject *self, void *field)
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : PyLong_FromUnsignedLongLong(*(const uint64_t *)((const char *)group + (size_t)field));
}

static PyObject *group_prims(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    if (group == NULL)
        return NULL;
    ReadGroup *object = (ReadGroup *)self;
    if (object->prims == NULL)
        object->prims = array_of_copy(group->prims, group->prim_count, CBD_DTYPE_UINT, 64);
    return Py_XNewRef(object->prims);
}

static PyObject *group_index_map(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    if (group == NULL)
        return NULL;
    if (group->index_map == NULL)
        Py_RETURN_NONE;
    ReadGroup *object = (ReadGroup *)self;
    if (object->index_map == NULL)
        object->index_map = array_of_copy(group->index_map, group->prim_count, CBD_DTYPE_UINT, 32);
    return Py_XNewRef(object->index_map);
}

static PyObject *group_mask(PyObject *self, void *Py_UNUSED(closure))
{
    return group_open(self) == NULL ? NULL : Py_NewRef(Py_None);
}

static PyObject *group_row_ordinals(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    ReadGroup *object = (ReadGroup *)self;
    if (group == NULL)
        return NULL;
    if (object->row_ordinals == NULL) {
        uint64_t *ordinals = PyMem_New(uint64_t, group->prim_count + 1);
        if (ordinals == NULL)
            return PyErr_NoMemory();
        cbd_group_row_ordinals(group, ordinals, NULL);
        object->row_ordinals = array_of_copy(ordinals, group->prim_count, CBD_DTYPE_UINT, 64);
        PyMem_Free(ordinals);
    }
    return Py_XNewRef(object->row_ordinals);
}

static PyObject *group_is_delete(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : PyBool_FromLong((long)group->is_delete);
}

static PyObject *group_device(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : device_object(group->device_type, group->device_id);
}

static PyObject *group_is_array(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : PyBool_FromLong(group->schema.kind == CBD_KIND_ARRAY);
}

static PyObject *group_semantic(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : semantic_object(group->schema.semantic);
}

static PyObject *group_dtype(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : dtype_object(group->schema.code, group->schema.bits, group->schema.lanes);
}

static PyObject *group_shape(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    if (group != NULL && group->schema.kind == CBD_KIND_ARRAY)
        Py_RETURN_NONE;
    return group == NULL ? NULL : shape_object(group->shape, group->ndim);
}

static PyObject *group_row_shape(PyObject *self, void *Py_UNUSED(closure))
{
    const cbd_read_group *group = group_open(self);
    return group == NULL ? NULL : shape_object(group->schema.row_shape, group->schema.row_ndim);
}

#define NUMBER(name, field, doc) {name, group_number, NULL, doc, (void *)offsetof(cbd_read_group, field)}

static PyGetSetDef group_getset[] = {
    {"attribute", group_attribute, NULL, "The attribute's name.", NULL},
    NUMBER("ordinal", ordinal, "The highest of row_ordinals."),
    NUMBER("epoch", epoch, "The epoch: the same for all groups of a read."),
    NUMBER("floor", floor, "The attribute's write floor at the epoch."),
    NUMBER("stamp_ns", stamp_ns, "The time of the seal that published this version, ns since 1970."),
    NUMBER("layout_generation", layout_generation, "Grows when prims or rows change, stays while values do."),
    NUMBER("rows", rows, "The number of rows of array(0); of array kind, the number of arrays."),
    NUMBER("prim_count", prim_count, "The number of the query's prims that are present."),
    {"device", group_device, NULL, "Where array(0) lies: 'cpu', or 'cuda:0' with this process's number of the GPU.", NULL},
    {"is_array", group_is_array, NULL, "True for the array kind: array(i) is the row of prims[i], of its own length.", NULL},
    {"is_delete", group_is_delete, NULL, "True for prims that were deleted: no tensors. Only reads of changes have such groups.", NULL},
    {"semantic", group_semantic, NULL, "What the numbers stand for.", NULL},
    {"dtype", group_dtype, NULL, "The element type with its lanes, a callboard.DType.", NULL},
    {"shape", group_shape, NULL, "The shape of array(0): (rows, *row_shape[, lanes]). None of array kind.", NULL},
    {"row_shape", group_row_shape, NULL, "The shape of one row, without lanes.", NULL},
    {"prims", group_prims, NULL, "The path ids of the prims that are present: uint64, (prim_count,), a copy.", NULL},
    {"index_map", group_index_map, NULL,
     "None: prim i has row i. Else uint32, (prim_count,), a copy: prim i has row index_map[i] of array(0), which then\n"
     "shows rows of other prims too.", NULL},
    {"mask", group_mask, NULL, "None in this version.", NULL},
    {"row_ordinals", group_row_ordinals, NULL,
     "The ordinal that last wrote, or deleted, each of prims: uint64, (prim_count,), a copy.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef group_methods[] = {
    {"array", (PyCFunction)(void (*)(void))group_array, METH_FASTCALL | METH_KEYWORDS,
     "array($self, i=0, *, flat=False)\n--\n\nThe data in place: a read-only numpy.ndarray of shape (rows, *row_shape[, lanes]), "
     "valid as long as\nit lives; flat: one dimension. Without NumPy, and on a GPU, a View. Mind index_map. Where is_array, array(i) is the "
     "row of\nprims[i], of shape (n[, lanes]). bfloat16 and float8 are of ml_dtypes' types where that is installed, else "
     "their\nbits. Raises IndexError for a tensor that does not exist, and of a group of deletes."},
    {"dlpack", (PyCFunction)(void (*)(void))group_dlpack, METH_FASTCALL | METH_KEYWORDS,
     "dlpack($self, i=0, readonly=True)\n--\n\nThe same as a View, which any DLPack consumer takes. Raises BufferError for "
     "readonly=False, and as array."},
    {"texts", group_texts, METH_NOARGS,
     "texts($self)\n--\n\nThe rows of an array attribute of uint8 as a list of str, one for each of prims. Raises "
     "UnicodeDecodeError for\nbytes that are no UTF-8, InvalidArgument for other attributes."},
    {"release", (PyCFunction)(void (*)(void))group_release, METH_VARARGS | METH_KEYWORDS,
     "release($self, *, stream=None)\n--\n\nGives the group back. Arrays made from it stay valid.\nstream: of a group on a GPU, one "
     "that CudaSync takes: waits until all that was queued there before has ended, and\ngives the group back then. Whatever reads it "
     "there sees its rows until then, also where arrays made from it are dropped\nbefore. Raises InvalidArgument for a group on the host "
     "and stream 0; the group stays then."},
    {"__enter__", group_begin, METH_NOARGS, NULL},
    {"__exit__", group_end, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef read_group_members[] = {WEAKREFS(ReadGroup), {NULL, 0, 0, 0, NULL}};

static PyType_Slot read_group_slots[] = {
    {Py_tp_doc, "Some prims of one attribute at one epoch. A context manager; after release its accessors raise\n"
                "InvalidHandle. Who got it from fetch_read_next() releases it, and is warned (ResourceWarning) where it is\n"
                "dropped instead; one that iterating over a Read gave needs no release and does not warn."},
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_finalize, group_finalize},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, group_getset},
    {Py_tp_members, read_group_members},
    {0, NULL},
};

PyType_Spec ReadGroup_Spec = {.name = "callboard.ReadGroup", .basicsize = sizeof(ReadGroup), .flags = OBJECT_FLAGS, .slots = read_group_slots};
