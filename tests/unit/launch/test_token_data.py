"""Random token data, read by Megatron's own reader and by its format."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from orchestrator.launch.token_data import DOCUMENT_TOKENS, DOCUMENTS, write_random_tokens

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("data") / "tokens"
    write_random_tokens(50257, prefix.with_suffix(".bin"), prefix.with_suffix(".idx"))
    return prefix


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
