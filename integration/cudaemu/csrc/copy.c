/* Copies and fills.
 *
 * Addresses are looked up, and bytes read, when the operation runs and not when it is called: a program that does not wait
 * for its source reads what was there before, as on a GPU. An address that names nothing then loses the context.
 */
#include "emu.h"

#include <stdlib.h>
#include <string.h>

/* ---- when it runs ------------------------------------------------------------------------------------------------------ */

/* The bytes that a side spans: rows but the last take pitch. */
static uint64_t span(const struct op *op, const struct side *side)
{
    return (op->height - 1) * side->pitch + op->width;
}

/* Finds the bytes of a side and pins them. *pinned is NULL for a raw side. */
static unsigned char *pin(struct stream *stream, const struct op *op, const struct side *side, bool write, struct range **pinned)
{
    *pinned = NULL;
    if (side->raw != NULL)
        return side->raw;
    struct range *range = emu_range_of(side->address, span(op, side));
    if (range == NULL || (write && range->read_only)) {
        /* [hdr] CUDA_ERROR_ILLEGAL_ADDRESS: "any further CUDA work will return the same error. To continue using CUDA, the
         * process must be terminated and relaunched." */
        emu_say("%s: %s %llu bytes at %#llx, which is no memory that a device may use so", op->function,
                write ? "writing" : "reading", (unsigned long long)span(op, side), (unsigned long long)side->address);
        __atomic_store_n(&stream->context->lost, CU_ILLEGAL_ADDRESS, __ATOMIC_RELEASE);
        return NULL;
    }
    range->pins++;
    *pinned = range;
    return range->bytes + (side->address - range->base);
}

static void unpin(struct range *range)
{
    if (range != NULL)
        range->pins--;
}

static void set_row(const struct op *op, unsigned char *row)
{
    if (op->value_bytes == 1) {
        memset(row, (int)op->value, op->width);
        return;
    }
    for (uint64_t at = 0; at < op->width; at += sizeof op->value)
        memcpy(row + at, &op->value, sizeof op->value);
}

void emu_copy_run(struct stream *stream, struct op *op)
{
    struct range *src_pin = NULL, *dst_pin = NULL;
    unsigned char *src = op->kind == OP_COPY ? pin(stream, op, &op->src, false, &src_pin) : NULL;
    unsigned char *dst = op->kind == OP_SET || src != NULL ? pin(stream, op, &op->dst, true, &dst_pin) : NULL;
    if (dst != NULL) {
        pthread_mutex_unlock(&emu_lock);
        for (uint64_t row = 0; row < op->height; row++) {
            if (op->kind == OP_SET)
                set_row(op, dst + row * op->dst.pitch);
            else
                memmove(dst + row * op->dst.pitch, src + row * op->src.pitch, op->width);
        }
        pthread_mutex_lock(&emu_lock);
    }
    unpin(src_pin);
    unpin(dst_pin);
    pthread_cond_broadcast(&emu_changed);
}

/* ---- when it is called ------------------------------------------------------------------------------------------------- */

/* What a call means to do. host_src and host_dst are set where that side is host memory. */
struct plan {
    const char *function;
    const void *host_src;
    void *host_dst;
    CUdeviceptr src, dst;
    uint64_t src_pitch, dst_pitch, width, height;
    bool now; /* the call returns when it is done */
};

/* Registered memory is used where it is; *raw stays NULL. Memory half registered is refused. */
static CUresult host_side(struct op *op, struct side *side, const void *host)
{
    uint64_t address = (uint64_t)(uintptr_t)host, bytes = span(op, side);
    side->address = address;
    if (emu_range_of(address, bytes) == NULL) {
        if (emu_range_touching(address, bytes) != NULL)
            return CU_INVALID_VALUE;
        side->raw = (unsigned char *)(uintptr_t)host;
    }
    return CU_OK;
}

/* [doc] "API synchronization behavior": from pageable host memory the bytes are staged and the call may return; to pageable
 * memory it returns when they are there. So a program that wants an asynchronous copy has to register its memory. */
static CUresult submit(struct context *context, const struct plan *plan, CUstream handle)
{
    struct stream *stream;
    CUresult result = emu_stream_find(context, handle, &stream);
    if (result != CU_OK)
        return result;
    if (plan->width == 0 || plan->height == 0)
        return CU_OK;
    struct op op = {.kind = OP_COPY, .function = plan->function, .width = plan->width, .height = plan->height};
    op.src = (struct side){.address = plan->src, .pitch = plan->src_pitch};
    op.dst = (struct side){.address = plan->dst, .pitch = plan->dst_pitch};
    bool now = plan->now;
    if (plan->host_src != NULL)
        result = host_side(&op, &op.src, plan->host_src);
    if (result == CU_OK && plan->host_dst != NULL) {
        result = host_side(&op, &op.dst, plan->host_dst);
        now |= op.dst.raw != NULL;
    }
    if (result != CU_OK)
        return result;
    if (op.src.raw != NULL && !now) {
        op.staging = malloc(op.width * op.height);
        if (op.staging == NULL)
            return CU_OUT_OF_MEMORY;
        for (uint64_t row = 0; row < op.height; row++)
            memcpy(op.staging + row * op.width, op.src.raw + row * op.src.pitch, op.width);
        op.src = (struct side){.raw = op.staging, .pitch = op.width};
    }
    result = emu_stream_issue(stream, &op);
    return result == CU_OK && now ? emu_stream_wait(stream, stream->issued) : result;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    struct plan plan = {.function = __func__, .src = src, .dst = dst, .width = bytes, .height = 1};
    return emu_leave(submit(context, &plan, stream));
}

static CUresult to_device(const char *function, CUdeviceptr dst, const void *src, size_t bytes, CUstream stream, bool now)
{
    struct context *context;
    CUresult result = emu_enter(function, &context);
    if (result != CU_OK)
        return result;
    if (src == NULL && bytes > 0)
        return emu_leave(CU_INVALID_VALUE);
    struct plan plan = {.function = function, .host_src = src, .dst = dst, .width = bytes, .height = 1, .now = now};
    return emu_leave(submit(context, &plan, stream));
}

static CUresult to_host(const char *function, void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool now)
{
    struct context *context;
    CUresult result = emu_enter(function, &context);
    if (result != CU_OK)
        return result;
    if (dst == NULL && bytes > 0)
        return emu_leave(CU_INVALID_VALUE);
    struct plan plan = {.function = function, .host_dst = dst, .src = src, .width = bytes, .height = 1, .now = now};
    return emu_leave(submit(context, &plan, stream));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    return to_device(__func__, dst, src, bytes, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
    return to_device(__func__, dst, src, bytes, NULL, true);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    return to_host(__func__, dst, src, bytes, stream, false);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
    return to_host(__func__, dst, src, bytes, NULL, true);
}

/* A side's first byte: CUDA_MEMCPY2D counts from its origin. [hdr] A pitch must hold the row, from its offset on, and not
 * exceed MAX_PITCH; with one row it does not matter. */
static CUresult place(unsigned type, uint64_t x, uint64_t y, const void *host, CUdeviceptr device, uint64_t pitch,
                      const CUmemcpy2D *copy, const void **host_out, CUdeviceptr *device_out)
{
    int longest = 2147483647;
    (void)emu_attribute(11, 0, &longest); /* the same for all devices */
    if (pitch > (uint64_t)longest || (copy->height > 1 && pitch < x + copy->width_bytes) || (y > 0 && pitch == 0))
        return CU_INVALID_VALUE;
    uint64_t skip = y * pitch + x;
    switch (type) {
    case CU_MEMORY_HOST:
        if (host == NULL)
            return CU_INVALID_VALUE;
        *host_out = (const char *)host + skip;
        return CU_OK;
    case CU_MEMORY_DEVICE:
    case CU_MEMORY_UNIFIED: /* [hdr] the device field has the address */
        *device_out = device + skip;
        return CU_OK;
    case CU_MEMORY_ARRAY:
        return CU_NOT_SUPPORTED; /* not emulated */
    default:
        return CU_INVALID_VALUE;
    }
}

CUresult cuMemcpy2DAsync_v2(const CUmemcpy2D *copy, CUstream stream)
{
    struct context *context;
    CUresult result = emu_enter(__func__, &context);
    if (result != CU_OK)
        return result;
    if (copy == NULL)
        return emu_leave(CU_INVALID_VALUE);
    struct plan plan = {.function = __func__, .src_pitch = copy->src_pitch, .dst_pitch = copy->dst_pitch,
                        .width = copy->width_bytes, .height = copy->height};
    const void *host_dst = NULL;
    result = place(copy->src_type, copy->src_x_bytes, copy->src_y, copy->src_host, copy->src_device, copy->src_pitch, copy,
                   &plan.host_src, &plan.src);
    if (result == CU_OK)
        result = place(copy->dst_type, copy->dst_x_bytes, copy->dst_y, copy->dst_host, copy->dst_device, copy->dst_pitch, copy,
                       &host_dst, &plan.dst);
    if (result != CU_OK)
        return emu_leave(result);
    /* [doc] "Device to device copies may fail for pitches not computed by cuMemAllocPitch." */
    if (emu_settings.pitch > 0 && plan.height > 1 && plan.host_src == NULL && host_dst == NULL &&
        (plan.src_pitch % emu_settings.pitch != 0 || plan.dst_pitch % emu_settings.pitch != 0))
        return emu_leave(CU_INVALID_VALUE);
    plan.host_dst = (void *)(uintptr_t)host_dst;
    return emu_leave(submit(context, &plan, stream));
}

static CUresult fill(const char *function, CUdeviceptr dst, unsigned value, unsigned value_bytes, size_t count, CUstream handle)
{
    struct context *context;
    struct stream *stream;
    CUresult result = emu_enter(function, &context);
    if (result != CU_OK)
        return result;
    if (dst % value_bytes != 0 || count > SIZE_MAX / value_bytes)
        return emu_leave(CU_INVALID_VALUE); /* [hdr] "The dstDevice pointer must be four byte aligned." */
    result = emu_stream_find(context, handle, &stream);
    if (result != CU_OK || count == 0)
        return emu_leave(result);
    struct op op = {.kind = OP_SET, .function = function, .dst = {.address = dst}, .width = count * value_bytes, .height = 1,
                    .value = value, .value_bytes = value_bytes};
    return emu_leave(emu_stream_issue(stream, &op));
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    return fill(__func__, dst, value, 1, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream)
{
    return fill(__func__, dst, value, 4, count, stream);
}
