//! One schedule: a node, possibly a second one on a copy of its disk, a store, and their events in the order of a
//! simulated clock.
//!
//! Nodes share only the store and write under their own keys, so a single chain and its potential writers suffice.

mod judge;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mcpproxy_activity::record::Hash;
use mcpproxy_fleet::sealing::SealAct;
use mcpproxy_fleet::sealing::{UploadReply, UploadRequest, UploadStep};
use mcpproxy_fleet::segment::SegmentName;

use super::follower::{FollowEvent, IndexNode};
use super::node::{Disk, Process};
use super::random::Random;
use super::sharing::{self, SharingOutcome};
use super::store::{Fate, Object, Store};
use super::variant::Variant;

const TIMEOUT_MS: u64 = 30_000;
/// Maximum duration of a successful request. An upload consists of three requests.
const LONGEST_ANSWER_MS: u64 = 2_000;
const LONGEST_PUT_MS: u64 = 3 * (LONGEST_ANSWER_MS + 1);
/// Delay before the restart of a node that was rejected because the store contains no fleet.
const REFUSED_MS: u64 = 1_000;
/// Time from which no faults occur.
const HEALED_MS: u64 = 120_000;
/// Time at which everything must be done.
const END_MS: u64 = HEALED_MS + 600_000;
/// 2026-01-01, three minutes before midnight.
const EPOCH_MS: u64 = 1_767_225_600_000 - 180_000;
const DAY_MS: u64 = 24 * 3600 * 1000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The process runs its next step.
    Step,
    Commit,
    Sync,
    Retain,
    Start,
    Crash {
        power: bool,
    },
    /// The disk is restored to an earlier state.
    Restore,
    Snapshot,
    /// Another machine starts on a copy of the disk.
    Copy,
    /// The store processes a request.
    Serve {
        number: usize,
        answers: bool,
    },
    /// The reply arrives, or the request times out.
    Answer {
        number: usize,
    },
    Forget,
    /// An empty store replaces the store, or the store returns.
    Swap,
    ComeBack,
    /// Objects are tampered with, as seen by followers.
    Harm,
    /// Event of an index node; dropped if its process has restarted since.
    Follow {
        life: u64,
        event: FollowEvent,
    },
}

impl Event {
    fn is_traced(&self) -> bool {
        let wakes = Self::Follow { life: 0, event: FollowEvent::Wake };
        *self != Self::Step && std::mem::discriminant(self) != std::mem::discriminant(&wakes)
    }
}

/// Request to the store.
#[derive(Clone, Debug)]
struct Request {
    machine: usize,
    life: u64,
    ask: UploadRequest,
    name: SegmentName,
    object: Object,
    fate: Fate,
    answer: Option<UploadReply>,
}

#[derive(Debug)]
struct Machine {
    disk: Disk,
    process: Option<Process>,
    /// Number of starts: replies to requests of an earlier life are dropped.
    life: u64,
    skew_ms: u64,
    snapshot: Option<Disk>,
    refused: bool,
    /// Time of the next scheduled step.
    wakes_at: u64,
    /// Records that the store has confirmed: number and hash.
    confirmed: Vec<(u64, Hash)>,
}

/// Faults enabled in a schedule, besides crashes and lost messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Disks are restored to earlier states.
    restores: bool,
    /// Another machine runs on a copy.
    copies: bool,
    /// The store loses objects or confirms without storing.
    forgets: bool,
    /// Followers are shown tampered objects.
    harms: bool,
}

pub struct World {
    random: Random,
    /// Random numbers of the followers, separate so that they do not affect the ledger.
    reading: Random,
    /// Random numbers of store swaps.
    swapping: Random,
    variant: Variant,
    trouble: Trouble,
    now: u64,
    store: Store,
    machines: Vec<Machine>,
    readers: Vec<IndexNode>,
    events: BinaryHeap<Reverse<(u64, u64, usize, Event)>>,
    requests: Vec<Request>,
    scheduled: u64,
    /// Trace of events, if requested.
    trace: Option<Vec<String>>,
}

/// Outcome of a schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub events: u64,
    pub segments: u64,
    pub records: u64,
    pub crashes: u64,
    pub forked: bool,
    pub forgot: bool,
    pub refused: bool,
    /// Number of writes to a swapped store.
    pub astray: u64,
    /// Segments accepted by index nodes, faults reported by them, and their crashes.
    pub taken: u64,
    pub reported: u64,
    pub restarts: u64,
    /// Outcome of the shared facts.
    pub sharing: SharingOutcome,
}

/// Runs the schedule of a seed.
///
/// # Errors
///
/// Violated invariant.
pub fn run(seed: u64, variant: Variant, traced: bool) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    if variant.has_ledger() {
        let mut world = World::new(seed, variant, traced);
        let ledger = world.run();
        let trace = world.trace.take().unwrap_or_default();
        trace.iter().for_each(|line| println!("{line}"));
        outcome = ledger?;
    }
    if variant.has_facts() {
        outcome.sharing = sharing::run(seed, variant, traced)?;
    }
    Ok(outcome)
}

impl World {
    fn new(seed: u64, variant: Variant, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let mut reading = Random::new(!seed);
        let swapping = Random::new(seed.rotate_left(32));
        let trouble = Trouble {
            restores: random.once_in(4),
            copies: random.once_in(6),
            forgets: random.once_in(4),
            harms: reading.once_in(4),
        };
        let store = Store { creates: random.once_in(2), ..Store::default() };
        let mut world = Self {
            random,
            reading,
            swapping,
            variant,
            trouble,
            now: 0,
            store,
            machines: Vec::new(),
            readers: Vec::new(),
            events: BinaryHeap::new(),
            requests: Vec::new(),
            scheduled: 0,
            trace: traced.then(Vec::new),
        };
        world.machine(Disk::new(1));
        world.readers();
        world.swaps();
        world
    }

    /// Swaps the store in some schedules, but never twice within one upload, which would be undetectable.
    fn swaps(&mut self) {
        if !self.swapping.once_in(3) {
            return;
        }
        let mut at = self.swapping.between(1, HEALED_MS / 3);
        loop {
            let back = at + self.swapping.between(1, HEALED_MS / 6);
            if back >= HEALED_MS {
                break;
            }
            self.at(at, 0, Event::Swap);
            self.at(back, 0, Event::ComeBack);
            at = back + LONGEST_PUT_MS + self.swapping.below(HEALED_MS / 3);
        }
    }

    /// Adds index nodes, and in some schedules tampering.
    fn readers(&mut self) {
        if !self.variant.has_followers() {
            return;
        }
        for reader in 0..self.reading.between(1, 2) as usize {
            let random = Random::new(self.reading.next());
            self.readers.push(IndexNode::new(random, self.variant, HEALED_MS));
            self.planned(reader);
        }
        for _ in 0..if self.trouble.harms { self.reading.between(1, 4) } else { 0 } {
            let at = self.reading.below(HEALED_MS);
            self.at(at, 0, Event::Harm);
        }
    }

    /// Schedules the planned events of an index node. From the time without faults on, the node runs to its end.
    fn planned(&mut self, reader: usize) {
        let Some(node) = self.readers.get_mut(reader) else { return };
        for (time, life, event) in std::mem::take(&mut node.plans) {
            if time < HEALED_MS {
                self.at(time, reader, Event::Follow { life, event });
            }
        }
    }

    fn machine(&mut self, disk: Disk) {
        let machine = self.machines.len();
        let skew_ms = match self.random.below(3) {
            0 => 0,
            1 => self.random.below(10_000),
            _ => self.random.below(3 * DAY_MS),
        };
        self.machines.push(Machine {
            disk,
            process: None,
            life: 0,
            skew_ms,
            snapshot: None,
            refused: false,
            wakes_at: 0,
            confirmed: Vec::new(),
        });
        self.at(self.now, machine, Event::Start);
        let mut at = self.now;
        loop {
            at += self.random.between(50, 6000);
            if at >= HEALED_MS {
                break;
            }
            let event = match self.random.below(100) {
                0..60 => Event::Commit,
                60..75 => Event::Sync,
                75..80 => Event::Retain,
                80..86 => Event::Crash { power: false },
                86..90 => Event::Crash { power: true },
                90..93 => Event::Snapshot,
                93..95 if self.trouble.restores => Event::Restore,
                95..97 if self.trouble.copies && machine == 0 => Event::Copy,
                97..99 if self.trouble.forgets => Event::Forget,
                _ => Event::Commit,
            };
            self.at(at, machine, event);
        }
        // Final run without faults.
        self.at(HEALED_MS + 1, machine, Event::Start);
        self.at(HEALED_MS + 2, machine, Event::Sync);
    }

    fn at(&mut self, time: u64, machine: usize, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((time, self.scheduled, machine, event)));
    }

    fn run(&mut self) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        while let Some(Reverse((time, _, machine, event))) = self.events.pop() {
            if time > END_MS {
                // A copy that divided the same records into other segments is rejected forever.
                if self.trouble.copies {
                    break;
                }
                return Err("the chain never completed: something is retried forever".into());
            }
            (self.now, self.store.shelf.now) = (time, time);
            outcome.events += 1;
            outcome.crashes += u64::from(matches!(event, Event::Crash { .. }));
            if let Some(trace) = self.trace.as_mut().filter(|_| event.is_traced()) {
                trace.push(format!("{time:>7} machine {machine} {event:?}"));
            }
            self.happen(machine, event)?;
        }
        outcome.astray = self.store.astray;
        self.judge(&mut outcome)?;
        let Trouble { restores, copies, forgets, harms } = self.trouble;
        for reader in &mut self.readers {
            reader.settle(self.now, &self.store.shelf)?;
            let quiet = !(restores || copies || forgets || harms);
            let (taken, reported) = reader.check(&self.store.shelf, quiet)?;
            outcome.taken += taken;
            outcome.reported += reported;
            outcome.restarts += reader.crashes;
        }
        Ok(outcome)
    }

    fn happen(&mut self, at: usize, event: Event) -> Result<(), String> {
        let now = self.now;
        if let Event::Follow { life, event } = event {
            let Some(reader) = self.readers.get_mut(at) else { return Ok(()) };
            let happened = reader.happen((now, life, event), &self.store.shelf);
            self.planned(at);
            return happened;
        }
        let Some(machine) = self.machines.get_mut(at) else { return Ok(()) };
        match event {
            Event::Follow { .. } => {}
            Event::Harm => self.store.shelf.harm(&mut self.reading),
            Event::Swap => {
                self.store.instead = Some(Default::default());
                self.store.shelf.swap();
            }
            Event::ComeBack => {
                self.store.instead = None;
                self.store.shelf.come_back();
            }
            Event::Commit => {
                let count = self.random.between(1, 6);
                // Clocks are set correctly or wrongly from time to time.
                if self.random.once_in(20) {
                    machine.skew_ms = self.random.below(2 * DAY_MS);
                }
                if machine.process.is_some() {
                    let wall_ms = EPOCH_MS + now + machine.skew_ms;
                    machine.disk.append(count, wall_ms, &mut self.random);
                    self.at(now + 1, at, Event::Step);
                    if self.random.below(3) > 0 {
                        self.at(now, at, Event::Sync);
                    }
                }
            }
            Event::Sync => {
                machine.disk.durable = machine.disk.end.0;
                self.at(now, at, Event::Step);
            }
            Event::Retain => {
                let confirmed = machine.confirmed.last().map_or(0, |(seq, _)| *seq);
                machine.disk.retain(confirmed, &mut self.random);
            }
            Event::Start => self.start(at),
            Event::Crash { power } => {
                machine.process = None;
                machine.life += 1;
                if power {
                    machine.disk.lose_power();
                }
                let after = now + self.random.between(0, 3000);
                self.at(after, at, Event::Start);
            }
            Event::Snapshot => {
                // All records are durable, as in a copy of a running machine.
                machine.disk.durable = machine.disk.end.0;
                machine.snapshot = Some(machine.disk.clone());
            }
            Event::Restore => {
                if let Some(snapshot) = machine.snapshot.clone() {
                    machine.process = None;
                    machine.life += 1;
                    machine.disk = snapshot;
                    self.at(now + 10, at, Event::Start);
                }
            }
            Event::Copy => {
                let mut disk = machine.snapshot.clone().unwrap_or_else(|| machine.disk.clone());
                disk.lose_power();
                if self.machines.len() < 3 {
                    self.machine(disk);
                }
            }
            Event::Forget => self.store.forget(&mut self.random),
            Event::Serve { number, answers } => {
                let Some(request) = self.requests.get_mut(number) else { return Ok(()) };
                let served = match request.fate {
                    Fate::SaysYes
                        if matches!(
                            request.ask,
                            UploadRequest::Create | UploadRequest::Replace
                        ) =>
                    {
                        Some(UploadReply::Done)
                    }
                    _ => self.store.serve(request.ask, &request.name, &request.object),
                };
                if answers {
                    request.answer = served;
                }
            }
            Event::Answer { number } => self.answered(number),
            Event::Step => return self.step(at),
        }
        Ok(())
    }

    fn start(&mut self, at: usize) {
        let Some(machine) = self.machines.get_mut(at) else { return };
        if machine.process.is_some() || machine.refused {
            return;
        }
        if self.store.instead.is_some() {
            // The machine belongs to a fleet, and the empty store contains none.
            self.at(self.now + REFUSED_MS, at, Event::Start);
            return;
        }
        match Process::start(&mut machine.disk, &self.store, &mut self.random, self.variant) {
            Ok(process) => {
                machine.process = Some(process);
                let stored = machine.process.as_ref().map_or(0, |it| it.state.stored().seq);
                confirm(machine, stored);
                self.at(self.now, at, Event::Step);
            }
            Err(_) => machine.refused = true,
        }
    }

    /// One iteration of the ledger's loop.
    fn step(&mut self, at: usize) -> Result<(), String> {
        let (now, variant, is_healed) = (self.now, self.variant, self.now >= HEALED_MS);
        let Some(machine) = self.machines.get_mut(at) else { return Ok(()) };
        let Some(process) = &mut machine.process else { return Ok(()) };
        if process.in_hand.as_ref().is_some_and(|hand| hand.waits) {
            return Ok(());
        }
        process.state.committed(machine.disk.durable, now);
        if variant == Variant::SealsEarly {
            process.state.committed(machine.disk.end.0, now);
        }
        match process.state.act(now) {
            SealAct::Rest => {}
            SealAct::Wait(until) => {
                // One pending wakeup at a time.
                if !(now + 1..=until).contains(&machine.wakes_at) {
                    machine.wakes_at = until;
                    self.at(until, at, Event::Step);
                }
            }
            SealAct::Seal(bytes) => {
                match process.seal(&mut machine.disk, &self.store, (bytes, now), variant) {
                    Ok(true) => {}
                    Ok(false) => process.state.not_sealed(now),
                    // The node fails repeatedly, and uploads nothing.
                    Err(_) => {
                        machine.process = None;
                        machine.refused = true;
                        return Ok(());
                    }
                }
                self.at(now + 1, at, Event::Step);
            }
            SealAct::Put => {
                let life = machine.life;
                let Some(hand) = &mut process.in_hand else {
                    return Err("an upload is due but nothing is in flight".into());
                };
                hand.waits = true;
                let ask = hand.putting.ask();
                let (name, object) = (hand.name.clone(), hand.object.clone());
                let fate = match is_healed {
                    true => Fate::Answered,
                    false => Fate::random(&mut self.random, self.trouble.forgets),
                };
                let request = Request { machine: at, life, ask, name, object, fate, answer: None };
                self.ask(request);
            }
        }
        Ok(())
    }

    fn ask(&mut self, request: Request) {
        let (now, at, fate) = (self.now, request.machine, request.fate);
        let number = self.requests.len();
        self.requests.push(request);
        let soon = now + self.random.between(1, LONGEST_ANSWER_MS);
        let late = now + self.random.between(TIMEOUT_MS, 3 * TIMEOUT_MS);
        let served = |answers| Event::Serve { number, answers };
        match fate {
            Fate::Answered | Fate::SaysYes => {
                self.at(soon, at, served(true));
                self.at(soon + 1, at, Event::Answer { number });
                return;
            }
            Fate::Twice => {
                self.at(soon, at, served(true));
                self.at(soon + 1, at, Event::Answer { number });
                self.at(late, at, served(false));
                return;
            }
            Fate::RequestLost => {}
            Fate::AnswerLost => self.at(soon, at, served(false)),
            Fate::Late => self.at(late, at, served(false)),
        }
        // A connection breaks at once or times out.
        let gives_up = now + if self.random.once_in(2) { 5 } else { TIMEOUT_MS };
        self.at(gives_up, at, Event::Answer { number });
    }

    fn answered(&mut self, number: usize) {
        let (now, variant) = (self.now, self.variant);
        let Some(request) = self.requests.get(number) else { return };
        let (at, life, answer) = (request.machine, request.life, request.answer);
        let Some(machine) = self.machines.get_mut(at).filter(|it| it.life == life) else { return };
        let Some(process) = &mut machine.process else { return };
        let Some(hand) = &mut process.in_hand else { return };
        hand.waits = false;
        let believed = variant == Variant::BelievesTheStore && answer == Some(UploadReply::Done);
        let answer = match answer {
            Some(UploadReply::Place(Err(_))) if variant == Variant::PutsAnywhere => {
                Some(UploadReply::Place(Ok(())))
            }
            answer => answer,
        };
        let next = match answer {
            Some(_) if believed => Some(UploadStep::Stored(hand.object.checkpoint.hash())),
            Some(answer) => hand.putting.answered(answer).ok(),
            None => None,
        };
        match next {
            Some(UploadStep::Ask(putting)) => hand.putting = putting,
            Some(UploadStep::Stored(checkpoint)) => {
                let day = hand.name.day;
                process.state.uploaded(checkpoint);
                process.in_hand = None;
                let stored = process.state.stored();
                // The process may end before it saves the new state.
                let noted = self.random.below(8) > 0;
                if let Some(mark) = machine.disk.mark.as_mut().filter(|_| noted) {
                    (mark.stored, mark.day, mark.planned) = (stored, day, None);
                }
                confirm(machine, stored.seq);
            }
            None => {
                let hand = &mut *hand;
                let length = hand.object.length;
                let checkpoint = hand.object.checkpoint.hash();
                let creates = self.store.creates;
                hand.putting =
                    mcpproxy_fleet::sealing::SegmentUpload::new(creates, length, checkpoint);
                process.state.upload_failed(now);
            }
        }
        self.at(now, at, Event::Step);
    }
}

/// Confirms to the log that everything up to `seq` is uploaded.
fn confirm(machine: &mut Machine, seq: u64) {
    let after = machine.confirmed.last().map_or(0, |(seq, _)| *seq);
    let known = machine.disk.records.iter().filter(|it| (after + 1..=seq).contains(&it.seq));
    machine.confirmed.extend(known.map(|record| (record.seq, record.hash)));
}
