"""Fields of a profile for Slurm's mail: the events and the recipient."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from orchestrator.errors import did_you_mean

MAIL_EVENTS = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)
"""Events of `--mail-type`, from sbatch(1)."""

_EVENT = f"({'|'.join(MAIL_EVENTS)})"
_USER = r"^([^\s,<>]+(,[^\s,<>]+)*|<.*>)$"


def _events(text: object) -> str:
    """Return the events in capitals. ValueError names a wrong event."""
    if not isinstance(text, str):
        raise ValueError("must be text such as END,FAIL")
    events = [name.strip().upper() for name in text.split(",")]
    for name in events:
        if name not in MAIL_EVENTS:
            hint = did_you_mean(name, MAIL_EVENTS) or f"there are: {', '.join(MAIL_EVENTS)}"
            raise ValueError(f"must be events of Slurm; {hint}")
    if set(events) == {"ARRAY_TASKS"}:
        raise ValueError("must have another event beside ARRAY_TASKS: END,ARRAY_TASKS")
    if "NONE" in events and len(events) > 1:
        raise ValueError("must have no event beside NONE")
    return ",".join(events)


def _user(text: str) -> str:
    if not re.fullmatch(_USER, text):
        raise ValueError("must be a user or an address, without blanks")
    return text


MailType = Annotated[
    str, BeforeValidator(_events), WithJsonSchema({"type": "string", "pattern": f"^{_EVENT}(,{_EVENT})*$"})
]
MailUser = Annotated[str, AfterValidator(_user), WithJsonSchema({"type": "string", "pattern": _USER})]
