/* Calls functions of a driver library, as lines on standard input say, and answers each line with one.
 *
 *	caller path/of/libcuda.so.1
 *
 * A line that begins with "cu" is a call; the answer is its result code. An argument is
 *
 *	&name        the address of a variable: 128 bytes
 *	name+12      what a variable holds in its first 8 bytes, and a bit more or not
 *	=name        the 64-byte handle in a variable, by value
 *	@count @gate @query   a host function, below
 *	0x10, 16     a number
 *
 * Other lines, whose answers are what they find:
 *
 *	show name bytes             in hexadecimal
 *	read name hexadecimal       into the variable
 *	pack name a b …             words into the variable
 *	text name                   the string that it points to
 *	host name bytes             maps memory, zero, and puts its address there
 *	fill name byte count        host memory
 *	differ name byte count      how many bytes of host memory are not byte
 *	peek name                   a byte, of any address: of a device it crashes
 *	open                        lets @gate through, for good
 *	counted                     how often @count ran; queried: what @query was told
 *	thread LINE                 does that line on a thread of its own; fork LINE: in a child process
 */
#include "api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library;

/* ---- variables --------------------------------------------------------------------------------------------------------- */

static struct variable {
    char name[16];
    union {
        uint64_t words[16];
        unsigned char bytes[128];
    };
} variables[64];

static struct variable *variable(const char *name)
{
    for (struct variable *at = variables; at < variables + 64; at++) {
        if (at->name[0] == 0)
            snprintf(at->name, sizeof at->name, "%s", name);
        if (strcmp(at->name, name) == 0)
            return at;
    }
    fprintf(stderr, "too many variables\n");
    exit(2);
}

/* ---- host functions ---------------------------------------------------------------------------------------------------- */

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed = PTHREAD_COND_INITIALIZER;
static int gate_open, counted, queried = -1;

static void count_host(void *user)
{
    (void)user;
    __atomic_add_fetch(&counted, 1, __ATOMIC_RELAXED);
}

static void gate_host(void *user)
{
    (void)user;
    pthread_mutex_lock(&gate_lock);
    while (!gate_open)
        pthread_cond_wait(&gate_changed, &gate_lock);
    pthread_mutex_unlock(&gate_lock);
}

static void query_host(void *user)
{
    CUresult (*query)(CUstream) = (CUresult(*)(CUstream))dlsym(library, "cuStreamQuery");
    __atomic_store_n(&queried, query(user), __ATOMIC_RELAXED);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------- */

static uint64_t value(const char *word)
{
    if (word == NULL) {
        fprintf(stderr, "a word is missing\n");
        exit(2);
    }
    if (word[0] == '&') {
        struct variable *out = variable(word + 1);
        return (uint64_t)(uintptr_t)out->bytes;
    }
    if (strcmp(word, "@count") == 0)
        return (uint64_t)(uintptr_t)count_host;
    if (strcmp(word, "@gate") == 0)
        return (uint64_t)(uintptr_t)gate_host;
    if (strcmp(word, "@query") == 0)
        return (uint64_t)(uintptr_t)query_host;
    if (word[0] >= '0' && word[0] <= '9')
        return strtoull(word, NULL, 0);
    char name[16];
    const char *plus = strchr(word, '+');
    snprintf(name, sizeof name, "%.*s", (int)(plus ? (size_t)(plus - word) : strlen(word)), word);
    return variable(name)->words[0] + (plus ? strtoull(plus + 1, NULL, 0) : 0);
}

/* All arguments are words, which the conventions of amd64 and arm64 pass alike whatever their width. */
static int call(const char *function, char **save)
{
    typedef int (*words)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    void *symbol = dlsym(library, function);
    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    uint64_t argument[6] = {0};
    CUipcMemHandle handle;
    int count = 0, by_value = 0;
    for (char *word; count < 6 && (word = strtok_r(NULL, " ", save)) != NULL;) {
        if (word[0] == '=') {
            memcpy(&handle, variable(word + 1)->bytes, sizeof handle);
            by_value = 1;
        } else {
            argument[count++] = value(word);
        }
    }
    if (by_value) { /* the handle is the second argument, flags the third where there are any */
        if (strcmp(function, "cuIpcOpenEventHandle") == 0) {
            CUipcEventHandle event;
            memcpy(&event, &handle, sizeof event);
            return ((CUresult(*)(CUevent *, CUipcEventHandle))symbol)((CUevent *)(uintptr_t)argument[0], event);
        }
        return ((CUresult(*)(CUdeviceptr *, CUipcMemHandle, unsigned))symbol)((CUdeviceptr *)(uintptr_t)argument[0], handle,
                                                                            (unsigned)argument[1]);
    }
    return ((words)symbol)(argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

static void answer(char *line, char *out, size_t space);

struct job {
    char *line, *out;
    size_t space;
};

static void *on_thread(void *argument)
{
    struct job *job = argument;
    answer(job->line, job->out, job->space);
    return NULL;
}

static void in_child(char *line, char *out, size_t space)
{
    int ends[2];
    if (pipe(ends) != 0)
        exit(2);
    pid_t child = fork();
    if (child == 0) {
        answer(line, out, space);
        _exit(write(ends[1], out, strlen(out)) < 0);
    }
    ssize_t got = read(ends[0], out, space - 1);
    out[got > 0 ? got : 0] = 0;
    close(ends[0]);
    close(ends[1]);
    waitpid(child, NULL, 0);
}

/* ---- lines ------------------------------------------------------------------------------------------------------------- */

static void answer(char *line, char *out, size_t space)
{
    char *save = NULL, *word = strtok_r(line, " ", &save);
    snprintf(out, space, "ok");
    if (word == NULL)
        return;
    if (strncmp(word, "cu", 2) == 0 || strncmp(word, "callboard_", 10) == 0) {
        snprintf(out, space, "%d", call(word, &save));
        return;
    }
    if (strcmp(word, "thread") == 0) {
        pthread_t thread;
        struct job job = {save, out, space};
        if (pthread_create(&thread, NULL, on_thread, &job) != 0)
            exit(2);
        pthread_join(thread, NULL);
        return;
    }
    if (strcmp(word, "fork") == 0) {
        in_child(save, out, space);
        return;
    }
    if (strcmp(word, "open") == 0) {
        pthread_mutex_lock(&gate_lock);
        gate_open = 1;
        pthread_cond_broadcast(&gate_changed);
        pthread_mutex_unlock(&gate_lock);
        return;
    }
    if (strcmp(word, "counted") == 0 || strcmp(word, "queried") == 0) {
        snprintf(out, space, "%d", __atomic_load_n(word[0] == 'c' ? &counted : &queried, __ATOMIC_RELAXED));
        return;
    }
    char *name = strtok_r(NULL, " ", &save);
    if (name == NULL)
        exit(2);
    if (strcmp(word, "show") == 0) {
        uint64_t bytes = value(strtok_r(NULL, " ", &save));
        out[0] = 0;
        for (uint64_t i = 0; i < bytes && 2 * i + 3 < space; i++)
            sprintf(out + 2 * i, "%02x", variable(name)->bytes[i]);
    } else if (strcmp(word, "read") == 0) {
        const char *hex = strtok_r(NULL, " ", &save);
        for (unsigned byte, i = 0; hex && i < 128 && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
            variable(name)->bytes[i] = (unsigned char)byte;
    } else if (strcmp(word, "pack") == 0) {
        unsigned i = 0;
        for (char *at; i < 16 && (at = strtok_r(NULL, " ", &save)) != NULL;)
            variable(name)->words[i++] = value(at);
    } else if (strcmp(word, "text") == 0) {
        const char *text = (const char *)(uintptr_t)value(name);
        snprintf(out, space, "%s", text ? text : "NULL");
    } else if (strcmp(word, "host") == 0) {
        void *memory = mmap(NULL, value(strtok_r(NULL, " ", &save)), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            exit(2);
        variable(name)->words[0] = (uint64_t)(uintptr_t)memory;
    } else if (strcmp(word, "fill") == 0 || strcmp(word, "differ") == 0) {
        unsigned char *memory = (unsigned char *)(uintptr_t)value(name);
        unsigned byte = (unsigned)value(strtok_r(NULL, " ", &save));
        uint64_t count = value(strtok_r(NULL, " ", &save)), different = 0;
        for (uint64_t i = 0; i < count; i++)
            if (word[0] == 'f')
                memory[i] = (unsigned char)byte;
            else
                different += memory[i] != byte;
        if (word[0] == 'd')
            snprintf(out, space, "%llu", (unsigned long long)different);
    } else if (strcmp(word, "peek") == 0) {
        snprintf(out, space, "%d", *(volatile unsigned char *)(uintptr_t)value(name));
    } else {
        fprintf(stderr, "what is %s?\n", word);
        exit(2);
    }
}

/* Ends a process that hangs in a call when the test that runs it is gone. */
static void *watch(void *argument)
{
    pid_t parent = *(pid_t *)argument;
    while (getppid() == parent)
        usleep(200 * 1000);
    _exit(3);
}

int main(int argc, char **argv)
{
    static pid_t parent;
    pthread_t watcher;
    parent = getppid();
    if (pthread_create(&watcher, NULL, watch, &parent) != 0)
        return 2;
    static char line[4096], out[4096];
    library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: caller LIBRARY");
        return 2;
    }
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        answer(line, out, sizeof out);
        printf("%s\n", out);
        fflush(stdout);
    }
    return 0;
}
