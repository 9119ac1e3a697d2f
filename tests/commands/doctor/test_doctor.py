"""The verb `doctor` against real sidecars, well and unwell: its words, and its exit code."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time

import pytest

from monitor.cli import main
from monitor.commands import doctor as verb
from monitor.commands.doctor import look
from monitor.options.sidecars import MOST_SECONDS
from monitor.v1 import recalibrator_admin_pb2
from tests.certificates import Authority
from tests.commands.doctor.doctored import (
    FAST,
    driving,
    frozen,
    in_units,
    mixed,
    off_by,
    sound,
    unlabelled,
    unstamped,
)
from tests.drifting import TOO_SMALL, Drive, drive_until_alarm, settings
from tests.foreign_client import labels, promote, scaling
from tests.scripted_monitor import serving, well
from tests.served import PATIENCE, Conversation, Sidecar, eventually, running

NOBODY = "127.0.0.1:1"


def at(sidecar: Sidecar) -> tuple[str, ...]:
    return "--address", sidecar.grpc, "--http-address", sidecar.http.removeprefix("http://")


@pytest.fixture
def doctor(capfd):
    """The verb; its exit code, and what it prints, each space and line break as one space."""

    def seen(*words, watched="0.4"):
        watch = ["--seconds", watched] if watched else []
        code = main(["doctor", *watch, *map(str, words)])
        said = capfd.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, " ".join(said.out.split())

    return seen


def keeping(folder) -> contextlib.AbstractContextManager[Sidecar]:
    """A sidecar that keeps its statistics."""
    config = f'{FAST}[state]\nfolder = "{folder}/state"\nevery_seconds = 0.2\n'
    return running(folder, config)


@pytest.fixture
def fresh(tmp_path):
    with keeping(tmp_path) as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """One for tests that look at what they send alone."""
    with keeping(tmp_path_factory.mktemp("calm")) as sidecar:
        yield sidecar


def wrong_labels(sidecar: Sidecar, number: int) -> None:
    """Labels of frames of a stream that there is none of here."""
    stream = Conversation(sidecar.monitor.ReportGroundTruth)
    for frame in range(number):
        stream.ask(labels("elsewhere", frame, [0, 1]))
    stream.close()


def test_what_is_missing_is_told_one_after_the_other_until_nothing_is_wrong(doctor, fresh):
    code, said = doctor(*at(fresh))
    assert code == 1
    assert f"sidecar at {fresh.grpc}, watched for" in said
    assert "WRONG streams: nobody sends frames: none has come since the start" in said

    with driving(fresh, {"front": unlabelled}):
        code, said = doctor(*at(fresh))
        assert code == 0
        assert "nothing is wrong" in said
        assert "remark labels: frames come, but no truth has come yet" in said
        code, said = doctor(*at(fresh), "--truth-within", "0.5")
        assert code == 1
        assert "WRONG labels: frames come, but no truth comes: none has matched" in said
        assert "Measures stand still; drift cannot be found" in said
        assert "#calibrationnolabels" in said
        wrong_labels(fresh, 20)
        time.sleep(0.3)
        code, said = doctor(*at(fresh), "--truth-within", "0.5")
        assert code == 1
        assert "labels come, but none of them matches a detection" in said
        assert "orphan 100 %" in said
        assert "; streams here are front." in said

    with driving(fresh, {"front": sound, "rear": sound}):
        assert eventually(lambda: fresh.metric("checkpoint_age_seconds") < 5)
        code, said = doctor(*at(fresh))
        assert code == 0
        assert "nothing is wrong, 1 remark" in said
        assert "remark reach: the sidecar was started" in said
        for area in ("streams: 2 streams", "clock: stamps are up to", "drift: no alarm"):
            assert f"well {area}" in said
        assert "% of the labels match" in said
        assert "well disk: the last checkpoint was written" in said


def test_what_is_wrong_with_stamps_is_told_by_stream_with_the_mistake_that_makes_them(doctor, calm):
    unwell = {
        "good": sound,
        "late": off_by(-3.0),
        "yesterday": off_by(-86400.0 + 17),
        "zone": off_by(7200.0),
        "ptp": off_by(37.0),
        "millis": in_units(10**3),
        "micros": in_units(10**6),
        "boot": off_by(-time.time() + 500.0),
        "bare": unstamped,
        "zero": frozen,
    }
    with driving(calm, unwell):
        code, said = doctor(*at(calm))
    assert code == 1
    assert "stamps are not of now: " in said
    assert "yesterday 24 h behind" in said
    assert "zone 2 h ahead of" in said
    assert "ptp 37 s ahead of" in said
    assert "whole half hours look like local time" in said
    assert "37 s ahead of UTC is TAI" in said
    assert "stream millis: stamps are not in nanoseconds" in said
    assert "in milliseconds they would be of now" in said
    assert "stream micros: stamps are not in nanoseconds" in said
    assert "stream boot: stamps count from the start of something, not from 1970" in said
    assert "stream zero: stamps do not move: frames came while doctor looked" in said
    assert "stream bare: frames come without a capture stamp" in said
    assert "the streams do not agree what time it is: late 3 s behind the wall clock" in said


def test_a_clock_of_the_sidecar_that_is_not_ours_is_told(doctor, calm, monkeypatch):
    true = time.time_ns
    monkeypatch.setattr(verb, "wall_clock_ns", lambda: true() + 3600 * 10**9)
    with driving(calm, {"front": sound}):
        code, said = doctor(*at(calm))
    assert code == 1
    assert "the clock of the sidecar is 60 min behind the one here" in said


@pytest.fixture
def unwell(tmp_path):
    """A sidecar whose tracker is away, whose disk is gone, that has lost what it kept, is pinned,
    compensates a fault, and whose configuration waits for a restart.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    (folder / "state.db").write_bytes(b"damaged")
    config = f"""{FAST}
[state]
folder = "{folder}"
every_seconds = 0.1
[tracker]
kind = "grpc"
address = "{NOBODY}"
[statistics]
slice_by = ["stream"]
max_slices = 1
[server]
max_streams = 3
"""
    with running(tmp_path, config) as sidecar:
        promote(sidecar, document=scaling(2.0, 2.0))
        sidecar.admin.Pin(
            recalibrator_admin_pb2.PinRequest(pinned=True, actor="test"), timeout=PATIENCE
        )
        shutil.rmtree(folder)
        folder.touch()
        settings = tmp_path / "sidecar.toml"
        text = settings.read_text("utf-8")
        settings.write_text(text.replace("max_slices = 1", "max_slices = 5"), encoding="utf-8")
        sidecar.process.send_signal(signal.SIGHUP)
        yield sidecar


def test_everything_that_is_wrong_at_once_is_told_the_worst_first(doctor, unwell):
    with driving(unwell, {"front": mixed, "rear": mixed, "left": sound}):
        assert eventually(lambda: unwell.metric("checkpoint_failures_total") > 0)
        code, said = doctor(*at(unwell), watched="1.5")
        found = json.loads(doctor(*at(unwell), "--json")[1])
    assert code == 1
    assert f"the tracker at {NOBODY} is away" in said
    assert "frames did not reach it" in said
    assert "gets its detections recalibrated, but without tracks" in said
    assert "much is refused" in said
    assert "covariance_not_positive_definite 100 %" in said
    assert "of the detections go out as they came" in said
    assert (
        "`missing_covariance`: the detector sends no covariance, and none is estimated yet." in said
    )
    assert "of the frames have detections of one layout" in said
    assert "checkpoints could not be written to disk" in said
    assert "files of the last run could not be used: state 1" in said
    assert "a fault of the detector is being compensated" in said
    assert "by 4" in said
    assert "recalibrators are pinned" in said
    assert "are in the overflow slice" in said
    assert "3 of at most 3 names of streams are taken" in said
    assert "statistics.max_slices of" in said
    assert "is not active" in said

    assert set(found) == {
        "address", "http_address", "verdict", "wrong", "remarks", "findings",
    }  # fmt: skip
    severities = [each["severity"] for each in found["findings"]]
    assert severities == sorted(severities, key=("wrong", "remark", "well").index)
    assert severities.count("wrong") == found["wrong"] >= 5
    assert severities.count("remark") == found["remarks"]
    assert found["verdict"].startswith(f"{found['wrong']} things are wrong, ")
    for each in found["findings"]:
        assert each["what"]
        assert bool(each["why"]) == bool(each["remedy"]) == (each["severity"] != "well")


def test_an_alarm_of_drift_that_stands_is_told_with_its_size_and_beginning(doctor, tmp_path):
    with running(tmp_path, settings()) as sidecar:
        drive = Drive(sidecar)
        drive.send(40.0)
        drive.variance = {"car": TOO_SMALL}
        drive_until_alarm(drive, 30.0)
        code, said = doctor(*at(sidecar))
        drive.close()
    assert code == 1
    assert "WRONG drift: drift alarm, page: car, overconfident as forwarded" in said
    assert "times too small" in said
    assert "docs/runbook.md#calibrationdriftpage" in said


def test_overload_is_told(doctor, tmp_path):
    config = f"{FAST}[server]\nshed_lag_seconds = 0.0\nshed_rows = 1\n"
    with running(tmp_path, config) as sidecar:
        streams = {name: lambda number: sound(number, rows=60) for name in ("front", "rear")}
        with driving(sidecar, streams):
            assert eventually(lambda: sidecar.metric("overloads_total") > 0)
            _, said = doctor(*at(sidecar))
    assert "does not keep up: frames are answered" in said or "gave way to forwarding" in said
    assert "docs/runbook.md#calibrationoverload" in said


def test_headers_that_are_refused_are_told_with_what_follows_from_it(doctor, tmp_path):
    with running(tmp_path, f"{FAST}[server]\nmax_streams = 1\n") as sidecar:
        with driving(sidecar, {"a name": sound}, accepted=False):
            code, said = doctor(*at(sidecar))
        assert code == 1
        assert "WRONG streams: messages come, and are refused as a whole" in said
        assert "nobody sends" not in said
        assert "the header was refused, and so every frame after it" in said
        assert "another version of the protocol" not in said
        time.sleep(0.3)  # until the metrics have all of it
        _, said = doctor(*at(sidecar))
        assert "WRONG streams: nobody sends frames" in said
        assert "had to be refused" in said
        with driving(sidecar, {"a": sound}), driving(sidecar, {"b": sound}, accepted=False):
            code, said = doctor(*at(sidecar))
        assert code == 1
        assert "WRONG streams: 1 of at most 1 names of streams are taken, and" in said
        assert "Raise `[server] max_streams`" in said
        assert "WRONG refusals: the header was refused" in said


def test_two_looks_at_metrics_that_were_not_refreshed_tell_no_silence(doctor, tmp_path):
    with running(tmp_path, "[metrics]\nrefresh_seconds = 60\n") as sidecar:
        _, said = doctor(*at(sidecar))
    assert "remark reach: the metrics were not refreshed in" in said
    assert "Watch for longer: --seconds 2" in said


def test_without_seconds_it_watches_until_the_metrics_are_new(doctor, calm, tmp_path):
    with driving(calm, {"front": sound}):
        _, said = doctor(*at(calm), watched="")
    watched = re.search(r"watched for ([\d.]+) (ms|s):", said)
    assert watched
    assert 0.2 <= float(watched[1]) / (1000 if watched[2] == "ms" else 1) < MOST_SECONDS
    assert "the metrics were not refreshed" not in said
    with running(tmp_path, "[metrics]\nrefresh_seconds = 60\n") as sidecar:
        _, said = doctor(*at(sidecar), watched="")
    assert "the metrics were not refreshed" not in said


def test_a_terminal_has_colours_unless_they_are_not_wanted(doctor, monkeypatch):
    nowhere = ("--address", NOBODY, "--http-address", NOBODY)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in doctor(*nowhere)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[1;31mWRONG \x1b[0m reach" in doctor(*nowhere)[1]
    assert json.loads(doctor(*nowhere, "--json")[1])["wrong"] == 1
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in doctor(*nowhere)[1]


def test_a_proxy_for_the_web_is_not_asked_for_the_sidecar_beside_us(doctor, calm, monkeypatch):
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://{NOBODY}")
    _, said = doctor(*at(calm))
    assert "not looked at" not in said
    assert "no way there" not in said


# ---- no way there


def test_where_nobody_is_the_addresses_and_another_namespace_are_told_at_once(doctor):
    began = time.monotonic()
    code, said = doctor("--address", NOBODY, "--http-address", NOBODY, watched="60")
    assert code == 1
    assert time.monotonic() - began < 30  # nothing is watched where there is nothing
    assert f"no sidecar can be reached: gRPC at {NOBODY}: nothing listens there" in said
    assert "every container and pod has its own loopback" in said
    assert "docker exec" in said


def test_a_half_that_does_not_answer_is_told_and_the_other_one_is_looked_at(doctor, calm):
    http = calm.http.removeprefix("http://")
    with driving(calm, {"front": sound}):
        code, said = doctor("--address", NOBODY, "--http-address", http)
        assert code == 1
        assert f"gRPC at {NOBODY} does not answer: nothing listens" in said
        assert "well refusals" in said
        code, said = doctor("--address", calm.grpc, "--http-address", NOBODY)
        assert code == 1
        assert f"HTTP at {NOBODY} does not answer: nothing listens" in said
        assert "well versions" in said
        code, said = doctor("--address", http, "--http-address", calm.grpc)
        assert code == 1
        assert f"{http} answers HTTP, and {calm.grpc} gRPC: the other way round" in said
        assert "Did you swap --address and --http-address?" in said
        code, said = doctor("--address", http, "--http-address", http)
        assert f"gRPC at {http} does not answer: it speaks HTTP" in said
        code, said = doctor("--address", calm.grpc, "--http-address", calm.grpc)
        assert f"HTTP at {calm.grpc} does not answer: it speaks HTTP/2 there" in said
        code, said = doctor("--address", "nowhere.invalid:1", "--http-address", "nowhere.invalid:1")
        assert code == 1
        assert "no way there" in said


@contextlib.contextmanager
def listening(answer: bytes):
    """A port that says this to all who come, and closes; b'': it says nothing and stays."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve():
            with contextlib.suppress(OSError):
                for _ in range(100):
                    connection, _ = server.accept()
                    if answer:
                        connection.sendall(answer)
                        connection.close()
                    else:
                        held.append(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nhello 1\n",
        b"HTTP/1.0 200 OK\r\n\r\n<html>it works</html>",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\xff\xfe",
        b"HTTP/1.0 500 Oh\r\n\r\n",
    ],
)
def test_what_answers_and_is_no_sidecar_is_told_as_that(doctor, answer):
    with listening(answer) as address:
        code, said = doctor("--address", address, "--http-address", address)
    assert code == 1
    assert "WRONG reach" in said
    assert not re.search(r"\bwell [a-z]+:", said)


def test_what_takes_connections_and_says_nothing_is_given_up(doctor, monkeypatch):
    monkeypatch.setattr(look, "PATIENCE", 0.3)
    with listening(b"") as address:
        code, said = doctor("--address", address, "--http-address", address)
    assert code == 1
    assert "no answer in time" in said


def test_a_sidecar_that_is_older_than_the_questions_is_told_as_that(doctor):
    with serving(well) as address:
        _, said = doctor("--address", address, "--http-address", NOBODY)
    assert f"remark reach: what serves gRPC at {address} does not know GetStatus" in said
    assert "not looked at: alarms of drift" in said


@pytest.mark.components
def test_certificates_and_tokens_that_do_not_fit_are_told(doctor, tmp_path):
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    pair = ours.signed("server")
    for name, word in (("data", "data-"), ("admin", "admin-")):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(5 * word, encoding="ascii")
    config = f"""{FAST}
[security]
certificate = "{pair.certificate}"
key = "{pair.key}"
data_token_file = "{tmp_path}/data"
admin_token_file = "{tmp_path}/admin"
"""
    with running(tmp_path, config) as sidecar:
        trust = ("--certificate-authority", ours.certificate)
        code, said = doctor(*at(sidecar))
        assert code == 1
        assert "it ends the connection at once, as what wants TLS does" in said
        assert "does it serve with TLS? Then name its authority" in said
        code, said = doctor(*at(sidecar), "--certificate-authority", other.certificate)
        assert code == 1
        assert "no trust between its certificate and ours" in said
        code, said = doctor(*at(sidecar), *trust, "--token-file", tmp_path / "data")
        assert "nobody sends frames" in said
        assert "not looked at" not in said
        assert "had no right" not in said
        code, said = doctor(*at(sidecar), *trust, "--token-file", tmp_path / "admin")
        assert "not looked at" not in said
        code, said = doctor(*at(sidecar), *trust)
        assert code == 1
        assert "refuses to tell how it is" in said
        assert "--token-file" in said
        code, said = doctor("--address", sidecar.grpc, "--http-address", NOBODY, *trust)
        assert "refuses to tell how it is" in said


def test_a_token_that_cannot_be_read_is_a_line_that_names_the_option_once(refused, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "is no regular file"), ("none", "cannot be read")):
        line = refused("doctor", "--token-file", tmp_path / name)
        assert line.count("--token-file") == 1
        assert words in line


def test_options_that_are_none_are_a_line(refused, capsys):
    assert "--address 'here' must be host:port" in refused("doctor", "--address", "here")
    assert "--http-address '127.0.0.1' must be" in refused("doctor", "--http-address", "127.0.0.1")
    for words in (["--seconds", "0"], ["--seconds", "soon"], ["--seconds", "601"]):
        with pytest.raises(SystemExit):
            main(["doctor", *words])
        assert "seconds" in capsys.readouterr().err
