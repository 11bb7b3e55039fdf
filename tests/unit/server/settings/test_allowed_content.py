"""Addresses, files and tools that callers may not make an upstream use."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.server.settings.allowed_content import Reach, check_tools

DATA = "data:image/png;base64,AA=="
HOSTS = Reach(frozenset({"images.example.org"}))


def image(url: Any) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://images.example.org.evil.example/a.png",
        "https://images.example.org@evil.example/a.png",
        "https://evil.example\\@images.example.org/a.png",
        "https://evil.example#@images.example.org/a.png",
        "https://images.example.org\t.evil.example/",
        " https://images.example.org/a.png",
        "http://[::1]/a.png",
        "http://[images.example.org/a.png",
        "file:///etc/passwd",
        "ftp://images.example.org/a.png",
        "//images.example.org/a.png",
        "s3://bucket/a.png",
        "a.png",
        "",
    ],
)
def test_only_hosts_that_the_operator_names_are_fetched_from(address: str) -> None:
    for parts in (
        image(address),
        [{"type": "image_url", "image_url": address}],
        [{"type": "image_url", "image_url": [address]}],
        [{"type": "video_url", "video_url": {"url": address}}],
        [{"type": "file", "file": {"file_url": address}}],
        [{"type": "text", "text": "look", "image_url": {"url": address}}],
    ):
        with pytest.raises(InvalidRequestError, match=r"QGUIDE_CALLER_MEDIA_DOMAINS \(now: im"):
            HOSTS.check_parts(parts, "messages[0].content")


def test_a_refused_address_is_named_without_what_may_be_a_secret() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Reach().check_parts(image("https://me:pass@host.example/a?key=k"), "messages[3].content")
    said = str(refused.value)
    assert "messages[3].content[0].image_url.url is the address" in said
    assert "data: URL" in said
    assert "(now: none)" in said
    assert "pass" not in said
    assert "key=k" not in said


def test_bytes_and_named_hosts_pass() -> None:
    Reach().check_parts(image(DATA), "p")
    Reach().check_parts([{"type": "file", "file": {"file_data": DATA, "filename": "a"}}], "p")
    Reach().check_parts([{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}], "p")
    HOSTS.check_parts(image("https://IMAGES.example.org:8443/a.png?x=1"), "p")
    Reach(frozenset("*")).check_parts(image("http://10.0.0.1/a.png"), "p")
    Reach().check_parts("see http://10.0.0.1", "p")
    Reach().check_parts([{"type": "text", "text": "see http://10.0.0.1"}], "p")
    quoted = {"type": "text", "text": "a", "citations": [{"url": "http://10.0.0.1", "file_id": "f"}]}
    document = {"type": "text", "media_type": "text/plain", "data": "Note: see http://10.0.0.1"}
    Reach().check_addresses([{"type": "document", "source": document}], "p")
    tabs = [{"tab_id": "1", "title": "", "url": ""}, {"tab_id": "2", "url": "http://10.0.0.1"}]
    loaded = [{"type": "download_started", "download_id": "d", "url": "http://10.0.0.1/a"}]
    shown = {"type": "browser_state", "tabs": tabs, "state_changes": loaded}
    Reach().check_addresses([{"type": "tool_result", "content": [shown]}], "p")
    with pytest.raises(
        InvalidRequestError,
        match=r"\.url .*'http://10\.0\.0\.1', .*data: URL, .*QGUIDE_CALLER_MEDIA_DOMAINS \(now: none\)",
    ):
        Reach().check_addresses([shown | {"source": {"url": "http://10.0.0.1"}}], "p")
    Reach().check_addresses([quoted, {"type": "tool_use", "input": {"url": "http://x"}}], "p")


def test_bytes_of_a_file_are_no_address() -> None:
    audio = {"data": "http://10.0.0.1/a.wav", "format": "wav"}
    with pytest.raises(InvalidRequestError, match=r"\.data .*'http://10\.0\.0\.1/…', .*QGUIDE_CALLER_MEDIA_DOMAINS"):
        Reach().check_parts([{"type": "input_audio", "input_audio": audio}], "p")
    with pytest.raises(
        InvalidRequestError, match=r"\.file_data .*'http://10\.0\.0\.1/…', .*QGUIDE_CALLER_MEDIA_DOMAINS"
    ):
        Reach().check_parts([{"type": "file", "file": {"file_data": "http://10.0.0.1/a.pdf"}}], "p")


def test_files_of_the_operators_account_need_his_leave() -> None:
    part = [{"type": "file", "file": {"file_id": "file-1"}}]
    with pytest.raises(InvalidRequestError, match="'file_id' in QGUIDE_CALLER_FIELDS"):
        Reach().check_parts(part, "p")
    Reach(fields=["file_id"]).check_parts(part, "p")


def test_tensors_need_the_operators_leave() -> None:
    part = [{"type": "image_embeds", "image_embeds": "AA=="}]
    with pytest.raises(InvalidRequestError, match=r"'image_embeds'; .*QGUIDE_CALLER_FIELDS"):
        Reach().check_parts(part, "p")
    Reach(fields=["image_embeds"]).check_parts(part, "p")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["url", "image_url", "file_id", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_an_address_is_found_however_deep_it_stands(inner: Any) -> None:
    hidden = [{"type": "text", "x": [inner, {"y": [{"url": "http://10.0.0.1/"}]}]}]
    with pytest.raises(InvalidRequestError):
        Reach().check_addresses(hidden, "p")


@pytest.mark.parametrize(
    "parameters",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "mcp", "server_url": "http://10.0.0.1"}]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
        {"tools": [{"google_search": {}}]},
        {"tools": ["web_search"]},
        {"tools": [{"type": ["function"]}]},
        {"tool_choice": {"type": "mcp", "server_label": "x"}},
        {"tool_choice": {"type": ["mcp"]}},
    ],
)
def test_tools_that_a_server_runs_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedParameterError, match=r"function.*custom"):
        check_tools(parameters)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"type": "function"}, "tools is no list"),
        ([{"google_search": {}}], r"tools\[0\] is 'google_search'"),
        # The Responses API's form.
        (
            [{"type": "function", "name": "go", "parameters": {}}],
            r"tools\[0\] .* {\"type\": \"function\", \"function\": {",
        ),
    ],
)
def test_a_tool_of_another_form_is_told_the_right_one(tools: Any, said: str) -> None:
    with pytest.raises(UnsupportedParameterError, match=said):
        check_tools({"tools": tools})


def test_tools_that_the_caller_runs_pass() -> None:
    function = {"type": "function", "function": {"name": "go"}}
    custom = {"type": "custom", "custom": {"name": "sh"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function]}}
    for choice in ("auto", "none", function, custom, allowed):
        check_tools({"tools": [function, custom, {"function": {}}], "tool_choice": choice})
