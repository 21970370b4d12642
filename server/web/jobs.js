// The jobs of this browser: their ids and requests in its storage, their states and pictures from the server. One
// request a second asks for the states of all jobs under way; the events of the selected one are streamed.
import * as api from "./api.js";
import * as stored from "./stored.js";

const LARGEST_PAGE = 100;
const MOST_PAGES = 3; // of the server's list, each time
const ASKED_AT_ONCE = 4;
const INTERVAL_MS = 1000;

const ENDED = new Set(["done", "failed", "cancelled"]);
const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

export class Entry {
  constructor({ id, request, owner, at }) {
    this.id = id;
    this.request = request;
    this.owner = owner;
    this.at = at; // milliseconds since 1970, for the order
    this.stored = false; // or has been stored by any tab of this browser
    this.job = null; // as the server last reported it
    this.queue = null; // {position, wait} while it waits
    this.steps = new Map(); // done, by image
    this.previews = new Map(); // addresses of blobs, by image
    this.pictures = new Map(); // the same of finished images, by their id
    this.connected = true;
    this.streamed = false;
  }

  get record() {
    return { id: this.id, owner: this.owner, at: this.at, request: this.request };
  }

  get ended() {
    return this.job !== null && ENDED.has(this.job.status);
  }

  get status() {
    if (this.job === null) return "unknown";
    return this.ended || this.queue === null ? this.job.status : "queued";
  }

  // Steps that the workers run for each image.
  get stepsOfImage() {
    return this.job === null ? 1 : Math.max(1, this.job.steps_total / this.job.n);
  }

  // Progress of all its images, 0 to 1.
  get progress() {
    if (this.job === null || this.job.steps_total === 0) return 0;
    if (this.job.status === "done") return 1;
    let done = 0;
    for (const steps of this.steps.values()) done += steps;
    return Math.min(1, Math.max(done, this.job.steps_done) / this.job.steps_total);
  }

  release() {
    for (const address of [...this.previews.values(), ...this.pictures.values()]) URL.revokeObjectURL(address);
  }
}

// The request of a job that another client sent, as far as the server's list describes it.
function requestOf(job) {
  const { prompt, negative_prompt, model, n, size, seed, num_inference_steps, guidance_scale, sampler, output_format, loras } = job;
  const request = { prompt, model, n, size, seed, num_inference_steps, guidance_scale, output_format };
  if (negative_prompt !== null) request.negative_prompt = negative_prompt;
  if (sampler) request.sampler = sampler;
  if (loras.length) request.loras = loras.map(({ name, scale }) => ({ name, scale }));
  return request;
}

export class Jobs extends EventTarget {
  constructor() {
    super();
    this.entries = []; // newest first
    this.selected = null;
    this.stream = new AbortController(); // of the selected job's events
    this.polls = false;
    this.filled = false; // from the server's list
  }

  // Shows the jobs that this browser has stored, and asks the server for their states. The list of a key's jobs is the
  // caller's alone, so with a key it also has the jobs that other clients sent. Returns how many jobs the server no
  // longer keeps.
  async load() {
    this.filled = !api.hasKey();
    stored.onChange(() => this.#followTabs());
    this.#followTabs();
    this.#notify("list");
    const expired = await this.#look(Infinity);
    this.#poll();
    return expired;
  }

  // Submits a request; `numbers` are the names of its whole numbers.
  async submit(request, numbers) {
    const job = await api.submit(api.writeJson(request, numbers));
    const at = Math.max(1000 * job.created_at, (this.entries[0]?.at ?? 0) + 1);
    const entry = new Entry({ id: job.id, request, owner: api.ownerOfImages(), at });
    entry.stored = true;
    stored.merge([entry.record]);
    this.#add([entry]);
    this.#report(entry, job);
    this.#poll();
    return entry;
  }

  async cancel(entry) {
    this.#report(entry, await api.json(`v1/jobs/${encodeURIComponent(entry.id)}`, { method: "DELETE" }));
  }

  // Removes a job from this browser; the server keeps it until its retention ends.
  remove(entry) {
    const { id, owner, at } = entry;
    stored.merge([{ id, owner, at, removed: true }]);
    this.#drop([entry]);
  }

  // Streams the events of this job, and no longer those of the one before.
  select(entry) {
    if (entry === this.selected) return;
    this.selected = entry;
    this.stream.abort();
    this.stream = new AbortController();
    if (entry !== null) this.#follow(entry, this.stream.signal);
  }

  // The address of a finished image's blob, fetched once.
  async picture(entry, id) {
    const known = entry.pictures.get(id);
    if (known) return known;
    const blob = await api.image(id);
    if (!entry.pictures.has(id)) entry.pictures.set(id, URL.createObjectURL(blob));
    return entry.pictures.get(id);
  }

  // Takes over what the tabs of this browser have stored, and stores jobs of this tab that another has lost.
  #followTabs() {
    const owner = api.ownerOfImages();
    const records = new Map(stored.recordsOf(owner).map((each) => [each.id, each]));
    this.#drop(this.entries.filter(({ id }) => records.get(id)?.removed));
    const known = new Set(this.entries.map(({ id }) => id));
    const found = [...records.values()].filter(({ id, removed, request }) => !removed && request && !known.has(id));
    const added = found.map((record) => Object.assign(new Entry(record), { stored: true }));
    const lost = this.entries.filter((entry) => entry.stored && !records.has(entry.id));
    if (lost.length) stored.merge(lost.map(({ record }) => record));
    if (added.length === 0) return;
    this.#add(added);
    this.#poll();
  }

  #add(entries) {
    this.entries = [...this.entries, ...entries].sort(stored.byTime);
    this.#notify("list");
  }

  #drop(entries) {
    if (entries.length === 0) return;
    this.entries = this.entries.filter((entry) => !entries.includes(entry));
    for (const entry of entries) entry.release();
    if (entries.includes(this.selected)) this.select(null);
    this.#notify("list");
  }

  #ask(entry) {
    return api.json(`v1/jobs/${encodeURIComponent(entry.id)}`, { quiet: true });
  }

  // The jobs whose states are asked for.
  #open() {
    return this.entries.filter((entry) => !entry.ended && !entry.streamed);
  }

  async #poll() {
    if (this.polls) return;
    this.polls = true;
    do {
      await pause(INTERVAL_MS);
      if (this.#open().length > 0 || !this.filled) await this.#look(ASKED_AT_ONCE);
    } while (this.#open().length > 0 || !this.filled);
    this.polls = false;
  }

  // Asks for the states of all open jobs at once. Jobs that are not among the server's newest are asked for one by one,
  // at most so many. Returns how many the server no longer keeps.
  async #look(most) {
    const waiting = new Map(this.#open().map((entry) => [entry.id, entry]));
    let expired = 0;
    const gone = (entry) => {
      ++expired;
      this.remove(entry);
    };
    try {
      if (await this.#readList(waiting)) {
        for (const entry of waiting.values()) gone(entry);
        return expired;
      }
      const rest = [...waiting.values()].slice(0, most);
      const worker = async () => {
        for (let entry = rest.shift(); entry; entry = rest.shift()) await this.#lookAt(entry, gone);
      };
      await Promise.all(Array.from({ length: ASKED_AT_ONCE }, worker));
    } catch {
      for (const entry of waiting.values()) this.#connected(entry, false);
    }
    return expired;
  }

  async #lookAt(entry, gone) {
    try {
      this.#report(entry, await this.#ask(entry));
    } catch (error) {
      if (error.status !== 404) throw error;
      gone(entry);
    }
  }

  // Takes the jobs that the server lists out of `waiting`. Returns whether it keeps none of those that remain.
  async #readList(waiting) {
    const last = this.entries.findLastIndex(({ id }) => waiting.has(id));
    const limit = this.filled ? Math.min(LARGEST_PAGE, last + 20) : LARGEST_PAGE;
    const others = [];
    let after = "";
    for (let page = 0; page < MOST_PAGES && after !== null && (waiting.size > 0 || !this.filled); ++page) {
      const { data, next } = await api.jobs(limit, after);
      for (const job of data) {
        const entry = waiting.get(job.id);
        if (entry) this.#report(entry, job);
        else others.push(job);
        waiting.delete(job.id);
      }
      after = next;
    }
    if (!this.filled) this.#fill(others);
    return after === null;
  }

  // Adds the jobs of this key that other clients sent.
  #fill(jobs) {
    this.filled = true;
    const owner = api.ownerOfImages();
    const known = new Set([...stored.recordsOf(owner), ...this.entries].map(({ id }) => id));
    const added = jobs.filter(({ id }) => !known.has(id)).map((job) => {
      const entry = new Entry({ id: job.id, request: requestOf(job), owner, at: 1000 * job.created_at });
      entry.job = job;
      return entry;
    });
    if (added.length) this.#add(added);
  }

  // Streams the events of the selected job until it ends, across broken connections and restarts of the server.
  async #follow(entry, signal) {
    const goesOn = () => !signal.aborted && !entry.ended && this.entries.includes(entry);
    while (goesOn()) {
      try {
        if (entry.job === null) this.#report(entry, await this.#ask(entry));
        if (!entry.ended) await this.#stream(entry, signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404) this.remove(entry);
        else this.#connected(entry, false);
      } finally {
        entry.streamed = false;
        this.#poll();
      }
      if (goesOn()) await pause(INTERVAL_MS);
    }
  }

  async #stream(entry, signal) {
    for await (const { name, data } of api.events(entry.id, signal)) {
      entry.streamed = true;
      entry.connected = true;
      this.#apply(entry, name, data);
      if (entry.ended) return;
    }
  }

  #connected(entry, connected) {
    if (entry.connected === connected) return;
    entry.connected = connected;
    this.#notify("change", entry);
  }

  #apply(entry, name, data) {
    if (ENDED.has(name)) return this.#report(entry, data);
    if (name === "queued") {
      entry.queue = { position: data.queue_position, wait: data.expected_wait_seconds };
    } else if (name !== "error") {
      entry.queue = null;
      entry.job.status = "running";
    }
    if (name === "step") entry.steps.set(data.image_index, data.step);
    if (name === "preview") this.#show(entry.previews, data.image_index, api.blobOf(data.b64_json, data.output_format));
    if (name === "image" && !entry.job.images.some(({ id }) => id === data.id)) entry.job.images.push(data);
    this.#notify("change", entry);
  }

  #show(addresses, key, blob) {
    if (addresses.has(key)) URL.revokeObjectURL(addresses.get(key));
    addresses.set(key, URL.createObjectURL(blob));
  }

  // Takes over a job's state. A job that has ended stays as it is: an older answer may come later.
  #report(entry, job) {
    if (entry.ended) return;
    const seen = entry.job !== null;
    entry.job = job;
    entry.queue = job.status === "queued" ? { position: job.queue_position, wait: job.expected_wait_seconds } : null;
    entry.connected = true;
    this.#notify("change", entry);
    if (seen && entry.ended) this.#notify("end", entry);
  }

  #notify(type, entry = null) {
    this.dispatchEvent(Object.assign(new Event(type), { entry }));
  }
}
