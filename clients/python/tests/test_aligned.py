"""Attributes of producers that are not equally far, at one tick or at one time."""

from __future__ import annotations

import threading

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal


def seal_stamped(stage: cb.Stage, query: cb.Query, name: str, ordinal: int, stamp_ns: int) -> None:
    stage.write_attribute(query, name, np.array([ordinal]), ordinal=ordinal)
    stage.advance_write_floor(ordinal, scope=cb.Scope.INCLUDE, attributes=[name], stamp_ns=stamp_ns).wait()


def values(read: cb.Read) -> dict[str, int]:
    return {group.attribute: int(group.array(0)[0]) for group in read}


def test_attributes_are_read_at_their_common_ordinal(stage: cb.Stage, name: str) -> None:
    camera, pose = name + "/camera", name + "/pose"
    with stage.query_from_path_list(["/a"]) as q:
        read = stage.read_attributes(q, [camera, pose], aligned=True)
        assert read.ordinal == 0 and values(read) == {}
        for n in range(1, 7):
            seal_stamped(stage, q, camera, n, 0)
        read = stage.read_attributes(q, [camera, pose], aligned=True)
        assert read.ordinal == 6 and values(read) == {camera: 6}  # nobody wrote the other one yet
        stage.declare(pose, dtype="int64").wait()
        assert values(stage.read_attributes(q, [camera, pose], aligned=True)) == {camera: 6}  # nor sealed it
        seal_stamped(stage, q, pose, 5, 0)
        read = stage.read_attributes(q, [camera, pose], aligned=True)
        assert read.ordinal == 5 and values(read) == {camera: 5, pose: 5}
        seal(stage, 6, pose)  # it does not change at 6, and is that far
        read = stage.read_attributes(q, [camera, pose], aligned=True)
        assert read.ordinal == 6 and values(read) == {camera: 6, pose: 5}
        read = stage.read_attributes(q, [camera, pose], aligned=True, since=5)
        assert values(read) == {camera: 6}
        with pytest.raises(cb.InvalidArgument, match="since is 7, above the end 6"):
            stage.read_attributes(q, [camera, pose], aligned=True, since=7)
        with stage.read_attributes(q, camera, at=5) as of, stage.read_attributes(q, camera) as newest:
            assert (of.ordinal, newest.ordinal) == (5, 0)
        for n in range(7, 20):
            seal_stamped(stage, q, camera, n, 0)
        with pytest.raises(cb.OutOfRange, match=r"ordinal 6 .* declare a larger retain"):
            stage.read_attributes(q, [camera, pose], aligned=True)


def test_attributes_are_read_at_or_near_a_stamp(stage: cb.Stage, name: str) -> None:
    camera, pose = name + "/camera", name + "/pose"
    names = [camera, pose, name + "/never"]
    with stage.query_from_path_list(["/a"]) as q:
        for n in range(1, 5):
            seal_stamped(stage, q, camera, n, 1000 * n)
            seal_stamped(stage, q, pose, 100 + n, 1000 * n + 400)
        for stamp, before, nearest in [
            (0, {}, {camera: 1, pose: 101}),
            (1000, {camera: 1}, {camera: 1, pose: 101}),
            (2000, {camera: 2, pose: 101}, {camera: 2, pose: 102}),
            (2500, {camera: 2, pose: 102}, {camera: 2, pose: 102}),  # as near: the earlier one
            (2501, {camera: 2, pose: 102}, {camera: 3, pose: 102}),
            (2**64 - 1, {camera: 4, pose: 104}, {camera: 4, pose: 104}),
        ]:
            read = stage.read_attributes(q, names, stamp_ns=stamp)
            assert read.ordinal == 0 and values(read) == before, stamp
            assert values(stage.read_attributes(q, names, stamp_ns=stamp, nearest=True)) == nearest, stamp
        for group in stage.read_attributes(q, [camera], stamp_ns=3999):
            assert group.stamp_ns == 3000
        for n in range(5, 10):
            seal_stamped(stage, q, camera, n, 1000 * n)
        for nearest in (False, True):
            with pytest.raises(cb.OutOfRange, match=r"stamp 1999 .* declare a larger retain"):
                stage.read_attributes(q, names, stamp_ns=1999, nearest=nearest)


def test_what_a_read_is_as_of_is_one_thing(stage: cb.Stage, name: str) -> None:
    with stage.query_from_path_list(["/a"]) as q:
        for options, text in [
            ({"at": 1, "aligned": True}, "exclude one another"),
            ({"stamp_ns": 1, "aligned": True}, "exclude one another"),
            ({"at": 1, "stamp_ns": 1}, "exclude one another"),
            ({"nearest": True}, "nearest needs stamp_ns"),
            ({"stamp_ns": -1}, "stamp_ns"),
            ({"stamp_ns": 1, "since": 1}, "since"),
        ]:
            with pytest.raises(ValueError, match=text):
                stage.read_attributes(q, name, **options)  # type: ignore[arg-type]


def test_aligned_reads_beside_producers_of_different_speed(broker: Broker, name: str) -> None:
    """Every one is exactly the state of its ordinal, and ordinals never fall."""
    names = [name + "/a", name + "/b"]
    rounds = 300
    stop = threading.Event()

    def produce(one: str, step: int) -> None:
        with broker.connect() as producer, producer.query_from_path_list(["/p"]) as q:
            producer.declare(one, dtype="int64", retain=64).wait()
            for n in range(step, rounds + 1, step):
                producer.write_attribute(q, one, np.array([n]), ordinal=n)
                seal(producer, n, one)
        stop.set()

    threads = [threading.Thread(target=produce, args=(one, step)) for one, step in zip(names, (1, 3), strict=True)]
    exact = last = 0
    with broker.connect() as reader, reader.query_from_path_list(["/p"]) as q:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                read = reader.read_attributes(q, names, aligned=True)
            except cb.OutOfRange:
                continue  # the faster one is too far ahead
            ordinal, found = read.ordinal, values(read)
            if len(found) == 2:
                assert ordinal >= last and found == {names[0]: ordinal, names[1]: ordinal - ordinal % 3}
                exact, last = exact + 1, ordinal
        for thread in threads:
            thread.join()
        assert values(reader.read_attributes(q, names, aligned=True)) == dict.fromkeys(names, rounds)
