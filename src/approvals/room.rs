//! The room where calls wait for a person: bounded, and the first answer counts.
//!
//! One lock, held for a few map operations and never across a wait. A call that needs no approval does not come here.

mod sharing;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::answer::{
    Answerer, ApprovalAnswer, ApprovalVerdict, Decided, Door, Extent, NotAnswered, Outcome,
};
use super::asked::{ApprovalId, AskedCall};
use super::config::MAX_STANDING;
use super::leaves::{Leaves, Now, Reach, StandingLeave};
use super::repeats::{Repeat, RepeatedCall, Unclaimed, UnclaimedCalls, UserSaid};
use super::request_state::{StateKey, StateRead};
use super::views::{AnsweredApproval, ApprovalNews, KnownApproval, RoomBounds, WaitingView};
use crate::policy::{Approved, NotApproved, PendingApproval, Principal};

/// Decided approvals that are remembered, so that a second answer is told of the first.
const MAX_DECIDED: usize = 512;

/// Whether anybody can answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doors {
    /// Nobody but the client that calls: the proxy does not listen.
    #[default]
    Closed,
    /// Whoever has the key.
    Open,
    /// Nobody any more: the proxy ends.
    Ended,
}

/// The room. Shared by all who ask and all who answer.
#[derive(Debug)]
pub struct Room {
    state: Mutex<State>,
    bounds: RoomBounds,
    told: Option<mpsc::Sender<ApprovalNews>>,
    untold: AtomicU64,
    /// `None` where the system gives no randomness: then no client is asked by the answer to its request.
    state_key: Option<StateKey>,
    /// What stands in the ids for this node, where it is one of a fleet.
    node: Option<Box<str>>,
    /// Told when an approval stands from now on, or was ended.
    leaves_changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    doors: Doors,
    /// By the order in which they came.
    waiting: BTreeMap<u64, Entry>,
    /// When each of them ends by itself.
    deadlines: BTreeSet<(Instant, u64)>,
    by_id: HashMap<ApprovalId, u64>,
    of_one: HashMap<Box<str>, usize>,
    bytes: usize,
    next: u64,
    decided: VecDeque<Decided>,
    unclaimed: UnclaimedCalls,
    leaves: Leaves,
}

#[derive(Debug)]
struct Entry {
    view: WaitingView,
    timeout: Duration,
    deadline: Instant,
    answer: oneshot::Sender<Outcome>,
    /// Where the request that asked is over, and its client makes it again.
    repeat: Option<Repeat>,
}

/// A place in the room.
#[derive(Debug)]
pub(super) struct RoomPlace {
    pub(super) number: u64,
    pub(super) id: ApprovalId,
    pub(super) until: SystemTime,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Receiver<Outcome>,
}

/// What becomes of a call that its client makes again.
#[derive(Debug)]
pub(super) enum Claim {
    /// It was decided; with what stood beside the arguments of the first request.
    Over(Outcome, Bytes),
    /// It waits for another door.
    Waits { number: u64, answer: oneshot::Receiver<Outcome>, beside: Bytes },
    /// The client's answer is missing, and it still waits.
    AskAgain,
}

/// What becomes of a call that asks.
#[derive(Debug)]
pub(super) enum Admitted {
    /// It waits.
    Place(RoomPlace),
    /// An approval stands for it.
    Leave(Approved, ApprovalId),
}

fn now() -> Now {
    Now { instant: Instant::now(), time: SystemTime::now() }
}

impl Room {
    /// An empty room by whose doors nobody comes yet; `told` hears of each wait and each end, as far as it keeps up.
    #[must_use]
    pub fn new(bounds: RoomBounds, told: Option<mpsc::Sender<ApprovalNews>>) -> Self {
        let state_key = StateKey::fresh();
        Self {
            state: Mutex::default(),
            bounds,
            told,
            untold: AtomicU64::new(0),
            state_key,
            node: None,
            leaves_changed: Notify::new(),
        }
    }

    /// From now on people can answer.
    pub fn open(&self) {
        let mut state = self.state.lock();
        if state.doors == Doors::Closed {
            state.doors = Doors::Open;
        }
    }

    /// Refuses all that wait, and all that come: the proxy ends.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.doors = Doors::Ended;
        let all: Vec<u64> = state.waiting.keys().copied().collect();
        let ended: Vec<_> =
            all.into_iter().filter_map(|number| state.conclude(number, Outcome::Ending)).collect();
        drop(state);
        self.tell_ended(ended);
    }

    /// The approval that lets this call go without asking, if one stands.
    #[must_use]
    pub fn standing_for(
        &self,
        pending: &PendingApproval,
        session: &str,
    ) -> Option<(Approved, ApprovalId)> {
        self.state.lock().leaves.find(pending, session, now())
    }

    /// Whether one more call of that principal may wait: asked before anything is taken for it.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, principal: &Principal, asks_itself: bool) -> Result<(), NotApproved> {
        self.state.lock().check(self.bounds, principal, asks_itself)
    }

    /// Gives a call a place for `timeout`, unless an approval stands for it. `asks_itself`: its client can be asked.
    /// `beside`: the client makes the call again with the answer, and what then goes to the server beside its arguments.
    ///
    /// # Errors
    /// Why it cannot wait.
    pub(super) fn admit(
        &self,
        asked: AskedCall,
        timeout: Duration,
        asks_itself: bool,
        beside: Option<Bytes>,
    ) -> Result<Admitted, NotApproved> {
        let now = now();
        let mut state = self.state.lock();
        if let Some((approved, of)) = state.leaves.find(&asked.pending, &asked.session, now) {
            return Ok(Admitted::Leave(approved, of));
        }
        state.check(self.bounds, asked.pending.principal(), asks_itself)?;
        let bytes = asked.bytes() + beside.as_ref().map_or(0, Bytes::len);
        if state.bytes + bytes > self.bounds.bytes {
            return Err(NotApproved::TooMany { limit: state.waiting.len() });
        }
        let id = ApprovalId::fresh(self.node.as_deref()).ok_or(NotApproved::Unavailable)?;
        let number = state.next;
        state.next += 1;
        state.bytes += bytes;
        *state.of_one.entry(asked.pending.principal().id().into()).or_default() += 1;
        state.by_id.insert(id.clone(), number);
        let (sender, answer) = oneshot::channel();
        let (until, deadline) = (now.time + timeout, now.instant + timeout);
        let view = WaitingView { id: id.clone(), asked: Arc::new(asked), since: now.time, until };
        let told = self.told.is_some().then(|| view.clone());
        let repeat = beside.map(|beside| Repeat { beside, awaited: None });
        state.deadlines.insert((deadline, number));
        state.waiting.insert(number, Entry { view, timeout, deadline, answer: sender, repeat });
        drop(state);
        if let Some(WaitingView { id, asked, until, .. }) = told {
            self.tell(ApprovalNews { id, asked, until, made: now.instant, outcome: None });
        }
        Ok(Admitted::Place(RoomPlace { number, id, until, deadline, answer }))
    }

    /// Answers a call that waits; how that ended it. Denied afterwards, an approval that stands ends.
    ///
    /// # Errors
    /// [`NotAnswered`]; then nothing has changed.
    pub fn answer(
        &self,
        id: &str,
        answer: ApprovalAnswer,
    ) -> Result<AnsweredApproval, NotAnswered> {
        self.sweep();
        let now = now();
        let mut state = self.state.lock();
        let Some(number) = state.number(id) else {
            let answered = state.answer_again(id, answer, now, self.node.is_some());
            drop(state);
            self.leaves_changed.notify_one();
            return answered;
        };
        let ApprovalAnswer { verdict, by, seen } = answer;
        let Some(Entry { view, .. }) = state.waiting.get(&number) else {
            return Err(NotAnswered::NotFound);
        };
        let (id, asked) = (view.id.clone(), Arc::clone(&view.asked));
        let digest = asked.pending.digest();
        if seen.is_some_and(|seen| *seen != *digest.to_string()) {
            return Err(NotAnswered::OtherCall(id));
        }
        let outcome = match verdict {
            ApprovalVerdict::Deny => Outcome::Denied { by },
            ApprovalVerdict::Approve(extent) => {
                if let Some(reach) = reach(extent, &asked, &id)? {
                    state.leaves.has_room(now).map_err(NotAnswered::TooMany)?;
                    state.leaves.give(&id, &asked, &by, reach, now);
                }
                Outcome::Approved { by, extent, approved: Approved::Call(digest) }
            }
        };
        let ended = state.conclude(number, outcome);
        let decided = state.decided.back().cloned();
        drop(state);
        self.leaves_changed.notify_one();
        self.tell_ended(ended);
        let decided = decided.ok_or(NotAnswered::NotFound)?;
        Ok(AnsweredApproval { decided, revoked: None })
    }

    /// Whether there are request states: a client that is asked by the answer to its request needs one.
    #[must_use]
    pub fn makes_states(&self) -> bool {
        self.state_key.is_some()
    }

    /// The request state under which `principal` may make a call again; `None` where there can be none.
    #[must_use]
    pub fn request_state(&self, id: &ApprovalId, principal: &Principal) -> Option<String> {
        self.state_key.as_ref().map(|key| key.write(id.as_str(), principal))
    }

    /// What a request state is that `principal` brings along.
    #[must_use]
    pub fn read_state(&self, state: &str, principal: &Principal) -> StateRead {
        self.state_key.as_ref().map_or(StateRead::Foreign, |key| key.read(state, principal))
    }

    /// A client makes a call again: what it says counts as an answer, if it is the first. A call that was decided is
    /// used up by this.
    ///
    /// # Errors
    /// [`NotApproved::Spent`]: there is no such call that could be made again, or none any more; then nothing has
    /// changed. [`NotApproved::Changed`]: it is another call.
    pub(super) fn claim(
        &self,
        id: &ApprovalId,
        pending: &PendingApproval,
        said: UserSaid,
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
            let by = Answerer::here(pending.principal().id(), Door::Elicitation);
            let outcome = match said {
                UserSaid::Missing => return Ok(Claim::AskAgain),
                UserSaid::Nothing => {
                    let (sender, answer) = oneshot::channel();
                    repeat.awaited = Some(sender);
                    return Ok(Claim::Waits { number, answer, beside: repeat.beside.clone() });
                }
                UserSaid::Verdict(ApprovalVerdict::Deny) => Outcome::Denied { by },
                UserSaid::Verdict(ApprovalVerdict::Approve(_)) => {
                    let approved = Approved::Call(pending.digest());
                    Outcome::Approved { by, extent: Extent::Once, approved }
                }
            };
            ended = state.conclude(number, outcome);
        }
        let claimed = state.unclaimed.claim(id, now, |call| call.check(pending));
        drop(state);
        self.tell_ended(ended);
        claimed.map(|Unclaimed { outcome, beside, .. }| Claim::Over(outcome, beside))
    }

    /// A call that is made again needs no approval any more: it is not waited for; what stood beside the arguments of
    /// the first request.
    ///
    /// # Errors
    /// [`NotApproved::Spent`]
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
        self.tell_ended(ended);
        claimed.map(|unclaimed| unclaimed.beside)
    }

    /// Ends a wait whose client has gone; `None` if it was over already, and its answer is on its way.
    pub(super) fn withdraw(&self, number: u64) -> Option<Outcome> {
        self.end(number, |_| Outcome::Withdrawn)
    }

    /// Ends a wait whose time is up; `None` if it was over already, and its answer is on its way.
    pub(super) fn expire(&self, number: u64) -> Option<Outcome> {
        self.end(number, |timeout| Outcome::TimedOut { after: timeout })
    }

    fn end(&self, number: u64, outcome: impl FnOnce(Duration) -> Outcome) -> Option<Outcome> {
        let mut state = self.state.lock();
        let timeout = state.waiting.get(&number)?.timeout;
        let outcome = outcome(timeout);
        let ended = state.conclude(number, outcome.clone());
        drop(state);
        self.tell_ended(ended);
        Some(outcome)
    }

    /// Ends what nobody ended in time: a client that does not read keeps its own call from doing so.
    fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let overdue = state.deadlines.range(..=(now, u64::MAX));
        let overdue: Vec<u64> = overdue.map(|(_, number)| *number).collect();
        let ended: Vec<_> =
            overdue.into_iter().filter_map(|number| state.time_out(number)).collect();
        drop(state);
        self.tell_ended(ended);
    }

    /// Those that wait, the oldest first.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingView> {
        self.sweep();
        let state = self.state.lock();
        state.waiting.values().map(|entry| entry.view.clone()).collect()
    }

    /// How many wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Approvals that stand, the oldest first.
    #[must_use]
    pub fn standing(&self) -> Vec<StandingLeave> {
        self.state.lock().leaves.all(now())
    }

    /// The approval of that id, if it waits, or is remembered.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<KnownApproval> {
        self.sweep();
        let state = self.state.lock();
        if let Some(entry) = state.number(id).and_then(|number| state.waiting.get(&number)) {
            return Some(KnownApproval::Waiting(entry.view.clone()));
        }
        state.over(id).cloned().map(KnownApproval::Over)
    }

    /// What the webhook was not told, because it did not keep up.
    #[must_use]
    pub fn untold(&self) -> u64 {
        self.untold.load(Ordering::Relaxed)
    }

    /// Bytes, ids and principals that are counted.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.bytes, state.by_id.len(), state.of_one.len())
    }

    /// Decided calls that nobody has made again.
    #[cfg(test)]
    pub(super) fn unclaimed(&self) -> usize {
        self.state.lock().unclaimed.len()
    }

    fn tell_ended(&self, ended: impl IntoIterator<Item = Ended>) {
        for Ended { view, outcome } in ended {
            let WaitingView { id, asked, until, .. } = view;
            let made = Instant::now();
            self.tell(ApprovalNews { id, asked, until, made, outcome: Some(outcome) });
        }
    }

    fn tell(&self, told: ApprovalNews) {
        if let Some(sender) = &self.told
            && sender.try_send(told).is_err()
        {
            self.untold.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("the webhook of approvals does not keep up: a message is lost");
        }
    }
}

/// A wait that is over.
struct Ended {
    view: WaitingView,
    outcome: Outcome,
}

impl State {
    /// Whether there is a door, and a place.
    fn check(
        &self,
        RoomBounds { waiting, of_one, .. }: RoomBounds,
        principal: &Principal,
        asks_itself: bool,
    ) -> Result<(), NotApproved> {
        match (self.doors, asks_itself) {
            (Doors::Open, _) | (Doors::Closed, true) => {}
            (Doors::Closed, false) => return Err(NotApproved::Nobody),
            (Doors::Ended, _) => return Err(NotApproved::Ending),
        }
        let theirs = self.of_one.get(principal.id()).copied().unwrap_or_default();
        if theirs >= of_one {
            return Err(NotApproved::TooMany { limit: of_one });
        }
        if self.waiting.len() >= waiting {
            return Err(NotApproved::TooMany { limit: waiting });
        }
        Ok(())
    }

    fn number(&self, id: &str) -> Option<u64> {
        // An id is looked up by its text; one that is known to nobody is made for the moment alone.
        self.by_id.get(&ApprovalId::of_text(id)).copied()
    }

    fn over(&self, id: &str) -> Option<&Decided> {
        self.decided.iter().rev().find(|decided| decided.id.as_str() == id)
    }

    /// Ends a wait whose time is up.
    fn time_out(&mut self, number: u64) -> Option<Ended> {
        let after = self.waiting.get(&number)?.timeout;
        self.conclude(number, Outcome::TimedOut { after })
    }

    /// Takes a call out, tells it how its wait ended, and remembers it.
    fn conclude(&mut self, number: u64, outcome: Outcome) -> Option<Ended> {
        let Entry { view, answer, repeat, deadline, .. } = self.waiting.remove(&number)?;
        self.by_id.remove(&view.id);
        self.deadlines.remove(&(deadline, number));
        let beside = repeat.as_ref().map_or(0, |repeat| repeat.beside.len());
        self.bytes -= view.asked.bytes() + beside;
        let principal = view.asked.pending.principal().id();
        if let Some(count) = self.of_one.get_mut(principal) {
            *count -= 1;
            if *count == 0 {
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
        // Before anybody can see that it is over: whoever waits, and looks for itself, finds the answer. One that has
        // gone has seen to its record.
        let _ = answer.send(outcome.clone());
        match repeat {
            Some(Repeat { awaited: Some(awaited), .. }) => {
                let _ = awaited.send(outcome.clone());
            }
            Some(Repeat { beside, awaited: None }) => {
                let call = RepeatedCall::of(&view.asked.pending);
                let (id, outcome) = (view.id.clone(), outcome.clone());
                let unclaimed = Unclaimed { id, call, outcome, beside, deadline };
                self.unclaimed.keep(unclaimed, Instant::now());
            }
            None => {}
        }
        Some(Ended { view, outcome })
    }

    /// An answer to what does not wait: the first has counted, but for an operator's late no to what still stands; in a fleet also
    /// to what the other nodes do not know to be over.
    fn answer_again(
        &mut self,
        id: &str,
        answer: ApprovalAnswer,
        now: Now,
        in_fleet: bool,
    ) -> Result<AnsweredApproval, NotAnswered> {
        match answer.verdict {
            // The client's user, who was asked meanwhile, has said no to the call alone.
            ApprovalVerdict::Deny if answer.by.door != Door::Elicitation => {
                let revoked = self.leaves.end(id, now);
                let untold = || self.leaves.untold(id).filter(|_| in_fleet).cloned();
                if let Some(leave) = revoked.clone().or_else(untold) {
                    let outcome = Outcome::Denied { by: answer.by };
                    let StandingLeave { of: id, access, .. } = leave;
                    let decided = Decided { id, access, outcome, at: now.time };
                    return Ok(AnsweredApproval { decided, revoked });
                }
            }
            ApprovalVerdict::Deny | ApprovalVerdict::Approve(_) => {}
        }
        let decided = self.over(id).cloned().ok_or(NotAnswered::NotFound)?;
        Err(NotAnswered::Over { decided: Box::new(decided) })
    }
}

/// How far an approval stands; `None` if it counts once.
fn reach(extent: Extent, asked: &AskedCall, id: &ApprovalId) -> Result<Option<Reach>, NotAnswered> {
    let reach = match extent {
        Extent::Once => return Ok(None),
        Extent::For(time) if time > MAX_STANDING => return Err(NotAnswered::TooLong),
        Extent::For(time) => Reach { session: None, time },
        Extent::Session if asked.session.is_empty() => {
            return Err(NotAnswered::NoSession(id.clone()));
        }
        Extent::Session => Reach { session: Some(asked.session.clone()), time: MAX_STANDING },
    };
    Ok(Some(reach))
}
