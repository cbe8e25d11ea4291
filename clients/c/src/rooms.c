/* Room in the argument and result areas: first fit over a list of free extents,
 * sorted by offset, neighbours merged. Only outstanding ops hold room, so the list
 * has at most one extent more than ops can be outstanding; it is made once and
 * nothing is allocated later. With ring.lock held.
 */
#include "ring.h"

#include <stdlib.h>
#include <string.h>

bool cbdi_rooms_init(struct rooms *rooms, uint8_t *base, uint32_t size_bytes, uint32_t ops)
{
    rooms->base = base;
    rooms->size_bytes = size_bytes;
    rooms->capacity = ops + 2;
    rooms->free = calloc(rooms->capacity, sizeof *rooms->free);
    if (rooms->free == NULL)
        return false;
    rooms->count = 1;
    rooms->free[0] = (struct extent){0, size_bytes & ~7u};
    return true;
}

bool cbdi_rooms_take(struct rooms *rooms, uint32_t bytes, uint32_t *offset)
{
    for (uint32_t i = 0; i < rooms->count; i++) {
        struct extent *extent = &rooms->free[i];
        if (extent->bytes < bytes)
            continue;
        *offset = extent->offset;
        extent->offset += bytes;
        extent->bytes -= bytes;
        if (extent->bytes == 0) {
            rooms->count--;
            memmove(extent, extent + 1, (rooms->count - i) * sizeof *extent);
        }
        return true;
    }
    return false;
}

void cbdi_rooms_give(struct rooms *rooms, uint32_t offset, uint32_t bytes)
{
    if (bytes == 0)
        return;
    uint32_t i = 0;
    while (i < rooms->count && rooms->free[i].offset < offset)
        i++;
    struct extent *before = i > 0 ? &rooms->free[i - 1] : NULL, *after = i < rooms->count ? &rooms->free[i] : NULL;
    bool joins_before = before != NULL && before->offset + before->bytes == offset;
    bool joins_after = after != NULL && offset + bytes == after->offset;
    if (joins_before && joins_after) {
        before->bytes += bytes + after->bytes;
        rooms->count--;
        memmove(after, after + 1, (rooms->count - i) * sizeof *after);
    } else if (joins_before) {
        before->bytes += bytes;
    } else if (joins_after) {
        after->offset = offset;
        after->bytes += bytes;
    } else {
        memmove(&rooms->free[i + 1], &rooms->free[i], (rooms->count - i) * sizeof *rooms->free);
        rooms->free[i] = (struct extent){offset, bytes};
        rooms->count++;
    }
}
