// What all parts of the page share: the numbers, elements, colours, and when a chart is drawn.
const values = JSON.parse(document.getElementById("values").textContent);
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const PART = 1e6;
// Rows of the table of layers, and places in a row of `values.layers`.
const NAME = 0, TYPE = 1, PLACE = 2, FOUND = 3, BESIDE = 4, SITES = 5;
// Places in a site.
const DTYPE = 0, ELEMENTS = 1, ZEROS = 2, NAN = 3, INF = 4, AMAX = 5, AMIN = 6, LOW = 7, BINS = 8, SAMPLED = 9, EXTRA = 10, PEAK = 11;

/** An element with a class and children; strings become text, never markup. */
function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/** Options of a select from [value, text] pairs. */
function fill(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    option.selected = String(value) === String(chosen);
    return option;
  }));
}

/** Text as plotly takes it: it reads tags and entities in whatever it draws. */
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** The middle of long names is left out: they differ at both ends. */
function shortened(text, room) {
  const letters = Array.from(text);
  if (letters.length <= room) return text;
  const head = Math.floor((room - 1) / 3);
  return letters.slice(0, head).join("") + "\u2026" + letters.slice(letters.length - (room - 1 - head)).join("");
}

/** A share in parts of a million, as words: only none is 0, only all is 100%. */
function share(parts) {
  if (parts <= 0) return "0";
  if (parts >= PART) return "100%";
  const percent = parts / 1e4;
  if (percent < 0.1) return "<0.1%";
  return percent < 9.95 ? `${percent.toFixed(1)}%` : `${Math.min(percent, 99).toFixed(0)}%`;
}

/** 2^k as a loss scale is told. */
const scaleWords = (k) => (k <= 19 ? String(2 ** k) : `2^${k}`);
const count = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;

/** The colours of the style sheet, so that charts follow it. */
function colors() {
  const style = getComputedStyle(document.documentElement);
  const named = {};
  for (const name of ["paper", "card", "ink", "soft", "rule", "low", "mid", "high", "limit", "lost", "good", "one", "two", "three"]) {
    named[name] = style.getPropertyValue(`--${name}`).trim();
  }
  return named;
}

// Paper is narrower than most windows, and charts are not told of it.
let paper = false;
const PAPER = 680;
const narrow = () => !paper && innerWidth < 640;

/** What every chart has: fonts and colours of the page, no more margin than needed. */
function layoutOf(more) {
  const color = colors();
  const axis = { gridcolor: color.rule, linecolor: color.rule, zerolinecolor: color.rule, tickcolor: color.rule, automargin: false };
  const out = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", size: 12, color: color.ink },
    hoverlabel: { bgcolor: color.card, bordercolor: color.soft, font: { color: color.ink, size: 12 }, align: "left" },
    margin: { l: 56, r: 16, t: 24, b: 48 },
    ...(paper ? { width: PAPER } : { autosize: true }),
    ...more,
  };
  for (const key of Object.keys(out)) if (/^[xy]axis/.test(key)) out[key] = { ...axis, ...out[key] };
  return out;
}

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset" };

// Reading the library takes ten times as long as all the rest: the page is there before it, and can be used.
function loadLibrary() {
  if (window.Plotly) return;
  const script = document.createElement("script");
  script.textContent = $("library").textContent;
  document.head.append(script);
  for (const id of charts.keys()) near.observe($(id));
}

// Charts are drawn when they come near the window, all of them before printing, and anew when colours or width change.
const charts = new Map();
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target.id);
    if (entry.isIntersecting && !chart.drawn) draw(chart);
  }
}, { rootMargin: "300px" });

function draw(chart) {
  chart.drawn = true;
  chart.paint();
}

/** Have `paint` draw the chart in the element `id`; returns what to call when its numbers have changed. */
function chart(id, paint) {
  charts.set(id, { paint, drawn: false });
  return () => charts.get(id).drawn && paint();
}

function repaint() {
  for (const one of charts.values()) if (one.drawn) one.paint();
}
