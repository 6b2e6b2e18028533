//! Principals, the originators of requests, and the accounts of memory kept on their behalf.
//!
//! A principal has one account for all of its sessions, subscriptions and replay buffers. Every allocation is charged
//! before it is kept, and its [`StateCharge`] releases the bytes when dropped. A principal that exhausted its account
//! is rejected; others are unaffected as long as the total has space. Uses no clock and no I/O.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use thiserror::Error;

use crate::intent::Operation;
use crate::tool::Pattern;

/// Principal of a request, as authenticated. Part of each request and its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Principal {
    /// Unauthenticated: loopback without a key, or a pipe.
    #[default]
    Anonymous,
    /// The holder of the API key.
    Admin,
    /// The holder of an agent token.
    Token(Arc<AgentToken>),
    /// Subject of a JWT.
    Subject(Arc<JwtSubject>),
    /// Holder of a client certificate: the whole id, `cert:NAME`.
    Certificate(Arc<str>),
}

impl Principal {
    /// Holder of a certificate with this name.
    pub fn certificate(name: &str) -> Self {
        Self::Certificate(format!("{CERTIFICATE}{name}").into())
    }

    /// Id in records and filters: stable, and unique across kinds by its prefix.
    pub fn id(&self) -> &str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Admin => "admin",
            Self::Token(token) => &token.id,
            Self::Subject(subject) => &subject.id,
            Self::Certificate(id) => id,
        }
    }

    /// Share of `all` slots that one principal may use, at least one. Anonymous and admin represent many
    /// indistinguishable clients, so they may use all slots.
    pub fn share(&self, all: usize) -> usize {
        match self {
            Self::Anonymous | Self::Admin => all,
            Self::Token(_) | Self::Subject(_) | Self::Certificate(_) => (all / SHARES).max(1),
        }
    }

    /// 128-bit mark of the principal, equal on all nodes and stable over time; other principals have other marks.
    pub fn mark(&self) -> [u8; 16] {
        let (kind, made) = match self {
            Self::Anonymous => (0, 0),
            Self::Admin => (1, 0),
            Self::Token(token) => (2, token.made),
            Self::Subject(_) => (3, 0),
            Self::Certificate(_) => (4, 0_u64),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[kind]).update(&made.to_be_bytes()).update(self.id().as_bytes());
        hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
    }

    /// Groups of the principal, as authenticated.
    pub fn groups(&self) -> &[Box<str>] {
        match self {
            Self::Anonymous | Self::Admin | Self::Token(_) | Self::Certificate(_) => &[],
            Self::Subject(subject) => &subject.groups,
        }
    }
}

/// An agent token, without its secret.
#[derive(Clone, Debug)]
pub struct AgentToken {
    id: Box<str>,
    /// Creation time in microseconds since 1970: a new token with the same name is another principal.
    made: u64,
    scope: Scope,
}

impl AgentToken {
    /// A token created at `made` (microseconds since 1970) with this scope.
    pub fn new(name: &str, made: u64, scope: Scope) -> Self {
        Self { id: format!("{TOKEN}{name}").into(), made, scope }
    }

    pub(crate) fn name(&self) -> &str {
        self.id.strip_prefix(TOKEN).unwrap_or(&self.id)
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// Scope of a token; an empty list does not limit it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Server names in the config.
    pub servers: Vec<Box<str>>,
    /// Tool patterns: `server:tool` if the pattern has a colon, otherwise the tool's own name. A token with tools and
    /// no servers excludes resources and prompts.
    pub tools: Vec<Pattern>,
    /// Allowed operations; resources, prompts and completions count as reads.
    pub operations: Vec<Operation>,
}

/// Compares the principals: a rotated token is the same principal.
impl PartialEq for AgentToken {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.made == other.made
    }
}

impl Eq for AgentToken {}

impl Hash for AgentToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
        self.made.hash(state);
    }
}

#[derive(Clone, Debug)]
pub struct JwtSubject {
    id: Box<str>,
    groups: Box<[Box<str>]>,
    /// Expiry of the JWT.
    until: SystemTime,
}

impl JwtSubject {
    /// Subject `sub` of an identity provider, with its groups and the expiry of its JWT.
    pub fn new(sub: &str, groups: Vec<Box<str>>, until: SystemTime) -> Self {
        Self { id: format!("{SUBJECT}{sub}").into(), groups: groups.into(), until }
    }

    /// Expiry of the JWT, at which a stream opened with it is closed.
    pub(crate) fn until(&self) -> SystemTime {
        self.until
    }
}

/// Compares the principals: a change of groups does not change the identity.
impl PartialEq for JwtSubject {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for JwtSubject {}

impl Hash for JwtSubject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Divisor that yields the share of one principal from all slots.
const SHARES: usize = 4;
const TOKEN: &str = "token:";
const SUBJECT: &str = "jwt:";
const CERTIFICATE: &str = "cert:";

/// Maximum size of the state of one principal: 64 MiB.
pub(super) const MAX_STATE_BYTES_PER_PRINCIPAL: usize = 64 << 20;
/// Maximum size of the state of all principals: 256 MiB.
pub(super) const MAX_STATE_BYTES: usize = 256 << 20;

/// Reason why more state is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateFull {
    /// The principal's account is exhausted.
    #[error(
        "the state kept for one principal is limited to {limit} bytes (sessions, subscriptions, events to resume): \
         unsubscribe from resources or end sessions with DELETE"
    )]
    OfPrincipal {
        /// Limit in bytes.
        limit: usize,
    },
    /// The total is exhausted.
    #[error(
        "the state kept for all principals is limited to {limit} bytes (sessions, subscriptions, events to resume): \
         retry later"
    )]
    OfAll {
        /// Limit in bytes.
        limit: usize,
    },
}

/// Holder of the most entries in a full table, and their number: the one to evict (max-min fairness). `holders` yields
/// one item per entry; of equal holders, the first one counts.
pub fn heaviest<H: Eq + Hash>(holders: impl Iterator<Item = H>) -> Option<(H, usize)> {
    let mut held: HashMap<H, (usize, Reverse<usize>)> = HashMap::new();
    for (at, holder) in holders.enumerate() {
        held.entry(holder).or_insert((0, Reverse(at))).0 += 1;
    }
    let heaviest = held.into_iter().max_by_key(|(_, held)| *held);
    heaviest.map(|(holder, (count, _))| (holder, count))
}

/// The limits of a set of accounts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    of_principal: usize,
    of_all: usize,
}

/// Accounts of all principals that have state. Clones share them.
#[derive(Clone, Debug)]
pub struct StateAccounts(Arc<Ledger>);

#[derive(Debug)]
struct Ledger {
    limits: Limits,
    bytes: AtomicUsize,
    /// Accounts remove themselves when dropped.
    accounts: Mutex<HashMap<Principal, Weak<StateAccount>>>,
}

/// Account of one principal, shared by all state kept on its behalf.
#[derive(Debug)]
pub struct StateAccount {
    principal: Principal,
    bytes: AtomicUsize,
    ledger: Arc<Ledger>,
}

/// Charged bytes, which are released when dropped.
#[derive(Debug)]
pub struct StateCharge {
    account: Arc<StateAccount>,
    bytes: usize,
}

impl Default for StateAccounts {
    fn default() -> Self {
        Self::of_at_most(MAX_STATE_BYTES_PER_PRINCIPAL, MAX_STATE_BYTES)
    }
}

impl StateAccounts {
    /// Creates empty accounts with these limits in bytes.
    pub fn of_at_most(of_principal: usize, of_all: usize) -> Self {
        let limits = Limits { of_principal, of_all };
        Self(Arc::new(Ledger { limits, bytes: AtomicUsize::new(0), accounts: Mutex::default() }))
    }

    pub fn of(&self, principal: &Principal) -> Arc<StateAccount> {
        let mut accounts = self.0.accounts.lock();
        if let Some(account) = accounts.get(principal).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(StateAccount {
            principal: principal.clone(),
            bytes: AtomicUsize::new(0),
            ledger: Arc::clone(&self.0),
        });
        accounts.insert(principal.clone(), Arc::downgrade(&account));
        account
    }

    /// Number of bytes charged over all accounts.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Number of principals that have an account.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.accounts.lock().len()
    }
}

impl Drop for StateAccount {
    fn drop(&mut self) {
        let mut accounts = self.ledger.accounts.lock();
        // A new account may have replaced this one in the meantime.
        if accounts.get(&self.principal).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.principal);
        }
    }
}

impl StateAccount {
    /// Number of bytes charged to the account.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Charges `bytes`.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Result<StateCharge, StateFull> {
        let mut charge = self.no_charge();
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// An empty charge that can grow.
    pub fn no_charge(self: &Arc<Self>) -> StateCharge {
        StateCharge { account: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, bytes: usize, limit: usize) -> Result<(), StateFull> {
        let within = |limit: usize| {
            move |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= limit)
        };
        let Ledger { limits, bytes: total, .. } = &*self.ledger;
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within(limit))
            .map_err(|_| StateFull::OfPrincipal { limit })?;
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within(limits.of_all)).map_err(
            |_| {
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                StateFull::OfAll { limit: limits.of_all }
            },
        )?;
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.ledger.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl StateCharge {
    /// Charges `bytes` more.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), StateFull> {
        self.account.take(bytes, self.account.ledger.limits.of_principal)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Charges `bytes` more of dispensable state, which may use at most half of the account.
    ///
    /// # Errors
    /// [`StateFull`]; no bytes are charged in that case.
    pub fn grow_spare(&mut self, bytes: usize) -> Result<(), StateFull> {
        self.account.take(bytes, self.account.ledger.limits.of_principal / 2)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases `bytes`, or the whole charge if it is smaller.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.give_back(bytes);
    }
}

impl Drop for StateCharge {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principal_identity_ignores_scope_and_groups() {
        let token = |made| AgentToken::new("ci", made, Scope::default());
        assert_eq!(token(1), token(1));
        assert_ne!(token(1), token(2), "a recreated token is another principal");
        assert_eq!((token(1).name(), &*token(1).id), ("ci", "token:ci"));
        let subject =
            |group: &str| JwtSubject::new("ada", vec![group.into()], SystemTime::UNIX_EPOCH);
        assert_eq!(subject("a"), subject("b"));
        let principal = Principal::Subject(Arc::new(subject("a")));
        assert_eq!((principal.id(), principal.groups()), ("jwt:ada", &["a".into()][..]));
        assert_ne!(principal, Principal::Token(Arc::new(token(1))));
        let holder = Principal::certificate("ada");
        assert_eq!((holder.id(), holder.groups().len()), ("cert:ada", 0));
        assert_eq!(holder, Principal::certificate("ada"));
        assert_ne!(holder, principal);
        assert_eq!(Principal::Admin.groups(), &[] as &[Box<str>]);
    }

    #[test]
    fn authenticated_principal_gets_a_share_of_all_slots() {
        let holder = Principal::certificate("ada");
        assert_eq!((holder.share(70), holder.share(2)), (17, 1));
        assert_eq!((Principal::Anonymous.share(70), Principal::Admin.share(70)), (70, 70));
    }

    #[test]
    fn mark_is_unique_per_principal() {
        let token =
            |made| Principal::Token(Arc::new(AgentToken::new("ci", made, Scope::default())));
        let subject = |sub: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).into()).collect();
            Principal::Subject(Arc::new(JwtSubject::new(sub, groups, SystemTime::UNIX_EPOCH)))
        };
        let all = [
            Principal::Anonymous,
            Principal::Admin,
            token(1),
            token(2),
            subject("ada", &[]),
            subject("bob", &[]),
            Principal::certificate("ada"),
        ];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one.mark() == other.mark(), at == other_at, "{one:?} {other:?}");
            }
        }
        assert_eq!(subject("ada", &["a"]).mark(), subject("ada", &["b"]).mark());
    }

    fn ada() -> Principal {
        Principal::certificate("ada")
    }

    #[test]
    fn exhausted_account_rejects_only_its_principal() {
        let accounts = StateAccounts::of_at_most(100, 150);
        let (ada, bob) = (accounts.of(&ada()), accounts.of(&Principal::certificate("bob")));
        let kept = ada.charge(100).unwrap();
        assert_eq!(ada.charge(1).unwrap_err(), StateFull::OfPrincipal { limit: 100 });
        let mut others = bob.charge(40).unwrap();
        assert_eq!(others.grow(11).unwrap_err(), StateFull::OfAll { limit: 150 });
        assert_eq!((ada.bytes(), bob.bytes(), accounts.bytes()), (100, 40, 140));
        drop(kept);
        others.grow(11).unwrap();
        others.shrink(1);
        assert_eq!((ada.bytes(), bob.bytes(), accounts.bytes()), (0, 50, 50));
    }

    #[test]
    fn spare_state_takes_at_most_half_of_an_account() {
        let account = StateAccounts::of_at_most(100, 1000).of(&ada());
        let mut spare = account.no_charge();
        spare.grow_spare(50).unwrap();
        assert_eq!(spare.grow_spare(1).unwrap_err(), StateFull::OfPrincipal { limit: 50 });
        let needed = account.charge(50).unwrap();
        spare.shrink(50);
        assert!(spare.grow_spare(1).is_err(), "required state counts too");
        drop(needed);
        spare.grow_spare(1).unwrap();
    }

    #[test]
    fn principal_has_one_account_while_it_is_charged() {
        let accounts = StateAccounts::default();
        let charge = accounts.of(&ada()).charge(7).unwrap();
        assert_eq!(accounts.of(&ada()).bytes(), 7);
        assert_eq!(accounts.count(), 1);
        drop(charge);
        assert_eq!((accounts.count(), accounts.bytes()), (0, 0));
    }

    #[test]
    fn overflowing_charge_is_rejected() {
        let account = StateAccounts::of_at_most(usize::MAX, usize::MAX).of(&ada());
        let _one = account.charge(1).unwrap();
        assert!(account.charge(usize::MAX).is_err());
        assert_eq!(account.bytes(), 1);
    }

    #[test]
    fn heaviest_holder_is_the_first_among_equals() {
        for (holders, expected) in
            [("", None), ("a", Some(('a', 1))), ("abb", Some(('b', 2))), ("cabba", Some(('a', 2)))]
        {
            assert_eq!(heaviest(holders.chars()), expected, "{holders}");
        }
    }
}
