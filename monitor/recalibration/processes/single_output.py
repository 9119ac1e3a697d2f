"""Reads a stack of latent values with one process of one output in each dimension."""

from __future__ import annotations

from monitor.recalibration.document import part, parts
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator


def single_outputs(parameters: Document, name: str, k: int | None = None) -> LatentStack:
    """Of k dimensions, or of as many as there are. Raises InvalidRecalibrator."""
    document = part(parameters, name)
    try:
        stack = LatentStack.from_parameters(document, len(parts(document, "processes", k)))
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{name}': {error}") from None
    outputs = [process.outputs for process in stack.processes]
    if set(outputs) != {1}:
        raise InvalidRecalibrator(
            f"'{name}' has processes of {outputs} outputs: every dimension has one of one output."
        )
    return stack
