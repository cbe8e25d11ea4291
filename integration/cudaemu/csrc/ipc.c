/* Handles of memory, and how any handle finds its exporter.
 *
 * A handle says which descriptor of which process holds the memory; an importer opens it through /proc. So nothing of a
 * killed process is left, what others have open lives on, and what nobody has open can no longer be opened.
 */
#include "emu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const uint64_t emu_handle_magic = 0x31554d4542445543; /* "CUDBEMU1" */

/* [issue] The handle of the process's own memory: openucx/ucx#11600, #11603. The same code where exporter and importer do not
 * share a PID namespace: openucx/ucx#10968, vllm-project/vllm#55906.
 * [inferred] A handle whose exporter is gone, or freed what it names, is an invalid argument: LMCache#3236 saw that for
 * events. What a driver says after the exporter's death is to be seen on a GPU. */
CUresult emu_handle_open(const struct handle *handle, uint32_t kind, const struct context *context, int *fd)
{
    if (handle->magic != emu_handle_magic || handle->kind != kind)
        return CU_INVALID_VALUE;
    if (emu_settings.pid_namespace || handle->pid == (uint32_t)getpid())
        return CU_INVALID_CONTEXT;
    if (handle->device != (uint32_t)context->device)
        return CU_PEER_ACCESS_UNSUPPORTED; /* [issue] ofiwg/libfabric#8773: open on the device that exported */
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", handle->pid, handle->fd);
    if (stat(path, &file) != 0 || (uint64_t)file.st_ino != handle->file) /* seen first: opening what it is now could block */
        return CU_INVALID_VALUE;
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return errno == ENOENT ? CU_INVALID_VALUE : CU_OPERATING_SYSTEM;
    if (emu_file_id(*fd) != handle->file) {
        close(*fd);
        return CU_INVALID_VALUE;
    }
    return CU_OK;
}

/* [doc] "CUDA IPC is not supported on Tegra"; an integrated device is what tells it. */
static bool ipc_supported(const struct context *context)
{
    int integrated = 0;
    return emu_attribute(18, context->device, &integrated) == CU_OK && integrated == 0;
}

/* [issue] An address inside an allocation gives the handle of its beginning: openucx/ucx#11724, numba/numba#3310.
 * [inferred] Imported and registered memory cannot be exported. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_of(address, 1);
    if (out == NULL || range == NULL || range->kind != RANGE_OWN)
        return emu_leave(CU_INVALID_VALUE);
    if (!ipc_supported(range->context))
        return emu_leave(CU_NOT_SUPPORTED);
    struct handle handle = {.magic = emu_handle_magic,
                            .kind = HANDLE_MEMORY,
                            .pid = (uint32_t)getpid(),
                            .fd = (uint32_t)range->fd,
                            .device = (uint32_t)range->context->device,
                            .file = range->id,
                            .size = range->size,
                            .base = range->base};
    memcpy(out, &handle, sizeof handle);
    range->exported = true;
    return emu_leave(CU_OK);
}

static CUresult import(struct context *context, const struct handle *handle, struct range **out)
{
    int fd;
    CUresult result = emu_handle_open(handle, HANDLE_MEMORY, context, &fd);
    if (result != CU_OK)
        return result;
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL || flock(fd, LOCK_SH | LOCK_NB) != 0) { /* the exporter is just freeing it */
        result = range ? CU_INVALID_VALUE : CU_OUT_OF_MEMORY;
        goto failed;
    }
    struct stat file;
    *range = (struct range){.kind = RANGE_IMPORT, .context = context, .fd = fd, .id = handle->file, .size = handle->size, .opens = 1};
    if (fstat(fd, &file) != 0 || range->size == 0 || (uint64_t)file.st_size != range->size) {
        result = CU_INVALID_VALUE;
        goto failed;
    }
    /* [hdr] "No guarantees are made about the address returned"; here it is never the exporter's. */
    result = emu_map_device(range, handle->base);
    if (result != CU_OK)
        goto failed;
    emu_range_add(range);
    emu_count(COUNT_IMPORTS, 1);
    *out = range;
    return CU_OK;
failed:
    free(range);
    close(fd);
    return result;
}

/* [hdr] Opening again in the same context gives the same address, and needs as many closes. */
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (out == NULL || flags != CU_IPC_LAZY_PEER_ACCESS)
        return emu_leave(CU_INVALID_VALUE); /* [hdr] "must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS" */
    if (emu_settings.slow_open_us > 0) {    /* [issue] rapidsai/rapidsmpf#206 */
        pthread_mutex_unlock(&emu_lock);
        emu_sleep_us(emu_settings.slow_open_us);
        pthread_mutex_lock(&emu_lock);
    }
    struct handle parsed;
    memcpy(&parsed, &handle, sizeof parsed);
    struct range *range = emu_ranges;
    while (range && !(parsed.magic == emu_handle_magic && parsed.kind == HANDLE_MEMORY && range->kind == RANGE_IMPORT &&
                      range->context == context && range->id == parsed.file))
        range = range->next;
    if (range != NULL)
        range->opens++;
    else
        result = import(context, &parsed, &range);
    if (result == CU_OK)
        *out = range->base;
    return emu_leave(result);
}

void emu_import_release(struct range *range)
{
    emu_range_remove(range);
    munmap(range->bytes, range->size);
    close(range->fd); /* and with it the lock that the exporter asks for */
    emu_count(COUNT_IMPORTS, -1);
    free(range);
}

/* [inferred] It does not wait for queued work, which fails when it runs: a program must wait itself. A context is needed, as
 * openucx/ucx#10618 found. */
CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_at(address, RANGE_IMPORT);
    if (range == NULL)
        return emu_leave(CU_INVALID_VALUE);
    if (--range->opens == 0)
        emu_import_release(range);
    return emu_leave(CU_OK);
}
