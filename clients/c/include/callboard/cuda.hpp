// Memory of GPUs: who calls what is here links libcallboard_cuda.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_CUDA_HPP
#define CALLBOARD_CUDA_HPP

#include "../callboard_cuda.h"
#include "error.hpp"

namespace callboard {
namespace detail {

// What is given back with its device's number.
struct stream_releaser {
    std::uint32_t device_id = 0;
    void operator()(void *) const noexcept { cbd_cuda_stream_release(device_id); }
};
struct memory_releaser {
    std::uint32_t device_id = 0;
    void operator()(void *data) const noexcept { cbd_cuda_free(data, device_id); }
};

} // namespace detail

inline namespace CALLBOARD_FORM {

/// Lets this process use device memory; may be called again.
inline result<void> cuda_enable()
{
    CALLBOARD_TRY(cbd_cuda_enable(&failed));
    return result<void>();
}

/// How many GPUs this process has; NOT_SUPPORTED says why none can be used.
inline result<std::uint32_t> cuda_device_count()
{
    std::uint32_t count = 0;
    CALLBOARD_TRY(cbd_cuda_device_count(&count, &failed));
    return count;
}

/// The device whose memory this address is in; INVALID_ARGUMENT where that is none.
inline result<std::uint32_t> cuda_device_of(const void *data)
{
    std::uint32_t device_id = 0;
    CALLBOARD_TRY(cbd_cuda_device_of(data, &device_id, &failed));
    return device_id;
}

/// The library's own stream of a device, a CUstream, which stays as long as one of these does.
class cuda_stream {
public:
    cuda_stream() = default;

    static result<cuda_stream> of(std::uint32_t device_id)
    {
        std::uint64_t stream = 0;
        CALLBOARD_TRY(cbd_cuda_stream(device_id, &stream, &failed));
        return cuda_stream(stream, device_id);
    }

    /// As cbd_cuda_sync has it; 0: empty.
    std::uint64_t get() const noexcept { return reinterpret_cast<std::uintptr_t>(kept_.get()); }
    std::uint32_t device_id() const noexcept { return kept_.get_deleter().device_id; }

private:
    cuda_stream(std::uint64_t stream, std::uint32_t device_id)
        : kept_(reinterpret_cast<void *>(static_cast<std::uintptr_t>(stream)), {device_id})
    {
    }

    std::unique_ptr<void, detail::stream_releaser> kept_;
};

/// Memory of this process on a GPU. export_owned takes one as what keeps a tensor's data.
class cuda_memory {
public:
    cuda_memory() = default;
    void *get() const noexcept { return kept_.get(); }
    std::uint32_t device_id() const noexcept { return kept_.get_deleter().device_id; }

    /// A private copy of bytes on a GPU, made when this returns: it does not wait for what writes them.
    static result<cuda_memory> clone(const void *data, std::uint64_t bytes, std::uint32_t device_id)
    {
        void *copy = nullptr;
        CALLBOARD_TRY(cbd_cuda_clone(data, bytes, device_id, &copy, &failed));
        return cuda_memory(copy, device_id);
    }

private:
    cuda_memory(void *data, std::uint32_t device_id) : kept_(data, {device_id}) {}

    std::unique_ptr<void, detail::memory_releaser> kept_;
};

} // inline namespace
} // namespace callboard

#endif
