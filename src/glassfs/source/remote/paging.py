"""stand-in"""
from __future__ import annotations

from collections.abc import Sequence

from glassfs.source.contract import Path, distribute
from glassfs.source.remote.server import Facts, Server
from glassfs.source.scattered import total


class Pages:
    def __init__(self, budget: int, disk: object = None) -> None:
        pass
    def object(self, server: Server, path: Path, facts: Facts) -> Paged:
        return Paged(server, path, facts)

class Paged:
    def __init__(self, server: Server, path: Path, facts: Facts) -> None:
        self.server, self.path, self.facts = server, path, facts
    def put_head(self, data: bytes) -> None:
        pass
    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        if not total(buffers): return
        distribute(self.server.fetch(self.path, offset, total(buffers), self.facts).result(self.server.timeout), buffers)
