"""Whether frames come, of which streams, and whether there is room for more of these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import SILENT_SECONDS, Observation
from monitor.diagnosis.refusals import header_refusals
from monitor.diagnosis.samples import rose
from monitor.diagnosis.words import be, count, duration, names, number, shares
from monitor.status import Status, StreamStatus

# Of [server] max_streams, from which on it is told.
_NEARLY_ALL = 0.8
# A stream that is silent for longer, while others send, may be meant to be gone.
GONE_SECONDS = 3600.0
_SENSOR_GONE = (
    "that sensor is not corrected, and its measures stand still.",
    "is the sensor or its detector down? Where it is meant to be gone: its name is known, and told "
    "of here, until the sidecar starts anew.",
)


def streams(seen: Observation) -> Iterator[Finding]:
    """By the status, or where it was not seen, by what was counted."""
    status = seen.last.status
    if status is None:
        yield from _counted(seen)
        return
    found = [*_silent(seen, status), *_many(seen, status), *_dropped(seen)]
    yield from found or [well(Area.STREAMS, _rates(seen, status))]


def _rates(seen: Observation, status: Status) -> str:
    seconds = seen.last.at_s - seen.first.at_s
    text = f"{count(len(status.streams), 'stream')}"
    if seconds <= 0 or seen.first.status is None or seen.started_anew:
        return text
    frames = sum(each.frames - _before(seen, each).frames for each in status.streams)
    detections = sum(each.detections - _before(seen, each).detections for each in status.streams)
    return (
        f"{text}, {number(frames / seconds)} frames/s, {number(detections / seconds)} detections/s"
    )


def _before(seen: Observation, stream: StreamStatus) -> StreamStatus:
    return seen.before.get(stream.stream, StreamStatus(stream.stream))


def _silent(seen: Observation, status: Status) -> Iterator[Finding]:
    why = "nothing is corrected, measured or watched."
    remedy = (
        "is the detector running, and does it send to this address? Its own log and "
        "`MonitorClient.counters.raw` say what it hears from here. docs/degradation.md"
    )
    silences = {each.stream: seen.silence_s(each) for each in status.streams}
    if min(silences.values(), default=math.inf) >= SILENT_SECONDS and _refused_whole(seen):
        yield _all_refused(seen)
        return
    if not any(each.frames for each in status.streams):
        remedy = f"{_given_up(seen)}{remedy}"
        opened = (
            f"; {count(len(status.streams), 'stream')} {be(len(status.streams))} open, and empty"
        )
        yield wrong(
            Area.STREAMS,
            f"nobody sends frames: none has come since the start {duration(seen.up_s)} ago"
            f"{opened if status.streams else ''}",
            why,
            remedy,
        )
        return
    shortest = min(silences.values())
    if shortest >= SILENT_SECONDS:
        yield wrong(
            Area.STREAMS, f"no frames have come for {duration(shortest)}, of no stream", why, remedy
        )
        return
    silent = {name: each for name, each in silences.items() if each >= SILENT_SECONDS}
    gone = {name: each for name, each in silent.items() if GONE_SECONDS < each < math.inf}
    lately = {name: each for name, each in silent.items() if name not in gone}
    if lately:
        yield wrong(Area.STREAMS, _silence(lately), *_SENSOR_GONE)
    if gone:
        yield remark(Area.STREAMS, _silence(gone), *_SENSOR_GONE)


def _silence(silent: Mapping[str, float]) -> str:
    texts = [
        f"{name} for {duration(each)}" if math.isfinite(each) else f"{name} since the start"
        for name, each in sorted(silent.items())
    ]
    of = "a stream is" if len(silent) == 1 else f"{len(silent)} streams are"
    return f"{of} silent while others send: {names(texts)}"


def _refused_whole(seen: Observation) -> dict[str, float]:
    """Messages by reason, between the looks; none where a frame was taken: then some of these
    may be detections of it.
    """
    change = seen.change
    if change is None or rose(change.increase("frames_total")):
        return {}
    found = change.increases("rejected_total", "reason")
    return {reason: n for reason, n in found.items() if n > 0}


def _all_refused(seen: Observation) -> Finding:
    found = _refused_whole(seen)
    total = sum(found.values())
    seconds = seen.last.at_s - seen.first.at_s
    return wrong(
        Area.STREAMS,
        f"messages come, and are refused as a whole: {count(total, 'message')} in "
        f"{duration(seconds)} ({shares(found, total)}), and no frame was taken",
        "nothing is corrected, measured or watched.",
        "see refusals; the detector is there, and its own log has what it is answered.",
    )


def _given_up(seen: Observation) -> str:
    """Where nothing was ever taken: perhaps because nothing could be."""
    samples = seen.last.samples
    ever = {} if samples is None else samples.by("rejected_total", "reason")
    total = sum(n for n in ever.values() if n > 0)
    if not rose(total):
        return ""
    return (
        f"{count(total, 'message')} came since the start and had to be refused "
        f"({shares(ever, total)}): has a client given up? "
    )


def _many(seen: Observation, status: Status) -> Iterator[Finding]:
    here, most = len(status.streams), seen.limits.streams
    change = seen.change
    refused = 0.0 if change is None else sum(header_refusals(change).values())
    if here >= most and rose(refused):
        yield wrong(
            Area.STREAMS,
            f"{here} of at most {most} names of streams are taken, and "
            f"{count(refused, 'message')} without a header that is accepted came while doctor "
            "looked: of further names, as it seems",
            "what has a further name goes on uncorrected. Names are taken until the sidecar starts "
            "anew: does a client make up a new one each time?",
            "name streams after sensors; raise [server] max_streams (64 where the file does not "
            "say) if there are so many, and restart the sidecar.",
        )
    elif here >= _NEARLY_ALL * most:
        yield remark(
            Area.STREAMS,
            f"{here} of at most {most} names of streams are taken",
            "a stream with a further name is refused, and its detections go on uncorrected. Names "
            "are taken until the sidecar starts anew: does a client make up a new one each time?",
            "name streams after sensors; raise [server] max_streams if there are so many.",
        )


def _dropped(seen: Observation) -> Iterator[Finding]:
    change = seen.change
    if change is not None and rose(change.increase("streams_dropped_total")):
        yield wrong(
            Area.STREAMS,
            f"{count(change.increase('streams_dropped_total'), 'stream')} ended while doctor "
            "looked, because the client read no answers",
            "that detector goes on uncorrected until it opens a stream again.",
            "a client must read while it sends; [server] write_timeout_seconds is its patience. "
            "docs/degradation.md",
        )


def _counted(seen: Observation) -> Iterator[Finding]:
    """Without the status, only whether frames were added."""
    change = seen.change
    if change is None or not seen.refreshed:
        return
    if not rose(change.increase("frames_total")):
        if _refused_whole(seen):
            yield _all_refused(seen)
            return
        yield wrong(
            Area.STREAMS,
            f"no frame was counted in {duration(change.seconds)}",
            "nothing is corrected, measured or watched.",
            "is the detector running, and does it send to this address? docs/degradation.md",
        )
        return
    yield well(
        Area.STREAMS,
        f"{count(change.last.value('streams'), 'stream')}, frames come",
    )
