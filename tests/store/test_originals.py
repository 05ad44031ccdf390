"""Everything but the bytes of an image stays as it was sent."""

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from proxy.store.originals import without_images

KEY = b"k" * 32
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
PIXELS = base64.b64encode(bytes(range(256)) * 4).decode()


def slim(message: object) -> str:
    return without_images(json.dumps(message).encode(), KEY).decode()


def test_a_data_url_becomes_its_hash_and_size() -> None:
    url = f"data:image/png;base64,{PIXELS}"
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    kept = json.loads(slim(message))["content"][0]["image_url"]["url"]
    assert kept.startswith("data:image/png;omitted;bytes=1024;hash=")
    assert PIXELS[:16] not in kept


def test_equal_images_have_equal_hashes_and_others_do_not() -> None:
    one, same, other = (
        json.loads(slim({"url": f"data:image/png;base64,{data}"}))["url"]
        for data in (PIXELS, PIXELS, PIXELS[:-8] + "AAAAAAA=")
    )
    assert one == same != other


def test_the_hash_is_keyed() -> None:
    body = json.dumps({"url": f"data:image/png;base64,{PIXELS}"}).encode()
    assert without_images(body, KEY) != without_images(body, b"x" * 32)


def test_escaped_slashes_and_parameters_are_understood() -> None:
    plain = f'{{"url":"data:image/png;base64,{PIXELS}"}}'
    escaped = plain.replace("/", "\\/")
    named = plain.replace("png;", "png;name=a.png;")
    answers = {without_images(text.encode(), KEY) for text in (plain, escaped, named)}
    assert len(answers) == 1


def test_bare_base64_of_audio_files_and_sources_goes_too() -> None:
    for part in (
        {"type": "input_audio", "input_audio": {"data": PIXELS, "format": "wav"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PIXELS}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": PIXELS}},
    ):
        kept = slim({"role": "user", "content": [part]})
        assert PIXELS[:32] not in kept
        assert "bytes=1024;hash=" in kept
        json.loads(kept)


def test_everything_else_stays_byte_for_byte() -> None:
    rest = b'{ "n":123456789012345678901234567890 ,"f":1.0,"s":"\\ud83d","s":"twice","url":'
    body = rest + f'"data:image/png;base64,{PIXELS}"'.encode() + b' , "after" : [ ] }'
    kept = without_images(body, KEY)
    assert kept.startswith(rest)
    assert kept.endswith(b' , "after" : [ ] }')


def test_text_that_only_speaks_of_data_urls_stays() -> None:
    for text in (
        "use data:image/png;base64,AAAA here",
        f"![x](data:image/png;base64,{PIXELS})",
        PIXELS,
        "https://example.org/a.png",
    ):
        message = {"role": "user", "content": text}
        assert json.loads(slim(message)) == message


def test_twice_is_once() -> None:
    once = slim({"url": f"data:image/png;base64,{PIXELS}", "data": PIXELS})
    assert without_images(once.encode(), KEY).decode() == once


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text() | st.floats())))
def test_json_without_images_is_untouched(value: object) -> None:
    body = json.dumps(value).encode()
    assert without_images(body, KEY) == body
