"""Documents that an earlier release wrote are read, written and named as they were.

The file holds a document of every method by its version, and some with all that may be left out.
"""

import json
from pathlib import Path

import pytest

from monitor.recalibration.classes.class_selection import CLASS_METHODS
from monitor.recalibration.selection import METHODS, Selection
from monitor.store.recalibrator_documents import any_selection_from_json

DOCUMENTS = json.loads(Path(__file__).with_name("documents_1.json").read_text(encoding="utf-8"))


def as_text(document) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("version", DOCUMENTS)
def test_a_document_of_before_is_read_and_written_byte_for_byte(version):
    text = as_text(DOCUMENTS[version])
    found = any_selection_from_json(text)
    assert found.version == version
    assert found.to_json() == text


def test_there_is_a_document_of_every_method():
    found = [any_selection_from_json(as_text(document)) for document in DOCUMENTS.values()]
    methods = {one.method for one in found if not isinstance(one, Selection)}
    assert methods == set(CLASS_METHODS)
    of_gaussians = (one for one in found if isinstance(one, Selection))
    assert {part.method for one in of_gaussians for part in one.recalibrators} == set(METHODS)


@pytest.mark.parametrize("notes", [None, 3, [], "x", float("nan"), {"a": [float("inf"), "\ud800"]}])
@pytest.mark.parametrize("version", [next(iter(DOCUMENTS)), "temperature-ef0fa53832d3"])
def test_whatever_is_noted_beside_a_document_it_is_read(version, notes):
    found = any_selection_from_json(as_text({**DOCUMENTS[version], "fitted_on": notes}))
    assert found.version == version
    assert isinstance(found.fitted_on, dict)
    assert any_selection_from_json(found.to_json()).to_json() == found.to_json()
