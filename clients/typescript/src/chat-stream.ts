/** The bytes of a streamed chat completion as chunks; nothing here touches the network. */

import { parsed, said } from "./calls.js";
import type { ChatChunk } from "./types.js";
import { type RefusedError, refused, UnreachableError, UnreadableAnswerError } from "./errors.js";

const DONE = "[DONE]";
const END_OF_LINE = /\r\n|\n|\r/;
const SHOWN_CHARACTERS = 80;
/** What was sent before the failure; only the error's code tells more. */
const STATUS = 200;

/** Chunks of one completion, however its bytes are cut. */
export class ChatStream {
  readonly #requestId: string;
  readonly #decoder = new TextDecoder();
  #rest = "";
  /** The last byte was \r, so a \n that comes next ends no line of its own. */
  #halfEnd = false;
  #data: string[] = [];
  done = false;

  constructor(requestId: string) {
    this.#requestId = requestId;
  }

  /**
   * What these bytes complete. Throws RefusedError where the server failed when the stream had
   * begun, and UnreadableAnswerError where these are no chunks.
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

  /** The server closed the stream; throws UnreachableError where that is too early. */
  end(): void {
    if (this.done) return;
    throw new UnreachableError("the stream broke off before its end; ask again", {
      requestId: this.#requestId,
    });
  }

  /**
   * Keeps what is data; a line that begins with a colon is a sign of life, and one without a colon
   * a field with nothing in it.
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
      `the stream holds what is no chunk of a completion (${shown})`,
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
