"""Model of a cluster profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, WithJsonSchema, create_model, model_validator

from orchestrator.clusters.container import BY_KIND, ContainerFields, SetupLine, VariableFields, holds
from orchestrator.clusters.site_fields import NetworkFields, PriceFields, RendezvousFields, SiteFields
from orchestrator.clusters.slurm_fields import MpirunFields, SlurmFields
from orchestrator.config.model import Count, Hardware, Strict, Text
from orchestrator.workloads import workloads
from orchestrator.workloads.base import AnyWorkload
from orchestrator.workloads.needs import WorkloadSite
from orchestrator.workloads.pretrain import PRETRAIN, PretrainSite

# The scripts set the first group for each rank. The second group, like all of BASH..., belongs to the shell: an
# `export` of them would fail or change their value.
_RANK_NAMES = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
_SHELL_NAMES = frozenset(
    {"_", "folder", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "IFS"}
    | {"LINENO", "OPTIND", "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID"}
)


def _variable(name: str) -> str:
    if name in _RANK_NAMES:
        raise ValueError("the job scripts set this variable for each rank")
    if name in _SHELL_NAMES or name.startswith("BASH"):
        raise ValueError("the shell of the job script reserves this variable")
    return name


def _value(value: object) -> object:
    if isinstance(value, (dict, VariableFields)):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("must be text or an integer; use quotes for text")
    text = str(value)
    if any(character in text for character in "\n\r\0"):
        raise ValueError("must be one line of text")
    return text


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_variable)]
_PlainValue = Annotated[str, WithJsonSchema({"type": ["string", "integer"]})]
Variable = Annotated[
    Annotated[_PlainValue, Tag("plain")] | Annotated[VariableFields, Tag("fields")], BY_KIND, BeforeValidator(_value)
]


class WorkloadSites(Strict):
    """Paths of the programs and their data: one field for each workload."""

    def site(self, workload: str) -> WorkloadSite | None:
        """Return the fields of a workload; None if the profile lacks them or the workload does not exist."""
        fields: WorkloadSite | None = getattr(self, _identifier(workload), None)
        return fields

    @property
    def pretrain_python(self) -> str | None:
        """Python of `pretrain` jobs; None if the profile does not contain it."""
        site = self.site(PRETRAIN)
        return site.python if isinstance(site, PretrainSite) else None


def _identifier(workload: str) -> str:
    return re.sub(r"\W", "_", workload)


def _site_field(workload: AnyWorkload) -> tuple[object, object]:
    default = workload.default_site
    kind = workload.site if default is not None else workload.site | None
    return kind, Field(default=default, alias=workload.name, description=f"Paths of the program: {workload.about}.")


if TYPE_CHECKING:
    AllWorkloadSites = WorkloadSites
else:
    AllWorkloadSites = create_model(
        "WorkloadSites",
        __base__=WorkloadSites,
        __doc__=WorkloadSites.__doc__,
        **{_identifier(name): _site_field(workload) for name, workload in workloads().items()},
    )


_REQUIRED = {"slurm": ("slurm", "hardware"), "mpirun": ("mpirun", "hardware"), "local": ()}
_UNSUPPORTED = {
    "local": ("slurm", "mpirun", "container"),
    "mpirun": ("slurm", "container", "sample_gpus_every_s"),
    "slurm": ("mpirun",),
}


class ClusterProfile(Strict):
    """Settings of a site, independent of any paper."""

    extends: Text | None = Field(
        default=None, description="Name of the profile whose values this profile changes.", examples=["jean-zay-v100"]
    )
    about: Text = Field(description="Name of the site and of its nodes, in one line.", examples=["Eos, DGX H100"])
    scheduler: Literal["slurm", "local", "mpirun"] = Field(
        description="slurm: jobs of Slurm. mpirun: Open MPI on the hosts of a hostfile. local: this machine."
    )
    hardware: Hardware | None = Field(
        default=None, description="Nodes and GPUs. Only a profile with `scheduler: local` can leave it out."
    )
    network: NetworkFields | None = Field(
        default=None, description="Network between the nodes. Predictions use it if `hardware` has no `network_gb_s`."
    )
    site: SiteFields = Field(default=SiteFields(), description="Further settings for planning and checks.")
    slurm: SlurmFields | None = Field(
        default=None, description="Queue, limits, resources and binding of the jobs, for `scheduler: slurm`."
    )
    mpirun: MpirunFields | None = Field(default=None, description="Hosts and time limit, for `scheduler: mpirun`.")
    container: ContainerFields | None = Field(
        default=None,
        description="Container runtime and images. Without it, or with `null`, jobs run without containers, "
        "and software comes from `setup` and `workloads`.",
    )
    rendezvous: RendezvousFields = Field(
        default=RendezvousFields(), description="Address at which the ranks of a job find the first rank."
    )
    environment: dict[VariableName, Variable] = Field(
        default={},
        description="Environment variables of every rank, set inside the container. The values are text or integers.",
        examples=[{"NCCL_DEBUG": "WARN", "NCCL_NET": {"value": "gIB", "when": "nodes > 1"}}],
    )
    env_from: list[VariableName] = Field(
        default=[],
        description="Variables that jobs take from the submitting shell. No file contains their values.",
        examples=[["HF_TOKEN"]],
    )
    env_prepend: dict[VariableName, Variable] = Field(
        default={},
        description="Folders to add at the front of a variable, separated by colons, inside the container.",
        examples=[{"LD_LIBRARY_PATH": "/opt/nccl/lib"}],
    )
    env_unset: list[VariableName] = Field(
        default=[], description="Variables to remove inside the container.", examples=[["SINGULARITY_BIND"]]
    )
    setup: list[SetupLine] = Field(
        default=[],
        description="Lines of bash that run on the first node of a job, before its processes start.",
        examples=[["module load cuda", {"run": "source /opt/net/profile.sh", "when": "nodes > 1"}]],
    )
    sample_gpus_every_s: Count | None = Field(
        default=None,
        description="Interval in seconds at which nvidia-smi records memory, power and clocks of the GPUs of a job. "
        "Without it nothing is recorded.",
        examples=[1],
    )
    price_per_gpu_hour: PriceFields | None = Field(
        default=None,
        description="Price of one GPU for one hour, to show GPU-hours as money. Without it no cost is shown.",
        examples=[{"value": 2.5, "currency": "USD"}],
    )
    workloads: AllWorkloadSites = Field(
        default=AllWorkloadSites(), description="Paths of the programs and their data, by the name of the workload."
    )

    @model_validator(mode="after")
    def _is_complete(self) -> ClusterProfile:
        missing = [name for name in _REQUIRED[self.scheduler] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"scheduler: {self.scheduler} needs {' and '.join(f'{name}:' for name in missing)}")
        for name in _UNSUPPORTED[self.scheduler]:
            if getattr(self, name) is not None:
                raise ValueError(f"scheduler: {self.scheduler} does not support {name}:")
        return self

    @property
    def slurm_cluster(self) -> str | None:
        """Name of the Slurm cluster, if it is not the default one of this machine."""
        return self.slurm.cluster_name if self.slurm is not None else None

    @property
    def time_limit(self) -> str | None:
        """Time limit of jobs whose experiment has none."""
        launcher = self.slurm or self.mpirun
        return launcher.time_limit if launcher else None

    def variables(self, nodes: int) -> dict[str, str]:
        """Return the environment of the ranks of a job on this many nodes."""
        return _applicable(self.environment, nodes)

    def prepended(self, nodes: int) -> dict[str, str]:
        """Return the folders to prepend to each variable, for a job on this many nodes."""
        return _applicable(self.env_prepend, nodes)


def _applicable(variables: Mapping[str, str | VariableFields], nodes: int) -> dict[str, str]:
    """Return the variables whose condition a job on this many nodes meets."""
    return {
        name: value if isinstance(value, str) else value.value
        for name, value in variables.items()
        if isinstance(value, str) or holds(value.when, nodes)
    }
