"""Which stream headers are usable."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise

from monitor.calibration.detections import Reason
from monitor.calibration.space import Space
from monitor.config import Config
from monitor.frames import Header, Refusal

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,64}")
# Every level adds K values to every detection of an answer.
MOST_QUANTILES = 19
# Beyond it the quantiles of heavy tails overflow, and no fit says anything of them.
LEAST_LEVEL = 1e-6


def refuse_header(
    header: Header, config: Config, streams: Collection[str], spaces: Collection[Space]
) -> Refusal | None:
    """What is wrong with a header, or None. Names become metric labels, so they are bounded.

    streams  names of the streams that are known already
    spaces   spaces that statistics are kept in already
    """
    limits = config.limits
    names, classes = header.space.names, header.classes
    if not _NAME.fullmatch(header.stream):
        return _refusal(
            "stream", f"'{header.stream[:80]}': 1 to 64 characters of A-Z a-z 0-9 _ . -"
        )
    if not 1 <= len(names) <= limits.max_dimensions:
        return _refusal(
            "dimensions",
            f"{len(names)} of them: 1 to {limits.max_dimensions} ([limits] max_dimensions).",
        )
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            return _refusal(
                "dimensions.name",
                f"'{name[:80]}': unique, 1 to 64 characters of A-Z a-z 0-9 _ . -",
            )
    for field, texts in (
        ("dimensions.unit", [dimension.unit for dimension in header.space.dimensions]),
        ("coordinate_frame", [header.coordinate_frame]),
    ):
        for text in texts:
            if text and not _LABEL.fullmatch(text):
                return _refusal(field, f"'{text[:80]}': at most 64 printable characters.")
    if not 1 <= len(classes) <= limits.max_classes:
        return _refusal(
            "class_names",
            f"{len(classes)} of them: 1 to {limits.max_classes} ([limits] max_classes).",
        )
    for name in classes:
        if not _LABEL.fullmatch(name) or classes.count(name) > 1:
            return _refusal("class_names", f"'{name[:80]}': unique, 1 to 64 printable characters.")
    levels = header.quantile_levels
    if len(levels) > MOST_QUANTILES:
        return _refusal("quantile_levels", f"{len(levels)} of them: at most {MOST_QUANTILES}.")
    for before, level in pairwise((0.0, *levels)):
        # NaN fails too.
        if not (before < level and LEAST_LEVEL <= level <= 1 - LEAST_LEVEL):
            return _refusal(
                "quantile_levels",
                f"{level:g} after {before:g}: they must ascend, each from {LEAST_LEVEL:g} to "
                f"1 − {LEAST_LEVEL:g}.",
            )
    if header.stream not in streams and len(streams) >= config.server.max_streams:
        return _refusal(
            "stream",
            f"'{header.stream}' would be stream {len(streams) + 1}: at most "
            f"{config.server.max_streams} ([server] max_streams).",
        )
    if header.space not in spaces and len(spaces) >= limits.max_spaces:
        return _refusal(
            "dimensions",
            f"{', '.join(names)} would be set {len(spaces) + 1} of dimensions: at most "
            f"{limits.max_spaces} ([limits] max_spaces). Use the same names, units and kinds.",
        )
    return None


def _refusal(field: str, message: str) -> Refusal:
    return Refusal(Reason.INVALID_HEADER, field, message)
