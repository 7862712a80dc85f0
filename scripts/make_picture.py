"""Make the pictures of the README: the tree of a container beside some of its frames, and the page of an episode.

    python scripts/make_picture.py docs/images

Names and pixels come from glassfs, which opens the KinoDB container that the demo mounts. Chromium shows the page;
where it is not installed, only ``tree.png`` is made.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from make_samples import write_kinodb
from PIL import Image, ImageDraw, ImageFont

import glassfs

SIZE = (960, 392)
BACKGROUND, TEXT, FAINT, PROMPT = "#14181f", "#d7dce4", "#6b7585", "#7fc98f"
MARGIN, LINE, INDENT = 24, 20, 22
FRAMES_LEFT, GAP = 404, 12
CAMERAS = {"front": (164, 123), "wrist": (164, 123)}
FRAMES = (0, 8, 16)
LISTED = 2
"""Entries of a directory of images that are listed; an ellipsis stands for the others."""
PAGE_SIZE, STEP = (960, 876), 9
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Tree:
    """The lines of a directory tree, drawn from the top down."""

    def __init__(self, draw: ImageDraw.ImageDraw, top: int) -> None:
        self._draw = draw
        self._font = ImageFont.load_default(15)
        self.top = top

    def text(self, depth: int, text: str, color: str = TEXT) -> None:
        left = MARGIN + INDENT * depth
        if depth:
            middle = self.top + LINE // 2
            self._draw.line([(left - INDENT + 6, self.top - 4), (left - INDENT + 6, middle), (left - 5, middle)], FAINT)
        self._draw.text((left, self.top), text, color, self._font)
        self.top += LINE

    def directory(self, depth: int, name: str, entry: glassfs.Entry) -> None:
        self.text(depth, f"{name}/")
        names = sorted(entry, key=lambda child: (entry[child].is_dir(), child))
        for child in names[:LISTED] if name in CAMERAS else names:
            if entry[child].is_dir():
                self.directory(depth + 1, child, entry[child])
            else:
                self.text(depth + 1, child)
        if name in CAMERAS:
            self.text(depth + 1, f"… {len(names)} files", FAINT)


def picture(container: Path) -> Image.Image:
    """Return the drawing of the first episode of a container with the cameras CAMERAS."""
    image = Image.new("RGB", SIZE, BACKGROUND)
    draw = ImageDraw.Draw(image)
    tree = Tree(draw, MARGIN - 8)
    tree.text(0, f"$ glassfs mount {container.name} mnt", PROMPT)
    tree.text(0, "$ ls -R mnt/episodes/0", PROMPT)
    caption = ImageFont.load_default(13)
    with glassfs.open(container) as data:
        tree.directory(0, "0", data["episodes/0"])
        top = MARGIN
        for camera, (width, height) in CAMERAS.items():
            for column, number in enumerate(FRAMES):
                frame = data[f"episodes/0/images/{camera}/{number:06d}.png"].image()
                left = FRAMES_LEFT + column * (width + GAP)
                image.paste(frame.resize((width, height), Image.Resampling.BICUBIC), (left, top))
                draw.text((left, top + height + 6), f"{camera}/{number:06d}.png", FAINT, caption)
            top += height + 46
    return image


def page(container: Path, folder: Path) -> Image.Image:
    """Return what Chromium shows of the page of the first episode, which is exported to ``folder``."""
    words = [sys.executable, "-m", "glassfs", "export", "--views", "html+mp4", str(container), str(folder / "exported")]
    subprocess.run(words, check=True, capture_output=True)
    taken = folder / "page.png"
    assert CHROMIUM is not None
    subprocess.run([
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={PAGE_SIZE[0]},{PAGE_SIZE[1]}",
        "--virtual-time-budget=10000", f"--screenshot={taken}",
        f"{(folder / 'exported/episodes/0/index.html').as_uri()}#step={STEP}",
    ], check=True, capture_output=True, timeout=120)
    with Image.open(taken) as image:
        return image.convert("RGB")


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        container = Path(folder) / "robot.kdb"
        write_kinodb(container)
        picture(container).save(target / "tree.png", optimize=True)
        if CHROMIUM is None:
            print("Chromium is not installed, so page.png is not made: apt install chromium", file=sys.stderr)
        else:
            page(container, Path(folder)).save(target / "page.png", optimize=True)


if __name__ == "__main__":
    main()
