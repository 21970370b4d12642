// Paints a mask on a picture, in a dialog: with a mouse or a pen, with fingers (one paints, two zoom and move), or with
// the keyboard. What is painted stays when the dialog is closed; every step can be undone.
import { byId } from "./dom.js";
import { Mask, drawStrokes } from "./mask.js";
import { View } from "./view.js";

// CSS pixels.
const SHORTEST_STROKE = 24; // a shorter one is dropped when a second finger comes
const KEY_STEP = 10;
const MARGIN = 24; // which the keyboard's place keeps to the edges of the pane

const ZOOM = 1.4;
const WHEEL = 0.002; // of the zoom's logarithm, for a pixel of the wheel
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const TOOLS = { b: "brush", e: "eraser", m: "move" };

export class MaskEditor {
  constructor() {
    this.dialog = byId("mask-dialog");
    this.pane = byId("mask-pane");
    this.shown = byId("mask-picture");
    this.canvas = byId("mask-canvas");
    this.cursor = byId("mask-cursor");
    this.size = byId("mask-size"); // of the brush, in CSS pixels
    this.fingers = new Map(); // places of pressed pointers, by their id
    this.gesture = null; // paint, pan, pinch or keys; done where a finger of a pinch is still down
    this.#chooseTool("brush");
    new ResizeObserver(() => this.view && this.#resize()).observe(this.pane);
    this.#listen();
  }

  // Opens the dialog for a picture, which gets a mask if it has none; resolves when the dialog is closed.
  open(picture) {
    picture.mask ??= new Mask(picture.width, picture.height);
    this.mask = picture.mask;
    this.view = new View(picture.width, picture.height);
    this.at = [picture.width / 2, picture.height / 2]; // the keyboard's place, in pixels of the picture
    this.shown.src = picture.address;
    this.shown.width = picture.width;
    this.shown.height = picture.height;
    this.cursor.hidden = true;
    this.#say("");
    this.dialog.showModal();
    this.#resize();
    this.view.fit();
    this.#draw();
    this.pane.focus();
    return new Promise((resolve) => this.dialog.addEventListener("close", () => {
      this.#stop(true);
      this.fingers.clear();
      this.shown.removeAttribute("src");
      this.view = null;
      resolve();
    }, { once: true }));
  }

  #listen() {
    const on = (node, type, listener) => node.addEventListener(type, listener);
    on(this.pane, "pointerdown", (event) => this.#press(event));
    on(this.pane, "pointermove", (event) => this.#drag(event));
    on(this.pane, "pointerup", (event) => this.#release(event));
    on(this.pane, "pointercancel", (event) => this.#release(event));
    on(this.pane, "pointerleave", () => this.fingers.size === 0 && this.gesture === null && (this.cursor.hidden = true));
    on(this.pane, "contextmenu", (event) => event.preventDefault());
    on(this.pane, "wheel", (event) => {
      event.preventDefault();
      this.#zoom(Math.exp(-WHEEL * event.deltaY), this.#placeOf(event));
    });
    on(this.pane, "keydown", (event) => this.#keyInPane(event));
    on(this.pane, "keyup", ({ key }) => key === " " && this.gesture === "keys" && this.#stop(true));
    on(this.pane, "blur", () => this.gesture === "keys" && this.#stop(true));
    on(this.dialog, "keydown", (event) => this.#key(event));
    on(this.size, "input", () => this.#moveCursor(this.view.pane.map((each) => each / 2)));
    for (const tool of Object.values(TOOLS)) on(byId(`mask-${tool}`), "click", () => this.#chooseTool(tool));
    on(byId("mask-undo"), "click", () => this.#change("undo", "Undone."));
    on(byId("mask-redo"), "click", () => this.#change("redo", "Done again."));
    on(byId("mask-clear"), "click", () => this.#change("clear", "Cleared."));
    on(byId("mask-in"), "click", () => this.#zoom(ZOOM));
    on(byId("mask-out"), "click", () => this.#zoom(1 / ZOOM));
    on(byId("mask-fit"), "click", () => this.#zoom(0));
    on(byId("mask-done"), "click", () => this.dialog.close());
  }

  // ---- pointers

  #placeOf({ clientX, clientY }) {
    const box = this.pane.getBoundingClientRect();
    return [clientX - box.left, clientY - box.top];
  }

  #press(event) {
    if (event.button > 1) return;
    event.preventDefault();
    if (this.gesture === "keys") this.#stop(true);
    this.pane.focus({ preventScroll: true });
    this.pane.setPointerCapture(event.pointerId);
    const place = this.#placeOf(event);
    this.fingers.set(event.pointerId, place);
    if (this.fingers.size > 1) {
      // The first finger of a pinch has begun a stroke that was not meant.
      this.#stop(this.travelled >= SHORTEST_STROKE);
      this.gesture = "pinch";
    } else if (event.button === 1 || this.tool === "move") {
      this.gesture = "pan";
    } else {
      this.gesture = "paint";
      this.travelled = 0;
      this.#begin(place);
    }
    this.#moveCursor(place);
  }

  #drag(event) {
    const place = this.#placeOf(event);
    const before = this.fingers.get(event.pointerId);
    if (before && this.gesture === "paint") {
      for (const each of event.getCoalescedEvents?.() ?? []) this.#extend(this.#placeOf(each));
      this.#extend(place);
      this.travelled += Math.hypot(place[0] - before[0], place[1] - before[1]);
      this.fingers.set(event.pointerId, place);
    } else if (before) {
      const old = this.#hand();
      this.fingers.set(event.pointerId, place);
      const now = this.#hand();
      if (this.gesture === "pan" || (this.gesture === "pinch" && this.fingers.size > 1)) {
        this.view.move(now.spread / old.spread, old.middle, now.middle);
        this.#draw();
      }
    }
    if (this.gesture !== "pinch" && this.gesture !== "done") this.#moveCursor(place);
  }

  // The middle of the first two fingers, and how far they are apart; of one finger its place, and 1.
  #hand() {
    const [a, b = a] = this.fingers.values();
    return { middle: [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2], spread: Math.hypot(a[0] - b[0], a[1] - b[1]) || 1 };
  }

  #release(event) {
    if (!this.fingers.has(event.pointerId)) return;
    if (this.gesture === "paint" && event.type === "pointerup") this.#extend(this.#placeOf(event));
    this.fingers.delete(event.pointerId);
    if (this.gesture === "paint") this.#stop(true);
    else this.gesture = this.fingers.size === 0 ? null : this.gesture === "pinch" && this.fingers.size < 2 ? "done" : this.gesture;
    if (event.pointerType === "touch") this.cursor.hidden = true;
  }

  // ---- strokes

  #begin(place) {
    const radius = Number(this.size.value) / 2 / this.view.scale;
    this.mask.begin({ erase: this.tool === "eraser", radius, at: this.view.toPicture(place) });
    this.#paint([this.mask.stroke]);
    this.#writeButtons();
  }

  #extend(place) {
    const line = this.mask.extend(this.view.toPicture(place));
    if (line) this.#paint([line]);
  }

  // Ends the gesture, and the stroke that it paints.
  #stop(keep) {
    this.gesture = null;
    if (!this.mask.stroke) return;
    this.mask.end(keep);
    if (!keep) this.#draw();
    this.#writeButtons();
  }

  #change(what, text) {
    if (this.mask.stroke) return;
    this.mask[what]();
    this.#say(text);
    this.#draw();
  }

  // ---- keys

  #key(event) {
    const key = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      const what = key === "y" || (key === "z" && event.shiftKey) ? "redo" : key === "z" ? "undo" : null;
      if (what === null) return;
      byId(`mask-${what}`).click();
    } else if (TOOLS[key]) {
      this.#chooseTool(TOOLS[key]);
    } else if (key === "[" || key === "]") {
      this.size.value = Math.round(Number(this.size.value) * (key === "]" ? 1.25 : 0.8));
      this.#say(`Brush of ${this.size.value} pixels.`);
      this.#moveCursor(this.view.toPane(this.at));
    } else if (["+", "=", "-", "0"].includes(key)) {
      this.#zoom({ "-": 1 / ZOOM, 0: 0 }[key] ?? ZOOM, this.view.toPane(this.at));
    } else {
      return;
    }
    event.preventDefault();
  }

  #keyInPane(event) {
    const arrow = ARROWS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || (!arrow && event.key !== " ")) return;
    event.preventDefault();
    if (this.fingers.size > 0) return;
    if (arrow) return this.#step(arrow, event.shiftKey ? 1 : KEY_STEP / this.view.scale);
    if (event.repeat || this.gesture !== null) return;
    if (this.tool === "move") this.#chooseTool("brush");
    this.gesture = "keys";
    const place = this.view.toPane(this.at);
    this.#begin(place);
    this.#moveCursor(place);
    this.#say(this.tool === "eraser" ? "Erased." : "Painted.");
  }

  // Moves the keyboard's place by so many pixels of the picture, and the picture where it would leave the pane.
  #step(arrow, pixels) {
    const limit = (value, most) => Math.min(Math.max(value, 0), most);
    this.at = this.at.map((each, axis) => limit(each + arrow[axis] * pixels, this.view.picture[axis]));
    const place = this.view.toPane(this.at);
    const inside = place.map((each, axis) => Math.min(Math.max(each, MARGIN), this.view.pane[axis] - MARGIN));
    if (inside.some((each, axis) => each !== place[axis])) {
      this.view.move(1, place, inside);
      this.#draw();
    }
    if (this.gesture === "keys") this.#extend(this.view.toPane(this.at));
    this.#moveCursor(this.view.toPane(this.at));
    const [across, down] = this.at.map((each, axis) => Math.round((100 * each) / this.view.picture[axis]));
    this.#say(`${across} % from the left, ${down} % from the top.`);
  }

  // ---- what is seen

  #chooseTool(tool) {
    this.tool = tool;
    this.pane.dataset.tool = tool;
    for (const other of Object.values(TOOLS)) byId(`mask-${other}`).setAttribute("aria-pressed", String(other === tool));
  }

  // Zooms by a factor, about the middle of the pane or another place; 0 shows the whole picture.
  #zoom(factor, about = this.view.pane.map((each) => each / 2)) {
    if (factor === 0) this.view.fit();
    else this.view.move(factor, about);
    this.#say(`Zoom ${Math.round((100 * this.view.scale) / this.view.fitting)} %.`);
    this.#draw();
    if (!this.cursor.hidden) this.#moveCursor(this.view.toPane(this.at));
  }

  #resize() {
    const { clientWidth, clientHeight } = this.pane;
    if (clientWidth === 0 || clientHeight === 0) return;
    this.view.resize(clientWidth, clientHeight);
    this.canvas.width = Math.round(clientWidth * devicePixelRatio);
    this.canvas.height = Math.round(clientHeight * devicePixelRatio);
    this.#draw();
  }

  #draw() {
    const { scale, corner } = this.view;
    this.shown.style.transform = `translate(${corner[0]}px, ${corner[1]}px) scale(${scale})`;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.#paint(this.mask.strokes);
    this.#writeButtons();
  }

  #paint(strokes) {
    const [x, y] = this.view.corner.map((each) => each * devicePixelRatio);
    drawStrokes(this.canvas.getContext("2d"), strokes, { scale: this.view.scale * devicePixelRatio, x, y });
  }

  // The brush's circle is at this place, from which the keyboard goes on.
  #moveCursor(place) {
    const [width, height] = this.view.picture;
    const [x, y] = this.view.toPicture(place);
    this.at = [Math.min(Math.max(x, 0), width), Math.min(Math.max(y, 0), height)];
    const size = Number(this.size.value);
    this.cursor.hidden = false;
    this.cursor.style.width = `${size}px`;
    this.cursor.style.height = `${size}px`;
    this.cursor.style.transform = `translate(${place[0] - size / 2}px, ${place[1] - size / 2}px)`;
  }

  #writeButtons() {
    const states = { undo: this.mask.canUndo, redo: this.mask.canRedo, clear: this.mask.strokes.length > 0 };
    for (const [name, usable] of Object.entries(states)) {
      const button = byId(`mask-${name}`);
      // The focus does not stay at a button that cannot be used.
      if (!usable && button === document.activeElement) this.pane.focus();
      button.disabled = !usable;
    }
  }

  #say(text) {
    byId("mask-status").textContent = text;
  }
}
