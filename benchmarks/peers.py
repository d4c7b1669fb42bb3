"""`pretrain` compared with its peers on this machine: the same GPT in plain PyTorch and, optionally, in Megatron-LM.

    python -m benchmarks.peers [--megatron CHECKOUT] [--rounds 2] [--iterations 50] [--tensor-parallel 2]

The default is SC21's model of 1.7 billion parameters on one GPU, batch 16, with full recomputation. Rounds are
interleaved, so that the temperature of the machine affects all programs alike. `repro` submits `pretrain` and
Megatron-LM. Plain PyTorch has no model parallelism, so it is left out on several GPUs. Without a GPU, choose a model
that fits CPU cores, in fp32. Megatron-LM needs a GPU.

All programs train with Adam at the same constant learning rate. `pretrain` and plain PyTorch start with the same
weights and read the same tokens. Megatron-LM draws its own weights and reads the same sequences in its own order, so
its losses are similar but never equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from orchestrator.clusters.machine import this_machine
from orchestrator.megatron.logs.parse import read_log
from orchestrator.megatron.model import ModelShape, flops_per_iteration, tflops_per_gpu
from orchestrator.megatron.programs.megatron_core import SCRIPTED_ITERATIONS

REPOSITORY = Path(__file__).resolve().parent.parent
WARM_UP = 4
"""Number of first iterations that are not timed: kernels are selected, compiled and loaded in them."""
LATER = 16
"""Iterations of the rounds after the first one. Only their times count."""
MEAN_OF = 5
"""Number of iterations of a printed mean loss."""
TRAIN_SHARE = 0.969
"""Share of the documents for training in Megatron-LM: --split of SC21's scripts."""
CONSTANT_RATE = ("--lr-decay-style", "constant", "--lr-warmup-fraction", "0.0", "--min-lr", "0.0001")
"""Megatron-LM's arguments for the other programs' learning rate: --lr of SC21's scripts, without their schedule."""


@dataclass(frozen=True)
class Case:
    """Model and training of all programs; lengths in tokens, batch sizes in sequences."""

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int
    micro_batch_size: int
    global_batch_size: int
    recompute: bool
    dtype: str
    device: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def gpus(self) -> int:
        """Return the number of GPUs, or of processes on CPU cores."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def flops(self) -> float:
        """Return the FLOPs of one iteration by SC21 eq. 3."""
        shape = ModelShape(self.layers, self.hidden, self.heads, self.seq, self.vocab)
        return flops_per_iteration(shape, self.global_batch_size, self.recompute)


@dataclass(frozen=True)
class Step:
    elapsed_ms: float
    loss: float


@dataclass
class Measured:
    """Results of a program: `times_ms` of all rounds without the warm-up, losses of the first round, the longest."""

    times_ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, steps: Sequence[Step]) -> None:
        self.times_ms += [step.elapsed_ms for step in steps[WARM_UP:]]
        self.losses = self.losses or [step.loss for step in steps]


Program = Callable[[int], list[Step]]
"""Function that trains a number of iterations."""


def main() -> int:
    options = parsed()
    case = Case(**{part.name: getattr(options, part.name) for part in fields(Case)})
    with tempfile.TemporaryDirectory(prefix="peers") as temporary:
        home = (options.home or Path(temporary)).absolute()
        home.mkdir(parents=True, exist_ok=True)
        measured = measure(programs(case, home, options.megatron), options.rounds, options.iterations)
    print(f"\n{case}\n{times(case, measured)}\n\n{losses(measured)}")
    return 0 if all(program.times_ms for program in measured.values()) else 1


def parsed() -> argparse.Namespace:
    on_gpu = this_machine().gpus > 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 24, "hidden": 2304, "heads": 24, "seq": 2048, "vocab": 51200}
    for name, default in {**sizes, "micro_batch_size": 16, "global_batch_size": 16, "rounds": 2}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    for name in ("tensor-parallel", "pipeline-parallel"):
        parser.add_argument(f"--{name}", type=int, default=1, help="number of GPUs")
    parser.add_argument("--iterations", type=int, default=50, help=f"of the first round; later ones have {LATER}")
    parser.add_argument("--no-recompute", action="store_false", dest="recompute", help="keep all activations")
    parser.add_argument("--megatron", type=Path, help="a checkout of today's Megatron-LM, to be timed, too")
    parser.add_argument("--home", type=Path, help="where scripts and logs are kept; else they are not")
    parser.set_defaults(dtype="bf16" if on_gpu else "fp32", device="gpu" if on_gpu else "cpu")
    options = parser.parse_args()
    if options.iterations <= WARM_UP:
        parser.error(f"--iterations: more than the {WARM_UP} that warm up")
    return options


def programs(case: Case, home: Path, megatron: Path | None) -> dict[str, Program]:
    programs: dict[str, Program] = {
        "pretrain": lambda iterations: submitted(case, home, "pretrain", iterations, {}, ()),
    }
    if case.gpus == 1:
        programs["plain PyTorch"] = lambda iterations: plain(case, iterations)
    if megatron is not None and case.device == "cpu":
        print("Megatron-LM needs a GPU and this machine has none: left out")
    elif megatron is not None:
        # Without GPT-2's files there is no tokenizer of its kind; what is read are numbers already.
        arguments = ("--tokenizer-type", "NullTokenizer", "--vocab-size", str(case.vocab - 1), *CONSTANT_RATE)
        site = megatron_site(case, home, megatron.absolute())
        programs["Megatron-LM"] = lambda iterations: submitted(case, home, "megatron-2026", iterations, site, arguments)
    return programs


def megatron_site(case: Case, home: Path, checkout: Path) -> dict[str, object]:
    """Return the profile's Megatron-LM settings, with data of `pretrain`'s tokens.

    With fewer than a thousand documents, one split of the data would be empty and Megatron-LM would search it forever.
    """
    from benchmarks.plain_gpt import Sizes
    from benchmarks.token_files import write_token_files

    prefix = home / "tokens"
    shape = (case.layers, case.hidden, case.heads, case.seq, case.vocab, case.micro_batch_size, case.global_batch_size)
    documents = int(SCRIPTED_ITERATIONS * case.global_batch_size / TRAIN_SHARE) + case.global_batch_size
    write_token_files(prefix, Sizes(*shape, SCRIPTED_ITERATIONS), max(1000, documents))
    # NullTokenizer reads no vocabulary, but `repro submit` requires that the two files exist.
    data = {"data_path": str(prefix), "vocab_file": f"{prefix}.idx", "merge_file": f"{prefix}.idx"}
    return {"checkout": str(checkout), **data, "transformer_engine": False}


def measure(named: Mapping[str, Program], rounds: int, iterations: int) -> dict[str, Measured]:
    """Run all programs in turn for a number of rounds. A program that fails does not run again."""
    measured = {name: Measured() for name in named}
    failed: set[str] = set()
    for turn in range(rounds):
        for name, run in named.items():
            if name in failed:
                continue
            try:
                measured[name].add(run(iterations if turn == 0 else min(iterations, LATER)))
            except subprocess.CalledProcessError as error:
                failed.add(name)
                print(f"{name} failed with exit code {error.returncode}:\n{(error.output or '')[-3000:]}")
                continue
            median = statistics.median(measured[name].times_ms)
            print(f"round {turn + 1}: {name:<14} {median:10.1f} ms per iteration so far", flush=True)
    return measured


def plain(case: Case, iterations: int) -> list[Step]:
    arguments = [f"--{name}={getattr(case, name)}" for name in ("layers", "hidden", "heads", "seq", "vocab", "dtype")]
    arguments += [f"--micro-batch-size={case.micro_batch_size}", f"--global-batch-size={case.global_batch_size}"]
    arguments += ["--recompute"] if case.recompute else []
    arguments += ["--no-compile"] if case.device == "cpu" else []  # minutes of compiling for models of seconds
    output = run_python("-m", "benchmarks.plain_gpt", f"--iterations={iterations}", *arguments)
    steps = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [Step(step["elapsed_ms"], step["loss"]) for step in steps if "elapsed_ms" in step]


def submitted(
    case: Case, home: Path, program: str, iterations: int, site: Mapping[str, object], arguments: Sequence[str]
) -> list[Step]:
    """Run an experiment with this one case by `repro submit`."""
    experiment, cluster = f"peer-{program}", home / "clusters" / f"{program}.yaml"
    for file, content in {
        home / "experiments" / "peers" / "paper.yaml": {"title": "Peers of pretrain", "venue": "this machine"},
        home / "experiments" / "peers" / f"{experiment}.yaml": experiment_of(case, program, iterations, arguments),
        cluster: {"about": "this machine", "scheduler": "local", "programs": {program: site}},
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1))  # which is YAML, too
    before = set(home.glob("runs/*/*/log.txt"))
    command = ("-m", "orchestrator.cli.main", "submit", f"peers/{experiment}")
    try:
        run_python(*command, "--cluster", str(cluster), "--wait", "--rerun", home=home)
    except subprocess.CalledProcessError as error:
        for log in set(home.glob("runs/*/*/log.txt")) - before:
            error.output = f"{log.read_text(errors='replace')[-2500:]}\n{error.output}"
        raise
    (log,) = set(home.glob("runs/*/*/log.txt")) - before
    return [Step(line.elapsed_ms, line.loss or float("nan")) for line in read_log(log.read_bytes()).iterations]


def experiment_of(case: Case, program: str, iterations: int, arguments: Sequence[str]) -> dict[str, object]:
    names = ("layers", "hidden", "heads", "seq", "vocab")
    layout = {"tp": case.tensor_parallel, "pp": case.pipeline_parallel, "gpus": case.gpus}
    row = {"case": "peer", **layout, "mbs": case.micro_batch_size, "gbs": case.global_batch_size}
    training = {"dtype": case.dtype, "recompute": "full" if case.recompute else "none", "dropout": 0.0}
    counts = {"iterations": iterations, "warmup_iterations": WARM_UP, "log_interval": 1, "evaluation_iterations": 0}
    return {
        "figure": "Peers",
        "title": "One case by several programs",
        "program": program,
        "device": case.device,
        "time_limit": "0:30:00",
        "model": {name: getattr(case, name) for name in names},
        "cases": [row],
        "arguments": list(arguments),
        "training": {**training, **counts},
        "axes": {
            "x": {"label": "Case", "of": ["case"]},
            "y": {"label": "Teraflop/s per GPU", "metric": "tflops_per_gpu"},
        },
    }


def run_python(*arguments: str, home: Path | None = None) -> str:
    """Return stdout and stderr of a Python program of this checkout. Raise CalledProcessError if it fails.

    Megatron-LM's jobs start `python`, which is this interpreter.
    """
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")])),
        **({"REPRO_HOME": str(home), "REPRO_DATABASE": str(home / "results.db")} if home else {}),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=home or REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def times(case: Case, measured: Mapping[str, Measured]) -> str:
    """Print the medians and their ratios to `pretrain`."""
    lines = [f"{'program':<16}{'ms':>10}{'fastest':>10}{'slowest':>10}{'TFLOP/s':>10}{'pretrain is':>14}"]
    medians = {name: statistics.median(program.times_ms) for name, program in measured.items() if program.times_ms}
    for name, median in medians.items():
        rate = tflops_per_gpu(case.flops, median, case.gpus)
        ratio = f"{median / medians['pretrain']:>12.2f} x" if "pretrain" in medians else ""
        least, most = min(measured[name].times_ms), max(measured[name].times_ms)
        lines.append(f"{name:<16}{median:>10.1f}{least:>10.1f}{most:>10.1f}{rate:>10.1f}{ratio:>14}")
    lines += [f"{name:<16}{'failed':>10}" for name in measured if name not in medians]
    return "\n".join(lines)


def losses(measured: Mapping[str, Measured]) -> str:
    """Return a table of mean losses, and the relative differences of each other program from `pretrain`."""
    ran = {name: program.losses for name, program in measured.items() if program.losses}
    lines = [f"{'loss of':<16}" + "".join(f"{name:>16}" for name in ran)]
    for begin in range(0, max(map(len, ran.values()), default=0), MEAN_OF):
        parts = [program[begin : begin + MEAN_OF] for program in ran.values()]
        end = begin + max(map(len, parts))
        lines.append(f"{f'{begin + 1}-{end}':<16}" + "".join(f"{statistics.fmean(part):>16.5f}" for part in parts))
    own = ran.pop("pretrain", [])
    for name, program in ran.items() if own else ():
        differences = [abs(other / loss - 1) for loss, other in zip(own, program, strict=False)]
        mean, worst = statistics.fmean(differences), max(differences)
        lines.append(f"{name}: the loss differs from pretrain's by {mean:.1e} on average and by at most {worst:.1e}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
