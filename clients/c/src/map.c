/* Map sessions: staging memory that is filled in place (rules M1, M3).
 *
 *     cbd_map_attribute ──▶ groups ──▶ the caller writes ──▶ unmap_group, unmap_attribute ──▶ committed
 *                                                └──▶ abort, or release while open ──▶ nothing
 *
 * The memory stays mapped until the session is released, so that a view in a
 * language with a collector never points nowhere; it must not be written after unmap.
 * Under GUARD it cannot be: its pages become read-only before the op is sent. Groups of
 * a session of several are claimed as they are fetched (claim.c).
 */
#include "map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "python_support.h"

void cbdi_group_protect(const cbd_session *session, const struct map_group *group, int protection)
{
    if (!session->stage->guard || group->segment == NULL || group->segment->import != NULL || group->offset_bytes % 4096 != 0 || group->lease_bytes < 4096)
        return;
    mprotect(group->segment->base + group->offset_bytes, group->lease_bytes & ~UINT64_C(4095), protection);
}

/* The bytes that a described group needs; UINT64_MAX: more than there can be. */
static uint64_t group_bytes(const cbd_session *session, const cbd_abi_group_descriptor *d)
{
    uint64_t rows = d->rows, bytes;
    if (session->schema.kind == CBD_KIND_ARRAY) {
        rows = 0; /* of a claimed group's rows the block tells, once it is mapped */
        for (uint64_t i = 0; session->sizes != NULL && i < d->prim_count; i++)
            if (__builtin_add_overflow(rows, session->sizes[d->first_prim + i], &rows))
                return UINT64_MAX;
    }
    return __builtin_mul_overflow(rows, session->row_bytes, &bytes) ? UINT64_MAX : bytes;
}

cbd_status cbdi_stage_arrays(const uint64_t *sizes, struct map_group *group, cbd_error *error)
{
    cbd_group *view = &group->view;
    uint64_t at = 0;
    group->arrays = calloc(view->rows + 1, sizeof *group->arrays);
    if (group->arrays == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu arrays", (unsigned long long)view->rows);
    for (uint64_t i = 0; i < view->rows; i++) {
        uint64_t elements = sizes[i];
        if (elements != 0)
            group->arrays[i] = (cbd_staged_array){(uint8_t *)view->data + at, elements};
        at += elements * view->row_bytes;
    }
    view->arrays = group->arrays;
    return CBD_STATUS_OK;
}

static cbd_status take_host_memory(cbd_stage *stage, const cbd_abi_group_descriptor *d, uint64_t needed, struct map_group *group,
                                   cbd_error *error)
{
    const uint8_t *bytes;
    struct segment *segment;
    cbd_status status = cbdi_place(stage, d->block.segment, d->block.offset_bytes, needed, "a group", &bytes, &segment, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_segment_writable(stage, segment, error);
    if (status == CBD_STATUS_OK)
        group->segment = segment;
    return status;
}

/* The arena, and the event that was leased with the group. */
static cbd_status take_device_memory(const cbd_session *session, const cbd_abi_group_descriptor *d, uint64_t needed, struct map_group *group,
                                     cbd_error *error)
{
    const uint8_t *bytes;
    struct segment *segment;
    char what[CBD_NAME_BYTES_MAX + 16];
    snprintf(what, sizeof what, "a group of \"%.200s\"", session->name);
    if (session->schema.kind == CBD_KIND_ARRAY)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%s, of array kind, is on device number %u", what, d->device_number);
    cbd_status status = cbdi_device_block(session->stage, what, &d->block, d->device_number, d->arena_generation, needed, &bytes, &segment, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_device_event(session->stage, what, d->event_index, d->device_number, d->arena_generation, &group->event, error);
    if (status == CBD_STATUS_OK) {
        group->segment = segment;
        group->event_index = d->event_index;
    }
    return status;
}

cbd_status cbdi_take_group(cbd_session *session, const cbd_abi_group_descriptor *d, cbd_error *error)
{
    cbd_stage *stage = session->stage;
    uint64_t row_bytes = session->row_bytes, prims = session->claimed ? d->prim_count : session->query->count;
    uint64_t first = session->claimed ? 0 : d->first_prim;
    if (d->session != session->handle || first > prims || d->prim_count > prims - first || d->rows != d->prim_count ||
        group_bytes(session, d) > d->block.length_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "group %u of session %llu: session %llu, prims %llu to +%llu of %llu, %llu rows of %llu bytes in %llu bytes",
                         d->group_index, (unsigned long long)session->handle, (unsigned long long)d->session,
                         (unsigned long long)first, (unsigned long long)d->prim_count, (unsigned long long)prims,
                         (unsigned long long)d->rows, (unsigned long long)row_bytes, (unsigned long long)d->block.length_bytes);
    if (session->count == session->room) {
        size_t room = session->room ? 2 * session->room : 1;
        struct map_group **groups = realloc(session->groups, room * sizeof *groups);
        if (groups == NULL)
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %zu groups", room);
        session->groups = groups;
        session->room = room;
    }
    struct map_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a group");
    session->groups[session->count++] = group;
    /* Before what can fail: a group that cannot be had is given up by its index. */
    cbd_group *view = &group->view;
    view->session = session;
    view->attribute = session->name;
    view->rows = d->rows;
    view->row_bytes = row_bytes;
    view->ordinal = d->ordinal;
    view->index = d->group_index;
    view->attempt = d->attempt;
    view->first_prim = d->first_prim;
    uint64_t needed = session->claimed && d->lease_bytes > d->block.length_bytes ? d->lease_bytes : d->block.length_bytes;
    if (d->rows != 0 && needed != 0) { /* arrays may all be empty */
        cbd_status status = d->device_number != 0 ? take_device_memory(session, d, needed, group, error)
                                                  : take_host_memory(stage, d, needed, group, error);
        if (status != CBD_STATUS_OK)
            return status;
        atomic_fetch_add(&group->segment->users, 1);
        group->offset_bytes = d->block.offset_bytes;
        group->lease_bytes = d->lease_bytes >= d->block.length_bytes &&
                                     d->lease_bytes <= group->segment->size_bytes - d->block.offset_bytes
                                 ? d->lease_bytes
                                 : d->block.length_bytes;
        group->view.data = group->segment->base + d->block.offset_bytes;
        cbdi_group_protect(session, group, PROT_READ | PROT_WRITE); /* it may have been somebody's read-only pages */
    }
    if (!session->claimed)
        view->prims = session->query->ids + d->first_prim;
    view->schema = session->schema;
    cbdi_schema_out(stage, &view->schema);
    cbdi_device_out(stage, d->device_number, &view->device_type, &view->device_id);
    if (session->sizes != NULL)
        return cbdi_stage_arrays(session->sizes + view->first_prim, group, error);
    if (session->schema.kind == CBD_KIND_ARRAY)
        return CBD_STATUS_OK; /* claim.c goes on */
    view->ndim = cbdi_view_shape(&session->schema, d->rows, view->shape);
    return CBD_STATUS_OK;
}

struct map_request {
    const char *name;
    const cbd_map_options *options;
    uint64_t prims; /* of the query */
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
    schema->kind = o->is_array ? CBD_KIND_ARRAY : existing != NULL && o->lanes == 0 ? existing->kind : CBD_KIND_FIXED;
    schema->semantic = o->semantic;
    schema->device_type = o->device_type ? o->device_type : existing != NULL ? existing->device_type : CBD_DEVICE_CPU;
    schema->device_id = o->device_type ? o->device_id : existing != NULL ? existing->device_id : 0;
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
    if (status == CBD_STATUS_OK && schema->kind == CBD_KIND_FIXED && o->element_sizes != NULL)
        status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                           "attribute \"%.200s\": element_sizes has %llu entries but the kind is fixed: rows of a fixed attribute have one size",
                           r->name, (unsigned long long)o->element_size_count);
    if (status == CBD_STATUS_OK && schema->kind == CBD_KIND_ARRAY && (o->element_sizes == NULL || o->element_size_count != r->prims))
        status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                           "attribute \"%.200s\": element_sizes has %llu entries for %llu prims: a session of kind array needs one "
                           "element count per prim", r->name, (unsigned long long)(o->element_sizes ? o->element_size_count : 0),
                           (unsigned long long)r->prims);
    return status;
}

static cbd_status schema_of_map(cbd_stage *stage, cbd_query *query, size_t length, struct map_request *r, cbd_error *error)
{
    const cbd_map_options *o = r->options;
    cbd_schema existing;
    size_t schemas;
    bool found;
    if (o->is_array && !(stage->features & CBD_FEATURE_ARRAY))
        return cbdi_array_check(stage, r->name, error);
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

cbd_status cbdi_session_before(const cbd_session *session, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED,
                     "the broker restarted, and the session on \"%.200s\" is of the time before: map it anew", session->name);
}

/* Asks for the session; the descriptor of a single group is filled by the broker. */
static cbd_status open_session(cbd_session *session, const cbd_map_options *o, cbd_abi_group_descriptor *descriptor,
                               cbd_error *error)
{
    cbd_stage *stage = session->stage;
    size_t name_bytes = strlen(session->name), sizes_at = (sizeof(cbd_abi_map_arguments) + name_bytes + 7) & ~(size_t)7;
    size_t size_bytes = session->sizes != NULL ? session->query->count * sizeof *session->sizes : 0;
    cbd_abi_map_arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    cbdi_schema_to_abi(&session->schema, &arguments.schema);
    arguments.name_offset_bytes = sizeof arguments;
    arguments.name_bytes = (uint32_t)name_bytes;
    arguments.prim_mode = o->prim_mode;
    arguments.schema.device_type = o->device_type; /* 0: where the attribute lies by then */
    arguments.schema.device_id = o->device_id;
    arguments.staging_type = o->staging_type;
    arguments.staging_id = o->staging_id;
    arguments.init = o->init;
    arguments.group_rows = o->group_rows;
    if (size_bytes != 0) {
        arguments.element_sizes_offset_bytes = (uint32_t)sizes_at;
        arguments.element_sizes_count = (uint32_t)session->query->count;
    }
    struct submission s = {
        .waits = true,
        .opcode = CBD_OP_MAP,
        .flags = o->next_ordinal ? CBD_FLAG_NEXT_ORDINAL : 0,
        .query = session->query,
        .ordinal = o->next_ordinal ? 0 : o->ordinal,
        .into = descriptor,
        .into_bytes = sizeof *descriptor,
    };
    cbd_status status = cbdi_reattach_wait(stage, false, error); /* it waits for the broker anyway */
    if (status == CBD_STATUS_OK)
        status = cbdi_submit_begin(stage, &s, sizes_at + size_bytes, sizeof *descriptor + size_bytes, error);
    if (status != CBD_STATUS_OK)
        return status;
    memcpy(s.arguments, &arguments, sizeof arguments);
    memcpy(s.arguments + sizeof arguments, session->name, name_bytes);
    if (size_bytes != 0)
        memcpy(s.arguments + sizes_at, session->sizes, size_bytes);
    session->life = cbdi_session_opened(stage);
    cbd_op *op;
    cbd_op_result result;
    uint32_t got;
    cbdi_submit_commit(stage, &s, &op);
    status = cbdi_op_finish(op, &result, &session->handle, &got, error);
    if (status != CBD_STATUS_OK)
        return status;
    session->group_count = result.count;
    session->split = result.count > 1;
    if (result.count == 1 && got < sizeof *descriptor)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker described a group in %u bytes", got);
    if (result.count != 1)
        return CBD_STATUS_OK;
    pthread_mutex_lock(&stage->cache_lock);
    status = cbdi_take_group(session, descriptor, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status != CBD_STATUS_OK && session->life != atomic_load(&stage->ring.life))
        return cbdi_session_before(session, error); /* the next broker does not know what the last one leased */
    return status;
}

cbd_session *cbdi_session_new(cbd_stage *stage, cbd_query *query, const char *name, size_t length)
{
    cbd_session *session = calloc(1, sizeof *session + length + 1);
    struct deferred *last = calloc(1, sizeof *last);
    if (session == NULL || last == NULL) {
        free(session);
        free(last);
        return NULL;
    }
    atomic_init(&session->refs, 1);
    atomic_init(&session->writers, 1);
    session->stage = stage;
    session->query = query == NULL ? NULL : cbdi_query_retain(query);
    session->claimed = query == NULL;
    session->last = last;
    memcpy(session->name, name, length);
    cbdi_stage_retain(stage);
    atomic_fetch_add(&stage->sessions_kept, 1);
    cbdi_hold(stage);
    return session;
}

cbd_status cbdi_map_rows(cbd_stage *stage, cbd_query *query, const char *name, const cbd_map_options *o,
                         const cbd_schema *schema, cbd_session **out, cbd_error *error)
{
    uint64_t row_bytes;
    cbd_abi_group_descriptor descriptor;
    cbd_status status = cbd_schema_row_bytes(schema, &row_bytes, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_session *session = cbdi_session_new(stage, query, name, strlen(name));
    if (session == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a session");
    session->next_ordinal = o->next_ordinal != 0;
    session->schema = *schema;
    session->row_bytes = row_bytes;
    if (schema->kind == CBD_KIND_ARRAY) {
        session->sizes = malloc((query->count + 1) * sizeof *session->sizes);
        if (session->sizes == NULL) {
            cbd_session_release(session);
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu element sizes", (unsigned long long)query->count);
        }
        if (query->count != 0)
            memcpy(session->sizes, o->element_sizes, query->count * sizeof *session->sizes);
    }
    status = open_session(session, o, &descriptor, error);
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
    cbd_map_options wire = *o; /* with the broker's devices */
    struct map_request r = {.name = name, .options = &wire, .prims = query->count};
    cbd_status status = cbdi_device_named(stage, "device_type and device_id", &wire.device_type, &wire.device_id, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_device_named(stage, "staging_type and staging_id", &wire.staging_type, &wire.staging_id, error);
    if (status == CBD_STATUS_OK)
        status = schema_of_map(stage, query, length, &r, error);
    if (status == CBD_STATUS_OK && (wire.staging_type ? wire.staging_type : r.schema.device_type) == CBD_DEVICE_CUDA && cbdi_cuda() == NULL)
        status = cbdi_cuda_needed(name, error);
    if (status == CBD_STATUS_OK && stage->read_only)
        status = cbdi_fail(error, CBD_STATUS_ACCESS_DENIED, "this client connected with read_only: it cannot write");
    if (status == CBD_STATUS_OK && !o->next_ordinal)
        status = cbdi_ordinal_check(stage, name, length, o->ordinal, error);
    if (status == CBD_STATUS_OK && o->prim_mode == CBD_MODE_INSERT)
        status = cbdi_insert_check(stage, query, name, error);
    return status == CBD_STATUS_OK ? cbdi_map_rows(stage, query, name, &wire, &r.schema, out, error) : status;
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
        status = cbdi_query_settle(query, error);
    if (status == CBD_STATUS_OK)
        status = map_checked(stage, query, name, length, options ? options : &defaults, session, error);
    cbdi_leave(stage);
    return status;
}

uint64_t cbd_session_group_count(const cbd_session *session) { return session == NULL ? 0 : session->group_count; }

cbd_status cbdi_session_over(const cbd_session *session, cbd_error *error)
{
    if (atomic_load(&session->lost))
        return cbdi_session_before(session, error);
    return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "the session on \"%.200s\" has ended", session->name);
}

cbd_status cbd_fetch_map_next(cbd_session *session, cbd_group **group, cbd_error *error)
{
    if (session == NULL || group == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "session or the place for the group is NULL");
    *group = NULL;
    if (atomic_load(&session->over))
        return cbdi_session_over(session, error);
    if (session->life != atomic_load(&session->stage->ring.life))
        return cbdi_session_before(session, error);
    if (session->next == session->count) {
        if (!session->split)
            return cbdi_fail(error, CBD_STATUS_END, "all %zu groups were fetched", session->count);
        cbd_status status = cbdi_claim_next(session, error);
        if (status != CBD_STATUS_OK)
            return status;
    }
    *group = &session->groups[session->next++]->view;
    return CBD_STATUS_OK;
}
