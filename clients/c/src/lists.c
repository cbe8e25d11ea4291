/* Lists of ids, and paths as sequences of tokens. Lists are this process's own: immutable,
 * counted, and known by a number that is never given out again for the same stage.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

struct list {
    uint64_t number;
    uint64_t refs;
    size_t count;
    uint64_t *ids;
};

/* By number, which only grows; guarded by cache_lock. */
struct lists {
    struct list *all;
    size_t count, room;
    uint64_t last;
};

void cbdi_lists_free(cbd_stage *stage)
{
    if (stage->lists == NULL)
        return;
    for (size_t i = 0; i < stage->lists->count; i++)
        free(stage->lists->all[i].ids);
    free(stage->lists->all);
    free(stage->lists);
    stage->lists = NULL;
}

/* Takes the lock where the lists may be looked at; they need no broker and no mappings. */
static cbd_status begin(cbd_stage *stage, cbd_error *error)
{
    if (stage == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "stage is NULL");
    if (atomic_load(&stage->foreign)) /* the lock may be held for ever in this child (I4) */
        return cbdi_fail(error, CBD_STATUS_SESSION_ENDED, "this stage is the parent process's; connect anew in the child");
    pthread_mutex_lock(&stage->cache_lock);
    return CBD_STATUS_OK;
}

static void end(cbd_stage *stage) { pthread_mutex_unlock(&stage->cache_lock); }

/* With the lock held; NULL after saying why. */
static struct list *find(cbd_stage *stage, uint64_t number, cbd_error *error)
{
    struct lists *lists = stage->lists;
    for (size_t low = 0, high = lists == NULL ? 0 : lists->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (lists->all[middle].number == number)
            return &lists->all[middle];
        if (lists->all[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    cbdi_fail(error, CBD_STATUS_NOT_FOUND, "list %llu is unknown: it was never made on this stage, or its last reference was released",
              (unsigned long long)number);
    return NULL;
}

cbd_status cbd_list_create(cbd_stage *stage, const uint64_t *ids, size_t n, uint64_t *list, cbd_error *error)
{
    if (list == NULL || (n != 0 && ids == NULL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s is NULL", list == NULL ? "the place for the list" : "ids");
    *list = 0;
    uint64_t *copy = n < SIZE_MAX / sizeof *copy ? malloc(n * sizeof *copy + 1) : NULL;
    if (copy == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a list of %zu ids", n);
    if (n != 0)
        memcpy(copy, ids, n * sizeof *copy);
    cbd_status status = begin(stage, error);
    if (status != CBD_STATUS_OK) {
        free(copy);
        return status;
    }
    if (stage->lists == NULL)
        stage->lists = calloc(1, sizeof *stage->lists);
    struct lists *lists = stage->lists;
    if (lists != NULL && lists->count == lists->room) {
        size_t room = lists->room ? lists->room * 2 : 16;
        struct list *all = realloc(lists->all, room * sizeof *all);
        if (all != NULL) {
            lists->all = all;
            lists->room = room;
        }
    }
    if (lists == NULL || lists->count == lists->room) {
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for one more list");
        free(copy);
    } else {
        lists->all[lists->count++] = (struct list){++lists->last, 1, n, copy};
        *list = lists->last;
    }
    end(stage);
    return status;
}

/* Adds `more` references, 1 or -1, to a list; without any left it is gone. */
static cbd_status refer(cbd_stage *stage, uint64_t list, int more, cbd_error *error)
{
    if (list == 0)
        return CBD_STATUS_OK;
    cbd_status status = begin(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct list *it = find(stage, list, error);
    bool known = it != NULL;
    if (known && (it->refs += (uint64_t)more) == 0) {
        struct lists *lists = stage->lists;
        free(it->ids);
        memmove(it, it + 1, (size_t)(lists->all + lists->count - (it + 1)) * sizeof *it);
        lists->count--;
    }
    end(stage);
    return known ? CBD_STATUS_OK : CBD_STATUS_NOT_FOUND;
}

cbd_status cbd_list_add_reference(cbd_stage *stage, uint64_t list, cbd_error *error) { return refer(stage, list, 1, error); }

cbd_status cbd_list_release(cbd_stage *stage, uint64_t list, cbd_error *error) { return refer(stage, list, -1, error); }

cbd_status cbd_list_count(cbd_stage *stage, uint64_t list, size_t *count, cbd_error *error)
{
    if (count == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "count is NULL");
    cbd_status status = begin(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct list *it = find(stage, list, error);
    if (it != NULL)
        *count = it->count;
    end(stage);
    return it != NULL ? CBD_STATUS_OK : CBD_STATUS_NOT_FOUND;
}

/* With the lock held: the list, if [first, first+n) is of it. */
static struct list *part(cbd_stage *stage, uint64_t list, size_t first, size_t n, cbd_status *status, cbd_error *error)
{
    struct list *it = find(stage, list, error);
    *status = it == NULL ? CBD_STATUS_NOT_FOUND : CBD_STATUS_OK;
    if (it != NULL && (first > it->count || n > it->count - first)) {
        *status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%zu ids from place %zu on: list %llu has %zu", n, first,
                            (unsigned long long)list, it->count);
        it = NULL;
    }
    return it;
}

cbd_status cbd_list_get(cbd_stage *stage, uint64_t list, size_t first, size_t n, uint64_t *ids, cbd_error *error)
{
    if (n != 0 && ids == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "ids is NULL");
    cbd_status status = begin(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct list *it = part(stage, list, first, n, &status, error);
    if (it != NULL && n != 0)
        memcpy(ids, it->ids + first, n * sizeof *ids);
    end(stage);
    return status;
}

cbd_status cbd_list_slice(cbd_stage *stage, uint64_t list, size_t first, size_t n, uint64_t *slice, cbd_error *error)
{
    if (slice == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the place for the list is NULL");
    *slice = 0;
    cbd_status status = begin(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint64_t *ids = NULL;
    struct list *it = part(stage, list, first, n, &status, error);
    if (it != NULL && (ids = malloc(n * sizeof *ids + 1)) == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a list of %zu ids", n);
    else if (it != NULL)
        memcpy(ids, it->ids + first, n * sizeof *ids);
    end(stage);
    if (status == CBD_STATUS_OK)
        status = cbd_list_create(stage, ids, n, slice, error);
    free(ids);
    return status;
}

cbd_status cbd_query_from_list(cbd_stage *stage, uint64_t list, cbd_query **query, cbd_error *error)
{
    size_t n = 0;
    if (query == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "query: expected a place for the handle, got NULL");
    *query = NULL;
    cbd_status status = cbd_list_add_reference(stage, list, error); /* from here on the list stays */
    if (status == CBD_STATUS_OK)
        status = cbd_list_count(stage, list, &n, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint64_t *ids = malloc(n * sizeof *ids + 1);
    const char **texts = malloc(n * sizeof *texts + 1);
    size_t *lengths = malloc(n * sizeof *lengths + 1);
    if (ids == NULL || texts == NULL || lengths == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a query of %zu prims", n);
    if (status == CBD_STATUS_OK)
        status = cbd_list_get(stage, list, 0, n, ids, error);
    for (size_t i = 0; i < n && status == CBD_STATUS_OK; i++)
        status = cbd_resolve(stage, ids[i], &texts[i], &lengths[i], error);
    if (status == CBD_STATUS_OK)
        status = cbd_query_from_path_list(stage, texts, lengths, n, query, error);
    free(ids);
    free(texts);
    free(lengths);
    if (status == CBD_STATUS_OK)
        (*query)->list = list;
    else
        cbd_list_release(stage, list, NULL);
    return status;
}

/* ---- paths as sequences of tokens ------------------------------------------------------- */

cbd_status cbd_path_from_tokens(cbd_stage *stage, const uint64_t *tokens, size_t n, uint64_t *path, cbd_error *error)
{
    char text[CBD_PATH_BYTES_MAX + 1] = "/";
    size_t at = 0;
    if (path == NULL || (n != 0 && tokens == NULL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s is NULL", path == NULL ? "the place for the path" : "tokens");
    *path = 0;
    for (size_t i = 0; i < n; i++) {
        const char *token;
        size_t length;
        cbd_status status = cbd_resolve(stage, tokens[i], &token, &length, error);
        if (status != CBD_STATUS_OK)
            return status;
        if (length == 0 || memchr(token, '/', length) != NULL)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tokens[%zu], \"%.*s\", is no component of a path: it %s", i,
                             (int)(length > 80 ? 80 : length), token, length == 0 ? "is empty" : "holds \"/\"");
        if (length > CBD_PATH_BYTES_MAX - 1 - at)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the path of %zu tokens is longer than %u bytes", n, CBD_PATH_BYTES_MAX);
        text[at++] = '/';
        memcpy(text + at, token, length);
        at += length;
    }
    const char *whole = text;
    if (at == 0)
        at = 1; /* the root */
    return cbd_intern(stage, 1, &whole, &at, 1, path, error);
}

cbd_status cbd_path_tokens(cbd_stage *stage, uint64_t path, uint64_t *tokens, size_t room, size_t *count, cbd_error *error)
{
    const char *text, *texts[CBD_PATH_BYTES_MAX / 2 + 1];
    size_t length, lengths[CBD_PATH_BYTES_MAX / 2 + 1], n = 0;
    if (count == NULL || (room != 0 && tokens == NULL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s is NULL", count == NULL ? "count" : "tokens");
    cbd_status status = cbd_resolve(stage, path, &text, &length, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (length == 0 || text[0] != '/')
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "id %#llx is that of the token \"%.*s\", not of a path", (unsigned long long)path,
                         (int)(length > 80 ? 80 : length), text);
    for (size_t at = 1; at < length && n < sizeof texts / sizeof texts[0];) {
        const char *slash = memchr(text + at, '/', length - at);
        texts[n] = text + at;
        lengths[n] = slash != NULL ? (size_t)(slash - (text + at)) : length - at;
        at += lengths[n++] + 1;
    }
    if (n <= room)
        status = cbd_intern(stage, 0, texts, lengths, n, tokens, error);
    else if (room != 0)
        status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the path has %zu components, there is room for %zu", n, room);
    if (status == CBD_STATUS_OK)
        *count = n;
    return status;
}
