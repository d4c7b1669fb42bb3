"""What a profile says of Slurm: where jobs go, what they ask for, and how their processes are started."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from orchestrator.clusters.container import BY_KIND, filled_names
from orchestrator.config.model import Count, Strict, Text, TimeLimit
from orchestrator.slurm.notation import time_limit_s

# How a submission is found again, and where its output goes, cannot be the site's as well.
_OURS = {
    "--comment": "it carries the token that finds a job again",
    "--output": "a job's folder is known when it is submitted",
    "--array": "repro puts jobs together",
    "--requeue": "repro decides what runs again, unless requeue: true says that Slurm does",
    "--no-requeue": "it is what every job says, unless requeue: true",
    "--exclude": "repro excludes nodes that failed; to leave some out always, say constraint: or reservation:",
}


def _free_argument(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError("a free argument must start with -")
    if value.startswith(("--container-", "--no-container-")):
        raise ValueError("container options belong to container:, which puts them on srun and never on sbatch")
    name = value.partition("=")[0]
    if any(character.isspace() for character in name):
        raise ValueError("a free argument is one word, --name=value")
    if name in _OURS:
        raise ValueError(f"{name} is not the site's: {_OURS[name]}")
    return value


Argument = Annotated[str, Field(pattern=r"^[^\n\r\x00]+$"), AfterValidator(_free_argument)]


def _account(value: str) -> str:
    return value if value.startswith("<") else filled_names(value, ("project",))


class QosFields(Strict):
    """A quality of service and the jobs that it takes; of several the first that takes a job is asked for."""

    name: Text
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    max_gpus: Count | None = None
    max_time: TimeLimit | None = None

    def takes(self, nodes: int, gpus: int, time_limit: str) -> bool:
        return (
            (self.min_nodes or nodes) <= nodes <= (self.max_nodes or nodes)
            and gpus <= (self.max_gpus or gpus)
            and (self.max_time is None or time_limit_s(time_limit) <= time_limit_s(self.max_time))
        )


Qos = Annotated[Annotated[Text, Tag("plain")] | Annotated[list[QosFields], Tag("list")], BY_KIND]


class SlurmFields(Strict):
    """Placement, resources and binding. `account` may say {project}; `sbatch` and `srun` are further arguments.

    `requeue`: Slurm itself runs a job again that lost a node or gave way to another, and repro then does not.

    `tasks`: srun starts a process for each GPU, or a launcher on each node that starts the processes there: torchrun,
    for `pretrain` its own.
    """

    project: Text | None = None
    account: Annotated[Text, AfterValidator(_account)] | None = None
    partition: Text | None = None
    qos: Qos | None = None
    constraint: Text | None = None
    reservation: Text | None = None

    time_limit: TimeLimit
    max_time: TimeLimit | None = None
    max_nodes: Count | None = None
    max_running: Count = 4
    requeue: bool = False

    tasks: Literal["per-gpu", "per-node"] = "per-gpu"
    gpu_request: Literal["none", "gres", "gpus-per-node", "gpus-per-task"] = "gpus-per-node"
    gres_type: Text | None = None
    exclusive: bool = False
    mem: Text | None = None
    cpus_per_task: Count | None = None
    hint: Literal["compute_bound", "memory_bound", "multithread", "nomultithread"] | None = None
    cpu_bind: Text | None = None
    gpu_bind: Text | None = None
    mpi: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")] | None = None

    sbatch: list[Argument] = []
    srun: list[Argument] = []

    @model_validator(mode="after")
    def _names_are_given(self) -> SlurmFields:
        if "{project}" in (self.account or "") and self.project is None:
            raise ValueError("account says {project}, so project: must be given")
        if self.tasks == "per-node" and self.gpu_request == "gpus-per-task":
            raise ValueError("one task for each node cannot ask for GPUs by the task; gpu_request: gpus-per-node")
        return self

    @property
    def account_name(self) -> str | None:
        """The account with its project filled in."""
        return self.account.replace("{project}", self.project or "") if self.account else None

    def qos_for(self, nodes: int, gpus: int, time_limit: str) -> str | None:
        """The quality of service of a job of this size; None where the profile names none, or none takes it."""
        if not isinstance(self.qos, list):
            return self.qos
        return next((one.name for one in self.qos if one.takes(nodes, gpus, time_limit)), None)

    def refusals(self, nodes: int, gpus: int, time_limit: str) -> list[str]:
        """Why this site takes no job of this size."""
        found = []
        if self.max_nodes is not None and nodes > self.max_nodes:
            found.append(f"needs {nodes} nodes, jobs here may have {self.max_nodes}")
        if self.max_time is not None and time_limit_s(time_limit) > time_limit_s(self.max_time):
            found.append(f"asks for {time_limit}, jobs here may take {self.max_time}")
        if isinstance(self.qos, list) and self.qos_for(nodes, gpus, time_limit) is None:
            names = ", ".join(one.name for one in self.qos)
            found.append(f"no QOS takes {nodes} nodes, {gpus} GPUs for {time_limit} (there are: {names})")
        return found


class MpirunFields(Strict):
    """A cluster without a scheduler: Open MPI starts the processes on the nodes of a hostfile, from this machine."""

    hostfile: Text
    time_limit: TimeLimit
    arguments: list[Annotated[str, Field(pattern=r"^[^\n\r\x00]+$")]] = []
