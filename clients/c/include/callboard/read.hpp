// Reading in place, and snapshots.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_READ_HPP
#define CALLBOARD_READ_HPP

#include "../callboard_cuda.h"
#include "dlpack.hpp"
#include "query.hpp"

namespace callboard {
inline namespace CALLBOARD_FORM {

/// A reference on a pin, which keeps data that was read. Goes on any thread, also after the stage.
class pin {
public:
    pin() = default;
    explicit pin(cbd_pin *retained) : handle_(retained) {}
    cbd_pin *get() const noexcept { return handle_.get(); }
    explicit operator bool() const noexcept { return handle_ != nullptr; }

    /// One more reference.
    pin share() const { return pin(get() != nullptr ? cbd_pin_retain(get()) : nullptr); }

private:
    detail::owner<cbd_pin, cbd_pin_release> handle_;
};

/// Some prims of one attribute at one epoch, in place. Spans of it are good as long as it lives.
class read_group {
public:
    read_group() = default;
    explicit read_group(const cbd_read_group *record) : record_(record) {}
    const cbd_read_group *get() const noexcept { return record_.get(); }
    const cbd_read_group *operator->() const noexcept { return get(); }
    std::string_view name() const { return get()->name; }
    span<const std::uint64_t> prims() const { return {get()->prims, get()->prim_count}; }

    /// Which row prim i has.
    std::size_t row_of(std::size_t i) const { return get()->index_map != nullptr ? get()->index_map[i] : i; }

    /// Whether data is a pointer of a GPU: then rows, row, values and array are NOT_SUPPORTED; see in().
    bool on_device() const noexcept { return get()->device_type == CBD_DEVICE_CUDA; }

    /// The same rows in other memory: CBD_DEVICE_CPU, or CBD_DEVICE_CUDA and a GPU.
    result<read_group> in(std::uint32_t device_type, std::uint32_t device_id = 0) const
    {
        const cbd_read_group *record = nullptr;
        CALLBOARD_TRY(cbd_read_group_in(get(), device_type, device_id, &record, &failed));
        return read_group(record);
    }

    /// Gives the group back when all that was queued in a stream of its GPU so far has ended, and waits for that; on failure
    /// it stays. Who calls this links libcallboard_cuda.
    result<void> release(std::uint64_t stream)
    {
        CALLBOARD_TRY(cbd_cuda_release_group(get(), stream, &failed));
        (void)record_.release();
        return result<void>();
    }

    /// All rows, which may be the whole column's: prim i's is rows()[row_of(i)].
    template <class T>
    result<span<const T>> rows() const
    {
        detail::check_row<T>();
        if (on_device())
            CALLBOARD_FAIL(detail::not_here(get()->name, get()->device_id));
        if (!detail::fits<T>(get()->schema) || get()->row_bytes != sizeof(T) || get()->schema.kind != CBD_KIND_FIXED || get()->is_delete)
            CALLBOARD_FAIL(detail::mismatch<T>(get()->name, get()->schema, get()->row_bytes));
        return span<const T>(static_cast<const T *>(get()->data), get()->rows);
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
        if (on_device())
            CALLBOARD_FAIL(detail::not_here(get()->name, get()->device_id));
        if (!detail::fits_values<T>(get()->schema) || get()->is_delete)
            CALLBOARD_FAIL(detail::mismatch<T>(get()->name, get()->schema, get()->row_bytes));
        return span<const T>(static_cast<const T *>(get()->data), get()->rows * get()->row_bytes / sizeof(T));
    }

    /// Array kind: the elements of prim i's row.
    template <class T>
    result<span<const T>> array(std::size_t i) const
    {
        detail::check_row<T>();
        if (get()->arrays == nullptr || i >= get()->prim_count || !detail::fits<T>(get()->schema) || get()->row_bytes != sizeof(T))
            CALLBOARD_FAIL(detail::mismatch<T>(get()->name, get()->schema, get()->row_bytes));
        return span<const T>(static_cast<const T *>(get()->arrays[i].data), get()->arrays[i].elements);
    }

    /// Describes the data: of array kind prim i's row.
    result<tensor_view> tensor(std::size_t i = 0) const { return tensor_view::of<const cbd_read_group>(get(), i); }

    /// An export, independent of this group.
    template <class Managed = DLManagedTensorVersioned>
    result<dlpack_owner<Managed>> dlpack(std::size_t i = 0, std::uint32_t flags = 0) const
    {
        Managed *managed = nullptr;
        CALLBOARD_TRY(detail::export_group(get(), i, flags, &managed, &failed));
        return dlpack_owner<Managed>(managed);
    }

    /// The ordinals that last wrote, or deleted, each of the prims.
    result<std::vector<std::uint64_t>> row_ordinals() const
    {
        std::vector<std::uint64_t> out(get()->prim_count);
        CALLBOARD_TRY(cbd_group_row_ordinals(get(), out.data(), &failed));
        return out;
    }

    /// Keeps the data, and what points to it, beyond this group; empty of "@path", whose data is the group's own.
    callboard::pin pin() const { return callboard::pin(get()->pin != nullptr ? cbd_pin_retain(get()->pin) : nullptr); }

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
        return judge(got, record, failed);
    }

    /// The same with data in the memory that is named: CBD_DEVICE_CPU, or CBD_DEVICE_CUDA and a GPU.
    result<std::optional<read_group>> next_in(std::uint32_t device_type, std::uint32_t device_id = 0) const
    {
        const cbd_read_group *record = nullptr;
        cbd_error failed;
        const callboard::status got = cbd_fetch_read_next_in(get(), device_type, device_id, &record, &failed);
        return judge(got, record, failed);
    }

private:
    static result<std::optional<read_group>> judge(callboard::status got, const cbd_read_group *record, const cbd_error &failed)
    {
        if (got == CBD_STATUS_END)
            return std::optional<read_group>();
        if (got != CBD_STATUS_OK)
            CALLBOARD_FAIL(failed);
        return std::optional<read_group>(read_group(record));
    }

    detail::owner<cbd_read, cbd_read_release> handle_;
};

/// How far a snapshot goes: what a later read of changes begins after. Outlives snapshot and session.
class cursor {
public:
    cursor() = default;
    explicit cursor(cbd_cursor *handle) : handle_(handle) {}
    cbd_cursor *get() const noexcept { return handle_.get(); }
    std::uint64_t epoch() const { return cbd_cursor_epoch(get()); }

private:
    detail::owner<cbd_cursor, cbd_cursor_release> handle_;
};

/// Everything at one epoch.
class snapshot {
public:
    snapshot() = default;
    explicit snapshot(cbd_snapshot *handle) : handle_(handle) {}
    cbd_snapshot *get() const noexcept { return handle_.get(); }
    std::uint64_t epoch() const { return cbd_snapshot_epoch(get()); }
    std::uint64_t stamp_ns() const { return cbd_snapshot_stamp(get()); }

    result<callboard::cursor> cursor() const
    {
        cbd_cursor *handle = nullptr;
        CALLBOARD_TRY(cbd_snapshot_cursor(get(), &handle, &failed));
        return callboard::cursor(handle);
    }

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

    /// What changed since a cursor's snapshot; of an empty one, all that is there.
    result<callboard::read> read_since(const query &prims, const names &attributes, const callboard::cursor &since) const
    {
        cbd_read *handle = nullptr;
        const auto list = attributes.pointers();
        CALLBOARD_TRY(cbd_snapshot_read_since(get(), prims.get(), list.data(), list.size(), since.get(), &handle, &failed));
        return callboard::read(handle);
    }

private:
    detail::owner<cbd_snapshot, cbd_snapshot_release> handle_;
};

} // inline namespace
} // namespace callboard

#endif
