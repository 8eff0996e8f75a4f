// The state of every run, and what is missing.

const SIGNS = {
  finished: "✓",
  running: "▶",
  diverged: "✕",
  interrupted: "❚❚",
  failed: "!",
  unknown: "?",
};

function runsSection(data) {
  if (!data.runs.length) return null;
  const counts = Object.keys(SIGNS)
    .map((state) => [state, data.runs.filter((run) => run.state === state).length])
    .filter(([, count]) => count);
  const columns = [
    { name: "run" },
    { name: "state" },
    { name: "progress" },
    { name: "remarks" },
    { name: "test error, %", number: true },
    { name: "best, %", number: true },
    { name: "network" },
    { name: "activation" },
    { name: "init" },
    { name: "data" },
    { name: "seed", number: true },
  ];
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
    table("runs-table", "State of every run", columns, data.runs.map(runRow)),
  );
}

function runRow(run) {
  const progress =
    run.step === null
      ? "not begun"
      : `step ${whole(run.step)}` + (run.steps === null ? "" : ` of ${whole(run.steps)}`);
  const silent = run.silent
    ? ["says it is running but has written nothing for over 10 minutes"]
    : [];
  return [
    `${run.set}/${run.name}`,
    {
      text: run.state,
      node: el(
        "span",
        { class: `state ${run.state}` },
        el("span", { "aria-hidden": "true" }, SIGNS[run.state] + " "),
        run.state,
      ),
    },
    progress,
    [run.state === "finished" ? "" : run.message, ...silent, ...run.problems]
      .filter(Boolean)
      .join("; "),
    percent(run.test_error),
    percent(run.best_error),
    run.model || "–",
    run.activation || "own",
    run.init || "–",
    run.data || "–",
    run.seed === null ? "–" : String(run.seed),
  ];
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
