/* The commands of queries by filter, of lists and of paths as tokens. */
#include "driver.h"

enum { FILTERS_MAX = 64 };

/* "a,b,c" in place; how many. */
static size_t split(char *text, const char **to)
{
    size_t n = 0;
    for (char *part; text != NULL && n < LIST_MAX && (part = strsep(&text, ",")) != NULL;)
        to[n++] = part;
    return n;
}

static const struct {
    const char *word;
    uint32_t op;
} operators[] = {
    {"has", CBD_FILTER_HAS},       {"prefix", CBD_FILTER_PREFIX},     {"in", CBD_FILTER_IN},
    {"contains", CBD_FILTER_CONTAINS}, {"lt", CBD_FILTER_LESS},       {"le", CBD_FILTER_LESS_EQUAL},
    {"gt", CBD_FILTER_GREATER},    {"ge", CBD_FILTER_GREATER_EQUAL},
};

/* has:name prefix:/path in:/path,... op:name:value,... only:name,... raw:number:name:value,... */
static cbd_status filters(struct command *c, cbd_filter *filter)
{
    static cbd_predicate predicates[FILTERS_MAX];
    static const char *values[FILTERS_MAX][LIST_MAX], *only[LIST_MAX];
    size_t n = 0;
    memset(filter, 0, sizeof *filter);
    for (size_t i = 1; i < c->arg_count && n < FILTERS_MAX; i++) {
        char *rest = c->args[i], *op = strsep(&rest, ":");
        cbd_predicate *p = &predicates[n];
        memset(p, 0, sizeof *p);
        if (rest == NULL)
            return fail("no filter %s", op);
        if (strcmp(op, "only") == 0) {
            filter->attribute_count = split(rest, only);
            filter->attributes = only;
            filter->scoped = 1;
            continue;
        }
        if (strcmp(op, "raw") == 0)
            p->op = (uint32_t)strtoul(strsep(&rest, ":"), NULL, 10);
        for (size_t k = 0; k < sizeof operators / sizeof *operators; k++)
            if (strcmp(op, operators[k].word) == 0)
                p->op = operators[k].op;
        p->name = rest != NULL && rest[0] == '/' ? CBD_PATH_NAME : strsep(&rest, ":");
        p->values = values[n];
        p->value_count = split(rest, values[n]);
        n++;
    }
    filter->predicates = predicates;
    filter->predicate_count = n;
    filter->sealed = option(c, "sealed") != NULL;
    return CBD_STATUS_OK;
}

static cbd_status found(cbd_query *query, const char *result_name)
{
    const cbd_query_result *result;
    cbd_status status = cbd_query_get_result(query, &result, &error);
    if (status != CBD_STATUS_OK)
        return status;
    say(" size=%" PRIu64 " attributes=", result->query == query ? result->total : UINT64_MAX);
    for (size_t i = 0; i < result->attribute_count; i++) {
        say("%s", i == 0 ? "" : ",");
        say_quoted(result->attributes[i], strlen(result->attributes[i]));
    }
    say(" prims=");
    say_numbers(cbd_query_ids(query), cbd_query_size(query));
    if (result_name != NULL)
        keep(result_name, QUERY_RESULT, (void *)(uintptr_t)result);
    else
        cbd_query_result_release(result);
    return status;
}

cbd_status do_find(struct command *c)
{
    cbd_filter filter;
    cbd_query *query;
    int async = option(c, "async") != NULL;
    cbd_status status = filters(c, &filter);
    if (status == CBD_STATUS_OK)
        status = async ? cbd_query_submit(stage, &filter, &query, &error) : cbd_query_filter(stage, &filter, &query, &error);
    if (status != CBD_STATUS_OK)
        return status;
    keep(arg(c, 0), QUERY, query);
    if (!async)
        return found(query, option(c, "result"));
    say(" size=%" PRIu64, cbd_query_size(query));
    return status;
}

cbd_status do_await(struct command *c)
{
    cbd_query *query = get(arg(c, 0), QUERY);
    if (query == NULL)
        return CBD_STATUS_COUNT;
    where = "wait";
    cbd_status status = cbd_query_wait(query, option(c, "timeout") != NULL ? 0 : LIMIT_NS, &error);
    return status == CBD_STATUS_OK ? found(query, NULL) : status;
}

/* ---- lists: numbers, which are good for use after their end, too ------------------------- */

static struct {
    char name[32];
    uint64_t number;
} lists[HANDLES_MAX];

/* "none", and what is not known, is 0. */
static uint64_t *list_named(const char *name)
{
    static uint64_t none;
    for (size_t i = 0; i < HANDLES_MAX; i++)
        if (strcmp(lists[i].name, name) == 0)
            return &lists[i].number;
    none = 0;
    return &none;
}

static cbd_status keep_list(const char *name, uint64_t number)
{
    for (size_t i = 0; i < HANDLES_MAX; i++)
        if (lists[i].name[0] == 0 || strcmp(lists[i].name, name) == 0) {
            snprintf(lists[i].name, sizeof lists[i].name, "%s", name);
            lists[i].number = number;
            say(" number=%" PRIu64, number);
            return CBD_STATUS_OK;
        }
    return fail("too many lists to keep %s", name);
}

static size_t ids_of(const struct command *c, size_t from, uint64_t *ids)
{
    size_t n = 0;
    for (size_t i = from; i < c->arg_count && n < LIST_MAX; i++)
        ids[n++] = strtoull(c->args[i], NULL, 0);
    return n;
}

static uint64_t room[LIST_MAX];

cbd_status do_list(struct command *c)
{
    uint64_t number;
    cbd_status status = cbd_list_create(stage, room, ids_of(c, 1, room), &number, &error);
    return status == CBD_STATUS_OK ? keep_list(arg(c, 0), number) : status;
}

cbd_status do_listed(struct command *c)
{
    uint64_t number = *list_named(arg(c, 0));
    size_t count = 77;
    cbd_status status = cbd_list_count(stage, number, &count, &error);
    if (status != CBD_STATUS_OK)
        return count == 77 ? status : fail("a call that failed gave a count%s", "");
    status = cbd_list_get(stage, number, 0, count, room, &error);
    say(" number=%" PRIu64 " count=%zu ids=", number, count);
    say_numbers(room, count);
    return status;
}

cbd_status do_retain(struct command *c) { return cbd_list_add_reference(stage, *list_named(arg(c, 0)), &error); }

cbd_status do_unlist(struct command *c) { return cbd_list_release(stage, *list_named(arg(c, 0)), &error); }

cbd_status do_slice(struct command *c)
{
    uint64_t number;
    cbd_status status = cbd_list_slice(stage, *list_named(arg(c, 1)), number_of(c, "first"), number_of(c, "n"), &number, &error);
    return status == CBD_STATUS_OK ? keep_list(arg(c, 0), number) : status;
}

cbd_status do_querylist(struct command *c)
{
    cbd_query *query;
    cbd_status status = cbd_query_from_list(stage, *list_named(arg(c, 1)), &query, &error);
    if (status != CBD_STATUS_OK)
        return status;
    keep_query(arg(c, 0), query);
    return status;
}

cbd_status do_join(struct command *c)
{
    uint64_t path;
    cbd_status status = cbd_path_from_tokens(stage, room, ids_of(c, 0, room), &path, &error);
    if (status == CBD_STATUS_OK)
        say(" path=%" PRIu64, path);
    return status;
}

cbd_status do_split(struct command *c)
{
    size_t count = 0;
    cbd_status status = cbd_path_tokens(stage, strtoull(arg(c, 0), NULL, 0), room, LIST_MAX, &count, &error);
    say(" count=%zu tokens=", count);
    say_numbers(room, count);
    return status;
}
