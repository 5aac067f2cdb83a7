"""Frames to files: MP4, GIF and a sheet of stills."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from srl_ray.core.errors import ConfigError

FORMATS = ("mp4", "gif")
GIF_WIDTH = 480


class VideoWriter:
    """Takes RGB frames one by one and writes a video beside its name, which it gets when it is complete.

    A frame is held in memory only until it is encoded. Frames of odd or varying size are fitted to the first one.

    Args:
        path: Ends in .mp4 or .gif.
        fps: Frames per second.

    Raises:
        ConfigError: another ending, or there is no video encoder.

    Example:
        with VideoWriter(Path("episode.mp4"), fps=15) as video:
            for frame in frames: video.add(frame)
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = Path(path)
        self.fps = fps
        self.num_frames = 0
        if self.path.suffix.lstrip(".") not in FORMATS:
            raise ConfigError(f"{path}: a video's name ends in .mp4 or .gif")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._aside = self.path.with_name(f".{os.getpid()}.{self.path.name}")
        self._size: tuple[int, int] = (0, 0)
        self._encoder: Any = None
        self._images: list[Image.Image] = []

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def add(self, frame: Image.Image | np.ndarray, hold: int = 1) -> None:
        """Append a frame, `hold` times: an image, or an array uint8 [height, width, 3]."""
        image = frame if isinstance(frame, Image.Image) else to_image(frame)
        if not self.num_frames:
            self._begin(image)
        if image.size != self._size:
            image = image.resize(self._size, Image.Resampling.LANCZOS)
        self.num_frames += hold
        if self._encoder is None:
            # Pillow's own GIFs are larger: every frame has a palette of its own
            self._images += [image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)] * hold
            return
        data = np.ascontiguousarray(image)
        for _ in range(hold):
            self._encoder.send(data)

    def close(self) -> Path:
        """Finish the file.

        Raises:
            ValueError: there was no frame.
        """
        if not self.num_frames:
            self.discard()
            raise ValueError("a video needs at least one frame")
        if self._encoder is not None:
            self._encoder.close()
        else:
            first, *rest = self._images
            first.save(
                self._aside,
                "GIF",
                save_all=True,
                append_images=rest,
                duration=round(1000 / self.fps),
                loop=0,
                disposal=1,
            )
        self._aside.replace(self.path)
        return self.path

    def discard(self) -> None:
        """Leave no file behind."""
        if self._encoder is not None:
            self._encoder.close()
        self._images = []
        self._aside.unlink(missing_ok=True)

    def _begin(self, image: Image.Image) -> None:
        width, height = image.size
        is_gif = self.path.suffix == ".gif"
        share = min(1.0, GIF_WIDTH / width) if is_gif else max(1, math.ceil(256 / max(width, height)))
        self._size = (round(width * share) // 2 * 2, round(height * share) // 2 * 2)  # tiny screens are shown larger
        try:
            self._encoder = _open_encoder(self._aside, self._size, self.fps, _GIF if is_gif else _MP4)
        except (ImportError, RuntimeError) as error:
            if not is_gif:
                raise ConfigError(
                    f"no MP4 encoder ({error}). Install one with `pip install imageio-ffmpeg`, or use format=gif."
                ) from error


_MP4 = {
    "codec": "libx264",
    "pix_fmt_out": "yuv420p",
    "output_params": ["-crf", "20", "-preset", "fast", "-movflags", "+faststart", "-f", "mp4"],
}
_ONE_PALETTE = "split[a][b];[a]palettegen=stats_mode=diff[p];[b][p]paletteuse=dither=none"
"""The same colours in all frames of a GIF, so that only what moves is stored."""
_GIF = {
    "codec": "gif",
    "pix_fmt_out": "pal8",
    "output_params": ["-filter_complex", _ONE_PALETTE, "-loop", "0", "-f", "gif"],
}


def _open_encoder(path: Path, size: tuple[int, int], fps: float, settings: dict[str, Any]) -> Any:
    """A generator that takes frames, [height, width, 3] bytes each. Raises RuntimeError without ffmpeg."""
    import imageio_ffmpeg

    imageio_ffmpeg.get_ffmpeg_exe()
    encoder = imageio_ffmpeg.write_frames(
        str(path),
        size,
        fps=fps,
        pix_fmt_in="rgb24",
        quality=None,
        macro_block_size=2,
        ffmpeg_log_level="error",
        **settings,
    )
    encoder.send(None)
    return encoder


class Stills:
    """Keeps a few frames, evenly spread over a video whose length is not known before its end.

    Every `stride`-th frame is kept; when there are too many, every other one is dropped and the stride doubles.
    """

    def __init__(self, most: int = 12) -> None:
        self.most = most
        self._stride = 1
        self._seen = 0
        self._kept: list[tuple[Image.Image, str]] = []
        self._last: tuple[Image.Image, str] | None = None

    def add(self, frame: Image.Image | np.ndarray, label: str) -> None:
        image = frame if isinstance(frame, Image.Image) else to_image(frame)
        self._last = (image, label)
        if self._seen % self._stride == 0:
            self._kept.append(self._last)
            if len(self._kept) >= 4 * self.most:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._seen += 1

    def pick(self) -> list[tuple[Image.Image, str]]:
        """At most `most` frames with their labels, the first and the last among them."""
        frames = list(self._kept)
        if self._last is not None and frames[-1] is not self._last:
            frames.append(self._last)
        if len(frames) <= self.most:
            return frames
        return [frames[round(index)] for index in np.linspace(0, len(frames) - 1, self.most)]


def contact_sheet(
    frames: Sequence[tuple[Image.Image, str]], path: Path, *, columns: int = 4, width: int = 1280, title: str = ""
) -> Path:
    """Write the frames side by side, each with its label, as one PNG.

    Raises:
        ValueError: there is no frame.
    """
    if not frames:
        raise ValueError("a contact sheet needs at least one frame")
    columns = min(columns, len(frames))
    gap, caption, head = 10, 20, 34 if title else 0
    first = frames[0][0]
    cell = (width - gap * (columns + 1)) // columns
    height = round(cell * first.height / first.width)
    rows = math.ceil(len(frames) / columns)
    sheet = Image.new("RGB", (width, head + gap + rows * (height + caption + gap)), (250, 249, 246))
    pen = ImageDraw.Draw(sheet)
    if title:
        pen.text((gap, gap + 2), title, font=_font(18), fill=(45, 48, 52))
    for index, (frame, label) in enumerate(frames):
        x = gap + index % columns * (cell + gap)
        y = head + gap + index // columns * (height + caption + gap)
        is_pixel_art = frame.width < cell // 2
        method = Image.Resampling.NEAREST if is_pixel_art else Image.Resampling.LANCZOS
        sheet.paste(frame.convert("RGB").resize((cell, height), method), (x, y))
        pen.text((x + 2, y + height + 3), label, font=_font(12), fill=(90, 92, 94))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    sheet.save(aside, "PNG")
    aside.replace(path)
    return path


def write_video(frames: Iterable[Image.Image | np.ndarray], path: Path, fps: float) -> Path:
    """Write all frames; see `VideoWriter`."""
    with VideoWriter(path, fps) as video:
        for frame in frames:
            video.add(frame)
    return video.path


def to_image(frame: np.ndarray) -> Image.Image:
    """An array uint8 [height, width], [.., 1], [.., 3] or [.., 4] as an RGB image."""
    array = np.asarray(frame)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or array.dtype != np.uint8:
        raise ConfigError(f"a frame must be uint8 [height, width, 3], found {array.dtype} {list(array.shape)}")
    return Image.fromarray(array).convert("RGB")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
