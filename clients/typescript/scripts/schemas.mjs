/**
 * The client's types of the wire, as TypeScript: an OpenAPI document on standard input, its schemas
 * on standard output. `make client-types` runs it.
 *
 * openapi-typescript nests all schemas in one interface. Here each becomes its own declaration, so
 * that editors show its name and description, and arrays become readonly.
 */

import { readFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";
import ts from "typescript";

const HEADER = `/**
 * Types of the wire.
 *
 * Generated from the server's OpenAPI document by \`make client-types\`; do not edit.
 */

`;
const SCHEMAS = "schemas";
const REFERENCE = /components\["schemas"\]\["(\w+)"\]/g;

function postTransform(type) {
  if (!ts.isArrayTypeNode(type)) return type;
  return ts.factory.createTypeOperatorNode(ts.SyntaxKind.ReadonlyKeyword, type);
}

/** The members of `components["schemas"]`. */
function schemasOf(nodes) {
  const components = nodes.find((node) => node.name?.text === "components");
  return components.members.find((member) => member.name.text === SCHEMAS).type.members;
}

function declaration({ name, type, emitNode }) {
  const exported = [ts.factory.createModifier(ts.SyntaxKind.ExportKeyword)];
  const node = ts.isTypeLiteralNode(type)
    ? ts.factory.createInterfaceDeclaration(exported, name.text, undefined, undefined, type.members)
    : ts.factory.createTypeAliasDeclaration(exported, name.text, undefined, type);
  return ts.setSyntheticLeadingComments(node, emitNode?.leadingComments);
}

const document = JSON.parse(readFileSync(0, "utf8"));
const nodes = await openapiTS(document, { defaultNonNullable: false, postTransform, silent: true });
const declarations = schemasOf(nodes).map((member) => astToString([declaration(member)]));
process.stdout.write(HEADER + declarations.join("\n").replace(REFERENCE, "$1"));
