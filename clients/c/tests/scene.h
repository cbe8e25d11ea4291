/* What most tests of writes begin with: a fake broker, a stage, a query of two prims, and what arrived last. */
#ifndef SCENE_H
#define SCENE_H

#include "fake_broker.h"

#include <string.h>

static const char *const ab[] = {"/a", "/b"};

struct scene {
    struct fake *f;
    cbd_stage *stage;
    cbd_query *query;
};

/* The last op that `arrived` was called with. */
static struct {
    cbd_abi_submission_entry entry;
    uint8_t arguments[CBD_INLINE_BYTES_MAX + 4096];
} sent;

/* For on_op: keeps the op and its arguments. */
static inline void arrived(struct fake *f, const cbd_abi_submission_entry *e)
{
    sent.entry = *e;
    CHECK(e->argument_bytes <= sizeof sent.arguments);
    memcpy(sent.arguments, f->channel + ((cbd_abi_channel_header *)f->channel)->argument_offset_bytes + e->argument_offset_bytes,
           e->argument_bytes);
}

/* With `features` beyond what the fake broker has of itself. */
static inline struct scene scene_begin(bool (*on_op)(struct fake *, const cbd_abi_submission_entry *, cbd_abi_completion_entry *),
                                       uint64_t features)
{
    cbd_error error;
    struct scene s = {.f = fake_start()};
    s.f->on_op = on_op;
    s.f->features |= features;
    memset(&sent, 0, sizeof sent);
    s.stage = fake_connect(s.f);
    CHECK_STATUS(cbd_query_from_path_list(s.stage, ab, NULL, 2, &s.query, &error), CBD_STATUS_OK);
    return s;
}

/* Nothing keeps a pin by then, nor the stage mapped (I3). */
static inline void scene_end(struct scene *s)
{
    CHECK(fake_pins_held(s->f) == 0);
    cbd_query_release(s->query);
    cbd_stage_release(s->stage);
    CHECK(!fake_channel_locked(s->f));
    fake_stop(s->f);
}

#endif
