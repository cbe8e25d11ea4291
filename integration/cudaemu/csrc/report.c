/* What each process holds, in a file of its own under CUDAEMU_DIR that a test can read, and the memory that all of them share.
 *
 * The owner keeps an exclusive lock on its file, which the kernel drops when it dies: who can take a shared one knows that
 * the process is gone, and with it all that the kernel releases.
 *
 *	offset  0  magic "CUDAEMU1"
 *	        8  pid
 *	       16  contexts, allocations, bytes, imports, events, imported events, streams, registered ranges: 8 bytes each
 *	       80  bytes in use, by device, 8 bytes each
 *
 * All are words of the machine's order. The owner writes them, one at a time.
 */
#include "emu.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

struct report {
    uint64_t magic, pid;
    uint64_t counts[COUNTS];
    uint64_t used[DEVICES_MAX];
};

_Static_assert(sizeof(struct report) == 144, "as report.go reads it");

static const uint64_t report_magic = 0x31554d4541445543; /* "CUDAEMU1" */
static struct report alone, *report = &alone;
static int machine = -1; /* the file whose lock orders what processes do to the budget */

static void lock_machine(int operation)
{
    if (machine >= 0 && flock(machine, operation) != 0)
        emu_trap("the lock in %s cannot be taken or left", emu_settings.dir);
}

CUresult emu_report_open(void)
{
    if (emu_settings.dir == NULL)
        return CU_OK;
    char path[4096];
    snprintf(path, sizeof path, "%s/machine", emu_settings.dir);
    machine = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    snprintf(path, sizeof path, "%s/process-%d", emu_settings.dir, (int)getpid());
    lock_machine(LOCK_EX);
    unlink(path); /* of an earlier process with this number */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    void *page = MAP_FAILED;
    if (machine >= 0 && fd >= 0 && flock(fd, LOCK_EX) == 0 && ftruncate(fd, sizeof *report) == 0)
        page = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        emu_trap("CUDAEMU_DIR=%s: no file can be made there", emu_settings.dir); /* a leak test would test nothing */
    report = page;
    report->pid = (uint64_t)getpid();
    __atomic_store_n(&report->magic, report_magic, __ATOMIC_RELEASE);
    lock_machine(LOCK_UN);
    return CU_OK; /* fd stays open, for its lock */
}

void emu_count(enum count what, int64_t by)
{
    __atomic_add_fetch(&report->counts[what], (uint64_t)by, __ATOMIC_RELAXED);
}

/* ---- the memory of a device -------------------------------------------------------------------------------------------- */

/* What another process's file says, 0 for one that is gone. */
static uint64_t used_by(const char *path, int device)
{
    struct report other;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    bool alive = flock(fd, LOCK_SH | LOCK_NB) != 0;
    bool whole = pread(fd, &other, sizeof other, 0) == (ssize_t)sizeof other && other.magic == report_magic;
    close(fd);
    return alive && whole ? other.used[device] : 0;
}

/* Memory whose exporter died counts as free, though importers may still hold it. */
static uint64_t used(int device)
{
    uint64_t sum = report->used[device];
    DIR *dir = machine >= 0 ? opendir(emu_settings.dir) : NULL;
    char path[4096], own[32];
    snprintf(own, sizeof own, "process-%d", (int)getpid());
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "process-", 8) != 0 || strcmp(entry->d_name, own) == 0)
            continue;
        int length = snprintf(path, sizeof path, "%s/%s", emu_settings.dir, entry->d_name);
        if (length > 0 && length < (int)sizeof path)
            sum += used_by(path, device);
    }
    if (dir)
        closedir(dir);
    return sum;
}

uint64_t emu_budget_used(int device)
{
    lock_machine(LOCK_EX);
    uint64_t sum = used(device);
    lock_machine(LOCK_UN);
    return sum;
}

bool emu_budget_take(int device, uint64_t bytes)
{
    lock_machine(LOCK_EX);
    uint64_t before = used(device);
    bool fits = before <= emu_settings.memory_bytes && bytes <= emu_settings.memory_bytes - before;
    if (fits)
        report->used[device] += bytes;
    lock_machine(LOCK_UN);
    return fits;
}

void emu_budget_give(int device, uint64_t bytes)
{
    lock_machine(LOCK_EX);
    report->used[device] -= bytes;
    lock_machine(LOCK_UN);
}
