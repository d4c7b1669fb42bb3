"""Tests of secrets that a failing program prints: no value is stored or printed."""

from __future__ import annotations

import importlib
import importlib.util
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.masking import MASK
from tests.stand_in_site import Site
from tests.unit.api.bundle_files import content

pytestmark = pytest.mark.slow

# Values without any shape of a token: only their names tell that they are secret.
DB_PASS, OPENAI_KEY, INDEX_TOKEN, SHELL_TOKEN = "tulip-Meadow+41", "kq81zLm27xcvbN", "vulpes.lagopus77", "grebe nest 19"
VALUES = (DB_PASS, OPENAI_KEY, INDEX_TOKEN, SHELL_TOKEN)
SHELL = {
    "DB_PASS": DB_PASS,
    "OPENAI_KEY": OPENAI_KEY,
    "PIP_INDEX_URL": f"https://{INDEX_TOKEN}@pypi.example/simple",
    "HF_TOKEN": SHELL_TOKEN,
}
PROFILE = f"""
environment: {{NCCL_DEBUG: WARN}}
env_from: [{", ".join(SHELL)}]
"""
PRINTS = r"""
echo "connected as me with $DB_PASS, then $OPENAI_KEY; index $PIP_INDEX_URL"
echo "  data_path ....................................... /data/$OPENAI_KEY"
echo "retry of ${PIP_INDEX_URL#https://} by ${HF_TOKEN}"
"""
CAUSE = "torch.OutOfMemoryError: CUDA out of memory."


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Figure 13, of which a case failed with all secrets in the line that decides."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHELL.items():
            patch.setenv(name, value)
        site = Site.create(tmp_path_factory.mktemp("secrets") / "home")
        profile, program = site.folder / "clusters" / "here.yaml", site.folder / "train.sh"
        profile.write_text(profile.read_text() + PROFILE)
        text = program.read_text().replace("\nwhile", f"{PRINTS}\nwhile", 1)
        secrets = "$DB_PASS at $OPENAI_KEY by $PIP_INDEX_URL of $HF_TOKEN"
        program.write_text(text.replace(CAUSE, f"{CAUSE} {secrets}"))
        site.behave("fail", "pp4-gbs16")
        done = site.submit("--repeat", "2", "--wait")
        assert done.returncode == 1, done.stderr
        yield site
        site.end_sleepers()


def leaked(text: bytes) -> list[str]:
    return [value for value in VALUES if value.encode() in text]


def test_the_program_printed_them(site: Site) -> None:
    logs = b"".join(log.read_bytes() for log in (site.folder / "runs").glob("*/pp4-*/log.txt"))
    assert leaked(logs) == list(VALUES) and CAUSE.encode() in logs


@pytest.mark.fault(
    section="Safety",
    fault="A failing program prints the values of `env_from:` without their names",
    promise="No value is in `results.db`.",
)
def test_no_value_is_in_the_ledger(site: Site) -> None:
    with sqlite3.connect(site.folder / "results.db") as ledger:
        (line,) = ledger.execute("select distinct deciding_line from attempts where verdict = 'failed'").fetchone()
        (profile,) = ledger.execute("select profile from runs").fetchone()
    assert CAUSE in line and line.count(MASK) == 4
    assert '"NCCL_DEBUG": "WARN"' in profile and '"env_from": ["DB_PASS", "OPENAI_KEY"' in profile
    assert leaked((site.folder / "results.db").read_bytes()) == []


@pytest.mark.fault(
    section="Safety",
    fault="A failing program prints the values of `env_from:` without their names",
    promise="`status`, `collect` and `sql` print no value.",
)
@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "--json"),
        ("collect", "figure-13"),
        ("collect", "figure-13", "--export", "json"),
        ("sql", "--csv", "select * from attempts, runs"),
        ("sql", "--json", "select * from jobs"),
    ],
    ids=" ".join,
)
def test_no_value_is_printed(site: Site, words: tuple[str, ...]) -> None:
    done = site.repro(*words)
    assert done.returncode in (0, 1) and len(done.stdout) > 50, done.stderr
    assert leaked(done.stdout.encode() + done.stderr.encode()) == []


def test_no_value_is_in_a_jobs_history(site: Site) -> None:
    question = "select job_id from attempts where verdict = 'failed' limit 1"
    (job,) = site.repro("sql", "--csv", question).stdout.split()[1:]
    done = site.repro("history", job)
    assert "gpu-oom" in done.stdout and leaked(done.stdout.encode()) == []


@pytest.fixture(scope="module")
def bundled(site: Site) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHELL.items():
            patch.setenv(name, value)
        done = site.repro("bundle", "figure-13", "-o", "a.tar.zst")
        assert done.returncode == 0, done.stderr
        assert site.repro("bundle", "verify", "a.tar.zst").returncode == 0
    return content(site.folder / "a.tar.zst")


@pytest.mark.fault(
    section="Safety",
    fault="A failing program prints the values of `env_from:` without their names",
    promise="A bundle contains no value.",
)
def test_no_value_is_in_a_bundle(bundled: dict[str, bytes]) -> None:
    assert {path: leaked(text) for path, text in bundled.items() if leaked(text)} == {}
    scripts = [text for path, text in bundled.items() if path.endswith("job.sh")]
    assert len(scripts) == 12
    assert all(b"NCCL_DEBUG=WARN" in script for script in scripts)


@pytest.mark.fault(
    section="Safety",
    fault="A failing program prints the values of `env_from:` without their names",
    promise="A report contains no value.",
)
def test_no_value_is_in_a_report(site: Site) -> None:
    assert site.repro("report", "figure-13", "-o", "page").returncode == 0
    text = (site.folder / "page" / "index.html").read_bytes()
    assert CAUSE.encode() in text and leaked(text) == []


def test_another_program_finds_no_secret_in_a_bundle(bundled: dict[str, bytes], tmp_path: Path) -> None:
    """detect-secrets, without its two detectors that take every checksum for a secret."""
    if importlib.util.find_spec("detect_secrets") is None:
        pytest.skip("detect-secrets is not installed")
    scan: Any = importlib.import_module("detect_secrets.core.scan")
    own_settings: Any = importlib.import_module("detect_secrets.settings")
    plugins = importlib.import_module("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    names = {one.__name__ for one in plugins.values()} - {"HexHighEntropyString", "Base64HighEntropyString"}
    assert {"KeywordDetector", "BasicAuthDetector", "PrivateKeyDetector", "AWSKeyDetector"} <= names
    with own_settings.transient_settings({"plugins_used": [{"name": name} for name in sorted(names)]}):
        planted = tmp_path / "planted.yaml"
        planted.write_text(f'password: "{DB_PASS}"\n')
        assert [*scan.scan_file(str(planted))] != []
        found = []
        for path, text in bundled.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
            found += [f"{path}: {secret.type}: {secret.secret_value}" for secret in scan.scan_file(str(file))]
    assert found == []
