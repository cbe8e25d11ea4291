/* The newest value of a name on the prim "/". */
#include "read.h"

#include "callboard_python.h"

#include <string.h>

/* The query of "/", a reference of the library's own; the first time it is made. */
static cbd_status root_of(cbd_stage *stage, const struct window *window, cbd_query **root, cbd_error *error)
{
    *root = NULL;
    if (cbdi_read_begin(stage, window) != CBD_STATUS_OK)
        return CBD_STATUS_TIMEOUT;
    *root = stage->root != NULL ? cbdi_query_retain(stage->root) : NULL;
    cbdi_read_end(stage);
    if (*root != NULL || window->at_once)
        return *root != NULL ? CBD_STATUS_OK : CBD_STATUS_TIMEOUT;
    cbd_query *made;
    cbd_status status = cbd_root_query(stage, &made, error);
    if (status == CBD_STATUS_OK) {
        *root = cbdi_query_retain(made);
        cbd_query_release(made);
    }
    return status;
}

static cbd_status latest(cbd_stage *stage, const char *name, const struct window *window, uint32_t device_type, uint32_t device_id,
                         const cbd_read_group **out, cbd_error *error)
{
    cbd_query *root = NULL;
    cbd_read *read = NULL;
    if (out == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "group: expected a place for it, got NULL");
    *out = NULL;
    cbd_status status = cbdi_enter(stage, error);
    if (status != CBD_STATUS_OK)
        return status;
    status = cbdi_names_check(&name, 1, false, error);
    if (status == CBD_STATUS_OK)
        status = root_of(stage, window, &root, error);
    if (status == CBD_STATUS_OK)
        status = cbdi_read_make(stage, root, &name, 1, NULL, window, &read, error);
    if (status == CBD_STATUS_OK && read->count == 0)
        status = cbdi_fail(error, CBD_STATUS_NOT_FOUND, "\"%.200s\" has no sealed value on the prim \"/\" at epoch %llu", name,
                           (unsigned long long)read->epoch);
    if (status == CBD_STATUS_OK)
        status = cbd_fetch_read_next_in(read, device_type, device_id, out, error);
    if (status == CBD_STATUS_OK) {
        struct group *group = (struct group *)(uintptr_t)*out; /* nobody else has it yet */
        cbd_read_group *view = &group->view;
        if (view->schema.kind == CBD_KIND_FIXED) {
            if (view->index_map != NULL) { /* one row only: cut it out */
                group->first_byte += view->index_map[0] * view->row_bytes;
                view->data = (const uint8_t *)view->data + view->index_map[0] * view->row_bytes;
                view->index_map = NULL;
            }
            view->rows = 1;
            view->contiguous = 1;
            view->ndim--;
            memmove(view->shape, view->shape + 1, sizeof view->shape - sizeof view->shape[0]);
        }
    }
    cbd_read_release(read);
    cbdi_query_drop(root);
    cbdi_leave(stage);
    return status;
}

cbd_status cbd_latest(cbd_stage *stage, const char *name, const cbd_read_group **group, cbd_error *error)
{
    return cbd_latest_in(stage, name, 0, 0, group, error);
}

cbd_status cbd_latest_in(cbd_stage *stage, const char *name, uint32_t device_type, uint32_t device_id, const cbd_read_group **group,
                         cbd_error *error)
{
    const struct window window = {.at_once = false};
    return latest(stage, name, &window, device_type, device_id, group, error);
}

cbd_status cbd_try_latest(cbd_stage *stage, const char *name, const cbd_read_group **group, cbd_error *error)
{
    const struct window window = {.at_once = true};
    return latest(stage, name, &window, 0, 0, group, error);
}
