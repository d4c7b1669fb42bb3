"""Messages of GPUs, their driver and NCCL about a failed start or a lost GPU: kind and rank of the cause.

Lines with a comment (R) are from public logs. The others follow the format strings of their programs.
"""

from __future__ import annotations

import pytest

from orchestrator.reading.failure import Ending, failure_of
from tests.causes import megatron_cause

FAULT, UNUSABLE, IN_USE = "GPU fault", "GPU cannot be used", "GPU in use"
MISUSED, NCCL = "NCCL misused", "NCCL error"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A GPU or driver fails; NCCL cannot start; a driver is too old",
    promise="Each has its class and the deciding log line. For NCCL it is the last line of the error.",
    count=0,
)
@pytest.mark.parametrize(
    ("line", "kind", "failure"),
    [
        # torch, with CUDA's texts
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FAULT, "gpu-fault"),  # (R)
        (  # (R), torch 2.1
            "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error:"
            " uncorrectable ECC error encountered",
            FAULT,
            "gpu-fault",
        ),
        (  # (R), torch 1.0
            "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /pytorch/aten/src/THC/x.c",
            FAULT,
            "gpu-fault",
        ),
        ("CUDA error: uncorrectable NVLink error detected during the execution", FAULT, "gpu-fault"),
        (
            "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            FAULT,
            "gpu-fault",
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
            " NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
            FAULT,
            "gpu-fault",
        ),
        (
            "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
            UNUSABLE,
            None,
        ),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", UNUSABLE, None),
        ("RuntimeError: CUDA error: peer access is not supported between these two devices", UNUSABLE, None),  # (R)
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU"
            " driver by downloading and installing a new version",
            UNUSABLE,
            None,
        ),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA", UNUSABLE, None),
        ("RuntimeError: No CUDA GPUs are available", UNUSABLE, None),
        ("RuntimeError: CUDA error: no CUDA-capable device is detected", UNUSABLE, None),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", UNUSABLE, None),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
            " NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on"
            " non supported HW",
            UNUSABLE,
            None,
        ),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", IN_USE, "gpu-in-use"),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", IN_USE, "gpu-in-use"),
        # an error of the program itself
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "error", "program"),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", "error", "program"),
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must"
            " use the 'spawn' start method",
            "error",
            "program",
        ),
        # NVML, nvidia-smi, the kernel
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover",
            FAULT,
            "gpu-fault",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=python3, GPU has fallen off the bus.", FAULT, "gpu-fault"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest",
            FAULT,
            "gpu-fault",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", FAULT, "gpu-fault"),
        # NCCL's warnings
        (
            "gpu617:22841:22841 [0] bootstrap.cc:37 NCCL WARN Bootstrap : no socket interface found",
            MISUSED,
            None,
        ),  # (R)
        (
            "h:843:843 [5] transport/nvls.cc:157 NCCL WARN Cuda failure 1 'invalid argument'",  # (R)
            NCCL,
            "nccl-error",
        ),
        (
            "h:9:10 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not"
            " supported between these two devices",  # (R)
            UNUSABLE,
            None,
        ),
        (
            "crow:5330:7970 [3] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
            NCCL,  # (R)
            "nccl-error",
        ),
        ("hai:37:38 [4] ibvwrap.c:130 NCCL WARN Call to ibv_create_qp failed", NCCL, "nccl-error"),  # (R)
        (
            "n1:77:99 [3] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
            NCCL,  # the limit of locked memory, and not the host's memory
            "nccl-error",
        ),
    ],
)
def test_messages_of_cuda_its_driver_and_nccl_have_a_class(line: str, kind: str, failure: str | None) -> None:
    result = megatron_cause(f"fine\n{line}\nmore\n".encode())
    assert result is not None and (result.kind, result.line) == (kind, line[: len(result.line)])
    assert str(failure_of(Ending("ended", "FAILED", 1, None), kind)) == (failure or "configuration")


@pytest.mark.parametrize(
    "line",
    [
        "h:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2",
        "h:1:1 [0] NCCL WARN Cuda failure 4 'driver shutting down'",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).",
        "CUDA_VISIBLE_DEVICES=0,1; the GPU is busy or unavailable at times",
    ],
)
def test_messages_without_a_failure_are_no_cause(line: str) -> None:
    assert megatron_cause(line.encode()) is None


def raised(how: str, name: str, what: str, last: str, version: str, where: str = "NCCLUtils.cpp:94") -> str:
    """Return an error of NCCL as torch prints it: the reason comes last."""
    lines = (
        f"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/{where}, {how}, NCCL"
        f" version {version}",
        f"{name}: {what}",
        "Last error:",
        last,
    )
    return "".join(f"[rank{{rank}}]: {line}\n" for line in lines)


INTERNAL = "internal error - please report this issue to the NCCL developers"
USAGE = "invalid usage (run with NCCL_DEBUG=WARN for details)"
NO_INTERFACE = "Bootstrap : no socket interface found"
FAMILY = "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"
DUPLICATE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
UNHANDLED = ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "ncclUnhandledCudaError")
ERRORS = {
    # (R), torch 2.6
    "no interface": (raised(INTERNAL, "ncclInternalError", "Internal check failed.", NO_INTERFACE, "2.21.5"), MISUSED),
    # what the sources of NCCL 2.28 return for the same
    "no interface, since": (raised(USAGE, "ncclInvalidUsage", "This usually", NO_INTERFACE, "2.28.9"), MISUSED),
    # (R), NCCL 2.27.7
    "no interface, unnoticed": (raised(INTERNAL, "ncclInternalError", "Internal", FAMILY, "2.27.7"), MISUSED),
    # (R), 2025
    "two ranks on a GPU": (
        raised(USAGE, "ncclInvalidUsage", "This usually reflects invalid usage of NCCL library.", DUPLICATE, "2.20.5"),
        MISUSED,
    ),
    "multicast": (raised(*UNHANDLED, "Call to CUDA function failed.", "Cuda failure 1 'invalid argument'", "2"), NCCL),
    "a fault": (
        raised(*UNHANDLED, "Call", "Cuda failure 214 'uncorrectable ECC error encountered'", "2.28.9"),
        FAULT,
    ),
    "no peer access": (
        raised(*UNHANDLED, "Call", "Cuda failure 217 'peer access is not supported between these two devices'", "2"),
        UNUSABLE,
    ),
    "an adapter": (
        raised(
            "unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "ncclSystemError",
            "System call (e.g. socket, malloc) or external library call failed or device error.",
            "Call to ibv_modify_qp failed with error Network is unreachable",
            "2.28.9",
        ),
        NCCL,
    ),
}


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A GPU or driver fails; NCCL cannot start; a driver is too old",
    promise="Each has its class and the deciding log line. For NCCL it is the last line of the error.",
    count=0,
)
@pytest.mark.parametrize(("text", "kind"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("first", [0, 1])
def test_an_nccl_error_shows_its_last_line_and_the_launchers_first_rank(text: str, kind: str, first: int) -> None:
    report = f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_10:00:00\n  rank      : {first} (l"
    log = text.format(rank=0) + text.format(rank=1) + report + "ocal_rank: 0)\n  exitcode  : 1 (pid: 5)\n"
    result = megatron_cause(log.encode())
    assert result is not None
    assert (result.kind, result.line, result.rank) == (kind, text.rstrip().rpartition("]: ")[2], first)


def test_a_rank_that_the_launcher_killed_is_not_the_cause() -> None:
    report = (
        "[rank1]:[E1121] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78\n"
        "[1]:\n  rank      : 0 (local_rank: 0)\n  traceback : Signal 9 (SIGKILL) received by PID 11\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_10:00:00\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 12)\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 12\n"
    )
    result = megatron_cause(report.encode())
    assert result is not None and (result.kind, result.rank) == ("NCCL time-out", 1)


def test_a_crashed_rank_and_a_killed_rank_have_different_kinds() -> None:
    for line, kind in (
        ("Signal 11 (SIGSEGV) received by PID 3035", "a rank crashed"),
        ("Signal 9 (SIGKILL) received by PID 3035", "a rank was killed"),
        ("mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 11 (Segmentation fault).", None),
        ("job.sh: line 52:  4966 Killed                  timeout --foreground 60 python", "a rank was killed"),
    ):
        result = megatron_cause(line.encode())
        assert result is not None and result.kind == (kind or "a rank crashed")
