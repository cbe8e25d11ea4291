/* Prints every struct that processes share, as this compiler lays it out: "Struct size", then
 * "Struct.field offset bytes" for each of its fields. */
#include <stdio.h>

#include "vectors_table.h"

int main(void)
{
    for (size_t i = 0; i < sizeof vector_structs / sizeof *vector_structs; i++) {
        const vector_struct *of = vector_structs[i];
        printf("%s %zu\n", of->name, of->size);
        for (const vector_field *f = of->fields; f < of->fields + of->field_count; f++)
            printf("%s.%s %zu %zu\n", of->name, f->name, f->offset, f->width * f->count);
    }
    return 0;
}
