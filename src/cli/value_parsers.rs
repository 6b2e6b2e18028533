//! The values of flags: durations, points in time, a tool's arguments.
//!
//! Pure but for [`Arguments::read`], which reads stdin or a file. The clock is an argument.

use std::io::Read;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::value::RawValue;

/// Most bytes of arguments read from stdin or a file.
const MAX_ARGUMENT_BYTES: u64 = 64 * 1024 * 1024;

/// A duration above zero, like `30s`, `2m` or `1h30m`.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match text.parse::<SignedDuration>().map(Duration::try_from) {
        Ok(Ok(duration)) if !duration.is_zero() => Ok(duration),
        _ => Err("expected a duration above zero, like 30s, 2m or 1h30m".to_owned()),
    }
}

/// A duration above zero, also in days, like `30d`, `12h` or `90m`.
pub(super) fn days(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 60 * 60;
    let whole = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    match whole.map(|days| days.checked_mul(DAY)) {
        Some(Some(seconds)) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        Some(_) => Err("expected a duration above zero, like 30d, 12h or 90m".to_owned()),
        None => timeout(text)
            .map_err(|_| "expected a duration above zero, like 30d, 12h or 90m".to_owned()),
    }
}

/// A point in time: RFC 3339, or a duration before `now`. Comes back as RFC 3339.
pub(super) fn moment(flag: &str, text: &str, now: Timestamp) -> Result<String, String> {
    let wrong = || format!("{flag} '{text}': expected RFC 3339 like {now:.0}, or an age like 2h");
    let time = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => {
            let age: SignedDuration = text.parse().map_err(|_| wrong())?;
            if age.is_negative() {
                return Err(wrong());
            }
            now.checked_sub(age).map_err(|_| wrong())?
        }
    };
    Ok(time.to_string())
}

/// A tool's arguments: a JSON object, its bytes as the user wrote them.
#[derive(Debug)]
pub(super) struct Arguments(Box<RawValue>);

impl Arguments {
    /// `-` reads stdin, `@FILE` the file, anything else is the JSON itself.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix('@')) {
            ("-", _) => from_reader("stdin", std::io::stdin().lock()),
            (_, Some(path)) => {
                let file = std::fs::File::open(path)
                    .map_err(|error| format!("cannot read --args @{path}: {error}"))?;
                from_reader(path, file)
            }
            (json, None) => Self::parse(json.to_owned()),
        }
    }

    fn parse(json: String) -> Result<Self, String> {
        let wrong = |why: &str| format!("--args is not a JSON object: {why}");
        let raw = RawValue::from_string(json).map_err(|error| wrong(&error.to_string()))?;
        match raw.get().trim_start().starts_with('{') {
            true => Ok(Self(raw)),
            false => Err(wrong("it must look like '{\"key\": \"value\"}'")),
        }
    }

    /// The object's bytes.
    pub(super) fn raw(&self) -> &RawValue {
        &self.0
    }
}

fn from_reader(name: &str, reader: impl Read) -> Result<Arguments, String> {
    let mut text = String::new();
    let read = reader.take(MAX_ARGUMENT_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| format!("cannot read --args from {name}: {error}"))? as u64 {
        0..=MAX_ARGUMENT_BYTES => Arguments::parse(text),
        _ => Err(format!("--args from {name} is over {MAX_ARGUMENT_BYTES} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        assert_eq!(timeout("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(timeout("1h30m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "0s", "-1s", "30", "soon"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn moments_are_absolute_or_relative() {
        let now: Timestamp = "2026-01-02T12:00:00Z".parse().unwrap();
        let at = |text| moment("--since", text, now);
        assert_eq!(at("2h").unwrap(), "2026-01-02T10:00:00Z");
        assert_eq!(at("2026-01-01T00:00:00+02:00").unwrap(), "2025-12-31T22:00:00Z");
        for bad in ["yesterday", "-2h", "2026-13-01T00:00:00Z", ""] {
            let error = at(bad).unwrap_err();
            assert!(error.starts_with(&format!("--since '{bad}'")), "{error}");
        }
    }

    #[test]
    fn arguments_keep_their_bytes() {
        let text = "{ \"n\": 1.10, \"big\": 123456789012345678901234567890 }";
        assert_eq!(Arguments::read(text).unwrap().raw().get(), text);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let typed = format!("@{}", file.path().display());
        assert_eq!(Arguments::read(&typed).unwrap().raw().get(), text);
    }

    #[test]
    fn fr_005_arguments_are_an_object() {
        for bad in ["[1]", "1", "\"{}\"", "null", "{", "{} {}", "", "@/nonexistent/file"] {
            assert!(Arguments::read(bad).is_err(), "{bad}");
        }
    }
}
