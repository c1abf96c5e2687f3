"""Meters besides the clock: memory, parameters, and the time of an import."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile

from eve_pyro.bench.harness import Step


def returned(step: Step) -> float:
    """Meter of steps that measure something themselves, and return it.

    Example:
        >>> returned(lambda: 3)
        3.0
    """
    result: Any = step()
    return float(result)


def peak_memory(step: Step) -> float:
    """Meter of the most bytes of tensors that a step holds at once, beyond those held before.

    Counted by torch's own allocator: what the process's resident memory adds to it (the
    compiler's, pages that were never given back) would say more about the past than of the step.
    A step that replaces its gradients counts them, in every contestant.

    Example:
        >>> peak_memory(lambda: [torch.zeros(1000), torch.zeros(1000)])
        8000.0
    """
    with _silent_stderr(), tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [e for e in events if e.get("name") == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return float(peak)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's native code reports to stderr that it starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def parameters(network: nn.Module) -> Step:
    """A step that returns the number of a network's parameters.

    Example:
        >>> parameters(nn.Linear(3, 1))()
        4
    """
    return lambda: sum(p.numel() for p in network.parameters())


def import_time(statement: str) -> Step:
    """A step that returns the seconds which an import takes in a fresh process.

    Example:
        >>> returned(import_time("import abc")) < 10
        True
    """
    code = f"import time; start = time.perf_counter(); {statement}"
    code += "; print(time.perf_counter() - start)"

    def step() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return float(done.stdout)

    return step
