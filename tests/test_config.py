"""Settings: defaults, refusals that name the key, and the file that lists them all."""

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from monitor.config import (
    USED_BY,
    Config,
    DriftConfig,
    InvalidConfiguration,
    Mode,
    PromotionConfig,
    TrackerConfig,
    checked,
    load,
    replaced,
)
from monitor.drift.evidence import DriftSettings
from monitor.frames.slices import RangeBuckets, SliceBy
from monitor.frames.space import MOST_LEVELS, MOST_WINDOWS
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import Objective
from monitor.statistics.bins import LogBins
from monitor.store.previous import PreviousPaths, previous_paths
from monitor.tracking.kalman import UPRIGHT, DimensionNoise, TrackerSettings

SIDECAR = Path(__file__).parents[1] / "deploy" / "sidecar.toml"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sidecar.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path, text) -> str:
    with pytest.raises(InvalidConfiguration) as found:
        load(written(tmp_path, text))
    return str(found.value)


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load(written(tmp_path, "")) == Config()


def test_the_defaults_serve_on_this_machine_only_and_keep_what_the_contract_says():
    config = Config()
    assert config.server.grpc_address == "127.0.0.1:50051"
    assert config.server.http_address == "127.0.0.1:9464"
    assert not config.server.reflection
    assert config.recalibration.mode is Mode.APPLY
    assert config.statistics.slice_by == (SliceBy.CLASS,)
    assert config.statistics.max_slices == 24
    assert len(config.statistics.tau) == 5


def test_what_a_file_sets_is_set_and_the_rest_keeps_its_default(tmp_path):
    text = """
        [recalibration]
        mode = "observe"
        [statistics]
        slice_by = ["class", "stream"]
        tau = [0.5, 0.9]
        [pending]
        max_bytes = 1000
    """
    found = load(written(tmp_path, text))
    assert found.recalibration.mode is Mode.OBSERVE
    assert found.statistics.slice_by == (SliceBy.CLASS, SliceBy.STREAM)
    assert found.statistics.tau == (0.5, 0.9)
    assert found.pending.max_bytes == 1000
    assert found.server == Config().server
    assert found.statistics.bins == Config().statistics.bins


def test_settings_cannot_be_changed_once_loaded():
    with pytest.raises(ValueError, match="frozen"):
        Config().server.max_streams = 3


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[server]\ngrpc_adress = 'x'", "[server.grpc_adress]: "),
        ("[sever]\nmax_streams = 1", "[sever]"),
        ("max_streams = 5", "[max_streams] = 5: "),
        ("[statistics.tau]\nlow = 1", "[statistics.tau]"),
    ],
)
def test_an_unknown_key_is_refused_by_name(tmp_path, text, key):
    message = refusal(tmp_path, text)
    assert key in message
    assert "sidecar.toml" in message
    assert message.endswith("See deploy/sidecar.toml for every key and its unit.")


def test_a_text_under_an_unknown_key_is_not_repeated_it_may_be_a_secret(tmp_path):
    message = refusal(tmp_path, "[security]\ndata_token = 'open-sesame'")
    assert "[security.data_token]: " in message
    assert "sesame" not in message


@pytest.mark.parametrize(
    ("section", "key", "value", "shown"),
    [
        ("server", "max_streams", "0", "0"),
        ("server", "max_message_bytes", "-1", "-1"),
        ("server", "write_timeout_seconds", "0.0", "0.0"),
        ("server", "grace_seconds", "-0.1", "-0.1"),
        ("server", "reflection", '"maybe"', "'maybe'"),
        ("recalibration", "mode", '"watch"', "'watch'"),
        ("recalibration", "recalibrator", "3", "3"),
        ("recalibration", "class_recalibrator", "true", "True"),
        ("statistics", "slice_by", "[]", "[]"),
        ("statistics", "slice_by", '["colour"]', "'colour'"),
        ("statistics", "slice_by", '"range"', "'range'"),
        ("statistics", "range_edges", "[]", "[]"),
        ("statistics", "range_edges", "[40.0, 20.0]", "[40.0, 20.0]"),
        ("statistics", "range_edges", "[20.0, 20.0]", "[20.0, 20.0]"),
        ("statistics", "range_edges", "[0.0, 20.0]", "0.0"),
        ("statistics", "range_edges", "[20.0, inf]", "inf"),
        ("statistics", "range_dimensions", '"x"', "'x'"),
        ("statistics", "micro_bins_per_octave", "3", "3"),
        ("statistics", "micro_bins_per_octave", "257", "257"),
        ("statistics", "micro_bins_per_octave", "32.5", "32.5"),
        ("statistics", "windows", "[]", "[]"),
        ("statistics", "windows", '["5 min"]', "['5 min']"),
        ("statistics", "windows", '["0m"]', "['0m']"),
        ("statistics", "windows", '["-5m"]', "['-5m']"),
        ("statistics", "windows", "[300]", "300"),
        ("statistics", "panes", "0", "0"),
        ("statistics", "panes", "61", "61"),
        ("statistics", "live_seconds", "0.0", "0.0"),
        ("statistics", "live_seconds", "inf", "inf"),
        ("statistics", "max_slices", "0", "0"),
        ("statistics", "max_slices", "513", "513"),
        ("statistics", "tau", "[]", "[]"),
        ("statistics", "tau", "[0.9, 0.5]", "[0.9, 0.5]"),
        ("statistics", "tau", "[0.5, 0.5]", "[0.5, 0.5]"),
        ("statistics", "tau", "[0.0, 0.5]", "0.0"),
        ("statistics", "tau", "[0.5, 1.0]", "1.0"),
        ("statistics", "bins", "0", "0"),
        ("statistics", "bins", "513", "513"),
        ("statistics", "lowest_deviation", "0.0", "0.0"),
        ("statistics", "fold_rows", "0", "0"),
        ("statistics", "fold_rows", "65537", "65537"),
        ("limits", "max_dimensions", "33", "33"),
        ("limits", "max_classes", "0", "0"),
        ("limits", "max_classes", "4097", "4097"),
        ("limits", "max_detections", "0", "0"),
        ("limits", "largest_mean", "-1.0", "-1.0"),
        ("limits", "smallest_deviation", "0.0", "0.0"),
        ("limits", "largest_deviation", '"big"', "'big'"),
        ("pending", "max_bytes", "0", "0"),
        ("pending", "max_disorder_seconds", "-1.0", "-1.0"),
        ("state", "folder", "3", "3"),
        ("state", "name", '"a/b"', "'a/b'"),
        ("state", "name", '".."', "'..'"),
        ("state", "every_seconds", "0.05", "0.05"),
        ("state", "every_seconds", "nan", "nan"),
        ("metrics", "refresh_seconds", "0.0", "0.0"),
        ("metrics", "export_edges", "[]", "[]"),
        ("metrics", "export_edges", "[0.5, -1.0]", "-1.0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_and_value(tmp_path, section, key, value, shown):
    message = refusal(tmp_path, f"[{section}]\n{key} = {value}")
    assert f"[{section}.{key}" in message
    assert f"] = {shown}: " in message


def test_whole_tracks_as_the_unit_of_drift_are_refused_with_the_unit_to_use(tmp_path):
    message = refusal(tmp_path, "[drift]\nunit = 'track'")
    assert "[drift.unit] = 'track': " in message
    assert "use track-second" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("largest_mean", "inf"),
        ("largest_mean", "nan"),
        ("largest_deviation", "inf"),
        ("smallest_deviation", "nan"),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(tmp_path, key, value):
    assert key in refusal(tmp_path, f"[limits]\n{key} = {value}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[metrics]\nexport_edges = [1.0, 0.5]", "1 and 0.5"),
        ("[metrics]\nexport_edges = [1.0, 1.001]", "1 and 1.001"),
        ("[statistics]\nlowest_deviation = 0.25", "0.0625 and 0.125"),
    ],
)
def test_export_edges_that_cannot_be_told_apart_are_refused_with_their_values(
    tmp_path, text, shown
):
    message = refusal(tmp_path, text)
    assert f"[metrics.export_edges]: export edges {shown} are not ascending" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'windows = ["5m", "7m"]',
            "a window of 420 s is no multiple of the one of 300 s before it: "
            "choose lengths such as 5m, 1h, 24h",
        ),
        ('windows = ["1h", "5m"]', "a window of 300 s is no multiple of the one of 3600 s"),
        ('windows = ["1h", "60m"]', "a window of 3600 s is no multiple of the one of 3600 s"),
        ('windows = ["1s"]\npanes = 7', "cannot be cut into 7 panes of whole nanoseconds"),
    ],
)
def test_windows_that_do_not_fit_into_each_other_are_refused_with_a_remedy(tmp_path, text, said):
    message = refusal(tmp_path, f"[statistics]\n{text}")
    assert said in message
    assert "choose" in message
    assert "[statistics" in message


def test_a_duration_that_is_none_is_refused_with_an_example(tmp_path):
    message = refusal(tmp_path, '[statistics]\nwindows = ["5m", "an hour"]')
    assert "'an hour' must be a duration such as 30s, 5m, 1h or 2d" in message


def test_windows_and_buckets_are_what_the_file_says(tmp_path):
    text = """
        [statistics]
        slice_by = ["class", "range"]
        range_edges = [10.0, 30.0]
        range_dimensions = ["u", "v"]
        windows = ["30s", "10m", "2h", "2d"]
        panes = 5
        micro_bins_per_octave = 64
        live_seconds = 2.5
        [state]
        folder = "kept"
        every_seconds = 1.5
    """
    config = load(written(tmp_path, text))
    lengths = config.statistics.window_lengths()
    assert lengths.lengths_ns == tuple(s * 10**9 for s in (30, 600, 7200, 172800))
    assert lengths.panes == 5
    assert config.statistics.ranges() == RangeBuckets((10.0, 30.0), ("u", "v"))
    assert config.statistics.binning().deviation == LogBins(2.0**-20, 64, 40)
    assert (config.state.folder, config.state.every_seconds) == ("kept", 1.5)


def test_edges_of_range_matter_only_where_range_tells_slices_apart():
    assert Config().statistics.ranges() is None


def test_slices_by_range_need_dimensions_that_make_up_the_range(tmp_path):
    text = "[statistics]\nrange_dimensions = []\n"
    message = refusal(tmp_path, text + "slice_by = ['class', 'range']")
    assert "range_dimensions is empty" in message
    assert "such as x, y, z, or leave range out of slice_by" in message
    assert load(written(tmp_path, text)).statistics.range_dimensions == ()


@pytest.mark.parametrize(
    ("key", "values", "most"),
    [
        ("tau", [i / 100 for i in range(1, 66)], MOST_LEVELS),
        ("range_edges", [float(i) for i in range(1, 18)], 16),
        ("windows", [f"{2**i}m" for i in range(9)], MOST_WINDOWS),
    ],
)
def test_longer_lists_than_statistics_can_hold_are_refused(tmp_path, key, values, most):
    assert len(values) == most + 1
    assert f"[statistics.{key}]" in refusal(tmp_path, f"[statistics]\n{key} = {values}")
    found = load(written(tmp_path, f"[statistics]\n{key} = {values[:-1]}")).statistics
    assert getattr(found, key) == tuple(values[:-1])


def test_every_wrong_key_of_a_file_is_named_at_once(tmp_path):
    message = refusal(tmp_path, "[server]\nmax_streams = 0\nport = 1\n[metrics]\nrefresh = 2")
    for key in ("[server.max_streams]", "[server.port]", "[metrics.refresh]"):
        assert key in message


def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path):
    message = refusal(tmp_path, "[server\n")
    assert "sidecar.toml is not TOML" in message


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "sidecar.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidConfiguration, match=r"sidecar\.toml"):
        load(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(
        InvalidConfiguration, match=r"missing\.toml: No such file .* Check the path"
    ):
        load(tmp_path / "missing.toml")


def test_the_annotated_file_lists_every_key_at_its_default():
    assert tomllib.loads(SIDECAR.read_text("utf-8")) == Config().model_dump(
        mode="json",
        exclude_none=True,  # TOML has no null: what is None is left out
    )
    assert load(SIDECAR) == Config()


def test_the_tracker_is_set_as_its_own_defaults_say():
    assert Config().tracker.settings() == TrackerSettings()


def test_a_dimension_that_is_named_leaves_the_others_at_their_defaults():
    tracker = TrackerConfig.model_validate({"dimensions": {"yaw": {"density": 0.5}}})
    dimensions = tracker.settings().dimensions
    assert dimensions["yaw"] == DimensionNoise(density=0.5)
    assert dimensions["z"] == UPRIGHT["z"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method = 'identity'", ["method 'identity'", "variance-scaling", "mode 'manual'"]),
        ("method = 'best'", ["method 'best'", "variance-scaling", "gp-cauchy"]),
        (
            "objective = 'quantile'\nmethod = 'gp-normal'",
            ["objective quantile", "'gp-normal'", "leave it out", "variance-scaling"],
        ),
        ("objective = 'mean'\nmethod = 'adaptive-scaling'", ["objective mean", "leave it out"]),
        (
            "time_constant_seconds = 60.0",
            ["time_constant_seconds 60.0", "'variance-scaling'", "adaptive-scaling"],
        ),
        (
            "fit_tracks = 20\nkept_tracks = 10",
            ["fit_tracks 20", "kept_tracks 10", "lower the one or raise the other"],
        ),
    ],
)
def test_settings_of_promotions_that_contradict_each_other_are_refused(tmp_path, text, words):
    message = refusal(tmp_path, f"[promotion]\n{text}\n")
    assert "[promotion]" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("method", sorted(FITTINGS))
def test_settings_of_a_method_are_taken_where_its_fit_has_a_use_for_them(method):
    uses = FITTINGS[method].uses
    assert (method in USED_BY["objective"]) == ("objective" in uses)
    assert (method in USED_BY["time_constant_seconds"]) == ("time_constant" in uses)
    if method == Identity.method:
        return
    taken = PromotionConfig(
        method=method,
        objective=Objective.QUANTILE if "objective" in uses else None,
        time_constant_seconds=5.0 if "time_constant" in uses else None,
    )
    assert taken.settings().fits.method == method


# Keys of [drift] by the name that the pure core has for them, with another value each.
OF_THE_CORE = {
    "hours_between_false_pages": ("hours_between_false_pages", 70.0),
    "hours_between_false_tickets": ("hours_between_false_tickets", 7.0),
    "page_tolerance": ("page_tolerance", 1.5),
    "ticket_tolerance": ("ticket_tolerance", 1.7),
    "unit": ("unit", "detection"),
    "reference_tracks": ("reference_tracks", 31),
    "reference_detections": ("reference_detections", 2001),
    "reference_seconds": ("reference_seconds", 0.0),
    "fewest_tracks": ("fewest_tracks", 3),
    "calm_hours": ("calm_hours", 0.0),
    "open_tracks": ("most_open", 17),
    "track_idle_seconds": ("idle_seconds", 0.7),
}
OF_THE_WATCH = {
    "watch": False,
    "reference": "usual.json",
    "refit_on_page": True,
}


def drift_of(tmp_path, key, value):
    return load(written(tmp_path, f"[drift]\n{key} = {json.dumps(value)}\n")).drift


@pytest.mark.parametrize(("key", "name", "value"), [(k, *v) for k, v in OF_THE_CORE.items()])
def test_a_key_of_drift_reaches_the_core_and_nothing_else_there(tmp_path, key, name, value):
    found = drift_of(tmp_path, key, value).settings()
    assert found == replace(DriftSettings(), **{name: value})
    assert found != DriftSettings()


@pytest.mark.parametrize(("key", "value"), OF_THE_WATCH.items())
def test_what_the_watch_over_drift_has_for_itself_leaves_the_core_alone(tmp_path, key, value):
    found = drift_of(tmp_path, key, value)
    assert found != DriftConfig()
    assert found.settings() == DriftSettings() == DriftConfig().settings()


def test_no_key_of_drift_and_no_setting_of_its_core_but_a_constant_is_forgotten():
    assert DriftConfig.model_fields.keys() == OF_THE_CORE.keys() | OF_THE_WATCH.keys()
    names = {name for name, _ in OF_THE_CORE.values()}
    assert {field.name for field in fields(DriftSettings)} - names == {"shortest_reference"}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("server", "max_streams", True),
        ("server", "max_streams", 1.0),
        ("server", "shed_rows", "7"),
        ("server", "grace_seconds", True),
        ("server", "grace_seconds", "5"),
        ("server", "reflection", 1),
        ("server", "reflection", "yes"),
    ],
)
def test_a_value_of_another_type_is_refused_and_named(section, key, value):
    with pytest.raises(InvalidConfiguration, match=rf"{section}\.{key}\] = {value!r}: .*must be"):
        checked({section: {key: value}}, "test")


def test_a_whole_number_is_a_number():
    assert checked({"server": {"grace_seconds": 5}}, "test").server.grace_seconds == 5.0


def test_what_is_no_regular_file_or_far_too_large_is_no_configuration(tmp_path):
    with pytest.raises(InvalidConfiguration, match="no regular file"):
        load(tmp_path)
    with pytest.raises(InvalidConfiguration, match="no regular file"):
        load("/dev/zero")
    large = tmp_path / "large.toml"
    large.write_text("#" * ((1 << 20) + 1), "utf-8")
    with pytest.raises(InvalidConfiguration, match="more than 1048576 bytes"):
        load(large)


# ---- keys of the version before, in whose place is [state]

NOTHING_KEPT = {
    "snapshot": {"path": ""},
    "drift": {"path": ""},
    "promotion": {"folder": ""},
    "pending": {"folder": ""},
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (NOTHING_KEPT, {"state": {"folder": ""}}),
        (NOTHING_KEPT | {"snapshot": {"path": "a"}}, {"pending": {"disk_bytes": 0}}),
        ({"snapshot": {"path": "a"}, "promotion": {"folder": "b"}}, {}),
        (
            {"pending": {"folder": "", "keep_hours": 3.0}},
            {"pending": {"disk_bytes": 0, "keep_hours": 3.0}},
        ),
        (
            {"snapshot": {"every_seconds": 3.0}, "drift": {"every_seconds": 5.0}},
            {"state": {"every_seconds": 3.0}},
        ),
        ({"drift": {"every_seconds": 5.0}}, {"state": {"every_seconds": 5.0}}),
        ({"drift": {"path": "a", "watch": False}}, {"drift": {"watch": False}}),
        (
            NOTHING_KEPT | {"state": {"folder": "kept"}},
            {"state": {"folder": "kept"}, "pending": {"disk_bytes": 0}},
        ),
        (
            {"snapshot": {"every_seconds": 3.0}, "state": {"every_seconds": 7.0}},
            {"state": {"every_seconds": 7.0}},
        ),
    ],
)
def test_keys_of_the_version_before_are_understood(old, new):
    found, expected = checked(old, "test"), checked(new, "test")
    assert found.model_dump() == expected.model_dump()
    assert dict(found.old_keys) == {
        f"[{section}] {key}": value
        for section, keys in old.items()
        for key, value in keys.items()
        if key in ("path", "folder", "every_seconds") and section != "state"
    }
    assert expected.old_keys == {}
    assert replaced(found, {("server", "grpc_address"): "127.0.0.1:0"}).old_keys == found.old_keys


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ({"snapshot": {"path": 3}}, r"\[snapshot\] path = 3: must be a text"),
        ({"snapshot": {"every_seconds": 0.01}}, r"\[state.every_seconds\] = 0.01"),
        ({"snapshot": {"pth": "a"}}, r"\[snapshot\]"),
        ({"snapshot": 3}, r"\[snapshot\]"),
        ({"state": 3, "drift": {"path": "a"}}, r"\[state\]"),
    ],
)
def test_keys_of_the_version_before_are_checked_like_any_other(old, words):
    with pytest.raises(InvalidConfiguration, match=words):
        checked(old, "test")


def test_files_of_the_version_before_are_where_it_was_told_or_had_them_by_default():
    old = checked({"snapshot": {"path": "/s"}, "drift": {"path": ""}}, "test").old_keys
    assert previous_paths(old) == PreviousPaths(
        "/s", "", "calibration-monitor.recalibrators", "calibration-monitor.pending"
    )


def test_a_sidecar_has_the_name_that_it_is_given_or_that_of_its_port():
    for server, name, expected in (
        ({}, "", "50051"),
        ({"grpc_address": "127.0.0.1:0"}, "", ""),
        ({"grpc_address": "127.0.0.1:0"}, "front", "front"),
    ):
        assert checked({"server": server, "state": {"name": name}}, "test").state_name == expected
