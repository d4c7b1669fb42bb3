"""What waits its turn is sent as room appears: by whoever waits for it, for nothing of ours stays running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from orchestrator.errors import ReproError
from orchestrator.launch.policy import sender_is_alive
from orchestrator.launch.sbatch import Reporter, send
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.submissions import in_turn
from orchestrator.ledger.tables import IN_TURN, OPEN

ASK_FOR_ROOM_EVERY_S = 60.0
"""How often a full queue is tried though none of these jobs has left it."""


class Turns:
    """Sends what waits its turn among some jobs, once one of them has left the queue, or a minute has passed."""

    def __init__(self, ledger: Ledger, tell: Callable[[str], None]) -> None:
        self._ledger, self._tell = ledger, tell
        self._in_queue: int | None = None
        self._asked_at = 0.0
        self._is_told = False

    def send_what_has_room(self, rows: Sequence[JobRow]) -> None:
        """To be called after each look at the scheduler, with the jobs as they stand."""
        waiting = {row.attempt_id for row in rows if row.state == IN_TURN}
        in_queue = sum(row.phase in OPEN and row.state != IN_TURN for row in rows)
        may_fit = self._in_queue is None or in_queue < self._in_queue
        self._in_queue = in_queue
        if not waiting or not (may_fit or time.monotonic() - self._asked_at > ASK_FOR_ROOM_EVERY_S):
            return
        self._asked_at = time.monotonic()
        for run_id in self._runs(waiting):
            try:
                sent = send(self._ledger, run_id, Reporter(self._tell))
            except ReproError as error:
                self._tell(f"note: {error}")
                return
            self._in_queue += sent.jobs

    def _runs(self, waiting: set[int]) -> list[str]:
        """The runs that these attempts were written down in, unless another process still sends them."""
        queued = [turn for turn in in_turn(self._ledger) if turn.attempt_id in waiting]
        mine = [turn for turn in queued if self._ledger.is_own(turn.user)]
        self._tell_once(len(queued) - len(mine))
        return list(dict.fromkeys(turn.run_id for turn in mine if turn.pid == os.getpid() or not sender_is_alive(turn)))

    def _tell_once(self, foreign: int) -> None:
        """Tell that other users have to submit their own jobs."""
        if foreign and not self._is_told:
            self._is_told = True
            self._tell(f"note: {foreign} of these jobs wait for another user, whose `repro wait` submits them")
