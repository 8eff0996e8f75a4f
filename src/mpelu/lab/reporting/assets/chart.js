// A plot as SVG: lines, bands and bars that can be zoomed, hidden, read and saved.

let charts = 0;

class Chart {
  /**
   * spec: id, title, xLabel, yLabel and series; optionally legend (false: none), entries (of the
   * legend in saved files), logX, logY, logToggle, integers (ticks on x), xRange, yRange, marks of
   * {x, y}, note. A series: key, name, x, y, color, dash; optionally low and high (a band), bars
   * (edges of bins, y their counts), names (of the points), thin, bold.
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
      "aria-label": `${spec.title}. Plus and minus zoom, arrow keys pan, 0 resets.`,
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
    listenTo(this);
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
        ? checkbox(id + "-log", "log y", this.logY, (on) => {
            this.logY = remember(id + "-log", on);
            this.look(null);
          })
        : null,
      button("+", () => this.zoom(0.5), name("Zoom in")),
      button("−", () => this.zoom(2), name("Zoom out")),
      button("↺", () => this.look(null), name("Reset zoom")),
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

  /** Replaces the series or other parts of the spec. */
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

  /** Shows the range {x: [low, high], y: [low, high]}, or everything if null. */
  look(view) {
    if (view && !(visible(view.x, this.spec.logX) && visible(view.y, this.logY))) return;
    this.view = remember(this.spec.id + "-view", view);
    this.draw();
  }

  zoom(factor) {
    const part = (low, high, log) => {
      const map = scale(low, high, 0, 1, log);
      return [map.back(0.5 - factor / 2), map.back(0.5 + factor / 2)];
    };
    this.look({ x: part(...this.range.x, this.spec.logX), y: part(...this.range.y, this.logY) });
  }

  move(dx, dy) {
    const part = (low, high, log, by) => {
      const map = scale(low, high, 0, 1, log);
      return [map.back(by), map.back(1 + by)];
    };
    this.look({
      x: part(...this.range.x, this.spec.logX, dx),
      y: part(...this.range.y, this.logY, dy),
    });
  }

  draw() {
    if (this.drawing.clientWidth && this.drawing.clientHeight) drawPlot(this);
  }
}

function swatch(color, dash) {
  return svgEl(
    "svg",
    { class: "swatch", width: 26, height: 10, "aria-hidden": "true" },
    svgEl("line", { class: `line c${color} d${dash}`, x1: 1, x2: 25, y1: 5, y2: 5 }),
  );
}
