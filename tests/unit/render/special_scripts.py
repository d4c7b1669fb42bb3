"""Scripts of special kinds: arrays, queues, gates, warm-up jobs, image imports, GPU samples, and small clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.catalog.library import published_code
from orchestrator.clusters.program import Item, sources_of
from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.fetch import render_fetch
from orchestrator.launch.images import render_import
from orchestrator.launch.render import JobScript, render_array, render_job, render_queue
from orchestrator.launch.run_options import CanaryJob, FileCheck, FollowedJob, Gate
from orchestrator.launch.submit import warm_ups
from orchestrator.megatron.model import Layout
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.base import with_log_checks
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.programs.record import fetch_command
from tests.stand_in_site import CHECKOUT
from tests.unit.clusters.sites import SELENE_FILLED, cluster_of, selene
from tests.unit.render.described import DESCRIBED
from tests.unit.render.golden_files import Rendered
from tests.unit.render.plans import H200S, LOCAL, RUN, TEMPLATES, kwai, local, plain_slurm, plans
from tests.unit.render.site_scripts import plan_of, site, without_folders

SELENE_WITH_REGISTRY_IMAGE = SELENE_FILLED.replace(
    "container:\n  images:\n", "container:\n  images:\n    pretrain: registry.example#a/torch:1\n"
)


@cache
def _cluster_and_plans(
    make: Callable[[Path], Cluster], scale: str, experiment: str = "figure-13"
) -> tuple[Cluster, list[Plan]]:
    """Return a cluster and the plans of an experiment on it."""
    with TemporaryDirectory() as folder:
        cluster = make(Path(folder))
    return cluster, plans(cluster, scale, experiment)


def _without_containers() -> str:
    cluster, cluster_plans = _cluster_and_plans(plain_slurm, "quad")
    return render_job(cluster_plans[2], cluster, RUN / "pp2-tp2-gbs32", TEMPLATES)


def _kwai() -> str:
    cluster, cluster_plans = _cluster_and_plans(kwai, "paper", "atc-table-8")
    return render_job(cluster_plans[1], cluster, RUN / "ours", TEMPLATES)


def _local() -> str:
    cluster, cluster_plans = _cluster_and_plans(local, "cpu")
    return render_job(cluster_plans[0], cluster, RUN / "pp1-tp4-gbs4", TEMPLATES)


def _sampled() -> str:
    with TemporaryDirectory() as folder:
        cluster = selene(Path(folder), SELENE_FILLED + "sample_gpus_every_s: 5\n")
    return render_job(plans(cluster, "paper")[0], cluster, RUN / "pp2-tp32-gbs32", TEMPLATES)


def _sampled_local() -> str:
    with TemporaryDirectory() as folder:
        cluster = local(Path(folder), LOCAL + "sample_gpus_every_s: 1\n", H200S)
    return render_job(plans(cluster, "quad")[0], cluster, RUN / "pp1-tp4-gbs32", TEMPLATES)


def _array() -> str:
    plan = plan_of("selene", "megatron-2021")
    return render_array([plan] * 2, site("selene"), _scripts("a", "b"), RUN / "submissions", TEMPLATES, at_once=4)


def _scripts(*names: str) -> list[JobScript]:
    return [JobScript(RUN / name / "job.sh", RUN / name) for name in names]


CANARY = CanaryJob("pp=1 'quoted'", RUN / "a b", (FileCheck("end", "^inside_image=1/1$"),))
GATE = Gate(RUN, stop_after=2, canary=with_log_checks(CANARY, 20, Layout(8, 2, 4, 1, 4)))


def _gated_array() -> str:
    plan = plan_of("selene", "megatron-2021")
    return render_array([plan], site("selene"), _scripts("a"), RUN / "submissions", TEMPLATES, at_once=1, gate=GATE)


def _queue() -> str:
    repeat = JobScript(RUN / "b c" / "job.sh", RUN / "b c-2")
    return render_queue([*_scripts("a", "b c"), repeat], Path("/runs/.lock"), TEMPLATES)


def _gated_queue() -> str:
    before = [FollowedJob(str(RUN / "before this"), 4321)]
    return render_queue(_scripts("a"), Path("/runs/.lock"), TEMPLATES, gate=GATE, follows=before)


def _warm_up() -> str:
    plan = plan_of("selene", "megatron-2021")
    ((warm_up, _),) = warm_ups([plan, plan], site("selene"))
    return render_job(warm_up, site("selene"), RUN / "warm-up", TEMPLATES)


def _import_with_enroot() -> str:
    with TemporaryDirectory() as folder:
        cluster = selene(Path(folder), SELENE_WITH_REGISTRY_IMAGE + "site: {staging_folder: /scratch/images}\n")
    return render_import(cluster, "pretrain", RUN / "import", TEMPLATES)


def _import_with_apptainer() -> str:
    text = (
        "about: a site with Apptainer\nscheduler: slurm\nhardware: {nodes: 4, gpus_per_node: 4}\n"
        "slurm: {time_limit: 1:00:00}\nsetup: [module load apptainer]\n"
        "site: {architecture: aarch64, staging_folder: /scratch/my images}\n"
        "container: {runtime: apptainer, images: {pretrain: registry.example/a/torch:1}}\n"
    )
    with TemporaryDirectory() as folder:
        cluster = cluster_of(Path(folder), text)
    return render_import(cluster, "pretrain", RUN / "import", TEMPLATES)


def _fetch() -> str:
    program = find_megatron("megatron-2021")
    sources = sources_of(program, published_code(Folders(CHECKOUT, CHECKOUT)))
    places = [f"/shared/it's {source.need.field} $HOME" for source in sources]
    items = [Item(source, Path(place), place) for source, place in zip(sources, places, strict=True)]
    return render_fetch(items, TEMPLATES, fetch_command(program.name, "selene"))


_RENDER: Mapping[str, Callable[[], str]] = {
    "slurm_without_containers": _without_containers,
    "kwai": _kwai,
    "local": _local,
    "sampled": _sampled,
    "sampled_local": _sampled_local,
    "array": _array,
    "gated_array": _gated_array,
    "queue": _queue,
    "gated_queue": _gated_queue,
    "warm_up": _warm_up,
    "import_with_enroot": _import_with_enroot,
    "import_with_apptainer": _import_with_apptainer,
    "fetch": _fetch,
    **DESCRIBED,
}
SPECIAL_SCRIPTS = tuple(_RENDER)


@cache
def special_script(name: str) -> str:
    """Return the rendered script."""
    return _RENDER[name]()


def rendered_special_script(name: str) -> Rendered:
    """Return the rendered script with the name of its golden file."""
    return Rendered(f"{name}.sh", without_folders(special_script(name)))
