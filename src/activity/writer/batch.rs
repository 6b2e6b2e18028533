//! One batch: made of what is in the queue, committed, synced, and then the head is moved.

use std::sync::atomic::Ordering;

use super::state::{Stage, WriterState};
use crate::activity::append::Prepared;
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
                WriterCommand::Begun { ticket, entry, done } => {
                    self.in_flight.begin(ticket, entry);
                    self.waiting.extend(done);
                }
                WriterCommand::Entry { entry, ticket, done, counted } => {
                    let entry = match ticket {
                        Some(ticket) => self.in_flight.end(ticket, entry, &mut self.appender),
                        None => entry,
                    };
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
                    self.tell_lost();
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
            let bytes = self.appender.pending_bytes() + self.in_flight.unmarked_bytes();
            if self.appender.pending() >= BATCH_RECORDS || bytes >= BATCH_BYTES {
                found = Found::Full;
                // The queue may not be seen empty for long.
                if !std::mem::replace(&mut self.sent_behind, true) {
                    self.shared.send(WriterCommand::Behind(self.now()));
                }
                break;
            }
        }
        self.tell_durable();
        found
    }

    /// Writes the batch that was made.
    pub(super) fn write(&mut self) {
        if self.in_flight.unmarked_bytes() > 0 {
            self.in_flight.mark(&mut self.appender, (self.shared.clock)());
        }
        let Some(prepared) = self.appender.take() else { return };
        let room = std::mem::take(&mut self.room);
        let result = self.on_disk(|store, _| store.commit(prepared.batch.clone()));
        match result {
            Ok(()) => {
                self.unsynced = Some(prepared.mark);
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
        if let Some(mark) = self.unsynced.take() {
            let result = self.on_disk(|store, head| {
                store.sync()?;
                head.write(mark)
            });
            if let Err(error) = result {
                let prepared = Prepared { batch: Batch::default(), mark, records: 0, bytes: 0 };
                self.fail(prepared, 0, &error, Stage::Sync);
                return;
            }
            self.shared.durable_seq.store(mark.seq, Ordering::Relaxed);
            self.tell_size();
        }
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(());
        }
        self.batch_from = None;
        self.tell_durable();
        self.shared.batch_done.notify_waiters();
    }
}
