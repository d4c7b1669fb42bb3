"""Stand-ins for Slurm's commands, first on PATH: what sbatch takes is in a file, and squeue shows it.

What sbatch does next is a word in a file of them, one for each call; when there are none it takes the job, as far as
there is room. squeue has such a file, too. Nothing is ever run.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.slurm.notation import ACCOUNTING_FIELDS, QUEUE_FIELDS, SEPARATOR

_SBATCH = r"""#!/bin/bash
here=$(dirname "$0")
options=()
for word in "${@:2}"; do [[ $word != --* ]] || options+=("$word"); done
printf '%s\n' "${options[*]}" >>"$here/calls"
jobs=1 comment= list=
for word in "$@"; do
  case $word in
    --comment=*) comment=${word#*=} ;;
    --array=*)
      jobs=0 list=${word#*=}
      for span in $(tr , ' ' <<<"${list%\%*}"); do jobs=$((jobs + ${span#*-} - ${span%-*} + 1)); done ;;
  esac
done
take() {
  local id
  id=$(($(<"$here/first") + $(wc -l <"$here/queue")))
  echo "$id $comment ${list%%%*}" >>"$here/queue"
  echo $(($(<"$here/room") - jobs)) >"$here/room"
  [ $# -gt 0 ] || echo "$id$(<"$here/accepting")"
}
fail() {
  echo "sbatch: error: Batch job submission failed: $1" >&2
  exit 1
}
behave=$(head -n 1 "$here/next")
sed -i 1d "$here/next"
case $behave in
  late) take quietly; fail 'Socket timed out on send/recv operation' ;;
  twice) take quietly; take quietly; fail 'Socket timed out on send/recv operation' ;;
  away) fail 'Socket timed out on send/recv operation' ;;
  both) take quietly ;;
  refuse) fail 'Invalid partition name specified' ;;
esac
if [ "$jobs" -gt "$(<"$here/room")" ]; then
  echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
  fail "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
fi
take
"""

_SHOWN = {
    "JobArrayID": "$id${list:+_[$list]}",
    "State": "PENDING",
    "TimeLimit": "0:10:00",
    "UserName": "$(id -un)",
    "Comment": "$comment",
}
_SQUEUE = r"""#!/bin/bash
here=$(dirname "$0")
[ ! -e "$here/silent" ] || { echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1; }
behave=$(head -n 1 "$here/answers")
sed -i 1d "$here/answers"
[ "$behave" != silent ] || { echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1; }
echo "HEADER"
[ "$behave" != empty ] || exit 0
while read -r id comment list; do
  echo "ROW"
done <"$here/queue"
""".replace("HEADER", SEPARATOR.join(["JOBID", *QUEUE_FIELDS[1:]])).replace(
    "ROW", SEPARATOR.join(_SHOWN.get(name, "0") for name in QUEUE_FIELDS)
)

_SCONTROL = """#!/bin/bash
cluster=tests
[[ $1 != --clusters=* ]] || cluster=${1#*=}
[ "$cluster" != unknown ] || cluster=tests
case $* in
  *config*)
    echo 'MaxArraySize            = 1001'
    echo 'AccountingStoreFlags    = job_comment'
    echo "ClusterName             = $cluster"
    echo 'SlurmctldHost[0]        = c1(127.0.0.1)'
    echo 'SlurmctldPort           = 6817' ;;
  *'show node'*) cat "$(dirname "$0")/nodes" ;;
  *) echo 'Slurmctld(primary) at c1 is UP' ;;
esac
"""

_SCANCEL = """#!/bin/bash
printf '%s\\n' "$*" >>"$(dirname "$0")/cancelled"
"""

PROFILE = """\
about: a cluster of the tests
scheduler: slurm
hardware: {nodes: 1, gpus_per_node: 4}
slurm: {time_limit: "0:10:00", max_running: 4}
"""


@dataclass(frozen=True)
class Slurm:
    """`folder` is what is first on PATH."""

    folder: Path

    @classmethod
    def on_path(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
        folder.mkdir()
        programs = {
            "sbatch": _SBATCH,
            "squeue": _SQUEUE,
            "scontrol": _SCONTROL,
            "scancel": _SCANCEL,
            "sacct": f"#!/bin/sh\necho '{SEPARATOR.join(ACCOUNTING_FIELDS)}'\n",
        }
        for name, text in programs.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        for name in ("calls", "queue", "next", "answers", "nodes", "accepting"):
            (folder / name).touch()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        slurm = cls(folder)
        slurm.has_room_for(1000)
        slurm.counts_from(100)
        return slurm

    def counts_from(self, job_id: int) -> None:
        """The first job gets this id."""
        (self.folder / "first").write_text(f"{job_id}\n")

    def accepts_on(self, cluster: str) -> None:
        """sbatch prints the name of this cluster with each id. No Slurm answers for the name `unknown`."""
        (self.folder / "accepting").write_text(f";{cluster}")

    def has_room_for(self, jobs: int) -> None:
        (self.folder / "room").write_text(f"{jobs}\n")

    def has_nodes(self, *names: str) -> None:
        """Nodes that scontrol shows; at first it shows none."""
        (self.folder / "nodes").write_text("".join(f"NodeName={name} Partitions=batch\n" for name in names))

    def then(self, *words: str) -> None:
        """What the next calls of sbatch do: late, twice, away, refuse, take, or both, the call before and this one."""
        (self.folder / "next").write_text("".join(f"{word}\n" for word in words))

    def then_lists(self, *words: str) -> None:
        """What the next calls of squeue do: silent, empty, or all."""
        (self.folder / "answers").write_text("".join(f"{word}\n" for word in words))

    def calls(self) -> list[str]:
        """sbatch's words of each call, but the first and the last, which are always --parsable and the file."""
        return (self.folder / "calls").read_text().splitlines()

    def options(self) -> list[str]:
        """The same without the comment."""
        return [re.sub(r"^--comment=\S+ ?", "", call) for call in self.calls()]

    def comments(self) -> list[str]:
        return [call.split(" ")[0].removeprefix("--comment=") for call in self.calls()]

    def taken(self) -> list[str]:
        """Comments of what is in the queue, in the order of their ids, which begin with 100."""
        return [line.split()[1] for line in (self.folder / "queue").read_text().splitlines()]

    def cancelled(self) -> list[str]:
        file = self.folder / "cancelled"
        return file.read_text().split() if file.exists() else []
