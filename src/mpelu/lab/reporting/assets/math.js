// MPELU, its slope and its Gaussian moments, with the formulas of mpelu.moments.

function mpelu(y, alpha, beta) {
  return y > 0 ? y : alpha * Math.expm1(beta * y);
}

function mpeluSlope(y, alpha, beta) {
  return y > 0 ? 1 : alpha * beta * Math.exp(beta * y);
}

/** e^(x^2) erfc(x) for x >= 0: a power series near zero, otherwise a continued fraction. */
function erfcx(x) {
  if (x < 2) {
    let term = x;
    let sum = x;
    for (let n = 1; Math.abs(term) > 1e-17 * sum; n++) {
      term *= (2 * x * x) / (2 * n + 1);
      sum += term;
    }
    return Math.exp(x * x) - (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = x;
  for (let n = 120; n > 0; n--) fraction = x + n / 2 / fraction;
  return 1 / (Math.sqrt(Math.PI) * fraction);
}

const SERIES_BELOW = 0.25;

/** Coefficients of t^k, k >= 2, in E(t) = e^(t^2/2) P(z < -t). */
const TAIL_SERIES = (() => {
  const gamma = [1, Math.sqrt(Math.PI) / 2]; // gamma(k/2 + 1) for k = 0, 1
  const terms = [];
  for (let k = 2; k < 24; k++) {
    gamma[k] = (k / 2) * gamma[k - 2];
    terms.push([k, (0.5 * Math.pow(-Math.SQRT1_2, k)) / gamma[k]]);
  }
  return terms;
})();

/** Exact mean and second moment of MPELU under N(0, variance); a series where the formula cancels. */
function moments(alpha, beta, variance) {
  const sigma = Math.sqrt(variance);
  const t = beta * sigma;
  const root = Math.sqrt(2 * Math.PI);
  if (t < SERIES_BELOW) {
    let tail = 0;
    let second = 0;
    for (const [k, term] of TAIL_SERIES) {
      tail += term * Math.pow(t, k);
      second += term * (Math.pow(2, k) - 2) * Math.pow(t, k);
    }
    return {
      mean: (sigma * (1 - alpha * beta)) / root + alpha * tail,
      second: variance / 2 + alpha * alpha * second,
    };
  }
  const tail = erfcx(t * Math.SQRT1_2) / 2;
  const double = erfcx(2 * t * Math.SQRT1_2) / 2;
  return {
    mean: sigma / root + alpha * (tail - 0.5),
    second: variance / 2 + alpha * alpha * (double - 2 * tail + 0.5),
  };
}

/** The second moment of the paper, with the exponential replaced by its tangent at zero. */
function taylorSecond(alpha, beta, variance) {
  return ((1 + alpha * alpha * beta * beta) / 2) * variance;
}
