// The heat map of exponents and the table below it: the same layers, in the same order.

const state = { role: values.role, limits: 0, shift: 0, filter: "", exact: null, only: "", order: null, rows: 30, page: 0, cell: null };
const site = (layer) => layer[SITES][state.role];
const isGradient = () => values.roles[state.role].gradient;
const shift = () => (isGradient() ? state.shift : 0);
const limit = () => values.limits[state.limits];

/** Parts of a million of a layer's values below or beyond an exponent, at the loss scale in force. */
function below(one, exponent) {
  let sum = 0;
  one[BINS].forEach((part, index) => { if (one[LOW] + index + shift() < exponent) sum += part; });
  return Math.min(sum, PART);
}

/** What the format rounds to zero: what Python counted where it did, else the sum of the columns left of the line. */
function lost(one) {
  if (!one) return -1;
  if (isGradient() && limit().name === "float16") return one[EXTRA][0][shift()] ?? 0;
  return below(one, limit().zero);
}

/** Whether the format overflows. */
function overflows(one) {
  if (!one || !one[BINS].length) return false;
  return one[PEAK] * 2 ** shift() >= limit().overflow;
}

const trouble = (one) => (!one ? -1 : overflows(one) ? PART + 1 : lost(one));
const severities = ["note", "warning", "error"];
const worst = (layer) => Math.max(-1, ...layer[FOUND].map((index) => severities.indexOf(values.findings[index][1])));

function layerButton(name) {
  const button = element("button", "layer", name);
  button.type = "button";
  button.dataset.layer = name;
  return button;
}

/** The findings of a layer and the lint findings beside it, as links to where they are told. */
function chips(layer) {
  const box = element("div", "chips");
  const link = (told, anchor, className, title) => {
    const made = element("a", className, told);
    made.href = anchor;
    made.title = title;
    return made;
  };
  for (const index of layer[FOUND]) {
    const [code, severity, message] = values.findings[index];
    box.append(link(code, `#finding-${index}`, `badge ${severity}`, message));
  }
  for (const index of layer[BESIDE]) {
    const [code, , message, verdict] = values.lint[index];
    box.append(link(`lint ${code}${verdict ? `, ${verdict}` : ""}`, `#lint-${index}`, `badge lint ${verdict}`, message));
  }
  return box.childNodes.length ? box : null;
}

const nonfinite = (one) => [one[NAN] ? `${one[NAN]} NaN` : "", one[INF] ? `${one[INF]} inf` : ""].filter(Boolean).join(", ");
const ofSite = (tell, none = "") => (layer) => (site(layer) ? tell(site(layer)) : none);
const ofZeros = (one) => (one[ELEMENTS] ? Math.round((one[ZEROS] / one[ELEMENTS]) * PART) : 0);
const COLUMNS = [
  { title: "Layer", key: (layer) => layer[NAME], cell: (layer) => element("div", "", element("span", "name", layer[NAME]), element("span", "place", [layer[TYPE], layer[PLACE]].filter(Boolean).join(", "))) },
  { title: "Lost", numeric: true, key: (layer) => trouble(site(layer)), cell: ofSite((one) => overflows(one) ? element("span", "bad", limit().saturates ? "saturates" : "overflows") : share(lost(one)), "not seen") },
  { title: "Findings", numeric: false, key: (layer) => 2 - worst(layer), cell: chips },
  { title: "Largest", numeric: true, key: ofSite((one) => numeric(one[AMAX]), -1), cell: ofSite((one) => one[AMAX]) },
  { title: "Smallest", numeric: true, key: ofSite((one) => numeric(one[AMIN]), -1), cell: ofSite((one) => one[AMIN]) },
  { title: "Zeros", numeric: true, key: ofSite(ofZeros, -1), cell: ofSite((one) => share(ofZeros(one))) },
  { title: "Not finite", numeric: true, key: ofSite((one) => one[NAN] + one[INF], -1), cell: ofSite(nonfinite) },
  { title: "dtype", key: ofSite((one) => one[DTYPE]), cell: ofSite((one) => one[DTYPE] + (one[SAMPLED] ? " (sampled)" : "")) },
  { title: "Elements", numeric: true, key: ofSite((one) => one[ELEMENTS], -1), cell: ofSite((one) => one[ELEMENTS].toLocaleString("en")) },
];
const ORDERS = [["run", "as they run", -1, false], ["worst", "worst first", 1, true], ["findings", "findings first", 2, false], ["name", "by name", 0, false], ["large", "largest values", 3, true], ["small", "smallest values", 4, false]];

function chosen() {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  let rows = values.layers.filter((layer) => {
    const text = `${layer[NAME]} ${layer[TYPE]} ${layer[PLACE]}`.toLowerCase();
    if (state.exact !== null ? layer[NAME] !== state.exact : !words.every((word) => text.includes(word))) return false;
    if (state.only === "finding") return layer[FOUND].length + layer[BESIDE].length > 0;
    if (state.only === "lost") return lost(site(layer)) > PART / 100;
    return state.only !== "over" || overflows(site(layer));
  });
  if (state.order.column >= 0) rows = inOrder(rows, COLUMNS[state.order.column], state.order.down);
  return rows;
}

function shown() {
  const all = chosen(), size = state.rows === "all" ? Math.max(all.length, 1) : Number(state.rows);
  const pages = Math.max(1, Math.ceil(all.length / size));
  state.page = Math.min(Math.max(state.page, 0), pages - 1);
  return { all, size, pages, rows: all.slice(state.page * size, (state.page + 1) * size) };
}

/** What a cell of the heat map says, line by line; without an exponent what its row says. */
function story(layer, exponent) {
  const one = site(layer);
  if (!one) return [layer[NAME], "not seen in this role"];
  const scaled = shift() ? ` times ${scaleWords(shift())}` : "";
  const part = one[BINS][exponent - shift() - one[LOW]] ?? 0;
  const here = exponent === null ? "" : `: ${share(part)} from 2^${exponent} to 2^${exponent + 1}`;
  const told = [layer[NAME], [layer[TYPE], layer[PLACE]].filter(Boolean).join(", "), `${values.roles[state.role].name}${scaled}${here}`];
  told.push(`${limit().name}: ${overflows(one) ? (limit().saturates ? "saturates" : "overflows") : `${share(lost(one))} rounded to zero`}; from ${one[AMIN] || "0"} to ${one[AMAX]} in true units`);
  if (one[ZEROS] || nonfinite(one)) told.push([`${share(ofZeros(one))} zeros`, nonfinite(one)].filter(Boolean).join(", "));
  const extra = one[EXTRA];
  if (isGradient() && extra.length > 3) told.push(`observed in ${extra[2]}: ${share(extra[3])} zeros`);
  for (const i of layer[FOUND]) told.push(`${values.findings[i][0]} ${shortened(values.findings[i][2], 80)}`);
  for (const i of layer[BESIDE]) told.push(`lint ${values.lint[i][0]} ${shortened(values.lint[i][2], 80)}`);
  return told.filter(Boolean);
}

/** The exponents to show: those of the values and of the limits, with a column of air. */
function window_(rows) {
  let low = limit().zero - 3, high = Math.ceil(limit().over) + 2;
  for (const layer of rows) {
    const one = site(layer);
    if (one && one[BINS].length) {
      low = Math.min(low, one[LOW] + shift() - 1);
      high = Math.max(high, one[LOW] + one[BINS].length + shift() + 1);
    }
  }
  return [low, high];
}

let redraw = () => {};

function show() {
  const { all, size, pages, rows } = shown();
  const first = state.page * size;
  $("layers-count").textContent = all.length
    ? `${all.length === values.layers.length ? "" : `${all.length.toLocaleString("en")} of `}${count(values.layers.length, "layer")}${pages > 1 ? `, ${first + 1} to ${first + rows.length} are shown` : ""}`
    : "No layer is like that.";
  $("back").disabled = state.page === 0;
  $("next").disabled = state.page >= pages - 1;
  $("back").parentElement.hidden = pages < 2;
  $("shift").disabled = !isGradient();
  $("shift-told").textContent = isGradient() ? scaleWords(state.shift) : "moves gradients only";
  state.cell = null;
  $("heat-told").textContent = "";
  fillTable($("layers-table"), COLUMNS, rows, state.order, (order) => { state.order = order; state.page = 0; $("order").value = ORDERS.find((one) => one[2] === order.column && one[3] === order.down)?.[0] ?? ""; show(); });
  redraw();
}
