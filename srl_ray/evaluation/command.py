"""What the commands beside `train` share: reading `key=value`, and errors that can be read."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from srl_ray.core.errors import ConfigError, SrlError

OK, FAILURE, CONFIGURATION, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Option:
    """One `key=value` of a command.

    Attributes:
        read: Turns the text into a value; raises ValueError.
        expected: What it wants, for messages.
        default: Value when it is not given.
        is_repeatable: Given twice, the lists are joined; else the last one counts.
    """

    read: Callable[[str], Any]
    expected: str
    default: Any = None
    is_repeatable: bool = False


def read_options(
    argv: Sequence[str], options: Mapping[str, Option], *, positional: str, sections: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read `key=value` arguments; a bare argument is the value of `positional`.

    Args:
        argv: Without the program's name.
        options: Those there are.
        positional: The option that may be given without its key.
        sections: Sections of the configuration whose keys may be overridden (`env.kwargs.level=3`).

    Returns:
        Option → value, and dotted key → value of the overrides.

    Raises:
        ConfigError: an unknown key (with the nearest one), or a value that cannot be read.
    """
    values = {name: option.default for name, option in options.items()}
    overrides: dict[str, Any] = {}
    for text in argv:
        key, equals, value = text.partition("=")
        key = key.lstrip("+")
        if not equals or key.startswith((".", "/", "~")):
            if text.startswith("-"):
                raise ConfigError(f"unknown option {text}; write key=value, or --help.")
            key, value = positional, text
        if key in options:
            option = options[key]
            try:
                read = option.read(value)
            except ValueError as error:
                raise ConfigError(f"{key} must be {option.expected}, got {value!r}.") from error
            values[key] = [*(values[key] or ()), *read] if option.is_repeatable else read
        elif key.partition(".")[0] in sections and "." in key:
            try:
                overrides[key] = yaml.safe_load(value)
            except yaml.YAMLError as error:
                raise ConfigError(f"cannot read {text!r}.") from error
        else:
            near = difflib.get_close_matches(key, options, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" There are {', '.join(options)}."
            raise ConfigError(f"unknown key {key}.{hint}")
    return values, overrides


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise ValueError(text)
    return number


def positive_float(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not number > 0:
        raise ValueError(text)
    return number


def boolean(text: str) -> bool:
    """true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    """Reads one of the given words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return read


def list_of(read_one: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Reads texts with commas between them, in brackets or not."""

    def read(text: str) -> list[Any]:
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        parts = [part.strip() for part in inside.split(",")]
        if not all(parts):
            raise ValueError(text)
        return [read_one(part) for part in parts]

    return read


def run_command(command: Callable[[list[str]], int], argv: Sequence[str] | None, help_text: str) -> int:
    """Run a command and return its exit status; nothing is raised, and only the unforeseen shows a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(help_text)
        return OK
    try:
        return command(arguments)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except ConfigError as error:
        say(f"configuration error: {error}")
        return CONFIGURATION
    except SrlError as error:
        say(f"error: {error}")
        return FAILURE
    except OSError as error:
        say(f"error: {error}")
        return FAILURE
    except Exception as error:
        traceback.print_exception(error)
        return FAILURE


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
