//! A call's arguments, from their raw JSON to the values that rules see. How they map is said in the parent.
//!
//! One pass over the text: keys are compared at every depth, values are built only where a rule looks. Nothing of it
//! recurses deeper than [`MAX_NESTING`], and of other text than JSON it makes an error.

use std::borrow::Cow;
use std::fmt;

use cedar_policy::{ExpressionConstructionError, RestrictedExpression};
use xxhash_rust::xxh3::xxh3_64;

use super::input_types::{InputMembers, InputType};
use super::needs::Wanted;
use crate::json::cursor::{QuotedString, Spelling, TextCursor};
use crate::json::fold;

/// Levels of objects and arrays in a value that a rule looks at.
pub const MAX_DEPTH: usize = 16;
/// Most bytes of a string that a rule looks at.
pub const MAX_STRING_BYTES: usize = 64 * 1024;
/// Most elements of an array, or members of an object, that a rule looks at.
pub const MAX_ELEMENTS: usize = 1024;
/// Most bytes of arguments of which a rule looks at any.
pub const MAX_ARGUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Levels of the arguments as a whole.
const MAX_NESTING: usize = 128;
/// Most keys of all objects that are open at once.
const MAX_KEYS: usize = 1024 * 1024;
/// Up to so many keys of an object are compared each with each.
const FEW_KEYS: usize = 16;
/// Longest key that is folded without taking memory.
const SHORT_KEY: usize = 64;

/// Why arguments cannot be shown to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unmappable {
    /// The member that it is, from the outermost; empty where all arguments are meant.
    pub(super) path: Vec<Box<str>>,
    pub(super) why: Why,
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    NotJson,
    TooLong,
    TooDeep,
    Twins,
    Null,
    Number,
    Mixed,
    OtherType,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotJson => "not readable",
            Self::TooLong => "too long",
            Self::TooDeep => "nested too deep",
            Self::Twins => "an object with two keys that differ only by case",
            Self::Null => "null",
            Self::Number => "a number that is not whole, or too large",
            Self::Mixed => "an array of several kinds",
            Self::OtherType => "of another type than the tool's schema says",
        })
    }
}

impl fmt::Display for Unmappable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.why == Why::Twins {
            return f.write_str("the arguments have two keys that differ only by case");
        }
        match self.path.is_empty() {
            true => write!(f, "the arguments are {}", self.why),
            false => write!(f, "argument '{}' is {}", self.path.join("."), self.why),
        }
    }
}

/// A value that a rule can be shown; texts are those of the arguments where they have no escapes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument<'a> {
    Text(Cow<'a, str>),
    Long(i64),
    Bool(bool),
    Set(Vec<Self>),
    Record(ArgumentMembers<'a>),
    /// It is there; what it is nothing asks.
    Present,
}

/// The wanted members of an object, in their order. No two have the same name.
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

/// ArgumentMembers as Cedar takes them.
///
/// # Errors
/// Two have the same name.
pub(super) fn record(
    members: &ArgumentMembers<'_>,
) -> Result<RestrictedExpression, ExpressionConstructionError> {
    let mut pairs = Vec::with_capacity(members.len());
    for (name, value) in members {
        pairs.push((name.clone().into_owned(), value.expression()?));
    }
    RestrictedExpression::new_record(pairs)
}

/// The wanted members of `raw`.
///
/// # Errors
/// [`Unmappable`]: the first value that a rule looks at and that no rule can be shown.
pub(super) fn mapped<'a>(
    raw: &'a [u8],
    wanted: &Wanted,
    types: &InputMembers,
) -> Result<ArgumentMembers<'a>, Unmappable> {
    let mut reader = Reader { cursor: TextCursor::new(raw), keys: Vec::new(), path: Vec::new() };
    reader.arguments(raw.len(), wanted, types).map_err(|why| {
        let path = reader.path.iter().map(|name| (**name).into()).collect();
        Unmappable { path, why }
    })
}

/// Whether all of `raw` can be shown to rules: for tests from outside.
#[must_use]
pub fn readable(raw: &[u8]) -> bool {
    let whole = Wanted { whole: true, ..Wanted::default() };
    mapped(raw, &whole, &InputMembers::new()).is_ok()
}

struct Reader<'a> {
    cursor: TextCursor<'a>,
    /// What stands for the keys of the open objects, whatever their case; the innermost object's last.
    keys: Vec<u64>,
    /// Where the value is that is built; at an error, where it is.
    path: Vec<Cow<'a, str>>,
}

/// What is to become of a value.
#[derive(Clone, Copy)]
enum Build<'w> {
    /// It is read over.
    Not,
    /// It is built, as far as it is wanted.
    Value { wanted: &'w Wanted, of: Option<&'w InputType>, level: usize },
}

/// The kinds of values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    String,
    Long,
    Bool,
    Set,
    Record,
}

type Built<'a> = Option<(ValueKind, Argument<'a>)>;

impl<'a> Reader<'a> {
    fn arguments(
        &mut self,
        length: usize,
        wanted: &Wanted,
        types: &InputMembers,
    ) -> Result<ArgumentMembers<'a>, Why> {
        if length > MAX_ARGUMENT_BYTES {
            return Err(Why::TooLong);
        }
        self.cursor.skip_space();
        if !self.cursor.take(b'{') {
            return Err(Why::NotJson);
        }
        let record = self.object(wanted, Some(types), 0, 0)?;
        self.cursor.skip_space();
        if !self.cursor.is_at_end() {
            return Err(Why::NotJson);
        }
        Ok(record)
    }

    /// Reads an object, of which the brace was read.
    fn object(
        &mut self,
        wanted: &Wanted,
        types: Option<&InputMembers>,
        level: usize,
        nesting: usize,
    ) -> Result<ArgumentMembers<'a>, Why> {
        let mut pairs = Vec::new();
        self.members(nesting, |reader, name| {
            let below = if wanted.whole { Some(wanted) } else { wanted.members.get(&*name) };
            let Some(below) = below else { return reader.value(Build::Not, nesting + 1).map(drop) };
            if pairs.len() >= MAX_ELEMENTS {
                return Err(Why::TooLong);
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

    /// Reads over an object, of which the brace was read, and has `member` read each value.
    fn members(
        &mut self,
        nesting: usize,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), Why>,
    ) -> Result<(), Why> {
        if nesting >= MAX_NESTING {
            return Err(Why::TooDeep);
        }
        let first = self.keys.len();
        self.cursor.skip_space();
        if !self.cursor.take(b'}') {
            loop {
                self.cursor.skip_space();
                let name = self.string()?;
                let name = text(&name)?;
                if self.keys.len() >= MAX_KEYS {
                    return Err(Why::TooLong);
                }
                self.keys.push(caseless(&name));
                self.cursor.skip_space();
                if !self.cursor.take(b':') {
                    return Err(Why::NotJson);
                }
                member(self, name)?;
                self.cursor.skip_space();
                match (self.cursor.take(b','), self.cursor.peek()) {
                    (true, _) => {}
                    (false, Some(b'}')) => break self.cursor.skip(1),
                    (false, _) => return Err(Why::NotJson),
                }
            }
        }
        let twins = self.keys.get_mut(first..).is_some_and(has_twins);
        self.keys.truncate(first);
        if twins { Err(Why::Twins) } else { Ok(()) }
    }

    fn value(&mut self, build: Build<'_>, nesting: usize) -> Result<Built<'a>, Why> {
        self.cursor.skip_space();
        let built = match self.cursor.peek().ok_or(Why::NotJson)? {
            b'"' => {
                let string = self.string()?;
                match build {
                    Build::Not => None,
                    Build::Value { .. } if string.inner.len() > MAX_STRING_BYTES => {
                        return Err(Why::TooLong);
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
                    Build::Value { level, .. } if level >= MAX_DEPTH => return Err(Why::TooDeep),
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
            return Err(Why::OtherType);
        }
        Ok(built)
    }

    fn array(&mut self, build: Build<'_>, nesting: usize) -> Result<Built<'a>, Why> {
        if nesting >= MAX_NESTING {
            return Err(Why::TooDeep);
        }
        let element = match build {
            Build::Not => Build::Not,
            Build::Value { level, .. } if level >= MAX_DEPTH => return Err(Why::TooDeep),
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
                        return Err(Why::Mixed);
                    }
                    if elements.len() >= MAX_ELEMENTS {
                        return Err(Why::TooLong);
                    }
                    kind = Some(found);
                    elements.push(value);
                }
                self.cursor.skip_space();
                match (self.cursor.take(b','), self.cursor.peek()) {
                    (true, _) => {}
                    (false, Some(b']')) => break self.cursor.skip(1),
                    (false, _) => return Err(Why::NotJson),
                }
            }
        }
        Ok(match build {
            Build::Not => None,
            Build::Value { .. } => Some((ValueKind::Set, Argument::Set(elements))),
        })
    }

    /// A number, or one of the three words.
    fn scalar(&mut self, build: Build<'_>) -> Result<Built<'a>, Why> {
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
                (_, false) => return Err(Why::NotJson),
            },
        };
        match (build, built) {
            (Build::Not, _) => Ok(None),
            (Build::Value { .. }, Some(built)) => Ok(Some(built)),
            (Build::Value { .. }, None) if word == b"null" => Err(Why::Null),
            (Build::Value { .. }, None) => Err(Why::Number),
        }
    }

    fn string(&mut self) -> Result<QuotedString<'a>, Why> {
        self.cursor.string().filter(|string| string.closed).ok_or(Why::NotJson)
    }
}

/// The text that a string stands for.
fn text<'a>(string: &QuotedString<'a>) -> Result<Cow<'a, str>, Why> {
    match string.spelling {
        Spelling::Plain => {
            std::str::from_utf8(string.inner).map(Cow::Borrowed).map_err(|_| Why::NotJson)
        }
        Spelling::ShortEscapes | Spelling::Other => {
            let quoted = [b"\"", string.inner, b"\""].concat();
            serde_json::from_slice(&quoted).map(Cow::Owned).map_err(|_| Why::NotJson)
        }
    }
}

/// Whole numbers that Cedar has, as JSON writes them. It has no zero below zero.
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

/// A number that stands for a key, whatever its case.
fn caseless(name: &str) -> u64 {
    let mut short = [0; SHORT_KEY];
    if name.is_ascii() {
        if let Some(short) = short.get_mut(..name.len()) {
            short.copy_from_slice(name.as_bytes());
            short.make_ascii_lowercase();
            return xxh3_64(short);
        }
        return xxh3_64(name.to_ascii_lowercase().as_bytes());
    }
    xxh3_64(fold::folded(name).collect::<String>().as_bytes())
}

/// Whether two of them are the same. Two keys that only seem to be are refused: there are 2^64 numbers.
fn has_twins(keys: &mut [u64]) -> bool {
    if keys.len() <= FEW_KEYS {
        let mut rest = &*keys;
        while let Some((first, others)) = rest.split_first() {
            if others.contains(first) {
                return true;
            }
            rest = others;
        }
        return false;
    }
    keys.sort_unstable();
    keys.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
}

#[cfg(test)]
mod tests {
    use cedar_policy::Context;
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::rules::input_types::InputMember;

    /// What is mapped as Cedar has it, all of it wanted.
    fn whole_of(raw: &str) -> Result<Context, String> {
        let whole = Wanted { whole: true, ..Wanted::default() };
        let mapped = mapped(raw.as_bytes(), &whole, &InputMembers::new());
        mapped.map(|members| context(&members)).map_err(|error| error.to_string())
    }

    fn context(args: &ArgumentMembers<'_>) -> Context {
        Context::from_pairs([("args".to_owned(), record(args).unwrap())]).unwrap()
    }

    /// What Cedar's own reader of JSON makes of it.
    fn cedars(raw: &str) -> Context {
        let args: Value = serde_json::from_str(raw).unwrap();
        Context::from_json_value(json!({ "args": args }), None).unwrap()
    }

    #[test]
    fn what_can_be_mapped_is_the_record_that_cedar_reads_itself() {
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
    fn what_cannot_be_mapped_is_named() {
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
            let refused = mapped(raw.as_bytes(), &none, &InputMembers::new()).unwrap_err();
            assert_eq!(refused.why, Why::Twins, "{raw}");
        }
        let apart = r#"{"a":{"x":1},"b":{"X":1}}"#;
        assert!(readable(apart.as_bytes()));
        assert!(readable(format!("{{{many}\"other\":2}}").as_bytes()));
    }

    #[test]
    fn only_what_is_looked_at_has_to_be_mappable() {
        let mut wanted = Wanted::default();
        let whole = Wanted { whole: true, ..Wanted::default() };
        let inner = Wanted { whole: false, members: [("b".into(), whole.clone())].into() };
        wanted.members = [("a".into(), inner), ("there".into(), Wanted::default())].into();
        let raw = br#"{"a":{"b":1,"c":null},"there":null,"z":[1,"x",1.5]}"#;
        let members = mapped(raw, &wanted, &InputMembers::new()).unwrap();
        let expected = cedars(r#"{"a":{"b":1},"there":true}"#);
        assert_eq!(context(&members).get("args"), expected.get("args"));
    }

    #[test]
    fn a_value_of_another_type_than_the_schema_says_is_not_mappable() {
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
            let found = mapped(raw.as_bytes(), &wanted, &of(value));
            assert_eq!(found.is_ok(), good, "{raw}");
            assert!(found.is_ok() || found.unwrap_err().why == Why::OtherType, "{raw}");
        }
    }

    proptest::proptest! {
        #[test]
        fn it_takes_no_text_that_is_no_json(raw in "[{}\\[\\]\":,\\\\ aA1.enulltrue\u{7f}é-]{0,40}") {
            if readable(raw.as_bytes()) {
                proptest::prop_assert!(serde_json::from_str::<serde_json::Value>(&raw).is_ok());
            }
        }
    }
}
