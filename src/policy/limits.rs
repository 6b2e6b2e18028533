//! Limits on concurrency, rates and failing servers: the last check of admission.
//!
//! Owns the order of the limits and the slots that a request occupies until its response. The caller decides how long a
//! request waits; [`Gate`](mcpproxy_runtime::io::gate), `rate` and `breaker` keep the counts.
//!
//! Order: the server's breaker; rates, narrowest first (tool, principal, server, all); then concurrency, narrowest
//! first, so that a request waiting for one tool holds nothing that others need. The fixed order prevents deadlock. A
//! request denied by a wider rate has counted against the narrower ones.
//!
//! `parallel_safe: false` is a concurrency limit of 1 (CAP-6).
//!
//! A request that the proxy itself makes on behalf of a principal is subject to the server's breaker and concurrency, and to the
//! concurrency of all servers, but not to rates or to limits of the principal.
//!
//! In a fleet limits apply to all nodes together: each node enforces its share, the limit divided by the number of
//! live nodes, at least one ([`CallLimits::share_among`]). Breakers are per node.

mod breaker;
mod config;
mod rate;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use self::rate::{CountedEntry, KeyedTable, Rate};
use super::denial::{LimitReached, TooManyRefusals};
use super::principal::Principal;
use super::request::Access;
use super::tool::{Rules, Tool};
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::gate::{Arrival, Gate, GatePlace, QueuedSlot};

pub use self::breaker::{Breaker, BreakerChange, Pass, ServerOutcome};
pub use self::config::{
    BreakerConfig, Config, DEFAULT_QUEUE, DEFAULT_REFUSALS, DEFAULT_REFUSALS_BURST, Limit,
    MAX_QUEUE, ServerConfig,
};

/// Name of the global limit in denials.
const ALL: &str = "all servers";

/// The limits in force and their usage. A limit that the next config leaves unchanged keeps its counts
/// ([`CallLimits::next`]).
pub struct CallLimits {
    /// Whether any limit is set; if not, only tools that are not parallel-safe are limited.
    configured: Configured,
    all: Arc<Cell>,
    servers: HashMap<Arc<str>, ServerLimit>,
    tool_rules: Rules<Limit>,
    principal_rules: Rules<Limit>,
    /// Denials per principal: rate per second, and burst.
    refusals: Option<(NonZeroU32, NonZeroU32)>,
    /// Config number, counted from 0.
    number: u64,
    counted: Arc<Counted>,
}

/// Counts per key, shared by the limits of all configs.
#[derive(Default)]
struct Counted {
    tools: KeyedTable<ToolLimit>,
    tool_rates: KeyedTable<Rate>,
    principals: KeyedTable<Cell>,
    refusals: KeyedTable<Rate>,
    keys: RandomState,
    queued: Arc<AtomicUsize>,
    /// Number of other nodes that share the limits.
    others: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Configured {
    Nothing,
    Something,
}

/// One limit and its counts.
#[derive(Debug, Default)]
struct Cell {
    limit: Limit,
    gate: Option<Arc<Gate>>,
    rate: Option<Rate>,
}

#[derive(Debug, Default)]
struct ServerLimit {
    cell: Arc<Cell>,
    breaker: Option<Arc<Breaker>>,
}

/// A tool's concurrency gate, and its rate per principal.
#[derive(Debug, Default)]
struct ToolLimit {
    limit: Limit,
    gate: Option<Arc<Gate>>,
    rate: Option<NonZeroU32>,
}

/// Scope of a limit, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Tool,
    Principal,
    Server,
    All,
}

/// Slots of a request, released when dropped.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    places: Vec<GatePlace>,
    pass: Option<Pass>,
}

/// Result of a request that no limit denies.
#[derive(Debug)]
pub(super) enum Entrance {
    Free(Occupied),
    Queued(Queue),
}

/// A request that waits at a gate, with the slots it already has and the gates that follow.
#[derive(Debug)]
pub(super) struct Queue {
    at: (Scope, Arc<Gate>),
    slot: QueuedSlot,
    following: Vec<(Scope, Arc<Gate>)>,
    occupied: Occupied,
    breaker: Option<Arc<Breaker>>,
    _counted: QueuedCount,
}

/// Counts one waiting request until dropped.
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
    pub fn new(
        config: &Config,
        servers: impl IntoIterator<Item = (Arc<str>, ServerConfig)>,
    ) -> Self {
        Self::after(None, config, servers)
    }

    /// Limits of the next config: slots, rates and breakers of equal limits are kept.
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
                of_servers.insert(name, ServerLimit { cell, breaker });
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
            refusals: config.refusals(),
            number: before.map_or(0, |before| before.number + 1),
            counted: before.map(|before| Arc::clone(&before.counted)).unwrap_or_default(),
        }
    }

    /// Sets the number of nodes, including this one, that share these and all later limits. Applies from the next request on; taken slots
    /// are kept.
    pub fn share_among(&self, nodes: usize) {
        let others = u32::try_from(nodes.saturating_sub(1)).unwrap_or(u32::MAX - 1);
        self.counted.others.store(others.min(u32::MAX - 1), Ordering::Relaxed);
    }

    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self.counted.others.load(Ordering::Relaxed))
    }

    /// Number of requests waiting for a slot, under this and earlier configs.
    pub fn queued(&self) -> usize {
        self.counted.queued.load(Ordering::Relaxed)
    }

    /// Acquires the slots for one request.
    pub(super) fn enter(
        &self,
        principal: &Principal,
        access: &Access,
    ) -> Result<Entrance, LimitReached> {
        let serial = access.called_tool().is_some_and(|tool| !tool.capability.parallel_safe);
        if self.configured == Configured::Nothing && !serial {
            return Ok(Entrance::Free(Occupied::default()));
        }
        self.enter_limited(principal, access)
    }

    /// Counts a denied request of `principal`.
    ///
    /// Returns [`TooManyRefusals`] above the principal's rate: such denials are not recorded one by one.
    pub fn refuse(&self, principal: &Principal) -> Result<(), TooManyRefusals> {
        let Some((limit, burst)) = self.refusals else { return Ok(()) };
        let (id, nodes) = (principal.id(), self.nodes());
        let key = (self.counted.keys.hash_one(id), self.number);
        let make = || Rate::per_second(limit, burst);
        let rate = self.counted.refusals.get(key, clock::lately(), make);
        rate.take(nodes).map_err(|retry_after| TooManyRefusals {
            of: id.into(),
            limit: rate.limit_of(nodes).get(),
            retry_after,
        })
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
        let is_by_proxy = access.is_by_proxy();
        let Counted { tools, tool_rates, principals, keys, .. } = &*self.counted;
        let of_tool = access.called_tool().map(|tool| {
            let key =
                keys.hash_one((&tool.name.server, &tool.name.tool, tool.capability.parallel_safe));
            tools.get((key, self.number), now, || self.of_tool(tool))
        });
        let of_principal = (!is_by_proxy && !self.principal_rules.is_empty()).then(|| {
            let make = || Cell::new(Limit::of(&self.principal_rules, id));
            principals.get((keys.hash_one(id), self.number), now, make)
        });
        let refused = |scope: Scope, rate: &Rate, retry_after: Duration| LimitReached::Rate {
            of: scope.name(principal, access),
            limit: rate.limit_of(nodes).get(),
            retry_after,
        };
        if let (Some(tool), Some(limit)) =
            (access.called_tool(), of_tool.as_ref().and_then(|of| of.rate))
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
            if let Some(rate) = cell.and_then(|cell| cell.rate.as_ref()).filter(|_| !is_by_proxy) {
                rate.take(nodes).map_err(|wait| refused(scope, rate, wait))?;
            }
        }
        let of_tool =
            of_tool.as_ref().and_then(|of| Some((of.gate.as_ref()?, of.limit.concurrent?)));
        let mut gates = std::iter::once((Scope::Tool, of_tool))
            .chain(cells.map(|(scope, cell)| (scope, cell.and_then(Cell::bounded_gate))))
            .filter_map(|(scope, gate)| {
                let (gate, limit) = gate?;
                gate.limit_to((limit.get() / nodes.get() as usize).max(1));
                Some((scope, gate))
            });
        let mut occupied = Occupied::default();
        while let Some((scope, gate)) = gates.next() {
            match gate.enter() {
                Arrival::Inside(place) => occupied.places.push(place),
                Arrival::Full => return Err(scope.full(gate, principal, access, None)),
                Arrival::Queued(slot) => {
                    let owned = |(scope, gate): (Scope, &Arc<Gate>)| (scope, Arc::clone(gate));
                    return Ok(Entrance::Queued(Queue {
                        at: owned((scope, gate)),
                        slot,
                        following: gates.map(owned).collect(),
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

    fn of_tool(&self, tool: &Tool) -> ToolLimit {
        let mut limit = Limit::default();
        if !self.tool_rules.is_empty() {
            limit = Limit::of(&self.tool_rules, &tool.name.to_string());
        }
        let rate = limit.rate_per_minute;
        if !tool.capability.parallel_safe {
            limit.concurrent = Some(NonZeroUsize::MIN);
        }
        ToolLimit { limit, gate: gate(limit), rate }
    }
}

impl Default for CallLimits {
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
    limit.concurrent.map(|limit| Arc::new(Gate::new(limit.get(), queue)))
}

impl Cell {
    fn new(limit: Limit) -> Self {
        Self { limit, gate: gate(limit), rate: limit.rate_per_minute.map(Rate::new) }
    }

    /// Returns the previous cell if its limit is equal, otherwise a new one.
    fn after(before: Option<&Arc<Self>>, limit: Limit) -> Arc<Self> {
        let known = before.filter(|before| before.limit == limit).cloned();
        known.unwrap_or_else(|| Arc::new(Self::new(limit)))
    }

    /// The gate and its fleet-wide limit.
    fn bounded_gate(&self) -> Option<(&Arc<Gate>, NonZeroUsize)> {
        Some((self.gate.as_ref()?, self.limit.concurrent?))
    }

    fn is_set(&self) -> bool {
        self.gate.is_some() || self.rate.is_some()
    }
}

impl CountedEntry for Cell {
    fn is_in_use(&self) -> bool {
        self.gate.as_deref().is_some_and(is_in_use)
    }

    fn has_same_limit(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl CountedEntry for ToolLimit {
    fn is_in_use(&self) -> bool {
        self.gate.as_deref().is_some_and(is_in_use)
    }

    fn has_same_limit(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl CountedEntry for Rate {
    fn is_in_use(&self) -> bool {
        false
    }

    fn has_same_limit(&self, other: &Self) -> bool {
        (self.limit(), self.burst()) == (other.limit(), other.burst())
    }
}

fn is_in_use(gate: &Gate) -> bool {
    gate.inside() > 0 || gate.waiting() > 0
}

impl Scope {
    /// Name in denials.
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
    /// Releases the slots and reports the outcome to the breaker.
    pub(super) fn settle(&mut self, outcome: ServerOutcome) -> Option<BreakerChange> {
        self.places = Vec::new();
        self.pass.take().and_then(|pass| pass.report(outcome, clock::lately()))
    }

    /// Releases everything without an outcome.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }
}

impl Queue {
    /// Waits for a slot under every limit. If canceled and polled again, it requeues at the end.
    pub(super) async fn acquire(
        &mut self,
        principal: &Principal,
        access: &Access,
    ) -> Result<Occupied, LimitReached> {
        loop {
            let place = self.slot.acquire().await;
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

    /// Passes the following gates; returns true if it has to wait again.
    fn next(&mut self, principal: &Principal, access: &Access) -> Result<bool, LimitReached> {
        while !self.following.is_empty() {
            let (scope, gate) = self.following.remove(0);
            match gate.enter() {
                Arrival::Inside(place) => self.occupied.places.push(place),
                Arrival::Full => return Err(scope.full(&gate, principal, access, None)),
                Arrival::Queued(slot) => {
                    self.slot = slot;
                    self.at = (scope, gate);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Denial of a request that waited too long.
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
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::tool::{Annotations, CapabilityOverride, Tool, ToolName};
    use crate::{ResourceRequest, TaskAccess, TaskRequest, ToolAccess};

    fn tool(name: &str, capabilities: &str) -> Access {
        let rules: Rules<CapabilityOverride> = serde_json::from_str(capabilities).unwrap();
        let annotations = Annotations::default();
        let name = ToolName::parse(name).unwrap();
        Access::Tool(ToolAccess::direct(Arc::new(Tool::named(name, annotations, &rules))))
    }

    fn serial(name: &str) -> Access {
        tool(name, r#"{"*": {"parallel_safe": false}}"#)
    }

    fn resource(server: &str) -> Access {
        Access::Resource {
            server: server.into(),
            uri: "a:b".into(),
            request: ResourceRequest::Read,
        }
    }

    fn limits(config: &str, servers: &[(&str, &str)]) -> CallLimits {
        let config: Config = serde_json::from_str(config).unwrap();
        let servers = servers.iter().map(|(name, config)| {
            (Arc::from(*name), serde_json::from_str::<ServerConfig>(config).unwrap())
        });
        CallLimits::new(&config, servers)
    }

    const ADMIN: &Principal = &Principal::Admin;
    const ANYONE: &Principal = &Principal::Anonymous;

    fn free(limits: &CallLimits, principal: &Principal, access: &Access) -> Occupied {
        match limits.enter(principal, access) {
            Ok(Entrance::Free(occupied)) => occupied,
            other @ (Ok(Entrance::Queued(_)) | Err(_)) => panic!("{other:?}"),
        }
    }

    fn queued(limits: &CallLimits, principal: &Principal, access: &Access) -> Queue {
        match limits.enter(principal, access) {
            Ok(Entrance::Queued(queue)) => queue,
            other @ (Ok(Entrance::Free(_)) | Err(_)) => panic!("{other:?}"),
        }
    }

    fn refused(limits: &CallLimits, principal: &Principal, access: &Access) -> String {
        limits.enter(principal, access).unwrap_err().to_string()
    }

    fn polled<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn request_without_limits_takes_no_permit() {
        let limits = CallLimits::default();
        let occupied = free(&limits, ADMIN, &tool("s:t", "{}"));
        assert!(occupied.places.is_empty() && occupied.pass.is_none());
        assert_eq!(occupied.places.capacity(), 0);
    }

    #[test]
    fn denial_names_its_limit() {
        for (config, server, of) in [
            (r#"{"concurrent": 1, "queue": 0}"#, "{}", "all servers"),
            ("{}", r#"{"concurrent": 1, "queue": 0}"#, "s"),
            (r#"{"tools": {"s:*": {"concurrent": 1, "queue": 0}}}"#, "{}", "s:t"),
            (r#"{"principals": {"ad*": {"concurrent": 1, "queue": 0}}}"#, "{}", "admin"),
        ] {
            let limits = limits(config, &[("s", server)]);
            let access = tool("s:t", "{}");
            let occupied = free(&limits, ADMIN, &access);
            let text = format!("Too many calls to '{of}' at a time: limit 1, queue 0");
            assert_eq!(refused(&limits, ADMIN, &access), text);
            drop(occupied);
            let again = free(&limits, ADMIN, &access);
            assert_eq!(again.places.len(), 1, "{of}");
        }
        for (config, server, of) in [
            (r#"{"rate_per_minute": 2}"#, "{}", "all servers"),
            ("{}", r#"{"rate_per_minute": 2}"#, "s"),
            (r#"{"tools": {"s:t": {"rate_per_minute": 2}}}"#, "{}", "s:t"),
            (r#"{"principals": {"admin": {"rate_per_minute": 2}}}"#, "{}", "admin"),
        ] {
            let limits = limits(config, &[("s", server)]);
            let access = tool("s:t", "{}");
            for _ in 0..2 {
                free(&limits, ADMIN, &access);
            }
            let text = format!("Too many calls to '{of}': limit 2 per minute, retry in 30s");
            assert_eq!(refused(&limits, ADMIN, &access), text);
        }
    }

    // Requirement LIM-1.
    #[test]
    fn limits_count_per_tool_and_principal() {
        let limits = limits(
            r#"{"tools": {"*": {"rate_per_minute": 1, "concurrent": 2, "queue": 0}},
            "principals": {"*": {"concurrent": 3, "queue": 0}}}"#,
            &[],
        );
        let (one, other) = (tool("s:one", "{}"), tool("s:other", "{}"));
        let _kept = [
            free(&limits, ADMIN, &one),
            free(&limits, ANYONE, &one),
            free(&limits, ADMIN, &other),
            free(&limits, ADMIN, &resource("s")),
        ];
        assert!(refused(&limits, ADMIN, &one).contains("'s:one': limit 1 per minute"));
        let text = "Too many calls to 'admin' at a time: limit 3, queue 0";
        assert_eq!(refused(&limits, ADMIN, &resource("s")), text);
        free(&limits, ANYONE, &resource("s"));
    }

    // Requirement PRO-43.
    #[test]
    fn request_by_the_proxy_is_limited_only_by_the_concurrency_of_servers() {
        let call = ToolAccess::direct(Arc::clone(tool("s:t", "{}").tool().unwrap()));
        let asked = TaskAccess::new(call, TaskRequest::Cancel, "1".into());
        let (theirs, own) = (Access::Task(asked.clone()), Access::Task(asked.by_proxy()));
        for (config, server) in [
            (r#"{"rate_per_minute": 1}"#, "{}"),
            ("{}", r#"{"rate_per_minute": 1}"#),
            (r#"{"principals": {"*": {"rate_per_minute": 1}}}"#, "{}"),
            (r#"{"principals": {"*": {"concurrent": 1, "queue": 0}}}"#, "{}"),
        ] {
            let limits = limits(config, &[("s", server)]);
            let _kept = free(&limits, ADMIN, &theirs);
            assert!(limits.enter(ADMIN, &theirs).is_err(), "{config} {server}");
            for _ in 0..3 {
                free(&limits, ADMIN, &own);
            }
        }
        for (config, server) in
            [(r#"{"concurrent": 1, "queue": 0}"#, "{}"), ("{}", r#"{"concurrent": 1, "queue": 0}"#)]
        {
            let limits = limits(config, &[("s", server)]);
            let _kept = free(&limits, ADMIN, &own);
            assert!(limits.enter(ADMIN, &own).is_err(), "{config} {server}");
        }
    }

    #[test]
    fn waiting_request_also_occupies_the_limits_after_the_one_it_waits_for() {
        let limits = limits(
            r#"{"tools": {"s:t": {"concurrent": 1}}}"#,
            &[("s", r#"{"concurrent": 1, "queue": 0}"#)],
        );
        let (access, other) = (tool("s:t", "{}"), tool("s:other", "{}"));
        let first = free(&limits, ADMIN, &access);
        let mut second = queued(&limits, ADMIN, &access);
        let mut coming = pin!(second.acquire(ADMIN, &access));
        assert!(polled(coming.as_mut()).is_none());
        drop(first);
        let second = polled(coming.as_mut()).unwrap().unwrap();
        let text = "Too many calls to 's' at a time: limit 1, queue 0";
        assert_eq!(refused(&limits, ADMIN, &other), text);
        drop(second);
        free(&limits, ADMIN, &other);
    }

    #[test]
    fn cap_6_a_serial_tool_is_called_one_at_a_time_in_order_of_arrival() {
        let limits = CallLimits::default();
        let access = serial("s:t");
        let first = free(&limits, ADMIN, &access);
        let (mut second, mut third) =
            (queued(&limits, ADMIN, &access), queued(&limits, ANYONE, &access));
        let (mut second, mut third) =
            (pin!(second.acquire(ADMIN, &access)), pin!(third.acquire(ANYONE, &access)));
        assert!(polled(second.as_mut()).is_none() && polled(third.as_mut()).is_none());
        free(&limits, ADMIN, &serial("s:another"));
        drop(first);
        assert!(polled(third.as_mut()).is_none());
        let second = polled(second.as_mut()).unwrap().unwrap();
        assert!(polled(third.as_mut()).is_none());
        drop(second);
        drop(polled(third.as_mut()).unwrap().unwrap());
        free(&limits, ADMIN, &access);
    }

    #[test]
    fn cap_6_ten_thousand_calls_to_a_serial_tool_wait_in_order_or_are_refused() {
        let limits = CallLimits::default();
        let access = serial("s:t");
        let first = free(&limits, ADMIN, &access);
        let mut waiting: Vec<Queue> = Vec::new();
        let mut refusals = 0;
        for _ in 0..10_000 {
            match limits.enter(ADMIN, &access) {
                Ok(Entrance::Queued(queue)) => waiting.push(queue),
                Ok(Entrance::Free(_)) => panic!("one at a time"),
                Err(full) => {
                    let text = "Too many calls to 's:t' at a time: limit 1, queue 256";
                    assert_eq!(full.to_string(), text);
                    refusals += 1;
                }
            }
        }
        assert_eq!((waiting.len(), refusals), (DEFAULT_QUEUE, 10_000 - DEFAULT_QUEUE));
        let next = limits.next(&Config::default(), []);
        assert_eq!((limits.queued(), next.queued()), (DEFAULT_QUEUE, DEFAULT_QUEUE));
        let text = waiting[7].late(ADMIN, &access, Duration::from_millis(1500)).to_string();
        let expected =
            "Too many calls to 's:t' at a time: limit 1, queue 256; none was free within 1s";
        assert_eq!(text, expected);
        // Half of them are canceled, the others get a slot one after another.
        let mut place = Some(first);
        for (at, mut queue) in waiting.into_iter().enumerate() {
            if at % 2 == 0 {
                drop(queue);
                continue;
            }
            let mut coming = pin!(queue.acquire(ADMIN, &access));
            assert!(polled(coming.as_mut()).is_none());
            drop(place.take());
            place = Some(polled(coming.as_mut()).unwrap().unwrap());
        }
        drop(place);
        assert_eq!(next.queued(), 0);
        let occupied = free(&limits, ADMIN, &access);
        assert_eq!(occupied.places.len(), 1);
    }

    // Requirement LIM-2.
    #[test]
    fn request_waiting_for_a_tool_holds_no_other_slot() {
        let limits = limits(r#"{"concurrent": 2, "queue": 1}"#, &[]);
        let (slow, quick) = (serial("s:slow"), tool("s:quick", "{}"));
        let first = free(&limits, ADMIN, &slow);
        let _waiting: Vec<Queue> = (0..20).map(|_| queued(&limits, ADMIN, &slow)).collect();
        drop(free(&limits, ADMIN, &quick));
        // This takes the last slot of all servers, so the next request waits at that gate.
        let _second = free(&limits, ADMIN, &quick);
        let mut other = queued(&limits, ADMIN, &serial("s:other"));
        let other_access = serial("s:other");
        let mut coming = pin!(other.acquire(ADMIN, &other_access));
        assert!(polled(coming.as_mut()).is_none());
        assert!(refused(&limits, ADMIN, &quick).contains("'all servers' at a time"));
        drop(first);
        let occupied = polled(coming.as_mut()).unwrap().unwrap();
        assert_eq!(occupied.places.len(), 2);
    }

    #[test]
    fn open_breaker_also_denies_waiting_requests() {
        let server = r#"{"concurrent": 1, "breaker": {"failures": 1, "open": "30s"}}"#;
        let limits = limits("{}", &[("s", server), ("other", "{}")]);
        let access = resource("s");
        let mut first = free(&limits, ADMIN, &access);
        let mut second = queued(&limits, ADMIN, &access);
        let mut coming = pin!(second.acquire(ADMIN, &access));
        assert!(polled(coming.as_mut()).is_none());
        assert!(matches!(
            first.settle(ServerOutcome::Failed),
            Some(BreakerChange::Opened { failures: 1, .. })
        ));
        let aside = "Server 's' is set aside after 1 failures, next try in 30s";
        assert_eq!(polled(coming.as_mut()).unwrap().unwrap_err().to_string(), aside);
        assert_eq!(refused(&limits, ADMIN, &access), aside);
        free(&limits, ADMIN, &resource("other"));
        assert_eq!(limits.servers["s"].cell.gate.as_ref().unwrap().inside(), 0);
    }

    #[test]
    fn denial_by_breaker_does_not_count_against_rates() {
        let server = r#"{"rate_per_minute": 2, "breaker": {"failures": 1, "open": "30s"}}"#;
        let limits = limits("{}", &[("s", server)]);
        free(&limits, ADMIN, &resource("s")).settle(ServerOutcome::Failed);
        for _ in 0..3 {
            assert!(refused(&limits, ADMIN, &resource("s")).contains("'s' is set aside"));
        }
    }

    #[test]
    fn section_breaker_applies_to_each_server() {
        let limits = limits(r#"{"breaker": {"failures": 1}}"#, &[("a", "{}"), ("b", "{}")]);
        free(&limits, ADMIN, &resource("a")).settle(ServerOutcome::Failed);
        assert!(refused(&limits, ADMIN, &resource("a")).contains("'a' is set aside"));
        free(&limits, ADMIN, &resource("b"));
    }

    // Requirement LIM-3.
    #[test]
    fn canceled_wait_leaves_no_state() {
        let limits = limits(r#"{"concurrent": 4, "queue": 50}"#, &[]);
        let access = tool("s:t", "{}");
        let mut inside: Vec<Occupied> = (0..4).map(|_| free(&limits, ADMIN, &access)).collect();
        for round in 0..200 {
            let mut waiting: Vec<Queue> =
                (0..50).map(|_| queued(&limits, ADMIN, &access)).collect();
            let mut comings: Vec<_> =
                waiting.iter_mut().map(|queue| Box::pin(queue.acquire(ADMIN, &access))).collect();
            assert!(comings.iter_mut().all(|coming| polled(coming.as_mut()).is_none()));
            // Frees slots, so that some requests have just received one when their wait is canceled.
            inside.truncate(round % 4);
            drop(comings);
            drop(waiting);
            while inside.len() < 4 {
                inside.push(free(&limits, ADMIN, &access));
            }
        }
        drop(inside);
        let gate = limits.all.gate.as_ref().unwrap();
        assert_eq!((gate.inside(), gate.waiting()), (0, 0));
    }

    #[test]
    fn limits_are_split_among_live_nodes_with_at_least_one_each() {
        let servers = [("s", r#"{"concurrent": 6, "queue": 0}"#)];
        let limits = limits(
            r#"{"rate_per_minute": 30, "tools": {"s:t": {"concurrent": 2, "queue": 0}}}"#,
            &servers,
        );
        let (access, other) = (tool("s:t", "{}"), tool("s:other", "{}"));
        let alone: Vec<_> = (0..6).map(|_| free(&limits, ADMIN, &other)).collect();
        limits.share_among(3);
        // Taken slots stay; a new slot is available only when fewer than two are taken.
        let full = "Too many calls to 's' at a time: limit 2, queue 0";
        assert_eq!(refused(&limits, ADMIN, &other), full);
        drop(alone);
        let two = [free(&limits, ADMIN, &other), free(&limits, ADMIN, &other)];
        assert_eq!(refused(&limits, ADMIN, &other), full);
        drop(two);
        let one = free(&limits, ADMIN, &access);
        let text = "Too many calls to 's:t' at a time: limit 1, queue 0";
        assert_eq!(refused(&limits, ADMIN, &access), text, "2 divided by 3 is 1");
        drop(one);
        // The next config keeps the number of nodes.
        let config: Config = serde_json::from_str(r#"{"concurrent": 8, "queue": 0}"#).unwrap();
        let next = limits.next(&config, []);
        next.share_among(4);
        let both = [free(&next, ADMIN, &other), free(&next, ADMIN, &other)];
        assert!(refused(&next, ADMIN, &other).contains("'all servers' at a time: limit 2"));
        next.share_among(1);
        let more: Vec<_> = (0..6).map(|_| free(&next, ADMIN, &other)).collect();
        assert!(refused(&next, ADMIN, &other).contains("'all servers' at a time: limit 8"));
        drop((both, more));
        assert_eq!(next.all.gate.as_ref().unwrap().inside(), 0);
    }

    #[test]
    fn denial_rate_is_per_principal_and_survives_reload() {
        let limits = limits(r#"{"refusals_per_second": 1, "refusals_burst": 20}"#, &[]);
        // The call clock only advances when a call begins.
        let refused =
            |limits: &CallLimits, who| (0..100).filter(|_| limits.refuse(who).is_ok()).count();
        clock::now();
        assert_eq!((refused(&limits, ADMIN), refused(&limits, ANYONE)), (20, 20));
        let text = "too many requests of 'admin' are refused: limit 1 per second, retry in 1s";
        assert_eq!(limits.refuse(ADMIN).unwrap_err().to_string(), text);
        let config: Config =
            serde_json::from_str(r#"{"refusals_per_second": 1, "refusals_burst": 20}"#).unwrap();
        let next = limits.next(&config, []);
        assert_eq!(refused(&next, ADMIN), 0);
        let config: Config = serde_json::from_str(r#"{"refusals_burst": 30}"#).unwrap();
        let next = next.next(&config, []);
        assert_eq!(refused(&next, ADMIN), 30);
        let config: Config = serde_json::from_str(r#"{"refusals_per_second": 0}"#).unwrap();
        assert_eq!(refused(&next.next(&config, []), ADMIN), 100);
        // Denials use no slot of calls.
        assert_eq!(free(&limits, ADMIN, &tool("s:t", "{}")).places.capacity(), 0);
    }
}
