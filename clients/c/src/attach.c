/* Attaching to a stage, forking, closing.
 *
 * A stage attaches in steps, each named in its errors: find the runtime directory,
 * connect, say hello, map channel, directory and doorbell, check them. Whatever
 * fails, everything done so far is undone (field report B11: no leak in a retry
 * loop).
 */
#include "client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the list that fork handlers walk --------------------------------------- */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static cbd_stage *list;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&list_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&list_lock); }

/* The child is not the client (I4): a descriptor left open here would keep a dead
 * parent alive, and the channel is not even mapped (MADV_DONTFORK). */
static void after_fork_in_child(void)
{
    for (cbd_stage *stage = list; stage != NULL; stage = stage->next) {
        atomic_store(&stage->foreign, 1);
        if (stage->socket >= 0)
            close(stage->socket);
        for (int i = 0; i < 3; i++)
            if (stage->fds[i] >= 0)
                close(stage->fds[i]);
        stage->socket = stage->fds[0] = stage->fds[1] = stage->fds[2] = -1;
        cbdi_events_forked(stage);
    }
    pthread_mutex_unlock(&list_lock);
}

static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void cbdi_descriptors_lock(void) { pthread_mutex_lock(&list_lock); }
void cbdi_descriptors_unlock(void) { pthread_mutex_unlock(&list_lock); }

/* ---- lifetimes ---------------------------------------------------------------- */

void cbdi_stage_retain(cbd_stage *stage) { atomic_fetch_add(&stage->refs, 1); }

void cbdi_stage_drop(cbd_stage *stage)
{
    if (stage == NULL || atomic_fetch_sub(&stage->refs, 1) != 1)
        return;
    pthread_mutex_lock(&list_lock);
    if (stage->previous != NULL)
        stage->previous->next = stage->next;
    else if (list == stage)
        list = stage->next;
    if (stage->next != NULL)
        stage->next->previous = stage->previous;
    pthread_mutex_unlock(&list_lock);

    free(stage->reattach.place.parent);
    free(stage->reattach.place.leaf);
    cbdi_ring_free(&stage->ring);
    cbdi_columns_free(stage);
    free(stage->devices);
    cbdi_lists_free(stage);
    for (uint32_t i = 0; stage->pins != NULL && i < stage->pin_count; i++)
        free(stage->pins[i].uses);
    free(stage->pins);
    if (!atomic_load(&stage->foreign)) { /* a child's copy may look locked for ever */
        pthread_mutex_destroy(&stage->ring.lock);
        pthread_mutex_destroy(&stage->cache_lock);
        pthread_mutex_destroy(&stage->socket_lock);
        pthread_mutex_destroy(&stage->state_lock);
        cbdi_events_free(stage);
    }
    free(stage);
}

/* Closes the last n of channel, directory, doorbell; no fork comes in between, in
 * whose child the numbers might already be somebody else's. */
static void close_descriptors(cbd_stage *stage, int n)
{
    pthread_mutex_lock(&list_lock);
    for (int i = 3 - n; i < 3; i++) {
        if (stage->fds[i] >= 0)
            close(stage->fds[i]);
        stage->fds[i] = -1;
    }
    pthread_mutex_unlock(&list_lock);
}

void cbdi_close_socket(cbd_stage *stage)
{
    pthread_mutex_lock(&list_lock);
    if (stage->socket >= 0)
        close(stage->socket);
    stage->socket = -1;
    pthread_mutex_unlock(&list_lock);
}

static void unmap(cbd_stage *stage)
{
    cbdi_segments_unmap(stage);
    if (stage->directory != NULL)
        munmap((void *)(uintptr_t)stage->directory, CBD_DIRECTORY_BYTES);
    if (!atomic_load(&stage->foreign)) { /* not mapped in a child: the place may be somebody else's */
        if (stage->channel != NULL)
            munmap(stage->channel, stage->channel_bytes);
        if (stage->doorbell != NULL)
            munmap(stage->doorbell, stage->doorbell_bytes);
    }
    stage->directory = NULL;
    stage->channel = NULL;
    stage->doorbell = NULL;
    close_descriptors(stage, 3);
}

cbd_status cbdi_enter(cbd_stage *stage, cbd_error *error)
{
    if (stage == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "stage is NULL");
    if (!atomic_load(&stage->foreign) && !atomic_load(&stage->closed)) {
        uint32_t seen = atomic_load(&stage->mapped);
        while (seen != 0)
            if (atomic_compare_exchange_weak(&stage->mapped, &seen, seen + 1)) {
                if (load32(&stage->directory->retired_count) != atomic_load(&stage->retired_seen) &&
                    pthread_mutex_trylock(&stage->cache_lock) == 0) { /* else whoever has it is in a call, too */
                    cbdi_segments_trim(stage);
                    pthread_mutex_unlock(&stage->cache_lock);
                }
                return CBD_STATUS_OK;
            }
    }
    cbd_status status = cbdi_ended(stage, error);
    return status != CBD_STATUS_OK ? status
                                   : cbdi_fail(error, CBD_STATUS_SESSION_ENDED, "this stage was closed");
}

void cbdi_hold(cbd_stage *stage) { atomic_fetch_add(&stage->mapped, 1); }

void cbdi_leave(cbd_stage *stage)
{
    if (atomic_fetch_sub(&stage->mapped, 1) == 1)
        unmap(stage);
}

void cbd_stage_close(cbd_stage *stage)
{
    if (stage == NULL || atomic_exchange(&stage->closed, 1))
        return;
    if (atomic_load(&stage->foreign)) {
        cbdi_leave(stage);
        return;
    }
    pthread_mutex_lock(&list_lock); /* a reattach puts other sockets in its place */
    if (stage->socket >= 0)
        shutdown(stage->socket, SHUT_RDWR); /* before the lock: whoever waits for a reply holds it */
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_lock(&stage->socket_lock);
    cbdi_close_socket(stage);
    pthread_mutex_unlock(&stage->socket_lock);
    cbdi_ring_wake(stage); /* nobody else rings it any more */
    cbdi_events_close(stage);

    pthread_mutex_lock(&stage->cache_lock);
    cbd_query *root = stage->root;
    stage->root = NULL;
    pthread_mutex_unlock(&stage->cache_lock);
    cbdi_query_drop(root);
    cbdi_log(CBD_LOG_INFO, CBDI_LOG_SESSION, "closed stage %s", stage->name);
    cbdi_leave(stage);
}

void cbd_stage_release(cbd_stage *stage)
{
    if (stage == NULL)
        return;
    cbd_stage_close(stage);
    cbdi_stage_drop(stage);
}

int cbd_stage_is_foreign(const cbd_stage *stage)
{
    return stage != NULL && atomic_load(&((cbd_stage *)(uintptr_t)stage)->foreign) != 0;
}

int cbd_stage_is_alive(cbd_stage *stage)
{
    if (stage == NULL || cbdi_ended(stage, NULL) != CBD_STATUS_OK || cbdi_enter(stage, NULL) != CBD_STATUS_OK)
        return 0;
    cbdi_look_at_socket(stage);
    cbdi_leave(stage);
    return cbdi_ended(stage, NULL) == CBD_STATUS_OK;
}

/* ---- saying hello ---------------------------------------------------------------- */

cbd_status cbdi_hello_reply(const void *message, size_t bytes, size_t fd_count, cbd_abi_hello_reply *reply, cbd_error *error)
{
    cbd_abi_message_header header;
    memset(&header, 0, sizeof header);
    memcpy(&header, message, bytes < sizeof header ? bytes : sizeof header);
    if (header.magic != CBD_MAGIC_MESSAGE)
        return cbdi_fail(error, CBD_STATUS_INCOMPATIBLE_VERSION,
                         "saying hello: the peer's message has magic 0x%08x, expected 0x%08x: is it a callboard broker?",
                         header.magic, CBD_MAGIC_MESSAGE);
    if (header.type == CBD_MESSAGE_ERROR_REPLY && bytes >= sizeof(cbd_abi_error_reply)) {
        cbd_abi_error_reply refused;
        char text[sizeof refused.text + 1];
        memcpy(&refused, message, sizeof refused);
        cbdi_copy_text(text, sizeof text, refused.text, sizeof refused.text);
        return cbdi_fail(error, refused.status ? refused.status : CBD_STATUS_INTERNAL, "%s", text);
    }
    if (header.version >> 16 != CBD_ABI_MAJOR)
        return cbdi_fail(error, CBD_STATUS_INCOMPATIBLE_VERSION,
                         "the broker speaks ABI %u.%u, this client %u.%u: the major versions must be equal",
                         header.version >> 16, header.version & 0xffff, CBD_ABI_MAJOR, CBD_ABI_MINOR);
    if (header.type != CBD_MESSAGE_HELLO_REPLY || bytes < sizeof *reply || fd_count != 3)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "saying hello: got a message of type %u, %zu bytes, %zu descriptors; expected type %u, %zu "
                         "bytes, 3 descriptors",
                         header.type, bytes, fd_count, CBD_MESSAGE_HELLO_REPLY, sizeof *reply);
    memcpy(reply, message, sizeof *reply);
    return CBD_STATUS_OK;
}

static cbd_status hello(cbd_stage *stage, const cbd_connect_options *options, cbd_abi_hello_reply *reply,
                        cbd_error *error)
{
    unsigned char message[CBD_MESSAGE_BYTES_MAX];
    cbd_abi_hello_request *request = &stage->reattach.hello;
    *request = (cbd_abi_hello_request){
        .header = {CBD_MAGIC_MESSAGE, CBD_VERSION_WORD, CBD_MESSAGE_HELLO_REQUEST, sizeof *request},
        .features = CBD_FEATURE_FIXED | CBD_FEATURE_ARRAY | CBD_FEATURE_SELECTION | CBD_FEATURE_RECOVERY | CBD_FEATURE_DELETE |
                    CBD_FEATURE_FILTER,
        .flags = (stage->guard ? CBD_ATTACH_GUARD : 0) | (stage->read_only ? CBD_ATTACH_READ_ONLY : 0),
        .language = options->language ? options->language : CBD_LANGUAGE_C,
        .pid = (uint32_t)getpid(),
        .sq_entries = options->sq_entries,
        .cq_entries = options->cq_entries,
        .pin_count = options->pin_count,
        .argument_bytes = options->argument_bytes,
        .result_bytes = options->result_bytes,
    };
    const char *name = options->client_name ? options->client_name : program_invocation_short_name;
    cbdi_copy_text((char *)request->name, sizeof request->name, name, strlen(name));

    size_t bytes = 0, count = 0;
    int failed = cbdi_send(stage->socket, request, sizeof *request);
    if (failed == 0 || failed == EPIPE) /* a refusal may wait even where sending fails */
        failed = cbdi_wait_readable(stage->socket, cbdi_now_ns() + stage->timeout_ns);
    if (failed == 0) {
        pthread_mutex_lock(&list_lock); /* the descriptors are known to the fork handlers as soon as they exist */
        failed = cbdi_receive(stage->socket, message, sizeof message, &bytes, stage->fds, 3, &count, 0);
        pthread_mutex_unlock(&list_lock);
    }
    if (failed == ETIMEDOUT)
        return cbdi_fail(error, CBD_STATUS_TIMEOUT, "saying hello: the broker did not answer for %llu ms; is it stopped?",
                         (unsigned long long)(stage->timeout_ns / 1000000));
    if (failed)
        return cbdi_fail(error, CBD_STATUS_SESSION_ENDED, "saying hello: the broker hung up (%s)", strerror(failed));
    cbd_status status = cbdi_hello_reply(message, bytes, count, reply, error);
    if (status == CBD_STATUS_OK)
        stage->abi_version = reply->header.version;
    return status;
}

/* Maps a region and checks its header. magic 0: of the doorbell nothing but the size is looked
 * at, since every client may write all of it and one stray write must not refuse the next (R3). */
static cbd_status map_region(const char *what, int fd, uint64_t bytes, uint64_t least, int protection, uint64_t magic,
                             uint64_t generation, void **base, cbd_error *error)
{
    struct stat about;
    if (bytes < least || bytes > ((uint64_t)1 << 40) || fstat(fd, &about) != 0 || (uint64_t)about.st_size < bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL,
                         "mapping the %s: %llu bytes are said to be there; expected at least %llu, and an object of that size",
                         what, (unsigned long long)bytes, (unsigned long long)least);
    void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "mapping the %s, %llu bytes: %s", what,
                         (unsigned long long)bytes, strerror(errno));
    if (magic == 0) {
        *base = at;
        return CBD_STATUS_OK;
    }
    const cbd_abi_region_header *header = at;
    uint32_t version = load32(&header->version); /* stored last by the creator, so loaded first */
    cbd_status status = CBD_STATUS_OK;
    if (version >> 16 != CBD_ABI_MAJOR)
        status = cbdi_fail(error, CBD_STATUS_INCOMPATIBLE_VERSION, "the %s is of ABI %u.%u, this client speaks %u.%u", what,
                           version >> 16, version & 0xffff, CBD_ABI_MAJOR, CBD_ABI_MINOR);
    else if (header->magic != magic || header->generation != generation)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL,
                           "the %s has magic 0x%llx and generation %llu; expected 0x%llx and %llu", what,
                           (unsigned long long)header->magic, (unsigned long long)header->generation,
                           (unsigned long long)magic, (unsigned long long)generation);
    if (status != CBD_STATUS_OK) {
        munmap(at, bytes);
        return status;
    }
    *base = at;
    return CBD_STATUS_OK;
}

static cbd_status map_regions(cbd_stage *stage, const cbd_abi_hello_reply *reply, cbd_error *error)
{
    const int *fds = stage->fds;
    void *at;
    cbd_status status = map_region("channel", fds[0], reply->channel_bytes, CBD_SEGMENT_HEADER_BYTES,
                                   PROT_READ | PROT_WRITE, CBD_MAGIC_CHANNEL, reply->generation, &at, error);
    if (status != CBD_STATUS_OK)
        return status;
    stage->channel = at;
    stage->channel_bytes = reply->channel_bytes;
    madvise(at, reply->channel_bytes, MADV_DONTFORK);

    status = map_region("directory", fds[1], reply->directory_bytes, CBD_DIRECTORY_BYTES, PROT_READ,
                        CBD_MAGIC_DIRECTORY, reply->generation, &at, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (reply->directory_bytes > CBD_DIRECTORY_BYTES) /* a later minor version: the part that we know is enough */
        munmap((uint8_t *)at + CBD_DIRECTORY_BYTES, reply->directory_bytes - CBD_DIRECTORY_BYTES);
    stage->directory = at;

    status = map_region("doorbell", fds[2], reply->doorbell_bytes, CBD_DOORBELL_BYTES, PROT_READ | PROT_WRITE, 0,
                        reply->generation, &at, error);
    if (status != CBD_STATUS_OK)
        return status;
    stage->doorbell = at;
    stage->doorbell_bytes = reply->doorbell_bytes;
    madvise(at, reply->doorbell_bytes, MADV_DONTFORK);

    cbd_abi_channel_header header;
    memcpy(&header, stage->channel, sizeof header);
    if (header.header.region_id != reply->incarnation)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "the channel is of incarnation %llu, hello said %llu",
                         (unsigned long long)header.header.region_id, (unsigned long long)reply->incarnation);
    if (header.pin_count == 0 || header.pin_count > CBD_PIN_COUNT_MAX || header.pin_offset_bytes % 4096 != 0 ||
        header.pin_offset_bytes > reply->channel_bytes ||
        header.pin_count * sizeof(cbd_abi_pin_slot) > reply->channel_bytes - header.pin_offset_bytes)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "the channel, %llu bytes, has %u pins at offset %llu",
                         (unsigned long long)reply->channel_bytes, header.pin_count,
                         (unsigned long long)header.pin_offset_bytes);
    stage->pin_slots = (cbd_abi_pin_slot *)(stage->channel + header.pin_offset_bytes);
    stage->pin_count = header.pin_count;
    stage->pins = calloc(header.pin_count, sizeof *stage->pins);
    if (stage->pins == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %u pins", header.pin_count);
    return cbdi_ring_init(stage, &header, error);
}

/* A runtime directory that was named outright may serve another stage than the one meant. */
static cbd_status check_stage(cbd_stage *stage, const struct place *place, cbd_error *error)
{
    char serves[sizeof stage->directory->stage_name + 1];
    cbdi_copy_text(serves, sizeof serves, stage->directory->stage_name, sizeof stage->directory->stage_name);
    if (!place->named || strcmp(serves, place->name) == 0) {
        memcpy(stage->name, serves, sizeof stage->name);
        return CBD_STATUS_OK;
    }
    return cbdi_fail(error, CBD_STATUS_NOT_FOUND,
                     "runtime directory %.200s serves stage \"%s\", not \"%s\"; connect to \"%s\", or let CALLBOARD_RUNTIME_DIR "
                     "name the directory of \"%s\" (unset, the usual places are looked at)",
                     place->directory, serves, place->name, serves, place->name);
}

cbd_status cbd_connect(const char *name, const cbd_connect_options *options, cbd_stage **out, cbd_error *error)
{
    static const cbd_connect_options defaults;
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "stage: expected a place for the handle, got NULL");
    *out = NULL;
    if (options == NULL)
        options = &defaults;
    cbd_status status = options->client_name == NULL
                            ? CBD_STATUS_OK
                            : cbdi_utf8_check("client_name", options->client_name, strlen(options->client_name), error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_once(&fork_once, install_fork_handlers);

    cbd_stage *stage = calloc(1, sizeof *stage);
    if (stage == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for a stage");
    pthread_mutex_init(&stage->ring.lock, NULL);
    pthread_mutex_init(&stage->cache_lock, NULL);
    pthread_mutex_init(&stage->socket_lock, NULL);
    pthread_mutex_init(&stage->state_lock, NULL);
    cbdi_events_init(stage);
    atomic_store(&stage->refs, 1);
    atomic_store(&stage->mapped, 1);
    stage->socket = stage->fds[0] = stage->fds[1] = stage->fds[2] = -1;
    const char *guard = getenv("CALLBOARD_GUARD");
    stage->guard = options->guard || (guard != NULL && strcmp(guard, "1") == 0);
    stage->read_only = options->read_only != 0;
    stage->timeout_ns = options->timeout_ns ? options->timeout_ns : UINT64_C(10000000000);

    stage->reattach.wait_ns = options->reattach_ns == CBD_REATTACH_NEVER ? 0
                              : options->reattach_ns                     ? options->reattach_ns
                                                                         : UINT64_C(10000000000);

    cbd_abi_hello_reply reply = {.incarnation = 0};
    cbd_error why = {CBD_STATUS_INTERNAL, ""};
    struct place *place = &stage->reattach.place;

    pthread_mutex_lock(&list_lock);
    stage->next = list;
    if (list != NULL)
        list->previous = stage;
    list = stage;
    stage->socket = cbdi_discover(name, stage->timeout_ns, place, &why);
    pthread_mutex_unlock(&list_lock);

    status = stage->socket < 0 ? why.status : hello(stage, options, &reply, &why);
    if (status == CBD_STATUS_OK) {
        stage->incarnation = reply.incarnation;
        stage->generation = reply.generation;
        stage->reattach.hello.incarnation = reply.incarnation;
        stage->reattach.hello.generation = reply.generation;
        atomic_store(&stage->broker_incarnation, reply.broker_incarnation);
        atomic_store(&stage->features, reply.features);
        status = map_regions(stage, &reply, &why);
    }
    if (status == CBD_STATUS_OK)
        status = check_stage(stage, place, &why);
    if (status != CBD_STATUS_OK) {
        cbdi_close_socket(stage);
        unmap(stage);
        cbdi_stage_drop(stage);
        cbdi_log(CBD_LOG_WARNING, CBDI_LOG_SESSION, "not attached: %s: %s", cbd_status_name(status), why.text);
        return cbdi_fail(error, status, "%s", why.text);
    }
    cbdi_log(CBD_LOG_INFO, CBDI_LOG_SESSION, "attached to stage %s, generation %llu, as client %llu of broker %llu", stage->name,
             (unsigned long long)stage->generation, (unsigned long long)stage->incarnation,
             (unsigned long long)reply.broker_incarnation);
    close_descriptors(stage, 2); /* directory and doorbell are mapped; the channel's descriptor stays (I3) */
    *out = stage;
    return CBD_STATUS_OK;
}
