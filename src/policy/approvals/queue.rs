//! Bounded queue of calls that wait for approval. The first answer to a call counts.
//!
//! One lock, held for a few map operations and never across an await. A call that needs no approval never enters the
//! queue. [`WaitingApproval`] is the guard of one waiting call: it resolves when the call is answered or times out, and
//! withdraws the call when dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::approvals::config::MAX_STANDING;
use crate::approvals::request_state::{
    Repeat, RepeatedCall, StateKey, StateRead, Unclaimed, UnclaimedCalls, UserResponse,
};
use crate::approvals::standing::{
    Covered, Now, Reach, SharedApproval, SharedApprovalKey, StandingApproval, StandingApprovals,
};
use crate::approvals::{
    AnswerChannel, AnswerError, Answerer, ApprovalAnswer, ApprovalExtent, ApprovalId,
    ApprovalVerdict, AskedCall, Decided, Outcome,
};
use crate::sealed_state::{BoundRequest, StateRefused};
use crate::sealed_task::OpenedTask;
use crate::{Approved, NotApproved, PendingApproval, Principal};

/// Maximum number of decided approvals that are remembered. A second answer is rejected with an error that states the
/// first one.
const MAX_DECIDED: usize = 512;

/// State of the queue, which decides whether a call can be answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum QueueState {
    /// Only the calling client can answer, because the proxy does not listen.
    #[default]
    Closed,
    /// Anyone with the API key can answer.
    Open,
    /// Nobody can answer, because the proxy is shutting down.
    Ended,
}

/// Bounded queue of calls that wait for approval, shared by the callers and the entry points.
#[derive(Debug)]
pub struct ApprovalQueue {
    state: Mutex<State>,
    bounds: QueueBounds,
    events: Option<mpsc::Sender<ApprovalEvent>>,
    dropped: AtomicU64,
    /// `None` if the system provides no random bytes; in that case no client is asked in the response to its request.
    state_key: Option<StateKey>,
    /// Node part of the ids, if this node is a member of a fleet.
    node: Option<Box<str>>,
    /// Notified when a standing approval is added or revoked.
    standing_changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    openness: QueueState,
    /// Waiting calls in order of arrival.
    waiting: BTreeMap<u64, Entry>,
    /// Deadlines of the waiting calls.
    deadlines: BTreeSet<(Instant, u64)>,
    by_id: HashMap<ApprovalId, u64>,
    of_one: HashMap<Box<str>, PrincipalUsage>,
    bytes: usize,
    next: u64,
    decided: VecDeque<Decided>,
    unclaimed: UnclaimedCalls,
    standing: StandingApprovals,
}

/// Usage of the queue by one principal.
#[derive(Clone, Copy, Debug, Default)]
struct PrincipalUsage {
    calls: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    view: WaitingView,
    timeout: Duration,
    deadline: Instant,
    answer: oneshot::Sender<Outcome>,
    /// Present if the request that asked has ended and its client will retry the call.
    repeat: Option<Repeat>,
}

/// Minimum length of the beginning of an id that finds a finished wait, in characters.
const MIN_PREFIX: usize = 4;

/// A waiting call's entry in the queue.
#[derive(Debug)]
pub(super) struct QueuePlace {
    pub(super) number: u64,
    pub(super) id: ApprovalId,
    pub(super) until: SystemTime,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Receiver<Outcome>,
}

/// Result of a retried call.
#[derive(Debug)]
pub(super) enum Claim {
    /// The call is decided; carries the extra members of the first request.
    Over(Outcome, Bytes),
    /// The call still waits for an answer through another channel.
    Waits { number: u64, answer: oneshot::Receiver<Outcome>, members: Bytes },
    /// The client's answer is missing, and the call still waits.
    AskAgain,
}

/// Result of asking for approval.
#[derive(Debug)]
pub(super) enum Admitted {
    Place(QueuePlace),
    /// A standing approval covers it.
    Standing(Covered),
}

fn now() -> Now {
    Now { instant: Instant::now(), time: SystemTime::now() }
}

impl ApprovalQueue {
    /// Creates an empty queue, which only the calling client can answer; `events` receives each wait and each decision as long as its
    /// receiver keeps up.
    pub fn new(bounds: QueueBounds, events: Option<mpsc::Sender<ApprovalEvent>>) -> Self {
        let state_key = StateKey::fresh();
        Self {
            state: Mutex::default(),
            bounds,
            events,
            dropped: AtomicU64::new(0),
            state_key,
            node: None,
            standing_changed: Notify::new(),
        }
    }

    /// Allows anyone with the API key to answer.
    pub fn open(&self) {
        let mut state = self.state.lock();
        if state.openness == QueueState::Closed {
            state.openness = QueueState::Open;
        }
    }

    /// Denies all waiting and all further calls: the proxy is shutting down.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.openness = QueueState::Ended;
        let all: Vec<u64> = state.waiting.keys().copied().collect();
        let ended: Vec<_> =
            all.into_iter().filter_map(|number| state.conclude(number, Outcome::Ending)).collect();
        drop(state);
        self.emit_ended(ended);
    }

    /// The standing approval that covers this call, if there is one.
    pub fn standing_for(&self, pending: &PendingApproval, session: &str) -> Option<Covered> {
        self.state.lock().standing.find(pending, session, now())
    }

    /// Checks whether one more call of the principal may wait. Called before anything is allocated for the call.
    pub fn check(
        &self,
        principal: &Principal,
        client_can_be_asked: bool,
    ) -> Result<(), NotApproved> {
        self.state.lock().check(self.bounds, principal, client_can_be_asked)
    }

    /// Enqueues a call for `timeout`, unless a standing approval covers it. `members` is present if the client will retry the call; this
    /// payload is then sent to the server with the arguments.
    pub(super) fn admit(
        &self,
        asked: AskedCall,
        timeout: Duration,
        client_can_be_asked: bool,
        members: Option<Bytes>,
    ) -> Result<Admitted, NotApproved> {
        let now = now();
        let mut state = self.state.lock();
        if let Some(covered) = state.standing.find(&asked.pending, &asked.session, now) {
            return Ok(Admitted::Standing(covered));
        }
        state.check(self.bounds, asked.pending.principal(), client_can_be_asked)?;
        let bytes = asked.bytes() + members.as_ref().map_or(0, Bytes::len);
        let theirs = state.of_principal(asked.pending.principal());
        if theirs.bytes + bytes > self.bounds.bytes_of_one() {
            return Err(NotApproved::TooMany { limit: theirs.calls });
        }
        if state.bytes + bytes > self.bounds.bytes {
            return Err(NotApproved::TooMany { limit: state.waiting.len() });
        }
        let id = ApprovalId::fresh(self.node.as_deref()).ok_or(NotApproved::Unavailable)?;
        let number = state.next;
        state.next += 1;
        state.bytes += bytes;
        let theirs = state.of_one.entry(asked.pending.principal().id().into()).or_default();
        theirs.calls += 1;
        theirs.bytes += bytes;
        state.by_id.insert(id.clone(), number);
        let (sender, answer) = oneshot::channel();
        let (until, deadline) = (now.time + timeout, now.instant + timeout);
        let view = WaitingView {
            id: id.clone(),
            asked: Arc::new(asked),
            since: now.time,
            until,
            disconnected: None,
        };
        let events = self.events.is_some().then(|| view.clone());
        let repeat = members.map(|members| Repeat { members, awaited: None });
        state.deadlines.insert((deadline, number));
        state.waiting.insert(number, Entry { view, timeout, deadline, answer: sender, repeat });
        drop(state);
        if let Some(WaitingView { id, asked, until, .. }) = events {
            self.emit(ApprovalEvent { id, asked, until, made: now.instant, outcome: None });
        }
        Ok(Admitted::Place(QueuePlace { number, id, until, deadline, answer }))
    }

    /// Answers a waiting call and returns the decision. Denying a standing approval revokes it.
    ///
    /// On an [`AnswerError`], nothing has changed.
    pub fn answer(
        &self,
        id: &str,
        answer: ApprovalAnswer,
    ) -> Result<AnsweredApproval, AnswerError> {
        self.sweep();
        let now = now();
        let mut state = self.state.lock();
        let Some(number) = state.number(id) else {
            let answered = state.answer_late(id, answer, now, self.node.is_some());
            drop(state);
            self.standing_changed.notify_one();
            return answered;
        };
        let ApprovalAnswer { verdict, by, seen } = answer;
        let Some(Entry { view, .. }) = state.waiting.get(&number) else {
            return Err(AnswerError::NotFound);
        };
        let (id, asked) = (view.id.clone(), Arc::clone(&view.asked));
        let digest = asked.pending.digest();
        if seen.is_some_and(|seen| *seen != *digest.to_string()) {
            return Err(AnswerError::OtherCall(id));
        }
        let outcome = match verdict {
            ApprovalVerdict::Deny => Outcome::Denied { by },
            ApprovalVerdict::Approve(extent) => {
                if let Some(standing_scope) = standing_scope(extent, &asked, &id)? {
                    state.standing.check_limits(now).map_err(AnswerError::TooMany)?;
                    state.standing.add(&id, &asked, &by, standing_scope, now);
                }
                Outcome::Approved { by, extent, approved: Approved::Call(digest) }
            }
        };
        let ended = state.conclude(number, outcome);
        let decided = state.decided.back().cloned();
        drop(state);
        self.standing_changed.notify_one();
        self.emit_ended(ended);
        let decided = decided.ok_or(AnswerError::NotFound)?;
        Ok(AnsweredApproval { decided, revoked: None })
    }

    /// Whether the queue can create request states, which are needed to ask a client in the response to its request.
    pub fn makes_states(&self) -> bool {
        self.state_key.is_some()
    }

    /// Request state with which `principal` may retry a call; `None` if none can be created.
    pub fn request_state(&self, id: &ApprovalId, principal: &Principal) -> Option<String> {
        self.state_key.as_ref().map(|key| key.write(id.as_str(), principal))
    }

    /// Creates an id for a call of `principal` that this node holds, and the request state with which the call may be retried; `None` if
    /// they cannot be created.
    pub fn held_state(&self, principal: &Principal) -> Option<(ApprovalId, String)> {
        let key = self.state_key.as_ref()?;
        let id = ApprovalId::fresh(self.node.as_deref())?;
        let state = key.write_held(id.as_str(), principal);
        Some((id, state))
    }

    /// Classifies a request state that `principal` presents.
    pub fn read_state(&self, state: &str, principal: &Principal) -> StateRead {
        self.state_key.as_ref().map_or(StateRead::Foreign, |key| key.read(state, principal))
    }

    /// Seals a server's request state, a raw JSON value, for the client that made the request; `None` if the system
    /// provides no random bytes.
    pub fn seal_state(
        &self,
        state: &[u8],
        to: BoundRequest<'_>,
        now: SystemTime,
    ) -> Option<String> {
        self.state_key.as_ref().map(|key| key.seal(state, to, now))
    }

    /// Opens a sealed request state that a client presents with a request.
    pub fn open_state(
        &self,
        sealed: &str,
        to: BoundRequest<'_>,
        now: SystemTime,
    ) -> Result<Vec<u8>, StateRefused> {
        self.state_key.as_ref().map_or(Err(StateRefused::Foreign), |key| key.open(sealed, to, now))
    }

    /// Seals a server's task id for the client of `principal`; `None` if the system provides no random bytes.
    pub fn seal_task(
        &self,
        task: &OpenedTask,
        principal: &Principal,
        now: SystemTime,
    ) -> Option<String> {
        Some(self.state_key.as_ref()?.sealing().next()?.seal_task(task, principal, now))
    }

    /// Opens a task id that a client of `principal` presents.
    pub fn open_task(
        &self,
        sealed: &str,
        principal: &Principal,
        now: SystemTime,
    ) -> Option<OpenedTask> {
        let mut keys = self.state_key.as_ref()?.sealing();
        keys.find_map(|key| key.open_task(sealed, principal, now))
    }

    /// Resolves a client's retry of a call: the client's response counts as the answer if it is the first one. A decided call is consumed.
    pub(super) fn claim(
        &self,
        id: &ApprovalId,
        pending: &PendingApproval,
        response: UserResponse,
    ) -> Result<Claim, NotApproved> {
        self.sweep();
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut ended = None;
        if let Some(number) = state.number(id.as_str()) {
            let entry = state.waiting.get_mut(&number).ok_or(NotApproved::Spent)?;
            let repeat = entry.repeat.as_mut().filter(|it| !it.is_taken());
            let repeat = repeat.ok_or(NotApproved::Spent)?;
            RepeatedCall::of(&entry.view.asked.pending).check(pending)?;
            let by = Answerer::here(pending.principal().id(), AnswerChannel::Elicitation);
            let outcome = match response {
                UserResponse::Missing => return Ok(Claim::AskAgain),
                UserResponse::Nothing => {
                    let (sender, answer) = oneshot::channel();
                    repeat.awaited = Some(sender);
                    return Ok(Claim::Waits { number, answer, members: repeat.members.clone() });
                }
                UserResponse::Verdict(ApprovalVerdict::Deny) => Outcome::Denied { by },
                UserResponse::Verdict(ApprovalVerdict::Approve(_)) => {
                    let approved = Approved::Call(pending.digest());
                    Outcome::Approved { by, extent: ApprovalExtent::Once, approved }
                }
            };
            ended = state.conclude(number, outcome);
        }
        let claimed = state.unclaimed.claim(id, now, |call| call.check(pending));
        drop(state);
        self.emit_ended(ended);
        claimed.map(|Unclaimed { outcome, members, .. }| Claim::Over(outcome, members))
    }

    /// Drops the wait of a retried call that no longer needs approval, and returns the payload of its first request.
    pub fn release(&self, id: &ApprovalId) -> Result<Bytes, NotApproved> {
        self.sweep();
        let mut state = self.state.lock();
        let mut ended = None;
        if let Some(number) = state.number(id.as_str()) {
            let repeat = state.waiting.get(&number).and_then(|entry| entry.repeat.as_ref());
            if repeat.is_none_or(Repeat::is_taken) {
                return Err(NotApproved::Spent);
            }
            ended = state.conclude(number, Outcome::Withdrawn);
        }
        let claimed = state.unclaimed.claim(id, Instant::now(), |_| Ok(()));
        drop(state);
        self.emit_ended(ended);
        claimed.map(|unclaimed| unclaimed.members)
    }

    /// Payload of the first request of a call that its client retries; empty if the payload was dropped.
    pub fn first_members(&self, id: &ApprovalId) -> Bytes {
        let state = self.state.lock();
        let waiting = state.number(id.as_str()).and_then(|number| state.waiting.get(&number));
        let waiting = waiting.and_then(|entry| entry.repeat.as_ref()).map(|it| it.members.clone());
        waiting.or_else(|| state.unclaimed.members(id)).unwrap_or_default()
    }

    /// Ends a wait whose client disconnected; `None` if the call was already decided and the answer is on its way.
    pub(super) fn withdraw(&self, number: u64) -> Option<Outcome> {
        self.end(number, |_| Outcome::Withdrawn)
    }

    /// Ends a wait that timed out; `None` if the call was already decided and the answer is on its way.
    pub(super) fn expire(&self, number: u64) -> Option<Outcome> {
        self.end(number, |timeout| Outcome::TimedOut { after: timeout })
    }

    fn end(&self, number: u64, outcome: impl FnOnce(Duration) -> Outcome) -> Option<Outcome> {
        let mut state = self.state.lock();
        let timeout = state.waiting.get(&number)?.timeout;
        let outcome = outcome(timeout);
        let ended = state.conclude(number, outcome.clone());
        drop(state);
        self.emit_ended(ended);
        Some(outcome)
    }

    /// Ends overdue waits of all calls. A call whose client stopped reading is not polled, so it cannot time out by
    /// itself.
    fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let overdue = state.deadlines.range(..=(now, u64::MAX));
        let overdue: Vec<u64> = overdue.map(|(_, number)| *number).collect();
        let ended: Vec<_> =
            overdue.into_iter().filter_map(|number| state.time_out(number)).collect();
        drop(state);
        self.emit_ended(ended);
    }

    /// Waiting calls, oldest first.
    pub fn waiting(&self) -> Vec<WaitingView> {
        self.sweep();
        let state = self.state.lock();
        state.waiting.values().map(|entry| entry.view.clone()).collect()
    }

    /// Notes that the connection of a waiting call's client broke.
    pub fn note_disconnected(&self, id: &ApprovalId) {
        let mut state = self.state.lock();
        let Some(number) = state.by_id.get(id).copied() else { return };
        if let Some(entry) = state.waiting.get_mut(&number) {
            entry.view.disconnected = Some(SystemTime::now());
        }
    }

    pub fn count(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Standing approvals, oldest first.
    pub fn standing(&self) -> Vec<StandingApproval> {
        self.state.lock().standing.all(now())
    }

    /// The approval with this id, if it waits or was decided recently.
    pub fn get(&self, id: &str) -> Option<KnownApproval> {
        self.sweep();
        let state = self.state.lock();
        if let Some(entry) = state.number(id).and_then(|number| state.waiting.get(&number)) {
            return Some(KnownApproval::Waiting(entry.view.clone()));
        }
        state.over(id).cloned().map(KnownApproval::Over)
    }

    /// Number of events that were dropped because the webhook did not keep up.
    #[cfg(test)]
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Numbers of counted bytes, ids and principals.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.bytes, state.by_id.len(), state.of_one.len())
    }

    /// Number of decided calls that were not retried yet.
    #[cfg(test)]
    pub(super) fn unclaimed(&self) -> usize {
        self.state.lock().unclaimed.len()
    }

    fn emit_ended(&self, ended: impl IntoIterator<Item = Ended>) {
        for Ended { view, outcome } in ended {
            let WaitingView { id, asked, until, .. } = view;
            let made = Instant::now();
            self.emit(ApprovalEvent { id, asked, until, made, outcome: Some(outcome) });
        }
    }

    fn emit(&self, events: ApprovalEvent) {
        if let Some(sender) = &self.events
            && sender.try_send(events).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            peer_line!(
                warn,
                LinePeer::Part("webhook"),
                "approval webhook queue full: dropped an event"
            );
        }
    }
}

/// A wait that ended.
struct Ended {
    view: WaitingView,
    outcome: Outcome,
}

impl State {
    /// Checks that an answer is possible and that the limits leave a slot.
    fn check(
        &self,
        QueueBounds { waiting, of_one, .. }: QueueBounds,
        principal: &Principal,
        client_can_be_asked: bool,
    ) -> Result<(), NotApproved> {
        match (self.openness, client_can_be_asked) {
            (QueueState::Open, _) | (QueueState::Closed, true) => {}
            (QueueState::Closed, false) => return Err(NotApproved::Nobody),
            (QueueState::Ended, _) => return Err(NotApproved::Ending),
        }
        if self.of_principal(principal).calls >= of_one {
            return Err(NotApproved::TooMany { limit: of_one });
        }
        if self.waiting.len() >= waiting {
            return Err(NotApproved::TooMany { limit: waiting });
        }
        Ok(())
    }

    fn of_principal(&self, principal: &Principal) -> PrincipalUsage {
        self.of_one.get(principal.id()).copied().unwrap_or_default()
    }

    fn number(&self, id: &str) -> Option<u64> {
        // The map is keyed by `ApprovalId`, so the lookup needs an id made from the text, even if it is unknown.
        self.by_id.get(&ApprovalId::of_text(id)).copied()
    }

    /// The newest finished wait with this id, or whose id begins with it, as lists show ids.
    fn over(&self, id: &str) -> Option<&Decided> {
        let is_it = |decided: &&Decided| match id.len() {
            0..MIN_PREFIX => false,
            _ => decided.id.as_str().starts_with(id),
        };
        self.decided.iter().rev().find(is_it)
    }

    /// Ends a wait whose time is up.
    fn time_out(&mut self, number: u64) -> Option<Ended> {
        let after = self.waiting.get(&number)?.timeout;
        self.conclude(number, Outcome::TimedOut { after })
    }

    /// Removes a call, sends it the outcome and remembers it.
    fn conclude(&mut self, number: u64, outcome: Outcome) -> Option<Ended> {
        let Entry { view, answer, repeat, deadline, .. } = self.waiting.remove(&number)?;
        self.by_id.remove(&view.id);
        self.deadlines.remove(&(deadline, number));
        let members = repeat.as_ref().map_or(0, |repeat| repeat.members.len());
        let bytes = view.asked.bytes() + members;
        self.bytes -= bytes;
        let principal = view.asked.pending.principal().id();
        if let Some(theirs) = self.of_one.get_mut(principal) {
            theirs.calls -= 1;
            theirs.bytes -= bytes;
            if theirs.calls == 0 {
                self.of_one.remove(principal);
            }
        }
        if self.decided.len() >= MAX_DECIDED {
            self.decided.pop_front();
        }
        self.decided.push_back(Decided {
            id: view.id.clone(),
            access: view.asked.pending.access().to_string().into(),
            outcome: outcome.clone(),
            at: SystemTime::now(),
        });
        // The outcome is sent before the decision is visible, so that a caller that sees the decision also finds the
        // outcome. A failed send is ignored: the client has disconnected, and its call is already recorded.
        let _ = answer.send(outcome.clone());
        match repeat {
            Some(Repeat { awaited: Some(awaited), .. }) => {
                let _ = awaited.send(outcome.clone());
            }
            Some(Repeat { members, awaited: None }) => {
                let call = RepeatedCall::of(&view.asked.pending);
                let (id, outcome) = (view.id.clone(), outcome.clone());
                let unclaimed = Unclaimed { id, call, outcome, members, deadline };
                self.unclaimed.keep(unclaimed, Instant::now());
            }
            None => {}
        }
        Some(Ended { view, outcome })
    }

    /// Handles an answer to an approval that no longer waits. It is rejected, because the first answer counts, unless
    /// an operator revokes a standing approval. The operator may also repeat a revocation that the other nodes of the
    /// fleet do not know yet.
    fn answer_late(
        &mut self,
        id: &str,
        answer: ApprovalAnswer,
        now: Now,
        in_fleet: bool,
    ) -> Result<AnsweredApproval, AnswerError> {
        match answer.verdict {
            // The client's own user denies only the call, not the standing approval.
            ApprovalVerdict::Deny if answer.by.channel != AnswerChannel::Elicitation => {
                let revoked = self.standing.end(id, now);
                let unshared = || self.standing.unshared(id).filter(|_| in_fleet).cloned();
                if let Some(approval) = revoked.clone().or_else(unshared) {
                    let outcome = Outcome::Denied { by: answer.by };
                    let StandingApproval { of: id, access, .. } = approval;
                    let decided = Decided { id, access, outcome, at: now.time };
                    return Ok(AnsweredApproval { decided, revoked });
                }
            }
            ApprovalVerdict::Deny | ApprovalVerdict::Approve(_) => {}
        }
        let decided = self.over(id).cloned().ok_or(AnswerError::NotFound)?;
        Err(AnswerError::Over { decided: Box::new(decided) })
    }
}

/// Scope of a standing approval; `None` for an approval that covers one call.
fn standing_scope(
    extent: ApprovalExtent,
    asked: &AskedCall,
    id: &ApprovalId,
) -> Result<Option<Reach>, AnswerError> {
    let standing_scope = match extent {
        ApprovalExtent::Once => return Ok(None),
        ApprovalExtent::For(time) if time > MAX_STANDING => return Err(AnswerError::TooLong),
        ApprovalExtent::For(time) => Reach { session: None, time },
        ApprovalExtent::Session if asked.session.is_empty() => {
            return Err(AnswerError::NoSession(id.clone()));
        }
        ApprovalExtent::Session => {
            Reach { session: Some(asked.session.clone()), time: MAX_STANDING }
        }
    };
    Ok(Some(standing_scope))
}

impl ApprovalQueue {
    /// Sets the node part of the ids, which consists of letters and digits.
    pub fn of_node(self, mark: &str) -> Self {
        Self { node: Some(mark.into()), ..self }
    }

    /// Uses request states that all nodes of the fleet can verify. Each key has a name; the first key signs.
    pub fn with_shared_states(self, keys: impl IntoIterator<Item = ([u8; 4], [u8; 32])>) -> Self {
        Self { state_key: StateKey::shared(keys), ..self }
    }

    /// Waits until a standing approval is added or revoked; expiry does not count.
    pub async fn standing_changed(&self) {
        self.standing_changed.notified().await;
    }

    /// Standing approvals, and those revoked since they were last [marked as shared](Self::mark_shared).
    pub fn shared_state(&self) -> (Vec<SharedApproval>, Vec<SharedApprovalKey>) {
        let mut state = self.state.lock();
        let standing = state.standing.all(now());
        let ended = state.standing.ended();
        (standing.iter().map(StandingApproval::shared).collect(), ended)
    }

    /// Revocation of the standing approval with this id, if other nodes do not know of it yet.
    pub fn unshared_revocation(&self, id: &str) -> Option<SharedApprovalKey> {
        self.state.lock().standing.unshared(id).map(|approval| approval.shared().key())
    }

    /// Marks these revocations as known to all other nodes.
    pub fn mark_shared(&self, ended: &[SharedApprovalKey]) {
        self.state.lock().standing.forget_shared(ended);
    }

    /// Adopts standing approvals of other nodes, except those that `is_revoked` reports as revoked. At most
    /// [`MAX_SHARED_APPROVALS`](crate::approvals::MAX_SHARED_APPROVALS) exist in total; the earliest are kept. An approval whose lifetime
    /// exceeds the maximum is skipped and logged once.
    pub fn adopt(
        &self,
        standing: impl IntoIterator<Item = SharedApproval>,
        is_revoked: impl Fn(&SharedApprovalKey) -> bool,
    ) {
        let passed_over = self.state.lock().standing.adopt(standing, is_revoked, now());
        for approval in passed_over {
            peer_line!(warn, LinePeer::Part("approvals"),
                %approval,
                "ignored a standing approval of another node: it lasts longer than allowed; check the clocks"
            );
        }
    }
}

/// Limits of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    pub waiting: usize,
    /// Maximum number of waiting calls of one principal.
    pub of_one: usize,
    /// Maximum number of bytes of all waiting calls.
    pub bytes: usize,
}

/// Activity-log slots used by one waiting call: its own and those of its two records.
const PLACES: usize = 3;

impl QueueBounds {
    /// Limits for an activity log with `places` slots: waiting calls use at most a quarter of them.
    pub fn of_log(places: usize) -> Self {
        let waiting = (places / 4 / PLACES).clamp(1, 512);
        Self { waiting, of_one: waiting.div_ceil(2), bytes: 64 * 1024 * 1024 }
    }

    /// Byte limit of one principal: half of the total limit.
    pub(super) fn bytes_of_one(self) -> usize {
        self.bytes / 2
    }
}

/// Event for the webhook: a call waits, or its wait ended.
#[derive(Clone, Debug)]
pub struct ApprovalEvent {
    pub id: ApprovalId,
    pub asked: Arc<AskedCall>,
    /// Deadline of the wait.
    pub until: SystemTime,
    /// Time of the event.
    pub made: Instant,
    /// Outcome; `None` while the call waits.
    pub outcome: Option<Outcome>,
}

/// A waiting call, as shown to operators.
#[derive(Clone, Debug)]
pub struct WaitingView {
    pub id: ApprovalId,
    pub asked: Arc<AskedCall>,
    pub since: SystemTime,
    /// Deadline of the wait.
    pub until: SystemTime,
    /// Time at which the connection of its client broke. The call waits on, since the client may return.
    pub disconnected: Option<SystemTime>,
}

/// An approval, as shown to operators.
#[derive(Clone, Debug)]
pub enum KnownApproval {
    Waiting(WaitingView),
    Over(Decided),
}

/// Result of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredApproval {
    pub decided: Decided,
    /// The standing approval that this answer revoked.
    pub revoked: Option<StandingApproval>,
}

/// Result of asking for approval.
#[derive(Debug)]
pub enum Entered {
    Waiting(WaitingApproval),
    /// A standing approval covers the call.
    Standing(Covered),
}

/// A waiting call. Withdraws the call if dropped before the outcome.
#[derive(Debug)]
pub struct WaitingApproval {
    queue: Arc<ApprovalQueue>,
    place: QueuePlace,
    over: bool,
}

impl WaitingApproval {
    /// Enqueues `asked` for `timeout`; `client_can_be_asked`: whether the calling client can be asked too.
    pub fn enter(
        queue: &Arc<ApprovalQueue>,
        asked: AskedCall,
        timeout: Duration,
        client_can_be_asked: bool,
    ) -> Result<Entered, NotApproved> {
        Ok(Self::of(queue, queue.admit(asked, timeout, client_can_be_asked, None)?))
    }

    /// Enqueues a call that its client will retry with the answer; `members` is the payload sent to the server with
    /// the arguments, at most [`MAX_MEMBERS_BYTES`](super::MAX_MEMBERS_BYTES).
    pub fn enter_repeated(
        queue: &Arc<ApprovalQueue>,
        asked: AskedCall,
        timeout: Duration,
        members: Bytes,
    ) -> Result<Entered, NotApproved> {
        Ok(Self::of(queue, queue.admit(asked, timeout, true, Some(members))?))
    }

    fn of(queue: &Arc<ApprovalQueue>, admitted: Admitted) -> Entered {
        match admitted {
            Admitted::Standing(covered) => Entered::Standing(covered),
            Admitted::Place(place) => {
                Entered::Waiting(Self { queue: Arc::clone(queue), place, over: false })
            }
        }
    }

    pub fn id(&self) -> &ApprovalId {
        &self.place.id
    }

    /// Deadline of the wait.
    pub fn until(&self) -> SystemTime {
        self.place.until
    }

    /// Waits for the outcome. Cancel-safe.
    pub async fn outcome(&mut self) -> Outcome {
        let deadline = tokio::time::Instant::from_std(self.place.deadline);
        let outcome = tokio::select! {
            biased;
            answered = &mut self.place.answer => answered.unwrap_or(Outcome::Ending),
            () = tokio::time::sleep_until(deadline) => match self.queue.expire(self.place.number) {
                Some(outcome) => outcome,
                None => self.received_outcome(),
            },
        };
        self.over = true;
        outcome
    }

    /// Withdraws the call and returns the outcome, which may be an answer that has just arrived.
    pub fn abandon(&mut self) -> Outcome {
        self.over = true;
        match self.queue.withdraw(self.place.number) {
            Some(outcome) => outcome,
            None => self.received_outcome(),
        }
    }

    /// Outcome of a wait that another thread has ended. That thread sent the outcome when it ended the wait.
    fn received_outcome(&mut self) -> Outcome {
        match self.place.answer.try_recv() {
            Ok(outcome) => outcome,
            Err(oneshot::error::TryRecvError::Empty | oneshot::error::TryRecvError::Closed) => {
                Outcome::Withdrawn
            }
        }
    }
}

impl Drop for WaitingApproval {
    fn drop(&mut self) {
        if !self.over {
            self.queue.withdraw(self.place.number);
        }
    }
}

/// Result of a retried call.
#[derive(Debug)]
pub enum Repeated {
    Over {
        outcome: Outcome,
        /// Payload that accompanied the arguments of the first request.
        members: Bytes,
    },
    /// The client's user has not answered; an answer may still arrive through another channel.
    Waits(RepeatedWait),
    /// The client presented no answer and may be asked again.
    AskAgain,
}

/// A retried call that still waits. Withdraws the call if dropped before the outcome.
#[derive(Debug)]
pub struct RepeatedWait {
    queue: Arc<ApprovalQueue>,
    number: u64,
    answer: oneshot::Receiver<Outcome>,
    members: Bytes,
    over: bool,
}

impl RepeatedWait {
    /// Resolves a retry of the call with this approval id, given the response of the client's user.
    pub fn enter(
        queue: &Arc<ApprovalQueue>,
        id: &ApprovalId,
        pending: &PendingApproval,
        response: UserResponse,
    ) -> Result<Repeated, NotApproved> {
        Ok(match queue.claim(id, pending, response)? {
            Claim::Over(outcome, members) => Repeated::Over { outcome, members },
            Claim::AskAgain => Repeated::AskAgain,
            Claim::Waits { number, answer, members } => {
                let queue = Arc::clone(queue);
                Repeated::Waits(Self { queue, number, answer, members, over: false })
            }
        })
    }

    /// Waits for the outcome, at most until the approval times out.
    pub async fn outcome(&mut self) -> Outcome {
        let outcome = (&mut self.answer).await.unwrap_or(Outcome::Withdrawn);
        self.over = true;
        outcome
    }

    /// Payload that accompanied the arguments of the first request.
    pub fn members(&self) -> Bytes {
        self.members.clone()
    }
}

impl Drop for RepeatedWait {
    fn drop(&mut self) {
        if !self.over {
            self.queue.withdraw(self.number);
        }
    }
}
