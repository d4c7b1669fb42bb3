"""Slurm settings of a profile: partition, account, resources and process launch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from orchestrator.clusters.container import BY_KIND, filled_names
from orchestrator.config.model import Count, Strict, Text, TimeLimit
from orchestrator.slurm.notation import time_limit_s

# repro sets these options itself, to find its jobs and their output.
_OURS = {
    "--comment": "it contains the token that identifies a job",
    "--output": "it is a file in the folder of the job",
    "--array": "repro groups jobs into arrays",
    "--requeue": "repro decides which jobs run again; set requeue: true to let Slurm decide",
    "--no-requeue": "every job has it, unless requeue: true is set",
    "--exclude": "repro excludes nodes that failed; use constraint: or reservation: to exclude others",
}


def _free_argument(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError("an argument must start with -")
    if value.startswith(("--container-", "--no-container-")):
        raise ValueError("container options belong to container:, and repro passes them to srun")
    name = value.partition("=")[0]
    if any(character.isspace() for character in name):
        raise ValueError("an argument must be one word, --name=value")
    if name in _OURS:
        raise ValueError(f"{name} is set by repro: {_OURS[name]}")
    return value


Argument = Annotated[str, Field(pattern=r"^[^\n\r\x00]+$"), AfterValidator(_free_argument)]


def _account(value: str) -> str:
    return value if value.startswith("<") else filled_names(value, ("project",))


class QosFields(Strict):
    """A QOS and the limits of its jobs. A job requests the first QOS that accepts it."""

    name: Text
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    max_gpus: Count | None = None
    max_time: TimeLimit | None = None

    def takes(self, nodes: int, gpus: int, time_limit: str) -> bool:
        """Return whether this QOS accepts a job of this size."""
        return (
            (self.min_nodes or nodes) <= nodes <= (self.max_nodes or nodes)
            and gpus <= (self.max_gpus or gpus)
            and (self.max_time is None or time_limit_s(time_limit) <= time_limit_s(self.max_time))
        )


Qos = Annotated[Annotated[Text, Tag("plain")] | Annotated[list[QosFields], Tag("list")], BY_KIND]


class SlurmFields(Strict):
    """Partition, account, resources and binding. `account` may contain {project}.

    `sbatch` and `srun` are further arguments. `requeue`: Slurm, and not repro, runs a job again after a node failure or
    a preemption.

    `tasks`: srun starts one process for each GPU, or one launcher on each node. The launcher, torchrun or that of
    `pretrain`, starts the processes of its node.
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
            raise ValueError("account contains {project}, but project: is missing")
        if self.tasks == "per-node" and self.gpu_request == "gpus-per-task":
            raise ValueError(
                "tasks: per-node does not work with gpu_request: gpus-per-task; set gpu_request: gpus-per-node"
            )
        return self

    @property
    def account_name(self) -> str | None:
        """The account with its project inserted."""
        return self.account.replace("{project}", self.project or "") if self.account else None

    def qos_for(self, nodes: int, gpus: int, time_limit: str) -> str | None:
        """Return the QOS of a job of this size; None if the profile has no QOS or none accepts the job."""
        if not isinstance(self.qos, list):
            return self.qos
        return next((one.name for one in self.qos if one.takes(nodes, gpus, time_limit)), None)

    def refusals(self, nodes: int, gpus: int, time_limit: str) -> list[str]:
        """Return the reasons why this site does not accept a job of this size."""
        found = []
        if self.max_nodes is not None and nodes > self.max_nodes:
            found.append(f"needs {nodes} nodes, but the limit of this cluster is {self.max_nodes}")
        if self.max_time is not None and time_limit_s(time_limit) > time_limit_s(self.max_time):
            found.append(f"requests {time_limit}, but the limit of this cluster is {self.max_time}")
        if isinstance(self.qos, list) and self.qos_for(nodes, gpus, time_limit) is None:
            names = ", ".join(one.name for one in self.qos)
            found.append(f"no QOS accepts {nodes} nodes, {gpus} GPUs for {time_limit} (there are: {names})")
        return found


class MpirunFields(Strict):
    """A cluster without a scheduler. mpirun on this machine starts the processes on the nodes of a hostfile."""

    hostfile: Text
    time_limit: TimeLimit
    arguments: list[Annotated[str, Field(pattern=r"^[^\n\r\x00]+$")]] = []
