"""What a job runs, in the words of its workload; and which workloads there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import Paper
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.workload_sites import MegatronSite, VocabularySite
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.workloads import megatron_2021, megatron_core, megatron_kwai, pretrain
from orchestrator.workloads.traits import traits_of


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's command. `code` identifies what runs, `image` the container it runs in; both are part of a job's
    identity. `mounts` are the folders it needs inside a container, `python_path` what comes first in its PYTHONPATH,
    `environment` the variables that its published script sets for every rank.
    """

    workload: str
    python: str
    target: tuple[str, ...]
    arguments: tuple[str, ...]
    code: str
    image: str | None = None
    image_path: str | None = None
    python_path: str | None = None
    mounts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def per_rank(self) -> list[str]:
        """The command of one rank that some launcher has already given its rank variables."""
        return [self.python, "-u", *self.target, *self.arguments]

    def torchrun(self, processes: int) -> list[str]:
        """The command that starts every rank of one machine."""
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        return [self.python, "-u", *launcher, *self.target, *self.arguments]


@dataclass(frozen=True, slots=True)
class Binding:
    """A case, where it comes from and where it goes: what a dialect makes a program of."""

    case: Case
    paper: Paper
    cluster: Cluster
    folders: Folders

    def image(self) -> tuple[str | None, str | None]:
        return image_of(self.case.workload, self.paper, self.cluster)


def program_for(case: Case, paper: Paper, cluster: Cluster, folders: Folders) -> Program:
    """The program of a case on a cluster; ReproError says what the site or the paper leaves open."""
    traits_of(case.workload)  # a workload that nobody knows is refused with the nearest that somebody does
    maker = _MAKERS.get(case.workload)
    if maker is None:
        why = _NOT_RUN.get(case.workload, "repro cannot write its arguments yet")
        mend = f"it can be planned; what runs is: {', '.join(_MAKERS)}"
        raise ReproError(Problem(f"{case.workload}: {why}", mend=mend))
    return maker(Binding(case, paper, cluster, folders))


def is_offered(workload: str, cluster: Cluster) -> bool:
    """Whether this site says where the workload's code is, and we can write its arguments."""
    return workload == "pretrain" or (workload in _MAKERS and cluster.profile.workloads.megatron(workload) is not None)


def image_of(workload: str, paper: Paper, cluster: Cluster) -> tuple[str | None, str | None]:
    """The container image a workload wants, by the paper's name and by the site's path; (None, None) without one."""
    if cluster.profile.container is None:
        return None, None
    name = paper.images.get(workload, workload)
    return name, cluster.profile.container.images.get(name)


def _pretrain(binding: Binding) -> Program:
    image, image_path = binding.image()
    package = str(binding.folders.package_parent)
    return Program(
        workload=binding.case.workload,
        python=binding.cluster.profile.workloads.pretrain.python or ("python" if image else sys.executable),
        target=("-m", "orchestrator.pretrain"),
        arguments=tuple(pretrain.arguments(binding.case)),
        code=pretrain.code_version(),
        image=image,
        image_path=image_path,
        python_path=package,
        mounts=(package,),
    )


def _megatron_2021(binding: Binding) -> Program:
    site = _site(binding, VocabularySite)
    words = megatron_2021.arguments(binding.case, site.data_path, site.vocab_file, site.merge_file)
    return _megatron(binding, site, words)


def _megatron_core(binding: Binding) -> Program:
    site = _site(binding, VocabularySite)
    words = megatron_core.arguments(binding.case, site.data_path, site.vocab_file, site.merge_file)
    return replace(_megatron(binding, site, words), python_path=site.checkout)


def _megatron_kwai(binding: Binding) -> Program:
    return _atc24(binding, megatron_kwai.kwai_arguments)


def _megatron_jan_2024(binding: Binding) -> Program:
    return _atc24(binding, megatron_kwai.origin_arguments)


def _atc24(binding: Binding, arguments: Callable[[Case, str], list[str]]) -> Program:
    site = _site(binding, MegatronSite)
    program = _megatron(binding, site, arguments(binding.case, site.data_path))
    return replace(program, python_path=site.checkout, environment=megatron_kwai.ENVIRONMENT)


Site = TypeVar("Site", bound=MegatronSite)


def _site(binding: Binding, kind: type[Site]) -> Site:
    """Where this cluster has the case's Megatron-LM, with all that its scripts ask for."""
    workload, cluster = binding.case.workload, binding.cluster
    site = cluster.profile.workloads.megatron(workload)
    if not isinstance(site, kind):
        mend = f"the profile needs workloads: {workload}: {', '.join(kind.model_fields)}"
        raise ReproError(Problem(f"{cluster.name} has no {workload}", mend=mend))
    return site


def _megatron(binding: Binding, site: MegatronSite, arguments: list[str]) -> Program:
    """What all of them share: pretrain_gpt.py of a checkout, at the commit that the paper names."""
    workload = binding.case.workload
    code = binding.paper.code.get(workload)
    if code is None:
        raise ReproError(Problem(f"paper.yaml names no code for {workload}"))
    image, image_path = binding.image()
    return Program(
        workload=workload,
        python="python",
        target=(f"{site.checkout}/pretrain_gpt.py",),
        arguments=tuple(arguments),
        code=code.commit,
        image=image,
        image_path=image_path,
        mounts=(site.checkout,),
    )


_MAKERS: Mapping[str, Callable[[Binding], Program]] = {
    "pretrain": _pretrain,
    "megatron-2021": _megatron_2021,
    "megatron-kwai": _megatron_kwai,
    "megatron-jan-2024": _megatron_jan_2024,
    "megatron-core-0.14": _megatron_core,
    "megatron-tutorial-fork": _megatron_core,
}

# Alpa's benchmark_gpt_one_case.py calls Megatron-LM's train_step three times and writes a table: none of the lines that
# say that an iteration was trained, with what loss, nor how often (its repository is another than the fork's, too).
_NOT_RUN: Mapping[str, str] = {
    "megatron-alpa": "its program reports only the mean of two iterations, in a table that repro does not read yet",
}
