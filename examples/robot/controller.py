"""The controller of a robot: a command for each tick that lidar.cpp seals, at the tick's own ordinal.

    controller.py [port]        0, the default: any; until Ctrl-C

One event loop waits for ticks, for a timer, and for an operator's lines on a socket of this machine: "stop" and "go".
What the controller knows is on the board: killed and started anew, it goes on with the tick after its last command.
"""

import asyncio
import signal
import sys
import time

import callboard as cb
import numpy as np

SENSORS = ["lidar/points", "lidar/valid", "imu/turn"]


class Controller:
    """command: heading in rad, distance of the nearest valid point in m, speed in m/s."""

    def __init__(self, stage: cb.Stage) -> None:
        self.stage = stage
        self.root = stage.query_from_path_list(["/"])
        self.stopped = False
        self.lost = 0
        self.latencies_ms: list[float] = []
        stage.declare("command", dtype="float64", row_shape=3).wait()
        self.resume()

    def resume(self) -> None:
        """Takes up what was sealed, by this process or by one before."""
        self.tick = self.stage.write_floor("command")
        self.heading, self.nearest, self.speed = np.array(self.stage.latest("command")) if self.tick else np.zeros(3)

    async def follow(self) -> None:
        async for snapshot in self.stage.watch("imu/turn"):
            newest = snapshot.floor("imu/turn")
            while self.tick < newest:  # more than one where this loop was slow, or not there
                try:
                    self.command(self.tick + 1, newest)
                except cb.OutOfRange:  # older than what the driver keeps
                    self.lost += newest - self.tick - 1
                    self.tick = newest - 1
                except cb.BrokerRestarted:
                    self.resume()
                await asyncio.sleep(0)

    def command(self, tick: int, newest: int) -> None:
        """Reads the sensors as they were at a tick, in place, and seals the command for it."""
        with self.stage.read_attributes(self.root, SENSORS, at=tick) as read:
            points, valid, turn = read
            seen = points.array(0)[0][valid.array(0)[0]]
            nearest = float(np.linalg.norm(seen, axis=1).min(initial=np.inf))
            heading = self.heading + float(turn.array(0)[0])
        speed = 0.0 if self.stopped else min(1.0, max(0.0, nearest - 0.5))
        self.stage.write_attribute(self.root, "command", np.array([[heading, nearest, speed]]), ordinal=tick).wait()
        self.stage.advance_write_floor(tick, scope=cb.Scope.INCLUDE, attributes="command").wait()
        if tick == newest:
            self.latencies_ms.append((time.time_ns() - turn.stamp_ns) / 1e6)
        self.tick, self.heading, self.nearest, self.speed = tick, heading, nearest, speed

    async def report(self) -> None:
        """Once a second."""
        while True:
            last = self.tick
            await asyncio.sleep(1)
            if self.tick == last:
                say(f"no tick for a second: is the driver running? the last one is {last}")
            elif self.latencies_ms:
                ms = np.quantile(self.latencies_ms, [0.5, 1])
                say(f"{self.state()}; from scan to command {ms[0]:.2f} ms, at most {ms[1]:.2f}")
                self.latencies_ms.clear()

    def state(self) -> str:
        return f"tick {self.tick}: nearest {self.nearest:.2f} m, speed {self.speed:.2f} m/s, {self.lost} lost"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An operator."""
        async for line in reader:
            order = line.decode(errors="replace").strip()
            if order in ("stop", "go"):
                self.stopped = order == "stop"
                writer.write(f"{self.state()}\n".encode())
            else:
                writer.write(f'"{order}": expected stop or go\n'.encode())
        writer.close()


def say(line: str) -> None:
    print(f"controller: {line}", flush=True)


async def main(port: int) -> None:
    with cb.connect() as stage:
        controller = Controller(stage)
        server = await asyncio.start_server(controller.serve, "127.0.0.1", port)
        say(f"goes on after tick {controller.tick}; operators: port {server.sockets[0].getsockname()[1]}")
        node = asyncio.gather(controller.follow(), controller.report())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, node.cancel)
        try:
            await node
        except asyncio.CancelledError:
            say(f"the last command is for tick {controller.tick}")
        finally:
            server.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    except cb.CallboardError as error:
        sys.exit(f"controller: {error}")
