"""Texts of slurm.conf, gres.conf and slurmdbd.conf for nodes that are all one machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CLUSTER_NAME = "ci"


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the cluster in its configuration. The machine may be much smaller."""

    nodes: int = 4
    cpus_per_node: int = 16
    gpus_per_node: int = 4
    gpu_type: str = "h100"
    memory_mb: int = 256_000
    accounting: bool = True
    carried: bool = False
    """Its programs lie in the folder itself (portable.py unpacked them), and no package is installed."""
    real_gpus: bool = False
    """GPUs are the machine's own. Memory is then not given out to jobs, since some virtual machines begin with little
    of it and grow."""
    ipv6: bool = False
    """Slurm asks for addresses of both families, see `needs_ipv6` of host.py."""
    min_job_age_s: int = 300
    """How long squeue remembers a job that has ended (seconds)."""
    name: str = CLUSTER_NAME
    """ClusterName."""
    database_of: str = ""
    """Folder of the cluster whose munge and slurmdbd this cluster shares; "": its own."""
    shared_accounting_port: int = 0
    """Port of that slurmdbd."""
    most_in_array: int = 1001
    """MaxArraySize."""
    last_job_id: int = 0
    """After it Slurm begins again at 1; 0: as Slurm does."""
    private_jobs: bool = False
    """Users do not see the jobs of others (PrivateData)."""
    first_port: int = 0
    """slurmctld, slurmdbd and the database take the first three ports, the nodes those after; 0: not chosen yet."""

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def is_crowded(self) -> bool:
        """Return whether the machine is too small for daemons that each scan all of its processes."""
        return self.nodes > 32

    @property
    def is_patient(self) -> bool:
        """Return whether daemons get minutes to answer: there are many, or jobs use the whole machine."""
        return self.is_crowded or self.real_gpus

    @property
    def ports_needed(self) -> int:
        return 3 + self.nodes

    @property
    def controller_port(self) -> int:
        return self.first_port

    @property
    def accounting_port(self) -> int:
        return self.shared_accounting_port or self.first_port + 1

    @property
    def database_port(self) -> int:
        return self.first_port + 2


MAIL_PROGRAM = """#!/bin/bash
# Stand-in for mail(1): append a line with the subject and the recipient.
printf '%s\\n' "$*" >>"$(dirname "$0")/../log/mail"
"""


def programs_folder(folder: Path) -> Path:
    """Return the folder of unpacked programs: bin, lib, slurm (plug-ins) and share."""
    return folder / "programs"


def slurm_conf(folder: Path, shape: Shape, hostname: str) -> str:
    """Return slurm.conf. Every path is inside the folder."""
    parts = (_daemons(folder, shape, hostname), _scheduling(shape), _accounting(folder, shape), _nodes(shape, hostname))
    return "".join(parts)


def _daemons(folder: Path, shape: Shape, hostname: str) -> str:
    # cred_expire: a requeued job waits that long before it runs again, and a step launch must finish within it.
    cred_expire_s = 120 if shape.is_patient else 30
    tracking, gathering = ("pgid", "none") if shape.is_crowded else ("linuxproc", "linux")
    return f"""\
ClusterName={shape.name}
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={shape.controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={shape.database_of or folder}/munge/munge.sock,cred_expire={cred_expire_s}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/pid/slurmctld.pid
SlurmdPidFile={folder}/pid/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
PlugStackConfig={folder}/etc/plugstack.conf
MailProg={folder}/etc/mail
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/{gathering}
JobAcctGatherFrequency=task=5
SlurmdParameters=config_overrides
ReturnToService=2
RebootProgram=/bin/true
SlurmctldTimeout=30
SlurmdTimeout=300
KillWait=5
MinJobAge={shape.min_job_age_s}
InactiveLimit=0
Waittime=0
CompleteWait=0
PrivateData={"jobs" if shape.private_jobs else "none"}
{_plugins(folder, shape)}{_addresses(shape)}"""


def _plugins(folder: Path, shape: Shape) -> str:
    """Return the paths of plug-ins. By default programs look for them at their compiled path."""
    return f"PluginDir={programs_folder(folder)}/slurm\n" if shape.carried else ""


def _addresses(shape: Shape) -> str:
    return "CommunicationParameters=EnableIPv6\n" if shape.ipv6 else ""


def _scheduling(shape: Shape) -> str:
    given, default = ("CR_Core", "") if shape.real_gpus else ("CR_Core_Memory", "DefMemPerCPU=1000\n")
    preemption = "preempt/qos" if shape.accounting else "preempt/partition_prio"
    return f"""\
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=5,sched_min_interval=100000,batch_sched_delay=0,requeue_delay=1
SelectType=select/cons_tres
SelectTypeParameters={given}
PriorityType=priority/multifactor
PriorityWeightQOS=10000
PriorityWeightPartition=1000
PreemptType={preemption}
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
MaxJobCount=50000
MaxArraySize={shape.most_in_array}
{_job_ids(shape)}
{default}GresTypes=gpu
JobRequeue=1
EnforcePartLimits=ALL
"""


def _job_ids(shape: Shape) -> str:
    """Return the first and last job id. Jobs of clusters on one machine have other ids, which select their ports."""
    if shape.last_job_id:
        return f"FirstJobId=1\nMaxJobId={shape.last_job_id}"
    return f"FirstJobId={1 + 101 * shape.first_port % 50_000}"


def _accounting(folder: Path, shape: Shape) -> str:
    if not shape.accounting:
        return "AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none\n"
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={shape.accounting_port}
AccountingStoragePass={shape.database_of or folder}/munge/munge.sock
{"" if shape.database_of else "AccountingStorageEnforce=associations,limits,qos"}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment,job_script,job_env
JobCompType=jobcomp/none
"""


def _nodes(shape: Shape, hostname: str) -> str:
    first = shape.first_port + 3
    names = f"n[1-{shape.nodes}]"
    return f"""\
NodeName={names} NodeHostname={hostname} NodeAddr=127.0.0.1 Port=[{first}-{first + shape.nodes - 1}] \
CPUs={shape.cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={shape.cpus_per_node} ThreadsPerCore=1 \
RealMemory={shape.memory_mb} Gres=gpu:{shape.gpu_type}:{shape.gpus_per_node} Feature={shape.gpu_type} State=UNKNOWN
PartitionName=batch Nodes={names} Default=YES MaxTime=04:00:00 DefaultTime=00:30:00 PriorityTier=10 State=UP
PartitionName=short Nodes={names} MaxTime=00:10:00 DefaultTime=00:02:00 MaxNodes=2 PriorityTier=10 State=UP
PartitionName=hi Nodes={names} MaxTime=INFINITE PriorityTier=100 State=UP
PartitionName=lo Nodes={names} MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
"""


def gres_conf(folder: Path, shape: Shape) -> str:
    """Return gres.conf. Each GPU is a file, because without File= a job gets no *_VISIBLE_DEVICES."""
    files = f"{folder}/dev/nvidia[0-{shape.gpus_per_node - 1}]"
    return f"AutoDetect=off\nNodeName=n[1-{shape.nodes}] Name=gpu Type={shape.gpu_type} File={files}\n"


CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
"""cgroup.conf: no plug-in here uses cgroups, but a slurmd that is to find out which version there is wants them."""


def slurmdbd_conf(folder: Path, shape: Shape) -> str:
    """Return slurmdbd.conf. The database is the cluster's, on its own port of the loopback interface."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={shape.accounting_port}
SlurmUser=root
PidFile={folder}/pid/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={shape.database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
{_plugins(folder, shape)}{_addresses(shape)}"""
