// Several attributes in one operation.
// Part of callboard.hpp, which is what to include.
#ifndef CALLBOARD_WRITE_HPP
#define CALLBOARD_WRITE_HPP

#include "rows.hpp"

namespace callboard {

/// Attributes to be written together, all or none. It borrows the data until it was written.
///
///     stage.write(prims, callboard::batch().add<point>("position", points).add<float>("mass", masses), 5)
class batch {
public:
    /// A row of T for each prim.
    template <class T>
    batch &add(std::string name, span<const T> rows)
    {
        entries_.push_back({std::move(name), true, static_cast<std::int64_t>(rows.size()), tensor_of<T>(rows.data(), 1, nullptr), cbd_write_options_default()});
        return *this;
    }

    /// A tensor, of which the options say whose rows are which.
    batch &add(std::string name, const cbd_tensor &data, const cbd_write_options &options = cbd_write_options_default())
    {
        entries_.push_back({std::move(name), false, 0, data, options});
        return *this;
    }

    /// Calls with the structs of C, which are good until the call returns.
    template <class Call>
    auto with(Call call) const
    {
        std::vector<cbd_tensor> tensors;
        std::vector<cbd_write_entry> out;
        tensors.reserve(entries_.size());
        for (const entry &e : entries_) {
            tensors.push_back(e.data);
            if (e.typed)
                tensors.back().shape = &e.rows;
            out.push_back({e.name.c_str(), &tensors.back(), &e.options});
        }
        return call(span<const cbd_write_entry>(out.data(), out.size()));
    }

private:
    struct entry {
        std::string name;
        bool typed;
        std::int64_t rows;
        cbd_tensor data;
        cbd_write_options options;
    };

    std::vector<entry> entries_;
};

} // namespace callboard

#endif
