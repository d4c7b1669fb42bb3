"""Predicted times compared with published and measured times: the tables of docs/explanation/predictions.md.

    python -m benchmarks.duration           # prints the tables of the page
    python -m benchmarks.duration --write   # writes them into the page
    python -m benchmarks.duration --rows    # prints every time with its prediction
    python -m benchmarks.duration --fit     # fits the constants again; exit code 1 if they are not the shipped ones

`benchmarks.fits` describes the fit, `benchmarks.left_out` the errors of each class of predictions.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from benchmarks.fits import fit
from benchmarks.left_out import judged
from benchmarks.measured_times import CHECKOUT, HOST_BOUND, Row, host_bound
from benchmarks.prediction_tables import class_summary, class_table, data_sets, error_table, order_table
from orchestrator.megatron.time_constants import FITTED, Basis, Constants

PAGE = CHECKOUT / "docs" / "explanation" / "predictions.md"
BEGIN, END = "<!-- python -m benchmarks.duration -->", "<!-- end of benchmarks.duration -->"
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare predicted times with published and measured times.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the tables into docs/explanation/predictions.md")
    what.add_argument("--rows", action="store_true", help="print every time with its prediction")
    what.add_argument("--fit", action="store_true", help="fit the constants again")
    options = parser.parse_args()
    if options.fit:
        return _print_fit()
    if options.rows:
        for one in data_sets():
            _print_rows(f"{one.title} ({one.use})", one.rows)
        _print_rows(f"{HOST_BOUND} (only shown)", host_bound())
        return 0
    sentences = "\n".join(f"* {class_summary(basis, judged())}." for basis in Basis)
    tables = "\n\n".join((sentences, class_table(judged()), error_table(data_sets()), order_table()))
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}")
    else:
        print(tables)
    return 0


def _print_fit() -> int:
    again = fit()
    print(f"{'constant':<26}{'shipped':>14}{'fitted again':>14}")
    differences = 0
    for field in dataclasses.fields(Constants):
        shipped, fitted_again = getattr(FITTED, field.name), getattr(again, field.name)
        print(f"  {field.name:<24}{shipped:>14.4g}{fitted_again:>14.4g}")
        differences += abs(fitted_again / shipped - 1) > REFIT
    return 1 if differences else 0


def _print_rows(title: str, part: Sequence[Row]) -> None:
    print(f"{title:<70}{'actual ms':>10}{'predicted ms':>14}{'+-':>6}{'error %':>9}")
    for row in part:
        predicted = row.predicted(FITTED)
        times = f"{row.actual_ms:>10.0f}{predicted.iteration_ms:>14.0f}{100 * predicted.uncertainty:>4.0f} %"
        print(f"  {row.name:<68}{times}{100 * row.error(FITTED):>9.1f}{'' if row.is_inside else '  outside'}")


if __name__ == "__main__":
    sys.exit(main())
