// The picture: samplers -> the broker's queue -> learner ranks, and weights back. Rebuilt when the
// window's shape changes, else only its texts change, so that the animation does not stutter.

const DOTS = 96;  // a sampler each; of more, a dot stands for several
const BESIDE_FROM = 760;  // narrower windows have the rooms above one another

class Pipeline {
  constructor(place) {
    this.place = place;
    this.width = 0;
    this.last = null;
    new ResizeObserver(() => this.last && this.draw(...this.last)).observe(place);
  }

  draw(status, totals) {
    this.last = [status, totals];
    const width = Math.round(this.place.clientWidth);
    if (!width) return;
    if (width !== this.width) {
      this.width = width;
      this.picture = width >= BESIDE_FROM ? beside(width) : above(width);
      this.place.replaceChildren(this.picture.svg);
    }
    for (const part of [samplers, broker, learner, flows]) part(this.picture, status, totals);
  }
}

function beside(width) {
  const [side, middle, height] = [0.26 * width, 0.24 * width, 138];
  const gap = (width - 2 * side - middle) / 2;
  const rooms = {
    samplers: { x: 1, y: 1, w: side, h: height },
    broker: { x: side + gap, y: 1, w: middle, h: height },
    learner: { x: width - side - 1, y: 1, w: side, h: height },
  };
  const [level, back, from, to] = [68, height + 34, width - side / 2, side / 2];
  return picture(width, height + 60, rooms, {
    sent: { d: `M${side + 8} ${level}H${side + gap - 14}`, tip: [side + gap - 6, level, 0], words: [side + gap / 2, level - 12, level + 21] },
    given: { d: `M${side + gap + middle + 8} ${level}H${width - side - 15}`, tip: [width - side - 7, level, 0], words: [width - side - gap / 2, level - 12, level + 21] },
    weights: {
      d: `M${from} ${height + 8}V${back - 8}Q${from} ${back} ${from - 8} ${back}H${to + 8}Q${to} ${back} ${to} ${back - 8}V${height + 16}`,
      tip: [to, height + 8, -90], words: [width / 2, back - 10, back + 20],
    },
  });
}

function above(width) {
  const [gutter, height, gap] = [36, 132, 52];
  const w = width - gutter;
  const room = (n) => ({ x: 1, y: 1 + n * (height + gap), w, h: height });
  const rooms = { samplers: room(0), broker: room(1), learner: room(2) };
  const down = (n) => {
    const top = 1 + n * (height + gap) + height;
    return { d: `M26 ${top + 6}V${top + gap - 14}`, tip: [26, top + gap - 6, 90], words: [44, top + 23, top + 41], start: true };
  };
  const [top, bottom, right] = [height / 2, 2.5 * height + 2 * gap, width - 10];
  return picture(width, 3 * height + 2 * gap + 50, rooms, {
    sent: down(0),
    given: down(1),
    weights: {
      d: `M${w + 8} ${bottom}H${right - 8}Q${right} ${bottom} ${right} ${bottom - 8}V${top + 8}Q${right} ${top} ${right - 8} ${top}H${w + 15}`,
      tip: [w + 7, top, 180], words: [1, 3 * height + 2 * gap + 22, 3 * height + 2 * gap + 40], start: true,
    },
  });
}

function picture(width, height, rooms, ways) {
  const made = { rooms, ways: {}, svg: svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }) };
  made.name = svg("title");
  made.svg.append(made.name);
  for (const [name, room] of Object.entries(rooms)) {
    room.over = svg("g");
    made.svg.append(svg("rect", { class: "room", x: room.x, y: room.y, width: room.w, height: room.h, rx: 9 }), room.over);
    room.name = name;
  }
  for (const [name, way] of Object.entries(ways)) {
    const [x, y, turn] = way.tip;
    const path = svg("path", { class: "way", d: way.d });
    const tip = svg("path", { class: "tip", d: "M0 0L-9 -4.5V4.5Z", transform: `translate(${x} ${y}) rotate(${turn})` });
    const [across, first, second] = way.words;
    const kind = way.start ? "" : "middle";
    const upper = svg("text", { x: across, y: first, class: `strong ${kind}`, "data-key": `${name}_rate` });
    const lower = svg("text", { x: across, y: second, class: `quiet ${kind}`, "data-key": `${name}_words` });
    const third = svg("text", { x: across, y: second + 17, class: `quiet ${kind}`, "data-key": `${name}_more` });
    made.svg.append(path, tip, upper, lower, third);
    made.ways[name] = { path, upper, lower, third, short: !way.start };
  }
  return made;
}

function text(x, y, words, kind = "", key = "") {
  return svg("text", { x, y, class: kind, ...(key && { "data-key": key }) }, words);
}

function samplers({ rooms: { samplers: room } }, status) {
  const actors = status.actors ?? {};
  const many = known(actors.count) ? actors.count : 0;
  const behind = known(actors.behind) ? actors.behind : 0;
  const late = lateOf(status, "actor").length;
  const left = room.x + 15;
  room.over.replaceChildren(
    text(left, room.y + 25, "Samplers", "quiet"),
    text(left, room.y + 60, count(many), "large", "samplers"),
    text(left, room.y + 84, late ? `${late} late` : behind ? `${count(behind)} behind` : many ? "all up to date" : "", late ? "alarm" : "quiet", "samplers_note"),
    text(left, room.y + 101, late && behind ? `${count(behind)} behind` : "", "quiet"),
    ...dots(room, many, behind, late),
  );
}

function dots(room, many, behind, late) {
  if (!many) return [];
  const each = Math.ceil(many / DOTS);
  const shown = Math.ceil(many / each);
  const [left, right] = [room.x + room.w * 0.52, room.x + room.w - 18];
  const step = Math.min(16, Math.sqrt(((right - left) * (room.h - 44)) / Math.max(shown, 12)));
  const columns = Math.max(1, Math.floor((right - left) / step) + 1);
  const made = [];
  for (let n = 0; n < shown; n++) {
    const kind = n < Math.ceil(late / each) ? " late" : n >= shown - Math.ceil(behind / each) ? " behind" : "";
    const [x, y] = [right - (n % columns) * step, room.y + 22 + Math.floor(n / columns) * step];
    made.push(svg("circle", { class: `dot${kind}`, cx: x.toFixed(1), cy: y.toFixed(1), r: (step / 3.6).toFixed(1) }));
  }
  if (each > 1) made.push(text(right + 4, room.y + room.h - 9, `a dot is ${each}`, "quiet end"));
  return made;
}

function broker({ rooms: { broker: room } }, status) {
  const level = status.queue_limit_bytes > 0 ? Math.min(1, status.queued_bytes / status.queue_limit_bytes) : null;
  const left = room.x + 15;
  room.over.replaceChildren(
    text(left, room.y + 25, "Broker’s queue", "quiet"),
    text(left, room.y + 60, count(status.queued), "large", "queued"),
    text(left, room.y + 84, `${count(status.leased)} at learners`, "quiet", "leased"),
    text(left, room.y + 102, `${count(status.running)} being made`, "quiet", "running"),
  );
  if (known(level)) room.over.append(...tank(room, level));
}

// How full its memory is.
function tank(room, level) {
  const [x, y, w, h] = [room.x + room.w - 29, room.y + 15, 14, room.h - 30];
  const high = Math.max(level * h, level ? 2 : 0);
  const kind = level >= 0.9 ? "late" : "";
  return [
    svg("rect", { class: "tank", x, y, width: w, height: h, rx: 3 }),
    svg("rect", { class: `water ${kind}`, x, y: y + h - high, width: w, height: high, rx: Math.min(3, high / 2) }),
    text(room.x + 15, room.y + room.h - 14, level >= 0.1 ? `${percent(level)} full` : "", level >= 0.9 ? "alarm" : "quiet", "full"),
  ];
}

function learner({ rooms: { learner: room } }, status, totals) {
  const ranks = list(status.learners);
  const late = lateOf(status, "learner").length;
  const left = room.x + 15;
  const parts = ranks.length > 1 ? plural(ranks.length, "rank") : ranks.length ? "Learner" : "No learner";
  room.over.replaceChildren(
    text(left, room.y + 25, ranks.length > 1 ? `Learner, ${parts}` : parts, "quiet", "ranks"),
    text(left, room.y + 60, rate(totals.rate("trained_steps")), "large", "learner_rate"),
    text(left, room.y + 84, "steps trained a second", "quiet"),
  );
  if (late) room.over.append(text(room.x + room.w - 15, room.y + 25, `${late} late`, "alarm end"));
  const step = Math.min(24, (room.w - 24) / Math.max(1, Math.min(ranks.length, 16)));
  ranks.slice(0, 16).forEach((one, n) => {
    const silent = isLate(status, one.silent_s);
    room.over.append(svg("rect", {
      class: `dot${silent ? " late" : ""}`, x: (left + n * step).toFixed(1), y: room.y + room.h - 27, width: (step * 0.7).toFixed(1), height: 11, rx: 3,
    }));
  });
}

function flows({ ways, name, svg: whole }, status, totals) {
  const received = totals.rate("received");
  const trained = totals.rate("outcome_trained");
  const versions = totals.rate("version");
  const sent = totals.rate("bytes");
  say(ways.sent, received, received === null ? "" : `${rate(received)}/s`, "unrolls", sent === null ? "" : `${bytes(sent)}/s`);
  say(ways.given, trained, trained === null ? "" : `${rate(trained)}/s`, "trained");
  const size = known(status.weights_bytes) && status.weights_bytes ? `, ${bytes(status.weights_bytes)} each` : "";
  say(
    ways.weights, versions, `weights, version ${count(status.weights)}`,
    versions === null ? "" : `${rate(versions)} a second${size}`,
  );
  name.textContent = `${plural(status.actors?.count ?? 0, "sampler")} send unrolls to the broker, where`
    + ` ${count(status.queued)} wait; ${plural(list(status.learners).length, "learner rank")} train and`
    + ` publish weights, now version ${count(status.weights)}.`;
  whole.setAttribute("aria-label", name.textContent);
}

function say(way, speed, upper, lower, more = "") {
  way.path.setAttribute("class", speed > 0 ? "way flows" : "way");
  way.upper.textContent = upper;
  way.lower.textContent = way.short || !more ? lower : `${lower}, ${more}`;
  way.third.textContent = way.short ? more : "";
}

function isLate(status, silent) {
  return known(silent) && silent > 2.5 * (status.beat_s ?? 1);
}

function lateOf(status, role) {
  return list(status.late).filter((one) => one.role === role);
}
