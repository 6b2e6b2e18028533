//! Mapping of a call's raw JSON arguments to the values that rules read. The parent module defines the mapping.
//!
//! One pass over the text: keys are compared at every depth, but values are built only where a rule reads them.
//! Recursion is bounded by [`MAX_NESTING`]; malformed JSON is an error.

use std::borrow::Cow;
use std::fmt;

use cedar_policy::{ExpressionConstructionError, RestrictedExpression};

use super::needs::{InputMembers, InputType, Wanted};
use mcpproxy_json::cursor::{QuotedString, Spelling, TextCursor};
use mcpproxy_json::fold::{self, FoldedNames};
use mcpproxy_json::keys::has_equal;

/// Maximum depth of a value that a rule reads.
pub const MAX_DEPTH: usize = 16;
/// Maximum size of a string that a rule reads, in bytes.
pub const MAX_STRING_BYTES: usize = 64 * 1024;
/// Maximum number of elements or members of a value that a rule reads.
pub const MAX_ELEMENTS: usize = 1024;
/// Maximum size of the arguments if a rule reads any, in bytes.
pub const MAX_ARGUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Maximum depth of the arguments.
const MAX_NESTING: usize = 128;
/// Maximum number of keys of an object together with its enclosing objects.
const MAX_KEYS: usize = 1024 * 1024;

/// Reason why arguments cannot be mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unmappable {
    /// Path of the member; empty for the arguments as a whole.
    pub(super) path: Vec<Box<str>>,
    pub(super) why: UnmappableReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnmappableReason {
    NotJson,
    TooLong,
    TooDeep,
    CaseTwins,
    /// A key differs only by case from a name that a rule reads.
    Variant {
        key: Box<str>,
        read: Box<str>,
    },
    Null,
    Number,
    MixedArray,
    OtherType,
}

impl fmt::Display for UnmappableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotJson => "not readable",
            Self::TooLong => "too long",
            Self::TooDeep => "nested too deep",
            Self::CaseTwins | Self::Variant { .. } => {
                "an object with keys that differ only by case"
            }
            Self::Null => "null",
            Self::Number => "a number that is not whole, or too large",
            Self::MixedArray => "an array of several kinds",
            Self::OtherType => "of another type than the tool's schema says",
        })
    }
}

impl fmt::Display for Unmappable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            UnmappableReason::CaseTwins => {
                return f.write_str("the arguments have two keys that differ only by case");
            }
            // The key is untrusted text and is not quoted.
            UnmappableReason::Variant { read, .. } => {
                return write!(
                    f,
                    "a key of the arguments differs only by case from '{read}', which the rule \
                     reads: write '{read}'"
                );
            }
            _ => {}
        }
        match self.path.is_empty() {
            true => write!(f, "the arguments are {}", self.why),
            false => write!(f, "argument '{}' is {}", self.path.join("."), self.why),
        }
    }
}

/// A mapped value; strings without escapes borrow from the arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument<'a> {
    Text(Cow<'a, str>),
    Long(i64),
    Bool(bool),
    Set(Vec<Self>),
    Record(ArgumentMembers<'a>),
    /// The value is present but not read.
    Present,
}

/// The read members of an object, in order. Names are unique.
pub(super) type ArgumentMembers<'a> = Vec<(Cow<'a, str>, Argument<'a>)>;

impl Argument<'_> {
    fn expression(&self) -> Result<RestrictedExpression, ExpressionConstructionError> {
        Ok(match self {
            Self::Text(text) => RestrictedExpression::new_string(text.clone().into_owned()),
            Self::Long(number) => RestrictedExpression::new_long(*number),
            Self::Bool(is) => RestrictedExpression::new_bool(*is),
            Self::Set(all) => {
                let all = all.iter().map(Self::expression).collect::<Result<Vec<_>, _>>()?;
                RestrictedExpression::new_set(all)
            }
            Self::Record(members) => record(members)?,
            Self::Present => RestrictedExpression::new_bool(true),
        })
    }
}

/// Cedar record of members.
pub(super) fn record(
    members: &ArgumentMembers<'_>,
) -> Result<RestrictedExpression, ExpressionConstructionError> {
    let mut pairs = Vec::with_capacity(members.len());
    for (name, value) in members {
        pairs.push((name.clone().into_owned(), value.expression()?));
    }
    RestrictedExpression::new_record(pairs)
}

/// Maps the members of `raw` that are read. No key may differ only by case from one of `names`.
pub(super) fn mapped<'a>(
    raw: &'a [u8],
    wanted: &Wanted,
    names: &FoldedNames,
    types: &InputMembers,
) -> Result<ArgumentMembers<'a>, Unmappable> {
    let cursor = TextCursor::new(raw);
    let mut reader = Reader { cursor, names, keys: Vec::new(), path: Vec::new() };
    reader.arguments(raw.len(), wanted, types).map_err(|why| {
        let path = reader.path.iter().map(|name| (**name).into()).collect();
        Unmappable { path, why }
    })
}

/// Whether all of `raw` can be mapped; for external tests.
pub fn readable(raw: &[u8]) -> bool {
    let whole = Wanted { whole: true, ..Wanted::default() };
    mapped(raw, &whole, &FoldedNames::default(), &InputMembers::new()).is_ok()
}

struct Reader<'a, 'n> {
    cursor: TextCursor<'a>,
    /// Names that rules read.
    names: &'n FoldedNames,
    /// Case-folded hashes of the keys of open objects, innermost last.
    keys: Vec<u64>,
    /// Path of the current value; after an error, its location.
    path: Vec<Cow<'a, str>>,
}

/// Treatment of a value.
#[derive(Clone, Copy)]
enum Build<'w> {
    /// The value is skipped.
    Not,
    /// The parts of the value that are read are built.
    Value { wanted: &'w Wanted, of: Option<&'w InputType>, level: usize },
}

/// Kinds of values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    String,
    Long,
    Bool,
    Set,
    Record,
}

type Built<'a> = Option<(ValueKind, Argument<'a>)>;

impl<'a> Reader<'a, '_> {
    fn arguments(
        &mut self,
        length: usize,
        wanted: &Wanted,
        types: &InputMembers,
    ) -> Result<ArgumentMembers<'a>, UnmappableReason> {
        if length > MAX_ARGUMENT_BYTES {
            return Err(UnmappableReason::TooLong);
        }
        self.cursor.skip_space();
        if !self.cursor.take(b'{') {
            return Err(UnmappableReason::NotJson);
        }
        let record = self.object(wanted, Some(types), 0, 0)?;
        self.cursor.skip_space();
        if !self.cursor.is_at_end() {
            return Err(UnmappableReason::NotJson);
        }
        Ok(record)
    }

    /// Reads an object after its opening brace.
    fn object(
        &mut self,
        wanted: &Wanted,
        types: Option<&InputMembers>,
        level: usize,
        nesting: usize,
    ) -> Result<ArgumentMembers<'a>, UnmappableReason> {
        let mut pairs = Vec::new();
        self.members(nesting, |reader, name| {
            let below = if wanted.whole { Some(wanted) } else { wanted.members.get(&*name) };
            let Some(below) = below else { return reader.value(Build::Not, nesting + 1).map(drop) };
            if pairs.len() >= MAX_ELEMENTS {
                return Err(UnmappableReason::TooLong);
            }
            let of = types.and_then(|types| types.get(&*name)).map(|member| &member.value);
            reader.path.push(name.clone());
            let build = match below.is_presence() {
                true => Build::Not,
                false => Build::Value { wanted: below, of, level: level + 1 },
            };
            let value = reader.value(build, nesting + 1)?;
            pairs.push((name, value.map_or(Argument::Present, |(_, it)| it)));
            reader.path.pop();
            Ok(())
        })?;
        Ok(pairs)
    }

    /// Iterates over the members of an object after its opening brace.
    fn members(
        &mut self,
        nesting: usize,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), UnmappableReason>,
    ) -> Result<(), UnmappableReason> {
        if nesting >= MAX_NESTING {
            return Err(UnmappableReason::TooDeep);
        }
        let first = self.keys.len();
        self.cursor.skip_space();
        if !self.cursor.take(b'}') {
            loop {
                self.cursor.skip_space();
                let name = self.string()?;
                let name = text(&name)?;
                if self.keys.len() >= MAX_KEYS {
                    return Err(UnmappableReason::TooLong);
                }
                let key = fold::hash(&name);
                if let Some(read) = self.names.variant_of(key, &name) {
                    return Err(UnmappableReason::Variant {
                        key: (*name).into(),
                        read: read.into(),
                    });
                }
                self.keys.push(key);
                self.cursor.skip_space();
                if !self.cursor.take(b':') {
                    return Err(UnmappableReason::NotJson);
                }
                member(self, name)?;
                self.cursor.skip_space();
                match (self.cursor.take(b','), self.cursor.peek()) {
                    (true, _) => {}
                    (false, Some(b'}')) => break self.cursor.skip(1),
                    (false, _) => return Err(UnmappableReason::NotJson),
                }
            }
        }
        let has_twins = self.keys.get_mut(first..).is_some_and(has_equal);
        self.keys.truncate(first);
        if has_twins { Err(UnmappableReason::CaseTwins) } else { Ok(()) }
    }

    fn value(&mut self, build: Build<'_>, nesting: usize) -> Result<Built<'a>, UnmappableReason> {
        self.cursor.skip_space();
        let built = match self.cursor.peek().ok_or(UnmappableReason::NotJson)? {
            b'"' => {
                let string = self.string()?;
                match build {
                    Build::Not => None,
                    Build::Value { .. } if string.inner.len() > MAX_STRING_BYTES => {
                        return Err(UnmappableReason::TooLong);
                    }
                    Build::Value { .. } => {
                        Some((ValueKind::String, Argument::Text(text(&string)?)))
                    }
                }
            }
            b'{' => {
                self.cursor.skip(1);
                match build {
                    Build::Not => {
                        self.members(nesting, |reader, _| {
                            reader.value(Build::Not, nesting + 1).map(drop)
                        })?;
                        None
                    }
                    Build::Value { level, .. } if level >= MAX_DEPTH => {
                        return Err(UnmappableReason::TooDeep);
                    }
                    Build::Value { wanted, of, level } => {
                        let types = match of {
                            Some(InputType::Record(members)) => Some(members),
                            Some(_) | None => None,
                        };
                        let record = self.object(wanted, types, level, nesting)?;
                        Some((ValueKind::Record, Argument::Record(record)))
                    }
                }
            }
            b'[' => {
                self.cursor.skip(1);
                self.array(build, nesting)?
            }
            _ => self.scalar(build)?,
        };
        if let (Build::Value { of: Some(of), .. }, Some((kind, _))) = (build, &built)
            && !agrees(of, *kind)
        {
            return Err(UnmappableReason::OtherType);
        }
        Ok(built)
    }

    fn array(&mut self, build: Build<'_>, nesting: usize) -> Result<Built<'a>, UnmappableReason> {
        if nesting >= MAX_NESTING {
            return Err(UnmappableReason::TooDeep);
        }
        let element = match build {
            Build::Not => Build::Not,
            Build::Value { level, .. } if level >= MAX_DEPTH => {
                return Err(UnmappableReason::TooDeep);
            }
            Build::Value { wanted, of, level } => {
                let of = match of {
                    Some(InputType::Set(element)) => Some(&**element),
                    Some(_) | None => None,
                };
                Build::Value { wanted, of, level: level + 1 }
            }
        };
        let (mut kind, mut elements) = (None, Vec::new());
        self.cursor.skip_space();
        if !self.cursor.take(b']') {
            loop {
                if let Some((found, value)) = self.value(element, nesting + 1)? {
                    if kind.is_some_and(|kind| kind != found) {
                        return Err(UnmappableReason::MixedArray);
                    }
                    if elements.len() >= MAX_ELEMENTS {
                        return Err(UnmappableReason::TooLong);
                    }
                    kind = Some(found);
                    elements.push(value);
                }
                self.cursor.skip_space();
                match (self.cursor.take(b','), self.cursor.peek()) {
                    (true, _) => {}
                    (false, Some(b']')) => break self.cursor.skip(1),
                    (false, _) => return Err(UnmappableReason::NotJson),
                }
            }
        }
        Ok(match build {
            Build::Not => None,
            Build::Value { .. } => Some((ValueKind::Set, Argument::Set(elements))),
        })
    }

    /// Reads a number, `true`, `false` or `null`.
    fn scalar(&mut self, build: Build<'_>) -> Result<Built<'a>, UnmappableReason> {
        let rest = self.cursor.rest();
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
        let word = rest.get(..rest.iter().position(ends).unwrap_or(rest.len())).unwrap_or_default();
        self.cursor.skip(word.len());
        let built = match word {
            b"true" => Some((ValueKind::Bool, Argument::Bool(true))),
            b"false" => Some((ValueKind::Bool, Argument::Bool(false))),
            b"null" => None,
            _ => match (whole(word), is_number(word)) {
                (Some(number), true) => Some((ValueKind::Long, Argument::Long(number))),
                (None, true) => None,
                (_, false) => return Err(UnmappableReason::NotJson),
            },
        };
        match (build, built) {
            (Build::Not, _) => Ok(None),
            (Build::Value { .. }, Some(built)) => Ok(Some(built)),
            (Build::Value { .. }, None) if word == b"null" => Err(UnmappableReason::Null),
            (Build::Value { .. }, None) => Err(UnmappableReason::Number),
        }
    }

    fn string(&mut self) -> Result<QuotedString<'a>, UnmappableReason> {
        self.cursor.string().filter(|string| string.closed).ok_or(UnmappableReason::NotJson)
    }
}

/// Decodes a string.
fn text<'a>(string: &QuotedString<'a>) -> Result<Cow<'a, str>, UnmappableReason> {
    match string.spelling {
        Spelling::Plain => std::str::from_utf8(string.inner)
            .map(Cow::Borrowed)
            .map_err(|_| UnmappableReason::NotJson),
        Spelling::ShortEscapes | Spelling::Other => {
            let quoted = [b"\"", string.inner, b"\""].concat();
            serde_json::from_slice(&quoted).map(Cow::Owned).map_err(|_| UnmappableReason::NotJson)
        }
    }
}

/// Parses an integer in Cedar's range, which does not include negative zero.
fn whole(word: &[u8]) -> Option<i64> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if digits.is_empty() || word == b"-0" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn is_number(word: &[u8]) -> bool {
    serde_json::from_slice::<&serde_json::value::RawValue>(word)
        .is_ok_and(|raw| raw.get().starts_with(|c: char| c == '-' || c.is_ascii_digit()))
}

fn agrees(of: &InputType, kind: ValueKind) -> bool {
    match of {
        InputType::Any => true,
        InputType::String => kind == ValueKind::String,
        InputType::Long => kind == ValueKind::Long,
        InputType::Bool => kind == ValueKind::Bool,
        InputType::Set(_) => kind == ValueKind::Set,
        InputType::Record(_) => kind == ValueKind::Record,
    }
}

/// Joins the lines of a text with spaces.
pub(super) fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use cedar_policy::Context;
    use serde_json::{Value, json};

    use super::*;
    use crate::rules::needs::InputMember;

    /// The mapped arguments as a Cedar value.
    fn whole_of(raw: &str) -> Result<Context, String> {
        let whole = Wanted { whole: true, ..Wanted::default() };
        let mapped = mapped(raw.as_bytes(), &whole, &FoldedNames::default(), &InputMembers::new());
        mapped.map(|members| context(&members)).map_err(|error| error.to_string())
    }

    fn context(args: &ArgumentMembers<'_>) -> Context {
        Context::from_pairs([("args".to_owned(), record(args).unwrap())]).unwrap()
    }

    /// The value from Cedar's own JSON parser.
    fn cedars(raw: &str) -> Context {
        let args: Value = serde_json::from_str(raw).unwrap();
        Context::from_json_value(json!({ "args": args }), None).unwrap()
    }

    #[test]
    fn mapped_arguments_equal_cedars_own_record() {
        for raw in [
            r#"{"a":"x\u0041\n\ud83d\ude00","b":true,"c":-3,"d":false,"":0}"#,
            r#" { "l" : [ 1 , 2 ] , "e":[] , "o":{"p":{}} } "#,
            r#"{"n":9223372036854775807,"m":-9223372036854775808}"#,
            r#"{"l":[{"a":1},{"b":"x"}],"s":["b","a","b"]}"#,
            "{}",
        ] {
            let (ours, theirs) = (whole_of(raw).unwrap(), cedars(raw));
            assert_eq!(ours.get("args"), theirs.get("args"), "{raw}");
        }
    }

    #[test]
    fn error_names_the_unmappable_argument() {
        let deep =
            format!(r#"{{"d":{}1{}}}"#, "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        let long = format!(r#"{{"s":"{}"}}"#, "x".repeat(MAX_STRING_BYTES + 1));
        let many = format!(r#"{{"m":[{}1]}}"#, "1,".repeat(MAX_ELEMENTS));
        let bottomless = format!(r#"{{"x":{}"#, r#"{"x":"#.repeat(100_000));
        for (raw, error) in [
            (r#"{"a":null}"#, "argument 'a' is null"),
            (r#"{"a":{"b":1.5}}"#, "argument 'a.b' is a number that is not whole, or too large"),
            (r#"{"a":1.0}"#, "argument 'a' is a number that is not whole, or too large"),
            (r#"{"a":1e3}"#, "argument 'a' is a number that is not whole, or too large"),
            (
                r#"{"a":9223372036854775808}"#,
                "argument 'a' is a number that is not whole, or too large",
            ),
            (r#"{"a":[1,"x"]}"#, "argument 'a' is an array of several kinds"),
            (r#"{"a":[1,null]}"#, "argument 'a' is null"),
            (&deep, "argument 'd' is nested too deep"),
            (&long, "argument 's' is too long"),
            (&many, "argument 'm' is too long"),
            ("[]", "the arguments are not readable"),
            ("", "the arguments are not readable"),
            ("{} x", "the arguments are not readable"),
            (r#"{"a":01}"#, "argument 'a' is not readable"),
            (r#"{"a":tru}"#, "argument 'a' is not readable"),
            (r#"{"a":"x"#, "argument 'a' is not readable"),
            (r#"{"a":1,}"#, "the arguments are not readable"),
        ] {
            let shown = raw.get(..60).unwrap_or(raw);
            assert_eq!(whole_of(raw).err().as_deref(), Some(error), "{shown}");
        }
        assert!(whole_of(&bottomless).err().unwrap().ends_with("is nested too deep"));
    }

    #[test]
    fn keys_that_differ_only_by_case_are_refused_at_any_depth() {
        let many: String = (0..40).map(|at| format!("\"key{at}\":1,")).collect();
        for raw in [
            r#"{"path":1,"Path":2}"#.to_owned(),
            r#"{"x":[{"y":{"a":1,"b":2,"A":3}}]}"#.to_owned(),
            r#"{"x":{"straße":1,"STRASSE":2}}"#.to_owned(),
            "{\"\\u0061\":1,\"A\":2}".to_owned(),
            format!("{{{many}\"KEY7\":2}}"),
        ] {
            let none = Wanted::default();
            let names = FoldedNames::default();
            let refused = mapped(raw.as_bytes(), &none, &names, &InputMembers::new()).unwrap_err();
            assert_eq!(refused.why, UnmappableReason::CaseTwins, "{raw}");
        }
        let apart = r#"{"a":{"x":1},"b":{"X":1}}"#;
        assert!(readable(apart.as_bytes()));
        assert!(readable(format!("{{{many}\"other\":2}}").as_bytes()));
    }

    #[test]
    fn case_variant_of_a_read_name_is_refused_at_any_depth() {
        let mut names = FoldedNames::default();
        ["path", "task", "Exact", "exact"].into_iter().for_each(|name| names.insert(name));
        let of = |raw: &str| {
            let found = mapped(raw.as_bytes(), &Wanted::default(), &names, &InputMembers::new());
            match found {
                Ok(_) => None,
                Err(Unmappable { why: UnmappableReason::Variant { read, .. }, .. }) => Some(read),
                Err(other) => panic!("{other}"),
            }
        };
        for (raw, name) in [
            (r#"{"Path":1}"#, "path"),
            (r#"{"PATH":1,"other":2}"#, "path"),
            (r#"{"a":{"b":[[{"pAth":1}]]}}"#, "path"),
            ("{\"\\u0050ath\":1}", "path"),
            ("{\"ta\u{17f}k\":1}", "task"),
            ("{\"tas\u{212a}\":1}", "task"),
            ("{\"\\u212aey\":{\"ta\\u017f\\u212a\":1}}", "task"),
            ("{\"\u{ff50}ath\":1}", "path"),
            (r#"{"EXACT":1}"#, "Exact"),
        ] {
            assert_eq!(of(raw).as_deref(), Some(name), "{raw}");
        }
        for raw in [
            r#"{"path":1,"a":{"path":"Path","task":2}}"#,
            r#"{"a":{"Exact":1},"b":{"exact":1}}"#,
            r#"{"paths":1,"pa_th":2,"value":"PATH"}"#,
        ] {
            assert_eq!(of(raw), None, "{raw}");
        }
    }

    #[test]
    fn only_read_arguments_must_be_mappable() {
        let mut wanted = Wanted::default();
        let whole = Wanted { whole: true, ..Wanted::default() };
        let inner = Wanted { whole: false, members: [("b".into(), whole.clone())].into() };
        wanted.members = [("a".into(), inner), ("there".into(), Wanted::default())].into();
        let raw = br#"{"a":{"b":1,"c":null},"there":null,"z":[1,"x",1.5]}"#;
        let members = mapped(raw, &wanted, &FoldedNames::default(), &InputMembers::new()).unwrap();
        let expected = cedars(r#"{"a":{"b":1},"there":true}"#);
        assert_eq!(context(&members).get("args"), expected.get("args"));
    }

    #[test]
    fn value_of_wrong_schema_type_is_not_mappable() {
        let wanted = Wanted { whole: true, ..Wanted::default() };
        let of = |value| [("p".into(), InputMember { value, required: true })].into();
        for (raw, value, good) in [
            (r#"{"p":"x"}"#, InputType::String, true),
            (r#"{"p":["x"]}"#, InputType::String, false),
            (r#"{"p":["x"]}"#, InputType::Set(Box::new(InputType::String)), true),
            (r#"{"p":[1]}"#, InputType::Set(Box::new(InputType::String)), false),
            (r#"{"p":1}"#, InputType::Bool, false),
            (r#"{"p":[1]}"#, InputType::Any, true),
        ] {
            let found = mapped(raw.as_bytes(), &wanted, &FoldedNames::default(), &of(value));
            assert_eq!(found.is_ok(), good, "{raw}");
            assert!(
                found.is_ok() || found.unwrap_err().why == UnmappableReason::OtherType,
                "{raw}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn malformed_json_is_rejected(raw in "[{}\\[\\]\":,\\\\ aA1.enulltrue\u{7f}é-]{0,40}") {
            if readable(raw.as_bytes()) {
                proptest::prop_assert!(serde_json::from_str::<serde_json::Value>(&raw).is_ok());
            }
        }
    }
}
