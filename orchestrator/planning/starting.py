"""Whether a site can start a program as the program needs it: through MPI, and from an image its nodes can have."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.clusters.images import read_image
from orchestrator.clusters.resolve import FILE_RUNTIMES, Cluster
from orchestrator.workloads.program import Program


def start_refusals(program: Program, cluster: Cluster) -> Iterator[str]:
    """Why jobs of this program could only fail there."""
    slurm = cluster.profile.slurm
    if program.needs_mpi and cluster.profile.mpirun is None:
        calls = f"{program.workload} calls MPI in this layout"
        if slurm is None:
            yield f"{calls}, and {cluster.name} starts processes with torchrun"
        elif slurm.tasks == "per-node":
            yield f"{calls}, so each process must be a task of srun; the profile says slurm: tasks: per-node"
        elif not (slurm.mpi or "").startswith("pmi") and not any(word.startswith("--mpi=pmi") for word in slurm.srun):
            yield f"{calls}; the profile needs slurm: mpi: pmix (srun --mpi=list shows what there is)"
    if _is_pulled_by_each_job(program, cluster) and cluster.profile.site.offline_nodes:
        yield (
            f"the image {program.image_path} is in a registry, which the nodes of {cluster.name} do not reach; "
            f"say site: staging_folder, then `repro images import --cluster {cluster.name}`"
        )


def start_warnings(program: Program, cluster: Cluster) -> Iterator[str]:
    if _is_pulled_by_each_job(program, cluster) and not cluster.profile.site.offline_nodes:
        yield (
            f"every node of every job pulls {program.image_path} from its registry; "
            f"say site: staging_folder, then `repro images import --cluster {cluster.name}` brings it once"
        )
    unseen = sorted(path for path in _paths_inside(program, cluster) if not _is_mounted(path, program, cluster))
    if unseen:
        yield f"no mount of {cluster.name} brings {' and '.join(unseen)} into the container"


def _paths_inside(program: Program, cluster: Cluster) -> set[str]:
    """What the profile says of the program that it must find in its container; the interpreter is the image's own."""
    if cluster.profile.container is None:
        return set()
    return {value for value, path in program.site_values if path[-1] != "python" and value.startswith("/")}


def _is_mounted(path: str, program: Program, cluster: Cluster) -> bool:
    container = cluster.profile.container
    mounts = container.mounts if container else []
    parts = [(mount if isinstance(mount, str) else mount.mount).split(":") for mount in mounts]
    targets = [*program.mounts, *(part[1] if len(part) > 1 else part[0] for part in parts)]
    return any(path == target or path.startswith(f"{target.rstrip('/')}/") for target in targets)


def _is_pulled_by_each_job(program: Program, cluster: Cluster) -> bool:
    container = cluster.profile.container
    if container is None or program.image_path is None or "<" in program.image_path:
        return False
    return container.runtime in FILE_RUNTIMES and read_image(program.image_path).path is None
