// The pictures that a request begins from: the control of its fields "images" and "mask". A picture stays in the browser
// until a request needs it, and is then uploaded once; requests name it by the id of the uploaded file.
import * as api from "./api.js";
import { byId, element, icon, plural } from "./dom.js";
import { MaskEditor } from "./editor.js";
import { Mask, drawStrokes } from "./mask.js";

const EXPIRES_SOON_S = 60; // a file with less time left is uploaded again
const WORDS = {
  start: { label: "Picture", hint: "The image begins from it. Paint a mask to change only a part." },
  fill: { label: "Picture", hint: "Paint the part of it that is to be filled in." },
  reference: { label: "Pictures", hint: "The prompt says what is to be made of them." },
};
const MASK_OF_REFERENCE = "Paint a mask to change only a part of the first.";
const FIELDS = ["images", "image", "mask"];

// A file that is uploaded when its id is first needed. Without content it is one of an earlier visit.
class Upload {
  constructor(content, name, id = null) {
    this.content = content;
    this.name = name;
    this.file = id === null ? null : { id };
    this.ids = new Set(id === null ? [] : [id]); // also earlier ones
  }

  async id() {
    const ends = this.file?.expires_at ?? Infinity;
    if (this.file && (this.content === null || ends - Date.now() / 1000 > EXPIRES_SOON_S)) return this.file.id;
    this.file = await api.upload(this.content, this.name);
    this.ids.add(this.file.id);
    return this.file.id;
  }

  // The server may have removed the file.
  forget() {
    if (this.content !== null) this.file = null;
  }
}

class InputPicture {
  constructor({ content = null, name, id = null }) {
    this.name = name;
    this.upload = new Upload(content, "picture", id);
    this.address = content && URL.createObjectURL(content);
    this.width = 0;
    this.height = 0;
    this.mask = null;
    this.masks = []; // that were uploaded: {version, strokes, upload}
    this.maskId = null; // of a mask of an earlier visit
  }

  // Reads the picture's size; an error if the browser cannot decode it.
  async decode() {
    const image = new Image();
    image.src = this.address;
    await image.decode();
    this.width = image.naturalWidth;
    this.height = image.naturalHeight;
  }

  get isMasked() {
    return this.maskId !== null || (this.mask?.share() ?? 0) > 0;
  }

  // The upload of the mask as it is; null if nothing is painted.
  async maskUpload() {
    if (this.maskId !== null) return new Upload(null, "", this.maskId);
    if (!this.isMasked) return null;
    const { version, strokes } = this.mask;
    const known = this.masks.find((each) => each.version === version);
    if (known) return known.upload;
    const upload = new Upload(await this.mask.png(), "mask.png");
    this.masks.push({ version, strokes, upload });
    return upload;
  }

  // Takes over the mask of a request; none for null.
  showMask(source) {
    const known = source && this.masks.find(({ upload }) => upload.ids.has(source.file_id));
    this.maskId = source && !known ? source.file_id : null;
    if (!known && this.mask === null) return;
    this.mask ??= new Mask(this.width, this.height);
    this.mask.restore(known ? known.strokes : []);
    if (known) known.version = this.mask.version;
  }

  release() {
    if (this.address) URL.revokeObjectURL(this.address);
  }
}

export class PictureInputs extends EventTarget {
  // `requests` returns the requests whose pictures are kept for comparison. Dispatches "change".
  constructor(requests) {
    super();
    this.requests = requests;
    this.kind = "none"; // as the model's picture_input
    this.most = 0;
    this.takesMask = false;
    this.pictures = []; // in the form
    this.known = new Set(); // also those of earlier requests
    this.editor = new MaskEditor();
    this.file = element("input", { type: "file", id: "input-file", accept: "image/png,image/jpeg,image/webp", hidden: true, onchange: () => this.#choose() });
    this.label = element("span", { class: "label", id: "label-images" });
    this.list = element("ul", { class: "inputs" });
    this.button = element("button", { type: "button", id: "input-button", "aria-describedby": "hint-images error-images", onclick: () => this.file.click() }, icon("picture"), element("span"));
    this.hint = element("p", { class: "hint", id: "hint-images" });
    this.error = element("p", { class: "error", id: "error-images", role: "alert" });
    this.file.setAttribute("aria-label", "Picture to begin from");
    this.node = element(
      "div",
      { class: "field", "data-field": "images", role: "group", "aria-labelledby": "label-images", hidden: true },
      this.label, this.list, this.button, this.file, this.hint, this.error,
    );
  }

  // Whether the model takes pictures.
  get offered() {
    return this.most > 0;
  }

  // Those that are sent.
  get used() {
    return this.pictures.slice(0, this.most);
  }

  // Whether the image begins from the first picture, so that it has a strength.
  get begins() {
    if (this.kind !== "reference") return this.used.length > 0;
    return this.takesMask && this.used.length > 0 && this.used[0].isMasked;
  }

  // Adapts the control to a model of GET /v1/models.
  offer({ picture_input: kind = "none", max_pictures: most = 0, takes_mask: takesMask = false }) {
    const known = Object.hasOwn(WORDS, kind);
    const [now, limit, masked] = known ? [kind, most, takesMask] : ["none", 0, false];
    if (this.kind === now && this.most === limit && this.takesMask === masked) return;
    this.kind = now;
    this.most = limit;
    this.takesMask = masked;
    this.#write();
    this.dispatchEvent(new Event("change"));
  }

  // Adds files or blobs; where the model takes one picture, it replaces the one before.
  async add(files) {
    this.clearError();
    const added = [];
    for (const content of files.slice(0, this.most)) {
      const picture = new InputPicture({ content, name: content.name ?? "Picture" });
      try {
        await picture.decode();
        added.push(picture);
      } catch {
        picture.release();
        this.#complain(`${picture.name} is not a picture that this browser can read.`);
      }
    }
    if (added.length === 0) return false;
    const all = this.most === 1 ? added : [...this.pictures, ...added];
    for (const picture of added) this.known.add(picture);
    for (const picture of all.splice(this.most)) picture.release();
    const left = files.length + (this.most === 1 ? 0 : this.pictures.length) - this.most;
    if (left > 0) this.#complain(`The model takes ${plural(this.most, "picture")}; ${plural(left, "picture")} left out.`);
    this.#put(all);
    return true;
  }

  // Shows the pictures and the mask of a request. Those of an earlier visit are known by their id alone.
  show(images = [], mask = null) {
    const byFile = (id) => [...this.known].find(({ upload }) => upload.ids.has(id));
    const pictures = images.map(({ file_id: id }) => byFile(id) ?? new InputPicture({ name: "Sent earlier", id }));
    pictures[0]?.showMask(mask);
    this.#put(pictures);
  }

  // Uploads what is not uploaded yet. Returns the fields of the request; an error names the field that it is about.
  async sources() {
    const { used, takesMask } = this;
    const mask = takesMask && used.length ? await used[0].maskUpload() : null;
    return this.#send(used.map(({ upload }) => upload), mask);
  }

  // Like sources, for the pictures and the mask of an earlier request, whose files may have expired.
  async renew({ images = [], mask = null }) {
    const uploads = [...this.known].flatMap(({ upload, masks }) => [upload, ...masks.map((each) => each.upload)]);
    const uploadOf = ({ file_id: id }) => uploads.find(({ ids }) => ids.has(id)) ?? new Upload(null, "", id);
    return this.#send(images.map(uploadOf), mask && uploadOf(mask));
  }

  // The address of the first picture of a request, where this tab has it; else null.
  before({ images = [] }) {
    const picture = [...this.known].find(({ upload }) => upload.ids.has(images[0]?.file_id));
    return picture?.address ?? null;
  }

  // Releases pictures that neither the form nor a request has.
  prune() {
    const ids = new Set(this.requests().flatMap(({ images }) => (images ?? []).map((source) => source.file_id)));
    for (const picture of this.known) {
      if (this.pictures.includes(picture) || [...picture.upload.ids].some((id) => ids.has(id))) continue;
      picture.release();
      this.known.delete(picture);
    }
  }

  owns(field) {
    return FIELDS.includes(field?.replace(/[.[].*/, ""));
  }

  clearError() {
    this.error.textContent = "";
    this.node.classList.remove("wrong");
  }

  // Shows an error of the server. The next request uploads the files again.
  showError(text) {
    this.#complain(text);
    for (const { upload, masks } of this.known) {
      for (const each of [upload, ...masks.map((mask) => mask.upload)]) each.forget();
    }
  }

  #complain(text) {
    this.error.textContent = text;
    this.node.classList.add("wrong");
    this.button.focus();
  }

  async #send(uploads, mask) {
    const fields = {};
    const idOf = async (upload, field) => {
      try {
        return { file_id: await upload.id() };
      } catch (error) {
        throw Object.assign(error, { field });
      }
    };
    for (const upload of uploads) fields.images = [...(fields.images ?? []), await idOf(upload, "images")];
    if (mask) fields.mask = await idOf(mask, "mask");
    return fields;
  }

  #choose() {
    const files = [...this.file.files];
    this.file.value = "";
    this.add(files);
  }

  #put(pictures) {
    this.pictures = pictures;
    this.prune();
    this.#write();
    this.dispatchEvent(new Event("change"));
  }

  #write() {
    const { label, hint } = WORDS[this.kind] ?? { label: "", hint: "" };
    this.node.hidden = !this.offered;
    this.label.textContent = label;
    this.hint.textContent = this.kind === "reference" && this.takesMask ? `${hint} ${MASK_OF_REFERENCE}` : hint;
    this.file.multiple = this.most > 1;
    this.button.lastChild.textContent = this.pictures.length === 0 ? "Choose, drop or paste a picture" : this.most > 1 ? "Add another" : "Choose another";
    this.button.disabled = this.most > 1 && this.pictures.length >= this.most;
    this.list.replaceChildren(...this.pictures.map((picture, index) => this.#row(picture, index)));
  }

  #row(picture, index) {
    const { name, address, width, height } = picture;
    const number = index + 1;
    const sent = index < this.most;
    const thumb = element("span", { class: "thumb" }, address ? element("img", { src: address, alt: "" }) : icon("picture"));
    const about = element("small", {}, address ? `${width} × ${height}` : "no longer in this tab");
    const buttons = element("div", { class: "row" });
    if (sent && index === 0 && this.takesMask) {
      const painted = picture.mask?.share() ?? 0;
      if (painted > 0) thumb.append(this.#preview(picture));
      const part = painted > 0 ? `${Math.max(1, Math.round(100 * painted))} % painted` : picture.maskId ? "mask sent earlier" : "";
      if (part) about.append(`, ${part}`);
      if (address) {
        buttons.append(element("button", { type: "button", id: "mask-button", onclick: () => this.#paint(picture) }, icon("brush"), painted > 0 ? "Change mask" : "Paint mask"));
      }
    }
    if (!sent) about.append(", not sent: the model takes ", plural(this.most, "picture"));
    buttons.append(element("button", { type: "button", class: "quiet remove", "aria-label": `Remove picture ${number}`, title: "Remove", onclick: () => this.#remove(picture) }, icon("bin")));
    return element("li", { class: sent ? "" : "unsent" }, thumb, element("div", {}, element("span", { class: "name" }, name), about, buttons));
  }

  // The mask on the thumbnail.
  #preview({ mask }) {
    const canvas = element("canvas", { width: 144, height: 144, "aria-hidden": "true" });
    const scale = Math.min(canvas.width / mask.width, canvas.height / mask.height);
    const place = { scale, x: (canvas.width - mask.width * scale) / 2, y: (canvas.height - mask.height * scale) / 2 };
    const context = canvas.getContext("2d");
    context.beginPath();
    context.rect(place.x, place.y, mask.width * scale, mask.height * scale);
    context.clip();
    drawStrokes(context, mask.strokes, place);
    return canvas;
  }

  async #paint(picture) {
    picture.maskId = null;
    await this.editor.open(picture);
    this.clearError();
    this.#write();
    this.dispatchEvent(new Event("change"));
    // The button that had the focus is replaced.
    if (document.activeElement === document.body) byId("mask-button")?.focus();
  }

  #remove(picture) {
    this.clearError();
    this.#put(this.pictures.filter((each) => each !== picture));
    this.button.focus();
  }
}
