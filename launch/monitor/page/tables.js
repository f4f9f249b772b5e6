// The figures and the lists below the picture.

const PROBLEMS = new Set(["stale", "shed", "rejected", "poison"]);

function tile(name, key, words, note = "", bad = false, more = null) {
  return html(
    "div", { class: bad ? "tile alarm" : "tile" }, html("div", { class: "name" }, name),
    value(key, words, "div", { class: "value" }), note && value(`${key}_note`, note, "div", { class: "note" }), more,
  );
}

function tiles(status, totals) {
  const ranks = list(status.learners);
  const [trained, sampled] = [totals.rate("trained_steps"), totals.rate("env_steps")];
  const mean = ranks.map((one) => one.mean_return).find(known);
  const lags = ranks.map((one) => one.lag).filter(known);
  const lag = lags.length ? lags.reduce((sum, one) => sum + one, 0) / lags.length : undefined;
  const most = status.max_lag + 1;  // batches that sampling may be ahead
  const ahead = known(status.ahead) && known(status.max_lag) ? `; sampling ${number(status.ahead, 1)} of ${count(most)} batches ahead` : "";
  const missing = unaccounted(status);
  const score = evaluationOf(status);
  return [
    tile("Trained steps/s", "trained_rate", rate(trained), `${count(trainedSteps(status))} in all`, false, small(totals.trail("trained", trained))),
    tile("Sampled steps/s", "sampled_rate", rate(sampled), `${count(totalSampled(status))} in all`, false, small(totals.trail("sampled", sampled))),
    tile("Mean return", "mean_return", amount(mean), score ? `evaluation ${amount(score.mean)}` : "of training episodes", false, small(totals.trail("return", mean))),
    tile("Lag in versions", "lag", known(lag) ? number(lag, 2) : NONE, `mean when trained${ahead}`, known(status.ahead) && status.ahead > most, small(totals.trail("lag", lag))),
    tile("Learner’s version", "version", count(status.version), `${count(status.actors?.behind)} samplers behind`, false, small(totals.trail("versions", totals.rate("version")))),
    tile("Not accounted for", "unaccounted", count(missing), missing === 0 ? "every unroll that came in has its place" : missing === null ? "" : "unrolls: our bug, please report it", missing !== 0 && missing !== null),
  ];
}

function totalSampled(status) {
  return status.samplers?.env_steps ?? status.actors?.env_steps;
}


function evaluationOf(status) {
  return list(status.evaluators).find((one) => known(one.mean)) ?? null;
}

function row(...cells) {
  return html("tr", {}, ...cells);
}

function cell(words, kind = "n") {
  return html("td", { class: kind }, words);
}

function head(...names) {
  return html("thead", {}, row(...names.map((name, n) => html("th", { class: n ? "n" : "", scope: "col" }, name))));
}

function outcomes(status, totals) {
  const ends = Object.entries(status.outcomes ?? {}).filter(([name, many]) => known(many) && name !== "duplicate");
  const here = [["waiting", status.queued], ["at learners", status.leased]].filter(([, many]) => known(many));
  const all = [...ends, ...here].reduce((sum, [, many]) => sum + many, 0);
  const shown = ends.filter(([name, many]) => many || name === "trained");
  replace("bar", all ? shown.map(([name, many]) => {
    const part = html("i", { class: name === "trained" ? name : PROBLEMS.has(name) ? "alarm" : "" });
    part.style.width = `${(100 * many) / all}%`;
    return part;
  }) : []);
  const copies = status.duplicates ?? status.outcomes?.duplicate;
  const lines = shown.map(([name, many]) => row(
    cell(wire(name, 40), PROBLEMS.has(name) ? "alarm" : ""), value(`outcome_${name}`, count(many), "td", { class: "n" }),
    cell(percent(many / all)), value(`outcome_${name}_rate`, rate(totals.rate(`outcome_${name}`)), "td", { class: "n" }),
  ));
  for (const [name, many] of here) lines.push(row(cell(name, ""), cell(count(many)), cell(percent(many / all)), cell("")));
  if (copies) lines.push(row(cell("further copies", "quiet"), value("outcome_duplicate", count(copies), "td", { class: "n" }), cell(""), cell(rate(totals.rate("outcome_duplicate")))));
  replace("outcomes", [head("outcome", "unrolls", "share", "a second"), html("tbody", {}, ...lines)]);
  const missing = unaccounted(status);
  replace("ledger", [
    missing === 0
      ? `${count(status.received)} came in. Each stands in one row above.`
      : missing === null ? "" : `${count(status.received)} came in; ${count(missing)} stand in no row: that is our bug, please report it.`,
  ]);
}

const DOING = {
  wait_env: "waiting for environments", wait_credit: "waiting for credit", wait_weights: "waiting for weights",
  wait_gather: "waiting for more observations", loop_env: "stepping environments itself", network: "in the network",
};

function waits(totals) {
  const whole = totals.gained("wall_s")?.much;
  const shares = Object.entries(DOING).map(([name, words]) => {
    const spent = totals.gained(`${name}_s`)?.much;
    return [name, words, whole > 0 && known(spent) ? Math.min(1, Math.max(0, spent / whole)) : null];
  });
  const all = shares.reduce((sum, [, , share]) => sum + (share ?? 0), 0);
  shares.push(["rest", "unrolls, messages and the rest", whole > 0 ? Math.max(0, 1 - all) : null]);
  replace("waits", [html("tbody", {}, ...shares.map(([name, words, share]) => {
    const bar = html("i");
    bar.style.width = `${100 * (share ?? 0)}%`;
    return row(cell(words, ""), value(name, percent(share), "td", { class: "n" }), html("td", {}, html("div", { class: "share" }, bar)));
  }))]);
}

function explain(status) {
  const lines = (Array.isArray(status.explain) ? status.explain : []).filter((line) => typeof line === "string");
  at("explained").hidden = !lines.length;
  replace("explain", lines.map((line) => html("li", {}, html("bdi", {}, wire(line, 400)))));
}

function late(status) {
  const many = list(status.late);
  replace("late", many.length ? many.map((one) => html(
    "li", {}, html("span", { class: "who alarm" }, `${wire(one.role, 20)} `, html("bdi", { class: "alarm" }, wire(one.name, 64))), " ",
    html("span", { class: "since" }, `not heard for ${span(one.silent_s)}`),
  )) : [html("li", { class: "quiet" }, "Nobody: every role beats in time.")]);
}

function troubles(status) {
  const many = list(status.troubles);
  replace("troubles", many.length ? many.map((one) => html(
    "li", {}, html("span", { class: "who alarm" }, `${wire(one.role, 20)} `, html("bdi", {}, wire(one.name, 64))), " ",
    html("span", { class: "since" }, `${one.count > 1 ? `${count(one.count)} times, last ` : ""}${span(one.ago_s)} ago`),
    html("bdi", { class: "long" }, wire(one.text, 2000)),
  )) : [html("li", { class: "quiet" }, "None.")]);
}

// Times of two clocks are compared as they are: what is below zero shows that they differ.
function ways(status) {
  const all = list(status.ways);
  at("traces").hidden = !all.length;
  const ms = (key, took) => value(key, known(took) ? number(took, 1) : NONE, "td", { class: took < 0 ? "n alarm" : "n" });
  replace("ways", [
    head("", "", "unrolls", "shortest", "50 %", "90 %", "99 %", "longest"),
    html("tbody", {}, ...all.map((way, n) => row(
      cell(wire(way.name, 24), ""), cell(`${wire(way.since, 24)} to ${wire(way.to, 24)}`, "quiet"), value(`way_unrolls_${n}`, count(way.unrolls), "td", { class: "n" }),
      ...["shortest", "p50", "p90", "p99", "longest"].map((figure) => ms(`way_${figure}_${n}`, way[figure])),
    ))),
  ]);
}

const METRIC = "metric.";
const MOST_METRICS = 16;
const MOST_OPPONENTS = 17;

function metrics(status) {
  const [training, evaluation] = [list(status.learners), list(status.evaluators)];
  const names = [...new Set([...training, ...evaluation].flatMap((one) => Object.keys(one)))].filter((name) => name.startsWith(METRIC)).slice(0, MOST_METRICS);
  at("measured").hidden = !names.length;
  const mean = (key, of, name) => value(key, amount(of.map((one) => one[name]).find(known)), "td", { class: "n" });
  replace("metrics", [
    head("", "training", "evaluation"),
    html("tbody", {}, ...names.map((name, n) => row(
      cell(wire(name.slice(METRIC.length), 40), ""), mean(`metric_training_${n}`, training, name), mean(`metric_evaluation_${n}`, evaluation, name),
    ))),
  ]);
}

function league(status) {
  const met = list(status.league).slice(0, MOST_OPPONENTS);
  at("league").hidden = !met.length;
  const signed = (much) => known(much) ? `${much > 0 ? "+" : ""}${number(much, 0)}` : NONE;
  replace("games", [
    head("", "won", "drawn", "lost", "points", "rating", "95 % interval"),
    html("tbody", {}, ...met.map((one, n) => row(
      html("td", {}, html("bdi", {}, wire(one.opponent, 64))), ...["won", "drawn", "lost"].map((how) => value(`games_${how}_${n}`, count(one[how]), "td", { class: "n" })),
      value(`games_points_${n}`, percent(one.points), "td", { class: "n" }), value(`games_rating_${n}`, signed(one.rating), "td", { class: "n" }),
      cell(`${signed(one.low)} to ${signed(one.high)}`, "n quiet"),
    ))),
  ]);
}

// Shown above, or of no use to people: "clock" is the time of day at which a rank sent its figures.
const PLAIN = new Set(["name", "silent_s", "clock", "version", "t", "trained_steps", "episodes", "mean_return", "lag"]);

function ranks(status) {
  const all = list(status.learners);
  const parts = [...new Set(all.flatMap((one) => Object.keys(one)))].filter((name) => !PLAIN.has(name) && !name.startsWith(METRIC)).slice(0, 28);
  const line = (name, key, words) => row(cell(name, ""), ...all.map((one, n) => value(`${key}_${n}`, words(one), "td", { class: "n" })));
  replace("ranks", all.length ? [
    head("", ...all.map((one, n) => wire(one.name ?? `rank ${n}`, 24))),
    html(
      "tbody", {}, line("version", "rank_version", (one) => count(one.version)), line("lag", "rank_lag", (one) => known(one.lag) ? number(one.lag, 2) : NONE),
      line("episodes", "rank_episodes", (one) => count(one.episodes)),
      ...(all.some((one) => known(one.silent_s)) ? [line("last heard", "rank_silent", (one) => known(one.silent_s) ? `${number(one.silent_s, 1)} s ago` : NONE)] : []),
      ...parts.map((part) => line(wire(part, 64).replaceAll("_", " "), `rank_${part}`, (one) => amount(one[part]))),
    ),
  ] : [html("tbody", {}, row(cell("No learner is here.", "quiet")))]);
}
