"""Reads the settings: the file, the environment over it, the command line over both.

Whatever is wrong is said in one `SettingsError` of plain sentences, each naming the file or
variable, the key, and what to do. None repeats a value of the input: it may be a secret.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource

from proxy.settings import Settings
from proxy.settings_reference import SECTIONS, all_settings, nearest, variable_of
from proxy.settings_sections import DEFAULT_UPSTREAM

PREFIX = "TIDEGATE_"
FILE_NAME = "tidegate.toml"
# Shorthands: an upstream needs no file, and a container no command line.
SHORTHANDS = {
    "TIDEGATE_CONFIG": None,
    "TIDEGATE_UPSTREAM": ("upstreams", DEFAULT_UPSTREAM, "base_url"),
    "TIDEGATE_API_KEY": ("upstreams", DEFAULT_UPSTREAM, "api_key"),
}
# Kubernetes sets these in every container beside a service called "tidegate".
_SERVICE_LINK = re.compile(r"TIDEGATE_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)")


# pydantic speaks to programmers; these are read by operators.
_WORDS = {
    "": "Value error, ",
    "should be": "Input should be",
    "a list": "a valid tuple",
    "a table": "a valid dictionary",
}


# How the settings that are more than one word are written.
_EXAMPLES: dict[str, Any] = {
    "summarizers": [{"model": "gpt-5-mini"}],
    "trigger": [{"type": "messages", "value": 200}],
    "keep": {"type": "messages", "value": 20},
    "models": [{"match": "qwen3-*", "context_window": 32768}],
}


class SettingsError(Exception):
    """The settings cannot be used; `problems` says why, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        """Hold the sentences, in the order found."""
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings and the file they came from, None when there was none."""

    settings: Settings
    file: Path | None


class _Environment(EnvSettingsSource):
    """pydantic's reader, but a list of words needs no JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """JSON; a list may also be written as words separated by commas."""
        text = str(value).strip()
        if field_name == "client_keys" and not text.startswith("["):
            return [key.strip() for key in text.split(",") if key.strip()]
        try:
            return json.loads(text)
        except ValueError:
            variable = _variable_holding(field_name, text)
            example = _EXAMPLES.get(field_name)
            such_as = f", such as {json.dumps(example)}" if example is not None else ""
            raise SettingsError([f"{variable}: must be JSON{such_as}"]) from None


def _variable_holding(field_name: str, text: str) -> str:
    """Which variable pydantic was reading: it tells the field alone."""
    ending = field_name.upper()
    for name in sorted(os.environ):
        ours = name.upper().startswith(PREFIX) and name.upper().endswith(ending)
        if ours and os.environ[name].strip() == text:
            return name.upper()
    return f"environment: {field_name}"


def load_settings(
    config: Path | None = None, *, overrides: Mapping[str, Any] | None = None
) -> LoadedSettings:
    """The settings from `config`, else $TIDEGATE_CONFIG, else ./tidegate.toml if it is there.

    `overrides` (nested, from the command line) win over the environment, which wins over the file.
    """
    file = config or (Path(named) if (named := os.environ.get("TIDEGATE_CONFIG")) else None)
    if file is None and Path(FILE_NAME).is_file():
        file = Path(FILE_NAME)
    from_file = {} if file is None else _read_file(file)
    from_environment = _read_environment()
    values = _over(_over(from_file, from_environment), dict(overrides or {}))
    # pydantic-settings takes arguments of its own by such names.
    private = [f"{file}: {key}: no such setting" for key in values if key.startswith("_")]
    if private:
        raise SettingsError(private)
    try:
        return LoadedSettings(Settings(**values), file)
    except ValidationError as error:
        found = [_sentence(detail, file, from_environment) for detail in error.errors()]
        problems = [line for sentence in found for line in sentence.split("\n")]
        raise SettingsError(list(dict.fromkeys(problems))) from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError([f"{file}: there is no such file"]) from None
    except OSError as error:
        raise SettingsError([f"{file}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SettingsError([f"{file}: is not UTF-8 text"]) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([f"{file}: is not valid TOML: {error}"]) from None


def _read_environment() -> dict[str, Any]:
    names = [name for name in os.environ if name.upper().startswith(PREFIX)]
    problems = [problem for name in sorted(names) if (problem := _unknown_variable(name.upper()))]
    if problems:
        raise SettingsError(problems)
    values: dict[str, Any] = _Environment(Settings, env_ignore_empty=True)()
    for variable, path in SHORTHANDS.items():
        value = os.environ.get(variable, "").strip()
        if not value or path is None:
            continue
        section, name, key = path
        longhand = variable_of(".".join(path))
        if os.environ.get(longhand, value) != value:
            raise SettingsError([f"{variable} and {longhand} say different things; remove one"])
        values = _over({section: {name: {key: value}}}, values)
    return values


def _unknown_variable(name: str) -> str:
    if name in SHORTHANDS or _SERVICE_LINK.fullmatch(name):
        return ""
    if name == "TIDEGATE_PORT" and os.environ.get(name, "").startswith("tcp://"):
        return ""  # another of Kubernetes'
    path = name.removeprefix(PREFIX).lower().split("__")
    if path[0] == "models":
        if len(path) == 1:
            return ""
        return f"{name}: models are a list; set TIDEGATE_MODELS to a JSON array, or use the file"
    if path[0] == "upstreams":
        section, rest = "upstreams.<name>", path[2:]
        if len(path) < 3:
            return "" if len(path) == 1 else f"{name}: add __BASE_URL or __API_KEY"
    else:
        section, rest = path[0], path[1:]
    if section in SECTIONS and (not rest or rest[0] in SECTIONS[section].model_fields):
        return ""
    known = [*SHORTHANDS, *(variable_of(s.path, DEFAULT_UPSTREAM) for s in all_settings())]
    close = get_close_matches(name, known, 1, 0.75)
    close = close or [v for v in known if v.endswith(f"__{name.removeprefix(PREFIX)}")]
    return f"{name}: no such setting" + (f"; did you mean {close[0]}?" if close else "")


def _over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; lists are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        if isinstance(known, dict) and isinstance(value, Mapping):
            merged[key] = _over(known, value)
        else:
            merged[key] = value
    return merged


def _sentence(error: ErrorDetails, file: Path | None, environment: Mapping[str, Any]) -> str:
    path = ""
    generic: list[str] = []
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
            generic[-1] += "[]"
        else:
            path += f".{part}" if path else part
            generic.append("<name>" if generic == ["upstreams"] else part)
    if not path:  # what the sections say together: the sentence names its keys itself
        return _bare(error["msg"])
    place = _place(path, error["loc"], file, environment)
    if error["type"] == "extra_forbidden":
        return f"{place}: no such setting{nearest('.'.join(generic))}"
    if error["type"] == "missing":
        hint = " (or set TIDEGATE_UPSTREAM)" if path == "upstreams.default.base_url" else ""
        return f"{place}: must be given{hint}"
    if error["type"] == "model_type":
        such_as = ', such as { model = "gpt-5-mini" }' if "summarizers[]" in generic else ""
        return f"{place}: must be a table of settings{such_as}"
    message = _bare(error["msg"])
    return f"{place}: {message[:1].lower()}{message[1:]}"


def _bare(message: str) -> str:
    for ours, theirs in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


def _place(
    path: str, loc: tuple[int | str, ...], file: Path | None, environment: Mapping[str, Any]
) -> str:
    found: Any = environment
    for part in loc:
        if not isinstance(found, Mapping) or part not in found:
            break
        found = found[part]
    else:
        return _variable_named(path, loc)
    return f"{file}: {path}" if file is not None else path


def _variable_named(path: str, loc: tuple[int | str, ...]) -> str:
    """The variable that holds a setting, by the name under which the operator set it."""
    longhand = variable_of(path)
    for shorthand, short_for in SHORTHANDS.items():
        if loc == short_for and longhand not in os.environ:
            return shorthand
    return longhand
