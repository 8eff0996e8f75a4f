// Learning curves, switched by group and by run.

/** The sets of the runs, those of reproduced tables first. */
function setsOf(runs, results) {
  const present = new Set(runs.map((run) => run.set));
  const sets = [...new Set([...results.map((result) => result.set), ...present])].filter((name) =>
    present.has(name),
  );
  const options = sets.map((name) => ({ value: `set:${name}`, text: name }));
  return sets.length > 1 ? [...options, { value: "all", text: "all runs" }] : options;
}

function inSet(runs, value) {
  return value === "all" ? runs : runs.filter((run) => `set:${run.set}` === value);
}

function curvesSection(data) {
  const runs = data.runs.filter((run) => run.curves.rows);
  if (!runs.length) return null;
  const place = el("div");
  const fillPlace = (value) => place.replaceChildren(...curvesOf(inSet(runs, value), value));
  const sets = setsOf(runs, data.results);
  const picker = select("curves-set", "Runs of", sets, (value) => {
    for (const id of ["curves-error", "curves-loss"]) chosen.delete(id + "-view");
    fillPlace(value);
  });
  const start = recall("curves-set", sets[0].value);
  fillPlace(sets.some(({ value }) => value === start) ? start : sets[0].value);
  return section(
    "curves",
    "Learning curves",
    el("p", { class: "facts" }, picker),
    place,
    el(
      "p",
      { class: "note" },
      "Drag over a plot to zoom, double-click to see all again. ",
      "The training loss is the mean since the test before. ",
      "Runs whose names differ only in their seed are one group. ",
      data.rule,
    ),
  );
}

function groupsOf(runs, value) {
  const groups = new Map();
  for (const run of runs) {
    const name = value === "all" ? `${run.set}/${run.group}` : run.group;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(run);
  }
  return [...groups].map(([name, members], index) => ({ name, members, ...look(index) }));
}

function curvesOf(runs, value) {
  const groups = groupsOf(runs, value);
  const inEpochs = runs.every((run) => run.curves.epoch_length);
  const series = (quantity) =>
    groups.flatMap(({ members, color, dash }) =>
      members.map((run) => ({
        key: run.set + "/" + run.name,
        name: run.name,
        color,
        dash,
        thin: members.length > 1,
        y: run.curves[quantity].y,
        x: inEpochs
          ? run.curves[quantity].x.map((step) => step / run.curves.epoch_length)
          : run.curves[quantity].x,
      })),
    );
  const hidden = () => recall("curves-hidden", new Set());
  const entries = () =>
    groups.filter(({ members }) => members.some((run) => !hidden().has(run.set + "/" + run.name)));
  const shared = {
    xLabel: inEpochs ? "epoch" : "training step",
    logToggle: true,
    integers: true,
    legend: false,
    entries,
  };
  const plots = [
    new Chart({
      id: "curves-error",
      title: "Test error",
      yLabel: "test error, %",
      series: series("test_error"),
      ...shared,
    }),
    new Chart({
      id: "curves-loss",
      title: "Training loss",
      yLabel: "training loss, nats",
      series: series("train_loss"),
      logY: true,
      ...shared,
    }),
  ];
  const hide = (keys) => {
    remember("curves-hidden", keys);
    for (const plot of plots) plot.hide(keys);
  };
  hide(hidden());
  return [
    el(
      "div",
      { class: "grid" },
      plots.map((plot) => plot.node),
    ),
    toggles(groups, hidden, hide),
  ];
}

function toggles(groups, hidden, hide) {
  const updates = [];
  const change = (runs, on) => {
    const keys = new Set(hidden());
    for (const run of runs) {
      if (on) keys.delete(run.set + "/" + run.name);
      else keys.add(run.set + "/" + run.name);
    }
    hide(keys);
    for (const update of updates) update();
  };
  const everyone = groups.flatMap(({ members }) => members);
  const tick = (id, label, runs, mark) => {
    const node = checkbox(id, label, true, (on) => change(runs, on), mark);
    const box = node.querySelector("input");
    updates.push(() => {
      const off = runs.filter((run) => hidden().has(run.set + "/" + run.name)).length;
      box.checked = off < runs.length;
      box.indeterminate = off > 0 && off < runs.length;
    });
    return node;
  };
  const list = groups.map(({ name, members, color, dash }, g) =>
    el(
      "div",
      { class: "group" },
      tick(
        `group-${g}`,
        members.length > 1 ? `${name} (${members.length})` : name,
        members,
        swatch(color, dash),
      ),
      members.length > 1
        ? el(
            "details",
            {
              open: recall(`open-${name}`, false),
              ontoggle: (event) => remember(`open-${name}`, event.target.open),
            },
            el("summary", {}, "runs"),
            members.map((run) => tick(`show-${run.id}`, run.name, [run])),
          )
        : null,
    ),
  );
  for (const update of updates) update();
  return el(
    "fieldset",
    { class: "toggles" },
    el("legend", {}, "Shown"),
    el(
      "div",
      { class: "tools" },
      button("All", () => change(everyone, true), { id: "curves-all" }),
      button("None", () => change(everyone, false), { id: "curves-none" }),
    ),
    el("div", { class: "groups" }, list),
  );
}
