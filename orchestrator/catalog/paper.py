"""Fields of `paper.yaml`, which all experiments of a paper share."""

from __future__ import annotations

from pydantic import Field

from orchestrator.catalog.experiment import ModelFields
from orchestrator.catalog.published import Difference, SourceNumber
from orchestrator.config.model import Hardware, Strict, Text


class NotRun(Strict):
    """Part of a paper that no experiment runs: what it says, its numbers, and the reason."""

    part: Text = Field(description="Part of the paper.", examples=["Section 5.10"])
    says: Text = Field(description="Content of the part, as a sentence.", examples=["Loading of checkpoints."])
    because: Text = Field(
        description="Reason why no experiment runs it.", examples=["the published jobs save no checkpoints"]
    )
    numbers: list[SourceNumber] = Field(
        default=[],
        description="Numbers of the part.",
        examples=[[{"what": "size of a checkpoint", "value": 13.8, "unit": "TB", "how": "printed"}]],
    )


class CodeFields(Strict):
    """Commit of a workload's source code."""

    repository: Text = Field(description="Repository on GitHub, `OWNER/NAME`.", examples=["NVIDIA/Megatron-LM"])
    commit: Text = Field(
        description="Commit of the paper's jobs.", examples=["6985e58938d40ad91ac07b0fddcfad8132e1447e"]
    )
    scripts: Text | None = Field(
        default=None,
        description="Place of the published scripts. Without it: the repository at the commit.",
        examples=["the artifact of the paper"],
    )

    @property
    def place_of_scripts(self) -> str:
        """Return `NVIDIA/Megatron-LM at 6985e58938`."""
        short = self.commit[:10] if len(self.commit) == 40 else self.commit
        return self.scripts or f"{self.repository} at {short}"


class Paper(Strict):
    """Contents of experiments/FOLDER/paper.yaml, shared by all experiments of a paper."""

    title: Text = Field(description="Title of the paper.", examples=["Reducing Activation Recomputation"])
    venue: Text = Field(description="Conference or journal.", examples=["SC21"])
    arxiv: Text | None = Field(default=None, description="Number of the paper on arXiv.", examples=["2104.04473"])
    doi: Text | None = Field(default=None, description="DOI of the paper.", examples=["10.1145/3458817.3476209"])
    code: dict[str, CodeFields] = Field(
        default={},
        description="Source code of the paper's jobs, by the name of the workload.",
        examples=[{"megatron-2021": {"repository": "NVIDIA/Megatron-LM", "commit": "6985e58938"}}],
    )
    images: dict[str, Text] = Field(
        default={},
        description="Name of the container image of each workload. The cluster profile has its location.",
        examples=[{"megatron-2021": "nvidia/pytorch:20.12-py3"}],
    )
    hardware: Text | None = Field(
        default=None, description="Machine of the paper, in words.", examples=["nodes of 8 A100-SXM4-80GB"]
    )
    machine: Hardware | None = Field(
        default=None, description="Machine of the paper, in numbers: plans without `--cluster` use it."
    )
    models: dict[str, ModelFields] = Field(
        default={},
        description="Models of the paper, by the name that the axis `model` selects.",
        examples=[{"gpt-1.7b": {"layers": 24, "hidden": 2304, "heads": 24}}],
    )
    differences: list[Difference] = Field(
        default=[],
        description="Differences between the paper and its scripts, for all cases that have a `script`.",
        examples=[[{"what": "The script sets no seed.", "follows": "script", "because": "the paper names no seed"}]],
    )
    not_run: list[NotRun] = Field(
        default=[],
        description="Parts of the paper that no experiment runs.",
        examples=[[{"part": "Section 5.10", "says": "Checkpoints.", "because": "the published jobs save none"}]],
    )
    notes: list[Text] = Field(default=[], description="Further remarks.", examples=[["The text and table 2 differ."]])
