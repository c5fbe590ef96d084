"""The style sheet of a page, with colours for light and dark screens and rules for print."""

from __future__ import annotations

# Light and dark. paper, panel: backgrounds.  ink, quiet: text.  rule: lines of tables and axes.  accent: the model.
# data: observations.  warn, good: verdicts.
_COLOURS = {
    "paper": ("#ffffff", "#131419"),
    "panel": ("#f5f6f9", "#1d1f26"),
    "ink": ("#1b1b1f", "#ececf1"),
    "quiet": ("#5a5a66", "#a6a6b3"),
    "rule": ("#dcdce3", "#363844"),
    "accent": ("#2447a8", "#8fadff"),
    "data": ("#767684", "#8d8d9c"),
    "warn": ("#a8321f", "#ff9d8a"),
    "good": ("#1f6b43", "#7fd1a4"),
}
LIGHT, DARK = ({name: pair[i] for name, pair in _COLOURS.items()} for i in (0, 1))

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans",Arial,sans-serif}
main,header,footer{max-width:1200px;margin:0 auto;padding:0 max(16px,4vw)}
header{padding-top:56px}
section{padding-top:40px}
h1{font-size:2rem;line-height:1.2;letter-spacing:-.015em;margin:0 0 8px;font-weight:650;overflow-wrap:anywhere}
h2{font-size:1.3rem;line-height:1.3;letter-spacing:-.01em;margin:0 0 12px;padding-top:24px;
  border-top:1px solid var(--rule);font-weight:650}
h3{font-size:1rem;margin:28px 0 8px;font-weight:650}
p,ul,ol{max-width:70ch;margin:0 0 14px;overflow-wrap:anywhere}
ul{padding-left:0;list-style:none}
.quiet,.lead{color:var(--quiet)}
.lead{font-size:1.05rem}
nav ul{display:flex;flex-wrap:wrap;gap:4px 20px;margin:16px 0 0;font-size:.9rem;max-width:none}
a{color:var(--accent);text-underline-offset:3px;text-decoration-thickness:1px}
a:focus-visible{outline:2px solid var(--accent);outline-offset:3px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,140px),1fr));gap:12px;margin:20px 0 24px}
.tile{background:var(--panel);border-radius:10px;padding:14px 16px}
.tile dt{font-size:.82rem;color:var(--quiet)}
.tile dd{margin:2px 0 0;font-size:1.5rem;line-height:1.25;font-weight:600;letter-spacing:-.01em;
  font-variant-numeric:tabular-nums}
.tile .note{display:block;font-size:.82rem;font-weight:400;letter-spacing:0;color:var(--quiet)}
.verdicts li{position:relative;padding-left:30px;margin-bottom:10px}
.mark{position:absolute;left:0;top:.15em;width:20px;height:20px;border-radius:50%;text-align:center;
  font-size:12px;line-height:20px;font-weight:700;background:var(--panel);color:var(--quiet)}
.yes .mark{color:var(--good)}
.no .mark{background:var(--warn);color:var(--paper)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));
  gap:28px 32px;margin:20px 0 24px}
.pairs{grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.pairs svg{max-width:430px}
figure{margin:0;min-width:0;break-inside:avoid}
.charts figure{display:grid;grid-row:span 2;grid-template-rows:subgrid;row-gap:6px}
figcaption{font-size:.88rem;line-height:1.45;color:var(--quiet);overflow-wrap:anywhere}
figure>figcaption:not(.charts *){margin-bottom:6px}
figcaption b{display:block;color:var(--ink);font-weight:600}
svg{display:block;width:100%;max-width:480px;height:auto;overflow:visible}
svg.tall{max-width:460px}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans",Arial,sans-serif;
  fill:var(--quiet);font-variant-numeric:tabular-nums}
svg .name{fill:var(--ink)}
svg .t-accent{fill:var(--accent)}
svg .halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
svg .grid{stroke:var(--rule);stroke-width:1;opacity:.6;fill:none}
svg .axis{stroke:var(--rule);stroke-width:1;fill:none}
svg .accent{stroke:var(--accent);stroke-width:1.8;fill:none;stroke-linejoin:round;stroke-linecap:round}
svg .path{stroke:var(--accent);stroke-width:.8;fill:none;opacity:.45;stroke-linejoin:round}
svg .plain{stroke:var(--data);stroke-width:1.1;fill:none;stroke-linejoin:round}
svg .strong{stroke:var(--ink);stroke-width:1.4;fill:none;stroke-linejoin:round}
svg .dashed{stroke:var(--quiet);stroke-width:1;fill:none;stroke-dasharray:4 3}
svg .band{fill:var(--accent);opacity:.16}
svg .expected{fill:var(--data);opacity:.22}
svg .bar{fill:var(--accent);opacity:.85}
svg .dots{stroke-linecap:round;fill:none;stroke-width:3}
svg .dots.data{stroke:var(--data);opacity:.6}
svg .dots.accent{stroke:var(--accent);opacity:.75}
svg .dots.warn{stroke:var(--warn);opacity:.9;stroke-width:3.4}
svg .dots.large{stroke-width:7;opacity:1}
svg .dots.faint{stroke-width:2.4;opacity:.4}
svg .rug{stroke:var(--data);stroke-width:.8;opacity:.7;fill:none}
svg image{image-rendering:pixelated}
.scroll{overflow-x:auto;margin:12px 0 20px}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums;max-width:100%}
th,td{text-align:left;vertical-align:top;padding:7px 20px 7px 0;border-bottom:1px solid var(--rule);
  overflow-wrap:anywhere}
td:last-child,th:last-child{padding-right:0}
thead th{font-weight:600;color:var(--quiet);white-space:normal}
tbody th{font-weight:500;min-width:6.5em}
.figures td,.figures thead th:not(:first-child){text-align:right;overflow-wrap:normal}
.figures td{white-space:nowrap}
pre{background:var(--panel);border-radius:10px;padding:14px 16px;margin:12px 0 16px;white-space:pre-wrap;
  overflow-wrap:anywhere;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
footer{padding-top:32px;padding-bottom:56px;font-size:.88rem;color:var(--quiet)}
@media (max-width:520px){header{padding-top:28px}h1{font-size:1.6rem}.tile dd{font-size:1.25rem}
  .tiles{grid-template-columns:1fr 1fr}th,td{padding-right:12px}}
@page{size:A4;margin:16mm 15mm}
@media print{body{font-size:10pt}main,header,footer{max-width:none;padding:0}header{padding-top:0}nav{display:none}
  section{padding-top:0;break-before:page}section:first-of-type,section.flows{break-before:auto;padding-top:18px}
  h2,h3,h3+p{break-after:avoid}tr,li,pre,.tile{break-inside:avoid}
  .charts{grid-template-columns:1fr 1fr;gap:16px 28px;margin:14px 0 12px}
  svg,.pairs svg{max-width:285px}svg.tall{max-width:360px}
  th,td{padding-top:3px;padding-bottom:3px}p,figcaption{line-height:1.4}
  .tile,pre,.mark{print-color-adjust:exact;-webkit-print-color-adjust:exact}
  .scroll{overflow:visible}a{color:inherit}footer{padding:18px 0 0}}
"""

_LIGHT, _DARK = ("".join(f"--{name}:{value};" for name, value in colours.items()) for colours in (LIGHT, DARK))
SHEET = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"{_RULES}"
)
