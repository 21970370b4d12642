// Compares an image with the picture that it was made from: a range divides the figure, with the picture to the left of
// the line and the image to the right of it.
import { element } from "./dom.js";

const CLOSE = 0.1; // proportions that differ by less are made equal, as the model does

export class Compare {
  constructor() {
    this.range = element("input", { type: "range", id: "compare-range", min: 0, max: 100, "aria-label": "Part that shows the picture before", oninput: () => this.#write() });
    this.node = element("div", { class: "compare" }, element("span", { "aria-hidden": "true" }, "Before"), this.range, element("span", { "aria-hidden": "true" }, "After"));
    this.before = element("img", { class: "before", alt: "The picture before" });
    this.line = element("i", { class: "divider", "aria-hidden": "true" });
    this.figure = null;
    this.listeners = new AbortController();
  }

  // Lays the picture at `address` over a figure. Calling it again for the same ones changes nothing.
  attach(figure, address) {
    if (this.figure === figure && this.before.getAttribute("src") === address && figure.contains(this.before)) return;
    this.detach();
    this.figure = figure;
    this.range.value = 50;
    this.before.addEventListener("load", () => {
      const shape = (width, height) => width / height;
      const ratio = shape(this.before.naturalWidth, this.before.naturalHeight) / shape(figure.clientWidth, figure.clientHeight);
      this.before.classList.toggle("whole", Math.abs(Math.log(ratio)) > CLOSE);
    }, { once: true });
    this.before.src = address;
    figure.append(this.before, this.line);
    const { signal } = this.listeners;
    const follow = ({ buttons, clientX }) => {
      if (buttons !== 1) return;
      const box = figure.getBoundingClientRect();
      this.range.value = Math.round((100 * (clientX - box.left)) / box.width);
      this.#write();
    };
    figure.addEventListener("pointerdown", follow, { signal });
    figure.addEventListener("pointermove", follow, { signal });
    figure.classList.add("compared");
    this.#write();
  }

  detach() {
    if (this.figure === null) return;
    this.listeners.abort();
    this.listeners = new AbortController();
    this.figure.classList.remove("compared");
    this.figure = null;
    for (const node of [this.before, this.line, this.node]) node.remove();
    this.before.removeAttribute("src");
  }

  #write() {
    const part = this.range.value;
    this.range.setAttribute("aria-valuetext", `${part} % before`);
    this.figure?.style.setProperty("--cut", `${part}%`);
  }
}
