"""Data sets of tokens for Megatron-LM: random ones, or those of a text, by the tool of the program.

The format is version 1 of its indexed data set (megatron/data/indexed_dataset.py, now
megatron/core/datasets/indexed_dataset.py). PREFIX.bin has the tokens of all documents. PREFIX.idx has their lengths,
their positions in bytes, and the number of each document's first sequence.
"""

from __future__ import annotations

import os
import random
import shlex
import struct
import subprocess
import sys
from array import array
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.programs.record import DATA_FILES, TextFile, TokenData

DOCUMENTS = 1000
"""Documents of random data: the least number of which the smallest part of SC21's --split 969,30,1 is a document."""

DOCUMENT_TOKENS = 16_385
"""A sample of 16,384 tokens and its last label. With one token fewer, the only document of the
smallest part has no whole sample of the tutorials' longest sequence, and Megatron-LM stops."""

_SEED = 1234
_UINT16, _UINT16_BYTES = 8, 2
"""Code and size of the tokens' type. Megatron-LM uses it for vocabularies of fewer than 65,500 entries."""


class MegatronTokens(TokenData):
    """Data set of tokens of Megatron-LM. The Python of a text needs torch, numpy, six and nltk."""

    header = b"MMIDIDX\x00\x00"
    tool = "tools/preprocess_data.py"
    of_text = ("checkout", "vocab_file", "merge_file")

    def make(self, text: TextFile | None, paths: Mapping[str, Path], folder: Path) -> tuple[Path, ...]:
        """Write 1,000 documents of 16,385 random tokens, or the documents of the text; return the two files."""
        return self._random(folder) if text is None else self._tokenized(text, paths, folder)

    def _tokenized(self, text: TextFile, paths: Mapping[str, Path], folder: Path) -> tuple[Path, ...]:
        """Run the tool. ReproError if the checkout or the vocabulary is missing, or if the tool fails."""
        missing = [field for field in self.of_text if not paths[field].exists()]
        if missing:
            what = f"{self.tool} needs {' and '.join(missing)}"
            raise ReproError(Problem(what, f"{text.file}:", "repeat the command"))
        checkout = paths["checkout"]
        command = [text.python, str(checkout / self.tool), "--input", str(text.file)]
        command += ["--output-prefix", str(folder / "data"), "--tokenizer-type", "GPT2BPETokenizer"]
        command += ["--vocab-file", str(paths["vocab_file"]), "--merge-file", str(paths["merge_file"])]
        command += ["--append-eod", "--workers", "1"]
        # The tool looks for the program last, behind an installed megatron-core.
        search = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
        made = tuple(folder / f"data_text_document{ending}" for ending in DATA_FILES)
        if done.returncode != 0 or not all(file.is_file() for file in made):
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            what = f"{self.tool} failed: {lines[-1] if lines else f'exit code {done.returncode}'}"
            hint = f"--python names a Python with the program's packages; the command was: {shlex.join(command)}"
            raise ReproError(Problem(what, f"{text.file}:", hint))
        return made

    def _random(self, folder: Path) -> tuple[Path, ...]:
        """Write random tokens: 33 MB, the same bytes on each machine.

        All documents have the same tokens, each in another rotation.
        """
        data, index = made = tuple(folder / f"data{ending}" for ending in DATA_FILES)
        generator = random.Random(_SEED)
        # random() has the same sequence in all versions of Python; randrange() need not.
        tokens = [int(generator.random() * self.vocabulary) for _ in range(DOCUMENT_TOKENS)]
        document = _little_endian(array("H", tokens))
        with data.open("wb") as file:
            for i in range(DOCUMENTS):
                start = _UINT16_BYTES * (i * 16 % DOCUMENT_TOKENS)
                file.write(document[start:] + document[:start])
        starts = range(0, DOCUMENTS * DOCUMENT_TOKENS * _UINT16_BYTES, DOCUMENT_TOKENS * _UINT16_BYTES)
        # One sequence in each document.
        head = self.header + struct.pack("<QBQQ", 1, _UINT16, DOCUMENTS, DOCUMENTS + 1)
        columns = array("i", [DOCUMENT_TOKENS] * DOCUMENTS), array("q", starts), array("q", range(DOCUMENTS + 1))
        index.write_bytes(head + b"".join(map(_little_endian, columns)))
        return made


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
