"""Kinds of log lines that state why a job failed, most specific first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

ASSERTION, ERROR = "failed assertion", "error"
CRASHED, KILLED = "a rank crashed", "a rank was killed"
GPU_FAULT, GPU_UNUSABLE, GPU_IN_USE = "GPU fault", "GPU cannot be used", "GPU in use"
NO_GPU_MEMORY, NO_HOST_MEMORY = "out of GPU memory", "out of host memory"
NCCL_MISUSED, NCCL_ERROR, NCCL_TIMEOUT, NCCL_LOST = "NCCL misused", "NCCL error", "NCCL time-out", "NCCL lost a rank"
TIME_LIMIT, CONTAINER = "time limit", "container"
NOT_STARTED, OUTSIDE_IMAGE, ARGUMENT_ERROR = "not started", "outside its image", "argument error"
NOT_FOUND, NODE_FAILURE, PREEMPTED = "not found", "node failure", "preempted"
NAN_ENDED, NETWORK_ERROR, LAUNCH_FAILED = "NaN ended the program", "network error", "launch failed"
NOT_A_NUMBER, WHAT_RAN = "not a number", "what ran"  # no errors: why a job that ended well is not verified

_EXCEPTION = r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception)(?:: |:?$)"
_TASKS = r"error: [\w.-]{1,64}: tasks? [0-9,\- ]{1,80}: "
_NCCL = r"NCCL [Ee]rror(?: in|:| [0-9])"
_SIGKILL = r"(?P<shown>Signal [0-9]{1,3} \(SIGKILL\) received.*)"
_NO_PROGRAM = (
    r"(?:cannot execute: )?(?:No such file or directory|required file not found|Permission denied|Is a directory"
    r"|cannot execute binary file)"
)
_CUDA = r"(?:[Ee]rror(?: \(?[0-9]{1,4}\)?)? ?: (?:Unexpected error from cuda.{1,300})?|Cuda failure (?:[0-9]{1,4} )?')"


class CauseRow(NamedTuple):
    """A kind of line with its pattern.

    A row may have a literal that `TOKENS` lacks, the text of a program as an example, and the project that prints it.
    """

    kind: str
    pattern: str
    token: bytes = b""
    example: str = ""
    source: str = ""


_ROWS: tuple[tuple[str, str] | CauseRow, ...] = (
    (NOT_STARTED, r"repro: not started: "),  # by our own scripts, as in the next line
    (OUTSIDE_IMAGE, r"repro: .{0,200} outside its image"),
    # Faults of the machine, whatever the program does: messages of CUDA, NVML, nvidia-smi and the kernel.
    (
        GPU_FAULT,
        rf"{_CUDA}(?:uncorrectable (?:ECC|NVLink) error|.{{0,99}}a hardware error|.{{0,99}}system not yet initialized)"
        r"|Detected Critical Xid"
        r"|GPU is lost|GPU requires re(?:set|start)|fallen off the bus|Unable to determine the device handle for"
        r"|NVIDIA-SMI has failed|Failed to initialize NVML",
    ),
    (
        GPU_UNUSABLE,
        rf"{_CUDA}.{{0,99}}(?:driver on your system is too old|driver version is insufficient|no kernel image is avail"
        r"|unsupported toolchain|forward compatibility was attempted|unsupported display driver|invalid device ordinal"
        r"|no NVIDIA driver on|No CUDA GPUs are avail|no CUDA-capable device)|peer access is not supported",
    ),
    CauseRow(
        NAN_ENDED,
        r"^(?:AssertionError|RuntimeError|ValueError): .{0,200}"
        r"(?:found (?:NaN|Inf) in |[Uu]nexpected result -?(?:nan|inf)\b)",
        example="RuntimeError: Rank 3, device 3, Unexpected result nan (message='found NaN in local grad norm')",
        source="Megatron-LM",
    ),
    (ARGUMENT_ERROR, r"(?:\.py|pretrain): error: |error: (?:unrecognized arguments|argument |the following )"),
    (ARGUMENT_ERROR, r"^srun: (?:error: pyxis: (?!ignoring )|unrecognized option )"),
    (ASSERTION, r"^AssertionError(?:: |:?$)"),
    # Lines of the next kind have this kind if their numbers show that other processes use the memory (`memory_short`).
    (GPU_IN_USE, rf"{_CUDA}.{{0,99}}busy or unavailable"),
    # Messages of versions of torch, of libraries, and of NCCL.
    (
        NO_GPU_MEMORY,
        r"OutOfMemoryError|(?:CUDA|Cuda|cuda|THC).{0,60}out of memory|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED",
    ),
    (
        NO_HOST_MEMORY,
        rf"oom[_-]kill event|{_TASKS}Out Of Memory|^MemoryError(?:: |:?$)"
        r"|(?<!failed with error C)annot allocate memory|DefaultCPUAllocator: (?:can't allocate|not enough) memory",
    ),
    CauseRow(
        NO_HOST_MEMORY,
        r"^slurmstepd.{0,100} exceeded (?:virtual )?memory limit .{0,80}being killed",
        example="slurmstepd: error: StepId=6398.0 exceeded memory limit (50385312000 > 49152000000), being killed",
        source="Slurm",
    ),
    CauseRow(
        NETWORK_ERROR,
        rf"^{_EXCEPTION}.{{0,300}}(?:EADDRINUSE|[Aa]ddress already in use|failed to listen on any local)"
        rf"|^(?!.{{0,300}}(?:HTTP|urlopen))(?:{_EXCEPTION}|socket\.gaierror: ).{{0,300}}"
        r"(?:gai error|Name or service not known|[Nn]ame resolution)",
        example="RuntimeError: The server socket has failed to listen on any local network address.",
        source="PyTorch",
    ),
    (NOT_FOUND, r"^ModuleNotFoundError: |can't open file |execve\(\): |must be exported in the shell"),
    (ERROR, rf"^{_EXCEPTION}"),
    CauseRow(
        ERROR,
        r"terminated with exception: (?P<shown>CUDA error: .*)",
        example="Process group watchdog thread terminated with exception: CUDA error: an illegal memory access",
        source="PyTorch",
    ),
    # Reports of torchrun, srun, a shell and Open MPI. A launcher ends the other ranks by SIGTERM.
    (
        CRASHED,
        r"(?P<shown>Signal [0-9]{1,3} \(SIG(?:SEGV|BUS|FPE|ILL)\) received.*)"
        rf"|exited on signal [0-9]{{1,3}}\b(?! \(Killed)"
        rf"|(?:{_TASKS}|\b[0-9]{{1,9}} )(?:Segmentation fault|Bus error|Floating point exception|Illegal instruct)",
    ),
    (KILLED, rf"^{_SIGKILL}|exited on signal [0-9]{{1,3}} \(Killed"),
    (KILLED, r": line [0-9]{1,9}: +(?P<shown>[0-9]{1,9} Killed +[^ ]{1,100})"),  # by the shell of a launcher
    # torch prints several lines for an error of NCCL. The last line has the reason.
    (NCCL_MISUSED, r"no socket interface found|is neither AF_INET\b|Duplicate GPU detected ?:"),
    (NCCL_MISUSED, rf"{_NCCL}.{{0,300}}invalid (?:usage|argument)|ncclInvalid(?:Usage|Argument): "),
    CauseRow(
        NCCL_ERROR,
        r"Got completion from peer .{1,200}(?:status=|with error )",
        token=b"Got completion",
        example="n1:984:1357 [4] NCCL WARN NET/IB : Got completion from peer 192.0.2.1<44206> with status=12",
        source="NCCL",
    ),
    (NCCL_ERROR, r"Cuda failure (?:[0-9]{1,4} )?'(?!driver shutting down)|Call to ibv_\w{1,40} (?:failed|timed)"),
    (
        NCCL_ERROR,
        rf"{_NCCL}(?!.{{0,300}}(?:remote process|network error))|nccl(?:UnhandledCuda|System|Internal)Error: ",
    ),
    (
        NCCL_TIMEOUT,
        r"Watchdog caught collective operation timeout|Timeout at NCCL work: |NCCL operations have failed or timed out"
        r"|collective timeout from +rank",
    ),
    (NCCL_LOST, rf"{_NCCL}|ncclRemoteError: |NCCL communicator was aborted"),
    (CRASHED, r"(?P<shown>Signal [0-9]{1,3} \(SIGABRT\) received.*)"),  # by NCCL's watchdog
    (KILLED, _SIGKILL),  # in a launcher's report, but not as its root cause: it kills ranks that do not end
    (TIME_LIMIT, r"DUE TO TIME LIMIT"),
    (NODE_FAILURE, r"NODE FAILURE|Node failure on "),
    (PREEMPTED, r"DUE TO (?:PREEMPTION|JOB REQUEUE)"),
    (CONTAINER, r"error: pyxis: "),
    CauseRow(
        NOT_FOUND,
        r"^(?:FATAL: {2,}|Error: ).{0,300}(?:executable file .{0,200}not found|command that was not found)",
        token=b"FATAL: ",
        example='FATAL:   "python9": executable file not found in $PATH',
        source="Apptainer",
    ),
    CauseRow(
        CONTAINER,
        r"^FATAL: {2,}(?!exec )",
        example="FATAL:   container creation failed: mount /data->/data error: mount source /data doesn't exist",
        source="Apptainer",
    ),
    CauseRow(
        CONTAINER,
        r"^Error: (?:statfs |OCI runtime|crun: |runc: |short-name |initializing source"
        r"|unable to copy|.{1,200}image not known)",
        example="Error: statfs /data: no such file or directory",
        source="podman",
    ),
    CauseRow(
        CONTAINER,
        r"^FAILED to (?:find requested image|setup |obtain |mount |lookup |initialize )",
        token=b"FAILED to ",
        example="FAILED to find requested image",
        source="Shifter",
    ),
    CauseRow(
        LAUNCH_FAILED,
        r"^srun: error: (?:Task launch for .{1,80} failed on node [\w.-]{1,64}: (?!No such process)"
        r"|task [0-9]{1,9} launch failed: |Application launch failed: )",
        example="srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation",
        source="Slurm",
    ),
    (NOT_FOUND, r": command not found|: No module named |exec: .{1,200}: not found"),
    (NOT_FOUND, rf": line [0-9]{{1,9}}: .{{1,300}}: {_NO_PROGRAM}"),
    CauseRow(
        NETWORK_ERROR,
        r"Dist(?:Network|Store)Error: |Rendezvous(?:Connection|Timeout)Error"
        r"|client socket has (?:timed out|failed to connect)",
        example="torch.distributed.DistNetworkError: The client socket has timed out after 600000ms",
        source="PyTorch",
    ),
    (ERROR, r"(?<![A-Za-z.])[A-Za-z.]{0,80}(?:Error|Exception): +[^ ]"),
    (ERROR, r"^slurmstepd(?:-[\w.-]{1,64})?: error: couldn't chdir to "),  # srun then prints only the exit code
    CauseRow(
        ERROR,
        r"^ *pmix_\w{1,60} failed$|PMIX ERROR: ",
        token=b"pmix_",
        example="[n1:12255] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229",
        source="PMIx",
    ),
    (ERROR, rf"{_TASKS}(?!Terminated|Killed)"),
    (KILLED, rf"{_TASKS}Killed"),  # srun also kills the other tasks after one that failed
    (ERROR, r"^(?:pretrain|bash|timeout|mpirun|prterun): |^(?:slurmstepd(?:-[\w.-]{1,64})?|srun): (?:error|fatal): "),
    (ERROR, r"^(?:slurmstepd(?:-[\w.-]{1,64})?|srun): (?!job [0-9]{1,20} (?:queued|has been))"),  # notices
)
ROWS = tuple(row if isinstance(row, CauseRow) else CauseRow(*row) for row in _ROWS)
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple((row.kind, re.compile(row.pattern)) for row in ROWS)
"""(kind, pattern of its lines without labels) in order of precedence. If a pattern has the group `shown`, only
that part of the line is shown. No pattern distinguishes the digits 1 to 9."""

FAULTS = frozenset(kind for kind, _ in KINDS)

OF_RANK = frozenset(
    {ASSERTION, GPU_FAULT, GPU_UNUSABLE, GPU_IN_USE, NO_GPU_MEMORY, NOT_FOUND, ERROR, CRASHED, KILLED}
    | {NCCL_MISUSED, NCCL_ERROR, NCCL_TIMEOUT, NCCL_LOST, NAN_ENDED, NETWORK_ERROR}
)
"""Errors of a single rank. If the line does not name the rank, a launcher's report may."""

OF_JOB = frozenset({TIME_LIMIT, NODE_FAILURE, PREEMPTED})
"""Events of the whole job, whichever rank prints them."""

FOLLOW_AN_END = frozenset({ERROR, CRASHED, KILLED, NCCL_ERROR, NCCL_TIMEOUT, NCCL_LOST, NETWORK_ERROR})
"""Errors that ranks print when Slurm ends them. After Slurm's message (`SLURM_ENDS`) they are no causes."""

SLURM_ENDS = re.compile(rb"CANCELLED AT [^\r\n]{1,40} DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE|NODE FAILURE)")

CONSEQUENCE = re.compile(
    r"\b(?:Dist[A-Za-z]{0,20}|Connection[A-Za-z]{0,20}|BrokenPipe|EOF|ChildFailed|Rendezvous[A-Za-z]{0,20}|Timeout"
    r"|Signal|Process(?:Raised|Exited))(?:Error|Exception)\b|NCCL|nccl|[Gg]loo|TCPStore|[Tt]imed out|Socket Timeout"
    r"|Connection (?:reset|closed|refused)|Broken pipe|killed by signal|exited unexpectedly|can only test a child"
)
"""Exceptions of a rank that lost other ranks or was ended by a signal. The last text is of torch's data loader."""

# fmt: off
TOKENS = (
    b"rror", b"Exception", b"repro: ", b"out of memory", b"_STATUS_ALLOC_FAILED", b"allocate memory", b"kill event",
    b"can't open file", b"must be exported", b"(SIG", b"exited on signal", b"Segmentation", b"Bus error",
    b"Floating point exc", b"Illegal instr", b"Watchdog caught", b"NCCL work", b"NCCL operations", b"DUE TO ",
    b"collective timeout", b"not found", b"No module named", b"srun: ", b"slurmstepd", b"pretrain: ", b"bash: ",
    b"timeout: ", b"mpirun: ", b"prterun: ", b" Killed", b"Cuda failure", b"Call to ibv_", b"socket interface",
    b"neither AF_INET", b"Duplicate GPU", b"peer access is", b"GPU is lost",
    b"GPU requires", b"fallen off the bus", b"the device handle", b"NVIDIA-SMI has", b"to initialize NVML",
    b": line ", b"Critical Xid", *(row.token for row in ROWS if row.token),
)
# fmt: on
"""Literals: each line of any kind contains one of them. A search for them is many times faster than for patterns."""


OTHERS_LEAST_GIB = 1
"""Memory of other processes that is ignored: a display, a monitor, or the context that a rank left on another rank's
GPU (0.4 GiB in a public log of torch 2.9). There may be many of these processes."""

NOT_TORCHS_GIB = 8
"""Assumed memory of a process beside torch's allocations: CUDA's context, NCCL's buffers, workspaces of libraries.
Measured: 2.0 GiB on two H200s with torch 2.11. NCCL's share on hundreds of ranks is unconfirmed."""

_GIB_IN = {"bytes": 2**30, "KiB": 2**20, "MiB": 2**10, "GiB": 1, "TiB": 2**-10}
_SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,4})?) (bytes|KiB|MiB|GiB|TiB)"

_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity")  # 2.1 writes capacty
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated|{_SIZE} cached\)")  # cached: before 1.5
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_PROCESS = re.compile(rf"\bProcess [0-9]{{1,10}} has {_SIZE} memory in use")
_ITSELF = re.compile(rf"this process has {_SIZE} memory in use")
_LIMITED = re.compile(rf"{_SIZE} allowed;")


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """Numbers of a message of torch's allocator, in GiB.

    `others_gib` is the memory of other processes, without those that have little. `is_of_others`: the allocation would
    have succeeded without them.
    """

    total_gib: float
    others_gib: float
    is_of_others: bool


def memory_short(line: str) -> MemoryShort | None:
    """Parse a message of torch's allocator; None for other lines and for messages without total and free memory."""
    asked, total, free = (_gib(pattern, line) for pattern in (_ASKED, _TOTAL, _FREE))
    if asked is None or total is None or free is None:
        return None
    of_torch = _gib(_RESERVED, line)
    if of_torch is None:
        of_torch = (_gib(_ALLOCATED, line) or 0.0) + (_gib(_UNALLOCATED, line) or 0.0)
    processes = [size for size in map(_in_gib, _PROCESS.finditer(line)) if size <= total]
    own = _own(line, of_torch, total, processes)
    few = sum(size for size in processes if size < OTHERS_LEAST_GIB and size != own)
    others = max(0.0, total - free - few - (of_torch if own is None else own))
    least = NOT_TORCHS_GIB if own is None else OTHERS_LEAST_GIB
    is_limited = _LIMITED.search(line) is not None  # by set_per_process_memory_fraction
    return MemoryShort(total, others, not is_limited and others > max(least, asked - free))


def _own(line: str, of_torch: float, total: float, processes: list[float]) -> float | None:
    """Return the process's own memory according to NVML.

    If the message does not name the process, it is the smallest process with enough memory for torch's allocations.
    """
    itself = _gib(_ITSELF, line)
    if itself is not None and itself <= total:
        return itself
    return min((size for size in processes if size >= of_torch), default=None) if of_torch else None


def _gib(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    return _in_gib(match) if match else None


def _in_gib(match: re.Match[str]) -> float:
    number, unit = (group for group in match.groups() if group)
    return float(number) / _GIB_IN[unit]
