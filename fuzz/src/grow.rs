//! Generator of schemas and documents from the fuzzer's bytes. Both share names, texts and numbers, so that a keyword often
//! applies to the document.

use arbitrary::{Result, Unstructured};

const NAMES: [&str; 6] = ["a", "b", "c", "x1", "é", "a/~b"];
const TEXTS: [&str; 8] = ["", "a", "aa", "ab1", "é", "a\\u0000", "2026-02-30", "\\ud83d\\ude00"];
const PATTERNS: [&str; 11] =
    ["^a", "b$", "^a+$", "é", "^$", "\\\\d", "\\\\w+\\\\s?", "[^a]", "^(?!a)", "^(a|b)*$", ".{2,}"];
const KINDS: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const DRAFTS: [&str; 5] = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
];
/// Numbers near the limits of number types, and numbers at which doubles cease to represent decimals exactly.
const NUMBERS: [&str; 32] = [
    "0",
    "-0",
    "0.0",
    "-0.0",
    "1",
    "1.0",
    "1e0",
    "-1",
    "2",
    "3",
    "7",
    "0.1",
    "0.01",
    "0.07",
    "1.5",
    "4.35",
    "1e-7",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "9007199254740993.0",
    "-9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "1e19",
    "1e300",
    "5e-324",
];
const COUNTS: [&str; 10] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
    "minimum",
    "maximum",
];
const ONE: [&str; 13] = [
    "additionalProperties",
    "propertyNames",
    "items",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
    "contentSchema",
    "items",
];
const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];
const REFERENCES: [(&str, &str); 12] = [
    ("$ref", "#/$defs/a"),
    ("$ref", "#/$defs/b"),
    ("$ref", "#/$defs/c/not"),
    ("$ref", "#n"),
    ("$ref", "#"),
    ("$ref", "b.json"),
    // References with characters that no URI may contain: unescaped as generators of schemas write them,
    // percent-encoded, and a name that itself contains a percent-encoded character.
    ("$ref", "#/$defs/P<é|[1] %>"),
    ("$ref", "#/$defs/P%3Cé%7C%5B1] %25>"),
    ("$ref", "#/$defs/P%253C"),
    ("$dynamicRef", "#n"),
    ("$dynamicRef", "#/$defs/a"),
    ("$recursiveRef", "#"),
];
/// Keywords inside a value such as `const`, where they have no meaning.
const DISGUISED: [&str; 6] = [
    "\"$id\":\"b.json\"",
    "\"$anchor\":\"n\"",
    "\"$dynamicAnchor\":\"n\"",
    "\"$ref\":\"nowhere.json\"",
    "\"$schema\":\"http://json-schema.org/draft-04/schema#\"",
    "\"pattern\":\"(?!a)\"",
];
/// Maximum nesting.
const MAX_NESTING: u32 = 5;
/// Maximum number of keywords and members of one object.
const MAX_MEMBERS: u8 = 4;

/// Generator of texts.
pub struct Grow<'a> {
    from: Unstructured<'a>,
}

impl<'a> Grow<'a> {
    /// Generator that reads these bytes. Once they are used up, it generates the simplest text.
    pub fn new(from: Unstructured<'a>) -> Self {
        Self { from }
    }

    /// A whole schema, with definitions for references to use.
    pub fn schema(&mut self) -> Result<String> {
        let mut members = Vec::new();
        if self.from.ratio(1, 3)? {
            members.push(format!("\"$schema\":\"{}\"", self.from.choose(&DRAFTS)?));
        }
        let mut definitions = Vec::new();
        for (name, head) in [
            ("a", ""),
            ("b", "\"$id\":\"b.json\","),
            ("c", "\"$anchor\":\"n\","),
            ("d", "\"$dynamicAnchor\":\"n\","),
            ("P<é|[1] %>", ""),
            ("P%3C", ""),
        ] {
            if self.from.ratio(1, 3)? {
                let rest = self.keywords(1)?.join(",");
                definitions.push(format!("\"{name}\":{{{head}\"not\":{},{rest}}}", self.sub(2)?));
            } else {
                definitions.push(format!("\"{name}\":{{\"not\":false}}"));
            }
        }
        for anchor in ["\"$dynamicAnchor\":\"n\"", "\"$recursiveAnchor\":true"] {
            if self.from.ratio(1, 6)? {
                members.push(anchor.to_owned());
            }
        }
        members.push(format!("\"$defs\":{{{}}}", definitions.join(",")));
        members.extend(self.keywords(0)?);
        Ok(format!("{{{}}}", members.join(",")))
    }

    /// A whole document.
    pub fn document(&mut self) -> Result<String> {
        self.value(0)
    }

    fn sub(&mut self, level: u32) -> Result<String> {
        if level >= MAX_NESTING || self.from.ratio(1, 8)? {
            return Ok(if self.from.arbitrary()? { "false" } else { "true" }.to_owned());
        }
        Ok(format!("{{{}}}", self.keywords(level)?.join(",")))
    }

    /// Keywords with their values, none twice.
    fn keywords(&mut self, level: u32) -> Result<Vec<String>> {
        let mut members: Vec<String> = Vec::new();
        for _ in 0..self.from.int_in_range(1..=MAX_MEMBERS)? {
            let member = self.keyword(level)?;
            let name = member.split(':').next().unwrap_or_default();
            let known = |other: &String| other.split(':').next() == Some(name);
            if name != "\"not\"" && !members.iter().any(known) {
                members.push(member);
            }
        }
        if members.is_empty() {
            members.push("\"title\":\"\"".to_owned());
        }
        Ok(members)
    }

    fn keyword(&mut self, level: u32) -> Result<String> {
        Ok(match self.from.int_in_range(0..=15_u8)? {
            0 => format!("\"type\":\"{}\"", self.from.choose(&KINDS)?),
            1 => {
                let [a, b] = [*self.from.choose(&KINDS)?, *self.from.choose(&KINDS)?];
                let second = if a == b { String::new() } else { format!(",\"{b}\"") };
                format!("\"type\":[\"{a}\"{second}]")
            }
            2 => format!("\"const\":{}", self.value(3)?),
            3 => format!("\"enum\":[{},{}]", self.value(3)?, self.value(4)?),
            4 => {
                let names = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
                format!("\"{}\":{}", self.from.choose(&names)?, self.from.choose(&NUMBERS)?)
            }
            5 => {
                let number = self.from.choose(&NUMBERS)?.trim_start_matches('-');
                format!("\"multipleOf\":{number}")
            }
            6 => {
                format!("\"{}\":{}", self.from.choose(&COUNTS)?, self.from.int_in_range(0..=3_u8)?)
            }
            7 => format!("\"pattern\":\"{}\"", self.from.choose(&PATTERNS)?),
            8 => format!("\"required\":[\"{}\"]", self.from.choose(&NAMES)?),
            9 => "\"uniqueItems\":true".to_owned(),
            10 => {
                let [a, b] = [self.from.choose(&NAMES)?, self.from.choose(&NAMES)?];
                format!("\"dependentRequired\":{{\"{a}\":[\"{b}\"]}}")
            }
            11 | 12 => {
                let (keyword, to) = self.from.choose(&REFERENCES)?;
                format!("\"{keyword}\":\"{to}\"")
            }
            13 => format!("\"{}\":{}", self.from.choose(&ONE)?, self.sub(level + 1)?),
            14 => {
                let keyword = self.from.choose(&LISTS)?;
                format!("\"{keyword}\":[{},{}]", self.sub(level + 1)?, self.sub(level + 1)?)
            }
            _ => {
                let keyword = *self.from.choose(&MAPS)?;
                let names: &[&str] =
                    if keyword == "patternProperties" { &PATTERNS } else { &NAMES };
                let name = self.from.choose(names)?;
                format!("\"{keyword}\":{{\"{name}\":{}}}", self.sub(level + 1)?)
            }
        })
    }

    fn value(&mut self, level: u32) -> Result<String> {
        let kinds = if level >= MAX_NESTING { 6 } else { 10_u8 };
        Ok(match self.from.int_in_range(0..=kinds)? {
            0 => "null".to_owned(),
            1 => if self.from.arbitrary()? { "true" } else { "false" }.to_owned(),
            2 => (*self.from.choose(&NUMBERS)?).to_owned(),
            3 => format!("\"{}\"", self.from.choose(&TEXTS)?),
            4 => self.from.arbitrary::<i64>()?.to_string(),
            5 => format!("{:e}", f64::from(self.from.arbitrary::<i16>()?) / 100.0),
            6 => serde_json::Value::from(self.from.arbitrary::<String>()?).to_string(),
            7 | 8 => {
                let mut items = Vec::new();
                for _ in 0..self.from.int_in_range(0..=MAX_MEMBERS)? {
                    items.push(self.value(level + 1)?);
                }
                // Sometimes more than twenty items, for which engines use another algorithm.
                if level == 0 && self.from.ratio(1, 8)? {
                    items.extend((100..120).map(|number| number.to_string()));
                }
                format!("[{}]", items.join(","))
            }
            _ => {
                let mut members = Vec::new();
                for name in NAMES {
                    if self.from.ratio(1, 3)? {
                        members.push(format!("\"{name}\":{}", self.value(level + 1)?));
                    }
                }
                if self.from.ratio(1, 6)? {
                    members.push((*self.from.choose(&DISGUISED)?).to_owned());
                }
                format!("{{{}}}", members.join(","))
            }
        })
    }
}
