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

static struct lease *lease_new(void (*release)(void *), void *kept)
{
    struct lease *lease = malloc(sizeof *lease);
    if (lease != NULL) {
        atomic_init(&lease->refs, 1);
        lease->release = release;
        lease->kept = kept;
    }
    return lease;
}

static void release_pin(void *pin)
{
    cbd_pin_release(pin);
}

struct lease *lease_of_pin(cbd_pin *pin)
{
    struct lease *lease = lease_new(release_pin, pin);
    if (lease != NULL)
        cbd_pin_retain(pin);
    return lease;
}

static void release_staging(void *kept)
{
    struct staging *staging = kept;
    cbd_group_unlend(staging->group);
    staging_drop(staging);
}

struct lease *lease_of_staging(struct staging *staging)
{
    struct lease *lease = lease_new(release_staging, staging);
    if (lease == NULL)
        cbd_group_unlend(staging->group);
    else
        staging_retain(staging);
    return lease;
}

static void release_group(void *group)
{
    cbd_release_group(group);
}

struct lease *lease_of_group(const cbd_read_group *group)
{
    struct lease *lease = lease_new(release_group, (void *)(uintptr_t)group);
    if (lease == NULL)
        cbd_release_group(group);
    return lease;
}

struct clone {
    void *memory;
    uint32_t device_id;
};

static void release_clone(void *kept)
{
    struct clone *clone = kept;
    cbd_cuda_free(clone->memory, clone->device_id);
    free(clone);
}

struct lease *lease_of_clone(void *memory, uint32_t device_id)
{
    struct clone *clone = malloc(sizeof *clone);
    struct lease *lease = clone == NULL ? NULL : lease_new(release_clone, clone);
    if (lease == NULL) {
        cbd_cuda_free(memory, device_id);
        free(clone);
        return NULL;
    }
    *clone = (struct clone){memory, device_id};
    return lease;
}

struct lease *lease_of_memory(void *memory)
{
    struct lease *lease = memory == NULL ? NULL : lease_new(free, memory);
    if (lease == NULL)
        free(memory);
    return lease;
}

static void release_managed(void *kept)
{
    cbd_dlpack_versioned *managed = kept;
    if (managed->deleter != NULL)
        managed->deleter((struct DLManagedTensorVersioned *)managed);
}

struct lease *lease_of_managed(cbd_dlpack_versioned *managed)
{
    return lease_new(release_managed, managed);
}

void lease_retain(struct lease *lease)
{
    atomic_fetch_add(&lease->refs, 1);
}

void lease_drop(struct lease *lease)
{
    if (atomic_fetch_sub(&lease->refs, 1) != 1)
        return;
    lease->release(lease->kept);
    free(lease);
}
