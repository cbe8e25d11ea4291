/* Handing rows back, ending sessions, and what keeps their memory (rules M1, M3, C3).
 *
 *     unmap_group, unmap_attribute ──▶ committed        _after: once the group's event has completed
 *     abort, or release while open ──▶ nothing
 */
#include "map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "python_support.h"

/* One writer less. After the last one the broker may give the memory to others (rule B1): a
 * session that has ended is closed, although its handle is kept. Not with ring.lock held. */
static void writer_gone(cbd_session *session)
{
    if (atomic_fetch_sub(&session->writers, 1) == 1)
        cbdi_session_closed(session->stage, session->life);
}

/* False where it has ended already; else its views must not be written from now on, and writer_gone follows. */
static bool mark_over(cbd_session *session)
{
    if (atomic_exchange(&session->over, 1))
        return false;
    if (session->life != 0)
        atomic_fetch_sub(&session->stage->open_sessions, 1);
    return true;
}

/* An op on the session: of its life alone, and about its attribute. */
static void of_session(struct submission *s, const cbd_session *session)
{
    s->handle = session->handle;
    s->life = session->life;
    s->about = cbdi_hash(session->name, strlen(session->name));
    s->about_ordinal = session->count != 0 ? session->groups[0]->view.ordinal : 0;
}

/* Submits the end of a session, or of a claimed group, by an op that cannot get lost. */
static void submit_end(cbd_session *session, uint32_t flags)
{
    if (session->handle == 0 || session->last == NULL || (session->claimed && session->groups[0]->unmapped))
        return;
    session->last->opcode = session->claimed ? CBD_OP_UNMAP_GROUP : CBD_OP_UNMAP_ATTRIBUTE;
    session->last->value = session->claimed ? session->groups[0]->view.index : 0;
    session->last->flags = flags;
    session->last->handle = session->handle;
    session->last->life = session->life;
    cbdi_defer(session->stage, session->last);
    session->last = NULL;
}

/* Ends it where it is open. */
static void end_session(cbd_session *session, uint32_t flags)
{
    if (!mark_over(session))
        return;
    submit_end(session, flags);
    writer_gone(session);
}

/* An unmap was refused. Where the session is of an earlier life, that is its end. */
static void refused(cbd_session *session, cbd_status status)
{
    if (status != CBD_STATUS_BROKER_RESTARTED || session->life == atomic_load(&session->stage->ring.life))
        return;
    atomic_store(&session->lost, 1);
    if (mark_over(session))
        writer_gone(session);
}

/* COPY where memory that the unmap gives away is lent: the broker must not adopt it (M1). */
static uint32_t copy_if_lent(const struct map_group *group) { return atomic_load(&group->lent) != 0 ? CBD_FLAG_COPY : 0; }

/* What an op says of the group that it hands back: `count` rows, those that a mask selects, and whether its event was
 * recorded. The size; 0: all of it, and no event. The mask follows. */
static size_t say(const struct map_group *group, uint64_t count, const uint64_t *mask, bool recorded, cbd_abi_unmap_arguments *arguments)
{
    uint64_t words = mask != NULL ? count / 64 + (count % 64 != 0) : 0;
    memset(arguments, 0, sizeof *arguments);
    arguments->selection.count = count;
    arguments->selection.sort = mask != NULL ? CBD_SELECT_MASK : CBD_SELECT_ROWS;
    arguments->selection.words_offset_bytes = mask != NULL ? sizeof *arguments : 0;
    arguments->selection.word_count = (uint32_t)words;
    if (recorded && group->event != NULL) {
        arguments->event_index = group->event_index;
        arguments->event_used = 1;
    }
    return count == CBD_ALL && mask == NULL && !arguments->event_used ? 0 : sizeof *arguments + words * sizeof *mask;
}

static cbd_status unmap_group(cbd_group *view, uint32_t flags, bool recorded, cbd_op **op, cbd_error *error)
{
    struct map_group *group = (struct map_group *)view;
    if (op != NULL)
        *op = NULL;
    if (view == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group is NULL");
    cbd_session *session = view->session;
    if (atomic_load(&session->lost))
        return cbdi_session_over(session, error);
    if (atomic_load(&session->over) || group->unmapped)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "group %llu of \"%.200s\" was handed back already",
                         (unsigned long long)view->index, session->name);
    if (flags & ~CBD_FLAG_COPY)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "flags are 0x%x: expected 0 or CBD_FLAG_COPY", flags);
    cbd_status status = cbdi_enter(session->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct submission s = {.opcode = CBD_OP_UNMAP_GROUP, .flags = flags | copy_if_lent(group), .value = view->index};
    cbd_abi_unmap_arguments arguments;
    size_t bytes = say(group, CBD_ALL, NULL, recorded, &arguments);
    of_session(&s, session);
    status = cbdi_submit_begin(session->stage, &s, bytes, 0, error);
    if (status == CBD_STATUS_OK) {
        if (bytes != 0)
            memcpy(s.arguments, &arguments, bytes);
        cbdi_group_protect(session, group, PROT_READ);
        group->unmapped = true;
        cbdi_submit_commit(session->stage, &s, op);
    }
    cbdi_leave(session->stage);
    return status;
}

cbd_status cbd_unmap_group(cbd_group *group, uint32_t flags, cbd_op **op, cbd_error *error)
{
    return unmap_group(group, flags, false, op, error);
}

static bool is_nothing(const cbd_cuda_sync *sync) { return sync == NULL || (sync->stream == 0 && sync->wait_event == 0); }

/* The caller hands over without having waited: where the broker goes, or has gone, the arena must stay open. */
static void note_queued(const struct map_group *group, const cbd_cuda_sync *sync)
{
    if (group->event != NULL && !group->unmapped && !is_nothing(sync))
        atomic_store(&group->segment->queued, 1);
}

/* Records the group's event behind what the caller waits for; where the session is of an earlier broker, the unmap says so. */
static cbd_status record(const struct map_group *group, const cbd_cuda_sync *sync, cbd_error *error)
{
    const cbd_session *session = group->view.session;
    if (group->event == NULL && group->segment != NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "group %llu of \"%.200s\" lies on the host: wait for what fills it, and unmap it without a stream or an event",
                         (unsigned long long)group->view.index, session->name);
    if (group->event == NULL || group->unmapped || atomic_load(&session->over) || session->life != atomic_load(&session->stage->ring.life))
        return CBD_STATUS_OK;
    return cbdi_cuda()->record(group->event, sync, error);
}

cbd_status cbd_unmap_group_after(cbd_group *group, uint32_t flags, const cbd_cuda_sync *sync, cbd_op **op, cbd_error *error)
{
    if (op != NULL)
        *op = NULL;
    if (group != NULL)
        note_queued((struct map_group *)group, sync);
    cbd_status status = group == NULL || is_nothing(sync) ? CBD_STATUS_OK : record((struct map_group *)group, sync, error);
    return status == CBD_STATUS_OK ? unmap_group(group, flags, !is_nothing(sync), op, error) : status;
}

cbd_status cbd_unmap_attribute_after(cbd_session *session, uint32_t flags, const cbd_cuda_sync *sync, cbd_op **op, cbd_error *error)
{
    if (op != NULL)
        *op = NULL;
    for (size_t i = 0; session != NULL && i < session->count; i++)
        note_queued(session->groups[i], sync);
    if (session == NULL || is_nothing(sync) || session->count == 0 || atomic_load(&session->over))
        return cbdi_unmap_session(session, flags, CBD_ALL, NULL, false, op, error);
    if (session->split)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "the session on \"%.200s\" has several groups: hand each back by cbd_unmap_group_after, then end the session",
                         session->name);
    cbd_status status = session->groups[0]->unmapped ? CBD_STATUS_OK : record(session->groups[0], sync, error);
    return status == CBD_STATUS_OK ? cbdi_unmap_session(session, flags, CBD_ALL, NULL, true, op, error) : status;
}

cbd_status cbd_unmap_attribute(cbd_session *session, uint32_t flags, cbd_op **op, cbd_error *error)
{
    return cbdi_unmap_session(session, flags, CBD_ALL, NULL, false, op, error);
}

cbd_status cbdi_unmap_session(cbd_session *session, uint32_t flags, uint64_t count, const uint64_t *mask, bool recorded, cbd_op **op,
                              cbd_error *error)
{
    cbd_abi_unmap_arguments arguments;
    size_t bytes = 0;
    if (op != NULL)
        *op = NULL;
    if (session == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "session is NULL");
    if (atomic_load(&session->over))
        return cbdi_session_over(session, error);
    if (session->claimed)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "the session on \"%.200s\" is another client's; unmap the group that was claimed",
                         session->name);
    if (flags & ~(CBD_FLAG_COPY | CBD_FLAG_SEAL | CBD_FLAG_NEXT_ORDINAL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "flags are 0x%x: expected NEXT_ORDINAL, SEAL and COPY at most", flags);
    if ((flags & CBD_FLAG_NEXT_ORDINAL) && !session->next_ordinal)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "NEXT_ORDINAL at unmap, but \"%.200s\" was mapped at an ordinal of its own", session->name);
    cbd_status status = cbdi_enter(session->stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    struct submission s = {.opcode = CBD_OP_UNMAP_ATTRIBUTE,
                           .flags = flags | (session->next_ordinal ? CBD_FLAG_NEXT_ORDINAL : 0)};
    for (size_t i = 0; i < session->count; i++)
        if (!session->groups[i]->unmapped)
            s.flags |= copy_if_lent(session->groups[i]);
    if (session->count == 1 && !session->groups[0]->unmapped)
        bytes = say(session->groups[0], count, mask, recorded, &arguments);
    of_session(&s, session);
    status = cbdi_submit_begin(session->stage, &s, bytes, 0, error);
    if (status == CBD_STATUS_OK) {
        if (bytes != 0)
            memcpy(s.arguments, &arguments, sizeof arguments);
        if (bytes > sizeof arguments)
            memcpy(s.arguments + sizeof arguments, mask, bytes - sizeof arguments);
        for (size_t i = 0; i < session->count; i++)
            if (!session->groups[i]->unmapped)
                cbdi_group_protect(session, session->groups[i], PROT_READ);
        bool open = mark_over(session);
        atomic_store(&session->waiting, session->split);
        cbdi_submit_commit(session->stage, &s, op);
        if (open)
            writer_gone(session);
    } else {
        refused(session, status);
    }
    cbdi_leave(session->stage);
    return status;
}

cbd_status cbd_abort(cbd_session *session, cbd_error *error)
{
    if (session == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_HANDLE, "session is NULL");
    end_session(session, CBD_FLAG_ABORT);
    if (atomic_exchange(&session->waiting, 0))
        submit_end(session, CBD_FLAG_ABORT);
    return CBD_STATUS_OK;
}

void cbdi_group_drop(struct map_group *group)
{
    if (group->segment != NULL)
        atomic_fetch_sub(&group->segment->users, 1);
    if (group->event != NULL)
        cbdi_cuda()->let_go(group->event);
    free(group->arrays);
    free(group);
}

/* Drops a reference; the last one lets the memory go. */
static void drop_session(cbd_session *session)
{
    if (atomic_fetch_sub(&session->refs, 1) != 1)
        return;
    cbd_stage *stage = session->stage;
    for (size_t i = 0; i < session->count; i++)
        cbdi_group_drop(session->groups[i]);
    cbdi_query_drop(session->query);
    atomic_fetch_sub(&stage->sessions_kept, 1);
    free(session->prims);
    free(session->last);
    free(session->sizes);
    free(session->groups);
    free(session);
    cbdi_leave(stage);
    cbdi_stage_drop(stage);
}

void cbd_session_release(cbd_session *session)
{
    if (session == NULL)
        return;
    cbd_stage *stage = session->stage;
    if (session->handle != 0 && !atomic_load(&session->over) && !atomic_load(&stage->foreign))
        cbdi_log(CBD_LOG_WARNING, CBDI_LOG_HANDLE, "stage %s: the session on \"%.200s\" was released while it was open: nothing of it is written",
                 stage->name, session->name);
    end_session(session, CBD_FLAG_ABORT); /* what waits for other clients goes on */
    drop_session(session);
}

cbd_status cbdi_group_lend(struct map_group *group, cbd_error *error)
{
    cbd_session *session = group->view.session;
    uint32_t writers = atomic_load(&session->writers);
    do {
        if (writers == 0 || atomic_load(&session->over))
            return cbdi_session_over(session, error);
    } while (!atomic_compare_exchange_weak(&session->writers, &writers, writers + 1));
    atomic_fetch_add(&session->refs, 1);
    atomic_fetch_add(&group->lent, 1);
    return CBD_STATUS_OK;
}

void cbdi_group_unlend(struct map_group *group)
{
    cbd_session *session = group->view.session;
    atomic_fetch_sub(&group->lent, 1);
    writer_gone(session);
    drop_session(session);
}
