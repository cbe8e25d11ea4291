/* Makes the calls of conformance scenarios with the C client: one command per line
 * on standard input, one answer per line on standard output. See package
 * conformance.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

/* ---- the line ------------------------------------------------------------ */

static char *answer; /* what is said so far */
static size_t answer_bytes, answer_room;
cbd_error error;
const char *where; /* "call", "wait" or "fetch" */

void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int need = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (answer_bytes + (size_t)need + 1 > answer_room) {
        answer_room = 2 * (answer_bytes + (size_t)need + 1);
        answer = realloc(answer, answer_room);
        if (answer == NULL)
            abort();
    }
    va_start(list, format);
    vsnprintf(answer + answer_bytes, answer_room - answer_bytes, format, list);
    va_end(list);
    answer_bytes += (size_t)need;
}

void say_quoted(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        say(strchr("% ,;=\n", text[i]) != NULL ? "%%%02X" : "%c", (unsigned char)text[i]);
}

static void say_hex(const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        say("%02x", ((const uint8_t *)data)[i]);
}

void say_numbers(const uint64_t *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        say("%s%" PRIu64, i == 0 ? "" : ",", numbers[i]);
}

static char *decode(char *word)
{
    char *to = word;
    if (strcmp(word, "%") == 0) /* alone: the empty text */
        *word = 0;
    for (char *from = word; *from != 0; from++) {
        unsigned byte;
        if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1) {
            *to++ = (char)byte;
            from += 2;
        } else
            *to++ = *from;
    }
    *to = 0;
    return word;
}

/* The first words of a line, up to " / " in a batch; *more is what comes behind. */
static struct command *parse(char *line, struct command *c, char **more)
{
    char *rest = line, *word;
    memset(c, 0, sizeof *c);
    c->verb = "";
    for (int i = 0; (word = strsep(&rest, " \n")) != NULL;) {
        if (*word == 0)
            continue;
        if (i++ == 0)
            c->verb = word;
        else if (strcmp(word, "/") == 0 && strcmp(c->verb, "batch") == 0)
            break;
        else if (strchr(word, '=') != NULL && c->option_count < WORDS_MAX)
            c->options[c->option_count++] = word;
        else if (c->arg_count < WORDS_MAX)
            c->args[c->arg_count++] = decode(word);
    }
    *more = rest;
    return c;
}

const char *option(const struct command *c, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < c->option_count; i++)
        if (strncmp(c->options[i], key, length) == 0 && c->options[i][length] == '=')
            return c->options[i] + length + 1;
    return NULL;
}

uint64_t number_of(const struct command *c, const char *key)
{
    const char *text = option(c, key);
    return text != NULL ? strtoull(text, NULL, 0) : 0;
}

/* "1,2,3"; returns how many. */
static size_t numbers(const char *text, int64_t *to)
{
    size_t n = 0;
    char *end;
    while (text != NULL && *text != 0 && n < LIST_MAX) {
        errno = 0;
        long long value = strtoll(text, &end, 0);
        to[n++] = errno == ERANGE ? (int64_t)strtoull(text, &end, 0) : value;
        text = *end == ',' ? end + 1 : "";
    }
    return n;
}

const char *arg(const struct command *c, size_t i) { return i < c->arg_count ? c->args[i] : ""; }

/* ---- handles -------------------------------------------------------------- */

static char *more; /* of the line: the entries of a batch */
static struct handle {
    enum sort sort;
    char name[32];
    void *it;
} handles[HANDLES_MAX];
static cbd_cursor *cursors[64]; /* of the snapshots that the scenario took */
static size_t cursor_count;
cbd_stage *stage;
static char absent[200]; /* why the client has no such call */

cbd_status fail(const char *format, const char *what)
{
    error.status = CBD_STATUS_COUNT; /* no kind of the client's */
    snprintf(error.text, sizeof error.text, format, what);
    return error.status;
}

static cbd_status no_call(const char *why)
{
    snprintf(absent, sizeof absent, "%s", why);
    return CBD_STATUS_COUNT;
}

static struct handle *find(const char *name)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        if (handles[i].sort != FREE && strcmp(handles[i].name, name) == 0)
            return &handles[i];
    return NULL;
}

static void release(struct handle *h)
{
    switch (h->sort) {
    case QUERY: cbd_query_release(h->it); break;
    case OP: cbd_op_release(h->it); break;
    case SESSION: cbd_session_release(h->it); break;
    case CLAIM: cbd_session_release(((cbd_group *)h->it)->session); break;
    case READ_GROUP: cbd_release_group(h->it); break;
    case SNAPSHOT: cbd_snapshot_release(h->it); break;
    case QUERY_RESULT: cbd_query_result_release(h->it); break;
    default: break;
    }
    h->sort = GONE;
    h->it = NULL;
}

void keep(const char *name, enum sort sort, void *it)
{
    struct handle *h = find(name);
    if (h != NULL)
        release(h);
    for (int i = 0; h == NULL && i < HANDLES_MAX; i++)
        if (handles[i].sort == FREE)
            h = &handles[i];
    if (h == NULL)
        abort();
    h->sort = sort;
    h->it = it;
    snprintf(h->name, sizeof h->name, "%s", name);
}

/* The handle, or NULL after saying why. */
void *get(const char *name, enum sort sort)
{
    struct handle *h = find(name);
    if (h == NULL || (h->sort != sort && h->sort != GONE && !(sort == GROUP && h->sort == CLAIM)))
        fail("no handle of this sort is named %s", name);
    else if (h->sort == GONE)
        no_call("in C a handle that was given back is freed memory and must not be used");
    else
        return h->it;
    return NULL;
}

/* ---- the log ---------------------------------------------------------------- */

static struct {
    pthread_mutex_t mutex;
    _Atomic int hold;
    int inside, overlapped, count;
    uint32_t severity;
    uint64_t time_ns;
    char text[512];
} heard = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void hear(void *context, uint32_t severity, uint64_t time_ns, const char *text)
{
    (void)context;
    pthread_mutex_lock(&heard.mutex);
    heard.overlapped |= heard.inside++ > 0;
    pthread_mutex_unlock(&heard.mutex);
    while (heard.hold)
        usleep(1000);
    pthread_mutex_lock(&heard.mutex);
    heard.inside--;
    heard.count++;
    heard.severity = severity;
    heard.time_ns = time_ns;
    snprintf(heard.text, sizeof heard.text, "%s", text);
    pthread_mutex_unlock(&heard.mutex);
}

static cbd_status do_log(struct command *c)
{
    static const char *const levels[] = {"debug", "info", "warning", "error", "none"};
    const char *verb = arg(c, 0);
    if (strcmp(verb, "install") == 0) {
        uint32_t level = 0;
        while (level < CBD_LOG_NONE && strcmp(levels[level], arg(c, 1)) != 0)
            level++;
        return cbd_log_install(hear, NULL, level, arg(c, 2), &error);
    }
    if (strcmp(verb, "remove") == 0)
        return cbd_log_remove(&error);
    if (strcmp(verb, "flush") == 0) {
        cbd_status status = cbd_log_flush((uint64_t)(atof(arg(c, 1)) * 1e9), &error);
        say(" flushed=%s", status == CBD_STATUS_OK ? "true" : "false");
        return status == CBD_STATUS_TIMEOUT ? CBD_STATUS_OK : status;
    }
    if (strcmp(verb, "heard") != 0) {
        heard.hold = strcmp(verb, "hold") == 0;
        return CBD_STATUS_OK;
    }
    pthread_mutex_lock(&heard.mutex); /* since the last time */
    say(" count=%d overlapped=%s", heard.count, heard.overlapped ? "true" : "false");
    if (heard.count != 0) {
        say(" severity=%u time=%" PRIu64 " text=", heard.severity, heard.time_ns);
        say_quoted(heard.text, strlen(heard.text));
    }
    heard.count = 0;
    pthread_mutex_unlock(&heard.mutex);
    return CBD_STATUS_OK;
}

static cbd_status do_idle(struct command *c)
{
    (void)c;
    return cbd_stage_close_if_idle(stage, &error);
}

static cbd_status do_reset(struct command *c)
{
    (void)c;
    heard.hold = 0;
    cbd_log_remove(NULL);
    for (int i = 0; i < HANDLES_MAX; i++) {
        release(&handles[i]);
        handles[i].sort = FREE;
    }
    while (cursor_count != 0)
        cbd_cursor_release(cursors[--cursor_count]);
    cbd_stage_release(stage);
    stage = NULL;
    return CBD_STATUS_OK;
}

/* ---- values --------------------------------------------------------------- */

struct payload {
    cbd_tensor tensors[LIST_MAX];
    cbd_write_options options;
    int64_t shapes[LIST_MAX], strides[LIST_MAX];
    uint32_t map[LIST_MAX];
    uint64_t mask[LIST_MAX];
    uint8_t *data;
};

static void read_type(const char *text, uint8_t *code, uint8_t *bits, uint16_t *lanes)
{
    unsigned c = 0, b = 0, l = 0;
    if (text != NULL)
        sscanf(text, "%u:%u:%u", &c, &b, &l);
    *code = (uint8_t)c;
    *bits = (uint8_t)b;
    *lanes = (uint16_t)l;
}

static uint32_t read_row_shape(const struct command *c, uint64_t *to)
{
    static int64_t list[LIST_MAX];
    size_t n = numbers(option(c, "row_shape"), list);
    for (size_t i = 0; i < n && i < CBD_ROW_NDIM_MAX; i++)
        to[i] = (uint64_t)list[i];
    return (uint32_t)n;
}

static size_t unhex(const char *text, uint8_t *to)
{
    size_t n = 0;
    unsigned byte;
    while (text != NULL && sscanf(text + 2 * n, "%2x", &byte) == 1)
        to[n++] = (uint8_t)byte;
    return n;
}

static const char *behind(const char *text) /* the next ";" */
{
    text = text != NULL ? strchr(text, ';') : NULL;
    return text != NULL ? text + 1 : NULL;
}

/* Reads tensors and options; p->data is to be freed. */
static cbd_status read_payload(const struct command *c, struct payload *p)
{
    static int64_t list[LIST_MAX];
    memset(p, 0, sizeof *p);
    p->options = cbd_write_options_default();
    const char *data = option(c, "data"), *shape = option(c, "shape"), *type = option(c, "type"), *device = option(c, "device");
    p->data = malloc(data != NULL ? strlen(data) / 2 + 1 : 1);
    uint8_t *to = p->data;
    int64_t *shapes = p->shapes;
    size_t n = 0;
    do { /* one tensor, or several between ";" */
        cbd_tensor *t = &p->tensors[n++];
        t->data = to + number_of(c, "offset");
        to += unhex(data, to);
        if (shape != NULL && strncmp(shape, "-", 1) != 0)
            t->ndim = (int32_t)numbers(shape, shapes);
        t->shape = shapes;
        shapes += t->ndim;
        read_type(type, &t->code, &t->bits, &t->lanes);
        data = behind(data);
        shape = behind(shape);
        type = behind(type) != NULL ? behind(type) : type;
    } while (shape != NULL && n < LIST_MAX);
    if (n > 1 || option(c, "list") != NULL)
        p->options.tensor_count = n;
    cbd_tensor *t = p->tensors;
    if (option(c, "strides") != NULL) {
        numbers(option(c, "strides"), p->strides);
        t->strides = p->strides;
    }
    if (device != NULL)
        sscanf(device, "%" SCNu32 ":%" SCNu32, &t->device_type, &t->device_id);
    p->options.ordinal = number_of(c, "ordinal");
    p->options.semantic = (uint32_t)number_of(c, "semantic");
    p->options.is_array = option(c, "array") != NULL;
    p->options.prim_mode = option(c, "insert") != NULL ? CBD_MODE_INSERT : CBD_MODE_UPSERT;
    p->options.row_ndim = read_row_shape(c, p->options.row_shape);
    if (option(c, "count") != NULL && strcmp(option(c, "count"), "all") != 0)
        p->options.count = number_of(c, "count");
    if (option(c, "map") != NULL) {
        size_t n = numbers(option(c, "map"), list);
        for (size_t i = 0; i < n; i++)
            p->map[i] = (uint32_t)list[i];
        p->options.index_map = p->map;
        p->options.index_map_count = n;
    }
    if (option(c, "mask") != NULL) {
        size_t n = numbers(option(c, "mask"), list);
        for (size_t i = 0; i < n; i++)
            p->mask[i] = (uint64_t)list[i];
        p->options.mask = p->mask;
        p->options.mask_words = n;
    }
    return CBD_STATUS_OK;
}

/* ---- operations ----------------------------------------------------------- */

static cbd_status outcome(cbd_op *op, uint64_t timeout_ns)
{
    cbd_op_result result = {0};
    cbd_status status = cbd_op_wait(op, timeout_ns, &result, &error);
    where = "wait";
    if (status == CBD_STATUS_OK)
        say(" id=%" PRIu64 " ordinal=%" PRIu64 " epoch=%" PRIu64 " floor=%" PRIu64 " adopted=%s", cbd_op_id(op), result.ordinal, result.epoch,
            result.value, (result.flags & CBD_COMPLETION_ADOPTED) != 0 ? "true" : "false");
    return status;
}

/* Waits for an operation, or keeps it where the line says async. */
static cbd_status finish(const struct command *c, cbd_status status, cbd_op *op)
{
    if (status != CBD_STATUS_OK)
        return op == NULL ? status : fail("a call that failed gave an op%s", "");
    if (option(c, "async") != NULL) {
        keep(option(c, "async"), OP, op);
        say(" id=%" PRIu64, cbd_op_id(op));
        return status;
    }
    status = outcome(op, LIMIT_NS);
    cbd_op_release(op);
    return status;
}

static cbd_status do_connect(struct command *c)
{
    cbd_connect_options options = {.client_name = "conformance", .read_only = option(c, "readonly") != NULL, .guard = option(c, "guard") != NULL};
    setenv("CALLBOARD_RUNTIME_DIR", option(c, "dir") != NULL ? option(c, "dir") : "", 1);
    cbd_stage *attached;
    cbd_status status = cbd_connect(option(c, "stage"), &options, &attached, &error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_stage_release(stage); /* the scenario closed it */
    stage = attached;
    return status;
}

static cbd_status do_close(struct command *c)
{
    (void)c;
    cbd_stage_close(stage);
    return CBD_STATUS_OK;
}

/* Keeps a query that was made and tells what is in it. */
void keep_query(const char *name, cbd_query *query)
{
    keep(name, QUERY, query);
    say(" size=%" PRIu64 " prims=", cbd_query_size(query));
    say_numbers(cbd_query_ids(query), cbd_query_size(query));
}

static cbd_status do_query(struct command *c)
{
    cbd_query *query;
    cbd_status status = cbd_query_from_path_list(stage, (const char *const *)c->args + 1, NULL, c->arg_count - 1, &query, &error);
    if (status != CBD_STATUS_OK)
        return status;
    keep_query(arg(c, 0), query);
    return status;
}

static cbd_status do_drop(struct command *c)
{
    struct handle *h = find(arg(c, 0));
    if (h == NULL)
        return fail("no handle is named %s", arg(c, 0));
    if (h->sort == GONE)
        return no_call("in C a handle is given back once");
    release(h);
    return CBD_STATUS_OK;
}

static cbd_status do_write(struct command *c)
{
    static struct payload p;
    cbd_query *query = get(arg(c, 0), QUERY);
    cbd_op *op = NULL;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    cbd_status status = read_payload(c, &p);
    if (status == CBD_STATUS_OK)
        status = cbd_write_attribute(stage, query, arg(c, 1), p.tensors, &p.options, &op, &error);
    free(p.data);
    p.data = NULL;
    return absent[0] != 0 ? status : finish(c, status, op);
}

static cbd_status do_batch(struct command *c)
{
    enum { MOST = 16 };
    struct command *sections = calloc(MOST, sizeof *sections);
    struct payload *payloads = calloc(MOST, sizeof *payloads);
    cbd_write_entry entries[MOST];
    cbd_query *query = get(arg(c, 0), QUERY);
    cbd_status status = query == NULL ? CBD_STATUS_COUNT : CBD_STATUS_OK;
    cbd_op *op = NULL;
    size_t n = 0;
    for (char *line = more; status == CBD_STATUS_OK && line != NULL && n < MOST; n++) {
        char verb[] = "batch "; /* a section has none of its own */
        char *text = malloc(strlen(line) + sizeof verb);
        if (text == NULL)
            abort();
        strcpy(stpcpy(text, verb), line);
        char *end = strstr(line, " / ");
        char *ignored;
        line = end != NULL ? end + 3 : NULL;
        status = read_payload(parse(text, &sections[n], &ignored), &payloads[n]);
        entries[n] = (cbd_write_entry){arg(&sections[n], 0), payloads[n].tensors, &payloads[n].options};
    }
    if (status == CBD_STATUS_OK)
        status = cbd_write_attributes(stage, query, entries, n, number_of(c, "ordinal"), CBD_MODE_UPSERT, &op, &error);
    while (n > 0) {
        free(payloads[--n].data);
        free((char *)sections[n].verb);
    }
    free(payloads);
    free(sections);
    return absent[0] != 0 ? status : finish(c, status, op);
}

static cbd_status do_publish(struct command *c)
{
    static struct payload p;
    cbd_op *op = NULL;
    cbd_status status = read_payload(c, &p);
    if (status == CBD_STATUS_OK)
        status = cbd_publish(stage, arg(c, 0), p.tensors, p.options.semantic, &op, &error);
    free(p.data);
    p.data = NULL;
    return absent[0] != 0 ? status : finish(c, status, op);
}

static cbd_status do_seal(struct command *c)
{
    const char *scope = option(c, "scope");
    uint32_t number_of_scope = CBD_SCOPE_ALL;
    if (scope != NULL && strcmp(scope, "include") == 0)
        number_of_scope = CBD_SCOPE_INCLUDE;
    if (scope != NULL && strcmp(scope, "exclude") == 0)
        number_of_scope = CBD_SCOPE_EXCLUDE;
    cbd_op *op;
    cbd_status status = cbd_advance_write_floor(stage, number_of(c, "ordinal"), number_of_scope, (const char *const *)c->args, c->arg_count, number_of(c, "stamp"), &op, &error);
    return finish(c, status, op);
}

static cbd_status do_delete(struct command *c)
{
    cbd_query *query = get(arg(c, 0), QUERY);
    cbd_op *op;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    cbd_status status = cbd_delete_attributes(stage, query, (const char *const *)c->args + 1, c->arg_count - 1, number_of(c, "ordinal"), &op, &error);
    return finish(c, status, op);
}

static cbd_status do_declare(struct command *c)
{
    cbd_schema schema = {.kind = option(c, "array") != NULL ? CBD_KIND_ARRAY : CBD_KIND_FIXED, .semantic = (uint32_t)number_of(c, "semantic")};
    read_type(option(c, "type"), &schema.code, &schema.bits, &schema.lanes);
    schema.row_ndim = read_row_shape(c, schema.row_shape);
    cbd_op *op;
    cbd_status status = cbd_declare(stage, arg(c, 0), &schema, (uint32_t)number_of(c, "retain"), 0, &op, &error);
    return finish(c, status, op);
}

static cbd_status do_wait(struct command *c)
{
    cbd_op *op = get(arg(c, 0), OP);
    return op == NULL ? CBD_STATUS_COUNT : outcome(op, option(c, "timeout") != NULL ? number_of(c, "timeout") : LIMIT_NS);
}

static cbd_status do_op(struct command *c)
{
    cbd_op *op = get(arg(c, 0), OP);
    if (op == NULL)
        return CBD_STATUS_COUNT;
    say(" id=%" PRIu64, cbd_op_id(op));
    return CBD_STATUS_OK;
}

static cbd_status do_floor(struct command *c)
{
    uint64_t floor;
    cbd_status status = cbd_write_floor(stage, c->arg_count > 0 ? arg(c, 0) : NULL, &floor, &error);
    if (status == CBD_STATUS_OK)
        say(" floor=%" PRIu64, floor);
    return status;
}

static cbd_status do_epoch(struct command *c)
{
    (void)c;
    say(" epoch=%" PRIu64, cbd_epoch(stage));
    return CBD_STATUS_OK;
}

static cbd_status do_follow(struct command *c)
{
    uint64_t epoch;
    cbd_status status = cbd_follow(stage, number_of(c, "after"), number_of(c, "timeout"), &epoch, &error);
    if (status == CBD_STATUS_OK)
        say(" epoch=%" PRIu64, epoch);
    return status;
}

/* ---- sessions -------------------------------------------------------------- */

/* The shape of one of several arrays. */
static void say_array_shape(uint64_t i, uint64_t elements, const cbd_schema *schema)
{
    say("%s%" PRIu64, i == 0 ? "" : ";", elements);
    if (schema->lanes > 1)
        say(",%u", schema->lanes);
}

static void hold_group(const char *name, enum sort sort, cbd_group *group)
{
    keep(name, sort, group);
    say(" / kind=%s rows=%" PRIu64 " index=%" PRIu64 " attempt=%" PRIu64 " prims=", group->arrays != NULL ? "array" : "fixed", group->rows,
        group->index, group->attempt);
    say_numbers(group->prims, group->rows);
    say(" type=%u:%u:%u shape=", group->schema.code, group->schema.bits, group->schema.lanes);
    if (group->arrays == NULL)
        say_numbers((const uint64_t *)group->shape, (size_t)group->ndim);
    for (uint64_t i = 0; group->arrays != NULL && i < group->rows; i++)
        say_array_shape(i, group->arrays[i].elements, &group->schema);
    say(" data=");
    if (group->arrays == NULL)
        say_hex(group->data, group->rows * group->row_bytes);
    for (uint64_t i = 0; group->arrays != NULL && i < group->rows; i++) {
        say("%s", i == 0 ? "" : ";");
        say_hex(group->arrays[i].data, group->arrays[i].elements * group->row_bytes);
    }
}

static cbd_status do_map(struct command *c)
{
    cbd_query *query = get(arg(c, 1), QUERY);
    cbd_session *session;
    cbd_group *group;
    cbd_status status;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    static uint64_t sizes[LIST_MAX];
    const char *init = option(c, "init");
    cbd_map_options o = {.ordinal = number_of(c, "ordinal"), .group_rows = number_of(c, "group_rows"), .semantic = (uint32_t)number_of(c, "semantic"),
                         .prim_mode = option(c, "insert") != NULL ? CBD_MODE_INSERT : CBD_MODE_UPSERT, .is_array = option(c, "array") != NULL};
    if (init != NULL)
        o.init = strcmp(init, "zero") == 0 ? CBD_INIT_ZERO : strcmp(init, "current") == 0 ? CBD_INIT_CURRENT : CBD_INIT_NONE;
    read_type(option(c, "type"), &o.code, &o.bits, &o.lanes);
    o.row_ndim = read_row_shape(c, o.row_shape);
    if (option(c, "sizes") != NULL) {
        o.element_sizes = sizes;
        o.element_size_count = numbers(option(c, "sizes"), (int64_t *)sizes);
    }
    if ((status = cbd_map_attribute(stage, query, arg(c, 2), &o, &session, &error)) != CBD_STATUS_OK)
        return status;
    keep(arg(c, 0), SESSION, session);
    if (option(c, "share") != NULL) /* others may claim its groups */
        return CBD_STATUS_OK;
    while ((status = cbd_fetch_map_next(session, &group, &error)) == CBD_STATUS_OK) {
        char name[64];
        snprintf(name, sizeof name, "%s.%" PRIu64, arg(c, 0), group->index);
        hold_group(name, GROUP, group);
    }
    if (status != CBD_STATUS_END || cbd_fetch_map_next(session, &group, &error) != CBD_STATUS_END)
        return fail("the session's groups do not end with END%s", "");
    return CBD_STATUS_OK;
}

/* Claims a session's next group, or gives none. */
static cbd_status do_next(struct command *c)
{
    cbd_session *session = get(arg(c, 0), SESSION);
    cbd_group *group;
    char name[64];
    if (session == NULL)
        return CBD_STATUS_COUNT;
    cbd_status status = cbd_fetch_map_next(session, &group, &error);
    if (status == CBD_STATUS_END)
        return CBD_STATUS_OK;
    if (status != CBD_STATUS_OK)
        return status;
    snprintf(name, sizeof name, "%s.%" PRIu64, arg(c, 0), group->index);
    hold_group(name, GROUP, group);
    return CBD_STATUS_OK;
}

static uint64_t listed_session; /* whose groups were listed last */

static cbd_status do_open(struct command *c)
{
    cbd_open_group list[256];
    uint64_t numbers_of[3][256];
    size_t count;
    cbd_status status = cbd_list_groups(stage, arg(c, 0), list, 256, &count, &error);
    if (status != CBD_STATUS_OK)
        return status;
    for (size_t i = 0; i < count && i < 256; i++) {
        listed_session = list[i].session;
        numbers_of[0][i] = list[i].index;
        numbers_of[1][i] = list[i].attempt;
        numbers_of[2][i] = list[i].rows;
    }
    static const char *const keys[] = {"indexes", "attempts", "rows"};
    say(" open=%zu", count);
    for (size_t k = 0; k < 3; k++) {
        say(" %s=", keys[k]);
        say_numbers(numbers_of[k], count < 256 ? count : 256);
    }
    return CBD_STATUS_OK;
}

static cbd_status do_claim(struct command *c)
{
    cbd_group *group;
    uint64_t index = option(c, "index") != NULL ? number_of(c, "index") : CBD_ANY_GROUP;
    cbd_status status = cbd_claim_group(stage, listed_session, index, &group, &error);
    if (status == CBD_STATUS_OK)
        hold_group(arg(c, 0), CLAIM, group);
    return status == CBD_STATUS_END ? CBD_STATUS_OK : status;
}

static cbd_status do_giveup(struct command *c)
{
    cbd_group *group = get(arg(c, 0), GROUP);
    return group == NULL ? CBD_STATUS_COUNT : cbd_give_up_group(group, &error);
}

/* Each byte of a row is the place of its prim in the session's query. */
static cbd_status fill_places(cbd_group *group, void *context, cbd_error *e)
{
    uint64_t *left = context;
    (void)e;
    for (uint64_t i = 0; i < group->rows; i++) {
        void *row = group->arrays != NULL ? group->arrays[i].data : (uint8_t *)group->data + i * group->row_bytes;
        if (row != NULL)
            memset(row, (int)(group->first_prim + i), group->row_bytes * (group->arrays != NULL ? group->arrays[i].elements : 1));
    }
    --*left;
    return CBD_STATUS_OK;
}

static cbd_status do_work(struct command *c)
{
    uint64_t left = number_of(c, "n");
    cbd_status status = CBD_STATUS_TIMEOUT;
    while (left > 0 && status == CBD_STATUS_TIMEOUT)
        status = cbd_work_on(stage, arg(c, 0), fill_places, &left, 0, &error);
    return status == CBD_STATUS_TIMEOUT ? CBD_STATUS_OK : status;
}

static cbd_status do_fill(struct command *c)
{
    cbd_group *group = get(arg(c, 0), GROUP);
    const char *data = option(c, "data");
    if (group == NULL)
        return CBD_STATUS_COUNT;
    uint8_t *to = group->data;
    uint64_t room = group->rows * group->row_bytes, row = number_of(c, "row");
    if (group->arrays != NULL && row < group->rows) {
        to = group->arrays[row].data;
        room = group->arrays[row].elements * group->row_bytes;
    }
    if (data == NULL || number_of(c, "at") + strlen(data) / 2 > room)
        return fail("the bytes do not fit into group %s", arg(c, 0));
    unhex(data, to + number_of(c, "at"));
    return CBD_STATUS_OK;
}

static cbd_status do_unmap(struct command *c)
{
    struct handle *h = find(arg(c, 0));
    cbd_op *op = NULL;
    cbd_status status = CBD_STATUS_COUNT;
    if (h != NULL && (h->sort == GROUP || h->sort == CLAIM))
        status = cbd_unmap_group(h->it, 0, &op, &error);
    else if (get(arg(c, 0), SESSION) != NULL)
        status = cbd_unmap_attribute(h->it, 0, &op, &error);
    return status == CBD_STATUS_COUNT ? status : finish(c, status, op);
}

static cbd_status do_abort(struct command *c)
{
    cbd_session *session = get(arg(c, 0), SESSION);
    return session == NULL ? CBD_STATUS_COUNT : cbd_abort(session, &error);
}

/* ---- reading --------------------------------------------------------------- */

static cbd_status describe(const cbd_read_group *g)
{
    say(" / attribute=");
    say_quoted(g->name, strlen(g->name));
    say(" kind=%s type=%u:%u:%u shape=", g->schema.kind == CBD_KIND_ARRAY ? "array" : "fixed", g->schema.code, g->schema.bits, g->schema.lanes);
    if (g->arrays == NULL)
        say_numbers((const uint64_t *)g->shape, (size_t)g->ndim);
    for (uint64_t i = 0; g->arrays != NULL && i < g->prim_count; i++)
        say_array_shape(i, g->arrays[i].elements, &g->schema);
    say(" data=");
    if (g->arrays == NULL)
        say_hex(g->data, g->rows * g->row_bytes);
    for (uint64_t i = 0; g->arrays != NULL && i < g->prim_count; i++) {
        say("%s", i == 0 ? "" : ";");
        say_hex(g->arrays[i].data, g->arrays[i].elements * g->row_bytes);
    }
    say(" paths=");
    for (uint64_t i = 0; i < g->prim_count; i++) {
        const char *text;
        size_t length;
        cbd_status status = cbd_resolve(stage, g->prims[i], &text, &length, &error);
        if (status != CBD_STATUS_OK)
            return status;
        say("%s", i == 0 ? "" : ",");
        say_quoted(text, length);
    }
    say(" map=%s", g->index_map == NULL ? "-" : "");
    for (uint64_t i = 0; g->index_map != NULL && i < g->prim_count; i++)
        say("%s%" PRIu32, i == 0 ? "" : ",", g->index_map[i]);
    say(" rows=%" PRIu64 " semantic=%" PRIu32 " ordinal=%" PRIu64 " floor=%" PRIu64 " epoch=%" PRIu64, g->rows, g->schema.semantic, g->ordinal, g->floor, g->epoch);
    say(" generation=%" PRIu64 " stamp=%" PRIu64 " deleted=%s ordinals=", g->layout_generation, g->stamp_ns, g->is_delete ? "true" : "false");
    uint64_t *ordinals = malloc((g->prim_count + 1) * sizeof *ordinals);
    if (ordinals == NULL)
        abort();
    cbd_status status = cbd_group_row_ordinals(g, ordinals, &error);
    if (status == CBD_STATUS_OK)
        say_numbers(ordinals, g->prim_count);
    free(ordinals);
    return status;
}

/* Fetches all groups of a read and describes them; gives the read back, and the groups unless they are to be held. */
static cbd_status groups(const struct command *c, cbd_read *read)
{
    enum { MOST = 64 };
    const cbd_read_group *all[MOST], *more;
    cbd_status status;
    size_t n = 0;
    where = "fetch";
    say(" epoch=%" PRIu64, cbd_read_epoch(read));
    while (n < MOST && (status = cbd_fetch_read_next(read, &all[n], &error)) == CBD_STATUS_OK)
        n++;
    if (n == MOST || status != CBD_STATUS_END) {
        for (size_t i = 0; i < n; i++)
            cbd_release_group(all[i]);
        cbd_read_release(read);
        return status;
    }
    say(" ended=%s", cbd_fetch_read_next(read, &more, &error) == CBD_STATUS_END ? "true" : "false"); /* END, twice */
    cbd_read_release(read);
    status = CBD_STATUS_OK;
    for (size_t i = 0; i < n; i++) {
        if (status == CBD_STATUS_OK)
            status = describe(all[i]);
        char name[64];
        if (option(c, "hold") == NULL) {
            cbd_release_group(all[i]);
            continue;
        }
        snprintf(name, sizeof name, i == 0 ? "%s" : "%s.%zu", option(c, "hold"), i);
        keep(name, READ_GROUP, (void *)all[i]);
    }
    return status;
}

static cbd_status do_read(struct command *c)
{
    cbd_query *query = get(arg(c, 0), QUERY);
    cbd_read *read;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    cbd_range range = {0, option(c, "since") != NULL, number_of(c, "at"), number_of(c, "since")};
    if (option(c, "at") != NULL)
        range.at_what = CBD_AT_ORDINAL;
    else if (option(c, "common") != NULL)
        range.at_what = CBD_AT_COMMON;
    else if (option(c, "stamp") != NULL) {
        range.at_what = option(c, "nearest") != NULL ? CBD_AT_NEAREST_STAMP : CBD_AT_STAMP;
        range.at = number_of(c, "stamp");
    }
    cbd_status status = cbd_read_range(stage, query, (const char *const *)c->args + 1, c->arg_count - 1, &range, &read, &error);
    return status == CBD_STATUS_OK ? groups(c, read) : status;
}

static cbd_status do_snapshot(struct command *c)
{
    cbd_snapshot *snapshot;
    cbd_cursor *cursor;
    uint64_t floor;
    cbd_status status = cbd_snapshot_open(stage, &snapshot, &error);
    if (status != CBD_STATUS_OK)
        return status;
    keep(arg(c, 0), SNAPSHOT, snapshot);
    if (cursor_count < sizeof cursors / sizeof *cursors && cbd_snapshot_cursor(snapshot, &cursor, &error) == CBD_STATUS_OK)
        cursors[cursor_count++] = cursor;
    status = cbd_snapshot_floor(snapshot, NULL, &floor, &error);
    say(" epoch=%" PRIu64 " stamp=%" PRIu64 " floor=%" PRIu64, cbd_snapshot_epoch(snapshot), cbd_snapshot_stamp(snapshot), floor);
    return status;
}

static cbd_status do_sread(struct command *c)
{
    cbd_snapshot *snapshot = get(arg(c, 0), SNAPSHOT);
    cbd_query *query = snapshot != NULL ? get(arg(c, 1), QUERY) : NULL;
    cbd_read *read;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    const cbd_cursor *since = NULL;
    for (size_t i = 0; option(c, "since") != NULL && i < cursor_count; i++)
        if (cbd_cursor_epoch(cursors[i]) == number_of(c, "since"))
            since = cursors[i];
    if (option(c, "since") != NULL && since == NULL)
        return fail("no snapshot was taken at epoch %s", option(c, "since"));
    cbd_status status = cbd_snapshot_read_since(snapshot, query, (const char *const *)c->args + 2, c->arg_count - 2, since, &read, &error);
    return status == CBD_STATUS_OK ? groups(c, read) : status;
}

static cbd_status do_sfloor(struct command *c)
{
    cbd_snapshot *snapshot = get(arg(c, 0), SNAPSHOT);
    uint64_t floor;
    if (snapshot == NULL)
        return CBD_STATUS_COUNT;
    cbd_status status = cbd_snapshot_floor(snapshot, arg(c, 1), &floor, &error);
    if (status == CBD_STATUS_OK)
        say(" floor=%" PRIu64, floor);
    return status;
}

static cbd_status do_show(struct command *c)
{
    cbd_read_group *group = get(arg(c, 0), READ_GROUP);
    return group == NULL ? CBD_STATUS_COUNT : describe(group);
}

static cbd_status do_latest(struct command *c)
{
    const cbd_read_group *group;
    cbd_status status = cbd_latest(stage, arg(c, 0), &group, &error);
    if (status != CBD_STATUS_OK)
        return status;
    status = describe(group);
    if (option(c, "hold") != NULL)
        keep(option(c, "hold"), READ_GROUP, (void *)group);
    else
        cbd_release_group(group);
    return status;
}

/* ---- the dictionary and the rest --------------------------------------------- */

static cbd_status do_intern(struct command *c)
{
    static uint64_t ids[WORDS_MAX];
    cbd_status status = cbd_intern(stage, strcmp(arg(c, 0), "paths") == 0, (const char *const *)c->args + 1, NULL, c->arg_count - 1, ids, &error);
    if (status == CBD_STATUS_OK) {
        say(" ids=");
        say_numbers(ids, c->arg_count - 1);
    }
    return status;
}

static cbd_status do_resolve(struct command *c)
{
    say(" texts=");
    for (size_t i = 0; i < c->arg_count; i++) {
        const char *text;
        size_t length;
        cbd_status status = cbd_resolve(stage, strtoull(c->args[i], NULL, 0), &text, &length, &error);
        if (status != CBD_STATUS_OK)
            return text == NULL && length == 0 ? status : fail("a call that failed gave a text%s", "");
        say("%s", i == 0 ? "" : ",");
        say_quoted(text, length);
    }
    return CBD_STATUS_OK;
}

static cbd_status do_statuses(struct command *c)
{
    (void)c;
    for (cbd_status s = 0; s < CBD_STATUS_COUNT; s++) {
        say(" %s=", cbd_status_name(s));
        say_quoted(cbd_status_text(s), strlen(cbd_status_text(s)));
    }
    return CBD_STATUS_OK;
}

static cbd_status do_version(struct command *c)
{
    (void)c;
    uint32_t version[3];
    cbd_library_version(version);
    say(" abi=%s version=%u,%u,%u", cbd_abi_version(), version[0], version[1], version[2]);
    say(" built=%d,%d,%d", CBD_LIBRARY_MAJOR, CBD_LIBRARY_MINOR, CBD_LIBRARY_PATCH);
    return CBD_STATUS_OK;
}

static cbd_status do_attributes(struct command *c)
{
    static cbd_attribute_info info;
    cbd_status status;
    (void)c;
    say(" names=");
    for (uint32_t i = 1; (status = cbd_attribute_at(stage, i, &info, &error)) == CBD_STATUS_OK; i++) {
        say("%s", i == 1 ? "" : ",");
        say_quoted(info.name, info.name_bytes);
    }
    return status == CBD_STATUS_END ? CBD_STATUS_OK : status;
}

/* Several threads wait for one op. */
static void *wait_on_thread(void *op)
{
    return (void *)(uintptr_t)cbd_op_wait(op, LIMIT_NS, NULL, NULL);
}

static cbd_status do_waits(struct command *c)
{
    pthread_t threads[8];
    cbd_op *op = get(arg(c, 0), OP);
    if (op == NULL)
        return CBD_STATUS_COUNT;
    int ok = 0, n = (int)number_of(c, "threads");
    for (int i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, wait_on_thread, op);
    for (int i = 0; i < n; i++) {
        void *status;
        pthread_join(threads[i], &status);
        ok += status == NULL;
    }
    say(" ok=%d", ok);
    return CBD_STATUS_OK;
}

/* Submits one write over and over until it is refused; then `drain` waits for all. */
static cbd_op *flood[20000];
static size_t flood_count;

static cbd_status do_flood(struct command *c)
{
    static struct payload p;
    cbd_query *query = get(arg(c, 0), QUERY);
    if (query == NULL)
        return CBD_STATUS_COUNT;
    cbd_status status = read_payload(c, &p);
    while (status == CBD_STATUS_OK && flood_count < sizeof flood / sizeof *flood) {
        status = cbd_write_attribute(stage, query, arg(c, 1), p.tensors, &p.options, &flood[flood_count], &error);
        flood_count += status == CBD_STATUS_OK;
    }
    free(p.data);
    p.data = NULL;
    say(" submitted=%zu code=%s", flood_count, cbd_status_name(status));
    return CBD_STATUS_OK;
}

static cbd_status do_drain(struct command *c)
{
    size_t failed = 0;
    (void)c;
    for (size_t i = 0; i < flood_count; i++) {
        failed += cbd_op_wait(flood[i], LIMIT_NS, NULL, &error) != CBD_STATUS_OK;
        cbd_op_release(flood[i]);
    }
    say(" failed=%zu", failed);
    flood_count = 0;
    return CBD_STATUS_OK;
}

/* Threads that each write, seal and read an attribute of their own. */
static cbd_query *common;
static const char *base_name;
static int rounds;

static void *use_on_thread(void *number_of_thread)
{
    char text[96];
    const char *name = text;
    int64_t one = 1;
    intptr_t wrong = 0;
    snprintf(text, sizeof text, "%s%d", base_name, (int)(intptr_t)number_of_thread);
    for (int32_t i = 1; i <= rounds; i++) {
        cbd_tensor t = {.data = &i, .ndim = 1, .shape = &one, .code = CBD_DTYPE_INT, .bits = 32, .lanes = 1};
        cbd_write_options o = cbd_write_options_default();
        cbd_op *op;
        cbd_read *read;
        const cbd_read_group *group;
        o.ordinal = (uint64_t)i;
        wrong += cbd_write_attribute(stage, common, name, &t, &o, NULL, NULL) != CBD_STATUS_OK;
        if (cbd_advance_write_floor(stage, o.ordinal, CBD_SCOPE_INCLUDE, &name, 1, 0, &op, NULL) != CBD_STATUS_OK || cbd_op_wait(op, LIMIT_NS, NULL, NULL) != CBD_STATUS_OK)
            wrong++;
        cbd_op_release(op);
        if (cbd_read_attributes(stage, common, &name, 1, &read, NULL) != CBD_STATUS_OK) {
            wrong++;
            continue;
        }
        if (cbd_fetch_read_next(read, &group, NULL) == CBD_STATUS_OK) {
            wrong += *(const int32_t *)group->data != i;
            cbd_release_group(group);
        } else
            wrong++;
        cbd_read_release(read);
    }
    return (void *)wrong;
}

static cbd_status do_threads(struct command *c)
{
    pthread_t threads[8];
    intptr_t n = (intptr_t)number_of(c, "threads"), wrong = 0;
    common = get(arg(c, 0), QUERY);
    base_name = arg(c, 1);
    rounds = (int)number_of(c, "rounds");
    if (common == NULL)
        return CBD_STATUS_COUNT;
    for (intptr_t i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, use_on_thread, (void *)i);
    for (intptr_t i = 0; i < n; i++) {
        void *its;
        pthread_join(threads[i], &its);
        wrong += (intptr_t)its;
    }
    say(" wrong=%d", (int)wrong);
    return CBD_STATUS_OK;
}

/* Writes and seals n ordinals: all values of tick i are i. */
static cbd_status do_ticks(struct command *c)
{
    static int64_t values[LIST_MAX];
    cbd_query *query = get(arg(c, 0), QUERY);
    const char *name = arg(c, 1);
    cbd_status status = CBD_STATUS_OK;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    int64_t rows = (int64_t)cbd_query_size(query);
    for (uint64_t i = 1, n = number_of(c, "n"); i <= n && status == CBD_STATUS_OK; i++) {
        cbd_tensor t = {.data = values, .ndim = 1, .shape = &rows, .code = CBD_DTYPE_INT, .bits = 64, .lanes = 1};
        cbd_write_options o = cbd_write_options_default();
        cbd_op *op = NULL;
        for (int64_t j = 0; j < rows; j++)
            values[j] = (int64_t)i;
        o.ordinal = i;
        if ((status = cbd_write_attribute(stage, query, name, &t, &o, NULL, &error)) == CBD_STATUS_OK)
            status = cbd_advance_write_floor(stage, i, CBD_SCOPE_INCLUDE, &name, 1, 0, &op, &error);
        if (status == CBD_STATUS_OK && i == n)
            status = outcome(op, LIMIT_NS);
        else if (status == CBD_STATUS_OK && i % 32 == 0) /* some ticks are on their way at a time */
            status = cbd_op_wait(op, LIMIT_NS, NULL, &error);
        cbd_op_release(op);
    }
    return status;
}

/* Reads what changed since a cursor, and takes the next one in its place. */
static cbd_status read_delta(cbd_query *query, const char *name, cbd_cursor **cursor, cbd_read **read)
{
    cbd_snapshot *snapshot;
    cbd_cursor *next;
    cbd_status status = cbd_snapshot_open(stage, &snapshot, &error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbd_snapshot_read_since(snapshot, query, &name, 1, *cursor, read, &error);
    if (status == CBD_STATUS_OK && (status = cbd_snapshot_cursor(snapshot, &next, &error)) == CBD_STATUS_OK) {
        cbd_cursor_release(*cursor);
        *cursor = next;
    }
    cbd_snapshot_release(snapshot);
    return status;
}

/* Reads at its own rate until it has seen tick n; ticks must not go backwards or be torn. With deltas it reads what
 * changed from cursor to cursor: then no tick may come twice either. */
static cbd_status do_chase(struct command *c)
{
    cbd_query *query = get(arg(c, 0), QUERY);
    const char *name = arg(c, 1);
    const cbd_read_group *group;
    cbd_status status;
    cbd_read *read;
    int64_t seen = 0, n = (int64_t)number_of(c, "n"), deltas = option(c, "deltas") != NULL;
    cbd_cursor *cursor = NULL;
    uint64_t epoch = 0, reads = 0;
    if (query == NULL)
        return CBD_STATUS_COUNT;
    while (seen < n) {
        if ((status = cbd_follow(stage, epoch, LIMIT_NS, &epoch, &error)) != CBD_STATUS_OK ||
            (status = deltas ? read_delta(query, name, &cursor, &read)
                             : cbd_read_attributes(stage, query, &name, 1, &read, &error)) != CBD_STATUS_OK)
            return status;
        if (cbd_fetch_read_next(read, &group, &error) == CBD_STATUS_OK) {
            const int64_t *values = group->data;
            int wrong = 0;
            for (uint64_t i = 0; i < group->rows; i++)
                wrong |= values[i] < seen + deltas || values[i] != values[0] || (uint64_t)values[i] != group->ordinal;
            seen = values[0];
            cbd_release_group(group);
            reads++;
            if (wrong) {
                cbd_read_release(read);
                return fail("a tick is torn or out of order%s", "");
            }
        }
        cbd_read_release(read);
    }
    cbd_cursor_release(cursor);
    say(" seen=%" PRIi64 " reads=%" PRIu64, seen, reads);
    return CBD_STATUS_OK;
}

static cbd_status do_frontier(struct command *c)
{
    uint64_t frontier;
    cbd_status status = cbd_frontier(stage, arg(c, 0), &frontier, &error);
    if (status == CBD_STATUS_OK)
        say(" frontier=%" PRIu64, frontier);
    return status;
}

static cbd_status do_handles(struct command *c) { (void)c; return no_call("how many pins are in use is not shown"); }

static const struct {
    const char *name;
    cbd_status (*run)(struct command *);
    int alone; /* needs no stage */
} verbs[] = {
    {"reset", do_reset, 1}, {"connect", do_connect, 1}, {"statuses", do_statuses, 1}, {"version", do_version, 1},
    {"close", do_close, 0}, {"query", do_query, 0}, {"drop", do_drop, 0}, {"write", do_write, 0}, {"batch", do_batch, 0},
    {"publish", do_publish, 0}, {"seal", do_seal, 0}, {"declare", do_declare, 0}, {"wait", do_wait, 0}, {"op", do_op, 0},
    {"floor", do_floor, 0}, {"epoch", do_epoch, 0}, {"follow", do_follow, 0}, {"read", do_read, 0}, {"show", do_show, 0},
    {"latest", do_latest, 0}, {"snapshot", do_snapshot, 0}, {"sread", do_sread, 0}, {"sfloor", do_sfloor, 0}, {"map", do_map, 0},
    {"fill", do_fill, 0}, {"unmap", do_unmap, 0}, {"abort", do_abort, 0}, {"next", do_next, 0}, {"open", do_open, 0}, {"claim", do_claim, 0}, {"giveup", do_giveup, 0}, {"work", do_work, 0}, {"intern", do_intern, 0}, {"resolve", do_resolve, 0},
    {"attributes", do_attributes, 0}, {"delete", do_delete, 0}, {"find", do_find, 0}, {"handles", do_handles, 0},
    {"waits", do_waits, 0}, {"flood", do_flood, 0}, {"drain", do_drain, 0}, {"hoard", do_hoard, 0}, {"discard", do_discard, 0}, {"threads", do_threads, 0}, {"ticks", do_ticks, 0}, {"chase", do_chase, 0}, {"frontier", do_frontier, 0},
    {"list", do_list, 0}, {"listed", do_listed, 0}, {"retain", do_retain, 0}, {"unlist", do_unlist, 0},
    {"slice", do_slice, 0}, {"querylist", do_querylist, 0}, {"join", do_join, 0}, {"split", do_split, 0}, {"await", do_await, 0}, {"log", do_log, 0}, {"idle", do_idle, 0},
    {"race", do_race, 0}, {"deletes", do_deletes, 0}, {"cycles", do_cycles, 0}, {"frames", do_frames, 0},
};

static cbd_status run(struct command *c)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(verbs[i].name, c->verb) == 0)
            return stage == NULL && !verbs[i].alone ? fail("not connected%s", "") : verbs[i].run(c);
    return fail("driver.c knows no verb %s", c->verb);
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        answer_bytes = 0;
        absent[0] = 0;
        memset(&error, 0, sizeof error);
        where = "call";
        say("ok");
        static struct command c;
        cbd_status status = run(parse(line, &c, &more));
        for (char *at = error.text; *at != 0; at++)
            if (*at == '\n')
                *at = ' ';
        if (absent[0] != 0)
            printf("absent %s\n", absent);
        else if (status == CBD_STATUS_OK)
            printf("%s\n", answer);
        else
            printf("error %s %s %s\n", status < CBD_STATUS_COUNT ? cbd_status_name(status) : "UNKNOWN", where, error.text);
        fflush(stdout);
    }
    do_reset(NULL);
    free(line);
    free(answer);
    return 0;
}
