/* How long device memory is open, and what is left when everything was given back: rules B3, B4, C6. */
#include "cuda_scene.h"
#include "failing.h"

/* Rule C6: closed when retired and not looked at, and the broker is told. */
static void a_retired_arena_is_closed(void)
{
    begin();
    const cbd_read_group *group;
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_RETIRED);
    store32(&broker->directory->retired_count, 1);
    cbd_epoch(stage);
    CHECK(counted(IMPORTS) == 1 && count_of(CBD_OP_ARENA_CLOSED) == 0);
    cbd_release_group(group);
    cbd_epoch(stage);
    CHECK(counted(IMPORTS) == 0);
    while (count_of(CBD_OP_ARENA_CLOSED) == 0)
        usleep(1000);
    CHECK(sent.entry[CBD_OP_ARENA_CLOSED].value == ARENA_0);
    end();
}

/* Rules B4, C6: a program that closes its stage and runs on has told the broker of what it closed; what a group uses is
 * closed with that, and nobody is told. */
static void closing_tells_of_arenas(void)
{
    for (uint32_t used = 0; used < 2; used++) {
        begin();
        const cbd_read_group *group, *other;
        CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
        CHECK_STATUS(read_x(0, 0, &other), CBD_STATUS_OK);
        CHECK(counted(IMPORTS) == 1);
        if (!used)
            cbd_release_group(group);
        cbd_release_group(other);
        cbd_stage_close(stage);
        CHECK(count_of(CBD_OP_ARENA_CLOSED) == 1 - used);
        if (!used)
            CHECK(sent.entry[CBD_OP_ARENA_CLOSED].value == ARENA_0);
        CHECK(counted(IMPORTS) == used);
        if (used) {
            float got[6];
            gpu_get(1, got, group->data, sizeof got);
            CHECK(memcmp(got, rows, sizeof got) == 0);
            cbd_release_group(group);
        }
        end();
    }
}

/* Rule B3: what a dead broker had exported is closed, and nothing of it is taken for the next one's. */
static void a_restart_makes_imports_void(void)
{
    begin();
    const cbd_read_group *group;
    cbd_session *session;
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    map_on_gpu(&session, 5);
    CHECK(counted(IMPORTS) == 1 && counted(IMPORTED_EVENTS) == 1);
    fake_die(broker);
    uint32_t old_arena = arenas[0], old_event = events[0];
    broker->directory->started_ns = ++life;
    arenas[0] = events[0] = 0;
    fake_rise(broker);
    while (!cbd_stage_is_alive(stage) || atomic_load(&stage->reattach.link) != 0)
        usleep(1000);
    CHECK_STATUS(cbd_unmap_attribute(session, 0, NULL, &error), CBD_STATUS_BROKER_RESTARTED); /* the caller has waited */
    cbd_session_release(session);
    int64_t shape[] = {2, 3};
    cbd_tensor of_before = {.data = (void *)(uintptr_t)group->data, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .ndim = 2, .shape = shape,
                            .device_type = CBD_DEVICE_CUDA, .device_id = group->device_id};
    CHECK_STATUS(cbd_publish(stage, "z", &of_before, CBD_SEMANTIC_NONE, NULL, &error), CBD_STATUS_BROKER_RESTARTED);
    SAYS("the tensor lay in device memory of the time before");
    cbd_release_group(group);
    cbd_epoch(stage);
    CHECK(counted(IMPORTS) == 0 && count_of(CBD_OP_ARENA_CLOSED) == 0);
    publish(rows, 7);
    store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_LIVE);
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    CHECK(counted(IMPORTS) == 1);
    float got[6];
    gpu_get(1, got, group->data, sizeof got);
    CHECK(memcmp(got, rows, sizeof got) == 0);
    cbd_release_group(group);
    map_on_gpu(&session, 8);
    CHECK(counted(IMPORTED_EVENTS) == 1); /* the old one went as the new one came */
    cbd_session_release(session);
    exporter_free(old_arena - 1);
    exporter_destroy(old_event - 1);
    end();
}

/* CUDA cannot be used after a fork: giving back touches no driver, and the rest says so. */
static void a_child_has_no_driver(void)
{
    begin();
    const cbd_read_group *group;
    cbd_session *session;
    CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
    map_on_gpu(&session, 5);
    pid_t child = fork();
    if (child == 0) {
        uint32_t count;
        CHECK_STATUS(cbd_cuda_device_count(&count, &error), CBD_STATUS_NOT_SUPPORTED);
        SAYS("forked from one that had loaded the driver");
        cbd_release_group(group);
        cbd_session_release(session);
        cbd_query_release(query);
        cbd_stage_release(stage);
        fake_child_ends();
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    CHECK(counted(IMPORTS) == 1);
    cbd_release_group(group);
    cbd_session_release(session);
    end();
}

static cbd_status everything(const uint8_t *data)
{
    const cbd_read_group *group = NULL, *other = NULL;
    cbd_session *session = NULL;
    DLManagedTensorVersioned *v = NULL;
    cbd_map_options map = {.ordinal = 5};
    const cbd_cuda_sync legacy = {.stream = 1};
    int64_t shape[2] = {2, 3}, strides[2] = {6, 2};
    cbd_tensor t = {.data = data, .ndim = 2, .shape = shape, .strides = strides, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1,
                    .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    o.ordinal = 5;
    cbd_status status = read_x(0, 0, &group);
    if (status == CBD_STATUS_OK)
        status = cbd_read_group_in(group, CBD_DEVICE_CPU, 0, &other, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_dlpack_export_read_versioned(group, 0, 0, &v, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_map_attribute(stage, query, name, &map, &session, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error);
    if (status == CBD_STATUS_OK)
        status = cbd_write_attribute(stage, query, name, &t, &o, NULL, &error);
    if (v != NULL)
        v->deleter(v);
    cbd_release_group(other);
    cbd_release_group(group);
    cbd_session_release(session);
    return status;
}

static void an_allocation_that_fails_costs_its_call_alone(void)
{
    float data[12] = {0};
    uint8_t *at = gpu_alloc(1, data, sizeof data);
    int failed = 0;
    for (long n = 1;; n++) {
        begin();
        fails_at = n;
        cbd_status status = everything(at);
        bool reached = fails_at <= 0;
        fails_at = 0;
        if (status != CBD_STATUS_OK)
            CHECK_STATUS(status, CBD_STATUS_OUT_OF_MEMORY);
        failed += status != CBD_STATUS_OK;
        CHECK(fake_pins_held(broker) == 0);
        CHECK_STATUS(everything(at), CBD_STATUS_OK);
        end();
        if (!reached)
            break;
    }
    printf("  %d calls failed\n", failed);
    CHECK(failed >= 10);
    gpu_free(1, at);
}

/* ---- in processes of their own ------------------------------------------------------------- */

/* Rule B4: closing waits for what was handed over, though nobody waited for its op, and tells the broker what it closed. */
static void closing_waits_for_what_is_queued(void)
{
    begin();
    cbd_session *session;
    const cbd_cuda_sync legacy = {.stream = 1};
    map_on_gpu(&session, 5);
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    cbd_query_release(query);
    query = NULL;
    cbd_stage_close(stage);
    CHECK(count_of(CBD_OP_ARENA_CLOSED) == 1 && counted(IMPORTS) == 0);
    end();
}

/* And not for ever, whatever a broker's answer may take: what goes on keeps what it fills. */
static void closing_waits_no_longer(void)
{
    connecting.timeout_ns = UINT64_C(3600000000000);
    begin();
    cbd_session *session;
    const cbd_cuda_sync legacy = {.stream = 1};
    map_on_gpu(&session, 5);
    CHECK_STATUS(cbd_unmap_attribute_after(session, 0, &legacy, NULL, &error), CBD_STATUS_OK);
    cbd_session_release(session);
    cbd_query_release(query);
    cbd_stage_release(stage);
    fake_stop(broker);
    CHECK(count_of(CBD_OP_ARENA_CLOSED) == 0 && counted(IMPORTS) == 1 && counted(IMPORTED_EVENTS) == 1);
}

/* However many calls there are, and nothing open in between: one context for the stage, and it goes with that. Any further
 * one would fail here; the first is the program's own. */
static void a_context_is_made_once(void)
{
    begin();
    float data[6] = {0};
    uint8_t *at = gpu_alloc(1, data, sizeof data);
    int64_t shape[2] = {2, 3};
    cbd_tensor t = {.data = at, .ndim = 2, .shape = shape, .code = CBD_DTYPE_FLOAT, .bits = 32, .lanes = 1, .device_type = CBD_DEVICE_CUDA, .device_id = 1};
    cbd_write_options o = cbd_write_options_default();
    const cbd_read_group *group;
    uint32_t device;
    o.ordinal = 5;
    for (int i = 0; i < 2; i++) {
        cbd_op *op;
        CHECK_STATUS(cbd_write_attribute(stage, query, "new", &t, &o, &op, &error), CBD_STATUS_OK); /* which lies on the host */
        wait_for(op, CBD_STATUS_OK);
        CHECK_STATUS(cbd_cuda_device_of(at, &device, &error), CBD_STATUS_OK);
        CHECK_STATUS(read_x(0, 0, &group), CBD_STATUS_OK);
        cbd_release_group(group);
        store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_RETIRED);
        store32(&broker->directory->retired_count, broker->directory->retired_count + 1);
        cbd_epoch(stage);
        store32(&segment_entry(ARENA_0)->state, CBD_SEGMENT_LIVE);
        CHECK(counted(CONTEXTS) == 1 && counted(IMPORTS) == 0);
    }
    gpu_free(1, at);
    CUdevice own;
    CUDA("cuDeviceGet", (CUdevice *, int), &own, 1);
    CUDA("cuDevicePrimaryCtxRelease_v2", (CUdevice), own);
    contexts[1] = NULL;
    CHECK(counted(CONTEXTS) == 1); /* the stage has it */
    end();
}

static void together(void)
{
    CHECK_STATUS(cbd_cuda_enable(&error), CBD_STATUS_OK);
    RUN(a_retired_arena_is_closed);
    RUN(closing_tells_of_arenas);
    RUN(a_restart_makes_imports_void);
    RUN(a_child_has_no_driver);
    RUN(an_allocation_that_fails_costs_its_call_alone);
}

static const struct alone alone[] = {
    ALONE(closing_waits_for_what_is_queued, "CUDAEMU_DELAY_US", "50000"),
    ALONE(closing_waits_no_longer, "CUDAEMU_STALL_EVENTS", "1"),
    ALONE(a_context_is_made_once, "CUDAEMU_FAIL", "cuDevicePrimaryCtxRetain:3:2"),
};

int main(int argc, char **argv) { return cuda_tests(argc, argv, together, alone, sizeof alone / sizeof alone[0]); }
