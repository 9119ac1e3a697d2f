"""Writes HTML documents that need nothing from outside: one style, at most one script, no address.

The content security policy allows the style and the script by their hashes and nothing else, so
that text of a slice, a stream or a recalibrator can never run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

from monitor.figures.svg import STYLE as FIGURE_STYLE

STYLE = (
    FIGURE_STYLE
    + "".join(f"svg .heat-{i}{{opacity:{0.06 + 0.09 * i:.2f}}}" for i in range(7))
    + """
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--bg);color:var(--fg);
font:15px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}
h3{font-size:.95rem;margin:0 0 .3rem}p{margin:.3rem 0}a{color:var(--b)}
.dim{color:var(--dim)}.small{font-size:.85rem}
.grid{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr))}
figure,.card{margin:0;padding:.7rem;background:var(--card);border-radius:.5rem}
figcaption{font-size:.85rem;margin:.3rem 0}details{font-size:.85rem;margin:.3rem 0}
summary{cursor:pointer;color:var(--dim)}
.wide{overflow-x:auto;background:linear-gradient(90deg,var(--bg) 40%,transparent) local,
linear-gradient(270deg,var(--bg) 40%,transparent) right local,
linear-gradient(90deg,var(--dim),transparent),linear-gradient(270deg,var(--dim),transparent) right;
background-size:2rem 100%,2rem 100%,.5rem 100%,.5rem 100%;background-repeat:no-repeat}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
table{overflow-wrap:normal}tbody td{white-space:nowrap}td.text,td.words{white-space:normal}
th,td{padding:.25rem .7rem .25rem 0;text-align:right;vertical-align:top}
thead th{vertical-align:bottom}td{white-space:nowrap}tbody th{overflow-wrap:normal}
th:first-child,td:first-child,td.text,th.text{text-align:left}
thead th{color:var(--dim);font-weight:600}
tbody tr{border-top:1px solid var(--grid)}tbody th{font-weight:400}
.card.page{border-left:.4rem solid var(--bad)}.card.ticket{border-left:.4rem solid var(--warn)}
.card.well{border-left:.4rem solid var(--good)}.card+.card{margin-top:.6rem}
.word{font-weight:600}.word.page{color:var(--bad)}.word.ticket{color:var(--warn)}
.word.well{color:var(--good)}.word.swap,.verdict.swap{color:var(--b)}
.halves{display:grid;gap:0 2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr))}
.verdict.page,.lost{color:var(--bad)}.verdict.well{color:var(--good)}
.verdict.ticket,.verdict.warning,.word.warning{color:var(--warn)}
.card.warning,.card.note{border-left:.4rem solid var(--warn)}
.card.swap{border-left:.4rem solid var(--b)}
.key-a{color:var(--a)}.key-b{color:var(--b)}
td svg{width:clamp(7.5rem,13vw,11rem)}ul{padding-left:1.2rem;margin:.3rem 0}
code{font-size:.9em}
.narrow{display:none}@media (max-width:30rem){.less{display:none}.narrow{display:inline}
th,td{padding-right:.5rem}td svg{width:6.5rem}}
"""
)


def document(title: str, body: str, script: str = "", refresh_seconds: int = 0) -> str:
    """Writes a whole page around a body of HTML; the policy stands in the page itself too.

    refresh_seconds  after which a browser without JavaScript loads the page again; 0: never
    """
    refresh = f'<noscript><meta http-equiv="refresh" content="{refresh_seconds}"></noscript>'
    policy = escape(content_policy(script, in_page=True))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>{refresh * bool(refresh_seconds)}</head>"
        f"<body>{body}" + f"<script>{script}</script>" * bool(script) + "</body></html>\n"
    )


def content_policy(script: str = "", *, in_page: bool = False) -> str:
    """Builds the policy: the one style, the script if there is one, which may ask its own server.

    in_page  leaves out what a browser heeds in the header of an answer alone
    """
    parts = ["default-src 'none'", f"style-src {_hash(STYLE)}", "img-src data:"]
    if script:
        parts += [f"script-src {_hash(script)}", "connect-src 'self'"]
    parts += ["base-uri 'none'", "form-action 'none'"]
    return "; ".join(parts if in_page else [*parts, "frame-ancestors 'none'"])


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
