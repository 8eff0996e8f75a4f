// The report: draws the contents of the data block, and draws again when the server has news.

const NEWS_EVERY = 2000;

function drawReport(data, body, activation) {
  const focused = document.activeElement && document.activeElement.id;
  const scrolled = window.scrollY;
  const sections = [
    resultsSection(data.results),
    curvesSection(data),
    depthSection(data),
    learnedSection(data),
    runsSection(data),
  ].filter(Boolean);
  const empty =
    data.runs.length || data.results.length ? null : el("p", { id: "empty" }, "No runs yet.");
  const made = new Date(data.made * 1000);
  fillHeader(
    "MPELU report",
    [...sections, activation],
    `${data.live ? "Live; last change" : "Generated"} ${made.toLocaleString()}`,
  );
  body.replaceChildren(...[missing(data), empty, ...sections].filter(Boolean));
  window.scrollTo({ top: scrolled, behavior: "instant" });
  const again = focused && document.getElementById(focused);
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
}

async function watch(version, body, activation) {
  for (;;) {
    await new Promise((wake) => setTimeout(wake, NEWS_EVERY));
    try {
      const now = await (await fetch("version")).json();
      if (now.version === version) continue;
      const news = await (await fetch("data.json")).json();
      version = news.version;
      drawReport(news, body, activation);
    } catch {
      say("No answer from the server; this page shows the last known state.");
    }
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
// Kept when the rest is drawn again, because a slider may be in use.
const activation = explorer();
const body = el("div");
document.getElementById("main").replaceChildren(body, activation);
drawReport(data, body, activation);
requestAnimationFrame(() =>
  requestAnimationFrame(() => {
    document.documentElement.dataset.drawn = Math.round(performance.now());
  }),
);
if (data.live) watch(data.version, body, activation);
