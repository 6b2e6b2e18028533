//! One section from its JSON value: everything that is wrong in it, where, and which of its keys are not
//! known.
//!
//! What is said of a value of the wrong type does not hold the value, wherever it is told later: it may be a secret in
//! the wrong place.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::findings::Findings;
use super::misspelt_keys::unknown_key;
use super::problem::{KeyPath, PathStep};

/// Reads one section; keys that it does not know become warnings.
pub(super) fn read<T: DeserializeOwned + Default>(
    value: &Value,
    at: &KeyPath,
    findings: &mut Findings<'_>,
) -> T {
    let (section, unknown) = read_quietly(value, at, findings);
    for steps in unknown {
        unknown_key(&at.join(steps), findings);
    }
    section
}

/// Reads one section; also returns the paths, within it, of keys that it does not know.
///
/// A value that is wrong is told, and counts as absent: so all of them are found, since every key
/// has a default.
pub(super) fn read_quietly<T: DeserializeOwned + Default>(
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

/// Takes the value at `steps` out. False if there is none.
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

/// What is wrong, without the value, and with the types by the names that JSON has for them.
fn plain(error: &impl fmt::Display) -> String {
    const NAMES: [(&str, &str); 7] = [
        ("expected a sequence", "expected an array"),
        ("expected a map", "expected an object"),
        ("expected struct ", "expected an object: "),
        ("expected a boolean", "expected true or false"),
        ("expected u64", "expected a whole number"),
        ("expected u32", "expected a whole number"),
        ("expected usize", "expected a whole number"),
    ];
    let text = without_value(&error.to_string());
    match NAMES.iter().find(|(theirs, _)| text.contains(theirs)) {
        Some((theirs, plain)) => text.replacen(theirs, plain, 1),
        None => text,
    }
}

/// The words of serde about a value of the wrong type, without the value.
fn without_value(text: &str) -> String {
    const KINDS: [(&str, &str, &str); 3] = [
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

/// `value` if it is within its bounds.
pub(super) fn within<T: PartialOrd + fmt::Display, E: serde::de::Error>(
    value: T,
    bounds: &std::ops::RangeInclusive<T>,
) -> Result<T, E> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(E::custom(format_args!("must be {} to {}, is {value}", bounds.start(), bounds.end())))
}

#[cfg(test)]
mod tests {
    use crate::config::{Flags, parse};

    fn told(text: &str) -> (String, String) {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let problems = parse(text, &|_| None, &flags).unwrap_err();
        (problems[0].key.clone(), problems[0].to_string())
    }

    #[test]
    fn a_value_of_the_wrong_type_is_not_repeated() {
        let text = r#"{"mcpServers": {"s": {"command": "x", "env": "TOKEN=s3cret\", expected"}}}"#;
        let (key, problem) = told(text);
        assert_eq!(key, "mcpServers.s.env");
        let expected = "mcpServers.s.env: invalid type: a string, expected an object";
        assert!(problem.ends_with(expected), "{problem}");
        for (value, kind) in
            [("90210473", "a number"), ("90210473.5", "a number"), ("-9.0210473e7", "a number")]
        {
            let entry = format!(r#"{{"command": "x", "env": {{"PIN": {value}}}}}"#);
            let (key, problem) = told(&format!(r#"{{"mcpServers": {{"s": {entry}}}}}"#));
            assert_eq!(key, "mcpServers.s.env.PIN");
            assert!(problem.contains(kind) && !problem.contains("90210473"), "{problem}");
        }
    }
}
