//! One schedule: a node of a fleet, perhaps with a second one that runs on a copy of its disk, a store, and what happens to
//! them, in the order of a clock that a seed moves.
//!
//! Nodes share nothing but the store, and write under keys of their own: one chain is all there is to try, and whoever might
//! write into it.

mod judge;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mcpproxy::activity::record::Hash;
use mcpproxy::fleet::putting::{PutAnswer, PutAsk, PutNext};
use mcpproxy::fleet::sealing::SealAct;
use mcpproxy::fleet::segment::SegmentName;

use super::follower::{FollowEvent, IndexNode};
use super::node::{Disk, Process};
use super::random::Random;
use super::sharing::{self, SharingOutcome};
use super::store::{Fate, Object, Store};
use super::variant::Variant;

/// How long a request is waited for.
const TIMEOUT_MS: u64 = 30_000;
/// The longest that a request takes which is answered, and a put, which is three of them.
const LONGEST_ANSWER_MS: u64 = 2_000;
const LONGEST_PUT_MS: u64 = 3 * (LONGEST_ANSWER_MS + 1);
/// When a node is started again that was refused its place since the store is none of a fleet.
const REFUSED_MS: u64 = 1_000;
/// When all is well again.
const HEALED_MS: u64 = 120_000;
/// When everything has to be done.
const END_MS: u64 = HEALED_MS + 600_000;
/// 2026-01-01, three minutes before midnight.
const EPOCH_MS: u64 = 1_767_225_600_000 - 180_000;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The process looks what is to be done.
    Step,
    Commit,
    Sync,
    Retain,
    Start,
    Crash {
        power: bool,
    },
    /// The disk is put back to what it was before.
    Restore,
    Snapshot,
    /// Another machine starts on a copy of the disk.
    Copy,
    /// The store does what it was asked.
    Serve {
        number: usize,
        answers: bool,
    },
    /// The answer comes, or nothing more is waited for.
    Answer {
        number: usize,
    },
    Forget,
    /// Another store is where it was, an empty one; and it is there again.
    Swap,
    ComeBack,
    /// A stranger does something to what lies there, as those who follow see it.
    Harm,
    /// Something happens to an index node, in that life of it.
    Follow {
        life: u64,
        event: FollowEvent,
    },
}

impl Event {
    /// Whether it stands in the trace.
    fn is_told(&self) -> bool {
        let wakes = Self::Follow { life: 0, event: FollowEvent::Wake };
        *self != Self::Step && std::mem::discriminant(self) != std::mem::discriminant(&wakes)
    }
}

/// Something asked of the store.
#[derive(Clone, Debug)]
struct Request {
    machine: usize,
    life: u64,
    ask: PutAsk,
    name: SegmentName,
    object: Object,
    fate: Fate,
    answer: Option<PutAnswer>,
}

#[derive(Debug)]
struct Machine {
    disk: Disk,
    process: Option<Process>,
    /// How often it was started: what was asked in an earlier life is answered to nobody.
    life: u64,
    /// How far its clock is ahead.
    skew_ms: u64,
    snapshot: Option<Disk>,
    refused: bool,
    /// When it looks again by itself.
    wakes_at: u64,
    /// What the store was said to have: number and hash of each record.
    confirmed: Vec<(u64, Hash)>,
}

/// What could go wrong in a schedule, beside crashes and what is lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Disks are put back to what they were.
    restores: bool,
    /// Another machine runs on a copy.
    copies: bool,
    /// The store loses what it had, or says yes and does nothing.
    forgets: bool,
    /// What who follows is given is not what was sealed.
    harms: bool,
}

pub struct World {
    random: Random,
    /// What happens to who follows, so that it changes nothing for who is followed.
    reading: Random,
    /// When the store is swapped.
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
    /// What happened, where that is wanted.
    trace: Option<Vec<String>>,
}

/// What a schedule was like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub events: u64,
    pub segments: u64,
    pub records: u64,
    pub crashes: u64,
    pub forked: bool,
    pub forgot: bool,
    pub refused: bool,
    /// How often something was put into another store that was there instead.
    pub astray: u64,
    /// Segments that index nodes have, faults that they tell, and their crashes.
    pub taken: u64,
    pub told: u64,
    pub restarts: u64,
    /// What was shared beside that.
    pub sharing: SharingOutcome,
}

/// Runs the schedule of a seed.
///
/// # Errors
///
/// What does not hold in it.
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

    /// The store goes and comes back, in some schedules, but never twice within one put: that could not be told.
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

    /// Index nodes follow the chain, and a stranger may be at it.
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

    /// What an index node has planned. When all is well again it goes on in one go.
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
        // All is well again, and all of it is done.
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
                // A copy that has cut the same records otherwise finds its place taken, and says so for ever.
                if self.trouble.copies {
                    break;
                }
                return Err("the chain was never whole: something is tried for ever".into());
            }
            (self.now, self.store.shelf.now) = (time, time);
            outcome.events += 1;
            outcome.crashes += u64::from(matches!(event, Event::Crash { .. }));
            if let Some(trace) = self.trace.as_mut().filter(|_| event.is_told()) {
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
            let (taken, told) = reader.check(&self.store.shelf, quiet)?;
            outcome.taken += taken;
            outcome.told += told;
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
            Event::Swap => self.store.instead = Some(Default::default()),
            Event::ComeBack => self.store.instead = None,
            Event::Commit => {
                let count = self.random.between(1, 6);
                // The clock is put right from time to time, and wrong.
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
                // As a machine that is copied while it runs.
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
                    Fate::SaysYes if matches!(request.ask, PutAsk::Create | PutAsk::Replace) => {
                        Some(PutAnswer::Done)
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
            // It belongs to a fleet, and here is none.
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

    /// What the ledger's loop does, once.
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
                // One is waited for at a time.
                if !(now + 1..=until).contains(&machine.wakes_at) {
                    machine.wakes_at = until;
                    self.at(until, at, Event::Step);
                }
            }
            SealAct::Seal(bytes) => {
                match process.seal(&mut machine.disk, &self.store, (bytes, now), variant) {
                    Ok(true) => {}
                    Ok(false) => process.state.not_sealed(now),
                    // It says so again and again, and puts nothing.
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
                    return Err("there is something to put, and nothing is in hand".into());
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
        // A connection breaks at once, or is waited for.
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
        let believed = variant == Variant::BelievesTheStore && answer == Some(PutAnswer::Done);
        let answer = match answer {
            Some(PutAnswer::Place(Err(_))) if variant == Variant::PutsAnywhere => {
                Some(PutAnswer::Place(Ok(())))
            }
            answer => answer,
        };
        let next = match answer {
            Some(_) if believed => Some(PutNext::Stored(hand.object.checkpoint.hash())),
            Some(answer) => hand.putting.answered(answer).ok(),
            None => None,
        };
        match next {
            Some(PutNext::Ask(putting)) => hand.putting = putting,
            Some(PutNext::Stored(checkpoint)) => {
                let day = hand.name.day;
                process.state.stored_now(checkpoint);
                process.in_hand = None;
                let stored = process.state.stored();
                // The process may end before it has noted that.
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
                hand.putting = mcpproxy::fleet::putting::Putting::new(creates, length, checkpoint);
                process.state.not_stored(now);
            }
        }
        self.at(now, at, Event::Step);
    }
}

/// The log is told that the store has everything up to `seq`.
fn confirm(machine: &mut Machine, seq: u64) {
    let after = machine.confirmed.last().map_or(0, |(seq, _)| *seq);
    let known = machine.disk.records.iter().filter(|it| (after + 1..=seq).contains(&it.seq));
    machine.confirmed.extend(known.map(|record| (record.seq, record.hash)));
}
