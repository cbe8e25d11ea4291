// Filling in place.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_MAP_HPP
#define CALLBOARD_MAP_HPP

#include "dlpack.hpp"
#include "query.hpp"

namespace callboard {
inline namespace CALLBOARD_FORM {

/// One run of rows to fill. Belongs to its session, and is good as long as that.
class group {
public:
    explicit group(cbd_group *record) : record_(record) {}
    cbd_group *get() const noexcept { return record_; }
    const cbd_group *operator->() const noexcept { return record_; }
    span<const std::uint64_t> prims() const { return {record_->prims, record_->rows}; }

    /// Whether data is a pointer of a GPU: then rows, values and array are NOT_SUPPORTED, and tensor and dlpack describe it.
    bool on_device() const noexcept { return record_->device_type == CBD_DEVICE_CUDA; }

    /// The rows, as T; INVALID_ARGUMENT where they are none.
    template <class T>
    result<span<T>> rows() const
    {
        detail::check_row<T>();
        if (on_device())
            CALLBOARD_FAIL(detail::not_here(record_->attribute, record_->device_id));
        if (!detail::fits<T>(record_->schema) || record_->row_bytes != sizeof(T) || record_->schema.kind != CBD_KIND_FIXED)
            CALLBOARD_FAIL(detail::mismatch<T>(record_->attribute, record_->schema, record_->row_bytes));
        return span<T>(static_cast<T *>(record_->data), record_->rows);
    }

    /// All elements of the rows one after the other: the pixels of an image, the points of a scan. T is a number, or what
    /// has the lanes of the attribute.
    template <class T>
    result<span<T>> values() const
    {
        detail::check_row<T>();
        if (on_device())
            CALLBOARD_FAIL(detail::not_here(record_->attribute, record_->device_id));
        if (!detail::fits_values<T>(record_->schema))
            CALLBOARD_FAIL(detail::mismatch<T>(record_->attribute, record_->schema, record_->row_bytes));
        return span<T>(static_cast<T *>(record_->data), record_->rows * record_->row_bytes / sizeof(T));
    }

    /// Array kind: the elements of prim i's row.
    template <class T>
    result<span<T>> array(std::size_t i) const
    {
        detail::check_row<T>();
        if (record_->arrays == nullptr || i >= record_->rows || !detail::fits<T>(record_->schema) || record_->row_bytes != sizeof(T))
            CALLBOARD_FAIL(detail::mismatch<T>(record_->attribute, record_->schema, record_->row_bytes));
        return span<T>(static_cast<T *>(record_->arrays[i].data), record_->arrays[i].elements);
    }

    /// Describes what there is to fill: of array kind the elements of prim i's row.
    result<tensor_view> tensor(std::size_t i = 0) const { return tensor_view::of<const cbd_group>(record_, i); }

    /// An export for a consumer that fills it.
    template <class Managed = DLManagedTensorVersioned>
    result<dlpack_owner<Managed>> dlpack(std::size_t i = 0, std::uint32_t flags = 0) const
    {
        Managed *managed = nullptr;
        CALLBOARD_TRY(detail::export_group(record_, i, flags, &managed, &failed));
        return dlpack_owner<Managed>(managed);
    }

    /// Hands this group back, committed.
    result<op> unmap(std::uint32_t flags = 0) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_unmap_group(record_, flags, &handle, &failed));
        return op(handle);
    }

    /// Hands a group on a GPU back, committed when what is queued there by now has happened.
    result<op> unmap(std::uint32_t flags, const cbd_cuda_sync &sync) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_unmap_group_after(record_, flags, &sync, &handle, &failed));
        return op(handle);
    }

    /// Gives a group of a session of several back unfilled: it is anybody's again.
    result<void> give_up() const
    {
        CALLBOARD_TRY(cbd_give_up_group(record_, &failed));
        return result<void>();
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

    /// How many groups there are, whoever fills them.
    std::uint64_t group_count() const { return cbd_session_group_count(get()); }

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

    /// The same of groups on a GPU, committed when what is queued there by now has happened.
    result<op> unmap(std::uint32_t flags, const cbd_cuda_sync &sync) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_unmap_attribute_after(get(), flags, &sync, &handle, &failed));
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

/// A group that was claimed of another client's session. What is not unmapped when it goes is given up.
class claimed_group {
public:
    claimed_group() = default;
    explicit claimed_group(cbd_group *record) : session_(record->session), group_(record) {}
    const group &operator*() const noexcept { return group_; }
    const group *operator->() const noexcept { return &group_; }

private:
    detail::owner<cbd_session, cbd_session_release> session_;
    group group_{nullptr};
};

} // inline namespace
} // namespace callboard

#endif
