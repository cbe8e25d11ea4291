"""Memory of GPUs: devices that are none, drivers that are not there, numbers, and what streams are called."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import callboard as cb
import numpy as np
import pytest
from alone import alone, body, run_alone
from conftest import CUDA_LIBRARY, Broker
from cuda import Driver, Producer

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
    producer.device = (2, 0)
    producer.array = np.broadcast_to(np.float32(0), (1 << 20,))  # which the emulated allocation of 2 MiB has not
    with pytest.raises(cb.InvalidArgument, match=r"4194304 bytes at 0x\w+ on GPU 0, but at most \d+ of them lie"):
        w.stage.publish(w.name, producer)
    producer.pointer = 64
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


def test_devices_are_known_by_uuid(tmp_path: Path, emulated: str, name: str) -> None:
    """'cuda:0' is the process's own, whatever the broker calls it; what it does not see has no number (G18; C2)."""
    (tmp_path / "cuda").mkdir()
    machine = {CUDA_LIBRARY: emulated, "CUDAEMU_DIR": str(tmp_path / "cuda"), "CUDAEMU_DEVICES": "2"}
    broker = Broker(tmp_path, "--gpu", "required", "--gpu-memory", "64MiB", environment=machine)
    try:
        run_alone(broker, on_the_first, name, CUDA_VISIBLE_DEVICES="0")
        run_alone(broker, on_the_second, name, CUDA_VISIBLE_DEVICES="1")
        run_alone(broker, on_both, name)
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
        run_alone(broker, without_a_gpu, name)
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
