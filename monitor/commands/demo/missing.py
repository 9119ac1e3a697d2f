"""Names, in plain words, the parts of the demo that a sidecar with other settings cannot show."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_AUTOMATIC = "automatic"


@dataclass(frozen=True, slots=True)
class Seen:
    """The settings of a sidecar, as far as it shows them.

    tracks     whether it keeps tracks
    slices     that it has statistics of; empty: of none yet
    promotion  [promotion] mode; None: it does not tell us
    pinned     whether nothing may happen by itself
    """

    tracks: bool
    slices: frozenset[str]
    promotion: str | None
    pinned: bool


def lacks(seen: Seen, sensors: Collection[str]) -> tuple[str, ...]:
    """A sentence for each setting that is not the demo's; the drive goes on with all of them."""
    sentences = []
    if not seen.tracks:
        sentences.append(
            "the sidecar keeps no tracks: nothing will be seen of tracking, and fits and trials "
            'take blocks of time for tracks. To change it: [tracker] kind = "embedded".'
        )
    if seen.slices and not seen.slices.issuperset(sensors):
        sentences.append(
            "its slices are not the sensors: the fault of one will be mixed with the health of "
            'the others, and may not be found. To change it: [statistics] slice_by = ["stream"].'
        )
    if seen.promotion is None:
        sentences.append(
            "it does not tell us how recalibrators are promoted (the token is not an "
            "administrator's): whether the fault will be corrected remains to be seen."
        )
    elif seen.promotion != _AUTOMATIC:
        sentences.append(
            f"[promotion] mode is {seen.promotion}: the fault will not be corrected, nor anything "
            "rolled back, unless somebody promotes. To change it: mode = "
            f'"{_AUTOMATIC}".'
        )
    if seen.pinned:
        sentences.append(
            "its recalibrators are pinned: nothing will be corrected until "
            "`calibration-monitor recalibrators unpin`."
        )
    return tuple(sentences)
