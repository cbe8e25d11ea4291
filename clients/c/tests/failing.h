/* Allocations that fail, in programs that are linked with FAILING (Makefile). For one file of a program. */
#ifndef FAILING_H
#define FAILING_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

static _Thread_local long fails_at; /* this thread's allocation number so many fails; 0: none does */

static bool fails(void) { return fails_at > 0 && --fails_at == 0; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
int __real_posix_memalign(void **at, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
int __wrap_posix_memalign(void **at, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return fails() ? NULL : __real_calloc(n, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return fails() ? NULL : __real_realloc(old, bytes); }
int __wrap_posix_memalign(void **at, size_t alignment, size_t bytes)
{
    return fails() ? ENOMEM : __real_posix_memalign(at, alignment, bytes);
}

#endif
