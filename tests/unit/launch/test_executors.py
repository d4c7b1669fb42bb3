"""submitit's side: our executor as its plug-in, what it tells sbatch and what it makes of the answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from submitit.core.plugins import get_executors
from submitit.core.utils import FailedSubmissionError

from orchestrator.clusters.resolve import find_cluster
from orchestrator.errors import ReproError, Unreachable
from orchestrator.launch.directives import directive
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.preflight import require_scheduler
from tests.stand_in_site import CHECKOUT, Site

parse = SlurmScriptExecutor._get_job_id_from_submission_command


def fake_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A program that stands in for sbatch, first on PATH."""
    folder.mkdir()
    (folder / "sbatch").write_text(f"#!/bin/bash\n{body}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_submitit_finds_the_executor_by_its_entry_point_and_never_chooses_it_by_itself() -> None:
    assert get_executors()["slurm-script"] is SlurmScriptExecutor
    assert SlurmScriptExecutor.affinity() <= 1


@pytest.mark.parametrize(
    "said",
    ["17", "17\n", "Welcome!\nmaintenance on 24.12.\n17\n", b"17\n"],
)
def test_the_job_id_is_read_from_behind_what_administrators_print(said: str | bytes) -> None:
    assert parse(said) == "17"
    assert parse("sbatch: note\n17;selene \n") == "17;selene"


@pytest.mark.parametrize(("said", "cluster"), [("17", None), ("17;gpu", "gpu")])
def test_the_cluster_that_sbatch_prints_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, cluster: str | None
) -> None:
    fake_sbatch(tmp_path / "bin", monkeypatch, f"echo '{said}'")
    executor = SlurmScriptExecutor(tmp_path / "jobs")
    assert (executor.submit_script("#!/bin/bash\n", "repro:feed"), executor.cluster) == ("17", cluster)


@pytest.mark.parametrize("said", ["", "\n", "Submitted batch job 17", "17 18", "17;", "-3", "17\nbye", b"\xff\xfe"])
def test_what_is_no_job_id_is_not_guessed_at(said: str | bytes) -> None:
    with pytest.raises(FailedSubmissionError, match="sbatch gave no job id"):
        parse(said)


def test_variables_that_would_win_over_the_script_are_unset_and_those_that_choose_the_cluster_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_PARTITION", "SLURM_JOB_ID", "SLURM_EXPORT_ENV", "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"):
        monkeypatch.setenv(name, "x")
    fake_sbatch(
        tmp_path / "bin", monkeypatch, f'env >"{tmp_path}/env"; printf "%s\\n" "$@" >"{tmp_path}/words"; echo 17'
    )
    assert SlurmScriptExecutor(tmp_path / "jobs").submit_script("#!/bin/bash\n", "repro:feed") == "17"
    there = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert {name for name in there if name.startswith(("SBATCH", "SLURM"))} == {
        "SLURM_CONF",
        "SLURM_CLUSTERS",
        "SLURM_JWT",
    }
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:2] == ["--parsable", "--comment=repro:feed"] and words[2].endswith(".sh")


@pytest.mark.parametrize(
    ("of_site", "joined"),
    [
        (None, "repro:feed"),
        ("group 7", "repro:feed group 7"),
        ('{"Reaper": {"minutes": "60"}}', '{"Reaper": {"minutes": "60"}, "repro": "repro:feed"}'),
        ("{}", '{"repro": "repro:feed"}'),
        ("[1]", "repro:feed [1]"),
        ('a "quoted" \\ # text', 'repro:feed a "quoted" \\ # text'),
    ],
)
def test_the_token_is_joined_to_the_comment_of_the_site_which_can_parse_it_as_before(
    of_site: str | None, joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sbatch(tmp_path / "bin", monkeypatch, f'printf "%s\\n" "$@" >"{tmp_path}/words"; echo 17')
    line = f"#SBATCH {directive('comment', of_site).words[0]}\n" if of_site else ""
    SlurmScriptExecutor(tmp_path / "jobs").submit_script(f"#!/bin/bash\n{line}", "repro:feed")
    assert (tmp_path / "words").read_text().splitlines()[1] == f"--comment={joined}"


def test_the_text_that_was_rendered_is_the_text_that_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sbatch(tmp_path / "bin", monkeypatch, f'cat "${{@: -1}}" >"{tmp_path}/text"; echo 17')
    text = "#!/bin/bash\n#SBATCH --nodes=2\necho 'as it is' \\\n  ü\n"
    SlurmScriptExecutor(tmp_path / "jobs").submit_script(text, "repro:feed")
    assert (tmp_path / "text").read_text() == text


def test_a_rejection_has_the_schedulers_words_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_sbatch(
        tmp_path / "bin",
        monkeypatch,
        'echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2; exit 1',
    )
    with pytest.raises(ReproError, match="[Pp]artition") as caught:
        SlurmScriptExecutor(tmp_path / "jobs").submit_script("#!/bin/bash\n", "repro:feed")
    assert caught.value.exit_code == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.fault(
    section="Submissions",
    fault="A site's sbatch prints a banner and its refusal on stdout",
    promise="The refusal is shown without the banner.",
)
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            r"------\n  Welcome to the site\n------\n\n--> Verifying the host...OK\n"
            r"--> Submission error: give a queue with \"-p\"\n\n",
            'Submission error: give a queue with "-p"',
        ),
        (
            r"  Welcome\n--> Verifying access...FAILED\n\n  [*] Too many nodes\n",
            "Verifying access...FAILED: [*] Too many nodes",
        ),
        (r"Welcome\nmaintenance of the queue\n====\n", "maintenance of the queue"),
        ("", "the scheduler refused the job without a message"),
    ],
)
def test_a_refusal_on_stdout_is_shown_without_the_banner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, shown: str
) -> None:
    fake_sbatch(tmp_path / "bin", monkeypatch, f"""printf -- '{said}'; exit 1""")
    with pytest.raises(ReproError) as caught:
        SlurmScriptExecutor(tmp_path / "jobs").submit_script("#!/bin/bash\n", "repro:feed")
    assert str(caught.value).partition(". Hint: ")[0] == shown


def test_a_controller_that_does_not_answer_is_no_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
    fake_sbatch(tmp_path / "bin", monkeypatch, body)
    with pytest.raises(Unreachable):
        SlurmScriptExecutor(tmp_path / "jobs").submit_script("#!/bin/bash\n", "repro:feed")


@pytest.mark.fault(
    section="Submissions",
    fault="sbatch ends with exit code 0 and prints no job id",
    promise="No id is assumed. `repro` asks the queue for the token.",
)
def test_from_an_answer_without_a_job_id_nothing_is_concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sbatch(tmp_path / "bin", monkeypatch, "echo 'Submitted to the moon'")
    with pytest.raises(
        Unreachable, match="sbatch gave no job id: Submitted to the moon. Hint: `repro status` looks for it"
    ):
        SlurmScriptExecutor(tmp_path / "jobs").submit_script("#!/bin/bash\n", "repro:feed")


def test_a_machine_without_sbatch_is_refused_before_anything_is_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = site.folder / "clusters" / "there.yaml"
    profile.write_text(
        "about: a cluster\nscheduler: slurm\nhardware: {nodes: 1, gpus_per_node: 4}\nslurm: {time_limit: '0:10:00'}\n"
    )
    cluster = find_cluster(site.folders, str(profile))
    monkeypatch.setenv("PATH", "/nowhere")
    require_scheduler(site.cluster(), site.folders)
    with pytest.raises(Unreachable, match="^sbatch is not on this machine. Hint: run this on a login node") as caught:
        require_scheduler(cluster, site.folders)
    assert caught.value.exit_code == 3
    for name, body in (("sbatch", ""), ("scontrol", "echo 'Slurmctld(primary) at c1 is UP'")):
        (site.folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (site.folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(site.folder))
    require_scheduler(cluster, site.folders)
    with pytest.raises(ReproError, match="Slurm would replace the %"):
        require_scheduler(cluster, type(site.folders)(CHECKOUT, site.folder / "50%a"))
    with pytest.raises(ReproError, match=r"50\\a/runs: Slurm cannot write output below a folder with a backslash"):
        require_scheduler(cluster, type(site.folders)(CHECKOUT, site.folder / "50\\a"))
    (site.folder / "scontrol").write_text("#!/bin/bash\necho 'Slurmctld(primary) at c1 is DOWN'; exit 1\n")
    with pytest.raises(Unreachable, match="c1 is DOWN. Hint: try again when slurmctld answers"):
        require_scheduler(cluster, site.folders)
