"""One reader and one writer for all documents that are kept as JSON.

A frozen dataclass is the schema of its document: types, ranges and marks (`monitor.frames.marks`)
on its fields say what may stand there, and `__post_init__` refuses what no single field shows.
Nothing passes that the class does not name: no unknown field, no text for a number, no number
that is not finite unless its field allows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

Value = TypeVar("Value")
Content = dict[str, Any]

# Levels of lists and objects; documents have fewer.
_DEEPEST = 32
_LONGEST_SHOWN = 200

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_LENIENT = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class InvalidDocument(ValueError):
    """A text is no document of its kind, or a field of it holds what it must not."""


class OtherDocument(InvalidDocument):
    """The document has a format that another version of the monitor reads."""

    # What a file that holds it is set aside with.
    suffix = "incompatible"


class Codec(Generic[Value]):
    """Writes values of one dataclass as JSON, and reads them back bit for bit.

    kind      the dataclass
    name      what stands for the whole document in errors, such as "register"
    remedy    ends every error: what to do about a document that cannot be used
    format    the value of its field "format"; '' where documents have none
    upgrades  by an older format: turns the content of such a document into that of `format`
    lenient   fields that the class does not name are left out, and not refused
    """

    def __init__(
        self,
        kind: type[Value],
        name: str,
        remedy: str,
        format: str = "",
        upgrades: Mapping[str, Callable[[Content], Content]] | None = None,
        *,
        lenient: bool = False,
    ) -> None:
        self._kind, self._name, self._remedy = kind, name, remedy
        self._format, self._upgrades = format, upgrades or {}
        self._config = _LENIENT if lenient else _STRICT

    @cached_property
    def _adapter(self) -> TypeAdapter[tuple[Value]]:
        # In a tuple of one: dataclasses take a configuration from outside only so.
        kind: Any = tuple[self._kind]  # type: ignore[name-defined]  # known at run time alone
        return TypeAdapter(kind, config=self._config)

    def prepare(self) -> None:
        """Makes the schema now, which takes tens of ms: too long for a running event loop."""
        _ = self._adapter

    def write(self, value: Value) -> bytes:
        """Returns the document in one line of ASCII."""
        text = self._adapter.dump_json((value,))
        if not text.isascii():  # rare, and to escape takes four times as long
            text = self._adapter.dump_json((value,), ensure_ascii=True)
        text = text[1:-1]
        if not self._format:
            return text
        first = b'{"format":%b' % json.dumps(self._format).encode("ascii")
        return first + (b"," if text != b"{}" else b"") + text[1:]

    def read(self, text: str | bytes) -> Value:
        """Inverts `write`. Raises OtherDocument, InvalidDocument."""
        return self.read_content(parsed(text, self._name, self._remedy))

    def read_content(self, content: object) -> Value:
        """Reads the content of a document, as json.loads returns it. Raises as `read` does."""
        check_depth(content, self._name)
        if self._format:
            content = self._of_format(content)
        try:
            return self._adapter.validate_json(json.dumps([content]))[0]
        except ValidationError as error:
            raise self._refusal(error, content) from None

    def _of_format(self, content: object) -> Content:
        if not isinstance(content, dict):
            raise InvalidDocument(f"'{self._name}' is {shown(content)}: {self._remedy}")
        found = content.get("format")
        body = {name: value for name, value in content.items() if name != "format"}
        if found == self._format:
            return body
        if isinstance(found, str) and found in self._upgrades:
            try:
                return self._upgrades[found](body)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise InvalidDocument(
                    f"'{self._name}' is no document of {found!r} ({error!r}). {self._remedy}"
                ) from None
        if isinstance(found, str):
            raise OtherDocument(
                f"'format' is {shown(found)}, but this monitor reads {self._format!r}: "
                "use the monitor that wrote it."
            )
        remedy = f"{self._remedy[:1].lower()}{self._remedy[1:]}"
        raise InvalidDocument(f"'format' is {shown(found)}, expected {self._format!r}: {remedy}")

    def _refusal(self, error: ValidationError, content: object) -> InvalidDocument:
        """Says which field is wrong, what stands there, and what to do."""
        first = error.errors(include_url=False)[0]
        path, value = _place(first["loc"][1:], content)
        where = f"{self._name}{path}"
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
        return InvalidDocument(f"{said}. {self._remedy}")


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
