"""Lookup of a profile by name, its private overlay, and its open values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.clusters import cluster_names
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.yaml import parse_document
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import Folders
from tests.unit.clusters.sites import (
    CHECKOUT,
    PLAIN,
    SELENE_FILLED,
    cluster_of,
    selene,
    shipped_names,
    short,
    write_profile,
)

MEGATRON, IMAGE = "megatron-2021", "nvidia/pytorch:20.12-py3"


def open_ends(cluster: Cluster, program: str = MEGATRON, image: str | None = IMAGE) -> list[str]:
    result = cluster.require_filled(program, image)
    return [short(problem) for problem in result]


def messages(folder: Path, text: str, overlay: str | None = None) -> list[str]:
    with pytest.raises(ReproError) as caught:
        cluster_of(folder, text, overlay)
    return [short(problem) for problem in caught.value.problems]


def test_selene_without_its_overlay_is_a_line_for_each_value_with_its_description_and_the_overlay(
    tmp_path: Path,
) -> None:
    *values, last = open_ends(selene(tmp_path, overlay=None))
    overlay = parse_document(last.removeprefix("selene.local.yaml: no such file. Hint: create it: "), "overlay").value
    assert isinstance(overlay, dict) and list(overlay) == ["slurm", "container", "programs"]
    names = ["slurm.account", "slurm.partition", f"container.images.{IMAGE}", "container.mounts.0"]
    names += [f"programs.megatron-2021.{name}" for name in ("checkout", "data_path", "vocab_file", "merge_file")]
    assert [re.sub(r"^selene\.yaml:\d+:\d+ (\S+): not filled in, <.*>$", r"\1", value) for value in values] == names


def test_selene_with_an_overlay_is_ready_and_has_the_hardware(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    assert open_ends(cluster) == []
    assert (cluster.name, cluster.machine, cluster.has_overlay) == ("selene", None, True)
    assert (cluster.hardware.gpus_per_node, cluster.hardware.peak("fp16"), cluster.hardware.gpu_memory_gb) == (
        8,
        312,
        80,
    )
    slurm = cluster.profile.slurm
    assert slurm is not None and (slurm.account, slurm.mem, slurm.exclusive, slurm.time_limit) == (
        "proj",
        "0",
        True,
        "0:30:00",
    )
    assert cluster.layered.mapping("slurm")["account"] == "proj"


def test_each_blank_left_in_the_overlay_is_one_line_that_names_the_overlay(tmp_path: Path) -> None:
    partly = "slurm:\n  account: proj\ncontainer:\n  mounts: [/data, <your scratch>]\n"
    lines = open_ends(selene(tmp_path, partly))
    assert len(lines) == 7
    fetch = "; repro programs fetch megatron-2021 --cluster selene --directory /SHARED/FOLDER fetches what is needed"
    for line in lines:
        assert f". Hint: set it in selene.local.yaml{fetch if ' programs.' in line else ''}" in line
        assert (fetch in line) == (" programs." in line)
    row = 1 + (CHECKOUT / "clusters" / "selene.yaml").read_text().partition("  partition: <")[0].count("\n")
    assert lines[0].startswith(f"selene.yaml:{row}:3 slurm.partition: not filled in, <a partition of A100-80GB nodes")
    assert any(line.startswith("selene.local.yaml:4:19 container.mounts.1: not filled in, <your") for line in lines)


def test_blanks_of_other_programs_and_images_do_not_matter(tmp_path: Path) -> None:
    filled = "slurm: {account: a, partition: p}\ncontainer: {mounts: []}\n"
    cluster = selene(tmp_path, filled)
    assert open_ends(cluster, "pretrain", "another") == []
    assert len(open_ends(cluster)) == 5


@pytest.mark.parametrize(
    "line", ["about: <who you are>", "environment: {A: /x/<user>/y}", "setup: [module load <your module>]"]
)
def test_an_open_value_is_refused_in_every_field(tmp_path: Path, line: str) -> None:
    text = "\n".join(row for row in PLAIN.splitlines() if not row.startswith(line.split(":")[0])) + f"\n{line}\n"
    (only,) = open_ends(cluster_of(tmp_path, text, "slurm: {qos: q}\n"))
    assert "not filled in" in only and only.startswith("site.yaml:4:" if "about" in line else "site.yaml:5:")


CHILD = "extends: site\nabout: another\nhardware: {gpu: H100, peak_tflops: {fp16: 989}}\nenvironment: {A: 2}\n"


def test_a_profile_that_extends_another_differs_from_it_field_by_field(tmp_path: Path) -> None:
    write_profile(tmp_path, PLAIN + "environment: {A: 1, B: 1}\n")
    cluster = cluster_of(tmp_path, CHILD, name="child")
    assert (cluster.name, cluster.profile.about, cluster.hardware.gpu) == ("child", "another", "H100")
    assert (cluster.hardware.nodes, dict(cluster.hardware.peak_tflops)) == (4, {"bf16": 312, "fp16": 989})
    assert cluster.profile.environment == {"A": "2", "B": "1"}
    assert [path.name for path in cluster.files] == ["site.yaml", "child.yaml"]


def test_layers_lie_in_order_with_each_files_own_overlay_above_it(tmp_path: Path) -> None:
    write_profile(
        tmp_path, PLAIN + "environment: {A: 1, B: 1, C: 1, D: 1, E: 1}\n", "environment: {B: 2, C: 2, D: 2}\n"
    )
    write_profile(tmp_path, "extends: site\nenvironment: {C: 3, D: 3}\n", name="middle")
    cluster = cluster_of(tmp_path, "extends: middle\nenvironment: {D: 4}\n", "environment: {E: 5}\n", name="top")
    assert cluster.profile.environment == dict(zip("ABCDE", "12345", strict=True))
    names = ["site.yaml", "site.local.yaml", "middle.yaml", "top.yaml", "top.local.yaml"]
    assert [path.name for path in cluster.files] == names
    where = [short(cluster.location(("environment", name))) for name in "ABCDE"]
    assert where == [
        "site.yaml:5:15",
        "site.local.yaml:1:15",
        "middle.yaml:2:15",
        "top.yaml:2:15",
        "top.local.yaml:1:15",
    ]


def test_a_base_is_named_by_its_path_as_well(tmp_path: Path) -> None:
    write_profile(tmp_path)
    assert cluster_of(tmp_path, "extends: ./site.yaml\n", name="child").profile.slurm is not None


def test_a_missing_base_profile_is_an_error_at_extends(tmp_path: Path) -> None:
    write_profile(tmp_path)
    with pytest.raises(ReproError) as caught:
        cluster_of(tmp_path, "about: x\nextends: sita\n", name="child")
    (only,) = caught.value.problems
    assert short(only) == 'child.yaml:2:10 extends: sita: no such cluster. Did you mean "site"?'


@pytest.mark.parametrize("ring", [["one"], ["one", "two"], ["one", "two", "three"]])
def test_profiles_that_extend_one_another_in_a_ring_are_refused(tmp_path: Path, ring: list[str]) -> None:
    for name, base in zip(ring, [*ring[1:], ring[0]], strict=True):
        write_profile(tmp_path, f"extends: {base}\n{PLAIN}", name=name)
    with pytest.raises(ReproError) as caught:
        find_cluster(Folders(shipped=tmp_path, home=tmp_path), str(tmp_path / "clusters" / "one.yaml"))
    (only,) = caught.value.problems
    assert short(only) == (
        f"{ring[-1]}.yaml:1:10 extends: profiles extend each other in a circle, {' -> '.join([*ring, 'one'])}."
        " Hint: remove one extends:"
    )


def test_errors_of_a_base_profile_and_its_extension_are_reported_together(tmp_path: Path) -> None:
    write_profile(tmp_path, PLAIN.replace("nodes: 4", "nodes: 0"))
    with pytest.raises(ReproError) as caught:
        cluster_of(tmp_path, "extends: site\nslurm: {mpi: a b}\n", name="child")
    assert [short(problem).partition(": ")[0] for problem in caught.value.problems] == [
        "site.yaml:3:12 hardware.nodes",
        "child.yaml:2:9 slurm.mpi",
    ]


def test_what_an_overlay_fills_in_of_a_base_is_filled_in(tmp_path: Path) -> None:
    write_profile(tmp_path, PLAIN.replace("slurm: {", "slurm: {account: <yours>, "), "slurm: {account: a}\n")
    assert open_ends(cluster_of(tmp_path, "extends: site\n", name="child")) == []


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("{fabric: x, adapters_per_node: 8, adapter_gbit_s: 200}", 25.0),
        ("{fabric: x, adapters_per_node: 1, adapter_gbit_s: 25}", 0.390625),
        ("{fabric: x, adapters_per_node: 8}", None),
        ("{fabric: x, adapter_gbit_s: 200}", None),
    ],
)
def test_a_gpus_share_of_the_network_follows_from_the_adapters(
    tmp_path: Path, network: str, expected: float | None
) -> None:
    cluster = cluster_of(tmp_path, f"{PLAIN}network: {network}\n")
    assert cluster.hardware.network_gb_s == expected
    assert cluster_of(tmp_path, PLAIN).hardware.network_gb_s is None


def test_network_gb_s_of_a_profile_overrides_the_adapters(tmp_path: Path) -> None:
    text = PLAIN.replace("gpu: A100", "gpu: A100, network_gb_s: 12.5")
    cluster = cluster_of(tmp_path, text + "network: {fabric: x, adapters_per_node: 8, adapter_gbit_s: 200}\n")
    assert cluster.hardware.network_gb_s == 12.5


def test_the_overlay_wins_field_by_field_and_lists_are_replaced_whole(tmp_path: Path) -> None:
    base = PLAIN + "environment: {A: base, B: base}\nsetup: [one, two]\n"
    cluster = cluster_of(tmp_path, base, "environment: {B: over, C: over}\nsetup: [three]\nslurm: {account: '12'}\n")
    assert cluster.profile.environment == {"A": "base", "B": "over", "C": "over"}
    assert cluster.profile.setup == ["three"]
    assert cluster.profile.slurm is not None
    assert (cluster.profile.slurm.account, cluster.profile.slurm.time_limit) == ("12", "1:00:00")


def test_an_error_names_its_file(tmp_path: Path) -> None:
    overlay = "slurm:\n  partion: p\n  time_limit: 90\nhardware: {nodes: 0}\n"
    assert sorted(messages(tmp_path, PLAIN.replace("about:", "abuot:"), overlay)) == [
        'site.local.yaml:2:3 partion: unknown field. Did you mean "partition"?',
        "site.local.yaml:3:3 slurm.time_limit: must be text, got 90. Hint: time limit of a job whose experiment has "
        "none, as `[D-]H:MM:SS`",
        "site.local.yaml:4:12 hardware.nodes: must be 1 or more, got 0. Hint: number of nodes",
        'site.yaml:1:1 abuot: unknown field. Did you mean "about"?',
    ]


def test_a_refusal_has_the_words_of_the_reference(tmp_path: Path) -> None:
    overlay = (
        "hardware: {nvlink_gb_s: 0, network_gb_s: x, peak_tflops: 5}\nslurm: {exclude: n1, mpi: a b, requeue: 3}\n"
    )
    assert [line.partition(" ")[2] for line in messages(tmp_path, PLAIN, overlay)] == [
        "hardware.peak_tflops: must be a mapping, got 5. Hint: dense peak of a GPU in TFLOP/s, for each dtype that the "
        "GPU supports",
        "hardware.nvlink_gb_s: must be above 0, got 0. Hint: bandwidth of a GPU inside a node in GB/s, in one "
        "direction",
        "hardware.network_gb_s: must be a number, got 'x'. Hint: bandwidth of a GPU between nodes in GB/s, in one "
        "direction",
        "slurm.exclude: must be a list, got 'n1'. Hint: nodes that no job may ever use, as Slurm writes them",
        "slurm.requeue: must be true or false, got 3",
        "slurm.mpi: must match ^[A-Za-z0-9_.+-]+$, got 'a b'. Hint: how srun starts MPI processes: a name of "
        "`srun --mpi=list`",
    ]


def test_yaml_errors_of_a_file_and_its_overlay_are_reported_together(tmp_path: Path) -> None:
    lines = messages(tmp_path, "a: 1\na: 2\n", "b: [\n")
    assert lines[0] == "site.yaml:2:1 a: given twice. Hint: first at line 1"
    assert lines[1].startswith("site.local.yaml:2:1 not YAML: ")


@pytest.mark.parametrize("text", ["- a list\n", "text\n"])
def test_an_overlay_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert messages(tmp_path, PLAIN, text) == ["site.local.yaml:1:1 must be fields and values, `name: value`"]


def test_an_empty_overlay_changes_nothing(tmp_path: Path) -> None:
    assert cluster_of(tmp_path, PLAIN, "# nothing yet\n").profile.slurm == cluster_of(tmp_path, PLAIN).profile.slurm


def test_overlays_are_no_clusters_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = write_profile(tmp_path, overlay=SELENE_FILLED)
    (tmp_path / "clusters" / "schema.json").write_text("{}")
    assert list(cluster_names(folders)) == ["site"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("selen", 'did you mean "selene"?'),
        ("lokal", 'did you mean "local"?'),
        ("zzzz", f"there are: {', '.join(shipped_names())}; yours are in HOME/clusters"),
        ("", f"there are: {', '.join(shipped_names())}; yours are in HOME/clusters"),
        ("..", f"there are: {', '.join(shipped_names())}; yours are in HOME/clusters"),
        ("a\nb$(x)", f"there are: {', '.join(shipped_names())}; yours are in HOME/clusters"),
    ],
)
def test_an_unknown_cluster_gets_the_nearest_or_all(
    name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReproError) as caught:
        find_cluster(Folders(shipped=CHECKOUT, home=tmp_path), name)
    expected = hint.replace("HOME", str(tmp_path))
    assert caught.value.problems == (Problem(f"{name}: no such cluster", hint=expected),)


@pytest.mark.parametrize("name", ["my site", "site+2", "ünïcode", "$(x)", "-x", "a.b"])
def test_a_file_with_an_odd_name_is_found_by_name_and_by_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = write_profile(tmp_path, name=name, overlay="slurm: {qos: q}\n")
    by_name, by_path = find_cluster(folders, name), find_cluster(folders, f"clusters/{name}.yaml")
    assert by_name.name == by_path.name == name
    assert by_name.has_overlay and by_name.profile == by_path.profile


@pytest.mark.parametrize(
    ("name", "why"),
    [("none/x", "no such file"), ("x.yaml", "no such file"), ("/" + "x" * 300, "cannot be read: File name too long")],
)
def test_a_path_without_a_profile_is_one_line(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReproError) as caught:
        find_cluster(Folders(shipped=CHECKOUT, home=tmp_path), name)
    assert str(caught.value) == f"{name}: {why}"


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="is a folder, not a YAML file"):
        find_cluster(Folders(shipped=CHECKOUT, home=tmp_path), str(tmp_path))
