/* What keeps the bytes of a view. Atomics and libc only: see the second rule in native.h. */
#include "native.h"

#include <stdlib.h>

struct hold *hold_new(cbd_session *session)
{
    struct hold *hold = malloc(sizeof *hold);
    if (hold != NULL) {
        atomic_init(&hold->refs, 1);
        hold->session = session;
    }
    return hold;
}

void hold_retain(struct hold *hold)
{
    atomic_fetch_add(&hold->refs, 1);
}

void hold_drop(struct hold *hold)
{
    if (atomic_fetch_sub(&hold->refs, 1) == 1) {
        cbd_session_release(hold->session);
        free(hold);
    }
}

struct staging *staging_new(struct hold *hold, cbd_group *group)
{
    struct staging *staging = malloc(sizeof *staging);
    if (staging != NULL) {
        atomic_init(&staging->refs, 1);
        staging->hold = hold;
        staging->group = group;
        staging->unmapped = false;
        hold_retain(hold);
    }
    return staging;
}

void staging_retain(struct staging *staging)
{
    atomic_fetch_add(&staging->refs, 1);
}

void staging_drop(struct staging *staging)
{
    if (atomic_fetch_sub(&staging->refs, 1) == 1) {
        hold_drop(staging->hold);
        free(staging);
    }
}

static struct lease *lease_new(void)
{
    struct lease *lease = calloc(1, sizeof *lease);
    if (lease != NULL)
        atomic_init(&lease->refs, 1);
    return lease;
}

struct lease *lease_of_pin(cbd_pin *pin)
{
    struct lease *lease = lease_new();
    if (lease != NULL)
        lease->pin = cbd_pin_retain(pin);
    return lease;
}

struct lease *lease_of_staging(struct staging *staging)
{
    struct lease *lease = lease_new();
    if (lease == NULL) {
        cbd_group_unlend(staging->group);
        return NULL;
    }
    lease->staging = staging;
    staging_retain(staging);
    return lease;
}

struct lease *lease_of_memory(void *memory)
{
    struct lease *lease = memory == NULL ? NULL : lease_new();
    if (lease != NULL)
        lease->memory = memory;
    else
        free(memory);
    return lease;
}

void lease_retain(struct lease *lease)
{
    atomic_fetch_add(&lease->refs, 1);
}

void lease_drop(struct lease *lease)
{
    if (atomic_fetch_sub(&lease->refs, 1) != 1)
        return;
    if (lease->pin != NULL)
        cbd_pin_release(lease->pin);
    if (lease->staging != NULL) {
        cbd_group_unlend(lease->staging->group);
        staging_drop(lease->staging);
    }
    free(lease->memory);
    free(lease);
}
