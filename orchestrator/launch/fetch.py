"""Fetch of a program's code and data to the shared file system, on this machine and without a job.

A rendered script, `fetch.sh`, gets code and files. Data are made here: random tokens, or those of a text. Each item is
written under a temporary name in its folder, checked, and renamed. What exists is never changed. A repeated command
continues an interrupted one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from orchestrator.clusters.program import DATA_FILES, OFFLINE_HINT, FetchRecord, Item, stored_record
from orchestrator.errors import EXIT_UNREACHABLE, Problem, ReproError, Unreachable, require_none
from orchestrator.files import locked, written_whole
from orchestrator.identity import name_of_user
from orchestrator.launch.preflight import require_checkout
from orchestrator.programs.record import PublicFile, Repository, TokenData
from orchestrator.text import utc_stamp

_HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space, then repeat the command")
_UNWRITABLE = "name a folder that you can write to"


@dataclass(frozen=True, slots=True)
class Fetched:
    """An item that is in its place: fetched or made now, or there before."""

    item: Item
    how: Literal["fetched", "made", "there already"]


def render_fetch(items: Sequence[Item], templates: Path, again: str) -> str:
    """Return the script that fetches code and files; `again` is the command that checks them and makes data. Pure."""
    remote = [item for item in items if not isinstance(item.source.need, TokenData)]
    from orchestrator.launch.templates import templates_in  # not to list what programs need

    return templates_in(templates).render("fetch.sh.j2", items=remote, again=again, offline=OFFLINE_HINT)


def fetch_items(
    items: Sequence[Item],
    templates: Path,
    again: str,
    text: Text | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[Fetched]:
    """Fetch the items that are missing, check the others, and yield each one that is in its place.

    Data are random tokens, or those of the text. `notify` gets the output of the script. At the end, raise ReproError
    with the problem of each other item; Unreachable if all of these lack a connection.
    """
    errors: list[ReproError] = []
    missing: list[Item] = []
    for item in items:
        with _collected(errors, item):
            present = _present(item, text)
            if present is not None:
                yield present
            else:
                missing.append(item)
    remote = [item for item in missing if not isinstance(item.source.need, TokenData)]
    if remote:
        errors += _run(render_fetch(remote, templates, again), notify)
    for item in missing:
        with _collected(errors, item):
            if isinstance(item.source.need, TokenData):
                yield _made(item, item.source.need, items, text)
            elif _present(item, text) is not None:
                yield Fetched(item, "fetched")
    if errors:
        problems = dict.fromkeys(problem for error in errors for problem in error.problems)
        kind = Unreachable if all(isinstance(error, Unreachable) for error in errors) else ReproError
        raise kind(*problems)


@contextlib.contextmanager
def _collected(errors: list[ReproError], item: Item) -> Iterator[None]:
    """Add an error of the block to `errors`."""
    try:
        yield
    except ReproError as error:
        errors.append(error)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        path = error.filename2 or error.filename or item.path
        errors.append(ReproError(Problem(what, f"{path}:", _HINTS.get(error.errno or 0, _UNWRITABLE))))


def _run(script: str, notify: Callable[[str], None]) -> list[ReproError]:
    """Run the script. Return an error with its lines on stderr, if it fails."""
    command = [shutil.which("bash") or "/bin/bash", "-c", script, "fetch.sh"]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as faults,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=faults, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            notify(line.rstrip("\n"))
        code = process.wait()
        faults.seek(0)
        lines = [line.rstrip("\n").partition(". Hint: ") for line in faults]
    if code == 0:
        return []
    problems = [Problem(what, hint=hint or None) for what, _, hint in lines]
    kind = Unreachable if code == EXIT_UNREACHABLE else ReproError
    return [kind(*(problems or [Problem(f"fetch.sh ended with exit code {code}")]))]


def item_state(item: Item) -> str:
    """Return "there", "missing", or what is wrong. Reads no content of files, and needs no network."""
    if not any(os.path.lexists(file) for file in item.files) or (item.path.is_dir() and not any(item.path.iterdir())):
        return "missing"
    missing = [file.name for file in item.files if not file.exists()]
    if missing:
        return f"{' and '.join(missing)} missing"
    need = item.source.need
    if isinstance(need, Repository):
        try:
            require_checkout(item.path, item.source.address, item.source.commit or "")
        except ReproError as error:
            return error.problems[0].what
    elif isinstance(need, PublicFile) and item.path.stat().st_size != need.bytes:
        return f"{item.path.stat().st_size:,} bytes, must be {need.bytes:,}"
    return "there"


def _made(item: Item, need: TokenData, items: Sequence[Item], text: Text | None) -> Fetched:
    with locked(item.path):
        present = _present(item, text)  # another command may have made it in the meantime
        if present is None:
            _write_record(item, None, _make_data(item, need, items, text), text.source if text else None)
        return present or Fetched(item, "made")


def _present(item: Item, text: Text | None) -> Fetched | None:
    """Check an item that exists; None if it does not exist. ReproError if it is something else."""
    source, need = item.source, item.source.need
    commit, sha256 = None, dict[str, str]()
    if not all(file.exists() for file in item.files) or (item.path.is_dir() and not any(item.path.iterdir())):
        return None
    known = stored_record(FetchRecord, item.record_file)
    if isinstance(need, Repository):
        assert source.commit is not None
        commit = require_checkout(item.path, source.address, source.commit)
    elif isinstance(need, PublicFile):
        location, sha256 = f"{item.path}:", {item.path.name: need.sha256}
        if not item.path.is_file():
            raise ReproError(Problem("exists, and is not a file", location, "move it away, or name another path"))
        if (digest := _digest(item.path)) != need.sha256:
            what = f"exists with other content: its checksum is {digest}, and must be {need.sha256}"
            raise ReproError(Problem(what, location, "move it away, then repeat the command"))
    else:
        index = item.files[-1]
        with index.open("rb") as file:
            if file.read(len(HEADER)) != HEADER:
                what = "exists, and is not the index of a data set of Megatron-LM"
                raise ReproError(Problem(what, f"{index}:", "move both files away, then repeat the command"))
        if text is not None and (known is None or known.source != text.source):
            what = "exists already, so --text would not be used"
            raise ReproError(Problem(what, f"{item.files[0]}:", "move both files away, or leave --text out"))
        return Fetched(item, "there already")
    is_recorded = known is not None and (known.commit, known.sha256) == (commit, sha256)
    if not is_recorded and os.access(item.path.parent, os.W_OK):
        _write_record(item, commit, sha256)
    return Fetched(item, "there already")


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _make_data(item: Item, need: TokenData, items: Sequence[Item], text: Text | None) -> dict[str, str]:
    """Write a data set of random tokens or of the text; return the checksum of each file by name.

    One of the files can exist, if the command was interrupted. ReproError if random tokens need other content there.
    """
    for file in item.files if text is not None else ():
        if file.exists():
            what = "exists, and the other file of the data set is missing"
            raise ReproError(Problem(what, f"{file}:", "move it away"))
    part = item.path.with_name(f".{item.path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        made = tokenize_text(text, items, part) if text is not None else write_random_tokens(need.vocabulary, part)
        digests = {file.name: _digest(written) for file, written in zip(item.files, made, strict=True)}
        for file, other in zip(item.files, reversed(item.files), strict=True):
            if file.exists() and _digest(file) != digests[file.name]:
                what = f"exists without {other.name}"
                raise ReproError(Problem(what, f"{file}:", "add that file, or move this one away"))
        for file, written in zip(item.files, made, strict=True):
            written.replace(file)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return digests


def _write_record(item: Item, commit: str | None, sha256: dict[str, str], source: str | None = None) -> None:
    record = {
        "source": source or item.source.address,
        "commit": commit,
        "sha256": sha256,
        "fetched": utc_stamp(datetime.now(timezone.utc).replace(tzinfo=None)),
        "user": name_of_user(os.getuid()),
    }
    with written_whole(item.record_file) as part:
        part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


# ---- data set of a text, by the tool of the program ------------------------------------------------------------

TOOL = "tools/preprocess_data.py"
_NEEDED = ("checkout", "vocab_file", "merge_file")


@dataclass(frozen=True, slots=True)
class Text:
    """Text to tokenize, a file with a JSON object with the key `text` in each line.

    `python` is a Python that has the program's packages (torch, numpy, six, nltk).
    """

    file: Path
    python: str

    @property
    def source(self) -> str:
        """Return the origin of the data for their record."""
        return f"{self.file}, by {TOOL}"


def require_usable_text(text: Text, program: str, items: Sequence[Item]) -> None:
    """Raise ReproError if there is no such text or Python, or if the program has no vocabulary for text."""
    problems = []
    if not text.file.is_file():
        problems.append(Problem("no such file", f"--text {text.file}:"))
    if shutil.which(text.python) is None:
        problems.append(Problem("no such program", f"--python {text.python}:", "name a Python that has torch"))
    fields = {item.source.need.field for item in items}
    if not {*_NEEDED, "data_path"} <= fields:
        hint = "leave it out, or make the data by hand: fetch accepts existing data"
        problems.append(Problem(f"{program} cannot use a text as its data here", "--text:", hint))
    require_none(problems)


def tokenize_text(text: Text, items: Sequence[Item], part: Path) -> tuple[Path, ...]:
    """Run the tool; return the two files that it has written into the folder `part`.

    ReproError if the checkout or the vocabulary is missing, or if the tool fails.
    """
    paths = {item.source.need.field: item.path for item in items}
    missing = [field for field in _NEEDED if not paths[field].exists()]
    if missing:
        raise ReproError(Problem(f"{TOOL} needs {' and '.join(missing)}", f"{text.file}:", "repeat the command"))
    checkout = paths["checkout"]
    command = [text.python, str(checkout / TOOL), "--input", str(text.file), "--output-prefix", str(part / "data")]
    command += ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(paths["vocab_file"])]
    command += ["--merge-file", str(paths["merge_file"]), "--append-eod", "--workers", "1"]
    # The tool looks for the program last, behind an installed megatron-core.
    search = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    made = tuple(part / f"data_text_document{ending}" for ending in DATA_FILES)
    if done.returncode != 0 or not all(file.is_file() for file in made):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        what = f"{TOOL} failed: {lines[-1] if lines else f'exit code {done.returncode}'}"
        hint = f"--python names a Python with the program's packages; the command was: {shlex.join(command)}"
        raise ReproError(Problem(what, f"{text.file}:", hint))
    return made


# ---- data set of random tokens: PREFIX.bin and PREFIX.idx ------------------------------------------------------
#
# The format is version 1 of Megatron-LM's indexed data set (megatron/data/indexed_dataset.py, now
# megatron/core/datasets/indexed_dataset.py). PREFIX.bin has the tokens of all documents. PREFIX.idx has their lengths,
# their positions in bytes, and the number of each document's first sequence.

DOCUMENTS = 1000
"""Documents of random data: the least number of which the smallest part of SC21's --split 969,30,1 is a document."""

DOCUMENT_TOKENS = 16_385
"""A sample of 16,384 tokens and its last label. With one token fewer, the only document of the
smallest part has no whole sample of the tutorials' longest sequence, and Megatron-LM stops."""

_SEED = 1234
_UINT16, _UINT16_BYTES = 8, 2
"""Code and size of the tokens' type. Megatron-LM uses it for vocabularies of fewer than 65,500 entries."""

HEADER = b"MMIDIDX\x00\x00"


def write_random_tokens(vocabulary: int, folder: Path) -> tuple[Path, ...]:
    """Write 1,000 documents of 16,385 random tokens below `vocabulary`: 33 MB, the same bytes on each machine.

    All documents have the same tokens, each in another rotation. Return the two files, which are new in the folder.
    """
    data, index = made = tuple(folder / f"data{ending}" for ending in DATA_FILES)
    generator = random.Random(_SEED)
    # random() has the same sequence in all versions of Python; randrange() need not.
    tokens = [int(generator.random() * vocabulary) for _ in range(DOCUMENT_TOKENS)]
    document = _little_endian(array("H", tokens))
    with data.open("wb") as file:
        for i in range(DOCUMENTS):
            start = _UINT16_BYTES * (i * 16 % DOCUMENT_TOKENS)
            file.write(document[start:] + document[:start])
    starts = range(0, DOCUMENTS * DOCUMENT_TOKENS * _UINT16_BYTES, DOCUMENT_TOKENS * _UINT16_BYTES)
    # One sequence in each document.
    head = HEADER + struct.pack("<QBQQ", 1, _UINT16, DOCUMENTS, DOCUMENTS + 1)
    columns = array("i", [DOCUMENT_TOKENS] * DOCUMENTS), array("q", starts), array("q", range(DOCUMENTS + 1))
    index.write_bytes(head + b"".join(map(_little_endian, columns)))
    return made


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
