//! Deserializes one section and collects all its errors and unknown keys, with suggestions for misspelled ones.
//!
//! Error messages never contain the value, which may be a secret in the wrong place. The set of known keys is derived
//! from the sections' own `Deserialize` ([`keys_of`]).

use crate::document::Findings;
use crate::problem::{KeyPath, PathStep};
use crate::sections::{SERVERS_KEY, TopLevel};
use mcpproxy_catalog::ServerSettings;
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_upstream as upstream;
use serde::de::value::{Error, MapDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::iter::once;
use std::sync::LazyLock;

/// Reads one section; unknown keys become warnings.
pub(super) fn read<T: DeserializeOwned + Default>(
    value: &Value,
    at: &KeyPath,
    findings: &mut Findings<'_>,
) -> T {
    let (section, unknown) = read_with_unknown_keys(value, at, findings);
    for steps in unknown {
        unknown_key(&at.join(steps), findings);
    }
    section
}

/// Reads one section; also returns the paths of unknown keys within it. Invalid values are reported and treated as
/// absent, so that one pass finds all of them. This works because every key has a default.
pub(super) fn read_with_unknown_keys<T: DeserializeOwned + Default>(
    value: &Value,
    at: &KeyPath,
    findings: &mut Findings<'_>,
) -> (T, Vec<Vec<PathStep>>) {
    let mut rest = None;
    loop {
        let value = rest.as_ref().unwrap_or(value);
        let mut unknown = Vec::new();
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
        let read = serde_ignored::deserialize(tracked, |path| unknown.push(steps_of(&path)));
        let error = match read {
            Ok(section) => return (section, unknown),
            Err(error) => error,
        };
        let steps = track.path().iter().map_while(step).collect::<Vec<_>>();
        findings.error(&at.join(steps.iter().cloned()), plain(&error));
        let mut without = value.clone();
        if findings.is_full() || !remove(&mut without, &steps) {
            return (T::default(), Vec::new());
        }
        rest = Some(without);
    }
}

fn step(segment: &serde_path_to_error::Segment) -> Option<PathStep> {
    match segment {
        serde_path_to_error::Segment::Seq { index } => Some(PathStep::Element(*index)),
        serde_path_to_error::Segment::Map { key } => Some(PathStep::Key(key.clone())),
        serde_path_to_error::Segment::Enum { .. } | serde_path_to_error::Segment::Unknown => None,
    }
}

fn steps_of(path: &serde_ignored::Path<'_>) -> Vec<PathStep> {
    use serde_ignored::Path;
    let below = |parent, step| {
        let mut steps = steps_of(parent);
        steps.push(step);
        steps
    };
    match path {
        Path::Root => Vec::new(),
        Path::Seq { parent, index } => below(parent, PathStep::Element(*index)),
        Path::Map { parent, key } => below(parent, PathStep::Key(key.clone())),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => steps_of(parent),
    }
}

/// Removes the value at `steps`; returns false if there is none.
fn remove(value: &mut Value, steps: &[PathStep]) -> bool {
    match (value, steps) {
        (Value::Object(map), [PathStep::Key(key)]) => map.remove(key).is_some(),
        (Value::Array(list), [PathStep::Element(at)]) if *at < list.len() => {
            list.remove(*at);
            true
        }
        (Value::Object(map), [PathStep::Key(key), rest @ ..]) => {
            map.get_mut(key).is_some_and(|value| remove(value, rest))
        }
        (Value::Array(list), [PathStep::Element(at), rest @ ..]) => {
            list.get_mut(*at).is_some_and(|value| remove(value, rest))
        }
        (_, _) => false,
    }
}

/// Rewrites an error of serde: without the value, which may be secret, and with the type names of JSON.
fn plain(error: &impl fmt::Display) -> String {
    const NAMES: [(&str, &str); 6] = [
        ("expected a sequence", "expected an array"),
        ("expected a map", "expected an object"),
        ("expected a boolean", "expected true or false"),
        ("expected u64", "expected a whole number of at least 0"),
        ("expected u32", "expected a whole number of at least 0"),
        ("expected usize", "expected a whole number of at least 0"),
    ];
    let text = suggesting(without_type(without_value(&error.to_string())));
    match NAMES.iter().find(|(serde_name, _)| text.contains(serde_name)) {
        Some((serde_name, plain)) => text.replacen(serde_name, plain, 1),
        None => text,
    }
}

/// Replaces the name of a Rust type in serde's message about a wrong type.
fn without_type(text: String) -> String {
    const STRUCT: &str = "expected struct ";
    let Some((before, after)) = text.split_once(STRUCT) else { return text };
    let end = after.find(|char: char| !char.is_alphanumeric()).unwrap_or(after.len());
    format!("{before}expected an object{}", after.get(end..).unwrap_or_default())
}

/// Adds the most similar of the expected words to serde's message about an unknown one.
fn suggesting(text: String) -> String {
    let words: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    match words.split_first() {
        Some((typed, known)) if text.contains("unknown variant `") => {
            match nearest(typed, known.iter().copied()) {
                Some(meant) => format!("{text}: did you mean `{meant}`?"),
                None => text,
            }
        }
        _ => text,
    }
}

/// Removes the value from serde's message about a wrong type.
fn without_value(text: &str) -> String {
    const KINDS: [(&str, &str, &str); 4] = [
        // The sign is not secret, and without it the message would not say what is wrong.
        (": integer `-", "`, expected", "a negative number"),
        (": string \"", "\", expected", "a string"),
        (": integer `", "`, expected", "a number"),
        (": floating point `", "`, expected", "a number"),
    ];
    let cut = |(begins, ends, kind): &(&str, &str, &str)| {
        let (from, to) = (text.find(begins)?, text.rfind(ends)?);
        let (before, after) = (text.get(..from)?, text.get(to + 1..)?);
        (from < to).then(|| format!("{before}: {kind}{after}"))
    };
    KINDS.iter().find_map(cut).unwrap_or_else(|| text.to_owned())
}

/// Names of all keys that any section reads, derived from the sections' own `Deserialize`. Misspelled keys are compared with
/// them, and values under other names are never shown.
pub(super) static KNOWN_KEYS: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let paths = [keys_of::<TopLevel>(), keys_of::<upstream::Config>(), keys_of::<ServerSettings>()];
    let mut keys: BTreeSet<&str> = paths.iter().flatten().flatten().copied().collect();
    keys.insert(SERVERS_KEY);
    // `type` is an alias of `protocol`; only `protocol` is suggested.
    keys.remove("type");
    keys
});

/// Maximum number of sections that a warning about a misplaced key names.
const MAX_HOMES: usize = 3;

/// Keys that restrict calls. A misspelled one is an error, because the calls would be allowed.
const RESTRICTING_KEYS: [&str; 6] = [
    "require_mcp_auth",
    "policy",
    "intent_declaration",
    "output_validation",
    "capabilities",
    "approval",
];

/// Warns of an unknown key. Suggests the most similar known key or, if this one is known elsewhere, the sections that read it.
/// If the suggestion is one of the [`RESTRICTING_KEYS`], the unknown key is an error.
pub(super) fn unknown_key(path: &KeyPath, findings: &mut Findings<'_>) {
    let key = match path.0.last() {
        Some(PathStep::Key(key)) => key.as_str(),
        Some(PathStep::Element(_)) | None => "",
    };
    let suggestion = if KNOWN_KEYS.contains(key) {
        let homes = homes_of(key);
        (1..=MAX_HOMES).contains(&homes.len()).then(|| format!("a key of {}", homes.join(" or ")))
    } else {
        let nearest = nearest(key, KNOWN_KEYS.iter().copied());
        if let Some(meant) = nearest.filter(|meant| RESTRICTING_KEYS.contains(meant)) {
            return findings.misspelled(path, meant);
        }
        nearest.map(|key| format!("did you mean '{key}'?"))
    };
    findings.unknown(path, suggestion.as_deref());
}

/// Sections that read `key`, as a warning names them; of nested ones only the outermost.
fn homes_of(key: &str) -> Vec<String> {
    const OF_SERVER: &str = "a server, mcpServers.NAME";
    let sections = [
        (keys_of::<TopLevel>(), "the top level"),
        (keys_of::<upstream::Config>(), OF_SERVER),
        (keys_of::<ServerSettings>(), OF_SERVER),
    ];
    let places = || {
        let paths =
            sections.iter().flat_map(|(paths, root)| paths.iter().map(move |path| (path, root)));
        paths.filter(|(path, _)| path.last() == Some(&key))
    };
    let depth = places().map(|(path, _)| path.len()).min();
    let mut homes = Vec::new();
    for (path, root) in places().filter(|(path, _)| Some(path.len()) == depth) {
        let home = match path.iter().rev().nth(1) {
            Some(section) => format!("'{section}'"),
            None => (*root).to_owned(),
        };
        if !homes.contains(&home) {
            homes.push(home);
        }
    }
    homes
}

/// Deserializer that offers a single key at `path` and fails at its value; it records the field names of the struct
/// that is requested there.
struct Probe<'a> {
    path: &'a [&'static str],
    fields: &'a Cell<&'static [&'static str]>,
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no value"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(MapDeserializer::new(once(("*", self))))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Some((key, path)) = self.path.split_first() else {
            self.fields.set(fields);
            return self.deserialize_any(visitor);
        };
        visitor.visit_map(MapDeserializer::new(once((*key, Self { path, ..self }))))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct enum identifier ignored_any
    }
}

impl IntoDeserializer<'_> for Probe<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Paths of the keys that `T` reads, at any depth. Maps with arbitrary keys are skipped.
pub(super) fn keys_of<T: DeserializeOwned>() -> BTreeSet<Vec<&'static str>> {
    let mut keys = BTreeSet::new();
    let mut paths = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        let fields = Cell::new(&[][..]);
        // The probe always fails; only the requested fields matter.
        let _ = T::deserialize(Probe { path: &path, fields: &fields });
        let below = fields.get().iter().map(|field| [&path[..], &[*field]].concat());
        let below: Vec<_> = below.collect();
        keys.extend(below.iter().cloned());
        paths.extend(below);
    }
    keys
}

#[cfg(test)]
mod tests {
    use crate::{Flags, parse};

    fn first_problem(text: &str) -> (String, String) {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let problems = parse(text, &|_| None, &flags).unwrap_err();
        (problems[0].key.clone(), problems[0].to_string())
    }

    #[test]
    fn type_errors_do_not_contain_the_value() {
        let text = r#"{"mcpServers": {"s": {"command": "x", "env": "TOKEN=s3cret\", expected"}}}"#;
        let (key, problem) = first_problem(text);
        assert_eq!(key, "mcpServers.s.env");
        let expected = "mcpServers.s.env: invalid type: a string, expected an object";
        assert!(problem.ends_with(expected), "{problem}");
        for (value, kind) in
            [("90210473", "a number"), ("90210473.5", "a number"), ("-9.0210473e7", "a number")]
        {
            let entry = format!(r#"{{"command": "x", "env": {{"PIN": {value}}}}}"#);
            let (key, problem) = first_problem(&format!(r#"{{"mcpServers": {{"s": {entry}}}}}"#));
            assert_eq!(key, "mcpServers.s.env.PIN");
            assert!(problem.contains(kind) && !problem.contains("90210473"), "{problem}");
        }
    }
}
