"""What looks before a job starts, run by bash for real: the queue, the array, and the head of a job's own script."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.files import read_record
from orchestrator.launch.render import JobScript, render_array, render_queue
from orchestrator.launch.run_options import (
    FAILURE_PATTERNS,
    LOG_TAIL_BYTES,
    CanaryJob,
    FileCheck,
    FollowedJob,
    Gate,
    equal_failures,
    failure_kind,
)
from orchestrator.megatron.logs.alpa import RowKey
from orchestrator.megatron.logs.parse import read_log
from orchestrator.megatron.logs.statistics import is_long_enough
from orchestrator.megatron.model import Layout
from orchestrator.megatron.programs.base import with_log_checks
from orchestrator.reading.causes import cause
from orchestrator.reading.failure import Ending, Failure, failure_of
from orchestrator.reading.logs import log_blocks
from orchestrator.reading.statistics import ENOUGH_SAMPLES
from tests.recorded_jobs import job_row, job_spec
from tests.unit.render.plans import TEMPLATES, plain_slurm, plans
from tests.unit.render.stand_ins import Stage, cluster_and_plan, with_arguments
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

# Stands in for a job's script: leaves its record, and ends as it is told.
JOB = """#!/bin/bash
folder=$1
touch "$folder/ran"
echo "the job's own output"
printf '%s\\n' event=end exit_code=CODE at=2026-01-01T00:00:00Z host=h scheduler_id=s pid=$$ >"$folder/end"
exit CODE
"""

PLANNED = Layout(gpus=16, tensor_parallel=8, pipeline_parallel=2, micro_batch_size=1, global_batch_size=8)

LOGS = Path(__file__).parents[1] / "reading" / "logs"

ITERATION = (
    " [2026-01-01 00:00:00.000000] iteration {:8d}/{:8d} | consumed samples:           16 | elapsed time per iteration"
    " (ms): 100.0 | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: {} | loss scale: 1.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@dataclass
class Run:
    """The folder of a run with a space in its name; its jobs are stand-ins that end with these codes."""

    kind: str
    folder: Path
    scripts: list[JobScript] = field(default_factory=list)

    def job(self, name: str, code: int = 0) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text(JOB.replace("CODE", str(code)))
        self.scripts.append(JobScript(folder / "job.sh", folder))
        return folder

    def start(self, gate: Gate | None = None) -> None:
        """Run all jobs, one after another, as the queue or as elements of an array."""
        if self.kind == "queue":
            text = render_queue(self.scripts, self.folder / "lock", TEMPLATES, gate=gate)
            assert bash(self.folder / "queue.sh", text).returncode == 0
            return
        cluster = plain_slurm(self.folder)
        some = [plans(cluster, "cpu")[0]] * len(self.scripts)
        text = render_array(some, cluster, self.scripts, self.folder, TEMPLATES, at_once=1, gate=gate)
        for index in range(len(self.scripts)):
            bash(self.folder / "array.sh", text, SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID=str(index))

    def ran(self) -> list[str]:
        return [one.folder.name for one in self.scripts if (one.folder / "ran").exists()]


def bash(file: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    file.write_text(text)
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["bash", str(file)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(params=["queue", "array"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(request.param, tmp_path / "the run's")


def was_not_started(run: Run, folder: Path, because: str) -> None:
    """Its end is recorded, its output says why, and it is told from what failed by itself."""
    end = read_record(folder / "end")
    assert end is not None and end.exit_code == 95 and end.pid > 0
    place = [one.folder for one in run.scripts].index(folder)
    assert end.scheduler_id.endswith(f"_{place}") and (run.kind == "queue" or end.scheduler_id == f"17_{place}")
    assert (folder / "batch.txt").read_text() == f"repro: not started: {because}\n"
    said = cause(b"".join(log_blocks(folder)))
    assert said and failure_of(Ending("ended", "FAILED", 95, None), said.kind) is Failure.STOPPED


# ---- the array and the queue themselves ----------------------------------------------------------------------


def test_each_job_is_run_and_its_output_is_beside_it(run: Run) -> None:
    for name in ("a", "b b", "c"):
        run.job(name)
    run.start()
    assert run.ran() == ["a", "b b", "c"]
    assert [(one.folder / "batch.txt").read_text() for one in run.scripts] == ["the job's own output\n"] * 3


def test_what_a_queue_or_an_array_writes_is_not_for_everybody(run: Run) -> None:
    run.job("a", 7)
    run.job("b")
    before = os.umask(0)
    try:
        run.start(Gate(run.folder, stop_after=1))
    finally:
        os.umask(before)
    written = [one.folder / name for one in run.scripts for name in ("batch.txt", "end")]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o640}


def test_repeats_of_a_case_are_one_script_with_a_folder_each(run: Run) -> None:
    folder = run.job("a")
    run.scripts.append(JobScript(folder / "job.sh", run.folder / "a 2"))
    run.start()
    assert run.ran() == ["a", "a 2"] and not (run.folder / "a 2" / "job.sh").exists()


# ---- --stop-after --------------------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--stop-after` in an array and in a local queue, without a command that waits",
    promise="The jobs check it themselves.",
)
def test_after_so_many_equal_failures_no_other_job_starts(run: Run) -> None:
    run.job("a", 7)
    run.job("b", 7)
    stopped = [run.job("c"), run.job("d")]
    run.start(Gate(run.folder, stop_after=2))
    assert run.ran() == ["a", "b"]
    for folder in stopped:  # the second is not stopped by the first, which did not fail
        was_not_started(run, folder, "2 jobs of this run have failed in the same way: exit code 7")


@pytest.mark.parametrize("codes", [(7, 3), (0, 0), (7, 0), (95, 95), (143, 143)])
def test_what_ended_well_or_in_different_ways_or_was_not_started_or_cancelled_stops_nothing(
    run: Run, codes: tuple[int, int]
) -> None:
    for name, code in zip("ab", codes, strict=True):
        run.job(name, code)
    run.job("c")
    run.start(Gate(run.folder, stop_after=2))
    assert run.ran() == ["a", "b", "c"]


def test_failures_of_another_run_do_not_count(run: Run) -> None:
    other = Run(run.kind, run.folder.parent / "another")
    for one in (other, run):
        one.job("a", 7)
        one.job("b")
        one.start(Gate(one.folder, stop_after=2))
    assert run.ran() == ["a", "b"]


def test_the_first_job_of_a_run_has_nothing_to_count(run: Run) -> None:
    run.job("a")
    run.start(Gate(run.folder, stop_after=1))
    assert run.ran() == ["a"]


# One definition of the kind of a failure, for a job and for `repro wait`.

PARTIAL = "".join(ITERATION.format(number, 400, "6.9E+00") for number in range(1, 12))
"""A log with the fewest lines of a partial job: the first line contains the start-up."""
OOM = b"3: [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LIMIT = b"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
KINDS = {
    "well": (0, OOM, None),
    "its program": (1, b"ValueError: x\n", "exit code 1"),
    "no log": (2, None, "exit code 2"),
    "out of memory": (1, OOM, "gpu-oom"),
    "CUDA's words": (1, b"RuntimeError: CUDA error: out of memory\n", "gpu-oom"),
    "out of memory until its limit": (143, OOM + LIMIT, "gpu-oom"),
    "time limit": (143, LIMIT, "timeout"),
    "cancelled": (143, b"CANCELLED AT 2026-01-01T00:00:00 ***\n", None),
    "time limit of a local job": (124, b"", "exit code 124"),
    "time limit with enough samples": (143, PARTIAL.encode() + LIMIT, None),
    "time limit of a local job with enough samples": (124, PARTIAL.encode(), None),
    "time limit with enough samples, most of them skipped": (
        *(143, PARTIAL.replace("skipped iterations:   0", "skipped iterations:   1").encode() + LIMIT, "timeout"),
    ),
    "time limit with too few samples": (
        143,
        PARTIAL.partition(" [2026-01-01 00:00:00.000000] iteration       11")[0].encode() + LIMIT,
        "timeout",
    ),
    "not started": (95, OOM, None),
    "long ago in its log": (1, OOM + b"x\n" * LOG_TAIL_BYTES, "exit code 1"),
    "no text": (1, b"\xff\x00\xfe" + OOM, "gpu-oom"),
}


def long_enough(log: bytes) -> bool:
    return is_long_enough(log, warmup_iterations=0)


def shell_kind(folder: Path) -> str | None:
    """What the gate's own function prints, with the options that an array sets."""
    text = render_queue([], folder / "lock", TEMPLATES, gate=Gate(folder.parent, stop_after=1))
    function = text[text.index("plain() {") : text.index("may_start() {")]
    call = f"failure_kind {shlex.quote(str(folder))}"
    done = bash(folder.parent / "kind.sh", f"set -euo pipefail\n{function}\n{call}\n")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() or None


def ended(folder: Path, code: int, log: bytes | None) -> Path:
    folder.mkdir(parents=True)
    (folder / "end").write_text(f"exit_code={code}\nat=2026-01-01T00:00:00Z\nhost=h\nscheduler_id=s\npid=1\n")
    if log is not None:
        (folder / "log.txt").write_bytes(log)
    return folder


@pytest.mark.parametrize(("code", "log", "kind"), KINDS.values(), ids=KINDS)
def test_a_failure_has_one_kind_for_a_job_that_counts_it_and_for_repro(
    tmp_path: Path, code: int, log: bytes | None, kind: str | None
) -> None:
    folder = ended(tmp_path / "the run's" / "a", code, log)
    assert failure_kind(folder, long_enough) == shell_kind(folder) == kind
    row = replace(job_row(tmp_path), folder=str(folder), spec=job_spec(training={"warmup_iterations": 0}))
    assert equal_failures([row]) == ((1, kind) if kind else (0, ""))


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log")), ids=lambda log: log.stem)
def test_the_class_in_a_real_log_is_the_same_for_a_job_and_for_repro(tmp_path: Path, log: Path) -> None:
    folder = ended(tmp_path / "a", 1, log.read_bytes())
    assert failure_kind(folder, long_enough) == shell_kind(folder)


def test_the_patterns_are_those_of_the_verdict() -> None:
    for failure, pattern in FAILURE_PATTERNS:
        assert "(?" not in pattern and "\\" not in pattern, "grep -E reads it as Python does"
        assert failure in {one.value for one in Failure}


def test_a_link_in_the_place_of_a_record_counts_for_nobody(tmp_path: Path) -> None:
    real, folder = ended(tmp_path / "elsewhere" / "a", 1, b""), tmp_path / "run" / "a"
    folder.mkdir(parents=True)
    (folder / "end").symlink_to(real / "end")
    assert failure_kind(folder, long_enough) is None and shell_kind(folder) is None


# ---- --canary ------------------------------------------------------------------------------------------------

WORLD = (
    "using world size: {}, data-parallel size: 1, context-parallel size: 1, tensor-model-parallel size: {}, "
    "pipeline-model-parallel size: {}\n"
)
RAN = WORLD.format(16, 8, 2)
GOOD = RAN + ITERATION.format(7, 8, "6.9E+00") + ITERATION.format(8, 8, "6.8E+00")
IN_IMAGE = "inside_image={}/2\n"


def canary(run: Run, log: str = "", code: int | None = 0, nodes_inside: int | None = None, record: str = "") -> Gate:
    """The first job of the run; `code` is its exit code, None if it has not ended."""
    folder = run.job("the 'smallest'", code or 0)
    (folder / "log.txt").write_text(log)
    script = folder / "job.sh"
    script.write_text(script.read_text().replace("pid=$$ >", f"pid=$$ {shlex.quote(record.strip())} >"))
    if code is None:
        script.write_text("#!/bin/bash\nexit 0\n")
    inside = () if nodes_inside is None else (FileCheck("end", f"^inside_image={nodes_inside}/{nodes_inside}$"),)
    return Gate(run.folder, canary=with_log_checks(CanaryJob("pp=1 'x'", folder, inside), 8, PLANNED))


@pytest.mark.parametrize("nodes_inside", [None, 2])
def test_once_the_canary_is_verified_the_others_start(run: Run, nodes_inside: int | None) -> None:
    gate = canary(run, f"0: prefix\n{GOOD}", 0, nodes_inside, IN_IMAGE.format(2) if nodes_inside else "")
    run.job("b")
    run.start(gate)
    assert run.ran() == ["the 'smallest'", "b"]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The canary's log is missing, short, of another job or layout, or has NaN or infinite numbers; the canary "
    "failed, did not start, or has no end record",
    promise="The other jobs do not start, in an array and in a local queue.",
)
@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("", 0),
        (RAN + ITERATION.format(7, 8, "6.9E+00"), 0),
        (RAN + ITERATION.format(8, 80, "6.9E+00"), 0),
        (RAN + ITERATION.format(18, 18, "6.9E+00"), 0),
        (GOOD.replace("6.9E+00", "nan"), 0),
        (GOOD.replace("6.9E+00", "-inf"), 0),
        (GOOD.replace("6.9E+00", "INF"), 0),
        (GOOD.replace("loss scale", "grad norm: inf | loss scale"), 0),
        (GOOD + " | number of nan iterations:   1 |\n", 0),
        (GOOD.replace(" lm loss: 6.8E+00 |", ""), 0),
        (GOOD.replace("skipped iterations:   0", "skipped iterations:   8"), 0),
        (GOOD.replace(RAN, ""), 0),
        (GOOD.replace(RAN, WORLD.format(1, 8, 2)), 0),
        (GOOD.replace(RAN, WORLD.format(16, 4, 2)), 0),
        (GOOD.replace(RAN, WORLD.format(16, 8, 1)), 0),
        (GOOD, 1),
        (GOOD, 95),
        (GOOD, None),
    ],
    ids=[
        *(
            "no log",
            "short",
            "of another length",
            "of yet another",
            "nan",
            "inf",
            "INF",
            "norm",
            "nan iteration",
            "no loss",
            "skipped",
        ),
        *("no world size", "lone ranks", "other tensor size", "other pipeline size", "failed", "not started", "no end"),
    ],
)
def test_a_canary_that_was_not_verified_keeps_the_others_from_starting(run: Run, log: str, code: int | None) -> None:
    gate = canary(run, log, code)
    others = [run.job("b"), run.job("c")]
    run.start(gate)
    assert run.ran() in (["the 'smallest'"], [])
    for folder in others:
        was_not_started(run, folder, "its canary, pp=1 'x', is not verified")


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The canary reaches its time limit",
    promise="The other jobs start if the canary is partial, in an array and in a local queue.",
)
@pytest.mark.parametrize(
    ("iterations", "code", "limit", "starts"),
    [(11, 143, True, True), (11, 124, False, True), (10, 143, True, False), (11, 143, False, False)],
    ids=["enough on Slurm", "enough here", "too few", "cancelled"],
)
def test_the_others_start_once_the_canary_is_partial(
    run: Run, iterations: int, code: int, limit: bool, starts: bool
) -> None:
    lines = "".join(ITERATION.format(number, 400, "6.9E+00") for number in range(1, iterations + 1))
    gate = canary(run, RAN + lines + (LIMIT.decode() if limit else ""), code)
    assert gate.canary is not None
    run.job("b")
    run.start(replace(gate, canary=with_log_checks(replace(gate.canary, checks=()), 400, PLANNED)))
    assert ("b" in run.ran()) is starts


def printed(rng: random.Random) -> str:
    """Return the iteration lines of a program that skips iterations and may start again within its log."""
    interval, text = rng.choice([1, 2, 5]), ""
    for _ in range(rng.choice([1, 1, 2])):
        numbers = [*rng.choice([[], [1]]), *range(interval, interval * rng.randint(1, 16) + 1, interval)]
        for number in dict.fromkeys(numbers):
            skipped = rng.choice([0] * 8 + [1, interval])
            line = ITERATION.format(number, 80, "6.9E+00")
            line = (
                line.replace(" lm loss: 6.9E+00 |", "")
                if rng.random() < (0.8 if skipped == interval else 0.02)
                else line
            )
            text += line.replace("skipped iterations:   0", f"skipped iterations:   {skipped}")
    return text


def test_a_job_counts_samples_and_skipped_iterations_as_the_verdict_does(tmp_path: Path) -> None:
    """Compare both on real logs and on random logs."""
    odd, rng, warm_up = ("damaged-lines", "numbers-that-cannot-be"), random.Random(7), 3
    logs = [log.read_bytes() for log in sorted(LOGS.glob("*.log")) if log.stem not in odd]
    logs += [printed(rng).encode() for _ in range(400)]
    text = render_queue([], tmp_path / "lock", TEMPLATES, gate=Gate(tmp_path, stop_after=1, warm_up=warm_up))
    function = text[text.index("trained() {") : text.index("# Print how")]
    calls = []
    for index, log in enumerate(logs):
        (tmp_path / f"{index}.txt").write_bytes(log)
        calls.append(f"trained {tmp_path}/{index}.txt {ENOUGH_SAMPLES} && echo {index} || :")
    done = bash(tmp_path / "count.sh", "\n".join([function, *calls]))
    expected = [str(index) for index, log in enumerate(logs) if is_long_enough(log, warm_up)]
    assert done.stdout.split() == expected and done.stderr == ""
    assert 50 < len(expected) < len(logs) - 50


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A node of the canary ran outside the image",
    promise="The other jobs do not start.",
)
@pytest.mark.parametrize("record", ["", IN_IMAGE.format(1)], ids=["no proof", "one of two nodes"])
def test_a_canary_that_ran_outside_its_image_keeps_the_others_from_starting(run: Run, record: str) -> None:
    gate = canary(run, GOOD, 0, 2, record)
    other = run.job("b")
    run.start(gate)
    was_not_started(run, other, "its canary, pp=1 'x', is not verified")


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log")), ids=lambda log: log.stem)
def test_the_check_of_a_canary_finds_in_a_real_log_what_the_verdict_finds(tmp_path: Path, log: Path) -> None:
    """Last iteration, sizes and finite numbers, each asked of the parsers and of grep."""
    report, text = read_log(log.read_bytes()), log.read_bytes()
    world, last = report.facts.world, report.last_iteration or 1
    sizes = (world.world_size, world.tensor_parallel, world.pipeline_parallel) if world else (1, 1, 1)
    layout = Layout(*sizes, 1, 8)
    (tmp_path / "log.txt").write_bytes(text)
    job = with_log_checks(CanaryJob("x", tmp_path), last, layout)
    patterns = [str(job.whole), *(check.pattern for check in job.checks if check.file == "log.txt")]
    matches = [
        bash(tmp_path / "check.sh", f"LC_ALL=C grep -aEqs {shlex.quote(pattern)} {tmp_path}/log.txt").returncode == 0
        for pattern in patterns
    ]
    has_odd_lines = log.stem in ("damaged-lines", "numbers-that-cannot-be")
    whole, planned = (re.search(rb"iteration +%s/ *%d \|" % (at, last), text) for at in (b"%d" % last, b"[0-9]+"))
    assert matches[:3] == [whole is not None, planned is not None, world is not None]
    assert has_odd_lines or matches[3] is any(not line.is_finite for line in report.iterations)


ALPA = RowKey(num_hosts=1, num_devices_per_host=4, parameters_billion=1.313409024)


@pytest.mark.parametrize("name", ["4-gpus", "another-case", "killed", "nan", "out-of-memory", "wrong-layout"])
def test_the_canary_of_alpas_benchmark_passes_with_the_row_of_its_case(run: Run, name: str) -> None:
    gate = canary(run, (LOGS / f"alpa-osdi22-{name}.log").read_text())
    assert gate.canary is not None
    job = with_log_checks(replace(gate.canary, checks=()), 3, Layout(4, 1, 2, 1, 4), ALPA)
    run.job("b")
    run.start(replace(gate, canary=job))
    assert ("b" in run.ran()) is (name == "4-gpus")


def test_a_canary_that_runs_in_another_runs_folder_is_looked_for_there(run: Run) -> None:
    elsewhere = Run(run.kind, run.folder.parent / "another")
    gate = canary(elsewhere, GOOD)
    run.job("b")
    run.start(Gate(run.folder, canary=gate.canary))
    assert run.ran() == []
    elsewhere.start()
    run.start(Gate(run.folder, canary=gate.canary))
    assert run.ran() == ["b"]


# ---- a script that is started twice --------------------------------------------------------------------------

OWN = {"slurm": "SLURM_JOB_ID", "mpirun": "REPRO_LOCAL_ID", "local": "REPRO_LOCAL_ID"}


@pytest.mark.fault(
    section="Submissions",
    fault="A second copy of a job starts",
    promise="The folder is already claimed: the copy ends with exit code 95 and changes nothing.",
)
@pytest.mark.parametrize("kind", OWN)
def test_a_second_copy_of_a_submission_does_not_start(kind: str, tmp_path: Path) -> None:
    """As a slow scheduler may have taken: the first of them is running."""
    (cluster, plan), stage = cluster_and_plan(kind), Stage.at(tmp_path)
    stage.job.mkdir()
    (stage.job / "claimed").write_text("77\n")
    second = stage.run(stage.render(with_arguments(plan), cluster), {OWN[kind]: "78"})
    assert (second.returncode, second.stdout) == (95, "")
    assert second.stderr == "repro: not started: job 77 runs it already\n"
    assert [path.name for path in stage.job.iterdir()] == ["claimed"] and not (tmp_path / "argv").exists()


@pytest.mark.parametrize("kind", OWN)
def test_a_job_that_the_scheduler_starts_again_under_its_id_runs_again(kind: str, tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan(kind), Stage.at(tmp_path)
    stage.job.mkdir()
    (stage.job / "claimed").write_text("77\n")
    (stage.job / "start").write_text("its node was lost\n")
    stage.run_job(with_arguments(plan), cluster, {OWN[kind]: "77"})
    assert stage.end_record()["scheduler_id"] == "77" and (tmp_path / "argv").exists()


@pytest.mark.parametrize("kind", OWN)
def test_a_script_that_is_run_by_hand_can_be_run_by_hand_again(kind: str, tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan(kind), Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), cluster, {OWN[kind]: "77"})
    (tmp_path / "argv").unlink()
    stage.run_job(with_arguments(plan), cluster, {OWN[kind]: "78"})
    assert stage.end_record()["scheduler_id"] == "78" and (tmp_path / "argv").exists()


@pytest.mark.fault(
    section="Submissions",
    fault="A second copy of a job starts after the first has ended",
    promise="It ends with exit code 95. A script that a user starts by hand still runs.",
)
def test_a_copy_that_a_scheduler_starts_after_the_first_has_ended_does_not_run_again(tmp_path: Path) -> None:
    """What is submitted is told its folder, and so knows that nobody repeats it by hand."""
    (cluster, plan), stage = cluster_and_plan("local"), Stage.at(tmp_path)
    script = stage.base / "job.sh"
    stage.run_job(with_arguments(plan), cluster, {"REPRO_LOCAL_ID": "77"})
    script.write_text(stage.render(with_arguments(plan), cluster))
    environment = {"PATH": f"{stage.base}/bin:/usr/bin:/bin", "REPRO_LOCAL_ID": "78"}
    late = subprocess.run(
        ["bash", script, stage.job], env=environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert (late.returncode, late.stderr) == (95, "repro: not started: job 77 runs it already\n")
    assert stage.end_record()["scheduler_id"] == "77"


@pytest.mark.fault(
    section="Submissions",
    fault="Both copies of a job start at the same moment",
    promise="One of them runs.",
)
def test_of_two_copies_that_start_at_once_one_runs(tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan("local"), Stage.at(tmp_path)
    script = stage.base / "job.sh"
    (stage.base / "bin" / "python").write_text('#!/bin/sh\n[ "$1" = -c ] || echo x >>"$RECORDS/ran"\nsleep 0.5\n')
    script.write_text(stage.render(with_arguments(plan), cluster))
    environment = {"PATH": f"{stage.base}/bin:/usr/bin:/bin", "RECORDS": str(stage.base)}
    both = [
        subprocess.Popen(["bash", script], env={**environment, "REPRO_LOCAL_ID": own}, stderr=subprocess.DEVNULL)
        for own in ("77_0", "78_0")
    ]
    assert sorted(process.wait(timeout=600) for process in both) == [0, 95]
    assert (stage.base / "ran").read_text() == "x\n"


@pytest.mark.fault(
    section="Safety",
    fault="Any umask, for the files that a job's script writes",
    promise="User and group can read them, nobody else.",
)
@pytest.mark.parametrize("kind", OWN)
def test_what_a_job_writes_is_not_for_everybody(kind: str, tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan(kind), Stage.at(tmp_path)
    before = os.umask(0)
    try:
        stage.run_job(with_arguments(plan), cluster)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (stage.job, *stage.job.iterdir())}
    assert modes.pop(stage.job.name) == 0o750
    assert {"claimed", "start", "end"} <= set(modes) and set(modes.values()) == {0o640}


# ---- what a queue waits for, and what it clears away ---------------------------------------------------------

KILLED = """#!/bin/bash
folder=$(dirname "$0")
TRAP
SESSIONsleep 300 &
echo $! >"$folder/child"
printf '%s\\n' event=start exit_code=0 at=2026-01-01T00:00:00Z host=h scheduler_id=s pid=$$ >"$folder/.s"
mv "$folder/.s" "$folder/start"
wait
"""

LOOKS = """#!/bin/bash
child=$(<CHILD)
grep -Eqs '^State:.[^ZX]' "/proc/$child/status" && touch "$(dirname "$0")/disturbed"
touch "$(dirname "$0")/ran"
"""


@pytest.mark.fault(
    section="Local queue",
    fault="A killed script or launcher leaves workers, also ones that ignore signals or have their own session, as "
    "torchrun's ranks",
    promise="The workers are ended before the next job starts, so that none of them keeps a GPU.",
)
@pytest.mark.parametrize("session", ["", "setsid "], ids=["of its group", "in a session of its own, as torchrun's"])
@pytest.mark.parametrize("trap", ["", "trap '' TERM"], ids=["that goes", "that does not listen"])
def test_workers_that_a_killed_script_left_are_ended_before_the_next_job_starts(
    tmp_path: Path, trap: str, session: str
) -> None:
    run = Run("queue", tmp_path / "the run's")
    killed, following = run.job("a"), run.job("b")
    (killed / "job.sh").write_text(KILLED.replace("TRAP", trap).replace("SESSION", session))
    (following / "job.sh").write_text(LOOKS.replace("CHILD", shlex.quote(f"{killed}/child")))
    queue = run.folder / "queue.sh"
    queue.write_text(render_queue(run.scripts, run.folder / "lock", TEMPLATES))
    with subprocess.Popen(["bash", str(queue)], start_new_session=True) as process:
        wait_until((killed / "start").exists)
        start = read_record(killed / "start")
        assert start is not None and Path(f"/proc/{(killed / 'child').read_text().strip()}").exists()
        os.kill(start.pid, signal.SIGKILL)
        assert process.wait(timeout=600) == 0
    assert (following / "ran").exists() and not (following / "disturbed").exists()


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


@pytest.mark.fault(
    section="Local queue",
    fault="A queue waits for a job that ends, is cancelled, or loses its queue",
    promise="The queue starts.",
)
@pytest.mark.parametrize("how", ["end", "cancelled", "its queue is gone"])
def test_a_queue_that_follows_a_job_begins_when_that_one_has_ended(
    tmp_path: Path, sleeping: subprocess.Popen[bytes], how: str
) -> None:
    run = Run("queue", tmp_path / "the run's")
    run.job("b")
    (tmp_path / "be fore").mkdir()
    before = [FollowedJob(str(tmp_path / "be fore"), sleeping.pid)]
    queue = run.folder / "queue.sh"
    queue.write_text(render_queue(run.scripts, run.folder / "lock", TEMPLATES, follows=before))
    with subprocess.Popen(["bash", str(queue)], start_new_session=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        assert run.ran() == []
        if how == "its queue is gone":
            sleeping.kill()
            sleeping.wait()
        else:
            (tmp_path / "be fore" / how).touch()
        assert process.wait(timeout=600) == 0
    assert run.ran() == ["b"]


# ---- jobs that Slurm starts again ----------------------------------------------------------------------------


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Slurm starts a job again that has ended",
    promise="No file of the ended run changes. Each further run has a folder of its own.",
)
@pytest.mark.parametrize("submitted", [True, False], ids=["by repro", "by hand"])
def test_a_run_of_a_job_that_has_ended_changes_no_file_of_the_earlier_run(submitted: bool, tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan("slurm"), Stage.at(tmp_path)
    script = stage.render(with_arguments(plan), cluster)
    words = [str(stage.job)] if submitted else []
    assert stage.run(script, {"SLURM_JOB_ID": "77"}, *words).returncode == 0
    before = {path.name: path.read_bytes() for path in stage.job.iterdir()}
    for number in (2, 3):
        assert stage.run(script, {"SLURM_JOB_ID": "77"}, *words).returncode == 0
        end = read_record(stage.job.with_name(f"{stage.job.name}.run{number}") / "end")
        assert end is not None and end.scheduler_id == "77"
    assert {path.name: path.read_bytes() for path in stage.job.iterdir()} == before


def test_an_element_of_an_array_that_has_ended_runs_again_in_a_folder_of_its_own(tmp_path: Path) -> None:
    run = Run("array", tmp_path / "the run's")
    job = run.job("a")
    run.start()
    (job / "claimed").write_text("17_0\n")
    before = {path.name: path.read_bytes() for path in job.iterdir()}
    run.start()
    assert {path.name: path.read_bytes() for path in job.iterdir()} == before
    assert {path.name for path in job.with_name("a.run2").iterdir()} == {"ran", "batch.txt", "end"}


def test_a_job_that_was_given_up_does_not_start_again_in_another_folder(tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan("slurm"), Stage.at(tmp_path)
    script = stage.render(with_arguments(plan), cluster)
    assert stage.run(script, {"SLURM_JOB_ID": "77"}, str(stage.job)).returncode == 0
    (stage.job / "cancelled").touch()
    assert stage.run(script, {"SLURM_JOB_ID": "77"}, str(stage.job)).returncode == 143
    assert not stage.job.with_name(f"{stage.job.name}.run2").exists()


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The disk was full when a job claimed its folder",
    promise="The job does not start. The reason names the empty file.",
)
@pytest.mark.parametrize("kind", OWN)
def test_an_empty_claim_keeps_a_job_from_starting_and_is_named(kind: str, tmp_path: Path) -> None:
    (cluster, plan), stage = cluster_and_plan(kind), Stage.at(tmp_path)
    stage.job.mkdir()
    (stage.job / "claimed").touch()
    refused = stage.run(stage.render(with_arguments(plan), cluster), {OWN[kind]: "78"})
    assert refused.returncode == 95
    assert refused.stderr == (
        f"repro: not started: {stage.job}/claimed is missing or empty, as after a full disk; "
        "remove it to start the job\n"
    )
    (stage.job / "claimed").unlink()
    stage.run_job(with_arguments(plan), cluster, {OWN[kind]: "78"})
    assert (stage.job / "claimed").read_text() == "78\n"
