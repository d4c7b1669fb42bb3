"""Fields of `paper.yaml`, which all experiments of a paper share."""

from __future__ import annotations

from orchestrator.catalog.experiment import ModelFields
from orchestrator.catalog.published import Difference, SourceNumber
from orchestrator.config.model import Hardware, Strict, Text, optional, required


class NotRun(Strict):
    """Part of a paper that no experiment runs: what it says, its numbers, and the reason."""

    part: Text = required("Part of the paper.", "Section 5.10")
    says: Text = required("Content of the part, as a sentence.", "Loading of checkpoints.")
    because: Text = required("Reason why no experiment runs it.", "the published jobs save no checkpoints")
    numbers: list[SourceNumber] = optional(
        "Numbers of the part.",
        [{"what": "size of a checkpoint", "value": 13.8, "unit": "TB", "how": "printed"}],
        default=[],
    )


class CodeFields(Strict):
    """Commit of a workload's source code."""

    repository: Text = required("Repository on GitHub, `OWNER/NAME`.", "NVIDIA/Megatron-LM")
    commit: Text = required("Commit of the paper's jobs.", "6985e58938d40ad91ac07b0fddcfad8132e1447e")
    scripts: Text | None = optional(
        "Place of the published scripts. Without it: the repository at the commit.", "the artifact of the paper"
    )

    @property
    def place_of_scripts(self) -> str:
        """Return `NVIDIA/Megatron-LM at 6985e58938`."""
        short = self.commit[:10] if len(self.commit) == 40 else self.commit
        return self.scripts or f"{self.repository} at {short}"


class Paper(Strict):
    """Contents of experiments/FOLDER/paper.yaml, shared by all experiments of a paper."""

    title: Text = required("Title of the paper.", "Reducing Activation Recomputation")
    venue: Text = required("Conference or journal.", "SC21")
    arxiv: Text | None = optional("Number of the paper on arXiv.", "2104.04473")
    doi: Text | None = optional("DOI of the paper.", "10.1145/3458817.3476209")
    code: dict[str, CodeFields] = optional(
        "Source code of the paper's jobs, by the name of the workload.",
        {"megatron-2021": {"repository": "NVIDIA/Megatron-LM", "commit": "6985e58938"}},
        default={},
    )
    images: dict[str, Text] = optional(
        "Name of the container image of each workload. The cluster profile has its location.",
        {"megatron-2021": "nvidia/pytorch:20.12-py3"},
        default={},
    )
    hardware: Text | None = optional("Machine of the paper, in words.", "nodes of 8 A100-SXM4-80GB")
    machine: Hardware | None = optional("Machine of the paper, in numbers: plans without `--cluster` use it.")
    models: dict[str, ModelFields] = optional(
        "Models of the paper, by the name that the axis `model` selects.",
        {"gpt-1.7b": {"layers": 24, "hidden": 2304, "heads": 24}},
        default={},
    )
    differences: list[Difference] = optional(
        "Differences between the paper and its scripts, for all cases that have a `script`.",
        [{"what": "The script sets no seed.", "follows": "script", "because": "the paper names no seed"}],
        default=[],
    )
    not_run: list[NotRun] = optional(
        "Parts of the paper that no experiment runs.",
        [{"part": "Section 5.10", "says": "Checkpoints.", "because": "the published jobs save none"}],
        default=[],
    )
    notes: list[Text] = optional("Further remarks.", ["The text and table 2 differ."], default=[])
