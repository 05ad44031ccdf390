"""What a listing may be asked for: how much, from where on, from which end. All bounds are here."""

from starlette.requests import Request

from proxy.core.manual import refused

MAX_PLACE = 2**63 - 1


def limit_of(request: Request, *, default: int, most: int) -> int:
    """The `limit` of the query.

    Raises:
        InvalidRequest: 422, it is no number from 1 to `most`.
    """
    return _number(request, "limit", default, least=1, most=most)


def place_of(request: Request, name: str, *, default: int = 0) -> int:
    """A place in a listing, such as `after`; raises as `limit_of`."""
    return _number(request, name, default, least=0, most=MAX_PLACE)


def flag_of(request: Request, name: str) -> bool:
    """Whether the query sets the flag; raises as `limit_of` for anything but true and false."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise refused(f"{name} must be true or false.", name)
    return text == "true"


def _number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= number <= most:
        raise refused(f"{name} must be a whole number from {least} to {most}.", name)
    return number
