/* Array kind: rows of lengths of their own.
 *
 * A version of it is a table of cbd_abi_row_ref, one a row, that say where the elements
 * lie; segments, and blocks in them, are shared by versions. What is written is one
 * tensor a source row, or one packed tensor that is cut into rows of equal length; either
 * way it travels as rows, one after the other, with their sizes. Nothing folds (behaviour
 * 24): a row has as many elements as its tensor, whatever its shape.
 */
#include "write.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------- */

cbd_status cbdi_array_rows(cbd_stage *stage, struct column *column, const struct version *version, const uint8_t *table,
                           const struct row_map *map, cbd_pin *pin, cbd_array **out, cbd_error *error)
{
    uint64_t element = (uint64_t)column->schema.bits / 8 * column->schema.lanes, bytes = 0;
    uint64_t align = column->schema.bits / 8 < 8 ? column->schema.bits / 8 : 8; /* a power of two */
    struct segment *segment = NULL;
    cbd_status status = CBD_STATUS_OK;
    cbd_array *arrays = calloc(map->count, sizeof *arrays);
    if (arrays == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for %llu arrays", (unsigned long long)map->count);
    for (uint64_t i = 0; i < map->count && status == CBD_STATUS_OK; i++) {
        uint64_t row = map->index ? map->index[i] : map->first_row + i;
        cbd_abi_row_ref ref; /* copied, checked, and used as it was then */
        memcpy(&ref, table + row * sizeof ref, sizeof ref);
        if (ref.length_bytes == 0)
            continue;
        if (segment == NULL || segment->id != ref.segment) {
            status = cbdi_segment(stage, ref.segment, &segment, error);
            if (status == CBD_STATUS_OK)
                status = cbdi_pin_use(pin, column, version, segment, error);
            if (status != CBD_STATUS_OK)
                break;
        }
        uint64_t elements = ref.length_bytes / element;
        if (ref.offset_bytes > segment->size_bytes || ref.length_bytes > segment->size_bytes - ref.offset_bytes ||
            elements * element != ref.length_bytes || (ref.offset_bytes & (align - 1)) != 0) {
            status = cbdi_fail(error, CBD_STATUS_INTERNAL,
                               "\"%.*s\": row %llu has %llu bytes at offset %llu of segment %llu, which has %llu; an element has %llu",
                               (int)column->name_bytes, column->name, (unsigned long long)row,
                               (unsigned long long)ref.length_bytes, (unsigned long long)ref.offset_bytes,
                               (unsigned long long)ref.segment, (unsigned long long)segment->size_bytes,
                               (unsigned long long)element);
            break;
        }
        arrays[i] = (cbd_array){segment->base + ref.offset_bytes, elements};
        bytes += ref.length_bytes;
    }
    if (status == CBD_STATUS_OK)
        status = cbdi_pin_elements(pin, column, version, bytes, error);
    if (status != CBD_STATUS_OK) {
        free(arrays);
        return status;
    }
    *out = arrays;
    return CBD_STATUS_OK;
}

/* ---- writing ------------------------------------------------------------------------- */

static uint64_t elements_of(const cbd_tensor *t)
{
    uint64_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        n *= (uint64_t)t->shape[i]; /* cbdi_tensor_check has looked: it does not overflow, or one is 0 */
    return n;
}

cbd_status cbdi_tensors_check(struct write *w, cbd_error *error)
{
    char first[32], other[32];
    uint64_t n = w->options.tensor_count, bytes;
    if (n <= 1 || w->tensor == NULL) {
        cbd_status status = cbdi_tensor_check(w->tensor, &bytes, error);
        return status == CBD_STATUS_OK ? cbdi_bools_check(w->tensor, bytes, error) : status;
    }
    for (uint64_t i = 0; i < n; i++) {
        const cbd_tensor *t = &w->tensor[i];
        cbd_error why = {CBD_STATUS_OK, ""};
        cbd_status status = cbdi_tensor_check(t, &bytes, &why);
        if (status == CBD_STATUS_OK)
            status = cbdi_bools_check(t, bytes, &why);
        if (status != CBD_STATUS_OK)
            return cbdi_fail(error, status, "tensor %llu: %.400s", (unsigned long long)i, why.text);
        if (cbdi_on_device(t))
            return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "tensor %llu lies on GPU %u: rows of array kind lie on the host, copy it there first",
                             (unsigned long long)i, t->device_id);
        if (t->code != w->tensor->code || t->bits != w->tensor->bits || t->lanes != w->tensor->lanes)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                             "tensor %llu has elements of %s: those before it have %s, and a write has one element type",
                             (unsigned long long)i, cbdi_dtype_text(t->code, t->bits, t->lanes, other),
                             cbdi_dtype_text(w->tensor->code, w->tensor->bits, w->tensor->lanes, first));
    }
    return CBD_STATUS_OK;
}

cbd_status cbdi_array_schema(struct write *w, const cbd_schema *existing, cbd_error *error)
{
    w->schema.kind = CBD_KIND_ARRAY;
    w->schema.code = w->tensor->code;
    w->schema.bits = w->tensor->bits;
    w->schema.lanes = w->tensor->lanes;
    w->schema.row_ndim = w->options.row_ndim; /* which an array has not: refused with the rest */
    cbd_status status = cbd_schema_row_bytes(&w->schema, &w->row_bytes, error);
    return status == CBD_STATUS_OK && existing != NULL ? cbdi_schema_accept(w->name, existing, &w->schema, error) : status;
}

/* How many source rows there are. */
static cbd_status count_source_rows(const struct write *w, uint64_t *rows, cbd_error *error)
{
    const cbd_write_options *o = &w->options;
    uint64_t elements = elements_of(w->tensor), have = o->tensor_count;
    if (have == 0) { /* packed (behaviour 77, 80) */
        *rows = o->index_map != NULL ? 0 : w->count;
        for (uint64_t i = 0; o->index_map != NULL && i < w->count; i++)
            *rows = (uint64_t)o->index_map[i] + 1 > *rows ? (uint64_t)o->index_map[i] + 1 : *rows;
        if (*rows == 0 ? elements != 0 : elements % *rows != 0)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                             "packed tensor has %llu elements: they do not divide into %llu rows, a number that comes from the %s",
                             (unsigned long long)elements, (unsigned long long)*rows,
                             o->index_map != NULL ? "highest index map entry" : "number of addressed prims");
        return CBD_STATUS_OK;
    }
    *rows = have;
    if (o->index_map == NULL && have != w->count)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%llu tensors are given for %llu addressed prims: there is %s %llu%s",
                         (unsigned long long)have, (unsigned long long)w->count,
                         have > w->count ? "no prim for tensor" : "none for prim",
                         (unsigned long long)(have > w->count ? w->count : have),
                         o->mask ? "; a mask leaves out targets, not rows of the payload" : "");
    for (uint64_t i = 0; o->index_map != NULL && i < w->count; i++)
        if (o->index_map[i] >= have)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "index_map[%llu] is %u: %llu tensors are given",
                             (unsigned long long)i, o->index_map[i], (unsigned long long)have);
    return CBD_STATUS_OK;
}

cbd_status cbdi_array_layout(struct write *w, cbd_error *error)
{
    const cbd_write_options *o = &w->options;
    uint64_t rows = 0, total = 0;
    cbd_status status = count_source_rows(w, &rows, error);
    if (status != CBD_STATUS_OK)
        return status;
    uint64_t each = o->tensor_count == 0 && rows != 0 ? elements_of(w->tensor) / rows : 0;
    w->sizes = malloc((w->count + 1) * sizeof *w->sizes);
    if (w->sizes == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the sizes of %llu rows", (unsigned long long)w->count);
    for (uint64_t i = 0; i < w->count; i++) {
        uint64_t source = o->index_map != NULL ? o->index_map[i] : i, bytes;
        w->sizes[i] = o->tensor_count == 0 ? each : elements_of(&w->tensor[source]);
        if (__builtin_mul_overflow(w->sizes[i], w->row_bytes, &bytes) || __builtin_add_overflow(total, bytes, &total) ||
            total > (uint64_t)INT64_MAX)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%llu rows are more than %lld bytes together",
                             (unsigned long long)w->count, (long long)INT64_MAX);
    }
    w->bytes = total;
    if (o->tensor_count != 0 || o->index_map == NULL || total == 0)
        return CBD_STATUS_OK;
    /* Rows are picked from the tensor as it lies in row-major order. */
    w->packed = malloc(elements_of(w->tensor) * w->row_bytes);
    if (w->packed == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to pick rows from %llu elements",
                         (unsigned long long)elements_of(w->tensor));
    cbdi_gather(w->packed, w->tensor, (uint64_t)w->tensor->shape[0], NULL);
    return CBD_STATUS_OK;
}

void cbdi_array_copy(const struct write *w, uint8_t *to)
{
    const cbd_write_options *o = &w->options;
    if (o->tensor_count == 0 && w->packed == NULL) {
        if (w->bytes != 0)
            cbdi_gather(to, w->tensor, (uint64_t)w->tensor->shape[0], NULL);
        return;
    }
    for (uint64_t i = 0; i < w->count; i++) {
        uint64_t source = o->index_map != NULL ? o->index_map[i] : i, bytes = w->sizes[i] * w->row_bytes;
        if (w->packed != NULL)
            memcpy(to, w->packed + source * bytes, bytes); /* all are of one size */
        else
            cbdi_gather(to, &w->tensor[source], (uint64_t)w->tensor[source].shape[0], NULL);
        to += bytes;
    }
}
