"""The command of a job on a cluster: words, versions, image, folders and files."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.programs.command import JobFile, SetupStep

SYNTHETIC = "synthetic"
"""Data of a program that generates them itself without an argument that requests it."""

TORCHRUN = "torch.distributed.run"


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """The command of one process: its words `command`, then its `arguments`.

    `code` identifies the version of the program, `image` the container image; both are part of a job's identity. So is
    `image_digest`, the digest of an imported image or the identity of its file, if known. `mounts` are the folders that
    the program needs inside a container, `python_path` the start of its PYTHONPATH, `path` that of its PATH,
    `environment` the variables that its published script sets for every rank.

    `data` is a path, "mock data" or "synthetic". With `needs_mpi` the step must be started through PMI. `compiles_in`
    is the checkout into which the first run compiles kernels, while all other runs wait for torch's file
    megatron/fused_kernels/build/lock; `warm_up` is the command of one process that only compiles. `site_values` has the
    arguments that come from the cluster's profile, each with its field there.

    `python` runs the command and prints the packages of the fingerprint; None if no Python does. `launcher` is its
    module that starts all ranks of a node if the scheduler does not start each rank; None if the program has none.

    A program that an experiment describes has its place in `origin`, the `files` of the job's folder, the folder
    `copies` with those that are copied, and the `steps` that run at the same time.
    """

    name: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    code: str
    python: str | None = None
    image: str | None = None
    image_path: str | None = None
    image_digest: str | None = None
    python_path: str | None = None
    mounts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    data: str | None = SYNTHETIC
    needs_mpi: bool = False
    compiles_in: str | None = None
    warm_up: tuple[str, ...] = ()
    site_values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    launcher: str | None = TORCHRUN
    path: str | None = None
    origin: str | None = None
    copies: str | None = None
    files: tuple[JobFile, ...] = ()
    steps: tuple[SetupStep, ...] = ()

    @property
    def checkout(self) -> str | None:
        """The folder of the commit `code`; None if the profile gives no checkout."""
        return min((value for value, path in self.site_values if path[-1] == "checkout"), key=len, default=None)

    def field_of(self, word: str) -> tuple[str, ...] | None:
        """Return the path of the profile's field that this word comes from; None if it comes from elsewhere."""
        return next((path for value, path in self.site_values if value == word), None)

    def per_rank(self) -> list[str]:
        """Return the command of one rank whose launcher has set the rank variables."""
        return [*self.command, *self.arguments]

    def all_ranks(self, processes: int) -> list[str]:
        """Return the command that starts all ranks of a run on one machine."""
        assert self.python is not None and self.launcher is not None
        alone = ["--standalone"] if self.launcher == TORCHRUN else []
        options = [*alone, f"--nproc-per-node={processes}"]
        return [self.python, "-u", "-m", self.launcher, *options, *self.below_launcher()]

    def below_launcher(self) -> list[str]:
        """Return the arguments after the launcher's options. torchrun runs any program, other launchers their own."""
        return [*(self.command[2:] if self.launcher == TORCHRUN else ()), *self.arguments]


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """The image of a job: its name in the paper, the path or address that jobs use, its digest or file identity."""

    name: str | None = None
    path: str | None = None
    digest: str | None = None
