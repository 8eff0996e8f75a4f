// The signal by depth, from `mpelu inspect`.

const QUANTITIES = {
  variance: { text: "variance of outputs", log: true },
  signal: { text: "variance between samples", log: true },
  mean: { text: "mean of outputs", log: false },
  gradient: { text: "mean square of the gradient", log: true },
  positive: { text: "share of inputs above 0", log: false },
  dead: { text: "share of dead units", log: false },
  saturated: { text: "share of saturated units", log: false },
  linear: { text: "share of linear units", log: false },
  never_positive: { text: "share of units never above 0", log: false },
};

function depthSection(data) {
  const runs = data.runs.filter((run) => run.inspected);
  if (!runs.length) return null;
  const quantities = Object.keys(QUANTITIES).filter((name) =>
    runs.some((run) => run.inspected.measured[name]),
  );
  const kinds = [...new Set(runs.flatMap((run) => run.inspected.kinds))];
  const weighted = kinds.filter((kind) => kind === "conv" || kind === "linear");
  const kindOptions = [
    ...(weighted.length ? [{ value: "weighted", text: "conv and linear" }] : []),
    ...kinds.map((kind) => ({ value: `kind:${kind}`, text: kind })),
    { value: "all", text: "all" },
  ];
  const place = el("div");
  const choices = chartChoices(runs, data.results);
  const quantityOptions = quantities.map((value) => ({ value, text: QUANTITIES[value].text }));
  if (!quantityOptions.length) return null;
  const redraw = () => {
    const quantity = chosenOption("depth-quantity", quantityOptions).value;
    const kind = chosenOption("depth-kind", kindOptions).value;
    const wanted = (each) =>
      kind === "all" || (kind === "weighted" ? weighted.includes(each) : `kind:${each}` === kind);
    const shown = chosenOption("depth-set", choices).runs;
    place.replaceChildren(depthPlot(shown, quantity, kind, wanted).node);
  };
  redraw();
  return section(
    "depth",
    "Signal by depth",
    el(
      "p",
      { class: "facts" },
      select("depth-set", "Runs of", choices, redraw),
      select("depth-quantity", "Quantity", quantityOptions, redraw),
      select("depth-kind", "Layers", kindOptions, redraw),
    ),
    place,
  );
}

function depthPlot(runs, quantity, kind, wanted) {
  const measured = runs.filter((run) => run.inspected.measured[quantity]);
  const looks = new Map(
    groupsOf(measured).flatMap(({ members, color, dash }) =>
      members.map((run, i) => [run, { color, dash: (dash + i) % DASHES }]),
    ),
  );
  const series = measured.map((run) => {
    const { names, kinds, measured: values } = run.inspected;
    const layers = names
      .map((_, i) => i)
      .filter((i) => wanted(kinds[i]) && values[quantity][i] !== null);
    return {
      key: fullName(run),
      name: run.name,
      x: layers.map((_, i) => i + 1),
      y: layers.map((i) => values[quantity][i]),
      names: layers.map((i) => names[i]),
      ...looks.get(run),
    };
  });
  const images = [
    ...new Set(runs.map((run) => run.inspected.images).filter((count) => count !== null)),
  ];
  return new Chart({
    id: `depth-${quantity}-${kind.replace(/[^a-z]/g, "-")}`,
    title: `By layer: ${QUANTITIES[quantity].text}`,
    xLabel: "layer, counted from the input",
    yLabel: QUANTITIES[quantity].text,
    logY: QUANTITIES[quantity].log,
    logToggle: true,
    integers: true,
    series,
    note: images.length === 1 ? `Measured on ${whole(images[0])} images.` : null,
  });
}
