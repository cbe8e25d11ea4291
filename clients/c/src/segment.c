/* Segments: id → mapping. An unknown id is asked for over the socket, mapped, and
 * the descriptor closed (S2). Ids are never reused, so a cached mapping stays true;
 * a segment that the directory marks as retired is unmapped at the next call, unless
 * a pin or a map session still looks at it. Arenas of device memory stand in the same table (device.c).
 *
 * Everything here runs with cache_lock held.
 */
#include "client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct segment *cbdi_segment_known(cbd_stage *stage, uint64_t id)
{
    return id - 1 < stage->segments_room ? stage->segments[id - 1] : NULL;
}

cbd_status cbdi_segment_keep(cbd_stage *stage, struct segment *segment, cbd_error *error)
{
    if (segment->id > stage->segments_room) {
        uint64_t room = stage->segments_room ? stage->segments_room : 64;
        while (room < segment->id)
            room *= 2;
        struct segment **grown = realloc(stage->segments, room * sizeof *grown);
        if (grown == NULL)
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to note segment %llu", (unsigned long long)segment->id);
        memset(grown + stage->segments_room, 0, (room - stage->segments_room) * sizeof *grown);
        stage->segments = grown;
        stage->segments_room = room;
    }
    stage->segments[segment->id - 1] = segment;
    return CBD_STATUS_OK;
}

/* Maps what came and believes nothing of it before it was checked. */
static cbd_status map_segment(cbd_stage *stage, const cbd_abi_segment_reply *reply, int fd, struct segment **out,
                              cbd_error *error)
{
    struct stat about;
    if (fstat(fd, &about) != 0)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "fstat of segment %llu: %s", (unsigned long long)reply->segment,
                         strerror(errno));
    if (reply->size_bytes < CBD_SEGMENT_HEADER_BYTES || (uint64_t)about.st_size < reply->size_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "segment %llu is said to have %llu bytes but its object has %lld; expected at least %u",
                         (unsigned long long)reply->segment, (unsigned long long)reply->size_bytes,
                         (long long)about.st_size, CBD_SEGMENT_HEADER_BYTES);
    int protection = reply->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, reply->size_bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "mapping %llu bytes of segment %llu: %s",
                         (unsigned long long)reply->size_bytes, (unsigned long long)reply->segment, strerror(errno));
    const cbd_abi_region_header *header = base;
    struct segment *segment = NULL;
    cbd_status status = CBD_STATUS_OK;
    uint32_t version = load32(&header->version);
    if (version >> 16 != CBD_ABI_MAJOR || header->magic != CBD_MAGIC_SEGMENT || header->region_id != reply->segment ||
        header->generation != stage->generation)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL,
                           "segment %llu has magic 0x%llx, version %u.%u, id %llu, generation %llu; expected magic "
                           "0x%llx, version %u, generation %llu",
                           (unsigned long long)reply->segment, (unsigned long long)header->magic, version >> 16,
                           version & 0xffff, (unsigned long long)header->region_id,
                           (unsigned long long)header->generation, (unsigned long long)CBD_MAGIC_SEGMENT,
                           CBD_ABI_MAJOR, (unsigned long long)stage->generation);
    else if ((segment = calloc(1, sizeof *segment)) == NULL)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to note segment %llu",
                           (unsigned long long)reply->segment);
    if (status == CBD_STATUS_OK) {
        segment->id = reply->segment;
        segment->base = base;
        segment->size_bytes = reply->size_bytes;
        segment->writable = reply->writable != 0;
        status = cbdi_segment_keep(stage, segment, error);
    }
    if (status != CBD_STATUS_OK) {
        free(segment);
        munmap(base, reply->size_bytes);
        return status;
    }
    cbdi_log(CBD_LOG_DEBUG, CBDI_LOG_MEMORY, "stage %s: mapped segment %llu, %llu bytes%s", stage->name, (unsigned long long)segment->id,
             (unsigned long long)segment->size_bytes, segment->writable ? ", writable" : "");
    *out = segment;
    return CBD_STATUS_OK;
}

/* Asks for a segment; with OK, *fd is the caller's to close. What an earlier broker alone knew, unsealed work, is
 * BROKER_RESTARTED where that broker went meanwhile. */
static cbd_status ask_for(cbd_stage *stage, uint64_t id, cbd_abi_segment_reply *reply, int *fd, cbd_error *error)
{
    cbd_abi_segment_request request = {
        .header = {CBD_MAGIC_MESSAGE, CBD_VERSION_WORD, CBD_MESSAGE_SEGMENT_REQUEST, sizeof request}, .segment = id};
    uint64_t life = atomic_load(&stage->ring.life);
    cbd_status status = cbdi_ask(stage, &request, sizeof request, CBD_MESSAGE_SEGMENT_REPLY, reply, sizeof *reply, fd,
                                 error);
    if (status != CBD_STATUS_OK)
        return status;
    if (reply->status == CBD_STATUS_NOT_FOUND && life != atomic_load(&stage->ring.life))
        status = cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED,
                           "the broker restarted, and segment %llu is of the time before: what lay there was not sealed; do it again",
                           (unsigned long long)id);
    else if (reply->status != CBD_STATUS_OK) /* NOT_FOUND would read as "no such attribute": what was referred to must be there */
        status = cbdi_fail(error, reply->status == CBD_STATUS_NOT_FOUND ? CBD_STATUS_INTERNAL : reply->status,
                           "the broker refused segment %llu: %s", (unsigned long long)id, cbd_status_text(reply->status));
    else if (reply->segment != id || *fd < 0)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "asked for segment %llu, got segment %llu %s",
                           (unsigned long long)id, (unsigned long long)reply->segment,
                           *fd < 0 ? "without a descriptor" : "");
    if (status != CBD_STATUS_OK && *fd >= 0)
        close(*fd);
    return status;
}

cbd_status cbdi_segment(cbd_stage *stage, uint64_t id, struct segment **segment, cbd_error *error)
{
    if (id == 0 || id > SEGMENT_ID_MAX)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "segment id %llu: expected 1 to %llu", (unsigned long long)id,
                         (unsigned long long)SEGMENT_ID_MAX);
    if ((*segment = cbdi_segment_known(stage, id)) != NULL)
        return (*segment)->import == NULL ? CBD_STATUS_OK
                                          : cbdi_fail(error, CBD_STATUS_INTERNAL, "segment %llu is device memory: expected memory of the host",
                                                      (unsigned long long)id);
    if (stage->at_once)
        return CBD_STATUS_TIMEOUT;
    cbd_abi_segment_reply reply;
    int fd;
    cbd_status status = ask_for(stage, id, &reply, &fd, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = map_segment(stage, &reply, fd, segment, error);
    close(fd);
    return status;
}

cbd_status cbdi_segment_writable(cbd_stage *stage, struct segment *segment, cbd_error *error)
{
    if (segment->writable)
        return CBD_STATUS_OK;
    cbd_abi_segment_reply reply;
    int fd;
    cbd_status status = ask_for(stage, segment->id, &reply, &fd, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (!reply.writable || reply.size_bytes != segment->size_bytes)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "segment %llu of a group is not ours to write (%llu bytes, mapped are %llu)",
                           (unsigned long long)segment->id, (unsigned long long)reply.size_bytes,
                           (unsigned long long)segment->size_bytes);
    else if (mmap(segment->base, segment->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "mapping segment %llu for writing: %s",
                           (unsigned long long)segment->id, strerror(errno));
    else
        segment->writable = 1;
    close(fd);
    return status;
}

cbd_status cbdi_place(cbd_stage *stage, uint64_t segment, uint64_t offset, uint64_t length, const char *what,
                      const uint8_t **bytes, struct segment **where, cbd_error *error)
{
    struct segment *found;
    cbd_status status = cbdi_segment(stage, segment, &found, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (offset > found->size_bytes || length > found->size_bytes - offset || offset % 8 != 0)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "%s lies at offset %llu, %llu bytes long, of segment %llu, which has %llu bytes", what,
                         (unsigned long long)offset, (unsigned long long)length, (unsigned long long)segment,
                         (unsigned long long)found->size_bytes);
    *bytes = found->base + offset;
    if (where != NULL)
        *where = found;
    return CBD_STATUS_OK;
}

void cbdi_segments_trim(cbd_stage *stage)
{
    uint32_t retired = load32(&stage->directory->retired_count);
    if (retired == atomic_load(&stage->retired_seen))
        return;
    bool all = true;
    for (uint64_t i = 0; i < stage->segments_room; i++) {
        struct segment *segment = stage->segments[i];
        if (segment == NULL || segment->kept) /* the directory's own pages never go, whatever it says of them */
            continue;
        uint64_t base = CBD_SEGMENT_PAGE_BASE, place = i;
        size_t page = 0;
        for (; place >= base && page < sizeof stage->directory->segment_pages / sizeof(cbd_abi_ref); base <<= 1, page++)
            place -= base;
        if (page >= sizeof stage->directory->segment_pages / sizeof(cbd_abi_ref))
            continue;
        const cbd_abi_ref *ref = &stage->directory->segment_pages[page];
        const uint8_t *bytes;
        uint64_t in = load64(&ref->segment), at = load64(&ref->offset_bytes);
        if (in == 0 || cbdi_place(stage, in, at, base * sizeof(cbd_abi_segment_entry), "a page of segments", &bytes, NULL,
                                  NULL) != CBD_STATUS_OK)
            continue;
        const cbd_abi_segment_entry *entry = (const cbd_abi_segment_entry *)bytes + place;
        bool before = segment->import != NULL && segment->life != atomic_load(&stage->ring.life); /* void, whatever is said of it (B3) */
        if (!before && (load32(&entry->state) != CBD_SEGMENT_RETIRED || load64(&entry->segment) != i + 1))
            continue;
        if (before && atomic_load(&segment->queued))
            continue; /* what was queued may fill it still: it stays open until this process ends */
        if (atomic_load(&segment->users) != 0) {
            all = false; /* look again at the next call */
            continue;
        }
        stage->segments[i] = NULL;
        if (segment->import != NULL) {
            cbdi_arena_close(stage, segment);
            continue;
        }
        cbdi_log(CBD_LOG_DEBUG, CBDI_LOG_MEMORY, "stage %s: segment %llu is retired and unmapped", stage->name, (unsigned long long)segment->id);
        munmap(segment->base, segment->size_bytes);
        free(segment);
    }
    if (all)
        atomic_store(&stage->retired_seen, retired);
}

void cbdi_segments_unmap(cbd_stage *stage)
{
    cbdi_device_end(stage);
    for (uint64_t i = 0; i < stage->segments_room; i++) {
        if (stage->segments[i] == NULL)
            continue;
        munmap(stage->segments[i]->base, stage->segments[i]->size_bytes);
        free(stage->segments[i]);
    }
    free(stage->segments);
    stage->segments = NULL;
    stage->segments_room = 0;
}
