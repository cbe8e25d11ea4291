/* DLPack: the exchange of tensors between libraries, out and in.
 *
 * The structs are those of the standard, version 1: the legacy one, and the one with a
 * version and flags. What a consumer gives back runs dlpack's deleter, on any thread
 * and perhaps after the interpreter has ended: it frees and drops a lease, no more. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* strides in elements */
    uint64_t byte_offset;
};

struct dl_legacy {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_legacy *);
};

struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    struct dl_tensor tensor;
};

_Static_assert(sizeof(struct dl_tensor) == 48 && sizeof(struct dl_legacy) == 64 && sizeof(struct dl_versioned) == 80,
               "the standard's sizes");

enum { FLAG_READ_ONLY = 1, FLAG_COPIED = 2 };

static const char *const LEGACY = "dltensor", *const VERSIONED = "dltensor_versioned";

/* ---- out ----------------------------------------------------------------------- */

struct exported {
    union {
        struct dl_legacy legacy;
        struct dl_versioned versioned;
    } managed; /* first: the consumer gives back its address */
    struct lease *lease;
    int64_t shape[CBD_NDIM_MAX], strides[CBD_NDIM_MAX];
};

static void exported_free(struct exported *exported)
{
    lease_drop(exported->lease);
    free(exported);
}

static void legacy_deleter(struct dl_legacy *managed)
{
    exported_free(managed->context);
}

static void versioned_deleter(struct dl_versioned *managed)
{
    exported_free(managed->context);
}

/* Runs when nobody took the tensor. It sets no exception: one may be on its way. */
static void capsule_end(PyObject *capsule)
{
    const char *name = PyCapsule_IsValid(capsule, LEGACY)      ? LEGACY
                       : PyCapsule_IsValid(capsule, VERSIONED) ? VERSIONED
                                                               : NULL;
    if (name != NULL)
        exported_free(PyCapsule_GetPointer(capsule, name));
}

/* Takes the lease. */
static PyObject *export(const View *view, struct lease *lease, void *data, bool versioned, uint64_t flags)
{
    struct exported *exported = lease == NULL ? NULL : calloc(1, sizeof *exported);
    if (exported == NULL) {
        if (lease != NULL)
            lease_drop(lease);
        return PyErr_NoMemory();
    }
    exported->lease = lease;
    for (int i = 0; i < view->ndim; i++) {
        exported->shape[i] = view->shape[i];
        exported->strides[i] = view->strides[i] / view->item_bytes;
    }
    struct dl_tensor tensor = {
        .data = data,
        .device_type = CBD_DEVICE_CPU,
        .ndim = view->ndim,
        .code = view->code,
        .bits = view->bits,
        .lanes = 1,
        .shape = view->ndim > 0 ? exported->shape : NULL,
        .strides = view->ndim > 0 ? exported->strides : NULL,
    };
    if (versioned)
        exported->managed.versioned = (struct dl_versioned){1, 0, exported, versioned_deleter, flags, tensor};
    else
        exported->managed.legacy = (struct dl_legacy){tensor, exported, legacy_deleter};
    PyObject *capsule = PyCapsule_New(exported, versioned ? VERSIONED : LEGACY, capsule_end);
    if (capsule == NULL)
        exported_free(exported);
    return capsule;
}

static PyObject *export_copy(const View *view, bool versioned)
{
    size_t bytes = (size_t)view->length_bytes;
    void *copy = NULL;
    if (posix_memalign(&copy, 64, bytes > 0 ? bytes : 1) != 0)
        return PyErr_NoMemory();
    if (bytes > 1u << 20) { /* the view is the caller's and stays meanwhile */
        Py_BEGIN_ALLOW_THREADS
        memcpy(copy, view->data, bytes);
        Py_END_ALLOW_THREADS
    } else {
        memcpy(copy, view->data, bytes);
    }
    return export(view, lease_of_memory(copy), copy, versioned, FLAG_COPIED);
}

PyObject *view_capsule_writable(View *view)
{
    lease_retain(view->lease);
    return export(view, view->lease, view->data, false, 0);
}

PyObject *view_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &max_version, &device, &copy))
        return NULL;
    View *view = (View *)self;
    if (stream != Py_None) {
        PyErr_Format(PyExc_BufferError, "stream is %R: host memory has no streams, it must be None", stream);
        return NULL;
    }
    bool versioned = false;
    if (max_version != Py_None) {
        long major, minor;
        if (!PyTuple_Check(max_version) || !PyArg_ParseTuple(max_version, "ll", &major, &minor)) {
            PyErr_Format(PyExc_TypeError, "max_version must be None or (major, minor), not %R", max_version);
            return NULL;
        }
        versioned = major >= 1;
    }
    if (device != Py_None) {
        long type, id;
        if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ll", &type, &id)) {
            PyErr_Format(PyExc_TypeError, "dl_device must be None or (type, id), not %R", device);
            return NULL;
        }
        if (type != CBD_DEVICE_CPU || id != 0) {
            PyErr_Format(PyExc_BufferError, "the data is in host memory, (1, 0), and is not moved to device (%ld, %ld)",
                         type, id);
            return NULL;
        }
    }
    if (copy != Py_None && !PyBool_Check(copy)) {
        PyErr_Format(PyExc_TypeError, "copy must be None, True or False, not %R", copy);
        return NULL;
    }
    if (copy == Py_True)
        return export_copy(view, versioned);
    if (view->readonly && !versioned) {
        PyErr_SetString(PyExc_BufferError,
                        "this data is read-only, and a legacy capsule cannot say so: ask with max_version=(1, 0), or "
                        "with copy=True");
        return NULL;
    }
    lease_retain(view->lease);
    return export(view, view->lease, view->data, versioned, view->readonly ? FLAG_READ_ONLY : 0);
}

PyObject *view_dlpack_device(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("(ii)", CBD_DEVICE_CPU, 0);
}

/* ---- in ------------------------------------------------------------------------- */

void dlpack_give_back(struct input *input)
{
    if (input->versioned) {
        struct dl_versioned *managed = input->managed;
        if (managed->deleter != NULL)
            managed->deleter(managed);
    } else {
        struct dl_legacy *managed = input->managed;
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
    input->managed = NULL;
}

int dlpack_take(PyObject *capsule, struct input *input)
{
    const struct dl_tensor *tensor;
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        struct dl_versioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
        if (managed->major != 1) { /* the rest of the struct may mean anything */
            PyErr_Format(PyExc_BufferError, "the tensor comes as DLPack %u.%u, expected 1.x", managed->major,
                         managed->minor);
            return -1;
        }
        input->versioned = true;
        input->managed = managed;
        tensor = &managed->tensor;
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
    } else if (PyCapsule_IsValid(capsule, LEGACY)) {
        struct dl_legacy *managed = PyCapsule_GetPointer(capsule, LEGACY);
        input->managed = managed;
        tensor = &managed->tensor;
        PyCapsule_SetName(capsule, "used_dltensor");
    } else {
        PyErr_SetString(PyExc_BufferError, "__dlpack__ returned no tensor that was not taken already");
        return -1;
    }
    if (tensor->ndim < 0 || tensor->ndim > INPUT_NDIM_MAX) {
        PyErr_Format(PyExc_ValueError, "the tensor has %d dimensions, at most %d are possible", (int)tensor->ndim,
                     INPUT_NDIM_MAX);
        return -1;
    }
    if (tensor->lanes < 1 || tensor->lanes > 255) {
        PyErr_Format(PyExc_ValueError, "the tensor's type has %d lanes, expected 1 to 255", (int)tensor->lanes);
        return -1;
    }
    if (input_room(input, tensor->ndim) < 0)
        return -1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        input->shape[i] = tensor->shape[i];
        if (tensor->strides != NULL) /* absent: compact, before DLPack 1.2 */
            input->strides[i] = tensor->strides[i];
    }
    input->tensor = (cbd_tensor){
        .data = tensor->data == NULL ? NULL : (const char *)tensor->data + tensor->byte_offset,
        .ndim = tensor->ndim,
        .shape = input->shape,
        .strides = tensor->strides == NULL ? NULL : input->strides,
        .code = tensor->code,
        .bits = tensor->bits,
        .lanes = tensor->lanes,
        .device_type = (uint32_t)tensor->device_type,
        .device_id = (uint32_t)tensor->device_id,
    };
    return 0;
}
