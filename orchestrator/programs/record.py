"""Record of a program: its names, the fields of a profile for it, what it needs, and predictions of its cases.

A plug-in defines a subclass, and an entry point of the group `repro.programs` names it. It is loaded when it is used.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import ValidationError, ValidationInfo, field_validator

from orchestrator.config.model import Strict
from orchestrator.errors import Problem, ReproError, names_hint
from orchestrator.paths import Folders
from orchestrator.programs.axes import MetricDefinition, ProgramAxes, ProgramNames
from orchestrator.programs.command import BoundProgram, ContainerImage, read_flags
from orchestrator.programs.plug_ins import Registry, plug_ins
from orchestrator.programs.program import Processes, ProgramFields, metric_definitions

if TYPE_CHECKING:
    from orchestrator.catalog.case import Case
    from orchestrator.catalog.experiment import Paper, ScaleFields
    from orchestrator.catalog.library import Entry
    from orchestrator.config.model import Hardware
    from orchestrator.job_spec import JobSpec
    from orchestrator.launch.run_options import CanaryJob
    from orchestrator.planning.target import Target
    from orchestrator.results.cases import CaseMetric

GITHUB = "https://github.com"


@dataclass(frozen=True, slots=True)
class Repository:
    """Git repository whose checkout a field of the profile names.

    `name` is OWNER/NAME on GitHub. `commit` is a full hash; a branch or tag where the paper names no commit. `code:` in
    a paper.yaml replaces both of a `checkout`; they are None if only a paper has them. `subfolder`: the field names
    this folder of the checkout.
    """

    field: str = "checkout"
    name: str | None = None
    commit: str | None = None
    subfolder: str = ""


@dataclass(frozen=True, slots=True)
class PublicFile:
    """File with a public address. `name` is its usual name, `sha256` its checksum in hexadecimal digits."""

    field: str
    name: str
    url: str
    sha256: str
    bytes: int


DATA_FILES = (".bin", ".idx")
"""Extensions of the two files of a data set."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """Text to make data of, a JSON object with the key `text` in each line. `python` has the program's packages."""

    file: Path
    python: str


@dataclass(frozen=True, slots=True)
class TokenData:
    """Data set of tokens, PREFIX.bin and PREFIX.idx, which is made here; the field of the profile names PREFIX.

    Tokens are below `vocabulary`. `published` describes the data of the paper. `header` is the beginning of PREFIX.idx.
    `tool` makes data of a text. It needs what the fields `of_text` name.
    """

    vocabulary: int
    published: str
    field: str = "data_path"
    header: ClassVar[bytes] = b""
    tool: ClassVar[str] = ""
    of_text: ClassVar[tuple[str, ...]] = ()

    def origin(self, text: TextFile) -> str:
        """Return the origin of the data of a text, for their record."""
        return f"{text.file}, by {self.tool}"

    def make(self, text: TextFile | None, paths: Mapping[str, Path], folder: Path) -> tuple[Path, ...]:
        """Write data of random tokens, or of a text, into a new folder; return its two files.

        `paths` are those of all that the program needs, by field.
        """
        raise NotImplementedError


Need = Repository | PublicFile | TokenData


class ProgramSite(Strict):
    """Fields of a profile's `programs: NAME:`. Texts are paths; `python` can be a name in PATH."""

    @field_validator("*")
    @classmethod
    def _absolute(cls, value: object, info: ValidationInfo) -> object:
        is_relative = isinstance(value, str) and not value.startswith(("/", "<"))
        if is_relative and (info.field_name != "python" or "/" in str(value)):
            raise ValueError("must be an absolute path, because a job runs this program in its own folder")
        return value


def fetch_command(program: str, cluster: str) -> str:
    """Return the command that fetches what a program needs to the paths of a profile."""
    return f"repro programs fetch {program} --cluster {shlex.quote(cluster)}"


def directory_hint(program: str, cluster: str) -> str:
    """Return the hint for paths that a profile lacks."""
    return f"{fetch_command(program, cluster)} --directory /SHARED/FOLDER fetches what is needed, and prints the paths"


Site = TypeVar("Site", bound=ProgramSite)


@dataclass(frozen=True, slots=True)
class JobContext(Generic[Site]):
    """A case with its paper, the site's fields of its program, and its image."""

    case: Case
    paper: Paper
    site: Site
    image: ContainerImage
    folders: Folders

    def commit(self, default: str | None = None) -> str:
        """Return the commit that the paper names for the program, else the default; ReproError without either."""
        code = self.paper.code.get(self.case.program)
        commit = code.commit if code else default
        if commit is None:
            raise ReproError(Problem(f"paper.yaml names no code for {self.case.program}"))
        return commit

    def field(self, name: str) -> tuple[str, ...]:
        """Return the path of a field of the site in the profile."""
        return ("programs", self.case.program, name)


BasisName = Literal["measured", "other site", "other program", "not compared"]
"""Class of a predicted time: program, GPU and site measured (or a node of the same kind), another site or network,
another program of the family on a measured GPU, or no similar case."""


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Parameters and bytes of the GPU that needs most memory. `offloaded_bytes` are pinned memory of the host.

    `calibrated`: the prediction was compared with published or measured bytes of similar cases.
    """

    parameters: float
    total_bytes: float
    offloaded_bytes: float = 0.0
    calibrated: bool = True


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """Time of an iteration, and its `parts` by name. `uncertainty` is relative: 0.1 is plus or minus 10 %.

    `basis` is what the prediction rests on, and `about` describes it.
    """

    iteration_ms: float
    uncertainty: float
    basis: BasisName
    about: str
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of a case on a machine. None is unknown: on CPU cores, or if the profile does not describe the GPU.

    `usable_bytes` is the GPU memory that tensors can use.
    """

    memory: PredictedMemory | None = None
    usable_bytes: float | None = None
    duration: PredictedTime | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExactCase:
    """Memory of the GPU of a case that needs most, in pipeline stage `stage`, with its own `parameters`."""

    parameters: int
    stage: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A program that a case can run. A method that a subclass does not replace fits one without rules and predictions.

    `about` describes it, and `needs` are the code and data that a site must have. `names` are its axes and metrics,
    which all programs of its `family` share. `site` has the fields of its block in a profile. `runs_on_cpu`: it runs on
    CPU cores, too. `processes` is the number of processes of a job; None if they fill whole nodes, one for each GPU or
    place. `write_files` writes the files that jobs import, into the run's folders. `other_names` are accepted
    by `--program`. `reader` is the class that reads its output (a `reading.reader.LogReader`), as `module:name`, and
    None if only the end of a job and the errors in its log decide. `output_files` are other files that
    it reads.

    `prints_iterations`: it prints the iterations that are planned. `predicts`: it predicts memory and time of its cases
    on GPUs. `exact_note` is what a user must know of its exact plans. `probe_folder` returns the folder of these files
    for PYTHONPATH, of the program whose Python and image test the nodes of a cluster; None for all others.
    `search_picture` draws the results of a search, as `module:name`.
    """

    name: str
    about: str
    family: str
    names: ProgramNames
    site: type[ProgramSite] = ProgramSite
    needs: tuple[Need, ...] = ()
    runs_on_cpu: bool = False
    processes: Processes | None = "one"
    write_files: Callable[[Folders], None] = lambda _folders: None
    other_names: tuple[str, ...] = ()
    reader: str | None = None
    output_files: tuple[str, ...] = ()
    prints_iterations: bool = True
    predicts: bool = False
    exact_note: str | None = None
    probe_folder: Callable[[Folders], Path] | None = None
    search_picture: str | None = None

    # ---- names and commands

    def fixed_argument(self, _flag: str) -> Problem | None:
        """Return why `--arg` cannot change this flag: the case or the profile sets it. None if `--arg` can."""
        return None

    def flags_of(self, case: Case) -> Mapping[str, tuple[str, ...]]:
        """Return the flags that the program gets for a case, with their values."""
        return read_flags(case.arguments)

    def case(self, case: Case, entry: Entry, fields: ScaleFields) -> Case:  # noqa: ARG002  of programs with typed views
        """Return the program's own view of a case, from the fields of its scale."""
        return case

    # ---- planning

    def unsupported_settings(self, case: Case) -> str | None:  # noqa: ARG002
        """Return a sentence with all settings of the case that the program lacks; None if there are none."""
        return None

    def check(self, case: Case, target: Target) -> Iterable[str]:  # noqa: ARG002
        """Return every reason why the program cannot run the case, other than the limits of the machine."""
        return ()

    def warn(self, case: Case, target: Target) -> Iterable[str]:  # noqa: ARG002
        """Return what a user should know of a case that can run."""
        return ()

    def predict(self, case: Case, target: Target) -> Prediction:  # noqa: ARG002
        """Return the predicted memory and time of a case that the target does not refuse."""
        return Prediction()

    def time_parts(self) -> tuple[str, ...]:
        """Return the names of the parts of a predicted time."""
        return ()

    def run_s(self, case: Case, iteration_ms: float) -> float:
        """Return the seconds of a complete job with this time of an iteration; with 0 those of its start-up."""
        return case.iterations * iteration_ms / 1e3

    def absent_packages(self, *, exact: bool = False) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """Return the packages that jobs on this machine lack, or `exact` plans, and the command that installs them."""
        return (), ""

    def exact(self, jobs: Sequence[tuple[Case, Target]]) -> list[ExactCase | str]:
        """Plan jobs of programs of this family with the real program. A text is the reason why a job has no plan."""
        return [f"{self.name} has no exact plan"] * len(jobs)

    def offload_shares(self, case: Case) -> tuple[float, float] | None:  # noqa: ARG002
        """Return the offloaded share of activations, and the smallest one that fits; None if none can be offloaded."""
        return None

    def spec_values(self, case: Case, program: BoundProgram, hardware: Hardware) -> Mapping[str, object]:  # noqa: ARG002
        """Return values in JSON that its reader needs of a job's configuration, beside those of all programs."""
        return {}

    # ---- commands

    def bind(self, job: JobContext[Any]) -> BoundProgram:
        """Return the program of a case on a cluster; ReproError if it does not support a setting of the case."""
        raise NotImplementedError

    def rank_environment(self) -> Mapping[str, str]:
        """Return the variables that every rank needs at any site."""
        return {}

    def canary(self, case: Case, job: CanaryJob) -> CanaryJob:  # noqa: ARG002
        """Return the canary with what the log of this case must show."""
        return job

    # ---- reading

    def with_derived(self, case: Case, metrics: Mapping[str, CaseMetric]) -> Mapping[str, CaseMetric]:  # noqa: ARG002
        """Return the metrics of a case, with those that follow from them and from settings that change no job."""
        return metrics

    def exported_settings(self, case: Case, spec: JobSpec | None) -> Mapping[str, object]:
        """Return the values of the columns `names.exported`: those of the job, if they are recorded."""
        settings = spec.settings if spec is not None and spec.settings else case.settings
        return {column.name: settings.get(column.name) for column in self.names.exported}


DESCRIBED = Program(
    name="described",
    about="a program that an experiment describes",
    family="described",
    names=ProgramNames(ProgramAxes(Strict, {}), {}),
    reader="orchestrator.reading.described:DescribedReader",
)
"""Record of every program that an experiment describes: no rules, no predictions."""


GROUP = "repro.programs"


def _checked(name: str, found: object) -> Program:
    if not isinstance(found, Program):
        raise TypeError("is not a programs.record.Program")
    entries = plug_ins(GROUP)
    registered = entries.get(found.name)
    if name not in (found.name, *found.other_names) or registered is None or registered.value != entries[name].value:
        raise TypeError(f"is the program {found.name}, which is not registered by this package")
    return found


PROGRAMS = Registry(GROUP, _checked)


def known_program(name: str) -> Program | None:
    """Return the program of this name or other name; None if there is none. ReproError if it cannot be loaded."""
    return PROGRAMS.find(name)


def programs() -> Mapping[str, Program]:
    """Return every program by name, in the order of the names, without those that cannot be loaded."""
    return dict(sorted({one.name: one for one in PROGRAMS.loaded().values()}.items()))


def program_name(name: str) -> str:
    """Return the name of the program with this other name; any other text unchanged."""
    found = known_program(name)
    return name if found is None else found.name


def find_program(name: str) -> Program:
    """Return the program of this name; ReproError if there is none."""
    found = known_program(name)
    if found is None or found.name != name:
        raise _unknown(name, programs())
    return found


def probe_program() -> Program | None:
    """Return the program whose Python and image test the nodes of a cluster; None if there is none."""
    return next((program for program in programs().values() if program.probe_folder is not None), None)


def require_program(name: str, ran: Iterable[str]) -> None:
    """Raise ReproError unless a program has this name or it is one of the programs that jobs `ran`."""
    ran, known = set(ran), known_program(name)
    if name not in ran and (known is None or known.name != name):
        raise _unknown(name, dict.fromkeys([*programs(), *sorted(ran)]))


def _unknown(name: str, known: Iterable[str]) -> ReproError:
    return ReproError(Problem(f"{name}: no such program", hint=names_hint(name, known)), *PROGRAMS.broken())


def definitions_of(program: str, described: Mapping[str, object] | None) -> Mapping[str, MetricDefinition]:
    """Return the metrics of a job's program: `described` is `JobSpec.program`, None for a known program."""
    if described is not None:
        return metric_definitions(recorded_program(json.dumps(described)))
    return find_program(program_name(program)).names.metrics


@lru_cache(maxsize=256)
def recorded_program(text: str) -> ProgramFields:
    """Return the described program that a job's configuration has, from its JSON. ReproError if it is damaged."""
    try:
        return ProgramFields.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ReproError(Problem(f"the record of the job's program is not valid: {where}: {first['msg']}")) from None
