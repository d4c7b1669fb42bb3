"""Random token data: Megatron-LM's reader reads them, and no case of the catalog needs more of them than there are."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from orchestrator.catalog.library import find_experiment
from orchestrator.megatron.programs import megatron_named
from orchestrator.megatron.token_data import DOCUMENT_TOKENS, DOCUMENTS, MegatronTokens
from orchestrator.paths import Folders
from orchestrator.programs.record import TokenData
from tests.cases import expand, megatron_names
from tests.unit.clusters.sites import CHECKOUT

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, _ = MegatronTokens(50257, "").make(None, {}, tmp_path_factory.mktemp("data"))
    return data.with_suffix("")


@pytest.mark.torch
def test_megatron_core_reads_the_documents_and_all_tokens_are_in_the_vocabulary(prefix: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(prefix))
    assert len(data) == DOCUMENTS
    assert set(data.sequence_lengths.tolist()) == {DOCUMENT_TOKENS}
    assert data.document_indices.tolist() == list(range(DOCUMENTS + 1))
    whole = array("H", prefix.with_suffix(".bin").read_bytes())
    for i in (0, 1, DOCUMENTS - 1):
        assert data[i].tolist() == whole[i * DOCUMENT_TOKENS : (i + 1) * DOCUMENT_TOKENS].tolist()
    assert max(whole) < 50257 and len(set(whole[:DOCUMENT_TOKENS])) > 10_000
    assert data[0].tolist() != data[1].tolist()


def samples_of_last_epoch(tokens: int, seq: int, samples: int) -> tuple[int, int, int]:
    """Return the number of epochs, the samples of the last one, and those of any (gpt_dataset.py at 6985e58938)."""
    epochs = -(-(samples * seq + 1) // tokens)
    return epochs, samples - ((epochs - 1) * tokens - 1) // seq, (tokens - 1) // seq


def test_megatron_lm_accepts_the_number_of_epochs_of_every_case(prefix: Path) -> None:
    # Each part of --split is repeated until it has the samples. Megatron-LM stops if the last repetition would have
    # more samples than one repetition has.
    tokens = prefix.with_suffix(".bin").stat().st_size // 2
    parts = 0
    for name in megatron_names(FOLDERS):
        for case in expand(find_experiment(FOLDERS, name), "paper"):
            program = megatron_named(case.program)
            if program is None or not any(isinstance(need, TokenData) for need in program.needs):
                continue
            batch, evaluations = case.layout.global_batch_size, case.training.evaluation_iterations
            split = (969, 30, 1) if program.dialect == "2021" else (949, 50, 1)
            for documents, iterations in zip(split, (case.training.iterations, evaluations, evaluations), strict=True):
                needed = iterations * batch, case.model.seq, documents * tokens // DOCUMENTS
                epochs, last, every = samples_of_last_epoch(needed[2], needed[1], needed[0])
                assert epochs == 1 or 0 <= last <= every, (name, case.name, needed)
                parts += 1
    assert parts > 300
