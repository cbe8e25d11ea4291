/* What may be a name or a path, the same rules as package snapshot has for the broker,
 * so that both refuse the same texts (R6); and shapes for people.
 */
#include "client.h"

#include <stdio.h>
#include <string.h>

/* ---- UTF-8 ----------------------------------------------------------------------- */

size_t cbdi_utf8_prefix(const void *text, size_t length)
{
    const unsigned char *at = text;
    size_t i = 0;
    while (i < length) {
        uint64_t eight;
        if (length - i >= sizeof eight) { /* names are ASCII, mostly */
            memcpy(&eight, at + i, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        unsigned char lead = at[i], least = 0x80, most = 0xbf;
        size_t more = lead < 0x80 ? 0 : lead >= 0xc2 && lead <= 0xdf ? 1 : (lead & 0xf0) == 0xe0 ? 2 : lead >= 0xf0 && lead <= 0xf4 ? 3 : 4;
        if (more == 4 || more > length - i - 1)
            return i;
        if (lead == 0xe0)
            least = 0xa0; /* below: a shorter form exists */
        else if (lead == 0xed)
            most = 0x9f; /* above: halves of surrogate pairs */
        else if (lead == 0xf0)
            least = 0x90;
        else if (lead == 0xf4)
            most = 0x8f; /* above: beyond U+10FFFF */
        for (size_t k = 1; k <= more; k++) {
            if (at[i + k] < (k == 1 ? least : 0x80) || at[i + k] > (k == 1 ? most : 0xbf))
                return i;
        }
        i += more + 1;
    }
    return length;
}

cbd_status cbdi_utf8_check(const char *what, const char *text, size_t length, cbd_error *error)
{
    size_t good = cbdi_utf8_prefix(text, length);
    if (good == length)
        return CBD_STATUS_OK;
    return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s is not UTF-8: its byte %zu is 0x%02x", what, good,
                     (unsigned char)text[good]);
}

/* ---- names ------------------------------------------------------------------------- */

cbd_status cbdi_name_check(const char *name, bool writing, size_t *length, cbd_error *error)
{
    *length = name == NULL ? 0 : strlen(name);
    if (*length == 0 || *length > CBD_NAME_BYTES_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute name%s has %zu bytes: expected 1 to %u",
                         name == NULL ? " is NULL and" : "", *length, CBD_NAME_BYTES_MAX);
    if (name[0] == '@')
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "attribute \"%.200s\": names that start with \"@\" are reserved%s", name,
                         writing ? "" : ", and only \"" CBD_PATH_NAME "\" can be read");
    return cbdi_utf8_check("attribute name", name, *length, error);
}

cbd_status cbdi_names_check(const char *const *names, size_t n, bool writing, cbd_error *error)
{
    size_t length;
    cbd_error why;
    if (n != 0 && names == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "names is NULL with n = %zu", n);
    for (size_t i = 0; i < n; i++) {
        if (!writing && names[i] != NULL && strcmp(names[i], CBD_PATH_NAME) == 0)
            continue; /* behaviour 271 */
        cbd_status status = cbdi_name_check(names[i], writing, &length, &why);
        if (status != CBD_STATUS_OK)
            return cbdi_fail(error, status, "names[%zu]: %.400s", i, why.text);
    }
    return CBD_STATUS_OK;
}

/* ---- lists of paths and tokens -------------------------------------------------------- */

static bool empty_component(const char *text, size_t length)
{
    for (size_t i = 1; i < length; i++)
        if (text[i] == '/' && text[i - 1] == '/')
            return true;
    return false;
}

cbd_status cbdi_string_check(const char *text, size_t length, size_t index, bool path, cbd_error *error)
{
    size_t most = path ? CBD_PATH_BYTES_MAX : CBD_NAME_BYTES_MAX;
    const char *sort = path ? "path" : "token", *why = NULL;
    char what[32];
    snprintf(what, sizeof what, "%s %zu of the list", sort, index);
    if (text == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s is NULL", what);
    if (length > most)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s, \"%.80s…\", has %zu bytes: expected at most %zu", what, text,
                         length, most);
    if (length == 0)
        why = "it is empty";
    else if (memchr(text, 0, length) != NULL)
        why = "it holds a NUL byte";
    else if (path && text[0] != '/')
        why = "it does not start with \"/\"";
    else if (path && length > 1 && text[length - 1] == '/')
        why = "it ends with \"/\"";
    else if (path && empty_component(text, length))
        why = "it has an empty component (\"//\")";
    if (why != NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s, \"%.*s\", is not valid: %s", what,
                         (int)(length > 80 ? 80 : length), text, why);
    return cbdi_utf8_check(what, text, length, error);
}

/* ---- shapes ------------------------------------------------------------------------------ */

const char *cbdi_shape_text(const int64_t *shape, int32_t ndim, char text[160])
{
    size_t used = 1;
    text[0] = '(';
    for (int32_t i = 0; i < ndim && used < 130; i++)
        used += (size_t)snprintf(text + used, 160 - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(text + used, 160 - used, ndim == 1 ? ",)" : ")");
    return text;
}

const char *cbdi_row_shape_text(const uint64_t *shape, uint32_t ndim, char text[160])
{
    size_t used = 1;
    text[0] = '(';
    for (uint32_t i = 0; i < ndim && used < 130; i++)
        used += (size_t)snprintf(text + used, 160 - used, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    snprintf(text + used, 160 - used, ndim == 1 ? ",)" : ")");
    return text;
}
