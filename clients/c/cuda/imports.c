/* What the broker exported, opened once for the process and counted: a second open of one handle is an error of old
 * drivers, and takes addresses of new ones. An import is known by the life of the broker that made it, so that what a
 * dead one exported is never taken for another's.
 */
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LAZY_PEER_ACCESS = 1 }; /* the one flag that opening takes, and needs */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while the driver opens and closes: nothing twice */
static struct import *imports;

void cbdc_forget_imports(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
    imports = NULL; /* the child has none of it, and what stands there may be half done */
}

static cbd_status open_with_driver(const struct cbdi_export *what, struct import *import, cbd_error *error)
{
    CUipcHandle handle;
    CUdeviceptr base = 0;
    cbd_status status = cbdc_enter(what->ordinal, error);
    if (status != CBD_STATUS_OK)
        return status;
    memcpy(handle.bytes, what->handle, sizeof handle.bytes);
    CUresult code = what->is_event ? cbdc_driver.event_open(&import->event, handle) : cbdc_driver.memory_open(&base, handle, LAZY_PEER_ACCESS);
    if (code == 0)
        cbdc_keep(what->ordinal, 1);
    cbdc_leave(what->ordinal);
    import->shown.base = (uint8_t *)(uintptr_t)base;
    return code == 0 ? CBD_STATUS_OK : cbdc_refused(error, what->is_event ? "cuIpcOpenEventHandle" : "cuIpcOpenMemHandle", code);
}

cbd_status cbdc_open(const struct cbdi_export *what, struct cbdi_import **out, cbd_error *error)
{
    cbd_status status = CBD_STATUS_OK;
    pthread_mutex_lock(&lock);
    struct import *import = imports;
    while (import != NULL && (import->generation != what->generation || import->life != what->life || import->id != what->id ||
                              import->is_event != what->is_event))
        import = import->next;
    if (import != NULL) {
        import->refs++;
    } else if ((import = calloc(1, sizeof *import)) == NULL) {
        status = cbdc_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to note an import");
    } else if ((status = open_with_driver(what, import, error)) != CBD_STATUS_OK) {
        free(import);
    } else {
        import->generation = what->generation;
        import->life = what->life;
        import->id = what->id;
        import->is_event = what->is_event;
        import->ordinal = what->ordinal;
        import->refs = 1;
        import->next = imports;
        imports = import;
    }
    pthread_mutex_unlock(&lock);
    if (status == CBD_STATUS_OK)
        *out = &import->shown;
    return status;
}

void cbdc_hold(struct cbdi_import *held)
{
    pthread_mutex_lock(&lock);
    ((struct import *)held)->refs++;
    pthread_mutex_unlock(&lock);
}

void cbdc_let_go(struct cbdi_import *gone)
{
    struct import *import = (struct import *)gone;
    if (cbdc_forked())
        return; /* it is the parent's; the memory of its record goes with the child */
    pthread_mutex_lock(&lock);
    if (--import->refs == 0) {
        struct import **place = &imports;
        while (*place != import)
            place = &(*place)->next;
        *place = import->next;
        if (cbdc_enter(import->ordinal, NULL) == CBD_STATUS_OK) { /* a driver that is shutting down has let go already */
            if (import->is_event)
                (void)cbdc_driver.event_destroy(import->event);
            else
                (void)cbdc_driver.memory_close((CUdeviceptr)(uintptr_t)import->shown.base);
            cbdc_keep(import->ordinal, -1);
            cbdc_leave(import->ordinal);
        }
        free(import);
    }
    pthread_mutex_unlock(&lock);
}
