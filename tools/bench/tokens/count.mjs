// Reads a JSON array of texts from stdin, writes the array of how many tokens each is, in the encoding that is named.
import { readFileSync } from "node:fs";

const { encode } = await import(`gpt-tokenizer/encoding/${process.argv[2]}`);
const texts = JSON.parse(readFileSync(0, "utf8"));
// A text that looks like a special token is text.
const plain = { disallowedSpecial: new Set() };
process.stdout.write(JSON.stringify(texts.map((text) => encode(text, plain).length)));
