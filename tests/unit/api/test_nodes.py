"""Deny list of nodes: its checks, its file, and the nodes that submissions exclude."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.launch.sbatch import Callbacks, send
from orchestrator.ledger.tables import Attempt
from tests.unit.api.project import Project, problems
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow

ONE = "pp=1,gbs=4"
LOST = {"phase": "ended", "state": "NODE_FAIL", "verdict": "failed", "failure": "node-fail", "nodes": "n5"}


@pytest.fixture
def nodes(project: Project, slurm: Slurm) -> Slurm:
    """Ten nodes of the cluster `there`, whose profile excludes two."""
    profile = PROFILE.replace("max_running: 4", "partition: batch, exclude: ['n[8-9]']")
    (project.folder / "clusters" / "there.yaml").write_text(profile)
    slurm.has_nodes(*(f"n{number}" for number in range(1, 11)))
    return slurm


def deny(*nodes: str, because: str = "ECC", cluster: str = "there", until: str | None = None) -> api.DenyList:
    return api.deny_nodes(nodes, because, cluster, until=until)


def denied(ended: bool = False) -> list[tuple[str, str]]:
    return [(entry.cluster, entry.node) for entry in api.list_denied_nodes(ended=ended)]


def deny_file(project: Project, cluster: str = "there") -> Path:
    return project.folder / ".config" / "repro" / "nodes" / f"{cluster}.yaml"


def excluded(script: str) -> list[str]:
    return re.findall(r"^#SBATCH --exclude=(.*)$", script, re.MULTILINE)


def rendered(project: Project) -> list[str]:
    """Return the nodes that a script of the cluster excludes."""
    (script,) = api.render("figure-13", "there", scale="cpu", where=ONE, session=project.session).scripts
    return excluded(script.text)


def scripts(project: Project) -> list[str]:
    with project.ledger.reading() as session:
        return [str(script) for script in session.scalars(sa.select(Attempt.script).order_by(Attempt.id))]


def test_denied_nodes_are_in_the_script_with_their_reason_until_they_are_allowed(
    project: Project, nodes: Slurm
) -> None:
    def job() -> str:
        (run,) = api.plan_runs("figure-13", "there", scale="cpu", where=ONE)
        return run.plans[0].identity

    identity = job()
    assert [str(entry.until) for entry in deny("n[1-2]", "n7", until="2998-12-31").entries] == ["2998-12-31"] * 3
    assert denied() == [("there", "n1"), ("there", "n2"), ("there", "n7")]
    lines = api.render("figure-13", "there", explain=True, scale="cpu", where=ONE, session=project.session).lines
    (line,) = (line for line in lines if "--exclude" in line.text)
    assert line.text == "#SBATCH --exclude=n[8-9],n1,n2,n7"
    origins = " ".join(map(str, line.origins))
    assert "clusters/there.yaml:4" in origins and f"{deny_file(project).relative_to(project.folder)}:3:5" in origins
    assert project.messages == ["note: jobs on there exclude 3 nodes: n1, n2, n7 (denied: ECC, until 2998-12-31)"]
    assert job() == identity, "the deny list changes no job"
    assert [entry.node for entry in api.allow_nodes("n[1-2]")] == ["n1", "n2"]
    project.submit(ONE, "there")
    assert nodes.options() == [""] and excluded(*scripts(project)) == ["n[8-9],n7"]
    assert denied() == [("there", "n7")]


def test_an_entry_that_has_ended_or_was_replaced_excludes_nothing(project: Project, nodes: Slurm) -> None:
    deny("n2", until="2998-01-01T12:00")
    with deny_file(project).open("a") as file:
        file.write("  - {nodes: [n1], because: fan, until: 2020-01-01}\n")
    assert rendered(project) == ["n[8-9],n2"]
    assert any("denied: ECC, until 2998-01-01T12:00" in text for text in project.messages)
    deny("n2", because="cable")
    (entry,) = api.list_denied_nodes()
    assert (entry.node, entry.reason, entry.until) == ("n2", "cable", None)
    assert denied(ended=True) == [("there", "n1"), ("there", "n2")] and nodes.calls() == []
    api.allow_nodes("n1")
    assert denied(ended=True) == [("there", "n2")]


def test_the_file_may_be_edited_by_hand_and_all_its_errors_have_a_place(project: Project, nodes: Slurm) -> None:
    deny("n1", until="2998-12-31")
    file = deny_file(project)
    assert file.read_text() == (
        "# Nodes of there that your jobs do not use. You may edit this file; `repro nodes` removes comments.\n"
        'denied:\n  - nodes: ["n1"]\n    because: "ECC"\n    until: 2998-12-31\n'
    )
    file.write_text("denied:\n  - nodes: ['n[2-3]', n7]  # the second rack\n    because: no power: no\n")
    with pytest.raises(ReproError):
        project.submit(ONE, "there")
    file.write_text("denied:\n  - nodes: ['n[2-3]', n7]  # the second rack\n    because: no\n")
    assert rendered(project) == ["n[8-9],n2,n3,n7"]
    file.write_text("denied:\n  - nodes: ['n[2-']\n    until: soon\n  - {nodes: n1, because: ECC, who: me}\n")
    with pytest.raises(ReproError) as caught:
        project.submit(ONE, "there")
    assert nodes.calls() == []
    name = file.relative_to(project.folder)
    assert [line.partition(". Hint")[0] for line in problems(caught)] == [
        f"{name}:2:13 denied.0.nodes.0: must be nodes as Slurm writes them, at most 65536: n7, n[1-4,7], got 'n[2-'",
        f"{name}:2:5 because: missing",
        f"{name}:3:12 denied.0.until: must be a day (2026-12-31) or a time in UTC (2026-12-31T18:00), got 'soon'",
        f"{name}:4:13 denied.1.nodes: must be a list, got 'n1'",
        f"{name}:4:31 who: unknown field",
    ]


def test_changes_at_the_same_time_lose_no_entry(project: Project, nodes: Slurm) -> None:
    names = [f"n{number}" for number in range(1, 11)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(deny, names))
    assert sorted(denied()) == sorted(("there", name) for name in names) and nodes.calls() == []
    assert [file.name for file in deny_file(project).parent.iterdir()] == ["there.yaml"]


def test_a_retry_and_a_queued_job_exclude_nodes_that_were_denied_later(project: Project, nodes: Slurm) -> None:
    project.submit(ONE, "there")
    with project.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**LOST))
    deny("n3")
    nodes.has_room_for(0)
    project.retry()
    deny("n4")
    nodes.has_room_for(1)
    nodes.then("refuse")  # too few nodes are left, as Slurm reports it
    assert excluded(scripts(project)[1]) == ["n[8-9],n3"]
    messages: list[str] = []
    assert send(project.ledger, project.rows()[0].run_id, Callbacks(messages.append)).jobs == 1
    assert nodes.options()[-2:] == ["--exclude=n3,n4,n5,n8,n9", "--exclude=n3,n4,n8,n9"]
    assert messages[0].endswith("; submitted again without excluding the nodes that failed")


def test_a_queued_retry_that_is_made_again_still_excludes_the_node_that_failed(project: Project, nodes: Slurm) -> None:
    project.submit(ONE, "there")
    with project.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**LOST))
    nodes.has_room_for(0)
    project.retry()
    with project.ledger.writing() as session:  # the process that submits it has ended
        session.execute(sa.update(Attempt).where(Attempt.state == "QUEUED").values(pid=2**22 + 1))
    nodes.has_room_for(1)
    project.submit(ONE, "there")
    assert nodes.options() == ["", *2 * ["--exclude=n5,n8,n9"]], "a full queue is no reason to use the node"


def test_too_few_remaining_nodes_and_denied_nodes_that_slurm_lacks_are_refused_before_sbatch(
    project: Project, nodes: Slurm
) -> None:
    def refusal(**options: object) -> str:
        with pytest.raises(ReproError) as caught:
            project.submit(ONE, "there", **options)
        assert nodes.calls() == []
        return "\n".join(problems(caught))

    nodes.has_nodes("n1", "n8")
    deny("n1")
    assert refusal() == (
        "pp=1,tp=4,gbs=4 needs 1 node, and partition batch has 0 of 2 left: 1 denied (n1: ECC). "
        "Hint: a smaller --scale, or repro nodes allow n1 --cluster there"
    )
    nodes.has_nodes("n2", "n3")
    assert "n1 denied on there, and Slurm has no such node" in refusal()
    assert "n1 is in nodelist, and it is denied: ECC" in refusal(settings=["slurm.nodelist=n1"])
    nodes.has_nodes()  # Slurm does not show its nodes
    project.submit(ONE, "there")


@pytest.mark.parametrize(
    ("nodes_denied", "options", "problem"),
    [
        (("n[1-", "n2"), {}, "n[1-: not node names. Hint: names or sets of Slurm of at most 65536 nodes: n7, n[1-4,7]"),
        (("n11",), {}, "n11: the Slurm of there has no such node. Hint: there are: n1, n10, n2,"),
        (("n1",), {"until": "2020-01-01"}, "until: is in the past"),
        (("n1",), {"until": "tomorrow"}, "until: must be a day (2026-12-31) or a time in UTC"),
        (("n1",), {"until": "9999-12-31"}, "until: must be a day (2026-12-31) or a time in UTC"),
        (("n1",), {"because": " "}, "because: must be one line"),
        (("n1",), {"cluster": "here"}, "here has no Slurm, so it has no nodes to exclude"),
        (("n1",), {"cluster": "nowhere"}, "nowhere: no such cluster"),
    ],
)
def test_a_wrong_entry_is_refused_and_nothing_is_recorded(
    project: Project, nodes: Slurm, nodes_denied: tuple[str, ...], options: dict[str, str], problem: str
) -> None:
    with pytest.raises(ReproError) as caught:
        deny(*nodes_denied, **options)
    assert problem in problems(caught)[0] and nodes.calls() == []
    assert not deny_file(project).exists()


@pytest.mark.usefixtures("nodes")
def test_a_node_is_allowed_only_where_it_is_denied(project: Project) -> None:
    (project.folder / "clusters" / "too.yaml").write_text(PROFILE)

    def refused(*names: str) -> str:
        with pytest.raises(ReproError) as caught:
            api.allow_nodes(names)
        return problems(caught)[0]

    assert refused("n1").startswith("n1: not denied")
    deny("n1", "n2")
    deny("n1", cluster="too")
    assert refused("n1") == "n1: denied on several clusters. Hint: --cluster there or --cluster too"
    assert refused("n2", "n3").startswith("n3: the deny list of there has no such node. Hint: ")
    api.allow_nodes("n1", cluster="there")
    assert denied() == [("there", "n2"), ("too", "n1")]


@pytest.mark.usefixtures("project")
def test_names_are_recorded_unchecked_where_the_clusters_slurm_cannot_be_seen(nodes: Slurm) -> None:
    (nodes.folder / "nodes").write_text("NodeName=a1 Partitions=other\n")  # the Slurm of another cluster
    assert not deny("n77").was_checked and denied() == [("there", "n77")]
