"""Fork: the child is not the client (rule I4)."""

from __future__ import annotations

import os
import signal

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, read_line, seal


def in_child(body: object) -> str:
    """Runs body in a forked child; "" or what went wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            body()  # type: ignore[operator]
        except BaseException as error:
            text = repr(error)
        finally:
            os.write(writer, text.encode() or b"")
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        try:
            text = read_line(pipe, timeout=60)  # its end closes the pipe
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            _, status = os.waitpid(child, 0)
    return text or (f"the child ended with status {status}" if status else "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_is_refused_and_its_parent_unaffected(broker: Broker, name: str) -> None:
    with broker.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
        stage.write_attribute(query, name, np.arange(2.0), ordinal=1).wait()
        seal(stage, 1, name)
        read = stage.read_attributes(query, name)
        group = read.fetch_read_next()
        array = group.array(0)
        snapshot = stage.snapshot()
        session = stage.map_attribute(query, name, ordinal=2)
        session.array[:] = 5
        op = stage.advance_write_floor(1, scope=cb.Scope.INCLUDE, attributes=[name])

        def body() -> None:
            for call in (
                lambda: stage.publish(name, 1.0),
                lambda: stage.read_attributes(query, name),
                lambda: stage.latest(name),
                lambda: stage.snapshot(),
                lambda: stage.follow(timeout=1),
                lambda: stage.write_floor(name),
                lambda: session.unmap_attribute(),
                lambda: snapshot.read(query, name),
                lambda: stage.query_from_path_list(["/c"]),
            ):
                with pytest.raises(cb.SessionEnded, match="parent"):
                    call()
            group.release()  # all of these store nothing
            read.release()
            snapshot.release()
            session.abort()
            query.release()
            op.release()
            stage.close()
            with broker.connect() as own:  # the child may connect anew
                own.publish(name + "/child", 7.0)

        held = stage.info()["pinned_bytes"]
        assert in_child(body) == ""
        assert stage.info()["pinned_bytes"] == held
        assert float(stage.latest(name + "/child")) == 7.0
        for ordinal in range(3, 20):  # the parent's pins hold
            stage.publish(name + "/other", float(ordinal))
        assert array.tolist() == [0, 1]
        session.unmap_attribute().wait()
        seal(stage, 2, name)
        assert snapshot.epoch < stage.epoch
        with snapshot.read(query, name) as again:
            for one in again:
                assert one.array(0).tolist() == [0, 1]
        snapshot.release()
        group.release()
        read.release()
        op.wait()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_ends_by_itself_says_nothing(broker: Broker, name: str) -> None:
    """Its interpreter ends and drops everything it inherited: no warning, and the parent goes on."""
    program = f"""
import os
import callboard as cb
import numpy as np
stage = cb.connect()
stage.publish({name!r}, np.arange(1000.0))
view = stage.latest({name!r})
query = stage.query_from_path_list(["/a"])
snapshot = stage.snapshot()
m = stage.map({name!r})
child = os.fork()
if child == 0:
    raise SystemExit(0)
_, status = os.waitpid(child, 0)
assert status == 0
with m:
    m.array[:] = 1
for n in range(20):
    stage.publish({name!r}, np.full(1000, float(n)))
assert (np.asarray(view) == np.arange(1000.0)).all()
snapshot.release(); query.release(); stage.close()
print("done")
"""
    done = broker.python(program)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
