"""What sbatch says when it refuses a job, and what to change in the cluster profile or the plan; pure.

The messages are those of slurm_errno.c and of sbatch's own option parser. Within a message the first rule that
matches gives the mend, so the narrower rules (a limit's name, "Memory specification") stand before the wider ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.errors import Problem

_PREFIX = re.compile(r"^(?:sbatch|srun|salloc|submitit)(?::\s*(?:error|fatal|warning))?:\s*", re.IGNORECASE)
_FAILED = re.compile(r"^(?:Batch job submission failed|allocation failure|Unable to allocate resources):?\s*")


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    hint: str


def _rule(pattern: str, hint: str) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), hint)


_RULES = (
    # Limits of a QOS, an account or a partition, by the name sbatch puts in front.
    _rule(r"MaxSubmit|MaxJobs|GrpSub", "wait for jobs to end, submit fewer, or take another `qos` or `account`"),
    _rule(r"(?:QOS|Assoc|Partition)\w*Wall", "lower `time_limit`, or take a `qos` or `partition` that allows it"),
    _rule(r"(?:QOS|Assoc)\w*(?:Node)", "ask for fewer nodes (a smaller scale), or take another `qos` or `account`"),
    _rule(r"(?:QOS|Assoc)\w*(?:Gres|TRES|Cpu|Mem|Billing)", "ask for fewer GPUs, or take another `qos` or `account`"),
    _rule(
        r"violates accounting/QOS policy",
        "ask for fewer nodes or less time, or take another `qos` or `account`; `sacctmgr show qos` lists the limits",
    ),
    # Names that must exist on the cluster.
    _rule(r"invalid partition|partition name specified", "correct `partition` in the profile; `sinfo -s` lists them"),
    _rule(r"user's group not permitted to use this partition|partition.*not permitted", "take another `partition`"),
    _rule(
        r"invalid account|account/partition combination",
        "correct `account` (or `partition`) in the profile; `sacctmgr show assoc user=$USER` lists yours",
    ),
    _rule(r"invalid qos", "correct `qos` in the profile; `sacctmgr show qos` lists them"),
    _rule(r"invalid feature", "correct `constraint` in the profile; `sinfo -o '%N %f'` lists the nodes' features"),
    _rule(r"reservation", "correct `reservation` in the profile; `scontrol show reservation` lists them"),
    _rule(r"invalid node name", "correct the node names among `sbatch` in the profile; `sinfo -N` lists the nodes"),
    _rule(r"invalid license", "correct it among `sbatch` in the profile; `scontrol show licenses` lists them"),
    _rule(r"generic resource|--gres|invalid gpu", "correct `gres_type` in the profile; `sinfo -o '%N %G'` lists it"),
    # Sizes.
    _rule(
        r"time limit|--time specification",
        "correct `time_limit` in the profile; `sinfo -o '%P %l'` lists the partitions' limits",
    ),
    _rule(
        r"node count",
        "ask for fewer nodes (a smaller scale), or take a `partition` that has as many; `sinfo -s` counts them",
    ),
    _rule(r"memory specification|--mem specification|memory required", "lower `mem` in the profile, or leave it out"),
    _rule(r"CPU count per node", "lower `cpus_per_task`, or the tasks per node"),
    # Also said of more nodes than the whole cluster has CPUs.
    _rule(r"more processors requested", "ask for fewer nodes (a smaller scale), or lower `cpus_per_task`"),
    _rule(
        r"requested node configuration is not available",
        "compare GPUs, CPUs and memory per node in the profile with `sinfo -o '%N %c %m %G'`",
    ),
    _rule(r"job array specification", "put fewer jobs into one array; MaxArraySize is in `scontrol show config`"),
    _rule(r"dependency problem", "depend on a job that Slurm still knows"),
    _rule(
        r"pathname of a file.*too long|script.*too large|exceeds.*max.*script",
        "make the script smaller; Slurm takes 4 MB unless max_script_size says otherwise",
    ),
    # The script and its options.
    _rule(
        r"unrecognized option '?--container",
        "install pyxis on the cluster, or take `container` out of the profile",
    ),
    _rule(r"unrecognized option|unknown option|--signal specification|--begin specification|invalid .* specification",
          "remove or correct that option among `sbatch` in the profile"),
    _rule(r"DOS line breaks", "save the template with Unix line ends"),
    _rule(r"does not look like a batch script", "begin the template with #!/bin/bash"),
    _rule(r"batch script is empty", "the template renders to nothing; correct it"),
    _rule(r"unable to open file", "the script is gone; render it again"),
    # The cluster itself.
    _rule(r"unable to contact slurm controller|socket timed out|zero bytes|connection re(?:fused|set)",
          "try again when slurmctld answers"),
    _rule(r"too many jobs|maximum number of jobs|temporarily unable to accept|rate limit", "wait, then submit again"),
    _rule(r"required partition not available|partition.*(?:down|inactive|drain)", "take a `partition` that is up"),
    _rule(r"access/permission denied|user id is invalid|invalid user id", "ask the administrator for access to it"),
)  # fmt: skip


# Limits on how many jobs may be in the queue: what is refused today is taken when others have ended.
_FULL = re.compile(
    r"MaxSubmit|GrpSubmit|too many jobs|maximum number of jobs|temporarily unable to accept|rate limit"
    r"|Reached .*limit.* submit",
    re.IGNORECASE,
)


def is_for_want_of_room(stderr: str) -> bool:
    """Whether the same job would be taken once others have left the queue."""
    return _FULL.search(own_words(stderr)) is not None


def explain_rejection(stderr: str) -> Problem:
    """Return the scheduler's message on one line, without sbatch's prefixes, and a hint if one is known."""
    words = own_words(stderr)
    for rule in _RULES:
        if rule.pattern.search(words):
            return Problem(words, hint=rule.hint)
    return Problem(words)


def own_words(stderr: str) -> str:
    """Return sbatch's message on one line: continuation lines joined, a specific reason before a general one."""
    words = ""
    for raw in stderr.splitlines():
        line = " ".join(_FAILED.sub("", _PREFIX.sub("", raw.strip())).split())
        if not line or line.startswith("Try "):
            continue
        # A sentence that runs over several lines is joined by spaces, a second message by a colon.
        runs_on = line[0].islower() or words.endswith(".")
        words = f"{words}{' ' if runs_on else ': '}{line}" if words else line
    return words.rstrip(".!") or "the scheduler refused the job without a word"
