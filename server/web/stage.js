// Shows the selected job: its pictures in large, its progress, its parameters, and actions for it.
import { byId, duration, element, icon, plural } from "./dom.js";
import { Compare } from "./compare.js";
import { mosaic, progressBar } from "./mosaic.js";

const SMALLEST_SHOWN = 384; // pixels to which a small picture is enlarged

// The parameters of a job that are shown, under the names of the form.
function parametersOf(job, image, request) {
  const pictures = request.images?.length ? `${plural(request.images.length, "picture")}${request.mask ? " and a mask" : ""}` : "";
  const rows = [
    ["Model", job.model],
    ["Made from", pictures],
    ["Strength", pictures && request.strength],
    ["Adapters", job.loras.map(({ name, scale }) => `${name} × ${scale}`).join(", ")],
    ["Size", job.size],
    ["Steps", job.num_inference_steps],
    ["Guidance", job.guidance_scale],
    ["Seed", image?.seed ?? job.seed],
    ["Sampler", job.sampler],
    ["Format", job.output_format],
    ["Layout", job.layout],
    ["Time", job.ended_at && job.started_at ? duration(job.ended_at - job.started_at) : null],
  ];
  return rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
}

export function statusText(entry) {
  const { job, queue } = entry;
  if (entry.status === "unknown") return "Looking for it on the server …";
  if (!entry.connected && !entry.ended) return "The connection is broken; trying again …";
  switch (entry.status) {
    case "queued": {
      const place = queue?.position ? `${plural(queue.position, "image")} before it` : "Next in the queue";
      return queue?.wait ? `${place}, about ${duration(queue.wait)}` : place;
    }
    case "running": {
      const done = Math.round(entry.progress * job.steps_total);
      return done > 0 ? `Step ${done} of ${job.steps_total}` : "Started";
    }
    case "done":
      return plural(job.images.length, "image");
    case "cancelled":
      return "Cancelled";
    default:
      return "Failed";
  }
}

export class Stage {
  // `actions`: cancel, again, edit, remove, each called with the entry; use, called with an image; wordsOf, which returns
  // the text of an error; before, which returns the address of the picture that an entry was made from, or null; and
  // takesPictures, which returns whether an image can be used.
  constructor(jobs, actions) {
    this.jobs = jobs;
    this.actions = actions;
    this.entry = null;
    this.shown = ""; // the values that the text at the side was made from
    this.image = 0; // for the entry of the events
    this.compare = new Compare();
    this.compares = false;
    jobs.addEventListener("change", ({ entry }) => {
      if (entry === this.entry) this.#update();
    });
    this.show(null);
  }

  // Shows the buttons again where the form's model or pictures have changed.
  refresh() {
    if (this.entry !== null) this.#update();
  }

  show(entry) {
    this.compare.detach();
    this.compares = false;
    this.entry = entry;
    this.image = 0;
    this.shown = "";
    this.figures = [];
    this.form = "";
    byId("pictures").replaceChildren();
    byId("about").replaceChildren();
    byId("stage").classList.toggle("empty", entry === null);
    if (entry === null) {
      const picture = mosaic("tessera");
      picture.set(1);
      byId("pictures").dataset.count = "1";
      byId("pictures").replaceChildren(element("div", { class: "figure" }, picture.node));
      byId("about").replaceChildren(
        element("h2", { id: "stage-title" }, "Say what you want to see"),
        element("p", { class: "lead" }, "Write a prompt and make an image of it. What you make stays in this browser's gallery for as long as the server keeps it."),
      );
      return;
    }
    this.#update();
  }

  #update() {
    const { entry } = this;
    this.#updatePictures();
    const before = this.actions.before(entry);
    const signature = [entry.status, this.image, entry.job?.images.length, before, this.actions.takesPictures()].join();
    if (signature !== this.shown) {
      this.shown = signature;
      this.#writeAbout();
    }
    this.#updateCompare(before);
    this.state.textContent = statusText(entry);
    this.progress.set(entry.progress, entry.stepsOfImage);
  }

  #updatePictures() {
    const { entry } = this;
    const count = entry.job?.n ?? 1;
    const box = byId("pictures");
    box.dataset.count = String(Math.min(count, 5));
    const form = `${count} ${entry.job?.size}`; // the size is known once the server has reported the job
    if (this.form !== form) {
      this.form = form;
      this.figures = [];
      box.replaceChildren();
    }
    const [width, height] = (entry.job?.size ?? "1x1").split("x").map(Number);
    while (this.figures.length < count) {
      const index = this.figures.length;
      const waiting = mosaic(`${entry.id}${index}`);
      const picture = element("img", { alt: "", hidden: true });
      // Of several images, one is chosen for a description.
      const [tag, choice] = count > 1 ? ["button", { type: "button", onclick: () => this.#look(index) }] : ["div", {}];
      const figure = element(tag, { class: "figure", ...choice }, waiting.node, picture);
      figure.style.aspectRatio = `${width} / ${height}`;
      figure.style.maxWidth = count === 1 ? `${Math.max(width, Math.round((SMALLEST_SHOWN * width) / Math.max(width, height)))}px` : "";
      this.figures.push({ figure, waiting, picture, address: "" });
      box.append(figure);
    }
    this.figures.forEach((each, index) => {
      if (count > 1) {
        each.figure.setAttribute("aria-label", `Image ${index + 1} of ${count}`);
        each.figure.setAttribute("aria-pressed", String(index === this.image));
      }
      each.figure.classList.toggle("ended", entry.ended);
      each.waiting.set((entry.steps.get(index) ?? 0) / entry.stepsOfImage);
      const finished = entry.job?.images.find((image) => image.index === index);
      if (finished) this.#load(each, entry, finished);
      else if (entry.previews.has(index) && !entry.ended) this.#put(each, entry.previews.get(index), "preview");
    });
  }

  #updateCompare(before) {
    const { figure } = this.figures[this.image] ?? {};
    if (!this.compares || before === null || !figure) return this.compare.detach();
    this.compare.attach(figure, before);
    if (!this.compare.node.isConnected) byId("pictures").append(this.compare.node);
  }

  async #load(each, entry, finished) {
    if (each.address === finished.id) return;
    each.address = finished.id;
    try {
      const address = await this.jobs.picture(entry, finished.id);
      if (this.entry === entry) this.#put(each, address, "finished");
    } catch (error) {
      each.address = "";
      if (this.entry === entry) this.state.textContent = error.message;
    }
  }

  #put({ figure, picture }, address, kind) {
    if (picture.getAttribute("src") !== address) picture.src = address;
    picture.alt = kind === "preview" ? `Preview of: ${this.entry.job.prompt}` : this.entry.job.prompt;
    picture.hidden = false;
    figure.dataset.kind = kind;
  }

  #look(index) {
    this.image = index;
    this.#update();
  }

  #writeAbout() {
    const { entry } = this;
    const { job } = entry;
    const about = byId("about");
    const hadFocus = about.contains(document.activeElement);
    this.state = element("span", { class: `state ${entry.status}` });
    this.progress = progressBar();
    const head = element("div", { class: "headline" }, this.state);
    const image = job?.images[this.image];
    if (job && !entry.ended) {
      head.append(element("button", { type: "button", class: "quiet danger", id: "cancel", onclick: () => this.actions.cancel(entry) }, icon("cross"), "Cancel"));
      head.append(this.progress.node);
    }
    const parts = [head, element("h2", { id: "stage-title" }, job?.prompt ?? entry.request.prompt)];
    if (job?.negative_prompt) parts.push(element("p", { class: "without" }, element("span", {}, "Without "), job.negative_prompt));
    if (job?.error) parts.push(element("p", { class: "problem", role: "alert" }, this.actions.wordsOf(job.error)));
    for (const warning of job?.warnings ?? []) parts.push(element("p", { class: "warning" }, icon("warning"), warning));
    if (job) {
      const rows = parametersOf(job, image, entry.request);
      parts.push(element("dl", { class: "parameters" }, rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))))));
    }
    if (entry.ended) parts.push(this.#buttons(image));
    about.replaceChildren(...parts);
    if (hadFocus) about.querySelector("button, a")?.focus();
  }

  #buttons(image) {
    const { entry, actions } = this;
    const buttons = [
      element("button", { type: "button", class: "primary", id: "again", onclick: () => actions.again(entry) }, icon("again"), "Again with another seed"),
      element("button", { type: "button", id: "edit", onclick: () => actions.edit(entry, image) }, icon("edit"), "Edit"),
    ];
    if (image) {
      const download = element("a", { class: "button", id: "download", download: `${image.id}.${image.output_format}` }, icon("download"), "Save");
      if (actions.takesPictures()) {
        buttons.push(element("button", { type: "button", id: "use", onclick: () => actions.use(image) }, icon("input"), "Use as input"));
      }
      if (actions.before(entry) !== null) {
        const toggle = ({ currentTarget }) => {
          this.compares = !this.compares;
          currentTarget.setAttribute("aria-pressed", String(this.compares));
          this.#updateCompare(actions.before(entry));
          if (!this.compares) return;
          this.compare.figure?.scrollIntoView({ block: "nearest" });
          this.compare.range.focus({ preventScroll: true });
        };
        buttons.push(element("button", { type: "button", id: "compare", "aria-pressed": String(this.compares), onclick: toggle }, icon("compare"), "Before and after"));
      }
      this.jobs.picture(entry, image.id).then((address) => download.setAttribute("href", address), () => download.remove());
      buttons.push(download);
    }
    buttons.push(element("button", { type: "button", class: "quiet", id: "remove", onclick: () => actions.remove(entry) }, icon("bin"), "Remove"));
    return element("div", { class: "actions" }, buttons);
  }
}
