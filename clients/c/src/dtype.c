/* Element types, schemas, and how a tensor's shape is read as rows. The same rules
 * as package tensor has for the broker, so that both refuse the same inputs (R6).
 */
#include "client.h"

#include <stdio.h>
#include <string.h>

#define LANES_MAX 255

/* Every accepted lane type; all other pairs of code and bits are refused. */
static const struct {
    uint8_t code, bits;
    const char *name;
} scalars[] = {
    {6, 8, "bool"},        {0, 8, "int8"},     {0, 16, "int16"},     {0, 32, "int32"},      {0, 64, "int64"},
    {1, 8, "uint8"},       {1, 16, "uint16"},  {1, 32, "uint32"},    {1, 64, "uint64"},     {2, 16, "float16"},
    {2, 32, "float32"},    {2, 64, "float64"}, {4, 16, "bfloat16"},  {5, 64, "complex64"},  {5, 128, "complex128"},
    {7, 8, "float8_e3m4"}, {8, 8, "float8_e4m3"}, {9, 8, "float8_e4m3b11fnuz"}, {10, 8, "float8_e4m3fn"},
    {11, 8, "float8_e4m3fnuz"}, {12, 8, "float8_e5m2"}, {13, 8, "float8_e5m2fnuz"}, {14, 8, "float8_e8m0fnu"},
};

/* What a semantic needs; bits 0: any numeric type. */
static const struct {
    const char *name;
    uint8_t bits, lanes; /* of uint */
    bool array;          /* array kind only */
} semantics[] = {
    {"none", 0, 0, false},          {"point", 0, 0, false},       {"vector", 0, 0, false},
    {"normal", 0, 0, false},        {"color", 0, 0, false},       {"quaternion", 0, 0, false},
    {"matrix", 0, 0, false},        {"frame", 0, 0, false},       {"texture_coordinate", 0, 0, false},
    {"time_code", 0, 0, false},     {"token_id", 64, 1, false},   {"relationship_path_id", 64, 1, true},
    {"connection_path_id", 64, 2, true}, {"asset_path_id", 64, 2, false}, {"path_expression", 64, 1, false},
    {"string", 8, 1, true},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *scalar_name(uint8_t code, uint8_t bits)
{
    for (size_t i = 0; i < COUNT(scalars); i++)
        if (scalars[i].code == code && scalars[i].bits == bits)
            return scalars[i].name;
    return NULL;
}

const char *cbdi_dtype_text(uint8_t code, uint8_t bits, uint16_t lanes, char text[32])
{
    const char *name = scalar_name(code, bits);
    if (name == NULL)
        snprintf(text, 32, "code%u/%ux%u", code, bits, lanes);
    else if (lanes == 1)
        snprintf(text, 32, "%s", name);
    else
        snprintf(text, 32, "%sx%u", name, lanes);
    return text;
}

cbd_status cbdi_dtype_check(uint8_t code, uint8_t bits, uint16_t lanes, cbd_error *error)
{
    if (lanes == 0 || lanes > LANES_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "lanes is %u: expected 1 to %u", lanes, LANES_MAX);
    if (scalar_name(code, bits) != NULL)
        return CBD_STATUS_OK;
    if (code >= 15 && code <= 17)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "element type with DLPack code %u has %u bits: elements below 8 bits are not supported; pack them as uint8",
                         code, bits);
    return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "element type with DLPack code %u and %u bits is not known", code, bits);
}

static cbd_status semantic_check(const cbd_schema *s, cbd_error *error)
{
    char text[32];
    if (s->semantic == CBD_SEMANTIC_NONE || s->semantic >= COUNT(semantics))
        return CBD_STATUS_OK; /* one that is newer than this client is the broker's to judge (behaviour 313) */
    const char *name = semantics[s->semantic].name;
    uint8_t bits = semantics[s->semantic].bits, lanes = semantics[s->semantic].lanes;
    if (bits == 0 && s->code == CBD_DTYPE_BOOL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "semantic %s with element type bool: expected a numeric type", name);
    if (bits != 0 && (s->code != CBD_DTYPE_UINT || s->bits != bits || s->lanes != lanes))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "semantic %s with element type %s: expected uint%ux%u", name,
                         cbdi_dtype_text(s->code, s->bits, s->lanes, text), bits, lanes);
    if (semantics[s->semantic].array && s->kind != CBD_KIND_ARRAY)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "semantic %s with kind fixed: expected kind array", name);
    return CBD_STATUS_OK;
}

cbd_status cbd_schema_row_bytes(const cbd_schema *s, uint64_t *row_bytes, cbd_error *error)
{
    uint64_t bytes;
    char shape[160], type[32];
    if (s == NULL || row_bytes == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "schema or row_bytes is NULL");
    *row_bytes = 0;
    cbd_status status = cbdi_dtype_check(s->code, s->bits, s->lanes, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (s->kind != CBD_KIND_FIXED && s->kind != CBD_KIND_ARRAY)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "kind is %u: expected 1 (fixed) or 2 (array)", s->kind);
    if (s->row_ndim > CBD_ROW_NDIM_MAX || (s->kind == CBD_KIND_ARRAY && s->row_ndim != 0))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "row_shape has %u dimensions: expected at most %u", s->row_ndim,
                         s->kind == CBD_KIND_ARRAY ? 0 : CBD_ROW_NDIM_MAX);
    bytes = (uint64_t)s->bits / 8 * s->lanes;
    for (uint32_t i = 0; i < s->row_ndim; i++) {
        if (s->row_shape[i] == 0)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                             "row_shape has 0 in dimension %u: a fixed row has at least one element", i);
        if (__builtin_mul_overflow(bytes, s->row_shape[i], &bytes) || bytes > (uint64_t)INT64_MAX)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "a row of row_shape %s and element type %s has more than %lld bytes",
                             cbdi_row_shape_text(s->row_shape, s->row_ndim, shape),
                             cbdi_dtype_text(s->code, s->bits, s->lanes, type), (long long)INT64_MAX);
    }
    status = semantic_check(s, error);
    if (status == CBD_STATUS_OK)
        *row_bytes = bytes;
    return status;
}

void cbdi_schema_to_abi(const cbd_schema *s, cbd_abi_schema *abi)
{
    memset(abi, 0, sizeof *abi);
    abi->kind = s->kind;
    abi->semantic = s->semantic;
    abi->dtype_code = s->code;
    abi->dtype_bits = s->bits;
    abi->dtype_lanes = s->lanes;
    abi->device_type = s->device_type;
    abi->device_id = s->device_id;
    abi->row_dimensions = s->row_ndim;
    for (uint32_t i = 0; i < s->row_ndim && i < CBD_ROW_NDIM_MAX; i++)
        abi->row_shape[i] = s->row_shape[i];
}

void cbdi_schema_from_abi(const cbd_abi_schema *abi, cbd_schema *s)
{
    memset(s, 0, sizeof *s);
    s->kind = abi->kind;
    s->semantic = abi->semantic;
    s->code = abi->dtype_code;
    s->bits = abi->dtype_bits;
    s->lanes = abi->dtype_lanes;
    s->device_type = abi->device_type;
    s->device_id = abi->device_id;
    s->row_ndim = abi->row_dimensions;
    for (uint32_t i = 0; i < abi->row_dimensions && i < CBD_ROW_NDIM_MAX; i++)
        s->row_shape[i] = abi->row_shape[i];
}

int32_t cbdi_view_shape(const cbd_schema *s, uint64_t rows, int64_t shape[CBD_NDIM_MAX])
{
    int32_t ndim = 0;
    shape[ndim++] = (int64_t)rows;
    for (uint32_t i = 0; i < s->row_ndim; i++)
        shape[ndim++] = (int64_t)s->row_shape[i];
    if (s->lanes > 1)
        shape[ndim++] = s->lanes;
    return ndim;
}

/* Whether every element of a tensor that is not empty has an address, and a distance from
 * the first one in bytes. After this nothing that cbdi_gather computes can overflow: each of its
 * sums lies between the lowest and the highest of them. *first and *bytes are what they span. */
static bool reach_fits(const cbd_tensor *t, uintptr_t *first, uint64_t *bytes)
{
    int64_t size = t->bits / 8 * (int64_t)t->lanes, low = 0, high = t->strides == NULL ? (int64_t)*bytes : size;
    uintptr_t end;
    for (int32_t i = 0; i < t->ndim && t->strides != NULL; i++) {
        int64_t step;
        if (t->shape[i] == 1)
            continue; /* its stride is never used */
        if (__builtin_mul_overflow(t->strides[i], size, &step) || __builtin_mul_overflow(step, t->shape[i] - 1, &step) ||
            __builtin_add_overflow(step < 0 ? low : high, step, step < 0 ? &low : &high))
            return false;
    }
    *bytes = (uint64_t)high - (uint64_t)low;
    return !__builtin_add_overflow((uintptr_t)t->data, low, first) && !__builtin_add_overflow((uintptr_t)t->data, high, &end);
}

bool cbdi_on_device(const cbd_tensor *t)
{
    return t->device_type == CBD_DEVICE_CUDA || t->device_type == CBD_DEVICE_CUDA_MANAGED;
}

cbd_status cbdi_tensor_check(const cbd_tensor *t, uint64_t *bytes, cbd_error *error)
{
    char text[160], strides[160];
    if (t == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor is NULL");
    cbd_status status = cbdi_dtype_check(t->code, t->bits, t->lanes, error);
    if (status != CBD_STATUS_OK)
        return status;
    bool on_device = cbdi_on_device(t);
    if (on_device && cbdi_cuda() == NULL)
        return cbdi_cuda_needed("the tensor", error);
    if (!on_device && t->device_type != 0 && t->device_type != CBD_DEVICE_CPU && t->device_type != CBD_DEVICE_CUDA_HOST)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "the tensor lies on device type %u: expected the host (%u), or CUDA (%u)",
                         t->device_type, CBD_DEVICE_CPU, CBD_DEVICE_CUDA);
    if (!on_device && t->device_type != CBD_DEVICE_CUDA_HOST && t->device_id != 0) /* behaviour 230; pinned memory may name its GPU */
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the tensor lies on CPU device %u: expected 0, there is no other", t->device_id);
    if (t->ndim == 0)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "tensor has rank 0: expected at least 1 dimension, counting rows; give a single value the shape (1,)");
    if (t->ndim < 0 || t->ndim > 64 || t->shape == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor has ndim %d%s: expected 1 to 64 and a shape", t->ndim,
                         t->shape == NULL ? " and no shape" : "");
    uint64_t total = (uint64_t)t->bits / 8 * t->lanes;
    bool empty = false;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor has shape %s: dimension %d is negative",
                             cbdi_shape_text(t->shape, t->ndim, text), i);
        empty = empty || t->shape[i] == 0;
    }
    for (int32_t i = 0; i < t->ndim && !empty; i++)
        if (__builtin_mul_overflow(total, (uint64_t)t->shape[i], &total) || total > (uint64_t)INT64_MAX)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor has shape %s: more than %lld bytes",
                             cbdi_shape_text(t->shape, t->ndim, text), (long long)INT64_MAX);
    if (t->data == NULL && !empty)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor of shape %s has no data",
                         cbdi_shape_text(t->shape, t->ndim, text));
    uintptr_t first = 0;
    uint64_t span = total;
    if (!empty && !reach_fits(t, &first, &span))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "tensor has shape %s and strides %s: it reaches beyond the address space",
                         cbdi_shape_text(t->shape, t->ndim, text), t->strides == NULL ? "none" : cbdi_shape_text(t->strides, t->ndim, strides));
    *bytes = empty ? 0 : total;
    return on_device ? cbdi_cuda()->check((const void *)first, empty ? 0 : span, t->device_type, t->device_id, error) : CBD_STATUS_OK;
}

/* The OR of all bytes of a strided tensor of bools, dimensions `at` on. */
static uint8_t or_bytes(const uint8_t *from, const cbd_tensor *t, int32_t at)
{
    uint8_t all = 0;
    if (at == t->ndim)
        for (uint16_t lane = 0; lane < t->lanes; lane++)
            all |= from[lane];
    else
        for (int64_t i = 0; i < t->shape[at]; i++)
            all |= or_bytes(from + i * t->strides[at] * t->lanes, t, at + 1);
    return all;
}

cbd_status cbdi_bools_check(const cbd_tensor *t, uint64_t bytes, cbd_error *error)
{
    const uint8_t *from = t->data;
    uint8_t all = 0;
    if (t->code != CBD_DTYPE_BOOL || bytes == 0 || cbdi_on_device(t))
        return CBD_STATUS_OK;
    for (uint64_t i = 0; i < bytes && t->strides == NULL; i++)
        all |= from[i];
    if (t->strides != NULL)
        all = or_bytes(from, t, 0);
    if (all <= 1)
        return CBD_STATUS_OK;
    return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                     "tensor of element type bool has a byte that is neither 0 nor 1: write it as uint8 if the bytes carry more");
}

cbd_status cbdi_fold(const char *name, const cbd_tensor *t, bool one_row, cbd_schema *schema, const cbd_schema *existing,
                     cbd_error *error)
{
    char text[160], other[160], have[32], want[32];
    const cbd_schema *cut = existing ? existing : schema;
    const int64_t *given = t->shape + one_row; /* as the caller knows it */
    int32_t given_ndim = t->ndim - one_row;
    int32_t trailing = 1 + (int32_t)cut->row_ndim;
    bool same = t->ndim >= trailing;
    for (uint32_t i = 0; same && i < cut->row_ndim; i++)
        same = (uint64_t)t->shape[1 + i] == cut->row_shape[i];
    if (!same)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute \"%.200s\": tensor has shape %s: %s row_shape is %s", name,
                         cbdi_shape_text(given, given_ndim, text), one_row ? "the attribute's" : "behind the rows, the",
                         cbdi_row_shape_text(cut->row_shape, cut->row_ndim, other));
    uint64_t lanes = t->lanes;
    for (int32_t i = trailing; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                             "attribute \"%.200s\": tensor has shape %s: a fixed row has at least one element; use kind array for rows that may be empty",
                             name, cbdi_shape_text(given, given_ndim, text));
        lanes = lanes > LANES_MAX || t->shape[i] > LANES_MAX ? LANES_MAX + 1 : lanes * (uint64_t)t->shape[i];
    }
    if (lanes > LANES_MAX)
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "attribute \"%.200s\": tensor of shape %s and element type %s folds to more than %u lanes a row; declare row_shape %s",
                         name, cbdi_shape_text(given, given_ndim, text), cbdi_dtype_text(t->code, t->bits, t->lanes, have), LANES_MAX,
                         cbdi_shape_text(t->shape + 1, t->ndim - 1, other));
    schema->code = t->code;
    schema->bits = t->bits;
    schema->lanes = (uint16_t)lanes;
    if (existing == NULL)
        return CBD_STATUS_OK;
    if (existing->code != t->code || existing->bits != t->bits || existing->lanes != lanes)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute \"%.200s\": tensor of shape %s makes %s of %s: the attribute holds %s",
                         name, cbdi_shape_text(given, given_ndim, text), one_row ? "a row" : "rows",
                         cbdi_dtype_text(t->code, t->bits, schema->lanes, have),
                         cbdi_dtype_text(existing->code, existing->bits, existing->lanes, want));
    schema->row_ndim = existing->row_ndim;
    memcpy(schema->row_shape, existing->row_shape, sizeof schema->row_shape);
    return CBD_STATUS_OK;
}

/* One row, dimensions `at` on: the innermost run that lies compact is one memcpy. */
static uint8_t *copy_row(uint8_t *to, const uint8_t *from, const cbd_tensor *t, int32_t at, int32_t compact, size_t size)
{
    if (at >= compact) {
        size_t run = size;
        for (int32_t i = at; i < t->ndim; i++)
            run *= (size_t)t->shape[i];
        memcpy(to, from, run);
        return to + run;
    }
    for (int64_t i = 0; i < t->shape[at]; i++)
        to = copy_row(to, from + i * t->strides[at] * (int64_t)size, t, at + 1, compact, size);
    return to;
}

void cbdi_gather(uint8_t *to, const cbd_tensor *t, uint64_t rows, const uint32_t *index_map)
{
    size_t size = (size_t)t->bits / 8 * t->lanes;
    int64_t run = 1;           /* elements of the compact tail */
    int32_t compact = t->ndim; /* its first dimension */
    if (rows == 0)
        return;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return; /* of an empty tensor nothing was checked but its extents */
    while (compact > 1 && (t->strides == NULL || t->shape[compact - 1] == 1 || t->strides[compact - 1] == run))
        run *= t->shape[--compact];
    int64_t step = t->shape[0] == 1 ? 0 : t->strides != NULL ? t->strides[0] : run; /* of one row: never used */
    if (index_map == NULL && compact == 1 && (step == run || rows == 1)) {
        memcpy(to, t->data, (size_t)rows * (size_t)run * size);
        return;
    }
    for (uint64_t i = 0; i < rows; i++) {
        int64_t row = index_map != NULL ? (int64_t)index_map[i] : (int64_t)i;
        to = copy_row(to, (const uint8_t *)t->data + row * step * (int64_t)size, t, 1, compact, size);
    }
}
