/* What a read is, for read.c (which state it shows), groups.c (its groups), latest.c and snapshot.c. */
#ifndef CBDI_READ_H
#define CBDI_READ_H

#include "client.h"

/* Where a version's rows lie. */
struct home {
    cbd_abi_block_ref block;
    uint32_t number; /* of the device; 0: the host */
    uint64_t generation;
};

struct group {
    cbd_read_group view; /* first: what the caller has is what we have */
    _Atomic uint32_t refs;
    struct home home;    /* of the version; data may be a mirror of it */
    uint64_t birth;      /* of the version */
    uint64_t first_byte; /* where view.data begins in the block */
    uint32_t number;     /* of the device where view.data lies */
    struct row_map *map;
    const uint64_t *row_ordinals; /* of the version's rows; NULL: all are view.ordinal */
    uint64_t *deleted;            /* of a group of deletes: their ordinals, one a prim */
    cbd_array *arrays;            /* view.arrays */
    char name[];                  /* terminated */
};

#define GROUPS_FEW 6 /* room for a read of one column, beside that of the floors */

struct cbd_read {
    cbd_stage *stage;
    uint64_t epoch;
    uint64_t ordinal; /* that it is as of; 0: none */
    size_t count, next;
    struct group **groups; /* few, or allocated */
    struct group *few[GROUPS_FEW];
    struct later *later; /* until it is open */
};

struct cbd_snapshot {
    cbd_stage *stage;
    cbd_pin *pin; /* NULL at epoch 0 */
    uint64_t epoch;
    uint64_t stamp_ns;
};

struct cbd_cursor {
    uint64_t generation, epoch;
    uint64_t other; /* the floor of the names without a row */
    uint64_t count;
    cbd_abi_floor_row rows[];
};

/* Which part of the state a read shows. All zeros: the newest, whole. */
struct window {
    uint32_t by;              /* CBD_AT_*: as of `at` */
    uint64_t at;
    const uint64_t *since;    /* only what changed after an ordinal */
    const cbd_cursor *cursor; /* only what changed after a snapshot */
    bool at_once;             /* TIMEOUT, without a text, instead of waiting or working for long */
};

static inline bool cbdi_is_delta(const struct window *window) { return window->since != NULL || window->cursor != NULL; }

/* What a read of changes found of one column. */
struct change {
    struct column *column;
    struct version version;
    struct row_map *all; /* of its prims now */
    struct tombstone *deletes;
    size_t count;
};

#define PLAN_FEW 4 /* columns of a read that needs no memory for its plan */

/* What a read pins and looks at. */
struct plan {
    size_t n;
    uint32_t known; /* columns of the stage when it was made */
    struct column **columns; /* [0] is the column of the floors */
    uint32_t *attributes;
    cbd_pin **pins;
    struct column *few_columns[PLAN_FEW];
    uint32_t few_attributes[PLAN_FEW];
    cbd_pin *few_pins[PLAN_FEW];
};

/* Before any look at what cache_lock guards; TIMEOUT, without a text, where the window is at_once and it is taken. */
cbd_status cbdi_read_begin(cbd_stage *stage, const struct window *window);
void cbdi_read_end(cbd_stage *stage);

/* The plan of these names; with cache_lock held. */
cbd_status cbdi_plan_make(cbd_stage *stage, const char *const *names, size_t n, struct plan *plan, cbd_error *error);
void cbdi_plan_free(struct plan *plan);

/* Reads what the window shows, of a snapshot or of what is newest now. No lock may be held. */
cbd_status cbdi_read_make(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n, const cbd_snapshot *snapshot,
                          const struct window *window, cbd_read **read, cbd_error *error);

/* The groups of a read; with cache_lock held. Each appends those of one column, or of "@path", if there are any. */
cbd_status cbdi_add_column(cbd_read *read, cbd_query *query, struct column *column, const struct version *version, cbd_pin *pin,
                           const struct floors *floors, const struct window *window, struct change *change, cbd_error *error);
cbd_status cbdi_add_deletes(cbd_read *read, cbd_query *query, const struct change *change, const struct change *all, size_t n,
                            cbd_pin *pin, const struct floors *floors, cbd_error *error);
cbd_status cbdi_add_paths(cbd_read *read, cbd_query *query, const struct floors *floors, cbd_error *error);
void cbdi_group_release(struct group *group);

/* A reference on a group of the same rows in the memory that is named, 0: where they lie. No lock may be held. */
cbd_status cbdi_group_in(struct group *group, uint32_t device_type, uint32_t device_id, struct group **out, cbd_error *error);

#endif
