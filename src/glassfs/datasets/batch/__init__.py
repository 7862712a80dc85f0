"""Work on many containers: finding them, spreading the work over processes or a cluster, and reporting.

``found`` walks through what the user named, ``mapping`` maps work over executors, and ``run`` combines these for a
command, its shard and its report, a file with a line per container. One thread calls; workers get names and open the
containers themselves.
"""
