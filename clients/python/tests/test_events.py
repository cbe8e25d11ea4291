"""Event loops: fileno() and drain() in selectors and asyncio, and `async for` over watch()."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable

import callboard as cb
import numpy as np
import pytest
from conftest import Broker
from test_fork import in_child


def readable(stage: cb.Stage, timeout: float) -> bool:
    return bool(select.select([stage], [], [], timeout)[0])  # it has fileno()


def quiet(stage: cb.Stage) -> int:
    """Drains until nothing is left; gives the epoch."""
    while True:
        epoch = stage.drain()
        if not readable(stage, 0.02):
            return epoch


def drain_to(stage: cb.Stage, wanted: int) -> None:
    while stage.drain() < wanted:
        assert readable(stage, 30)


def count(directory: str) -> int:
    return len(os.listdir(f"/proc/self/{directory}"))


def become(directory: str, wanted: int) -> bool:
    """Whether so many are left; the kernel takes a thread off its list a moment after it was joined."""
    deadline = time.monotonic() + 30
    while count(directory) != wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    return count(directory) == wanted


def test_fileno_is_a_level(new_broker: Callable[..., Broker]) -> None:
    with new_broker().connect() as stage:
        assert stage.fileno() == stage.fileno() and not readable(stage, 0.02) and stage.drain() == 0
        assert fcntl.fcntl(stage.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        stage.publish("a", 1.0)
        assert readable(stage, 30) and readable(stage, 0)  # until it is drained
        assert quiet(stage) == stage.epoch
        for n in range(20):
            stage.publish("a", float(n))
        assert readable(stage, 30)
        drain_to(stage, stage.epoch)  # the newest, no backlog
        assert quiet(stage) == stage.epoch
    with pytest.raises(cb.SessionEnded, match="closed"):
        stage.drain()
    assert readable(stage, 0)  # for good: whoever waits for it in another thread learns of it


def test_what_was_sealed_before_is_news(stage: cb.Stage, name: str) -> None:
    stage.publish(name, 1.0)
    assert readable(stage, 0) and stage.drain() == stage.epoch


def test_fileno_of_a_closed_stage(broker: Broker) -> None:
    with broker.connect() as stage:
        pass
    for call in (stage.fileno, stage.drain):
        with pytest.raises(cb.SessionEnded, match="closed"):
            call()


def test_two_stages_and_a_pipe_in_one_selector(new_broker: Callable[..., Broker]) -> None:
    one, two = new_broker(), new_broker()
    reader, writer = os.pipe()
    with one.connect() as a, two.connect() as b, selectors.DefaultSelector() as loop:
        for source in (a, b, reader):
            loop.register(source, selectors.EVENT_READ)

        def ready() -> set[object]:
            return {key.fileobj for key, _ in loop.select(30)}

        b.publish("x", 1.0)
        assert ready() == {b} and quiet(b) == b.epoch
        os.write(writer, b"x")
        assert ready() == {reader} and os.read(reader, 1)
        a.publish("x", 1.0)
        assert ready() == {a} and quiet(a) == a.epoch
        two.process.send_signal(signal.SIGKILL)
        assert ready() == {b} and quiet(b) == b.epoch  # told of the loss, and not over
        two.process.wait(30)
        two.start()
        assert ready() == {b}  # told of the next broker, by no call of this program's
        drain_to(b, b.epoch)
        b.publish("x", 2.0)
        assert float(b.latest("x")) == 2.0 and ready() == {b}
        loop.unregister(a)
        loop.unregister(b)
    os.close(reader)
    os.close(writer)


def test_a_broker_that_stays_away_is_told(new_broker: Callable[..., Broker]) -> None:
    """field report E12: nobody is asleep for ever"""
    broker = new_broker()
    with broker.connect(reattach_timeout=0.3) as stage:
        stage.publish("x", 1.0)
        assert quiet(stage) == stage.epoch and float(stage.latest("x")) == 1.0
        with broker.connect() as other:
            other.publish("y", 1.0)
        last = stage.epoch
        broker.stop(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while stage.alive:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert readable(stage, 30) and stage.drain() == last  # a loop that was busy meanwhile misses no epoch either
        for _ in range(2):
            with pytest.raises(cb.SessionEnded, match="within 300 ms"):
                stage.drain()
            assert readable(stage, 0) and float(stage.latest("x")) == 1.0


def test_rounds_leave_no_descriptor_and_no_thread(broker: Broker, name: str) -> None:
    with broker.connect() as stage:
        stage.publish(name, 1.0)
    fds, tasks = count("fd"), count("task")
    for _ in range(300):
        with broker.connect() as stage:
            assert readable(stage, 30) and stage.drain() > 0
        del stage
    assert become("task", tasks) and count("fd") == fds
    with broker.connect() as stage:
        assert become("task", tasks) and stage.epoch > 0  # none before it is asked for
        for _ in range(1000):
            events = stage._events()
            assert events.fileno() >= 0 and events.drain() > 0
            del events
        assert become("task", tasks)
    del stage
    assert count("fd") == fds


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_none(broker: Broker, name: str) -> None:
    """rule I4"""
    with broker.connect() as stage:
        stage.publish(name, 1.0)
        fd = stage.fileno()
        assert readable(stage, 30)

        def body() -> None:
            for call in (stage.fileno, stage.drain):
                with pytest.raises(cb.SessionEnded, match="parent"):
                    call()
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(fd)  # the parent's events are not the child's to take
            assert count("task") == 1
            stage.close()
            with broker.connect() as own:
                assert readable(own, 10) and own.drain() > 0

        assert in_child(body) == ""
        assert readable(stage, 0) and quiet(stage) == stage.epoch


# ---- asyncio ----------------------------------------------------------------------------


def run(coroutine: object) -> object:
    return asyncio.run(asyncio.wait_for(coroutine, 180))  # type: ignore[arg-type]


def test_add_reader_beside_other_sources(stage: cb.Stage, broker: Broker, name: str) -> None:
    async def main() -> None:
        loop, epochs, lines = asyncio.get_running_loop(), asyncio.Queue(), asyncio.Queue()
        reader, writer = os.pipe()
        loop.add_reader(stage.fileno(), lambda: epochs.put_nowait(stage.drain()))
        loop.add_reader(reader, lambda: lines.put_nowait(os.read(reader, 10)))
        with broker.connect() as other:
            for n in range(5):
                epoch = other.publish(name, float(n)) and other.epoch
                while await epochs.get() < epoch:
                    pass
                os.write(writer, b"line")
                assert await lines.get() == b"line"
        loop.remove_reader(stage.fileno())
        loop.remove_reader(reader)
        os.close(reader)
        os.close(writer)

    run(main())


def test_async_for_gives_one_consistent_snapshot_per_change(stage: cb.Stage, broker: Broker, name: str) -> None:
    a, b, unrelated = name + "/a", name + "/b", name + "/unrelated"
    last = 200

    def produce() -> None:
        with broker.connect() as other, other.query_from_path_list(["/"]) as q:
            for n in range(1, last + 1):
                other.write_attribute(q, a, np.full(1, n), ordinal=n)
                other.write_attribute(q, b, np.full(1, n), ordinal=n)
                other.advance_write_floor(n, scope=cb.Scope.INCLUDE, attributes=[a, b]).wait()
                other.publish(unrelated, float(n))

    async def main() -> list[int]:
        seen: list[int] = []
        producer = threading.Thread(target=produce)
        watch = stage.watch(a, b, timeout=20)
        producer.start()
        async for snapshot in watch:
            if snapshot.floor(a) == 0:
                continue  # nothing of these yet
            assert int(snapshot[a]) == int(snapshot[b]) == snapshot.floor(a)
            seen.append(int(snapshot[a]))
            if seen[-1] == last:
                break
        producer.join()
        return seen

    seen = run(main())
    assert seen == sorted(set(seen))  # each once, in order; the last one is not missed


def test_a_slow_async_reader_gets_the_newest_and_lets_others_run(stage: cb.Stage, name: str) -> None:
    async def main() -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(beat())
        stage.publish(name, 0.0)
        n = 0
        async for snapshot in stage.watch(name):
            assert float(snapshot[name]) == n  # each time the last of ten
            before = beats
            for _ in range(10):
                n += 1
                stage.publish(name, float(n))
            if n == 100:
                break
            assert beats == before  # this body awaits nothing
        assert beats >= 10
        other.cancel()

    run(main())


def test_several_async_loops_at_once(broker: Broker, name: str) -> None:
    async def follow(stage: cb.Stage, wanted: float) -> int:
        turns = 0
        async for snapshot in stage.watch(name):
            turns += 1
            if snapshot.floor(name) and float(snapshot[name]) == wanted:
                return turns
        raise AssertionError

    async def main() -> None:
        with broker.connect() as one, broker.connect() as two, broker.connect() as producer:
            tasks = [asyncio.create_task(follow(stage, 30.0)) for stage in (one, one, one, two)]
            for n in range(31):
                producer.publish(name, float(n))
                await asyncio.sleep(0.001)
            assert all(turns >= 1 for turns in await asyncio.gather(*tasks))

    run(main())


def test_cancelling_loses_nothing_and_leaves_nothing(stage: cb.Stage, name: str) -> None:
    async def main() -> None:
        before = count("fd")
        watch = stage.watch(name, after=stage.epoch)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(watch.__anext__(), 0.01)
        stage.publish(name, 1.0)
        task = asyncio.create_task(watch.__anext__())
        await asyncio.sleep(0)
        task.cancel()  # before or after it has looked
        with contextlib.suppress(asyncio.CancelledError):
            await task
        stage.publish(name, 2.0)
        assert float((await watch.__anext__())[name]) == 2.0
        task = asyncio.create_task(watch.__anext__())
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="its own"):
            await watch.__anext__()
        with pytest.raises(RuntimeError, match="cancel its task"):
            watch.close()
        stage.publish(name, 3.0)
        assert float((await task)[name]) == 3.0
        assert count("fd") == before + 1
        async with contextlib.aclosing(watch):
            pass
        assert count("fd") == before
        with pytest.raises(StopAsyncIteration):
            await watch.__anext__()
        assert list(watch) == []

    run(main())


def test_a_loop_that_ends_takes_its_waits_along(broker: Broker, name: str) -> None:
    async def main(stage: cb.Stage) -> None:
        asyncio.create_task(stage.watch(name, after=stage.epoch).__anext__())  # noqa: RUF006 - left to the loop
        await asyncio.sleep(0.01)

    with broker.connect() as stage:
        fds = count("fd")
        for _ in range(20):
            asyncio.run(main(stage))
        assert count("fd") == fds
        stage.publish(name, 1.0)


def test_an_async_wait_has_a_timeout(stage: cb.Stage, name: str) -> None:
    async def main() -> None:
        watch = stage.watch(name, timeout=0.05)
        with pytest.raises(cb.Timeout, match="0.05 s"):
            await watch.__anext__()
        for _ in range(5):  # what is sealed elsewhere is no news, and no more time
            stage.publish(name + "/unrelated", 1.0)
        with pytest.raises(cb.Timeout):
            await watch.__anext__()
        stage.publish(name, 1.0)
        assert float((await watch.__anext__())[name]) == 1.0
        with pytest.raises(cb.Timeout):
            await stage.watch(name, after=stage.epoch, timeout=0).__anext__()

    run(main())


def test_unrelated_seals_do_not_prolong_a_timeout(stage: cb.Stage, broker: Broker, name: str) -> None:
    stop = threading.Event()

    def produce() -> None:
        with broker.connect() as other:
            while not stop.is_set():
                other.publish(name + "/unrelated", 1.0)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        begin = time.monotonic()
        with pytest.raises(cb.Timeout):
            next(stage.watch(name, timeout=0.2))
        assert time.monotonic() - begin < 30
    finally:
        stop.set()
        producer.join()


def test_closing_the_stage_ends_an_async_wait(broker: Broker, name: str) -> None:
    async def main() -> None:
        stage = broker.connect()
        task = asyncio.create_task(stage.watch(name, after=stage.epoch).__anext__())
        await asyncio.sleep(0.01)
        stage.close()
        with pytest.raises(cb.SessionEnded, match="closed"):
            await task

    run(main())


def test_an_async_reader_goes_on_after_a_restart(new_broker: Callable[..., Broker]) -> None:
    broker = new_broker()

    async def main() -> None:
        with broker.connect() as stage:
            stage.publish("x", 1.0)
            watch = stage.watch("x")
            assert float((await watch.__anext__())["x"]) == 1.0
            task = asyncio.create_task(watch.__anext__())
            await asyncio.sleep(0.01)
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait(30)
            await asyncio.to_thread(broker.start)
            with broker.connect() as other:
                other.publish("x", 2.0)
            assert float((await task)["x"]) == 2.0

    run(main())


def test_asyncio_is_not_imported_for_nothing(broker: Broker) -> None:
    program = """
import sys, callboard as cb
with cb.connect() as stage:
    stage.fileno(), stage.watch()
print("asyncio" in sys.modules)
"""
    done = broker.python(program)
    assert (done.stdout, done.stderr) == ("False\n", "")
