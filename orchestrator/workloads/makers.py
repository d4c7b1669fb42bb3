"""A case bound to a cluster -> its program: one maker for each workload."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from orchestrator.clusters.workload_sites import BenchmarkSite, CheckoutSite, MegatronSite, TodaySite, VocabularySite
from orchestrator.workloads import (
    megatron_2021,
    megatron_2026,
    megatron_alpa,
    megatron_core,
    megatron_kwai,
    pretrain,
)
from orchestrator.workloads.base import Binding, Program
from orchestrator.workloads.pretrain_files import code_version, program_folder

MOCK = "mock data"

# What each start does before it trains (initialize.py, _compile_dependencies), with all that load() looks at. It needs
# no data and no layout: Kwai's kernels for context parallelism could not be had from a run on one GPU.
_COMPILE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from argparse import Namespace; from megatron import fused_kernels; "
    "from megatron.data.dataset_utils import compile_helper; compile_helper(); fused_kernels.load(Namespace(rank=0, "
)
_COMPILE_2021 = _COMPILE + "masked_softmax_fusion=True))"
_COMPILE_KWAI = _COMPILE + (
    "masked_softmax_fusion=False, use_fast_rope=True, context_parallel_size=2, kaimm_offload_activation_ratio=1.0))"
)


def _pretrain(binding: Binding) -> Program:
    image, image_path, image_digest = binding.image()
    package = str(program_folder(binding.folders))
    named = binding.cluster.profile.workloads.pretrain.python
    return Program(
        workload=binding.case.workload,
        python=named or ("python" if image else sys.executable),
        target=("-m", "orchestrator.pretrain"),
        arguments=tuple(pretrain.job_arguments(binding.case)),
        code=code_version(),
        image=image,
        image_path=image_path,
        image_digest=image_digest,
        python_path=package,
        mounts=(package,),
        site_values=((named, ("workloads", "pretrain", "python")),) if named else (),
        launcher="orchestrator.pretrain.launch",
    )


def _megatron_2021(binding: Binding) -> Program:
    site = binding.site(VocabularySite)
    words = megatron_2021.arguments(binding.case, site.data_path, site.vocab_file, site.merge_file)
    return _compiling(replace(_pretrain_gpt(binding, site, words), data=site.data_path), site, _COMPILE_2021)


def _megatron_alpa(binding: Binding) -> Program:
    site = binding.site(BenchmarkSite)
    root, script = megatron_alpa.import_root(site.benchmark), f"{site.benchmark}/{megatron_alpa.SCRIPT}"
    benchmark = _place(binding, "benchmark")
    program = replace(
        _megatron(binding, site, script, megatron_alpa.arguments(binding.case), binding.commit()),
        python_path=f"{site.checkout}:{root}",
        mounts=(site.checkout, root),
        unverifiable=megatron_alpa.UNVERIFIABLE,
        site_values=((script, benchmark), (site.checkout, _place(binding, "checkout")), (root, benchmark)),
    )
    return _compiling(program, site, _COMPILE_2021)


def _megatron_kwai(binding: Binding) -> Program:
    site = binding.site(MegatronSite)
    program = _atc24(binding, site, megatron_kwai.kwai_arguments(binding.case, site.data_path))
    return _compiling(replace(program, needs_mpi=megatron_kwai.kwai_needs_mpi(binding.case)), site, _COMPILE_KWAI)


def _megatron_jan_2024(binding: Binding) -> Program:
    """It compiles no kernels any more: its fused_kernels.load is empty."""
    site = binding.site(MegatronSite)
    program = _atc24(binding, site, megatron_kwai.origin_arguments(binding.case, site.data_path))
    return replace(program, needs_mpi=megatron_kwai.origin_needs_mpi(binding.case))


def _atc24(binding: Binding, site: MegatronSite, words: Sequence[str]) -> Program:
    program = _pretrain_gpt(binding, site, words)
    return replace(program, data=site.data_path, python_path=site.checkout, environment=megatron_kwai.ENVIRONMENT)


def _megatron_core(binding: Binding) -> Program:
    site = binding.site(VocabularySite)
    words = megatron_core.arguments(binding.case, site.data_path, site.vocab_file, site.merge_file)
    return replace(_pretrain_gpt(binding, site, words), data=site.data_path, python_path=site.checkout)


def _megatron_2026(binding: Binding) -> Program:
    site = binding.site(TodaySite)
    data = None
    if site.data_path and site.vocab_file and site.merge_file:
        data = megatron_2026.Data(site.data_path, site.vocab_file, site.merge_file)
    words = megatron_2026.arguments(binding.case, data, transformer_engine=site.transformer_engine)
    program = _pretrain_gpt(binding, site, words, otherwise=megatron_2026.COMMIT)
    said = () if site.transformer_engine else tuple(megatron_2026.OWN_LAYERS)
    places = tuple((flag, _place(binding, "transformer_engine")) for flag in said)
    return replace(
        program,
        data=data.data_path if data else MOCK,
        python_path=site.checkout,
        site_values=(*program.site_values, *places),
    )


def _pretrain_gpt(binding: Binding, site: CheckoutSite, words: Sequence[str], otherwise: str | None = None) -> Program:
    """What all but Alpa's share: pretrain_gpt.py of a checkout, and values of the site as words of the command."""
    script = f"{site.checkout}/pretrain_gpt.py"
    given: dict[str, object] = site.model_dump()
    values = ((value, _place(binding, field)) for field, value in given.items() if isinstance(value, str))
    program = _megatron(binding, site, script, words, binding.commit(otherwise))
    return replace(program, site_values=((script, _place(binding, "checkout")), *values))


def _megatron(binding: Binding, site: CheckoutSite, script: str, words: Sequence[str], code: str) -> Program:
    image, image_path, image_digest = binding.image()
    return Program(
        workload=binding.case.workload,
        python="python",
        target=(script,),
        arguments=tuple(words),
        code=code,
        image=image,
        image_path=image_path,
        image_digest=image_digest,
        mounts=(site.checkout,),
    )


def _compiling(program: Program, site: CheckoutSite, code: str) -> Program:
    warm_up = (program.python, "-c", code, site.checkout)
    return replace(program, compiles_in=site.checkout, warm_up=warm_up)


def _place(binding: Binding, field: str) -> tuple[str, ...]:
    return ("workloads", binding.case.workload, field)


MAKERS: Mapping[str, Callable[[Binding], Program]] = {
    "pretrain": _pretrain,
    "megatron-2021": _megatron_2021,
    "megatron-alpa": _megatron_alpa,
    "megatron-kwai": _megatron_kwai,
    "megatron-jan-2024": _megatron_jan_2024,
    "megatron-core-0.14": _megatron_core,
    "megatron-tutorial-fork": _megatron_core,
    "megatron-2026": _megatron_2026,
}
