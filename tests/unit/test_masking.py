"""Masking: no planted secret remains in recorded, reported or exported text, and other text does not change.

The shapes are those that the services document. All values are invented, and random where possible.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from orchestrator.masking import MASK, holds_secret, is_secrets_name, masked, masked_tree, masked_words
from orchestrator.results.bundle.extract import unpacked
from orchestrator.results.export.rows import case_columns, export_rows, pieces
from tests.examples import examples
from tests.recorded_jobs import CRASHED, Outcome, new_ledger, record_figure
from tests.unit.catalog.entries import figure_13
from tests.unit.render.golden_files import GOLDEN, read_golden
from tests.unit.secret_spellings import HARMLESS, SPELLINGS, filled, secrets_of

CHECKOUT = Path(__file__).resolve().parents[2]


def is_masked(name: str, value: str) -> bool:
    """Return whether the value of this name is secret, or contains a secret."""
    return holds_secret(name, value) or masked(value) != value


def words_of(text: str) -> list[str]:
    return text.split()


SECRET_NAMES = words_of(
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY AZURE_STORAGE_ACCOUNT_KEY SSH_PRIVATE_KEY "
    "PGPASSWORD MYSQL_PWD MY_PASSWD GPG_PASSPHRASE CLIENT_SECRET SECRETS CREDENTIALS NPM_AUTH SLURM_AUTH_TOKEN apiKey "
    "authToken hfToken HFToken db-password token TOKEN2 TOKEN_READ ENROOT_CREDENTIAL APIKEY"
)
INNOCENT_NAMES = words_of(
    "TOKENIZERS_PARALLELISM CUDA_DEVICE_MAX_CONNECTIONS NCCL_IB_HCA NCCL_DEBUG PUBLIC_KEY_PATH PUBLIC_KEY KEYBOARD KEY "
    "monkey AUTHOR tokenizer-model tokenizer_type MAX_TOKENS tokens_per_s experts_per_token PWD OLDPWD SSH_AUTH_SOCK "
    "HF_TOKEN_PATH PASSWORD_FILE OS_AUTH_URL AUTH_TYPE moe-token-dispatcher-type moe-token-drop-policy eos-token "
    "calculate-per-token-loss PASS SECRETARY keys sort_keys MASTER_ADDR PATH"
)
PLAIN_VALUES = words_of(
    "1 0 -3 1e-4 0.5 100000000000 true False off none /run/secrets/token ~/.netrc ./token $HF_TOKEN ${HF_TOKEN} "
    "$HOME/.huggingface/token /etc/slurm/jwt_hs256.key *** *"
)

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def drawn(alphabet: str, least: int, most: int) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(alphabet), min_size=least, max_size=most)


def segment(least: int) -> st.SearchStrategy[str]:
    return drawn(LETTERS + "_-", least, least + 30)


def with_digit(start: str) -> st.SearchStrategy[str]:
    """OpenAI's keys have letters and digits. Without a digit the text could be a name with dashes."""
    return segment(30).map(lambda text: f"{start}{text}").filter(lambda text: re.search("[0-9]", text) is not None)


SHAPES = st.one_of(
    drawn(LETTERS, 34, 34).map("hf_{}".format),
    st.builds("{}{}".format, st.sampled_from(["ghp_", "gho_", "ghs_"]), drawn(LETTERS, 36, 36)),
    drawn(LETTERS + "_", 22, 82).map("github_pat_{}".format),
    drawn(LETTERS + "_-", 20, 20).map("glpat-{}".format),
    drawn("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", 16, 16).map("AKIA{}".format),
    drawn(LETTERS + "_-", 60, 66).map("nvapi-{}".format),
    with_digit("sk-"),
    with_digit("sk-proj-"),
    st.builds("xox{}-{}".format, st.sampled_from("abprs"), drawn("0123456789-" + LETTERS, 24, 60)),
    st.builds("eyJ{}.eyJ{}.{}".format, segment(17), segment(30), segment(43)),
    st.builds(
        "-----BEGIN {0}PRIVATE KEY-----\n{2}{1}\n-----END {0}PRIVATE KEY-----".format,
        st.sampled_from(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "]),
        drawn(LETTERS + "+/=\n", 60, 200),
        st.sampled_from(["", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n"]),
    ),
)
# Passwords that a person may choose, which only their name reveals.
FREE = st.text(st.characters(min_codepoint=32, max_codepoint=0x24FF, exclude_categories=["Cc", "Cs"]), min_size=6)
CHOSEN = (FREE | drawn("'\"\\$`;&|()<>= ,:@/ab", 6, 20)).filter(lambda text: not _plain(text))


def _plain(text: str) -> bool:
    return not is_masked("TOKEN", text)


# Each with the expected text.
PLACES = {
    "export {n}={q}\n": "export {n}=***\n",
    "a; {n}={q} srun x": "a; {n}=*** srun x",
    "task='\nexport {n}={i}\nshift 2'": "task='\nexport {n}=***\nshift 2'",
    "x --env {nq} \\\n  y": None,
    "podman run --env={n}={q} image": "podman run --env={n}=*** image",
    '{{"a": 1, "{n}": {j}, "b": "c"}}': '{{"a": 1, "{n}": "***", "b": "c"}}',
    "{r}": None,
    "train.py --{n} {q} --lr 0.1": "train.py --{n} *** --lr 0.1",
    "train.py --{n}={q} --lr 0.1": "train.py --{n}=*** --lr 0.1",
}


def leaks(secret: str, text: str) -> bool:
    """Return whether a large part of the secret is readable."""
    return any(secret[i : i + 6] in text for i in range(max(1, len(secret) - 5)))


@pytest.mark.fault(
    section="Safety",
    fault="Secrets in a command line, an environment, a profile, a script, a log",
    promise="Masked in the ledger, in reports and exports.",
)
@pytest.mark.parametrize("place", PLACES)
@given(name=st.sampled_from(SECRET_NAMES), secret=CHOSEN)
@example(name="HF_TOKEN", secret='it\'s $HOME `x` "y"')
@example(name="HF_TOKEN", secret="'''''''")
@example(name="HF_TOKEN", secret="a\\'b\\\\'c d")
@example(name="HF_TOKEN", secret="))))))")
def test_the_value_of_a_secret_name_is_masked_in_scripts_and_logs(place: str, name: str, secret: str) -> None:
    assume(not secret.startswith("-"))  # after an option and a blank that would be another option
    quoted = shlex.quote(secret)
    fields = {"n": name, "q": quoted, "i": quoted.replace("'", "'\\''"), "nq": shlex.quote(f"{name}={secret}")}
    fields |= {"j": json.dumps(secret), "r": repr({"a": "b", name: secret, "c": "d"})}
    text = place.format(**fields)
    found = masked(text)
    expected = PLACES[place]
    if expected is not None:
        assert found == expected.format(n=name)
    else:
        assert MASK in found and not leaks(secret, found.replace(name, ""))
    assert masked(found) == found


@given(secret=SHAPES, before=st.text(max_size=20), after=st.text(max_size=20))
def test_text_with_the_shape_of_a_secret_is_masked(secret: str, before: str, after: str) -> None:
    assume(not before[-1:].isalnum() and before[-1:] not in ("-", "_"))
    assume(not after[:1].isalnum())
    parts = [line for line in secret.split("\n") if len(line) >= 6 and "KEY" not in line and ": " not in line]
    for found in (
        masked(before + secret + after),
        *masked_tree({"X": f"a {secret}"}).values(),
        masked_words(["--x", secret])[1],
        masked_words([f"--y={secret}"])[0],
        json.dumps(masked_tree({"a": [1, {"b": f"c:{secret}"}]})),
        masked(json.dumps({"message": secret})),
    ):
        assert not any(leaks(part, found) for part in parts)
        assert MASK in found
    assert is_masked("X", secret)


@given(
    user=drawn(LETTERS + ".%@", 0, 8),
    secret=drawn(LETTERS + "!$%&()*+,;=:@_~.-", 6, 30) | st.text(min_size=6).map(lambda text: quote(text, "")),
    rest=st.sampled_from(["h", "h:5432/db", "db.example/x?sslmode=require", "[::1]:5432/db"]),
)
def test_only_the_password_of_a_url_is_masked(user: str, secret: str, rest: str) -> None:
    assume(secret.strip("*") and not secret.startswith("@"))
    assume(not leaks(secret, f"{user} {rest} postgresql "))
    assume(not is_secrets_name(user))  # the text behind `TOKEN:` is masked as a whole
    url = f"postgresql://{user}:{secret}@{rest}"
    assert masked_words(["repro", "--database", url, f"--database={url}"])[2:] == [
        f"postgresql://{user}:***@{rest}",
        f"--database=postgresql://{user}:***@{rest}",
    ]
    assert masked_tree({"PIP_INDEX_URL": url}) == {"PIP_INDEX_URL": f"postgresql://{user}:***@{rest}"}
    found = masked(f"cannot reach {url} and so on")
    assert not leaks(secret, found.replace("cannot reach", "").replace("and so on", ""))
    assert is_masked("X", url) and masked(found) == found


@given(name=st.sampled_from(SECRET_NAMES), secret=CHOSEN)
def test_secrets_are_masked_in_recorded_environments_command_lines_and_profiles(name: str, secret: str) -> None:
    assert is_masked(name, secret)
    assert masked_tree({name: secret, "NCCL_DEBUG": "WARN"}) == {name: MASK, "NCCL_DEBUG": "WARN"}
    assume(not re.match("--|-.$", secret))
    words = ["train", f"--{name}", secret, f"--env={name}={secret}", "-e", f"{name}={secret}", "--lr", "0.1"]
    kept = ["train", f"--{name}", MASK, f"--env={name}={MASK}", "-e", f"{name}={MASK}", "--lr", "0.1"]
    assert masked_words(words) == kept and masked_words(kept) == kept
    tree: dict[str, Any] = {
        "environment": {name: {"value": secret, "when": "nodes > 1"}, "NCCL_DEBUG": "WARN", "N": 3, "X": None},
        "slurm": {"srun": [f"--export={name}={secret}", f"--{name}", secret]},
        name: [secret, [secret], {"x": secret}],
    }
    found = masked_tree(tree)
    assert found == {
        "environment": {name: {"value": MASK, "when": "nodes > 1"}, "NCCL_DEBUG": "WARN", "N": 3, "X": None},
        "slurm": {"srun": [f"--export={name}={MASK}", f"--{name}", MASK]},
        name: [MASK, [MASK], {"x": MASK}],
    }
    assert masked_tree(found) == found


@given(secret=FREE | st.text(min_size=4))
def test_the_value_of_a_secret_is_masked_in_any_notation(
    secret: str,
) -> None:
    assume("*" not in secret and "\0" not in secret and not re.search("[\ud800-\udfff]", secret))
    for written in (secret, shlex.quote(secret), json.dumps(secret), repr(secret), quote(secret, "")):
        found = masked(f"<{written}>", known=[secret])
        assert not leaks(secret, found) and MASK in found
    assert masked("of three letters", known=["of", ""]) == "of three letters"


def test_similar_names_are_not_masked() -> None:
    def is_unchanged(name: str, value: str) -> bool:
        texts = (f"export {name}={shlex.quote(value)}\n", f"--{name} {value} --x", f"'{name}': '{value}'")
        words = [f"--{name}", value]
        kept = all(masked(text) == text for text in texts) and masked_words(words) == words
        return kept and not is_masked(name, value) and masked_tree({name: value}) == {name: value}

    values = ("abc", "GPT2BPETokenizer", "mlx5_0,mlx5_1", "ssh-ed25519 AAAAC3Nza", "a=b")
    assert [pair for pair in product(INNOCENT_NAMES, values) if not is_unchanged(*pair)] == []


def test_numbers_booleans_paths_and_references_are_never_masked() -> None:
    def is_unchanged(name: str, value: str) -> bool:
        text = f"export {name}={value}\n{name}='{value}'\n"
        kept = masked(text) == text and masked_tree({name: value}) == {name: value}
        return kept and not is_masked(name, value)

    assert [pair for pair in product(SECRET_NAMES, [*PLAIN_VALUES, ""]) if not is_unchanged(*pair)] == []


@pytest.mark.parametrize(
    "value",
    [
        "/bPxRfiCYwJalrXUtnFEMIK7MDENGK7MDENG1aaa",  # as long as an AWS key, with the same letters
        "1234567890123456",
        "correct horse battery staple",
    ],
)
def test_a_value_that_only_begins_like_a_path_or_number_is_masked(value: str) -> None:
    assert masked_tree({"MY_SECRET": value}) == {"MY_SECRET": MASK}


def test_scripts_profiles_and_experiments_without_secrets_are_unchanged() -> None:
    files = [
        *(file for file in GOLDEN.rglob("*") if file.suffix in (".sh", ".diff")),
        *(CHECKOUT / "clusters").glob("*.yaml"),
        *(CHECKOUT / "experiments").rglob("*.yaml"),
    ]
    texts = {file: read_golden(file) for file in files}
    assert [str(file) for file, text in texts.items() if masked(text) != text] == [] and len(texts) > 150


LOG = """\
 [2026-01-01 00:00:00.000000] iteration        3/       8 | lr: 1.0E-04 | lm loss: 6.9 | grad norm: 1.234 |
  tokenizer_type .................................. GPT2BPETokenizer
> padded vocab (size: 50257) with 47 dummy tokens; sk-learn-like-names-with-many-dashes-in-them
docker://registry.example:5000/nvidia/pytorch:20.12-py3@sha256:0a1b2c http://node-1:29500/x?y=a@b http://[::1]:80/a@b
line 30: HF_TOKEN: must be exported in the shell that submits this job
Unauthorized: the bearer authentication-was-refused; unexpected token: abc
"""


@example(text=LOG)
@given(text=st.text())
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert masked(text) == text and masked_words([text]) == [text] and masked_tree({"a": [text]}) == {"a": [text]}


PIECES = st.sampled_from("'\"\\ \n*a1/:@;&,)=-") | st.sampled_from(
    [
        *("TOKEN=", "--token ", '"token": ', "***", "://", "u:p@h", "'\\''", "'\"'\"'", "--", "Authorization: Bearer "),
        *("hf_abcdefghijklmnopqrstuvwxyz012345", "x-api-key: ", "eyJhbGciOi.eyJzdWIi.abc"),
        *("password", "password: ", "token = ", " ..... ", "API key: ", "http://", "hunter2", "<token>", "('", "', '"),
        *("login ", " password ", "curl -u me:", "| ", "sig=", "0123456789abcdef01234", "name: ", "value: ", '\\"'),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"),
    ]
)


@settings(max_examples=examples(500))
@given(text=st.lists(PIECES, max_size=14).map("".join))
@example(text='password: "token": ')
@example(text='password: TOKEN="')
@example(text='password: "token"a1 token = "a"b c')
def test_masking_is_idempotent(text: str) -> None:
    once = masked(text)
    assert masked(once) == once
    words = masked_words(text.split("\n"))
    assert masked_words(words) == words
    assert not is_masked("X", once)


@pytest.mark.fault(
    section="Safety",
    fault="A secret in the log line that becomes a reason",
    promise="The exported reason does not contain it.",
)
def test_a_reason_from_a_log_is_exported_without_its_secret(tmp_path: Path) -> None:
    reason = "HTTPError: 401 for https://me:hunter22@h/x with HF_TOKEN=abcdefg"
    failed = Outcome(columns=CRASHED | {"verdict_reason": reason})
    figure = record_figure(new_ledger(tmp_path), figure_13(), "cpu", lambda *_: failed)
    rows = export_rows(figure_13(), figure.results)
    for text in (
        b"".join(pieces(name, case_columns(figure_13()), {"cases": rows})).decode() for name in ("csv", "json")
    ):
        assert "hunter22" not in text and "abcdefg" not in text
        assert "401 for https://me:***@h/x with HF_TOKEN=***" in text


@pytest.mark.fault(
    section="Safety",
    fault="A secret in one of 155 common spellings: environment, INI, YAML, JSON, netrc, argument dumps, options, "
    "headers, URLs, tokens, keys",
    promise="Masked.",
)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_common_spelling_of_a_secret_is_masked(spelling: str) -> None:
    text = filled(spelling)
    for before, after in (("", ""), ("", "\n"), ("2026-01-01 12:00:00 INFO loss: 1.5 |\n", "\niteration 1/2 |\n")):
        found = masked(f"{before}{text}{after}")
        assert not any(secret in found for secret in secrets_of(spelling)), found
        assert MASK in found and masked(found) == found
        assert found.startswith(before) and found.endswith(after)


def test_the_documents_give_the_number_of_spellings_in_the_table() -> None:
    documents = (CHECKOUT / "docs" / "reference" / "bundle.md").read_text(encoding="utf-8")
    assert f"{len(SPELLINGS)} of {len(SPELLINGS)} common spellings" in documents
    assert len(set(SPELLINGS)) == len(SPELLINGS) >= 95


def test_a_line_that_resembles_a_secret_is_unchanged() -> None:
    texts = [text for line in HARMLESS for text in (line, f"0: {line}\n")]
    assert [text for text in texts if masked(text) != text] == []


REAL_LOGS = sorted((CHECKOUT / "tests" / "unit").rglob("logs/*.log"))
BUNDLES = sorted((CHECKOUT / "experiments" / "results").rglob("*.tar.zst"))


@pytest.mark.parametrize("log", REAL_LOGS, ids=lambda log: log.stem)
def test_a_real_log_without_secrets_is_unchanged(log: Path) -> None:
    text = log.read_text(encoding="utf-8", errors="surrogateescape")
    assert masked(text) == text


@pytest.mark.slow
@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: f"{bundle.parent.name}-{bundle.stem}")
def test_every_file_of_a_shipped_bundle_is_unchanged(bundle: Path) -> None:
    with unpacked(bundle) as (folder, paths):
        for path in paths:
            text = (folder / path).read_text(encoding="utf-8", errors="surrogateescape")
            assert masked(text) == text, path


SHORT, LONG = 8_000, 32_000
"""Characters."""
SEEDS = words_of(
    "TOKEN= token TOKEN=' TOKEN=\" TOKEN='\\'' 'TOKEN=a TOKEN=) eyJ eyJaaaaaaaaaaa. eyJaaaaaaaaaaa.eyJaaaaaaa sk- "
    '-sk-a1 ://a: ://a:b@ a:@ -----BEGIN- - --token\t "token":" TOKEN="\\ A a= x-token: hf_ github_pat_ AKIA '
    '/a1B TOKEN=/a token: password: password:a1 key: key=a1 \'key="a1" token=.... sig=a& TOKEN="" $6$ <token>'
)
SEEDS += [
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----a-b",
    "--token ",
    "bearer ",
    *(
        "token = ",
        "password = ",
        "hf_token ..... ",
        " ....",
        "| token ",
        "login ",
        "login a\n",
        "login -p",
        "mysql -u ",
    ),
    *(
        "curl -u a:",
        "password is ",
        "name: token ",
        "value ",
        "name:\n",
        "token: a #",
        "key=" + "a" * 300,
        "https://a@",
    ),
    *("0123456789:AA", "('token', ", '\\"token\\": \\"', "x-token: ", "a-b=A=TOKEN=1 ", "set -x TOKEN "),
    "TOKEN='\" ",
    "\t",
]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "://", "TOKEN=", "--token\t", "-----BEGIN PRIVATE KEY-----"])
def test_masking_time_is_proportional_to_the_length(before: str) -> None:
    """Four times as many beginnings of a pattern take four times as long. Quadratic time would take 16 times."""

    def is_linear(seed: str) -> bool:
        times = (masking_s(before + seed * (length // len(seed))) for length in (SHORT, LONG))
        return next(times) * 2 * LONG / SHORT > next(times)

    # More than one trial, because a machine may be busy.
    assert [seed for seed in SEEDS if not any(is_linear(seed) for _ in range(5))] == []


def masking_s(text: str) -> float:
    """CPU time of masking, in seconds."""
    start = time.process_time()
    masked(text)
    return time.process_time() - start


@pytest.mark.slow
def test_a_log_of_two_megabytes_is_masked_in_seconds() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz01234567"
    log = LOG * (2_000_000 // len(LOG)) + f"HF_TOKEN={secret}\n"
    start = time.process_time()
    found = masked(log, known=["0a1b2c"])
    assert time.process_time() - start < 120
    assert secret not in found and "0a1b2c" not in found


@pytest.mark.parametrize(
    "url", ["slack://T1JJ3T/A1BRT/TIiajk", "mailto://ada:passw0rd@example.org", "json://h/t0ken?x=y"]
)
def test_nothing_of_a_message_services_url_but_its_scheme_is_in_a_command_line(url: str) -> None:
    scheme = url.partition(":")[0]
    words = masked_words(["repro", "wait", "--notify", url, f"--notify={url}", "--json"])
    assert words == ["repro", "wait", "--notify", f"{scheme}://***", f"--notify={scheme}://***", "--json"]
    assert masked_words(words) == words
