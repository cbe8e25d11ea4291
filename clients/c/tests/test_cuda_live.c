/* Device memory against a real broker and whatever driver there is: a process that does what it is told, one order an
 * argument, and prints a line for each. Rows are runs of equal bytes, uint8 of a row shape: what is filled from VALUE on
 * gives row i the byte VALUE + i. Prims are /p0, /p1, ….
 *
 *     declare NAME BYTES DEVICE                             DEVICE: host, or a number of this process
 *     map NAME PRIMS BYTES VALUE ORDINAL SYNC STAGING       SYNC: none, stream, event, both, legacy; STAGING: there, or as DEVICE
 *     write NAME PRIMS BYTES VALUE ORDINAL SYNC FROM STEP   FROM as DEVICE; STEP: of how many rows of the tensor one is written
 *     publish NAME BYTES VALUE FROM
 *     seal ORDINAL
 *     read NAME PRIMS DEVICE                                DEVICE: there, or as above. Prints where it lies and the rows' bytes
 *     export NAME PRIMS                                     the same, by DLPack
 *     latest NAME DEVICE
 *     devices                                               prints the broker's, by this process's numbers
 *     refused read NAME PRIMS DEVICE                        prints the status and the text of what fails
 *     hear                                                  waits for a line
 */
#include <callboard_cuda.h>
#include <callboard_dlpack.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRIMS_MAX 64

static cbd_stage *stage;
static cbd_error error;

#define MUST(call)                                                                                                      \
    do {                                                                                                                \
        cbd_status got_ = (call);                                                                                       \
        if (got_ != CBD_STATUS_OK) {                                                                                    \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, cbd_status_name(got_), error.text);         \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

/* ---- this program's own CUDA ---------------------------------------------------------- */

typedef unsigned long long address;

static void *driver_function(const char *symbol)
{
    static void *library;
    const char *name = getenv("CALLBOARD_CUDA_LIBRARY");
    if (library == NULL)
        library = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library != NULL ? dlsym(library, symbol) : NULL;
    if (found == NULL) {
        fprintf(stderr, "no %s: %s\n", symbol, dlerror());
        exit(1);
    }
    return found;
}

#define CUDA(symbol, parameters, ...)                                                              \
    do {                                                                                           \
        int code_ = ((int(*) parameters)driver_function(symbol))(__VA_ARGS__);                     \
        if (code_ != 0) {                                                                          \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, symbol, code_);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct {
    void *context, *stream, *other, *event; /* in other nothing is queued */
} gpus[8];

static void use_gpu(uint32_t ordinal)
{
    int device;
    CUDA("cuInit", (unsigned), 0);
    CUDA("cuDeviceGet", (int *, int), &device, (int)ordinal);
    if (gpus[ordinal].context == NULL) {
        CUDA("cuDevicePrimaryCtxRetain", (void **, int), &gpus[ordinal].context, device);
        CUDA("cuCtxSetCurrent", (void *), gpus[ordinal].context);
        CUDA("cuStreamCreate", (void **, unsigned), &gpus[ordinal].stream, 1);
        CUDA("cuStreamCreate", (void **, unsigned), &gpus[ordinal].other, 1);
        CUDA("cuEventCreate", (void **, unsigned), &gpus[ordinal].event, 2);
    }
    CUDA("cuCtxSetCurrent", (void *), gpus[ordinal].context);
}

static void leave_gpus(void)
{
    for (uint32_t i = 0; i < 8; i++)
        if (gpus[i].context != NULL) {
            int device;
            use_gpu(i);
            CUDA("cuEventDestroy_v2", (void *), gpus[i].event);
            CUDA("cuStreamDestroy_v2", (void *), gpus[i].stream);
            CUDA("cuStreamDestroy_v2", (void *), gpus[i].other);
            CUDA("cuDeviceGet", (int *, int), &device, (int)i);
            CUDA("cuDevicePrimaryCtxRelease_v2", (int), device);
        }
}

/* Queues the filling of rows, one every `step`. */
static void fill(uint32_t ordinal, void *at, uint64_t rows, uint64_t bytes, int value, int step)
{
    use_gpu(ordinal);
    for (uint64_t i = 0; i < rows; i++)
        CUDA("cuMemsetD8Async", (address, unsigned char, size_t, void *), (address)(uintptr_t)at + i * bytes * (uint64_t)step,
             (unsigned char)((uint64_t)value + i), bytes, gpus[ordinal].stream);
}

/* What an unmap waits for after a fill. But for "stream" the fill is in none of the streams that the library uses, so that
 * only the event says when it is done. */
static cbd_cuda_sync synced(uint32_t ordinal, const char *how)
{
    cbd_cuda_sync sync = {0, 0};
    if (strcmp(how, "none") == 0)
        CUDA("cuStreamSynchronize", (void *), gpus[ordinal].stream);
    if (strcmp(how, "stream") == 0)
        sync.stream = (uint64_t)(uintptr_t)gpus[ordinal].stream;
    if (strcmp(how, "both") == 0)
        sync.stream = (uint64_t)(uintptr_t)gpus[ordinal].other;
    if (strcmp(how, "event") == 0 || strcmp(how, "both") == 0 || strcmp(how, "legacy") == 0) {
        CUDA("cuEventRecord", (void *, void *), gpus[ordinal].event, gpus[ordinal].stream);
        sync.wait_event = (uint64_t)(uintptr_t)gpus[ordinal].event;
    }
    if (strcmp(how, "legacy") == 0)
        sync.stream = 1;
    return sync;
}

/* ---- orders ----------------------------------------------------------------------------------- */

static cbd_query *prims(int count)
{
    static char texts[PRIMS_MAX][16];
    const char *paths[PRIMS_MAX];
    cbd_query *query;
    for (int i = 0; i < count; i++) {
        snprintf(texts[i], sizeof texts[i], "/p%d", i);
        paths[i] = texts[i];
    }
    MUST(cbd_query_from_path_list(stage, paths, NULL, (size_t)count, &query, &error));
    return query;
}

static void device_of(const char *text, uint32_t *type, uint32_t *id)
{
    *type = strcmp(text, "there") == 0 ? 0 : strcmp(text, "host") == 0 ? CBD_DEVICE_CPU : CBD_DEVICE_CUDA;
    *id = *type == CBD_DEVICE_CUDA ? (uint32_t)atoi(text) : 0;
}

static void finish(cbd_op *op)
{
    MUST(cbd_op_wait(op, UINT64_MAX, NULL, &error));
    cbd_op_release(op);
    puts("ok");
}

static void declare(char **w)
{
    cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_UINT, .bits = 8, .lanes = 1, .row_ndim = 1, .row_shape = {strtoull(w[2], NULL, 10)}};
    cbd_op *op;
    device_of(w[3], &schema.device_type, &schema.device_id);
    MUST(cbd_declare(stage, w[1], &schema, 0, 0, &op, &error));
    finish(op);
}

static void map(char **w)
{
    cbd_query *query = prims(atoi(w[2]));
    cbd_map_options options = {.ordinal = strtoull(w[5], NULL, 10)};
    cbd_session *session;
    cbd_group *group;
    cbd_op *op;
    device_of(w[7], &options.staging_type, &options.staging_id);
    MUST(cbd_map_attribute(stage, query, w[1], &options, &session, &error));
    MUST(cbd_fetch_map_next(session, &group, &error));
    if (group->device_type == CBD_DEVICE_CUDA) {
        fill(group->device_id, group->data, group->rows, group->row_bytes, atoi(w[4]), 1);
        const cbd_cuda_sync sync = synced(group->device_id, w[6]);
        MUST(cbd_unmap_attribute_after(session, 0, &sync, &op, &error));
    } else {
        for (uint64_t i = 0; i < group->rows; i++)
            memset((uint8_t *)group->data + i * group->row_bytes, atoi(w[4]) + (int)i, group->row_bytes);
        MUST(cbd_unmap_attribute(session, 0, &op, &error));
    }
    cbd_session_release(session);
    cbd_query_release(query);
    finish(op);
}

/* A tensor of `rows` rows, of which every step-th is filled; give back by drop_tensor. */
static cbd_tensor tensor_of(uint64_t rows, uint64_t bytes, int value, const char *from, int step, int64_t shape[2], int64_t strides[2])
{
    cbd_tensor t = {.ndim = 2, .shape = shape, .strides = strides, .code = CBD_DTYPE_UINT, .bits = 8, .lanes = 1};
    shape[0] = (int64_t)rows;
    shape[1] = (int64_t)bytes;
    strides[0] = (int64_t)bytes * step;
    strides[1] = 1;
    device_of(from, &t.device_type, &t.device_id);
    if (t.device_type == CBD_DEVICE_CUDA) {
        address at;
        use_gpu(t.device_id);
        CUDA("cuMemAlloc_v2", (address *, size_t), &at, rows * bytes * (uint64_t)step);
        fill(t.device_id, (void *)(uintptr_t)at, rows, bytes, value, step);
        t.data = (void *)(uintptr_t)at;
        return t;
    }
    uint8_t *data = malloc(rows * bytes * (uint64_t)step);
    for (uint64_t i = 0; i < rows; i++)
        memset(data + i * bytes * (uint64_t)step, value + (int)i, bytes);
    t.data = data;
    return t;
}

static void drop_tensor(const cbd_tensor *t)
{
    if (t->device_type != CBD_DEVICE_CUDA) {
        free((void *)(uintptr_t)t->data);
        return;
    }
    use_gpu(t->device_id);
    CUDA("cuMemFree_v2", (address), (address)(uintptr_t)t->data);
}

static void write_rows(char **w)
{
    int64_t shape[2], strides[2];
    uint64_t rows = strtoull(w[2], NULL, 10);
    cbd_query *query = prims(atoi(w[2]));
    cbd_tensor t = tensor_of(rows, strtoull(w[3], NULL, 10), atoi(w[4]), w[7], atoi(w[8]), shape, strides);
    cbd_write_options options = cbd_write_options_default();
    cbd_op *op;
    options.ordinal = strtoull(w[5], NULL, 10);
    options.row_ndim = 1;
    options.row_shape[0] = (uint64_t)shape[1];
    if (t.device_type == CBD_DEVICE_CUDA)
        options.sync = synced(t.device_id, w[6]);
    MUST(cbd_write_attribute(stage, query, w[1], &t, &options, &op, &error));
    if (options.sync.stream == 0)
        drop_tensor(&t); /* it is copied */
    finish(op);
    if (options.sync.stream != 0)
        drop_tensor(&t);
    cbd_query_release(query);
}

static void publish(char **w)
{
    int64_t shape[2], strides[2];
    cbd_op *op;
    cbd_tensor t = tensor_of(1, strtoull(w[2], NULL, 10), atoi(w[3]), w[4], 1, shape, strides);
    if (t.device_type == CBD_DEVICE_CUDA)
        (void)synced(t.device_id, "none");
    MUST(cbd_publish(stage, w[1], &t, 0, &op, &error));
    finish(op);
    drop_tensor(&t);
}

static void show(const cbd_tensor *t, uint64_t prim_count, const uint32_t *index_map)
{
    uint64_t bytes = (uint64_t)t->shape[t->ndim - 1], total = bytes * (t->ndim > 1 ? (uint64_t)t->shape[0] : 1);
    uint8_t *host = malloc(total);
    if (t->device_type == CBD_DEVICE_CUDA) {
        use_gpu(t->device_id);
        CUDA("cuMemcpyDtoH_v2", (void *, address, size_t), host, (address)(uintptr_t)t->data, total);
        printf("cuda:%u", t->device_id);
    } else {
        memcpy(host, t->data, total);
        printf("host");
    }
    for (uint64_t i = 0; i < prim_count; i++) {
        const uint8_t *row = host + bytes * (index_map != NULL ? index_map[i] : i);
        int value = row[0];
        for (uint64_t k = 1; k < bytes; k++)
            if (row[k] != row[0])
                value = -1;
        printf(" %d", value);
    }
    puts("");
    free(host);
}

static void show_group(const cbd_read_group *group)
{
    int64_t shape[CBD_NDIM_MAX];
    cbd_tensor t;
    MUST(cbd_read_group_tensor(group, 0, shape, &t, &error));
    show(&t, group->prim_count, group->index_map);
    cbd_release_group(group);
}

static void read_rows(char **w)
{
    cbd_query *query = prims(atoi(w[2]));
    const char *name = w[1];
    const cbd_read_group *group;
    cbd_read *read;
    uint32_t type, id;
    cbd_status got;
    device_of(w[3], &type, &id);
    MUST(cbd_read_attributes(stage, query, &name, 1, &read, &error));
    while ((got = cbd_fetch_read_next_in(read, type, id, &group, &error)) == CBD_STATUS_OK)
        show_group(group);
    if (got != CBD_STATUS_END)
        MUST(got);
    cbd_read_release(read);
    cbd_query_release(query);
}

static void refused_read(char **w)
{
    cbd_query *query = prims(atoi(w[3]));
    const char *name = w[2];
    const cbd_read_group *group;
    cbd_read *read;
    uint32_t type, id;
    device_of(w[4], &type, &id);
    MUST(cbd_read_attributes(stage, query, &name, 1, &read, &error));
    cbd_status got = cbd_fetch_read_next_in(read, type, id, &group, &error);
    printf("%s: %s\n", cbd_status_name(got), got == CBD_STATUS_OK ? "" : error.text);
    cbd_release_group(group);
    cbd_read_release(read);
    cbd_query_release(query);
}

static void export_rows(char **w)
{
    cbd_query *query = prims(atoi(w[2]));
    const char *name = w[1];
    const cbd_read_group *group;
    cbd_read *read;
    struct DLManagedTensorVersioned *managed;
    MUST(cbd_read_attributes(stage, query, &name, 1, &read, &error));
    MUST(cbd_fetch_read_next(read, &group, &error));
    MUST(cbd_dlpack_export_read_versioned(group, 0, 0, &managed, &error));
    uint64_t count = group->prim_count;
    cbd_release_group(group);
    cbd_read_release(read);
    cbd_query_release(query);
    const cbd_dlpack_versioned *v = (const cbd_dlpack_versioned *)managed;
    cbd_tensor t;
    MUST(cbd_dlpack_import_versioned(managed, &t, &error));
    if (v->tensor.byte_offset != 0 || v->tensor.strides == NULL || !(v->flags & CBD_DLPACK_READ_ONLY))
        exit(1);
    show(&t, count, NULL);
    v->deleter(managed);
}

static void latest(char **w)
{
    const cbd_read_group *group;
    uint32_t type, id;
    device_of(w[2], &type, &id);
    MUST(cbd_latest_in(stage, w[1], type, id, &group, &error));
    show_group(group);
}

static void devices(void)
{
    cbd_device_info info;
    cbd_status got;
    for (uint32_t i = 0; (got = cbd_device_at(stage, i, &info, &error)) == CBD_STATUS_OK; i++)
        printf("%s%u", i == 0 ? "" : " ", info.device_id);
    puts("");
    if (got != CBD_STATUS_END)
        MUST(got);
}

/* A session of several groups, which anybody may fill; `shared` waits until they are there. */
static cbd_op *sharing;

static void share(char **w)
{
    cbd_query *query = prims(atoi(w[2]));
    cbd_map_options options = {.group_rows = strtoull(w[3], NULL, 10), .ordinal = strtoull(w[4], NULL, 10)};
    cbd_session *session;
    device_of(w[5], &options.staging_type, &options.staging_id);
    MUST(cbd_map_attribute(stage, query, w[1], &options, &session, &error));
    MUST(cbd_unmap_attribute(session, 0, &sharing, &error));
    cbd_session_release(session);
    cbd_query_release(query);
    puts("ok");
}

/* Its rows, which are of prims that `prims` makes, get value and on, by their place in the session. */
static void fill_group(cbd_group *group, int value, const char *how)
{
    cbd_query *query = prims(PRIMS_MAX);
    cbd_op *op;
    if (group->device_type != CBD_DEVICE_CUDA || group->first_prim + group->rows > PRIMS_MAX ||
        memcmp(group->prims, cbd_query_ids(query) + group->first_prim, 8 * group->rows) != 0) {
        fputs("a group is not where it was asked for, or of other prims\n", stderr);
        exit(1);
    }
    cbd_query_release(query);
    fill(group->device_id, group->data, group->rows, group->row_bytes, value + (int)group->first_prim, 1);
    const cbd_cuda_sync sync = synced(group->device_id, how);
    MUST(cbd_unmap_group_after(group, 0, &sync, &op, &error));
    MUST(cbd_op_wait(op, UINT64_MAX, NULL, &error));
    cbd_op_release(op);
}

static cbd_status fill_for_work(cbd_group *group, void *context, cbd_error *why)
{
    char **w = context;
    (void)why;
    fill_group(group, atoi(w[2]), w[3]);
    return CBD_STATUS_OK;
}

/* Fills all groups that are open now. */
static void work(char **w)
{
    const cbd_status status = cbd_work_on(stage, w[1], fill_for_work, w, 0, &error);
    puts(status == CBD_STATUS_TIMEOUT ? "ok" : error.text);
}

/* Fills one group. */
static void take(char **w)
{
    cbd_open_group open;
    cbd_group *group;
    size_t count;
    MUST(cbd_list_groups(stage, w[1], &open, 1, &count, &error));
    MUST(cbd_claim_group(stage, open.session, open.index, &group, &error));
    fill_group(group, atoi(w[2]), w[3]);
    cbd_session_release(group->session);
    puts("ok");
}

static void seal(char **w)
{
    cbd_op *op;
    MUST(cbd_advance_write_floor(stage, strtoull(w[1], NULL, 10), CBD_SCOPE_ALL, NULL, 0, 0, &op, &error));
    finish(op);
}

static void obey(char *order)
{
    char *words[10] = {NULL}, line[64];
    int n = 0;
    for (char *word = strtok(order, " "); word != NULL && n < 9; word = strtok(NULL, " "))
        words[n++] = word;
    const char *what = words[0];
    if (strcmp(what, "declare") == 0)
        declare(words);
    else if (strcmp(what, "map") == 0)
        map(words);
    else if (strcmp(what, "write") == 0)
        write_rows(words);
    else if (strcmp(what, "publish") == 0)
        publish(words);
    else if (strcmp(what, "seal") == 0)
        seal(words);
    else if (strcmp(what, "read") == 0)
        read_rows(words);
    else if (strcmp(what, "refused") == 0)
        refused_read(words);
    else if (strcmp(what, "export") == 0)
        export_rows(words);
    else if (strcmp(what, "latest") == 0)
        latest(words);
    else if (strcmp(what, "devices") == 0)
        devices();
    else if (strcmp(what, "share") == 0)
        share(words);
    else if (strcmp(what, "work") == 0)
        work(words);
    else if (strcmp(what, "take") == 0)
        take(words);
    else if (strcmp(what, "shared") == 0)
        finish(sharing);
    else if (strcmp(what, "hear") != 0 || fgets(line, sizeof line, stdin) == NULL)
        exit(2);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "without") != 0)
        MUST(cbd_cuda_enable(&error));
    MUST(cbd_connect(NULL, NULL, &stage, &error));
    for (int i = 2; i < argc; i++)
        obey(argv[i]);
    cbd_stage_release(stage);
    leave_gpus();
    return 0;
}
