//! Whose facts are whose: a session has a cell of its own, clients without one share that of their principal and name.
//!
//! What the facts are, and that they only rise, is [`policy`](crate::policy)'s. A worker remembers the cells that it
//! has asked for, so that a call takes no lock that another takes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use parking_lot::Mutex;

use super::caller::Caller;
use super::client::Client;
use crate::io::clock;
use crate::policy::{FactsCell, SessionFacts};
use crate::tool::Exposure;

/// Most clients without a session that are told apart; those that come when as many are active share one cell, which
/// then says what any of them has seen.
pub const MAX_SESSIONLESS: usize = 16_384;
/// Cells that a worker remembers.
const REMEMBERED: usize = 256;

/// Where seconds count from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The cells of clients without a session.
#[derive(Debug, Default)]
pub struct SessionlessFacts {
    table: Mutex<Table>,
    keys: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    cells: HashMap<u64, Arc<FactsCell>>,
    common: Arc<FactsCell>,
    /// The second in which it was looked through last.
    swept: u32,
}

/// The cells that one worker remembers.
#[derive(Default)]
pub(super) struct RememberedFacts(RefCell<HashMap<u64, Arc<FactsCell>>>);

impl fmt::Debug for RememberedFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RememberedFacts({})", self.0.borrow().len())
    }
}

/// A caller's cell.
pub(super) enum FactsOf<'a> {
    Session(&'a Arc<Client>),
    Shared(Arc<FactsCell>),
}

/// What the facts rise to when the answer begins.
#[derive(Debug)]
pub(super) struct Rise {
    of: Owned,
    exposure: Exposure,
}

#[derive(Debug)]
enum Owned {
    Session(Arc<Client>),
    Shared(Arc<FactsCell>),
}

impl<'a> FactsOf<'a> {
    /// The cell of a caller, and what it says.
    pub(super) fn caller(
        caller: &'a Caller,
        table: &SessionlessFacts,
        remembered: &RememberedFacts,
    ) -> (Self, SessionFacts) {
        if let Some((client, _)) = &caller.client
            && !client.session_id.is_empty()
        {
            let facts = client.facts.get();
            return (Self::Session(client), facts);
        }
        let second = second();
        let key = table.keys.hash_one((caller.principal.id(), caller.client_name()));
        let known = remembered.0.borrow().get(&key).cloned();
        let cell = known.unwrap_or_else(|| {
            let cell = table.get(key, second);
            let mut remembered = remembered.0.borrow_mut();
            if remembered.len() >= REMEMBERED {
                remembered.clear();
            }
            remembered.insert(key, Arc::clone(&cell));
            cell
        });
        let facts = cell.used(second);
        (Self::Shared(cell), facts)
    }

    /// What is to rise when the answer begins, if anything.
    pub(super) fn rise(self, now: SessionFacts, exposure: Exposure) -> Option<Rise> {
        if now.after(exposure) == now {
            return None;
        }
        let of = match self {
            Self::Session(client) => Owned::Session(Arc::clone(client)),
            Self::Shared(cell) => Owned::Shared(cell),
        };
        Some(Rise { of, exposure })
    }
}

impl Deref for FactsOf<'_> {
    type Target = FactsCell;

    fn deref(&self) -> &FactsCell {
        match self {
            Self::Session(client) => &client.facts,
            Self::Shared(cell) => cell,
        }
    }
}

impl Rise {
    /// The answer begins.
    pub(super) fn answered(self) {
        match self.of {
            Owned::Session(client) => client.facts.answered(self.exposure),
            Owned::Shared(cell) => cell.answered(self.exposure),
        }
    }
}

impl SessionlessFacts {
    fn get(&self, key: u64, second: u32) -> Arc<FactsCell> {
        let mut table = self.table.lock();
        let Table { cells, common, swept } = &mut *table;
        if let Some(cell) = cells.get(&key) {
            return Arc::clone(cell);
        }
        if cells.len() >= MAX_SESSIONLESS && *swept != second {
            *swept = second;
            // A worker that remembers one may be about to use it.
            cells.retain(|_, cell| Arc::strong_count(cell) > 1 || !cell.is_over(second));
        }
        if cells.len() >= MAX_SESSIONLESS {
            return Arc::clone(common);
        }
        let cell = Arc::<FactsCell>::default();
        cell.used(second);
        cells.insert(key, Arc::clone(&cell));
        cell
    }
}

/// Whole seconds since the start.
fn second() -> u32 {
    let seconds = clock::lately().saturating_duration_since(*START).as_secs();
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::Source;
    use crate::policy::{Principal, WINDOW_SECONDS};
    use crate::proxy::caller::Channel;
    use crate::proxy::client::ActiveCall;
    use crate::tool::World;

    const OPEN: Exposure = Exposure { sensitivity: None, world: World::Open };

    fn caller(principal: Principal, name: &str, client: Option<&Arc<Client>>) -> Caller {
        let client = client.map(|it| (ActiveCall::of(Arc::clone(it)), Channel::Answer));
        let request_id = bytes::Bytes::new();
        let name = name.into();
        Caller { source: Source::Mcp, principal, request_id, name, client, trace: None }
    }

    #[test]
    fn a_session_has_its_own_facts_and_others_those_of_principal_and_name() {
        let (table, workers) =
            (SessionlessFacts::default(), [(); 2].map(|()| RememberedFacts::default()));
        let session = Client::of_test();
        let other = Client::of_test();
        let of = |caller: &Caller, worker: usize| {
            FactsOf::caller(caller, &table, &workers[worker]).1.open_world_seen
        };
        let see = |caller: &Caller| {
            let (facts, now) = FactsOf::caller(caller, &table, &workers[0]);
            facts.rise(now, OPEN).unwrap().answered();
            let (facts, now) = FactsOf::caller(caller, &table, &workers[0]);
            assert!(facts.rise(now, OPEN).is_none(), "it has risen already");
        };
        see(&caller(Principal::Anonymous, "", Some(&session)));
        assert!(of(&caller(Principal::Anonymous, "", Some(&session)), 1));
        assert!(!of(&caller(Principal::Anonymous, "", Some(&other)), 1));
        see(&caller(Principal::Admin, "a", None));
        for (principal, name, seen) in [
            (Principal::Admin, "a", true),
            (Principal::Admin, "b", false),
            (Principal::Anonymous, "a", false),
        ] {
            for worker in [0, 1] {
                assert_eq!(of(&caller(principal.clone(), name, None), worker), seen, "{name}");
            }
        }
    }

    #[test]
    fn clients_without_a_session_are_bounded_and_lose_no_caution() {
        let table = SessionlessFacts::default();
        for key in 0..MAX_SESSIONLESS as u64 {
            table.get(key, 1);
        }
        let common = table.get(u64::MAX, 1);
        common.answered(OPEN);
        assert!(table.get(u64::MAX - 1, 1).get().open_world_seen, "they share one");
        assert_eq!(table.table.lock().cells.len(), MAX_SESSIONLESS);
        let late = 2 + WINDOW_SECONDS;
        assert!(!table.get(u64::MAX, late).get().open_world_seen);
        assert_eq!(table.table.lock().cells.len(), 1);
    }
}
