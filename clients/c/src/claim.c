/* Groups of sessions of several (rule M2): listing those that nobody has, claiming and
 * giving them up.
 *
 *     cbd_list_groups ──▶ cbd_claim_group ──▶ the caller writes ──▶ cbd_unmap_group ──▶ captured
 *                                                   └──▶ cbd_give_up_group ──▶ the next attempt
 *
 * The first claim wins. With it comes the right to the group's segment, and behind the
 * rows in the group's block the path ids that they are for, and of kind array their sizes.
 */
#include "map.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIST_GROUPS 64       /* described by one op */
#define WORK_PAUSE_NS 20000000 /* between two lists that find nothing */

struct claim {
    cbd_abi_claim_results results;
    char name[CBD_NAME_BYTES_MAX + 1];
};

/* Submits a claim and waits, whatever interrupts: a claim that nobody knows of would never be
 * filled. What it says is checked as far as it is about itself. */
/* *life: of the session, or 0 for any; then that of the claim. */
static cbd_status claim(cbd_stage *stage, uint64_t session, uint64_t index, uint64_t *life, struct claim *c, cbd_error *error)
{
    memset(c, 0, sizeof *c);
    struct submission s = {.waits = true, .opcode = CBD_OP_CLAIM_GROUP, .handle = session, .life = *life, .value = index, .into = c, .into_bytes = sizeof *c - 1};
    cbd_status status = cbdi_submit_begin(stage, &s, 0, sizeof *c - 1, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_op *op;
    *life = atomic_load(&stage->ring.life);
    cbdi_submit_commit(stage, &s, &op);
    status = cbd_op_wait(op, UINT64_MAX, NULL, error);
    uint32_t got = op->got_bytes;
    cbd_op_release(op);
    if (status == CBD_STATUS_OK && (got < sizeof c->results || c->results.name_bytes != got - sizeof c->results))
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker described a claim in %u bytes, the name in %u of them", got,
                           c->results.name_bytes);
    return status;
}

/* By an op that cannot get lost. */
static void give_up(const cbd_session *session, uint64_t index, struct deferred *what)
{
    what->opcode = CBD_OP_UNMAP_GROUP;
    what->flags = CBD_FLAG_ABORT;
    what->handle = session->handle;
    what->life = session->life;
    what->value = index;
    cbdi_defer(session->stage, what);
}

cbd_status cbdi_claim_next(cbd_session *session, cbd_error *error)
{
    cbd_stage *stage = session->stage;
    struct claim c;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint64_t life = session->life;
    size_t count = session->count;
    struct deferred *back = calloc(1, sizeof *back); /* before the claim, which must not fail to be given up */
    if (back == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a claim");
    if (status == CBD_STATUS_OK)
        status = claim(stage, session->handle, CBD_ANY_GROUP, &life, &c, error);
    if (status == CBD_STATUS_OK) {
        pthread_mutex_lock(&stage->cache_lock);
        status = cbdi_take_group(session, &c.results.group, error);
        pthread_mutex_unlock(&stage->cache_lock);
        if (status != CBD_STATUS_OK) { /* else the unmap of the session would commit it, unfilled */
            if (session->count != count)
                cbdi_group_drop(session->groups[--session->count]);
            give_up(session, c.results.group.group_index, back);
            back = NULL;
        }
    }
    free(back);
    cbdi_leave(stage);
    return status;
}

/* Array kind: the arrays of a claimed group, whose sizes are ours; its rows must lie in its bytes. */
static cbd_status take_sizes(const cbd_session *session, const cbd_abi_group_descriptor *d, const uint64_t *sizes, cbd_error *error)
{
    uint64_t total = 0, bytes;
    for (uint64_t i = 0; i < d->rows; i++)
        if (__builtin_mul_overflow(sizes[i], session->row_bytes, &bytes) || __builtin_add_overflow(total, bytes, &total) ||
            total > d->block.length_bytes)
            return cbdi_fail(error, CBD_STATUS_INTERNAL, "row %llu of a group has %llu elements: its block has %llu bytes",
                             (unsigned long long)i, (unsigned long long)sizes[i], (unsigned long long)d->block.length_bytes);
    return cbdi_stage_arrays(sizes, session->groups[0], error);
}

/* The path ids of a group of device memory, which lie in a segment of the host: copied as take_behind does. */
static cbd_status take_beside(cbd_session *session, const cbd_abi_group_descriptor *d, cbd_error *error)
{
    const uint8_t *bytes;
    struct segment *segment;
    if (d->rows > UINT64_MAX / 8 || d->prims_offset_bytes % 8 != 0)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%llu path ids lie at %llu of segment %llu", (unsigned long long)d->rows,
                         (unsigned long long)d->prims_offset_bytes, (unsigned long long)d->prims_segment);
    pthread_mutex_lock(&session->stage->cache_lock);
    cbd_status status = cbdi_place(session->stage, d->prims_segment, d->prims_offset_bytes, 8 * d->rows, "the path ids of a group",
                                   &bytes, &segment, error);
    session->prims = status == CBD_STATUS_OK ? malloc(8 * d->rows) : NULL;
    if (session->prims != NULL)
        memcpy(session->prims, bytes, 8 * d->rows);
    pthread_mutex_unlock(&session->stage->cache_lock);
    if (status == CBD_STATUS_OK && session->prims == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu path ids", (unsigned long long)d->rows);
    session->groups[0]->view.prims = session->prims;
    return status;
}

/* Copies what lies behind the rows out of the block: whoever else has claimed groups could change it. */
static cbd_status take_behind(cbd_session *session, const cbd_abi_group_descriptor *d, cbd_error *error)
{
    struct map_group *group = session->groups[0];
    uint64_t words = session->schema.kind == CBD_KIND_ARRAY ? 2 : 1;
    if (group->event != NULL)
        return take_beside(session, d, error);
    if (d->rows > group->lease_bytes / (8 * words) || d->prims_offset_bytes % 8 != 0 ||
        d->prims_offset_bytes > group->lease_bytes - 8 * words * d->rows)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%llu path ids lie at %llu of a block of %llu bytes", (unsigned long long)d->rows,
                         (unsigned long long)d->prims_offset_bytes, (unsigned long long)group->lease_bytes);
    session->prims = malloc(8 * words * d->rows + 1);
    if (session->prims == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu path ids", (unsigned long long)d->rows);
    memcpy(session->prims, (uint8_t *)group->view.data + d->prims_offset_bytes, 8 * words * d->rows);
    group->view.prims = session->prims;
    return words == 1 ? CBD_STATUS_OK : take_sizes(session, d, session->prims + d->rows, error);
}

/* The session of one claimed group; of a failure nothing stays claimed. */
static cbd_status claimed(cbd_stage *stage, const struct claim *c, uint64_t life, cbd_group **group, cbd_error *error)
{
    const cbd_abi_group_descriptor *d = &c->results.group;
    cbd_session *session = cbdi_session_new(stage, NULL, c->name, c->results.name_bytes);
    if (session == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a claim");
    if (!cbdi_session_claimed(stage, life)) {
        cbd_session_release(session);
        return cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED, "the broker restarted after it gave this group away; claim another one");
    }
    session->life = life;
    session->handle = d->session;
    session->group_count = c->results.group_count;
    cbdi_schema_from_abi(&c->results.schema, &session->schema);
    cbd_status status = cbd_schema_row_bytes(&session->schema, &session->row_bytes, error);
    if (status == CBD_STATUS_OK && d->rows == 0)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "group %u of session %llu has no rows", d->group_index, (unsigned long long)d->session);
    if (status == CBD_STATUS_OK) {
        pthread_mutex_lock(&stage->cache_lock);
        status = cbdi_take_group(session, d, error);
        pthread_mutex_unlock(&stage->cache_lock);
        if (status != CBD_STATUS_OK && life != atomic_load(&stage->ring.life))
            status = cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED, "the broker restarted after it gave this group away; claim another one");
    }
    if (status == CBD_STATUS_OK)
        status = take_behind(session, d, error);
    if (status != CBD_STATUS_OK) {
        if (session->count == 0)
            session->handle = 0; /* the broker is not to be believed: there is nothing to give up */
        cbd_session_release(session);
        return status;
    }
    *group = &session->groups[0]->view;
    return CBD_STATUS_OK;
}

cbd_status cbd_claim_group(cbd_stage *stage, uint64_t session, uint64_t index, cbd_group **group, cbd_error *error)
{
    struct claim c;
    uint64_t life = 0;
    if (group == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "group: expected a place for the group, got NULL");
    *group = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (stage->read_only)
        status = cbdi_fail(error, CBD_STATUS_ACCESS_DENIED, "this client connected with read_only: it cannot write");
    if (status == CBD_STATUS_OK)
        status = claim(stage, session, index, &life, &c, error);
    if (status == CBD_STATUS_OK)
        status = claimed(stage, &c, life, group, error);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_give_up_group(cbd_group *view, cbd_error *error)
{
    struct map_group *group = (struct map_group *)view;
    if (view == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group is NULL");
    cbd_session *session = view->session;
    if (!session->claimed && !session->split)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "\"%.200s\" was mapped as one group, which ends with the session: abort that",
                         session->name);
    if (atomic_load(&session->over) || group->unmapped)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group %llu of \"%.200s\" was handed back already",
                         (unsigned long long)view->index, session->name);
    struct deferred *what = calloc(1, sizeof *what);
    if (what == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to give a group up");
    group->unmapped = true;
    give_up(session, view->index, what);
    return CBD_STATUS_OK;
}

/* One page of the list, from group `first` on. */
static cbd_status list_page(cbd_stage *stage, const char *attribute, size_t length, uint64_t first,
                            cbd_abi_group_descriptor page[LIST_GROUPS], cbd_op_result *result, cbd_error *error)
{
    struct submission s = {.waits = true, .opcode = CBD_OP_LIST_GROUPS, .value = first, .into = page, .into_bytes = LIST_GROUPS * sizeof *page};
    cbd_status status = cbdi_submit_begin(stage, &s, length, LIST_GROUPS * sizeof *page, error);
    if (status != CBD_STATUS_OK)
        return status;
    memcpy(s.arguments, attribute, length);
    cbd_op *op;
    uint32_t got;
    cbdi_submit_commit(stage, &s, &op);
    status = cbdi_op_finish(op, result, NULL, &got, error);
    if (status == CBD_STATUS_OK && got != result->count * sizeof *page)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker described %llu groups in %u bytes", (unsigned long long)result->count, got);
    return status;
}

cbd_status cbd_list_groups(cbd_stage *stage, const char *attribute, cbd_open_group *groups, size_t room, size_t *count,
                           cbd_error *error)
{
    size_t length = 0, listed = 0;
    if (count == NULL || (groups == NULL && room > 0))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "groups or count: expected a place, got NULL");
    *count = 0;
    cbd_status status = attribute == NULL ? CBD_STATUS_OK : cbdi_name_check(attribute, false, &length, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_reattach_wait(stage, false, error); /* it waits for the broker anyway */
    cbd_abi_group_descriptor *page = malloc(LIST_GROUPS * sizeof *page);
    cbd_op_result result;
    if (page == NULL && status == CBD_STATUS_OK)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a list of groups");
    while (status == CBD_STATUS_OK) {
        status = list_page(stage, attribute == NULL ? "" : attribute, length, listed, page, &result, error);
        if (status != CBD_STATUS_OK)
            break;
        *count = result.value;
        for (uint64_t i = 0; i < result.count && listed < room; i++) {
            const cbd_abi_group_descriptor *d = &page[i];
            cbd_open_group open = {d->session, d->group_index, d->ordinal, d->first_prim, d->rows, d->attempt, 0};
            groups[listed++] = open;
        }
        if (result.count == 0 || listed == room || listed >= result.value)
            break;
    }
    free(page);
    cbdi_leave(stage);
    return status;
}

/* Claims one group of the session and fills it. *more: there may be another. */
static cbd_status work(cbd_stage *stage, uint64_t session, cbd_fill *fill, void *context, bool *more, cbd_error *error)
{
    cbd_group *group;
    cbd_op *op;
    *more = false;
    cbd_status status = cbd_claim_group(stage, session, CBD_ANY_GROUP, &group, error);
    if (status == CBD_STATUS_END || status == CBD_STATUS_INVALID_HANDLE || status == CBD_STATUS_QUEUE_FULL ||
        status == CBD_STATUS_OUT_OF_MEMORY)
        return CBD_STATUS_OK;
    if (status != CBD_STATUS_OK)
        return status;
    status = fill(group, context, error);
    if (status == CBD_STATUS_OK) {
        cbd_status unmapped = cbd_unmap_group(group, 0, &op, error);
        if (unmapped == CBD_STATUS_OK)
            unmapped = cbdi_op_finish(op, NULL, NULL, NULL, error);
        if (unmapped == CBD_STATUS_SESSION_ENDED || unmapped == CBD_STATUS_TIMEOUT)
            status = unmapped;
        /* What else becomes of the session, aborted or sealed, is its owner's to know. */
        *more = unmapped != CBD_STATUS_QUEUE_FULL && unmapped != CBD_STATUS_OUT_OF_MEMORY;
    }
    cbd_session_release(group->session); /* gives it up where it was not handed back */
    return status;
}

cbd_status cbd_work_on(cbd_stage *stage, const char *attribute, cbd_fill *fill, void *context, uint64_t timeout_ns, cbd_error *error)
{
    if (attribute == NULL || fill == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute or fill is NULL");
    uint64_t idle_since = cbdi_now_ns();
    for (;;) {
        cbd_open_group open;
        size_t count;
        bool filled = false;
        cbd_status status = cbd_list_groups(stage, attribute, &open, 1, &count, error);
        for (bool more = status == CBD_STATUS_OK && count > 0; more && status == CBD_STATUS_OK;) {
            status = work(stage, open.session, fill, context, &more, error);
            filled = filled || more;
        }
        if (status == CBD_STATUS_BROKER_RESTARTED)
            continue; /* the list waits for the next broker */
        if (status != CBD_STATUS_OK)
            return status;
        if (filled) {
            idle_since = cbdi_now_ns();
            continue;
        }
        uint64_t idle = cbdi_now_ns() - idle_since;
        if (idle >= timeout_ns)
            return cbdi_fail(error, CBD_STATUS_TIMEOUT, "no group of \"%.200s\" came for %llu ns", attribute, (unsigned long long)timeout_ns);
        uint64_t pause = timeout_ns - idle < WORK_PAUSE_NS ? timeout_ns - idle : WORK_PAUSE_NS;
        struct timespec t = {.tv_sec = 0, .tv_nsec = (long)pause};
        nanosleep(&t, NULL);
    }
}
