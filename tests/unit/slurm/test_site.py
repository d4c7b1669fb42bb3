"""What a site's commands print, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm import command, site
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, parse_settings
from orchestrator.slurm.site import Site, choose, ranked, read_site
from tests.unit.slurm import site_texts as texts


@dataclass
class LoginNode:
    """Answers by the words of a command that tell it from the others; an error is raised."""

    answers: dict[str, str | Unreachable] = field(
        default_factory=lambda: {
            "config": texts.CONFIG,
            "partition": texts.PARTITIONS,
            "node": texts.NODES,
            "reservation": texts.RESERVATIONS,
            "user": texts.ASSOCIATIONS,
            "qos": texts.QOS,
            "association": texts.ACCOUNTS,
            "--help": texts.HELP + texts.PYXIS,
            "--mpi=list": texts.MPI,
        }
    )
    failing: Mapping[str, str] = field(default_factory=dict)
    calls: list[Sequence[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> CommandResult:
        self.calls.append(argv)
        (key,) = [key for key in self.answers if key in argv]
        said = self.answers[key]
        if isinstance(said, Unreachable):
            raise said
        if key in self.failing:
            return CommandResult(tuple(argv), 1, said, self.failing[key])
        return CommandResult(tuple(argv), 0, said, "")


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> LoginNode:
    fake = LoginNode()
    for module in (command, site):
        monkeypatch.setattr(module, "run_slurm", fake)
    return fake


def test_every_command_is_asked_once_and_its_answer_is_kept(login: LoginNode) -> None:
    found = read_site("root")
    assert len(login.calls) == 9
    assert (found.user, found.cluster_name, found.slurm_version) == ("root", "ci", "22.05.8")
    assert [one.name for one in found.partitions] == ["batch", "short", "picky", "denies", "empty"]
    assert [one.account for one in found.associations or ()] == ["small", "research", "root"]
    assert [one.name for one in found.qos or ()] == ["normal", "low", "high", "limited"]
    assert found.srun.has_pyxis and found.reservations == ("weekly",) and found.complaints == ()
    assert found.mpi_kinds == ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4")
    assert found.partition("short") == found.partitions[1] and found.partition("no") is None
    assert found.qos_named("limited") == (found.qos or ())[3] and found.qos_named(None) is None


def test_only_this_users_accounts_on_this_cluster_are_asked_for(login: LoginNode) -> None:
    read_site("somebody")
    (asked,) = [argv for argv in login.calls if argv[0] == "sacctmgr" and "user" in argv]
    assert {"name=somebody", "cluster=ci", "withassoc", "--noheader", "--parsable2"} <= set(asked)


@pytest.mark.parametrize("says", ["raises", "fails"])
def test_accounting_that_is_away_is_a_complaint_and_no_empty_answer(login: LoginNode, says: str) -> None:
    if says == "raises":
        away = AccountingUnreachable(Problem("sacctmgr: Connection refused"))
        login.answers |= {"user": away, "qos": away}
    else:
        login.failing = {"user": "Unknown field 'x'", "qos": "Unknown field 'x'"}
    found = read_site("root")
    assert found.associations is None and found.qos is None
    assert found.complaints and all(text.startswith("sacctmgr") for text in found.complaints)
    assert len(found.partitions) == 5 and found.qos_named("normal") is None


def test_a_user_without_accounts_is_told_from_accounting_that_is_away(login: LoginNode) -> None:
    login.answers["user"] = ""
    found = read_site("root")
    assert found.associations == () and found.complaints == ()


@pytest.mark.parametrize("key", ["config", "partition", "node", "reservation", "--help", "--mpi=list"])
def test_a_controller_that_is_away_passes_through(login: LoginNode, key: str) -> None:
    login.answers[key] = Unreachable(Problem("scontrol: no answer within 60 s"))
    with pytest.raises(Unreachable, match="no answer"):
        read_site("root")


@pytest.mark.parametrize("key", ["config", "partition", "--help"])
def test_the_output_of_a_command_that_failed_is_not_taken_for_an_answer(login: LoginNode, key: str) -> None:
    login.failing = {key: "slurm_load: something new"}
    with pytest.raises(Unreachable, match="something new"):
        read_site("root")


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("node", "scontrol show node"),
        ("reservation", "scontrol show reservation"),
        ("--mpi=list", "srun --mpi=list"),
        ("user", "sacctmgr show user"),
    ],
)
def test_what_slurm_keeps_to_itself_is_a_complaint(login: LoginNode, key: str, command: str) -> None:
    login.failing = {key: "slurm_load_node error: Access/permission denied"}
    found = read_site("root")
    (complaint,) = found.complaints
    assert complaint.startswith(command) and complaint.endswith("Access/permission denied")
    empty = {"node": found.partitions[0].kinds, "reservation": found.reservations, "--mpi=list": found.mpi_kinds}
    assert empty.get(key, ()) == () and found.partitions[0].nodes == 4


@pytest.mark.parametrize("release", texts.RELEASES)
def test_the_partition_that_the_user_can_use_is_found_in_the_text_of_each_release(
    login: LoginNode, release: str
) -> None:
    lines = (
        texts.partition_line(release, "owners", "n[1-4]", AllowGroups="no-such-group", Default="YES"),
        texts.partition_line(release, "root", "n[1-4]", RootOnly="YES"),
        texts.partition_line(release, "reserved", "n[1-4]", ReqResv="YES"),
        texts.partition_line(release, "others", "n[1-4]", AllowAccounts="other"),
        texts.partition_line(release, "lane", "n[1-4]", AllowQos="high"),
        texts.partition_line(release, "spare", "n[1-4]", PreemptMode="REQUEUE"),
        texts.partition_line(release, "slices", "m1"),
        texts.partition_line(release, "gpu", "n[3-4]", PriorityTier="10"),
        texts.partition_line(release, "zero", "n[1-4]", QoS="none"),
    )
    login.answers |= {
        "partition": "".join(lines),
        "node": "".join(
            texts.node_line(f"n{number}", "owners,root,reserved,others,lane,spare,zero" + ",gpu" * (number > 2))
            for number in range(1, 5)
        )
        + texts.node_line("m1", "slices", "gpu:h100_1g.10gb:56(S:0-1),gpu:h100_2g.20gb:8(S:0-1)"),
        "config": texts.CONFIG.replace("22.05.8", f"{release}.1")
        + "PreemptMode             = REQUEUE\nPreemptType             = preempt/partition_prio\n",
        "user": "lab|lab||normal|normal||gres/gpu=8|||gres/gpu:h100=6||\n",
        "qos": "normal||||||||||||\nnone||||gres/gpu=0,gres/gpu:h100=0|||||cluster|||\nhigh||||||||normal|cluster|||\n",
    }
    answer = read_site("ann")
    assert choose(answer).partition.name == "gpu" and choose(answer).largest == 6
    reasons = {choice.partition.name: choice.obstacle for choice in ranked(answer)}
    assert reasons == {
        "gpu": None,
        "spare": None,
        "slices": None,
        "owners": "only for the groups no-such-group",
        "root": "only for root",
        "reserved": "only for jobs with a reservation",
        "others": "accepts none of your accounts",
        "lane": "accepts no QOS of your accounts",
        "zero": "QOS none allows no GPUs",
    }
    assert [str(choice.preemption) for choice in ranked(answer) if choice.preemption] == [
        "preemptible by jobs of partition gpu (PreemptMode=REQUEUE)"
    ]


def test_settings_are_as_printed() -> None:
    settings = parse_settings(texts.CONFIG)
    assert settings["SchedulerParameters"] == "bf_interval=2,sched_interval=5", "only the first = divides"
    assert settings["MaxArraySize"] == "1001" and settings["PowerPlugin"] == "" and settings["SlurmctldHost[0]"]
    assert "Slurmctld(primary) at vm is UP" not in settings and len(settings) == 14


@given(st.text())
def test_no_text_breaks_the_settings(text: str) -> None:
    parse_settings(text)


@pytest.mark.parametrize(
    ("enforced", "needed"),
    [("associations,limits,qos", True), ("safe", True), ("none", False), ("nosteps", False), ("", False)],
)
def test_accounts_are_needed_where_accounting_enforces_them(enforced: str, needed: bool) -> None:
    assert Site("u", "c", "22.05", settings={"AccountingStorageEnforce": enforced}).enforces_accounts is needed
