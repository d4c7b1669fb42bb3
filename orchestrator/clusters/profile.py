"""Model of a cluster profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, WithJsonSchema, create_model, model_validator

from orchestrator.clusters.container import BY_KIND, ContainerFields, SetupLine, VariableFields, checked_names, holds
from orchestrator.clusters.mail import MailType, MailUser
from orchestrator.config.model import Count, Hardware, Positive, Strict, Text, TimeLimit
from orchestrator.money import Price, checked_currency
from orchestrator.slurm.notation import time_limit_s
from orchestrator.workloads import workloads
from orchestrator.workloads.base import AnyWorkload, WorkloadSite
from orchestrator.workloads.pretrain import PRETRAIN, PretrainSite

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
        raise ValueError("must be a size such as 500G, or 0 for the memory of the whole node")
    return value


Memory = Annotated[str, AfterValidator(_memory), WithJsonSchema({"type": "string", "pattern": _SIZE})]
"""Memory of a job on a node, in the syntax of Slurm."""


class QosFields(Strict):
    """A QOS and the limits of its jobs. A job requests the first QOS that accepts it."""

    name: Text
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    max_gpus: Count | None = None
    max_time: TimeLimit | None = None

    def accepts(self, nodes: int, gpus: int, time_limit: str) -> bool:
        """Return whether this QOS accepts a job of this size."""
        return (
            (self.min_nodes or nodes) <= nodes <= (self.max_nodes or nodes)
            and gpus <= (self.max_gpus or gpus)
            and (self.max_time is None or time_limit_s(time_limit) <= time_limit_s(self.max_time))
        )


Qos = Annotated[Annotated[Text, Tag("plain")] | Annotated[list[QosFields], Tag("list")], BY_KIND]


class SlurmFields(Strict):
    """Partition, account, resources and binding. `account` may contain {project}.

    `sbatch` and `srun` are further arguments. Jobs run on no node of `exclude`, such as `n[1-3]`. `requeue`: Slurm, and
    not repro, runs a job again after a node failure or a preemption.

    `tasks`: srun starts one process for each GPU, or one launcher on each node. The launcher, torchrun or that of
    `pretrain`, starts the processes of its node.
    """

    project: Text | None = None
    account: Annotated[Text, AfterValidator(_account)] | None = None
    partition: Text | None = None
    qos: Qos | None = None
    constraint: Text | None = None
    reservation: Text | None = None
    nodelist: NodeNames | None = None
    exclude: list[NodeNames] = []

    time_limit: TimeLimit
    max_time: TimeLimit | None = None
    max_nodes: Count | None = None
    max_running: Count = 4
    requeue: bool = False
    mail_type: MailType | None = None
    mail_user: MailUser | None = None

    tasks: Literal["per-gpu", "per-node"] = "per-gpu"
    gpu_request: Literal["none", "gres", "gpus-per-node", "gpus-per-task"] = "gpus-per-node"
    gres_type: Text | None = None
    exclusive: bool = False
    mem: Memory | None = None
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
        if self.mail_user is not None and self.mail_type is None:
            raise ValueError("mail_user has no effect without mail_type; add mail_type: END,FAIL")
        if self.tasks == "per-node" and self.gpu_request == "gpus-per-task":
            raise ValueError(
                "tasks: per-node does not work with gpu_request: gpus-per-task; set gpu_request: gpus-per-node"
            )
        return self

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
            reasons.append(f"needs {nodes} nodes, but the limit of this cluster is {self.max_nodes}")
        if self.max_time is not None and time_limit_s(time_limit) > time_limit_s(self.max_time):
            reasons.append(f"requests {time_limit}, but the limit of this cluster is {self.max_time}")
        if isinstance(self.qos, list) and self.qos_for(nodes, gpus, time_limit) is None:
            names = ", ".join(qos.name for qos in self.qos)
            reasons.append(f"no QOS accepts {nodes} nodes, {gpus} GPUs for {time_limit} (there are: {names})")
        return reasons


class MpirunFields(Strict):
    """A cluster without a scheduler. mpirun on this machine starts the processes on the nodes of a hostfile."""

    hostfile: Text
    time_limit: TimeLimit
    arguments: list[Annotated[str, Field(pattern=r"^[^\n\r\x00]+$")]] = []


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


Architecture = Literal["x86_64", "aarch64"]


class RendezvousFields(Strict):
    """Address of the first rank: its host name with a suffix (for a faster network), and a port.

    Without a port, the job id selects one of 10,000 ports.
    """

    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = None
    port: Annotated[int, Field(strict=True, ge=1024, le=65535)] | None = None


class NetworkFields(Strict):
    """Network between the nodes. `adapter_gbit_s` is the rate of one adapter in Gbit/s, in one direction."""

    fabric: Text
    adapters_per_node: Count | None = None
    adapter_gbit_s: Positive | None = None


class SiteFields(Strict):
    """Further settings of a site for planning and checks.

    `cpus_per_node` is the number of CPUs that Slurm counts. `offline_nodes`: compute nodes cannot reach a registry.
    `staging_folder` is the folder for imported images, on the shared file system. `login_sees_paths: false` means that
    the paths of the profile exist on compute nodes only.
    """

    architecture: Architecture | None = None
    cpus_per_node: Count | None = None
    offline_nodes: bool = False
    staging_folder: Annotated[str, Field(pattern=r"^[/<]")] | None = None
    login_sees_paths: bool = True


class PriceFields(Strict):
    """Price of one GPU for one hour. `currency` is an ISO 4217 code."""

    value: Positive
    currency: Annotated[str, Field(json_schema_extra={"pattern": "^[A-Z]{3}$"}), AfterValidator(checked_currency)]

    @property
    def price(self) -> Price:
        """Price as a value for calculations."""
        return Price(self.value, self.currency)


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
    return kind, Field(default=default, alias=workload.name)


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
    """Settings of a site, independent of any paper.

    `environment` is set for every rank, inside the container. There, `env_prepend` adds folders at the front of a
    variable, and `env_unset` removes a variable. `env_from` lists variables that jobs take from the submitting shell;
    their values are not written to any file. `setup` lines run on the first node of a job, before its processes start.
    `sample_gpus_every_s` is the interval in which nvidia-smi records memory, power and clocks of the GPUs of a job.
    `price_per_gpu_hour` is the price of one GPU for one hour, by which GPU-hours are shown as money.
    """

    extends: Text | None = None
    about: Text
    scheduler: Literal["slurm", "local", "mpirun"]
    hardware: Hardware | None = None
    network: NetworkFields | None = None
    site: SiteFields = SiteFields()
    slurm: SlurmFields | None = None
    mpirun: MpirunFields | None = None
    container: ContainerFields | None = None
    rendezvous: RendezvousFields = RendezvousFields()
    environment: dict[VariableName, Variable] = {}
    env_from: list[VariableName] = []
    env_prepend: dict[VariableName, Variable] = {}
    env_unset: list[VariableName] = []
    setup: list[SetupLine] = []
    sample_gpus_every_s: Count | None = None
    price_per_gpu_hour: PriceFields | None = None
    workloads: AllWorkloadSites = AllWorkloadSites()

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
