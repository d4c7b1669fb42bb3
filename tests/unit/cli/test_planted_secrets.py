"""Tests of secrets in every input of a run: the ledger has none, so nothing that is made of it has any."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import record_complaints, record_observations
from orchestrator.ledger.database import now
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.runs import record_never_submitted
from orchestrator.ledger.tables import Attempt, Poll
from orchestrator.masking import MASK
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.api.bundle_files import content

pytestmark = pytest.mark.slow

IN_LOG, IN_LINE, IN_SETTINGS = "hf_" + "Lg1aB2cD3e" * 4, "ghp_" + "Dc4fG5hI6j" * 4, "gleaming-otter-51"
IN_ENVIRONMENT, IN_PROFILE, IN_SETUP = "magpie on the wire 77", "AKIA" + "PRFL2345ABCDEFGH", "quiet-badger-19"
IN_ARGUMENT = "wary-heron-83"  # of the program, and so of the command line
IN_REASON, IN_REFUSAL, IN_COMPLAINT = "sk-" + "Rs7kL8mN9o" * 4, "glpat-" + "Rf0pQ1rS2t" * 3, "nvapi-" + "Cp3uV4wX5y" * 4
IN_FILES = (IN_LOG, IN_LINE, IN_SETTINGS, IN_ENVIRONMENT, IN_PROFILE, IN_SETUP, IN_ARGUMENT)
IN_ANSWERS = (IN_REASON, IN_REFUSAL, IN_COMPLAINT)
SAME_ARGUMENTS = ("--arg", "--wandb-api-key=***")
CAUSE = "torch.OutOfMemoryError: CUDA out of memory."
PRINTS = f"""
echo "access with {IN_LOG} as $WANDB_API_KEY"
echo "------------------------ arguments ------------------------"
echo "  hf_token ........................................ {IN_SETTINGS}"
echo "-------------------- end of arguments ---------------------"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Figure 13 with every secret in its input; one case failed, and the scheduler answered with secrets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", IN_ENVIRONMENT)
        site = Site.create(tmp_path_factory.mktemp("planted") / "home")
        profile, program = site.folder / "clusters" / "here.yaml", site.folder / "train.sh"
        profile.write_text(
            f"{profile.read_text()}env_from: [WANDB_API_KEY]\n"
            f"setup: ['export DB_PASSWORD={IN_SETUP}', ': {IN_PROFILE}']\n"
        )
        text = program.read_text().replace("\nwhile", f"{PRINTS}\nwhile", 1)
        program.write_text(text.replace(CAUSE, f"{CAUSE} {IN_LINE}"))
        site.behave("fail", "pp4-gbs16")
        done = site.submit("--arg", f"--wandb-api-key={IN_ARGUMENT}")
        assert done.returncode == 0, done.stderr
        site.wait_until_ended()
        done = site.repro("bundle", "figure-13", *SAME_ARGUMENTS, "-o", "a.tar.zst")
        assert done.returncode == 0, done.stderr
        _answer(site)
        yield site
        site.end_sleepers()


def _answer(site: Site) -> None:
    """Record answers of a scheduler: a pending reason, a refusal and a complaint."""
    ledger = new_ledger(site.folder)
    with ledger.writing() as session:
        ids = list(session.scalars(sa.select(Attempt.id).order_by(Attempt.id)))
        session.execute(sa.update(Attempt).where(Attempt.id.in_(ids[:2])).values(phase="waiting", state="PENDING"))
        session.execute(sa.update(Attempt).where(Attempt.id == ids[1]).values(phase="submitting", state="SUBMITTING"))
        session.merge(Poll(scheduler="slurm", asked_at=now(), complaints=[]))
    pending = Observation("PENDING", "waiting", reason=f"(held: {IN_REASON})", seen_via="squeue")
    record_observations(ledger, {ids[0]: pending}, [ids[0]])
    record_never_submitted(ledger, ids[1:2], f"sbatch: error: {IN_REFUSAL}", "refused")
    record_complaints(ledger, "slurm", [f"squeue: {IN_COMPLAINT}"])
    ledger.engine.dispose()


def leaked(text: bytes) -> list[str]:
    return [value for value in (*IN_FILES, *IN_ANSWERS) if value.encode() in text]


def test_every_secret_was_given(site: Site) -> None:
    jobs = [file.read_bytes() for file in (site.folder / "runs").glob("*/*/*") if file.name in ("job.sh", "log.txt")]
    assert leaked(b"".join(jobs)) == [*IN_FILES]


@pytest.mark.fault(
    section="Safety",
    fault="A secret in each input of a run: log, environment, profile, command line, arguments, answers of Slurm",
    promise="No column of the ledger contains it.",
    count=10,
)
def test_no_column_of_the_ledger_contains_a_secret(site: Site) -> None:
    with sqlite3.connect(site.folder / "results.db") as ledger:
        columns = ledger.execute(
            "select m.name, p.name from sqlite_master m join pragma_table_info(m.name) p where m.type = 'table'"
        ).fetchall()
        found: dict[tuple[str, str], list[str]] = {}
        masked: set[str] = set()
        for table, column in columns:
            values = [str(row[0]) for row in ledger.execute(f'select "{column}" from "{table}"')]
            text = "\n".join(values)
            if secrets := leaked(text.encode()):
                found[table, column] = secrets
            masked |= {f"{table}.{column}"} if MASK in text else set()
    assert found == {}
    wanted = {"runs.command", "runs.profile", "jobs.configuration", "attempts.script", "attempts.reason"}
    wanted |= {
        "attempts.verdict_reason",
        "attempts.deciding_line",
        "events.detail",
        "looks.complaints",
    }
    assert masked >= wanted
    files = (site.folder / name for name in ("results.db", "results.db-wal"))
    assert leaked(b"".join(file.read_bytes() for file in files if file.exists())) == []


@pytest.mark.fault(
    section="Safety",
    fault="A secret in each input of a run: log, environment, profile, command line, arguments, answers of Slurm",
    promise="Exports, JSON, reports and bundles contain none.",
    count=10,
)
def test_no_document_made_of_the_ledger_contains_a_secret(site: Site, tmp_path: Path) -> None:
    formats = ("csv", "json", "md", "latex", "parquet")
    outputs = [
        *(
            ("collect", "figure-13", *SAME_ARGUMENTS, "--export", name, "-o", str(tmp_path / f"cases.{name}"))
            for name in formats
        ),
        ("collect", "figure-13", *SAME_ARGUMENTS, "--iterations", "--export", "csv", "-o", str(tmp_path / "lines.csv")),
        ("report", "figure-13", *SAME_ARGUMENTS, "-o", str(tmp_path / "page")),
        ("status", "--json"),
        ("status",),
        ("claims", "figure-13", *SAME_ARGUMENTS, "--json"),
        ("sql", "--csv", "select * from attempts, runs, jobs, events"),
        ("sql", "--json", "select * from readings, looks"),
    ]
    printed = [site.repro(*words) for words in outputs]
    assert [(done.args, done.stderr) for done in printed if done.returncode not in (0, 1)] == []
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    texts = {file.name: file.read_bytes() for file in files}
    texts |= {
        " ".join(words): (done.stdout + done.stderr).encode() for words, done in zip(outputs, printed, strict=True)
    }
    texts |= content(site.folder / "a.tar.zst")
    assert {name: leaked(text) for name, text in texts.items() if leaked(text)} == {}
    assert len(files) >= 6 and all(len(texts[f"cases.{name}"]) > 500 for name in ("csv", "json", "md", "latex"))
    page = texts["index.html"]
    assert b"--wandb-api-key=***" in page and b"DB_PASSWORD=***" in page and CAUSE.encode() in page
