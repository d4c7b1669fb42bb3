"""Time for which the GPU waited for its host: samples of whether the compute stream has work left.

The stream is empty when the GPU has finished all work that the host has launched. A stream that waits for another
rank is not empty, because the wait itself is queued work.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import torch

from orchestrator.pretrain.graph import LAUNCHING

_PERIOD_S = 0.001


class HostWait:
    """Samples the current stream of a device every millisecond in a thread, from `restart` to `finish`."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.current_stream(device)
        self._lock = threading.Lock()
        self._is_on = False
        self._waited_s = self._last_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="host-wait", daemon=True)

    def __enter__(self) -> HostWait:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def restart(self) -> None:
        """Begin a new measurement."""
        with self._lock:
            self._waited_s, self._last_s, self._is_on = 0.0, time.perf_counter(), True

    def finish(self) -> float:
        """End the measurement; returns the seconds for which the stream was empty."""
        with self._lock:
            self._is_on = False
            return self._waited_s

    def _sample(self) -> None:
        torch.cuda.set_device(self._device)  # a new thread's device is the first GPU
        while not self._ended.wait(_PERIOD_S):
            with self._lock:
                if not self._is_on:
                    continue
                now_s = time.perf_counter()
                if self._is_empty():
                    self._waited_s += now_s - self._last_s
                self._last_s = now_s

    def _is_empty(self) -> bool:
        """Return whether the GPU has finished all launched work and no graph is being launched."""
        if not LAUNCHING.acquire(blocking=False):
            return False
        try:
            return self._stream.query()
        finally:
            LAUNCHING.release()
