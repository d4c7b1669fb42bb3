"""Tests of programs beside their arguments: data, MPI, compiled kernels, and values of the site."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.experiment import CodeFields
from orchestrator.clusters.program import is_offered, program_for
from orchestrator.errors import ReproError
from tests.cases import expand
from tests.unit.catalog.entries import find_case, shipped
from tests.unit.clusters.sites import PLAIN, cluster_of
from tests.unit.megatron.programs.places import EVERYWHERE, FOLDERS, one_of_each, pretrain_case


def test_todays_megatron_needs_only_a_checkout(
    tmp_path: Path,
) -> None:
    entry = shipped()
    case = replace(expand(entry)[0], program="megatron-2026")
    assert not is_offered("megatron-2026", cluster_of(tmp_path))
    with pytest.raises(ReproError, match=r"does not define program megatron-2026. .* megatron-2026: checkout; repro"):
        program_for(case, entry.paper, cluster_of(tmp_path), FOLDERS)
    program = program_for(case, entry.paper, cluster_of(tmp_path, PLAIN + EVERYWHERE), FOLDERS)
    assert (program.command[2:], program.python_path, program.mounts) == (
        ("/today/pretrain_gpt.py",),
        "/today",
        ("/today",),
    )
    assert (program.code, program.data) == ("d98e8a64ddf34856e74b24714e3bedb2f5a39553", "mock data")
    assert "--mock-data" in program.arguments
    named = entry.paper.model_copy(update={"code": {"megatron-2026": CodeFields(repository="r", commit="c0ffee")}})
    assert program_for(case, named, cluster_of(tmp_path, PLAIN + EVERYWHERE), FOLDERS).code == "c0ffee"


def test_todays_megatron_needs_a_vocabulary_for_site_data(tmp_path: Path) -> None:
    entry = shipped()
    case = replace(expand(entry)[0], program="megatron-2026")
    whole = "programs: {megatron-2026: {checkout: /c, data_path: /d, vocab_file: /v, merge_file: /m}}\n"
    program = program_for(case, entry.paper, cluster_of(tmp_path, PLAIN + whole), FOLDERS)
    assert program.data == "/d" and "--mock-data" not in program.arguments
    assert [program.arguments[program.arguments.index(f"--{name}") + 1] for name in ("vocab-file", "merge-file")] == [
        "/v",
        "/m",
    ]
    for part, missing in (
        ("data_path: /d", "no vocab_file and no merge_file"),
        ("data_path: /d, vocab_file: /v", "no merge_file"),
        ("vocab_file: /v, merge_file: /m", "no data_path"),
    ):
        text = f"programs: {{megatron-2026: {{checkout: /c, {part}}}}}\n"
        with pytest.raises(ReproError, match=f"data need all of data_path, vocab_file and merge_file: {missing}$"):
            cluster_of(tmp_path, PLAIN + text)


def test_flags_without_transformer_engine_have_the_profile_field_as_origin(tmp_path: Path) -> None:
    entry = shipped()
    case = replace(expand(entry, "quad")[0], program="megatron-2026")
    text = "programs: {megatron-2026: {checkout: /c, transformer_engine: %s}}\n"
    usual, own = (
        program_for(case, entry.paper, cluster_of(tmp_path, PLAIN + text % value), FOLDERS)
        for value in ("true", "false")
    )
    assert usual == program_for(
        case, entry.paper, cluster_of(tmp_path, PLAIN + "programs: {megatron-2026: {checkout: /c}}\n"), FOLDERS
    )
    # What core 0.20.0 was seen to ask for on a machine with torch alone.
    flags = "--transformer-impl --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion"
    assert [word for word in own.arguments if word not in usual.arguments] == flags.replace(
        "impl", "impl local"
    ).split()
    flags_of_site = {
        word for word, path in own.site_values if path == ("programs", "megatron-2026", "transformer_engine")
    }
    assert flags_of_site == set(flags.split())
    with pytest.raises(ReproError, match=r"transformer_engine: must be true or false"):
        cluster_of(tmp_path, PLAIN + text % "perhaps")


def test_alpa_benchmark_imports_its_checkouts(tmp_path: Path) -> None:
    entry, cluster = shipped("alpa-gpt"), cluster_of(tmp_path, PLAIN + EVERYWHERE)
    program = program_for(expand(entry)[0], entry.paper, cluster, FOLDERS)
    assert program.per_rank()[:3] == ["python", "-u", "/alpa/osdi22_artifact/megatron/benchmark_gpt_one_case.py"]
    # the fork for `import megatron`, the root of Alpa's own checkout for `from benchmark.util import ...`
    assert (program.python_path, program.mounts) == ("/alpas:/alpa", ("/alpas", "/alpa"))
    assert program.code == "c28bbd208d16ffea61fa3c545e66b3a9d87f9d84"
    assert program.data == "synthetic"


def test_alpa_benchmark_folder_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"must be the folder .../osdi22_artifact/megatron in a checkout"):
        cluster_of(tmp_path, PLAIN + "programs: {megatron-alpa: {checkout: /c, benchmark: /alpa}}\n")


def test_data_and_compilation_of_each_program(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN + EVERYWHERE)
    programs = {case.program: program_for(case, paper, cluster, FOLDERS) for case, paper in one_of_each()}
    assert {name: program.data for name, program in programs.items()} == {
        "megatron-2021": "/2021/d",
        "megatron-alpa": "synthetic",
        "megatron-kwai": "/kwai/d",
        "megatron-jan-2024": "/jan/d",
        "megatron-core-0.14": "/core/d",
        "megatron-tutorial-fork": "/fork/d",
        "megatron-2026": "mock data",
    }
    assert {name: program.compiles_in for name, program in programs.items() if program.compiles_in} == {
        "megatron-2021": "/2021",
        "megatron-alpa": "/alpas",
        "megatron-kwai": "/kwai",
    }
    for program in programs.values():
        assert bool(program.warm_up) == (program.compiles_in is not None)
    assert program_for(*pretrain_case(), cluster, FOLDERS).data == "synthetic"


@pytest.mark.parametrize(
    ("index", "kernels"),
    [
        # What fused_kernels.load of each commit compiles when it is given these arguments: at 6985e58938 and b31e129635
        # two kernels of the softmax and the norm; at b2646e4d9f those of rotary positions and context parallelism.
        (
            0,
            ["scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda", "fused_mix_prec_layer_norm_cuda"],
        ),
        (
            1,
            ["scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda", "fused_mix_prec_layer_norm_cuda"],
        ),
        (2, ["fast_rotary_pos_emb", "fast_flip_cuda", "wrap_gemm_cuda", "fast_cat_cuda"]),
    ],
    ids=["2021", "alpa", "kwai"],
)
def test_warm_up_compiles_all_kernels_and_trains_nothing(index: int, kernels: list[str], tmp_path: Path) -> None:
    case, paper = one_of_each()[index]
    checkout = tmp_path / "checkout"
    text = EVERYWHERE
    for folder in ("/2021", "/alpas", "/kwai"):
        text = text.replace(f"checkout: {folder},", f"checkout: {checkout},")
    program = program_for(case, paper, cluster_of(tmp_path, PLAIN + text), FOLDERS)
    write_kernels(checkout)
    command = [sys.executable, *program.warm_up[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["helpers", *kernels]


def write_kernels(checkout: Path) -> None:
    """Write the two functions of Megatron-LM that compile kernels, with their conditions and without a compiler."""
    (checkout / "megatron" / "data").mkdir(parents=True)
    (checkout / "megatron" / "__init__.py").write_text("")
    (checkout / "megatron" / "data" / "__init__.py").write_text("")
    (checkout / "megatron" / "data" / "dataset_utils.py").write_text("def compile_helper(): print('helpers')\n")
    (checkout / "megatron" / "fused_kernels.py").write_text(
        "def load(args):\n"
        "    verbose = args.rank == 0\n"
        "    if args.masked_softmax_fusion:\n"
        "        print('scaled_upper_triang_masked_softmax_cuda scaled_masked_softmax_cuda')\n"
        "    if not hasattr(args, 'use_fast_rope'):\n"
        "        return print('fused_mix_prec_layer_norm_cuda')\n"
        "    if args.use_fast_rope:\n"
        "        print('fast_rotary_pos_emb')\n"
        "    if args.context_parallel_size >= 2 or args.kaimm_offload_activation_ratio > 0:\n"
        "        print('fast_flip_cuda wrap_gemm_cuda fast_cat_cuda')\n"
    )


@pytest.mark.parametrize(
    ("experiment", "name", "needs"),
    [
        ("atc-table-8", "case=ours", True),  # tensor-parallel 4: userbuffers
        ("atc-demo", "case=ours", False),  # tensor-parallel 1 turns the overlap off
        ("atc-demo", "case=origin", True),  # script 3: context-parallel 1, MPI even with tensor-parallel 1
        ("atc-table-8", "case=origin", False),  # script 7: context-parallel 2
        ("figure-13", "pp=8,tp=8,gbs=32", False),
        ("core-tp-weak", "case=228", False),
        ("alpa-gpt", "gpus=16", False),
    ],
)
def test_mpi_is_needed_only_in_documented_layouts(experiment: str, name: str, needs: bool, tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN + EVERYWHERE)
    assert program_for(find_case(experiment, name), shipped(experiment).paper, cluster, FOLDERS).needs_mpi is needs


def test_site_values_match_command_and_profile_fields(tmp_path: Path) -> None:
    named = PLAIN + EVERYWHERE + "  pretrain: {python: /opt/py}\n"
    cluster = cluster_of(tmp_path, named)
    for case, paper in [*one_of_each(), pretrain_case()]:
        program = program_for(case, paper, cluster, FOLDERS)
        command = [*program.command, *program.arguments, *program.mounts]
        assert {word for word, _ in program.site_values} <= set(command)
        for word, path in program.site_values:
            value: Any = cluster.profile.model_dump(by_alias=True)
            for part in path:
                value = value[part]
            assert value.startswith(word) or word.startswith(value), (word, path)
        given = cluster.profile.programs.model_dump(by_alias=True)[case.program]
        fields = {path[-1] for _, path in program.site_values}
        assert fields == {field for field, value in given.items() if isinstance(value, str)}
