// Memory of GPUs: who calls what is here links libcallboard_cuda.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_CUDA_HPP
#define CALLBOARD_CUDA_HPP

#include "../callboard_cuda.h"
#include "error.hpp"

namespace callboard {
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

} // inline namespace
} // namespace callboard

#endif
