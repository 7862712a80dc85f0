"""Who does the work: processes of this machine, or the workers of a Dask cluster, both as an executor.

One thread asks. What ends a worker is ``LOST``: the task may be given to another one, as whoever runs it does nothing
that could not be done twice. Worker processes end with the one that started them, however that ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from glassfs.batch.contract import BatchError

PATIENCE = 30
"""Seconds for which a scheduler may be silent, and in which it has to have workers."""
KILLED = 5
"""Seconds that a process which was killed may take to be gone, which one takes that waits for a device."""
ENDED = 1
"""Seconds in which an executor has ended whose processes are gone, if it ever does."""


def cores() -> int:
    """Those that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers(ABC):
    """An executor of ``width`` tasks at a time. ``lost`` is what a task raises whose worker has ended.

    ``name`` is the address of those who are elsewhere. ``tries`` is how often a task ends its worker before that is its
    own fault; ``is_elsewhere`` tells whether paths have to be those of any process.
    """

    name = ""
    width: int
    lost: tuple[type[BaseException], ...]
    tries: int
    is_elsewhere: bool

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(is_over=kind is None)

    @abstractmethod
    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        """Has a task run. Raises one of ``lost`` where there are no workers any more, before ``renew``."""

    @abstractmethod
    def renew(self) -> None:
        """After workers were lost, and when none of them has anything to do: there are as many as before again."""

    def demand_alive(self) -> None:  # noqa: B027
        """Raises BatchError where no worker can do anything."""

    @abstractmethod
    def stop(self, is_over: bool) -> None:
        """Ends what was started for this; at once, unless the work ``is_over``."""


class Processes(Workers):
    """As many processes of this machine, each of which starts anew instead of being forked off.

    Where work was ended early, threads may be left that wait for something that never comes: the process is then to be
    left by ``os._exit``.
    """

    lost = (BrokenProcessPool,)
    tries = 3
    is_elsewhere = False

    def __init__(self, width: int) -> None:
        self.width = width
        self._before = set(multiprocessing.active_children())
        self._executor = self._started()

    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        with _unheard():
            return self._executor.submit(task, *words)

    def renew(self) -> None:
        self.stop(is_over=False)
        self._executor = self._started()

    def demand_alive(self) -> None:
        try:
            self.submit(os.getpid).result()
        except self.lost:
            raise BatchError("the worker processes end as soon as they have begun") from None

    def stop(self, is_over: bool) -> None:
        if not is_over:
            killed = set(multiprocessing.active_children()) - self._before
            for process in killed:
                process.kill()
            for process in killed:
                process.join(KILLED)
        end = partial(self._executor.shutdown, wait=True, cancel_futures=True)
        if is_over:
            end()
            return
        # A thread of the executor waits without end for a result of which a worker that was killed has written half.
        # Mostly none has, and the locks are given back in order if it is waited for a moment.
        ending = threading.Thread(target=end, name="end of workers", daemon=True)
        ending.start()
        ending.join(ENDED)

    def _started(self) -> Executor:
        context = multiprocessing.get_context("spawn")
        with _unheard():
            return ProcessPoolExecutor(self.width, context, initializer=_begin_worker)


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes that are started in here do not hear of Ctrl-C and closed terminals: who started them ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """The process ends with the one that started it, however that does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), name="parent", daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Cluster(Workers):
    """The workers of the Dask scheduler at ``address``. Raises BatchError where that cannot be had."""

    tries = 1  # the scheduler has given it to several workers before it gives up
    is_elsewhere = True

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise BatchError("--scheduler needs Dask, which 'pip install glassfs[dask]' installs") from None
        self.name = address
        self.lost = (distributed.KilledWorker,)
        _silence("distributed", "tornado", "asyncio")
        try:
            made: Any = distributed.Client
            self._client = made(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise BatchError(f"the scheduler does not answer: {_first_line(error)}", address) from None
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE)
            self._executor = self._client.get_executor(pure=False)
            self.width = max(1, sum(self._client.nthreads().values()))
        except (OSError, TimeoutError):
            self._client.close(timeout=1)
            raise BatchError(f"the scheduler has no workers, {PATIENCE} seconds long", address) from None
        except BaseException:
            self._client.close(timeout=1)
            raise

    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        try:
            future: Future[Any] = self._executor.submit(task, *words)
        except Exception as error:
            raise BatchError(f"the scheduler is gone: {_first_line(error)}", self.name) from None
        return future

    def renew(self) -> None:
        self.width = max(1, sum(self._client.nthreads().values()))

    def stop(self, is_over: bool) -> None:
        with suppress(Exception):
            self._executor.shutdown(wait=False)
        with suppress(Exception):
            self._client.close(timeout=PATIENCE if is_over else 2)


def _silence(*names: str) -> None:
    """What these log on standard error is for those who run the cluster; who asks it gets one sentence."""
    for name in [*names, *logging.root.manager.loggerDict]:
        if name.partition(".")[0] in names:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
