"""What srun can do, from its help and its list of MPI kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.site import parse_mpi_kinds, parse_options
from tests.unit.slurm.site_texts import HELP, MPI, PYXIS, pyxis_without

NEWEST = ("container-unshare",)
BEFORE_0_20 = (*NEWEST, "container-entrypoint-log")
BEFORE_0_15 = (*BEFORE_0_20, "container-env")
BEFORE_0_11 = (*BEFORE_0_15, "container-writable", "container-readonly")


def test_every_option_is_read_and_those_in_descriptions_are_not() -> None:
    options = parse_options(HELP)
    assert options.names == {
        *("account", "acctg-freq", "container", "kill-on-bad-exit", "mem-per-cpu", "extra-node-info", "help")
    }
    assert options.pyxis == frozenset() and not options.has_pyxis and options.pyxis_versions is None


def test_an_option_of_pyxis_is_known_by_its_tag_on_its_own_line_or_the_next() -> None:
    options = parse_options(HELP + PYXIS)
    assert {"container-image", "container-name", "no-container-mount-home", "container-unshare"} <= options.pyxis
    assert "container" not in options.pyxis and len(options.pyxis) == 14
    assert options.has_pyxis and "environment" not in options.names


def test_an_image_option_of_another_plug_in_is_not_pyxis() -> None:
    options = parse_options("      --container-image=NAME  [other] the image\n                    like [pyxis] has\n")
    assert options.names == {"container-image"} and not options.has_pyxis


@pytest.mark.parametrize(
    ("missing", "versions"),
    [
        ((), ("0.24", None)),
        (NEWEST, ("0.20", "0.24")),
        (BEFORE_0_20, ("0.15", "0.20")),
        (BEFORE_0_15, ("0.11", "0.15")),
        (BEFORE_0_11, ("0.8", "0.11")),
    ],
)
def test_the_options_tell_which_releases_of_pyxis_it_can_be(
    missing: tuple[str, ...], versions: tuple[str, str | None]
) -> None:
    assert parse_options(pyxis_without(*missing)).pyxis_versions == versions


def test_the_container_engine_of_cscs_is_recognised() -> None:
    assert parse_options("      --environment=PATH      the environment\n").names == {"environment"}


def test_mpi_kinds_are_read_from_both_forms_of_the_list() -> None:
    assert parse_mpi_kinds(MPI) == ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4")
    old = "srun: MPI types are...\nsrun: pmix_v3\nsrun: none\nsrun: pmi2\nsrun: pmi2\n"
    assert parse_mpi_kinds(old) == ("pmix_v3", "none", "pmi2")
    assert parse_mpi_kinds("srun: error: cannot find anything\n") == ()


@given(st.text() | st.text(alphabet="-ab =[]pyxis\n,", max_size=80))
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert parse_options(text).pyxis <= parse_options(text).names
    assert parse_options(text).pyxis_versions is None or "container-image" in parse_options(text).pyxis
    parse_mpi_kinds(text)
