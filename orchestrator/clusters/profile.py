"""What a cluster's YAML file may say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from orchestrator.documents.model import Count, Strict, Text

TimeLimit = Annotated[str, Field(pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$")]


def _mount(value: str) -> str:
    if not value.startswith(("/", "./", "<", "tmpfs", "umount")):
        raise ValueError("a mount must start with / or ./")
    return value


def _image(value: str) -> str:
    # pyxis takes foo.sqsh without ./ for the name of an image in a registry.
    if value.endswith((".sqsh", ".squashfs")) and not value.startswith(("/", "./", "<")):
        raise ValueError("a squashfs file must be given with its path, /... or ./...")
    return value


def _free_argument(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError("a free argument must start with -")
    if value.startswith("--container-"):
        raise ValueError("container options belong to container:, which puts them on srun and never on sbatch")
    return value


Argument = Annotated[str, Field(pattern=r"^[^\n\r\x00]+$"), AfterValidator(_free_argument)]


class HardwareFields(Strict):
    """What the nodes are. `peak_tflops` is dense, by dtype; a dtype that is not listed the GPU does not have."""

    nodes: Count
    gpus_per_node: Count
    gpu: Text | None = None
    gpu_memory_gb: Count | None = None
    peak_tflops: dict[Literal["fp32", "fp16", "bf16"], Annotated[float, Field(gt=0)]] = {}

    def peak(self, dtype: str) -> float | None:
        """Dense peak in TFLOP/s; None when the profile does not say."""
        return {str(name): value for name, value in self.peak_tflops.items()}.get(dtype)


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


class PretrainSite(Strict):
    """Where jobs find a Python with torch and megatron-core; absent: the one that runs `repro`."""

    python: Text | None = None


class MegatronSite(Strict):
    """Where jobs find Megatron-LM's checkout and its data."""

    checkout: Text
    data_path: Text
    vocab_file: Text
    merge_file: Text


class WorkloadSites(Strict):
    pretrain: PretrainSite = PretrainSite()
    megatron_2021: Annotated[MegatronSite | None, Field(alias="megatron-2021")] = None


class ClusterProfile(Strict):
    about: Text
    scheduler: Literal["slurm", "local"]
    hardware: HardwareFields | None = None
    slurm: SlurmFields | None = None
    container: ContainerFields | None = None
    environment: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")] | Annotated[int, Field(strict=True)],
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
