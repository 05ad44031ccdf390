"""Every setting as a row, read off the classes: for the README, the guards and "did you mean".

A path names a setting as the file does: `server.port`, `upstreams.<name>.api_key`,
`models[].match`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.settings_sections import (
    CompactionSettings,
    LogSettings,
    ModelSettings,
    ServerSettings,
    StoreSettings,
    UpstreamSettings,
)

SECTIONS: dict[str, type[BaseModel]] = {
    "server": ServerSettings,
    "store": StoreSettings,
    "log": LogSettings,
    "upstreams.<name>": UpstreamSettings,
    "models[]": ModelSettings,
    "compaction": CompactionSettings,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: where it stands, what it is unless set, what it does."""

    section: str
    name: str
    default: object
    required: bool
    description: str

    @property
    def path(self) -> str:
        """The setting's name in full."""
        return f"{self.section}.{self.name}"

    @property
    def default_text(self) -> str:
        """The default as TOML writes it; "" where the setting is unset or must be given."""
        return "" if self.required or self.default is None else toml_value(self.default)


def toml_value(value: object) -> str:
    """A default as TOML writes it."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def settings_of(section: str) -> Iterator[Setting]:
    """The settings of one section, its own before those it shares with another."""
    model = SECTIONS[section]
    own = [name for name in model.__annotations__ if name in model.model_fields]
    shared = [name for name in model.model_fields if name not in own]
    for name in (*own, *shared):
        info: FieldInfo = model.model_fields[name]
        required = info.is_required()
        default = None if required else info.get_default(call_default_factory=True)
        yield Setting(section, name, default, required, info.description or "")


def all_settings() -> tuple[Setting, ...]:
    """Every setting, section by section."""
    return tuple(setting for section in SECTIONS for setting in settings_of(section))


def markdown_table() -> str:
    """The README's table of settings."""
    lines = ["| setting | default | what it does |", "|---|---|---|"]
    for setting in all_settings():
        default = "required" if setting.required else setting.default_text
        shown = f"`{default}`" if setting.default_text else default
        description = setting.description.replace("|", "\\|")
        lines.append(f"| `{setting.path}` | {shown} | {description} |")
    return "\n".join(lines)


def variable_of(path: str, upstream: str = "<name>") -> str:
    """The environment variable of a setting; `[[models]]`, a list, has one as a whole."""
    if path.startswith("models"):
        return "TIDEGATE_MODELS"
    return "TIDEGATE_" + path.replace("<name>", upstream).upper().replace(".", "__")


def nearest(path: str) -> str:
    """ ", did you mean x?" for a path nobody knows, or "" where nothing is near."""
    section, _, name = path.rpartition(".")
    known = [setting.path for setting in all_settings()]
    same_name = [p for p in known if p.rpartition(".")[2] == name]
    here = [p for p in known if p.rpartition(".")[0] == section]
    close = (
        same_name[:1]
        or get_close_matches(path, here, 1, 0.6)
        or get_close_matches(path, [*known, *SECTIONS], 1, 0.6)
    )
    return f"; did you mean {close[0]}?" if close else ""
