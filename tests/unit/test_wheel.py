"""Wheel: it contains figures, profiles and templates, and runs from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def repro(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REPRO_")}
    command = [sys.executable, "-P", "-m", "orchestrator.cli.main", *words]
    if sys.version_info < (3, 11):
        command.remove("-P")
    environment["PYTHONPATH"] = str(installed)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_installed_wheel_lists_figures_and_clusters_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    answer = repro(installed, tmp_path, "list")
    assert answer.returncode == 0 and "sc21/figure-13" in answer.stdout, answer.stderr
    assert "clusters: alps, " in answer.stderr and ", local, " in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_an_installed_wheel_renders_a_script_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    answer = repro(installed, tmp_path, "render", "figure-13", "--cluster", "local", "--scale", "cpu")
    assert answer.returncode == 0 and answer.stdout.count("#!/bin/bash") == 6, answer.stderr


SITE = """\
about: this machine
scheduler: local
programs: {{pretrain: {{python: {python}}}}}
"""
INTERPRETER = """\
#!/bin/sh
exec {python} -Sc '
import importlib.util, orchestrator.pretrain
print(orchestrator.pretrain.__file__, importlib.util.find_spec("numpy"))'
"""


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The environment of `repro` contains a numpy that fails",
    promise="No job imports it.",
)
def test_a_job_imports_the_program_and_no_other_package_of_repros_environment(installed: Path, tmp_path: Path) -> None:
    (installed / "numpy").mkdir(exist_ok=True)
    (installed / "numpy" / "__init__.py").write_text("raise ImportError('the numpy of the login node')")
    python = tmp_path / "python"
    python.write_text(INTERPRETER.format(python=sys.executable))
    python.chmod(0o755)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "own.yaml").write_text(SITE.format(python=python))
    words = ("figure-13", "--cluster", "own", "--scale", "cpu", "--where", "pp=1,gbs=4")
    rendered = repro(installed, tmp_path, "render", *words, "-o", "jobs")
    assert rendered.returncode == 0, rendered.stderr
    script = Path(rendered.stdout.strip())
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", script], cwd=tmp_path / "jobs", env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    file, numpy = (script.with_suffix("") / "log.txt").read_text().split(maxsplit=1)
    assert numpy.strip() == "None"
    (copy,) = (tmp_path / "runs" / "programs").iterdir()
    assert file == str(copy / "orchestrator" / "pretrain" / "__init__.py")


def test_private_values_of_a_shipped_profile_are_read_from_the_working_folder(installed: Path, tmp_path: Path) -> None:
    wanted = repro(installed, tmp_path, "submit", "figure-13", "--cluster", "selene")
    assert wanted.returncode == 2 and "clusters/selene.local.yaml" in wanted.stderr, wanted.stderr
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "selene.local.yaml").write_text(
        "slurm: {account: a, partition: p}\n"
        "container: {images: {nvidia/pytorch:20.12-py3: /i.sqsh}, mounts: [/data]}\n"
        "programs: {megatron-2021: {checkout: /c, data_path: /d, vocab_file: /v, merge_file: /m}}\n"
    )
    found = repro(installed, tmp_path, "submit", "figure-13", "--cluster", "selene", "--dry-run")
    assert found.returncode == 0 and "would submit 10 jobs" in found.stderr, found.stderr
    assert "open value" not in found.stderr
