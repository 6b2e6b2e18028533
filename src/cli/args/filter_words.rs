//! Words of the record filters: `--type`, `--status`, `--intent-type` and `--tool`.

use mcpproxy_activity::{Status, Type};
use mcpproxy_policy::intent::Operation;
use mcpproxy_runtime::nearest::nearest;

/// Word of `--status` for the two statuses of refused calls.
const REFUSED: &str = "refused";

/// Checks the value of `--tool` as a filter.
pub(super) fn tool_filter(text: &str) -> Result<String, String> {
    match text.is_empty() || text.ends_with(':') || text.starts_with(':') {
        true => Err("expected TOOL or SERVER:TOOL".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Checks the words of `--intent-type`.
pub(super) fn intent_types(text: &str) -> Result<String, String> {
    let known: Vec<_> = Operation::ALL.iter().map(|it| it.as_str()).collect();
    // The short word of the column.
    let words = text.split(',').map(|word| if word == "destr" { "destructive" } else { word });
    let words: Vec<_> = words.collect();
    match words.iter().find(|word| !known.contains(word)) {
        None => Ok(words.join(",")),
        Some(word) => Err(expected(word, &known)),
    }
}

/// Checks the words of `--type`.
pub(super) fn kinds(text: &str) -> Result<String, String> {
    let known: Vec<_> = Type::ALL.iter().map(|it| it.as_str()).collect();
    match text.split(',').find(|word| !known.contains(word)) {
        None => Ok(text.to_owned()),
        Some(word) => Err(expected(word, &known)),
    }
}

/// Error for a word that is none of the `known` ones, with a suggestion.
fn expected(word: &str, known: &[&str]) -> String {
    let suggestion = match nearest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean {meant}? "),
        None => String::new(),
    };
    format!("{suggestion}expected one of {}", known.join(", "))
}

/// Words of `--status`.
pub(crate) fn status_words() -> impl Iterator<Item = &'static str> {
    std::iter::once(REFUSED).chain(Status::ALL.iter().map(|it| it.as_str()))
}

/// Reads `--status`, in which [`REFUSED`] is also accepted. The error for an unknown word suggests the
/// most similar one and lists all.
pub(super) fn statuses(text: &str) -> Result<String, String> {
    let known: Vec<_> = status_words().collect();
    let mut statuses = Vec::new();
    for word in text.split(',') {
        match word {
            REFUSED => statuses.extend([Status::Rejected, Status::Blocked].map(Status::as_str)),
            "waiting" | "pending" => {
                return Err("`mcpproxy approvals list` lists the calls that wait".to_owned());
            }
            word if known.contains(&word) => statuses.push(word),
            word => return Err(expected(word, &known)),
        }
    }
    Ok(statuses.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_refused_is_an_alias_and_waiting_names_the_approvals_command() {
        assert_eq!(statuses("refused"), Ok("rejected,blocked".to_owned()));
        assert_eq!(statuses("error,refused"), Ok("error,rejected,blocked".to_owned()));
        assert!(statuses("success,waiting").unwrap_err().contains("mcpproxy approvals list"));
    }

    #[test]
    fn unknown_status_error_suggests_a_word_and_lists_all() {
        for (typed, meant) in [
            ("refuse", "refused"),
            ("error,reject", "rejected"),
            ("sucess", "success"),
            ("block", "blocked"),
        ] {
            let error = statuses(typed).unwrap_err();
            let suggestion = format!("did you mean {meant}? expected one of ");
            let words = error.strip_prefix(&suggestion).unwrap_or_default();
            assert_eq!(words.split(", ").count(), 1 + Status::ALL.len(), "{typed}: {error}");
            for word in words.split(", ") {
                assert!(statuses(word).is_ok(), "{word}");
            }
        }
        let long = statuses(&"x".repeat(10_000)).unwrap_err();
        assert!(long.starts_with("expected one of refused, success"), "{long}");
    }
}
