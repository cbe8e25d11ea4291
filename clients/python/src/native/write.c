/* Stage's methods that write, publish, map, seal and declare. */
#include "native.h"

#include <string.h>

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS

static const char *const init_words[] = {"none", "zero", "current", NULL};
static const char *const handoff_words[] = {"default", "adopt", "copy", NULL};

/* ---- one attribute's data and options ----------------------------------------------- */

/* What a call says, before it is looked at. */
struct said {
    PyObject *array, *dtype, *semantic, *row_shape, *count, *index_map, *mask;
    int is_array;
    PyObject *device, *cuda_sync; /* or NULL */
};

struct entry {
    struct input input;  /* of fixed kind, or packed */
    struct input *rows;  /* of array kind: one for each source row, else NULL */
    cbd_tensor *tensors; /* of rows */
    cbd_write_options options;
    uint32_t *index_map;
    uint64_t *mask;
};

/* index_map: 32-bit numbers, at least `count`; without a count their number is it. */
static int read_index_map(struct entry *entry, PyObject *from, bool counted)
{
    PyObject *list = PySequence_List(from);
    if (list == NULL)
        return -1;
    uint64_t length = (uint64_t)PyList_Size(list);
    int result = -1;
    if (!counted)
        entry->options.count = length;
    if (length == 0) {
        PyErr_SetString(PyExc_ValueError, "index_map is empty, and a write of no prims is not one of all");
    } else if (length < entry->options.count) {
        PyErr_Format(PyExc_ValueError, "index_map has %llu entries, count is %llu", (unsigned long long)length,
                     (unsigned long long)entry->options.count);
    } else if ((entry->index_map = PyMem_New(uint32_t, length)) == NULL) {
        PyErr_NoMemory();
    } else {
        result = 0;
        char element[ELEMENT_BYTES];
        for (uint64_t i = 0; result == 0 && i < length; i++)
            result = convert_u32(PyList_GetItem(list, (Py_ssize_t)i), element_of(element, "index_map", i), 0, UINT32_MAX,
                                 &entry->index_map[i]);
    }
    entry->options.index_map = entry->index_map;
    entry->options.index_map_count = length;
    Py_DECREF(list);
    return result;
}

/* mask: 64-bit words, bit i of them for prim i. */
static int read_mask(struct entry *entry, PyObject *from)
{
    PyObject *list = PySequence_List(from);
    if (list == NULL)
        return -1;
    uint64_t length = (uint64_t)PyList_Size(list), needed = (entry->options.count + 63) / 64;
    int result = -1;
    if (length < needed) {
        PyErr_Format(PyExc_ValueError, "mask has %llu words of 64 bits, a count of %llu needs %llu",
                     (unsigned long long)length, (unsigned long long)entry->options.count, (unsigned long long)needed);
    } else if ((entry->mask = PyMem_New(uint64_t, length + 1)) == NULL) {
        PyErr_NoMemory();
    } else {
        result = 0;
        char element[ELEMENT_BYTES];
        for (uint64_t i = 0; result == 0 && i < length; i++)
            result = convert_u64(PyList_GetItem(list, (Py_ssize_t)i), element_of(element, "mask", i), &entry->mask[i]);
    }
    entry->options.mask = entry->mask;
    entry->options.mask_words = length;
    Py_DECREF(list);
    return result;
}

static int read_options(struct entry *entry, const struct said *said)
{
    cbd_write_options *options = &entry->options;
    bool counted = said->count != Py_None;
    uint32_t count;
    if (convert_u32(said->semantic, "semantic", 0, UINT32_MAX, &options->semantic) < 0 ||
        convert_device(said->device, "device", &options->device_type, &options->device_id) < 0 ||
        convert_shape(said->row_shape, "row_shape", &options->row_ndim, options->row_shape) < 0)
        return -1;
    options->is_array = (uint32_t)said->is_array;
    if (counted) {
        if (convert_u32(said->count, "count (None is every prim of the query)", 1, UINT32_MAX, &count) < 0)
            return -1;
        options->count = count;
    }
    if (said->index_map != Py_None && said->mask != Py_None) {
        PyErr_SetString(PyExc_ValueError, "index_map and mask cannot be given together");
        return -1;
    }
    if (said->mask != Py_None && !counted) {
        PyErr_SetString(PyExc_ValueError, "mask needs a count: how many leading prims of the query it is for");
        return -1;
    }
    if (said->index_map != Py_None && read_index_map(entry, said->index_map, counted) < 0)
        return -1;
    return said->mask == Py_None ? 0 : read_mask(entry, said->mask);
}

static const cbd_tensor *tensors_of(const struct entry *entry)
{
    return entry->rows != NULL ? entry->tensors : &entry->input.tensor;
}

static bool is_on_gpu(const cbd_tensor *tensor)
{
    return tensor->device_type == CBD_DEVICE_CUDA || tensor->device_type == CBD_DEVICE_CUDA_MANAGED;
}

static void entry_close(struct entry *entry)
{
    if (entry->rows == NULL)
        input_close(&entry->input);
    for (uint64_t i = 0; entry->rows != NULL && i < entry->options.tensor_count; i++)
        input_close(&entry->rows[i]);
    PyMem_Free(entry->rows);
    PyMem_Free(entry->tensors);
    PyMem_Free(entry->index_map);
    PyMem_Free(entry->mask);
}

/* A list of anything but numbers has a row of an array attribute in each place. */
static bool is_list_of_rows(PyObject *array)
{
    if (!PyList_Check(array) && !PyTuple_Check(array))
        return false;
    PyObject *first = PySequence_Size(array) == 0 ? NULL : PySequence_GetItem(array, 0);
    if (first == NULL) {
        PyErr_Clear(); /* another thread has emptied it */
        return true;
    }
    bool number = PyFloat_Check(first) || PyLong_Check(first) || PyComplex_Check(first);
    Py_DECREF(first);
    return !number;
}

/* Says in which of several something is wrong. */
static void name_row(uint64_t i)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if ((type == PyExc_TypeError || type == PyExc_ValueError) && value != NULL) {
        PyErr_Format(type, "array[%llu]: %S", (unsigned long long)i, value);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, value, traceback);
    }
}

static int open_rows(struct entry *entry, const struct said *said)
{
    PyObject *list = PySequence_Tuple(said->array); /* another thread may change a list meanwhile */
    if (list == NULL)
        return -1;
    uint64_t count = (uint64_t)PyTuple_Size(list), open = 0;
    if (count == 0)
        PyErr_SetString(PyExc_ValueError, "array is an empty list, which has no element type: give an empty array for no rows");
    else if ((entry->rows = PyMem_New(struct input, count)) == NULL || (entry->tensors = PyMem_New(cbd_tensor, count)) == NULL)
        PyErr_NoMemory();
    for (; !PyErr_Occurred() && open < count; open++) {
        entry->rows[open].sync = entry->options.sync;
        if (input_open_elements(&entry->rows[open], PyTuple_GetItem(list, (Py_ssize_t)open), said->dtype) < 0) {
            name_row(open);
            break;
        }
        entry->tensors[open] = entry->rows[open].tensor;
    }
    Py_DECREF(list);
    entry->options.tensor_count = open;
    return PyErr_Occurred() ? -1 : 0;
}

static int entry_open(struct entry *entry, const struct said *said)
{
    int opened;
    entry->options = cbd_write_options_default();
    entry->index_map = NULL;
    entry->mask = NULL;
    entry->rows = NULL;
    entry->tensors = NULL;
    if (convert_sync(said->cuda_sync, "cuda_sync", &entry->options.sync) < 0)
        return -1;
    bool synced = entry->options.sync.stream != 0 || entry->options.sync.wait_event != 0;
    entry->input.sync = entry->options.sync;
    if (said->is_array && is_list_of_rows(said->array)) {
        opened = open_rows(entry, said);
        if (opened < 0 && entry->rows != NULL)
            entry_close(entry);
    } else if (said->is_array) {
        opened = input_open_elements(&entry->input, said->array, said->dtype);
    } else {
        opened = input_open(&entry->input, said->array, said->dtype);
    }
    if (opened < 0)
        return -1;
    if (entry->rows == NULL)
        entry->options.sync = entry->input.sync;
    if (synced && !is_on_gpu(tensors_of(entry)))
        PyErr_SetString(PyExc_ValueError, "cuda_sync is for data on a GPU, and this is on the host: wait for what fills it first");
    else if (read_options(entry, said) == 0)
        return 0;
    entry_close(entry);
    return -1;
}

/* An op whose copy may still be queued on the caller's stream keeps what is copied. NULL is passed on. */
static PyObject *with_kept(PyObject *op, const struct entry *entry, PyObject *array)
{
    if (op != NULL && is_on_gpu(tensors_of(entry)) && entry->options.sync.stream != 0)
        op_keep(op, array);
    return op;
}

/* ---- writing --------------------------------------------------------------------------- */

static PyObject *submit(Stage *stage, PyObject *query, const char *name, struct entry *entry)
{
    cbd_op *op = NULL;
    cbd_error error;
    cbd_status status;
    cbd_query *pointer = query_enter(query);
    if (pointer == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_write_attribute(stage->stage, pointer, name, tensors_of(entry), &entry->options, &op, &error);
    Py_END_ALLOW_THREADS
    query_leave(query);
    return status == CBD_STATUS_OK ? op_new(stage, op) : raise_error(status, &error);
}

static PyObject *stage_write_attribute(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"query", "name",  "array",     "ordinal", "semantic",  "is_array", "row_shape",
                            "count", "index_map", "mask",  "prim_mode", "dtype", "device", "cuda_sync", NULL};
    PyObject *query, *name, *ordinal = NULL, *prim_mode = NULL, *zero = PyLong_FromLong(0);
    struct said said = {NULL, Py_None, zero, Py_None, Py_None, Py_None, Py_None, 0, NULL, NULL};
    struct entry entry;
    const char *text;
    PyObject *op = NULL;
    if (zero != NULL &&
        PyArg_ParseTupleAndKeywords(args, keywords, "OOO|$OOpOOOOOOOO:write_attribute", names, &query, &name, &said.array,
                                    &ordinal, &said.semantic, &said.is_array, &said.row_shape, &said.count,
                                    &said.index_map, &said.mask, &prim_mode, &said.dtype, &said.device, &said.cuda_sync) &&
        (text = convert_attribute((Stage *)self, name, "name")) != NULL) {
        if (ordinal == NULL) {
            PyErr_SetString(PyExc_TypeError, "write_attribute() needs ordinal=");
        } else if (entry_open(&entry, &said) == 0) {
            if (convert_u64(ordinal, "ordinal", &entry.options.ordinal) == 0 &&
                (prim_mode == NULL ||
                 convert_u32(prim_mode, "prim_mode", 0, CBD_MODE_INSERT, &entry.options.prim_mode) == 0))
                op = with_kept(submit((Stage *)self, query, text, &entry), &entry, said.array);
            entry_close(&entry);
        }
    }
    Py_XDECREF(zero);
    return op;
}

/* _write_attributes(query, [(name, array, semantic, is_array, row_shape, count, index_map, mask, dtype), ...],
 * ordinal, prim_mode) */
static PyObject *stage_write_attributes(PyObject *self, PyObject *args)
{
    PyObject *query, *list, *ordinal_from, *mode_from, *result = NULL;
    uint64_t ordinal;
    uint32_t prim_mode;
    if (!PyArg_ParseTuple(args, "OO!OO:write_attributes", &query, &PyList_Type, &list, &ordinal_from, &mode_from) ||
        convert_u64(ordinal_from, "ordinal", &ordinal) < 0 ||
        convert_u32(mode_from, "prim_mode", 0, CBD_MODE_INSERT, &prim_mode) < 0)
        return NULL;
    cbd_query *pointer = query_enter(query);
    if (pointer == NULL)
        return NULL;
    size_t count = (size_t)PyList_Size(list), open = 0;
    struct entry *entries = PyMem_New(struct entry, count + 1);
    cbd_write_entry *writes = PyMem_New(cbd_write_entry, count + 1);
    if (entries == NULL || writes == NULL)
        PyErr_NoMemory();
    for (; !PyErr_Occurred() && open < count; open++) {
        PyObject *name;
        struct said said = {0};
        const char *text;
        if (!PyArg_ParseTuple(PyList_GetItem(list, (Py_ssize_t)open), "OOOpOOOOO", &name, &said.array, &said.semantic,
                              &said.is_array, &said.row_shape, &said.count, &said.index_map, &said.mask, &said.dtype) ||
            (text = convert_attribute((Stage *)self, name, "name")) == NULL || entry_open(&entries[open], &said) < 0)
            break;
        writes[open] = (cbd_write_entry){text, tensors_of(&entries[open]), &entries[open].options};
    }
    if (!PyErr_Occurred()) {
        cbd_op *op;
        cbd_error error;
        cbd_status status;
        Py_BEGIN_ALLOW_THREADS
        status = cbd_write_attributes(((Stage *)self)->stage, pointer, writes, count, ordinal, prim_mode, &op, &error);
        Py_END_ALLOW_THREADS
        result = status == CBD_STATUS_OK ? op_new((Stage *)self, op) : raise_error(status, &error);
    }
    while (open > 0)
        entry_close(&entries[--open]);
    PyMem_Free(entries);
    PyMem_Free(writes);
    query_leave(query);
    return result;
}

/* ---- the short form ------------------------------------------------------------------------ */

/* A Query as it is, or paths made into one: a new reference. */
static PyObject *query_of(PyObject *stage, PyObject *paths)
{
    if (PyObject_TypeCheck(paths, Query_Type))
        return Py_NewRef(paths);
    return PyObject_CallMethod(stage, "query_from_path_list", "O", paths);
}

/* Gives back what query_of made, with an exception perhaps on its way. */
static void query_done(PyObject *query, PyObject *paths)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (query != paths)
        Py_XDECREF(PyObject_CallMethod(query, "release", NULL));
    Py_DECREF(query);
    PyErr_Restore(type, value, traceback);
}

/* Rows of the given prims at the next ordinal: the row shape is all but the first dimension. */
static cbd_op *publish_rows(PyObject *self, const char *name, struct entry *entry, PyObject *paths)
{
    const cbd_tensor *tensor = &entry->input.tensor;
    if (tensor->ndim - 1 > CBD_ROW_NDIM_MAX) {
        raise_format(CBD_STATUS_INVALID_ARGUMENT, "rows of %d dimensions: a row has at most %d", (int)tensor->ndim - 1,
                     CBD_ROW_NDIM_MAX);
        return NULL;
    }
    for (int32_t i = 1; i < tensor->ndim; i++)
        entry->options.row_shape[entry->options.row_ndim++] = (uint64_t)tensor->shape[i];
    entry->options.next_ordinal = entry->options.seal = 1;
    PyObject *query = query_of(self, paths);
    if (query == NULL)
        return NULL;
    cbd_op *op = NULL;
    cbd_query *pointer = query_enter(query);
    if (pointer != NULL) {
        cbd_error error;
        cbd_status status;
        Py_BEGIN_ALLOW_THREADS
        status = cbd_write_attribute(((Stage *)self)->stage, pointer, name, tensor, &entry->options, &op, &error);
        Py_END_ALLOW_THREADS
        query_leave(query);
        if (status != CBD_STATUS_OK)
            raise_error(status, &error);
    }
    query_done(query, paths);
    return op;
}

static cbd_op *publish_root(PyObject *self, const char *name, struct entry *entry)
{
    cbd_op *op = NULL;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_publish_with(((Stage *)self)->stage, name, &entry->input.tensor, &entry->options, &op, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        raise_error(status, &error);
    return op;
}

static PyObject *stage_publish(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "array", "paths", "semantic", "dtype", "timeout", "device", "cuda_sync", NULL};
    PyObject *name, *paths = Py_None, *timeout = Py_None, *zero = PyLong_FromLong(0), *result = NULL;
    struct said said = {NULL, Py_None, zero, Py_None, Py_None, Py_None, Py_None, 0, NULL, NULL};
    struct entry entry;
    const char *text;
    uint64_t timeout_ns;
    if (zero != NULL &&
        PyArg_ParseTupleAndKeywords(args, keywords, "OO|$OOOOOO:publish", names, &name, &said.array, &paths,
                                    &said.semantic, &said.dtype, &timeout, &said.device, &said.cuda_sync) &&
        (text = convert_attribute((Stage *)self, name, "name")) != NULL && convert_timeout(timeout, &timeout_ns) == 0 &&
        entry_open(&entry, &said) == 0) {
        cbd_op *op = paths == Py_None ? publish_root(self, text, &entry) : publish_rows(self, text, &entry, paths);
        entry_close(&entry);
        cbd_op_result outcome;
        if (op != NULL) {
            if (op_finish(op, timeout_ns, &outcome) == 0)
                result = PyLong_FromUnsignedLongLong(outcome.ordinal);
            cbd_op_release(op);
        }
    }
    Py_XDECREF(zero);
    return result;
}

/* ---- filling in place ------------------------------------------------------------------------- */

static PyObject *open_session(Stage *stage, PyObject *query, PyObject *name, const cbd_map_options *options,
                              uint32_t unmap_flags, bool root)
{
    name = attribute_name(stage, name, "name");
    const char *text = name == NULL ? NULL : convert_text(name, "name");
    cbd_query *pointer = text == NULL ? NULL : query_enter(query);
    if (pointer == NULL)
        return NULL;
    cbd_session *session;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_map_attribute(stage->stage, pointer, text, options, &session, &error);
    Py_END_ALLOW_THREADS
    query_leave(query);
    return status == CBD_STATUS_OK ? session_new(stage, session, name, unmap_flags, root) : raise_error(status, &error);
}

/* Where the attribute lies, and where it is filled. */
static int convert_places(PyObject *device, PyObject *staging, cbd_map_options *options)
{
    return convert_device(device, "device", &options->device_type, &options->device_id) < 0
               ? -1
               : convert_device(staging, "staging", &options->staging_type, &options->staging_id);
}

/* element_sizes; NULL with an exception. */
static uint64_t *read_sizes(PyObject *from, uint64_t *count)
{
    PyObject *list = PySequence_List(from);
    if (list == NULL)
        return NULL;
    *count = (uint64_t)PyList_Size(list);
    uint64_t *sizes = PyMem_New(uint64_t, *count + 1);
    if (sizes == NULL)
        PyErr_NoMemory();
    for (uint64_t i = 0; sizes != NULL && i < *count; i++) {
        char element[ELEMENT_BYTES];
        if (convert_u64(PyList_GetItem(list, (Py_ssize_t)i), element_of(element, "element_sizes", i), &sizes[i]) < 0) {
            PyMem_Free(sizes);
            sizes = NULL;
        }
    }
    Py_DECREF(list);
    return sizes;
}

static PyObject *stage_map_attribute(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"query", "name",     "dtype",      "ordinal",   "element_sizes", "row_shape",
                            "init",  "semantic", "group_rows", "prim_mode", "is_array",      "device", "staging", NULL};
    PyObject *device = NULL, *staging = NULL;
    PyObject *query, *name, *dtype = Py_None, *ordinal = NULL, *element_sizes = Py_None, *row_shape = Py_None;
    PyObject *init = NULL, *semantic = NULL, *group_rows = NULL, *prim_mode = NULL;
    cbd_map_options options = {0};
    uint64_t *sizes = NULL;
    int is_array = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$OOOOOOOOpOO:map_attribute", names, &query, &name, &dtype,
                                     &ordinal, &element_sizes, &row_shape, &init, &semantic, &group_rows, &prim_mode,
                                     &is_array, &device, &staging))
        return NULL;
    if (ordinal == NULL) {
        PyErr_SetString(PyExc_TypeError, "map_attribute() needs ordinal=");
        return NULL;
    }
    if (convert_u64(ordinal, "ordinal", &options.ordinal) < 0 ||
        convert_places(device, staging, &options) < 0 ||
        (dtype != Py_None && convert_dtype(dtype, &options.code, &options.bits, &options.lanes) < 0) ||
        convert_shape(row_shape, "row_shape", &options.row_ndim, options.row_shape) < 0 ||
        (init != NULL && convert_word(init, "init", init_words, &options.init) < 0) ||
        (semantic != NULL && convert_u32(semantic, "semantic", 0, UINT32_MAX, &options.semantic) < 0) ||
        (group_rows != NULL && convert_u64(group_rows, "group_rows", &options.group_rows) < 0) ||
        (prim_mode != NULL && convert_u32(prim_mode, "prim_mode", 0, CBD_MODE_INSERT, &options.prim_mode) < 0))
        return NULL;
    if (element_sizes != Py_None && (sizes = read_sizes(element_sizes, &options.element_size_count)) == NULL)
        return NULL;
    options.is_array = (uint32_t)is_array;
    options.element_sizes = sizes;
    PyObject *session = open_session((Stage *)self, query, name, &options, 0, false);
    PyMem_Free(sizes);
    return session;
}

static PyObject *stage_map(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "shape", "dtype", "paths", "semantic", "init", "device", "staging", NULL};
    PyObject *device = NULL, *staging = NULL, *name, *shape = Py_None, *dtype = Py_None, *paths = Py_None, *semantic = NULL, *init = NULL;
    cbd_map_options options = {.next_ordinal = 1};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OO$OOOOO:map", names, &name, &shape, &dtype, &paths, &semantic,
                                     &init, &device, &staging))
        return NULL;
    if (convert_shape(shape, "shape", &options.row_ndim, options.row_shape) < 0 || convert_places(device, staging, &options) < 0 ||
        (dtype != Py_None && convert_dtype(dtype, &options.code, &options.bits, &options.lanes) < 0) ||
        (semantic != NULL && convert_u32(semantic, "semantic", 0, UINT32_MAX, &options.semantic) < 0) ||
        (init != NULL && convert_word(init, "init", init_words, &options.init) < 0))
        return NULL;
    if (paths != Py_None) {
        PyObject *query = query_of(self, paths);
        if (query == NULL)
            return NULL;
        PyObject *session = open_session((Stage *)self, query, name, &options, CBD_FLAG_SEAL, false);
        query_done(query, paths);
        return session;
    }
    cbd_query *root;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_root_query(((Stage *)self)->stage, &root, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    PyObject *query = query_new((Stage *)self, root);
    if (query == NULL)
        return NULL;
    PyObject *session = open_session((Stage *)self, query, name, &options, CBD_FLAG_SEAL, true);
    query_done(query, NULL);
    return session;
}

/* ---- sealing and declaring ------------------------------------------------------------------------ */

static PyObject *stage_advance_write_floor(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"ordinal", "scope", "attributes", "stamp_ns", NULL};
    PyObject *ordinal, *scope = NULL, *attributes = NULL, *stamp = NULL;
    uint64_t value, stamp_ns = 0;
    uint32_t which = CBD_SCOPE_ALL;
    struct texts texts = {0};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOO:advance_write_floor", names, &ordinal, &scope, &attributes,
                                     &stamp) ||
        convert_u64(ordinal, "ordinal", &value) < 0 ||
        (scope != NULL && convert_u32(scope, "scope", 0, CBD_SCOPE_EXCLUDE, &which) < 0) ||
        (stamp != NULL && convert_u64(stamp, "stamp_ns", &stamp_ns) < 0) ||
        (attributes != NULL && attributes_open(&texts, (Stage *)self, attributes, "attributes") < 0))
        return NULL;
    cbd_op *op;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_advance_write_floor(((Stage *)self)->stage, value, which, texts.texts, texts.count, stamp_ns, &op,
                                     &error);
    Py_END_ALLOW_THREADS
    texts_close(&texts);
    return status == CBD_STATUS_OK ? op_new((Stage *)self, op) : raise_error(status, &error);
}

static PyObject *stage_delete_attributes(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"query", "attributes", "ordinal", NULL};
    PyObject *query, *attributes, *ordinal = NULL;
    uint64_t value;
    struct texts texts = {0};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$O:delete_attributes", names, &query, &attributes, &ordinal))
        return NULL;
    if (ordinal == NULL) {
        PyErr_SetString(PyExc_TypeError, "delete_attributes() needs ordinal=");
        return NULL;
    }
    if (convert_u64(ordinal, "ordinal", &value) < 0 ||
        attributes_open(&texts, (Stage *)self, attributes, "attributes") < 0)
        return NULL;
    cbd_query *pointer = query_enter(query);
    if (pointer == NULL) {
        texts_close(&texts);
        return NULL;
    }
    cbd_op *op;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_delete_attributes(((Stage *)self)->stage, pointer, texts.texts, texts.count, value, &op, &error);
    Py_END_ALLOW_THREADS
    query_leave(query);
    texts_close(&texts);
    return status == CBD_STATUS_OK ? op_new((Stage *)self, op) : raise_error(status, &error);
}

static PyObject *stage_declare(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "dtype", "row_shape", "semantic", "device", "is_array", "retain", "handoff", NULL};
    PyObject *name, *dtype = NULL, *row_shape = NULL, *semantic = NULL, *device = NULL, *retain = NULL, *handoff = NULL;
    int is_array = 0;
    cbd_schema schema = {.kind = CBD_KIND_FIXED, .device_type = CBD_DEVICE_CPU};
    uint32_t keep = 0, mode = CBD_HANDOFF_DEFAULT;
    const char *text;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOOOpOO:declare", names, &name, &dtype, &row_shape, &semantic,
                                     &device, &is_array, &retain, &handoff) ||
        (text = convert_attribute((Stage *)self, name, "name")) == NULL)
        return NULL;
    if (dtype == NULL) {
        PyErr_SetString(PyExc_TypeError, "declare() needs dtype=");
        return NULL;
    }
    if (convert_dtype(dtype, &schema.code, &schema.bits, &schema.lanes) < 0 ||
        convert_shape(row_shape, "row_shape", &schema.row_ndim, schema.row_shape) < 0 ||
        (semantic != NULL && convert_u32(semantic, "semantic", 0, UINT32_MAX, &schema.semantic) < 0) ||
        (retain != NULL && retain != Py_None && convert_u32(retain, "retain (None is the stage's default)", 1, UINT32_MAX, &keep) < 0) ||
        (handoff != NULL && handoff != Py_None && convert_word(handoff, "handoff", handoff_words, &mode) < 0))
        return NULL;
    if (convert_device(device, "device", &schema.device_type, &schema.device_id) < 0)
        return NULL;
    if (is_array)
        schema.kind = CBD_KIND_ARRAY;
    cbd_op *op;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_declare(((Stage *)self)->stage, text, &schema, keep, mode, &op, &error);
    Py_END_ALLOW_THREADS
    return status == CBD_STATUS_OK ? op_new((Stage *)self, op) : raise_error(status, &error);
}

PyMethodDef stage_write_methods[] = {
    {"write_attribute", WITH_KEYWORDS(stage_write_attribute),
     "write_attribute($self, query, name, array, *, ordinal, semantic=callboard.Semantic.NONE, is_array=False, row_shape=None, count=None, "
     "index_map=None, mask=None, prim_mode=callboard.PrimMode.UPSERT, dtype=None, device=None, cuda_sync=None)\n--\n\n"
     "Copies rows into the attribute of the query's prims at an ordinal; returns an Op. array has the shape\n"
     "(len(query), *row_shape[, lanes]); without a row shape trailing dimensions fold into lanes, at most 255.\n"
     "Any strides; the array may be changed when the call returns. dtype: what the data is, where the array\n"
     "cannot say it (bfloat16 in uint16), or the lanes that are meant. A semantic newer than this package is\n"
     "passed on: the broker decides, and the Op's wait raises InvalidArgument.\n"
     "count: the leading prims that are meant; None: all. index_map: the row for each of them. mask: 64-bit\n"
     "words, bit i of them for prim i; needs count, at least ceil(count/64) words; extra words are ignored.\n"
     "is_array: each prim has a row of its own length, and nothing folds: (n, 3) of float32 is 3 n elements, unless\n"
     "dtype='float32x3' says that it is n of them. A list of arrays (or of str or bytes, as uint8) has a row in each\n"
     "place; one array is packed, and cut into rows of equal length: as many as prims are meant, or with an\n"
     "index_map as its highest entry says.\n"
     "device: where a new attribute lies, 'cpu' or 'cuda:0', and an existing one must; None: where it lies, or if new where the array does.\n"
     "Data on a GPU of CUDA comes by __dlpack__, which is asked to order what writes it before the stream that copies, or by\n"
     "__cuda_array_interface__. cuda_sync, a CudaSync: the copy is queued on its stream, behind its event, and the Op keeps the\n"
     "array until it is known to be done: wait for it before the data changes on another stream. Without a stream the call waits\n"
     "for the copy. Bools on a GPU are not looked at: they must be 0 or 1.\n"
     "Raises InvalidArgument (shape, type, semantic), FloorViolation (ordinal 0, or sealed), NotSupported, QueueFull."},
    {"publish", WITH_KEYWORDS(stage_publish),
     "publish($self, name, array, *, paths=None, semantic=callboard.Semantic.NONE, dtype=None, timeout=None, device=None, "
     "cuda_sync=None)\n--\n\n"
     "Copies the array once and seals it at the next ordinal, which is returned. The prim is '/' and row_shape\n"
     "is array.shape; with paths (or a Query) the first dimension counts prims and the rest is row_shape.\n"
     "timeout: seconds; None: for ever. device, cuda_sync: as of write_attribute; the copy is done when it returns."},
    {"map_attribute", WITH_KEYWORDS(stage_map_attribute),
     "map_attribute($self, query, name, *, dtype=None, ordinal, element_sizes=None, row_shape=None, init='none', "
     "semantic=callboard.Semantic.NONE, group_rows=0, prim_mode=callboard.PrimMode.UPSERT, is_array=False, device=None, staging=None)\n--\n\n"
     "Memory for one row per prim, to be filled in place: a MapSession. dtype and row_shape may be left out for\n"
     "an attribute that exists. init: 'none' (unspecified bytes), 'zero', 'current' (the sealed values).\n"
     "is_array: of each prim a row of element_sizes[i] elements; fill the group's array(i).\n"
     "device: where a new attribute lies, and an existing one must; None: where it lies, on the host if new. staging: where the\n"
     "groups are filled; None: where the attribute lies. What is filled elsewhere is copied at the end.\n"
     "Waits for the broker. Raises InvalidArgument, FloorViolation, NotSupported, OutOfMemory."},
    {"map", WITH_KEYWORDS(stage_map),
     "map($self, name, shape=None, dtype=None, *, paths=None, semantic=callboard.Semantic.NONE, init='none', device=None, staging=None)\n--\n\n"
     "A MapSession for the prim '/', or for paths: fill its `array` in a with-block. Leaving the block commits and\n"
     "seals the next ordinal. No copy, unless a view of the array is still alive then. shape and dtype may be left\n"
     "out for an attribute that exists. device, staging: as of map_attribute. On a GPU `array` is a View, and the end of the block\n"
     "waits for nothing that is queued there unless the session's cuda_sync was set."},
    {"advance_write_floor", WITH_KEYWORDS(stage_advance_write_floor),
     "advance_write_floor($self, ordinal, *, scope=callboard.Scope.ALL, attributes=(), stamp_ns=0)\n--\n\n"
     "Seals everything up to the ordinal, for the attributes in scope, and publishes it as one epoch; returns an\n"
     "Op with floor and epoch. stamp_ns: the application's time; 0: the broker's clock. A floor never falls."},
    {"delete_attributes", WITH_KEYWORDS(stage_delete_attributes),
     "delete_attributes($self, query, attributes, *, ordinal)\n--\n\n"
     "Takes the attributes from the query's prims at an ordinal; [] is all that they carry, so that the prims are\n"
     "gone. Returns an Op. It shows with the seal of its ordinal: later reads leave the prims out, views that are\n"
     "held stay, and another dtype is accepted. What a prim does not carry is no error.\n"
     "Raises FloorViolation (ordinal 0, or sealed), NotSupported (a reserved name), InvalidArgument, QueueFull."},
    {"declare", WITH_KEYWORDS(stage_declare),
     "declare($self, name, *, dtype, row_shape=(), semantic=callboard.Semantic.NONE, device='cpu', is_array=False, retain=None, "
     "handoff=None)\n--\n\nStates an attribute's schema and settings before anybody writes it; returns an Op.\n"
     "retain: versions that are kept; handoff: 'adopt' or 'copy'; None: as the stage says. An attribute that exists with\n"
     "this schema is accepted, and its settings change where others are named.\n"
     "device: 'cpu', or 'cuda:0' with this process's number of a GPU.\n"
     "Raises InvalidArgument (another schema), NotSupported (a GPU that the broker does not serve, a reserved name)."},
    {"_write_attributes", stage_write_attributes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
