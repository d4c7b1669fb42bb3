"""Verification of a bundle: checksums, and the numbers and verdicts that its own logs give. It needs the file only."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from orchestrator import __version__
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Field
from orchestrator.files import single_name
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import MEASURED
from orchestrator.results.bundle.archive import changed_files, path_within, text_of, unpacked
from orchestrator.results.bundle.attempt_check import differences_of, first_of, missing_attempts, read_logs, shown
from orchestrator.results.bundle.extract import (
    Extract,
    memory_ledger,
    read_entry,
    read_extract,
    read_rows,
)
from orchestrator.results.bundle.write import ABOUT, FORMAT, README, REPORT, SCRIPT, code_sha256, readme
from orchestrator.results.cases import words_of
from orchestrator.results.claims import JUDGING_RULES
from orchestrator.results.export.formats import pieces
from orchestrator.results.export.rows import Row, case_columns, claim_rows, export_rows
from orchestrator.results.outcome import judge_stored, needs_losses
from orchestrator.results.plot.figure import matplotlib_version
from orchestrator.results.report.page import report, without_picture
from orchestrator.text import counted

NOTHING_VERIFIED = "no case is verified: the bundle proves no measurement"
BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of values of the wrong type in a file of the bundle."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check: what was compared, and one line per difference.

    `unchecked` are the parts for which there was nothing to compare with. `notes` are facts for the reader that
    are no differences.
    """

    name: str
    what: str
    differences: tuple[str, ...]
    unchecked: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Return whether everything was compared."""
        return self.unchecked is None


@dataclass(frozen=True, slots=True)
class BundleCheckRow:
    """A check of a bundle as a row. `proven` is false if there was nothing to compare with."""

    check: Annotated[str, Field(of="name")]
    what: str
    proven: Annotated[bool, Field(of="is_proven")]
    differences: Sequence[str]
    notes: Sequence[str]


def check_of_pages(
    stored: Mapping[str, str], rendered: Mapping[str, str], *, same_code: bool, drawn_with: str | None
) -> Check:
    """Compare the pages of a bundle with those that its rows give.

    Another version of repro may render other pages. Another matplotlib (`drawn_with` is its version, None if it is
    unknown or was not installed) draws another picture, and none draws none.
    """
    pages = " and ".join(rendered)
    differing = [path for path in rendered if stored[path] != rendered[path]]
    unlike = [path for path in differing if without_picture(stored[path]) != without_picture(rendered[path])]
    here = matplotlib_version()
    if differing and not unlike and (here is None or here != drawn_with):
        why = f"matplotlib {drawn_with or 'of unknown version'} drew it" if here else "matplotlib is not installed"
        what = f"{pages} rendered again: no difference; the picture is not compared, because {why}"
        return Check("pages", what, (), unchecked=f"the picture of {' and '.join(differing)}")
    if differing and not same_code:
        what = f"{' and '.join(differing)} not compared: another version of repro made the bundle"
        return Check("pages", what, (), unchecked=pages)
    differences = tuple(f"{path}: differs from what the ledger in the bundle gives" for path in differing)
    return Check("pages", f"{pages} rendered again", differences)


@dataclass(frozen=True, slots=True)
class About:
    """Content of bundle.json.

    `missing` are paths that should be in the bundle, with the reasons. `code_sha256` is the digest of the code that
    made the bundle, and `matplotlib` the version that drew its picture; None if it is unknown. `judging_rules` is
    the version of the rules by which its claims were judged. `left_out` are the values of `--without`; None in older
    bundles, which may lack attempts.
    """

    made_by: str
    experiment: str
    scale: str
    programs: tuple[str, ...]
    missing: Mapping[str, str]
    code_sha256: str | None = None
    matplotlib: str | None = None
    judging_rules: int = 1
    left_out: tuple[str, ...] | None = None


def rederive(folder: Path, about: About, templates: Path) -> Iterator[Check]:
    """Yield the checks of the numbers, the results and the pages; ReproError if the files do not fit together."""
    try:
        extract = read_extract(folder)
        entry = read_entry(folder, about.experiment)
        left_out = {word.partition("=")[0] for word in about.left_out or ()}
        derived = read_logs(folder, extract, about.missing, left_out, keeps_iterations=needs_losses(entry))
        gaps = () if about.left_out is None else missing_attempts(extract)
        yield Check("numbers", derived.what, (*derived.differences, *gaps))
        yield _check_results(folder, about, entry, derived.ledger)
        yield _check_pages(folder, about, entry, extract, templates)
    except (*BROKEN, OSError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ReproError(Problem(f"do not belong together ({reason})", "ledger, experiment and results:")) from None


def _check_results(folder: Path, about: About, entry: Entry, ledger: Ledger) -> Check:
    """Judge cases and claims from the derived numbers, and compare them with results/."""
    outcome = judge_stored(ledger, entry, about.scale, about.left_out or ())
    stored = json.loads(text_of(folder, "results/results.json"))
    names = {column["name"] for column in stored["columns"]}  # an older bundle has fewer
    rows = export_rows(entry, outcome.results, ledger)
    cases = [{name: value for name, value in row.items() if name in names} for row in rows]
    claims, same_rules = claim_rows(outcome.claims), about.judging_rules == JUDGING_RULES
    differences = [
        *_row_differences("case", stored["cases"], cases),
        *_row_differences("claim", stored["claims"], claims, () if same_rules else ("claim", "says", "source")),
    ]
    if sorted(about.programs) != outcome.programs:
        differences.append(f"bundle.json: programs are {', '.join(about.programs)}, not {', '.join(outcome.programs)}")
    columns = [column for column in case_columns(entry) if column.name in names]
    if text_of(folder, "results/cases.csv") != b"".join(pieces("csv", columns, {"cases": stored["cases"]})).decode():
        differences.append("results/cases.csv: rows differ from results/results.json")
    what = f"{counted(len(cases), 'case')} and {counted(len(claims), 'claim')} judged again"
    changed = [] if same_rules else _changed_verdicts(stored["claims"], claims)
    notes = [] if same_rules else [_of_rules(about.judging_rules, len(changed)), *changed]
    notes += [f"left out: {attempt}" for attempt in outcome.left_out]
    if not any(row["verdict"] in MEASURED for row in cases):
        notes.append(NOTHING_VERIFIED)
    unchecked = "verdicts of claims that other rules judged" if changed else None
    return Check("results", what, tuple(differences), unchecked, tuple(notes))


def _of_rules(rules: int, changed: int) -> str:
    what = f"{counted(changed, 'verdict')} changed with the rules" if changed else "all verdicts are the same"
    return f"rules {rules} judged the claims in the bundle, rules {JUDGING_RULES} judge them here: {what}"


def _changed_verdicts(stored: Sequence[Row], derived: Sequence[Row]) -> list[str]:
    """Return the claims whose verdicts in the bundle differ from those of these rules."""
    before = {row["claim"]: row["verdict"] for row in stored}
    return [
        f"claim {row['claim']}: {shown(before.get(row['claim']))} -> {row['verdict']}"
        for row in derived
        if before.get(row["claim"]) != row["verdict"]
    ]


def _check_pages(folder: Path, about: About, entry: Entry, extract: Extract, templates: Path) -> Check:
    """Render report and README from the bundle's rows, which the other checks compare with its logs."""

    def text(path: str) -> str | None:
        file = folder / path_within(path)
        is_lost = path.endswith(f"/{SCRIPT}") and not file.is_file()
        return None if is_lost else file.read_bytes().decode("utf-8", "replace")

    iterations = read_rows(folder, "iterations") if needs_losses(entry) else ()
    ledger = memory_ledger(extract, iterations, Path(), text)
    outcome = judge_stored(ledger, entry, about.scale, about.left_out or ())
    rendered = {
        REPORT: report(ledger, [outcome], templates),
        README: readme(outcome, extract, about.missing, templates),
    }
    stored = {path: (folder / path).read_bytes().decode(errors="surrogateescape") for path in rendered}
    return check_of_pages(
        stored, rendered, same_code=about.code_sha256 == code_sha256(templates), drawn_with=about.matplotlib
    )


def _row_differences(
    key: str, stored: Sequence[Row], derived: Sequence[Row], only: Collection[str] = ()
) -> Iterator[str]:
    """Yield the differences of two tables; with `only`, of these columns."""
    before, after = (
        {
            row[key]: {name: row[name] for name in row if (name in only if only else name not in _MASKED_WITH_LOG)}
            for row in rows
        }
        for rows in (stored, derived)
    )
    if list(before) != list(after) or len(before) != len(stored):
        yield f"results/results.json: other {key}s than its logs give"
    for name in (name for name in after if name in before):
        location, rows_of_name = f"results/results.json: {key} {name}", ({"": before[name]}, {"": after[name]})
        yield from first_of(list(differences_of(location, *rows_of_name, "{}, and {} by its logs")), location)


_MASKED_WITH_LOG = ("verdict_reason", "deciding_line", "deciding_rank")
"""Columns with text of a log line. The line alone may be masked differently from the same line in the whole log."""


@dataclass(frozen=True, slots=True)
class Verified:
    """All checks, and the version of repro that made the bundle."""

    made_by: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Return whether no check found a difference."""
        return not any(check.differences for check in self.checks)

    @property
    def proven(self) -> str:
        """Return what follows from the logs if no check found a difference: `numbers, claims, report and README`."""
        parts = {"numbers": ["numbers"], "results": ["claims"], "pages": ["report", "README"]}
        *others, last = [part for check in self.checks if check.is_proven for part in parts.get(check.name, ())]
        return f"{', '.join(others)} and {last}" if others else last


def verify(file: Path, templates: Path) -> Verified:
    """Return every check of a bundle; ReproError if the file is not a bundle. `templates` are those of the report."""
    with unpacked(file) as (folder, paths):
        about = _about(file, folder)
        checks = [Check("files", f"{len(paths)} of them", tuple(changed_files(folder, paths)))]
        try:
            checks += rederive(folder, about, templates)
        except ReproError as error:
            texts = (str(problem).replace(f"{folder.resolve()}/", "") for problem in error.problems)
            problems = tuple(text.replace(f"{folder}/", "") for text in texts)
            checks.append(Check("contents", "not read to their end", problems))
        return Verified(about.made_by, tuple(checks))


class _OtherFormat(ReproError):
    """Error for a bundle of another format."""


def _about(file: Path, folder: Path) -> About:
    """Return the content of bundle.json; names that become parts of paths are checked."""
    try:
        about = json.loads(text_of(folder, ABOUT))
        made_by = str(about["repro"])[:20]
        if about["format"] != FORMAT:
            what = f"its format differs: repro {made_by} made it, and this is repro {__version__}"
            raise _OtherFormat(Problem(what, f"{file}:", "verify it with that version"))
        paper, _, name = about["experiment"].partition("/")
        return About(
            made_by=made_by,
            experiment=f"{single_name(paper)}/{single_name(name)}",
            scale=about["scale"],
            programs=tuple(about["programs"]),
            missing={str(item["path"]): str(item["why"]) for item in about["missing"]},
            code_sha256=about.get("code_sha256"),
            matplotlib=about.get("matplotlib"),
            judging_rules=int(about.get("judging_rules", 1)),
            left_out=tuple(words_of(about["left_out"])) if "left_out" in about else None,
        )
    except _OtherFormat:
        raise
    except (*BROKEN, OSError, ReproError):
        raise ReproError(Problem(f"not a bundle: it has no readable {ABOUT}", f"{file}:")) from None
