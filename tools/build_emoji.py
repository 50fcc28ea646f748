# /// script
# requires-python = ">=3.11"
# dependencies = ["fonttools==4.68.0", "numpy==2.4.6", "pillow==13.0.0", "resvg-py==0.5.0"]
# ///
"""Rebuild the embedded EmojiStyles data set from npm packages: `python tools/build_emoji.py --check`.

It writes one PNG sheet of 64x64 tiles per style and index.json. The packages are pinned by version and integrity. With
the library versions above every file comes out bit for bit; others may compress the same pixels into different files,
and then `--check` names only the sheets: index.json holds the SHA-256 of the pixels. Needs `npm`; takes half a minute.
"""

import argparse
import base64
import filecmp
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import resvg_py
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont

SIZE = 64
COLUMNS = 32
DRAWN = 4 * SIZE  # vector drawings are rendered at this size and then reduced

Files = Mapping[str, bytes]  # path inside a package -> content
Drawings = Mapping[str, Callable[[], Image.Image]]  # code -> draw it
Tiles = Mapping[str, np.ndarray]  # code -> uint8 [SIZE, SIZE, 3]

PACKAGES = {  # name -> version, integrity as npm states it
    "emojibase-data": (
        "17.0.0",
        "sha512-Yvgb5AWoHViHV/gq1qr5ZAarcBip+B27/ZLRsUJkbgAEaLlZ/fof9g882LTpmEpyhBNEC0m2SEmItljHsTygjA==",
    ),
    "@twemoji/svg": (
        "15.0.0",
        "sha512-ZSPef2B6nBaYnfgdTbAy4jgW95o7pi2xPGwGCU+WMTxo7J6B1lMPTWwSq/wTuiMq+N0khQ90CcvYp1wFoQpo/w==",
    ),
    "@lobehub/fluent-emoji-3d": (
        "1.1.0",
        "sha512-Wlq2lVStTnr8BDpIJ0pEnTKO4LuDxxqTEhTvRtD1DLRF0me7ogeRQjKoehDHXuVJ2Qaecgl5wRBv60lUAG3h7g==",
    ),
    "@iconify-json/fluent-emoji-high-contrast": (
        "1.2.6",
        "sha512-esqhZPpkrF7sNX3NsLoh8KW64okEr/bzko7WNnFP+qTJGAqDPDYjp0925yxuivXy3HtVQB8xhIKu3+Nq1byX5w==",
    ),
    "@expo-google-fonts/noto-emoji": (
        "0.4.7",
        "sha512-Gs7URwtKmCzzdGUTYbG8MIohyaQPgGxIaQG5hvyEAaQiEGJpQy6gyP3NDICE0EJkOJFoe1JFD3Hf1L4a3qe4KA==",
    ),
}

CLASSES = {  # class -> CLDR subgroups
    "face": "face-smiling face-affection face-tongue face-hand face-neutral-skeptical face-sleepy face-unwell face-hat "
    "face-glasses face-concerned face-negative",
    "hand": "hand-fingers-open hand-fingers-partial hand-single-finger hand-fingers-closed hands hand-prop",
    "person": "person person-gesture person-role person-fantasy person-activity person-sport person-resting",
    "mammal": "animal-mammal",
    "other_animal": "animal-bird animal-amphibian animal-reptile animal-marine animal-bug",
    "plant": "plant-flower plant-other",
    "fruit_veg": "food-fruit food-vegetable",
    "food_drink": "food-prepared food-asian food-sweet drink",
    "vehicle": "transport-ground transport-water transport-air",
    "building": "place-building place-religious",
    "clothing": "clothing",
    "office_tech": "phone computer light-video book-paper mail writing office",
}
# Members of those subgroups that do not show the class.
LEFT_OUT = set(
    "💀☠🐾🐽🪶🪽🐚🪸🦪🕸🦠💮🏵🪹🪺🧂🧊🚏🛣🛤🛢⛽🛞🚨🚥🚦🛑🚧🛼🛹🚉🦽🦼⚓🛟🪂💺🚟🚠🚡🧱🪨🪵💄💎📿🪮🪭💍"
    "🕯🪔🏮🔦💡🔍🔎🎬🏷🔖🗑🫈🧌🍄"
)


def fetch(name: str, cache: Path) -> Files:
    """Read a pinned package, downloading it once, and refuse one whose content is not what was pinned."""
    version, integrity = PACKAGES[name]
    archive = cache / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"{name}@{version}", "--pack-destination", str(cache)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    content = archive.read_bytes()
    if integrity != "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode():
        sys.exit(f"{archive} is not {name} {version} as pinned: expected {integrity}. Delete it and try again.")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {m.name.removeprefix("package/"): tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


def bare(code: str) -> str:
    """Drop the variation selector, which some packages write and others leave out."""
    return "-".join(point for point in code.lower().split("-") if point != "fe0f")


def is_variant(code: str) -> bool:
    """Tell whether an emoji only adds a gender or a direction to a neutral one."""
    points = code.split("-")
    return not {"2640", "2642", "27a1"}.isdisjoint(points) or (len(points) > 1 and points[0] in ("1f468", "1f469"))


def list_emoji(files: Files) -> dict[str, dict[str, str]]:
    """Map every emoji of our classes to its class and label, in CLDR order."""
    subgroups = json.loads(files["meta/groups.json"])["subgroups"]
    class_of = {subgroup: name for name, members in CLASSES.items() for subgroup in members.split()}
    emoji = {}
    for entry in json.loads(files["en/data.json"]):
        name = class_of.get(subgroups.get(str(entry.get("subgroup"))))
        code = bare(entry["hexcode"])
        if name and not is_variant(code) and chr(int(code.split("-")[0], 16)) not in LEFT_OUT:
            emoji[code] = {"class": name, "label": entry["label"]}
    return emoji


def render_svg(svg: str) -> Image.Image:
    return open_image(bytes(resvg_py.svg_to_bytes(svg_string=svg, width=DRAWN, height=DRAWN)))


def open_image(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGBA")


def render_glyph(font: ImageFont.FreeTypeFont, character: str) -> Image.Image:
    left, top, right, bottom = font.getbbox(character)
    image = Image.new("RGBA", (DRAWN, DRAWN), (255, 255, 255, 0))
    corner = ((DRAWN - (right - left)) / 2 - left, (DRAWN - (bottom - top)) / 2 - top)
    ImageDraw.Draw(image).text(corner, character, font=font, fill=(0, 0, 0, 255))
    return image


def twemoji(files: Files) -> Drawings:
    return {bare(Path(f).stem): partial(render_svg, svg.decode()) for f, svg in files.items() if f.endswith(".svg")}


def fluent_3d(files: Files) -> Drawings:
    return {bare(Path(f).stem): partial(open_image, image) for f, image in files.items() if f.endswith(".webp")}


def fluent_mono(files: Files) -> Drawings:
    icons = json.loads(files["icons.json"])["icons"]
    frame = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 {height}" color="#000000">{body}</svg>'
    svgs = {name: frame.format(height=i.get("height", 32), body=i["body"]) for name, i in icons.items()}
    names = json.loads(files["chars.json"])
    return {
        bare(code): partial(render_svg, svgs[name].replace("currentColor", "#000000"))
        for code, name in names.items()
        if name in svgs
    }


def noto_mono(files: Files) -> Drawings:
    """Draw single code points only: Pillow's basic layout does not join sequences."""
    ttf = files["400Regular/NotoEmoji_400Regular.ttf"]
    font = ImageFont.truetype(io.BytesIO(ttf), int(DRAWN * 0.78), layout_engine=ImageFont.Layout.BASIC)
    return {f"{point:04x}": partial(render_glyph, font, chr(point)) for point in TTFont(io.BytesIO(ttf)).getBestCmap()}


@dataclass(frozen=True)
class Style:
    """Where a style comes from, under which terms, and how its drawings are read."""

    package: str
    author: str
    licence: str
    drawings: Callable[[Files], Drawings]


STYLES = {
    "twemoji": Style("@twemoji/svg", "Twitter, Inc and other contributors", "CC-BY-4.0", twemoji),
    "fluent-3d": Style("@lobehub/fluent-emoji-3d", "Microsoft Corporation", "MIT", fluent_3d),
    "fluent-mono": Style("@iconify-json/fluent-emoji-high-contrast", "Microsoft Corporation", "MIT", fluent_mono),
    "noto-mono": Style("@expo-google-fonts/noto-emoji", "Google LLC", "OFL-1.1", noto_mono),
}


def on_white(drawing: Image.Image) -> np.ndarray:
    """Centre a drawing on a white square and reduce it to a tile."""
    side = max(drawing.size)
    square = Image.new("RGBA", (side, side), (255, 255, 255, 0))
    square.paste(drawing, ((side - drawing.width) // 2, (side - drawing.height) // 2))
    white = Image.new("RGBA", (side, side), (255, 255, 255, 255))
    white.alpha_composite(square)
    return np.asarray(white.convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS, reducing_gap=3.0))


def draw_tiles(name: str, codes: Iterable[str], cache: Path) -> Tiles:
    """Draw the emoji that a style has."""
    drawings = STYLES[name].drawings(fetch(STYLES[name].package, cache))
    tiles = {code: on_white(drawings[code]()) for code in codes if code in drawings}
    blank = [code for code, tile in tiles.items() if tile.std() < 3]
    if blank:
        sys.exit(f"{name} draws nothing for {', '.join(blank)}: the renderer lacks something these drawings need.")
    return tiles


def join_identities(emoji: Iterable[str], styles: Iterable[Tiles]) -> dict[str, str]:
    """Give emoji that some style draws with the very same pixels (prince, princess) one identity: the first's code."""
    identity = {code: code for code in emoji}
    for tiles in styles:
        first: dict[bytes, str] = {}
        for code, tile in tiles.items():
            old, new = identity[code], identity[first.setdefault(tile.tobytes(), code)]
            if old != new:
                identity = {c: new if i == old else i for c, i in identity.items()}
    return identity


def write_sheet(tiles: Tiles, path: Path) -> None:
    """Write tiles row by row as one PNG, in one channel where the three are equal."""
    rows = -(-len(tiles) // COLUMNS)
    grid = np.full((rows * COLUMNS, SIZE, SIZE, 3), 255, np.uint8)
    grid[: len(tiles)] = list(tiles.values())
    sheet = grid.reshape(rows, COLUMNS, SIZE, SIZE, 3).swapaxes(1, 2).reshape(rows * SIZE, COLUMNS * SIZE, 3)
    is_grey = bool((sheet == sheet[..., :1]).all())
    Image.fromarray(sheet[..., 0] if is_grey else sheet).save(path, optimize=True)


def describe(name: str, tiles: Tiles) -> dict[str, object]:
    """Describe a style for index.json."""
    style = STYLES[name]
    return {
        "author": style.author,
        "licence": style.licence,
        "source": f"npm:{style.package}@{PACKAGES[style.package][0]}",
        "sha256": hashlib.sha256(np.stack(list(tiles.values())).tobytes()).hexdigest(),
        "tiles": list(tiles),
    }


def build(out: Path, cache: Path) -> list[str]:
    """Write the sheets and the index, and return their file names."""
    emoji = list_emoji(fetch("emojibase-data", cache))
    styles = {name: draw_tiles(name, emoji, cache) for name in STYLES}
    out.mkdir(parents=True, exist_ok=True)
    for name, tiles in styles.items():
        write_sheet(tiles, out / f"{name}.png")
    identity = join_identities(emoji, styles.values())
    drawn = set().union(*styles.values())
    index = {
        "classes": list(CLASSES),
        "tile": SIZE,
        "columns": COLUMNS,
        "emoji": {code: {**entry, "identity": identity[code]} for code, entry in emoji.items() if code in drawn},
        "styles": {name: describe(name, tiles) for name, tiles in styles.items()},
    }
    (out / "index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return ["index.json", *(f"{name}.png" for name in styles)]


def check(out: Path, cache: Path) -> bool:
    """Rebuild beside the packaged data, print file by file whether they agree, and return whether all do."""
    with tempfile.TemporaryDirectory() as fresh:
        names = build(Path(fresh), cache)
        _, different, missing = filecmp.cmpfiles(fresh, out, names, shallow=False)
    for name in names:
        print(f"{name}: {'DIFFERENT' if name in different else 'MISSING' if name in missing else 'same'}")
    return not different and not missing


def main() -> None:
    packaged = Path(__file__).resolve().parents[1] / "src/itta/data/emoji_styles"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=packaged, help="folder of the sheets and index.json")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "itta-emoji-npm")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with --out, exit 1 if it differs")
    args = parser.parse_args()
    if args.check:
        sys.exit(0 if check(args.out, args.cache) else 1)
    for file in build(args.out, args.cache):
        print(f"{args.out / file}: {(args.out / file).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
