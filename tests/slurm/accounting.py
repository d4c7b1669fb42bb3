"""Accounting of the test cluster: MariaDB, slurmdbd, and accounts, users and QOS."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.slurm.configuration import CLUSTER_NAME, Shape, programs_folder, slurmdbd_conf
from tests.slurm.host import ClusterUnavailable, Daemon, run
from tests.waiting import wait_until

OTHER_USER = "nobody"
"""A user besides root who may submit."""

_RIGHTS = """
CREATE DATABASE IF NOT EXISTS slurm_acct;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct.* TO 'slurm'@'127.0.0.1';
"""

_INSTALL_OPTIONS = ("--no-defaults", "--auth-root-authentication-method=socket", "--skip-test-db")
_SERVER_OPTIONS = (
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--performance-schema=off",
    "--innodb-buffer-pool-size=128M",
    "--innodb-lock-wait-timeout=900",
    "--innodb-flush-log-at-trx-commit=0",
)

# After slurmctld, which registers the gres/gpu TRES that an account's limit names.
_ACCOUNTS = (
    "add account research Description=research Organization=org",
    "add account small Description=small Organization=org MaxJobs=2 GrpTRES=gres/gpu=16",
    "modify qos normal set Priority=100",
    "add qos low Priority=1 PreemptMode=requeue GraceTime=10",
    "add qos high Priority=1000 Preempt=low,normal",
    "add qos limited MaxTRESPerJob=node=2 MaxSubmitJobsPerUser=3 Flags=DenyOnLimit",
    "add user root Account=research,small DefaultAccount=research QOS=normal,low,high,limited DefaultQOS=normal",
    f"add user {OTHER_USER} Account=research DefaultAccount=research QOS=normal,low,high DefaultQOS=normal",
)


def database(folder: Path) -> Daemon:
    """Return the MariaDB server of the cluster in this folder."""
    return Daemon("mariadbd", folder / "pid/mariadbd.pid")


def slurmdbd(folder: Path) -> Daemon:
    """Return the slurmdbd of the cluster in this folder."""
    return Daemon("slurmdbd", folder / "pid/slurmdbd.pid")


def start_database(folder: Path, shape: Shape, env: dict[str, str]) -> None:
    """Start the database and create it on first use. Return when slurmdbd's user exists in it."""
    if database(folder).pid() is not None:
        return
    data, sockets, log = folder / "mysql", folder / "mysqlrun", folder / "log/mariadbd.log"
    # A server that starts removes the temporary tables of other servers from a shared folder.
    temporary = folder / "mysqltmp"
    for owned in (data, sockets, temporary):
        owned.mkdir(exist_ok=True)
        if not shape.carried:
            shutil.chown(owned, "mysql", "mysql")
    options = (*database_options(folder, shape), f"--datadir={data}", f"--tmpdir={temporary}")
    if not (data / "mysql").is_dir():
        # --force: works with any host name, also one without an address.
        run(["mariadb-install-db", *_INSTALL_OPTIONS, *options, "--force"], env=env, timeout_s=600)
    connections = (f"--socket={sockets}/my.sock", f"--port={shape.database_port}")
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["mariadbd", *_SERVER_OPTIONS, *options, *connections],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (folder / "pid/mariadbd.pid").write_text(str(process.pid))
    client = ["mariadb", "--no-defaults", "-S", str(sockets / "my.sock"), "-e"]
    wait_until(lambda: _succeeds([*client, "SELECT 1"], env), what="mariadbd answers")
    run([*client, _RIGHTS], env=env)


def database_options(folder: Path, shape: Shape) -> tuple[str, ...]:
    """Return MariaDB's options: its user, the paths of unpacked files, and no asynchronous I/O."""
    if not shape.carried:
        return ("--user=mysql",)
    tree = programs_folder(folder)
    messages, charsets = f"{tree}/share/mysql", f"{tree}/share/mysql/charsets"
    places = (f"--basedir={tree}", f"--lc-messages-dir={messages}", f"--character-sets-dir={charsets}")
    return ("--user=root", *places, "--innodb-use-native-aio=off")


def start_slurmdbd(folder: Path, shape: Shape, env: dict[str, str]) -> None:
    """Start slurmdbd and wait until it lists the cluster."""
    if slurmdbd(folder).pid() is None:
        conf = folder / "etc/slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.chmod(0o600)
        conf.write_text(slurmdbd_conf(folder, shape))
        run(["slurmdbd"], env=env)
    wait_until(lambda: _succeeds(["sacctmgr", "-n", "show", "cluster"], env), what="slurmdbd answers")
    register_cluster(CLUSTER_NAME, env)


def register_cluster(name: str, env: dict[str, str]) -> None:
    """Add a cluster to the database unless it has it."""
    clusters = run(["sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"], env=env).stdout.split()
    if name not in clusters:
        run(["sacctmgr", "-i", "-Q", "add", "cluster", name], env=env)


def make_accounts(env: dict[str, str]) -> None:
    """Create accounts and QOS.

    Accounts research and small; QOS normal, low, high (preempts) and limited (2 nodes, 3 jobs, then refused).
    """

    def gpus_are_counted() -> bool:
        return "gres|gpu" in run(["sacctmgr", "-n", "-P", "show", "tres", "format=type,name"], env=env).stdout.split()

    if run(["sacctmgr", "-n", "-P", "show", "user", OTHER_USER], env=env).stdout.strip():
        return
    wait_until(gpus_are_counted, what="slurmctld registers its GPUs with slurmdbd")
    for line in _ACCOUNTS:
        # After an interrupted first start some of them exist, and sacctmgr fails with that message.
        with contextlib.suppress(ClusterUnavailable):
            run(["sacctmgr", "-i", "-Q", *line.split()], env=env)
    if not run(["sacctmgr", "-n", "-P", "show", "user", OTHER_USER], env=env).stdout.strip():
        raise ClusterUnavailable("sacctmgr did not make the accounts")


def _succeeds(argv: list[str], env: dict[str, str]) -> bool:
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=False, timeout=600)
    return done.returncode == 0
