/* Words in shared memory, and sleeping on them.
 *
 * Every word that two processes touch is read and written here, by sequentially
 * consistent C11 atomics: the rules (V2, R3) need "store, then load" in exactly that
 * order, which release and acquire do not give. A value that was loaded is a copy;
 * check the copy and use the copy, since the peer may change the word at any time.
 */
#ifndef CBDI_SHARED_H
#define CBDI_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

/* The races that the rules are about are a few instructions wide. Tests build with
 * CBDI_SHAKE, which lets other threads in between any two accesses. */
#ifdef CBDI_SHAKE
void cbdi_shake(void);
#else
#define cbdi_shake() ((void)0)
#endif

static inline uint64_t load64(const uint64_t *word)
{
    cbdi_shake();
    return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_seq_cst);
}

static inline uint32_t load32(const uint32_t *word)
{
    cbdi_shake();
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_seq_cst);
}

static inline void store64(uint64_t *word, uint64_t value)
{
    cbdi_shake();
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_seq_cst);
}

static inline void store32(uint32_t *word, uint32_t value)
{
    cbdi_shake();
    atomic_store_explicit((_Atomic uint32_t *)word, value, memory_order_seq_cst);
}

static inline uint64_t exchange64(uint64_t *word, uint64_t value)
{
    cbdi_shake();
    return atomic_exchange_explicit((_Atomic uint64_t *)word, value, memory_order_seq_cst);
}

static inline uint32_t add32(uint32_t *word, uint32_t value)
{
    return atomic_fetch_add_explicit((_Atomic uint32_t *)word, value, memory_order_seq_cst);
}

static inline void add64(uint64_t *word, uint64_t value)
{
    atomic_fetch_add_explicit((_Atomic uint64_t *)word, value, memory_order_seq_cst);
}

/* Raises the word to at least value; only for words with one writing process. */
static inline void raise32(uint32_t *word, uint32_t value)
{
    uint32_t seen = load32(word);
    while (seen < value &&
           !atomic_compare_exchange_weak_explicit((_Atomic uint32_t *)word, &seen, value, memory_order_seq_cst,
                                                  memory_order_seq_cst)) {
    }
}

/* Sleeps while *word is value, at most timeout_ns; returns early for any reason. */
void cbdi_futex_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns);

/* Wakes up to count sleepers. */
void cbdi_futex_wake(uint32_t *word, int count);

/* CLOCK_MONOTONIC. */
uint64_t cbdi_now_ns(void);

#endif
