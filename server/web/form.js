// The form of a request, made from the server's schema (GET /v1/schema): a field that the server learns appears by
// itself, with its type, bounds, choices and description. What is written here is only how the best known ones look.
import { AdapterPicker } from "./adapters.js";
import { byId, element, icon } from "./dom.js";
import { isNumber, numberOr, sizeOr } from "./typed.js";

// Fields that are always visible below the prompts; the others are under "More options", in the schema's order.
const ESSENTIAL = ["model", "size", "num_inference_steps", "guidance_scale", "seed", "n"];
// Words that OpenAI's clients send. They have no effect here, or are another field's other name.
const LEFT_OUT = new Set(["complexity", "style", "moderation", "background", "safety_identifier", "input_fidelity"]);
// Fields whose control is PictureInputs.
const OF_PICTURES = new Set(["images", "mask"]);
const LABELS = {
  n: "Images",
  num_inference_steps: "Steps",
  guidance_scale: "Guidance",
  negative_prompt: "Negative prompt",
  partial_images: "Previews",
  deadline_ms: "Deadline (ms)",
  loras: "Adapters (LoRA)",
  images: "Picture",
  user: "Label",
};
// Values that the page sends by default.
const STARTING_VALUES = { partial_images: "3" };
const LONG_TEXT = 1024;

const typeOf = (field) => [field.type].flat().find((type) => type !== "null");

function labelOf(name) {
  if (LABELS[name]) return LABELS[name];
  const words = name.replaceAll("_", " ").replace(/\bcfg\b/, "CFG").replace(/\bclip\b/, "CLIP");
  return words[0].toUpperCase() + words.slice(1);
}

function numberHint(field) {
  if (field.minimum === undefined || typeOf(field) === "array") return "";
  return field.maximum > 1e9 ? "" : `${field.minimum} to ${field.maximum}`;
}

function optionsOf(field, standard) {
  const words = field.enum.filter((word) => word !== null && word !== "" && word !== field.default);
  const usual = field.default ? `${field.default}` : standard;
  return [element("option", { value: "" }, usual), ...words.map((word) => element("option", { value: word }, word))];
}

// What the control of a field has in common with others. Its name is the field's, so that an error's field finds it.
const commonOf = (name, field) => ({ id: `field-${name}`, name, title: field.description, "aria-describedby": `hint-${name} error-${name}` });

function controlOf(name, field) {
  const common = commonOf(name, field);
  const type = typeOf(field);
  if (name === "model" || name === "sampler") return element("select", common);
  if (field.enum) return element("select", common, ...optionsOf(field, "Default"));
  if (type === "boolean") {
    const choices = [["", "Default"], ["true", "On"], ["false", "Off"]];
    return element("select", common, ...choices.map(([value, text]) => element("option", { value }, text)));
  }
  if (type === "string" && field.maxLength > LONG_TEXT) {
    return element("textarea", { ...common, rows: name === "prompt" ? 4 : 2, spellcheck: "true" });
  }
  const numeric = type === "integer" || type === "number";
  return element("input", {
    ...common,
    type: "text",
    autocomplete: "off",
    inputmode: type === "integer" && field.minimum >= 0 ? "numeric" : numeric ? "decimal" : null,
    placeholder: field.default === undefined ? numberHint(field) : `${field.default}`,
  });
}

// Says what is wrong with a text for a number, or for a list of numbers; null if nothing is.
function problemOf(field, text) {
  const type = typeOf(field);
  const whole = type === "integer" || field.items?.type === "integer" ? "whole number" : "number";
  if (type === "array" && !listOf(text).every(isNumber)) return `'${text}'; it must be ${whole}s with commas between them`;
  if (!["integer", "number"].includes(type) || isNumber(numberOr(text))) return null;
  const range = numberHint(field);
  return `'${text}'; it must be a ${whole}${range && ` from ${range}`}`;
}

const listOf = (text) => text.split(/[\s,]+/).filter(Boolean).map(numberOr);

// "512x768" for a part of the model's own area, as near as its rules allow.
function sizeOf(model, [across, down]) {
  const [width, height] = model.default_size.split("x").map(Number);
  const fitted = (side) => {
    const rounded = Math.round(side / model.size_multiple) * model.size_multiple;
    return Math.min(Math.max(rounded, model.min_size), model.max_size);
  };
  const unit = Math.sqrt((width * height) / (across * down));
  return `${fitted(across * unit)}x${fitted(down * unit)}`;
}

const SHAPES = [["Square", [1, 1]], ["Portrait", [2, 3]], ["Landscape", [3, 2]], ["Wide", [16, 9]]];

export class RequestForm {
  // `pictures` is the control of the pictures that a request begins from.
  constructor(schema, models, pictures) {
    this.schema = schema;
    this.pictures = pictures;
    this.rows = new Map();
    this.pickers = new Map(); // the controls that hold more than one text
    this.models = models.filter((model) => model.alias_of === null);
    const names = Object.keys(schema.properties).filter((name) => !LEFT_OUT.has(name) && !OF_PICTURES.has(name));
    for (const name of names) this.rows.set(name, this.#row(name, schema.properties[name]));
    const place = (id, chosen) => byId(id).replaceChildren(...chosen.filter((n) => this.rows.has(n)).map((n) => this.rows.get(n)));
    place("prompt-fields", ["prompt", "negative_prompt"]);
    place("essential-fields", ESSENTIAL);
    place("more-fields", names.filter((name) => !["prompt", "negative_prompt", "strength", ...ESSENTIAL].includes(name)));
    place("picture-fields", ["strength"]);
    byId("picture-fields").prepend(pictures.node);
    pictures.addEventListener("change", () => this.#followPictures());
    this.#addStrengthRange();
    this.#addSeedButton();
    this.#addSizes();
    this.setModels(models);
    for (const [name, value] of Object.entries(STARTING_VALUES)) if (this.rows.has(name)) this.control(name).value = value;
    this.control("model")?.addEventListener("change", () => this.#followModel());
    for (const area of document.querySelectorAll("#composer textarea")) area.addEventListener("input", () => fit(area));
  }

  control(name) {
    return byId(`field-${name}`) ?? this.rows.get(name)?.querySelector("[name]") ?? null;
  }

  // Numbers that are written into a request unchanged.
  get numbers() {
    const whole = ([, field]) => typeOf(field) === "integer";
    return new Set(Object.entries(this.schema.properties).filter(whole).map(([name]) => name));
  }

  setModels(models) {
    this.models = models.filter((model) => model.alias_of === null);
    const select = this.control("model");
    if (!select) return;
    const chosen = select.value;
    const option = ({ id, ready, parent }) => element("option", { value: id }, `${id}${parent ? `, adapter of ${parent}` : ""}${ready ? "" : " (not ready)"}`);
    const adapters = this.models.filter(({ parent }) => parent !== null);
    select.replaceChildren(...this.models.filter(({ parent }) => parent === null).map(option));
    if (adapters.length) select.append(element("optgroup", { label: "Adapters" }, ...adapters.map(option)));
    if (this.models.some((model) => model.id === chosen)) select.value = chosen;
    this.#followModel();
  }

  get model() {
    return this.models.find((model) => model.id === this.control("model")?.value) ?? null;
  }

  // The fields that are filled in, by name; the server checks the values.
  request() {
    const request = {};
    for (const [name, row] of this.rows) {
      const text = this.control(name).value;
      const picked = this.pickers.get(name)?.value;
      if (picked?.length) request[name] = picked;
      if (picked || row.hidden || (name !== "prompt" && text.trim() === "")) continue;
      const type = typeOf(this.schema.properties[name]);
      if (type === "boolean") request[name] = text === "true";
      else if (type === "array") request[name] = listOf(text);
      else if (type === "number" || type === "integer") request[name] = numberOr(text);
      else if (name === "size") request[name] = sizeOr(text);
      else request[name] = name === "prompt" || name === "negative_prompt" ? text : text.trim();
    }
    return request;
  }

  // The first value that has not the type of its field, as an error for showError; null if there is none.
  problem() {
    for (const [name, row] of this.rows) {
      const picker = this.pickers.get(name);
      const text = this.control(name).value.trim();
      if (picker?.problem) return { field: name, message: picker.problem };
      if (picker || row.hidden || text === "") continue;
      const problem = problemOf(this.schema.properties[name], text);
      if (problem) return { field: name, message: `${labelOf(name)} is ${problem}` };
    }
    return null;
  }

  // An error's message with the labels of the form in place of the names of fields. Quoted values stay as they are.
  wordsOf({ message, field }) {
    const known = (name) => Object.hasOwn(this.schema.properties, name);
    const begins = field && known(field) && message.startsWith(field) && !/\w/.test(message.charAt(field.length));
    const text = begins ? labelOf(field) + message.slice(field.length) : message;
    return text.replace(/(?<!\w)'[^']*'|\b[a-z]+(?:_[a-z0-9]+)+\b/g, (word) => (known(word) ? labelOf(word) : word));
  }

  // Shows a request; fields that it does not have are emptied, and pictures too if `replacePictures`. Returns the names
  // that the form has no place for.
  show(request, { replacePictures = true } = {}) {
    const unknown = Object.keys(request).filter((name) => !this.rows.has(name) && !OF_PICTURES.has(name));
    // The parameters of an image have no files, but name the pictures that it was made from.
    const [images, mask] = [request.images ?? [], request.mask ?? null].map((sources) => [sources].flat().filter((source) => source?.file_id));
    if ((request.images ?? []).length > images.length) unknown.push("images");
    if (replacePictures) this.pictures.show(images, mask[0] ?? null);
    const model = request.model;
    if (model && this.models.some(({ id }) => id === model)) this.control("model").value = model;
    else if (model) unknown.push("model");
    this.#followModel();
    for (const name of this.rows.keys()) {
      if (name === "model") continue;
      this.pickers.get(name)?.show(request[name] ?? []);
      if (this.pickers.has(name)) continue;
      const control = this.control(name);
      const value = request[name] ?? (name in request ? "" : STARTING_VALUES[name] ?? "");
      control.value = Array.isArray(value) ? value.join(", ") : String(value);
      // A default of the schema is the empty choice.
      if (control.tagName === "SELECT" && control.selectedIndex < 0) control.value = "";
      if (control.tagName === "TEXTAREA") fit(control);
    }
    this.clearErrors();
    this.#followPictures();
    const advanced = byId("more-fields").querySelectorAll("[name]");
    if ([...advanced].some((control) => control.value && control.value !== (STARTING_VALUES[control.name] ?? ""))) {
      byId("more").open = true;
    }
    this.#placePickers();
    return [...new Set(unknown)];
  }

  clearErrors() {
    for (const [name, row] of this.rows) {
      byId(`error-${name}`).textContent = "";
      row.classList.remove("wrong");
      this.control(name).removeAttribute("aria-invalid");
    }
    this.pictures.clearError();
    byId("form-error").textContent = "";
  }

  // Shows an error at its field, which gets the focus; below the form if the page does not show that field.
  showError(error) {
    if (this.pictures.offered && this.pictures.owns(error.field)) return this.pictures.showError(this.wordsOf(error));
    const row = this.rows.get(error.field);
    if (!row || row.hidden) {
      byId("form-error").textContent = this.wordsOf(error);
      return;
    }
    byId(`error-${error.field}`).textContent = this.wordsOf(error);
    row.classList.add("wrong");
    if (row.closest("#more")) byId("more").open = true;
    const control = this.control(error.field);
    control.setAttribute("aria-invalid", "true");
    (this.pickers.get(error.field) ?? control).focus();
  }

  #row(name, field) {
    const hint = field.description ?? "";
    return element(
      "div",
      { class: "field", "data-field": name },
      element("label", { for: `field-${name}`, id: `label-${name}` }, labelOf(name)),
      this.#controlOf(name, field),
      element("p", { class: "hint", id: `hint-${name}` }, hint),
      element("p", { class: "error", id: `error-${name}`, role: "alert" }),
    );
  }

  #controlOf(name, field) {
    if (field.items?.type !== "object") return controlOf(name, field);
    this.pickers.set(name, new AdapterPicker(field, commonOf(name, field)));
    return this.pickers.get(name).node;
  }

  // A picker that has something to pick is always visible, below the model.
  #placePickers() {
    for (const [name, picker] of this.pickers) {
      const row = this.rows.get(name);
      const place = byId(picker.isEmpty ? "more-fields" : "essential-fields");
      if (row.parentElement === place) continue;
      if (picker.isEmpty || !this.rows.has("model")) place.append(row);
      else this.rows.get("model").after(row);
    }
  }

  #addSeedButton() {
    const input = this.control("seed");
    if (!input) return;
    input.placeholder = "Random";
    const box = element("div", { class: "joined" });
    input.replaceWith(box);
    const draw = () => {
      input.value = String(crypto.getRandomValues(new Uint32Array(1))[0]);
    };
    box.append(input, element("button", { type: "button", class: "quiet", onclick: draw, "aria-label": "Draw a seed", title: "Draw a seed" }, icon("dice")));
  }

  #addStrengthRange() {
    const input = this.control("strength");
    if (!input) return;
    const range = element("input", { type: "range", min: 0.05, max: 1, step: 0.05, "aria-label": "Strength, as a range" });
    const follow = () => {
      const value = Number(numberOr(input.value));
      range.value = input.value.trim() !== "" && Number.isFinite(value) ? value : this.model?.default_strength ?? 1;
    };
    const box = element("div", { class: "joined strength" });
    input.replaceWith(box);
    box.append(range, input);
    input.addEventListener("input", follow);
    range.addEventListener("input", () => (input.value = range.value));
    this.followStrength = follow;
  }

  #addSizes() {
    const input = this.control("size");
    if (!input) return;
    this.shapes = SHAPES.map(([label, shape]) => {
      const choose = () => {
        input.value = sizeOf(this.model, shape);
        this.#markSize();
      };
      const picture = element("span", { class: `shape ${label.toLowerCase()}`, "aria-hidden": "true" });
      return { shape, button: element("button", { type: "button", class: "quiet", onclick: choose, "aria-label": label, title: label }, picture) };
    });
    const group = element("div", { class: "shapes", role: "group", "aria-label": "Shape" }, ...this.shapes.map(({ button }) => button));
    const box = element("div", { class: "joined" });
    input.replaceWith(box);
    box.append(input, group);
    input.addEventListener("input", () => this.#markSize());
  }

  #markSize() {
    const input = this.control("size");
    if (!input || !this.model) return;
    // Without a size, an image that begins from a picture has its proportions.
    const size = sizeOr(input.value) || (this.pictures.used.length ? "" : this.model.default_size);
    let marked = false;
    for (const { shape, button } of this.shapes) {
      const is = !marked && sizeOf(this.model, shape) === size;
      marked = marked || is;
      button.setAttribute("aria-pressed", String(is));
    }
  }

  // The strength is a field of requests that begin from a picture.
  #followPictures() {
    const { used, begins } = this.pictures;
    const row = this.rows.get("strength");
    if (row) {
      row.hidden = !begins;
      this.control("strength").placeholder = `${this.model?.default_strength ?? 1}`;
      this.followStrength();
    }
    const size = this.control("size");
    if (size && this.model) size.placeholder = used.length ? "Like the picture" : this.model.default_size;
    this.#markSize();
  }

  // Adapts the form to the model: its samplers, its defaults, the fields that it reads.
  #followModel() {
    const model = this.model;
    if (!model) return;
    const placeholders = {
      size: model.default_size,
      num_inference_steps: model.default_num_inference_steps,
      guidance_scale: model.default_guidance_scale || "None",
    };
    for (const [name, text] of Object.entries(placeholders)) {
      const control = this.control(name);
      if (control) control.placeholder = `${text}`;
    }
    const sampler = this.control("sampler");
    if (sampler) {
      const chosen = sampler.value;
      const others = model.samplers.filter((name) => name !== model.default_sampler);
      sampler.replaceChildren(
        element("option", { value: "" }, model.default_sampler || "Default"),
        ...others.map((name) => element("option", { value: name }, name)),
      );
      sampler.value = others.includes(chosen) ? chosen : "";
    }
    for (const [name, row] of this.rows) {
      const needed = this.schema.properties[name]["x-read-with"];
      row.hidden = needed !== undefined && !model.options.includes(needed);
    }
    this.pictures.offer(model);
    this.#followPictures();
    const adapters = this.models.filter(({ id, parent }) => parent === (model.parent ?? model.id) && id !== model.id);
    for (const picker of this.pickers.values()) picker.offer(adapters);
    this.#placePickers();
    this.#markSize();
  }
}

// Makes the text area as high as its text.
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
