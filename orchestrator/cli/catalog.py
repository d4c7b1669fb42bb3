"""What there is: papers, their experiments, the cases of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import Database, ExperimentName, Json, ScaleOf, Where
from orchestrator.cli.output import as_json, data, filled_columns, next_command, say, table
from orchestrator.errors import Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.catalog.case import Case
    from orchestrator.catalog.library import Entry
    from orchestrator.paths import Folders


Done = dict[tuple[str, str, str], dict[str, bool]]
"""By scale, cluster and program: job -> whether it is verified."""


def list_experiments(json: Json = False, database: Database = None) -> None:
    """List the experiments: papers' figures and tables, what they take, and how much of them is done."""
    from orchestrator.catalog.library import experiment_names, read_experiment
    from orchestrator.clusters.resolve import cluster_names
    from orchestrator.paths import find_folders

    folders = find_folders()
    done = _done(folders, database)
    rows: list[dict[str, Any]] = []
    faults: list[Problem] = []
    for name, file in experiment_names(folders).items():
        try:
            rows.append(_listed(read_experiment(name, file), done.get(name, {})))
        except ReproError as error:
            faults += error.problems
    if json:
        as_json(rows)
    else:
        _print_list(rows, sorted(cluster_names(folders)))
    if faults:
        raise ReproError(*dict.fromkeys(faults))


def _print_list(rows: list[dict[str, Any]], clusters: list[str]) -> None:
    table(rows, ["experiment", "paper", "cases", "gpus", "gpu_hours", "done", "scales", "title"])
    say(f"clusters: {', '.join(clusters)}")
    say("gpus and gpu_hours are the published size's, the hours predicted for the machine of the paper")
    if rows:
        next_command("repro show figure-13", "its cases, published numbers and claims")


def show(experiment: ExperimentName, scale: ScaleOf = "paper", where: Where = None, json: Json = False) -> None:
    """Show one experiment: its cases and axes, the published numbers, the claims and where they can be judged."""
    from orchestrator.catalog.case import parse_where, select
    from orchestrator.catalog.expand import expand
    from orchestrator.catalog.library import find_experiment, replaced
    from orchestrator.config.yaml import shown
    from orchestrator.paths import find_folders

    wanted = parse_where(where)
    folders = find_folders()
    entry = find_experiment(folders, experiment)
    cases = select(expand(entry, scale), wanted)
    rows = [_shown_case(case) for case in cases]
    claims = [
        {
            "claim": claim.id,
            "kind": claim.kind,
            "stated": claim.stated,
            "judged_at": ", ".join(claim.judged_at),
            "source": claim.source,
            "says": claim.says,
        }
        for claim in entry.experiment.claims
    ]
    if json:
        as_json({**_about(entry, scale), "cases": rows, "claims": claims})
        return
    if replaced(folders, entry):
        say(f"{entry.name} is {shown(entry.file)}, and not the shipped one")
    _print_about(entry, scale)
    _print_cases(rows)
    if claims:
        data("")
        table(claims, list(claims[0]))
    _print_caveats(entry, cases)
    if entry.experiment.reference_only:
        next_command("repro list", "what can be run")
        return
    next_command(
        f"repro plan {entry.short_name} --scale {scale}", "whether each case is valid, fits, and what it costs"
    )


def _listed(entry: Entry, done: Done) -> dict[str, Any]:
    from orchestrator.catalog.expand import case_count, expand, scale_fields
    from orchestrator.catalog.experiment import PAPER, scale_names
    from orchestrator.planning.batch_plan import CaseSelection, plan_batch
    from orchestrator.planning.target import Target

    has_hours = entry.paper.machine is not None and not entry.experiment.reference_only
    published = expand(entry) if has_hours else None
    scales = scale_names(entry.experiment)
    gpus = {scale: _values_at(entry, scale, "gpus") for scale in scales}
    workloads = {scale: _values_at(entry, scale, "workload") for scale in {scale for scale, _, _ in done} & {*scales}}
    selections = [CaseSelection(entry, tuple(published), Target.of_paper(entry))] if published else []
    hours = plan_batch(selections).gpu_hours if published else None
    smallest, largest = min(gpus[PAPER]), max(gpus[PAPER])
    return {
        "experiment": entry.name,
        "paper": f"{entry.paper.venue} {entry.experiment.figure}",
        "cases": case_count(scale_fields(entry, PAPER)),
        "gpus": str(smallest) if smallest == largest else f"{smallest}-{largest}",
        "gpu_hours": None if hours is None else round(hours, 1),
        "done": _said_done(done, workloads),
        "scales": ", ".join(f"{scale}:{max(sizes)}" for scale, sizes in gpus.items()),
        "title": entry.experiment.title,
    }


def _values_at(entry: Entry, scale: str, axis: str) -> set[Any]:
    """Return the values of the cases on an axis; the cases are expanded only if a rule derives the value."""
    from orchestrator.catalog.expand import expand, scale_fields, values_on

    return values_on(entry, scale_fields(entry, scale), axis) or {case.value(axis) for case in expand(entry, scale)}


def _said_done(done: Done, workloads: Mapping[str, set[Any]]) -> str:
    """`2/10 paper@selene`; what another program than the figure's own has done is counted apart, and named."""
    counts: dict[str, list[bool]] = {}
    for (scale, cluster, workload), verified in done.items():
        label = f"{scale}@{cluster}" + ("" if workload in workloads.get(scale, ()) else f" with {workload}")
        counts.setdefault(label, []).extend(verified.values())
    return ", ".join(f"{sum(verified)}/{len(verified)} {label}" for label, verified in sorted(counts.items()))


def _done(folders: Folders, database: str | None) -> dict[str, Done]:
    """Of each experiment the jobs; nothing is loaded where nothing was ever submitted."""
    if database is None and folders.refused is None and not (folders.home / "results.db").exists():
        return {}
    from orchestrator.cli.session import existing_ledger

    ledger = existing_ledger(folders, database)
    if ledger is None:
        return {}
    from orchestrator.ledger.attempts import job_summaries
    from orchestrator.ledger.tables import VERIFIED

    done: dict[str, Done] = {}
    for row in job_summaries(ledger):
        jobs = done.setdefault(row.experiment, {}).setdefault((row.scale, row.cluster, row.workload), {})
        jobs[row.job_id] = row.verdict == VERIFIED
    return done


def _shown_case(case: Case) -> dict[str, Any]:
    layout = case.layout
    row: dict[str, Any] = {
        "case": case.name,
        "gpus": layout.gpus,
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_parallel,
        "cp": layout.context_parallel,
        "dp": layout.data_parallel,
        "vp": layout.virtual_stages,
        "mbs": layout.micro_batch_size,
        "gbs": layout.global_batch_size,
        "microbatches": layout.microbatches,
        "recompute": case.training.recompute,
        "parameters_billion": round(case.model.parameters() / 1e9, 4),
        "workload": case.workload,
    }
    row["published"] = [point.model_dump(exclude_none=True, exclude={"where"}) for point in case.published]
    if case.expected is not None:
        row["expected"] = case.expected.outcome + ("" if case.expected.confirmed else ", unconfirmed")
    return row


def _print_cases(rows: list[dict[str, Any]]) -> None:
    """A column for each published metric, and for each GPU where a metric was measured on several."""
    gpus = {point.get("gpu") for row in rows for point in row["published"]}
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name != "published"}
        for point in row["published"]:
            name = f"{point['metric']}@{point['gpu']}" if len(gpus) > 1 and "gpu" in point else point["metric"]
            line[f"paper_{name}"] = point["value"]
        line["paper_how"] = "; ".join(dict.fromkeys(_how(point) for point in row["published"]))
        flat.append(line)
    table(flat, filled_columns(flat))


def _how(point: dict[str, Any]) -> str:
    return str(point["how"]) + ("" if point["confirmed"] else ", unconfirmed")


def _about(entry: Entry, scale: str) -> dict[str, Any]:
    experiment, paper = entry.experiment, entry.paper
    return {
        "experiment": entry.name,
        "paper": {"title": paper.title, "venue": paper.venue, "arxiv": paper.arxiv, "doi": paper.doi},
        "figure": experiment.figure,
        "title": experiment.title,
        "scale": scale,
        "axes": experiment.axes.model_dump(exclude_none=True),
        "reference_only": experiment.reference_only,
        "differences": [difference.model_dump(exclude_none=True) for difference in experiment.differences],
        "notes": experiment.notes,
    }


def _print_about(entry: Entry, scale: str) -> None:
    experiment, axes = entry.experiment, entry.experiment.axes
    say(f"{entry.name}: {entry.paper.venue} {experiment.figure}, {experiment.title}")
    about = experiment.scales[scale].about if scale in experiment.scales else None
    say(f"scale {scale}: {about or 'as published'}")
    say(f"x: {axes.x.label} ({', '.join(axes.x.of)}); y: {axes.y.label} ({axes.y.metric})")
    if axes.series is not None:
        say(f"a line for each: {axes.series.label} ({axes.series.of})")
    if experiment.reference_only:
        say(f"reference only: {experiment.reference_only}")


def _print_caveats(entry: Entry, cases: list[Case]) -> None:
    experiment = entry.experiment
    for difference in experiment.differences:
        if any(difference.where.given().items() <= case.settings.items() for case in cases):
            followed = f"the {difference.follows} is followed: {difference.because}"
            say(f"paper and script differ: {difference.what} Here {followed}")
    for case in cases:
        if case.note:
            say(f"{case.name}: {case.note}")
    for note in experiment.notes:
        say(f"note: {note}")
