"""Tests of bad input: one line for each fault, the exit code, and no changed file."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.stand_in_site import CHECKOUT, REPRO, Site
from tests.unit.cli.calling import Caller, everything_in

pytestmark = pytest.mark.slow

HERE = ("--cluster", "here", "--scale", "cpu")
COMMANDS_OF_ONE = ("submit figure-13 --cluster here --scale cpu", "status", "logs x", "cancel x", "collect", "plot")


def own_copy(site: Site) -> Path:
    """The experiments in the working folder, where they are found first; returns figure 13's file."""
    shutil.copytree(CHECKOUT / "experiments", site.folder / "experiments")
    return site.folder / "experiments" / "sc21" / "figure-13.yaml"


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("submit figure-133 --cluster here", ['repro: figure-133: no such experiment. Did you mean "figure-13"?']),
        ("submit figure-13 --cluster her", ['repro: her: no such cluster. Did you mean "here"?']),
        (
            "submit figure-133 --cluster her --where pq=8",
            [
                'repro: figure-133: no such experiment. Did you mean "figure-13"?',
                'repro: her: no such cluster. Did you mean "here"?',
            ],
        ),
        ("render figure-13 --cluster clusters/none.yaml", ["repro: clusters/none.yaml: no such file"]),
        ("status figure-133", None),
        ("status --where pp=x", ["repro: --where pp=x: must be an integer"]),
        ("logs 0123", ["repro: no jobs in "]),
        ("cancel figure-13", ["repro: no jobs in "]),
        ("collect", ["repro: no jobs in "]),
        ("plot", ["repro: no jobs in "]),
    ],
)
def test_an_unknown_name_suggests_the_nearest_and_changes_nothing(
    repro: Caller, words: str, expected: list[str] | None
) -> None:
    before = everything_in(repro.site.folder)
    done = repro(*words.split())
    if expected is None:  # nothing was submitted: there is nothing that the word could have named
        assert done.returncode == 0 and len(done.complaints) == 1
        assert f"repro: {done.complaints[0]}".startswith(repro.no_jobs)
    else:
        assert done.returncode == 2 and len(done.complaints) == len(expected), done.stderr
        for line, start in zip(done.complaints, expected, strict=True):
            assert line.startswith(start)
    assert done.stdout == "" and everything_in(repro.site.folder) == before


def test_faults_of_the_experiment_and_the_cluster_are_printed_together(repro: Caller) -> None:
    change(own_copy(repro.site), "figure: Figure 13\n", "figur: Figure 13\n")
    profile = repro.site.folder / "clusters" / "here.yaml"
    profile.write_text(profile.read_text() + "partion: x\n")
    done = repro("submit", "figure-13", *HERE)
    assert done.returncode == 2
    assert any("figure-13.yaml" in line for line in done.complaints)
    assert any("here.yaml:4" in line and "partion" in line for line in done.complaints)


SLURM = """about: a cluster
scheduler: slurm
hardware: {nodes: 2, gpus_per_node: 8, gpu: V100, peak_tflops: {fp16: 125}}
slurm: {time_limit: "0:10:00"}
programs: {megatron-2021: {checkout: /m, data_path: /d, vocab_file: /v, merge_file: /f}}
"""


def test_more_gpus_than_the_cluster_has_and_a_dtype_it_lacks_are_refused_before_anything_else(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "small.yaml").write_text(SLURM)
    done = repro("submit", "figure-13", "--cluster", "small", "--scale", "paper")
    assert (done.returncode, done.complaints) == (
        2,
        ["repro: figure-13 all 10 cases: needs 64 GPUs, small has 2 x 8 = 16. Hint: --scale cpu fits"],
    )
    done = repro("submit", "figure-13", "--cluster", "small", "--scale", "quad")
    assert done.returncode == 2 and "V100 of small has no bf16 (it has fp16)" in done.stderr
    assert not (repro.site.folder / "results.db").exists()


def test_a_machine_without_sbatch_is_exit_3_and_leaves_nothing(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    (repro.site.folder / "clusters" / "there.yaml").write_text(SLURM)
    monkeypatch.setenv("PATH", "/nowhere")
    before = everything_in(repro.site.folder)
    words = ("submit", "figure-13", "--cluster", "there", "--scale", "cpu")
    done = repro(*words)
    assert done.returncode == 3
    assert len(done.complaints) == 1 and done.complaints[0].startswith("repro: sbatch is not on this machine. Hint: ")
    assert everything_in(repro.site.folder) == before
    assert repro(*words, "--dry-run").returncode == 0
    assert repro("render", *words[1:], "--where", "pp=1").returncode == 0
    assert everything_in(repro.site.folder) == before


@pytest.mark.parametrize("words", COMMANDS_OF_ONE)
def test_a_corrupt_ledger_is_exit_2_for_every_command_and_does_not_change(repro: Caller, words: str) -> None:
    (repro.site.folder / "results.db").write_bytes(b"not a database at all, but long enough\n" * 40)
    before = everything_in(repro.site.folder)
    done = repro(*words.split())
    assert done.returncode == 2
    assert len(done.complaints) == 1 and "results.db: not a readable SQLite database" in done.complaints[0]
    assert everything_in(repro.site.folder) == before


def test_a_locked_ledger_is_exit_3_and_the_command_can_be_repeated(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repro("submit", "figure-13", *HERE, "--where", "pp=1,gbs=4", "--wait").returncode == 0
    repro.site.wait_for_queues()
    monkeypatch.setattr("orchestrator.ledger.database.BUSY_TIMEOUT_S", 0.1)
    holder = sqlite3.connect(repro.site.folder / "results.db", isolation_level=None)
    holder.execute("begin immediate")
    before = everything_in(repro.site.folder)
    done = repro("submit", "figure-13", *HERE)
    assert done.returncode == 3
    assert len(done.complaints) == 1 and "another repro is writing; repeat the command" in done.complaints[0]
    assert everything_in(repro.site.folder) == before
    assert repro("status").returncode == 0  # reading needs no lock
    holder.close()
    assert repro("submit", "figure-13", *HERE, "--where", "pp=1").returncode == 0


def test_a_full_disk_is_one_line_and_leaves_no_job_behind(site: Site) -> None:
    """A file system of 1 MiB, where this machine lets us have one; else a limit on the size of files."""
    small = site.folder.parent / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=False).returncode == 0
    try:
        limit = ""
        if mounted:
            (small / "ballast").write_bytes(b"x" * (900 * 1024))
        else:
            limit = "ulimit -f 16; trap '' XFSZ; "
        command = f'{limit}exec "$@"'
        done = subprocess.run(
            ["bash", "-c", command, "x", "repro", "submit", "figure-13", *HERE, "--database", str(small / "r.db")],
            cwd=site.folder,
            env=site.environment | {"PATH": f"{Path(REPRO).parent}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        if mounted:
            subprocess.run(["umount", str(small)], check=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"repro: {small}/r.db: ")
    assert site.started() == [] and list((site.folder / "runs").glob("*/*")) == []


def test_an_unknown_or_ambiguous_job_is_refused(looking: Caller) -> None:
    for words, problem in (
        ("logs zzz", "zzz: no experiment or job of this name. Hint: repro status shows the jobs"),
        ("cancel zzz", "zzz: no experiment or job of this name. Hint: repro status shows the jobs"),
        ("logs figure-13", "figure-13: 6 jobs, expected one. Hint: repro status shows the jobs"),
        (
            "collect figure-13 --scale paper",
            "figure-13 at paper was never submitted. Hint: repro submit figure-13 --cluster NAME --scale paper",
        ),
        ("submit figure-13 --cluster here --database no/such/results.db", f"{looking.site.folder}/no/such: no such "),
    ):
        done = looking(*words.split())
        assert (done.returncode, len(done.complaints)) == (2, 1), words
        assert done.complaints[0].startswith(f"repro: {problem}"), words


def test_an_output_file_that_cannot_be_written_leaves_no_other_file(repro: Caller) -> None:
    assert repro("submit", "figure-13", *HERE, "--where", "pp=1", "--wait").returncode == 0
    repro.site.wait_for_queues()
    (repro.site.folder / "taken").write_text("a file")
    before = everything_in(repro.site.folder)
    for words in (
        ("collect", "-o", "taken/numbers.csv"),
        ("collect", "-o", "none/numbers.csv"),
        ("plot", "-o", "taken/figure.png"),
        ("plot", "-o", "figure.jpeg"),
        ("render", "figure-13", *HERE, "-o", "taken"),
    ):
        done = repro(*words)
        assert done.returncode == 2 and done.stdout == "", words
        assert len(done.complaints) == 1 and done.complaints[0].startswith("repro: "), words
    assert everything_in(repro.site.folder) == before


def test_a_traceback_is_printed_only_with_debug(repro: Caller) -> None:
    for words in (["--debug", "submit", "x", "--cluster", "y"], ["submit", "x", "--cluster", "y", "--debug"]):
        done = repro(*words)
        assert done.returncode == 2 and "Traceback (most recent call last)" in done.stderr
    assert "Traceback" not in repro("submit", "x", "--cluster", "y").stderr


def test_a_defect_is_one_line_and_a_traceback_only_with_debug(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("orchestrator.api.catalog.experiment_names", breaks)
    done = repro("list")
    assert (
        done.returncode == 2
        and done.stderr == "repro: defect in repro: KeyError: 'surprise'. Hint: --debug prints the traceback\n"
    )
    assert "Traceback" in repro("list", "--debug").stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("submit", "submit: missing argument 'EXPERIMENT...'. Hint: repro submit --help"),
        ("show", "show: missing argument 'EXPERIMENT|PAPER'. Hint: repro show --help"),
        ("list --databse x", "list: no such option: --databse (Possible options: --database). Hint: repro list --help"),
        ("submitt", "no such command 'submitt'. Did you mean 'submit'?"),
        ("clusters shw", "clusters: no such command 'shw'. Did you mean 'show'?"),
        ("--foo", "no such option: --foo. Hint: repro --help"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_hint(repro: Caller, words: str, expected: str) -> None:
    done = repro(*words.split())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"repro: {expected}\n")


@pytest.mark.parametrize("words", ["", "clusters", "images"])
def test_a_group_without_a_command_prints_its_help(repro: Caller, words: str) -> None:
    done = repro(*words.split())
    assert (
        done.returncode == 2 and done.stderr.startswith("Usage: repro") and "show this message" in done.stderr.lower()
    )
