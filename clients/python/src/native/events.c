/* Event loops: Events, a descriptor to wait with beside others, and the methods of Stage around it. Nothing here waits,
 * and the thread that writes to the descriptor is the C client's: it knows nothing of Python. */
#include "native.h"

/* No reference to Stage: it has one of these itself. */
typedef struct {
    PyObject_HEAD
    cbd_events *events; /* NULL: released */
} Events;

static PyObject *events_new(Stage *stage)
{
    cbd_events *pointer;
    cbd_error error;
    cbd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = cbd_events_open(stage->stage, &pointer, &error);
    Py_END_ALLOW_THREADS
    if (status != CBD_STATUS_OK)
        return raise_error(status, &error);
    Events *self = PyObject_New(Events, Events_Type);
    if (self == NULL)
        cbd_events_release(pointer);
    else
        self->events = pointer;
    return (PyObject *)self;
}

static PyObject *events_release(PyObject *self, PyObject *Py_UNUSED(unused))
{
    cbd_events *pointer = ((Events *)self)->events;
    ((Events *)self)->events = NULL;
    Py_BEGIN_ALLOW_THREADS
    cbd_events_release(pointer);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void events_dealloc(PyObject *self)
{
    cbd_events_release(((Events *)self)->events); /* waits for nobody but the C client's thread, which is woken */
    object_free(self);
}

static PyObject *events_drain(PyObject *self, PyObject *Py_UNUSED(unused))
{
    uint64_t epoch;
    cbd_error error;
    cbd_status status = cbd_events_drain(((Events *)self)->events, &epoch, &error);
    return status == CBD_STATUS_OK ? PyLong_FromUnsignedLongLong(epoch) : raise_error(status, &error);
}

static PyObject *events_fileno(PyObject *self, PyObject *Py_UNUSED(unused))
{
    int fd = cbd_events_fileno(((Events *)self)->events);
    return fd >= 0 ? PyLong_FromLong(fd) : events_drain(self, NULL); /* released, or a forked child's: that says so */
}

static PyMethodDef events_methods[] = {
    {"fileno", events_fileno, METH_NOARGS, "fileno($self)\n--\n\nSee Stage.fileno."},
    {"drain", events_drain, METH_NOARGS, "drain($self)\n--\n\nSee Stage.drain."},
    {"release", events_release, METH_NOARGS, "release($self)\n--\n\nCloses the descriptor."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot events_slots[] = {
    {Py_tp_doc, "A descriptor that becomes readable when a stage has something new; see Stage.fileno."},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_methods, events_methods},
    {0, NULL},
};

PyType_Spec Events_Spec = {.name = "callboard._native.Events", .basicsize = sizeof(Events), .flags = OBJECT_FLAGS, .slots = events_slots};

/* ---- Stage's methods ------------------------------------------------------------------- */

static PyObject *stage_events(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return events_new((Stage *)self);
}

/* The stage's own, made at the first use; borrowed. */
static PyObject *own_events(Stage *stage)
{
    if (stage->events == NULL) {
        PyObject *made = events_new(stage);
        if (stage->events == NULL)
            stage->events = made;
        else /* another thread was faster */
            Py_XDECREF(made);
    }
    return stage->events;
}

static PyObject *stage_fileno(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *events = own_events((Stage *)self);
    return events == NULL ? NULL : events_fileno(events, NULL);
}

static PyObject *stage_drain(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *events = own_events((Stage *)self);
    return events == NULL ? NULL : events_drain(events, NULL);
}

PyMethodDef stage_events_methods[] = {
    {"fileno", stage_fileno, METH_NOARGS,
     "fileno($self)\n--\n\nA descriptor for select, selectors and event loops: readable when there is something to look at.\n\n"
     "    loop.add_reader(stage.fileno(), look)     # def look(): epoch = stage.drain(); ...\n\n"
     "It is readable when the epoch moved since drain() last looked, and at first where anything was sealed already;\n"
     "when the broker was lost or has taken the session up again; and for good once the session is over or closed.\n"
     "It stays readable until drain(), however many seals there were, and no epoch is missed: what is sealed after drain()\n"
     "looked makes it readable again. Now and then it is readable without a newer epoch.\n\n"
     "It is one descriptor, for one loop, and stays open as long as this object: take it out of the loop before.\n"
     "`async for` over watch() needs none of this. The first call starts a thread of the C client. Raises SessionEnded."},
    {"drain", stage_drain, METH_NOARGS,
     "drain($self)\n--\n\nMakes fileno() not readable and returns the newest epoch (0: nothing was sealed). Never waits. Raises\n"
     "SessionEnded once the session is over and the last epoch was returned, and fileno() stays readable."},
    {"_events", stage_events, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
