"""Grafana's template variables: their values, and how they are put into a query; no tests.

Nothing here asks Prometheus: the values of a variable come in through `look_up`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# $name, ${name}, ${name:format}, [[name]], [[name:format]]; Grafana: "Variable syntax".
_REFERENCE = re.compile(
    r"\$(?P<plain>\w+)"
    r"|\$\{(?P<braced>\w+)(?::(?P<form>\w+))?\}"
    r"|\[\[(?P<old>\w+)(?::(?P<old_form>\w+))?\]\]"
)
_SPECIAL = re.compile(r"[\\^$*+?.()|{}\[\]]")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<series>.*),)?\s*(?P<label>\w+)\s*\)", re.DOTALL)


class UnknownVariable(ValueError):
    """An expression names a variable that its dashboard does not have, or a form that is not known
    here.
    """


@dataclass(frozen=True, slots=True)
class Variable:
    """A template variable that PromQL may name.

    query    for type query: label_values(…) or query_result(…)
    options  of the other types: those written in the dashboard
    keep     a regular expression on the values, or empty
    several  whether more than one value may be chosen; then values are quoted
    all      whether "All" may be chosen; where it may, it is
    all_as   what stands for all, or empty
    current  the value that the dashboard was saved with
    """

    name: str
    query: str
    options: tuple[str, ...] = ()
    keep: str = ""
    several: bool = False
    all: bool = False
    all_as: str = ""
    current: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is put in for a variable: its values, or a text as it is.

    several  as in Variable
    """

    values: tuple[str, ...] = ()
    several: bool = False
    text: str = ""


def intervals(step_s: int, rate_s: int, range_s: int) -> dict[str, Chosen]:
    """Grafana's own variables: the step of a graph, four scrapes, and the whole range; seconds."""
    return {
        name: Chosen(text=text)
        for name, text in {
            "__interval": f"{step_s}s",
            "__interval_ms": str(1000 * step_s),
            "__rate_interval": f"{rate_s}s",
            "__rate_interval_ms": str(1000 * rate_s),
            "__range": f"{range_s}s",
            "__range_s": str(range_s),
            "__range_ms": str(1000 * range_s),
        }.items()
    }


def choose(
    variables: Sequence[Variable],
    own: Mapping[str, Chosen],
    look_up: Callable[[str, str], Sequence[str]],
    wanted: Mapping[str, str] | None = None,
) -> tuple[dict[str, Chosen], dict[str, str]]:
    """The choice that a dashboard opens with, and the selectors whose labels were looked up, by the
    variable that they are for.

    own      Grafana's own variables
    look_up  values of a label, over the series of a selector; an empty selector means all series
    wanted   values that somebody chooses, by variable
    """
    chosen: dict[str, Chosen] = dict(own)
    asked: dict[str, str] = {}
    for variable in variables:
        values = list(variable.options)
        if variable.query:
            selector, label = label_values(substituted(variable.query, chosen))
            asked[variable.name] = selector
            values = kept(variable.keep, sorted(look_up(selector, label)))
        own_value = (wanted or {}).get(variable.name)
        if own_value is not None:
            chosen[variable.name] = Chosen((own_value,), variable.several or variable.all)
        elif variable.all and variable.all_as:
            chosen[variable.name] = Chosen(text=variable.all_as)
        elif variable.all:
            chosen[variable.name] = Chosen(tuple(values), True)
        else:
            first = variable.current if variable.current in values else (values or [""])[0]
            chosen[variable.name] = Chosen((first,), variable.several)
    return chosen, asked


def label_values(query: str) -> tuple[str, str]:
    """Selector, which may be empty, and label of label_values(…).

    Raises UnknownVariable of any other query.
    """
    found = _LABEL_VALUES.fullmatch(query.strip())
    if found is None:
        raise UnknownVariable(f"'{query}': ask for a variable by label_values(selector, label)")
    return (found["series"] or "").strip(), found["label"]


def kept(pattern: str, values: Sequence[str]) -> list[str]:
    """What the regular expression of a variable leaves of its values: /…/, or nothing."""
    if not pattern:
        return list(values)
    found = (re.search(pattern.strip("/"), value) for value in values)
    return list(dict.fromkeys(hit[1] if hit.re.groups else hit[0] for hit in found if hit))


def substituted(text: str, chosen: Mapping[str, Chosen]) -> str:
    """The text with all its variables put in.

    Raises UnknownVariable.
    """

    def value(found: re.Match[str]) -> str:
        name = found["plain"] or found["braced"] or found["old"]
        if name.isdigit():  # a group of label_replace
            return found[0]
        if name not in chosen:
            raise UnknownVariable(
                f"'{text}' names ${name}; the dashboard has {', '.join(sorted(chosen))}"
            )
        return _written(chosen[name], found["form"] or found["old_form"] or "", text)

    return _REFERENCE.sub(value, text)


def _written(chosen: Chosen, form: str, text: str) -> str:
    """As Grafana writes it into PromQL; without a form as its Prometheus data source does."""
    if chosen.text:
        return chosen.text
    values = chosen.values
    match form:
        case "" if not chosen.several:
            return values[0].replace("\\", "\\\\").replace('"', '\\"')
        case "" | "regex":
            # A regular expression within a quoted string: backslashes are doubled.
            quoted = [_SPECIAL.sub(r"\\\g<0>", each).replace("\\", "\\\\") for each in values]
            return quoted[0] if len(quoted) == 1 else f"({'|'.join(quoted)})"
        case "pipe":
            return "|".join(values)
        case "raw" | "csv":
            return ",".join(values)
    raise UnknownVariable(f"'{text}': form '{form}' is not known here, use regex, pipe, raw or csv")
