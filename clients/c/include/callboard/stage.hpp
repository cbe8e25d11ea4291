// The stage: what a program does with it.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_STAGE_HPP
#define CALLBOARD_STAGE_HPP

#include "map.hpp"
#include "read.hpp"
#include "write.hpp"

#include <exception>

namespace callboard {
inline namespace CALLBOARD_FORM {

/// A session with the broker. Whatever was made of it may outlive it.
class stage {
public:
    stage() = default;
    explicit stage(cbd_stage *handle) : handle_(handle, cbd_stage_release) {}
    stage(stage &&) noexcept = default;
    stage &operator=(stage &&other) noexcept
    {
        stage gone(std::move(*this));
        handle_ = std::move(other.handle_);
        return *this;
    }
    ~stage()
    {
        if (handle_ != nullptr)
            close(); // lists may keep the handle
    }
    cbd_stage *get() const noexcept { return handle_.get(); }

    /// name "": $CALLBOARD_STAGE, else "default".
    static result<stage> connect(const std::string &name = {}, const cbd_connect_options &options = {})
    {
        cbd_stage *handle = nullptr;
        CALLBOARD_TRY(cbd_connect(name.empty() ? nullptr : name.c_str(), &options, &handle, &failed));
        return stage(handle);
    }

    void close() const { cbd_stage_close(get()); }

    /// OP_FAILED, with a list of it, while anything of the stage is in use.
    result<void> close_if_idle() const
    {
        CALLBOARD_TRY(cbd_stage_close_if_idle(get(), &failed));
        return result<void>();
    }

    bool alive() const { return cbd_stage_is_alive(get()) != 0; }

    /// In a forked child of the process that connected.
    bool foreign() const { return cbd_stage_is_foreign(get()) != 0; }

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

    /// The global one.
    result<std::uint64_t> write_floor() const
    {
        std::uint64_t value = 0;
        CALLBOARD_TRY(cbd_write_floor(get(), nullptr, &value, &failed));
        return value;
    }

    /// The ordinal after which all changes of an attribute are known.
    result<std::uint64_t> frontier(const std::string &name) const
    {
        std::uint64_t value = 0;
        CALLBOARD_TRY(cbd_frontier(get(), name.c_str(), &value, &failed));
        return value;
    }

    /// Every attribute: a name has one for each of its schemas.
    result<std::vector<cbd_attribute_info>> attributes() const
    {
        std::vector<cbd_attribute_info> out;
        for (std::uint32_t column = 1;; column++) {
            cbd_attribute_info known;
            cbd_error failed;
            const callboard::status got = cbd_attribute_at(get(), column, &known, &failed);
            if (got == CBD_STATUS_END)
                return out;
            if (got != CBD_STATUS_OK)
                CALLBOARD_FAIL(failed);
            out.push_back(known);
        }
    }

    /// The GPUs on which the broker holds attributes.
    result<std::vector<cbd_device_info>> devices() const
    {
        std::vector<cbd_device_info> out;
        for (std::uint32_t index = 0;; index++) {
            cbd_device_info known;
            cbd_error failed;
            const callboard::status got = cbd_device_at(get(), index, &known, &failed);
            if (got == CBD_STATUS_END)
                return out;
            if (got != CBD_STATUS_OK)
                CALLBOARD_FAIL(failed);
            out.push_back(known);
        }
    }

    /// The schema of an attribute; NOT_FOUND.
    result<cbd_schema> schema(const std::string &name) const
    {
        cbd_schema known;
        CALLBOARD_TRY(cbd_attribute_schema(get(), name.c_str(), &known, &failed));
        return known;
    }

    /// States that rows are T, or arrays of T with this shape, before anybody writes them. retain: how many versions are
    /// kept; 0: as the stage says.
    template <class T>
    result<op> declare(const std::string &name, std::initializer_list<std::uint64_t> row_shape = {}, std::uint32_t retain = 0) const
    {
        return declare(name, schema_of<T>(row_shape), retain);
    }

    /// The same of any schema, as schema_of<T>() makes it, with all settings.
    result<op> declare(const std::string &name, const cbd_schema &schema, std::uint32_t retain = 0,
                       std::uint32_t handoff = CBD_HANDOFF_DEFAULT) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_declare(get(), name.c_str(), &schema, retain, handoff, &handle, &failed));
        return op(handle);
    }

    // ---- ids, paths and queries

    /// The text of a path id or token id; good until the stage is closed.
    result<std::string_view> resolve(std::uint64_t id) const
    {
        const char *text = nullptr;
        std::size_t length = 0;
        CALLBOARD_TRY(cbd_resolve(get(), id, &text, &length, &failed));
        return std::string_view(text, length);
    }

    /// The ids of tokens, and those of paths, which are made where they are new.
    result<std::vector<std::uint64_t>> tokens(const names &texts) const { return intern(0, texts); }
    result<std::vector<std::uint64_t>> paths(const names &texts) const { return intern(1, texts); }

    /// The id of the path of these components; of none: of the root.
    result<std::uint64_t> path_from_tokens(span<const std::uint64_t> tokens) const
    {
        std::uint64_t path = 0;
        CALLBOARD_TRY(cbd_path_from_tokens(get(), tokens.data(), tokens.size(), &path, &failed));
        return path;
    }

    /// The components of a path.
    result<std::vector<std::uint64_t>> path_tokens(std::uint64_t path) const
    {
        std::size_t count = 0;
        CALLBOARD_TRY(cbd_path_tokens(get(), path, nullptr, 0, &count, &failed));
        std::vector<std::uint64_t> out(count);
        if (count != 0)
            CALLBOARD_TRY(cbd_path_tokens(get(), path, out.data(), count, &count, &failed));
        return out;
    }

    /// A list of ids, which are copied.
    result<callboard::list> list(span<const std::uint64_t> ids) const
    {
        std::uint64_t number = 0;
        CALLBOARD_TRY(cbd_list_create(get(), ids.data(), ids.size(), &number, &failed));
        return callboard::list(handle_, number);
    }

    /// The prims of a list of path ids.
    result<callboard::query> query(const callboard::list &paths) const
    {
        cbd_query *handle = nullptr;
        CALLBOARD_TRY(cbd_query_from_list(get(), paths.number(), &handle, &failed));
        return callboard::query(handle);
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

    result<callboard::query> query(const filter &conditions) const
    {
        return conditions.with([this](const cbd_filter &filter) { return query(filter); });
    }

    /// The same without the wait: usable at once, and known after its wait().
    result<callboard::query> submit(const cbd_filter &filter) const
    {
        cbd_query *handle = nullptr;
        CALLBOARD_TRY(cbd_query_submit(get(), &filter, &handle, &failed));
        return callboard::query(handle);
    }

    result<callboard::query> submit(const filter &conditions) const
    {
        return conditions.with([this](const cbd_filter &filter) { return submit(filter); });
    }

    /// The prim "/".
    result<callboard::query> root() const
    {
        cbd_query *handle = nullptr;
        CALLBOARD_TRY(cbd_root_query(get(), &handle, &failed));
        return callboard::query(handle);
    }

    // ---- writing

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
        return write(prims, name, tensor_of<T>(rows.data(), 1, shape), options);
    }

    result<op> write(const callboard::query &prims, const std::string &name, const cbd_tensor &data, const cbd_write_options &options) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_write_attribute(get(), prims.get(), name.c_str(), &data, &options, &handle, &failed));
        return op(handle);
    }

    /// Several attributes of the same prims at one ordinal, as one operation: all or none.
    result<op> write(const callboard::query &prims, const batch &attributes, std::uint64_t ordinal, std::uint32_t prim_mode = CBD_MODE_UPSERT) const
    {
        return attributes.with([&](span<const cbd_write_entry> entries) { return write(prims, entries, ordinal, prim_mode); });
    }

    result<op> write(const callboard::query &prims, span<const cbd_write_entry> entries, std::uint64_t ordinal, std::uint32_t prim_mode) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_write_attributes(get(), prims.get(), entries.data(), entries.size(), ordinal, prim_mode, &handle, &failed));
        return op(handle);
    }

    /// Takes attributes from prims at an ordinal.
    result<op> delete_attributes(const callboard::query &prims, const names &attributes, std::uint64_t ordinal) const
    {
        return take(prims, attributes.pointers(), ordinal);
    }

    /// Takes all that the prims carry: they are gone.
    result<op> delete_prims(const callboard::query &prims, std::uint64_t ordinal) const { return take(prims, {}, ordinal); }

    /// One value under a name: an array of this shape. INVALID_ARGUMENT where it does not have so many values.
    template <class T>
    result<op> publish(const std::string &name, span<const T> values, std::initializer_list<std::int64_t> shape) const
    {
        static_assert(row_type<T>::lanes == 1, "values are numbers");
        std::uint64_t wanted = 1;
        for (std::int64_t extent : shape)
            wanted *= static_cast<std::uint64_t>(extent);
        if (wanted != values.size()) {
            CALLBOARD_FAIL(detail::failure(CBD_STATUS_INVALID_ARGUMENT, "the shape has " + std::to_string(wanted) + " values, given are " +
                                                                            std::to_string(values.size())));
        }
        return publish(name, tensor_of<T>(values.data(), static_cast<std::int32_t>(shape.size()), shape.begin()));
    }

    result<op> publish(const std::string &name, const cbd_tensor &data, std::uint32_t semantic = CBD_SEMANTIC_NONE) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_publish(get(), name.c_str(), &data, semantic, &handle, &failed));
        return op(handle);
    }

    /// With a semantic, a device to lie on, and what the data waits for; nothing else of the options counts.
    result<op> publish(const std::string &name, const cbd_tensor &data, const cbd_write_options &options) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_publish_with(get(), name.c_str(), &data, &options, &handle, &failed));
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

    /// Of all but the named ones.
    result<op> advance_write_floor_except(std::uint64_t ordinal, const names &attributes, std::uint64_t stamp_ns = 0) const
    {
        return seal(ordinal, CBD_SCOPE_EXCLUDE, attributes.pointers(), stamp_ns);
    }

    // ---- sessions of several groups, whoever opened them

    /// The groups of an attribute's sessions, "": of all, that nobody has claimed.
    result<std::vector<cbd_open_group>> open_groups(const std::string &name = {}) const
    {
        std::vector<cbd_open_group> out;
        for (std::size_t count = 16; out.size() < count;) { // there may be more each time
            out.resize(count);
            CALLBOARD_TRY(cbd_list_groups(get(), name.empty() ? nullptr : name.c_str(), out.data(), out.size(), &count, &failed));
            if (count <= out.size()) {
                out.resize(count);
                break;
            }
        }
        return out;
    }

    /// Claims a group, or CBD_ANY_GROUP of a session; INVALID_HANDLE where somebody was faster, END where there is none.
    result<claimed_group> claim(std::uint64_t session, std::uint64_t index = CBD_ANY_GROUP) const
    {
        cbd_group *record = nullptr;
        CALLBOARD_TRY(cbd_claim_group(get(), session, index, &record, &failed));
        return claimed_group(record);
    }

    /// Claims groups of an attribute's sessions one after the other, calls fill(const group &) and hands them back, until
    /// none has come for `patience`. What fill fails with, by an exception or as a result<void>, gives the group up, for
    /// somebody else, and ends the work.
    template <class Fill>
    result<void> work_on(const std::string &name, Fill fill, std::chrono::nanoseconds patience = {}) const
    {
        filling<Fill> work{fill, {}};
        cbd_error failed;
        const callboard::status got = cbd_work_on(get(), name.c_str(), filling<Fill>::call, &work, detail::nanoseconds(patience), &failed);
        if (work.failed)
            return work.fail();
        if (got != CBD_STATUS_OK && got != CBD_STATUS_TIMEOUT)
            CALLBOARD_FAIL(failed);
        return result<void>();
    }

    // ---- reading

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

    /// The newest value under a name, in the memory that is named.
    result<read_group> latest_in(const std::string &name, std::uint32_t device_type, std::uint32_t device_id = 0) const
    {
        const cbd_read_group *record = nullptr;
        CALLBOARD_TRY(cbd_latest_in(get(), name.c_str(), device_type, device_id, &record, &failed));
        return read_group(record);
    }

    result<callboard::snapshot> snapshot() const
    {
        cbd_snapshot *handle = nullptr;
        CALLBOARD_TRY(cbd_snapshot_open(get(), &handle, &failed));
        return callboard::snapshot(handle);
    }

private:
#if defined(CALLBOARD_NO_EXCEPTIONS)
    template <class Fill>
    struct filling {
        Fill &fill;
        std::optional<error> failed;

        static cbd_status call(cbd_group *record, void *context, cbd_error *why)
        {
            auto *work = static_cast<filling *>(context);
            result<void> filled = work->fill(group(record));
            if (filled)
                return CBD_STATUS_OK;
            work->failed = filled.error();
            if (why != nullptr)
                *why = detail::failure(filled.error().code(), filled.error().what());
            return filled.error().code();
        }
        result<void> fail() const { return *failed; }
    };
#else
    template <class Fill>
    struct filling {
        Fill &fill;
        std::exception_ptr failed; // it goes round the frames of C

        static cbd_status call(cbd_group *record, void *context, cbd_error *why) noexcept
        {
            auto *work = static_cast<filling *>(context);
            try {
                work->fill(group(record));
                return CBD_STATUS_OK;
            } catch (...) {
                work->failed = std::current_exception();
                if (why != nullptr)
                    *why = detail::failure(CBD_STATUS_OP_FAILED, "filling the group threw an exception");
                return CBD_STATUS_OP_FAILED;
            }
        }
        [[noreturn]] void fail() const { std::rethrow_exception(failed); }
    };
#endif

    result<std::vector<std::uint64_t>> intern(int paths, const names &texts) const
    {
        const auto list = texts.pointers();
        std::vector<std::uint64_t> out(list.size());
        CALLBOARD_TRY(cbd_intern(get(), paths, list.data(), nullptr, list.size(), out.data(), &failed));
        return out;
    }

    result<op> take(const callboard::query &prims, const std::vector<const char *> &list, std::uint64_t ordinal) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_delete_attributes(get(), prims.get(), list.data(), list.size(), ordinal, &handle, &failed));
        return op(handle);
    }

    result<op> seal(std::uint64_t ordinal, std::uint32_t scope, const std::vector<const char *> &list, std::uint64_t stamp_ns) const
    {
        cbd_op *handle = nullptr;
        CALLBOARD_TRY(cbd_advance_write_floor(get(), ordinal, scope, list.data(), list.size(), stamp_ns, &handle, &failed));
        return op(handle);
    }

    std::shared_ptr<cbd_stage> handle_;
};

} // inline namespace
} // namespace callboard

#endif
