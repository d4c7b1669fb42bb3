"""Commands of the pages, each one once: at a site whose training program or scheduler is a stand-in, or on a Slurm.

tests/slurm/test_pages_on_slurm.py runs those of `ON_SLURM`. test_pages.py checks that `repro` accepts all others.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.forked_repro import REPRO, run_forked
from tests.pages import CHECKOUT, Command, commands, missing_lines, page_names, typed_lines
from tests.slurm.test_pages_on_slurm import ADMINISTRATOR, ENGINEER, ON_SLURM, RUN_TWICE
from tests.stand_in_site import Site
from tests.unit.catalog.test_examples_of_the_page import PARTS, write
from tests.unit.cli.calling import Caller
from tests.unit.launch.slurm_stand_in import Slurm

pytestmark = pytest.mark.slow

REVIEWER = "docs/tutorials/reviewer.md"
OWN_PROGRAM = "docs/tutorials/your-own-program.md"

# The reviewer checks the bundle before the tutorial installs matplotlib, which the tests have.
WITHOUT_MATPLOTLIB = """\
import sys
from orchestrator.results.bundle import verify
sys.modules["matplotlib"] = None
verify.matplotlib_version = lambda: None
"""

NOT_HERE = re.compile(
    r"search gpt-|over-the-edge|--arg=--seed|--without 3f2a|2026-11-20|images import --cluster here|--notify"
    r"|programs fetch (?!.*--offline)"
)
"""Commands that need public addresses, hours on GPUs, a message service, or jobs that this site does not have."""

# Commands of other programs that run at the site.
OTHERS_RUN = (
    "chmod 600 ~/.config/repro/config.yaml",
    "ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n repro-bundle figure-13.tar.zst",
    "ssh-keygen -Y verify -f signers -I ada@example.org -n repro-bundle -s figure-13.tar.zst.sig < figure-13.tar.zst",
    "sqlite3 -readonly results.db",
    "sqlite3 -readonly -header results.db 'select * from v_results'",
    "mkdir review && tar --zstd -xf experiments/results/h200/figure-13.tar.zst -C review",
    "ls review/*",
)

# Commands that call sbatch, or that name nodes. Slurm's programs are stand-ins that start no job.
SUBMITTED = (
    "submit figure-13 --cluster selene",
    "submit figure-13 --cluster selene --rerun",
    "submit figure-13 --cluster selene --qos high --set training.iterations=50",
    "submit figure-13 --cluster selene --arg --lr=0.001",
    "submit figure-13 figure-16 --cluster selene",
    "submit figure-13 --cluster selene --depends-on warm-up",
    "submit figure-13 --cluster selene --depends-on warm-up --canary --wait",
    "submit figure-13 --cluster mine --qos high --set training.iterations=50",
    "submit figure-13 --cluster mine --set slurm.qos=high --set slurm.sbatch+=--nice=100 --set slurm.constraint=",
    "images import --cluster selene",
    "nodes deny n7 n[9-12] --cluster mine --because ECC --until 2026-12-31",
    "render figure-13 --cluster mine --explain",
    "nodes deny n7 n[9-12] --cluster mine --because ECC",
    "nodes allow n7",
)

SELENE = """\
slurm: {account: my_account, partition: my_partition}
site: {login_sees_paths: false, staging_folder: /shared/images}
container:
  images:
    nvidia/pytorch:20.12-py3: /shared/images/pytorch.sqsh
    megatron-2026: registry.example/team/core:1
    pretrain: registry.example/team/torch:1
  mounts: [/shared/data]
programs:
  megatron-2026: {checkout: /shared/data/core}
  megatron-2021:
    checkout: /shared/data/megatron
    data_path: /shared/data/tokens
    vocab_file: /shared/data/vocab
    merge_file: /shared/data/merges
"""
MINE = "about: the site of a reader\nextends: selene\nprice_per_gpu_hour: {value: 2, currency: USD}\n"

# Names of other sites on the pages: here they are the site `here`, whose jobs have results.
RESULTS_OF = {"selene": "local", "eos": "here", "gbs=32": "gbs=4"}

# Commands whose output depends on the site of the reader: times of the stand-in, and what was fetched.
OTHER_OUTPUT = (
    "compare here local",
    "programs show megatron-2021 --cluster selene",
    "collect figure-13 --cluster here --export md",
    "ls review/*",
    "config show",
)


def in_order(*pages: str) -> Iterator[Command]:
    """Yield the commands that run at the site, each one once or with its output, as the pages have them."""
    elsewhere = {*SUBMITTED, *(ON_SLURM.keys() - RUN_TWICE)}
    seen: set[str] = set()
    for page in pages:
        for command in typed_lines(page):
            if command.program == "repro":
                runs = command.key not in elsewhere and not NOT_HERE.search(command.key)
            else:
                runs = command.key in OTHERS_RUN
            if runs and (command.key not in seen or command.output):
                seen.add(command.key)
                yield command


@pytest.fixture
def new_site(tmp_path: Path) -> Site:
    """Return a home folder without jobs. The profiles `local` and `here` are this machine with the stand-in."""
    site = Site(tmp_path)
    (tmp_path / "clusters").mkdir()
    for name in ("local", "here"):
        profile = f"about: this machine\nscheduler: local\n{site.write_program()}"
        (tmp_path / "clusters" / f"{name}.yaml").write_text(profile, encoding="utf-8")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "results").symlink_to(CHECKOUT / "experiments" / "results")
    return site


@pytest.fixture
def site(new_site: Site) -> Site:
    """Return that folder with private files of a user, and with jobs. Each job of figure 16 has failed once."""
    folder = new_site.folder
    (folder / "clusters" / "selene.local.yaml").write_text(SELENE, encoding="utf-8")
    (folder / "clusters" / "mine.yaml").write_text(MINE, encoding="utf-8")
    write(folder, PARTS)
    new_site.variables |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config")}
    for name in (".config/repro", ".ssh"):
        (folder / name).mkdir(parents=True)
    (folder / ".config" / "repro" / "config.yaml").write_text("{}\n")
    key = folder / ".ssh" / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (folder / "signers").write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    for cluster in ("here", "local"):
        submit(new_site, "figure-13", "--cluster", cluster)
    submit(new_site, "figure-13", "--cluster", "local", "--rerun", "--where", "pp=1,gbs=4")
    figure_16 = ("figure-16", "--cluster", "local", "--where", "mbs=2")
    submit(new_site, *figure_16)
    new_site.behave("fail")
    submit(new_site, *figure_16, "--rerun", code=1)
    new_site.behave("well")
    submit(new_site, *figure_16, "--rerun")
    return new_site


def submit(site: Site, *words: str, code: int = 0) -> None:
    done = site.repro("submit", *words, "--wait")
    assert done.returncode == code, done.stdout + done.stderr


def adapted(site: Site, command: Command) -> list[str]:
    """Return the words of the command with the jobs, clusters and the home folder of this site."""
    words = [re.sub("^~", str(site.folder), word) for word in command.words]
    if {"JOB", "3f2a", "77a694"} & set(words):
        figure = "figure-16" if "3f2a" in words else "figure-13"
        job = next(str(row["job"]) for row in site.status() if figure in row["experiment"])
        words = [job if word in ("JOB", "3f2a", "77a694") else word for word in words]
    if words[0] in ("claims", "collect", "compare"):
        words = [RESULTS_OF.get(word, word) for word in words]
    return words


def faults_of(site: Site, command: Command) -> list[str]:
    """Run the command. Return an exit code other than 0, and lines of the page that it does not print."""
    if command.program == "repro":
        words = adapted(site, command)
        for option, value in itertools.pairwise(words):
            if option == "-o" and (site.folder / value).is_file():
                (site.folder / value).unlink()
        before = dict(site.variables)
        site.variables |= command.variables
        done = site.repro(*words)
        site.variables = before
    else:
        text = command.text
        done = subprocess.run(
            ["bash", "-c", text], cwd=site.folder, env=site.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    printed = done.stdout + done.stderr
    faults = [] if done.returncode == 0 else [f"{command}: exit code {done.returncode}: {printed}"]
    if command.page not in (ADMINISTRATOR, ENGINEER) and command.key not in OTHER_OUTPUT:
        faults += [f"{command}: does not print {line!r}, but: {printed}" for line in missing_lines(command, printed)]
    return faults


def test_the_commands_of_the_pages_succeed(site: Site) -> None:
    pages = [page for page in page_names() if page not in (REVIEWER, OWN_PROGRAM)]
    faults = [fault for command in in_order(*pages) for fault in faults_of(site, command)]
    assert faults == [], "\n".join(faults)


def test_the_commands_of_the_reviewers_tutorial_print_what_it_shows(
    new_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        is_before_its_installation = words[:2] == ("bundle", "verify") and "/results/" in words[2]
        return run_forked(words, folder, environment, WITHOUT_MATPLOTLIB * is_before_its_installation + REPRO)

    monkeypatch.setattr("tests.stand_in_site.run_forked", run)
    faults = [fault for command in in_order(REVIEWER) for fault in faults_of(new_site, command)]
    assert faults == [], "\n".join(faults)


def test_the_commands_of_the_tutorial_of_a_program_print_what_it_shows(tmp_path: Path) -> None:
    """With the two files of the page, in an empty home folder."""
    text = (CHECKOUT / OWN_PROGRAM).read_text(encoding="utf-8")
    files = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["experiments/mine/paper.yaml", "experiments/mine/sorting.yaml"]
    (tmp_path / "experiments" / "mine").mkdir(parents=True)
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    site = Site(tmp_path)
    faults = []
    for command in typed_lines(OWN_PROGRAM):
        if command.program == "repro":
            done = site.repro(*command.words)
        else:
            done = subprocess.run(
                ["bash", "-c", command.text], cwd=tmp_path, capture_output=True, text=True, check=False
            )
        printed = done.stdout + done.stderr
        faults += [] if done.returncode == 0 else [f"{command}: exit code {done.returncode}: {printed}"]
        faults += [f"{command}: does not print {line!r}, but: {printed}" for line in missing_lines(command, printed)]
    assert faults == [], "\n".join(faults)
    sorting = tmp_path / "experiments" / "mine" / "sorting.yaml"
    sorting.write_text(sorting.read_text().replace("{length}", "{lenght}", 1))
    (shown,) = (line.strip() for line in text.splitlines() if line.startswith("    repro: "))
    assert shown == site.repro("experiments", "check", "sorting").stderr.strip()


def test_the_commands_that_submit_reach_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Slurm.on_path(tmp_path / "bin", monkeypatch)
    home = tmp_path / "home"
    (home / "clusters").mkdir(parents=True)
    (home / "clusters" / "selene.local.yaml").write_text(SELENE)
    (home / "clusters" / "mine.yaml").write_text(MINE)
    repro = Caller(Site(home), monkeypatch, capsys)
    faults = []
    found = {command.key: command for page in page_names() for command in commands(page)}
    for command in map(found.__getitem__, SUBMITTED):
        replaced = {"2026-12-31": "2998-12-31"}
        words = [replaced.get(word, word) for word in command.words if word != "--wait"]  # no job ends
        if words[0] == "submit":  # nothing was submitted before
            shutil.rmtree(home / "runs", ignore_errors=True)
            (home / "results.db").unlink(missing_ok=True)
            (slurm.folder / "queue").write_text("")
        before = len(slurm.calls())
        done = repro(*words)
        if done.returncode != 0 or (len(slurm.calls()) > before) is not (words[0] in ("submit", "images")):
            faults.append(f"{command}: exit code {done.returncode}: {done.stderr}")
        printed = done.stdout + done.stderr
        faults += [f"{command}: does not print {line!r}, but: {printed}" for line in missing_lines(command, printed)]
    assert faults == [], "\n".join(faults)


def test_the_commands_of_the_pages_are_found() -> None:
    keys = {command.key for page in page_names() for command in typed_lines(page)}
    assert [key for key in (*OTHERS_RUN, *SUBMITTED, *OTHER_OUTPUT) if key not in keys] == []
    assert len(list(in_order(*page_names()))) > 100
