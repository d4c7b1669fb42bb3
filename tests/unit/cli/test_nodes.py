"""Tests of `repro nodes`: the deny list, its checks, and the nodes that submissions exclude."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator import api
from orchestrator.launch.sbatch import Callbacks, send
from orchestrator.ledger.tables import Attempt
from tests.recorded_jobs import new_ledger
from tests.unit.cli.calling import Caller, Done
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

THERE = ("--cluster", "there", "--scale", "cpu", "--where", "pp=1,gbs=4")
SUBMIT = ("submit", "figure-13", *THERE)
DENY = ("nodes", "deny", "--cluster", "there", "--because", "ECC")


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(repro.site.folder / ".config"))
    (repro.site.folder / "clusters" / "there.yaml").write_text(
        PROFILE.replace("max_running: 4", "partition: batch, exclude: ['n[8-9]']")
    )
    slurm = Slurm.on_path(repro.site.folder.parent / "bin", monkeypatch)
    slurm.has_nodes(*(f"n{number}" for number in range(1, 11)))
    yield slurm


def listed(repro: Caller, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(repro("nodes", "list", "--json", *words).stdout)["nodes"]
    return rows


def deny_file(repro: Caller, cluster: str = "there") -> Path:
    return repro.site.folder / ".config" / "repro" / "nodes" / f"{cluster}.yaml"


def excluded(script: str) -> list[str]:
    return re.findall(r"^#SBATCH --exclude=(.*)$", script, re.MULTILINE)


def test_denied_nodes_are_in_the_script_with_their_reason_until_they_are_allowed(repro: Caller, slurm: Slurm) -> None:
    identity = repro("submit", "figure-13", *THERE, "--dry-run", "--json").stdout
    done = repro(*DENY, "n[1-2]", "n7", "--until", "2998-12-31")
    assert done.returncode == 0
    assert done.complaints == ["there: 3 nodes denied: ECC, until 2998-12-31: n1, n2, n7"]
    assert [(row["node"], row["until"]) for row in listed(repro)] == [
        (node, "2998-12-31") for node in ("n1", "n2", "n7")
    ]

    explained = repro("render", "figure-13", *THERE, "--explain").stdout
    (line,) = (line for line in explained.splitlines() if "--exclude" in line)
    assert "clusters/there.yaml:4" in line and f"{deny_file(repro).relative_to(repro.site.folder)}:3:5" in line
    assert line.endswith("#SBATCH --exclude=n[8-9],n1,n2,n7")
    dry = repro("submit", "figure-13", *THERE, "--dry-run", "--json")
    assert "note: jobs on there exclude 3 nodes: n1, n2, n7 (denied: ECC, until 2998-12-31)" in dry.stderr
    assert dry.stdout == identity  # the same job ids

    assert repro("nodes", "allow", "n[1-2]").complaints == ["there: 2 nodes allowed again: n1, n2"]
    assert repro(*SUBMIT).returncode == 0 and slurm.options() == [""]
    with new_ledger(repro.site.folder).reading() as session:
        (script,) = session.scalars(sa.select(Attempt.script))
    assert excluded(script) == ["n[8-9],n7"]
    assert [row["node"] for row in listed(repro, "--cluster", "there")] == ["n7"]


def test_an_entry_that_has_ended_or_was_replaced_excludes_nothing(repro: Caller, slurm: Slurm) -> None:
    repro(*DENY, "n2", "--until", "2998-01-01T12:00")
    assert "denied: ECC, until 2998-01-01T12:00" in repro("render", "figure-13", *THERE).stderr
    with deny_file(repro).open("a") as file:
        file.write("  - {nodes: [n1], because: fan, until: 2020-01-01}\n")
    assert excluded(repro("render", "figure-13", *THERE).stdout) == ["n[8-9],n2"]
    repro(*DENY[:-1], "cable", "n2")
    assert [(row["node"], row["reason"], row["until"]) for row in listed(repro)] == [("n2", "cable", None)]
    assert [row["node"] for row in listed(repro, "--all")] == ["n1", "n2"] and slurm.calls() == []
    assert repro("nodes", "allow", "n1").returncode == 0
    assert [row["node"] for row in listed(repro, "--all")] == ["n2"]


def test_the_file_may_be_edited_by_hand_and_all_its_errors_have_a_place(repro: Caller, slurm: Slurm) -> None:
    repro(*DENY, "n1", "--until", "2998-12-31")
    file = deny_file(repro)
    assert file.read_text() == (
        "# Nodes of there that your jobs do not use. You may edit this file; `repro nodes` removes comments.\n"
        'denied:\n  - nodes: ["n1"]\n    because: "ECC"\n    until: 2998-12-31\n'
    )
    file.write_text("denied:\n  - nodes: ['n[2-3]', n7]  # the second rack\n    because: no power: no\n")
    assert repro(*SUBMIT).returncode == 2
    file.write_text("denied:\n  - nodes: ['n[2-3]', n7]  # the second rack\n    because: no\n")
    assert excluded(repro("render", "figure-13", *THERE).stdout) == ["n[8-9],n2,n3,n7"]
    file.write_text("denied:\n  - nodes: ['n[2-']\n    until: soon\n  - {nodes: n1, because: ECC, who: me}\n")
    done = repro(*SUBMIT)
    assert (done.returncode, slurm.calls()) == (2, [])
    name = file.relative_to(repro.site.folder)
    assert [line.partition(". Hint")[0].removeprefix("repro: ") for line in done.complaints] == [
        f"{name}:2:13 denied.0.nodes.0: must be nodes as Slurm writes them, at most 65536: n7, n[1-4,7], got 'n[2-'",
        f"{name}:2:5 because: missing",
        f"{name}:3:12 denied.0.until: must be a day (2026-12-31) or a time in UTC (2026-12-31T18:00), got 'soon'",
        f"{name}:4:13 denied.1.nodes: must be a list, got 'n1'",
        f"{name}:4:31 who: unknown field",
    ]


def test_commands_at_the_same_time_lose_no_entry(repro: Caller, slurm: Slurm) -> None:
    names = [f"n{number}" for number in range(1, 11)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: api.deny_nodes(name, "ECC", str(repro.site.folder / "clusters/there.yaml")), names))
    assert sorted(row["node"] for row in listed(repro)) == sorted(names) and slurm.calls() == []
    assert [file.name for file in deny_file(repro).parent.iterdir()] == ["there.yaml"]


def test_a_retry_and_a_queued_job_exclude_nodes_that_were_denied_later(repro: Caller, slurm: Slurm) -> None:
    repro(*SUBMIT)
    ledger = new_ledger(repro.site.folder)
    lost = {"phase": "ended", "state": "NODE_FAIL", "verdict": "failed", "failure": "node-fail", "nodes": "n5"}
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**lost))
    repro(*DENY, "n3")
    slurm.has_room_for(0)
    assert repro("retry", "figure-13").returncode == 0
    repro(*DENY, "n4")
    slurm.has_room_for(1)
    slurm.then("refuse")  # too few nodes are left, as Slurm reports it
    messages: list[str] = []
    with ledger.reading() as session:
        run_id, script = session.execute(sa.select(Attempt.run_id, Attempt.script).where(Attempt.number == 2)).one()
    assert excluded(script) == ["n[8-9],n3"]
    assert send(ledger, run_id, Callbacks(messages.append)).jobs == 1
    assert slurm.options()[-2:] == ["--exclude=n3,n4,n5,n8,n9", "--exclude=n3,n4,n8,n9"]
    assert messages[0].endswith("; submitted again without excluding the nodes that failed")


def test_a_queued_retry_that_is_made_again_still_excludes_the_node_that_failed(repro: Caller, slurm: Slurm) -> None:
    repro(*SUBMIT)
    with new_ledger(repro.site.folder).writing() as session:
        lost = {"phase": "ended", "state": "NODE_FAIL", "verdict": "failed", "failure": "node-fail", "nodes": "n5"}
        session.execute(sa.update(Attempt).values(**lost))
    slurm.has_room_for(0)
    repro("retry", "figure-13")
    with new_ledger(repro.site.folder).writing() as session:  # the process that submits it has ended
        session.execute(sa.update(Attempt).where(Attempt.state == "QUEUED").values(pid=2**22 + 1))
    slurm.has_room_for(1)
    assert repro(*SUBMIT).returncode == 0
    assert slurm.options()[-1] == "--exclude=n5,n8,n9"


def test_too_few_remaining_nodes_and_denied_nodes_that_slurm_lacks_are_refused_before_sbatch(
    repro: Caller, slurm: Slurm
) -> None:
    slurm.has_nodes("n1", "n8")
    repro(*DENY, "n1")
    done = repro(*SUBMIT)
    assert done.returncode == 2 and slurm.calls() == []
    assert done.complaints[-1] == (
        "repro: pp=1,tp=4,gbs=4 needs 1 node, and partition batch has 0 of 2 left: 1 denied (n1: ECC). "
        "Hint: a smaller --scale, or repro nodes allow n1 --cluster there"
    )
    slurm.has_nodes("n2", "n3")
    done = repro(*SUBMIT)
    assert done.returncode == 2 and "n1 denied on there, and Slurm has no such node" in done.stderr
    listed_node = repro(*SUBMIT, "--nodelist", "n1")
    assert "n1 is in nodelist, and it is denied: ECC" in listed_node.stderr
    slurm.has_nodes()  # Slurm does not show its nodes
    assert repro(*SUBMIT).returncode == 0


def test_a_node_that_two_clusters_deny_is_allowed_only_on_the_named_cluster(repro: Caller, slurm: Slurm) -> None:
    there = (repro.site.folder / "clusters" / "there.yaml").read_text()
    (repro.site.folder / "clusters" / "beside.yaml").write_text(there)
    repro(*DENY, "n1")
    repro("nodes", "deny", "--cluster", "beside", "--because", "fan", "n1")
    done = repro("nodes", "allow", "n1")
    assert done.returncode == 2
    assert "n1: denied on several clusters. Hint: --cluster beside or --cluster there" in done.stderr
    assert repro("nodes", "allow", "n1", "--cluster", "there").returncode == 0
    assert [row["cluster"] for row in listed(repro)] == ["beside"]
    assert slurm.calls() == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("n[1-", "n2"), "n[1-: not node names. Hint: names or sets of Slurm of at most 65536 nodes: n7, n[1-4,7]"),
        (("n11",), "n11: the Slurm of there has no such node. Hint: there are: n1, n10, n2,"),
        (("n1", "--until", "2020-01-01"), "until: is in the past"),
        (("n1", "--until", "tomorrow"), "until: must be a day (2026-12-31) or a time in UTC"),
        (("n1", "--until", "9999-12-31"), "until: must be a day (2026-12-31) or a time in UTC"),
        (("n1", "--because", " "), "because: must be one line"),
        (("n1", "--cluster", "here"), "here has no Slurm, so it has no nodes to exclude"),
        (("n1", "--cluster", "nowhere"), "nowhere: no such cluster"),
    ],
)
def test_a_wrong_entry_is_refused_and_nothing_is_recorded(
    repro: Caller, slurm: Slurm, words: tuple[str, ...], complaint: str
) -> None:
    done = repro(*DENY, *words)
    assert (done.returncode, slurm.calls()) == (2, [])
    assert complaint in done.stderr
    assert not deny_file(repro).exists()


@pytest.mark.usefixtures("slurm")
def test_allow_refuses_nodes_that_are_not_denied_and_names_the_cluster_if_there_are_two(repro: Caller) -> None:
    def refusal(*words: str) -> Done:
        done = repro("nodes", "allow", *words)
        assert done.returncode == 2
        return done

    assert "n1: not denied" in refusal("n1").stderr
    assert "missing option '--cluster'" in repro("nodes", "deny", "n1", "--because", "ECC").stderr
    repro(*DENY, "n1", "n2")
    (repro.site.folder / "clusters" / "too.yaml").write_text(PROFILE)
    repro(*DENY, "n1", "--cluster", "too")
    assert "--cluster there or --cluster too" in refusal("n1").stderr
    assert "n3: the deny list of there has no such node. Hint: " in refusal("n2", "n3").stderr
    assert "no node is denied" not in repro("nodes", "list").stderr
    assert repro("nodes", "allow", "n1", "--cluster", "there").returncode == 0
    assert [(row["cluster"], row["node"]) for row in listed(repro)] == [("there", "n2"), ("too", "n1")]


def test_names_are_recorded_unchecked_with_a_note_where_the_clusters_slurm_cannot_be_seen(
    repro: Caller, slurm: Slurm
) -> None:
    (slurm.folder / "nodes").write_text("NodeName=a1 Partitions=other\n")  # the Slurm of another cluster
    done = repro(*DENY, "n77")
    assert done.returncode == 0
    assert done.complaints[1] == ("note: this machine does not see the Slurm of there, so the names were not checked")


def test_jobs_that_import_images_and_check_a_node_exclude_denied_nodes_and_the_default_cluster_is_used(
    repro: Caller, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = repro.site.folder / "images"
    staging.mkdir()
    with (repro.site.folder / "clusters" / "there.yaml").open("a") as profile:
        profile.write(f"site: {{staging_folder: {json.dumps(str(staging))}}}\n")
        profile.write("container: {runtime: pyxis, images: {torch: 'nvcr.io#nvidia/pytorch:24.01-py3'}}\n")
    monkeypatch.setenv("REPRO_CLUSTER", "there")
    assert repro("nodes", "deny", "n4", "--because", "ECC").returncode == 0
    assert repro("images", "import", "--cluster", "there").returncode == 0 and len(slurm.calls()) == 1
    scripts = [file.read_text() for file in (repro.site.folder / "runs").rglob("*.sh")]
    assert {names for script in scripts for names in excluded(script)} == {"n[8-9],n4"}
