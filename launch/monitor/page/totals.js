// Rates as differences of totals over time. A total that falls was restarted from 0.

const WINDOW_S = 10;
const KEPT = 150;  // points of a small curve: as many seconds

class Totals {
  constructor() {
    this.clear();
  }

  clear() {
    this.seen = [];
    this.trails = new Map();
  }

  // Returns true if the broker was restarted since the last totals.
  see(status, seconds) {
    const values = totals(status);
    const at = known(status.uptime_s) ? status.uptime_s : seconds;
    const last = this.seen.at(-1);
    const other = last !== undefined && (at < last.at || values.received < last.values.received);
    if (other) this.clear();
    if (this.seen.at(-1)?.at === at) this.seen.pop();
    this.seen.push({ at, values });
    while (this.seen.length > 2 && this.seen[1].at <= at - WINDOW_S) this.seen.shift();
    return other;
  }

  // Returns the rate over the last seconds; null = not known yet.
  gained(name) {
    let first = null;
    let last = null;
    for (const one of this.seen) {
      const value = one.values[name];
      if (!known(value)) continue;
      if (last === null || value < last.values[name]) first = one;
      last = one;
    }
    return last === null || last === first || last !== this.seen.at(-1)
      ? null
      : { much: last.values[name] - first.values[name], seconds: last.at - first.at };
  }

  rate(name) {
    const gained = this.gained(name);
    return gained && gained.seconds > 0 ? gained.much / gained.seconds : null;
  }

  // Adds a point to a small curve; returns all its points.
  trail(name, value) {
    const points = this.trails.get(name) ?? [];
    if (known(value)) points.push(value);
    if (points.length > KEPT) points.shift();
    this.trails.set(name, points);
    return points;
  }
}

const WAITS = ["env", "credit", "weights", "gather"];

function totals(status) {
  const actors = status.actors ?? {};
  const found = {
    received: status.received,
    version: status.version,
    env_steps: status.samplers?.env_steps ?? actors.env_steps,
    bytes: actors.bytes,
    wall_s: actors.wall_s,
    loop_env_s: actors.loop_env_s,
    // What ran in environments' own threads took none of the sampler's time.
    network_s: known(actors.inference_s) ? actors.inference_s - (actors.replies_s ?? 0) : undefined,
    trained_steps: trainedSteps(status),
  };
  for (const phase of WAITS) found[`wait_${phase}_s`] = actors[`wait_${phase}_s`];
  for (const [name, many] of Object.entries(status.outcomes ?? {})) found[`outcome_${name}`] = many;
  found.outcome_duplicate = status.duplicates ?? found.outcome_duplicate;
  return found;
}

// Returns the steps trained by all ranks, which every rank reports.
function trainedSteps(status) {
  const said = list(status.learners).map((one) => one.trained_steps).filter(known);
  return said.length ? Math.max(...said) : undefined;
}

// Returns received minus settled minus held unrolls; the broker's own count goes first.
function unaccounted(status) {
  if (known(status.unaccounted)) return status.unaccounted;
  const settled = Object.values(status.outcomes ?? {}).filter(known).reduce((sum, one) => sum + one, 0);
  const left = status.received - settled - status.queued - status.leased;
  return known(left) ? left : null;
}
