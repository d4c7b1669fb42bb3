"""Accounts and qualities of service from sacctmgr's rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.accounting import Association, Qos, parse_accounts, parse_associations, parse_qos
from tests.unit.slurm.site_texts import ACCOUNTS, ASSOCIATIONS, QOS

T3 = {"job wall": 72000, "job gres/gpu": 512, "user gres/gpu": 128, "group node": 4, "user jobs": 10}


def test_an_association_has_its_qos_and_the_default_account_is_marked() -> None:
    assert parse_associations(ASSOCIATIONS) == (
        Association("small", ("high", "limited", "low", "normal"), "normal", limits={"user jobs": 2}),
        Association("research", ("high", "limited", "low", "normal"), "normal", is_default=True),
        Association("root", ("normal",)),
    )
    (only_there,) = parse_associations("a|b|gpu_p5||\n")
    assert only_there == Association("b", partition="gpu_p5")


@pytest.mark.parametrize(
    ("row", "qos"),
    [
        ("normal||||||", Qos("normal")),
        ("limited||node=2||||3", Qos("limited", {"job node": 2, "user queue": 3})),
        ("dev|02:00:00|cpu=64,gres/gpu=32||||", Qos("dev", {"job wall": 7200, "job cpu": 64, "job gres/gpu": 32})),
        ("t3|20:00:00|gres/gpu=512|gres/gpu=128|node=4|10|", Qos("t3", T3)),
        ("typed||gres/gpu:a100=8,mem=1T||||", Qos("typed", {"job gres/gpu:a100": 8})),
        ("none|||gres/gpu=0|||", Qos("none", {"user gres/gpu": 0})),
        (
            "lane|||gres/gpu=32||||DenyOnLimit,OverPartQOS",
            Qos("lane", {"user gres/gpu": 32}, frozenset({"DenyOnLimit", "OverPartQOS"})),
        ),
    ],
)
def test_the_limits_of_a_qos_are_those_that_one_job_meets(row: str, qos: Qos) -> None:
    assert parse_qos(f"{row}\n") == (qos,)


def test_every_qos_of_the_list_is_read_with_those_that_it_preempts() -> None:
    normal, low, high, _ = parse_qos(QOS)
    assert [one.name for one in parse_qos(QOS)] == ["normal", "low", "high", "limited"]
    assert (normal.preempt_mode, low.preempt_mode) == (None, "REQUEUE") and high.preempts == {"low", "normal"}


def test_an_account_has_its_own_limits_and_those_of_the_accounts_above() -> None:
    assert parse_accounts(ACCOUNTS) == {"root": {}, "research": {}, "small": {"group gres/gpu": 16}}
    nested = "top|||gres/gpu=8,gres/gpu:a100=0||\nlab|top||gres/gpu=32|10|\nlab|top|ann|gres/gpu=1||\n"
    assert parse_accounts(nested) == {
        "top": {"group gres/gpu": 8, "group gres/gpu:a100": 0},
        "lab": {"group gres/gpu": 8, "group gres/gpu:a100": 0, "group jobs": 10},
    }
    assert parse_accounts("a|b||||\nb|a||gres/gpu=2||\n")["a"] == {"group gres/gpu": 2}
    assert parse_accounts("lab|lab||normal|normal\n") == {}


def test_the_limits_of_an_association_are_read_for_each_partition() -> None:
    every, gpu = parse_associations("a|a||n|n|1-00:00:00||4|9|cpu=8||\na|a|gpu|n|n||gres/gpu:a100=0|||gres/gpu=2||\n")
    assert every.limits == {"job wall": 86400, "group cpu": 8, "user jobs": 4, "user queue": 9}
    assert (gpu.partition, gpu.limits) == ("gpu", {"job gres/gpu:a100": 0, "group gres/gpu": 2})


@given(st.text() | st.text(alphabet="ab|=,\n0123456789gres/u", max_size=80))
def test_no_text_breaks_the_parsers(text: str) -> None:
    parse_associations(text)
    parse_qos(text)
