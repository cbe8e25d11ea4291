// What is the process's own: versions, and the log.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_LIBRARY_HPP
#define CALLBOARD_LIBRARY_HPP

#include "error.hpp"

#include <array>
#include <functional>

namespace callboard {
inline namespace CALLBOARD_FORM {

/// The version of the ABI that the library speaks, "1.0".
inline std::string_view abi_version() { return cbd_abi_version(); }

/// The version of the library that runs: major, minor, patch.
inline std::array<std::uint32_t, 3> library_version()
{
    std::array<std::uint32_t, 3> out;
    cbd_library_version(out.data());
    return out;
}

/// The process's one log callback, as long as this lives. It is called on a thread of the library's and must not throw;
/// what it may call stands at cbd_log_callback.
class log_handler {
public:
    using callback = std::function<void(std::uint32_t severity, std::uint64_t time_ns, const char *text)>;

    log_handler() = default;

    /// threshold: CBD_LOG_*; channels: names with commas between them, or all. ALREADY_EXISTS: remove the other one first.
    static result<log_handler> install(callback to, std::uint32_t threshold = CBD_LOG_INFO, const std::string &channels = {})
    {
        auto kept = std::make_unique<callback>(std::move(to));
        CALLBOARD_TRY(cbd_log_install(*kept ? call : nullptr, kept.get(), threshold, channels.c_str(), &failed));
        return log_handler(kept.release());
    }

    /// Waits until what was logged before is delivered.
    result<void> flush(std::chrono::nanoseconds timeout = forever) const
    {
        CALLBOARD_TRY(cbd_log_flush(detail::nanoseconds(timeout), &failed));
        return result<void>();
    }

private:
    // Within the callback nothing can be removed: then it stays, and so does what it needs.
    struct remover {
        void operator()(callback *kept) const noexcept
        {
            if (cbd_log_remove(nullptr) == CBD_STATUS_OK)
                delete kept;
        }
    };

    explicit log_handler(callback *kept) : kept_(kept) {}

    static void call(void *context, std::uint32_t severity, std::uint64_t time_ns, const char *text)
    {
        (*static_cast<callback *>(context))(severity, time_ns, text);
    }

    std::unique_ptr<callback, remover> kept_;
};

} // inline namespace
} // namespace callboard

#endif
