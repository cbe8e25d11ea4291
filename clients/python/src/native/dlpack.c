/* DLPack: the exchange of tensors between libraries, out and in.
 *
 * The structs and the deleters are the C client's, callboard_dlpack.h. What a consumer gives back drops a lease, on
 * any thread and perhaps after the interpreter has ended. */
#include "native.h"

static const char *const LEGACY = "dltensor", *const VERSIONED = "dltensor_versioned";

/* ---- out ----------------------------------------------------------------------- */

static void give_back(void *managed, bool versioned)
{
    if (versioned && ((cbd_dlpack_versioned *)managed)->deleter != NULL)
        ((cbd_dlpack_versioned *)managed)->deleter(managed);
    else if (!versioned && ((cbd_dlpack_managed *)managed)->deleter != NULL)
        ((cbd_dlpack_managed *)managed)->deleter(managed);
}

/* Runs when nobody took the tensor. It sets no exception: one may be on its way. */
static void capsule_end(PyObject *capsule)
{
    bool versioned = PyCapsule_IsValid(capsule, VERSIONED);
    if (versioned || PyCapsule_IsValid(capsule, LEGACY))
        give_back(PyCapsule_GetPointer(capsule, versioned ? VERSIONED : LEGACY), versioned);
}

static void release_lease(void *lease)
{
    lease_drop(lease);
}

void *view_export(const View *view, bool versioned, uint32_t flags)
{
    int64_t shape[CBD_NDIM_MAX];
    for (int i = 0; i < view->ndim; i++)
        shape[i] = view->shape[i];
    const cbd_tensor tensor = {.data = view->data, .ndim = view->ndim, .shape = shape, .code = view->code, .bits = view->bits, .lanes = 1,
                               .device_type = view->device_type, .device_id = view->device_id};
    struct DLManagedTensorVersioned *with_version = NULL;
    struct DLManagedTensor *without = NULL;
    cbd_error error;
    bool large = (flags & CBD_DLPACK_COPY) && view->length_bytes > 1 << 20;
    lease_retain(view->lease);
    PyThreadState *others = large ? PyEval_SaveThread() : NULL; /* the view is the caller's and stays meanwhile */
    cbd_status status = versioned ? cbd_dlpack_export_versioned(&tensor, flags, release_lease, view->lease, &with_version, &error)
                                  : cbd_dlpack_export(&tensor, flags, release_lease, view->lease, &without, &error);
    if (large)
        PyEval_RestoreThread(others);
    if (status != CBD_STATUS_OK) {
        lease_drop(view->lease);
        return status == CBD_STATUS_OUT_OF_MEMORY ? PyErr_NoMemory() : raise_error(status, &error);
    }
    return versioned ? (void *)with_version : (void *)without;
}

/* Takes the tensor; NULL is passed on. */
static PyObject *capsule_of(void *managed, bool versioned)
{
    PyObject *capsule = managed == NULL ? NULL : PyCapsule_New(managed, versioned ? VERSIONED : LEGACY, capsule_end);
    if (capsule == NULL && managed != NULL)
        give_back(managed, versioned);
    return capsule;
}

PyObject *view_capsule(const View *view, bool versioned, uint32_t flags)
{
    return capsule_of(view_export(view, versioned, flags), versioned);
}

bool is_pair(PyObject *from, long *first, long *second)
{
    if (!PyTuple_Check(from) || PyTuple_Size(from) != 2)
        return false;
    *first = PyLong_AsLong(PyTuple_GetItem(from, 0));
    *second = PyLong_AsLong(PyTuple_GetItem(from, 1));
    return !PyErr_Occurred();
}

/* Nothing is on its way to what we export, so that any stream that may be named is right (behaviour 285). */
static int check_stream(const View *view, PyObject *stream)
{
    int overflow = 0;
    if (stream == Py_None)
        return 0;
    if (view->device_type == CBD_DEVICE_CPU) {
        PyErr_Format(PyExc_BufferError, "stream is %R: host memory has no streams, it must be None", stream);
        return -1;
    }
    if (!PyLong_Check(stream) || PyBool_Check(stream)) {
        refuse_type("stream", "an integer or None", stream);
        return -1;
    }
    long long number = PyLong_AsLongLongAndOverflow(stream, &overflow);
    if (overflow > 0 || (overflow == 0 && (number >= 1 || number == -1)))
        return 0;
    PyErr_Format(PyExc_BufferError, "stream is %R: of CUDA it may be None, 1 (the legacy default one), 2 (that of the thread), a handle, or -1; "
                                    "0 could mean either default", stream);
    return -1;
}

/* A copy on the host of what was read on a GPU, by way of the one that the broker makes once for all. */
static PyObject *host_capsule(const View *view, bool versioned)
{
    const cbd_read_group *host;
    cbd_error error;
    cbd_status status;
    int64_t shape[CBD_NDIM_MAX];
    Py_BEGIN_ALLOW_THREADS
    status = cbd_read_group_in(view->group, CBD_DEVICE_CPU, 0, &host, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    for (int i = 0; i < view->ndim; i++)
        shape[i] = view->shape[i];
    size_t offset = (size_t)((const char *)view->data - (const char *)view->group->data);
    const char *data = host->data == NULL ? NULL : (const char *)host->data + offset;
    View *copied = view_new(lease_of_group(host), data, true, view->code, view->bits, view->ndim, shape);
    PyObject *capsule = copied == NULL ? NULL : view_capsule(copied, versioned, CBD_DLPACK_COPY);
    Py_XDECREF((PyObject *)copied);
    return capsule;
}

/* A copy where the view lies, on a GPU, in memory that is the consumer's own. */
static PyObject *device_copy(const View *view, bool versioned)
{
    int64_t shape[CBD_NDIM_MAX];
    void *memory = NULL;
    cbd_error error;
    cbd_status status = CBD_STATUS_OK;
    for (int i = 0; i < view->ndim; i++)
        shape[i] = view->shape[i];
    Py_BEGIN_ALLOW_THREADS
    if (view->length_bytes > 0)
        status = cbd_cuda_clone(view->data, (uint64_t)view->length_bytes, view->device_id, &memory, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    View *copied = view_on(view_new(lease_of_clone(memory, view->device_id), memory, false, view->code, view->bits, view->ndim, shape),
                           view->device_type, view->device_id);
    void *managed = copied == NULL ? NULL : view_export(copied, versioned, 0);
    Py_XDECREF((PyObject *)copied);
    if (managed != NULL && versioned)
        ((cbd_dlpack_versioned *)managed)->flags |= CBD_DLPACK_COPY;
    return capsule_of(managed, versioned);
}

static PyObject *refuse_place(const View *view, long type, long id)
{
    if (view->device_type == CBD_DEVICE_CPU)
        PyErr_Format(PyExc_BufferError, "the data is in host memory, (1, 0), and is not moved to device (%ld, %ld): read it with device=", type, id);
    else
        PyErr_Format(PyExc_BufferError, "the data is on device (2, %u), and is not moved to device (%ld, %ld)%s", (unsigned)view->device_id, type,
                     id, type == CBD_DEVICE_CPU ? ": nothing was read, it is memory to fill" : ": read it with device=");
    return NULL;
}

PyObject *view_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *given)
{
    static const char *const names[] = {"max_version", "dl_device", "copy", "stream", NULL};
    static const struct arguments arguments = {"__dlpack__", names, 0, 0};
    PyObject *values[] = {Py_None, Py_None, Py_None, Py_None};
    if (arguments_sort(&arguments, args, count, given, values) < 0)
        return NULL;
    PyObject *max_version = values[0], *device = values[1], *copy = values[2], *stream = values[3];
    const View *view = (const View *)self;
    long first, second;
    bool here = true;
    if (check_stream(view, stream) < 0)
        return NULL;
    if (max_version != Py_None && !is_pair(max_version, &first, &second)) {
        PyErr_Format(PyExc_TypeError, "max_version must be None or (major, minor), not %R", max_version);
        return NULL;
    }
    bool versioned = max_version != Py_None && first >= 1;
    if (device != Py_None && !is_pair(device, &first, &second)) {
        PyErr_Format(PyExc_TypeError, "dl_device must be None or (type, id), not %R", device);
        return NULL;
    }
    if (device != Py_None) {
        here = first == (long)view->device_type && second == (long)view->device_id;
        if (!here && (view->group == NULL || first != CBD_DEVICE_CPU || second != 0))
            return refuse_place(view, first, second);
    }
    if (copy != Py_None && !PyBool_Check(copy)) {
        PyErr_Format(PyExc_TypeError, "copy must be None, True or False, not %R", copy);
        return NULL;
    }
    if (!here && copy == Py_False) {
        PyErr_Format(PyExc_BufferError, "the data is on device (2, %u): on the host it is a copy, and copy=False forbids it", (unsigned)view->device_id);
        return NULL;
    }
    if (!here)
        return host_capsule(view, versioned);
    if (copy == Py_True && view->device_type != CBD_DEVICE_CPU)
        return device_copy(view, versioned);
    if (copy == Py_True)
        return view_capsule(view, versioned, CBD_DLPACK_COPY);
    if (view->readonly && !versioned) {
        PyErr_SetString(PyExc_BufferError,
                        "this data is read-only, and a legacy capsule cannot say so: ask with max_version=(1, 0), or "
                        "with copy=True");
        return NULL;
    }
    return view_capsule(view, versioned, view->readonly ? CBD_DLPACK_READ_ONLY : 0);
}

PyObject *view_dlpack_device(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("(II)", ((View *)self)->device_type, ((View *)self)->device_id);
}

/* ---- in ------------------------------------------------------------------------- */

void dlpack_give_back(struct input *input)
{
    give_back(input->managed, input->versioned);
    input->managed = NULL;
}

/* The C client's look at the description. Its extents are copied: lanes fold into them. */
static int take(const cbd_dlpack_tensor *tensor, struct input *input)
{
    cbd_error error;
    cbd_tensor described;
    cbd_status status = cbd_dlpack_describe(tensor, &described, &error);
    if (status != CBD_STATUS_OK) {
        raise_error(status, &error);
        return -1;
    }
    if (input_room(input, described.ndim) < 0)
        return -1;
    for (int32_t i = 0; i < described.ndim; i++) {
        input->shape[i] = described.shape[i];
        if (described.strides != NULL) /* absent: compact, before DLPack 1.2 */
            input->strides[i] = described.strides[i];
    }
    input->tensor = described;
    input->tensor.shape = input->shape;
    input->tensor.strides = described.strides == NULL ? NULL : input->strides;
    return 0;
}

int dlpack_take_versioned(cbd_dlpack_versioned *managed, struct input *input)
{
    input->versioned = true;
    input->managed = managed;
    if (managed->major == 1)
        return take(&managed->tensor, input);
    /* the rest of the struct may mean anything */
    PyErr_Format(PyExc_BufferError, "the tensor comes as DLPack %u.%u, expected 1.x", managed->major, managed->minor);
    return -1;
}

int dlpack_take(PyObject *capsule, struct input *input)
{
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        cbd_dlpack_versioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
        return dlpack_take_versioned(managed, input);
    }
    if (PyCapsule_IsValid(capsule, LEGACY)) {
        cbd_dlpack_managed *managed = PyCapsule_GetPointer(capsule, LEGACY);
        PyCapsule_SetName(capsule, "used_dltensor");
        input->managed = managed;
        return take(&managed->tensor, input);
    }
    PyErr_SetString(PyExc_BufferError, "__dlpack__ returned no tensor that was not taken already");
    return -1;
}
