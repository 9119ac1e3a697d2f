"""Reads pages as strictly as a browser need not; no tests."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Reads HTML whose tags must all be closed, but for those that never are."""

    NEVER = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)
        if tag not in self.NEVER:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
