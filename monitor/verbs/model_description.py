"""Which model a verb has applied, and what its Gaussians stand for, for people and programs."""

from __future__ import annotations

from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.gp_cauchy import GpCauchy
from monitor.recalibration.recalibrator import Output
from monitor.verbs.recalibrated import RecalibratedRecording


def model_as_json(made: RecalibratedRecording) -> dict[str, object]:
    """The object `model` of `evaluate --json`."""
    found: dict[str, object] = {
        "version": made.selection.version,
        "method": made.selection.method,
        "output": str(made.output),
    }
    levels = _surrogate_levels(made)
    if levels:
        # Slices are fitted with one level; of a document made by hand the lowest is told.
        found["surrogate_level"] = levels[0]
    return found


def class_model_as_json(selection: ClassSelection) -> dict[str, object]:
    """The object `model` where class probabilities are recalibrated."""
    return {"version": selection.version, "method": selection.method}


def stands_for(made: RecalibratedRecording) -> str:
    """What mean and covariance are, in a line."""
    match made.output:
        case Output.GAUSSIAN:
            return "mean and covariance: the Gaussian that the method gives (output: gaussian)"
        case Output.MOMENTS:
            return (
                "mean and covariance: moments of a distribution of another shape (output: moments)"
            )
        case Output.SURROGATE:
            levels = ", ".join(f"{level:.4g}" for level in _surrogate_levels(made))
            return (
                "mean and covariance: of a Gaussian that stands in for a Cauchy distribution, with "
                f"the same\ncentral interval of {levels} (output: surrogate)"
            )


def measured_under(made: RecalibratedRecording) -> str:
    """Above the measures: what they are measures of."""
    lines = [f"recalibrated by {made.selection.version}", stands_for(made)]
    if made.output is not Output.GAUSSIAN:
        lines.append("NLL, pinball, MPIW, coverage and QCE: of the method's own distribution")
    return "\n".join(lines)


def _surrogate_levels(made: RecalibratedRecording) -> list[float]:
    """The levels of the recalibrators that served any row, ascending."""
    shares = () if made.serving is None else made.serving.shares
    serving = [share.recalibrator for share in shares]
    return sorted({one.surrogate_level for one in serving if isinstance(one, GpCauchy)})
