/* The contexts of threads, and how every call begins and ends. */
#include "emu.h"

#include <stddef.h>

struct context emu_contexts[DEVICES_MAX];
pthread_mutex_t emu_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t emu_changed = PTHREAD_COND_INITIALIZER;
__thread bool emu_in_host_function;

/* [doc] Each host thread has a stack of current contexts, so a call from a thread without one fails with 201: the usual
 * mistake of Go programs, openucx/ucx#9581, minio/warp#499. */
enum { STACK_MAX = 64 };
static __thread struct context *stack[STACK_MAX];
static __thread int depth;

struct context *emu_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult emu_enter(const char *function, struct context **context)
{
    /* [hdr] cuLaunchHostFunc: "The host function must not make any CUDA API calls. Attempting to use a CUDA API may result
     * in CUDA_ERROR_NOT_PERMITTED, but this is not required." Here it always does. */
    if (emu_in_host_function)
        return CU_NOT_PERMITTED;
    CUresult result = emu_init_result();
    if (result != CU_OK)
        return result;
    CUresult fault = emu_fault(function);
    if (fault != CU_OK) {
        struct context *current = emu_current();
        if ((fault == CU_ILLEGAL_ADDRESS || fault == CU_LAUNCH_FAILED) && current != NULL) {
            pthread_mutex_lock(&emu_lock);
            current->lost = fault; /* [hdr] these leave the process in an inconsistent state */
            pthread_cond_broadcast(&emu_changed);
            pthread_mutex_unlock(&emu_lock);
        }
        return fault;
    }
    pthread_mutex_lock(&emu_lock);
    if (context == NULL)
        return CU_OK;
    struct context *current = emu_current();
    if (current == NULL)
        return emu_leave(CU_INVALID_CONTEXT);
    if (current->retained == 0)
        return emu_leave(CU_CONTEXT_IS_DESTROYED); /* [hdr] also for "a primary context which has not yet been initialized" */
    if (current->lost != CU_OK)
        return emu_leave(current->lost);
    *context = current;
    return CU_OK;
}

CUresult emu_leave(CUresult result)
{
    pthread_mutex_unlock(&emu_lock);
    return result;
}

static bool known(const struct context *context)
{
    for (int i = 0; i < DEVICES_MAX; i++)
        if (context == &emu_contexts[i])
            return context->ordinal >= 0;
    return false;
}

/* [hdr] "If NULL is specified, this call pops the top off the CPU thread's CUDA context stack"; else the top is replaced. */
CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (context == NULL) {
        if (depth > 0)
            depth--;
        return emu_leave(CU_OK);
    }
    if (!known(context))
        return emu_leave(CU_INVALID_CONTEXT);
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    return emu_leave(CU_OK);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (context == NULL)
        return emu_leave(CU_INVALID_VALUE);
    *context = emu_current(); /* [hdr] NULL, and success, where there is none */
    return emu_leave(CU_OK);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (device == NULL)
        return emu_leave(CU_INVALID_VALUE);
    *device = context->ordinal;
    return emu_leave(CU_OK);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (context == NULL || depth == STACK_MAX)
        return emu_leave(CU_INVALID_VALUE);
    if (!known(context))
        return emu_leave(CU_INVALID_CONTEXT);
    stack[depth++] = context;
    return emu_leave(CU_OK);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = emu_enter(__func__, NULL);
    if (result != CU_OK)
        return result;
    if (depth == 0)
        return emu_leave(CU_INVALID_CONTEXT);
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return emu_leave(CU_OK);
}

CUresult cuCtxSynchronize(void)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    emu_context_drain(context);
    return emu_leave(context->lost);
}
