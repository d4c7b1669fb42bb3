"""Tests of the command of a rank for a case on a cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.program import image_of, is_offered, program_for
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.model import Attention, Training
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.pretrain import code_version
from orchestrator.paths import Folders
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import programs
from tests.cases import expand, megatron_names
from tests.unit.catalog.entries import CHECKOUT, shipped
from tests.unit.clusters.sites import PLAIN, cluster_of, selene
from tests.unit.megatron.programs.places import EVERYWHERE, FOLDERS


def program(cluster: Cluster, scale: str = "paper") -> BoundProgram:
    entry = shipped()
    return program_for(expand(entry, scale)[0], entry.paper, cluster, FOLDERS)


def test_only_pretrain_skips_the_last_recomputed_product() -> None:
    assert [name for name in programs() if find_megatron(name).time.skips_last_product] == ["pretrain"]


@pytest.mark.parametrize(
    ("program", "attention", "arguments", "causal"),
    [
        ("pretrain", None, (), True),
        ("pretrain", "unfused", (), False),
        ("megatron-2021", None, (), False),
        ("megatron-kwai", None, (), True),
        ("megatron-2026", None, ("--bf16", "--transformer-impl", "local"), False),
        ("megatron-2026", None, ("--bf16", "--transformer-impl", "transformer_engine"), True),
    ],
)
def test_only_flash_attention_computes_half_of_the_scores(
    program: str, attention: Attention | None, arguments: tuple[str, ...], causal: bool
) -> None:
    assert find_megatron(program).causal_attention(Training(attention=attention), arguments) is causal


def test_megatron_has_commit_and_image_of_the_paper_and_paths_of_the_site(tmp_path: Path) -> None:
    result = program(selene(tmp_path))
    assert result.per_rank()[:4] == [
        "python",
        "-u",
        "/code/Megatron-LM/pretrain_gpt.py",
        "--activations-checkpoint-method",
    ]
    assert result.code == "6985e58938d40ad91ac07b0fddcfad8132e1447e"
    assert (result.image, result.image_path) == ("nvidia/pytorch:20.12-py3", "/images/pytorch-20.12.sqsh")
    assert result.mounts == ("/code/Megatron-LM",)


def test_python_of_pretrain_comes_from_site_image_or_this_process(tmp_path: Path) -> None:
    assert program(cluster_of(tmp_path), "quad").python == sys.executable
    named = cluster_of(tmp_path, PLAIN + "programs: {pretrain: {python: /opt/py}}\n")
    assert program(named, "quad").python == "/opt/py"
    boxed = cluster_of(tmp_path, PLAIN + "container: {runtime: pyxis, images: {pretrain: /i.sqsh}}\n")
    result = program(boxed, "quad")
    assert (result.python, result.image_path, result.mounts) == ("python", "/i.sqsh", (result.python_path,))
    assert result.python_path == str(CHECKOUT / "runs" / "programs" / code_version())


def test_pretrain_ranks_are_forked_by_its_launcher(tmp_path: Path) -> None:
    result = program(cluster_of(tmp_path), "quad")
    launcher = ["-u", "-m", "orchestrator.pretrain.launch", "--nproc-per-node=4"]
    assert result.all_ranks(4)[1:] == [*launcher, *result.arguments]
    assert result.below_launcher() == list(result.arguments)
    assert result.per_rank()[1:] == ["-u", "-m", "orchestrator.pretrain", *result.arguments]


def test_ranks_of_other_programs_are_started_by_torchrun(tmp_path: Path) -> None:
    result = program(selene(tmp_path))
    launcher = ["-u", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    assert result.all_ranks(4)[1:] == [*launcher, *result.below_launcher()]
    assert result.below_launcher() == ["/code/Megatron-LM/pretrain_gpt.py", *result.arguments]


def test_missing_program_in_profile_is_reported_with_its_fields(tmp_path: Path) -> None:
    with pytest.raises(ReproError) as caught:
        program(cluster_of(tmp_path))
    assert str(caught.value).startswith(
        "site does not define program megatron-2021. Hint: set in the profile: programs: megatron-2021: checkout"
    )


def test_unknown_program_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    entry = shipped()
    for name, hint in (
        ("megatron-kwia", 'did you mean "megatron-kwai"?'),
        ("zzz", f"there are: {', '.join(programs())}"),
    ):
        case = replace(expand(entry)[0], program=name)
        with pytest.raises(ReproError) as caught:
            program_for(case, entry.paper, cluster_of(tmp_path), FOLDERS)
        assert caught.value.problems == (Problem(f"{name}: no such program", hint=hint),)


def test_paper_without_commit_is_refused(tmp_path: Path) -> None:
    entry = shipped()
    paper = entry.paper.model_copy(update={"code": {}})
    with pytest.raises(ReproError, match=r"paper\.yaml names no code for megatron-2021"):
        program_for(expand(entry)[0], paper, selene(tmp_path), FOLDERS)


def test_site_without_containers_has_no_image(tmp_path: Path) -> None:
    assert image_of(expand(shipped())[0], shipped().paper, cluster_of(tmp_path)) == (None, None)


@pytest.mark.parametrize(
    ("experiment", "fields"),
    [
        ("atc-table-8", "programs: megatron-kwai: checkout, data_path"),
        ("core-dp", "programs: megatron-core-0.14: checkout, data_path, vocab_file, merge_file"),
        ("tutorial-cp", "programs: megatron-tutorial-fork: checkout, data_path, vocab_file, merge_file"),
        ("alpa-gpt", "programs: megatron-alpa: checkout, benchmark"),
    ],
)
def test_missing_program_names_exactly_its_required_fields(experiment: str, fields: str, tmp_path: Path) -> None:
    entry = shipped(experiment)
    case, cluster = expand(entry)[0], cluster_of(tmp_path)
    assert not is_offered(case.program, cluster)
    with pytest.raises(ReproError) as caught:
        program_for(case, entry.paper, cluster, FOLDERS)
    hint = f"{fields}; repro programs fetch {case.program} --cluster site --directory /SHARED/FOLDER fetches"
    assert str(caught.value).startswith(
        f"site does not define program {case.program}. Hint: set in the profile: {hint}"
    )


def test_vocabulary_files_are_required_only_by_programs_that_read_them(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="vocab_file: missing. Hint: add vocab_file:"):
        cluster_of(tmp_path, PLAIN + "programs: {megatron-core-0.14: {checkout: /c, data_path: /d}}\n")
    sites = "programs: {megatron-kwai: {checkout: /c, data_path: /d, vocab_file: /v}}\n"
    with pytest.raises(ReproError, match="vocab_file: unknown field"):
        cluster_of(tmp_path, PLAIN + sites)


def test_program_is_offered_if_the_profile_defines_it(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN + EVERYWHERE)
    offered = {name for name in programs() if is_offered(name, cluster)}
    assert offered == set(programs())
    assert not is_offered("zero-3", cluster)


def test_atc24_programs_have_the_variables_of_their_scripts(tmp_path: Path) -> None:
    entry, cluster = shipped("atc-table-8"), cluster_of(tmp_path, PLAIN + EVERYWHERE)
    result = {case.program: program_for(case, entry.paper, cluster, FOLDERS) for case in expand(entry)}
    kwai, origin = result["megatron-kwai"], result["megatron-jan-2024"]
    assert (kwai.command[2:], kwai.python_path, kwai.code[:10]) == (("/kwai/pretrain_gpt.py",), "/kwai", "b2646e4d9f")
    assert origin.command[2:] == ("/jan/pretrain_gpt.py",)
    assert (origin.python_path, origin.code[:10]) == ("/jan", "eba78b0973")
    # -x of mpirun in both scripts, less PYTHONPATH, MASTER_ADDR, MASTER_PORT and CUDA_DEVICE_MAX_CONNECTIONS=1.
    assert " ".join(f"{name}={value}" for name, value in kwai.environment) == (
        "MPI_THREAD_SINGLE=1 NCCL_DEBUG=WARN NVTE_FWD_LAYERNORM_SM_MARGIN=8 NVTE_BWD_LAYERNORM_SM_MARGIN=8 "
        "TORCH_NCCL_AVOID_RECORD_STREAMS=1 PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:21"
    )
    assert origin.environment == kwai.environment


def test_tutorial_generations_run_two_checkouts(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN + EVERYWHERE)
    for name, checkout, code in (("core-dp", "/core", "core_r0.14.0"), ("tutorial-cp", "/fork", "6ac43930b5")):
        entry = shipped(name)
        result = program_for(expand(entry)[0], entry.paper, cluster, FOLDERS)
        assert (result.command[2:], result.python_path) == ((f"{checkout}/pretrain_gpt.py",), checkout)
        assert result.code.startswith(code) and result.environment == ()
        assert result.arguments[result.arguments.index("--vocab-file") + 1] == f"{checkout}/v"


def test_arguments_have_each_flag_once_and_no_python_values(
    tmp_path: Path,
) -> None:
    cluster, ran = cluster_of(tmp_path, PLAIN + EVERYWHERE), set()
    folders = Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")
    for name in megatron_names(folders):
        entry = find_experiment(folders, name)
        if entry.experiment.reference_only:
            continue
        for case in expand(entry):
            if not is_offered(case.program, cluster):
                continue
            arguments = program_for(case, entry.paper, cluster, FOLDERS).arguments
            if case.program == "megatron-alpa":  # its script takes no flags
                continue
            flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
            assert len(flags) == len(set(flags)), f"{name} {case.name}"
            assert not {"", "None", "True", "False"} & set(arguments), f"{name} {case.name}"
            assert arguments[: len(arguments) - len(case.arguments)] + case.arguments == arguments
            ran.add(case.program)
    assert ran == set(programs()) - {"megatron-alpa"}
