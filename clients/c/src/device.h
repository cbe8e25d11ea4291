/* What the core asks of libcallboard_cuda, by a table of functions, so that it needs nothing of CUDA itself. Nobody
 * looks through a device pointer here: it is carried, and added to.
 */
#ifndef CBDI_DEVICE_H
#define CBDI_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "callboard.h"

/* What the broker has exported: of a stage's generation and one life of its broker, a segment or an event. */
struct cbdi_export {
    uint64_t generation, life;
    uint64_t id; /* of the segment, or the index of the event */
    uint32_t is_event;
    uint32_t ordinal;          /* of the device, in this process */
    const uint8_t *handle;     /* 64 bytes */
};

/* Something that this process has open; libcallboard_cuda has more of it. */
struct cbdi_import {
    uint8_t *base; /* of an arena: a device pointer; of an event NULL */
};

/* Bytes that lie together on both sides of a copy. */
struct cbdi_run {
    uint64_t to_offset; /* from the beginning of the group */
    const uint8_t *from;
    uint64_t bytes;
};

#define CBDI_CUDA_VERSION 2u /* of the table, which both libraries must have */

struct cbdi_cuda {
    uint32_t version;

    /* Loads the driver where that was not done, and counts the devices. NOT_SUPPORTED says why there is none. */
    cbd_status (*count)(uint32_t *devices, cbd_error *error);
    /* INVALID_ARGUMENT: this process has no such device. */
    cbd_status (*uuid_of)(uint32_t ordinal, uint8_t uuid[16], cbd_error *error);
    /* CBD_DEVICE_ELSEWHERE: this process does not see it. */
    cbd_status (*ordinal_of)(const uint8_t uuid[16], uint32_t *ordinal, cbd_error *error);

    /* Keeps the device's context and our stream there until they are given back, once for each success. */
    cbd_status (*hold_device)(uint32_t ordinal, cbd_error *error);
    void (*drop_device)(uint32_t ordinal);

    /* Opens what was exported, once for the process; each import is let go of as often as it was opened or held. */
    cbd_status (*open)(const struct cbdi_export *what, struct cbdi_import **import, cbd_error *error);
    void (*hold)(struct cbdi_import *import);
    void (*let_go)(struct cbdi_import *import);

    /* Records an event behind sync's event and stream. */
    cbd_status (*record)(struct cbdi_import *event, const cbd_cuda_sync *sync, cbd_error *error);
    /* Waits for what was recorded last; false: it did not happen in time, or the driver cannot say. */
    bool (*finish)(struct cbdi_import *event, uint64_t timeout_ns);
    /* Queues copies within one device behind sync's event, on its stream, and records the event behind them; without a
     * stream it waits for them, and records nothing. On failure none is under way. */
    cbd_status (*copy)(uint32_t ordinal, uint8_t *to, const struct cbdi_run *runs, size_t n, const cbd_cuda_sync *sync,
                       struct cbdi_import *event, bool *recorded, cbd_error *error);
    /* INVALID_ARGUMENT: not all of the bytes lie where a tensor says, CBD_DEVICE_CUDA or _MANAGED. */
    cbd_status (*check)(const void *data, uint64_t bytes, uint32_t device_type, uint32_t ordinal, cbd_error *error);
};

/* libcallboard_cuda offers itself; it stays for the life of the process. INCOMPATIBLE_VERSION. */
CBD_API cbd_status cbdi_cuda_offer(const struct cbdi_cuda *cuda, cbd_error *error);

#endif
