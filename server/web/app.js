// The page: puts form, stage, gallery and status together. It is a client of the public API like any other.
import * as api from "./api.js";
import { announce, byId, plural } from "./dom.js";
import { takeFiles } from "./drop.js";
import { RequestForm, fit } from "./form.js";
import { Gallery } from "./gallery.js";
import { PictureInputs } from "./inputs.js";
import { Jobs } from "./jobs.js";
import { parseText, readText, requestOf } from "./picture.js";
import { Stage } from "./stage.js";
import { ServerStatus } from "./status.js";

const jobs = new Jobs();
const status = new ServerStatus();
const pictures = new PictureInputs(() => jobs.entries.map(({ request }) => request));
let form = null;

// ---- messages

let noticeTimer = null;
function notice(text, kind = "plain") {
  const box = byId("notice");
  byId("notice-text").textContent = text;
  box.dataset.kind = kind;
  box.hidden = false;
  clearTimeout(noticeTimer);
  if (kind === "plain") noticeTimer = setTimeout(() => (box.hidden = true), 6000);
}
byId("notice-close").addEventListener("click", () => (byId("notice").hidden = true));

function complain(error) {
  const later = error.retryAfter ? ` Try again in ${plural(error.retryAfter, "second")}.` : "";
  notice(`${wordsOf(error)}${later}`, "error");
}

// An error's message, with the form's words where there is a form.
const wordsOf = (error) => form?.wordsOf(error) ?? error.message;

// ---- the key

// One dialog at a time: all calls that need a key wait for it.
let asking = null;
function askForKey(message) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    byId("key-message").textContent = message;
    byId("key-input").value = "";
    byId("key-forget").hidden = !api.hasKey();
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      const secret = byId("key-input").value.trim();
      byId("key-input").value = "";
      if (dialog.returnValue === "forget") api.setKey("");
      else if (dialog.returnValue === "use" && secret) api.setKey(secret);
      writeKeyButton();
      resolve(dialog.returnValue === "forget" || (dialog.returnValue === "use" && secret !== ""));
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

function writeKeyButton() {
  byId("key-button-text").textContent = api.hasKey() ? "Key in use" : "Key";
}

api.onKeyNeeded(() =>
  askForKey(api.hasKey() ? "The server does not know this key. Give another one." : "This server asks for an API key. It stays in this tab and is forgotten with it."),
);
byId("key-button").addEventListener("click", async () => {
  const changed = await askForKey("The key for this server. It stays in this tab and is forgotten with it.");
  if (changed) location.reload();
});
for (const [id, value] of [["key-forget", "forget"], ["key-cancel", "cancel"]]) {
  byId(id).addEventListener("click", () => byId("key-dialog").close(value));
}
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("key-dialog").close("use");
});

// ---- views

function showView() {
  const view = location.hash === "#status" ? "status" : "create";
  for (const name of ["create", "status"]) {
    byId(name).hidden = name !== view;
    if (name === view) byId(`to-${name}`).setAttribute("aria-current", "page");
    else byId(`to-${name}`).removeAttribute("aria-current");
  }
  status.watch(view === "status");
}

// ---- jobs

const stage = new Stage(jobs, {
  cancel: (entry) => jobs.cancel(entry).catch(complain),
  again: (entry) => {
    const { seed, ...request } = entry.request;
    submit(request, () => pictures.renew(request));
  },
  edit: (entry, image) => {
    show({ ...entry.request, ...(image ? { seed: image.seed } : {}) });
    form.control("prompt").focus();
  },
  remove: (entry) => {
    const next = jobs.entries[jobs.entries.indexOf(entry) + 1] ?? jobs.entries.find((other) => other !== entry) ?? null;
    choose(next);
    jobs.remove(entry);
  },
  use: useImage,
  before: ({ request }) => pictures.before(request),
  takesPictures: () => pictures.offered,
  wordsOf: ({ message, param }) => wordsOf({ message, field: param }),
});
const gallery = new Gallery(jobs, (entry) => {
  choose(entry);
  byId("stage").scrollIntoView({ block: "nearest" });
});

function choose(entry) {
  stage.show(entry);
  gallery.mark(entry);
  jobs.select(entry);
}

// The chosen job may be removed in another tab, or no longer be kept by the server.
jobs.addEventListener("list", () => {
  if (stage.entry !== null && !jobs.entries.includes(stage.entry)) choose(jobs.entries[0] ?? null);
});

jobs.addEventListener("end", ({ entry }) => {
  const { job } = entry;
  const error = job.error && { field: job.error.param, message: job.error.message };
  const ends = { done: `${plural(job.images.length, "image")} finished: ${job.prompt}`, cancelled: "Cancelled.", failed: `Failed: ${error && wordsOf(error)}` };
  announce(ends[job.status]);
  // An error that only the model finds is also shown at its field.
  if (error?.field && stage.entry === entry) form.showError(error);
  status.refreshSoon();
});

// Sends a request; `sources` uploads its pictures and returns the fields that name them.
async function submit(request, sources = async () => ({})) {
  const button = byId("submit");
  button.disabled = true;
  form.clearErrors();
  try {
    const fields = await sources();
    choose(await jobs.submit({ ...request, ...fields }, form.numbers));
    announce("Accepted.");
    status.refreshSoon();
    if (matchMedia("(max-width: 60rem)").matches) byId("stage").scrollIntoView();
    return true;
  } catch (error) {
    if (error.field) form.showError(error);
    else complain(error);
    return false;
  } finally {
    button.disabled = false;
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const problem = form.problem();
  if (problem === null) return submit(form.request(), () => pictures.sources());
  form.clearErrors();
  form.showError(problem);
});
byId("composer").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
byId("reset").addEventListener("click", () => {
  form.show({});
  form.control("prompt").focus();
});

// ---- a picture's parameters

function show(request, options) {
  const unknown = form.show(request, options);
  for (const area of document.querySelectorAll("#composer textarea")) fit(area);
  return unknown;
}

async function readPicture(file) {
  try {
    const text = await readText(file);
    const parsed = text === null ? null : parseText(text);
    if (parsed === null) return notice(`${file.name} does not say how it was made.`, "error");
    const { request } = requestOf(parsed, form.schema);
    const unknown = show(request, { replacePictures: false });
    const model = unknown.includes("model") ? ` Its model, ${request.model}, is not served here.` : "";
    const made = unknown.includes("images") ? " It was made from a picture, which is not in it." : "";
    notice(`The parameters of ${file.name} are in the form.${model}${made}`, model || made ? "warning" : "plain");
    announce("The picture's parameters are in the form.");
    form.control("prompt").focus();
  } catch (error) {
    notice(`${file.name} cannot be read: ${error.message}`, "error");
  }
}

byId("picture-button").addEventListener("click", () => byId("picture-input").click());
byId("picture-input").addEventListener("change", ({ target }) => {
  if (target.files[0]) readPicture(target.files[0]);
  target.value = "";
});

// ---- pictures to begin from

async function usePictures(files) {
  if (!(await pictures.add(files))) return;
  const few = pictures.most === 1;
  announce(few ? "The image begins from this picture." : "The picture is added.");
  pictures.node.scrollIntoView({ block: "nearest" });
}

async function useImage(image) {
  try {
    const content = await api.image(image.id);
    await usePictures([new File([content], `Image with the seed ${image.seed}`, { type: content.type })]);
    notice("The image is in the form, as a picture to begin from.");
  } catch (error) {
    complain(error);
  }
}

takeFiles({ offered: () => pictures.offered, use: usePictures, read: (file) => form && readPicture(file) });
pictures.addEventListener("change", () => stage.refresh());
jobs.addEventListener("list", () => pictures.prune());

// ---- the beginning

async function begin() {
  writeKeyButton();
  addEventListener("hashchange", showView);
  const [schema, models] = await Promise.all([api.json("v1/schema"), api.json("v1/models")]);
  form = new RequestForm(schema, models.data, pictures);
  byId("composer").removeAttribute("aria-busy");
  byId("submit").disabled = false;
  showView();
  // The list of models changes when groups do.
  let ready = "";
  status.onInfo(async ({ groups }) => {
    const now = groups.map(({ model, state }) => `${model}=${state}`).join();
    if (ready && ready !== now) form.setModels((await api.json("v1/models")).data);
    ready = now;
  });
  const loading = jobs.load();
  if (jobs.entries.length) choose(jobs.entries[0]);
  const expired = await loading;
  if (expired) notice(`${plural(expired, "older job")} left the gallery: the server keeps results for a limited time.`);
  if (stage.entry === null && jobs.entries.length) choose(jobs.entries[0]);
}

async function beginUntilItWorks() {
  for (;;) {
    try {
      await begin();
      byId("notice").dataset.kind === "error" && (byId("notice").hidden = true);
      return;
    } catch (error) {
      complain(error);
      if (error.status) return;
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}
beginUntilItWorks();
