"""Memory of GPUs: filling it in place, and writing arrays that lie there."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import callboard as cb
import numpy as np
import pytest
from alone import SLOW, alone, host, only
from conftest import seal
from cuda import Consumer, Driver, Handle, Interface, Old, Pointer, Producer, Size

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
