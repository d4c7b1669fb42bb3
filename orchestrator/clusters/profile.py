"""Model of a cluster profile, and its JSON Schema for editors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, WithJsonSchema, create_model, model_validator

from orchestrator.clusters.container import BY_KIND, ContainerFields, SetupLine, VariableFields, holds
from orchestrator.clusters.slurm_options import MpirunFields, SlurmFields
from orchestrator.config.model import Count, Hardware, Positive, Strict, Text
from orchestrator.workloads import workloads
from orchestrator.workloads.base import AnyWorkload, WorkloadSite
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


class WorkloadSites(Strict):
    """Paths of the programs and their data: one field for each workload."""

    def site(self, workload: str) -> WorkloadSite | None:
        """Return the fields of a workload; None if the profile lacks them or the workload does not exist."""
        fields: WorkloadSite | None = getattr(self, _identifier(workload), None)
        return fields

    @property
    def pretrain_python(self) -> str | None:
        """The Python of `pretrain` jobs; None if the profile does not contain it."""
        site = self.site(PRETRAIN)
        return site.python if isinstance(site, PretrainSite) else None


def _identifier(workload: str) -> str:
    return re.sub(r"\W", "_", workload)


def _site_field(workload: AnyWorkload) -> tuple[Any, Any]:
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


class ClusterProfile(Strict):
    """Settings of a site, independent of any paper.

    `environment` is set for every rank, inside the container. There, `env_prepend` adds folders at the front of a
    variable, and `env_unset` removes a variable. `env_from` lists variables that jobs take from the submitting shell;
    their values are not written to any file. `setup` lines run on the first node of a job, before its processes start.
    `sample_gpus_every_s` is the interval in which nvidia-smi records memory, power and clocks of the GPUs of a job.
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
    workloads: AllWorkloadSites = AllWorkloadSites()

    @model_validator(mode="after")
    def _is_complete(self) -> ClusterProfile:
        needed = {"slurm": ("slurm", "hardware"), "mpirun": ("mpirun", "hardware"), "local": ()}[self.scheduler]
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"scheduler: {self.scheduler} needs {' and '.join(f'{name}:' for name in missing)}")
        strangers = {
            "local": ("slurm", "mpirun", "container"),
            "mpirun": ("slurm", "container", "sample_gpus_every_s"),
            "slurm": ("mpirun",),
        }
        for name in strangers[self.scheduler]:
            if getattr(self, name) is not None:
                raise ValueError(f"scheduler: {self.scheduler} does not support {name}:")
        return self

    @property
    def time_limit(self) -> str | None:
        """The time limit of jobs whose experiment has none."""
        own = self.slurm or self.mpirun
        return own.time_limit if own else None

    def variables(self, nodes: int) -> dict[str, str]:
        """Return the environment of the ranks of a job on this many nodes."""
        return held(self.environment, nodes)

    def prepended(self, nodes: int) -> dict[str, str]:
        """Return the folders to prepend to each variable, for a job on this many nodes."""
        return held(self.env_prepend, nodes)


def held(variables: Mapping[str, str | VariableFields], nodes: int) -> dict[str, str]:
    """Return the variables whose condition a job on this many nodes meets."""
    return {
        name: value if isinstance(value, str) else value.value
        for name, value in variables.items()
        if isinstance(value, str) or holds(value.when, nodes)
    }


_NULL = {"type": "null"}
_SIMPLE = {"type", "pattern", "minLength", "minimum", "maximum", "exclusiveMinimum"}


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one file: a profile, an extension or an overlay.

    No field is required, because a lower layer may contain it. Each field may be null, which removes it, and each list
    may be changed by `add` and `remove`. `find_cluster` checks the rules for whole profiles, such as `scheduler: slurm`
    without `slurm:`.
    """
    schema = _relaxed(ClusterProfile.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A cluster's profile", **schema}


def schema_text() -> str:
    """Return the content of `clusters/schema.json`."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"


def _relaxed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without required fields, null and container defaults, and titles."""
    result: dict[str, Any] = {}
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


def _field(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field: its value, null, or the steps that change a list."""
    relaxed = _relaxed(schema)
    beside: dict[str, Any] = {key: relaxed.pop(key) for key in ("default", "description") if key in relaxed}
    choices = [choice for choice in _choices(relaxed) if choice != _NULL]
    steps = [_steps(choice["items"]) for choice in choices if choice.get("type") == "array"]
    if len(choices) == 1 and not steps and choices[0].keys() <= _SIMPLE:
        kinds = choices[0]["type"] if isinstance(choices[0]["type"], list) else [choices[0]["type"]]
        return {**choices[0], "type": [*kinds, "null"], **beside}
    return {"anyOf": [*choices, *steps, _NULL], **beside}


def _choices(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all alternatives of a field, including nested ones."""
    if "anyOf" not in schema:
        yield schema
    for choice in schema.get("anyOf", ()):
        yield from _choices(choice)


def _steps(item: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `{add: [...], remove: [...]}`. A single item needs no list. `remove` also accepts text."""
    added = {"anyOf": [item, {"type": "array", "items": item}]}
    named = {"anyOf": [item, {"type": "string"}]}
    removed = {"anyOf": [*named["anyOf"], {"type": "array", "items": named}]}
    return {"type": "object", "properties": {"add": added, "remove": removed}, "additionalProperties": False}
