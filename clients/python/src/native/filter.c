/* Queries by filter, lists of ids, and paths as tokens: what callboard._stage and
 * callboard._lists call.
 */
#include "native.h"

struct predicates {
    cbd_predicate *all;
    struct texts *values;
    size_t count;
};

static void predicates_close(struct predicates *p)
{
    for (size_t i = 0; p->values != NULL && i < p->count; i++)
        texts_close(&p->values[i]);
    PyMem_Free(p->values);
    PyMem_Free(p->all);
}

/* From a tuple of (operator, name, values). */
static int predicates_open(struct predicates *p, Stage *stage, PyObject *from)
{
    p->count = (size_t)PyTuple_Size(from);
    p->all = PyMem_Calloc(p->count + 1, sizeof *p->all);
    p->values = PyMem_Calloc(p->count + 1, sizeof *p->values);
    if (p->all == NULL || p->values == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < p->count; i++) {
        PyObject *operator, *name, *values;
        cbd_predicate *it = &p->all[i];
        if (!PyArg_ParseTuple(PyTuple_GetItem(from, (Py_ssize_t)i), "OOO", &operator, &name, &values) ||
            convert_u32(operator, "operator", 0, UINT32_MAX, &it->op) < 0 ||
            (it->name = convert_attribute(stage, name, "attribute")) == NULL || texts_open(&p->values[i], values, "values", false) < 0)
            return -1;
        it->values = p->values[i].texts;
        it->value_count = p->values[i].count;
    }
    return 0;
}

static PyObject *stage_query(PyObject *self, PyObject *args)
{
    PyObject *given, *names;
    int sealed;
    struct predicates predicates = {NULL, NULL, 0};
    struct texts attributes = {NULL, NULL, NULL, 0};
    cbd_query *query = NULL;
    cbd_error error;
    cbd_status status = CBD_STATUS_OK;
    if (!PyArg_ParseTuple(args, "O!Op:query", &PyTuple_Type, &given, &names, &sealed))
        return NULL;
    if (predicates_open(&predicates, (Stage *)self, given) == 0 &&
        (names == Py_None || attributes_open(&attributes, (Stage *)self, names, "attributes") == 0)) {
        cbd_filter filter = {.predicates = predicates.all, .predicate_count = predicates.count, .attributes = attributes.texts,
                             .attribute_count = attributes.count, .scoped = names != Py_None, .sealed = (uint32_t)sealed};
        Py_BEGIN_ALLOW_THREADS
        status = cbd_query_submit(((Stage *)self)->stage, &filter, &query, &error);
        Py_END_ALLOW_THREADS
        if (status != CBD_STATUS_OK)
            raise_error(status, &error);
    }
    texts_close(&attributes);
    predicates_close(&predicates);
    return query == NULL ? NULL : query_new((Stage *)self, query);
}

/* ---- numbers of Python in an array ---------------------------------------------------- */

struct numbers {
    uint64_t *ids;
    size_t count;
};

static int numbers_open(struct numbers *numbers, PyObject *from, const char *argument)
{
    *numbers = (struct numbers){NULL, 0};
    PyObject *all = PySequence_Tuple(from);
    if (all == NULL)
        return -1;
    size_t n = (size_t)PyTuple_Size(all);
    numbers->ids = PyMem_New(uint64_t, n + 1);
    if (numbers->ids == NULL)
        PyErr_NoMemory();
    for (; numbers->ids != NULL && numbers->count < n; numbers->count++) {
        char element[ELEMENT_BYTES];
        if (convert_u64(PyTuple_GetItem(all, (Py_ssize_t)numbers->count), element_of(element, argument, numbers->count),
                        &numbers->ids[numbers->count]) < 0)
            break;
    }
    Py_DECREF(all);
    if (numbers->ids != NULL && numbers->count == n)
        return 0;
    PyMem_Free(numbers->ids);
    return -1;
}

/* ---- lists ------------------------------------------------------------------------------- */

static PyObject *number_or_error(cbd_status status, uint64_t number, const cbd_error *error)
{
    return status == CBD_STATUS_OK ? PyLong_FromUnsignedLongLong(number) : raise_error(status, error);
}

static PyObject *stage_list_create(PyObject *self, PyObject *ids)
{
    struct numbers numbers;
    if (numbers_open(&numbers, ids, "ids") < 0)
        return NULL;
    uint64_t list;
    cbd_error error;
    cbd_status status = cbd_list_create(((Stage *)self)->stage, numbers.ids, numbers.count, &list, &error);
    PyMem_Free(numbers.ids);
    return number_or_error(status, list, &error);
}

static PyObject *change_references(PyObject *self, PyObject *list, cbd_status (*change)(cbd_stage *, uint64_t, cbd_error *))
{
    uint64_t number;
    cbd_error error;
    if (convert_u64(list, "list", &number) < 0)
        return NULL;
    cbd_status status = change(((Stage *)self)->stage, number, &error);
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    Py_RETURN_NONE;
}

static PyObject *stage_list_add(PyObject *self, PyObject *list) { return change_references(self, list, cbd_list_add_reference); }

static PyObject *stage_list_release(PyObject *self, PyObject *list) { return change_references(self, list, cbd_list_release); }

static PyObject *stage_list_count(PyObject *self, PyObject *list)
{
    uint64_t number;
    size_t count = 0;
    cbd_error error;
    if (convert_u64(list, "list", &number) < 0)
        return NULL;
    cbd_status status = cbd_list_count(((Stage *)self)->stage, number, &count, &error);
    return number_or_error(status, count, &error);
}

static PyObject *stage_list_ids(PyObject *self, PyObject *list)
{
    cbd_stage *stage = ((Stage *)self)->stage;
    uint64_t number;
    size_t count = 0;
    cbd_error error;
    if (convert_u64(list, "list", &number) < 0)
        return NULL;
    cbd_status status = cbd_list_count(stage, number, &count, &error);
    uint64_t *ids = PyMem_New(uint64_t, count + 1);
    if (ids == NULL)
        return PyErr_NoMemory();
    if (status == CBD_STATUS_OK) /* with the GIL held throughout: it is the same list */
        status = cbd_list_get(stage, number, 0, count, ids, &error);
    PyObject *result = status == CBD_STATUS_OK ? array_of_copy(ids, count, CBD_DTYPE_UINT, 64) : raise_error(status, &error);
    PyMem_Free(ids);
    return result;
}

static PyObject *stage_list_slice(PyObject *self, PyObject *args)
{
    PyObject *list;
    uint64_t number, slice;
    Py_ssize_t first, n;
    cbd_error error;
    if (!PyArg_ParseTuple(args, "Onn:slice", &list, &first, &n) || convert_u64(list, "list", &number) < 0)
        return NULL;
    if (first < 0 || n < 0) {
        PyErr_Format(PyExc_ValueError, "first and count must not be negative, not %zd and %zd", first, n);
        return NULL;
    }
    cbd_status status = cbd_list_slice(((Stage *)self)->stage, number, (size_t)first, (size_t)n, &slice, &error);
    return number_or_error(status, slice, &error);
}

/* The object that the number came in stays as long as the query (behaviour 267). */
static PyObject *stage_query_from_list(PyObject *self, PyObject *list)
{
    uint64_t number;
    cbd_query *query;
    cbd_error error;
    cbd_status status;
    if (convert_u64(list, "paths", &number) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_query_from_list(((Stage *)self)->stage, number, &query, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    PyObject *object = query_new((Stage *)self, query);
    if (object != NULL)
        ((Query *)object)->keep = Py_NewRef(list);
    return object;
}

/* ---- paths as tokens ---------------------------------------------------------------------- */

static PyObject *stage_path_from_tokens(PyObject *self, PyObject *tokens)
{
    struct numbers numbers;
    if (numbers_open(&numbers, tokens, "tokens") < 0)
        return NULL;
    uint64_t path;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_path_from_tokens(((Stage *)self)->stage, numbers.ids, numbers.count, &path, &error);
    Py_END_ALLOW_THREADS
    PyMem_Free(numbers.ids);
    return number_or_error(status, path, &error);
}

static PyObject *stage_path_tokens(PyObject *self, PyObject *path)
{
    uint64_t id, tokens[CBD_PATH_BYTES_MAX / 2 + 1];
    size_t count = 0;
    cbd_error error;
    cbd_status status;
    if (convert_u64(path, "path", &id) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_path_tokens(((Stage *)self)->stage, id, tokens, sizeof tokens / sizeof *tokens, &count, &error);
    Py_END_ALLOW_THREADS
    return status == CBD_STATUS_OK ? array_of_copy(tokens, count, CBD_DTYPE_UINT, 64) : raise_error(status, &error);
}

PyMethodDef stage_filter_methods[] = {
    {"_query", stage_query, METH_VARARGS, NULL},
    {"_list_create", stage_list_create, METH_O, NULL},
    {"_list_add", stage_list_add, METH_O, NULL},
    {"_list_release", stage_list_release, METH_O, NULL},
    {"_list_count", stage_list_count, METH_O, NULL},
    {"_list_ids", stage_list_ids, METH_O, NULL},
    {"_list_slice", stage_list_slice, METH_VARARGS, NULL},
    {"_query_from_list", stage_query_from_list, METH_O, NULL},
    {"_path_from_tokens", stage_path_from_tokens, METH_O, NULL},
    {"_path_tokens", stage_path_tokens, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
