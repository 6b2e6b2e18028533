//! Calls that have begun and not ended, as the writer knows them (ACT-1).

use std::collections::HashMap;

use super::append::Appender;
use super::keys;
use super::record::Entry;
use super::store::Space;

/// The calls under way, as the writer knows them. There are no more than there is room for.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    calls: HashMap<u64, Call>,
    /// Those whose mark is not in the store, oldest first; some may have ended.
    unmarked: Vec<u64>,
    /// The bytes of those that have not.
    unmarked_bytes: usize,
}

#[derive(Debug)]
struct Call {
    /// What was known when it began; what came of it is added when it ends.
    entry: Box<Entry>,
    is_marked: bool,
}

impl Unfinished {
    /// A call begins.
    pub(super) fn begin(&mut self, ticket: u64, entry: Box<Entry>) {
        self.unmarked_bytes += size(&entry);
        self.unmarked.push(ticket);
        self.calls.insert(ticket, Call { entry, is_marked: false });
    }

    /// A call has ended so: its whole entry. The mark goes with the batch that the entry is in.
    pub(super) fn end(
        &mut self,
        ticket: u64,
        rest: Box<Entry>,
        appender: &mut Appender,
    ) -> Box<Entry> {
        let Some(Call { mut entry, is_marked }) = self.calls.remove(&ticket) else { return rest };
        if is_marked {
            appender.also(|batch| batch.remove(Space::State, keys::begun(ticket)));
        } else {
            self.unmarked_bytes = self.unmarked_bytes.saturating_sub(size(&entry));
        }
        let Entry { draft, decisions } = *rest;
        entry.draft.end(&draft);
        entry.decisions.extend(decisions);
        entry
    }

    /// The entry that the call ended with is lost. A mark that is in the store stays: what became of
    /// the call is not known.
    pub(super) fn lose(&mut self, ticket: u64) {
        if let Some(Call { entry, is_marked: false }) = self.calls.remove(&ticket) {
            self.unmarked_bytes = self.unmarked_bytes.saturating_sub(size(&entry));
        }
    }

    /// What the marks that are yet to be written take, about; 0 if there are none.
    pub(super) fn unmarked_bytes(&self) -> usize {
        self.unmarked_bytes
    }

    /// Adds the marks of all that are without one to the batch.
    pub(super) fn mark(&mut self, appender: &mut Appender, now_ms: u64) {
        for ticket in self.unmarked.drain(..) {
            if let Some(call) = self.calls.get_mut(&ticket) {
                appender.mark_begun(ticket, &call.entry, now_ms);
                call.is_marked = true;
            }
        }
        self.unmarked_bytes = 0;
    }
}

/// About what a mark takes.
fn size(entry: &Entry) -> usize {
    let reasons: usize = entry.decisions.iter().map(|decision| decision.reason.len()).sum();
    size_of::<Entry>() + entry.draft.bytes() + reasons
}
