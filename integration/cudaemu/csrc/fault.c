/* What a test can change from outside: settings, attributes of devices, injected failures. And the last words of a trap. */
#include "emu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct settings emu_settings;

static struct rule {
    struct rule *next;
    const char *function;
    unsigned long nth; /* 0: every call */
    unsigned long calls;
    CUresult code;
} *rules;

enum { ATTRIBUTE_NONE = -1 };

/* [hdr] The numbers of CUdevice_attribute. What is not listed and not beyond the last number is 0. */
enum { ATTRIBUTE_LAST = 140 };
static struct attribute {
    int number, value;
} attributes[64] = {
    {1, 1024},        /* MAX_THREADS_PER_BLOCK */
    {10, 32},         /* WARP_SIZE */
    {11, 2147483647}, /* MAX_PITCH */
    {16, 1},          /* MULTIPROCESSOR_COUNT */
    {18, 0},          /* INTEGRATED */
    {19, 1},          /* CAN_MAP_HOST_MEMORY */
    {20, 0},          /* COMPUTE_MODE: default */
    {40, 2},          /* ASYNC_ENGINE_COUNT */
    {41, 1},          /* UNIFIED_ADDRESSING */
    {75, 8},          /* COMPUTE_CAPABILITY_MAJOR */
    {76, 0},          /* COMPUTE_CAPABILITY_MINOR */
    {91, 1},          /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    {99, 1},          /* HOST_REGISTER_SUPPORTED */
    {102, 0},         /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: not emulated */
    {103, 0},         /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: not emulated */
    {125, 1},         /* IPC_EVENT_SUPPORTED */
};
static size_t attribute_count = 16;

int emu_attribute(int attribute, int device, int *value)
{
    if (attribute < 1 || attribute > ATTRIBUTE_LAST)
        return CU_INVALID_VALUE;
    *value = attribute == 33 ? device + 1 : 0; /* PCI_BUS_ID */
    for (size_t i = 0; i < attribute_count; i++)
        if (attributes[i].number == attribute) {
            if (attributes[i].value == ATTRIBUTE_NONE)
                return CU_INVALID_VALUE;
            *value = attributes[i].value;
        }
    return CU_OK;
}

/* ---- the environment --------------------------------------------------------------------------------------------------- */

/* A setting that cannot be read would make its test test nothing, so it ends the process. */
static _Noreturn void bad(const char *name, const char *text)
{
    emu_say("%s=%s cannot be read", name, text);
    abort();
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (text == NULL || *text == 0)
        return otherwise;
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*end != 0 || errno != 0 || *text == '-')
        bad(name, text);
    return value;
}

static bool flag(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 && strcmp(text, "0") != 0;
}

/* NULL if not set. The program may change its environment. */
static const char *copied(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? strdup(text) : NULL;
}

/* "125:0;18:1", or "125:none" for a driver that does not know the attribute. */
static void read_attributes(void)
{
    const char *text = getenv("CUDAEMU_ATTRIBUTE");
    if (text == NULL)
        return;
    char *copy = strdup(text), *save = NULL;
    for (char *entry = copy ? strtok_r(copy, ";", &save) : NULL; entry; entry = strtok_r(NULL, ";", &save)) {
        struct attribute attribute = {0, ATTRIBUTE_NONE};
        char end;
        if (sscanf(entry, "%d:%d%c", &attribute.number, &attribute.value, &end) != 2 &&
            (attribute.value != ATTRIBUTE_NONE || strstr(entry, ":none") == NULL))
            bad("CUDAEMU_ATTRIBUTE", text);
        if (attribute_count == sizeof attributes / sizeof *attributes)
            bad("CUDAEMU_ATTRIBUTE", text);
        attributes[attribute_count++] = attribute; /* the last entry for a number counts */
    }
    free(copy);
}

/* Whether the library has a function of that name. */
static bool exported(const char *function)
{
    static const char *const endings[] = {"", "_v2"};
    char name[64];
    Dl_info self;
    void *library = dladdr(emu_fault, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    bool found = false;
    for (int i = 0; library && i < 2; i++) {
        snprintf(name, sizeof name, "%s%s", function, endings[i]);
        found |= dlsym(library, name) != NULL;
    }
    if (library)
        dlclose(library);
    return found;
}

/* "cuMemAlloc_v2:3:2;cuEventRecord:0:400". */
static void read_faults(void)
{
    const char *text = getenv("CUDAEMU_FAIL");
    if (text == NULL)
        return;
    char *copy = strdup(text), *save = NULL; /* kept: the rules point into it */
    for (char *entry = copy ? strtok_r(copy, ";", &save) : NULL; entry; entry = strtok_r(NULL, ";", &save)) {
        struct rule *rule = calloc(1, sizeof *rule);
        char *colon = strchr(entry, ':'), end;
        if (rule == NULL || colon == NULL || sscanf(colon, ":%lu:%d%c", &rule->nth, &rule->code, &end) != 2)
            bad("CUDAEMU_FAIL", text);
        *colon = 0;
        if (!exported(entry))
            bad("CUDAEMU_FAIL", text);
        rule->function = entry;
        rule->next = rules;
        rules = rule;
    }
}

static void read_once(void)
{
    emu_settings = (struct settings){
        .delay_us = number("CUDAEMU_DELAY_US", 0),
        .slow_open_us = number("CUDAEMU_SLOW_OPEN_US", 0),
        .memory_bytes = number("CUDAEMU_MEMORY", 8ull << 30),
        .pitch = number("CUDAEMU_PITCH", 0),
        .devices = (int)number("CUDAEMU_DEVICES", 1),
        .stall_events = flag("CUDAEMU_STALL_EVENTS"),
        .no_device = flag("CUDAEMU_NO_DEVICE"),
        .stub = flag("CUDAEMU_STUB"),
        .pid_namespace = flag("CUDAEMU_PIDNS"),
        .dir = copied("CUDAEMU_DIR"),
        .hold = copied("CUDAEMU_HOLD"),
    };
    if (emu_settings.devices < 0 || emu_settings.devices > DEVICES_MAX)
        bad("CUDAEMU_DEVICES", getenv("CUDAEMU_DEVICES"));
    read_attributes();
    read_faults();
}

void emu_settings_read(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_once);
}

/* ---- failing ----------------------------------------------------------------------------------------------------------- */

static bool same_function(const char *rule, const char *function)
{
    size_t length = strlen(rule);
    return strncmp(rule, function, length) == 0 && (function[length] == 0 || strcmp(function + length, "_v2") == 0);
}

CUresult emu_fault(const char *function)
{
    for (struct rule *rule = rules; rule; rule = rule->next) {
        if (!same_function(rule->function, function))
            continue;
        unsigned long call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_RELAXED);
        if (rule->nth == 0 || rule->nth == call)
            return rule->code;
    }
    return CU_OK;
}

void emu_sleep_us(uint64_t us)
{
    struct timespec left = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    while (us > 0 && nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

bool emu_held(void)
{
    return emu_settings.hold != NULL && access(emu_settings.hold, F_OK) == 0;
}

static void say(const char *format, va_list arguments)
{
    char text[512];
    int at = snprintf(text, sizeof text, "cudaemu[%d]: ", (int)getpid());
    vsnprintf(text + at, sizeof text - (size_t)at - 1, format, arguments);
    strcat(text, "\n");
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nobody reads it */
}

void emu_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

void emu_trap(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    abort();
}
