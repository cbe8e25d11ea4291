#include "fake_broker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

_Atomic unsigned fake_shaking;

void cbdi_shake(void)
{
    static _Thread_local uint32_t x;
    unsigned every = atomic_load_explicit(&fake_shaking, memory_order_relaxed);
    if (every == 0)
        return;
    if (x == 0)
        x = (uint32_t)(uintptr_t)&x | 1;
    x ^= x << 13; /* xorshift (Marsaglia) */
    x ^= x >> 17;
    x ^= x << 5;
    if (x % every == 0)
        sched_yield();
}

static uint8_t *object(const char *name, uint64_t bytes, int *fd)
{
    *fd = memfd_create(name, MFD_CLOEXEC);
    CHECK(*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0);
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void region(void *at, uint64_t magic, uint64_t bytes, uint64_t id)
{
    cbd_abi_region_header *header = at;
    header->magic = magic;
    header->header_bytes = 64;
    header->size_bytes = bytes;
    header->generation = FAKE_GENERATION;
    header->region_id = id;
    store32(&header->version, CBD_VERSION_WORD);
}

static uint64_t channel_bytes(const struct fake *f)
{
    return 4096 + 64ull * f->sq_entries + 4096 + 64ull * f->cq_entries + 4096 + 16ull * f->pin_count + 4096 +
           f->argument_bytes + f->result_bytes + 8192;
}

static uint64_t page(uint64_t at) { return (at + 4095) & ~4095ull; }

static void make_channel(struct fake *f)
{
    uint64_t bytes = page(channel_bytes(f));
    f->channel = object("channel", bytes, &f->channel_fd);
    cbd_abi_channel_header *h = (cbd_abi_channel_header *)f->channel;
    h->sq_entries = f->sq_entries;
    h->cq_entries = f->cq_entries;
    h->pin_count = f->pin_count;
    h->argument_bytes = f->argument_bytes;
    h->result_bytes = f->result_bytes;
    h->sq_offset_bytes = 4096;
    h->cq_offset_bytes = page(h->sq_offset_bytes + 64ull * f->sq_entries);
    h->pin_offset_bytes = page(h->cq_offset_bytes + 64ull * f->cq_entries);
    h->argument_offset_bytes = page(h->pin_offset_bytes + 16ull * f->pin_count);
    h->result_offset_bytes = page(h->argument_offset_bytes + f->argument_bytes);
    region(f->channel, CBD_MAGIC_CHANNEL, bytes, 77);
    f->sq_head = f->cq_tail = 0;
}

static void send_with(int socket, const void *message, size_t bytes, const int *fds, int n)
{
    char control[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct iovec place = {(void *)(uintptr_t)message, bytes};
    struct msghdr header = {.msg_iov = &place, .msg_iovlen = 1};
    if (n > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
    }
    (void)!sendmsg(socket, &header, MSG_NOSIGNAL);
}

/* The lock belongs to the open description, so each client has its own. */
static int another_description(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int another = open(path, O_RDWR | O_CLOEXEC);
    CHECK(another >= 0);
    return another;
}

bool fake_channel_locked(struct fake *f)
{
    int fd = another_description(f->channel_fd);
    bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return locked;
}

static void answer_message(struct fake *f, const uint8_t *message)
{
    cbd_abi_message_header header;
    memcpy(&header, message, sizeof header);
    if (header.type == CBD_MESSAGE_HELLO_REQUEST) {
        cbd_abi_hello_request hello;
        memcpy(&hello, message, sizeof hello);
        if (f->refuse != 0) {
            f->hang_up_status = f->refuse;
            f->refuse = f->refuse == CBD_STATUS_BROKER_RESTARTED ? 0 : f->refuse; /* this one is to be asked again */
            fake_hang_up(f, "this broker does not want anybody");
            return;
        }
        if (hello.incarnation != 0) {
            CHECK(hello.incarnation == 77 && hello.generation == FAKE_GENERATION);
            cbd_abi_channel_control *control = (cbd_abi_channel_control *)(f->channel + CBD_CHANNEL_CONTROL_OFFSET);
            store64(&control->sq_tail, 0); /* B1: rings start anew */
            store64(&control->sq_head, 0);
            store64(&control->cq_tail, 0);
            store64(&control->cq_head, 0);
            store32(&control->client_sleeping, 0);
            store32(&control->client_bell, 0);
            f->sq_head = f->cq_tail = 0;
        }
        cbd_abi_hello_reply reply = {.header = {CBD_MAGIC_MESSAGE, f->version, CBD_MESSAGE_HELLO_REPLY, sizeof reply},
                                     .features = f->features & hello.features,
                                     .incarnation = f->incarnation,
                                     .generation = f->generation,
                                     .broker_incarnation = f->lives,
                                     .ring_generation = f->lives,
                                     .reattached = hello.incarnation != 0 && f->incarnation == 77,
                                     .channel_bytes = page(channel_bytes(f)),
                                     .directory_bytes = CBD_DIRECTORY_BYTES,
                                     .doorbell_bytes = CBD_DOORBELL_BYTES};
        int fds[3] = {another_description(f->channel_fd), f->directory_fd, f->doorbell_fd};
        CHECK(flock(fds[0], LOCK_SH) == 0);
        send_with(f->connection, &reply, sizeof reply, fds, 3);
        close(fds[0]);
        f->greeted = true;
    } else if (header.type == CBD_MESSAGE_SEGMENT_REQUEST) {
        cbd_abi_segment_request request;
        memcpy(&request, message, sizeof request);
        bool known = request.segment >= 1 && request.segment <= 4;
        cbd_abi_segment_reply reply = {.header = {CBD_MAGIC_MESSAGE, f->version, CBD_MESSAGE_SEGMENT_REPLY, sizeof reply},
                                       .segment = request.segment,
                                       .size_bytes = FAKE_SEGMENT_BYTES,
                                       .status = known ? CBD_STATUS_OK : CBD_STATUS_NOT_FOUND,
                                       .writable = request.segment == 2};
        atomic_fetch_add(&f->segment_asks, 1);
        send_with(f->connection, &reply, sizeof reply, known ? &f->segment_fds[request.segment - 1] : NULL, known);
    } else if (header.type == CBD_MESSAGE_DEVICE_REQUEST) {
        cbd_abi_device_request request;
        memcpy(&request, message, sizeof request);
        cbd_abi_device_reply reply = {.header = {CBD_MAGIC_MESSAGE, f->version, CBD_MESSAGE_DEVICE_REPLY, sizeof reply},
                                      .status = CBD_STATUS_NOT_FOUND, .sort = request.sort, .index = request.index};
        if (f->on_device != NULL)
            f->on_device(f, &request, &reply);
        send_with(f->connection, &reply, sizeof reply, NULL, 0);
    }
}

static uint64_t new_handle(struct fake *f) { return (uint64_t)f->lives << 32 | ++f->next_handle; }

static void run_op(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    const cbd_abi_channel_header *h = (const cbd_abi_channel_header *)f->channel;
    const uint8_t *arguments = f->channel + h->argument_offset_bytes + e->argument_offset_bytes;
    uint8_t *results = f->channel + h->result_offset_bytes + e->result_offset_bytes;
    CHECK(e->argument_bytes == 0 || e->argument_offset_bytes + e->argument_bytes <= f->argument_bytes);
    CHECK(e->result_offset_bytes % 8 == 0 && e->result_offset_bytes + e->result_bytes <= f->result_bytes);
    CHECK(e->result_bytes >= 512);
    CHECK(e->opcode == CBD_OP_MIRROR || e->handle == 0 || e->handle >> 32 == f->lives); /* never one that another broker gave */
    if (e->opcode == CBD_OP_QUERY_PATHS || e->opcode == CBD_OP_INTERN) {
        cbd_abi_string_list list;
        memcpy(&list, arguments, sizeof list);
        CHECK(list.total_bytes == e->argument_bytes && 8ull * list.count <= e->result_bytes);
        const uint8_t *at = arguments + sizeof list;
        static _Thread_local uint64_t queried;
        if (e->handle == 0)
            queried = 0;
        for (uint32_t i = 0; i < list.count; i++) {
            char text[CBD_PATH_BYTES_MAX + 1];
            uint32_t length;
            memcpy(&length, at, sizeof length);
            memcpy(text, at + 4, length);
            text[length] = 0;
            uint64_t id = fake_string(f, e->opcode == CBD_OP_QUERY_PATHS ? CBD_STRING_PATH : (uint32_t)e->value, text);
            memcpy(results + 8ull * i, &id, sizeof id);
            at += 4 + ((length + 3) & ~3u);
        }
        queried += list.count;
        if (e->opcode == CBD_OP_QUERY_PATHS)
            atomic_fetch_add(&f->queries, 1);
        c->result_bytes = 8 * list.count;
        c->handle = e->handle ? e->handle : new_handle(f);
        c->count = queried;
    } else if (e->opcode == CBD_OP_PIN) {
        for (uint32_t i = 0; i < e->argument_bytes / 4; i++) {
            uint32_t place;
            memcpy(&place, arguments + 4 * i, sizeof place);
            CHECK(place < f->pin_count && load64(&fake_pins(f)[place].epoch) == 0);
            store64(&fake_pins(f)[place].epoch, f->directory->epoch);
        }
        atomic_fetch_add(&f->pins_by_op, 1);
    } else if (e->opcode == CBD_OP_MAP) {
        cbd_abi_map_arguments map;
        memcpy(&map, arguments, sizeof map);
        uint64_t lanes = map.schema.dtype_bits / 8ull * map.schema.dtype_lanes, rows = 2;
        for (uint32_t i = 0; i < map.schema.row_dimensions; i++)
            lanes *= map.schema.row_shape[i];
        cbd_abi_group_descriptor group = {.session = new_handle(f), .ordinal = e->ordinal, .rows = rows,
                                          .prim_count = rows, .lease_bytes = 4096};
        group.block = (cbd_abi_block_ref){2, 4096, rows * lanes};
        if (map.schema.kind == CBD_KIND_ARRAY) {
            group.block.length_bytes = 0;
            for (uint32_t i = 0; i < map.element_sizes_count; i++)
                group.block.length_bytes += lanes * ((const uint64_t *)(arguments + map.element_sizes_offset_bytes))[i];
            if (group.block.length_bytes == 0)
                group.block.segment = 0;
        }
        memcpy(results, &group, sizeof group);
        c->result_bytes = sizeof group;
        c->handle = group.session;
        c->count = 1;
    } else if (e->opcode == CBD_OP_QUERY_RELEASE) {
        atomic_fetch_add(&f->releases, 1);
    } else if (e->opcode == CBD_OP_SESSIONS_CLOSED) {
        atomic_fetch_add(&f->sessions_closed, 1);
    } else if (e->opcode == CBD_OP_UNMAP_ATTRIBUTE && (e->flags & CBD_FLAG_ABORT)) {
        atomic_fetch_add(&f->aborts, 1);
    }
    c->epoch = f->directory->epoch;
}

static void drain_ring(struct fake *f)
{
    const cbd_abi_channel_header *h = (const cbd_abi_channel_header *)f->channel;
    cbd_abi_channel_control *control = (cbd_abi_channel_control *)(f->channel + CBD_CHANNEL_CONTROL_OFFSET);
    cbd_abi_submission_entry *sq = (cbd_abi_submission_entry *)(f->channel + h->sq_offset_bytes);
    cbd_abi_completion_entry *cq = (cbd_abi_completion_entry *)(f->channel + h->cq_offset_bytes);
    while (!atomic_load(&f->frozen) && f->sq_head != load64(&control->sq_tail)) {
        cbd_abi_submission_entry e = sq[f->sq_head & (f->sq_entries - 1)];
        store64(&control->sq_head, ++f->sq_head);
        cbd_abi_completion_entry c = {.op_id = e.op_id, .ordinal = e.ordinal};
        atomic_store(&f->last_opcode, e.opcode);
        run_op(f, &e, &c);
        f->text = NULL;
        if (f->on_op != NULL && !f->on_op(f, &e, &c))
            continue;
        if (f->text != NULL) {
            c.result_bytes = (uint32_t)strlen(f->text);
            memcpy(f->channel + h->result_offset_bytes + e.result_offset_bytes, f->text, c.result_bytes);
        }
        CHECK(f->cq_tail - load64(&control->cq_head) < f->cq_entries); /* R1: there is always room */
        cq[f->cq_tail & (f->cq_entries - 1)] = c;
        store64(&control->cq_tail, ++f->cq_tail);
        add32(&control->client_bell, 1);
        if (load32(&control->client_sleeping))
            cbdi_futex_wake(&control->client_bell, INT32_MAX);
    }
}

static void *serve(void *argument)
{
    struct fake *f = argument;
    while (!atomic_load(&f->stop)) {
        if (f->connection < 0) {
            struct pollfd look = {f->listener, POLLIN, 0};
            if (poll(&look, 1, 5) > 0)
                f->connection = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
            continue;
        }
        uint8_t message[CBD_MESSAGE_BYTES_MAX];
        ssize_t got = recv(f->connection, message, sizeof message, MSG_DONTWAIT);
        if (got == 0) {
            close(f->connection);
            f->connection = -1;
            f->greeted = false;
            continue;
        }
        if (got > 0)
            answer_message(f, message);
        uint32_t rings = load32(&f->doorbell->rings); /* rule R3, the broker's half */
        store32(&f->directory->sleeping, 1);
        if (f->greeted)
            drain_ring(f);
        if (got < 0)
            cbdi_futex_wait(&f->doorbell->rings, rings, 1000000);
        store32(&f->directory->sleeping, 0);
    }
    return NULL;
}

static void start_listening(struct fake *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/attach.sock", f->dir);
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(f->listener >= 0 && bind(f->listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(f->listener, 8) == 0);
    CHECK(pthread_create(&f->thread, NULL, serve, f) == 0);
}

struct fake *fake_start(void)
{
    struct fake *f = calloc(1, sizeof *f);
    CHECK(f != NULL);
    f->connection = -1;
    f->version = CBD_VERSION_WORD;
    f->features = CBD_FEATURE_FIXED | CBD_FEATURE_SELECTION;
    f->hang_up_status = CBD_STATUS_LIMIT;
    f->incarnation = 77;
    f->generation = FAKE_GENERATION;
    f->lives = 1;
    f->sq_entries = 16;
    f->cq_entries = 32;
    f->pin_count = 64;
    f->argument_bytes = f->result_bytes = 256 << 10;
    f->directory = (cbd_abi_directory_header *)object("directory", CBD_DIRECTORY_BYTES, &f->directory_fd);
    f->doorbell = (cbd_abi_doorbell *)object("doorbell", CBD_DOORBELL_BYTES, &f->doorbell_fd);
    region(f->doorbell, CBD_MAGIC_DOORBELL, CBD_DOORBELL_BYTES, 0);
    for (int i = 0; i < 4; i++) {
        f->segments[i] = object("segment", FAKE_SEGMENT_BYTES, &f->segment_fds[i]);
        f->used[i] = i == 1 ? 8192 : 4096;
        region(f->segments[i], CBD_MAGIC_SEGMENT, FAKE_SEGMENT_BYTES, (uint64_t)i + 1);
    }
    f->directory->identity_tag = 0xabcdef;
    f->directory->segment_count = 4;
    f->directory->pinned_bytes_max = 1 << 20;
    memcpy(f->directory->stage_name, "fake", 4);
    f->directory->attribute_pages[0] = fake_alloc(f, 1, 64 * sizeof(cbd_abi_attribute_entry), NULL);
    f->directory->string_pages[0] = fake_alloc(f, 1, 256 * sizeof(cbd_abi_string_entry), NULL);
    f->directory->string_pages[1] = fake_alloc(f, 1, 512 * sizeof(cbd_abi_string_entry), NULL);
    void *entries;
    f->directory->segment_pages[0] = fake_alloc(f, 1, 64 * sizeof(cbd_abi_segment_entry), &entries);
    for (uint64_t i = 0; i < 4; i++)
        ((cbd_abi_segment_entry *)entries)[i] = (cbd_abi_segment_entry){i + 1, FAKE_SEGMENT_BYTES, 0, CBD_SEGMENT_LIVE, 1};
    fake_column(f, "@floor", CBD_DTYPE_UINT, 64, 1, 0, NULL);
    region(f->directory, CBD_MAGIC_DIRECTORY, CBD_DIRECTORY_BYTES, 0);
    make_channel(f);

    strcpy(f->dir, "/tmp/cbd-fake-XXXXXX");
    CHECK(mkdtemp(f->dir) != NULL);
    setenv("CALLBOARD_RUNTIME_DIR", f->dir, 1);
    start_listening(f);
    return f;
}

void fake_die(struct fake *f)
{
    atomic_store(&f->stop, 1);
    pthread_join(f->thread, NULL);
    close(f->listener); /* its name stays */
    if (f->connection >= 0)
        close(f->connection);
    f->listener = f->connection = -1;
    f->greeted = false;
    f->dead = true;
}

void fake_rise(struct fake *f)
{
    char path[96];
    snprintf(path, sizeof path, "%s/attach.sock", f->dir);
    unlink(path);
    atomic_store(&f->stop, 0);
    f->dead = false;
    f->lives++;
    start_listening(f);
}

void fake_stop(struct fake *f)
{
    char path[96];
    if (!f->dead)
        fake_die(f);
    snprintf(path, sizeof path, "%s/attach.sock", f->dir);
    unlink(path);
    rmdir(f->dir);
    munmap(f->channel, page(channel_bytes(f)));
    munmap(f->directory, CBD_DIRECTORY_BYTES);
    munmap(f->doorbell, CBD_DOORBELL_BYTES);
    close(f->channel_fd);
    close(f->directory_fd);
    close(f->doorbell_fd);
    for (int i = 0; i < 4; i++) {
        munmap(f->segments[i], FAKE_SEGMENT_BYTES);
        close(f->segment_fds[i]);
    }
    free(f);
}

cbd_stage *fake_connect(struct fake *f)
{
    cbd_error error = {0, ""};
    cbd_stage *stage;
    (void)f;
    CHECK_STATUS(cbd_connect("fake", NULL, &stage, &error), CBD_STATUS_OK);
    return stage;
}

void fake_hang_up(struct fake *f, const char *text)
{
    if (text != NULL) {
        cbd_abi_error_reply reply = {.header = {CBD_MAGIC_MESSAGE, CBD_VERSION_WORD, CBD_MESSAGE_ERROR_REPLY, sizeof reply},
                                     .status = f->hang_up_status};
        snprintf((char *)reply.text, sizeof reply.text, "%s", text);
        send_with(f->connection, &reply, sizeof reply, NULL, 0);
    }
    shutdown(f->connection, SHUT_RDWR);
    if (!pthread_equal(pthread_self(), f->thread)) /* else it would serve what is submitted just now */
        while (f->connection >= 0)
            usleep(100);
}

void fake_child_ends(void)
{
    execlp("true", "true", (char *)NULL);
    _exit(127);
}

/* ---- the directory ------------------------------------------------------------- */

cbd_abi_ref fake_alloc(struct fake *f, uint64_t segment, uint64_t bytes, void **at)
{
    uint64_t offset = (f->used[segment - 1] + 255) & ~255ull;
    CHECK(offset + bytes <= FAKE_SEGMENT_BYTES);
    f->used[segment - 1] = offset + bytes;
    if (at != NULL)
        *at = f->segments[segment - 1] + offset;
    return (cbd_abi_ref){segment, offset};
}

static void *at_ref(struct fake *f, cbd_abi_ref ref) { return f->segments[ref.segment - 1] + ref.offset_bytes; }

uint64_t fake_string(struct fake *f, uint32_t sort, const char *text)
{
    cbd_abi_string_entry *entry;
    uint64_t count = f->directory->string_count;
    size_t length = strlen(text);
    for (uint64_t i = 0; i <= count; i++) {
        CHECK(i < 256 + 512);
        entry = i < 256 ? (cbd_abi_string_entry *)at_ref(f, f->directory->string_pages[0]) + i
                        : (cbd_abi_string_entry *)at_ref(f, f->directory->string_pages[1]) + (i - 256);
        if (i < count && (entry->sort != sort || entry->length_bytes != length ||
                          memcmp(at_ref(f, entry->bytes), text, length) != 0))
            continue;
        if (i == count) {
            void *bytes;
            entry->bytes = fake_alloc(f, 1, length + 1, &bytes);
            memcpy(bytes, text, length);
            entry->length_bytes = (uint32_t)length;
            entry->sort = sort;
            entry->hash = cbdi_hash(text, length);
            store64(&f->directory->string_count, count + 1);
        }
        return f->directory->identity_tag << 40 | (i + 1);
    }
    return 0;
}

cbd_abi_attribute_entry *fake_attribute(struct fake *f, uint32_t column)
{
    return (cbd_abi_attribute_entry *)at_ref(f, f->directory->attribute_pages[0]) + column;
}

uint32_t fake_column(struct fake *f, const char *name, uint8_t code, uint8_t bits, uint16_t lanes, uint32_t row_ndim,
                     const uint64_t *row_shape)
{
    uint32_t column = f->directory->attribute_count;
    cbd_abi_attribute_entry *entry = fake_attribute(f, column);
    cbd_abi_slot_page *slots;
    entry->name_id = fake_string(f, CBD_STRING_TOKEN, name);
    entry->schema = (cbd_abi_schema){.kind = CBD_KIND_FIXED, .dtype_code = code, .dtype_bits = bits, .dtype_lanes = lanes,
                                     .device_type = 1, .row_dimensions = row_ndim};
    entry->row_bytes = bits / 8ull * lanes;
    for (uint32_t i = 0; i < row_ndim; i++) {
        entry->schema.row_shape[i] = row_shape[i];
        entry->row_bytes *= row_shape[i];
    }
    entry->slot_pages = fake_alloc(f, 1, sizeof *slots, (void **)&slots);
    for (int i = 0; i < (int)CBD_SLOTS_PER_PAGE; i++)
        slots->slots[i].birth = slots->slots[i].death = CBD_INFINITE;
    store32(&entry->state, CBD_ATTRIBUTE_LIVE);
    store32(&f->directory->attribute_count, column + 1);
    return column;
}

cbd_abi_ref fake_layout(struct fake *f, const char *const *paths, size_t n, uint64_t birth)
{
    void *at;
    cbd_abi_ref ref = fake_alloc(f, 1, sizeof(cbd_abi_layout_header) + n * sizeof(cbd_abi_layout_row), &at);
    cbd_abi_layout_header *header = at;
    cbd_abi_layout_row *rows = (cbd_abi_layout_row *)(header + 1);
    header->layout_id = ++f->layouts;
    header->capacity = n;
    for (size_t i = 0; i < n; i++)
        rows[i] = (cbd_abi_layout_row){fake_string(f, CBD_STRING_PATH, paths[i]), birth, CBD_INFINITE};
    return ref;
}

cbd_abi_version_slot *fake_slot(struct fake *f, uint32_t column, uint32_t place)
{
    cbd_abi_slot_page *at = at_ref(f, fake_attribute(f, column)->slot_pages);
    for (; place >= CBD_SLOTS_PER_PAGE; place -= CBD_SLOTS_PER_PAGE) {
        if (at->next.segment == 0) {
            cbd_abi_slot_page *more;
            cbd_abi_ref ref = fake_alloc(f, 1, sizeof *more, (void **)&more);
            for (int i = 0; i < (int)CBD_SLOTS_PER_PAGE; i++)
                more->slots[i].birth = more->slots[i].death = CBD_INFINITE;
            store64(&at->next.offset_bytes, ref.offset_bytes);
            store64(&at->next.segment, ref.segment);
        }
        at = at_ref(f, at->next);
    }
    return &at->slots[place];
}

void fake_epoch(struct fake *f, uint64_t epoch)
{
    store64(&f->directory->epoch, epoch);
    cbdi_futex_wake((uint32_t *)(void *)&f->directory->epoch, INT32_MAX);
}

static void put(struct fake *f, uint32_t column, uint32_t place, cbd_abi_block_ref block, cbd_abi_ref layout, uint64_t rows,
                uint64_t ordinal, uint64_t birth)
{
    cbd_abi_version_slot *slot = fake_slot(f, column, place), *old = NULL;
    for (uint32_t i = 0; i < CBD_SLOTS_PER_PAGE; i++) {
        cbd_abi_version_slot *s = fake_slot(f, column, i);
        if (s != slot && s->birth != CBD_INFINITE && s->death == CBD_INFINITE)
            old = s;
    }
    store64(&slot->birth, CBD_INFINITE); /* rule V4 */
    store64(&slot->death, CBD_INFINITE);
    slot->block = block;
    slot->layout = layout;
    slot->layout_generation = layout.offset_bytes;
    slot->rows = rows;
    slot->ordinal_lowest = slot->ordinal_highest = ordinal;
    slot->stamp_ns = birth * 10;
    store64(&slot->birth, birth);
    if (old != NULL)
        store64(&old->death, birth);
    store64(&fake_attribute(f, column)->latest_slot, place);
}

void fake_publish(struct fake *f, uint32_t column, uint32_t place, cbd_abi_ref layout, uint64_t rows, const void *data,
                  uint64_t bytes, uint64_t ordinal)
{
    void *at;
    cbd_abi_ref ref = fake_alloc(f, 3, bytes, &at);
    memcpy(at, data, bytes);
    put(f, column, place, (cbd_abi_block_ref){ref.segment, ref.offset_bytes, bytes}, layout, rows, ordinal,
        f->directory->epoch + 1);
    fake_epoch(f, f->directory->epoch + 1);
}

void fake_floors(struct fake *f, uint32_t place, uint64_t global, uint64_t other, const cbd_abi_floor_row *rows, uint64_t n)
{
    void *at;
    uint64_t bytes = sizeof(cbd_abi_floor_table) + n * sizeof *rows;
    cbd_abi_ref ref = fake_alloc(f, 1, bytes, &at);
    cbd_abi_floor_table table = {.global_floor = global, .default_floor = other, .stamp_ns = 99, .count = n};
    memcpy(at, &table, sizeof table);
    if (n != 0)
        memcpy((uint8_t *)at + sizeof table, rows, n * sizeof *rows);
    put(f, CBD_FLOOR_COLUMN, place, (cbd_abi_block_ref){ref.segment, ref.offset_bytes, bytes}, (cbd_abi_ref){0, 0}, 0, 0,
        f->directory->epoch + 1);
    fake_epoch(f, f->directory->epoch + 1);
}

cbd_abi_pin_slot *fake_pins(struct fake *f)
{
    return (cbd_abi_pin_slot *)(f->channel + ((cbd_abi_channel_header *)f->channel)->pin_offset_bytes);
}

unsigned fake_pins_held(struct fake *f)
{
    unsigned held = 0;
    for (uint32_t i = 0; i < f->pin_count; i++)
        held += load64(&fake_pins(f)[i].epoch) != 0;
    return held;
}

int fake_entries(const char *directory)
{
    DIR *all = opendir(directory);
    int n = 0;
    CHECK(all != NULL);
    while (readdir(all) != NULL)
        n++;
    closedir(all);
    return n;
}
