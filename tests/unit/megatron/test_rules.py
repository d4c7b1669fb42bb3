"""The 26 rules of Megatron-LM and the three of Megatron-Kwai: each rule broken alone, and all broken rules at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.megatron.model import Layout, ModelShape, Training
from orchestrator.megatron.rules import KWAI_RULES, RULES, RuleContext, broken_rules, layout_warnings
from orchestrator.pretrain.arguments import parse_arguments, refusals
from orchestrator.programs.command import read_flags
from tests.examples import examples

MODEL = ModelShape(layers=32, hidden=1024, heads=16, seq=2048, vocab=51200)
LAYOUT = Layout(gpus=64, tensor_parallel=4, pipeline_parallel=8, micro_batch_size=2, global_batch_size=64)
BASE = RuleContext(MODEL, LAYOUT, Training(iterations=500))

MODEL_FIELDS = set(ModelShape.__dataclass_fields__)
LAYOUT_FIELDS = set(Layout.__dataclass_fields__)
TRAINING_FIELDS = set(Training.__dataclass_fields__)


def setting(typed: str = "", **changed: Any) -> RuleContext:
    """Return the base with further arguments, and with changed fields of model, layout, training or context."""
    parts: dict[str, Any] = {
        "model": replace(MODEL, **{name: changed.pop(name) for name in MODEL_FIELDS & set(changed)}),
        "layout": replace(LAYOUT, **{name: changed.pop(name) for name in LAYOUT_FIELDS & set(changed)}),
        "training": replace(BASE.training, **{name: changed.pop(name) for name in TRAINING_FIELDS & set(changed)}),
    }
    return replace(BASE, **parts, arguments=tuple(typed.split()), **changed)


def broken(at: RuleContext) -> list[tuple[int, str]]:
    return [(rule.number, reason) for rule, reason in broken_rules(at)]


def connections(value: str) -> Mapping[str, str]:
    return {"CUDA_DEVICE_MAX_CONNECTIONS": value}


ALONE = [
    (1, setting(gpus=48), "48 GPUs do not divide by tensor-parallel 4 x pipeline-parallel 8 = 32"),
    (
        1,
        setting(gpus=96, context_parallel=2),
        "96 GPUs do not divide by tensor-parallel 4 x pipeline-parallel 8 x context-parallel 2 = 64",
    ),
    (2, setting(micro_batch_size=0), "microbatch 0 is not positive"),
    (2, setting(global_batch_size=0), "global batch 0 is not positive"),
    (3, setting(global_batch_size=66), "global batch 66 does not divide by microbatch 2 x data-parallel 2"),
    (4, setting(layers=30), "30 layers do not divide by pipeline-parallel 8"),
    (5, setting(virtual_stages=3), "4 layers per stage do not divide by 3 virtual stages"),
    (
        5,
        setting("--num-layers-per-virtual-pipeline-stage 3"),
        "4 layers per stage do not divide by 3 layers per virtual stage",
    ),
    (
        6,
        setting("--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2"),
        "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank exclude each other",
    ),
    (
        6,
        setting("--pipeline-model-parallel-layout=Et*3|t*5|tL", virtual_stages=2),
        "2 virtual stages and --pipeline-model-parallel-layout exclude each other",
    ),
    (
        7,
        setting(pipeline_parallel=1, virtual_stages=2),
        "interleaving needs a pipeline-parallel size of 2 or more",
    ),
    (
        7,
        setting("--no-overlap-p2p-communication", pipeline_parallel=2, virtual_stages=2),
        "interleaving needs a pipeline-parallel size of 3 or more",
    ),
    (
        8,
        setting(global_batch_size=16, virtual_stages=2),
        "interleaving needs 8 microbatches or more (pipeline-parallel 8), there are 4",
    ),
    (
        8,
        setting("--microbatch-group-size-per-virtual-pipeline-stage 4", virtual_stages=2),
        "microbatch group 4 is not between pipeline-parallel 8 and microbatches (16)",
    ),
    (
        9,
        setting(global_batch_size=40, virtual_stages=2),
        "interleaving needs microbatches (10) to divide by pipeline-parallel 8",
    ),
    (
        9,
        setting("--microbatch-group-size-per-virtual-pipeline-stage 12", virtual_stages=2),
        "microbatch groups of 12 leave 4 of 16 microbatches, fewer than pipeline-parallel 8",
    ),
    (10, setting(heads=2), "attention heads 2 does not divide by tensor-parallel 4"),
    (11, setting(heads=12), "hidden size 1024 does not divide by 12 attention heads"),
    (12, setting(kv_groups=6), "6 key-value groups and tensor-parallel 4 do not divide either way"),
    (13, setting(ffn=2730), "feed-forward size 2730 does not divide by tensor-parallel 4"),
    (13, setting("--padded-vocab-size 50258"), "vocabulary 50258 does not divide by tensor-parallel 4"),
    (13, setting(dialect="pretrain", vocab=50257), "vocabulary 50257 does not divide by tensor-parallel 4"),
    (
        13,
        setting(experts=8, ffn=1028, expert_tensor_parallel=8),
        "expert size 1028 does not divide by expert-tensor-parallel 8",
    ),
    (14, setting("--max-position-embeddings 1024"), "sequence length 2048 is over --max-position-embeddings 1024"),
    (15, setting(seq=2046, context_parallel=2), "sequence length 2046 does not divide by 2 x context-parallel 2"),
    (
        15,
        setting("--hierarchical-context-parallel-sizes 2 4", context_parallel=2),
        "hierarchical context-parallel sizes 2 x 4 = 8 are not context-parallel 2",
    ),
    (
        16,
        setting(seq=2046, sequence_parallel=True),
        "sequence length 2046 does not divide by tensor-parallel 4 (sequence parallelism)",
    ),
    (
        16,
        setting(seq=2052, sequence_parallel=True, context_parallel=2),
        "sequence length 2052 over context-parallel 2 does not divide by tensor-parallel 4 (sequence parallelism)",
    ),
    (
        17,
        setting("--tp-comm-overlap"),
        "--tp-comm-overlap without sequence parallelism, which needs tensor-parallel 2 or more",
    ),
    (
        18,
        setting(environment=connections("8"), gpu="H100-SXM5-80GB"),
        "CUDA_DEVICE_MAX_CONNECTIONS is 8, tensor-parallel 4 on H100-SXM5-80GB needs 1",
    ),
    (19, setting(expert_parallel=2), "expert-parallel 2 needs a model with experts"),
    (19, setting(expert_parallel=2, experts=7), "7 experts do not divide by expert-parallel 2"),
    (
        19,
        setting(expert_parallel=4, experts=8),
        "64 GPUs do not divide by expert-tensor-parallel 4 x expert-parallel 4 x pipeline-parallel 8 = 128",
    ),
    (20, setting("--recompute-granularity full"), "full recomputation needs --recompute-method"),
    (
        20,
        setting("--recompute-granularity full --recompute-method block"),
        "full recomputation needs --recompute-num-layers",
    ),
    (
        20,
        setting("--recompute-num-layers 1", recompute="selective"),
        "selective recomputation excludes --recompute-method and --recompute-num-layers",
    ),
    (
        20,
        setting("--checkpoint-activations"),
        "--checkpoint-activations ends the program before it trains (today: --recompute-granularity)",
    ),
    (
        20,
        setting("--recompute-method block", dialect="pretrain"),
        "--recompute-method and --recompute-num-layers go with full recomputation only",
    ),
    (21, setting("--distribute-saved-activations"), "--distribute-saved-activations needs full recomputation"),
    (
        21,
        setting("--distribute-saved-activations", recompute="full", sequence_parallel=True),
        "--distribute-saved-activations needs no sequence parallelism",
    ),
    (
        21,
        setting("--distribute-checkpointed-activations", dialect="2021"),
        "--distribute-checkpointed-activations needs recomputation",
    ),
    (22, setting("--train-samples 1000"), "--train-samples excludes --train-iters, which every case has"),
    (
        22,
        setting("--lr-warmup-fraction .01 --lr-warmup-iters 5"),
        "--lr-warmup-fraction and --lr-warmup-iters exclude each other",
    ),
    (22, setting("--lr 1e-4 --min-lr=1e-3"), "--min-lr 0.001 is over --lr 0.0001"),
    (23, setting("--bf16", dtype="fp16", loss_scale=8192), "fp16 and bf16 exclude each other"),
    (23, setting(dialect="pretrain", dtype="fp16"), "fp16 needs a static loss scale"),
    (23, setting("--loss-scale 8", dialect="pretrain"), "--loss-scale goes with fp16 only"),
    (
        24,
        setting("--mock-data --train-data-path one two"),
        "--mock-data and --train-data-path: data must have one source",
    ),
    (24, setting("--data-path one --mock-data"), "--mock-data and --data-path: data must have one source"),
    (
        25,
        setting("--log-memory-interval 12", log_interval=5),
        "--log-memory-interval 12 does not divide by the log interval 5",
    ),
    (25, setting("--save here"), "--save needs a --save-interval over 0"),
    (25, setting("--save here --save-interval 0"), "--save needs a --save-interval over 0"),
    (
        25,
        setting("--exit-interval 20", dialect="2021"),
        "--exit-interval needs --save: at this commit it saves a checkpoint",
    ),
    (
        25,
        setting("--exit-duration-in-mins 20", dialect="kwai"),
        "--exit-duration-in-mins needs --save: at this commit it saves a checkpoint",
    ),
    (
        26,
        setting("--overlap-param-gather --overlap-grad-reduce"),
        "--overlap-param-gather needs the distributed optimizer",
    ),
    (
        26,
        setting("--overlap-param-gather", distributed_optimizer=True),
        "--overlap-param-gather needs --overlap-grad-reduce",
    ),
    (
        27,
        setting(dialect="kwai", offload=0.5, pipeline_parallel=2),
        "offload needs a pipeline-parallel size of 3 or more, not 2",
    ),
    (28, setting(dialect="kwai", offload=1.5), "offload 1.5 is not between 0 and 1"),
    *(
        (
            29,
            setting(dialect="kwai", gpus=128, context_parallel=2, environment={name: "4"}),
            f"{name} must not be set with context-parallel 2",
        )
        for name in [
            "NCCL_MIN_NRINGS",
            "NCCL_MAX_NRINGS",
            "NCCL_MIN_NCHANNELS",
            "NCCL_MAX_NCHANNELS",
            "NCCL_MIN_CTAS",
            "NCCL_MAX_CTAS",
        ]
    ),
]

MANY_CHANNELS = {"NCCL_MAX_CTAS": "8", "NCCL_MIN_NRINGS": "4"}


def test_each_rule_alone_has_its_own_message() -> None:
    assert [broken(at) for _, at, _ in ALONE] == [[(number, reason)] for number, _, reason in ALONE]


def test_no_rule_is_missing_or_never_broken_here() -> None:
    assert [rule.number for rule in RULES] == list(range(1, 27))
    assert {number for number, _, _ in ALONE} == {rule.number for rule in RULES + KWAI_RULES}


KEPT = [
    setting(),
    setting(gpus=128, virtual_stages=2, context_parallel=2, sequence_parallel=True),
    setting("--num-layers-per-virtual-pipeline-stage 4", global_batch_size=40),  # one virtual stage: no interleaving
    setting("--decoder-first-pipeline-num-layers 2", layers=30),
    setting(
        "--microbatch-group-size-per-virtual-pipeline-stage 10", global_batch_size=72, virtual_stages=2
    ),  # leaves 8
    setting("--kv-channels 64", heads=12),
    setting(kv_groups=2),
    setting("--tp-comm-overlap", sequence_parallel=True),
    setting(environment=connections("8"), gpu="GB200"),
    setting(environment=connections("8"), gpu="H100", tensor_parallel=1),
    setting(environment=connections("1"), gpu="H100"),
    setting("--use-megatron-fsdp", environment=connections("8"), gpu="H100"),
    setting("--recompute-method block", recompute="full"),
    setting("--distribute-saved-activations", recompute="full"),
    setting("--lr-warmup-fraction 0.01 --lr-warmup-iters 0 --train-samples 0"),
    setting("--log-memory-interval 10 --save here --save-interval 5", log_interval=5),
    setting("--exit-interval 20"),
    setting("--train-data-path one --valid-data-path two"),
    setting("--overlap-param-gather --overlap-grad-reduce", distributed_optimizer=True),
    setting("--overlap-param-gather --overlap-grad-reduce --use-megatron-fsdp"),
    setting("--overlap-param-gather --overlap-grad-reduce", dialect="pretrain"),
    setting("--make-vocab-size-divisible-by", dialect="pretrain", vocab=50257),
    setting(vocab=50257),  # padded
    setting("--loss-scale 8", dialect="pretrain", dtype="fp16"),
    setting(dialect="pretrain", dtype="fp16", loss_scale=8192),
    setting(dialect="kwai", offload=1.0),
    setting(offload=0.5, pipeline_parallel=2),  # not for Kwai
    setting(gpus=128, context_parallel=2, environment=MANY_CHANNELS),  # neither
    setting(dialect="kwai", environment=MANY_CHANNELS),  # no effect without context parallelism
    setting(dialect="kwai", gpus=128, context_parallel=2, environment={"NCCL_MIN_CTAS": "", "NCCL_DEBUG": "INFO"}),
    setting("--kaimm-cp-offload-mode 1", dialect="kwai", gpus=128, context_parallel=2, environment=MANY_CHANNELS),
    setting("--exit-duration-in-mins 20"),
    setting("--exit-interval 20 --exit-duration-in-mins 20 --save here --save-interval 5", dialect="2021"),
    setting("--checkpoint-activations", dialect="2021"),  # the argument of SC21's commit
    setting("--lr 0.1 --min-lr 0.2 --min-lr 0.01"),  # the last one counts
]


def test_a_configuration_that_megatron_starts_is_not_refused() -> None:
    assert [(at, broken(at)) for at in KEPT if broken(at)] == []


INTERLEAVED_TWO = setting(pipeline_parallel=2, virtual_stages=2)
TWO_KEY_VALUE_GROUPS = setting(kv_groups=2)
FEW_MICROBATCHES = setting(global_batch_size=16, virtual_stages=2)
OVERLAP_ALONE = setting("--tp-comm-overlap", gpus=16, tensor_parallel=1, sequence_parallel=True)
CONNECTIONS = setting(gpus=16, tensor_parallel=1, environment=connections("8"), gpu="H100")
SELECTIVE_COUNT = setting("--recompute-num-layers 1", recompute="selective")
GATHER = setting("--overlap-param-gather", distributed_optimizer=True)
ROUNDED = setting("--num-layers-per-virtual-pipeline-stage 16")


@pytest.mark.parametrize(
    ("at", "numbers"),
    [
        (INTERLEAVED_TWO, {"2021": [7], "kwai": [7], "2024": [7], "now": [], "pretrain": []}),
        (TWO_KEY_VALUE_GROUPS, {"kwai": [12], "2024": [12], "now": []}),
        (FEW_MICROBATCHES, {"2021": [9], "kwai": [9], "2024": [9], "now": [8], "pretrain": [8]}),
        (OVERLAP_ALONE, {"2024": [], "now": [17]}),
        (CONNECTIONS, {"2021": [], "kwai": [], "2024": [18], "now": []}),
        (SELECTIVE_COUNT, {"kwai": [], "2024": [20], "now": [20], "pretrain": [20]}),
        (GATHER, {"2024": [], "now": [26]}),
        (ROUNDED, {"2021": [], "kwai": [], "2024": [5], "now": [5]}),
        (setting("--overlap-sp-ag"), {"kwai": [17]}),
        (setting("--exit-interval 20"), {"2021": [25], "kwai": [], "now": []}),
        (setting("--exit-duration-in-mins 20"), {"2021": [25], "kwai": [25], "2024": [25], "now": [], "pretrain": []}),
        (setting("--checkpoint-activations"), {"2021": [], "kwai": [20], "2024": [20], "now": [20]}),
        (setting("--rampup-batch-size 16 16 1000"), {"2021": [22], "kwai": [22], "now": []}),
    ],
    ids=["7", "12", "8-9", "17", "18", "20", "26", "5", "17-kwai", "25", "25-minutes", "20-checkpoint", "22"],
)
def test_each_megatron_has_its_own_rules(at: RuleContext, numbers: dict[Any, list[int]]) -> None:
    for dialect, expected in numbers.items():
        assert [number for number, _ in broken(replace(at, dialect=dialect))] == expected, dialect


def test_all_reasons_are_given_at_once() -> None:
    at = setting(
        "--train-samples 9 --bf16 --mock-data --data-path one --log-memory-interval 3 --overlap-param-gather",
        gpus=30, layers=30, hidden=1023, heads=10, seq=2047, virtual_stages=2, context_parallel=2,
        sequence_parallel=True, dtype="fp16", log_interval=2, kv_groups=3, environment=connections("8"), gpu="V100",
    )  # fmt: skip
    assert [number for number, _ in broken(at)] == [1, 4, 10, 11, 12, 13, 15, 18, 22, 23, 24, 25, 26, 26]


def test_a_rule_is_silent_where_another_makes_it_meaningless() -> None:
    assert [n for n, _ in broken(setting(gpus=48, global_batch_size=7, virtual_stages=2))] == [1]
    assert [n for n, _ in broken(setting(layers=30, virtual_stages=7))] == [4]
    assert [n for n, _ in broken(setting(global_batch_size=66, virtual_stages=2))] == [3]
    assert [n for n, _ in broken(setting(seq=2047, context_parallel=2, sequence_parallel=True))] == [15]


def test_more_model_parallel_than_gpus_is_one_fault() -> None:
    assert [n for n, _ in broken(setting(gpus=16, virtual_stages=2))] == [1]


@pytest.mark.parametrize(
    ("at", "warning"),
    [
        (setting(tensor_parallel=32, gpus_per_node=8), "tensor-parallel 32 spans nodes of 8 GPUs"),
        (
            setting(tensor_parallel=1, sequence_parallel=True),
            "sequence parallelism is switched off with tensor-parallel 1",
        ),
        (setting(expert_parallel=2, experts=8), "tensor-parallel with expert-parallel should use sequence parallelism"),
        (setting(dtype="fp16"), "a dynamic loss scale switches the check for NaN off"),
        # SC21 with tensor-parallel 2 and 32: the paper's 51,200, GPT-2's 50,257 entries padded by the scripts
        (setting(tokens=50257, tensor_parallel=2), "the program makes the vocabulary 50,432, the case has 51,200"),
        (setting(tokens=50257, tensor_parallel=32), "the program makes the vocabulary 53,248, the case has 51,200"),
        # ATC'24 with tensor-parallel 1 and 2: 32,004 and one, as its scripts' NullTokenizer has
        (
            setting(tokens=32005, vocab=32004, tensor_parallel=1),
            "the program makes the vocabulary 32,128, the case has 32,004",
        ),
        (
            setting(tokens=32005, vocab=32004, tensor_parallel=2),
            "the program makes the vocabulary 32,256, the case has 32,004",
        ),
        (
            setting("--make-vocab-size-divisible-by", dialect="pretrain", vocab=50257),
            "the program makes the vocabulary 50,688, the case has 50,257",
        ),
        (setting("--padded-vocab-size 51456"), "the program makes the vocabulary 51,456, the case has 51,200"),
    ],
)
def test_settings_against_the_guidance_have_warnings(at: RuleContext, warning: str) -> None:
    assert list(layout_warnings(at)) == [warning]


def test_good_settings_have_no_warnings() -> None:
    quiet = setting(
        sequence_parallel=True, dtype="fp16", loss_scale=8192, gpus_per_node=4, expert_parallel=2, experts=8
    )
    assert list(layout_warnings(quiet)) == []
    assert list(layout_warnings(setting(tokens=50257, tensor_parallel=8))) == []  # padded to the paper's own
    assert list(layout_warnings(setting("--make-vocab-size-divisible-by 32", tokens=50257, tensor_parallel=32))) == []
    assert list(layout_warnings(setting(vocab=50257))) == []


def test_arguments_are_read_as_argparse_reads_them() -> None:
    typed = [
        "stray",
        "--lr",
        "0.1",
        "--sizes",
        "2",
        "4",
        "--shift",
        "-3",
        "--split=1,2",
        "--flag",
        "--lr=0.2",
        "--empty=",
    ]
    assert read_flags(typed) == {
        "--lr": ("0.2",),
        "--sizes": ("2", "4"),
        "--shift": ("-3",),
        "--split": ("1,2",),
        "--flag": (),
        "--empty": ("",),
    }


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])
LAYOUTS = st.builds(
    Layout,
    gpus=st.sampled_from([4, 8, 12, 16, 24, 32]),
    tensor_parallel=SIZES,
    pipeline_parallel=SIZES,
    micro_batch_size=st.sampled_from([1, 2]),
    global_batch_size=st.sampled_from([4, 8, 12, 16, 24, 48]),
    virtual_stages=st.sampled_from([1, 1, 2, 3]),
    context_parallel=st.sampled_from([1, 1, 2, 3]),
    sequence_parallel=st.booleans(),
)
MODELS = st.builds(
    ModelShape,
    layers=st.sampled_from([8, 12, 24]),
    hidden=st.sampled_from([48, 64, 96]),
    heads=st.sampled_from([4, 8, 12, 16]),
    seq=st.sampled_from([36, 48, 64]),
    vocab=st.sampled_from([96, 128, 192]),
    ffn=st.sampled_from([None, 96, 100]),
)
TRAININGS = st.builds(
    Training,
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    loss_scale=st.sampled_from([None, 8192]),
    recompute=st.sampled_from(["none", "full", "selective"]),
)
TYPED = st.lists(
    st.sampled_from([
        ("--make-vocab-size-divisible-by", "8"),
        ("--use-distributed-optimizer",),
        ("--overlap-grad-reduce",),
        ("--overlap-param-gather",),
        ("--recompute-method", "block"),
        ("--recompute-num-layers", "2"),
    ]),
    max_size=3,
).map(lambda flags: tuple(word for flag in flags for word in flag))  # fmt: skip


def pretrain_arguments(at: RuleContext) -> list[str]:
    """Return the arguments of `pretrain` for a context."""
    model, layout, training = at.model, at.layout, at.training
    pairs: dict[str, object] = {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.heads,
        "--seq-length": model.seq,
        "--vocab-size": model.vocab,
        "--ffn-hidden-size": model.ffn_hidden,
        "--tensor-model-parallel-size": layout.tensor_parallel,
        "--pipeline-model-parallel-size": layout.pipeline_parallel,
        "--num-virtual-stages-per-pipeline-rank": layout.virtual_stages,
        "--context-parallel-size": layout.context_parallel,
        "--micro-batch-size": layout.micro_batch_size,
        "--global-batch-size": layout.global_batch_size,
        "--train-iters": training.iterations,
    }
    argv = [str(word) for pair in pairs.items() for word in pair]
    argv += ["--sequence-parallel"] if layout.sequence_parallel else []
    argv += [f"--{training.dtype}"] if training.dtype != "fp32" else []
    argv += ["--loss-scale", str(training.loss_scale)] if training.dtype == "fp16" and training.loss_scale else []
    argv += ["--recompute-granularity", training.recompute] if training.recompute != "none" else []
    return [*argv, "--use-distributed-optimizer", *at.arguments]


@settings(max_examples=examples(400))
@given(model=MODELS, layout=LAYOUTS, training=TRAININGS, typed=TYPED)
def test_rules_refuse_exactly_what_pretrain_refuses(
    model: ModelShape, layout: Layout, training: Training, typed: tuple[str, ...]
) -> None:
    at = RuleContext(model, layout, training, "pretrain", typed)
    refused = refusals(parse_arguments(pretrain_arguments(at)), layout.gpus, on_gpu=True)
    assert bool(broken(at)) == bool(refused), (broken(at), refused)


@given(model=MODELS, layout=LAYOUTS)
def test_without_a_broken_rule_all_shares_are_whole(model: ModelShape, layout: Layout) -> None:
    if not broken(RuleContext(model, layout, Training(), "pretrain")):
        assert layout.data_parallel * layout.model_parallel == layout.gpus
        assert layout.microbatches * layout.micro_batch_size * layout.data_parallel == layout.global_batch_size
        assert model.layers % (layout.pipeline_parallel * layout.virtual_stages) == 0
        assert model.heads % layout.tensor_parallel == model.hidden % model.heads == 0
