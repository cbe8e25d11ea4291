// Reads two points of the cloud in place, each time that a state is sealed.
//
//     reader [states [stage]]       states 0, the default: until it is interrupted
#include <callboard.hpp>

#include <cstdio>
#include <cstdlib>

struct point {
    float x, y, z;
};

template <>
struct callboard::row_type<point> : callboard::lanes_of<float, 3> {};

int main(int argc, char **argv)
try {
    const long states = argc > 1 ? std::atol(argv[1]) : 0;
    cbd_connect_options options{};
    options.read_only = 1;
    const callboard::stage stage = callboard::stage::connect(argc > 2 ? argv[2] : "", options);
    const callboard::query two = stage.query({"/World/Cloud/Point999", "/World/Cloud/Point0"});

    std::uint64_t epoch = 0;
    for (long state = 0; states == 0 || state < states; state++) {
        epoch = stage.follow(epoch);
        const callboard::read read = stage.read(two, {"points"});
        while (auto group = read.next()) // until the group goes, nobody reuses its memory; the producer does not wait
            for (std::size_t i = 0; i < group->prims().size(); i++) {
                const std::string path(stage.resolve(group->prims()[i]));
                const point &p = group->row<point>(i);
                std::printf("epoch %llu %s: %.3f %.3f %.3f\n", static_cast<unsigned long long>(read.epoch()), path.c_str(),
                            static_cast<double>(p.x), static_cast<double>(p.y), static_cast<double>(p.z));
            }
    }
} catch (const callboard::error &error) {
    std::fprintf(stderr, "%s: %s\n", cbd_status_name(error.code()), error.what());
    return 1;
}
