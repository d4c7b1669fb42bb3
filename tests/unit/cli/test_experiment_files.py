from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stand_in_site import CHECKOUT
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow


@pytest.fixture
def mine(repro: Caller) -> Path:
    """A copy of figure 13 with its paper, outside of every folder of experiments."""
    folder = repro.site.folder / "work" / "my"
    folder.mkdir(parents=True)
    shutil.copy(CHECKOUT / "experiments" / "sc21" / "paper.yaml", folder)
    shutil.copy(CHECKOUT / "experiments" / "sc21" / "figure-13.yaml", folder / "figure.yaml")
    return folder / "figure.yaml"


def test_an_experiment_submitted_by_its_path_is_the_same_one_by_name(repro: Caller, mine: Path) -> None:
    work = mine.parent.parent
    options = ("--cluster", "here", "--scale", "cpu", "--where", "gbs=4")
    done = repro("submit", "my/figure.yaml", *options, "--wait", folder=work)
    assert done.returncode == 0 and "figure at scale cpu on here: 3 cases: 3 submitted" in done.stderr, done.stderr
    again = repro("submit", str(mine), *options)
    assert "3 cases: 3 done, 0 submitted" in again.stderr
    for name in ("./figure.yaml", "figure", "my/figure"):
        assert "3/3 verified" in repro("status", name, folder=mine.parent).stderr, name
    for words in (("collect",), ("collect", "figure"), ("collect", "my/figure.yaml"), ("compare", "my/figure.yaml")):
        assert repro(*words, "--where", "gbs=4", folder=work).returncode == 0, words
    other = work / "elsewhere" / "my" / "figure.yaml"
    shutil.copytree(mine.parent, other.parent)
    for command, more in (("submit", options), ("claims", ())):
        done = repro(command, str(other), *more)
        assert done.returncode == 2 and "elsewhere/my/figure.yaml: my/figure " in done.stderr, done.stderr
        assert f"{mine}. Hint: rename the file or its folder" in done.stderr.replace("work/my", str(mine.parent))


def test_a_path_is_accepted_wherever_a_name_is_and_suggestions_repeat_it(repro: Caller, mine: Path) -> None:
    options = ("--cluster", "here", "--scale", "cpu", "--where", "pp=1,gbs=4")
    for command, option in (("plan", "--json"), ("render", ""), ("submit", "--dry-run")):
        done = repro(command, "work/my/figure.yaml", *options, *filter(None, [option]))
        assert done.returncode == 0 and "work/my/figure.yaml" in done.stderr.splitlines()[-1], done.stderr
    assert "my/figure" in repro("show", "./figure.yaml", folder=mine.parent).stderr


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("work/my/figur.yaml", 'work/my/figur.yaml: no such file. Did you mean "figure.yaml"?'),
        ("work/my/paper.yaml", "work/my/paper.yaml: describes a paper, and is not an experiment."),
        ("work/none.yaml", "work/none.yaml: no such file. Hint: correct the path"),
        ("a b/figure.yaml", "a b/figure.yaml: a b/figure: folder and file are the experiment's name. Hint: rename"),
        ("sc21/figure-13.yaml", "sc21/figure-13.yaml: sc21/figure-13 is also the name of "),
    ],
)
def test_a_wrong_path_is_refused_with_the_reason(repro: Caller, mine: Path, path: str, message: str) -> None:
    for folder in ("a b", "sc21"):
        shutil.copytree(mine.parent, repro.site.folder / folder)
    shutil.copy(mine, repro.site.folder / "sc21" / "figure-13.yaml")
    done = repro("plan", path)
    assert done.returncode == 2 and done.stderr.startswith(f"repro: {message}"), done.stderr


def test_both_words_of_a_listed_experiment_mean_the_same(repro: Caller) -> None:
    file = str(CHECKOUT / "experiments" / "sc21" / "figure-13.yaml")
    options = ("--cluster", "here", "--scale", "cpu")
    by_path, by_name = (repro("submit", word, *options, "--dry-run") for word in (file, "figure-13"))
    assert by_path.stdout == by_name.stdout and by_path.stderr == by_name.stderr
