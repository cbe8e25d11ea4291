/* Status codes, their names and texts, and the making of errors. */
#include "client.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *text;
} statuses[CBD_STATUS_COUNT] = {
    {"OK", "done"},
    {"INVALID_ARGUMENT", "an argument is not valid"},
    {"INVALID_HANDLE", "the handle is unknown or was released"},
    {"NOT_FOUND", "nothing of that name exists"},
    {"ALREADY_EXISTS", "it exists already"},
    {"FLOOR_VIOLATION", "the ordinal is on the wrong side of the write floor"},
    {"NOT_SUPPORTED", "this build does not support the request"},
    {"QUEUE_FULL", "too much is outstanding, try again later"},
    {"END", "no more elements"},
    {"OUT_OF_MEMORY", "no memory is left for it"},
    {"LAYOUT_CHANGED", "the layout changed meanwhile"},
    {"TIMEOUT", "not finished within the time given"},
    {"OP_FAILED", "the operation failed"},
    {"OUT_OF_RANGE", "the state of that ordinal is not retained"},
    {"LIMIT", "a limit of this client is reached"},
    {"SESSION_ENDED", "the broker ended this session"},
    {"ACCESS_DENIED", "access denied"},
    {"BROKER_RESTARTED", "the broker restarted before this was sealed"},
    {"INCOMPATIBLE_VERSION", "the peer speaks an incompatible protocol version"},
    {"INTERNAL", "an internal invariant was broken"},
};

const char *cbd_status_name(cbd_status status)
{
    return status < CBD_STATUS_COUNT ? statuses[status].name : "STATUS_UNKNOWN";
}

const char *cbd_status_text(cbd_status status)
{
    return status < CBD_STATUS_COUNT ? statuses[status].text : "unknown status";
}

void cbd_library_version(uint32_t version[3])
{
    version[0] = CBD_LIBRARY_MAJOR;
    version[1] = CBD_LIBRARY_MINOR;
    version[2] = CBD_LIBRARY_PATCH;
}

const char *cbd_abi_version(void)
{
    /* The generated numbers are not plain digits ("1u"), so the text stands here. */
    _Static_assert(CBD_ABI_MAJOR == 1 && CBD_ABI_MINOR == 0, "the text below is the version");
    return "1.0";
}

/* The length of text[0..length) cut before a character that the cut would split. */
static size_t whole_characters(const char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 4 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0)
        return length;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t needed = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return length - (start - 1) < needed ? start - 1 : length;
}

cbd_status cbdi_fail(cbd_error *error, cbd_status status, const char *format, ...)
{
    if (error == NULL)
        return status;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    if (wanted < 0)
        error->text[0] = 0;
    else if ((size_t)wanted >= sizeof error->text)
        error->text[whole_characters(error->text, sizeof error->text - 1)] = 0;
    size_t length = strlen(error->text), good;
    while ((good = cbdi_utf8_prefix(error->text, length)) < length)
        error->text[good] = '?'; /* a name or path that is not UTF-8, or was cut within a character */
    error->status = status;
    return status;
}

void cbdi_copy_text(char *to, size_t room, const void *text, size_t length)
{
    const char *end = memchr(text, 0, length);
    if (end != NULL)
        length = (size_t)(end - (const char *)text);
    bool cut = length > room - 1;
    if (cut)
        length = room - 1;
    memcpy(to, text, length);
    if (cut)
        length = whole_characters(to, length);
    to[length] = 0;
}
