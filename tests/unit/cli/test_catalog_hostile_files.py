"""Tests of invalid files in `clusters/` and `experiments/`: one line each, and the other files are listed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.calling import Caller
from tests.unit.cli.test_catalog import FIGURE, write

pytestmark = pytest.mark.slow

PAPER_WITH_MACHINE = """\
title: t
venue: v
machine: {nodes: 8, gpus_per_node: 8, gpu: V100, gpu_memory_gb: 32, peak_tflops: {fp16: 125}}
"""

ROW_WITHOUT_NAME = """\
figure: Figure 1
title: t
program: pretrain
gpus: 8
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
fixed: {mbs: 1}
cases:
- {case: a, gbs: 8}
- {gbs: 16}
plot:
  x: {label: x, of: [gbs]}
  y: {label: y, metric: iteration_ms}
"""


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # the path itself may be longer than a socket's address
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 34)  # 16 GiB, none of it on the disk


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "is a pipe, not a YAML file"),
    "socket": (make_socket, "is a socket, not a YAML file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a YAML file"),
    "folder": (Path.mkdir, "is a folder, not a YAML file"),
    "loop of links": (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
    "large": (make_large, "larger than 16 MiB, so it is not read"),
}


@pytest.mark.fault(
    section="Safety",
    fault="A pipe, a socket, a device, a folder, a loop of links or 16 GiB in `clusters/`",
    promise="One line each. The other clusters are listed.",
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_invalid_cluster_file_is_one_line_and_the_other_clusters_are_listed(repro: Caller, kind: str) -> None:
    make, problem = KINDS[kind]
    make(repro.site.folder / "clusters" / "odd.yaml")
    done = repro("clusters", "list", "--json")
    assert (done.returncode, len(done.complaints)) == (2, 1)
    assert f"clusters/odd.yaml: {problem}" in done.complaints[0]
    assert {"here", "selene"} <= {row["cluster"] for row in json.loads(done.stdout)["clusters"]}


@pytest.mark.fault(
    section="Safety",
    fault="A pipe, a socket, a device, a folder, a loop of links or 16 GiB in `experiments/`",
    promise="One line each. The other experiments are listed.",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["figure-99", "paper"])
def test_an_invalid_experiment_file_is_one_line_and_the_other_experiments_are_listed(
    repro: Caller, kind: str, name: str
) -> None:
    make, problem = KINDS[kind]
    file = write(repro).with_name(f"{name}.yaml")
    file.unlink()
    make(file)
    done = repro("list", "--json")
    assert (done.returncode, len(done.complaints)) == (2, 1)
    assert f"experiments/own/{name}.yaml: {problem}" in done.complaints[0]
    assert "sc21/figure-13" in {row["experiment"] for row in json.loads(done.stdout)["experiments"]}


@pytest.mark.fault(
    section="Safety",
    fault="A profile that extends a device",
    promise="Refused and not read.",
)
def test_a_profile_that_extends_a_device_is_refused(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "odd.yaml").write_text("extends: /dev/zero\nabout: x\n")
    done = repro("clusters", "show", "odd")
    assert done.returncode == 2
    assert done.complaints == ["repro: /dev/zero: is a device, not a YAML file. Hint: remove it, or correct the path"]


@pytest.mark.fault(
    section="Safety",
    fault="An experiment with a row without a name, a number of 390 digits or 150,000 cases",
    promise="One line with its location. The other experiments are listed.",
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ROW_WITHOUT_NAME, "experiments/own/figure-99.yaml:9:3 case: missing, and named_by names cases by it. Hint: "),
        (
            FIGURE.replace("gbs: [32, 128]", f"gbs: [{'9' * 390}]", 1),
            "experiments/own/figure-99.yaml:",
        ),
        (
            FIGURE.replace("gbs: [32, 128]", f"gbs: {list(range(64, 64 + 30_000))}", 1),
            "experiments/own/figure-99.yaml:",
        ),
    ],
    ids=["a row without its name", "a number of 390 digits", "150,000 cases"],
)
@pytest.mark.parametrize("words", ["list --json", "show figure-99 --json", "plan figure-99 --json"])
def test_a_faulty_experiment_is_one_line_and_the_others_are_listed(
    repro: Caller, text: str, problem: str, words: str
) -> None:
    write(repro, text, paper=PAPER_WITH_MACHINE)
    done = repro(*words.split())
    assert done.returncode == 2 and done.complaints
    for line in done.complaints:
        assert line.startswith(f"repro: {problem}") and len(line) < 700
    if words.startswith("list"):
        assert "sc21/figure-13" in {row["experiment"] for row in json.loads(done.stdout)["experiments"]}


def test_list_counts_the_cases_of_a_large_matrix_without_expanding_it(repro: Caller) -> None:
    text = FIGURE.replace("gbs: [32, 128]", f"gbs: {list(range(64, 64 + 100_000 // 5))}", 1)
    write(repro, paper=PAPER_WITH_MACHINE, text=text + "reference_only: too large\n")
    rows = {row["experiment"]: row for row in json.loads(repro("list", "--json").stdout)["experiments"]}
    assert rows["own/figure-99"]["cases"] == 100_000


@pytest.mark.fault(
    section="Safety",
    fault="`/`, `..`, a NUL and similar texts as the path of a profile",
    promise="One line, exit code 2.",
)
@pytest.mark.parametrize("command", ["render figure-13", "submit figure-13", "plan figure-13", "clusters show"])
@pytest.mark.parametrize("name", ["/", "//", "..", "../..", "/..", "a\0b", "clusters/\0.yaml", "/dev/null/x", "."])
def test_an_invalid_path_of_a_profile_is_one_line(repro: Caller, command: str, name: str) -> None:
    done = repro(*command.split(), *(["--cluster"] if "clusters" not in command else []), name)
    assert (done.returncode, len(done.complaints)) == (2, 1), done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize("option", ["--database", "-o", "--output"])
def test_a_nul_in_a_path_is_one_line(repro: Caller, option: str) -> None:
    command = "collect" if option == "--database" else "render figure-13 --cluster here --scale cpu"
    done = repro(*command.split(), option, "x\0y")
    assert (done.returncode, done.complaints) == (2, ["repro: 'x\\x00y': contains a NUL character. Hint: remove it"])


def test_an_argument_that_is_not_utf_8_is_one_line(repro: Caller) -> None:
    done = repro("render", "figure-13", "--cluster", "here", "--scale", "cpu", "-o", "x\udcff")
    assert (done.returncode, done.complaints) == (
        2,
        ["repro: 'x\\udcff': is not UTF-8 text. Hint: use UTF-8 characters"],
    )


def test_a_nul_in_the_name_of_an_extended_profile_is_one_line(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "odd.yaml").write_text('extends: "a\\0b"\nabout: x\n')
    done = repro("clusters", "list")
    assert done.returncode == 2 and len(done.complaints) == 1 and "defect" not in done.stderr
