"""Import of images from a registry: one job for each image, which writes one file for all jobs. Replaced images."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from orchestrator.clusters.container import ContainerFields, read_image
from orchestrator.clusters.program import image_uri, import_record, imported_file, is_there
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError, Unreachable, did_you_mean, require_none
from orchestrator.fields import Field
from orchestrator.files import private_folder, read_record
from orchestrator.job_spec import Resources
from orchestrator.launch.directives import directive, free_directives, named, output_pattern, placement, slurm_of
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.preflight import require_scheduler
from orchestrator.launch.refresh import is_side_job
from orchestrator.launch.render import setup_lines
from orchestrator.launch.sbatch import comment_of
from orchestrator.launch.templates import Line, templates_in
from orchestrator.ledger.attempts import attempts_of_jobs
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.runs import image_digests
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, identity
from orchestrator.slurm.command import query_jobs
from orchestrator.slurm.notation import JobRecord, Phase, time_limit_s
from orchestrator.text import counted, printable_line

LONGEST = "1:00:00"
"""Time limit of an import, if the limits of the site allow it."""

# enroot's last line where a registry wants a name and a password (it prints no error), or a token.
_ANONYMOUS = ("Authenticating with user: <anonymous>", "error code: 401")
CREDENTIALS_HINT = (
    "; if the registry wants credentials: add `machine HOST login USER password TOKEN` to enroot's .credentials, in "
    "$ENROOT_CONFIG_PATH or ~/.config/enroot"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names of images to import, and of images that are imported already."""

    to_import: tuple[str, ...]
    already: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Import:
    """Import as a job, or, with an exit code, on this machine. `folder` has its script and log."""

    name: str
    file: Path
    folder: Path
    job_id: str | None = None
    exit_code: int | None = None

    @property
    def log(self) -> Path:
        """Return the log file."""
        return self.folder / "log.txt"


@dataclass(frozen=True, slots=True)
class ImageImport:
    """An import of an image as a row. `error` is set if it failed."""

    image: Annotated[str, Field(of="name")]
    file: Path
    job: Annotated[str | None, Field(of="job_id")]
    error: str | None


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """States of imports that have not ended, and the reasons of failed ones, by image name."""

    states: dict[str, str]
    failures: dict[str, str]
    complaints: tuple[str, ...] = ()


def wanted_images(cluster: Cluster, names: Sequence[str], again: bool = False) -> Wanted:
    """Return which of these images to import, by default of all that come from a registry.

    Raise ReproError with all obstacles.
    """
    container = cluster.profile.container
    if container is None:
        raise ReproError(Problem(f"{cluster.name} has no container:, so it has no images to import"))
    registry = [name for name, says in container.images.items() if says[0] != "<" and not read_image(says).path]
    chosen = list(dict.fromkeys(names)) or registry
    if not chosen:
        hint = f"name one in {shown(cluster.overlay)}: container: images: {{NAME: HOST/ORG/NAME:TAG}}"
        raise ReproError(Problem(f"{cluster.name} has no image from a registry: nothing to import", hint=hint))
    problems = [_refusal(cluster, container, name) for name in chosen if name not in registry]
    from_registry = [name for name in chosen if name in registry]
    if container.record.ending is None:
        for name in from_registry:
            command = f"{container.record.pull} {shlex.quote(read_image(container.images[name]).for_docker)}"
            location = cluster.location(("container", "images", name))
            problems.append(Problem(f"{name}: {container.runtime} stores images itself", location, f"type: {command}"))
    elif from_registry:
        problems += _obstacles(cluster, container, from_registry, again)
    require_none(problems)
    already = tuple(name for name in from_registry if not again and _is_imported(cluster, name))
    once = {image_uri(cluster, name): name for name in reversed(from_registry) if name not in already}
    return Wanted(tuple(name for name in from_registry if name in once.values()), already)


def render_import(cluster: Cluster, name: str, folder: Path, templates: Path) -> str:
    """Return the job script that imports one image. `folder` is the folder of its log and record. Pure."""
    container, site = cluster.profile.container, cluster.profile.site
    assert container is not None and site.staging_folder is not None
    image, uri = read_image(container.images[name]), image_uri(cluster, name)
    limit = _time_limit(cluster)
    # One task without a GPU, with the CPUs and memory of a task of the site.
    directives = [
        directive("job-name", f"import-{image.file_stem}"),
        *placement(cluster, Resources(1, 1, 0, limit)),
        *named(cluster, ("cpus_per_task", "mem")),
        *(directive("nodes", "1"), directive("ntasks", "1"), directive("time", limit), Line.of("--no-requeue")),
        *free_directives(cluster),
        directive("output", output_pattern(folder / "log.txt")),
    ]
    return templates_in(templates).render(
        "import.sh.j2",
        cluster=cluster.name,
        directives=directives,
        setup=list(setup_lines(cluster, 1)),
        tool=container.record.imports_by,
        uri=uri,
        uri_text=json.dumps(uri, ensure_ascii=False),
        repository=uri.removesuffix(image.name) + image.name.partition("@")[0].partition(":")[0],
        architecture=site.architecture,
        # The profile uses the names of enroot.
        architecture_option=f"--arch {site.architecture} " if site.architecture else "",
        folder=str(folder),
        staging=site.staging_folder,
        stem=image.file_stem,
        ending=container.record.ending,
    )


def import_images(cluster: Cluster, folders: Folders, names: Sequence[str]) -> Iterator[Import]:
    """Import these images of `wanted_images`: as jobs, or on this machine if the nodes are offline.

    Raise the errors of a submission. Imports that were submitted before continue.
    """
    offline = cluster.profile.site.offline_nodes
    if not offline:
        require_scheduler(cluster, folders)
    files = {name: file for name in names if (file := imported_file(cluster, name)) is not None}
    stems = {name: f"{file.stem}.{secrets.token_hex(4)}" for name, file in files.items()}
    jobs = [Import(name, file, folders.image_import(stems[name])) for name, file in files.items()]
    texts = [render_import(cluster, job.name, job.folder, folders.templates) for job in jobs]
    for job, text in zip(jobs, texts, strict=True):
        script = job.folder / "import.sh"
        private_folder(job.folder)
        script.write_text(text, encoding="utf-8")
        script.chmod(0o750)
        if offline:
            yield replace(job, exit_code=_run_here(script))
        else:
            comment = comment_of(job.folder.name)
            yield replace(job, job_id=SlurmScriptExecutor(job.folder).submit_script(text, comment))


def import_progress(imports: Sequence[Import]) -> ImportProgress:
    """Return the states of imports from their records, or else from one query to Slurm."""
    states: dict[str, str] = {}
    failures: dict[str, str] = {}
    by_job_id: dict[str, Import] = {}
    for job in imports:
        record = read_record(job.folder / "end")
        code = record.exit_code if record is not None else job.exit_code
        if code:
            failures[job.name] = f"ended with exit code {code}{_last_words(job.log)}"
        elif code is None and job.job_id is not None:
            by_job_id[job.job_id] = job

    def is_ours(record: JobRecord) -> bool:
        job = by_job_id.get(record.job_id)
        return job is not None and is_side_job(record, comment_of(job.folder.name), job.folder)

    try:
        answer = query_jobs(by_job_id, is_ours)
    except Unreachable as unreachable:
        unknown = dict.fromkeys((job.name for job in by_job_id.values()), "UNKNOWN")
        return ImportProgress(unknown, failures, (str(unreachable),))
    for job_id, job in by_job_id.items():
        listed = answer.records.get(job_id)
        if listed is None or listed.phase is not Phase.ENDED:
            states[job.name] = listed.state if listed else "UNKNOWN"
        elif listed.state != "COMPLETED":
            failures[job.name] = f"job {job_id} ended as {listed.state}{_last_words(job.log)}"
    return ImportProgress(states, failures, answer.complaints)


def _refusal(cluster: Cluster, container: ContainerFields, name: str) -> Problem:
    """Return why this image cannot be imported: it is unknown, not filled in, or already a file."""
    image = container.images.get(name)
    if image is None:
        hint = f"its images: {', '.join(container.images) or 'none'}"
        return Problem(f"{name}: {cluster.name} has no such image", hint=did_you_mean(name, container.images) or hint)
    location = cluster.location(("container", "images", name))
    if image.startswith("<"):
        hint = f"set it in {shown(cluster.overlay)}"
        return Problem(f"container.images.{name}: not filled in, {image}", location, hint)
    return Problem(f"{name} is already a file, {image}: nothing to import", location)


def _obstacles(cluster: Cluster, container: ContainerFields, names: Sequence[str], again: bool) -> list[Problem]:
    """Return the obstacles to an import in the profile of the site."""
    site, location_of = cluster.profile.site, cluster.location
    problems = cluster.require_filled("", None)
    if site.staging_folder is None:
        hint = f"add site: {{staging_folder: /...}}, a folder that every node sees, to {shown(cluster.overlay)}"
        problems.append(Problem(f"{cluster.name} has no folder for imported images", hint=hint))
    if site.offline_nodes and not site.login_sees_paths:
        what = "compute nodes reach no registry, and this machine does not see the staging folder"
        problems.append(Problem(what, location_of(("site", "offline_nodes"))))
    try:
        _time_limit(cluster)
    except ReproError as error:
        problems.extend(error.problems)
    sources: dict[Path, str] = {}
    for name in names:
        file, location = imported_file(cluster, name), location_of(("container", "images", name))
        if file is None:
            continue
        source = read_image(container.images[name]).for_docker
        if sources.setdefault(file, source) != source:
            hint = "their names must differ in more than the registry"
            problems.append(Problem(f"{name} and {sources[file]} would both be {file}", location, hint))
        if again and site.login_sees_paths and is_there(file) and not file.is_symlink():  # an import creates a link
            problems.append(Problem(f"{name}: {file} was not created by an import", location, "move it away first"))
    return problems


def _is_imported(cluster: Cluster, name: str) -> bool:
    file = imported_file(cluster, name)
    if file is None or not cluster.profile.site.login_sees_paths or not is_there(file):
        return False
    return image_uri(cluster, name) in import_record(file).uris or not file.is_symlink()


def _time_limit(cluster: Cluster) -> str:
    """Return one hour, or the longest shorter limit of the site; ReproError if no limit is allowed for one node."""
    slurm = slurm_of(cluster)
    of_qos = [qos.max_time for qos in slurm.qos] if isinstance(slurm.qos, list) else []
    limits = [limit for limit in (LONGEST, slurm.max_time, *of_qos) if limit]
    for limit in sorted(limits, key=time_limit_s, reverse=True):
        reasons = slurm.refusals(1, 0, limit)
        if time_limit_s(limit) <= time_limit_s(LONGEST) and not reasons:
            return limit
    raise ReproError(*(Problem(f"an import {reason}", cluster.location(("slurm",))) for reason in reasons))


def _run_here(script: Path) -> int:
    """Run the script on this machine, with its output on stderr, and return its exit code."""
    with subprocess.Popen(["bash", str(script)], stdin=subprocess.DEVNULL, stdout=2) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal signals the script, too, which removes its partial files
            process.wait()
            raise


def _last_words(log: Path) -> str:
    """Return `: ` and the last line that is not empty, with a hint where the registry refused an anonymous user."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    last = next(filter(None, (printable_line(line).strip() for line in reversed(lines))), "")
    hint = CREDENTIALS_HINT if any(sign in last for sign in _ANONYMOUS) else ""
    return f": {last}{hint}" if last else ""


def image_changes(plans: Sequence[Plan], cluster: Cluster, ledger: Ledger) -> Iterator[str]:
    """Yield a note for each image whose identity is another one than in all attempts of these jobs.

    Such jobs are other jobs and run again, also if they failed in a way that would repeat.
    """
    for name in dict.fromkeys(plan.program.image for plan in plans if plan.program.image_digest is not None):
        plans_of_image = [plan for plan in plans if plan.program.image == name]
        path, digest = plans_of_image[0].program.image_path, plans_of_image[0].program.image_digest
        earlier = {
            identity(plan.case, replace(plan.program, image_digest=other), plan.cluster, plan.repeat): plan
            for other in image_digests(ledger, cluster.name, str(name)) - {digest}
            for plan in plans_of_image
        }
        known = attempts_of_jobs(ledger, [plan.identity for plan in plans_of_image])
        attempts = [
            of_job[-1]
            for job_id, of_job in attempts_of_jobs(ledger, list(earlier)).items()
            if earlier[job_id].identity not in known
        ]
        if attempts:
            last = max(attempts, key=lambda attempt: attempt.attempt_id)
            jobs = counted(len({earlier[attempt.job_id].identity for attempt in attempts}), "job")
            since = f"attempt {last.number} of {earlier[last.job_id].label}"
            yield f"{path}: image file changed since {since}; earlier results of {jobs} are those of the old image"
