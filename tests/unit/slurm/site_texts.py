"""What the commands of a login node print, for tests: taken from Slurm 22.05.8 and pyxis 0.24.0, and shortened."""

from __future__ import annotations

CONFIG = """\
Configuration data as of 2026-11-21T14:38:06
AccountingStorageEnforce = associations,limits,qos
AccountingStorageType   = accounting_storage/slurmdbd
BurstBufferType         = (null)
ClusterName             = ci
EnforcePartLimits       = ALL
InteractiveStepOptions  = --interactive --preserve-env --pty $SHELL
MaxArraySize            = 1001
MpiDefault              = none
PowerPlugin             = 
SchedulerParameters     = bf_interval=2,sched_interval=5
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
SlurmctldHost[0]        = vm(127.0.0.1)
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at vm is UP
"""  # noqa: W291

_REST = "LLN=NO MaxCPUsPerNode=UNLIMITED"
_LAST = "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED"

PARTITIONS = f"""\
PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A \
DefaultTime=00:30:00 Hidden=NO MaxNodes=UNLIMITED MaxTime=04:00:00 MinNodes=0 {_REST} Nodes=n[1-4] \
OverSubscribe=NO State=UP TotalCPUs=64 TotalNodes=4 {_LAST} TRES=cpu=64,mem=1000G,node=4,billing=64,gres/gpu=16
PartitionName=short AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A \
DefaultTime=00:02:00 Hidden=NO MaxNodes=2 MaxTime=00:10:00 MinNodes=0 {_REST} Nodes=n[1-4] \
OverSubscribe=NO State=UP TotalCPUs=64 TotalNodes=4 {_LAST} TRES=cpu=64,mem=1000G,node=4,billing=64,gres/gpu=16
PartitionName=picky AllowGroups=ALL AllowAccounts=small AllowQos=limited,low AllocNodes=ALL Default=NO QoS=limited \
DefaultTime=NONE Hidden=NO MaxNodes=UNLIMITED MaxTime=1-02:00:00 MinNodes=1 {_REST} Nodes=n[3-4] \
OverSubscribe=EXCLUSIVE State=DOWN TotalCPUs=32 TotalNodes=2 {_LAST} TRES=cpu=32,mem=500G,node=2
PartitionName=denies AllowGroups=ALL DenyAccounts=small,root DenyQos=normal AllocNodes=ALL Default=NO QoS=N/A \
DefaultTime=NONE Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=1 {_REST} Nodes=n[3-4] \
OverSubscribe=NO State=UP TotalCPUs=32 TotalNodes=2 {_LAST} TRES=cpu=32,mem=500G,node=2
PartitionName=empty AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A \
DefaultTime=NONE Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=1 {_REST} Nodes=(null) \
OverSubscribe=NO State=UP TotalCPUs=0 TotalNodes=0 {_LAST} TRES=(null)
"""


def node_line(
    name: str = "n1",
    partitions: str = "batch,short",
    gres: str = "gpu:h100:4",
    features: str = "h100",
    arch: str | None = "x86_64",
    cpus: int = 16,
    reason: str = "",
) -> str:
    """One line of `scontrol --oneliner show node`; without `arch` that of a node which never reported."""
    reported = f"Arch={arch} " if arch else ""
    return (
        f"NodeName={name} {reported}CoresPerSocket=16  CPUAlloc=0 CPUEfctv={cpus} CPUTot=16 CPULoad=0.19 "
        f"AvailableFeatures={features} ActiveFeatures={features} Gres={gres} NodeAddr=127.0.0.1 NodeHostName=vm "
        "Port=25235 Version=22.05.8 OS=Linux 6.18.44-fc-v669 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=256000 AllocMem=0 "
        f"FreeMem=23359 Sockets=1 Boards=1 State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
        f"Partitions={partitions}  CfgTRES=cpu=16,mem=250G,billing=16,gres/gpu=4 AllocTRES= "
        f"ExtSensorsTemp=n/s{' Reason=' + reason if reason else ''}\n"
    )


NODES = "".join(node_line(f"n{number}") for number in (1, 2)) + "".join(
    node_line(f"n{number}", "batch,short,picky,denies") for number in (3, 4)
)

RELEASES = ("22.05", "23.02", "23.11", "24.05", "24.11")


def partition_line(release: str, name: str, nodes: str, **fields: str) -> str:
    """One line of `scontrol --oneliner show partition` of a release. Newer releases have further fields."""
    topology = " ExclusiveTopo=NO" if release >= "24.05" else ""
    sockets = " MaxCPUsPerSocket=UNLIMITED" if release >= "23.02" else ""
    shown = {
        "AllowGroups": "ALL",
        "AllowAccounts": "ALL",
        "AllowQos": "ALL",
        "Default": "NO",
        "QoS": "N/A",
        "PriorityTier": "1",
        "RootOnly": "NO",
        "ReqResv": "NO",
        "PreemptMode": "OFF",
        **fields,
    }
    first, last = list(shown.items())[:5], list(shown.items())[5:]
    return (
        f"PartitionName={name} {' '.join(f'{key}={value}' for key, value in first)} AllocNodes=ALL DefaultTime=NONE "
        f"DisableRootJobs=NO ExclusiveUser=NO{topology} GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=1-00:00:00 "
        f"MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED{sockets} Nodes={nodes} PriorityJobFactor=1 "
        f"{' '.join(f'{key}={value}' for key, value in last)} OverSubscribe=NO OverTimeLimit=NONE State=UP "
        f"TotalCPUs=64 TotalNodes=4 {_LAST} TRES=cpu=64,mem=1000G,node=4,billing=64,gres/gpu=16\n"
    )


ASSOCIATIONS = """\
research|small||high,limited,low,normal|normal|||2||||
research|research||high,limited,low,normal|normal|||||||
research|root||normal||||||||
"""

ACCOUNTS = """\
root|||||
research|root||||
small|root||gres/gpu=16||
"""

QOS = """\
normal|||||||||cluster|||
low|||||||||requeue|||
high||||||||low,normal|cluster|||
limited||node=2||||3|DenyOnLimit||cluster|||
"""

RESERVATIONS = (
    "ReservationName=weekly StartTime=2026-11-22T14:42:01 EndTime=2026-11-22T15:42:01 Duration=01:00:00 Nodes=n1 "
    "Users=root State=INACTIVE\n"
)

MPI = """\
MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""

HELP = """\
Usage: srun [OPTIONS(0)... [executable(0) [args(0)...]]] [ : [OPTIONS(N)...]] executable(N) [args(N)...]

Parallel run options:
  -A, --account=name          charge job to specified account
      --acctg-freq=<datatype>=<interval> accounting and profiling sampling
                              intervals. Supported datatypes:
      --container             Path to OCI container bundle
  -K, --kill-on-bad-exit      kill the job if any task terminates with a
                              non-zero exit code
      --mem-per-cpu=MB        maximum amount of real memory per allocated
                              cpu required by the job.
                              --mem >= --not-an-option if --mem is specified.
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
                              cores per socket and threads per core.

Help options:
  -h, --help                  show this help message
"""

PYXIS = """\
Options provided by plugins:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
                              filesystem. Can be either a docker image given as
                              an enroot URI, or a path to a squashfs file on the
                              remote host filesystem.

      --container-mounts=SRC:DST[:FLAGS][,SRC:DST...]
                              [pyxis] bind mount[s] inside the container. Mount
                              flags are separated with "+", e.g. "ro+rprivate"

      --container-workdir=PATH
                              [pyxis] working directory inside the container
      --container-name=NAME   [pyxis] name to use for saving and loading the
                              container on the host. Unnamed containers are
                              removed after the slurm task is complete; named
      --container-save=PATH   [pyxis] Save the container state to a squashfs
                              file on the remote host filesystem.
      --container-mount-home  [pyxis] bind mount the user's home directory.

      --no-container-mount-home
                              [pyxis] do not bind mount the user's home
                              directory
      --container-remap-root  [pyxis] ask to be remapped to root inside the
                              container. Does not grant elevated system
      --container-entrypoint  [pyxis] execute the entrypoint from the container
                              image
      --container-entrypoint-log
                              [pyxis] print the output of the entrypoint script
      --container-writable    [pyxis] make the container filesystem writable
      --container-readonly    [pyxis] make the container filesystem read-only

      --container-env=NAME[,NAME...]
                              [pyxis] names of environment variables to override
                              with the host environment and set at the
                              entrypoint.

      --container-unshare=NS[,NS...]
                              [pyxis] create new namespaces for the container.
                              Supported: net, ipc, uts.
"""


def pyxis_without(*options: str) -> str:
    """The help of an older pyxis, which does not have these options."""
    kept, keep = [], True
    for line in PYXIS.splitlines(keepends=True):
        if line.lstrip().startswith("--"):
            keep = line.split()[0].partition("=")[0].lstrip("-") not in options
        if keep:
            kept.append(line)
    return HELP + "".join(kept)
