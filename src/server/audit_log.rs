//! What happened to upstreams, put on record, and what of it is logged as well.

use crate::activity::Activity;
use crate::activity::record::{Draft, Entry, Status, Text};

/// Warnings of one event that are logged one by one: a server may list thousands of tools.
const MAX_LOGGED: usize = 20;

/// Puts what one event left on record; what it warns about is logged as well, up to [`MAX_LOGGED`]
/// lines (FR-A9).
pub(super) fn put(log: &Activity, entries: Vec<Entry>) {
    let mut warnings = 0;
    for entry in entries {
        let text = |which| entry.draft.text(which);
        let (server, tool, error) = (text(Text::Server), text(Text::Tool), text(Text::Error));
        match logged(&entry.draft, &mut warnings) {
            Logged::Whole => tracing::warn!(%server, %tool, "{error}"),
            Logged::Last => tracing::warn!(%server, "more such warnings are on record"),
            Logged::Not => {}
        }
        log.note(entry);
    }
}

/// How a record is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logged {
    Whole,
    /// A line that says that there are more.
    Last,
    Not,
}

/// `warnings` counts those of one event.
fn logged(draft: &Draft, warnings: &mut usize) -> Logged {
    if draft.status != Status::Warning || draft.text(Text::Error).is_empty() {
        return Logged::Not;
    }
    *warnings += 1;
    if *warnings < MAX_LOGGED {
        Logged::Whole
    } else if *warnings == MAX_LOGGED {
        Logged::Last
    } else {
        Logged::Not
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::{Source, Type};

    fn draft(status: Status, error: &str) -> Draft {
        let mut draft = Draft::new(Type::CatalogChange, Source::Internal, status);
        draft.set(Text::Error, error);
        draft
    }

    #[test]
    fn warnings_are_logged_up_to_a_bound_and_the_last_line_says_so() {
        let (warning, mut warnings) = (draft(Status::Warning, "its schema"), 0);
        let lines: Vec<Logged> = (0..100).map(|_| logged(&warning, &mut warnings)).collect();
        assert_eq!(lines[..MAX_LOGGED - 1], [Logged::Whole; MAX_LOGGED - 1]);
        assert_eq!(lines[MAX_LOGGED - 1], Logged::Last);
        assert!(lines[MAX_LOGGED..].iter().all(|line| *line == Logged::Not));
    }

    #[test]
    fn what_is_no_warning_or_has_no_words_is_on_record_alone() {
        let mut warnings = 0;
        for (status, error) in [(Status::Success, "x"), (Status::Error, "x"), (Status::Warning, "")]
        {
            assert_eq!(logged(&draft(status, error), &mut warnings), Logged::Not);
        }
        assert_eq!(warnings, 0, "nor do they use up the lines");
    }
}
