"""What sbatch and srun say before there is a job: stand-ins for both, the real planner and templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.clusters.check import Finding
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Unreachable
from orchestrator.launch.cluster_check import option_findings, submission_findings
from orchestrator.paths import Folders
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import CHECKOUT, cluster_of

PROFILE = """\
about: a cluster of the tests
scheduler: slurm
hardware: {nodes: 8, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {bf16: 312, fp16: 312}}
slurm: {time_limit: 1:00:00, partition: gpus, qos: normal}
programs:
  pretrain: {python: /opt/python}
"""

# Reads its words as Slurm's commands do: in order, and --help ends it.
COMMAND = """#!/bin/bash
name=$(basename "$0")
echo "$name $*" >>"$SEEN"
for word; do
  case $word in
    --help) printf '%s\\n' '  -u, --unbuffered    do not buffer' '      --mail-type=type    mail'; exit 0 ;;
    --unbuffered | --mail-type=* | --cpu-bind=cores) ;;
    --mem-bind=*) echo "$name: error: unrecognized --mem-bind argument" >&2; exit 255 ;;
    --test-only) cat "${@: -1}" >>"$SEEN"; eval "$ANSWER"; exit ;;
    -*) echo "$name: unrecognized option '$word'" >&2; echo "Try \\"$name --help\\"" >&2; exit 255 ;;
  esac
done
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """srun and sbatch, and the file of what they were asked; $ANSWER is what --test-only does."""
    (tmp_path / "bin").mkdir()
    for name in ("srun", "sbatch"):
        (tmp_path / "bin" / name).write_text(COMMAND)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("ANSWER", "echo 'sbatch: Job 7 to start at noon using 8 processors' >&2")
    return tmp_path / "seen"


def told(found: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(one.result, f"{one.check}: {one.found}", one.hint) for one in found]


# ---- free options --------------------------------------------------------------------------------------------


def test_words_that_the_commands_know_are_right_and_were_asked_without_running_anything(
    tmp_path: Path, commands: Path
) -> None:
    options = 'slurm: {cpu_bind: cores, srun: ["--unbuffered"], sbatch: ["--mail-type=FAIL"]}\n'
    found = option_findings(cluster_of(tmp_path, PROFILE, options))
    assert [(one.result, one.found) for one in found] == [
        *(("ok", "--cpu-bind=cores"), ("ok", "--unbuffered"), ("ok", "--mail-type=FAIL"))
    ]
    asked = ["srun --cpu-bind=cores --help", "srun --unbuffered --help", "sbatch --mail-type=FAIL --help"]
    assert commands.read_text().splitlines() == asked


@pytest.mark.usefixtures("commands")
def test_words_that_they_do_not_know_are_named_with_the_nearest_and_their_place(tmp_path: Path) -> None:
    options = 'slurm:\n  srun: ["--unbufered", --mem-bind=zz]\n  sbatch: [--zzzzzz=1, "--"]\n'
    found = option_findings(cluster_of(tmp_path, PROFILE, options))
    assert told(found) == [
        ("wrong", "slurm.srun: srun has no --unbufered", 'did you mean "--unbuffered"?'),
        (
            "wrong",
            "slurm.srun: --mem-bind=zz: srun reports: unrecognized --mem-bind argument",
            "srun --help lists its options",
        ),
        ("wrong", "slurm.sbatch: sbatch has no --zzzzzz", "remove it"),
        ("wrong", "slurm.sbatch: -- is not an option", "remove it"),
    ]
    assert [str(one.location).rpartition("/")[2] for one in found] == [
        f"site.local.yaml:{at}" for at in ("2:10", "2:25", "3:12", "3:24")
    ]


def test_variables_of_the_shell_do_not_change_the_answer(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\nenv | grep -E "^(SLURM|SBATCH|PYXIS)_" >"$SEEN"\n')
    monkeypatch.setenv("PYXIS_CONTAINER_IMAGE", "left")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    option_findings(cluster_of(tmp_path, PROFILE, 'slurm: {srun: ["--unbuffered"]}\n'))
    assert commands.read_text() == "SLURM_CONF=/etc/slurm.conf\n"


# ---- jobs of an experiment -----------------------------------------------------------------------------------


def submitted(cluster: Cluster, folder: Path, experiment: str = "figure-13", scale: str = "cpu") -> list[Finding]:
    entry = shipped(experiment)
    return submission_findings(entry, expand(entry, scale), cluster, Folders(shipped=CHECKOUT, home=folder))


def test_the_smallest_and_the_largest_job_are_tried_and_nothing_is_left(tmp_path: Path, commands: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    found = submitted(cluster_of(tmp_path, PROFILE), tmp_path)
    assert [(one.result, one.check) for one in found] == [
        ("ok", "sbatch --test-only sc21/figure-13 pp=1,tp=4,gbs=4"),
        ("ok", "sbatch --test-only sc21/figure-13 pp=4,tp=1,gbs=16"),
    ]
    assert found[0].found == "1 node for 0:30:00: Job 7 to start at noon using 8 processors"
    assert commands.read_text().count("#SBATCH --partition=gpus") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "clusters", "seen"])


@pytest.mark.usefixtures("commands")
def test_what_sbatch_refuses_is_a_fault_at_the_field_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSWER", "echo 'allocation failure: Invalid qos specification' >&2; exit 1")
    cluster = cluster_of(tmp_path, PROFILE)
    first, _ = submitted(cluster, tmp_path)
    assert (first.result, first.found) == ("wrong", "1 node for 0:30:00: Invalid qos specification")
    assert first.location == cluster.location(("slurm", "qos")) and "correct `qos`" in str(first.hint)


def test_an_experiment_that_fits_nowhere_is_a_fault_with_the_scales_and_asks_slurm_nothing(
    tmp_path: Path, commands: Path
) -> None:
    cluster = cluster_of(tmp_path, PROFILE, "hardware: {nodes: 2}\n")
    (fault,) = submitted(cluster, tmp_path, scale="paper")
    assert (fault.result, fault.check) == ("wrong", "plan")
    assert fault.found == "figure-13 all 10 cases: needs 64 GPUs, site has 2 x 8 = 16"
    assert fault.hint == "--scale quad, pair or cpu fits" and not commands.exists()


@pytest.mark.usefixtures("commands")
def test_of_an_experiment_of_many_sizes_the_largest_that_fits_is_tried_and_the_others_are_no_fault(
    tmp_path: Path,
) -> None:
    sites = "".join(f"    {name}: /x/{name}\n" for name in ("checkout", "data_path", "vocab_file", "merge_file"))
    cluster = cluster_of(tmp_path, PROFILE, f"hardware: {{nodes: 20}}\nprograms:\n  megatron-2021:\n{sites}")
    found = submitted(cluster, tmp_path, "table-1", "paper")
    assert {one.result for one in found} == {"ok", "not checked"}
    sizes = [one.found.partition(" node")[0] for one in found if one.result == "ok"]
    assert sizes == ["4", "16"], "of 32, 64, 128, 256 ... GPUs"
    assert any("needs 256 GPUs, site has 20 x 8 = 160" in one.found for one in found)


@pytest.mark.usefixtures("commands")
def test_what_the_profile_lacks_for_the_experiment_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    (no_image,) = submitted(cluster_of(tmp_path, PROFILE, "container: {runtime: pyxis}\n"), tmp_path)
    assert (no_image.result, no_image.found) == ("wrong", "site has no container image for pretrain")
    (no_site,) = submitted(cluster_of(tmp_path, PROFILE, "{}"), tmp_path, scale="paper")
    assert no_site.result == "wrong" and "megatron-2021" in no_site.found
    blank = "container: {runtime: pyxis, images: {pretrain: <file>}}\n"
    (is_open,) = submitted(cluster_of(tmp_path, PROFILE, blank), tmp_path)
    assert is_open.result == "wrong" and "not filled in" in is_open.found


@pytest.mark.usefixtures("commands")
def test_a_controller_that_is_away_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "sbatch: error: Unable to contact slurm controller (connect failure)"
    monkeypatch.setenv("ANSWER", f"echo '{words}' >&2; exit 1")
    with pytest.raises(Unreachable):
        submitted(cluster_of(tmp_path, PROFILE), tmp_path)
