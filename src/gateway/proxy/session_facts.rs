//! Facts cells of principals and sessions. A request is decided by the maximum of both cells.
//!
//! A new session, another client name, REST and the command line start with the facts of their principal; all
//! anonymous clients are one principal. [`policy`](mcpproxy_policy) defines the facts. A worker caches the cells it
//! uses, so calls share no lock. A principal's cell is written only once a second and when its facts rise, so calls
//! of one principal do not contend for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::client::Caller;
use super::client::Client;
use mcpproxy_policy::intent::Sensitivity;
use mcpproxy_policy::tool::Exposure;
use mcpproxy_policy::{FactsCell, Principal, SessionFacts, WINDOW_SECONDS};
use mcpproxy_runtime::io::clock;

/// Maximum number of principals with a separate cell. Further ones share one cell, which holds the maximum of their facts.
pub(crate) const MAX_PRINCIPALS: usize = 16_384;
/// Maximum number of cells cached by a worker.
const REMEMBERED: usize = 256;
/// Clock value at the start, chosen so that earlier times, reported by other nodes, can be represented.
const FIRST_SECOND: u32 = 2 * WINDOW_SECONDS;

/// Epoch of the clock.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Mark of a principal ([`Principal::mark`]).
pub(crate) type PrincipalMark = [u8; 16];

/// Facts of one principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenByPrincipal {
    pub mark: PrincipalMark,
    /// Facts of the session, without `calls`.
    pub facts: SessionFacts,
    /// Seconds since its last request.
    pub idle_seconds: u32,
}

/// Facts cells of all principals.
#[derive(Debug, Default)]
pub struct PrincipalFacts {
    table: Mutex<Table>,
    common: Arc<FactsCell>,
    keys: RandomState,
    risen: Notify,
}

#[derive(Debug, Default)]
struct Table {
    cells: HashMap<PrincipalMark, Arc<FactsCell>>,
    /// Second of the last sweep.
    swept: u32,
}

/// Cells cached by one worker.
#[derive(Default)]
pub(super) struct RememberedFacts(RefCell<HashMap<u64, Arc<FactsCell>>>);

impl fmt::Debug for RememberedFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RememberedFacts({})", self.0.borrow().len())
    }
}

/// Cells of one caller.
pub(super) struct FactsOf<'a> {
    table: &'a PrincipalFacts,
    principal: Arc<FactsCell>,
    session: Option<&'a Arc<Client>>,
}

/// Facts to raise when the answer begins.
#[derive(Debug)]
pub(super) struct Rise {
    principal: Arc<FactsCell>,
    session: Option<Arc<Client>>,
    exposure: Exposure,
}

impl RememberedFacts {
    fn of(&self, principal: &Principal, table: &PrincipalFacts, second: u32) -> Arc<FactsCell> {
        let key = table.keys.hash_one(principal);
        if let Some(known) = self.0.borrow().get(&key) {
            return Arc::clone(known);
        }
        let cell = table.get(principal.mark(), second);
        if Arc::ptr_eq(&cell, &table.common) {
            // Not cached: a later lookup may get a cell of its own.
            return cell;
        }
        let mut remembered = self.0.borrow_mut();
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(key, Arc::clone(&cell));
        cell
    }
}

impl<'a> FactsOf<'a> {
    /// Cells of a caller for a new request.
    pub(super) fn caller(
        caller: &'a Caller,
        table: &'a PrincipalFacts,
        remembered: &RememberedFacts,
    ) -> Self {
        let second = second();
        let principal = remembered.of(&caller.principal, table, second);
        principal.used(second);
        let client = caller.client.as_ref().map(|(client, _)| &**client);
        let session = client.filter(|client| !client.session_id.is_empty());
        Self { table, principal, session }
    }

    /// Maximum of both cells.
    pub(super) fn now(&self) -> SessionFacts {
        let facts = self.principal.get();
        self.session.map_or(facts, |client| client.facts.get().joined(facts))
    }

    /// Records a permitted request and its stated sensitivity.
    pub(super) fn permitted(&self, stated: Option<Sensitivity>) {
        let Some(session) = self.session else {
            let before = self.principal.last_used().1;
            self.principal.permitted(stated);
            if self.principal.last_used().1.max_sensitivity != before.max_sensitivity {
                self.table.risen.notify_one();
            }
            return;
        };
        session.facts.permitted(stated);
        if self.principal.stated(stated) {
            self.table.risen.notify_one();
        }
    }

    /// Raise to apply when the answer begins; `None` if it would change nothing.
    pub(super) fn rise(&self, exposure: Exposure) -> Option<Rise> {
        let is_new = |cell: &FactsCell| {
            let facts = cell.get();
            facts.after(exposure) != facts
        };
        let Self { principal, session, table: _ } = self;
        if !is_new(principal) && !session.is_some_and(|client| is_new(&client.facts)) {
            return None;
        }
        let (principal, session) = (Arc::clone(principal), session.map(Arc::clone));
        Some(Rise { principal, session, exposure })
    }
}

impl Rise {
    pub(super) fn answered(self, table: &PrincipalFacts) {
        if let Some(client) = self.session {
            client.facts.answered(self.exposure);
        }
        if self.principal.answered(self.exposure) {
            table.risen.notify_one();
        }
    }
}

impl PrincipalFacts {
    fn get(&self, mark: PrincipalMark, second: u32) -> Arc<FactsCell> {
        let mut table = self.table.lock();
        let (Table { cells, swept }, common) = (&mut *table, &self.common);
        if let Some(cell) = cells.get(&mark) {
            return Arc::clone(cell);
        }
        if cells.len() >= MAX_PRINCIPALS && *swept != second {
            *swept = second;
            // A worker that caches a cell may be about to use it.
            cells.retain(|_, cell| Arc::strong_count(cell) > 1 || !cell.is_over(second));
        }
        if cells.len() >= MAX_PRINCIPALS {
            return Arc::clone(common);
        }
        let cell = Arc::<FactsCell>::default();
        cell.used(second);
        // The principal may have used the common cell before.
        if !common.is_over(second) {
            cell.merge_remote(common.get(), second, second);
        }
        cells.insert(mark, Arc::clone(&cell));
        cell
    }

    /// Returns the facts of a principal, outside of a request, without restarting their expiry.
    pub(super) fn peek(&self, principal: &Principal) -> SessionFacts {
        let table = self.table.lock();
        let cell = table.cells.get(&principal.mark()).unwrap_or(&self.common);
        match cell.is_over(second()) {
            true => SessionFacts::default(),
            false => cell.get(),
        }
    }

    /// Waits until any principal's facts rise.
    pub async fn risen(&self) {
        self.risen.notified().await;
    }

    /// Facts of all principals with unexpired facts.
    pub fn seen(&self) -> Vec<SeenByPrincipal> {
        let second = second();
        let table = self.table.lock();
        let seen = table.cells.iter().filter(|(_, cell)| !cell.is_over(second));
        let seen = seen.map(|(mark, cell)| {
            let (last, facts) = cell.last_used();
            let idle_seconds = second.saturating_sub(last);
            SeenByPrincipal { mark: *mark, facts, idle_seconds }
        });
        seen.filter(|seen| seen.facts.has_seen_anything()).collect()
    }

    /// Merges facts reported by another node.
    pub fn take_over(&self, SeenByPrincipal { mark, facts, idle_seconds }: SeenByPrincipal) {
        if idle_seconds > WINDOW_SECONDS {
            return;
        }
        let second = second();
        let last = second.saturating_sub(idle_seconds);
        self.get(mark, last).merge_remote(facts, last, second);
    }
}

/// Seconds since the start, plus [`FIRST_SECOND`].
fn second() -> u32 {
    let seconds = clock::lately().saturating_duration_since(*START).as_secs();
    u32::try_from(seconds).unwrap_or(u32::MAX).saturating_add(FIRST_SECOND)
}

#[cfg(test)]
mod tests {
    use super::super::client::ActiveCall;
    use super::super::client::Channel;
    use super::super::kept_results;
    use super::*;
    use crate::results::{KeepTerms, ResultHandle, ResultStore, StoreBounds};
    use mcpproxy_activity::record::Source;
    use mcpproxy_policy::tool::World;
    use mcpproxy_policy::{AgentToken, Scope};

    use std::time::Duration;

    const OPEN: Exposure = Exposure { sensitivity: None, world: World::Open };

    fn caller(principal: Principal, name: &str, client: Option<&Arc<Client>>) -> Caller {
        let client = client.map(|it| (ActiveCall::of(Arc::clone(it)), Channel::Answer));
        let request_id = bytes::Bytes::new();
        let name = name.into();
        Caller {
            source: Source::Mcp,
            principal,
            request_id,
            name,
            client,
            extensions: false,
            trace: None,
        }
    }

    fn token(made: u64) -> Principal {
        Principal::Token(Arc::new(AgentToken::new("ci", made, Scope::default())))
    }

    #[test]
    fn principal_facts_apply_to_all_its_sessions_and_no_others() {
        let (table, workers) =
            (PrincipalFacts::default(), [(); 2].map(|()| RememberedFacts::default()));
        let (session, other) = (Client::of_test(), Client::of_test());
        let of = |caller: &Caller, worker: usize| {
            FactsOf::caller(caller, &table, &workers[worker]).now().open_world_seen
        };
        let see = |caller: &Caller| {
            let facts = FactsOf::caller(caller, &table, &workers[0]);
            facts.rise(OPEN).unwrap().answered(&table);
            assert!(facts.rise(OPEN).is_none(), "already raised");
        };
        see(&caller(Principal::Anonymous, "", Some(&session)));
        see(&caller(token(1), "a", None));
        for (principal, name, client, seen) in [
            (Principal::Anonymous, "", Some(&session), true),
            (Principal::Anonymous, "", Some(&other), true),
            (Principal::Anonymous, "b", None, true),
            (token(1), "b", None, true),
            (token(1), "", Some(&other), true),
            (token(2), "a", None, false),
            (Principal::Admin, "a", None, false),
        ] {
            for worker in [0, 1] {
                let caller = caller(principal.clone(), name, client);
                assert_eq!(of(&caller, worker), seen, "{principal:?} {name}");
            }
        }
    }

    // SES-1
    #[test]
    fn reading_a_kept_result_raises_the_facts_again_after_they_expired() {
        let (table, worker) = (PrincipalFacts::default(), RememberedFacts::default());
        let caller = caller(token(1), "a", None);
        let home = tempfile::tempdir().unwrap();
        let results = ResultStore::new(home.path().join("results"));
        let handle = |number| ResultHandle::new([number; 16]);
        let terms = KeepTerms {
            owner: kept_results::owner(&caller),
            server: "s".into(),
            exposure: OPEN,
            keep: Duration::from_secs(600),
        };
        let bounds = StoreBounds { max_bytes: 1000, max_results: 10 };
        results.keep(handle(1), &["{}".into()], terms, bounds, Instant::now()).unwrap();
        let of = || FactsOf::caller(&caller, &table, &worker);
        let read = |handle: &ResultHandle, caller: &Caller| {
            let raise = |exposure| of().rise(exposure).unwrap().answered(&table);
            kept_results::find(&results, handle, caller, raise).is_some()
        };
        of().rise(OPEN).unwrap().answered(&table);
        // The principal makes no request until its facts have expired.
        let cell = table.get(caller.principal.mark(), FIRST_SECOND);
        cell.used(second() + 1 + WINDOW_SECONDS);
        assert!(!of().now().open_world_seen);
        let other = self::caller(token(2), "a", None);
        assert!(!read(&handle(2), &caller) && !read(&handle(1), &other));
        assert!(!of().now().open_world_seen, "nothing was read");
        assert!(read(&handle(1), &caller));
        assert!(of().now().open_world_seen);
    }

    #[test]
    fn stated_sensitivity_counts_for_the_principal_and_the_number_of_calls_for_the_session() {
        let (table, worker) = (PrincipalFacts::default(), RememberedFacts::default());
        let (session, other) = (Client::of_test(), Client::of_test());
        let facts = |client: Option<&Arc<Client>>| {
            let caller = caller(Principal::Anonymous, "", client);
            FactsOf::caller(&caller, &table, &worker).now()
        };
        for client in [Some(&session), Some(&session), None] {
            let caller = caller(Principal::Anonymous, "", client);
            let of = FactsOf::caller(&caller, &table, &worker);
            of.permitted(Some(Sensitivity::Private));
        }
        let expected = |calls| SessionFacts {
            max_sensitivity: Some(Sensitivity::Private),
            open_world_seen: false,
            calls,
        };
        assert_eq!(facts(Some(&session)), expected(2));
        assert_eq!(facts(Some(&other)), expected(0));
        assert_eq!(facts(None), expected(1));
    }

    #[test]
    fn bounded_principal_table_loses_no_facts() {
        let table = PrincipalFacts::default();
        let mark = |number: usize| {
            let mut mark = [0; 16];
            mark[..8].copy_from_slice(&(number as u64).to_be_bytes());
            mark
        };
        for number in 0..MAX_PRINCIPALS {
            table.get(mark(number), FIRST_SECOND);
        }
        let common = table.get(mark(usize::MAX), FIRST_SECOND);
        common.answered(OPEN);
        let another = table.get(mark(usize::MAX - 1), FIRST_SECOND);
        assert!(another.get().open_world_seen, "they share one");
        assert_eq!(table.table.lock().cells.len(), MAX_PRINCIPALS);
        let late = FIRST_SECOND + 1 + WINDOW_SECONDS;
        assert!(!table.get(mark(usize::MAX), late).get().open_world_seen);
        assert_eq!(table.table.lock().cells.len(), 1);
        // A principal that recently shared the cell keeps its facts.
        common.used(late);
        common.answered(OPEN);
        assert!(table.get(mark(usize::MAX - 1), late).get().open_world_seen);
    }

    #[test]
    fn facts_from_another_node_expire_at_the_same_time_as_on_that_node() {
        let (table, worker) = (PrincipalFacts::default(), RememberedFacts::default());
        let caller = caller(Principal::Admin, "", None);
        let open = SessionFacts { open_world_seen: true, ..SessionFacts::default() };
        let report = |idle_seconds| SeenByPrincipal {
            mark: Principal::Admin.mark(),
            facts: open,
            idle_seconds,
        };
        table.take_over(report(WINDOW_SECONDS + 1));
        assert_eq!(table.seen(), [], "it has expired");
        table.take_over(report(100));
        let [seen] = table.seen()[..] else { panic!("exactly one principal has facts") };
        assert_eq!(seen, report(seen.idle_seconds));
        assert!(seen.idle_seconds >= 100, "not used on this node");
        assert!(FactsOf::caller(&caller, &table, &worker).now().open_world_seen);
    }
}
