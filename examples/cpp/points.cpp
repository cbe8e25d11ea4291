// A C++ node: fills the points of a moving cloud in place, and seals one state after the other.
//
//     points [states [stage]]       states 0, the default: until it is interrupted, ten a second
#include <callboard.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

struct point {
    float x, y, z;
};

// What one row is: three lanes of float.
template <>
struct callboard::row_type<point> : callboard::lanes_of<float, 3> {};

int main(int argc, char **argv)
try {
    const long states = argc > 1 ? std::atol(argv[1]) : 0;
    const callboard::stage stage = callboard::stage::connect(argc > 2 ? argv[2] : "");

    // The prims whose rows we write, in this order.
    std::vector<std::string> paths;
    for (int i = 0; i < 1000; i++)
        paths.push_back("/World/Cloud/Point" + std::to_string(i));
    const callboard::query cloud = stage.query(paths);

    for (long state = 1; states == 0 || state <= states; state++) {
        const callboard::session session = stage.map<point>(cloud, "points", callboard::next_ordinal);
        while (auto group = session.next()) {
            float angle = 0.1f * static_cast<float>(state);
            for (point &p : group->rows<point>()) { // shared memory: written here, read there, copied nowhere
                p = {std::cos(angle), std::sin(angle), static_cast<float>(state)};
                angle += 0.01f;
            }
        }
        // Commits and publishes in one step. From here on the memory is not ours.
        const cbd_op_result sealed = session.unmap(CBD_FLAG_SEAL).wait();
        std::printf("state %ld is ordinal %llu, epoch %llu\n", state, static_cast<unsigned long long>(sealed.ordinal),
                    static_cast<unsigned long long>(sealed.epoch));
        if (states == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
} catch (const callboard::error &error) {
    std::fprintf(stderr, "%s: %s\n", cbd_status_name(error.code()), error.what());
    return 1;
}
