// Tables that are sorted by the headings of their columns, which are buttons.

/** Draw a table; columns are {title, key, cell, numeric}, `order` is {column, down} and `sorted` is called to change it. */
function fillTable(table, columns, rows, order, sorted) {
  const head = element("tr", "");
  columns.forEach((column, index) => {
    const cell = element("th", column.numeric ? "number" : "");
    cell.scope = "col";
    if (sorted && column.key) {
      const mine = order.column === index;
      const mark = element("span", "mark", mine ? (order.down ? "\u25bc" : "\u25b2") : "");
      mark.setAttribute("aria-hidden", "true");
      const button = element("button", "sorter", column.title, mark);
      button.type = "button";
      button.dataset.column = index;
      button.addEventListener("click", () => {
        sorted({ column: index, down: mine ? !order.down : Boolean(column.numeric) });
        table.querySelector(`button[data-column="${index}"]`)?.focus();
      });
      cell.setAttribute("aria-sort", mine ? (order.down ? "descending" : "ascending") : "none");
      cell.append(button);
    } else cell.append(column.title);
    head.append(cell);
  });
  const body = element("tbody", "");
  for (const row of rows) {
    const line = element("tr", "");
    columns.forEach((column, index) => {
      const cell = element(index ? "td" : "th", column.numeric ? "number" : "");
      if (!index) cell.scope = "row";
      const inner = column.cell(row);
      if (inner !== null && inner !== undefined) cell.append(inner);
      line.append(cell);
    });
    body.append(line);
  }
  table.replaceChildren(...table.querySelectorAll("caption"), element("thead", "", head), body);
}

/** Rows in the order of a column; equal ones stay as they were. */
function inOrder(rows, column, down) {
  const keyed = rows.map((row, index) => [column.key(row), index, row]);
  keyed.sort(([a, i], [b, j]) => {
    const by = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return (down ? -by : by) || i - j;
  });
  return keyed.map((entry) => entry[2]);
}

/** A number of the report as a number: infinities and NaN are written as words. */
const numeric = (told) => (told === "" || told === "nan" ? -1 : told === "inf" ? Infinity : Number(told));

// --- operators

const OPERATORS = [
  { title: "Operator", key: (row) => row[0], cell: (row) => row[0] },
  { title: "Layer", key: (row) => row[1], cell: (row) => (row[1] ? layerButton(row[1]) : "") },
  { title: "Line", key: (row) => row[2], cell: (row) => element("div", "", element("span", "place", row[2]), row[3] ? element("code", "line", row[3]) : null) },
  { title: "Trouble", key: (row) => row[4], cell: (row) => element("span", `badge ${row[4] === "overflow" || row[4] === "banned" ? "error" : "warning"}`, row[4]) },
  { title: "Pass", key: (row) => row[12], cell: (row) => row[12] },
  { title: "Under", key: (row) => row[5], cell: (row) => row[5] },
  { title: "dtype", key: (row) => row[6], cell: (row) => row[6] },
  { title: "Reaches", numeric: true, key: (row) => numeric(row[7][1]), cell: (row) => row[7][0] },
  { title: "Lost", numeric: true, key: (row) => row[8], cell: (row) => share(row[8]) },
  { title: "Error", numeric: true, key: (row) => row[9] ?? Infinity, cell: (row) => (row[9] === null ? "not finite" : row[9] ? row[9].toPrecision(2) : "0") },
  { title: "FLOPs", numeric: true, key: (row) => row[10], cell: (row) => (row[10] ? row[10].toExponential(1) : "0") },
  { title: "Casts", numeric: true, key: (row) => row[11], cell: (row) => String(row[11]) },
];

function startOperators() {
  if (!$("operators-table")) return;
  // Columns in which no operator has anything are not shown, but for the first ones.
  const columns = OPERATORS.filter((column, index) => index < 5 || values.operators.some((row) => column.numeric ? column.key(row) !== 0 : column.key(row)));
  let order = { column: -1, down: false };
  fill($("operator-trouble"), [["", "any"], ...[...new Set(values.operators.map((row) => row[4]))].sort().map((one) => [one, one])], "");
  const show = () => {
    const wanted = $("operator-filter").value.trim().toLowerCase(), trouble = $("operator-trouble").value;
    let rows = values.operators.filter((row) => (!trouble || row[4] === trouble) && (!wanted || row.slice(0, 4).join(" ").toLowerCase().includes(wanted)));
    $("operators-count").textContent = `${rows.length} of ${count(values.operators.length, "operator")}`;
    if (order.column >= 0) rows = inOrder(rows, columns[order.column], order.down);
    fillTable($("operators-table"), columns, rows, order, (chosen) => { order = chosen; show(); });
  };
  $("operator-filter").addEventListener("input", show);
  $("operator-trouble").addEventListener("change", show);
  show();
}
