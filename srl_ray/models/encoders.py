"""Encoders: from named observation fields to one feature vector, chosen from the fields' specs alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import ACTION_MASK, FieldSpec
from srl_ray.models.layers import RELU_GAIN, orthogonal

VECTOR = "<vector>"
"""Key of the concatenated vector fields among the prepared inputs."""

NATURE_MIN_PIXELS = 36
"""Smallest height and width that the Nature network's strides leave something of."""


def split_fields(obs: Mapping[str, FieldSpec]) -> tuple[dict[str, FieldSpec], dict[str, FieldSpec]]:
    """Sort the observation fields into images (uint8, 3 axes) and vectors: other numbers and booleans, flattened, but
    no pictures in other dtypes.

    Raises:
        ConfigError: a field is neither, or there is none; names it.
    """
    vectors: dict[str, FieldSpec] = {}
    images: dict[str, FieldSpec] = {}
    for name, spec in obs.items():
        if name == ACTION_MASK:
            continue
        if spec.dtype == np.uint8 and len(spec.shape) == 3:
            images[name] = spec
        elif spec.dtype.kind in "fiub" and spec.size > 0 and (len(spec.shape) <= 2 or not _is_picture(spec)):
            vectors[name] = spec
        else:
            raise ConfigError(
                f"observation field {name!r} has shape {spec.shape} and dtype {spec.dtype}, for which there is no "
                "encoder: expected numbers or booleans, with pictures as uint8 images [H, W, C] or [C, H, W]. "
                "Change the environment's observation, or name a policy of your own with policy.target=module:callable."
            )
    if not vectors and not images:
        raise ConfigError(f"the observation fields {sorted(obs)} hold nothing to decide on.")
    return vectors, images


def _is_picture(spec: FieldSpec) -> bool:
    """Bytes of more than two axes, or other numbers where two axes are as long as those of a picture."""
    return spec.dtype == np.uint8 or sorted(spec.shape)[-2] >= NATURE_MIN_PIXELS


class VectorFields:
    """Concatenates the vector fields, flattened, in the order of the specs."""

    def __init__(self, fields: Mapping[str, FieldSpec]) -> None:
        self.fields = dict(fields)
        self.size = sum(spec.size for spec in fields.values())

    def __call__(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Fields [n, ...] → float32 [n, size]."""
        parts = []
        for name, spec in self.fields.items():
            part = obs[name].float()
            parts.append(part if len(spec.shape) == 1 else part.reshape(part.shape[0], -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class ImageEncoder(nn.Module):
    """Convolutions over one uint8 image field.

    Images of at least 36 × 36 pixels get the network of Mnih et al. 2015 (32 8×8/4, 64 4×4/2, 64 3×3/1), smaller ones
    two padded 3×3 layers of 16 and 32 filters. ReLU, orthogonal weights. Pixels are divided by 255.
    """

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__()
        self.is_channels_first = spec.shape[0] < spec.shape[2]
        channels, height, width = spec.shape if self.is_channels_first else (spec.shape[2], *spec.shape[:2])
        if min(height, width) >= NATURE_MIN_PIXELS:
            first, *later = nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        else:
            first, *later = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.first = orthogonal(first, RELU_GAIN)
        self.later = nn.ModuleList(orthogonal(layer, RELU_GAIN) for layer in later)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            self.out_size: int = self(torch.zeros((1, *spec.shape), dtype=torch.uint8)).shape[1]

    def forward(self, image: Tensor) -> Tensor:
        """uint8 [n, H, W, C] or [n, C, H, W] → float32 [n, out_size]."""
        # The channels-last layout is the fast one on CPUs; an image [H, W, C] has it already.
        pixels = image if self.is_channels_first else image.movedim(-1, 1)
        x = pixels.contiguous(memory_format=torch.channels_last).float()
        # Dividing the weights is a lot cheaper than dividing the pixels.
        x = torch.relu_(F.conv2d(x, self.first.weight / 255.0, self.first.bias, self.first.stride, self.first.padding))
        for layer in self.later:
            x = torch.relu_(layer(x))
        return x.flatten(1)


class FieldEncoder(nn.Module):
    """Image features and the (already normalised) vector side by side."""

    def __init__(self, vector_size: int, images: Mapping[str, FieldSpec]) -> None:
        super().__init__()
        encoders = [ImageEncoder(spec) for spec in images.values()]
        self.image_names = list(images)
        self.images = nn.ModuleList(encoders)
        self.has_vector = vector_size > 0
        self.out_size = vector_size + sum(encoder.out_size for encoder in encoders)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Image fields [n, ...] and `VECTOR` [n, F] → [n, out_size]."""
        parts = [encoder(inputs[name]) for name, encoder in zip(self.image_names, self.images, strict=True)]
        if self.has_vector:
            parts.append(inputs[VECTOR])
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
