"""What is said of many jobs at once, counted by the database: no job's own row is read for it."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import FAILED, IN_TURN, OPEN, Attempt, Run, RunJob


def failure_counts(ledger: Ledger) -> dict[tuple[str, str, str], dict[str, int]]:
    """(experiment, scale, cluster) -> class of failure -> jobs whose latest attempt failed so, most of them first."""
    later = sa.orm.aliased(Attempt)
    is_latest = ~sa.exists().where(later.job_id == Attempt.job_id, later.number > Attempt.number)
    jobs = (
        sa.select(Run.experiment, Run.scale, Run.cluster, Attempt.job_id, Attempt.failure)
        .select_from(Attempt)
        .join(RunJob, RunJob.job_id == Attempt.job_id)
        .join(Run, Run.id == RunJob.run_id)
        .where(Attempt.verdict == FAILED, Attempt.failure.is_not(None), is_latest)
        .distinct()
        .subquery()
    )
    where = (jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
    number = sa.func.count()
    query = sa.select(*where, jobs.c.failure, number).group_by(*where, jobs.c.failure).order_by(number.desc())
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    with ledger.reading() as session:
        for experiment, scale, cluster, failure, count in session.execute(query):
            found.setdefault((experiment, scale, cluster), {})[failure] = count
    return found


def last_seen(ledger: Ledger) -> datetime | None:
    """When the scheduler last told of that job under way of which it has been silent longest; None without one. UTC."""
    seen = sa.func.min(sa.func.coalesce(Attempt.refreshed_at, Attempt.created_at))
    query = sa.select(seen).where(Attempt.phase.in_(OPEN), Attempt.state != IN_TURN)
    with ledger.reading() as session:
        return session.scalar(query)
