"""Tests of `repro programs`: texts, exit codes and next commands. unit/api tests needs and fetches."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from orchestrator.megatron.programs.base import MERGES, VOCABULARY
from orchestrator.programs.record import programs
from tests.stand_in_site import CHECKOUT
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

PROFILE = """\
about: a cluster
scheduler: slurm
hardware: {nodes: 2, gpus_per_node: 8}
slurm: {time_limit: "0:10:00"}
"""


def test_the_source_of_each_need_is_listed(repro: Caller) -> None:
    done = repro("programs", "show", "megatron-kwai")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["FIELD", "checkout", "data_path"]
    assert "b2646e4d9f24  https://github.com/kwai/Megatron-Kwai" in done.stdout
    assert "enwiki-100m_text_document in the image" in done.stderr
    assert "next: repro programs show megatron-kwai --cluster local" in done.stderr


def test_show_ends_with_the_command_for_the_state_of_the_needs(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "site.yaml").write_text(PROFILE)

    def last() -> str:
        done = repro("programs", "show", "megatron-2026", "--cluster", "site")
        return done.stderr.splitlines()[-1].partition("   #")[0]

    folder = shlex.quote(str(repro.site.folder / "programs"))
    assert last() == f"next: repro programs fetch megatron-2026 --cluster site --directory {folder}"
    code = json.dumps(str(repro.site.folder / "code"))
    overlay = repro.site.folder / "clusters" / "site.local.yaml"
    overlay.write_text(f"programs: {{megatron-2026: {{checkout: {code}}}}}\n")
    assert last() == "next: repro programs fetch megatron-2026 --cluster site"
    overlay.write_text(f"site: {{login_sees_paths: false}}\n{overlay.read_text()}")
    done = repro("programs", "fetch", "megatron-2026", "--cluster", "site")
    assert done.returncode == 2 and "--offline" in done.stderr
    assert repro("programs", "show", "pretrain").stderr.splitlines()[-1] == "needs no code or data from elsewhere"
    done = repro("programs", "fetch", "pretrain", "--cluster", "selene")
    assert done.returncode == 0 and "pretrain needs no code or data from elsewhere" in done.stderr


def test_a_fetch_prints_the_settings_of_the_profile_and_a_folder_that_containers_do_not_see(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repro.site.folder / "clusters" / "site.yaml").write_text(PROFILE + "container: {runtime: pyxis}\n")
    monkeypatch.setattr("orchestrator.api.sites.fetch_items", lambda *_: iter(()))
    done = repro("programs", "fetch", "megatron-2021", "--cluster", "site", "--directory", "/shared/a place")
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load(done.stdout)["programs"]["megatron-2021"]
    assert {str(value).rpartition("/")[0] for value in settings.values()} == {"/shared/a place"}
    assert "fetching on this machine; no job is started" in done.complaints
    assert "set these fields in clusters/site.local.yaml" in done.complaints
    assert "jobs run in containers: add /shared/a place to container: mounts: of the profile" in done.complaints
    assert done.stderr.splitlines()[-1].startswith("next: repro clusters check site")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("fetch", "megatron-20211", "--cluster", "selene"), 'no such program. Did you mean "megatron-2021"?'),
        (("fetch", "megatron-2021"), "missing option '--cluster'"),
        (("show", "nothing"), "nothing: no such program"),
        (("show", "megatron-2021", "--cluster", "nowhere"), "nowhere"),
    ],
)
def test_wrong_words_are_one_message_and_exit_code_2(repro: Caller, words: tuple[str, ...], text: str) -> None:
    done = repro("programs", *words)
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert text in done.stderr


def test_the_page_about_programs_has_each_program_and_the_real_output_of_its_commands(repro: Caller) -> None:
    page = (CHECKOUT / "docs" / "how-to" / "programs.md").read_text()
    headings = " ".join(line for line in page.splitlines() if line.startswith("### "))
    assert [name for name in programs() if f"`{name}`" not in headings] == []
    offline = "programs fetch megatron-kwai --cluster kwai-h800 --directory /shared/data --offline"
    for command, pipe, last in (("programs list", "", 0), (offline, " >fetch.sh\n    $ tail -3 fetch.sh", 3)):
        lines = repro(*command.split()).stdout.splitlines()
        printed = "".join(f"    {line}".rstrip() + "\n" for line in lines[-last:])
        assert f"    $ repro {command}{pipe}\n{printed}" in page
    for file in (VOCABULARY, MERGES):
        assert f"| {file.bytes:,} | `{file.sha256}` |" in page
