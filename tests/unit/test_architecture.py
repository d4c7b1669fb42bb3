"""The house as docs/architecture.md draws it: rooms use only rooms on lower floors, and there are no circles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import orchestrator
from orchestrator.cli import clusters, images
from orchestrator.cli.main import COMMANDS

PACKAGE = Path(orchestrator.__file__).parent
CHECKOUT = PACKAGE.parent

MODULES = (
    *("errors", "paths", "job_spec", "job_dir", "machine_identity", "text", "atomic_write"),
    *("masking", "ownership", "secret_names", "secret_spans"),
)
FLOORS = {
    **dict.fromkeys((*MODULES, "megatron", "pretrain"), 1),
    **dict.fromkeys(("config", "slurm", "ledger"), 2),
    "catalog": 3,
    "workloads": 4,
    "clusters": 5,
    **dict.fromkeys(("planning", "results", "reading"), 6),
    "launch": 7,
    "api": 8,
    "cli": 9,
}
# Within a floor one direction only: a plan has a program, results are read first; not the other way round.
SAME_FLOOR = {
    ("job_spec", "megatron"),
    ("results", "reading"),
    ("job_dir", "errors"),
    ("atomic_write", "errors"),
    ("ownership", "errors"),
    *(("paths", room) for room in ("errors", "ownership", "job_dir")),
    ("masking", "secret_names"),
    ("masking", "secret_spans"),
    ("secret_spans", "secret_names"),
}
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


def imports(room: str) -> set[tuple[str, str]]:
    """(file, room it uses) for every import of ours in a room, also inside functions."""
    files = sorted((PACKAGE / room).rglob("*.py")) if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: relative import"
                names = [node.module or ""] if node.module != "orchestrator" else []
            used = [name.split(".")[1] for name in names if name.startswith("orchestrator.")]
            found |= {(str(file.relative_to(CHECKOUT)), name) for name in used if name != room}
    return found


@pytest.mark.parametrize("room", [*ROOMS, *MODULES])
def test_a_room_uses_only_rooms_on_lower_floors(room: str) -> None:
    upward = [
        f"{file} uses {used}"
        for file, used in sorted(imports(room))
        if FLOORS[used] >= FLOORS[room] and (room, used) not in SAME_FLOOR
    ]
    assert upward == []


def test_what_runs_inside_a_job_needs_nothing_else_of_ours() -> None:
    assert imports("pretrain") == set() and imports("megatron") == set()


def test_the_map_names_every_room() -> None:
    text = (CHECKOUT / "docs" / "architecture.md").read_text()
    assert [room for room in ROOMS if f"`{room}`" not in text] == []


def test_the_readme_shows_every_command() -> None:
    names = set(COMMANDS)
    for group, app in (("clusters", clusters.app), ("images", images.app)):
        commands = [one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands]
        names = names - {group} | {f"{group} {name}" for name in commands}
    readme = (CHECKOUT / "README.md").read_text()
    assert [name for name in sorted(names) if f"repro {name}" not in readme] == []


def test_no_file_of_the_package_is_a_drawer_of_everything() -> None:
    long = {
        str(file.relative_to(CHECKOUT)): lines
        for file in PACKAGE.rglob("*.py")
        if (lines := len(file.read_text().splitlines())) > 400
    }
    assert long == {}
