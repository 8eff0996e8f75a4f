// Special cases of MPELU, and the scales of the sliders that reach them.

const DRAWN = { from: -5, to: 3 };
const INPUTS = Array.from(
  { length: 801 },
  (_, i) => DRAWN.from + ((DRAWN.to - DRAWN.from) * i) / 800,
);
const NEAR = 0.01; // a curve this close to a special case is called equal within a tolerance

const CASES = [
  { name: "ReLU", activation: "relu", alpha: 0, beta: 1, curve: (y) => Math.max(y, 0) },
  {
    name: "leaky ReLU 0.01",
    activation: "leaky_relu",
    alpha: 1.0252,
    beta: 0.01,
    curve: (y) => (y > 0 ? y : 0.01 * y),
  },
  {
    name: "PReLU 0.25",
    activation: "prelu",
    alpha: 25.6302,
    beta: 0.01,
    curve: (y) => (y > 0 ? y : 0.25 * y),
  },
  {
    name: "ELU",
    activation: "elu",
    alpha: 1,
    beta: 1,
    curve: (y) => (y > 0 ? y : Math.expm1(y)),
  },
  { name: "identity", activation: "identity", alpha: 98, beta: 0.01, curve: (y) => y },
];

/** A nonlinear slider over a wide range that stops exactly at the special cases. */
function sliderScale(positions, toValue, toPosition, stops) {
  const exact = new Map(stops.map((stop) => [Math.round(toPosition(stop)), stop]));
  return {
    positions,
    value: (position) =>
      exact.has(position) ? exact.get(position) : Number(toValue(position).toPrecision(3)),
    position: (value) => Math.min(positions, Math.max(0, Math.round(toPosition(value)))),
  };
}

const STEEPNESS = 2 * Math.acosh(50); // puts alpha = 1 in the middle and 100 at the end
const SCALES = {
  alpha: sliderScale(
    1000,
    (p) => (100 * Math.sinh((STEEPNESS * p) / 1000)) / Math.sinh(STEEPNESS),
    (a) => (1000 * Math.asinh((a * Math.sinh(STEEPNESS)) / 100)) / STEEPNESS,
    CASES.map((c) => c.alpha),
  ),
  beta: sliderScale(
    900,
    (p) => Math.pow(10, p / 300 - 2),
    (b) => 300 * (Math.log10(b) + 2),
    [0.01, 0.1, 1, 10],
  ),
};
const BOUNDS = { alpha: [-100, 100], beta: [0.0001, 100] };

/** The largest distance from a curve on the drawn interval, and where it is. */
function farthest(curve, alpha, beta) {
  let most = { distance: 0, at: 0 };
  for (const y of INPUTS) {
    const distance = Math.abs(mpelu(y, alpha, beta) - curve(y));
    if (distance > most.distance) most = { distance, at: y };
  }
  return most;
}

/** Which special case the curve is, in one sentence. */
function verdict(alpha, beta) {
  const where = "on −5 ≤ y ≤ 3";
  const all = CASES.map((c) => ({ name: c.name, ...farthest(c.curve, alpha, beta) }));
  const nearest = all.reduce((best, c) => (c.distance < best.distance ? c : best));
  if (nearest.distance < 1e-12) return `The curve equals ${nearest.name}.`;
  if (beta === 1) return `The curve equals ELU with α = ${show(alpha, 6)}.`;
  const apart = show(nearest.distance, 2);
  const place = `at y = ${show(nearest.at, 3)}`;
  if (nearest.distance <= NEAR) {
    return `The curve equals ${nearest.name} to within ${apart} ${where}; the largest difference is ${place}.`;
  }
  return `Not a special case. The closest is ${nearest.name}, which differs by up to ${apart} ${where}, ${place}.`;
}
