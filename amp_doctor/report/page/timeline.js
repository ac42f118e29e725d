// Losses and loss scales in time, of the run and of the runs that were to prove the recommendation.

function paintTime() {
  const color = colors(), traces = [], annotations = [];
  const finite = values.loss.filter((one) => typeof one === "number");
  const largest = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  const positive = finite.length && finite.every((one) => one > 0) && largest > 20 * finite.reduce((a, b) => Math.min(a, b));
  const both = values.loss.length > 0 && values.scaler.length > 0;
  if (values.loss.length) {
    const y = values.loss.map((one) => (typeof one === "number" ? one : null));
    traces.push({ x: y.map((_, index) => index + 1), y, name: "loss", mode: y.length < 3 ? "lines+markers" : "lines", line: { color: color.one, width: 2 }, connectgaps: false, hovertemplate: "step %{x}<br>loss %{y:.4~g}<extra></extra>" });
    const broken = values.loss.flatMap((one, index) => (typeof one === "number" ? [] : [[index + 1, one]]));
    const top = finite.length ? largest : 1;
    if (broken.length) traces.push({ x: broken.map(([step]) => step), y: broken.map(() => top), text: broken.map(([, word]) => word), name: "loss not finite", mode: "markers", marker: { symbol: "x", size: 9, color: color.limit }, hovertemplate: "step %{x}<br>loss %{text}<extra></extra>" });
  }
  if (values.scaler.length) {
    const seen = values.scaler.filter((event) => event[1] !== null && event[1] > 0);
    traces.push({ x: seen.map((event) => event[0]), y: seen.map((event) => Math.log2(event[1])), text: seen.map((event) => event[4]), name: "loss scale", yaxis: "y2", mode: "lines", line: { color: color.two, width: 2, shape: "hv", dash: "dash" }, hovertemplate: "step %{x}<br>loss scale %{text}<extra></extra>" });
    const skipped = seen.filter((event) => event[2]);
    if (skipped.length) traces.push({ x: skipped.map((event) => event[0]), y: skipped.map((event) => Math.log2(event[1])), text: skipped.map((event) => plain(shortened(event[3], 48))), name: "step skipped", yaxis: "y2", mode: "markers", marker: { symbol: "triangle-down", size: 11, color: color.limit }, hovertemplate: "step %{x} skipped: an infinite gradient<br>%{text}<extra></extra>" });
  }
  const scales = values.scaler.filter((event) => event[1] > 0).map((event) => Math.log2(event[1]));
  const low = Math.floor(scales.reduce((a, b) => Math.min(a, b), Infinity)) - 1, high = Math.ceil(scales.reduce((a, b) => Math.max(a, b), -Infinity)) + 1;
  const ticks = Array.from({ length: scales.length ? high - low + 1 : 0 }, (_, index) => low + index).filter((k) => k % Math.max(1, Math.ceil((high - low) / 6)) === 0);
  Plotly.react($("time"), traces, layoutOf({
    height: 340, annotations, dragmode: false, legend: { orientation: "h", y: -0.24, x: 0 }, margin: { l: 56, r: both ? 56 : 16, t: 16, b: 88 }, hovermode: "closest",
    xaxis: { title: { text: "step", standoff: 6 }, fixedrange: true, zeroline: false },
    yaxis: { title: { text: values.loss.length ? "loss" : "", standoff: 4 }, type: positive ? "log" : "linear", fixedrange: true, zeroline: false, visible: values.loss.length > 0, nticks: 6 },
    ...(values.scaler.length ? { yaxis2: { title: { text: "loss scale", standoff: 4 }, overlaying: values.loss.length ? "y" : undefined, side: values.loss.length ? "right" : "left", tickvals: ticks, ticktext: ticks.map((k) => `2<sup>${k}</sup>`), range: [low - 0.5, high + 0.5], showgrid: false, fixedrange: true, zeroline: false } } : {}),
  }), CONFIG);
}

/** The losses of the runs of a proof, side by side. */
function paintProof() {
  const color = colors(), lines = [color.soft, color.two, color.one, color.three];
  const traces = values.proof.filter(([, losses]) => losses.length).map(([name, losses], index) => ({
    x: losses.map((_, step) => step + 1), y: losses.map((one) => (typeof one === "number" ? one : null)), name: plain(shortened(name, 48)),
    mode: losses.length < 3 ? "lines+markers" : "lines", opacity: index ? 1 : 0.5, line: { color: lines[index % lines.length], width: index ? 2 : 7, dash: ["solid", "dash", "solid", "dot"][index % 4] },
    hovertemplate: "step %{x}<br>loss %{y:.4~g}<extra></extra>",
  }));
  Plotly.react($("proof-chart"), traces, layoutOf({
    height: 320, dragmode: false, showlegend: true, legend: { orientation: "h", y: -0.26, x: 0 }, margin: { l: 56, r: 16, t: 16, b: 96 },
    xaxis: { title: { text: "step", standoff: 6 }, fixedrange: true, zeroline: false, ...(Math.max(...values.proof.map(([, losses]) => losses.length)) < 12 ? { dtick: 1 } : {}) },
    yaxis: { title: { text: "loss", standoff: 4 }, fixedrange: true, zeroline: false, nticks: 6 },
  }), CONFIG);
}
