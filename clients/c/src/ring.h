/* What ring.c, rooms.c, op.c and their tests share beyond client.h. */
#ifndef CBDI_RING_H
#define CBDI_RING_H

#include "client.h"

/* For at most `ops` holders of room at a time. */
bool cbdi_rooms_init(struct rooms *rooms, uint8_t *base, uint32_t size_bytes, uint32_t ops);
/* bytes is a multiple of 8; 0 takes nothing and succeeds only where room is left. */
bool cbdi_rooms_take(struct rooms *rooms, uint32_t bytes, uint32_t *offset);
void cbdi_rooms_give(struct rooms *rooms, uint32_t offset, uint32_t bytes);

/* Submits deferred ops while a quarter of the ring stays free and nobody waits for room;
 * with ring.lock held. True when the broker is to be rung. */
bool cbdi_flush_deferred(cbd_stage *stage);
void cbdi_ring_doorbell(cbd_stage *stage);

/* The lowest id of what a pending op waits for, its own at most (chain.c); with ring.lock held. */
uint64_t cbdi_lowest_in_chain(struct ring *ring, const cbd_op *op);

#endif
