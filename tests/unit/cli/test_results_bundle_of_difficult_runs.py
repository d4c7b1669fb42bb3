"""Tests of bundles of difficult runs: secrets, failed attempts, missing logs, open jobs."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import zstandard

from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Event, Job, Run
from tests.recorded_jobs import SimulatedSlurm, log_text, new_ledger
from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller
from tests.unit.cli.test_results_bundle import content, packed

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
def repro_there(troubled: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    return Caller(troubled, monkeypatch, capsys)


def test_no_planted_secret_is_in_any_byte_and_its_numbers_still_follow_from_its_logs(
    repro_there: Caller, tmp_path: Path
) -> None:
    file = tmp_path / "a.tar.zst"
    done = repro_there("bundle", "figure-13", "-o", str(file))
    assert done.returncode == 0, done.stderr
    whole = b"".join(path.encode() + text for path, text in content(file).items())
    found = [word for word in (*SECRETS, PASSWORD, KEY) if word.encode() in whole]
    assert found == []
    assert whole.count(b"HF_TOKEN=***\n") >= 7 and b"https://me:***@registry.example" in whole
    assert not any(path.endswith("/core") for path in content(file))
    assert sum(path.endswith("/fingerprint.n1.txt") for path in content(file)) >= 7
    assert repro_there("bundle", "verify", str(file)).returncode == 0


def test_every_attempt_is_in_it_and_read_again(repro_there: Caller, tmp_path: Path) -> None:
    file = tmp_path / "a.tar.zst"
    assert repro_there("bundle", "figure-13", "-o", str(file)).returncode == 0
    files = content(file)
    failed = sorted(path for path in files if path.startswith(f"jobs/{FAILED}-") and path.endswith("/log.txt"))
    assert [path.split("/")[2] for path in failed] == ["attempt-1", "attempt-2"]
    assert b"CUDA out of memory" in files[failed[0]] and b"lm loss: nan" in files[failed[1]]
    done = repro_there("bundle", "verify", str(file))
    assert "numbers   7 attempts read again: " in done.stdout and done.returncode == 0


@pytest.fixture
def moved(troubled: Site) -> Iterator[Path]:
    """Yield the folder of a verified case. The folder is restored afterwards."""
    (folder,) = (troubled.folder / "runs").glob("*/pp2-tp2-gbs16")
    shutil.copytree(folder, folder.with_name("kept"), symlinks=True)
    yield folder
    shutil.rmtree(folder)
    folder.with_name("kept").rename(folder)


def refused(repro: Caller, file: Path) -> list[str]:
    """Return the complaints of a bundle of figure 13 that is not handed over."""
    done = repro("bundle", "figure-13", "-o", str(file))
    assert (done.returncode, done.stdout) == (1, "") and list(file.parent.glob("*a.tar.zst*")) == []
    last = (
        rf"repro: {re.escape(str(file))}: not written, because it does not verify\. Hint: repro submit sc21/figure-13 "
        "--rerun measures again; --without JOB:NUMBER=REASON leaves an attempt out, and the bundle names it"
    )
    assert re.fullmatch(last, done.complaints[-1])
    return done.complaints[:-1]


def test_a_bundle_whose_log_is_gone_is_not_handed_over(repro_there: Caller, moved: Path, tmp_path: Path) -> None:
    (moved / "log.txt").unlink()
    complaints = refused(repro_there, tmp_path / "a.tar.zst")
    assert complaints[0] == f"repro: {moved / 'log.txt'}: is gone"
    assert any("case pp=2,tp=2,gbs=16: verdict is verified, and failed by its logs" in line for line in complaints)
    assert not any("iteration 1" in line for line in complaints)
    document = json.loads(repro_there("bundle", "figure-13", "--json", "-o", str(tmp_path / "a.tar.zst")).stdout)
    assert (document["files"], len(document["errors"])) == ([], len(complaints) + 1)


@pytest.mark.parametrize(("name", "what"), [("log.txt", "a link and not a file"), ("end", "a folder and not a file")])
def test_a_link_or_folder_instead_of_a_file_is_one_line_and_is_not_followed(
    repro_there: Caller, moved: Path, tmp_path: Path, name: str, what: str
) -> None:
    (moved / name).unlink()
    if name == "end":
        (moved / name).mkdir()
    else:
        (tmp_path / "elsewhere").write_text(log_text(8))
        (moved / name).symlink_to(tmp_path / "elsewhere")
    assert sum(what in line for line in refused(repro_there, tmp_path / "a.tar.zst")) == 1


def test_a_folder_that_is_gone_is_one_line_for_each_log(repro_there: Caller, moved: Path, tmp_path: Path) -> None:
    shutil.rmtree(moved)
    try:
        complaints = refused(repro_there, tmp_path / "a.tar.zst")
    finally:
        moved.mkdir()
    assert sorted(line for line in complaints if line.endswith(": is gone")) == sorted(
        f"repro: {moved / name}: is gone" for name in ("log.txt", "batch.txt")
    )


def test_the_script_in_the_bundle_is_the_one_of_the_ledger(repro_there: Caller, moved: Path, tmp_path: Path) -> None:
    (moved / "job.sh").write_text("#!/bin/bash\nsomething else\n")
    file = tmp_path / "a.tar.zst"
    assert repro_there("bundle", "figure-13", "-o", str(file)).returncode == 0
    assert not any(b"something else" in text for text in content(file).values())


@pytest.mark.parametrize("name", ["log.txt.gz", "log.txt.zst", "log.txt"])
def test_a_compressed_log_is_in_the_bundle_as_a_log(
    repro_there: Caller, moved: Path, tmp_path: Path, name: str
) -> None:
    log = (moved / "log.txt").read_bytes()
    (moved / "log.txt").unlink()
    pack = zstandard.ZstdCompressor().compress if name.endswith("zst") else gzip.compress
    (moved / name).write_bytes(pack(log))
    file = tmp_path / "a.tar.zst"
    done = repro_there("bundle", "figure-13", "-o", str(file))
    assert (done.returncode, [line for line in done.complaints if line.startswith("missing")]) == (0, [])
    (found,) = [text for path, text in content(file).items() if re.match(r"jobs/pp2-tp2-gbs16-\w+/.*/log\.txt$", path)]
    assert found.startswith(log[:200])
    assert repro_there("bundle", "verify", str(file)).returncode == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"state": "NEVER_SUBMITTED", "failure": "refused"},
            "state is NEVER_SUBMITTED in the ledger, and its folder con",
        ),
        (
            {"state": "NEVER_SUBMITTED", "failure": "gpu-oom"},
            "failure is gpu-oom in the ledger, not-submitted from its log",
        ),
        (
            {"state": "COMPLETED", "exit_code": 0},
            "state is COMPLETED in the ledger, and its end record has exit code 7",
        ),
        ({"state": "TIMEOUT"}, "state is TIMEOUT in the ledger, and its end record has exit code 7"),
        ({"state": "CANCELLED", "failure": "cancelled"}, "state is CANCELLED in the ledger, and its end record has"),
        ({"exit_code": 0}, "exit_code is 0 in the ledger, 7 in its end record"),
    ],
)
def test_a_failed_attempt_under_another_name_does_not_verify(
    repro_there: Caller, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    file = tmp_path / "a.tar.zst"
    assert repro_there("bundle", "figure-13", "-o", str(file)).returncode == 0
    files = content(file)
    rows = [json.loads(line) for line in files["ledger/attempts.jsonl"].splitlines()]
    (row,) = [row for row in rows if row["failure"] == "gpu-oom"]
    row |= changes
    files["ledger/attempts.jsonl"] = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    done = repro_there("bundle", "verify", str(packed(files, file, with_sums=True)))
    assert done.returncode == 1 and re.search(rf"^ +jobs/{FAILED}-\w+/attempt-1 .*: {said}", done.stdout, re.MULTILINE)


def test_open_attempts_and_attempts_that_never_ran_are_in_the_bundle(
    repro: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slurm = SimulatedSlurm.install(repro.site.folder, monkeypatch)
    slurm.submit("a", "b", "c", "d")
    slurm.start("a-id", log_text(3))
    slurm.end("b-id", "CANCELLED", "failed", failure="cancelled", verdict_reason="cancelled")
    slurm.update("c-id", state="NEVER_SUBMITTED", phase="ended", verdict="failed", failure="refused")
    file = tmp_path / "a.tar.zst"
    done = repro("bundle", "figure-13", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert "note: 2 open attempts: the bundle is marked as not final" in done.stderr
    assert "Not final: 2 attempts were still under way." in content(file)["README.txt"].decode()
    assert any(path.startswith("jobs/a-id-1-a-id/attempt-1/log.txt") for path in content(file))
    checked = repro("bundle", "verify", str(file))
    assert checked.returncode == 0 and "; 1 never ran; 2 not judged yet" in checked.stdout
    assert "note: no case is verified: the bundle proves no measurement\n" in done.stderr
    assert "note: no case is verified: the bundle proves no measurement\n" in checked.stdout
    assert not {row.verdict for row in job_rows(slurm.ledger) if row.job_id in ("a-id", "d-id")} - {None}


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes the path of a private file into the ledger",
    promise="The file is not put into a bundle.",
)
def test_a_file_that_the_ledger_names_elsewhere_is_not_put_into_a_bundle(repro: Caller, tmp_path: Path) -> None:
    """Another user who may write to the ledger must not choose what is in a bundle that is given away."""
    words = ("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "pp=1,gbs=4", "--wait")
    assert repro(*words).returncode in (0, 1)
    private = tmp_path / "submissions" / "diary.queue.sh"
    private.parent.mkdir()
    private.write_text("dear diary")
    with new_ledger(repro.site.folder).writing() as session:
        session.execute(sa.update(Attempt).values(file=str(private)))
    made = repro("bundle", "figure-13", "-o", str(tmp_path / "figure.tar.zst"))
    assert made.returncode == 0, made.stderr
    files = content(tmp_path / "figure.tar.zst")
    assert files and not any(b"dear diary" in text for text in files.values())
