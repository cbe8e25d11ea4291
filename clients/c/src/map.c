/* Map sessions: staging memory that is filled in place (rules M1, M3).
 *
 *     cbd_map_attribute ──▶ groups ──▶ the caller writes ──▶ unmap_group, unmap_attribute ──▶ committed
 *                                                └──▶ abort, or release while open ──▶ nothing
 *
 * The memory stays mapped until the session is released, so that a view in a
 * language with a collector never points nowhere; it must not be written after unmap.
 * Under GUARD it cannot be: its pages become read-only before the op is sent.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct map_group {
    cbd_group view; /* first */
    struct segment *segment;
    uint64_t offset_bytes, lease_bytes;
    bool unmapped;
};

struct cbd_session {
    cbd_stage *stage;
    cbd_query *query;
    uint64_t handle;
    bool next_ordinal;
    _Atomic uint32_t over; /* committed or aborted */
    size_t count, next;
    struct map_group *groups;
    struct deferred *abort; /* submitted when the session ends in nothing */
    char name[];
};

static void protect(const cbd_session *session, const struct map_group *group, int protection)
{
    if (!session->stage->guard || group->offset_bytes % 4096 != 0 || group->lease_bytes < 4096)
        return;
    mprotect(group->segment->base + group->offset_bytes, group->lease_bytes & ~UINT64_C(4095), protection);
}

/* Makes group i from the broker's descriptor, which is checked first. */
static cbd_status take_group(cbd_session *session, size_t i, const cbd_abi_group_descriptor *d, const cbd_schema *schema,
                             uint64_t row_bytes, cbd_error *error)
{
    cbd_stage *stage = session->stage;
    struct map_group *group = &session->groups[i];
    const uint8_t *bytes;
    if (d->session != session->handle || d->first_prim > session->query->count ||
        d->prim_count > session->query->count - d->first_prim || d->rows != d->prim_count ||
        d->rows > d->block.length_bytes / row_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "group %zu of session %llu: session %llu, prims %llu to +%llu of %llu, %llu rows of %llu bytes in %llu bytes",
                         i, (unsigned long long)session->handle, (unsigned long long)d->session,
                         (unsigned long long)d->first_prim, (unsigned long long)d->prim_count,
                         (unsigned long long)session->query->count, (unsigned long long)d->rows,
                         (unsigned long long)row_bytes, (unsigned long long)d->block.length_bytes);
    if (d->rows != 0) {
        cbd_status status = cbdi_place(stage, d->block.segment, d->block.offset_bytes, d->block.length_bytes, "a group", &bytes,
                                       &group->segment, error);
        if (status != CBD_STATUS_OK)
            return status;
        status = cbdi_segment_writable(stage, group->segment, error);
        if (status != CBD_STATUS_OK) {
            group->segment = NULL;
            return status;
        }
        atomic_fetch_add(&group->segment->users, 1);
        group->offset_bytes = d->block.offset_bytes;
        group->lease_bytes = d->lease_bytes >= d->block.length_bytes &&
                                     d->lease_bytes <= group->segment->size_bytes - d->block.offset_bytes
                                 ? d->lease_bytes
                                 : d->block.length_bytes;
        group->view.data = group->segment->base + d->block.offset_bytes;
        protect(session, group, PROT_READ | PROT_WRITE); /* it may have been somebody's read-only pages */
    }
    cbd_group *view = &group->view;
    view->session = session;
    view->rows = d->rows;
    view->row_bytes = row_bytes;
    view->ordinal = d->ordinal;
    view->index = d->group_index;
    view->first_prim = d->first_prim;
    view->prims = session->query->ids + d->first_prim;
    view->schema = *schema;
    view->ndim = cbdi_view_shape(schema, d->rows, view->shape);
    return CBD_STATUS_OK;
}

struct map_request {
    const char *name;
    const cbd_map_options *options;
    cbd_schema schema;
    uint64_t row_bytes;
};

/* The schema of the rows: what the options say, completed by the column's. */
static cbd_status try_map(void *context, const cbd_schema *existing, cbd_error *error)
{
    struct map_request *r = context;
    const cbd_map_options *o = r->options;
    cbd_schema *schema = &r->schema;
    if (existing == NULL && o->lanes == 0)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute \"%.200s\" does not exist yet: expected a dtype", r->name);
    memset(schema, 0, sizeof *schema);
    schema->kind = CBD_KIND_FIXED;
    schema->semantic = o->semantic;
    schema->device_type = CBD_DEVICE_CPU;
    schema->code = o->lanes ? o->code : existing->code;
    schema->bits = o->lanes ? o->bits : existing->bits;
    schema->lanes = o->lanes ? o->lanes : existing->lanes;
    schema->row_ndim = existing != NULL && o->row_ndim == 0 ? existing->row_ndim : o->row_ndim;
    if (existing != NULL && o->row_ndim == 0)
        memcpy(schema->row_shape, existing->row_shape, sizeof schema->row_shape);
    else
        memcpy(schema->row_shape, o->row_shape, o->row_ndim * sizeof o->row_shape[0]);
    cbd_status status = cbd_schema_row_bytes(schema, &r->row_bytes, error);
    if (status == CBD_STATUS_OK && existing != NULL)
        status = cbdi_schema_accept(r->name, existing, schema, error);
    return status;
}

static cbd_status schema_of_map(cbd_stage *stage, cbd_query *query, size_t length, struct map_request *r, cbd_error *error)
{
    const cbd_map_options *o = r->options;
    cbd_schema existing;
    size_t schemas;
    bool found;
    if (o->is_array)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "attribute \"%.200s\": array attributes are not part of this version", r->name);
    if (o->row_ndim > CBD_ROW_NDIM_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "row_shape has %u dimensions: expected at most %u", o->row_ndim,
                         CBD_ROW_NDIM_MAX);
    if (o->init > CBD_INIT_CURRENT)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "init is %u: expected 0 (none), 1 (zero) or 2 (current)", o->init);
    cbd_status status = cbdi_mode_check(stage, r->name, o->prim_mode, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (o->lanes != 0)
        return cbdi_fit(stage, query, r->name, length, try_map, r, error);
    /* Without a type, of several schemas it is the one that the prims carry. */
    status = cbdi_carried_schema(stage, query, r->name, length, &existing, &schemas, &found, error);
    if (status == CBD_STATUS_OK && !found && schemas > 1)
        status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                           "attribute \"%.200s\" has %zu schemas and none on these prims: expected a dtype to choose one", r->name, schemas);
    return status == CBD_STATUS_OK ? try_map(r, found ? &existing : NULL, error) : status;
}

/* Asks for the session; descriptors[groups] are filled by the broker. */
static cbd_status open_session(cbd_session *session, const cbd_map_options *o, const cbd_schema *schema,
                               cbd_abi_group_descriptor *descriptors, size_t groups, cbd_error *error)
{
    cbd_stage *stage = session->stage;
    size_t name_bytes = strlen(session->name);
    cbd_abi_map_arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    cbdi_schema_to_abi(schema, &arguments.schema);
    arguments.name_offset_bytes = sizeof arguments;
    arguments.name_bytes = (uint32_t)name_bytes;
    arguments.prim_mode = o->prim_mode;
    arguments.init = o->init;
    arguments.group_rows = o->group_rows;
    struct submission s = {
        .opcode = CBD_OP_MAP,
        .flags = o->next_ordinal ? CBD_FLAG_NEXT_ORDINAL : 0,
        .handle = session->query->handle,
        .ordinal = o->next_ordinal ? 0 : o->ordinal,
        .into = descriptors,
        .into_bytes = (uint32_t)(groups * sizeof *descriptors),
    };
    cbd_status status = cbdi_submit_begin(stage, &s, sizeof arguments + name_bytes, groups * sizeof *descriptors, error);
    if (status != CBD_STATUS_OK)
        return status;
    memcpy(s.arguments, &arguments, sizeof arguments);
    memcpy(s.arguments + sizeof arguments, session->name, name_bytes);
    cbd_op *op;
    cbd_op_result result;
    uint32_t got;
    cbdi_submit_commit(stage, &s, &op);
    status = cbdi_op_finish(op, &result, &session->handle, &got, error);
    if (status == CBD_STATUS_OK && result.count > groups)
        status = cbdi_fail(error, CBD_STATUS_LIMIT,
                           "the session has %llu groups, this channel has room for the descriptors of %zu; connect with a larger "
                           "result_bytes, or map larger groups",
                           (unsigned long long)result.count, groups);
    else if (status == CBD_STATUS_OK && got < result.count * sizeof *descriptors)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker described %llu groups in %u bytes",
                           (unsigned long long)result.count, got);
    if (status == CBD_STATUS_OK)
        session->count = (size_t)result.count;
    return status;
}

cbd_status cbdi_map_rows(cbd_stage *stage, cbd_query *query, const char *name, const cbd_map_options *o,
                         const cbd_schema *schema, cbd_session **out, cbd_error *error)
{
    size_t length = strlen(name);
    uint64_t row_bytes;
    cbd_status status = cbd_schema_row_bytes(schema, &row_bytes, error);
    if (status != CBD_STATUS_OK)
        return status;

    /* Room for the descriptors, a quarter of the area at most: how many groups a session may have
     * is the broker's answer, and not one of our own about room. */
    uint64_t wanted = o->group_rows == 0 || query->count == 0 ? 1 : (query->count - 1) / o->group_rows + 1;
    uint64_t most = stage->ring.results.size_bytes / 4 / sizeof(cbd_abi_group_descriptor) + 1;
    size_t groups = (size_t)(wanted < most ? wanted : most);
    cbd_session *session = calloc(1, sizeof *session + length + 1);
    cbd_abi_group_descriptor *descriptors = calloc(groups, sizeof *descriptors);
    if (session != NULL) {
        session->stage = stage;
        session->query = cbdi_query_retain(query);
        session->next_ordinal = o->next_ordinal != 0;
        session->abort = calloc(1, sizeof *session->abort);
        session->groups = calloc(groups, sizeof *session->groups);
        memcpy(session->name, name, length);
        cbdi_stage_retain(stage);
        cbdi_hold(stage);
    }
    if (session == NULL || descriptors == NULL || session->abort == NULL || session->groups == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a session of %zu groups", groups);
    else
        status = open_session(session, o, schema, descriptors, groups, error);
    if (status == CBD_STATUS_OK) {
        pthread_mutex_lock(&stage->cache_lock);
        for (size_t i = 0; i < session->count && status == CBD_STATUS_OK; i++)
            status = take_group(session, i, &descriptors[i], schema, row_bytes, error);
        pthread_mutex_unlock(&stage->cache_lock);
    }
    free(descriptors);
    if (status != CBD_STATUS_OK) {
        cbd_session_release(session);
        return status;
    }
    *out = session;
    return CBD_STATUS_OK;
}

static cbd_status map_checked(cbd_stage *stage, cbd_query *query, const char *name, size_t length, const cbd_map_options *o,
                              cbd_session **out, cbd_error *error)
{
    struct map_request r = {.name = name, .options = o};
    cbd_status status = schema_of_map(stage, query, length, &r, error);
    if (status == CBD_STATUS_OK && stage->read_only)
        status = cbdi_fail(error, CBD_STATUS_ACCESS_DENIED, "this client connected with read_only: it cannot write");
    if (status == CBD_STATUS_OK && !o->next_ordinal)
        status = cbdi_ordinal_check(stage, name, length, o->ordinal, error);
    if (status == CBD_STATUS_OK && o->prim_mode == CBD_MODE_INSERT)
        status = cbdi_insert_check(stage, query, name, error);
    return status == CBD_STATUS_OK ? cbdi_map_rows(stage, query, name, o, &r.schema, out, error) : status;
}

cbd_status cbd_map_attribute(cbd_stage *stage, cbd_query *query, const char *name, const cbd_map_options *options,
                             cbd_session **session, cbd_error *error)
{
    static const cbd_map_options defaults;
    size_t length;
    if (session == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "session: expected a place for the handle, got NULL");
    *session = NULL;
    cbd_status status = cbdi_name_check(name, true, &length, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_query_check(stage, query, error);
    if (status == CBD_STATUS_OK)
        status = map_checked(stage, query, name, length, options ? options : &defaults, session, error);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_fetch_map_next(cbd_session *session, cbd_group **group, cbd_error *error)
{
    if (session == NULL || group == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "session or the place for the group is NULL");
    *group = NULL;
    if (atomic_load(&session->over))
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "the session on \"%.200s\" has ended", session->name);
    if (session->next == session->count)
        return cbdi_fail(error, CBD_STATUS_END, "all %zu groups were fetched", session->count);
    *group = &session->groups[session->next++].view;
    return CBD_STATUS_OK;
}

cbd_status cbd_unmap_group(cbd_group *view, uint32_t flags, cbd_op **op, cbd_error *error)
{
    struct map_group *group = (struct map_group *)view;
    if (op != NULL)
        *op = NULL;
    if (view == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group is NULL");
    cbd_session *session = view->session;
    if (atomic_load(&session->over) || group->unmapped)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group %llu of \"%.200s\" was handed back already",
                         (unsigned long long)view->index, session->name);
    if (flags & ~CBD_FLAG_COPY)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "flags are 0x%x: expected 0 or CBD_FLAG_COPY", flags);
    cbd_status status = cbdi_enter(session->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct submission s = {.opcode = CBD_OP_UNMAP_GROUP, .flags = flags, .handle = session->handle, .value = view->index};
    status = cbdi_submit_begin(session->stage, &s, 0, 0, error);
    if (status == CBD_STATUS_OK) {
        protect(session, group, PROT_READ);
        group->unmapped = true;
        cbdi_submit_commit(session->stage, &s, op);
    }
    cbdi_leave(session->stage);
    return status;
}

cbd_status cbd_unmap_attribute(cbd_session *session, uint32_t flags, cbd_op **op, cbd_error *error)
{
    if (op != NULL)
        *op = NULL;
    if (session == NULL || atomic_load(&session->over))
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "the session on \"%.200s\" has ended", session ? session->name : "");
    if (flags & ~(CBD_FLAG_COPY | CBD_FLAG_SEAL | CBD_FLAG_NEXT_ORDINAL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "flags are 0x%x: expected NEXT_ORDINAL, SEAL and COPY at most", flags);
    if ((flags & CBD_FLAG_NEXT_ORDINAL) && !session->next_ordinal)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "NEXT_ORDINAL at unmap, but \"%.200s\" was mapped at an ordinal of its own", session->name);
    cbd_status status = cbdi_enter(session->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct submission s = {.opcode = CBD_OP_UNMAP_ATTRIBUTE,
                           .flags = flags | (session->next_ordinal ? CBD_FLAG_NEXT_ORDINAL : 0),
                           .handle = session->handle};
    status = cbdi_submit_begin(session->stage, &s, 0, 0, error);
    if (status == CBD_STATUS_OK) {
        for (size_t i = 0; i < session->count; i++)
            if (!session->groups[i].unmapped && session->groups[i].segment != NULL)
                protect(session, &session->groups[i], PROT_READ);
        atomic_store(&session->over, 1);
        cbdi_submit_commit(session->stage, &s, op);
    }
    cbdi_leave(session->stage);
    return status;
}

cbd_status cbd_abort(cbd_session *session, cbd_error *error)
{
    if (session == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "session is NULL");
    if (atomic_exchange(&session->over, 1))
        return CBD_STATUS_OK;
    if (session->handle != 0 && session->abort != NULL) {
        session->abort->opcode = CBD_OP_UNMAP_ATTRIBUTE;
        session->abort->flags = CBD_FLAG_ABORT;
        session->abort->handle = session->handle;
        cbdi_defer(session->stage, session->abort);
        session->abort = NULL;
    }
    return CBD_STATUS_OK;
}

void cbd_session_release(cbd_session *session)
{
    if (session == NULL)
        return;
    cbd_stage *stage = session->stage;
    cbd_abort(session, NULL);
    for (size_t i = 0; session->groups != NULL && i < session->count; i++)
        if (session->groups[i].segment != NULL)
            atomic_fetch_sub(&session->groups[i].segment->users, 1);
    cbd_query_release(session->query);
    free(session->abort);
    free(session->groups);
    free(session);
    cbdi_leave(stage);
    cbdi_stage_drop(stage);
}
