"""Fetch of a program's code and data from a server and repositories on this machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.clusters.program import FetchRecord, Item, stored_record
from orchestrator.errors import ReproError, Unreachable
from orchestrator.launch import fetch as fetching
from orchestrator.launch.fetch import fetch_items, item_state, render_fetch, require_usable_text
from orchestrator.megatron.token_data import MegatronTokens
from orchestrator.programs.record import PublicFile, Repository, TextFile
from tests.loopback_files import FileServer, file_server
from tests.stand_in_site import CHECKOUT
from tests.unit.launch.repositories import checkout, git, item, make_repository

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 4096
TEMPLATES = CHECKOUT / "templates"
AGAIN = "repro programs fetch toy --cluster here"
DATA = MegatronTokens(50257, "data of a paper")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server(CONTENT) as served:
        yield served


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("origin") / "Megatron-LM"
    return folder, make_repository(folder)


def fetch(*items: Item, text: TextFile | None = None) -> list[str]:
    return [fetched.how for fetched in fetch_items(items, TEMPLATES, AGAIN, text)]


def refused(*items: Item, text: TextFile | None = None) -> ReproError:
    with pytest.raises(ReproError) as caught:
        fetch(*items, text=text)
    return caught.value


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_file_is_downloaded_once_with_a_record_of_source_checksum_and_time(
    tmp_path: Path, server: FileServer
) -> None:
    wanted = item(server.file(), tmp_path / "data" / "vocab.json")
    assert item_state(wanted) == "missing"
    assert fetch(wanted) == ["fetched"]
    assert wanted.path.read_bytes() == CONTENT
    assert names(tmp_path / "data") == ["vocab.json", "vocab.json.fetched.json"]
    record = stored_record(FetchRecord, wanted.record_file)
    assert record is not None and record.source == server.file().url and record.fetched.endswith("Z")
    assert record.sha256 == {"vocab.json": server.file().sha256}
    before = wanted.record_file.read_bytes()
    assert fetch(wanted) == ["there already"]
    assert (len(server.requests), wanted.record_file.read_bytes()) == (1, before)
    assert item_state(wanted) == "there"


def test_an_interrupted_download_continues_where_it_stopped(tmp_path: Path, server: FileServer) -> None:
    wanted = item(server.file(), tmp_path / "vocab.json")
    server.cut_after = 300_000
    error = refused(wanted)
    assert error.exit_code == 3
    assert "the connection ended after 300000 of 1048576 bytes" in str(error)
    assert names(tmp_path) == [".vocab.json.part"]
    server.cut_after = None
    assert fetch(wanted) == ["fetched"]
    assert server.requests == [None, "bytes=300000-"]
    assert wanted.path.read_bytes() == CONTENT


def test_a_server_without_ranges_sends_the_whole_file_again(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / ".vocab.json.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    wanted = item(server.file(), tmp_path / "vocab.json")
    assert fetch(wanted) == ["fetched"]
    assert wanted.path.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
def test_a_part_of_another_file_is_downloaded_from_its_start(tmp_path: Path, server: FileServer, part: bytes) -> None:
    (tmp_path / ".vocab.json.part").write_bytes(part)
    wanted = item(server.file(), tmp_path / "vocab.json")
    assert fetch(wanted) == ["fetched"]
    assert wanted.path.read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"y" * len(CONTENT), CONTENT + b"more"])
def test_a_download_with_a_wrong_checksum_leaves_nothing(tmp_path: Path, server: FileServer, content: bytes) -> None:
    wanted = item(server.file(), tmp_path / "vocab.json")
    server.content = content
    error = refused(wanted)
    assert (error.exit_code, len(error.problems)) == (2, 1)
    assert wanted.source.address in str(error) and "the checksum of the download is" in str(error)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("status", "code"), [(404, 2), (403, 2), (500, 3), (503, 3), (429, 3)])
def test_an_answer_without_the_file_has_its_number_and_an_exit_code(
    tmp_path: Path, server: FileServer, status: int, code: int
) -> None:
    server.status = status
    error = refused(item(server.file(), tmp_path / "vocab.json"))
    assert error.exit_code == code
    assert f"the server answers {status}" in str(error)
    assert names(tmp_path) == []


def test_a_refused_connection_is_exit_code_3_and_names_the_offline_way(tmp_path: Path, server: FileServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    error = refused(item(server.file(url=f"http://127.0.0.1:{port}/vocab.json"), tmp_path / "vocab.json"))
    assert isinstance(error, Unreachable)
    assert "no connection ((7) Failed to connect to 127.0.0.1 port" in str(error) and "--offline" in str(error)


def test_a_file_with_other_content_is_not_replaced(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "vocab.json").write_text("mine")
    wanted = item(server.file(), tmp_path / "vocab.json")
    assert item_state(wanted) == "4 bytes, must be 1,048,576"
    error = refused(wanted)
    assert error.exit_code == 2 and "exists with other content" in str(error)
    assert ((tmp_path / "vocab.json").read_text(), names(tmp_path), server.requests) == ("mine", ["vocab.json"], [])


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "vocab.json" / "inside").mkdir(parents=True)
    assert "exists, and is not a file" in str(refused(item(server.file(), tmp_path / "vocab.json")))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a full file system of 512 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system of a test's own can be mounted here")
    with pytest.raises(OSError, match="No space"), (folder / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The disk is full while a program is fetched",
    promise="One message, exit code 2. With space, the command continues.",
    count=3,
)
def test_a_full_disk_is_one_message_and_the_command_continues_with_space(
    small: Path, server: FileServer, origin: tuple[Path, list[str]]
) -> None:
    server.content = CONTENT[:65536]
    wanted = item(server.file(), small / "vocab.json")
    code = checkout(origin[0], origin[1][0], small / "Megatron-LM")
    for each in (wanted, code, item(DATA, small / "data")):
        error = refused(each)
        assert (error.exit_code, len(error.problems)) == (2, 1)
        assert "o space left on device" in str(error) and "Hint: free space, then repeat" in str(error)
        assert not any(file.exists() for file in each.files)
    (small / "ballast").unlink()
    assert fetch(wanted, code) == ["fetched", "fetched"]


def test_a_folder_that_may_not_be_written_is_one_message(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "file").write_text("")
    error = refused(*(item(server.file(), tmp_path / "file" / name) for name in ("vocab.json", "merges.txt")))
    assert (error.exit_code, len(error.problems)) == (2, 1)
    assert "cannot be written" in str(error)


def test_two_commands_do_not_fetch_the_same_file_at_once(tmp_path: Path, server: FileServer) -> None:
    wanted = item(server.file(), tmp_path / "vocab.json")
    with (tmp_path / ".vocab.json.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        error = refused(wanted)
    assert "another command fetches this" in str(error)
    assert server.requests == []
    assert fetch(wanted) == ["fetched"]
    assert names(tmp_path) == ["vocab.json", "vocab.json.fetched.json"]


# ---- checkouts ---------------------------------------------------------------------------------------------------


def test_a_checkout_has_exactly_the_commit_and_no_history(tmp_path: Path, origin: tuple[Path, list[str]]) -> None:
    folder, [_, second, _] = origin
    wanted = checkout(folder, second, tmp_path / "code" / "Megatron-LM")
    assert item_state(wanted) == "missing"
    assert fetch(wanted) == ["fetched"]
    assert git(wanted.path, "rev-parse", "HEAD") == second
    assert git(wanted.path, "rev-list", "--count", "HEAD") == "1"
    assert (wanted.path / "pretrain_gpt.py").read_text() == "print(1)\n"
    assert names(wanted.path.parent) == ["Megatron-LM", "Megatron-LM.fetched.json"]
    record = stored_record(FetchRecord, wanted.record_file)
    assert record is not None and (record.source, record.commit) == (f"file://{folder}", second)
    assert fetch(wanted) == ["there already"]
    assert item_state(wanted) == "there"


def test_a_branch_is_fetched_at_its_head_and_the_record_has_the_commit(
    tmp_path: Path, origin: tuple[Path, list[str]]
) -> None:
    folder, commits = origin
    wanted = checkout(folder, "release", tmp_path / "Megatron-LM")
    assert fetch(wanted) == ["fetched"]
    record = stored_record(FetchRecord, wanted.record_file)
    assert record is not None and record.commit == commits[-1] == git(wanted.path, "rev-parse", "HEAD")
    assert fetch(wanted) == ["there already"]


def test_a_clone_by_hand_at_the_right_commit_is_accepted_and_recorded(
    tmp_path: Path, origin: tuple[Path, list[str]]
) -> None:
    folder, [_, _, last] = origin
    subprocess.run(["git", "clone", "-q", str(folder), str(tmp_path / "mine")], check=True)
    wanted = checkout(folder, last, tmp_path / "mine")
    assert fetch(wanted) == ["there already"]
    assert stored_record(FetchRecord, wanted.record_file) is not None


@pytest.mark.parametrize("left", ["", ".git/index.lock", ".git/shallow.lock"])
def test_an_interrupted_fetch_of_a_checkout_continues(
    tmp_path: Path, origin: tuple[Path, list[str]], left: str
) -> None:
    folder, [first, _, _] = origin
    part = tmp_path / ".Megatron-LM.part"
    part.mkdir()
    if left:
        git(part, "init", "-q")
        (part / left).write_text("")
    wanted = checkout(folder, first, tmp_path / "Megatron-LM")
    assert fetch(wanted) == ["fetched"]
    assert not part.exists()


def test_a_server_that_offers_no_single_commits_sends_all_branches(
    tmp_path: Path, origin: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COUNT": "1", "KEY_0": "protocol.version", "VALUE_0": "0"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)  # with protocol 0, git refuses commits that are not heads
    folder, [first, _, _] = origin
    wanted = checkout(folder, first, tmp_path / "Megatron-LM")
    assert fetch(wanted) == ["fetched"]
    assert git(wanted.path, "rev-parse", "HEAD") == first


@pytest.mark.parametrize("name", ["v1.0", "annotated", "feature/x", "short hash"])
def test_a_tag_a_branch_with_a_slash_and_a_short_hash_are_fetched_and_accepted(tmp_path: Path, name: str) -> None:
    first, second, _ = make_repository(tmp_path / "origin")
    git(tmp_path / "origin", "tag", "v1.0", second)
    git(tmp_path / "origin", "tag", "-a", "-m", "a tag", "annotated", second)
    git(tmp_path / "origin", "branch", "feature/x", second)
    wanted = checkout(tmp_path / "origin", second[:9] if name == "short hash" else name, tmp_path / "Megatron-LM")
    assert fetch(wanted) == ["fetched"]
    assert git(wanted.path, "rev-parse", "HEAD") == second
    assert fetch(wanted) == ["there already"]
    git(wanted.path, "fetch", "-q", "origin", first)
    git(wanted.path, "checkout", "-q", first)
    assert "and must be at" in str(refused(wanted))


@pytest.mark.parametrize("commit", ["0" * 40, "no-such-branch", "0000000"])
def test_a_commit_that_the_repository_lacks_is_exit_code_2(
    tmp_path: Path, origin: tuple[Path, list[str]], commit: str
) -> None:
    error = refused(checkout(origin[0], commit, tmp_path / "Megatron-LM"))
    assert error.exit_code == 2
    assert f"file://{origin[0]}: the repository " in str(error)
    assert not (tmp_path / "Megatron-LM").exists()


def test_a_refused_connection_of_git_is_exit_code_3(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    wanted = item(DATA, tmp_path / "data")
    code = checkout(tmp_path, "0" * 40, tmp_path / "Megatron-LM")
    code = Item(type(code.source)(code.source.need, f"http://127.0.0.1:{port}/x", "0" * 40, True), code.path, "")
    with pytest.raises(Unreachable, match="Hint: without internet"):
        fetch(code)
    assert refused(code).exit_code == 3
    assert [fetched.how for fetched in _until_error(code, wanted)] == ["made"]  # the other items are there anyway


def _until_error(*items: Item) -> Iterator[fetching.Fetched]:
    with pytest.raises(ReproError):
        yield from fetch_items(items, TEMPLATES, AGAIN)


def test_a_checkout_with_local_changes_stays_as_it_is(tmp_path: Path, origin: tuple[Path, list[str]]) -> None:
    folder, [_, second, _] = origin
    wanted = checkout(folder, second, tmp_path / "Megatron-LM")
    fetch(wanted)
    (wanted.path / "pretrain_gpt.py").write_text("print('mine')\n")
    assert "local changes" in item_state(wanted)
    error = refused(wanted)
    assert error.exit_code == 2 and "local changes, so it stays as it is" in str(error)
    assert (wanted.path / "pretrain_gpt.py").read_text() == "print('mine')\n"


def test_kernels_that_jobs_compiled_into_a_checkout_are_no_local_changes(
    tmp_path: Path, origin: tuple[Path, list[str]]
) -> None:
    folder, [_, second, _] = origin
    wanted = checkout(folder, second, tmp_path / "Megatron-LM")
    fetch(wanted)
    (wanted.path / "build").mkdir()
    (wanted.path / "build" / "kernel.so").write_text("")
    assert fetch(wanted) == ["there already"]


def test_a_checkout_at_another_commit_is_refused_and_the_command_of_the_hint_corrects_it(
    tmp_path: Path, origin: tuple[Path, list[str]]
) -> None:
    folder, [first, _, last] = origin
    fetch(checkout(folder, first, tmp_path / "Megatron-LM"))
    wanted = checkout(folder, last, tmp_path / "Megatron-LM")
    error = refused(wanted)
    assert f"at commit {first[:10]}, and must be at {last[:10]}" in str(error)
    assert git(wanted.path, "rev-parse", "HEAD") == first
    command = (error.problems[0].hint or "").partition(";")[0]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert fetch(wanted) == ["there already"]
    record = stored_record(FetchRecord, wanted.record_file)
    assert record is not None and record.commit == last


@pytest.mark.parametrize("name", ["notes.txt", ".git/HEAD"])
def test_a_folder_with_other_content_is_no_checkout(tmp_path: Path, origin: tuple[Path, list[str]], name: str) -> None:
    file = tmp_path / "Megatron-LM" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    error = refused(checkout(origin[0], origin[1][0], tmp_path / "Megatron-LM"))
    assert "exists, and is not a git checkout" in str(error)
    assert file.read_text() == "mine"


def test_an_empty_folder_becomes_the_checkout(tmp_path: Path, origin: tuple[Path, list[str]]) -> None:
    (tmp_path / "Megatron-LM").mkdir()
    assert item_state(checkout(origin[0], origin[1][0], tmp_path / "Megatron-LM")) == "missing"
    assert fetch(checkout(origin[0], origin[1][0], tmp_path / "Megatron-LM")) == ["fetched"]


def test_without_git_the_message_says_so(
    tmp_path: Path, origin: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not on this machine" in str(refused(checkout(origin[0], origin[1][0], tmp_path / "Megatron-LM")))


# ---- the script --------------------------------------------------------------------------------------------------


def run_script(folder: Path, *items: Item, below: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script as on a machine without `repro`."""
    file = folder / "fetch.sh"
    folder.mkdir(exist_ok=True)
    file.write_text(render_fetch(items, TEMPLATES, AGAIN))
    words = [below] if below else []
    return subprocess.run(["bash", file, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_run_elsewhere_fetches_below_a_folder_whose_copy_is_accepted(
    tmp_path: Path, server: FileServer, origin: tuple[Path, list[str]]
) -> None:
    shared = tmp_path / "shared folder's"
    items = [
        checkout(origin[0], origin[1][0], shared / "code" / "Megatron-LM"),
        checkout(origin[0], "release", shared / "code" / "release"),
        item(server.file(), shared / "data" / "gpt2-vocab.json"),
        item(DATA, shared / "data" / "tokens"),
    ]
    elsewhere = tmp_path / "other machine"
    server.cut_after = 300_000
    cut = run_script(elsewhere, *items, below="copy")
    assert (cut.returncode, cut.stdout.count("fetched, copy/")) == (3, 2)
    server.cut_after = None
    again = run_script(elsewhere, *items, below="copy")
    assert (again.returncode, again.stderr) == (0, "")
    assert (again.stdout.count("there already, copy/"), again.stdout.count("fetched, copy/")) == (2, 1)
    assert server.requests == [None, "bytes=300000-"] and not shared.exists()
    for _ in range(2):
        subprocess.run(["cp", "-rn", "copy/.", "/"], cwd=elsewhere, check=True)
    assert fetch(*items) == [*["there already"] * 3, "made"]
    assert git(items[0].path, "rev-list", "--count", "HEAD") == "1"


def test_the_script_puts_items_in_their_places_and_changes_none_that_is_there(
    tmp_path: Path, server: FileServer, origin: tuple[Path, list[str]]
) -> None:
    (tmp_path / "vocab.json").write_text("mine")
    code = checkout(origin[0], origin[1][0], tmp_path / "-a 'place' $HOME" / "Megatron-LM")
    done = run_script(tmp_path / "here", item(server.file(), tmp_path / "vocab.json"), code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"vocab_file: there already, {tmp_path}/vocab.json\ncheckout: fetched, {code.path}\n"
    assert (tmp_path / "vocab.json").read_text() == "mine"
    assert run_script(tmp_path / "here", item(DATA, tmp_path / "data")).stdout == "nothing comes from the internet\n"


def test_a_killed_script_leaves_nothing_that_looks_complete_and_no_lock(tmp_path: Path, server: FileServer) -> None:
    wanted = item(server.file(), tmp_path / "vocab.json")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = server.file(url=f"http://127.0.0.1:{silent.getsockname()[1]}/vocab.json")
        script = render_fetch([item(waiting, wanted.path)], TEMPLATES, AGAIN)
        with subprocess.Popen(["bash", "-c", script], start_new_session=True, stderr=subprocess.DEVNULL) as process:
            connection, _ = silent.accept()
            assert "another command fetches this" in str(refused(wanted))
            os.killpg(process.pid, signal.SIGKILL)
        connection.close()
    assert not wanted.path.exists()
    assert fetch(wanted) == ["fetched"]


# ---- data --------------------------------------------------------------------------------------------------------


def test_token_data_are_made_once_and_recorded_with_their_checksums(tmp_path: Path) -> None:
    wanted = item(DATA, tmp_path / "gpt2")
    assert fetch(wanted) == ["made"]
    assert names(tmp_path) == ["gpt2.bin", "gpt2.fetched.json", "gpt2.idx"]
    record = json.loads(wanted.record_file.read_text())
    assert record["sha256"] == {  # the same on each machine
        "gpt2.bin": "bd604669052f310862b0d1a0f60cbd6d81399e7a5aa347cf71f178057fbe9179",
        "gpt2.idx": "6ed000f4a68f2306b01c53144b62fa9f256b6599fb3dab5ba34aa2ab58aaab0e",
    }
    assert fetch(wanted) == ["there already"]


def test_data_of_the_site_are_accepted_and_get_no_record(tmp_path: Path) -> None:
    (tmp_path / "mine.bin").write_bytes(b"\0\0")
    (tmp_path / "mine.idx").write_bytes(b"MMIDIDX\0\0 and so on")
    assert fetch(item(DATA, tmp_path / "mine")) == ["there already"]
    assert names(tmp_path) == ["mine.bin", "mine.idx"]


def test_an_interruption_between_the_two_files_of_the_data_is_completed(tmp_path: Path) -> None:
    wanted = item(DATA, tmp_path / "gpt2")
    fetch(wanted)
    (tmp_path / "gpt2.idx").unlink()
    assert item_state(wanted) == "gpt2.idx missing"
    assert fetch(wanted) == ["made"]
    assert names(tmp_path) == ["gpt2.bin", "gpt2.fetched.json", "gpt2.idx"]


def test_half_of_another_data_set_is_not_completed(tmp_path: Path) -> None:
    (tmp_path / "mine.bin").write_bytes(b"mine")
    error = refused(item(DATA, tmp_path / "mine"))
    assert f"{tmp_path / 'mine.bin'}: exists without mine.idx" in str(error)
    assert names(tmp_path) == ["mine.bin"]


def test_an_index_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.bin").write_bytes(b"mine")
    (tmp_path / "mine.idx").write_bytes(b"mine")
    assert "is not the index of such a data set" in str(refused(item(DATA, tmp_path / "mine")))


def test_all_problems_are_reported_together(tmp_path: Path, server: FileServer, origin: tuple[Path, list[str]]) -> None:
    server.status = 404
    vocabulary = item(server.file(), tmp_path / "vocab.json")
    code = checkout(origin[0], "0" * 40, tmp_path / "Megatron-LM")
    error = refused(code, vocabulary)
    assert [problem.what.partition(": ")[0] for problem in error.problems] == [
        code.source.address,
        vocabulary.source.address,
    ]


# ---- data of a text ----------------------------------------------------------------------------------------------

STAND_IN = """\
import sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "fail" in open(given["--input"]).read():
    sys.exit("ModuleNotFoundError: No module named 'six'")
assert given["--tokenizer-type"] == "GPT2BPETokenizer" and open(given["--vocab-file"]) and open(given["--merge-file"])
import megatron
for ending in ("bin", "idx"):
    open(f"{given['--output-prefix']}_text_document.{ending}", "w").write("MMIDIDX\\0\\0")
"""


@pytest.fixture
def program(tmp_path: Path) -> list[Item]:
    """The items of a program whose tool for texts is a stand-in."""
    checkout = tmp_path / "Megatron-LM"
    (checkout / "tools").mkdir(parents=True)
    (checkout / "megatron").mkdir()
    (checkout / "tools" / "preprocess_data.py").write_text(STAND_IN)
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "a stand-in")
    for name in ("vocab", "merges"):
        (tmp_path / name).write_text("")
    empty = hashlib.sha256(b"").hexdigest()
    files = [PublicFile(f"{name}_file", name, "http://127.0.0.1:9/", empty, 0) for name in ("vocab", "merge")]
    return [
        item(Repository(), checkout, f"file://{checkout}", git(checkout, "rev-parse", "HEAD")),
        item(files[0], tmp_path / "vocab"),
        item(files[1], tmp_path / "merges"),
        item(DATA, tmp_path / "data" / "mine"),
    ]


def test_data_of_a_text_are_made_by_the_tool_of_the_checkout(tmp_path: Path, program: list[Item]) -> None:
    text = TextFile(tmp_path / "text.jsonl", sys.executable)
    text.file.write_text('{"text": "fail"}')
    error = refused(*program, text=text)
    assert "tools/preprocess_data.py failed: ModuleNotFoundError: No module named 'six'" in str(error)
    assert names(tmp_path / "data") == []
    text.file.write_text('{"text": "works"}')
    half = tmp_path / "data" / "mine.idx"
    half.write_text("from elsewhere")
    assert f"{half}: exists, and the other file of the data set is missing" in str(refused(*program, text=text))
    assert half.read_text() == "from elsewhere"
    half.unlink()
    assert fetch(*program, text=text) == [*["there already"] * 3, "made"]
    assert names(tmp_path / "data") == ["mine.bin", "mine.fetched.json", "mine.idx"]
    record = stored_record(FetchRecord, program[-1].record_file)
    assert record is not None and record.source == f"{text.file}, by tools/preprocess_data.py"
    assert fetch(*program)[-1] == "there already"
    assert fetch(*program, text=text)[-1] == "there already"
    other = TextFile(tmp_path / "other.jsonl", sys.executable)
    assert "exists already, so --text would not be used" in str(refused(*program, text=other))


def test_a_text_that_cannot_be_used_is_refused_before_anything_is_fetched(tmp_path: Path, program: list[Item]) -> None:
    with pytest.raises(ReproError) as error:
        require_usable_text(TextFile(tmp_path / "none.jsonl", "no-such-python"), "megatron-kwai", program[:1])
    assert [problem.location or problem.what for problem in error.value.problems] == [
        f"--text {tmp_path}/none.jsonl:",
        "--python no-such-python:",
        "--text:",
    ]
