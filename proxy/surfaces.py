"""From a request to a priced surface: fingerprints, stored replacements, fold, weight. Messages
seen on an earlier turn are neither hashed nor tokenised again."""

import itertools
import logging
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from proxy.anchor_book import AnchorBook
from proxy.core.anchors import Sent, scaled
from proxy.core.compaction import View
from proxy.core.errors import StoreUnavailable
from proxy.core.fingerprints import chain as fingerprint_chain
from proxy.core.fingerprints import meaning
from proxy.core.image_prices import price_image
from proxy.core.images import ImagePart, image_parts
from proxy.core.messages import Message, has_media, role_of
from proxy.core.offloading import IMAGE_ROLES, SurfaceImage
from proxy.core.ranges import pair, settled
from proxy.core.replacements import Replacement, Scope
from proxy.core.surface import Surface, continued, fold, matching, unfolded
from proxy.image_sizes import part_size
from proxy.meter import Meter
from proxy.model_rules import ModelRules
from proxy.off_loop import off_loop
from proxy.recent import Folded, Reading, Recent
from proxy.relay import Caller
from proxy.store.store import Recorded, Store
from proxy.turn import Counted, Turn, raw_items
from proxy.wire import ChatRequest

log = logging.getLogger(__name__)


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
            raw_items=reading.raw,
            rules=rules,
            reading=reading,
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
            size_bytes = sum(map(len, raw))
            pairing = pair(history)
            meanings = await off_loop(size_bytes, self._meanings_of, history)
            chain = fingerprint_chain(self._key, meanings, pairing)
            surface = unfolded(history, pairing)
            reading = Reading(history, raw, size_bytes, pairing, meanings, chain, surface)
        else:
            known, alike = found
            # The last one may be the same object where an earlier one is not.
            if alike:
                history = known.history[:alike] + history[alike:]
                raw = known.raw[:alike] + raw[alike:]
                request = replace(
                    request,
                    messages=request.head + history,
                    raw_messages=request.raw_messages[: request.head_length] + raw,
                )
            reading = await self._read_on(history, raw, known, alike)
        self._recent.keep(tenant, reading)
        return request, reading

    async def _read_on(
        self, history: tuple[Message, ...], raw: tuple[bytes, ...], known: Reading, alike: int
    ) -> Reading:
        """The reading of a history that begins with `alike` messages of a known one."""
        goes_on = alike == len(known.raw)
        # Behind the last message that both have, the earlier one may have gone on otherwise.
        start = settled(history, alike if goes_on else alike - 1)
        pairing = pair(history, start=start, before=known.pairing)
        new_bytes = sum(map(len, raw[alike:]))
        new = await off_loop(new_bytes, self._meanings_of, history[alike:])
        meanings = known.meanings[:alike] + new
        before_bytes = known.size_bytes if goes_on else sum(map(len, raw[:alike]))
        return Reading(
            history=history,
            raw=raw,
            size_bytes=before_bytes + new_bytes,
            pairing=pairing,
            meanings=meanings,
            chain=fingerprint_chain(self._key, meanings, pairing, known=known.chain[:start]),
            surface=continued(known.surface, history, pairing, start),
            counts=known.counts_of_first(alike),
            grew_from=known.mark if goes_on else None,
            folds_before=known.folds,
            settled=start,
        )

    def _meanings_of(self, messages: Sequence[Message]) -> tuple[bytes, ...]:
        return tuple([meaning(self._key, message) for message in messages])

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
        folded = await self._folded(turn, tuple(applied))
        changed = turn.having(
            applied=folded.applied, surface=folded.surface, raw_items=folded.raw_items, view=None
        )
        return changed if turn.view is None else await self.price(changed)

    async def _folded(self, turn: Turn, applied: tuple[Replacement, ...]) -> Folded:
        """The fold of the turn before, continued where it still holds; else all of it."""
        reading = turn.reading
        before = reading.folds_before.get(turn.scope)
        settled_before = all(replacement.end < reading.settled for replacement in applied)
        if before is not None and before.applied == applied and settled_before:
            surface = continued(before.surface, reading.history, turn.pairing, reading.settled)
            new = len(reading.raw) - reading.settled
            raw = before.raw_items[: len(surface.items) - new] + reading.raw[reading.settled :]
        else:
            size_bytes = reading.size_bytes if applied else 0
            surface = await off_loop(size_bytes, fold, reading.history, turn.pairing, applied)
            edited_bytes = _edited_bytes(turn.request, surface)
            raw = await off_loop(edited_bytes, raw_items, turn.request, surface)
        folded = reading.folds[turn.scope] = Folded(applied, surface, raw)
        return folded

    async def price(self, turn: Turn) -> Turn:
        """The turn with counts of what the client sent and of what would be forwarded."""
        request, model = turn.request, turn.scope.model
        head = sum(await self._meter.count_messages(_head(request), model))
        history = items = await self._history_counts(turn)
        if turn.surface.replaced:
            items = await self._item_counts(turn, history)
        extras = await self._meter.measure_extras(request.params, model, fields=request.fields)
        fixed = extras + head
        counted = Counted(client_tokens=fixed + sum(history), surface_tokens=fixed + sum(items))
        ratio = self._anchors.ratio(turn.scope)
        view = View(
            history=turn.reading.history,
            pairing=turn.pairing,
            chain=turn.chain,
            applied=turn.applied,
            surface=turn.surface,
            item_counts=items,
            history_counts=history,
            fixed_tokens=scaled(fixed, ratio),
            total_tokens=self._anchors.total(self.sent(turn, counted)),
            ratio=ratio,
        )
        return turn.having(view=view, counted=counted)

    async def _history_counts(self, turn: Turn) -> tuple[int, ...]:
        """The count of each message of the client's history; only new ones are looked at."""
        reading, model = turn.reading, turn.scope.model
        known = reading.counts.get(model, ())
        if len(known) == len(reading.raw):
            return known
        new = zip(reading.raw[len(known) :], reading.history[len(known) :], strict=True)
        counts = known + await self._meter.count_messages(tuple(new), model)
        reading.keep_counts(model, counts)
        return counts

    async def _item_counts(self, turn: Turn, history: tuple[int, ...]) -> tuple[int, ...]:
        """The count of each item of the surface: the client's own, where it stands as sent."""
        items = turn.surface.items
        ours = [
            (raw, item.message)
            for raw, item in zip(turn.raw_items, items, strict=True)
            if not item.as_sent
        ]
        counts = iter(await self._meter.count_messages(ours, turn.scope.model))
        return tuple(
            [
                next(counts) if position is None or not as_sent else history[position]
                for _, position, as_sent in items
            ]
        )

    def sent(self, turn: Turn, counted: Counted) -> Sent:
        """What the provider's figure for this surface would be about."""
        items = turn.surface.items if turn.request.has_media else ()
        images = sum(
            self._meter.image_tokens(item.message, turn.scope.model)
            for item in items
            if has_media(item.message)
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
        shown = (item.message for item in turn.surface.items)
        return self._bound(turn, itertools.chain(turn.request.head, shown), turn.body_bytes)

    def bound_as_sent(self, turn: Turn) -> int | None:
        """The same of what the client sent, None where that is what would be forwarded."""
        if not turn.surface.replaced:
            return None
        return self._bound(turn, turn.request.messages, len(turn.request.body))

    def _bound(self, turn: Turn, messages: Iterable[Message], body_bytes: int) -> int:
        images = data_bytes = 0
        for message in messages if turn.request.has_media else ():
            if has_media(message):
                images += self._meter.image_tokens(message, turn.scope.model)
                data_bytes += sum(i.size_bytes for i in image_parts(message) if i.has_bytes)
        bound = self._meter.upper_bound(
            body_bytes=body_bytes, data_url_bytes=data_bytes, image_tokens=images
        )
        return scaled(bound, max(self._anchors.ratio(turn.scope), 1.0))

    def images(self, turn: Turn) -> tuple[SurfaceImage, ...]:
        """The images still on the surface of the history, in user and tool messages."""
        found: list[SurfaceImage] = []
        ratio, history = self._anchors.ratio(turn.scope), turn.reading.history
        for item in turn.surface.items if turn.request.has_media else ():
            if item.position is None or role_of(item.message) not in IMAGE_ROLES:
                continue
            # Paths must lead into the client's message: a merged frame shifts the parts.
            for image in image_parts(history[item.position]):
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


def _head(request: ChatRequest) -> list[tuple[bytes, Message]]:
    return list(zip(request.raw_messages[: request.head_length], request.head, strict=True))


def _edited_bytes(request: ChatRequest, surface: Surface) -> int:
    """How large the messages are that must be written again."""
    raw = request.raw_history
    return sum(
        len(raw[item.position])
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
