// Tables that can be copied and, if wanted, sorted.

// The longest text of a column, in characters, decides how it is laid out.
const SHORT_TEXT = 20; // never wrapped up to here
const LONG_TEXT = 40; // wide enough for sentences from here

/**
 * columns: of {name, number}; rows: of cells, which are strings or {text, node, sort}. With
 * `sortable`, a click on the name of a column sorts by its cells' `sort`, or by their texts.
 */
function table(id, caption, columns, rows, { sortable = false } = {}) {
  const cells = rows.map((row) =>
    row.map((cell) => (typeof cell === "string" ? { text: cell } : cell)),
  );
  const looks = columns.map(({ number }, i) => {
    const longest = Math.max(0, ...cells.map((row) => row[i].text.length));
    if (number) return "number";
    return longest <= SHORT_TEXT ? "short" : longest <= LONG_TEXT ? "phrase" : "sentence";
  });
  const body = el("tbody");
  let shown = cells;

  function fillBody() {
    const order = sortable ? recall(`${id}-sort`, null) : null;
    shown = order ? sorted(cells, order) : cells;
    body.replaceChildren(
      ...shown.map((row) =>
        el(
          "tr",
          {},
          row.map(({ text, node }, i) =>
            i === 0
              ? el("th", { scope: "row" }, node || text)
              : el("td", { class: looks[i] }, node || text),
          ),
        ),
      ),
    );
  }

  const heads = columns.map(({ name }, column) => {
    const label = name.replaceAll(" %", "\u00a0%");
    if (!sortable) return el("th", { scope: "col", class: looks[column] }, label);
    const sort = button(
      label,
      () => {
        remember(`${id}-sort`, nextOrder(recall(`${id}-sort`, null), column));
        markHeads();
        fillBody();
      },
      { id: `${id}-sort-${column}`, class: "sort", title: `Sort by ${name}` },
    );
    return el("th", { scope: "col", class: looks[column] }, sort);
  });

  function markHeads() {
    const order = recall(`${id}-sort`, null);
    heads.forEach((head, column) => {
      if (!order || order.column !== column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    });
  }

  markHeads();
  fillBody();
  const names = columns.map(({ name }) => name);
  const copy = (what, format) =>
    button(
      `Copy as ${what}`,
      () =>
        copyText(
          format(
            names,
            shown.map((row) => row.map(({ text }) => text)),
          ),
          what,
        ),
      { "aria-label": `Copy as ${what}: ${caption}` },
    );
  return el(
    "div",
    { class: "table", id },
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body),
    ),
    el("div", { class: "tools" }, copy("Markdown", markdown), copy("CSV", csv)),
  );
}

/** Ascending, then descending, then as it came. */
function nextOrder(order, column) {
  if (!order || order.column !== column) return { column, descending: false };
  return order.descending ? null : { column, descending: true };
}

/** The rows in order; cells without a value come last either way. */
function sorted(rows, { column, descending }) {
  const key = (row) => ("sort" in row[column] ? row[column].sort : row[column].text);
  const isEmpty = (value) => value === null || value === "";
  return [...rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (isEmpty(a) || isEmpty(b)) return Number(isEmpty(a)) - Number(isEmpty(b));
    const order =
      typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    return descending ? -order : order;
  });
}

function markdown(names, rows) {
  const safe = (text) =>
    text
      .replace(/\s+/g, " ")
      .replace(/&/g, "&amp;")
      .replace(/</g, "&lt;")
      .replace(/>/g, "&gt;")
      .replace(/([\\|`*_[\]])/g, "\\$1");
  const line = (cells) => `| ${cells.map(safe).join(" | ")} |\n`;
  return line(names) + `|${names.map(() => "---|").join("")}\n` + rows.map(line).join("");
}

/** Text that a spreadsheet would take for a formula gets an apostrophe in front. */
function csv(names, rows) {
  const safe = (text) => {
    const plain = text.replace(/^−/, "-");
    const inert = /^[=+\-@\t\r]/.test(plain) && !/^[+-][\d.,]+$/.test(plain) ? "'" + plain : plain;
    return /[",\r\n]/.test(inert) ? `"${inert.replace(/"/g, '""')}"` : inert;
  };
  return [names, ...rows].map((cells) => cells.map(safe).join(",") + "\r\n").join("");
}

async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`Copied as ${what}.`);
    return;
  } catch {
    /* some browsers give pages from disk no clipboard */
  }
  const area = el("textarea", { class: "stage", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  say(done ? `Copied as ${what}.` : "This browser doesn't allow copying.");
}
