"""An experiment that fails again and again in one way is stopped: what has not started is cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.launch.cancel import cancel
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.tables import FAILED, WAITING
from orchestrator.reading.failure import Failure


def stop_if_due(ledger: Ledger, rows: Sequence[JobRow], stop_after: int) -> str | None:
    """Cancel what waits once so many jobs have failed of one class; says so, or None where there is no need."""
    kept_from = (str(Failure.STOPPED), str(Failure.CANCELLED))
    failures = Counter(row.failure for row in rows if row.verdict == FAILED and row.failure not in kept_from)
    waiting = [row for row in rows if row.phase == WAITING]
    if not failures or not waiting:
        return None
    failure, count = failures.most_common(1)[0]
    if count < stop_after:
        return None
    cancel(ledger, waiting)
    return f"{count} jobs failed ({failure}): {len(waiting)} that had not started are cancelled"
