// Zooming and reading a plot, by keyboard and by pointer.

const SHORTEST_DRAG = 12; // pixels
const REACH = 30; // largest distance of a point from the pointer, in pixels

function listenTo(chart) {
  const { drawing } = chart;
  const keys = {
    "+": () => chart.zoom(0.5),
    "=": () => chart.zoom(0.5),
    "-": () => chart.zoom(2),
    0: () => chart.look(null),
    Escape: () => chart.look(null),
    ArrowLeft: () => chart.move(-0.15, 0),
    ArrowRight: () => chart.move(0.15, 0),
    ArrowUp: () => chart.move(0, 0.15),
    ArrowDown: () => chart.move(0, -0.15),
  };
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  let from = null; // start of a drag
  const place = (event) => {
    const box = drawing.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return; // touch scrolls the page
    from = place(event);
    drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener("pointermove", (event) => {
    if (from) drawRubber(chart, draggedOver(chart.frame, from, place(event)));
    else tell(chart, nearestPoint(chart, place(event)));
  });
  drawing.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = place(event);
    const far = Math.max(Math.abs(to.x - from.x), Math.abs(to.y - from.y)) >= SHORTEST_DRAG;
    const { x, y } = draggedOver(chart.frame, from, to);
    from = null;
    drawRubber(chart, null);
    if (far) chart.look({ x: x.map(chart.x.back), y: y.map(chart.y.back).reverse() });
  });
  drawing.addEventListener("pointercancel", () => {
    from = null;
    drawRubber(chart, null);
  });
  drawing.addEventListener("pointerleave", () => tell(chart, null));
  drawing.addEventListener("dblclick", () => chart.look(null));
}

/** The rectangle between two points; a narrow one spans the whole other axis. */
function draggedOver({ left, right, top, bottom }, from, to) {
  const between = (a, b, low, high) => {
    const ends = [a, b].map((v) => Math.min(high, Math.max(low, v))).sort((p, q) => p - q);
    return ends[1] - ends[0] < SHORTEST_DRAG ? [low, high] : ends;
  };
  return { x: between(from.x, to.x, left, right), y: between(from.y, to.y, top, bottom) };
}

function drawRubber(chart, rectangle) {
  const { x, y } = rectangle || { x: [0, 0], y: [0, 0] };
  const box = { x: x[0], y: y[0], width: x[1] - x[0], height: y[1] - y[0] };
  for (const [name, value] of Object.entries(box)) chart.rubber.setAttribute(name, value);
}

/** The data point nearest to a place, if one is in reach. */
function nearestPoint(chart, at) {
  let best = null;
  let least = REACH * REACH;
  for (const series of chart.shown()) {
    if (series.bars) continue;
    for (let i = 0; i < series.x.length; i++) {
      if (!drawable(chart, series, i)) continue;
      const dx = chart.x(series.x[i]) - at.x;
      const dy = chart.y(series.y[i]) - at.y;
      if (dx * dx + dy * dy >= least) continue;
      least = dx * dx + dy * dy;
      best = { series, i };
    }
  }
  return best;
}

/** Labels a data point and thickens its curve. */
function tell(chart, found) {
  const { drawing, tip } = chart;
  drawing.querySelectorAll(".near").forEach((node) => node.classList.remove("near"));
  tip.hidden = !found;
  if (!found) return;
  const { series, i } = found;
  series.path.classList.add("near");
  const name = series.names ? series.names[i] : `${chart.spec.xLabel} ${show(series.x[i], 6)}`;
  tip.replaceChildren(el("b", {}, series.name), el("br"), `${name}: ${show(series.y[i], 5)}`);
  const x = chart.x(series.x[i]);
  const onRight = x > drawing.clientWidth / 2;
  tip.style.top = `${chart.y(series.y[i])}px`;
  tip.style.left = onRight ? "" : `${x + 12}px`;
  tip.style.right = onRight ? `${drawing.clientWidth - x + 12}px` : "";
}
