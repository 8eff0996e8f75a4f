// The header: title, links to the sections, light or dark theme.

const THEMES = ["auto", "light", "dark"];

function theme(next) {
  let name = next || "auto";
  try {
    if (next) localStorage.setItem("mpelu-theme", next);
    else name = localStorage.getItem("mpelu-theme") || "auto";
  } catch {
    /* this browser stores nothing */
  }
  if (!THEMES.includes(name)) name = "auto";
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  return name;
}

function fillHeader(title, sections, line) {
  const toggle = button(
    `Theme: ${theme()}`,
    () => {
      const now = theme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
      toggle.textContent = `Theme: ${now}`;
    },
    { id: "theme" },
  );
  document.getElementById("top").replaceChildren(
    el("div", { class: "masthead" }, el("h1", {}, title), toggle),
    line ? el("p", { class: "line" }, line) : "",
    sections.length > 1
      ? el(
          "nav",
          { "aria-label": "Sections" },
          el(
            "ul",
            {},
            sections.map((part) =>
              el("li", {}, el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)),
            ),
          ),
        )
      : "",
  );
}
