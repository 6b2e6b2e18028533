#!/usr/bin/env python3
"""Writes tests/data/parser_differentials.json: the values that four parsers read in each case.

The cases of RESULTS are whole tool results, those of CASES are documents within a result.

Runs Python's json, JavaScript's JSON.parse (node), serde_json and simd-json on the same bytes. The test itself runs the
last two in its writing mode, so that their versions are those of the crate:

    python3 tools/differentials/generate.py

This script does not decide which values are right; the expected verdicts are in the test.
"""
import base64
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/parser_differentials.json"

CASES = [
    ("duplicate_key", b'{"a":1,"a":2}'),
    ("duplicate_key_escaped", b'{"a":1,"\\u0061":2}'),
    ("duplicate_key_nested", b'{"x":[{"a":1,"a":2}]}'),
    ("duplicate_key_proto", b'{"__proto__":1,"__proto__":2}'),
    ("duplicate_empty_key", b'{"":1,"":2}'),
    ("keys_that_differ_by_normal_form", b'{"\xc3\xa9":1,"e\xcc\x81":2}'),
    ("keys_that_differ_by_case", b'{"a":1,"A":2}'),
    ("proto_key", b'{"__proto__":{"a":1}}'),
    ("lone_high_surrogate", b'"\\ud800"'),
    ("lone_low_surrogate", b'"\\udc00"'),
    ("reversed_surrogates", b'"\\udc00\\ud800"'),
    ("surrogate_then_text", b'"\\ud800x"'),
    ("surrogate_then_other_escape", b'"\\ud800\\u0041"'),
    ("lone_surrogate_in_key", b'{"\\ud800":1}'),
    ("surrogate_pair", b'"\\ud83d\\ude00"'),
    ("noncharacter", b'"\\uffff"'),
    ("escaped_null", b'"\\u0000"'),
    ("invalid_utf8", b'"\xff"'),
    ("overlong_utf8", b'"\xc0\xaf"'),
    ("surrogate_in_utf8", b'"\xed\xa0\x80"'),
    ("cut_utf8", b'"\xc3"'),
    ("beyond_unicode", b'"\xf4\x90\x80\x80"'),
    ("byte_order_mark", b'\xef\xbb\xbf{}'),
    ("utf16", b'{\x00}\x00'),
    ("overflow", b'1e400'),
    ("negative_overflow", b'-1e400'),
    ("overflow_by_digits", b'1' + b'0' * 400),
    ("largest_double", b'1.7976931348623157e308'),
    ("just_past_largest_double", b'1.7976931348623159e308'),
    ("underflow", b'1e-400'),
    ("beyond_2_53", b'9007199254740993'),
    ("beyond_u64", b'18446744073709551616'),
    ("beyond_u64_by_one", b'18446744073709551617'),
    ("below_i64", b'-9223372036854775809'),
    ("negative_zero", b'-0'),
    ("negative_zero_double", b'-0.0'),
    ("long_decimal", b'0.1000000000000000055511151231257827021181583404541015625'),
    ("nan", b'NaN'),
    ("infinity", b'Infinity'),
    ("negative_infinity", b'-Infinity'),
    ("leading_zero", b'01'),
    ("leading_plus", b'+1'),
    ("leading_dot", b'.5'),
    ("trailing_dot", b'1.'),
    ("empty_exponent", b'1e'),
    ("hexadecimal", b'0x10'),
    ("digits_with_underscore", b'1_000'),
    ("minus_alone", b'-'),
    ("trailing_text", b'{} x'),
    ("two_values", b'{}{}'),
    ("two_lines", b'{}\n{}'),
    ("trailing_null_byte", b'{}\x00'),
    ("trailing_comma_object", b'{"a":1,}'),
    ("trailing_comma_array", b'[1,]'),
    ("leading_comma", b'[,1]'),
    ("comment", b'{}//c'),
    ("block_comment", b'{/*c*/}'),
    ("single_quotes", b"{'a':1}"),
    ("bare_key", b'{a:1}'),
    ("number_key", b'{1:1}'),
    ("raw_newline", b'"a\nb"'),
    ("raw_tab", b'"a\tb"'),
    ("raw_null_byte", b'"a\x00b"'),
    ("raw_delete", b'"a\x7fb"'),
    ("raw_line_separator", b'"\xe2\x80\xa8"'),
    ("unknown_escape", b'"\\x41"'),
    ("short_escape", b'"\\u12"'),
    ("escaped_solidus", b'"\\/"'),
    ("form_feed_as_space", b'[1,\x0c2]'),
    ("no_break_space_as_space", b'[1,\xc2\xa02]'),
    ("unclosed", b'[1'),
    ("unclosed_string", b'"a'),
    ("mismatched", b'[1}'),
    ("empty", b''),
    ("white_space", b' \n\t\r'),
    ("capital_literal", b'True'),
    ("undefined", b'undefined'),
    ("depth_127", b'[' * 127 + b']' * 127),
    ("depth_128", b'[' * 128 + b']' * 128),
    ("depth_2000", b'[' * 2000 + b']' * 2000),
]

RESULTS = [
    ("result_structured_twice", b'{"structuredContent":{"a":1},"structuredContent":{"a":2}}'),
    ("result_structured_twice_alike", b'{"structuredContent":1,"structuredContent":1}'),
    ("result_structured_twice_escaped",
     b'{"structuredContent":{"a":1},"structured\\u0043ontent":{"a":2}}'),
    ("result_structured_twice_escaped_first",
     b'{"\\u0073tructuredContent":{"a":1},"structuredContent":{"a":2}}'),
    ("result_structured_twice_around",
     b'{"structuredContent":1,"content":[],"isError":false,"structuredContent":2}'),
    ("result_structured_then_null", b'{"structuredContent":{"a":1},"structuredContent":null}'),
    ("result_error_twice", b'{"isError":true,"isError":false,"structuredContent":1}'),
    ("result_error_twice_last_true", b'{"structuredContent":1,"isError":false,"isError":true}'),
    ("result_error_twice_escaped", b'{"isError":true,"is\\u0045rror":false,"structuredContent":1}'),
    ("result_error_twice_alike", b'{"isError":true,"isError":true,"structuredContent":1}'),
    ("result_content_twice", b'{"content":[],"content":[1],"structuredContent":1}'),
    ("result_content_twice_escaped", b'{"content":[],"\\u0063ontent":[1],"structuredContent":1}'),
    ("result_meta_twice", b'{"_meta":{},"_meta":{"a":1},"structuredContent":1}'),
    ("result_type_twice", b'{"resultType":"a","resultType":"b","structuredContent":1}'),
    ("result_other_twice", b'{"x":1,"x":2,"structuredContent":1}'),
    ("result_other_twice_escaped", b'{"x":1,"\\u0078":2,"structuredContent":1}'),
    ("result_other_twice_by_pair", b'{"\xf0\x9f\x98\x80":1,"\\ud83d\\ude00":2,"structuredContent":1}'),
    ("result_empty_name_twice", b'{"":1,"":2,"structuredContent":1}'),
    ("result_proto_twice", b'{"__proto__":1,"__proto__":2,"structuredContent":1}'),
    ("result_escaped_structured", b'{"structured\\u0043ontent":1}'),
    ("result_escaped_structured_wholly",
     b'{"' + b"".join(b"\\u%04x" % byte for byte in b"structuredContent") + b'":1}'),
    ("result_escaped_error", b'{"is\\u0045rror":true,"structuredContent":1}'),
    ("result_error_text", b'{"isError":"true","structuredContent":1}'),
    ("result_error_number", b'{"isError":1,"structuredContent":1}'),
    ("result_error_null", b'{"isError":null,"structuredContent":1}'),
    ("result_name_by_case", b'{"structuredcontent":1,"StructuredContent":2}'),
    ("result_name_and_null_byte", b'{"structuredContent\\u0000":1}'),
    ("result_name_and_space", b'{"structuredContent ":1," structuredContent":2}'),
    ("result_name_by_normal_form", b'{"structure\\u0301dContent":1}'),
    ("result_name_inside", b'{"_meta":{"structuredContent":1,"isError":true}}'),
    ("result_name_as_value", b'{"a":"structuredContent","b":"\\"isError\\":true"}'),
    ("result_lone_surrogate_in_name", b'{"\\ud800":1,"structuredContent":1}'),
    ("result_lone_surrogates_in_names", b'{"\\ud800":1,"\\udbff":2,"structuredContent":1}'),
    ("result_invalid_utf8_in_name", b'{"\xff":1,"structuredContent":1}'),
    ("result_overlong_utf8_in_name", b'{"\xc1\xb3tructuredContent":1}'),
    ("result_structured_null", b'{"structuredContent":null}'),
    ("result_twice_in_meta", b'{"_meta":{"a":1,"a":2},"structuredContent":1}'),
    ("result_twice_in_structured", b'{"structuredContent":{"a":1,"\\u0061":2}}'),
    ("result_trailing_comma", b'{"structuredContent":1,}'),
    ("result_comment", b'{"structuredContent":1/*,"isError":true*/}'),
]

NODE = r"""
const cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const show = (v) => JSON.stringify(v, (k, x) =>
  typeof x === 'number' && !Number.isFinite(x) ? String(x)
  : Object.is(x, -0) ? '-0' : x);
const out = cases.map((b64) => {
  try { return {reads: show(JSON.parse(Buffer.from(b64, 'base64').toString('utf8')))}; }
  catch (e) { return {refuses: true}; }
});
process.stdout.write(JSON.stringify(out));
"""


def python_reads(data):
    try:
        return {"reads": json.dumps(json.loads(data))}
    except (ValueError, RecursionError):
        return {"refuses": True}


def main():
    encoded = [base64.b64encode(data).decode() for _, data in CASES + RESULTS]
    node = subprocess.run(
        ["node", "-e", NODE], input=json.dumps(encoded).encode(), capture_output=True, check=True
    )
    rows = [
        {
            "case": name,
            "bytes": code,
            "python": clip(python_reads(data)),
            "javascript": clip(javascript),
        }
        for (name, data), code, javascript in zip(CASES + RESULTS, encoded, json.loads(node.stdout))
    ]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
    environment = dict(os.environ, WRITE_DIFFERENTIALS="1")
    subprocess.run(
        ["cargo", "test", "--test", "parser_differentials", "the_table"],
        cwd=ROOT, env=environment, check=True,
    )


def clip(reading):
    """Deep and long readings are only told apart from refusals."""
    if len(reading.get("reads", "")) > 80:
        reading["reads"] = reading["reads"][:77] + "..."
    return reading


if __name__ == "__main__":
    main()
