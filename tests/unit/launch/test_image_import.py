"""An import's script is run by bash with a stand-in for enroot, and what it leaves is looked at."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.clusters.program import image_rows
from orchestrator.errors import Unreachable
from orchestrator.files import read_record
from orchestrator.launch.images import Import, import_progress, render_import, wanted_images
from orchestrator.slurm.command import QueryAnswer
from orchestrator.slurm.notation import JobRecord
from tests.examples import examples
from tests.unit.launch.enroot import DIGEST, FILE, OTHER_DIGEST, SITE, URI, Workshop, profile
from tests.unit.render.plans import TEMPLATES
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop.make(tmp_path)


# ---- what an import leaves ---------------------------------------------------------------------------------------


def test_an_import_leaves_the_file_its_record_and_the_link_that_jobs_use_and_nothing_else(shop: Workshop) -> None:
    shop.run({"SLURM_JOB_ID": "4711"})
    assert shop.names() == ["team+torch+1.sqsh", FILE, f"{FILE}.json"]
    assert str(shop.used.readlink()) == FILE and shop.used.read_text() == "half of an image\n"
    record = shop.record()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(record.pop("imported")))
    assert record == {
        "uri": URI,
        "digest": DIGEST,
        "digest_of": "manifest",
        "user": getpass.getuser(),
        "host": os.uname().nodename,
        "bytes": len("half of an image\n"),
        "tool": "enroot 4.1.2",
        "job_id": "4711",
    }
    end = read_record(shop.folder / "end")
    assert end is not None and (end.exit_code, end.scheduler_id) == (0, "4711")


def test_what_is_imported_is_what_has_the_digest_though_the_tag_may_have_moved(tmp_path: Path) -> None:
    shop = Workshop.make(tmp_path, profile(tmp_path, site="architecture: aarch64"))
    shop.run()
    assert f"digest --arch aarch64 -- {URI}" in shop.enroot.called
    (imported,) = shop.enroot.imports
    assert imported.startswith("import --arch aarch64 --output ")
    assert imported.endswith(f" -- docker://registry.example#team/torch@{DIGEST}")


def test_a_profile_without_an_architecture_leaves_it_to_the_node(shop: Workshop) -> None:
    shop.run()
    assert not [line for line in shop.enroot.called if "--arch" in line]


@pytest.mark.parametrize("digest", [None, "", "sha256:12", "curl: (6) could not resolve"])
def test_without_a_manifests_digest_the_files_own_stands_for_it_and_the_record_says_so(
    tmp_path: Path, digest: str | None
) -> None:
    shop = Workshop.make(tmp_path, digest=digest)
    if digest is not None:
        shop.enroot.tell(digest=digest)
    said = shop.run()
    assert ("the registry gave no digest" in said) == (digest is not None)
    digest = hashlib.sha256(b"half of an image\n").hexdigest()
    assert str(shop.used.readlink()) == f"team+torch+1@sha256-{digest[:12]}.sqsh"
    assert (shop.record()["digest"], shop.record()["digest_of"]) == (f"sha256:{digest}", "file")
    assert shop.enroot.imports[0].endswith(f" -- {URI}")


def test_an_image_of_the_same_digest_is_kept_with_its_record_and_only_the_link_is_set(shop: Workshop) -> None:
    shop.run()
    record = (shop.staging / f"{FILE}.json").read_bytes()
    shop.used.unlink()
    shop.enroot.tell(content="not the same bytes")
    shop.run({"SLURM_JOB_ID": "2"})
    assert shop.used.read_text() == "half of an image\n" and len(shop.enroot.imports) == 1
    assert (shop.staging / f"{FILE}.json").read_bytes() == record


@pytest.mark.parametrize("before", [None, '{\n  "uri": "docker://elsewhere.example#team/torch:1",\n}\n', "{"])
def test_a_record_that_is_missing_or_names_another_source_is_written_anew(shop: Workshop, before: str | None) -> None:
    shop.run()
    record = shop.staging / f"{FILE}.json"
    record.unlink() if before is None else record.write_text(before)
    shop.run()
    assert shop.record()["uri"] == URI and shop.record()["bytes"] == len("half of an image\n")


@pytest.mark.fault(
    section="Faults of jobs",
    fault="One image is imported under two names of its registry",
    promise="Both names are recorded, and no job is refused.",
)
def test_another_name_of_the_registry_is_added_to_the_record_and_the_first_one_stays(tmp_path: Path) -> None:
    cluster = profile(tmp_path)
    shop = Workshop.make(tmp_path, cluster)
    shop.run()
    first = shop.record()
    others = [profile(tmp_path, text=SITE.replace("registry", host)) for host in ("mirror", "third")]
    for other in (*others, *others):
        shop.script.write_text(render_import(other, "pretrain", shop.folder, TEMPLATES), encoding="utf-8")
        shop.run()
    uris = ["docker://mirror.example#team/torch:1", "docker://third.example#team/torch:1"]
    assert shop.record() == first | {"other_uris": uris} and len(shop.enroot.imports) == 1
    for one in (cluster, *others):
        assert wanted_images(one, []).already == ("pretrain",)
    assert wanted_images(profile(tmp_path, text=SITE.replace("registry", "fourth")), []).already == ()


@pytest.mark.fault(
    section="Safety",
    fault="Any umask, for an image import",
    promise="Users who may read the folder may read the image.",
)
@pytest.mark.parametrize(("folder", "file"), [(0o2775, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_whoever_may_read_the_folder_may_read_the_image_whatever_the_umask(
    folder: int, file: int, shop: Workshop
) -> None:
    shop.staging.mkdir()
    shop.staging.chmod(folder)
    shop.script.write_text(f"umask 077\n{shop.script.read_text()}")
    shop.run()
    assert {path.stat().st_mode & 0o777 for path in (shop.used, shop.staging / f"{FILE}.json")} == {file}


def test_a_job_reads_the_old_image_or_the_new_one_and_never_half(shop: Workshop) -> None:
    shop.run()
    running = shop.used.open()
    (shop.enroot.folder / "ln").write_text('#!/bin/bash\nsleep 0.3; exec /bin/ln "$@"\n')
    (shop.enroot.folder / "ln").chmod(0o755)
    shop.enroot.tell(digest=OTHER_DIGEST, content="another", behave="slow")
    process = shop.start()
    seen = set()
    while process.poll() is None:
        seen.add(shop.used.read_text())
        time.sleep(0.002)
    assert process.communicate() is not None and process.returncode == 0
    seen.add(shop.used.read_text())
    assert seen == {"half of an image\n", "half of another\n"}
    assert running.read() == "half of an image\n"
    running.close()
    assert FILE in shop.names(), "the image that a running job has open stays"


def test_a_file_that_no_import_has_made_is_not_written_over(shop: Workshop) -> None:
    shop.staging.mkdir()
    shop.used.write_text("the site's own")
    assert "a file that no import has made" in shop.run(expected=2)
    assert shop.names() == [shop.used.name] and shop.used.read_text() == "the site's own"
    assert shop.enroot.called == []


def test_of_the_staging_folder_only_the_last_part_is_made(tmp_path: Path) -> None:
    shop = Workshop.make(tmp_path, profile(tmp_path, str(tmp_path / "mistyped" / "images")))
    assert "mistyped" in shop.run(expected=1)
    assert not (tmp_path / "mistyped").exists()


# ---- ends other than the good one --------------------------------------------------------------------------------


def test_a_failed_import_leaves_what_was_there_and_no_leftovers_and_says_how_it_ended(shop: Workshop) -> None:
    shop.run()
    before = shop.names()
    shop.enroot.tell(digest=OTHER_DIGEST, behave="fail")
    assert "404 Not Found" in shop.run(expected=3).splitlines()[-1]
    assert shop.names() == before and str(shop.used.readlink()) == FILE
    end = read_record(shop.folder / "end")
    assert end is not None and end.exit_code == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_what_enroot_has_started_at_once_and_leaves_nothing(
    shop: Workshop, number: signal.Signals
) -> None:
    shop.enroot.tell(behave="hang")
    shop.folder.mkdir()
    (shop.folder / "end").write_text("an earlier run's")
    process = shop.start()
    sleeper = shop.enroot.folder / "sleeper"
    wait_until(lambda: sleeper.exists() and bool(sleeper.read_text().strip()))
    assert not (shop.folder / "end").exists()
    began = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=600)
    assert time.monotonic() - began < 10 and process.returncode == 128 + number
    assert shop.names() == []
    assert not _is_running(int(sleeper.read_text()))
    end = read_record(shop.folder / "end")
    assert end is not None and end.exit_code == 128 + number


def make_old(folder: Path) -> None:
    """Let nothing in a folder have changed for more than an hour."""
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() - 2 * 3600,) * 2)


@pytest.mark.fault(
    section="Safety",
    fault="An import of an image is ended by SIGKILL, or its node is lost",
    promise="The next import of that image removes the folder that it left.",
)
@pytest.mark.parametrize("job", ["4711", None])
def test_what_a_killed_import_left_is_removed_by_the_next_one(shop: Workshop, job: str | None) -> None:
    shop.enroot.tell(behave="hang")
    process = shop.start({"SLURM_JOB_ID": job} if job else {})
    sleeper = shop.enroot.folder / "sleeper"
    wait_until(lambda: sleeper.exists() and bool(sleeper.read_text().strip()))
    (left,) = shop.staging.iterdir()
    others = [f".team+torch+1.{rest}" for rest in ("9.9.fresh", "none.1.elsewhere", "5.9.9.n1", f"none.{os.getpid()}.")]
    others = [f"{name}{os.uname().nodename}" if name.endswith(".") else name for name in others]
    for name in (*others, ".team+torch+2.9.9.n1"):
        (shop.staging / name).mkdir()
        if "fresh" not in name:
            make_old(shop.staging / name)
    shop.enroot.tell(behave=None)
    shop.run({"SLURM_JOB_ID": "4712"})
    assert left.exists()  # it may still run
    process.kill()
    process.wait()
    os.kill(int(sleeper.read_text()), signal.SIGKILL)  # it holds the pipes
    process.communicate()
    make_old(left)
    shop.run({"SLURM_JOB_ID": "4713"})
    assert not left.exists()
    assert {name for name in shop.names() if name.startswith(".")} == {*others, ".team+torch+2.9.9.n1"}


def test_a_signal_in_the_moment_of_the_start_ends_enroot_too(shop: Workshop) -> None:
    shop.enroot.tell(behave="hang")
    start = '"$@" </dev/null &\n'
    text = shop.script.read_text()
    assert text.count(start) == 1
    shop.script.write_text(text.replace(start, f"{start}  kill -s TERM $$\n"))
    began = time.monotonic()
    shop.run(expected=128 + signal.SIGTERM)
    assert time.monotonic() - began < 100, "it waited for the end of enroot, which sleeps 300 s"
    assert shop.names() == []


@pytest.mark.parametrize("digest", [DIGEST, None])
def test_two_imports_at_once_do_one_another_no_harm(tmp_path: Path, digest: str | None) -> None:
    shop = Workshop.make(tmp_path, digest=digest)
    shop.enroot.tell(behave="meet")
    both = [shop.start({"SLURM_JOB_ID": number}) for number in ("1", "2")]
    said = [both[0].communicate(timeout=600)[1]]
    first = shop.used.stat().st_ino
    said.append(both[1].communicate(timeout=600)[1])
    assert [process.returncode for process in both] == [0, 0], said
    assert len(shop.enroot.imports) == 2
    file = str(shop.used.readlink())
    assert shop.names() == [shop.used.name, file, f"{file}.json"]
    assert shop.used.read_text() == "half of an image\n" and shop.record()["uri"] == URI
    assert shop.used.stat().st_ino == first, "the first one's file stays: a job may have it open"


def test_a_machine_without_enroot_says_so_and_leaves_nothing(shop: Workshop) -> None:
    (shop.enroot.folder / "enroot").unlink()
    assert "enroot: command not found" in shop.run(expected=127)
    assert shop.names() == []


# ---- what it is given --------------------------------------------------------------------------------------------


def test_a_runtime_folder_that_works_is_enroots_and_else_there_is_one_for_the_import(shop: Workshop) -> None:
    def used(runtime: dict[str, str]) -> list[str]:
        shop.run(runtime)
        return (shop.enroot.folder / "runtime").read_text().splitlines()

    assert used({"XDG_RUNTIME_DIR": str(shop.base)}) == [str(shop.base), "usable"]
    for runtime in ({}, {"XDG_RUNTIME_DIR": "/run/user/of-the-login-node"}):
        folder, usable = used(runtime)
        assert folder.startswith(f"{shop.staging}/.") and usable == "usable"


def test_set_up_lines_of_one_node_come_first_and_may_read_variables_that_nobody_set(tmp_path: Path) -> None:
    text = SITE + (
        "setup:\n  - '[ -z \"$NEVER_SET\" ] && export PATH=$HOME/module:$PATH'\n  - {run: exit 9, when: nodes > 1}\n"
    )
    shop = Workshop.make(tmp_path, profile(tmp_path, text=text))
    shop.enroot.folder.rename(tmp_path / "module")
    shop.run()
    assert shop.used.exists()


NASTY = "'\"\\`$(){}[]<>|&;*?!~#%=, \t€中_-aZ0"
TRICKY = "a'b\"c`touch x`$(touch y)\\ $HOME ${z} #%s;&|*"
FOLDER = st.text(st.sampled_from(NASTY), min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
NAME = st.from_regex(r"[a-z0-9][a-z0-9._/-]{0,12}(:\w[\w.-]{0,8})?", fullmatch=True)
HOST = st.from_regex(r"([A-Za-z0-9.$@_-]{1,10}(:[0-9]{1,4})?)?", fullmatch=True)
SAID = st.text(st.sampled_from(NASTY + "\x01\x1b\x7f"), min_size=1, max_size=15)


@settings(max_examples=examples(25))
@given(staging=FOLDER, name=NAME, host=HOST, user=SAID, machine=FOLDER, version=SAID)
@example(staging=TRICKY, name="a/b:é_1", host="$oauthtoken@h-1.x:99", user=TRICKY, machine=TRICKY, version=TRICKY)
def test_every_value_that_a_profile_may_have_and_a_node_may_say_arrives_as_it_is(
    staging: str, name: str, host: str, user: str, machine: str, version: str
) -> None:
    with TemporaryDirectory() as text:
        base = Path(text)
        cluster = profile(base, str(base / staging), text=SITE.replace("registry.example/team/torch:1", "blank/x:1"))
        says = f"{host}#{name}" if host else f"docker://{name}"
        given_images = cluster.profile.container.model_copy(update={"images": {"pretrain": says}})  # type: ignore[union-attr]
        object.__setattr__(cluster, "profile", cluster.profile.model_copy(update={"container": given_images}))
        shop = Workshop.make(base, cluster)
        shop.enroot.tell(version=version)
        for command, word in (("id", user), ("hostname", machine)):
            (shop.enroot.folder / command).write_text(f'#!/bin/bash\ncat "$(dirname "$0")/{command}.says"\n')
            (shop.enroot.folder / command).chmod(0o755)
            shop.enroot.tell(**{f"{command}.says": word})
        (base / "empty").mkdir()
        shop.base = base / "empty"
        shop.run()
        assert list((base / "empty").iterdir()) == []
        location = cluster.image_location("pretrain")
        assert location is not None
        used = Path(location)
        row = image_rows(cluster)[0]
        assert (row.there, row.digest, row.source) == ("yes", DIGEST, location)
        found = json.loads(Path(f"{used.resolve()}.json").read_text())
        assert found["uri"] == f"docker://{host}#{name}" if host else f"docker://{name}"
        assert found["tool"] == "enroot " + _printable(version) and found["user"] == _printable(user)
        assert found["host"] == _printable(machine)
        assert sorted(path.name for path in used.parent.iterdir()) == sorted(
            [used.name, used.resolve().name, f"{used.resolve().name}.json"]
        )


def _printable(text: str) -> str:
    return "".join(character for character in text if ord(character) >= 32 and character != "\x7f")


# ---- apptainer ---------------------------------------------------------------------------------------------------

APPTAINER = SITE.replace("pyxis", "apptainer")


def test_apptainer_pulls_into_a_sif_file_by_the_same_protocol(tmp_path: Path) -> None:
    shop = Workshop.make(tmp_path, profile(tmp_path, site=f"architecture: {os.uname().machine}", text=APPTAINER))
    shop.run()
    digest = hashlib.sha256(b"half of an image\n").hexdigest()
    file = f"team+torch+1@sha256-{digest[:12]}.sif"
    assert shop.names() == ["team+torch+1.sif", file, f"{file}.json"]
    assert shop.enroot.imports[0].endswith(" docker://registry.example/team/torch:1")
    record = json.loads((shop.staging / f"{file}.json").read_text())
    assert (record["tool"], record["digest_of"]) == ("apptainer version 1.4.0", "file")
    (row,) = image_rows(profile(tmp_path, text=APPTAINER))
    assert (row.there, row.digest_of) == ("yes", "file")


def test_apptainer_on_a_machine_of_another_kind_imports_nothing(tmp_path: Path) -> None:
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    shop = Workshop.make(tmp_path, profile(tmp_path, site=f"architecture: {other}", text=APPTAINER))
    assert f"jobs run on {other}" in shop.run(expected=2)
    assert shop.names() == [] and shop.enroot.imports == []


# ---- the script itself -------------------------------------------------------------------------------------------

EVERYTHING = """\
about: a cluster whose every word matters to an import
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {bf16: 312}}
slurm:
  project: abc
  account: "{project} #7"
  partition: gpus
  qos: [{name: large, min_nodes: 2}, {name: dev, max_gpus: 4, max_time: 0:20:00}, {name: small, max_time: 0:40:00}]
  constraint: a100&ib
  reservation: mine
  time_limit: 8:00:00
  gpu_request: gres
  gres_type: a100
  exclusive: true
  cpus_per_task: 12
  mem: 64G
  sbatch: ["--mail-type=FAIL", "--mcs-label=it's \\"ours\\"", "--spread-job", "-Ca#b"]
  srun: ["--cpu-bind=cores"]
container:
  runtime: pyxis
  images: {pretrain: registry.example/team/torch:1}
setup: [umask 027, {run: exit 1, when: nodes > 1}]
"""


def test_the_job_is_one_task_without_a_gpu_where_the_profile_sends_jobs(tmp_path: Path) -> None:
    script = render_import(profile(tmp_path, text=EVERYTHING), "pretrain", Path("/home/me/%j/i"), TEMPLATES)
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert lines == [
        "--job-name=import-team+torch+1",
        '--account="abc #7"',
        "--partition=gpus",
        "--qos=small",
        "--constraint=a100&ib",
        "--reservation=mine",
        "--cpus-per-task=12",
        "--mem=64G",
        "--nodes=1",
        "--ntasks=1",
        "--time=0:40:00",
        "--no-requeue",
        "--mail-type=FAIL",
        '--mcs-label="it\'s \\"ours\\""',
        "--spread-job",
        '"-Ca#b"',
        "--output=/home/me/%%j/i/log.txt",
    ]


@pytest.mark.parametrize(
    ("limits", "limit"), [("", "1:00:00"), ("max_time: 0:05:00", "0:05:00"), ("max_time: 2-00:00:00", "1:00:00")]
)
def test_an_import_asks_for_an_hour_or_what_the_site_allows(tmp_path: Path, limits: str, limit: str) -> None:
    text = SITE.replace("time_limit: 0:30:00", f"time_limit: 0:01:00, {limits}")
    script = render_import(profile(tmp_path, text=text), "pretrain", tmp_path, TEMPLATES)
    assert f"#SBATCH --time={limit}\n" in script


@pytest.mark.parametrize(
    ("text", "site"),
    [
        (SITE, ""),
        (SITE, "architecture: x86_64"),
        (APPTAINER, ""),
        (APPTAINER, "architecture: aarch64"),
        (EVERYTHING, ""),
    ],
)
def test_bash_reads_it_and_shellcheck_finds_nothing(tmp_path: Path, text: str, site: str) -> None:
    script = tmp_path / "import.sh"
    cluster = profile(tmp_path, str(tmp_path / "it's $HOME"), site, text)
    script.write_text(render_import(cluster, "pretrain", tmp_path / "a folder", TEMPLATES))
    answer = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed: apt-get install shellcheck"
        warnings.warn("shellcheck is not installed, so no script was checked by it", stacklevel=1)
        return
    answer = subprocess.run(["shellcheck", "--shell=bash", script], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


# ---- how imports stand -------------------------------------------------------------------------------------------


def test_an_import_that_has_ended_needs_no_scheduler_to_say_how(shop: Workshop) -> None:
    one = Import("pretrain", shop.used, shop.folder, job_id="17")
    shop.run()
    assert import_progress([one]) == import_progress([])
    shop.enroot.tell(behave="fail", digest=OTHER_DIGEST)
    (shop.folder / "log.txt").write_text("...\n" + shop.run(expected=3) + "no\x1b[2J room\n\x1b[0m\n")
    failures = import_progress([one]).failures
    assert failures == {"pretrain": "ended with exit code 3: no room"}


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The registry requires credentials, and enroot has none",
    promise="The import fails with a hint to enroot's file of credentials.",
)
@pytest.mark.parametrize(
    "line",
    [
        "[INFO] Authenticating with user: <anonymous>",
        "[ERROR] URL https://registry.example/v2/ returned error code: 401 Unauthorized",
    ],
)
def test_a_registry_that_wants_credentials_gives_a_hint_to_enroots_file_of_them(line: str, shop: Workshop) -> None:
    shop.run()
    end = shop.folder / "end"
    end.write_text(end.read_text().replace("exit_code=0", "exit_code=1"))
    (shop.folder / "log.txt").write_text(f"[INFO] Querying registry for permission grant\n{line}\n")
    failures = import_progress([Import("pretrain", shop.used, shop.folder, job_id="17")]).failures
    assert failures["pretrain"].startswith(f"ended with exit code 1: {line}; if the registry wants credentials: add ")
    assert failures["pretrain"].endswith("to enroot's .credentials, in $ENROOT_CONFIG_PATH or ~/.config/enroot")


@pytest.mark.parametrize(
    ("state", "states", "failures"),
    [
        ("PENDING", {"pretrain": "PENDING"}, {}),
        ("COMPLETED", {}, {}),
        ("CANCELLED", {}, {"pretrain": "job 17 ended as CANCELLED"}),
        (None, {"pretrain": "UNKNOWN"}, {}),
    ],
)
def test_of_an_import_without_a_record_of_its_own_slurm_is_asked_and_a_missing_row_is_no_end(
    shop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    state: str | None,
    states: dict[str, str],
    failures: dict[str, str],
) -> None:
    row = JobRecord("17", state or "", "", "", None, None, "", None, None, "squeue")
    answer = QueryAnswer({"17": row} if state else {})
    monkeypatch.setattr("orchestrator.launch.images.query_jobs", lambda *_: answer)
    progress = import_progress([Import("pretrain", shop.used, shop.folder, job_id="17")])
    assert (progress.states, progress.failures) == (states, failures)


def test_from_a_scheduler_out_of_reach_nothing_is_concluded(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> QueryAnswer:
        raise Unreachable("squeue: no answer")

    monkeypatch.setattr("orchestrator.launch.images.query_jobs", away)
    progress = import_progress([Import("pretrain", shop.used, shop.folder, job_id="17")])
    assert progress.states == {"pretrain": "UNKNOWN"} and progress.complaints == ("squeue: no answer",)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
