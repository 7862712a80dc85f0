"""The worker processes of this process, given out by owner; those of a minute without a request ended. Any thread.

Each process has a pool of its own, also one that was forked (``forks.PerProcess``): it closes what it inherited. No
lock is held while a process starts or answers.
"""

from __future__ import annotations

import atexit
import itertools
import os
import select
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
from glassfs.interpreter import interpreter, is_frozen
from glassfs.sandbox.server import COMMAND, END, START, STATUS
from glassfs.settings import settings
from glassfs.terminal import printable

MOST_WORKERS = 4
"""Workers that live, and of which one owner may have more than one busy."""
MOST_OF_ALL = 16
"""Workers that live while further owners have one busy each."""

PASSED = ("HDF5_PLUGIN_PATH", "LD_LIBRARY_PATH", "PYTHONHOME")
"""Environment variables of this process that reach workers: where the user says that libraries and filters are."""
_MARK = "GLASSFS_IN_WORKER"
"""Set in the environment of servers, so that a program which is mistaken for an interpreter starts no further one."""
_EVIDENCE = {
    getattr(signal, name, None)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU")
}
"""Signals by which a worker ends because of what it reads. All others were sent by another process or the kernel."""


class SandboxWorker:
    """A worker, used by one thread at a time, for the user ``owner``. ``sandbox`` is the one that it serves."""

    def __init__(self, server: _Server, number: int, connection: socket.socket, sandbox: object) -> None:
        self.number = number
        self.connection = connection
        self.server = server
        self.is_busy = True
        self.used = time.monotonic()
        self.owner = work.derived().owner
        self.process = 0
        """Its process id, once it has greeted."""
        self.waits_since: float | None = None
        """When it began to wait for bytes of its container."""
        self.was_taken = False
        """Whether it was ended as its place was needed."""
        # A container that nothing refers to any more needs no worker: its end is seen at the closed socket.
        self.sandbox = weakref.ref(sandbox, lambda _: connection.close())

    @property
    def is_wanted(self) -> bool:
        return self.sandbox() is not None

    def cut(self) -> None:
        """End the connection. A thread that uses it closes it, as the descriptor may be given out again."""
        if self.is_busy:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.connection.close()


class _Server:
    """The process that forks workers for a library. Nothing waits for it but workers that have not greeted."""

    def __init__(self, library: str) -> None:
        if _MARK in os.environ:
            raise Unavailable(f"{sys.executable} was started as a Python interpreter, but is another program")
        python = interpreter()
        options, boot = ["-I"], "from glassfs.sandbox.server import main\nmain()"
        if not is_frozen():  # else its modules are inside, and the interpreter finds glassfs among its own packages
            paths = [path for path in sys.path if isinstance(path, str) and os.path.isabs(path)]
            options, boot = ["-s", "-S"], f"import sys\nsys.path[:] = {paths!a}\n{boot}"
        # Libraries of linear algebra start threads, which a process that forks must not have.
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", _MARK: "1"}
        for name in PASSED:
            # PyInstaller has programs find its own libraries, and keeps what the user had set.
            value = os.environ.get(f"{name}_ORIG" if is_frozen() and name == "LD_LIBRARY_PATH" else name)
            if value is not None:
                environment[name] = value
        try:
            self._control, its = socket.socketpair()
            self._errors, prints = socket.socketpair()
            prints.setblocking(False)
            with its, prints:
                self._process = subprocess.Popen(
                    [python, *options, "-c", boot, str(its.fileno()), f"glassfs.sandbox.{library}"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=prints.fileno(), cwd="/",
                    pass_fds=(its.fileno(),), start_new_session=True, env=environment,
                )
        except OSError as error:
            raise Unavailable(f"no worker process can be started with {python}: {error.strerror}") from error
        self._control.setblocking(False)
        self._errors.setblocking(False)
        self._printed = b""
        self.patience = settings.worker_first
        """Seconds that a worker may take to greet."""
        self.used = time.monotonic()

    def start(self, number: int, size: int, memory: int) -> socket.socket | None:
        """Start a worker for a container of ``size`` bytes; return the socket to it, None if the server has died.

        Raises Unavailable without descriptors.
        """
        try:
            mine, its = socket.socketpair()
        except OSError as error:
            raise Unavailable(f"no worker process can be started: {error.strerror}") from error
        with its:
            try:
                socket.send_fds(self._control, [COMMAND.pack(START, number, size, memory)], [its.fileno()])
            except OSError as error:
                mine.close()
                if isinstance(error, (BrokenPipeError, ConnectionResetError, BlockingIOError)):
                    return None
                raise Unavailable(f"no worker process can be started: {error.strerror}") from error
        # A server that is stopped must not stop its callers, so all sockets to it are asked without waiting.
        mine.setblocking(False)
        self.used = time.monotonic()
        return mine

    def end(self, number: int, is_awaited: bool = True) -> int | None:
        """End a worker; return its status as of waitpid(2), or None if that is unknown or not awaited."""
        with suppress(OSError):  # of a server that died, and its workers with it
            mine, its = socket.socketpair()
            with mine:
                with its:
                    socket.send_fds(self._control, [COMMAND.pack(END, number, 0, 0)], [its.fileno()])
                poll = select.poll()
                poll.register(mine, select.POLLIN)
                if is_awaited and poll.poll(settings.worker_end * 1000):
                    status: int = STATUS.unpack(mine.recv(STATUS.size).ljust(STATUS.size, b"\xff"))[0]
                    return None if status < 0 else status
        return None

    def why_ended(self) -> str:
        """Return why the server ended by itself: the last line that it printed, or its exit status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(settings.worker_end)
        with suppress(OSError):
            self._printed += self._errors.recv(64 << 10)
        lines = self._printed.decode("utf-8", "replace").strip().splitlines()
        return printable(lines[-1]) if lines else f"the process that starts workers ended ({self._process.returncode})"

    def close(self) -> None:
        """Kill the server, and with it all its workers."""
        self._control.close()
        self._errors.close()
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(settings.worker_end)


class Pool:
    """The workers of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._workers: list[SandboxWorker] = []
        self._servers: dict[str, _Server] = {}
        """By the names of libraries."""
        self._numbers = itertools.count(1)
        self._has_keeper = False

    def acquire(self, sandbox: object, size: int, library: str = "hdf5", memory: int = 0) -> SandboxWorker:
        """Return the worker of ``sandbox``, which may be one that has not greeted yet.

        An owner of whom no worker is busy waits for no other owner, unless very many have one. The caller serializes
        the requests of one sandbox. Raises Unavailable if no worker can be started.
        """
        owner = work.derived().owner
        with work.holding(self._changed):
            for worker in self._workers:
                if worker.sandbox() is sandbox:
                    worker.is_busy, worker.owner = True, owner
                    return worker
            while not work.patiently(lambda seconds: self._has_place(owner, seconds), settings.worker_source):
                pass
            worker = self._start(sandbox, size, library, memory)
            self._workers.append(worker)
            self._trim()
            if not self._has_keeper:
                with suppress(Unavailable):  # the next caller tries again
                    threads.start("sandboxes", self._keep)
                    self._has_keeper = True
            return worker

    def release(self, worker: SandboxWorker) -> None:
        """Note that a worker has answered."""
        with self._changed:
            worker.is_busy = False
            worker.used = worker.server.used = time.monotonic()
            if worker not in self._workers:
                worker.cut()
            self._trim()
            self._changed.notify_all()

    def discard(self, worker: SandboxWorker) -> int | None:
        """End a worker; return its status as of waitpid(2), or None if that is unknown."""
        with self._changed:
            worker.is_busy = False
            if worker not in self._workers:
                worker.cut()
                return None
            self._remove(worker)
        return worker.server.end(worker.number)

    def discard_server(self, server: _Server) -> None:
        """End a server of which a worker did not greet, with all its workers. The next request starts another one."""
        with self._changed:
            self._servers = {name: one for name, one in self._servers.items() if one is not server}
            for worker in [one for one in self._workers if one.server is server]:
                self._remove(worker)
        server.close()

    def close(self) -> None:
        """End all workers. The pool can still be used."""
        with self._changed:
            for worker in list(self._workers):
                self._remove(worker)
            while self._servers:
                self._servers.popitem()[1].close()

    def _has_place(self, owner: int, seconds: float) -> bool:
        """Return whether the owner may have one more worker, after waiting up to ``seconds`` for it if necessary."""
        # Slots are for owners: one who has no worker gets one also when others use many. Only if very many owners have
        # one each does a new one wait.
        busy = [worker for worker in self._workers if worker.is_busy]
        has_none = all(worker.owner != owner for worker in busy)
        if len(busy) < (MOST_OF_ALL if has_none else MOST_WORKERS):
            return True
        until = time.monotonic() - settings.worker_source
        for worker in busy:
            if worker.waits_since is not None and worker.waits_since <= until:
                worker.was_taken = True
                self._drop(worker)
                return True
        self._changed.wait(seconds)
        return False

    def _start(self, sandbox: object, size: int, library: str, memory: int) -> SandboxWorker:
        """Start a worker, and before that the library's server if there is none or it has died."""
        number = next(self._numbers)
        server = self._servers.get(library)
        connection = None if server is None else server.start(number, size, memory)
        if server is None or connection is None:
            if server is not None:
                server.close()
            server = self._servers[library] = _Server(library)
            connection = server.start(number, size, memory)
        if connection is None:
            raise Unavailable("no worker process can be started: the process that starts workers ended at once")
        return SandboxWorker(server, number, connection, sandbox)

    def _trim(self) -> None:
        """End idle workers, those that were not used for long first, while more than MOST_WORKERS live."""
        # A worker that is idle may be asked again soon, and forking another one takes longer. So it is ended only when
        # there are too many.
        idle = [worker for worker in self._workers if not worker.is_busy]
        idle.sort(key=lambda worker: (worker.is_wanted, worker.used), reverse=True)
        while idle and len(self._workers) > MOST_WORKERS:
            self._drop(idle.pop())

    def _drop(self, worker: SandboxWorker) -> None:
        self._remove(worker)
        worker.server.end(worker.number, is_awaited=False)

    def _remove(self, worker: SandboxWorker) -> None:
        self._workers.remove(worker)
        worker.cut()
        self._changed.notify_all()

    def _keep(self) -> None:
        """End what is idle, until nothing is left."""
        while True:
            time.sleep(settings.worker_check)
            with self._changed:
                idle_since = time.monotonic() - settings.worker_idle
                for worker in list(self._workers):
                    if not worker.is_busy and (worker.used < idle_since or not worker.is_wanted):
                        self._drop(worker)
                if not self._workers and all(server.used < idle_since for server in self._servers.values()):
                    self.close()
                    self._has_keeper = False
                    return


_pool = PerProcess(Pool)


def pool() -> Pool:
    """Return the pool of this process."""
    return _pool.get()


@atexit.register
def close() -> None:
    """End all worker processes of this process: one that is stopped would not notice that this process ends."""
    if _pool.made is not None:
        _pool.made.close()


def evidence(status: int | None) -> str:
    """Return in words how a worker ended by what it read, "" if by something else, by its status as of waitpid(2)."""
    if status is None:
        return ""
    if os.WIFEXITED(status):
        return "failed: it needs more memory than a worker may have" if os.WEXITSTATUS(status) else ""
    number = os.WTERMSIG(status)
    if number not in _EVIDENCE:
        return ""
    return "took too much processor time" if number == signal.SIGXCPU else f"crashed ({signal.Signals(number).name})"
