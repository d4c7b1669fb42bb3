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

from orchestrator.clusters.container import BY_KIND, ContainerFields, SetupLine, VariableFields, holds
from orchestrator.clusters.slurm_fields import MpirunFields, SlurmFields
from orchestrator.config.model import Count, Hardware, Positive, Strict, Text, optional, required
from orchestrator.errors import ReproError
from orchestrator.money import Price, checked_currency
from orchestrator.programs.needs import ProgramSite
from orchestrator.programs.plug_ins import plug_ins
from orchestrator.programs.record import Program
from orchestrator.programs.registry import GROUP, find_program, known_program, programs

M = TypeVar("M", bound=Strict)

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
        program = known_program(program) if fields is None else None
        return fields if program is None or program.name != program else _default_site(program)

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
        with suppress(ReproError):  # a broken program, which `broken_programs` reports
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
        if key in ("properties", "patternProperties"):
            result[key] = {name: _field(field) for name, field in item.items()}
        elif key == "$defs":
            result[key] = {name: _relaxed(model) for name, model in item.items()}
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
