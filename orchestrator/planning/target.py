"""Machine that a plan is for, a cluster or the paper's own, the checks of a case against it, and scales that fit it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case, select, with_program
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry
from orchestrator.clusters.container import read_image
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.profile import ClusterProfile
from orchestrator.clusters.program import is_offered
from orchestrator.clusters.resolve import EXAMPLE, Cluster
from orchestrator.config.model import Hardware
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Value
from orchestrator.money import Price
from orchestrator.paths import short_name
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import find_program
from orchestrator.text import counted


@dataclass(frozen=True, slots=True)
class Target:
    """A named machine. `machine` is the local host if the plan is for it, `paper` the folder of the paper that used it.

    `gpus_location` is the location of the number of GPUs in the profile; None if the profile does not set it.
    """

    name: str
    hardware: Hardware
    machine: Machine | None = None
    profile: ClusterProfile | None = None
    gpus_location: str | None = None
    paper: str | None = None

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Target:
        """Return the target for a cluster profile."""
        location = cluster.location(("hardware", "gpus_per_node")) if cluster.profile.hardware else None
        return cls(cluster.name, cluster.hardware, cluster.machine, cluster.profile, location)

    @property
    def time_limit(self) -> str | None:
        """Time limit of jobs whose experiment sets none."""
        return self.profile.time_limit if self.profile else None

    @property
    def price(self) -> Price | None:
        """Price of a GPU-hour; None if the profile has none."""
        fields = self.profile.price_per_gpu_hour if self.profile else None
        return fields.price if fields else None

    @classmethod
    def of_paper(cls, entry: Entry) -> Target:
        """Return the paper's own machine; ReproError if its paper.yaml describes none."""
        if entry.paper.machine is None:
            hint = "--cluster NAME names one; `repro clusters list` lists them"
            raise ReproError(Problem(f"{entry.name}: paper.yaml describes no machine to plan for", hint=hint))
        return cls(
            f"the machine of {entry.paper.venue or entry.paper.title}", entry.paper.machine, paper=entry.paper_folder
        )

    @property
    def site(self) -> str:
        """Name of the cluster, or folder of the paper, whose measured times may apply."""
        return self.paper or self.name

    def places_per_node(self, case: Case) -> int:
        """Return the number of processes that a node can run: one per GPU, or what the local host has CPU cores for."""
        if case.device == "cpu" and self.machine is not None:
            return self.machine.processes
        return self.hardware.gpus_per_node

    def nodes_of(self, case: Case) -> int:
        """Return the number of nodes that the case needs."""
        if case.record.processes is not None:
            return job_size(case, self.places_per_node(case)).nodes
        return -(-case.gpus // min(case.gpus, self.places_per_node(case)))


@dataclass(frozen=True, slots=True)
class JobSize:
    """Nodes of a job, and the places (GPUs, or processes on CPU cores) and processes of each."""

    nodes: int
    places_per_node: int
    processes_per_node: int
    problems: tuple[str, ...] = ()


def job_size(case: Case, per_node: int) -> JobSize:
    """Return the size of a case on nodes with so many places.

    The axis `nodes` decides before the number of GPUs, and the axis `processes` before the program.
    """
    nodes = _whole(case, "nodes") or max(1, -(-case.gpus // max(per_node, 1)))
    places = -(-case.gpus // nodes)
    uneven = (
        f"{counted(case.gpus, 'GPU')} cannot be divided among {counted(nodes, 'node')}" if case.gpus % nodes else None
    )
    processes, problem = _processes(case, nodes, places)
    return JobSize(nodes, places, processes, tuple(filter(None, (uneven, problem))))


def _processes(case: Case, nodes: int, places: int) -> tuple[int, str | None]:
    """Return the processes of a node, and why there cannot be so many."""
    count = _whole(case, "processes") or (case.described or case.record).processes
    assert count is not None
    if count == "one":
        hint = "processes: one per node starts one on each"
        return 1, f"processes: one is on one node, and the case needs {nodes}; {hint}" if nodes > 1 else None
    if count == "one per node":
        return 1, None
    if count == "one per GPU":
        return max(places, 1), None if places else "processes: one per GPU, and the case has no GPU; set gpus"
    what = f"{counted(count, 'process')} cannot be divided among {counted(nodes, 'node')}"
    return -(-count // nodes), what if count % nodes else None


def _whole(case: Case, axis: str) -> int | None:
    """Return the value on an axis of whole numbers; None if the case has none."""
    value = case.settings.get(axis)
    return value if isinstance(value, int) and value > 0 else None


def refusals(case: Case, target: Target) -> list[str]:
    """Return every reason why the case cannot run: limits of the machine, then rules of the program."""
    return [*fit_refusals(case, target), *case.record.check(case, target)]


def fit_refusals(case: Case, target: Target) -> Iterator[str]:
    """Yield the reasons why the hardware cannot hold the case."""
    hardware, machine = target.hardware, target.machine
    why = f" ({machine.lack})" if machine is not None and machine.lack and case.device == "gpu" else ""
    if case.device == "gpu" and machine is not None and case.gpus > machine.gpus:
        profile = f"; the profile has {hardware.gpus_per_node} ({target.gpus_location})" if target.gpus_location else ""
        yield f"needs {counted(case.gpus, 'GPU')}, this machine has {machine.gpus or 'none'}{why}{profile}"
        return
    needs = counted(case.gpus, "GPU" if case.device == "gpu" else "process")
    per_node = target.places_per_node(case)
    available = hardware.nodes * per_node
    if case.record.processes is not None:
        size = job_size(case, per_node)
        yield from size.problems
        if size.nodes > hardware.nodes:
            yield f"needs {counted(size.nodes, 'node')}, {target.name} has {hardware.nodes}"
        elif size.places_per_node > per_node:
            places = counted(size.places_per_node, "GPU" if case.device == "gpu" else "process")
            yield f"needs {places} on a node, the nodes of {target.name} have {per_node}"
    elif case.gpus > available:
        unit = "" if case.device == "gpu" else "places for "
        yield f"needs {needs}, {target.name} has {unit}{hardware.nodes} x {per_node} = {available}{why}"
    elif case.gpus > per_node and case.gpus % per_node:
        unit = "GPUs" if case.device == "gpu" else "places"
        yield f"{needs} do not fill whole nodes of {per_node} {unit}"
    if target.profile is not None and target.profile.slurm is not None:
        limit = case.time_limit or target.profile.slurm.time_limit
        gpus = case.gpus if case.device == "gpu" else 0
        yield from target.profile.slurm.refusals(target.nodes_of(case), gpus, limit)
    if case.device == "cpu":
        return
    if case.dtype is not None and hardware.peak_tflops and hardware.peak(case.dtype) is None:
        has = ", ".join(sorted(hardware.peak_tflops))
        yield f"{hardware.gpu or 'the GPU'} of {target.name} has no {case.dtype} (it has {has})"
    if machine is not None and case.gpu_memory_gb and (hardware.gpu_memory_gb or 0) < case.gpu_memory_gb:
        yield f"needs GPUs of {case.gpu_memory_gb} GB, {target.name} has {hardware.gpu_memory_gb} GB"


def warnings(case: Case, target: Target) -> Iterator[str]:
    """Yield what a user should know of a case that can run."""
    if case.device == "cpu":
        return
    yield from case.record.warn(case, target)
    wanted, available = case.gpu_memory_gb, target.hardware.gpu_memory_gb
    if wanted and available and available < wanted:
        yield f"laid out for GPUs of {wanted} GB, here they have {available} GB"


def start_refusals(program: BoundProgram, cluster: Cluster) -> Iterator[str]:
    """Yield the reasons why jobs of this program would fail to start on the cluster."""
    slurm = cluster.profile.slurm
    if program.needs_mpi and cluster.profile.mpirun is None:
        calls = f"{program.name} calls MPI in this layout"
        if slurm is None:
            yield f"{calls}, and {cluster.name} starts processes with torchrun"
        elif slurm.tasks == "per-node":
            yield f"{calls}, so each process must be a task of srun; the profile has slurm: tasks: per-node"
        elif not (slurm.mpi or "").startswith("pmi") and not any(word.startswith("--mpi=pmi") for word in slurm.srun):
            yield f"{calls}; the profile needs slurm: mpi: pmix (`srun --mpi=list` lists the types)"
    if _is_pulled_by_each_job(program, cluster) and cluster.profile.site.offline_nodes:
        yield (
            f"the image {program.image_path} is in a registry, which the nodes of {cluster.name} do not reach; "
            f"{_listed(program, cluster)}set site: staging_folder, then run "
            f"`repro images import --cluster {cluster.name}`"
        )


def start_warnings(program: BoundProgram, cluster: Cluster) -> Iterator[str]:
    """Yield what a user should know of the start of this program on the cluster."""
    if _is_pulled_by_each_job(program, cluster) and not cluster.profile.site.offline_nodes:
        yield (
            f"every node of every job pulls {program.image_path} from its registry; "
            f"{_listed(program, cluster)}set site: staging_folder, then `repro images import --cluster {cluster.name}` "
            "pulls it once"
        )
    container = cluster.profile.container
    if container is None:
        return
    mounts = [mount if isinstance(mount, str) else mount.mount for mount in container.mounts]
    inside = [*program.mounts, *((mount.split(":") * 2)[1] for mount in mounts)]  # without a colon, both paths are one
    needed = {value for value, path in program.site_values if path[-1] not in ("python", "path") and value[:1] == "/"}
    missing = [
        path
        for path in sorted(needed)
        if EXAMPLE not in path and not any(f"{path}/".startswith(f"{mount.rstrip('/')}/") for mount in inside)
    ]
    if missing:
        yield f"no mount of {cluster.name} contains {' and '.join(missing)}, which the program needs"


def _listed(program: BoundProgram, cluster: Cluster) -> str:
    """Return the step before an import of an image that the profile does not list."""
    container = cluster.profile.container
    is_listed = container is None or program.image in container.images
    return "" if is_listed else f"add container: images: {program.name}: {program.image_path}, "


def _is_pulled_by_each_job(program: BoundProgram, cluster: Cluster) -> bool:
    container = cluster.profile.container
    if container is None or program.image_path is None or "<" in program.image_path:
        return False
    return container.record.ending is not None and read_image(program.image_path).path is None


def replace_program(cases: list[Case], program: str | None) -> list[Case]:
    """Return the cases with the given program, if any; ReproError if it is unknown or cannot run them."""
    if program is None:
        return cases
    runs_on_cpu = find_program(program).runs_on_cpu
    replaced = with_program(cases, program)
    if not runs_on_cpu and any(case.device == "cpu" for case in replaced):
        figure = f"{short_name(cases[0].experiment)} at scale {cases[0].scale}"
        what = f"--program {program}: {figure} runs on CPU cores, and {program} on GPUs only"
        raise ReproError(Problem(what, hint="leave --program out, or choose another --scale"))
    return replaced


def cases_at(
    entry: Entry,
    cluster: Cluster | None,
    scale: str | None,
    program: str | None = None,
    wanted: Mapping[str, Value] | None = None,
) -> list[Case]:
    """Return the experiment's own cases at a scale: the given one, else the largest that fits the cluster.

    With `program` it is the largest scale that this program can run. Of its cases, those with the values `wanted`
    must fit. Without a cluster it is the published scale; so it is if none fits a cluster of several machines, whose
    refusal then has the reasons.
    """
    if program is not None and entry.described is not None:
        what = f"--program {program}: {entry.short_name} describes its program, {entry.described.shown_name}"
        raise ReproError(Problem(what, hint="leave --program out"))
    if scale is not None or cluster is None:
        return cases_to_run(entry, scale or PAPER)
    wanted = wanted or {}
    scales = [cases_to_run(entry, name) for name in scale_names(entry.experiment)]
    fitting = [own for own in scales if _can_run(own, cluster, program, wanted)]
    offered = [
        own
        for own in fitting
        if all(case.described or is_offered(program or case.program, cluster) for case in own if case.has(wanted))
    ]
    if cluster.machine is not None and offered:
        return offered[0]
    if fitting:  # its refusal names the missing program
        return fitting[0]
    if cluster.machine is None:
        return cases_to_run(entry, PAPER)
    select([case for own in scales for case in own], wanted)  # ReproError if no scale has such a case
    names = ", ".join(scale_names(entry.experiment))
    program = f" with {program}" if program else ""
    what = f"no scale of {entry.short_name} ({names}) fits {cluster.name}{program}"
    raise ReproError(Problem(what, hint="--cluster NAME selects another machine; `repro clusters list` lists them"))


def _can_run(cases: list[Case], cluster: Cluster, program: str | None, wanted: Mapping[str, Value]) -> bool:
    try:
        cases = replace_program(cases, program)
    except ReproError:  # this scale compares programs or has no GPUs; a smaller one may fit
        return False
    chosen = [case for case in cases if case.has(wanted)]
    return bool(chosen) and _fit(chosen, Target.of_cluster(cluster))


def _fit(cases: Sequence[Case], target: Target) -> bool:
    """Return whether the target's hardware can hold all cases."""
    return not any(reason for case in cases for reason in fit_refusals(case, target))


def scale_hint(entry: Entry, target: Target) -> str | None:
    """Return the hint that names the scales that fit; None if none does."""
    names = [name for name in scale_names(entry.experiment) if _fit(cases_to_run(entry, name), target)]
    if not names:
        return None
    return f"--scale {', '.join(names[:-1])} or {names[-1]} fits" if len(names) > 1 else f"--scale {names[0]} fits"


def scale_notes(entry: Entry, cases: Sequence[Case], cluster: Cluster, scale: str | None) -> list[str]:
    """Return a note if a smaller scale than the published one was chosen for a cluster of several machines."""
    chosen = cases[0].scale
    if scale is not None or cluster.machine is not None or chosen == PAPER:
        return []
    return [f"{entry.short_name} at scale {chosen}, the largest that fits {cluster.name}; --scale selects another"]
