// What the signal does with depth, from `mpelu inspect`.

const QUANTITIES = {
  variance: { text: "variance of the output", log: true },
  mean: { text: "mean of the output", log: false },
  linear_share: { text: "share in the linear part", log: false },
  dead_share: { text: "share of dead units", log: false },
  saturated_share: { text: "share of saturated units", log: false },
  never_positive_share: { text: "share of units never positive", log: false },
  gradient_norm: { text: "norm of the gradient", log: true },
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
  const sets = setsOf(runs, data.results);
  const valid = (id, options) => {
    const now = recall(id, options[0].value);
    return options.some(({ value }) => value === now) ? now : options[0].value;
  };
  const quantityOptions = quantities.map((value) => ({ value, text: QUANTITIES[value].text }));
  if (!quantityOptions.length) return null;
  const redraw = () => {
    const quantity = valid("depth-quantity", quantityOptions);
    const kind = valid("depth-kind", kindOptions);
    const wanted = (each) =>
      kind === "all" || (kind === "weighted" ? weighted.includes(each) : `kind:${each}` === kind);
    place.replaceChildren(
      depthPlot(inSet(runs, valid("depth-set", sets)), quantity, kind, wanted).node,
    );
  };
  redraw();
  return section(
    "depth",
    "Signal by depth",
    el(
      "p",
      { class: "facts" },
      select("depth-set", "Runs of", sets, redraw),
      select("depth-quantity", "Quantity", quantityOptions, redraw),
      select("depth-kind", "Layers", kindOptions, redraw),
    ),
    place,
  );
}

function depthPlot(runs, quantity, kind, wanted) {
  const measured = runs.filter((run) => run.inspected.measured[quantity]);
  const looks = new Map(
    groupsOf(measured, "all").flatMap(({ members, color }) =>
      members.map((run, i) => [run, { color, dash: i % DASHES }]),
    ),
  );
  const series = measured.map((run) => {
    const { names, kinds, measured: values } = run.inspected;
    const layers = names
      .map((_, i) => i)
      .filter((i) => wanted(kinds[i]) && values[quantity][i] !== null);
    return {
      key: run.set + "/" + run.name,
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
