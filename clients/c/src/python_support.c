/* What clients/python needs beyond callboard.h: a way out of a wait for who has signals to
 * look at.
 */
#include "python_support.h"

#include <stdatomic.h>
#include <stddef.h>

#include "callboard_python.h"

static int (*_Atomic interrupt_check)(void);

void cbd_set_interrupt_check(int (*check)(void)) { atomic_store(&interrupt_check, check); }

bool cbdi_interrupted(void)
{
    int (*check)(void) = atomic_load(&interrupt_check);
    return check != NULL && check() != 0;
}
