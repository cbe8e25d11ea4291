/* What callboard_dlpack.h does with the tensors of tensor/testdata/dlpack.txt, which says what stands where. The Go tests
 * of package tensor read the same file.
 *
 *     test_dlpack_vectors FILE
 */
#include "standin_dlpack.h"

#include "callboard_dlpack.h"
#include "fake_broker.h"

#include <inttypes.h>
#include <string.h>

/* A copy that no machine holds is an error here, and not of the sanitizer's. */
CBD_API const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

enum { MEMORY = 64, DIMENSIONS = 80, LINE = 1024 };

static uint8_t memory[MEMORY];
static cbd_error error;
static char case_name[LINE], tensor_line[LINE];
static unsigned cases, operations;

#define EXPECT(condition, line)                                                                      \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "%s: \"%s\": not %s\n", case_name, line, #condition);                    \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

/* The value behind "key=" in a line, or NULL. */
static const char *value_of(const char *line, const char *key, char value[LINE])
{
    char wanted[32];
    int length = snprintf(wanted, sizeof wanted, " %s=", key);
    const char *at = strstr(line, wanted);
    if (at == NULL)
        return NULL;
    at += length;
    size_t n = strcspn(at, " \n");
    memcpy(value, at, n);
    value[n] = 0;
    return value;
}

static uint64_t number(const char *key, uint64_t otherwise)
{
    char value[LINE];
    return value_of(tensor_line, key, value) == NULL ? otherwise : value[0] == '-' ? (uint64_t)strtoll(value, NULL, 10) : strtoull(value, NULL, 10);
}

/* "2,3", "1*65", "-" and "null"; gives NULL of the last. */
static int64_t *list(const char *text, int64_t into[DIMENSIONS], int32_t *n)
{
    *n = 0;
    if (text == NULL || strcmp(text, "null") == 0)
        return NULL;
    while (*text != 0 && strcmp(text, "-") != 0) {
        char *end;
        int64_t extent = strtoll(text, &end, 10);
        long times = *end == '*' ? strtol(end + 1, &end, 10) : 1;
        CHECK(*n + times <= DIMENSIONS);
        while (times-- > 0)
            into[(*n)++] = extent;
        text = *end == ',' ? end + 1 : end;
    }
    return into;
}

static void three(const char *key, const char *otherwise, long out[3])
{
    char value[LINE];
    const char *at = value_of(tensor_line, key, value);
    char *end;
    if (at == NULL)
        at = otherwise;
    for (int i = 0; i < 3; i++, at = *end == ':' ? end + 1 : end)
        out[i] = strtol(at, &end, 10);
}

/* The tensor of the case, as another library hands it over, and as a program of ours has it. */
struct subject {
    int64_t shape[DIMENSIONS], strides[DIMENSIONS];
    DLManagedTensorVersioned produced;
    cbd_tensor own;
};

static void read_subject(struct subject *s)
{
    char value[LINE];
    long dtype[3], device[3];
    int32_t ndim, ignored;
    memset(s, 0, sizeof *s);
    int64_t *shape = list(value_of(tensor_line, "shape", value), s->shape, &ndim);
    int64_t *strides = list(value_of(tensor_line, "strides", value), s->strides, &ignored);
    ndim = (int32_t)number("ndim", (uint64_t)ndim);
    three("dtype", "2:32:1", dtype);
    three("device", "1:0", device);
    bool nowhere = value_of(tensor_line, "at", value) != NULL && strcmp(value, "null") == 0;
    void *data = nowhere ? NULL : memory + number("at", 0);
    s->produced = (DLManagedTensorVersioned){
        .version = {(uint32_t)number("major", 1), 0},
        .flags = number("flags", 0),
        .dl_tensor = {data, {(DLDeviceType)device[0], (int32_t)device[1]}, ndim, {(uint8_t)dtype[0], (uint8_t)dtype[1], (uint16_t)dtype[2]},
                      ndim == 0 ? NULL : shape, strides, number("offset", 0)}};
    s->own = (cbd_tensor){.data = data, .ndim = ndim, .shape = shape, .strides = strides, .code = (uint8_t)dtype[0], .bits = (uint8_t)dtype[1],
                          .lanes = (uint16_t)dtype[2], .device_type = (uint32_t)device[0], .device_id = (uint32_t)device[1]};
}

static bool same_list(const char *line, const char *key, int32_t n, const int64_t *got)
{
    char value[LINE];
    int64_t wanted[DIMENSIONS];
    int32_t count;
    if (value_of(line, key, value) == NULL)
        return true; /* nothing is said */
    list(value, wanted, &count);
    return count == n && (n == 0 || memcmp(wanted, got, (size_t)n * sizeof *got) == 0);
}

static bool same_number(const char *line, const char *key, uint64_t got)
{
    char value[LINE];
    return value_of(line, key, value) == NULL || strtoull(value, NULL, 10) == got;
}

static bool same_place(const char *line, const void *got)
{
    char value[LINE];
    if (value_of(line, "first", value) == NULL)
        return true;
    bool inside = (const uint8_t *)got >= memory && (const uint8_t *)got < memory + MEMORY;
    if (strcmp(value, "null") == 0)
        return got == NULL;
    return strcmp(value, "copy") == 0 ? got != NULL && !inside : inside && (const uint8_t *)got - memory == strtol(value, NULL, 10);
}

static bool same_bytes(const char *line, const cbd_tensor *t)
{
    char value[LINE];
    uint64_t n = t->bits / 8u * t->lanes;
    for (int32_t i = 0; i < t->ndim; i++)
        n *= (uint64_t)t->shape[i];
    if (value_of(line, "bytes", value) == NULL || strlen(value) != 2 * n)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        unsigned byte;
        if (sscanf(value + 2 * i, "%2x", &byte) != 1 || byte != ((const uint8_t *)t->data)[i])
            return false;
    }
    return true;
}

static void check_exported(const char *line, const DLTensor *t)
{
    EXPECT(same_place(line, t->data), line);
    EXPECT(same_list(line, "strides", t->ndim, t->strides), line);
    EXPECT(t->byte_offset == 0 && t->device.device_type == kDLCPU && t->device.device_id == 0, line);
}

/* Does what the line says; on success what came of it is compared with the line. */
static cbd_status run(const char *line)
{
    struct subject s;
    char name[32];
    unsigned flags = 0;
    cbd_status status, other = CBD_STATUS_OK;
    cbd_tensor t, *copy;
    read_subject(&s);
    DLManagedTensor m = {.dl_tensor = s.produced.dl_tensor};
    CHECK(sscanf(line, "%31s %u", name, &flags) >= 1);
    if (strcmp(name, "import") == 0) {
        if (s.produced.version.major == 1)
            other = cbd_dlpack_import(&m, &t, NULL);
        status = cbd_dlpack_import_versioned(&s.produced, &t, &error);
        EXPECT(other == status || s.produced.version.major != 1, line);
        EXPECT(t.strides == NULL, line);
        if (status == CBD_STATUS_OK)
            EXPECT(same_place(line, t.data) && same_list(line, "shape", t.ndim, t.shape), line);
    } else if (strcmp(name, "copy") == 0) {
        if (s.produced.version.major == 1) {
            other = cbd_dlpack_import_copy(&m, &copy, NULL);
            EXPECT((copy != NULL) == (other == CBD_STATUS_OK), line);
            EXPECT(copy == NULL || same_bytes(line, copy), line);
            cbd_tensor_free(copy);
        }
        status = cbd_dlpack_import_copy_versioned(&s.produced, &copy, &error);
        EXPECT(other == status || s.produced.version.major != 1, line);
        EXPECT((copy != NULL) == (status == CBD_STATUS_OK), line);
        if (status == CBD_STATUS_OK)
            EXPECT(same_bytes(line, copy) && copy->strides == NULL && (uintptr_t)copy->data % 64 == 0, line);
        cbd_tensor_free(copy);
    } else if (strcmp(name, "legacy") == 0) {
        DLManagedTensor *out = (void *)1;
        status = cbd_dlpack_export(&s.own, flags, NULL, NULL, &out, &error);
        EXPECT((out != NULL) == (status == CBD_STATUS_OK), line);
        if (out != NULL) {
            check_exported(line, &out->dl_tensor);
            out->deleter(out);
        }
    } else if (strcmp(name, "versioned") == 0) {
        DLManagedTensorVersioned *out = (void *)1;
        status = cbd_dlpack_export_versioned(&s.own, flags, NULL, NULL, &out, &error);
        EXPECT((out != NULL) == (status == CBD_STATUS_OK), line);
        if (out != NULL) {
            check_exported(line, &out->dl_tensor);
            EXPECT(out->version.major == 1 && same_number(line, "flags", out->flags), line);
            out->deleter(out);
        }
    } else {
        char format[LINE];
        cbd_buffer b;
        CHECK(strcmp(name, "buffer") == 0);
        status = cbd_buffer_of_tensor(&s.own, 0, &b, &error);
        if (status == CBD_STATUS_OK) {
            EXPECT(same_place(line, b.data) && same_number(line, "item", b.item_bytes) && same_number(line, "length", b.length_bytes), line);
            EXPECT(value_of(line, "format", format) != NULL && strcmp(format, b.format) == 0, line);
            EXPECT(same_list(line, "shape", b.ndim, b.shape) && same_list(line, "strides", b.ndim, b.strides), line);
        }
    }
    return status;
}

static void check(char *line)
{
    char name[32], wanted[64];
    unsigned flags;
    int behind = 0;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%31s %u %63s%n", name, &flags, wanted, &behind) != 3)
        CHECK(sscanf(line, "%31s %63s%n", name, wanted, &behind) == 2);
    cbd_status status = run(line);
    if (strcmp(cbd_status_name(status), wanted) != 0) {
        fprintf(stderr, "%s: \"%s\": %s: %s\n", case_name, line, cbd_status_name(status), status == CBD_STATUS_OK ? "" : error.text);
        exit(1);
    }
    const char *text = line[behind] == ' ' ? line + behind + 1 : line + behind;
    if (status != CBD_STATUS_OK && (*text == 0 || strstr(error.text, text) == NULL)) {
        fprintf(stderr, "%s: the text is \"%s\", without \"%s\"\n", case_name, error.text, text);
        exit(1);
    }
    operations++;
}

int main(int argc, char **argv)
{
    char line[LINE];
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    CHECK(file != NULL);
    for (int i = 0; i < MEMORY; i++)
        memory[i] = (uint8_t)i;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "case ", 5) == 0) {
            snprintf(case_name, sizeof case_name, "%.*s", (int)strcspn(line + 5, "\n"), line + 5);
            cases++;
        } else if (strncmp(line, "tensor ", 7) == 0)
            snprintf(tensor_line, sizeof tensor_line, "%s", line + 6);
        else if (line[0] != '#' && line[0] != '\n')
            check(line);
    }
    fclose(file);
    for (int i = 0; i < MEMORY; i++)
        CHECK(memory[i] == i);
    CHECK(cases > 30 && operations > 90);
    printf("%u tensors, %u operations\n", cases, operations);
    return 0;
}
