"""Levels of tests, the import path of the writers in scripts/, and fixtures that all tests share.

``--level`` selects ``short`` (after each change), ``all`` (30 minutes), ``long`` (hours). Tests marked ``slow``
are not in the first, tests marked ``long`` only in the last. A test that repeats something asks ``scale`` how often.
Hypothesis runs the number of examples that a test sets in ``all``, fewer in ``short`` and more in ``long``; it has no
deadline, and the same examples in each run except in ``long``.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

SHARED = Path(os.environ.get("GLASSFS_SHARED", ROOT.parent / "shared"))
DATA = ROOT / "tests/data"
SAMPLES = SHARED / "samples" if (SHARED / "samples").is_dir() else DATA

LEVELS = ("short", "all", "long")
LEFT_OUT = {"short": ("slow", "long"), "all": ("long",), "long": ()}
"""Marks of the tests that a level deselects."""
EXAMPLES = {"short": 0.1, "all": 1.0, "long": 20.0}
FEWEST_EXAMPLES = 15
UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

for level in LEVELS:
    settings.register_profile(
        level, deadline=None, derandomize=level != "long", print_blob=True, suppress_health_check=UNCHECKED,
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--level", choices=LEVELS, default="short", help="tests to run: short (default), all or long")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(config.getoption("--level"))
    # Ignored under nohup and in the background of a shell, also by all processes that tests start and send them to.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keep the garbage collector from what lasts until the end: each of its passes would take as long as some tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    level = config.getoption("--level")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_kept = not any(map(item.get_closest_marker, LEFT_OUT[level])) and not lacks_its_sample(item)
        (kept if is_kept else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = kept
    functions = [item.function for item in kept if isinstance(item, pytest.Function)]
    for test in {id(function): function for function in functions if is_hypothesis_test(function)}.values():
        adapt_settings(test, level)


def lacks_its_sample(item: pytest.Item) -> bool:
    """Return whether a test needs a sample by name that is too large for this checkout."""
    if not isinstance(item, pytest.Function) or "samples" not in item.fixturenames or not hasattr(item, "callspec"):
        return False
    name = item.callspec.params.get("name")
    return name is not None and not any(SAMPLES.rglob(f"{name.rpartition('/')[2]}*"))


def adapt_settings(test: Any, level: str) -> None:
    """Give a Hypothesis test the number of examples of the level and no deadline, whatever its decorator says."""
    own: settings = test._hypothesis_internal_use_settings
    test._hypothesis_internal_use_settings = settings(
        own, deadline=None, suppress_health_check={*own.suppress_health_check, *UNCHECKED},
        max_examples=max(min(FEWEST_EXAMPLES, own.max_examples), int(own.max_examples * EXAMPLES[level])),
    )


class Scale(Protocol):
    """Returns the number of repetitions: in ``short``, in ``all``, and in ``long`` (None: as in ``all``)."""

    def __call__(self, short: int, everything: int, long: int | None = None) -> int: ...


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> Scale:
    level = request.config.getoption("--level")

    def scaled(short: int, everything: int, long: int | None = None) -> int:
        return {"short": short, "all": everything, "long": everything if long is None else long}[level]

    return scaled


@pytest.fixture(scope="session")
def samples() -> Path:
    """A folder of containers with expected values: the large collection beside this checkout, or tests/data."""
    return SAMPLES


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for the tests and the commands that they run, instead of the user's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def default_log_level() -> None:
    """Some packages that tests import configure logging for the whole process, and later tests count records."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small container."""
    from writers.kastore import KastoreWriter

    path = tmp_path / "some.kas"
    with KastoreWriter(path) as writer:
        writer.add("array", [1.0, 2.0])
    return path
