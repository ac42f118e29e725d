"""The parts of the HTML report that are no Python: style, script and frame of the page, shipped with the package."""
