// Which C++ types the rows of an attribute may have.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_ROWS_HPP
#define CALLBOARD_ROWS_HPP

#include "../callboard.h"
#include "error.hpp"

#include <algorithm>
#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace callboard {

/// What one row of T is: code, bits and lanes. Of numbers, std::complex and std::array of them; say it of a struct of
/// equal members by
///
///     template <> struct callboard::row_type<point> : callboard::lanes_of<float, 3> {};
template <class T, class = void>
struct row_type;

template <>
struct row_type<bool> {
    static constexpr std::uint8_t code = CBD_DTYPE_BOOL, bits = 8;
    static constexpr std::uint16_t lanes = 1;
};

template <class T>
struct row_type<T, std::enable_if_t<std::is_arithmetic_v<T> && sizeof(T) <= 8 && !std::is_same_v<T, bool>>> {
    static constexpr std::uint8_t code = std::is_floating_point_v<T> ? CBD_DTYPE_FLOAT
                                         : std::is_signed_v<T>       ? CBD_DTYPE_INT
                                                                     : CBD_DTYPE_UINT;
    static constexpr std::uint8_t bits = sizeof(T) * 8;
    static constexpr std::uint16_t lanes = 1;
};

template <class T>
struct row_type<std::complex<T>, std::enable_if_t<std::is_same_v<T, float> || std::is_same_v<T, double>>> {
    static constexpr std::uint8_t code = CBD_DTYPE_COMPLEX, bits = sizeof(T) * 16;
    static constexpr std::uint16_t lanes = 1;
};

template <class T, std::size_t N>
struct lanes_of {
    static_assert(N >= 1 && N <= 255, "a row has 1 to 255 lanes");
    static_assert(row_type<T>::lanes == 1, "lanes of lanes are more lanes of one type");
    static constexpr std::uint8_t code = row_type<T>::code, bits = row_type<T>::bits;
    static constexpr std::uint16_t lanes = N;
};

template <class T, std::size_t N>
struct row_type<std::array<T, N>> : lanes_of<T, N> {};

namespace detail {

template <class T>
constexpr void check_row()
{
    static_assert(std::is_trivially_copyable_v<T>, "rows are plain bytes");
    static_assert(sizeof(T) == std::size_t{row_type<T>::bits} / 8 * row_type<T>::lanes, "row_type does not say how large T is");
}

template <class T>
bool fits(const cbd_schema &schema)
{
    return schema.code == row_type<T>::code && schema.bits == row_type<T>::bits;
}

/// Whether a row is some T, one after the other.
template <class T>
bool fits_values(const cbd_schema &schema)
{
    return fits<T>(schema) && schema.kind == CBD_KIND_FIXED && (row_type<T>::lanes == 1 || row_type<T>::lanes == schema.lanes);
}

/// The type and the row shape, for C to judge: a shape that is too long as well.
template <class T, class Options>
void describe(Options &options, std::initializer_list<std::uint64_t> row_shape)
{
    check_row<T>();
    options.code = row_type<T>::code;
    options.bits = row_type<T>::bits;
    options.lanes = row_type<T>::lanes;
    options.row_ndim = static_cast<std::uint32_t>(row_shape.size());
    std::copy_n(row_shape.begin(), std::min<std::size_t>(row_shape.size(), CBD_ROW_NDIM_MAX), options.row_shape);
}

template <class T>
cbd_error mismatch(const char *name, const cbd_schema &schema, std::uint64_t row_bytes)
{
    return failure(CBD_STATUS_INVALID_ARGUMENT,
                   "\"" + std::string(name).substr(0, 200) + "\" has rows of " + std::to_string(row_bytes) + " bytes of DLPack code " +
                       std::to_string(schema.code) + " and " + std::to_string(schema.bits) + " bits, asked for are " +
                       std::to_string(sizeof(T)) + " bytes of code " + std::to_string(row_type<T>::code) + " and " +
                       std::to_string(row_type<T>::bits) + " bits");
}

inline cbd_error not_here(const char *name, std::uint32_t device)
{
    return failure(CBD_STATUS_NOT_SUPPORTED, "\"" + std::string(name).substr(0, 200) + "\" lies on GPU " + std::to_string(device) +
                                                 ", where no program of the host can look: use get()->data or dlpack() there, or read it on the host");
}

} // namespace detail

/// A tensor of numbers or rows in memory of the caller: data, shape and strides are borrowed. A row of several lanes is
/// one element.
template <class T>
cbd_tensor tensor_of(const T *data, std::int32_t ndim, const std::int64_t *shape, const std::int64_t *strides = nullptr)
{
    detail::check_row<T>();
    cbd_tensor out{};
    out.data = data;
    out.ndim = ndim;
    out.shape = shape;
    out.strides = strides;
    out.code = row_type<T>::code;
    out.bits = row_type<T>::bits;
    out.lanes = row_type<T>::lanes;
    out.device_type = CBD_DEVICE_CPU;
    return out;
}

/// The schema of rows of T; row_shape: so many T to a row.
template <class T>
cbd_schema schema_of(std::initializer_list<std::uint64_t> row_shape = {}, std::uint32_t semantic = CBD_SEMANTIC_NONE, bool is_array = false)
{
    cbd_schema out{};
    out.kind = is_array ? CBD_KIND_ARRAY : CBD_KIND_FIXED;
    out.semantic = semantic;
    out.device_type = CBD_DEVICE_CPU;
    detail::describe<T>(out, row_shape);
    return out;
}

inline namespace CALLBOARD_FORM {

/// Bytes of one fixed row; INVALID_ARGUMENT or NOT_SUPPORTED when no column can have this schema.
inline result<std::uint64_t> row_bytes(const cbd_schema &schema)
{
    std::uint64_t bytes = 0;
    CALLBOARD_TRY(cbd_schema_row_bytes(&schema, &bytes, &failed));
    return bytes;
}

} // inline namespace
} // namespace callboard

#endif
