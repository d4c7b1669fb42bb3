"""The plain GPT of benchmarks/peers.py trains the same model as `pretrain`, so that their times can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset

from benchmarks.peers import Case, megatron_site
from benchmarks.plain_gpt import Sizes, sequences, train
from benchmarks.token_files import write_token_files
from tests.training.launching import SMALL_MODEL, read_record, run_alone

# Sizes of SMALL_MODEL, in microbatches of 2.
SIZES = Sizes(
    layers=4,
    hidden=32,
    heads=4,
    seq=16,
    vocab=64,
    micro_batch_size=2,
    global_batch_size=8,
    iterations=10,
    dtype="fp32",
    compiled=False,
    lr=1e-3,
)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Train in one thread: with more, threads that wait for each other slow all processes of a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_plain_pytorch_has_the_losses_and_gradients_of_pretrain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    options = ["--micro-batch-size", "2", "--train-iters", "10", "--record", str(record)]
    done = run_alone(*SMALL_MODEL, *options)
    assert done.exit_code == 0, done.stderr
    steps = read_record(record)
    for recompute in (False, True):
        train(replace(SIZES, recompute=recompute), torch.device("cpu"))
        plain = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["loss"] for row in plain] == pytest.approx([step.loss for step in steps], rel=1e-5)
        assert [row["grad_norm"] for row in plain] == pytest.approx([step.grad_norm for step in steps], rel=1e-5)
    assert steps[-1].loss < steps[0].loss - 0.01  # the loss falls: steps without effect would agree, too


def test_megatron_lm_reads_pretrains_sequences_from_the_token_files(tmp_path: Path) -> None:
    write_token_files(tmp_path / "tokens", SIZES, documents=20)
    dataset = IndexedDataset(str(tmp_path / "tokens"))
    assert len(dataset) == 20 and dataset.document_indices.tolist() == list(range(21))
    expected = torch.cat([sequences(SIZES, iteration) for iteration in range(3)])[:20, :-1]
    assert [dataset[i].tolist() for i in range(20)] == expected.tolist()


def test_all_files_of_megatron_lms_profile_exist(tmp_path: Path) -> None:
    case = Case(2, 16, 2, 8, 64, 2, 2, recompute=False, dtype="bf16", device="gpu")
    site = megatron_site(case, tmp_path, tmp_path)
    files = [f"{site['data_path']}.bin", f"{site['data_path']}.idx", site["vocab_file"], site["merge_file"]]
    assert all(Path(str(file)).is_file() for file in files)
