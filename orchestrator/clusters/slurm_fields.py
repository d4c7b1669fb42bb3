"""Fields of a profile about its scheduler: Slurm, or mpirun with a hostfile."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, WithJsonSchema, model_validator

from orchestrator.clusters.container import BY_KIND, checked_names
from orchestrator.config.model import Count, Strict, Text, TimeLimit, optional, required
from orchestrator.errors import names_hint
from orchestrator.slurm.notation import time_limit_s
from orchestrator.text import counted

MAIL_EVENTS = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)
"""Events of `--mail-type`, from sbatch(1)."""

_EVENT = f"({'|'.join(MAIL_EVENTS)})"
_USER = r"^([^\s,<>]+(,[^\s,<>]+)*|<.*>)$"


def _events(text: object) -> str:
    """Return the events in capitals. ValueError names a wrong event."""
    if not isinstance(text, str):
        raise ValueError("must be text such as END,FAIL")
    events = [name.strip().upper() for name in text.split(",")]
    for name in events:
        if name not in MAIL_EVENTS:
            raise ValueError(f"must be events of Slurm; {names_hint(name, MAIL_EVENTS)}")
    if set(events) == {"ARRAY_TASKS"}:
        raise ValueError("must have another event beside ARRAY_TASKS: END,ARRAY_TASKS")
    if "NONE" in events and len(events) > 1:
        raise ValueError("must have no event beside NONE")
    return ",".join(events)


def _user(text: str) -> str:
    if not re.fullmatch(_USER, text):
        raise ValueError("must be a user or an address, without blanks")
    return text


MailType = Annotated[
    str, BeforeValidator(_events), WithJsonSchema({"type": "string", "pattern": f"^{_EVENT}(,{_EVENT})*$"})
]
MailUser = Annotated[str, AfterValidator(_user), WithJsonSchema({"type": "string", "pattern": _USER})]


# repro sets these options itself, to find its jobs and their output.
_RESERVED_OPTIONS = {
    "--comment": "it contains the token that identifies a job",
    "--output": "it is a file in the folder of the job",
    "--array": "repro groups jobs into arrays",
    "--requeue": "repro decides which jobs run again; set requeue: true to let Slurm decide",
    "--no-requeue": "every job has it, unless requeue: true is set",
    "--exclude": "repro excludes nodes that failed; set exclude: to exclude others",
}


def _free_argument(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError("an argument must start with -")
    if value.startswith(("--container-", "--no-container-")):
        raise ValueError("container options belong to container:, and repro passes them to srun")
    name = value.partition("=")[0]
    if any(character.isspace() for character in name):
        raise ValueError("an argument must be one word, --name=value")
    if value.startswith("-M"):
        raise ValueError("write --clusters=NAME: repro asks the cluster of each job by its name")
    if name in ("--clusters", "--cluster") and not re.fullmatch(r"[^=]+=[A-Za-z0-9_.-]+", value):
        raise ValueError("--clusters must name one cluster, as --clusters=NAME")
    if name in _RESERVED_OPTIONS:
        raise ValueError(f"{name} is set by repro: {_RESERVED_OPTIONS[name]}")
    return value


Argument = Annotated[str, Field(pattern=r"^[^\n\r\x00]+$"), AfterValidator(_free_argument)]


NodeNames = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,\[\]-]+$")]
"""Names of nodes as Slurm writes them: `n1`, `n[1-3,7]`."""


def _account(value: str) -> str:
    return value if value.startswith("<") else checked_names(value, ("project",))


_SIZE = r"^([0-9]+[KMGTkmgt]?|<.*)$"


def _memory(value: str) -> str:
    if not re.match(_SIZE, value):
        raise ValueError('must be a size such as 500G, or "0" for all memory of the node')
    return value


Memory = Annotated[str, AfterValidator(_memory), WithJsonSchema({"type": "string", "pattern": _SIZE})]
"""Memory of a job on a node, in the syntax of Slurm."""


class QosFields(Strict):
    """A QOS and the limits of its jobs. A job requests the first QOS that accepts it."""

    name: Text = required("Name of the QOS in Slurm.", "dev")
    min_nodes: Count | None = optional("Smallest number of nodes of a job. Without it there is no minimum.", 16)
    max_nodes: Count | None = optional("Largest number of nodes of a job. Without it there is no limit.", 64)
    max_gpus: Count | None = optional("Largest number of GPUs of a job. Without it there is no limit.", 32)
    max_time: TimeLimit | None = optional(
        "Longest time limit of a job, as `[D-]H:MM:SS`. Without it there is no limit.", "2:00:00"
    )

    def accepts(self, nodes: int, gpus: int, time_limit: str) -> bool:
        """Return whether this QOS accepts a job of this size."""
        return (
            (self.min_nodes or nodes) <= nodes <= (self.max_nodes or nodes)
            and gpus <= (self.max_gpus or gpus)
            and (self.max_time is None or time_limit_s(time_limit) <= time_limit_s(self.max_time))
        )


Qos = Annotated[Annotated[Text, Tag("plain")] | Annotated[list[QosFields], Tag("list")], BY_KIND]


class SlurmFields(Strict):
    """Queue, limits, resources and binding of the jobs of a Slurm cluster."""

    project: Text | None = optional("Project that replaces `{project}` in `account`.", "a123")
    account: Annotated[Text, AfterValidator(_account)] | None = optional(
        "Account of the jobs. It may contain `{project}`. Without it Slurm uses your default account.",
        "research",
        "{project}@a100",
    )
    partition: Text | None = optional("Partition of the jobs. Without it Slurm uses its default.", "batch")
    qos: Qos | None = optional(
        "Name of a QOS, or a list of QOS with limits, from which a job uses the first one that accepts it.",
        "high",
        [{"name": "dev", "max_gpus": 32, "max_time": "2:00:00"}, {"name": "production"}],
    )
    constraint: Text | None = optional("Features that the nodes must have.", "gpu&hbm80g")
    reservation: Text | None = optional("Reservation of the jobs.", "benchmark")
    nodelist: NodeNames | None = optional("Nodes that each job must include, as Slurm writes them.", "n[1-3,7]")
    exclude: list[NodeNames] = optional(
        "Nodes that no job may ever use, as Slurm writes them.", ["n[1-3]", "n7"], default=[]
    )

    time_limit: TimeLimit = required("Time limit of a job whose experiment has none, as `[D-]H:MM:SS`.", "0:30:00")
    max_time: TimeLimit | None = optional(
        "Longest time limit of a job, as `[D-]H:MM:SS`. Without it plans have no limit.", "1-00:00:00"
    )
    max_nodes: Count | None = optional("Largest number of nodes of a job. Without it plans have no limit.", 64)
    max_running: Count = optional("Largest number of jobs of one array that run at the same time.", 8, default=4)
    requeue: bool = optional(
        "true: Slurm runs a job again after a node failure or a preemption. false: `repro` does.", default=False
    )

    mail_type: MailType | None = optional(
        "Events for which Slurm sends mail, with commas between them. Without it Slurm sends none. Jobs with equal "
        "resources are one array, which sends one mail at its end; with `ARRAY_TASKS` each job sends one.",
        "END,FAIL",
    )
    mail_user: MailUser | None = optional(
        "Recipient of Slurm's mail: a user or an address. Without it: the user who submits.", "ada@example.org"
    )

    tasks: Literal["per-gpu", "per-node"] = optional(
        "per-gpu: srun starts one process for each GPU. per-node: srun starts one launcher on each node, torchrun or "
        "that of `pretrain`, which starts the processes of its node.",
        default="per-gpu",
    )
    gpu_request: Literal["none", "gres", "gpus-per-node", "gpus-per-task"] = optional(
        "Option of sbatch that requests GPUs. none: whole nodes whose GPUs are all visible.", default="gpus-per-node"
    )
    gres_type: Text | None = optional("Type of the GPUs in the request, if the site names one.", "h100")
    exclusive: bool = optional("true: a job shares its nodes with no other job.", default=False)
    mem: Memory | None = optional(
        'Memory of a job on each node, a number with K, M, G or T (powers of 1024; without a letter M). "0" is all '
        "memory of the node.",
        "500G",
        "0",
    )
    cpus_per_task: Count | None = optional("Number of CPUs of a process, as Slurm counts CPUs.", 16)
    hint: Literal["compute_bound", "memory_bound", "multithread", "nomultithread"] | None = optional(
        "Hint about the use of cores and hardware threads.", "nomultithread"
    )
    cpu_bind: Text | None = optional("Binding of processes to CPUs, the option of srun.", "cores")
    gpu_bind: Text | None = optional("Binding of processes to GPUs, the option of srun.", "none")
    mpi: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")] | None = optional(
        "How srun starts MPI processes: a name of `srun --mpi=list`.", "pmix"
    )

    sbatch: list[Argument] = optional(
        "Further options of sbatch, each as `--name=value`.", ["--mail-type=END"], default=[]
    )
    srun: list[Argument] = optional("Further options of srun, each as `--name=value`.", ["--auto-resume=1"], default=[])

    @model_validator(mode="after")
    def _names_are_given(self) -> SlurmFields:
        if "{project}" in (self.account or "") and self.project is None:
            raise ValueError("account contains {project}, but project: is missing")
        if self.mail_user is not None and self.mail_type is None:
            raise ValueError("mail_user has no effect without mail_type; add mail_type: END,FAIL")
        if self.tasks == "per-node" and self.gpu_request == "gpus-per-task":
            raise ValueError(
                "tasks: per-node does not work with gpu_request: gpus-per-task; set gpu_request: gpus-per-node"
            )
        return self

    @property
    def cluster_name(self) -> str | None:
        """Cluster of the site that the jobs are sent to, `--clusters` of `sbatch`; None for the default one."""
        names = [word.partition("=")[2] for word in self.sbatch if word.startswith(("--clusters=", "--cluster="))]
        return names[-1] if names else None

    @property
    def account_name(self) -> str | None:
        """Account with its project inserted."""
        return self.account.replace("{project}", self.project or "") if self.account else None

    def qos_for(self, nodes: int, gpus: int, time_limit: str) -> str | None:
        """Return the QOS of a job of this size; None if the profile has no QOS or none accepts the job."""
        if not isinstance(self.qos, list):
            return self.qos
        return next((qos.name for qos in self.qos if qos.accepts(nodes, gpus, time_limit)), None)

    def refusals(self, nodes: int, gpus: int, time_limit: str) -> list[str]:
        """Return the reasons why this site does not accept a job of this size."""
        reasons = []
        if self.max_nodes is not None and nodes > self.max_nodes:
            reasons.append(f"needs {counted(nodes, 'node')}, but the limit of this cluster is {self.max_nodes}")
        if self.max_time is not None and time_limit_s(time_limit) > time_limit_s(self.max_time):
            reasons.append(f"requests {time_limit}, but the limit of this cluster is {self.max_time}")
        if isinstance(self.qos, list) and self.qos_for(nodes, gpus, time_limit) is None:
            names = ", ".join(qos.name for qos in self.qos)
            reasons.append(
                f"no QOS accepts {counted(nodes, 'node')}, {counted(gpus, 'GPU')} for {time_limit} (there are: {names})"
            )
        return reasons


class MpirunFields(Strict):
    """A cluster without a scheduler. mpirun on this machine starts the processes on the nodes of a hostfile."""

    hostfile: Text = required("Open MPI's file with the hosts and their slots.", "/shared/hosts")
    time_limit: TimeLimit = required("Time limit of a job whose experiment has none, as `[D-]H:MM:SS`.", "0:30:00")
    arguments: list[Annotated[str, Field(pattern=r"^[^\n\r\x00]+$")]] = optional(
        "Further arguments of mpirun, one word each.", ["--bind-to", "none"], default=[]
    )
