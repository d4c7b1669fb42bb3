"""Commands for a machine with internet: a shell runs them word for word."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.clusters.needs import Item
from orchestrator.launch.fetch import fetch_items
from orchestrator.launch.offline import offline_commands
from orchestrator.workloads.needs import TokenData
from tests.loopback_files import FileServer, file_server
from tests.unit.launch.repositories import checkout, git, item, make_repository

CONTENT = b"a vocabulary " * 5000


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server(CONTENT) as served:
        yield served


@pytest.fixture
def items(tmp_path: Path, server: FileServer) -> list[Item]:
    """A commit, a branch, a file, and data that need no internet."""
    origin = tmp_path / "origin"
    commits = make_repository(origin)
    shared = tmp_path / "shared folder"
    return [
        checkout(origin, commits[0], shared / "code" / "Megatron-LM"),
        checkout(origin, "release", shared / "code" / "release"),
        item(server.file(), shared / "data" / "gpt2-vocab.json"),
        item(TokenData(50257, "data of a paper"), shared / "data" / "tokens"),
    ]


def blocks(text: str) -> list[str]:
    """Return the commands of the two machines."""
    first, _, rest = text.partition("# 2.")
    return [first, rest.partition("\n")[2]]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)


def test_the_commands_put_code_and_files_in_their_places_and_the_fetch_accepts_them(
    tmp_path: Path, items: list[Item]
) -> None:
    outside, inside = blocks(offline_commands("megatron-2021", items, "touch again"))
    other, here = tmp_path / "other machine", tmp_path / "login node"
    for _ in range(2):  # both blocks can be repeated
        done = run(outside, other)
        assert done.returncode == 0, done.stderr
    here.mkdir()
    (other / "repro-megatron-2021.tar.gz").rename(here / "repro-megatron-2021.tar.gz")
    for _ in range(2):
        done = run(inside, here)
        assert done.returncode == 0, done.stderr
    assert (here / "again").exists()
    assert [fetched.how for fetched in fetch_items(items)] == [*["there already"] * 3, "made"]
    assert git(items[0].path, "rev-list", "--count", "HEAD") == "1"


def test_the_commands_stop_where_a_checksum_is_wrong(tmp_path: Path, items: list[Item], server: FileServer) -> None:
    outside, inside = blocks(offline_commands("megatron-2021", items, "touch again"))
    other = tmp_path / "other machine"
    server.content = b"something else"
    done = run(outside, other)
    assert done.returncode != 0 and "vocab.json: FAILED" in done.stdout
    assert not (other / "repro-megatron-2021.tar.gz").exists()
    assert run(inside, other).returncode != 0
    assert not (other / "again").exists()


def test_a_download_that_was_cut_is_repeated(tmp_path: Path, items: list[Item], server: FileServer) -> None:
    outside, _ = blocks(offline_commands("megatron-2021", items, "true"))
    server.cut_after = 20_000
    assert run(outside, tmp_path / "other machine").returncode != 0
    server.cut_after = None
    done = run(outside, tmp_path / "other machine")
    assert done.returncode == 0, done.stderr


def test_a_workload_that_needs_only_data_has_one_command() -> None:
    tokens = item(TokenData(50257, "data of a paper"), Path("/shared/tokens"))
    assert offline_commands("toy", [tokens], "repro workloads fetch toy --cluster here").splitlines() == [
        "# Nothing comes from the internet.",
        "repro workloads fetch toy --cluster here",
    ]
