//! How much goes out at a time and how often, to whom, by whom: the last check of an admission.
//!
//! Owns the order in which limits are asked, and what a request occupies until its answer has come. That a request
//! waits, and how long, is the caller's; the counting is [`Gate`](crate::io::gate)'s, `rate`'s and `breaker`'s.
//!
//! The order: the server's breaker; the rates, from the narrowest (tool, principal, server, all); then a place under
//! each limit on calls at a time, from the narrowest too, so that whoever waits for one tool holds nothing that others
//! need. All take them in this order, so that no two wait for each other. A request that a wider rate refuses has
//! counted for the narrower ones.
//!
//! A tool with `parallel_safe: false` is one of a limit of 1 (CAP-6).
//!
//! In a fleet each limit is for all nodes together: each lets in its share, which is what is set divided by the nodes that
//! live, and at least one ([`CallLimits::share_among`]). A breaker is a node's own.

mod breaker;
mod config;
mod keyed;
mod rate;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

pub use self::breaker::{Breaker, BreakerChange, Pass, ServerOutcome};
pub use self::config::{BreakerConfig, Config, DEFAULT_QUEUE, Limit, MAX_QUEUE, ServerConfig};
use self::keyed::{Kept, Keyed};
use self::rate::Rate;
use super::access::Access;
use super::denial::LimitReached;
use super::principal::Principal;
use crate::io::clock;
use crate::io::gate::{Arrival, Gate, GatePlace, Turn};
use crate::tool::{Rules, Tool};

/// What stands in a refusal for all servers together.
const ALL: &str = "all servers";

/// The limits in force, and what is taken of them. Those of the next config go on with what was counted where they say
/// the same ([`CallLimits::next`]), and begin anew where they do not.
pub struct CallLimits {
    /// Whether any is set; if not, only a tool that is not parallel-safe is held up.
    configured: Configured,
    all: Arc<Cell>,
    servers: HashMap<Arc<str>, OfServer>,
    tool_rules: Rules<Limit>,
    principal_rules: Rules<Limit>,
    /// The number of the config, from 0.
    number: u64,
    counted: Arc<Counted>,
}

/// What is counted of many keys, by the limits of all configs.
#[derive(Default)]
struct Counted {
    tools: Keyed<OfTool>,
    tool_rates: Keyed<Rate>,
    principals: Keyed<Cell>,
    keys: RandomState,
    queued: Arc<AtomicUsize>,
    /// Nodes that share the limits beside this one.
    others: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Configured {
    Nothing,
    Something,
}

/// What one limit counts.
#[derive(Debug, Default)]
struct Cell {
    limit: Limit,
    gate: Option<Arc<Gate>>,
    rate: Option<Rate>,
}

#[derive(Debug, Default)]
struct OfServer {
    cell: Arc<Cell>,
    breaker: Option<Arc<Breaker>>,
}

/// Of a tool: its places, and the rate that each principal has by itself.
#[derive(Debug, Default)]
struct OfTool {
    limit: Limit,
    gate: Option<Arc<Gate>>,
    rate: Option<NonZeroU32>,
}

/// What a limit is of, from the narrowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Tool,
    Principal,
    Server,
    All,
}

/// What a request occupies, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    places: Vec<GatePlace>,
    pass: Option<Pass>,
}

/// What becomes of a request that no limit refuses.
#[derive(Debug)]
pub(super) enum Entrance {
    Free(Occupied),
    Queued(Queue),
}

/// A request before a gate, with what it occupies so far and the gates behind.
#[derive(Debug)]
pub(super) struct Queue {
    at: (Scope, Arc<Gate>),
    turn: Turn,
    behind: Vec<(Scope, Arc<Gate>)>,
    occupied: Occupied,
    breaker: Option<Arc<Breaker>>,
    _counted: QueuedCount,
}

/// Counts one request among those that wait, until it is dropped.
#[derive(Debug)]
struct QueuedCount(Arc<AtomicUsize>);

impl QueuedCount {
    fn of(queued: &Arc<AtomicUsize>) -> Self {
        queued.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(queued))
    }
}

impl Drop for QueuedCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallLimits {
    /// These limits, of servers by their names.
    #[must_use]
    pub fn new(
        config: &Config,
        servers: impl IntoIterator<Item = (Arc<str>, ServerConfig)>,
    ) -> Self {
        Self::after(None, config, servers)
    }

    /// The limits of the next config: places that are taken, rates and breakers go on as they are where both say the
    /// same of them.
    #[must_use]
    pub fn next(
        &self,
        config: &Config,
        servers: impl IntoIterator<Item = (Arc<str>, ServerConfig)>,
    ) -> Self {
        Self::after(Some(self), config, servers)
    }

    fn after(
        before: Option<&Self>,
        config: &Config,
        servers: impl IntoIterator<Item = (Arc<str>, ServerConfig)>,
    ) -> Self {
        let mut of_servers = HashMap::new();
        for (name, server) in servers {
            let before = before.and_then(|before| before.servers.get(&name));
            let breaker = server.breaker.or(config.breaker).map(|config| {
                let known = before.and_then(|before| before.breaker.as_ref());
                let known = known.filter(|known| known.config() == config).cloned();
                known.unwrap_or_else(|| Arc::new(Breaker::new(Arc::clone(&name), config)))
            });
            let cell = Cell::after(before.map(|before| &before.cell), server.limit());
            if cell.is_set() || breaker.is_some() {
                of_servers.insert(name, OfServer { cell, breaker });
            }
        }
        let all = Cell::after(before.map(|before| &before.all), config.all());
        let any = all.is_set()
            || !of_servers.is_empty()
            || !config.tools.is_empty()
            || !config.principals.is_empty();
        Self {
            configured: if any { Configured::Something } else { Configured::Nothing },
            all,
            servers: of_servers,
            tool_rules: config.tools.clone(),
            principal_rules: config.principals.clone(),
            number: before.map_or(0, |before| before.number + 1),
            counted: before.map(|before| Arc::clone(&before.counted)).unwrap_or_default(),
        }
    }

    /// So many nodes of a fleet share these limits, and those of later configs: this one among them. It counts from the next
    /// request on; who has a place keeps it.
    pub fn share_among(&self, nodes: usize) {
        let others = u32::try_from(nodes.saturating_sub(1)).unwrap_or(u32::MAX - 1);
        self.counted.others.store(others.min(u32::MAX - 1), Ordering::Relaxed);
    }

    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self.counted.others.load(Ordering::Relaxed))
    }

    /// How many requests wait for a place, by the limits of this config and of those before it.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.counted.queued.load(Ordering::Relaxed)
    }

    /// Asks for leave to send one request.
    pub(super) fn enter(
        &self,
        principal: &Principal,
        access: &Access,
    ) -> Result<Entrance, LimitReached> {
        let serial = access.tool().is_some_and(|tool| !tool.capability.parallel_safe);
        if self.configured == Configured::Nothing && !serial {
            return Ok(Entrance::Free(Occupied::default()));
        }
        self.enter_limited(principal, access)
    }

    fn enter_limited(
        &self,
        principal: &Principal,
        access: &Access,
    ) -> Result<Entrance, LimitReached> {
        let now = clock::lately();
        let server = self.servers.get(&**access.server());
        let breaker = server.and_then(|server| server.breaker.as_ref());
        if let Some(breaker) = breaker {
            breaker.check(now)?;
        }
        let id = principal.id();
        let nodes = self.nodes();
        let Counted { tools, tool_rates, principals, keys, .. } = &*self.counted;
        let of_tool = access.tool().map(|tool| {
            let key =
                keys.hash_one((&tool.name.server, &tool.name.tool, tool.capability.parallel_safe));
            tools.get((key, self.number), now, || self.of_tool(tool))
        });
        let of_principal = (!self.principal_rules.is_empty()).then(|| {
            let make = || Cell::new(Limit::of(&self.principal_rules, id));
            principals.get((keys.hash_one(id), self.number), now, make)
        });
        let refused = |scope: Scope, rate: &Rate, retry_after: Duration| LimitReached::Rate {
            of: scope.name(principal, access),
            limit: rate.limit_of(nodes).get(),
            retry_after,
        };
        if let (Some(tool), Some(limit)) = (access.tool(), of_tool.as_ref().and_then(|of| of.rate))
        {
            let key = keys.hash_one((id, &tool.name.server, &tool.name.tool));
            let rate = tool_rates.get((key, self.number), now, || Rate::new(limit));
            rate.take(nodes).map_err(|wait| refused(Scope::Tool, &rate, wait))?;
        }
        let cells = [
            (Scope::Principal, of_principal.as_deref()),
            (Scope::Server, server.map(|server| &*server.cell)),
            (Scope::All, Some(&self.all)),
        ];
        for (scope, cell) in cells {
            if let Some(rate) = cell.and_then(|cell| cell.rate.as_ref()) {
                rate.take(nodes).map_err(|wait| refused(scope, rate, wait))?;
            }
        }
        let of_tool =
            of_tool.as_ref().and_then(|of| Some((of.gate.as_ref()?, of.limit.concurrent?)));
        let mut gates = std::iter::once((Scope::Tool, of_tool))
            .chain(cells.map(|(scope, cell)| (scope, cell.and_then(Cell::bounded_gate))))
            .filter_map(|(scope, gate)| {
                let (gate, most) = gate?;
                gate.limit_to((most.get() / nodes.get() as usize).max(1));
                Some((scope, gate))
            });
        let mut occupied = Occupied::default();
        while let Some((scope, gate)) = gates.next() {
            match gate.enter() {
                Arrival::Inside(place) => occupied.places.push(place),
                Arrival::Full => return Err(scope.full(gate, principal, access, None)),
                Arrival::Queued(turn) => {
                    let owned = |(scope, gate): (Scope, &Arc<Gate>)| (scope, Arc::clone(gate));
                    return Ok(Entrance::Queued(Queue {
                        at: owned((scope, gate)),
                        turn,
                        behind: gates.map(owned).collect(),
                        occupied,
                        breaker: breaker.cloned(),
                        _counted: QueuedCount::of(&self.counted.queued),
                    }));
                }
            }
        }
        if let Some(breaker) = breaker {
            occupied.pass = Some(breaker.pass(now)?);
        }
        Ok(Entrance::Free(occupied))
    }

    fn of_tool(&self, tool: &Tool) -> OfTool {
        let mut limit = Limit::default();
        if !self.tool_rules.is_empty() {
            limit = Limit::of(&self.tool_rules, &tool.name.to_string());
        }
        let rate = limit.rate_per_minute;
        if !tool.capability.parallel_safe {
            limit.concurrent = Some(NonZeroUsize::MIN);
        }
        OfTool { limit, gate: gate(limit), rate }
    }
}

impl Default for CallLimits {
    /// None.
    fn default() -> Self {
        Self::new(&Config::default(), [])
    }
}

impl fmt::Debug for CallLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallLimits({:?})", self.configured)
    }
}

fn gate(limit: Limit) -> Option<Arc<Gate>> {
    let queue = limit.queue.unwrap_or(DEFAULT_QUEUE);
    limit.concurrent.map(|most| Arc::new(Gate::new(most.get(), queue)))
}

impl Cell {
    fn new(limit: Limit) -> Self {
        Self { limit, gate: gate(limit), rate: limit.rate_per_minute.map(Rate::new) }
    }

    /// The one before, where that has the same limit.
    fn after(before: Option<&Arc<Self>>, limit: Limit) -> Arc<Self> {
        let known = before.filter(|before| before.limit == limit).cloned();
        known.unwrap_or_else(|| Arc::new(Self::new(limit)))
    }

    /// The gate, and what is set for all nodes together.
    fn bounded_gate(&self) -> Option<(&Arc<Gate>, NonZeroUsize)> {
        Some((self.gate.as_ref()?, self.limit.concurrent?))
    }

    fn is_set(&self) -> bool {
        self.gate.is_some() || self.rate.is_some()
    }
}

impl Kept for Cell {
    fn is_held(&self) -> bool {
        self.gate.as_deref().is_some_and(is_held)
    }

    fn says_the_same(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl Kept for OfTool {
    fn is_held(&self) -> bool {
        self.gate.as_deref().is_some_and(is_held)
    }

    fn says_the_same(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl Kept for Rate {
    fn is_held(&self) -> bool {
        false
    }

    fn says_the_same(&self, other: &Self) -> bool {
        self.limit() == other.limit()
    }
}

fn is_held(gate: &Gate) -> bool {
    gate.inside() > 0 || gate.waiting() > 0
}

impl Scope {
    /// What stands for it in a refusal.
    fn name(self, principal: &Principal, access: &Access) -> Box<str> {
        match self {
            Self::Tool => access.to_string().into(),
            Self::Principal => principal.id().into(),
            Self::Server => (&**access.server()).into(),
            Self::All => ALL.into(),
        }
    }

    fn full(
        self,
        gate: &Gate,
        principal: &Principal,
        access: &Access,
        waited: Option<Duration>,
    ) -> LimitReached {
        let of = self.name(principal, access);
        LimitReached::Concurrency { of, limit: gate.limit(), queue: gate.queue(), waited }
    }
}

impl Occupied {
    /// Gives the places back, and tells what came of the request.
    pub(super) fn settle(&mut self, outcome: ServerOutcome) -> Option<BreakerChange> {
        self.places = Vec::new();
        self.pass.take().and_then(|pass| pass.told(outcome, clock::lately()))
    }

    /// Gives everything back of a request of which nothing is known.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }
}

impl Queue {
    /// Waits until there is a place under every limit. Dropped, it goes on where it was, but at the end of the queue.
    pub(super) async fn come(
        &mut self,
        principal: &Principal,
        access: &Access,
    ) -> Result<Occupied, LimitReached> {
        loop {
            let place = self.turn.come().await;
            self.occupied.places.push(place);
            if !self.next(principal, access)? {
                break;
            }
        }
        let mut occupied = std::mem::take(&mut self.occupied);
        if let Some(breaker) = &self.breaker {
            occupied.pass = Some(breaker.pass(clock::now())?);
        }
        Ok(occupied)
    }

    /// Goes through the gates behind; true where it has to wait again.
    fn next(&mut self, principal: &Principal, access: &Access) -> Result<bool, LimitReached> {
        while !self.behind.is_empty() {
            let (scope, gate) = self.behind.remove(0);
            match gate.enter() {
                Arrival::Inside(place) => self.occupied.places.push(place),
                Arrival::Full => return Err(scope.full(&gate, principal, access, None)),
                Arrival::Queued(turn) => {
                    self.turn = turn;
                    self.at = (scope, gate);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The refusal of a request that has waited too long.
    pub(super) fn late(
        &self,
        principal: &Principal,
        access: &Access,
        waited: Duration,
    ) -> LimitReached {
        let (scope, gate) = &self.at;
        scope.full(gate, principal, access, Some(waited))
    }
}

#[cfg(test)]
mod tests;
