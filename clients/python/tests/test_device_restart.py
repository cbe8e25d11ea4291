"""The broker goes while work is queued on a GPU: what it may write to stays open (rules B3, B4)."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import callboard as cb
import numpy as np
import pytest
from alone import body, left, run_alone
from conftest import Broker
from cuda import Driver
from test_restart import taken_up


@body
def queued_work_outlives_the_broker(w: SimpleNamespace) -> None:
    how, hold = os.environ["HOW"], Path(os.environ["CUDAEMU_HOLD"])
    driver = Driver()
    stream = driver.stream()
    w.stage.declare(w.name, dtype="u1", row_shape=3, device="cuda:0").wait()
    options = {"group_rows": 1} if how == "groups" else {}
    session = w.stage.map_attribute(w.query, w.name, ordinal=1, **options)
    group = session.fetch_map_next()
    view = group.array(0)
    pointer, size = view.pointer, view.nbytes
    del view
    hold.touch()  # nothing that is queued runs
    driver.fill(pointer, 7, size, stream)
    sync = cb.CudaSync(stream)
    op = session.unmap_attribute(cuda_sync=sync) if how == "in flight" else None
    os.kill(int(os.environ["BROKER"]), signal.SIGKILL)
    taken_up(w.stage)
    with pytest.raises(cb.BrokerRestarted):
        if op is not None:
            op.wait()
        elif how == "groups":
            group.unmap(cuda_sync=sync).wait()
        elif how == "with":
            with session:
                session.cuda_sync = sync
        else:
            session.unmap_attribute(cuda_sync=sync).wait()
    session.abort()  # where it is open still
    del group, session, op
    w.stage.write_attribute(w.query, "host", np.zeros(2, "u1"), ordinal=1).wait()  # and closes what nothing uses
    hold.unlink()
    driver.synchronize(stream)  # fails where the memory went
    w.stage.map_attribute(w.query, w.name, ordinal=2).abort()
    left.append(stream)  # the import stays to the end of the process


@pytest.mark.parametrize("how", ["unmap", "with", "groups", "in flight"])
def test_queued_work_outlives_the_broker(how: str, tmp_path: Path, machine: dict[str, str], name: str) -> None:
    """An unmap that is refused by a restart, or ends so, does not close the memory under what its stream does (B3)."""
    broker = Broker(tmp_path, "--gpu", "required", "--gpu-memory", "64MiB", environment=machine)
    victim = broker.process

    def again() -> None:
        victim.wait()
        if not over:
            broker.start()

    over: list[bool] = []
    restart = threading.Thread(target=again)
    restart.start()
    try:
        setting = {"HOW": how, "BROKER": str(victim.pid), "CUDAEMU_HOLD": str(tmp_path / "hold")}
        run_alone(broker, queued_work_outlives_the_broker, name, **setting)
    finally:
        over.append(True)
        victim.kill()
        restart.join()
        broker.stop()
