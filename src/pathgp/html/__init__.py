"""A posterior as one HTML page that needs nothing else: `Posterior.to_html` and `GridPosterior.to_html`.

`numbers` writes numbers and finds ticks, `charts` draws in SVG, `markup` and `style` make the document; `words` says
what kernels and solves are. The sections are `accuracy`, `inputs`, `learning` and `solver`; `table` and `grid` put them
together. No scripts, no fonts, no requests.
"""
