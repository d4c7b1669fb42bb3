"""Account and QOS of a job, and jobs that a site does not accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.profile import QosFields, SlurmFields
from orchestrator.errors import ReproError
from orchestrator.slurm.notation import time_limit_s
from orchestrator.text import counted
from tests.unit.clusters.sites import PLAIN, cluster_of, short

# Leonardo's, by size and then by time (CINECA documentation).
LEONARDO = [
    {"name": "normal", "max_nodes": 64, "max_time": "1-00:00:00"},
    {"name": "boost_qos_bprod", "min_nodes": 65, "max_nodes": 256, "max_time": "1-00:00:00"},
    {"name": "boost_qos_lprod", "max_nodes": 8, "max_time": "4-00:00:00"},
]


def slurm(**fields: Any) -> SlurmFields:
    return SlurmFields.model_validate({"time_limit": "1:00:00"} | fields)


def messages(folder: Path, line: str) -> str:
    with pytest.raises(ReproError) as caught:
        cluster_of(folder, PLAIN.replace("slurm: {", f"slurm: {{{line}, "))
    (only,) = caught.value.problems
    return short(only)


def test_an_account_is_the_project_and_what_its_hours_are_for() -> None:
    assert slurm(project="abc", account="{project}@a100").account_name == "abc@a100"
    assert slurm(account="proj").account_name == "proj"
    assert slurm(project="abc").account_name is None


def test_an_account_without_its_project_is_refused(tmp_path: Path) -> None:
    assert messages(tmp_path, "account: '{project}_g'") == (
        "site.yaml:4:1 slurm: account contains {project}, but project: is missing"
    )
    assert messages(tmp_path, "project: a, account: '{gpu}@{project}'").startswith(
        "site.yaml:4:21 slurm.account: {gpu} is not supported here, only {project}"
    )


def test_an_open_placeholder_is_an_account_until_it_is_needed(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN.replace("slurm: {", "slurm: {account: '<your {account}>', "))
    assert [blank.text for blank in cluster.unfilled] == ["<your {account}>"]


@pytest.mark.parametrize(
    ("nodes", "limit", "expected"),
    [
        (1, "1:00:00", "normal"),
        (64, "1-00:00:00", "normal"),
        (65, "1:00:00", "boost_qos_bprod"),
        (256, "24:00:00", "boost_qos_bprod"),
        (8, "1-00:00:01", "boost_qos_lprod"),
        (8, "4-00:00:00", "boost_qos_lprod"),
        (9, "1-00:00:01", None),
        (257, "1:00:00", None),
        (1, "4-00:00:01", None),
    ],
)
def test_jobs_request_the_first_qos_that_accepts_them(nodes: int, limit: str, expected: str | None) -> None:
    own = slurm(qos=LEONARDO)
    assert own.qos_for(nodes, nodes * 4, limit) == expected
    assert own.refusals(nodes, nodes * 4, limit) == (
        []
        if expected
        else [
            f"no QOS accepts {counted(nodes, 'node')}, {nodes * 4} GPUs for {limit} "
            "(there are: normal, boost_qos_bprod, boost_qos_lprod)"
        ]
    )


# Few numbers, so that jobs lie on both sides of limits and on them.
SIZES = st.integers(1, 6)
LIMITS = st.builds("{}-{:02}:00:0{}".format, st.integers(0, 1), st.integers(0, 2), st.integers(1, 2))
QOS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"min_nodes": SIZES, "max_nodes": SIZES, "max_gpus": SIZES, "max_time": LIMITS},
    ),
    max_size=4,
)


def is_within(qos: QosFields, nodes: int, gpus: int, limit: str) -> bool:
    """Return the expected result, from the names of the fields."""
    bounds = [
        qos.min_nodes is None or qos.min_nodes <= nodes,
        qos.max_nodes is None or nodes <= qos.max_nodes,
        qos.max_gpus is None or gpus <= qos.max_gpus,
        qos.max_time is None or time_limit_s(limit) <= time_limit_s(qos.max_time),
    ]
    return all(bounds)


@given(QOS, SIZES, st.integers(0, 6), LIMITS)
def test_the_chosen_qos_accepts_the_job_and_no_earlier_qos_does(
    limits: list[dict[str, Any]], nodes: int, gpus: int, limit: str
) -> None:
    several = [QosFields.model_validate({"name": f"q{i}"} | fields) for i, fields in enumerate(limits)]
    chosen = slurm(qos=several).qos_for(nodes, gpus, limit)
    fitting = [fields.name for fields in several if is_within(fields, nodes, gpus, limit)]
    assert chosen == (fitting[0] if fitting else None)
    assert bool(slurm(qos=several).refusals(nodes, gpus, limit)) == (chosen is None)


@pytest.mark.parametrize("qos", ["regular", None])
def test_a_qos_without_limits_accepts_every_job(qos: str | None) -> None:
    assert slurm(qos=qos).qos_for(10_000, 80_000, "9-00:00:00") == qos
    assert slurm(qos=qos).refusals(10_000, 80_000, "9-00:00:00") == []


def test_a_job_larger_or_longer_than_the_site_allows_is_refused_for_each_reason() -> None:
    own = slurm(max_nodes=8, max_time="12:00:00", qos=[{"name": "only", "max_gpus": 16}])
    assert own.refusals(8, 16, "12:00:00") == []
    assert own.refusals(9, 36, "12:00:01") == [
        "needs 9 nodes, but the limit of this cluster is 8",
        "requests 12:00:01, but the limit of this cluster is 12:00:00",
        "no QOS accepts 9 nodes, 36 GPUs for 12:00:01 (there are: only)",
    ]


def test_one_task_for_each_node_cannot_ask_for_gpus_by_the_task(tmp_path: Path) -> None:
    assert messages(tmp_path, "tasks: per-node, gpu_request: gpus-per-task") == (
        "site.yaml:4:1 slurm: tasks: per-node does not work with gpu_request: gpus-per-task; "
        "set gpu_request: gpus-per-node"
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("mail_type: 'END,FIAL'", 'mail_type: must be events of Slurm; did you mean "FAIL"?'),
        ("mail_type: [END]", "mail_type: must be text such as END,FAIL"),
        ("mail_type: ARRAY_TASKS", "mail_type: must have another event beside ARRAY_TASKS: END,ARRAY_TASKS"),
        ("mail_type: 'NONE,END'", "mail_type: must have no event beside NONE"),
        ("mail_type: END, mail_user: a b", "mail_user: must be a user or an address, without blanks"),
        ("mail_user: ann", "mail_user has no effect without mail_type; add mail_type: END,FAIL"),
    ],
)
def test_mail_that_slurm_would_refuse_or_never_send_is_an_error_of_the_profile(
    tmp_path: Path, fields: str, problem: str
) -> None:
    assert problem in messages(tmp_path, fields)
