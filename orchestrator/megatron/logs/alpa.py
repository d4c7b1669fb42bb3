"""What Alpa's benchmark of Megatron-LM writes: rows of a table in a file, and the same on rank 0's output.

Source: alpa/benchmark/megatron/ of the OSDI'22 artifact. The file has a row for each measurement, appended, fields by
tabs and no heading; lines with # are comments. Their last but one field is a Python dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.megatron.logs.scan import NUMBER, line_end

_NAMES = ("exp_name", "instance", "num_hosts", "num_devices_per_host", "model_name", "method", "value", "time_stamp")
_WORD = b"exp_name: "
_NUMBER = NUMBER.decode()
_TFLOPS = re.compile(rf"'tflops': ({_NUMBER})[,}}]")
_PARAMETERS = re.compile(rf"'param(?:eter)?_count': ({_NUMBER})[,}}]")
_COUNT = re.compile("[0-9]{1,9}")
_LONGEST_ROW = 4000


@dataclass(frozen=True, slots=True)
class AlpaRow:
    """One measurement. `tflops` are per GPU, and None where it failed or ran out of memory: Alpa writes -1.

    `num_devices_per_host` is as written: Alpa writes 0 for 8 GPUs on one host.
    """

    exp_name: str
    instance: str
    num_hosts: int
    num_devices_per_host: int
    model_name: str
    method: str
    tflops: float | None
    parameters_billion: float | None
    time_stamp: str


def table_rows(table: bytes) -> Iterator[AlpaRow]:
    """Of such a file, in its order; lines that are no row are passed over."""
    for line in table.splitlines():
        if len(line) <= _LONGEST_ROW and not line.lstrip().startswith(b"#"):
            row = _row(line.split(b"\t"))
            if row is not None:
                yield row


def printed_row(log: bytes, start: int, end: int) -> AlpaRow | None:
    """The last that rank 0 printed: each field after its name, two blanks between them."""
    at = log.rfind(_WORD, start, end)
    while at >= 0:
        pieces = log[at : line_end(log, at, end)].split(b"  ")
        told = dict(piece.partition(b": ")[::2] for piece in pieces)
        row = _row([told.get(name.encode(), b"") for name in _NAMES])
        if row is not None:
            return row
        at = log.rfind(_WORD, start, at)
    return None


def _row(fields: Sequence[bytes]) -> AlpaRow | None:
    """None where a field is missing, or what counts hosts or devices is no number."""
    texts = [field.decode("utf-8", errors="replace").strip() for field in fields]
    if len(texts) != len(_NAMES) or not all(texts):
        return None
    experiment, instance, hosts, devices, model, method, value, at = texts
    if not (_COUNT.fullmatch(hosts) and _COUNT.fullmatch(devices)):
        return None
    tflops, parameters = _TFLOPS.search(value), _PARAMETERS.search(value)
    return AlpaRow(
        exp_name=experiment,
        instance=instance,
        num_hosts=int(hosts),
        num_devices_per_host=int(devices),
        model_name=model,
        method=method,
        tflops=float(tflops[1]) if tflops is not None and float(tflops[1]) > 0 else None,
        parameters_billion=float(parameters[1]) if parameters is not None else None,
        time_stamp=at,
    )
