"""A posterior as one HTML page without scripts, fonts or requests: `Posterior.to_html` and `GridPosterior.to_html`.

`page` writes the document; `table` and `grid` choose its content; `accuracy`, `learning` and `solver` are sections of
both. `facts` prepares what they show, `numbers` formats numbers, `charts` and `maps` draw in SVG, `markup` and `style`
make the document.
"""
