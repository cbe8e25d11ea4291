/* What the files of the client share. Nothing here is public.
 *
 *     discover.c   finds the runtime directory and connects
 *     attach.c     says hello, maps, forks and closes                 struct cbd_stage
 *     idle.c       closes where nothing is in use
 *     socket.c     messages with descriptors, the proof that the broker lives
 *     segment.c    segment id → mapping                               struct segment
 *     device.c     numbers of GPUs, arenas and events on them          device.h: struct cbdi_cuda
 *     ring.c       submission and completion rings                    struct ring
 *     rooms.c      room for arguments and results                     struct rooms
 *     op.c         waiting for an op                                  struct cbd_op
 *     reattach.c   taking the session up again after the broker's restart
 *     outcome.c    how ops ended that were in flight then             struct outcomes
 *     unsealed.c   what was accepted and not sealed when it happened  struct unsealed
 *     directory.c  columns, strings, versions, floors                 struct column, struct version
 *     pin.c        pin slots, what they keep                          struct cbd_pin
 *     layout.c     which row a query's prim has                       struct row_map
 *     arrays.c     rows of their own lengths
 *     history.c    as of an ordinal, what changed since one           struct change
 *     fit.c        which of a name's columns a write is for
 *     map.c, unmap.c, claim.c  groups to fill                         map.h: struct cbd_session
 *     stage.c, query.c, write.c, batch.c, delete.c                    the verbs
 *     read.c, groups.c, latest.c, snapshot.c  reading in place        read.h: struct cbd_read, struct group
 *     mirror.c     rows in other memory than they lie in
 *     filter.c     queries by filter, which may be used before they are made
 *     lists.c      lists of ids, and paths as sequences of tokens     struct lists
 *     dlpack.c     groups and tensors as DLPack's, and the way back
 *     dtype.c, text.c, error.c, futex.c                               what they need
 *     events.c     tells event loops of epochs                        struct events
 *     log.c        tells the application's callback what happens
 *     thread.c     starts the threads of these two
 *
 * Lifetimes. A stage counts two things. `refs`: whoever holds a pointer to the struct.
 * `mapped`: whoever needs its mappings, that is the open stage, every call while it
 * runs, every pin, every map session. The last `mapped` unmaps and closes the channel
 * descriptor, which is this process's proof of life (I3); the last `refs` frees.
 *
 * Locks. ring.lock (submit, drain), cache_lock (columns, segments, row maps),
 * socket_lock (one request at a time), state_lock (why the session ended). Order: cache_lock before
 * socket_lock before ring.lock; state_lock is a leaf, and none of these is taken with a lock of struct events held. Nobody sleeps on a futex with a lock held, but for
 * cache_lock: who needs a segment of a broker that is just being replaced (reattach.c).
 *
 * A forked child must not touch a lock: another thread of the parent may have held
 * it. So `foreign` is looked at first, always.
 */
#ifndef CBDI_CLIENT_H
#define CBDI_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "callboard.h"
#include "device.h"
#include "shared.h"

/* ---- errors (error.c) ---------------------------------------------------- */

/* Fills *error (may be NULL) and returns status. */
cbd_status cbdi_fail(cbd_error *error, cbd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Copies text that may hold anything into a terminated buffer, cut at a character. */
void cbdi_copy_text(char *to, size_t room, const void *text, size_t length);

/* ---- the log (log.c) ------------------------------------------------------ */

enum log_channel { CBDI_LOG_SESSION, CBDI_LOG_MEMORY, CBDI_LOG_HANDLE, CBDI_LOG_CALL, CBDI_LOG_CHANNELS };

/* Never waits for the callback, and is never called where data goes, or with the descriptors' lock held. */
void cbdi_log(uint32_t severity, enum log_channel channel, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- threads (thread.c) ---------------------------------------------------- */

/* One that no signal interrupts; 0 or an errno. */
int cbdi_thread_start(pthread_t *thread, void *(*run)(void *), void *context);

/* ---- texts (text.c) ------------------------------------------------------ */

/* How many leading bytes are whole, valid characters; `length`: all of it. */
size_t cbdi_utf8_prefix(const void *text, size_t length);
/* INVALID_ARGUMENT names `what` and the first byte that is wrong. */
cbd_status cbdi_utf8_check(const char *what, const char *text, size_t length, cbd_error *error);
/* An attribute's name, and a list of them, whose errors say which one. */
cbd_status cbdi_name_check(const char *name, bool writing, size_t *length, cbd_error *error);
cbd_status cbdi_names_check(const char *const *names, size_t n, bool writing, cbd_error *error);
/* Element `index` of a list of paths or of tokens. */
cbd_status cbdi_string_check(const char *text, size_t length, size_t index, bool path, cbd_error *error);
const char *cbdi_shape_text(const int64_t *shape, int32_t ndim, char text[160]);
const char *cbdi_row_shape_text(const uint64_t *shape, uint32_t ndim, char text[160]);

/* ---- segments (segment.c) ------------------------------------------------ */

struct segment {
    uint64_t id;
    uint8_t *base;
    uint64_t size_bytes;
    uint32_t writable;
    bool kept; /* pointers into it are kept as long as it is mapped: it never goes before the stage */
    _Atomic uint32_t users; /* pins and sessions that look at it */
    /* An arena of device memory, where import is not NULL: then base is a device pointer. */
    struct cbdi_import *import;
    uint32_t device_number, ordinal;
    uint64_t arena_generation, life; /* of the broker that made it; of the ring then */
    struct deferred *closed;         /* tells the broker that it was closed (C6) */
    _Atomic uint32_t queued;         /* a group in it was handed over behind work: with its broker gone nobody can say that it ended */
};

/* No stage has so many; a greater id is a broken one, and must not make us allocate. */
#define SEGMENT_ID_MAX ((uint64_t)1 << 24)

/* All with cache_lock held. An arena of device memory is never given where host memory is meant: INTERNAL. */
cbd_status cbdi_segment(cbd_stage *stage, uint64_t id, struct segment **segment, cbd_error *error);
/* Makes a mapping writable, in place. A segment that was read once may become this
 * client's own: the broker hands those of dead clients on, warm (S5). */
cbd_status cbdi_segment_writable(cbd_stage *stage, struct segment *segment, cbd_error *error);

/* The bytes [offset, offset+length) of a segment, checked; `what` is for the text. */
cbd_status cbdi_place(cbd_stage *stage, uint64_t segment, uint64_t offset, uint64_t length, const char *what,
                      const uint8_t **bytes, struct segment **where, cbd_error *error);

/* The segment of an id where it is here already, of either sort; and notes one. */
struct segment *cbdi_segment_known(cbd_stage *stage, uint64_t id);
cbd_status cbdi_segment_keep(cbd_stage *stage, struct segment *segment, cbd_error *error);

/* Unmaps retired segments that nobody looks at (S2); every call begins with it. Under cache_lock. */
void cbdi_segments_trim(cbd_stage *stage);
void cbdi_segments_unmap(cbd_stage *stage);

/* ---- GPUs (device.c) ------------------------------------------------------- */

struct device {
    uint8_t uuid[16];
    uint64_t bytes;
    bool absent; /* it has the number, and is not served now */
};

/* An event of the broker's that is open here. */
struct lease {
    struct lease *next;
    struct cbdi_import *event;
    uint64_t generation, life; /* of the broker that made it; of the ring then */
    uint32_t index;
};

/* The driver's half, or NULL: libcallboard_cuda was not enabled. */
const struct cbdi_cuda *cbdi_cuda(void);
/* The NOT_SUPPORTED that says so. */
cbd_status cbdi_cuda_needed(const char *what, cbd_error *error);

/* BROKER_RESTARTED: the bytes lie in an arena of a broker that is gone (B3), and a driver may still show some. */
cbd_status cbdi_device_not_void(cbd_stage *stage, const void *data, cbd_error *error);

/* From a device of the caller's to the broker's number: 0 for the host, else 1 + its index. INVALID_ARGUMENT: none that there
 * is; NOT_SUPPORTED: a GPU that the broker does not serve. No lock may be held. */
cbd_status cbdi_device_in(cbd_stage *stage, const char *what, uint32_t device_type, uint32_t device_id, uint32_t *number,
                          cbd_error *error);
/* The same in place: what is 0 stays 0, and device_id becomes the broker's index. */
cbd_status cbdi_device_named(cbd_stage *stage, const char *what, uint32_t *device_type, uint32_t *device_id, cbd_error *error);
/* And back, with cache_lock held. */
void cbdi_device_out(cbd_stage *stage, uint32_t number, uint32_t *device_type, uint32_t *device_id);
void cbdi_schema_out(cbd_stage *stage, cbd_schema *schema);

/* All with cache_lock held. `length` bytes of a block in an arena, which is opened where it is not yet; `what` is for the text. */
cbd_status cbdi_device_block(cbd_stage *stage, const char *what, const cbd_abi_block_ref *block, uint32_t number, uint64_t generation,
                             uint64_t length, const uint8_t **bytes, struct segment **where, cbd_error *error);
/* An event that a group of device memory was leased with, to be let go of. */
cbd_status cbdi_device_event(cbd_stage *stage, const char *what, uint32_t index, uint32_t number, uint64_t generation,
                             struct cbdi_import **event, cbd_error *error);
/* Closes an arena that nobody looks at, and tells the broker. */
void cbdi_arena_close(cbd_stage *stage, struct segment *segment);
/* Closes events, which are of a broker that is gone. */
void cbdi_device_events_close(cbd_stage *stage);
/* The stage is about to hang up: closes the arenas that nobody looks at, and waits until the broker has heard of it, so that
 * it need not wait for the end of this process (B4, C6). */
void cbdi_device_leave(cbd_stage *stage);
/* Keeps a GPU's context, so that no call makes it anew; what is wrong with the device says whoever uses it. */
void cbdi_device_hold(cbd_stage *stage, uint32_t ordinal);
/* The stage ends: closes events and arenas, the latter among the segments. */
void cbdi_device_end(cbd_stage *stage);

/* ---- rings (ring.c) and ops (op.c) ---------------------------------------- */

#define OP_TEXT_BYTES 512
#define WAIT_TURN_NS UINT64_C(100000000) /* then we look whether the broker lives (R4) */

struct cbd_op {
    cbd_stage *stage;
    uint64_t id;
    _Atomic uint32_t done; /* stored after everything below, before cq_head */
    bool abandoned;        /* released while pending; guarded by ring.lock */
    uint32_t opcode, flags; /* as submitted, and so are the next four: outcome.c asks after a restart */
    uint64_t ordinal, value;
    uint64_t target;         /* the handle that it was submitted with */
    uint64_t about;          /* the hash of the attribute's name where the arguments do not hold it, else 0 */
    uint64_t epoch;          /* the newest one then */
    uint32_t argument_length;
    cbd_op_result result;
    uint64_t handle;
    uint32_t argument_offset, argument_bytes; /* rooms; given back when the op is done */
    uint32_t result_offset, result_room;
    void *into; /* where the results are copied to at completion, into_bytes at most */
    uint32_t into_bytes;
    uint32_t got_bytes;
    cbd_op *next; /* in ring.spare */
    char text[OP_TEXT_BYTES];
};

/* Free room of an area: extents sorted by offset. */
struct extent {
    uint32_t offset, bytes;
};

struct rooms {
    uint8_t *base;
    uint32_t size_bytes;
    uint32_t count, capacity;
    struct extent *free;
};

/* An op without arguments that must not get lost: it is submitted as soon as there is
 * room, of which it never takes the last quarter. Allocated with what it will release, so that nothing can fail then;
 * cbdi_defer takes it over and frees it. */
struct deferred {
    struct deferred *next;
    uint32_t opcode, flags;
    uint64_t handle, value, life; /* of another life: it needs no op any more */
};

/* By attribute, the highest ordinal of what the broker has accepted and maybe not sealed. */
struct unsealed_entry {
    uint64_t hash, ordinal; /* hash 0: free */
};

struct unsealed {
    struct unsealed_entry *entries;
    uint64_t mask, count;
    uint64_t prims; /* of deletes that name no attribute */
    bool tell;      /* some of it was lost: the next submission is refused with `told` */
    char told[OP_TEXT_BYTES];
};

struct ring {
    pthread_mutex_t lock;
    cbd_abi_channel_control *control;
    cbd_abi_submission_entry *sq;
    cbd_abi_completion_entry *cq;
    uint32_t sq_entries, cq_entries;
    uint64_t sq_tail;           /* ours; never read back */
    _Atomic uint64_t cq_head;   /* ours; waiters look at it without the lock */
    uint64_t next_id;
    uint32_t outstanding;
    cbd_op **pending; /* cq_entries places; op id i starts to look at i mod cq_entries */
    struct rooms arguments, results;
    cbd_op *spare;
    struct deferred *deferred, *deferred_last;
    uint32_t patient; /* calls that wait for room; what is deferred stands back */
    bool spin;
    bool lost;             /* the broker is gone and not back yet: nothing is submitted or drained */
    _Atomic uint64_t life; /* from 1; grows with each broker that was lost. Handles are of one life */
    uint64_t sessions, sessions_before; /* map sessions that are not closed: of this life, of earlier ones */
    struct deferred *sessions_closed;   /* SESSIONS_CLOSED, while it is still to be sent in this life */
    struct unsealed unsealed;
};

/* One submission under way. begin locks and gives room; fill `arguments` and the
 * fields; commit or cancel unlocks. */
struct submission {
    uint32_t opcode, flags;
    cbd_query *query; /* or NULL; its handle is the op's, and is made anew first where the broker was restarted */
    bool waits;       /* the call waits for the broker anyway: where there is no room it waits for that as well */
    uint64_t handle, life; /* of a session, and the life that it is of; 0: any */
    uint64_t ordinal, value;
    uint64_t about, about_ordinal; /* of an op on a session: the hash of its attribute's name, and its ordinal */
    uint8_t *arguments; /* zeroed */
    uint32_t argument_bytes;
    void *into;
    uint32_t into_bytes;
    cbd_op *op;
};

/* Checks and copies the places of a mapped channel; on success the ring works. */
cbd_status cbdi_ring_init(cbd_stage *stage, const cbd_abi_channel_header *header, cbd_error *error);
void cbdi_ring_free(struct ring *ring);

cbd_status cbdi_submit_begin(cbd_stage *stage, struct submission *s, size_t argument_bytes, size_t result_bytes,
                             cbd_error *error);
void cbdi_submit_commit(cbd_stage *stage, struct submission *s, cbd_op **op);
void cbdi_submit_cancel(cbd_stage *stage, struct submission *s);
void cbdi_defer(cbd_stage *stage, struct deferred *what);
/* Whether an op that nobody waits for is still to be done; submits what there is room for. */
bool cbdi_ring_owes(cbd_stage *stage, uint32_t opcode);

/* Sleeps until the broker completes something after client_bell had the value `bell`; a turn at most. op may be NULL. */
void cbdi_sleep_on_bell(cbd_stage *stage, cbd_op *op, uint32_t bell, uint64_t turn);

/* Takes completions; with ring.lock held. */
void cbdi_drain(cbd_stage *stage);

/* The broker is gone: what it completed is taken, then the ring stands still, in a new life. */
void cbdi_ring_lose(cbd_stage *stage);
/* Whoever waits looks again. */
void cbdi_ring_wake(cbd_stage *stage);
/* A broker has taken the channel up again: every op ends and the ring goes on. False where another broker was
 * lost meanwhile. Takes `closed`, and keeps it until the sessions of earlier lives are closed. */
struct outcomes;
bool cbdi_ring_renew(cbd_stage *stage, const struct outcomes *outcomes, struct deferred *closed, cbd_error *error);
/* A map session is opened by the submission under way (its life comes back), and closed: nobody writes into it any more. */
uint64_t cbdi_session_opened(cbd_stage *stage);
/* As opened, for a claim that was answered; false where the broker of that life is gone. */
bool cbdi_session_claimed(cbd_stage *stage, uint64_t life);
void cbdi_session_closed(cbd_stage *stage, uint64_t life);

/* Waits for an op of our own for ever, and releases it. */
cbd_status cbdi_op_finish(cbd_op *op, cbd_op_result *result, uint64_t *handle, uint32_t *got_bytes, cbd_error *error);

/* A StringList: its size, and writing it. */
uint64_t cbdi_string_list_bytes(const char *const *texts, const size_t *lengths, size_t n);
void cbdi_string_list_put(uint8_t *to, const char *const *texts, const size_t *lengths, size_t n);

/* ---- the directory (directory.c); all with cache_lock held ----------------- */

/* Where a version's rows lie in other memory, as long as it is pinned (C5). */
struct mirror {
    struct mirror *next;
    uint32_t wanted; /* device number */
    uint64_t life;   /* of the broker that answered */
    cbd_abi_mirror_results at;
};

/* Counts the pins of one version, so that its bytes count once (V7). */
struct version_use {
    struct version_use *next;
    uint64_t birth;
    uint64_t bytes;
    uint64_t elements;      /* of bytes: of an array's rows, as many as the largest look at it took */
    struct mirror *mirrors;
    _Atomic uint32_t count; /* 0: may be given to another version, by who holds cache_lock */
};

struct column {
    uint32_t index;
    uint64_t name_id;
    const char *name; /* in shared memory, not terminated */
    uint32_t name_bytes;
    uint64_t name_hash;
    const cbd_abi_attribute_entry *entry;
    cbd_schema schema;
    uint64_t row_bytes;
    const cbd_abi_slot_page **pages; /* the chain as far as it was walked */
    uint32_t page_count, lap; /* lap: the place of the last page whose number is a power of two */
    struct version_use *uses;
    struct column *next_of_bucket;
};

/* A version slot, copied out. */
struct version {
    uint64_t birth, death;
    cbd_abi_block_ref block;
    uint64_t rows;
    uint64_t ordinal_lowest, ordinal_highest;
    uint64_t layout_generation;
    cbd_abi_ref layout;
    cbd_abi_ref row_ordinals; /* segment 0: all rows are of ordinal_highest */
    uint32_t flags;
    uint32_t device_number; /* of block: 0 is the host */
    uint64_t arena_generation;
    uint64_t stamp_ns;
};

/* The floors of one epoch. */
struct floors {
    uint64_t global, other, stamp_ns;
    uint64_t count;
    const cbd_abi_floor_row *rows;
};

/* Learns of new columns. */
cbd_status cbdi_columns_refresh(cbd_stage *stage, cbd_error *error);
/* The first column of the name after `after` (NULL: from the start), or NULL. */
struct column *cbdi_column_named(cbd_stage *stage, const char *name, size_t length, const struct column *after);
/* Rule V4. NOT_FOUND, without a text, when the column shows nothing at the epoch. */
cbd_status cbdi_find_version(cbd_stage *stage, struct column *column, uint64_t epoch, struct version *version,
                             cbd_error *error);
/* Which of a column's states is meant. */
struct moment {
    uint32_t by;    /* CBD_AT_ORDINAL, CBD_AT_STAMP or CBD_AT_NEAREST_STAMP */
    uint64_t at;
    uint64_t epoch; /* by stamp: what was sealed later does not count. An ordinal's state does not change any
                     * more, where it is not above the floor of the column */
};

/* The version that is exactly the state of the moment, sealed by the epoch (O4). NOT_FOUND, without a text,
 * when the column had nothing then; OUT_OF_RANGE. It is not pinned yet (V5). */
cbd_status cbdi_find_version_at(cbd_stage *stage, struct column *column, const struct moment *moment, uint64_t epoch,
                                struct version *version, cbd_error *error);
/* The OUT_OF_RANGE that says so. */
cbd_status cbdi_not_retained(const struct column *column, const struct moment *moment, cbd_error *error);
cbd_status cbdi_string(cbd_stage *stage, uint64_t id, const char **text, uint32_t *length, cbd_error *error);
cbd_status cbdi_floors_at(cbd_stage *stage, uint64_t epoch, struct floors *floors, cbd_error *error);
/* Of a name that has a column. */
uint64_t cbdi_floor_of_id(const struct floors *floors, uint64_t name_id);
/* name NULL: the global floor. */
uint64_t cbdi_floor_of(cbd_stage *stage, const struct floors *floors, const char *name, size_t length);
void cbdi_columns_free(cbd_stage *stage);
void cbdi_mirrors_free(struct version_use *use);
uint64_t cbdi_hash(const char *text, size_t length);

/* ---- pins (pin.c) ---------------------------------------------------------- */

struct pin_use {
    struct segment *segment;
    struct version_use *version;
};

struct cbd_pin {
    cbd_stage *stage;
    _Atomic uint32_t used; /* the slot is taken */
    _Atomic uint32_t refs;
    _Atomic uint32_t attribute;
    _Atomic uint64_t epoch;
    struct pin_use *uses; /* what it keeps; changed with cache_lock held; kept for the next user */
    uint32_t use_count, use_room;
};

/* Pins n attributes (or CBD_PIN_ALL) at one epoch, rule V2. *epoch 0: nothing was
 * sealed and no pin was taken. No lock may be held. at_once: where the broker would have to be asked it is TIMEOUT. */
cbd_status cbdi_pin_take(cbd_stage *stage, struct column *const *columns, const uint32_t *attributes, size_t n, bool at_once,
                         cbd_pin **pins, uint64_t *epoch, cbd_error *error);
/* Pins one attribute at an epoch of the past, where its horizon still allows it; else *pin is NULL. */
cbd_status cbdi_pin_past(cbd_stage *stage, struct column *column, uint64_t epoch, cbd_pin **pin, cbd_error *error);
/* Notes that the pin keeps this version in this segment, or in one that is not opened (NULL); with cache_lock held. LIMIT
 * when that is too much for this client. */
cbd_status cbdi_pin_use(cbd_pin *pin, struct column *column, const struct version *version, struct segment *segment,
                        cbd_error *error);

/* Counts elements of an array version that the pin keeps already; with cache_lock held. LIMIT. */
cbd_status cbdi_pin_elements(cbd_pin *pin, const struct column *column, const struct version *version, uint64_t bytes,
                             cbd_error *error);
/* What counts the pins of a version that one keeps; with cache_lock held. */
struct version_use *cbdi_version_use(const struct column *column, uint64_t birth);

/* ---- queries and layouts (query.c, layout.c) --------------------------------- */

#define ROW_MAPS_KEPT 8

/* Which of a query's prims are present in a version, and where. Immutable. */
struct row_map {
    _Atomic uint32_t refs;
    uint64_t generation, rows;
    cbd_abi_ref layout;
    uint64_t count;     /* prims that are present */
    uint64_t first_row; /* where index is NULL: prim i has row first_row + i */
    uint32_t *index;    /* else: the row of prim i */
    uint64_t *prims;    /* their path ids */
};

struct cbd_query {
    cbd_stage *stage;
    _Atomic uint32_t refs;
    uint64_t handle, life; /* guarded by ring.lock */
    _Atomic uint64_t count;
    uint64_t *ids;
    cbd_op *op;               /* of a filter, else NULL */
    _Atomic uint32_t running; /* its prims are not known yet: count is 0. Ends with cache_lock held */
    char *attributes;         /* names that a filter found, each terminated */
    uint64_t attribute_count;
    uint64_t list;            /* that it was made of, 0: none; one reference */
    uint64_t table_mask; /* path id → its first place in ids, plus 1; made at the first read */
    uint32_t *table;
    struct row_map *maps[ROW_MAPS_KEPT]; /* newest first; guarded by cache_lock */
    struct deferred *release;
};

/* A query without prims and handle; the caller's, also where something fails later. */
cbd_status cbdi_query_new(cbd_stage *stage, cbd_query **query, cbd_error *error);
/* Waits for a query that is running, for as long as it takes; its own error. */
cbd_status cbdi_query_settle(cbd_query *query, cbd_error *error);
/* References of the library's own, which no caller has to give back. */
cbd_query *cbdi_query_retain(cbd_query *query);
void cbdi_query_drop(cbd_query *query);
/* A reference of the caller; with cache_lock held. TIMEOUT, without a text, of a map that is not there at_once. */
cbd_status cbdi_row_map(cbd_query *query, const struct version *version, uint64_t epoch, struct row_map **map,
                        cbd_error *error);
/* The map's prims whose rows an ordinal above `since` wrote last; NULL: no memory. */
struct row_map *cbdi_row_map_changed(const struct row_map *map, const uint64_t *row_ordinals, uint64_t since);
/* A map of prims without rows; takes the array. */
struct row_map *cbdi_row_map_of_prims(uint64_t *prims, uint64_t count);
void cbdi_row_map_release(struct row_map *map);
/* The first place of a path in the query plus 1, or 0; after a row map was made. */
uint32_t cbdi_query_place(const cbd_query *query, uint64_t id);
cbd_status cbdi_query_check(cbd_stage *stage, const cbd_query *query, cbd_error *error);
/* Registers a query of an earlier life with the broker of this one. Waits for it. */
cbd_status cbdi_query_renew(cbd_query *query, cbd_error *error);

/* ---- lists (lists.c) ------------------------------------------------------------ */

void cbdi_lists_free(cbd_stage *stage);

/* ---- history (history.c); with cache_lock held ------------------------------------ */

/* A delete that a query's prim has met last. */
struct tombstone {
    uint64_t prim, ordinal;
    uint32_t place; /* in the query */
};

/* Finds the version of a moment and pins it (V5); NOT_FOUND, without a text, when there was none. */
cbd_status cbdi_version_at(cbd_stage *stage, struct column *column, const struct moment *moment, struct version *version,
                           cbd_pin **pin, cbd_error *error);
/* The last delete of each of the query's prims, of those above `since` and up to `end` that the epoch shows,
 * in the query's order (O7). OUT_OF_RANGE: not all of them are known any more. *list is the caller's to free. */
cbd_status cbdi_tombstones(cbd_query *query, struct column *column, uint64_t epoch, uint64_t since, uint64_t end,
                           struct tombstone **list, size_t *count, cbd_error *error);

/* ---- rows of their own lengths (arrays.c); with cache_lock held ---------------------- */

/* Where the map's rows of an array version lie, checked; the pin keeps them. *arrays, map->count of them, is the
 * caller's to free. */
cbd_status cbdi_array_rows(cbd_stage *stage, struct column *column, const struct version *version, const uint8_t *table,
                           const struct row_map *map, cbd_pin *pin, cbd_array **arrays, cbd_error *error);

/* ---- types (dtype.c) ---------------------------------------------------------- */

cbd_status cbdi_dtype_check(uint8_t code, uint8_t bits, uint16_t lanes, cbd_error *error);
const char *cbdi_dtype_text(uint8_t code, uint8_t bits, uint16_t lanes, char text[32]);
void cbdi_schema_to_abi(const cbd_schema *schema, cbd_abi_schema *abi);
void cbdi_schema_from_abi(const cbd_abi_schema *abi, cbd_schema *schema);
/* The shape (rows, *row_shape[, lanes]); returns ndim. */
int32_t cbdi_view_shape(const cbd_schema *schema, uint64_t rows, int64_t shape[CBD_NDIM_MAX]);
bool cbdi_on_device(const cbd_tensor *tensor); /* or in managed memory */
cbd_status cbdi_tensor_check(const cbd_tensor *tensor, uint64_t *bytes, cbd_error *error);
/* Refuses a tensor of bools that has a byte other than 0 and 1; `bytes` as cbdi_tensor_check found them. */
cbd_status cbdi_bools_check(const cbd_tensor *tensor, uint64_t bytes, cbd_error *error);
/* Reads a tensor as rows: fills schema->lanes, code, bits (and checks them where
 * `existing` is given); row_shape must be set already. one_row: the caller gave the
 * shape behind the leading 1, which errors leave out. */
cbd_status cbdi_fold(const char *name, const cbd_tensor *tensor, bool one_row, cbd_schema *schema, const cbd_schema *existing,
                     cbd_error *error);
/* Copies rows compactly: row i from source row index_map[i], or i. */
void cbdi_gather(uint8_t *to, const cbd_tensor *tensor, uint64_t rows, const uint32_t *index_map);

/* ---- checks of a write (write.c), shared with map.c ----------------------------- */

/* INVALID_ARGUMENT for a mode that is none; NOT_SUPPORTED for INSERT where the broker does not serve it. */
cbd_status cbdi_mode_check(cbd_stage *stage, const char *name, uint32_t prim_mode, cbd_error *error);
/* Finds the attribute: 1 in *found, and its schema. */
cbd_status cbdi_schema_of(cbd_stage *stage, const char *name, size_t length, cbd_schema *schema, bool *found,
                          cbd_error *error);
/* FLOOR_VIOLATION when the ordinal is 0 or sealed already. */
cbd_status cbdi_ordinal_check(cbd_stage *stage, const char *name, size_t length, uint64_t ordinal, cbd_error *error);
/* INVALID_ARGUMENT when `schema` is not that of the attribute. */
cbd_status cbdi_schema_accept(const char *name, const cbd_schema *existing, const cbd_schema *schema,
                              cbd_error *error);

/* ---- the columns of a name (fit.c) ---------------------------------------------- */

/* Whether what is written fits rows of `existing`; NULL: whether it makes a column of its own. */
typedef cbd_status cbdi_try(void *context, const cbd_schema *existing, cbd_error *error);
/* Tries the columns of the name; the last try, which counts, is of the one that fits or of none. No lock
 * may be held. */
cbd_status cbdi_fit(cbd_stage *stage, cbd_query *query, const char *name, size_t length, cbdi_try *attempt, void *context,
                    cbd_error *error);
/* The schema of the name's only column, or of the one that prims of the query carry; `schemas`: how many there are. */
cbd_status cbdi_carried_schema(cbd_stage *stage, cbd_query *query, const char *name, size_t length, cbd_schema *schema,
                               size_t *schemas, bool *found, cbd_error *error);
/* ALREADY_EXISTS when a prim of the query exists in sealed state (behaviour 94). */
cbd_status cbdi_insert_check(cbd_stage *stage, cbd_query *query, const char *name, cbd_error *error);
/* NOT_SUPPORTED where the broker does not serve array kind. */
cbd_status cbdi_array_check(cbd_stage *stage, const char *name, cbd_error *error);
/* cbd_map_attribute for rows of this schema and no other; its own entry is the caller's. Devices in the options are the
 * broker's; that of the schema is for the groups alone. */
cbd_status cbdi_map_rows(cbd_stage *stage, cbd_query *query, const char *name, const cbd_map_options *options,
                         const cbd_schema *schema, cbd_session **session, cbd_error *error);

/* ---- the stage (attach.c, socket.c, reattach.c) ----------------------------------- */

/* Where a stage was looked for and found. */
struct place {
    char name[CBD_STAGE_NAME_BYTES_MAX + 1]; /* the stage that is meant */
    bool named;                              /* by the caller or by $CALLBOARD_STAGE, and not for want of a name */
    char directory[256];                     /* for people; cut */
    char *parent, *leaf; /* the directory is parent/leaf, or leaf where parent is NULL; of whoever asked */
};

enum link {
    LINK_UP,      /* the session runs, or is over */
    LINK_LOST,    /* the broker hung up; another one is looked for */
    LINK_HELLO,   /* one was found and asked to take the session up */
    LINK_ADOPTED, /* it did; the ring does not go on yet */
};

/* Taking the session up again. Guarded by socket_lock where nothing else is said. */
struct reattach {
    _Atomic uint32_t link; /* changed to and from UP with ring.lock held as well */
    uint64_t wait_ns;      /* 0: never */
    cbd_abi_hello_request hello;
    struct place place;
    uint64_t lost_ns, next_ns, pause_ns;
    char why[OP_TEXT_BYTES]; /* the last try failed */
    bool settling;           /* guarded by cache_lock */
};

/* Who waits in event loops, and the thread that tells them (events.c). */
struct events {
    pthread_mutex_t gate;     /* starting and stopping the thread; before lock */
    pthread_mutex_t lock;     /* the list, which changes with the descriptors' lock held as well */
    struct cbd_events *first;
    bool running;             /* guarded by gate */
    pthread_t thread;
    _Atomic uint32_t stop;
    uint32_t gone;            /* a futex: the thread is over */
};

struct cbd_stage {
    _Atomic uint32_t refs;
    _Atomic uint32_t mapped;
    _Atomic uint32_t queries, ops, open_sessions; /* handles that are not given back, and sessions that are not over (idle.c) */
    _Atomic uint32_t queries_kept;                /* by handles, by sessions, and the root's */
    _Atomic uint32_t sessions_kept;               /* that are not freed yet, ended or not */
    _Atomic uint32_t has_arenas; /* an arena was opened, ever */
    _Atomic uint64_t gpus;       /* a bit for each GPU of this process whose context is kept until the stage ends */
    _Atomic uint32_t leaving; /* it is being closed, or was: no arena is opened any more */
    _Atomic uint32_t closed;
    _Atomic uint32_t foreign; /* a forked child's copy (I4) */
    _Atomic uint32_t ended;   /* the session is over; ended_status and ended_text say why */
    cbd_stage *previous, *next; /* in the list that the fork handlers walk */

    int socket;        /* -1 when closed; guarded by socket_lock */
    int fds[3];        /* channel (its lock is the proof of life, I3), and while attaching directory and doorbell */
    uint64_t incarnation, generation;
    _Atomic uint64_t broker_incarnation, features;
    uint64_t timeout_ns;
    struct reattach reattach;
    bool guard, read_only;
    _Atomic uint64_t deleted_highest; /* the highest ordinal of this client's deletes */
    uint32_t abi_version;

    const cbd_abi_directory_header *directory;
    cbd_abi_doorbell *doorbell;
    uint8_t *channel;
    uint64_t channel_bytes, doorbell_bytes;
    struct ring ring;

    cbd_abi_pin_slot *pin_slots;
    struct cbd_pin *pins;
    uint32_t pin_count;
    _Atomic uint32_t pin_hint;
    _Atomic uint64_t pinned_bytes;

    pthread_mutex_t cache_lock;
    struct device *devices; /* the broker's, as it told them in devices_life */
    uint32_t device_count;
    uint64_t devices_life, devices_asked_ns;
    struct lease *leases;
    struct segment **segments; /* by id - 1 */
    uint64_t segments_room;
    _Atomic uint32_t retired_seen;
    struct column **columns; /* by index */
    uint32_t column_count, columns_room;
    struct column **buckets;
    uint32_t bucket_count; /* a power of two */
    cbd_query *root;       /* borrowed by nobody: released at close */
    bool at_once;          /* who has the lock must not wait: what would is TIMEOUT (cbd_try_latest) */
    struct lists *lists;   /* made at the first use */
    struct events events;

    _Atomic uint64_t last_query; /* that was numbered here */

    pthread_mutex_t socket_lock;
    pthread_mutex_t state_lock;
    char name[CBD_STAGE_NAME_BYTES_MAX + 1];
    cbd_status ended_status;
    char ended_text[OP_TEXT_BYTES];
};

/* Begins a call: the mappings stay until cbdi_leave. SESSION_ENDED when the stage is
 * closed or foreign. A session that the broker ended does not matter here: sealed
 * data can be read on. */
cbd_status cbdi_enter(cbd_stage *stage, cbd_error *error);
void cbdi_leave(cbd_stage *stage);
/* What fills *info from what is cached: zeroes it, enters and takes cache_lock; and gives both back (stage.c). */
cbd_status cbdi_look_begin(cbd_stage *stage, void *info, size_t bytes, cbd_error *error);
cbd_status cbdi_look_end(cbd_stage *stage, cbd_status status);
/* Adds a need for the mappings; the caller has one already. */
void cbdi_hold(cbd_stage *stage);
void cbdi_stage_retain(cbd_stage *stage);
void cbdi_stage_drop(cbd_stage *stage);

/* The descriptor of a pathname socket, and the descriptors of the stage, change under this lock alone: fork's
 * handlers take it, and a child must know them all. A leaf; nothing waits with it held. */
void cbdi_descriptors_lock(void);
void cbdi_descriptors_unlock(void);
void cbdi_close_socket(cbd_stage *stage);
/* What a message that answers a hello is: the reply, or why there is none. */
cbd_status cbdi_hello_reply(const void *message, size_t bytes, size_t fd_count, cbd_abi_hello_reply *reply, cbd_error *error);

/* ---- event loops (events.c) ----------------------------------------------------------- */

void cbdi_events_init(cbd_stage *stage);
void cbdi_events_free(cbd_stage *stage);
/* Every event loop learns that the stage was closed, and the thread ends. Before the directory goes. */
void cbdi_events_close(cbd_stage *stage);
/* In a forked child, with the descriptors' lock held: the parent's events are not the child's to take. */
void cbdi_events_forked(cbd_stage *stage);

/* Marks the session as over; the first reason counts. */
void cbdi_end(cbd_stage *stage, cbd_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The reason, or OK while the session runs. */
cbd_status cbdi_ended(cbd_stage *stage, cbd_error *error);

/* One request and its reply, of the next broker where this one hangs up; with cache_lock held. Descriptors
 * beyond those wanted are closed. */
cbd_status cbdi_ask(cbd_stage *stage, const void *request, size_t request_bytes, uint32_t reply_type, void *reply,
                    size_t reply_bytes, int *fd, cbd_error *error);
/* Looks at the socket without waiting: a last message ends the session, a hang-up too where there is no
 * taking up; and drives that where it is under way. cache_lock is not held. */
void cbdi_look_at_socket(cbd_stage *stage);

/* The broker hung up; with socket_lock held. */
void cbdi_hung_up(cbd_stage *stage);
/* One step towards the next broker, without waiting; with socket_lock held. */
void cbdi_reattach_step(cbd_stage *stage);
/* The last step, which needs the directory; with cache_lock held, and nothing half done under it. */
void cbdi_reattach_settle(cbd_stage *stage);
/* How long to sleep before the next step, `turn` at most. */
uint64_t cbdi_reattach_turn(cbd_stage *stage, uint64_t turn);
/* Waits until the session runs again; cached: cache_lock is held, and a broker that answers is enough. TIMEOUT when
 * the caller has signals to look at. */
cbd_status cbdi_reattach_wait(cbd_stage *stage, bool cached, cbd_error *error);
/* BROKER_RESTARTED while the session waits for the next broker. */
cbd_status cbdi_reattach_refuse(cbd_stage *stage, cbd_error *error);

/* ---- after a restart (outcome.c, unsealed.c) ------------------------------------------ */

/* The floors as the new broker has them, copied out. */
struct outcomes {
    uint64_t epoch, other;
    uint64_t count, *hashes, *floors; /* of the names that are known; of all others, `other` */
    const char **names;               /* in shared memory */
    uint32_t *lengths;
};

/* With cache_lock held. */
cbd_status cbdi_outcomes_read(cbd_stage *stage, struct outcomes *outcomes, cbd_error *error);
void cbdi_outcomes_free(struct outcomes *outcomes);
uint64_t cbdi_outcomes_floor(const struct outcomes *outcomes, uint64_t hash);
/* Rule B1, for one op that was in flight; with ring.lock held. */
void cbdi_outcome(const struct outcomes *outcomes, cbd_op *op, const uint8_t *arguments);

/* Calls for the hash of each attribute that the op names; false where it names none. */
typedef void cbdi_each_name(void *context, uint64_t hash);
bool cbdi_op_names(const cbd_op *op, const uint8_t *arguments, cbdi_each_name *each, void *context);
/* With ring.lock held: an op ended well; the broker was lost; whether a submission is to be told of it. */
void cbdi_unsealed_note(cbd_stage *stage, const cbd_op *op, const uint8_t *arguments);
void cbdi_unsealed_lost(cbd_stage *stage, const struct outcomes *outcomes);
cbd_status cbdi_unsealed_refuse(cbd_stage *stage, uint32_t opcode, cbd_error *error);
/* Waits; sends one message; receives one with up to fd_room descriptors before a
 * deadline (0: without waiting). What they return is 0 or an errno; ETIMEDOUT past the deadline, EPIPE at the end. */
int cbdi_wait_readable(int socket, uint64_t deadline_ns);
int cbdi_send(int socket, const void *message, size_t bytes);
int cbdi_receive(int socket, void *message, size_t room, size_t *bytes, int *fds, size_t fd_room, size_t *fd_count,
                 uint64_t deadline_ns);

/* Finds the runtime directory and connects; the socket or -1. */
int cbdi_discover(const char *name, uint64_t timeout_ns, struct place *place, cbd_error *error);
/* Connects at the place once more. */
int cbdi_discover_again(const struct place *place, uint64_t timeout_ns, cbd_error *error);
/* How long the socket waits for room to send or to connect. */
void cbdi_limit_sending(int socket, uint64_t timeout_ns);

#endif
