"""What a job runs, in the words of its workload; and which workloads there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import Paper
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.workloads import megatron_2021, pretrain
from orchestrator.workloads.traits import traits_of


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's command. `code` identifies what runs, `image` the container it runs in; both are part of a job's
    identity. `mounts` are the folders it needs inside a container, `python_path` what comes first in its PYTHONPATH.
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
        mend = f"it can be planned; what runs is: {', '.join(_MAKERS)}"
        raise ReproError(Problem(f"{case.workload}: repro cannot write its arguments yet", mend=mend))
    return maker(Binding(case, paper, cluster, folders))


def is_offered(workload: str, cluster: Cluster) -> bool:
    """Whether this site says where the workload's code is, and we can write its arguments."""
    sites = cluster.profile.workloads
    return workload == "pretrain" or (workload == "megatron-2021" and sites.megatron_2021 is not None)


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
    case, site = binding.case, binding.cluster.profile.workloads.megatron_2021
    code = binding.paper.code.get(case.workload)
    if code is None:
        raise ReproError(Problem(f"paper.yaml names no code for {case.workload}"))
    if site is None:
        mend = "the profile needs workloads: megatron-2021: checkout, data_path, vocab_file, merge_file"
        raise ReproError(Problem(f"{binding.cluster.name} has no {case.workload}", mend=mend))
    image, image_path = binding.image()
    return Program(
        workload=case.workload,
        python="python",
        target=(f"{site.checkout}/pretrain_gpt.py",),
        arguments=tuple(megatron_2021.arguments(case, site.data_path, site.vocab_file, site.merge_file)),
        code=code.commit,
        image=image,
        image_path=image_path,
        mounts=(site.checkout,),
    )


_MAKERS: Mapping[str, Callable[[Binding], Program]] = {"pretrain": _pretrain, "megatron-2021": _megatron_2021}
