//! Upstreams' lists, read on demand and merged.
//!
//! A list is read if the cached one is stale: older than [`FRESH_MS`](super::list_cache::FRESH_MS), changed according
//! to its server, or from an earlier connection. All servers are read concurrently, each for at most [`LIST_WAIT`]; a
//! server that is slow, broken or unavailable delays the others by at most that time and is represented by its last
//! known list. One request at a time reads a server's list; others wait for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::list_cache::{CacheSlot, CachedList, LIST_WAIT, ListRead};
use crate::proxy::extension::merged as merged_extensions;
use crate::proxy::worker::Worker;
use mcpproxy_catalog::exposed;
use mcpproxy_catalog::listing::{List, OfferedPage};
use mcpproxy_catalog::listing::{Listed, PAGE_ELEMENTS, Start};
use mcpproxy_catalog::{ListNote, ListNotes, NoteAction};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::known_extensions::Extension;
use mcpproxy_runtime::io::line_budget::peer_line;
use mcpproxy_schema::output::{AnswerMember, InspectedMessage, Inspector, Policy, Treatment};
use mcpproxy_upstream::{Answer, AnswerPart, Cause, Upstream};

/// Retry interval for an unreadable server, at least its `Retry-After`.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Maximum wait for a server that is reconnecting, and the retry interval for one that did not return.
const AWAY_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of pages of one list.
const MAX_PAGES: usize = 1000;
/// Maximum number of elements of one list of one server.
const MAX_ELEMENTS: usize = 20_000;
/// Maximum size of a page in bytes.
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of one list of one server in bytes.
const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
/// Maximum size of a page's cursor in bytes.
const MAX_CURSOR_BYTES: usize = 64 * 1024;
/// Maximum number of nonconforming elements of one list that are logged individually.
const MAX_TOLD: usize = 10;

/// Lists of all servers, in the order of the config.
pub(crate) async fn all(worker: &Worker, list: List) -> Vec<Arc<CachedList>> {
    let upstreams = worker.proxy.upstreams.iter();
    let lists = upstreams.map(async |upstream| of(worker, &upstream, list).await);
    futures_util::future::join_all(lists).await
}

/// List of the server with this name, if it exists.
pub(crate) async fn of_server(worker: &Worker, server: &str, list: List) -> Vec<Arc<CachedList>> {
    match worker.proxy.upstreams.get(server) {
        Some(upstream) => vec![of(worker, &upstream, list).await],
        None => Vec::new(),
    }
}

/// Elements in key order, starting at `start`, at least one page. `shown` selects them by server and own name.
pub(crate) fn merged<'a>(
    sets: &'a [Arc<CachedList>],
    start: &Start,
    shown: impl Fn(&str, &str) -> bool,
) -> Vec<&'a Listed> {
    let shown = &shown;
    let of_set = |set: &'a Arc<CachedList>| {
        let rest = start.rest(&set.elements, |listed| &listed.key).iter();
        rest.filter(move |listed| shown(&set.server, &listed.own)).take(PAGE_ELEMENTS + 1)
    };
    let mut elements: Vec<_> = sets.iter().flat_map(of_set).collect();
    elements.sort_by_key(|listed| &listed.key);
    elements.dedup_by_key(|listed| &listed.key);
    elements
}

/// Resolves an unprefixed URI, since a server's result may name its resources by its own URIs: to the only server
/// that lists it, or, if none does, the only one with resources. `None` if ambiguous.
pub(crate) async fn of_uri(worker: &Worker, uri: &str) -> Option<Arc<Upstream>> {
    let upstreams = &worker.proxy.upstreams;
    let listing = |sets: Vec<Arc<CachedList>>| {
        sets.into_iter().filter(|set| set.find(&exposed::uri(&set.server, uri)).is_some())
    };
    let mut servers: Vec<_> = listing(all(worker, List::Resources).await)
        .chain(listing(all(worker, List::Templates).await))
        .map(|set| Arc::clone(&set.server))
        .collect();
    servers.dedup();
    if let [server] = servers.as_slice() {
        return upstreams.get(server);
    }
    let mut offering = upstreams.iter().filter(|upstream| upstream.offers().resources);
    match (servers.is_empty(), offering.next(), offering.next()) {
        (true, Some(only), None) => Some(only),
        (true | false, ..) => None,
    }
}

/// List of one server, as fresh as possible.
async fn of(worker: &Worker, upstream: &Arc<Upstream>, list: List) -> Arc<CachedList> {
    let slots = worker.proxy.list_cache.slots(upstream.name());
    let [resources, templates, prompts, skills] = &*slots;
    let slot = match list {
        List::Resources => resources,
        List::Templates => templates,
        List::Prompts => prompts,
        List::Skills => skills,
    };
    let fresh = tokio::time::timeout(LIST_WAIT, fresh(worker, upstream, list, slot)).await;
    fresh.unwrap_or_else(|_| {
        let method = list.method();
        peer_line!(warn, upstream, server = %upstream.name(), method, limit = ?LIST_WAIT, "timed out reading a server's list");
        let fault = format!("{method} is stale: not read within {LIST_WAIT:?}");
        upstream.report_list(method, Some(fault));
        slot.keep(ListRead::Failed { retry_after: RETRY_AFTER }, changes(upstream, list))
    })
}

async fn fresh(
    worker: &Worker,
    upstream: &Arc<Upstream>,
    list: List,
    slot: &CacheSlot,
) -> Arc<CachedList> {
    upstream.settled().await;
    let offers = upstream.offers();
    let offered = match list {
        List::Resources | List::Templates => offers.resources,
        List::Prompts => offers.prompts,
        List::Skills => merged_extensions::offers(upstream, Extension::Skills),
    };
    let good = || {
        let last = slot.last.load();
        last.is_good(changes(upstream, list)).then(|| Arc::clone(&last))
    };
    if !offered {
        let none = ListRead::Complete(Vec::new(), ListNotes::default());
        return slot.keep(none, changes(upstream, list));
    }
    if let Some(set) = good() {
        return set;
    }
    // The semaphore is never closed, so the acquisition succeeds.
    let _turn = slot.turn.acquire().await;
    if let Some(set) = good() {
        return set;
    }
    // The change counter is read before the list, so that no change is missed.
    let before = changes(upstream, list);
    if let Err(reason) = upstream.reached(Instant::now() + AWAY_WAIT).await {
        peer_line!(warn, upstream, reason, "failed to read a server's list");
        // A reconnect counts as a change of the server's lists, so they are read again then.
        return slot.keep(ListRead::Failed { retry_after: AWAY_WAIT }, before);
    }
    let read = read(worker, upstream, list).await;
    let method = list.method();
    let fault = match &read {
        Ok(ListRead::Partial { reason, .. }) => Some(format!("{method} is partial: {reason}")),
        Ok(ListRead::Complete(..) | ListRead::Failed { .. }) => None,
        Err(Unread { reason, .. }) => Some(format!("{method} is stale: {reason}")),
    };
    if let Some(reason) = &fault {
        peer_line!(warn, upstream, server = %upstream.name(), reason, "a server's list is incomplete or out of date");
    }
    upstream.report_list(method, fault);
    let read = read.unwrap_or_else(|Unread { retry_after, .. }| ListRead::Failed { retry_after });
    slot.keep(read, before)
}

/// Change counter of this list.
fn changes(upstream: &Upstream, list: List) -> u64 {
    let changes = *upstream.changes().borrow();
    match list {
        List::Resources | List::Templates | List::Skills => changes.resources,
        List::Prompts => changes.prompts,
    }
}

/// Reads a list to its end or to the first unreadable page. Fails if the first page is unreadable.
async fn read(worker: &Worker, upstream: &Arc<Upstream>, list: List) -> Result<ListRead, Unread> {
    let (server, method) = (upstream.name(), list.method());
    let mut elements: Vec<Listed> = Vec::new();
    let (mut bytes, mut notes) = (0, ListNotes::default());
    let mut cursors = HashSet::new();
    let mut params = "{}".to_owned();
    let cut = |elements, notes, reason: String| {
        Ok(ListRead::Partial { elements: sorted(elements), notes, reason, retry_after: None })
    };
    for number in 1..=MAX_PAGES {
        let page = match read_page(worker, upstream, list, (params, &mut bytes)).await {
            Ok(page) => page,
            Err(PageFailure::TooLong) => {
                return cut(elements, notes, "it is too long".to_owned());
            }
            Err(PageFailure::Unknown) if number == 1 => {
                return Ok(ListRead::Complete(elements, notes));
            }
            Err(PageFailure::Unknown) => {
                return cut(
                    elements,
                    notes,
                    format!("page {number} cannot be read: it is refused"),
                );
            }
            Err(PageFailure::Other(unread)) if number == 1 => return Err(unread),
            Err(PageFailure::Other(Unread { reason, retry_after })) => {
                return Ok(ListRead::Partial {
                    elements: sorted(elements),
                    notes,
                    reason: format!("page {number} cannot be read: {reason}"),
                    retry_after: Some(retry_after),
                });
            }
        };
        for note in page.notes {
            let [item, reason] =
                [&note.item, &note.reason].map(|text| upstream.quote(text.as_bytes()));
            if notes.repaired + notes.omitted < MAX_TOLD {
                match note.action {
                    NoteAction::Omitted => {
                        peer_line!(warn, upstream, %server, method, %item, %reason, "malformed element skipped");
                    }
                    NoteAction::Repaired => {
                        peer_line!(warn, upstream, %server, method, %item, %reason, "nonconforming element repaired");
                    }
                }
            }
            notes.add(ListNote::new(method, &item, note.action, &reason));
        }
        for listed in page.elements {
            if elements.len() == MAX_ELEMENTS {
                return cut(elements, notes, "it has too many elements".to_owned());
            }
            elements.push(listed);
        }
        let cursor = match page.next {
            None => return Ok(ListRead::Complete(sorted(elements), notes)),
            Some(Ok(cursor)) => cursor,
            Some(Err(fault)) => return cut(elements, notes, format!("page {number}: {fault}")),
        };
        params = serde_json::json!({ "cursor": cursor }).to_string();
        if params.len() > MAX_CURSOR_BYTES {
            return cut(elements, notes, format!("nextCursor of page {number} is too long"));
        }
        if !cursors.insert(cursor) {
            let reason = format!("nextCursor of page {number} repeats an earlier one");
            return cut(elements, notes, reason);
        }
    }
    cut(elements, notes, "it has too many pages".to_owned())
}

/// Reason why a page could not be read.
enum PageFailure {
    /// The server does not know the method.
    Unknown,
    /// The list has reached its maximum size.
    TooLong,
    Other(Unread),
}

/// Failure to read a page.
struct Unread {
    /// Reason, as one line of text.
    reason: String,
    /// Delay before the next attempt.
    retry_after: Duration,
}

impl From<String> for Unread {
    fn from(reason: String) -> Self {
        Self { reason, retry_after: RETRY_AFTER }
    }
}

impl From<&Cause> for Unread {
    fn from(cause: &Cause) -> Self {
        let retry_after = cause.retry_after().unwrap_or_default().max(RETRY_AFTER);
        Self { reason: cause.to_string(), retry_after }
    }
}

/// Reads one page; `bytes` counts those of all pages.
async fn read_page(
    worker: &Worker,
    upstream: &Arc<Upstream>,
    list: List,
    (params, bytes): (String, &mut usize),
) -> Result<OfferedPage, PageFailure> {
    let other =
        |reason: String| PageFailure::Other(upstream.quote(reason.as_bytes()).to_string().into());
    let answer = upstream.list(&worker.pool, list, params.into(), Instant::now()).await;
    let answer = answer.map_err(|error| PageFailure::Other(Unread::from(&error.cause)))?;
    match whole(answer, worker.proxy.hash_key).await {
        Ok((AnswerMember::Result, result)) => {
            // All received bytes count, regardless of their content.
            *bytes += result.len();
            if *bytes > MAX_LIST_BYTES {
                return Err(PageFailure::TooLong);
            }
            OfferedPage::parse(upstream.name(), list, &result).map_err(other)
        }
        Ok((AnswerMember::Error, error)) if is_unknown(&error) => Err(PageFailure::Unknown),
        Ok((AnswerMember::Error, _)) => Err(other("it refused".to_owned())),
        Err(reason) => Err(other(reason)),
    }
}

/// Sorts by key; of duplicates the first one is used.
fn sorted(mut elements: Vec<Listed>) -> Vec<Listed> {
    elements.sort_by(|a, b| a.key.cmp(&b.key));
    elements.dedup_by(|later, first| later.key == first.key);
    elements
}

/// Collects an answer's value.
async fn whole(mut answer: Answer, hash_key: u64) -> Result<(AnswerMember, Vec<u8>), String> {
    let policy = Policy::default();
    let mut inspector = Inspector::new(Treatment::Forward, &policy, answer.id(), hash_key);
    let mut value = Vec::new();
    loop {
        match answer.next().await.map_err(|error| error.cause())? {
            Some(AnswerPart::Data(chunk)) => {
                let slice = inspector.feed(&chunk).map_err(|fault| fault.to_string())?;
                if value.len() + slice.len() > MAX_PAGE_BYTES {
                    return Err(format!("a page is larger than {MAX_PAGE_BYTES} bytes"));
                }
                value.extend_from_slice(&slice);
            }
            Some(AnswerPart::End) => match inspector.end().map_err(|fault| fault.to_string())? {
                InspectedMessage::Answer(member) => {
                    answer.finish();
                    return Ok((member, value));
                }
                InspectedMessage::Notification(parts) => answer.observe(&parts.concat()),
                InspectedMessage::Foreign => {}
            },
            Some(AnswerPart::Interrupted) => {}
            None => return Err(answer.without_response().cause()),
        }
    }
}

/// Whether the error reports an unknown method. Servers with resources need not have templates.
fn is_unknown(error: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
    }
    serde_json::from_slice::<RpcError>(error)
        .is_ok_and(|error| error.code == Code::MethodNotFound as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_14_list_is_not_read_again_before_the_retry_time_of_its_server() {
        let throttled = |after: Option<u64>| {
            let after = after.map(Duration::from_secs);
            Unread::from(&Cause::Throttled { status: 429, after, message: "".into() })
        };
        for (asked, waits) in [(Some(60), 60), (Some(1), 5), (None, 5)] {
            assert_eq!(throttled(asked).retry_after, Duration::from_secs(waits), "{asked:?}");
        }
        assert_eq!(throttled(Some(60)).reason, "the server answered HTTP 429, retry after 60s");
        assert_eq!(Unread::from(&Cause::SseOnly).retry_after, RETRY_AFTER);
    }
}
