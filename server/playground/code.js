/**
 * Requests as code for others to run: curl, and this project's clients. Pure. A key is a variable in
 * it, never itself.
 *
 * @typedef {"curl" | "python" | "typescript"} Language
 * @typedef {{ base: string, path: string, body: Record<string, any>, needsKey: boolean }} Request
 *   `path` is v1/act or v1/score
 */

/** Fields that the clients take as arguments; all others are options. */
const ARGUMENTS = ["messages", "candidates"];

/** @type {Record<Language, (request: Request) => string>} */
const WRITERS = { curl, python, typescript };

/**
 * @param {Language} language
 * @param {Request} request
 */
export function codeOf(language, request) {
  return WRITERS[language](request);
}

/** @param {Request} request */
function curl({ base, path, body, needsKey }) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", String.raw`'\''`);
  const lines = [`curl -s ${base}${path}`, "-H 'content-type: application/json'"];
  if (needsKey) lines.push('-H "Authorization: Bearer $QGUIDE_KEY"');
  return `${[...lines, `-d '${quoted}'`].join(" \\\n  ")}\n`;
}

/** @param {Request} request */
function python({ base, path, body, needsKey }) {
  const key = needsKey ? ', api_key=os.environ["QGUIDE_KEY"]' : "";
  const { given, options } = split(body);
  const written = [
    ...given.map((value) => pythonOf(value, 1)),
    ...options.map(([name, value]) => `${name}=${pythonOf(value, 1)}`),
  ];
  return [
    ...(needsKey ? ["import os", ""] : []),
    "from qguide_client import QGuide",
    "",
    `client = QGuide(${pythonOf(rootOf(base), 0)}${key})`,
    `result = client.${methodOf(path)}(`,
    ...written.map((line) => `    ${line},`),
    ")",
    "print(result.model_dump_json(indent=2))",
    "",
  ].join("\n");
}

/** @param {Request} request */
function typescript({ base, path, body, needsKey }) {
  const key = needsKey ? ", { apiKey: process.env.QGUIDE_KEY }" : "";
  const { given, options } = split(body);
  const written = [...given, Object.fromEntries(options)].map((value) =>
    JSON.stringify(value, null, 2).replaceAll("\n", "\n  "),
  );
  return [
    'import { QGuide } from "qguide-client";',
    "",
    `const client = new QGuide(${JSON.stringify(rootOf(base))}${key});`,
    `const result = await client.${methodOf(path)}(`,
    ...written.map((line) => `  ${line},`),
    ");",
    "console.log(JSON.stringify(result, null, 2));",
    "",
  ].join("\n");
}

/** @param {Record<string, any>} body */
function split(body) {
  return {
    given: ARGUMENTS.flatMap((name) => (name in body ? [body[name]] : [])),
    options: Object.entries(body).filter(([name]) => !ARGUMENTS.includes(name)),
  };
}

/** @param {string} path */
const methodOf = (path) => path.replace("v1/", "");

/** @param {string} base */
const rootOf = (base) => base.replace(/\/$/, "");

/**
 * A value as Python writes it; a text of JSON is one of Python's, too.
 * @param {any} value
 * @param {number} depth
 * @returns {string}
 */
function pythonOf(value, depth) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((one) => pythonOf(one, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonOf(one, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (!parts.length) return open + close;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
