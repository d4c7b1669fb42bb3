"""Tests of `repro workloads`: list, show, fetch. Sources are on this machine."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator.clusters.resolve import find_cluster
from orchestrator.workloads import workloads
from orchestrator.workloads.needs import MERGES, VOCABULARY, PublicFile
from tests.loopback_files import FileServer, file_server
from tests.stand_in_site import CHECKOUT
from tests.unit.cli.calling import Caller, everything_in
from tests.unit.launch.repositories import git, make_repository

pytestmark = pytest.mark.slow

PROFILE = """\
about: a cluster
scheduler: slurm
hardware: {nodes: 2, gpus_per_node: 8}
slurm: {time_limit: "0:10:00"}
"""
CONTENT = b"a vocabulary " * 1000


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server(CONTENT) as served:
        yield served


@pytest.fixture
def shared(repro: Caller, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder. The sources of megatron-2021 are on this machine, and a paper of the user names a branch."""
    folder = repro.site.folder
    (folder / "clusters" / "site.yaml").write_text(PROFILE)
    make_repository(folder / "origin")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{folder}/origin.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/NVIDIA/Megatron-LM")
    workload = workloads()["megatron-2021"]
    needs = [
        server.file(field=need.field, name=need.name) if isinstance(need, PublicFile) else need
        for need in workload.needs
    ]
    paper = folder / "experiments" / "here" / "paper.yaml"
    paper.parent.mkdir(parents=True)
    (paper.parent / "figure-1.yaml").write_text("")  # a folder without experiments is no paper
    paper.write_text(
        "title: Here\nvenue: A conference\ncode: {megatron-2021: {repository: NVIDIA/Megatron-LM, commit: release}}\n"
    )
    here = dict(workloads()) | {"megatron-2021": dataclasses.replace(workload, needs=tuple(needs))}
    for module in ("orchestrator.workloads", "orchestrator.api.sites", "orchestrator.clusters.check"):
        monkeypatch.setattr(f"{module}.workloads", lambda: here)
    return folder / "shared"


def write_overlay(repro: Caller, text: str) -> None:
    (repro.site.folder / "clusters" / "site.local.yaml").write_text(text)


def test_every_program_is_listed_with_its_commit_and_needs(repro: Caller) -> None:
    done = repro("workloads", "list")
    assert (done.returncode, done.complaints) == (0, [])
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert list(rows) == list(workloads())
    assert "6985e58938d4  checkout, vocab_file, merge_file, data_path" in rows["megatron-2021"]
    assert rows["pretrain"].endswith("-             -")
    listed = {row["workload"]: row for row in json.loads(repro("workloads", "list", "--json").stdout)["workloads"]}
    assert listed["megatron-alpa"]["commit"] == "c28bbd208d16ffea61fa3c545e66b3a9d87f9d84"
    assert listed["megatron-alpa"]["needs"] == ["checkout", "benchmark"]


def test_show_ends_with_the_command_for_the_state_of_the_needs(repro: Caller, shared: Path) -> None:
    def last() -> str:
        done = repro("workloads", "show", "megatron-2026", "--cluster", "site")
        return done.stderr.splitlines()[-1].partition("   #")[0]

    folder = shlex.quote(str(repro.site.folder / "workloads"))
    assert last() == f"next: repro workloads fetch megatron-2026 --cluster site --directory {folder}"
    write_overlay(repro, f"workloads: {{megatron-2026: {{checkout: {json.dumps(str(shared / 'code'))}}}}}\n")
    assert last() == "next: repro workloads fetch megatron-2026 --cluster site"
    assert repro("workloads", "show", "pretrain").stderr.splitlines()[-1] == "needs no code or data from elsewhere"


@pytest.mark.parametrize(
    ("container", "note"),
    [
        ("", ""),
        ("container: {runtime: pyxis, mounts: ['%s']}", ""),
        ("container: {runtime: pyxis, mounts: ['%s:/elsewhere']}", "add %s to container: mounts:"),
        ("container: {runtime: pyxis}", "add %s to container: mounts:"),
        ("container: {runtime: shifter}", ""),
    ],
)
def test_a_folder_that_containers_do_not_see_is_named(repro: Caller, shared: Path, container: str, note: str) -> None:
    write_overlay(repro, container.replace("%s", str(shared)))
    done = repro("workloads", "fetch", "megatron-2021", "--cluster", "site", "--directory", str(shared))
    assert done.returncode == 0
    assert note.replace("%s", str(shared)) in done.stderr
    assert ("jobs run in containers" in done.stderr) == bool(note)


def test_show_names_the_source_of_each_need(repro: Caller) -> None:
    done = repro("workloads", "show", "megatron-kwai")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["FIELD", "checkout", "data_path"]
    assert "b2646e4d9f24  https://github.com/kwai/Megatron-Kwai" in done.stdout
    assert "enwiki-100m_text_document in the image" in done.stderr
    assert "next: repro workloads show megatron-kwai --cluster local" in done.stderr
    rows = json.loads(repro("workloads", "show", "megatron-2021", "--json").stdout)["needs"]
    assert [row["field"] for row in rows] == ["checkout", "vocab_file", "merge_file", "data_path"]
    assert rows[1]["sha256"].startswith("196139668be63f3b")


def test_the_newest_megatron_needs_no_data_and_has_its_other_name(repro: Caller) -> None:
    done = repro("workloads", "show", "megatron-core", "--cluster", "selene")
    assert done.stderr.splitlines()[0].startswith("megatron-2026: ")
    states = {row["field"]: row["state"] for row in _shown(repro, "megatron-core", "selene")}
    assert states == {
        "checkout": "not in the profile",
        "vocab_file": "not used",
        "merge_file": "not used",
        "data_path": "not used",
    }


def _shown(repro: Caller, name: str, cluster: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(repro("workloads", "show", name, "--cluster", cluster, "--json").stdout)[
        "needs"
    ]
    return rows


def test_a_fetch_into_a_folder_prints_the_settings_with_which_the_profile_is_complete(
    repro: Caller, shared: Path
) -> None:
    done = repro("workloads", "fetch", "megatron-2021", "--cluster", "site", "--directory", str(shared))
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load(done.stdout)["workloads"]["megatron-2021"]
    assert settings == {
        "checkout": f"{shared}/Megatron-LM-release",
        "vocab_file": f"{shared}/gpt2-vocab.json",
        "merge_file": f"{shared}/gpt2-merges.txt",
        "data_path": f"{shared}/random-tokens-50257",
    }
    assert "no job is started" in done.stderr
    write_overlay(repro, done.stdout)
    cluster = find_cluster(repro.site.folders, str(repro.site.folder / "clusters" / "site.yaml"))
    assert cluster.unfilled == ()
    rows = _shown(repro, "megatron-2021", "site")
    assert {row["state"] for row in rows} == {"there"}
    shown = repro("workloads", "show", "megatron-2021", "--cluster", "site")
    assert shown.stderr.splitlines()[-1].startswith("next: repro clusters check site")
    assert rows[0]["commit"] == git(shared / "Megatron-LM-release", "rev-parse", "HEAD")
    before = everything_in(shared)
    again = repro("workloads", "fetch", "megatron-2021", "--cluster", "site")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr.count("there already") == 4
    place = ("--directory", str(shared))
    assert (
        repro("workloads", "fetch", "megatron-2021", "--cluster", "site", *place).stdout == ""
    )  # the profile has them
    assert everything_in(shared) == before


def test_a_profile_with_paths_gets_its_files_there_and_in_containers_on_the_host(repro: Caller, shared: Path) -> None:
    write_overlay(
        repro,
        f"container: {{runtime: pyxis, mounts: ['{shared}:/in/container']}}\n"
        "workloads: {megatron-2021: {checkout: /in/container/code, data_path: /in/container/d/tokens,"
        " vocab_file: /in/container/v.json, merge_file: /in/container/m.txt}}\n",
    )
    done = repro("workloads", "fetch", "megatron-2021", "--cluster", "site")
    assert done.returncode == 0, done.stderr
    assert (shared / "code" / "pretrain_gpt.py").exists() and (shared / "d" / "tokens.idx").exists()
    assert (shared / "v.json").read_bytes() == (shared / "m.txt").read_bytes() == CONTENT


def test_open_paths_are_one_problem_with_the_two_ways_on(repro: Caller) -> None:
    done = repro("workloads", "fetch", "megatron-2021", "--cluster", "selene")
    assert done.returncode == 2
    [problem] = done.complaints
    assert "selene.yaml:48:3 workloads.megatron-2021: checkout, vocab_file, merge_file, data_path not filled" in problem
    assert "--directory" in problem


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("fetch", "megatron-20211", "--cluster", "selene"), 'no such workload. Did you mean "megatron-2021"?'),
        (("fetch", "megatron-2021", "--cluster", "selen"), 'Did you mean "selene"?'),
        (("fetch", "megatron-2021"), "missing option '--cluster'"),
        (("fetch", "pretrain", "--cluster", "selene", "--offline"), "pretrain needs nothing from elsewhere"),
        (("fetch", "megatron-2021", "--cluster", "selene", "--directory", ""), "the name of a folder or file is empty"),
        (("show", "nothing"), "nothing: no such workload"),
        (("show", "megatron-2021", "--cluster", "nowhere"), "nowhere"),
    ],
)
def test_wrong_words_are_one_message_and_exit_code_2(repro: Caller, words: tuple[str, ...], text: str) -> None:
    done = repro("workloads", *words)
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert text in done.stderr


def test_a_relative_path_is_refused(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "site.yaml").write_text(
        PROFILE + "workloads: {megatron-2026: {checkout: code}}\n"
    )
    done = repro("workloads", "fetch", "megatron-2026", "--cluster", "site")
    assert done.returncode == 2
    assert "workloads.megatron-2026.checkout: must be an absolute path" in done.stderr


def test_a_machine_that_does_not_see_the_paths_prints_the_script_only(repro: Caller, shared: Path) -> None:
    write_overlay(
        repro, f"site: {{login_sees_paths: false}}\nworkloads: {{megatron-2026: {{checkout: {shared}/code}}}}\n"
    )
    done = repro("workloads", "fetch", "megatron-2026", "--cluster", "site")
    assert done.returncode == 2
    assert "does not see the paths of the profile" in done.stderr and "--offline" in done.stderr
    printed = repro("workloads", "fetch", "megatron-2026", "--cluster", "site", "--offline")
    assert printed.returncode == 0
    assert "https://github.com/NVIDIA/Megatron-LM d98e8a64ddf34856e74b24714e3bedb2f5a39553\n" in printed.stdout
    assert "# Code and files of: repro workloads fetch megatron-2026 --cluster site\n" in printed.stdout
    assert not shared.exists()
    assert _shown(repro, "megatron-2026", "site")[0]["state"] == "on the nodes"


@pytest.mark.parametrize(
    "code", ["NVIDIA/x, commit: --upload-pack=id", "../../x, commit: main", "a/b, commit: x/../../y"]
)
def test_code_of_a_paper_is_no_option_of_git_and_no_other_folder(repro: Caller, shared: Path, code: str) -> None:
    paper = repro.site.folder / "experiments" / "here" / "paper.yaml"
    paper.write_text(f"title: Here\nvenue: A conference\ncode: {{megatron-2021: {{repository: {code}}}}}\n")
    done = repro("workloads", "fetch", "megatron-2021", "--cluster", "site", "--directory", str(shared))
    assert (done.returncode, len(done.complaints)) == (2, 1)
    assert "not a repository of GitHub with a commit, branch or tag" in done.stderr
    assert not shared.exists()


def test_the_own_program_needs_nothing(repro: Caller) -> None:
    done = repro("workloads", "fetch", "pretrain", "--cluster", "selene")
    assert done.returncode == 0
    assert "pretrain needs no code or data from elsewhere" in done.stderr


def test_a_text_gives_the_data_their_name_and_is_part_of_the_offline_script(repro: Caller, shared: Path) -> None:
    text = repro.site.folder / "news.jsonl"
    text.write_text("")
    place = ("--cluster", "site", "--directory", str(shared), "--text", str(text))
    done = repro("workloads", "fetch", "megatron-2021", *place)
    assert done.returncode == 2  # the stand-in for the checkout has no such tool
    assert f"{text}: tools/preprocess_data.py failed" in done.stderr
    assert f"--output-prefix {shared}/.news_text_document.part/data" in done.stderr.replace("'", "")
    printed = repro("workloads", "fetch", "megatron-2021", *place, "--offline").stdout.splitlines()
    assert f"--text {text}" in printed[1].replace("'", "")
    refused = repro("workloads", "fetch", "megatron-kwai", *place)
    assert (refused.returncode, len(refused.complaints)) == (2, 1)
    assert "megatron-kwai cannot use a text as its data here" in refused.stderr


def test_the_page_about_workloads_has_each_program_and_the_real_output_of_its_commands(repro: Caller) -> None:
    page = (CHECKOUT / "docs" / "how-to" / "workloads.md").read_text()
    headings = " ".join(line for line in page.splitlines() if line.startswith("### "))
    assert [name for name in workloads() if f"`{name}`" not in headings] == []
    offline = "workloads fetch megatron-kwai --cluster kwai-h800 --directory /shared/data --offline"
    for command, pipe, last in (("workloads list", "", 0), (offline, " >fetch.sh\n    $ tail -3 fetch.sh", 3)):
        lines = repro(*command.split()).stdout.splitlines()
        printed = "".join(f"    {line}".rstrip() + "\n" for line in lines[-last:])
        assert f"    $ repro {command}{pipe}\n{printed}" in page
    for file in (VOCABULARY, MERGES):
        assert f"| {file.bytes:,} | `{file.sha256}` |" in page
