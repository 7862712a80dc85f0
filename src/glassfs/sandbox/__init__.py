"""Worker processes for libraries that parse untrusted files in C: they see bytes through a socket, and nothing else.

``client`` has the sandbox of one container, and ``pool`` the few processes that are alive at a time. ``server`` runs in
a process that imports the library once, never sees a container, and forks a worker for each, which has no rights
(``confinement``). ``hdf5`` is what a worker does with h5py, ``genotypes`` what one does with tskit: only workers import
them. ``server`` also has the messages.

Callers import from ``client``: this package imports nothing, as the server begins with it and is to start quickly.

What a worker sends is untrusted, as the container may have taken it over.
"""
