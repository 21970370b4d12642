#!/usr/bin/env python3
"""Teaches the built-in model a style by a LoRA of 20 images, and measures what it learned on captions it never saw.

    scripts/train-emoji-style.py [--output DIR] [--steps N] [--grid FILE] [--tessera PROGRAM]

The style is a blueprint: an emoji's darkness in white on blue. 20 emoji are drawn in it and get the trigger word; 40
others as they are keep the model in mind (is_reg). Then pictures of ten other captions are made, each with and without
the adapter, with and without the trigger word. The distance of two pictures is the root of the mean squared difference of
their pixels; that to the style is the mean over the captions of the distance to the caption's emoji in it.

Succeeds if the adapter brings what is asked for with the trigger word at least 30 % nearer to the style, and what is
asked for without it moves by less than 5 %. --grid writes the pictures, a column a caption: without and with the adapter,
with it but without the trigger word, and the emoji in the style. Run it with the packages of
scripts/emoji-style-requirements.txt; needs a build (build/release).
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys

from PIL import Image, ImageChops, ImageOps, ImageStat

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "examples" / "emoji"
TRIGGER = "sks"
ADAPTER = "blueprint"
STYLED = [
    "cat face", "rocket", "banana", "guitar", "crown", "bicycle", "penguin", "umbrella", "skull", "hamburger",
    "octopus", "birthday cake", "airplane", "tiger", "soccer ball", "mushroom", "robot face", "snail", "camera", "chicken",
]
HELD_OUT = [
    "red apple", "dog face", "blue heart", "slice of pizza", "snowman", "rainbow", "key", "cherries", "tulip", "fire engine",
]
REGULAR_IMAGES = 40
PAPER, INK = (20, 50, 120), (240, 245, 255)
LEAST_NEARER, MOST_MOVED = 0.30, 0.05


def in_style(picture):
    return ImageOps.colorize(ImageOps.invert(picture.convert("L")), PAPER, INK)


def distance(a, b):
    squares = ImageStat.Stat(ImageChops.difference(a, b)).sum2
    return math.sqrt(sum(squares) / (3 * a.width * a.height))


def write_folder(folder, pictures):
    folder.mkdir(parents=True)
    lines = []
    for number, (caption, picture) in enumerate(pictures):
        picture.save(folder / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": caption}) + "\n")
    (folder / "metadata.jsonl").write_text("".join(lines))


def write_data(folder, emoji):
    missing = [caption for caption in STYLED + HELD_OUT if caption not in emoji]
    if missing:
        sys.exit(f"{DATA} has no picture of: {', '.join(missing)}")
    write_folder(folder / "style", [(caption, in_style(emoji[caption])) for caption in STYLED])
    others = sorted(set(emoji) - set(STYLED) - set(HELD_OUT))
    chosen = others[:: len(others) // REGULAR_IMAGES][:REGULAR_IMAGES]
    write_folder(folder / "regular", [(caption, emoji[caption]) for caption in chosen])


def train(tessera, folder, steps):
    config = folder / "style.yaml"
    config.write_text(
        f"""model: emoji
output: {folder}/run
trigger_word: {TRIGGER}
datasets:
  - {{folder_path: {folder}/style, resolution: 64, num_repeats: 2, caption_dropout_rate: 0}}
  - {{folder_path: {folder}/regular, resolution: 64, is_reg: true, caption_dropout_rate: 0.1}}
network: {{type: lora, linear: 16, linear_alpha: 16}}
train: {{steps: {steps}, batch_size: 16, lr: 1e-3, lr_scheduler: cosine, lr_warmup_steps: 20, snr_gamma: 5,
        gradient_checkpointing: false, optimizer_params: {{weight_decay: 0}}}}
save: {{save_every: 0}}
"""
    )
    subprocess.run([tessera, "train", str(config)], check=True, cwd=ROOT)
    adapter = folder / "adapters" / f"{ADAPTER}.safetensors"
    adapter.parent.mkdir()
    return (folder / "run" / f"adapter-{steps}.safetensors").rename(adapter)


def make_pictures(tessera, folder, name, adapter, trigger):
    items = folder / f"{name}.jsonl"
    captions = [f"{TRIGGER} {caption}" if trigger else caption for caption in HELD_OUT]
    used = {"loras": [{"name": ADAPTER}]} if adapter else {}
    items.write_text("".join(json.dumps({"prompt": caption} | used) + "\n" for caption in captions))
    command = [tessera, "batch", str(items), "--out", str(folder / name), "--seed", "1", "--quiet"]
    subprocess.run(command + (["--adapter-folder", str(adapter.parent)] if adapter else []), check=True, cwd=ROOT)
    paths = sorted((folder / name).rglob("*.png"))
    if len(paths) != len(HELD_OUT):
        sys.exit(f"{folder / name} holds {len(paths)} pictures, not {len(HELD_OUT)}")
    return [Image.open(path).convert("RGB") for path in paths]


def draw_grid(rows, path):
    side, gap = 64, 4
    grid = Image.new("RGB", (len(HELD_OUT) * (side + gap) - gap, len(rows) * (side + gap) - gap), "white")
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            grid.paste(picture, (x * (side + gap), y * (side + gap)))
    grid.save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("train-emoji-style"), help="a new folder")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--grid", type=pathlib.Path)
    parser.add_argument("--tessera", default=str(ROOT / "build" / "release" / "bin" / "tessera"))
    arguments = parser.parse_args()
    folder = arguments.output.resolve()
    if folder.exists():
        sys.exit(f"{folder} exists; choose another --output, or remove it")

    rows = [json.loads(line) for line in (DATA / "metadata.jsonl").read_text().splitlines()]
    emoji = {row["text"]: Image.open(DATA / row["file_name"]).convert("RGB") for row in rows}
    write_data(folder, emoji)
    adapter = train(arguments.tessera, folder, arguments.steps)

    style = [in_style(emoji[caption]) for caption in HELD_OUT]
    made = {
        (bool(used), trigger): make_pictures(
            arguments.tessera, folder, f"{'with' if used else 'without'}-{'trigger' if trigger else 'plain'}", used, trigger
        )
        for used in (None, adapter)
        for trigger in (True, False)
    }
    to_style = {key: sum(map(distance, pictures, style)) / len(style) for key, pictures in made.items()}
    if arguments.grid:
        draw_grid([made[False, True], made[True, True], made[True, False], style], arguments.grid)

    nearer = 1 - to_style[True, True] / to_style[False, True]
    moved = abs(to_style[True, False] / to_style[False, False] - 1)
    print(f"with the trigger word: {to_style[False, True]:.1f} without the adapter, {to_style[True, True]:.1f} with it")
    print(f"without it:            {to_style[False, False]:.1f} without the adapter, {to_style[True, False]:.1f} with it")
    print(f"{100 * nearer:.1f} % nearer (at least {100 * LEAST_NEARER:.0f}), moved by {100 * moved:.1f} % (less than {100 * MOST_MOVED:.0f})")
    return 0 if nearer >= LEAST_NEARER and moved < MOST_MOVED else 1


if __name__ == "__main__":
    sys.exit(main())
