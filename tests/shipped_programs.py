"""Programs that shipped experiments describe, and their verdict on an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.programs.output import Scalar
from orchestrator.programs.program import JudgedOutput, ProgramFields, judge_output

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@dataclass(frozen=True)
class ShippedProgram:
    """Program of an experiment, the whole file, and the file's folder."""

    fields: ProgramFields
    content: Mapping[str, Any]
    folder: Path

    @property
    def example(self) -> Path:
        """File with the example of an output."""
        assert self.fields.output.example is not None
        return self.folder / self.fields.output.example

    def judged(self, output: bytes, settings: Mapping[str, Scalar]) -> JudgedOutput:
        """Return the verdict on an output of a case with these settings."""
        return judge_output(self.fields, settings, output.splitlines(keepends=True))

    def filled(self, template: str, settings: Mapping[str, Scalar]) -> str:
        """Return the text of an input file of a case."""
        text = (self.folder / template).read_text(encoding="utf-8")
        for name, value in settings.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text


def shipped_program(name: str) -> ShippedProgram:
    """Return the program of `machine/fio`."""
    file = EXPERIMENTS / f"{name}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return ShippedProgram(ProgramFields.model_validate(content["program"]), content, file.parent)


def problem_texts(judged: JudgedOutput) -> tuple[str, ...]:
    """Return the texts of the problems of an output."""
    return tuple(problem.text for problem in judged.problems)
