"""Mistakes in a file that describes its program: each one with its place, once, and with no problem that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from tests.unit.catalog.entries import CHECKOUT

FILE = """\
figure: Figure 1
title: Loss by width
device: cpu
program:
  command: [python3, train.py, --width, "{width}", --steps, "{steps}"]
  output: {iterations: 'step={iteration} loss={loss}'}
  metrics: {loss: {better: lower, take: last}}
  verified: iterations == steps
matrix: {width: [64, 128]}
fixed: {steps: 2}
plot: {x: {label: Width, of: [width]}, y: {label: Loss, metric: loss}}
claims:
  - {id: falls, kind: trend, says: The loss falls., source: x, stated: derived, judged_at: [paper], along: width,
     direction: falls}
published:
  - {where: {width: 64}, metric: loss, value: 0.2, how: printed, confirmed: true, source: own run}
"""
COMMAND = '[python3, train.py, --width, "{width}", --steps, "{steps}"]'


def problems(folder: Path, text: str) -> list[str]:
    """Return the problems of an experiment without the folder of its file."""
    file = folder / "toy" / "loss.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    (file.parent / "train.py").touch()
    (file.parent / "in.txt").write_text("{wide}")
    try:
        api.check_experiment(str(file), Folders(CHECKOUT, folder))
    except ReproError as error:
        return [
            str(problem).replace(f"{file.parent}/", "").replace(str(file.parent), "toy") for problem in error.problems
        ]
    return []


def test_the_file_has_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, FILE) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            '--width, "{width}", --steps, "{steps}"',
            "--width, {width}, --steps, {steps}",
            [
                'loss.yaml:5:41 program.command.3: must be text. Hint: quote it: "{width}"',
                'loss.yaml:5:59 program.command.5: must be text. Hint: quote it: "{steps}"',
            ],
        ),
        (
            COMMAND,
            "python3 train.py --width {width}",
            [
                "loss.yaml:5:12 program.command: must be a list of words, got 'python3 train.py --width {width}'. "
                'Hint: write [python3, train.py, --width, "{width}"]'
            ],
        ),
        (
            "better: lower",
            "better: less",
            ["loss.yaml:7:28 program.metrics.loss.better: must be 'higher' or 'lower', got 'less'"],
        ),
        (
            "metrics: {loss:",
            "metrics: {lost:",
            ['loss.yaml:7:19 program.metrics.lost: lost: not in the output. Did you mean "loss"?'],
        ),
        (
            '"{width}"',
            '"{wide}"',
            ['loss.yaml:5:41 program.command.3: {wide}: no such axis. Did you mean "width"?'],
        ),
        (
            "train.py",
            "trian.py",
            ['loss.yaml:5:22 trian.py: no such file in toy. Did you mean "train.py"?'],
        ),
        ("step={iteration}", "{step}", ["loss.yaml:6:24 program.output.iterations: the pattern must have {iteration}"]),
        (
            "output: {",
            "output: {values: {best: '{a} {b}'}, ",
            ["loss.yaml:6:27 program.output.values.best: the pattern must have one {number}, and no other name"],
        ),
        (
            "output: {",
            "output: {values: {best: lowest}, ",
            ["loss.yaml:6:27 program.output.values.best: has no {name} for the number to read"],
        ),
        (
            "  verified",
            "  processes: one per gpu\n  verified",
            [
                "loss.yaml:8:14 program.processes: must be 'one', 'one per node' or 'one per GPU', got 'one per gpu'. "
                'Did you mean "one per GPU"?'
            ],
        ),
        ("  verified", "  verifyed", ['loss.yaml:8:3 verifyed: unknown field. Did you mean "verified"?']),
        ("iterations == steps", "iteration == steps", ["loss.yaml:8:13 program.verified: iteration: no such number"]),
        ("iterations == steps", "all == 2", ["loss.yaml:8:13 program.verified: all is a word of the grammar"]),
        (
            "  verified",
            "  environment: {THREADS: '{wide}'}\n  verified",
            ['loss.yaml:8:26 program.environment.THREADS: {wide}: no such axis. Did you mean "width"?'],
        ),
        (
            "  verified",
            "  failures: {Bad Link: x}\n  verified",
            ["loss.yaml:8:14 program.failures.Bad Link: invalid name: a class has lower-case letters, digits and -"],
        ),
        (
            "  verified",
            "  failures: {bad-link: 'x*'}\n  verified",
            ["loss.yaml:8:24 program.failures.bad-link: matches an empty line, got 'x*'"],
        ),
        (
            "  verified",
            "  setup: [{run: [server, '{wide}'], ready: [probe]}]\n  verified",
            ['loss.yaml:8:26 program.setup.0.run.1: {wide}: no such axis. Did you mean "width"?'],
        ),
        (
            "  verified",
            "  setup: [{run: [server]}]\n  verified",
            ["loss.yaml:8:11 program.setup.0: must have one of ready and log: how to see that the step is ready"],
        ),
        (
            "  verified",
            "  setup: [{run: [server], ready: [probe.sh]}]\n  verified",
            [],  # the first word is a program of the path
        ),
        (
            "  verified",
            "  files: {a: {template: in.txt}, b: {template: none.txt}, c: '{steps}'}\n  verified",
            [
                'loss.yaml:8:25 {wide} in the template: no such axis. Did you mean "width"?',
                'loss.yaml:8:48 none.txt: no such file in toy. Did you mean "in.txt"?',
            ],
        ),
        (
            "  verified",
            "  files: {a: {templat: in.txt}}\n  verified",
            ['loss.yaml:8:15 templat: unknown field. Did you mean "template"?'],
        ),
        (
            '"{width}"',
            "3",
            ["loss.yaml:5:41 program.command.3: must be text, got 3. Hint: quote it"],
        ),
        (
            '--width, "{width}"',
            "--width={width}",
            ["loss.yaml:5:40 not YAML: did not find expected ',' or ']'. Hint: quote the word: \"--width={width}\""],
        ),
        (
            "output: {",
            "output: {values: {width: 'width {number}'}, ",
            [],
        ),
        (
            "matrix: {",
            "matrix: {iterations: [2], ",
            ["loss.yaml:8:13 program.verified: iterations: an axis and a number of the output have this name"],
        ),
        (
            "fixed: {steps: 2}",
            "rules: {steps: wide / 2}",
            ["loss.yaml:10:8 loss width=64 and 1 more case: rule `wide / 2`: unknown name wide"],
        ),
        (
            "[64, 128]}\nfixed",
            "[64, 0.5]}\nexpected: [{where: {width: 1G}, outcome: oom, confirmed: true, source: x}]\nfixed",
            ["loss.yaml:10:28 expected.0.where.width: must be a number, got '1G'"],
        ),
        (
            FILE[FILE.index("program:") : FILE.index("matrix")],
            "",
            ["loss.yaml:1:1 file: no program: add the name of a known one"],
        ),
        ("program:\n", "program: pretrain\nprogram:\n", ["loss.yaml:5:1 program: given twice"]),
        (
            "fixed: {",
            "scales: {small: {program: pretrain}}\nfixed: {",
            ["loss.yaml:10:27 scales.small.program: every scale runs the program that is described, train.py"],
        ),
        (
            "fixed: {",
            "scales: {small: {program: {command: [a], output: {values: {b: 'b {number}'}}, "
            "metrics: {b: {better: lower}}}}}\nfixed: {",
            ["loss.yaml:10:27 scales.small.program: a scale cannot describe a program"],
        ),
        (
            FILE[FILE.index("program:") : FILE.index("matrix")],
            "program: toy\n",
            ["loss.yaml:4:10 toy: no such program"],
        ),
    ],
)
def test_a_mistake_is_one_problem_with_its_place(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert old in FILE
    found = problems(tmp_path, FILE.replace(old, new, 1))
    assert len(found) == len(expected), found
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found


def test_mistakes_in_several_parts_are_reported_together(tmp_path: Path) -> None:
    text = FILE.replace('"{width}"', '"{wide}"').replace("metric: loss,", "metric: lost,").replace("[width]", "[wide]")
    assert problems(tmp_path, text) == [
        'loss.yaml:5:41 program.command.3: {wide}: no such axis. Did you mean "width"?',
        "loss.yaml:16:34 published.0.metric: no such metric, got 'lost'. Did you mean \"loss\"?",
    ]


@pytest.mark.parametrize(
    ("name", "hint"), [("pretran", 'Did you mean "pretrain"?'), ("nope", "Hint: there are: megatron-2021, ")]
)
def test_an_unknown_program_is_one_problem(tmp_path: Path, name: str, hint: str) -> None:
    text = (CHECKOUT / "experiments" / "sc21" / "figure-13.yaml").read_text()
    program = text[text.index("\nprogram:") :].split("\n")[1]
    [line] = problems(tmp_path, text.replace(program, f"program: {name}", 1))
    assert f"{name}: no such program. {hint}" in line and line.startswith("loss.yaml:")


def test_a_misspelled_program_of_the_paper_is_one_problem(tmp_path: Path) -> None:
    block = FILE[FILE.index("program:") : FILE.index("matrix")]
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "paper.yaml").write_text(f"title: x\nprograms:\n  train:\n{block[9:].replace('  ', '    ')}")
    assert problems(tmp_path, FILE.replace(block, "program: train\n")) == []
    assert problems(tmp_path, FILE.replace(block, "program: trian\n")) == [
        'loss.yaml:4:10 trian: no such program. Did you mean "train"?'
    ]


@pytest.mark.parametrize("name", ["copy", "json", "model_config", "_private", "from", "__init__", "self", "model"])
def test_an_axis_may_have_any_name(tmp_path: Path, name: str, recwarn: pytest.WarningsRecorder) -> None:
    text = FILE.replace("matrix: {", f"matrix: {{{name}: [1, 2], ").replace("== steps", f"== steps and {name} > 0")
    assert problems(tmp_path, text) == []
    [problem] = problems(tmp_path, text.replace("where: {width: 64}", f"where: {{{name}: big}}"))
    assert f" published.0.where.{name}: must be an integer, got 'big'" in problem
    assert not recwarn.list
