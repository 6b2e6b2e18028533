//! Accept-only evaluator: one pass over the bytes of a document, without a tape (FR-A14).
//!
//! A schema of common keywords compiles to a graph of [rules](rules), with one node for each conjunction of subschemas that can apply to a
//! value: `$ref` and `allOf` are merged, `anyOf` becomes alternatives, and `oneOf` becomes those alternatives that exclude the others. The
//! [pass](pass) checks grammar, duplicate keys, depth and rules together.
//!
//! Invariant: the pass accepts only documents that the tape and both engines accept. It never rejects a document.
//! Documents that it cannot decide (a keyword without a rule, an escape in a compared string, a number too close to a
//! limit, two keys with equal hashes) are left to the tape pass. Its time is linear in the document; alternatives that
//! fail, and patterns, use up a budget of steps.
//!
//! A document that arrives in several slices is read [as it arrives](arriving), using only the first alternative of each container.

mod alternatives;
mod arriving;
mod build;
mod number;
mod pass;
mod rules;

pub use arriving::ArrivingDocument;
pub(crate) use build::AcceptBuilder;
pub(crate) use pass::AcceptScratch;
pub(crate) use rules::AcceptProgram;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::Value;

    use super::{AcceptScratch, ArrivingDocument};
    use crate::compile::{Engine, Schema, Settings, compile};
    use crate::judge::{JudgeScratch, Verdict};

    fn compiled(engine: Engine, schema: &str) -> Schema {
        compile(schema.as_bytes(), &Settings { engine, assert_formats: false }).unwrap()
    }

    fn accepts(schema: &Schema, document: &[u8]) -> bool {
        schema.accept.as_ref().is_some_and(|program| {
            let mut scratch = AcceptScratch::default();
            let first = program.accepts(document, &mut scratch);
            // Predictions of names do not change the result.
            assert_eq!(first, program.accepts(document, &mut scratch));
            let (head, tail) = document.split_at(document.len() / 2);
            let bytes: Vec<_> = document.chunks(1).collect();
            for slices in [&[head, tail][..], &bytes] {
                assert!(first || !accepts_arriving(schema, slices), "accepted in slices");
            }
            first
        })
    }

    /// Whether the document in `slices`, read one by one, is accepted.
    fn accepts_arriving(schema: &Schema, slices: &[&[u8]]) -> bool {
        let (mut arriving, mut scratch) = (ArrivingDocument::new(), JudgeScratch::new());
        let mut document: Vec<Bytes> = Vec::new();
        for slice in slices {
            document.push(Bytes::copy_from_slice(slice));
            schema.read_arriving(&mut arriving, &document, &mut scratch);
        }
        arriving.accepts(&document)
    }

    /// Whether boon finds `document` valid. The engine setting of `schema` makes boon decide alone.
    fn conforms(schema: &Schema, document: &[u8]) -> bool {
        let document = [Bytes::copy_from_slice(document)];
        schema.judge(&document, &mut JudgeScratch::new()).verdict == Verdict::Conforms
    }

    /// Checks that `schema` accepts the documents in `accepted`, leaves those in `left` undecided, and that no accepted document violates
    /// the schema.
    #[track_caller]
    fn check(schema: &str, accepted: &[&str], left: &[&str]) {
        let program = compiled(Engine::Tape, schema);
        let boon = compiled(Engine::Boon, schema);
        for document in accepted {
            assert!(conforms(&boon, document.as_bytes()), "{document} violates {schema}");
            assert!(
                accepts(&program, document.as_bytes()),
                "{document} is not accepted by {schema}"
            );
        }
        for document in left {
            assert!(!accepts(&program, document.as_bytes()), "{document} is accepted by {schema}");
        }
    }

    #[test]
    fn fr_a14_common_keywords_are_accepted() {
        check(
            "true",
            &["1", " [1 , {\"a\":{}} ]\n", "\"\\ud83d\\ude00\"", "[[],[{}]]"],
            &["", " ", "1 1", "[1,]", "{,}"],
        );
        check(
            r#"{"type":"integer"}"#,
            &["0", "-7", "123456789012345678901"],
            &["1.5", "1.0", "01", "-", "\"1\""],
        );
        check(
            r#"{"type":"number"}"#,
            &["1e3", "0.30000000000000004", "-1.5E-07"],
            &["1e400", "1e308", "1.", ".5", "null"],
        );
        check(r#"{"type":["string","null"]}"#, &["null", "\"\""], &["0", "false", "[]"]);
        check(
            r#"{"minimum":0,"maximum":1}"#,
            &["0", "1", "0.5", "0.30000000000000004", "[]"],
            &["1.0000000000000001", "-1", "9007199254740993"],
        );
        check(r#"{"exclusiveMinimum":0,"multipleOf":3}"#, &["3", "9"], &["0", "4", "3.0"]);
        check(
            r#"{"minLength":2,"maxLength":3}"#,
            &["\"ab\"", "\"\u{e9}\u{e9}\"", r#""\n\u00e9\ud83d\ude00""#, "1"],
            &["\"a\"", "\"abcd\"", r#""\n""#, "\"\u{1F600}\""],
        );
        check(r#"{"pattern":"^[a-z]+$"}"#, &["\"abc\""], &["\"aBc\"", r#""\u0061""#]);
        check(
            r#"{"enum":["a",1,null,true,[1]]}"#,
            &["\"a\"", "1", "1.0", "null", "true"],
            &["\"b\"", "2", "false", "[1]"],
        );
        check(r#"{"const":"a"}"#, &["\"a\""], &["\"b\"", "\"\"", "\"\\u0061\""]);
        check(
            r#"{"type":"object","required":["a"],"properties":{"a":{"type":"integer"},"b":{}},"additionalProperties":false}"#,
            &["{\"a\":1}", "{\"b\":[],\"a\":1}", " { \"a\" : 1 } "],
            &[
                "{}",
                "{\"b\":1}",
                "{\"a\":1,\"c\":1}",
                "{\"a\":1,\"a\":1}",
                "{\"a\":1,\"\\u0061\":1}",
                "{\"a\":1,}",
                "{\"a\" 1}",
            ],
        );
        check(
            r#"{"additionalProperties":{"type":"string"},"minProperties":1,"maxProperties":2}"#,
            &["{\"x\":\"\"}", "{\"x\":\"\",\"y\":\"\"}"],
            &["{}", "{\"x\":1}", "{\"x\":\"\",\"x\":\"\"}", "{\"x\":\"\",\"y\":\"\",\"z\":\"\"}"],
        );
        check(
            r#"{"properties":{"xa":{"type":"integer"}},"patternProperties":{"^x":{"minimum":2}},"additionalProperties":{"type":"null"}}"#,
            &["{\"xa\":2,\"xb\":3,\"y\":null}"],
            &["{\"xa\":1}", "{\"xb\":1}", "{\"y\":2}"],
        );
        check(
            r#"{"propertyNames":{"maxLength":2},"properties":{"abc":true}}"#,
            &["{\"ab\":1}"],
            &["{\"abc\":1}", "{\"abd\":1}"],
        );
        check(
            r#"{"items":{"type":"integer"},"minItems":1,"maxItems":2}"#,
            &["[1]", "[1,2]"],
            &["[]", "[1,2,3]", "[\"\"]"],
        );
        check(
            r#"{"prefixItems":[{"type":"integer"}],"items":false}"#,
            &["[]", "[1]"],
            &["[1,1]", "[\"\"]"],
        );
        check(
            r#"{"uniqueItems":true}"#,
            &["[1,2,\"1\",true,null]"],
            &[
                "[1,1]",
                "[0,-0]",
                "[1,1.0]",
                "[[],{}]",
                "[18446744073709551617,18446744073709551618]",
            ],
        );
    }

    #[test]
    fn fr_a14_applicators_are_accepted() {
        check(
            r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"},"v":{"type":"integer"}}}}}"##,
            &["{\"next\":{\"next\":{\"v\":1}}}"],
            &["{\"next\":{\"next\":{\"v\":\"\"}}}"],
        );
        check(
            r#"{"allOf":[{"properties":{"a":{"minimum":1}}},{"properties":{"a":{"maximum":2}},"required":["a"]}]}"#,
            &["{\"a\":1}", "{\"a\":2,\"b\":0}"],
            &["{}", "{\"a\":0}", "{\"a\":3}"],
        );
        check(r#"{"anyOf":[{"type":"string"},{"type":"null"}]}"#, &["\"\"", "null"], &["1"]);
        check(
            r#"{"anyOf":[{"required":["a"]},{"required":["b"]}],"properties":{"a":{"type":"integer"}}}"#,
            &["{\"a\":1}", "{\"b\":1}"],
            &["{}", "{\"a\":\"\",\"b\":1}"],
        );
        // Tagged branches exclude each other.
        let tagged = r#"{"oneOf":[
            {"required":["k"],"properties":{"k":{"const":"a"},"v":{"type":"integer"}}},
            {"required":["k"],"properties":{"k":{"enum":["b","c"]},"v":{"type":"string"}}}]}"#;
        check(tagged, &[], &["1"]);
        let objects = tagged.replace("{\"required", "{\"type\":\"object\",\"required");
        check(
            &objects,
            &["{\"k\":\"a\",\"v\":1}", "{\"v\":\"\",\"k\":\"c\"}"],
            &["{\"k\":\"a\",\"v\":\"\"}", "{\"k\":\"b\",\"v\":1}", "{\"v\":1}"],
        );
        // A number conforms to both branches.
        check(r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, &[], &["1", "1.5"]);
        check(
            r#"{"oneOf":[{"type":"integer"},{"type":"string"},{"const":null}]}"#,
            &["1", "\"\"", "null"],
            &["true"],
        );
        check(r#"{"oneOf":[{"enum":["a","b"]},{"enum":["b","c"]}]}"#, &[], &["\"a\"", "\"b\""]);
        check(
            r#"{"oneOf":[{"type":"object","properties":{"a":{}},"additionalProperties":false},{"type":"object","required":["b"]}]}"#,
            &["{}", "{\"a\":1}"],
            &["{\"b\":1}", "{\"a\":1,\"b\":1}"],
        );
        check(
            r#"{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"required":["c"]}}"#,
            &["{\"a\":1,\"b\":1}", "{\"b\":1,\"c\":1}"],
            &["{\"a\":1}", "{\"c\":1}"],
        );
    }

    #[test]
    fn fr_a14_unsupported_keyword_leaves_only_its_types_undecided() {
        check(r#"{"contains":{"type":"integer"}}"#, &["1", "{}", "\"\""], &["[1]"]);
        check(r#"{"dependentRequired":{"a":["b"]}}"#, &["[{}]"], &["{}"]);
        check(r#"{"not":{"type":"integer"}}"#, &[], &["\"\"", "{}"]);
        check(r#"{"properties":{"a":{"not":{}},"b":{}}}"#, &["{\"b\":1}"], &["{\"a\":1}"]);
        check(r#"{"pattern":"^(a[ab]{1,400}b){3}c"}"#, &["1"], &["\"\""]);
        let gaps =
            |schema| compiled(Engine::Tape, schema).keywords_without_a_rule().collect::<Vec<_>>();
        assert_eq!(
            gaps(r#"{"properties":{"a":{"not":{}},"b":{"contains":true}}}"#),
            ["contains", "not"]
        );
        assert_eq!(gaps(r#"{"properties":{"a":{"type":"string"}}}"#), [""; 0]);
    }

    #[test]
    fn fr_a14_keywords_of_each_dialect_mean_the_same_as_in_the_engines() {
        const D4: &str = "\"$schema\":\"http://json-schema.org/draft-04/schema#\"";
        const D7: &str = "\"$schema\":\"http://json-schema.org/draft-07/schema#\"";
        check(
            &format!("{{{D7},\"items\":[{{\"type\":\"integer\"}}],\"additionalItems\":false}}"),
            &["[1]"],
            &["[1,2]", "[\"\"]"],
        );
        check(&format!("{{{D7},\"prefixItems\":[false]}}"), &["1"], &["[1]"]);
        check(
            &format!(
                "{{{D7},\"$ref\":\"#/definitions/a\",\"type\":\"null\",\"definitions\":{{\"a\":{{\"type\":\"integer\"}}}}}}"
            ),
            &["1"],
            &["null"],
        );
        check(&format!("{{{D4},\"minimum\":1,\"exclusiveMinimum\":true}}"), &["\"\""], &["1", "2"]);
        check(&format!("{{{D4},\"minimum\":1,\"exclusiveMinimum\":false}}"), &["1"], &["0"]);
        check(&format!("{{{D4},\"const\":1}}"), &[], &["1", "2"]);
        check(r#"{"$ref":"b.json","$defs":{"b":{"$id":"b.json","type":"integer"}}}"#, &[], &["1"]);
        // A name that contains quotation marks is not confused with several members.
        check(r#"{"properties":{"a\":1,\"b":true}}"#, &[], &[r#"{"a":1,"b":2}"#]);
    }

    #[test]
    fn fr_a14_depth_and_steps_are_bounded() {
        let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check("true", &[&nest(127)], &[&nest(128), &nest(100_000)]);
        // Alternatives that fail late at each level.
        let fork = r##"{"anyOf":[{"type":"array","items":{"$ref":"#"},"maxItems":1},{"type":"array","items":{"$ref":"#"}}]}"##;
        let wide = |depth: usize| format!("{}0{}", "[".repeat(depth), ",0]".repeat(depth));
        let schema = compiled(Engine::Tape, fork);
        let mut scratch = AcceptScratch::default();
        assert!(!schema.accept.unwrap().accepts(wide(60).as_bytes(), &mut scratch));
    }

    /// Documents with every construct, and a schema that accepts them.
    const DOCUMENTS: [(&str, &str); 10] = [
        ("true", r#"{"a":[1,-2.5e3,"x\n\u00e9\ud83d\ude00",true,false,null,{}],"b":{"c":[[]]}}"#),
        (
            r#"{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string","maxLength":9}},"required":["id"]}"#,
            r#"{"id":12345678901,"name":"\"é\\"}"#,
        ),
        (r#"{"items":{"enum":["red","green",null]}}"#, r#"["red","green","red",null]"#),
        (
            r#"{"items":{"type":"number","minimum":-1,"maximum":100}}"#,
            "[0.5, 12.25 ,99.999999999,1e1, 100]",
        ),
        (
            r#"{"additionalProperties":{"type":"string","pattern":"^[a-z]"}}"#,
            r#"{"k1":"abc", "k2" : "z9", "ключ":"a"}"#,
        ),
        (
            r#"{"oneOf":[{"type":"object","required":["t"],"properties":{"t":{"const":"a"}}},{"type":"object","required":["t"],"properties":{"t":{"const":"b"}}}]}"#,
            r#"{"t":"b","more":[1,2,3]}"#,
        ),
        (r#"{"uniqueItems":true,"minItems":2}"#, r#"["a","b",10,20,false]"#),
        (
            r#"{"patternProperties":{"^x-":{"type":"boolean"}},"additionalProperties":false}"#,
            r#"{"x-a":true,"x-bcdefghijklmnopqrstuv":false}"#,
        ),
        (
            r#"{"anyOf":[{"type":"null"},{"type":"array","items":{"type":"integer","multipleOf":5}}]}"#,
            "[ 5,\t10,\r\n1000000 ]",
        ),
        (
            r#"{"type":"object","minProperties":3,"properties":{"aaaaaaaaaaaaaaaaaaaa":{"type":"integer"},"b":{},"c":{}}}"#,
            r#"{"aaaaaaaaaaaaaaaaaaaa":1,"b":"","c":{"d":"e"}}"#,
        ),
    ];

    /// Checks that a document that `program` accepts also conforms for boon and the tape.
    #[track_caller]
    fn agrees(program: &Schema, boon: &Schema, document: &[u8]) -> bool {
        let accepted = accepts(program, document);
        if accepted {
            let shown = String::from_utf8_lossy(document);
            assert!(conforms(boon, document), "{shown}");
            assert!(
                mcpproxy_json::tape::check_unique(document, 127, &mut Default::default()).is_ok(),
                "{shown}"
            );
            assert!(serde_json::from_slice::<Value>(document).is_ok(), "{shown}");
        }
        accepted
    }

    #[test]
    fn fr_a14_document_is_accepted_regardless_of_its_slices() {
        for (schema, document) in DOCUMENTS {
            // Only a complete document can be read again under another rule.
            let has_choice = schema.contains("oneOf");
            let schema = compiled(Engine::Tape, schema);
            let document = document.as_bytes();
            for first in 0..=document.len() {
                for second in first..=document.len() {
                    let (head, rest) = document.split_at(first);
                    let (middle, tail) = rest.split_at(second - first);
                    let accepted = accepts_arriving(&schema, &[head, middle, tail]);
                    assert!(accepted || has_choice, "cut at {first} and {second}");
                    let cut_short = accepts_arriving(&schema, &[head, middle]);
                    assert!(!cut_short || tail.is_empty(), "cut short at {second}");
                }
            }
            assert!(
                accepts_arriving(&schema, &document.chunks(1).collect::<Vec<_>>()) || has_choice
            );
        }
    }

    #[test]
    fn fr_a14_arriving_document_is_left_to_the_tape_beyond_the_bounds() {
        let schema = compiled(Engine::Tape, "true");
        let text = |len: usize| format!(r#"{{"a":"{}","b":1}}"#, "x".repeat(len));
        for (len, accepted) in [(10_000, true), (20_000, false)] {
            let document = text(len);
            let slices: Vec<_> = document.as_bytes().chunks(1000).collect();
            assert_eq!(accepts_arriving(&schema, &slices), accepted, "{len}");
        }
        for (count, accepted) in [(4096, true), (4097, false)] {
            let members: Vec<_> = (0..count).map(|at| format!("\"name{at}\":0")).collect();
            let document = format!("{{{}}}", members.join(","));
            let slices: Vec<_> = document.as_bytes().chunks(1000).collect();
            assert_eq!(accepts_arriving(&schema, &slices), accepted, "{count}");
        }
        // The item is read again with each byte, so the total number of bytes read grows with the square of its length.
        for (len, accepted) in [(100, true), (2000, false)] {
            let document = text(len);
            let slices: Vec<_> = document.as_bytes().chunks(1).collect();
            assert_eq!(accepts_arriving(&schema, &slices), accepted, "{len} one by one");
        }
        // Texts that are not UTF-8, in the first slice and across two slices.
        for invalid in [&b"\xC3("[..], b"\xE2\x82"] {
            let document = [b"[\"", invalid, b"\",1]"].concat();
            for at in 0..document.len() {
                let (head, tail) = document.split_at(at);
                assert!(!accepts_arriving(&schema, &[head, tail]), "{at}");
            }
        }
    }

    #[test]
    fn fr_a14_pass_over_an_arriving_document_stops_at_a_refused_bracket() {
        let schema = compiled(Engine::Tape, r#"{"items":{"minItems":1,"uniqueItems":true}}"#);
        let read = |slices: &[&str]| {
            let (mut arriving, mut scratch) = (ArrivingDocument::new(), JudgeScratch::new());
            let document: Vec<_> =
                slices.iter().map(|slice| Bytes::copy_from_slice(slice.as_bytes())).collect();
            for end in 1..=document.len() {
                schema.read_arriving(&mut arriving, &document[..end], &mut scratch);
            }
            (arriving.accepts(&document), arriving.has_given_up())
        };
        assert_eq!(read(&["[[1],[2,1", ",3]", "]"]), (true, false));
        assert_eq!(read(&["[[1],[2,1,2", "]"]), (false, true));
        assert_eq!(read(&["[[1],[2,1,", "2]"]), (false, true));
        assert_eq!(read(&["[[1],[2,1,"]), (false, false));
    }

    #[test]
    fn fr_a14_steps_bound_the_time_of_every_schema_and_document() {
        let accepts_complete = |schema: &str, document: &str| {
            let program = compiled(Engine::Tape, schema).accept.unwrap();
            program.accepts(document.as_bytes(), &mut AcceptScratch::default())
        };
        // Each level has two rules, and the rules of the outer levels are tried again and again. Work that used up no
        // steps would take minutes here.
        let fork = r##"{"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#"},"maxItems":1},{"type":"array","items":{"$ref":"#"}}]}"##;
        let nest = |inner: &str| format!("{}{inner}{}", "[".repeat(40), "]".repeat(40));
        let long = 200_000;
        let escapes = "\\n".repeat(long / 2);
        let name = format!("[{{\"{}\\u0061\":1}}]", "x".repeat(long));
        for inner in [
            format!("0,{}\"x\"", " ".repeat(long)),
            format!("0,\"{escapes}\""),
            format!("0,\"{escapes}\\x\""),
            format!("0,{name}"),
            format!("0,{}", "1".repeat(long)),
        ] {
            assert!(!accepts_complete(fork, &nest(&inner)), "{}", &inner[..9]);
        }
        // Conditions on empty strings, and enumerated numbers.
        let values: Vec<_> = (0..20_000).map(|at| at.to_string()).collect();
        let numbers = format!("{{\"items\":{{\"enum\":[{}]}}}}", values.join(","));
        let document = format!("[{}]", vec!["19999"; 30_000].join(","));
        assert!(accepts_complete(&numbers, &document));
        let patterns: Vec<_> = (0..60).map(|at| format!(r#"{{"pattern":"^b*{at}?$"}}"#)).collect();
        let texts = format!(r#"{{"items":{{"allOf":[{}]}}}}"#, patterns.join(","));
        let document = format!("[{}]", vec!["\"\""; 30_000].join(","));
        assert!(!accepts_complete(&texts, &document));
    }

    #[test]
    fn fr_a14_conditions_on_strings_use_up_steps() {
        let patterns: Vec<_> =
            (0..12).map(|at| format!(r#"{{"pattern":"[a-y]{{0,{at}}}z"}}"#)).collect();
        let several = |count: usize| format!(r#"{{"allOf":[{}]}}"#, patterns[..count].join(","));
        let long = ["\"", &"x".repeat(100_000), "z\""].concat();
        for (count, accepted) in [(2, true), (12, false)] {
            let schema = compiled(Engine::Tape, &several(count));
            assert_eq!(accepts(&schema, long.as_bytes()), accepted, "{count} patterns");
            assert!(accepts(&schema, b"\"xyz\""), "{count} patterns, a short string");
        }
    }

    #[test]
    fn fr_a14_document_with_any_byte_changed_is_accepted_only_if_boon_accepts_it() {
        for (schema, document) in DOCUMENTS {
            let (program, boon) = (compiled(Engine::Tape, schema), compiled(Engine::Boon, schema));
            assert!(agrees(&program, &boon, document.as_bytes()), "{document}");
            for at in 0..document.len() {
                let mut changed = document.as_bytes().to_vec();
                for byte in 0..=255 {
                    changed[at] = byte;
                    agrees(&program, &boon, &changed);
                }
            }
        }
    }

    #[test]
    fn fr_a14_truncated_or_extended_document_is_not_accepted() {
        for (schema, document) in DOCUMENTS {
            let (program, boon) = (compiled(Engine::Tape, schema), compiled(Engine::Boon, schema));
            for at in 0..document.len() {
                assert!(!accepts(&program, &document.as_bytes()[..at]), "{document} cut at {at}");
                for token in [
                    "\"", "\\", ",", ":", "{", "}", "[", "]", "0", ".", "e", "-", "t", " ", "\n",
                    "\0", "\u{feff}",
                ] {
                    let (head, tail) = document.as_bytes().split_at(at);
                    agrees(&program, &boon, &[head, token.as_bytes(), tail].concat());
                    agrees(&program, &boon, &[head, token.as_bytes(), &tail[1..]].concat());
                }
            }
            let twice = [document, document].concat();
            assert!(!accepts(&program, twice.as_bytes()), "{twice}");
        }
    }

    #[test]
    fn fr_a14_names_with_colliding_hashes_are_compared() {
        let schema = compiled(Engine::Tape, "true");
        let object = |names: &[String]| {
            let members: Vec<_> = names.iter().map(|name| format!("\"{name}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        for count in [2, 16, 17, 100, 5000] {
            let mut names: Vec<_> = (0..count).map(|at| format!("name{at}")).collect();
            assert!(accepts(&schema, object(&names).as_bytes()), "{count}");
            names.push("name1".to_owned());
            assert!(!accepts(&schema, object(&names).as_bytes()), "{count}");
        }
    }

    #[test]
    fn fr_a14_numbers_of_any_length_have_the_same_value_as_in_the_engines() {
        let program = compiled(Engine::Tape, "{\"type\":\"number\"}");
        let boon = compiled(Engine::Boon, "{\"type\":\"number\"}");
        let mut accepted = 0;
        for whole in [1, 2, 7, 8, 9, 15, 16, 17, 18, 19, 20, 21, 39, 40, 41, 400] {
            for fraction in [0, 1, 7, 8, 9, 16, 17, 18, 19, 20, 39, 40, 41] {
                for exponent in ["", "e0", "e-99", "E+99", "e100", "e", "e+", "e1.5"] {
                    for digit in ["1", "9", "0"] {
                        let point = if fraction > 0 { "." } else { "" };
                        let number = format!(
                            "-{}{point}{}{exponent}",
                            digit.repeat(whole),
                            digit.repeat(fraction)
                        );
                        accepted += u32::from(agrees(&program, &boon, number.as_bytes()));
                    }
                }
            }
        }
        assert!(accepted > 1000, "{accepted}");
    }
}
