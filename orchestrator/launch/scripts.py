"""Which jobs go to the scheduler together, in which order, and the files that it will be given."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.job_files import private_folder
from orchestrator.launch.policy import failure_named, pause_before
from orchestrator.launch.profile_secrets import profile_secrets
from orchestrator.launch.render import Before, Canary, Gate, Script, render_array, render_job, render_queue
from orchestrator.launch.wishes import Wishes
from orchestrator.ledger.runs import Latest, Missing, NewAttempt
from orchestrator.ledger.tables import IN_TURN
from orchestrator.masking import masked
from orchestrator.megatron.flops import flops_per_iteration
from orchestrator.planning.plan import Plan
from orchestrator.reading.failure import POLICIES, failed_nodes
from orchestrator.reading.log_files import log_bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that ask for the same: one file of the scheduler, with further words of sbatch."""

    name: str
    plans: tuple[Plan, ...]
    options: tuple[str, ...]


def in_order(plans: Sequence[Plan]) -> list[Plan]:
    """The smallest first: what is wrong with all of them shows where it costs least."""

    def size(plan: Plan) -> tuple[int, int, float]:
        layout, training = plan.case.layout, plan.case.training
        flops = flops_per_iteration(plan.case.model, layout.global_batch_size, False) * training.iterations
        return plan.resources.nodes, plan.resources.tasks, flops

    return sorted(plans, key=size)


def batches_of(
    plans: Sequence[Plan], missing: Mapping[str, Missing], wishes: Wishes, cluster: Cluster, most: int
) -> Iterator[Batch]:
    """Jobs that ask for the same go together, `most` at most, in the order given; on this machine all of them."""
    if not plans:
        return
    if not cluster.is_slurm:
        yield Batch(secrets.token_hex(8), tuple(plans), ())
        return
    groups: dict[Any, list[Plan]] = {}
    for plan in plans:
        options = _options(missing[plan.identity].before)
        groups.setdefault((plan.resources, options, plan.identity == wishes.canary), []).append(plan)
    for (_, options, _), group in groups.items():
        for start in range(0, len(group), most):
            yield Batch(secrets.token_hex(8), tuple(group[start : start + most]), options)


def write_scripts(
    run_id: str,
    batches: Sequence[Batch],
    wishes: Wishes,
    canary: tuple[Plan, str | None] | None,
    cluster: Cluster,
    folders: Folders,
) -> dict[str, NewAttempt]:
    """Render everything, then write everything; the attempts by job id, in the order in which they are to be sent."""
    gate, secret = _gate(run_id, wishes, canary, folders), profile_secrets(cluster)
    texts: dict[Path, str] = {}
    kept: dict[Path, tuple[str, str]] = {}
    attempts: dict[str, NewAttempt] = {}
    slurm = cluster.profile.slurm
    requeued = slurm is not None and slurm.requeue
    for batch in batches:
        scripts = scripts_of(run_id, batch.plans, folders)
        file = _file_of(batch, run_id, scripts, cluster, folders, has_gate=gate is not None)
        for index, (plan, script) in enumerate(zip(batch.plans, scripts, strict=True)):
            if script.file not in texts:
                text = texts[script.file] = render_job(plan, cluster, script.file.parent, folders.templates)
                kept[script.file] = masked(text, secret), hashlib.sha256(text.encode()).hexdigest()
            shown, digest = kept[script.file]
            kept[script.file] = "", digest  # of those who share a script one keeps its text: they have one digest
            attempts[plan.identity] = NewAttempt(
                file=str(file),
                array_index=None if file == script.file else index,
                options=batch.options,
                is_requeued=requeued,
                folder=str(script.folder),
                script=shown,
                script_sha256=digest,
            )
        if not cluster.is_slurm:
            before = [Before(Path(folder), queue) for folder, queue in wishes.follows]
            texts[file] = render_queue(scripts, folders.runs / "local.lock", folders.templates, gate=gate, after=before)
        elif file not in texts:
            texts[file] = render_array(
                batch.plans, cluster, scripts, file.parent, folders.templates, at_once=wishes.at_once, gate=gate
            )
    _write(texts)
    return attempts


def scripts_of(run_id: str, plans: Sequence[Plan], folders: Folders) -> list[Script]:
    """Repeats of a case share a script: whoever starts it says in which folder each has its log."""
    shared: dict[int, Path] = {}
    found: list[Script] = []
    for plan in plans:
        own = shared.get(id(plan.case))
        if own is None:
            own = shared[id(plan.case)] = folders.job(run_id, plan.case.slug)
        found.append(Script(own / "job.sh", own if plan.repeat == 1 else folders.job(run_id, plan.slug)))
    return found


def _file_of(
    batch: Batch, run_id: str, scripts: Sequence[Script], cluster: Cluster, folders: Folders, *, has_gate: bool
) -> Path:
    """What the scheduler is given: a lone script itself, unless something has to look before it starts."""
    if not cluster.is_slurm:
        return folders.submissions(run_id) / f"{batch.name}.queue.sh"
    if len(scripts) == 1 and not has_gate and scripts[0].is_alone:
        return scripts[0].file
    return folders.submissions(run_id) / f"{batch.name}.array.sh"


def _gate(run_id: str, wishes: Wishes, canary: tuple[Plan, str | None] | None, folders: Folders) -> Gate | None:
    if not wishes.has_gate:
        return None
    if canary is None:
        return Gate(folders.run(run_id), wishes.stop_after)
    plan, running_in = canary
    folder = Path(running_in) if running_in else folders.job(run_id, plan.slug)
    return Gate(folders.run(run_id), wishes.stop_after, Canary(plan.label, folder, plan.case.training.iterations))


def _options(before: Latest | None) -> tuple[str, ...]:
    """For an attempt after one that failed: not on the nodes that did, and not at once."""
    if before is None or before.state == IN_TURN:
        return ()
    failure = failure_named(before.failure)
    words = []
    bad = {node for word in before.options if word.startswith("--exclude=") for node in word[10:].split(",")}
    if POLICIES[failure].elsewhere:
        with contextlib.suppress(ReproError):  # another user's log: what it says is not ours to know
            bad |= set(failed_nodes(log_bytes(Path(before.folder)), before.nodes))
    if bad:
        words.append(f"--exclude={','.join(sorted(bad))}")
    pause_s = pause_before(before.submitted, failure)
    if pause_s:
        words.append(f"--begin=now+{pause_s}")
    return tuple(words)


def _write(texts: Mapping[Path, str]) -> None:
    """Every file, readable and runnable by the user and the group."""
    made: set[Path] = set()
    try:
        for path, text in texts.items():
            if path.parent not in made:
                private_folder(path.parent)
                made.add(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o750)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ReproError(Problem(f"{error.filename}: cannot be written ({error.strerror})")) from None
