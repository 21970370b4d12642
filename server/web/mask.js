// A mask as it is painted: strokes of a round brush or eraser, in pixels of the picture, which can be undone. A pixel is
// painted if its centre is within the radius of a stroke's line and no later stroke has erased it.
import { maskPng } from "./png.js";

// The part of the row at height `y` that is within `radius` of the line from a to b: [from, to], or null.
function span([ax, ay], [bx, by], radius, y) {
  let [from, to] = [Infinity, -Infinity];
  const join = (low, high) => {
    from = Math.min(from, low);
    to = Math.max(to, high);
  };
  for (const [cx, cy] of [[ax, ay], [bx, by]]) {
    const half = radius * radius - (y - cy) * (y - cy);
    if (half >= 0) join(cx - Math.sqrt(half), cx + Math.sqrt(half));
  }
  // Between the ends: |d x p| <= radius |d| and 0 <= d p <= |d|^2, where d is b - a and p is the point's distance to a.
  const [dx, dy, py] = [bx - ax, by - ay, y - ay];
  const length = Math.hypot(dx, dy);
  const limits = [[-dy, dx * py, -radius * length, radius * length], [dx, dy * py, 0, length * length]];
  let [low, high] = [-Infinity, Infinity];
  for (const [slope, rest, least, most] of limits) {
    if (slope === 0 && (rest < least || rest > most)) return from <= to ? [from, to] : null;
    if (slope === 0) continue;
    const ends = [(least - rest) / slope, (most - rest) / slope];
    low = Math.max(low, Math.min(...ends));
    high = Math.min(high, Math.max(...ends));
  }
  if (length > 0 && low <= high) join(ax + low, ax + high);
  return from <= to ? [from, to] : null;
}

function paintLine(painted, width, height, a, b, radius, value) {
  const first = Math.max(0, Math.ceil(Math.min(a[1], b[1]) - radius - 0.5));
  const last = Math.min(height - 1, Math.floor(Math.max(a[1], b[1]) + radius - 0.5));
  for (let y = first; y <= last; ++y) {
    const part = span(a, b, radius, y + 0.5);
    if (part === null) continue;
    const begin = Math.max(0, Math.ceil(part[0] - 0.5));
    const end = Math.min(width, Math.floor(part[1] - 0.5) + 1);
    if (begin < end) painted.fill(value, y * width + begin, y * width + end);
  }
}

export class Mask {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.steps = []; // strokes {erase, radius, points}, and null where everything was cleared
    this.done = 0; // steps that are not undone
    this.stroke = null; // under way
    this.version = 0; // of what is painted
  }

  begin({ erase, radius, at }) {
    this.stroke = { erase, radius, points: [at] };
  }

  // Adds a point to the stroke; returns the line that it adds, or null if it adds none.
  extend(at) {
    const { points } = this.stroke;
    const before = points[points.length - 1];
    if (before[0] === at[0] && before[1] === at[1]) return null;
    points.push(at);
    return { ...this.stroke, points: [before, at] };
  }

  // Ends the stroke, which becomes a step, or is dropped.
  end(keep = true) {
    if (keep) this.#add(this.stroke);
    this.stroke = null;
  }

  clear() {
    if (this.strokes.length) this.#add(null);
  }

  undo() {
    if (this.canUndo) this.#go(-1);
  }

  redo() {
    if (this.canRedo) this.#go(1);
  }

  get canUndo() {
    return this.stroke === null && this.done > 0;
  }

  get canRedo() {
    return this.stroke === null && this.done < this.steps.length;
  }

  // Strokes that are seen, oldest first.
  get strokes() {
    const kept = this.steps.slice(0, this.done);
    return [...kept.slice(kept.lastIndexOf(null) + 1), ...(this.stroke ? [this.stroke] : [])];
  }

  // Puts other strokes in place of all.
  restore(strokes) {
    this.steps = [...strokes];
    this.done = strokes.length;
    ++this.version;
  }

  // A byte for each pixel, row by row: 1 where it is painted, else 0.
  pixels() {
    if (this.rastered?.version === this.version) return this.rastered.painted;
    const painted = new Uint8Array(this.width * this.height);
    for (const { erase, radius, points } of this.strokes) {
      for (let i = 0; i < Math.max(1, points.length - 1); ++i) {
        paintLine(painted, this.width, this.height, points[i], points[i + 1] ?? points[i], radius, erase ? 0 : 1);
      }
    }
    this.rastered = { version: this.version, painted };
    return painted;
  }

  // The painted part of the picture, 0 to 1.
  share() {
    if (this.strokes.length === 0) return 0;
    let count = 0;
    for (const each of this.pixels()) count += each;
    return count / (this.width * this.height);
  }

  // Resolves to a PNG file of the picture's size, transparent where it is painted.
  png() {
    return maskPng(this.pixels(), this.width, this.height);
  }

  #add(step) {
    this.steps = [...this.steps.slice(0, this.done), step];
    this.#go(1);
  }

  #go(steps) {
    this.done += steps;
    ++this.version;
  }
}

const COLOR = "#e5007d"; // of the painted part, which the style sheet makes translucent

// Draws strokes on a canvas whose point (x, y) is the picture's corner, with `scale` of its pixels for one of the picture.
export function drawStrokes(context, strokes, { scale, x, y }) {
  context.lineCap = "round";
  context.lineJoin = "round";
  context.strokeStyle = COLOR;
  context.fillStyle = COLOR;
  for (const { erase, radius, points } of strokes) {
    context.globalCompositeOperation = erase ? "destination-out" : "source-over";
    context.lineWidth = 2 * radius * scale;
    context.beginPath();
    const [first, ...others] = points.map(([px, py]) => [px * scale + x, py * scale + y]);
    if (others.length === 0) {
      context.arc(...first, radius * scale, 0, 2 * Math.PI);
      context.fill();
      continue;
    }
    context.moveTo(...first);
    for (const point of others) context.lineTo(...point);
    context.stroke();
  }
  context.globalCompositeOperation = "source-over";
}
