/* What the emulation's files share. The names of CUDA are in api.h.
 *
 * One lock guards everything that is not in shared memory; one condition is broadcast whenever an operation was queued or
 * finished, a stream ended or a pin went. Neither is held while bytes are copied, an event is waited for, a delay is slept
 * or a host function runs.
 *
 * Sources in comments: [hdr] the comments of NVIDIA's cuda.h, [doc] NVIDIA's documentation, [issue] a public report,
 * [inferred] a decision of ours that a real GPU has not confirmed.
 */
#ifndef CUDAEMU_EMU_H
#define CUDAEMU_EMU_H

#include "api.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { DEVICES_MAX = 8 };

/* [doc] "It is recommended to only share allocations with a 2 MiB aligned size." The emulation rounds every one up. */
enum { BLOCK_BYTES = 2 << 20 };

/* ---- devices and contexts ---------------------------------------------------------------------------------------------- */

/* The primary context of a device. The objects are static: a handle stays comparable when the context ends and comes back. */
struct context {
    int device;             /* as the machine counts them: what handles carry and the budget is kept by */
    int ordinal;            /* as CUDA_VISIBLE_DEVICES has it, -1 where that hides the device */
    int retained;           /* 0: not initialised, or destroyed */
    CUresult lost;          /* the sticky error, 0 while the context works */
    struct stream *streams; /* linked by next, the ones with work after their destruction included */
};

extern struct context emu_contexts[DEVICES_MAX];
extern pthread_mutex_t emu_lock;
extern pthread_cond_t emu_changed;

/* Begins a call: injected fault, initialisation, the thread's context. On success the lock is held and, where context is
 * not NULL, *context is the current one, alive and not lost. */
CUresult emu_enter(const char *function, struct context **context);

/* Ends a call that began: lets the lock go and returns result. */
CUresult emu_leave(CUresult result);

CUresult emu_init_result(void); /* 0 once cuInit succeeded in this very process */
struct context *emu_current(void);
int emu_attribute(int attribute, int device, int *value); /* 0, or CU_INVALID_VALUE where the driver knows no such */
extern __thread bool emu_in_host_function;

/* ---- addresses --------------------------------------------------------------------------------------------------------- */

enum range_kind { RANGE_OWN, RANGE_IMPORT, RANGE_HOST };

/* Memory that operations may name. */
struct range {
    struct range *next;
    enum range_kind kind;
    uint64_t base, size;     /* as programs name it */
    unsigned char *bytes;    /* where the bytes are: an alias for device memory, base itself for registered host memory */
    struct context *context; /* that it belongs to */
    int fd;                  /* the memfd; -1 for RANGE_HOST */
    uint64_t id;             /* of the memfd: its inode */
    bool exported;           /* RANGE_OWN: a handle was made */
    bool read_only;          /* RANGE_HOST: registered so */
    unsigned opens;          /* RANGE_IMPORT: opens less closes */
    unsigned pins;           /* operations that touch the bytes now */
};

extern struct range *emu_ranges; /* of all contexts */

void emu_range_add(struct range *range);
void emu_range_remove(struct range *range); /* waits for pins; the caller frees it */
struct range *emu_range_at(uint64_t base, enum range_kind kind); /* that begins there */
struct range *emu_range_of(uint64_t address, uint64_t bytes);       /* that holds all of it */
struct range *emu_range_touching(uint64_t address, uint64_t bytes); /* that shares a byte with it */
uint64_t emu_reserve(uint64_t size, uint64_t not_here); /* addresses whose dereference crashes; 0: none to be had */
CUresult emu_map_device(struct range *range, uint64_t not_here); /* gives range of fd and size its base and bytes */
void emu_import_release(struct range *range);
void emu_memory_release_all(struct context *context); /* own memory, imports and registrations of an ending context */

/* ---- streams ----------------------------------------------------------------------------------------------------------- */

struct stream {
    struct stream *next;
    struct context *context;
    enum { STREAM_CREATED, STREAM_LEGACY, STREAM_PER_THREAD } kind;
    bool non_blocking;
    bool destroyed; /* its handle is no longer valid; the worker ends when the queue is empty */
    bool cancelled; /* its context ended: what is queued vanishes */
    unsigned refs;  /* the worker's, and one for each operation or call that waits for it */
    uint64_t thread; /* STREAM_PER_THREAD: whose */
    uint64_t issued, completed;
    struct op *head, *tail;
};

/* A side of a copy. raw is host memory that stays valid by itself: the caller is blocked, or it is the staging buffer. */
struct side {
    unsigned char *raw; /* NULL: address is looked up when the operation runs */
    uint64_t address, pitch;
};

struct op {
    struct op *next;
    enum { OP_COPY, OP_SET, OP_RECORD, OP_WAIT, OP_HOST } kind;
    const char *function; /* for messages */
    struct dependency {
        struct stream *stream;
        uint64_t issued;
    } *dependencies;
    unsigned dependency_count;
    struct side src, dst;        /* OP_COPY; OP_SET has dst */
    uint64_t width, height;      /* bytes and rows */
    unsigned value, value_bytes; /* OP_SET: 1 or 4 */
    unsigned char *staging;      /* freed with the operation */
    struct event *event;         /* OP_RECORD, OP_WAIT */
    uint64_t record;             /* which of the event's records */
    CUhostFn host;
    void *user;
};

/* Finds the stream of a handle, NULL and 1 and 2 included, in the current context or another. */
CUresult emu_stream_find(struct context *current, CUstream handle, struct stream **out);

/* Queues a copy of *op, which owns op->staging and a reference to op->event from then on, on failure too. */
CUresult emu_stream_issue(struct stream *stream, const struct op *op);
CUresult emu_stream_wait(struct stream *stream, uint64_t issued);
void emu_context_drain(struct context *context);   /* waits for all that is queued */
void emu_context_abandon(struct context *context); /* drops what is queued and ends the workers */
void emu_copy_run(struct stream *stream, struct op *op); /* with the lock, which it lets go meanwhile */

/* ---- events ------------------------------------------------------------------------------------------------------------ */

void emu_event_unref(struct event *event);
void emu_event_done(struct event *event, uint64_t record);
void emu_event_await(struct event *event, uint64_t record, const struct stream *stream, const struct context *context);
void emu_event_release_all(struct context *context);

/* The memfd of this process that holds its interprocess events, one a page. */
enum { EVENT_BYTES = 4096 };

/* ---- handles ----------------------------------------------------------------------------------------------------------- */

/* The 64 bytes that travel. */
struct handle {
    uint64_t magic;
    uint32_t kind; /* HANDLE_MEMORY or HANDLE_EVENT */
    uint32_t pid;
    uint32_t fd;
    uint32_t device;
    uint64_t file; /* inode of the memfd: a descriptor's number may be used again */
    uint64_t id;   /* of an event */
    uint64_t offset;
    uint64_t size;
    uint64_t base; /* in the exporter */
};

_Static_assert(sizeof(struct handle) == 64, "CUDA's handles have 64 bytes");

enum { HANDLE_MEMORY = 1, HANDLE_EVENT = 2 };
extern const uint64_t emu_handle_magic;

/* Opens the exporter's memfd. CU_INVALID_CONTEXT for this process's own handles and under CUDAEMU_PIDNS. */
CUresult emu_handle_open(const struct handle *handle, uint32_t kind, const struct context *context, int *fd);
uint64_t emu_file_id(int fd);

/* ---- faults and settings ----------------------------------------------------------------------------------------------- */

extern struct settings {
    uint64_t delay_us, slow_open_us;
    uint64_t memory_bytes;
    uint64_t pitch; /* 0: any */
    int devices;
    bool stall_events, no_device, stub, pid_namespace;
    const char *dir;  /* NULL: no report */
    const char *hold; /* NULL: nothing holds work up */
} emu_settings;

void emu_settings_read(void); /* once */
CUresult emu_fault(const char *function);
void emu_sleep_us(uint64_t us);
bool emu_held(void); /* whether operations of streams have to wait */
void emu_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void emu_trap(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- report ------------------------------------------------------------------------------------------------------------ */

enum count {
    COUNT_CONTEXTS,
    COUNT_ALLOCATIONS,
    COUNT_BYTES,
    COUNT_IMPORTS,
    COUNT_EVENTS,
    COUNT_IMPORTED_EVENTS,
    COUNT_STREAMS,
    COUNT_REGISTERED,
    COUNTS,
};

CUresult emu_report_open(void);
void emu_count(enum count what, int64_t by);
bool emu_budget_take(int device, uint64_t bytes); /* false: the device's memory would not hold it */
void emu_budget_give(int device, uint64_t bytes);
uint64_t emu_budget_used(int device);

#endif
