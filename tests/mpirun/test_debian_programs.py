"""The shipped experiments whose programs are Debian packages: real runs of hpcc and fio."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.programs.output import Scalar
from tests.shipped_programs import shipped_program
from tests.slurm.host import install_packages


def test_hpcc_is_verified(tmp_path: Path) -> None:
    install_packages(["hpcc", "openmpi-bin"])
    program = shipped_program("machine/hpcc")
    settings: dict[str, Scalar] = {"n": 100, "ranks": 2}
    (tmp_path / "hpccinf.txt").write_text(program.filled("hpccinf.txt.in", settings))
    environment = {**os.environ, **program.fields.environment}
    subprocess.run(
        [program.fields.filled(word, settings) for word in program.fields.command],
        cwd=tmp_path,
        env=environment,
        check=True,
        timeout=120,
    )
    result = program.judged((tmp_path / "hpccoutf.txt").read_bytes(), settings)
    assert result.problems == ()
    assert float(result.output.values["hpl"].value) > 0


def test_fio_is_verified(tmp_path: Path) -> None:
    """Without direct reads, because the temporary folder can be in memory."""
    install_packages(["fio"])
    program = shipped_program("machine/fio")
    settings: dict[str, Scalar] = {"block": "4K", "file_size": "1M", "direct": 0, "runtime_s": 1}
    subprocess.run(
        [program.fields.filled(word, settings) for word in program.fields.command], cwd=tmp_path, check=True, timeout=60
    )
    result = program.judged((tmp_path / "fio.json").read_bytes(), settings)
    assert result.problems == ()
    assert not (tmp_path / "fio.data").exists()
