"""Test values exchanged with workers: their size is bounded, and they can be pickled."""

from __future__ import annotations

import pickle

from glassfs.batch.contract import MOST_FAULTS, Fault, Faults, Settings
from glassfs.cli.episodes import Rows
from glassfs.cli.export_many import Exporting
from glassfs.cli.target import Existing
from glassfs.cli.verify import Verification
from glassfs.source import Connection


def test_only_the_first_faults_are_reported() -> None:
    faults = Faults()
    assert all(faults.add(Fault("/x", f"{number}")) for number in range(MOST_FAULTS))
    assert (len(faults.all), faults.others) == (MOST_FAULTS, ())
    assert not any(faults.add(Fault("/x", "more")) for _ in range(234))
    assert [str(fault) for fault in faults.all[-2:]] == [f"/x: {MOST_FAULTS - 1}", "and 234 more"]
    assert faults.all[-1:] == faults.others


def test_work_is_pickled_with_its_connection() -> None:
    settings = Settings("jsonl", Connection(endpoint="http://127.0.0.1:9", key="known"), 2)
    for work in (
        Verification(settings), Rows(settings, "csv"), Exporting(settings, "a", "/a", "b", "/b", Existing.RESUME),
    ):
        found = pickle.loads(pickle.dumps(work))
        assert found == work
        assert found.settings.connection.key == "known"
