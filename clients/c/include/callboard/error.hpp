// Errors as exceptions or as results, and owners of handles.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_ERROR_HPP
#define CALLBOARD_ERROR_HPP

#include "../callboard.h"
#include "span.hpp"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if !defined(CALLBOARD_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define CALLBOARD_NO_EXCEPTIONS
#endif
#if !defined(CALLBOARD_NO_EXCEPTIONS)
#include <stdexcept>
#endif

// The two forms have namespaces of their own, so that both may be in one program.
#if defined(CALLBOARD_NO_EXCEPTIONS)
#define CALLBOARD_FORM without_exceptions
#else
#define CALLBOARD_FORM with_exceptions
#endif

namespace callboard {

namespace detail {

template <auto Release>
struct releaser {
    template <class T>
    void operator()(T *handle) const noexcept { Release(handle); }
};

template <class T, auto Release>
using owner = std::unique_ptr<T, releaser<Release>>;

inline std::uint64_t nanoseconds(std::chrono::nanoseconds time)
{
    if (time == std::chrono::nanoseconds::max())
        return UINT64_MAX;
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

inline std::vector<const char *> pointers(span<const std::string> texts)
{
    std::vector<const char *> out;
    out.reserve(texts.size());
    for (const std::string &text : texts)
        out.push_back(text.c_str());
    return out;
}

inline cbd_error failure(cbd_status code, const std::string &text)
{
    cbd_error failed;
    failed.status = code;
    failed.text[text.copy(failed.text, sizeof failed.text - 1)] = 0;
    return failed;
}

} // namespace detail

inline namespace CALLBOARD_FORM {

using status = cbd_status; // CBD_STATUS_*

/// The stable name, "FLOOR_VIOLATION".
inline std::string_view status_name(status code) { return cbd_status_name(code); }

/// A short sentence for people.
inline std::string_view status_text(status code) { return cbd_status_text(code); }

#if defined(CALLBOARD_NO_EXCEPTIONS)

/// The status and text of a call that failed.
class error {
public:
    explicit error(const cbd_error &from) : from_(from) {}
    callboard::status code() const noexcept { return from_.status; }
    const char *what() const noexcept { return from_.text; }

private:
    cbd_error from_;
};

/// T, or why there is none. To take the value of an error ends the program.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) : value_(std::move(value)) {}
    result(callboard::error failed) : error_(std::move(failed)) {}
    explicit operator bool() const noexcept { return value_.has_value(); }
    T &value() & { return checked(); }
    T &&value() && { return std::move(checked()); }
    T &operator*() & { return checked(); }
    T *operator->() { return &checked(); }
    const callboard::error &error() const { return error_.value(); }

private:
    T &checked()
    {
        if (!value_)
            std::abort();
        return *value_;
    }
    std::optional<T> value_;
    std::optional<callboard::error> error_;
};

template <>
class [[nodiscard]] result<void> {
public:
    result() = default;
    result(callboard::error failed) : error_(std::move(failed)) {}
    explicit operator bool() const noexcept { return !error_; }
    const callboard::error &error() const { return error_.value(); }

private:
    std::optional<callboard::error> error_;
};

#define CALLBOARD_FAIL(from) return ::callboard::error(from)
#else

/// The status and text of a call that failed.
class error : public std::runtime_error {
public:
    explicit error(const cbd_error &from) : std::runtime_error(from.text), code_(from.status) {}
    callboard::status code() const noexcept { return code_; }

private:
    callboard::status code_;
};

template <class T>
using result = T;

#define CALLBOARD_FAIL(from) throw ::callboard::error(from)
#endif

/// For a call of C that takes `&failed`: leaves the function with the error.
#define CALLBOARD_TRY(call)                 \
    do {                                    \
        cbd_error failed;                   \
        if ((call) != CBD_STATUS_OK)        \
            CALLBOARD_FAIL(failed);         \
    } while (0)

/// For ever, where a wait takes a time.
inline constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();

/// In place of an ordinal: the broker takes the next one.
struct next_ordinal_t {};
inline constexpr next_ordinal_t next_ordinal{};

/// An ordinal of one's own, or next_ordinal.
class ordinal {
public:
    ordinal(std::uint64_t value) : value_(value) {}
    ordinal(next_ordinal_t) : next_(true) {}
    std::uint64_t value() const noexcept { return value_; }
    bool next() const noexcept { return next_; }

private:
    std::uint64_t value_ = 0;
    bool next_ = false;
};

/// Names, or texts of another sort: {"a", "b"}, or any range of std::string that lies in one piece.
class names {
public:
    names(std::initializer_list<const char *> list) : own_(list.begin(), list.end()), all_(own_.data(), own_.size()) {}
    names(const std::vector<std::string> &list) : all_(list.data(), list.size()) {}
    names(span<const std::string> list) : all_(list) {}
    names(const names &) = delete;
    names &operator=(const names &) = delete;
    std::vector<const char *> pointers() const { return detail::pointers(all_); }

private:
    std::vector<std::string> own_;
    span<const std::string> all_;
};

} // inline namespace
} // namespace callboard

#endif
