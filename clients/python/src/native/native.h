/* What the files of callboard._native share.
 *
 *     module.c   the module and its errors                              struct native
 *     python.c   what the limited API of Python lacks
 *     convert.c  arguments: integers, times, shapes, types, strings
 *     tensor.c   a tensor of the caller, by buffer protocol or DLPack   struct input
 *     device.c   devices, streams, CUDA's array interface
 *     lease.c    what keeps the bytes of a view: no Python inside       struct lease
 *     view.c     View: bytes with a shape; buffer protocol
 *     numpy.c    NumPy, where it is installed
 *     dlpack.c   View.__dlpack__ and __dlpack_device__
 *     exchange.c the same by DLPack's table of C functions, out and in
 *     stage.c    Stage: connecting, waiting, floors, strings
 *     write.c    Stage: writing, publishing, sealing, declaring
 *     filter.c   Stage: queries by filter, lists, paths as tokens
 *     query.c, op.c, session.c, group.c, read.c, snapshot.c             the other handles
 *     events.c   Events, and Stage: descriptors for event loops
 *     log.c      the log callback
 *
 * Two rules hold throughout. The GIL is released around every call that may wait,
 * and no wait is longer than TURN_NS before signals are looked at. A read is tried with the GIL first, by a call that
 * does not wait: to give it up and take it again is a sixth of what a warm read costs. What a consumer of
 * a view gives back (its lease) is given back without a call into Python, because that
 * happens on any thread, without the GIL, and after the interpreter has ended.
 */
#ifndef CALLBOARD_NATIVE_H
#define CALLBOARD_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "callboard.h"
#include "callboard_cuda.h"
#include "callboard_dlpack.h"
#include "callboard_python.h"

#define TURN_NS 100000000ull /* rule R4's 100 ms: how long a wait goes on before signals are looked at */

/* ---- Python (python.c) --------------------------------------------------------- */

/* All of this directory keeps to the limited API, so that one wheel serves Python 3.11 and whatever comes; 3.10 compiles
 * it with the full one. Here is what the limited one lacks. */

#define BASE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE)
#define OBJECT_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION)

/* For __weaklistoffset__ of a type with weak references. */
#define WEAKREFS(type) {"__weaklistoffset__", T_PYSSIZET, offsetof(type, weakrefs), READONLY, NULL}

/* The end of a dealloc: frees an object of one of our types. */
void object_free(PyObject *self);
/* The start of one: runs the type's finalizer, its tp_finalize. True: somebody has a reference now, and dealloc ends. */
bool finalizer_revives(PyObject *self, destructor finalize);
/* Takes `with` in the place of what was there. */
void replace(PyObject **place, PyObject *with);
/* Sets TypeError: "ARGUMENT must be EXPECTED, not the type of `got`". */
void refuse_type(const char *argument, const char *expected, PyObject *got);
/* Whether the type of the object has that name, without its module. */
bool has_type_name(PyObject *object, const char *name);

/* ---- the module and its errors (module.c) ---------------------------------- */

struct native {
    PyObject *errors[CBD_STATUS_COUNT]; /* a class per status; NULL for OK and END */
    PyObject *operation_failed;
    PyObject *dtype_type; /* callboard.DType, a tuple (code, bits, lanes) */
    PyObject *dtype;      /* callboard.dtype */
    PyObject *cuda_sync;  /* callboard.CudaSync */
    PyObject *semantics;  /* the members of callboard.Semantic, by number */
    PyObject *severity;   /* callboard.Severity, once a log callback was installed; borrowed, it lives as long as the module */
};
extern struct native native;

/* Sets the exception of the status; returns NULL. text NULL or "": the status's own. */
PyObject *raise_text(cbd_status status, const char *text);
PyObject *raise_error(cbd_status status, const cbd_error *error);
PyObject *raise_format(cbd_status status, const char *format, ...);

/* For a finalizer, after the release: a ResourceWarning that says what was dropped. */
void warn_dropped(PyObject *self, const char *what);

/* ---- a handle of the C client that one thread may give back while another uses it -- */

/* Everything here happens with the GIL held; between enter and leave it may be released. */
struct handle {
    void *pointer;
    unsigned busy;
    bool released;
};

void *handle_enter(struct handle *handle, const char *what); /* NULL: released, and an exception is set */
void handle_leave(struct handle *handle, void (*give_back)(void *));
void handle_release(struct handle *handle, void (*give_back)(void *));

/* ---- arguments (convert.c); 0, or -1 with an exception ------------------------ */

/* Integers in a range; bool is none. Errors say the range. */
int convert_u64(PyObject *from, const char *argument, uint64_t *to);
int convert_u32(PyObject *from, const char *argument, uint64_t lowest, uint64_t highest, uint32_t *to);
/* Seconds; None is for ever. */
int convert_timeout(PyObject *from, uint64_t *timeout_ns);
/* None is no shape: *ndim 0. An integer is one dimension. */
int convert_shape(PyObject *from, const char *argument, uint32_t *ndim, uint64_t shape[CBD_ROW_NDIM_MAX]);
int convert_dtype(PyObject *from, uint8_t *code, uint8_t *bits, uint16_t *lanes);
/* Arguments as METH_FASTCALL | METH_KEYWORDS brings them, without a tuple and a dict made of them. */
struct arguments {
    const char *function;
    const char *const *names; /* of its arguments, NULL at the end */
    Py_ssize_t positional;    /* so many of them may be given by place */
    Py_ssize_t required;      /* and so many must be given */
};
/* Sorts them by the names; what was not given stays what values has. */
int arguments_sort(const struct arguments *arguments, PyObject *const *args, Py_ssize_t count, PyObject *given, PyObject **values);
/* An index as Python's sequences take it, and a truth; from NULL: *to stays. */
int convert_index(PyObject *from, Py_ssize_t *to);
int convert_truth(PyObject *from, bool *to);
/* Room for "argument[place]", as element_of writes it. */
#define ELEMENT_BYTES 64
const char *element_of(char text[ELEMENT_BYTES], const char *argument, uint64_t place);
/* Borrowed from `from`. */
const char *convert_text(PyObject *from, const char *argument);
/* One of the words, or its place among them as an integer. */
int convert_word(PyObject *from, const char *argument, const char *const *words, uint32_t *to);

/* Where something lies (device.c): 'cpu', 'cuda:0', a pair of DLPack's numbers, torch.device; None: both stay. */
int convert_device(PyObject *from, const char *argument, uint32_t *type, uint32_t *id);
/* 'cpu', 'cuda:0' */
PyObject *device_object(uint32_t type, uint32_t id);
/* A callboard.CudaSync; None is all zeros. */
int convert_sync(PyObject *from, const char *argument, cbd_cuda_sync *sync);
PyObject *sync_object(const cbd_cuda_sync *sync);

/* Types that NumPy lacks and the struct module has no letter for: bfloat16 and float8 (field report G10). */
static inline bool is_opaque(uint8_t code)
{
    return code == CBD_DTYPE_BFLOAT || code > CBD_DTYPE_BOOL;
}

PyObject *dtype_object(unsigned code, unsigned bits, unsigned lanes);
PyObject *semantic_object(uint32_t semantic);
PyObject *shape_object(const void *shape, int64_t ndim); /* of 64-bit extents */

/* Strings in an array, kept alive by `keep`. */
struct texts {
    PyObject *keep;
    const char **texts;
    size_t *lengths;
    size_t count;
    const char *only; /* room for one: who reads asks for one attribute, mostly */
    size_t only_length;
};
/* A string alone counts as one where `single` is true, else it is refused. */
int texts_open(struct texts *texts, PyObject *from, const char *argument, bool single);
void texts_close(struct texts *texts);

uint64_t now_ns(void);
uint64_t deadline_after(uint64_t timeout_ns);
/* The next turn of a wait: 0 when the deadline has passed. */
uint64_t turn_before(uint64_t deadline);

/* ---- tensors of the caller (tensor.c) ------------------------------------------- */

struct input {
    cbd_tensor tensor;
    int64_t *shape, *strides; /* in few, or allocated; see input_room */
    int64_t few[2 * CBD_NDIM_MAX];
    Py_buffer buffer;
    bool has_buffer;
    void *managed; /* of DLPack */
    bool versioned;
    void *gathered;     /* a copy of the buffer, row-major */
    cbd_tensor *folded; /* a copy whose trailing dimensions became lanes */
    bool has_stream;    /* the C client's own of the tensor's device, which its producer has put work before */
    uint32_t stream_device;
    cbd_cuda_sync sync; /* in: what the caller gave; out: what the data of a tensor on a GPU waits for */
};

/* Room for so many dimensions. 0, or -1 with an exception. */
int input_room(struct input *input, int ndim);
/* Of input->sync, which is set before: */
/* anything with the buffer protocol, __dlpack__ or __cuda_array_interface__; numbers and nested lists where
 * NumPy is there. dtype None, or what the caller says that it is. */
int input_open(struct input *input, PyObject *from, PyObject *dtype);
/* As input_open, of an array attribute's elements: text as its UTF-8 bytes, and where dtype has lanes, the trailing
 * dimensions that they are made of are gone from the shape (behaviour 26, 292). */
int input_open_elements(struct input *input, PyObject *from, PyObject *dtype);
void input_close(struct input *input);

/* ---- what keeps a view's bytes (lease.c) ------------------------------------------ */

/* A map session's memory, released with the last reference to it. */
struct hold {
    _Atomic uint32_t refs;
    cbd_session *session;
};

/* One group of a map session. */
struct staging {
    _Atomic uint32_t refs;
    struct hold *hold;
    cbd_group *group;
    bool unmapped; /* guarded by the GIL */
};

struct lease {
    _Atomic uint32_t refs;
    void (*release)(void *kept); /* called once, at the end, on any thread */
    void *kept;
};

struct hold *hold_new(cbd_session *session);
void hold_retain(struct hold *hold);
void hold_drop(struct hold *hold);
struct staging *staging_new(struct hold *hold, cbd_group *group);
void staging_retain(struct staging *staging);
void staging_drop(struct staging *staging);
/* NULL without memory, with no exception set. The pin gets a reference of its own. */
struct lease *lease_of_pin(cbd_pin *pin);
/* Of a group that was lent (cbd_group_lend), until the lease ends. */
struct lease *lease_of_staging(struct staging *staging);
/* Of a group that was read, which it takes. */
struct lease *lease_of_group(const cbd_read_group *group);
/* Of a private copy on a GPU, which it takes, also when it fails; NULL memory: of nothing. */
struct lease *lease_of_clone(void *memory, uint32_t device_id);
struct lease *lease_of_memory(void *memory); /* takes malloc'd memory, also when it fails */
/* Of a tensor that another library made; takes it where it does not fail. */
struct lease *lease_of_managed(cbd_dlpack_versioned *managed);
void lease_retain(struct lease *lease);
void lease_drop(struct lease *lease);

/* ---- views (view.c, dlpack.c, exchange.c) -------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct lease *lease;
    void *data;           /* on a GPU a device pointer, which nobody here looks through */
    bool readonly;
    uint8_t code, bits;
    uint32_t device_type, device_id;
    const cbd_read_group *group; /* of a read view on a GPU, kept by the lease: what its copy on the host is made of; else NULL */
    int ndim;
    Py_ssize_t shape[CBD_NDIM_MAX], strides[CBD_NDIM_MAX]; /* strides in bytes */
    Py_ssize_t item_bytes, length_bytes;
    PyObject *attribute; /* or NULL */
    uint32_t semantic;
    uint64_t ordinal, epoch, floor, stamp_ns;
    PyObject *weakrefs;
} View;

extern PyTypeObject *View_Type;
extern PyType_Spec View_Spec;

/* Takes the lease, also when it fails; NULL lease: no memory. Compact, row-major. */
View *view_new(struct lease *lease, const void *data, bool readonly, uint8_t code, uint8_t bits, int ndim,
               const int64_t *shape);
/* Says where a view lies that was made as one of host memory. */
View *view_on(View *view, uint32_t device_type, uint32_t device_id);
/* 0 where the host can look at it; else -1 with a BufferError that says how it can. */
int check_on_host(const View *view);
/* A view of a private copy of n numbers, as an array (see view_array). */
PyObject *array_of_copy(const void *data, size_t n, uint8_t code, uint8_t bits);
/* The NumPy array over the view, or the view itself without NumPy and on a GPU. Takes the view; NULL is passed on. What NumPy lacks
 * is of ml_dtypes' types, or without that package shows its bits. */
PyObject *view_array(View *view);
/* The same bytes with one dimension; takes the view. */
View *view_flat(View *view);
/* IndexError unless a group of so many tensors has number `index`. */
int check_index(Py_ssize_t index, uint64_t count);
/* As view_new, of `elements` elements of an array. */
View *view_of_elements(struct lease *lease, const void *data, bool readonly, const cbd_schema *schema, uint64_t elements);

/* numpy.<name>, a new reference; NULL without an exception where NumPy is not installed. */
PyObject *numpy_function(const char *name);
/* The NumPy array over a view of a type that buffers have; NULL as above. */
PyObject *numpy_array(View *view);

PyObject *view_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *given);
/* A tuple of two integers: what a device and max_version are. Where not, an exception may be set, too. */
bool is_pair(PyObject *from, long *first, long *second);
PyObject *view_dlpack_device(PyObject *self, PyObject *unused);

/* The view's tensor, lent, or with CBD_DLPACK_COPY copied. NULL with an exception. */
void *view_export(const View *view, bool versioned, uint32_t flags);
/* The same in a capsule. Without a version and flags it promises nothing about who writes. */
PyObject *view_capsule(const View *view, bool versioned, uint32_t flags);

/* Takes a capsule of any version; fills the tensor. */
int dlpack_take(PyObject *capsule, struct input *input);
/* The same of a tensor without a capsule, which is the input's from here on, also where it fails. */
int dlpack_take_versioned(cbd_dlpack_versioned *managed, struct input *input);
void dlpack_give_back(struct input *input);

PyObject *view_cuda_array_interface(PyObject *self, void *closure);
/* Fills the tensor of an object that offers the interface: 1 done, 0 it does not, -1 with an exception. */
int cuda_array_take(PyObject *from, struct input *input);
/* The C client's own stream of a device, held until input_close. 0, or -1 with an exception. */
int stream_for(struct input *input, uint32_t device_id, uint64_t *stream);

/* Sets View.__dlpack_c_exchange_api__. */
int exchange_offer(void);
/* Takes the tensor of an object whose type offers the table: 1 done, 0 it does not offer it, -1 with an exception. */
int exchange_take(PyObject *from, struct input *input);

/* ---- the handles ------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    cbd_stage *stage;
    bool closed;
    PyObject *names; /* texts of tokens that named an attribute, by token; NULL: none has */
    PyObject *events; /* of fileno(); NULL: it was not asked for */
    PyObject *weakrefs;
} Stage;

typedef struct {
    PyObject_HEAD
    struct handle handle; /* cbd_query */
    Stage *stage;
    PyObject *prims; /* made at the first use */
    PyObject *keep;  /* what it was made of and keeps alive, or NULL */
} Query;

typedef struct {
    PyObject_HEAD
    struct handle handle; /* cbd_op */
    Stage *stage;
    cbd_op_result result;
    bool done;
    PyObject *keep; /* what is copied from meanwhile, or NULL */
} Op;

/* Made of the specs when the module is. */
extern PyTypeObject *Stage_Type, *Query_Type, *Op_Type, *MapSession_Type, *Group_Type, *Read_Type, *ReadGroup_Type,
    *Snapshot_Type, *Cursor_Type, *Events_Type;
extern PyType_Spec Query_Spec, Op_Spec, MapSession_Spec, Group_Spec, Read_Spec, ReadGroup_Spec, Snapshot_Spec, Cursor_Spec,
    Events_Spec;
/* Of methods that stand in several files, joined here. NULL with an exception. */
PyType_Spec *stage_spec(void);
/* One list of methods; NULL with an exception. */
PyMethodDef *joined(PyMethodDef *const lists[], size_t count);

/* An attribute's name, from a string or a token (behaviour 270). Borrowed: valid as long as `from` and the stage live.
 * NULL with an exception. */
PyObject *attribute_name(Stage *stage, PyObject *from, const char *argument);
const char *convert_attribute(Stage *stage, PyObject *from, const char *argument);
/* texts_open of one attribute or a list of them; texts_close follows. */
int attributes_open(struct texts *texts, Stage *stage, PyObject *from, const char *argument);

PyObject *query_new(Stage *stage, cbd_query *query); /* takes the query */
cbd_query *query_enter(PyObject *query);             /* NULL with an exception: not a query, or released */
void query_leave(PyObject *query);
PyObject *op_new(Stage *stage, cbd_op *op); /* takes the op */
/* The op keeps the object until it is known to be done, or is gone. */
void op_keep(PyObject *op, PyObject *object);
/* Waits with the GIL released; 0, or -1 with an exception. */
int op_finish(cbd_op *op, uint64_t timeout_ns, cbd_op_result *result);

/* Takes the session. unmap_flags: what leaving the block adds; root: the row of the prim "/" alone. */
PyObject *session_new(Stage *stage, cbd_session *session, PyObject *name, uint32_t unmap_flags, bool root);
/* A Group that was claimed of somebody's session; takes the group's session. */
PyObject *claimed_group_new(Stage *stage, cbd_group *group);
/* Takes the group; name: the attribute's, or NULL. managed: its last reference may go without a release and without a
 * warning. */
PyObject *read_group_new(const cbd_read_group *group, PyObject *name, bool managed);
/* A Read of the names, in the memory that `device` names. snapshot NULL: of the stage, in the range, NULL: the newest; else what changed since the cursor,
 * or all of it where that is NULL. */
PyObject *read_open(Stage *stage, cbd_snapshot *snapshot, PyObject *query, PyObject *attributes, const cbd_range *range,
                    const cbd_cursor *since, PyObject *device);
PyObject *stage_snapshot(PyObject *stage, PyObject *unused);
PyObject *stage_managed_snapshot(PyObject *stage, PyObject *unused);
/* The view of a read group's tensor `index`; row: of its first prim alone, without the axis of rows. */
View *view_of_read_group(const cbd_read_group *group, PyObject *name, Py_ssize_t index, bool row);

/* write.c: Stage's methods that write; read.c: those that read; filter.c: those that find; events.c: for event loops. */
extern PyMethodDef stage_write_methods[], stage_read_methods[], stage_filter_methods[], stage_events_methods[];

/* log.c: functions of the module. */
PyObject *log_install(PyObject *module, PyObject *args);
PyObject *log_flush(PyObject *module, PyObject *timeout);
PyObject *log_remove(PyObject *module, PyObject *unused);

#endif
