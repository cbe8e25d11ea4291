/* Writing by copy, sealing, declaring. What the arguments and the directory decide
 * is refused here, before anything is sent (R6); the broker decides again.
 *
 * A payload up to CBD_INLINE_BYTES_MAX goes into the op's arguments; a larger one is
 * copied into mapped staging memory, which the broker may adopt.
 */
#include "map.h"
#include "write.h"

#include <stdlib.h>
#include <string.h>

cbd_status cbdi_mode_check(cbd_stage *stage, const char *name, uint32_t prim_mode, cbd_error *error)
{
    if (prim_mode > CBD_MODE_INSERT)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "prim_mode is %u: expected 0 (upsert) or 1 (insert)", prim_mode);
    if (prim_mode == CBD_MODE_INSERT && !(stage->features & CBD_FEATURE_DELETE)) /* a broker that has the one has the other */
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "attribute \"%.200s\": prim_mode 1 (insert) is not part of this broker's version; use 0 (upsert)", name);
    return CBD_STATUS_OK;
}

cbd_status cbdi_array_check(cbd_stage *stage, const char *name, cbd_error *error)
{
    if (stage->features & CBD_FEATURE_ARRAY)
        return CBD_STATUS_OK;
    return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "attribute \"%.200s\": array attributes are not part of this broker's version", name);
}

cbd_status cbdi_schema_of(cbd_stage *stage, const char *name, size_t length, cbd_schema *schema, bool *found,
                          cbd_error *error)
{
    *found = false;
    pthread_mutex_lock(&stage->cache_lock);
    cbd_status status = cbdi_columns_refresh(stage, error);
    const struct column *column = status == CBD_STATUS_OK ? cbdi_column_named(stage, name, length, NULL) : NULL;
    if (column != NULL) {
        *schema = column->schema;
        *found = true;
    }
    pthread_mutex_unlock(&stage->cache_lock);
    return status;
}

cbd_status cbdi_ordinal_check(cbd_stage *stage, const char *name, size_t length, uint64_t ordinal, cbd_error *error)
{
    uint64_t floor = 0;
    (void)length;
    cbd_status status = cbd_write_floor(stage, name, &floor, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (ordinal <= floor)
        return cbdi_fail(error, CBD_STATUS_FLOOR_VIOLATION,
                         "ordinal %llu of \"%.200s\" is sealed already: its write floor is %llu; the lowest that can be written is %llu",
                         (unsigned long long)ordinal, name, (unsigned long long)floor, (unsigned long long)floor + 1);
    return CBD_STATUS_OK;
}

static bool same_row_shape(const cbd_schema *schema, uint32_t ndim, const uint64_t *shape)
{
    return schema->row_ndim == ndim && memcmp(schema->row_shape, shape, ndim * sizeof *shape) == 0;
}

cbd_status cbdi_schema_accept(const char *name, const cbd_schema *existing, const cbd_schema *s, cbd_error *error)
{
    char have[160], want[160];
    if (existing->code != s->code || existing->bits != s->bits || existing->lanes != s->lanes)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "element type is %s but the attribute \"%.200s\" holds %s",
                         cbdi_dtype_text(s->code, s->bits, s->lanes, have), name,
                         cbdi_dtype_text(existing->code, existing->bits, existing->lanes, want));
    if (existing->kind != s->kind)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "kind is %u but the attribute \"%.200s\" is of kind %u", s->kind, name,
                         existing->kind);
    if (!same_row_shape(existing, s->row_ndim, s->row_shape))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "row_shape is %s but that of the attribute \"%.200s\" is %s",
                         cbdi_row_shape_text(s->row_shape, s->row_ndim, have), name,
                         cbdi_row_shape_text(existing->row_shape, existing->row_ndim, want));
    if (s->semantic != CBD_SEMANTIC_NONE && existing->semantic != s->semantic)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "semantic is %u but that of the attribute \"%.200s\" is %u", s->semantic,
                         name, existing->semantic);
    if (existing->device_type != s->device_type || existing->device_id != s->device_id)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "device is (%u, %u) but the attribute \"%.200s\" lies on (%u, %u), as the broker counts GPUs; name none to write where it lies",
                         s->device_type, s->device_id, name, existing->device_type, existing->device_id);
    return CBD_STATUS_OK;
}

static cbd_status check_selection(cbd_stage *stage, struct write *w, cbd_error *error)
{
    const cbd_write_options *o = &w->options;
    uint64_t rows = (uint64_t)w->tensor->shape[0];
    /* Only the broker will know how many prims a query has that is still running. */
    bool running = atomic_load(&w->query->running);
    uint64_t size = !running ? w->query->count : o->count == CBD_ALL ? rows : o->count;
    char text[160];
    if (o->count == 0)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "count is 0: expected 1 to %llu, or CBD_ALL for every prim",
                         (unsigned long long)size);
    if (o->count != CBD_ALL && o->count > size)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "count is %llu: the query has %llu prims",
                         (unsigned long long)o->count, (unsigned long long)size);
    if (o->index_map != NULL && o->mask != NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "index_map and mask are both given: expected one at most");
    if ((o->index_map != NULL || o->mask != NULL) && o->count == CBD_ALL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "count must be given with an index_map or mask: it says how long that is");
    w->count = o->count == CBD_ALL ? size : o->count;
    if (o->index_map != NULL && o->index_map_count < w->count)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "index_map has %llu entries (index_map_count): a count of %llu needs %llu",
                         (unsigned long long)o->index_map_count, (unsigned long long)w->count, (unsigned long long)w->count);
    if (o->mask != NULL && o->mask_words < w->count / 64 + (w->count % 64 != 0))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "mask has %llu words of 64 bits (mask_words): a count of %llu needs %llu",
                         (unsigned long long)o->mask_words, (unsigned long long)w->count,
                         (unsigned long long)(w->count / 64 + (w->count % 64 != 0)));
    w->whole = running ? o->count == CBD_ALL : w->count == size;
    if ((w->count != size || o->mask != NULL) && !(stage->features & CBD_FEATURE_SELECTION))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "count %llu of %llu prims%s: this broker writes whole queries only; make a query of the prims that are meant",
                         (unsigned long long)w->count, (unsigned long long)size, o->mask ? ", with a mask" : "");
    if (o->is_array)
        return cbdi_array_layout(w, error);
    for (uint64_t i = 0; o->index_map != NULL && i < w->count; i++)
        if (o->index_map[i] >= rows)
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "index_map[%llu] is %u: the tensor has %llu rows",
                             (unsigned long long)i, o->index_map[i], (unsigned long long)rows);
    if (o->index_map == NULL && rows != w->count)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                         "attribute \"%.200s\": tensor of shape %s has %llu rows: expected %llu in its leading dimension, one per addressed prim",
                         w->name, cbdi_shape_text(w->tensor->shape, w->tensor->ndim, text), (unsigned long long)rows,
                         (unsigned long long)w->count);
    if (w->count > (uint64_t)INT64_MAX / w->row_bytes)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "%llu rows of %llu bytes are too many",
                         (unsigned long long)w->count, (unsigned long long)w->row_bytes);
    w->bytes = w->count * w->row_bytes;
    return CBD_STATUS_OK;
}

/* Folds the tensor to rows of a column, or of a new one. */
static cbd_status try_write(void *context, const cbd_schema *existing, cbd_error *error)
{
    struct write *w = context;
    const cbd_write_options *o = &w->options;
    char have[160], want[160];
    bool open = existing == NULL && o->row_ndim == 0;
    uint32_t ndim = open ? w->new_ndim : o->row_ndim;
    if (ndim > CBD_ROW_NDIM_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the tensor has %u dimensions: a row has at most %u", ndim, CBD_ROW_NDIM_MAX);
    w->is_new = existing == NULL;
    memset(&w->schema, 0, sizeof w->schema);
    w->schema.kind = CBD_KIND_FIXED;
    w->schema.semantic = o->semantic;
    w->schema.device_type = w->device_type ? w->device_type : existing != NULL ? existing->device_type : w->number ? CBD_DEVICE_CUDA : CBD_DEVICE_CPU;
    w->schema.device_id = w->device_type ? w->device_id : existing != NULL ? existing->device_id : w->number ? w->number - 1 : 0;
    if (o->is_array)
        return cbdi_array_schema(w, existing, error);
    w->schema.row_ndim = ndim;
    if (ndim != 0)
        memcpy(w->schema.row_shape, open ? w->new_shape : o->row_shape, ndim * sizeof o->row_shape[0]);
    if (existing != NULL && existing->kind == CBD_KIND_ARRAY)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "attribute \"%.200s\" is of kind array, the write of kind fixed", w->name);
    if (existing != NULL && ndim != 0 && !same_row_shape(existing, ndim, o->row_shape))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "row_shape is %s but that of the attribute \"%.200s\" is %s",
                         cbdi_row_shape_text(o->row_shape, ndim, have), w->name,
                         cbdi_row_shape_text(existing->row_shape, existing->row_ndim, want));
    cbd_status status = cbdi_fold(w->name, w->tensor, w->new_shape != NULL, &w->schema, existing, error);
    if (status == CBD_STATUS_OK)
        status = cbd_schema_row_bytes(&w->schema, &w->row_bytes, error);
    if (status == CBD_STATUS_OK && existing != NULL)
        status = cbdi_schema_accept(w->name, existing, &w->schema, error);
    return status;
}

cbd_status cbdi_check_write(cbd_stage *stage, struct write *w, cbd_error *error)
{
    const cbd_write_options *o = &w->options;
    if (w->tensor != NULL && cbdi_on_device(w->tensor))
        cbdi_device_hold(stage, w->tensor->device_id);
    cbd_status status = cbdi_tensors_check(w, error);
    w->device_type = o->device_type;
    w->device_id = o->device_id;
    if (status == CBD_STATUS_OK)
        status = cbdi_device_named(stage, "device_type and device_id", &w->device_type, &w->device_id, error);
    if (status == CBD_STATUS_OK && cbdi_on_device(w->tensor))
        status = cbdi_device_in(stage, "the tensor", CBD_DEVICE_CUDA, w->tensor->device_id, &w->number, error);
    if (status == CBD_STATUS_OK && w->number != 0)
        status = cbdi_device_not_void(stage, w->tensor->data, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (o->is_array && cbdi_on_device(w->tensor))
        return cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                         "attribute \"%.200s\": rows of array kind lie on the host, and the tensor on GPU %u: copy it to the host first", w->name,
                         w->tensor->device_id);
    if (!o->is_array && o->tensor_count > 1) /* behaviour 9 */
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "got %llu tensors, expected one: a fixed attribute takes exactly one tensor",
                         (unsigned long long)o->tensor_count);
    if (stage->read_only)
        return cbdi_fail(error, CBD_STATUS_ACCESS_DENIED, "this client connected with read_only: it cannot write");
    if (o->is_array && (status = cbdi_array_check(stage, w->name, error)) != CBD_STATUS_OK)
        return status;
    if (o->is_array && (status = cbdi_query_settle(w->query, error)) != CBD_STATUS_OK)
        return status; /* how many prims there are says how rows are cut */
    if ((status = cbdi_mode_check(stage, w->name, o->prim_mode, error)) != CBD_STATUS_OK)
        return status;
    if (o->row_ndim > CBD_ROW_NDIM_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "row_shape has %u dimensions: expected at most %u", o->row_ndim,
                         CBD_ROW_NDIM_MAX);
    status = cbdi_fit(stage, w->query, w->name, w->name_bytes, try_write, w, error);
    if (status == CBD_STATUS_OK)
        status = check_selection(stage, w, error);
    if (status == CBD_STATUS_OK && !o->next_ordinal)
        status = cbdi_ordinal_check(stage, w->name, w->name_bytes, o->ordinal, error);
    if (status == CBD_STATUS_OK && o->prim_mode == CBD_MODE_INSERT && w->whole && o->mask == NULL)
        status = cbdi_insert_check(stage, w->query, w->name, error);
    return status;
}

void cbdi_write_free(struct write *w)
{
    free(w->sizes);
    free(w->packed);
}

/* The payload: an index map is gathered here (behaviour 70). */
static void copy_rows(const struct write *w, uint8_t *to)
{
    if (w->options.is_array)
        cbdi_array_copy(w, to);
    else
        cbdi_gather(to, w->tensor, w->count, w->options.index_map);
}

static uint64_t round8(uint64_t bytes) { return (bytes + 7) & ~UINT64_C(7); }

uint64_t cbdi_write_words(const struct write *w) { return w->options.mask != NULL ? (w->count + 63) / 64 : 0; }

static uint64_t size_count(const struct write *w) { return w->sizes != NULL ? w->count : 0; }

uint64_t cbdi_write_room(const struct write *w)
{
    return round8(w->name_bytes) + (cbdi_write_words(w) + size_count(w)) * sizeof(uint64_t) + round8(w->bytes);
}

void cbdi_write_put(const struct write *w, uint8_t *arguments, uint64_t at, cbd_abi_write_entry *entry)
{
    const cbd_write_options *o = &w->options;
    uint64_t words = cbdi_write_words(w), words_at = at + round8(w->name_bytes);
    uint64_t sizes = size_count(w), sizes_at = words_at + words * sizeof(uint64_t), payload_at = sizes_at + sizes * sizeof(uint64_t);
    memset(entry, 0, sizeof *entry);
    cbdi_schema_to_abi(&w->schema, &entry->schema);
    entry->schema.device_type = w->device_type; /* 0: where the attribute lies by then */
    entry->schema.device_id = w->device_id;
    entry->payload.offset_bytes = payload_at;
    entry->payload.length_bytes = w->bytes;
    entry->payload_rows = w->count;
    entry->name_offset_bytes = (uint32_t)at;
    entry->name_bytes = (uint32_t)w->name_bytes;
    entry->selection.count = words == 0 && w->whole ? CBD_ALL : w->count;
    entry->selection.sort = words != 0 ? CBD_SELECT_MASK : CBD_SELECT_ROWS;
    if (words != 0) {
        entry->selection.words_offset_bytes = (uint32_t)words_at;
        entry->selection.word_count = (uint32_t)words;
        memcpy(arguments + words_at, o->mask, words * sizeof(uint64_t));
    }
    if (sizes != 0) {
        entry->element_sizes_offset_bytes = (uint32_t)sizes_at;
        entry->element_sizes_count = (uint32_t)sizes;
        memcpy(arguments + sizes_at, w->sizes, sizes * sizeof(uint64_t));
    }
    memcpy(arguments + at, w->name, w->name_bytes);
    copy_rows(w, arguments + payload_at);
}

static cbd_status write_inline(cbd_stage *stage, const struct write *w, cbd_op **op, cbd_error *error)
{
    const cbd_write_options *o = &w->options;
    uint64_t at = sizeof(cbd_abi_write_arguments) + sizeof(cbd_abi_write_entry);
    struct submission s = {
        .opcode = CBD_OP_WRITE,
        .flags = (o->next_ordinal ? CBD_FLAG_NEXT_ORDINAL : 0) | (o->seal ? CBD_FLAG_SEAL : 0),
        .query = w->query,
        .ordinal = o->next_ordinal ? 0 : o->ordinal,
    };
    cbd_status status = cbdi_submit_begin(stage, &s, at + cbdi_write_room(w), 0, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_abi_write_arguments arguments = {.entry_count = 1, .prim_mode = o->prim_mode};
    cbd_abi_write_entry entry;
    cbdi_write_put(w, s.arguments, at, &entry);
    memcpy(s.arguments, &arguments, sizeof arguments);
    memcpy(s.arguments + sizeof arguments, &entry, sizeof entry);
    cbdi_submit_commit(stage, &s, op);
    return CBD_STATUS_OK;
}

/* Through staging memory for the whole query, of whose rows only those that are meant are handed back. */
static cbd_status write_mapped(cbd_stage *stage, const struct write *w, cbd_op **op, cbd_error *error)
{
    const cbd_write_options *o = &w->options;
    cbd_map_options options = {.ordinal = o->ordinal, .next_ordinal = o->next_ordinal, .prim_mode = o->prim_mode};
    cbd_session *session = NULL;
    cbd_group *group = NULL;
    uint64_t size = w->query->count, *sizes = NULL;
    uint32_t flags = o->seal ? CBD_FLAG_SEAL : 0;
    bool recorded = false;
    cbd_status status = CBD_STATUS_OK;
    cbdi_write_staging(w, &options);
    if (w->sizes != NULL) {
        sizes = calloc(size, sizeof *sizes); /* rows that are not meant are empty */
        if (sizes == NULL)
            status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory for the sizes of %llu rows", (unsigned long long)size);
        else
            memcpy(sizes, w->sizes, w->count * sizeof *sizes);
        options.element_sizes = sizes;
        options.element_size_count = size;
    }
    if (status == CBD_STATUS_OK)
        status = cbdi_map_rows(stage, w->query, w->name, &options, &w->schema, &session, error);
    free(sizes);
    if (status == CBD_STATUS_OK)
        status = cbd_fetch_map_next(session, &group, error);
    if (status == CBD_STATUS_OK && group->rows != size)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "mapped %llu rows, got %llu", (unsigned long long)size,
                           (unsigned long long)group->rows);
    if (status == CBD_STATUS_OK) {
        if (cbdi_on_device(w->tensor))
            status = cbdi_write_on_device(w, group, &recorded, error);
        else
            copy_rows(w, group->data);
    }
    if (status == CBD_STATUS_OK)
        status = cbdi_unmap_session(session, flags, w->whole && o->mask == NULL ? CBD_ALL : w->count, o->mask, recorded, op, error);
    cbd_session_release(session); /* aborts where something failed */
    return status;
}

static cbd_status write_one(cbd_stage *stage, struct write *w, cbd_op **op, cbd_error *error)
{
    cbd_query *query = w->query;
    if (op != NULL)
        *op = NULL;
    cbd_status status = cbdi_name_check(w->name, true, &w->name_bytes, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_query_check(stage, query, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_check_write(stage, w, error);
    if (status == CBD_STATUS_OK) {
        bool small = (!cbdi_on_device(w->tensor) || w->bytes == 0) && w->bytes <= CBD_INLINE_BYTES_MAX && w->bytes <= stage->ring.arguments.size_bytes / 2;
        if (!small && atomic_load(&query->running) && (status = cbdi_query_settle(query, error)) == CBD_STATUS_OK)
            status = cbdi_check_write(stage, w, error); /* now with what the query has */
        if (status == CBD_STATUS_OK)
            status = small ? write_inline(stage, w, op, error) : write_mapped(stage, w, op, error);
    }
    cbdi_write_free(w);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_write_attribute(cbd_stage *stage, cbd_query *query, const char *name, const cbd_tensor *tensor,
                               const cbd_write_options *options, cbd_op **op, cbd_error *error)
{
    struct write w = {.query = query, .name = name, .tensor = tensor,
                      .options = options ? *options : cbd_write_options_default()};
    return write_one(stage, &w, op, error);
}

cbd_status cbd_publish(cbd_stage *stage, const char *name, const cbd_tensor *tensor, uint32_t semantic, cbd_op **op,
                       cbd_error *error)
{
    cbd_write_options options = cbd_write_options_default();
    options.semantic = semantic;
    return cbd_publish_with(stage, name, tensor, &options, op, error);
}

cbd_status cbd_publish_with(cbd_stage *stage, const char *name, const cbd_tensor *tensor, const cbd_write_options *options, cbd_op **op,
                            cbd_error *error)
{
    int64_t shape[CBD_NDIM_MAX], strides[CBD_NDIM_MAX];
    uint64_t whole[CBD_NDIM_MAX];
    cbd_query *root;
    if (op != NULL)
        *op = NULL;
    if (tensor == NULL || tensor->ndim < 0 || tensor->ndim >= CBD_NDIM_MAX || (tensor->ndim > 0 && tensor->shape == NULL))
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "the tensor has %d dimensions: expected 0 to %d and a shape",
                         tensor ? tensor->ndim : -1, CBD_NDIM_MAX - 1);
    cbd_tensor row = *tensor; /* one row: (1, *shape) */
    row.ndim = tensor->ndim + 1;
    row.shape = shape;
    shape[0] = 1;
    strides[0] = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        shape[i + 1] = tensor->shape[i];
        whole[i] = (uint64_t)tensor->shape[i];
        strides[i + 1] = tensor->strides ? tensor->strides[i] : 0;
    }
    row.strides = tensor->strides ? strides : NULL;
    struct write w = {.name = name, .tensor = &row, .options = cbd_write_options_default(),
                      .new_ndim = (uint32_t)tensor->ndim, .new_shape = whole}; /* a new attribute: its row is the whole array */
    w.options.next_ordinal = w.options.seal = 1;
    w.options.semantic = options->semantic;
    w.options.device_type = options->device_type;
    w.options.device_id = options->device_id;
    w.options.sync = options->sync;
    cbd_status status = cbd_root_query(stage, &root, error);
    if (status != CBD_STATUS_OK)
        return status;
    w.query = root;
    status = write_one(stage, &w, op, error);
    cbd_query_release(root);
    return status;
}

cbd_status cbd_advance_write_floor(cbd_stage *stage, uint64_t ordinal, uint32_t scope, const char *const *names, size_t n,
                                   uint64_t stamp_ns, cbd_op **op, cbd_error *error)
{
    if (op != NULL)
        *op = NULL;
    if (scope > CBD_SCOPE_EXCLUDE)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "scope is %u: expected 0 (all), 1 (include) or 2 (exclude)", scope);
    if (scope == CBD_SCOPE_ALL && n != 0)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "scope all with %zu names: expected none; use include", n);
    cbd_status status = cbdi_names_check(names, n, true, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    cbd_abi_seal_arguments arguments = {.stamp_ns = stamp_ns};
    struct submission s = {.opcode = CBD_OP_SEAL, .ordinal = ordinal, .value = scope};
    uint64_t list = scope == CBD_SCOPE_ALL ? 0 : cbdi_string_list_bytes(names, NULL, n);
    status = cbdi_submit_begin(stage, &s, sizeof arguments + list, 0, error);
    if (status == CBD_STATUS_OK) {
        memcpy(s.arguments, &arguments, sizeof arguments);
        if (list != 0)
            cbdi_string_list_put(s.arguments + sizeof arguments, names, NULL, n);
        cbdi_submit_commit(stage, &s, op);
    }
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_declare(cbd_stage *stage, const char *name, const cbd_schema *schema, uint32_t retain, uint32_t handoff,
                       cbd_op **op, cbd_error *error)
{
    uint64_t row_bytes;
    size_t length;
    if (op != NULL)
        *op = NULL;
    cbd_status status = cbdi_name_check(name, true, &length, error);
    if (status == CBD_STATUS_OK)
        status = cbd_schema_row_bytes(schema, &row_bytes, error);
    if (status == CBD_STATUS_OK && handoff > CBD_HANDOFF_COPY)
        status = cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "handoff is %u: expected 0 (default), 1 (adopt) or 2 (copy)", handoff);
    if (status == CBD_STATUS_OK)
        status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    if (schema->kind == CBD_KIND_ARRAY && (status = cbdi_array_check(stage, name, error)) != CBD_STATUS_OK) {
        cbdi_leave(stage);
        return status;
    }
    cbd_schema wire = *schema; /* with the broker's device */
    if (wire.device_type == 0)
        wire.device_type = CBD_DEVICE_CPU;
    status = cbdi_device_named(stage, "the schema", &wire.device_type, &wire.device_id, error);
    if (status == CBD_STATUS_OK && wire.device_type == CBD_DEVICE_CUDA && wire.kind == CBD_KIND_ARRAY)
        status = cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED, "attribute \"%.200s\": kind array on a GPU: rows of lengths of their own lie on the host; use kind fixed, or the CPU",
                           name);
    if (status != CBD_STATUS_OK) {
        cbdi_leave(stage);
        return status;
    }
    cbd_abi_declare_arguments arguments = {.name_offset_bytes = sizeof arguments, .name_bytes = (uint32_t)length,
                                           .retain = retain, .handoff = handoff};
    cbdi_schema_to_abi(&wire, &arguments.schema);
    struct submission s = {.opcode = CBD_OP_DECLARE};
    status = cbdi_submit_begin(stage, &s, sizeof arguments + length, 0, error);
    if (status == CBD_STATUS_OK) {
        memcpy(s.arguments, &arguments, sizeof arguments);
        memcpy(s.arguments + sizeof arguments, name, length);
        cbdi_submit_commit(stage, &s, op);
    }
    cbdi_leave(stage);
    return status;
}
