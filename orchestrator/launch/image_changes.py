"""Notes about image files that were replaced since earlier attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.clusters.resolve import Cluster
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.runs import image_digests, latest_attempts
from orchestrator.planning.plan import Plan, identity
from orchestrator.text import counted


def image_changes(plans: Sequence[Plan], cluster: Cluster, ledger: Ledger) -> Iterator[str]:
    """Yield a note for each image whose identity is another one than in all attempts of these jobs.

    Such jobs are other jobs and run again, also if they failed in a way that would repeat.
    """
    names = dict.fromkeys(plan.program.image for plan in plans if plan.program.image_digest is not None)
    for name in filter(None, names):
        plans_of_image = [plan for plan in plans if plan.program.image == name]
        path, digest = plans_of_image[0].program.image_path, plans_of_image[0].program.image_digest
        earlier = {
            identity(plan.case, replace(plan.program, image_digest=other), plan.cluster, plan.repeat): plan
            for other in image_digests(ledger, cluster.name, name) - {digest}
            for plan in plans_of_image
        }
        if not earlier:
            continue
        known = latest_attempts(ledger, [plan.identity for plan in plans_of_image])
        attempts = [
            attempt
            for attempt in latest_attempts(ledger, list(earlier)).values()
            if earlier[attempt.job_id].identity not in known
        ]
        if attempts:
            last = max(attempts, key=lambda attempt: attempt.attempt_id)
            jobs = counted(len({earlier[attempt.job_id].identity for attempt in attempts}), "job")
            since = f"attempt {last.number} of {earlier[last.job_id].label}"
            yield f"{path}: image file changed since {since}; earlier results of {jobs} are those of the old image"
