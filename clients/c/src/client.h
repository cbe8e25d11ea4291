/* What the files of the client share. Nothing here is public.
 *
 *     discover.c   finds the runtime directory and connects
 *     attach.c     says hello, maps, forks and closes                 struct cbd_stage
 *     socket.c     messages with descriptors, the proof that the broker lives
 *     segment.c    segment id → mapping                               struct segment
 *     ring.c       submission and completion rings                    struct ring
 *     rooms.c      room for arguments and results                     struct rooms
 *     op.c         waiting for an op                                  struct cbd_op
 *     directory.c  columns, strings, versions, floors                 struct column, struct version
 *     pin.c        pin slots, what they keep                          struct cbd_pin
 *     layout.c     which row a query's prim has                       struct row_map
 *     arrays.c     rows of their own lengths
 *     history.c    as of an ordinal, what changed since one           struct change
 *     fit.c        which of a name's columns a write is for
 *     stage.c, query.c, read.c, write.c, batch.c, delete.c, map.c     the verbs
 *     filter.c     queries by filter, which may be used before they are made
 *     lists.c      lists of ids, and paths as sequences of tokens     struct lists
 *     dtype.c, text.c, error.c, futex.c                               what they need
 *
 * Lifetimes. A stage counts two things. `refs`: whoever holds a pointer to the struct.
 * `mapped`: whoever needs its mappings, that is the open stage, every call while it
 * runs, every pin, every map session. The last `mapped` unmaps and closes the channel
 * descriptor, which is this process's proof of life (I3); the last `refs` frees.
 *
 * Locks. ring.lock (submit, drain), cache_lock (columns, segments, row maps),
 * socket_lock (one request at a time), state_lock (why the session ended). Order: cache_lock before
 * socket_lock; the others are leaves. Nobody sleeps on a futex with a lock held.
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
#include "shared.h"

/* ---- errors (error.c) ---------------------------------------------------- */

/* Fills *error (may be NULL) and returns status. */
cbd_status cbdi_fail(cbd_error *error, cbd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Copies text that may hold anything into a terminated buffer, cut at a character. */
void cbdi_copy_text(char *to, size_t room, const void *text, size_t length);

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
};

/* All with cache_lock held. */
cbd_status cbdi_segment(cbd_stage *stage, uint64_t id, struct segment **segment, cbd_error *error);
/* Makes a mapping writable, in place. A segment that was read once may become this
 * client's own: the broker hands those of dead clients on, warm (S5). */
cbd_status cbdi_segment_writable(cbd_stage *stage, struct segment *segment, cbd_error *error);

/* The bytes [offset, offset+length) of a segment, checked; `what` is for the text. */
cbd_status cbdi_place(cbd_stage *stage, uint64_t segment, uint64_t offset, uint64_t length, const char *what,
                      const uint8_t **bytes, struct segment **where, cbd_error *error);

/* Unmaps retired segments that nobody looks at (S2); every call begins with it. Under cache_lock. */
void cbdi_segments_trim(cbd_stage *stage);
void cbdi_segments_unmap(cbd_stage *stage);

/* ---- rings (ring.c) and ops (op.c) ---------------------------------------- */

#define OP_TEXT_BYTES 512
#define WAIT_TURN_NS UINT64_C(100000000) /* then we look whether the broker lives (R4) */

struct cbd_op {
    cbd_stage *stage;
    uint64_t id;
    _Atomic uint32_t done; /* stored after everything below, before cq_head */
    bool abandoned;        /* released while pending; guarded by ring.lock */
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

/* An op without arguments that must not get lost: it is submitted as soon as the
 * ring has room. Allocated with what it will release, so that nothing can fail then;
 * cbdi_defer takes it over and frees it. */
struct deferred {
    struct deferred *next;
    uint32_t opcode, flags;
    uint64_t handle;
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
    struct deferred *deferred;
    bool spin;
};

/* One submission under way. begin locks and gives room; fill `arguments` and the
 * fields; commit or cancel unlocks. */
struct submission {
    uint32_t opcode, flags;
    uint64_t handle, ordinal, value;
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

/* Takes completions; with ring.lock held. */
void cbdi_drain(cbd_stage *stage);

/* Waits for an op of our own for ever, and releases it. */
cbd_status cbdi_op_finish(cbd_op *op, cbd_op_result *result, uint64_t *handle, uint32_t *got_bytes, cbd_error *error);

/* A StringList: its size, and writing it. */
uint64_t cbdi_string_list_bytes(const char *const *texts, const size_t *lengths, size_t n);
void cbdi_string_list_put(uint8_t *to, const char *const *texts, const size_t *lengths, size_t n);

/* ---- the directory (directory.c); all with cache_lock held ----------------- */

/* Counts the pins of one version, so that its bytes count once (V7). */
struct version_use {
    struct version_use *next;
    uint64_t birth;
    uint64_t bytes;
    uint64_t elements;      /* of bytes: of an array's rows, as many as the largest look at it took */
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
/* The version that is exactly the state as of an ordinal, sealed by the epoch (O4). NOT_FOUND, without a text,
 * when the column had nothing then; OUT_OF_RANGE. It is not pinned yet (V5). */
cbd_status cbdi_find_version_at(cbd_stage *stage, struct column *column, uint64_t at, uint64_t epoch, struct version *version,
                                cbd_error *error);
/* The OUT_OF_RANGE that says so. */
cbd_status cbdi_not_retained(const struct column *column, uint64_t at, cbd_error *error);
cbd_status cbdi_string(cbd_stage *stage, uint64_t id, const char **text, uint32_t *length, cbd_error *error);
cbd_status cbdi_floors_at(cbd_stage *stage, uint64_t epoch, struct floors *floors, cbd_error *error);
/* name NULL: the global floor. */
uint64_t cbdi_floor_of(cbd_stage *stage, const struct floors *floors, const char *name, size_t length);
void cbdi_columns_free(cbd_stage *stage);
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
 * sealed and no pin was taken. No lock may be held. */
cbd_status cbdi_pin_take(cbd_stage *stage, struct column *const *columns, const uint32_t *attributes, size_t n,
                         cbd_pin **pins, uint64_t *epoch, cbd_error *error);
/* Pins one attribute at an epoch of the past, where its horizon still allows it; else *pin is NULL. */
cbd_status cbdi_pin_past(cbd_stage *stage, struct column *column, uint64_t epoch, cbd_pin **pin, cbd_error *error);
/* Notes that the pin keeps this version in this segment; with cache_lock held. LIMIT
 * when that is too much for this client. */
cbd_status cbdi_pin_use(cbd_pin *pin, struct column *column, const struct version *version, struct segment *segment,
                        cbd_error *error);

/* Counts elements of an array version that the pin keeps already; with cache_lock held. LIMIT. */
cbd_status cbdi_pin_elements(cbd_pin *pin, const struct column *column, const struct version *version, uint64_t bytes,
                             cbd_error *error);

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
    uint64_t handle;
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
cbd_query *cbdi_query_retain(cbd_query *query);
/* A reference of the caller; with cache_lock held. */
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

/* ---- lists (lists.c) ------------------------------------------------------------ */

void cbdi_lists_free(cbd_stage *stage);

/* ---- history (history.c); with cache_lock held ------------------------------------ */

/* A delete that a query's prim has met last. */
struct tombstone {
    uint64_t prim, ordinal;
    uint32_t place; /* in the query */
};

/* Finds the version as of an ordinal and pins it (V5); NOT_FOUND, without a text, when there was none. */
cbd_status cbdi_version_at(cbd_stage *stage, struct column *column, uint64_t at, struct version *version, cbd_pin **pin,
                           cbd_error *error);
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
cbd_status cbdi_tensor_check(const cbd_tensor *tensor, uint64_t *bytes, cbd_error *error);
/* Reads a tensor as rows: fills schema->lanes, code, bits (and checks them where
 * `existing` is given); row_shape must be set already. */
cbd_status cbdi_fold(const cbd_tensor *tensor, cbd_schema *schema, const cbd_schema *existing, cbd_error *error);
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
/* Hands back the session's one group: its leading `count` rows, those that a mask selects, and ends the session.
 * Waits for the broker. The op is that of the group. */
cbd_status cbdi_unmap_selected(cbd_session *session, cbd_group *group, uint64_t count, const uint64_t *mask, uint32_t flags,
                               cbd_op **op, cbd_error *error);
/* cbd_map_attribute for rows of this schema and no other; its own entry is the caller's. */
cbd_status cbdi_map_rows(cbd_stage *stage, cbd_query *query, const char *name, const cbd_map_options *options,
                         const cbd_schema *schema, cbd_session **session, cbd_error *error);

/* ---- the stage (attach.c, socket.c) ---------------------------------------------- */

struct cbd_stage {
    _Atomic uint32_t refs;
    _Atomic uint32_t mapped;
    _Atomic uint32_t closed;
    _Atomic uint32_t foreign; /* a forked child's copy (I4) */
    _Atomic uint32_t ended;   /* the session is over; ended_status and ended_text say why */
    cbd_stage *previous, *next; /* in the list that the fork handlers walk */

    int socket;        /* -1 when closed; guarded by socket_lock */
    int fds[3];        /* channel (its lock is the proof of life, I3), and while attaching directory and doorbell */
    uint64_t incarnation, generation, broker_incarnation, features;
    uint64_t timeout_ns;
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
    struct segment **segments; /* by id - 1 */
    uint64_t segments_room;
    _Atomic uint32_t retired_seen;
    struct column **columns; /* by index */
    uint32_t column_count, columns_room;
    struct column **buckets;
    uint32_t bucket_count; /* a power of two */
    cbd_query *root;       /* borrowed by nobody: released at close */
    struct lists *lists;   /* made at the first use */

    _Atomic uint64_t last_query; /* that was numbered here */

    pthread_mutex_t socket_lock;
    pthread_mutex_t state_lock;
    cbd_status ended_status;
    char ended_text[OP_TEXT_BYTES];
};

/* Begins a call: the mappings stay until cbdi_leave. SESSION_ENDED when the stage is
 * closed or foreign. A session that the broker ended does not matter here: sealed
 * data can be read on. */
cbd_status cbdi_enter(cbd_stage *stage, cbd_error *error);
void cbdi_leave(cbd_stage *stage);
/* Adds a need for the mappings; the caller has one already. */
void cbdi_hold(cbd_stage *stage);
void cbdi_stage_retain(cbd_stage *stage);
void cbdi_stage_drop(cbd_stage *stage);

/* Marks the session as over; the first reason counts. */
void cbdi_end(cbd_stage *stage, cbd_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The reason, or OK while the session runs. */
cbd_status cbdi_ended(cbd_stage *stage, cbd_error *error);

/* One request and its reply. Descriptors beyond those wanted are closed. */
cbd_status cbdi_ask(cbd_stage *stage, const void *request, size_t request_bytes, uint32_t reply_type, void *reply,
                    size_t reply_bytes, int *fd, cbd_error *error);
/* Looks at the socket without waiting: a hang-up or a last message ends the session. */
void cbdi_look_at_socket(cbd_stage *stage);
/* Waits; sends one message; receives one with up to fd_room descriptors before a
 * deadline (0: without waiting). What they return is 0 or an errno; ETIMEDOUT past the deadline, EPIPE at the end. */
int cbdi_wait_readable(int socket, uint64_t deadline_ns);
int cbdi_send(int socket, const void *message, size_t bytes);
int cbdi_receive(int socket, void *message, size_t room, size_t *bytes, int *fds, size_t fd_room, size_t *fd_count,
                 uint64_t deadline_ns);

/* Where a stage was looked for and found. */
struct place {
    char name[CBD_STAGE_NAME_BYTES_MAX + 1]; /* the stage that is meant */
    bool named;                              /* by the caller or by $CALLBOARD_STAGE, and not for want of a name */
    char directory[256];                     /* for people; cut */
};

/* Finds the runtime directory and connects; the socket or -1. */
int cbdi_discover(const char *name, uint64_t timeout_ns, struct place *place, cbd_error *error);

#endif
