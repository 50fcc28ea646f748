import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from itta.data.images import IMAGE_SUFFIXES, read_image
from itta.errors import InputError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def colours(array: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in array.reshape(3, -1).T.tolist()}


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def test_shape_and_type(tmp_path: Path) -> None:
    array = read_image(save(Image.new("RGB", (7, 5), RED), tmp_path / "a.png"), 4)
    assert (array.dtype, array.shape) == (np.uint8, (3, 4, 4))
    assert array.flags.c_contiguous
    assert colours(array) == {RED}


def test_resizing_is_pillows_bilinear(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.RandomState(0).randint(0, 256, (50, 70, 3), dtype=np.uint8))
    expected = np.asarray(noise.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(read_image(save(noise, tmp_path / "a.png"), 16), expected)


@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_every_suffix_can_be_read(tmp_path: Path, suffix: str) -> None:
    mode = "L" if suffix == ".pgm" else "RGB"
    array = read_image(save(Image.new(mode, (8, 8), "white"), tmp_path / f"a{suffix}"), 4)
    assert colours(array) == {WHITE}


def test_cmyk_jpeg(tmp_path: Path) -> None:
    path = save(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), tmp_path / "a.jpg", quality=100)
    red, green, blue = read_image(path, 4).mean((1, 2))
    assert red > 245
    assert max(green, blue) < 10


def test_16_bit_grey_is_scaled(tmp_path: Path) -> None:
    ramp = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)
    array = read_image(save(Image.fromarray(ramp), tmp_path / "a.png"), 2)
    assert array[0].tolist() == [[0, 100], [200, 255]]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([[0, 65535]], np.int32, [0, 255]),
        ([[-5, 2**31 - 1]], np.int32, [0, 255]),
        ([[0.2, 1.0]], np.float32, [51, 255]),
        ([[float("nan"), 500.0]], np.float32, [0, 255]),
    ],
)
def test_deep_grey_is_scaled(tmp_path: Path, values: list, dtype: type, expected: list[int]) -> None:
    image = Image.fromarray(np.repeat(np.array(values, dtype=dtype), 2, axis=0))
    assert read_image(save(image, tmp_path / "a.tif"), 2)[0, 0].tolist() == expected


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey(tmp_path: Path, mode: str) -> None:
    assert colours(read_image(save(Image.new(mode, (8, 8), 255), tmp_path / "a.png"), 4)) == {WHITE}


@pytest.mark.parametrize(("mode", "clear"), [("LA", (0, 0)), ("RGBA", (255, 0, 0, 0))])
def test_transparency_becomes_white(tmp_path: Path, mode: str, clear: tuple[int, ...]) -> None:
    assert colours(read_image(save(Image.new(mode, (8, 8), clear), tmp_path / "a.png"), 4)) == {WHITE}


def test_half_transparency_is_half_way_to_white(tmp_path: Path) -> None:
    array = read_image(save(Image.new("RGBA", (8, 8), (0, 0, 255, 128)), tmp_path / "a.png"), 4)
    np.testing.assert_allclose(array.mean((1, 2)), (127, 127, 255), atol=1)


def test_hidden_colour_does_not_bleed_over_the_edge(tmp_path: Path) -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((255, 255, 255, 255), (4, 0, 8, 8))
    assert colours(read_image(save(image, tmp_path / "a.png"), 3)) == {WHITE}


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"])
def test_palette_with_transparency(tmp_path: Path, transparency: int | bytes) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([*RED, *BLUE])
    image.paste(1, (4, 0, 8, 8))
    array = read_image(save(image, tmp_path / "a.png", transparency=transparency), 8)
    assert colours(array[:, :, :4]) == {WHITE}
    assert colours(array[:, :, 4:]) == {BLUE}


def test_palette_and_colour_key(tmp_path: Path) -> None:
    plain = Image.new("P", (8, 8), 0)
    plain.putpalette([*GREEN])
    assert colours(read_image(save(plain, tmp_path / "a.png"), 4)) == {GREEN}
    keyed = save(Image.new("RGB", (8, 8), RED), tmp_path / "b.png", transparency=RED)
    assert colours(read_image(keyed, 4)) == {WHITE}


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
def test_exif_rotation(tmp_path: Path, suffix: str) -> None:
    image = Image.new("RGB", (64, 32), WHITE)
    image.paste((0, 0, 0), (0, 0, 32, 32))  # the left is black
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated a quarter turn clockwise: the left becomes the top
    array = read_image(save(image, tmp_path / f"a{suffix}", exif=exif), 16)
    assert array[:, :6].mean() < 20
    assert array[:, 10:].mean() > 235


def test_broken_exif_turns_nothing(tmp_path: Path) -> None:
    path = save(Image.new("RGB", (8, 8), WHITE), tmp_path / "a.jpg", exif=b"Exif\x00\x00no such thing")
    assert colours(read_image(path, 4)) == {WHITE}


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp"])
def test_the_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (WHITE, (0, 0, 0))]
    path = save(frames[0], tmp_path / f"a{suffix}", save_all=True, append_images=frames[1:])
    assert colours(read_image(path, 4)) == {WHITE}


def test_a_big_jpeg_is_decoded_small_and_looks_the_same(tmp_path: Path) -> None:
    y, x = np.mgrid[0:1000, 0:1400]
    picture = np.stack((x / 1400 * 255, y / 1000 * 255, 128 + 100 * np.sin(x / 90)), axis=-1).astype(np.uint8)
    path = save(Image.fromarray(picture), tmp_path / "a.jpg", quality=95)
    full = np.asarray(Image.open(path).resize((64, 64), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(read_image(path, 64).astype(int) - full).max() <= 6


def jpeg_bytes() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, "jpeg")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (jpeg_bytes()[:1000], "truncated"),
        (b"", "empty"),
        (b"hello, I am a text", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\x0dIHDR" + bytes(13), "not an image"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"bad\.jpg: .*{reason}.*remove it") as caught:
        read_image(path, 8)
    assert "\n" not in str(caught.value)


def test_an_image_without_pixels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bmp"
    header = bytearray(save(Image.new("RGB", (4, 4)), path).read_bytes())
    header[18:22] = bytes(4)  # the width
    path.write_bytes(header)
    with pytest.raises(InputError, match=r"cannot read .*a\.bmp"):
        read_image(path, 8)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_image(tmp_path / "none.png", 8)
    with pytest.raises(InputError, match="cannot read"):
        read_image(tmp_path, 8)


def write_black_png(path: Path, side: int) -> None:
    """Write a 1-bit PNG row by row, so that the image is never in memory as a whole."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pack = zlib.compressobj(1)
    rows = b"".join(pack.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + pack.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


@pytest.mark.filterwarnings("error")
def test_a_huge_image_is_refused_from_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_black_png(tmp_path / "small.png", 8)
    assert colours(read_image(tmp_path / "small.png", 4)) == {(0, 0, 0)}

    def decode(image: Image.Image) -> None:
        raise AssertionError("decoded")

    limit = Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    write_black_png(tmp_path / "huge.png", 20_000)
    with pytest.raises(InputError, match=r"huge\.png is 20000 x 20000 pixels, more than 100 million"):
        read_image(tmp_path / "huge.png", 8)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_pixel_limit_can_be_set(tmp_path: Path) -> None:
    path = save(Image.new("RGB", (20, 20)), tmp_path / "a.png")
    with pytest.raises(InputError, match="scale it down"):
        read_image(path, 8, max_pixels=399)
    assert read_image(path, 8, max_pixels=400).shape == (3, 8, 8)
