"""Which metrics and labels an expression names, and which of them there are not; no tests."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import promql_parser as promql

# Prometheus makes them of alerts that are on, so that there may be none.
OF_ALERTS = {"ALERTS", "ALERTS_FOR_STATE"}
_LABELS_OF_ALERTS = {"alertname", "alertstate", "severity"}
# Whose values are no closed set: what any metric has may be asked of all.
_OPEN = {"slice", "dimension", "instance", "job"}
# Words of a regular expression that lists values.
_LISTED = re.compile(r"[\w|]+")


@dataclass(frozen=True, slots=True)
class Known:
    """What a Prometheus holds.

    labels  names and values, by metric; without labels where it has had no sample yet
    words   of labels' values that are documented, of metrics that need not have them now
    """

    labels: Mapping[str, Mapping[str, frozenset[str]]]
    words: Mapping[str, frozenset[str]]

    def knows(self, label: str, metric: str) -> bool:
        """Whether its series may have the label; True where none has been seen."""
        if metric in OF_ALERTS and label in _LABELS_OF_ALERTS:
            return True
        known = self.labels.get(metric)
        return not known or label in known

    def takes(self, value: str, label: str, metric: str) -> bool:
        """Whether the label has had the value, or is said to."""
        known = self.labels.get(metric)
        if metric in OF_ALERTS or not known:
            return True
        seen = self.labels.values() if label in _OPEN else [known]
        return any(value in of.get(label, ()) for of in seen) or value in self.words.get(metric, ())


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric and the labels that are asked of it.

    values  single values that a label must or must not have, as far as they are written out
    """

    metric: str
    labels: frozenset[str]
    values: tuple[tuple[str, str], ...]


def metrics(expression: str) -> set[str]:
    """All that it names.

    Raises ValueError of a mistake in the syntax.
    """
    return {each.metric for each in selectors(promql.parse(expression)) if each.metric}


def selectors(expression: promql.Expr) -> Iterator[Selector]:
    """In the order in which they stand; those that list several metrics, once for each."""
    for node in _nodes(expression):
        if not isinstance(node, promql.VectorSelector):
            continue
        listed = [each.value for each in node.matchers.matchers if each.name == "__name__"]
        matchers = [each for each in node.matchers.matchers if each.name != "__name__"]
        for metric in [node.name] if node.name else "|".join(listed).split("|"):
            yield Selector(
                metric=metric,
                labels=frozenset(each.name for each in matchers),
                values=tuple((each.name, part) for each in matchers for part in _values(each)),
            )


def _values(matcher: promql.Matcher) -> list[str]:
    if matcher.op == promql.MatchOp.Equal or matcher.op == promql.MatchOp.NotEqual:
        return [matcher.value] if matcher.value else []
    if not _LISTED.fullmatch(matcher.value):
        return []
    return [part for part in matcher.value.split("|") if part]


def mistakes(expression: str, known: Known) -> list[str]:
    """What it names that there is not, in words; a mistake of the syntax is one, too."""
    try:
        tree = promql.parse(expression)
    except ValueError as error:
        return [f"is no PromQL: {error}"]
    return [*_of_selectors(tree, known), *_of_groups(tree, known)]


def _of_selectors(tree: promql.Expr, known: Known) -> Iterator[str]:
    for each in selectors(tree):
        if not each.metric:
            yield "a selector without a metric"
            continue
        if each.metric not in known.labels and each.metric not in OF_ALERTS:
            yield f"there is no metric {each.metric}"
            continue
        for label in sorted(each.labels):
            if not known.knows(label, each.metric):
                yield f"{each.metric} has no label {label}"
        for label, value in each.values:
            if known.knows(label, each.metric) and not known.takes(value, label, each.metric):
                yield f"{label} of {each.metric} is never {value}"


def _of_groups(tree: promql.Expr, known: Known) -> Iterator[str]:
    """Labels of by, without, on, ignoring and group_left that nothing below them has."""
    for node in _nodes(tree):
        labels = _named(node)
        if not labels:
            continue
        below = list(_nodes(node))
        made = {
            each.args[1].val
            for each in below
            if isinstance(each, promql.Call) and each.func.name in ("label_replace", "label_join")
        }
        seen = [each.metric for each in selectors(node)]
        for label in sorted(labels - made):
            if seen and not any(known.knows(label, metric) for metric in seen):
                yield f"none of {', '.join(sorted(set(seen)))} has the label {label}"


def _named(node: promql.Expr) -> set[str]:
    modifier = getattr(node, "modifier", None)
    if modifier is None:
        return set()
    if isinstance(node, promql.AggregateExpr):
        return set(modifier.labels)
    matching = getattr(modifier, "matching", None)
    return set(matching.labels) if matching is not None else set()


def _nodes(expression: promql.Expr) -> list[promql.Expr]:
    found: list[promql.Expr] = []
    promql.walk(expression, found.append)  # append returns None: go on
    return found


def documented(readme: str) -> tuple[set[str], dict[str, frozenset[str]]]:
    """Metrics that the section Metrics of a README may name, and the words in the row of each that
    its table has.

    Names stand in backticks, without calibration_; a list of labels may follow in braces.
    """
    (section,) = re.findall(r"^## Metrics\n(.*?)^### ", readme, flags=re.DOTALL | re.MULTILINE)
    names: set[str] = set()
    words: dict[str, frozenset[str]] = {}
    for line in section.splitlines():
        row = line.startswith("| `")
        for name in re.findall(r"`(\w+)(?:\{[\w,]*\})?`", line.split(" | ")[0] if row else line):
            full = name if name.startswith("process_") else f"calibration_{name}"
            names.add(full)
            if row:
                words[full] = frozenset(re.findall(r"\w+", line))
    return names, words


def families(exposition: str) -> dict[str, set[str]]:
    """By the name of a family, those of its series."""
    found = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", exposition, flags=re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found[name] = {f"{name}{part}" for part in parts}
    return found


def behind(names: Iterable[str], recorded: Mapping[str, str]) -> set[str]:
    """These metrics, and those that the recorded ones among them are made of.

    recorded  expressions by the name that they are recorded under
    """
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        if name in recorded:
            waiting |= metrics(recorded[name]) - found
    return found


def mentioned(text: str) -> set[str]:
    """Words of a text that look like metrics of a sidecar."""
    return set(re.findall(r"(?<![\w:])calibration_[a-z0-9_]*[a-z0-9](?!\w)", text))


def promql_blocks(texts: Sequence[str]) -> list[str]:
    """Expressions of the code blocks of documents; a blank line stands between two of them."""
    return [
        part
        for text in texts
        for block in re.findall(r"```promql\n(.*?)```", text, flags=re.DOTALL)
        for part in re.split(r"\n\n+", block.strip())
    ]
