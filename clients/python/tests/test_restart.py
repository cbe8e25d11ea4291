"""The broker is killed and started anew: sessions go on, and what was not sealed is told (rule B1)."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal

Starter = Callable[..., Broker]


def kill(broker: Broker) -> None:
    broker.process.kill()
    broker.process.wait()


def taken_up(stage: cb.Stage) -> None:
    """Waits until the next broker has this session."""
    before, deadline = stage.info()["broker_incarnation"], time.monotonic() + 60
    while stage.info()["broker_incarnation"] == before:
        assert stage.alive
        assert time.monotonic() < deadline
        time.sleep(0.005)
    stage.query_from_path_list([]).release()  # waits for it


def test_a_session_is_taken_up_again(new_broker: Starter) -> None:
    broker = new_broker()
    with broker.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
        stage.write_attribute(query, "x", np.array([1.0, 2.0]), ordinal=1).wait()
        seal(stage, 1, "x")
        snapshot = stage.snapshot()
        with stage.read_attributes(query, "x") as read, read.fetch_read_next() as group:
            view = group.array(0)
            stage.write_attribute(query, "x", np.array([7.0, 7.0]), ordinal=2).wait()  # accepted, not sealed
            session = stage.map_attribute(query, "x", ordinal=3)
            kill(broker)
            assert view.tolist() == [1, 2]
            with stage.read_attributes(query, "x") as again, again.fetch_read_next() as held:
                assert held.array(0).tolist() == [1, 2]
            assert stage.alive  # it has looked, and is not over
            with pytest.raises(cb.BrokerRestarted):
                stage.write_attribute(query, "x", np.zeros(2), ordinal=2)
            broker.start()
            taken_up(stage)
            assert stage.epoch == snapshot.epoch
            assert stage.write_floor("x") == 1
            with pytest.raises(cb.BrokerRestarted, match=r'"x" up to ordinal 2') as told:
                seal(stage, 2, "x")
            assert not told.value.sealed_maybe
            assert told.value.code == 17
            with pytest.raises(cb.BrokerRestarted, match="map it anew"):
                session.unmap_attribute()
            session.abort()
            stage.write_attribute(query, "x", np.array([3.0, 4.0]), ordinal=2).wait()  # by the query of before
            seal(stage, 2, "x")
            assert view.tolist() == [1, 2]
        with stage.read_attributes(query, "x") as read, read.fetch_read_next() as group:
            assert group.array(0).tolist() == [3, 4]
        del session, view
        snapshot.release()
        gc.collect()
        for ordinal in (3, 4):  # of memory that this client had mapped before
            with stage.map_attribute(query, "x", ordinal=ordinal) as filled:
                filled.array[:] = ordinal
            seal(stage, ordinal, "x")
        assert stage.publish("y", 5.0) == 1


def test_ops_on_their_way_end_with_broker_restarted(new_broker: Starter) -> None:
    broker = new_broker()
    with broker.connect() as stage, stage.query_from_path_list(["/a"]) as query:
        stage.write_attribute(query, "x", np.zeros(1), ordinal=1).wait()
        seal(stage, 1, "x")
        broker.freeze()
        ops = [stage.write_attribute(query, "x", np.ones(1), ordinal=2)]
        ops.append(stage.advance_write_floor(2, scope=cb.Scope.INCLUDE, attributes=["x"]))
        done = stage.advance_write_floor(1, scope=cb.Scope.INCLUDE, attributes=["x"])
        kill(broker)
        threading.Timer(0.3, broker.start).start()
        for op in ops:
            with pytest.raises(cb.BrokerRestarted) as caught:
                op.wait(20)
            assert not caught.value.sealed_maybe
            assert op.sealed_maybe is False
        assert done.wait(20).floor == 1  # the floor was there
        assert stage.write_floor("x") == 1


def test_a_follower_never_hears_of_it(new_broker: Starter) -> None:
    broker = new_broker()
    seen: list[float] = []
    errors: list[BaseException] = []
    with broker.connect() as reader, broker.connect() as writer:

        def follow() -> None:
            try:
                for snapshot in reader.watch("x", timeout=60):
                    snapshot.release()
                    seen.append(float(reader.latest("x")))
                    if seen[-1] == 4:
                        return
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        for value in range(5):
            while True:
                try:
                    writer.publish("x", float(value))
                    break
                except cb.BrokerRestarted:
                    time.sleep(0.01)
            if value in (1, 3):
                kill(broker)
                broker.start()
        thread.join(90)
        assert not thread.is_alive()
    assert errors == []
    assert seen[-1] == 4
    assert seen == sorted(seen)


@pytest.mark.parametrize("how", ["never", "too late", "anew", "stopped"])
def test_what_is_not_taken_up_again_is_over(new_broker: Starter, how: str) -> None:
    broker = new_broker()
    with broker.connect(reattach_timeout={"never": 0, "too late": 0.3}.get(how, 10)) as stage:
        stage.publish("x", 1.0)
        view = stage.latest("x")
        if how == "stopped":
            broker.stop(signal.SIGTERM)
        else:
            kill(broker)
        if how == "anew":
            broker.command.append("--fresh")
            broker.start()
        with pytest.raises(cb.SessionEnded) as caught:
            stage.follow(timeout=60)
        wanted = {
            "never": "hung up",
            "too late": "within 300 ms",
            "anew": "not take this session up",
            "stopped": "ended this session",
        }
        assert wanted[how] in str(caught.value)
        assert not stage.alive
        assert float(view) == 1


def test_a_broker_takes_over_from_a_running_one(new_broker: Starter) -> None:
    broker = new_broker()
    with broker.connect() as stage:
        stage.publish("x", 1.0)
        first = broker.process
        broker.command.append("--takeover")
        broker.start()
        taken_up(stage)
        assert first.wait(30) == 0
        assert float(stage.latest("x")) == 1
        assert stage.publish("x", 2.0) == 2


def test_closing_ends_a_wait_for_the_next_broker(new_broker: Starter) -> None:
    broker = new_broker()
    stage = broker.connect(reattach_timeout=None)
    stage.publish("x", 1.0)
    kill(broker)
    threading.Timer(0.3, stage.close).start()
    with pytest.raises(cb.SessionEnded, match="closed"):
        stage.query_from_path_list(["/a"])


@pytest.mark.parametrize("held", ["the session", "nothing", "an array", "an array for ever"])
def test_what_has_ended_keeps_no_memory_over_restarts(new_broker: Starter, held: str) -> None:
    broker = new_broker()
    rows = 2 << 20

    def segments() -> int:
        return sum(f.stat().st_size for f in (broker.log.parent / "shm").rglob("*") if f.is_file())

    with broker.connect() as stage:
        kept: list[object] = []
        sizes: list[int] = []

        def round_of_work() -> None:
            stage.publish("y", np.ones(rows, np.uint8))
            with stage.map("x", (rows,), "uint8") as session:
                session.array[:1] = 1
                views = [session.array] if held.startswith("an array") else []
            if held != "an array for ever" or not kept:
                kept[:] = [session, *views] if held != "nothing" else []  # let go of when the next one is there

        for _ in range(6):
            round_of_work()
        for _ in range(15):
            kill(broker)
            broker.start()
            taken_up(stage)
            round_of_work()
            if held == "an array":
                kept[1:] = []  # a view may be written: it may hold memory back until here, and no longer
            sizes.append(segments())
        # While a view of before is alive, what each life has leased is kept from use, and no more than that.
        lives = 12 if held == "an array for ever" else 1
        assert sizes[-1] <= sizes[2] + lives * 5 * rows, sizes
        assert stage.latest("x")[0] == 1
        kept.clear()
        round_of_work()
