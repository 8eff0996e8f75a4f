// The learned parameters of activations.

function learnedSection(data) {
  const runs = data.runs.filter((run) => run.learned.length);
  if (!runs.length) return null;
  const place = el("div");
  const options = runs.map((run) => ({ value: fullName(run), text: fullName(run), run }));
  const fillPlace = () => {
    const { run } = chosenOption("learned-run", options);
    place.replaceChildren(...run.learned.map(learnedPart));
  };
  const picker = select("learned-run", "Run", options, fillPlace);
  fillPlace();
  return section("learned", "Learned parameters", el("p", { class: "facts" }, picker), place);
}

function learnedPart(kind) {
  const last = kind.epochs.length - 1;
  const id = `learned-${kind.name}`;
  const start = Math.min(recall(`${id}-epoch`, last), last);
  const series = (index) => [
    {
      key: "now",
      name: `epoch ${kind.epochs[index]}`,
      bars: kind.edges,
      x: [],
      y: kind.counts[index],
      ...look(0),
    },
    {
      key: "first",
      name: `epoch ${kind.epochs[0]}`,
      bars: kind.edges,
      x: [],
      y: kind.counts[0],
      ...look(1),
      dash: 1,
      thin: true,
    },
  ];
  const top = (index) => [0, Math.max(1, ...kind.counts[index]) * 1.15];
  const histogram = new Chart({
    id: `${id}-histogram`,
    title: `Histogram: ${kind.label}`,
    xLabel: kind.label,
    yLabel: `channels (of ${whole(kind.values)})`,
    series: series(start),
    yRange: top(start),
    note: last
      ? "The axis is scaled to the selected epoch; the outline of the first may extend beyond it."
      : null,
  });
  const layers = kind.layers.names.map((_, i) => i + 1);
  const quartiles = (rows, name, index) => ({
    key: name,
    name,
    x: layers,
    y: rows.map((q) => q[1]),
    low: rows.map((q) => q[0]),
    high: rows.map((q) => q[2]),
    names: kind.layers.names,
    ...look(index),
  });
  const complete = kind.layers.first.every((q) => q[0] !== null);
  const depth = new Chart({
    id: `${id}-layers`,
    title: `By layer: ${kind.label}`,
    xLabel: `activation, ${kind.layers.in_depth ? "counted from the input" : "in order of name"}`,
    yLabel: `${kind.label}: median and quartiles`,
    integers: true,
    series: [
      quartiles(kind.layers.last, `epoch ${kind.epochs[last]}`, 0),
      ...(last && complete
        ? [{ ...quartiles(kind.layers.first, `epoch ${kind.epochs[0]}`, 1), dash: 1 }]
        : []),
    ],
  });
  const label = el("output", {}, `epoch ${kind.epochs[start]}`);
  const slider = el("input", {
    type: "range",
    id: `${id}-epoch`,
    min: 0,
    max: last,
    value: start,
    step: 1,
    "aria-label": `Epoch of the histogram: ${kind.label}`,
    oninput: () => {
      const index = remember(`${id}-epoch`, Number(slider.value));
      label.textContent = `epoch ${kind.epochs[index]}`;
      slider.setAttribute("aria-valuetext", label.textContent);
      histogram.update({ series: series(index), yRange: top(index) });
      histogram.drawLegend();
    },
  });
  const control = last
    ? el("label", { class: "field" }, "Histogram at ", slider, " ", label)
    : null;
  return el(
    "div",
    {},
    el("h3", {}, kind.label),
    control,
    el("div", { class: "grid" }, histogram.node, depth.node),
  );
}
