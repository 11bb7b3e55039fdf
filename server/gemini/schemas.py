"""Request and error bodies of Gemini's routes, with the `qguide` extension."""

from typing import Any, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from qguide.server.chat.schemas import GuidanceOptions, WholeRequest
from qguide.server.own_bodies.schemas import NOT_EMPTY, Integer, ListOf, Positive, Seed, StepOptions, Temperature, Whole


class _CamelCase(Whole, alias_generator=to_camel, populate_by_name=True):
    """Gemini's clients write fields in camel case, or as the protocol buffers have them."""


class Blob(_CamelCase):
    """Bytes of an image or a document."""

    mime_type: str
    data: str = Field(description="in base64")


class FileData(_CamelCase):
    """Address of an image or a document."""

    file_uri: str
    mime_type: str | None = None


class GeminiCall(Whole):
    """A call of a function that the caller runs."""

    name: str
    id: str | None = None
    args: dict[str, Any] | None = None


class ResultPart(_CamelCase):
    """A file of a result."""

    inline_data: Blob | None = None
    file_data: FileData | None = None


class GeminiResult(Whole):
    """The result of a called function."""

    name: str
    id: str | None = Field(default=None, description="of its call; without one, the first open call of that name")
    response: dict[str, Any] | None = None
    parts: ListOf[ResultPart] | None = Field(default=None, description="files of the result")


class GeminiPart(_CamelCase):
    """One part of a turn."""

    text: str | None = None
    thought: bool | None = Field(default=None, description="true if the text is a thought")
    thought_signature: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: GeminiCall | None = None
    function_response: GeminiResult | None = None


class Content(Whole):
    """One turn of a conversation."""

    role: Literal["user", "model", "function", "tool", "system"] | None = Field(
        default=None, description="null is the user; every other one than `model` is read as the user's"
    )
    parts: ListOf[GeminiPart] | None = None


class FunctionDeclaration(_CamelCase):
    """A function that the caller runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="Gemini's schema")
    parameters_json_schema: Any = Field(default=None, description="JSON schema, in its place")


class GeminiTool(_CamelCase):
    """Functions; a tool that Google runs is refused."""

    function_declarations: ListOf[FunctionDeclaration] | None = None


class CallingConfig(_CamelCase):
    """The functions that an answer may or must call."""

    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None = None
    allowed_function_names: ListOf[str] | None = None


class ToolConfig(_CamelCase):
    """Options of the tools."""

    function_calling_config: CallingConfig | None = None


class ThinkingConfig(_CamelCase):
    """Request for thoughts; the upstream decides how long it thinks."""

    include_thoughts: bool | None = None


class GenerationConfig(_CamelCase):
    """Options of the draws."""

    temperature: Temperature | None = None
    top_p: float | None = Field(default=None, allow_inf_nan=False)
    top_k: float | None = Field(default=None, allow_inf_nan=False)
    candidate_count: Integer | None = Field(default=None, description="1: `qguide` says how many")
    max_output_tokens: Positive | None = None
    stop_sequences: ListOf[str] | None = None
    seed: Seed | None = None
    presence_penalty: float | None = Field(default=None, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, allow_inf_nan=False)
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = Field(default=None, description="Gemini's schema")
    response_json_schema: Any = Field(default=None, description="JSON schema, in its place")
    thinking_config: ThinkingConfig | None = None


class GeminiPrompt(WholeRequest, alias_generator=to_camel, populate_by_name=True):
    """Everything that the model reads."""

    contents: ListOf[Content] = Field(json_schema_extra=NOT_EMPTY)
    system_instruction: Content | None = None
    tools: ListOf[GeminiTool] | None = None
    tool_config: ToolConfig | None = None


class GenerateContentRequest(GeminiPrompt):
    """Gemini's request body."""

    generation_config: GenerationConfig = GenerationConfig()
    qguide: GuidanceOptions = GuidanceOptions()


class CountedRequest(GeminiPrompt):
    """A whole request whose tokens are counted."""

    contents: ListOf[Content] = Field(default_factory=list)


class CountContentRequest(CountedRequest):
    """A prompt whose tokens are counted: `contents`, or a whole request."""

    generate_content_request: CountedRequest | None = None
    qguide: StepOptions = StepOptions()
