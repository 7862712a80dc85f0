"""What a workload measures, and the goals for it."""

from __future__ import annotations

from dataclasses import dataclass

COLD = "mount fresh and its cache cold, what it reads warm"
RATE, SPEED = "rate", "speed"


@dataclass(frozen=True)
class Goal:
    """glassfs takes at most ``factor`` times as long as ``reference``, plus ``extra``.

    The measure is the same one, or the one of the workload that ``key`` names. With ``is_rate`` the words are about a
    rate instead of a time.
    """

    words: str
    factor: float = 0.0
    reference: str | None = None
    extra: float = 0.0
    key: str | None = None
    is_rate: bool = False


def at_most(factor: float, reference: str, words: str = "", key: str | None = None) -> Goal:
    """Return a goal relative to the reference; ``words`` name its measure."""
    return Goal(f"≤ {factor:g} × {reference}{words}", factor, reference, key=key)


def at_least(factor: float, reference: str, words: str = "") -> Goal:
    """Return a goal for a rate relative to that of the reference."""
    return Goal(f"≥ {factor:g} × {reference}{words}", 1 / factor, reference, is_rate=True)


@dataclass(frozen=True)
class Measure:
    """A result of a recipe or of its daemon; less is better.

    ``unit`` is ``s``, ``bytes``, ``count``, RATE (seconds for one, shown as a number per second) or SPEED (seconds for
    one megabyte, shown as megabytes per second). ``each`` names the items that requests are counted for. A measure that
    ``may_lack`` is left out if no side has it.
    """

    key: str
    title: str
    goals: tuple[Goal, ...] = ()
    unit: str = "s"
    state: str = COLD
    each: str = ""
    may_lack: bool = False
