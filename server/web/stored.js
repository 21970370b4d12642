// The jobs of this browser in its storage, which its tabs share. Every change reads the stored list again and merges
// by id, so no tab undoes another tab's change. A removed job leaves a mark, so that no tab stores it again.

const STORAGE = "tessera.jobs";
const MOST_KEPT = 200; // jobs, and marks of removed ones, of each key
const MOST_IN_ALL = 2 * MOST_KEPT;

// Newest first, in the same order in every tab.
export const byTime = (a, b) => b.at - a.at || (a.id < b.id ? 1 : -1);

// Records are {id, owner, at, request}, or {id, owner, at, removed: true}.
function read() {
  try {
    const all = JSON.parse(localStorage.getItem(STORAGE));
    const records = Array.isArray(all) ? all.filter((each) => typeof each?.id === "string") : [];
    // Pages of earlier versions stored no times, but the newest job first.
    return records.map((each, index) => ({ ...each, at: Number.isFinite(each.at) ? each.at : -index }));
  } catch {
    return [];
  }
}

function write(records) {
  const counts = new Map();
  const few = ({ owner, removed }) => {
    const kind = `${owner} ${removed === true}`;
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
    return counts.get(kind) <= MOST_KEPT;
  };
  try {
    localStorage.setItem(STORAGE, JSON.stringify(records.sort(byTime).filter(few).slice(0, MOST_IN_ALL)));
  } catch {
    // A browser without storage shows the jobs of this visit.
  }
}

export const recordsOf = (owner) => read().filter((each) => each.owner === owner).sort(byTime);

export function merge(records) {
  const all = new Map(read().map((each) => [each.id, each]));
  for (const each of records) {
    if (!all.get(each.id)?.removed) all.set(each.id, each);
  }
  write([...all.values()]);
}

// Calls the listener after another tab has changed the list.
export function onChange(listener) {
  addEventListener("storage", ({ key }) => key === STORAGE && listener());
}
