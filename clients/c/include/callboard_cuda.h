/* Callboard and memory of GPUs: the part of the client that needs CUDA, in a library of its own, libcallboard_cuda.
 *
 *     producer   cbd_declare or cbd_map_attribute with a device ──▶ group.data is a device pointer ──▶ cbd_unmap_attribute_after
 *                cbd_write_attribute of a tensor on a GPU
 *     reader     cbd_fetch_read_next ──▶ group.data is a device pointer; or on the host, by cbd_fetch_read_next_in
 *
 * Nothing of CUDA is needed to build it: it loads the driver, libcuda.so.1 or what $CALLBOARD_CUDA_LIBRARY names, when
 * a device's memory is looked at first, and finds the GPUs of this process then. A driver that cannot be loaded is tried again
 * the next time. It uses the primary context of each device, as the CUDA runtime and PyTorch do, and leaves the
 * calling thread's current context as it was. Memory and events of the broker are opened once for the process.
 *
 * A process that forks after the driver was loaded cannot use it in the child (CUDA cannot): there, calls that need it are
 * NOT_SUPPORTED, and giving back touches no driver. Start workers by exec, or "spawn", or fork before.
 *
 * What a client without this library can do with attributes on GPUs: declare them, write to them from the host, and read
 * them on the host (cbd_fetch_read_next_in). Device numbers are the broker's then.
 */
#ifndef CALLBOARD_CUDA_H
#define CALLBOARD_CUDA_H

#include "callboard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lets this process use device memory: until it was called, the library does nothing. Loads nothing yet, and may
 * be called again. INCOMPATIBLE_VERSION: libcallboard is of another version. */
CBD_API cbd_status cbd_cuda_enable(cbd_error *error);

/* Loads the driver, if that was not done yet, and counts the GPUs of this process: whether anything here will work, and
 * why not. NOT_SUPPORTED: no driver, no GPU, a fork; *count is 0 then. */
CBD_API cbd_status cbd_cuda_device_count(uint32_t *count, cbd_error *error);

/* The library's own stream of a device, a CUstream: what is written without a stream of the caller's is copied there. A
 * producer that is asked to order its work before it (DLPack's stream argument) needs no other wait. It stays until the caller
 * gives it back by cbd_cuda_stream_release, once for each success. NOT_SUPPORTED: as above; INVALID_ARGUMENT: this
 * process has no such device. */
CBD_API cbd_status cbd_cuda_stream(uint32_t device_id, uint64_t *stream, cbd_error *error);
CBD_API void cbd_cuda_stream_release(uint32_t device_id);

/* Waits until all that was queued in a stream before the call has ended, and gives a group on a GPU back then, as
 * cbd_release_group does (rule V8). The stream is a CUstream of the group's device; 1 is its legacy default stream, 2 the
 * default one of this thread. On failure the group stays the caller's. INVALID_ARGUMENT: stream 0, a group on the host. A
 * handle that is no stream: whatever the driver makes of it. */
CBD_API cbd_status cbd_cuda_release_group(const cbd_read_group *group, uint64_t stream, cbd_error *error);

/* A private copy of bytes on a GPU, in memory of this process there; it is made when this returns. *copy is the caller's:
 * cbd_cuda_free, on any thread. Nobody waits here for what writes the data, which for sealed rows is nothing. INVALID_ARGUMENT,
 * NOT_SUPPORTED, OUT_OF_MEMORY. */
CBD_API cbd_status cbd_cuda_clone(const void *data, uint64_t bytes, uint32_t device_id, void **copy, cbd_error *error);
CBD_API void cbd_cuda_free(void *copy, uint32_t device_id);

/* The device whose memory this address is in. INVALID_ARGUMENT: it is in none that the driver knows of. */
CBD_API cbd_status cbd_cuda_device_of(const void *data, uint32_t *device_id, cbd_error *error);

#ifdef __cplusplus
}
#endif

#endif
