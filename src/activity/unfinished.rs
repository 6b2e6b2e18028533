//! Calls that were under way when an earlier process ended: of the mark of each (`begun`) becomes its
//! record when the log is opened (ACT-1). While this process runs, `in_flight` knows its
//! calls.

use super::append::Appender;
use super::begun::Begun;
use super::keys;
use super::store::{Space, Store, StoreError};
use super::view::View;

/// Records that are made of marks at a time.
const BATCH_RECORDS: u64 = 1024;

/// What became of the marks of an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// How many calls are on record by them now.
    pub(super) calls: u64,
    /// The ticket of the next call.
    pub(super) next_ticket: u64,
}

/// Makes records of the marks that are left, durably. One that cannot be read stays where it is: a
/// later version may know what it says.
///
/// # Errors
///
/// [`StoreError`] if the log cannot be read or written.
pub(super) fn settle(store: &Store, appender: &mut Appender) -> Result<Settled, StoreError> {
    let (mut calls, mut next_ticket) = (0, 0);
    for row in View::new(store.snapshot())?.marks() {
        let (key, value) = row?;
        next_ticket = keys::ticket(&key).map_or(next_ticket, |ticket| ticket + 1);
        match Begun::decode(&value).and_then(|begun| appender.push_begun(&begun)) {
            Ok(()) => {
                appender.also(|batch| batch.remove(Space::State, key));
                calls += 1;
            }
            Err(error) => {
                tracing::error!(ticket = next_ticket - 1, %error, "the mark of a call cannot be read");
            }
        }
        if appender.pending() >= BATCH_RECORDS
            && let Some(prepared) = appender.take()
        {
            store.commit(prepared.batch)?;
        }
    }
    if let Some(prepared) = appender.take() {
        store.commit(prepared.batch)?;
    }
    if calls > 0 {
        store.sync()?;
    }
    Ok(Settled { calls, next_ticket })
}
