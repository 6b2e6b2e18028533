//! A node that shares facts: its memory, which outlasts it, and its process, which does what `fleet::facts::exchange` does, in
//! its order, by the decisions of `FactReader` and the merge of `FactSet`. Sealing is left out: an object is opened, or is not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mcpproxy::fleet::facts::{
    Fact, FactFault, FactKind, FactMemory, FactObject, FactReader, FactSet, FactState, ListedFacts,
    NodeName, NotOpened,
};

use super::random::Random;
use super::variant::Variant;

/// What is said is about so many names of each kind.
const NAMES: u64 = 4;

pub fn key_of(node: &NodeName) -> String {
    format!("facts/said/{}", node.as_str())
}

/// A process.
#[derive(Debug)]
pub struct Sharing {
    pub set: FactSet,
    pub reader: FactReader,
    saved: FactMemory,
    /// Its own object, while that is still to be read in this round.
    pub own: Option<(NodeName, ListedFacts)>,
    /// Whether it has put its own in it, or need not: that comes before the others'.
    pub has_said: bool,
    /// Those of others that are still to be read in it.
    pub reads: VecDeque<(NodeName, ListedFacts)>,
    /// Its own object could not be read in it.
    pub failed: bool,
    /// What the store said that it has taken.
    kept: Option<FactSet>,
}

impl Sharing {
    /// What is read next, as far as nothing is to be put before.
    pub fn next_read(&mut self) -> Option<(NodeName, ListedFacts)> {
        match self.has_said {
            false => self.own.take(),
            true => self.reads.pop_front(),
        }
    }
}

#[derive(Debug)]
pub struct SharingNode {
    pub name: NodeName,
    pub memory: Option<FactMemory>,
    pub process: Option<Sharing>,
    pub life: u64,
    /// What has ended for good, as this node has acknowledged or remembered.
    ended: BTreeSet<(FactKind, String)>,
    /// The highest number that it has put.
    numbered: u64,
    variant: Variant,
}

impl SharingNode {
    pub fn new(name: NodeName, variant: Variant) -> Self {
        let ended = BTreeSet::new();
        Self { name, memory: None, process: None, life: 0, ended, numbered: 0, variant }
    }

    pub fn start(&mut self) -> Result<(), String> {
        let fresh = self.memory.is_none();
        let saved = self.memory.clone().unwrap_or_default();
        let (numbers, said_again) = (saved.numbers.clone(), saved.said_again.clone());
        let reader = FactReader::new(self.name.clone(), numbers, said_again, fresh);
        self.process = Some(Sharing {
            set: FactSet::clone(&saved.facts),
            reader,
            saved,
            own: None,
            has_said: false,
            reads: VecDeque::new(),
            failed: false,
            kept: None,
        });
        self.check_ended()
    }

    pub fn crash(&mut self) {
        self.process = None;
        self.life += 1;
    }

    /// What has ended once holds never again.
    fn check_ended(&self) -> Result<(), String> {
        let Some(process) = &self.process else { return Ok(()) };
        let holds = |(kind, name): &&(FactKind, String)| {
            process.set.get(*kind, name).is_none_or(|fact| fact.state != FactState::Ended)
        };
        match self.ended.iter().find(holds) {
            Some(undone) => {
                Err(format!("{}: the end of {undone:?} was undone", self.name.as_str()))
            }
            None => Ok(()),
        }
    }

    /// What it knows outlasts a crash.
    pub fn save(&mut self) {
        let Some(process) = &mut self.process else { return };
        let memory = FactMemory {
            facts: Arc::new(process.set.clone()),
            numbers: process.reader.numbers().clone(),
            said_again: process.reader.said_again().clone(),
            notes: BTreeMap::new(),
            heard: false,
        };
        if memory == process.saved {
            return;
        }
        let ended = memory.facts.iter().filter(|(.., fact)| fact.state == FactState::Ended);
        self.ended.extend(ended.map(|(kind, name, _)| (kind, name.to_owned())));
        process.saved = memory.clone();
        self.memory = Some(memory);
    }

    /// Somebody makes or revokes something here. What was acknowledged is in `all`, then; false if the process ended before.
    pub fn change(&mut self, random: &mut Random, all: &mut FactSet) -> bool {
        let Some(process) = &mut self.process else { return true };
        let kind = match random.below(3) {
            0 => FactKind::Token,
            1 => FactKind::Leave,
            _ => FactKind::Config,
        };
        let name = random.below(NAMES).to_string();
        let ends = match random.below(8) {
            0..5 => {
                let value = random.below(3).to_string();
                let _ = process.set.say(&self.name, kind, &name, &value);
                false
            }
            5 => process.set.forbid(&self.name, kind, &name),
            _ => process.set.end(&self.name, kind, &name),
        };
        let fact = process.set.get(kind, &name).cloned();
        if random.once_in(20) {
            return false;
        }
        if self.variant != Variant::RevokesUnsaved || !ends {
            self.save();
        }
        if ends {
            self.ended.insert((kind, name.clone()));
        }
        if let Some(fact) = fact {
            all.merge_one(kind, &name, fact);
        }
        true
    }

    /// What an object said, `text` being what was read; `None` for one that was altered.
    pub fn take(
        &mut self,
        (node, listed): (&NodeName, &ListedFacts),
        text: Option<&[u8]>,
    ) -> Result<(), String> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let opened = text.ok_or(FactFault::Sealed(NotOpened::NotAuthentic));
        let read = opened.and_then(|text| Ok(FactObject::read(text, node)?));
        let known = process.reader.numbers().get(node).copied().unwrap_or(0);
        let number = read.as_ref().ok().map(|object| object.number);
        if self.variant == Variant::BelievesTheLast
            && let Ok(object) = &read
        {
            let others = process.set.iter().filter(|(.., fact)| fact.stamp.node != *node);
            let others: Vec<(FactKind, String, Fact)> =
                others.map(|(kind, name, fact)| (kind, name.to_owned(), fact.clone())).collect();
            process.set = object.facts.clone();
            for (kind, name, fact) in others {
                process.set.merge_one(kind, &name, fact);
            }
        }
        let before = process.set.clone();
        process.reader.take((node, &listed.state), read, &mut process.set);
        let fault = process.reader.faults().get(&listed.key);
        if fault == Some(&FactFault::Twin) {
            return Err(format!("{} takes itself for another", self.name.as_str()));
        }
        if let Some(number) = number.filter(|number| *number < known && *node != self.name) {
            if fault != Some(&FactFault::Older { read: number, known }) {
                return Err(format!("number {number} after {known} was not seen: {fault:?}"));
            }
            if process.set != before {
                return Err("what was put back is taken over".into());
            }
        }
        self.check_ended()
    }

    /// What is put, once its own object was read.
    pub fn plan_put(&mut self) -> Result<Option<FactObject>, String> {
        let Some(process) = &mut self.process else { return Ok(None) };
        if process.failed {
            return Ok(None);
        }
        if self.variant == Variant::BelievesPuts
            && process.kept.as_ref() == Some(&process.set.said_by(&self.name))
        {
            return Ok(None);
        }
        let object = process.reader.to_put(&process.set);
        if let Some(object) = &object {
            if self.variant != Variant::NumbersUnsaved {
                self.save();
            }
            if object.number <= self.numbered {
                let (number, name) = (object.number, self.name.as_str());
                return Err(format!("{name} puts number {number} after {}", self.numbered));
            }
            self.numbered = object.number;
        }
        Ok(object)
    }

    /// The store said that it has taken it.
    pub fn has_put(&mut self, object: &FactObject) {
        if let Some(process) = &mut self.process {
            process.reader.has_put(object);
            process.kept = Some(object.facts.clone());
        }
    }
}
