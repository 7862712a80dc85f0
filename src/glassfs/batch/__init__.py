"""Many containers: finding them, having the work on them done here, by processes or by a cluster, and reporting it.

``found`` goes through what was named, ``shards`` says whose turn a container is, ``workers`` are the executors and
``mapping`` the one map over them; ``report`` is the file with a line for each container, and ``run`` puts these
together for a command. One thread asks; what is done elsewhere gets names and opens them by itself.
"""
