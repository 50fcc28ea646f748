"""Suspicions about data: what is suspected, and what is not."""

from pathlib import Path

from itta.data.suspicions import COMPARED, suspicions


def test_files_are_compared_to_their_end(tmp_path: Path) -> None:
    head = bytes(COMPARED)  # as of two bitmaps with the same white sky
    contents = {"cat": head + b"a", "dog": head + b"b", "cow": head + b"a"}
    files = {label: [tmp_path / f"{label}.bmp"] for label in contents}
    for label, content in contents.items():
        files[label][0].write_bytes(content)
    (found,) = suspicions(tmp_path, {"one": files, "two": {}})
    assert str(files["cat"][0]) in found
    assert str(files["cow"][0]) in found
    assert "dog" not in found
    assert "more" not in found
