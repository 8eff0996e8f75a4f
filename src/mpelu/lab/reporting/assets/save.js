// Saves figures as files, with the colors they have on the page.

const KEPT_STYLES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "stroke-linecap",
  "opacity",
  "fill-opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
];

/** A copy of the drawing without a style sheet, with title and legend. */
function standalone(drawing, title, entries) {
  const width = drawing.clientWidth;
  const height = drawing.clientHeight;
  const copy = drawing.cloneNode(true);
  copy.querySelectorAll(".transient").forEach((node) => node.remove());
  const above = 30;
  const body = svgEl("g", { transform: `translate(0 ${above})` }, ...copy.childNodes);
  const figure = svgEl("svg", { xmlns: SVG, class: "plot", "font-family": "sans-serif" });
  const background = svgEl("rect", { x: 0, y: 0, width, class: "paper" });
  figure.append(background, svgEl("text", { x: 8, y: 20, class: "heading" }, title), body);
  const bottom = addLegend(figure, entries, width, height + above + 14);
  background.setAttribute("height", bottom);
  for (const [name, value] of [
    ["width", width],
    ["height", bottom],
    ["viewBox", `0 0 ${width} ${bottom}`],
  ]) {
    figure.setAttribute(name, value);
  }
  const stage = el("div", { class: "stage", "aria-hidden": "true" }, figure);
  document.body.append(stage);
  for (const node of figure.querySelectorAll("*")) {
    const style = getComputedStyle(node);
    for (const name of KEPT_STYLES) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
  }
  stage.remove();
  return { text: new XMLSerializer().serializeToString(figure), width, height: bottom };
}

function addLegend(figure, entries, width, top) {
  let x = 12;
  let y = top;
  for (const { name, color, dash } of entries) {
    const length = 40 + 7 * name.length;
    if (x > 12 && x + length > width) {
      x = 12;
      y += 18;
    }
    figure.append(
      svgEl("line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, class: `line c${color} d${dash}` }),
      svgEl("text", { x: x + 26, y, class: "scale" }, name),
    );
    x += length;
  }
  return entries.length ? y + 12 : top;
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function fileName(title, ending) {
  return (
    (title
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 60) || "figure") +
    "." +
    ending
  );
}

function saveSvg(drawing, title, entries) {
  const { text } = standalone(drawing, title, entries);
  download(new Blob([text], { type: "image/svg+xml" }), fileName(title, "svg"));
}

function savePng(drawing, title, entries) {
  const { text, width, height } = standalone(drawing, title, entries);
  const picture = new Image();
  picture.onload = () => {
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => download(blob, fileName(title, "png")), "image/png");
  };
  picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
}
