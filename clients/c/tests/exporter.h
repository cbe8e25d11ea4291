/* The driver's half of a fake broker: a process of its own, which exports device memory and events by the emulated driver.
 * It must be another one, since no process can open what it exported itself.
 */
#ifndef EXPORTER_H
#define EXPORTER_H

#include <stdint.h>

#define EXPORTED_ARENA_BYTES (2u << 20)

/* Before this process, or any thread of it, loads the driver. */
void exporter_start(const char *library);
void exporter_stop(void);
/* By the numbers of that process: the devices, as it sees them. */
void exporter_uuid(uint32_t device, uint8_t uuid[16]);
/* Makes an arena, or an event, and gives its handle. Arenas are numbered from 0 by the order of their making; so are events. */
void exporter_arena(uint32_t device, uint8_t handle[64]);
void exporter_event(uint32_t device, uint8_t handle[64]);
/* Bytes of an arena, up to 64. */
void exporter_put(uint32_t arena, uint64_t offset, const void *bytes, uint64_t n);
void exporter_get(uint32_t arena, uint64_t offset, void *bytes, uint64_t n);
/* Whether what was recorded has happened; waits for it. */
int exporter_event_done(uint32_t event);
void exporter_event_wait(uint32_t event);
void exporter_free(uint32_t arena);
void exporter_destroy(uint32_t event);

#endif
