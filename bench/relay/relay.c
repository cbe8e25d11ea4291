/* The least that three processes need to pass a turn on: what callboard is measured
 * against. No rings, no checks, no data.
 *
 *     producer ──1 ask──▶ relay          as map does
 *     producer ◀─2──────  relay
 *     producer ──3 pass─▶ relay ──4──▶ reader    as unmap and seal do
 *     producer ◀────────────────5 answer──┘      not measured
 *
 * Usage: relay ROUNDS WARM_UP_ROUNDS
 */
#include "rounds.h"

struct board {
    struct turn to_relay, to_producer, to_reader, answer;
    uint64_t asked_ns, passed_ns;
    uint32_t rounds, warm_up;
    struct sample samples[];
};

static void relay(void *argument)
{
    struct board *board = argument;
    for (uint32_t round = 1; round <= board->rounds + board->warm_up; round++) {
        turn_wait(&board->to_relay, 2 * round - 1);
        turn_pass(&board->to_producer, round);
        turn_wait(&board->to_relay, 2 * round);
        turn_pass(&board->to_reader, round);
    }
    pause();
}

static void reader(void *argument)
{
    struct board *board = argument;
    for (uint32_t round = 1; round <= board->rounds + board->warm_up; round++) {
        turn_wait(&board->to_reader, round);
        uint64_t now = now_ns();
        if (round > board->warm_up)
            board->samples[round - board->warm_up - 1] =
                (struct sample){now - board->asked_ns, now - board->passed_ns};
        turn_pass(&board->answer, round);
    }
    pause();
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: relay ROUNDS WARM_UP_ROUNDS\n");
        return 2;
    }
    uint32_t rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    struct board *board = shared_memory(sizeof *board + rounds * sizeof(struct sample));
    board->rounds = rounds;
    board->warm_up = (uint32_t)strtoul(argv[2], NULL, 10);
    pid_t relay_process = start_process(relay, board);
    pid_t reader_process = start_process(reader, board);
    for (uint32_t round = 1; round <= board->rounds + board->warm_up; round++) {
        board->asked_ns = now_ns();
        turn_pass(&board->to_relay, 2 * round - 1);
        turn_wait(&board->to_producer, round);
        board->passed_ns = now_ns();
        turn_pass(&board->to_relay, 2 * round);
        turn_wait(&board->answer, round);
    }
    end_process(relay_process);
    end_process(reader_process);
    print_samples(board->samples, board->rounds);
    return 0;
}
