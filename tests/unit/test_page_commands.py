"""Commands of the pages, each one once: at a site whose training program or scheduler is a stand-in, or on a Slurm.

tests/slurm/test_pages_on_slurm.py runs those of `ON_SLURM`. The tables here have the commands that run nowhere.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import CHECKOUT, Command, commands, missing_lines, page_names, typed_lines
from tests.slurm.test_pages_on_slurm import ADMINISTRATOR, ENGINEER, GUIDES, ON_SLURM, RUN_TWICE
from tests.stand_in_site import Site
from tests.unit.catalog.test_examples_of_the_page import PARTS, write
from tests.unit.cli.calling import Caller
from tests.unit.launch.slurm_stand_in import Slurm
from tests.unit.test_contributing import COMMANDS as OF_DEVELOPERS

pytestmark = pytest.mark.slow

REVIEWER = "docs/tutorials/reviewer.md"

_FETCHED = "fetches from public addresses: tests/unit/launch/test_fetch.py has local ones"
_SEARCHED = "takes hours on 16 GPUs: tests/slurm/test_search_on_slurm.py searches a small model"
_MESSAGE = "needs a message service: tests/unit/cli/test_messages.py has one"

# Commands of `repro` that only the parser checks (test_pages.py), with the reason.
NOT_RUN = {
    "search gpt-6.7b --gpus 16 --gbs 512 --cluster mycluster --budget 6gpu-hours": _SEARCHED,
    "search gpt-6.7b --gpus 16 --gbs 512 --cluster selene --budget 6gpu-hours": _SEARCHED,
    "submit over-the-edge --cluster local --wait": "uses all the memory of real GPUs: tests/gpu",
    "claims figure-13 --arg=--seed=3": "needs a run with it: tests/unit/cli/test_results_selection.py makes one",
    "claims figure-13 --without 3f2a:1=a slow node": "needs its job: tests/unit/cli/test_results_without.py",
    "compare figure-13 2026-11-20 2026-11-27": "needs jobs of two days: tests/unit/cli/test_compare.py makes them",
    "images import --cluster here --wait": "needs enroot: tests/slurm/test_images_on_slurm.py has a stand-in",
    "submit figure-13 --cluster selene --wait --notify slack://...": _MESSAGE,
    "submit figure-13 --cluster mine --wait --notify ntfy://ntfy.sh/my-topic": _MESSAGE,
    "workloads fetch megatron-2021 --cluster selene": _FETCHED,
    "workloads fetch megatron-2021 --cluster selene --directory /shared/data": _FETCHED,
    "workloads fetch megatron-kwai --cluster kwai-h800 --directory /shared/data": _FETCHED,
    "workloads fetch megatron-core-0.14 --cluster X --directory /shared/data --text openwebtext-10k.jsonl": _FETCHED,
}

_CLONED = "needs the address of the repository and a package registry; `make check` and test_wheel.py install it"
_BENCHMARK = "tests/unit/planning/test_predictions_page.py checks its tables"
_DOCKER = "needs Docker and a registry"
_PEERS = "python -m benchmarks.peers --megatron CHECKOUT"

# Commands of other programs that no test runs, with the reason.
OTHERS_NOT_RUN = {
    "git clone REPOSITORY repro && cd repro": _CLONED,
    "python3 -m venv .venv && source .venv/bin/activate": _CLONED,
    "pip install .": _CLONED,
    "pip install '.[notify]'": _CLONED,
    "pip install '.[local,plot]'": _CLONED,
    "python -m benchmarks.duration": _BENCHMARK,
    "python -m benchmarks.duration --write": _BENCHMARK,
    "python -m benchmarks.duration --rows": _BENCHMARK,
    "python -m benchmarks.duration --fit": "takes minutes",
    f"{_PEERS} --rounds 2 --iterations 50": "needs a GPU",
    f"{_PEERS} --rounds 1 --iterations 30 --layers 16 --hidden 4096 --heads 32 --micro-batch-size 1"
    " --tensor-parallel 2": "needs two GPUs",
    "python -m pytest tests/unit/reading/test_parse_golden_logs.py": "is itself a test",
    "python -m pytest tests/gpu": "needs GPUs",
    'mkdir -p "$REPRO_HOME/experiments" && cp -r tests/gpu/edge "$REPRO_HOME/experiments/"': "needs GPUs afterwards",
    "python3 -m tests.slurm.portable pack slurm.txz": "downloads Debian packages: tests/unit/slurm/test_portable.py",
    'eval "$(python3 -m tests.slurm.portable up slurm.txz /srv/slurm)"': "needs that file",
    'sinfo -o "%N %t %G"': "needs that Slurm",
    "check-jsonschema --schemafile clusters/schema.json clusters/mine.yaml": "another project's program",
    "datasette results.db": "another project's program",
    "tail -6 clusters/selene.local.yaml": "shows what a fetch from public addresses wrote",
    "tail -3 fetch.sh": "tests/unit/cli/test_workloads.py compares it",
    "docker create --name atc24 yuantailing/megatron-kwai:atc24ae-1.0.0": _DOCKER,
    "docker cp atc24:/root/dataset dataset": _DOCKER,
    "docker rm atc24": _DOCKER,
}

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
workloads:
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

# Commands whose output depends on the site of the reader.
OTHER_OUTPUT = {
    "compare here local": "the times of the stand-in are equal",
    "workloads show megatron-2021 --cluster selene": "nothing was fetched",
    "collect figure-13 --cluster here --export md": "the times of the stand-in have no spread",
    "ls review/*": "a terminal shows columns",
    "config show": "the configuration of the reader",
}


def in_order(*pages: str) -> Iterator[Command]:
    """Yield the commands that run at the site, each one once or with its output, as the pages have them."""
    elsewhere = {*NOT_RUN, *SUBMITTED, *(ON_SLURM.keys() - RUN_TWICE)}
    seen: set[str] = set()
    for page in pages:
        for command in typed_lines(page):
            runs = command.key not in elsewhere if command.program == "repro" else command.key in OTHERS_RUN
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
    pages = [page for page in page_names() if page != REVIEWER]
    faults = [fault for command in in_order(*pages) for fault in faults_of(site, command)]
    assert faults == [], "\n".join(faults)


def test_the_commands_of_the_reviewers_tutorial_print_what_it_shows(new_site: Site) -> None:
    faults = [fault for command in in_order(REVIEWER) for fault in faults_of(new_site, command)]
    assert faults == [], "\n".join(faults)


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


def test_every_command_runs_in_one_test_or_has_a_reason() -> None:
    typed = [command for page in page_names() for command in typed_lines(page)]
    keys = {command.key for command in typed}
    for table in (NOT_RUN, OTHERS_NOT_RUN, OTHERS_RUN, SUBMITTED, OTHER_OUTPUT):
        assert [key for key in table if key not in keys] == []
    on_slurm = {command.key for page in (ADMINISTRATOR, ENGINEER, *GUIDES) for command in typed_lines(page)}
    assert [key for key in ON_SLURM if key not in on_slurm] == []
    others = {command.key for command in typed if command.program != "repro"}
    developers = {line.partition("  #")[0].strip() for line in OF_DEVELOPERS}
    assert others - developers - {*OTHERS_RUN, *OTHERS_NOT_RUN, *ON_SLURM} == set()
    assert len(list(in_order(*page_names()))) > 100
