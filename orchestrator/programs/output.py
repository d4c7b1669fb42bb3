"""Output of a program: patterns of its lines, its fields, and the reader of an output.

The reader takes one line after the other and keeps only values, so that a log of any size needs little memory.
A pattern is a regular expression with `{name}` for a number. Its search stops if a line takes too long, because a
bundle of another user contains patterns, too.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import regex
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.config.model import Strict, Text, optional, required
from orchestrator.text import ESCAPE_SEQUENCE

LONGEST_LINE = 10_000
"""Characters of a line that patterns see."""

SLOWEST_S = 1.0
"""Time in seconds after which the search of a line is stopped."""

_SLOW_S, _MOST_SLOW_S = 0.02, 30.0
"""Time in seconds of the search of a slow line, and of all slow lines together."""

_CAPTURE = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
_NUMBER = (
    r"(?<![\d.])(?P<{name}>[-+]?(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf))"
    r"(?!\d|\.\d|,\d{{3}})"
)


@dataclass(frozen=True)
class Pattern:
    """Pattern of a line. `names` are its captures; each line that matches contains `literal`."""

    text: str
    names: tuple[str, ...]
    literal: str
    _compiled: regex.Pattern[str]

    def find(self, line: str) -> dict[str, float] | None:
        """Return the numbers of the first match in a line; None without a match. TimeoutError after `SLOWEST_S`."""
        match = self._compiled.search(line, timeout=SLOWEST_S)
        return None if match is None else {name: number(match[name]) for name in self.names}


class PatternSearch:
    """Search of a pattern in the lines of an output. It stops for good at a line that takes too long: `problem`."""

    def __init__(self, name: str, pattern: Pattern) -> None:
        self.name, self.pattern = name, pattern
        self.problem: str | None = None
        self.stopped_at = 0
        self._slow_s = 0.0

    def find(self, line: int, text: str) -> dict[str, float] | None:
        """Return the numbers of the first match in a line; None without a match."""
        if self.problem is not None or self.pattern.literal not in text:
            return None
        begin = time.perf_counter()
        try:
            numbers = self.pattern.find(text)
        except TimeoutError:
            self.problem = f"{self.name}: took more than {SLOWEST_S:g} s for line {line}, and was stopped"
            self.stopped_at = line
            return None
        if (took_s := time.perf_counter() - begin) > _SLOW_S:
            self._slow_s += took_s
            if self._slow_s > _MOST_SLOW_S:
                self.problem = f"{self.name}: took more than {_MOST_SLOW_S:g} s for slow lines, and was stopped"
        return numbers


def pattern_of(text: str, *, of_numbers: bool = True) -> Pattern:
    """Compile a pattern. ValueError if it is not a regular expression, or has a capture twice or none.

    Without `of_numbers` it is a plain regular expression.
    """
    names = _CAPTURE.findall(text) if of_numbers else []
    if of_numbers and not names:
        raise ValueError("has no {name} for the number to read")
    if len(set(names)) != len(names):
        raise ValueError("has a name twice")
    try:
        whole = _CAPTURE.sub(lambda match: _NUMBER.format(name=match[1]), text) if of_numbers else text
        compiled = regex.compile(whole)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return Pattern(text, tuple(names), _literal(_CAPTURE.sub("$", text) if of_numbers else text), compiled)


def _literal(text: str) -> str:
    """Return the longest text that each match of a regular expression contains; none if groups or choices decide."""
    if re.search(r"[(|\[]|\\(?![dDwWsSbB\W])", text):
        return ""
    required = re.sub(r"(?:\\.|[^\\])(?:[*?]|\{[^}]*\}?)", "$", text, flags=re.DOTALL)
    return max(re.split(r"\\.|[.^$+*?{}\\]", required, flags=re.DOTALL), key=len)


def number(text: str) -> float:
    """Return the number that a program printed, as 12, 1,234.5, .5, 2e-5 or nan. ValueError for other text."""
    plain = text.replace(",", "")
    if "_" in plain or plain.strip() != plain:
        raise ValueError(f"not a number: {text!r}")
    return float(plain)


def line_text(raw: bytes) -> str:
    """Return a line as patterns see it: without colours, shortened, and the last state of a progress bar."""
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    text = text[:LONGEST_LINE]
    return ESCAPE_SEQUENCE.sub("", text) if "\x1b" in text else text


def nearest_line(text: str, lines: Iterable[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the line, with its number, that has most in common with the words of a pattern; None without a word."""
    words = set(re.findall(r"[A-Za-z]{3,}", _CAPTURE.sub(" ", text)))
    best, most = None, 0.0
    for place, line in lines:
        common = len(words & set(re.findall(r"[A-Za-z]{3,}", line))) / max(len(words), 1)
        score = common + difflib.SequenceMatcher(None, text, line[:200], autojunk=False).quick_ratio() / 100
        if common and score > most:
            best, most = (place, line), score
    return best


Scalar: TypeAlias = "float | str"

_LINES_KEPT, _CHARACTERS_KEPT = 2000, 500
"""Last lines among which the nearest to a pattern is searched, and the characters that are kept of each."""
_PART_OF_PATH = re.compile(r'(?:^|\.)(?:"([^"]*)"|([^.]*))')
_MOST_ROWS = 100_000
"""Rows, and iterations, of an output. What is beyond is a problem."""
_MOST_PROBLEMS = 100
_LARGEST_DOCUMENT = 1 << 26
"""Characters of an output that is one document, JSON or CSV."""


def _checked_pattern(text: str) -> str:
    pattern_of(text)
    return text


def _names(names: list[str]) -> list[str]:
    for name in names:
        if not name.isidentifier():
            raise ValueError(f"{name}: a name has letters, digits and _")
    if len(set(names)) != len(names):
        raise ValueError("has a name twice")
    return names


def _file_name(name: str) -> str:
    if "/" in name or name in (".", ".."):
        raise ValueError("must be the name of a file in the job's folder")
    return name


def _json_path(path: str) -> str:
    if path.count('"') % 2:
        raise ValueError("has a quote that is not closed")
    return path


PatternText = Annotated[Text, AfterValidator(_checked_pattern)]
Names = Annotated[
    list[str],
    BeforeValidator(
        lambda value: value.split() if isinstance(value, str) else value, json_schema_input_type=str | list[str]
    ),
    AfterValidator(_names),
    Field(min_length=1),
]
"""Names as one text, `a b c`, or as a list."""


def _fault(message: str, *field: str) -> PydanticCustomError:
    """Return a problem of a part of the model."""
    return PydanticCustomError("output", message, {"field": field})


class RowFields(Strict):
    """Table that the program prints. A line is a row if it has as many words as there are columns, and numbers."""

    columns: Names = required("Names of the columns, in their order.", "size time_us busbw wrong")
    key: Names = required("Columns that name a row. They are axes of the figure.", "size")
    text: Names | None = optional(
        "Columns that contain text. All other columns that something names have numbers.", "type redop"
    )

    @model_validator(mode="after")
    def _key_is_a_column(self) -> RowFields:
        for place, names in (("key", self.key), ("text", self.text or ())):
            for name in names:
                if name not in self.columns:
                    raise _fault(f"{name} is not a column; there are: {', '.join(self.columns)}", place)
        return self


class OutputFields(Strict):
    """Numbers in the output of a program. What is declared must be found, or the job is not verified."""

    rows: RowFields | None = optional("Table with one case for each row.")
    values: dict[Text, PatternText] = optional(
        "Numbers that the output has once: a pattern with `{number}` for each.",
        {"out_of_bounds": "Out of bounds values *: *{number}"},
        default={},
    )
    iterations: PatternText | None = optional(
        "Pattern of the line of an iteration: `{iteration}` is its number, other names are metrics.",
        "step={iteration} loss={loss}",
    )
    json_: dict[Text, Annotated[Text, AfterValidator(_json_path)]] = Field(
        default={},
        alias="json",
        description="Values of an output that is one JSON document: the path of each. "
        "A key that contains a dot has quotes.",
        examples=[{"read_bw": "jobs.0.read.bw_bytes", "p99_ns": 'jobs.0.read.clat_ns.percentile."99.000000"'}],
    )
    csv_: Names | None = Field(
        default=None,
        alias="csv",
        description="The output is CSV with a header: the columns that name a row.",
        examples=["size"],
    )
    reader: Text | None = optional(
        "Reader of an installed package, in place of all other keys. It also decides whether the output is verified.",
        "hpl-log",
    )
    file: Annotated[Text, AfterValidator(_file_name)] | None = optional(
        "File of the job's folder that has the output. Without it: stdout.", "result.json"
    )
    example: Text | None = optional("File beside this one with an output of the program.", "outputs/all_reduce.txt")

    @model_validator(mode="after")
    def _names_are_unique(self) -> OutputFields:
        for name, text in self.values.items():
            if pattern_of(text).names != ("number",):
                raise _fault("the pattern must have one {number}, and no other name", "values", name)
        if self.iterations is not None and "iteration" not in pattern_of(self.iterations).names:
            raise _fault("the pattern must have {iteration}", "iterations")
        if (self.json_ or self.csv_) and (self.rows or self.values or self.iterations):
            raise ValueError("json and csv are the whole output: remove rows, values and iterations")
        if self.reader is not None and self.model_fields_set != {"reader"}:
            raise ValueError("reader reads the whole output: remove the other keys")
        twice = [name for name in self.single_values if name in self.of_rows | self.of_iterations]
        if twice:
            raise _fault("a column or an iteration has this name, too", "json" if self.json_ else "values", twice[0])
        return self

    @property
    def single_values(self) -> tuple[str, ...]:
        """Names of the numbers that an output has once."""
        return (*self.values, *self.json_)

    @property
    def of_rows(self) -> set[str]:
        """Names of the columns; a CSV file has any."""
        return set(self.rows.columns) if self.rows is not None else set()

    @property
    def of_iterations(self) -> set[str]:
        """Metrics of an iteration."""
        return set(pattern_of(self.iterations).names) - {"iteration"} if self.iterations is not None else set()

    @property
    def names(self) -> set[str]:
        """Names of all numbers, of a form that declares them."""
        return {*self.single_values, *self.of_rows, *self.of_iterations}

    @property
    def key(self) -> tuple[str, ...]:
        """Axes that name a row of the output; none if the job is one case."""
        return tuple(self.rows.key if self.rows is not None else self.csv_ or ())


@dataclass(frozen=True)
class OutputValue:
    """A number of the output, or a text, and the line that has it."""

    value: Scalar
    line: int


ProblemKind = Literal["wrong", "missing", "iterations"]


@dataclass(frozen=True, slots=True)
class OutputProblem:
    """A problem of an output. `line` is the first line that it is about, 0 if there is none.

    `kind`: something is `wrong`; a number or a row is `missing`; or there are too few `iterations`.
    """

    text: str
    line: int = 0
    kind: ProblemKind = "missing"


@dataclass
class ProgramOutput:
    """Values of an output: `rows` by key, `iterations` by number. `problems` are those of the output itself."""

    values: dict[str, OutputValue] = field(default_factory=dict)
    rows: dict[tuple[Scalar, ...], dict[str, OutputValue]] = field(default_factory=dict)
    iterations: dict[int, dict[str, OutputValue]] = field(default_factory=dict)
    problems: list[OutputProblem] = field(default_factory=list)


class OutputReader:
    """Reader of one output. `numbers` are the columns of rows that must have numbers."""

    def __init__(self, fields: OutputFields, numbers: Iterable[str]) -> None:
        self.fields = fields
        self.found = ProgramOutput()
        self._numbers = {*numbers, *fields.key}
        self._is_document = bool(fields.json_ or fields.csv_)
        self._values = {
            name: PatternSearch(f"output.values.{name}", pattern_of(text)) for name, text in fields.values.items()
        }
        self._iteration = _search_of_iterations(fields)
        self._last: deque[tuple[int, str]] = deque(maxlen=_LINES_KEPT)
        self._matches: dict[str, list[int]] = {name: [] for name in self._values}
        self._whole: list[str] = []
        self._characters = 0
        self._too_long = 0

    def feed(self, line: int, text: str) -> None:
        """Read a line, as `line_text` returns it. Lines are counted from 1."""
        if self._is_document:
            self._characters += len(text) + 1
            if self._characters <= _LARGEST_DOCUMENT:
                self._whole.append(text)
            return
        self._too_long = self._too_long or (line if len(text) >= LONGEST_LINE else 0)
        self._last.append((line, text[:_CHARACTERS_KEPT]))
        if self.fields.rows is not None:
            self._feed_row(self.fields.rows, line, text)
        for name, search in self._values.items():
            if (numbers := search.find(line, text)) is not None:
                self.found.values.setdefault(name, OutputValue(numbers["number"], line))
                self._matches[name] = [*self._matches[name], line][:2]
        if self._iteration is not None and (numbers := self._iteration.find(line, text)) is not None:
            self._add_iteration(line, numbers)

    def finish(self) -> ProgramOutput:
        """Return what was found, with a problem for each declared number that was not found once."""
        found = self.found
        searches = [*self._values.values(), *([self._iteration] if self._iteration is not None else [])]
        found.problems += [OutputProblem(one.problem, one.stopped_at) for one in searches if one.problem is not None]
        if self._characters > _LARGEST_DOCUMENT:
            found.problems.append(OutputProblem(f"larger than {_LARGEST_DOCUMENT:,} characters, and is not read"))
            return found
        if self.fields.json_:
            found.problems += self._read_json("\n".join(self._whole))
        if self.fields.csv_:
            found.problems += self._read_csv(self.fields.csv_)
        for name, lines in self._matches.items():
            if not lines:
                found.problems += self._no_match(self._values[name])
            elif len(lines) > 1:
                what = f"matches lines {lines[0]} and {lines[1]}, and must match one"
                found.problems.append(OutputProblem(f"output.values.{name}: {what}"))
        if self._iteration is not None and not found.iterations:
            found.problems += self._no_match(self._iteration)
        if self.fields.rows is not None and not found.rows:
            columns = len(self.fields.rows.columns)
            found.problems.append(OutputProblem(f"output.rows: no line has {columns} words with numbers"))
        if self._too_long:
            found.problems.append(_of_line(self._too_long, f"only its first {LONGEST_LINE} characters are read"))
        return found

    def _feed_row(self, rows: RowFields, line: int, text: str) -> None:
        count = len(rows.columns)
        words = text.split(None, count)
        if not count // 2 < len(words) <= count:
            return
        row: dict[str, OutputValue] = {}
        wrong: dict[str, str] = {}
        for name, word in zip(rows.columns, words, strict=False):
            is_text = name in (rows.text or ())
            value = word if is_text else _number_or_text(word)
            if isinstance(value, str) and not is_text and name in self._numbers:
                wrong[name] = word
            else:
                row[name] = OutputValue(value, line)
        if len(wrong) > 1 or any(name not in row for name in rows.key):
            return  # a line of text
        key = tuple(row[name].value for name in rows.key)
        if len(words) < count:
            self._add_problem(line, f"a row with {len(words)} of {count} columns")
        elif wrong:
            self._add_problem(line, f"{next(iter(wrong))} is not a number: {next(iter(wrong.values()))!r}")
        elif key in self.found.rows:
            first = self.found.rows[key][rows.key[0]].line
            self._add_problem(line, f"the row {key_text(rows.key, key)} is also in line {first}")
        elif len(self.found.rows) < _MOST_ROWS:
            self.found.rows[key] = row
        else:
            self._add_problem(0, f"more than {_MOST_ROWS:,} rows")

    def _add_problem(self, line: int, what: str) -> None:
        """Add a problem of a line, or of none (0); an output may have one in each line."""
        if len(self.found.problems) < _MOST_PROBLEMS:
            self.found.problems.append(_of_line(line, what))

    def _add_iteration(self, line: int, numbers: dict[str, float]) -> None:
        iteration = numbers.pop("iteration")
        if not iteration.is_integer():
            self._add_problem(line, f"iteration {iteration:g} is not an integer")
        elif int(iteration) in self.found.iterations or len(self.found.iterations) < _MOST_ROWS:
            self.found.iterations[int(iteration)] = {name: OutputValue(value, line) for name, value in numbers.items()}
        else:
            self._add_problem(0, f"more than {_MOST_ROWS:,} iterations")

    def _no_match(self, search: PatternSearch) -> Iterator[OutputProblem]:
        if search.problem is None:
            line, text = nearest_line(search.pattern.text, self._last) or (0, "")
            nearest = f"; the nearest is line {line}: {text.strip()[:100]}" if line else ""
            yield OutputProblem(f"{search.name}: matches no line{nearest}", line)

    def _read_json(self, text: str) -> Iterator[OutputProblem]:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield OutputProblem(f"not a JSON document: {error}")
            return
        for name, path in self.fields.json_.items():
            value = value_at(document, path)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.found.values[name] = OutputValue(float(value), 1)
            else:
                wrong = "missing" if value is None else "not a number"
                yield OutputProblem(f"output.json.{name}: {path} is {wrong}")

    def _read_csv(self, key: list[str]) -> Iterator[OutputProblem]:
        reader = csv.DictReader(self._whole)
        missing = [name for name in key if name not in (reader.fieldnames or ())]
        if missing:
            there = ", ".join(reader.fieldnames or ())
            yield OutputProblem(f"output.csv: no column {missing[0]}; there are: {there}")
            return
        for record in reader:
            line = reader.line_num
            if None in record or None in record.values():
                yield _of_line(line, "not as many fields as the header")
                continue
            row = {name: OutputValue(_number_or_text(text), line) for name, text in record.items()}
            place = tuple(row[name].value for name in key)
            if place in self.found.rows:
                yield _of_line(line, f"the row {key_text(key, place)} is given twice")
            elif len(self.found.rows) == _MOST_ROWS:
                yield _of_line(0, f"more than {_MOST_ROWS:,} rows")
                return
            self.found.rows[place] = row


def _of_line(line: int, what: str) -> OutputProblem:
    return OutputProblem(f"line {line}: {what}" if line else what, line)


def _search_of_iterations(fields: OutputFields) -> PatternSearch | None:
    return None if fields.iterations is None else PatternSearch("output.iterations", pattern_of(fields.iterations))


def last_iteration(fields: OutputFields, end: bytes) -> int | None:
    """Return the last iteration in the end of an output; None without one. Its first and last line may be cut off."""
    search = _search_of_iterations(fields)
    if search is None:
        return None
    for line in reversed(end.replace(b"\r", b"\n").split(b"\n")[1:-1]):
        numbers = search.find(0, line_text(line))
        if numbers is not None and numbers["iteration"].is_integer():
            return int(numbers["iteration"])
    return None


def value_at(document: object, path: str) -> object:
    """Return the value at a path such as `jobs.0.percentile."99.9"`; None if there is none."""
    for part in (quoted or plain for quoted, plain in _PART_OF_PATH.findall(path)):
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def key_text(names: Iterable[str], key: Iterable[Scalar]) -> str:
    """Return the name of a row: `size=1024`."""
    return ",".join(f"{name}={shown_number(value)}" for name, value in zip(names, key, strict=True))


def shown_number(value: Scalar) -> str:
    """Return the value with at most 15 digits."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _number_or_text(text: str) -> Scalar:
    try:
        return number(text)
    except ValueError:
        return text
