"""run_slurm against small programs that stand in for Slurm's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import Unreachable
from orchestrator.slurm import command
from orchestrator.slurm.command import (
    DEFAULT_MAX_ARRAY_SIZE,
    AccountingUnreachable,
    last_words,
    most_in_array,
    read_settings,
    run_slurm,
    unreachable_from,
)


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_result_is_what_the_program_said(tmp_path: Path) -> None:
    result = run_slurm([program(tmp_path, "squeue", 'echo "out $1"; echo err >&2; exit 4'), "a b;$(id)"])
    assert (result.returncode, result.stdout, result.stderr) == (4, "out a b;$(id)\n", "err\n")


def test_output_formats_of_the_user_are_dropped_and_the_choice_of_cluster_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_FORMAT", "SQUEUE_ALL", "SACCT_FORMAT", "SINFO_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "mine")
    for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "kept")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    out = run_slurm([program(tmp_path, "squeue", "env")], variables={"SLURM_TIME_FORMAT": "%s"}).stdout.splitlines()
    assert not [line for line in out if line.endswith("=mine")]
    assert {"SLURM_CONF=kept", "SLURM_CLUSTERS=kept", "SBATCH_ACCOUNT=kept"} <= set(out)
    assert {"LC_ALL=C", "SLURM_TIME_FORMAT=%s"} <= set(out)


def test_a_missing_command_sends_the_user_to_a_login_node() -> None:
    with pytest.raises(Unreachable, match=r"no-such-squeue.*login node"):
        run_slurm(["no-such-squeue"])


def test_a_command_that_hangs_is_given_up_in_time_with_what_it_said(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"no answer within 0\.3 s \(thinking\)"):
        run_slurm([program(tmp_path, "squeue", "echo thinking >&2; exec sleep 30")], timeout_s=0.3)
    assert time.monotonic() - began < 5


def test_bytes_that_are_no_utf8_do_not_break_a_query(tmp_path: Path) -> None:
    assert "\ufffd" in run_slurm([program(tmp_path, "squeue", r"printf '\xff\n'")]).stdout


@pytest.mark.parametrize(
    "stderr",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Connection reset by peer",
        "sbatch: error: Batch job submission failed: Transport endpoint is not connected",
        "sbatch: error: Batch job submission failed: Broken pipe",
        "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "squeue: fatal: Could not establish a configuration source",
        "sbatch: error: s_p_parse_file: cannot stat file /nonexistent/slurm.conf: No such file or directory\n"
        "sbatch: fatal: Unable to process configuration file",
    ],
)
def test_a_controller_out_of_reach_is_not_taken_for_an_answer(tmp_path: Path, stderr: str) -> None:
    (tmp_path / "words").write_text(stderr)
    with pytest.raises(Unreachable) as caught:
        run_slurm([program(tmp_path, "squeue", f"cat {tmp_path}/words >&2; exit 1")])
    assert not isinstance(caught.value, AccountingUnreachable)
    assert caught.value.problems[0].hint


@pytest.mark.parametrize(
    "stderr",
    [
        "Slurm accounting storage is disabled",
        "You are not running a supported accounting_storage plugin\nOnly 'accounting_storage/slurmdbd' is supported.",
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to "
        "host:127.0.0.1:16819: Connection refused\n"
        "sacct: error: Sending PersistInit msg: Connection refused\n"
        "sacct: error: Problem talking to the database: Connection refused",
    ],
)
def test_accounting_that_is_off_or_away_is_told_apart_from_the_controller(stderr: str) -> None:
    assert isinstance(unreachable_from("sacct", stderr), AccountingUnreachable)


@pytest.mark.parametrize(
    "stderr", ["", "slurm_load_jobs error: Invalid job id specified", "squeue: error: Invalid user"]
)
def test_an_ordinary_failure_is_no_unreachable_scheduler(stderr: str) -> None:
    assert unreachable_from("squeue", stderr) is None


def test_a_noisy_success_is_a_success(tmp_path: Path) -> None:
    script = "echo 'Unable to contact slurm controller (connect failure)' >&2; echo 1"
    assert run_slurm([program(tmp_path, "squeue", script)]).stdout == "1\n"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("", ""),
        ("a\n\n", "a"),
        ("sacct: error: x: y\n", "x: y"),
        ("slurm_load_jobs error: Invalid job id specified", "slurm_load_jobs error: Invalid job id specified"),
    ],
)
def test_last_words_keep_the_message_and_drop_the_command(stderr: str, words: str) -> None:
    assert last_words(stderr) == words


def with_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program(folder, "scontrol", text)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_site_that_does_not_show_its_settings_has_slurms_limit_of_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_scontrol(tmp_path, monkeypatch, "echo 'slurm_load_ctl_conf error: Access/permission denied' >&2; exit 1")
    assert read_settings(if_allowed=True) == {}
    assert most_in_array() == DEFAULT_MAX_ARRAY_SIZE
    with pytest.raises(Unreachable, match="permission denied"):
        read_settings()


def test_without_a_controller_no_limit_is_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_scontrol(tmp_path, monkeypatch, "echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Unreachable):
        most_in_array()


def test_the_limit_of_an_array_is_read_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_scontrol(tmp_path, monkeypatch, "echo 'MaxArraySize            = 4'")
    assert most_in_array() == 4


def test_asking_the_scheduler_does_not_load_heavy_libraries() -> None:
    code = (
        "import sys, orchestrator.slurm.command, orchestrator.slurm.reasons\n"
        "print(*{'pydantic', 'sqlalchemy', 'submitit', 'jinja2', 'typer', 'rich', 'yaml', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_asked_cluster_is_named_to_every_command_that_has_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("squeue", "sacct", "scontrol", "scancel", "sbatch"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$*"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def words(name: str) -> str:
        return command.run_slurm([name, "a"]).stdout.strip()

    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    assert {words(name) for name in ("squeue", "sacct", "scontrol", "scancel", "sbatch")} == {"a"}
    with command.on_cluster("gpu"):
        assert {words(name) for name in ("squeue", "sacct", "scontrol", "scancel")} == {"--clusters=gpu a"}
        assert words("sbatch") == "a", "its script names the cluster"
        with command.on_cluster(None):
            assert words("sacct") == "--clusters=gpu a"
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    assert words("sacct") == "--clusters=other a", "sacct does not read this variable"


def test_another_cluster_is_asked_only_if_it_is_the_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "ClusterName = gpu\nSlurmctldHost[0] = c2\nSlurmctldPort = 6817"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{shown}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))
    for identity, is_reached in (
        (None, True),
        ("ci@c1:6817", True),
        ("gpu@c2:6817", True),
        ("gpu@c3:6817", False),
        ("cpu@c2:6817", False),
    ):
        with command.at(identity, "ci@c1:6817") as reached:
            assert reached is is_reached, identity
