//! The room where calls wait for a person: bounded, and the first answer counts.
//!
//! One lock, held for a few map operations and never across a wait. A call that needs no approval does not come here.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::answer::{ApprovalAnswer, ApprovalVerdict, Decided, Extent, NotAnswered, Outcome};
use super::asked::{ApprovalId, AskedCall};
use super::config::MAX_STANDING;
use super::leaves::{Leaves, MAX_LEAVES, Now, Reach, StandingLeave};
use crate::policy::{Approved, NotApproved, PendingApproval, Principal};

/// Decided approvals that are remembered, so that a second answer is told of the first.
const MAX_DECIDED: usize = 512;

/// How many calls may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomBounds {
    /// In all.
    pub waiting: usize,
    /// On behalf of one principal.
    pub of_one: usize,
    /// Bytes of what they ask for.
    pub bytes: usize,
}

/// Places in the log that one waiting call takes: its own, and those of its two records.
const PLACES: usize = 3;

impl RoomBounds {
    /// For a log that has places for so many calls: those that wait leave three quarters of them to all others.
    #[must_use]
    pub fn of_log(places: usize) -> Self {
        let waiting = (places / 4 / PLACES).clamp(1, 512);
        Self { waiting, of_one: waiting.div_ceil(2), bytes: 64 * 1024 * 1024 }
    }
}

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

/// What the webhook tells of: that a call waits, or that its wait is over.
#[derive(Clone, Debug)]
pub struct ApprovalNews {
    /// Which.
    pub id: ApprovalId,
    /// What is asked.
    pub asked: Arc<AskedCall>,
    /// When the time is up.
    pub until: SystemTime,
    /// When this is told.
    pub made: Instant,
    /// How it ended; `None` while it waits.
    pub outcome: Option<Outcome>,
}

/// A call that waits, as it is shown.
#[derive(Clone, Debug)]
pub struct WaitingView {
    /// Which.
    pub id: ApprovalId,
    /// What is asked.
    pub asked: Arc<AskedCall>,
    /// Since when.
    pub since: SystemTime,
    /// When the time is up.
    pub until: SystemTime,
}

/// An approval, as it is shown.
#[derive(Clone, Debug)]
pub enum KnownApproval {
    /// It waits.
    Waiting(WaitingView),
    /// It is over.
    Over(Decided),
}

/// The room. Shared by all who ask and all who answer.
#[derive(Debug)]
pub struct Room {
    state: Mutex<State>,
    bounds: RoomBounds,
    told: Option<mpsc::Sender<ApprovalNews>>,
    untold: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    doors: Doors,
    /// By the order in which they came.
    waiting: BTreeMap<u64, Entry>,
    by_id: HashMap<ApprovalId, u64>,
    of_one: HashMap<Box<str>, usize>,
    bytes: usize,
    next: u64,
    decided: VecDeque<Decided>,
    leaves: Leaves,
}

#[derive(Debug)]
struct Entry {
    view: WaitingView,
    timeout: Duration,
    deadline: Instant,
    answer: oneshot::Sender<Outcome>,
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
        Self { state: Mutex::default(), bounds, told, untold: AtomicU64::new(0) }
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
    ///
    /// # Errors
    /// Why it cannot wait.
    pub(super) fn admit(
        &self,
        asked: AskedCall,
        timeout: Duration,
        asks_itself: bool,
    ) -> Result<Admitted, NotApproved> {
        let now = now();
        let mut state = self.state.lock();
        if let Some((approved, of)) = state.leaves.find(&asked.pending, &asked.session, now) {
            return Ok(Admitted::Leave(approved, of));
        }
        state.check(self.bounds, asked.pending.principal(), asks_itself)?;
        if state.bytes + asked.bytes() > self.bounds.bytes {
            return Err(NotApproved::TooMany { limit: state.waiting.len() });
        }
        let id = ApprovalId::fresh().ok_or(NotApproved::Unavailable)?;
        let number = state.next;
        state.next += 1;
        state.bytes += asked.bytes();
        *state.of_one.entry(asked.pending.principal().id().into()).or_default() += 1;
        state.by_id.insert(id.clone(), number);
        let (sender, answer) = oneshot::channel();
        let (until, deadline) = (now.time + timeout, now.instant + timeout);
        let view = WaitingView { id: id.clone(), asked: Arc::new(asked), since: now.time, until };
        let told = self.told.is_some().then(|| view.clone());
        state.waiting.insert(number, Entry { view, timeout, deadline, answer: sender });
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
    pub fn answer(&self, id: &str, answer: ApprovalAnswer) -> Result<Decided, NotAnswered> {
        self.sweep();
        let now = now();
        let mut state = self.state.lock();
        let Some(number) = state.number(id) else { return state.answer_again(id, answer, now) };
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
                    if !state.leaves.has_room(now) {
                        return Err(NotAnswered::TooMany(MAX_LEAVES));
                    }
                    state.leaves.give(&id, &asked, &by, reach, now);
                }
                Outcome::Approved { by, extent, approved: Approved::Call(digest) }
            }
        };
        let ended = state.conclude(number, outcome);
        let decided = state.decided.back().cloned();
        drop(state);
        self.tell_ended(ended);
        decided.ok_or(NotAnswered::NotFound)
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
        let overdue = state.waiting.iter().filter(|(_, entry)| entry.deadline <= now);
        let overdue: Vec<_> = overdue
            .map(|(number, entry)| (*number, Outcome::TimedOut { after: entry.timeout }))
            .collect();
        let ended: Vec<_> =
            overdue.into_iter().filter_map(|(number, how)| state.conclude(number, how)).collect();
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

    /// Takes a call out, tells it how its wait ended, and remembers it.
    fn conclude(&mut self, number: u64, outcome: Outcome) -> Option<Ended> {
        let Entry { view, answer, .. } = self.waiting.remove(&number)?;
        self.by_id.remove(&view.id);
        self.bytes -= view.asked.bytes();
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
        Some(Ended { view, outcome })
    }

    /// An answer to what does not wait: the first has counted, but for a late no to what still stands.
    fn answer_again(
        &mut self,
        id: &str,
        answer: ApprovalAnswer,
        now: Now,
    ) -> Result<Decided, NotAnswered> {
        match answer.verdict {
            ApprovalVerdict::Deny => {
                if let Some(leave) = self.leaves.end(id, now) {
                    let outcome = Outcome::Denied { by: answer.by };
                    let StandingLeave { of: id, access, .. } = leave;
                    return Ok(Decided { id, access, outcome, at: now.time });
                }
            }
            ApprovalVerdict::Approve(_) => {}
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
