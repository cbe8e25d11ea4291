/* The round of relay.c over callboard: one process publishes, another reads in place,
 * the broker stands between them.
 *
 *     producer: map, (fill,) stamp the first bytes, unmap, seal; wait for the answer
 *     reader:   follow the epoch, pin and read, look at the stamp, answer
 *
 * The answer comes over a word of this program's own and is not measured. A round
 * starts when the one before is over at the producer: its op is waited for and given
 * back, so that no two rounds overlap in the client. What the broker does after the
 * wake-up of the reader (completions, announcements) does fall into the next round, as
 * it would in use.
 *
 * Nobody else may seal on the stage: each epoch is a round.
 *
 * Usage: latency STAGE ATTRIBUTE BYTES ROUNDS WARM_UP_ROUNDS SECONDS HANDOFF WRITING SEALING
 *     SECONDS  no further rounds after so many
 *     HANDOFF  adopt | copy
 *     WRITING  stamp: 16 bytes only | fill: every byte, within cycle and before handoff
 *     SEALING  with: unmap seals the next ordinal | after: unmap, then a seal of its own
 */
#include "../relay/rounds.h"

#include "callboard.h"

#define ROUNDS_MIN 3 /* also when the time is over before */

struct stamp {
    uint64_t round;
    uint64_t unmap_ns;
};

struct board {
    struct turn answer, declared, reader_ready;
    const char *stage, *attribute;
    uint64_t bytes, budget_ns, started_ns;
    uint32_t rounds, warm_up;
    int copy, fill, seal_after;
    struct sample samples[];
};

static void check(cbd_status status, const cbd_error *error, const char *what)
{
    if (status == CBD_STATUS_OK)
        return;
    fprintf(stderr, "bench: %s: %s: %s\n", what, cbd_status_name(status), error->text);
    _exit(1);
}

static void attach(const struct board *board, const char *role, cbd_stage **stage, cbd_query **query)
{
    cbd_error error;
    const char *paths[] = {"/bench"};
    cbd_connect_options options = {.client_name = role};
    check(cbd_connect(board->stage, &options, stage, &error), &error, "connecting");
    check(cbd_query_from_path_list(*stage, paths, NULL, 1, query, &error), &error, "query");
}

static void read_rounds(void *argument)
{
    struct board *board = argument;
    cbd_stage *stage;
    cbd_query *query;
    cbd_error error;
    attach(board, "bench reader", &stage, &query);
    turn_wait(&board->declared, 1);
    uint64_t epoch = cbd_epoch(stage), expected = 1; /* so the next epoch is the first round's */
    turn_pass(&board->reader_ready, 1);
    for (;;) {
        cbd_read *read;
        const cbd_read_group *group;
        check(cbd_follow(stage, epoch, UINT64_MAX, &epoch, &error), &error, "follow");
        check(cbd_read_attributes(stage, query, &board->attribute, 1, &read, &error), &error, "read");
        check(cbd_fetch_read_next(read, &group, &error), &error, "fetch");
        struct stamp stamp;
        memcpy(&stamp, group->data, sizeof stamp);
        uint64_t now = now_ns();
        if (stamp.round != expected || group->row_bytes != board->bytes) {
            fprintf(stderr, "bench: the reader found round %llu of %llu bytes, expected round %llu of %llu bytes\n",
                    (unsigned long long)stamp.round, (unsigned long long)group->row_bytes, (unsigned long long)expected,
                    (unsigned long long)board->bytes);
            _exit(1);
        }
        if (board->fill && ((const uint8_t *)group->data)[board->bytes - 1] != (uint8_t)stamp.round) {
            fprintf(stderr, "bench: the last byte of round %llu is another round's\n", (unsigned long long)stamp.round);
            _exit(1);
        }
        if (expected > board->warm_up)
            board->samples[expected - board->warm_up - 1] =
                (struct sample){now - board->started_ns, now - stamp.unmap_ns};
        cbd_release_group(group);
        cbd_read_release(read);
        turn_pass(&board->answer, (uint32_t)expected++);
    }
}

static void declare(const struct board *board, cbd_stage *stage)
{
    cbd_error error;
    cbd_op *op;
    cbd_schema schema = {.kind = CBD_KIND_FIXED, .code = CBD_DTYPE_UINT, .bits = 8, .lanes = 1,
                         .device_type = CBD_DEVICE_CPU, .row_ndim = 1, .row_shape = {board->bytes}};
    uint32_t handoff = board->copy ? CBD_HANDOFF_COPY : CBD_HANDOFF_ADOPT;
    check(cbd_declare(stage, board->attribute, &schema, 0, handoff, &op, &error), &error, "declare");
    check(cbd_op_wait(op, UINT64_MAX, NULL, &error), &error, "declare");
    cbd_op_release(op);
}

/* One round; ordinal counts from 1 and is used when the seal comes on its own. */
static void publish(struct board *board, cbd_stage *stage, cbd_query *query, uint64_t round, uint64_t ordinal)
{
    cbd_error error;
    cbd_session *session;
    cbd_group *group;
    cbd_op *unmap, *seal = NULL;
    cbd_map_options options = {.ordinal = ordinal, .next_ordinal = !board->seal_after};

    board->started_ns = now_ns();
    check(cbd_map_attribute(stage, query, board->attribute, &options, &session, &error), &error, "map");
    check(cbd_fetch_map_next(session, &group, &error), &error, "group");
    if (board->fill)
        memset(group->data, (int)(uint8_t)round, board->bytes);
    struct stamp *stamp = group->data;
    stamp->round = round;
    stamp->unmap_ns = now_ns();
    check(cbd_unmap_attribute(session, board->seal_after ? 0 : CBD_FLAG_SEAL, &unmap, &error), &error, "unmap");
    if (board->seal_after)
        check(cbd_advance_write_floor(stage, ordinal, CBD_SCOPE_INCLUDE, &board->attribute, 1, 0, &seal, &error), &error,
              "seal");
    turn_wait(&board->answer, (uint32_t)round);
    check(cbd_op_wait(unmap, UINT64_MAX, NULL, &error), &error, "unmap");
    cbd_op_release(unmap);
    if (seal != NULL) {
        check(cbd_op_wait(seal, UINT64_MAX, NULL, &error), &error, "seal");
        cbd_op_release(seal);
    }
    cbd_session_release(session);
}

int main(int argc, char **argv)
{
    if (argc != 10) {
        fprintf(stderr, "usage: latency STAGE ATTRIBUTE BYTES ROUNDS WARM_UP_ROUNDS SECONDS adopt|copy stamp|fill with|after\n");
        return 2;
    }
    uint32_t rounds = (uint32_t)strtoul(argv[4], NULL, 10);
    struct board *board = shared_memory(sizeof *board + rounds * sizeof(struct sample));
    board->stage = argv[1];
    board->attribute = argv[2];
    board->bytes = strtoull(argv[3], NULL, 10);
    board->rounds = rounds;
    board->warm_up = (uint32_t)strtoul(argv[5], NULL, 10);
    board->budget_ns = (uint64_t)(strtod(argv[6], NULL) * 1e9);
    board->copy = strcmp(argv[7], "copy") == 0;
    board->fill = strcmp(argv[8], "fill") == 0;
    board->seal_after = strcmp(argv[9], "after") == 0;

    /* The reader starts first: a process that is attached must not be forked. */
    pid_t reader = start_process(read_rounds, board);
    cbd_stage *stage;
    cbd_query *query;
    cbd_error error;
    uint64_t floor = 0;
    attach(board, "bench producer", &stage, &query);
    declare(board, stage);
    turn_pass(&board->declared, 1);
    turn_wait(&board->reader_ready, 1);
    check(cbd_write_floor(stage, board->attribute, &floor, &error), &error, "floor");

    uint32_t round = 0, measured = 0;
    while (round++ < board->warm_up)
        publish(board, stage, query, round, floor + round);
    for (uint64_t until = now_ns() + board->budget_ns; measured < rounds; round++) {
        publish(board, stage, query, round, floor + round);
        measured++;
        if (measured >= ROUNDS_MIN && now_ns() >= until)
            break;
    }
    end_process(reader);
    cbd_query_release(query);
    cbd_stage_release(stage);
    print_samples(board->samples, measured);
    return 0;
}
