"""The images of a profile: what is there, what an import is refused, and the jobs that wait for one."""

from __future__ import annotations

import getpass
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.clusters.program import file_identity, image_rows
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError, require_none
from orchestrator.launch.images import render_import, wanted_images
from orchestrator.launch.preflight import image_problems, image_warnings
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import CHECKOUT, cluster_of, short
from tests.unit.launch.enroot import DIGEST, FILE, OTHER_DIGEST, SITE, StandIn, Workshop, profile
from tests.unit.render.plans import TEMPLATES, plans

pytestmark = pytest.mark.slow

# ---- before anything is submitted --------------------------------------------------------------------------------


def refused(cluster: Cluster, *names: str, again: bool = False) -> list[str]:
    with pytest.raises(ReproError) as error:
        wanted_images(cluster, names, again)
    return [short(problem) for problem in error.value.problems]


IMAGES = "images: {pretrain: registry.example/team/torch:1}"


def with_images(images: str) -> str:
    return SITE.replace(IMAGES, f"images: {images}")


def test_all_that_is_wrong_with_the_names_is_said_at_once(tmp_path: Path) -> None:
    text = with_images("{pretrain: registry.example/a:1, kept: /images/x.sqsh, blank: <the image>}")
    assert refused(profile(tmp_path, text=text), "kept", "blank", "pretrian", "pretrain") == [
        "site.yaml:7:44 kept is already a file, /images/x.sqsh: nothing to import",
        "site.yaml:7:66 container.images.blank: not filled in, <the image>. Hint: set it in site.local.yaml",
        'pretrian: site has no such image. Did you mean "pretrain"?',
    ]


def test_a_site_without_a_staging_folder_is_told_where_to_write_one_and_what_else_is_open(tmp_path: Path) -> None:
    text = SITE.replace("time_limit: 0:30:00", "time_limit: 0:30:00, account: <yours>")
    open_one, folder = refused(cluster_of(tmp_path, text, overlay="about: ours"))
    assert open_one.startswith("site.yaml:4:") and "slurm.account: not filled in, <yours>" in open_one
    assert folder == (
        "site has no folder for imported images. "
        "Hint: add site: {staging_folder: /...}, a folder that every node sees, to site.local.yaml"
    )
    (blank,) = refused(profile(tmp_path, "<a folder>"))
    assert "site.staging_folder: not filled in, <a folder>" in blank


@pytest.mark.parametrize(("runtime", "command"), [("shifter", "shifterimg pull"), ("podman-hpc", "podman-hpc pull")])
def test_a_runtime_with_a_store_of_its_own_is_told_what_to_type(tmp_path: Path, runtime: str, command: str) -> None:
    cluster = profile(tmp_path, text=SITE.replace("pyxis", runtime))
    assert refused(cluster) == [
        f"site.yaml:7:12 pretrain: {runtime} stores images itself. Hint: type: {command} registry.example/team/torch:1"
    ]
    (row,) = image_rows(cluster)
    assert (row.source, row.there) == ("registry.example/team/torch:1", None)


def test_two_registries_images_of_one_name_would_be_one_file_and_are_refused(tmp_path: Path) -> None:
    cluster = profile(tmp_path, text=with_images("{a: one.example/team/torch:1, b: two.example/team/torch:1}"))
    (problem,) = refused(cluster)
    assert "b and one.example/team/torch:1 would both be" in problem
    assert wanted_images(cluster, ["b"]).to_import == ("b",)


def test_one_image_under_two_names_is_imported_once(tmp_path: Path) -> None:
    cluster = profile(
        tmp_path, text=with_images("{a: registry.example/t:1, b: registry.example#t:1, c: /images/c.sqsh}")
    )
    assert wanted_images(cluster, []).to_import == ("a",)


def test_offline_nodes_and_a_folder_that_this_machine_does_not_see_leave_no_place_for_an_import(tmp_path: Path) -> None:
    cluster = profile(tmp_path, site="offline_nodes: true\nlogin_sees_paths: false")
    assert "compute nodes reach no registry" in refused(cluster)[0]


def test_a_qos_that_takes_no_single_node_is_said_before_sbatch_says_it(tmp_path: Path) -> None:
    text = SITE.replace("time_limit: 0:30:00", "time_limit: 0:30:00, qos: [{name: large, min_nodes: 8}]")
    assert "an import no QOS accepts 1 node" in refused(profile(tmp_path, text=text))[0]


def test_a_cluster_without_containers_or_without_a_registrys_image_has_nothing_to_import(tmp_path: Path) -> None:
    assert refused(cluster_of(tmp_path)) == ["site has no container:, so it has no images to import"]
    assert "nothing to import" in refused(profile(tmp_path, text=with_images("{kept: /images/x.sqsh}")))[0]


def test_what_is_there_from_the_same_place_is_imported_anew_only_when_asked(tmp_path: Path) -> None:
    cluster = profile(tmp_path)
    assert wanted_images(cluster, []).to_import == ("pretrain",)
    Workshop.make(tmp_path, cluster).run()
    assert wanted_images(cluster, []).already == ("pretrain",)
    assert wanted_images(cluster, ["pretrain"], again=True).to_import == ("pretrain",)
    elsewhere = profile(tmp_path, text=SITE.replace("registry.example", "other.example"))
    assert wanted_images(elsewhere, []).to_import == ("pretrain",)


def test_a_file_that_the_site_put_there_is_left_alone(tmp_path: Path) -> None:
    cluster = profile(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "team+torch+1.sqsh").write_text("the site's own")
    assert wanted_images(cluster, []).already == ("pretrain",)
    assert "move it away first" in refused(cluster, again=True)[0]


# ---- what is there -----------------------------------------------------------------------------------------------


def test_each_image_is_listed_with_what_jobs_use_and_where_the_profile_says_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept.sqsh"
    kept.write_text("12345")
    text = with_images(f"{{pretrain: registry.example/team/torch:1, kept: {kept}, blank: <which>, gone: /no/x.sqsh}}")
    cluster = profile(tmp_path, text=text)
    rows = {row.image: row for row in image_rows(cluster)}
    assert {name: row.there for name, row in rows.items()} == {
        "pretrain": "no",
        "kept": "yes",
        "blank": "no",
        "gone": "no",
    }
    assert (rows["kept"].bytes, rows["kept"].digest, rows["kept"].user) == (5, None, None)
    assert rows["blank"].source is None and rows["pretrain"].value == "registry.example/team/torch:1"
    assert rows["pretrain"].source == str(tmp_path / "images" / "team+torch+1.sqsh")
    assert short(rows["pretrain"].location) == "site.yaml:7:12"
    Workshop.make(tmp_path, cluster).run()
    row = image_rows(cluster)[0]
    assert (row.there, row.digest, row.digest_of, row.user) == ("yes", DIGEST, "manifest", getpass.getuser())
    assert row.bytes == len("half of an image\n") and row.imported is not None


@pytest.mark.parametrize("record", ["{", "[1]", '{"digest": 7, "uri": []}', "\udcff"])
def test_a_broken_record_is_no_record(tmp_path: Path, record: str) -> None:
    cluster = profile(tmp_path)
    shop = Workshop.make(tmp_path, cluster)
    shop.run()
    (shop.staging / f"{FILE}.json").write_bytes(record.encode(errors="surrogateescape"))
    (row,) = image_rows(cluster)
    assert (row.there, row.digest) == ("yes", None)
    assert wanted_images(cluster, []).to_import == ("pretrain",)


def test_where_the_login_node_does_not_see_paths_nothing_is_said_of_them(tmp_path: Path) -> None:
    cluster = profile(tmp_path, site="login_sees_paths: false")
    Workshop.make(tmp_path, cluster).run()
    (row,) = image_rows(cluster)
    assert (row.there, row.digest, row.bytes) == ("on the nodes", None, None)
    assert wanted_images(cluster, []).to_import == ("pretrain",)


def test_without_a_staging_folder_jobs_take_the_image_from_the_registry(tmp_path: Path) -> None:
    (row,) = image_rows(cluster_of(tmp_path, SITE))
    assert (row.source, row.there) == ("registry.example/team/torch:1", None)


# ---- before a job is submitted -----------------------------------------------------------------------------------

SELENE = """\
slurm: {account: proj, partition: luna}
site: {staging_folder: STAGING, login_sees_paths: SEES}
container: {mounts: [/data], images: {"nvidia/pytorch:20.12-py3": HOST/nvidia/pytorch:20.12-py3}}
programs:
  megatron-2021: {checkout: /m, data_path: /d, vocab_file: /v, merge_file: /f}
"""


def selene(folder: Path, host: str = "registry.example", sees: str = "true") -> Cluster:
    overlay = SELENE.replace("STAGING", str(folder / "images")).replace("HOST", host).replace("SEES", sees)
    return cluster_of(folder, (CHECKOUT / "clusters" / "selene.yaml").read_text(), overlay, "selene")


def test_a_job_is_refused_until_its_image_is_imported_and_again_when_it_is_anothers(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    jobs = plans(cluster, "paper")
    with pytest.raises(ReproError) as error:
        require_none(image_problems(jobs, cluster))
    assert [str(problem) for problem in error.value.problems] == [
        "nvidia/pytorch:20.12-py3 is not imported yet. "
        "Hint: repro images import --cluster selene nvidia/pytorch:20.12-py3"
    ]
    StandIn.make(tmp_path / "bin", DIGEST)
    run_import(cluster, tmp_path)
    require_none(image_problems(jobs, cluster))
    moved = selene(tmp_path, "other.example")
    with pytest.raises(ReproError, match="was imported from docker://registry.example#nvidia"):
        require_none(image_problems(plans(moved, "paper"), moved))


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Another image is imported under the same tag",
    promise="Its jobs are other jobs. Queued jobs use the file that they were submitted with.",
)
def test_two_imports_with_different_digests_are_different_jobs_each_with_its_own_file(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    before = plan_of(cluster)
    assert before.program.image_digest is None
    stand_in = StandIn.make(tmp_path / "bin", DIGEST)
    found = []
    for digest in (DIGEST, OTHER_DIGEST):
        stand_in.tell(digest=digest, content=digest)
        run_import(cluster, tmp_path)
        found.append(plan_of(selene(tmp_path)))  # each command reads the profile
    assert [plan.program.image_digest for plan in found] == [DIGEST, OTHER_DIGEST]
    files = [Path(str(plan.program.image_path)) for plan in found]
    assert [file.name for file in files] == [
        "nvidia+pytorch+20.12-py3@sha256-0123456789ab.sqsh",
        "nvidia+pytorch+20.12-py3@sha256-fedcba987654.sqsh",
    ]
    assert all(
        file.read_text().endswith(f"{digest}\n") for file, digest in zip(files, (DIGEST, OTHER_DIGEST), strict=True)
    )
    assert len({plan.identity for plan in (before, *found)}) == 3
    script = render_job(found[0], cluster, tmp_path / "job", TEMPLATES)
    assert f"--container-image={files[0]} " in script


@pytest.mark.parametrize("record", ["{}", '{"digest": "latest"}', '{"digest": 7}', "broken"])
def test_an_image_without_a_recorded_digest_has_the_identity_of_its_file_and_keeps_the_link(
    record: str, tmp_path: Path
) -> None:
    cluster = selene(tmp_path)
    before = plan_of(cluster)
    StandIn.make(tmp_path / "bin", DIGEST)
    run_import(cluster, tmp_path)
    (file,) = (tmp_path / "images").glob("*.json")
    file.write_text(record)
    after, image = plan_of(selene(tmp_path)), Path(str(before.program.image_path))
    assert after.program == replace(before.program, image_digest=file_identity(image))
    assert after.identity != before.identity


def test_where_the_login_node_does_not_see_paths_no_digest_is_read(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    StandIn.make(tmp_path / "bin", DIGEST)
    run_import(cluster, tmp_path)
    assert plan_of(selene(tmp_path, sees="false")).program.image_digest is None


def plan_of(cluster: Cluster) -> Plan:
    """The plan of the first case, as a person's is made."""
    entry = shipped()
    folders = Folders(shipped=CHECKOUT, home=CHECKOUT)
    return plan_cases(entry, expand(entry, "paper")[:1], cluster, folders)[0]


def run_import(cluster: Cluster, folder: Path) -> None:
    script = render_import(cluster, "nvidia/pytorch:20.12-py3", folder / "job", TEMPLATES)
    path = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", script], env=path, capture_output=True, check=True)


def test_a_job_is_not_refused_where_this_machine_cannot_know_or_the_profile_names_a_file(tmp_path: Path) -> None:
    unseen = selene(tmp_path, sees="false")
    require_none(image_problems(plans(unseen, "paper"), unseen))
    file = selene(tmp_path, "/no/such")
    require_none(image_problems(plans(file, "paper"), file))
    (warning,) = image_warnings(plans(file, "paper"), file)
    assert warning.endswith(
        "/no/such/nvidia/pytorch:20.12-py3 cannot be looked for, because /no/such/nvidia is not on this machine"
    )
    assert image_warnings(plans(unseen, "paper"), unseen) == []


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The file of an image does not exist",
    promise="Refused before submission, with the line of the profile.",
)
def test_a_job_is_refused_where_this_machine_sees_that_the_file_of_its_image_is_missing(tmp_path: Path) -> None:
    cluster = selene(tmp_path, str(tmp_path))
    (tmp_path / "nvidia").mkdir()
    with pytest.raises(ReproError) as error:
        require_none(image_problems(plans(cluster, "paper"), cluster))
    (problem,) = error.value.problems
    assert short(problem).startswith("selene.local.yaml:3:")
    assert "/nvidia/pytorch:20.12-py3: no such file. Hint: correct the path, or put the image there" in str(problem)
    unseen = selene(tmp_path, str(tmp_path), sees="false")
    require_none(image_problems(plans(unseen, "paper"), unseen))
    (tmp_path / "nvidia" / "pytorch:20.12-py3").touch()
    require_none(image_problems(plans(cluster, "paper"), cluster))
    assert image_warnings(plans(cluster, "paper"), cluster) == []


@pytest.mark.fault(
    section="Safety",
    fault="The user may not read the image file",
    promise="Refused at submission, with the line of the profile.",
)
def test_an_image_that_the_user_may_not_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.sqsh"
    file.write_text("an image")
    cluster = profile(tmp_path, text=with_images(f"{{pretrain: {file}}}"))
    jobs = plans(cluster, "pair")
    require_none(image_problems(jobs, cluster))
    monkeypatch.setattr("os.access", lambda *_: False)
    (problem,) = image_problems(jobs, cluster)
    assert f"container.images.pretrain: {file}: you may not read it" in str(problem)
