"""Every reason for which squeue says that a job waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.reasons import WaitReason, explain_reason

# All words of job_state_reason.c in releases 20.11, 24.11 and 26.05: limits of each resource ...
THINGS = ("BB", "Billing", "CPU", "Cpu", "Energy", "GRES", "License", "Mem", "Memory", "Node", "Unknown")
LIMITS = """
AssocGrp{} AssocGrp{}Minutes AssocGrp{}RunMinutes AssocMax{}PerJob AssocMax{}PerNode AssocMax{}MinutesPerJob
QOSGrp{} QOSGrp{}Minutes QOSGrp{}RunMinutes QOSMax{}PerJob QOSMax{}PerNode QOSMax{}PerUser QOSMax{}MinutesPerJob
QOSMin{} Max{}PerAccount Max{}RunMinsPerUser Max{}RunMinsPerAccount
"""
# ... and all others.
OTHERS = """
AccountNotAllowed AccountingPolicy AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpCpuLimit
AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocGrpWallLimit
AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxJobsLimit AssocMaxNodePerJobLimit
AssocMaxSubmitJobLimit AssocMaxWallDurationPerJobLimit AssociationJobLimit AssociationResourceLimit
AssociationTimeLimit BadConstraints BeginTime BlockFreeAction BlockMaxError BurstBufferOperation
BurstBufferResources BurstBufferStageIn Cleaning Constraints DeadLine Dependency DependencyNeverSatisfied
FedJobLock FrontEndDown InactiveLimit InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin JobHeldUser
JobHoldMaxRequeue JobLaunchFailure Licenses MaxJobsPerAccount MaxMemPerLimit MaxPoweredUpNodes
MaxSubmitJobsPerAccount MpiPortsBusy NodeDown NonZeroExitCode None NvidiaImexChannels OutOfMemory
PartitionConfig PartitionDown PartitionInactive PartitionNodeLimit PartitionTimeLimit PowerNotAvail
PowerReserved Priority Prolog QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpCpuLimit QOSGrpJobsLimit
QOSGrpMemLimit QOSGrpNodeLimit QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSJobLimit QOSMaxCpuMinutesPerJobLimit
QOSMaxCpuPerJobLimit QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerJobLimit QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit QOSMaxWallDurationPerJobLimit QOSMinCpuNotSatisfied QOSNotAllowed QOSResourceLimit
QOSTimeLimit QOSUsageThreshold RaisedSignal ReqNodeNotAvail Reservation ReservationDeleted ReservationInvalid
Resources SchedDefer SystemFailure TimeLimit
"""
WORDS = [limit.format(thing) for limit in LIMITS.split() for thing in THINGS] + OTHERS.split()


def test_every_reason_that_slurm_has_is_explained() -> None:
    assert [word for word in WORDS if "does not explain" in explain_reason(word).meaning] == []
    for word in WORDS:
        reason = explain_reason(word)
        assert "\n" not in reason.meaning and not reason.meaning.endswith("."), word
        assert reason.kind not in ("never", "held") or reason.hint, f"{word}: somebody must do something: what?"
        assert explain_reason(f" {word.lower()} ") == reason


KINDS = [
    ("", "queue"),
    ("None", "queue"),
    ("Priority", "queue"),
    ("Resources", "queue"),
    ("BeginTime", "queue"),
    ("Licenses", "queue"),
    ("Cleaning", "queue"),
    ("Reservation", "queue"),
    ("JobArrayTaskLimit", "limit"),
    ("AssocGrpGRES", "limit"),
    ("AssocGrpCPUMinutesLimit", "limit"),
    ("AssocMaxJobsLimit", "limit"),
    ("AssocMaxSubmitJobLimit", "limit"),
    ("QOSMaxGRESPerUser", "limit"),
    ("QOSMaxJobsPerUserLimit", "limit"),
    ("MaxGRESPerAccount", "limit"),
    ("MaxGRESRunMinsPerUser", "limit"),
    ("QOSGrpNodeLimit", "limit"),
    ("AssocMaxGRESPerJob", "never"),
    ("AssocMaxWallDurationPerJobLimit", "never"),
    ("QOSMaxWallDurationPerJobLimit", "never"),
    ("QOSMaxNodePerJobLimit", "never"),
    ("QOSMaxCpuPerNode", "never"),
    ("QOSMinGRES", "never"),
    ("QOSMinCpuNotSatisfied", "never"),
    ("MaxMemPerLimit", "never"),
    ("DependencyNeverSatisfied", "never"),
    ("BadConstraints", "never"),
    ("PartitionNodeLimit", "never"),
    ("PartitionTimeLimit", "never"),
    ("InvalidAccount", "never"),
    ("InvalidQOS", "never"),
    ("AccountNotAllowed", "never"),
    ("QOSNotAllowed", "never"),
    ("Dependency", "dependency"),
    ("JobHeldUser", "held"),
    ("JobHeldAdmin", "held"),
    ("BurstBufferOperation", "held"),
    ("burst_buffer/lua: slurm_bb_data_in: no such file", "held"),
    ("launch failed requeued held", "held"),
    ("launch_failed_requeued_held", "held"),
    ("launch failure limit exceeded requeued held", "held"),
    ("MaxRequeueExceeded", "held"),
    ("job requeued in held state", "held"),
    ("job requeued in special exit state", "held"),
    ("Reservation maint was deleted", "held"),
    ("Reservation maint is invalid", "never"),
    ("uid 1000 not in group permitted to use this partition (hi). groups allowed: staff", "never"),
    ("ReqNodeNotAvail", "nodes"),
    ("ReqNodeNotAvail, UnavailableNodes:n1", "nodes"),
    ("ReqNodeNotAvail, Reserved for maintenance", "nodes"),
    ("ReqNodeNotAvail, May be reserved for other job", "nodes"),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "nodes"),
    ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "nodes"),
    ("PartitionDown", "nodes"),
    ("Job is at or exceeds QOS long's group max TRES(gres/gpu) minutes of 100 with 90", "limit"),
    ("Job is at or exceeds association (acc=a/user=b/part=c) max TRES(node) minutes of 5 with 9", "never"),
    ("RaisedSignal:9(Killed)", "unknown"),
    ("NonZeroExitCode", "unknown"),
    ("SomethingNew", "unknown"),
]


def test_a_reason_is_of_its_kind() -> None:
    assert [(text, explain_reason(text).kind) for text, _ in KINDS] == KINDS


def test_who_can_release_a_held_job_is_said() -> None:
    assert "scontrol release" in str(explain_reason("JobHeldUser").hint)
    for only_admin in ("JobHeldAdmin", "JobHoldMaxRequeue", "launch failure limit exceeded requeued held"):
        assert "administrator" in str(explain_reason(only_admin).hint)


def test_a_limit_says_whose_it_is_and_of_what() -> None:
    assert "account" in explain_reason("AssocGrpGRES").meaning and "GPUs" in explain_reason("AssocGrpGRES").meaning
    assert "QOS" in explain_reason("QOSMaxNodePerUserLimit").meaning
    assert "user" in explain_reason("QOSMaxNodePerUserLimit").meaning
    assert "minutes of nodes" in explain_reason("QOSGrpNodeMinutes").meaning
    assert "one job: time" in explain_reason("AssocMaxWallDurationPerJobLimit").meaning


@given(st.text())
def test_no_text_breaks_the_explanation_and_a_new_word_is_repeated(text: str) -> None:
    reason = explain_reason(text)
    assert isinstance(reason, WaitReason)
    if "does not explain" in reason.meaning:
        assert reason.kind == "unknown" and " ".join(text.split()) in reason.meaning
