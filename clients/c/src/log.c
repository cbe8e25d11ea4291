/* The log callback (behaviour 316 to 320): one for the process, called on a thread of its own, one record at a time.
 *
 *     cbdi_log ──▶ a queue of QUEUE records ──▶ the thread ──▶ the callback
 *
 * Who logs never waits for the callback: where the queue is full, the record is dropped and counted, and the count is
 * told. Nothing is logged where data goes; without a callback a record costs one load. log_lock is a leaf, and nobody
 * who logs holds the descriptors' lock (fork takes both).
 */
#include "client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define QUEUE 256
#define CHANNELS_BYTES_MAX 255

struct record {
    uint32_t severity;
    uint64_t time_ns;
    char text[OP_TEXT_BYTES];
};

static const char *const channel_names[CBDI_LOG_CHANNELS] = {"session", "memory", "handle", "call"};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint32_t threshold = CBD_LOG_NONE; /* NONE: there is no callback, or nothing is wanted */
static enum { NONE, RUNNING, REMOVING } state;
static pthread_t thread;
static cbd_log_callback callback;
static void *callback_context;
static uint32_t channels; /* a bit for each */
static uint64_t put, taken, dropped;
static struct record queue[QUEUE];

/* ---- fork: the thread is not the child's -------------------------------------------------- */

static void before_fork(void) { pthread_mutex_lock(&log_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&log_lock); }

static void make_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void after_fork_in_child(void)
{
    state = NONE;
    atomic_store(&threshold, CBD_LOG_NONE);
    put = taken = dropped = 0;
    make_condition();
    pthread_mutex_unlock(&log_lock);
}

static void prepare(void)
{
    make_condition();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- the thread ---------------------------------------------------------------------------- */

static void deliver(const struct record *record)
{
    pthread_mutex_unlock(&log_lock);
    callback(callback_context, record->severity, record->time_ns, record->text);
    pthread_mutex_lock(&log_lock);
}

static uint64_t now_of_day_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *run(void *Unused)
{
    (void)Unused;
    pthread_mutex_lock(&log_lock);
    while (state == RUNNING || put != taken || dropped != 0) {
        if (put == taken && dropped == 0) {
            pthread_cond_wait(&changed, &log_lock);
            continue;
        }
        struct record record;
        if (put != taken) {
            record = queue[taken % QUEUE];
        } else {
            record = (struct record){.severity = CBD_LOG_WARNING, .time_ns = now_of_day_ns()};
            snprintf(record.text, sizeof record.text, "log: %llu records were dropped, since the callback was slower than they came",
                     (unsigned long long)dropped);
            dropped = 0;
            put++; /* so that a flush waits for it */
        }
        deliver(&record);
        taken++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&log_lock);
    return NULL;
}

/* ---- logging --------------------------------------------------------------------------------- */

void cbdi_log(uint32_t severity, enum log_channel channel, const char *format, ...)
{
    if (severity < atomic_load(&threshold))
        return;
    struct record record = {.severity = severity, .time_ns = now_of_day_ns()};
    int head = snprintf(record.text, sizeof record.text, "%s: ", channel_names[channel]);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(record.text + head, sizeof record.text - (size_t)head, format, arguments);
    va_end(arguments);
    record.text[cbdi_utf8_prefix(record.text, strlen(record.text))] = 0;

    pthread_mutex_lock(&log_lock);
    if (state == RUNNING && (channels & 1u << channel) && severity >= atomic_load(&threshold)) {
        if (put - taken == QUEUE)
            dropped++;
        else
            queue[put++ % QUEUE] = record;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&log_lock);
}

/* ---- installing, flushing, removing ------------------------------------------------------------ */

/* "session, handle": names of [a-z0-9_.-]. One that no channel has is fine, and matches nothing. */
static cbd_status read_channels(const char *text, uint32_t *mask, cbd_error *error)
{
    *mask = text == NULL || text[0] == 0 ? UINT32_MAX : 0;
    if (*mask != 0)
        return CBD_STATUS_OK;
    if (strlen(text) > CHANNELS_BYTES_MAX)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "channels has %zu bytes: expected at most %d", strlen(text), CHANNELS_BYTES_MAX);
    for (const char *at = text;; at++) {
        at += strspn(at, " ");
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_.-");
        const char *end = at + length + strspn(at + length, " ");
        if (length == 0 || (*end != ',' && *end != 0))
            return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT,
                             "channels \"%.100s\" at byte %zu: expected names of a-z 0-9 _ . - with commas between them", text,
                             (size_t)(length == 0 ? at - text : end - text));
        for (uint32_t i = 0; i < CBDI_LOG_CHANNELS; i++)
            if (strlen(channel_names[i]) == length && memcmp(channel_names[i], at, length) == 0)
                *mask |= 1u << i;
        if (*end == 0)
            return CBD_STATUS_OK;
        at = end;
    }
}

cbd_status cbd_log_install(cbd_log_callback call, void *context, uint32_t least, const char *names, cbd_error *error)
{
    uint32_t mask;
    if (call == NULL)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "callback is NULL");
    if (least > CBD_LOG_NONE)
        return cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "threshold is %u: expected 0 (debug) to %u (none)", least, (unsigned)CBD_LOG_NONE);
    cbd_status status = read_channels(names, &mask, error);
    if (status != CBD_STATUS_OK)
        return status;
    pthread_once(&once, prepare);
    pthread_mutex_lock(&log_lock);
    if (state != NONE) {
        status = cbdi_fail(error, CBD_STATUS_ALREADY_EXISTS, "this process has a log callback: remove it first");
    } else {
        callback = call;
        callback_context = context;
        channels = mask;
        put = taken = dropped = 0;
        state = RUNNING;
        int failed = cbdi_thread_start(&thread, run, NULL);
        if (failed) {
            state = NONE;
            status = cbdi_fail(error, CBD_STATUS_OUT_OF_MEMORY, "no thread for the log callback: %s", strerror(failed));
        } else {
            atomic_store(&threshold, least);
        }
    }
    pthread_mutex_unlock(&log_lock);
    return status;
}

/* With log_lock held. */
static bool is_callback(void) { return state != NONE && pthread_equal(thread, pthread_self()); }

cbd_status cbd_log_flush(uint64_t timeout_ns, cbd_error *error)
{
    cbd_status status = CBD_STATUS_OK;
    pthread_once(&once, prepare);
    pthread_mutex_lock(&log_lock);
    uint64_t wanted = put + (dropped != 0), deadline = cbdi_now_ns() + timeout_ns;
    if (deadline < timeout_ns)
        deadline = UINT64_MAX;
    if (is_callback() && taken < wanted)
        status = cbdi_fail(error, CBD_STATUS_OP_FAILED, "flushing the log within its callback: it would wait for itself");
    while (status == CBD_STATUS_OK && state != NONE && taken < wanted) {
        struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};
        int failed = cbdi_now_ns() >= deadline ? ETIMEDOUT : pthread_cond_timedwait(&changed, &log_lock, &until);
        if (failed == ETIMEDOUT && state != NONE && taken < wanted)
            status = cbdi_fail(error, CBD_STATUS_TIMEOUT, "%llu log records are not delivered after %llu ns",
                               (unsigned long long)(wanted - taken), (unsigned long long)timeout_ns);
    }
    pthread_mutex_unlock(&log_lock);
    return status;
}

cbd_status cbd_log_remove(cbd_error *error)
{
    cbd_status status = CBD_STATUS_OK;
    pthread_once(&once, prepare);
    pthread_mutex_lock(&log_lock);
    if (is_callback()) {
        status = cbdi_fail(error, CBD_STATUS_OP_FAILED, "removing the log callback within it: it would wait for itself");
    } else if (state == RUNNING) {
        state = REMOVING; /* what is queued is delivered, nothing more is taken */
        atomic_store(&threshold, CBD_LOG_NONE);
        pthread_cond_broadcast(&changed);
        pthread_t ending = thread;
        pthread_mutex_unlock(&log_lock);
        pthread_join(ending, NULL);
        pthread_mutex_lock(&log_lock);
        state = NONE;
        pthread_cond_broadcast(&changed);
    }
    while (status == CBD_STATUS_OK && state == REMOVING) /* by another thread */
        pthread_cond_wait(&changed, &log_lock);
    pthread_mutex_unlock(&log_lock);
    return status;
}
