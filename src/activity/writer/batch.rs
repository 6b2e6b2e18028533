//! One batch: made of what is in the queue, committed, synced, and then the head is moved.

use std::sync::atomic::Ordering;

use super::state::{Stage, WriterState};
use crate::activity::append::Prepared;
use crate::activity::config::Durability;
use crate::activity::keys;
use crate::activity::shared::WriterCommand;
use crate::activity::store::{Batch, Space};

/// A batch is closed at so many records.
const BATCH_RECORDS: u64 = 8192;
/// A batch is closed at so many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// What a round found in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Some,
    /// A whole batch: there is more.
    Full,
}

impl WriterState {
    /// Makes the batch longer by what is in the queue, up to a whole one.
    pub(super) fn take_in(&mut self) -> Found {
        let mut found = Found::Nothing;
        let mut looked = Some(self.now());
        while self.stuck.is_none() {
            let Ok(message) = self.messages.try_recv() else {
                match looked {
                    Some(moment) => {
                        self.queue_from = moment;
                        break;
                    }
                    // What comes after the last message is to be known to come after this.
                    None => {
                        looked = Some(self.now());
                        continue;
                    }
                }
            };
            looked = None;
            self.batch_from.get_or_insert(self.queue_from);
            match message {
                // The call is in flight already, and is marked when the batch is written.
                WriterCommand::Mark(done) => self.waiting.push(done),
                WriterCommand::Entry { entry, ticket, done, counted } => {
                    if let Some(ticket) = ticket {
                        let key = keys::begun(ticket);
                        self.appender.also(|batch| batch.remove(Space::State, key));
                    }
                    self.appender.push(&entry, (self.shared.clock)());
                    self.waiting.extend(done);
                    self.room += usize::from(counted);
                }
                WriterCommand::Barrier(answer) => {
                    self.write();
                    let _ = answer.send(());
                }
                WriterCommand::Flush(answer) => {
                    self.write();
                    self.sync();
                    let _ = answer.send(());
                }
                WriterCommand::Cut(cut, answer) => {
                    let now = (self.shared.clock)();
                    self.appender.push(&cut.draft(now).into(), now);
                    self.appender.also(|batch| batch.put(Space::State, keys::FIRST, cut.value()));
                    self.write();
                    self.first = cut.first;
                    let _ = answer.send(());
                }
                WriterCommand::Lost => {
                    self.report_lost();
                }
                WriterCommand::Damaged(table) => {
                    self.write();
                    self.sync();
                    self.suspect(table);
                }
                WriterCommand::Close => self.closing = true,
                WriterCommand::Behind(moment) => {
                    (self.queue_from, self.sent_behind) = (moment, false);
                }
            }
            found = Found::Some;
            if self.appender.pending() >= BATCH_RECORDS || self.is_full() {
                found = Found::Full;
                // The queue may not be seen empty for long.
                if !std::mem::replace(&mut self.sent_behind, true) {
                    self.shared.send(WriterCommand::Behind(self.now()));
                }
                break;
            }
        }
        self.publish_durable();
        found
    }

    fn is_full(&self) -> bool {
        self.appender.pending_bytes() >= BATCH_BYTES
    }

    /// Writes the batch that was made, and with it the marks of calls in flight: in several batches
    /// where they are many.
    pub(super) fn write(&mut self) {
        while self.stuck.is_none() {
            let more = self.add_marks();
            self.commit();
            if !more {
                break;
            }
        }
    }

    /// Adds the marks of calls that have none to the batch; false once they all have one.
    fn add_marks(&mut self) -> bool {
        let unmarked = self.shared.in_flight.unmarked();
        if unmarked.is_empty() {
            return false;
        }
        let now = (self.shared.clock)();
        for place in &unmarked {
            if self.is_full() {
                return true;
            }
            if let Some(known) = self.shared.in_flight.mark(place, self.next_ticket) {
                self.appender.mark_begun(self.next_ticket, &known, now);
                self.next_ticket += 1;
            }
        }
        false
    }

    fn commit(&mut self) {
        let Some(prepared) = self.appender.take() else { return };
        let room = std::mem::take(&mut self.room);
        let result = self.on_disk(|store, _| store.commit(prepared.batch.clone()));
        match result {
            Ok(()) => {
                self.unsynced = Some(prepared.tip);
                self.wrote(prepared.records, room);
            }
            Err(error) => self.fail(prepared, room, &error, Stage::Write),
        }
    }

    /// Makes durable what was written, and moves the head.
    pub(super) fn sync(&mut self) {
        if self.stuck.is_some() {
            return;
        }
        if let Some(tip) = self.unsynced.take() {
            let result = self.on_disk(|store, head| {
                store.sync()?;
                head.write(tip)
            });
            if let Err(error) = result {
                let prepared = Prepared { batch: Batch::default(), tip, records: 0, bytes: 0 };
                self.fail(prepared, 0, &error, Stage::Sync);
                return;
            }
            self.shared.durable_seq.store(tip.seq, Ordering::Relaxed);
            self.publish_size();
        }
        match self.shared.config.durability {
            Durability::Fleet => self.shared.await_confirmation(self.waiting.drain(..)),
            Durability::Grouped | Durability::BeforeReply | Durability::BeforeSend => {
                for waiting in self.waiting.drain(..) {
                    let _ = waiting.send(());
                }
            }
        }
        self.batch_from = None;
        self.publish_durable();
        self.shared.batch_done.notify_waiters();
    }
}
