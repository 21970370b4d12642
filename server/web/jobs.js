// The jobs of this browser: their ids and requests in its storage, their states and pictures from the server.
import * as api from "./api.js";

const STORAGE = "tessera.jobs";
const MOST_KEPT = 200;
// A browser opens six connections to a server that speaks HTTP/1.1, and the page needs some for calls.
const MOST_STREAMS = 3;
const LOADED_AT_ONCE = 4;
const RETRY_MS = 1000;

const ENDED = new Set(["done", "failed", "cancelled"]);
const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

export class Entry {
  constructor({ id, request, owner }) {
    this.id = id;
    this.request = request;
    this.owner = owner;
    this.job = null; // as the server last reported it
    this.queue = null; // {position, wait} while it waits
    this.steps = new Map(); // done, by image
    this.previews = new Map(); // addresses of blobs, by image
    this.pictures = new Map(); // the same of finished images, by their id
    this.connected = true;
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

export class Jobs extends EventTarget {
  constructor() {
    super();
    this.entries = [];
    this.streams = 0;
  }

  // The jobs that this browser knows, newest first; their states are fetched one after another.
  async load() {
    const owner = api.ownerOfImages();
    this.entries = this.#stored().filter((each) => each.owner === owner).map((each) => new Entry(each));
    this.#notify("list");
    const waiting = [...this.entries];
    let expired = 0;
    const worker = async () => {
      for (let entry = waiting.shift(); entry; entry = waiting.shift()) {
        try {
          entry.job = await this.#ask(entry);
          this.#notify("change", entry);
          if (!entry.ended) this.#watch(entry);
        } catch (error) {
          if (error.status === 404) {
            ++expired;
            this.remove(entry);
          } else {
            this.#watch(entry);
          }
        }
      }
    };
    await Promise.all(Array.from({ length: LOADED_AT_ONCE }, worker));
    return expired;
  }

  // Submits a request; `numbers` are the names of its whole numbers.
  async submit(request, numbers) {
    const job = await api.submit(api.writeJson(request, numbers));
    const entry = new Entry({ id: job.id, request, owner: api.ownerOfImages() });
    entry.job = job;
    if (job.status === "queued") entry.queue = { position: job.queue_position, wait: job.expected_wait_seconds };
    this.entries.unshift(entry);
    this.#store();
    this.#notify("list");
    this.#watch(entry);
    return entry;
  }

  async cancel(entry) {
    const job = await api.json(`v1/jobs/${encodeURIComponent(entry.id)}`, { method: "DELETE" });
    if (!entry.ended) this.#end(entry, job);
  }

  // Removes jobs from this browser; the server keeps them until their retention ends.
  remove(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    entry.release();
    this.#store();
    this.#notify("list");
  }

  // The address of a finished image's blob, fetched once.
  async picture(entry, id) {
    const known = entry.pictures.get(id);
    if (known) return known;
    const blob = await api.image(id);
    if (!entry.pictures.has(id)) entry.pictures.set(id, URL.createObjectURL(blob));
    return entry.pictures.get(id);
  }

  #ask(entry) {
    return api.json(`v1/jobs/${encodeURIComponent(entry.id)}`, { quiet: true });
  }

  // Follows a job until it ends, across broken connections and restarts of the server.
  async #watch(entry) {
    while (!entry.ended && this.entries.includes(entry)) {
      try {
        if (entry.job !== null && this.streams < MOST_STREAMS) {
          await this.#stream(entry);
          this.#connected(entry, entry.ended); // the server ends a stream early when it ends itself
        } else {
          await this.#look(entry);
          this.#connected(entry, true);
        }
      } catch (error) {
        if (error.status === 404) return this.remove(entry);
        this.#connected(entry, false);
      }
      if (!entry.ended) await pause(RETRY_MS);
    }
  }

  #connected(entry, connected) {
    if (entry.connected === connected) return;
    entry.connected = connected;
    this.#notify("change", entry);
  }

  async #look(entry) {
    const job = await this.#ask(entry);
    entry.queue = job.status === "queued" ? { position: job.queue_position, wait: job.expected_wait_seconds } : null;
    if (ENDED.has(job.status)) return this.#end(entry, job);
    entry.job = job;
    this.#notify("change", entry);
  }

  async #stream(entry) {
    ++this.streams;
    try {
      for await (const { name, data } of api.events(entry.id)) {
        this.#connected(entry, true);
        this.#apply(entry, name, data);
        if (entry.ended) return;
      }
    } finally {
      --this.streams;
    }
  }

  #apply(entry, name, data) {
    if (ENDED.has(name)) return this.#end(entry, data);
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

  #end(entry, job) {
    entry.job = job;
    entry.queue = null;
    this.#notify("change", entry);
    this.#notify("end", entry);
  }

  #stored() {
    try {
      return JSON.parse(localStorage.getItem(STORAGE)) ?? [];
    } catch {
      return [];
    }
  }

  // Jobs of other keys are not changed.
  #store() {
    const owner = api.ownerOfImages();
    const others = this.#stored().filter((each) => each.owner !== owner);
    const own = this.entries.slice(0, MOST_KEPT).map(({ id, request }) => ({ id, request, owner }));
    try {
      localStorage.setItem(STORAGE, JSON.stringify([...own, ...others].slice(0, 2 * MOST_KEPT)));
    } catch {
      // A browser without storage shows the jobs of this visit.
    }
  }

  #notify(type, entry = null) {
    this.dispatchEvent(Object.assign(new Event(type), { entry }));
  }
}
