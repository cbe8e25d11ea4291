/* Both sides of DLPack's exchange table, against the standard's own header: that ours has its layout, what it gives
 * to consumers, and what callboard makes of other producers' tables. Compiled by test_dlpack_exchange.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlpack/dlpack.h>
#include <stdbool.h>

static const char *const NAME = "dlpack_exchange_api";

static const DLPackExchangeAPI *table_of(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    void *table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NAME);
    Py_XDECREF(capsule);
    return table;
}

/* ---- a consumer ------------------------------------------------------------------ */

/* table(type) -> (major, minor, has previous, which functions are there) */
static PyObject *table(PyObject *module, PyObject *type)
{
    const DLPackExchangeAPI *api = table_of(type);
    (void)module;
    if (api == NULL)
        return NULL;
    return Py_BuildValue("(IIO(OOOOO))", api->header.version.major, api->header.version.minor,
                         api->header.prev_api != NULL ? Py_True : Py_False, api->managed_tensor_allocator != NULL ? Py_True : Py_False,
                         api->managed_tensor_from_py_object_no_sync != NULL ? Py_True : Py_False,
                         api->managed_tensor_to_py_object_no_sync != NULL ? Py_True : Py_False,
                         api->dltensor_from_py_object_no_sync != NULL ? Py_True : Py_False,
                         api->current_work_stream != NULL ? Py_True : Py_False);
}

static PyObject *numbers(const int64_t *values, int32_t count)
{
    if (values == NULL)
        Py_RETURN_NONE;
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]));
    return tuple;
}

/* look(object, by) -> what the table of type `by` tells of the object; the tensor goes at once */
static PyObject *look(PyObject *module, PyObject *args)
{
    PyObject *object, *by;
    DLManagedTensorVersioned *managed = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &object, &by))
        return NULL;
    const DLPackExchangeAPI *api = table_of(by);
    if (api == NULL || api->managed_tensor_from_py_object_no_sync(object, &managed) != 0)
        return NULL;
    const DLTensor *tensor = &managed->dl_tensor;
    PyObject *told = Py_BuildValue("{s:K,s:K,s:(ii),s:(iii),s:N,s:N,s:K,s:(II)}", "address", (unsigned long long)(uintptr_t)tensor->data, "flags",
                                   (unsigned long long)managed->flags, "device", (int)tensor->device.device_type, (int)tensor->device.device_id,
                                   "dtype", tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes, "shape",
                                   numbers(tensor->shape, tensor->ndim), "strides", numbers(tensor->strides, tensor->ndim), "offset",
                                   (unsigned long long)tensor->byte_offset, "version", managed->version.major, managed->version.minor);
    managed->deleter(managed);
    return told;
}

/* convert(object, to): out by the table of its own type, in by that of type `to` */
static PyObject *convert(PyObject *module, PyObject *args)
{
    PyObject *object, *to;
    DLManagedTensorVersioned *managed = NULL;
    void *made = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &object, &to))
        return NULL;
    const DLPackExchangeAPI *from_api = table_of((PyObject *)Py_TYPE(object)), *to_api = from_api == NULL ? NULL : table_of(to);
    if (to_api == NULL || from_api->managed_tensor_from_py_object_no_sync(object, &managed) != 0)
        return NULL;
    if (to_api->managed_tensor_to_py_object_no_sync(managed, &made) != 0)
        managed->deleter(managed); /* what was refused is still ours */
    return made;
}

static void set_error(void *context, const char *kind, const char *message)
{
    PyObject **error = context;
    *error = PyUnicode_FromFormat("%s: %s", kind, message);
}

/* allocate(type, (code, bits, lanes), shape, (device_type, device_id)) -> an object of the type */
static PyObject *allocate(PyObject *module, PyObject *args)
{
    PyObject *type, *shape, *error = NULL;
    int code, bits, lanes, device_type, device_id;
    int64_t extents[16];
    DLManagedTensorVersioned *managed = NULL;
    void *made = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "O(iii)O!(ii)", &type, &code, &bits, &lanes, &PyTuple_Type, &shape, &device_type, &device_id))
        return NULL;
    const DLPackExchangeAPI *api = table_of(type);
    if (api == NULL)
        return NULL;
    DLTensor like = {.device = {(DLDeviceType)device_type, device_id}, .dtype = {(uint8_t)code, (uint8_t)bits, (uint16_t)lanes}};
    like.ndim = (int32_t)PyTuple_Size(shape);
    like.shape = extents;
    for (int32_t i = 0; i < like.ndim && i < 16; i++)
        extents[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (PyErr_Occurred())
        return NULL;
    int failed = api->managed_tensor_allocator(&like, &managed, &error, set_error);
    if (failed != 0 || error != NULL) {
        PyErr_Format(PyExc_RuntimeError, "%U%s", error, managed == NULL && failed == -1 ? "" : " and yet a tensor");
        Py_XDECREF(error);
        return NULL;
    }
    if (api->managed_tensor_to_py_object_no_sync(managed, &made) != 0)
        managed->deleter(managed);
    return made;
}

/* stream(type, device_type, device_id) -> the stream's address */
static PyObject *stream(PyObject *module, PyObject *args)
{
    PyObject *type;
    int device_type, device_id;
    void *found = &device_type;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oii", &type, &device_type, &device_id))
        return NULL;
    const DLPackExchangeAPI *api = table_of(type);
    if (api == NULL || api->current_work_stream((DLDeviceType)device_type, device_id, &found) != 0)
        return NULL;
    return PyLong_FromVoidPtr(found);
}

/* ---- a producer ---------------------------------------------------------------------- */

/* What Producer hands out next, set by produce(). */
static struct {
    float values[6];
    int64_t shape[2], strides[2];
    DLManagedTensorVersioned managed;
    int alive;
    enum { GOOD, RAISES, GIVES_NOTHING } mood;
} made = {.values = {0, 1, 2, 3, 4, 5}};

static void delete(DLManagedTensorVersioned *managed)
{
    (void)managed;
    made.alive--;
}

static int from_object(void *object, DLManagedTensorVersioned **out)
{
    (void)object;
    if (made.mood == RAISES)
        PyErr_SetString(PyExc_BufferError, "the producer refuses");
    if (made.mood != GOOD)
        return made.mood == RAISES ? -1 : 0;
    made.alive++;
    *out = &made.managed;
    return 0;
}

static DLPackExchangeAPI newest = {.managed_tensor_from_py_object_no_sync = from_object}, older = {.managed_tensor_from_py_object_no_sync = from_object};

/* produce(table major, older table's major or 0, tensor major, device type, stride of the rows, mood, has function) */
static PyObject *produce(PyObject *module, PyObject *args)
{
    unsigned major, older_major, tensor_major;
    int device_type, row_stride, mood, has;
    (void)module;
    if (!PyArg_ParseTuple(args, "IIIiiii", &major, &older_major, &tensor_major, &device_type, &row_stride, &mood, &has))
        return NULL;
    newest.header.version.major = major;
    newest.header.prev_api = older_major == 0 ? NULL : &older.header;
    newest.managed_tensor_from_py_object_no_sync = has ? from_object : NULL;
    older.header.version.major = older_major;
    made.mood = mood;
    made.shape[0] = 2;
    made.shape[1] = 3;
    made.strides[0] = row_stride;
    made.strides[1] = 1;
    made.managed = (DLManagedTensorVersioned){.version = {tensor_major, 0}, .deleter = delete};
    made.managed.dl_tensor = (DLTensor){
        .data = (char *)(made.values + (row_stride < 0 ? 3 : 0)) - 8, /* and the offset leads to it */
        .byte_offset = 8,
        .device = {(DLDeviceType)device_type, 0},
        .ndim = 2,
        .dtype = {kDLFloat, 32, 1},
        .shape = made.shape,
        .strides = made.strides,
    };
    return PyCapsule_New(&newest, NAME, NULL);
}

static PyObject *alive(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(made.alive);
}

static PyMethodDef functions[] = {
    {"table", table, METH_O, NULL},       {"look", look, METH_VARARGS, NULL},     {"convert", convert, METH_VARARGS, NULL},
    {"allocate", allocate, METH_VARARGS, NULL}, {"stream", stream, METH_VARARGS, NULL}, {"produce", produce, METH_VARARGS, NULL},
    {"alive", alive, METH_NOARGS, NULL},  {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "exchange_driver", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_exchange_driver(void)
{
    return PyModule_Create(&definition);
}
