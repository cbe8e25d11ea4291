/* The attach socket: messages with descriptors, and the proof that the broker
 * lives. A message is one fixed struct (protocol/attach.go). A broker that ends the session says
 * so in a last ErrorReply and hangs up; a hang-up without one is a broker that died or is being replaced,
 * and the session waits for the next one (reattach.c).
 *
 * A broker that is stopped answers nothing: every wait here has a deadline.
 */
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int cbdi_send(int socket, const void *message, size_t bytes)
{
    for (;;) {
        ssize_t sent = send(socket, message, bytes, MSG_NOSIGNAL); /* a broker that is gone must not raise SIGPIPE */
        if (sent == (ssize_t)bytes)
            return 0;
        if (sent >= 0)
            return EMSGSIZE;
        if (errno != EINTR)
            return errno;
    }
}

int cbdi_wait_readable(int socket, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = cbdi_now_ns();
        if (now >= deadline_ns)
            return ETIMEDOUT;
        uint64_t left_ms = (deadline_ns - now) / 1000000 + 1;
        struct pollfd look = {.fd = socket, .events = POLLIN};
        int ready = poll(&look, 1, left_ms > 1000 ? 1000 : (int)left_ms);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return errno;
    }
}

int cbdi_receive(int socket, void *message, size_t room, size_t *bytes, int *fds, size_t fd_room, size_t *fd_count,
                 uint64_t deadline_ns)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(16 * sizeof(int))];
    } control;
    struct iovec place = {.iov_base = message, .iov_len = room};
    ssize_t got;
    struct msghdr header;

    *bytes = 0;
    *fd_count = 0;
    do {
        int failed = deadline_ns == 0 ? 0 : cbdi_wait_readable(socket, deadline_ns);
        if (failed)
            return failed;
        memset(&header, 0, sizeof header);
        header.msg_iov = &place;
        header.msg_iovlen = 1;
        header.msg_control = &control;
        header.msg_controllen = sizeof control;
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && (errno == EINTR || (errno == EAGAIN && deadline_ns != 0)));
    if (got < 0)
        return errno == ECONNRESET ? EPIPE : errno;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c != NULL; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (*fd_count < fd_room)
                fds[(*fd_count)++] = fd;
            else
                close(fd);
        }
    }
    if (got == 0)
        return EPIPE;
    *bytes = (size_t)got;
    return 0;
}

void cbdi_end(cbd_stage *stage, cbd_status status, const char *format, ...)
{
    char text[OP_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (wanted < 0)
        text[0] = 0;

    bool first;
    pthread_mutex_lock(&stage->state_lock);
    if ((first = !atomic_load(&stage->ended))) {
        stage->ended_status = status;
        cbdi_copy_text(stage->ended_text, sizeof stage->ended_text, text, strlen(text));
        atomic_store(&stage->ended, 1);
    }
    pthread_mutex_unlock(&stage->state_lock);
    if (first)
        cbdi_log(status == CBD_STATUS_INTERNAL ? CBD_LOG_ERROR : CBD_LOG_WARNING, CBDI_LOG_SESSION, "stage %s: the session is over: %s",
                 stage->name, text);
    cbdi_ring_wake(stage);
}

cbd_status cbdi_ended(cbd_stage *stage, cbd_error *error)
{
    if (atomic_load(&stage->foreign))
        return cbdi_fail(error, CBD_STATUS_SESSION_ENDED,
                         "this stage belongs to the parent process, which connected before the fork; connect anew");
    if (atomic_load(&stage->closed))
        return cbdi_fail(error, CBD_STATUS_SESSION_ENDED, "this stage was closed");
    if (!atomic_load(&stage->ended))
        return CBD_STATUS_OK;
    pthread_mutex_lock(&stage->state_lock);
    cbd_status status = cbdi_fail(error, stage->ended_status, "%s", stage->ended_text);
    pthread_mutex_unlock(&stage->state_lock);
    return status;
}

/* What an unasked message means: the end, with the broker's reason. */
static void last_message(cbd_stage *stage, const void *message, size_t bytes)
{
    cbd_abi_error_reply reply;
    cbd_abi_message_header header;
    char text[sizeof reply.text + 1];

    memset(&header, 0, sizeof header);
    memcpy(&header, message, bytes < sizeof header ? bytes : sizeof header);
    if (header.magic != CBD_MAGIC_MESSAGE || header.type != CBD_MESSAGE_ERROR_REPLY || bytes < sizeof reply) {
        cbdi_end(stage, CBD_STATUS_INTERNAL,
                 "the broker sent a message of type %u, magic 0x%08x, %zu bytes, that nobody asked for", header.type,
                 header.magic, bytes);
        return;
    }
    memcpy(&reply, message, sizeof reply);
    cbdi_copy_text(text, sizeof text, reply.text, sizeof reply.text);
    if (reply.status == CBD_STATUS_BROKER_RESTARTED) /* another one comes */
        return;
    if (reply.status == CBD_STATUS_SESSION_ENDED) /* what we say of it already */
        cbdi_end(stage, CBD_STATUS_SESSION_ENDED, "the broker ended this session: %s", text);
    else
        cbdi_end(stage, CBD_STATUS_SESSION_ENDED, "the broker ended this session: %s: %s", cbd_status_name(reply.status), text);
}

/* Whether there is a broker to talk to; with socket_lock held. */
static bool talks(cbd_stage *stage)
{
    uint32_t link = atomic_load(&stage->reattach.link);
    return stage->socket >= 0 && !atomic_load(&stage->ended) && (link == LINK_UP || link == LINK_ADOPTED);
}

void cbdi_look_at_socket(cbd_stage *stage)
{
    unsigned char message[CBD_MESSAGE_BYTES_MAX];
    size_t bytes, fds;

    if (pthread_mutex_trylock(&stage->socket_lock) != 0)
        return; /* somebody talks to the broker just now and will see */
    if (talks(stage)) {
        int failed = cbdi_receive(stage->socket, message, sizeof message, &bytes, NULL, 0, &fds, 0);
        if (failed == 0)
            last_message(stage, message, bytes);
        else if (failed != EAGAIN && failed != EWOULDBLOCK)
            cbdi_hung_up(stage);
    }
    cbdi_reattach_step(stage);
    pthread_mutex_unlock(&stage->socket_lock);
    if (atomic_load(&stage->reattach.link) == LINK_ADOPTED && pthread_mutex_trylock(&stage->cache_lock) == 0) {
        cbdi_reattach_settle(stage); /* who holds the lock may wait for it, and does it then */
        pthread_mutex_unlock(&stage->cache_lock);
    }
}

/* Asks once; true when an answer came. */
static bool ask(cbd_stage *stage, const void *request, size_t request_bytes, uint32_t reply_type, void *reply,
                size_t reply_bytes, int *fd)
{
    unsigned char message[CBD_MESSAGE_BYTES_MAX];
    cbd_abi_message_header header;
    size_t bytes = 0, fds = 0;
    bool answered = false;

    pthread_mutex_lock(&stage->socket_lock);
    if (talks(stage)) {
        int failed;
        failed = cbdi_send(stage->socket, request, request_bytes);
        if (failed == 0 || failed == EPIPE) /* a last message may wait even where sending fails */
            failed = cbdi_receive(stage->socket, message, sizeof message, &bytes, fd, 1, &fds,
                                  cbdi_now_ns() + stage->timeout_ns);
        memset(&header, 0, sizeof header);
        memcpy(&header, message, bytes < sizeof header ? bytes : sizeof header);
        if (failed == ETIMEDOUT) /* a late reply would be taken for the next one's */
            cbdi_end(stage, CBD_STATUS_SESSION_ENDED, "the broker did not answer for %llu ms",
                     (unsigned long long)(stage->timeout_ns / 1000000));
        else if (failed)
            cbdi_hung_up(stage);
        else if (header.type != reply_type || header.magic != CBD_MAGIC_MESSAGE || bytes < reply_bytes)
            last_message(stage, message, bytes);
        else
            answered = true;
    }
    pthread_mutex_unlock(&stage->socket_lock);
    if (answered)
        memcpy(reply, message, reply_bytes);
    else if (*fd >= 0)
        close(*fd);
    if (!answered)
        *fd = -1;
    return answered;
}

cbd_status cbdi_ask(cbd_stage *stage, const void *request, size_t request_bytes, uint32_t reply_type, void *reply,
                    size_t reply_bytes, int *fd, cbd_error *error)
{
    *fd = -1;
    for (;;) {
        bool answered = ask(stage, request, request_bytes, reply_type, reply, reply_bytes, fd);
        cbd_status status = cbdi_ended(stage, error);
        if (answered && status == CBD_STATUS_OK)
            return CBD_STATUS_OK;
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        if (status == CBD_STATUS_OK && stage->reattach.settling)
            status = cbdi_reattach_refuse(stage, error); /* lost again: another turn begins */
        if (status == CBD_STATUS_OK)
            status = cbdi_reattach_wait(stage, true, error);
        if (status != CBD_STATUS_OK)
            return status;
    }
}
