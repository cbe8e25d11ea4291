/* Callboard, client for C: shared-memory exchange of tensors between processes.
 *
 * One broker per machine holds a stage: named attributes (columns) over named
 * prims (row owners, named by paths). Producers fill staging memory in place and
 * hand it over through a ring; a seal publishes it. Readers look at the newest
 * sealed snapshot in place, without asking the broker.
 *
 *     producer                               reader
 *       cbd_connect                            cbd_connect
 *       cbd_query_from_path_list               cbd_query_from_path_list
 *       cbd_map_attribute                      cbd_follow
 *       cbd_fetch_map_next  (fill group.data)  cbd_read_attributes
 *       cbd_unmap_attribute                    cbd_fetch_read_next (use group.data)
 *       cbd_advance_write_floor                cbd_release_group, cbd_read_release
 *
 * Conventions, true of every function unless its comment says otherwise:
 *
 *   - It returns a cbd_status: CBD_STATUS_OK is 0. The number is the API.
 *   - `error` may be NULL. On failure it holds the same status and a text for
 *     people; on success it is left alone.
 *   - On failure every output pointer is set to NULL (or its value to 0), and the
 *     caller owns nothing new. Inputs stay the caller's, always.
 *   - An output handle is owned by the caller, who gives it back with the
 *     function named in its comment. Giving back NULL does nothing.
 *   - Every handle keeps what it needs of the stage alive: handles may be given
 *     back in any order, also after cbd_stage_close, from any thread.
 *   - All functions may be called from any thread at the same time; one read, one
 *     session, one group by one thread at a time. A handle must not be given back
 *     while another thread uses it.
 *   - After fork() the stage belongs to the parent: in the child calls return
 *     CBD_STATUS_SESSION_ENDED and giving back touches no shared memory.
 *   - Nothing here prints, aborts, exits or raises a signal.
 *   - Strings in are NUL-terminated UTF-8 unless a length is passed; other bytes are refused
 *     with INVALID_ARGUMENT, at once. Error texts are always UTF-8.
 *   - A broker that dies and is started anew, or is replaced, takes the session up again. The client looks
 *     for the next one up to cbd_connect_options.reattach_ns, driven by whoever waits, polls or asks whether the
 *     stage is alive; there is no thread of its own but that of cbd_events. Reads in place and cbd_follow go on the whole time, and
 *     a first look at memory that is not mapped yet waits. Calls that wait for the broker wait for the next one.
 *     What was not sealed is gone: submissions of that time end with BROKER_RESTARTED, and so do ops that were in
 *     flight (but a seal whose floor was reached is OK) and everything on map sessions of before. Work
 *     that was accepted and not sealed is told once: the next submission that writes or seals is
 *     refused with BROKER_RESTARTED, which names it. Queries stay usable; the first use registers them again,
 *     one round trip.
 *   - When the broker goes away for good, stopped or not started anew in time, cbd_stage_is_alive turns 0 as soon as it is
 *     noticed, and whatever needs the broker ends with SESSION_ENDED and the reason: every
 *     wait (an op, cbd_follow), every submission, the first look at memory that this
 *     client has not mapped yet. What was sealed stays readable in place, with groups, pins and
 *     snapshots that are held and with new reads, as far as the memory is mapped, because it
 *     belongs to no process; but it shows the state at the broker's end and nothing newer. An orderly
 *     stop removes the stage's memory from the machine, so that only what is mapped stays.
 *   - Options structs of all zeros, or NULL, are the defaults. The one exception
 *     is cbd_write_options.count; use cbd_write_options_default().
 *
 * Beside this: callboard_dlpack.h, tensors to and from other libraries; callboard_cuda.h, memory of GPUs; callboard.hpp, owners, spans
 * and typed rows for C++.
 */
#ifndef CALLBOARD_H
#define CALLBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "callboard_abi.h" /* CBD_STATUS_*, CBD_KIND_*, CBD_INIT_*, CBD_SCOPE_*, CBD_HANDOFF_*, CBD_FLAG_*, CBD_MODE_*, CBD_ALL */

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CBD_API __attribute__((visibility("default")))
#else
#define CBD_API
#endif

/* ---- status and errors ------------------------------------------------- */

/* One of CBD_STATUS_*. */
typedef uint32_t cbd_status;

/* What went wrong: the number for programs, the text for people (what happened,
 * which input with its numbers, what was expected). Plain memory of the caller. */
typedef struct cbd_error {
    cbd_status status;
    char text[512]; /* UTF-8, NUL-terminated, cut at a character's boundary */
} cbd_error;

/* The stable name, "FLOOR_VIOLATION"; static. "STATUS_UNKNOWN" above the highest. */
CBD_API const char *cbd_status_name(cbd_status status);

/* A short sentence for people, a different one for every code; static. */
CBD_API const char *cbd_status_text(cbd_status status);

/* The version of the ABI that this library speaks, "1.0"; static. */
CBD_API const char *cbd_abi_version(void);

/* The library's own version is three numbers: of this header, and of the library that runs. */
#define CBD_LIBRARY_MAJOR 0
#define CBD_LIBRARY_MINOR 1
#define CBD_LIBRARY_PATCH 0
CBD_API void cbd_library_version(uint32_t version[3]);

/* ---- the log ------------------------------------------------------------- */

/* Without a callback nothing is said anywhere. With one, the library tells what happens to sessions and handles,
 * never what happens to data. Channels, which each text begins with: "session" (attached, broker lost, taken up again,
 * ended, closed), "memory" (segments mapped and unmapped), "handle" (given back while in use), "call" (refusals that
 * a program should know of: limits, lost work). */
enum { CBD_LOG_DEBUG = 0, CBD_LOG_INFO = 1, CBD_LOG_WARNING = 2, CBD_LOG_ERROR = 3, CBD_LOG_NONE = 4 };

/* severity: CBD_LOG_*; time_ns since 1970; text is the library's and valid until the callback returns. Called on a
 * thread of the library's own, one record at a time, in order, never while a lock of the library is held: it may call
 * anything but cbd_log_flush and cbd_log_remove. While it is slow, records are dropped, and their number is told. */
typedef void (*cbd_log_callback)(void *context, uint32_t severity, uint64_t time_ns, const char *text);

/* Installs the process's one callback. threshold: what is less severe is left out; CBD_LOG_NONE: everything is.
 * channels: names with commas between them, and only those are told; NULL or "": all. A name that no channel has
 * matches nothing. INVALID_ARGUMENT: other text, or no callback; ALREADY_EXISTS: remove the other one first. A forked
 * child has none. */
CBD_API cbd_status cbd_log_install(cbd_log_callback callback, void *context, uint32_t threshold, const char *channels,
                                   cbd_error *error);

/* Waits until what was logged before is delivered; 0 looks once, UINT64_MAX waits for ever. OK at once without a
 * callback; TIMEOUT; OP_FAILED within the callback. */
CBD_API cbd_status cbd_log_flush(uint64_t timeout_ns, cbd_error *error);

/* Delivers what was logged, then removes the callback: it is not called any more when this returns. OK without one;
 * OP_FAILED within the callback. */
CBD_API cbd_status cbd_log_remove(cbd_error *error);

/* ---- types of data ------------------------------------------------------ */

/* Element types are DLPack's: a code, the bits of one lane, and lanes. */
enum {
    CBD_DTYPE_INT = 0,
    CBD_DTYPE_UINT = 1,
    CBD_DTYPE_FLOAT = 2,
    CBD_DTYPE_BFLOAT = 4,
    CBD_DTYPE_COMPLEX = 5,
    CBD_DTYPE_BOOL = 6
    /* 7 to 14: the float8 family, stored as opaque bytes */
};

/* DLPack device types: where bytes lie. Attributes lie on the host (CBD_DEVICE_CPU, 0) or on a GPU (CBD_DEVICE_CUDA and
 * its number). Tensors that come in may lie in pinned host memory, which is host memory, and in managed memory, which is
 * copied as that of a GPU is.
 *
 * A device_id of this API is always the ordinal that this process knows the GPU by, as CUDA, PyTorch and DLPack say
 * it; the library matches it with the broker's numbers by UUID. Without libcallboard_cuda (callboard_cuda.h), or where its
 * driver cannot be loaded, it is the broker's number. CBD_DEVICE_ELSEWHERE: this process does not see that GPU. */
enum { CBD_DEVICE_CPU = 1, CBD_DEVICE_CUDA = 2, CBD_DEVICE_CUDA_HOST = 3, CBD_DEVICE_CUDA_MANAGED = 13 };
#define CBD_DEVICE_ELSEWHERE UINT32_MAX

/* What work on a GPU is ordered behind; all zeros: nothing, it is done already. A stream is 0 for none, 1 for the legacy
 * default one, 2 for the default one of the thread, as in DLPack, or else a CUstream of the device that is meant; an event
 * is a CUevent that was recorded already, on any device, or 0. */
typedef struct cbd_cuda_sync {
    uint64_t stream;
    uint64_t wait_event;
} cbd_cuda_sync;

/* What the numbers stand for. NONE in a write means "no opinion". */
enum {
    CBD_SEMANTIC_NONE = 0,
    CBD_SEMANTIC_POINT = 1,
    CBD_SEMANTIC_VECTOR = 2,
    CBD_SEMANTIC_NORMAL = 3,
    CBD_SEMANTIC_COLOR = 4,
    CBD_SEMANTIC_QUATERNION = 5,
    CBD_SEMANTIC_MATRIX = 6,
    CBD_SEMANTIC_FRAME = 7,
    CBD_SEMANTIC_TEXTURE_COORDINATE = 8,
    CBD_SEMANTIC_TIME_CODE = 9,
    CBD_SEMANTIC_TOKEN_ID = 10,
    CBD_SEMANTIC_RELATIONSHIP_PATH_ID = 11,
    CBD_SEMANTIC_CONNECTION_PATH_ID = 12,
    CBD_SEMANTIC_ASSET_PATH_ID = 13,
    CBD_SEMANTIC_PATH_EXPRESSION = 14,
    CBD_SEMANTIC_STRING = 15
};

#define CBD_ROW_NDIM_MAX 6 /* dimensions of a row shape */
#define CBD_NDIM_MAX 8     /* (rows, *row_shape, lanes) */

/* What all rows of a column have in common. A fixed row is prod(row_shape)
 * elements of the dtype; row_ndim 0 is one element. */
typedef struct cbd_schema {
    uint32_t kind; /* CBD_KIND_FIXED or CBD_KIND_ARRAY */
    uint32_t semantic;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes; /* 1 to 255 */
    uint32_t device_type; /* where the attribute lies: CBD_DEVICE_CPU or CBD_DEVICE_CUDA; in, 0 is the host */
    uint32_t device_id;
    uint32_t row_ndim;
    uint64_t row_shape[CBD_ROW_NDIM_MAX];
} cbd_schema;

/* Bytes of one fixed row. INVALID_ARGUMENT or NOT_SUPPORTED when no column can
 * have this dtype, row shape or semantic. */
CBD_API cbd_status cbd_schema_row_bytes(const cbd_schema *schema, uint64_t *row_bytes, cbd_error *error);

/* A tensor of the caller, to be copied from. Dimension 0 counts rows. */
typedef struct cbd_tensor {
    const void *data;       /* the first element */
    int32_t ndim;           /* at least 1 (0 is for cbd_publish only) */
    const int64_t *shape;   /* ndim extents, each at least 0 */
    const int64_t *strides; /* ndim strides in elements (bits/8*lanes bytes each), any sign; NULL: compact, row-major */
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    uint32_t device_type; /* CBD_DEVICE_*; 0: CBD_DEVICE_CPU */
    uint32_t device_id;
} cbd_tensor;

/* ---- the stage ---------------------------------------------------------- */

typedef struct cbd_stage cbd_stage;
typedef struct cbd_query cbd_query;
typedef struct cbd_op cbd_op;
typedef struct cbd_session cbd_session;
typedef struct cbd_read cbd_read;
typedef struct cbd_snapshot cbd_snapshot;
typedef struct cbd_cursor cbd_cursor;
typedef struct cbd_pin cbd_pin;
typedef struct cbd_events cbd_events;

typedef struct cbd_connect_options {
    const char *client_name;  /* for people; NULL: the program's name */
    uint32_t language;        /* CBD_LANGUAGE_*; 0: C */
    uint32_t guard;           /* 1: unmapped memory becomes read-only (M1); also $CALLBOARD_GUARD=1 */
    uint32_t read_only;       /* 1: this client will not write */
    uint32_t sq_entries;      /* ops that the broker has not taken; a power of two up to CBD_RING_ENTRIES_MAX; 0: CBD_SQ_ENTRIES_DEFAULT */
    uint32_t cq_entries;      /* ops that may be outstanding; as sq_entries; 0: CBD_CQ_ENTRIES_DEFAULT */
    uint32_t pin_count;       /* groups and snapshots held at a time, up to CBD_PIN_COUNT_MAX; 0: CBD_PIN_COUNT_DEFAULT */
    uint32_t argument_bytes;  /* room for arguments, inline payloads too, up to CBD_AREA_BYTES_MAX; 0: CBD_ARGUMENT_BYTES_DEFAULT */
    uint32_t result_bytes;    /* room for results, up to CBD_AREA_BYTES_MAX; 0: CBD_RESULT_BYTES_DEFAULT */
    uint64_t timeout_ns;      /* for the broker's answer; 0: 10 s */
    uint64_t reattach_ns;     /* how long to look for the next broker when this one is gone; 0: 10 s; or CBD_REATTACH_NEVER */
} cbd_connect_options;

#define CBD_REATTACH_NEVER UINT64_MAX

/* Attaches to a stage. `name` NULL: $CALLBOARD_STAGE, else "default". Looks in
 * $CALLBOARD_RUNTIME_DIR (which holds attach.sock itself), else
 * $XDG_RUNTIME_DIR/callboard/<name>/, else /tmp/callboard-<uid>/<name>/, of this user and then of
 * the users in $CALLBOARD_TRUST_UID (numbers with commas), whose directories are entered too.
 * On success *stage is the caller's: end with cbd_stage_close, give back with
 * cbd_stage_release. Where neither `name` nor $CALLBOARD_STAGE says a name, whatever stage
 * $CALLBOARD_RUNTIME_DIR serves is accepted.
 * Errors: NOT_FOUND lists every place and what was wrong with it, or says that the runtime
 * directory serves another stage than the one named; INVALID_ARGUMENT: a name that no stage
 * can have, a client_name that is not UTF-8, sizes that no channel can have;
 * INCOMPATIBLE_VERSION names both versions; LIMIT, ACCESS_DENIED from the broker;
 * TIMEOUT. On failure nothing stays open or mapped. */
CBD_API cbd_status cbd_connect(const char *name, const cbd_connect_options *options,
                               cbd_stage **stage, cbd_error *error);

/* Ends the session: sessions that are open are aborted, queries and leases go
 * back, ops that wait end with SESSION_ENDED. Pins that are held stay valid, with
 * the memory behind them, until they are released. A second call does nothing.
 * The handle stays usable for calls, which return SESSION_ENDED.
 * Where device memory was used it waits, for 1 s at most, for work there that was handed over, and, for 2 s at most, until the
 * broker has heard which arenas were closed. Work that takes longer keeps the arenas open to this process until it ends. */
CBD_API void cbd_stage_close(cbd_stage *stage);

/* As cbd_stage_close, but refuses with OP_FAILED while anything of the stage is in use: its text lists map sessions,
 * queries, ops that are not done, reads, snapshots, and pins with their attributes and epochs. Ops that are done
 * and sessions that are over do not count. The stage then stays as it is, and the call can be repeated. It looks and then closes: what another thread makes in between is
 * closed over. OK where the stage is closed already. */
CBD_API cbd_status cbd_stage_close_if_idle(cbd_stage *stage, cbd_error *error);

/* Gives the handle back; closes it first where that was not done. */
CBD_API void cbd_stage_release(cbd_stage *stage);

typedef struct cbd_stage_info {
    char name[33];
    char host[65];
    uint64_t generation;         /* the life of the stage's memory: its creation, ns since 1970 */
    uint64_t incarnation;        /* this client's id */
    uint64_t broker_incarnation; /* this life of the broker */
    uint64_t started_ns;         /* start of the broker, ns since 1970 */
    uint64_t features;           /* CBD_FEATURE_* that both sides have */
    uint64_t epoch;              /* the newest one; 0: nothing was sealed */
    uint64_t pinned_bytes;       /* distinct versions that this client has pinned */
    uint64_t pinned_bytes_max;
    uint64_t memory_bytes_max;
    uint64_t unsealed_bytes_max;
    uint32_t retain_default;
    uint32_t handoff_default;
    uint32_t attribute_count; /* columns, column 0 (the floors) included */
    uint32_t abi_version;     /* the broker's, major << 16 | minor */
} cbd_stage_info;

CBD_API cbd_status cbd_stage_get_info(cbd_stage *stage, cbd_stage_info *info, cbd_error *error);

/* A GPU on which the broker holds attributes. */
typedef struct cbd_device_info {
    uint32_t index;        /* the broker's number */
    uint32_t device_id;    /* the ordinal in this process, or CBD_DEVICE_ELSEWHERE; without CUDA here, `index` */
    uint8_t uuid[16];
    uint64_t memory_bytes; /* of the whole device */
} cbd_device_info;

/* The index-th GPU that the broker serves, from 0, whose number may be higher: one that is not served now keeps its
 * number. END behind the last one, and at once of a broker that has none. Asks the broker the first time, and where there
 * is none every 3 s at most: it may have one by now. */
CBD_API cbd_status cbd_device_at(cbd_stage *stage, uint32_t index, cbd_device_info *info, cbd_error *error);

/* 1 when the session still runs, as far as is known without asking. After 0 sealed data can
 * still be read in place: see the conventions on a broker that goes away. */
CBD_API int cbd_stage_is_alive(cbd_stage *stage);

/* 1 in a forked child of the process that connected. */
CBD_API int cbd_stage_is_foreign(const cbd_stage *stage);

/* The newest published epoch; 0: nothing was sealed, or the stage is closed. No
 * system call. */
CBD_API uint64_t cbd_epoch(cbd_stage *stage);

/* Waits until the epoch is above `after`, then *epoch is it. timeout_ns: 0 looks
 * once, UINT64_MAX waits for ever. TIMEOUT (then *epoch is the current one);
 * SESSION_ENDED when the broker is gone or another thread closes the stage. */
CBD_API cbd_status cbd_follow(cbd_stage *stage, uint64_t after, uint64_t timeout_ns,
                              uint64_t *epoch, cbd_error *error);

/* ---- event loops ---------------------------------------------------------- */

/* A descriptor to wait with in poll, select, epoll or any loop on top of them, beside
 * other sources. It is readable
 *
 *   - when the epoch moved since cbd_events_drain last looked, and at first where
 *     anything was sealed already;
 *   - when the broker was lost, and when one has taken the session up again, though the
 *     epoch did not move: ops and sessions may have ended;
 *   - for good once the session is over or the stage is closed; draining then says why.
 *
 * So: wait, drain, and where the epoch is a newer one, read. It is a level: readable
 * until it is drained, however many seals there were; a reader that is slower than the
 * seals sees the newest state. Nothing that is sealed after the epoch that draining gave
 * is missed. Now and then it is readable without a newer one.
 *
 * The first events of a stage start its one thread, which sleeps on the epoch, looks at
 * the socket every 100 ms as every wait here does, and takes the session up again after a
 * restart of the broker. It ends with the stage's last events, and with cbd_stage_close.
 * *events is the caller's: cbd_events_release; each loop has its own. LIMIT: there is no
 * descriptor for it; OUT_OF_MEMORY: no thread; SESSION_ENDED. */
CBD_API cbd_status cbd_events_open(cbd_stage *stage, cbd_events **events, cbd_error *error);

/* The descriptor: an eventfd, non-blocking and close-on-exec, that stays open until
 * cbd_events_release, also where the stage is closed before. Wait for it to be readable,
 * and leave reading to cbd_events_drain. -1 in a forked child, since it is the parent's. */
CBD_API int cbd_events_fileno(const cbd_events *events);

/* Makes the descriptor not readable; then *epoch (may be NULL) is the newest one, 0:
 * nothing was sealed. Never waits. SESSION_ENDED, or why else the session is over: once
 * the last epoch was given, and the descriptor stays readable. */
CBD_API cbd_status cbd_events_drain(cbd_events *events, uint64_t *epoch, cbd_error *error);

/* Gives events back and closes the descriptor: take it out of the loop before. */
CBD_API void cbd_events_release(cbd_events *events);

/* The write floor of an attribute at the newest epoch: the ordinal through which
 * it is sealed; name NULL: the global floor. 0: never sealed. */
CBD_API cbd_status cbd_write_floor(cbd_stage *stage, const char *name, uint64_t *floor, cbd_error *error);

/* ---- strings and attributes --------------------------------------------- */

/* The text of a path id or token id, from shared memory. *text is not terminated;
 * it is borrowed and valid until the stage is closed. NOT_FOUND: 0, an unknown id,
 * or one of another generation. */
CBD_API cbd_status cbd_resolve(cbd_stage *stage, uint64_t id, const char **text, size_t *length, cbd_error *error);

/* Interns n strings as tokens (paths: 0) or paths (paths: 1) and stores their ids.
 * lengths NULL: the texts are NUL-terminated. Waits for the broker. */
CBD_API cbd_status cbd_intern(cbd_stage *stage, int paths, const char *const *texts, const size_t *lengths,
                              size_t n, uint64_t *ids, cbd_error *error);

typedef struct cbd_attribute_info {
    char name[CBD_NAME_BYTES_MAX + 1];
    size_t name_bytes;
    uint64_t name_id;
    uint32_t column;
    uint32_t retain;
    uint32_t handoff;
    cbd_schema schema;
    uint64_t row_bytes;
    uint64_t version_count;
    uint64_t adopted_count;
    uint64_t scattered_count;
    uint64_t adopt_refused_count;
    uint64_t copied_bytes;
} cbd_attribute_info;

/* What column `column` is; columns go from 1 to attribute_count-1 (0 holds the
 * floors). END behind the last one. */
CBD_API cbd_status cbd_attribute_at(cbd_stage *stage, uint32_t column, cbd_attribute_info *info, cbd_error *error);

/* The schema of the attribute (of its first column, where the name stands for
 * several); NOT_FOUND when nobody declared or wrote it. No broker involved. */
CBD_API cbd_status cbd_attribute_schema(cbd_stage *stage, const char *name, cbd_schema *schema, cbd_error *error);

/* ---- queries ------------------------------------------------------------ */

/* An ordered list of prims by their paths (each starts with "/"; they need not
 * exist). lengths NULL: NUL-terminated. n may be 0 and as large as wanted; long
 * lists travel in pieces. Waits for the broker. *query is the caller's: give back with
 * cbd_query_release. INVALID_ARGUMENT names the offending path and its place in the list:
 * no leading "/", a trailing one, "//", a NUL byte, not UTF-8, too long. */
CBD_API cbd_status cbd_query_from_path_list(cbd_stage *stage, const char *const *paths, const size_t *lengths,
                                            size_t n, cbd_query **query, cbd_error *error);

/* The query of the single prim "/", which publish and latest use. Made at the
 * first call, then shared. *query is a reference of the caller: cbd_query_release. */
CBD_API cbd_status cbd_root_query(cbd_stage *stage, cbd_query **query, cbd_error *error);

/* 0 while a query of cbd_query_submit is not waited for. */
CBD_API uint64_t cbd_query_size(const cbd_query *query);

/* The path ids, cbd_query_size of them, in order; borrowed from the query. */
CBD_API const uint64_t *cbd_query_ids(const cbd_query *query);

CBD_API void cbd_query_release(cbd_query *query);

/* The reserved attribute whose values are the prims' own path ids: it can be read
 * (a group of uint64, a row for each prim of the query) and filtered by. */
#define CBD_PATH_NAME "@path"

/* One condition on a prim. Values are texts, NUL-terminated: numbers in decimal, as "10", "1.5",
 * "1e3", "inf" or "nan", tokens by their text; texts are compared by bytes.
 *
 *     CBD_FILTER_HAS            an attribute: the prim carries it. No values
 *     CBD_FILTER_IN             "@path", or an attribute: one of the values
 *     CBD_FILTER_PREFIX         "@path": begins with the value
 *     CBD_FILTER_CONTAINS       an attribute of tokens: one of the values is among them
 *     CBD_FILTER_LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL   an attribute: compares with the value
 *
 * IN and the comparisons work on attributes of one number or one token for each prim. */
typedef struct cbd_predicate {
    uint32_t op;      /* CBD_FILTER_* */
    uint32_t reserved;
    const char *name; /* an attribute, or CBD_PATH_NAME */
    const char *const *values;
    size_t value_count;
} cbd_predicate;

typedef struct cbd_filter {
    const cbd_predicate *predicates; /* all must hold; none: every prim that carries anything */
    size_t predicate_count;
    const char *const *attributes; /* what is reported is limited to these */
    size_t attribute_count;
    uint32_t scoped; /* 1: that holds for attribute_count 0, too; else 0 reports all */
    uint32_t sealed; /* 1: what is sealed counts; else what was written since, too */
} cbd_filter;

/* The prims that satisfy the filter, which is evaluated once: later changes do not change
 * the query. They are in the order in which their paths came up first. Waits for the
 * broker. filter NULL: every prim. *query is the caller's: cbd_query_release.
 * INVALID_ARGUMENT: what is no name, path or number, an operator that is none, too few or
 * too many values; NOT_SUPPORTED, before anything is made: an operator that the attribute
 * does not have (of a name with several schemas, none), a reserved name. */
CBD_API cbd_status cbd_query_filter(cbd_stage *stage, const cbd_filter *filter, cbd_query **query, cbd_error *error);

/* As cbd_query_filter, without the wait: writes, deletes and reads may name the query at
 * once. They run after it, and fail when it does; a read's errors come when its first
 * group is fetched. Map sessions wait for it. Its size and ids are known after
 * cbd_query_wait. */
CBD_API cbd_status cbd_query_submit(cbd_stage *stage, const cbd_filter *filter, cbd_query **query, cbd_error *error);

/* Waits until a query is made and known here; OK at once for all but those of
 * cbd_query_submit. timeout_ns as for cbd_op_wait, for the making; to fetch the ids then waits for the broker in
 * any case. Returns the query's own error, TIMEOUT (wait again), SESSION_ENDED. */
CBD_API cbd_status cbd_query_wait(cbd_query *query, uint64_t timeout_ns, cbd_error *error);

/* What a filter found. */
typedef struct cbd_query_result {
    cbd_query *query;              /* borrowed: the query that was asked */
    uint64_t total;                /* prims */
    const char *const *attributes; /* what they carry, in the order in which the names came up first */
    size_t attribute_count;        /* 0 for a query of explicit paths */
} cbd_query_result;

/* *result is the caller's: cbd_query_result_release. It is independent of the query, which
 * stays usable. TIMEOUT while the query is running. */
CBD_API cbd_status cbd_query_get_result(cbd_query *query, const cbd_query_result **result, cbd_error *error);
CBD_API void cbd_query_result_release(const cbd_query_result *result);

/* ---- lists, and paths as tokens -------------------------------------------- */

/* An immutable, ordered list of ids, known by a number: never 0, never given out again on
 * this stage, and this process's own. It lives as long as it is referred to; making it is
 * the first reference. No broker is involved. The number 0 is no list: to add to it or to
 * release it does nothing and is OK. NOT_FOUND: an unknown number. */
CBD_API cbd_status cbd_list_create(cbd_stage *stage, const uint64_t *ids, size_t n, uint64_t *list, cbd_error *error);
CBD_API cbd_status cbd_list_add_reference(cbd_stage *stage, uint64_t list, cbd_error *error);
CBD_API cbd_status cbd_list_release(cbd_stage *stage, uint64_t list, cbd_error *error);
CBD_API cbd_status cbd_list_count(cbd_stage *stage, uint64_t list, size_t *count, cbd_error *error);

/* Copies n ids from place `first` on; INVALID_ARGUMENT where the list has fewer. */
CBD_API cbd_status cbd_list_get(cbd_stage *stage, uint64_t list, size_t first, size_t n, uint64_t *ids, cbd_error *error);

/* A new list of n ids from place `first` on; its first reference is the caller's. */
CBD_API cbd_status cbd_list_slice(cbd_stage *stage, uint64_t list, size_t first, size_t n, uint64_t *slice, cbd_error *error);

/* As cbd_query_from_path_list, of the path ids of a list. The query refers to the list
 * until it is released. */
CBD_API cbd_status cbd_query_from_list(cbd_stage *stage, uint64_t list, cbd_query **query, cbd_error *error);

/* The path id of "/" and the tokens with "/" between them: the same as that of the text.
 * n 0: the root. NOT_FOUND: an unknown token; INVALID_ARGUMENT: one that is no component.
 * Waits for the broker. */
CBD_API cbd_status cbd_path_from_tokens(cbd_stage *stage, const uint64_t *tokens, size_t n, uint64_t *path, cbd_error *error);

/* The tokens of a path's components, *count of them: 0 for the root. room 0 only counts;
 * else INVALID_ARGUMENT where it is too small. NOT_FOUND: an unknown id. Waits for the broker. */
CBD_API cbd_status cbd_path_tokens(cbd_stage *stage, uint64_t path, uint64_t *tokens, size_t room, size_t *count,
                                   cbd_error *error);

/* ---- operations --------------------------------------------------------- */

/* Functions with a `cbd_op **op` submit and return at once. *op is the caller's:
 * wait as often as wanted, give back with cbd_op_release, also while it is pending
 * (it goes on; nobody will hear of its outcome). `op` may be NULL: the same as to
 * release at once. What arguments and sealed state decide fails in the call itself
 * and makes no op; QUEUE_FULL: too much is outstanding, wait for an op first. */

typedef struct cbd_op_result {
    cbd_status status;
    uint32_t flags;   /* CBD_COMPLETION_*; SEALED_MAYBE with BROKER_RESTARTED: its ordinal is sealed, and it may have been part of that */
    uint64_t ordinal; /* that the op ended up with */
    uint64_t epoch;   /* that a seal published, else the current one */
    uint64_t value;   /* a seal: the floor */
    uint64_t count;
} cbd_op_result;

/* Waits for the op. timeout_ns: 0 polls, UINT64_MAX waits for ever. Returns the
 * op's own status (and text in *error), or TIMEOUT (it is pending and may be waited
 * for again), or SESSION_ENDED. `result` may be NULL; it is filled once the op is done. */
CBD_API cbd_status cbd_op_wait(cbd_op *op, uint64_t timeout_ns, cbd_op_result *result, cbd_error *error);

/* The op's number, from 1. */
CBD_API uint64_t cbd_op_id(const cbd_op *op);

/* The lowest op that is not done of those that this one waits for: earlier ones of this client
 * on the same attribute at an ordinal that is not above its own, the making of its query, those
 * of its map session, and what they wait for. Its own id where there is none, or it is done. */
CBD_API uint64_t cbd_op_lowest_pending(cbd_op *op);

/* The text of a failed op, "" while it is pending or when it is OK. Borrowed from
 * the op. */
CBD_API const char *cbd_op_error(const cbd_op *op);

CBD_API void cbd_op_release(cbd_op *op);

/* ---- writing ------------------------------------------------------------ */

typedef struct cbd_write_options {
    uint64_t ordinal;     /* above the attribute's floor; ignored with next_ordinal */
    uint64_t count;       /* leading prims of the query, or CBD_ALL; 0 is refused */
    uint32_t next_ordinal; /* 1: the broker takes floor + 1 (O8) */
    uint32_t seal;         /* 1: and seals the attribute at it, in the same step */
    uint32_t semantic;     /* CBD_SEMANTIC_* */
    uint32_t prim_mode;    /* CBD_MODE_UPSERT, or CBD_MODE_INSERT where the stage has CBD_FEATURE_DELETE */
    uint32_t row_ndim;     /* of row_shape; 0: none declared */
    uint32_t is_array;     /* 1: array kind */
    uint64_t row_shape[CBD_ROW_NDIM_MAX]; /* a new attribute's; else must agree */
    const uint32_t *index_map;            /* prim i takes row index_map[i]; NULL: row i */
    uint64_t index_map_count;             /* entries of index_map, at least count; more are not read */
    const uint64_t *mask;                 /* prim i is written where bit i is set; NULL: all */
    uint64_t mask_words;                  /* words of mask, at least ceil(count/64); more are not read */
    uint64_t tensor_count; /* array kind: tensors that `tensor` points to, one for each source row; 0: one, packed */
    uint32_t device_type;  /* where a new attribute lies, and an existing one must: CBD_DEVICE_CPU or CBD_DEVICE_CUDA; 0: where
                            * the attribute lies; where there is none, where a tensor on a GPU does, else the host */
    uint32_t device_id;
    cbd_cuda_sync sync;    /* a tensor on a GPU: what its data waits for */
} cbd_write_options;

/* The defaults: every prim, no ordinal yet. */
static inline cbd_write_options cbd_write_options_default(void)
{
    cbd_write_options options = {0, CBD_ALL, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0}, NULL, 0, NULL, 0, 0, 0, 0, {0, 0}};
    return options;
}

/* Copies the tensor's rows into the attribute of the query's prims at an ordinal.
 * Shape: (rows, *row_shape[, lanes]) where rows is count, or more with an index_map;
 * without a declared row shape all trailing dimensions fold into lanes (at most
 * 255). Any strides are gathered. The data is copied when the call returns. Up to
 * CBD_INLINE_BYTES_MAX it never waits for the broker; a larger one first maps
 * staging memory, one round trip, and with a count or mask waits until it was taken.
 * With is_array each prim has a row of its own length, and nothing folds: a row has all
 * elements of its tensor, whatever the shape. tensor_count tensors of one element type
 * are source rows, as many as there are addressed prims, or more with an index_map.
 * Packed, one tensor is cut into rows of equal length: as many as addressed prims, or
 * with an index_map as its highest entry says. Text is uint8 with CBD_SEMANTIC_STRING.
 *
 * A tensor on a GPU is copied there, into memory that the broker holds on that GPU, and from there to wherever
 * the attribute lies; a tensor on the host may go to an attribute on a GPU. options->sync.stream: the copy is queued
 * there, behind wait_event, and what the caller queues on the stream later may change the tensor, which must stay
 * allocated until the op is done. Without a stream the call waits for wait_event and for the copy.
 * Bools on a GPU are not looked at.
 *
 * INVALID_ARGUMENT: shape, dtype, semantic, count, an index_map or mask that is shorter than count
 * needs, a device that is none or does not hold the data (with their numbers), a bool that is neither 0 nor 1;
 * FLOOR_VIOLATION: ordinal 0 or at or below the floor; NOT_SUPPORTED: array kind on a
 * stage without CBD_FEATURE_ARRAY, or of a tensor on a GPU, a tensor on a GPU without libcallboard_cuda or on one that the
 * broker does not serve, and of very many pieces (make it contiguous), names that start with "@", lanes above 255,
 * CBD_MODE_INSERT on a stage without CBD_FEATURE_DELETE. */
CBD_API cbd_status cbd_write_attribute(cbd_stage *stage, cbd_query *query, const char *name,
                                       const cbd_tensor *tensor, const cbd_write_options *options,
                                       cbd_op **op, cbd_error *error);

/* One attribute of cbd_write_attributes. */
typedef struct cbd_write_entry {
    const char *name;                 /* each name once */
    const cbd_tensor *tensor;         /* as for cbd_write_attribute */
    const cbd_write_options *options; /* NULL: the defaults. ordinal, next_ordinal, seal and prim_mode are not looked at */
} cbd_write_entry;

/* As cbd_write_attribute, for n attributes of one query at one ordinal, as one op: either all
 * of them are written or none is. Each tensor's rows stand for the same prims, as the options of
 * its entry say (count, index_map, mask); names, tensors and options stay the caller's and may
 * be changed when the call returns. prim_mode: CBD_MODE_*. Never waits for the broker.
 * Large attributes are written one by one at the same ordinal: a seal shows several ops
 * together as well, and only the failure of one of them is then not that of all.
 * INVALID_ARGUMENT: n is 0, a name that is given twice, and whatever cbd_write_attribute
 * refuses of one entry; FLOOR_VIOLATION: the ordinal is 0, or at or below the floor of any of
 * them; LIMIT: the payloads and what goes with them are larger than the channel's
 * argument_bytes; NOT_SUPPORTED: a tensor on a GPU, which is written alone; QUEUE_FULL. */
CBD_API cbd_status cbd_write_attributes(cbd_stage *stage, cbd_query *query, const cbd_write_entry *entries, size_t n,
                                        uint64_t ordinal, uint32_t prim_mode, cbd_op **op, cbd_error *error);

/* A whole array as the one row of prim "/": row_shape is the tensor's shape (also
 * ndim 0), written at the next ordinal and sealed at once. Of a tensor on a GPU the call waits for the copy. */
CBD_API cbd_status cbd_publish(cbd_stage *stage, const char *name, const cbd_tensor *tensor, uint32_t semantic,
                               cbd_op **op, cbd_error *error);

/* The same with options, not NULL, of which semantic, device_type, device_id and sync count. */
CBD_API cbd_status cbd_publish_with(cbd_stage *stage, const char *name, const cbd_tensor *tensor, const cbd_write_options *options,
                                    cbd_op **op, cbd_error *error);

/* Takes the n attributes from the query's prims at `ordinal`; n 0: all that they carry, so
 * that the prims are gone. Ordered like a write, and shown with the seal of its ordinal:
 * later reads leave the prims out, what readers hold stays. Afterwards another schema is
 * accepted. A prim that does not carry an attribute, and a name that nobody wrote, are no
 * errors. At once: FLOOR_VIOLATION (ordinal 0, or a name is sealed there already),
 * INVALID_ARGUMENT, NOT_SUPPORTED (reserved name; a stage without CBD_FEATURE_DELETE),
 * ACCESS_DENIED, QUEUE_FULL. */
CBD_API cbd_status cbd_delete_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n,
                                         uint64_t ordinal, cbd_op **op, cbd_error *error);

/* Seals everything up to `ordinal` for the attributes in scope (CBD_SCOPE_ALL,
 * _INCLUDE or _EXCLUDE the n names) and publishes it as one epoch. stamp_ns: the
 * application's time; 0: the broker's clock. Result: value = the floor, epoch.
 * A floor never falls: a repeated or lower ordinal is OK and moves nothing. */
CBD_API cbd_status cbd_advance_write_floor(cbd_stage *stage, uint64_t ordinal, uint32_t scope,
                                           const char *const *names, size_t n, uint64_t stamp_ns,
                                           cbd_op **op, cbd_error *error);

/* States an attribute's schema and settings before anybody writes it. retain (at most
 * 1 048 576 versions) 0 and handoff CBD_HANDOFF_DEFAULT: as the stage says. An attribute that
 * exists with this schema is accepted, and its settings change where others are named: fewer
 * versions go with the next seal, another handoff counts from the next buffer on. Otherwise
 * INVALID_ARGUMENT names both schemas. NOT_SUPPORTED: a GPU that the broker does not serve, kind array
 * on one, or on a stage without CBD_FEATURE_ARRAY, a reserved name. ACCESS_DENIED: this client attached read-only. */
CBD_API cbd_status cbd_declare(cbd_stage *stage, const char *name, const cbd_schema *schema, uint32_t retain,
                               uint32_t handoff, cbd_op **op, cbd_error *error);

/* ---- filling in place ---------------------------------------------------- */

typedef struct cbd_map_options {
    uint64_t ordinal;      /* ignored with next_ordinal */
    uint32_t next_ordinal; /* 1: the ordinal is taken at unmap */
    uint32_t init;         /* CBD_INIT_NONE, _ZERO or _CURRENT: what the memory holds at first */
    uint64_t group_rows;   /* split into groups of so many rows, which other clients may claim; 0: one group */
    uint32_t prim_mode;    /* CBD_MODE_* */
    uint32_t semantic;
    uint8_t code; /* the dtype; lanes 0: that of the existing attribute */
    uint8_t bits;
    uint16_t lanes;
    uint32_t row_ndim; /* a new attribute's row shape; 0: none, or the existing one's */
    uint64_t row_shape[CBD_ROW_NDIM_MAX];
    uint32_t is_array; /* 1: array kind; without a dtype the kind is that of the existing attribute */
    uint32_t reserved;
    const uint64_t *element_sizes; /* array kind: the elements of each prim's row, element_size_count of them; else NULL */
    uint64_t element_size_count;   /* the query's size */
    uint32_t device_type;  /* as in cbd_write_options: where the attribute lies */
    uint32_t device_id;
    uint32_t staging_type; /* where the groups are filled: CBD_DEVICE_CPU or CBD_DEVICE_CUDA; 0: where the attribute lies. What is
                            * filled elsewhere is copied at unmap */
    uint32_t staging_id;
} cbd_map_options;

/* Opens a map session: staging memory for one row per prim of the query. Waits for
 * the broker. *session is the caller's: end it with cbd_unmap_attribute (commits) or
 * cbd_abort; then, in any case, cbd_session_release. NOT_SUPPORTED: groups on a GPU without libcallboard_cuda, or on one
 * that the broker does not serve or this process does not see: give staging_type CBD_DEVICE_CPU. */
CBD_API cbd_status cbd_map_attribute(cbd_stage *stage, cbd_query *query, const char *name,
                                     const cbd_map_options *options, cbd_session **session, cbd_error *error);

/* How many groups the session has, whoever fills them; 0 of an empty query. */
CBD_API uint64_t cbd_session_group_count(const cbd_session *session);

/* One prim's row of array kind, to fill. */
typedef struct cbd_staged_array {
    void *data; /* NULL: no elements */
    uint64_t elements;
} cbd_staged_array;

/* One run of rows to fill. A plain record that belongs to its session and lives
 * until cbd_session_release. */
typedef struct cbd_group {
    cbd_session *session;
    const char *attribute; /* borrowed from the session */
    void *data;         /* writable until the group is unmapped; stays mapped until cbd_session_release. On a GPU: a device pointer */
    uint64_t rows;
    uint64_t row_bytes; /* array kind: of an element */
    uint64_t ordinal;   /* 0: taken at unmap */
    uint64_t index;     /* of the group in the session */
    uint64_t attempt;   /* from 1; higher when a claimant died, or gave the group up */
    uint64_t first_prim; /* the group's rows are the query's prims from here on */
    const uint64_t *prims; /* path ids, `rows` of them; borrowed from the session */
    cbd_schema schema;
    int32_t ndim;       /* of shape: (rows, *row_shape[, lanes]) in elements of one lane; array kind: 0 */
    int32_t reserved;
    int64_t shape[CBD_NDIM_MAX];
    const cbd_staged_array *arrays; /* array kind: `rows` of them, of the sizes asked for; else NULL */
    uint32_t device_type; /* where data lies: CBD_DEVICE_CPU or CBD_DEVICE_CUDA */
    uint32_t device_id;
} cbd_group;

/* The next group; END when there are no more. *group is borrowed from the session. Of a
 * session of several groups it claims one that nobody has, and waits for the broker: a
 * group that is filled is best handed back at once, other clients fill the rest meanwhile. */
CBD_API cbd_status cbd_fetch_map_next(cbd_session *session, cbd_group **group, cbd_error *error);

/* Hands one group back, committed. flags: CBD_FLAG_COPY when views of the memory
 * stay alive. Nothing may be written to group->data afterwards. INVALID_HANDLE when it
 * was handed back already. */
CBD_API cbd_status cbd_unmap_group(cbd_group *group, uint32_t flags, cbd_op **op, cbd_error *error);

/* Ends the session and commits what is not handed back yet. flags: CBD_FLAG_COPY as
 * above; CBD_FLAG_NEXT_ORDINAL and CBD_FLAG_SEAL as in cbd_write_options (a session
 * mapped with next_ordinal needs no flag for the ordinal). INVALID_HANDLE when the
 * session has ended, and BROKER_RESTARTED when a restart of the broker ended it: it may not be
 * written any more. On any other failure the session is still open. The op of a session
 * of several groups is done when every group was handed back, by whomever: what a client
 * that died had claimed is another's to fill meanwhile. */
CBD_API cbd_status cbd_unmap_attribute(cbd_session *session, uint32_t flags, cbd_op **op, cbd_error *error);

/* The same of groups on a GPU, whose rows may still be on their way: they count as written when wait_event and what
 * is queued on the stream by now have happened, which nobody here waits for. Afterwards nothing more that writes to
 * them may be queued. sync all zeros, or NULL: the caller has waited, as the calls above take it. Of groups on the
 * host sync must be all zeros, and groups of a session of several are handed back one by one: INVALID_ARGUMENT. So is a
 * stream or an event that the driver refuses; OP_FAILED, or what else its refusal is: nothing was handed back. An op whose work does not complete in the broker's time
 * (--gpu-timeout) ends with an error, and nothing of the group becomes visible. */
CBD_API cbd_status cbd_unmap_group_after(cbd_group *group, uint32_t flags, const cbd_cuda_sync *sync, cbd_op **op, cbd_error *error);
CBD_API cbd_status cbd_unmap_attribute_after(cbd_session *session, uint32_t flags, const cbd_cuda_sync *sync, cbd_op **op,
                                             cbd_error *error);

/* Ends the session; nothing of it becomes visible. What writes to its groups on a GPU must have ended. A second call does
 * nothing. A session of several groups can be aborted while its final unmap still waits for other clients. Does not
 * wait for the broker: another client that is told of it must not seal the ordinal before an op
 * that was submitted after the abort has ended (R7). */
CBD_API cbd_status cbd_abort(cbd_session *session, cbd_error *error);

/* Gives the session and its groups back; aborts where it is open. The memory may
 * be unmapped from here on, unless exports of its groups are alive (callboard_dlpack.h). */
CBD_API void cbd_session_release(cbd_session *session);

/* ---- sharing a session among processes --------------------------------------- */

/* A group that waits for somebody to claim and fill it. */
typedef struct cbd_open_group {
    uint64_t session, index; /* name it, in a claim */
    uint64_t ordinal;        /* the session's */
    uint64_t first_prim, rows;
    uint32_t attempt; /* from 1 */
    uint32_t reserved;
} cbd_open_group;

/* Lists the groups of an attribute's sessions (NULL: of all) that nobody has claimed. At most
 * `room` are described; *count is how many there are. Waits for the broker. */
CBD_API cbd_status cbd_list_groups(cbd_stage *stage, const char *attribute, cbd_open_group *groups, size_t room, size_t *count,
                                   cbd_error *error);

/* Claims a group (or CBD_ANY_GROUP of the session) to fill it: the first claim wins. Hand it
 * back with cbd_unmap_group; then, in any case, cbd_session_release(group->session), which gives
 * the group up where it was not handed back. group->session is of this one group and not the
 * owner's session. INVALID_HANDLE: somebody else was faster, or the session is over; END: with
 * CBD_ANY_GROUP, there is none; ACCESS_DENIED. The op of cbd_unmap_group may fail with
 * INVALID_HANDLE (the session was aborted meanwhile), FLOOR_VIOLATION (a seal passed it), QUEUE_FULL
 * or OUT_OF_MEMORY, or TIMEOUT of what it waits for on a GPU (the group waits for another claim). */
CBD_API cbd_status cbd_claim_group(cbd_stage *stage, uint64_t session, uint64_t index, cbd_group **group, cbd_error *error);

/* Gives a group of a session of several back unfilled: it waits for the next attempt, anybody's.
 * INVALID_HANDLE when it was handed back, or is the only one of its session. On a GPU, what is
 * queued to fill it must have ended. */
CBD_API cbd_status cbd_give_up_group(cbd_group *group, cbd_error *error);

/* Fills group->data. What is not OK gives the group up, for somebody else, and ends the work. A group on
 * a GPU it hands back itself, by cbd_unmap_group_after, and returns OK. */
typedef cbd_status cbd_fill(cbd_group *group, void *context, cbd_error *error);

/* Claims groups of an attribute's sessions one after the other, whoever opened them, calls fill
 * and hands them back, until none has come for timeout_ns (0: until there is none now): TIMEOUT.
 * Otherwise it ends with what fill returned, or with the end of the session with the broker. Any
 * number of processes may work; a group of one that died comes again. Groups are found by listing
 * them over the ring every 20 ms: this library has no NATS. The group is fill's until it returns. */
CBD_API cbd_status cbd_work_on(cbd_stage *stage, const char *attribute, cbd_fill *fill, void *context, uint64_t timeout_ns,
                               cbd_error *error);

/* ---- reading ------------------------------------------------------------- */

/* One prim's row of array kind, in place. */
typedef struct cbd_array {
    const void *data; /* NULL: no elements */
    uint64_t elements;
} cbd_array;

/* Some prims of one attribute at one epoch, in place. A plain record; the bytes it
 * points to never change. Element i of the query's prims that are present, prims[i],
 * has row index_map[i] of the array, or row i where index_map is NULL. */
typedef struct cbd_read_group {
    const char *name;    /* NUL-terminated */
    uint32_t column;
    uint32_t version_flags; /* CBD_VERSION_* */
    uint64_t epoch;      /* the same for all groups of a read */
    uint64_t ordinal;    /* the highest of the group's prims; see cbd_group_row_ordinals */
    uint64_t floor;      /* the attribute's write floor at the epoch */
    uint64_t stamp_ns;   /* of the seal that published this version */
    uint64_t layout_generation;
    cbd_schema schema;
    const void *data;    /* `rows` rows, compact; array kind: NULL */
    uint64_t rows;       /* array kind: prim_count */
    uint64_t row_bytes;  /* array kind: of an element */
    const uint32_t *index_map; /* prim_count entries, or NULL: contiguous */
    const uint64_t *prims;     /* prim_count path ids, in the query's order */
    uint64_t prim_count;
    int32_t ndim;        /* of shape: (rows, *row_shape[, lanes]) in elements of one lane; array kind: 0 */
    int32_t contiguous;  /* 1: row i is prim i */
    int64_t shape[CBD_NDIM_MAX];
    cbd_pin *pin;        /* keeps the data; borrowed from the group, see cbd_pin_retain; NULL of "@path", whose data is the group's own */
    uint32_t is_delete;  /* 1: of prims that were deleted: no rows, data NULL. Only reads of changes have such groups */
    uint32_t reserved;
    const cbd_array *arrays; /* array kind: those of `prims`, in their order; else NULL */
    uint32_t device_type;    /* where data lies: CBD_DEVICE_CPU, or CBD_DEVICE_CUDA, and then it is a device pointer; the schema says
                              * where the attribute does */
    uint32_t device_id;
} cbd_read_group;

/* Reads the newest sealed state of the named attributes, all at one epoch. No
 * broker and, once memory is mapped, no system call. *read is the caller's: cbd_read_release.
 * Attributes that do not exist, were never sealed or have none of the prims give no
 * group. "@path" gives the path ids of all prims of the query, whether they exist or not. A query
 * that is still running is waited for when the first group is fetched. LIMIT: this client has
 * too many bytes pinned; the text names its oldest pins. */
CBD_API cbd_status cbd_read_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n,
                                       cbd_read **read, cbd_error *error);

/* Which state of its attributes a read shows. */
enum {
    CBD_AT_NEWEST = 0,
    CBD_AT_ORDINAL = 1,      /* as of the ordinal `at`, exactly; it must not be above the write floors */
    CBD_AT_COMMON = 2,       /* as of the highest ordinal through which all of the attributes are sealed */
    CBD_AT_STAMP = 3,        /* of each attribute, what was sealed last with a stamp of at most `at` ns */
    CBD_AT_NEAREST_STAMP = 4 /* that, or what was sealed after it, where its stamp is nearer to `at` */
};

/* A read narrowed in time. All zeros: the newest state, whole. */
typedef struct cbd_range {
    uint32_t at_what;   /* CBD_AT_* */
    uint32_t has_since; /* 1: only what changed after the ordinal `since`, which may be 0 */
    uint64_t at;
    uint64_t since;     /* at most `at`, an ordinal */
} cbd_range;

/* As cbd_read_attributes, as of an ordinal or of what changed, or both: then what changed after
 * `since` up to `at`. What changed are the rows that were written, each with its value at the end
 * of the range, and groups with is_delete of the prims that are gone. range NULL: the newest state.
 *
 * Attributes of different producers are seldom equally far. CBD_AT_COMMON aligns those whose
 * ordinals mean the same, such as the number of a tick: cbd_read_ordinal tells the newest one
 * that none of them is behind (attributes that nobody wrote or sealed do not count). Stamps
 * align those that have no ordinals in common; each group's stamp_ns tells what was found. They
 * are those of the seals, cbd_advance_write_floor's or the broker's clock, and are expected to
 * rise. An attribute shows its value of the moment, however old that is; one that was sealed
 * first after the stamp gives no group, or as the nearest its first value.
 *
 * FLOOR_VIOLATION: `at` is above an attribute's write floor. OUT_OF_RANGE: that state is not
 * retained (see cbd_declare: an attribute that runs ahead of others needs as many versions as
 * it is ahead), or never was one of its own because several ordinals were sealed at once; or
 * deletes after `since` are not all known any more (see cbd_frontier).
 * INVALID_ARGUMENT: `since` is above `at`, or goes with a stamp; an at_what that is none. */
CBD_API cbd_status cbd_read_range(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n,
                                  const cbd_range *range, cbd_read **read, cbd_error *error);

/* The ordinal after which all changes of the attribute are known exactly: a range that begins
 * before it is OUT_OF_RANGE. It rises when more was deleted than is kept, which is at least
 * 65 536 deletes. 0 for a name that nobody wrote. */
CBD_API cbd_status cbd_frontier(cbd_stage *stage, const char *name, uint64_t *frontier, cbd_error *error);

/* The epoch that the read is of; 0: nothing was sealed. */
CBD_API uint64_t cbd_read_epoch(const cbd_read *read);

/* The ordinal that the read is as of, given or common; 0: it is of the newest state or of a stamp. */
CBD_API uint64_t cbd_read_ordinal(const cbd_read *read);

/* The next group; END when there are no more. *group is the caller's:
 * cbd_release_group. It is independent of the read. Its data lies where the attribute does. What lies on a GPU is
 * complete, so that no stream has to wait for anything; a kernel that reads it must have ended before the group,
 * or its pin, is given back. NOT_SUPPORTED of a group on a GPU: this process does not see that GPU, or has no
 * libcallboard_cuda; the group stays the next one, and cbd_fetch_read_next_in gives it on the host. */
CBD_API cbd_status cbd_fetch_read_next(cbd_read *read, const cbd_read_group **group, cbd_error *error);

/* As cbd_fetch_read_next, with data in the memory that is named: CBD_DEVICE_CPU (device_id 0) or CBD_DEVICE_CUDA; 0: wherever
 * it lies. What lies elsewhere is copied by the broker, which is waited for, once for each version: all readers share
 * that copy, later calls find it, and it goes with the version. On failure the group stays the next one. NOT_SUPPORTED:
 * rows of array kind and "@path" on a GPU, a GPU that the broker does not serve; INVALID_ARGUMENT: a device that is none;
 * OUT_OF_MEMORY, SESSION_ENDED. */
CBD_API cbd_status cbd_fetch_read_next_in(cbd_read *read, uint32_t device_type, uint32_t device_id, const cbd_read_group **group,
                                          cbd_error *error);

/* The same of a group that was read: *in is one more group, the caller's to release, with the same rows and pin. */
CBD_API cbd_status cbd_read_group_in(const cbd_read_group *group, uint32_t device_type, uint32_t device_id,
                                     const cbd_read_group **in, cbd_error *error);

/* The ordinals that last wrote, or deleted, each of the group's prims: `ordinals` has room for
 * prim_count of them. */
CBD_API cbd_status cbd_group_row_ordinals(const cbd_read_group *group, uint64_t *ordinals, cbd_error *error);

/* Gives a group back, with its reference on the pin: data, index_map, prims and
 * name are gone, unless the pin was retained: then data stays. What reads it on a GPU must have ended; cbd_cuda_release_group waits for it. */
CBD_API void cbd_release_group(const cbd_read_group *group);

/* Gives the read back, with the groups that were not fetched. */
CBD_API void cbd_read_release(cbd_read *read);

/* A pin keeps the data of its group from being reused and mapped. Retain adds a
 * reference and returns pin; the last release is one store with a full barrier. Both
 * take no lock and make no allocation; any thread may call them, also after close. */
CBD_API cbd_pin *cbd_pin_retain(cbd_pin *pin);
CBD_API void cbd_pin_release(cbd_pin *pin);

/* The newest state of `name` on the prim "/", one row: shape is row_shape[, lanes],
 * with no axis for rows; of array kind it is arrays[0]. NOT_FOUND when there is none. *group is the caller's: cbd_release_group. */
CBD_API cbd_status cbd_latest(cbd_stage *stage, const char *name, const cbd_read_group **group, cbd_error *error);

/* The same in the memory that is named, as cbd_fetch_read_next_in. */
CBD_API cbd_status cbd_latest_in(cbd_stage *stage, const char *name, uint32_t device_type, uint32_t device_id,
                                 const cbd_read_group **group, cbd_error *error);

/* ---- snapshots ------------------------------------------------------------ */

/* Pins everything at the newest epoch: any number of reads see that one state.
 * *snapshot is the caller's: cbd_snapshot_release. Epoch 0 (nothing sealed) is a valid, empty
 * snapshot. */
CBD_API cbd_status cbd_snapshot_open(cbd_stage *stage, cbd_snapshot **snapshot, cbd_error *error);

/* As cbd_read_attributes, at the snapshot's epoch. The read and its groups are
 * independent of the snapshot and share its pin. */
CBD_API cbd_status cbd_snapshot_read(cbd_snapshot *snapshot, cbd_query *query, const char *const *names, size_t n,
                                     cbd_read **read, cbd_error *error);

/* How far a snapshot goes: what a later read of changes begins after. A plain record that
 * outlives the snapshot and the session; it is of one generation of a stage. *cursor is the
 * caller's: cbd_cursor_release. */
CBD_API cbd_status cbd_snapshot_cursor(cbd_snapshot *snapshot, cbd_cursor **cursor, cbd_error *error);
CBD_API uint64_t cbd_cursor_epoch(const cbd_cursor *cursor); /* of its snapshot */
CBD_API void cbd_cursor_release(cbd_cursor *cursor);

/* As cbd_snapshot_read, of what changed since the cursor's snapshot: rows that were written, and
 * groups with is_delete of the prims that are gone. Reads from cursor to cursor have each sealed
 * change exactly once, whatever producers do meanwhile. since NULL: all that is there, to begin
 * with. OUT_OF_RANGE: so much was deleted since that not all of it is known; then read the whole.
 * INVALID_ARGUMENT: a cursor of another generation. */
CBD_API cbd_status cbd_snapshot_read_since(cbd_snapshot *snapshot, cbd_query *query, const char *const *names, size_t n,
                                           const cbd_cursor *since, cbd_read **read, cbd_error *error);

CBD_API uint64_t cbd_snapshot_epoch(const cbd_snapshot *snapshot);

/* The application's or the broker's time of the snapshot's last seal, ns; 0: none. */
CBD_API uint64_t cbd_snapshot_stamp(const cbd_snapshot *snapshot);

/* As cbd_write_floor, at the snapshot's epoch. */
CBD_API cbd_status cbd_snapshot_floor(cbd_snapshot *snapshot, const char *name, uint64_t *floor, cbd_error *error);

CBD_API void cbd_snapshot_release(cbd_snapshot *snapshot);

#ifdef __cplusplus
}
#endif

#endif
