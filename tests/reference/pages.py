"""Texts of the generated pages and schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from orchestrator.catalog.experiment import Experiment, Paper
from orchestrator.catalog.template import experiment_schema_text
from orchestrator.clusters.profile import profile_model, schema_text
from orchestrator.megatron.axes import METRICS
from orchestrator.programs.record import programs
from tests.reference.columns import export_page
from tests.reference.commands import command_line
from tests.reference.fields import Keys
from tests.reference.markdown import code, table

_NOTE = "<!-- `python -m tests.reference` writes this page. -->"
_KEYS = """\
The column *default* has the value of a missing key; a key without one has no value, or the one in its description.
A number has its unit in its name or in its description."""


def _page(title: str, introduction: str, lines: Iterable[str]) -> str:
    return "\n".join([f"# {title}", "", _NOTE, "", introduction.strip(), *lines, ""])


def cli_page() -> str:
    """Return the page of commands and options."""
    introduction = """
This page has every command with all its options. [Commands by task](commands.md) is shorter. `repro COMMAND --help`
prints the same texts. Options can be in any order, before and after the arguments. An option that is *repeatable* can
be given several times. [Exit codes](exit-codes.md) and [environment variables](environment-variables.md) have their
own pages."""
    return _page("Command line", introduction, command_line())


def experiments_page() -> str:
    """Return the page of the keys of experiments and of paper.yaml."""
    introduction = f"""
This page has every key of an experiment's file, `experiments/PAPER/NAME.yaml`, and of the file `paper.yaml` beside it.
[Adding an experiment](../how-to/add-an-experiment.md) explains them with examples. `repro experiments check FILE`
reports all problems of a file.

An editor with a YAML language server shows these descriptions, completes keys and marks errors, if the first line of
the file names a JSON Schema. `repro experiments new` writes that line with the path of your installation:

    # yaml-language-server: $schema=../schema.json

`repro experiments schema` prints the schema of experiments, and with `--paper` that of `paper.yaml`.

{_KEYS}"""
    keys = Keys()
    lines = [
        *keys.of(Experiment, "Top level of an experiment"),
        *("", "### Metrics", "", "The unit of a metric is in its name.", ""),
        *table(
            ("metric", "unit", "meaning"),
            ((code(name), metric.unit, metric.meaning) for name, metric in METRICS.items() if metric.published),
        ),
        *keys.of(Paper, "Top level of `paper.yaml`"),
    ]
    return _page("Keys of an experiment", introduction, lines)


def profiles_page() -> str:
    """Return the page of the keys of cluster profiles."""
    introduction = f"""
This page has every key of a cluster profile, `clusters/NAME.yaml`. The [guide for cluster
administrators](../how-to/add-a-site.md) explains them with examples. `repro clusters check NAME` compares a profile
with the live cluster. `repro clusters schema` prints a JSON Schema with these descriptions for an editor; the first
line of a profile names it:

    # yaml-language-server: $schema=schema.json

The types are those of a complete profile. In a file that changes another profile, `NAME.local.yaml` or one with
`extends`, a key without a value removes the value, and a list can be `{{add: [...], remove: [...]}}`. Text such as
`<your Slurm account>` is an open value, which your private file fills in.

{_KEYS}"""
    model = profile_model(frozenset(programs()))
    return _page("Keys of a cluster profile", introduction, Keys().of(model, "Top level"))


PAGES: Mapping[str, Callable[[], str]] = {
    "clusters/schema.json": schema_text,
    "experiments/schema.json": experiment_schema_text,
    "experiments/paper.schema.json": lambda: experiment_schema_text(of_paper=True),
    "docs/reference/cli.md": cli_page,
    "docs/reference/experiments.md": experiments_page,
    "docs/reference/export.md": export_page,
    "docs/reference/profiles.md": profiles_page,
}
"""Path of each generated page or schema -> its text."""
