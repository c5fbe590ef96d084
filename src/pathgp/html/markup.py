"""Elements of HTML: functions take plain text, escape it, and return markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NewType

from pathgp.html.style import SHEET

Html = NewType("Html", str)


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading. flows: it may share a printed page with the previous section."""

    key: str
    title: str
    body: Sequence[Html]
    flows: bool = False


@dataclass(frozen=True)
class Verdict:
    """A judgement of the result: good, not good (with a remedy), or None for a plain fact."""

    good: bool | None
    text: str


def text(words: str) -> str:
    """Escape words; a percent sign stays with its number."""
    return escape(words).replace(" %", "\u00a0%")


def paragraph(words: str, kind: str = "") -> Html:
    return Html(f"<p{_class(kind)}>{text(words)}</p>")


def tile_list(tiles: Iterable[tuple[str, str, str]]) -> Html:
    """Key numbers: name, value and note of each."""
    entries = (
        f'<div class="tile"><dt>{text(name)}</dt><dd>{text(value)}<span class="note">{text(note)}</span></dd></div>'
        for name, value, note in tiles
    )
    return Html(f'<dl class="tiles">{"".join(entries)}</dl>')


def verdict_list(verdicts: Iterable[Verdict]) -> Html:
    """A list with a mark before each entry, and the meaning of the mark in words."""
    marks = {True: ("yes", "✓", "<b>Good: </b>"), False: ("no", "!", "<b>Attention: </b>"), None: ("fact", "i", "")}
    entries = []
    for verdict in verdicts:
        kind, mark, meaning = marks[verdict.good]
        sign = f'<span class="mark" aria-hidden="true">{mark}</span>'
        entries.append(f'<li class="{kind}">{sign}{meaning}{text(verdict.text)}</li>')
    return Html(f'<ul class="verdicts">{"".join(entries)}</ul>')


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> Html:
    """A table whose first column names the rows; kind "figures" aligns the others to the right."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return Html(f'<div class="scroll"><table{_class(kind)}>{parts}</table></div>')


def figure(title: str, caption: str, drawing: Html) -> Html:
    return Html(f"<figure><figcaption><b>{text(title)}</b>{text(caption)}</figcaption>{drawing}</figure>")


def chart_grid(figures: Sequence[Html]) -> Html:
    """Figures side by side, as many as fit; two or four of them in pairs."""
    kind = "charts pairs" if len(figures) in (2, 4) else "charts"
    return Html(f'<div class="{kind}">{"".join(figures)}</div>')


def document(title: str, lead: str, sections: Sequence[Section], footer: str) -> Html:
    """The whole page, which loads nothing from elsewhere."""
    links = "".join(f'<li><a href="#{s.key}">{text(s.title)}</a></li>' for s in sections)
    parts = "".join(
        f'<section id="{s.key}"{_class("flows" if s.flows else "")} aria-labelledby="{s.key}-heading">'
        f'<h2 id="{s.key}-heading">{text(s.title)}</h2>{"".join(s.body)}</section>\n'
        for s in sections
    )
    return Html(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="pathgp">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{SHEET}</style>\n</head>\n<body>\n"
        f'<header><h1>{text(title)}</h1><p class="lead">{text(lead)}</p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>\n{parts}</main>\n<footer>{text(footer)}</footer>\n</body>\n</html>\n"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
