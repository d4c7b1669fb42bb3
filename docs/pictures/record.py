"""Recorder of the terminal session of the README: runs the commands, and writes an animated SVG.

    python docs/pictures/record.py        # in a checkout with the extras local, plot and docs; takes some minutes

The commands run for real in a pseudo-terminal, in an empty home folder of `repro`. The recording shortens pauses. The
SVG has no script: a CSS animation shows each picture of the terminal. It follows the reader's light or dark colours. If
the reader prefers reduced motion, it shows the last picture.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("session.svg")
SESSION = (
    "repro bundle verify experiments/results/h200/figure-17.tar.zst",
    "repro plan table-1 --cluster selene",
    "repro submit figure-13 --cluster local --wait",
)
COLUMNS, ROWS = 100, 34
IDLE_S, READ_S, TYPED_S = 0.4, 6.0, 0.04
"""Longest pause within a command, time to read the output of a command, and time of a typed character."""
LEAST_S = 0.12
"""Least time of a picture. A picture that is replaced earlier is left out."""
SLOWEST_REDRAW_S = 5.0
"""Real time between two pictures of a progress bar; the recording shows one of them."""
LINE, CHARACTER, MARGIN = 18.0, 8.43, 14.0
COLOURS = {"green": "g", "red": "r", "brown": "y", "yellow": "y", "cyan": "c"}
STYLE = """
svg { --b: #ffffff; --e: #d0d7de; --t: #1f2328; --p: #0969da; --g: #1a7f37; --r: #cf222e; --y: #9a6700; --c: #1b7c83 }
@media (prefers-color-scheme: dark) { svg { --b: #0d1117; --e: #30363d; --t: #e6edf3; --p: #58a6ff; --g: #3fb950;
  --r: #f85149; --y: #d29922; --c: #39c5cf } }
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre;
  fill: var(--t) }
.p { fill: var(--p) } .g { fill: var(--g) } .r { fill: var(--r) } .y { fill: var(--y) } .c { fill: var(--c) }
.f { visibility: hidden; animation-duration: %ss; animation-iteration-count: infinite;
  animation-timing-function: step-end }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """Lines of the terminal, as pairs of text and colour class, and how long they are shown, in seconds."""

    lines: tuple[tuple[tuple[str, str], ...], ...]
    seconds: float


class Terminal:
    """Screen of the session. `pictures` are the recorded ones."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.pictures: list[Picture] = []

    def feed(self, data: bytes) -> None:
        """Print the bytes of a program."""
        self._stream.feed(data)

    def record(self, seconds: float) -> None:
        """Record the screen as shown for this time. An unchanged screen stays longer; a very short one is replaced."""
        lines = tuple(self._line(number) for number in range(ROWS))
        last = self.pictures[-1] if self.pictures else None
        if last is not None and (last.lines == lines or last.seconds < LEAST_S):
            seconds += self.pictures.pop().seconds
        self.pictures.append(Picture(lines, seconds))

    def _line(self, number: int) -> tuple[tuple[str, str], ...]:
        row = self._screen.buffer[number]
        cells = [row[column] for column in range(COLUMNS)]
        groups = groupby(cells, key=lambda cell: COLOURS.get(cell.fg, ""))
        parts = [("".join(cell.data for cell in group), colour) for colour, group in groups]
        if parts[0][0].startswith("$ "):
            parts[0] = (parts[0][0], "p")
        parts[-1] = (parts[-1][0].rstrip(), parts[-1][1])
        return tuple(part for part in parts if part[0])


def output_of(command: str, folder: Path) -> Iterator[tuple[bytes, float]]:
    """Run a command in a pseudo-terminal. Yield its output in blocks, each with the seconds that passed before it."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(CHECKOUT)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.execvpe(
            "bash",
            ["bash", "-c", f"stty cols {COLUMNS} rows {ROWS}; exec {command}"],
            {**os.environ, "PATH": path, "TERM": "xterm-256color", "REPRO_HOME": str(folder)},
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before = time.monotonic()
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            break
        if not block:
            break
        now = time.monotonic()
        yield block, now - before
        before = now
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"record.py: {command}: exit code {os.waitstatus_to_exitcode(status)}")


def recorded(folder: Path) -> list[Picture]:
    """Run the session. Return its pictures."""
    terminal = Terminal()
    for command in SESSION:
        terminal.feed(b"\x1b[2J\x1b[H$ ")
        terminal.record(0.6)
        for start in range(0, len(command), 3):
            terminal.feed(command[start : start + 3].encode())
            terminal.record(3 * TYPED_S)
        terminal.feed(b"\r\n")
        waited = 0.0
        for block, passed in output_of(command, folder):
            waited += passed
            if waited >= SLOWEST_REDRAW_S or not terminal.pictures:
                terminal.record(IDLE_S)
                waited = 0.0
            terminal.feed(block)
        terminal.record(READ_S)
    return terminal.pictures


def svg(pictures: list[Picture]) -> str:
    """Return the animated SVG of the pictures."""
    total = sum(picture.seconds for picture in pictures)
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    frames: list[str] = []
    rules: list[str] = []
    start = 0.0
    for number, picture in enumerate(pictures):
        begin, end = 100 * start / total, 100 * (start + picture.seconds) / total
        start += picture.seconds
        last = number == len(pictures) - 1
        rules.append(
            f".f{number} {{ animation-name: a{number} }} @keyframes a{number} {{ 0% {{ visibility: "
            f"{'visible' if number == 0 else 'hidden'} }} {begin:.2f}% {{ visibility: visible }} "
            f"{end:.2f}% {{ visibility: {'visible' if last else 'hidden'} }} }}"
        )
        frames.append(f'<g class="f f{number}">{"".join(_texts(picture))}</g>')
    shown = f".f {{ animation: none }} .f{len(pictures) - 1} {{ visibility: visible }}"
    still = f"@media (prefers-reduced-motion) {{ {shown} }}"
    style = STYLE % f"{total:.1f}" + "\n".join(rules) + "\n" + still
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">\n'
        f"<title>A terminal session: {escape('; '.join(SESSION))}</title>\n<style>{style}</style>\n"
        f'<rect x="1" y="1" width="{width - 2:.0f}" height="{height - 2:.0f}" rx="8" fill="var(--b)" '
        'stroke="var(--e)"/>\n' + "\n".join(frames) + "\n</svg>\n"
    )


def _texts(picture: Picture) -> Iterator[str]:
    for number, line in enumerate(picture.lines):
        column = 0
        for text, colour in line:
            if text.strip():
                x, y = MARGIN + column * CHARACTER, MARGIN + (number + 0.75) * LINE
                style = f' class="{colour}"' if colour else ""
                length = len(text) * CHARACTER
                yield (
                    f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" xml:space="preserve"{style}>'
                    f"{escape(text, quote=False)}</text>"
                )
            column += len(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        FILE.write_text(svg(recorded(Path(home))), encoding="utf-8")
    print(f"{FILE.relative_to(CHECKOUT)}: {FILE.stat().st_size / 1000:.0f} kB")
