"""Parser of the result rows of Alpa's benchmark of Megatron-LM, which prints no iteration lines.

Sources: osdi22_artifact/megatron/benchmark_gpt_one_case.py and `write_tsv` of benchmark/util.py in alpa-projects/alpa
at e0ae8bf849. No log of a run on GPUs was available. Rank 0 appends the row to a table, and prints it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from orchestrator.megatron.logs.fact_lines import NUMBER, line_end
from orchestrator.megatron.model import ModelShape

ALPA_PROGRAM = "megatron-alpa"
"""Name of the program that runs the benchmark."""

TABLE = "megatron_results_e2e.tsv"
"""Name of the table, in the working folder of rank 0. benchmark_gpt.py of the artifact uses the same name."""

TABLE_BYTES = 64 * 1024
"""Bytes at the end of a table that are read: hundreds of rows."""

_TOKEN = b"exp_name: "
# NumPy 2 prints its numbers as np.float64(55.89).
_TFLOPS = re.compile(rf"'tflops': (?:np\.float64\()?({NUMBER.decode()})\)?[,}}]")
_PARAMETER_COUNT = re.compile(rf"'param(?:eter)?_count': ({NUMBER.decode()})[,}}]")
_COUNT = re.compile("[0-9]{1,9}")
_LONGEST_ROW = 4000
_GPUS_PER_HOST = 8
_SAME_COUNT = 1e-6
"""Relative difference of two numbers of parameters that count as equal. Those of two models differ by far more."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """Fields of a row that depend on its case only. The row does not contain the batch size and the layout."""

    num_hosts: int
    num_devices_per_host: int
    parameters_billion: float
    exp_name: str = "e2e"
    instance: str = "p3.16"
    model_name: str = "gpt"
    method: str = "megatron"


@dataclass(frozen=True, slots=True)
class AlpaRow:
    """One measurement of Alpa's benchmark, with the fields as printed.

    `instance` is p3.16 on every machine. `num_devices_per_host` is 0 for 8 GPUs on one host. `value` is a Python
    dictionary with the throughput and the number of parameters.
    """

    exp_name: str
    instance: str
    num_hosts: int
    num_devices_per_host: int
    model_name: str
    method: str
    value: str
    time_stamp: str

    @property
    def tflops(self) -> float | None:
        """TFLOP/s per GPU, which count recomputation whether or not it is on; may be NaN or infinite.

        None without a positive number: Alpa writes -1 for a failed run.
        """
        match = _TFLOPS.search(self.value)
        return None if match is None or float(match[1]) <= 0 else float(match[1])

    @property
    def parameters_billion(self) -> float | None:
        """Number of parameters of the model in billions; None if it is not printed."""
        match = _PARAMETER_COUNT.search(self.value)
        return None if match is None else float(match[1])

    def differences(self, key: RowKey) -> Iterator[str]:
        """Yield each field that is not that of the key: `num_hosts 2, not 1`."""
        for name in (field.name for field in fields(key)):
            own, planned = getattr(self, name), getattr(key, name)
            if name == "parameters_billion" and own is not None and math.isclose(own, planned, rel_tol=_SAME_COUNT):
                continue
            if own != planned:
                yield f"{name} {own}, not {planned}"


_HEADS = tuple(field.name for field in fields(AlpaRow))


def key_of_case(model: ModelShape, gpus: int) -> RowKey:
    """Return the fields of a case's row as the program computes them.

    Its number of parameters (compute_gpt_parameter_count in benchmark/util.py) has no positions and no final norm, and
    a bias for each vocabulary entry.
    """
    h = model.hidden
    layer = h * (3 * h + 1) + h * (h + 1) + h * (4 * h + 1) + 4 * h * (h + 1) + 4 * h
    parameters = model.layers * layer + model.vocab * (h + 1)
    if gpus <= _GPUS_PER_HOST:
        return RowKey(1, gpus % _GPUS_PER_HOST, parameters / 10**9)
    return RowKey(gpus // _GPUS_PER_HOST, _GPUS_PER_HOST, parameters / 10**9)


def row_pattern(key: RowKey) -> str:
    """Return an extended regular expression for the printed row of this key with a finite positive throughput."""
    before = "".join(f"{name}: {getattr(key, name)}  " for name in _HEADS[:-2]).replace(".", "[.]")
    count = repr(key.parameters_billion).replace(".", "[.]")
    value = rf"\{{'tflops': (np\.float64\()?[0-9][0-9.e+-]*\)?, 'parameter_count': {count}\}}"
    return f"{before}value: {value}  time_stamp: [0-9]"


def table_rows(table: bytes) -> Iterator[AlpaRow]:
    """Yield the rows of a result table: one line per measurement, fields separated by tabs.

    The file has no heading. Comments (#) and lines that are not a row are ignored.
    """
    for line in table.splitlines():
        if len(line) <= _LONGEST_ROW and not line.lstrip().startswith(b"#"):
            row = _row(line.split(b"\t"))
            if row is not None:
                yield row


def printed_row(log: bytes, start: int, end: int) -> AlpaRow | None:
    """Return the last row that rank 0 printed: `name: value` fields separated by two blanks."""
    at = log.rfind(_TOKEN, start, end)
    while at >= 0:
        pieces = log[at : line_end(log, at, end)].split(b"  ")
        values = dict(piece.partition(b": ")[::2] for piece in pieces)
        row = _row([values.get(name.encode(), b"") for name in _HEADS])
        if row is not None:
            return row
        at = log.rfind(_TOKEN, start, at)
    return None


def _row(values: Sequence[bytes]) -> AlpaRow | None:
    """Create a row; None if a field is missing, or the number of hosts or devices is not a number."""
    texts = [text.decode("utf-8", errors="replace").strip() for text in values]
    if len(texts) != len(_HEADS) or not all(texts):
        return None
    experiment, instance, hosts, devices, *others = texts
    if not (_COUNT.fullmatch(hosts) and _COUNT.fullmatch(devices)):
        return None
    return AlpaRow(experiment, instance, int(hosts), int(devices), *others)
