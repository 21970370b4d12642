// Picks low-rank adapters of the model, each with its scale: the control of a request's field that is a list of them.
import { element } from "./dom.js";
import { isNumber, numberOr } from "./typed.js";

const MOST_WITHOUT_SEARCH = 6;

export class AdapterPicker {
  // The search is the control that bears the field's name; `about` are its other attributes.
  constructor(field, about) {
    this.scales = field.items.properties.scale;
    this.offered = []; // the model's adapters, as GET /v1/models lists them
    this.chosen = new Map(); // scales as typed, by name, in the order of the request
    this.search = element("input", { ...about, type: "search", autocomplete: "off", placeholder: "Find an adapter", oninput: () => this.#find() });
    this.list = element("ul", { class: "adapters" });
    this.none = element("p", { class: "none" }, "This model has no adapters on this server.");
    this.node = element("div", { class: "picker", role: "group", "aria-labelledby": `label-${about.name}` }, this.search, this.list, this.none);
  }

  get isEmpty() {
    return this.offered.length === 0 && this.chosen.size === 0;
  }

  // Chosen adapters that are not offered are given up.
  offer(adapters) {
    this.offered = adapters;
    this.show(this.value.filter(({ name }) => adapters.some(({ id }) => id === name)));
  }

  // An adapter is known by its digest, where there is one, under any name.
  show(loras) {
    const nameOf = ({ name, digest }) => this.offered.find((each) => digest && each.adapter_digest === digest)?.id ?? name;
    this.chosen = new Map(loras.map((each) => [nameOf(each), `${each.scale ?? 1}`]));
    const others = [...this.chosen.keys()].filter((name) => !this.offered.some(({ id }) => id === name));
    this.list.replaceChildren(...others.map((name) => this.#row(name, false)), ...this.offered.map(({ id }) => this.#row(id, true)));
    this.search.hidden = this.list.childElementCount <= MOST_WITHOUT_SEARCH;
    this.search.value = "";
    this.none.hidden = !this.isEmpty;
  }

  get value() {
    return [...this.chosen].map(([name, scale]) => (scale.trim() === "" ? { name } : { name, scale: numberOr(scale) }));
  }

  // Says what is wrong with the first scale that is no number; null if none is.
  get problem() {
    const wrong = this.value.find(({ scale }) => scale !== undefined && !isNumber(scale));
    return wrong ? `The scale of ${wrong.name} is '${wrong.scale}'; it must be a number from ${this.scales.minimum} to ${this.scales.maximum}` : null;
  }

  focus() {
    (this.list.querySelector("input:checked") ?? this.list.querySelector("input"))?.focus();
  }

  #row(name, served) {
    const box = element("input", { type: "checkbox", checked: this.chosen.has(name), "data-adapter": name });
    const scale = element("input", { type: "text", inputmode: "decimal", autocomplete: "off", class: "scale", "aria-label": `Scale of ${name}`, placeholder: "1" });
    scale.value = this.chosen.get(name) ?? "1";
    scale.disabled = !box.checked;
    box.addEventListener("change", () => {
      scale.disabled = !box.checked;
      if (box.checked) this.chosen.set(name, scale.value);
      else this.chosen.delete(name);
    });
    scale.addEventListener("input", () => this.chosen.set(name, scale.value));
    const label = element("label", {}, box, element("span", {}, name), served ? null : element("small", {}, "not served here"));
    return element("li", {}, label, scale);
  }

  // Chosen adapters stay in sight.
  #find() {
    const part = this.search.value.trim().toLowerCase();
    for (const row of this.list.children) {
      const box = row.querySelector("[data-adapter]");
      row.hidden = !box.checked && !box.dataset.adapter.toLowerCase().includes(part);
    }
  }
}
