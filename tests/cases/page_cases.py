"""A page as a reader meets it: its elements, its words, its headings, whether every tag is closed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Elements in order as (tag, attributes); the text of every element; open tags, which must be closed in order."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.markup = markup
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.inside: list[tuple[str, list[str]]] = []
        self.feed(markup)
        self.close()
        assert not self.inside, f"left open: {[tag for tag, _ in self.inside]}"

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.inside.append((tag, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened, parts = self.inside.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        words = "".join(parts).replace("\u00a0", " ")
        self.texts.append((tag, words))
        if self.inside:
            self.inside[-1][1].append(words)

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.inside[-1][1].append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements with a tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self, tag: str) -> list[str]:
        """The texts of all elements with a tag, those of the elements inside included."""
        return [words for name, words in self.texts if name == tag]

    @property
    def text(self) -> str:
        """All words of the body."""
        return self.words("body")[0]

    @property
    def headings(self) -> list[tuple[int, str]]:
        return [(int(tag[1]), words) for tag, words in self.texts if tag in ("h1", "h2", "h3", "h4")]


def page_of(post: object, folder: Path, *arguments: object, **options: object) -> Page:
    path = folder / "page.html"
    post.to_html(path, *arguments, **options)
    return Page.read(path)


def check(page: Page) -> None:
    """What holds for every page."""
    assert page.markup.startswith("<!doctype html>")
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert len(page.words("title")) >= 1
    assert page.words("title")[0]
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels)), page.headings
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for attributes in page.all("a")]
    assert links
    assert all(link[0] == "#" and link[1:] in ids for link in links)
    charts = page.all("svg")
    assert charts
    for chart in charts:
        assert chart["role"] == "img"
        assert "viewbox" in chart
        assert "width" not in chart
        assert all(name in ids for name in str(chart["aria-labelledby"]).split())
    assert len(page.words("desc")) == len(charts)
    assert all(re.search(r"\d|nothing", words) for words in page.words("desc"))
    assert all(header.get("scope") in ("row", "col") for header in page.all("th"))
    # Nothing from elsewhere, no code, no number that is none.
    assert "http:" not in page.markup.replace("http://www.w3.org", "")
    assert "https:" not in page.markup
    assert not page.all("script")
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r"base64,[^\"]*", "", page.markup), re.IGNORECASE)
    assert len(page.markup) < 500_000
