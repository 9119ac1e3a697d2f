"""Recalibrators of either kind, of estimates or of class probabilities: the document says which."""

from __future__ import annotations

from monitor.recalibration.classes.class_selection import FORMAT as CLASS_FORMAT
from monitor.recalibration.classes.class_selection import (
    ClassSelection,
    class_selection_from_content,
)
from monitor.recalibration.selection import Selection, from_content
from monitor.recalibration.versioned_document import content_of

AnySelection = Selection | ClassSelection


def any_selection_from_json(text: str | bytes) -> AnySelection:
    """The inverse of to_json of either, its version worked out: nothing is left for later.

    Pure, so that it may run in any thread. Raises InvalidRecalibrator for anything else.
    """
    content = content_of(text)
    of_classes = content.get("format") == CLASS_FORMAT
    return class_selection_from_content(content) if of_classes else from_content(content)
