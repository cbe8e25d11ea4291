/* Host memory that is registered with the driver, "pinned": asynchronous copies use it in place. */
#include "emu.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static bool mapped(uint64_t address, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char in_core[512];
    for (uint64_t at = address / page * page; at < address + bytes; at += sizeof in_core * page) {
        uint64_t left = address + bytes - at, most = sizeof in_core * page;
        if (mincore((void *)(uintptr_t)at, left < most ? left : most, in_core) != 0)
            return false;
    }
    return true;
}

/* [doc] With unified addressing the device's address of registered memory is the host's. */
CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    uint64_t base = (uint64_t)(uintptr_t)pointer;
    unsigned known = CU_REGISTER_PORTABLE | CU_REGISTER_DEVICEMAP | CU_REGISTER_IOMEMORY | CU_REGISTER_READ_ONLY;
    if (pointer == NULL || bytes == 0 || base + bytes < base || (flags & ~known) != 0)
        return emu_leave(CU_INVALID_VALUE);
    if (flags & CU_REGISTER_IOMEMORY)
        return emu_leave(CU_NOT_SUPPORTED);
    if (!mapped(base, bytes))
        return emu_leave(CU_INVALID_VALUE);
    struct range *other = emu_range_touching(base, bytes);
    if (other != NULL) /* [hdr] for host memory; an address of a device is none */
        return emu_leave(other->kind == RANGE_HOST ? CU_HOST_ALREADY_REGISTERED : CU_INVALID_VALUE);
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return emu_leave(CU_OUT_OF_MEMORY);
    *range = (struct range){.kind = RANGE_HOST, .base = base, .size = bytes, .bytes = pointer, .context = context, .fd = -1,
                            .read_only = (flags & CU_REGISTER_READ_ONLY) != 0};
    emu_range_add(range);
    emu_count(COUNT_REGISTERED, 1);
    return emu_leave(CU_OK);
}

/* [inferred] Work that is still queued on the memory fails when it runs: whether a driver waits for it is not documented, so
 * a program must not count on it. */
CUresult cuMemHostUnregister(void *pointer)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_at((uint64_t)(uintptr_t)pointer, RANGE_HOST);
    if (range == NULL)
        return emu_leave(CU_HOST_NOT_REGISTERED); /* [hdr] also for an address inside */
    emu_range_remove(range);
    free(range);
    emu_count(COUNT_REGISTERED, -1);
    return emu_leave(CU_OK);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct range *range = emu_range_of((uint64_t)(uintptr_t)pointer, 1);
    if (out == NULL || flags != 0 || range == NULL || range->kind != RANGE_HOST)
        return emu_leave(CU_INVALID_VALUE);
    *out = (uint64_t)(uintptr_t)pointer;
    return emu_leave(CU_OK);
}
