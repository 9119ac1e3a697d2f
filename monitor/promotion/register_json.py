"""The state of the register as JSON: floats keep every bit, and all that is read is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from monitor.promotion.betting import FRACTIONS, Bets, Clip, Run, Watch
from monitor.promotion.following import Follower
from monitor.promotion.guard import Guard
from monitor.promotion.on_trial import Before, OnTrial
from monitor.promotion.record_json import factors, of_factor, text
from monitor.promotion.register_state import Configured, RegisterState
from monitor.promotion.trial import Trial
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.document import (
    LARGEST,
    LEAST_POSITIVE,
    check_depth,
    number,
    numbers,
    part,
    parts,
    shown,
    whole,
)
from monitor.recalibration.document import (
    factors as factors_on_deviation,
)
from monitor.recalibration.methods import METHODS
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator, Recalibrator
from monitor.recalibration.versioned_document import read_method

FORMAT = "calibration-monitor/register/1"

Value = TypeVar("Value")


class InvalidRegister(ValueError):
    """A text does not describe a state of the register."""


class OtherRegister(InvalidRegister):
    """It is of a format that another version of the monitor reads."""


# ---- writing


def register_to_json(state: RegisterState) -> str:
    """One object; ASCII."""
    content = {
        "format": FORMAT,
        "selection": state.selection,
        "class_selection": state.class_selection,
        "previous": list(state.previous),
        "class_previous": list(state.class_previous),
        "sent": list(state.sent),
        "configured": {
            "recalibrator": state.configured.recalibrator,
            "class_recalibrator": state.configured.class_recalibrator,
        },
        "pinned": state.pinned,
        "sequence": int(state.sequence),
        "spent": dict(state.spent),
        "trials": [_of_trial(entry) for entry in state.trials],
        "guards": [_of_guard(guard) for guard in state.guards],
        "befores": [_of_before(before) for before in state.befores],
        "followers": {name: _of_follower(one) for name, one in state.followers.items()},
        "entry": state.entry,
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _of_trial(entry: OnTrial) -> Document:
    trial = entry.trial
    return {
        "slice": trial.slice,
        "recalibrator": _of_recalibrator(trial.recalibrator),
        "number": int(trial.number),
        "clip": _of_clip(trial.clip),
        "bets": {
            "tracks": int(trial.bets.tracks),
            "total": trial.bets.total,
            "better": list(trial.bets.better),
            "worse": list(trial.bets.worse),
        },
        "unsound": trial.unsound,
        "factors": [of_factor(factor) for factor in entry.factors],
        "shrinks": bool(entry.shrinks),
        "proven": bool(entry.proven),
        "late": entry.late,
    }


def _of_guard(guard: Guard) -> Document:
    return {
        "slice": guard.slice,
        "recalibrator": _of_recalibrator(guard.recalibrator),
        "clip": _of_clip(guard.clip),
        "runs": [
            {
                "statistic": run.statistic,
                "cumulative": run.cumulative,
                "tracks": int(run.tracks),
                "total": run.total,
            }
            for run in guard.watch.runs
        ],
    }


def _of_before(before: Before) -> Document:
    return {
        "slice": before.slice,
        "recalibrator": _of_recalibrator(before.recalibrator),
        "rows": before.rows,
    }


def _of_follower(follower: Follower) -> Document:
    return {
        "scaling": _of_recalibrator(follower.scaling),
        "in_force": list(follower.in_force),
        "approved": list(follower.approved),
        "full": follower.full,
        "late": follower.late,
        "too_late": follower.too_late,
    }


def _of_clip(clip: Clip) -> Document:
    return {"most": clip.most, "loss": clip.loss, "gain": clip.gain, "rows": clip.rows}


def _of_recalibrator(recalibrator: Recalibrator) -> Document:
    return {"method": recalibrator.method, "parameters": recalibrator.parameters()}


# ---- reading


def register_from_json(body: str | bytes) -> RegisterState:
    """The inverse of register_to_json. Raises OtherRegister, InvalidRegister for anything else."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRegister(f"no JSON: {error}.") from None
    try:
        check_depth(content)
        content = part({"state": content}, "state")
        found = text(content, "format")
        if found != FORMAT:
            raise OtherRegister(
                f"'format' is {shown(found)}, but this monitor reads {FORMAT!r}: use the monitor "
                "that wrote it, or promote anew."
            )
        return _state(content)
    except InvalidRecalibrator as error:
        raise InvalidRegister(f"no state: {error}") from None


def _state(content: Document) -> RegisterState:
    configured = part(content, "configured")
    spent = part(content, "spent")
    return RegisterState(
        text(content, "selection"),
        text(content, "class_selection"),
        _texts(content, "previous"),
        _texts(content, "class_previous"),
        _texts(content, "sent"),
        Configured(text(configured, "recalibrator"), text(configured, "class_recalibrator")),
        _truth(content, "pinned"),
        whole(content, "sequence", 0),
        {name: whole(spent, name, 0) for name in spent},
        _each(content, "trials", _trial),
        _each(content, "guards", _guard),
        _each(content, "befores", _before),
        _by_name(content, "followers", _follower),
        None if content.get("entry") is None else whole(content, "entry", 0),
    )


def _trial(content: Document) -> OnTrial:
    bets = part(content, "bets")
    trial = Trial(
        text(content, "slice"),
        _recalibrator(content, "recalibrator"),
        whole(content, "number"),
        _clip(content),
        Bets(
            whole(bets, "tracks", 0),
            number(bets, "total"),
            numbers(bets, "better", len(FRACTIONS)),
            numbers(bets, "worse", len(FRACTIONS)),
        ),
        text(content, "unsound"),
    )
    return OnTrial(
        trial,
        factors(content, "factors"),
        _truth(content, "shrinks"),
        _truth(content, "proven"),
        number(content, "late", 0.0, 1.0),
    )


def _guard(content: Document) -> Guard:
    runs = tuple(
        Run(
            number(run, "statistic", 0),
            number(run, "cumulative", 0),
            whole(run, "tracks", 0),
            number(run, "total"),
        )
        for run in parts(content, "runs", len(FRACTIONS))
    )
    recalibrator = _recalibrator(content, "recalibrator")
    return Guard(text(content, "slice"), recalibrator, _clip(content), Watch(runs))


def _before(content: Document) -> Before:
    rows = number(content, "rows", 0) if "rows" in content else 0.0
    return Before(text(content, "slice"), _recalibrator(content, "recalibrator"), rows)


def _follower(content: Document) -> Follower:
    scaling = _recalibrator(content, "scaling")
    if not isinstance(scaling, AdaptiveScaling):
        raise InvalidRecalibrator(
            f"'scaling.method' is {scaling.method!r}: it must be {AdaptiveScaling.method!r}."
        )
    in_force, approved = (factors_on_deviation(content, name) for name in ("in_force", "approved"))
    if not len(in_force) == len(approved) == scaling.k:
        raise InvalidRecalibrator(
            f"'in_force' and 'approved' have {len(in_force)} and {len(approved)} factors: they "
            f"must have {scaling.k}, as 'scaling' has."
        )
    full, late = number(content, "full", 1.0, LARGEST), number(content, "late", 0.0, 1.0)
    return Follower(scaling, in_force, approved, full, late, text(content, "too_late"))


def _clip(content: Document) -> Clip:
    clip = part(content, "clip")
    most = number(clip, "most", LEAST_POSITIVE, LARGEST)
    return Clip(
        most,
        number(clip, "loss", LEAST_POSITIVE, most),
        number(clip, "gain", LEAST_POSITIVE, most),
        number(clip, "rows", 1.0, LARGEST),
    )


def _recalibrator(content: Document, name: str) -> Recalibrator:
    return read_method(part(content, name), name, METHODS)


def _truth(content: Document, name: str) -> bool:
    value = content.get(name)
    if not isinstance(value, bool):
        raise InvalidRecalibrator(f"'{name}' is {shown(value)}: it must be true or false.")
    return value


def _texts(content: Document, name: str) -> tuple[str, ...]:
    values = content.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidRecalibrator(f"'{name}' is {shown(values)}: it must be a list of strings.")
    return tuple(values)


def _each(content: Document, name: str, read: Callable[[Document], Value]) -> tuple[Value, ...]:
    return tuple(
        _inside(f"{name}[{i}]", read, one) for i, one in enumerate(parts(content, name, fewest=0))
    )


def _by_name(content: Document, name: str, read: Callable[[Document], Value]) -> dict[str, Value]:
    found = part(content, name)
    return {key: _inside(f"{name}.{key}", read, part(found, key)) for key in found}


def _inside(where: str, read: Callable[[Document], Value], content: Document) -> Value:
    try:
        return read(content)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{where}': {error}") from None
