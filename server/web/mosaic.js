// Draws a placeholder for a picture that is not ready: a field of tiles, filled in proportion to the work done.
import { svg } from "./dom.js";

const ACROSS = 12;
const TONES = 5;

// Numbers from a text, the same ones each time (FNV-1a and xorshift).
function* numbersOf(text) {
  let state = 0x811c9dc5;
  for (const char of text) state = Math.imul(state ^ char.codePointAt(0), 0x01000193) >>> 0;
  state = state || 1;
  for (;;) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    yield state;
  }
}

export function mosaic(text) {
  const numbers = numbersOf(text);
  const next = () => numbers.next().value;
  const tiles = [];
  for (let i = 0; i < ACROSS * ACROSS; ++i) {
    const [x, y] = [i % ACROSS, Math.floor(i / ACROSS)];
    // Rings around a centre, with a few tiles that fell out of line.
    const ring = Math.floor(Math.hypot(x - ACROSS / 2 + 0.5, y - ACROSS / 2 + 0.5));
    const tone = next() % 6 === 0 ? next() % TONES : ring % TONES;
    const shift = () => ((next() % 100) / 100 - 0.5) * 0.09;
    tiles.push({
      order: next(),
      node: svg("rect", { x: x + 0.07 + shift(), y: y + 0.07 + shift(), width: 0.86, height: 0.86, rx: 0.12, class: `tone-${tone}` }),
    });
  }
  const node = svg("svg", { class: "mosaic", viewBox: `0 0 ${ACROSS} ${ACROSS}`, "aria-hidden": "true" }, ...tiles.map((tile) => tile.node));
  const inOrder = [...tiles].sort((a, b) => a.order - b.order);
  const set = (part) => {
    const count = Math.round(part * inOrder.length);
    inOrder.forEach((tile, index) => tile.node.classList.toggle("set", index < count));
  };
  return { node, set };
}

// A bar of tiles, one for each step as long as the tiles are large enough to be distinguished.
export function progressBar() {
  const node = document.createElement("div");
  node.className = "progress";
  node.setAttribute("role", "progressbar");
  node.setAttribute("aria-label", "Progress");
  const set = (part, steps) => {
    const count = Math.min(Math.max(steps, 1), 32);
    while (node.childElementCount > count) node.lastElementChild.remove();
    while (node.childElementCount < count) node.append(document.createElement("i"));
    [...node.children].forEach((tile, index) => tile.classList.toggle("set", index < Math.floor(part * count + 1e-9)));
    node.setAttribute("aria-valuenow", String(Math.round(part * 100)));
    node.setAttribute("aria-valuetext", `${Math.round(part * 100)} %`);
  };
  node.setAttribute("aria-valuemin", "0");
  node.setAttribute("aria-valuemax", "100");
  return { node, set };
}
