"""Report of containers that did not start, from the lines that pyxis printed about them."""

from __future__ import annotations

import re

from orchestrator.megatron.logs.scan import LogLine, Origin

# Lines of pyxis 0.8 to 0.24 (pyxis_slurmstepd.c, enroot.c). One line names the error, and an indented line of enroot's
# log names the reason. The other lines follow from the error and may come first.
_PYXIS = re.compile(r"error: pyxis: (.*)")
_FOLLOWS = re.compile(
    r" |child [0-9]|printing |container was not started|a previous task terminated|if the image has an unusual"
)
# Lines of a container that Slurm ended. 137 and 143 are the exit codes of a shell that a signal ended.
_ENDED = re.compile(r"child [0-9]+ (?:terminated with signal|failed with error code: (?:137|143)$)")
_FAILED = re.compile(r"child [0-9]")
_EXITED = re.compile(r"container exited too soon")
# Reasons in enroot's log, the most specific first: a full disk, a marked line, a program's message.
_REASONS = (
    re.compile(r" +(.*No space left on device.*)"),
    re.compile(r" +((?:\[ERROR\]|curl:|FATAL ERROR:) .*)"),
    re.compile(r" +((?:/[\w./-]{1,200}|[\w.-]{1,64}): [^ ].*)"),
)
_MOST_ORIGINS = 4096


class _Container:
    """Lines that pyxis printed about one task's container."""

    def __init__(self) -> None:
        self.first = ""
        self._error = ""
        self._reasons: dict[int, str] = {}
        self.has_failed = False
        self.was_ended = False
        self.has_exited = False

    def add(self, message: str) -> None:
        """Add the next message."""
        self.first = self.first or message
        follows = _FOLLOWS.match(message) is not None
        if not self.has_failed and _ENDED.match(message):
            self.was_ended = True
        elif _EXITED.match(message):
            self.has_exited = True
        elif not follows or _FAILED.match(message):
            self.has_failed = True
        if not follows:
            self._error = self._error or message
            return
        for order, pattern in enumerate(_REASONS):
            if match := pattern.match(message):
                self._reasons.setdefault(order, match[1].strip())

    @property
    def names_error(self) -> bool:
        """Return whether a message names the error."""
        return bool(self._error)

    @property
    def has_reason(self) -> bool:
        """Return whether a message of enroot names the reason."""
        return bool(self._reasons)

    def text(self) -> str:
        """Return the error and its reason in one line."""
        error = (self._error or self.first).strip()
        reason = self._reasons[min(self._reasons)] if self._reasons else ""
        reason = reason.removesuffix(": " + error.rpartition(": ")[2])  # the same path again
        return f"pyxis: {error}" + (f"; {reason}" if reason else "")


class ContainerReport:
    """Lines that pyxis printed about containers that did not start, by origin."""

    def __init__(self) -> None:
        self._containers: dict[Origin, _Container] = {}

    def add(self, line: LogLine) -> None:
        """Add the next line of pyxis."""
        match = _PYXIS.search(line.text)
        container = self._containers.get(line.origin)
        if container is None and len(self._containers) < _MOST_ORIGINS:
            container = self._containers[line.origin] = _Container()
        if container is not None and match is not None:
            container.add(match[1])

    @property
    def failed(self) -> tuple[Origin, ...]:
        """Origins of the containers that failed by themselves; not those that Slurm ended because of another task.

        Containers with a reason come first, because srun can lose the first lines of a task. Lines without an origin
        may be of several containers: an ended container does not exclude the others. If tasks share a container, one
        task prints the error, and any task may print that the removal failed.
        """
        own = {origin: c for origin, c in self._containers.items() if origin == Origin() or not c.was_ended}
        failed = sorted((item for item in own.items() if item[1].has_failed), key=lambda item: not item[1].has_reason)
        named = tuple(origin for origin, container in failed if container.names_error)
        unnamed = tuple(origin for origin, _ in failed)
        return named or unnamed or tuple(origin for origin, container in own.items() if container.has_exited)

    def text(self) -> str:
        """Return error and reason of the first container that failed by itself."""
        return self._containers[self.failed[0]].text()
