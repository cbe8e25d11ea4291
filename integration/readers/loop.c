/* A node with one event loop: two stages beside its input.
 *
 *     loop DIRECTORY STAGE DIRECTORY STAGE
 *
 * Reports what woke it, as JSON: {"source": 0 or 1, "epoch": 5}, epoch 0 when the session is over, or {"source": 2,
 * "line": "..."} of its input, whose end ends it. What woke it without a newer epoch it does not report.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "callboard.h"

static cbd_error error;

static void must(cbd_status status, const char *what)
{
    if (status == CBD_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, cbd_status_name(status), error.text);
    exit(1);
}

static void watch(int loop, int fd, uint32_t source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = source};
    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) != 0) {
        perror("epoll_ctl");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    cbd_connect_options options = {.reattach_ns = UINT64_C(8000000000)};
    cbd_stage *stages[2];
    cbd_events *events[2];
    uint64_t seen[2] = {0, 0};
    int loop = epoll_create1(EPOLL_CLOEXEC);
    if (argc != 5)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint32_t i = 0; i < 2; i++) {
        setenv("CALLBOARD_RUNTIME_DIR", argv[1 + 2 * i], 1);
        must(cbd_connect(argv[2 + 2 * i], &options, &stages[i], &error), "connecting");
        must(cbd_events_open(stages[i], &events[i], &error), "opening events");
        watch(loop, cbd_events_fileno(events[i]), i);
    }
    watch(loop, STDIN_FILENO, 2);
    puts("\"ready\"");
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(loop, &event, 1, 180000) != 1)
            return 1;
        uint32_t source = event.data.u32;
        if (source == 2) {
            char line[64];
            ssize_t got = read(STDIN_FILENO, line, sizeof line - 1);
            if (got <= 0)
                break;
            line[got] = 0;
            printf("{\"source\": 2, \"line\": \"%.*s\"}\n", (int)strcspn(line, "\n"), line);
            continue;
        }
        uint64_t epoch;
        if (cbd_events_drain(events[source], &epoch, &error) != CBD_STATUS_OK)
            epoll_ctl(loop, EPOLL_CTL_DEL, cbd_events_fileno(events[source]), NULL); /* it stays readable */
        else if (epoch == seen[source])
            continue;
        seen[source] = epoch;
        printf("{\"source\": %" PRIu32 ", \"epoch\": %" PRIu64 "}\n", source, epoch);
    }
    for (int i = 0; i < 2; i++) {
        cbd_events_release(events[i]);
        cbd_stage_release(stages[i]);
    }
    return 0;
}
