"""Image names: all spellings of a name are the same image for every runtime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.container import Image, read_image

DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    ("text", "enroot", "docker", "stem"),
    [
        ("ubuntu", "ubuntu", "ubuntu", "ubuntu"),
        (
            "nvidia/pytorch:20.12-py3",
            "nvidia/pytorch:20.12-py3",
            "nvidia/pytorch:20.12-py3",
            "nvidia+pytorch+20.12-py3",
        ),
        (
            "registry.example#team/torch:1",
            "registry.example#team/torch:1",
            "registry.example/team/torch:1",
            "team+torch+1",
        ),
        (
            "registry.example/team/torch:1",
            "registry.example#team/torch:1",
            "registry.example/team/torch:1",
            "team+torch+1",
        ),
        (
            "docker://registry.example/team/torch:1",
            "registry.example#team/torch:1",
            "registry.example/team/torch:1",
            "team+torch+1",
        ),
        (
            "docker://registry.example#team/torch:1",
            "registry.example#team/torch:1",
            "registry.example/team/torch:1",
            "team+torch+1",
        ),
        ("registry.example:5000/torch", "registry.example:5000#torch", "registry.example:5000/torch", "torch"),
        ("localhost/torch", "localhost#torch", "localhost/torch", "torch"),
        ("docker://ubuntu:22.04", "ubuntu:22.04", "ubuntu:22.04", "ubuntu+22.04"),
    ],
)
def test_every_form_of_a_registrys_image_is_read_and_written_as_each_runtime_reads_it(
    text: str, enroot: str, docker: str, stem: str
) -> None:
    image = read_image(text)
    assert (image.path, image.for_enroot, image.for_docker, image.file_stem) == (None, enroot, docker, stem)


def test_a_digest_stays_with_its_image() -> None:
    image = read_image(f"registry.example/team/torch:1@{DIGEST}")
    assert image == Image(host="registry.example", name=f"team/torch:1@{DIGEST}")
    assert image.for_enroot == f"registry.example#team/torch:1@{DIGEST}"
    assert read_image(f"torch@{DIGEST}").name == f"torch@{DIGEST}"


@pytest.mark.parametrize("path", ["/images/x.sqsh", "./x.sqsh", "/images/x.sif", "/images/a folder", "/x"])
def test_a_path_is_a_file_to_every_runtime(path: str) -> None:
    image = read_image(path)
    assert image.path == image.for_enroot == image.for_docker == path


@pytest.mark.parametrize("text", ["x.sqsh", "images/x.squashfs", "~/x.sqsh", "torch.sif", "docker://x.sqsh"])
def test_a_file_without_a_path_is_refused_because_pyxis_reads_it_as_a_registry_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"^an image file needs a path, /\.\.\. or \./\.\.\.$"):
        read_image(text)


@pytest.mark.parametrize(
    "text",
    ["", "docker://", "dockerd://torch:1", "oras://registry.example/torch", "registry.example/", "registry.example#"],
)
def test_a_registrys_image_without_its_name_or_in_another_scheme_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a path, /... or ./..., or an image in a registry, HOST/NAME:TAG"):
        read_image(text)


@pytest.mark.parametrize(
    "text", ["Team/Torch", "torch:", "torch:a b", "torch@sha256:12", "team/torch:1:2", "a b", "-x", "x,y"]
)
def test_a_name_that_no_registry_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a path, /... or ./..., or an image in a registry, HOST/NAME:TAG"):
        read_image(text)


@pytest.mark.parametrize("host", ["a b.example", "registry.example:x", "a/b.example", "a;b"])
def test_a_registry_that_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="the registry must be HOST or HOST:PORT"):
        read_image(f"{host}#torch")


PART = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,6}[a-z0-9])?", fullmatch=True)
NAMES = st.builds(
    lambda parts, tag, digest: "/".join(parts) + tag + digest,
    st.lists(PART, min_size=1, max_size=3).filter(lambda parts: parts[0] != "localhost"),
    st.just("") | st.from_regex(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,6}", fullmatch=True),
    st.just("") | st.just(f"@{DIGEST}"),
).filter(lambda name: not name.endswith((".sqsh", ".squashfs", ".sif")))
HOSTS = st.just("") | st.builds("{}.example{}".format, PART, st.just("") | st.integers(1, 65535).map(":{}".format))


@given(HOSTS, NAMES, st.sampled_from(["", "docker://"]))
def test_an_image_that_is_written_out_is_read_back_as_the_same(host: str, name: str, scheme: str) -> None:
    image = Image(host=host, name=name)
    assert read_image(scheme + image.for_enroot) == read_image(scheme + image.for_docker) == image
