//! The lists of the upstreams: read when somebody asks, and merged.
//!
//! A list is read when somebody asks for it and what is kept is not good any more: it is older than
//! [`FRESH_MS`](super::list_cache::FRESH_MS), its server has said that it changed, or was connected anew. All servers are asked
//! at once, each for at most [`LIST_WAIT`]; one that is slow, broken or gone delays the others by no
//! more, and is shown as it was last, if it ever was. One request at a time reads a server's list;
//! the others wait for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::list_cache::{CacheSlot, CachedList, LIST_WAIT};
use crate::catalog::exposed;
use crate::catalog::listing::{Listed, PAGE_ELEMENTS, Start};
use crate::catalog::offered::{List, OfferedPage};
use crate::mcp::jsonrpc::Code;
use crate::output::{AnswerMember, InspectedMessage, Inspector, Policy, Treatment};
use crate::proxy::worker::Worker;
use crate::upstream::{Answer, AnswerPart, Upstream};

/// How long a server that could not be read is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How long a list waits for a server that is away and is tried for it, and how long one that did
/// not come back is left alone.
const AWAY_WAIT: Duration = Duration::from_secs(1);
/// Most pages of one list.
const MAX_PAGES: usize = 1000;
/// Most elements of one list of one server.
const MAX_ELEMENTS: usize = 20_000;
/// Most bytes of one page.
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes of one list of one server.
const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
/// Most bytes of a page's cursor, which is sent back.
const MAX_CURSOR_BYTES: usize = 64 * 1024;
/// Malformed elements of one list that are logged one by one.
const MAX_TOLD: usize = 10;

/// That list of every server, in the order of the config.
pub async fn all(worker: &Worker, list: List) -> Vec<Arc<CachedList>> {
    let upstreams = worker.proxy.upstreams.iter();
    let lists = upstreams.map(async |upstream| of(worker, &upstream, list).await);
    futures_util::future::join_all(lists).await
}

/// The elements from `start` on, at least as many as a page holds, in the order of their keys: those that `shown` lets
/// be seen, by server and own name.
#[must_use]
pub fn merged<'a>(
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

/// The one upstream that a URI of its own leads to: a server's result may name its resources, and
/// knows nothing of our names. It is the one that lists it; if none does, the only one that has
/// resources at all. `None` where it could be another's.
pub async fn of_uri(worker: &Worker, uri: &str) -> Option<Arc<Upstream>> {
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

/// That list of one server, as good as it can be had.
async fn of(worker: &Worker, upstream: &Arc<Upstream>, list: List) -> Arc<CachedList> {
    let slots = worker.proxy.list_cache.slots(upstream.name());
    let [resources, templates, prompts] = &*slots;
    let slot = match list {
        List::Resources => resources,
        List::Templates => templates,
        List::Prompts => prompts,
    };
    let fresh = tokio::time::timeout(LIST_WAIT, fresh(worker, upstream, list, slot)).await;
    fresh.unwrap_or_else(|_| {
        let method = list.method();
        if upstream.may_log() {
            tracing::warn!(server = %upstream.name(), method, limit = ?LIST_WAIT, "a server's list is not waited for");
        }
        slot.keep(Err(RETRY_AFTER), changes(upstream, list))
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
    };
    let good = || {
        let last = slot.last.load();
        last.is_good(changes(upstream, list)).then(|| Arc::clone(&last))
    };
    if !offered {
        return slot.keep(Ok(Vec::new()), changes(upstream, list));
    }
    if let Some(set) = good() {
        return set;
    }
    // The semaphore is never closed, so a turn always comes.
    let _turn = slot.turn.acquire().await;
    if let Some(set) = good() {
        return set;
    }
    // Looked at before the list is read, so that no change is missed.
    let before = changes(upstream, list);
    let (read, retry_after) = match upstream.reached(Instant::now() + AWAY_WAIT).await {
        Ok(()) => (read(worker, upstream, list).await, RETRY_AFTER),
        // When it is back, its lists have changed.
        Err(reason) => (Err(reason), AWAY_WAIT),
    };
    if let Err(reason) = &read
        && upstream.may_log()
    {
        tracing::warn!(reason, "a server's list cannot be read");
    }
    slot.keep(read.map_err(|_| retry_after), before)
}

/// How often that list of the server has changed.
fn changes(upstream: &Upstream, list: List) -> u64 {
    let changes = *upstream.changes().borrow();
    match list {
        List::Resources | List::Templates => changes.resources,
        List::Prompts => changes.prompts,
    }
}

/// Reads a list to its end.
async fn read(
    worker: &Worker,
    upstream: &Arc<Upstream>,
    list: List,
) -> Result<Vec<Listed>, String> {
    let (server, method) = (upstream.name(), list.method());
    let told = |reason: &str| {
        if upstream.may_log() {
            tracing::warn!(%server, method, reason, "a list is not read whole");
        }
    };
    let mut elements: Vec<Listed> = Vec::new();
    let (mut bytes, mut malformed) = (0, 0);
    let mut cursors = HashSet::new();
    let mut params = "{}".to_owned();
    for _ in 0..MAX_PAGES {
        let answer = upstream
            .list(&worker.pool, list, params.into(), Instant::now())
            .await
            .map_err(|error| error.to_string())?;
        let page = match whole(answer, worker.proxy.hash_key).await {
            Ok((AnswerMember::Result, result)) => {
                // All that was sent counts, whatever is in it.
                bytes += result.len();
                if bytes > MAX_LIST_BYTES {
                    told("it is too long");
                    return Ok(sorted(elements));
                }
                OfferedPage::parse(server, list, &result)
            }
            Ok((AnswerMember::Error, error)) if is_unknown(&error) => return Ok(Vec::new()),
            Ok((AnswerMember::Error, _)) => Err("it refused".to_owned()),
            Err(reason) => Err(reason),
        };
        let quoted = |reason: String| upstream.quote(reason.as_bytes());
        let page = page.map_err(|reason| format!("{server}: {method}: {}", quoted(reason)))?;
        for reason in page.malformed.iter().take(MAX_TOLD - malformed) {
            if upstream.may_log() {
                let reason = upstream.quote(reason.as_bytes());
                tracing::warn!(%server, method, %reason, "a malformed element is left out");
            }
        }
        malformed = MAX_TOLD.min(malformed + page.malformed.len());
        for listed in page.elements {
            if elements.len() == MAX_ELEMENTS {
                told("it has too many elements");
                return Ok(sorted(elements));
            }
            elements.push(listed);
        }
        let Some(cursor) = page.next else { return Ok(sorted(elements)) };
        params = serde_json::json!({ "cursor": cursor }).to_string();
        if params.len() > MAX_CURSOR_BYTES {
            told("its cursor is too long");
            return Ok(sorted(elements));
        }
        if !cursors.insert(cursor) {
            told("it goes round in circles");
            return Ok(sorted(elements));
        }
    }
    told("it has too many pages");
    Ok(sorted(elements))
}

/// In the order of their keys; of two with the same, the first counts.
fn sorted(mut elements: Vec<Listed>) -> Vec<Listed> {
    elements.sort_by(|a, b| a.key.cmp(&b.key));
    elements.dedup_by(|later, first| later.key == first.key);
    elements
}

/// An answer's value, whole.
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
                InspectedMessage::Notification(_) | InspectedMessage::Foreign => {}
            },
            None => return Err(answer.without_response().cause()),
        }
    }
}

/// Servers that have resources need not have templates.
fn is_unknown(error: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
    }
    serde_json::from_slice::<RpcError>(error)
        .is_ok_and(|error| error.code == Code::MethodNotFound as i64)
}
