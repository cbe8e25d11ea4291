/* Memory of a device: a memfd each, so that another process can open it and the kernel frees it when the last one is gone. */
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* New memory is not zero ([hdr] "The memory is not cleared"). Larger memory stays untouched, as it may be most of the machine's. */
enum { POISON = 0xa5, POISON_LIMIT = 16 << 20 };

uint64_t emu_file_id(int fd)
{
    struct stat file;
    return fstat(fd, &file) == 0 ? (uint64_t)file.st_ino : 0;
}

static CUresult allocate(struct context *context, uint64_t size, struct range **out)
{
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return CU_OUT_OF_MEMORY;
    range->kind = RANGE_OWN;
    range->context = context;
    range->size = size;
    range->fd = memfd_create("callboard-cudaemu", MFD_CLOEXEC);
    if (range->fd < 0) {
        free(range);
        return CU_OPERATING_SYSTEM;
    }
    if (ftruncate(range->fd, (off_t)size) != 0 || emu_map_device(range, 0) != CU_OK) {
        close(range->fd);
        free(range);
        return CU_OUT_OF_MEMORY;
    }
    range->id = emu_file_id(range->fd);
    if (size <= POISON_LIMIT)
        memset(range->bytes, POISON, size);
    *out = range;
    return CU_OK;
}

/* Each address range is a whole number of 2 MiB blocks of its own, so that nothing is shared by the way. [doc] A real driver
 * puts small allocations into one block, and a handle then shares all of it: that is not emulated. */
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (out == NULL || bytes == 0)
        return emu_leave(CU_INVALID_VALUE); /* [hdr] "If bytesize is 0" */
    if (bytes > (uint64_t)1 << 46)
        return emu_leave(CU_OUT_OF_MEMORY);
    uint64_t size = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (!emu_budget_take(context->device, size))
        return emu_leave(CU_OUT_OF_MEMORY);
    struct range *range;
    result = allocate(context, size, &range);
    if (result != CU_OK) {
        emu_budget_give(context->device, size);
        return emu_leave(result);
    }
    emu_range_add(range);
    emu_count(COUNT_ALLOCATIONS, 1);
    emu_count(COUNT_BYTES, (int64_t)size);
    *out = range->base;
    return emu_leave(CU_OK);
}

/* The processes that hold a lock on the file, as the kernel lists them. */
static void lockers(uint64_t file, char *out, size_t space)
{
    FILE *list = fopen("/proc/locks", "re");
    char line[256];
    size_t used = 0;
    *out = 0;
    while (list && fgets(line, sizeof line, list)) {
        char *field[8], *save = NULL;
        int count = 0;
        for (char *word = strtok_r(line, " ", &save); word && count < 8; word = strtok_r(NULL, " ", &save))
            field[count++] = word;
        char *inode = count > 5 ? strrchr(field[5], ':') : NULL;
        if (inode && strtoull(inode + 1, NULL, 10) == file && used + 16 < space)
            used += (size_t)snprintf(out + used, space - used, " %s", field[4]);
    }
    if (list)
        fclose(list);
}

/* [hdr] "Calling cuMemFree on an exported memory region before calling cuIpcCloseMemHandle in the importing context will
 * result in undefined behavior." Here it ends the process that does it. Importers hold a shared lock on the memfd, which the
 * kernel drops when they die, so one that was killed counts as closed. */
static void release(struct range *range)
{
    if (range->exported && flock(range->fd, LOCK_EX | LOCK_NB) != 0) {
        char pids[128];
        lockers(range->id, pids, sizeof pids);
        emu_trap("memory at %#llx is freed while other processes have it open (pids%s): undefined behaviour in CUDA",
                 (unsigned long long)range->base, *pids ? pids : " unknown");
    }
    emu_range_remove(range);
    munmap(range->bytes, range->size);
    close(range->fd);
    emu_budget_give(range->context->device, range->size);
    emu_count(COUNT_ALLOCATIONS, -1);
    emu_count(COUNT_BYTES, -(int64_t)range->size);
    free(range);
}

/* [doc] Freeing memory is an implicit synchronisation point: it waits for the work of the context. So a wait on an event that
 * never completes blocks it for ever, here too. */
CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_at(address, RANGE_OWN);
    if (range == NULL)
        return emu_leave(CU_INVALID_VALUE);
    context = range->context;
    emu_context_drain(context);
    if (context->lost != CU_OK)
        return emu_leave(context->lost);
    range = emu_range_at(address, RANGE_OWN); /* another thread may have freed it */
    if (range == NULL)
        return emu_leave(CU_INVALID_VALUE);
    release(range);
    return emu_leave(CU_OK);
}

void emu_memory_release_all(struct context *context)
{
    for (struct range *range = emu_ranges, *next; range; range = next) {
        next = range->next;
        if (range->context != context)
            continue;
        switch (range->kind) {
        case RANGE_OWN:
            release(range);
            break;
        case RANGE_IMPORT:
            emu_import_release(range);
            break;
        case RANGE_HOST:
            emu_range_remove(range);
            emu_count(COUNT_REGISTERED, -1);
            free(range);
            break;
        }
    }
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (unused == NULL || total == NULL)
        return emu_leave(CU_INVALID_VALUE);
    uint64_t used = emu_budget_used(context->device);
    *total = emu_settings.memory_bytes;
    *unused = used < *total ? *total - used : 0;
    return emu_leave(CU_OK);
}

/* [hdr] Both results are optional. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_of(address, 1);
    if (range == NULL || range->kind == RANGE_HOST)
        return emu_leave(CU_INVALID_VALUE);
    if (base != NULL)
        *base = range->base;
    if (bytes != NULL)
        *bytes = range->size;
    return emu_leave(CU_OK);
}

/* [hdr] CUpointer_attribute. An address that the driver does not know gives CUDA_ERROR_INVALID_VALUE. */
CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_of(address, 1);
    if (data == NULL || range == NULL)
        return emu_leave(CU_INVALID_VALUE);
    bool host = range->kind == RANGE_HOST;
    switch (attribute) {
    case 1: /* CONTEXT */
        *(CUcontext *)data = range->context;
        break;
    case 2: /* MEMORY_TYPE */
        *(unsigned *)data = host ? CU_MEMORY_HOST : CU_MEMORY_DEVICE;
        break;
    case 3: /* DEVICE_POINTER */
        *(CUdeviceptr *)data = address;
        break;
    case 4: /* HOST_POINTER */
        if (!host)
            return emu_leave(CU_INVALID_VALUE);
        *(void **)data = (void *)(uintptr_t)address;
        break;
    case 7: /* BUFFER_ID: unique in the process */
        *(unsigned long long *)data = range->base;
        break;
    case 8: /* IS_MANAGED */
        *(unsigned *)data = 0;
        break;
    case 9: /* DEVICE_ORDINAL */
        *(int *)data = range->context->ordinal;
        break;
    case 10: /* IS_LEGACY_CUDA_IPC_CAPABLE */
        *(unsigned *)data = range->kind == RANGE_OWN;
        break;
    case 11: /* RANGE_START_ADDR */
        *(CUdeviceptr *)data = range->base;
        break;
    case 12: /* RANGE_SIZE */
        *(size_t *)data = range->size;
        break;
    case 13: /* MAPPED */
        *(unsigned *)data = 1;
        break;
    default:
        return emu_leave(CU_INVALID_VALUE);
    }
    return emu_leave(CU_OK);
}
