/* What clients/python needs of the C client beyond callboard.h. Anybody may use it. */
#ifndef CALLBOARD_PYTHON_H
#define CALLBOARD_PYTHON_H

#include "callboard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One attribute of cbd_write_attributes. Of the options, ordinal, next_ordinal, seal
 * and prim_mode are not looked at. */
typedef struct cbd_write_entry {
    const char *name;
    const cbd_tensor *tensor;
    const cbd_write_options *options; /* NULL: the defaults */
} cbd_write_entry;

/* As cbd_write_attribute, for n attributes of one query at one ordinal, as one op: all
 * or none. The payloads travel inline: NOT_SUPPORTED when they are more than
 * CBD_INLINE_BYTES_MAX together, and a seal makes several ops visible together anyway. */
CBD_API cbd_status cbd_write_attributes(cbd_stage *stage, cbd_query *query, const cbd_write_entry *entries, size_t n,
                                        uint64_t ordinal, uint32_t prim_mode, cbd_op **op, cbd_error *error);

/* Called every 100 ms, with no lock held, on a thread that waits for the broker inside
 * a function that has no time-out of its own (cbd_map_attribute, cbd_intern, queries).
 * What is not 0 ends that wait with TIMEOUT; what was asked for may happen all the same.
 * NULL takes it away. For the whole process. */
CBD_API void cbd_set_interrupt_check(int (*check)(void));

#ifdef __cplusplus
}
#endif

#endif
