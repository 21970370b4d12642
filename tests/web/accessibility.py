"""What the page's tests check of accessibility."""

# Requirements of WCAG 2.2 for text and for touch targets.
LEAST_CONTRAST = 4.5
LEAST_TARGET = 24

# The contrast of every text that is seen, with where it stands: [ratio, text, color, background].
CONTRASTS = """
const channels = (text) => {
  const numbers = text.match(/[\\d.]+/g).map(Number);
  const rgb = text.startsWith('color(') ? numbers.slice(0, 3).map((part) => part * 255) : numbers.slice(0, 3);
  return { rgb, alpha: numbers.length > 3 ? numbers[3] : 1 };
};
const over = (top, bottom) => top.rgb.map((part, i) => part * top.alpha + bottom[i] * (1 - top.alpha));
const luminance = (rgb) => rgb.map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.textContent.trim() || !element.checkVisibility({ opacityProperty: true }) || element.closest('.unseen, .tile, :disabled')) continue;
  const box = element.getBoundingClientRect();
  if (box.width < 2 || getComputedStyle(element).clipPath !== 'none') continue;
  let ground = [255, 255, 255];
  const layers = [];
  for (let up = element; up; up = up.parentElement) layers.unshift(channels(getComputedStyle(up).backgroundColor));
  for (const layer of layers) ground = over(layer, ground);
  const ink = over(channels(getComputedStyle(element).color), ground);
  const [dark, light] = [luminance(ink), luminance(ground)].sort((a, b) => a - b);
  found.push([(light + 0.05) / (dark + 0.05), node.textContent.trim().slice(0, 40)]);
}
return found;
"""

# The elements at which a screen reader stops, by role.
STOPS = {"button", "link", "textbox", "combobox", "progressbar", "image", "dialog"}


def wide_elements(browser):
    """The elements that are wider than the window."""
    return browser.run(
        "const most = document.documentElement.clientWidth; return [...document.querySelectorAll('body *')]"
        ".filter((e) => e.checkVisibility() && !e.closest('.unseen, thead') && e.getBoundingClientRect().right > most + 1)"
        ".map((e) => e.outerHTML.slice(0, 80))"
    )
