"""Serves the pages of one view, drawn on the thread that asks, and the script that follows them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from monitor.figures import page
from monitor.service.slice_page import slice_page
from monitor.service.status_page import Steps, is_known, overview
from monitor.service.view import (
    View,
)

# The browser asks for <main> again, keeps open what the reader has opened, and stays where he is.
SCRIPT = """
const main=document.querySelector("main"),lost=document.querySelector(".lost");
const all=what=>[...main.querySelectorAll(what)],at="a,summary,[tabindex]";
async function look(){
if(document.hidden)return;
try{
const answer=await fetch(location.pathname+"?main");
if(!answer.ok)throw answer;
const text=await answer.text(),open=all("details").map(one=>one.open);
const focus=all(at).indexOf(document.activeElement),left=all(".wide").map(one=>one.scrollLeft);
main.innerHTML=text;
all("details").forEach((one,i)=>{one.open=open[i]});
all(".wide").forEach((one,i)=>{one.scrollLeft=left[i]});
if(focus>=0)all(at)[focus]?.focus({preventScroll:true});
lost.hidden=true}
catch{lost.hidden=false}}
setInterval(look,5000);document.addEventListener("visibilitychange",look);
"""
REFRESH_SECONDS = 5
POLICY = page.content_policy(SCRIPT)

# Pages that are kept of a view, and s of a pause between two steps at most.
_PAGES, _LONGEST_PAUSE = 16, 0.02


@dataclass(slots=True)
class Pages:
    """Draws the pages of one view, each once, when it is asked for, on the thread that asks.

    Not more than one page is drawn at a time, and each step is followed by as long a pause, so that
    frames pass and that no client takes more than half a core, however much it asks for.
    """

    view: View
    _drawn: dict[str | None, str] = field(default_factory=dict)

    def get(self, slice: str | None = None, *, part: bool = False) -> bytes | None:
        """Returns the status page, or that of a slice; None where there is no such slice.

        part  the content of <main> alone
        """
        view = self.view
        if slice is not None and not is_known(view, slice):
            return None
        with _ONE_AT_A_TIME:
            main = self._drawn.get(slice)
            if main is None:
                main = _paced(overview(view) if slice is None else slice_page(view, slice))
                if len(self._drawn) < _PAGES:
                    self._drawn[slice] = main
        if part:
            return main.encode()
        lost = "The sidecar does not answer: this is what it told last."
        body = f'<p class="lost" role="alert" hidden>{lost}</p><main>{main}</main>'
        title = f"{slice or 'status'} · calibration monitor"
        return page.document(title, body, SCRIPT, REFRESH_SECONDS).encode()


_ONE_AT_A_TIME = threading.Lock()


def _paced(steps: Steps) -> str:
    while True:
        began = time.perf_counter()
        try:
            next(steps)
        except StopIteration as end:
            drawn: str = end.value
            return drawn
        time.sleep(min(time.perf_counter() - began, _LONGEST_PAUSE))
