// Callboard for C++17 and later: callboard.h with owners, spans and types of rows. One header; link libcallboard.
//
//     callboard::stage stage = callboard::stage::connect();
//     callboard::query robots = stage.query({"/World/Robot3", "/World/Robot7"});
//
//     callboard::session session = stage.map<point>(robots, "position", callboard::next_ordinal);
//     while (auto group = session.next())
//         for (point &p : group->rows<point>())
//             p = {1, 2, 3};
//     session.unmap(CBD_FLAG_SEAL).wait();
//
//     callboard::read read = stage.read(robots, {"position"});
//     while (auto group = read.next())
//         for (std::size_t i = 0; i < group->prims().size(); i++)
//             use(group->prims()[i], group->row<point>(i));
//
// Each class owns one handle of C and gives it back; it moves and does not copy, and an empty one (default-made, moved
// from) may only be assigned to and destroyed. get() is the handle for what is not wrapped here. What the calls mean,
// their errors, and which thread may call what stand in callboard.h: nothing here adds to that.
//
// A call that fails throws callboard::error. With CALLBOARD_NO_EXCEPTIONS, and where the compiler has none, the same
// calls return callboard::result<T>, which is T or an error, and is asked before it is used. Both may be in one program.
#ifndef CALLBOARD_HPP
#define CALLBOARD_HPP

#include "callboard.h"
#include "callboard_dlpack.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if __has_include(<version>)
#include <version>
#endif
#if defined(__cpp_lib_span)
#include <span>
#endif

#if !defined(CALLBOARD_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define CALLBOARD_NO_EXCEPTIONS
#endif
#if !defined(CALLBOARD_NO_EXCEPTIONS)
#include <stdexcept>
#endif

namespace callboard {

// ---- spans ------------------------------------------------------------------

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

// ---- types of rows ------------------------------------------------------------

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

// ---- errors ---------------------------------------------------------------------

using status = cbd_status; // CBD_STATUS_*

#if defined(CALLBOARD_NO_EXCEPTIONS)
inline namespace without_exceptions {

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
inline namespace with_exceptions {

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

// ---- handles ----------------------------------------------------------------------

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

inline cbd_error mismatch(const char *name, const cbd_schema &schema, std::uint64_t row_bytes, unsigned code, unsigned bits,
                          std::size_t bytes)
{
    cbd_error failed;
    failed.status = CBD_STATUS_INVALID_ARGUMENT;
    const std::string text = "\"" + std::string(name).substr(0, 200) + "\" has rows of " + std::to_string(row_bytes) +
                             " bytes of DLPack code " + std::to_string(schema.code) + " and " + std::to_string(schema.bits) +
                             " bits, asked for are " + std::to_string(bytes) + " bytes of code " + std::to_string(code) + " and " +
                             std::to_string(bits) + " bits";
    failed.text[text.copy(failed.text, sizeof failed.text - 1)] = 0;
    return failed;
}

} // namespace detail

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

/// An operation that was submitted. Given back while it is pending, it goes on.
class op {
public:
    op() = default;
    explicit op(cbd_op *handle) : handle_(handle) {}
    cbd_op *get() const noexcept { return handle_.get(); }
    std::uint64_t id() const { return cbd_op_id(get()); }

    /// The outcome; an error is the op's own, or TIMEOUT.
    result<cbd_op_result> wait(std::chrono::nanoseconds timeout = forever) const
    {
        cbd_op_result outcome{};
        CALLBOARD_TRY(cbd_op_wait(get(), detail::nanoseconds(timeout), &outcome, &failed));
        return outcome;
    }

private:
    detail::owner<cbd_op, cbd_op_release> handle_;
};

/// An ordered list of prims.
class query {
public:
    query() = default;
    explicit query(cbd_query *handle) : handle_(handle) {}
    cbd_query *get() const noexcept { return handle_.get(); }
    std::size_t size() const { return static_cast<std::size_t>(cbd_query_size(get())); }
    span<const std::uint64_t> ids() const { return {cbd_query_ids(get()), size()}; }

    result<void> wait(std::chrono::nanoseconds timeout = forever) const
    {
        CALLBOARD_TRY(cbd_query_wait(get(), detail::nanoseconds(timeout), &failed));
        return result<void>();
    }

private:
    detail::owner<cbd_query, cbd_query_release> handle_;
};

// ---- filling in place ----------------------------------------------------------------

/// One run of rows to fill. Belongs to its session, and is good as long as that.
class group {
public:
    explicit group(cbd_group *record) : record_(record) {}
    cbd_group *get() const noexcept { return record_; }
    const cbd_group *operator->() const noexcept { return record_; }
    span<const std::uint64_t> prims() const { return {record_->prims, static_cast<std::size_t>(record_->rows)}; }

    /// The rows, as T; INVALID_ARGUMENT where they are none.
    template <class T>
    result<span<T>> rows() const
    {
        detail::check_row<T>();
        if (!detail::fits<T>(record_->schema) || record_->row_bytes != sizeof(T) || record_->schema.kind != CBD_KIND_FIXED)
            CALLBOARD_FAIL(detail::mismatch(record_->attribute, record_->schema, record_->row_bytes, row_type<T>::code, row_type<T>::bits, sizeof(T)));
        return span<T>(static_cast<T *>(record_->data), static_cast<std::size_t>(record_->rows));
    }

    /// All elements of the rows one after the other: the pixels of an image, the points of a scan. T is a number, or what
    /// has the lanes of the attribute.
    template <class T>
    result<span<T>> values() const
    {
        detail::check_row<T>();
        if (!detail::fits_values<T>(record_->schema))
            CALLBOARD_FAIL(detail::mismatch(record_->attribute, record_->schema, record_->row_bytes, row_type<T>::code, row_type<T>::bits, sizeof(T)));
        return span<T>(static_cast<T *>(record_->data), static_cast<std::size_t>(record_->rows * record_->row_bytes / sizeof(T)));
    }

    /// Array kind: the elements of prim i's row.
    template <class T>
    result<span<T>> array(std::size_t i) const
    {
        detail::check_row<T>();
        if (record_->arrays == nullptr || i >= record_->rows || !detail::fits<T>(record_->schema) || record_->row_bytes != sizeof(T))
            CALLBOARD_FAIL(detail::mismatch(record_->attribute, record_->schema, record_->row_bytes, row_type<T>::code, row_type<T>::bits, sizeof(T)));
        return span<T>(static_cast<T *>(record_->arrays[i].data), static_cast<std::size_t>(record_->arrays[i].elements));
    }

    /// As cbd_dlpack_export_map_versioned: whoever gets it calls its deleter.
    result<DLManagedTensorVersioned *> dlpack(std::size_t index = 0, std::uint32_t flags = 0) const
    {
        DLManagedTensorVersioned *managed = nullptr;
        CALLBOARD_TRY(cbd_dlpack_export_map_versioned(record_, index, flags, &managed, &failed));
        return managed;
    }

    /// Hands this group back, committed.
    result<op> unmap(std::uint32_t flags = 0) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_unmap_group(record_, flags, &handle, &failed));
        return op(handle);
    }

private:
    cbd_group *record_;
};

/// A map session. What is not unmapped when it goes is aborted.
class session {
public:
    session() = default;
    explicit session(cbd_session *handle) : handle_(handle) {}
    cbd_session *get() const noexcept { return handle_.get(); }

    /// The next group, none at the end.
    result<std::optional<group>> next() const
    {
        cbd_group *record = nullptr;
        cbd_error failed;
        const callboard::status got = cbd_fetch_map_next(get(), &record, &failed);
        if (got == CBD_STATUS_END)
            return std::optional<group>();
        if (got != CBD_STATUS_OK)
            CALLBOARD_FAIL(failed);
        return std::optional<group>(group(record));
    }

    /// Ends the session and commits what was not handed back. flags: CBD_FLAG_SEAL, CBD_FLAG_COPY.
    result<op> unmap(std::uint32_t flags = 0) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_unmap_attribute(get(), flags, &handle, &failed));
        return op(handle);
    }

    result<void> abort() const
    {
        CALLBOARD_TRY(cbd_abort(get(), &failed));
        return result<void>();
    }

private:
    detail::owner<cbd_session, cbd_session_release> handle_;
};

// ---- reading -----------------------------------------------------------------------------

/// Some prims of one attribute at one epoch, in place. Spans of it are good as long as it lives.
class read_group {
public:
    read_group() = default;
    explicit read_group(const cbd_read_group *record) : record_(record) {}
    const cbd_read_group *get() const noexcept { return record_.get(); }
    const cbd_read_group *operator->() const noexcept { return get(); }
    std::string_view name() const { return get()->name; }
    span<const std::uint64_t> prims() const { return {get()->prims, static_cast<std::size_t>(get()->prim_count)}; }

    /// Which row prim i has.
    std::size_t row_of(std::size_t i) const { return get()->index_map != nullptr ? get()->index_map[i] : i; }

    /// All rows, which may be the whole column's: prim i's is rows()[row_of(i)].
    template <class T>
    result<span<const T>> rows() const
    {
        detail::check_row<T>();
        if (!detail::fits<T>(get()->schema) || get()->row_bytes != sizeof(T) || get()->schema.kind != CBD_KIND_FIXED || get()->is_delete)
            CALLBOARD_FAIL(detail::mismatch(get()->name, get()->schema, get()->row_bytes, row_type<T>::code, row_type<T>::bits, sizeof(T)));
        return span<const T>(static_cast<const T *>(get()->data), static_cast<std::size_t>(get()->rows));
    }

    /// Prim i's row: a pointer without exceptions, where a reference cannot fail.
#if defined(CALLBOARD_NO_EXCEPTIONS)
    template <class T>
    result<const T *> row(std::size_t i) const
    {
        auto all = rows<T>();
        if (!all)
            return all.error();
        return &(*all)[row_of(i)];
    }
#else
    template <class T>
    const T &row(std::size_t i) const { return rows<T>()[row_of(i)]; }
#endif

    /// All elements of the rows one after the other, as group::values.
    template <class T>
    result<span<const T>> values() const
    {
        detail::check_row<T>();
        if (!detail::fits_values<T>(get()->schema) || get()->is_delete)
            CALLBOARD_FAIL(detail::mismatch(get()->name, get()->schema, get()->row_bytes, row_type<T>::code, row_type<T>::bits, sizeof(T)));
        return span<const T>(static_cast<const T *>(get()->data), static_cast<std::size_t>(get()->rows * get()->row_bytes / sizeof(T)));
    }

    /// Array kind: the elements of prim i's row.
    template <class T>
    result<span<const T>> array(std::size_t i) const
    {
        detail::check_row<T>();
        if (get()->arrays == nullptr || i >= get()->prim_count || !detail::fits<T>(get()->schema) || get()->row_bytes != sizeof(T))
            CALLBOARD_FAIL(detail::mismatch(get()->name, get()->schema, get()->row_bytes, row_type<T>::code, row_type<T>::bits, sizeof(T)));
        return span<const T>(static_cast<const T *>(get()->arrays[i].data), static_cast<std::size_t>(get()->arrays[i].elements));
    }

    /// As cbd_dlpack_export_read_versioned: independent of this group; whoever gets it calls its deleter.
    result<DLManagedTensorVersioned *> dlpack(std::size_t index = 0, std::uint32_t flags = 0) const
    {
        DLManagedTensorVersioned *managed = nullptr;
        CALLBOARD_TRY(cbd_dlpack_export_read_versioned(get(), index, flags, &managed, &failed));
        return managed;
    }

private:
    detail::owner<const cbd_read_group, cbd_release_group> record_;
};

/// A read: its groups, all of one epoch.
class read {
public:
    read() = default;
    explicit read(cbd_read *handle) : handle_(handle) {}
    cbd_read *get() const noexcept { return handle_.get(); }
    std::uint64_t epoch() const { return cbd_read_epoch(get()); }
    std::uint64_t ordinal() const { return cbd_read_ordinal(get()); }

    /// The next group, none at the end. It is independent of the read.
    result<std::optional<read_group>> next() const
    {
        const cbd_read_group *record = nullptr;
        cbd_error failed;
        const callboard::status got = cbd_fetch_read_next(get(), &record, &failed);
        if (got == CBD_STATUS_END)
            return std::optional<read_group>();
        if (got != CBD_STATUS_OK)
            CALLBOARD_FAIL(failed);
        return std::optional<read_group>(read_group(record));
    }

private:
    detail::owner<cbd_read, cbd_read_release> handle_;
};

/// Everything at one epoch.
class snapshot {
public:
    snapshot() = default;
    explicit snapshot(cbd_snapshot *handle) : handle_(handle) {}
    cbd_snapshot *get() const noexcept { return handle_.get(); }
    std::uint64_t epoch() const { return cbd_snapshot_epoch(get()); }
    std::uint64_t stamp_ns() const { return cbd_snapshot_stamp(get()); }

    result<std::uint64_t> floor(const std::string &name) const
    {
        std::uint64_t value = 0;
        CALLBOARD_TRY(cbd_snapshot_floor(get(), name.c_str(), &value, &failed));
        return value;
    }

    result<callboard::read> read(const query &prims, const names &attributes) const
    {
        cbd_read *handle = nullptr;
        const auto list = attributes.pointers();
        CALLBOARD_TRY(cbd_snapshot_read(get(), prims.get(), list.data(), list.size(), &handle, &failed));
        return callboard::read(handle);
    }

private:
    detail::owner<cbd_snapshot, cbd_snapshot_release> handle_;
};

/// A descriptor for poll, epoll and the loops on top of them: readable when there is something to look at.
class events {
public:
    events() = default;
    explicit events(cbd_events *handle) : handle_(handle) {}
    cbd_events *get() const noexcept { return handle_.get(); }
    int fileno() const noexcept { return cbd_events_fileno(get()); }

    /// Makes it not readable; the newest epoch.
    result<std::uint64_t> drain() const
    {
        std::uint64_t epoch = 0;
        CALLBOARD_TRY(cbd_events_drain(get(), &epoch, &failed));
        return epoch;
    }

private:
    detail::owner<cbd_events, cbd_events_release> handle_;
};

// ---- the stage ---------------------------------------------------------------------------------

/// A session with the broker. Whatever was made of it may outlive it.
class stage {
public:
    stage() = default;
    explicit stage(cbd_stage *handle) : handle_(handle) {}
    cbd_stage *get() const noexcept { return handle_.get(); }

    /// name "": $CALLBOARD_STAGE, else "default".
    static result<stage> connect(const std::string &name = {}, const cbd_connect_options &options = {})
    {
        cbd_stage *handle = nullptr;
        CALLBOARD_TRY(cbd_connect(name.empty() ? nullptr : name.c_str(), &options, &handle, &failed));
        return stage(handle);
    }

    void close() const { cbd_stage_close(get()); }
    bool alive() const { return cbd_stage_is_alive(get()) != 0; }
    std::uint64_t epoch() const { return cbd_epoch(get()); }

    result<cbd_stage_info> info() const
    {
        cbd_stage_info known;
        CALLBOARD_TRY(cbd_stage_get_info(get(), &known, &failed));
        return known;
    }

    /// Waits for an epoch above `after`; TIMEOUT.
    result<std::uint64_t> follow(std::uint64_t after, std::chrono::nanoseconds timeout = forever) const
    {
        std::uint64_t epoch = 0;
        CALLBOARD_TRY(cbd_follow(get(), after, detail::nanoseconds(timeout), &epoch, &failed));
        return epoch;
    }

    /// For an event loop; each loop has its own.
    result<callboard::events> events() const
    {
        cbd_events *handle = nullptr;
        CALLBOARD_TRY(cbd_events_open(get(), &handle, &failed));
        return callboard::events(handle);
    }

    result<std::uint64_t> write_floor(const std::string &name) const
    {
        std::uint64_t value = 0;
        CALLBOARD_TRY(cbd_write_floor(get(), name.c_str(), &value, &failed));
        return value;
    }

    /// The text of a path id or token id; good until the stage is closed.
    result<std::string_view> resolve(std::uint64_t id) const
    {
        const char *text = nullptr;
        std::size_t length = 0;
        CALLBOARD_TRY(cbd_resolve(get(), id, &text, &length, &failed));
        return std::string_view(text, length);
    }

    /// The prims of these paths, in this order.
    result<callboard::query> query(const names &paths) const
    {
        cbd_query *handle = nullptr;
        const auto list = paths.pointers();
        CALLBOARD_TRY(cbd_query_from_path_list(get(), list.data(), nullptr, list.size(), &handle, &failed));
        return callboard::query(handle);
    }

    /// The prims that satisfy a filter.
    result<callboard::query> query(const cbd_filter &filter) const
    {
        cbd_query *handle = nullptr;
        CALLBOARD_TRY(cbd_query_filter(get(), &filter, &handle, &failed));
        return callboard::query(handle);
    }

    /// The prim "/".
    result<callboard::query> root() const
    {
        cbd_query *handle = nullptr;
        CALLBOARD_TRY(cbd_root_query(get(), &handle, &failed));
        return callboard::query(handle);
    }

    /// States that rows are T, or arrays of T with this shape, before anybody writes them. retain: how many versions are
    /// kept; 0: as the stage says. Other settings than these: cbd_declare.
    template <class T>
    result<op> declare(const std::string &name, std::initializer_list<std::uint64_t> row_shape = {}, std::uint32_t retain = 0) const
    {
        cbd_schema schema{};
        schema.kind = CBD_KIND_FIXED;
        schema.device_type = CBD_DEVICE_CPU;
        detail::describe<T>(schema, row_shape);
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_declare(get(), name.c_str(), &schema, retain, CBD_HANDOFF_DEFAULT, &handle, &failed));
        return op(handle);
    }

    /// Opens a session to fill a row for each prim: a T, or an array of T with this shape. Other options than these: map
    /// with cbd_map_options.
    template <class T>
    result<session> map(const callboard::query &prims, const std::string &name, ordinal at, std::initializer_list<std::uint64_t> row_shape = {}) const
    {
        cbd_map_options options{};
        options.ordinal = at.value();
        options.next_ordinal = at.next();
        detail::describe<T>(options, row_shape);
        return map(prims, name, options);
    }

    result<session> map(const callboard::query &prims, const std::string &name, const cbd_map_options &options) const
    {
        cbd_session *handle = nullptr;
        CALLBOARD_TRY(cbd_map_attribute(get(), prims.get(), name.c_str(), &options, &handle, &failed));
        return session(handle);
    }

    /// Copies a row of T for each prim. Other options than these: write with cbd_tensor and cbd_write_options.
    template <class T>
    result<op> write(const callboard::query &prims, const std::string &name, span<const T> rows, ordinal at) const
    {
        detail::check_row<T>();
        const std::int64_t shape[1] = {static_cast<std::int64_t>(rows.size())};
        cbd_write_options options = cbd_write_options_default();
        options.ordinal = at.value();
        options.next_ordinal = at.next();
        return write(prims, name, tensor<T>(rows.data(), 1, shape, row_type<T>::lanes), options);
    }

    result<op> write(const callboard::query &prims, const std::string &name, const cbd_tensor &data, const cbd_write_options &options) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_write_attribute(get(), prims.get(), name.c_str(), &data, &options, &handle, &failed));
        return op(handle);
    }

    /// One value under a name: an array of this shape. INVALID_ARGUMENT where it does not have so many values.
    template <class T>
    result<op> publish(const std::string &name, span<const T> values, std::initializer_list<std::int64_t> shape) const
    {
        static_assert(row_type<T>::lanes == 1, "values are numbers");
        std::uint64_t wanted = 1;
        for (std::int64_t extent : shape)
            wanted *= static_cast<std::uint64_t>(extent);
        if (wanted != values.size()) {
            cbd_error failed;
            failed.status = CBD_STATUS_INVALID_ARGUMENT;
            const std::string text = "the shape has " + std::to_string(wanted) + " values, given are " + std::to_string(values.size());
            failed.text[text.copy(failed.text, sizeof failed.text - 1)] = 0;
            CALLBOARD_FAIL(failed);
        }
        return publish(name, tensor<T>(values.data(), static_cast<std::int32_t>(shape.size()), shape.begin(), 1));
    }

    result<op> publish(const std::string &name, const cbd_tensor &data) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_publish(get(), name.c_str(), &data, CBD_SEMANTIC_NONE, &handle, &failed));
        return op(handle);
    }

    /// Seals everything up to an ordinal, of all attributes.
    result<op> advance_write_floor(std::uint64_t ordinal, std::uint64_t stamp_ns = 0) const
    {
        return seal(ordinal, CBD_SCOPE_ALL, {}, stamp_ns);
    }

    /// Of the named ones.
    result<op> advance_write_floor(std::uint64_t ordinal, const names &attributes, std::uint64_t stamp_ns = 0) const
    {
        return seal(ordinal, CBD_SCOPE_INCLUDE, attributes.pointers(), stamp_ns);
    }

    /// The newest sealed state of the named attributes.
    result<callboard::read> read(const callboard::query &prims, const names &attributes) const
    {
        cbd_read *handle = nullptr;
        const auto list = attributes.pointers();
        CALLBOARD_TRY(cbd_read_attributes(get(), prims.get(), list.data(), list.size(), &handle, &failed));
        return callboard::read(handle);
    }

    /// As of an ordinal, or what changed after one.
    result<callboard::read> read(const callboard::query &prims, const names &attributes, const cbd_range &range) const
    {
        cbd_read *handle = nullptr;
        const auto list = attributes.pointers();
        CALLBOARD_TRY(cbd_read_range(get(), prims.get(), list.data(), list.size(), &range, &handle, &failed));
        return callboard::read(handle);
    }

    /// The newest value under a name.
    result<read_group> latest(const std::string &name) const
    {
        const cbd_read_group *record = nullptr;
        CALLBOARD_TRY(cbd_latest(get(), name.c_str(), &record, &failed));
        return read_group(record);
    }

    result<callboard::snapshot> snapshot() const
    {
        cbd_snapshot *handle = nullptr;
        CALLBOARD_TRY(cbd_snapshot_open(get(), &handle, &failed));
        return callboard::snapshot(handle);
    }

private:
    template <class T>
    static cbd_tensor tensor(const T *data, std::int32_t ndim, const std::int64_t *shape, std::uint16_t lanes)
    {
        cbd_tensor out{};
        out.data = data;
        out.ndim = ndim;
        out.shape = shape;
        out.code = row_type<T>::code;
        out.bits = row_type<T>::bits;
        out.lanes = lanes;
        out.device_type = CBD_DEVICE_CPU;
        return out;
    }

    result<op> seal(std::uint64_t ordinal, std::uint32_t scope, const std::vector<const char *> &list, std::uint64_t stamp_ns) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_advance_write_floor(get(), ordinal, scope, list.data(), list.size(), stamp_ns, &handle, &failed));
        return op(handle);
    }

    detail::owner<cbd_stage, cbd_stage_release> handle_;
};

} // namespace with_exceptions, or without_exceptions
} // namespace callboard

#undef CALLBOARD_TRY
#undef CALLBOARD_FAIL

#endif
