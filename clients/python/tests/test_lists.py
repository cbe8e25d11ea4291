"""PathList: an int that owns a list (behaviour 255 to 267)."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import warnings
from collections.abc import Callable

import callboard as cb
import numpy as np
import pytest
from callboard import _lists
from conftest import Broker, seal


def test_it_is_an_int_in_all_but_its_repr(stage: cb.Stage) -> None:
    """behaviour 255, 257, 260"""
    with stage.paths.list(["/a", "/b"]) as paths, stage.paths.list([]) as empty:
        number = int(paths)
        assert isinstance(paths, int) and paths == number and hash(paths) == hash(number)
        assert (str(paths), f"{paths}", f"{paths:>9}", format(paths, "d")) == (
            str(number),
            str(number),
            f"{number:>9}",
            str(number),
        )
        assert json.dumps({"list": paths}) == json.dumps({"list": number})
        assert repr(paths) == f"<callboard.PathList {number}>"
        assert {paths: 1}[number] == 1
        assert list(stage.paths.ids(paths)) == list(stage.paths.ids(number)) == list(stage.paths.intern(["/a", "/b"]))
        assert stage.paths.count(empty) == 0 and empty != paths
        with stage.paths.slice(paths, 1, 1) as part:
            assert stage.paths.resolve(stage.paths.ids(part)) == ["/b"]
    with pytest.raises(ValueError, match="negative"):
        stage.paths.slice(number, -1, 0)


def test_copies_do_not_own(stage: cb.Stage) -> None:
    """behaviour 261"""
    with stage.paths.list([5]) as made:
        for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), copy.deepcopy([made])[0]):
            assert type(other) is int and other == made
            del other
        gc.collect()
        assert stage.paths.count(made) == 1


def test_scoped_explicit_and_double_release(stage: cb.Stage) -> None:
    """behaviour 258, 259, 262"""
    with pytest.raises(KeyError), stage.paths.list([5]) as made:
        assert not made.released
        raise KeyError
    assert made.released and "released" in repr(made)
    for refused in (
        lambda: stage.paths.count(made),
        lambda: stage.paths.add_reference(made),
        lambda: stage.paths.release(made),
    ):
        with pytest.raises(cb.NotFound, match="list"):
            refused()
    with pytest.raises(cb.InvalidHandle):
        made.release()
    with pytest.raises(cb.InvalidHandle):
        made.__enter__()
    stage.paths.add_reference(0)
    stage.paths.release(0)


def test_added_references_belong_to_the_caller(stage: cb.Stage) -> None:
    """behaviour 263"""
    made = stage.paths.list([5, 6])
    number = int(made.add_reference())
    with pytest.warns(ResourceWarning, match="garbage-collected"):
        del made
        gc.collect()
    assert stage.paths.count(number) == 2
    stage.paths.release(number)
    with pytest.raises(cb.NotFound):
        stage.paths.count(number)

    made = stage.paths.list([5])
    made.add_reference()
    stage.paths.release(int(made))  # charged to what was added
    assert not made.released
    made.add_reference()
    made.release()  # its own first
    assert made.released and stage.paths.count(made) == 1
    made.release()  # then what was added
    with pytest.raises(cb.InvalidHandle):
        made.release()


def test_dropped_it_warns_and_releases(new_broker: Callable[..., Broker]) -> None:
    """behaviour 167, 264"""
    stage = new_broker().connect()
    wrapper = stage.paths
    made = wrapper.list([5])
    number = int(made)
    del wrapper
    with pytest.warns(ResourceWarning, match=f"list {number} "):
        del made
        gc.collect()
    with pytest.raises(cb.NotFound):
        stage.paths.count(number)
    made = stage.paths.list([5])
    stage.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del made  # it outlived its own stage: silent
        gc.collect()


def test_ownership_is_per_stage(stage: cb.Stage) -> None:
    """behaviour 265"""
    one, other = stage.paths, stage.paths
    assert one is not other
    made = one.list([5])
    other.release(int(made))
    assert made.released
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del made
        gc.collect()


def test_a_thousand_cycles_grow_nothing(stage: cb.Stage) -> None:
    """behaviour 266"""
    known = len(_lists._known.get(stage, {}))
    for _ in range(1000):
        stage.paths.list([5]).release()
    assert len(_lists._known.get(stage, {})) == known


def test_a_query_keeps_a_temporary_list(stage: cb.Stage, name: str) -> None:
    """behaviour 173, 267"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        query = stage.query_from_path_list(stage.paths.list(["/a", "/b"]))
        gc.collect()
        stage.write_attribute(query, name, np.array([1.0, 2.0]), ordinal=1).wait()
        seal(stage, 1, name)
        assert list(query.prims) == list(stage.paths.intern(["/a", "/b"]))
    with pytest.warns(ResourceWarning, match="list"):
        query.release()
        gc.collect()
    assert len(_lists._known.get(stage, {})) == 0


def test_paths_are_sequences_of_tokens(stage: cb.Stage) -> None:
    """behaviour 253, 254"""
    assert stage.paths.from_tokens(["World", "R0"]) == stage.paths.intern("/World/R0")
    tokens = stage.paths.to_tokens("/World/R0")
    assert stage.tokens.resolve(tokens) == ["World", "R0"]
    assert stage.paths.from_tokens(tokens) == stage.paths.intern("/World/R0")
    assert len(stage.paths.to_tokens("/")) == 0 and stage.paths.from_tokens([]) == stage.paths.intern("/")
    with pytest.raises(cb.InvalidArgument, match="a/b"):
        stage.paths.from_tokens(["a/b"])
