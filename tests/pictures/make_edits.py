"""Makes the pictures of tests/pictures/edits: some of tests/pictures/uploads at twice their size, as models that look at
pictures take none of fewer than 16 pixels a side.

    python3 tests/pictures/make_edits.py        needs Pillow
"""
import pathlib

from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent
NAMES = ("animated.png", "grey.png", "orientation_6.png", "palette_transparent.png", "rgb.png", "rgba.png")

for name in NAMES:
    picture = Image.open(FOLDER / "uploads" / name)
    size = (2 * picture.width, 2 * picture.height)
    frames = []
    for index in range(getattr(picture, "n_frames", 1)):
        picture.seek(index)
        frames.append(picture.resize(size, Image.Resampling.NEAREST))
    kept = {key: picture.info[key] for key in ("exif", "transparency") if key in picture.info}
    if len(frames) > 1:
        kept |= {"save_all": True, "append_images": frames[1:]}
    frames[0].save(FOLDER / "edits" / name, **kept)
