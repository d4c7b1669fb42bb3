"""What `scontrol --oneliner show job` prints, as job records; pure.

Source: slurm_sprint_job_info() of job_info.c, releases 20.11 to 24.11: the order of the fields is the same in all of
them. Names, reasons and comments stand there as they are, with blanks, equal signs and ends of lines, so that each
field is looked for behind the one before it, and never in what comes before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.slurm.job_ids import expand_array_id
from orchestrator.slurm.records import JobRecord, exit_and_signal, record_of

_HEAD = re.compile(
    r"^JobId=(?P<job>\d+) "
    r"(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<tasks>\S+) (?:ArrayTaskThrottle=\d+ )?)?"
    r"(?:HetJobId=(?P<whole>\d+) HetJobOffset=(?P<offset>\d+) )?"
    r"JobName=",
    re.MULTILINE | re.ASCII,
)
_NAME_END = re.compile(r" (?:HetJobIdSet=\S+ )?UserId=(?P<user>\S*)\((?P<uid>\d+)\) GroupId=", re.ASCII)
_REASON_END = re.compile(r" (?:FailedNode=\S* )?Dependency=")
# Each is one word, in this order, behind the reason.
_WORDS = {
    "ExitCode": "code",
    "TimeLimit": "limit",
    "SubmitTime": "submit",
    "StartTime": "start",
    "EndTime": "end",
    "NodeList": "nodes",
}
# What may come behind a comment. The comment's own blank and the one between fields stand in front.
_COMMENT_END = re.compile(
    r"  (?:StdErr|Switches|BurstBuffer|BurstBufferState|OOMKillStep|CpusPerTres|MemPerTres|TresBind|TresFreq|TresPerJob"
    r"|TresPerNode|TresPerSocket|TresPerTask|Power|MailUser|NtasksPerTRES|Container|SELinuxContext|ResvPorts)="
)


def parse_shown(stdout: str) -> Iterator[JobRecord]:
    """Records of `scontrol --oneliner show job`; times must be seconds since the epoch. What is no job is left out."""
    heads = list(_HEAD.finditer(stdout))
    ends = [*(head.start() for head in heads), len(stdout)][1:]
    for head, end in zip(heads, ends, strict=True):
        row = _row(stdout[head.end() : end])
        if row is None:
            continue
        for job_id in _ids(head):
            yield record_of(job_id, row, exit_and_signal(row["code"]), "scontrol")


def _ids(head: re.Match[str]) -> tuple[str, ...]:
    if head["whole"] is not None:
        return (f"{head['whole']}+{head['offset']}",)
    if head["array"] is None:
        return (head["job"],)
    tasks: str = head["tasks"]
    return expand_array_id(f"{head['array']}_{tasks}" if tasks.isdecimal() else f"{head['array']}_[{tasks}]")


def _row(text: str) -> dict[str, str] | None:
    """The fields of one job from its name's first letter on, by our names; None when it has no state."""
    name_end = _NAME_END.search(text)
    if name_end is None:
        return None
    row = {"name": text[: name_end.start()], "user": name_end["user"] or name_end["uid"]}
    row["state"], at = _word(text, "JobState", name_end.end())
    reason = text.find(" Reason=", at)
    reason_end = _REASON_END.search(text, at)
    if not row["state"] or reason < 0 or reason_end is None:
        return None
    row["reason"], at = text[reason + len(" Reason=") : reason_end.start()], reason_end.end()
    for name, ours in _WORDS.items():
        row[ours], at = _word(text, name, at)
    return {**row, "comment": _comment(text, at)}


def _word(text: str, name: str, at: int) -> tuple[str, int]:
    """The word behind `name=`, and where it ends; "" and the same place when there is no such field."""
    start = text.find(f" {name}=", at)
    if start < 0:
        return "", at
    start += len(name) + 2
    end = min((place for sign in " \n" if (place := text.find(sign, start)) >= 0), default=len(text))
    return text[start:end], end


def _comment(text: str, at: int) -> str:
    """The comment: from behind the folders, which stand in front of it, to the last field that may follow one."""
    start = text.find(" Comment=", max(text.find(" WorkDir=", at), at))
    if start < 0:
        return ""
    rest = text[start + len(" Comment=") :].removesuffix("\n").removesuffix("\n")
    ends = list(_COMMENT_END.finditer(rest))
    comment = rest[: ends[-1].start()] if ends else rest.removesuffix(" ")
    return comment.rpartition("  Extra=")[0] if "  Extra=" in comment else comment
