//! Simulated node that shares facts: its memory file, which survives crashes, and a process that acts like
//! `fleet::facts::exchange` with the decisions of `FactReader` and the merge of `FactSet`. Encryption is not simulated:
//! an object either can be opened or not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mcpproxy_fleet::facts::{
    Fact, FactFault, FactKind, FactMemory, FactObject, FactReader, FactSet, FactState, ListedFacts,
    NodeName, NotOpened,
};

use super::random::Random;
use super::variant::Variant;

/// Number of names per kind.
const NAMES: u64 = 4;

pub fn key_of(node: &NodeName) -> String {
    format!("facts/said/{}", node.as_str())
}

/// Process of the node.
#[derive(Debug)]
pub struct Sharing {
    pub set: FactSet,
    pub reader: FactReader,
    saved: FactMemory,
    /// Its own object, if still to be read in this round.
    pub own: Option<(NodeName, ListedFacts)>,
    /// True once the node's own facts are uploaded, or need no upload. Only then are the objects of other nodes read.
    pub is_published: bool,
    /// Other objects still to be read in this round.
    pub reads: VecDeque<(NodeName, ListedFacts)>,
    /// True if its own object was unreadable in this round.
    pub failed: bool,
    /// Facts that the store confirmed.
    kept: Option<FactSet>,
}

impl Sharing {
    /// Next object to read, unless an upload comes first.
    pub fn next_read(&mut self) -> Option<(NodeName, ListedFacts)> {
        match self.is_published {
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
    /// Facts that this node has acknowledged or saved as ended.
    ended: BTreeSet<(FactKind, String)>,
    /// Highest number of an upload by this node.
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
        let (numbers, relayed) = (saved.numbers.clone(), saved.relayed.clone());
        let reader = FactReader::new(self.name.clone(), numbers, relayed, fresh);
        self.process = Some(Sharing {
            set: FactSet::clone(&saved.facts),
            reader,
            saved,
            own: None,
            is_published: false,
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

    /// Checks that ended facts stay ended.
    fn check_ended(&self) -> Result<(), String> {
        let Some(process) = &self.process else { return Ok(()) };
        let holds = |(kind, name): &&(FactKind, String)| {
            process.set.get(*kind, name).is_none_or(|fact| fact.state != FactState::Ended)
        };
        match self.ended.iter().find(holds) {
            Some(undone) => Err(format!("{}: ended facts {undone:?} are back", self.name.as_str())),
            None => Ok(()),
        }
    }

    /// Saves the memory file.
    pub fn save(&mut self) {
        let Some(process) = &mut self.process else { return };
        let memory = FactMemory {
            facts: Arc::new(process.set.clone()),
            numbers: process.reader.numbers().clone(),
            relayed: process.reader.relayed_authors().clone(),
            notes: BTreeMap::new(),
            read_once: false,
        };
        if memory == process.saved {
            return;
        }
        let ended = memory.facts.iter().filter(|(.., fact)| fact.state == FactState::Ended);
        self.ended.extend(ended.map(|(kind, name, _)| (kind, name.to_owned())));
        process.saved = memory.clone();
        self.memory = Some(memory);
    }

    /// Sets or ends a fact, and adds acknowledged facts to `all`. Returns false if the process ended before the
    /// acknowledgement.
    pub fn change(&mut self, random: &mut Random, all: &mut FactSet) -> bool {
        let Some(process) = &mut self.process else { return true };
        let kind = match random.below(3) {
            0 => FactKind::Token,
            1 => FactKind::StandingApproval,
            _ => FactKind::Config,
        };
        let name = random.below(NAMES).to_string();
        let ends = match random.below(8) {
            0..5 => {
                let value = random.below(3).to_string();
                let _ = process.set.set_value(&self.name, kind, &name, &value);
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

    /// Merges a read object; `None` if it was altered.
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
            return Err(format!("{} reports itself as a twin", self.name.as_str()));
        }
        if let Some(number) = number.filter(|number| *number < known && *node != self.name) {
            if fault != Some(&FactFault::Older { read: number, known }) {
                return Err(format!("number {number} after {known} was not detected: {fault:?}"));
            }
            if process.set != before {
                return Err("a rolled back object was accepted".into());
            }
        }
        self.check_ended()
    }

    /// Plans the upload once the node's own object has been read.
    pub fn plan_put(&mut self) -> Result<Option<FactObject>, String> {
        let Some(process) = &mut self.process else { return Ok(None) };
        if process.failed {
            return Ok(None);
        }
        if self.variant == Variant::BelievesPuts
            && process.kept.as_ref() == Some(&process.set.authored_by(&self.name))
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
                return Err(format!("{name} uploads number {number} after {}", self.numbered));
            }
            self.numbered = object.number;
        }
        Ok(object)
    }

    /// Records a confirmed upload.
    pub fn record_upload(&mut self, object: &FactObject) {
        if let Some(process) = &mut self.process {
            process.reader.record_upload(object);
            process.kept = Some(object.facts.clone());
        }
    }
}
