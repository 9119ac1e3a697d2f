"""Settings: defaults, refusals that name the key, and the file that lists them all."""

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from monitor.config import Config, DriftConfig, InvalidConfiguration, checked, load, replaced
from monitor.drift.evidence import DriftSettings
from monitor.frames.slices import RangeBuckets
from monitor.frames.words import Mode
from monitor.statistics.bins import LogBins
from monitor.tracking.motion import UPRIGHT, DimensionNoise, TrackerSettings

SIDECAR = Path(__file__).parents[2] / "deploy" / "sidecar.toml"


def loaded(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "sidecar.toml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def refusal(tmp_path, text) -> str:
    with pytest.raises(InvalidConfiguration) as found:
        loaded(tmp_path, text)
    return str(found.value)


def test_the_defaults_serve_on_this_machine_only_and_are_those_of_the_annotated_file(tmp_path):
    assert loaded(tmp_path, "") == load(SIDECAR) == Config()
    assert tomllib.loads(SIDECAR.read_text("utf-8")) == Config().model_dump(
        mode="json",
        exclude_none=True,  # TOML has no null: what is None is left out
    )
    assert Config().server.grpc_address == "127.0.0.1:50051"
    assert Config().server.http_address == "127.0.0.1:9464"
    with pytest.raises(ValueError, match="frozen"):
        Config().server.max_streams = 3


def test_what_a_file_sets_is_set_and_the_rest_keeps_its_default(tmp_path):
    text = """
        [recalibration]
        mode = "observe"
        [server]
        grace_seconds = 5
        [statistics]
        slice_by = ["class", "range"]
        range_edges = [10.0, 30.0]
        range_dimensions = ["u", "v"]
        windows = ["30s", "10m", "2h", "2d"]
        panes = 5
        micro_bins_per_octave = 64
        [tracker.dimensions.yaw]
        density = 0.5
    """
    found = loaded(tmp_path, text)
    assert found.recalibration.mode is Mode.OBSERVE
    assert found.server == Config().server.model_copy(update={"grace_seconds": 5.0})
    lengths = found.statistics.window_lengths()
    assert lengths.lengths_ns == tuple(s * 10**9 for s in (30, 600, 7200, 172800))
    assert lengths.panes == 5
    assert found.statistics.ranges() == RangeBuckets((10.0, 30.0), ("u", "v"))
    assert found.statistics.binning().deviation == LogBins(2.0**-20, 64, 40)
    assert Config().statistics.ranges() is None
    assert Config().tracker.settings() == TrackerSettings()
    dimensions = found.tracker.settings().dimensions
    assert dimensions == {**UPRIGHT, "yaw": DimensionNoise(density=0.5)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[server]\ngrpc_adress = 'x'", "[server.grpc_adress]: "),
        ("max_streams = 5", "[max_streams] = 5: "),
        # A text under an unknown key is not repeated: it may be a secret.
        ("[security]\ndata_token = 'open-sesame'", "[security.data_token]: "),
    ],
)
def test_an_unknown_key_is_refused_by_name(tmp_path, text, key):
    message = refusal(tmp_path, text)
    assert key in message
    assert "sesame" not in message
    assert "sidecar.toml" in message
    assert message.endswith("serve --print-config` lists every key with its unit.")


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("server.max_streams = 0", "0"),
        ("server.grace_seconds = -0.1", "-0.1"),
        ("server.grace_seconds = true", "True"),
        ('server.reflection = "maybe"', "'maybe'"),
        ('server.shed_rows = "7"', "'7'"),
        ('recalibration.mode = "watch"', "'watch'"),
        ('statistics.slice_by = ["colour"]', "'colour'"),
        ("statistics.range_edges = [20.0, 20.0]", "[20.0, 20.0]"),
        ("statistics.range_edges = [20.0, inf]", "inf"),
        ('statistics.windows = ["0m"]', "['0m']"),
        ('statistics.windows = ["10001d"]', "['10001d']"),
        ("statistics.tau = [0.9, 0.5]", "[0.9, 0.5]"),
        ("statistics.tau = [0.5, 1.0]", "1.0"),
        ("limits.max_dimensions = 33", "33"),
        ("limits.smallest_deviation = nan", "nan"),
        ('state.name = "a/b"', "'a/b'"),
        ('fleet.vehicle = "a/b"', "'a/b'"),
        ("fleet.every_minutes = 0", "0"),
        *(
            (f'fleet.upload = "{wrong}"', f"'{wrong}'")
            for wrong in (
                "s3://bucket/{vehicle}/{epoch}.state",
                "s3://{vehicle}/{epoch}/{sequence}.state",
                "ftp://bucket/{vehicle}/{epoch}/{sequence}.state",
                "file://folder/{vehicle}/{epoch}/{sequence}.state",
                "s3://bucket/{vehicle}/{epoch}/../{sequence}.state",
                "s3://bucket/{vehicle}/{epoch}/_{sequence}.state",
                "s3://bucket/{vehicle}/{epoch}/{sequence}.state?x={y}",
            )
        ),
        ("metrics.export_edges = [0.5, -1.0]", "-1.0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_and_value(tmp_path, setting, shown):
    section, _, text = setting.partition(".")
    message = refusal(tmp_path, f"[{section}]\n{text}")
    assert f"[{setting.partition(' ')[0]}" in message
    assert f"] = {shown}: " in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[drift]\nunit = 'track'", ["use track-second"]),
        ("[fleet]\nupload = 's3://b/{vehicle}/{epoch}/{sequence}'", ["without vehicle: name"]),
        ("[fleet]\nupload = 's3://b/{vehicle}/x'", ["must hold {epoch}, {sequence}"]),
        ("[metrics]\nexport_edges = [1.0, 0.5]", ["edges 1 and 0.5 are not ascending"]),
        ("[metrics]\nexport_edges = [1.0, 1.001]", ["[metrics.export_edges]: ", "1 and 1.001"]),
        ("[statistics]\nlowest_deviation = 0.25", ["[metrics.export_edges]: ", "0.0625 and"]),
        ("[statistics]\nwindows = ['5m', '7m']", ["420 s is no multiple of the one of 300 s"]),
        ("[statistics]\nwindows = ['1h', '60m']", ["3600 s is no multiple of the one of 3600"]),
        ("[statistics]\nwindows = ['1s']\npanes = 7", ["cannot be cut into 7 panes of whole"]),
        ("[statistics]\nwindows = ['an hour']", ["'an hour' must be a duration such as 30s, 5m"]),
        ("[statistics]\nrange_dimensions = []\nslice_by = ['range']", ["such as x, y, z, or"]),
        ("[limits]\nsmallest_deviation = 1.0\nlargest_deviation = 1.0", ["1 is not below largest"]),
        ("[promotion]\nmethod = 'identity'", ["method 'identity'", "mode 'manual'"]),
        ("[promotion]\nmethod = 'best'", ["method 'best'", "variance-scaling", "gp-cauchy"]),
        ("[promotion]\nobjective = 'quantile'\nmethod = 'gp-normal'", ["objective quantile"]),
        ("[promotion]\ntime_constant_seconds = 60.0", ["time_constant_seconds 60.0", "adaptive-"]),
        ("[promotion]\ncorrect_mean = true\nmethod = 'gp-beta'", ["correct_mean: gp-beta moves"]),
        ("[promotion]\nfit_tracks = 20\nkept_tracks = 10", ["lower the one or raise the other"]),
        ("[server]\ngrpc_adress = 'a'", ["no such key. Did you mean 'grpc_address'? `calib"]),
        ("grpc_address = 'a'", ["[grpc_address]: ", "Is it a key of [server]?"]),
        ("server = 3", ["[server] = 3: must be a section"]),
        ("[statistics]\nslice_by = 'class'", ["must be a list in brackets"]),
        ("[server]\ngrpc_address = 5", ["must be a text in quotes"]),
        ("[promotion]\nmode = 'auto'", ["must be 'manual', 'advise' or 'automatic'."]),
        ("[server]\nmax_streams = 0\nport = 1\n[metrics]\nrefresh = 2", ["port]", "[metrics.ref"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_a_remedy(tmp_path, text, words):
    message = refusal(tmp_path, text)
    for word in words:
        assert word in message


def test_a_file_that_is_none_is_refused_by_name(tmp_path):
    assert "sidecar.toml is not TOML" in refusal(tmp_path, "[server\n")
    path = tmp_path / "sidecar.toml"
    path.write_bytes(b"#" * (1 << 20))
    assert load(path) == Config()
    strange, large = tmp_path / "strange.toml", tmp_path / "large.toml"
    strange.write_bytes(b"\xff\xfe\x00")
    large.write_bytes(b"#" * ((1 << 20) + 1))
    for other, said in (
        (strange, r"strange\.toml is not UTF-8"),
        (large, "more than 1048576 bytes"),
        ("/dev/zero", "no regular file"),
        (
            tmp_path / "missing.toml",
            r"missing\.toml cannot be read \(No such file .*\)\. Check the path",
        ),
    ):
        with pytest.raises(InvalidConfiguration, match=said):
            load(other)


# Keys of [drift] by the name that the pure core has for them, with another value each.
OF_THE_CORE: dict[str, tuple[str, Any]] = {
    "hours_between_false_pages": ("hours_between_false_pages", 70.0),
    "hours_between_false_tickets": ("hours_between_false_tickets", 7.0),
    "page_tolerance": ("page_tolerance", 1.5),
    "ticket_tolerance": ("ticket_tolerance", 1.7),
    "bias_tolerance": ("bias_tolerance", 0.7),
    "class_tolerance": ("class_tolerance", 3.0),
    "unit": ("unit", "detection"),
    "reference_tracks": ("reference_tracks", 31),
    "reference_detections": ("reference_detections", 2001),
    "reference_seconds": ("reference_seconds", 0.0),
    "fewest_tracks": ("fewest_tracks", 3),
    "calm_hours": ("calm_hours", 0.0),
    "open_tracks": ("most_open", 17),
    "track_idle_seconds": ("idle_seconds", 0.7),
}
OF_THE_WATCH: dict[str, Any] = {"watch": False, "reference": "usual.json", "refit_on_page": True}


@pytest.mark.parametrize("key", [*OF_THE_CORE, *OF_THE_WATCH])
def test_a_key_of_drift_reaches_the_core_and_nothing_else_there_or_is_of_the_watch(tmp_path, key):
    name, value = OF_THE_CORE.get(key) or ("", OF_THE_WATCH.get(key))
    found = loaded(tmp_path, f"[drift]\n{key} = {json.dumps(value)}\n").drift
    assert found != DriftConfig()
    changes: dict[str, Any] = {name: value} if name else {}
    assert found.settings() == replace(DriftSettings(), **changes)
    assert DriftConfig.model_fields.keys() == OF_THE_CORE.keys() | OF_THE_WATCH.keys()
    names = {name for name, _ in OF_THE_CORE.values()}
    assert {field.name for field in fields(DriftSettings)} - names == {"shortest_reference"}


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
        (
            {"snapshot": {"every_seconds": 3.0}, "drift": {"every_seconds": 5.0}},
            {"state": {"every_seconds": 3.0}},
        ),
        ({"drift": {"path": "a", "watch": False}}, {"drift": {"watch": False}}),
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


def test_a_sidecar_has_the_name_that_it_is_given_or_that_of_its_port():
    for server, name, expected in (
        ({}, "", "50051"),
        ({"grpc_address": "127.0.0.1:0"}, "", ""),
        ({"grpc_address": "127.0.0.1:0"}, "front", "front"),
    ):
        assert checked({"server": server, "state": {"name": name}}, "test").state_name == expected


TLS = 'certificate = "c.pem"\nkey = "k.pem"\n'
TOKEN = 'data_token_file = "t"\n'
OPEN = '[server]\ngrpc_address = "0.0.0.0:50051"\n[security]\n'
HTTP = '[server]\nhttp_address = "0.0.0.0:1"\n[security]\n'


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}{TLS}client_authority = 'a.pem'",
        f"{OPEN}{TLS}admin_token_file = 't'",
        f"{OPEN}{TLS}allow_open_administration = true",
        f"[security]\n{TLS}",
        f"{OPEN}{TLS}{TOKEN}client_authority = 'a.pem'",
        f"{OPEN}allow_plain_text = true",
        f"{HTTP}allow_plain_metrics = true",
        f"[security]\n{TOKEN}",
        '[server]\ngrpc_address = "[::1]:0"\nhttp_address = "localhost:0"',
    ],
)
def test_what_is_encrypted_or_meant_or_stays_here_is_taken(tmp_path, text):
    loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (f'[server]\ngrpc_address = "{host}:50051"', words)
            for host in ("0.0.0.0", "[::]", "10.0.0.1", "vehicle")
            for words in (host.strip("[]"), "without TLS", "certificate and key, listen on")
        ),
        (f"{OPEN}{TOKEN}", "tokens would go over the network"),
        (f"{OPEN}allow_plain_text = true\n{TOKEN}", "data_token_file: tokens would go over"),
        (f"{OPEN}{TLS}", "client_authority or admin_token_file"),
        (f"{OPEN}{TLS}{TOKEN}", "whoever connects may promote"),
        (f"{OPEN}allow_open_administration = true", "allow_plain_text = true"),
        (HTTP, "allow_plain_metrics = true"),
        (f"{HTTP}allow_plain_text = true", "allow_plain_metrics = true"),
        ('[security]\ncertificate = "c.pem"', "certificate 'c.pem' without key"),
        ('[security]\nkey = "k.pem"', "key 'k.pem' without certificate"),
        ('[security]\nclient_authority = "a.pem"', "client_authority 'a.pem' without certificate"),
        ("[security]\nreload_seconds = 0.0", "reload_seconds"),
    ],
)
def test_what_others_could_listen_to_or_what_is_half_said_is_refused(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


def test_addresses_of_the_command_line_are_held_to_the_same():
    with pytest.raises(InvalidConfiguration, match=r"command line: .*without TLS"):
        replaced(Config(), {("server", "grpc_address"): "0.0.0.0:1"})
    with pytest.raises(InvalidConfiguration, match="allow_plain_metrics"):
        replaced(Config(), {("server", "http_address"): "0.0.0.0:1"})
