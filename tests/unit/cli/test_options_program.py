"""Tests of `--program`: notes, suggested commands and refusals. unit/api tests that programs are never mixed."""

from __future__ import annotations

import pytest

from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

PROFILE = """\
about: a node of four GPUs
scheduler: slurm
hardware: {nodes: 1, gpus_per_node: 4, gpu: NVIDIA H200, gpu_memory_gb: 141, peak_tflops: {bf16: 989, fp16: 989}}
slurm: {time_limit: "1:00:00"}
programs: {megatron-2021: {checkout: /code, data_path: /data, vocab_file: /vocab, merge_file: /merges}}
"""


def test_another_program_is_named_and_suggested_commands_keep_it(repro: Caller) -> None:
    done = repro("plan", "figure-13", "--cluster", "selene", "--program", "pretrain")
    assert "note: figure-13 with pretrain instead of megatron-2021" in done.complaints
    assert "next: repro submit figure-13 --cluster selene --scale paper --program pretrain --dry-run" in done.stderr
    newest, short = (repro("plan", "table-1", "--program", name) for name in ("megatron-2026", "megatron-core"))
    assert short.returncode == 0 and (short.stdout, short.stderr) == (newest.stdout, newest.stderr)
    done = repro("plan", "atc24", "--program", "pretrain")
    left_out = [line.split()[1] for line in done.complaints if " is left out: --program pretrain: " in line]
    assert (done.returncode, left_out) == (0, ["atc-demo", "atc-table-8"])


def test_dry_run_and_scripts_use_the_chosen_program(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "four.yaml").write_text(PROFILE)
    words = ("figure-13", "--cluster", "four", "--scale", "quad", "--where", "pp=1,gbs=32")
    dry = repro("submit", *words, "--program", "megatron-2021", "--dry-run")
    assert dry.returncode == 0 and "note: figure-13 with megatron-2021 instead of pretrain" in dry.stderr
    suggested = dry.stderr.splitlines()[-1].removeprefix("next: repro ").partition("   #")[0].split()
    assert "--program megatron-2021" in " ".join(suggested)
    assert "/code/pretrain_gpt.py" in repro(*suggested).stdout
    own = repro("render", *words)
    assert "orchestrator.pretrain" in own.stdout and "instead of" not in own.stderr
    for more in ((), ("--program", "megatron-2021")):
        assert repro("render", *words, *more, "-o", "jobs").returncode == 0
    assert sorted(file.name for file in (repro.site.folder / "jobs").glob("*.sh")) == [
        "figure-13-megatron-2021-pp1-tp4-gbs32.sh",
        "figure-13-pp1-tp4-gbs32.sh",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plan figure-13 --program pretain", 'pretain: no such program. Did you mean "pretrain"?'),
        (
            "submit figure-13 --cluster local --scale cpu --program megatron-2021 --dry-run",
            "--program megatron-2021: figure-13 at scale cpu runs on CPU cores, and megatron-2021 on GPUs only. "
            "Hint: leave",
        ),
        ("plan atc-demo --program pretrain", "--program pretrain: atc-demo at scale paper compares programs (mega"),
    ],
)
def test_a_program_that_cannot_be_is_refused_in_a_line(repro: Caller, words: str, expected: str) -> None:
    done = repro(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[0].startswith(f"repro: {expected}"), done.stderr
