"""The worker processes of this process: at most MOST_WORKERS, those of a minute without a request ended. Any thread.

Each process has a pool of its own, also one that was forked (``forks.PerProcess``): it closes what it inherited.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress

from glassfs import threads, work
from glassfs.errors import Unavailable
from glassfs.forks import PerProcess
from glassfs.sandbox import wire

MOST_WORKERS = 4
IDLE_SECONDS = 60.0
KEEPER_SECONDS = 2.0
"""How often idle workers are looked for, while there are workers."""
SERVER_SECONDS = 30.0
"""How long the server may take to import its library, and to fork."""

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from glassfs.sandbox.server import main
main()
"""


class Worker:
    """A worker, used by one thread at a time. ``owner`` is the sandbox that it serves."""

    def __init__(self, server: _Server, process: int, connection: socket.socket, owner: object) -> None:
        self.process = process
        self.connection = connection
        self.server = server
        self.is_busy = True
        self.used = time.monotonic()
        # A container that nothing refers to any more needs no worker: its end is seen at the closed socket.
        self.owner = weakref.ref(owner, lambda _: connection.close())

    @property
    def is_wanted(self) -> bool:
        return self.owner() is not None


class _Server:
    """The process that forks workers with one library."""

    def __init__(self, library: str) -> None:
        mine, its = socket.socketpair()
        paths = [path for path in sys.path if os.path.isabs(path)]
        try:
            # libraries of linear algebra start threads, which a process that forks must not have
            environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            with its:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOT, str(its.fileno()), library, json.dumps(paths)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                    pass_fds=(its.fileno(),), start_new_session=True, env=environment,
                )
        except OSError as error:
            mine.close()
            raise Unavailable(f"no worker process can be started: {error.strerror}") from error
        mine.settimeout(SERVER_SECONDS)
        self._control = mine
        self.used = time.monotonic()

    def start(self, size: int) -> tuple[int, socket.socket]:
        """Start a worker for a container of ``size`` bytes; return its process id and the socket to it."""
        mine, its = socket.socketpair()
        with its:
            try:
                socket.send_fds(self._control, [wire.COMMAND.pack(wire.START, size)], [its.fileno()])
                process = self._reply()
            except OSError:
                process = -1
        if process <= 0:
            mine.close()
            raise Unavailable("no worker process can be started")
        mine.setblocking(False)
        self.used = time.monotonic()
        return process, mine

    def end(self, process: int) -> int | None:
        """End a worker; return its status as of waitpid(2), or None if that is unknown."""
        try:
            self._control.sendall(wire.COMMAND.pack(wire.END, process))
            status = self._reply()
        except OSError:
            return None
        return None if status < 0 else status

    def drop(self, process: int) -> None:
        """End a worker without waiting for that."""
        with suppress(OSError):  # of a server that died, and its workers with it
            self._control.sendall(wire.COMMAND.pack(wire.DROP, process))

    def close(self) -> None:
        """End the server, and with it all its workers."""
        self._control.close()
        with suppress(OSError):
            self._process.kill()
            self._process.wait()

    def _reply(self) -> int:
        reply = self._control.recv(wire.REPLY.size)
        if len(reply) != wire.REPLY.size:
            raise ConnectionResetError
        number: int = wire.REPLY.unpack(reply)[0]
        return number


class Pool:
    """The workers of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._workers: list[Worker] = []
        self._servers: dict[str, _Server] = {}
        self._has_keeper = False
        self._idle_seconds = IDLE_SECONDS

    @property
    def processes(self) -> list[int]:
        """The process ids of the live workers."""
        with self._changed:
            return [worker.process for worker in self._workers]

    def acquire(self, owner: object, library: str, size: int) -> tuple[Worker, bool]:
        """Return the worker of ``owner``, and whether it was just started. Waits while all others are busy.

        The caller serializes requests of one owner. Raises Unavailable if no worker can be started.
        """
        def is_possible(seconds: float) -> bool:
            if len(self._workers) < MOST_WORKERS or any(not worker.is_busy for worker in self._workers):
                return True
            self._changed.wait(seconds)
            return False

        with work.holding(self._changed):
            for worker in self._workers:
                if worker.owner() is owner:
                    worker.is_busy = True
                    return worker, False
            work.patiently(is_possible, thing=self)
            if len(self._workers) >= MOST_WORKERS:
                idle = [worker for worker in self._workers if not worker.is_busy]
                self._drop(min(idle, key=lambda worker: (worker.is_wanted, worker.used)))
            worker = self._start(owner, library, size)
            self._workers.append(worker)
            if not self._has_keeper:
                threads.start("sandboxes", self._keep)
                self._has_keeper = True
            return worker, True

    def release(self, worker: Worker) -> None:
        """Note that a worker has answered."""
        with self._changed:
            worker.is_busy = False
            worker.used = worker.server.used = time.monotonic()
            self._changed.notify()

    def discard(self, worker: Worker) -> int | None:
        """End a worker; return its status as of waitpid(2), or None if that is unknown."""
        with self._changed:
            if worker not in self._workers:
                return None
            self._remove(worker)
            return worker.server.end(worker.process)

    def close(self) -> None:
        """End all workers. The pool can still be used."""
        with self._changed:
            self._close()

    def _close(self) -> None:
        for worker in self._workers:
            worker.connection.close()
        self._workers.clear()
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        self._changed.notify_all()

    def _start(self, owner: object, library: str, size: int) -> Worker:
        """Start a worker, and before that the server if there is none or it has died."""
        server = self._servers.get(library)
        if server is not None:
            with suppress(Unavailable):
                return Worker(server, *server.start(size), owner)
            server.close()
        server = self._servers[library] = _Server(library)
        return Worker(server, *server.start(size), owner)

    def _drop(self, worker: Worker) -> None:
        self._remove(worker)
        worker.server.drop(worker.process)

    def _remove(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        self._changed.notify()

    def _keep(self) -> None:
        """End what is idle, until nothing is left."""
        while True:
            time.sleep(KEEPER_SECONDS)
            with self._changed:
                idle_since = time.monotonic() - self._idle_seconds
                for worker in list(self._workers):
                    if not worker.is_busy and (worker.used < idle_since or not worker.is_wanted):
                        self._drop(worker)
                if not self._workers and all(server.used < idle_since for server in self._servers.values()):
                    self._close()
                    self._has_keeper = False
                    return


_pool = PerProcess(Pool)


def pool() -> Pool:
    """Return the pool of this process."""
    return _pool.get()


def was_killed(status: int | None) -> bool:
    """Return whether another process killed a worker, or its server, by its status as of waitpid(2)."""
    return status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


def how_ended(status: int | None) -> str:
    """Return in words how a worker ended, from its status as of waitpid(2)."""
    if was_killed(status):
        return "was killed"
    if status is None or not os.WIFSIGNALED(status):
        return "ended"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return "took too much processor time"
    return f"crashed ({signal.Signals(number).name})"
