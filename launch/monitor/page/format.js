// Formats numbers, and text from untrusted peers.

const NONE = "–";

function number(value, digits = 0) {
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function count(value) {
  if (!known(value)) return NONE;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]])
    if (Math.abs(value) >= size) return `${number(value / size, 2)} ${unit}`;
  return number(value);
}

function rate(value) {
  if (!known(value)) return NONE;
  return value < 10 ? number(value, value ? 2 : 0) : value < 100 ? number(value, 1) : count(value);
}

function amount(value) {  // a return, a loss: any size, any sign
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size && size < 0.001) return value.toExponential(1);
  return size < 1 ? number(value, 3) : size < 100 ? number(value, 2) : size < 1e6 ? number(value, 1) : count(value);
}

function bytes(value) {
  if (!known(value)) return NONE;
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= size) return `${number(value / size, value >= 100 * size ? 0 : 1)} ${unit}`;
  return `${number(value)} B`;
}

function percent(share) {
  if (!known(share)) return NONE;
  const all = 100 * share;
  if (all > 0 && all < 0.1) return "< 0.1 %";
  return `${number(all, all > 0 && all < 9.95 ? 1 : 0)} %`;
}

function span(seconds) {
  if (!known(seconds)) return NONE;
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 90) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

function plural(many, one, more = `${one}s`) {
  return `${count(many)} ${many === 1 ? one : more}`;
}

function clock(date) {
  return date.toLocaleTimeString("en-GB");
}

// Names and errors come from untrusted peers: control characters and direction marks are made
// visible, and the length is bounded. The result goes into text nodes only.
function wire(text, most = 200) {
  const whole = [...String(text ?? "")];
  const shown = whole.slice(0, most).join("").replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, "\u{FFFD}");
  return whole.length > most ? `${shown}…` : shown;
}

function list(value) {
  return Array.isArray(value) ? value.filter((one) => one && typeof one === "object") : [];
}
