"""No value breaks out of a script: it is run by bash, and what arrives is compared to the byte.

Stubs take the places of srun, scontrol and the program; they write down their arguments and environment.
"""

from __future__ import annotations

import os
import string
import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.render import render_job
from orchestrator.planning.plan import Plan
from tests.unit.render.plans import TEMPLATES, local, plain_slurm, plans, selene

NASTY = "'\"\\`$(){}[]<>|&;*?!~#%=, \té€中_-aZ0/"
TEXT = st.text(
    st.sampled_from(NASTY) | st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=25
)
# A folder's name: anything but /, also a line break.
FOLDER = st.text(st.sampled_from(NASTY.replace("/", "") + "\n"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
NAMES = st.sampled_from(["no_proxy", "task", "jobs", "i", "exit_code", "command", "NCCL_DEBUG", "LANG"]) | st.text(
    string.ascii_letters + "_", min_size=1, max_size=8
).map(lambda name: f"X_{name}")
ENVIRONMENT = st.dictionaries(NAMES, TEXT, max_size=4)

PROGRAM = """#!/bin/sh
printf '%s\\0' "$0" "$@" >"$SEEN/argv"
/usr/bin/env -0 >"$SEEN/environment"
"""
SRUN = """#!/bin/bash
printf '%s\\0' "$@" >"$SEEN/srun"
while [[ $1 == -* ]]; do shift; done
SLURM_PROCID=5 SLURM_LOCALID=1 exec "$@"
"""
SCONTROL = """#!/bin/bash
printf '%s\\0' "$@" >"$SEEN/scontrol"
for i in {1..40000}; do echo "node-$i"; done
"""


def program_at(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def seen(folder: Path, what: str) -> list[str]:
    return os.fsdecode((folder / what).read_bytes()).split("\0")[:-1]


def environment_seen(folder: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in seen(folder, "environment"))


def run(script: str, base: Path) -> None:
    """Run it in a bare environment, in an empty folder, in which nothing may appear."""
    (base / "empty").mkdir()
    bare = {
        "PATH": f"{base}/bin:/usr/bin:/bin",
        "SEEN": str(base),
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "n[1-2] x",
    }
    file = base / "job.sh"
    file.write_text(script, encoding="utf-8")
    answer = subprocess.run(["bash", file], env=bare, cwd=base / "empty", capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert list((base / "empty").iterdir()) == []


def with_values(cluster: Cluster, environment: dict[str, str], account: str) -> Cluster:
    """As a profile that has these values, all of which a profile may have."""
    update: dict[str, object] = {"environment": environment}
    if cluster.profile.slurm is not None:
        update["slurm"] = cluster.profile.slurm.model_copy(
            update={"account": account, "srun": [f"--mcs-label={account}"]}
        )
    return replace(cluster, profile=type(cluster.profile).model_validate(cluster.profile.model_copy(update=update)))


def with_program(plan: Plan, base: Path, name: str, arguments: list[str]) -> Plan:
    program_at(base / name / "python", PROGRAM)
    program = replace(plan.program, python=str(base / name / "python"), arguments=tuple(arguments))
    return replace(plan, program=program)


TRICKY = "a'b\"c`touch x`$(touch y)\\ $HOME ${z} #%s;&|*"


@settings(max_examples=25, deadline=None)
@given(environment=ENVIRONMENT, name=FOLDER, arguments=st.lists(TEXT, max_size=4))
@example(
    environment={"X": TRICKY}, name=TRICKY.replace("/", "") + "\n\n", arguments=[TRICKY, "", "--", "-n", "--a=b c"]
)
def test_a_local_script_gives_its_program_exactly_what_the_profile_says(
    environment: dict[str, str], name: str, arguments: list[str]
) -> None:
    with TemporaryDirectory() as text:
        base = Path(text)
        cluster = with_values(local(base), environment, "a")
        plan = with_program(plans(cluster, "cpu")[0], base, name, arguments)
        job = base / name / "job"
        run(render_job(plan, cluster, job, TEMPLATES), base)
        launcher = [
            "-u",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=4",
            "-m",
            "orchestrator.pretrain",
        ]
        assert seen(base, "argv") == [plan.program.python, *launcher, *arguments]
        found = environment_seen(base)
        assert {key: found[key] for key in environment} == environment
        assert (found["PYTHONPATH"], found["OMP_NUM_THREADS"]) == ("/opt/repro", "1")
        assert sorted(path.name for path in job.iterdir()) == ["end", "log.txt", "start"]
        assert "exit_code=0" in (job / "end").read_text().splitlines()


@settings(max_examples=20, deadline=None)
@given(
    environment=ENVIRONMENT,
    name=FOLDER.filter(lambda name: "\n" not in name),  # which no #SBATCH line can hold: refused
    arguments=st.lists(TEXT, max_size=4),
    account=TEXT.filter(bool),
)
@example(environment={"X": TRICKY}, name=TRICKY.replace("/", ""), arguments=[TRICKY, "'"], account=TRICKY)
def test_a_batch_script_gives_srun_and_every_rank_exactly_what_the_profile_says(
    environment: dict[str, str], name: str, arguments: list[str], account: str
) -> None:
    with TemporaryDirectory() as text:
        base = Path(text)
        program_at(base / "bin" / "srun", SRUN)
        program_at(base / "bin" / "scontrol", SCONTROL)
        program_at(base / "bin" / "module", "#!/bin/sh\n")
        cluster = with_values(plain_slurm(base), environment, account)
        plan = with_program(plans(cluster, "quad")[0], base, name, arguments)
        job = base / name / "job"
        run(render_job(plan, cluster, job, TEMPLATES), base)
        assert seen(base, "scontrol") == ["show", "hostnames", "n[1-2] x"]
        options = seen(base, "srun")
        output = "--output=" + str(job / "log.txt").replace("%", "%%")
        assert f"--mcs-label={account}" in options and output in options
        assert options[options.index("bash") - 1] == output
        assert seen(base, "argv") == [plan.program.python, "-u", "-m", "orchestrator.pretrain", *arguments]
        found = environment_seen(base)
        assert {key: found[key] for key in environment} == environment
        ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        assert [found[name] for name in ranks] == ["5", "1", "4", "node-1", "22345"]


def test_a_container_job_gives_srun_its_image_and_drops_leftovers_of_the_submitting_shell(tmp_path: Path) -> None:
    program_at(tmp_path / "bin" / "srun", SRUN.replace("printf", "env -0 >$SEEN/batch\nprintf", 1))
    program_at(tmp_path / "bin" / "scontrol", SCONTROL)
    program_at(tmp_path / "bin" / "python", PROGRAM)
    cluster = selene(tmp_path)
    plan = plans(cluster, "paper")[4]
    plan = replace(plan, program=replace(plan.program, image_path=f"/images/{TRICKY}.sqsh"))
    script = render_job(plan, cluster, tmp_path / "job", TEMPLATES)
    run(script.replace("set -euo pipefail\n", "set -euo pipefail\nexport PYXIS_CONTAINER_NAME=left\n", 1), tmp_path)
    assert f"--container-image=/images/{TRICKY}.sqsh" in seen(tmp_path, "srun")
    assert not [line for line in seen(tmp_path, "batch") if line.startswith("PYXIS_")]
    assert seen(tmp_path, "argv")[1:3] == ["-u", "/code/Megatron-LM/pretrain_gpt.py"]
    assert environment_seen(tmp_path)["WORLD_SIZE"] == "64"


def test_a_failing_program_leaves_its_exit_code_in_the_jobs_own_record(tmp_path: Path) -> None:
    cluster = local(tmp_path)
    plan = with_program(plans(cluster, "cpu")[0], tmp_path, "p", [])
    program_at(Path(plan.program.python), "#!/bin/sh\necho out; echo err >&2; exit 7\n")
    (tmp_path / "job.sh").write_text(render_job(plan, cluster, tmp_path / "job", TEMPLATES))
    assert subprocess.run(["bash", tmp_path / "job.sh"], check=False).returncode == 7
    assert {"event=end", "exit_code=7"} <= set((tmp_path / "job" / "end").read_text().splitlines())
    assert (tmp_path / "job" / "log.txt").read_text() == "out\nerr\n"


def test_set_up_lines_may_read_variables_that_nobody_set(tmp_path: Path) -> None:
    cluster = local(tmp_path, "about: x\nscheduler: local\nsetup: ['export FROM_SETUP=\"$NEVER_SET\"done']\n")
    plan = with_program(plans(cluster, "cpu")[0], tmp_path, "p", [])
    run(render_job(plan, cluster, tmp_path / "job", TEMPLATES), tmp_path)
    assert environment_seen(tmp_path)["FROM_SETUP"] == "done"
