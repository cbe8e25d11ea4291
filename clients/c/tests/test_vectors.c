/* Reads the annotated bytes of protocol/testdata/vectors, fills the structs of
 * callboard_abi.h with them, checks every named field and encodes back.
 *
 *     test_vectors FILE.hex...
 *
 * Exit status 0 when all agree, 1 when a byte or a meaning differs, 2 for bad usage.
 * The Go and Python tests read the same files; each file explains its format. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vectors_table.h"

enum {
    LINE_CHARS_MAX = 8192,
    BYTES_MAX = 4096,       /* of one line, and of one struct */
    LINES_MAX = 1024,       /* of one section */
    STRUCTS = sizeof(vector_structs) / sizeof(vector_structs[0]),
};

/* One line: bytes, and what they say. */
typedef struct said {
    int number; /* of the line in the file */
    size_t offset;
    size_t size;
    unsigned char data[BYTES_MAX];
    char path[128];
    char value[LINE_CHARS_MAX];
} said;

static const char *file_name;
static int line_number;
static int failures;
static int checked;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: ", file_name, line_number);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    failures++;
}

static uint64_t little_endian(const unsigned char *data, size_t width) {
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) {
        value |= (uint64_t)data[i] << (8 * i);
    }
    return value;
}

/* What the compiler reads: a load of the field's own type. */
static uint64_t load(const unsigned char *at, size_t width) {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (width) {
    case 1: memcpy(&u8, at, 1); return u8;
    case 2: memcpy(&u16, at, 2); return u16;
    case 4: memcpy(&u32, at, 4); return u32;
    case 8: memcpy(&u64, at, 8); return u64;
    default: fail("no number has %zu bytes", width); return 0;
    }
}

/* "0500+3" are the bytes 5, 0, 0, 0, 0. Returns 1, or 0 after a failure. */
static int parse_bytes(const char *digits, said *line) {
    line->size = 0;
    for (; isxdigit((unsigned char)digits[0]) && isxdigit((unsigned char)digits[1]); digits += 2) {
        const char pair[3] = {digits[0], digits[1], 0};
        if (line->size == BYTES_MAX) {
            break;
        }
        line->data[line->size++] = (unsigned char)strtoul(pair, NULL, 16);
    }
    size_t zeros = 0;
    if (*digits == '+') {
        char *end;
        zeros = strtoul(digits + 1, &end, 10);
        digits = end;
    }
    if (*digits != 0 || zeros > BYTES_MAX - line->size) {
        fail("bad or too many bytes: \"%s\"", digits);
        return 0;
    }
    memset(line->data + line->size, 0, zeros);
    line->size += zeros;
    return 1;
}

/* Compares a byte array with "text" (zero bytes follow) or hex:digits. */
static void check_bytes(const char *path, const unsigned char *data, size_t size, const char *value) {
    unsigned char want[BYTES_MAX] = {0};
    size_t length = 0;
    if (value[0] == '"') {
        length = strlen(value) - 2;
        if (length > size || value[length + 1] != '"') {
            fail("%s: %s does not fit %zu bytes", path, value, size);
            return;
        }
        memcpy(want, value + 1, length);
    } else if (strncmp(value, "hex:", 4) == 0) {
        said parsed;
        if (!parse_bytes(value + 4, &parsed) || parsed.size != size) {
            fail("%s: %s does not have %zu bytes", path, value, size);
            return;
        }
        memcpy(want, parsed.data, size);
    } else {
        fail("%s: %s is neither text nor hex", path, value);
        return;
    }
    if (memcmp(want, data, size) != 0) {
        fail("%s: bytes differ from %s", path, value);
    }
    checked++;
}

/* Compares count numbers with "5" or "[1, 2, 3]". */
static void check_numbers(const char *path, const unsigned char *data, size_t width, size_t count,
                          const char *value) {
    const char *at = value;
    const int list = *at == '[';
    at += list;
    for (size_t i = 0; i < count; i++) {
        char *end;
        const uint64_t want = strtoull(at, &end, 0);
        const uint64_t got = load(data + i * width, width);
        if (end == at) {
            fail("%s: \"%s\" has fewer than %zu numbers", path, value, count);
            return;
        }
        if (want != got) {
            fail("%s[%zu]: got %llu, the vector says %llu", path, i, (unsigned long long)got,
                 (unsigned long long)want);
        }
        at = end + strspn(end, ", ");
    }
    if (strcmp(at, list ? "]" : "") != 0) {
        fail("%s: \"%s\" has more than %zu numbers", path, value, count);
    }
    checked++;
}

/* Follows a path such as records[1].entry_count. Returns the field, its place in
 * *offset, or NULL. */
static const vector_field *find(const vector_struct *of, const char *path, size_t *offset) {
    const vector_field *found = NULL;
    *offset = 0;
    while (of != NULL && *path != 0) {
        const size_t length = strcspn(path, ".[");
        found = NULL;
        for (size_t i = 0; i < of->field_count; i++) {
            if (strlen(of->fields[i].name) == length && memcmp(of->fields[i].name, path, length) == 0) {
                found = &of->fields[i];
            }
        }
        if (found == NULL) {
            return NULL;
        }
        *offset += found->offset;
        path += length;
        if (*path == '[') {
            char *end;
            const size_t index = strtoul(path + 1, &end, 10);
            if (*end != ']' || index >= found->count) {
                return NULL;
            }
            *offset += index * found->width;
            path = end + 1;
        }
        path += *path == '.';
        of = found->of;
    }
    return *path == 0 ? found : NULL;
}

/* Writes the struct at data field by field, low byte first, into out. */
static void encode(const vector_struct *of, const unsigned char *data, unsigned char *out) {
    for (size_t i = 0; i < of->field_count; i++) {
        const vector_field *f = &of->fields[i];
        for (size_t k = 0; k < f->count; k++) {
            const size_t at = f->offset + k * f->width;
            if (f->of != NULL) {
                encode(f->of, data + at, out + at);
                continue;
            }
            const uint64_t value = load(data + at, f->width);
            for (size_t byte = 0; byte < f->width; byte++) {
                out[at + byte] = (unsigned char)(value >> (8 * byte));
            }
        }
    }
}

static void mark(const vector_struct *of, int *seen) {
    for (size_t i = 0; i < STRUCTS; i++) {
        seen[i] |= vector_structs[i] == of;
    }
    for (size_t i = 0; i < of->field_count; i++) {
        if (of->fields[i].of != NULL) {
            mark(of->fields[i].of, seen);
        }
    }
}

/* Checks the struct that count lines describe; base is its offset in the file. */
static void check_struct(const vector_struct *of, const said *lines, size_t count, size_t base) {
    unsigned char bytes[BYTES_MAX] = {0};
    unsigned char back[BYTES_MAX];
    void *filled = malloc(of->size); /* aligned for every struct */
    if (filled == NULL || of->size > BYTES_MAX) {
        fail("struct %s of %zu bytes does not fit", of->name, of->size);
        free(filled);
        return;
    }
    const int last_line = line_number;
    for (size_t i = 0; i < count; i++) {
        line_number = lines[i].number;
        if (lines[i].offset < base || lines[i].offset - base + lines[i].size > of->size) {
            fail("%s.%s lies outside its %zu bytes", of->name, lines[i].path, of->size);
            continue;
        }
        memcpy(bytes + (lines[i].offset - base), lines[i].data, lines[i].size);
    }
    memcpy(filled, bytes, of->size);
    for (size_t i = 0; i < count; i++) {
        size_t offset = 0;
        line_number = lines[i].number;
        const vector_field *f = find(of, lines[i].path, &offset);
        if (f == NULL || f->of != NULL) {
            fail("struct %s has no field %s", of->name, lines[i].path);
        } else if (offset != lines[i].offset - base || f->width * f->count != lines[i].size) {
            fail("%s.%s is at %zu with %zu bytes, the vector says %zu with %zu", of->name, lines[i].path,
                 offset, f->width * f->count, lines[i].offset - base, lines[i].size);
        } else if (f->width == 1 && f->count > 1) {
            check_bytes(lines[i].path, (unsigned char *)filled + offset, f->count, lines[i].value);
        } else {
            check_numbers(lines[i].path, (unsigned char *)filled + offset, f->width, f->count,
                          lines[i].value);
        }
    }
    line_number = last_line;
    memset(back, 0xff, sizeof(back));
    encode(of, filled, back);
    if (memcmp(back, bytes, of->size) != 0) {
        fail("struct %s does not encode back to its bytes", of->name);
    }
    free(filled);
}

/* Loose values between structs: the path is their type. */
static void check_loose(const said *line) {
    const size_t width = strcmp(line->path, "u32") == 0 ? 4 : strcmp(line->path, "u64") == 0 ? 8 : 0;
    if (strcmp(line->path, "text") == 0) {
        check_bytes(line->path, line->data, line->size, line->value);
    } else if (width == 0 || line->size % width != 0) {
        fail("\"%s\" of %zu bytes is no type of loose values", line->path, line->size);
    } else {
        check_numbers(line->path, line->data, width, line->size / width, line->value);
    }
    if (line->size <= 8 && width == line->size &&
        little_endian(line->data, width) != load(line->data, width)) {
        fail("this machine is not little-endian");
    }
}

static int parse_line(char *text, said *line) {
    int used = 0;
    line->number = line_number;
    char digits[LINE_CHARS_MAX];
    if (sscanf(text, " %zu %8191s %127s = %n", &line->offset, digits, line->path, &used) != 3 || used == 0) {
        fail("cannot read \"%s\": want offset, bytes, name = value", text);
        return 0;
    }
    strcpy(line->value, text + used);
    return parse_bytes(digits, line);
}

static void check_file(FILE *in, said *lines, int *seen) {
    static char text[LINE_CHARS_MAX];
    const vector_struct *of = NULL;
    size_t count = 0, base = 0;
    int more = 1;
    while (more) {
        more = fgets(text, sizeof(text), in) != NULL;
        line_number += more;
        text[more ? strcspn(text, "\n") : 0] = 0;
        const int heading = strncmp(text, "struct ", 7) == 0 || strcmp(text, "values") == 0;
        if (!more || heading) {
            if (of != NULL) {
                check_struct(of, lines, count, base);
                base += of->size;
            }
            of = NULL;
            count = 0;
            for (size_t i = 0; i < STRUCTS && heading && text[0] == 's'; i++) {
                if (strcmp(vector_structs[i]->name, text + 7) == 0) {
                    of = vector_structs[i];
                    mark(of, seen);
                }
            }
            if (heading && text[0] == 's' && of == NULL) {
                fail("unknown struct \"%s\"", text + 7);
            }
        } else if (text[0] != 0 && text[0] != '#' && parse_line(text, &lines[count])) {
            if (of == NULL) {
                if (lines[0].offset != base) {
                    fail("loose values at %zu, expected at %zu", lines[0].offset, base);
                }
                check_loose(&lines[0]);
                base += lines[0].size;
            } else if (++count == LINES_MAX) {
                fail("more than %d lines in a struct", LINES_MAX);
                return;
            }
        }
    }
}

/* The functions of the header against values that the Go tests hold too. */
static void check_functions(void) {
    uint64_t place = 0, index = 99;
    file_name = "callboard_abi.h";
    line_number = 0;
    if (cbd_abi_page_place(64, 63, &place) != 0 || place != 63 ||
        cbd_abi_page_place(64, 64, &place) != 1 || place != 0 ||
        cbd_abi_page_place(64, 192, &place) != 2 || place != 0) {
        fail("cbd_abi_page_place");
    }
    const uint64_t id = cbd_abi_string_id(0xabcdef, 2);
    if (id != UINT64_C(0xabcdef0000000003) || cbd_abi_string_index(0xabcdee, id, &index) != 0 ||
        cbd_abi_string_index(0, 0, &index) != 0 || index != 99 ||
        cbd_abi_string_index(0xabcdef, id, &index) != 1 || index != 2) {
        fail("cbd_abi_string_id, cbd_abi_string_index");
    }
    if (cbd_abi_hash_string(NULL, 0) != UINT64_C(0xcbf29ce484222325) ||
        cbd_abi_hash_string("foobar", 6) != UINT64_C(0x85944171f73967e8)) {
        fail("cbd_abi_hash_string");
    }
    /* Behaviour 222: distinct, never empty, never NULL; also for a code of the future. */
    for (uint32_t a = 0; a <= CBD_STATUS_COUNT; a++) {
        if (cbd_abi_status_name(a)[0] == 0 || cbd_abi_status_text(a)[0] == 0) {
            fail("status %u has no name or no text", a);
        }
        for (uint32_t b = 0; b < a; b++) {
            if (strcmp(cbd_abi_status_name(a), cbd_abi_status_name(b)) == 0 ||
                strcmp(cbd_abi_status_text(a), cbd_abi_status_text(b)) == 0) {
                fail("status %u and %u share a name or a text", a, b);
            }
        }
    }
}

int main(int argc, char **argv) {
    int seen[STRUCTS] = {0};
    said *lines = calloc(LINES_MAX, sizeof(*lines));
    if (argc < 2 || lines == NULL) {
        fprintf(stderr, "usage: %s protocol/testdata/vectors/*.hex\n", argv[0]);
        free(lines);
        return 2;
    }
    check_functions();
    for (int i = 1; i < argc; i++) {
        file_name = argv[i];
        line_number = 0;
        FILE *in = fopen(file_name, "r");
        if (in == NULL) {
            fail("cannot be opened");
            continue;
        }
        check_file(in, lines, seen);
        fclose(in);
    }
    file_name = "vectors_table.h";
    for (size_t i = 0; i < STRUCTS && argc > 2; i++) {
        if (!seen[i]) {
            fail("struct %s is in no vector", vector_structs[i]->name);
        }
    }
    free(lines);
    printf("%d values in %d files checked, %d failures\n", checked, argc - 1, failures);
    return failures != 0;
}
