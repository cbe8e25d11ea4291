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
    uint32_t new_ndim; /* publish: the tensor is one row. Of a new column's row_shape, where the options give none */
    const uint64_t *new_shape;
    uint32_t device_type, device_id; /* of the options, as the broker counts; 0: where the attribute lies */
    uint32_t number;                 /* of the device that the tensor lies on; 0: the host */
    bool is_new;                     /* there is no such attribute yet */
    cbd_schema schema;
    uint64_t row_bytes; /* array kind: of an element */
    uint64_t count; /* prims that are addressed: rows of the payload */
    bool whole;     /* they are all of the query */
    uint64_t bytes;
    uint64_t *sizes; /* array kind: the elements of each of count rows */
    uint8_t *packed; /* array kind: the packed tensor, compact, where rows are picked from it */
};

/* Everything that the arguments and the directory decide; fills schema, row_bytes, count, bytes and
 * what is of array kind. cbdi_write_free in any case. */
cbd_status cbdi_check_write(cbd_stage *stage, struct write *w, cbd_error *error);
void cbdi_write_free(struct write *w);

/* A tensor on a GPU (write_device.c): where its rows are staged; and copying them into that group.
 * recorded: the group's event says when they are there, else they are. */
void cbdi_write_staging(const struct write *w, cbd_map_options *options);
cbd_status cbdi_write_on_device(const struct write *w, cbd_group *group, bool *recorded, cbd_error *error);

/* The words of the mask. */
uint64_t cbdi_write_words(const struct write *w);

/* Fills an entry and what it refers to, at `at` of the arguments, 8-byte aligned:
 * cbdi_write_room(w) bytes. */
uint64_t cbdi_write_room(const struct write *w);
void cbdi_write_put(const struct write *w, uint8_t *arguments, uint64_t at, cbd_abi_write_entry *entry);

/* Of array kind (arrays.c): the tensors, which are of one type; the schema; sizes and bytes of the
 * rows; and the rows themselves, one after the other. */
cbd_status cbdi_tensors_check(struct write *w, cbd_error *error);
cbd_status cbdi_array_schema(struct write *w, const cbd_schema *existing, cbd_error *error);
cbd_status cbdi_array_layout(struct write *w, cbd_error *error);
void cbdi_array_copy(const struct write *w, uint8_t *to);

#endif
