"""What a Slurm that is carried to a machine takes along, and what it is told there. (It is brought up by hand.)"""

from __future__ import annotations

import ast
import os
import socket
import sys
import tarfile
from pathlib import Path

import pytest

from tests.slurm import cluster, packing
from tests.slurm.accounting import database_options
from tests.slurm.cluster import SlurmCluster, remembered_cluster
from tests.slurm.configuration import Shape, gres_conf, slurm_conf, slurmdbd_conf
from tests.slurm.host import ClusterUnavailable, link_devices, nameless, needs_ipv6
from tests.slurm.packing import is_of_the_c_library, needed_libraries, place, unpack
from tests.slurm.portable import gpu_type, machine_shape, main, memory_mb
from tests.stand_in_site import CHECKOUT

H200S = Shape(
    nodes=1, cpus_per_node=64, gpus_per_node=4, gpu_type="h200", carried=True, real_gpus=True, first_port=9000
)
DIR = Path("/srv/slurm")


# ---- what is taken along -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("usr/bin/sbatch", "bin/sbatch"),
        ("usr/sbin/slurmctld-wlm", "sbin/slurmctld"),
        ("usr/sbin/slurmstepd", "sbin/slurmstepd"),
        ("usr/sbin/slurmdbd", "sbin/slurmdbd"),
        ("usr/sbin/munged", "sbin/munged"),
        ("usr/bin/mariadb-install-db", "bin/mariadb-install-db"),
        ("usr/lib/x86_64-linux-gnu/slurm-wlm/gres_gpu.so", "slurm/gres_gpu.so"),
        ("usr/lib/aarch64-linux-gnu/slurm-wlm/libslurmfull.so", "slurm/libslurmfull.so"),
        ("usr/share/mysql/mysql_system_tables.sql", "share/mysql/mysql_system_tables.sql"),
        ("usr/share/mariadb/english/errmsg.sys", "share/mysql/english/errmsg.sys"),
        ("usr/share/mysql/charsets/Index.xml", "share/mysql/charsets/Index.xml"),
    ],
)
def test_a_program_and_what_it_reads_lie_where_the_other_machine_looks(path: str, target: str) -> None:
    assert place(path) == target


@pytest.mark.parametrize(
    "path",
    [
        "usr/share/man/man1/sbatch.1.gz",
        "usr/share/doc/slurmd/copyright",
        "usr/share/locale/de/LC_MESSAGES/dpkg.mo",
        "usr/share/mysql/german/errmsg.sys",
        "usr/lib/systemd/system/slurmd.service",
        "etc/init.d/munge",
        "usr/bin/mariadb-upgrade",
        "usr/bin/dpkg",
        "usr/sbin/mungekey",
        "usr/lib/x86_64-linux-gnu/libssl.so.3",
        "usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix_v4.so",
    ],
)
def test_what_no_cluster_needs_is_left_out(path: str) -> None:
    assert place(path) is None


@pytest.mark.parametrize(
    "name",
    ["libc.so.6", "libm.so.6", "libmvec.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2"],
)
def test_the_c_library_is_the_machines_own(name: str) -> None:
    assert is_of_the_c_library(name)


@pytest.mark.parametrize("name", ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libnss_files.so.2"])
def test_what_loads_and_configures_the_c_library_stays_with_it(name: str) -> None:
    assert is_of_the_c_library(name)


@pytest.mark.parametrize("name", ["libcrypt.so.1", "libmunge.so.2", "libcap.so.2", "libmd.so.0", "libstdc++.so.6"])
def test_a_library_of_a_like_name_is_not_taken_for_the_c_librarys(name: str) -> None:
    assert not is_of_the_c_library(name)


def test_what_a_needed_library_needs_comes_along_too_and_the_c_library_does_not() -> None:
    needs = {
        "libsystemd.so.0": ["liblzma.so.5", "libc.so.6"],
        "liblzma.so.5": ["libpthread.so.0", "libsystemd.so.0"],
        "libperl.so.5": [],
    }
    assert needed_libraries(["libsystemd.so.0", "libm.so.6"], needs) == ["liblzma.so.5", "libsystemd.so.0"]


def test_a_library_that_no_package_has_is_named_when_it_is_packed_and_not_where_it_is_missed() -> None:
    with pytest.raises(ClusterUnavailable, match=r"libaio\.so\.1 is in none of the packages"):
        needed_libraries(["libdbus.so.1"], {"libdbus.so.1": ["libaio.so.1"]})


def test_an_unpacking_that_was_cut_off_is_not_taken_for_the_programs(tmp_path: Path) -> None:
    file, folder = tmp_path / "slurm.txz", tmp_path / "programs"
    (tmp_path / "sinfo").write_text("x" * 5000)
    with tarfile.open(file, "w:xz") as archive:
        archive.add(tmp_path / "sinfo", arcname="bin/sinfo")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ClusterUnavailable, match=r"slurm\.txz"):
        unpack(file, folder)
    assert not folder.exists()
    file.write_bytes(whole)
    unpack(file, folder)
    assert (folder / "bin/sinfo").stat().st_size == 5000


# ---- what it is told there ---------------------------------------------------------------------------------------


def test_real_gpus_are_counted_by_type_and_by_files_whose_numbers_are_cudas() -> None:
    assert gres_conf(DIR, H200S) == (
        "AutoDetect=off\nNodeName=n[1-1] Name=gpu Type=h200 File=/srv/slurm/dev/nvidia[0-3]\n"
    )
    conf = slurm_conf(DIR, H200S, "gpu-host")
    assert "Gres=gpu:h200:4 " in conf and "CPUs=64 " in conf and "NodeHostname=gpu-host NodeAddr=127.0.0.1 " in conf


def test_memory_of_a_machine_that_grows_is_not_given_out() -> None:
    real, made = (slurm_conf(DIR, shape, "host") for shape in (H200S, Shape()))
    assert "SelectTypeParameters=CR_Core\n" in real and "DefMemPerCPU" not in real
    assert "SelectTypeParameters=CR_Core_Memory\n" in made and "\nDefMemPerCPU=1000\n" in made


def test_daemons_have_minutes_to_answer_beside_a_job_that_takes_the_whole_machine() -> None:
    assert "\nSlurmdTimeout=300\n" in slurm_conf(DIR, H200S, "host")
    assert ",cred_expire=120\n" in slurm_conf(DIR, H200S, "host")
    assert ",cred_expire=30\n" in slurm_conf(DIR, Shape(), "host")


def test_plugins_are_looked_for_among_what_was_carried_and_only_then() -> None:
    for text in (slurm_conf(DIR, H200S, "host"), slurmdbd_conf(DIR, H200S)):
        assert (
            text.endswith("PluginDir=/srv/slurm/programs/slurm\n") or "\nPluginDir=/srv/slurm/programs/slurm\n" in text
        )
    assert "PluginDir" not in slurm_conf(DIR, Shape(), "host") + slurmdbd_conf(DIR, Shape())


def test_both_kinds_of_address_are_asked_for_where_there_is_none_but_the_loopbacks() -> None:
    alone = Shape(nodes=1, carried=True, ipv6=True)
    for text in (slurm_conf(DIR, alone, "host"), slurmdbd_conf(DIR, alone)):
        assert "\nCommunicationParameters=EnableIPv6\n" in text
    assert "CommunicationParameters" not in slurm_conf(DIR, H200S, "host") + slurmdbd_conf(DIR, H200S)


def test_a_machine_without_addresses_is_known_by_how_slurm_would_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*asked: object) -> object:
        assert asked[2] == socket.AF_INET and asked[-1] == socket.AI_ADDRCONFIG
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_answer)
    assert needs_ipv6()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert not needs_ipv6()


def test_a_machine_whose_name_has_no_address_gets_one_with_and_without_its_domain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(name: str) -> str:
        raise socket.gaierror(name)

    monkeypatch.setattr("tests.slurm.host.HOSTS_FILE", tmp_path / "hosts")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-1.site")
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    assert nameless("mine") == ["gpu-1.site", "gpu-1"]
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.1")
    assert nameless("mine") == []
    (tmp_path / "hosts").write_text("127.0.0.1 n1 gpu-1.site gpu-1 # mine\n")
    assert nameless("mine") == ["gpu-1.site", "gpu-1"], "it is only a line of our own that knows it"


def test_the_database_runs_as_root_on_files_that_were_carried() -> None:
    assert database_options(DIR, Shape()) == ("--user=mysql",)
    options = database_options(DIR, H200S)
    assert "--user=root" in options and "--basedir=/srv/slurm/programs" in options


def test_slurms_commands_are_found_first_among_what_was_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert SlurmCluster(DIR, H200S).environment() == {
        "SLURM_CONF": "/srv/slurm/etc/slurm.conf",
        "PATH": "/srv/slurm/programs/bin:/srv/slurm/programs/sbin:/usr/bin",
    }
    assert SlurmCluster(DIR, Shape()).environment() == {"SLURM_CONF": "/srv/slurm/etc/slurm.conf"}


# ---- the machine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Graphics Device", "gpu"),
    ],
)
def test_a_gpus_type_is_the_word_that_profiles_use(name: str, kind: str) -> None:
    assert gpu_type(name) == kind


def test_memory_is_what_the_kernel_says() -> None:
    assert memory_mb("MemTotal:       32871812 kB\nMemFree:         1000 kB\n") == 32101


def _machine(folder: Path, monkeypatch: pytest.MonkeyPatch, *gpus: str) -> None:
    """A machine whose nvidia-smi lists these GPUs; without any it has no nvidia-smi."""
    if gpus:
        (folder / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{gpu}'\n" for gpu in gpus))
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("tests.slurm.portable.gpu_devices", list)


def test_the_machine_is_one_node_with_all_its_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(tmp_path, monkeypatch, "NVIDIA H200", "NVIDIA H200")
    shape = machine_shape("real", accounting=False)
    assert (shape.nodes, shape.gpus_per_node, shape.gpu_type) == (1, 2, "h200")
    assert shape.cpus_per_node == max(os.cpu_count() or 1, 8), "four tasks, as of the scale cpu, always have a place"
    assert shape.real_gpus and shape.carried and not shape.accounting


def test_a_machine_without_gpus_is_told_how_to_have_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(tmp_path, monkeypatch)
    with pytest.raises(ClusterUnavailable, match="--gpus 2 makes two"):
        machine_shape("real", accounting=True)
    made = machine_shape("2", accounting=True)
    assert (made.gpus_per_node, made.real_gpus) == (2, False)


def test_jobs_see_the_numbers_that_cuda_gives_to_a_part_of_a_hosts_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.slurm.host.gpu_devices", lambda: [Path("/dev/nvidia3"), Path("/dev/nvidia5")])
    for _ in range(2):
        link_devices(tmp_path, 2)
    assert {path.name: str(path.readlink()) for path in tmp_path.iterdir()} == {
        "nvidia0": "/dev/nvidia3",
        "nvidia1": "/dev/nvidia5",
    }


def test_a_cluster_that_was_carried_is_remembered_as_one(tmp_path: Path) -> None:
    SlurmCluster(tmp_path, H200S)._make_folders()
    assert remembered_cluster(tmp_path).shape == H200S


def test_no_cluster_no_file_and_a_wrong_number_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"no cluster was brought up in {tmp_path}\n"
    assert main(["up", str(tmp_path / "no.txz"), str(tmp_path / "dir"), "--gpus", "1"]) == 1
    assert "no.txz" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["up", "file", "dir", "--gpus", "all"])


def test_it_runs_on_a_machine_that_has_python_and_nothing_else() -> None:
    left, read = [Path(packing.__file__), Path(packing.__file__).with_name("portable.py")], set()
    while left:
        file = left.pop()
        if file in read:
            continue
        read.add(file)
        for module in _imported(file):
            if module.startswith("tests."):
                left.append(CHECKOUT / Path(*module.split(".")).with_suffix(".py"))
            else:
                assert module.partition(".")[0] in sys.stdlib_module_names, f"{file.name}: {module}"
    assert Path(cluster.__file__) in read


def _imported(file: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "tests.slurm":
            modules |= {f"tests.slurm.{name.name}" for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return modules
