"""A posterior as one HTML page without scripts, fonts or requests: `Posterior.to_html` and `GridPosterior.to_html`.

`table` and `grid` put a page together from its sections: `accuracy`, `inputs`, `field`, `learning` and `solver`; `page`
has what both share. `facts` prepares what a section shows, `numbers` formats numbers, `charts` and `maps` draw in SVG,
`markup` and `style` make the document.
"""
