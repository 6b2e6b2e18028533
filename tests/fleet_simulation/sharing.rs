//! Schedule of nodes that share facts through a store: changes, crashes, and faults of uploads and reads. Wall clocks
//! are not involved; each node runs rounds at its own pace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use mcpproxy_fleet::facts::{FactFault, FactObject, FactSet, ListedFacts, NodeName};

use super::random::Random;
use super::sharing_node::{SharingNode, key_of};
use super::store::Fate;
use super::variant::Variant;

/// Time from which no faults occur.
const HEALED_MS: u64 = 30_000;
/// Number of rounds per node after that, enough to read everything once more.
const LAST_ROUNDS: u64 = 14;
/// Maximum age of a correct but stale listing or read.
const MAX_LAG_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start,
    Crash,
    /// A fact is set or ended at the node.
    Change,
    /// The node starts a round.
    Round {
        life: u64,
    },
    /// The next read, the upload, or the end of the round.
    Read {
        life: u64,
    },
    /// The store processes an upload.
    Store {
        number: usize,
    },
    /// The reply arrives or is lost.
    Answer {
        life: u64,
        number: usize,
        answers: bool,
    },
    /// The node's object is rolled back, removed or altered.
    Harm,
}

/// Content of a key since a time: the version tag, and the bytes unless they were not sealed by the fleet. `None` if
/// there is no object.
type Lay = (u64, Option<(u64, Option<Vec<u8>>)>);

/// Outcome of a schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharingOutcome {
    pub events: u64,
    pub puts: u64,
    pub ends: u64,
    pub put_back: u64,
    pub crashes: u64,
}

impl SharingOutcome {
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.puts += other.puts;
        self.ends += other.ends;
        self.put_back += other.put_back;
        self.crashes += other.crashes;
    }
}

pub struct SharingWorld {
    random: Random,
    now: u64,
    nodes: Vec<SharingNode>,
    objects: BTreeMap<String, Vec<Lay>>,
    states: u64,
    /// Uploads: key, bytes, object.
    puts: Vec<(String, Vec<u8>, FactObject)>,
    /// All acknowledged facts.
    all: FactSet,
    events: BinaryHeap<Reverse<(u64, u64, usize, Event)>>,
    scheduled: u64,
    outcome: SharingOutcome,
    trace: bool,
}

/// Runs the schedule of a seed.
///
/// # Errors
///
/// Violated invariant.
pub fn run(seed: u64, variant: Variant, trace: bool) -> Result<SharingOutcome, String> {
    let mut random = Random::new(seed ^ 0xfac7_5000_0000_0000);
    let names = ["a", "b", "c", "d"].into_iter().filter_map(NodeName::parse);
    let count = random.between(2, 4) as usize;
    let nodes = names.take(count).map(|name| SharingNode::new(name, variant)).collect();
    let mut world = SharingWorld {
        random,
        now: 0,
        nodes,
        objects: BTreeMap::new(),
        states: 0,
        puts: Vec::new(),
        all: FactSet::default(),
        events: BinaryHeap::new(),
        scheduled: 0,
        outcome: SharingOutcome::default(),
        trace,
    };
    world.schedule();
    while let Some(Reverse((time, _, node, event))) = world.events.pop() {
        world.now = time;
        world.outcome.events += 1;
        if trace {
            println!("{time:>7} node {node} {event:?}");
        }
        world.happen(node, event)?;
    }
    world.settle()?;
    world.judge()?;
    Ok(world.outcome)
}

impl SharingWorld {
    fn at(&mut self, time: u64, node: usize, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((time, self.scheduled, node, event)));
    }

    fn schedule(&mut self) {
        let harms = self.random.once_in(2);
        for node in 0..self.nodes.len() {
            let mut at = self.random.below(3000);
            self.at(at, node, Event::Start);
            loop {
                at += self.random.between(100, 5000);
                if at >= HEALED_MS {
                    break;
                }
                let event = match self.random.below(10) {
                    0 => Event::Crash,
                    1 if harms => Event::Harm,
                    _ => Event::Change,
                };
                self.at(at, node, event);
            }
        }
    }

    fn happen(&mut self, at: usize, event: Event) -> Result<(), String> {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(at) else { return Ok(()) };
        match event {
            Event::Start if node.process.is_none() => {
                node.start()?;
                let life = node.life;
                self.at(now, at, Event::Round { life });
            }
            Event::Crash => self.crash(at),
            Event::Change => {
                if !node.change(&mut self.random, &mut self.all) {
                    self.crash(at);
                }
            }
            Event::Round { life } if life == node.life => {
                if now < HEALED_MS {
                    self.round(at, false);
                }
            }
            Event::Read { life } if life == node.life => {
                self.read(at, false)?;
            }
            Event::Store { number } => {
                let Some((key, text, _)) = self.puts.get(number) else { return Ok(()) };
                self.states += 1;
                let lay = (now, Some((self.states, Some(text.clone()))));
                self.objects.entry(key.clone()).or_default().push(lay);
            }
            Event::Answer { life, number, answers } if life == node.life => {
                if let Some((.., object)) = self.puts.get(number).filter(|_| answers) {
                    node.record_upload(object);
                }
                let after = self.random.below(200);
                self.at(now + after, at, Event::Read { life });
            }
            Event::Harm => self.harm(at),
            Event::Start | Event::Round { .. } | Event::Read { .. } | Event::Answer { .. } => {}
        }
        Ok(())
    }

    fn crash(&mut self, at: usize) {
        let after = self.now + self.random.below(3000);
        if let Some(node) = self.nodes.get_mut(at).filter(|node| node.process.is_some()) {
            node.crash();
            self.outcome.crashes += 1;
            self.at(after, at, Event::Start);
        }
    }

    fn harm(&mut self, at: usize) {
        let Some(key) = self.nodes.get(at).map(|node| key_of(&node.name)) else { return };
        let Some(lays) = self.objects.get_mut(&key) else { return };
        self.outcome.put_back += 1;
        self.states += 1;
        let lay = match self.random.below(4) {
            0 => None,
            1 => Some((self.states, None)),
            // A rollback gets a new version tag. With a reused tag and stale listings it could not be detected.
            _ => lays
                .get(self.random.below(lays.len() as u64) as usize)
                .and_then(|lay| Some((self.states, lay.1.clone()?.1))),
        };
        lays.push((self.now, lay));
    }

    /// Random age of the data that the next read returns.
    fn lag(&mut self, healed: bool) -> u64 {
        match healed || self.random.once_in(2) {
            true => 0,
            false => self.random.below(MAX_LAG_MS),
        }
    }

    fn lay(&self, key: &str, lag: u64) -> Option<&(u64, Option<Vec<u8>>)> {
        let time = self.now.saturating_sub(lag);
        let lays = self.objects.get(key)?;
        lays.iter().rev().find(|(from, _)| *from <= time)?.1.as_ref()
    }

    /// Lists the objects for a node.
    fn round(&mut self, at: usize, healed: bool) {
        let keys: Vec<String> = self.objects.keys().cloned().collect();
        let (lag, now) = (self.lag(healed), self.now);
        let is_lost = !healed && self.random.once_in(15);
        let listed = keys.into_iter().filter_map(|key| {
            let state = self.lay(&key, lag)?.0.to_string().into();
            Some(ListedFacts { key, size: 100, state })
        });
        let listed: Vec<_> = listed.collect();
        let Some(node) = self.nodes.get_mut(at) else { return };
        let life = node.life;
        let Some(process) = node.process.as_mut() else { return };
        process.failed = is_lost;
        process.is_published = false;
        let wanted = match is_lost {
            true => Vec::new(),
            false => process.reader.wanted(&listed, true, |_| false),
        };
        let (own, others): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(of, _)| *of == node.name);
        (process.own, process.reads) = (own.into_iter().next(), others.into());
        // Objects are listed in any order.
        let turned = self.random.below(process.reads.len() as u64) as usize;
        process.reads.rotate_left(turned);
        let after = self.random.between(1, 400);
        if !healed {
            self.at(now + after, at, Event::Read { life });
        }
    }

    /// Reads the next object: first the node's own, which is then uploaded, then the others. Returns false at the end
    /// of the round.
    fn read(&mut self, at: usize, healed: bool) -> Result<bool, String> {
        let (lag, now) = (self.lag(healed), self.now);
        let is_lost = !healed && self.random.once_in(12);
        let Some(node) = self.nodes.get_mut(at) else { return Ok(false) };
        let life = node.life;
        let Some(process) = &mut node.process else { return Ok(false) };
        let Some((of, listed)) = process.next_read() else {
            if !std::mem::replace(&mut process.is_published, true) {
                self.put(at, healed)?;
                return Ok(true);
            }
            node.save();
            let pause = self.random.between(750, 1500);
            if !healed {
                self.at(now + pause, at, Event::Round { life });
            }
            return Ok(false);
        };
        let lay = if is_lost { None } else { self.lay(&listed.key, lag).cloned() };
        let Some(node) = self.nodes.get_mut(at) else { return Ok(false) };
        match (lay, &mut node.process) {
            (Some((_, text)), _) => node.take((&of, &listed), text.as_deref())?,
            (None, Some(process)) if of == node.name => process.failed = true,
            (None, Some(process)) => process.reader.not_read(&of, &listed, &"unavailable"),
            (None, None) => {}
        }
        let after = self.random.below(200);
        if !healed {
            self.at(now + after, at, Event::Read { life });
        }
        Ok(true)
    }

    fn put(&mut self, at: usize, healed: bool) -> Result<(), String> {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(at) else { return Ok(()) };
        let life = node.life;
        let Some(object) = node.plan_put()? else {
            let after = self.random.below(200);
            if !healed {
                self.at(now + after, at, Event::Read { life });
            }
            return Ok(());
        };
        self.outcome.puts += 1;
        let number = self.puts.len();
        self.puts.push((key_of(&node.name), object.write(&node.name), object));
        if healed {
            self.happen(at, Event::Store { number })?;
            if let (Some(node), Some((.., object))) =
                (self.nodes.get_mut(at), self.puts.get(number))
            {
                node.record_upload(object);
            }
            return Ok(());
        }
        let fate = Fate::random(&mut self.random, true);
        let (soon, late) =
            (now + self.random.between(1, 500), now + self.random.between(500, 15_000));
        match fate {
            Fate::Answered | Fate::AnswerLost => self.at(soon, at, Event::Store { number }),
            Fate::Late => self.at(late, at, Event::Store { number }),
            Fate::Twice => {
                self.at(soon, at, Event::Store { number });
                self.at(late, at, Event::Store { number });
            }
            Fate::RequestLost | Fate::SaysYes => {}
        }
        let answers = matches!(fate, Fate::Answered | Fate::Twice | Fate::SaysYes);
        self.at(soon + 1, at, Event::Answer { life, number, answers });
        Ok(())
    }

    /// Runs some rounds of each node in any order without faults.
    fn settle(&mut self) -> Result<(), String> {
        self.now += MAX_LAG_MS;
        for _ in 0..LAST_ROUNDS {
            let first = self.random.below(self.nodes.len() as u64) as usize;
            for at in 0..self.nodes.len() {
                let at = (at + first) % self.nodes.len();
                self.now += 1;
                if let Some(node) = self.nodes.get_mut(at).filter(|node| node.process.is_none()) {
                    node.start()?;
                }
                self.round(at, true);
                while self.read(at, true)? {}
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), String> {
        let processes =
            || self.nodes.iter().filter_map(|node| Some((node, node.process.as_ref()?)));
        let Some((_, first)) = processes().next() else { return Ok(()) };
        let mut all = first.set.clone();
        if all.merge(&self.all) {
            return Err("an acknowledged fact is unknown".into());
        }
        for (node, process) in processes() {
            let name = node.name.as_str();
            if process.set != first.set {
                return Err(format!("{name} has diverged: {:?} {:?}", process.set, first.set));
            }
            if !process.reader.is_uploaded(&process.set) {
                return Err(format!("the store lacks facts of {name}"));
            }
            for (other, _) in processes().filter(|(other, _)| other.name != node.name) {
                let key = key_of(&other.name);
                let fault = process.reader.faults().get(&key);
                let known = process.reader.numbers().get(&other.name).copied().unwrap_or(0);
                // If the node had no facts, a removed object is not restored and is no fault.
                let is_right = match self.lay(&key, 0) {
                    None => known == 0 || fault == Some(&FactFault::Removed),
                    Some((_, None)) => matches!(fault, Some(FactFault::Sealed(_))),
                    Some((_, Some(text))) => match FactObject::read(text, &other.name) {
                        Ok(FactObject { number: read, .. }) if read < known => {
                            fault == Some(&FactFault::Older { read, known })
                        }
                        Ok(_) => fault.is_none(),
                        Err(_) => false,
                    },
                };
                if !is_right {
                    return Err(format!("{name} reports for {key} after {known}: {fault:?}"));
                }
            }
        }
        let ends = first.set.iter().filter(|(.., fact)| fact.value().is_none());
        self.outcome.ends = ends.count() as u64;
        if self.trace {
            println!("{:?}", first.set);
        }
        Ok(())
    }
}
