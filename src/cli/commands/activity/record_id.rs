//! Which record is meant: a whole id, the number of the record in this log, or `last`.
//!
//! The first ten characters of an id are the time, and the last ones are the same in all ids of a log, so that neither its
//! beginning nor its end tells records apart. Its number (`seq`) does, and no two records ever have the same.

use serde_json::Value;

use super::row::folded;
use crate::activity::Id;
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::parse;
use crate::cli::suggest::did_you_mean;

/// The newest of what `activity list` shows as rows.
const LAST: &str = "last";
/// Digits of the highest number: 48 bits.
const DIGITS: usize = 15;
/// Records that are looked through at a time.
const PAGE: u64 = 20;
/// How often it is looked again where numbers are missing, or records come meanwhile.
const TRIES: usize = 8;

/// The whole id of what was typed.
pub(super) async fn resolve(typed: &str, backend: &Backend) -> Result<String, CommandError> {
    if typed == LAST {
        let newest = page(backend, 0).await?;
        let newest = folded(&newest).first().map(|(record, _)| text(record, "/id").into_owned());
        return newest.ok_or_else(|| CommandError::failed("there is no activity yet"));
    }
    let is_number = typed.len() <= DIGITS && typed.bytes().all(|byte| byte.is_ascii_digit());
    match typed.parse() {
        Ok(number) if is_number => by_number(number, backend).await,
        Ok(_) | Err(_) if Id::parse(typed).is_some() => Ok(typed.to_owned()),
        Ok(_) | Err(_) => Err(CommandError::failed(no_id(typed))),
    }
}

/// What is told of a word that means no record.
fn no_id(typed: &str) -> String {
    format!(
        "Activity not found: `last`, a number or a whole id means a record, as `mcpproxy activity \
         list` shows them{}",
        did_you_mean(typed, [LAST].into_iter())
    )
}

async fn by_number(number: u64, backend: &Backend) -> Result<String, CommandError> {
    let mut offset = 0;
    for _ in 0..TRIES {
        let page = page(backend, offset).await?;
        match place(&page, number) {
            Place::Here(id) => return Ok(id),
            Place::Older(by) => offset = offset.saturating_add(by),
            Place::Newer(by) if offset > 0 => offset = offset.saturating_sub(by),
            Place::Newer(_) | Place::Nowhere => break,
        }
    }
    Err(CommandError::failed(format!("there is no record {number}, or no longer")))
}

/// Where a record of a number is, seen from a page.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Here(String),
    /// At least so many records further.
    Older(u64),
    Newer(u64),
    /// It would be on the page.
    Nowhere,
}

fn place(page: &Value, number: u64) -> Place {
    let records = list(page, "/activities");
    let number_of = |record: &Value| record.get("seq").and_then(Value::as_u64);
    let (Some(newest), Some(oldest)) =
        (records.first().and_then(number_of), records.last().and_then(number_of))
    else {
        return Place::Nowhere;
    };
    if let Some(found) = records.iter().find(|record| number_of(record) == Some(number)) {
        return Place::Here(text(found, "/id").into_owned());
    }
    match number {
        number if number > newest => Place::Newer(number - newest),
        // Where numbers are missing this is too far, and the next page says so.
        number if number < oldest => Place::Older(newest - number),
        _ => Place::Nowhere,
    }
}

/// Records, newest first, behind so many.
async fn page(backend: &Backend, offset: u64) -> Result<Value, CommandError> {
    let (limit, offset) = (PAGE.to_string(), offset.to_string());
    let query =
        [("limit", Some(&*limit)), ("offset", Some(&*offset)), ("exclude_payloads", Some("true"))];
    parse(backend.get(&target(&["activity"], &query)).await?.json()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_means_no_record_is_told_how_one_is_meant() {
        let told = no_id("lastt");
        assert!(told.ends_with("shows them: did you mean last?"), "{told}");
        assert!(
            no_id("x7")
                .ends_with("a whole id means a record, as `mcpproxy activity list` shows them")
        );
    }

    #[test]
    fn a_number_is_found_from_any_page() {
        let page = |numbers: &[u64]| {
            let records =
                numbers.iter().map(|seq| serde_json::json!({"seq": seq, "id": seq.to_string()}));
            serde_json::json!({"activities": records.collect::<Vec<_>>()})
        };
        let here = page(&[9, 8, 6, 5]);
        assert_eq!(place(&here, 8), Place::Here("8".into()));
        assert_eq!(place(&here, 7), Place::Nowhere);
        assert_eq!(place(&here, 2), Place::Older(7));
        assert_eq!(place(&here, 11), Place::Newer(2));
        assert_eq!(place(&page(&[]), 1), Place::Nowhere);
    }
}
