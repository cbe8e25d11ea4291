/* Finding a stage's runtime directory (I5): $CALLBOARD_RUNTIME_DIR, which holds the
 * socket itself, else $XDG_RUNTIME_DIR/callboard/<stage>, else
 * /tmp/callboard-<uid>/<stage>, of this user and then of those in $CALLBOARD_TRUST_UID. A directory of
 * another user, one that others may list or change, or one reached by a symbolic link is not entered, nor is
 * one below such a directory. The error lists every place with what was wrong there.
 */
#include "client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <fcntl.h>
#include <unistd.h>

struct report {
    char text[360];
    size_t used;
    cbd_status status; /* the gravest: DENIED before NOT_FOUND */
};

static void note(struct report *report, cbd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void note(struct report *report, cbd_status status, const char *format, ...)
{
    va_list arguments;
    size_t room = sizeof report->text - report->used;
    va_start(arguments, format);
    int wrote = vsnprintf(report->text + report->used, room, format, arguments);
    va_end(arguments);
    if (wrote > 0)
        report->used += (size_t)wrote < room ? (size_t)wrote : room - 1;
    if (status == CBD_STATUS_ACCESS_DENIED)
        report->status = status;
}

/* The next number of $CALLBOARD_TRUST_UID, from *list on; false at its end, and at what is none. */
static bool next_trusted(const char **list, unsigned *uid)
{
    char *end;
    if (*list == NULL)
        return false;
    *list += strspn(*list, ", ");
    unsigned long number = strtoul(*list, &end, 10);
    if (end == *list || **list == '-' || number >= UINT32_MAX)
        return false;
    *list = end;
    *uid = (unsigned)number;
    return true;
}

static bool trusted(uid_t owner)
{
    const char *list = getenv("CALLBOARD_TRUST_UID");
    unsigned uid;
    while (next_trusted(&list, &uid))
        if (uid == owner)
            return true;
    return false;
}

/* Opens a directory if only we, or a user whom we trust, may change it; -1 with a note of why not. */
static int open_own(int at, const char *name, const char *shown, struct report *report)
{
    struct stat about;
    const char *first = report->used ? "; " : "";
    int dir = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) {
        bool link = errno == ENOTDIR || errno == ELOOP;
        note(report, link ? CBD_STATUS_ACCESS_DENIED : CBD_STATUS_NOT_FOUND, "%s%s: %s", first, shown,
             link ? "is a symbolic link or no directory" : strerror(errno));
        return -1;
    }
    if (fstat(dir, &about) != 0)
        note(report, CBD_STATUS_NOT_FOUND, "%s%s: %s", first, shown, strerror(errno));
    else if (about.st_uid != geteuid() && !trusted(about.st_uid))
        note(report, CBD_STATUS_ACCESS_DENIED,
             "%s%s: belongs to uid %u, not to this process's uid %u; CALLBOARD_TRUST_UID=%u trusts it", first, shown,
             (unsigned)about.st_uid, (unsigned)geteuid(), (unsigned)about.st_uid);
    else if ((about.st_mode & 0700) != 0700 || (about.st_mode & 0026) != 0)
        note(report, CBD_STATUS_ACCESS_DENIED, "%s%s: has mode %04o, expected 0700", first, shown,
             (unsigned)(about.st_mode & 0777));
    else
        return dir;
    close(dir);
    return -1;
}

void cbdi_limit_sending(int socket, uint64_t timeout_ns)
{
    struct timeval limit = {(time_t)(timeout_ns / 1000000000u), (suseconds_t)(timeout_ns / 1000u % 1000000u)};
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* The socket in parent/name (both must be ours), or in `name` where parent is NULL;
 * -1 with a note of why not. */
static int connect_in(const char *parent, const char *name, uint64_t timeout_ns, char directory[4096], struct report *report)
{
    int failed = -1, dir;
    if (parent == NULL) {
        snprintf(directory, 4096, "%s", name);
        dir = open_own(AT_FDCWD, name, directory, report);
    } else {
        snprintf(directory, 4096, "%s/%s", parent, name);
        int above = open_own(AT_FDCWD, parent, parent, report);
        if (above < 0)
            return -1;
        dir = open_own(above, name, directory, report);
        close(above);
    }
    if (dir < 0)
        return -1;
    const char *first = report->used ? "; " : "";

    /* By the descriptor: it is the directory that was checked, and its name may be
     * longer than a socket's address has room for. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/attach.sock", dir);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        cbdi_limit_sending(fd, timeout_ns); /* a stopped broker's backlog fills up */
        do
            failed = connect(fd, (struct sockaddr *)&address, sizeof address);
        while (failed != 0 && errno == EINTR);
    }
    if (fd < 0 || failed) {
        int why = errno;
        note(report, why == EACCES || why == EPERM ? CBD_STATUS_ACCESS_DENIED : CBD_STATUS_NOT_FOUND, "%s%s/attach.sock: %s",
             first, directory,
             why == ECONNREFUSED ? "nobody listens (left behind by a broker that is gone)" : strerror(why));
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    close(dir);
    return fd;
}

/* The same, and remembers the place where it was found. */
static int find_in(const char *parent, const char *name, uint64_t timeout_ns, struct place *place, struct report *report)
{
    char directory[4096];
    int fd = connect_in(parent, name, timeout_ns, directory, report);
    if (fd < 0)
        return fd;
    cbdi_copy_text(place->directory, sizeof place->directory, directory, strlen(directory));
    place->parent = parent != NULL ? strdup(parent) : NULL;
    place->leaf = strdup(name); /* without memory: the place is not found again */
    return fd;
}

int cbdi_discover_again(const struct place *place, uint64_t timeout_ns, cbd_error *error)
{
    struct report report = {.status = CBD_STATUS_NOT_FOUND};
    char directory[4096];
    int fd = place->leaf != NULL ? connect_in(place->parent, place->leaf, timeout_ns, directory, &report) : -1;
    if (fd < 0)
        cbdi_fail(error, report.status, "%s", report.text);
    return fd;
}

static bool stage_name_ok(const char *name)
{
    size_t length = strlen(name);
    return length >= 1 && length <= CBD_STAGE_NAME_BYTES_MAX &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == length;
}

int cbdi_discover(const char *name, uint64_t timeout_ns, struct place *place, cbd_error *error)
{
    const char *named = getenv("CALLBOARD_STAGE"), *own = getenv("CALLBOARD_RUNTIME_DIR"),
               *xdg = getenv("XDG_RUNTIME_DIR");
    struct report report = {.status = CBD_STATUS_NOT_FOUND};
    char parent[2048];
    int fd = -1;

    if (name == NULL || name[0] == 0)
        name = named;
    memset(place, 0, sizeof *place);
    place->named = name != NULL && name[0] != 0;
    if (!place->named)
        name = "default";
    if (!stage_name_ok(name)) {
        cbdi_fail(error, CBD_STATUS_INVALID_ARGUMENT, "stage name \"%.64s\": expected 1 to %u of A-Z a-z 0-9 _ -", name,
                  CBD_STAGE_NAME_BYTES_MAX);
        return -1;
    }
    memcpy(place->name, name, strlen(name));
    if (own != NULL && own[0] != 0) {
        fd = find_in(NULL, own, timeout_ns, place, &report); /* the only place, then */
    } else {
        if (xdg != NULL && xdg[0] == '/') {
            snprintf(parent, sizeof parent, "%s/callboard", xdg);
            fd = find_in(parent, name, timeout_ns, place, &report);
        }
        if (fd < 0) {
            snprintf(parent, sizeof parent, "/tmp/callboard-%u", (unsigned)geteuid());
            fd = find_in(parent, name, timeout_ns, place, &report);
        }
        const char *list = getenv("CALLBOARD_TRUST_UID");
        for (unsigned uid; fd < 0 && next_trusted(&list, &uid);) {
            if (uid == geteuid())
                continue;
            snprintf(parent, sizeof parent, "/tmp/callboard-%u", uid);
            fd = find_in(parent, name, timeout_ns, place, &report);
        }
    }
    if (fd < 0)
        cbdi_fail(error, report.status,
                  "no broker serves stage \"%s\" here; looked at %s. Start one with: callboard serve --stage %s", name,
                  report.text, name);
    return fd;
}
