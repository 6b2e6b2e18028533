//! What `format` means, once for both engines.
//!
//! boon asks the tape engine's crate about each format, which follows the specifications closer;
//! so a format is never what the engines disagree about. Deliberately knows no other keyword.

use std::collections::HashMap;
use std::error::Error;
use std::sync::LazyLock;

use boon::{Draft, Format};
use jsonschema::Validator;
use serde_json::{Value, json};

/// The name that `regex` has for boon, which has a meaning of its own for it that cannot be
/// replaced.
pub(super) const REGEX: &str = "ecmascript-regex";

const DRAFTS: [Draft; 5] = [Draft::V4, Draft::V6, Draft::V7, Draft::V2019_09, Draft::V2020_12];

type Table = Vec<Format>;

macro_rules! table {
    ($draft:path, $($name:literal)*) => {
        vec![$(Format { name: $name, func: |value| ask($draft, $name, value) }),*]
    };
}

macro_rules! known {
    ($draft:path) => {
        table!($draft,
            "ecmascript-regex" "ipv4" "ipv6" "hostname" "idn-hostname" "email" "idn-email" "date"
            "time" "date-time" "duration" "period" "json-pointer" "relative-json-pointer" "uuid"
            "uri" "iri" "uri-reference" "iri-reference" "uri-template")
    };
}

/// The formats as `draft` has them, for boon.
pub(super) fn asserted(draft: Draft) -> Table {
    match draft {
        Draft::V4 => known!(Draft::V4),
        Draft::V6 => known!(Draft::V6),
        Draft::V7 => known!(Draft::V7),
        Draft::V2019_09 => known!(Draft::V2019_09),
        // The enum is non-exhaustive: an unknown draft is treated like the newest known one.
        _ => known!(Draft::V2020_12),
    }
}

/// The same formats, never asserted: up to draft 7 boon would assert them by itself.
pub(super) fn annotated() -> Table {
    let mut table = known!(Draft::V2020_12);
    table.iter_mut().for_each(|format| format.func = |_| Ok(()));
    table
}

/// The dialect for jsonschema.
pub(super) fn same_draft(draft: Draft) -> jsonschema::Draft {
    match draft {
        Draft::V4 => jsonschema::Draft::Draft4,
        Draft::V6 => jsonschema::Draft::Draft6,
        Draft::V7 => jsonschema::Draft::Draft7,
        Draft::V2019_09 => jsonschema::Draft::Draft201909,
        _ => jsonschema::Draft::Draft202012,
    }
}

fn ask(draft: Draft, name: &'static str, value: &Value) -> Result<(), Box<dyn Error>> {
    static VALIDATORS: LazyLock<HashMap<(Draft, &str), Validator>> = LazyLock::new(|| {
        let all = DRAFTS.into_iter().flat_map(|draft| {
            asserted(draft).into_iter().filter_map(move |format| {
                let meant = if format.name == REGEX { "regex" } else { format.name };
                let options = jsonschema::options()
                    .with_draft(same_draft(draft))
                    .should_validate_formats(true);
                let validator = options.build(&json!({ "format": meant })).ok()?;
                Some(((draft, format.name), validator))
            })
        });
        all.collect()
    });
    match VALIDATORS.get(&(draft, name)) {
        Some(validator) if !validator.is_valid(value) => Err("not of this format".into()),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_asserted_in_every_draft_that_has_it() {
        for draft in DRAFTS {
            let formats = asserted(draft);
            let email = formats.iter().find(|format| format.name == "email").unwrap();
            assert!((email.func)(&json!("a@b.example")).is_ok());
            assert!((email.func)(&json!("nobody")).is_err());
            assert!((email.func)(&json!(1)).is_ok());
        }
        assert!(annotated().iter().all(|format| (format.func)(&json!("\u{1}")).is_ok()));
    }
}
