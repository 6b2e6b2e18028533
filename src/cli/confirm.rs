//! A question to the person at the terminal, before a file is changed.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::error::CommandError;
use super::output;

/// Most bytes of an answer that are read.
const ANSWER_BYTES: u64 = 1024;

/// Shows what would be done and asks. With `yes` nobody is asked; without a terminal nobody can be.
pub(super) fn confirm(shown: &str, question: &str, yes: bool) -> Result<bool, CommandError> {
    // stdout is for the outcome.
    let mut stderr = io::stderr();
    let _ = writeln!(stderr, "{}", shown.trim_end());
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        let words = "nobody can be asked: add --yes to go on, or --dry-run to only look";
        return Err(CommandError::usage(words));
    }
    let _ = write!(stderr, "{question} [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let mut stdin = io::Read::take(io::stdin().lock(), ANSWER_BYTES);
    stdin.read_line(&mut answer).map_err(CommandError::failed)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// What is said where the answer was no.
pub(super) fn declined() -> Result<(), CommandError> {
    output::write(b"Nothing was changed.")
}
