/* Addresses of devices: what programs may name, and where the bytes are.
 *
 * A program sees an address in a reservation that nobody can read or write, so a host dereference crashes as it does with
 * a GPU. The bytes are in a second mapping that only the emulation knows. A reservation is kept when its memory is freed:
 * an operation on a stale address finds nothing there, for as long as the process lives. Behind each lies a block that is
 * nobody's, so an operation that runs over the end finds nothing either.
 */
#include "emu.h"

#include <sys/mman.h>

struct range *emu_ranges;

void emu_range_add(struct range *range)
{
    range->next = emu_ranges;
    emu_ranges = range;
}

void emu_range_remove(struct range *range)
{
    for (struct range **at = &emu_ranges; *at; at = &(*at)->next)
        if (*at == range) {
            *at = range->next;
            break;
        }
    while (range->pins > 0)
        pthread_cond_wait(&emu_changed, &emu_lock);
}

struct range *emu_range_at(uint64_t base, enum range_kind kind)
{
    struct range *range = emu_ranges;
    while (range && (range->base != base || range->kind != kind))
        range = range->next;
    return range;
}

struct range *emu_range_of(uint64_t address, uint64_t bytes)
{
    for (struct range *range = emu_ranges; range; range = range->next)
        if (address >= range->base && address - range->base < range->size && bytes <= range->size - (address - range->base))
            return range;
    return NULL;
}

struct range *emu_range_touching(uint64_t address, uint64_t bytes)
{
    for (struct range *range = emu_ranges; range; range = range->next)
        if (address >= range->base ? address - range->base < range->size : range->base - address < bytes)
            return range;
    return NULL;
}

static uint64_t reserve(uint64_t size)
{
    uint64_t all = size + 2 * BLOCK_BYTES; /* one to align by, one behind */
    void *got = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED)
        return 0;
    uint64_t start = (uint64_t)(uintptr_t)got, base = (start + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (base > start)
        munmap(got, base - start);
    return base;
}

uint64_t emu_reserve(uint64_t size, uint64_t not_here)
{
    uint64_t base = reserve(size);
    return base != 0 && base == not_here ? reserve(size) : base; /* the first one stays reserved meanwhile, and after */
}

CUresult emu_map_device(struct range *range, uint64_t not_here)
{
    void *bytes = mmap(NULL, range->size, PROT_READ | PROT_WRITE, MAP_SHARED, range->fd, 0);
    if (bytes == MAP_FAILED)
        return CU_MAP_FAILED;
    range->bytes = bytes;
    range->base = emu_reserve(range->size, not_here);
    if (range->base == 0) {
        munmap(bytes, range->size);
        return CU_MAP_FAILED;
    }
    return CU_OK;
}
