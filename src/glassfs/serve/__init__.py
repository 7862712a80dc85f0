"""A tree over HTTP: files with ranges, pages for browsers, and read-only WebDAV (RFC 9110, RFC 4918 class 1).

``site`` answers requests and knows nothing of connections; ``pages`` has the lists of directories, ``dav`` the answers
to PROPFIND; ``server`` has the connections: cheroot, with limits. All but the last need no further package.
"""
