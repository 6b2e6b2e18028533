//! The store of a simulated fleet: objects under keys, and what goes wrong with what is asked of it.

use std::collections::BTreeMap;

use mcpproxy::fleet::checkpoint::Checkpoint;
use mcpproxy::fleet::own_place::PlaceLost;
use mcpproxy::fleet::putting::{PutAnswer, PutAsk};
use mcpproxy::fleet::segment::SegmentName;

use super::random::Random;
use super::shelf::{Content, Shelf, key_of};

/// A segment, without its table: what it says, and how long it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub checkpoint: Checkpoint,
    pub records: u64,
    pub length: u64,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done and answered.
    Answered,
    /// It never arrives.
    RequestLost,
    /// It is done, and nobody learns of it.
    AnswerLost,
    /// It is done when nobody waits any more.
    Late,
    /// It is done twice, the second time much later.
    Twice,
    /// The store says yes and does nothing.
    SaysYes,
}

impl Fate {
    pub fn random(random: &mut Random, forgets: bool) -> Self {
        match random.below(16) {
            0 => Self::RequestLost,
            1 => Self::AnswerLost,
            2 => Self::Late,
            3 => Self::Twice,
            4 if forgets => Self::SaysYes,
            _ => Self::Answered,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Whether it makes an object only if there is none where it is asked to.
    pub creates: bool,
    pub objects: BTreeMap<SegmentName, Object>,
    /// What is where it was, while it is away: an empty one, and what that was given.
    pub instead: Option<BTreeMap<SegmentName, Object>>,
    /// How often that was given something.
    pub astray: u64,
    /// What it had and has no more.
    pub forgotten: Vec<(SegmentName, Object)>,
    /// The same as those who follow are shown it.
    pub shelf: Shelf,
}

impl Store {
    /// Does what is asked, and answers.
    pub fn serve(&mut self, ask: PutAsk, name: &SegmentName, object: &Object) -> Option<PutAnswer> {
        let is_own = self.instead.is_none();
        let objects = self.instead.as_mut().unwrap_or(&mut self.objects);
        let there = objects.get(name);
        Some(match ask {
            PutAsk::Create if there.is_some() && self.creates => PutAnswer::Exists,
            PutAsk::Create | PutAsk::Replace => {
                objects.insert(name.clone(), object.clone());
                self.astray += u64::from(!is_own);
                // Those who follow are on other machines, and see the one that is away.
                if is_own {
                    self.shelf.put(key_of(name), Content::Sealed(object.clone()));
                }
                PutAnswer::Done
            }
            PutAsk::Place if is_own => PutAnswer::Place(Ok(())),
            PutAsk::Place => PutAnswer::Place(Err(PlaceLost::NoFleet)),
            // A read of what is not there is an error of the store.
            PutAsk::Compare => {
                let there = there?;
                let is_same = there.checkpoint == object.checkpoint;
                PutAnswer::There(is_same.then(|| there.checkpoint.hash()))
            }
            PutAsk::Measure => PutAnswer::Length(there.map(|there| there.length)),
        })
    }

    /// Loses one of its objects.
    pub fn forget(&mut self, random: &mut Random) {
        let at = random.below(self.objects.len() as u64) as usize;
        if let Some(name) = self.objects.keys().nth(at).cloned()
            && let Some(object) = self.objects.remove(&name)
        {
            self.shelf.remove(&key_of(&name));
            self.forgotten.push((name, object));
        }
    }
}
