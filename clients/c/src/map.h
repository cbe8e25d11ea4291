/* What a map session is, for map.c and unmap.c (the owner's side) and claim.c (groups of sessions
 * of several, claimed one by one). */
#ifndef CBDI_MAP_H
#define CBDI_MAP_H

#include "client.h"

struct map_group {
    cbd_group view; /* first */
    struct segment *segment;
    uint64_t offset_bytes, lease_bytes;
    struct cbdi_import *event; /* of device memory, else NULL: recorded behind what fills it (C3) */
    uint32_t event_index;
    bool unmapped;
    cbd_staged_array *arrays; /* view.arrays */
    _Atomic uint32_t lent;    /* exports that are alive: somebody may still look, or write */
};

/* An open map session; or, with `claimed`, one group of somebody else's, under the same handle. */
struct cbd_session {
    _Atomic uint32_t refs; /* the handle's, and one for every export of a group */
    cbd_stage *stage;
    cbd_query *query; /* NULL: claimed */
    uint64_t *prims;  /* of a claimed group, sizes of arrays behind them; else NULL, they are the query's */
    uint64_t handle, life; /* life: of the broker that opened it */
    bool next_ordinal, claimed;
    uint64_t group_count;
    bool split; /* several groups, which are claimed as they are fetched */
    cbd_schema schema;
    uint64_t row_bytes;
    _Atomic uint32_t over;    /* committed or aborted, or lost and told so */
    _Atomic uint32_t lost;    /* it ended with a restart of the broker */
    _Atomic uint32_t writers; /* who may write its memory: who has it open, and every export of a group. Never up from 0 */
    _Atomic uint32_t waiting; /* unmapped as a whole, and other clients may still fill groups */
    size_t count, room, next;
    struct map_group **groups; /* those that are this client's */
    struct deferred *last;     /* submitted when the session ends without an op of the caller's */
    uint64_t *sizes;           /* array kind: elements of each prim's row; NULL: claimed */
    char name[];
};

/* Under GUARD, the memory of a group of the host (M1). */
void cbdi_group_protect(const cbd_session *session, const struct map_group *group, int protection);
/* The errors of sessions of an earlier broker, and of those that have ended. */
cbd_status cbdi_session_before(const cbd_session *session, cbd_error *error);
cbd_status cbdi_session_over(const cbd_session *session, cbd_error *error);
/* A session without groups; NULL: no memory. */
cbd_session *cbdi_session_new(cbd_stage *stage, cbd_query *query, const char *name, size_t length);
/* Makes one more group from the broker's descriptor, which is checked first; with cache_lock held. */
cbd_status cbdi_take_group(cbd_session *session, const cbd_abi_group_descriptor *d, cbd_error *error);
/* Array kind: where each row lies in the group, one after the other, of these sizes, which were checked. */
cbd_status cbdi_stage_arrays(const uint64_t *sizes, struct map_group *group, cbd_error *error);
/* Lets go of what a group holds, and of the group. */
void cbdi_group_drop(struct map_group *group);
/* An export of the group begins, where the session is open, and ends: it keeps the session's memory, and the unmap
 * copies. Any thread ends it. */
cbd_status cbdi_group_lend(struct map_group *group, cbd_error *error);
void cbdi_group_unlend(struct map_group *group);
/* Ends the session as cbd_unmap_attribute does; of its one group, `count` leading rows or CBD_ALL are handed back, those that
 * a mask selects. recorded: the group's event says when they are there. */
cbd_status cbdi_unmap_session(cbd_session *session, uint32_t flags, uint64_t count, const uint64_t *mask, bool recorded, cbd_op **op,
                              cbd_error *error);
/* Claims one more group of an own session; END when there is none left. */
cbd_status cbdi_claim_next(cbd_session *session, cbd_error *error);

#endif
