"""PLINK 1.9 reads genotypes of tree sequences from a mount, with the same results as from a copy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.optional import without
from tests.view.test_plink import FILES, PLINK, expected, simulated, with_missing_data

COMMANDS = {
    "freq": ["--freq"], "missing": ["--missing"], "r2": ["--r2"], "chr": ["--chr", "1", "--freq"],
    "extract": ["--extract", "sites", "--make-bed"],
}


@pytest.fixture(scope="module")
def places(mounted: Mounted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of the view in a mount, and that of a copy."""
    folder = tmp_path_factory.mktemp("plink")
    sequence = with_missing_data(simulated(1001, rate=7e-8))
    sequence.dump(folder / "a.trees")
    for suffix, data in expected(sequence).items():
        (folder / f"a.{suffix}").write_bytes(data)
    with mounted(folder / "a.trees", options=["cache_size=8M"]) as mount:
        yield mount.path / ".glassfs/views/plink", folder


@pytest.mark.skipif(shutil.which(PLINK) is None, reason=without(PLINK))
@pytest.mark.parametrize("name", COMMANDS)
def test_plink_finds_the_same_as_in_a_copy(places: tuple[Path, Path], name: str, tmp_path: Path) -> None:
    sites = [line.split("\t")[1] for line in (places[1] / "a.bim").read_text().splitlines()]
    (tmp_path / "sites").write_text("\n".join(sites[::3]))
    found = []
    for number, place in enumerate(places):
        words = [PLINK, "--bfile", str(place / "a"), *COMMANDS[name], "--out", str(number)]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
        made = sorted(path for path in tmp_path.glob(f"{number}.*") if path.suffix != ".log")
        found.append({path.suffix: path.read_bytes() for path in made})
    assert found[0] and found[0] == found[1]


def test_readers_at_several_places_get_what_is_there(places: tuple[Path, Path]) -> None:
    def read(number: int) -> bool:
        suffix = FILES[number % len(FILES)]
        with open(places[0] / f"a.{suffix}", "rb", buffering=0) as mine, open(places[1] / f"a.{suffix}", "rb") as other:
            mine.seek(1000 * number)
            other.seek(1000 * number)
            return mine.read(100_000) == other.read(100_000)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(40)))
