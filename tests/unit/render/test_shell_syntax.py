"""bash and shellcheck accept the scripts of all profiles and programs, and of all cases of figure 13 on four sites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.launch.render import JobScript, render_array, render_job, render_queue
from tests.unit.render.plans import TEMPLATES, local, plain_slurm, plans, selene
from tests.unit.render.site_scripts import SITES, STORED_IN_FULL, runs, site_script
from tests.unit.render.special_scripts import SPECIAL_SCRIPTS, special_script
from tests.unit.render.stand_ins import KINDS, cluster_and_plan, with_fields

pytestmark = pytest.mark.slow

RARE_FIELDS = {
    "environment": {"A": "it's $HOME", "B": ""},
    "env_prepend": {"P": "/a b"},
    "env_unset": ["U"],
    "env_from": ["F"],
    "rendezvous": {"host_suffix": "-ib", "port": 6002},
}
"""Fields that few shipped profiles set."""


def site_scripts() -> dict[str, str]:
    """Return the script of each site, first those whose golden files are stored in full."""
    sites = sorted((site for site in SITES if runs(*site)), key=lambda site: site[0] not in STORED_IN_FULL)
    return {"-".join(site): site_script(*site) for site in sites}


def scripts_with_rare_fields(folder: Path) -> dict[str, str]:
    scripts = {}
    for kind in KINDS:
        cluster, plan = cluster_and_plan(kind)
        container = {"container": {"pass_env": ["NCCL_*", "X"]}} if kind == "pyxis" else {}
        scripts[f"rare-{kind}"] = render_job(
            plan, with_fields(cluster, **RARE_FIELDS, **container), folder / "a;folder", TEMPLATES
        )
    return scripts


def figure_13_scripts(folder: Path) -> dict[str, str]:
    """Return the script of each case, and of the array or queue of all cases."""
    scripts = {}
    for cluster, scale in (
        (selene(folder), "paper"),
        (plain_slurm(folder), "quad"),
        (plain_slurm(folder), "cpu"),
        (local(folder), "cpu"),
    ):
        name = f"{cluster.name}-{scale}"
        cases = plans(cluster, scale)
        files = [JobScript(folder / f"{name}-{plan.case.slug}.sh", folder / plan.case.slug) for plan in cases]
        for plan, file in zip(cases, files, strict=True):
            scripts[file.file.stem] = render_job(plan, cluster, file.folder, TEMPLATES)
        if cluster.is_slurm:
            scripts[f"{name}-array"] = render_array(cases, cluster, files, folder, TEMPLATES, at_once=4)
        else:
            scripts[f"{name}-queue"] = render_queue(files, folder / "lock", TEMPLATES)
    return scripts


def scripts_with_new_lines(scripts: Mapping[str, str]) -> dict[str, str]:
    """Return the scripts with three adjacent lines that no earlier script has.

    Comments are left out. Numbers and paths are not compared, because shellcheck treats all of them alike.
    """
    seen: set[tuple[str, ...]] = set()
    selected = {}
    for name, text in scripts.items():
        code = re.sub(r"(?m)^#(?! shellcheck).*\n", "", text)
        lines = re.sub(r"[0-9]+|(/[\w.@,+-]+)+", "0", f"\n{code}").split("\n")
        adjacent = set(zip(lines, lines[1:], lines[2:], strict=False))
        if not adjacent <= seen:
            selected[name] = text
        seen |= adjacent
    return selected


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("scripts")
    special = {name: special_script(name) for name in SPECIAL_SCRIPTS}
    return site_scripts() | special | scripts_with_rare_fields(folder) | figure_13_scripts(folder)


def write_scripts(scripts: Mapping[str, str], folder: Path) -> list[Path]:
    files = [folder / f"{name}.sh" for name in scripts]
    for file, text in zip(files, scripts.values(), strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def test_each_case_and_submission_has_a_script(scripts: dict[str, str]) -> None:
    figure_13 = 10 + 1 + 6 + 1 + 6 + 1 + 6 + 1
    assert len(scripts) == len(site_scripts()) + len(SPECIAL_SCRIPTS) + len(KINDS) + figure_13


def test_bash_reads_every_script(scripts: dict[str, str], tmp_path: Path) -> None:
    for file in write_scripts(scripts, tmp_path):
        answer = subprocess.run(["bash", "-n", file], capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stderr) == (0, ""), file.name


def test_script_with_a_line_of_its_own_is_selected_for_shellcheck() -> None:
    text = 'set -eu\n# a comment\ncd /a/b\necho "$a" 1\n'
    same = {"comment": ("a comment", "x"), "path": ("/a", "/c"), "number": ("1", "22")}
    other = {"unquoted": ('"$a"', "$a"), "shorter": ("set -eu\n", ""), "longer": ("set -eu\n", "set -eu\n" * 2)}
    scripts = {name: text.replace(*change) for name, change in (same | other).items()}
    assert list(scripts_with_new_lines({"first": text} | scripts)) == ["first", *other]


def test_shellcheck_finds_nothing_in_any_script(scripts: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed: apt-get install shellcheck"
        warnings.warn("shellcheck is not installed, so no script was checked by it", stacklevel=1)
        return
    files = write_scripts(scripts_with_new_lines(scripts), tmp_path)
    # SC1091: a line of setup: that sources a file of the site, which is not here to be followed.
    command = ["shellcheck", "--shell=bash", "--exclude=SC1091", *map(str, files)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
