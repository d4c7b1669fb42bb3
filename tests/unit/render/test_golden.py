"""Rendered scripts are equal to the reviewed golden files, so that a script only changes on purpose.

The golden files are: PROFILE/PROGRAM.sh or .diff for each shipped profile and program, refusals.txt for the cases
that a profile cannot run, NAME.sh for scripts of special kinds, and an explained script. See golden_files.py.
"""

from __future__ import annotations

import pytest

from orchestrator.launch.render import explain_job
from tests.unit.render.golden_files import Rendered, check_golden, check_stale_files
from tests.unit.render.plans import TEMPLATES
from tests.unit.render.site_scripts import (
    SHIPPED,
    SITES,
    job_folder,
    plan_of,
    plan_or_refusals,
    rendered_site_script,
    runs,
    site,
    without_folders,
)
from tests.unit.render.special_scripts import SPECIAL_SCRIPTS, rendered_special_script


def rendered_refusals() -> Rendered:
    """Return one line per shipped profile and program that the profile cannot run."""
    lines = []
    for profile, program in SHIPPED:
        reasons = plan_or_refusals(profile, program)
        if isinstance(reasons, tuple):
            (reason,) = reasons
            assert "\n" not in reason
            lines.append((f"{profile} {program}", reason))
    width = max(len(name) for name, _ in lines)
    return Rendered("refusals.txt", "".join(f"{name:<{width}}  {reason}\n" for name, reason in lines))


def rendered_explanation() -> Rendered:
    """Return a script with the origins of each line."""
    plan = plan_of("selene", "megatron-2021")
    lines = explain_job(plan, site("selene"), job_folder(plan), TEMPLATES)
    origins = [without_folders(", ".join(line.origins)) for line in lines]
    width = max(map(len, origins))
    text = "".join(f"{o:<{width}}  {line.text}".rstrip() + "\n" for o, line in zip(origins, lines, strict=True))
    return Rendered("selene/megatron-2021.explained.txt", without_folders(text))


@pytest.mark.parametrize(("profile", "program"), SITES)
def test_script_of_a_site_equals_its_golden_file(profile: str, program: str, update_golden: bool) -> None:
    if runs(profile, program):
        check_golden(rendered_site_script(profile, program), update_golden)
    else:
        assert (profile, program) in SHIPPED, "refusals.txt has no variants"


@pytest.mark.parametrize("name", SPECIAL_SCRIPTS)
def test_script_of_a_special_kind_equals_its_golden_file(name: str, update_golden: bool) -> None:
    check_golden(rendered_special_script(name), update_golden)


def test_each_refused_case_has_a_line_with_its_reason(update_golden: bool) -> None:
    check_golden(rendered_refusals(), update_golden)


def test_explained_script_equals_its_golden_file(update_golden: bool) -> None:
    check_golden(rendered_explanation(), update_golden)


def test_golden_folder_has_no_stale_file(update_golden: bool) -> None:
    rendered = [rendered_site_script(*site) for site in SITES if runs(*site)]
    rendered += [rendered_special_script(name) for name in SPECIAL_SCRIPTS]
    rendered += [rendered_refusals(), rendered_explanation()]
    check_stale_files({text.file for text in rendered}, update_golden)
