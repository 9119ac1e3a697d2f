"""Documents so large that serving them would hold up every frame."""

import json

import pytest

from monitor.recalibration.classes.class_scaling import AuxiliaryScaling
from monitor.recalibration.processes.sparse_process import MOST_INDUCING, SparseProcess
from monitor.recalibration.recalibrator import Identity, InvalidRecalibrator
from monitor.recalibration.selection import MOST_SLICES, Selection
from monitor.store.codec import InvalidDocument
from tests.recalibration.classes.class_sets import made
from tests.recalibration.processes.processes import random_process
from tests.recalibration.rows import as_read, read_selection


def test_a_process_on_more_points_than_a_frame_has_time_for_is_refused():
    parameters = random_process(1).parameters()
    parameters["inducing"] = [[float(i), 0.5] for i in range(MOST_INDUCING + 1)]
    with pytest.raises(InvalidDocument, match=r"inducing' has 257 entries: .* at most 256"):
        as_read(SparseProcess, parameters)


def test_a_network_with_more_units_than_a_frame_has_time_for_is_refused():
    parameters = made("auxiliary-scaling", 3).parameters()
    parameters["hidden_bias"] = [0.0] * 1025
    with pytest.raises(InvalidDocument, match="hidden_bias' has 1025 entries"):
        as_read(AuxiliaryScaling, parameters)


def test_a_document_of_more_slices_than_are_ever_served_is_refused():
    some = {f"slice {i}": Identity() for i in range(MOST_SLICES)}
    assert len(read_selection(Selection((), Identity(), some).to_json()).by_slice) == MOST_SLICES
    document = json.loads(Selection((), Identity(), {**some, "more": Identity()}).to_json())
    with pytest.raises(InvalidRecalibrator, match=r"'document.slices' has 4097 entries"):
        read_selection(json.dumps(document))
