// Controls are tied to what they change; colours follow the system or the choice, paper is always light.

function startLayers() {
  if (!$("heat")) return;
  state.shift = Math.min(Math.max(Math.round(Math.log2(values.scales.drawn || 1)), 0), values.scales.largest);
  $("shift").max = values.scales.largest;
  state.order = { column: 1, down: true };
  fill($("role"), values.roles.map((role, index) => [index, role.name]).filter(([index]) => values.layers.some((layer) => layer[SITES][index])), state.role);
  fill($("limits"), values.limits.map((one, index) => [index, one.name]), 0);
  fill($("order"), ORDERS, "worst");
  $("shift").value = state.shift;
  redraw = chart("heat", paintHeat);
  const tie = (id, event, change) => $(id).addEventListener(event, () => { change($(id).value); state.page = 0; show(); });
  tie("role", "change", (value) => { state.role = Number(value); });
  tie("limits", "change", (value) => { state.limits = Number(value); });
  tie("shift", "input", (value) => { state.shift = Number(value); });
  tie("filter", "input", (value) => { state.filter = value; state.exact = null; });
  tie("only", "change", (value) => { state.only = value; });
  tie("rows", "change", (value) => { state.rows = value; });
  tie("order", "change", (value) => { const [, , column, down] = ORDERS.find(([name]) => name === value); state.order = { column, down }; });
  const turn = (by) => () => { state.page += by; show(); };
  $("back").addEventListener("click", turn(-1));
  $("next").addEventListener("click", turn(1));
  $("heat").addEventListener("keydown", walk);
  show();
}

function startCurves() {
  if (!$("curves")) return;
  const layers = values.layers.map((layer, index) => [index, layer]).filter(([, layer]) => curvesOf(layer).length);
  fill($("curve-layer"), [["", "all together, and those that lose most"], ...layers.map(([index, layer]) => [index, shortened(layer[NAME], 60)])], "");
  $("curve-layer").addEventListener("change", chart("curves", paintCurves));
}

/** The name of a layer, wherever it is told, leads to the layer among the others. */
function goTo(name) {
  if (!$("heat")) return;
  const index = values.layers.findIndex((layer) => layer[NAME] === name);
  if (index < 0) return;
  state.filter = state.exact = name;
  state.only = "";
  state.page = 0;
  $("filter").value = name;
  $("only").value = "";
  if (!values.layers[index][SITES][state.role]) {
    state.role = Math.max(0, values.layers[index][SITES].findIndex(Boolean));
    $("role").value = state.role;
  }
  show();
  if ($("curve-layer") && [...$("curve-layer").options].some((option) => option.value === String(index))) {
    $("curve-layer").value = index;
    if (charts.get("curves").drawn) paintCurves();
  }
  $("layers").scrollIntoView();
  $("filter").focus({ preventScroll: true });
}

function colorsFollow() {
  const root = document.documentElement;
  const apply = (choice) => {
    root.dataset.theme = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
    repaint();
  };
  $("theme").addEventListener("change", () => apply($("theme").value));
  dark.addEventListener("change", () => apply($("theme").value));
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    paper = true;
    loadLibrary();
    for (const one of charts.values()) draw(one);
  });
  addEventListener("afterprint", () => { paper = false; apply($("theme").value); });
  $("print").addEventListener("click", () => print());
  apply("auto");
}

let was = narrow();
addEventListener("resize", () => {
  if (was !== narrow()) {
    was = narrow();
    repaint();
  }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.layer");
  if (button) goTo(button.dataset.layer);
});
colorsFollow();
startLayers();
startCurves();
if ($("time")) chart("time", paintTime);
if ($("proof-chart")) chart("proof-chart", paintProof);
startOperators();
document.documentElement.dataset.ready = "yes";
if (charts.size) setTimeout(loadLibrary, 30);
