// Draws a plot: axes, then curves inside a frame.

const CHARACTER = 7; // approximate width of a character, in pixels

function drawPlot(chart) {
  const { spec, drawing } = chart;
  const shown = chart.shown();
  const { x: xRange, y: yRange } = rangesOf(chart, shown);
  const height = drawing.clientHeight;
  const yTicks = chart.logY ? logTicks(...yRange, 6) : linearTicks(...yRange, height / 55, false);
  const yTexts = tickTexts(yTicks, chart.logY);
  const left = 16 + CHARACTER * Math.max(2, ...yTexts.map((text) => text.length));
  const right = drawing.clientWidth - 14;
  const frame = (chart.frame = { left, right, top: 28, bottom: height - 44 });
  chart.x = scale(...xRange, left, right, spec.logX);
  chart.y = scale(...yRange, frame.bottom, frame.top, chart.logY);
  chart.range = { x: xRange, y: yRange };
  const count = (right - left) / 70;
  const xTicks = spec.logX
    ? logTicks(...xRange, count)
    : linearTicks(...xRange, count, spec.integers);
  chart.rubber = svgEl("rect", { class: "rubber transient", width: 0, height: 0 });
  const inside = { x: left, y: frame.top, width: right - left, height: frame.bottom - frame.top };
  drawing.replaceChildren(
    svgEl("clipPath", { id: chart.clip }, svgEl("rect", inside)),
    ...axisY(chart, yTicks, yTexts),
    ...axisX(chart, xTicks, tickTexts(xTicks, spec.logX)),
    svgEl(
      "g",
      { "clip-path": `url(#${chart.clip})` },
      shown.map((series) => drawSeries(chart, series)),
      marks(chart),
    ),
    emptiness(chart, shown),
    chart.rubber,
  );
}

function rangesOf({ spec, view, logY }, shown) {
  if (view) return view;
  const xs = shown.map((series) => series.bars || series.x);
  const ys = shown.flatMap(({ y, low, high }) => (low ? [y, low, high] : [y]));
  const [low, high] = spec.xRange || extent(xs, spec.logX, 0.01);
  const least = spec.integers && high - low < 1 ? 0.5 : 0; // a single epoch: show some space around it
  return {
    x: [low - least, high + least],
    y: (!logY && spec.yRange) || extent(ys, logY, 0.05),
  };
}

function axisY(chart, ticks, texts) {
  const { left, right, top, bottom } = chart.frame;
  const lines = ticks.map((tick, i) => {
    const y = chart.y(tick);
    return [
      svgEl("line", { class: "rule", x1: left, x2: right, y1: y, y2: y }),
      svgEl("text", { class: "scale end", x: left - 7, y: y + 4 }, texts[i]),
    ];
  });
  const label = chart.spec.yLabel + (chart.logY ? " (log scale)" : "");
  return [
    ...lines.flat(),
    svgEl("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }),
    svgEl("text", { class: "label", x: 4, y: 16 }, ...fitting(label, right)),
  ];
}

function axisX(chart, ticks, texts) {
  const { left, right, top, bottom } = chart.frame;
  let free = -Infinity;
  const lines = ticks.map((tick, i) => {
    const x = chart.x(tick);
    const half = (CHARACTER * texts[i].length) / 2 + 4;
    const line = svgEl("line", { class: "rule", x1: x, x2: x, y1: top, y2: bottom });
    if (x - half < free) return [line]; // its label would touch the previous one
    free = x + half;
    return [line, svgEl("text", { class: "scale middle", x, y: bottom + 17 }, texts[i])];
  });
  return [
    ...lines.flat(),
    svgEl("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    svgEl(
      "text",
      { class: "label end", x: right, y: bottom + 37 },
      ...fitting(chart.spec.xLabel, right),
    ),
  ];
}

/** A text cut to a width, with the whole text as a tooltip. */
function fitting(text, width) {
  const most = Math.max(8, Math.floor(width / CHARACTER));
  if (text.length <= most) return [text];
  return [text.slice(0, most - 1) + "…", svgEl("title", {}, text)];
}

function emptiness({ spec, frame }, shown) {
  if (shown.some((series) => series.y.some((value) => value !== null))) return "";
  const place = { x: (frame.left + frame.right) / 2, y: (frame.top + frame.bottom) / 2 };
  const why =
    spec.series.length && !shown.length ? "no series selected" : "no data yet";
  return svgEl("text", { class: "scale middle", ...place }, why);
}

function drawSeries(chart, series) {
  const width = series.thin ? " thin" : series.bold ? " bold" : "";
  const style = `c${series.color} d${series.dash}${width}`;
  if (series.bars) {
    return svgEl("path", {
      class: `${series.thin ? "line" : "bar"} ${style}`,
      d: barsPath(chart, series),
    });
  }
  series.path = svgEl("path", {
    class: `line ${style}`,
    "data-series": series.key,
    d: polyline(chart, series),
  });
  return [series.low ? bandPath(chart, series) : null, series.path, dots(chart, series)];
}

function drawable(chart, series, i) {
  const [x, y] = [series.x[i], series.y[i]];
  return y !== null && !(chart.logY && y <= 0) && !(chart.spec.logX && x <= 0);
}

/** A point in SVG pixels, kept near the frame: drawing far outside would be slow. */
function toPixels(chart, x, y) {
  const bound = (value) => Math.max(-1e5, Math.min(1e5, value)).toFixed(1);
  return `${bound(chart.x(x))} ${bound(chart.y(y))}`;
}

/** Straight lines between points, interrupted where a value is missing. */
function polyline(chart, series) {
  let path = "";
  let pen = "M";
  for (let i = 0; i < series.x.length; i++) {
    if (drawable(chart, series, i)) {
      path += pen + toPixels(chart, series.x[i], series.y[i]);
      pen = "L";
    } else {
      pen = "M";
    }
  }
  return path;
}

function bandPath(chart, { x, low, high, color }) {
  const over = x.map((place, i) => toPixels(chart, place, high[i]));
  const under = x.map((place, i) => toPixels(chart, place, low[i])).reverse();
  return svgEl("path", { class: `area c${color}`, d: `M${over.concat(under).join("L")}Z` });
}

function barsPath(chart, { bars, y }) {
  const tops = y.map(
    (count, i) => `L${toPixels(chart, bars[i], count)}L${toPixels(chart, bars[i + 1], count)}`,
  );
  return `M${toPixels(chart, bars[0], 0)}${tops.join("")}L${toPixels(chart, bars.at(-1), 0)}Z`;
}

/** The points of a short curve; otherwise a single point would be invisible. */
function dots(chart, series) {
  const { x, y, color, thin } = series;
  if (x.length > 1 && (thin || x.length > 24)) return null;
  return x.map((place, i) =>
    drawable(chart, series, i)
      ? svgEl("circle", { class: `dot c${color}`, cx: chart.x(place), cy: chart.y(y[i]), r: 2.5 })
      : null,
  );
}

function marks({ spec, x: toX, y: toY }) {
  return (spec.marks || []).map(({ x, y }) =>
    svgEl("circle", { class: "mark", cx: toX(x), cy: toY(y), r: 5 }),
  );
}
