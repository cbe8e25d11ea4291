/* What the rest of the client knows of python_support.c. */
#ifndef CBDI_PYTHON_SUPPORT_H
#define CBDI_PYTHON_SUPPORT_H

#include <stdbool.h>

/* Asks the process's interrupt check, where one is set. No lock may be held: the check
 * may wait for an interpreter's lock, whose holder may wait for ours. */
bool cbdi_interrupted(void);

#endif
