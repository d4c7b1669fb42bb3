"""Bundles of difficult runs: secrets, failed attempts, missing logs, open jobs."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import zstandard

from orchestrator import api
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Event, Job, Run, field_values
from orchestrator.reading.collect import measure
from tests.recorded_jobs import SimulatedSlurm, log_text, new_ledger
from tests.stand_in_site import Site
from tests.unit.api.bundle_files import content, packed
from tests.unit.api.project import Project, problems

pytestmark = pytest.mark.slow

SECRETS = [f"hf_{place}{'x7Q' * 9}" for place in ("inLog", "inBatch", "inScript", "inProfile", "inCommand", "inEvent")]
SECRETS += [
    f"hf_{place}{'x7Q' * 9}" for place in ("inReason", "inLine", "inSettings", "inQueue", "inVersions", "inGpus")
]
IN_LOG, IN_BATCH, IN_SCRIPT, IN_PROFILE, IN_COMMAND, IN_EVENT, IN_REASON, IN_LINE, IN_SETTINGS, IN_QUEUE, *_ = SECRETS
IN_VERSIONS, IN_GPUS = SECRETS[10:]
PASSWORD, KEY = "hunter22-and-more", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
FAILED = "pp4-tp1-gbs16"


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a site where one case of figure 13 failed twice, with secrets in every place that can contain one."""
    site = Site.create(tmp_path_factory.mktemp("troubled") / "a home")
    site.behave("fail", "pp4-gbs16")
    assert site.submit("--wait").returncode == 1
    site.behave("nan", "pp4-gbs16")
    assert site.repro("retry", "figure-13", "--class", "gpu-oom").returncode == 0
    site.repro("wait", "figure-13")
    plant(site, new_ledger(site.folder))
    yield site
    site.end_sleepers()


def plant(site: Site, ledger: Ledger) -> None:
    for log in (site.folder / "runs").glob("*/*/log.txt"):
        with log.open("a") as file:
            file.write(f"HF_TOKEN={IN_LOG}\npip --index-url https://me:{PASSWORD}@registry.example/simple\n\xff\n")
            file.write(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")
        (log.parent / "batch.txt").write_text(f"+ export SECRET='{IN_BATCH}'\n")
        (log.parent / "gpus.n1.csv").write_text(f"nvidia-smi: no {IN_GPUS}\n")
        (log.parent / "fingerprint.n1.txt").write_text(f"$ uname -a\nLinux n1, {IN_GPUS}\n")
        (log.parent / "core").write_text(f"a program's memory, with {PASSWORD}\n")
    for queue in (site.folder / "runs").glob("*/submissions/*.sh"):
        queue.write_text(f"{queue.read_text()}# {IN_QUEUE}\n")
    with ledger.writing() as session:
        for run in session.scalars(sa.select(Run)):
            run.profile = {**run.profile, "environment": {"HF_TOKEN": IN_PROFILE, "X": IN_PROFILE}}
            run.command = [*run.command, "--token", IN_COMMAND, f"https://me:{PASSWORD}@registry.example"]
            run.versions = {**run.versions, "token": IN_VERSIONS}
        for job in session.scalars(sa.select(Job)):
            job.configuration = {**job.configuration, "hf_token": PASSWORD, "data": IN_SETTINGS}
        for attempt in session.scalars(sa.select(Attempt)):
            attempt.script = attempt.script and f"{attempt.script}export HF_TOKEN={IN_SCRIPT}\n"
            attempt.reason = f"at https://me:{PASSWORD}@registry.example"
            if attempt.verdict == "failed":
                attempt.verdict_reason, attempt.deciding_line = f"no {IN_REASON}", f"no {IN_LINE}"
        session.add(Event(at=run.created_at, run_id=run.id, attempt_id=None, kind="state", detail=f"no {IN_EVENT}"))


@pytest.fixture
def there(troubled: Site, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project.at(troubled, monkeypatch)


def bundled(project: Project, file: Path) -> api.Bundle:
    (figure,) = api.outcomes("figure-13", session=project.session)
    return api.bundle(figure, file, session=project.session)


def test_no_planted_secret_is_in_any_byte_and_its_numbers_still_follow_from_its_logs(
    there: Project, tmp_path: Path
) -> None:
    file = bundled(there, tmp_path / "a.tar.zst").file
    whole = b"".join(path.encode() + text for path, text in content(file).items())
    found = [word for word in (*SECRETS, PASSWORD, KEY) if word.encode() in whole]
    assert found == []
    assert whole.count(b"HF_TOKEN=***\n") >= 7 and b"https://me:***@registry.example" in whole
    assert not any(path.endswith("/core") for path in content(file))
    assert sum(path.endswith("/fingerprint.n1.txt") for path in content(file)) >= 7
    assert api.verify_bundle(file).holds


def test_every_attempt_is_in_it_and_read_again(there: Project, tmp_path: Path) -> None:
    file = bundled(there, tmp_path / "a.tar.zst").file
    files = content(file)
    failed = sorted(path for path in files if path.startswith(f"jobs/{FAILED}-") and path.endswith("/log.txt"))
    assert [path.split("/")[2] for path in failed] == ["attempt-1", "attempt-2"]
    assert b"CUDA out of memory" in files[failed[0]] and b"lm loss: nan" in files[failed[1]]
    verified = api.verify_bundle(file)
    assert verified.holds and verified.checks[1].what.startswith("7 attempts read again: ")


@pytest.fixture
def moved(troubled: Site) -> Iterator[Path]:
    """Yield the folder of a verified case. The folder is restored afterwards."""
    (folder,) = (troubled.folder / "runs").glob("*/pp2-tp2-gbs16")
    shutil.copytree(folder, folder.with_name("kept"), symlinks=True)
    yield folder
    shutil.rmtree(folder)
    folder.with_name("kept").rename(folder)


def refused(project: Project, file: Path) -> list[str]:
    """Return the problems of a bundle of figure 13 that is not handed over."""
    with pytest.raises(api.UnprovenBundle) as caught:
        bundled(project, file)
    assert caught.value.exit_code == 1 and list(file.parent.glob("*a.tar.zst*")) == []
    *found, last = problems(caught)
    assert last == (
        f"{file}: not written, because it does not verify. Hint: repro submit sc21/figure-13 "
        "--rerun measures again; --without JOB:NUMBER=REASON leaves an attempt out, and the bundle names it"
    )
    return found


def test_a_bundle_whose_log_is_gone_is_not_handed_over(there: Project, moved: Path, tmp_path: Path) -> None:
    (moved / "log.txt").unlink()
    found = refused(there, tmp_path / "a.tar.zst")
    assert found[0] == f"{moved / 'log.txt'}: is gone"
    assert any("case pp=2,tp=2,gbs=16: verdict is verified, and failed by its logs" in line for line in found)
    assert not any("iteration 1" in line for line in found)


@pytest.mark.parametrize(("name", "what"), [("log.txt", "a link and not a file"), ("end", "a folder and not a file")])
def test_a_link_or_folder_instead_of_a_file_is_one_line_and_is_not_followed(
    there: Project, moved: Path, tmp_path: Path, name: str, what: str
) -> None:
    (moved / name).unlink()
    if name == "end":
        (moved / name).mkdir()
    else:
        (tmp_path / "elsewhere").write_text(log_text(8))
        (moved / name).symlink_to(tmp_path / "elsewhere")
    assert sum(what in line for line in refused(there, tmp_path / "a.tar.zst")) == 1


def test_a_folder_that_is_gone_is_one_line_for_each_log(there: Project, moved: Path, tmp_path: Path) -> None:
    shutil.rmtree(moved)
    try:
        found = refused(there, tmp_path / "a.tar.zst")
    finally:
        moved.mkdir()
    assert {line for line in found if line.endswith(": is gone")} == {
        f"{moved / name}: is gone" for name in ("log.txt", "batch.txt")
    }


def test_the_script_in_the_bundle_is_the_one_of_the_ledger(there: Project, moved: Path, tmp_path: Path) -> None:
    (moved / "job.sh").write_text("#!/bin/bash\nsomething else\n")
    file = bundled(there, tmp_path / "a.tar.zst").file
    assert not any(b"something else" in text for text in content(file).values())


@pytest.mark.parametrize("name", ["log.txt.gz", "log.txt.zst", "log.txt.xz", "log.txt.bz2", "log.txt"])
def test_a_compressed_log_is_in_the_bundle_as_a_log(there: Project, moved: Path, tmp_path: Path, name: str) -> None:
    log = (moved / "log.txt").read_bytes()
    (moved / "log.txt").unlink()
    packers = {".zst": zstandard.ZstdCompressor().compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    (moved / name).write_bytes(packers.get(Path(name).suffix, gzip.compress)(log))
    bundle = bundled(there, tmp_path / "a.tar.zst")
    assert not any(missing.is_fault for missing in bundle.contents.missing)
    files = content(bundle.file)
    (found,) = [text for path, text in files.items() if re.match(r"jobs/pp2-tp2-gbs16-\w+/.*/log\.txt$", path)]
    assert found.startswith(log[:200]) and api.verify_bundle(bundle.file).holds


def test_a_failed_attempt_under_another_name_does_not_verify(there: Project, tmp_path: Path) -> None:
    file = bundled(there, tmp_path / "a.tar.zst").file
    files = content(file)
    rows = [json.loads(line) for line in files["ledger/attempts.jsonl"].splitlines()]
    (row,) = [row for row in rows if row["failure"] == "gpu-oom"]
    row |= {"state": "NEVER_SUBMITTED"}
    files["ledger/attempts.jsonl"] = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    checks = api.verify_bundle(packed(files, file, with_sums=True)).checks
    found = [difference for check in checks for difference in check.differences]
    said = "failure is gpu-oom in the ledger, not-submitted from its log"
    assert any(re.match(rf"jobs/{FAILED}-\w+/attempt-1 .*: {said}", difference) for difference in found), found


def test_open_attempts_and_attempts_that_never_ran_are_in_the_bundle(
    project: Project, simulated: SimulatedSlurm, tmp_path: Path
) -> None:
    simulated.submit("a", "b", "c", "d")
    simulated.start("a-id", log_text(3))
    simulated.end("b-id", "CANCELLED", "failed", failure="cancelled", verdict_reason="cancelled")
    simulated.update("c-id", state="NEVER_SUBMITTED", phase="ended", verdict="failed", failure="refused")
    bundle = bundled(project, tmp_path / "a.tar.zst")
    assert (bundle.contents.under_way, bundle.contents.verified) == (2, 0)
    files = content(bundle.file)
    assert "Not final: 2 attempts were still under way." in files["README.txt"].decode()
    assert any(path.startswith("jobs/a-id-1-a-id/attempt-1/log.txt") for path in files)
    verified = api.verify_bundle(bundle.file)
    assert verified.holds and any("; 1 never ran; 2 not judged yet" in check.what for check in verified.checks)
    assert any(api.NOTHING_VERIFIED in check.notes for check in verified.checks)
    assert not {row.verdict for row in job_rows(simulated.ledger) if row.job_id in ("a-id", "d-id")} - {None}


@pytest.mark.parametrize(
    ("verdict", "iteration", "expected"),
    [
        (None, {}, None),
        (None, {"used": True}, None),  # the next line of the log shows it
        ("verified", {}, "verdict is verified in the ledger, nothing from its log"),
        (None, {"elapsed_ms": 1.0}, r"iteration 2: elapsed_ms is 1\.0 in the ledger, 60000\.0 from its log"),
        (None, {"iteration": 9}, "iteration 9 is in the ledger and not in its log"),
    ],
)
def test_a_forged_row_of_an_open_attempt_does_not_verify(
    project: Project,
    simulated: SimulatedSlurm,
    tmp_path: Path,
    verdict: str | None,
    iteration: dict[str, Any],
    expected: str | None,
) -> None:
    """The bundle has the second of three iterations in its rows: the log has grown since."""
    simulated.submit("a")
    simulated.start("a-id", log_text(3))
    file = bundled(project, tmp_path / "a.tar.zst").file
    files = content(file)
    row = json.loads(files["ledger/attempts.jsonl"]) | {"verdict": verdict}
    second = field_values(measure(simulated.row("a-id")).iterations[1]) | {"used": False, **iteration}
    files["ledger/attempts.jsonl"] = json.dumps(row).encode() + b"\n"
    files["ledger/iterations.jsonl"] = json.dumps({"attempt_id": row["id"], **second}).encode() + b"\n"
    numbers = api.verify_bundle(packed(files, file, with_sums=True)).checks[1]
    assert numbers.name == "numbers" and len(numbers.differences) == (0 if expected is None else 1)
    assert expected is None or re.search(rf"jobs/a-id-1-a-id/attempt-1 .*: {expected}$", numbers.differences[0])


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes the path of a private file into the ledger",
    promise="The file is not put into a bundle.",
)
def test_a_file_that_the_ledger_names_elsewhere_is_not_put_into_a_bundle(project: Project, tmp_path: Path) -> None:
    """Another user who may write to the ledger must not choose what is in a bundle that is given away."""
    project.run("pp=1,gbs=4")
    private = tmp_path / "submissions" / "diary.queue.sh"
    private.parent.mkdir()
    private.write_text("dear diary")
    with project.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(file=str(private)))
    files = content(bundled(project, tmp_path / "figure.tar.zst").file)
    assert files and not any(b"dear diary" in text for text in files.values())
