"""The sections of the settings: every setting once, with its type, default, bounds and one line.

The README's table, `config/tidegate.toml` and the names in the environment are checked against
these classes. They read nothing; `settings_source` does.
"""

from ipaddress import ip_address
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from proxy.core import budget

Percent = Annotated[int, Field(ge=1, le=100)]
Tokens = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DEFAULT_UPSTREAM = "default"


def _read_headroom(value: object) -> object:
    if value is None or value == "auto":
        return value
    if isinstance(value, str) and value.strip().isdecimal():  # an environment variable
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('must be a whole number of tokens, 0 or more, or "auto"')
    return value


Headroom = Annotated[int | Literal["auto"] | None, BeforeValidator(_read_headroom)]
MIB = 1024 * 1024
_DATABASES = frozenset({"sqlite", "postgresql", "postgres"})


class Section(BaseModel):
    """A table of the file. Unknown keys are errors; values do not change after loading."""

    # Text from an environment variable is read leniently (pydantic's "lax"): "8080" is 8080.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Measure(Section):
    """`{ type = "tokens" | "messages" | "fraction", value = n }`."""

    type: Literal["tokens", "messages", "fraction"] = Field(description="what is counted")
    value: float = Field(description="how many; for a fraction, the share of the context window")

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        budget.measure(self.type, self.value)
        return self

    def as_core(self) -> budget.Measure:
        """The same as the core counts it, in integers."""
        return budget.measure(self.type, self.value)


class Summarizer(Section):
    """A model that writes summaries."""

    upstream: str = Field(default=DEFAULT_UPSTREAM, description="the upstream that serves it")
    model: str = Field(min_length=1, description="its name there")


class ServerSettings(Section):
    """The listening side."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8080, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    workers: int = Field(default=1, ge=1, description="worker processes; they share the store")
    client_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="keys that clients must send as a bearer token; each key is a tenant",
    )
    tenant_header: str | None = Field(
        default=None,
        description="request header that names the tenant; only behind a trusted front",
    )
    admin_key: SecretStr | None = Field(
        default=None, description="key that opens /tidegate/... to the operator from off loopback"
    )
    body_limit_mib: int = Field(default=64, ge=1, description="largest request body, else 413")
    heartbeat_seconds: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=10,
        ge=0,
        description="a stream that waits for Tidegate itself this long gets comments; 0: off",
    )
    forward_client_headers: bool = Field(
        default=False, description="pass Forwarded, X-Forwarded-* and X-Real-IP on to the upstream"
    )
    inject_stream_usage: bool = Field(
        default=False, description="ask streams for usage and strip the extra chunk"
    )
    connect_timeout_seconds: Seconds = Field(
        default=10, description="longest wait for a connection"
    )
    first_byte_timeout_seconds: Seconds = Field(
        default=600, description="longest wait for a reply to begin"
    )
    between_bytes_timeout_seconds: Seconds = Field(
        default=600, description="longest gap inside a reply"
    )
    write_timeout_seconds: Seconds = Field(
        default=60, description="longest gap while sending a request"
    )
    drain_seconds: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0,
        ge=0,
        description="how long everything is still served after SIGTERM while /readyz says no",
    )
    shutdown_timeout_seconds: int = Field(
        default=30, ge=0, description="how long open requests may go on after a stop was asked for"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe log line written"
    )

    @property
    def body_limit_bytes(self) -> int:
        """The body limit in bytes."""
        return self.body_limit_mib * MIB

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can connect."""
        host = self.host.strip("[]").lower()
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    @field_validator("client_keys")
    @classmethod
    def _keys_hold_something(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(not key.get_secret_value().strip() for key in keys):
            raise ValueError("an empty key would let everyone in; remove it")
        return keys

    @field_validator("admin_key")
    @classmethod
    def _admin_key_holds_something(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not key.get_secret_value().strip():
            raise ValueError("an empty key would let everyone in; remove it or give it a value")
        return key


class StoreSettings(Section):
    """Where replacements and the log are kept."""

    url: SecretStr = Field(
        default=SecretStr("sqlite:///tidegate.db"),
        description="SQLite file, or postgresql://user:password@host/database for several machines",
    )
    retention_days: int = Field(
        default=90, ge=1, description="a replacement unused for so long is deleted"
    )
    max_mib: int = Field(
        default=4096, ge=1, description="over this size the oldest log entries are deleted first"
    )

    @field_validator("url")
    @classmethod
    def _is_a_database_we_know(cls, url: SecretStr) -> SecretStr:
        scheme, found, _ = url.get_secret_value().partition("://")
        if not found or scheme.partition("+")[0].lower() not in _DATABASES:
            raise ValueError(
                "must be sqlite:///FILE, such as sqlite:///tidegate.db, or "
                "postgresql://user:password@host/database"
            )
        return url


class LogSettings(Section):
    """What the store's log holds of conversations."""

    messages: bool = Field(
        default=True, description="keep original messages; false: digests and counts only"
    )
    images: bool = Field(
        default=False, description="keep image bytes too; false: their hash and size"
    )
    retention_days: int = Field(
        default=30, ge=1, description="log entries older than this are deleted"
    )


class UpstreamSettings(Section):
    """One provider endpoint."""

    base_url: str = Field(
        repr=False, description="the provider's base URL, such as https://api.openai.com/v1"
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="sent when the client sends no credential; needs client_keys off loopback",
    )

    @field_validator("base_url")
    @classmethod
    def _is_an_http_url(cls, value: str) -> str:
        url = urlsplit(value.strip())
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(
                "must be an http:// or https:// URL, such as https://api.openai.com/v1"
            )
        if url.username or url.password:
            raise ValueError("must not hold a user or password; put the key into api_key")
        if url.fragment:
            raise ValueError("must not hold a #fragment")
        if url.path.rstrip("/").endswith("/chat/completions"):
            raise ValueError(
                "must end before /chat/completions, which is the client's part of the path"
            )
        return value.strip()

    @field_validator("api_key", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if value == "" else value


class Retention(Section):
    """The settings that stand both in `[compaction]` and, for one model, in `[[models]]`."""

    headroom_tokens: Headroom = Field(
        default=None,
        description="B, kept free; unset: 65536 for windows written here, auto for others",
    )
    retain_tokens: Tokens | None = Field(default=None, description="R as a number of tokens")
    keep: Measure | None = Field(
        default=None,
        description="what stays instead of R: newest messages, tokens, or a share of W",
    )
    summarizers: tuple[Summarizer, ...] = Field(
        default=(), description="models asked for summaries, in order; none: the conversation's own"
    )
    trigger: tuple[Measure, ...] = Field(
        default=(), description="more triggers, any of which starts a compaction"
    )

    @model_validator(mode="after")
    def _says_once_what_stays(self) -> Self:
        spellings = ("retain_tokens", "retain_percent", "keep")
        given = [
            name
            for name in spellings
            if name in self.model_fields_set and getattr(self, name, None) is not None
        ]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are set together; each says how much stays word for word: "
                "keep one of them and remove the others"
            )
        return self


class CompactionSettings(Retention):
    """When and how conversations are compacted."""

    enabled: bool = Field(default=True, description="false: meter and relay only")
    trigger_percent: Percent = Field(
        default=80, description="T is at most this share of the window"
    )
    retain_percent: Percent = Field(
        default=16, description="R, kept word for word: this share of W - O"
    )
    retries: int = Field(
        default=1, ge=0, le=10, description="further passes when one was not enough"
    )
    max_overflow_replays: int = Field(
        default=1, ge=0, le=10, description="how often a request is sent again after overflows"
    )
    fallback: Literal["digest", "none"] = Field(
        default="digest",
        description="when every summariser failed: a digest made without a model, or none",
    )
    summary_mode: Literal["auto", "replay", "transcript"] = Field(
        default="auto",
        description="how summaries are asked for: as the conversation, or from a transcript",
    )
    summary_max_tokens: Tokens = Field(default=8192, description="most output tokens of a summary")
    summary_timeout_seconds: Seconds = Field(
        default=120, description="deadline of a summary in all its parts"
    )
    keep_first_tokens: Annotated[int, Field(ge=0)] = Field(
        default=2000,
        description="most tokens of the first user message kept word for word; 0: none",
    )
    keep_rules_tokens: Annotated[int, Field(ge=0)] = Field(
        default=2000,
        description="most tokens of the user's standing rules kept word for word; 0: none",
    )


class ModelSettings(Retention):
    """What holds for the models whose name matches; the first match wins."""

    match: str = Field(min_length=1, description="name or glob, compared without case")
    upstream: str = Field(
        default=DEFAULT_UPSTREAM, description="the upstream these models are sent to"
    )
    context_window: Tokens | None = Field(
        default=None, description="W; unset: learned, listed, catalogued"
    )
    input_limit: Tokens | None = Field(
        default=None,
        description="I, a limit of the prompt alone, where the provider has one below W",
    )
    max_output_tokens: Tokens | None = Field(
        default=None, description="O for requests that name no output limit themselves"
    )
    trigger_percent: Percent | None = Field(default=None, description="as in [compaction]")
    retain_percent: Percent | None = Field(default=None, description="as in [compaction]")
    role_alternation: bool = Field(
        default=False, description="the model refuses two user messages in a row"
    )
