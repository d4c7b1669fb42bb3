"""Generator of a commented profile from the settings of a Slurm site. Without side effects.

A value that no command reports becomes an open value, `<what to write here>`. An open number is a comment instead,
because a number field cannot contain text.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from orchestrator.clusters.machine import GPUS, named_gpu
from orchestrator.clusters.profile import Architecture
from orchestrator.config.yaml import scalar
from orchestrator.slurm.accounting import Qos
from orchestrator.slurm.nodes import NodeKind, Partition, normalized
from orchestrator.slurm.notation import format_time_limit
from orchestrator.slurm.site import Bound, Choice, Site, choose, ranked
from orchestrator.text import counted, printable_line

_NODES, _PARTITIONS, _CONFIG = "scontrol show node", "scontrol show partition", "scontrol show config"
_ACCOUNTS, _QOS = "sacctmgr show user withassoc", "sacctmgr show qos"

_COMMENT_COLUMN, _LONGEST_LINE = 36, 120
_TIME_LIMIT_S, _MAX_RUNNING = 1800, 4
"""Defaults if the site has none: half an hour, and the default of the profile."""

_PLAIN = re.compile(r"[A-Za-z_]([A-Za-z0-9_.,/ -]*[A-Za-z0-9_])?")
_OTHER_FORM = re.compile(r"\b(pcie|nvl)\b")
_MEMORY = re.compile(r"\b(\d{2,3}) ?gb?\b")
_ONE_MEMORY = {"H200": 141}  # NVIDIA's data sheet, SXM and NVL; other GPUs have several memory sizes


def profile_text(site: Site, name: str, partition: str | None, schema: str) -> str:
    """Return a profile of this site as YAML. It is valid, and can run jobs when its open values are filled in.

    `choose` selects the partition and the kind of nodes, and raises ReproError. `schema` is the path of the JSON
    schema, for editors.
    """
    # Nodes of equal hardware are merged. Features can also be the names of racks or owners.
    partitions = tuple(replace(part, kinds=_merged(part.kinds)) for part in site.partitions)
    choice = choose(replace(site, partitions=partitions), partition)
    parts = (_head(choice, name, schema), _hardware(choice), _site(choice), _slurm(choice), _container(choice))
    texts = ["\n".join(part) for part in parts]
    return "\n\n".join(text for text in texts if text) + "\n"


def _merged(kinds: tuple[NodeKind, ...]) -> tuple[NodeKind, ...]:
    groups: dict[object, list[NodeKind]] = {}
    for kind in kinds:
        # Without a GRES type, features name the GPUs. If no feature is a known GPU, any feature may name the GPU.
        gpu = _gpu_facts(kind) or (kind.features if kind.gpu and not kind.gpu.kind else None)
        key = (kind.cpus, kind.memory_mb, kind.gres, kind.architecture, gpu)
        groups.setdefault(key, []).append(kind)
    merged = []
    for group in groups.values():
        features = group[0].features.intersection(*(kind.features for kind in group))
        merged.append(replace(group[0], count=sum(kind.count for kind in group), features=features))
    return tuple(sorted(merged, key=lambda kind: -kind.count))


def _head(choice: Choice, name: str, schema: str) -> Iterator[str]:
    site = choice.site
    yield f"# yaml-language-server: $schema={printable_line(schema)}"
    yield from _remark(
        f"Settings of {site.cluster_name} (Slurm {site.slurm_version}), as its login node reports them. The comment of "
        "each value names its source: a command, or a default of repro. Replace each <...> in this file; write private "
        "values to the .local.yaml file beside it.",
        indent=0,
    )
    for complaint in site.complaints:
        yield from _remark(f"No answer: {complaint}", indent=0)
    yield f"about: {_yaml(f'{name}, partition {choice.partition.name} of the Slurm cluster {site.cluster_name}')}"
    yield "scheduler: slurm"


def _hardware(choice: Choice) -> Iterator[str]:
    yield "hardware:"
    nodes = choice.kind.count or choice.partition.nodes
    source = f"{_NODES}: {nodes} of this kind" if choice.kind.count else f"{_PARTITIONS}: TotalNodes={nodes}"
    yield from _line("nodes", str(nodes), source)
    yield from _gpus(choice.kind)
    yield "  # nvlink_gb_s: <GB/s of one GPU in one direction inside a node, from its data sheet>"
    yield "  # network_gb_s: <GB/s of one GPU in one direction between nodes>"


def _gpus(kind: NodeKind) -> Iterator[str]:
    facts = _gpu_facts(kind)
    if kind.gpu is None:
        slices = ",".join(map(str, kind.slices))
        reason = f"only MIG slices ({slices}), and a job cannot use two" if slices else "no GPUs"
        yield from _line("gpus_per_node", "1", f"unknown, {_NODES} lists {reason}; correct this line and the next")
        yield from _line("gpu", "<the GPU of these nodes, as nvidia-smi names it, once gpus_per_node is right>")
    else:
        yield from _line("gpus_per_node", str(kind.gpu.count), f"{_NODES}: Gres={kind.gpu}")
        name = facts.name if facts else "<the GPU of these nodes, as nvidia-smi names it>"
        yield from _line("gpu", name, f"{_NODES}: {facts.source}" if facts else "")
    if facts and facts.memory_gb:
        source = "NVIDIA's data sheet" if facts.name in _ONE_MEMORY else f"{_NODES}: {facts.source}"
        yield from _line("gpu_memory_gb", str(facts.memory_gb), source)
    else:
        yield "  # gpu_memory_gb: <memory of one GPU in GB, from its data sheet>"
    if facts:
        peaks = ", ".join(f"{dtype}: {peak:g}" for dtype, peak in GPUS[facts.name].peak_tflops.items())
        others = [f"; {name} has different peaks" for name in GPUS if name.startswith(f"{facts.name} ")]
        yield from _line("peak_tflops", f"{{{peaks}}}", f"dense, NVIDIA's data sheet of {facts.name}{''.join(others)}")
    else:
        yield "  # peak_tflops: <dense peaks from the GPU's data sheet, {bf16: ..., fp16: ..., fp32: ...}>"


def _site(choice: Choice) -> Iterator[str]:
    kind = choice.kind
    architecture = kind.architecture if kind.architecture in get_args(Architecture) else None
    if not kind.cpus and not architecture:
        return
    yield "site:"
    if architecture:
        yield from _line("architecture", architecture, f"{_NODES}: Arch")
    if kind.cpus:
        yield from _line("cpus_per_node", str(kind.cpus), f"{_NODES}: CPUTot")
    yield "  # offline_nodes: true if compute nodes cannot reach a registry"
    yield "  # staging_folder: <a folder for imported images on the shared file system>"


def _slurm(choice: Choice) -> Iterator[str]:
    site, partition = choice.site, choice.partition
    yield "slurm:"
    yield from _account(choice)
    state = "" if partition.is_up else "not up, "
    facts = f"{'the default, ' if partition.is_default else ''}{state}{_described(partition)}"
    yield from _warnings(choice)
    yield from _line("partition", _yaml(partition.name), f"{_PARTITIONS}: {facts}; {_use(choice)}")
    for other in ranked(site):
        if other.partition.name != partition.name:
            yield from _remark(f"another: {other.partition.name}, {_described(other.partition)}; {_use(other)}")
    yield from _qos(choice)
    yield from _constraint(choice)
    if site.reservations:
        yield from _remark(f"reservation: scontrol show reservation lists {', '.join(site.reservations)}")
    yield from _time_limit(choice)
    yield from _resources(choice)
    running, source = choice.bounds.get("jobs", Bound(_MAX_RUNNING, ""))
    if not 0 < running < _MAX_RUNNING:
        yield from _line("max_running", str(_MAX_RUNNING), "repro's default: running jobs of one array")
    else:
        yield from _line("max_running", str(running), f"sacctmgr: {source} allows {counted(running, 'running job')}")
    yield from _mpi(site)


def _warnings(choice: Choice) -> Iterator[str]:
    """Yield what keeps jobs out of the chosen partition, or ends them early."""
    if choice.obstacle:
        yield from _remark(f"Warning: your jobs cannot run in this partition: {choice.obstacle}.")
    elif not choice.has_whole_nodes:
        yield from _remark(f"Warning: your jobs cannot have all GPUs of a node here, only {choice.largest}.")
    if choice.kind.gpu is None and any(part.gpu_nodes for part in choice.site.partitions):
        yield from _remark(
            "Warning: your jobs cannot have GPUs here. The comments on other partitions have the reasons."
        )
    if choice.is_preemptible:
        yield from _remark(f"Warning: your jobs here are {choice.preemption}: Slurm can stop them.")


def _use(choice: Choice) -> str:
    """Return what the user can use of a partition."""
    if choice.obstacle:
        return f"not for you: {choice.obstacle}"
    size = counted(choice.largest, "GPU" if choice.kind.gpu else "node")
    is_worth_it = choice.preemption and (choice.is_preemptible or choice.preemption.partitions)
    return f"{size} for a job of yours{f', {choice.preemption}' if is_worth_it else ''}"


def _account(choice: Choice) -> Iterator[str]:
    site, link = choice.site, choice.association
    if link is not None:
        facts = f"your {'default ' if link.is_default else ''}account{_also(choice.accounts, link.account)}"
        yield from _line("account", _yaml(link.account), f"{_ACCOUNTS}: {facts}")
    elif choice.accounts:
        usable = ", ".join(choice.usable_accounts or choice.accounts)
        yield from _line("account", "<one of your Slurm accounts>", f"{_ACCOUNTS}: {usable}")
    elif site.associations or (site.associations is not None and site.enforces_accounts):
        source = f"{_ACCOUNTS}: no account that this partition accepts"
        yield from _line("account", "<a Slurm account that this partition accepts>", source)
    elif site.enforces_accounts:
        yield from _line("account", "<your Slurm account, as in sacctmgr show user $USER withassoc>")
    else:
        enforced = site.settings.get("AccountingStorageEnforce", "unknown")
        yield from _remark(f"account: not required, {_CONFIG}: AccountingStorageEnforce={enforced}")


def _qos(choice: Choice) -> Iterator[str]:
    name, allowed = choice.qos, choice.allowed_qos
    if name is not None:
        limits, preemption = choice.site.qos_named(name), choice.preemption
        shown_limits = f"; {_QOS}: {_limits(limits)}" if limits else ""
        if preemption and preemption.qos:
            shown_limits += f"; {preemption}"
        value = _yaml(name)
        if choice.kind.gpu and choice.largest and not choice.has_whole_nodes:
            value = f"[{{name: {value}, max_gpus: {choice.largest}}}]"
            shown_limits += f"; {choice.bounds['gres/gpu'].source} allows {counted(choice.largest, 'GPU')}"
        yield from _line("qos", value, f"{_ACCOUNTS}: your QOS{_also(allowed, name)}{shown_limits}")
    elif choice.needs_qos:
        partition, yours = choice.partition, ",".join(allowed) or "none"
        accepted = "all" if partition.allow_qos is None else ",".join(sorted(partition.allow_qos))
        denied = f" except {','.join(sorted(partition.deny_qos))}" if partition.deny_qos else ""
        source = f"{_PARTITIONS}: accepts {accepted}{denied}; {_ACCOUNTS}: your QOS: {yours}"
        yield from _line("qos", "<one of your QOS that this partition accepts>", source)
    elif allowed:
        yield from _remark(f"qos: optional, {_ACCOUNTS}: {', '.join(allowed)}")


def _constraint(choice: Choice) -> Iterator[str]:
    """Yield the feature that keeps jobs off nodes of other kinds which could run them."""
    if not choice.rivals:
        return
    features = sorted(choice.kind.features.difference(*(rival.features for rival in choice.rivals)))
    if features:
        yield from _line("constraint", _yaml(features[0]), f"{_NODES}: other nodes of the partition lack this feature")
    else:
        yield from _remark(f"constraint: {_NODES} lists different nodes for such jobs, and no feature separates them")


def _time_limit(choice: Choice) -> Iterator[str]:
    """Yield the time limits and the node limit. The default time limit is at most the longest allowed."""
    default, longest = choice.partition.default_time_s, choice.longest_s
    wanted = default or _TIME_LIMIT_S
    source = f"{_PARTITIONS}: DefaultTime" if default else "repro's default, the partition has no DefaultTime"
    yield from _line("time_limit", _quoted(format_time_limit(min(wanted, longest or wanted))), source)
    if longest:
        source = f"the lower of MaxTime ({_PARTITIONS}) and MaxWall ({_QOS})"
        yield from _line("max_time", _quoted(format_time_limit(longest)), source)
    if choice.node_limits:
        yield from _line("max_nodes", str(min(choice.node_limits.values())), "; ".join(choice.node_limits))


def _resources(choice: Choice) -> Iterator[str]:
    settings, gpu = choice.site.settings, choice.kind.gpu
    reported = f"{_PARTITIONS}: OverSubscribe=EXCLUSIVE"
    source = reported if choice.partition.is_exclusive else "repro's default: no other jobs on the nodes"
    is_shared = choice.largest and not choice.has_whole_nodes and not choice.partition.is_exclusive
    if is_shared:
        yield from _line("exclusive", "false", f"{_QOS}: its limit of GPUs is below a node")
    else:
        yield from _line("exclusive", "true", source)
    select, parameters = settings.get("SelectType", "unknown"), settings.get("SelectTypeParameters", "")
    if "MEMORY" in parameters.upper() and is_shared:
        yield from _remark("mem: Slurm's default, because jobs share their nodes")
    elif "MEMORY" in parameters.upper():
        yield from _line("mem", '"0"', f"all memory of a node, {_CONFIG}: SelectTypeParameters={parameters}")
    if gpu is None:
        yield from _line("gpu_request", "none", f"{_NODES} lists no GPUs")
        return
    # --gpus-per-node and similar options need cons_tres (Slurm's guide to generic resources).
    style = "gpus-per-node" if "cons_tres" in f"{select},{parameters}".lower() else "gres"
    yield from _line("gpu_request", style, f"{_CONFIG}: SelectType={select}")
    if gpu.kind:
        yield from _line("gres_type", _yaml(gpu.kind), f"{_NODES}: Gres={gpu}")
    if cpus := choice.kind.cpus // gpu.count:
        yield from _line(
            "cpus_per_task", str(cpus), f"{_NODES}: {counted(choice.kind.cpus, 'CPU')} for {counted(gpu.count, 'GPU')}"
        )


def _mpi(site: Site) -> Iterator[str]:
    kinds, default = site.mpi_kinds, site.settings.get("MpiDefault", "")
    if default in kinds:
        yield from _line("mpi", _yaml(default), f"{_CONFIG}: MpiDefault; srun --mpi=list{_also(kinds, default)}")
    elif kinds:
        yield from _remark(f"mpi: optional, srun --mpi=list: {', '.join(kinds)}")


def _container(choice: Choice) -> Iterator[str]:
    versions = choice.site.srun.pyxis_versions
    if versions is None:
        edf = ", but the --environment of CSCS" if "environment" in choice.site.srun.names else ""
        yield from _remark(f"No container: srun --help does not list --container-image of pyxis{edf}.", indent=0)
        return
    oldest, too_new = versions
    yield "container:"
    yield from _remark("To run jobs without containers: container: null in the .local.yaml file.")
    yield from _line("runtime", "pyxis", "srun --help: --container-image")
    newest = f", older than {too_new}" if too_new else ""
    yield from _line("version", _quoted(oldest), f"srun --help: the options of {oldest} or newer{newest}")
    architecture = choice.kind.architecture
    built_for = f", built for {architecture} ({_NODES})" if architecture else ""
    yield from _remark(f"For each image name of an experiment, the file at this site{built_for}, such as")
    yield "  #   nvidia/pytorch:20.12-py3: /path/of/pytorch-20.12.sqsh"
    yield "  images:"
    yield "    pretrain: <an image with torch and megatron-core, a .sqsh file or HOST/NAME:TAG>"
    yield "  # mounts: [<absolute path of a data folder, mounted at the same path>]"


@dataclass(frozen=True, slots=True)
class _GpuFacts:
    name: str
    memory_gb: int | None
    source: str


def _gpu_facts(kind: NodeKind) -> _GpuFacts | None:
    """Return the facts of the GPU that the GRES type names, or a feature without a type; None if uncertain."""
    if kind.gpu is None:
        return None
    texts = [kind.gpu.kind] if kind.gpu.kind else sorted(kind.features)
    # The peaks in GPUS are those of the SXM form.
    names = {text: name for text in texts if (name := named_gpu(text))}
    if len(set(names.values())) != 1:
        return None
    text, name = next(iter(names.items()))
    if any(_OTHER_FORM.search(normalized(text)) for text in texts) and not _OTHER_FORM.search(normalized(name)):
        return None
    # The size in the name of a GH200 is the memory of its CPU.
    sizes = {int(size) for text in names for size in _MEMORY.findall(normalized(text)) if name != "GH200"}
    memory_gb = sizes.pop() if len(sizes) == 1 else _ONE_MEMORY.get(name)
    return _GpuFacts(name, memory_gb, f"Gres={kind.gpu}" if kind.gpu.kind else f"feature {text}")


def _described(partition: Partition) -> str:
    gpus = [f"{kind.count} with {kind.gpu}" for kind in partition.kinds if kind.gpu]
    gpus += [f"{kind.count} with MIG slices" for kind in partition.kinds if kind.slices and not kind.gpu]
    limits = [f"jobs of {partition.max_nodes}"] if partition.max_nodes else []
    limits += [f"up to {format_time_limit(partition.max_time_s)}"] if partition.max_time_s else []
    return ", ".join([counted(partition.nodes, "node"), *gpus, *limits])


def _limits(qos: Qos) -> str:
    what = {"node": "node", "gres/gpu": "GPU", "jobs": "running job", "queue": "queued job"}
    texts = []
    for key, limit in qos.limits.items():
        scope, _, resource = key.partition(" ")
        if resource == "wall":
            texts.append(f"up to {format_time_limit(limit)}")
        elif resource in what or resource.startswith("gres/gpu:"):
            noun = what.get(resource) or f"{resource.removeprefix('gres/gpu:')} GPU"
            texts.append(f"{counted(limit, noun)} per {scope}")
    return ", ".join(sorted(texts)) or "no limits"


def _also(names: Iterable[str], but: str) -> str:
    others = [name for name in names if name != but]
    return f", also {', '.join(others)}" if others else ""


def _line(key: str, value: str, remark: str = "") -> Iterator[str]:
    """Yield a field with its comment after it, or above it if the line would be too long."""
    field, comment = f"  {key}: {value}", f"# {printable_line(remark)}"
    whole = f"{field.ljust(_COMMENT_COLUMN - 2)}  {comment}"
    if not remark:
        yield field
    elif len(whole) <= _LONGEST_LINE:
        yield whole
    else:
        yield from _remark(remark)
        yield field


def _remark(text: str, indent: int = 2) -> Iterator[str]:
    """Yield the text as wrapped comment lines."""
    start = " " * indent + "# "
    width = _LONGEST_LINE - len(start)
    for line in textwrap.wrap(printable_line(text), width, break_long_words=False, break_on_hyphens=False):
        yield start + line


def _yaml(text: str) -> str:
    """Return the text as a YAML scalar, in quotes only if necessary."""
    return text if _PLAIN.fullmatch(text) and scalar(text) == text else _quoted(text)


def _quoted(text: str) -> str:
    """Return the text as a YAML string in quotes; characters that do not print are escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in quoted)
