"""`submit --wait`: while somebody waits, what failed through no fault of its own is run again, and turns come."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from orchestrator.cli.output import say
from orchestrator.cli.waiting import wait_for
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.launch.backlog import Turns
from orchestrator.launch.cancel import stop_if_due
from orchestrator.launch.policy import RerunPolicy, may_mend_itself
from orchestrator.launch.submit import Request
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.paths import Folders, short_name
from orchestrator.planning.plan import Plan


class Attendant:
    """Looks after one run; `rows` are its jobs as they stand."""

    def __init__(
        self, plans: Sequence[Plan], cluster: Cluster, ledger: Ledger, folders: Folders, run_id: str, request: Request
    ) -> None:
        self._plans, self._cluster, self._ledger, self._folders = plans, cluster, ledger, folders
        self._run_id = run_id
        self._request = dataclasses.replace(request, again=RerunPolicy(only_failed=True), canary=False)
        self._stop_after = request.stop_after
        self._turns = Turns(ledger, say)

    def rows(self) -> list[JobRow]:
        return job_rows(self._ledger, run_id=self._run_id)

    def look_after(self) -> None:
        """Stop what is to be stopped, run again what may come out well, send what has room now."""
        rows = self.rows()
        if self._stop_after is not None and (why := stop_if_due(self._ledger, rows, self._stop_after)):
            say(why)
            return
        again = [row for row in rows if may_mend_itself(row)]
        if again:
            ids = {row.job_id for row in again}
            plans = [plan for plan in self._plans if plan.identity in ids]
            try:
                done = submit_plans(
                    plans, self._cluster, self._ledger, self._folders, sys.argv, self._request, tell=say
                )
            except ReproError as error:
                say(f"note: {error}")
                return
            for row in again:
                if row.job_id in done.recorded.to_submit:
                    say(f"{row.label} failed ({row.failure}) and is submitted again")
        self._turns.send_what_has_room(rows)


def attend(
    plans: Sequence[Plan], cluster: Cluster, ledger: Ledger, folders: Folders, run_id: str, request: Request
) -> None:
    """Return when every job of the run, and those that took the place of failed ones, have ended."""
    attendant = Attendant(plans, cluster, ledger, folders, run_id, request)
    wait_for(ledger, attendant.rows, short_name(plans[0].case.experiment), attendant.look_after)
