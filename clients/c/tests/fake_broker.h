/* A broker of a few hundred lines for the client's own tests: a socket, a channel, a
 * directory and segments, all made by hand, and a thread that answers ops. It stores
 * nothing by itself; tests publish versions and may break any word they like.
 */
#ifndef FAKE_BROKER_H
#define FAKE_BROKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "client.h"

#define FAKE_SEGMENT_BYTES (8u << 20)
#define FAKE_GENERATION UINT64_C(1700000000000000000)

struct fake {
    char dir[64];
    int listener, connection;
    bool greeted; /* leftovers of another life are never consumed (B1) */
    int channel_fd, directory_fd, doorbell_fd, segment_fds[4]; /* segment id i+1; 2 is the client's own */
    uint8_t *channel;
    cbd_abi_directory_header *directory;
    cbd_abi_doorbell *doorbell;
    uint8_t *segments[4];
    uint64_t used[4];
    uint64_t layouts;
    uint32_t sq_entries, cq_entries, argument_bytes, result_bytes, pin_count;
    uint32_t version; /* of the hello reply */
    uint64_t features; /* that the broker has */
    uint32_t hang_up_status;
    uint64_t incarnation, generation; /* as it tells them */
    uint32_t refuse; /* answers a hello with this status */
    uint32_t lives;  /* it was started so many times; handles are of one life: life << 32 | number */
    pthread_t thread;
    _Atomic int stop;
    bool dead;
    _Atomic int frozen;     /* answers no ops */
    _Atomic int segment_asks;
    _Atomic int pins_by_op;
    _Atomic uint32_t last_opcode;
    _Atomic int aborts;
    _Atomic int queries, releases, sessions_closed;
    uint64_t next_handle;
    uint64_t sq_head, cq_tail;
    /* Called for every op before it is answered; may change the completion or return
     * false to leave it out. */
    bool (*on_op)(struct fake *, const cbd_abi_submission_entry *, cbd_abi_completion_entry *);
    /* Fills the answer to a request for a device, an arena or an event; without it there are none. */
    void (*on_device)(struct fake *, const cbd_abi_device_request *, cbd_abi_device_reply *);
    /* Overwrites a completion's text. */
    const char *text;
};

/* Above 0: about one access to shared words in so many gives up the processor. */
extern _Atomic unsigned fake_shaking;

struct fake *fake_start(void); /* sets CALLBOARD_RUNTIME_DIR */
void fake_stop(struct fake *fake);
cbd_stage *fake_connect(struct fake *fake);
void fake_hang_up(struct fake *fake, const char *text); /* text NULL: without a last message */
/* Ends as a killed broker does: no message, no listener, memory as it was. Rises as one that recovered. */
void fake_die(struct fake *fake);
void fake_rise(struct fake *fake);
/* Whether somebody holds the channel's lock (I3). */
bool fake_channel_locked(struct fake *fake);

/* Ends a forked child well, by becoming another program: a search for leaks would find what is its parent's. */
_Noreturn void fake_child_ends(void);

uint64_t fake_string(struct fake *fake, uint32_t sort, const char *text);
cbd_abi_attribute_entry *fake_attribute(struct fake *fake, uint32_t column);
uint32_t fake_column(struct fake *fake, const char *name, uint8_t code, uint8_t bits, uint16_t lanes, uint32_t row_ndim,
                     const uint64_t *row_shape);
cbd_abi_ref fake_alloc(struct fake *fake, uint64_t segment, uint64_t bytes, void **at);
/* A layout of the paths, all born at `birth`. */
cbd_abi_ref fake_layout(struct fake *fake, const char *const *paths, size_t n, uint64_t birth);
cbd_abi_version_slot *fake_slot(struct fake *fake, uint32_t column, uint32_t place);
/* Publishes rows as a new version in the slot, epoch + 1; the one before dies. */
void fake_publish(struct fake *fake, uint32_t column, uint32_t place, cbd_abi_ref layout, uint64_t rows, const void *data,
                  uint64_t bytes, uint64_t ordinal);
void fake_floors(struct fake *fake, uint32_t place, uint64_t global, uint64_t other, const cbd_abi_floor_row *rows, uint64_t n);
void fake_epoch(struct fake *fake, uint64_t epoch);
cbd_abi_pin_slot *fake_pins(struct fake *fake);
unsigned fake_pins_held(struct fake *fake);

/* How many entries the directory has, "." and ".." with them: of descriptors in /proc/self/fd. */
int fake_entries(const char *directory);

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);          \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define CHECK_STATUS(call, wanted)                                                                               \
    do {                                                                                                         \
        cbd_status got_ = (call);                                                                                \
        if (got_ != (wanted)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s gave %s, expected %s (%s)\n", __FILE__, __LINE__, #call,                  \
                    cbd_status_name(got_), cbd_status_name(wanted), error.text);                                 \
            exit(1);                                                                                             \
        }                                                                                                        \
    } while (0)

/* Runs a test and says so. */
#define RUN(test)                 \
    do {                          \
        test();                   \
        printf("ok %s\n", #test); \
    } while (0)

/* As RUN, of a test that QEMU's user emulation cannot carry, and why; `make arm64` says that it is there. */
#define RUN_ON_LINUX(test, why)                        \
    do {                                               \
        if (getenv("CALLBOARD_TEST_QEMU") != NULL)     \
            printf("not under QEMU %s: " why "\n", #test); \
        else                                           \
            RUN(test);                                 \
    } while (0)

#endif
