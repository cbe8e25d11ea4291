// What live_cxx.cc leaves out of callboard.hpp, in either form: with exceptions, and as results.
#include <callboard.hpp>

#include <atomic>
#include <cstdio>
#include <cstring>

#define CHECK(...)                                                                            \
    do {                                                                                      \
        if (!(__VA_ARGS__)) {                                                                 \
            std::printf("not ok %s:%d: %s\n", __FILE__, __LINE__, #__VA_ARGS__);              \
            std::exit(1);                                                                     \
        }                                                                                     \
    } while (0)

using namespace std::chrono_literals;

// MUST: the value of a call that succeeds. fails: the error of one that does not.
static void judge(const callboard::error &error, callboard::status wanted, const char *part)
{
    if (error.code() == wanted && std::strstr(error.what(), part) != nullptr)
        return;
    std::printf("not ok: %s: %s\n", cbd_status_name(error.code()), error.what());
    std::exit(1);
}

#if defined(CALLBOARD_NO_EXCEPTIONS)
template <class T>
static T must(callboard::result<T> got)
{
    if (!got) {
        std::printf("not ok: %s: %s\n", cbd_status_name(got.error().code()), got.error().what());
        std::exit(1);
    }
    if constexpr (!std::is_void_v<T>)
        return std::move(got).value();
}
#define MUST(...) must(__VA_ARGS__)

template <class Call>
static void fails(callboard::status wanted, const char *part, Call call)
{
    auto got = call();
    CHECK(!got);
    judge(got.error(), wanted, part);
}
#else
#define MUST(...) (__VA_ARGS__)

template <class Call>
static void fails(callboard::status wanted, const char *part, Call call)
{
    try {
        (void)call();
    } catch (const callboard::error &error) {
        return judge(error, wanted, part);
    }
    CHECK(!"an error");
}
#endif

template <class T>
static callboard::span<const T> all(const std::vector<T> &values)
{
    return {values.data(), values.size()};
}

static void done(callboard::op op) { MUST(op.wait(60s)); }

static std::vector<callboard::read_group> groups(const callboard::read &read)
{
    std::vector<callboard::read_group> out;
    while (auto group = MUST(read.next()))
        out.push_back(std::move(*group));
    return out;
}

static void the_library_tells_of_itself_and_logs(const char *name)
{
    CHECK(callboard::status_name(CBD_STATUS_END) == "END" && !callboard::status_text(CBD_STATUS_END).empty());
    CHECK(!callboard::abi_version().empty() && callboard::library_version()[1] == CBD_LIBRARY_MINOR);
    std::atomic<int> told{0};
    {
        auto handler = MUST(callboard::log_handler::install([&](std::uint32_t severity, std::uint64_t time_ns, const char *text) {
            CHECK(severity <= CBD_LOG_ERROR && time_ns != 0 && std::strncmp(text, "session", 7) == 0);
            told++;
        }, CBD_LOG_DEBUG, "session"));
        fails(CBD_STATUS_ALREADY_EXISTS, "", [] { return callboard::log_handler::install([](auto, auto, auto) {}); });
        MUST(callboard::stage::connect(name)).close();
        MUST(handler.flush(60s));
        CHECK(told > 0);
    }
    const int before = told;
    MUST(callboard::stage::connect(name)).close();
    CHECK(told == before);
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [] { return callboard::log_handler::install(nullptr); });
}

static void attributes_are_declared(const callboard::stage &stage)
{
    const cbd_schema poses = callboard::schema_of<std::array<double, 7>>({}, CBD_SEMANTIC_NONE);
    CHECK(MUST(callboard::row_bytes(poses)) == 56 && MUST(callboard::row_bytes(callboard::schema_of<float>({3, 4}))) == 48);
    fails(CBD_STATUS_INVALID_ARGUMENT, "row_shape has 7 dimensions", [] { return callboard::row_bytes(callboard::schema_of<float>({1, 1, 1, 1, 1, 1, 1})); });
    done(MUST(stage.declare("declared", poses, 5, CBD_HANDOFF_COPY)));
    done(MUST(stage.declare("declared", poses)));
    fails(CBD_STATUS_INVALID_ARGUMENT, "float64x7", [&] { return MUST(stage.declare("declared", callboard::schema_of<float>())).wait(); });
    CHECK(MUST(stage.schema("declared")).lanes == 7 && MUST(stage.schema("declared")).bits == 64);
    fails(CBD_STATUS_NOT_FOUND, "", [&] { return stage.schema("never"); });
    bool found = false;
    for (const cbd_attribute_info &known : MUST(stage.attributes()))
        if (std::strcmp(known.name, "declared") == 0)
            found = known.retain == 5 && known.handoff == CBD_HANDOFF_COPY && known.row_bytes == 56;
    CHECK(found);
}

static void batches_deletes_and_what_changed(const callboard::stage &stage)
{
    const callboard::query three = MUST(stage.query({"/d/0", "/d/1", "/d/2"}));
    const std::vector<std::array<float, 3>> positions(3, {1, 2, 3});
    const std::vector<float> masses = {4, 5, 6}, one = {9};
    cbd_write_options leading = cbd_write_options_default();
    leading.count = 1;
    const std::int64_t extent = 1;
    const auto tick = [&](std::uint64_t ordinal) {
        const cbd_op_result sealed = MUST(MUST(stage.advance_write_floor(ordinal, {"d/position", "d/mass"})).wait());
        CHECK(sealed.value == ordinal);
    };

    const callboard::snapshot nothing = MUST(stage.snapshot());
    callboard::op op = MUST(stage.write(three, callboard::batch().add("d/position", all(positions)).add("d/mass", all(masses)), 1));
    CHECK(op.lowest_pending() <= op.id());
    CHECK(MUST(op.wait()).ordinal == 1 && op.lowest_pending() == op.id() && op.error_text().empty());
    tick(1);
    fails(CBD_STATUS_FLOOR_VIOLATION, "", [&] { return stage.write(three, callboard::batch().add("d/mass", all(masses)), 1); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return stage.write(three, callboard::batch(), 2); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "d/mass", [&] { return stage.write(three, callboard::batch().add("d/position", all(positions)).add("d/mass", all(one)), 2); });
    fails(CBD_STATUS_ALREADY_EXISTS, "", [&] { return stage.write(three, callboard::batch().add("d/mass", all(masses)), 2, CBD_MODE_INSERT); });

    const callboard::snapshot first = MUST(stage.snapshot());
    const callboard::cursor since = MUST(first.cursor());
    CHECK(since.epoch() == first.epoch());
    done(MUST(stage.write(three, callboard::batch().add("d/mass", callboard::tensor_of<float>(one.data(), 1, &extent), leading), 2)));
    const callboard::query last = MUST(stage.query({"/d/2"}));
    done(MUST(stage.delete_attributes(last, {"d/mass"}, 2)));
    tick(2);
    fails(CBD_STATUS_FLOOR_VIOLATION, "", [&] { return stage.delete_attributes(last, {"d/mass"}, 2); });

    const callboard::snapshot second = MUST(stage.snapshot());
    auto changed = groups(MUST(second.read_since(three, {"d/mass", "d/position"}, since)));
    CHECK(changed.size() == 2 && !changed[0]->is_delete && changed[1]->is_delete);
    CHECK(changed[0].prims().size() == 1 && MUST(changed[0].row_ordinals()) == std::vector<std::uint64_t>{2});
    CHECK(changed[1].prims()[0] == three.ids()[2] && MUST(changed[1].row_ordinals())[0] == 2);
    fails(CBD_STATUS_INVALID_ARGUMENT, "asked for", [&] { return changed[1].rows<float>(); });
    CHECK(groups(MUST(second.read_since(three, {"d/position"}, callboard::cursor()))).size() == 1);
    cbd_range common{};
    common.at_what = CBD_AT_COMMON;
    CHECK(MUST(stage.read(three, {"d/mass", "d/position"}, common)).ordinal() == 2);
    CHECK(MUST(stage.read(three, {"d/mass"})).ordinal() == 0);
    CHECK(MUST(stage.frontier("d/mass")) < 2 && MUST(stage.frontier("never")) == 0);

    done(MUST(stage.delete_prims(last, 3)));
    CHECK(MUST(MUST(stage.advance_write_floor_except(3, {"d/mass"})).wait()).status == CBD_STATUS_OK);
    CHECK(MUST(stage.write_floor("d/mass")) == 2 && MUST(stage.write_floor()) <= 2);
    auto positions_left = groups(MUST(stage.read(three, {"d/position"})));
    CHECK(positions_left.size() == 1 && positions_left[0].prims().size() == 2);
    tick(3);
}

static void ids_paths_and_lists(callboard::stage stage)
{
    const auto tokens = MUST(stage.tokens({"World", "R0"}));
    const auto paths = MUST(stage.paths({"/World/R0", "/", "/World"}));
    CHECK(tokens.size() == 2 && paths.size() == 3 && MUST(stage.resolve(tokens[1])) == "R0");
    CHECK(MUST(stage.path_from_tokens(all(tokens))) == paths[0] && MUST(stage.path_from_tokens({})) == paths[1]);
    CHECK(MUST(stage.path_tokens(paths[0])) == tokens && MUST(stage.path_tokens(paths[1])).empty());
    fails(CBD_STATUS_NOT_FOUND, "", [&] { return stage.path_tokens(1); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return stage.tokens({""}); });

    callboard::list kept = MUST(stage.list(all(paths)));
    {
        const callboard::list slice = MUST(kept.slice(1, 2)), again = MUST(slice.share());
        CHECK(slice.number() == again.number() && slice.number() != kept.number() && MUST(slice.size()) == 2);
        CHECK(MUST(slice.ids(1, 1)) == std::vector<std::uint64_t>{paths[2]});
        fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return slice.ids(1, 2); });
        const callboard::query prims = MUST(stage.query(slice));
        CHECK(prims.size() == 2 && prims.ids()[0] == paths[1]);
    }
    callboard::list other = MUST(stage.list({}));
    CHECK(MUST(other.size()) == 0);
    other = std::move(kept);
    CHECK(MUST(other.size()) == 3 && kept.number() == 0);
    stage = callboard::stage(); // closes, and the list keeps what it needs
    kept = std::move(other);
}

static void filters_find_prims(const callboard::stage &stage)
{
    const callboard::query four = MUST(stage.query({"/f/0", "/f/1", "/f/2", "/g/3"}));
    const std::vector<std::int32_t> levels = {1, 2, 3, 4};
    done(MUST(stage.write<std::int32_t>(four, "level", all(levels), 1)));
    const auto size = [&](const callboard::filter &filter) { return MUST(stage.query(filter)).size(); };
    CHECK(size(callboard::filter().has("level")) == 4 && size(callboard::filter().has("level").path_prefix("/f/")) == 3);
    CHECK(size(callboard::filter().less("level", "2")) == 1 && size(callboard::filter().less_equal("level", "2")) == 2);
    CHECK(size(callboard::filter().greater("level", "2")) == 2 && size(callboard::filter().greater_equal("level", "2")) == 3);
    CHECK(size(callboard::filter().in("level", {"1", "4"})) == 2 && size(callboard::filter().path_in({"/f/1", "/none"})) == 1);
    CHECK(size(callboard::filter().has("level").sealed_only()) == 0);
    fails(CBD_STATUS_NOT_SUPPORTED, "level", [&] { return stage.query(callboard::filter().contains("level", {"1"})); });
    const callboard::query later = MUST(stage.submit(callboard::filter().has("level").reporting({"level", "other"})));
    MUST(later.wait(60s));
    const callboard::query_result found = MUST(later.found());
    CHECK(found.total() == 4 && found.attributes().size() == 1 && std::strcmp(found.attributes()[0], "level") == 0);
    CHECK(MUST(MUST(stage.query({"/f/0"})).found()).total() == 1);
}

static void groups_are_shared(const callboard::stage &stage)
{
    const callboard::query four = MUST(stage.query({"/w/0", "/w/1", "/w/2", "/w/3"}));
    cbd_map_options options{};
    options.ordinal = 1;
    options.code = CBD_DTYPE_FLOAT;
    options.bits = 32;
    options.lanes = 1;
    options.group_rows = 1;
    const callboard::session session = MUST(stage.map(four, "work", options));
    CHECK(session.group_count() == 4);
    const auto open = MUST(stage.open_groups("work"));
    CHECK(open.size() == 4 && MUST(stage.open_groups()).size() == 4 && MUST(stage.open_groups("other")).empty());
    {
        const callboard::claimed_group claimed = MUST(stage.claim(open[2].session, 2));
        CHECK(claimed->prims().size() == 1 && claimed->prims()[0] == four.ids()[2] && (*claimed)->attempt == 1);
        fails(CBD_STATUS_INVALID_HANDLE, "", [&] { return stage.claim(open[2].session, 2); });
    } // given up
    const callboard::claimed_group again = MUST(stage.claim(open[2].session, 2));
    CHECK((*again)->attempt == 2);
    MUST(again->give_up());

    const auto fill = [&](const callboard::group &group) {
        MUST(group.rows<float>())[0] = static_cast<float>(group->first_prim);
        return callboard::result<void>();
    };
#if defined(CALLBOARD_NO_EXCEPTIONS)
    fails(CBD_STATUS_LIMIT, "enough", [&] {
        return stage.work_on("work", [](const callboard::group &) {
            return callboard::result<void>(callboard::error(callboard::detail::failure(CBD_STATUS_LIMIT, "enough")));
        });
    });
#else
    bool thrown = false;
    try {
        stage.work_on("work", [](const callboard::group &) { throw std::string("enough"); });
    } catch (const std::string &what) {
        thrown = what == "enough";
    }
    CHECK(thrown);
#endif
    MUST(stage.work_on("work", fill, 50ms));
    MUST(stage.work_on("none", fill));
    MUST(MUST(session.unmap()).wait(60s));
    done(MUST(stage.advance_write_floor(1, {"work"})));
    const callboard::read read = MUST(stage.read(four, {"work"}));
    const auto got = MUST(read.next());
    CHECK(got && MUST(got->rows<float>())[3] == 3);
    fails(CBD_STATUS_INVALID_HANDLE, "", [&] { return stage.claim(open[0].session); });
}

static const cbd_dlpack_tensor &within(DLManagedTensor *managed) { return reinterpret_cast<cbd_dlpack_managed *>(managed)->tensor; }
static const cbd_dlpack_tensor &within(DLManagedTensorVersioned *managed) { return reinterpret_cast<cbd_dlpack_versioned *>(managed)->tensor; }

static void tensors_go_out_and_in(const callboard::stage &stage)
{
    std::vector<float> values = {0, 1, 2, 3, 4, 5};
    const std::int64_t shape[2] = {2, 3}, turned[2] = {1, 2};
    const cbd_tensor rows = callboard::tensor_of<float>(values.data(), 2, shape), columns = callboard::tensor_of<float>(values.data(), 2, shape, turned);
    {
        const auto view = MUST(callboard::export_view(rows, CBD_DLPACK_READ_ONLY));
        CHECK(within(view.get()).data == values.data() && MUST(callboard::import_tensor(view.get())).data == values.data());
        const auto legacy = MUST(callboard::export_view<DLManagedTensor>(columns));
        fails(CBD_STATUS_NOT_SUPPORTED, "strides (1, 2)", [&] { return callboard::import_tensor(legacy.get()); });
        const callboard::tensor copy = MUST(callboard::import_copy(legacy.get())), other = MUST(callboard::import_copy(view.get()));
        CHECK(static_cast<const float *>(copy->data)[1] == 2 && static_cast<const float *>((*other).data)[1] == 1);
        CHECK(static_cast<const float *>(MUST(callboard::copy_tensor(columns))->data)[3] == 1);
    }
    fails(CBD_STATUS_NOT_SUPPORTED, "read-only", [&] { return callboard::export_view<DLManagedTensor>(rows, CBD_DLPACK_READ_ONLY); });

    auto kept = std::make_shared<int>(7); // what keeps the data goes with the export, and not with one that fails
    std::weak_ptr<int> watched = kept;
    fails(CBD_STATUS_INVALID_ARGUMENT, "0x8", [&] { return callboard::export_owned(rows, kept, 8); });
    CHECK(kept.use_count() == 1);
    auto owned = MUST(callboard::export_owned(rows, std::move(kept)));
    CHECK(!watched.expired());
    owned.reset();
    CHECK(watched.expired());
    kept = std::make_shared<int>(8);
    watched = kept;
    auto *consumers = MUST(callboard::export_owned<DLManagedTensor>(rows, std::move(kept), CBD_DLPACK_COPY)).release();
    CHECK(watched.expired()); // of a copy nothing is lent
    reinterpret_cast<cbd_dlpack_managed *>(consumers)->deleter(consumers);

    const cbd_buffer buffer = MUST(callboard::buffer_of(columns, true));
    CHECK(buffer.read_only && buffer.strides[1] == 8 && callboard::buffer_format(CBD_DTYPE_FLOAT, 64) == "d" && callboard::buffer_format(99, 8).empty());

    const callboard::query two = MUST(stage.query({"/t/0", "/t/1"}));
    const callboard::session session = MUST(stage.map<std::array<float, 3>>(two, "tensors", 1));
    {
        const auto group = MUST(session.next());
        const callboard::tensor_view described = MUST(group->tensor()), same = described;
        CHECK(described->ndim == 2 && same->shape != described->shape && same->shape[1] == 3 && (*same).data == (*group)->data);
        const auto lent = MUST(group->dlpack<DLManagedTensor>());
        std::memcpy(within(lent.get()).data, values.data(), 24);
    }
    done(MUST(session.unmap()));
    done(MUST(stage.advance_write_floor(1, {"tensors"})));

    callboard::pin pin;
    const float *data = nullptr;
    {
        const auto group = MUST(MUST(stage.read(two, {"tensors"})).next());
        data = static_cast<const float *>(MUST(group->tensor())->data);
        fails(CBD_STATUS_INVALID_ARGUMENT, "tensor 1", [&] { return group->tensor(1); });
        fails(CBD_STATUS_NOT_SUPPORTED, "read-only", [&] { return group->dlpack<DLManagedTensor>(); });
        CHECK(static_cast<float *>(within(MUST(group->dlpack<DLManagedTensor>(0, CBD_DLPACK_COPY)).get()).data)[4] == 4);
        pin = group->pin().share();
        CHECK(!MUST(MUST(stage.read(two, {CBD_PATH_NAME})).next())->pin());
    }
    done(MUST(stage.write<std::array<float, 3>>(two, "tensors", all(std::vector<std::array<float, 3>>(2)), 2)));
    done(MUST(stage.advance_write_floor(2, {"tensors"})));
    CHECK(pin && data[5] == 5);
}

/* On a machine without a GPU: what is on the host is there already, and what is not is refused by name. */
static void memory_is_named(const callboard::stage &stage)
{
    MUST(callboard::cuda_enable());
    CHECK(MUST(stage.devices()).empty());
    ::setenv("CALLBOARD_CUDA_LIBRARY", "/nonexistent", 1);
    fails(CBD_STATUS_NOT_SUPPORTED, "/nonexistent", [] { return callboard::cuda_device_count(); });
    const float value = 7;
    fails(CBD_STATUS_NOT_SUPPORTED, "/nonexistent", [] { return callboard::cuda_stream::of(0); });
    fails(CBD_STATUS_NOT_SUPPORTED, "/nonexistent", [&] { return callboard::cuda_memory::clone(&value, sizeof value, 0); });
    fails(CBD_STATUS_NOT_SUPPORTED, "/nonexistent", [&] { return callboard::cuda_device_of(&value); });
    CHECK(callboard::cuda_stream().get() == 0 && callboard::cuda_memory().get() == nullptr);
    const std::int64_t one = 1;
    done(MUST(stage.publish("memory", callboard::tensor_of(&value, 1, &one))));
    const auto latest = MUST(stage.latest_in("memory", CBD_DEVICE_CPU));
    CHECK(!latest.on_device() && latest->device_type == CBD_DEVICE_CPU && MUST(latest.values<float>())[0] == 7);
    const auto same = MUST(latest.in(CBD_DEVICE_CPU));
    CHECK(same->data == latest->data);
    fails(CBD_STATUS_NOT_SUPPORTED, "serves no GPU", [&] { return latest.in(CBD_DEVICE_CUDA, 0); });
    fails(CBD_STATUS_NOT_SUPPORTED, "serves no GPU", [&] { return stage.latest_in("memory", CBD_DEVICE_CUDA); });
    cbd_write_options options = cbd_write_options_default();
    options.semantic = CBD_SEMANTIC_COLOR;
    done(MUST(stage.publish("coloured", callboard::tensor_of(&value, 1, &one), options)));
    for (const cbd_attribute_info &known : MUST(stage.attributes()))
        CHECK((std::strcmp(known.name, "coloured") == 0) == (known.schema.semantic == CBD_SEMANTIC_COLOR));
    options.device_type = CBD_DEVICE_CUDA;
    fails(CBD_STATUS_NOT_SUPPORTED, "GPU", [&] { return stage.publish("there", callboard::tensor_of(&value, 1, &one), options); });
    const auto root = MUST(stage.root());
    const auto read = MUST(stage.read(root, {"memory"}));
    fails(CBD_STATUS_INVALID_ARGUMENT, "device (10, 0)", [&] { return read.next_in(10); });
    CHECK(MUST(read.next_in(CBD_DEVICE_CPU)) && !MUST(read.next_in(CBD_DEVICE_CPU)));

    const callboard::session session = MUST(stage.map<float>(root, "filled", callboard::next_ordinal));
    const auto group = MUST(session.next());
    CHECK(!group->on_device());
    const cbd_cuda_sync sync = {1, 0};
    fails(CBD_STATUS_INVALID_ARGUMENT, "lies on the host", [&] { return group->unmap(0, sync); });
    fails(CBD_STATUS_INVALID_ARGUMENT, "lies on the host", [&] { return session.unmap(0, sync); });
}

/* On one with a GPU, which may be an emulated one: owners of streams and copies give back, also where they are moved. */
void run_on_gpu(const char *name)
{
    MUST(callboard::cuda_enable());
    CHECK(MUST(callboard::cuda_device_count()) > 0);
    const callboard::stage stage = MUST(callboard::stage::connect(name));
    const float values[2] = {5, 7};
    const std::int64_t two = 2;
    cbd_write_options options = cbd_write_options_default();
    options.device_type = CBD_DEVICE_CUDA;
    done(MUST(stage.publish("there", callboard::tensor_of(values, 1, &two), options)));
    const auto there = MUST(stage.latest("there"));
    CHECK(there.on_device() && MUST(callboard::cuda_device_of(there->data)) == 0);
    fails(CBD_STATUS_INVALID_ARGUMENT, "of the host", [&] { return callboard::cuda_device_of(values); });

    auto first = MUST(callboard::cuda_stream::of(0)), again = MUST(callboard::cuda_stream::of(0));
    CHECK(first.get() > 2 && first.get() == again.get() && first.device_id() == 0);
    again = std::move(first);
    CHECK(first.get() == 0 && again.get() > 2);
    fails(CBD_STATUS_INVALID_ARGUMENT, "GPU 77", [] { return callboard::cuda_stream::of(77); });

    auto cloned = MUST(callboard::cuda_memory::clone(there->data, sizeof values, 0));
    CHECK(cloned.get() != nullptr && cloned.get() != there->data && cloned.device_id() == 0);
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return callboard::cuda_memory::clone(there->data, 0, 0); });
    cbd_tensor lent = callboard::tensor_of(static_cast<const float *>(cloned.get()), 1, &two);
    lent.device_type = CBD_DEVICE_CUDA;
    options.sync.stream = again.get();
    done(MUST(stage.publish("copied", lent, options)));
    const auto copied = MUST(stage.latest_in("copied", CBD_DEVICE_CPU));
    CHECK(MUST(copied.values<float>())[0] == 5 && MUST(copied.values<float>())[1] == 7);
    auto read = MUST(stage.latest("there")), host = MUST(stage.latest_in("copied", CBD_DEVICE_CPU));
    MUST(read.release(again.get()));
    fails(CBD_STATUS_INVALID_ARGUMENT, "", [&] { return host.release(again.get()); });

    const auto given = MUST(callboard::export_owned(lent, std::move(cloned))); /* its deleter frees the copy */
    CHECK(cloned.get() == nullptr && within(given.get()).data == lent.data);
}

static void it_closes_when_nothing_is_in_use(const char *name)
{
    const callboard::stage stage = MUST(callboard::stage::connect(name));
    CHECK(!stage.foreign());
    {
        const callboard::query used = MUST(stage.query({"/c"}));
        fails(CBD_STATUS_OP_FAILED, "quer", [&] { return stage.close_if_idle(); });
        CHECK(stage.alive());
    }
    MUST(stage.close_if_idle());
    CHECK(!stage.alive());
}

void run_calls(const char *name)
{
    the_library_tells_of_itself_and_logs(name);
    const callboard::stage stage = MUST(callboard::stage::connect(name));
    attributes_are_declared(stage);
    batches_deletes_and_what_changed(stage);
    ids_paths_and_lists(MUST(callboard::stage::connect(name)));
    filters_find_prims(stage);
    groups_are_shared(stage);
    tensors_go_out_and_in(stage);
    memory_is_named(stage);
    it_closes_when_nothing_is_in_use(name);
}
