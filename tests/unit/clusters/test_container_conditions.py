"""Settings with a condition on the size of a job, and names in braces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.container import checked_names, holds
from orchestrator.errors import ReproError
from tests.unit.clusters.sites import PLAIN, cluster_of, short

SOME = """\
environment:
  ALWAYS: 1
  FAST: {value: eth1, when: nodes > 1}
  ALONE: {value: 0, when: nodes == 1}
setup:
  - module load mpi
  - {run: source /opt/net.sh, when: nodes > 1}
container:
  runtime: pyxis
  mounts: [/data, {mount: "/opt/net:/opt/net:ro", when: nodes > 1}]
"""


@pytest.mark.parametrize(("nodes", "several", "one"), [(1, False, True), (2, True, False), (384, True, False)])
def test_a_condition_holds_by_the_number_of_nodes(nodes: int, several: bool, one: bool) -> None:
    assert (holds("nodes > 1", nodes), holds("nodes == 1", nodes), holds(None, nodes)) == (several, one, True)


def test_a_job_has_the_variables_of_its_size_as_text(tmp_path: Path) -> None:
    profile = cluster_of(tmp_path, PLAIN + SOME).profile
    assert profile.variables(1) == {"ALWAYS": "1", "ALONE": "0"}
    assert profile.variables(2) == {"ALWAYS": "1", "FAST": "eth1"}


def test_a_plain_value_in_an_overlay_removes_the_condition_of_a_variable(tmp_path: Path) -> None:
    profile = cluster_of(tmp_path, PLAIN + SOME, "environment: {FAST: eth2}\n").profile
    assert profile.variables(1)["FAST"] == profile.variables(2)["FAST"] == "eth2"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("environment: {A: {value: x, when: nodes > 2}}", "5:29 environment.A.when"),
        ("setup: [{run: x, when: gpus > 1}]", "5:18 setup.0.when"),
        ("container: {runtime: pyxis, mounts: [{mount: /a, when: always}]}", "5:50 container.mounts.0.when"),
    ],
)
def test_an_unknown_condition_is_refused_with_the_supported_conditions(line: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(ReproError) as caught:
        cluster_of(tmp_path, f"{PLAIN}{line}\n")
    assert any(
        short(problem).startswith(f"site.yaml:{where}: must be 'nodes > 1' or 'nodes == 1', got ")
        for problem in caught.value.problems
    )


def test_what_has_no_condition_is_written_without_braces(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="when: missing. Hint: add when:"):
        cluster_of(tmp_path, PLAIN + "environment: {A: {value: x}}\n")


@given(st.lists(st.sampled_from(["{job_id}", "{user}", "/a", "}", " ", "$x"])).map("".join))
def test_text_with_supported_names_is_unchanged(text: str) -> None:
    assert checked_names(text, ("job_id", "user")) == text


@pytest.mark.parametrize("name", ["x", "", "job-id", "user "])
def test_an_unsupported_name_is_refused_with_the_supported_names(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        checked_names(f"/a/{{{name}}}/{{user}}", ("job_id", "user"))
    assert str(caught.value) == f"{{{name}}} is not supported here, only {{job_id}}, {{user}}"
