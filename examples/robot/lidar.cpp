// The sensor node of a robot: at every tick it seals a scan, which of its points are valid, and how far the robot turned.
// Whoever looks sees all three of one tick, or of the one before.
//
//     lidar [ticks a second]        20, the default; until Ctrl-C
#include <callboard.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

static constexpr std::size_t beams = 720;
static constexpr std::uint32_t kept_ticks = 256; // a reader that was away for so long misses nothing
static volatile std::sig_atomic_t interrupted = 0;

struct point {
    float x, y, z;
};

template <>
struct callboard::row_type<point> : callboard::lanes_of<float, 3> {};

// What a real driver gets from its device. The robot turns, a wall is 4 m away, and something walks in front of it.
static void scan(std::uint64_t tick, callboard::span<point> points, callboard::span<bool> valid)
{
    const std::size_t walker = tick * 3 % beams;
    for (std::size_t beam = 0; beam < beams; beam++) {
        const float angle = 6.2831853f / beams * static_cast<float>(beam);
        float distance = (beam + beams - walker) % beams < 8 ? 1.0f + 0.25f * static_cast<float>(tick % 5) : 4.0f;
        valid[beam] = beam % 7 != 0;
        if (!valid[beam])
            distance = 0; // no echo
        points[beam] = {distance * std::cos(angle), distance * std::sin(angle), 0};
    }
}

static double turn(std::uint64_t tick) { return static_cast<double>(tick % 8 + 1) / 64; }

static std::uint64_t now_ns() // of the clock that the broker stamps with
{
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

class lidar {
public:
    lidar()
    {
        stage_.declare<point>("lidar/points", {beams}, kept_ticks).wait();
        stage_.declare<bool>("lidar/valid", {beams}, kept_ticks).wait();
        stage_.declare<double>("imu/turn", {}, kept_ticks).wait();
    }

    /// The last tick that was sealed: by this process, or by one that was killed.
    std::uint64_t last() const { return stage_.write_floor("lidar/points"); }

    void seal(std::uint64_t tick) const
    {
        const std::uint64_t stamp_ns = now_ns();
        const callboard::session points = stage_.map<point>(root_, "lidar/points", tick, {beams});
        const callboard::session valid = stage_.map<bool>(root_, "lidar/valid", tick, {beams});
        // Into shared memory, where readers will look at it. Nothing is copied.
        scan(tick, points.next()->values<point>(), valid.next()->values<bool>());
        const double turned = turn(tick);
        const callboard::op ops[] = {points.unmap(), valid.unmap(), stage_.write<double>(root_, "imu/turn", {&turned, 1}, tick),
                                     stage_.advance_write_floor(tick, {"lidar/points", "lidar/valid", "imu/turn"}, stamp_ns)};
        for (const callboard::op &op : ops)
            op.wait();
    }

private:
    const callboard::stage stage_ = callboard::stage::connect();
    const callboard::query root_ = stage_.root();
};

int main(int argc, char **argv)
try {
    const double rate = argc > 1 ? std::atof(argv[1]) : 20;
    if (!(rate >= 0.1 && rate <= 1000)) {
        std::fprintf(stderr, "lidar: \"%s\" ticks a second: expected a number from 0.1 to 1000\n", argv[1]);
        return 2;
    }
    for (const int signal : {SIGINT, SIGTERM})
        std::signal(signal, [](int) { interrupted = 1; });
    const lidar node;
    std::uint64_t tick = node.last();
    std::printf("lidar: goes on after tick %llu\n", static_cast<unsigned long long>(tick));
    std::fflush(stdout);

    auto next = std::chrono::steady_clock::now();
    while (!interrupted) {
        try {
            node.seal(tick + 1);
            tick++;
        } catch (const callboard::error &error) {
            if (error.code() != CBD_STATUS_BROKER_RESTARTED)
                throw;
            tick = node.last(); // what was not sealed is gone: measure anew
        }
        next += std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 / rate));
        next = std::max(next, std::chrono::steady_clock::now());
        std::this_thread::sleep_until(next);
    }
    std::printf("lidar: the last tick is %llu\n", static_cast<unsigned long long>(tick));
} catch (const callboard::error &error) {
    std::fprintf(stderr, "lidar: %s: %s\n", cbd_status_name(error.code()), error.what());
    return 1;
}
