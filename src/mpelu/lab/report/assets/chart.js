// A plot as SVG: lines, bands and bars that can be zoomed, switched off, read and saved.

let charts = 0;

class Chart {
  /**
   * spec: id, title, xLabel, yLabel; series of {key, name, x, y, color, dash} and optionally low, high
   * (a band), bars (edges), names (of the points), thin, bold; optionally legend, logX, logY, logToggle,
   * integers, xRange, yRange, height, marks of {x, y}, note.
   */
  constructor(spec) {
    this.spec = spec;
    this.clip = `clip-${charts++}`;
    this.view = recall(spec.id + "-view", null);
    this.hidden = recall(spec.id + "-hidden", new Set());
    this.logY = recall(spec.id + "-log", Boolean(spec.logY));
    this.drawing = svgEl("svg", {
      class: "plot",
      tabindex: 0,
      role: "group",
      id: spec.id + "-plot",
      "aria-label": `${spec.title}. Plus and minus zoom, arrows move, 0 shows all.`,
    });
    this.tip = el("div", { class: "tip", hidden: true });
    this.legend = el("div", { class: "legend" });
    this.node = el(
      "figure",
      { id: spec.id, class: "figure" },
      el("div", { class: "head" }, el("figcaption", {}, spec.title), this.tools()),
      el("div", { class: "canvas" }, this.drawing, this.tip),
      spec.legend === false ? null : this.legend,
      spec.note ? el("p", { class: "note" }, spec.note) : null,
    );
    this.listen();
    this.drawLegend();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.drawing);
  }

  tools() {
    const { id, title } = this.spec;
    const name = (what) => ({ "aria-label": `${what}: ${title}`, title: what });
    return el(
      "div",
      { class: "tools" },
      this.spec.logToggle
        ? checkbox(id + "-log", "log scale", this.logY, (on) => {
            this.logY = remember(id + "-log", on);
            this.look(null);
          })
        : null,
      button("+", () => this.zoom(0.5), name("Zoom in")),
      button("−", () => this.zoom(2), name("Zoom out")),
      button("All", () => this.look(null), name("Show all")),
      button("SVG", () => saveSvg(this.drawing, title, this.entries()), name("Save as SVG")),
      button("PNG", () => savePng(this.drawing, title, this.entries()), name("Save as PNG")),
    );
  }

  entries() {
    if (this.spec.entries) return this.spec.entries();
    return this.shown().map(({ name, color, dash }) => ({ name, color, dash }));
  }

  shown() {
    return this.spec.series.filter(({ key }) => !this.hidden.has(key));
  }

  /** Other series (and whatever else of the spec changed). */
  update(changes) {
    Object.assign(this.spec, changes);
    this.draw();
  }

  hide(keys) {
    this.hidden = remember(this.spec.id + "-hidden", keys);
    this.draw();
  }

  drawLegend() {
    if (this.spec.legend === false) return;
    this.legend.replaceChildren(
      ...this.spec.series.map(({ key, name, color, dash }, index) =>
        checkbox(
          `${this.spec.id}-series-${index}`,
          name,
          !this.hidden.has(key),
          (on) => {
            const keys = new Set(this.hidden);
            if (on) keys.delete(key);
            else keys.add(key);
            this.hide(keys);
          },
          swatch(color, dash),
        ),
      ),
    );
  }

  look(view) {
    this.view = remember(this.spec.id + "-view", view);
    this.draw();
  }

  zoom(factor) {
    const part = (low, high, log) => {
      const map = scale(low, high, 0, 1, log);
      return [map.back(0.5 - factor / 2), map.back(0.5 + factor / 2)];
    };
    this.look({ x: part(...this.x.range, this.spec.logX), y: part(...this.y.range, this.logY) });
  }

  move(dx, dy) {
    const part = (low, high, log, by) => {
      const map = scale(low, high, 0, 1, log);
      return [map.back(by), map.back(1 + by)];
    };
    this.look({
      x: part(...this.x.range, this.spec.logX, dx),
      y: part(...this.y.range, this.logY, dy),
    });
  }

  listen() {
    const keys = {
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.look(null),
      Escape: () => this.look(null),
      ArrowLeft: () => this.move(-0.15, 0),
      ArrowRight: () => this.move(0.15, 0),
      ArrowUp: () => this.move(0, 0.15),
      ArrowDown: () => this.move(0, -0.15),
    };
    this.drawing.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    this.drawing.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      this.from = this.place(event);
      this.drawing.setPointerCapture(event.pointerId);
    });
    this.drawing.addEventListener("pointermove", (event) =>
      this.from ? this.rubber(this.place(event)) : this.point(this.place(event)),
    );
    this.drawing.addEventListener("pointerup", (event) => this.release(this.place(event)));
    this.drawing.addEventListener("pointercancel", () => this.release(this.from));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.drawing.addEventListener("dblclick", () => this.look(null));
  }

  place(event) {
    const box = this.drawing.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** The rectangle drawn over from the pointer's first place; flat ones leave the other axis as it is. */
  rectangle(to) {
    const { left, right, top, bottom } = this.frame;
    const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
    const xs = [this.from.x, to.x].map((x) => clamp(x, left, right)).sort((a, b) => a - b);
    const ys = [this.from.y, to.y].map((y) => clamp(y, top, bottom)).sort((a, b) => a - b);
    return {
      x: xs[1] - xs[0] < 12 ? [left, right] : xs,
      y: ys[1] - ys[0] < 12 ? [top, bottom] : ys,
    };
  }

  rubber(to) {
    const { x, y } = this.rectangle(to);
    this.band.setAttribute("x", x[0]);
    this.band.setAttribute("y", y[0]);
    this.band.setAttribute("width", x[1] - x[0]);
    this.band.setAttribute("height", y[1] - y[0]);
  }

  release(to) {
    if (!this.from) return;
    const far = Math.abs(to.x - this.from.x) >= 12 || Math.abs(to.y - this.from.y) >= 12;
    const { x, y } = this.rectangle(to);
    this.from = null;
    this.band.setAttribute("width", 0);
    if (far) this.look({ x: x.map(this.x.back), y: [this.y.back(y[1]), this.y.back(y[0])] });
  }

  /** Names the point nearest to the pointer. */
  point(at) {
    let best = null;
    if (at && this.x) {
      for (const series of this.shown()) {
        if (series.bars) continue;
        for (let i = 0; i < series.x.length; i++) {
          if (series.y[i] === null) continue;
          const dx = this.x(series.x[i]) - at.x;
          const dy = this.y(series.y[i]) - at.y;
          const distance = dx * dx + dy * dy;
          if (distance < 900 && (!best || distance < best.distance)) best = { distance, series, i };
        }
      }
    }
    this.drawing.querySelectorAll(".near").forEach((node) => node.classList.remove("near"));
    this.tip.hidden = !best;
    if (!best) return;
    const { series, i } = best;
    if (series.path) series.path.classList.add("near");
    const name = series.names ? series.names[i] : `${this.spec.xLabel} ${show(series.x[i], 6)}`;
    this.tip.replaceChildren(
      el("b", {}, series.name),
      el("br"),
      `${name}: ${show(series.y[i], 5)}`,
    );
    const x = this.x(series.x[i]);
    this.tip.style.top = `${this.y(series.y[i])}px`;
    const rightHalf = x > this.drawing.clientWidth / 2;
    this.tip.style.left = rightHalf ? "" : `${x + 12}px`;
    this.tip.style.right = rightHalf ? `${this.drawing.clientWidth - x + 12}px` : "";
  }

  ranges(shown) {
    const { spec, view } = this;
    if (view) return view;
    const ys = shown.flatMap((s) => (s.low ? [s.y, s.low, s.high] : [s.y]));
    const x =
      spec.xRange ||
      extent(
        shown.map((s) => s.bars || s.x),
        spec.logX,
        0.01,
      );
    const y = (!this.logY && spec.yRange) || extent(ys, this.logY, 0.05);
    if (shown.some((s) => s.bars)) y[0] = 0;
    return { x, y };
  }

  draw() {
    const width = this.drawing.clientWidth;
    const height = this.drawing.clientHeight;
    if (!width || !height) return;
    const { spec } = this;
    const shown = this.shown();
    const { x: xRange, y: yRange } = this.ranges(shown);
    const yTicks = this.logY ? logTicks(...yRange, 6) : linearTicks(...yRange, height / 55, false);
    const yTexts = tickTexts(yTicks, this.logY);
    const left = 16 + 7 * Math.max(2, ...yTexts.map((text) => text.length));
    const frame = (this.frame = { left, right: width - 14, top: 28, bottom: height - 44 });
    this.x = Object.assign(scale(...xRange, frame.left, frame.right, spec.logX), { range: xRange });
    this.y = Object.assign(scale(...yRange, frame.bottom, frame.top, this.logY), { range: yRange });
    const xCount = (frame.right - frame.left) / 70;
    const xTicks = spec.logX
      ? logTicks(...xRange, xCount)
      : linearTicks(...xRange, xCount, spec.integers);
    this.band = svgEl("rect", { class: "rubber transient", width: 0, height: 0 });
    this.drawing.replaceChildren(
      svgEl(
        "clipPath",
        { id: this.clip },
        svgEl("rect", {
          x: frame.left,
          y: frame.top,
          width: frame.right - frame.left,
          height: frame.bottom - frame.top,
        }),
      ),
      ...this.grid(xTicks, tickTexts(xTicks, spec.logX), yTicks, yTexts),
      svgEl(
        "g",
        { "clip-path": `url(#${this.clip})` },
        shown.flatMap((series) => this.curve(series)),
        this.markers(),
      ),
      shown.some((s) => s.y.some((v) => v !== null))
        ? ""
        : svgEl(
            "text",
            {
              class: "scale middle",
              x: (frame.left + frame.right) / 2,
              y: (frame.top + frame.bottom) / 2,
            },
            spec.series.length ? "nothing is switched on" : "nothing measured yet",
          ),
      this.band,
    );
  }

  grid(xTicks, xTexts, yTicks, yTexts) {
    const { left, right, top, bottom } = this.frame;
    const parts = [];
    yTicks.forEach((tick, i) => {
      const y = this.y(tick);
      parts.push(
        svgEl("line", { class: "rule", x1: left, x2: right, y1: y, y2: y }),
        svgEl("text", { class: "scale end", x: left - 7, y: y + 4 }, yTexts[i]),
      );
    });
    let free = -Infinity;
    xTicks.forEach((tick, i) => {
      const x = this.x(tick);
      const text = xTexts[i];
      const half = 3.6 * text.length + 4;
      parts.push(svgEl("line", { class: "rule", x1: x, x2: x, y1: top, y2: bottom }));
      if (x - half < free) return; // a label that would touch the one before
      free = x + half;
      parts.push(svgEl("text", { class: "scale middle", x, y: bottom + 17 }, text));
    });
    parts.push(
      svgEl("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svgEl("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }),
      svgEl(
        "text",
        { class: "label", x: 4, y: 16 },
        this.spec.yLabel + (this.logY ? " (log scale)" : ""),
      ),
      svgEl("text", { class: "label end", x: right, y: bottom + 37 }, this.spec.xLabel),
    );
    return parts;
  }

  curve(series) {
    const style = `c${series.color} d${series.dash}${series.thin ? " thin" : series.bold ? " bold" : ""}`;
    if (series.bars) return [this.bars(series, style)];
    const parts = [];
    if (series.low) {
      const there = series.x.map(
        (x, i) => `${this.x(x).toFixed(1)} ${this.y(series.high[i]).toFixed(1)}`,
      );
      const back = series.x
        .map((x, i) => `${this.x(x).toFixed(1)} ${this.y(series.low[i]).toFixed(1)}`)
        .reverse();
      parts.push(
        svgEl("path", { class: `area c${series.color}`, d: `M${there.concat(back).join("L")}Z` }),
      );
    }
    series.path = svgEl("path", {
      class: `line ${style}`,
      "data-series": series.key,
      d: this.path(series),
    });
    parts.push(series.path);
    if (series.x.length === 1 || (series.x.length <= 24 && !series.thin)) {
      series.x.forEach((x, i) => {
        if (this.drawable(series.y[i]))
          parts.push(
            svgEl("circle", {
              class: `dot c${series.color}`,
              cx: this.x(x),
              cy: this.y(series.y[i]),
              r: 2.5,
            }),
          );
      });
    }
    return parts;
  }

  drawable(value) {
    return value !== null && !(this.logY && value <= 0);
  }

  path(series) {
    let path = "";
    let pen = "M";
    const bound = (value) => Math.max(-1e5, Math.min(1e5, value)).toFixed(1);
    for (let i = 0; i < series.x.length; i++) {
      if (!this.drawable(series.y[i])) {
        pen = "M";
        continue;
      }
      path += `${pen}${bound(this.x(series.x[i]))} ${bound(this.y(series.y[i]))}`;
      pen = "L";
    }
    return path;
  }

  bars(series, style) {
    const zero = this.y.range[0];
    let path = `M${this.x(series.bars[0])} ${this.y(zero)}`;
    series.y.forEach((count, i) => {
      const height = this.y(count).toFixed(1);
      path += `L${this.x(series.bars[i]).toFixed(1)} ${height}L${this.x(series.bars[i + 1]).toFixed(1)} ${height}`;
    });
    return svgEl("path", {
      class: `${series.thin ? "line" : "bar"} ${style}`,
      d: `${path}L${this.x(series.bars.at(-1))} ${this.y(zero)}Z`,
    });
  }

  markers() {
    return (this.spec.marks || []).map(({ x, y }) =>
      svgEl("circle", { class: "mark", cx: this.x(x), cy: this.y(y), r: 5 }),
    );
  }
}

function swatch(color, dash) {
  return svgEl(
    "svg",
    { class: "swatch", width: 26, height: 10, "aria-hidden": "true" },
    svgEl("line", { class: `line c${color} d${dash}`, x1: 1, x2: 25, y1: 5, y2: 5 }),
  );
}
