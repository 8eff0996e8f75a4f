// Scales, ticks and ranges of a plot.

const COLORS = 7;
const DASHES = 4;
const SMALLEST = 1e-305; // smallest start of a log scale

/** Colour and dash of the n-th series: all colours in solid lines, then dashed, then dotted. */
function look(index) {
  return { color: index % COLORS, dash: Math.floor(index / COLORS) % DASHES };
}

/** Colours in charts of activations for series that are none: unlike those of common activations. */
const BESIDE = [4, 3, 5];

/**
 * Colour and dash of each series of a chart. An activation has the colour of its name, and a dash
 * for each time it comes again; where there are too few dashes, all series take turns.
 */
function seriesLooks(names) {
  const counts = new Map();
  let others = 0;
  const found = names.map((name) => {
    if (!name) {
      const round = Math.floor(others / BESIDE.length);
      return { color: BESIDE[others++ % BESIDE.length], dash: round % DASHES };
    }
    const dash = counts.get(name) || 0;
    counts.set(name, dash + 1);
    return { color: `-${name}`, dash };
  });
  const most = Math.max(0, ...counts.values());
  return most && most <= DASHES ? found : names.map((_, index) => look(index));
}

function linearTicks(low, high, count, integers) {
  const rough = (high - low) / Math.max(1, count);
  const unit = Math.pow(10, Math.floor(Math.log10(rough)));
  let step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999);
  if (integers && high - low >= 1) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++)
    ticks.push(n === 0 ? 0 : n * step);
  return ticks;
}

function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / Math.max(1, count)));
  const digits =
    last - first <= 1 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : last - first <= 3 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = first; e <= last; e += every) {
    for (const m of digits) {
      const tick = m * Math.pow(10, e);
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
    }
  }
  return ticks.length >= 2 ? ticks : linearTicks(low, high, count, false).filter((t) => t > 0);
}

/** Tick labels; all in powers of ten on a log scale that spans many. */
function tickTexts(ticks, log) {
  const wide = log && ticks.length > 1 && ticks.at(-1) / ticks[0] > 5e3;
  return ticks.map((tick) => (wide ? power(Math.round(Math.log10(tick))) : show(tick, 6)));
}

/** Maps values from [low, high] to pixels [from, to]. */
function scale(low, high, from, to, log) {
  const move = log ? Math.log : (value) => value;
  const start = move(low);
  const ratio = (to - from) / (move(high) - start);
  const map = (value) => from + (move(value) - start) * ratio;
  map.back = (pixel) => {
    const value = start + (pixel - from) / ratio;
    return log ? Math.exp(value) : value;
  };
  return map;
}

/** Whether a range can be drawn without running out of floating-point precision or range. */
function visible([low, high], log) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return high - low > 1e-9 * size && size < 1 / SMALLEST && !(log && low < SMALLEST);
}

/** The range of all values with a margin; of the positive values on a log scale. */
function extent(lists, log, margin) {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return log ? [0.1, 10] : [0, 1];
  if (log) {
    const wider = Math.exp(Math.max(Math.log(high) - Math.log(low), 0.4) * margin);
    return [Math.max(low / wider, SMALLEST), Math.min(high * wider, 1 / SMALLEST)];
  }
  const wider = high > low ? (high - low) * margin : 0.05 * Math.abs(high) || 1;
  return [low - wider, high + wider];
}
