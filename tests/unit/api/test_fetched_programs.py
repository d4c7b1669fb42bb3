"""Code and data that programs need: what is there, and their fetch. Sources are on this machine."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.clusters.resolve import find_cluster
from orchestrator.errors import ReproError
from orchestrator.megatron.programs import find_megatron
from orchestrator.programs import record
from orchestrator.programs.record import PublicFile, programs
from tests.loopback_files import FileServer, file_server
from tests.unit.api.project import Project, problems
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
def shared(project: Project, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder. The sources of megatron-2021 are on this machine, and a paper of the user names a branch."""
    folder = project.folder
    (folder / "clusters" / "site.yaml").write_text(PROFILE)
    make_repository(folder / "origin")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{folder}/origin.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/NVIDIA/Megatron-LM")
    program = find_megatron("megatron-2021")
    needs = [
        server.file(field=need.field, name=need.name) if isinstance(need, PublicFile) else need
        for need in program.needs
    ]
    write_paper(project, "NVIDIA/Megatron-LM, commit: release")
    (folder / "experiments" / "here" / "figure-1.yaml").write_text("")  # a folder without experiments is no paper
    here, loaded = dataclasses.replace(program, needs=tuple(needs)), record.PROGRAMS._found
    monkeypatch.setattr(record.PROGRAMS, "_found", lambda name: here if name == here.name else loaded(name))
    return folder / "shared"


def write_paper(project: Project, code: str) -> None:
    paper = project.folder / "experiments" / "here" / "paper.yaml"
    paper.parent.mkdir(parents=True, exist_ok=True)
    paper.write_text(f"title: Here\nvenue: A conference\ncode: {{megatron-2021: {{repository: {code}}}}}\n")


def write_overlay(project: Project, text: str) -> None:
    (project.folder / "clusters" / "site.local.yaml").write_text(text)


def states(name: str, cluster: str = "site") -> dict[str, str | None]:
    return {need.field: need.state for need in api.show_program(name, cluster).needs}


def settings_of(fetch: api.Fetch) -> dict[str, str]:
    return {setting.field: setting.value for setting in fetch.settings}


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.usefixtures("project")
def test_every_program_has_its_commit_and_its_needs() -> None:
    rows = {shown.row.program: shown.row for shown in api.program_needs()}
    assert list(rows) == list(programs())
    assert str(rows["megatron-2021"].commit).startswith("6985e58938d4")
    assert rows["megatron-2021"].needs == ["checkout", "vocab_file", "merge_file", "data_path"]
    assert (rows["pretrain"].commit, rows["pretrain"].needs) == (None, [])
    assert rows["megatron-alpa"].commit == "c28bbd208d16ffea61fa3c545e66b3a9d87f9d84"
    assert rows["megatron-alpa"].needs == ["checkout", "benchmark"]
    needs = {need.field: need for need in api.show_program("megatron-2021").needs}
    assert str(needs["vocab_file"].sha256).startswith("196139668be63f3b")
    # The newest Megatron-LM needs no data, and has its other name.
    assert api.show_program("megatron-core").row.program == "megatron-2026"
    unused = dict.fromkeys(("vocab_file", "merge_file", "data_path"), "not used")
    assert states("megatron-core", "selene") == {"checkout": "not in the profile", **unused}


def test_a_fetch_into_a_folder_has_the_settings_with_which_the_profile_is_complete(
    project: Project, shared: Path
) -> None:
    fetch = api.plan_fetch("megatron-2021", "site", directory=shared)
    assert settings_of(fetch) == {
        "checkout": f"{shared}/Megatron-LM-release",
        "vocab_file": f"{shared}/gpt2-vocab.json",
        "merge_file": f"{shared}/gpt2-merges.txt",
        "data_path": f"{shared}/random-tokens-50257",
    }
    assert len(list(fetch.run())) == 4
    write_overlay(project, f"programs: {{megatron-2021: {json.dumps(settings_of(fetch))}}}\n")
    cluster = find_cluster(project.site.folders, str(project.folder / "clusters" / "site.yaml"))
    assert cluster.unfilled == () and set(states("megatron-2021").values()) == {"there"}
    checkout = api.show_program("megatron-2021", "site").needs[0]
    assert checkout.commit == git(shared / "Megatron-LM-release", "rev-parse", "HEAD")
    before = files_in(shared)
    again = api.plan_fetch("megatron-2021", "site")
    assert again.settings == () and [fetched.how for fetched in again.run()].count("there already") == 4
    assert api.plan_fetch("megatron-2021", "site", directory=shared).settings == (), "the profile has them"
    assert files_in(shared) == before


def test_a_profile_with_paths_gets_its_files_there_and_in_containers_on_the_host(
    project: Project, shared: Path
) -> None:
    write_overlay(
        project,
        f'container: {{runtime: pyxis, mounts: ["{shared}:/in/container"]}}\n'
        "programs: {megatron-2021: {checkout: /in/container/code, data_path: /in/container/d/tokens,"
        " vocab_file: /in/container/v.json, merge_file: /in/container/m.txt}}\n",
    )
    list(api.plan_fetch("megatron-2021", "site").run())
    assert (shared / "code" / "pretrain_gpt.py").exists() and (shared / "d" / "tokens.idx").exists()
    assert (shared / "v.json").read_bytes() == (shared / "m.txt").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("container", "is_named"),
    [
        ("", False),
        ('container: {runtime: pyxis, mounts: ["%s"]}', False),
        ('container: {runtime: pyxis, mounts: ["%s:/elsewhere"]}', True),
        ("container: {runtime: pyxis}", True),
        ("container: {runtime: shifter}", False),
    ],
)
def test_a_folder_that_containers_do_not_see_is_named(
    project: Project, shared: Path, container: str, is_named: bool
) -> None:
    write_overlay(project, container.replace("%s", str(shared)))
    assert api.plan_fetch("megatron-2021", "site", directory=shared).unmounted == ([str(shared)] if is_named else [])


def refusal(name: str, cluster: str = "site", **options: object) -> str:
    with pytest.raises(ReproError) as caught:
        list(api.plan_fetch(name, cluster, **options).run())  # type: ignore[arg-type]
    (line,) = problems(caught)
    return line


def test_a_fetch_that_cannot_work_is_refused_with_the_reason(project: Project, shared: Path) -> None:
    assert refusal("megatron-20211") == 'megatron-20211: no such program. Did you mean "megatron-2021"?'
    assert 'Did you mean "selene"?' in refusal("megatron-2021", "selen")
    assert refusal("pretrain", offline=True) == "pretrain needs nothing from elsewhere"
    assert "the name of a folder or file is empty" in refusal("megatron-2021", directory="")
    not_filled = "programs.megatron-2021: checkout, vocab_file, merge_file, data_path not filled"
    assert not_filled in refusal("megatron-2021", "selene") and "--directory" in refusal("megatron-2021", "selene")
    for code in ("NVIDIA/x, commit: --upload-pack=id", "../../x, commit: main", "a/b, commit: x/../../y"):
        write_paper(project, code)
        assert "not a repository of GitHub with a commit, branch or tag" in refusal("megatron-2021", directory=shared)
    (project.folder / "clusters" / "site.yaml").write_text(PROFILE + "programs: {megatron-2026: {checkout: code}}\n")
    assert "programs.megatron-2026.checkout: must be an absolute path" in refusal("megatron-2026")
    assert not shared.exists()


def test_a_machine_that_does_not_see_the_paths_has_the_script_only(project: Project, shared: Path) -> None:
    write_overlay(
        project, f"site: {{login_sees_paths: false}}\nprograms: {{megatron-2026: {{checkout: {shared}/code}}}}\n"
    )
    assert "does not see the paths of the profile" in refusal("megatron-2026")
    script = api.plan_fetch("megatron-2026", "site", offline=True).script
    assert "https://github.com/NVIDIA/Megatron-LM d98e8a64ddf34856e74b24714e3bedb2f5a39553\n" in script
    assert "# Code and files of: repro programs fetch megatron-2026 --cluster site\n" in script
    assert not shared.exists() and states("megatron-2026")["checkout"] == "on the nodes"


def test_a_text_gives_the_data_their_name_and_is_part_of_the_offline_script(project: Project, shared: Path) -> None:
    text = project.folder / "news.jsonl"
    text.write_text("")
    failed = refusal("megatron-2021", directory=shared, text=text)  # the stand-in for the checkout has no such tool
    assert f"{text}: tools/preprocess_data.py failed" in failed
    script = api.plan_fetch("megatron-2021", "site", directory=shared, text=text, offline=True).script
    assert f"--text {text}" in " ".join(shlex.split(script.splitlines()[1]))
    assert "megatron-kwai cannot use a text as its data here" in refusal("megatron-kwai", directory=shared, text=text)
