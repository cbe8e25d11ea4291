"""How a process of the demo talks with the program that started it.

Up: one JSON object per line on standard output. `{"ready": true}` when it may start, `{"progress": n}` now and then,
one `{"result": {...}}`, or `{"failure": "..."}` when something differs.

Down: a line, `go`, on standard input, when everybody is ready. The end of standard input means that the program above
has ended, in order or not; so this process ends as well. No process id is watched and no signal is needed.
"""

import json
import os
import sys
import threading
import time

GRACE_SECONDS = 3.0  # from the end of standard input until a process that hangs is ended


class Child:
    """The lower end of both pipes."""

    def __init__(self):
        self._go = threading.Event()
        self._stopped = threading.Event()
        self._output = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        # Not through sys.stdin: its lock, held by this thread, would stop the interpreter from ending.
        while os.read(0, 64):
            self._go.set()
        self._stopped.set()
        self._go.set()
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    @property
    def stopped(self):
        """True when the program above has ended, or wants this one to."""
        return self._stopped.is_set()

    def sleep(self, seconds):
        """Sleeps, unless stopped meanwhile; then it returns at once."""
        if seconds > 0:
            self._stopped.wait(seconds)

    def ready(self):
        """Says so, and waits for the others."""
        self._say(ready=True)
        self._go.wait()

    def progress(self, count):
        self._say(progress=count)

    def result(self, **fields):
        self._say(result=fields)

    def failure(self, text):
        """Something differs: says what, and ends this process."""
        self._say(failure=text)
        sys.exit(1)

    def _say(self, **fields):
        with self._output:
            try:
                print(json.dumps(fields), flush=True)
            except BrokenPipeError:
                os._exit(1)
