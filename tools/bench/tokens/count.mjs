// Reads a JSON array of texts from stdin. Writes an array with the number of tokens of each, in the named encoding.
import { readFileSync } from "node:fs";

const { encode } = await import(`gpt-tokenizer/encoding/${process.argv[2]}`);
const texts = JSON.parse(readFileSync(0, "utf8"));
// A text that looks like a special token is treated as ordinary text.
const plain = { disallowedSpecial: new Set() };
process.stdout.write(JSON.stringify(texts.map((text) => encode(text, plain).length)));
