// MPELU with sliders for alpha and beta: shape, slope, special cases and second moment.

const BREAK = INPUTS.indexOf(0) + 1; // the slope jumps at zero, so its curve is interrupted there
const SLOPE_INPUTS = [...INPUTS.slice(0, BREAK), 0, 1e-9, ...INPUTS.slice(BREAK)];
const SIGMAS = Array.from({ length: 161 }, (_, i) => Math.pow(10, -1.5 + (3 * i) / 160));

function explorer() {
  const now = recall("explorer", { alpha: 1, beta: 1 });
  const view = explorerCharts();
  const fields = {
    alpha: explorerField("alpha", "α", change),
    beta: explorerField("beta", "β", change),
  };
  const buttons = CASES.map((c) =>
    button(`${c.name} (${c.alpha}, ${c.beta})`, () => change({ alpha: c.alpha, beta: c.beta }), {
      class: "case",
    }),
  );
  const says = el("p", { id: "explorer-verdict", class: "verdict", role: "status" });
  const differences = el("tbody", { id: "explorer-differences" });
  const values = el("dl", { class: "values" });

  function change(part) {
    Object.assign(now, part);
    remember("explorer", now);
    const { alpha, beta } = now;
    for (const name of ["alpha", "beta"]) fields[name].set(now[name]);
    CASES.forEach((c, i) =>
      buttons[i].setAttribute("aria-pressed", c.alpha === alpha && c.beta === beta),
    );
    says.textContent = verdict(alpha, beta);
    differences.replaceChildren(
      ...CASES.map((c) => {
        const { distance, at } = farthest(c.curve, alpha, beta);
        return el(
          "tr",
          {},
          el("th", { scope: "row" }, c.name),
          el("td", { "data-case": c.name, "data-value": distance }, show(distance)),
          el("td", {}, distance ? show(at, 3) : "–"),
        );
      }),
    );
    showValues(values, alpha, beta);
    view.change(alpha, beta);
  }

  change({});
  return section(
    "explorer",
    "Activation explorer",
    el(
      "p",
      {},
      "f(y) = y for y > 0 and α (e",
      el("sup", {}, "βy"),
      " − 1) for y ≤ 0. α sets the lower limit, −α; β sets how fast the curve approaches it.",
    ),
    el("div", { class: "controls" }, fields.alpha.node, fields.beta.node),
    el("div", { class: "cases", role: "group", "aria-label": "Special cases" }, buttons),
    says,
    el("div", { class: "grid" }, view.nodes),
    el(
      "div",
      { class: "grid" },
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Differences" },
        el(
          "table",
          {},
          el("caption", {}, "Largest difference from each special case for −5 ≤ y ≤ 3"),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["curve", "difference", "at y ="].map((h) => el("th", { scope: "col" }, h)),
            ),
          ),
          differences,
        ),
      ),
      values,
    ),
  );
}

function explorerField(name, letter, change) {
  const { positions, value, position } = SCALES[name];
  const [least, most] = BOUNDS[name];
  const slider = el("input", {
    type: "range",
    id: `${name}-slider`,
    min: 0,
    max: positions,
    step: 1,
    "aria-label": `${letter} (${name}), slider`,
    oninput: () => change({ [name]: value(Number(slider.value)) }),
  });
  const exact = el("input", {
    type: "number",
    id: `${name}-number`,
    min: least,
    max: most,
    step: "any",
    "aria-label": `${letter} (${name})`,
    oninput: () => {
      const typed = exact.valueAsNumber;
      const valid = typed >= least && typed <= most;
      exact.setAttribute("aria-invalid", !valid);
      if (valid) change({ [name]: typed });
    },
  });
  return {
    node: el(
      "div",
      { class: "slider" },
      el("label", { for: `${name}-number` }, `${letter} =`),
      exact,
      slider,
      el("span", { class: "hint" }, `${value(0)} to ${value(positions)}`),
    ),
    set(current) {
      if (document.activeElement !== exact) {
        exact.value = current;
        exact.setAttribute("aria-invalid", false);
      }
      if (document.activeElement !== slider || value(Number(slider.value)) !== current)
        slider.value = position(current);
      slider.setAttribute("aria-valuetext", show(current, 6));
    },
  };
}

/** Weights are scaled for the second moment of Taylor; the signal follows the exact one. */
function varianceAfter(layers, alpha, beta) {
  let variance = 1;
  for (let layer = 0; layer < layers; layer++)
    variance = moments(alpha, beta, variance).second / taylorSecond(alpha, beta, 1);
  return variance;
}

function showValues(list, alpha, beta) {
  const { mean, second } = moments(alpha, beta, 1);
  const taylor = taylorSecond(alpha, beta, 1);
  const rows = [
    ["slope-below", "slope just below 0: αβ", alpha * beta],
    ["floor", "limit for y → −∞: −α", -alpha],
    ["mean", "mean E[f] for y ~ N(0, 1)", mean],
    ["second", "exact second moment E[f²]", second],
    ["taylor", "Taylor second moment (1 + α²β²) / 2", taylor],
    ["ratio", "exact / Taylor", second / taylor],
    [
      "depth",
      "variance of y after 30 layers with Taylor initialization, starting from 1",
      varianceAfter(30, alpha, beta),
    ],
  ];
  list.replaceChildren(
    ...rows.flatMap(([id, label, value]) => [
      el("dt", {}, label),
      el("dd", { id: `explorer-${id}`, "data-value": value }, show(value, 5)),
    ]),
  );
}

function explorerCharts() {
  const [own] = seriesLooks(["mpelu"]);
  const references = CASES.map((c) => ({
    key: c.name,
    name: c.name,
    x: INPUTS,
    y: INPUTS.map(c.curve),
    ...seriesLooks([c.activation])[0],
    dash: 1,
    thin: true,
  }));
  if (!chosen.has("shape-hidden"))
    remember("shape-hidden", new Set(["leaky ReLU 0.01", "identity"]));
  const shape = new Chart({
    id: "shape",
    title: "Shape",
    xLabel: "input y",
    yLabel: "output f(y)",
    series: [{ key: "MPELU", name: "MPELU", x: [], y: [], bold: true, ...own }, ...references],
    xRange: [DRAWN.from, DRAWN.to],
    yRange: [-5, 3],
  });
  const slope = new Chart({
    id: "slope",
    title: "Slope",
    xLabel: "input y",
    yLabel: "slope f′(y)",
    series: [{ key: "MPELU", name: "MPELU", x: [], y: [], ...own }],
    xRange: [DRAWN.from, DRAWN.to],
    legend: false,
  });
  const moment = new Chart({
    id: "moment",
    title: "Second moment",
    xLabel: "standard deviation σ of the input",
    yLabel: "E[f²] / σ² for y ~ N(0, σ²)",
    logX: true,
    logToggle: true,
    series: [
      { key: "exact", name: "exact", x: SIGMAS, y: [], ...look(0) },
      { key: "taylor", name: "Taylor", x: SIGMAS, y: [], ...look(1), dash: 1 },
    ],
  });
  return {
    nodes: [shape.node, slope.node, moment.node],
    change(alpha, beta) {
      Object.assign(shape.spec.series[0], {
        x: INPUTS,
        y: INPUTS.map((y) => mpelu(y, alpha, beta)),
      });
      Object.assign(slope.spec.series[0], {
        x: SLOPE_INPUTS,
        y: SLOPE_INPUTS.map((y, i) => (i === BREAK ? null : mpeluSlope(y, alpha, beta))),
      });
      const exact = SIGMAS.map((s) => moments(alpha, beta, s * s).second / (s * s));
      const taylor = taylorSecond(alpha, beta, 1);
      Object.assign(moment.spec.series[0], { y: exact });
      Object.assign(moment.spec.series[1], { y: SIGMAS.map(() => taylor) });
      shape.draw();
      slope.update({
        yRange: [Math.min(0, alpha * beta) * 1.05 - 0.05, Math.max(1, alpha * beta) * 1.05],
      });
      moment.update({
        yRange: [0, Math.max(taylor, ...exact) * 1.08],
        marks: [{ x: 1, y: moments(alpha, beta, 1).second }],
      });
    },
  };
}
