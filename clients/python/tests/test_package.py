"""The package as such: importing, documentation, stubs, versions. No broker, but for the last."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import callboard as cb
import pytest
from callboard import _abi
from conftest import Broker

WITHOUT_NUMPY = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def test_import_needs_no_numpy() -> None:
    program = WITHOUT_NUMPY + "import callboard as cb\nprint(cb.dtype('f4'), cb.dtype(float), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "float32 float64 False\n", "")


def test_import_alone_does_not_import_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", "import callboard, sys; sys.exit('numpy' in sys.modules)"], timeout=60)
    assert done.returncode == 0


def test_every_status_has_one_class_and_every_class_one_code() -> None:
    """behaviour 212, 226"""
    kinds = [kind for kind in vars(cb).values() if isinstance(kind, type) and issubclass(kind, cb.CallboardError)]
    codes = {kind.code: kind for kind in kinds if kind is not cb.CallboardError}
    assert len(codes) == len(kinds) - 1
    assert set(codes) == set(range(_abi.STATUS_COUNT)) - {_abi.STATUS_OK, _abi.STATUS_END}
    for kind in kinds:
        assert issubclass(kind, RuntimeError)
        assert kind is cb.CallboardError or issubclass(kind, cb.OperationFailed)


def test_errors_of_the_stage_and_of_the_dictionary(broker: Broker) -> None:
    """behaviour 226: one tree for both; the kind and the text say what it was about"""
    with broker.connect() as stage:
        with pytest.raises(cb.NotFound, match="0xffffffffffffffff") as dictionary:
            stage.paths.resolve(2**64 - 1)
        with pytest.raises(cb.FloorViolation, match="ordinal 0") as store, stage.query_from_path_list(["/a"]) as query:
            stage.write_attribute(query, "x", [1.0], ordinal=0)
    for error in (dictionary.value, store.value):
        assert isinstance(error, RuntimeError) and isinstance(error, cb.CallboardError)
    assert (dictionary.value.code, store.value.code) == (_abi.STATUS_NOT_FOUND, _abi.STATUS_FLOOR_VIOLATION)


def test_versions_agree() -> None:
    """behaviour 321"""
    assert cb.__version__ == ".".join(map(str, cb.version))
    assert all(isinstance(part, int) and part >= 0 for part in cb.version)
    assert cb.ABI_VERSION == f"{_abi.ABI_MAJOR}.{_abi.ABI_MINOR}"


def test_everything_public_is_documented_and_in_the_stubs() -> None:
    stub = Path(cb._native.__file__).with_name("_native.pyi")
    classes = {node.name: node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef)}
    native = [kind for kind in vars(cb._native).values() if inspect.isclass(kind)]
    assert len(native) == 11
    for kind in native:
        stubbed = {
            getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", None)
            for node in classes[kind.__name__].body
        }
        members = {name for name in vars(kind) if not name.startswith("_")}
        assert members <= stubbed, f"{kind.__name__}: not in the stubs: {members - stubbed}"
        for name in members:
            assert vars(kind)[name].__doc__, f"{kind.__name__}.{name} has no docstring"
    assert (stub.parent / "py.typed").exists()


def test_the_stubs_agree_with_what_runs(tmp_path: Path) -> None:
    """Names, order, kinds and defaults of every argument: the docstrings' signatures against the stubs."""
    allowed = tmp_path / "allowed"
    allowed.write_text("callboard._native.View.__buffer__\n")  # seen from Python 3.12 on
    options = ["--allowlist", allowed, "--ignore-unused-allowlist", "--ignore-disjoint-bases", "--concise"]
    command = [sys.executable, "-m", "mypy.stubtest", "callboard._native", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_enums_have_the_numbers_of_the_abi() -> None:
    assert (cb.Kind.FIXED, cb.Kind.ARRAY) == (_abi.KIND_FIXED, _abi.KIND_ARRAY)
    assert (cb.Scope.ALL, cb.Scope.INCLUDE, cb.Scope.EXCLUDE) == (0, 1, 2)
    assert [int(s) for s in cb.Semantic] == list(range(16))


def test_native_objects_cannot_be_made_by_hand() -> None:
    for kind in (cb.View, cb.Op, cb.Query, cb.MapSession, cb.Group, cb.Read, cb.ReadGroup, cb.Snapshot):
        with pytest.raises(TypeError):
            kind()


def test_the_package_can_be_imported_anew(broker: Broker, name: str) -> None:
    """As test runners and reloaders do: the native types are the same, and what was made of them goes on."""
    program = f"""
import sys
import callboard as before
stage = before.connect()
stage.publish({name!r}, b"abc")
view = stage.latest({name!r})
for module in [module for module in sys.modules if module.partition(".")[0] == "callboard"]:
    del sys.modules[module]
import callboard as after
assert after is not before and after.View is before.View and after.DType is not before.DType
with after.connect() as other:
    other.publish({name!r} + "/2", view)
    assert bytes(other.latest({name!r} + "/2").bits) == b"abc" and isinstance(view.dtype, after.DType)
stage.close()
print(after.NotFound is not before.NotFound)
"""
    done = broker.python(program)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_another_interpreter_is_refused_by_name() -> None:
    """Its threads would call into the main one: PyGILState knows no other."""
    program = """
try:
    import _interpreters as interpreters  # Python 3.13
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
interpreters.run_string(other, '''
try:
    import callboard
except ImportError as error:
    print(error, flush=True)
''')
interpreters.destroy(other)
import callboard
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    said = "main interpreter" in done.stdout or "subinterpreters" in done.stdout  # since Python 3.12 it says so itself
    assert done.returncode == 0 and said, done.stdout + done.stderr


def test_no_broker_is_one_error_that_lists_the_places(tmp_path: Path) -> None:
    program = """
import callboard as cb
try:
    cb.connect("nobody")
except cb.NotFound as error:
    print(error.code, error)
"""
    environment = {"CALLBOARD_RUNTIME_DIR": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.startswith(f"{_abi.STATUS_NOT_FOUND} ")
    assert str(tmp_path) in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", [1, b"x", 2.5])
def test_a_stage_name_is_a_string(name: object) -> None:
    with pytest.raises(TypeError, match="name"):
        cb.connect(name)  # type: ignore[arg-type]


def test_a_workflow_prints_nothing_of_its_own(broker: Broker) -> None:
    """behaviour 315, 316: also from -c, with an argument that holds a newline"""
    program = """
import sys
import callboard as cb
with cb.connect() as stage:
    with stage.map("silent", shape=(3,), dtype="f4", init="zero") as m:
        pass
    stage.publish("silent", m.attribute.encode()[:0] or memoryview(bytearray(12)).cast("f"))
    print(stage.latest("silent").shape, repr(sys.argv[1]))
"""
    done = broker.python(program, "a\nb")
    assert (done.stdout, done.stderr, done.returncode) == ("(3,) 'a\\nb'\n", "", 0)


def test_a_workflow_without_numpy(broker: Broker) -> None:
    program = (
        WITHOUT_NUMPY
        + """
import array
import callboard as cb
with cb.connect() as stage:
    stage.publish("plain", array.array("d", [1.5, 2.5, 3.5]))
    view = stage.latest("plain")
    assert memoryview(view).readonly and memoryview(view).tolist() == [1.5, 2.5, 3.5]
    assert view[1] == 2.5 and list(view) == [1.5, 2.5, 3.5] and len(view) == 3
    try:
        view[0] = 1
    except TypeError:
        pass
    else:
        raise SystemExit("a read-only view was written")
    with stage.map("plain") as m:
        m.array[0] = 9.0
        m.view[1] = 8.0
    assert stage.latest("plain")[0] == 9.0
    stage.publish("scalar", array.array("i", [7]))
    assert int(stage.latest("scalar")) == 7 and stage.latest("scalar").item() == 7
    with stage.query_from_path_list(["/a"]) as q:
        assert len(memoryview(q.prims)) == 1
    for bad in ([1.0], 1.0, "x", None):
        try:
            stage.publish("plain", bad)
        except TypeError as error:
            assert "NumPy" in str(error) or bad is None or bad == "x", error
        else:
            raise SystemExit(f"{bad!r} was taken")
    try:
        view.numpy()
    except ImportError:
        print("done")
"""
    )
    done = broker.python(program)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
