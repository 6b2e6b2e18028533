//! Conformity of listed items with the MCP schema of the client's protocol family. Pure.
//!
//! The tables [`TOOL`], [`RESOURCE`], [`TEMPLATE`] and [`PROMPT`] have a row per member: its type, and whether an item
//! without it is left out. Null counts as absent; an optional member of the wrong type is dropped; an `inputSchema` is
//! normalized as far as its meaning for arguments, which are always an object, stays the same. Strict clients discard a
//! whole list because of one nonconforming member, so one server could otherwise hide the items of all others.
//!
//! All other bytes are kept as the server sent them. Definitions are pinned, reviewed and validated in the server's
//! form; only the listing is repaired.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use super::portable;
use mcpproxy_json::members::{elements, members, string};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

/// Maximum number of repairs described per item; further repairs are only counted.
const MAX_REPAIRS: usize = 8;
/// Maximum length of a server's name within a path, in characters.
const MAX_NAME_CHARS: usize = 64;
/// Maximum depth of an output schema that is wrapped.
const MAX_WRAPPED_DEPTH: usize = 64;

/// Kind of a listed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Tool,
    Resource,
    Template,
    Prompt,
}

/// Type of a member.
#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    Boolean,
    Integer,
    /// Number from 0 to 1.
    Fraction,
    /// ISO 8601 date and time with an offset.
    DateTime,
    /// One of these strings.
    Choice(&'static [&'static str]),
    AnyObject,
    /// Array of strings.
    Texts,
    /// Array of these strings.
    Choices(&'static [&'static str]),
    /// Object with these members.
    Record(&'static [Row]),
    /// Array of objects with these members.
    Records(&'static [Row]),
    InputSchema,
    OutputSchema,
}

/// Consequence of a missing or invalid member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// The member is dropped.
    Optional,
    /// The object that contains the member is left out.
    Required,
}

/// Name of a member, its type, and the consequence if the member is missing or invalid.
type Row = (&'static str, Form, Need);

use Form::{
    AnyObject, Boolean, Choice, Choices, DateTime, Fraction, InputSchema, Integer, OutputSchema,
    Record, Records, Text, Texts,
};
use Need::{Optional, Required};

const TOOL: &[Row] = &[
    ("name", Text, Required),
    ("title", Text, Optional),
    ("description", Text, Optional),
    ("inputSchema", InputSchema, Required),
    ("outputSchema", OutputSchema, Optional),
    ("annotations", Record(TOOL_ANNOTATIONS), Optional),
    ("execution", Record(EXECUTION), Optional),
    ("icons", Records(ICON), Optional),
    ("_meta", AnyObject, Optional),
];

const TOOL_ANNOTATIONS: &[Row] = &[
    ("title", Text, Optional),
    ("readOnlyHint", Boolean, Optional),
    ("destructiveHint", Boolean, Optional),
    ("idempotentHint", Boolean, Optional),
    ("openWorldHint", Boolean, Optional),
];

const EXECUTION: &[Row] =
    &[("taskSupport", Choice(&["forbidden", "optional", "required"]), Optional)];

const ICON: &[Row] = &[
    ("src", Text, Required),
    ("mimeType", Text, Optional),
    ("sizes", Texts, Optional),
    ("theme", Choice(&["light", "dark"]), Optional),
];

const RESOURCE: &[Row] = &[
    ("uri", Text, Required),
    ("name", Text, Required),
    ("title", Text, Optional),
    ("description", Text, Optional),
    ("mimeType", Text, Optional),
    ("size", Integer, Optional),
    ("annotations", Record(CONTENT_ANNOTATIONS), Optional),
    ("icons", Records(ICON), Optional),
    ("_meta", AnyObject, Optional),
];

const TEMPLATE: &[Row] = &[
    ("uriTemplate", Text, Required),
    ("name", Text, Required),
    ("title", Text, Optional),
    ("description", Text, Optional),
    ("mimeType", Text, Optional),
    ("annotations", Record(CONTENT_ANNOTATIONS), Optional),
    ("icons", Records(ICON), Optional),
    ("_meta", AnyObject, Optional),
];

const CONTENT_ANNOTATIONS: &[Row] = &[
    ("audience", Choices(&["user", "assistant"]), Optional),
    ("priority", Fraction, Optional),
    ("lastModified", DateTime, Optional),
];

const PROMPT: &[Row] = &[
    ("name", Text, Required),
    ("title", Text, Optional),
    ("description", Text, Optional),
    ("arguments", Records(PROMPT_ARGUMENT), Optional),
    ("icons", Records(ICON), Optional),
    ("_meta", AnyObject, Optional),
];

const PROMPT_ARGUMENT: &[Row] = &[
    ("name", Text, Required),
    ("title", Text, Optional),
    ("description", Text, Optional),
    ("required", Boolean, Optional),
];

/// A conforming item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conformed {
    /// Repaired JSON; `None` if the server's JSON conforms.
    pub(crate) json: Option<String>,
    /// Descriptions of the repairs, joined; empty if there are none.
    pub(crate) repairs: String,
}

/// Reason why an item cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotListable(pub(crate) String);

/// Returns the item as listed to clients of `family`. `json` is a valid JSON object.
pub(crate) fn conform(
    kind: ItemKind,
    family: ProtocolFamily,
    json: &str,
) -> Result<Conformed, NotListable> {
    let rows = match kind {
        ItemKind::Tool => TOOL,
        ItemKind::Resource => RESOURCE,
        ItemKind::Template => TEMPLATE,
        ItemKind::Prompt => PROMPT,
    };
    let mut repairs = Repairs { family, lines: Vec::new(), count: 0 };
    match repairs.record(rows, json, "") {
        Fit::Same => Ok(Conformed::default()),
        Fit::Replaced(json) => Ok(Conformed { json: Some(json), repairs: repairs.joined() }),
        Fit::Unfit(reason) => Err(NotListable(reason)),
    }
}

/// Returns the item without its `outputSchema`; `None` if it has none.
pub(crate) fn without_output_schema(json: &str) -> Option<String> {
    let mut rest = Object::default();
    let mut found = false;
    for (name, value) in members(json).ok()?.map_while(Result::ok) {
        match &*name {
            "outputSchema" => found = true,
            name => rest.push(name, value),
        }
    }
    found.then(|| rest.end())
}

/// Reason why an input schema accepts no object. The arguments of such a tool are not validated, because the call tool
/// would otherwise refuse all of them.
pub(crate) fn accepts_no_arguments(input_schema: &str) -> Option<String> {
    let mut repairs = Repairs { family: ProtocolFamily::Modern, lines: Vec::new(), count: 0 };
    match repairs.input_schema(input_schema, "inputSchema") {
        Fit::Unfit(reason) => Some(reason),
        Fit::Same | Fit::Replaced(_) => None,
    }
}

/// Result of comparing a value with its type.
enum Fit {
    Same,
    Replaced(String),
    /// The value is not of the type, for this reason.
    Unfit(String),
}

/// JSON object under construction.
#[derive(Default)]
struct Object(String);

impl Object {
    fn push(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        // Infallible: writing to a String.
        let _ = write!(self.0, "{}:{value}", Value::from(name));
    }

    fn end(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

/// Repairs of one item so far.
struct Repairs {
    family: ProtocolFamily,
    lines: Vec<String>,
    count: usize,
}

impl Repairs {
    fn add(&mut self, line: impl FnOnce() -> String) {
        self.count += 1;
        if self.lines.len() < MAX_REPAIRS {
            self.lines.push(line());
        }
    }

    fn joined(self) -> String {
        let more = self.count - self.lines.len();
        let mut text = self.lines.join("; ");
        if more > 0 {
            // Infallible: writing to a String.
            let _ = write!(text, "; and {more} more");
        }
        text
    }

    fn fit(&mut self, form: Form, value: &str, path: &str) -> Fit {
        let unfit = |expected: &str| {
            Fit::Unfit(format!("{path} is {}, expected {expected}", kind_of(value)))
        };
        let when = |is_fit: bool, expected: &str| if is_fit { Fit::Same } else { unfit(expected) };
        match form {
            Text if value.starts_with('"') && string(value).is_none() => {
                Fit::Unfit(format!("{path} is not a valid string"))
            }
            Text => when(string(value).is_some(), "a string"),
            Boolean => when(matches!(value, "true" | "false"), "a boolean"),
            Integer => when(is_integer(value), "an integer"),
            Fraction => when(is_fraction(value), "a number from 0 to 1"),
            DateTime => {
                let is_fit = string(value).is_some_and(|text| is_date_time(&text));
                when(is_fit, "an ISO 8601 date and time with an offset")
            }
            Choice(words) => when(is_one_of(value, words), &format!("one of {}", words.join(", "))),
            AnyObject => when(value.starts_with('{'), "an object"),
            Texts => self.list(value, path, "an array of strings", |it| string(it).is_some()),
            Choices(words) => {
                let expected = format!("an array of {}", words.join(", "));
                self.list(value, path, &expected, |it| is_one_of(it, words))
            }
            Record(rows) => self.record(rows, value, path),
            Records(rows) => self.records(rows, value, path),
            InputSchema => self.input_schema(value, path),
            OutputSchema => self.output_schema(value, path),
        }
    }

    /// Checks an object that has the members of `rows`, and possibly others.
    fn record(&mut self, rows: &[Row], json: &str, path: &str) -> Fit {
        let Ok(found) = members(json) else {
            return Fit::Unfit(format!("{path} is {}, expected an object", kind_of(json)));
        };
        let (mut object, mut differs, mut present) = (Object::default(), false, 0_u32);
        for (name, value) in found.map_while(Result::ok) {
            let Some((at, (_, form, need))) =
                rows.iter().enumerate().find(|(_, row)| row.0 == name)
            else {
                object.push(&name, value);
                continue;
            };
            let path = member_path(path, &name);
            // A null input schema means any object.
            if value == "null" && !matches!(form, InputSchema) {
                differs = true;
                self.add(|| format!("{path} is null"));
                continue;
            }
            match self.fit(*form, value, &path) {
                Fit::Same => object.push(&name, value),
                Fit::Replaced(value) => {
                    differs = true;
                    object.push(&name, &value);
                }
                Fit::Unfit(reason) if *need == Required => return Fit::Unfit(reason),
                Fit::Unfit(reason) => {
                    differs = true;
                    self.add(|| reason);
                    continue;
                }
            }
            present |= 1 << at;
        }
        for (at, (name, form, need)) in rows.iter().enumerate() {
            if *need == Required && present & (1 << at) == 0 {
                let path = member_path(path, name);
                if !matches!(form, InputSchema) {
                    return Fit::Unfit(format!("{path} is missing"));
                }
                differs = true;
                self.add(|| format!("{path} is missing: listed as any object"));
                object.push(name, r#"{"type":"object"}"#);
            }
        }
        if differs { Fit::Replaced(object.end()) } else { Fit::Same }
    }

    /// Checks an array of these objects; other elements are left out.
    fn records(&mut self, rows: &[Row], json: &str, path: &str) -> Fit {
        let Ok(found) = elements(json) else {
            return Fit::Unfit(format!("{path} is {}, expected an array", kind_of(json)));
        };
        let (mut kept, mut differs) = (Vec::new(), false);
        for (at, element) in found.map_while(Result::ok).enumerate() {
            match self.record(rows, element, &format!("{path}[{at}]")) {
                Fit::Same => kept.push(Cow::Borrowed(element)),
                Fit::Replaced(element) => {
                    differs = true;
                    kept.push(Cow::Owned(element));
                }
                Fit::Unfit(reason) => {
                    differs = true;
                    self.add(|| reason);
                }
            }
        }
        if differs { Fit::Replaced(format!("[{}]", kept.join(","))) } else { Fit::Same }
    }

    /// Checks an array whose elements must be `valid`; other elements are left out.
    fn list(
        &mut self,
        json: &str,
        path: &str,
        expected: &str,
        valid: impl Fn(&str) -> bool,
    ) -> Fit {
        let Ok(found) = elements(json) else {
            return Fit::Unfit(format!("{path} is {}, expected {expected}", kind_of(json)));
        };
        let all: Vec<&str> = found.map_while(Result::ok).collect();
        let kept: Vec<&str> = all.iter().copied().filter(|element| valid(element)).collect();
        if kept.len() == all.len() {
            return Fit::Same;
        }
        let odd = all.len() - kept.len();
        self.add(|| format!("{path}: {odd} elements left out, expected {expected}"));
        Fit::Replaced(format!("[{}]", kept.join(",")))
    }

    /// Checks that an input schema states `type: "object"`. Arguments are always an object, so a root that admits
    /// objects and other values keeps its meaning when it is restricted to objects.
    fn input_schema(&mut self, json: &str, path: &str) -> Fit {
        if matches!(json, "null" | "true") {
            self.add(|| format!("{path} is {json}: listed as any object"));
            return Fit::Replaced(r#"{"type":"object"}"#.to_owned());
        }
        let Ok(found) = members(json) else {
            return Fit::Unfit(format!("{path} is {}, expected an object", kind_of(json)));
        };
        let (mut object, mut differs, mut typed) = (Object::default(), false, false);
        for (name, value) in found.map_while(Result::ok) {
            let path = || member_path(path, &name);
            let fit = match &*name {
                "type" => {
                    typed = true;
                    match root_type(value) {
                        RootType::Object => Fit::Same,
                        RootType::Among | RootType::Unstated => {
                            self.add(|| format!("{} does not state \"object\" alone", path()));
                            Fit::Replaced("\"object\"".to_owned())
                        }
                        RootType::Excluded => {
                            return Fit::Unfit(format!(
                                "{} excludes objects, but arguments are always an object",
                                path()
                            ));
                        }
                    }
                }
                "properties" => self.properties(value, &path()),
                "required" => {
                    self.list(value, &path(), "an array of strings", |it| string(it).is_some())
                }
                "$schema" => self.fit(Text, value, &path()),
                _ => Fit::Same,
            };
            match fit {
                Fit::Same => object.push(&name, value),
                Fit::Replaced(value) => {
                    differs = true;
                    object.push(&name, &value);
                }
                Fit::Unfit(reason) => {
                    differs = true;
                    self.add(|| reason);
                }
            }
        }
        if !typed {
            differs = true;
            self.add(|| format!("{path}.type is missing: listed with \"object\""));
            object.push("type", "\"object\"");
        }
        if differs { Fit::Replaced(object.end()) } else { Fit::Same }
    }

    /// Checks the `properties` of a schema: an object of objects. Legacy revisions do not allow boolean schemas there.
    fn properties(&mut self, json: &str, path: &str) -> Fit {
        let Ok(found) = members(json) else {
            return Fit::Unfit(format!("{path} is {}, expected an object", kind_of(json)));
        };
        let (mut object, mut differs) = (Object::default(), false);
        for (name, value) in found.map_while(Result::ok) {
            let other = match value {
                _ if value.starts_with('{') => None,
                "true" | "false" if self.family == ProtocolFamily::Modern => None,
                "false" => Some(r#"{"not":{}}"#),
                _ => Some("{}"),
            };
            if let Some(other) = other {
                differs = true;
                let path = member_path(path, &name);
                self.add(|| format!("{path} is {}: listed as {other}", kind_of(value)));
            }
            object.push(&name, other.unwrap_or(value));
        }
        if differs { Fit::Replaced(object.end()) } else { Fit::Same }
    }

    /// Checks that the revision allows an output schema. Any schema object is allowed, but legacy revisions require an
    /// object root: a schema of other values is wrapped there, in the same way as its values ([`crate::listing`]).
    fn output_schema(&mut self, json: &str, path: &str) -> Fit {
        let Ok(found) = members(json) else {
            return Fit::Unfit(format!("{path} is {}, expected an object", kind_of(json)));
        };
        if let Some(fault) = portable::fault(json) {
            return Fit::Unfit(format!("{path} {fault}"));
        }
        let (mut object, mut differs, mut root) = (Object::default(), false, RootType::Unstated);
        for (name, value) in found.map_while(Result::ok) {
            let path = member_path(path, &name);
            let fit = match &*name {
                // Many clients keep one table of schemas by `$id` for all servers, so the `$id` is removed. No
                // reference uses it.
                "$id" => {
                    differs = true;
                    self.add(|| format!("{path} is not listed"));
                    continue;
                }
                "$schema" => match string(value) {
                    Some(dialect) if is_old_dialect(&dialect) => {
                        Fit::Unfit(format!("{path} is a dialect that clients do not support"))
                    }
                    Some(_) => Fit::Same,
                    None => self.fit(Text, value, &path),
                },
                "type" => {
                    root = root_type(value);
                    Fit::Same
                }
                "properties" if self.family == ProtocolFamily::Legacy => {
                    self.properties(value, &path)
                }
                "required" if self.family == ProtocolFamily::Legacy => {
                    let texts = elements(value).is_ok_and(|all| {
                        all.map_while(Result::ok).all(|element| string(element).is_some())
                    });
                    if texts {
                        Fit::Same
                    } else {
                        Fit::Unfit(format!("{path} is not an array of strings"))
                    }
                }
                _ => Fit::Same,
            };
            match fit {
                Fit::Same => object.push(&name, value),
                Fit::Replaced(value) => {
                    differs = true;
                    object.push(&name, &value);
                }
                Fit::Unfit(reason) => return Fit::Unfit(reason),
            }
        }
        match (self.family, root) {
            (ProtocolFamily::Modern, _) | (ProtocolFamily::Legacy, RootType::Object) => {}
            (ProtocolFamily::Legacy, RootType::Excluded) => {
                let wrapped = wrapped(json);
                self.add(|| format!("{path} has no object root: its values are wrapped"));
                return match wrapped {
                    Some(wrapped) => Fit::Replaced(wrapped),
                    None => Fit::Unfit(format!("{path} has no object root and names resources")),
                };
            }
            (ProtocolFamily::Legacy, RootType::Among | RootType::Unstated) => {
                return Fit::Unfit(format!("{path}.type does not state \"object\""));
            }
        }
        if differs { Fit::Replaced(object.end()) } else { Fit::Same }
    }
}

/// Path of a member for messages, in printable characters.
fn member_path(path: &str, name: &str) -> String {
    let name: String = name.chars().take(MAX_NAME_CHARS).collect();
    let name = name.escape_debug();
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// Types that the root of a schema admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RootType {
    /// Only objects.
    Object,
    /// Objects and other types.
    Among,
    /// No object.
    Excluded,
    /// No type is stated.
    Unstated,
}

fn root_type(value: &str) -> RootType {
    if let Some(word) = string(value) {
        return if word == "object" { RootType::Object } else { RootType::Excluded };
    }
    let Ok(words) = elements(value) else { return RootType::Unstated };
    let words: Vec<_> = words.map_while(Result::ok).filter_map(string).collect();
    match words.iter().any(|word| word == "object") {
        _ if words.is_empty() => RootType::Unstated,
        true => RootType::Among,
        false => RootType::Excluded,
    }
}

/// Whether a dialect is older than draft-06, because keywords such as a boolean `exclusiveMinimum` make clients fail.
fn is_old_dialect(dialect: &str) -> bool {
    let dialect = dialect.trim_end_matches('#');
    ["draft-04/schema", "draft-03/schema"].iter().any(|old| dialect.ends_with(old))
        || dialect.ends_with("json-schema.org/schema")
}

/// Schema of `{"result": VALUE}` for the values of a schema. `None` if the schema is too deep, or declares schema
/// resources, because references would be relative to these.
fn wrapped(json: &str) -> Option<String> {
    let mut dialect = None;
    let mut inner = Object::default();
    for (name, value) in members(json).ok()?.map_while(Result::ok) {
        match &*name {
            "$schema" => dialect = Some(value),
            "$id" => {}
            name => inner.push(name, &rebased_member(name, value, false, 0)?),
        }
    }
    let mut outer = Object::default();
    if let Some(dialect) = dialect {
        outer.push("$schema", dialect);
    }
    outer.push("type", "\"object\"");
    outer.push("properties", &format!(r#"{{"result":{}}}"#, inner.end()));
    outer.push("required", r#"["result"]"#);
    Some(outer.end())
}

/// JSON pointer to the wrapped schema within its wrapper.
const WRAPPED_AT: &str = "#/properties/result";

/// Returns the value of a schema's member with its local references rebased. `is_name` means that the member's name was
/// chosen by the author and is not a keyword.
fn rebased_member<'a>(
    name: &str,
    value: &'a str,
    is_name: bool,
    depth: usize,
) -> Option<Cow<'a, str>> {
    if is_name {
        return rebased(value, false, depth);
    }
    match name {
        "const" | "enum" | "default" | "examples" => Some(Cow::Borrowed(value)),
        "$id" | "id" if string(value).is_some() => None,
        "$recursiveRef" => None,
        "$ref" => match string(value) {
            Some(reference) if reference == "#" || reference.starts_with("#/") => {
                let rest = reference.strip_prefix('#').unwrap_or_default();
                Some(Cow::Owned(Value::from(format!("{WRAPPED_AT}{rest}")).to_string()))
            }
            Some(_) | None => rebased(value, false, depth),
        },
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
            rebased(value, true, depth)
        }
        _ => rebased(value, false, depth),
    }
}

/// Returns any value within a schema with its local references rebased. `of_names` means that the names of its members
/// were chosen by the author.
fn rebased(value: &str, of_names: bool, depth: usize) -> Option<Cow<'_, str>> {
    if depth > MAX_WRAPPED_DEPTH {
        return None;
    }
    if let Ok(found) = members(value) {
        let mut object = Object::default();
        for (name, value) in found.map_while(Result::ok) {
            object.push(&name, &rebased_member(&name, value, of_names, depth + 1)?);
        }
        return Some(Cow::Owned(object.end()));
    }
    let Ok(found) = elements(value) else { return Some(Cow::Borrowed(value)) };
    let all = found.map_while(Result::ok).map(|element| rebased(element, false, depth + 1));
    let all: Option<Vec<_>> = all.collect();
    Some(Cow::Owned(format!("[{}]", all?.join(","))))
}

/// Kind of a JSON value, for messages.
fn kind_of(value: &str) -> &'static str {
    match value.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "another string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        Some(_) | None => "another number",
    }
}

fn is_one_of(value: &str, words: &[&str]) -> bool {
    string(value).is_some_and(|word| words.contains(&&*word))
}

fn is_integer(value: &str) -> bool {
    match serde_json::from_str::<Value>(value) {
        Ok(Value::Number(number)) => {
            number.is_i64()
                || number.is_u64()
                || number.as_f64().is_some_and(|it| it.fract() == 0.0)
        }
        Ok(_) | Err(_) => false,
    }
}

fn is_fraction(value: &str) -> bool {
    let number = serde_json::from_str::<Value>(value).ok().and_then(|value| value.as_f64());
    number.is_some_and(|number| (0.0..=1.0).contains(&number))
}

/// Whether a text has the form `YYYY-MM-DDTHH:MM[:SS[.fraction]](Z|±HH:MM)` and names an existing day.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once('T') else { return false };
    if date.len() != 10 || date.parse::<jiff::civil::Date>().is_err() {
        return false;
    }
    let offset_at = time.rfind(['Z', '+', '-']).unwrap_or(time.len());
    let (clock, offset) = time.split_at(offset_at);
    let two = |text: &str, max: u32| {
        text.len() == 2
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && text.parse::<u32>().is_ok_and(|number| number <= max)
    };
    let hour_and_minute = |text: &str| {
        text.split_once(':').is_some_and(|(hour, minute)| two(hour, 23) && two(minute, 59))
    };
    let is_offset = match offset.as_bytes().first() {
        Some(b'Z') => offset.len() == 1,
        Some(_) => offset.get(1..).is_some_and(hour_and_minute),
        None => false,
    };
    let is_clock = match clock.get(5..) {
        Some("") => true,
        Some(rest) => {
            let (seconds, fraction) = rest.split_once('.').unwrap_or((rest, "0"));
            let is_fraction =
                !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
            seconds.strip_prefix(':').is_some_and(|seconds| two(seconds, 59)) && is_fraction
        }
        None => false,
    };
    is_offset && is_clock && clock.get(..5).is_some_and(hour_and_minute)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Repaired JSON, or the reason why the item is left out.
    fn listed(kind: ItemKind, family: ProtocolFamily, json: &str) -> Result<Value, String> {
        let conformed = conform(kind, family, json).map_err(|reason| reason.0)?;
        assert_eq!(conformed.json.is_none(), conformed.repairs.is_empty(), "{conformed:?}");
        Ok(serde_json::from_str(conformed.json.as_deref().unwrap_or(json)).unwrap())
    }

    #[track_caller]
    fn check(kind: ItemKind, family: ProtocolFamily, json: &str, expected: Value) {
        assert_eq!(listed(kind, family, json), Ok(expected), "{json}");
    }

    const BOTH: [ProtocolFamily; 2] = [ProtocolFamily::Legacy, ProtocolFamily::Modern];

    #[test]
    fn def_6_conforming_items_are_listed_verbatim() {
        for (kind, item) in [
            (
                ItemKind::Tool,
                r#"{ "name":"t" , "title":"","description":"","inputSchema":{"type":"object","properties":{"a":{}},"required":["a"],"$schema":"x"},
                "outputSchema":{"type":"object","properties":{"a":{"type":["string","null"]}}},"annotations":{"readOnlyHint":true,"x":null},
                "icons":[{"src":"data:,","sizes":["any"],"theme":"dark"}],"execution":{"taskSupport":"optional"},"_meta":{"a":null},"own":null}"#,
            ),
            (
                ItemKind::Resource,
                r#"{"uri":"a:b","name":"n","size":5.0,"annotations":{"audience":["user"],"priority":1,"lastModified":"2025-01-12T15:00:58.1Z"}}"#,
            ),
            (ItemKind::Template, r#"{"uriTemplate":"a:{b}","name":"n","mimeType":"text/plain"}"#),
            (ItemKind::Prompt, r#"{"name":"p","arguments":[{"name":"a","required":true}]}"#),
        ] {
            for family in BOTH {
                assert_eq!(conform(kind, family, item), Ok(Conformed::default()), "{item}");
            }
        }
    }

    #[test]
    fn def_6_null_and_wrong_optional_members_are_dropped() {
        let plain = json!({"name": "t", "inputSchema": {"type": "object"}});
        for odd in [
            r#""title":null"#,
            r#""title":7"#,
            r#""description":null"#,
            r#""description":["x"]"#,
            r#""annotations":null"#,
            r#""annotations":[]"#,
            r#""icons":null"#,
            r#""icons":{}"#,
            r#""_meta":null"#,
            r#""_meta":[]"#,
            r#""execution":null"#,
            r#""execution":"x""#,
            r#""outputSchema":null"#,
            r#""outputSchema":5"#,
            r#""outputSchema":[]"#,
            r#""outputSchema":true"#,
            r#""outputSchema":{"type":"object","$schema":"http://json-schema.org/draft-04/schema#"}"#,
            r#""title":null,"title":7"#,
        ] {
            let json = format!(r#"{{"name":"t",{odd},"inputSchema":{{"type":"object"}}}}"#);
            for family in BOTH {
                check(ItemKind::Tool, family, &json, plain.clone());
            }
        }
        let json = r#"{"name":"t","inputSchema":{"type":"object"},"annotations":{"title":null,"readOnlyHint":"yes","openWorldHint":true},
            "icons":[{"src":"a","theme":"blue","sizes":["1x1",7]},{"src":null},7],"execution":{"taskSupport":"maybe"}}"#;
        let expected = json!({"name": "t", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": true},
            "icons": [{"src": "a", "sizes": ["1x1"]}], "execution": {}});
        check(ItemKind::Tool, ProtocolFamily::Legacy, json, expected);
    }

    #[test]
    fn def_6_offered_items_lose_only_their_invalid_members() {
        let resource = json!({"uri": "a:b", "name": "n"});
        for odd in [
            r#""description":null"#,
            r#""mimeType":7"#,
            r#""size":"5""#,
            r#""size":1.5"#,
            r#""size":null"#,
            r#""annotations":null"#,
            r#""icons":7"#,
        ] {
            let json = format!(r#"{{"uri":"a:b",{odd},"name":"n"}}"#);
            check(ItemKind::Resource, ProtocolFamily::Legacy, &json, resource.clone());
        }
        for odd in [
            r#""priority":2"#,
            r#""priority":-0.1"#,
            r#""priority":"1""#,
            r#""lastModified":"yesterday""#,
            r#""lastModified":"2025-02-30T00:00:00Z""#,
            r#""lastModified":"2025-01-12""#,
            r#""lastModified":"2025-01-12T15:00:58""#,
            r#""lastModified":"2025-01-12T25:00:58Z""#,
            r#""audience":"user""#,
        ] {
            let json = format!(r#"{{"uri":"a:b","name":"n","annotations":{{{odd}}}}}"#);
            let expected = json!({"uri": "a:b", "name": "n", "annotations": {}});
            check(ItemKind::Resource, ProtocolFamily::Modern, &json, expected);
        }
        for (arguments, expected) in [
            (r#"[{"name":"a","required":null}]"#, json!([{"name": "a"}])),
            (r#"[{"name":7},{"name":"b","description":{}}]"#, json!([{"name": "b"}])),
        ] {
            let json = format!(r#"{{"name":"p","arguments":{arguments}}}"#);
            check(
                ItemKind::Prompt,
                ProtocolFamily::Legacy,
                &json,
                json!({"name": "p", "arguments": expected}),
            );
        }
        let json = r#"{"name":"p","arguments":null}"#;
        check(ItemKind::Prompt, ProtocolFamily::Legacy, json, json!({"name": "p"}));
    }

    #[test]
    fn def_6_input_schema_gets_an_object_root_if_its_meaning_is_preserved() {
        for (schema, expected) in [
            ("null", json!({"type": "object"})),
            ("true", json!({"type": "object"})),
            ("{}", json!({"type": "object"})),
            (r#"{"type":["object","null"]}"#, json!({"type": "object"})),
            (r#"{"type":null}"#, json!({"type": "object"})),
            (r#"{"anyOf":[{"a":1}]}"#, json!({"anyOf": [{"a": 1}], "type": "object"})),
            (r##"{"$ref":"#/x"}"##, json!({"$ref": "#/x", "type": "object"})),
            (r#"{"type":"object","properties":null}"#, json!({"type": "object"})),
            (r#"{"type":"object","properties":[]}"#, json!({"type": "object"})),
            (
                r#"{"type":"object","properties":{"a":null,"b":7}}"#,
                json!({"type": "object", "properties": {"a": {}, "b": {}}}),
            ),
            (r#"{"type":"object","required":true}"#, json!({"type": "object"})),
            (r#"{"type":"object","required":null}"#, json!({"type": "object"})),
            (
                r#"{"type":"object","required":["a",7]}"#,
                json!({"type": "object", "required": ["a"]}),
            ),
        ] {
            let json = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
            for family in BOTH {
                check(ItemKind::Tool, family, &json, json!({"name": "t", "inputSchema": expected}));
            }
            assert_eq!(accepts_no_arguments(schema), None, "{schema}");
        }
        for family in BOTH {
            let expected = json!({"name": "t", "inputSchema": {"type": "object"}});
            check(ItemKind::Tool, family, r#"{"name":"t"}"#, expected);
        }
    }

    #[test]
    fn def_6_boolean_property_schemas_are_objects_for_legacy_clients() {
        let json =
            r#"{"name":"t","inputSchema":{"type":"object","properties":{"a":true,"b":false}}}"#;
        let properties = json!({"a": {}, "b": {"not": {}}});
        let expected =
            json!({"name": "t", "inputSchema": {"type": "object", "properties": properties}});
        check(ItemKind::Tool, ProtocolFamily::Legacy, json, expected);
        assert_eq!(conform(ItemKind::Tool, ProtocolFamily::Modern, json), Ok(Conformed::default()));
    }

    #[test]
    fn def_6_tool_whose_schema_admits_no_object_is_left_out_with_the_reason() {
        for (schema, why) in [
            ("[]", "inputSchema is an array, expected an object"),
            ("5", "inputSchema is another number, expected an object"),
            ("false", "inputSchema is a boolean, expected an object"),
            (
                r#"{"type":"array"}"#,
                "inputSchema.type excludes objects, but arguments are always an object",
            ),
            (
                r#"{"type":["string","null"]}"#,
                "inputSchema.type excludes objects, but arguments are always an object",
            ),
        ] {
            let json = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
            for family in BOTH {
                assert_eq!(listed(ItemKind::Tool, family, &json), Err(why.to_owned()));
            }
            assert_eq!(accepts_no_arguments(schema).as_deref(), Some(why));
        }
        for (kind, json, why) in [
            (
                ItemKind::Resource,
                r#"{"uri":"a:b","name":7}"#,
                "name is another number, expected a string",
            ),
            (ItemKind::Template, r#"{"name":"n"}"#, "uriTemplate is missing"),
            (ItemKind::Prompt, "{}", "name is missing"),
            (ItemKind::Prompt, r#"{"name":"\ud800"}"#, "name is not a valid string"),
        ] {
            assert_eq!(listed(kind, ProtocolFamily::Legacy, json), Err(why.to_owned()));
        }
    }

    #[test]
    fn def_6_output_schema_without_an_object_root_is_wrapped_or_not_listed_for_legacy_clients() {
        let of = |schema: &str| {
            format!(r#"{{"name":"t","inputSchema":{{"type":"object"}},"outputSchema":{schema}}}"#)
        };
        let shown = |schema: &str| {
            listed(ItemKind::Tool, ProtocolFamily::Legacy, &of(schema)).unwrap()["outputSchema"]
                .clone()
        };
        for schema in [
            "{}",
            r#"{"anyOf":[{"type":"object"}]}"#,
            r#"{"type":["object","array"]}"#,
            r#"{"type":"object","required":true}"#,
        ] {
            assert_eq!(shown(schema), Value::Null, "{schema}");
            let modern = conform(ItemKind::Tool, ProtocolFamily::Modern, &of(schema));
            assert_eq!(modern, Ok(Conformed::default()), "{schema}");
        }
        assert_eq!(
            shown(
                r##"{"$schema":"d","type":"array","items":{"$ref":"#/$defs/properties"},"default":{"$ref":"#/x"},
                "$defs":{"properties":{"properties":{"default":{"anyOf":[{"$ref":"#"},{"$ref":"#a"}]}}}}}"##
            ),
            json!({"$schema": "d", "type": "object", "required": ["result"], "properties": {"result": {
                "type": "array", "items": {"$ref": "#/properties/result/$defs/properties"}, "default": {"$ref": "#/x"},
                "$defs": {"properties": {"properties": {"default": {"anyOf": [
                    {"$ref": "#/properties/result"}, {"$ref": "#a"}]}}}}}}})
        );
        let wrapped = shown(r#"{"type":"array","$id":"x"}"#);
        assert_eq!(wrapped["properties"]["result"], json!({"type": "array"}));
        for family in [ProtocolFamily::Legacy, ProtocolFamily::Modern] {
            let own = of(r#"{"$id":"http://a/b","type":"object"}"#);
            let schema = listed(ItemKind::Tool, family, &own).unwrap()["outputSchema"].clone();
            assert_eq!(schema, json!({"type": "object"}), "other servers may have the same $id");
            let loops = of(r##"{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}"##);
            let listed = listed(ItemKind::Tool, family, &loops).unwrap();
            assert_eq!(listed.get("outputSchema"), None, "clients cannot compile it");
        }
        let deep = format!(r#"{{"type":"array","x":{}{}}}"#, "[".repeat(100), "]".repeat(100));
        assert_eq!(shown(&deep), Value::Null);
    }

    #[test]
    fn repairs_are_described_and_bounded() {
        let many: Vec<_> = (0..20).map(|at| format!(r#""p{at}":null"#)).collect();
        let json = format!(
            r#"{{"name":"t","description":null,"inputSchema":{{"type":"object","properties":{{{}}}}}}}"#,
            many.join(",")
        );
        let repairs = conform(ItemKind::Tool, ProtocolFamily::Legacy, &json).unwrap().repairs;
        let start = "description is null; inputSchema.properties.p0 is null: listed as {}; ";
        assert!(repairs.starts_with(start) && repairs.ends_with("; and 13 more"), "{repairs}");
    }

    #[test]
    fn only_the_output_schema_is_removed() {
        let json = r#"{"a":1.0,"outputSchema":{"type":"object"},"b":[ ]}"#;
        assert_eq!(without_output_schema(json).unwrap(), r#"{"a":1.0,"b":[ ]}"#);
        assert_eq!(without_output_schema("{}"), None);
    }
}
