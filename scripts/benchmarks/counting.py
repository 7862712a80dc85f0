"""The kernel's requests by opcode, as counted in the status of a glassfs mount. Other mounts have none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

Results = dict[str, float]
REQUESTS = "requests"


def passes(status: str | Path | None, work: Callable[[], float], items: int, *keys: str) -> Results:
    """Do ``work`` once for each key, which names its result.

    If ``status`` is the file of a mount that counts, also return the requests for each of ``items``: ``KEY requests``,
    and of these ``KEY LOOKUP`` and so on.
    """
    results: Results = {}
    for key in keys:
        first, before = _requests(status), _requests(status)
        results[key] = work()
        after = _requests(status)
        counted = after - before - (before - first)  # without the requests for reading the status
        if after:
            results[f"{key} {REQUESTS}"] = round(counted.total() / items, 3)
        results |= {f"{key} {opcode}": round(count / items, 3) for opcode, count in counted.items()}
    return results


def _requests(status: str | Path | None) -> Counter[str]:
    """Return the requests since the mount; none if the mount does not count."""
    return Counter(json.loads(Path(status).read_bytes()).get(REQUESTS) if status else None)
