"""Message of a command that waits: one, when it ends. Apprise sends it, and is loaded only if there is a URL.

A URL is a secret. No error and no line of this module has more of it than its scheme.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.output import message
from orchestrator.errors import Problem, ReproError, require_none
from orchestrator.masking import ADDRESS_OPTION, masked, masked_address
from orchestrator.text import printable_line

if TYPE_CHECKING:
    from orchestrator import api
    from orchestrator.config.user import Address

MOST_FAILURES = 10
"""Failed jobs that a message names."""
_INSTALL = "pip install 'repro-orchestrator[notify]', or in a checkout: pip install '.[notify]'"
_EXAMPLES = "Apprise has the URL of each service: mailto://user@example.org, json://host:port/path, ..."
_SHORTEST_PART = 4
"""Characters of a part of a URL that is masked in a message of Apprise."""


def message_addresses(urls: Sequence[str] | None, *, waits: bool = True) -> tuple[Address, ...]:
    """Return the addresses of `--notify`, else those of REPRO_NOTIFY or of the user's configuration.

    ReproError if no message can be sent to one of them, or for `--notify` of a command that does not wait.
    """
    if not waits:
        if urls:
            what = f"{ADDRESS_OPTION}: only a command that waits sends a message"
            raise ReproError(Problem(what, hint="add --wait, or set slurm.mail_type in the profile: Slurm sends mail"))
        return ()
    from orchestrator.config.user import Address, user_defaults

    addresses = user_defaults().notify if urls is None else tuple(Address(url, ADDRESS_OPTION) for url in urls)
    if addresses and importlib.util.find_spec("apprise") is None:
        what = "messages need Apprise, which is not installed"
        raise ReproError(Problem(what, _location(addresses[0]), _INSTALL))
    require_none(
        Problem(f"{masked_address(address.url)} is not the URL of a message service", _location(address), _EXAMPLES)
        for address in addresses
        if not _is_of_service(address.url)
    )
    return addresses


@contextmanager
def message_of_error(addresses: Sequence[Address], command: str) -> Iterator[None]:
    """Send a message if an error ends the block; Ctrl-C sends none."""
    try:
        yield
    except Exception as error:
        why = str(error.problems[0]) if isinstance(error, ReproError) else type(error).__name__
        send_message(addresses, [f"{command} ended with an error: {masked(why)}"], failed=True)
        raise


def send_message(
    addresses: Sequence[Address], summaries: Sequence[str], failures: Sequence[api.JobRow] = (), *, failed: bool
) -> None:
    """Send the summaries and the reasons of failed jobs; print for each address whether the message was sent."""
    more = len(failures) - MOST_FAILURES
    lines = [*summaries, *(f"failed: {row.label} ({row.failure}): {row.verdict_reason}" for row in failures)]
    lines = [*lines[: len(summaries) + MOST_FAILURES], *([f"and {more} more"] if more > 0 else [])]
    title = summaries[0] + (f" and {len(summaries) - 1} more" if len(summaries) > 1 else "")
    for address in addresses:
        error = _sent(address.url, printable_line(title), "\n".join(map(printable_line, lines)), failed)
        name = masked_address(address.url)
        message(f"message sent to {name}" if error is None else f"warning: no message to {name} ({error})")


def _sent(url: str, title: str, text: str, failed: bool) -> str | None:
    """Return why a message was not sent, in one line without secrets; None if the service accepted it."""
    import apprise

    kind = apprise.NotifyType.FAILURE if failed else apprise.NotifyType.SUCCESS
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
        try:
            service = apprise.Apprise()
            service.add(url)
            is_sent = service.notify(text, title, kind, body_format=apprise.NotifyFormat.TEXT)
        except Exception as error:  # a defect in the code of a service must not end a command that waits for jobs
            return f"Apprise has failed: {type(error).__name__}"
        lines = [line for line in log.getvalue().splitlines() if "://" not in line]  # Apprise masks only some parts
    if is_sent:
        return None
    parts = {part for part in re.split(r"[/:@?&=]+", url.partition(":")[2]) if len(part) >= _SHORTEST_PART}
    return masked(lines[-1].rstrip("."), parts) if lines else "the service did not accept it"


def _is_of_service(url: str) -> bool:
    import apprise

    # Its warnings have parts of the URL.
    with apprise.LogCapture(level=logging.CRITICAL):  # type: ignore[no-untyped-call]
        return apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None


def _location(address: Address) -> str:
    return f"{address.origin.rstrip(':')}:"
