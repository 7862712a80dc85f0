"""What comes back from those who do the work stays small, whatever is in a container, and can be sent."""

from __future__ import annotations

import pickle

from glassfs.batch.contract import MOST_FAULTS, Fault, Faults, Settings
from glassfs.cli.episodes import Rows
from glassfs.cli.export_many import Exporting
from glassfs.cli.target import Existing
from glassfs.cli.verify import Verification
from glassfs.source import Connection


def test_of_very_many_faults_some_are_told() -> None:
    faults = Faults()
    told = [faults.add(Fault("/x", f"{number}")) for number in range(MOST_FAULTS + 234)]
    assert sum(told) == MOST_FAULTS
    assert len(faults.all) == MOST_FAULTS + 1
    assert [str(fault) for fault in faults.all[-2:]] == [f"/x: {MOST_FAULTS - 1}", "and 234 more"]
    assert faults.all[-1:] == faults.others


def test_as_many_as_may_be_told_are_all() -> None:
    faults = Faults()
    for number in range(MOST_FAULTS):
        faults.add(Fault("", f"{number}"))
    assert len(faults.all) == MOST_FAULTS
    assert faults.others == ()


def test_work_goes_to_other_processes() -> None:
    """With how URLs are reached."""
    settings = Settings("jsonl", Connection(endpoint="http://127.0.0.1:9", key="known"), 2)
    for work in (
        Verification(settings), Rows(settings, "csv"), Exporting(settings, "a", "/a", "b", "/b", Existing.RESUME),
    ):
        found = pickle.loads(pickle.dumps(work))
        assert found == work
        assert found.settings.connection.key == "known"
