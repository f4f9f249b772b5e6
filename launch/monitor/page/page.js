// Fetches the status every second while the page is visible, and shows it.

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;

const seen = new Totals();
const returns = new Returns();
const pipeline = new Pipeline(at("pipeline"));
let shown = null;      // the last status
let answered = null;   // when it came
let restarted = null;  // when another broker took the place of the one before
let timer = 0;
let asking = false;

async function ask() {
  if (asking) return;
  asking = true;
  const began = performance.now();
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const status = await answer.json();
    if (known(status.silent_s)) {  // who serves the page has it from a broker that is silent
      if (status.received !== undefined && shown === null) show(status);
      silent(status.silent_s);
    } else if (known(status.received)) {
      if (seen.see(status, began / 1000)) {
        restarted = new Date();
        returns.clear();
      }
      answered = new Date();
      show(status);
      heard(status);
    }
  } catch {
    silent();
  }
  asking = false;
  again(began);
}

function again(began) {
  clearTimeout(timer);  // one that was set before somebody looked again
  if (document.visibilityState === "visible") timer = setTimeout(ask, Math.max(100, EVERY_MS - (performance.now() - began)));
}

function heard(status) {
  at("main").classList.remove("old");
  at("state").className = state(status)[1];
  at("state").textContent = state(status)[0];
  const since = restarted ? [`the broker restarted at ${clock(restarted)}`] : [];
  const up = known(status.uptime_s) ? [`up ${span(status.uptime_s)}`] : [];
  at("facts").textContent = [...since, ...up, clock(answered)].join(" · ");
  const wrong = attention(status);
  at("attention").hidden = !wrong.length;
  const lines = wrong.join("\n");
  if (at("attention").dataset.lines !== lines) {
    at("attention").dataset.lines = lines;
    replace("attention", wrong.map((words) => html("li", {}, words)));
  }
}

function silent(seconds) {
  at("main").classList.add("old");
  at("state").className = "bad";
  const since = answered ?? (known(seconds) ? new Date(Date.now() - 1000 * seconds) : null);
  at("state").textContent = since
    ? `the broker has not answered since ${clock(since)} (${span((Date.now() - since) / 1000)})`
    : "the broker does not answer";
  at("facts").textContent = shown ? "what stands below is from before" : "";
  at("attention").hidden = true;
  document.title = `no answer · ${at("run").textContent}`;
}

// The run's state in words, and its style.
function state(status) {
  if (status.over) return ["the run is over", "stopped"];
  if (!list(status.learners).length) return ["no learner is here", "bad"];
  if (!status.actors?.count) return ["no sampler is here", "bad"];
  const speed = seen.rate("outcome_trained");  // the broker's own count: learners tell theirs later
  if (speed > 0) return ["training", ""];
  if (speed === 0 && seen.gained("received")?.seconds >= 5) return ["nothing is being trained", "bad"];
  return [status.outcomes?.trained ? "it has trained; how fast is not known yet" : "starting", "stopped"];
}

// What an operator should look at; nothing when all is well.
function attention(status) {
  const [late, errors, missing] = [list(status.late).length, list(status.troubles), unaccounted(status)];
  const recent = errors.filter((one) => !known(one.ago_s) || one.ago_s < 3600);
  const fill = status.queued_bytes / status.queue_limit_bytes;
  const old = status.behind_versions;
  return [
    missing ? `${plural(Math.abs(missing), "unroll")} not accounted for` : "",
    late ? `${late >= 20 ? "20 roles or more are" : late === 1 ? "1 role is" : `${late} roles are`} late` : "",
    recent.length ? `${plural(recent.length, "error")} reported within the last hour` : "",
    fill >= 0.9 ? `the broker’s queue is ${percent(fill)} full` : "",
    known(old) && known(status.max_lag) && old > status.max_lag + 2 ? `the oldest acting weights are ${plural(old, "version")} behind` : "",
  ].filter(Boolean);
}

function show(status) {
  shown = status;
  at("main").hidden = false;
  at("run").textContent = wire(status.run || "headrace", 120);
  const speed = seen.rate("trained_steps");
  document.title = `${known(speed) ? `${rate(speed)} steps/s · ` : ""}${at("run").textContent}`;
  pipeline.draw(status, seen);
  replace("tiles", tiles(status, seen));
  explain(status);
  drawn();
  outcomes(status, seen);
  waits(seen);
  late(status);
  troubles(status);
  metrics(status);
  league(status);
  ways(status);
  ranks(status);
}

function drawn() {
  if (shown) replace("curve", [curve(at("curve").clientWidth || 600, returns.see(shown), evaluationOf(shown))]);
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") ask();
});
addEventListener("resize", drawn);
ask();
