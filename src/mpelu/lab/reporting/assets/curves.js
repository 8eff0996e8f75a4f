// Learning curves, selected by group and by run.

/** A run's name on this page. It stays the same when a live page is drawn again. */
function fullName(run) {
  return `${run.set}/${run.name}`;
}

/**
 * What a chart can show: the runs of a set, those of reproduced tables first, or all runs. Runs on
 * different data sets never share a chart.
 */
function chartChoices(runs, results) {
  const sets = [...new Set([...results.map((result) => result.set), ...runs.map((run) => run.set)])];
  const dataSets = [...new Set(runs.map((run) => run.data))];
  const choices = sets.flatMap((set) => {
    const parts = dataSets
      .map((data) => ({ data, runs: runs.filter((run) => run.set === set && run.data === data) }))
      .filter((part) => part.runs.length);
    return parts.map((part) => ({
      value: `${set}|${part.data}`,
      text: parts.length > 1 ? `${set} (${part.data})` : set,
      ...part,
    }));
  });
  const all = dataSets
    .filter((data) => choices.filter((choice) => choice.data === data).length > 1)
    .map((data) => ({
      value: `all|${data}`,
      text: dataSets.length > 1 ? `all runs on ${data || "unknown data"}` : "all runs",
      data,
      runs: runs.filter((run) => run.data === data),
    }));
  return [...choices, ...all];
}

/** The option that was chosen, or the first if it is gone. */
function chosenOption(id, options) {
  const value = recall(id, options[0].value);
  return options.find((option) => option.value === value) || options[0];
}

function curvesSection(data) {
  const runs = data.runs.filter((run) => run.curves.rows);
  if (!runs.length) return null;
  const place = el("div");
  const choices = chartChoices(runs, data.results);
  const fillPlace = () =>
    place.replaceChildren(...curvesOf(chosenOption("curves-set", choices).runs));
  const picker = select("curves-set", "Runs of", choices, () => {
    for (const id of ["curves-error", "curves-loss"]) chosen.delete(id + "-view");
    fillPlace();
  });
  fillPlace();
  return section(
    "curves",
    "Learning curves",
    el("p", { class: "facts" }, picker),
    place,
    el(
      "p",
      { class: "note" },
      "Drag over a plot to zoom; double-click to reset. ",
      "The training loss is the mean since the previous test. ",
      "Runs whose names differ only in the seed form a group. ",
      data.rule,
    ),
  );
}

/** Runs that differ only in their seed, with a colour for each group. */
function groupsOf(runs) {
  const several = runs.some((run) => run.set !== runs[0].set);
  const groups = new Map();
  for (const run of runs) {
    const name = several ? `${run.set}/${run.group}` : run.group;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(run);
  }
  const colorOf = (members) =>
    members.every(({ color }) => color === members[0].color) ? members[0].color : "";
  const found = seriesLooks([...groups.values()].map(colorOf));
  return [...groups].map(([name, members], index) => ({ name, members, ...found[index] }));
}

function curvesOf(runs) {
  const groups = groupsOf(runs);
  const inEpochs = runs.every((run) => run.curves.epoch_length);
  const series = (quantity) =>
    groups.flatMap(({ members, color, dash }) =>
      members.map((run) => ({
        key: fullName(run),
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
    groups.filter(({ members }) => members.some((run) => !hidden().has(fullName(run))));
  const shared = {
    xLabel: inEpochs ? "epoch" : "training step",
    logToggle: true,
    integers: true,
    legend: false,
    entries,
  };
  const measured = [...new Set(runs.map((run) => run.curves.on))].sort().join(" or ");
  const plots = [
    new Chart({
      id: "curves-error",
      title: `${measured[0].toUpperCase()}${measured.slice(1)} error`,
      yLabel: `${measured} error, %`,
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
      if (on) keys.delete(fullName(run));
      else keys.add(fullName(run));
    }
    hide(keys);
    for (const update of updates) update();
  };
  const everyone = groups.flatMap(({ members }) => members);
  const tick = (id, label, runs, mark) => {
    const node = checkbox(id, label, true, (on) => change(runs, on), mark);
    const box = node.querySelector("input");
    updates.push(() => {
      const off = runs.filter((run) => hidden().has(fullName(run))).length;
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
