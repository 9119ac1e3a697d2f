"""What doctor reads: labels of metrics whatever is in them, limits of a file it may read; and by
which way.
"""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.client import Access
from monitor.commands.doctor.look import limits_of, samples_of
from monitor.commands.doctor.observation import Limits
from monitor.service.exposition import gauge

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(TEXT, TEXT, st.floats())
def test_labels_come_back_as_they_were_exported(one, other, value):
    text = gauge("coverage", ("slice", "stage"), [((one, other), value)])
    ((labels, found),) = samples_of(text).rows("coverage")
    assert labels == {"slice": one, "stage": other}
    assert repr(found) == repr(value)


def test_limits_are_those_of_the_file_or_the_defaults(tmp_path):
    file = tmp_path / "sidecar.toml"
    file.write_text(
        '[state]\nfolder = ""\n[pending]\nmax_bytes = 1000\n[server]\nmax_streams = 3\n'
    )
    assert limits_of(str(file)) == Limits(1000, 2**31, on_disk=False, streams=3)
    file.write_text("nonsense")
    assert limits_of(str(file)) == Limits()
    for path in ("", "sidecar.toml", "/nowhere/sidecar.toml", str(tmp_path)):
        assert limits_of(path) == Limits()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "10.0.0.7:50051", "sidecar:50051"])
def test_no_channel_of_doctor_takes_the_proxy(monkeypatch, address):
    seen = []
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda _, options: seen.append(options))
    Access(direct=True).channel(address, [("grpc.max_receive_message_length", -1)])
    assert ("grpc.enable_http_proxy", 0) in seen[0]
    assert ("grpc.max_receive_message_length", -1) in seen[0]
