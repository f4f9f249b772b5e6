// The learning curve.

// Returns about that many round numbers, from below the lowest to above the highest.
function ticks(low, high, about) {
  const rough = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.floor(low / step) * step;
  const found = [];
  for (let n = 0; n < 40 && (found.at(-1) ?? -Infinity) < high; n++) found.push(first + n * step);
  return found;
}

function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(4))}${unit}`;
  return `${Number(value.toPrecision(4))}`;
}

function curve(width, points, evaluation) {
  if (points.length < 2)
    return html("p", { class: "quiet" }, "No curve yet: it begins when episodes end and batches are trained.");
  const [height, left, right, top, bottom] = [width < 560 ? 210 : 250, 50, 14, 10, 46];
  const seen = points.map(([, mean]) => mean);
  const extra = evaluation ? [evaluation.mean, evaluation.low, evaluation.high].filter(known) : [];
  const ys = ticks(Math.min(...seen, ...extra), Math.max(...seen, ...extra), 4);
  const [x0, x1, y0, y1] = [points[0][0], points.at(-1)[0], ys[0], ys.at(-1)];
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Mean return ${amount(seen.at(-1))} after ${count(x1)} steps` });
  for (const value of ys)
    made.append(
      svg("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }),
      svg("text", { class: "quiet end", x: left - 9, y: y(value) + 4 }, short(value)),
    );
  for (const value of ticks(x0, x1, width < 560 ? 3 : 6).filter((one) => one >= x0 && one <= x1))
    made.append(svg("text", { class: "quiet middle", x: Math.min(x(value), width - right - 8), y: height - bottom + 19 }, short(value)));
  made.append(svg("text", { class: "quiet", x: left, y: height - 1 }, "mean return of episodes, by steps trained"));
  if (evaluation && known(evaluation.low) && known(evaluation.high))
    made.append(svg("rect", { class: "band", x: left, width: width - left - right, y: y(evaluation.high), height: Math.max(1, y(evaluation.low) - y(evaluation.high)) }));
  if (evaluation) {
    const level = y(evaluation.mean);
    made.append(
      svg("path", { class: "dash", d: `M${left} ${level}H${width - right}` }),
      svg("text", { class: "quiet", x: left + 6, y: level < top + 18 ? level + 15 : level - 6 }, `evaluation ${amount(evaluation.mean)}`),
    );
  }
  const line = points.map(([step, mean]) => `${x(step).toFixed(1)} ${y(mean).toFixed(1)}`);
  made.append(
    svg("path", { class: "line", d: `M${line.join("L")}` }),
    svg("circle", { class: "last", cx: x(x1), cy: y(seen.at(-1)), r: 4 }),
  );
  return made;
}

// The broker's points, and those that this page saw itself: older brokers send none.
class Returns {
  constructor() {
    this.clear();
  }

  clear() {
    this.own = [];
  }

  see(status) {
    const first = list(status.learners).find((one) => known(one.mean_return) && known(one.trained_steps));
    if (first && first.trained_steps > (this.own.at(-1)?.[0] ?? -1)) this.own.push([first.trained_steps, first.mean_return]);
    if (this.own.length > 512) this.own = this.own.filter((_, n) => n % 2 === 0);
    const told = (Array.isArray(status.curve) ? status.curve : []).filter((one) => Array.isArray(one) && known(one[0]) && known(one[1]));
    return told.length ? told : this.own;
  }
}
