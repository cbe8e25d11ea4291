/* GPUs: their numbers, the broker's arenas and events in this process (rules C1 to C3, C6).
 *
 *     broker's index ──DEVICE_REQUEST──▶ UUID ──driver──▶ ordinal in this process
 *     segment id, event index ──DEVICE_REQUEST──▶ 64 bytes ──driver──▶ device pointer, event
 *
 * Inside of the library a device is the broker's, by its number: 0 for the host, else 1 + its index, as the layouts
 * have it; a cbd_schema of the inside has the broker's index. The ordinals of this process begin and end at the public
 * functions. The driver itself is behind a table (device.h), which is there once libcallboard_cuda has offered it.
 *
 * What is said here of cache_lock: it is held where a comment says so, and taken elsewhere.
 */
#include "device.h"
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEAVE_NS UINT64_C(2000000000) /* what closing a stage waits at most until the broker has heard of its arenas */
#define QUIET_NS UINT64_C(1000000000) /* and until work on a device has ended that was handed over */
#define DEVICES_MAX 64
#define ASK_AGAIN_NS UINT64_C(3000000000) /* the broker looks for what was not there no more often (behaviour 306) */

static _Atomic(const struct cbdi_cuda *) offered;

cbd_status cbdi_cuda_offer(const struct cbdi_cuda *cuda, cbd_error *error)
{
    if (cuda->version != CBDI_CUDA_VERSION)
        return cbdi_fail(error, CBD_STATUS_INCOMPATIBLE_VERSION,
                         "libcallboard_cuda has a table of version %u, libcallboard one of %u: install the two of one version", cuda->version,
                         CBDI_CUDA_VERSION);
    atomic_store(&offered, cuda);
    return CBD_STATUS_OK;
}

const struct cbdi_cuda *cbdi_cuda(void) { return atomic_load(&offered); }

cbd_status cbdi_cuda_needed(const char *what, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                     "%.200s lies on a GPU, and this program has no part for CUDA: link libcallboard_cuda and call cbd_cuda_enable, "
                     "or use the host (cbd_fetch_read_next_in, staging_type)",
                     what);
}

/* ---- numbers ------------------------------------------------------------------- */

static cbd_status request(cbd_stage *stage, uint32_t sort, uint32_t index, uint64_t segment, cbd_abi_device_reply *reply, cbd_error *error)
{
    const cbd_abi_device_request asked = {.header = {CBD_MAGIC_MESSAGE, CBD_VERSION_WORD, CBD_MESSAGE_DEVICE_REQUEST, sizeof asked},
                                          .sort = sort, .index = index, .segment = segment};
    int fd;
    if (stage->at_once)
        return CBD_STATUS_TIMEOUT;
    cbd_status status = cbdi_ask(stage, &asked, sizeof asked, CBD_MESSAGE_DEVICE_REPLY, reply, sizeof *reply, &fd, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (fd >= 0)
        close(fd); /* none belongs to it */
    if (reply->sort != sort || (reply->status == CBD_STATUS_OK && sort != CBD_DEVICE_ARENA && reply->index != index))
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "asked for a device's object of sort %u, number %u, got sort %u, number %u", sort, index,
                         reply->sort, reply->index);
    return CBD_STATUS_OK;
}

/* Learns the broker's devices, again after a restart, and, where something is missing in what is known, after a while:
 * being asked for it is what makes the broker look for one. With cache_lock held. */
static cbd_status learn(cbd_stage *stage, bool missing, cbd_error *error)
{
    uint64_t life = atomic_load(&stage->ring.life);
    if (stage->devices_life == life && !(missing && cbdi_now_ns() - stage->devices_asked_ns >= ASK_AGAIN_NS))
        return CBD_STATUS_OK;
    struct device found[DEVICES_MAX];
    uint32_t count = 0;
    for (; count < DEVICES_MAX; count++) {
        cbd_abi_device_reply reply;
        cbd_status status = request(stage, CBD_DEVICE_INFO, count, 0, &reply, error);
        if (status != CBD_STATUS_OK)
            return status;
        found[count].absent = reply.status == CBD_STATUS_NOT_FOUND && memcmp(reply.uuid, (uint8_t[16]){0}, sizeof reply.uuid) != 0;
        if ((reply.status == CBD_STATUS_NOT_FOUND && !found[count].absent) || reply.status == CBD_STATUS_NOT_SUPPORTED)
            break; /* the last one was before; or it has none */
        if (reply.status != CBD_STATUS_OK && !found[count].absent)
            return cbdi_fail(error, reply.status, "the broker does not tell of its GPU %u: %s", count, cbd_status_text(reply.status));
        found[count].bytes = reply.size_bytes;
        memcpy(found[count].uuid, reply.uuid, sizeof found[count].uuid);
    }
    if (life != atomic_load(&stage->ring.life))
        return learn(stage, missing, error);
    struct device *devices = malloc((count + 1) * sizeof *devices);
    if (devices == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %u devices", count);
    memcpy(devices, found, count * sizeof *devices);
    free(stage->devices);
    stage->devices = devices;
    stage->device_count = count;
    stage->devices_life = life;
    stage->devices_asked_ns = cbdi_now_ns();
    return CBD_STATUS_OK;
}

/* Whether this process counts GPUs itself: libcallboard_cuda is there, and its driver works. */
static bool counts(cbd_error *error)
{
    const struct cbdi_cuda *cuda = cbdi_cuda();
    uint32_t devices;
    return cuda != NULL && cuda->count(&devices, error) == CBD_STATUS_OK;
}

/* The ordinal of the broker's device; what it is called where this process does not count. With cache_lock held. */
static cbd_status ordinal_of(cbd_stage *stage, uint32_t index, uint32_t *ordinal, cbd_error *error)
{
    cbd_status status = learn(stage, false, error);
    if (status == CBD_STATUS_OK && index >= stage->device_count) {
        stage->devices_life = 0; /* it came up since */
        status = learn(stage, false, error);
    }
    if (status == CBD_STATUS_OK && index >= stage->device_count)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker names its GPU %u, it has %u", index, stage->device_count);
    return status == CBD_STATUS_OK ? cbdi_cuda()->ordinal_of(stage->devices[index].uuid, ordinal, error) : status;
}

/* Sets the public device of the broker's; what cannot be known is ELSEWHERE. With cache_lock held. */
void cbdi_device_out(cbd_stage *stage, uint32_t number, uint32_t *device_type, uint32_t *device_id)
{
    *device_type = number == 0 ? CBD_DEVICE_CPU : CBD_DEVICE_CUDA;
    *device_id = number == 0 ? 0 : number - 1;
    if (number != 0 && counts(NULL) && ordinal_of(stage, number - 1, device_id, NULL) != CBD_STATUS_OK)
        *device_id = CBD_DEVICE_ELSEWHERE;
}

void cbdi_schema_out(cbd_stage *stage, cbd_schema *schema)
{
    if (schema->device_type == CBD_DEVICE_CUDA)
        cbdi_device_out(stage, schema->device_id + 1, &schema->device_type, &schema->device_id);
}

static const char *uuid_text(const uint8_t uuid[16], char text[48])
{
    static const char digits[] = "0123456789abcdef";
    char *at = text;
    memcpy(at, "GPU-", 4);
    at += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = digits[uuid[i] >> 4];
        *at++ = digits[uuid[i] & 15];
    }
    *at = 0;
    return text;
}

/* The broker's index of a GPU that the caller named. With cache_lock held. */
static cbd_status index_of(cbd_stage *stage, const char *what, uint32_t device_id, uint32_t *index, cbd_error *error)
{
    uint8_t uuid[16];
    char text[48];
    bool own = counts(NULL);
    cbd_status status = own ? cbdi_cuda()->uuid_of(device_id, uuid, error) : CBD_STATUS_OK;
    for (int turn = 0; status == CBD_STATUS_OK && turn < 2; turn++) {
        status = learn(stage, turn > 0, error);
        for (uint32_t i = 0; status == CBD_STATUS_OK && i < stage->device_count; i++)
            if ((own ? memcmp(uuid, stage->devices[i].uuid, sizeof uuid) == 0 : i == device_id) && (turn > 0 || !stage->devices[i].absent)) {
                *index = i; /* of one that is absent the broker says why */
                return CBD_STATUS_OK;
            }
    }
    if (status != CBD_STATUS_OK)
        return status;
    if (stage->device_count == 0)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "%s names GPU %u, and this broker serves no GPU: start it with --gpu, and ask `callboard doctor` why there is none",
                         what, device_id);
    return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "%s names GPU %u%s%s, which this broker does not serve; it has %u%s", what, device_id,
                     own ? ", " : "", own ? uuid_text(uuid, text) : "", stage->device_count,
                     own ? ", known by UUID" : ", and without CUDA in this process the numbers are the broker's");
}

cbd_status cbdi_device_in(cbd_stage *stage, const char *what, uint32_t device_type, uint32_t device_id, uint32_t *number, cbd_error *error)
{
    *number = 0;
    if (device_type == CBD_DEVICE_CPU && device_id == 0)
        return CBD_STATUS_OK;
    if (device_type != CBD_DEVICE_CUDA)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "%s is device (%u, %u): expected the host (%u, 0), or a GPU, type %u and its number", what, device_type, device_id,
                         CBD_DEVICE_CPU, CBD_DEVICE_CUDA);
    uint32_t index = 0;
    pthread_mutex_lock(&stage->cache_lock);
    cbd_status status = index_of(stage, what, device_id, &index, error);
    pthread_mutex_unlock(&stage->cache_lock);
    if (status == CBD_STATUS_OK)
        *number = index + 1;
    return status;
}

cbd_status cbdi_device_named(cbd_stage *stage, const char *what, uint32_t *device_type, uint32_t *device_id, cbd_error *error)
{
    uint32_t number;
    if (*device_type == 0 && *device_id == 0)
        return CBD_STATUS_OK;
    cbd_status status = cbdi_device_in(stage, what, *device_type, *device_id, &number, error);
    *device_id = number == 0 ? 0 : number - 1;
    return status;
}

cbd_status cbd_device_at(cbd_stage *stage, uint32_t index, cbd_device_info *info, cbd_error *error)
{
    cbd_status status = cbdi_look_begin(stage, info, sizeof *info, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint32_t at = 0;
    for (int turn = 0; turn < 2; turn++) {
        uint32_t before = index;
        status = learn(stage, turn > 0, error);
        for (at = 0; status == CBD_STATUS_OK && at < stage->device_count && (stage->devices[at].absent || before-- > 0); at++)
            continue;
        if (status != CBD_STATUS_OK || at < stage->device_count)
            break;
    }
    if (status == CBD_STATUS_OK && at >= stage->device_count)
        status = cbdi_fail(error, CBD_STATUS_END, "this broker serves no more than %u GPUs", index);
    if (status == CBD_STATUS_OK) {
        uint32_t device_type;
        info->index = at;
        info->memory_bytes = stage->devices[at].bytes;
        memcpy(info->uuid, stage->devices[at].uuid, sizeof info->uuid);
        cbdi_device_out(stage, at + 1, &device_type, &info->device_id);
    }
    return cbdi_look_end(stage, status);
}

/* ---- arenas and events ------------------------------------------------------------- */

static cbd_status of_before(const char *what, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_BROKER_RESTARTED, "the broker restarted, and %s lay in device memory of the time before, which is gone", what);
}

void cbdi_device_hold(cbd_stage *stage, uint32_t ordinal)
{
    uint64_t bit = UINT64_C(1) << (ordinal % DEVICES_MAX);
    if (ordinal >= DEVICES_MAX || cbdi_cuda() == NULL || (atomic_fetch_or(&stage->gpus, bit) & bit))
        return;
    if (cbdi_cuda()->hold_device(ordinal, NULL) != CBD_STATUS_OK)
        atomic_fetch_and(&stage->gpus, ~bit);
}

/* Opens what the broker answers for. With cache_lock held. */
static cbd_status open_export(cbd_stage *stage, const char *what, uint32_t sort, uint64_t id, uint32_t number, uint64_t generation,
                              struct cbdi_import **import, cbd_abi_device_reply *reply, uint32_t *ordinal, cbd_error *error)
{
    const struct cbdi_cuda *cuda = cbdi_cuda();
    uint64_t life = atomic_load(&stage->ring.life);
    uint32_t devices;
    if (cuda == NULL)
        return cbdi_cuda_needed(what, error);
    if (atomic_load(&stage->leaving)) /* the broker has heard, or will, that it was closed */
        return cbdi_fail(error, CBD_STATUS_SESSION_ENDED, "this stage was closed");
    cbd_status status = cuda->count(&devices, error);
    if (status == CBD_STATUS_OK)
        status = ordinal_of(stage, number - 1, ordinal, error);
    if (status == CBD_STATUS_OK && *ordinal == CBD_DEVICE_ELSEWHERE) {
        char text[48];
        status = cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                           "%s lies on the broker's GPU %u, %s, which this process does not see (CUDA_VISIBLE_DEVICES): use the host", what,
                           number - 1, uuid_text(stage->devices[number - 1].uuid, text));
    }
    if (status == CBD_STATUS_OK)
        status = request(stage, sort, sort == CBD_DEVICE_EVENT ? (uint32_t)id : 0, sort == CBD_DEVICE_ARENA ? id : 0, reply, error);
    if (status != CBD_STATUS_OK)
        return status;
    const char *object = sort == CBD_DEVICE_ARENA ? "arena" : "event";
    if (life != atomic_load(&stage->ring.life) || (reply->status == CBD_STATUS_OK && reply->arena_generation != generation) ||
        (reply->status == CBD_STATUS_NOT_FOUND && generation != load64(&stage->directory->started_ns)))
        return of_before(what, error);
    if (reply->status != CBD_STATUS_OK)
        return cbdi_fail(error, reply->status == CBD_STATUS_NOT_FOUND ? CBD_STATUS_INTERNAL : reply->status, "the broker refused %s %llu: %s",
                         object, (unsigned long long)id, cbd_status_text(reply->status));
    if (reply->device_id != number - 1)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%s %llu is on the broker's GPU %u, it was said to be on %u", object,
                         (unsigned long long)id, reply->device_id, number - 1);
    cbdi_device_hold(stage, *ordinal);
    const struct cbdi_export from = {.generation = stage->generation, .life = generation, .id = id, .is_event = sort == CBD_DEVICE_EVENT,
                                     .ordinal = *ordinal, .handle = reply->handle};
    cbd_error why = {CBD_STATUS_OK, ""};
    status = cuda->open(&from, import, &why);
    return status == CBD_STATUS_OK ? status : cbdi_fail(error, status, "%s %llu of %.100s: %.350s", object, (unsigned long long)id, what, why.text);
}

static cbd_status arena(cbd_stage *stage, const char *what, uint64_t id, uint32_t number, uint64_t generation, struct segment **segment,
                      cbd_error *error)
{
    struct segment *found = cbdi_segment_known(stage, id);
    if (found == NULL) {
        cbd_abi_device_reply reply;
        if (id == 0 || id > SEGMENT_ID_MAX)
            return cbdi_fail(error, CBD_STATUS_INTERNAL, "segment id %llu: expected 1 to %llu", (unsigned long long)id,
                             (unsigned long long)SEGMENT_ID_MAX);
        struct segment *made = calloc(1, sizeof *made);
        struct deferred *closed = calloc(1, sizeof *closed);
        cbd_status status = made == NULL || closed == NULL
                                ? cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to note arena %llu", (unsigned long long)id)
                                : open_export(stage, what, CBD_DEVICE_ARENA, id, number, generation, &made->import, &reply, &made->ordinal, error);
        if (status == CBD_STATUS_OK) {
            made->id = id;
            made->base = made->import->base;
            made->size_bytes = reply.size_bytes;
            made->writable = 1;
            made->device_number = number;
            made->arena_generation = generation;
            made->closed = closed;
            closed->opcode = CBD_OP_ARENA_CLOSED;
            closed->value = id;
            closed->life = made->life = atomic_load(&stage->ring.life);
            atomic_store(&stage->has_arenas, 1);
            status = cbdi_segment_keep(stage, made, error);
            if (status != CBD_STATUS_OK)
                cbdi_cuda()->let_go(made->import);
        }
        if (status != CBD_STATUS_OK) {
            free(made);
            free(closed);
            return status;
        }
        cbdi_log(CBD_LOG_DEBUG, CBDI_LOG_MEMORY, "stage %s: opened arena %llu on GPU %u, %llu bytes", stage->name, (unsigned long long)id,
                 made->ordinal, (unsigned long long)made->size_bytes);
        found = made;
    }
    if (found->import == NULL)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%s lies in segment %llu, which is memory of the host: expected an arena", what,
                         (unsigned long long)id);
    if (found->life != atomic_load(&stage->ring.life))
        return of_before(what, error); /* it is open still, for whoever looked before, and void (B3) */
    if (found->device_number != number || found->arena_generation != generation)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "%s lies in segment %llu, device number %u, generation %llu: known is device number %u, generation %llu", what,
                         (unsigned long long)id, number, (unsigned long long)generation, found->device_number,
                         (unsigned long long)found->arena_generation);
    *segment = found;
    return CBD_STATUS_OK;
}

cbd_status cbdi_device_block(cbd_stage *stage, const char *what, const cbd_abi_block_ref *block, uint32_t number, uint64_t generation,
                             uint64_t length, const uint8_t **bytes, struct segment **where, cbd_error *error)
{
    cbd_status status = arena(stage, what, block->segment, number, generation, where, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (block->offset_bytes > (*where)->size_bytes || length > (*where)->size_bytes - block->offset_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "%s lies at offset %llu, %llu bytes long, of arena %llu, which has %llu bytes", what,
                         (unsigned long long)block->offset_bytes, (unsigned long long)length, (unsigned long long)block->segment,
                         (unsigned long long)(*where)->size_bytes);
    *bytes = (*where)->base + block->offset_bytes;
    return CBD_STATUS_OK;
}

cbd_status cbdi_device_not_void(cbd_stage *stage, const void *data, cbd_error *error)
{
    cbd_status status = CBD_STATUS_OK;
    pthread_mutex_lock(&stage->cache_lock);
    for (uint64_t i = 0; i < stage->segments_room && status == CBD_STATUS_OK; i++) {
        const struct segment *segment = stage->segments[i];
        if (segment != NULL && segment->import != NULL && segment->life != atomic_load(&stage->ring.life) &&
            (uintptr_t)data - (uintptr_t)segment->base < segment->size_bytes)
            status = of_before("the tensor", error);
    }
    pthread_mutex_unlock(&stage->cache_lock);
    return status;
}

static void close_arena(cbd_stage *stage, struct segment *segment)
{
    cbdi_log(CBD_LOG_DEBUG, CBDI_LOG_MEMORY, "stage %s: closed arena %llu", stage->name, (unsigned long long)segment->id);
    cbdi_cuda()->let_go(segment->import);
    free(segment);
}

void cbdi_arena_close(cbd_stage *stage, struct segment *segment)
{
    struct deferred *closed = segment->closed;
    close_arena(stage, segment);
    cbdi_defer(stage, closed); /* C6: it may be freed */
}

cbd_status cbdi_device_event(cbd_stage *stage, const char *what, uint32_t index, uint32_t number, uint64_t generation,
                             struct cbdi_import **event, cbd_error *error)
{
    struct lease *lease = stage->leases;
    cbd_abi_device_reply reply;
    uint32_t ordinal;
    while (lease != NULL && (lease->index != index || lease->generation != generation))
        lease = lease->next;
    if (lease == NULL) {
        lease = calloc(1, sizeof *lease);
        if (lease == NULL)
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to note event %u", index);
        cbd_status status = open_export(stage, what, CBD_DEVICE_EVENT, index, number, generation, &lease->event, &reply, &ordinal, error);
        if (status != CBD_STATUS_OK) {
            free(lease);
            return status;
        }
        lease->index = index;
        lease->generation = generation;
        lease->life = atomic_load(&stage->ring.life);
        if (stage->leases != NULL && stage->leases->generation != generation)
            cbdi_device_events_close(stage); /* they were of a broker that is gone */
        lease->next = stage->leases;
        stage->leases = lease;
    }
    cbdi_cuda()->hold(lease->event);
    *event = lease->event;
    return CBD_STATUS_OK;
}

void cbdi_device_events_close(cbd_stage *stage)
{
    while (stage->leases != NULL) {
        struct lease *lease = stage->leases;
        stage->leases = lease->next;
        cbdi_cuda()->let_go(lease->event);
        free(lease);
    }
}

/* Whether all that was recorded has happened: copies into an arena may be queued whose op nobody waited for. Of a broker that
 * is gone no event may be looked at. */
static bool is_quiet(cbd_stage *stage, uint64_t timeout_ns)
{
    uint64_t deadline = cbdi_now_ns() + timeout_ns;
    for (const struct lease *lease = stage->leases; lease != NULL; lease = lease->next) {
        uint64_t now = cbdi_now_ns();
        if (lease->life == atomic_load(&stage->ring.life) && !cbdi_cuda()->finish(lease->event, now < deadline ? deadline - now : 0))
            return false;
    }
    return true;
}

void cbdi_device_leave(cbd_stage *stage)
{
    bool told = false;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LEAVE_NS / UINT64_C(1000000000);
    if (!atomic_load(&stage->has_arenas) || pthread_mutex_timedlock(&stage->cache_lock, &limit) != 0)
        return; /* whoever waits for the broker's reply may have it, and the hang-up ends that */
    bool quiet = is_quiet(stage, QUIET_NS); /* else it may be filled still: the broker waits for the end of this process (B4) */
    for (uint64_t i = 0; quiet && i < stage->segments_room; i++) {
        struct segment *segment = stage->segments[i];
        if (segment == NULL || segment->import == NULL || segment->life != atomic_load(&stage->ring.life) || atomic_load(&segment->users) != 0)
            continue;
        stage->segments[i] = NULL;
        cbdi_arena_close(stage, segment);
        told = true;
    }
    pthread_mutex_unlock(&stage->cache_lock);
    for (uint64_t deadline = cbdi_now_ns() + LEAVE_NS, now; told && (now = cbdi_now_ns()) < deadline && cbdi_ended(stage, NULL) == CBD_STATUS_OK;) {
        uint32_t bell = load32(&stage->ring.control->client_bell);
        if (!cbdi_ring_owes(stage, CBD_OP_ARENA_CLOSED))
            break;
        cbdi_sleep_on_bell(stage, NULL, bell, deadline - now < WAIT_TURN_NS ? deadline - now : WAIT_TURN_NS);
        cbdi_look_at_socket(stage);
    }
}

void cbdi_device_end(cbd_stage *stage)
{
    bool quiet = atomic_load(&stage->foreign) == 0 && is_quiet(stage, 0); /* cbdi_device_leave has waited */
    if (!quiet && !atomic_load(&stage->foreign))
        cbdi_log(CBD_LOG_WARNING, CBDI_LOG_MEMORY,
                 "stage %s: what a program queued on a GPU has not ended: the memory there stays open to this process until it ends", stage->name);
    for (uint64_t i = 0; i < stage->segments_room; i++) {
        struct segment *segment = stage->segments[i];
        if (segment == NULL || segment->import == NULL)
            continue;
        free(segment->closed); /* the hang-up, or the restart, says so (I2, B3) */
        if (quiet && (segment->life == atomic_load(&stage->ring.life) || !atomic_load(&segment->queued)))
            close_arena(stage, segment);
        else
            free(segment);
        stage->segments[i] = NULL;
    }
    while (!quiet && stage->leases != NULL) {
        struct lease *lease = stage->leases;
        stage->leases = lease->next;
        free(lease);
    }
    cbdi_device_events_close(stage);
    for (uint32_t i = 0; i < DEVICES_MAX && !atomic_load(&stage->foreign); i++)
        if (atomic_load(&stage->gpus) >> i & 1)
            cbdi_cuda()->drop_device(i);
}
