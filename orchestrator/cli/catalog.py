"""What there is: experiments and clusters."""

from __future__ import annotations

from orchestrator.cli.options import Json
from orchestrator.cli.output import as_json, next_command, say, table


def list_experiments(json: Json = False) -> None:
    """List the experiments: papers' figures and tables, their cases and scales."""
    from orchestrator.catalog.expand import expand, scale_fields
    from orchestrator.catalog.experiment import scale_names
    from orchestrator.catalog.library import experiment_names, read_experiment
    from orchestrator.clusters.resolve import cluster_names
    from orchestrator.folders import find_folders

    folders = find_folders()
    rows = []
    for name, file in experiment_names(folders).items():
        entry = read_experiment(name, file)
        scales = scale_names(entry.experiment)
        rows.append(
            {
                "experiment": name,
                "paper": f"{entry.paper.venue} {entry.experiment.figure}",
                "cases": len(expand(entry)),
                "gpus": entry.experiment.gpus,
                "scales": ", ".join(f"{scale}:{scale_fields(entry, scale).gpus}" for scale in scales),
                "title": entry.experiment.title,
            }
        )
    if json:
        as_json(rows)
        return
    table(rows, ["experiment", "paper", "cases", "gpus", "scales", "title"])
    say(f"clusters: {', '.join(sorted(cluster_names(folders)))}")
    if rows:
        next_command(f"repro submit {rows[0]['experiment']} --cluster local --dry-run", "what would run here")
