"""What a cluster's YAML file may say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from orchestrator.clusters.workload_sites import WorkloadSites
from orchestrator.documents.hardware import HardwareFields
from orchestrator.documents.model import Count, Strict, Text, TimeLimit

# The scripts set the first for each rank; the others are the shell's own (and so is all of BASH...): an `export` of
# them would fail, or reach the program as something else.
_RANK_NAMES = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
_SHELL_NAMES = frozenset(
    {"_", "folder", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "IFS"}
    | {"LINENO", "OPTIND", "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID"}
)


def _variable(name: str) -> str:
    if name in _RANK_NAMES:
        raise ValueError("the scripts set it for each rank")
    if name in _SHELL_NAMES or name.startswith("BASH"):
        raise ValueError("the script's shell keeps this variable for itself")
    return name


def _variable_value(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("must be text or a whole number, in quotes if need be")
    return value


def _mount(value: str) -> str:
    if not value.startswith(("/", "./", "<", "tmpfs", "umount")):
        raise ValueError("a mount must start with / or ./")
    if "," in value and not value.startswith("<"):
        raise ValueError("one mount to a line: pyxis divides its list at commas")
    return value


def _image(value: str) -> str:
    # pyxis takes foo.sqsh without ./ for the name of an image in a registry.
    if value.endswith((".sqsh", ".squashfs")) and not value.startswith(("/", "./", "<")):
        raise ValueError("a squashfs file must be given with its path, /... or ./...")
    return value


# How a submission is found again, and where its output goes, cannot be the site's as well.
_OURS = {
    "--comment": "it carries the token that finds a job again",
    "--output": "a job's folder is known when it is submitted",
    "--array": "repro puts jobs together",
    "--requeue": "repro decides what runs again",
}


def _free_argument(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError("a free argument must start with -")
    if value.startswith(("--container-", "--no-container-")):
        raise ValueError("container options belong to container:, which puts them on srun and never on sbatch")
    if any(character.isspace() for character in value.partition("=")[0]):
        raise ValueError("a free argument is one word, --name=value")
    name = value.partition("=")[0]
    if name in _OURS:
        raise ValueError(f"{name} is not the site's: {_OURS[name]}")
    return value


Argument = Annotated[str, Field(pattern=r"^[^\n\r\x00]+$"), AfterValidator(_free_argument)]


class SlurmFields(Strict):
    account: Text | None = None
    partition: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    reservation: Text | None = None
    time_limit: TimeLimit
    exclusive: bool = False
    mem: Text | None = None
    cpus_per_task: Count | None = None
    gpu_request: Literal["none", "gres", "gpus-per-node"] = "gpus-per-node"
    gres_type: Text | None = None
    max_running: Count = 4
    sbatch: list[Argument] = []
    srun: list[Argument] = []


class ContainerFields(Strict):
    """`images` says where this site keeps an image that a paper names."""

    runtime: Literal["pyxis"]
    images: dict[Text, Annotated[Text, AfterValidator(_image)]] = {}
    mounts: list[Annotated[Text, AfterValidator(_mount)]] = []
    writable: bool = False
    mount_home: bool = False


class ClusterProfile(Strict):
    about: Text
    scheduler: Literal["slurm", "local"]
    hardware: HardwareFields | None = None
    slurm: SlurmFields | None = None
    container: ContainerFields | None = None
    environment: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_variable)],
        Annotated[
            Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")] | Annotated[int, Field(strict=True)],
            BeforeValidator(_variable_value),
        ],
    ] = {}
    setup: list[Text] = []
    workloads: WorkloadSites = WorkloadSites()

    @model_validator(mode="after")
    def _slurm_is_complete(self) -> ClusterProfile:
        if self.scheduler == "slurm":
            missing = [name for name in ("slurm", "hardware") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"a Slurm cluster needs {' and '.join(f'{name}:' for name in missing)}")
        elif self.slurm is not None or self.container is not None:
            raise ValueError("a local machine has neither slurm: nor container:")
        return self
