"""From a request to a priced surface: fingerprints, stored replacements, fold, weight. Messages
seen on an earlier turn are neither hashed for meaning nor tokenised again."""

import logging
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace
from hashlib import sha256

from cachetools import LRUCache

from proxy.anchor_book import AnchorBook
from proxy.core.anchors import Sent, scaled
from proxy.core.compaction import View
from proxy.core.errors import StoreUnavailable
from proxy.core.fingerprints import chain as fingerprint_chain
from proxy.core.fingerprints import meaning
from proxy.core.image_prices import price_image
from proxy.core.images import ImagePart, image_parts
from proxy.core.messages import Message, role_of
from proxy.core.offloading import IMAGE_ROLES, SurfaceImage
from proxy.core.ranges import pair, settled
from proxy.core.replacements import Replacement, Scope
from proxy.core.surface import Surface, fold, matching, unfolded
from proxy.image_sizes import part_size
from proxy.meter import Meter
from proxy.model_rules import ModelRules
from proxy.off_loop import off_loop
from proxy.recent import Reading, Recent
from proxy.relay import Caller
from proxy.store.store import Recorded, Store
from proxy.turn import Counted, Turn, raw_items
from proxy.wire import ChatRequest

log = logging.getLogger(__name__)

MEANINGS_REMEMBERED = 65_536


class Surfaces:
    """Opens a turn on a request, and keeps it true to what the store says."""

    def __init__(
        self, store: Store, meter: Meter, anchors: AnchorBook, fingerprint_key: bytes
    ) -> None:
        """`fingerprint_key` is the store's: the same for every worker."""
        self._store = store
        self._meter = meter
        self._anchors = anchors
        self._key = fingerprint_key
        self._recent = Recent()
        self._meanings: MutableMapping[bytes, bytes] = LRUCache(MEANINGS_REMEMBERED)

    async def open(
        self,
        request: ChatRequest,
        caller: Caller,
        rules: ModelRules,
        *,
        logged_chain: tuple[bytes, ...] | None = None,
    ) -> Turn:
        """The request's place in its conversation and its surface as stored, not yet priced.

        `logged_chain` comes with a history from the log, which may lack the bytes of its images.
        """
        scope = Scope(caller.tenant, caller.upstream.name, request.model)
        request, reading = await self._read(scope.tenant, request)
        chain = reading.chain if logged_chain is None else logged_chain
        recorded = self._store.recorded(scope, chain[0]) if chain else Recorded(False, False)
        turn = Turn(
            request=request,
            caller=caller,
            scope=scope,
            pairing=reading.pairing,
            chain=chain,
            meanings=reading.meanings,
            applied=(),
            surface=reading.surface,
            raw_items=request.raw_history,
            rules=rules,
            from_log=logged_chain is not None,
            unrecorded=not recorded.conversations,
        )
        return await self.refresh(turn) if recorded.replacements else turn

    async def _read(self, tenant: str, request: ChatRequest) -> tuple[ChatRequest, Reading]:
        """The history without its replacements; what it begins with may be known. The request then
        holds the very messages of the earlier one, so that both are kept once."""
        history, raw = request.history, request.raw_history
        found = self._recent.find(tenant, raw)
        if found is None:
            pairing = pair(history)
            meanings = await self._meanings_of(history, raw)
            chain = fingerprint_chain(self._key, meanings, pairing)
            reading = Reading(raw, pairing, meanings, chain, unfolded(history, pairing))
        else:
            known, alike = found
            # Behind the last message that both have, the earlier one may have gone on otherwise.
            start = settled(history, alike if alike == len(known.raw) else alike - 1)
            history = (*(item.message for item in known.surface.items[:alike]), *history[alike:])
            raw = (*known.raw[:alike], *raw[alike:])
            pairing = pair(history, start=start, before=known.pairing)
            new = await self._meanings_of(history[alike:], raw[alike:])
            meanings = (*known.meanings[:alike], *new)
            chain = fingerprint_chain(self._key, meanings, pairing, known=known.chain[:start])
            surface = unfolded(history, pairing, start=start, before=known.surface)
            counts = dict(known.counts_of_first(alike))
            reading = Reading(raw, pairing, meanings, chain, surface, counts)
            request = replace(
                request,
                messages=(*request.head, *history),
                raw_messages=(*request.raw_messages[: request.head_length], *raw),
            )
        self._recent.keep(tenant, reading)
        return request, reading

    def digest_of(self, message: Message) -> bytes:
        """The keyed hash of what one message means: how a message of ours is recognised."""
        return meaning(self._key, message)

    async def refresh(self, turn: Turn) -> Turn:
        """The turn with what the store records for its history now; priced again if it was."""
        if not turn.chain:
            return turn
        try:
            found = await self._store.replacements(turn.scope, turn.root, turn.chain)
        except StoreUnavailable:
            found = self._store.remembered(turn.scope, turn.root, turn.chain)
            turn = turn.having(degraded="store")
        applied = matching(turn.chain, found)
        return turn if applied == turn.applied else await self.applying(turn, applied)

    async def applying(self, turn: Turn, applied: Sequence[Replacement]) -> Turn:
        """The turn folded with exactly these replacements; priced again if it was priced."""
        size_bytes = sum(map(len, turn.request.raw_history)) if applied else 0
        surface = await off_loop(size_bytes, fold, turn.request.history, turn.pairing, applied)
        folded = turn.having(
            applied=tuple(applied),
            surface=surface,
            raw_items=await off_loop(
                _edited_bytes(turn.request, surface), raw_items, turn.request, surface
            ),
            view=None,
        )
        return folded if turn.view is None else await self.price(folded)

    async def price(self, turn: Turn) -> Turn:
        """The turn with counts of what the client sent and of what would be forwarded."""
        request, model = turn.request, turn.scope.model
        ours = [
            (raw, item.message)
            for raw, item in zip(turn.raw_items, turn.surface.items, strict=True)
        ]
        head = sum(await self._meter.count_messages(_head(request), model))
        history = await self._history_tokens(turn)
        items = await self._meter.count_messages(ours, model) if turn.surface.replaced else None
        outside = len(request.body) - sum(map(len, request.raw_messages))
        extras = await self._meter.measure_extras(request.params, model, size_bytes=outside)
        item_counts = history if items is None else items
        counted = Counted(
            client_tokens=extras + head + sum(history),
            surface_tokens=extras + head + sum(item_counts),
        )
        ratio = self._anchors.ratio(turn.scope)
        history_tokens = _scaled(history, ratio)
        view = View(
            history=request.history,
            pairing=turn.pairing,
            chain=turn.chain,
            applied=turn.applied,
            surface=turn.surface,
            item_tokens=history_tokens if items is None else _scaled(items, ratio),
            history_tokens=history_tokens,
            fixed_tokens=scaled(extras + head, ratio),
            total_tokens=self._anchors.total(self.sent(turn, counted)),
        )
        return turn.having(view=view, counted=counted)

    async def _history_tokens(self, turn: Turn) -> tuple[int, ...]:
        """The count of each message of the client's history; only new ones are looked at."""
        request, model = turn.request, turn.scope.model
        found = self._recent.find(turn.scope.tenant, request.raw_history)
        reading, alike = found if found is not None else (None, 0)
        known = reading.counts.get(model, ())[:alike] if reading is not None else ()
        new = zip(request.raw_history[len(known) :], request.history[len(known) :], strict=True)
        tokens = (*known, *await self._meter.count_messages(tuple(new), model))
        if reading is not None and alike == len(reading.raw) == len(tokens):
            reading.counts[model] = tokens
        return tokens

    def sent(self, turn: Turn, counted: Counted) -> Sent:
        """What the provider's figure for this surface would be about."""
        with_parts = turn.surface.items if turn.request.has_parts else ()
        images = sum(
            self._meter.image_tokens(item.message, turn.scope.model)
            for item in with_parts
            if isinstance(item.message.get("content"), list)
        )
        return Sent(
            scope=turn.scope,
            chain=turn.chain,
            visible=turn.surface.visible,
            counted_tokens=counted.surface_tokens,
            image_tokens=images,
        )

    def bound(self, turn: Turn) -> int:
        """No count of what would be forwarded can exceed this: bytes, and the price of images."""
        items: tuple[Message, ...] = ()
        if turn.request.has_parts:
            items = (*turn.request.head, *(item.message for item in turn.surface.items))
        return self._bound(turn, items, turn.body_bytes)

    def bound_as_sent(self, turn: Turn) -> int | None:
        """The same of what the client sent, None where that is what would be forwarded."""
        if not turn.surface.replaced:
            return None
        return self._bound(turn, turn.request.messages, len(turn.request.body))

    def _bound(self, turn: Turn, messages: Iterable[Message], body_bytes: int) -> int:
        images = data_bytes = 0
        for message in messages if turn.request.has_parts else ():
            if isinstance(message.get("content"), list):
                images += self._meter.image_tokens(message, turn.scope.model)
                data_bytes += sum(i.size_bytes for i in image_parts(message) if i.has_bytes)
        bound = self._meter.upper_bound(
            body_bytes=body_bytes, data_url_bytes=data_bytes, image_tokens=images
        )
        return scaled(bound, max(self._anchors.ratio(turn.scope), 1.0))

    def images(self, turn: Turn) -> tuple[SurfaceImage, ...]:
        """The images still on the surface of the history, in user and tool messages."""
        found: list[SurfaceImage] = []
        ratio = self._anchors.ratio(turn.scope)
        for item in turn.surface.items:
            if item.position is None or role_of(item.message) not in IMAGE_ROLES:
                continue
            # Paths must lead into the client's message: a merged frame shifts the parts.
            for image in image_parts(turn.request.history[item.position]):
                if not _still_there(item.message, image):
                    continue
                size = part_size(image)
                width_px, height_px = (size.width_px, size.height_px) if size else (None, None)
                price = price_image(turn.scope.model, width_px, height_px, image.detail)
                found.append(
                    SurfaceImage(
                        position=item.position,
                        path=image.path,
                        tokens=scaled(price, ratio),
                        size_bytes=image.size_bytes,
                        media_type=size.media_type if size else image.media_type,
                        width_px=width_px,
                        height_px=height_px,
                    )
                )
        return tuple(found)

    async def _meanings_of(
        self, history: Sequence[Message], raw: Sequence[bytes]
    ) -> tuple[bytes, ...]:
        keys = await off_loop(sum(map(len, raw)), _raw_digests, raw)
        found = [self._meanings.get(key) for key in keys]
        missing = [position for position, known in enumerate(found) if known is None]
        if missing:
            made = await off_loop(
                sum(len(raw[position]) for position in missing),
                lambda: [meaning(self._key, history[position]) for position in missing],
            )
            for position, value in zip(missing, made, strict=True):
                self._meanings[keys[position]] = found[position] = value
        return tuple(known for known in found if known is not None)


def _head(request: ChatRequest) -> list[tuple[bytes, Message]]:
    return list(zip(request.raw_messages[: request.head_length], request.head, strict=True))


def _scaled(counts: Sequence[int], ratio: float) -> tuple[int, ...]:
    return tuple(counts) if ratio == 1.0 else tuple(scaled(tokens, ratio) for tokens in counts)


def _raw_digests(raw: Sequence[bytes]) -> list[bytes]:
    """What the meaning of a message is remembered by. sha256 runs in hardware on most machines."""
    return [sha256(item).digest() for item in raw]


def _edited_bytes(request: ChatRequest, surface: Surface) -> int:
    """How large the messages are that must be written again."""
    return sum(
        len(request.raw_history[item.position])
        for item in surface.items
        if not item.as_sent and item.position is not None
    )


def _still_there(shown: Message, image: ImagePart) -> bool:
    """Whether the surface's message still holds this image, at whatever place."""
    return any(
        other.url is image.url and other.base64 is image.base64
        for other in image_parts(shown)
        if other.url is not None or other.base64 is not None or other.path == image.path
    )
