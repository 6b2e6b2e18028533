//! Final invariants of a schedule: the chain in the store, and the confirmations that nodes received.

use mcpproxy_activity::record::Hash;
use mcpproxy_fleet::chain::check::{ChainCheck, ChainReport, ListedSegment, SegmentFacts};
use mcpproxy_fleet::segment::SegmentName;

use super::super::store::Object;
use super::super::variant::Variant;
use super::{Outcome, Trouble, World};

impl World {
    /// Verifies the chain from the store.
    fn verify(&self) -> ChainReport {
        let mut check = ChainCheck::new(false);
        let mut last = None;
        for (name, object) in &self.store.objects {
            let listed = ListedSegment { key: name.to_string(), name: Some(name.clone()) };
            let mut checkpoint = object.checkpoint.clone();
            if self.variant == Variant::LooksAway {
                checkpoint.previous = last;
                last = Some(checkpoint.hash());
            }
            let facts = SegmentFacts {
                checkpoint,
                records: object.records,
                gaps: Vec::new(),
                unrecorded: Vec::new(),
                kept_from: Vec::new(),
            };
            check.add(&listed, Ok(facts));
        }
        check.finish()
    }

    /// True if two segments contain the same record.
    fn overlaps(&self) -> bool {
        let names: Vec<_> = self.store.objects.keys().collect();
        names.windows(2).any(|pair| match pair {
            [one, next] => next.first <= one.last,
            _ => false,
        })
    }

    /// Checks the final invariants.
    pub(super) fn judge(&self, outcome: &mut Outcome) -> Result<(), String> {
        let report = self.verify();
        let forked = self.overlaps();
        let forgot = !self.store.forgotten.is_empty();
        outcome.segments = self.store.objects.len() as u64;
        outcome.records = report.records;
        outcome.refused = self.machines.iter().any(|machine| machine.refused);
        (outcome.forked, outcome.forgot) = (forked, forgot);
        if forked && report.sound {
            return Err("two segments contain the same record without a fault".into());
        }
        // Everything confirmed is stored, unless the store lost it.
        let lost: Vec<_> = self.store.forgotten.iter().map(|(_, object)| object).collect();
        for machine in &self.machines {
            for (seq, hash) in &machine.confirmed {
                let is_in = |object: &Object| {
                    let Object { checkpoint, .. } = object;
                    (checkpoint.first..=checkpoint.last).contains(seq)
                        && self.is_of(object, *seq, *hash)
                };
                if !self.store.objects.values().any(is_in) && !lost.iter().any(|it| is_in(it)) {
                    return Err(format!("record {seq} was confirmed but is missing"));
                }
            }
        }
        // Lost objects are reported missing, except at the end of the chain, where no object refers to them.
        let there = |name: &SegmentName| self.store.objects.contains_key(name);
        let forgotten = self.store.forgotten.iter().filter(|(name, _)| !there(name));
        for (name, object) in forgotten {
            let hash = object.checkpoint.hash();
            let mut objects = self.store.objects.values();
            if report.sound && objects.any(|it| it.checkpoint.previous == Some(hash)) {
                return Err(format!("{name} was lost without a fault"));
            }
        }
        let Trouble { restores, copies, .. } = self.trouble;
        if restores || copies || forgot {
            return Ok(());
        }
        // With crashes and lost messages only.
        let Some(machine) = self.machines.first() else { return Ok(()) };
        if machine.refused {
            return Err("a node was rejected under its own name".into());
        }
        if !report.sound {
            return Err(format!("faults without tampering: {:?}", report.faults));
        }
        let (end, head) = machine.disk.end;
        if (report.records, report.last) != (end, end) {
            return Err(format!(
                "the log has records 1 to {end}, the store {} up to {}",
                report.records, report.last
            ));
        }
        if end > 0 && report.head != head.to_string() {
            return Err("the chain ends with a different record than the log".into());
        }
        Ok(())
    }

    /// True if the segment contains record `seq` with this hash. Decided by the last hash of the segment, without the
    /// records between.
    fn is_of(&self, object: &Object, seq: u64, hash: Hash) -> bool {
        let Object { checkpoint, .. } = object;
        if seq == checkpoint.last {
            return checkpoint.head == hash;
        }
        // Logs that differ before a segment's end differ at its end, too.
        self.machines.iter().any(|machine| {
            machine.confirmed.contains(&(checkpoint.last, checkpoint.head))
                && machine.confirmed.contains(&(seq, hash))
        })
    }
}
