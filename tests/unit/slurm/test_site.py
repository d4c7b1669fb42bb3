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
from orchestrator.slurm.site import Site, read_site
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
