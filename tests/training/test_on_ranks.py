"""Loss, linear layers and recomputation compared with Megatron-Core's and torch's, on one rank and on two."""

from __future__ import annotations

import json

import pytest

from tests.training.launching import plain_environments, run_forked
from tests.training.on_ranks import CHECKS


@pytest.fixture(scope="module")
def errors_by_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, str | None]]]:
    """Return the errors of each rank, by number of ranks."""
    folders = {ranks: tmp_path_factory.mktemp("ranks") for ranks in (1, 2)}
    commands = [
        ["-m", "tests.training.on_ranks", str(folder)] for ranks, folder in folders.items() for _ in range(ranks)
    ]
    environments = [environment for ranks in folders for environment in plain_environments(ranks)]
    for finished in run_forked(commands, environments):
        assert finished.exit_code == 0, finished.stderr
    return {
        ranks: [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
        for ranks, folder in folders.items()
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_check_on_each_rank(name: str, ranks: int, errors_by_rank: dict[int, list[dict[str, str | None]]]) -> None:
    for rank, errors in enumerate(errors_by_rank[ranks]):
        assert errors[name] is None, f"rank {rank}: {errors[name]}"
