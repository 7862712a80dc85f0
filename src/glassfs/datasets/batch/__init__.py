"""Work on many containers: finding them, spreading the work over processes or a cluster, and reporting.

``found`` walks through what the user named, ``workers`` are the executors, ``mapping`` maps work over them, ``report``
is a file with a line per container, and ``run`` combines these for a command and its shard. One thread calls; workers
get names and open the containers themselves.
"""
