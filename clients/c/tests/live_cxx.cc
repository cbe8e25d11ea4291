// callboard.hpp against a real broker, run by the integration tests: built as C++17 and C++20, with exceptions and
// (CALLBOARD_NO_EXCEPTIONS) without.
//
//     live_cxx STAGE          of a broker that serves no GPU
//     live_cxx STAGE gpu      what needs one
#include <callboard.hpp>

#include <cstdio>
#include <cstring>

#include <poll.h>

struct point {
    float x, y, z;
};

template <>
struct callboard::row_type<point> : callboard::lanes_of<float, 3> {};

static_assert(callboard::row_type<double>::code == CBD_DTYPE_FLOAT && callboard::row_type<double>::bits == 64);
static_assert(callboard::row_type<unsigned char>::code == CBD_DTYPE_UINT && callboard::row_type<long>::code == CBD_DTYPE_INT);
static_assert(callboard::row_type<std::complex<float>>::bits == 64 && callboard::row_type<std::array<std::int16_t, 4>>::lanes == 4);
static_assert(!std::is_copy_constructible_v<callboard::stage> && std::is_nothrow_move_constructible_v<callboard::stage>);
static_assert(!std::is_copy_constructible_v<callboard::read_group> && std::is_nothrow_move_assignable_v<callboard::session>);

#define CHECK(...)                                                                            \
    do {                                                                                      \
        if (!(__VA_ARGS__)) {                                                                 \
            std::printf("not ok %s:%d: %s\n", __FILE__, __LINE__, #__VA_ARGS__);              \
            std::exit(1);                                                                     \
        }                                                                                     \
    } while (0)

#if defined(CALLBOARD_NO_EXCEPTIONS)

static void run(const char *name)
{
    auto refused = callboard::stage::connect("no stage can have this name!");
    CHECK(!refused && refused.error().code() == CBD_STATUS_INVALID_ARGUMENT && refused.error().what()[0] != 0);
    auto connected = callboard::stage::connect(name);
    CHECK(connected);
    callboard::stage stage = std::move(connected).value();
    CHECK(stage.alive());
    auto query = stage.query({"/a", "/b"});
    CHECK(query && query->size() == 2);
    auto session = stage.map<point>(*query, "quiet", callboard::next_ordinal);
    CHECK(session);
    auto group = session->next();
    CHECK(group && group->has_value());
    CHECK(!(*group)->rows<double>() && (*group)->rows<double>().error().code() == CBD_STATUS_INVALID_ARGUMENT);
    auto rows = (*group)->rows<point>();
    CHECK(rows && rows->size() == 2);
    (*rows)[1] = {1, 2, 3};
    auto end = session->next();
    CHECK(end && !end->has_value());
    auto op = session->unmap(CBD_FLAG_SEAL);
    CHECK(op);
    CHECK(op->wait());
    auto read = stage.read(*query, {"quiet"});
    CHECK(read);
    auto got = read->next();
    CHECK(got && got->has_value());
    auto row = (*got)->row<point>(1);
    CHECK(row && (*row)->z == 3);
    auto late = stage.follow(stage.epoch(), std::chrono::milliseconds(1));
    CHECK(!late && late.error().code() == CBD_STATUS_TIMEOUT);
    CHECK(query->wait());
    auto events = stage.events();
    CHECK(events && events->fileno() >= 0 && events->drain().value() == stage.epoch());
    stage.close();
    CHECK(!events->drain() && events->drain().error().code() == CBD_STATUS_SESSION_ENDED);
}

#else

template <class Call>
static void fails(callboard::status wanted, const char *part, Call call)
{
    try {
        (void)call();
    } catch (const callboard::error &error) {
        if (error.code() == wanted && std::strstr(error.what(), part) != nullptr)
            return;
        std::printf("not ok: %s: %s\n", cbd_status_name(error.code()), error.what());
        std::exit(1);
    }
    std::printf("not ok: no error, expected %s\n", cbd_status_name(wanted));
    std::exit(1);
}

static void points_are_filled_in_place(const callboard::stage &stage)
{
    const callboard::query two = stage.query({"/World/a", "/World/b"});
    CHECK(two.size() == 2 && stage.resolve(two.ids()[1]) == "/World/b");
    callboard::session session = stage.map<point>(two, "points", callboard::next_ordinal);
    auto group = session.next();
    CHECK(group && group->prims()[0] == two.ids()[0] && !session.next());
    group->rows<point>()[0] = {1, 2, 3};
    group->rows<std::array<float, 3>>()[1] = {4, 5, 6};
    CHECK(group->values<float>()[3] == 4 && group->values<float>().size() == 6);
    fails(CBD_STATUS_INVALID_ARGUMENT, "rows of 12 bytes", [&] { return group->rows<double>(); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "rows of 12 bytes", [&] { return group->rows<float>(); });
    const cbd_op_result sealed = session.unmap(CBD_FLAG_SEAL).wait();
    CHECK(sealed.status == CBD_STATUS_OK && stage.epoch() >= sealed.epoch && stage.write_floor("points") == sealed.ordinal);
    fails(CBD_STATUS_INVALID_HANDLE, "ended", [&] { return session.next(); });

    callboard::read_group kept;
    {
        callboard::read read = stage.read(two, {"points"});
        CHECK(read.epoch() >= sealed.epoch);
        auto found = read.next();
        CHECK(found && found->name() == "points" && !read.next());
        kept = std::move(*found);
    }
    CHECK(kept.row<point>(kept.row_of(0)).z == 3 && kept.row_of(1) == 1 && kept.row<point>(1).y == 5 && kept.rows<point>().size() == kept->rows);
    fails(CBD_STATUS_INVALID_ARGUMENT, "asked for", [&] { return kept.rows<int>(); });

    auto managed = kept.dlpack();
    kept = callboard::read_group(); /* the export has its own pin */
    auto *tensor = reinterpret_cast<cbd_dlpack_versioned *>(managed.get());
    CHECK(tensor->flags == CBD_DLPACK_READ_ONLY && tensor->tensor.shape[1] == 3 && static_cast<float *>(tensor->tensor.data)[5] == 6);
    const cbd_tensor imported = callboard::import_tensor(managed.get());
    cbd_write_options options = cbd_write_options_default();
    options.next_ordinal = options.seal = 1;
    stage.write(two, "again", imported, options).wait();
    managed.reset();
    CHECK(stage.read(two, {"again"}).next()->row<point>(1).z == 6);
}

static void a_consumer_of_dlpack_fills_a_group(const callboard::stage &stage)
{
    const callboard::query two = stage.query({"/World/a", "/World/b"});
    callboard::session session = stage.map<float>(two, "filled", callboard::next_ordinal);
    auto *managed = session.next()->dlpack().release(); /* the consumer's */
    auto *tensor = reinterpret_cast<cbd_dlpack_versioned *>(managed);
    static_cast<float *>(tensor->tensor.data)[1] = 9;
    session.unmap(CBD_FLAG_SEAL).wait(); /* copies: the export is alive (M1) */
    static_cast<float *>(tensor->tensor.data)[1] = 10;
    CHECK(stage.read(two, {"filled"}).next()->row<float>(1) == 9);
    session = callboard::session();
    tensor->deleter(managed);
}

static void values_are_published_and_written(const callboard::stage &stage)
{
    std::vector<std::uint8_t> image(4 * 3 * 2);
    image[23] = 7;
    const cbd_op_result sealed = stage.publish<std::uint8_t>("image", image, {4, 3, 2}).wait();
    callboard::read_group latest = stage.latest("image");
    CHECK(latest->ordinal == sealed.ordinal && latest->ndim == 3 && latest->shape[0] == 4 && latest.values<std::uint8_t>()[23] == 7);
    fails(CBD_STATUS_INVALID_ARGUMENT, "30 values, given are 24", [&] { return stage.publish<std::uint8_t>("image", image, {5, 3, 2}); });
    fails(CBD_STATUS_NOT_FOUND, "", [&] { return stage.latest("never"); });

    const std::vector<std::string> paths = {"/x", "/y", "/z"};
    const callboard::query three = stage.query(paths);
    const std::vector<point> rows = {{1, 0, 0}, {2, 0, 0}, {3, 0, 0}};
    callboard::op written = stage.write<point>(three, "written", rows, 5);
    CHECK(written.id() > 0 && written.wait().ordinal == 5);
    const cbd_op_result floor = stage.advance_write_floor(5, {"written"}, 42).wait();
    CHECK(floor.value == 5);
    const callboard::snapshot now = stage.snapshot();
    CHECK(now.epoch() >= floor.epoch && now.floor("written") == 5 && now.stamp_ns() == 42);
    callboard::read read = now.read(three, {"written"});
    auto group = read.next();
    CHECK(group && group->row<point>(2).x == 3);
    fails(CBD_STATUS_FLOOR_VIOLATION, "", [&] { return stage.write<point>(three, "written", rows, 5); });
    CHECK(stage.root().size() == 1 && stage.query(cbd_filter{}).size() >= 3);
    fails(CBD_STATUS_TIMEOUT, "", [&] { return stage.follow(stage.epoch(), std::chrono::milliseconds(1)); });
    cbd_range range{};
    range.has_since = 1;
    CHECK(stage.read(three, {"written"}, range).next()->prims().size() == 3);
}

static void a_row_is_an_array(const callboard::stage &stage)
{
    const callboard::query root = stage.root();
    stage.declare<point>("scan", {4}, 9).wait();
    fails(CBD_STATUS_INVALID_ARGUMENT, "scan", [&] { return stage.declare<point>("scan", {5}).wait(); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return stage.declare<float>("deep", {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}).wait(); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return stage.map<float>(root, "deep", 1, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}); });
    callboard::session session = stage.map<point>(root, "scan", 1, {4});
    auto group = session.next();
    CHECK(group->values<point>().size() == 4 && group->values<float>().size() == 12);
    group->values<point>()[3] = {1, 2, 3};
    fails(CBD_STATUS_INVALID_ARGUMENT, "rows of 48 bytes", [&] { return group->values<std::array<float, 2>>(); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "rows of 48 bytes", [&] { return group->values<std::array<double, 3>>(); });
    session.unmap().wait();
    stage.advance_write_floor(1, {"scan"}).wait();
    const callboard::read_group latest = stage.latest("scan");
    CHECK(latest->ndim == 2 && latest->shape[0] == 4 && latest->shape[1] == 3 && latest.values<point>()[3].z == 3);
    fails(CBD_STATUS_INVALID_ARGUMENT, "asked for", [&] { return latest.values<std::array<float, 4>>(); });
    cbd_attribute_info info{};
    cbd_error failed;
    for (std::uint32_t column = 1; std::strcmp(info.name, "scan") != 0; column++)
        CHECK(cbd_attribute_at(stage.get(), column, &info, &failed) == CBD_STATUS_OK);
    CHECK(info.retain == 9);
}

static void rows_have_their_own_lengths(const callboard::stage &stage)
{
    const callboard::query two = stage.query({"/m", "/n"});
    const std::uint64_t sizes[2] = {3, 0};
    cbd_map_options options{};
    options.next_ordinal = options.is_array = 1;
    options.code = CBD_DTYPE_FLOAT;
    options.bits = 32;
    options.lanes = 3;
    options.element_sizes = sizes;
    options.element_size_count = 2;
    callboard::session session = stage.map(two, "meshes", options);
    auto group = session.next();
    CHECK(group->array<point>(0).size() == 3 && group->array<point>(1).empty());
    group->array<point>(0)[2] = {7, 8, 9};
    group->unmap().wait();
    session.unmap(CBD_FLAG_SEAL).wait();
    callboard::read read = stage.read(two, {"meshes"});
    auto got = read.next();
    CHECK(got->array<point>(0)[2].y == 8 && got->array<point>(1).empty());
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return got->array<point>(2); });
    session = stage.map(two, "meshes", options);
    session.abort();
}

static void an_event_loop_waits_for_epochs(const callboard::stage &stage)
{
    const callboard::events events = stage.events(), late = stage.events();
    pollfd look[2] = {{events.fileno(), POLLIN, 0}, {late.fileno(), POLLIN, 0}};
    const cbd_op_result sealed = stage.publish<double>("looped", std::vector<double>{1}, {1}).wait();
    while (events.drain() < sealed.epoch)
        CHECK(poll(look, 1, 60000) == 1);
    CHECK(poll(look + 1, 1, 60000) == 1 && late.drain() >= sealed.epoch); /* each has its own */
    static_assert(!std::is_copy_constructible_v<callboard::events>);
}

static void run(const char *name)
{
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [] { return callboard::stage::connect("no stage can have this name!"); });
    callboard::stage stage = callboard::stage::connect(name);
    CHECK(stage.alive() && std::string(stage.info().name) == name);
    points_are_filled_in_place(stage);
    a_consumer_of_dlpack_fills_a_group(stage);
    values_are_published_and_written(stage);
    a_row_is_an_array(stage);
    rows_have_their_own_lengths(stage);
    an_event_loop_waits_for_epochs(stage);
    callboard::read_group kept = stage.latest("image");
    stage.close();
    CHECK(!stage.alive());
    fails(CBD_STATUS_SESSION_ENDED, "", [&] { return stage.snapshot(); });
    stage = callboard::stage();
    CHECK(kept.values<std::uint8_t>()[23] == 7);
}

#endif

void run_calls(const char *name); // live_cxx_calls.cc
void run_on_gpu(const char *name);

int main(int argc, char **argv)
{
    if (argc == 3 && std::strcmp(argv[2], "gpu") == 0) {
        run_on_gpu(argv[1]);
    } else {
        run(argv[1]);
        run_calls(argv[1]);
    }
    std::puts("ok");
}
