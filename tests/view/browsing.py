"""Pages of containers in Chromium: files of a container to open there, and what users see and where links lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.chromium import Browser
from tests.formats.derived import shown_in


def exported(container: Path, folder: Path, views: str = "html") -> Path:
    """All files of a container, in a folder of its name."""
    root = folder / container.stem
    for path, node in shown_in(container, views).items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(node.read(0, node.size))
    return root


def color(number: int) -> tuple[int, int, int]:
    return (number * 8, 255 - number * 8, number % 2 * 200)


def image(number: int) -> np.ndarray[Any, Any]:
    return np.full((48, 64, 3), color(number), np.uint8)


def text(page: Browser, selector: str) -> str:
    found: str = page.evaluate(f"document.querySelector({selector!r}).textContent")
    return found


def labels(page: Browser) -> list[str]:
    found: list[str] = page.evaluate("[...document.querySelectorAll('#rows a')].map((link) => link.textContent)")
    return found


def ways(page: Browser) -> dict[str, str]:
    """Return the shown links of an episode's page to others."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('.ways a:not([hidden])')].map((way) => [way.id, way.getAttribute('href')])"
    )
    return dict(map(tuple, found))  # type: ignore[arg-type]


def arrive(page: Browser, place: str) -> None:
    """Wait until the page in a folder is loaded."""
    page.wait_for(f"location.pathname.endsWith('/{place}/index.html') && document.readyState === 'complete'")
