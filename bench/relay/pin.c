/* Runs a program on one CPU only. Its children and threads inherit that, Go's as well.
 *
 * Usage: pin CPU PROGRAM [ARGUMENT ...]
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: pin CPU PROGRAM [ARGUMENT ...]\n");
        return 2;
    }
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(strtoul(argv[1], NULL, 10), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
        fprintf(stderr, "pin: running on CPU %s alone: %s\n", argv[1], strerror(errno));
        return 1;
    }
    execv(argv[2], argv + 2);
    fprintf(stderr, "pin: starting %s: %s\n", argv[2], strerror(errno));
    return 1;
}
