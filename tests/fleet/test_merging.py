"""merge of a fleet: each upload once, whoever brings it, and the same bytes however it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.fleet.objects import objects_at
from monitor.statistics.holdings import Holdings
from monitor.statistics.state import StatisticsState
from monitor.store.files import read_body
from monitor.store.state_files import beginning_in
from monitor.store.statistics_state import StoredState, parsed
from tests.commands.spoken import done, found, refused, spoken
from tests.fleet.uploads import driven, file_of, loop, sharded
from tests.states import OTHER_BINNING, WINDOWS, joined


def merged(output, *words) -> bytes:
    done("merge", *words, "-o", output)
    return read_body(output)


# A process takes a second to start, so that a few seeds have two.
@pytest.mark.parametrize("seed", range(40))
def test_shards_in_any_order_with_duplicates_are_the_same_bytes(seed, tmp_path):
    uploads, whole = driven(seed)
    folders, output = sharded(uploads, tmp_path, seed), tmp_path / "fleet.state"
    jobs = 2 if seed % 10 == 0 else 1
    assert merged(output, *folders, "--jobs", jobs) == loop(uploads, seed)
    assert merged(output, *reversed(folders), "--jobs", 1) == joined(StoredState(whole))


@pytest.fixture
def fleet(tmp_path):
    """A folder of uploads, the uploads in it, and where to write."""
    uploads, _ = driven(1)
    for name, state in uploads:
        path = tmp_path / "uploads" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(state))
    return tmp_path / "uploads", uploads, tmp_path / "fleet.state"


def test_what_was_merged_before_is_left_out_and_said(fleet):
    folder, uploads, output = fleet
    first, last = [folder / uploads[i][0] for i in (0, -1)]
    answer = found("merge", first, last, last, "-o", output)
    assert (answer["uploads"], answer["vehicles"]) == (2, 2)
    assert (answer["duplicates"], answer["skipped"]) == ([str(last)], [])
    answer = found("merge", output, folder, "-o", output)
    assert (answer["uploads"], answer["vehicles"]) == (len(uploads), 3)
    assert sorted(answer["duplicates"]) == sorted(map(str, (first, last)))
    assert read_body(output) == loop(uploads, 0)
    assert f"It holds {len(uploads)} uploads of 3 vehicles." in done("merge", folder, "-o", output)


def test_two_fleet_states_that_overlap_in_part_are_named_with_what_they_share(fleet):
    folder, uploads, output = fleet
    names = [folder / name for name, _ in uploads]
    one, other = (output.with_name(f"{name}.state") for name in ("one", "other"))
    merged(one, *names[:3])
    merged(other, *names[2:6])
    line = refused("merge", one, other, "-o", output)
    assert str(one) in line and str(other) in line and "car0/1/3" in line
    assert not output.exists()


def test_damaged_and_other_objects_are_named_or_skipped(fleet):
    folder, uploads, output = fleet
    names = [folder / name for name, _ in uploads]
    state = uploads[0][1]
    bare = StatisticsState(OTHER_BINNING, WINDOWS, holds=Holdings.of("odd", "1", 1))
    names[0].write_bytes(file_of(bare))
    line = refused("merge", folder, "-o", output)
    assert line.startswith(f"calibration-monitor merge: {names[0]} does not fit {names[1]}: ")
    assert OTHER_BINNING.describe() in line
    # A torn one, and one whose end is another; what it was to bring is in a copy, too.
    names[1].write_bytes(names[1].read_bytes()[:-1])
    data = file_of(uploads[2][1])
    names[2].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    copy = folder / "copy.state"
    copy.write_bytes(data)
    names[0].write_bytes(file_of(state))
    assert "--skip-unusable" in refused("merge", folder, "-o", output)
    for jobs in (1, 2):
        code, _, err = spoken("merge", folder, "-o", output, "--skip-unusable", "--jobs", jobs)
        assert (code, len(err.splitlines())) == (3, 2)
        assert str(names[1]) in err and str(names[2]) in err
        assert read_body(output) == loop(uploads[:1] + uploads[2:], 0)


def test_an_object_that_goes_or_changes_between_the_passes_is_named(fleet, monkeypatch):
    folder, uploads, output = fleet
    victim = folder / uploads[4][0]
    other = file_of(replace(uploads[4][1], holds=Holdings.of("car9", "1", 1)))
    kind, get = type(objects_at(str(folder))), type(objects_at(str(folder))).get

    def gone(self, name):
        victim.unlink(missing_ok=True)
        return get(self, name)

    def replaced(self, name):
        victim.write_bytes(other)
        return get(self, name)

    monkeypatch.setattr(kind, "get", replaced)
    line = refused("merge", folder, "-o", output)
    assert f"{victim} was replaced since it was looked at" in line
    monkeypatch.setattr(kind, "get", gone)
    victim.write_bytes(file_of(uploads[4][1]))
    line = refused("merge", folder, "-o", output)
    assert line.endswith(
        f"{victim}: No such file or directory: it was there a moment ago. Merge again."
    )


def test_the_first_bytes_tell_what_is_held_wherever_they_end():
    uploads, whole = driven(2)
    for state in (uploads[0][1], whole, StatisticsState(OTHER_BINNING, WINDOWS)):
        data = joined(StoredState(state))
        answers = [beginning_in(data[:n], whole=False) for n in range(0, 800)]
        answers += [beginning_in(data, whole=True)]
        known = [one for one in answers if one is not None]
        assert known and all(one.holds == state.holds for one in known)
        assert {one.definitions for one in known} == {known[0].definitions}
        assert parsed(known[0].definitions).state.binning == state.binning


def test_fields_of_newer_code_are_the_same_bytes_whatever_the_shares(fleet):
    folder, uploads, output = fleet
    # Field 1,000 of the state itself, which nobody knows.
    for at, (name, state) in enumerate(uploads):
        (folder / name).write_bytes(file_of(state, bytes([0xC0, 0x3E, at])))
    assert merged(output, folder, "--jobs", 1) == merged(output, folder, "--jobs", 3)
    assert len(read_body(output)) == len(loop(uploads, 0)) + 3 * len(uploads)


def test_a_bucket_and_folders_are_merged_alike(fleet, monkeypatch):
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    folder, uploads, output = fleet
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "a",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": host,
        }.items():
            monkeypatch.setenv(name, value)
        _bucket(host, port)
        store = objects_at("s3://fleet/uploads")
        for name, state in uploads[::2]:
            assert store.create(name, file_of(state))
        at_most = store.head(uploads[0][0], 10**9)
        assert at_most == file_of(uploads[0][1]) and store.head(uploads[0][0], 5) == at_most[:5]
        assert merged(output, "s3://fleet/uploads", folder) == loop(uploads, 0)
        one = f"s3://fleet/uploads/{uploads[0][0]}"
        assert merged(output, one, "--jobs", 1) == joined(StoredState(uploads[0][1].in_order()))
        line = refused("merge", "s3://fleet/nothing/", folder, "-o", output)
        assert "'s3://fleet/nothing/' has no objects" in line
    finally:
        server.stop()


def _bucket(host: str, port: int) -> None:
    import http.client

    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/fleet")
    assert connection.getresponse().status == 200
    connection.close()
