"""Genotypes of tree sequences as files of PLINK: compared with tskit, and with what PLINK makes of tskit's VCF."""

from __future__ import annotations

import importlib.util
import io
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msprime
import numpy as np
import pytest
import tskit

import glassfs
from glassfs.errors import Damaged, GlassfsError
from glassfs.library import open_tree
from glassfs.sandbox import pool
from glassfs.sandbox.client import Sandbox
from tests.formats.tree_files import dumped
from tests.helpers import attributes_of, worker_processes
from tests.optional import without

FILES = "bed", "bim", "fam"
PLINK = "plink1.9"


def simulated(individuals: int, seed: int = 1, rate: float = 2e-7, model: str = "jc69") -> tskit.TreeSequence:
    """Return a sequence of some hundred sites, a few of them with several mutations."""
    ancestry = msprime.sim_ancestry(
        individuals, sequence_length=1e5, recombination_rate=1e-8, population_size=1e4, random_seed=seed,
    )
    return msprime.sim_mutations(ancestry, rate=rate, model=model, random_seed=seed)


def with_missing_data(sequence: tskit.TreeSequence) -> tskit.TreeSequence:
    """Cut samples off along parts of the sequence."""
    chance, tables = random.Random(1), sequence.dump_tables()
    tables.edges.clear()
    for edge in sequence.edges():
        if not sequence.node(edge.child).is_sample() or chance.random() < 0.6:
            tables.edges.append(edge)
    return repaired(tables)


def repaired(tables: tskit.TableCollection) -> tskit.TreeSequence:
    tables.sort()
    tables.build_index()
    tables.compute_mutation_parents()
    return tables.tree_sequence()


def without_individuals(sequence: tskit.TreeSequence) -> tskit.TreeSequence:
    tables = sequence.dump_tables()
    tables.nodes.individual = np.full(sequence.num_nodes, tskit.NULL, np.int32)
    tables.individuals.clear()
    return tables.tree_sequence()


def with_shuffled_samples(sequence: tskit.TreeSequence) -> tskit.TreeSequence:
    tables = sequence.dump_tables()
    individuals = tables.nodes.individual
    individuals[: sequence.num_samples] = np.random.default_rng(2).permutation(individuals[: sequence.num_samples])
    tables.nodes.individual = individuals
    return tables.tree_sequence()


def with_alleles(*sites: tuple[str, list[str]]) -> tskit.TreeSequence:
    """Return a sequence with these ancestral and derived states."""
    tables = simulated(4).dump_tables()
    tables.sites.clear()
    tables.mutations.clear()
    for number, (ancestral, derived) in enumerate(sites):
        site = tables.sites.add_row(7 * number + 0.5, ancestral)
        for node, state in enumerate(derived):
            tables.mutations.add_row(site, node, state)
    return repaired(tables)


MADE: dict[str, Callable[[], tskit.TreeSequence]] = {
    **{f"n{count}": lambda count=count: simulated(count, rate=1e-6) for count in (1, 2, 3, 4, 5, 17)},  # type: ignore[misc]
    "n1001": lambda: simulated(1001, rate=5e-8),
    "missing": lambda: with_missing_data(simulated(9)),
    "deleted": lambda: simulated(9).delete_intervals([[20_000, 40_000]]),
    "binary": lambda: simulated(6, model="binary"),
    "pairs": lambda: without_individuals(simulated(9)),
    "shuffled": lambda: with_shuffled_samples(with_missing_data(simulated(9))),
}


def expected(sequence: tskit.TreeSequence) -> dict[str, bytes]:
    """Return the files, written one genotype after another."""
    model = sequence.map_to_vcf_model(ploidy=None if sequence.num_individuals else 2)
    bed, bim = bytearray(b"\x6c\x1b\x01"), []
    for variant in sequence.variants(samples=model.individuals_nodes.ravel()):
        alleles = [allele for allele in variant.alleles if allele is not None]
        if len(alleles) != 2:
            continue
        codes = [
            0b01 if -1 in pair else (0b11, 0b10, 0b00)[sum(pair)]
            for pair in variant.genotypes.reshape(-1, 2).tolist()
        ]
        for first in range(0, len(codes), 4):
            bed.append(sum(code << 2 * place for place, code in enumerate(codes[first : first + 4])))
        site = variant.site.id
        bim.append(f"1\t{site}\t0\t{model.transformed_positions[site]}\t{alleles[1]}\t{alleles[0]}\n")
    fam = (f"{name} {name} 0 0 0 -9\n" for name in model.individuals_name)
    return {"bed": bytes(bed), "bim": "".join(bim).encode(), "fam": "".join(fam).encode()}


def shown(path: Path, stem: str = "a") -> dict[str, bytes]:
    with glassfs.open(path) as found:
        return {suffix: found[f"plink/{stem}.{suffix}"].bytes() for suffix in FILES}


@pytest.mark.parametrize("name", MADE)
def test_files_are_what_tskit_says(name: str, tmp_path: Path) -> None:
    sequence = MADE[name]()
    sequence.dump(tmp_path / "a.trees")
    wanted = expected(sequence)
    assert shown(tmp_path / "a.trees") == wanted
    with glassfs.open(tmp_path / "a.trees") as found:
        for suffix in FILES:
            entry, whole = found[f"plink/a.{suffix}"], wanted[suffix]
            assert entry.file_size == len(whole)
            chance = random.Random(len(whole))
            with entry.open() as file:
                for _ in range(20):
                    start = chance.randrange(len(whole) + 1)
                    file.seek(start)
                    assert file.read(50) == whole[start : start + 50]


@pytest.mark.skipif(shutil.which(PLINK) is None, reason=without(PLINK))
@pytest.mark.parametrize("name", MADE)
def test_files_are_what_plink_makes_of_a_vcf(name: str, tmp_path: Path) -> None:
    sequence = MADE[name]()
    sequence.dump(tmp_path / "a.trees")
    found = shown(tmp_path / "a.trees")
    mask = np.ones(sequence.num_sites, bool)
    mask[[int(line.split(b"\t")[1]) for line in found["bim"].splitlines()]] = False
    with open(tmp_path / "a.vcf", "w") as file:
        ploidy = None if sequence.num_individuals else 2
        sequence.write_vcf(file, ploidy=ploidy, site_mask=mask, allow_position_zero=True)
    words = "--vcf", "a.vcf", "--double-id", "--keep-allele-order", "--vcf-half-call", "m", "--make-bed", "--out", "own"
    subprocess.run([PLINK, *words], cwd=tmp_path, check=True, capture_output=True)
    assert {suffix: (tmp_path / f"own.{suffix}").read_bytes() for suffix in FILES} == found


def omitted(tmp_path: Path, sequence: tskit.TreeSequence) -> list[str]:
    sequence.dump(tmp_path / "a.trees")
    with open_tree(tmp_path / "a.trees", views="plink") as tree:
        return [one.reason for one in tree.directory("/plink").omitted()]


def test_sites_without_two_alleles_are_counted(tmp_path: Path) -> None:
    sequence = with_alleles(
        ("A", ["T"]), ("A", ["A"]), ("", ["T"]), ("A", ["T", "T", "A"]), ("A", ["T", "G"]), ("A B", ["T"]),
        ("A", ["\N{LATIN SMALL LETTER A WITH DIAERESIS}"]), ("A" * 300, ["C"]), ("A", []),
    )
    assert omitted(tmp_path, sequence) == [
        "sites: 3 of 9 do not have two alleles", "sites: 3 of 9 do not have alleles that are words in ASCII",
    ]
    rows = [line.split() for line in shown(tmp_path / "a.trees")["bim"].decode().splitlines()]
    assert [row[1] for row in rows] == ["0", "3", "7"]
    assert rows[2] == ["1", "7", "0", "50", "C", "A" * 300]


def test_only_pairs_of_samples_are_individuals(tmp_path: Path) -> None:
    haploid = msprime.sim_ancestry(4, ploidy=1, random_seed=1)
    assert omitted(tmp_path, haploid) == ["ploidy: individuals have [1] samples, and only pairs are shown"]
    mixed = msprime.sim_ancestry([msprime.SampleSet(2, ploidy=1), msprime.SampleSet(2, ploidy=2)], random_seed=1)
    assert omitted(tmp_path, mixed) == ["ploidy: individuals have [1, 2] samples, and only pairs are shown"]
    odd = without_individuals(haploid).simplify([0, 1, 2])
    (reason,) = omitted(tmp_path, odd)
    assert reason.startswith("ploidy: ") and "3" in reason
    tables = simulated(4).dump_tables()
    individuals = tables.nodes.individual
    individuals[:2] = tskit.NULL
    tables.nodes.individual = individuals
    assert omitted(tmp_path, tables.tree_sequence())[0] == "individuals: 2 samples belong to none"
    assert shown(tmp_path / "a.trees")["fam"].count(b"\n") == 3


def test_empty_tree_sequences(tmp_path: Path) -> None:
    assert omitted(tmp_path, msprime.sim_ancestry(4, random_seed=1)) == []
    found = shown(tmp_path / "a.trees")
    assert (len(found["bed"]), len(found["bim"]), found["fam"].count(b"\n")) == (3, 0, 4)
    assert len(omitted(tmp_path, tskit.TableCollection(1).tree_sequence())) == 1


def test_tables_that_tskit_refuses_cost_only_the_view(tmp_path: Path) -> None:
    tables = simulated(4).dump_tables()
    positions = tables.sites.position
    positions[0] = -5
    tables.sites.position = positions
    tables.dump(tmp_path / "a.trees")
    with open_tree(tmp_path / "a.trees", views="plink") as tree:
        with pytest.raises(Damaged, match="Site positions must be between 0 and sequence_length"):
            tree.directory("/plink").listing()
        assert tree.file("/sites/position.npy").size > 8 * len(positions)


def test_without_tskit_the_view_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(4).dump(tmp_path / "a.trees")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "glassfs.formats.tree_sequences.find_spec", lambda name: None if name == "tskit" else find(name),
    )
    with open_tree(tmp_path / "a.trees", views="plink") as tree:
        assert "plink" not in [node.name for node in tree.directory("/").listing()]
        assert "view plink: needs tskit: install glassfs[tskit]" in attributes_of(tree.directory("/"))["omitted"]


def test_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    sequence = simulated(2, rate=1e-6)
    sequence.dump(tmp_path / "a.trees")
    wanted = expected(sequence)["bed"]
    assert len(wanted) > 4096 + 100  # a block of sites is cached
    with glassfs.open(tmp_path / "a.trees") as found, found["plink/a.bed"].open() as file:
        assert file.read(100) == wanted[:100]
        for process in worker_processes(pool.pool()):
            os.kill(process, signal.SIGKILL)
        file.seek(-100, io.SEEK_END)
        assert file.read() == wanted[-100:]


@pytest.mark.parametrize(
    "changes",
    [
        {0: 10**6}, {0: -1}, {0: float("inf")}, {0: 4.0}, {2: 10**9}, {1: [10**30]}, {1: []}, {3: None}, {4: 3},
    ],
)
def test_descriptions_by_workers_are_checked(
    changes: dict[int, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated(4).dump(tmp_path / "a.trees")
    ask = Sandbox.ask

    def lied(sandbox: Sandbox, request: dict[str, Any], most: int = 0) -> tuple[Any, bytearray]:
        answer, data = ask(sandbox, request, most)
        return [changes.get(number, one) for number, one in enumerate(answer)], data

    monkeypatch.setattr(Sandbox, "ask", lied)
    with open_tree(tmp_path / "a.trees", views="plink") as tree, pytest.raises(Damaged, match="a wrong description"):
        tree.directory("/plink").listing()


def test_truncated_file_is_an_error_of_the_view(tmp_path: Path) -> None:
    simulated(1001).dump(tmp_path / "a.trees")
    with open_tree(tmp_path / "a.trees", views="plink") as tree:
        directory = tree.directory("/plink")
        os.truncate(tmp_path / "a.trees", 20_000)
        with pytest.raises(GlassfsError):
            directory.listing()


def test_appended_tree_sequences_have_files(tmp_path: Path) -> None:
    sequence = simulated(4)
    dumped(simulated(3).dump_tables(), tmp_path / "a.trees")
    dumped(sequence.dump_tables(), tmp_path / "b.trees")
    with open(tmp_path / "a.trees", "ab") as file:
        file.write((tmp_path / "b.trees").read_bytes())
    with glassfs.open(tmp_path / "a.trees") as found:
        assert found["appended/1/plink/a.bed"].bytes() == expected(sequence)["bed"]


def test_sequential_reading_is_one_pass_over_the_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassfs.sandbox import genotypes  # only workers import it: it silences warnings

    sequence = simulated(4, rate=1e-6)
    made = io.BytesIO()
    columns: dict[str, genotypes.Places] = {}
    for table, stored in sequence.dump_tables().asdict().items():
        if table in ("individuals", "nodes", "edges", "sites", "mutations", "indexes"):
            columns[table] = {}
            for name, column in stored.items():
                if isinstance(column, np.ndarray) and name != "population":
                    columns[table][name] = made.tell(), column.size, column.dtype.str
                    made.write(column.tobytes())
    begun, wanted = list[object](), expected(sequence)["bed"]
    monkeypatch.setattr(tskit, "Variant", lambda *words, make=tskit.Variant: begun.append(words) or make(*words))
    answer = genotypes.open_container(made)  # type: ignore[arg-type]

    def read(first: int) -> bytes:
        asked = {"do": "genotypes", "first": first, "count": 50, "length": 1e5, "columns": columns}
        return b"".join(answer(asked)[1])

    found = b"".join(map(read, range(0, 500, 50)))
    assert len(begun) == 1 and wanted.startswith(b"\x6c\x1b\x01" + found)
    assert read(100) == found[100:150] and read(0) == found[:50]
    assert len(begun) == 3
