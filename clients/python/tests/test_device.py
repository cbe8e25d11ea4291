"""Memory of GPUs, with a real broker and a driver of CUDA: this machine's, or else the emulated one.

A process that has loaded a driver cannot be forked any more, and its tensors of made-up addresses are refused by that
driver. So each test's body runs in a fresh interpreter: see `alone`. At its end nothing may be left open.
"""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import callboard as cb
import numpy as np
import pytest
from conftest import CUDA_LIBRARY, Broker, pinned, seal
from cuda import Consumer, Driver, Handle, Interface, Old, Pointer, Producer, Size

EMULATED = Path(__file__).parents[3] / "integration" / "cudaemu" / "csrc"
COUNT = "from cuda import Driver; print(Driver().devices())"
SLOW = {"CUDAEMU_DELAY_US": "30000"}  # before each operation of a stream, so that a missing wait shows


# ---- a machine with a GPU --------------------------------------------------------------------


def has_gpu(library: str) -> bool:
    """Whether it is a real driver, with a device."""
    found = subprocess.run(
        [sys.executable, "-c", COUNT],
        cwd=Path(__file__).parent,
        env={**os.environ, CUDA_LIBRARY: library},
        capture_output=True,
        text=True,
    )
    return found.returncode == 0 and int(found.stdout) > 0


@pytest.fixture(scope="session")
def machine(
    cuda_library: str | None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, str]:
    """The environment of all who use the driver."""
    directory = tmp_path_factory.mktemp("cuda")
    real = has_gpu(cuda_library or "libcuda.so.1")
    if os.environ.get("REQUIRE_GPU") == "1" and not real:
        pytest.fail("REQUIRE_GPU=1, and no real GPU is here")
    if cuda_library or real:
        return {CUDA_LIBRARY: cuda_library or "libcuda.so.1", "CUDAEMU_DIR": str(directory)}
    return {CUDA_LIBRARY: request.getfixturevalue("emulated"), "CUDAEMU_DIR": str(directory)}


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The emulated driver."""
    library = tmp_path_factory.mktemp("cudaemu") / "libcuda.so.1"
    compiler = [
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-fPIC",
        "-pthread",
        "-fvisibility=hidden",
    ]
    link = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", library, *sorted(EMULATED.glob("*.c")), "-ldl"]
    subprocess.run([*compiler, *link], check=True, timeout=300)
    return str(library)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory, machine: dict[str, str]) -> Iterator[Broker]:
    """A broker that serves it."""
    options = ("--gpu", "required", "--gpu-memory", "256MiB")
    broker = Broker(tmp_path_factory.mktemp("gpu"), *options, environment=machine)
    yield broker
    broker.stop()


Body = Callable[[SimpleNamespace], Any]
bodies: dict[str, Body] = {}


def run_alone(broker: Broker, body: str, name: str, **environment: str) -> None:
    """Runs a body in an interpreter of its own; fails as it does."""
    program = "import sys, test_device; test_device.play(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program, body, name],
        cwd=Path(__file__).parent,
        env={**broker.environment, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"status {done.returncode}\n{done.stdout}{done.stderr}"


def alone(body: Body | None = None, **environment: str) -> Any:
    """Makes a test of a function that is given a world, in an interpreter of its own with this environment."""
    if body is None:
        return lambda body: alone(body, **environment)
    bodies[body.__name__] = body

    def test(gpu: Broker, name: str) -> None:
        run_alone(gpu, body.__name__, name, **environment)

    test.__doc__ = body.__doc__
    return test


def counts() -> tuple[int, ...]:
    """What this process has of the driver, as integration/cudaemu reports it. Of a real driver nobody can say."""
    report = Path(os.environ["CUDAEMU_DIR"]) / f"process-{os.getpid()}"
    return struct.unpack_from("=8Q", report.read_bytes(), 16) if report.exists() else (0,) * 8


def held() -> tuple[int, int]:
    """What it has open of others: memory and events."""
    return (counts()[3], counts()[5])


left: list[Any] = []  # what a body leaves for the interpreter's end


def play(body: str, name: str) -> None:
    """A test's body, in the child."""
    with cb.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
        w = SimpleNamespace(stage=stage, query=query, name=name)
        bodies[body](w)
        w.__dict__.clear()
    gc.collect()
    if not left:
        assert held() == (0, 0), f"{held()} imports of memory and events are open at the end"


def filled(w: SimpleNamespace, value: int, ordinal: int, **options: Any) -> cb.Op:
    """Fills both rows of (3,) uint8 with a byte in place, on a stream, and seals them."""
    driver, stream = w.driver, w.driver.stream()
    session = w.stage.map_attribute(w.query, w.name, ordinal=ordinal, dtype="u1", row_shape=3, **options)
    view = session.view
    driver.fill(view.pointer, value, view.nbytes, stream)
    del view
    op = session.unmap_attribute(cuda_sync=cb.CudaSync(stream)).wait()
    seal(w.stage, ordinal, w.name)
    return op


def only(read: cb.Read) -> cb.ReadGroup:
    (group,) = read
    return group


def host(w: SimpleNamespace) -> Any:
    """The newest rows, on the host."""
    return only(w.stage.read_attributes(w.query, w.name, device="cpu")).array(0)


# ---- filling in place --------------------------------------------------------------------------


@alone(**SLOW)
def test_rows_are_filled_in_place_and_read_in_place(w: SimpleNamespace) -> None:
    """What comes before a stream or an event is written when it has happened, and no reader waits (C3; 305, 307)."""
    w.driver = driver = Driver()
    w.stage.declare(w.name, dtype="f4", row_shape=3, device="cuda:0").wait()
    stream = driver.stream()
    for ordinal, how in enumerate(("stream", "event", "both", "attribute", "none"), 1):
        values = np.arange(6, dtype="f4").reshape(2, 3) * ordinal
        source = Producer(driver, values)
        session = w.stage.map_attribute(w.query, w.name, ordinal=ordinal)
        assert session.cuda_sync == cb.CudaSync() == (0, 0)
        group = session.fetch_map_next()
        assert (group.device, group.shape, group.dtype.name) == ("cuda:0", (2, 3), "float32")
        view = group.array(0)
        assert isinstance(view, cb.View) and not view.readonly
        assert (view.device, view.__dlpack_device__(), view.shape, view.dtype.name) == (
            "cuda:0",
            (2, 0),
            (2, 3),
            "float32",
        )
        consumer = Consumer(driver, view, stream=stream)
        assert (consumer.device, consumer.flags, consumer.strides, consumer.pointer) == (
            (2, 0),
            0,
            (3, 1),
            view.pointer,
        )
        driver("cuMemcpyDtoDAsync_v2", *map(Pointer, (view.pointer, source.pointer)), Size(24), Handle(stream))
        consumer.give_back()
        del view
        sync = {
            "stream": cb.CudaSync(stream),
            "event": cb.CudaSync(wait_event=driver.event(stream)),
            "both": cb.CudaSync(stream, driver.event(stream)),
        }.get(how)
        if how == "attribute":
            session.cuda_sync = cb.CudaSync(stream)
            assert session.cuda_sync == (stream, 0)
        elif how == "none":
            driver.synchronize(stream)
        op = session.unmap_attribute(cuda_sync=sync).wait()
        assert op.adopted
        seal(w.stage, ordinal, w.name)
        read = only(w.stage.read_attributes(w.query, w.name))
        found = Consumer(driver, read.dlpack(0), stream=-1)
        assert read.device == "cuda:0" and found.flags == 1
        assert np.array_equal(found.values(), values), how
        found.give_back()
        assert w.stage.attributes()[-1]["device"] == "cuda:0"


@alone(**SLOW)
def test_a_with_block_takes_the_sessions_sync(w: SimpleNamespace) -> None:
    """The short form: one row of the prim "/"; an exception publishes nothing (M3)."""
    driver = Driver()
    stream = driver.stream()
    with w.stage.map(w.name, (4,), "u1", device="cuda:0") as session:
        session.cuda_sync = cb.CudaSync(stream=stream)
        assert (session.array.shape, session.array.device) == ((4,), "cuda:0")
        driver.fill(session.view.pointer, 7, 4, stream)
    assert session.op.adopted and session.op.ordinal == 1
    view = w.stage.latest(w.name)
    assert driver.get(view.pointer, "u1", (4,)).tolist() == [7] * 4
    with pytest.raises(KeyError), w.stage.map(w.name, device=(2, 0)) as session:
        raise KeyError
    assert w.stage.latest(w.name).epoch == view.epoch


@alone
def test_a_view_that_is_kept_makes_the_broker_copy(w: SimpleNamespace) -> None:
    """Rule M1, on a GPU too: nothing may write to what is sealed."""
    w.driver = driver = Driver()
    w.stage.declare(w.name, dtype="u1", row_shape=3, device="cuda:0").wait()
    session = w.stage.map_attribute(w.query, w.name, ordinal=1)
    view = session.view
    driver.fill(view.pointer, 5, 6, 1)
    op = session.unmap_attribute(cuda_sync=cb.CudaSync(1)).wait()
    assert op.adopt_refused and not op.adopted
    seal(w.stage, 1, w.name)
    assert only(w.stage.read_attributes(w.query, w.name)).dlpack(0).pointer != view.pointer
    assert host(w).tolist() == [[5] * 3] * 2


@alone
def test_what_is_filled_elsewhere_is_copied(w: SimpleNamespace) -> None:
    """`staging` (rule C5): on the host for an attribute on a GPU, and the other way."""
    w.driver = driver = Driver()
    for name, device, staging in ((w.name, "cuda:0", "cpu"), (w.name + "/host", "cpu", "cuda:0")):
        w.name = name
        session = w.stage.map_attribute(
            w.query, name, dtype="u1", row_shape=3, ordinal=1, device=device, staging=staging
        )
        group = session.fetch_map_next()
        assert group.device == staging
        if staging == "cpu":
            group.array(0)[:] = 9
        else:
            driver.fill(group.dlpack(0).pointer, 9, 6, 1)
        sync = None if staging == "cpu" else cb.CudaSync(1)
        assert not group.unmap(cuda_sync=sync).wait().adopted
        session.unmap_attribute().wait()
        seal(w.stage, 1, name)
        assert only(w.stage.read_attributes(w.query, name)).device == device
        assert host(w).tolist() == [[9] * 3] * 2


@alone
def test_a_sync_of_host_memory_is_refused(w: SimpleNamespace) -> None:
    Driver()
    session = w.stage.map_attribute(w.query, w.name, dtype="u1", row_shape=3, ordinal=1)
    with pytest.raises(cb.InvalidArgument, match="host"):
        session.unmap_attribute(cuda_sync=cb.CudaSync(1))
    for wrong in (1, (1, 0), "stream"):
        with pytest.raises(TypeError, match="cuda_sync must be a callboard.CudaSync"):
            session.unmap_attribute(cuda_sync=wrong)
        with pytest.raises(TypeError, match="cuda_sync must be a callboard.CudaSync"):
            session.cuda_sync = wrong
    session.abort()
    with pytest.raises(ValueError, match="cuda_sync is for data on a GPU"):
        w.stage.write_attribute(w.query, w.name, np.zeros((2, 3), "u1"), ordinal=1, cuda_sync=cb.CudaSync(1))


# ---- writing ---------------------------------------------------------------------------------


@alone(**SLOW)
def test_a_producer_on_a_gpu_is_written(w: SimpleNamespace) -> None:
    """The producer is told our stream, or the caller's, and gets its tensor back (behaviours 302, 303)."""
    driver = Driver()
    w.stage.declare(w.name, dtype="u1", row_shape=3, device="cuda:0").wait()
    stream = driver.stream()
    own = None
    for ordinal, kind in enumerate((Producer, Old) * 3, 1):
        producer = kind(driver, np.zeros((2, 3), "u1"))
        driver.fill(producer.pointer, ordinal, 6, producer.stream)  # which is far from done
        event = driver.event(producer.stream)
        sync = (None, cb.CudaSync(stream), cb.CudaSync(stream, event))[(ordinal - 1) // 2]
        op = w.stage.write_attribute(w.query, w.name, producer, ordinal=ordinal, cuda_sync=sync)
        assert producer.lent == 0
        (asked,) = producer.asked
        if sync is None:
            own = own or asked["stream"]
            assert own > 2, "the library's own stream"
        assert asked["stream"] == (own if sync is None else stream)
        assert asked.get("max_version", (1, 3)) == (1, 3)
        op.wait()
        seal(w.stage, ordinal, w.name)
        assert host(w).tolist() == [[ordinal] * 3] * 2
        assert only(w.stage.read_attributes(w.query, w.name)).device == "cuda:0"


@alone(**SLOW)
def test_an_event_alone_is_waited_for(w: SimpleNamespace) -> None:
    """Of a producer that orders nothing itself (behaviour 303)."""

    class Careless(Producer):
        def before(self, stream: int | None) -> None:
            pass

    driver = Driver()
    producer = Careless(driver, np.zeros((2, 3), "u1"))
    driver.fill(producer.pointer, 8, 6, producer.stream)
    sync = cb.CudaSync(wait_event=driver.event(producer.stream))
    w.stage.write_attribute(w.query, w.name, producer, ordinal=1, device="cuda:0", cuda_sync=sync).wait()
    seal(w.stage, 1, w.name)
    assert host(w).tolist() == [[8] * 3] * 2


@alone(**SLOW)
def test_cudas_array_interface_is_taken_too(w: SimpleNamespace) -> None:
    """With its stream, which the copy is queued on."""
    driver = Driver()
    producer = Producer(driver, np.zeros((2, 3), "u1"))
    driver.fill(producer.pointer, 6, 6, producer.stream)
    w.stage.write_attribute(w.query, w.name, Interface(producer), ordinal=1, device="cuda:0").wait()
    seal(w.stage, 1, w.name)
    assert host(w).tolist() == [[6] * 3] * 2
    driver.put(producer.pointer, np.arange(6, dtype="u1"))
    backwards = Interface(producer, shape=(2, 2), strides=(3, 2), stream=None)
    w.stage.publish(w.name + "/parts", backwards, paths=w.query)
    w.name += "/parts"
    assert only(w.stage.read_attributes(w.query, w.name)).device == "cuda:0", "it lies where its first array does"
    assert host(w).tolist() == [[0, 2], [3, 5]]
    for changes, error, text in (
        ({"mask": producer}, ValueError, "mask"),
        ({"typestr": ">f4"}, ValueError, "big-endian"),
        ({"shape": None}, TypeError, "shape"),
        ({"strides": (1,)}, ValueError, "strides"),
        ({"data": 5}, TypeError, "data"),
        ({"data": (64, False)}, cb.InvalidArgument, "driver knows"),
    ):
        with pytest.raises(error, match=text):
            w.stage.publish(w.name + "/wrong", Interface(producer, **changes))


@alone
def test_selected_rows_and_strides(w: SimpleNamespace) -> None:
    """Masks, index maps and strided rows; a range read shows what was touched (behaviour 304)."""
    w.driver = driver = Driver()
    w.stage.declare(w.name, dtype="f4", row_shape=2, device="cuda:0").wait()
    values = np.arange(8, dtype="f4").reshape(4, 2)
    producer = Producer(driver, values)
    w.stage.write_attribute(w.query, w.name, producer, ordinal=1, index_map=[3, 0]).wait()
    seal(w.stage, 1, w.name)
    assert host(w).tolist() == [[6, 7], [0, 1]]
    two = Producer(driver, values[:2])
    w.stage.write_attribute(w.query, w.name, two, ordinal=2, count=2, mask=[2]).wait()
    seal(w.stage, 2, w.name)
    assert host(w).tolist() == [[6, 7], [2, 3]]
    (changed,) = w.stage.read_attributes(w.query, w.name, since=1, device="cpu")
    assert changed.prims.tolist() == [w.query.prims[1]]
    transposed = Producer(driver, values[:2], strides=(1, 2))
    w.stage.write_attribute(w.query, w.name, transposed, ordinal=3).wait()
    seal(w.stage, 3, w.name)
    assert host(w).tolist() == [[0, 2], [1, 3]]


@alone
def test_publishing_from_and_to_everywhere(w: SimpleNamespace) -> None:
    """A tensor lands where the attribute lies, wherever it comes from (rule C5)."""
    driver = Driver()
    values = np.arange(6, dtype="i8").reshape(2, 3)
    for lies in ("cpu", "cuda:0"):
        name = f"{w.name}/{lies}"
        for source in (values, Producer(driver, values), w.stage):
            if source is w.stage:  # a View of ours is a producer like others
                source = w.stage.latest(name)
            assert w.stage.publish(name, source, device=lies) > 0
            view = w.stage.latest(name)
            assert (view.device, view.shape) == (lies, (2, 3))
            assert np.array_equal(w.stage.latest(name, device="cpu"), values)
    with pytest.raises(cb.InvalidArgument, match=r"cpu|host|device|GPU"):
        w.stage.publish(f"{w.name}/cuda:0", values, device="cpu")
    rows = f"{w.name}/rows"
    w.stage.publish(rows, Producer(driver, values), paths=w.query, device="cuda:0", cuda_sync=cb.CudaSync(2))
    assert only(w.stage.read_attributes(w.query, rows, device="cpu")).array(0).tolist() == values.tolist()
    assert w.stage.publish(w.name + "/bool", Producer(driver, np.full(3, 2, "u1").view("?")), device="cuda:0")
    with pytest.raises(cb.NotSupported, match="alone"):
        w.stage.write_attributes(w.query, {rows: Producer(driver, values)}, ordinal=9)


@alone
def test_what_an_op_keeps(w: SimpleNamespace) -> None:
    """A copy that is queued on the caller's stream keeps the array until the op is known to be done (behaviour 291)."""
    driver = Driver()
    w.stage.declare(w.name, dtype="u1", row_shape=3, device="cuda:0").wait()
    producer = Producer(driver, np.zeros((2, 3), "u1"))
    w.stage.write_attribute(w.query, w.name, producer, ordinal=1).wait()  # its deleter refers to it from now on
    before = sys.getrefcount(producer)
    for ordinal, sync, kept in ((1, cb.CudaSync(producer.stream), 1), (2, None, 0)):
        op = w.stage.write_attribute(w.query, w.name, producer, ordinal=ordinal, cuda_sync=sync)
        assert sys.getrefcount(producer) == before + kept
        op.wait()
        assert sys.getrefcount(producer) == before
    op = w.stage.write_attribute(w.query, w.name, producer, ordinal=3, cuda_sync=cb.CudaSync(producer.stream))
    del op
    assert sys.getrefcount(producer) == before
    driver.synchronize(producer.stream)


# ---- what cannot be ------------------------------------------------------------------------------


@alone
def test_devices_that_are_none(w: SimpleNamespace) -> None:
    """Each refusal names the device (field reports G17, G18)."""
    driver = Driver()
    (device,) = w.stage.devices()
    assert (device["index"], device["device"], len(device["uuid"])) == (0, "cuda:0", 16)
    assert device["memory_bytes"] > 0

    def declare(device: Any) -> None:
        w.stage.declare(w.name, dtype="f4", device=device).wait()

    for wrong in ("gpu", "cuda", "cuda:", "cuda:x", "cuda:0x", "cuda:-1", "CPU", "cuda:1e", "", (-1, 0), (2, 2**40)):
        with pytest.raises(ValueError, match="device is"):
            declare(wrong)
    for wrong in (0, 1.5, b"cpu", (2,), ("cuda", 0)):
        with pytest.raises(TypeError, match="device must be"):
            declare(wrong)
    for wrong, error, text in (
        ((10, 0), cb.InvalidArgument, r"\(10, 0\)"),
        ((1, 1), cb.InvalidArgument, r"\(1, 1\)"),
        ("cuda:7", cb.InvalidArgument, "GPU 7"),
    ):
        with pytest.raises(error, match=text):
            declare(wrong)
        with pytest.raises(error, match=text):
            w.stage.map_attribute(w.query, w.name, ordinal=1, dtype="f4", device=wrong)
        with pytest.raises(error, match=text):
            w.stage.map_attribute(w.query, w.name, ordinal=1, dtype="f4", staging=wrong)
    with pytest.raises(cb.NotSupported, match="kind array"):
        w.stage.declare(w.name, dtype="f4", device="cuda:0", is_array=True).wait()
    producer = Producer(driver, np.zeros(3, "f4"))
    for place, error, text in (
        ((10, 0), cb.NotSupported, r"\(10, 0\)"),
        ((2, 5), cb.InvalidArgument, "GPU 5"),
        ((2, -1), cb.InvalidArgument, "GPU -1"),
    ):
        producer.device = place
        with pytest.raises(error, match=text):
            w.stage.publish(w.name, producer)
    assert producer.asked == []
    producer.device, producer.pointer = (2, 0), 64
    with pytest.raises(cb.InvalidArgument, match="driver knows nothing"):
        w.stage.publish(w.name, producer)
    assert producer.lent == 0

    class device:  # as PyTorch's says it
        def __str__(self) -> str:
            return "cuda:0"

    for good in ("cuda:0", (2, 0), device()):
        declare(good)
    declare_host = w.stage.declare(w.name + "/host", dtype="f4", device=(1, 0)).wait()
    assert declare_host.done


def body(function: Body) -> Body:
    """One that a test runs by name, perhaps beside others."""
    bodies[function.__name__] = function
    return function


def test_devices_are_known_by_uuid(tmp_path: Path, emulated: str, name: str) -> None:
    """'cuda:0' is the process's own, whatever the broker calls it; what it does not see has no number (G18; C2)."""
    (tmp_path / "cuda").mkdir()
    machine = {CUDA_LIBRARY: emulated, "CUDAEMU_DIR": str(tmp_path / "cuda"), "CUDAEMU_DEVICES": "2"}
    broker = Broker(tmp_path, "--gpu", "required", "--gpu-memory", "64MiB", environment=machine)
    try:
        run_alone(broker, "on_the_first", name, CUDA_VISIBLE_DEVICES="0")
        run_alone(broker, "on_the_second", name, CUDA_VISIBLE_DEVICES="1")
        run_alone(broker, "on_both", name)
    finally:
        broker.stop()


@body
def on_the_first(w: SimpleNamespace) -> None:
    assert [d["device"] for d in w.stage.devices()] == ["cuda:0", "cuda:?"]
    w.stage.publish(w.name + "/1", np.arange(3, dtype="f4"), device="cuda:0")


@body
def on_the_second(w: SimpleNamespace) -> None:
    assert [d["device"] for d in w.stage.devices()] == ["cuda:?", "cuda:0"]
    w.stage.publish(w.name + "/2", Producer(Driver(), np.arange(3, dtype="f4")))
    assert w.stage.latest(w.name + "/2").device == "cuda:0", "a new attribute lies where the array does"
    first = w.name + "/1"
    assert [a["device"] for a in w.stage.attributes() if a["name"] == first] == ["cuda:?"]
    with pytest.raises(ValueError, match=r"'cuda:\?'"):
        w.stage.latest(first, device="cuda:?")
    with pytest.raises(cb.NotSupported, match="does not see"):
        w.stage.latest(first)
    with w.stage.query_from_path_list(["/"]) as root, pytest.raises(cb.NotSupported, match="does not see"):
        w.stage.read_attributes(root, first).fetch_read_next()
    assert w.stage.latest(first, device="cpu")[2] == 2
    assert w.stage.latest(first, device="cuda:0").device == "cuda:0"


@body
def on_both(w: SimpleNamespace) -> None:
    assert [w.stage.latest(f"{w.name}/{n}").device for n in (1, 2)] == ["cuda:0", "cuda:1"]
    assert w.stage.latest(w.name + "/2", device=(2, 0)).device == "cuda:0"
    with pytest.raises(cb.InvalidArgument, match="GPU 1"):  # it lies on the first
        producer = Producer(Driver(), np.arange(3, dtype="f4"))
        producer.device = (2, 1)
        w.stage.publish(w.name + "/3", producer)


def test_a_broker_without_a_gpu(tmp_path: Path, machine: dict[str, str], name: str) -> None:
    """Says so, and serves the host."""
    broker = Broker(tmp_path, "--gpu", "off", environment=machine)
    try:
        run_alone(broker, "without_a_gpu", name)
    finally:
        broker.stop()


@body
def without_a_gpu(w: SimpleNamespace) -> None:
    driver = Driver()
    assert w.stage.devices() == []
    producer = Producer(driver, np.zeros(3, "f4"))
    for call in (
        lambda: w.stage.declare(w.name, dtype="f4", device="cuda:0"),
        lambda: w.stage.map(w.name, 3, "f4", device="cuda:0"),
        lambda: w.stage.map(w.name, 3, "f4", staging="cuda:0"),
        lambda: w.stage.publish(w.name, producer),
        lambda: w.stage.publish(w.name, [1.0], device="cuda:0"),
    ):
        with pytest.raises(cb.NotSupported, match="serves no GPU"):
            call()
    assert producer.lent == 0
    assert w.stage.publish(w.name, np.zeros(3, "f4")) == 1
    with pytest.raises(cb.NotSupported, match="serves no GPU"):
        w.stage.latest(w.name, device="cuda:0")


def maps_a_driver() -> bool:
    return "libcuda.so" in Path("/proc/self/maps").read_text()


@alone
def test_no_driver_is_loaded_before_it_is_needed(w: SimpleNamespace) -> None:
    """A client of host memory never loads one, and one that cannot be loaded is tried again (behaviour 306)."""
    w.stage.publish(w.name, np.arange(3.0), device="cpu")
    assert np.array_equal(w.stage.latest(w.name), [0, 1, 2])
    with w.stage.map(w.name, staging="cpu") as session:
        session.array[:] = 1
    assert not maps_a_driver()
    library = os.environ[CUDA_LIBRARY]
    os.environ[CUDA_LIBRARY] = "/nowhere/libcuda.so.1"
    with pytest.raises(cb.NotSupported, match="nowhere"):
        w.stage.map(w.name + "/device", 3, "f4", device="cuda:0")
    os.environ[CUDA_LIBRARY] = library
    with w.stage.map(w.name + "/device", 3, "f4", device="cuda:0") as session:
        assert session.view.device == "cuda:0"
    assert maps_a_driver()


# ---- reading ---------------------------------------------------------------------------------


@alone
def test_the_arguments_of_dlpack(w: SimpleNamespace) -> None:
    """stream, dl_device, copy and max_version of a view on a GPU (behaviours 281 to 286; field report G17)."""
    driver = Driver()
    values = np.arange(6, dtype="f4").reshape(2, 3)
    w.stage.publish(w.name, values, device="cuda:0")
    view = w.stage.latest(w.name)
    assert view.__dlpack_device__() == (2, 0)
    for good in (
        *({"stream": s} for s in (None, 1, 2, -1, driver.stream(), 2**63)),
        {"dl_device": (2, 0)},
        {"dl_device": (2, 0), "copy": False},
        {"copy": False},
    ):
        consumer = Consumer(driver, view, **good)
        assert (consumer.device, consumer.pointer, consumer.flags) == ((2, 0), view.pointer, 1)
        assert np.array_equal(consumer.values(), values)
        consumer.give_back()
    for wrong, error, text in (
        ({"stream": 0}, BufferError, "stream is 0"),
        ({"stream": -2}, BufferError, "stream is -2"),
        ({"stream": 1.5}, TypeError, "stream must be"),
        ({"stream": True}, TypeError, "stream must be"),
        ({"dl_device": (2, 1)}, BufferError, r"\(2, 1\)"),
        ({"dl_device": (1, 1)}, BufferError, r"\(1, 1\)"),
        ({"dl_device": (1, 0), "copy": False}, BufferError, "copy=False"),
        ({"max_version": None}, BufferError, "max_version"),
        ({"max_version": (0, 8)}, BufferError, "max_version"),
    ):
        with pytest.raises(error, match=text):
            view.__dlpack__(**{"max_version": (1, 3), **wrong})
    own = Consumer(driver, view, copy=True)
    assert (own.device, own.flags) == ((2, 0), 2) and own.pointer != view.pointer
    driver.put(own.pointer, np.zeros_like(values))  # it may be written to
    assert np.array_equal(driver.get(view.pointer, "f4", (2, 3)), values)
    own.give_back()
    view.__dlpack__(copy=True)  # a legacy capsule, which nobody takes
    for options in ({}, {"copy": True}, {"stream": 1}):
        copied = Consumer(driver, view, dl_device=(1, 0), **options)
        assert (copied.device, copied.flags) == ((1, 0), 2), "the consumer's own"
        assert np.array_equal(copied.values(), values)
        copied.give_back()
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        array = np.from_dlpack(view, device="cpu")
        assert np.array_equal(array, values) and array.flags.writeable
    with w.stage.map(w.name) as session:
        with pytest.raises(BufferError, match="memory to fill"):
            session.view.__dlpack__(dl_device=(1, 0))
        assert session.view.__dlpack__() is not None, "what may be written needs no version"
        session.cuda_sync = cb.CudaSync(1)
    on_host = w.stage.latest(w.name, device="cpu")
    with pytest.raises(BufferError, match="stream"):
        on_host.__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(BufferError, match="device="):
        on_host.__dlpack__(dl_device=(2, 0), max_version=(1, 0))


@alone
def test_the_host_is_told_how_to_look(w: SimpleNamespace) -> None:
    """NumPy and Python's own ways refuse what lies on a GPU, and say what to do."""
    Driver()
    w.stage.publish(w.name, np.arange(3, dtype="f4"), device="cuda:0")
    view = w.stage.latest(w.name)
    assert (len(view), view.size, view.nbytes) == (3, 3, 12)
    assert "on cuda:0" in repr(view)
    calls: list[Callable[[Any], Any]] = [
        lambda v: v.numpy(),
        memoryview,
        np.asarray,
        lambda v: v[0],
        lambda v: v.__setitem__(0, 1),
        lambda v: v.item(),
        float,
        int,
        bool,
        iter,
    ]
    with w.stage.map(w.name) as session:
        for call in calls:
            with pytest.raises(BufferError, match=r"cuda:0.*device='cpu'.*dl_device=\(1, 0\)"):
                call(view)
            with pytest.raises(BufferError, match=r"cuda:0.*staging='cpu'"):
                call(session.view)
        session.abort()
    bits = view.bits
    assert (bits.device, bits.dtype.name, bits.pointer) == ("cuda:0", "uint32", view.pointer)


@alone
def test_the_array_interface_of_views(w: SimpleNamespace) -> None:
    """Version 3, for libraries without DLPack; what is in host memory has none."""
    Driver()
    w.stage.publish(w.name, np.arange(6, dtype="c8").reshape(2, 3), device="cuda:0")
    view = w.stage.latest(w.name)
    assert view.__cuda_array_interface__ == {
        "shape": (2, 3), "typestr": "<c8", "data": (view.pointer, True), "strides": None, "stream": None, "version": 3,
    }  # fmt: skip
    w.stage.publish(w.name + "/b", np.zeros(2, "u2"), dtype="bfloat16", device="cuda:0")
    opaque = w.stage.latest(w.name + "/b")
    assert not hasattr(opaque, "__cuda_array_interface__")
    assert opaque.bits.__cuda_array_interface__["typestr"] == "<u2"
    assert not hasattr(w.stage.latest(w.name, device="cpu"), "__cuda_array_interface__")
    with w.stage.map(w.name) as session:
        assert session.view.__cuda_array_interface__["data"] == (session.view.pointer, False)
        session.abort()


@alone
def test_one_copy_on_the_host_for_all_readers(w: SimpleNamespace) -> None:
    """device="cpu" asks the broker once for each version (rule C5); the other way round too."""
    w.driver = driver = Driver()
    assert filled(w, 3, 1, device="cuda:0").adopted
    with w.stage.snapshot() as snapshot:
        first = only(w.stage.read_attributes(w.query, w.name, device="cpu"))
        second = only(snapshot.read(w.query, w.name, device=(1, 0)))
        assert first.device == second.device == "cpu"
        assert first.dlpack(0).pointer == second.dlpack(0).pointer
        assert first.array(0).tolist() == [[3] * 3] * 2
        assert not first.array(0).flags.writeable
        there = only(snapshot.read(w.query, w.name))
        assert there.device == "cuda:0"
        at = only(w.stage.read_attributes(w.query, w.name, at=1, device="cpu")).dlpack(0)
        assert at.pointer == first.dlpack(0).pointer
    w.stage.publish(w.name + "/host", np.arange(3, dtype="f4"))
    moved = w.stage.latest(w.name + "/host", device="cuda:0")
    assert moved.device == "cuda:0"
    assert driver.get(moved.pointer, "f4", (3,)).tolist() == [0, 1, 2]
    assert Consumer(driver, moved, dl_device=(1, 0)).values().tolist() == [0, 1, 2]
    with pytest.raises(cb.NotSupported):
        list(w.stage.read_attributes(w.query, "@path", device="cuda:0"))


@alone
def test_a_row_of_another_order_is_found_on_the_host(w: SimpleNamespace) -> None:
    """A snapshot's row of one prim, behind an index map, and its copy."""
    Driver()
    with w.stage.query_from_path_list(["/x", "/"]) as query:
        w.stage.publish(w.name, np.arange(6, dtype="f4").reshape(2, 3), paths=query, device="cuda:0")
    with w.stage.snapshot() as snapshot:
        view = snapshot[w.name]
        assert (view.shape, view.device) == ((3,), "cuda:0")
        copied = Consumer(Driver(), view, dl_device=(1, 0))
        assert copied.values().tolist() == [3, 4, 5]
        copied.give_back()


# ---- lives ---------------------------------------------------------------------------------------


@alone
def test_rounds_leave_nothing(w: SimpleNamespace) -> None:
    """Pins, imports and references are where they were after each way out and in."""
    w.driver = driver = Driver()
    stage, name = w.stage, w.name
    producer = Producer(driver, np.zeros((2, 3), "u1"))
    stage.declare(name, dtype="u1", row_shape=3, device="cuda:0").wait()

    def one(ordinal: int) -> None:
        stage.write_attribute(w.query, name, producer, ordinal=2 * ordinal - 1).wait()
        seal(stage, 2 * ordinal - 1, name)
        filled(w, 1, 2 * ordinal)
        group = only(stage.read_attributes(w.query, name))
        view = group.array(0)
        consumer = Consumer(driver, view)
        Consumer(driver, view, dl_device=(1, 0)).give_back()
        Consumer(driver, view, copy=True).give_back()
        view.__dlpack__(copy=True)
        view.__dlpack__(max_version=(1, 0))  # a capsule that nobody takes
        with pytest.raises(BufferError):
            view.numpy()
        assert host(w).tolist() == [[1] * 3] * 2
        del group, view
        consumer.give_back()

    for ordinal in range(1, 4):
        one(ordinal)
    gc.collect()
    before = (sys.getrefcount(producer), pinned(stage), counts()[1], held())
    for ordinal in range(4, 30):
        one(ordinal)
        producer.asked.clear()
        gc.collect()
        assert (sys.getrefcount(producer), pinned(stage), counts()[1]) == before[:3], ordinal
    assert held()[0] <= before[3][0] + 1, "an arena or two, however many rounds"
    assert producer.lent == 0


@alone
def test_exports_outlive_the_stage(w: SimpleNamespace) -> None:
    """An export owns its pin, and the import of its memory (behaviour 290)."""
    w.driver = driver = Driver()
    filled(w, 4, 1, device="cuda:0")
    group = only(w.stage.read_attributes(w.query, w.name))
    view = group.dlpack(0)
    consumer = Consumer(driver, view)
    interface = view.__cuda_array_interface__
    group.release()
    del group
    w.query.release()
    w.stage.close()
    assert view.pointer == consumer.pointer == interface["data"][0]
    assert driver.get(view.pointer, "u1", (2, 3)).tolist() == [[4] * 3] * 2
    del view
    gc.collect()
    assert consumer.values().tolist() == [[4] * 3] * 2
    assert not driver.emulated or held()[0] > 0
    consumer.give_back()


@alone
def test_the_interpreter_ends_with_exports(w: SimpleNamespace) -> None:
    """In whatever order things go then, the process ends well."""
    w.driver = driver = Driver()
    filled(w, 4, 1, device="cuda:0")
    view = only(w.stage.read_attributes(w.query, w.name)).dlpack(0)
    session = w.stage.map_attribute(w.query, w.name, ordinal=2)
    left.extend(
        [
            view,
            Consumer(driver, view),
            view.__dlpack__(max_version=(1, 0)),
            session.view,
            Consumer(driver, session.view),
        ]
    )
    left.append(Consumer(driver, view, copy=True))
    session.abort()


@alone
def test_a_forked_child_has_no_gpu(w: SimpleNamespace) -> None:
    """CUDA's rule: the child is told, and giving back there touches no driver."""
    w.driver = Driver()
    filled(w, 4, 1, device="cuda:0")
    view = only(w.stage.read_attributes(w.query, w.name)).dlpack(0)
    consumer = Consumer(w.driver, view)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(cb.SessionEnded, match="fork"):
                w.stage.latest(w.name)
            with cb.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
                with pytest.raises(cb.NotSupported, match="fork"):
                    list(stage.read_attributes(query, w.name))
                (group,) = stage.read_attributes(query, w.name, device="cpu")
                assert group.array(0).tolist() == [[4] * 3] * 2
            consumer.give_back()
            del view
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert consumer.values().tolist() == [[4] * 3] * 2
    consumer.give_back()


# ---- streams in words ------------------------------------------------------------------------------


def test_what_a_sync_is_made_of() -> None:
    """Handles, or libraries' objects; the default stream's handle is 0, and a sync's 0 is none (field report G17)."""

    class Thing:
        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 77)

    assert cb.CudaSync() == (0, 0)
    assert cb.CudaSync(None, None) == (0, 0)
    assert cb.CudaSync(5, wait_event=6) == (5, 6)
    assert cb.CudaSync(np.int64(5)) == (5, 0)
    assert cb.CudaSync(Protocol()) == (77, 0)
    assert cb.CudaSync(Thing(cuda_stream=9), Thing(cuda_event=8)) == (9, 8)
    assert cb.CudaSync(Thing(ptr=9), Thing(ptr=8)) == (9, 8)
    assert cb.CudaSync(Thing(handle=Thing(value=9))) == (9, 0)
    for null in (Thing(ptr=0), Thing(cuda_stream=0), Thing(handle=Thing(value=None))):
        assert cb.CudaSync(null) == (1, 0)
    with pytest.raises(ValueError, match="record it first"):
        cb.CudaSync(wait_event=Thing(cuda_event=0))
    for wrong in (1.5, "1", True, Thing()):
        with pytest.raises(TypeError, match="stream"):
            cb.CudaSync(wrong)
        with pytest.raises(TypeError, match="event"):
            cb.CudaSync(wait_event=wrong)
    for far in (-1, 2**64):
        with pytest.raises(ValueError, match="from 0"):
            cb.CudaSync(far)
