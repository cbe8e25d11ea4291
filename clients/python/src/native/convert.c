/* Arguments of Python into the C client's types. Each refusal names the argument. */
#include "native.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- numbers ---------------------------------------------------------------- */

static int refuse_range(const char *argument, uint64_t lowest, uint64_t highest, PyObject *number)
{
    char top[24];
    if (highest == UINT64_MAX || highest == INT64_MAX || highest == UINT32_MAX)
        snprintf(top, sizeof top, "2**%d-1", highest == UINT64_MAX ? 64 : highest == INT64_MAX ? 63 : 32);
    else
        snprintf(top, sizeof top, "%llu", (unsigned long long)highest);
    PyErr_Format(PyExc_ValueError, "%s must be from %llu to %s, not %S", argument, (unsigned long long)lowest, top, number);
    return -1;
}

/* True is an answer, and not the number 1. NumPy's, of which releases before 2.3 make an index, neither. */
static bool is_integer(PyObject *from)
{
    return PyLong_CheckExact(from) ||
           (PyIndex_Check(from) && !PyBool_Check(from) && !has_type_name(from, "bool") && !has_type_name(from, "bool_"));
}

/* pass: numbers of 64 bits outside of the range go on, to where more is known of them. */
static int convert_integer(PyObject *from, const char *argument, uint64_t lowest, uint64_t highest, bool pass, uint64_t *to)
{
    if (!is_integer(from)) { /* a double has 53 bits: 5.0 is refused like 5.25 */
        refuse_type(argument, "an integer", from);
        return -1;
    }
    PyObject *number = PyNumber_Index(from);
    if (number == NULL)
        return -1;
    int result = 0;
    *to = PyLong_AsUnsignedLongLong(number);
    if (*to == UINT64_MAX && PyErr_Occurred()) {
        result = -1;
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            refuse_range(argument, lowest, highest, number);
        }
    } else if (!pass && (*to < lowest || *to > highest)) {
        result = refuse_range(argument, lowest, highest, number);
    }
    Py_DECREF(number);
    return result;
}

int convert_u64(PyObject *from, const char *argument, uint64_t *to)
{
    return convert_integer(from, argument, 0, UINT64_MAX, false, to);
}

int convert_u32(PyObject *from, const char *argument, uint64_t lowest, uint64_t highest, uint32_t *to)
{
    uint64_t wide;
    if (convert_integer(from, argument, lowest, highest, false, &wide) < 0)
        return -1;
    *to = (uint32_t)wide;
    return 0;
}

/* An extent of a row. 0, and what makes a row too large, is the C client's to refuse, which says why. */
static int convert_extent(PyObject *from, const char *argument, uint64_t *to)
{
    return convert_integer(from, argument, 1, INT64_MAX, true, to);
}

const char *element_of(char text[ELEMENT_BYTES], const char *argument, uint64_t place)
{
    snprintf(text, ELEMENT_BYTES, "%s[%llu]", argument, (unsigned long long)place);
    return text;
}

int convert_timeout(PyObject *from, uint64_t *timeout_ns)
{
    *timeout_ns = UINT64_MAX;
    if (from == NULL || from == Py_None)
        return 0;
    double seconds = PyFloat_AsDouble(from);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            refuse_type("timeout", "seconds or None", from);
        return -1;
    }
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError, "timeout must be seconds, 0 or more, not %R", from);
        return -1;
    }
    if (seconds < 9e9) /* 285 years; beyond it is for ever */
        *timeout_ns = (uint64_t)(seconds * 1e9);
    return 0;
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t deadline_after(uint64_t timeout_ns)
{
    uint64_t now = now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

uint64_t turn_before(uint64_t deadline)
{
    if (deadline == UINT64_MAX)
        return TURN_NS;
    uint64_t now = now_ns();
    if (now >= deadline)
        return 0;
    return deadline - now < TURN_NS ? deadline - now : TURN_NS;
}

/* ---- shapes and types ----------------------------------------------------------- */

int convert_shape(PyObject *from, const char *argument, uint32_t *ndim, uint64_t shape[CBD_ROW_NDIM_MAX])
{
    *ndim = 0;
    if (from == NULL || from == Py_None)
        return 0;
    if (PyIndex_Check(from)) {
        *ndim = 1;
        return convert_extent(from, argument, &shape[0]);
    }
    PyObject *extents = PySequence_Tuple(from);
    if (extents == NULL) {
        refuse_type(argument, "a tuple of integers", from);
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(extents);
    if (count > CBD_ROW_NDIM_MAX) {
        PyErr_Format(PyExc_ValueError, "%s has %zd dimensions, at most %d are possible", argument, count,
                     CBD_ROW_NDIM_MAX);
        Py_DECREF(extents);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char element[ELEMENT_BYTES];
        if (convert_extent(PyTuple_GetItem(extents, i), element_of(element, argument, (uint64_t)i), &shape[i]) < 0) {
            Py_DECREF(extents);
            return -1;
        }
    }
    *ndim = (uint32_t)count;
    Py_DECREF(extents);
    return 0;
}

int convert_dtype(PyObject *from, uint8_t *code, uint8_t *bits, uint16_t *lanes)
{
    PyObject *dtype;
    if (Py_TYPE(from) == (PyTypeObject *)native.dtype_type)
        dtype = Py_NewRef(from);
    else if ((dtype = PyObject_CallFunctionObjArgs(native.dtype, from, NULL)) == NULL)
        return -1;
    int parsed = PyArg_ParseTuple(dtype, "bbH", code, bits, lanes);
    Py_DECREF(dtype);
    return parsed ? 0 : -1;
}

PyObject *dtype_object(unsigned code, unsigned bits, unsigned lanes)
{
    return PyObject_CallFunction(native.dtype_type, "III", code, bits, lanes);
}

PyObject *semantic_object(uint32_t semantic)
{
    if (semantic < (uint32_t)PyTuple_Size(native.semantics))
        return Py_NewRef(PyTuple_GetItem(native.semantics, semantic));
    return PyLong_FromUnsignedLong(semantic);
}

PyObject *shape_object(const void *shape, int64_t ndim)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)ndim);
    for (int64_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *extent = PyLong_FromLongLong(((const int64_t *)shape)[i]);
        if (extent == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SetItem(tuple, (Py_ssize_t)i, extent);
    }
    return tuple;
}

/* ---- strings ----------------------------------------------------------------------- */

const char *convert_text(PyObject *from, const char *argument)
{
    if (!PyUnicode_Check(from)) {
        refuse_type(argument, "a string", from);
        return NULL;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(from, &length);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s holds half of a surrogate pair, which is no character: %A", argument, from);
    }
    if (text != NULL && strlen(text) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "%s holds a zero character: %R", argument, from);
        return NULL;
    }
    return text;
}

int convert_word(PyObject *from, const char *argument, const char *const *words, uint32_t *to)
{
    uint32_t count = 0;
    while (words[count] != NULL)
        count++;
    if (PyIndex_Check(from))
        return convert_u32(from, argument, 0, count - 1, to);
    const char *text = convert_text(from, argument);
    if (text == NULL)
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(words[i], text) == 0) {
            *to = i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "%s is %R, expected '%s', '%s' or '%s'", argument, from, words[0], words[1],
                 words[2]);
    return -1;
}

int texts_open(struct texts *texts, PyObject *from, const char *argument, bool single)
{
    memset(texts, 0, sizeof *texts);
    if (PyUnicode_Check(from)) {
        if (!single) {
            PyErr_Format(PyExc_TypeError, "%s must be a list of strings, not one string", argument);
            return -1;
        }
        texts->keep = PyTuple_Pack(1, from);
    } else {
        texts->keep = PySequence_Tuple(from); /* another thread may change a list meanwhile */
        if (texts->keep == NULL && PyErr_ExceptionMatches(PyExc_TypeError))
            refuse_type(argument, "a list of strings", from);
    }
    if (texts->keep == NULL)
        return -1;
    texts->count = (size_t)PyTuple_Size(texts->keep);
    texts->texts = PyMem_New(const char *, texts->count + 1);
    texts->lengths = PyMem_New(size_t, texts->count + 1);
    if (texts->texts == NULL || texts->lengths == NULL) {
        texts_close(texts);
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < texts->count; i++) {
        char element[ELEMENT_BYTES];
        texts->texts[i] = convert_text(PyTuple_GetItem(texts->keep, (Py_ssize_t)i),
                                       PyUnicode_Check(from) ? argument : element_of(element, argument, i));
        if (texts->texts[i] == NULL) {
            texts_close(texts);
            return -1;
        }
        texts->lengths[i] = strlen(texts->texts[i]);
    }
    return 0;
}

void texts_close(struct texts *texts)
{
    PyMem_Free(texts->texts);
    PyMem_Free(texts->lengths);
    Py_CLEAR(texts->keep);
    texts->texts = NULL;
    texts->lengths = NULL;
}

/* ---- attributes -------------------------------------------------------------------- */

/* The text of a token, which the stage keeps: that of cbd_resolve goes when another thread closes it. */
static PyObject *name_of_token(Stage *stage, PyObject *from, const char *argument)
{
    uint64_t token;
    if (convert_u64(from, argument, &token) < 0)
        return NULL;
    if (stage->names == NULL && (stage->names = PyDict_New()) == NULL)
        return NULL;
    PyObject *key = PyLong_FromUnsignedLongLong(token);
    PyObject *name = key == NULL ? NULL : PyDict_GetItemWithError(stage->names, key);
    if (name == NULL && key != NULL && !PyErr_Occurred()) {
        const char *text;
        size_t length;
        cbd_error error;
        cbd_status status = cbd_resolve(stage->stage, token, &text, &length, &error);
        PyObject *made = status == CBD_STATUS_OK ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, NULL) : raise_error(status, &error);
        if (made != NULL && PyDict_SetItem(stage->names, key, made) == 0)
            name = made;
        Py_XDECREF(made); /* the dictionary has it */
    }
    Py_XDECREF(key);
    return name;
}

PyObject *attribute_name(Stage *stage, PyObject *from, const char *argument)
{
    if (PyUnicode_Check(from))
        return from;
    if (is_integer(from))
        return name_of_token(stage, from, argument);
    refuse_type(argument, "a string or a token", from);
    return NULL;
}

const char *convert_attribute(Stage *stage, PyObject *from, const char *argument)
{
    PyObject *name = attribute_name(stage, from, argument);
    return name == NULL ? NULL : convert_text(name, argument);
}

int attributes_open(struct texts *texts, Stage *stage, PyObject *from, const char *argument)
{
    memset(texts, 0, sizeof *texts);
    bool single = PyUnicode_Check(from) || (PyIndex_Check(from) && !PySequence_Check(from)); /* NumPy's arrays are both */
    if (single) {
        PyObject *name = attribute_name(stage, from, argument);
        return name == NULL ? -1 : texts_open(texts, name, argument, true);
    }
    PyObject *given = PySequence_Tuple(from), *all = NULL; /* another thread may change a list meanwhile */
    if (given == NULL && PyErr_ExceptionMatches(PyExc_TypeError))
        refuse_type(argument, "a list of strings or tokens", from);
    if (given != NULL)
        all = PyTuple_New(PyTuple_Size(given));
    for (Py_ssize_t i = 0; all != NULL && i < PyTuple_Size(given); i++) {
        char element[ELEMENT_BYTES];
        PyObject *name = attribute_name(stage, PyTuple_GetItem(given, i), element_of(element, argument, (size_t)i));
        if (name == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SetItem(all, i, Py_NewRef(name));
    }
    Py_XDECREF(given);
    int opened = all == NULL ? -1 : texts_open(texts, all, argument, true);
    Py_XDECREF(all);
    return opened;
}
