"""Layers of docs/explanation/architecture.md: imports go downwards without cycles, and limits keep the code small."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import orchestrator
from orchestrator.cli import sites
from orchestrator.cli.main import all_panels

PACKAGE = Path(orchestrator.__file__).parent
CHECKOUT = PACKAGE.parent

FLOORS = {
    "errors": 1,
    "fields": 1,
    "files": 1,
    "identity": 1,
    "job_spec": 1,
    "masking": 1,
    "money": 1,
    "paths": 1,
    "pretrain": 1,
    "text": 1,
    "config": 2,
    "ledger": 2,
    "slurm": 2,
    "programs": 3,
    "catalog": 4,
    "clusters": 6,
    "planning": 7,
    "reading": 7,
    "results": 7,
    "launch": 8,
    "api": 9,
    "cli": 10,
}
# Within a floor, imports go in one direction only.
SAME_FLOOR = {
    ("files", "errors"),
    ("identity", "errors"),
    ("identity", "files"),
    ("money", "errors"),
    ("paths", "errors"),
    ("paths", "files"),
    ("paths", "identity"),
    ("results", "reading"),
}
PLUGIN = "megatron"
RECORD = "programs.record"
# Budget of the package. A number changes only in a commit that names what it buys.
MOST_LINES, MOST_FILES, MOST_ANY = 50_553, 170, 90
MOST_LINES_OF_A_FUNCTION = 50

FILES = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


@cache
def trees() -> Mapping[str, ast.Module]:
    """Return the syntax tree of each module."""
    return {name: ast.parse(file.read_text()) for name, file in FILES.items()}


@cache
def nodes() -> Mapping[str, list[ast.AST]]:
    """Return all nodes of each module."""
    return {name: list(ast.walk(tree)) for name, tree in trees().items()}


@cache
def imports() -> Mapping[str, set[str]]:
    """Return the modules of this package that each module imports."""
    return {name: set(imported_modules(tree, name)) for name, tree in trees().items()}


def imported_modules(tree: ast.AST, module: str) -> Iterator[str]:
    """Yield the modules of this package that a syntax tree imports, also inside functions, without `orchestrator.`."""
    # The methods of the record have arguments of types that use the record.
    is_for_types = (node for node in ast.walk(tree) if module == RECORD and isinstance(node, ast.If))
    skipped = {each for node in is_for_types if ast.unparse(node.test) == "TYPE_CHECKING" for each in ast.walk(node)}
    for node in set(ast.walk(tree)) - skipped:
        if isinstance(node, ast.Import):
            yield from (name.name.removeprefix("orchestrator.") for name in node.names if "orchestrator." in name.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            base = node.module or ""
            if base == "orchestrator" or base.startswith("orchestrator."):
                for alias in node.names:
                    name = f"{base}.{alias.name}".removeprefix("orchestrator.")
                    yield name if name in FILES else base.removeprefix("orchestrator.")


def area(module: str) -> str:
    """Return the package or top-level module that a module belongs to."""
    return module.partition(".")[0]


def cycles() -> list[set[str]]:
    """Return the sets of modules that import each other."""
    reachable: dict[str, set[str]] = {}
    for module in imports():
        seen: set[str] = set()
        todo = list(imports()[module])
        while todo:
            name = todo.pop()
            if name in imports() and name not in seen:
                seen.add(name)
                todo += imports()[name]
        reachable[module] = seen
    groups: list[set[str]] = []
    for module in imports():
        if module in reachable[module] and not any(module in group for group in groups):
            groups.append({name for name in reachable[module] if module in reachable[name]})
    return groups


def test_imports_go_to_lower_floors() -> None:
    edges = {(area(module), area(target)): module for module, targets in imports().items() for target in targets}
    upward = [
        f"{module} imports {target}"
        for (own, target), module in edges.items()
        if PLUGIN not in (own, target)
        and own != target in FLOORS
        and FLOORS[target] >= FLOORS.get(own, 0)
        and (own, target) not in SAME_FLOOR
    ]
    assert upward == []


def test_every_package_and_module_has_a_floor() -> None:
    assert {area(module) for module in FILES} - {"__init__", PLUGIN} == set(FLOORS)


def test_the_core_does_not_import_the_plug_in() -> None:
    importers = {
        module
        for module, targets in imports().items()
        if area(module) != PLUGIN and any(area(target) == PLUGIN for target in targets)
    }
    assert importers == set()


def test_modules_do_not_import_each_other() -> None:
    assert cycles() == []


def test_modules_that_run_inside_a_job_import_nothing_else() -> None:
    targets = set[str]().union(*(targets for module, targets in imports().items() if area(module) == "pretrain"))
    assert {area(target) for target in targets} <= {"pretrain"}


def test_the_package_keeps_its_budget() -> None:
    lines = Counter[str]()
    for name, file in FILES.items():
        lines[area(name)] += len(file.read_text().splitlines())
    assert lines.total() <= MOST_LINES, lines.most_common()
    assert len(FILES) <= MOST_FILES


def test_no_function_is_long() -> None:
    lines = {
        f"{module}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for module, found in nodes().items()
        for node in found
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FUNCTION} == {}


def test_a_class_name_exists_once() -> None:
    names = Counter(node.name for found in nodes().values() for node in found if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_types_are_named() -> None:
    uses = Counter[str]()
    for module, found in nodes().items():
        uses[module] = sum(isinstance(node, ast.Name) and node.id == "Any" for node in found)
    assert uses.total() <= MOST_ANY, uses.most_common(10)


def test_the_architecture_page_names_every_package() -> None:
    text = (CHECKOUT / "docs" / "explanation" / "architecture.md").read_text()
    assert [name for name in PACKAGES if f"`{name}`" not in text] == []


def test_the_architecture_page_names_modules_that_exist() -> None:
    text = (CHECKOUT / "docs" / "explanation" / "architecture.md").read_text()
    names = {name for name in re.findall(r"`([a-z_]+/[a-z0-9_./]+)`", text) if "NAME" not in name}
    roots = CHECKOUT, PACKAGE
    assert names and [name for name in sorted(names) if not any((root / name).exists() for root in roots)] == []


def test_the_page_of_commands_by_task_shows_every_command() -> None:
    names = {name for commands in all_panels().values() for name in commands}
    apps = {"clusters": sites.clusters, "images": sites.images, "programs": sites.programs, "nodes": sites.nodes}
    for group, app in apps.items():
        commands = [info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands]
        names = names - {group} | {f"{group} {name}" for name in commands}
    page = (CHECKOUT / "docs" / "reference" / "commands.md").read_text()
    assert [name for name in sorted(names) if f"repro {name}" not in page] == []
