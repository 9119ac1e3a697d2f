"""What doctor reads, and how it writes numbers."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.client import Access
from monitor.commands.doctor.look import Limits, limits_of, samples_of
from monitor.commands.doctor.rules import count, duration, names, number, share, shares
from monitor.config import Config
from monitor.service.exposition import family

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(TEXT, TEXT, st.floats())
def test_labels_come_back_as_they_were_exported(one, other, value):
    text = family("nees_median_ratio", [(one, other, value)])
    ((labels, found),) = samples_of(text).rows("nees_median_ratio")
    assert labels == {"slice": one, "stage": other}
    assert repr(found) == repr(value)


def test_the_limits_are_those_of_the_file_or_the_defaults(tmp_path):
    file = tmp_path / "sidecar.toml"
    file.write_text('[state]\nfolder = ""\n[server]\nmax_streams = 3\n')
    assert limits_of(str(file)) == Limits(streams=3, disk=0)
    file.write_text('pending = 3\n[server]\nmax_streams = "many"\n')
    assert limits_of(str(file)) == Limits()
    file.write_text("nonsense")
    for path in (str(file), "", "sidecar.toml", "/nowhere/sidecar.toml", str(tmp_path)):
        assert limits_of(path) == Limits()


def test_the_default_limits_are_those_of_the_configuration():
    config = Config()
    pending = config.pending
    assert Limits() == Limits(config.server.max_streams, pending.max_bytes, pending.disk_bytes)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "10.0.0.7:50051", "sidecar:50051"])
def test_no_channel_of_doctor_takes_the_proxy(monkeypatch, address):
    seen = []
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda _, options: seen.append(options))
    Access(direct=True).channel(address, [("grpc.max_receive_message_length", -1)])
    assert ("grpc.enable_http_proxy", 0) in seen[0]
    assert ("grpc.max_receive_message_length", -1) in seen[0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 ms"), (0.0053, "5.3 ms"), (0.25, "250 ms"), (0.0996, "100 ms"),
        (0.9999, "1 s"), (3.04, "3 s"),
        (-37.0, "37 s"), (119.0, "119 s"), (150.0, "2.5 min"), (3600.0, "60 min"),
        (7199.99, "2 h"), (11_400.0, "3.2 h"), (259_217.0, "3 days"),
        (190_800.0, "2.2 days"), (315_964_782.0, "10 years"), (float("inf"), "an unknown time"),
        (float("nan"), "an unknown time"),
    ],
)  # fmt: skip
def test_a_time_is_said_in_the_units_that_people_use(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 5, "0 %"), (5, 5, "100 %"), (1, 8, "12 %"), (1, 3000, "less than 0.1 %"),
        (0.034, 1, "3.4 %"), (9999, 10_000, "99.9 %"), (0, 0, "0 %"),
        (float("nan"), 1, "an unknown share"),
    ],
)  # fmt: skip
def test_a_share_is_all_or_nothing_only_where_it_is(part, whole, said):
    assert share(part, whole) == said


def test_counts_names_and_numbers():
    assert count(1, "frame") == "1 frame"
    assert count(2040, "frame") == "2,040 frames"
    assert names([]) == "none"
    assert names(["a"]) == "a"
    assert names(["a", "b", "c"]) == "a, b and c"
    assert names(list("abcdefgh")) == "a, b, c, d, e and 3 more"
    assert shares({"a": 0.0, "b": 1.0, "c": 3.0}, 4.0) == "c 75 % and b 25 %"
    assert [number(n) for n in (0.0123, 999.7, 1234.5)] == ["0.0123", "1,000", "1,234"]
