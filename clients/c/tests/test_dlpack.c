/* DLPack out and in (behaviour 277, 278, 281, 282, 284, 288, 290, 291, 298, 300). The consumer here has the
 * standard's names; header_is_cxx.cc includes the headers the other way round.
 */
#include "standin_dlpack.h"

#include "callboard_dlpack.h"
#include "scene.h"

static cbd_error error;
static const char *const names[] = {"x"};

enum { ROUNDS = 10000 };

#define SAYS(part)                                                                              \
    do {                                                                                        \
        if (strstr(error.text, part) == NULL) {                                                 \
            fprintf(stderr, "%s:%d: the text is: %s\n", __FILE__, __LINE__, error.text);        \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

static cbd_tensor floats(const float *data, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    return (cbd_tensor){.data = data, .ndim = ndim, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1};
}

static void free_tensor(void *tensor) { cbd_tensor_free(tensor); }

static void count_release(void *count) { atomic_fetch_add((_Atomic int *)count, 1); }

/* ---- a producer's tensors ------------------------------------------------------- */

static DLManagedTensorVersioned produced(const float *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (DLManagedTensorVersioned){
        .version = {1, 0},
        .dl_tensor = {(void *)(uintptr_t)data, {kDLCPU, 0}, ndim, {kDLFloat, 32, 1}, shape, strides, 0}};
}

/* ---- out: tensors of the caller --------------------------------------------------- */

static void a_tensor_is_lent_as_it_is(void)
{
    const float data[6] = {0, 1, 2, 3, 4, 5};
    const int64_t shape[2] = {2, 3}, transposed[2] = {1, 2}, one[3] = {1, 2, 1}, odd[3] = {77, 1, -5};
    _Atomic int released = 0;
    DLManagedTensor *m;
    DLManagedTensorVersioned *v;
    cbd_tensor t = floats(data, 2, shape, NULL);
    CHECK_STATUS(cbd_dlpack_export(&t, 0, count_release, &released, &m, &error), CBD_STATUS_OK);
    CHECK(m->dl_tensor.data == data && m->dl_tensor.byte_offset == 0 && m->dl_tensor.ndim == 2 && m->dl_tensor.shape != shape);
    CHECK(m->dl_tensor.shape[0] == 2 && m->dl_tensor.shape[1] == 3 && m->dl_tensor.strides[0] == 3 && m->dl_tensor.strides[1] == 1);
    CHECK(m->dl_tensor.dtype.code == kDLFloat && m->dl_tensor.dtype.bits == 32 && m->dl_tensor.dtype.lanes == 1);
    CHECK(m->dl_tensor.device.device_type == kDLCPU && m->dl_tensor.device.device_id == 0 && released == 0);
    m->deleter(m);
    CHECK(released == 1);

    CHECK_STATUS(cbd_dlpack_export_versioned(&t, CBD_DLPACK_READ_ONLY, NULL, NULL, &v, &error), CBD_STATUS_OK); /* a view */
    CHECK(v->version.major == 1 && v->flags == DLPACK_FLAG_BITMASK_READ_ONLY && v->dl_tensor.data == data);
    v->deleter(v);
    t = floats(data, 2, shape, transposed); /* strides as they are */
    CHECK_STATUS(cbd_dlpack_export_versioned(&t, 0, NULL, NULL, &v, &error), CBD_STATUS_OK);
    CHECK(v->flags == 0 && v->dl_tensor.strides[0] == 1 && v->dl_tensor.strides[1] == 2);
    v->deleter(v);
    t = floats(data, 3, one, odd); /* but row-major ones where nobody uses them (field report G4) */
    CHECK_STATUS(cbd_dlpack_export_versioned(&t, 0, NULL, NULL, &v, &error), CBD_STATUS_OK);
    CHECK(v->dl_tensor.strides[0] == 2 && v->dl_tensor.strides[1] == 1 && v->dl_tensor.strides[2] == 1);
    v->deleter(v);
    t = floats(data, 0, NULL, NULL);
    CHECK_STATUS(cbd_dlpack_export_versioned(&t, 0, NULL, NULL, &v, &error), CBD_STATUS_OK);
    CHECK(v->dl_tensor.ndim == 0 && v->dl_tensor.shape == NULL && v->dl_tensor.strides == NULL);
    v->deleter(v);
    const int64_t empty[3] = {2, 0, 3};
    t = floats(NULL, 3, empty, NULL);
    t.device_type = CBD_DEVICE_CUDA_HOST;
    CHECK_STATUS(cbd_dlpack_export_versioned(&t, 0, NULL, NULL, &v, &error), CBD_STATUS_OK);
    CHECK(v->dl_tensor.strides[0] == 3 && v->dl_tensor.strides[1] == 3 && v->dl_tensor.device.device_type == kDLCPU);
    v->deleter(v);
}

static void a_copy_is_private_and_flagged(void)
{
    const float data[6] = {0, 1, 2, 3, 4, 5};
    const int64_t shape[2] = {3, 2}, turned[2] = {-2, 1};
    _Atomic int released = 0;
    DLManagedTensor *m;
    DLManagedTensorVersioned *v;
    cbd_tensor t = floats(data + 4, 2, shape, turned);
    CHECK_STATUS(cbd_dlpack_export_versioned(&t, CBD_DLPACK_COPY | CBD_DLPACK_READ_ONLY, count_release, &released, &v, &error), CBD_STATUS_OK);
    CHECK(released == 1 && v->flags == DLPACK_FLAG_BITMASK_IS_COPIED && (uintptr_t)v->dl_tensor.data % 64 == 0);
    float *copy = v->dl_tensor.data;
    CHECK(memcmp(copy, (float[]){4, 5, 2, 3, 0, 1}, 24) == 0 && v->dl_tensor.strides[0] == 2 && v->dl_tensor.strides[1] == 1);
    copy[0] = 9; /* the consumer's */
    v->deleter(v);
    CHECK_STATUS(cbd_dlpack_export(&t, CBD_DLPACK_COPY | CBD_DLPACK_READ_ONLY, NULL, NULL, &m, &error), CBD_STATUS_OK);
    CHECK(((float *)m->dl_tensor.data)[5] == 1);
    m->deleter(m);
    t = floats(data + 3, 0, NULL, NULL);
    CHECK_STATUS(cbd_dlpack_export(&t, CBD_DLPACK_COPY, NULL, NULL, &m, &error), CBD_STATUS_OK);
    CHECK(*(float *)m->dl_tensor.data == 3);
    m->deleter(m);
    CHECK(released == 1);
}

static void what_cannot_be_exported_is_refused_and_releases_nothing(void)
{
    const float data[2] = {0};
    const int64_t two = 2, minus = -2;
    int64_t many[65];
    _Atomic int released = 0;
    for (int i = 0; i < 65; i++)
        many[i] = 1;
    cbd_tensor good = floats(data, 1, &two, NULL), nibble = good, unknown = good, lanes = good, cuda = good;
    nibble.code = 17, nibble.bits = 4;
    unknown.bits = 24;
    lanes.lanes = 256;
    cuda.device_type = CBD_DEVICE_CUDA;
    const cbd_tensor negative = floats(data, 1, &minus, NULL), null = floats(NULL, 1, &two, NULL), shapeless = floats(data, 1, NULL, NULL),
                     deep = floats(data, 65, many, NULL);
    const struct {
        const cbd_tensor *tensor;
        uint32_t flags;
        cbd_status status;
        const char *text;
    } bad[] = {
        {NULL, 0, CBD_STATUS_INVALID_ARGUMENT, "NULL"},
        {&negative, 0, CBD_STATUS_INVALID_ARGUMENT, "shape (-2,): dimension 0 is negative"},
        {&null, 0, CBD_STATUS_INVALID_ARGUMENT, "shape (2,) has no data"},
        {&shapeless, 0, CBD_STATUS_INVALID_ARGUMENT, "no shape"},
        {&deep, 0, CBD_STATUS_INVALID_ARGUMENT, "ndim 65"},
        {&unknown, 0, CBD_STATUS_INVALID_ARGUMENT, "code 2 and 24 bits"},
        {&lanes, 0, CBD_STATUS_INVALID_ARGUMENT, "lanes is 256"},
        {&good, 4, CBD_STATUS_INVALID_ARGUMENT, "flags are 0x4"},
        {&nibble, 0, CBD_STATUS_NOT_SUPPORTED, "code 17 has 4 bits"},
        {&cuda, 0, CBD_STATUS_NOT_SUPPORTED, "the tensor lies on a GPU, and this program has no part for CUDA: link libcallboard_cuda and call cbd_cuda_enable"},
        {&good, CBD_DLPACK_READ_ONLY, CBD_STATUS_NOT_SUPPORTED, "read-only"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        DLManagedTensor *m = (void *)1;
        CHECK_STATUS(cbd_dlpack_export(bad[i].tensor, bad[i].flags, count_release, &released, &m, &error), bad[i].status);
        SAYS(bad[i].text);
        CHECK(m == NULL && released == 0);
    }
    CHECK_STATUS(cbd_dlpack_export(&good, 0, NULL, NULL, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_dlpack_export_versioned(&good, 0, NULL, NULL, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
}

/* ---- in ------------------------------------------------------------------------------ */

static void a_tensor_comes_in_without_a_copy(void)
{
    const float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    int64_t shape[3] = {2, 1, 3}, strides[3] = {3, 99, 1}, empty[2] = {0, 3}, any[2] = {-7, 5};
    cbd_tensor t;
    DLManagedTensorVersioned v = produced(data, 3, shape, strides);
    v.flags = DLPACK_FLAG_BITMASK_READ_ONLY; /* behaviour 298 */
    v.dl_tensor.byte_offset = 8;
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
    CHECK(t.data == data + 2 && t.ndim == 3 && t.shape == shape && t.strides == NULL && t.code == CBD_DTYPE_FLOAT && t.bits == 32);
    v.dl_tensor.strides = NULL; /* before DLPack 1.2 (field report G1) */
    v.dl_tensor.device = (DLDevice){kDLCUDAHost, 1};
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
    CHECK(t.strides == NULL && t.device_type == CBD_DEVICE_CUDA_HOST);
    v = produced(NULL, 2, empty, any);
    CHECK_STATUS(cbd_dlpack_import_versioned(&v, &t, &error), CBD_STATUS_OK);
    CHECK(t.strides == NULL && t.data == NULL);
    v = produced(data, 0, NULL, NULL);
    DLManagedTensor m = {.dl_tensor = v.dl_tensor};
    CHECK_STATUS(cbd_dlpack_import(&m, &t, &error), CBD_STATUS_OK);
    CHECK(t.ndim == 0 && t.data == data);
    m.dl_tensor.dtype.lanes = 4;
    CHECK_STATUS(cbd_dlpack_import(&m, &t, &error), CBD_STATUS_OK);
    CHECK(t.lanes == 4);
}

/* Field report G1: the other extents of an empty tensor multiply to more than any word. */
static void an_empty_tensor_comes_in_whatever_its_other_extents(void)
{
    const float data[1] = {0};
    int64_t huge = INT64_C(1) << 32, strides[3] = {INT64_MIN, INT64_MAX, 1};
    int64_t shapes[3][3] = {{0, huge, huge / 2}, {huge, 0, huge}, {huge, huge / 2, 0}};
    for (int i = 0; i < 3; i++)
        for (int given = 0; given < 2; given++) {
            cbd_tensor t, *copy;
            cbd_buffer b;
            DLManagedTensor m = {.dl_tensor = produced(data, 3, shapes[i], given ? strides : NULL).dl_tensor}, *out;
            CHECK_STATUS(cbd_dlpack_import(&m, &t, &error), CBD_STATUS_OK);
            CHECK(t.ndim == 3 && t.shape == shapes[i] && t.strides == NULL);
            CHECK_STATUS(cbd_dlpack_import_copy(&m, &copy, &error), CBD_STATUS_OK);
            cbd_tensor_free(copy);
            t.strides = given ? strides : NULL;
            CHECK_STATUS(cbd_buffer_of_tensor(&t, 0, &b, &error), CBD_STATUS_OK);
            CHECK(b.length_bytes == 0);
            CHECK_STATUS(cbd_dlpack_export(&t, 0, NULL, NULL, &out, &error), CBD_STATUS_OK);
            out->deleter(out);
        }
}

static void a_copy_gathers_any_strides(void)
{
    const float data[6] = {0, 1, 2, 3, 4, 5};
    int64_t shape[2] = {2, 3}, transposed[2] = {1, 2}, turned[2] = {-3, -1}, still[2] = {0, 1}, empty[2] = {3, 0};
    const struct {
        const float *from;
        int64_t *strides;
        float wanted[6];
    } cases[] = {
        {data, NULL, {0, 1, 2, 3, 4, 5}},
        {data, transposed, {0, 2, 4, 1, 3, 5}},
        {data + 5, turned, {5, 4, 3, 2, 1, 0}},
        {data, still, {0, 1, 2, 0, 1, 2}},
    };
    cbd_tensor *t, borrowed;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DLManagedTensorVersioned v = produced(cases[i].from, 2, shape, cases[i].strides);
        CHECK_STATUS(cbd_dlpack_import_copy_versioned(&v, &t, &error), CBD_STATUS_OK);
        CHECK(memcmp(t->data, cases[i].wanted, sizeof cases[i].wanted) == 0 && t->strides == NULL && t->shape != shape);
        CHECK(t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 && (uintptr_t)t->data % 64 == 0);
        cbd_tensor_free(t);
        if (i == 0)
            continue;
        CHECK_STATUS(cbd_dlpack_import_versioned(&v, &borrowed, &error), CBD_STATUS_NOT_SUPPORTED);
        SAYS("shape (2, 3) and strides (");
    }
    DLManagedTensor m = {.dl_tensor = produced(data, 2, empty, NULL).dl_tensor};
    CHECK_STATUS(cbd_dlpack_import_copy(&m, &t, &error), CBD_STATUS_OK);
    CHECK(t->shape[1] == 0);
    cbd_tensor_free(t);
    m.dl_tensor = produced(data + 4, 0, NULL, NULL).dl_tensor;
    CHECK_STATUS(cbd_dlpack_import_copy(&m, &t, &error), CBD_STATUS_OK);
    CHECK(*(const float *)t->data == 4 && t->ndim == 0);
    cbd_tensor_free(t);
    cbd_tensor_free(NULL);
    char bytes[25]; /* at no float's address (field report G8) */
    memcpy(bytes + 1, data, sizeof data);
    m.dl_tensor = produced((const float *)(const void *)bytes, 2, shape, transposed).dl_tensor;
    m.dl_tensor.byte_offset = 1;
    CHECK_STATUS(cbd_dlpack_import_copy(&m, &t, &error), CBD_STATUS_OK);
    CHECK(((const float *)t->data)[1] == 2 && ((const float *)t->data)[5] == 5);
    cbd_tensor_free(t);
}

static void what_cannot_come_in_is_refused_by_its_numbers(void)
{
    const float data[2] = {0};
    int64_t two[1] = {2}, minus[1] = {-1}, far[1] = {INT64_MAX / 2}, huge[2] = {INT64_MAX, INT64_MAX};
    const DLManagedTensorVersioned good = produced(data, 1, two, NULL);
    DLManagedTensorVersioned bad[16];
    const char *texts[16];
    cbd_status statuses[16];
    size_t n = 0;
#define BAD(field, status, text) (bad[n] = good, bad[n].field, statuses[n] = CBD_STATUS_##status, texts[n++] = (text))
    BAD(version.major = 2, NOT_SUPPORTED, "DLPack 2.0: expected 1.x");
    BAD(dl_tensor.ndim = 65, INVALID_ARGUMENT, "ndim 65: expected 0 to 64");
    BAD(dl_tensor.ndim = -1, INVALID_ARGUMENT, "ndim -1");
    BAD(dl_tensor.shape = NULL, INVALID_ARGUMENT, "shape NULL");
    BAD(dl_tensor.shape = minus, INVALID_ARGUMENT, "dimension 0 is negative");
    BAD(dl_tensor.data = NULL, INVALID_ARGUMENT, "no data");
    BAD(dl_tensor.byte_offset = UINT64_MAX, INVALID_ARGUMENT, "byte_offset 18446744073709551615");
    BAD(dl_tensor.device.device_type = kDLCUDA, NOT_SUPPORTED, "device (2, 0)");
    BAD(dl_tensor.device.device_type = 0, INVALID_ARGUMENT, "device (0, 0)");
    BAD(dl_tensor.device.device_id = 1, INVALID_ARGUMENT, "device (1, 1)");
    BAD(dl_tensor.dtype.lanes = 0, INVALID_ARGUMENT, "lanes is 0");
    BAD(dl_tensor.dtype.lanes = 256, INVALID_ARGUMENT, "lanes is 256");
    BAD(dl_tensor.dtype.bits = 4, INVALID_ARGUMENT, "code 2 and 4 bits");
    BAD(dl_tensor.dtype.code = 16, NOT_SUPPORTED, "code 16");
    BAD(dl_tensor.strides = far, INVALID_ARGUMENT, "beyond the address space");
    bad[n] = produced(data, 2, huge, NULL), statuses[n] = CBD_STATUS_INVALID_ARGUMENT, texts[n++] = "more than";
    CHECK(n == sizeof bad / sizeof *bad);
    for (size_t i = 0; i < n; i++) {
        cbd_tensor t, *copy = (void *)1;
        CHECK_STATUS(cbd_dlpack_import_versioned(&bad[i], &t, &error), statuses[i]);
        SAYS(texts[i]);
        CHECK(t.data == NULL && t.shape == NULL);
        CHECK_STATUS(cbd_dlpack_import_copy_versioned(&bad[i], &copy, &error), statuses[i]);
        SAYS(texts[i]);
        CHECK(copy == NULL);
        DLManagedTensor m = {.dl_tensor = bad[i].dl_tensor};
        if (i == 0)
            continue;
        CHECK_STATUS(cbd_dlpack_import(&m, &t, &error), statuses[i]);
        CHECK_STATUS(cbd_dlpack_import_copy(&m, &copy, &error), statuses[i]);
    }
    cbd_tensor t, *copy;
    CHECK_STATUS(cbd_dlpack_import(NULL, &t, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("got NULL");
    CHECK_STATUS(cbd_dlpack_import_versioned(NULL, &t, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_dlpack_import_copy(NULL, &copy, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_dlpack_import_copy_versioned(NULL, &copy, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_dlpack_import_versioned(&good, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_dlpack_import_copy_versioned(&good, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
}

/* ---- the buffer protocol ---------------------------------------------------------------- */

static void a_buffer_is_told_in_bytes(void)
{
    const float data[12] = {0};
    const int64_t shape[2] = {2, 3}, transposed[2] = {1, 2};
    cbd_buffer b;
    cbd_tensor t = floats(data, 2, shape, NULL);
    CHECK_STATUS(cbd_buffer_of_tensor(&t, 1, &b, &error), CBD_STATUS_OK);
    CHECK(b.data == data && b.item_bytes == 4 && b.length_bytes == 24 && strcmp(b.format, "f") == 0 && b.read_only == 1);
    CHECK(b.ndim == 2 && b.shape[1] == 3 && b.strides[0] == 12 && b.strides[1] == 4);
    t = floats(data, 2, shape, transposed);
    t.lanes = 2;
    CHECK_STATUS(cbd_buffer_of_tensor(&t, 0, &b, &error), CBD_STATUS_OK);
    CHECK(b.read_only == 0 && b.ndim == 3 && b.shape[2] == 2 && b.strides[0] == 8 && b.strides[1] == 16 && b.strides[2] == 4);
    CHECK(b.item_bytes == 4 && b.length_bytes == 48);
    static const struct {
        uint8_t code, bits;
        const char *format;
    } formats[] = {{0, 8, "b"},  {0, 16, "h"}, {0, 32, "i"},  {0, 64, "q"},   {1, 8, "B"},  {1, 16, "H"}, {1, 32, "I"}, {1, 64, "Q"},
                   {2, 16, "e"}, {2, 32, "f"}, {2, 64, "d"},  {4, 16, "H"},   {5, 64, "Zf"}, {5, 128, "Zd"}, {6, 8, "?"}, {10, 8, "B"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        CHECK(strcmp(cbd_buffer_format(formats[i].code, formats[i].bits), formats[i].format) == 0);
    CHECK(cbd_buffer_format(2, 8) == NULL && cbd_buffer_format(17, 4) == NULL);
    CHECK_STATUS(cbd_buffer_of_tensor(NULL, 0, &b, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_buffer_of_tensor(&t, 0, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    int64_t ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    t = floats(data, 64, ones, NULL);
    CHECK_STATUS(cbd_buffer_of_tensor(&t, 0, &b, &error), CBD_STATUS_OK);
    t.lanes = 2;
    CHECK_STATUS(cbd_buffer_of_tensor(&t, 0, &b, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("64 dimensions and 2 lanes");
}

/* ---- groups ------------------------------------------------------------------------------- */

static bool keep(struct fake *f, const cbd_abi_submission_entry *e, cbd_abi_completion_entry *c)
{
    (void)c;
    if (e->opcode == CBD_OP_UNMAP_GROUP || e->opcode == CBD_OP_UNMAP_ATTRIBUTE)
        arrived(f, e);
    return true;
}

static const float rows[6] = {0, 1, 2, 3, 4, 5};

/* "x", two rows of float32x3. */
static void publish(struct scene *s)
{
    fake_publish(s->f, fake_column(s->f, "x", CBD_DTYPE_FLOAT, 32, 3, 0, NULL), 0, fake_layout(s->f, ab, 2, 1), 2, rows, sizeof rows, 1);
}

static const cbd_read_group *read_group(struct scene *s, const char *const *of)
{
    cbd_read *read;
    const cbd_read_group *group;
    CHECK_STATUS(cbd_read_attributes(s->stage, s->query, of, 1, &read, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_read_next(read, &group, &error), CBD_STATUS_OK);
    cbd_read_release(read);
    return group;
}

static cbd_group *map_group(struct scene *s, const cbd_map_options *options, cbd_session **session)
{
    cbd_group *group;
    CHECK_STATUS(cbd_map_attribute(s->stage, s->query, "y", options, session, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_fetch_map_next(*session, &group, &error), CBD_STATUS_OK);
    return group;
}

static const cbd_map_options points = {.ordinal = 3, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 3, .init = CBD_INIT_ZERO};

static void an_export_of_a_read_owns_a_pin(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    publish(&s);
    const cbd_read_group *group = read_group(&s, names);
    DLManagedTensorVersioned *v, *second;
    DLManagedTensor *m;
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &second, &error), CBD_STATUS_OK);
    CHECK(v->dl_tensor.data == group->data && v->flags == DLPACK_FLAG_BITMASK_READ_ONLY); /* behaviour 277, 278 */
    CHECK(v->dl_tensor.ndim == 2 && v->dl_tensor.shape[0] == 2 && v->dl_tensor.shape[1] == 3 && v->dl_tensor.dtype.lanes == 1);
    CHECK_STATUS(cbd_dlpack_export_read(group, 0, 0, &m, &error), CBD_STATUS_NOT_SUPPORTED); /* behaviour 282 */
    CHECK(m == NULL);
    CHECK_STATUS(cbd_dlpack_export_read(group, 0, CBD_DLPACK_COPY, &m, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 1, 0, &(DLManagedTensorVersioned *){NULL}, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("tensor 1 of the group of \"x\": it has 1");
    CHECK_STATUS(cbd_dlpack_export_read_versioned(NULL, 0, 0, &(DLManagedTensorVersioned *){NULL}, &error), CBD_STATUS_INVALID_ARGUMENT);
    cbd_release_group(group);
    cbd_stage_close(s.stage);
    CHECK(fake_pins_held(s.f) == 1 && fake_channel_locked(s.f)); /* behaviour 290, field reports E2, E4: the exports keep it */
    CHECK(memcmp(v->dl_tensor.data, rows, sizeof rows) == 0);
    second->deleter(second);
    CHECK(fake_pins_held(s.f) == 1 && memcmp(v->dl_tensor.data, rows, sizeof rows) == 0);
    v->deleter(v);
    CHECK(fake_pins_held(s.f) == 0 && memcmp(m->dl_tensor.data, rows, sizeof rows) == 0);
    m->deleter(m);
    scene_end(&s);
}

static void what_a_group_has_not_is_refused(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    publish(&s);
    static const char *const path[] = {CBD_PATH_NAME};
    const cbd_read_group *group = read_group(&s, path);
    DLManagedTensorVersioned *v;
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error), CBD_STATUS_NOT_SUPPORTED);
    SAYS("CBD_DLPACK_COPY");
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, CBD_DLPACK_COPY, &v, &error), CBD_STATUS_OK);
    cbd_release_group(group);
    CHECK(((uint64_t *)v->dl_tensor.data)[1] == cbd_query_ids(s.query)[1] && v->flags == DLPACK_FLAG_BITMASK_IS_COPIED);
    v->deleter(v);
    cbd_read_group deletes = {.name = "x", .is_delete = 1, .prim_count = 2};
    CHECK_STATUS(cbd_dlpack_export_read_versioned(&deletes, 0, 0, &v, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("2 prims that were deleted");
    scene_end(&s);
}

/* Behaviour 300. */
static void rows_of_array_kind_are_exported_one_by_one(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    float *data;
    cbd_abi_ref at = fake_alloc(s.f, 3, 64, (void **)&data);
    for (int i = 0; i < 16; i++)
        data[i] = (float)i;
    const cbd_abi_row_ref table[2] = {{3, at.offset_bytes + 8, 16}, {0, 0, 0}};
    uint32_t x = fake_column(s.f, "x", CBD_DTYPE_FLOAT, 32, 2, 0, NULL);
    fake_attribute(s.f, x)->schema.kind = CBD_KIND_ARRAY;
    fake_attribute(s.f, x)->row_bytes = sizeof *table;
    fake_publish(s.f, x, 0, fake_layout(s.f, ab, 2, 1), 2, table, sizeof table, 1);
    const cbd_read_group *group = read_group(&s, names);
    DLManagedTensorVersioned *full, *empty, *none;
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, 0, &full, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 1, 0, &empty, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 2, 0, &none, &error), CBD_STATUS_INVALID_ARGUMENT);
    SAYS("tensor 2 of the group of \"x\": it has 2");
    cbd_release_group(group);
    CHECK(full->dl_tensor.ndim == 2 && full->dl_tensor.shape[0] == 2 && full->dl_tensor.shape[1] == 2);
    CHECK(((float *)full->dl_tensor.data)[3] == 5 && empty->dl_tensor.shape[0] == 0 && empty->dl_tensor.shape[1] == 2);
    full->deleter(full);
    CHECK(fake_pins_held(s.f) == 1);
    empty->deleter(empty);

    const uint64_t sizes[2] = {0, 3};
    cbd_map_options o = points;
    o.is_array = 1, o.init = CBD_INIT_NONE, o.element_sizes = sizes, o.element_size_count = 2;
    cbd_session *session;
    cbd_group *staged = map_group(&s, &o, &session);
    DLManagedTensor *m;
    CHECK_STATUS(cbd_dlpack_export_map(staged, 1, 0, &m, &error), CBD_STATUS_OK);
    CHECK(m->dl_tensor.data == staged->arrays[1].data && m->dl_tensor.shape[0] == 3 && m->dl_tensor.shape[1] == 3);
    CHECK_STATUS(cbd_dlpack_export_map(staged, 2, 0, &(DLManagedTensor *){NULL}, &error), CBD_STATUS_INVALID_ARGUMENT);
    cbd_session_release(session);
    memset(m->dl_tensor.data, 1, 36); /* pointless, and harmless */
    m->deleter(m);
    o.lanes = 1; /* no axis of its own */
    staged = map_group(&s, &o, &session);
    CHECK_STATUS(cbd_dlpack_export_map(staged, 1, 0, &m, &error), CBD_STATUS_OK);
    CHECK(m->dl_tensor.ndim == 1 && m->dl_tensor.shape[0] == 3);
    m->deleter(m);
    cbd_session_release(session);
    scene_end(&s);
}

static void a_consumer_fills_a_map_group(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    cbd_session *session;
    cbd_group *group = map_group(&s, &points, &session);
    DLManagedTensor *m;
    DLManagedTensorVersioned *v;
    CHECK_STATUS(cbd_dlpack_export_map_versioned(group, 0, 0, &v, &error), CBD_STATUS_OK);
    CHECK(v->dl_tensor.data == group->data && v->flags == 0);
    v->deleter(v);
    CHECK_STATUS(cbd_dlpack_export_map(group, 0, 0, &m, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_map_versioned(group, 0, CBD_DLPACK_READ_ONLY, &v, &error), CBD_STATUS_OK); /* behaviour 196, 280 */
    CHECK(m->dl_tensor.data == group->data && m->dl_tensor.shape[0] == 2 && m->dl_tensor.shape[1] == 3 && v->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
    ((float *)m->dl_tensor.data)[5] = 7;
    CHECK(((float *)group->data)[5] == 7);
    m->deleter(m);
    v->deleter(v);
    CHECK_STATUS(cbd_unmap_group(group, 0, NULL, &error), CBD_STATUS_OK);
    CHECK_STATUS(cbd_dlpack_export_map(group, 0, 0, &m, &error), CBD_STATUS_INVALID_HANDLE);
    CHECK(m == NULL);
    SAYS("group 0 of \"y\" was handed back already");
    cbd_session_release(session);

    for (int whole = 0; whole < 2; whole++) /* M1: what is lent is not adopted; what was lent may be */
        for (int lent = 0; lent < 2; lent++) {
            cbd_op *op;
            group = map_group(&s, &points, &session);
            CHECK_STATUS(cbd_dlpack_export_map(group, 0, 0, &m, &error), CBD_STATUS_OK);
            if (!lent)
                m->deleter(m);
            if (whole)
                CHECK_STATUS(cbd_unmap_attribute(session, CBD_FLAG_SEAL, &op, &error), CBD_STATUS_OK);
            else
                CHECK_STATUS(cbd_unmap_group(group, 0, &op, &error), CBD_STATUS_OK);
            CHECK_STATUS(cbd_op_wait(op, UINT64_MAX, NULL, &error), CBD_STATUS_OK);
            cbd_op_release(op);
            CHECK(sent.entry.flags == ((whole ? CBD_FLAG_SEAL : 0u) | (lent ? CBD_FLAG_COPY : 0u)));
            cbd_session_release(session);
            if (lent)
                m->deleter(m);
        }

    group = map_group(&s, &points, &session); /* the memory stays after everything else is gone */
    CHECK_STATUS(cbd_dlpack_export_map(group, 0, 0, &m, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    cbd_stage_close(s.stage);
    CHECK(fake_channel_locked(s.f));
    ((float *)m->dl_tensor.data)[0] = 1;
    m->deleter(m);
    scene_end(&s);
}

/* ---- deleters on other threads ---------------------------------------------------------------- */

enum { SLOTS = 64 };

/* What consumers have, one slot each; NULL: nothing. */
struct bin {
    _Atomic(DLManagedTensorVersioned *) slots[SLOTS];
    _Atomic int stop;
};

static void *drop(void *context)
{
    struct bin *bin = context;
    bool last = false;
    while (!last) {
        last = atomic_load(&bin->stop) != 0; /* then once more */
        for (int i = 0; i < SLOTS; i++) {
            DLManagedTensorVersioned *v = atomic_exchange(&bin->slots[i], NULL);
            if (v == NULL)
                continue;
            CHECK(((float *)v->dl_tensor.data)[1] == 1);
            v->deleter(v);
        }
    }
    return NULL;
}

static void give(struct bin *bin, int round, DLManagedTensorVersioned *v)
{
    v = atomic_exchange(&bin->slots[round % SLOTS], v);
    if (v != NULL)
        v->deleter(v);
}

/* 10 000 rounds of export, use and drop, on threads that know nothing of Callboard, also after the close (field report G15). */
static void deleters_run_on_any_thread(void)
{
    struct scene s = scene_begin(keep, CBD_FEATURE_ARRAY);
    publish(&s);
    struct bin bin = {0};
    pthread_t threads[2];
    const int64_t six = 6;
    _Atomic int released = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, drop, &bin);
    const cbd_read_group *group = read_group(&s, names);
    for (int round = 0; round < ROUNDS; round++) {
        DLManagedTensorVersioned *v;
        if (round % 16 == 0) { /* pins come and go */
            cbd_release_group(group);
            group = read_group(&s, names);
        }
        CHECK_STATUS(cbd_dlpack_export_read_versioned(group, 0, round % 8 == 3 ? CBD_DLPACK_COPY : 0, &v, &error), CBD_STATUS_OK);
        give(&bin, round, v);
        cbd_tensor t = floats(rows, 1, &six, NULL);
        CHECK_STATUS(cbd_dlpack_export_versioned(&t, CBD_DLPACK_READ_ONLY, count_release, &released, &v, &error), CBD_STATUS_OK);
        give(&bin, round + 1, v);
        if (round % 20 == 0) { /* a session: its release, the unmap and the deleter race */
            cbd_session *session;
            cbd_group *staged = map_group(&s, &points, &session);
            ((float *)staged->data)[1] = 1;
            CHECK_STATUS(cbd_dlpack_export_map_versioned(staged, 0, 0, &v, &error), CBD_STATUS_OK);
            give(&bin, round + 2, v);
            if (round % 40 == 0)
                CHECK_STATUS(cbd_unmap_attribute(session, 0, NULL, &error), CBD_STATUS_OK);
            cbd_session_release(session);
        }
    }
    cbd_release_group(group);
    cbd_stage_close(s.stage); /* deleters go on */
    cbd_query_release(s.query);
    cbd_stage_release(s.stage);
    atomic_store(&bin.stop, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK(released == ROUNDS);
    CHECK(fake_pins_held(s.f) == 0 && !fake_channel_locked(s.f));
    fake_stop(s.f);
}

/* Nobody consumes: the deleter alone, and what came in and was not used. */
static void rounds_of_import_leave_nothing(void)
{
    int64_t shape[2] = {2, 3}, turned[2] = {-3, 1};
    for (int round = 0; round < ROUNDS; round++) {
        DLManagedTensorVersioned v = produced(rows + 3, 2, shape, turned);
        cbd_tensor *t, borrowed;
        CHECK_STATUS(cbd_dlpack_import_versioned(&v, &borrowed, &error), CBD_STATUS_NOT_SUPPORTED);
        CHECK_STATUS(cbd_dlpack_import_copy_versioned(&v, &t, &error), CBD_STATUS_OK);
        DLManagedTensor *m;
        CHECK_STATUS(cbd_dlpack_export(t, 0, free_tensor, t, &m, &error), CBD_STATUS_OK);
        CHECK(((float *)m->dl_tensor.data)[0] == 3);
        m->deleter(m);
    }
}

int main(void)
{
    RUN(a_tensor_is_lent_as_it_is);
    RUN(a_copy_is_private_and_flagged);
    RUN(what_cannot_be_exported_is_refused_and_releases_nothing);
    RUN(a_tensor_comes_in_without_a_copy);
    RUN(an_empty_tensor_comes_in_whatever_its_other_extents);
    RUN(a_copy_gathers_any_strides);
    RUN(what_cannot_come_in_is_refused_by_its_numbers);
    RUN(a_buffer_is_told_in_bytes);
    RUN(an_export_of_a_read_owns_a_pin);
    RUN(what_a_group_has_not_is_refused);
    RUN(rows_of_array_kind_are_exported_one_by_one);
    RUN(a_consumer_fills_a_map_group);
    RUN(deleters_run_on_any_thread);
    RUN(rounds_of_import_leave_nothing);
    return 0;
}
