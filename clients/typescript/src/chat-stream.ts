/** Chunks of a streamed chat completion from its bytes; nothing here touches the network. */

import { parsed, said } from "./calls.js";
import type { ChatChunk } from "./types.js";
import { type RefusedError, refused, UnreachableError, UnreadableAnswerError } from "./errors.js";

const DONE = "[DONE]";
const END_OF_LINE = /\r\n|\n|\r/;
const SHOWN_CHARACTERS = 80;
/** Status of a stream that has begun; an error in it is told by its code alone. */
const STATUS = 200;

/** A parser of one completion's chunks; the bytes may be split anywhere. */
export class ChatStream {
  readonly #requestId: string;
  readonly #decoder = new TextDecoder();
  #rest = "";
  /** True if the last byte was \r: a \n that follows belongs to the same line end. */
  #halfEnd = false;
  #data: string[] = [];
  done = false;

  constructor(requestId: string) {
    this.#requestId = requestId;
  }

  /**
   * Yield the chunks that these bytes complete.
   *
   * Throws RefusedError if the server failed after the stream had begun, and UnreadableAnswerError
   * if the bytes are not chunks.
   */
  *feed(bytes: Uint8Array): Generator<ChatChunk, void, undefined> {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (!text) return;
    if (this.#halfEnd && text.startsWith("\n")) text = text.slice(1);
    this.#halfEnd = text.endsWith("\r");
    const lines = (this.#rest + text).split(END_OF_LINE);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line) {
        this.#read(line);
        continue;
      }
      const data = this.#data.join("\n");
      this.#data = [];
      if (data === DONE) this.done = true;
      if (this.done) return;
      if (data) yield this.#chunk(data);
    }
  }

  /** Check that a closed stream is complete; throws UnreachableError if it broke off. */
  end(): void {
    if (this.done) return;
    throw new UnreachableError("the stream broke off before its end; send the request again", {
      requestId: this.#requestId,
    });
  }

  /**
   * Keep a line of data. A line that begins with a colon is a keep-alive comment; one without a
   * colon is a field with an empty value.
   */
  #read(line: string): void {
    const colon = line.indexOf(":");
    const [field, value] =
      colon === -1 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1)];
    if (field === "data") this.#data.push(value.replace(/^ /, ""));
  }

  #chunk(data: string): ChatChunk {
    const body = parsed(data);
    if ("error" in body) throw this.#refusal(body.error);
    if ("choices" in body) return body as ChatChunk;
    const shown = JSON.stringify(data.slice(0, SHOWN_CHARACTERS));
    throw new UnreadableAnswerError(
      `an event of the stream is not a completion chunk: ${shown}`,
      {
        requestId: this.#requestId,
      },
    );
  }

  #refusal(error: unknown): RefusedError {
    const { code, message } = said(error);
    return refused(message || "the server failed in the stream", {
      status: STATUS,
      code,
      requestId: this.#requestId,
    });
  }
}
