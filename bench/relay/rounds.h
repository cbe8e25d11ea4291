/* What the programs of the benchmark share: the clock, turns taken over shared
 * memory, samples. Each program forks its processes itself, so that shared words are
 * plain anonymous memory with no name to clean up.
 *
 * A round has two times, both taken by the last process of the chain:
 *   cycle:   from before the producer asks for something to write in,
 *   handoff: from before the producer hands the data over.
 */
#ifndef ROUNDS_H
#define ROUNDS_H

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A word that one process counts up and one process waits on. */
struct turn {
    _Atomic uint32_t count;
    char own_line[124];
};

static inline void turn_pass(struct turn *turn, uint32_t count)
{
    atomic_store(&turn->count, count);
    syscall(SYS_futex, &turn->count, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* No spinning: on few cores it takes the time from whoever is waited for. */
static inline void turn_wait(struct turn *turn, uint32_t count)
{
    for (uint32_t seen; (seen = atomic_load(&turn->count)) != count;)
        syscall(SYS_futex, &turn->count, FUTEX_WAIT, seen, NULL, NULL, 0);
}

struct sample {
    uint64_t cycle_ns;
    uint64_t handoff_ns;
};

static inline void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("bench: mapping shared memory");
        exit(1);
    }
    return memory;
}

static void child_ended(int signal_number)
{
    (void)signal_number;
    static const char text[] = "bench: a process of the round ended early\n";
    if (write(2, text, sizeof text - 1) < 0) { /* nothing is left to be done */
    }
    _exit(1);
}

/* Starts a process of the round: it ends with this one, and this one with it. */
static inline pid_t start_process(void (*run)(void *), void *argument)
{
    signal(SIGCHLD, child_ended);
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0) {
        perror("bench: fork");
        exit(1);
    }
    if (child == 0) {
        signal(SIGCHLD, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            run(argument);
        _exit(0);
    }
    return child;
}

static inline void end_process(pid_t child)
{
    signal(SIGCHLD, SIG_DFL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* One line per round for the program that draws the table. */
static inline void print_samples(const struct sample *samples, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        printf("%llu %llu\n", (unsigned long long)samples[i].cycle_ns, (unsigned long long)samples[i].handoff_ns);
}

#endif
