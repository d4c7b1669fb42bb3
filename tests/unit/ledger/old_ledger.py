"""Ledger that an older version of `repro` has written."""

from __future__ import annotations

import sqlalchemy as sa

from orchestrator.ledger.migrations import run_migrations

# Table and column names of that version. They do not follow later changes.
_ROWS = (
    """INSERT INTO jobs (id, cluster, workload, code, image, configuration, gpus, iterations, created_at) VALUES
    ('a-id', 'selene', 'megatron-2021', 'c0ffee', NULL, '{"gpus_per_node": 8}', 8, 20, '2026-01-02 03:04:05.000006'),
    ('b-id', 'selene', 'megatron-2021', 'c0ffee', 'i.sqsh', '{}', 16, 20, '2026-01-02 03:04:05.000006')""",
    """INSERT INTO runs (id, experiment, scale, cluster, created_at, "user", host, pid, command, git_commit, git_dirty,
    versions, profile) VALUES ('old', 'sc21/figure-13', 'full', 'selene', '2026-01-02 03:04:05.000006', 'me', 'login-1',
    17, '["repro", "submit"]', 'c0ffee', FALSE, '{"repro": "0"}', '{"about": "old"}')""",
    """INSERT INTO run_jobs (run_id, job_id, position, case_name) VALUES
    ('old', 'a-id', 0, 'a'), ('old', 'b-id', 1, 'b')""",
    """INSERT INTO attempts (job_id, run_id, number, scheduler, host, token, array_index, scheduler_id, state, phase,
    exit_code, folder, script, script_sha256, created_at, ended_at, iteration, verdict) VALUES
    ('a-id', 'old', 1, 'slurm', 'login-1', 't', 0, '17_0', 'COMPLETED', 'ended', 0, '/runs/old/a', '#!', 'sha',
    '2026-01-02 03:04:05.000006', '2026-01-02 04:00:00.000000', 20, 'verified'),
    ('b-id', 'old', 1, 'slurm', 'login-1', 't', 1, '17_1', 'PENDING', 'waiting', NULL, '/runs/old/b', '#!', 'sha',
    '2026-01-02 03:04:05.000006', NULL, NULL, NULL)""",
    """INSERT INTO events (at, run_id, attempt_id, kind, detail) VALUES
    ('2026-01-02 03:04:05.000006', 'old', 1, 'submitted', '17_0')""",
    """INSERT INTO iterations (attempt_id, iteration, elapsed_ms, loss, grad_norm, used) VALUES
    (1, 10, 812.5, 10.25, NULL, FALSE), (1, 20, 800.1, 9.875, 0.5, TRUE)""",
    """INSERT INTO metrics (attempt_id, name, value, unit, spread, count) VALUES
    (1, 'iteration_ms', 800.1, 'ms', 0.5, 1)""",
)


def create_old_ledger(url: sa.URL, schema: str) -> None:
    """Create a ledger of this schema with two jobs: one is verified and has metrics, one is in the queue."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        run_migrations(connection, schema)
        for statement in _ROWS:
            connection.exec_driver_sql(statement)
    engine.dispose()
