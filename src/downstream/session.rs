//! Sessions of the initialize-based protocol revisions (MCP 2025-11-25 §Session Management).
//!
//! Owns the table of live sessions, bounded in number and in idle time. Deliberately has no
//! clock: callers say what time it is, in milliseconds of any monotonic origin.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use thiserror::Error;

use crate::proxy::client::Client;
use crate::upstream::{Era, Takes};

/// Most sessions alive at once.
pub const MAX_SESSIONS: usize = 10_000;
/// A session unused for this long is forgotten: 24 h.
pub const IDLE_MS: u64 = 24 * 60 * 60 * 1000;
/// Shards of the table, so that sessions rarely meet on a lock.
const SHARDS: usize = 16;

/// The table is full of sessions in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many sessions: {MAX_SESSIONS} are open; end some with DELETE, or wait")]
pub struct Full;

/// One initialized client.
#[derive(Debug)]
pub struct Session {
    /// Who it is. Its `session_id`, 128 random bits in hex, is the `Mcp-Session-Id`.
    pub client: Arc<Client>,
    used_ms: AtomicU64,
    ended: std::sync::atomic::AtomicBool,
}

impl Session {
    fn new(client: Client, now_ms: u64) -> Self {
        Self { client: Arc::new(client), used_ms: AtomicU64::new(now_ms), ended: false.into() }
    }

    /// The `Mcp-Session-Id`.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.client.session_id
    }

    /// Notes a use; false when the session has ended or expired, so that whoever kept it asks
    /// the table again.
    pub fn touch(&self, now_ms: u64) -> bool {
        if self.ended.load(Ordering::Acquire) || self.expired(now_ms) {
            return false;
        }
        self.used_ms.store(now_ms, Ordering::Relaxed);
        true
    }

    fn expired(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms.load(Ordering::Relaxed)) > IDLE_MS
    }
}

type Shard = RwLock<HashMap<Arc<str>, Arc<Session>>>;

/// All live sessions.
#[derive(Debug, Default)]
pub struct Sessions {
    shards: [Shard; SHARDS],
    count: AtomicUsize,
}

impl Sessions {
    /// Opens a session under `random`, 128 bits of the system's randomness.
    ///
    /// # Errors
    ///
    /// [`Full`] when [`MAX_SESSIONS`] are in use.
    pub fn open(
        &self,
        random: [u8; 16],
        version: &'static str,
        client_name: &str,
        takes: Takes,
        now_ms: u64,
    ) -> Result<Arc<Session>, Full> {
        if self.count.load(Ordering::Relaxed) >= MAX_SESSIONS {
            self.sweep(now_ms);
            if self.count.load(Ordering::Relaxed) >= MAX_SESSIONS {
                return Err(Full);
            }
        }
        let id = format!("{:032x}", u128::from_be_bytes(random));
        let client = Client::new(id.as_str().into(), client_name, version, Era::Legacy, takes);
        let session = Arc::new(Session::new(client, now_ms));
        self.write(&id, |shard| shard.insert(Arc::clone(session.id()), Arc::clone(&session)));
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(session)
    }

    /// The live session of that id, its use noted.
    #[must_use]
    pub fn find(&self, id: &str, now_ms: u64) -> Option<Arc<Session>> {
        let shard = self.shard(id).read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let session = shard.get(id)?;
        session.touch(now_ms).then(|| Arc::clone(session))
    }

    /// Ends a session; false if there was none.
    pub fn end(&self, id: &str) -> bool {
        let Some(session) = self.write(id, |shard| shard.remove(id)) else { return false };
        session.ended.store(true, Ordering::Release);
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Forgets what has expired.
    pub fn sweep(&self, now_ms: u64) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            let before = shard.len();
            shard.retain(|_, session| !session.expired(now_ms));
            self.count.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }

    fn shard(&self, id: &str) -> &Shard {
        // The ids are random hex, so their last digit spreads them evenly.
        let digit = id.bytes().last().map_or(0, |last| usize::from(last) % SHARDS);
        let [first, ..] = &self.shards;
        self.shards.get(digit).unwrap_or(first)
    }

    fn write<T>(&self, id: &str, act: impl FnOnce(&mut HashMap<Arc<str>, Arc<Session>>) -> T) -> T {
        act(&mut self.shard(id).write().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_until_ended_or_idle() {
        let sessions = Sessions::default();
        let kept = sessions.open([7; 16], "2025-11-25", "ide", Takes::default(), 0).unwrap();
        assert_eq!(kept.id().len(), 32);
        assert!(sessions.find(kept.id(), IDLE_MS).is_some());
        assert!(sessions.find(kept.id(), 2 * IDLE_MS).is_some(), "a use starts the idle time anew");
        assert!(sessions.find(kept.id(), 3 * IDLE_MS + 1).is_none());
        let ended = sessions.open([8; 16], "2025-11-25", "ide", Takes::default(), 0).unwrap();
        assert!(sessions.end(ended.id()));
        assert!(!sessions.end(ended.id()));
        assert!(!ended.touch(1), "whoever kept it notices");
        assert!(sessions.find(ended.id(), 1).is_none());
    }

    #[test]
    fn the_table_is_bounded_and_expired_sessions_make_room() {
        let sessions = Sessions::default();
        for n in 0..MAX_SESSIONS as u128 {
            sessions.open(n.to_be_bytes(), "2025-11-25", "", Takes::default(), 0).unwrap();
        }
        let one_more = u128::MAX.to_be_bytes();
        assert_eq!(
            sessions.open(one_more, "2025-11-25", "", Takes::default(), 1).unwrap_err(),
            Full
        );
        assert!(sessions.open(one_more, "2025-11-25", "", Takes::default(), IDLE_MS + 1).is_ok());
    }
}
