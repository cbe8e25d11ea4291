/* Queries: lists of prims behind a handle of the broker's; and interning. Long
 * lists travel in pieces that take a quarter of the channel's areas, so that other
 * threads' ops find room beside them.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

static size_t length_of(const char *const *texts, const size_t *lengths, size_t i)
{
    return lengths != NULL ? lengths[i] : strlen(texts[i]);
}

uint64_t cbdi_string_list_bytes(const char *const *texts, const size_t *lengths, size_t n)
{
    uint64_t bytes = sizeof(cbd_abi_string_list);
    for (size_t i = 0; i < n; i++)
        bytes += sizeof(uint32_t) + (((uint64_t)length_of(texts, lengths, i) + 3) & ~UINT64_C(3));
    return bytes;
}

void cbdi_string_list_put(uint8_t *to, const char *const *texts, const size_t *lengths, size_t n)
{
    cbd_abi_string_list list = {(uint32_t)n, (uint32_t)cbdi_string_list_bytes(texts, lengths, n)};
    memcpy(to, &list, sizeof list);
    to += sizeof list;
    for (size_t i = 0; i < n; i++) {
        uint32_t length = (uint32_t)length_of(texts, lengths, i);
        memcpy(to, &length, sizeof length);
        memcpy(to + sizeof length, texts[i], length); /* the padding is zero already */
        to += sizeof length + ((length + 3) & ~3u);
    }
}

static cbd_status check_texts(const char *const *texts, const size_t *lengths, size_t n, bool paths, cbd_error *error)
{
    const char *what = paths ? "path" : "token";
    if (n != 0 && texts == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%ss is NULL with n = %zu", what, n);
    if (n >= UINT32_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "n is %zu, the most are %u", n, UINT32_MAX - 1);
    for (size_t i = 0; i < n; i++) {
        size_t length = texts[i] == NULL ? 0 : length_of(texts, lengths, i);
        cbd_status status = cbdi_string_check(texts[i], length, i, paths, error);
        if (status != CBD_STATUS_OK)
            return status;
    }
    return CBD_STATUS_OK;
}

/* Sends the list in pieces; ids gets an id for each, *handle is the query, in this life. */
static cbd_status send_pieces(cbd_stage *stage, uint32_t opcode, uint64_t value, const char *const *texts,
                              const size_t *lengths, size_t n, uint64_t *ids, uint64_t life, uint64_t *handle, cbd_error *error)
{
    uint64_t argument_room = stage->ring.arguments.size_bytes / 4, result_room = stage->ring.results.size_bytes / 4;
    size_t done = 0;
    *handle = 0;
    do {
        uint64_t bytes = sizeof(cbd_abi_string_list);
        size_t take = 0;
        while (done + take < n && (take + 1) * sizeof *ids <= result_room) {
            uint64_t more = sizeof(uint32_t) + (((uint64_t)length_of(texts, lengths, done + take) + 3) & ~UINT64_C(3));
            if (take != 0 && bytes + more > argument_room)
                break;
            bytes += more;
            take++;
        }
        const char *const *piece = texts + done; /* not evaluated where n is 0 and texts NULL */
        const size_t *piece_lengths = lengths != NULL ? lengths + done : NULL;
        struct submission s = {.waits = true, .opcode = opcode, .handle = *handle, .life = life, .value = value, .into = ids + done,
                               .into_bytes = (uint32_t)(take * sizeof *ids)};
        cbd_op_result result;
        cbd_op *op;
        uint32_t got;
        cbd_status status = cbdi_submit_begin(stage, &s, bytes, take * sizeof *ids, error);
        if (status != CBD_STATUS_OK)
            return status;
        cbdi_string_list_put(s.arguments, piece, piece_lengths, take);
        cbdi_submit_commit(stage, &s, &op);
        status = cbdi_op_finish(op, &result, handle, &got, error);
        if (status != CBD_STATUS_OK)
            return status;
        done += take;
        if (got != take * sizeof *ids || (opcode == CBD_OP_QUERY_PATHS && result.count != done))
            return cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker answered %u bytes of ids and a count of %llu for %zu of %zu strings",
                             got, (unsigned long long)result.count, take, done);
    } while (done < n);
    return CBD_STATUS_OK;
}

/* As send_pieces, through any restart of the broker: a list that was sent in part is sent again. */
static cbd_status send_list(cbd_stage *stage, uint32_t opcode, uint64_t value, const char *const *texts,
                            const size_t *lengths, size_t n, uint64_t *ids, uint64_t *life, uint64_t *handle, cbd_error *error)
{
    cbd_status status;
    do {
        status = cbdi_reattach_wait(stage, false, error);
        if (status != CBD_STATUS_OK)
            return status;
        *life = atomic_load(&stage->ring.life);
        status = send_pieces(stage, opcode, value, texts, lengths, n, ids, *life, handle, error);
    } while (status == CBD_STATUS_BROKER_RESTARTED);
    return status;
}

cbd_status cbdi_query_new(cbd_stage *stage, cbd_query **out, cbd_error *error)
{
    cbd_query *query = calloc(1, sizeof *query);
    if (query == NULL || (query->release = calloc(1, sizeof *query->release)) == NULL) {
        free(query);
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a query");
    }
    atomic_store(&query->refs, 1);
    query->stage = stage;
    cbdi_stage_retain(stage);
    atomic_fetch_add(&stage->queries, 1);
    atomic_fetch_add(&stage->queries_kept, 1);
    *out = query;
    return CBD_STATUS_OK;
}

cbd_status cbd_query_from_path_list(cbd_stage *stage, const char *const *paths, const size_t *lengths, size_t n,
                                    cbd_query **out, cbd_error *error)
{
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "query: expected a place for the handle, got NULL");
    *out = NULL;
    cbd_status status = check_texts(paths, lengths, n, true, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    static const char *const none[1];
    cbd_query *query = NULL;
    status = cbdi_query_new(stage, &query, error);
    if (status == CBD_STATUS_OK && (query->ids = malloc((n + 1) * sizeof *query->ids)) == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a query of %zu prims", n);
    if (status == CBD_STATUS_OK) {
        status = send_list(stage, CBD_OP_QUERY_PATHS, 0, n ? paths : none, lengths, n, query->ids, &query->life, &query->handle, error);
        atomic_store(&query->count, n);
    }
    cbdi_leave(stage);
    if (status != CBD_STATUS_OK) {
        cbd_query_release(query);
        return status;
    }
    *out = query;
    return CBD_STATUS_OK;
}

/* The texts of a query's prims, which no restart takes away (L3); NULL without memory, or an error. */
static const char **texts_of(cbd_query *query, size_t *lengths, cbd_error *error)
{
    cbd_stage *stage = query->stage;
    const char **texts = malloc((query->count + 1) * sizeof *texts);
    cbd_status status = texts != NULL ? CBD_STATUS_OK
                                      : cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu paths", (unsigned long long)query->count);
    pthread_mutex_lock(&stage->cache_lock);
    for (uint64_t i = 0; i < query->count && status == CBD_STATUS_OK; i++) {
        uint32_t length;
        status = cbdi_string(stage, query->ids[i], &texts[i], &length, error);
        lengths[i] = length;
    }
    pthread_mutex_unlock(&stage->cache_lock);
    if (status == CBD_STATUS_OK)
        return texts;
    free(texts);
    return NULL;
}

cbd_status cbdi_query_renew(cbd_query *query, cbd_error *error)
{
    cbd_stage *stage = query->stage;
    if (atomic_load(&query->running)) /* what it has found is not known here */
        return cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED,
                         "the broker restarted before what this query found was fetched; make it again");
    size_t *lengths = malloc((query->count + 1) * sizeof *lengths);
    uint64_t *ids = malloc((query->count + 1) * sizeof *ids), handle = 0, life = 0;
    struct deferred *spare = calloc(1, sizeof *spare);
    cbd_error why = {CBD_STATUS_OUT_OF_MEMORY, "no memory to register a query again"};
    const char **texts = lengths != NULL && ids != NULL && spare != NULL ? texts_of(query, lengths, &why) : NULL;
    cbd_status status = texts == NULL ? why.status
                                      : send_list(stage, CBD_OP_QUERY_PATHS, 0, texts, lengths, query->count, ids, &life, &handle, &why);
    if (status == CBD_STATUS_OK && memcmp(ids, query->ids, query->count * sizeof *ids) != 0)
        status = cbdi_fail(&why, CBD_STATUS_INTERNAL, "the broker restarted and has other ids for the %llu paths of a query",
                           (unsigned long long)query->count);
    if (status == CBD_STATUS_OK) {
        pthread_mutex_lock(&stage->ring.lock);
        if (query->life < life) {
            query->handle = handle;
            query->life = life;
            handle = 0;
        }
        pthread_mutex_unlock(&stage->ring.lock);
    }
    if (handle != 0) { /* another thread was faster, or it is of no use */
        *spare = (struct deferred){.opcode = CBD_OP_QUERY_RELEASE, .handle = handle, .life = life};
        cbdi_defer(stage, spare);
        spare = NULL;
    }
    free(spare);
    free(texts);
    free(ids);
    free(lengths);
    return status == CBD_STATUS_OK ? status : cbdi_fail(error, status, "%s", why.text);
}

cbd_query *cbdi_query_retain(cbd_query *query)
{
    atomic_fetch_add(&query->refs, 1);
    return query;
}

void cbd_query_release(cbd_query *query)
{
    if (query != NULL)
        atomic_fetch_sub(&query->stage->queries, 1);
    cbdi_query_drop(query);
}

void cbdi_query_drop(cbd_query *query)
{
    if (query == NULL || atomic_fetch_sub(&query->refs, 1) != 1)
        return;
    cbd_stage *stage = query->stage;
    if (query->release != NULL && query->handle != 0) {
        query->release->opcode = CBD_OP_QUERY_RELEASE;
        query->release->handle = query->handle;
        query->release->life = query->life;
        cbdi_defer(stage, query->release);
    } else {
        free(query->release);
    }
    for (int i = 0; i < ROW_MAPS_KEPT; i++)
        cbdi_row_map_release(query->maps[i]);
    cbd_op_release(query->op);
    if (query->list != 0)
        cbd_list_release(stage, query->list, NULL);
    free(query->attributes);
    free(query->table);
    free(query->ids);
    free(query);
    atomic_fetch_sub(&stage->queries_kept, 1);
    cbdi_stage_drop(stage);
}

cbd_status cbd_root_query(cbd_stage *stage, cbd_query **out, cbd_error *error)
{
    static const char *const root[1] = {"/"};
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "query: expected a place for the handle, got NULL");
    *out = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_mutex_lock(&stage->cache_lock);
    cbd_query *query = stage->root ? cbdi_query_retain(stage->root) : NULL;
    pthread_mutex_unlock(&stage->cache_lock);
    if (query != NULL)
        atomic_fetch_add(&stage->queries, 1);
    if (query == NULL && (status = cbd_query_from_path_list(stage, root, NULL, 1, &query, error)) == CBD_STATUS_OK) {
        pthread_mutex_lock(&stage->cache_lock);
        if (stage->root == NULL && !atomic_load(&stage->closed))
            stage->root = cbdi_query_retain(query); /* else another thread was faster: ours goes when released */
        pthread_mutex_unlock(&stage->cache_lock);
    }
    cbdi_leave(stage);
    *out = query;
    return status;
}

uint64_t cbd_query_size(const cbd_query *query) { return query == NULL ? 0 : atomic_load(&((cbd_query *)(uintptr_t)query)->count); }

const uint64_t *cbd_query_ids(const cbd_query *query) { return query == NULL ? NULL : query->ids; }

cbd_status cbdi_query_check(cbd_stage *stage, const cbd_query *query, cbd_error *error)
{
    if (query == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "query is NULL");
    if (query->stage != stage)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "the query belongs to another connection; queries are not shared");
    return CBD_STATUS_OK;
}

cbd_status cbd_intern(cbd_stage *stage, int paths, const char *const *texts, const size_t *lengths, size_t n,
                      uint64_t *ids, cbd_error *error)
{
    uint64_t life, handle;
    cbd_status status = check_texts(texts, lengths, n, paths != 0, error);
    if (status != CBD_STATUS_OK || n == 0)
        return status;
    if (ids == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "ids is NULL");
    memset(ids, 0, n * sizeof *ids);
    status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = send_list(stage, CBD_OP_INTERN, paths ? CBD_STRING_PATH : CBD_STRING_TOKEN, texts, lengths, n, ids, &life,
                       &handle, error);
    cbdi_leave(stage);
    return status;
}
