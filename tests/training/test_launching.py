"""The program starts under each launcher and prints the lines that readers of Megatron-LM's logs expect."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from tests.training.launching import (
    SMALL_MODEL,
    Finished,
    Step,
    clean_environment,
    free_port,
    plain_environments,
    read_record,
    run_alone,
    run_forked,
    run_started,
)

PIPELINE = ["--pipeline-model-parallel-size", "2"]
COMMAND = ["-m", "orchestrator.pretrain", *SMALL_MODEL, *PIPELINE]

MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}"
WORLD = re.compile(
    r"^using world size: 2, data-parallel size: 1, context-parallel size: 1, "
    r"hierarchical context-parallel sizes: None, tensor-model-parallel size: 1, pipeline-model-parallel size: 2$"
)
PARAMETERS = re.compile(r"^ > number of parameters on \(tensor, pipeline\) model parallel rank \(0, ([01])\): (\d+)$")
VOCABULARY = re.compile(r"^ > padded vocab \(size: 64\) with 0 dummy tokens \(new size: 64\)$")
SOFTWARE = re.compile(r"^ > software: torch \S+ \| megatron-core \S+ \| backend gloo \| device cpu$")
BEFORE = re.compile(rf"^\[before the start of training step\] datetime: {MOMENT} $")
AFTER = re.compile(rf"^\[after training is done\] datetime: {MOMENT} $")
ITERATION = re.compile(
    rf"^ \[{MOMENT}\] iteration {{8}}(\d)/ {{7}}3 \| consumed samples: [ \d]{{12}} \| "
    rf"elapsed time per iteration \(ms\): \d+\.\d \| learning rate: 1\.000000E-03 \| global batch size:     8 \| "
    rf"lm loss: \d\.\d{{6}}E[+-]\d\d \| loss scale: 1\.0 \| grad norm: \d+\.\d{{3}} \| "
    rf"number of skipped iterations:   0 \| number of nan iterations:   0 \|$"
)


TIMES = re.compile(rf"{MOMENT}|(?<=elapsed time per iteration \(ms\): )\d+\.\d")


def _matches(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    return [match for line in text.split("\n") if (match := pattern.match(line))]


def _check_lines(stdout: str) -> None:
    for pattern in (WORLD, VOCABULARY, SOFTWARE, BEFORE, AFTER):
        assert len(_matches(pattern, stdout)) == 1, pattern.pattern
    assert {match[1] for match in _matches(PARAMETERS, stdout)} == {"0", "1"}
    assert [match[1] for match in _matches(ITERATION, stdout)] == ["1", "2", "3"]


def _check_ranks(first: Finished, last: Finished) -> None:
    assert (first.exit_code, last.exit_code) == (0, 0), first.stderr + last.stderr
    _check_lines(first.stdout + last.stdout)
    assert not _matches(ITERATION, first.stdout), "Megatron-LM prints iterations on the last rank"
    assert not _matches(WORLD, last.stdout), "Megatron-LM prints the world on rank 0"


@dataclass(frozen=True)
class Run:
    """Outputs of the first and the last rank, and the record."""

    first: Finished
    last: Finished
    steps: list[Step]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return two equal runs: of started processes, and of forked ones with the variables of srun."""
    folder = tmp_path_factory.mktemp("runs")
    results = {}
    for name, run, environments in (
        ("started", run_started, plain_environments(2)),
        ("srun", run_forked, _slurm_environments(2)),
    ):
        record = folder / name
        first, last = run([[*COMMAND, "--record", str(record)]] * 2, environments)
        results[name] = Run(first, last, read_record(record))
    return results


@pytest.mark.parametrize("launcher", ["started", "srun"])
def test_ranks_connect_and_print_their_lines(launcher: str, runs: dict[str, Run]) -> None:
    run = runs[launcher]
    _check_ranks(run.first, run.last)
    assert run.first.stderr == run.last.stderr == "", "a log is read by people too"


def test_forked_ranks_train_and_print_as_started_ranks_do(runs: dict[str, Run]) -> None:
    started, forked = runs["started"], runs["srun"]
    assert [replace(step, elapsed_ms=0) for step in forked.steps] == [
        replace(step, elapsed_ms=0) for step in started.steps
    ]
    for name in ("first", "last"):
        lines, expected = (TIMES.sub("TIME", getattr(run, name).stdout) for run in (forked, started))
        assert lines == expected


def _slurm_environments(tasks: int) -> list[dict[str, str]]:
    """Return srun's variables, with an address of the first rank that only srun gives."""
    shared = {"SLURM_NTASKS": str(tasks), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(free_port())
    return [shared | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(tasks)]


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "orchestrator.pretrain.launch", "--nproc-per-node=2", *SMALL_MODEL, *PIPELINE],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *COMMAND],
    ],
    ids=["forked", "torchrun"],
)
def test_lines_of_two_ranks_of_one_launcher_do_not_mix(command: list[str]) -> None:
    (finished,) = run_started([["-u", *command]], [{}])
    assert finished.exit_code == 0, finished.stderr
    _check_lines(finished.stdout)


def test_the_launchers_of_two_nodes_start_one_run() -> None:
    meeting_point = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    launcher = ["-m", "orchestrator.pretrain.launch", "--nproc-per-node=1", *meeting_point]
    commands = [[*launcher, f"--node-rank={node}", *SMALL_MODEL, *PIPELINE] for node in range(2)]
    first, last = run_forked(commands, [{}] * 2)
    _check_ranks(first, last)
    assert first.stderr == last.stderr == ""


def test_log_interval_prints_every_nth_and_the_last_iteration() -> None:
    finished = run_alone(*SMALL_MODEL, "--log-interval", "2")
    assert finished.exit_code == 0, finished.stderr
    assert re.findall(r"iteration +(\d)/", finished.stdout) == ["2", "3"]


def test_variables_of_a_surrounding_job_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "64")
    monkeypatch.setenv("RANK", "3")
    assert not {"SLURM_NTASKS", "RANK"} & set(clean_environment())
