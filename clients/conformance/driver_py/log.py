"""The log callback of the Python driver."""

from __future__ import annotations

import threading
from urllib.parse import quote

import callboard as cb


class Log:
    """What the callback of this process got to hear."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.records: list[tuple[cb.Severity, int, str]] = []
        self.inside = 0
        self.overlapped = False

    def hear(self, severity: cb.Severity, time_ns: int, text: str) -> None:
        self.inside += 1
        self.overlapped |= self.inside > 1
        self.go.wait(20)
        self.inside -= 1
        self.records.append((severity, time_ns, text))

    def reset(self) -> None:
        self.go.set()
        cb.remove_log()
        self.records.clear()

    def do(self, verb: str, *args: str) -> str:
        if verb == "install":
            cb.install_log(self.hear, threshold=cb.Severity[args[0].upper()], channels=args[1] if len(args) > 1 else "")
        elif verb == "remove":
            cb.remove_log()
        elif verb == "flush":
            return f"flushed={str(cb.flush_log(float(args[0]))).lower()}"
        elif verb == "hold":
            self.go.clear()
        elif verb == "go":
            self.go.set()
        elif verb == "heard":  # since the last time
            said, self.records = self.records, []
            answer = f"count={len(said)} overlapped={str(self.overlapped).lower()}"
            for severity, time_ns, text in said[-1:]:
                answer += f" severity={int(severity)} time={time_ns} text={quote(text, safe='')}"
            return answer
        return ""
