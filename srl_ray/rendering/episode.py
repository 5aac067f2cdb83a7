"""Play episodes with a policy and film them."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from PIL import Image

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.types import EpisodeRecord
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import build_raw, env_name, is_block, make_block
from srl_ray.evaluation.evaluator import team_of_agent
from srl_ray.evaluation.player import BlockPlayer
from srl_ray.models.policy import Policy
from srl_ray.rendering import scene, top_down
from srl_ray.rendering.palette import Style
from srl_ray.rendering.video import Stills, VideoWriter, contact_sheet

logger = logging.getLogger(__name__)

STEP_S = 0.075
"""Simulated time of a hide-and-seek step."""
HIDE_AND_SEEK_FPS = 15.0
MAX_STEPS = 20_000
"""Steps after which an episode that does not end is cut."""

Frame = tuple[Image.Image | np.ndarray, str, int]
"""Picture, label, and how many times it is shown."""


@dataclass(frozen=True)
class RenderResult:
    """What was written.

    Attributes:
        video: MP4 or GIF.
        sheet: A PNG with some of its frames.
        num_frames: Of the video.
        fps: Frames per second.
        episodes: Those that were filmed.
    """

    video: Path
    sheet: Path
    num_frames: int
    fps: float
    episodes: list[EpisodeRecord]


def render_episodes(
    policy: Policy | Mapping[str, Policy],
    config: EnvConfig,
    path: Path,
    *,
    episodes: int = 1,
    fps: float | None = None,
    deterministic: bool = False,
    seed: int = 1,
    title: str = "",
    view: str = "top",
    style: Style | None = None,
) -> RenderResult:
    """Write a video of the first `episodes` episodes, and a sheet of stills beside it.

    Args:
        policy: On the CPU; put into evaluation mode. Team → policy lets different weights play each other.
        config: The environment section of the configuration.
        path: Of the video; its ending (.mp4, .gif) is the format.
        episodes: How many, one after the other.
        fps: Frames per second; None: the environment's own speed.
        deterministic: The most likely action in place of a sample.
        seed: Of environment and noise.
        title: Written above the stills.
        view: Of hide-and-seek: "top" (from above, needs no OpenGL), "3d", or "auto" (3d where OpenGL can draw).
        style: Of hide-and-seek's view.

    Raises:
        ConfigError: the environment cannot be drawn, with the reason; or there is no encoder.
    """
    film: _SnapshotFilm | _ScreenFilm
    if config.factory is None and config.id == "hide_and_seek":
        film = _SnapshotFilm(config, style or Style(), choose_view(view))
    elif view == "3d":
        raise ConfigError(f"view=3d is for hide_and_seek; {env_name(config)!r} is filmed as it draws itself.")
    else:
        film = _ScreenFilm(config)
    try:
        fps = fps or film.fps
        stills = Stills()
        player = BlockPlayer(policy, film.block, deterministic=deterministic, seed=seed)
        with VideoWriter(path, fps) as video:
            for frame, label, hold in film.frames(player, episodes, round(fps)):
                video.add(frame, hold)
                stills.add(frame, label)
    finally:
        film.close()
    sheet = contact_sheet(stills.pick(), Path(path).with_suffix(".png"), title=title)
    return RenderResult(video.path, sheet, video.num_frames, fps, film.records)


# ----------------------------------------------------------------------------------------------------- hide-and-seek

VIEWS = {"top": top_down.draw_frames, "3d": scene.draw_frames}


def choose_view(view: str) -> str:
    """The view that "auto" means here, with a line in the log where it is not 3d; others stay as they are."""
    if view != "auto":
        return view
    reason = scene.why_no_screen()
    if reason:
        logger.warning("drawn from above: %s", reason)
    return "top" if reason else "3d"


class _SnapshotFilm:
    """Films a block that offers snapshots; an episode is drawn when it is over, so that the camera knows its way."""

    fps = HIDE_AND_SEEK_FPS

    def __init__(self, config: EnvConfig, style: Style, view: str) -> None:
        self.block: Any = make_block(config, 1)
        self.records: list[EpisodeRecord] = []
        self._style = style
        self._draw_frames = VIEWS[view]

    def frames(self, player: BlockPlayer, episodes: int, second: int) -> Iterator[Frame]:
        """Args: `second`: frames that the last picture of an episode is shown for."""
        player.reset()
        while len(self.records) < episodes:
            snapshots = [self.block.snapshot(0)]
            while not (ended := player.step().episodes):
                snapshots.append(self.block.snapshot(0))
            record = ended[-1]
            self.records.append(record)
            pictures = self._draw_frames(snapshots, self._style, _outcome(record, self.block))
            for snapshot, picture in zip(snapshots, pictures):
                label = f"{snapshot.step * STEP_S:.1f} s · step {snapshot.step} · {snapshot.phase}"
                yield picture, label, 1 if snapshot is not snapshots[-1] else 1 + second

    def close(self) -> None:
        self.block.close()


def _outcome(record: EpisodeRecord, block: EnvBlock) -> str:
    if record.discarded:
        return "episode discarded"
    teams: dict[str, list[float]] = {}
    for agent, value in record.returns.items():
        teams.setdefault(team_of_agent(block.spec.group)[agent], []).append(value)
    return "   ".join(f"{team} {np.mean(values):+.0f}" for team, values in teams.items())


# ----------------------------------------------------------------------------------------------- gymnasium environments


class _Camera(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes a picture after every reset and step."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.shots: list[tuple[np.ndarray, int]] = []
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(seed=seed, options=options)
        self._step = 0
        self._shoot()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        self._step += 1
        self._shoot()
        return answer

    def _shoot(self) -> None:
        try:
            picture: Any = self.env.render()
        except Exception as error:
            raise NotDrawn(f"{type(error).__name__}: {error}") from error
        if isinstance(picture, list):
            picture = picture[-1] if picture else None
        if not isinstance(picture, np.ndarray):
            raise NotDrawn(f"render() returned {type(picture).__name__}; expected an array of pixels")
        self.shots.append((picture, self._step))


class NotDrawn(Exception):
    """An environment that says it can be drawn did not draw."""


class _ScreenFilm:
    """Films a gymnasium environment that renders pixels."""

    def __init__(self, config: EnvConfig) -> None:
        from srl_ray.envs.gymnasium_block import GymBlock

        self.records: list[EpisodeRecord] = []
        self._name = env_name(config)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, whether there is a display or not
        env = _make_drawable(config, self._name)
        self.fps = float((getattr(env, "metadata", None) or {}).get("render_fps") or 30)
        self._camera = _Camera(env)
        self.block: EnvBlock = GymBlock(
            lambda: self._camera,
            1,
            env_id=self._name,
            step_timeout_s=config.step_timeout_s,
            on_error="stop",
            on_nonfinite="stop",
            first_env=self._camera,
        )

    def frames(self, player: BlockPlayer, episodes: int, second: int) -> Iterator[Frame]:
        """Args: `second`: frames that the last picture of an episode is shown for."""
        self._guard(player.reset)
        number, total = 1, 0.0
        while len(self.records) < episodes:
            step = self._guard(player.step)
            ended = step.episodes
            total += float(step.reward[0, 0])
            is_cut = not ended and len(self._camera.shots) and self._camera.shots[-1][1] >= MAX_STEPS
            shots, self._camera.shots = self._camera.shots, []
            if ended:
                self.records.append(ended[-1])
                self._camera.shots, shots = shots[-1:], shots[:-1]  # the new episode's first picture comes later
            for index, (picture, at) in enumerate(shots):
                is_last = bool(ended) and index == len(shots) - 1
                label = (
                    f"episode {number} · step {at} · return {total:g}" if is_last else f"episode {number} · step {at}"
                )
                yield picture, label, second if is_last else 1
            if is_cut:
                return
            if ended:
                number, total = number + 1, 0.0

    def _guard(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EnvironmentFault as fault:
            cause = fault.__cause__
            if isinstance(cause, NotDrawn):
                raise ConfigError(f"environment {self._name!r} cannot be drawn: {cause}{_hint(cause)}") from fault
            raise

    def close(self) -> None:
        self.block.close()


def _make_drawable(config: EnvConfig, name: str) -> gymnasium.Env[Any, Any]:
    """Build the environment with render_mode="rgb_array"; say in words why that does not work."""
    if config.vectorization in ("native", "envpool") and config.factory is None:
        config = dataclasses.replace(config, vectorization="sync")
    plain = None
    if not _accepts_render_mode(config):
        plain = _build_single(config)
    else:
        kwargs = {**config.kwargs, "render_mode": "rgb_array"}
        if config.factory is None:
            _check_modes(config, name)
        plain = _build_single(dataclasses.replace(config, kwargs=kwargs))
    if plain is None:
        raise ConfigError(
            f"environment {name!r} cannot be drawn: only single gymnasium environments and hide_and_seek can."
        )
    if plain.render_mode != "rgb_array":
        modes = (plain.metadata or {}).get("render_modes") or []
        plain.close()
        raise ConfigError(
            f"environment {name!r} cannot be drawn: its render_mode is {plain.render_mode!r} and it offers {modes}. A "
            "factory that takes render_mode='rgb_array' and an environment whose render() returns pixels can be filmed."
        )
    return plain


def _build_single(config: EnvConfig) -> gymnasium.Env[Any, Any] | None:
    """One gymnasium environment; None where the configuration names a block or a vector environment."""
    made, _ = build_raw(config, 1)
    if is_block(made) or isinstance(made, VectorEnv):
        made.close()
        return None
    return made  # type: ignore[no-any-return]


def _check_modes(config: EnvConfig, name: str) -> None:
    probe = _build_single(config)
    if probe is None:
        return
    modes = (probe.metadata or {}).get("render_modes") or []
    probe.close()
    if "rgb_array" not in modes:
        raise ConfigError(f"environment {name!r} cannot be drawn: it offers the render modes {modes}, not 'rgb_array'.")


def _accepts_render_mode(config: EnvConfig) -> bool:
    if config.factory is None:
        return True
    from srl_ray.core.loading import load_object

    factory = load_object(config.factory, "env.factory") if isinstance(config.factory, str) else config.factory
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "render_mode" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _hint(cause: BaseException) -> str:
    text = str(cause)
    if "pygame" in text and "pip install" not in text:
        return ' Install it with `pip install "gymnasium[classic-control]"`.'
    return ""
