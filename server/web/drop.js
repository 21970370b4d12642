// Files that are dragged onto the page or pasted: pictures to begin from, or to read parameters from.
import { byId } from "./dom.js";

const filesOf = (transfer) => [...(transfer?.files ?? [])];
const carriesFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

// `offered` returns whether pictures can be used. Then the page's halves stand for `use`, which is called with all files,
// and `read`, which is called with the first one; else the whole page stands for `read`.
export function takeFiles({ offered, use, read }) {
  const halves = { use: byId("drop-use"), read: byId("drop-read") };
  let dragged = 0;
  const show = (change) => {
    dragged = change === 0 ? 0 : Math.max(0, dragged + change);
    byId("drop").hidden = dragged === 0;
    halves.use.hidden = !offered();
  };
  const isUse = ({ clientX, clientY }) => {
    const box = halves.use.getBoundingClientRect();
    return offered() && clientX < box.right && clientY < box.bottom;
  };
  const take = (files, used) => {
    if (files.length === 0 || document.querySelector("dialog[open]")) return;
    if (used) use(files);
    else read(files[0]);
  };
  addEventListener("dragenter", (event) => carriesFile(event) && show(1));
  addEventListener("dragleave", (event) => carriesFile(event) && show(-1));
  addEventListener("dragover", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    halves.use.classList.toggle("over", isUse(event));
    halves.read.classList.toggle("over", !isUse(event));
  });
  addEventListener("drop", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    const used = isUse(event);
    show(0);
    take(filesOf(event.dataTransfer), used);
  });
  addEventListener("paste", ({ target, clipboardData }) => {
    // Programs that copy text may put a picture of it next to it.
    if (target.matches?.("input, textarea") && clipboardData?.types.includes("text/plain")) return;
    take(filesOf(clipboardData).filter(({ type }) => type.startsWith("image/")), offered());
  });
}
