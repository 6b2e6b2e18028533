//! Target `sessions`: a table of sessions behaves like a plain map with a clock, and the requests to a session's client are
//! answered once, by that client.
//!
//! Input: operations of two bytes each: the operation and its subject.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_downstream::session::SessionKey;
use mcpproxy_downstream::session::{IDLE_MS, Opening, Session, fresh_id};
use mcpproxy_downstream::session_eviction::EVICTED;
use mcpproxy_downstream::session_table::Sessions;
use mcpproxy_downstream::source::Source;
use mcpproxy_gateway::proxy::client::Endpoint;
use mcpproxy_gateway::proxy::client::{Client, MAX_ASKED, Question, ServerQuestion};
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

const VERSION: &str = "2025-11-25";
/// Maximum number of operations of one run.
const MAX_OPERATIONS: usize = 512;
/// Maximum number of sessions. So small that a run fills the table quickly: with the product's 10 000 a run took 80 ms.
const MOST: usize = 4 * EVICTED;
/// Number of sessions that one [`Operation::Fill`] opens.
const MANY: usize = MOST / 4;
/// Maximum number of fills in one run, so that it stays short.
const MAX_FILLS: usize = 5;

/// The expected session.
struct Known {
    session: Arc<Session>,
    used_ms: u64,
    ended: bool,
    asked: BTreeMap<u64, Question>,
}

struct Run {
    sessions: Sessions,
    now_ms: u64,
    swept_ms: Option<u64>,
    /// Sessions opened individually, in the order of their opening.
    known: Vec<Known>,
    /// Expected table: the time of the last use of each session.
    table: HashMap<String, u64>,
    opened: u128,
}

pub fn run(data: &[u8]) {
    let (mut run, mut fills) = (Run::new(), 0);
    for operation in data.chunks_exact(2).take(MAX_OPERATIONS) {
        let (kind, pick) = (operation[0], operation[1]);
        match kind % 11 {
            0 => run.open(true),
            1 if fills < MAX_FILLS => {
                fills += 1;
                for _ in 0..MANY {
                    run.open(false);
                }
            }
            1 => {}
            2 => {
                run.sessions.sweep(run.now_ms);
                run.sweep();
            }
            3 => run.now_ms += u64::from(pick),
            4 => run.now_ms += IDLE_MS - u64::from(pick),
            5 => run.find_any(u128::from(pick)),
            6 => run.find(pick),
            7 => run.touch(pick),
            8 => run.end(pick),
            9 => run.ask(pick),
            _ => run.answer(pick),
        }
    }
}

impl Run {
    fn new() -> Self {
        let sessions = Sessions::of_at_most(MOST);
        let (known, table) = (Vec::new(), HashMap::new());
        Self { sessions, now_ms: 0, swept_ms: None, known, table, opened: 0 }
    }

    fn open(&mut self, keep: bool) {
        // The ids are distributed like those of the system: no id occurs twice, and every shard is used.
        self.opened += 1;
        let id = fresh_id(self.opened.to_be_bytes());
        let client =
            Client::new(id, "fuzz", VERSION, ProtocolFamily::Legacy, ClientCapabilities::default());
        let endpoint = Endpoint::Search;
        let (principal, key) = (Principal::Anonymous, SessionKey::default());
        let opening = Opening { client, endpoint, principal, key, source: Source::default() };
        let opened = self.sessions.open(opening, self.now_ms);
        if self.table.len() >= MOST {
            self.sweep();
        }
        if self.table.len() >= MOST {
            self.evict();
        }
        let session = opened.expect("no session is busy, so there is room");
        // Marks the session as used, because unused sessions have a bound of their own.
        self.sessions.note_use(&session);
        let id = session.id().to_string();
        assert_eq!(id, format!("{:032x}", self.opened));
        assert!(self.table.insert(id, self.now_ms).is_none());
        if keep {
            let asked = BTreeMap::new();
            self.known.push(Known { session, used_ms: self.now_ms, ended: false, asked });
        }
    }

    fn sweep(&mut self) {
        let now_ms = self.now_ms;
        // Sessions used at this time have not expired, so another sweep finds nothing until time has passed.
        if self.swept_ms.replace(now_ms) != Some(now_ms) {
            self.table.retain(|_, used_ms| !expired(*used_ms, now_ms));
        }
    }

    /// Removes the least recently used sessions.
    fn evict(&mut self) {
        let mut uses: Vec<_> = self.table.iter().map(|(id, used)| (*used, id.as_str())).collect();
        uses.select_nth_unstable(EVICTED - 1);
        let oldest: Vec<_> = uses.iter().take(EVICTED).map(|(_, id)| id.to_string()).collect();
        for id in oldest {
            self.table.remove(&id);
            let held = self.known.iter_mut().find(|known| **known.session.id() == *id);
            if let Some(known) = held {
                known.ended = true;
            }
        }
    }

    fn find(&mut self, pick: u8) {
        let Some(at) = self.picked(pick) else { return };
        let known = &mut self.known[at];
        let id = known.session.id().to_string();
        let there = self.table.get_mut(&id).filter(|used_ms| !expired(**used_ms, self.now_ms));
        let found = self.sessions.find(&id, self.now_ms);
        assert_eq!(found.is_some(), there.is_some(), "{id} at {}", self.now_ms);
        if let (Some(found), Some(used_ms)) = (found, there) {
            assert!(Arc::ptr_eq(&found, &known.session));
            (*used_ms, known.used_ms) = (self.now_ms, self.now_ms);
        }
    }

    /// Looks up an id that may belong to a session that was never used, or to none.
    fn find_any(&mut self, number: u128) {
        let id = format!("{number:032x}");
        let there = self.table.get_mut(&id).filter(|used_ms| !expired(**used_ms, self.now_ms));
        let found = self.sessions.find(&id, self.now_ms);
        assert_eq!(found.is_some(), there.is_some(), "{id} at {}", self.now_ms);
        if let (Some(used_ms), Some(session)) = (there, found) {
            *used_ms = self.now_ms;
            let held = self.known.iter_mut().find(|known| Arc::ptr_eq(&known.session, &session));
            if let Some(known) = held {
                known.used_ms = self.now_ms;
            }
        }
    }

    fn touch(&mut self, pick: u8) {
        let Some(at) = self.picked(pick) else { return };
        let known = &mut self.known[at];
        let alive = !known.ended && !expired(known.used_ms, self.now_ms);
        assert_eq!(known.session.touch(self.now_ms), alive);
        if alive {
            known.used_ms = self.now_ms;
            let id = known.session.id().to_string();
            *self.table.get_mut(&id).expect("what is alive is there") = self.now_ms;
        }
    }

    fn end(&mut self, pick: u8) {
        let Some(at) = self.picked(pick) else { return };
        let id = self.known[at].session.id().to_string();
        let there = self.table.remove(&id).is_some();
        assert_eq!(self.sessions.end(&id), there);
        self.known[at].ended |= there;
    }

    fn ask(&mut self, pick: u8) {
        let Some(at) = self.picked(pick) else { return };
        let is_open = self.is_open(at);
        let known = &mut self.known[at];
        let raw_id = Bytes::copy_from_slice(&[pick]);
        let (server, method) = ("s".into(), "roots/list".into());
        let (generation, task) = (1, None);
        let question =
            Question::Server(ServerQuestion { server, method, generation, raw_id, task });
        let id = known.session.client.ask(question.clone());
        assert_eq!(id.is_some(), is_open && known.asked.len() < MAX_ASKED);
        if let Some(id) = id {
            assert!(known.asked.last_key_value().is_none_or(|(last, _)| *last < id));
            assert!(known.asked.insert(id, question).is_none());
        }
    }

    /// Each client numbers its requests separately, so most ids are in use for several clients.
    fn answer(&mut self, pick: u8) {
        let Some(at) = self.picked(pick) else { return };
        let id = u64::from(pick) / 8;
        let is_open = self.is_open(at);
        let known = &mut self.known[at];
        if !is_open {
            // The end of a session also ends its open questions.
            known.asked.clear();
        }
        assert_eq!(known.session.client.answered(id), known.asked.remove(&id));
    }

    fn is_open(&self, at: usize) -> bool {
        self.table.contains_key(&self.known[at].session.id().to_string())
    }

    fn picked(&self, pick: u8) -> Option<usize> {
        usize::from(pick).checked_rem(self.known.len())
    }
}

fn expired(used_ms: u64, now_ms: u64) -> bool {
    now_ms - used_ms > IDLE_MS
}
