/* Pins: the claim that keeps versions from being reused (rules V1, V2, V7).
 *
 * A pin is one slot in this client's channel. It is stored, then the horizons are
 * looked at; the broker raises a horizon, then looks at the pins. Whoever comes second
 * sees the other. A pin is never moved or copied: views share it by `refs`, and the
 * last release stores epoch 0 by an exchange, which is a full barrier on every
 * machine; a plain store could linger and make one reader appear at two epochs.
 *
 * Taking and releasing need no lock: slots are found by a scan over `used` flags. What a pin says of itself in this
 * process is ordered by that flag alone; where others read it meanwhile (name_oldest), it is for people.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS 16

static cbd_pin *take_slot(cbd_stage *stage, uint32_t attribute)
{
    uint32_t start = atomic_load(&stage->pin_hint);
    for (uint32_t i = 0; i < stage->pin_count; i++) {
        uint32_t place = (start + i) % stage->pin_count;
        cbd_pin *pin = &stage->pins[place];
        uint32_t free = 0;
        if (atomic_load(&pin->used) || !atomic_compare_exchange_strong(&pin->used, &free, 1))
            continue;
        atomic_store_explicit(&stage->pin_hint, place, memory_order_relaxed); /* low places first, so that the broker's scan stays short */
        raise32(&stage->ring.control->pin_high_water, place + 1);
        pin->stage = stage;
        pin->use_count = 0;
        atomic_store_explicit(&pin->refs, 1, memory_order_relaxed);
        atomic_store_explicit(&pin->attribute, attribute, memory_order_relaxed);
        atomic_store_explicit(&pin->epoch, 0, memory_order_relaxed);
        cbdi_stage_retain(stage);
        cbdi_hold(stage);
        return pin;
    }
    return NULL;
}

static cbd_abi_pin_slot *slot_of(cbd_pin *pin) { return &pin->stage->pin_slots[pin - pin->stage->pins]; }

static void store_pin(cbd_pin *pin, uint64_t epoch)
{
    cbd_abi_pin_slot *slot = slot_of(pin);
    store32(&slot->attribute, atomic_load(&pin->attribute));
    store64(&slot->epoch, epoch); /* last: now it counts */
    atomic_store_explicit(&pin->epoch, epoch, memory_order_relaxed);
}

/* Adds to what this client pins, here and where the broker shows it: both are sums of the same
 * terms, so that they end up equal whatever the order of the threads. A pin is held by the
 * caller, and so the channel is mapped; in a forked child it is the parent's, and not mapped. */
static void add_pinned(cbd_stage *stage, uint64_t bytes)
{
    atomic_fetch_add(&stage->pinned_bytes, bytes);
    if (!atomic_load(&stage->foreign))
        add64(&stage->ring.control->pinned_bytes, bytes);
}

#define CLOSING UINT32_MAX /* a count: the last pin is on its way out and reads the record once more */

static void uncount_version(cbd_stage *stage, struct version_use *use)
{
    uint32_t count = atomic_load(&use->count);
    while (!atomic_compare_exchange_weak(&use->count, &count, count > 1 ? count - 1 : CLOSING)) {
    }
    if (count > 1)
        return;
    uint64_t bytes = use->bytes;
    atomic_store(&use->count, 0); /* the record may be another version's from here on */
    add_pinned(stage, 0 - bytes);
}

cbd_pin *cbd_pin_retain(cbd_pin *pin)
{
    if (pin != NULL)
        atomic_fetch_add(&pin->refs, 1);
    return pin;
}

void cbd_pin_release(cbd_pin *pin)
{
    if (pin == NULL || atomic_fetch_sub(&pin->refs, 1) != 1)
        return;
    cbd_stage *stage = pin->stage;
    if (!atomic_load(&stage->foreign)) /* a child's slots are not mapped, and the parent's claims are the parent's */
        exchange64(&slot_of(pin)->epoch, 0);
    for (uint32_t i = 0; i < pin->use_count; i++) {
        uncount_version(stage, pin->uses[i].version);
        if (pin->uses[i].segment != NULL)
            atomic_fetch_sub(&pin->uses[i].segment->users, 1);
    }
    pin->use_count = 0;
    atomic_store_explicit(&pin->epoch, 0, memory_order_relaxed);
    uint32_t place = (uint32_t)(pin - stage->pins);
    if (place < atomic_load_explicit(&stage->pin_hint, memory_order_relaxed))
        atomic_store_explicit(&stage->pin_hint, place, memory_order_relaxed);
    atomic_store_explicit(&pin->used, 0, memory_order_release); /* pairs with the exchange in take_slot */
    cbdi_leave(stage); /* last: whatever touches the channel comes before */
    cbdi_stage_drop(stage);
}

static const uint64_t *horizon_of(cbd_stage *stage, const struct column *column)
{
    return column == NULL ? &stage->directory->horizon_any : &column->entry->horizon;
}

/* The way that always ends: only the loop raises horizons, so an epoch that the loop
 * stores needs no check. (Should the session end meanwhile, a slot may be filled late;
 * a stray pin keeps memory, it cannot harm a read.) */
static cbd_status pin_by_broker(cbd_stage *stage, cbd_pin **pins, size_t n, uint64_t *epoch, cbd_error *error)
{
    struct submission s = {.waits = true, .opcode = CBD_OP_PIN};
    cbd_op_result result;
    cbd_op *op;
    cbd_status status = cbdi_submit_begin(stage, &s, n * sizeof(uint32_t), 0, error);
    if (status == CBD_STATUS_OK) {
        for (size_t i = 0; i < n; i++) {
            uint32_t place = (uint32_t)(pins[i] - stage->pins);
            store32(&slot_of(pins[i])->attribute, atomic_load(&pins[i]->attribute));
            memcpy(s.arguments + i * sizeof place, &place, sizeof place);
        }
        cbdi_submit_commit(stage, &s, &op);
        status = cbdi_op_finish(op, &result, NULL, NULL, error);
    }
    if (status == CBD_STATUS_OK && result.epoch == 0)
        status = cbdi_fail(error, CBD_STATUS_INTERNAL, "the broker pinned epoch 0 although something was sealed");
    for (size_t i = 0; i < n; i++) {
        if (status == CBD_STATUS_OK)
            atomic_store(&pins[i]->epoch, result.epoch);
        else
            cbd_pin_release(pins[i]);
    }
    *epoch = status == CBD_STATUS_OK ? result.epoch : 0;
    return status;
}

static cbd_status no_slot(cbd_stage *stage, cbd_error *error)
{
    return cbdi_fail(error, CBD_STATUS_LIMIT,
                     "all %u pin slots of this client are in use; release views that are no longer needed, or connect "
                     "with a larger pin_count",
                     stage->pin_count);
}

cbd_status cbdi_pin_past(cbd_stage *stage, struct column *column, uint64_t epoch, cbd_pin **pin, cbd_error *error)
{
    *pin = take_slot(stage, column->index);
    if (*pin == NULL)
        return no_slot(stage, error);
    store_pin(*pin, epoch);
    if (load64(&column->entry->horizon) > epoch) {
        cbd_pin_release(*pin);
        *pin = NULL;
    }
    return CBD_STATUS_OK;
}

static cbd_status pin_once(cbd_stage *stage, struct column *const *columns, const uint32_t *attributes, size_t n, bool at_once,
                           cbd_pin **pins, uint64_t *epoch, cbd_error *error)
{
    *epoch = load64(&stage->directory->epoch);
    if (*epoch == 0)
        return CBD_STATUS_OK;
    for (size_t i = 0; i < n; i++) {
        pins[i] = take_slot(stage, attributes[i]);
        if (pins[i] != NULL)
            continue;
        while (i > 0)
            cbd_pin_release(pins[--i]);
        return no_slot(stage, error);
    }
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint64_t e = load64(&stage->directory->epoch);
        bool late = false;
        for (size_t i = 0; i < n; i++)
            store_pin(pins[i], e);
        for (size_t i = 0; i < n && !late; i++)
            late = load64(horizon_of(stage, columns[i])) > e;
        if (!late) {
            *epoch = e;
            return CBD_STATUS_OK;
        }
        for (size_t i = 0; i < n; i++)
            exchange64(&slot_of(pins[i])->epoch, 0);
    }
    if (!at_once)
        return pin_by_broker(stage, pins, n, epoch, error);
    for (size_t i = 0; i < n; i++)
        cbd_pin_release(pins[i]);
    return CBD_STATUS_TIMEOUT;
}

/* While there is no broker, nobody raises a horizon: a broker that was lost is no reason to fail. */
cbd_status cbdi_pin_take(cbd_stage *stage, struct column *const *columns, const uint32_t *attributes, size_t n, bool at_once,
                         cbd_pin **pins, uint64_t *epoch, cbd_error *error)
{
    cbd_status status;
    do
        status = pin_once(stage, columns, attributes, n, at_once, pins, epoch, error);
    while (status == CBD_STATUS_BROKER_RESTARTED);
    return status;
}

/* Names up to three of the oldest pins. */
static void name_oldest(cbd_stage *stage, uint64_t now, char *text, size_t room)
{
    uint64_t above = 0;
    size_t used = 0;
    text[0] = 0;
    for (int found = 0; found < 3; found++) {
        cbd_pin *oldest = NULL;
        uint64_t epoch = UINT64_MAX;
        for (uint32_t i = 0; i < stage->pin_count; i++) {
            uint64_t e = atomic_load(&stage->pins[i].epoch);
            if (e > above && e < epoch) {
                epoch = e;
                oldest = &stage->pins[i];
            }
        }
        if (oldest == NULL)
            return;
        uint32_t attribute = atomic_load(&oldest->attribute), bytes = 9;
        const char *name = "all of it";
        if (attribute < stage->column_count) {
            name = attribute == CBD_FLOOR_COLUMN ? "@floor" : stage->columns[attribute]->name;
            bytes = attribute == CBD_FLOOR_COLUMN ? 6 : stage->columns[attribute]->name_bytes;
        }
        int wrote = snprintf(text + used, room - used, "%s\"%.*s\" at epoch %llu (%llu back)", used ? ", " : "",
                             (int)(bytes > 60 ? 60 : bytes), name, (unsigned long long)epoch,
                             (unsigned long long)(now > epoch ? now - epoch : 0));
        used += wrote > 0 && (size_t)wrote < room - used ? (size_t)wrote : 0;
        above = epoch;
    }
}

static cbd_status check_pinned(cbd_stage *stage, cbd_error *error)
{
    uint64_t pinned = atomic_load(&stage->pinned_bytes), most = load64(&stage->directory->pinned_bytes_max);
    char oldest[300];
    if (most == 0 || pinned <= most)
        return CBD_STATUS_OK;
    name_oldest(stage, load64(&stage->directory->epoch), oldest, sizeof oldest);
    cbdi_log(CBD_LOG_WARNING, CBDI_LOG_CALL, "stage %s: a read was refused: %llu bytes pinned, the limit is %llu; oldest pins: %s",
             stage->name, (unsigned long long)pinned, (unsigned long long)most, oldest);
    return cbdi_fail(error, CBD_STATUS_LIMIT,
                     "this client would pin %llu bytes of distinct versions, its limit is %llu; oldest pins: %s",
                     (unsigned long long)pinned, (unsigned long long)most, oldest);
}

/* The record that counts the pins of this version, with one more counted. */
static struct version_use *count_version(cbd_stage *stage, struct column *column, const struct version *version)
{
    struct version_use *idle = NULL;
    for (struct version_use *use = column->uses; use != NULL; use = use->next) {
        uint32_t count = atomic_load(&use->count);
        while (use->birth == version->birth && count != 0 && count != CLOSING)
            if (atomic_compare_exchange_weak(&use->count, &count, count + 1))
                return use;
        if (count == 0)
            idle = use; /* it can only be counted again by who holds cache_lock */
    }
    if (idle == NULL) {
        idle = calloc(1, sizeof *idle);
        if (idle == NULL)
            return NULL;
        idle->next = column->uses;
        column->uses = idle;
    }
    cbdi_mirrors_free(idle); /* of another version */
    idle->birth = version->birth;
    idle->bytes = version->block.length_bytes;
    idle->elements = 0;
    atomic_store(&idle->count, 1);
    add_pinned(stage, idle->bytes);
    return idle;
}

cbd_status cbdi_pin_use(cbd_pin *pin, struct column *column, const struct version *version, struct segment *segment,
                        cbd_error *error)
{
    cbd_stage *stage = pin->stage;
    if (pin->use_count == pin->use_room) {
        uint32_t room = pin->use_room ? pin->use_room * 2 : 1;
        struct pin_use *uses = realloc(pin->uses, room * sizeof *uses);
        if (uses == NULL)
            return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to note what a pin keeps");
        pin->uses = uses;
        pin->use_room = room;
    }
    struct version_use *use = count_version(stage, column, version);
    if (use == NULL)
        return cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no memory to count a version");
    for (uint32_t i = 0; i < pin->use_count; i++)
        if (pin->uses[i].version == use && pin->uses[i].segment == segment) { /* a snapshot that reads it again */
            atomic_fetch_sub(&use->count, 1);
            return CBD_STATUS_OK;
        }
    if (segment != NULL)
        atomic_fetch_add(&segment->users, 1);
    pin->uses[pin->use_count++] = (struct pin_use){segment, use};

    cbd_status status = check_pinned(stage, error);
    if (status != CBD_STATUS_OK) {
        pin->use_count--; /* a snapshot's pin goes on without this version */
        if (segment != NULL)
            atomic_fetch_sub(&segment->users, 1);
        uncount_version(stage, use);
    }
    return status;
}

struct version_use *cbdi_version_use(const struct column *column, uint64_t birth)
{
    struct version_use *use = column->uses;
    while (use != NULL && (use->birth != birth || atomic_load(&use->count) == 0 || atomic_load(&use->count) == CLOSING))
        use = use->next;
    return use;
}

cbd_status cbdi_pin_elements(cbd_pin *pin, const struct column *column, const struct version *version, uint64_t bytes,
                             cbd_error *error)
{
    struct version_use *use = cbdi_version_use(column, version->birth);
    if (use == NULL || bytes <= use->elements)
        return CBD_STATUS_OK;
    uint64_t more = bytes - use->elements;
    add_pinned(pin->stage, more); /* no pin can end the record meanwhile: ours is counted in it */
    cbd_status status = check_pinned(pin->stage, error);
    if (status != CBD_STATUS_OK) {
        add_pinned(pin->stage, 0 - more);
        return status;
    }
    use->elements = bytes;
    use->bytes += more;
    return CBD_STATUS_OK;
}
