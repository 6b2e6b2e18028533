//! Simulated object store with faulty requests.

use std::collections::BTreeMap;

use mcpproxy_fleet::chain::place::StoreMismatch;
use mcpproxy_fleet::checkpoint::Checkpoint;
use mcpproxy_fleet::sealing::{UploadReply, UploadRequest};
use mcpproxy_fleet::segment::SegmentName;

use super::random::Random;
use super::shelf::{Content, Shelf, key_of};

/// Segment without its records: checkpoint and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub checkpoint: Checkpoint,
    pub records: u64,
    pub length: u64,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    RequestLost,
    /// Processed, but the reply is lost.
    AnswerLost,
    /// Processed after the sender gave up.
    Late,
    /// Processed twice, the second time much later.
    Twice,
    /// Confirmed but not processed.
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
    /// True if conditional creation is supported.
    pub creates: bool,
    pub objects: BTreeMap<SegmentName, Object>,
    /// Content of the empty store that is temporarily in place.
    pub instead: Option<BTreeMap<SegmentName, Object>>,
    /// Number of writes to that store.
    pub astray: u64,
    /// Objects that the store has lost.
    pub forgotten: Vec<(SegmentName, Object)>,
    /// The store as its readers see it.
    pub shelf: Shelf,
}

impl Store {
    /// Processes a request.
    pub fn serve(
        &mut self,
        ask: UploadRequest,
        name: &SegmentName,
        object: &Object,
    ) -> Option<UploadReply> {
        let is_own = self.instead.is_none();
        let objects = self.instead.as_mut().unwrap_or(&mut self.objects);
        let there = objects.get(name);
        Some(match ask {
            UploadRequest::Create if there.is_some() && self.creates => UploadReply::Exists,
            UploadRequest::Create | UploadRequest::Replace => {
                objects.insert(name.clone(), object.clone());
                self.astray += u64::from(!is_own);
                let content = Content::Sealed(object.clone());
                if is_own {
                    self.shelf.put(key_of(name), content);
                } else {
                    self.shelf.put_instead(key_of(name), content);
                }
                UploadReply::Done
            }
            UploadRequest::Place if is_own => UploadReply::Place(Ok(())),
            UploadRequest::Place => UploadReply::Place(Err(StoreMismatch::NoFleet)),
            // Reading a missing object is an error of the store.
            UploadRequest::Compare => {
                let there = there?;
                let is_same = there.checkpoint == object.checkpoint;
                UploadReply::There(is_same.then(|| there.checkpoint.hash()))
            }
            UploadRequest::Measure => UploadReply::Length(there.map(|there| there.length)),
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
