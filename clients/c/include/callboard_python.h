/* What clients/python needs of the C client beyond callboard.h. Anybody may use it. */
#ifndef CALLBOARD_PYTHON_H
#define CALLBOARD_PYTHON_H

#include "callboard_dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called every 100 ms, with no lock held, on a thread that waits for the broker inside
 * a function that has no time-out of its own (cbd_map_attribute, cbd_intern, queries).
 * What is not 0 ends that wait with TIMEOUT; what was asked for may happen all the same.
 * NULL takes it away. For the whole process. */
CBD_API void cbd_set_interrupt_check(int (*check)(void));

/* As cbd_read_attributes and cbd_latest, for callers that others wait for meanwhile, such as the holder of an
 * interpreter's lock. Where something has to be waited for or worked out (a segment is not mapped yet, the rows of the
 * query's prims are not known, the query runs, a GPU's memory is not imported yet, another thread is at it), or takes longer than some microseconds, it is
 * TIMEOUT at once, without a text, and nothing has happened: call the other one. */
CBD_API cbd_status cbd_try_read_attributes(cbd_stage *stage, cbd_query *query, const char *const *names, size_t n,
                                           cbd_read **read, cbd_error *error);
CBD_API cbd_status cbd_try_latest(cbd_stage *stage, const char *name, const cbd_read_group **group, cbd_error *error);

/* A view of a map group's memory is made that a collector takes down, some time after the
 * unmap perhaps: the session's memory stays, the unmap copies, and after a restart of the
 * broker the memory is not used anew, until cbd_group_unlend, which any thread may call.
 * INVALID_HANDLE or BROKER_RESTARTED where the session has ended: nothing is lent. */
CBD_API cbd_status cbd_group_lend(cbd_group *group, cbd_error *error);
CBD_API void cbd_group_unlend(cbd_group *group);

/* As cbd_dlpack_import of the description alone, in any order: shape and strides are the producer's, strides NULL where it
 * gave none. */
CBD_API cbd_status cbd_dlpack_describe(const cbd_dlpack_tensor *from, cbd_tensor *tensor, cbd_error *error);

/* Tells the log callback, as a warning of channel "handle", what a collector found. */
CBD_API void cbd_log_dropped(const char *what);

#ifdef __cplusplus
}
#endif

#endif
