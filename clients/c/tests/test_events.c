/* Event loops: when the descriptor is readable, and what threads and descriptors it costs. */
#include "fake_broker.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

static cbd_error error;

#define SECONDS(n) ((n) * 1000) /* for poll */
#define MOMENT_MS 20            /* in which nothing is to happen */

static cbd_events *events_of(cbd_stage *stage)
{
    cbd_events *events;
    CHECK_STATUS(cbd_events_open(stage, &events, &error), CBD_STATUS_OK);
    return events;
}

/* A fake broker, and a loop that is told of its epochs. */
struct scene {
    struct fake *f;
    cbd_stage *stage;
    cbd_events *events;
};

/* Without a loop yet. */
static struct scene connected(uint64_t features, uint64_t reattach_ns)
{
    cbd_connect_options options = {.reattach_ns = reattach_ns};
    struct scene s = {.f = fake_start()};
    s.f->features |= features;
    CHECK_STATUS(cbd_connect("fake", &options, &s.stage, &error), CBD_STATUS_OK);
    return s;
}

static struct scene begin(uint64_t features, uint64_t reattach_ns)
{
    struct scene s = connected(features, reattach_ns);
    s.events = events_of(s.stage);
    return s;
}

static void end(struct scene *s)
{
    cbd_events_release(s->events);
    cbd_stage_release(s->stage);
    fake_stop(s->f);
}

static bool readable(const cbd_events *events, int timeout_ms)
{
    struct pollfd look = {.fd = cbd_events_fileno(events), .events = POLLIN};
    int ready = poll(&look, 1, timeout_ms);
    CHECK(ready >= 0 && (ready == 0 || look.revents == POLLIN));
    return ready == 1;
}

/* Drains until nothing is left, and gives the epoch. */
static uint64_t quiet(cbd_events *events)
{
    uint64_t epoch;
    do
        CHECK_STATUS(cbd_events_drain(events, &epoch, &error), CBD_STATUS_OK);
    while (readable(events, MOMENT_MS));
    return epoch;
}

static void wait_for_epoch(cbd_events *events, uint64_t wanted)
{
    for (uint64_t epoch = 0; epoch < wanted;) {
        CHECK(readable(events, SECONDS(10)));
        CHECK_STATUS(cbd_events_drain(events, &epoch, &error), CBD_STATUS_OK);
    }
}

/* The epoch is sealed, and the loop told once. */
static void news(struct scene *s, uint64_t epoch)
{
    fake_epoch(s->f, epoch);
    wait_for_epoch(s->events, epoch);
    CHECK(quiet(s->events) == epoch);
}

static int threads(void) { return fake_entries("/proc/self/task"); }
static int descriptors(void) { return fake_entries("/proc/self/fd"); }

/* The kernel takes a thread off the list a moment after it was joined. */
static bool threads_become(int wanted)
{
    for (int i = 0; i < 300000; i++) {
        if (threads() == wanted)
            return true;
        usleep(100);
    }
    return false;
}

static void it_is_a_level(void)
{
    struct scene s = begin(0, 0);
    uint64_t epoch = 7;
    CHECK((fcntl(cbd_events_fileno(s.events), F_GETFD) & FD_CLOEXEC) && (fcntl(cbd_events_fileno(s.events), F_GETFL) & O_NONBLOCK));
    CHECK(!readable(s.events, MOMENT_MS)); /* nothing was sealed */
    CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), CBD_STATUS_OK);
    CHECK(epoch == 0);
    fake_epoch(s.f, 1);
    CHECK(readable(s.events, SECONDS(10)) && readable(s.events, 0)); /* until it is drained */
    CHECK(quiet(s.events) == 1);
    for (uint64_t n = 2; n <= 50; n++)
        fake_epoch(s.f, n);
    wait_for_epoch(s.events, 50); /* the newest, no backlog */
    CHECK(quiet(s.events) == 50);
    cbd_events *late = events_of(s.stage); /* what was sealed before is news to it */
    CHECK(readable(late, 0) && quiet(late) == 50 && !readable(s.events, MOMENT_MS));
    fake_epoch(s.f, 51);
    wait_for_epoch(s.events, 51); /* draining the one leaves the other */
    CHECK(readable(late, SECONDS(10)) && quiet(late) == 51);
    fake_epoch(s.f, (UINT64_C(1) << 32) + 51); /* the futex sees half of it: the turn finds it */
    wait_for_epoch(s.events, (UINT64_C(1) << 32) + 51);
    cbd_events_release(late);
    cbd_events_release(NULL);
    end(&s);
}

static void arguments_are_checked(void)
{
    struct scene s = connected(0, 0);
    cbd_events *events;
    CHECK_STATUS(cbd_events_open(s.stage, NULL, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK_STATUS(cbd_events_open(NULL, &events, &error), CBD_STATUS_INVALID_ARGUMENT);
    CHECK(events == NULL && cbd_events_fileno(NULL) == -1);
    CHECK_STATUS(cbd_events_drain(NULL, NULL, &error), CBD_STATUS_INVALID_HANDLE);
    cbd_stage_close(s.stage);
    CHECK_STATUS(cbd_events_open(s.stage, &events, &error), CBD_STATUS_SESSION_ENDED);
    end(&s);
}

/* A seal between any two steps of drain and wait shows. */
static void no_epoch_is_missed(void)
{
    struct scene s = begin(0, 0);
    int loop = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event one = {.events = EPOLLIN}; /* drained at once: level or edge is the same */
    CHECK(loop >= 0 && epoll_ctl(loop, EPOLL_CTL_ADD, cbd_events_fileno(s.events), &one) == 0);
    for (uint64_t n = 1; n <= 3000; n++) {
        uint64_t seen = 0;
        fake_epoch(s.f, n);
        while (seen < n) {
            CHECK(epoll_wait(loop, &one, 1, SECONDS(10)) == 1);
            CHECK_STATUS(cbd_events_drain(s.events, &seen, &error), CBD_STATUS_OK);
        }
    }
    close(loop);
    end(&s);
}

/* What is to happen in a drain of `of`, just before the descriptor is cleared. */
static struct meeting {
    struct fake *fake;
    cbd_stage *stage;
    cbd_events *of;
    uint64_t seal; /* 0: nothing is sealed */
    bool hang_up;
} meeting;

static void meet(void)
{
    cbd_events *events = meeting.of;
    meeting.of = NULL; /* once */
    if (meeting.seal != 0)
        fake_epoch(meeting.fake, meeting.seal);
    if (meeting.hang_up) {
        fake_hang_up(meeting.fake, NULL);
        for (int i = 0; load32(&meeting.stage->events.gone) == 0; i++, usleep(1000))
            CHECK(i < SECONDS(10)); /* what the thread has to tell, it told */
    }
    CHECK(readable(events, SECONDS(10)));
}

ssize_t __real_read(int fd, void *to, size_t bytes);
ssize_t __wrap_read(int fd, void *to, size_t bytes);
ssize_t __wrap_read(int fd, void *to, size_t bytes)
{
    if (meeting.of != NULL && fd == cbd_events_fileno(meeting.of))
        meet();
    return __real_read(fd, to, bytes);
}

/* The wake-up of this seal is cleared with the one that was there: the epoch has to be looked at afterwards. */
static void an_epoch_sealed_while_draining_is_not_missed(void)
{
    struct scene s = begin(0, 0);
    for (uint64_t n = 1; n <= 9; n += 2) {
        uint64_t epoch = 0;
        news(&s, n);
        meeting = (struct meeting){.fake = s.f, .stage = s.stage, .of = s.events, .seal = n + 1};
        CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), CBD_STATUS_OK);
        CHECK(meeting.of == NULL && epoch == n + 1);
        CHECK(quiet(s.events) == n + 1);
    }
    end(&s);
}

/* The thread tells the end once, and then is gone: the drain that clears that tells it again. */
static void an_end_while_draining_makes_it_readable_again(void)
{
    for (uint64_t sealed = 0; sealed <= 4; sealed += 4) {
        struct scene s = begin(0, CBD_REATTACH_NEVER);
        uint64_t epoch = 9;
        news(&s, 3);
        meeting = (struct meeting){.fake = s.f, .stage = s.stage, .of = s.events, .seal = sealed, .hang_up = true};
        CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), sealed ? CBD_STATUS_OK : CBD_STATUS_SESSION_ENDED);
        CHECK(meeting.of == NULL && epoch == sealed && readable(s.events, 0));
        CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), CBD_STATUS_SESSION_ENDED);
        CHECK(readable(s.events, 0));
        end(&s);
    }
}

struct draining {
    cbd_events *events;
    uint64_t last;
};

static void *drain_until(void *context)
{
    struct draining *d = context;
    wait_for_epoch(d->events, d->last);
    return NULL;
}

static void no_epoch_is_missed_while_seals_go_on(void)
{
    struct scene s = connected(0, 0);
    struct draining d[3];
    pthread_t loops[3];
    for (int i = 0; i < 3; i++) {
        d[i] = (struct draining){events_of(s.stage), 5000};
        CHECK(pthread_create(&loops[i], NULL, drain_until, &d[i]) == 0);
    }
    for (uint64_t n = 1; n <= 5000; n++)
        fake_epoch(s.f, n); /* the last one shows, whatever came before */
    for (int i = 0; i < 3; i++) {
        pthread_join(loops[i], NULL);
        cbd_events_release(d[i].events);
    }
    end(&s);
}

/* E12: a reader is not asleep for ever when the broker goes away. */
static void the_end_is_told_and_stays(void)
{
    for (int said = 0; said < 2; said++) {
        struct scene s = begin(0, CBD_REATTACH_NEVER);
        uint64_t epoch = 9;
        news(&s, 3);
        fake_hang_up(s.f, said ? "no more" : NULL);
        while (!atomic_load(&s.stage->ended))
            usleep(1000); /* by the thread */
        fake_epoch(s.f, 4); /* the last one; nobody has looked since */
        CHECK(readable(s.events, SECONDS(10)));
        CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), CBD_STATUS_OK);
        CHECK(epoch == 4 && readable(s.events, 0));
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), CBD_STATUS_SESSION_ENDED);
            CHECK(epoch == 0 && strstr(error.text, said ? "no more" : "hung up") != NULL && readable(s.events, SECONDS(10)));
        }
        cbd_events *late;
        CHECK_STATUS(cbd_events_open(s.stage, &late, &error), CBD_STATUS_SESSION_ENDED);
        cbd_stage_release(s.stage);
        CHECK_STATUS(cbd_events_drain(s.events, &epoch, &error), CBD_STATUS_SESSION_ENDED);
        cbd_events_release(s.events); /* after the stage */
        fake_stop(s.f);
    }
}

/* B1: it is told of the loss and of the next broker, and epochs go on. */
static void a_restart_is_followed(void)
{
    struct scene s = begin(CBD_FEATURE_RECOVERY, 0);
    news(&s, 3);
    fake_die(s.f);
    CHECK(readable(s.events, SECONDS(10)) && quiet(s.events) == 3);
    news(&s, 4); /* sealed as the last thing, or by a broker that has not taken us up yet */
    fake_rise(s.f);
    do /* it may have been told of the death twice */
        CHECK(readable(s.events, SECONDS(10)) && quiet(s.events) == 4); /* by nobody's wait but the thread's */
    while (atomic_load(&s.stage->reattach.link) != LINK_UP);
    CHECK(cbd_stage_is_alive(s.stage));
    fake_epoch(s.f, 5);
    wait_for_epoch(s.events, 5);
    end(&s);
}

static void no_broker_in_time_is_the_end(void)
{
    struct scene s = begin(CBD_FEATURE_RECOVERY, 300000000);
    fake_die(s.f);
    cbd_status status = CBD_STATUS_OK;
    while (status == CBD_STATUS_OK) {
        CHECK(readable(s.events, SECONDS(10)));
        status = cbd_events_drain(s.events, NULL, &error);
    }
    CHECK(status == CBD_STATUS_SESSION_ENDED && strstr(error.text, "within 300 ms") != NULL && readable(s.events, 0));
    end(&s);
}

static void *close_soon(void *stage)
{
    usleep(20000);
    cbd_stage_close(stage);
    return NULL;
}

static void closing_wakes_who_waits(void)
{
    struct scene s = begin(0, 0);
    pthread_t closer;
    CHECK(pthread_create(&closer, NULL, close_soon, s.stage) == 0);
    CHECK(readable(s.events, SECONDS(10)));
    pthread_join(closer, NULL);
    CHECK_STATUS(cbd_events_drain(s.events, NULL, &error), CBD_STATUS_SESSION_ENDED);
    CHECK(strstr(error.text, "closed") != NULL && readable(s.events, 0));
    end(&s);
}

/* No thread that was not asked for, none that outlives its events, and none that is waited for: stops would take the
 * thread's turn of 100 ms, all of them. */
static void threads_and_descriptors_come_and_go(void)
{
    struct scene s = connected(0, 0);
    cbd_query *root;
    CHECK_STATUS(cbd_root_query(s.stage, &root, &error), CBD_STATUS_OK); /* the broker is done with our hello */
    cbd_query_release(root);
    int threads_before = threads(), before = descriptors();
    int quick = 0;
    for (int i = 0; i < 300; i++) {
        cbd_events *first = events_of(s.stage), *second = events_of(s.stage);
        CHECK(threads() == threads_before + 1 && descriptors() == before + 2); /* one for both */
        cbd_events_release(i % 2 ? first : second);
        CHECK(threads() == threads_before + 1);
        usleep(1000); /* it sleeps by now */
        uint64_t begin = cbdi_now_ns();
        cbd_events_release(i % 2 ? second : first);
        quick += cbdi_now_ns() - begin < 50000000;
        CHECK(threads_become(threads_before) && descriptors() == before);
    }
    CHECK(quick >= 100);
    s.events = events_of(s.stage);
    cbd_stage_close(s.stage);
    CHECK(threads_become(threads_before)); /* and the descriptor stays: a loop may be waiting for it */
    CHECK(fcntl(cbd_events_fileno(s.events), F_GETFD) >= 0);
    end(&s);
}

static void *open_and_release(void *stage)
{
    for (int i = 0; i < 200; i++)
        cbd_events_release(events_of(stage));
    return NULL;
}

static void threads_of_the_program_may_open_at_once(void)
{
    struct scene s = begin(0, 0);
    pthread_t at[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&at[i], NULL, open_and_release, s.stage) == 0);
    for (uint64_t n = 1; n <= 500; n++)
        fake_epoch(s.f, n);
    for (int i = 0; i < 3; i++)
        pthread_join(at[i], NULL);
    wait_for_epoch(s.events, 500);
    end(&s);
}

/* I4: the parent's events are not the child's to take, and it keeps none of its descriptors. */
static void a_forked_child_has_none(void)
{
    struct scene s = begin(0, 0);
    cbd_events *released = events_of(s.stage);
    fake_epoch(s.f, 2);
    CHECK(readable(s.events, SECONDS(10)));
    int fd = cbd_events_fileno(s.events);
    pid_t child = fork();
    if (child == 0) {
        cbd_events *own = (cbd_events *)1;
        bool fine = cbd_events_fileno(s.events) == -1 && fcntl(fd, F_GETFD) == -1 &&
                    cbd_events_drain(s.events, NULL, &error) == CBD_STATUS_SESSION_ENDED && strstr(error.text, "parent") != NULL &&
                    cbd_events_open(s.stage, &own, &error) == CBD_STATUS_SESSION_ENDED && own == NULL && threads() == 3; /* ".", "..", one */
        cbd_events_release(released);
        cbd_events_release(s.events);
        cbd_stage_release(s.stage);
        if (fine)
            fake_child_ends();
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(readable(s.events, 0) && quiet(s.events) == 2); /* the parent's are as they were */
    fake_epoch(s.f, 3);
    wait_for_epoch(s.events, 3);
    cbd_events_release(released);
    end(&s);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    RUN(it_is_a_level);
    RUN(arguments_are_checked);
    RUN(no_epoch_is_missed);
    RUN(an_epoch_sealed_while_draining_is_not_missed);
    RUN(an_end_while_draining_makes_it_readable_again);
    atomic_store(&fake_shaking, 4);
    RUN(no_epoch_is_missed_while_seals_go_on);
    RUN(threads_of_the_program_may_open_at_once);
    atomic_store(&fake_shaking, 0);
    RUN(the_end_is_told_and_stays);
    RUN(a_restart_is_followed);
    RUN(no_broker_in_time_is_the_end);
    RUN(closing_wakes_who_waits);
    RUN(threads_and_descriptors_come_and_go);
    RUN_ON_LINUX(a_forked_child_has_none, "a child has threads of its own");
    return 0;
}
