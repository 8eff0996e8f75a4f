// The state of every run, and what is missing.

const SIGNS = {
  finished: "✓",
  running: "▶",
  diverged: "✕",
  interrupted: "❚❚",
  failed: "!",
  unknown: "?",
};

const RUN_COLUMNS = [
  { name: "run", cell: (run) => `${run.set}/${run.name}` },
  { name: "state", cell: stateCell },
  { name: "step", number: true, cell: stepCell },
  { name: "epochs", number: true, cell: (run) => numberCell(run.epochs, whole) },
  { name: "test error, %", number: true, cell: (run) => numberCell(run.test_error, percent) },
  { name: "best, %", number: true, cell: bestCell },
  { name: "network", cell: (run) => run.model || "–" },
  { name: "activation", cell: (run) => run.activation || "default" },
  { name: "init", cell: (run) => run.init || "–" },
  { name: "data", cell: (run) => run.data || "–" },
  { name: "learning rate", number: true, cell: (run) => numberCell(run.lr, show) },
  { name: "seed", number: true, cell: (run) => numberCell(run.seed, String) },
  { name: "images/s", number: true, cell: (run) => numberCell(run.speed, whole) },
  { name: "remarks", cell: remarks },
];

function runsSection(data) {
  if (!data.runs.length) return null;
  const counts = Object.keys(SIGNS)
    .map((state) => [state, data.runs.filter((run) => run.state === state).length])
    .filter(([, count]) => count);
  const columns = RUN_COLUMNS.filter(({ cell }) => cell !== remarks || data.runs.some(remarks));
  return section(
    "runs",
    "Runs",
    el(
      "p",
      {},
      `${whole(data.runs.length)} ${data.runs.length === 1 ? "run" : "runs"}: `,
      counts.map(([state, count]) => `${count} ${state}`).join(", "),
      ".",
    ),
    table(
      "runs-table",
      "All runs; select a column to sort by it",
      columns,
      data.runs.map((run) => columns.map(({ cell }) => cell(run))),
      { sortable: true },
    ),
  );
}

function numberCell(value, format) {
  return { text: value === null ? "–" : format(value), sort: value };
}

function bestCell(run) {
  const on = run.validation_error === null ? "" : " (validation)";
  return numberCell(run.best_error, (value) => percent(value) + on);
}

function stateCell({ state }) {
  const sign = el("span", { "aria-hidden": "true" }, SIGNS[state] + " ");
  return { text: state, node: el("span", { class: `state ${state}` }, sign, state) };
}

function stepCell({ step, steps }) {
  const text =
    step === null ? "–" : whole(step) + (steps === null ? "" : ` of ${whole(steps)}`);
  return { text, sort: step };
}

function remarks(run) {
  return [
    run.state === "finished" ? "" : run.message,
    run.silent ? "no update for more than 10 minutes" : "",
    ...run.problems,
  ]
    .filter(Boolean)
    .join("; ");
}

function missing(data) {
  const lines = [
    ...data.results
      .filter((result) => result.problem)
      .map((result) => `${result.set}: ${result.problem}`),
    ...data.runs.flatMap((run) =>
      run.problems.map((problem) => `${run.set}/${run.name}: ${problem}`),
    ),
  ];
  if (!lines.length) return null;
  const list = el(
    "ul",
    {},
    lines.map((line) => el("li", {}, line)),
  );
  return el(
    "aside",
    { class: "missing", id: "missing", "aria-label": "What is missing" },
    el("p", {}, el("b", {}, "Parts of this report are missing or damaged:")),
    lines.length > 6
      ? el("details", {}, el("summary", {}, `${lines.length} problems`), list)
      : list,
  );
}
