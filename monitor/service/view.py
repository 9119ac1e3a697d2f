"""Holds what the status page tells, as of one moment, and judges it in sentences.

A view is made of values that nothing changes any more, so that any thread may draw it. How it looks
is decided in status_page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from monitor.drift.alarms import (
    Alarm,
    DriftState,
    SliceStanding,
    error_of,
    how_wrong,
    left_out_sentence,
)
from monitor.drift.charts import Severity, Stage
from monitor.figures.evaluations import assumption
from monitor.figures.svg import number
from monitor.frames.slices import (
    CLASS_PROBABILITIES,
    NO_COVARIANCE,
    TOTAL,
    is_bare,
    is_total,
    marked,
)
from monitor.frames.space import FloatArray
from monitor.frames.status import StreamStatus
from monitor.pipeline.recalibrators import ActiveRecalibrator
from monitor.pipeline.streams import TrackReading
from monitor.promotion.records import (
    Evidence,
    Happened,
    PromotionMode,
    Record,
    TrialStanding,
    TrialState,
)
from monitor.recalibration.recalibrator import Identity
from monitor.service.history import AT, History, Moment
from monitor.service.metrics import Snapshot
from monitor.statistics.measures import Evaluation
from monitor.statistics.reading import PredictedReading, SliceReading
from monitor.statistics.verdicts import CLOSE, FEWEST_TO_JUDGE, MATTERS

# The window that the page shows, if it is configured, and its name where nothing is in it.
WINDOW, EPOCH = "5m", "epoch"

# Records that are looked at; s for which a swap is news; s of silence, and of frames, that are.
_RECORDS, _NEWS, _SILENT, SOON = 100, 600.0, 60.0, 10.0

# Labelled rows below which nothing is said of a factor; drift waits for as many.
_FEWEST = 100

# Share of detections less certain than 95 % were before from which a slice is worth a look. Of ten
# independent objects three or more are so once in 90 windows; more objects, more seldom by far.
UNUSUAL = 0.25

_SWAPS = (Happened.PROMOTED, Happened.ROLLED_BACK)
_CONNECT = "README.md#beside-a-detector"

# Kinds of sentences that call for somebody or are news, the gravest first.
_RANKS = {"page": 0, "warning": 1, "swap": 2, "ticket": 3, "note": 4, "": 4}


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence about the whole sidecar.

    kind    how grave it is: one of _RANKS, well, or '' where nothing can be said
    anchor  of docs/runbook.md, or of another file; '' where nothing is to be done
    more    sentences beside it
    """

    kind: str
    sentence: str
    anchor: str = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that the status page tells.

    snapshot        only readings and counters of it are used: the rest is live
    at, wall_ns     monotonic s and wall clock
    event_ns        event time; None without any
    recent          readings of the window by slice; `readings` has those since epoch
    predicted       by slice, of all detections of the shortest window
    shortest, longest
                    names of these windows; the longest is EPOCH where there is one alone
    started, began, rates, points, moments
                    as History has them
    """

    snapshot: Snapshot
    at: float
    wall_ns: int
    event_ns: int | None
    mode: str
    promotion: str
    pinned: bool
    grpc: str
    pending: int
    active: tuple[ActiveRecalibrator, ...]
    trials: tuple[TrialStanding, ...]
    records: tuple[Record, ...]
    tracks: TrackReading
    streams: tuple[StreamStatus, ...]
    window: str
    window_s: float
    readings: Mapping[str, SliceReading]
    recent: Mapping[str, SliceReading]
    predicted: Mapping[str, PredictedReading]
    shortest: str
    longest: str
    standings: Mapping[tuple[str, Severity], SliceStanding]
    started: float
    began: float | None
    rates: Mapping[str, float]
    points: Mapping[str, FloatArray]
    moments: tuple[Moment, ...]

    def shown(self, name: str) -> tuple[str, SliceReading]:
        """Returns the reading of a slice that is shown, with its window; since epoch if empty."""
        recent = self.recent.get(name)
        if recent is not None and recent.raw.rows > 0:
            return self.window, recent
        return EPOCH, self.readings[name]

    @property
    def alarms(self) -> list[Alarm]:
        """Lists the latched alarms, pages first, the newest first."""
        found = [one.alarm for one in self.standings.values() if one.alarm is not None]
        return sorted(found, key=lambda one: (one.severity is not Severity.PAGE, -one.event_ns))

    @property
    def of(self) -> str:
        """Says of which time the window is: its whole length, or less soon after the start."""
        rows = sum(one.raw.rows for name, one in self.readings.items() if not is_total(name))
        running = math.inf if self.began is None else self.read_at - self.began
        # More labels than came to this process: the window goes on from before a restart.
        if running >= self.window_s or rows > self.snapshot.counters.truth.matched:
            return lasting(self.window)
        return span(running)

    @property
    def read_at(self) -> float:
        """Says when the window was last read, in monotonic s; every point is of a reading."""
        last = (float(one[-1, AT]) for one in self.points.values() if one.size)
        return max(last, default=self.at)

    def swap_of(self, name: str, seconds: float) -> Record | None:
        """Finds the last promotion or rollback that a slice has had in so many seconds."""
        news = (one for one in reversed(self.records) if one.what in _SWAPS)
        last = next((one for one in news if one.slice in ("", name)), None)
        return last if last is not None and self.ago(last.time_ns) < seconds else None

    def verifying(self, name: str) -> bool:
        """Tells that a swap is too recent to judge it: by the window, or by its few labels."""
        standing = self.standings.get((name, Severity.PAGE))
        few = standing is not None and standing.state is DriftState.TOO_FEW
        return self.swap_of(name, math.inf if few else self.window_s) is not None

    @property
    def labelled_ago(self) -> float:
        """Returns s since the last label that matched; NaN if none has since the start."""
        matched = [one.matched_received_ns for one in self.streams]
        return self.ago(max((one for one in matched if one is not None), default=None))

    def ago(self, wall_ns: int | None) -> float:
        """Returns s since a moment of the wall clock; NaN where there is none."""
        return math.nan if wall_ns is None else max(0.0, (self.wall_ns - wall_ns) / 1e9)

    def event_ago(self, event_ns: int) -> float:
        """Returns s of event time since a moment; NaN without event time."""
        return math.nan if self.event_ns is None else max(0.0, (self.event_ns - event_ns) / 1e9)


def window_of(snapshot: Snapshot) -> str:
    """Chooses the window that the page shows: five minutes, else the shortest one.

    Of a stored state, which is looked at now and then, the longest.
    """
    windows = snapshot.pipeline.config.statistics.windows
    if snapshot.shown is not None:
        return windows[-1]
    return WINDOW if WINDOW in windows else windows[0]


def view_of(
    snapshot: Snapshot, clocks: tuple[float, int, int], history: History, grpc: str = ""
) -> View:
    """Takes from the live parts what the page tells, as of now.

    clocks  monotonic s and ns, and the wall clock in ns
    grpc    where it listens; '' for the configured address
    """
    pipeline, promotions = snapshot.pipeline, snapshot.promotions
    config, (at, monotonic_ns, wall_ns) = pipeline.config, clocks
    window = window_of(snapshot)
    return View(
        snapshot=snapshot,
        at=at,
        wall_ns=wall_ns,
        event_ns=pipeline.live.clock.now_ns,
        mode=str(config.recalibration.mode),
        promotion=str(config.promotion.mode),
        pinned=promotions.pinned,
        grpc=grpc or config.server.grpc_address,
        pending=pipeline.ledger.fates.pending,
        active=pipeline.recalibrators.active(),
        trials=promotions.trials(),
        records=promotions.records(_RECORDS),
        tracks=pipeline.tracks(),
        streams=tuple(one.status(wall_ns - monotonic_ns) for one in pipeline.streams.values()),
        window=window,
        window_s=pipeline.live.windows.lengths_ns[config.statistics.windows.index(window)] / 1e9,
        readings={one.name: one for one in snapshot.readings},
        recent={one.reading.name: one.reading for one in snapshot.windows if one.window == window},
        predicted={one.slice: one for one in snapshot.predicted},
        shortest=config.statistics.windows[0],
        longest=(config.statistics.windows[1:] or (EPOCH,))[-1],
        standings={
            (one.slice, one.severity): one
            for one in (snapshot.drift.standings if snapshot.drift is not None else ())
        },
        started=history.started,
        began=history.began,
        rates=dict(history.rates),
        points=dict(history.points),
        moments=tuple(history.moments),
    )


# ---- words


def span(seconds: float) -> str:
    """Writes a duration as people say it: 12 s, 3 min, 2 h, 4 d; a dash where it is unknown."""
    if not math.isfinite(seconds):
        return "–"
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{max(seconds / size, 1):.0f} {unit}"
    return f"{seconds / 86400:,.0f} d"


def lasting(window: str) -> str:
    """Writes the name of a window as people say it: 5 min."""
    return f"{window[:-1]} {'min' if window[-1] == 'm' else window[-1]}"


def counted(n: int, of: str) -> str:
    """Writes a number of things."""
    return f"{n:,} {of}{'s' * (n != 1)}"


def sigma(factor: float) -> str:
    """Says what a factor of errors over σ means."""
    if not 0 < factor < math.inf:
        return "σ unknown"
    if 1 / CLOSE <= factor <= CLOSE:
        return f"{factor:.2f} times what σ says"
    return f"σ {number(max(factor, 1 / factor))} times too {'small' if factor > 1 else 'large'}"


def enough(evaluation: Evaluation) -> bool:
    """Says whether there are rows enough to speak of a factor."""
    return evaluation.rows >= _FEWEST and evaluation.joint.n_eff >= FEWEST_TO_JUDGE


def factor_of(evaluation: Evaluation) -> float:
    """Returns by which factor errors are larger than σ says, jointly."""
    ratio = evaluation.joint.nees_over_k
    return math.sqrt(ratio) if ratio >= 0 else math.nan


def called(slice: str) -> str:
    """Names a slice in a sentence; '' stands for all slices."""
    names = {
        TOTAL: "all slices together",
        "": "all slices",
        NO_COVARIANCE: "what has no covariance",
    }
    names[marked(TOTAL)] = f"all slices together, {NO_COVARIANCE}"
    return names.get(slice, slice)


def state_of(view: View, name: str) -> tuple[int, str, str]:
    """Returns how grave the state of a slice is (0 the gravest), its kind and its word."""
    states = [(one, view.standings.get((name, one))) for one in Severity]
    for rank, (severity, standing) in enumerate(states):
        if standing is not None and standing.state is DriftState.ALARM:
            return rank, str(severity), str(severity)
    if any(one is not None and one.state is DriftState.WARNING for _, one in states):
        return 2, "ticket", "evidence rises"
    if view.verifying(name):
        return 3, "swap", "verifying"
    window, reading = view.shown(name)
    if reading.assumed:
        return (4 if is_total(name) else 3), "", "σ is assumed"
    if window == EPOCH or not enough(reading.recalibrated):
        return 5, "", "not judged"
    if not 1 / MATTERS <= factor_of(reading.recalibrated) <= MATTERS:
        return 3, "warning", "no alarm yet"
    return (4, "", "together") if is_total(name) else (3, "well", "no alarm")


def unusual(view: View, name: str) -> tuple[bool, bool]:
    """Tells whether entropy, and whether σ_G, of a slice is worth a look: no alarm."""
    one = view.predicted.get(name)
    if one is None:
        return False, False
    entropy = one.classified >= _FEWEST and one.entropy_above_before >= UNUSUAL
    return entropy, one.n >= _FEWEST and one.deviation_above_before >= UNUSUAL


def trouble(view: View, name: str) -> tuple[int, float]:
    """Orders slices: the least comes first."""
    reading = view.shown(name)[1]
    factor = math.nan if reading.assumed else factor_of(reading.recalibrated)
    return state_of(view, name)[0], -abs(math.log(factor)) if factor > 0 else 0.0


# ---- sentences about the whole sidecar


def findings(view: View) -> list[Said]:
    """Says what is the matter with the whole sidecar, the gravest first; never empty."""
    found = [*_alarms(view), *_silence(view), *_blind(view), *_swaps(view), *_candidates(view)]
    well = _well(view)
    grave = any(one.kind in ("page", "warning", "ticket") for one in found)
    # A window holds the time before a swap: what is off in it is no news then.
    if well is not None and (not found or (well.kind == "well" and not grave)):
        found.append(well)
    found += [*_assumed(view), *_unknown(view)]
    return sorted(found, key=lambda one: _RANKS.get(one.kind, len(_RANKS)))


def _alarms(view: View) -> Iterator[Said]:
    for alarm in view.alarms:
        text = "σ is {factor} times {way}"
        error = error_of(alarm, text, unknown="σ is wrong", interval=False)
        hidden = alarm.stage is Stage.RAW
        yield Said(
            str(alarm.severity),
            f"{called(alarm.slice)} is {how_wrong(alarm)}"
            f"{' as the detector sends it' * hidden}: {error}"
            f"{', which is compensated' * (hidden and view.mode == 'apply')}; "
            f"{alarm.severity} raised {span(view.event_ago(alarm.event_ns))} ago.",
            f"calibrationdrift{alarm.severity}",
        )


def _silence(view: View) -> Iterator[Said]:
    if view.snapshot.shown is not None:
        return  # nothing is to come
    counters = view.snapshot.counters
    if counters.shedding:
        text = "Overloaded: frames are answered, but not counted."
        yield Said("warning", text, "calibrationoverload")
    if not counters.frames:
        at = "" if view.grpc.endswith(":0") else f" at {view.grpc}"
        began = f"{len(view.streams) or 'No'} streams have"
        text = f"No frames in {span(max(view.at - view.started, 0))}: nothing can be judged."
        yield Said("warning", text, _CONNECT, f"{began} begun; detectors are awaited{at}.")
        return
    silent = view.ago(max((one.received_ns or 0 for one in view.streams), default=None))
    if silent > _SILENT:
        text = f"No frames have come for {span(silent)}: all below is of then."
        yield Said("warning", text, _CONNECT)
        return
    ago, running = view.labelled_ago, 0.0 if view.began is None else view.at - view.began
    if math.isnan(ago) and running > SOON:
        fates = asdict(counters.truth)
        came = 0 if fates["matched"] else sum(fates.values())
        none = f"None of {counted(came, 'label')} has matched" if came else "No labels have come"
        text = f"{none} in {span(running)} of frames: nothing can be judged."
        yield Said("warning", text, "calibrationnolabels")
    elif ago > _SILENT:
        text = "what is judged is of before" if view.recent else "nothing can be judged"
        text = f"No labels have come for {span(ago)}: {text}."
        yield Said("warning", text, "calibrationnolabels")


def _blind(view: View) -> Iterator[Said]:
    """Says that drift sees little, since most labels are left out."""
    text, standing = left_out_of(view), view.standings.get((TOTAL, Severity.PAGE))
    if text and standing is not None and standing.state is DriftState.TOO_FEW:
        yield Said("warning", text, "docs/ground_truth.md#time")


def left_out_of(view: View) -> str:
    """Says which labels drift has left out, and what to do; empty if none."""
    reading = view.snapshot.drift
    text = left_out_sentence({} if reading is None else dict(reading.left_out))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _swaps(view: View) -> Iterator[Said]:
    slices = dict.fromkeys(one.slice for one in reversed(view.records) if one.what in _SWAPS)
    for slice in slices:
        record = view.swap_of(slice, _NEWS)
        if record is None or record.slice != slice:
            continue
        promoted = record.what is Happened.PROMOTED
        of_classes = slice == CLASS_PROBABILITIES
        assumed = is_bare(slice)
        what = "was corrected" if promoted else "is without its last correction, rolled back"
        if assumed and promoted:
            what = "was given a covariance"
        if slice in ("", CLASS_PROBABILITIES):
            what = (
                "were corrected" if promoted else "are without their last correction, rolled back"
            )
        text = f"{called(slice)} {what} {span(view.ago(record.time_ns))} ago"
        known = [one.typical for one in record.factors if one.typical > 0]
        if known and promoted and of_classes:
            text += f": their temperature is {number(known[0])}"
        elif known and promoted:
            factor = math.exp(sum(map(math.log, known)) / len(known) / 2)
            way = "larger" if factor > 1 else "smaller"
            times = number(max(factor, 1 / factor))
            than = "was assumed" if assumed else "the detector states"
            text += f": σ is forwarded {times} times {way} than {than}"
        verifying = view.verifying(slice)
        alarmed = any(one.slice == slice for one in view.alarms)
        text += "; being verified" * verifying
        text += ", no action is needed now" * (verifying and not alarmed)
        at = view.at - view.ago(record.time_ns)
        marks = [one.mark for one in view.moments if one.slice == slice and one.mark.time <= at]
        over = [one.kind for one in marks if one.kind in tuple(Severity)]
        more = f"{('Rolled back', 'Promoted')[promoted]} by {record.actor}. "
        more += f"The {over[-1]} before is over with it. " if over and not alarmed else ""
        more += _guard(view, slice) * verifying + " The detector itself is as before." * promoted
        yield Said("swap", f"{text}.", "calibrationfaultcompensated", more)


def _guard(view: View, slice: str) -> str:
    """Says what verifies a swap: the guard, and a window that holds nothing from before it."""
    guards = (one for one in view.trials if one.slice == slice and one.state is TrialState.GUARD)
    guard, text = next(guards, None), ""
    if guard is not None:
        acts = view.promotion != PromotionMode.MANUAL and not view.pinned
        then, at = ("is reported", "comes back by itself")[acts], guard.evidence.log10_threshold
        text = (
            f"If what was active before proves better at odds of {odds(at)}, it {then}; "
            f"the odds for it so far: {proof(guard.evidence)}. "
        )
    swap = view.swap_of(slice, view.window_s)
    if swap is None:
        return f"{text}Too few labels have come since to judge it."
    left = span(view.window_s - view.ago(swap.time_ns))
    return f"{text}In {left} the row of the slice holds only what came after the change."


def odds(log10: float) -> str:
    """Writes odds from their power of ten."""
    return f"{number(10 ** min(log10, 300.0))} : 1"


def proof(evidence: Evidence) -> str:
    """Says how many tracks have spoken in a trial, and which odds they give."""
    if not evidence.tracks:
        return "no track has ended"
    return f"{odds(evidence.log10_better)} after {counted(evidence.tracks, 'track')}"


def _candidates(view: View) -> Iterator[Said]:
    for trial in view.trials:
        if trial.state is TrialState.PROVEN:
            text = f"{trial.slice}: candidate {trial.version} is proven better and waits for you."
            yield Said("note", text, "calibrationcandidatewaits")


def _assumed(view: View) -> Iterator[Said]:
    """Says of which slices σ is assumed, how large errors are beside it, and what ends that."""
    rows = {
        name: view.shown(name)[1].raw.rows
        for name, reading in view.readings.items()
        if reading.assumed and not is_total(name)
    }
    name = max(rows, key=rows.__getitem__, default="")
    if not rows or not rows[name]:
        return
    reading = view.shown(name)[1]
    others = f" and {counted(len(rows) - 1, 'other slice')}" * (len(rows) > 1)
    method = view.snapshot.pipeline.config.promotion.missing_method
    more = f"Nothing is fitted to it: [promotion] missing_method is {method}."
    if method != Identity.method:
        more = mending(view, name, "covariance that is learned from its labels")
    yield Said(
        "note",
        f"{called(name)}{others}: {assumption(reading.space, reading.raw)}.",
        "docs/promotion.md#life-of-a-detector-without-covariances",
        more,
    )


def mending(view: View, slice: str, what: str = "correction") -> str:
    """Says whether the sidecar corrects a slice by itself, and how far it is."""
    here = (one for one in view.trials if one.slice == slice and one.state is not TrialState.GUARD)
    alone = view.promotion == PromotionMode.AUTOMATIC and not view.pinned
    trial, how = next(here, None), "by itself" if alone else "by you alone"
    if trial is None:
        return (
            f"No {what} is on trial yet: the log says where a fit is refused. Once proven better, "
            f"one is promoted {how}. "
        )
    return (
        f"A {what} is on trial, {proof(trial.evidence)}; it is promoted {how} at "
        f"{odds(trial.evidence.log10_threshold)}. "
    )


def _unknown(view: View) -> Iterator[Said]:
    """Says which slices are less certain than before, the worst by name; this needs no label."""
    for i, (of, what) in enumerate((("entropy", "class"), ("deviation", "place"))):
        shares = {
            name: getattr(one, f"{of}_above_before")
            for name, one in view.predicted.items()
            if unusual(view, name)[i]
        }
        if not shares:
            continue
        worst = max(shares, key=shares.__getitem__)
        others = f" and {counted(len(shares) - 1, 'other slice')}" * (len(shares) > 1)
        yield Said(
            "note",
            f"{worst}{others}: {percent(shares[worst])} of the detections of the last "
            f"{lasting(view.shortest)} are less certain of their {what} than 95 % were before.",
            "docs/measures.md#of-all-detections",
            f"Before is {before(view)}, at the same distances where they are known. The detector "
            "may meet what it does not know. This needs no label, and is no alarm.",
        )


def before(view: View) -> str:
    """Names the time that the shortest window is held against."""
    return f"the rest of {'all' if view.longest == EPOCH else f'the last {lasting(view.longest)}'}"


def percent(share: float) -> str:
    """Writes a share in percent; a dash where it is unknown."""
    return f"{100 * share:.0f} %" if share >= 0 else "–"


def _well(view: View) -> Said | None:
    """Says that nothing is wrong, or why that cannot be said; None where all σ are assumed."""
    several = {name: one for name, one in view.readings.items() if not is_total(name)}
    names = [name for name, one in several.items() if not one.assumed]
    if not names and any(one.raw.rows for one in several.values()):
        return None
    unsure = [name for name in names if view.verifying(name)]
    names = [name for name in names if name not in unsure]
    shown = {name: view.shown(name)[1].recalibrated for name in names}
    known = {name: factor_of(one) for name, one in shown.items() if enough(one)}
    for one in view.standings.values():
        if one.state is DriftState.WARNING:
            share = f"{one.evidence / one.threshold:.0%} of what a {one.severity} needs"
            text = f"{called(one.slice)}: evidence of drift is at {share}."
            return Said("", text, f"calibrationdrift{one.severity}")
    if not known:
        rows, of = sum(one.rows for one in shown.values()), "any other slice" * bool(unsure)
        text = f"Too few labels to judge {of or 'yet'}: {counted(rows, 'labelled row')}."
        return Said("", text, "calibrationlabelledsharelow")
    worst = max(known, key=lambda name: abs(math.log(known[name])) if known[name] > 0 else 0.0)
    if not 1 / MATTERS <= known[worst] <= MATTERS:
        text = f"{called(worst)}: {sigma(known[worst])}; too little evidence for an alarm."
        return Said("", text, "calibrationdriftpage")
    low, high = number(min(known.values())), number(max(known.values()))
    few = f"; {len(shown) - len(known)} slices have too few labels" * (len(shown) > len(known))
    return Said(
        "well",
        f"Nothing {'else ' * bool(unsure)}is known to be wrong in {view.of} of data: errors are "
        f"{low}{f' to {high}' * (low != high)} times what σ says{few}.",
    )
