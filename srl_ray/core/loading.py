"""Objects named by import path: how users plug in their own environments, policies and algorithms."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from srl_ray.core.errors import ConfigError


def load_object(path: str, key: str) -> Any:
    """Import `module:attribute`; the current directory counts as importable.

    Args:
        path: For example `my_package.envs:make_block`.
        key: Configuration key, for the message.

    Raises:
        ConfigError: the module or the attribute does not exist.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{key}={path!r}: expected 'module:attribute', for example 'my_package.envs:make_env'.")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{key}={path!r}: cannot import {module_name!r} ({error}).") from error
    try:
        target: Any = module
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        raise ConfigError(f"{key}={path!r}: {module_name!r} has no attribute {attribute!r}.") from error
    return target
