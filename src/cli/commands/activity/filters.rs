//! Which records are meant: the flags of `list` and `export` as query parameters.

use jiff::Timestamp;

use crate::cli::args::ActivityFilters;
use crate::cli::error::CommandError;
use crate::cli::value_parsers;

/// `--since` and `--until` as RFC 3339.
pub(super) fn times(
    flags: &ActivityFilters,
) -> Result<(Option<String>, Option<String>), CommandError> {
    let now = Timestamp::now();
    let moment = |flag, time: &Option<String>| {
        let time = time.as_deref().map(|time| value_parsers::moment(flag, time, now));
        time.transpose().map_err(CommandError::usage)
    };
    Ok((moment("--since", &flags.since)?, moment("--until", &flags.until)?))
}

/// The query, with the times that [`times`] has read.
pub(super) fn filters<'a>(
    flags: &'a ActivityFilters,
    since: Option<&'a str>,
    until: Option<&'a str>,
) -> Vec<(&'static str, Option<&'a str>)> {
    vec![
        ("type", flags.kind.as_deref()),
        ("server", flags.server.as_deref()),
        ("tool", flags.tool.as_deref()),
        ("status", flags.status.as_deref()),
        ("intent_type", flags.intent_type.as_deref()),
        ("session_id", flags.session.as_deref()),
        ("request_id", flags.request_id.as_deref()),
        ("principal", flags.principal.as_deref()),
        ("node", flags.node.as_deref()),
        ("start_time", since),
        ("end_time", until),
    ]
}
