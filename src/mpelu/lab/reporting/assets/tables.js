// Tables that can be copied.

/** columns: of {name, number}; rows: of cells, strings or {text, node, sort}. */
function table(id, caption, columns, rows) {
  const plain = rows.map((row) => row.map((cell) => (typeof cell === "string" ? cell : cell.text)));
  const names = columns.map((column) => column.name);
  const copy = (what, text) =>
    button(`Copy as ${what}`, () => copyText(text(), what), {
      "aria-label": `Copy as ${what}: ${caption}`,
    });
  return el(
    "div",
    { class: "table", id },
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      el(
        "table",
        {},
        el("caption", {}, caption),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            columns.map(({ name, number }) =>
              el("th", { scope: "col", class: number ? "number" : null }, name),
            ),
          ),
        ),
        el(
          "tbody",
          {},
          rows.map((row) =>
            el(
              "tr",
              {},
              row.map((cell, i) => {
                const content = typeof cell === "string" ? cell : cell.node || cell.text;
                if (i === 0) return el("th", { scope: "row" }, content);
                return el("td", { class: columns[i].number ? "number" : null }, content);
              }),
            ),
          ),
        ),
      ),
    ),
    el(
      "div",
      { class: "tools" },
      copy("Markdown", () => markdown(names, plain)),
      copy("CSV", () => csv(names, plain)),
    ),
  );
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

/** Text that a spreadsheet would take for a formula gets an apostrophe before it. */
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
    /* pages from disk have no clipboard in some browsers */
  }
  const area = el("textarea", { class: "stage", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  say(done ? `Copied as ${what}.` : "This browser doesn't let a page copy.");
}
