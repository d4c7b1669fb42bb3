"""Stand-ins for enroot and apptainer: shell scripts that fetch nothing and say so. What they are told to do stands in
files beside them: `content`, `digest` (none: an enroot before 4.0, which lacks the command), `behave`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.images import render_import
from tests.unit.clusters.sites import cluster_of
from tests.unit.render.plans import TEMPLATES

DIGEST = "sha256:" + "0123456789abcdef" * 4
OTHER_DIGEST = "sha256:" + "fedcba9876543210" * 4
FILE = "team+torch+1@sha256-0123456789ab.sqsh"
NOTHING: Mapping[str, str] = {}
URI = "docker://registry.example#team/torch:1"

_ENROOT = r"""#!/bin/bash
# A stand-in for enroot of the tests: it fetches nothing.
echo "this is a stand-in for enroot and fetches nothing" >&2
here=$(dirname "$0")
printf '%s\n' "$*" >>"$here/called"
printf '%s\n' "${XDG_RUNTIME_DIR-unset}" "$([ -d "${XDG_RUNTIME_DIR-}" ] && echo usable)" >"$here/runtime"
case $1 in
  version) cat "$here/version"; exit ;;
  digest) [ -e "$here/digest" ] || { echo "Usage: enroot COMMAND [ARG...]"; exit 1; } ;;
  import) ;;
  *) exit 1 ;;
esac
command=$1; shift
while [ $# -gt 0 ]; do
  case $1 in
    --help) exit 0 ;;
    --arch) shift 2 ;;
    --output) output=$2; shift 2 ;;
    --) shift; break ;;
    *) echo "what is $1?" >&2; exit 1 ;;
  esac
done
if [ "$command" = digest ]; then cat "$here/digest"; exit; fi
[ ! -e "$output" ] || { echo "[ERROR] File already exists: $output" >&2; exit 1; }
behave=$(cat "$here/behave" 2>/dev/null)
"""

_APPTAINER = r"""#!/bin/bash
# A stand-in for apptainer of the tests: it fetches nothing.
echo "this is a stand-in for apptainer and fetches nothing" >&2
here=$(dirname "$0")
printf '%s\n' "$*" >>"$here/called"
[ "$1" != --version ] || { echo "apptainer version 1.4.0"; exit; }
[ "$1" = pull ] || exit 1
output=$2 behave=$(cat "$here/behave" 2>/dev/null)
"""

# Half of the file is there while it waits; two wait for one another, so that they are at work at once,
# and the second ends later.
_WRITE = r"""
printf 'half of ' >"$output"
case $behave in
  fail) echo "[ERROR] URL https://registry.example/v2/ returned error code: 404 Not Found" >&2; exit 3 ;;
  slow) sleep 1 ;;
  hang) sleep 300 & echo $! >"$here/sleeper"; wait ;;
  meet) echo $$ >>"$here/met"; until [ "$(wc -l <"$here/met")" -ge 2 ]; do sleep 0.01; done
    [ "$SLURM_JOB_ID" != 2 ] || sleep 0.5 ;;
esac
cat "$here/content" >>"$output"
"""


@dataclass(frozen=True)
class StandIn:
    """A folder to stand first on PATH."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, digest: str | None = None) -> StandIn:
        folder.mkdir(parents=True)
        made = cls(folder)
        for name, text in (("enroot", _ENROOT), ("apptainer", _APPTAINER)):
            (folder / name).write_text(text + _WRITE)
            (folder / name).chmod(0o755)
        made.tell(content="an image", version="4.1.2" if digest else "3.4.1", digest=digest)
        return made

    def tell(self, **words: str | None) -> None:
        """Write what it is to do; None takes a word away."""
        for name, word in words.items():
            if word is None:
                (self.folder / name).unlink(missing_ok=True)
            else:
                (self.folder / name).write_text(f"{word}\n")

    @property
    def called(self) -> list[str]:
        file = self.folder / "called"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def imports(self) -> list[str]:
        return [line for line in self.called if line.startswith(("import ", "pull "))]


SITE = """\
about: a cluster with containers
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {bf16: 312}}
slurm: {time_limit: 0:30:00}
container:
  runtime: pyxis
  images: {pretrain: registry.example/team/torch:1}
"""


def profile(folder: Path, staging: str | None = None, site: str = "", text: str = SITE) -> Cluster:
    """SITE with a staging folder, and with more lines of `site:`."""
    lines = [f"staging_folder: {json.dumps(staging or str(folder / 'images'))}", *site.splitlines()]
    return cluster_of(folder, text + "site:\n" + "".join(f"  {line}\n" for line in lines))


@dataclass
class Workshop:
    """A staging folder, a stand-in, and the script of one import."""

    base: Path
    enroot: StandIn
    script: Path
    folder: Path

    @classmethod
    def make(cls, base: Path, cluster: Cluster | None = None, digest: str | None = DIGEST) -> Workshop:
        enroot = StandIn.make(base / "bin", digest)
        made = cls(base, enroot, base / "import.sh", base / "job")
        cluster = cluster or profile(base)
        made.script.write_text(render_import(cluster, "pretrain", made.folder, TEMPLATES), encoding="utf-8")
        return made

    @property
    def staging(self) -> Path:
        return self.base / "images"

    @property
    def used(self) -> Path:
        return self.staging / "team+torch+1.sqsh"

    def start(self, variables: Mapping[str, str] = NOTHING) -> subprocess.Popen[str]:
        bare = {"PATH": f"{self.enroot.folder}:/usr/bin:/bin", "HOME": str(self.base), **variables}
        pipe = subprocess.PIPE
        return subprocess.Popen(["bash", self.script], env=bare, cwd=self.base, stdout=pipe, stderr=pipe, text=True)

    def run(self, variables: Mapping[str, str] = NOTHING, expected: int = 0) -> str:
        """Returns what it said on stderr."""
        process = self.start(variables)
        _, said = process.communicate(timeout=600)
        assert process.returncode == expected, said
        return said

    def names(self) -> list[str]:
        return sorted(path.name for path in self.staging.iterdir())

    def record(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(Path(f"{self.used.resolve()}.json").read_text())
        return found
