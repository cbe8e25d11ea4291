// Operations, filters, queries, lists of ids, and descriptors for event loops.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_QUERY_HPP
#define CALLBOARD_QUERY_HPP

#include "error.hpp"

#include <array>

namespace callboard {
inline namespace CALLBOARD_FORM {

/// An operation that was submitted. Given back while it is pending, it goes on.
class op {
public:
    op() = default;
    explicit op(cbd_op *handle) : handle_(handle) {}
    cbd_op *get() const noexcept { return handle_.get(); }
    std::uint64_t id() const { return cbd_op_id(get()); }

    /// The lowest op that is not done of those that this one waits for.
    std::uint64_t lowest_pending() const { return cbd_op_lowest_pending(get()); }

    /// The text of a failed op, else "".
    std::string_view error_text() const { return cbd_op_error(get()); }

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

/// Conditions on a prim, which must all hold; none: every prim that carries anything. Values are texts, "1.5".
///
///     stage.query(callboard::filter().has("mass").path_prefix("/World/").less("mass", "10"))
class filter {
public:
    filter &has(std::string name) { return add(CBD_FILTER_HAS, std::move(name), {}); }
    filter &in(std::string name, std::vector<std::string> values) { return add(CBD_FILTER_IN, std::move(name), std::move(values)); }
    filter &path_in(std::vector<std::string> paths) { return add(CBD_FILTER_IN, CBD_PATH_NAME, std::move(paths)); }
    filter &path_prefix(std::string prefix) { return add(CBD_FILTER_PREFIX, CBD_PATH_NAME, {std::move(prefix)}); }
    filter &contains(std::string name, std::vector<std::string> values) { return add(CBD_FILTER_CONTAINS, std::move(name), std::move(values)); }
    filter &less(std::string name, std::string value) { return add(CBD_FILTER_LESS, std::move(name), {std::move(value)}); }
    filter &less_equal(std::string name, std::string value) { return add(CBD_FILTER_LESS_EQUAL, std::move(name), {std::move(value)}); }
    filter &greater(std::string name, std::string value) { return add(CBD_FILTER_GREATER, std::move(name), {std::move(value)}); }
    filter &greater_equal(std::string name, std::string value) { return add(CBD_FILTER_GREATER_EQUAL, std::move(name), {std::move(value)}); }

    /// Limits the attributes that are reported; of none, none is.
    filter &reporting(std::vector<std::string> attributes)
    {
        reported_ = std::move(attributes);
        scoped_ = true;
        return *this;
    }

    /// Only what is sealed counts.
    filter &sealed_only()
    {
        sealed_ = true;
        return *this;
    }

    /// Calls with the struct of C, which is good until the call returns.
    template <class Call>
    auto with(Call call) const
    {
        std::vector<std::vector<const char *>> values;
        std::vector<cbd_predicate> predicates;
        for (const condition &c : conditions_) {
            values.push_back(detail::pointers(c.values));
            predicates.push_back({c.op, 0, c.name.c_str(), values.back().data(), values.back().size()});
        }
        const auto reported = detail::pointers(reported_);
        cbd_filter out{};
        out.predicates = predicates.data();
        out.predicate_count = predicates.size();
        out.attributes = reported.data();
        out.attribute_count = reported.size();
        out.scoped = scoped_;
        out.sealed = sealed_;
        return call(out);
    }

private:
    struct condition {
        std::uint32_t op;
        std::string name;
        std::vector<std::string> values;
    };

    filter &add(std::uint32_t op, std::string name, std::vector<std::string> values)
    {
        conditions_.push_back({op, std::move(name), std::move(values)});
        return *this;
    }

    std::vector<condition> conditions_;
    std::vector<std::string> reported_;
    bool scoped_ = false, sealed_ = false;
};

/// What a filter found; independent of the query.
class query_result {
public:
    query_result() = default;
    explicit query_result(const cbd_query_result *record) : record_(record) {}
    const cbd_query_result *get() const noexcept { return record_.get(); }
    std::uint64_t total() const { return get()->total; }

    /// What the prims carry, in the order in which the names came up first.
    span<const char *const> attributes() const { return {get()->attributes, get()->attribute_count}; }

private:
    detail::owner<const cbd_query_result, cbd_query_result_release> record_;
};

/// An ordered list of prims.
class query {
public:
    query() = default;
    explicit query(cbd_query *handle) : handle_(handle) {}
    cbd_query *get() const noexcept { return handle_.get(); }
    std::size_t size() const { return cbd_query_size(get()); }
    span<const std::uint64_t> ids() const { return {cbd_query_ids(get()), size()}; }

    result<void> wait(std::chrono::nanoseconds timeout = forever) const
    {
        CALLBOARD_TRY(cbd_query_wait(get(), detail::nanoseconds(timeout), &failed));
        return result<void>();
    }

    /// What its filter found; TIMEOUT while it is running.
    result<query_result> found() const
    {
        const cbd_query_result *record = nullptr;
        CALLBOARD_TRY(cbd_query_get_result(get(), &record, &failed));
        return query_result(record);
    }

private:
    detail::owner<cbd_query, cbd_query_release> handle_;
};

/// A reference to an immutable list of ids, which goes with the last one. It keeps the stage's handle, not its session.
class list {
public:
    list() = default;
    list(std::shared_ptr<cbd_stage> stage, std::uint64_t number) : stage_(std::move(stage)), number_(number) {}
    list(list &&other) noexcept : stage_(std::move(other.stage_)), number_(std::exchange(other.number_, 0)) {}
    list &operator=(list &&other) noexcept
    {
        list gone(std::move(*this));
        stage_ = std::move(other.stage_);
        number_ = std::exchange(other.number_, 0);
        return *this;
    }
    ~list()
    {
        if (number_ != 0)
            cbd_list_release(stage_.get(), number_, nullptr);
    }

    std::uint64_t number() const noexcept { return number_; }

    /// One more reference.
    result<list> share() const
    {
        CALLBOARD_TRY(cbd_list_add_reference(stage_.get(), number_, &failed));
        return list(stage_, number_);
    }

    result<std::size_t> size() const
    {
        std::size_t count = 0;
        CALLBOARD_TRY(cbd_list_count(stage_.get(), number_, &count, &failed));
        return count;
    }

    /// n ids from place `first` on.
    result<std::vector<std::uint64_t>> ids(std::size_t first, std::size_t n) const
    {
        std::vector<std::uint64_t> out(n);
        CALLBOARD_TRY(cbd_list_get(stage_.get(), number_, first, n, out.data(), &failed));
        return out;
    }

    /// A list of its own of n ids from place `first` on.
    result<list> slice(std::size_t first, std::size_t n) const
    {
        std::uint64_t number = 0;
        CALLBOARD_TRY(cbd_list_slice(stage_.get(), number_, first, n, &number, &failed));
        return list(stage_, number);
    }

private:
    std::shared_ptr<cbd_stage> stage_;
    std::uint64_t number_ = 0;
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

} // inline namespace
} // namespace callboard

#endif
