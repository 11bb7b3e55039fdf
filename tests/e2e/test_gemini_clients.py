"""Clients of Gemini's API, unmodified; see tests/support/foreign_clients.py."""

from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.foreign_clients import BEST, NODE, PYTHON, client, lines_of, needs_node, needs_python, serving

PYTHON_SDK = """
import json, sys
from google import genai
from google.genai import errors, types

client = genai.Client(api_key="unused", http_options=types.HttpOptions(base_url=sys.argv[1]))
place = types.Schema(type="STRING", enum=["desk", "shelf"])
schema = types.Schema(type="OBJECT", properties={"place": place})
look = types.FunctionDeclaration(name="look", description="Look.", parameters=schema)
config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[look])])
asked = {"model": "demo", "config": config}
first = types.Content(role="user", parts=[types.Part(text="find the mug")])
answer = client.models.generate_content(contents=[first], **asked)
[call] = answer.function_calls
result = types.Part.from_function_response(name=call.name, response={"result": "a mug"})
turns = [first, answer.candidates[0].content, types.Content(role="user", parts=[result])]
stream = client.models.generate_content_stream(contents=turns, **asked)
text = "".join(chunk.text or "" for chunk in stream)
try:
    client.models.generate_content(model="gpt-9", contents="find the mug")
except errors.ClientError as error:
    refused = [error.code, error.status]
listed = [model.name for model in client.models.list()]
assert listed == ["models/demo"] == [client.models.get(model="demo").name], listed
print(json.dumps([[call.name, call.args], text, refused]))
"""

NODE_SDK = """
import { GoogleGenAI } from "@google/genai";

const ai = new GoogleGenAI({ apiKey: "unused", httpOptions: { baseUrl: process.argv[1] } });
const schema = { type: "object", properties: { place: { enum: ["desk", "shelf"] } } };
const tools = [{ functionDeclarations: [{ name: "look", parametersJsonSchema: schema }] }];
const asked = { model: "demo", config: { tools } };
const first = { role: "user", parts: [{ text: "find the mug" }] };
const answer = await ai.models.generateContent({ ...asked, contents: [first] });
const [call] = answer.functionCalls;
const result = { functionResponse: { name: call.name, response: { result: "a mug" } } };
const turns = [first, answer.candidates[0].content, { role: "user", parts: [result] }];
let text = "";
for await (const chunk of await ai.models.generateContentStream({ ...asked, contents: turns }))
  text += chunk.text ?? "";
let refused;
try {
  await ai.models.generateContent({ model: "gpt-9", contents: "find the mug" });
} catch (error) {
  refused = [error.status, JSON.parse(error.message).error.status];
}
console.log(JSON.stringify([[call.name, call.args], text, refused]));
"""

SAID = [["look", {"place": "desk"}], BEST, [404, "NOT_FOUND"]]


@needs_python
@client(
    "Google Gen AI SDK (Python)", "google-genai", "Gemini", "calls a tool, sends its result, streams, reads an error"
)
def test_googles_python_sdk_sends_a_result_and_reads_a_stream_with_signs_of_life() -> None:
    with serving(FakeUpstream(delay_s=0.3), heartbeat_s=0.05) as url:
        assert lines_of(PYTHON, "-c", PYTHON_SDK, url) == [SAID]


@needs_node
@client(
    "Google Gen AI SDK (Node)", "@google/genai", "Gemini", "calls a tool, sends its result, streams, reads an error"
)
def test_googles_node_sdk_sends_a_result_and_reads_a_stream_with_signs_of_life() -> None:
    with serving(FakeUpstream(delay_s=0.3), heartbeat_s=0.05) as url:
        assert lines_of("node", "--input-type=module", "-e", NODE_SDK, url, cwd=NODE) == [SAID]
