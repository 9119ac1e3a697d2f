"""Whether the sidecar keeps up, and has faults of its own."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.samples import Change, rose
from monitor.diagnosis.words import count, duration, names, number, share

# As CalibrationOverload in deploy/prometheus/service_alert_rules.yml: seconds that the loop is
# late, and that one frame in a hundred takes.
LOOP_LAG_SECONDS, FRAME_SECONDS = 0.25, 0.1
# A share of frames with detections of one layout that is worth a word.
_FAST = 0.9
_DESCRIPTORS = 0.8

_RUNBOOK = "docs/runbook.md#calibrationoverload"


def load(seen: Observation) -> Iterator[Finding]:
    """By the metrics alone."""
    change = seen.change
    if change is None:
        return
    told = [*_shedding(change), *_slow(change), *_left_out(change), *_layout(change)]
    told += [*_faults(change), *_descriptors(change)]
    yield from told or [well(Area.LOAD, _good(change))]


def _good(change: Change) -> str:
    slowest = change.quantile("frame_seconds", 0.99)
    text = f"loop at most {duration(change.last.value('loop_lag_seconds'))} late"
    return f"{text}, 99 of 100 frames within {duration(slowest)}" if slowest == slowest else text


def _shedding(change: Change) -> Iterator[Finding]:
    began = change.increase("overloads_total")
    if change.last.value("overload") == 1 or rose(began):
        yield wrong(
            Area.LOAD,
            "the sidecar does not keep up: frames are answered, but neither remembered nor counted",
            "detections are corrected as ever; measures and drift see nothing of them meanwhile.",
            "give it a core of its own; send every detection of a frame with the same fields; send "
            f"labels as they come, not in bursts. {_RUNBOOK}",
        )
        return
    ever = change.last.value("overloads_total")
    if rose(ever):
        yield remark(
            Area.LOAD,
            f"monitoring gave way to forwarding {count(ever, 'time')} since the start",
            "what came then is answered, and in no measure.",
            f"is the machine busy at times, or do labels come in bursts? {_RUNBOOK}",
        )


def _slow(change: Change) -> Iterator[Finding]:
    lag = change.last.value("loop_lag_seconds")
    if lag > LOOP_LAG_SECONDS:
        yield wrong(
            Area.LOAD,
            f"answers had to wait: the event loop was {duration(lag)} late",
            "a tracker that waits for the answers gets its detections late.",
            "is the machine busy? Fewer slices, or a longer [metrics] refresh_seconds, make the "
            f"loop lighter. {_RUNBOOK}",
        )
    slowest = change.quantile("frame_seconds", 0.99)
    if slowest > FRAME_SECONDS:
        yield wrong(
            Area.LOAD,
            f"one frame in a hundred takes more than {duration(FRAME_SECONDS)}",
            "a tracker that waits for the answers gets its detections late.",
            f"fewer detections in a frame, all with the same fields; a core of its own. {_RUNBOOK}",
        )


def _left_out(change: Change) -> Iterator[Finding]:
    found = change.increases("drift_left_out_total", "reason")
    left = [reason for reason in ("overload", "tracks") if found.get(reason)]
    if left:
        yield wrong(
            Area.LOAD,
            f"detections with truth are not watched for drift ({names(left)}): "
            f"{count(sum(found[reason] for reason in left), 'detection')} in "
            f"{duration(change.seconds)}",
            "drift is found later than it could be; never a false alarm comes of it.",
            "overload: send labels as they come, not in bursts; tracks: raise [drift] "
            f"open_tracks. {_RUNBOOK}",
        )


def _layout(change: Change) -> Iterator[Finding]:
    fast = change.last.value("fast_decode_ratio")
    if fast < _FAST:
        yield remark(
            Area.LOAD,
            f"only {share(fast, 1)} of the frames have detections of one layout",
            "the others are read one detection after the other, which costs ten times as much.",
            "give every detection of a frame the same fields: a covariance, a score or a truth "
            "for all of them, or for none.",
        )


def _faults(change: Change) -> Iterator[Finding]:
    errors = change.last.value("internal_errors_total")
    if rose(errors):
        again = rose(change.increase("internal_errors_total"))
        say = wrong if again else remark
        yield say(
            Area.LOAD,
            f"{count(errors, 'fault')} of the sidecar itself since the start"
            f"{', and some while doctor looked' if again else ''}",
            "the frames concerned went out as they came, or were not counted.",
            "please report the traceback that its log has.",
        )
    lines = sum(
        value
        for level, value in change.last.by("log_lines_total", "level").items()
        if level.lower() in ("error", "critical")
    )
    if rose(lines) and not rose(errors):
        yield remark(
            Area.LOAD,
            f"{count(lines, 'error')} in the log since the start",
            "something could not be done; the line says what.",
            "`journalctl -u calibration-monitor -p err`, `docker logs`, `kubectl logs`.",
        )


def _descriptors(change: Change) -> Iterator[Finding]:
    held, most = change.last.value("process_open_fds"), change.last.value("process_max_fds")
    if most > 0 and held > _DESCRIPTORS * most:
        yield wrong(
            Area.LOAD,
            f"{number(held)} of {number(most)} file descriptors are open",
            "beyond them no connection is taken and no file is written.",
            "who opens so many connections? Raise LimitNOFILE, or lower [server] max_connections.",
        )
