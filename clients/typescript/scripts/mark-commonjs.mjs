/** Marks dist/cjs as CommonJS, because the package as a whole is of ES modules. */

import { writeFileSync } from "node:fs";

writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
