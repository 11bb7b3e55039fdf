"""Clients of Anthropic's Messages API, unmodified; see tests/support/foreign_clients.py."""

from pathlib import Path

import httpx

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from tests.support.foreign_clients import BEST, NODE, client, lines_of, needs_node, serving

SDK = """
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[1], apiKey: "unused", maxRetries: 0 });
const place = { type: "string", enum: ["desk", "shelf"] };
const tools = [{ name: "look", input_schema: { type: "object", properties: { place } } }];
const messages = [{ role: "user", content: "find the mug" }];
const asked = { model: "demo", max_tokens: 99, tools };
const stream = client.messages.stream({ ...asked, messages });
const { content, stop_reason, qguide } = await stream.finalMessage();
const [call] = content;
const result = { type: "tool_result", tool_use_id: call.id, content: "a mug" };
messages.push({ role: "assistant", content }, { role: "user", content: [result] });
const done = await client.messages.create({ ...asked, messages });
let refused;
try {
  await client.messages.create({ ...asked, messages, model: "gpt-9" });
} catch (error) {
  refused = [error instanceof Anthropic.NotFoundError, error.type];
}
const called = [call.type, call.name, call.input, stop_reason, qguide.guided];
const answered = [done.content, done.stop_reason, done.qguide.guided];
console.log(JSON.stringify([called, answered, refused]));
"""


@needs_node
@client("Anthropic SDK (Node)", "@anthropic-ai/sdk", "Messages", "streams a call, sends its result, reads an error")
def test_anthropics_node_sdk_streams_a_call_and_sends_its_result() -> None:
    with serving(FakeUpstream()) as url:
        [said] = lines_of("node", "--input-type=module", "-e", SDK, url, cwd=NODE)
    called, answered, refused = said
    # The scripted Q model knows no calls: its Q is the same for all, and the votes decide.
    assert called == ["tool_use", "look", {"place": "desk"}, "tool_use", False]
    assert answered == [[{"type": "text", "text": BEST}], "end_turn", True]
    assert refused == [True, "not_found_error"]


@needs_node
@client("Claude Code", "@anthropic-ai/claude-code", "Messages", "a turn that reads a file, as an episode")
def test_claude_code_reads_a_file_in_a_turn_and_the_episode_has_its_steps(tmp_path: Path) -> None:
    home, workplace = tmp_path / "home", tmp_path / "workplace"
    home.mkdir()
    workplace.mkdir()
    note = workplace / "note.txt"
    note.write_text("the mug is on the desk")
    fake = FakeUpstream(calls=[("Read", {"file_path": str(note)})])
    # Its own script copies the program to this name; no script of a package runs here.
    [program] = Path(NODE).glob("node_modules/@anthropic-ai/claude-code-*/claude")
    asked = [str(program), "-p", "find the mug", "--model", "demo", "--tools", "Read"]
    with serving(fake) as url:
        env = {
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": f"{url}/episodes/claude-1",
            "ANTHROPIC_API_KEY": "unused",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        [done] = lines_of(*asked, *("--allowedTools", "Read", "--output-format", "json"), cwd=str(workplace), env=env)
        outcome = httpx.post(f"{url}/v1/episodes/claude-1/outcome", json={"reward": 1.0}).json()
    assert (done["is_error"], done["num_turns"]) == (False, 2)
    assert done["result"] in DEFAULT_REPLIES
    assert outcome["steps"] >= 2
    results = [turn for turn in fake.asked[-1]["messages"] if turn["role"] == "tool"]
    assert "the mug is on the desk" in results[-1]["content"]
