"""Message services: the check of their URLs, and sending. Apprise is loaded only where there is a URL.

A URL is a secret. It is in no message of this module, also not in a message of Apprise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from orchestrator.config.user import Address
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.masking import masked, masked_address
from orchestrator.results.message import Message

_INSTALL = "pip install 'repro-orchestrator[notify]', or in a checkout: pip install '.[notify]'"
_ROUNDS = 200_000
"""Rounds of the digest of a URL, so that a short password in it cannot be guessed from the ledger."""
_EXAMPLES = {"mailto": "mailto://user@example.org", "json": "json://host:port/path"}
_SHORTEST_PART = 4
"""Characters of a part of a URL that is masked in a message of Apprise."""


def require_services(addresses: Sequence[Address]) -> None:
    """Raise ReproError with all addresses that no message can be sent to, before anything else is done."""
    if not addresses:
        return
    if importlib.util.find_spec("apprise") is None:
        what = "messages need Apprise, which is not installed"
        raise ReproError(Problem(what, _location(addresses[0]), _INSTALL))
    problems = [problem for address in addresses if (problem := _problem(address)) is not None]
    if problems:
        raise ReproError(*problems)


def send(url: str, message: Message) -> str | None:
    """Send a message. Return why it was not sent, in one line without secrets; None if the service accepted it."""
    import apprise

    kind = apprise.NotifyType.FAILURE if message.failed else apprise.NotifyType.SUCCESS
    if not message.failed and not message.complete:
        kind = apprise.NotifyType.WARNING
    with _log_of_apprise() as lines:
        service = apprise.Apprise()
        try:
            is_sent = bool(service.add(url)) and bool(
                service.notify(
                    title=message.title, body=message.text, notify_type=kind, body_format=apprise.NotifyFormat.TEXT
                )
            )
        except Exception as error:  # a defect in the code of a service must not end a command that waits for jobs
            return f"Apprise has failed: {type(error).__name__}"
    if is_sent:
        return None
    printable = [line for line in lines if "://" not in line]  # Apprise masks only some parts of a URL
    return _without_secrets(printable[-1], url) if printable else "the service did not accept it"


def address_digest(url: str, salt: str) -> str:
    """Return a digest that identifies a URL in the ledger. It is slow to compute, against guesses of a password."""
    return hashlib.pbkdf2_hmac("sha256", url.encode(), salt.encode(), _ROUNDS, dklen=12).hex()


def _problem(address: Address) -> Problem | None:
    import apprise

    scheme, colon, _ = address.url.partition("://")
    if not colon:
        return Problem("not a URL", _location(address), f"for example {_EXAMPLES['mailto']}")
    with _log_of_apprise():
        service = apprise.Apprise.instantiate(address.url, suppress_exceptions=True)
    if service is not None:
        return None
    scheme, schemes, name = scheme.lower(), _schemes(), masked_address(address.url)
    if scheme in schemes:
        hint = f"for example {_EXAMPLES[scheme]}" if scheme in _EXAMPLES else "Apprise's pages have the form of its URL"
        return Problem(f"{name} is not a complete URL of this service", _location(address), hint)
    if scheme in ("http", "https"):
        hint = "use the service's own scheme, or json://HOST/PATH (jsons: with TLS) for a plain web hook"
        return Problem(f"{name} is no web hook of a known service", _location(address), hint)
    hint = did_you_mean(scheme, schemes) or "for example mailto://, slack://, ntfy:// or json://"
    return Problem(f"{name}: no message service has this scheme", _location(address), hint)


def _schemes() -> frozenset[str]:
    import apprise

    services = apprise.Apprise().details()["schemas"]
    names = (name for service in services for key in ("protocols", "secure_protocols") for name in service[key] or ())
    return frozenset(names)


def _location(address: Address) -> str:
    return f"{address.origin.rstrip(':')}:"


def _without_secrets(text: str, url: str) -> str:
    """Return the text in one line, without the parts of the URL that may be secret. A host name is not."""
    parts = {part for part in re.split(r"[/:@?&=]+", url.partition(":")[2]) if len(part) >= _SHORTEST_PART}
    host = re.match(r"[a-z]+://(?:[^/@]*@)?([^/:?]+)", url)
    return masked(" ".join(text.split()).rstrip("."), {url, *parts} - ({host[1]} if host and "." in host[1] else set()))


@contextmanager
def _log_of_apprise() -> Iterator[list[str]]:
    """Collect the warnings of Apprise, which would go to the terminal with parts of the URL."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, handler = logging.getLogger("apprise"), Collector(logging.WARNING)
    propagated = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
