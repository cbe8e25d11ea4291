// std::span where the library has it, and else as much of it as is used here.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_SPAN_HPP
#define CALLBOARD_SPAN_HPP

#include <cstddef>
#include <type_traits>
#include <utility>

#if __has_include(<version>)
#include <version>
#endif
#if defined(__cpp_lib_span)
#include <span>
#endif

namespace callboard {

#if defined(__cpp_lib_span)
template <class T>
using span = std::span<T>;
#else
/// A pointer and a size, as std::span has them.
template <class T>
class span {
public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class From, class = std::enable_if_t<std::is_convertible_v<
                              std::remove_pointer_t<decltype(std::declval<From &>().data())> (*)[], T (*)[]>>>
    constexpr span(From &&from) noexcept : data_(from.data()), size_(from.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T &operator[](std::size_t i) const { return data_[i]; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

} // namespace callboard

#endif
