// The heat map itself, its keys, and the curves of what is lost against the loss scale.

function paintHeat() {
  const { rows } = shown(), color = colors(), [low, high] = window_(rows);
  const exponents = Array.from({ length: high - low }, (_, index) => low + index);
  const many = rows.length > 120, room = narrow() ? 14 : 30;
  const z = rows.map((layer) => {
    const one = site(layer);
    return exponents.map((exponent) => {
      const part = one ? one[BINS][exponent - shift() - one[LOW]] : 0;
      return part ? Math.max(Math.log10(part / PART), -6) : null;
    });
  });
  const words = (layer, exponent) => story(layer, exponent).map((line) => plain(shortened(line, 96))).join("<br>");
  // Of very many layers only the layer is told: a text for each cell would take seconds.
  const told = rows.map((layer) => (many ? Array(exponents.length).fill(words(layer, null)) : exponents.map((exponent) => words(layer, exponent))));
  const names = rows.map((layer) => plain(shortened(layer[NAME], room)));
  const lanes = Math.max(rows.length, 6), height = many ? Math.min(1600, 160 + rows.length * 2) : 104 + lanes * (lanes > 12 ? 20 : 26);
  const marks = [[limit().zero, "rounds to zero"], [limit().normal, "normal from"], [limit().over, limit().saturates ? "saturates" : "overflows"]];
  const shapes = [
    { type: "rect", xref: "x", yref: "paper", x0: low, x1: limit().zero, y0: 0, y1: 1, fillcolor: color.lost, line: { width: 0 }, layer: "below" },
    { type: "rect", xref: "x", yref: "paper", x0: limit().over, x1: high, y0: 0, y1: 1, fillcolor: color.lost, line: { width: 0 }, layer: "below" },
    ...marks.map(([at], index) => ({ type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: color.limit, width: 2, dash: index === 1 ? "dot" : "solid" } })),
  ];
  const annotations = marks.map(([at, word], index) => ({ x: at, xref: "x", y: 1, yref: "paper", yanchor: "bottom", xanchor: index === 0 ? "right" : index === 1 ? "left" : "left", text: narrow() ? ["zero", "", "over"][index] : word, showarrow: false, font: { size: 11, color: color.limit } }));
  if (narrow()) annotations[2].xanchor = "right";
  const step = high - low > 90 ? 32 : high - low > 56 || narrow() ? 8 : 4;
  const ticks = exponents.filter((exponent) => exponent % step === 0);
  Plotly.react($("heat"), [{
    type: "heatmap", z, x: exponents.map((one) => one + 0.5), y: rows.map((_, index) => index), text: told, hovertemplate: "%{text}<extra></extra>",
    zmin: -6, zmax: 0, xgap: many ? 0 : 1, ygap: many ? 0 : 1, hoverongaps: true, colorscale: [[0, color.low], [0.6, color.mid], [1, color.high]],
    showscale: !narrow(), colorbar: { thickness: 10, len: 150, lenmode: "pixels", y: 1, yanchor: "top", outlinewidth: 0, tickfont: { size: 10 }, ticklabelposition: "outside", tickvals: [-6, -4, -2, 0], ticktext: ["1 ppm", "0.01%", "1%", "all"] },
  }], layoutOf({
    height, shapes, annotations, dragmode: false,
    margin: { l: narrow() ? 104 : 216, r: narrow() ? 10 : 24, t: 30, b: 56 },
    xaxis: { range: [low, high], tickvals: ticks, ticktext: ticks.map((one) => `2<sup>${one}</sup>`), tickangle: 0, ticklabeloverflow: "allow", fixedrange: true, showgrid: false, zeroline: false, title: { text: shift() ? `${narrow() ? "" : "magnitude "}times the loss scale ${scaleWords(shift())}` : "magnitude", standoff: 8 } },
    yaxis: { autorange: false, range: [lanes - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false, ...(many ? { showticklabels: false } : { tickvals: rows.map((_, index) => index), ticktext: names }), tickfont: { size: 11 }, ticklabeloverflow: "allow" },
  }), CONFIG);
}

/** Arrow keys go from cell to cell; what the cell says is shown, and told to screen readers. */
function walk(event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [-1e9, 0], End: [1e9, 0] };
  const { rows } = shown();
  if (event.key === "Escape") {
    state.cell = null;
    $("heat-told").textContent = "";
    Plotly.Fx.unhover($("heat"));
    return;
  }
  if (!moves[event.key] || !rows.length) return;
  event.preventDefault();
  const [low, high] = window_(rows), [down, right] = moves[event.key];
  const within = (value, least, most) => Math.min(Math.max(value, least), most);
  const start = state.cell ?? [down > 0 ? -1 : 0, -1];
  const row = within(start[0] + down, 0, rows.length - 1);
  // A walk begins where the layer has most of its values.
  const one = site(rows[row]);
  const peak = one && one[BINS].length ? one[LOW] + shift() + one[BINS].indexOf(Math.max(...one[BINS])) - low : 0;
  const column = within(state.cell ? start[1] + right : peak, 0, high - low - 1);
  state.cell = [row, column];
  $("heat-told").textContent = story(rows[row], low + column).join(" \u00b7 ");
  Plotly.Fx.hover($("heat"), { xval: low + column + 0.5, yval: row });
}

// --- curves

const SCALES = Array.from({ length: values.scales.largest + 1 }, (_, k) => k);
const lostAt = (curve, k) => curve[k] ?? 0;
const GRADIENTS = values.roles.map((role, index) => [role, index]).filter(([role]) => role.gradient);

/** Gradients of one layer, as [role, curve of losses, first scale that overflows]. */
const curvesOf = (layer) => GRADIENTS.map(([role, index]) => [role.name, layer[SITES][index]]).filter(([, one]) => one && one[BINS].length).map(([name, one]) => [name, one[EXTRA][0], one[EXTRA][1]]);

/** The layers that lose most at the scale in use. */
function mostLost(room) {
  const k = Math.round(Math.log2(values.scales.drawn || 1));
  const judged = values.layers.map((layer) => [layer, Math.max(-1, ...curvesOf(layer).map(([, curve]) => lostAt(curve, Math.min(Math.max(k, 0), values.scales.largest)) * 1e6 + lostAt(curve, 0)))]);
  return judged.filter(([, lost]) => lost > 0).sort((a, b) => b[1] - a[1]).slice(0, room).map(([layer]) => layer);
}

function curveRows() {
  const chosen = $("curve-layer").value;
  if (chosen !== "") return curvesOf(values.layers[Number(chosen)]).map(([name, curve, over]) => [name, curve, SCALES.map((k) => over >= 0 && k >= over)]);
  return GRADIENTS.filter(([, index]) => values.totals[index]).map(([role, index]) => [`all: ${role.name}`, values.totals[index][0], values.totals[index][1].map((part) => part > 0)]);
}

function paintCurves() {
  const color = colors(), scales = values.scales, lines = [color.one, color.two, color.three];
  const traces = [];
  if ($("curve-layer").value === "") {
    for (const layer of mostLost(6)) {
      for (const [name, curve] of curvesOf(layer)) {
        traces.push({ x: SCALES, y: SCALES.map((k) => lostAt(curve, k) / 1e4), mode: "lines", line: { color: color.soft, width: 1 }, opacity: 0.7, showlegend: false, hovertemplate: `${plain(shortened(layer[NAME], 48)).replace(/%/g, "&#37;")}, ${name}<br>%{y:.3~g}% lost at 2^%{x}<extra></extra>` });
      }
    }
  }
  curveRows().forEach(([name, curve, over], index) => {
    const style = { color: lines[index % 3], width: 3, dash: index ? "dash" : "solid" };
    traces.push({ x: SCALES, y: SCALES.map((k) => lostAt(curve, k) / 1e4), name, mode: "lines", line: style, hovertemplate: `${name}<br>%{y:.3~g}% lost at 2^%{x}<extra></extra>` });
    const first = over.indexOf(true);
    if (first >= 0) traces.push({ x: [first], y: [0], name: `${name} overflows`, mode: "markers", marker: { symbol: index ? "x" : "triangle-up", size: 12, color: style.color, line: { color: color.card, width: 1 } }, cliponaxis: false, hovertemplate: `${name}<br>overflows from 2^%{x} on<extra></extra>` });
  });
  const at = (scale) => Math.log2(scale);
  const shapes = [], annotations = [];
  if (scales.admissible) shapes.push({ type: "rect", xref: "x", yref: "paper", x0: at(scales.admissible[0]) - 0.15, x1: at(scales.admissible[1]) + 0.15, y0: 0, y1: 1, fillcolor: color.good, opacity: 0.18, line: { width: 0 }, layer: "below" });
  const same = scales.used === scales.advised;
  for (const [scale, word, high] of [[scales.used, same ? "in use and advised" : "in use", 1], [same ? 0 : scales.advised, "advised", 0.92]]) {
    if (!scale || scale < 0) continue;
    shapes.push({ type: "line", xref: "x", yref: "paper", x0: at(scale), x1: at(scale), y0: 0, y1: 1, line: { color: color.limit, width: 2, dash: word === "advised" ? "dot" : "solid" } });
    annotations.push({ x: at(scale), xref: "x", y: high, yref: "paper", yanchor: "top", xanchor: at(scale) > (values.scales.largest * 2) / 3 ? "right" : "left", text: ` ${word} `, showarrow: false, font: { color: color.limit, size: 11 } });
  }
  const ticks = SCALES.filter((k) => k % (narrow() ? 8 : 4) === 0);
  Plotly.react($("curves"), traces, layoutOf({
    height: 360, shapes, annotations, dragmode: false, legend: { orientation: "h", y: -0.24, x: 0 }, margin: { l: 56, r: 16, t: 16, b: 96 },
    xaxis: { range: [-0.5, values.scales.largest + 0.5], tickvals: ticks, ticktext: ticks.map((k) => `2<sup>${k}</sup>`), title: { text: "loss scale", standoff: 6 }, fixedrange: true, zeroline: false },
    yaxis: { range: [-3, 103], ticksuffix: "%", title: { text: "lost in float16", standoff: 4 }, fixedrange: true, zeroline: false },
  }), CONFIG);
  fillTable($("curve-table"), [{ title: "Loss scale", cell: (k) => scaleWords(k) }, ...curveRows().map(([name, curve, over]) => ({ title: name, numeric: true, cell: (k) => share(lostAt(curve, k)) + (over[k] ? ", overflows" : "") }))], SCALES.filter((k) => k % 2 === 0));
}
