"""Times in seconds: for how long something is waited for, valid, kept, or left alone. The one place for defaults.

Tests set the fields of ``settings``; nothing else does. Fields are named after what happens then, not after a module.
"""


class Settings:
    """The fields are in sections, one for each room, in the order of the rooms."""

    # Commands, the library and data sets

    # Duration of a task for a worker process; it begins no further container after four times that.
    task_target: float = 0.3
    scheduler_longest: float = 30  # timeout of a Dask scheduler, and time for it to have workers
    worker_end: float = 5  # time for a killed worker process to end; one that waits for a device may need longer
    executor_end: float = 1  # time for an executor to end after its processes have ended
    usage_wait: float = 0.1  # how long ``df`` waits for the first sum of sizes
    usage_valid: float = 10.0  # how long a sum of sizes is valid at least
    usage_valid_times: float = 20  # it is valid for this many times as long as it took, if that is more
    walk_longest: float = 60.0  # time for listing the folders of a joined table; the remaining ones are left out
    pass_longest: float = 600.0  # time for reading the containers of a joined table; the remaining ones are left out
    call_longest: float = 10.0  # timeout of one folder, or some hundred rows of one container, in a joined table
    table_valid: float = 1.0  # how long the files of a joined table are valid at least
    table_valid_times: float = 10  # they are valid for this many times as long as they took, if that is more
    table_longest_valid: float = 3600.0  # the longest that an incomplete table is valid
    rights_valid: float = 0.4  # how long rights to what a shared table shows are valid after they were checked
    # How long the library takes a container as unchanged after it was compared with its store.
    container_valid: float = 0.1

    # Work

    # A thread that waits for another one or for a server looks so often whether its work was canceled.
    cancel_check: float = 0.2

    # The mount

    watch: float = 0.2  # how often changes are looked for and sent to the kernel while a mount is used
    rest_after: float = 15.0  # time without a request after which a mount rests
    rest: float = 4.0  # how often a mount that rests drops what is no longer used, and compares sources
    trim_quiet: float = 1.5  # time without work after which free memory is returned to the system
    trim_busy: float = 1.0  # time of work after which it is returned all the same
    probe: float = 2.0  # how long a mount may take to say its status
    # How long an unmounted mount may stay in the system's table, and a mount point that was made for it.
    unmounting: float = 10.0
    log_again: float = 600.0  # time after which a warning or error is logged again
    metrics: float = 10.0  # how often counters are written to a file
    # How long a new mount waits for one that is about to end and has the same file of counters.
    metrics_claim: float = 3.0
    # Time after the start at which code is loaded that may be needed later: the first commands come before.
    loading: float = 1.0
    cached: float = 86_400.0  # timeout in the kernel of what cannot change, or of whose changes the kernel is notified
    cached_unwatched: float = 0.5  # that of names in folders that are not watched, and of their attributes
    settled: float = 2.0  # age of a folder's mtime after which the next change is sure to change it

    # Engines: the kernel's requests and notifications

    patience: float = 0.4  # how long names may wait for their directory before all names are made stale
    slow_check: float = 0.002  # how often requests are looked for that hold a directory
    # Time between attempts to have replaced versions forgotten; it doubles while they have no effect.
    prune_least: float = 0.2
    prune_longest: float = 2.0  # the longest such time
    slow_read: float = 0.001  # after a read that took longer, the next one is expected to be slow as well
    supervision: float = 0.001  # how often it is checked whether a thread waits for requests, while some are answered
    supervised: float = 0.05  # time without anything to do after which nothing is checked until the next request
    resumption: float = 0.02  # how often it is checked whether deferred requests may begin
    # Time after which an interrupted request is answered. Less would break requests that are only slow.
    interruption: float = 2.0
    repetition: float = 2.0  # time in which a thread that was interrupted may ask again for what is being done
    # How long a thread keeps the interpreter while many compute: each waits for all others.
    crowded_switch: float = 0.0002

    # The tree

    # For so long after its use a listing is not evicted: a directory is listed in many calls.
    listing_in_use: float = 2.0
    listing_idle: float = 20.0  # listings that were not used for so long are dropped
    # Processor time that finding the size of a file may take, beside ``sizing_most`` for each GiB of its
    # container.
    sizing: float = 10.0
    sizing_most: float = 600.0

    # Formats and their worker processes

    # A worker may take so long for its next message, which is either an answer or a read of the container.
    worker_silent: float = 20.0
    worker_processor: int = 6  # processor time of one request to a worker
    worker_fill: int = 128 << 20  # a worker that may take more memory has a second more for each so many bytes
    # After so long a worker that waits for its source is ended if its place is needed. Its request begins again.
    worker_source: float = 0.5
    worker_idle: float = 60.0  # after so long without a request a worker is ended, and its server after the last worker
    worker_check: float = 2.0  # how often idle workers are looked for, while there are workers
    worker_first: float = 30.0  # a server may take so long to import its library and fork a worker

    # The cache of blocks

    # Time without any release after which the first waiting request for memory is granted: a holder may be
    # waiting for it.
    memory: float = 10.0
    nested_memory: float = 1.0  # the same for nested requests, whose threads hold memory themselves
    eviction_retry: float = 0.02  # how often the first waiting request tries to evict what was kept for a reader
    # What takes long to make is kept for its reader until it was not read for so long. So readers of more blocks
    # than memory has room for finish one after another; else each read would make its block again.
    kept_gap: float = 0.05
    kept: float = 1.0  # it is kept for at most so long in all
    # After this time without a read no more than 4 MiB stay cached: the kernel has those that were read.
    cache_idle: float = 20.0
    spool_kept: float = 60.0  # a spool file is dropped after this time without a read

    # Sources

    # Interval between two checks whether the store's root was replaced, made when something below it is used.
    root_check: float = 0.1
    disk_lock: float = 0.25  # how long a call waits for others that use the file of a disk cache
    # How long callers wait for a search in the catalogue, on a disk that may hang; one that failed is left alone.
    catalogue_wait: float = 2.0
    # After so long, fewer are stored with the next call: workers of a library end without closing anything.
    findings_flush: float = 2.0
    watching_pause: float = 0.02  # between two batches of events about watched folders
    watching_refused: float = 5.0  # how long a watch that failed is not tried again

    # Servers

    server_first_pause: float = 0.1  # pause after the first attempt; each later one is twice as long
    server_replace: float = 0.05  # time until a thread that hangs is replaced by another one
    server_release: float = 0.05  # time that obstore's threads get to release the last answers when the loop ends
    server_join: float = 2.0  # how long the end of the process waits for the thread of the requests
    listing_news: float = 1.0  # how long a look-up waits for news of a listing that is much too old
    # Connections idle for so long are replaced, as a router may have dropped them silently.
    connection_idle: float = 30.0
    hub_pin: float = 5.0  # for how long at most a branch on Hugging Face is taken to point to the same commit
    # A listing that takes longer is repeated page by page where possible: obstore collects names without a limit.
    # On other services it fails after the part of the timeout that is allowed for silence.
    long_listing: float = 2.0
    # What a waiting reader gives a server beyond its timeout, in which the server raises the better error.
    server_grace: float = 0.5
    # After a read timed out, other reads of the object fail at once for so long: the kernel repeats it
    # immediately.
    server_fail_fast: float = 0.5
    disk_finish: float = 2.0  # how long the end of a command waits for the disk cache


settings = Settings()
