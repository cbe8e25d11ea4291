"""The log callback, and closing where nothing is in use."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal

Record = tuple[cb.Severity, int, str]


@pytest.fixture
def records() -> Iterator[list[Record]]:
    """What the callback of this test gets to hear; the callback is removed afterwards."""
    yield []
    cb.remove_log()


def work(broker: Broker) -> None:
    with broker.connect() as stage:
        stage.publish("log/work", 1.0)


def test_a_callback_is_installed_flushed_and_removed(broker: Broker, records: list[Record]) -> None:
    """behaviour 317"""
    cb.install_log(lambda *record: records.append(record), threshold=cb.Severity.DEBUG)
    before = time.time_ns()
    work(broker)
    assert cb.flush_log(5) is True
    texts = [text for _, _, text in records]
    assert any(t.startswith("session: attached to stage pytest") for t in texts)
    assert any(t.startswith("memory: ") for t in texts)
    assert all(len(r) == 3 and isinstance(r[0], cb.Severity) and abs(r[1] - before) < 60e9 for r in records)
    work(broker)
    cb.remove_log()  # flushes first
    count = len(records)
    assert [t for _, _, t in records].count("session: closed stage pytest") == 2
    work(broker)
    assert len(records) == count


@pytest.mark.parametrize(
    ("threshold", "channels"),
    [
        (cb.Severity.DEBUG, "no.such-channel"),
        (cb.Severity.NONE, ""),
        (cb.Severity.ERROR, ""),
        (cb.Severity.DEBUG, "call"),
    ],
)
def test_a_filter_suppresses(broker: Broker, records: list[Record], threshold: cb.Severity, channels: str) -> None:
    """behaviour 318"""
    cb.install_log(lambda *record: records.append(record), threshold=threshold, channels=channels)
    work(broker)
    cb.remove_log()
    assert records == []


def test_bad_filters_are_refused_and_nothing_is_flushed_at_once(records: list[Record]) -> None:
    """behaviour 319"""
    for bad in (",", "session,,call", "Session", "a b", "x" * 300):
        with pytest.raises(cb.InvalidArgument, match="channels"):
            cb.install_log(print, channels=bad)
    with pytest.raises(ValueError, match="threshold"):
        cb.install_log(print, threshold=5)
    with pytest.raises(TypeError, match="callable"):
        cb.install_log(None)  # type: ignore[arg-type]
    assert cb.flush_log(None) is True
    assert cb.flush_log(0) is True
    cb.remove_log()


def test_one_callback_on_its_own_thread_in_nobodys_way(broker: Broker, records: list[Record]) -> None:
    """behaviour 320"""
    threads, inside, go = set(), [], threading.Event()

    def callback(severity: cb.Severity, time_ns: int, text: str) -> None:
        inside.append(1)
        threads.add(threading.get_ident())
        go.wait(30)
        assert len(inside) == 1
        inside.clear()
        records.append((severity, time_ns, text))
        with pytest.raises(cb.OperationFailed, match="itself"):
            cb.remove_log()

    cb.install_log(callback)
    with pytest.raises(cb.AlreadyExists):
        cb.install_log(print)
    start = time.monotonic()
    work(broker)  # while the callback stands
    assert cb.flush_log(0) is False
    assert cb.flush_log(0.05) is False
    assert time.monotonic() - start < 20
    go.set()
    assert cb.flush_log() is True
    assert len(records) >= 2
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_a_callback_raises_does_not_end_anything(
    broker: Broker, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))

    def callback(*record: object) -> None:
        raise RuntimeError("of the callback")

    cb.install_log(callback)
    work(broker)
    cb.remove_log()
    assert len(raised) >= 2
    assert all(str(e) == "of the callback" for e in raised)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_dropped_objects_are_told(broker: Broker, records: list[Record]) -> None:
    cb.install_log(lambda *record: records.append(record), channels="handle")
    with broker.connect() as stage:
        query = stage.query_from_path_list(["/a"])
        del query
        gc.collect()
    cb.remove_log()
    assert [(s, t) for s, _, t in records] == [
        (cb.Severity.WARNING, "handle: a query was not released; it was garbage-collected")
    ]


def test_an_interpreter_ends_with_a_callback_installed(broker: Broker) -> None:
    done = broker.python(
        "import callboard as cb\n"
        "cb.install_log(lambda s, t, text: print(s.name, text), channels='session')\n"
        "stage = cb.connect()\n"
        "stage.publish('log/end', 1.0)\n"
        "stage.close()\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "INFO session: closed stage pytest"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_none(broker: Broker, records: list[Record]) -> None:
    cb.install_log(lambda *record: records.append(record))
    work(broker)
    assert cb.flush_log()
    count = len(records)
    child = os.fork()
    if child == 0:
        ok = cb.flush_log() and len(records) == count
        cb.install_log(print, channels="no.such")
        cb.remove_log()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    work(broker)
    assert cb.flush_log()
    assert len(records) > count


def test_closing_with_live_handles_is_refused_with_a_list(broker: Broker, name: str) -> None:
    """behaviour 322, 323"""
    with broker.connect() as stage:
        query = stage.query_from_path_list(["/a"])
        stage.write_attribute(query, name, np.ones(1), ordinal=1).wait()
        seal(stage, 1, name)
        session = stage.map_attribute(query, name, ordinal=2)
        with stage.read_attributes(query, name) as read:
            group = read.fetch_read_next()
        view = group.array(0)
        group.release()
        with pytest.raises(cb.OperationFailed) as caught:
            stage.close(if_idle=True)
        assert type(caught.value) is cb.OperationFailed
        for part in ("1 map session", "1 query", "1 pin of a view", f'"{name}" at epoch'):
            assert part in str(caught.value)
        assert not stage.closed
        assert stage.alive
        assert view[0] == 1
        session.abort()  # it has ended: whether the object is alive does not count
        query.release()
        with pytest.raises(cb.OperationFailed, match="1 pin of a view"):
            stage.close(if_idle=True)
        del view
        gc.collect()
        stage.close(if_idle=True)
        assert stage.closed
        stage.close(if_idle=True)
