"""Times in seconds: for how long something is waited for, valid, kept, or left alone. The one place for defaults.

Tests set the fields of ``settings``; nothing else does. Fields are named after what happens then, not after a module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Settings:
    """The fields are in sections, one for each room, in the order of the rooms."""

    # Commands, the library and data sets

    task_target: float = 0.3
    """Duration of a task for a worker process; it begins no further container after four times that."""
    scheduler_longest: float = 30
    """Timeout of a Dask scheduler, and time for it to have workers."""
    worker_end: float = 5
    """Time for a killed worker process to end; one that waits for a device may need longer."""
    executor_end: float = 1
    """Time for an executor to end after its processes have ended."""
    usage_wait: float = 0.1
    """How long ``df`` waits for the first sum of sizes."""
    usage_valid: float = 10.0
    """How long a sum of sizes is valid at least."""
    usage_valid_times: float = 20
    """It is valid for this many times as long as it took, if that is more."""
    page_wait: float = 1.0
    """How long ``glassfs mount`` waits for its start page: for a folder, it takes a pass over all containers."""
    progress_end: float = 1.0
    """How long the end of a progress bar waits for the thread that sums up sizes."""
    walk_longest: float = 60.0
    """Time for listing the folders of a joined table; the remaining ones are left out."""
    heads_longest: float = 0.5
    """Time for reading first bytes of files whose names say nothing, before the tables of a folder are listed."""
    pass_longest: float = 600.0
    """Time for reading the containers of a joined table; the remaining ones are left out."""
    call_longest: float = 10.0
    """Timeout of one folder, or some hundred rows of one container, in a joined table."""
    table_valid: float = 1.0
    """How long the files of a joined table are valid at least."""
    table_valid_times: float = 10
    """They are valid for this many times as long as they took, if that is more."""
    table_longest_valid: float = 3600.0
    """The longest that an incomplete table is valid."""
    rights_valid: float = 0.4
    """How long rights to what a shared table shows are valid after they were checked."""
    container_valid: float = 0.1
    """How long the library takes a container as unchanged after it was compared with its store."""

    # The mount

    # Engines: the kernel's requests and notifications

    # The tree

    # Data and views

    # Formats and their worker processes

    # The cache of blocks

    # Sources

    # Servers


settings = Settings()
