/* What the files of the driver share: the line, what is said, and handles by name. */
#ifndef DRIVER_H
#define DRIVER_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "callboard.h"

enum { WORDS_MAX = 4096, HANDLES_MAX = 256, LIST_MAX = 4096 };
static const uint64_t LIMIT_NS = UINT64_C(20000000000); /* a driver never hangs */

struct command {
    const char *verb;
    char *args[WORDS_MAX]; /* words, decoded */
    size_t arg_count;
    char *options[WORDS_MAX]; /* "key=value", as they stand */
    size_t option_count;
};

extern cbd_error error;
extern const char *where; /* "call" or "wait" */
extern cbd_stage *stage;

void say(const char *format, ...);
void say_quoted(const char *text, size_t length);
void say_numbers(const uint64_t *numbers, size_t n);

const char *option(const struct command *c, const char *key);
uint64_t number_of(const struct command *c, const char *key);
const char *arg(const struct command *c, size_t i);

enum sort { FREE, QUERY, OP, SESSION, GROUP, CLAIM, READ_GROUP, SNAPSHOT, QUERY_RESULT, GONE };
cbd_status fail(const char *format, const char *what); /* no kind of the client's */
void keep(const char *name, enum sort sort, void *it);
void keep_query(const char *name, cbd_query *query);
/* The handle, or NULL after saying why. */
void *get(const char *name, enum sort sort);

/* find.c */
cbd_status do_find(struct command *c);
cbd_status do_await(struct command *c);
cbd_status do_list(struct command *c);
cbd_status do_listed(struct command *c);
cbd_status do_retain(struct command *c);
cbd_status do_unlist(struct command *c);
cbd_status do_slice(struct command *c);
cbd_status do_querylist(struct command *c);
cbd_status do_join(struct command *c);
cbd_status do_split(struct command *c);

/* hoard.c */
cbd_status do_hoard(struct command *c);
cbd_status do_discard(struct command *c);

/* rounds.c */
cbd_status do_race(struct command *c);
cbd_status do_deletes(struct command *c);
cbd_status do_cycles(struct command *c);
cbd_status do_frames(struct command *c);

#endif
