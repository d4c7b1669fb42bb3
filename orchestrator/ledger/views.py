"""Creation of the schema, and its views for people (`datasette`, `repro sql`). Columns: docs/reference/ledger.md.

A job that two experiments, scales or cases share has a row for each.
"""

from __future__ import annotations

import sqlalchemy as sa

from orchestrator.ledger.readonly_file import SCHEMA
from orchestrator.ledger.tables import Iteration, Table, rows_of

# Experiments and cases that requested a job. Two runs of one figure request the same jobs.
_ASKED = """
    SELECT DISTINCT runs.experiment, runs.scale, runs.cluster, run_jobs.case_name, run_jobs.job_id
    FROM run_jobs JOIN runs ON runs.id = run_jobs.run_id
"""

_ATTEMPTS = """
    SELECT asked.experiment, asked.scale, asked.cluster, asked.case_name, jobs.repeat, jobs.program,
        jobs.id AS job_id, attempts.number AS attempt, attempts.id AS attempt_id, attempts.run_id,
        attempts.state, attempts.phase, attempts.verdict, attempts.failure, attempts.verdict_reason, attempts.reason,
        attempts.deciding_line, attempts.deciding_rank, attempts.execution, attempts.iteration, jobs.iterations,
        jobs.gpus, attempts.nodes, {times},
        {wait_s} AS wait_s, {elapsed_s} AS elapsed_s,
        CASE WHEN {device} = 'cpu' THEN NULL ELSE jobs.gpus * {elapsed_s} / 3600.0 END AS gpu_hours,
        attempts.exit_code, attempts.signal, attempts.scheduler, attempts.scheduler_id, attempts.host, attempts.folder,
        attempts.origin, attempts.no_energy,
        runs.git_commit, runs.git_dirty, jobs.code, jobs.image, jobs.image_digest
    FROM attempts
    JOIN jobs ON jobs.id = attempts.job_id
    JOIN runs ON runs.id = attempts.run_id
    JOIN ({asked}) AS asked ON asked.job_id = attempts.job_id
"""

_TIMES = ("created_at", "submitted_at", "started_at", "ended_at")

# The result of each case: the last verified attempt of its job, else the last partial one, else the latest. A case has
# several jobs if its code or image changed; the latest run decides.
_RESULTS = """
    SELECT v.experiment, v.scale, v.cluster, v.case_name, v.repeat, v.program, v.job_id, v.attempt, v.attempt_id,
        v.state, v.verdict, v.failure, v.verdict_reason, v.deciding_line, v.execution, v.gpus, v.nodes,
        {layout},
        v.wait_s, v.elapsed_s, v.gpu_hours, v.started_at, v.ended_at, v.git_commit, v.code, v.image, v.image_digest,
        v.no_energy
    FROM v_attempts AS v
    JOIN jobs ON jobs.id = v.job_id
    JOIN (
        SELECT runs.experiment, runs.scale, runs.cluster, run_jobs.case_name, jobs.program, jobs.repeat,
            max(runs.id) AS run_id
        FROM run_jobs JOIN runs ON runs.id = run_jobs.run_id JOIN jobs ON jobs.id = run_jobs.job_id
        GROUP BY runs.experiment, runs.scale, runs.cluster, run_jobs.case_name, jobs.program, jobs.repeat
    ) AS latest ON latest.experiment = v.experiment AND latest.scale = v.scale AND latest.cluster = v.cluster
        AND latest.case_name = v.case_name AND latest.program = v.program AND latest.repeat = v.repeat
    WHERE EXISTS (
        SELECT 1 FROM run_jobs
        WHERE run_jobs.run_id = latest.run_id AND run_jobs.job_id = v.job_id AND run_jobs.case_name = v.case_name
    ) AND NOT EXISTS (
        SELECT 1 FROM attempts AS other
        WHERE other.job_id = v.job_id AND (
            {other_rank} > {rank} OR ({other_rank} = {rank} AND other.number > v.attempt)
        )
    )
"""

_RANK = "CASE {verdict} WHEN 'verified' THEN 2 WHEN 'partial' THEN 1 ELSE 0 END"

_ITERATIONS = """
    SELECT v.experiment, v.scale, v.cluster, v.case_name, v.repeat, v.program, v.job_id, v.attempt, v.attempt_id,
        v.verdict, {columns}
    FROM iterations AS i JOIN v_attempts AS v ON v.attempt_id = i.attempt_id
"""

# Metrics of whole jobs, and of the rows of outputs, whose units are those of the job's program.
_ALL_METRICS = """
    SELECT v.experiment, v.scale, v.cluster, v.case_name, v.repeat, v.program, v.job_id, v.attempt, v.attempt_id,
        v.verdict, m.row_key, m.name, m.value, m.unit, m.spread, m.count
    FROM (
        SELECT attempt_id, NULL AS row_key, name, value, unit, spread, count FROM metrics
        UNION ALL
        SELECT o.attempt_id, {row_key}, each.key, {value}, COALESCE({unit}, ''), NULL, NULL
        FROM output_rows AS o JOIN attempts ON attempts.id = o.attempt_id JOIN jobs ON jobs.id = attempts.job_id
            CROSS JOIN {each} AS each
    ) AS m JOIN v_attempts AS v ON v.attempt_id = m.attempt_id
"""

_LAYOUT = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "micro_batch_size", "global_batch_size")

VIEWS = ("v_attempts", "v_results", "v_iterations", "v_metrics")
"""Names of the views. A view may select from the ones before it."""


def create_schema(connection: sa.Connection) -> None:
    """Create the tables and views of an empty database, in the caller's transaction. A killed process leaves none."""
    Table.metadata.create_all(connection, checkfirst=False)
    _create_views(connection)
    # Every version of repro recognizes a ledger, and its schema, by this table.
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{SCHEMA}')")


def _create_views(connection: sa.Connection) -> None:
    seconds, stamp, configured, of_rows = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL
    layout = {name: configured.format(path=f"layout.{name}", keys=f"layout,{name}", kind="integer") for name in _LAYOUT}
    texts = {
        "v_attempts": _ATTEMPTS.format(
            asked=_ASKED,
            times=", ".join(f"{stamp.format(f'attempts.{name}')} AS {name}" for name in _TIMES),
            wait_s=seconds.format("attempts.submitted_at", "attempts.started_at"),
            elapsed_s=seconds.format("attempts.started_at", "attempts.ended_at"),
            device=configured.format(path="device", keys="device", kind="text"),
        ),
        "v_results": _RESULTS.format(
            layout=", ".join(f"{value} AS {name}" for name, value in layout.items()),
            rank=_RANK.format(verdict="v.verdict"),
            other_rank=_RANK.format(verdict="other.verdict"),
        ),
        "v_iterations": _ITERATIONS.format(
            columns=", ".join(f"i.{column.name}" for column in rows_of(Iteration).c if column.name != "attempt_id")
        ),
        "v_metrics": _ALL_METRICS.format_map(of_rows),
    }
    for name in VIEWS:
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {texts[name]}")


# Seconds between two times, exact to a millisecond; a time as ISO 8601 text in whole seconds, as in an export; a value
# of a job's configuration; the parts of a row's metric. SQLite stores times as text.
_SQLITE = (
    "round((julianday({1}) - julianday({0})) * 86400.0, 3)",
    "strftime('%Y-%m-%dT%H:%M:%SZ', {0})",
    "json_extract(jobs.configuration, '$.{path}')",
    {
        "row_key": "o.row_key",
        "value": "each.value",
        "unit": "json_extract(jobs.configuration, '$.program.metrics.\"' || each.key || '\".unit')",
        "each": "json_each(o.metrics)",
    },
)
_POSTGRESQL = (
    "round(extract(epoch FROM {1} - {0})::numeric, 3)::double precision",
    """to_char({0}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')""",
    "(jobs.configuration #>> '{{{keys}}}')::{kind}",
    {
        "row_key": "o.row_key::text",
        "value": "each.value::double precision",
        "unit": "(jobs.configuration #>> ARRAY['program', 'metrics', each.key, 'unit'])",
        "each": "json_each_text(o.metrics)",
    },
)
