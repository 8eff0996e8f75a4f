// The paper's tables next to the measured ones.

const SMOKE =
  "A smoke test: a few steps on toy data, to show that everything runs. " +
  "The numbers are not measurements.";

const LONG = 12;

function resultsSection(results) {
  if (!results.length) return null;
  const name = (result) =>
    results.filter(({ recipe }) => recipe === result.recipe).length > 1
      ? `${result.recipe} (${result.scale})`
      : result.recipe;
  const links = results.map((result, i) =>
    el("li", {}, el("a", { href: `#result-${i}` }, result.problem ? result.set : name(result))),
  );
  return section(
    "results",
    results.some(({ headline }) => headline) ? "Results" : "Paper and measurement",
    results.length > 2 ? el("nav", { "aria-label": "Tables" }, el("ul", {}, links)) : null,
    results.map(resultPart),
  );
}

function resultPart(result, index) {
  const id = `result-${index}`;
  if (result.problem) {
    return el(
      "article",
      { id },
      el("h3", {}, result.set),
      el("p", { class: "problem" }, result.problem),
    );
  }
  const facts = [
    ["scale", result.scale],
    ["seeds", result.seeds === null ? "unknown" : String(result.seeds)],
    ["data", result.data || "unknown"],
  ];
  const rows = result.rows.length ? resultTable(id, result) : null;
  const notes = result.notes.length
    ? el(
        "ul",
        { class: "note" },
        result.notes.map((note) => el("li", {}, note)),
      )
    : null;
  const plots = result.plots.length
    ? el(
        "div",
        { class: "grid" },
        result.plots.map((plot, i) => resultPlot(`${id}-plot-${i}`, plot)),
      )
    : null;
  return el(
    "article",
    { id, "aria-labelledby": `${id}-title` },
    el(
      "h3",
      { id: `${id}-title` },
      result.title ? `${result.recipe}: ${result.title}` : result.recipe,
    ),
    result.headline
      ? el("p", { class: "headline" }, result.headline)
      : el(
          "p",
          { class: "facts" },
          facts.map(([name, value]) => el("span", {}, `${name}: `, el("b", {}, value))),
        ),
    result.smoke ? el("p", { class: "smoke" }, SMOKE) : null,
    result.shrunk.length
      ? el("p", { class: "note" }, `Reduced from the paper: ${result.shrunk.join("; ")}.`)
      : null,
    // A long table comes last.
    result.headline && result.rows.length > LONG ? [notes, plots, rows] : [rows, notes, plots],
  );
}

function resultTable(id, result) {
  // From measured column to the paper's; a smoke test measures nothing that could be compared.
  const compared = new Map(
    result.smoke ? [] : result.compare.map(([paper, measured]) => [measured, paper]),
  );
  const columns = [];
  const cells = result.rows.map(() => []);
  result.header.forEach((name, column) => {
    columns.push({ name, number: result.rows.some((row) => row[column].value !== null) });
    result.rows.forEach((row, i) =>
      cells[i].push(
        row[column].text || (row[column].value === null ? "" : show(row[column].value, 6)),
      ),
    );
    if (!compared.has(column)) return;
    columns.push({ name: "measured − paper", number: true });
    result.rows.forEach((row, i) =>
      cells[i].push(difference(row[compared.get(column)].value, row[column].value)),
    );
  });
  return [
    table(
      `${id}-table`,
      result.headline ? result.recipe : `${result.recipe} (${result.scale})`,
      columns,
      cells,
    ),
    compared.size
      ? el(
          "p",
          { class: "note key" },
          "measured − paper: ",
          el("span", { class: "lower far" }, "▼ lower"),
          " ",
          el("span", { class: "higher far" }, "▲ higher"),
          "; shaded from 2 % of the paper’s value, bold from 10 %.",
        )
      : null,
  ];
}

function difference(paper, measured) {
  if (paper === null || measured === null) return "–";
  const value = measured - paper;
  if (Math.abs(value) < 1e-9) return { text: "0", node: el("span", { class: "same" }, "= 0") };
  const part = Math.abs(value) / Math.max(Math.abs(paper), 1e-12);
  const size = part >= 0.1 ? "far" : part >= 0.02 ? "some" : "close";
  const text = (value > 0 ? "+" : "") + show(value, 3);
  return {
    text,
    node: el(
      "span",
      { class: `${value > 0 ? "higher" : "lower"} ${size}` },
      `${value > 0 ? "▲" : "▼"} ${text}`,
    ),
  };
}

function resultPlot(id, plot) {
  const found = seriesLooks(plot.series.map(({ color }) => color));
  const [low, high] = plot.y_range || [0, 0];
  const margin = 0.02 * (high - low);
  return new Chart({
    id,
    title: plot.title || "Plot",
    xLabel: plot.x_label,
    yLabel: plot.y_label,
    logX: plot.log_x,
    logY: plot.log_y,
    logToggle: true,
    series: plot.series.map((series, i) => ({ key: `${i}`, ...series, ...found[i] })),
    yRange: plot.y_range ? [low - margin, high + margin] : null,
  }).node;
}
