/* Writing a tensor that lies on a GPU: its rows are copied there, into staging memory of the broker's, in as few pieces as
 * its strides and an index map allow.
 */
#include "map.h"
#include "write.h"

#include <stdlib.h>

#define RUNS_MAX 4096 /* copies that are queued one by one; some microseconds each */

struct runs {
    struct cbdi_run *runs;
    size_t count, room;
    uint64_t at; /* bytes of the rows before */
};

/* Appends bytes, to the run before where they lie behind it. False: too many, or no memory. */
static bool append(struct runs *r, const uint8_t *from, uint64_t bytes)
{
    struct cbdi_run *last = r->count != 0 ? &r->runs[r->count - 1] : NULL;
    if (last != NULL && last->from + last->bytes == from) {
        last->bytes += bytes;
    } else {
        if (r->count == r->room) {
            size_t room = r->room ? 2 * r->room : 16;
            struct cbdi_run *grown = room > RUNS_MAX ? NULL : realloc(r->runs, room * sizeof *grown);
            if (grown == NULL)
                return false;
            r->runs = grown;
            r->room = room;
        }
        r->runs[r->count++] = (struct cbdi_run){r->at, from, bytes};
    }
    r->at += bytes;
    return true;
}

/* One row, dimensions `at` on; those from `compact` on lie in one piece of `piece` bytes. */
static bool append_row(struct runs *r, const cbd_tensor *t, const uint8_t *from, int32_t at, int32_t compact, uint64_t piece)
{
    if (at >= compact)
        return append(r, from, piece);
    for (int64_t i = 0; i < t->shape[at]; i++)
        if (!append_row(r, t, from + i * t->strides[at] * (int64_t)(t->bits / 8 * t->lanes), at + 1, compact, piece))
            return false;
    return true;
}

static bool find_runs(const struct write *w, struct runs *r)
{
    const cbd_tensor *t = w->tensor;
    const uint32_t *index_map = w->options.index_map;
    int64_t size = t->bits / 8 * t->lanes, run = 1; /* elements of the compact tail */
    int32_t compact = t->ndim;                      /* its first dimension */
    while (compact > 1 && (t->strides == NULL || t->shape[compact - 1] == 1 || t->strides[compact - 1] == run))
        run *= t->shape[--compact];
    int64_t step = t->shape[0] == 1 ? 0 : t->strides != NULL ? t->strides[0] : run; /* of one row: never used */
    for (uint64_t i = 0; i < w->count; i++) {
        int64_t row = index_map != NULL ? (int64_t)index_map[i] : (int64_t)i;
        if (!append_row(r, t, (const uint8_t *)t->data + row * step * size, 1, compact, (uint64_t)(run * size)))
            return false;
    }
    return true;
}

void cbdi_write_staging(const struct write *w, cbd_map_options *options)
{
    bool there = w->is_new && w->number != 0 && w->device_type == 0; /* a new attribute lies where the tensor does */
    options->device_type = there ? w->schema.device_type : w->device_type;
    options->device_id = there ? w->schema.device_id : w->device_id;
    options->staging_type = w->number != 0 ? CBD_DEVICE_CUDA : CBD_DEVICE_CPU;
    options->staging_id = w->number != 0 ? w->number - 1 : 0;
}

cbd_status cbdi_write_on_device(const struct write *w, cbd_group *group, bool *recorded, cbd_error *error)
{
    struct map_group *to = (struct map_group *)group;
    struct runs r = {0};
    cbd_status status = CBD_STATUS_OK;
    *recorded = false;
    if (to->event == NULL || group->device_id != w->tensor->device_id)
        return cbdi_fail(error, CBD_STATUS_INTERNAL, "asked for staging on GPU %u, got it on device (%u, %u)", w->tensor->device_id,
                         group->device_type, group->device_id);
    if (!find_runs(w, &r))
        status = r.count == RUNS_MAX
                     ? cbdi_fail(error, CBD_STATUS_NOT_SUPPORTED,
                                 "the tensor on GPU %u lies in more than %u pieces: make it contiguous there, then write it", w->tensor->device_id,
                                 RUNS_MAX)
                     : cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to list the pieces of a tensor");
    if (status == CBD_STATUS_OK)
        status = cbdi_cuda()->copy(w->tensor->device_id, group->data, r.runs, r.count, &w->options.sync, to->event, recorded, error);
    if (*recorded)
        atomic_store(&to->segment->queued, 1);
    free(r.runs);
    return status;
}
