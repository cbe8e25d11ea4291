/* Queries by filter. The broker finds the prims; this library numbers the query itself,
 * so that later ops may name it before it is made (behaviour 215). What was found is
 * fetched, in pages, by who waits for the query first.
 */
#include "client.h"
#include "python_support.h"

#include <stdlib.h>
#include <string.h>

static const char *const operators[] = {"?", "HAS", "IN", "PREFIX", "CONTAINS", "LT", "LE", "GT", "GE"};

/* Whether an attribute of the schema has the operator (behaviour 242). */
static bool knows(const cbd_schema *s, uint32_t operator)
{
    uint64_t elements = 1;
    bool tokens = s->semantic == CBD_SEMANTIC_TOKEN_ID;
    for (uint32_t i = 0; i < s->row_ndim; i++)
        elements *= s->row_shape[i];
    if (operator == CBD_FILTER_CONTAINS)
        return tokens;
    return s->kind == CBD_KIND_FIXED && s->lanes == 1 && elements == 1 &&
           (tokens || s->code == CBD_DTYPE_INT || s->code == CBD_DTYPE_UINT || (s->code == CBD_DTYPE_FLOAT && s->bits <= 64));
}

static cbd_status check_columns(cbd_stage *stage, const cbd_predicate *p, cbd_error *error)
{
    bool any = false, one = false;
    pthread_mutex_lock(&stage->cache_lock);
    cbd_status status = cbdi_columns_refresh(stage, error);
    for (struct column *c = NULL; status == CBD_STATUS_OK && (c = cbdi_column_named(stage, p->name, strlen(p->name), c)) != NULL;) {
        any = true;
        one = one || knows(&c->schema, p->op);
    }
    pthread_mutex_unlock(&stage->cache_lock);
    if (status == CBD_STATUS_OK && any && !one)
        status = cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                           "%s on attribute \"%.200s\" is not supported: LT, LE, GT, GE and IN work on one number or token per prim, "
                           "CONTAINS on tokens", operators[p->op], p->name);
    return status;
}

static cbd_status check_predicate(cbd_stage *stage, const cbd_predicate *p, cbd_error *error)
{
    size_t length, least = 1, most = 1;
    if (p->op < CBD_FILTER_HAS || p->op > CBD_FILTER_GREATER_EQUAL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "filter operator is %u: expected %u (HAS) to %u (GE)", p->op,
                         CBD_FILTER_HAS, CBD_FILTER_GREATER_EQUAL);
    bool path = p->name != NULL && strcmp(p->name, CBD_PATH_NAME) == 0;
    bool on_paths = p->op == CBD_FILTER_IN || p->op == CBD_FILTER_PREFIX;
    cbd_status status = path ? CBD_STATUS_OK : cbdi_name_check(p->name, false, &length, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (path != on_paths && (path || p->op == CBD_FILTER_PREFIX))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "%s on \"%.200s\" is not supported: paths have IN and PREFIX, attributes HAS, IN, CONTAINS, LT, LE, GT and GE",
                         operators[p->op], p->name);
    if (p->op == CBD_FILTER_HAS)
        least = most = 0;
    else if (p->op == CBD_FILTER_IN || p->op == CBD_FILTER_CONTAINS)
        most = CBD_FILTER_VALUES_MAX;
    if (p->value_count < least || p->value_count > most || (p->value_count != 0 && p->values == NULL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s on \"%.200s\" has %zu values%s: expected %zu to %zu", operators[p->op],
                         p->name, p->value_count, p->value_count != 0 && p->values == NULL ? " at NULL" : "", least, most);
    for (size_t i = 0; i < p->value_count && status == CBD_STATUS_OK; i++) {
        if (p->values[i] == NULL)
            status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%s on \"%.200s\": value %zu is NULL", operators[p->op], p->name, i);
        else if (path && p->op == CBD_FILTER_IN)
            status = cbdi_string_check(p->values[i], strlen(p->values[i]), i, true, error);
        else
            status = cbdi_utf8_check("a value of a filter", p->values[i], strlen(p->values[i]), error);
    }
    if (status == CBD_STATUS_OK && !path && p->op != CBD_FILTER_HAS)
        status = check_columns(stage, p, error);
    return status;
}

static cbd_status check_filter(cbd_stage *stage, const cbd_filter *f, cbd_error *error)
{
    if (f->predicate_count > CBD_FILTER_PREDICATES_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "a filter of %zu predicates: at most %u", f->predicate_count,
                         CBD_FILTER_PREDICATES_MAX);
    if (f->predicate_count != 0 && f->predicates == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "predicates is NULL with predicate_count = %zu", f->predicate_count);
    cbd_status status = cbdi_names_check(f->attributes, f->attribute_count, true, error);
    for (size_t i = 0; i < f->predicate_count && status == CBD_STATUS_OK; i++)
        status = check_predicate(stage, &f->predicates[i], error);
    return status;
}

static uint64_t round4(uint64_t bytes) { return (bytes + 3) & ~UINT64_C(3); }

static bool scoped(const cbd_filter *f) { return f->scoped || f->attribute_count != 0; }

static uint64_t filter_bytes(const cbd_filter *f)
{
    uint64_t bytes = sizeof(cbd_abi_filter_arguments) + f->predicate_count * sizeof(cbd_abi_filter_predicate);
    for (size_t i = 0; i < f->predicate_count; i++)
        bytes += round4(strlen(f->predicates[i].name)) + cbdi_string_list_bytes(f->predicates[i].values, NULL, f->predicates[i].value_count);
    return bytes + (scoped(f) ? cbdi_string_list_bytes(f->attributes, NULL, f->attribute_count) : 0);
}

/* The arguments; their bytes are zero already. */
static void filter_put(uint8_t *to, const cbd_filter *f)
{
    cbd_abi_filter_arguments head = {.predicate_count = (uint32_t)f->predicate_count, .flags = f->sealed ? CBD_FILTER_SEALED : 0};
    uint64_t at = sizeof head + f->predicate_count * sizeof(cbd_abi_filter_predicate);
    for (size_t i = 0; i < f->predicate_count; i++) {
        const cbd_predicate *p = &f->predicates[i];
        uint32_t length = (uint32_t)strlen(p->name);
        cbd_abi_filter_predicate entry = {.relation = p->op, .name_bytes = length, .name_offset_bytes = (uint32_t)at};
        memcpy(to + at, p->name, length);
        at += round4(length);
        if (p->value_count != 0) {
            entry.values_offset_bytes = (uint32_t)at;
            cbdi_string_list_put(to + at, p->values, NULL, p->value_count);
            at += cbdi_string_list_bytes(p->values, NULL, p->value_count);
        }
        memcpy(to + sizeof head + i * sizeof entry, &entry, sizeof entry);
    }
    if (scoped(f)) {
        head.attributes_offset_bytes = (uint32_t)at;
        cbdi_string_list_put(to + at, f->attributes, NULL, f->attribute_count);
    }
    memcpy(to, &head, sizeof head);
}

static cbd_status submit(cbd_stage *stage, const cbd_filter *filter, bool waits, cbd_query **out, cbd_error *error)
{
    static const cbd_filter everything;
    const cbd_filter *f = filter != NULL ? filter : &everything;
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "query: expected a place for the handle, got NULL");
    *out = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (!(stage->features & CBD_FEATURE_FILTER))
        status = cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "queries by filter are not part of this broker's version");
    if (status == CBD_STATUS_OK)
        status = check_filter(stage, f, error);
    cbd_query *query = NULL;
    if (status == CBD_STATUS_OK) {
        status = cbdi_query_new(stage, &query, error);
        struct submission s = {.waits = waits, .opcode = CBD_OP_QUERY_FILTER};
        if (status == CBD_STATUS_OK)
            status = cbdi_submit_begin(stage, &s, filter_bytes(f), 0, error);
        if (status == CBD_STATUS_OK) {
            s.handle = CBD_CLIENT_HANDLE | (atomic_fetch_add(&stage->last_query, 1) + 1);
            filter_put(s.arguments, f);
            query->handle = s.handle;
            query->life = atomic_load(&stage->ring.life);
            atomic_store(&query->running, 1);
            cbdi_submit_commit(stage, &s, &query->op);
        }
    }
    cbdi_leave(stage);
    if (status != CBD_STATUS_OK) {
        cbd_query_release(query);
        return status;
    }
    *out = query;
    return CBD_STATUS_OK;
}

cbd_status cbd_query_submit(cbd_stage *stage, const cbd_filter *filter, cbd_query **out, cbd_error *error)
{
    return submit(stage, filter, false, out, error);
}

/* All ids of a list of the query's, page by page; *ids is the caller's to free. */
static cbd_status fetch(cbd_query *query, uint32_t opcode, uint64_t **ids, uint64_t *count, cbd_error *error)
{
    cbd_stage *stage = query->stage;
    uint64_t room = stage->ring.results.size_bytes / 4 / sizeof **ids, done = 0;
    if (room > CBD_QUERY_PAGE_MAX)
        room = CBD_QUERY_PAGE_MAX;
    *ids = NULL;
    for (;;) {
        uint64_t *more = realloc(*ids, (done + room) * sizeof **ids);
        if (more == NULL)
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for more than %llu ids of a query", (unsigned long long)done);
        *ids = more;
        struct submission s = {.waits = true, .opcode = opcode, .query = query, .value = done, .into = more + done,
                               .into_bytes = (uint32_t)(room * sizeof **ids)};
        cbd_op_result result;
        cbd_op *op;
        uint32_t got;
        cbd_status status = cbdi_submit_begin(stage, &s, 0, room * sizeof **ids, error);
        if (status != CBD_STATUS_OK)
            return status;
        cbdi_submit_commit(stage, &s, &op);
        status = cbdi_op_finish(op, &result, NULL, &got, error);
        if (status != CBD_STATUS_OK)
            return status;
        done += got / sizeof **ids;
        *count = result.count;
        if (done == result.count)
            return CBD_STATUS_OK;
        if (got == 0 || done > result.count)
            return cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker listed %llu of %llu ids of a query", (unsigned long long)done,
                             (unsigned long long)result.count);
    }
}

/* The names of attributes, one after the other, each terminated; *names is the caller's to free. */
static cbd_status names_of(cbd_stage *stage, const uint64_t *ids, uint64_t n, char **names, cbd_error *error)
{
    uint64_t bytes = 0;
    *names = NULL;
    for (int put = 0; put < 2; put++) {
        if (put != 0 && (*names = malloc(bytes + 1)) == NULL)
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the names of %llu attributes", (unsigned long long)n);
        bytes = 0;
        for (uint64_t i = 0; i < n; i++) {
            const char *text;
            uint32_t length;
            pthread_mutex_lock(&stage->cache_lock);
            cbd_status status = cbdi_string(stage, ids[i], &text, &length, error);
            pthread_mutex_unlock(&stage->cache_lock);
            if (status != CBD_STATUS_OK)
                return status;
            if (put != 0) {
                memcpy(*names + bytes, text, length);
                (*names)[bytes + length] = 0;
            }
            bytes += length + 1;
        }
    }
    return CBD_STATUS_OK;
}

cbd_status cbd_query_wait(cbd_query *query, uint64_t timeout_ns, cbd_error *error)
{
    if (query == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "query is NULL");
    if (!atomic_load(&query->running))
        return CBD_STATUS_OK;
    cbd_stage *stage = query->stage;
    cbd_status status = cbd_op_wait(query->op, timeout_ns, NULL, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    /* Two threads may fetch at the same time; the first one's counts. */
    uint64_t *ids = NULL, *name_ids = NULL, count, name_count;
    char *names = NULL;
    status = fetch(query, CBD_OP_QUERY_ATTRIBUTES, &name_ids, &name_count, error);
    if (status == CBD_STATUS_OK)
        status = names_of(stage, name_ids, name_count, &names, error);
    if (status == CBD_STATUS_OK)
        status = fetch(query, CBD_OP_QUERY_PRIMS, &ids, &count, error);
    if (status == CBD_STATUS_OK) {
        pthread_mutex_lock(&stage->cache_lock); /* row maps are made with it held */
        if (atomic_load(&query->running)) {
            query->ids = ids;
            query->attributes = names;
            query->attribute_count = name_count;
            atomic_store(&query->count, count);
            atomic_store(&query->running, 0);
            ids = NULL;
            names = NULL;
        }
        pthread_mutex_unlock(&stage->cache_lock);
    }
    cbdi_leave(stage);
    free(ids);
    free(name_ids);
    free(names);
    return status;
}

cbd_status cbdi_query_settle(cbd_query *query, cbd_error *error)
{
    cbd_status status;
    do
        status = cbd_query_wait(query, WAIT_TURN_NS, error);
    while (status == CBD_STATUS_TIMEOUT && !cbdi_interrupted());
    return status;
}

cbd_status cbd_query_filter(cbd_stage *stage, const cbd_filter *filter, cbd_query **out, cbd_error *error)
{
    cbd_query *query;
    cbd_status status = submit(stage, filter, true, &query, error);
    if (out != NULL)
        *out = NULL;
    if (status == CBD_STATUS_OK && (status = cbdi_query_settle(query, error)) != CBD_STATUS_OK)
        cbd_query_release(query);
    else if (status == CBD_STATUS_OK)
        *out = query;
    return status;
}

cbd_status cbd_query_get_result(cbd_query *query, const cbd_query_result **out, cbd_error *error)
{
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "result: expected a place for it, got NULL");
    *out = NULL;
    cbd_status status = cbd_query_wait(query, 0, error);
    if (status != CBD_STATUS_OK)
        return status;
    size_t n = query->attribute_count, bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += strlen(query->attributes + bytes) + 1;
    cbd_query_result *result = calloc(1, sizeof *result + n * sizeof(char *) + bytes + 1);
    if (result == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the names of %zu attributes", n);
    const char **names = (const char **)(result + 1);
    char *at = (char *)(names + n);
    if (bytes != 0)
        memcpy(at, query->attributes, bytes);
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
        names[i] = at;
    *result = (cbd_query_result){.query = query, .total = query->count, .attributes = names, .attribute_count = n};
    *out = result;
    return CBD_STATUS_OK;
}

void cbd_query_result_release(const cbd_query_result *result) { free((void *)(uintptr_t)result); }
