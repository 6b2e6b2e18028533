// Reads a JSON array of texts from stdin, writes the array of how many tokens each is (o200k_base).
import { readFileSync } from "node:fs";
import { encode } from "gpt-tokenizer/encoding/o200k_base";

const texts = JSON.parse(readFileSync(0, "utf8"));
// A text that looks like a special token is text.
const plain = { disallowedSpecial: new Set() };
process.stdout.write(JSON.stringify(texts.map((text) => encode(text, plain).length)));
