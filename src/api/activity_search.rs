//! `GET /api/v1/activity?text=`: the records that a filter means and that hold a text, newest first.
//!
//! No index knows texts: records are read, a portion at a time, by the thread that reads for exports, which calls do not
//! wait for. An answer ends when its page is full, when it has looked at [`MAX_SEARCHED`] records, or after [`MAX_TIME`]; its
//! cursor is then the last record that it looked at, so that a page may be empty and there are more all the same.

use std::time::{Duration, Instant};

use http::StatusCode;

use super::reader_limits::ReaderSlot;
use super::response::ApiError;
use crate::activity::record::ReadBody;
use crate::activity::text_search::SoughtText;
use crate::activity::{Filter, From, Id, Listing, Page, Payloads, QueryError, Record};
use crate::fleet::{FleetLogs, FleetReading};

/// Most records that one answer looks at, about: the last portion may go beyond it.
const MAX_SEARCHED: u64 = 20_000;
/// Longest time after which an answer begins another portion.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Records of a portion.
const PORTION_RECORDS: usize = 128;

/// What an answer has found.
pub(super) struct FoundRecords {
    pub(super) records: Vec<Record>,
    /// Where the next page begins, if there is one.
    pub(super) next_cursor: Option<Id>,
    /// How many records were looked at.
    pub(super) searched: u64,
}

impl FoundRecords {
    /// Takes from the records what was looked through and not asked for.
    fn leave_out(&mut self, payloads: Payloads) {
        for record in &mut self.records {
            let body = std::mem::replace(&mut record.body, ReadBody::Unread);
            record.body = match payloads {
                Payloads::Include => body,
                Payloads::Exclude => body.without_payloads(),
                Payloads::HeadsOnly => ReadBody::Unread,
            };
        }
    }
}

/// What is looked for.
#[derive(Clone)]
pub(super) struct TextSearch {
    pub(super) filter: Filter,
    pub(super) text: SoughtText,
}

/// Reads a text that is looked for.
///
/// # Errors
/// 400 where it cannot be.
pub(super) fn sought(text: &str) -> Result<SoughtText, ApiError> {
    let cannot = |error| format!("Invalid text: it cannot be looked for: {error}");
    SoughtText::new(text).map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, cannot(error)))
}

/// Looks through the log. `_place` is kept as long.
pub(super) async fn search(
    logs: &FleetLogs,
    wanted: TextSearch,
    page: &Page,
    _place: ReaderSlot,
) -> Result<FoundRecords, QueryError> {
    let mut found = FoundRecords { records: Vec::new(), next_cursor: None, searched: 0 };
    let (mut from, deadline) = (page.from, Instant::now() + MAX_TIME);
    loop {
        let room = page.limit - found.records.len();
        let (read, look, asked) = (logs.clone(), wanted.clone(), from);
        let portion = logs.activity().aside(move |_| portion(&read, &look, asked, room)).await??;
        found.searched += portion.searched;
        found.records.extend(portion.records);
        found.next_cursor = portion.next_cursor;
        let Some(next) = found.next_cursor else { break };
        let is_spent = found.searched >= MAX_SEARCHED || Instant::now() >= deadline;
        if found.records.len() >= page.limit || is_spent {
            break;
        }
        from = From::After(next);
    }
    found.leave_out(page.payloads);
    Ok(found)
}

/// Looks through the logs of a fleet. `_place` is kept as long.
pub(super) async fn search_fleet(
    reading: &mut FleetReading,
    wanted: TextSearch,
    page: &Page,
    _place: ReaderSlot,
) -> Result<FoundRecords, QueryError> {
    let mut found = FoundRecords { records: Vec::new(), next_cursor: None, searched: 0 };
    let (mut from, deadline) = (page.from, Instant::now() + MAX_TIME);
    loop {
        let room = page.limit - found.records.len();
        let asked = Page { limit: PORTION_RECORDS, from, payloads: Payloads::Include };
        let (listing, _) = reading.list(&wanted.filter, &asked, false).await?;
        let portion = looked_through(listing, &wanted, room);
        found.searched += portion.searched;
        found.records.extend(portion.records);
        found.next_cursor = portion.next_cursor;
        let Some(next) = found.next_cursor else { break };
        let is_spent = found.searched >= MAX_SEARCHED || Instant::now() >= deadline;
        if found.records.len() >= page.limit || is_spent {
            break;
        }
        from = From::After(next);
    }
    found.leave_out(page.payloads);
    Ok(found)
}

/// The next records, up to the one that fills the page.
fn portion(
    logs: &FleetLogs,
    wanted: &TextSearch,
    from: From,
    room: usize,
) -> Result<FoundRecords, QueryError> {
    let page = Page { limit: PORTION_RECORDS, from, payloads: Payloads::Include };
    let listing = logs.stored()?.list(&wanted.filter, &page)?;
    Ok(looked_through(listing, wanted, room))
}

/// Those of a page that hold the text, up to the one that fills the room.
fn looked_through(listing: Listing, wanted: &TextSearch, room: usize) -> FoundRecords {
    let mut found =
        FoundRecords { records: Vec::new(), next_cursor: listing.next_cursor, searched: 0 };
    let mut records = listing.records.into_iter();
    for record in records.by_ref() {
        found.searched += 1;
        let id = record.id;
        if wanted.text.is_in(&record) {
            found.records.push(record);
        }
        if found.records.len() >= room {
            // Of those that were read and not looked at, the next page begins with the first.
            if !records.as_slice().is_empty() {
                found.next_cursor = Some(id);
            }
            break;
        }
    }
    found
}
