"""Run tasks in worker processes of this machine or of a Dask cluster.

One thread calls. A task whose worker ended raises one of ``lost`` and may be submitted again, as every task may run
twice. Worker processes end with their parent, however that ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from glassfs.datasets.batch.contract import BatchError
from glassfs.settings import settings


def cores() -> int:
    """Return the number of cores that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers(AbstractContextManager["Workers"]):
    """An executor of ``width`` tasks at a time. ``lost`` are the exceptions of tasks whose worker ended.

    A task that has ended ``tries`` workers is at fault itself. ``name`` is the address of remote workers, whose paths
    must be absolute.
    """

    name = ""
    width: int
    lost: tuple[type[BaseException], ...]
    tries: int
    is_remote: bool

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(is_over=kind is None)

    @abstractmethod
    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        """Run a task. Raises one of ``lost`` if there are no workers, until ``renew``."""

    @abstractmethod
    def renew(self) -> None:
        """Restore the number of workers after some were lost; called when none is busy."""

    def demand_alive(self) -> None:
        """Raise BatchError if no worker can do anything."""

    @abstractmethod
    def stop(self, is_over: bool) -> None:
        """End what was started here: at once unless ``is_over``, that is, the work is complete."""


class Processes(Workers):
    """Processes of this machine, spawned instead of forked.

    After an early ``stop``, threads may be left that wait forever: the process must end with ``os._exit``.
    """

    lost = (BrokenProcessPool,)
    tries = 3
    is_remote = False

    def __init__(self, width: int) -> None:
        self.width = width
        self._before = set(multiprocessing.active_children())
        self._executor = self._started()

    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        with _signals_blocked():
            return self._executor.submit(task, *words)

    def renew(self) -> None:
        self.stop(is_over=False)
        self._executor = self._started()

    def demand_alive(self) -> None:
        try:
            # If even this fails, no container is to blame: the machine, or the installation, cannot run workers.
            self.submit(os.getpid).result()
        except self.lost:
            raise BatchError("worker processes end right after they start") from None

    def stop(self, is_over: bool) -> None:
        if is_over:
            self._executor.shutdown()
            return
        # All children that were started since: the executor has no public list of its processes.
        killed = set(multiprocessing.active_children()) - self._before
        for process in killed:
            process.kill()
        for process in killed:
            process.join(settings.worker_end)
        # A thread of the executor waits forever if a killed worker wrote half of a result. Usually it does not, and
        # the shutdown releases its locks within a moment.
        end = partial(self._executor.shutdown, wait=True, cancel_futures=True)
        ending = threading.Thread(target=end, name="end of workers", daemon=True)
        ending.start()
        ending.join(settings.executor_end)

    def _started(self) -> Executor:
        # A forked process would have the locks of threads that it does not have.
        context = multiprocessing.get_context("spawn")
        with _signals_blocked():
            return ProcessPoolExecutor(self.width, context, initializer=_begin_worker)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C and a closed terminal: the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """End this process when its parent ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        # The sentinel becomes readable when the parent ends, also by SIGKILL, which nothing else would tell a worker.
        threading.Thread(target=_end_with, args=(parent.sentinel,), name="parent", daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Cluster(Workers):
    """The workers of the Dask scheduler at ``address``. Raises BatchError if it cannot be used."""

    tries = 1  # the scheduler itself has tried several workers
    is_remote = True

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise BatchError("--scheduler needs Dask: install glassfs[dask]") from None
        self.name = address
        self.lost = (distributed.KilledWorker,)
        # Their messages are for the cluster's administrator; the user gets one sentence.
        for logger in ["distributed", "tornado", "asyncio", *logging.root.manager.loggerDict]:
            if logger.partition(".")[0] in ("distributed", "tornado", "asyncio"):
                logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
        try:
            made: Any = distributed.Client
            self._client = made(address, timeout=settings.scheduler_longest, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise BatchError(f"the scheduler does not answer: {_first_line(error)}", address) from None
        try:
            self._client.wait_for_workers(1, timeout=settings.scheduler_longest)
            self._executor = self._client.get_executor(pure=False)
            self.width = max(1, sum(self._client.nthreads().values()))
        except BaseException as error:
            self._client.close(timeout=1)
            if not isinstance(error, OSError):
                raise
            seconds = settings.scheduler_longest
            raise BatchError(f"the scheduler had no workers for {seconds:g} seconds", address) from None

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
            self._client.close(timeout=settings.scheduler_longest if is_over else 2)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
