"""Waiting: ops, follow and watch, without the GIL, until a signal, a timeout, or the end of the session."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, read_line, seal


def test_polling_is_no_failure(stage: cb.Stage, name: str) -> None:
    """behaviour 206, 207, 209, 217"""
    with stage.query_from_path_list(["/a"]) as q:
        op = stage.write_attribute(q, name, np.zeros(1), ordinal=1)
        deadline = time.monotonic() + 30
        while True:
            try:
                assert op.wait(0) is op
                break
            except cb.Timeout as error:
                assert str(op.id) in str(error) and isinstance(error, TimeoutError)
                assert time.monotonic() < deadline
        assert op.done and op.wait(timeout=0) is op and op.wait() is op
        op.release()
        op.release()
        for call in (op.wait, lambda: op.id):
            with pytest.raises(cb.InvalidHandle):
                call()
        assert op.done  # what was learnt stays


def test_an_ops_error_belongs_to_it(stage: cb.Stage, name: str) -> None:
    """behaviour 211, 212; that the prim exists only the broker knows: it is not sealed (behaviour 94)"""
    with stage.query_from_path_list([f"/{name}/new"]) as q:
        stage.write_attribute(q, name, np.zeros(1), ordinal=5)
        later = stage.write_attribute(q, name, np.ones(1), ordinal=6)
        op = stage.write_attribute(q, name, np.zeros(1), ordinal=6, prim_mode=cb.PrimMode.INSERT)
        other = stage.write_attribute(q, name, np.ones(1), ordinal=5)
        assert other.wait().done and later.wait().done  # two unsealed ordinals
        for _ in range(2):
            with pytest.raises(cb.AlreadyExists) as caught:
                op.wait()
            assert isinstance(caught.value, cb.OperationFailed) and caught.value.code == cb.AlreadyExists.code
        assert op.done


def test_follow_waits_with_the_gil_released(stage: cb.Stage, broker: Broker, name: str) -> None:
    """field report E17"""
    started, seen = threading.Event(), []
    before = stage.epoch

    def wait() -> None:
        started.set()
        seen.append(stage.follow(after=before, timeout=60))

    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(30)
    steps, begin = 0, time.monotonic()
    while time.monotonic() - begin < 0.3 or steps <= 1000:
        steps += 1
    assert thread.is_alive()  # and this thread went on meanwhile
    with broker.connect() as other:
        other.publish(name, 1.0)
    thread.join(30)
    assert seen and seen[0] > before


def test_every_wait_for_the_broker_lets_other_threads_run(new_broker: Callable[..., Broker], name: str) -> None:
    """field report E17: it is another thread that ends each of these waits, which holding the GIL would make endless"""
    broker = new_broker()
    with broker.connect() as stage, stage.query_from_path_list(["/a"]) as query:
        stage.publish(name, np.zeros(1))
        ordinals = iter(range(2, 100))
        waits: dict[str, Callable[[], object]] = {
            "op.wait": lambda: stage.write_attribute(query, name, np.zeros(1), ordinal=next(ordinals)).wait(),
            "publish": lambda: stage.publish(name, np.zeros(1)),
            "a large write": lambda: stage.publish(name + "/large", np.zeros(100_000)),
            "query_from_path_list": lambda: stage.query_from_path_list(["/new"]).release(),
            "query": lambda: stage.query(cb.Has(name)).release(),
            "map_attribute": lambda: stage.map_attribute(
                query, name + "/m", dtype="f4", ordinal=next(ordinals)
            ).abort(),
            "intern": lambda: stage.tokens.intern("a token that nobody knows"),
            "connect": lambda: broker.connect().close(),
            "delete": lambda: stage.delete_attributes(query, [name], ordinal=next(ordinals)).wait(),
        }
        for what, wait in waits.items():
            broker.freeze()
            late = "import os, signal, sys, time; time.sleep(30); os.kill(int(sys.argv[1]), signal.SIGCONT)"
            rescue = subprocess.Popen([sys.executable, "-c", late, str(broker.process.pid)])
            thaw = threading.Timer(0.2, broker.thaw)
            begin = time.monotonic()
            try:
                thaw.start()
                wait()
            finally:
                thaw.join(60)
                rescue.kill()
                rescue.wait()
            assert 0.15 < time.monotonic() - begin < 25, what


def test_a_warm_read_keeps_the_gil(stage: cb.Stage, name: str) -> None:
    """To give it up and take it again costs a sixth of the read. Another thread gets it only where somebody does."""
    with stage.map(name, shape=3, dtype="float32") as session:
        session.array[:] = 1
    turns, started, ended = [0], threading.Event(), threading.Event()

    def count() -> None:
        while not ended.is_set():
            turns[0] += 1
            started.set()
            time.sleep(0)

    thread = threading.Thread(target=count)
    before = sys.getswitchinterval()
    with stage.query_from_path_list(["/"]) as query:
        for group in stage.read_attributes(query, name):  # warm
            group.array()
        sys.setswitchinterval(1000)  # nobody has to give it up
        thread.start()
        try:
            assert started.wait(10)
            seen, end = turns[0], time.monotonic() + 0.3
            while time.monotonic() < end:
                stage.latest(name).numpy()
                for group in stage.read_attributes(query, name):
                    group.array()
            kept, end = turns[0], time.monotonic() + 20
            while turns[0] == kept and time.monotonic() < end:  # a call that gives it up, to see that it would show
                stage.frontier(name)
            later = turns[0]
        finally:
            sys.setswitchinterval(before)
            ended.set()
            thread.join()
    assert seen == kept < later


def test_follow_timeouts(stage: cb.Stage, name: str) -> None:
    """behaviour 208"""
    epoch = stage.publish(name, 1.0) and stage.epoch
    assert stage.follow(after=epoch - 1, timeout=0) == epoch
    polls = []
    for _ in range(20):
        begin = time.monotonic()
        with pytest.raises(cb.Timeout, match=str(epoch)):
            stage.follow(timeout=0)
        polls.append(time.monotonic() - begin)
    assert min(polls) < 0.09  # no poll waits for a turn of 100 ms; on a busy machine some may last as long
    begin = time.monotonic()
    with pytest.raises(cb.Timeout):
        stage.follow(after=epoch, timeout=0.25)
    assert 0.24 < time.monotonic() - begin < 20


def test_watch_yields_one_consistent_snapshot_per_change(stage: cb.Stage, broker: Broker, name: str) -> None:
    a, b, other = name + "/a", name + "/b", name + "/other"
    ticks = 30
    with stage.query_from_path_list(["/"]) as q:

        def produce() -> None:
            with broker.connect() as producer, producer.query_from_path_list(["/"]) as root:
                for n in range(1, ticks + 1):
                    producer.write_attribute(root, a, np.full(1, n), ordinal=n)
                    producer.write_attribute(root, b, np.full((1, 3), n), ordinal=n)
                    seal(producer, n, a, b)
                    producer.publish(other, float(n))

        thread = threading.Thread(target=produce)
        thread.start()
        last, kept = 0, []
        for snapshot in stage.watch(a, b, timeout=20):
            with snapshot.read(q, [a, b]) as read:
                values = {group.array(0).ravel()[0] for group in read}
            assert len(values) == 1  # never half a tick
            value = int(values.pop())
            assert value > last  # other attributes' seals are not ours
            last = value
            kept.append(snapshot)
            if value == ticks:
                break
        thread.join(30)
        assert not thread.is_alive()
        assert int(kept[0][a]) <= int(kept[-1][a]) == ticks  # those that are kept stay valid


def test_watch_starts_with_what_is_there(stage: cb.Stage, name: str) -> None:
    stage.publish(name, 1.0)
    watch = stage.watch(name, timeout=0)
    assert float(next(watch)[name]) == 1.0
    with pytest.raises(cb.Timeout):
        next(watch)
    watch = stage.watch(name, after=stage.epoch, timeout=30)
    stage.publish(name, 2.0)
    assert float(next(watch)[name]) == 2.0
    assert next(stage.watch(timeout=30)).epoch == stage.epoch
    with pytest.raises(TypeError):
        stage.watch(1.0)  # type: ignore[arg-type]


INTERRUPTED = """
import signal, sys
import callboard as cb
signal.signal(signal.SIGINT, signal.default_int_handler)  # Python leaves it ignored where its parent did
stage = cb.connect()
query = stage.query_from_path_list(["/a"])
stage.publish("interrupted", 1.0)
print("ready", flush=True)
sys.stdin.readline()
try:
    print("waiting", flush=True)
    WAIT
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    [
        "stage.follow()",
        "next(stage.watch('never/written'))",
        "stage.advance_write_floor(3).wait()",
        "stage.publish('interrupted', 1.0)",
        "stage.query_from_path_list(['/b'])",
        "stage.map('interrupted')",
        "stage.paths.intern('/c')",
    ],
)
def test_every_wait_can_be_interrupted(new_broker: Callable[..., Broker], wait: str) -> None:
    """The broker is stopped, so that nothing completes. The child inherits an ignored SIGINT, as under nohup."""
    broker = new_broker()
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.replace("WAIT", wait)],
        env=broker.environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, bufsize=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:  # fmt: skip
        try:
            assert read_line(process.stdout) == "ready\n"
            broker.freeze()
            process.stdin.write(b"go\n")
            assert read_line(process.stdout) == "waiting\n"
            time.sleep(0.3)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert read_line(process.stdout) == "interrupted\n"
        finally:
            process.kill()
            broker.thaw()


def test_a_broker_that_a_test_left_frozen_is_let_go_before_it_is_stopped(new_broker: Callable[..., Broker]) -> None:
    broker = new_broker()
    broker.freeze()
    broker.stop()
    assert broker.process.returncode == 0  # it ended by itself, in order; it was not killed after a time-out


def test_close_ends_another_threads_wait(broker: Broker) -> None:
    """field report E12"""
    stage = broker.connect()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            stage.follow()
        except cb.CallboardError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    stage.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(errors[0], cb.SessionEnded)


def test_after_close_everything_says_so(broker: Broker, name: str) -> None:
    """behaviour 174"""
    stage = broker.connect()
    query = stage.query_from_path_list(["/a"])
    op = stage.write_attribute(query, name, np.zeros(1), ordinal=1).wait()
    session = stage.map_attribute(query, name, ordinal=1)
    array = session.array
    stage.close()
    stage.close()
    assert stage.closed and not stage.alive and stage.epoch == 0
    for call in (
        lambda: stage.publish(name, 1.0),
        lambda: stage.latest(name),
        lambda: stage.follow(timeout=1),
        lambda: stage.write_floor(name),
        lambda: stage.query_from_path_list(["/b"]),
        lambda: stage.read_attributes(query, name),
        lambda: stage.snapshot(),
        lambda: stage.info(),
        lambda: stage.attributes(),
        lambda: stage.paths.resolve(1),
        lambda: stage.paths.intern("/c"),
        lambda: stage.write_attribute(query, name, np.zeros(1), ordinal=2),
        lambda: next(stage.watch(name)),
        session.unmap_attribute,
    ):
        with pytest.raises(cb.SessionEnded):
            call()
    assert op.done and op.wait() is op
    array[:] = 1  # still mapped
    session.abort()
    query.release()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_broker_that_goes_ends_waits_and_not_views(new_broker: Callable[..., Broker], how: int) -> None:
    """behaviour 159, rule R4"""
    broker = new_broker()
    with broker.connect(reattach_timeout=1) as stage:
        stage.publish("x", np.arange(5.0))
        view = stage.latest("x")
        timer = threading.Timer(0.3, broker.stop, [how])
        timer.start()
        with pytest.raises(cb.SessionEnded) as caught:
            stage.follow(timeout=60)
        assert "SESSION_ENDED" not in str(caught.value)
        told = how == signal.SIGTERM
        text = "the broker ended this session: " if told else "the broker hung up, and no other one"
        assert str(caught.value).startswith(text)
        timer.join(30)
        with pytest.raises(cb.SessionEnded):
            stage.publish("x", np.arange(5.0))
        assert not stage.alive
        assert np.asarray(view).tolist() == [0, 1, 2, 3, 4]
        assert np.asarray(stage.latest("x")).tolist() == [0, 1, 2, 3, 4]  # by a new read, too
        with stage.snapshot() as snapshot:
            assert (snapshot.epoch, float(snapshot["x"][4])) == (1, 4)
        assert stage.write_floor("x") == 1
    with pytest.raises(cb.SessionEnded, match="^this stage was closed$"):
        stage.latest("x")


def test_many_threads_use_one_stage(stage: cb.Stage, name: str) -> None:
    """behaviour 220"""
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = f"{name}/{number}"
            for n in range(1, 60, 2):
                assert stage.publish(own, np.full(100, n)) == n
                assert (np.asarray(stage.latest(own)) == n).all()
                with stage.map(own) as m:
                    m.array[:] = -n
                assert m.op.ordinal == n + 1 == stage.write_floor(own)
                with stage.snapshot() as snapshot:
                    assert (np.asarray(snapshot[own]) == -n).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors


def test_two_threads_wait_for_one_op(stage: cb.Stage, name: str) -> None:
    """behaviour 217"""
    with stage.query_from_path_list(["/a"]) as q:
        for ordinal in range(1, 20):
            stage.write_attribute(q, name, np.zeros(1), ordinal=ordinal)
            op = stage.advance_write_floor(ordinal, scope=cb.Scope.INCLUDE, attributes=[name])
            results: list[object] = []

            def wait(op: cb.Op = op, results: list[object] = results) -> None:
                results.append(op.wait().floor)

            threads = [threading.Thread(target=wait) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert results == [ordinal] * 3


def test_flooding_is_queue_full_and_a_retry_works(stage: cb.Stage, name: str) -> None:
    """behaviour 219"""
    with stage.query_from_path_list(["/a"]) as q:
        ops, full = [], 0
        values = np.zeros((1, 200))
        for _ in range(3000):
            try:
                ops.append(stage.write_attribute(q, name, values, ordinal=1))
            except cb.QueueFull:
                full += 1
                ops[-1].wait()
        for op in ops:
            op.wait()
        assert [op.id for op in ops] == sorted({op.id for op in ops})
        seal(stage, 1, name)
