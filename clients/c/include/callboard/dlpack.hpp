// Tensors out to, and in from, libraries that speak DLPack.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_DLPACK_HPP
#define CALLBOARD_DLPACK_HPP

#include "../callboard_dlpack.h"
#include "rows.hpp"

#include <cstring>

namespace callboard {
namespace detail {

struct calls_deleter {
    void operator()(DLManagedTensor *managed) const noexcept { call(reinterpret_cast<cbd_dlpack_managed *>(managed), managed); }
    void operator()(DLManagedTensorVersioned *managed) const noexcept
    {
        call(reinterpret_cast<cbd_dlpack_versioned *>(managed), managed);
    }

private:
    template <class Struct, class Managed>
    static void call(Struct *own, Managed *managed)
    {
        if (own->deleter != nullptr)
            own->deleter(managed);
    }
};

// The calls of C, by the form that is asked for.
inline cbd_status export_tensor(const cbd_tensor *t, std::uint32_t flags, cbd_dlpack_release *release, void *context,
                                DLManagedTensor **out, cbd_error *failed)
{
    return cbd_dlpack_export(t, flags, release, context, out, failed);
}
inline cbd_status export_tensor(const cbd_tensor *t, std::uint32_t flags, cbd_dlpack_release *release, void *context,
                                DLManagedTensorVersioned **out, cbd_error *failed)
{
    return cbd_dlpack_export_versioned(t, flags, release, context, out, failed);
}
inline cbd_status export_group(const cbd_read_group *group, std::uint64_t i, std::uint32_t flags, DLManagedTensor **out, cbd_error *failed)
{
    return cbd_dlpack_export_read(group, i, flags, out, failed);
}
inline cbd_status export_group(const cbd_read_group *group, std::uint64_t i, std::uint32_t flags, DLManagedTensorVersioned **out,
                               cbd_error *failed)
{
    return cbd_dlpack_export_read_versioned(group, i, flags, out, failed);
}
inline cbd_status export_group(cbd_group *group, std::uint64_t i, std::uint32_t flags, DLManagedTensor **out, cbd_error *failed)
{
    return cbd_dlpack_export_map(group, i, flags, out, failed);
}
inline cbd_status export_group(cbd_group *group, std::uint64_t i, std::uint32_t flags, DLManagedTensorVersioned **out, cbd_error *failed)
{
    return cbd_dlpack_export_map_versioned(group, i, flags, out, failed);
}
inline cbd_status describe_group(const cbd_read_group *group, std::uint64_t i, std::int64_t *shape, cbd_tensor *out, cbd_error *failed)
{
    return cbd_read_group_tensor(group, i, shape, out, failed);
}
inline cbd_status describe_group(const cbd_group *group, std::uint64_t i, std::int64_t *shape, cbd_tensor *out, cbd_error *failed)
{
    return cbd_group_tensor(group, i, shape, out, failed);
}

} // namespace detail

/// An export that nobody has taken yet: its deleter is called unless release() gives it to a consumer.
template <class Managed = DLManagedTensorVersioned>
using dlpack_owner = std::unique_ptr<Managed, detail::calls_deleter>;

inline namespace CALLBOARD_FORM {

/// A tensor with data of its own, row-major, which may be written.
class tensor {
public:
    tensor() = default;
    explicit tensor(cbd_tensor *handle) : handle_(handle) {}
    const cbd_tensor *get() const noexcept { return handle_.get(); }
    const cbd_tensor &operator*() const noexcept { return *handle_; }
    const cbd_tensor *operator->() const noexcept { return get(); }

private:
    detail::owner<cbd_tensor, cbd_tensor_free> handle_;
};

/// What a group's tensor looks like: the shape is its own, the data the group's.
class tensor_view {
public:
    const cbd_tensor &operator*() const noexcept { return described_; }
    const cbd_tensor *operator->() const noexcept { return &described_; }

    tensor_view(const tensor_view &other) : described_(other.described_)
    {
        std::memcpy(shape_, other.shape_, sizeof shape_);
        described_.shape = shape_;
    }
    tensor_view &operator=(const tensor_view &other)
    {
        std::memmove(shape_, other.shape_, sizeof shape_);
        described_ = other.described_;
        described_.shape = shape_;
        return *this;
    }

    template <class Group>
    static result<tensor_view> of(Group *group, std::size_t i)
    {
        tensor_view out;
        CALLBOARD_TRY(detail::describe_group(group, i, out.shape_, &out.described_, &failed));
        return out;
    }

private:
    tensor_view() = default;
    std::int64_t shape_[CBD_NDIM_MAX]{};
    cbd_tensor described_{};
};

/// Copies a tensor of any strides into row-major order.
inline result<tensor> copy_tensor(const cbd_tensor &from)
{
    cbd_tensor *out = nullptr;
    CALLBOARD_TRY(cbd_tensor_copy(&from, &out, &failed));
    return tensor(out);
}

/// Lends a tensor to a DLPack consumer: its data must outlive that. flags: CBD_DLPACK_*.
template <class Managed = DLManagedTensorVersioned>
result<dlpack_owner<Managed>> export_view(const cbd_tensor &lent, std::uint32_t flags = 0)
{
    Managed *out = nullptr;
    CALLBOARD_TRY(detail::export_tensor(&lent, flags, nullptr, nullptr, &out, &failed));
    return dlpack_owner<Managed>(out);
}

/// Gives a tensor away with what keeps its data, a std::vector or a std::shared_ptr for instance, which is moved and then
/// destroyed by the export's deleter, on its thread.
template <class Managed = DLManagedTensorVersioned, class Keeper>
result<dlpack_owner<Managed>> export_owned(const cbd_tensor &given, Keeper keeper, std::uint32_t flags = 0)
{
    Managed *out = nullptr;
    auto kept = std::make_unique<Keeper>(std::move(keeper));
    CALLBOARD_TRY(detail::export_tensor(
        &given, flags, [](void *context) { delete static_cast<Keeper *>(context); }, kept.get(), &out, &failed));
    (void)kept.release();
    return dlpack_owner<Managed>(out);
}

/// Describes a producer's tensor, which it borrows until its deleter is called; strides must be row-major.
inline result<cbd_tensor> import_tensor(const DLManagedTensor *managed)
{
    cbd_tensor out{};
    CALLBOARD_TRY(cbd_dlpack_import(managed, &out, &failed));
    return out;
}
inline result<cbd_tensor> import_tensor(const DLManagedTensorVersioned *managed)
{
    cbd_tensor out{};
    CALLBOARD_TRY(cbd_dlpack_import_versioned(managed, &out, &failed));
    return out;
}

/// Copies a producer's tensor, of any strides; its deleter stays the caller's to call.
inline result<tensor> import_copy(const DLManagedTensor *managed)
{
    cbd_tensor *out = nullptr;
    CALLBOARD_TRY(cbd_dlpack_import_copy(managed, &out, &failed));
    return tensor(out);
}
inline result<tensor> import_copy(const DLManagedTensorVersioned *managed)
{
    cbd_tensor *out = nullptr;
    CALLBOARD_TRY(cbd_dlpack_import_copy_versioned(managed, &out, &failed));
    return tensor(out);
}

/// What a Py_buffer is to say of a tensor.
inline result<cbd_buffer> buffer_of(const cbd_tensor &from, bool read_only)
{
    cbd_buffer out;
    CALLBOARD_TRY(cbd_buffer_of_tensor(&from, read_only, &out, &failed));
    return out;
}

/// The struct module's letter for one lane, "" for no type.
inline std::string_view buffer_format(std::uint8_t code, std::uint8_t bits)
{
    const char *format = cbd_buffer_format(code, bits);
    return format != nullptr ? format : "";
}

} // inline namespace
} // namespace callboard

#endif
