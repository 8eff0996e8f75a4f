// The report: draws what the data block holds, and again when the server has news.

const NEWS_EVERY = 2000;

function drawReport(data, activation) {
  const focused = document.activeElement && document.activeElement.id;
  const scrolled = window.scrollY;
  const sections = [resultsSection(data.results), curvesSection(data), depthSection(data), learnedSection(data), runsSection(data), activation].filter(Boolean);
  const empty = data.runs.length || data.results.length ? null : el("p", { id: "empty" }, "No runs here yet.");
  const made = new Date(data.made * 1000);
  fillHeader("MPELU report", sections, `${data.live ? "Live, last change seen" : "Made"} ${made.toLocaleString()}`);
  document.getElementById("main").replaceChildren(...[missing(data), empty, ...sections].filter(Boolean));
  window.scrollTo(0, scrolled);
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: true });
}

async function watch(data, activation) {
  let version = data.version;
  for (;;) {
    await new Promise((wake) => setTimeout(wake, NEWS_EVERY));
    try {
      const now = await (await fetch("version")).json();
      if (now.version === version) continue;
      const news = await (await fetch("data.json")).json();
      version = news.version;
      drawReport(news, activation);
    } catch {
      say("The server doesn't answer; this page is as it last was.");
    }
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
const activation = explorer();
drawReport(data, activation);
document.documentElement.dataset.drawn = Math.round(performance.now());
if (data.live) watch(data, activation);
