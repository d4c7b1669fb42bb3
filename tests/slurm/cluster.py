"""Real Slurm on one Debian or Ubuntu machine, as root, without systemd and cgroups.

By hand:
    python -m tests.slurm.cluster up DIR [--nodes N] [--gpus N] [--no-accounting]   # prints `export SLURM_CONF=...`
    python -m tests.slurm.cluster down DIR

portable.py runs it without packages and network, with the machine's own GPUs. All files are in DIR, except lines of
/etc/hosts that name the nodes and are marked with DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.slurm import accounting
from tests.slurm.configuration import CGROUP_CONF, MAIL_PROGRAM, Shape, gres_conf, programs_folder, slurm_conf
from tests.slurm.host import (
    ClusterUnavailable,
    Daemon,
    end_processes,
    free_ports,
    install_packages,
    link_devices,
    make_device,
    name_hosts,
    nameless,
    own_name,
    parent_of,
    processes_with,
    require_root,
    require_root_on_debian,
    run,
)
from tests.slurm.pyxis import Pyxis, build_pyxis, plugstack_conf, pyxis_records
from tests.waiting import wait_until

_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
_FOLDERS = ("etc", "log", "pid", "spool", "state", "munge", "dev")
_UP_STATES = ("idle", "mix", "alloc", "comp", "drain", "drng")
"""A drained node counts as up: somebody wanted that."""
_REMEMBERED = "cluster.json"
_LONGEST_FOLDER = 80
"""Characters: a Unix socket's whole path is limited to 107."""


@dataclass
class SlurmCluster:
    """A cluster in one folder. `up` and `down` can be called repeatedly, from any process."""

    folder: Path
    shape: Shape = field(default_factory=Shape)

    @property
    def conf(self) -> Path:
        return self.folder / "etc/slurm.conf"

    @property
    def node_names(self) -> tuple[str, ...]:
        return self.shape.node_names

    def environment(self) -> dict[str, str]:
        """Return the variables that make Slurm's commands use this cluster."""
        tree = programs_folder(self.folder)
        path = {"PATH": f"{tree}/bin:{tree}/sbin:{os.environ.get('PATH', os.defpath)}"} if self.shape.carried else {}
        return {"SLURM_CONF": str(self.conf), **path}

    def run(self, *argv: str, timeout_s: float = 600.0) -> str:
        """Run a Slurm command on this cluster and return its stripped stdout. ClusterUnavailable if it fails."""
        return run(argv, env=self._env(), timeout_s=timeout_s).stdout.strip()

    # ---- up and down -----------------------------------------------------------------------------------------

    def up(self) -> None:
        """Install, configure and start what does not run yet. Return when every node is idle or busy.

        Raise ClusterUnavailable with a reason of one line if this fails.
        """
        try:
            self._install_and_start()
        except TimeoutError as reason:
            raise ClusterUnavailable(str(reason)) from None
        if self not in _UP:
            _UP.append(self)

    def _install_and_start(self) -> None:
        (require_root if self.shape.carried else require_root_on_debian)()
        if len(str(self.folder)) > _LONGEST_FOLDER:
            raise ClusterUnavailable(f"the folder's name is longer than {_LONGEST_FOLDER} characters: {self.folder}")
        if not self.shape.carried:
            install_packages([*_PACKAGES, *(_ACCOUNTING_PACKAGES if self.shape.accounting else ())])
        self._make_folders()
        self._start_munge()
        changed = self._write_configuration()
        name_hosts([*self.node_names, *nameless(self._hosts_tag)], self._hosts_tag)
        if self.shape.database_of:
            accounting.register_cluster(self.shape.name, self._env())
        elif self.shape.accounting:
            self.start_accounting()
        was_running = self._controller.pid() is not None
        self.start_controller()
        if was_running and changed:
            self.run("scontrol", "reconfigure")
        if self.shape.accounting and not self.shape.database_of:
            accounting.make_accounts(self._env())
        self._start_nodes(self.node_names)

    def down(self) -> None:
        """End every process of this cluster and remove its lines from /etc/hosts. The folder remains."""
        if self in _UP:
            _UP.remove(self)
        self._end_jobs()
        for name in self.node_names:
            self._node(name).kill()
        end_processes(pid for name in self.node_names for pid in self._processes_of(name))
        self._controller.stop()
        accounting.slurmdbd(self.folder).stop()
        accounting.database(self.folder).stop(patience_s=30)
        Daemon("munged", self.folder / "pid/munged.pid").stop(patience_s=5)
        name_hosts((), self._hosts_tag)

    # ---- pyxis -----------------------------------------------------------------------------------------------

    @property
    def pyxis_records(self) -> list[dict[str, Any]]:
        """Return the records of the pyxis stand-in: one per step in a container and node."""
        return pyxis_records(self.folder)

    @contextlib.contextmanager
    def pyxis(self, pyxis: Pyxis) -> Iterator[None]:
        """Give the cluster this pyxis inside the block."""
        conf = self.folder / "etc/plugstack.conf"
        before = conf.read_text()
        conf.write_text(plugstack_conf(self.folder, pyxis))
        try:
            yield
        finally:
            conf.write_text(before)

    # ---- faults ------------------------------------------------------------------------------------------------

    def kill_node(self, name: str) -> None:
        """Kill slurmd and all processes of the node, as a power failure does.

        slurmctld notices it after SlurmdTimeout (300 s). `start_node` starts the node again.
        """
        self._node(name).kill()
        end_processes(self._processes_of(name))

    def start_node(self, name: str) -> None:
        """Start the slurmd of a killed node, and wait until Slurm uses the node again."""
        self._start_nodes([name])

    def set_node(self, name: str, state: str, reason: str = "test") -> None:
        """Run `scontrol update` for the node: drain, down (its jobs end in NODE_FAIL at once), resume, ...

        A running node that was set down may come back by itself. Resuming it then is no error.
        """
        try:
            self.run("scontrol", "update", f"nodename={name}", f"state={state}", f"reason={reason}")
        except ClusterUnavailable:
            if state.lower() != "resume" or not self._in_use([name], ("idle", "mix", "alloc", "comp")):
                raise

    def stop_controller(self) -> None:
        """Stop slurmctld. Jobs continue; commands fail with "Unable to contact slurm controller" after 9 s."""
        self._controller.stop()

    def start_controller(self) -> None:
        """Start slurmctld unless it runs, and wait until it answers."""
        if self._controller.pid() is None:
            run(["slurmctld"], env=self._env())
        wait_until(lambda: self._says("UP", "scontrol", "ping"), what="slurmctld answers")

    def lose_state(self) -> None:
        """Remove the state of slurmctld: it forgets every job and reuses the ids."""
        self._controller.stop()
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir(mode=0o755)
        self.start_controller()
        self._start_nodes(self.node_names)

    def stop_accounting(self) -> None:
        """Stop slurmdbd. The queue continues; sacct fails."""
        accounting.slurmdbd(self.folder).stop()

    def start_accounting(self) -> None:
        """Start the database and slurmdbd unless they run, and wait until slurmdbd answers."""
        accounting.start_database(self.folder, self.shape, self._env())
        accounting.start_slurmdbd(self.folder, self.shape, self._env())

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        """Stop slurmctld inside the block, and start it after the block.

        Clients with SLURM_CONF of this process give up after 3 s instead of Slurm's 9 s.
        """
        self.stop_controller()
        impatient = self.conf.with_name("impatient.conf")
        impatient.write_text(self.conf.read_text() + "MessageTimeout=4\n")
        before = os.environ.get("SLURM_CONF")
        try:
            if before == str(self.conf):
                os.environ["SLURM_CONF"] = str(impatient)
            yield
        finally:
            if before == str(self.conf):
                os.environ["SLURM_CONF"] = before
            self.start_controller()

    @contextlib.contextmanager
    def without_accounting(self) -> Iterator[None]:
        """Stop slurmdbd inside the block, and start it after the block."""
        self.stop_accounting()
        try:
            yield
        finally:
            self.start_accounting()

    def crashed_daemons(self) -> list[str]:
        """Return the daemons that have a pid file and no process. A stopped daemon has no pid file."""
        daemons = {"slurmctld": self._controller} | {f"slurmd of {name}": self._node(name) for name in self.node_names}
        return [name for name, daemon in daemons.items() if daemon.pid_file.exists() and daemon.pid() is None]

    # ---- parts -----------------------------------------------------------------------------------------------

    @property
    def _controller(self) -> Daemon:
        return Daemon("slurmctld", self.folder / "pid/slurmctld.pid")

    @property
    def _hosts_tag(self) -> str:
        return f"slurm test cluster {self.folder}"

    def _node(self, name: str) -> Daemon:
        return Daemon("slurmd", self.folder / f"pid/slurmd.{name}.pid")

    def _env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, **self.environment(), "LC_ALL": "C"}

    def _says(self, word: str, *argv: str) -> bool:
        asked = subprocess.run(argv, env=self._env(), capture_output=True, text=True, check=False, timeout=600)
        return word in asked.stdout.split()

    def _make_folders(self) -> None:
        """Create the folders, and store shape and ports for later processes."""
        for name in ("", *_FOLDERS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            (self.folder / name).chmod(0o755)
        file = self.folder / _REMEMBERED
        if file.exists():
            before = remembered_cluster(self.folder).shape
            if dataclasses.replace(self.shape, first_port=before.first_port) != before:
                raise ClusterUnavailable(f"{self.folder} holds a cluster of another shape; take another folder")
            self.shape = before
        elif not self.shape.first_port:
            self.shape = dataclasses.replace(self.shape, first_port=free_ports(self.shape.ports_needed))
        file.write_text(json.dumps(dataclasses.asdict(self.shape)))

    def _start_munge(self) -> None:
        munged = Daemon("munged", self.folder / "pid/munged.pid")
        home = self.folder / "munge"
        if munged.pid() is None:
            key = home / "munge.key"
            if not key.exists():
                key.write_bytes(os.urandom(128))
                key.chmod(0o400)
            places = (f"--key-file={key}", f"--socket={home}/munge.sock", f"--seed-file={home}/munged.seed")
            log = f"--log-file={self.folder}/log/munged.log"
            command = ["munged", "--force", *places, log, f"--pid-file={munged.pid_file}", "--num-threads=10"]
            run(command, env=self._env())
        wait_until((home / "munge.sock").exists, what="munged starts")

    def _write_configuration(self) -> bool:
        """Write the configuration. Return whether slurm.conf has changed."""
        if self.shape.real_gpus:
            link_devices(self.folder / "dev", self.shape.gpus_per_node)
        else:
            for gpu in range(self.shape.gpus_per_node):
                make_device(self.folder / f"dev/nvidia{gpu}")
        etc = self.folder / "etc"
        if self.shape.carried:
            (etc / "plugstack.conf").write_text("")
            (etc / "cgroup.conf").write_text(CGROUP_CONF)
        else:
            build_pyxis(self.folder)
            (etc / "plugstack.conf").write_text(plugstack_conf(self.folder))
        (etc / "gres.conf").write_text(gres_conf(self.folder, self.shape))
        (etc / "mail").write_text(MAIL_PROGRAM)
        (etc / "mail").chmod(0o755)
        text = slurm_conf(self.folder, self.shape, own_name())
        changed = not self.conf.exists() or self.conf.read_text() != text
        self.conf.write_text(text)
        return changed

    def _start_nodes(self, names: Sequence[str]) -> None:
        # slurmd looks for slurmstepd at its compiled path by default.
        stepd = ["-d", str(programs_folder(self.folder) / "sbin/slurmstepd")] if self.shape.carried else []
        starting = []
        for name in names:
            if self._node(name).pid() is None:
                (self.folder / "spool" / name).mkdir(exist_ok=True)
                command = ["slurmd", "-N", name, *stepd]
                starting.append(subprocess.Popen(command, env=self._env(), stdin=subprocess.DEVNULL))
        for process in starting:
            process.wait(timeout=600)
        wait_until(lambda: self._in_use(names), what=f"the nodes {', '.join(names)} are up")

    def _in_use(self, names: Sequence[str], good: Sequence[str] = _UP_STATES) -> bool:
        """Return whether all these nodes answer and are in one of these states."""
        rows = self.run("sinfo", "-h", "-N", "-p", "batch", "-n", ",".join(names), "-o", "%N %t").splitlines()
        return len(rows) == len(names) and all(row.split()[1] in good for row in rows)

    def _processes_of(self, node: str) -> list[int]:
        """Return the processes of the jobs on a node, and their slurmstepd."""
        pids = set(processes_with({"SLURMD_NODENAME": node, "SLURM_CONF": str(self.conf)}))
        above = {parent for parent, program in map(parent_of, pids) if program == "slurmstepd"}
        return sorted(pids | above)

    def _end_jobs(self) -> None:
        """Cancel running jobs, so that none outlives the cluster. Ignore an unreachable controller."""
        if self._controller.pid() is None:
            return
        with contextlib.suppress(ClusterUnavailable, subprocess.TimeoutExpired):
            if jobs := set(self.run("squeue", "-h", "-o", "%A", timeout_s=5).split()):
                self.run("scancel", *jobs, timeout_s=5)
            end = time.monotonic() + 3
            while time.monotonic() < end and self.run("squeue", "-h", "-t", "running,completing", timeout_s=5):
                time.sleep(0.1)


_UP: list[SlurmCluster] = []
"""Clusters that this process has started and not ended."""


def crashed_daemons() -> list[str]:
    """Return the crashed daemons of all clusters of this process."""
    return [name for cluster in _UP for name in cluster.crashed_daemons()]


def remembered_cluster(folder: Path) -> SlurmCluster:
    """Return the cluster of this folder. ClusterUnavailable if there is none."""
    file = folder / _REMEMBERED
    if not file.exists():
        raise ClusterUnavailable(f"no cluster was brought up in {folder}")
    return SlurmCluster(folder, Shape(**json.loads(file.read_text())))


def main(argv: list[str] | None = None) -> int:
    """Run `up DIR` or `down DIR`."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.cluster", description="A real Slurm on this machine.")
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("folder", type=lambda text: Path(text).resolve(), metavar="DIR")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=4, help="fake GPUs of each node")
    parser.add_argument("--no-accounting", action="store_true", help="no slurmdbd: sacct says it is disabled")
    asked = parser.parse_args(argv)
    shape = Shape(nodes=asked.nodes, gpus_per_node=asked.gpus, accounting=not asked.no_accounting)
    try:
        if asked.verb == "down":
            remembered_cluster(asked.folder).down()
        else:
            cluster = SlurmCluster(asked.folder, shape)
            cluster.up()
            print(f"export SLURM_CONF={cluster.conf}")
    except ClusterUnavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
