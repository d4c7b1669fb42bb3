"""Kinds of log lines that state why a job failed, most specific first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

ASSERTION, ERROR, NCCL_TIMEOUT = "failed assertion", "error", "NCCL time-out"
GPU_IN_USE, NO_GPU_MEMORY, NO_HOST_MEMORY = "GPU in use", "out of GPU memory", "out of host memory"
TIME_LIMIT, NODE_FAILURE, PREEMPTED, CONTAINER = "time limit", "node failure", "preempted", "container"
NOT_A_NUMBER, WHAT_RAN = "not a number", "what ran"  # no errors: why a job that ended well is not verified
RANK, JOB = "rank", "job"


class Kind(NamedTuple):
    """A kind of lines: the failure class of a job that failed with such a line, by default `program`.

    `of` is RANK for errors of a single rank: a launcher's report names the rank if the line does not. It is JOB for
    events of the whole job, whichever rank prints them. Ranks also print a line that `follows` when Slurm ends them. A
    line that `decides` does so even if the scheduler reports a good end, or the time limit for which ranks waited.
    """

    failure: str = ""
    of: str = ""
    follows: bool = False
    decides: bool = False


FAULTS = {
    "not started": Kind("stopped"),
    "outside its image": Kind("configuration"),
    "GPU fault": Kind("gpu-fault", RANK, decides=True),
    "GPU cannot be used": Kind("configuration", RANK, decides=True),
    "GPU in use": Kind("gpu-in-use", RANK, decides=True),
    "NaN ended the program": Kind("numbers", RANK),
    "argument error": Kind("configuration", decides=True),
    "failed assertion": Kind("configuration", RANK, decides=True),
    "out of GPU memory": Kind("gpu-oom", RANK, decides=True),
    "out of host memory": Kind("host-oom", decides=True),
    "network error": Kind("nccl-error", RANK, follows=True),
    "not found": Kind("configuration", RANK),
    "error": Kind(of=RANK, follows=True),
    "a rank crashed": Kind(of=RANK, follows=True),
    "a rank was killed": Kind("killed", RANK, follows=True),
    "NCCL misused": Kind("configuration", RANK),
    "NCCL error": Kind("nccl-error", RANK, follows=True, decides=True),
    "NCCL time-out": Kind("nccl-timeout", RANK, follows=True, decides=True),
    "NCCL lost a rank": Kind("nccl-error", RANK, follows=True),
    "time limit": Kind("timeout", JOB),
    "node failure": Kind("node-fail", JOB),
    "preempted": Kind("preempted", JOB),
    "container": Kind("image"),
    "launch failed": Kind("node-fail"),
}
OF_RANK = frozenset(name for name, kind in FAULTS.items() if kind.of == RANK)
OF_JOB = frozenset(name for name, kind in FAULTS.items() if kind.of == JOB)
FOLLOW_AN_END = frozenset(name for name, kind in FAULTS.items() if kind.follows)

_PARTS = {
    "EXCEPTION": r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Za-z_]\w{0,60}(?:Error|Exception)|Exception)(?:: |:?$)",
    "TASKS": r"error: [\w.-]{1,64}: tasks? [0-9,\- ]{1,80}: ",
    "NCCL": r"NCCL [Ee]rror(?: in|:| [0-9])",
    "SIGKILL": r"(?P<shown>Signal [0-9]{1,3} \(SIGKILL\) received.*)",
    "NO_PROGRAM": r"(?:cannot execute: )?(?:No such file or directory|required file not found|Permission denied"
    r"|Is a directory|cannot execute binary file)",
    "CUDA": r"(?:[Ee]rror(?: \(?[0-9]{1,4}\)?)? ?: (?:Unexpected error from cuda.{1,300})?"
    r"|Cuda failure (?:[0-9]{1,4} )?')",
}
"""Parts of patterns, by the name that a pattern has in angle brackets."""


class CauseRow(NamedTuple):
    """A kind of line: who prints it, an example, its pattern, and one of its literals if `TOKENS` has none of them."""

    kind: str
    source: str
    example: str
    pattern: str
    token: bytes = b""


def _rows(table: str) -> Iterator[CauseRow]:
    """Yield the rows of a table: kind, source, example and perhaps the token, then the pattern in indented lines."""
    for block in re.split(r"\n(?! )", table.strip()):
        if not block.startswith("#"):
            head, *pattern = block.split("\n    ")
            kind, source, example, *token = head.split(" | ")
            whole = re.sub(r"<([A-Z_]{3,})>", lambda name: _PARTS[name[1]], "".join(pattern))
            yield CauseRow(kind, source, example, whole, *map(str.encode, token))


ROWS = tuple(
    _rows(r"""
not started | repro | repro: not started: job 77 runs it already
    repro: not started:[ ]
outside its image | repro | repro: n3 runs it outside its image
    repro: .{0,200} outside its image
# Faults of the machine, whatever the program does.
GPU fault | CUDA | torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
    <CUDA>(?:uncorrectable (?:ECC|NVLink) error|.{0,99}a hardware error|.{0,99}system not yet initialized)|
    Detected Critical Xid|HW Exception by GPU|GPU is lost|GPU requires re(?:set|start)|fallen off the bus|
    Unable to determine the device handle for|NVIDIA-SMI has failed|Failed to initialize NVML
GPU cannot be used | CUDA | RuntimeError: CUDA error: no kernel image is available for execution on the device
    <CUDA>.{0,99}(?:driver on your system is too old|driver version is insufficient|no kernel image is avail|
    unsupported toolchain|forward compatibility was attempted|unsupported display driver|invalid device ordinal|
    no NVIDIA driver on|No CUDA GPUs are avail|no CUDA-capable device)|peer access is not supported
NaN ended the program | Megatron-LM | RuntimeError: Unexpected result nan (message='found NaN in local grad norm')
    ^<EXCEPTION>.{0,200}(?:found (?:NaN|Inf) in |[Uu]nexpected result -?(?:nan|inf)\b|is non-finite|returned nan values|
    loss scale already at minimum|[Mm]inimum loss scale reached|[Ll]oss (?:returned in .{1,40} )?is (?:nan|NaN|inf)\b)
argument error | argparse | pretrain_gpt.py: error: unrecognized arguments: --DDP-impl local
    (?:\.py|pretrain): error: |error: (?:unrecognized arguments|argument |the following )
argument error | pyxis | srun: error: pyxis: could not add mount entry: a:b
    ^srun: (?:error: pyxis: (?!ignoring )|unrecognized option )
failed assertion | Python | AssertionError: world size (8) is not divisible by 3
    ^AssertionError(?:: |:?$)
# Lines of the next kind have this kind if their numbers show that other processes use the memory (`memory_short`).
GPU in use | CUDA | RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable
    <CUDA>.{0,99}busy or unavailable
out of GPU memory | PyTorch | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
    OutOfMemoryError|(?:CUDA|Cuda|cuda|HIP|THC).{0,60}out of memory|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED
out of host memory | Slurm | slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step
    oom[_-]kill event|<TASKS>Out Of Memory|^MemoryError(?:: |:?$)|(?<!failed with error C)annot allocate memory|
    DefaultCPUAllocator: (?:can't allocate|not enough) memory
out of host memory | Slurm | slurmstepd: error: StepId=6398.0 exceeded memory limit (50385 > 49152), being killed
    ^slurmstepd.{0,100} (?:exceeded (?:virtual )?memory limit .{0,80}being killed|Exceeded (?:job|step) memory limit$)
network error | PyTorch | RuntimeError: The server socket has failed to listen on any local network address.
    ^<EXCEPTION>.{0,300}(?:EADDRINUSE|[Aa]ddress already in use|failed to listen on any local)
network error | Python | socket.gaierror: [Errno -2] Name or service not known
    ^(?!.{0,300}(?:HTTP|urlopen))(?:<EXCEPTION>|socket\.gaierror: ).{0,300}
    (?:gai error|Name or service not known|[Nn]ame resolution)
not found | Python | python: can't open file '/x/pretrain_gpt.py': [Errno 2] No such file or directory
    ^ModuleNotFoundError: |can't open file |execve\(\): |must be exported in the shell
error | Python | ValueError: num_attention_heads (24) must be a multiple of 5
    ^<EXCEPTION>
error | PyTorch | Process group watchdog thread terminated with exception: CUDA error: an illegal memory access
    terminated with exception: (?P<shown>CUDA error: .*)
# Reports of torchrun, srun, a shell and Open MPI. A launcher ends the other ranks by SIGTERM.
a rank crashed | Slurm | srun: error: n1: task 6: Segmentation fault (core dumped)
    (?P<shown>Signal [0-9]{1,3} \(SIG(?:SEGV|BUS|FPE|ILL)\) received.*)|exited on signal [0-9]{1,3}\b(?! \(Killed)|
    (?:<TASKS>|\b[0-9]{1,9} )(?:Segmentation fault|Bus error|Floating point exception|Illegal instruct)
a rank crashed | glibc | *** buffer overflow detected ***: terminated | detected ***
    ^\*\*\* (?:buffer overflow|stack smashing) detected \*\*\*
a rank was killed | Open MPI | mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).
    ^<SIGKILL>|exited on signal [0-9]{1,3} \(Killed
a rank was killed | bash | job.sh: line 52: 1234 Killed                  timeout --foreground 60 x
    : line [0-9]{1,9}: +(?P<shown>[0-9]{1,9} Killed +[^ ]{1,100})
# torch prints several lines for an error of NCCL. The last line has the reason.
NCCL misused | NCCL | n1:7:9 [0] init.cc:800 NCCL WARN Duplicate GPU detected : rank 0 and rank 1
    no socket interface found|is neither AF_INET\b|Duplicate GPU detected ?:
NCCL misused | PyTorch | DistBackendError: NCCL error in: x.cpp:94, invalid usage
    <NCCL>.{0,300}invalid (?:usage|argument)|ncclInvalid(?:Usage|Argument):[ ]
NCCL error | NCCL | NCCL WARN NET/IB : Got completion from peer 192.0.2.1<44206> with status=12 | Got completion
    Got completion from peer .{1,200}(?:status=|with error )|NET/OFI .{0,200}completed with error|async event : port err
NCCL error | NCCL | n1:7:9 [0] enqueue.cc:1 NCCL WARN Cuda failure 1 'invalid argument'
    Cuda failure (?:[0-9]{1,4} )?'(?!driver shutting down)|Call to ibv_\w{1,40} (?:failed|timed)
NCCL error | PyTorch | torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error
    <NCCL>(?!.{0,300}(?:remote process|network error))|nccl(?:UnhandledCuda|System|Internal)Error:[ ]
NCCL time-out | PyTorch | [E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout | got stuck for
    Watchdog caught collective operation timeout|Timeout at NCCL work: |NCCL operations have failed or timed out|
    collective timeout from +rank|watchdog got stuck for
NCCL lost a rank | PyTorch | ncclRemoteError: A call failed possibly due to a network error
    <NCCL>|ncclRemoteError: |NCCL communicator was aborted
# By NCCL's watchdog, and in a launcher's report, but not as its root cause: it kills ranks that do not end.
a rank crashed | PyTorch | traceback : Signal 6 (SIGABRT) received by PID 3031
    (?P<shown>Signal [0-9]{1,3} \(SIGABRT\) received.*)
a rank was killed | PyTorch | traceback : Signal 9 (SIGKILL) received by PID 3035
    <SIGKILL>
time limit | Slurm | slurmstepd: error: *** STEP 42221.0 ON n1 CANCELLED AT 2026-04-14T16:20:46 DUE TO TIME LIMIT ***
    DUE TO TIME LIMIT
node failure | Slurm | srun: error: Node failure on n8
    NODE FAILURE|Node failure on[ ]
preempted | Slurm | slurmstepd: error: *** STEP 42221.0 ON n1 CANCELLED AT 2026-04-14T16:20:46 DUE TO PREEMPTION ***
    DUE TO (?:PREEMPTION|JOB REQUEUE)
container | pyxis | slurmstepd: error: pyxis: seccomp filter failed: not permitted
    error: pyxis:[ ]
not found | Apptainer | FATAL:   "python9": executable file not found in $PATH | FATAL:
    ^(?:FATAL: {2,}|Error: ).{0,300}(?:executable file .{0,200}not found|command that was not found)
container | Apptainer | FATAL:   container creation failed: mount /data->/data error: mount source /data doesn't exist
    ^FATAL: {2,}(?!exec )
container | Apptainer | ERROR  : Failed to create user namespace: user namespace disabled | ERROR  :
    ^ERROR {2}:[ ]
container | Docker | docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].
    ^docker: (?:Error response from daemon|Cannot connect to)
container | podman | Error: statfs /data: no such file or directory
    ^Error: (?:statfs |OCI runtime|crun: |runc: |short-name |initializing source|unable to copy|.{1,200}image not known|
    creating container|preparing container|mounting |pinging container registry|writing blob|reading (?:blob|manifest))
container | Shifter | FAILED to find requested image | FAILED to
    ^FAILED to (?:find requested image|setup |obtain |mount |lookup |initialize )
launch failed | Slurm | srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out
    ^srun: error: (?:Task launch for .{1,80} failed on node [\w.-]{1,64}: (?!No such process)|
    task [0-9]{1,9} launch failed: |Application launch failed: )
not found | Python | /usr/bin/python3: No module named megatron
    : command not found|: No module named |exec: .{1,200}: not found
not found | bash | task: line 14: /opt/conda/bin/python: No such file or directory
    : line [0-9]{1,9}: .{1,300}: <NO_PROGRAM>
network error | PyTorch | torch.distributed.DistNetworkError: The client socket has timed out after 600000ms
    Dist(?:Network|Store)Error: |Rendezvous(?:Connection|Timeout)Error|
    client socket has (?:timed out|failed to connect)|[Gg]loo connectFullMesh failed
error | Python | loading failed with ValueError: bad magic number
    (?<![A-Za-z.])[A-Za-z.]{0,80}(?:Error|Exception): +[^ ]
# srun then prints only the exit code.
error | Slurm | slurmstepd: error: couldn't chdir to `/work': Permission denied: going to /tmp instead
    ^slurmstepd(?:-[\w.-]{1,64})?: error: couldn't chdir to[ ]
error | Open MPI | [n1:12255] OPAL ERROR: Unreachable in file ext3x_client.c at line 112 | OPAL ERROR
    OPAL ERROR:[ ]
error | PMIx | [n1:12255] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229 | pmix_
    ^ *pmix_\w{1,60} failed$|PMIX ERROR:[ ]
error | Slurm | srun: error: n1: task 3: Exited with exit code 2
    <TASKS>(?!Terminated|Killed)
# srun also kills the other tasks after one that failed.
a rank was killed | Slurm | srun: error: n1: task 3: Killed
    <TASKS>Killed
error | Slurm | srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.
    ^(?:pretrain|bash|timeout|mpirun|prterun): |^(?:slurmstepd(?:-[\w.-]{1,64})?|srun): (?:error|fatal):[ ]
error | Slurm | srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
    ^(?:slurmstepd(?:-[\w.-]{1,64})?|srun): (?!job [0-9]{1,20} (?:queued|has been))
""")
)
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple((row.kind, re.compile(row.pattern)) for row in ROWS)
"""(kind, pattern of its lines without labels) in order of precedence. If a pattern has the group `shown`, only
that part of the line is shown. No pattern distinguishes the digits 1 to 9."""

SLURM_ENDS = re.compile(rb"CANCELLED AT [^\r\n]{1,40} DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE|NODE FAILURE)")

CONSEQUENCE = re.compile(
    r"\b(?:Dist[A-Za-z]{0,20}|Connection[A-Za-z]{0,20}|BrokenPipe|EOF|ChildFailed|Rendezvous[A-Za-z]{0,20}|Timeout"
    r"|Signal|Process(?:Raised|Exited))(?:Error|Exception)\b|NCCL|nccl|[Gg]loo|TCPStore|[Tt]imed out|Socket Timeout"
    r"|Connection (?:reset|closed|refused)|Broken pipe|killed by signal|exited unexpectedly|can only test a child"
)
"""Exceptions of a rank that lost other ranks or was ended by a signal. The last text is of torch's data loader."""

_TOKENS = (
    b"rror|Exception|repro: |out of memory|_STATUS_ALLOC_FAILED|allocate memory|kill event|can't open file|"
    b"must be exported|(SIG|exited on signal|Segmentation|Bus error|Floating point exc|Illegal instr|"
    b"Watchdog caught|NCCL work|NCCL operations|DUE TO |collective timeout|not found|No module named|srun: |"
    b"slurmstepd|pretrain: |bash: |timeout: |mpirun: |prterun: | Killed|Cuda failure|Call to ibv_|"
    b"socket interface|neither AF_INET|Duplicate GPU|peer access is|GPU is lost|GPU requires|fallen off the bus|"
    b"the device handle|NVIDIA-SMI has|to initialize NVML|: line |Critical Xid"
)
TOKENS = (*_TOKENS.split(b"|"), *(row.token for row in ROWS if row.token))
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
