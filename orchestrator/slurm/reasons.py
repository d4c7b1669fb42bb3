"""Meaning of Slurm's reasons: why a job waits, why sbatch refuses one, and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.errors import Problem

Kind = Literal["queue", "limit", "held", "dependency", "never", "nodes", "unknown"]


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a job waits. `meaning` completes "the job ..."; `hint` is None if the user can only wait.

    Kinds: `queue`, it will start in its order; `limit`, a limit on running jobs or a budget is reached; `held`, until
    it is released; `dependency`, another job must end first; `never`, it cannot start without a change; `nodes`, they
    are out of service or reserved; `unknown`.
    """

    kind: Kind
    meaning: str
    hint: str | None


_RELEASE = "release it with `scontrol release ID`"
_ASK_RELEASE = "only an administrator can release it; ask one"
_RELEASE_AFTER = "when the cause is corrected, release it with `scontrol release ID`"
_NEVER = "cancel it and submit it again with"
_ANOTHER = "take another `qos` or `account`"
_DECAYED = f"wait until the usage has decayed, or {_ANOTHER}"
_SPENT = f"lower `time_limit`, {_DECAYED}"
_STATE_OF_NODES = "`sinfo -R` lists the nodes out of service and why; if it lasts, ask an administrator"
_END_NOT_WAIT = "is the reason of an end, not of waiting"

# Kind -> pattern of a reason in small letters without blanks -> meaning, or meaning and hint. Other text may follow a
# pattern that ends with `.*`.
_REASONS: Mapping[Kind, Mapping[str, str | tuple[str, str]]] = {
    "queue": {
        "none|waitingforscheduling": "was not considered by the scheduler yet",
        "scheddefer": "is scheduled with the others, not at submission",
        "priority": "waits behind jobs of higher priority",
        "resources": "is next in the queue and waits until enough nodes or GPUs are free",
        "begintime": "waits for its earliest start: its `--begin`, or a pause after it was put back",
        "licenses": "waits for licenses that other jobs use",
        "cleaning": "was put back into the queue; its last run is still being cleaned up",
        "prolog": "has nodes, where the site's prolog still runs",
        "reservation": "waits for its reservation to begin or to have room",
        "fedjoblock": "waits until the clusters of the federation agree who starts it",
        "mpiportsbusy": "waits for communication ports that other jobs use",
        "nvidiaimexchannels": "waits for an IMEX channel that other jobs use",
        "burstbufferresources": "waits for room in the burst buffer",
        "burstbufferstagein": "waits while its files are copied into the burst buffer",
    },
    "limit": {
        "jobarraytasklimit": "waits for other tasks of its own array (`--array=...%N`)",
        "accountingpolicy": ("is stopped by a limit of its account or QOS", "`sacctmgr show qos` lists limits"),
        "qosusagethreshold": ("waits because its account has used more than its share for this QOS", _DECAYED),
        "associationjoblimit": "waits because its account runs as many jobs as it is allowed to",
        "associationresourcelimit": "waits because its account uses all that it is allowed to",
        "associationtimelimit": ("waits because its account has used up its time", "take another `account`"),
        "qosjoblimit": "waits because its QOS runs as many jobs as it is allowed to",
        "qosresourcelimit": "waits because its QOS uses all that it is allowed to",
        "qostimelimit": ("waits because its QOS has used up its time", "take another `qos`"),
        "maxpoweredupnodes": "waits because the largest allowed number of nodes is switched on",
        "jobisatorexceeds(qos|association).*group.*": (
            "waits because its account or QOS has used up its minutes, or would with this job",
            _SPENT,
        ),
    },
    "held": {
        "jobhelduser": ("is held by its user or an account's coordinator", _RELEASE),
        "jobheldadmin": ("is held by an administrator", _ASK_RELEASE),
        "jobholdmaxrequeue|(launchfailurelimitexceeded|maxrequeueexceeded).*": (
            "is held because it was put back into the queue too often",
            _ASK_RELEASE,
        ),
        "launchfailedrequeuedheld.*": ("could not be launched and is held; a node may be faulty", _RELEASE_AFTER),
        "jobrequeuedinheldstate.*": ("was put back into the queue and is held", _RELEASE),
        "jobrequeuedinspecialexitstate.*": ("ended with a special exit code and is held", _RELEASE),
        r"burstbuffer(operation|\b.*)": ("is held because the burst buffer could not serve it", _RELEASE_AFTER),
        "reservationdeleted|reservation.*wasdeleted.*": (
            "is held because its reservation was deleted",
            "give it another with `scontrol update JobId=ID ReservationName=NAME`, then `scontrol release ID`",
        ),
    },
    "dependency": {"dependency": "waits for another job to end"},
    "never": {
        "dependencyneversatisfied": (
            "depends on a job that did not succeed",
            "cancel it, or change it with `scontrol update JobId=ID Dependency=`",
        ),
        "badconstraints": (
            "requests features that no nodes of the partition have together",
            f"{_NEVER} fewer requirements",
        ),
        "partitionnodelimit": (
            "requests more or fewer nodes than its partition allows, or has in service",
            f"{_NEVER} other `nodes` or another `partition`; `scontrol show partition` has MinNodes and MaxNodes",
        ),
        "partitiontimelimit": (
            "requests more time than its partition allows",
            f"{_NEVER} a lower `time_limit` or another `partition`; `sinfo -o '%P %l'` lists the limits",
        ),
        "partitionconfig": ("does not fit a limit of its partition", f"{_NEVER} another `partition`"),
        "maxmemperlimit": ("requests more memory per node or CPU than is allowed", f"{_NEVER} a lower `mem`"),
        "invalidaccount": ("has an account that is no longer valid", f"{_NEVER} another `account`"),
        "accountnotallowed": ("has an account that its partition does not accept", f"{_NEVER} another `account`"),
        "invalidqos": ("has a QOS that is no longer valid", f"{_NEVER} another `qos`"),
        "qosnotallowed": ("has a QOS that its partition or account does not accept", f"{_NEVER} another `qos`"),
        "reservation(|.*is)invalid.*": ("has a reservation that is not valid", f"{_NEVER} another `reservation`"),
        "deadline": ("cannot end before its deadline any more", f"{_NEVER} a later `--deadline`"),
        r"uid\d+notingrouppermitted.*": (
            "is in a partition that its user may not use",
            f"{_NEVER} another `partition`",
        ),
        "jobisatorexceeds(qos|association).*": (
            "requests more minutes than its account or QOS allows for one job",
            f"{_NEVER} less, or {_ANOTHER}",
        ),
    },
    "nodes": {
        "constraints": ("requests features that no nodes in service have together now", _STATE_OF_NODES),
        "reqnodenotavail,reservedformaintenance.*": "needs nodes that are reserved for maintenance",
        "reqnodenotavail,maybereserved.*": "needs nodes that may be kept for another job",
        r"reqnodenotavail(\b.*)?": ("needs a node that is out of service or reserved", _STATE_OF_NODES),
        "nodesrequiredforjobaredown,drained.*": (
            "needs nodes that are out of service or kept for partitions of higher priority",
            _STATE_OF_NODES,
        ),
        "nodedown": ("needs a node that is down", _STATE_OF_NODES),
        "frontenddown": ("needs a front-end node, and none is up", _STATE_OF_NODES),
        "partitiondown": ("waits because its partition is down", "`sinfo -s` shows the partitions that are up"),
        "partitioninactive": ("waits because its partition starts no jobs", "`sinfo -s` shows those that do"),
        "powernotavail": "waits for the electrical power that its nodes need",
        "powerreserved": "waits for electrical power that is reserved for others",
        "blockmaxerror": ("waits because its block of nodes had too many errors", _STATE_OF_NODES),
        "blockfreeaction": "waits for a block of nodes to be freed",
    },
    # Reasons of an earlier run of the job.
    "unknown": {
        "systemfailure": f"met a failure of Slurm itself; the word {_END_NOT_WAIT}",
        "joblaunchfailure": f"could not be launched; the word {_END_NOT_WAIT}",
        "nonzeroexitcode": f"ended with an exit code other than 0; the word {_END_NOT_WAIT}",
        "raisedsignal(:.*)?": f"was ended by a signal; the word {_END_NOT_WAIT}",
        "timelimit": f"reached its time limit; the word {_END_NOT_WAIT}",
        "inactivelimit": f"was idle for too long; the word {_END_NOT_WAIT}",
        "outofmemory": f"ran out of memory; the word {_END_NOT_WAIT}",
    },
}

# Name of a limit: its owner (a QOS for `Max...PerAccount` without an owner), the limited resource, and for whom.
_LIMIT = re.compile(
    r"(?P<owner>assoc|qos)?(?P<scope>grp|max|min)"
    r"(?P<thing>cpu|gres|memory|mem|node|energy|license|bb|billing|unknown|submitjobs?|jobs?|wallduration|wall)"
    r"(?P<minutes>runminutes|runmins|minutes)?(?:per(?P<each>job|node|user|account))?(?:notsatisfied)?(?:limit)?"
)
_THINGS = {
    "cpu": "CPUs",
    "gres": "GPUs (or other GRES)",
    "memory": "memory",
    "mem": "memory",
    "node": "nodes",
    "energy": "energy",
    "license": "licenses",
    "bb": "burst buffer",
    "billing": "billing units",
    "unknown": "other resources",
    "wallduration": "time",
    "wall": "time",
}


def explain_reason(reason: str) -> WaitReason:
    """Return the meaning of squeue's reason for a waiting job. An unlisted reason has the kind `unknown`.

    After the end of a job its reason is that of the end. Some releases print sentences with underscores.
    """
    word = "".join(reason.replace("_", " ").split()).casefold() or "none"
    if limit := _LIMIT.fullmatch(word):
        return _limit(limit)
    for kind, patterns in _REASONS.items():
        for pattern, explained in patterns.items():
            if re.fullmatch(pattern, word):
                return WaitReason(kind, *((explained, None) if isinstance(explained, str) else explained))
    return WaitReason("unknown", f"waits for a reason that repro does not explain: {' '.join(reason.split())}", None)


def _limit(name: re.Match[str]) -> WaitReason:
    """Return the meaning of a limit of an account (Slurm's "association" with a user and a partition) or of a QOS."""
    owner = "account" if name["owner"] == "assoc" else "QOS"
    thing, each = name["thing"], name["each"]
    if thing.startswith(("job", "submitjob")):
        limited = each or ("user" if name["scope"] == "max" else owner)
        count = "has as many jobs in the queue" if thing.startswith("submit") else "runs as many jobs"
        return WaitReason("limit", f"waits because its {limited} {count} as the {owner} allows", None)
    what = f"{'minutes of ' if name['minutes'] else ''}{_THINGS[thing]}"
    if name["scope"] == "min":
        hint = f"{_NEVER} more, or {_ANOTHER}"
        return WaitReason("never", f"requests less than the minimum of its {owner}: {what}", hint)
    if each in ("job", "node"):
        meaning = f"requests more than its {owner} allows for one {each}: {what}"
        return WaitReason("never", meaning, f"{_NEVER} less, or {_ANOTHER}")
    if name["minutes"] == "minutes" or thing == "wall":
        return WaitReason("limit", f"waits because its {owner} has used up its {what}, or would with this job", _SPENT)
    meaning = f"waits because running jobs of its {each or owner} use all that the {owner} allows: {what}"
    # Slurm gives the same reason for a job that alone exceeds the limit and therefore waits for ever.
    return WaitReason("limit", meaning, f"wait for them to end, or, if the job alone requests more, {_ANOTHER}")


_PREFIX = re.compile(r"^(?:sbatch|srun|salloc|submitit)(?::\s*(?:error|fatal|warning))?:\s*", re.IGNORECASE)
_FAILED = re.compile(r"^(?:Batch job submission failed|allocation failure|Unable to allocate resources):?\s*")


def _correct(field: str, command: str) -> str:
    return f"correct {field} in the profile; `{command}` lists them"


# Pattern of a message of sbatch, without regard to case -> hint. The first one that matches counts.
_RULES = {
    # Limits of a QOS, an account or a partition. The name of the limit comes first in the message.
    "MaxSubmit|MaxJobs|GrpSub": f"wait for jobs to end, submit fewer, or {_ANOTHER}",
    r"(?:QOS|Assoc|Partition)\w*Wall": "lower `time_limit`, or take a `qos` or `partition` that allows it",
    r"(?:QOS|Assoc)\w*(?:Node)": f"ask for fewer nodes (a smaller scale), or {_ANOTHER}",
    r"(?:QOS|Assoc)\w*(?:Gres|TRES|Cpu|Mem|Billing)": f"ask for fewer GPUs, or {_ANOTHER}",
    "violates accounting/QOS policy": (
        f"ask for fewer nodes or less time, or {_ANOTHER}; `sacctmgr show qos` lists the limits"
    ),
    # Names that must exist on the cluster.
    "invalid partition|partition name specified": _correct("`partition`", "sinfo -s"),
    "user's group not permitted to use this partition|partition.*not permitted": "take another `partition`",
    "invalid account|account/partition combination": (
        "correct `account` (or `partition`) in the profile; `sacctmgr show assoc user=$USER` lists yours"
    ),
    "invalid qos": _correct("`qos`", "sacctmgr show qos"),
    "invalid feature": "correct `constraint` in the profile; `sinfo -o '%N %f'` lists the nodes' features",
    "reservation": _correct("`reservation`", "scontrol show reservation"),
    "invalid node name": "correct the node names among `sbatch` in the profile; `sinfo -N` lists the nodes",
    "invalid license": _correct("it among `sbatch`", "scontrol show licenses"),
    "generic resource|--gres|invalid gpu": "correct `gres_type` in the profile; `sinfo -o '%N %G'` lists it",
    # Sizes.
    "time limit|--time specification": (
        "correct `time_limit` in the profile; `sinfo -o '%P %l'` lists the partitions' limits"
    ),
    "node count": (
        "ask for fewer nodes (a smaller scale), or take a `partition` that has as many; `sinfo -s` counts them"
    ),
    "memory specification|--mem specification|memory required": "lower `mem` in the profile, or leave it out",
    "CPU count per node": "lower `cpus_per_task`, or the tasks per node",
    # Also printed if the job requests more nodes than the cluster has CPUs.
    "more processors requested": "ask for fewer nodes (a smaller scale), or lower `cpus_per_task`",
    "requested node configuration is not available": (
        "compare GPUs, CPUs and memory per node in the profile with `sinfo -o '%N %c %m %G'`"
    ),
    "job array specification": "put fewer jobs into one array; MaxArraySize is in `scontrol show config`",
    "dependency problem": "depend on a job that Slurm still lists",
    "pathname of a file.*too long|script.*too large|exceeds.*max.*script": (
        "make the script smaller; Slurm accepts 4 MB unless max_script_size is set"
    ),
    # The script and its options.
    "unrecognized option '?--container": "install pyxis on the cluster, or take `container` out of the profile",
    "unrecognized option|unknown option|--signal specification|--begin specification|invalid .* specification": (
        "remove or correct that option among `sbatch` in the profile"
    ),
    "DOS line breaks": "save the template with Unix line ends",
    "does not look like a batch script": "begin the template with #!/bin/bash",
    "batch script is empty": "the template renders to nothing; correct it",
    "unable to open file": "the script is gone; render it again",
    # The cluster itself.
    "unable to contact slurm controller|socket timed out|zero bytes|connection re(?:fused|set)": (
        "try again when slurmctld answers"
    ),
    "too many jobs|maximum number of jobs|temporarily unable to accept|rate limit": "wait, then submit again",
    "required partition not available|partition.*(?:down|inactive|drain)": "take a `partition` that is up",
    "access/permission denied|user id is invalid|invalid user id": "ask the administrator for access to it",
}


# Limits on the number of jobs in the queue: the job is accepted when others have ended.
_FULL = re.compile(
    r"MaxSubmit|GrpSubmit|too many jobs|maximum number of jobs|temporarily unable to accept|rate limit"
    r"|Reached .*limit.* submit",
    re.IGNORECASE,
)


def is_for_want_of_room(stderr: str) -> bool:
    """Return whether the scheduler would accept the same job when others have left the queue."""
    return _FULL.search(own_words(stderr)) is not None


def explain_rejection(stderr: str) -> Problem:
    """Return the scheduler's message on one line, without sbatch's prefixes, and a hint if one is known."""
    message = own_words(stderr)
    hints = (hint for pattern, hint in _RULES.items() if re.search(pattern, message, re.IGNORECASE))
    return Problem(message, hint=next(hints, None))


def own_words(stderr: str) -> str:
    """Return sbatch's message on one line: continuation lines joined, a specific reason before a general one."""
    message = ""
    for raw in stderr.splitlines():
        line = " ".join(_FAILED.sub("", _PREFIX.sub("", raw.strip())).split())
        if not line or line.startswith("Try "):
            continue
        # The lines of a sentence are joined by spaces, and a second message by a colon.
        runs_on = line[0].islower() or message.endswith(".")
        message = f"{message}{' ' if runs_on else ': '}{line}" if message else line
    return message.rstrip(".!") or "the scheduler refused the job without a message"
