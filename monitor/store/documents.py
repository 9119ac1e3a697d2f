"""Documents that are kept as JSON, with one reader and one writer for all of them.

A frozen dataclass is the schema of its document: types, ranges and marks (`monitor.frames.marks`)
on its fields say what may stand there, and `__post_init__` refuses what no single field shows.
Nothing passes that the class does not name: no unknown field, no text for a number, no number
that is not finite unless its field allows it.

A document of a recalibrator differs from a selection in that each recalibrator stands beside what
it rests on. `fitted_on` holds notes for people, and anything may stand there.
`calibration-monitor reference` writes a file of references for people and sidecars to read. The
state of a family is written slice by slice, so that no step holds up the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Interval, Len
from pydantic import ConfigDict, TypeAdapter, ValidationError

from monitor.drift.charts import Stage
from monitor.drift.family import FamilyState
from monitor.drift.reference import Reference
from monitor.drift.usual import SliceState
from monitor.frames.marks import Count, Printable
from monitor.frames.slices import RangeBuckets
from monitor.frames.space import MOST_SLICES
from monitor.promotion.records import Record
from monitor.promotion.register import Follower
from monitor.promotion.tracks import ClassKind
from monitor.promotion.trial import AwaitingGuard, Candidate, Guard
from monitor.recalibration.class_probabilities import ClassRecalibrator
from monitor.recalibration.recalibrator import InvalidRecalibrator, RecalibratorForm
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.selection import (
    CLASS_FORMAT,
    CLASS_METHODS,
    FORMAT,
    MOST_SELECTED,
    AnySelection,
    ClassSelection,
    FittedRecalibrator,
    Selection,
)

Value = TypeVar("Value")
Content = dict[str, Any]

# Levels of lists and objects; documents have fewer.
_DEEPEST = 32
_LONGEST_SHOWN = 200


class InvalidDocument(ValueError):
    """A text is no document of its kind, or a field of it holds what it must not."""


class OtherDocument(InvalidDocument):
    """The document has a format that another version of the monitor reads."""

    # What a file that holds it is set aside with.
    suffix = "incompatible"


@dataclass(eq=False)
class Codec(Generic[Value]):
    """Writes values of one dataclass as JSON, and reads them back bit for bit.

    kind      the dataclass
    name      what stands for the whole document in errors, such as "register"
    remedy    ends every error: what to do about a document that cannot be used
    format    the value of its field "format"; '' where documents have none
    upgrades  by an older format: turns the content of such a document into that of `format`
    lenient   fields that the class does not name are left out, and not refused
    omits     members that are not written, as b',"name":null' of a default: the release before does
              not know them
    """

    kind: type[Value]
    name: str
    remedy: str
    format: str = ""
    upgrades: Mapping[str, Callable[[Content], Content]] = field(default_factory=dict)
    lenient: bool = False
    omits: tuple[bytes, ...] = ()

    @cached_property
    def _adapter(self) -> TypeAdapter[tuple[Value]]:
        # In a tuple of one: dataclasses take a configuration from outside only so.
        kind: Any = tuple[self.kind]  # type: ignore[name-defined]  # known at run time alone
        extra: Literal["ignore", "forbid"] = "ignore" if self.lenient else "forbid"
        return TypeAdapter(kind, config=ConfigDict(extra=extra, strict=True, allow_inf_nan=False))

    def prepare(self) -> None:
        """Makes the schema now, which takes tens of ms: too long for a running event loop."""
        _ = self._adapter

    def write(self, value: Value) -> bytes:
        """Returns the document in one line of ASCII."""
        text = self._adapter.dump_json((value,))
        if not text.isascii():  # rare, and to escape takes four times as long
            text = self._adapter.dump_json((value,), ensure_ascii=True)
        text = text[1:-1]
        for member in self.omits:  # in a string its quotes would be escaped
            text = text.replace(member, b"")
        if not self.format:
            return text
        first = b'{"format":%b' % json.dumps(self.format).encode("ascii")
        return first + (b"," if text != b"{}" else b"") + text[1:]

    def read(self, text: str | bytes) -> Value:
        """Inverts `write`. Raises OtherDocument, InvalidDocument."""
        return self.read_content(parsed(text, self.name, self.remedy))

    def read_content(self, content: object) -> Value:
        """Reads the content of a document, as json.loads returns it. Raises as `read` does."""
        check_depth(content, self.name)
        if self.format:
            content = self._of_format(content)
        try:
            return self._adapter.validate_json(json.dumps([content]))[0]
        except ValidationError as error:
            raise self._refusal(error, content) from None

    def _of_format(self, content: object) -> Content:
        if not isinstance(content, dict):
            raise InvalidDocument(f"'{self.name}' is {shown(content)}: {self.remedy}")
        found = content.get("format")
        body = {name: value for name, value in content.items() if name != "format"}
        if found == self.format:
            return body
        if isinstance(found, str) and found in self.upgrades:
            try:
                return self.upgrades[found](body)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise InvalidDocument(
                    f"'{self.name}' is no document of {found!r} ({error!r}). {self.remedy}"
                ) from None
        if isinstance(found, str):
            raise OtherDocument(
                f"'format' is {shown(found)}, but this monitor reads {self.format!r}: "
                "use the monitor that wrote it."
            )
        remedy = f"{self.remedy[:1].lower()}{self.remedy[1:]}"
        raise InvalidDocument(f"'format' is {shown(found)}, expected {self.format!r}: {remedy}")

    def _refusal(self, error: ValidationError, content: object) -> InvalidDocument:
        """Says which field is wrong, what stands there, and what to do."""
        first = error.errors(include_url=False)[0]
        path, value = _place(first["loc"][1:], content)
        where = f"{self.name}{path}"
        match first["type"]:
            case "missing":
                said = f"'{where}' has no '{first['loc'][-1]}'"
            case "unexpected_keyword_argument" | "extra_forbidden":
                said = f"'{where}' is unknown"
            case "union_tag_invalid" | "union_tag_not_found":
                name = first["ctx"]["discriminator"].strip("'")
                tags = first["ctx"].get("expected_tags", "one that is known")
                given = value.get(name) if isinstance(value, dict) else None
                said = f"'{where}.{name}' is {shown(given)}: it must be {tags}"
            case "too_short" | "too_long":
                context = first["ctx"]
                bound = context.get("min_length"), context.get("max_length")
                least = f"at least {bound[0]}" if bound[1] is None else f"at most {bound[1]}"
                entries = len(value) if isinstance(value, list | dict) else 0
                said = f"'{where}' has {entries} entries: it must have {least}"
            case "json_invalid":  # json.loads has read it, but lets half a character pass
                said = f"'{where}' holds text that is no Unicode"
            case "value_error":
                said = f"'{where}': {first['ctx']['error']}"
            case _:
                must = first["msg"].removeprefix("Input should be ").removeprefix("Input ")
                said = f"'{where}' is {shown(value)}: it must be {must}"
        return InvalidDocument(f"{said}. {self.remedy}")


def parsed(text: str | bytes, name: str, remedy: str) -> object:
    """Parses JSON. Raises InvalidDocument."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"'{name}' is no JSON ({error}). {remedy}") from None


def _place(location: tuple[int | str, ...], content: object) -> tuple[str, object]:
    """Returns the path of a value in a document, and the value.

    Parts of the location that only name an alternative of a union are in no document.
    """
    path = ""
    for part in location:
        if isinstance(content, dict) and part in content:
            path, content = f"{path}.{_printable(str(part))}", content[part]
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            path, content = f"{path}[{part}]", content[part]
    return path, content


def _printable(name: str) -> str:
    return (name if name.isprintable() else repr(name)[1:-1])[:_LONGEST_SHOWN]


def check_depth(content: object, name: str, levels: int = _DEEPEST) -> None:
    """Raises InvalidDocument where lists and objects are nested too deeply to be walked."""
    if not isinstance(content, list | dict):
        return
    if levels == 0:
        raise InvalidDocument(f"'{name}' is nested more than {_DEEPEST} levels deep.")
    for value in content.values() if isinstance(content, dict) else content:
        check_depth(value, name, levels - 1)


def shown(value: object) -> str:
    """Shortens a value for a message, however large it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and (
        len(value) > 8 or any(isinstance(entry, list | dict) for entry in value)
    ):
        return f"a list of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


# ---- references

# Above what as many slices as there may be need.
_LARGEST = 64 * 2**20  # bytes
_REFERENCE_REMEDY = (
    "Give a file that `calibration-monitor reference --output` wrote, or learn the reference again "
    "with it."
)


@dataclass(frozen=True, slots=True)
class ReferenceDocument:
    """References by slice name and stage, under a head that tells what the file is."""

    kind: Literal["calibration-monitor drift reference"]
    version: Annotated[int, Interval(ge=2, le=2)]
    slices: Annotated[
        Mapping[Annotated[str, Len(1, 256)], Annotated[Mapping[Stage, Reference], Len(1)]],
        Len(0, MOST_SLICES + 1),
    ]


_REFERENCES = Codec(ReferenceDocument, "reference", _REFERENCE_REMEDY)


def reference_text(references: Mapping[str, Mapping[Stage, Reference]]) -> str:
    """Returns the text of the file: one line of JSON."""
    document = ReferenceDocument("calibration-monitor drift reference", 2, references)
    # Blanks after commas and colons: people read the file.
    return f"{json.dumps(json.loads(_REFERENCES.write(document)))}\n"


def read_references(path: str | Path) -> Mapping[str, Mapping[Stage, Reference]]:
    """Reads references by slice name. Raises InvalidDocument, which names file and fault."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidDocument(
            f"cannot read the reference {path}: {error.strerror or error}. {_REFERENCE_REMEDY}"
        ) from None
    if len(data) > _LARGEST:
        raise InvalidDocument(f"{path} is larger than {_LARGEST} bytes. {_REFERENCE_REMEDY}")
    try:
        return _REFERENCES.read(data).slices
    except InvalidDocument as error:
        raise InvalidDocument(f"{path}: {error}") from None


# ---- the state of a family


def prepare_writing() -> None:
    """Makes the schemas before an event loop runs."""
    for codec in (_FAMILY, _SLICE):
        codec.prepare()


def family_text(state: FamilyState) -> Generator[None, None, list[bytes]]:
    """Returns the document in parts, in short steps.

    Each slice is written as it stands in its own step: learning goes on in between.
    """
    parts = [_FAMILY.write(replace(state, slices=())).removesuffix(b"]}")]
    for number, one in enumerate(state.slices):
        yield
        parts += (b",\n" if number else b"\n", _SLICE.write(one))
    return [*parts, b"]}"]


def read_family(text: str | bytes) -> FamilyState:
    """Inverts `family_text`. Raises OtherDocument, InvalidDocument."""
    return _FAMILY.read(text)


def _alarms_of_earlier(content: Content) -> Content:
    """Makes the content of a drift/4 of an earlier one: its alarms, their counts, hours and epochs.

    Its evidence was gathered by other bets, and its references know nothing that these ask for, so
    that both begin anew; what was open in a drift/2 is lost. Its alarms are all of a joint scale.
    """
    found = []
    for one in content["latched"]:
        alarm = one["alarm"]
        size = alarm["scale"]["estimate"]
        wrong = {"dimension": "", "quantity": "scale", "size": size, "unit": ""}
        found.append({**one, "alarm": {**alarm, **wrong}})
    gathered = content["gathered"]
    if gathered["unit"] == "track":  # that of whole tracks is evidence of detections
        gathered = {**gathered, "unit": "detection"}
    names = ("driven", "peak", "counts", "numbers", "begins")
    kept = {name: content[name] for name in names if name in content}
    # Nothing was asked of means and classes then: evidence begins anew, whatever stands here.
    gathered = {**gathered, "bias_tolerance": 1.0, "class_tolerance": 2.0}
    slices = [_slice_of_earlier(one) for one in content["slices"]]
    return {**kept, "gathered": gathered, "latched": found, "slices": slices}


def _slice_of_earlier(content: Content) -> Content:
    """Begins a slice anew, in its epoch; alarms become calm by the seconds that it was fed."""
    begun = json.loads(_SLICE.write(SliceState.begun("", content["k"])))
    kept = {name: content[name] for name in ("name", "epoch", "labelled", "fed", "known")}
    evidence = {**begun["evidence"], "peak": content["evidence"]["peak"]}
    return {**begun, **kept, "evidence": evidence}


_ANEW = "Use a file that this monitor wrote, or remove it: what drifts is then watched anew."
_FAMILY = Codec(
    FamilyState,
    "drift",
    _ANEW,
    "calibration-monitor/drift/4",
    {
        "calibration-monitor/drift/3": _alarms_of_earlier,
        "calibration-monitor/drift/2": _alarms_of_earlier,
    },
)
_SLICE = Codec(SliceState, "slice", _ANEW)


_NAME = "document"
_REMEDY = (
    "Give a file that `calibration-monitor fit --output` wrote, of this version and for this "
    "purpose."
)


@dataclass(frozen=True, slots=True)
class _Document:
    """The document of a selection, without its version and the notes."""

    dimensions: tuple[Printable, ...]
    fallback: FittedRecalibrator
    slices: Annotated[Mapping[str, FittedRecalibrator], Len(0, MOST_SELECTED)] = field(
        default_factory=dict
    )
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
    classes    that class recalibrators are tried on, None where none are
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
    classes: ClassKind | None = None

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


def _register_2(state: Content) -> Content:
    """Drops the position in the ledger: it is the one of all that is stored."""
    return {name: value for name, value in state.items() if name != "entry"}


REGISTER_CODEC = Codec(
    RegisterState,
    "register",
    "Use the state of before, or promote anew.",
    "calibration-monitor/register/3",
    {"calibration-monitor/register/2": _register_2},
    omits=(b',"classes":null', b',"tails":true'),
)
RECORD_CODEC = Codec(Record, "record", "The record is left out.", lenient=True)
