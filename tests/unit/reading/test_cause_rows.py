"""Rows of the kinds of causes with their examples, and faults of public bug reports with their class and node."""

from __future__ import annotations

import pytest

from orchestrator.reading import cause_kinds as kinds
from orchestrator.reading import causes
from orchestrator.reading.causes import cause
from orchestrator.reading.failure import (
    POLICIES,
    Allocation,
    Ending,
    Failure,
    failed_nodes,
    failing_line,
    failure_of,
)
from orchestrator.reading.logs import parse_line
from tests.causes import megatron_cause

RETRIED = {"container", "launch failed", "NCCL error", "NCCL lost a rank", "network error"}
RETRIED |= {"GPU fault", "GPU in use", "node failure", "not started", "preempted"}
EXITED = "srun: error: n2: task 2: Exited with exit code 1"
NOTICES = (
    "srun: job 321 queued and waiting for resources\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="srun, the network, a container runtime or a NaN ends the program with a text of its own",
    promise="The line and its class are those of the text, not of a notice of srun; the class decides the retry.",
)
@pytest.mark.parametrize("row", kinds.ROWS, ids=lambda row: f"{row.source}-{row.kind}")
def test_the_example_of_each_row_has_its_kind_and_outranks_notices(row: kinds.CauseRow) -> None:
    line = parse_line(row.example.encode()).text
    order = causes._kind_of_similar(line, causes.ANY_PROGRAM)
    assert order is not None and kinds.ROWS[order] is row and row.source
    assert any(token in row.example.encode() for token in kinds.TOKENS)
    found = cause(f"{NOTICES}{row.example}\n{'' if 'srun: ' in row.example else EXITED}\n".encode())
    assert found is not None and found.kind == row.kind and found.line in row.example
    failure = failure_of(Ending("ended", "FAILED", 1, None, "no proof", nodes_inside=0), found.kind)
    assert POLICIES[failure].retry == (row.kind in RETRIED)
    if failure is not Failure.CONFIGURATION:
        assert failing_line(failure, found) == found


FOUR = Allocation(("n1", "n2", "n3", "n4"), tasks_per_node=2, ranks_per_node=2)
# ## name | class | part of the deciding line | nodes that the next attempt excludes. n2 runs tasks 2 and 3.
REPORTED = """\
## pyxis with a thread id, hook of enroot | image | nvidia-container-cli: mount error: denied | n2
May 20 07:32:44 360746 slurmstepd   0x40000004af00: error: pyxis: container start failed with error code: 1
May 20 07:32:44 360746 slurmstepd   0x40000004af00: error: pyxis:     nvidia-container-cli: mount error: denied
slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1
## plug-in at launch | node-fail | task 5 launch failed: Plugin initialization failed | n3
srun: error: task 5 launch failed: Plugin initialization failed
## engine log of a hook | image | [ERROR] Command not found: ldconfig | n2
2: slurmstepd: error: pyxis: container start failed
2: slurmstepd: error: pyxis:     [ERROR] Command not found: ldconfig
2: slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1
## seccomp | image | seccomp filter failed | n2
slurmstepd: error: pyxis: seccomp filter failed: Function not implemented
## mount source of Apptainer | image | mount source /buffer | n2
2: WARNING: skipping mount of /buffer: stat /buffer: no such file or directory
2: FATAL:   container creation failed: mount source /buffer doesn't exist
## squashfs of Apptainer | image | bad superblock | n2
2: FATAL:   container creation failed: kernel reported a bad superblock for squashfs
## mount source of podman | image | statfs /dev/ss0 | n2
2: Error: statfs /dev/ss0: no such file or directory
## tar in Spanish | image | /raid/0b08: No se puede efectuar open | n2
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     [INFO] Extracting image layers...
slurmstepd: error: pyxis:     tar (child): /raid/0b08: No se puede efectuar open: Permiso denegado
slurmstepd: error: pyxis:     tar: Child returned status 2
## hook with the code of its error | image | ldconfig failed with error code: 1 | n2
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: ldconfig failed with error code: 1
slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1
## registry without credentials | image | 401 Unauthorized | n2
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     [ERROR] URL https://registry.example/v2/a returned error code: 401 Unauthorized
## container name without an image | configuration | name "x" does not exist |
srun: error: pyxis: error: a container with name "x" does not exist
## Shifter | image | FAILED to find requested image | n2
2: FAILED to find requested image
## PMIx without munge | program | pmix_psec_base_open failed |
2: It looks like pmix_init failed for some reason
2:   pmix_psec_base_open failed
2: [n2:12255] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229
## task launch | node-fail | failed on node n3: Socket timed out | n3
srun: error: slurm_receive_msgs: [[n3]:6818] failed: Socket timed out on send/recv operation
srun: error: Task launch for StepId=96.0 failed on node n4: No such process
srun: error: Task launch for StepId=96.0 failed on node n3: Socket timed out on send/recv operation
srun: error: Application launch failed: Socket timed out on send/recv operation
## exit of a shell hook | image | failed to execute: /bin/bash | n2
slurmstepd: error: pyxis: container start failed
slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory
## NaN in the gradient | numbers | Unexpected result nan |
[rank3]: RuntimeError: Rank 3, Unexpected result nan (message='found NaN in local grad')
## NaN in a fork | numbers | found NaN in local grad norm |
AssertionError: Rank 3: found NaN in local grad norm in backwards pass.
## NaN in a gradient that torch clips | numbers | is non-finite |
[rank0]: RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.
## loss scale of DeepSpeed | numbers | already at minimum |
2: Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.
## NaN that Lightning finds | numbers | is nan or inf |
2: ValueError: The loss returned in `training_step` is nan or inf
## a NaN that is no loss | program | cannot convert float NaN |
2: ValueError: cannot convert float NaN to integer
## namespace of Apptainer | image | user namespace disabled | n2
2: ERROR  : Failed to create user namespace: user namespace disabled
## registry of podman | image | pinging container registry | n2
2: Error: initializing source docker://a/b: pinging container registry a: dial tcp: connection refused
## hang of an AMD GPU | gpu-fault | GPU Hang | n2
3: HW Exception by GPU node-5 (Agent handle: 0x5614) reason :GPU Hang
## memory of an AMD GPU | gpu-oom | HIP out of memory |
2: RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB
## Slurm's second line about memory | host-oom | Exceeded job memory limit |
slurmstepd: error: Exceeded job memory limit
## OFI before a time-out | nccl-error | completed with error |
n1:7:9 [0] NCCL WARN NET/OFI Request 0x7f completed with error. RC: 107. Error: Transport endpoint is not connected
[rank12]:[E1119 ProcessGroupNCCL.cpp:616] [Rank 12] Watchdog caught collective operation timeout: WorkNCCL
## port of an adapter before a time-out | nccl-error | port error |
n1:7:9 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error
[rank12]:[E1119 ProcessGroupNCCL.cpp:616] [Rank 12] Watchdog caught collective operation timeout: WorkNCCL
## stuck watchdog | nccl-timeout | got stuck for |
[rank5]:[F1119 ProcessGroupNCCL.cpp:1] [Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress
## gloo | nccl-error | connectFullMesh failed |
2: RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error
## memory limit of a job | host-oom | exceeded memory limit |
slurmstepd: Job 6398 exceeded memory limit (50385312 > 49152000), being killed
## memory limit of a step | host-oom | exceeded memory limit |
slurmstepd: error: StepId=6398.0 exceeded memory limit (50385312000 > 49152000000), being killed
srun: error: n1: tasks 0-7: Killed
## name of a host | nccl-error | gai error: -2 |
[rank1]: RuntimeError: The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).
## name of a host in Python | nccl-error | Temporary failure |
2: socket.gaierror: [Errno -3] Temporary failure in name resolution
## name of a web server | program | HTTPSConnectionPool |
ConnectionError: HTTPSConnectionPool(host='data.example'): [Errno -2] Name or service not known
## port in use | nccl-error | failed to listen |
3: RuntimeError: The server socket has failed to listen on any local network address.
## port in use, torch 2 | nccl-error | EADDRINUSE |
[rank0]: torch.distributed.DistNetworkError: port: 29500, name: EADDRINUSE
## rendezvous | nccl-error | client socket has timed out |
[rank8]: torch.distributed.DistNetworkError: The client socket has timed out after 600000ms
## InfiniBand before a time-out | nccl-error | status=12 |
n1:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.1<44206> with status=12 (Recv)
[rank12]:[E1119 ProcessGroupNCCL.cpp:616] [Rank 12] Watchdog caught collective operation timeout: WorkNCCL
## InfiniBand and a lost rank | nccl-error | status=12 |
n1:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.1<44206> with status=12 (Recv)
[rank4]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
## CUDA error of a watchdog | program | CUDA error: an illegal memory access |
[rank0]:[rank0]:[E128 ProcessGroupNCCL.cpp:1897] [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
## critical Xid | gpu-fault | Detected Critical Xid | n2
GPU 00000000:04:00.0: Detected Critical Xid Error
RuntimeError: CUDA error: an illegal access
## labels of a launcher | program | ValueError: token id 50257 |
[lrdn0137:1]:torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
[lrdn3321:2]:ValueError: token id 50257 is out of range
## labels of a logger | program | ValueError: token id |
3: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
2: 2026-10-26 21:31:00,318 [Rank 2]: ValueError: token id
## exception without a class of its own | program | Exception: no data |
[node1:2]:Exception: no data
3: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
## labels of Ray | program | KeyError: 'x' |
(Worker pid=7, ip=192.0.2.1) KeyError: 'x'
3: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
## labels of a host | configuration | AssertionError: world size |
worker-1: [rank2]: AssertionError: world size 6
## exception of an error of glog | program | OSError: bad |
E0101 10:00:00.123456 12345 data.cc:12] OSError: bad
3: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
## exception of a logged warning | nccl-error | remote process exited |
2: WARNING:root:ValueError: no cache
3: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error
"""  # noqa: E501  lines of logs


def reported() -> list[tuple[str, str, str, str, str]]:
    """Return name, class, part of the line, nodes and log of each reported fault."""
    cases = []
    for block in REPORTED.split("## ")[1:]:
        head, _, log = block.partition("\n")
        name, failure, part, nodes = (text.strip() for text in head.split("|"))
        cases.append((name, failure, part, nodes, log))
    return cases


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job fails as in a public bug report of a container runtime, launcher, network or program",
    promise="Class and line name the fault. A node that the log names is excluded, if its class is retried elsewhere.",
)
@pytest.mark.parametrize(
    ("failure", "part", "nodes", "log"), [case[1:] for case in reported()], ids=[c[0] for c in reported()]
)
def test_a_reported_fault_has_its_class_line_and_nodes(failure: str, part: str, nodes: str, log: str) -> None:
    whole = f"{NOTICES}{log}{EXITED}\n".encode()
    found = megatron_cause(whole)
    assert found is not None
    classed = failure_of(Ending("ended", "FAILED", 1, None), found.kind)
    line = failing_line(classed, found)
    assert classed == failure and line is not None and part in line.line
    excluded = failed_nodes(classed, [whole], FOUR) if POLICIES[classed].exclude_node else ()
    assert " ".join(excluded) == nodes
