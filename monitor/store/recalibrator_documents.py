"""Documents of recalibrators, as `calibration-monitor fit --output` writes them, and of the
register that says which of them are active and on trial; read and checked.

What may stand in a document is said by the classes of the recalibrators; a document differs from a
selection in that each recalibrator stands beside what it rests on. `fitted_on` holds notes for
people, and anything may stand there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import Len

from monitor.frames.marks import Count, Printable, Schema, between
from monitor.frames.slices import RangeBuckets
from monitor.promotion.records import Record
from monitor.promotion.register import Follower
from monitor.promotion.trial import AwaitingGuard, Candidate, Guard
from monitor.recalibration.classes.class_selection import (
    CLASS_METHODS,
    AnySelection,
    ClassSelection,
)
from monitor.recalibration.classes.class_selection import FORMAT as CLASS_FORMAT
from monitor.recalibration.classes.probabilities import ClassRecalibrator
from monitor.recalibration.recalibrator import Basis, InvalidRecalibrator, Recalibrator
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.selection import (
    FORMAT,
    METHODS,
    MOST_SLICES,
    RecalibratorForm,
    Selection,
    described,
    of_methods,
    recalibrator_in,
)
from monitor.store.codec import Codec, Content, InvalidDocument, check_depth, parsed, shown

_NAME = "document"
_REMEDY = (
    "Give a file that `calibration-monitor fit --output` wrote, of this version and for this "
    "purpose."
)


class _FittedForm:
    """Marks a recalibrator with what it rests on."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return between(
            lambda content: (recalibrator_in(content, METHODS), content.get("basis")),
            lambda fitted: described(*fitted),
            of_methods(METHODS, handler, basis=handler.generate_schema(Basis | None)),
        )


_Fitted = Annotated[tuple[Recalibrator, Basis | None], _FittedForm()]


@dataclass(frozen=True, slots=True)
class _Document:
    """The document of a selection, without its version and the notes."""

    dimensions: tuple[Printable, ...]
    fallback: _Fitted
    slices: Annotated[Mapping[str, _Fitted], Len(0, MOST_SLICES)] = field(default_factory=dict)
    ranges: RangeBuckets | None = None
    rejection: Rejection | None = None

    def __post_init__(self) -> None:
        _check_once("dimensions", self.dimensions)
        if self.ranges is not None:
            _check_once("ranges.dimensions", self.ranges.dimensions)
        _check_score(self.rejection, RejectedBy.DEVIATION)
        k = len(self.dimensions)
        if not all(name.isprintable() for name in self.slices):
            raise ValueError("'slices' has names that cannot be printed")
        places = {f"slices.{name}": fitted for name, fitted in self.slices.items()}
        for place, (recalibrator, _) in {"fallback": self.fallback, **places}.items():
            if recalibrator.k not in (None, k):
                raise ValueError(
                    f"'{place}' has {recalibrator.k} dimensions but 'dimensions' names {k}"
                )

    def selection(self, notes: Content) -> Selection:
        """Makes the selection that it describes."""
        bases = {name: basis for name, (_, basis) in self.slices.items() if basis is not None}
        return Selection(
            self.dimensions,
            self.fallback[0],
            {name: recalibrator for name, (recalibrator, _) in self.slices.items()},
            notes,
            self.fallback[1],
            bases,
            self.ranges,
            self.rejection,
        )


@dataclass(frozen=True, slots=True)
class _ClassDocument:
    """The document of a class selection, without its version and the notes."""

    classes: tuple[Printable, ...]
    recalibrator: Annotated[ClassRecalibrator, RecalibratorForm(CLASS_METHODS)]
    rejection: Rejection | None = None

    def __post_init__(self) -> None:
        _check_once("classes", self.classes)
        _check_score(self.rejection, RejectedBy.ENTROPY)
        count = len(self.classes)
        if count == 1:
            raise ValueError("'classes' holds one name: name at least two, or none for any")
        if count and self.recalibrator.classes not in (None, count):
            raise ValueError(
                f"'recalibrator' has {self.recalibrator.classes} classes but 'classes' names "
                f"{count}"
            )

    def selection(self, notes: Content) -> ClassSelection:
        """Makes the selection that it describes."""
        return ClassSelection(self.classes, self.recalibrator, self.rejection, notes)


def _check_once(name: str, names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"'{name}' is {shown(list(names))}: every name must be there once")


def _check_score(rejection: Rejection | None, by: RejectedBy) -> None:
    if rejection is not None and rejection.by is not by:
        raise ValueError(
            f"'rejection.by' is '{rejection.by}': with this 'format' it must be '{by}'"
        )


_CODEC = Codec(_Document, _NAME, _REMEDY, FORMAT)
_CLASS_CODEC = Codec(_ClassDocument, _NAME, _REMEDY, CLASS_FORMAT)


def any_selection_from_json(text: str | bytes) -> AnySelection:
    """Reads what to_json of either returned, its version worked out: nothing is left for later.

    Pure, so that it may run in any thread. Raises InvalidRecalibrator for anything else.
    """
    try:
        content = parsed(text, _NAME, _REMEDY)
        check_depth(content, _NAME)
        if not isinstance(content, dict):
            raise InvalidDocument(f"'{_NAME}' is {shown(content)}: it must be an object. {_REMEDY}")
        notes, claimed = content.pop("fitted_on", None), content.pop("version", "")
        codec = _CLASS_CODEC if content.get("format") == CLASS_FORMAT else _CODEC
        document = codec.read_content(content)
    except InvalidDocument as error:
        raise InvalidRecalibrator(str(error)) from None
    selection = document.selection(notes if isinstance(notes, dict) else {})
    if claimed not in ("", selection.version):
        raise InvalidRecalibrator(
            f"'version' is {shown(claimed)} but the content makes {selection.version!r}: "
            "the document was changed after it was fitted. Fit again, or remove 'version'."
        )
    return selection


# ---- the register


@dataclass(frozen=True, slots=True)
class ConfiguredVersions:
    """Versions that the configuration named when this was written; '' where it named none."""

    recalibrator: str = ""
    class_recalibrator: str = ""


@dataclass(frozen=True, slots=True)
class RegisterState:
    """Recalibrators that are active and on trial at one moment.

    selection, class_selection
               active versions
    previous, class_previous
               versions that a rollback goes back through, the latest last
    sent       versions of documents that people have sent
    pinned     nothing acts by itself
    sequence   of the latest record
    spent      trials begun since the last change, by slice name
    befores    recalibrators of before, where no track has come since
    followers  of adaptive champions, by slice name
    """

    selection: str
    class_selection: str
    previous: tuple[str, ...] = ()
    class_previous: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    configured: ConfiguredVersions = ConfiguredVersions()
    pinned: bool = False
    sequence: Count = 0
    spent: Mapping[str, Count] = field(default_factory=dict)
    trials: tuple[Candidate, ...] = ()
    guards: tuple[Guard, ...] = ()
    befores: tuple[AwaitingGuard, ...] = ()
    followers: Mapping[str, Follower] = field(default_factory=dict)

    @property
    def active(self) -> frozenset[str]:
        """Versions without which the state cannot be used."""
        return frozenset((self.selection, self.class_selection))

    @property
    def named(self) -> frozenset[str]:
        """All versions that somebody may ask for because of it."""
        return self.active.union(self.previous, self.class_previous, self.sent)

    def without(self, lost: Collection[str]) -> RegisterState:
        """Leaves out versions that only a rollback would need."""
        return replace(
            self,
            previous=tuple(version for version in self.previous if version not in lost),
            class_previous=tuple(one for one in self.class_previous if one not in lost),
            sent=tuple(version for version in self.sent if version not in lost),
        )


# Fields of a trial that stood beside those of its candidate in a register/1.
_OF_TRIAL = ("slice", "recalibrator", "number", "clip", "bets", "unsound")


def _register_1(state: Content) -> Content:
    """Turns the content of a register/1 into that of a register/3."""
    followers = state.get("followers", {})
    return {
        **_register_2(state),
        "trials": [_nested(one, "trial", _OF_TRIAL) for one in state.get("trials", ())],
        "guards": [_nested(one, "watch", ("runs",)) for one in state.get("guards", ())],
        "followers": {name: _renamed(one) for name, one in followers.items()},
    }


def _register_2(state: Content) -> Content:
    """Drops the position in the ledger: it is the one of all that is stored."""
    return {name: value for name, value in state.items() if name != "entry"}


def _nested(content: Content, name: str, fields: Sequence[str]) -> Content:
    inner = {field: content.pop(field) for field in fields if field in content}
    return {**content, name: inner}


def _renamed(follower: Content) -> Content:
    return {"active" if name == "in_force" else name: one for name, one in follower.items()}


REGISTER_CODEC = Codec(
    RegisterState,
    "register",
    "Use the state of before, or promote anew.",
    "calibration-monitor/register/3",
    {
        "calibration-monitor/register/1": _register_1,
        "calibration-monitor/register/2": _register_2,
    },
)
RECORD_CODEC = Codec(Record, "record", "The record is left out.", lenient=True)
