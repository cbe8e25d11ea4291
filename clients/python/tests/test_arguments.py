"""Arguments of the wrong type or size: refused in Python, naming the argument, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal

Call = Callable[[cb.Stage, cb.Query, str, Any], Any]

ORDINAL_CALLS: dict[str, Call] = {
    "write": lambda s, q, name, o: s.write_attribute(q, name, np.zeros(2), ordinal=o),
    "writes": lambda s, q, name, o: s.write_attributes(q, {name: np.zeros(2)}, ordinal=o),
    "map": lambda s, q, name, o: s.map_attribute(q, name, dtype="f8", ordinal=o),
    "seal": lambda s, q, name, o: s.advance_write_floor(o, scope=cb.Scope.INCLUDE, attributes=[name]),
}


@pytest.fixture
def query(stage: cb.Stage) -> Any:
    with stage.query_from_path_list(["/a", "/b"]) as query:
        yield query


@pytest.mark.parametrize("call", ORDINAL_CALLS.values(), ids=ORDINAL_CALLS)
@pytest.mark.parametrize("ordinal", [5.25, 5.0, "5", None, np.float64(5), [5], b"5", True, np.True_], ids=repr)
def test_ordinals_are_integers(stage: cb.Stage, query: cb.Query, name: str, call: Call, ordinal: object) -> None:
    """behaviour 308: a double has 53 bits, so 5.0 is refused as well"""
    with pytest.raises(TypeError, match="ordinal"):
        call(stage, query, name, ordinal)
    assert name not in [a["name"] for a in stage.attributes()]


@pytest.mark.parametrize("call", ORDINAL_CALLS.values(), ids=ORDINAL_CALLS)
@pytest.mark.parametrize("ordinal", [-1, 2**64, -(2**70)])
def test_ordinals_fit_64_bits(stage: cb.Stage, query: cb.Query, name: str, call: Call, ordinal: int) -> None:
    """behaviour 310"""
    with pytest.raises(ValueError, match="ordinal must be from 0") as caught:
        call(stage, query, name, ordinal)
    assert not isinstance(caught.value, cb.CallboardError)


def test_numpy_integers_and_the_largest_ordinal_work(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 100, 308"""
    stage.write_attribute(query, name, np.zeros(2), ordinal=np.uint8(3)).wait()
    assert seal(stage, np.int64(3), name).floor == 3  # type: ignore[arg-type]
    stage.write_attribute(query, name, np.zeros(2), ordinal=2**64 - 2).wait()
    assert seal(stage, 2**64 - 2, name).floor == 2**64 - 2


@pytest.mark.parametrize("attribute", [1.75, 2.0, np.float64(1), True, b"pose", None, np.str_])
def test_attributes_are_strings_or_tokens(stage: cb.Stage, query: cb.Query, attribute: object) -> None:
    """behaviour 309: and no column appears"""
    before = stage.attributes()
    for call in (
        lambda: stage.write_attribute(query, attribute, np.zeros(2), ordinal=1),
        lambda: stage.publish(attribute, np.zeros(2)),
        lambda: stage.map(attribute, shape=(2,), dtype="f4"),
        lambda: stage.read_attributes(query, [attribute]),
        lambda: stage.latest(attribute),
        lambda: stage.declare(attribute, dtype="f4"),
        lambda: stage.advance_write_floor(1, scope=cb.Scope.INCLUDE, attributes=[attribute]),
        lambda: stage.delete_attributes(query, [attribute], ordinal=1),
        lambda: stage.query(cb.Has(attribute)),  # type: ignore[arg-type]
        lambda: stage.query(attributes=["x", attribute]),  # type: ignore[list-item]
        lambda: stage.write_attributes(query, {attribute: np.zeros(2)}, ordinal=1),
        lambda: stage.frontier(attribute),
    ):
        with pytest.raises(TypeError):
            call()
    assert stage.attributes() == before


@pytest.mark.parametrize("made", [int, np.uint64])
def test_a_token_names_an_attribute(stage: cb.Stage, query: cb.Query, name: str, made: type) -> None:
    """behaviour 270, 309: the same column either way"""
    number = stage.tokens.intern(name)
    token = made(number)
    stage.write_attribute(query, token, np.array([1.0, 2.0]), ordinal=1).wait()
    seal(stage, 1, name)
    with stage.read_attributes(query, token) as read, read.fetch_read_next() as group:
        assert group.attribute == name
        assert group.array(0).tolist() == [1, 2]
    stage.write_attributes(query, {token: np.array([3.0, 4.0])}, ordinal=2).wait()
    with stage.map_attribute(query, token, ordinal=3) as session:
        assert session.attribute == name
        session.array[:] = 5
    stage.advance_write_floor(3, scope=cb.Scope.INCLUDE, attributes=[token]).wait()
    assert stage.write_floor(token) == stage.write_floor(name) == 3
    assert stage.frontier(token) == stage.frontier(name)
    with stage.query(cb.Has(token), cb.Greater(token, 4.5), attributes=np.array([number], np.uint64)) as found:
        assert len(found) == 2
        assert found.attributes == (name,)
    stage.publish(token, 7.0)
    assert stage.latest(token).attribute == name
    with stage.snapshot() as snapshot:
        assert float(snapshot[token]) == 7
        assert snapshot.floor(token) == stage.write_floor(name)
    assert stage.list_groups(token) == []
    stage.delete_attributes(query, [token, name], ordinal=9).wait()
    assert [a["name"] for a in stage.attributes()].count(name) == 1


def test_a_token_that_nobody_knows(stage: cb.Stage, query: cb.Query) -> None:
    """behaviour 270"""
    before = stage.attributes()
    for token in (0, 2**40 + 1):
        with pytest.raises(cb.NotFound):
            stage.write_attribute(query, token, np.zeros(2), ordinal=1)
    with pytest.raises(ValueError, match="name"):
        stage.publish(-1, 1.0)
    assert stage.attributes() == before


@pytest.mark.parametrize("attribute", ["", "a\0b", "@path", "x" * 1025])
def test_names_that_cannot_be(stage: cb.Stage, query: cb.Query, attribute: str) -> None:
    """behaviour 273"""
    with pytest.raises((ValueError, cb.NotSupported)):
        stage.write_attribute(query, attribute, np.zeros(2), ordinal=1)


def test_paths_are_a_list_of_strings_that_start_with_a_slash(stage: cb.Stage) -> None:
    """behaviour 231: one string is a list of letters, and never meant"""
    for paths in ("/World", 3.5, None, [1], ["/a", b"/b"]):
        with pytest.raises(TypeError, match="paths"):
            stage.query_from_path_list(paths)  # type: ignore[arg-type]
    with pytest.raises(cb.InvalidArgument, match="World"):
        stage.query_from_path_list(["/a", "World"])
    with pytest.raises(cb.NotFound, match="list 4711"):  # a number is that of a list
        stage.query_from_path_list(4711)
    with stage.query_from_path_list(f"/p{i}" for i in range(3)) as q:
        assert len(q) == 3


def test_count_is_given_or_none(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 64, 65, 66, 310"""
    stage.write_attribute(query, name, np.zeros(2), ordinal=1, count=cb.ALL).wait()
    too_many = cb.InvalidArgument
    values, types = [0, -1, 2**32], [1.0, True]
    for count, error in [(v, ValueError) for v in values] + [(t, TypeError) for t in types] + [(3, too_many)]:  # type: ignore[misc]
        with pytest.raises(error, match="count"):
            stage.write_attribute(query, name, np.zeros(2), ordinal=1, count=count)  # type: ignore[arg-type]
        with pytest.raises(error, match="count"):
            stage.write_attributes(query, {name: cb.Write(np.zeros(2), count=count)}, ordinal=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mask": [3]}, "mask needs a count"),  # behaviour 69
        ({"mask": [3], "index_map": [0, 1], "count": 2}, "together"),  # behaviour 81
        ({"mask": [], "count": 2}, "0 words"),  # behaviour 84
        ({"mask": [2**64], "count": 2}, "mask"),
        ({"index_map": [2**32, 0]}, "index_map"),  # behaviour 89
        ({"index_map": [-1, 0]}, "index_map"),
        ({"index_map": [0], "count": 2}, "index_map has 1 entries, count is 2"),  # behaviour 90
        ({"index_map": []}, "empty"),
    ],
)
def test_selections_are_checked(
    stage: cb.Stage, query: cb.Query, name: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        stage.write_attribute(query, name, np.zeros(2), ordinal=1, **options)


def test_modes_and_scopes_are_known_and_semantics_may_be_newer(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 313"""
    with pytest.raises(ValueError, match="prim_mode"):
        stage.write_attribute(query, name, np.zeros(2), ordinal=1, prim_mode=2)
    with pytest.raises(ValueError, match="scope"):
        stage.advance_write_floor(1, scope=3)
    with pytest.raises(ValueError, match="init"):
        stage.map_attribute(query, name, dtype="f4", ordinal=1, init="ones")
    with pytest.raises(ValueError, match="handoff"):
        stage.declare(name, dtype="f4", handoff="move")
    with pytest.raises(ValueError, match="semantic"):
        stage.write_attribute(query, name, np.zeros(2), ordinal=1, semantic=-1)
    with pytest.raises(cb.InvalidArgument, match="token_id"):  # what is known here is judged here
        stage.write_attribute(query, name, np.zeros(2), ordinal=1, semantic=cb.Semantic.TOKEN_ID)
    for semantic in (len(cb.Semantic), 200, 2**32 - 1):  # newer than this package: the broker says what it thinks of it
        for op in (
            stage.write_attribute(query, name, np.zeros(2), ordinal=1, semantic=semantic),
            stage.declare(name, dtype="f4", semantic=semantic),
        ):
            with pytest.raises(cb.InvalidArgument, match=str(semantic)):
                op.wait()
        with pytest.raises(cb.InvalidArgument, match=str(semantic)):
            stage.publish(name, 1.0, semantic=semantic)
        with pytest.raises(cb.InvalidArgument, match=str(semantic)):
            stage.map_attribute(query, name, dtype="f4", ordinal=1, semantic=semantic)
    stage.write_attribute(query, name, np.zeros(2), ordinal=1).wait()  # nothing is left of it


@pytest.mark.parametrize("timeout", ["1", [], np.zeros(3)])
def test_timeouts_are_numbers(stage: cb.Stage, timeout: object) -> None:
    with pytest.raises(TypeError):
        stage.follow(timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
def test_timeouts_are_not_negative(stage: cb.Stage, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        stage.follow(timeout=timeout)


def test_what_this_version_lacks_says_so(stage: cb.Stage, query: cb.Query, name: str) -> None:
    stage.write_attribute(query, name, np.zeros(2), ordinal=1).wait()
    seal(stage, 1, name)
    text = "serves no GPU"
    for call in (
        lambda: stage.declare(name + "/new", dtype="f4", device="cuda:0"),
    ):
        with pytest.raises(cb.NotSupported, match=text) as caught:
            call()
        assert caught.value.code == cb.NotSupported.code


def test_insert_of_sealed_prims_is_refused_in_the_call_itself(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """rule R6, behaviour 94, 229: no op is made that fails only at its wait where sealed state decides"""
    stage.write_attribute(query, name + "/other", np.zeros(2), ordinal=1).wait()
    seal(stage, 1, name + "/other")
    for call in (
        lambda: stage.write_attribute(query, name, np.zeros(2), ordinal=2, prim_mode=cb.PrimMode.INSERT),
        lambda: stage.write_attributes(query, {name: np.zeros(2)}, ordinal=2, prim_mode=cb.PrimMode.INSERT),
        lambda: stage.map_attribute(query, name, dtype="f8", ordinal=2, prim_mode=cb.PrimMode.INSERT),
    ):
        with pytest.raises(cb.AlreadyExists, match="exists: it carries attribute"):
            call()
    assert name not in [info["name"] for info in stage.attributes()]  # and nothing was made


RANGES: dict[str, Callable[..., Any]] = {
    r"semantic must be from 0 to 2\*\*32-1, not -1": lambda w, s, n: s.publish(n, np.zeros(2), semantic=-1),
    r"semantic .* 2\*\*32-1, not 4294967296": lambda w, s, n: s.publish(n, np.zeros(2), semantic=2**32),
    r"shape\[0\] must be from 1 to 2\*\*63-1, not -1": lambda w, s, n: s.map(n, shape=(-1,), dtype="u1"),
    r"shape must be from 1 to 2\*\*63-1, not -1": lambda w, s, n: s.map(n, shape=-1, dtype="u1"),
    r"row_shape\[1\] .* 1 to 2\*\*63-1": lambda w, s, n: s.declare(n, dtype="u1", row_shape=(4, 2**64)),
    r"row_shape \(9223372036854775808, 1\)": lambda w, s, n: s.declare(n, dtype="u1", row_shape=(2**63, 1)),
    r"row_shape is \(9223372036854775808,\)": lambda w, s, n: w(np.zeros((2, 3)), ordinal=1, row_shape=(2**63,)),
    r"index_map\[1\] .* 2\*\*32-1, not -1": lambda w, s, n: w(np.zeros(2), ordinal=1, index_map=[0, -1]),
    r"mask\[0\] .* 2\*\*64-1, not -1": lambda w, s, n: w(np.zeros(2), ordinal=1, mask=[-1], count=2),
    r"count .* from 1 to 2\*\*32-1, not -1": lambda w, s, n: w(np.zeros(2), ordinal=1, count=-1),
    r"ordinal must be from 0 to 2\*\*64-1, not -1": lambda w, s, n: w(np.zeros(2), ordinal=-1),
    r"retain .* from 1 to 2\*\*32-1, not -1": lambda w, s, n: s.declare(n, dtype="u1", retain=-1),
    "scope must be from 0 to 2, not -1": lambda w, s, n: s.advance_write_floor(1, scope=-1),
}


@pytest.mark.parametrize("text", RANGES)
def test_the_range_that_is_told_is_the_real_one(stage: cb.Stage, query: cb.Query, name: str, text: str) -> None:
    """behaviour 310: and extents are never shown as negative numbers that nobody gave"""

    def write(array: Any, **options: Any) -> None:
        stage.write_attribute(query, name, array, **options)

    with pytest.raises(ValueError, match=text):
        RANGES[text](write, stage, name)


@pytest.mark.parametrize(
    ("path", "why"),
    [("a", "start"), ("", "empty"), ("//a", "component"), ("/a/", "ends"), ("/" + "a" * 70000, "70001 bytes")],
)
def test_a_bad_path_is_named_with_its_place(stage: cb.Stage, path: str, why: str) -> None:
    """behaviour 231"""
    for call in (stage.query_from_path_list, stage.paths.intern):
        with pytest.raises(cb.InvalidArgument, match=f"(?s)path 2 of the list.*{why}"):
            call(["/", "/b", path])


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (b"/c", TypeError, "string( or a token)?, not bytes"),
        ("/c\0", ValueError, "zero"),
        ("/c\ud800", ValueError, "surrogate"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(
    stage: cb.Stage, query: cb.Query, wrong: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"paths\[1\].*{text}"):
        stage.query_from_path_list(["/b", wrong])  # type: ignore[list-item]
    with pytest.raises(error, match=rf"attributes\[1\].*{text}"):
        stage.read_attributes(query, ["x", wrong])  # type: ignore[list-item]
    with pytest.raises(error, match=f"^name .*{text}"):
        stage.publish(wrong, np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (np.zeros(3, "M8[s]"), r"datetime64\[s\]"),
        (np.zeros((2, 3), "m8[ns]")[:, ::2], r"timedelta64\[ns\]"),
        (np.datetime64("2020-01-01"), r"datetime64\[D\]"),
        ([np.datetime64("2020-01-01")], r"datetime64\[D\]"),
        (np.zeros(3, np.longdouble), "float128|longdouble"),
        (np.array(["a", "bc"]), "<U2"),
        (np.array([object()]), "object"),
        (np.zeros(2, [("x", "f4")]), "'x', '<f4'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_elements_without_a_type_here_are_named(stage: cb.Stage, name: str, data: Any, dtype: str) -> None:
    """behaviour 44: and what is accepted"""
    with pytest.raises(ValueError, match=f"({dtype}).* cannot be exchanged; accepted are bool, integers"):
        stage.publish(name, data)


def test_the_sizes_of_a_channel(broker: Broker, name: str) -> None:
    """rule R1: what the texts of limits advise can be done"""
    small = {"pin_count": 2, "sq_entries": 2, "cq_entries": np.uint8(4), "argument_bytes": 65536, "result_bytes": 4096}
    with broker.connect(**small) as stage:
        stage.publish(name, np.zeros(2))
        views = [stage.latest(name)]
        with pytest.raises(cb.LimitReached, match="2 pin slots.*larger pin_count"):
            views.append(stage.latest(name))
        batch = {str(i): np.zeros(1) for i in range(1000)}
        with stage.query_from_path_list(["/a"]) as a, pytest.raises(cb.LimitReached, match="larger argument_bytes"):
            stage.write_attributes(a, batch, ordinal=1)
    with broker.connect(pin_count=65536, cq_entries=32768, result_bytes=1 << 26, sq_entries=0) as stage:
        views = [stage.latest(name) for _ in range(5000)]
        assert len(views) == 5000


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"pin_count": -1}, "pin_count must be from 0 to 65536, not -1"),
        ({"pin_count": 65537}, "pin_count .* not 65537"),
        ({"sq_entries": 3}, "sq_entries must be a power of two"),
        ({"cq_entries": 65536}, "cq_entries must be from 0 to 32768"),
        ({"argument_bytes": 2**26 + 1}, "argument_bytes must be from 0 to 67108864"),
        ({"result_bytes": 2**64}, "result_bytes must be from 0 to 67108864"),
    ],
)
def test_sizes_that_no_channel_has(broker: Broker, sizes: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        broker.connect(**sizes)
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match=next(iter(sizes))):
            broker.connect(**dict.fromkeys(sizes, wrong))


def test_another_stage_than_the_one_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """rule I5: by argument or by environment; unnamed, what the runtime directory serves is meant"""
    monkeypatch.setenv("CALLBOARD_RUNTIME_DIR", str(broker.runtime))
    text = f'{broker.runtime} serves stage "{broker.name}", not "other"'
    with pytest.raises(cb.NotFound, match=text):
        cb.connect("other")
    monkeypatch.setenv("CALLBOARD_STAGE", "other")
    with pytest.raises(cb.NotFound, match=text):
        cb.connect()
    cb.connect(broker.name).close()
    monkeypatch.delenv("CALLBOARD_STAGE")
    with cb.connect() as stage:
        assert stage.info()["name"] == broker.name


def test_a_query_of_another_type_or_stage(stage: cb.Stage, query: cb.Query, name: str, broker: Any) -> None:
    for wrong in (None, ["/a"], 1):
        with pytest.raises(TypeError, match="query"):
            stage.read_attributes(wrong, [name])  # type: ignore[arg-type]
    with broker.connect() as other, pytest.raises(cb.CallboardError):
        other.write_attribute(query, name, np.zeros(2), ordinal=1)
    query.release()
    query.release()
    for call in (lambda: len(query), lambda: query.prims, lambda: stage.read_attributes(query, [name])):
        with pytest.raises(cb.InvalidHandle, match="released"):
            call()
