// Elements, numbers and the choices of the reader. Data reaches the page only as text nodes.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svgEl(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Choices of the reader by name. They are kept when a live page is drawn again. */
const chosen = new Map();

function remember(name, value) {
  chosen.set(name, value);
  return value;
}

function recall(name, otherwise) {
  return chosen.has(name) ? chosen.get(name) : otherwise;
}

function say(message) {
  const place = document.getElementById("said");
  place.textContent = message;
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), 2500);
}

const SUPERSCRIPTS = {
  "-": "⁻",
  0: "⁰",
  1: "¹",
  2: "²",
  3: "³",
  4: "⁴",
  5: "⁵",
  6: "⁶",
  7: "⁷",
  8: "⁸",
  9: "⁹",
};

function power(exponent) {
  return "10" + [...String(exponent)].map((c) => SUPERSCRIPTS[c]).join("");
}

/** A number with a minus sign, in powers of ten if it is very large or small. */
function show(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) {
    const [mantissa, exponent] = value.toExponential(Math.max(0, digits - 2)).split("e");
    const front = Number(mantissa) === 1 ? "" : Number(mantissa) + "·";
    return (front + power(Number(exponent))).replace("-", "−");
  }
  const short = Number(value.toPrecision(digits));
  const text =
    size >= 10000 && Number.isInteger(short) ? short.toLocaleString("en-US") : String(short);
  return text.replace("-", "−");
}

function percent(value) {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

function whole(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

function select(id, label, options, onchange) {
  const start = recall(id, options[0].value);
  const field = el(
    "select",
    { id, onchange: () => onchange(remember(id, field.value)) },
    options.map(({ value, text }) => el("option", { value, selected: value === start }, text)),
  );
  return el("label", { class: "field" }, label + " ", field);
}

function checkbox(id, label, checked, onchange, mark) {
  const box = el("input", { type: "checkbox", id, checked, onchange: () => onchange(box.checked) });
  return el("label", { class: "tick" }, box, mark || null, el("span", {}, label));
}

function button(label, onclick, attributes) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

function section(id, title, ...children) {
  return el(
    "section",
    { id, "aria-labelledby": id + "-title" },
    el("h2", { id: id + "-title" }, title),
    children,
  );
}
