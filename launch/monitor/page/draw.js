// Makes elements. Text becomes text nodes, whatever it contains.

function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function at(id) {
  return document.getElementById(id);
}

// Not while the user selects text in there.
function replace(id, children) {
  const place = at(id);
  const marked = document.getSelection();
  if (marked && !marked.isCollapsed && place.contains(marked.anchorNode)) return;
  place.replaceChildren(...children.filter((child) => child !== null));
}

// A value that tests and users' scripts also read.
function value(key, words, name = "span", attributes = {}) {
  return html(name, { "data-key": key, ...attributes }, words);
}

function small(points) {
  const picture = svg("svg", { class: "spark", viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (points.length < 2) return picture;
  const low = Math.min(0, ...points);
  const high = Math.max(...points, low + 1e-9);
  const step = 100 / (Math.max(points.length, KEPT / 5) - 1);
  const from = 100 - step * (points.length - 1);
  const line = points.map((one, n) => `${(from + n * step).toFixed(2)} ${(25 - (23 * (one - low)) / (high - low)).toFixed(2)}`);
  picture.append(svg("path", { d: `M${line.join("L")}` }));
  return picture;
}
