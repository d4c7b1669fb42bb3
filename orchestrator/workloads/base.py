"""Types of a workload: the program of a case, its command line, and its flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import Paper
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.staged_images import image_of_jobs
from orchestrator.clusters.workload_sites import CheckoutSite
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import Folders

SYNTHETIC = "synthetic"
"""Data of a program that makes them up itself, without saying so in its arguments."""

TORCHRUN = "torch.distributed.run"

Site = TypeVar("Site", bound=CheckoutSite)


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's command. `code` identifies what runs, `image` the container it runs in; both are part of a job's
    identity. So is `image_digest`, the digest of an imported image, where it is recorded. `mounts` are the folders it
    needs inside a container, `python_path` what comes first in its PYTHONPATH, `environment` the variables that its
    published script sets for every rank.

    `data` is what it reads: a path, "mock data" or "synthetic". With `needs_mpi` the step must be started through PMI.
    `compiles_in` is the checkout into which the first run compiles kernels, while all others wait for torch's file
    megatron/fused_kernels/build/lock; `warm_up` is the command of one process that does no more than that. Where no
    run can be verified, `unverifiable` says why. `site_values` has the words that come from the cluster's profile,
    each with its place there.

    `launcher` is the module that starts all ranks of a node where the scheduler does not start each of them.
    """

    workload: str
    python: str
    target: tuple[str, ...]
    arguments: tuple[str, ...]
    code: str
    image: str | None = None
    image_path: str | None = None
    image_digest: str | None = None
    python_path: str | None = None
    mounts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    data: str = SYNTHETIC
    needs_mpi: bool = False
    compiles_in: str | None = None
    warm_up: tuple[str, ...] = ()
    unverifiable: str | None = None
    site_values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    launcher: str = TORCHRUN

    @property
    def checkout(self) -> str | None:
        """The folder that `code` is the commit of, where the profile names one; words below it come from there too."""
        return min((value for value, path in self.site_values if path[-1] == "checkout"), key=len, default=None)

    def per_rank(self) -> list[str]:
        """The command of one rank that some launcher has already given its rank variables."""
        return [self.python, "-u", *self.target, *self.arguments]

    def all_ranks(self, processes: int) -> list[str]:
        """The command that starts all ranks of a run on one machine."""
        alone = ["--standalone"] if self.launcher == TORCHRUN else []
        options = [*alone, f"--nproc-per-node={processes}"]
        return [self.python, "-u", "-m", self.launcher, *options, *self.below_launcher()]

    def below_launcher(self) -> list[str]:
        """The words after the launcher's options. torchrun runs any program, every other launcher its own."""
        return [*(self.target if self.launcher == TORCHRUN else ()), *self.arguments]


@dataclass(frozen=True, slots=True)
class Binding:
    """A case, where it comes from and where it goes."""

    case: Case
    paper: Paper
    cluster: Cluster
    folders: Folders

    def image(self) -> tuple[str | None, str | None, str | None]:
        """Return the image by the paper's name, what jobs use as it, and its digest; None for what there is not."""
        name, _ = image_of(self.case.workload, self.paper, self.cluster)
        return (name, *image_of_jobs(self.cluster, name)) if name is not None else (None, None, None)

    def site(self, kind: type[Site]) -> Site:
        """Where this cluster has the case's Megatron-LM, with all that its scripts ask for."""
        workload = self.case.workload
        site = self.cluster.profile.workloads.megatron(workload)
        if not isinstance(site, kind):
            needed = [name for name, field in kind.model_fields.items() if field.is_required()]
            hint = f"the profile needs workloads: {workload}: {', '.join(needed)}"
            raise ReproError(Problem(f"{self.cluster.name} has no {workload}", hint=hint))
        return site

    def commit(self, otherwise: str | None = None) -> str:
        """The commit that the paper names for the workload; `otherwise` where it names none."""
        code = self.paper.code.get(self.case.workload)
        commit = code.commit if code else otherwise
        if commit is None:
            raise ReproError(Problem(f"paper.yaml names no code for {self.case.workload}"))
        return commit


def image_of(workload: str, paper: Paper, cluster: Cluster) -> tuple[str | None, str | None]:
    """The container image a workload wants, by the paper's name and by the site's path; (None, None) without one."""
    if cluster.profile.container is None:
        return None, None
    name = paper.images.get(workload, workload)
    return name, cluster.image_location(name)


Flags = Mapping[str, object]
"""Flag -> its value, in the order of the command line. True is a switch that stands alone; what is None or False is
left out."""


def words(flags: Flags) -> list[str]:
    """
    >>> words({"--lr": "6.0e-5", "--bf16": True, "--swiglu": False, "--train-iters": 100})
    ['--lr', '6.0e-5', '--bf16', '--train-iters', '100']
    """
    result: list[str] = []
    for flag, value in flags.items():
        if value is True:
            result.append(flag)
        elif value is not None and value is not False:
            result += [flag, str(value)]
    return result


def refuse(case: Case, lacking: str, unknown: Iterable[str]) -> None:
    """ReproError with all of a case that its program cannot be told, instead of running another under its name."""
    named = list(unknown)
    if named:
        raise ReproError(Problem(f"{case.name}: {lacking} {', no '.join(named)}"))
