"""Headers: what becomes a metric label, or costs memory for good, is bounded."""

import pytest

from monitor.config import Config
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, Space, plain_space
from monitor.pipeline.streams import refuse_header

XYZ = plain_space(("x", "y", "z"), "m")
TWENTY = tuple(i / 21 for i in range(1, 21))
LEAST = "they must ascend, each from 1e-06 to 1 − 1e-06."


def refused(space: Space = XYZ, frame: str = "base_link", levels=(), *, spaces=(), **limits):
    header = Header("lidar", space, ("car",), frame, quantile_levels=levels)
    return refuse_header(header, Config.model_validate({"limits": limits}), (), spaces)


@pytest.mark.parametrize(
    "levels", [(), (0.5,), (1e-6, 0.5, 1 - 1e-6), tuple(i / 20 for i in range(1, 20))]
)
def test_a_plain_header_is_usable_with_levels_that_ascend_within_0_and_1(levels):
    assert refused(levels=levels) is None


@pytest.mark.parametrize(
    ("header", "field", "words"),
    [
        ({"space": Space((Dimension("x", "m" * 65),))}, "dimensions.unit", ""),
        ({"space": Space((Dimension("x", "m\n"),))}, "dimensions.unit", ""),
        ({"space": Space((Dimension("x", "\x00"),))}, "dimensions.unit", ""),
        ({"frame": "f" * 2_000_000}, "coordinate_frame", ""),
        ({"levels": (0.0,)}, "quantile_levels", "0 after 0: they must ascend"),
        ({"levels": (0.5, 1.0)}, "quantile_levels", "1 after 0.5: they must ascend"),
        ({"levels": (0.5, 0.5)}, "quantile_levels", "0.5 after 0.5: they must ascend"),
        ({"levels": (0.9, 0.1)}, "quantile_levels", "0.1 after 0.9: they must ascend"),
        ({"levels": (-0.1,)}, "quantile_levels", "-0.1 after 0: they must ascend"),
        ({"levels": (5e-324,)}, "quantile_levels", f"4.94066e-324 after 0: {LEAST}"),
        ({"levels": (0.5, 1 - 1e-7)}, "quantile_levels", "1 after 0.5: they must ascend"),
        ({"levels": (float("nan"),)}, "quantile_levels", "nan after 0: they must ascend"),
        ({"levels": (0.5, float("inf"))}, "quantile_levels", "inf after 0.5: they must ascend"),
        ({"levels": TWENTY}, "quantile_levels", "20 of them: at most 19."),
    ],
)  # fmt: skip
def test_another_header_is_refused_by_field_and_value_in_few_words(header, field, words):
    found = refused(**header)
    assert found is not None
    assert found.field == field
    assert found.message.startswith(words)
    assert len(found.message) < 200


def test_only_so_many_sets_of_dimensions_get_statistics_of_their_own():
    others = [plain_space((name,)) for name in "ab"]
    assert refused(spaces=[*others, XYZ], max_spaces=2) is None
    found = refused(spaces=others, max_spaces=2)
    assert found is not None
    assert "[limits] max_spaces" in found.message
