"""Fields of a profile, and values that are refused before a submission."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.clusters.resolve import find_cluster
from orchestrator.config.yaml import parse_settings
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from tests.unit.clusters.sites import PLAIN, cluster_of, short

CONTAINER = PLAIN + "container: {runtime: pyxis, %s}\n"


def messages(folder: Path, text: str) -> list[str]:
    with pytest.raises(ReproError) as caught:
        cluster_of(folder, text)
    return [short(problem) for problem in caught.value.problems]


def slurm(line: str) -> str:
    return PLAIN.replace("time_limit: 1:00:00", f"time_limit: 1:00:00, {line}")


@pytest.mark.parametrize("limit", ["30", "1:00", "0:00:00", "1h", "no", "'-1:00:00'"])
def test_a_time_limit_that_slurm_would_read_otherwise_is_refused(tmp_path: Path, limit: str) -> None:
    (only,) = messages(tmp_path, PLAIN.replace("1:00:00", limit))
    assert only.startswith("site.yaml:4:9 slurm.time_limit: ")


@pytest.mark.parametrize("image", ["pytorch.sqsh", "images/pytorch.sqsh", "x.squashfs", "x.sif"])
def test_an_image_file_without_a_path_is_refused_because_pyxis_reads_it_as_a_registry_name(
    tmp_path: Path, image: str
) -> None:
    (only,) = messages(tmp_path, CONTAINER % f"images: {{a: {image}}}")
    assert only.startswith("site.yaml:5:38 container.images.a: an image file needs a path, /... or ./...")


@pytest.mark.parametrize("image", ["/images/x.sqsh", "./x.sqsh", "registry.example#nvidia/pytorch:24.05-py3", "ubuntu"])
def test_paths_and_registry_names_are_images(tmp_path: Path, image: str) -> None:
    container = cluster_of(tmp_path, CONTAINER % f"images: {{a: '{image}'}}").profile.container
    assert container is not None and container.images == {"a": image}


@pytest.mark.parametrize("mount", ["data", "data:/data", "/a:/a,/b:/b", "~/x"])
def test_mounts_that_pyxis_refuses_or_divides_are_refused(tmp_path: Path, mount: str) -> None:
    (only,) = messages(tmp_path, CONTAINER % f"mounts: ['{mount}']")
    assert only.startswith("site.yaml:5:38 container.mounts.0: ") and "mount" in only


@pytest.mark.parametrize("place", ["sbatch", "srun"])
@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("--container-image=x", "container options belong to container:"),
        ("--container-mounts=/a:/b", "container options belong to container:"),
        ("--no-container-mount-home", "container options belong to container:"),
        ("mem=5", "an argument must start with -"),
        ("-p batch", "an argument must be one word, --name=value"),
        ("--comment a=b", "an argument must be one word, --name=value"),
        ("--comment=a\\nb", "must match ^"),
        ("--x=\\0", "must match ^"),
        ("", "must match ^"),
    ],
)
def test_free_arguments_that_would_break_a_script_are_refused(
    tmp_path: Path, place: str, argument: str, why: str
) -> None:
    (only,) = messages(tmp_path, slurm(f'{place}: ["{argument}"]'))
    assert f"slurm.{place}.0: {why}" in only


def test_other_free_arguments_are_kept(tmp_path: Path) -> None:
    profile = cluster_of(tmp_path, slurm("sbatch: [--licenses=a b, -H], srun: ['--mpi=pmix']")).profile
    assert profile.slurm is not None
    assert (profile.slurm.sbatch, profile.slurm.srun) == (["--licenses=a b", "-H"], ["--mpi=pmix"])


@pytest.mark.parametrize(
    ("comment", "why"),
    [("a\\nb", "must match ^"), ("repro:feed", "must not contain repro:, with which the token of a job begins")],
)
def test_a_comment_is_one_line_without_a_token(tmp_path: Path, comment: str, why: str) -> None:
    (only,) = messages(tmp_path, slurm(f'comment: "{comment}"'))
    assert f"slurm.comment: {why}" in only


@pytest.mark.parametrize("argument", ["--comment=billing", "--output=x", "--array=0-3", "--requeue"])
def test_an_argument_that_would_take_our_own_place_is_refused_with_the_reason(tmp_path: Path, argument: str) -> None:
    with pytest.raises(ReproError, match="is set by repro: "):
        cluster_of(tmp_path, slurm(f"sbatch: [{argument}]"))


@pytest.mark.parametrize("argument", ["--clusters=gpu", "--cluster=gpu"])
def test_a_cluster_of_the_site_is_an_option_of_sbatch(tmp_path: Path, argument: str) -> None:
    assert cluster_of(tmp_path, slurm(f"sbatch: [{argument}]")).profile.slurm_cluster == "gpu"
    assert cluster_of(tmp_path, slurm("sbatch: [-H]")).profile.slurm_cluster is None


@pytest.mark.parametrize("argument", ["-Mgpu", "--clusters", "'--clusters=gpu,cpu'", "--clusters=all gpu"])
def test_more_than_one_cluster_or_its_short_option_is_refused_with_the_form_to_use(
    tmp_path: Path, argument: str
) -> None:
    with pytest.raises(ReproError, match=r"site\.yaml:\d+:\d+.*--clusters=NAME"):
        cluster_of(tmp_path, slurm(f"sbatch: [{argument}]"))


def test_environment_values_are_text_or_whole_numbers_as_they_were_typed(tmp_path: Path) -> None:
    line = "environment: {A: no, B: 4, C: off, D: 08, E: '', F: 'true', G: 1:30:00, H: 0x10}\n"
    assert cluster_of(tmp_path, PLAIN + line).profile.environment == {
        "A": "no",
        "B": "4",
        "C": "off",
        "D": "08",
        "E": "",
        "F": "true",
        "G": "1:30:00",
        "H": "0x10",
    }


@pytest.mark.parametrize("value", ["true", "~", "1.5", "[1]"])
def test_an_environment_value_of_which_the_text_is_not_certain_is_refused_once(tmp_path: Path, value: str) -> None:
    (only,) = messages(tmp_path, PLAIN + f"environment: {{A: {value}}}\n")
    assert only.startswith("site.yaml:5:15 environment.A: must be text or an integer; use quotes for text")


def test_a_value_with_other_fields_than_value_and_when_is_refused_at_each(tmp_path: Path) -> None:
    lines = messages(tmp_path, PLAIN + "environment: {A: {a: 1, when: nodes > 1}}\n")
    assert (
        "site.yaml:5:15 value: missing. Hint: add value: (value of the variable: one line of text, or an integer)"
        in lines
    )
    assert "site.yaml:5:19 a: unknown field. Hint: known fields: value, when" in lines


def test_an_environment_value_of_two_lines_is_refused(tmp_path: Path) -> None:
    lines = messages(tmp_path, PLAIN + 'environment: {A: "a\\nb"}\n')
    assert lines[0].startswith("site.yaml:5:15 environment.A: ")


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "''", "'A=B'", "Ä", "'$(x)'"])
def test_a_name_that_is_no_variable_is_refused_at_the_name(tmp_path: Path, name: str) -> None:
    (only,) = messages(tmp_path, PLAIN + f"environment: {{{name}: x}}\n")
    assert only.startswith("site.yaml:5:15 environment.") and "invalid name" in only


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_rank_variables_are_the_scripts_own(tmp_path: Path, name: str) -> None:
    (only,) = messages(tmp_path, PLAIN + f"environment: {{{name}: 1}}\n")
    assert only.endswith(f"environment.{name}: invalid name: the job scripts set this variable for each rank")


@pytest.mark.parametrize("name", ["UID", "BASHOPTS", "BASH_ENV", "folder", "RANDOM", "_"])
def test_variables_that_the_shell_keeps_are_refused(tmp_path: Path, name: str) -> None:
    (only,) = messages(tmp_path, PLAIN + f"environment: {{{name}: 1}}\n")
    assert only.endswith("the shell of the job script reserves this variable")


def test_a_slurm_cluster_needs_its_parts_and_a_local_machine_has_none(tmp_path: Path) -> None:
    assert messages(tmp_path, "about: x\nscheduler: slurm\n") == [
        "site.yaml:1:1 file: scheduler: slurm needs slurm: and hardware:"
    ]
    (only,) = messages(tmp_path, "about: x\nscheduler: local\nslurm: {time_limit: 1:00:00}\n")
    assert only.endswith("file: scheduler: local does not support slurm:")


def test_a_cluster_without_a_scheduler_needs_its_hostfile_and_has_no_slurm(tmp_path: Path) -> None:
    mpirun = PLAIN.replace("scheduler: slurm", "scheduler: mpirun")
    assert messages(tmp_path, mpirun) == ["site.yaml:1:1 file: scheduler: mpirun needs mpirun:"]
    both = mpirun + "mpirun: {hostfile: /etc/hosts.mpi, time_limit: 2:00:00}\n"
    assert messages(tmp_path, both) == ["site.yaml:1:1 file: scheduler: mpirun does not support slurm:"]
    profile = cluster_of(tmp_path, both, "slurm:\n").profile
    assert (profile.slurm, profile.time_limit) == (None, "2:00:00")


@pytest.mark.parametrize("part", ["mpirun: {hostfile: /h, time_limit: 1:00:00}"])
def test_a_slurm_cluster_has_no_hostfile(tmp_path: Path, part: str) -> None:
    assert messages(tmp_path, f"{PLAIN}{part}\n") == ["site.yaml:1:1 file: scheduler: slurm does not support mpirun:"]


@pytest.mark.parametrize("field", ["env_from: [%s]", "env_unset: [%s]", "env_prepend: {%s: /x}"])
@pytest.mark.parametrize("name", ["RANK", "UID", "A-B"])
def test_names_that_are_the_scripts_or_the_shells_are_refused_wherever_they_stand(
    tmp_path: Path, field: str, name: str
) -> None:
    (only,) = messages(tmp_path, f"{PLAIN}{field % name}\n")
    assert only.startswith(f"site.yaml:5:{field.index('%') + 1} {field.partition(':')[0]}.")


@pytest.mark.parametrize("port", ["80", "1023", "65536", "'6002'", "true"])
def test_a_port_that_a_user_cannot_open_is_refused(tmp_path: Path, port: str) -> None:
    (only,) = messages(tmp_path, f"{PLAIN}rendezvous: {{port: {port}}}\n")
    assert only.startswith("site.yaml:5:14 rendezvous.port: ")


@pytest.mark.parametrize("suffix", ["''", "a b", "i$x", "/"])
def test_a_suffix_that_no_hosts_name_can_have_is_refused(tmp_path: Path, suffix: str) -> None:
    (only,) = messages(tmp_path, f"{PLAIN}rendezvous: {{host_suffix: {suffix}}}\n")
    assert only.startswith("site.yaml:5:14 rendezvous.host_suffix: ")


def test_an_infinite_peak_is_refused(tmp_path: Path) -> None:
    (only,) = messages(tmp_path, PLAIN.replace("bf16: 312", "bf16: .inf"))
    assert "hardware.peak_tflops.bf16: " in only


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_0123456789abcdefghijklmnop"),
        ("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567"),
        ("DB_PASSWORD", "tulip-Meadow+41"),
        ("X", "ghp_0123456789abcdefghijklmnopqrstuvwxyz"),
        ("X", "AKIA0123456789ABCDEF"),
        ("X", "sk-0123456789abcdefghij"),
        ("PIP_INDEX_URL", "https://vulpes:lagopus77@pypi.example/simple"),
    ],
)
def test_a_literal_secret_is_refused_without_its_value(tmp_path: Path, name: str, value: str) -> None:
    for line in (
        f"environment: {{{name}: '{value}'}}\n",
        f"environment: {{{name}: {{value: '{value}', when: nodes > 1}}}}\n",
    ):
        with pytest.raises(ReproError) as caught:
            cluster_of(tmp_path, PLAIN + line)
        (only,) = map(str, caught.value.problems)
        assert f" environment.{name}: the value looks like a secret" in only and value not in only
        assert f"add it to env_from: [{name}]" in only and re.search(r"\.yaml:[0-9]+:[0-9]+ ", only)


def test_a_literal_secret_of_the_command_line_is_refused_without_its_value(tmp_path: Path) -> None:
    cluster_of(tmp_path, PLAIN)
    settings = parse_settings(["environment.HF_TOKEN=hf_0123456789abcdefghijklmnop"])
    with pytest.raises(ReproError, match="--set environment.HF_TOKEN=[*]{3}.*env_from: .HF_TOKEN") as caught:
        find_cluster(Folders(tmp_path, tmp_path), str(tmp_path / "clusters" / "site.yaml"), settings)
    assert "hf_0123" not in str(caught.value)


def test_a_plain_value_with_a_secrets_word_in_its_name_is_kept(tmp_path: Path) -> None:
    plain = "environment: {TOKENIZERS_PARALLELISM: 'false', HF_TOKEN_PATH: /shared/token, KEYBOARD: us, NCCL_KEY: 1}\n"
    assert len(cluster_of(tmp_path, PLAIN + plain).profile.environment) == 4


def test_memory_that_slurm_would_refuse_is_refused(tmp_path: Path) -> None:
    for size in ("lots", "1.5G", "4 G", "-1"):
        with pytest.raises(ReproError, match='slurm.mem: must be a size such as 500G, or "0" for all'):
            cluster_of(tmp_path, slurm(f"mem: '{size}'"))
    for size in ("0", "500G", "1048576", "2t"):
        cluster_of(tmp_path, slurm(f"mem: '{size}'"))
