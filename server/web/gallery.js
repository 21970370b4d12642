// A tile for each job of this browser, newest first.
import { byId, element, plural } from "./dom.js";
import { mosaic } from "./mosaic.js";
import { statusText } from "./stage.js";

export class Gallery {
  constructor(jobs, choose) {
    this.jobs = jobs;
    this.choose = choose;
    this.tiles = new Map();
    this.chosen = null;
    // Pictures are fetched shortly before they scroll into view.
    this.watcher = new IntersectionObserver((sights) => {
      for (const { isIntersecting, target } of sights) {
        const tile = isIntersecting && [...this.tiles.values()].find(({ node }) => node === target);
        if (tile) {
          tile.seen = true;
          this.#update(tile);
        }
      }
    }, { rootMargin: "200px" });
    jobs.addEventListener("list", () => this.#list());
    jobs.addEventListener("change", ({ entry }) => {
      if (this.tiles.has(entry)) this.#update(this.tiles.get(entry));
    });
  }

  mark(entry) {
    this.chosen = entry;
    for (const tile of this.tiles.values()) tile.node.setAttribute("aria-pressed", String(tile.entry === entry));
  }

  #list() {
    const { entries } = this.jobs;
    for (const [entry, { node }] of this.tiles) {
      if (entries.includes(entry)) continue;
      node.parentElement?.remove();
      this.watcher.unobserve(node);
      this.tiles.delete(entry);
    }
    const list = byId("tiles");
    entries.forEach((entry, index) => {
      if (!this.tiles.has(entry)) this.tiles.set(entry, this.#tile(entry));
      const item = this.tiles.get(entry).node.parentElement;
      if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
    });
    byId("gallery").hidden = entries.length === 0;
    byId("gallery-count").textContent = plural(entries.length, "job");
    this.mark(this.chosen);
  }

  #tile(entry) {
    const waiting = mosaic(`${entry.id}0`);
    const picture = element("img", { alt: "", hidden: true });
    const badge = element("span", { class: "badge", hidden: true });
    const caption = element("span", { class: "caption" });
    const node = element("button", { type: "button", class: "tile", onclick: () => this.choose(entry) }, waiting.node, picture, badge, caption);
    element("li", {}, node);
    this.watcher.observe(node);
    const tile = { entry, node, waiting, picture, badge, caption, seen: false, loaded: "" };
    this.#update(tile);
    return tile;
  }

  async #update(tile) {
    const { entry, node, waiting, picture, badge, caption } = tile;
    const { job } = entry;
    const prompt = job?.prompt ?? entry.request.prompt;
    node.dataset.status = entry.status;
    node.setAttribute("aria-label", `${prompt}: ${statusText(entry)}`);
    caption.textContent = prompt;
    waiting.set(entry.progress);
    badge.hidden = !job || (entry.status === "done" && job.n === 1);
    badge.textContent = entry.status === "done" ? `${job?.n}` : entry.status === "running" ? `${Math.round(entry.progress * 100)} %` : entry.status;
    const first = job?.images[0];
    if (first && tile.seen && tile.loaded !== first.id) {
      tile.loaded = first.id;
      try {
        picture.src = await this.jobs.picture(entry, first.id);
        picture.hidden = false;
      } catch {
        tile.loaded = ""; // the stage shows the reason, and the next change tries again
      }
    } else if (!first && entry.previews.has(0) && !entry.ended) {
      picture.src = entry.previews.get(0);
      picture.hidden = false;
    } else if (!first && entry.ended) {
      picture.hidden = true;
    }
  }
}
