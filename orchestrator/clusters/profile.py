"""Model of a cluster profile, and its JSON Schema for editors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from orchestrator.clusters.container import BY_KIND, ContainerFields, SetupLine, VariableFields, checked_names, holds
from orchestrator.config.model import Count, Hardware, Positive, Strict, Text, TimeLimit, optional, required
from orchestrator.errors import ReproError, names_hint
from orchestrator.money import Price, checked_currency
from orchestrator.programs.plug_ins import plug_ins
from orchestrator.programs.record import GROUP, Program, ProgramSite, find_program, known_program, programs
from orchestrator.slurm.notation import time_limit_s
from orchestrator.text import counted

M = TypeVar("M", bound=Strict)

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
    "--comment": "it contains the token that identifies a job; write comment: TEXT, which is joined to it",
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


def _comment(value: str) -> str:
    if "repro:" in value:
        raise ValueError("must not contain repro:, with which the token of a job begins")
    return value


Comment = Annotated[str, Field(pattern=r"^[^\n\r\x00]+$"), AfterValidator(_comment)]
"""One line of text for a site, in the comment of its jobs."""


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

    comment: Comment | None = optional(
        "Text for the site in the comment of each job. It follows the token of `repro`; to a JSON object the token is "
        'added as `"repro"`.',
        '{"OccupiedIdleGPUsJobReaper": {"exemptIdleTimeMins": "60"}}',
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
    cpu_bind: Text | None = optional(
        "Binding of processes to CPUs, the option of srun. A list of masks or CPUs is for jobs with that number of "
        "tasks on a node; others get `none`.",
        "cores",
    )
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


Architecture = Literal["x86_64", "aarch64"]


class RendezvousFields(Strict):
    """Address of the first rank: the name of its host, and a port."""

    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = optional(
        "Text after the host name, if a faster network has its own names.", "-ib"
    )
    port: Annotated[int, Field(strict=True, ge=1024, le=65535)] | None = optional(
        "Port of the first rank. Without it the job id selects one of 10,000 ports.", 29500
    )


class NetworkFields(Strict):
    """Network between the nodes."""

    fabric: Text = required("Name of the network.", "InfiniBand HDR")
    adapters_per_node: Count | None = optional("Number of network adapters of a node, without those for storage.", 8)
    adapter_gbit_s: Positive | None = optional("Rate of one adapter in Gbit/s, in one direction.", 200)


class SiteFields(Strict):
    """Further settings of a site for planning and checks."""

    architecture: Architecture | None = optional("Architecture of the CPUs of the nodes.")
    cpus_per_node: Count | None = optional("Number of CPUs of a node, as Slurm counts CPUs.", 128)
    offline_nodes: bool = optional(
        "true: compute nodes reach no registry, so the login node imports images.", default=False
    )
    staging_folder: Annotated[str, Field(pattern=r"^[/<]")] | None = optional(
        "Folder of imported images, on the shared file system.", "/shared/images"
    )
    login_sees_paths: bool = optional("false: the paths of the profile exist on compute nodes only.", default=True)


class PriceFields(Strict):
    """Price of one GPU for one hour."""

    value: Positive = required("Amount of money in `currency`.", 2.5)
    currency: Annotated[str, AfterValidator(checked_currency)] = Field(
        description="Currency, an ISO 4217 code of three letters.",
        examples=["USD"],
        json_schema_extra={"pattern": "^[A-Z]{3}$"},
    )

    @property
    def price(self) -> Price:
        """Price as a value for calculations."""
        return Price(self.value, self.currency)


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


class DescribedSite(Strict):
    """Places of a program that an experiment describes."""

    image: Text | None = optional(
        "Image of its jobs: a name of `container.images`, a file, or the name in a registry.", "/images/nccl-tests.sqsh"
    )
    path: Annotated[str, Field(pattern=r"^[/<]")] | None = optional(
        "Folder of its commands, as jobs see it: the first one of PATH.", "/opt/nccl-tests/build"
    )


class ProgramSites(Strict):
    """Paths of the programs and their data: one field for each program, and any name that an experiment describes."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, DescribedSite] = Field(init=False)

    def described(self, program: str) -> DescribedSite:
        """Return the fields of a program that an experiment describes."""
        return (self.__pydantic_extra__ or {}).get(program, DescribedSite())

    def site(self, program: str) -> ProgramSite | None:
        """Return the fields of a program; None if the profile lacks them or the program does not exist."""
        fields: ProgramSite | None = getattr(self, _identifier(program), None)
        known = known_program(program) if fields is None else None
        return fields if known is None or known.name != program else _default_site(known)

    def python(self, program: str) -> str | None:
        """Return the Python of a program's jobs; None if the profile does not contain it."""
        python: str | None = getattr(self.site(program), "python", None)
        return python


def _identifier(program: str) -> str:
    return re.sub(r"\W", "_", program)


def _default_site(program: Program) -> ProgramSite | None:
    return None if any(info.is_required() for info in program.site.model_fields.values()) else program.site()


_REQUIRED = {"slurm": ("slurm", "hardware"), "mpirun": ("mpirun", "hardware"), "local": ()}
_UNSUPPORTED = {
    "local": ("slurm", "mpirun", "container"),
    "mpirun": ("slurm", "container", "sample_gpus_every_s"),
    "slurm": ("mpirun",),
}


class ClusterProfile(Strict):
    """Settings of a site, independent of any paper."""

    extends: Text | None = optional("Name of the profile whose values this profile changes.", "jean-zay-v100")
    about: Text = required("Name of the site and of its nodes, in one line.", "Eos, DGX H100")
    scheduler: Literal["slurm", "local", "mpirun"] = required(
        "slurm: jobs of Slurm. mpirun: Open MPI on the hosts of a hostfile. local: this machine."
    )
    hardware: Hardware | None = optional("Nodes and GPUs. Only a profile with `scheduler: local` can leave it out.")
    network: NetworkFields | None = optional(
        "Network between the nodes. Predictions use it if `hardware` has no `network_gb_s`."
    )
    site: SiteFields = optional("Further settings for planning and checks.", default=SiteFields())
    slurm: SlurmFields | None = optional("Queue, limits, resources and binding of the jobs, for `scheduler: slurm`.")
    mpirun: MpirunFields | None = optional("Hosts and time limit, for `scheduler: mpirun`.")
    container: ContainerFields | None = optional(
        "Container runtime and images. Without it, or with `null`, jobs run without containers, and software comes "
        "from `setup` and `programs`."
    )
    rendezvous: RendezvousFields = optional(
        "Address at which the ranks of a job find the first rank.", default=RendezvousFields()
    )
    environment: dict[VariableName, Variable] = optional(
        "Environment variables of every rank, set inside the container. The values are text or integers.",
        {"NCCL_DEBUG": "WARN", "NCCL_NET": {"value": "gIB", "when": "nodes > 1"}},
        default={},
    )
    env_from: list[VariableName] = optional(
        "Variables that jobs take from the submitting shell. No file contains their values.", ["HF_TOKEN"], default=[]
    )
    env_prepend: dict[VariableName, Variable] = optional(
        "Folders to add at the front of a variable, separated by colons, inside the container.",
        {"LD_LIBRARY_PATH": "/opt/nccl/lib"},
        default={},
    )
    env_unset: list[VariableName] = optional(
        "Variables to remove inside the container.", ["SINGULARITY_BIND"], default=[]
    )
    setup: list[SetupLine] = optional(
        "Lines of bash that run on the first node of a job, before its processes start.",
        ["module load cuda", {"run": "source /opt/net/profile.sh", "when": "nodes > 1"}],
        default=[],
    )
    sample_gpus_every_s: Count | None = optional(
        "Interval in seconds at which nvidia-smi records memory, power and clocks of the GPUs of a job. Without it "
        "nothing is recorded.",
        1,
    )
    price_per_gpu_hour: PriceFields | None = optional(
        "Price of one GPU for one hour, to show GPU-hours as money. Without it no cost is shown.",
        {"value": 2.5, "currency": "USD"},
    )
    programs: ProgramSites = optional(
        "Paths of the programs and their data, by the name of the program.", default=ProgramSites()
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


@cache
def profile_model(programs: frozenset[str]) -> type[ClusterProfile]:
    """Return the model of a profile that names these programs. No other program is loaded."""
    sites: dict[str, tuple[object, object]] = {}
    for name in sorted(programs & plug_ins(GROUP).keys()):
        with suppress(ReproError):  # a broken program, which `broken_plug_ins` reports
            program = find_program(name)
            default = _default_site(program)
            kind = program.site if default is not None else program.site | None
            about = f"Paths of the program: {program.about}."
            sites[_identifier(name)] = kind, Field(default=default, alias=name, description=about)
    if not sites:
        return ClusterProfile
    of_sites, own = _extended(ProgramSites, sites), ClusterProfile.model_fields
    field = optional(str(own["programs"].description), default=of_sites())
    # All fields, to keep their order.
    return _extended(ClusterProfile, {n: (f.annotation, f) for n, f in own.items()} | {"programs": (of_sites, field)})


def _extended(base: type[M], fields: Mapping[str, Any]) -> type[M]:
    """Return a model of the same name with these fields."""
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _applicable(variables: Mapping[str, str | VariableFields], nodes: int) -> dict[str, str]:
    """Return the variables whose condition a job on this many nodes meets."""
    return {
        name: value if isinstance(value, str) else value.value
        for name, value in variables.items()
        if isinstance(value, str) or holds(value.when, nodes)
    }


_NULL = {"type": "null"}
_ADD = "Elements to add at the end of the list of the lower layers: one element, or a list."
_REMOVE = "Elements to remove from the list of the lower layers, each complete or by the option before its `=`."
_SIMPLE = {"type", "pattern", "minLength", "minimum", "maximum", "exclusiveMinimum"}


def profile_schema() -> JsonSchemaValue:
    """Return the JSON Schema (draft 2020-12) of one file: a profile, an extension or an overlay.

    No field is required, because a lower layer may contain it. Each field may be null, which removes it, and each list
    may be changed by `add` and `remove`. `find_cluster` checks the rules for whole profiles, such as `scheduler: slurm`
    without `slurm:`.
    """
    schema = _relaxed(profile_model(frozenset(programs())).model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A cluster's profile", **schema}


def schema_text() -> str:
    """Return the content of `clusters/schema.json`."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"


def _relaxed(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema without required fields, null and container defaults, and titles."""
    result: JsonSchemaValue = {}
    for key, item in schema.items():
        if key in ("required", "title") or (key == "default" and (item is None or isinstance(item, (dict, list)))):
            continue
        if key in ("properties", "patternProperties", "$defs"):
            each = _relaxed if key == "$defs" else _field
            result[key] = {name: each(part) for name, part in item.items()}
        elif key == "additionalProperties" and isinstance(item, dict):
            result[key] = _field(item)
        elif key == "items":
            result[key] = _relaxed(item)
        elif key in ("anyOf", "oneOf"):
            result["anyOf"] = [_relaxed(choice) for choice in item]
        elif key == "description":
            result[key] = " ".join(item.split())
        else:
            result[key] = item
    if "patternProperties" in result:
        result.setdefault("additionalProperties", False)
    return result


def _field(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a field: its value, null, or the steps that change a list."""
    relaxed = _relaxed(schema)
    notes: JsonSchemaValue = {key: relaxed.pop(key) for key in ("default", "description", "examples") if key in relaxed}
    choices = [choice for choice in _choices(relaxed) if choice != _NULL]
    steps = [_steps(choice["items"]) for choice in choices if choice.get("type") == "array"]
    if len(choices) == 1 and not steps and choices[0].keys() <= _SIMPLE:
        kinds = choices[0]["type"] if isinstance(choices[0]["type"], list) else [choices[0]["type"]]
        return {**choices[0], "type": [*kinds, "null"], **notes}
    return {"anyOf": [*choices, *steps, _NULL], **notes}


def _choices(schema: JsonSchemaValue) -> Iterator[JsonSchemaValue]:
    """Yield all alternatives of a field, including nested ones."""
    if "anyOf" not in schema:
        yield schema
    for choice in schema.get("anyOf", ()):
        yield from _choices(choice)


def _steps(item: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of `{add: [...], remove: [...]}`. A single item needs no list. `remove` also accepts text."""
    added = {"anyOf": [item, {"type": "array", "items": item}], "description": _ADD}
    named = {"anyOf": [item, {"type": "string"}]}
    removed = {"anyOf": [*named["anyOf"], {"type": "array", "items": named}], "description": _REMOVE}
    return {"type": "object", "properties": {"add": added, "remove": removed}, "additionalProperties": False}
