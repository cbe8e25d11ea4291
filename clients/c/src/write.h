/* One write, while it is checked; write.c and batch.c. */
#ifndef CBDI_WRITE_H
#define CBDI_WRITE_H

#include "client.h"

struct write {
    cbd_query *query;
    const char *name;
    size_t name_bytes;
    const cbd_tensor *tensor;
    cbd_write_options options;
    uint32_t new_ndim; /* of a new column's row_shape, where the options give none */
    const uint64_t *new_shape;
    cbd_schema schema;
    uint64_t row_bytes;
    uint64_t count; /* prims that are addressed: rows of the payload */
    bool whole;     /* they are all of the query */
    uint64_t bytes;
};

/* Everything that the arguments and the directory decide; fills schema, row_bytes, count and bytes. */
cbd_status cbdi_check_write(cbd_stage *stage, struct write *w, cbd_error *error);

/* The words of the mask. */
uint64_t cbdi_write_words(const struct write *w);

/* Fills an entry and what it refers to, at `at` of the arguments, 8-byte aligned:
 * cbdi_write_room(w) bytes. */
uint64_t cbdi_write_room(const struct write *w);
void cbdi_write_put(const struct write *w, uint8_t *arguments, uint64_t at, cbd_abi_write_entry *entry);

#endif
