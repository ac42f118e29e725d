"""The places for what is drawn, with their controls: plain HTML, in which nothing comes from a user."""

from __future__ import annotations


def picker() -> str:
    """The choice between light and dark, and printing."""
    options = "".join(f'<option value="{name}">{name}</option>' for name in ("auto", "light", "dark"))
    return (
        '<div class="tools"><label>Colours <select id="theme">' + options + "</select></label>"
        '<button type="button" id="print">Print</button></div>'
    )


LAYERS = """
<p class="quiet">Each row is a layer, each column a power of two: the darker (by day) or brighter (by night) a cell,
the more of the layer's values have that exponent. Between the lines a format keeps them; left of the first it rounds
them to zero, right of the last they overflow.</p>
<div class="controls" role="group" aria-label="What the heat map shows">
<label>Values <select id="role"></select></label>
<label>Limits of <select id="limits"></select></label>
<label>Filter <input type="search" id="filter" placeholder="name, type or file" autocomplete="off"
spellcheck="false"></label>
<label>Show <select id="only"><option value="">all layers</option><option value="finding">with a finding</option>
<option value="lost">losing over 1%</option><option value="over">overflowing</option></select></label>
<label>Sort <select id="order"></select></label>
<label>Rows <select id="rows"><option>15</option><option selected>30</option><option>100</option>
<option value="all">all</option></select></label>
<label class="wide">Loss scale <output id="shift-told" for="shift"></output>
<input type="range" id="shift" min="0" max="24" step="1"></label>
</div>
<p id="layers-count" class="quiet" role="status" aria-live="polite"></p>
<div class="pager"><button type="button" id="back">Previous</button>
<button type="button" id="next">Next</button></div>
<div id="heat" class="chart" tabindex="0" role="application" aria-describedby="heat-told"
aria-label="Heat map of exponents by layer; arrow keys move between its cells"></div>
<p id="heat-told" class="told" role="status" aria-live="polite"></p>
<div class="scroll" tabindex="0" role="region" aria-label="Layers in numbers"><table id="layers-table">
<caption class="quiet">The same layers in numbers; the heading of a column sorts.</caption></table></div>
"""
SCALE = """
<p class="quiet">What a cast of the gradients to float16 rounds to zero at each loss scale, and from where on it
overflows. The band holds the loss scales that are admissible; thin lines are the layers that lose most.</p>
<div class="controls"><label>Layer <select id="curve-layer"></select></label></div>
<div id="curves" class="chart" role="img" aria-label="Share of the gradients lost in float16, by loss scale"></div>
<details><summary>The same in numbers</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Loss scales in numbers">
<table id="curve-table"></table></div>
</details>
"""
TIMELINE = """
<div id="time" class="chart" role="img" aria-label="Loss and loss scale, step by step"></div>
"""
OPERATORS = """
<div class="controls" role="group" aria-label="Which operators are shown">
<label>Filter <input type="search" id="operator-filter" placeholder="operator, layer or line" autocomplete="off" \
spellcheck="false"></label>
<label>Trouble <select id="operator-trouble"><option value="">any</option></select></label></div>
<p id="operators-count" class="quiet" role="status" aria-live="polite"></p>
<div class="scroll" tabindex="0" role="region" aria-label="Operators"><table id="operators-table">
<caption class="quiet">Torch calls that go wrong in half, worst first; the heading of a column sorts.</caption>
</table></div>
"""
PROOF = """
<div id="proof-chart" class="chart" role="img" aria-label="Losses of the runs side by side"></div>
"""
FRAMES = {"proof": PROOF, "layers": LAYERS, "scale": SCALE, "timeline": TIMELINE, "operators": OPERATORS}
