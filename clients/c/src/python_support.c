/* What clients/python needs beyond callboard.h: a way out of a wait for who has signals to
 * look at, and views that a collector takes down.
 */
#include "python_support.h"

#include <stdatomic.h>
#include <stddef.h>

#include "callboard_python.h"
#include "client.h"
#include "map.h"

static int (*_Atomic interrupt_check)(void);

void cbd_set_interrupt_check(int (*check)(void)) { atomic_store(&interrupt_check, check); }

cbd_status cbd_group_lend(cbd_group *group, cbd_error *error) { return cbdi_group_lend((struct map_group *)group, error); }

void cbd_group_unlend(cbd_group *group) { cbdi_group_unlend((struct map_group *)group); }

void cbd_log_dropped(const char *what) { cbdi_log(CBD_LOG_WARNING, CBDI_LOG_HANDLE, "%s; it was garbage-collected", what); }

bool cbdi_interrupted(void)
{
    int (*check)(void) = atomic_load(&interrupt_check);
    return check != NULL && check() != 0;
}
