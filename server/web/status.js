// What the server does: its queue, its rate, its groups and the nodes that lend it devices, from GET /v1/server. Asked for
// again and again while the page is seen, more often while this view is.
import * as api from "./api.js";
import { byId, duration, element, plural, svg } from "./dom.js";

const WATCHED_MS = 2000;
const BESIDE_MS = 10000;
const SOON_MS = 500;
const RATE_WINDOW_S = 60;
const KEPT_SAMPLES = 90;

export class ServerStatus {
  constructor() {
    this.samples = []; // {time, done, waiting}, of one run of the server
    this.started = null;
    this.watched = false;
    this.timer = null;
    this.soon = null;
    this.listeners = [];
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  onInfo(listener) {
    this.listeners.push(listener);
  }

  watch(watched) {
    this.watched = watched;
    this.refresh();
  }

  // Refreshes within a second, once for all calls until then.
  refreshSoon() {
    this.soon ??= setTimeout(() => this.refresh(), SOON_MS);
  }

  async refresh() {
    clearTimeout(this.timer);
    clearTimeout(this.soon);
    this.soon = null;
    if (document.hidden) return;
    try {
      const info = await api.json("v1/server", { quiet: true });
      this.#add(info);
      this.#write(info);
      this.#chip(info.draining ? "ending" : stateOfGroups(info.groups), chipText(info));
      byId("status-error").textContent = "";
      for (const listener of this.listeners) listener(info);
    } catch (error) {
      this.#chip("down", error.status === 401 ? "Needs a key" : "No answer");
      byId("status-error").textContent = error.message;
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), this.watched ? WATCHED_MS : BESIDE_MS);
  }

  #chip(state, text) {
    byId("server-chip").dataset.state = state;
    byId("server-chip-text").textContent = text;
  }

  #add(info) {
    if (this.started !== info.started_at) this.samples = [];
    this.started = info.started_at;
    this.samples.push({ time: performance.now() / 1000, done: info.images_done, waiting: info.queued_jobs });
    if (this.samples.length > KEPT_SAMPLES) this.samples.shift();
  }

  // Images a minute over the last minute that was observed; null before two values exist.
  #rate() {
    const last = this.samples.at(-1);
    const first = this.samples.find(({ time }) => time >= last.time - RATE_WINDOW_S);
    return last.time - first.time < 1 ? null : ((last.done - first.done) / (last.time - first.time)) * 60;
  }

  #write(info) {
    const rate = this.#rate();
    const uptime = Math.max(1, Date.now() / 1000 - info.started_at);
    const figures = [
      ["Waiting", info.queued_jobs, info.queued_jobs ? `the longest for ${duration(info.oldest_wait_seconds)}` : "nothing in the queue"],
      ["Running", info.running_jobs, `${duration(info.queued_device_seconds)} of work ahead`],
      ["Images a minute", rate === null ? "–" : rounded(rate), `${rounded((info.images_done / uptime) * 60)} since the start`],
      ["Finished", info.images_done, info.images_failed ? `${plural(info.images_failed, "image")} failed` : "none failed"],
    ];
    byId("figures").replaceChildren(
      ...figures.map(([name, value, note]) =>
        element("div", { class: "figure-card" }, element("dt", {}, name), element("dd", {}, element("strong", {}, value.toLocaleString("en")), element("span", {}, note))),
      ),
    );
    byId("load").replaceChildren(curve(this.samples.map(({ waiting }) => waiting)));
    byId("groups").replaceChildren(...info.groups.map(groupRow));
    byId("nodes-section").hidden = info.nodes.length === 0;
    byId("nodes").replaceChildren(...info.nodes.map(nodeRow));
    byId("server-facts").textContent = `Tessera ${info.version}, running for ${duration(uptime)}${info.draining ? "; it is stopping and accepts no more jobs" : ""}`;
  }
}

const rounded = (number) => (number >= 100 ? Math.round(number) : Math.round(number * 10) / 10).toLocaleString("en");

const stateOfGroups = (groups) => (groups.every(({ state }) => state === "ready") ? "ready" : groups.some(({ state }) => state === "ready") ? "part" : "down");

function chipText(info) {
  if (info.draining) return "Ending";
  const ready = info.groups.filter(({ state }) => state === "ready").length;
  const groups = ready === info.groups.length ? `${plural(ready, "group")} ready` : `${ready} of ${plural(info.groups.length, "group")} ready`;
  return info.queued_jobs ? `${groups}, ${info.queued_jobs.toLocaleString("en")} waiting` : groups;
}

const cell = (name, ...content) => element("td", { "data-name": name }, ...content);
const shareOf = ({ state, loaded }) => (state === "loading" ? `, ${Math.floor(100 * loaded)} %` : "");
const stateMark = (state, more = "") => element("span", { class: `state-mark ${state}` }, state + more);

function groupRow(group) {
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, group.name),
    cell("State", stateMark(group.state, shareOf(group)), group.reason ? element("p", { class: "reason" }, group.reason) : null),
    cell("Model", group.model),
    cell("Layout", group.layout),
    cell("Type", group.dtype),
    cell("Devices", group.devices.join(", ")),
    cell("Certificate", group.certificate),
    cell("Restarts", String(group.restarts)),
  );
}

function nodeRow(node) {
  const changed = new Date(node.changed_at * 1000);
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, node.name),
    cell("State", stateMark(node.state)),
    cell("Devices", node.devices.join(", ")),
    cell("Since", element("time", { datetime: changed.toISOString() }, `${duration((Date.now() - changed) / 1000)} ago`)),
  );
}

// The number of waiting images over the observed time.
function curve(values) {
  const width = 600;
  const height = 96;
  const most = Math.max(1, ...values);
  const points = values.map((value, index) => [
    values.length === 1 ? width : (index / (values.length - 1)) * width,
    height - 2 - (value / most) * (height - 12),
  ]);
  const line = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `Images in the queue: ${values.at(-1)} now, at most ${Math.max(...values)} since this page was opened` },
    svg("path", { class: "area", d: `${line}L${width} ${height}L${points[0][0].toFixed(1)} ${height}Z` }),
    svg("path", { class: "line", d: line }),
  );
}
