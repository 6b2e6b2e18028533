//! Who is logged in to the page at `/ui/`: one-time codes, and the sessions of browsers. In memory alone, so that all of
//! them end with the process. The clock and the randomness are arguments.
//!
//! ```text
//! code (in a terminal) ──exchanged once──▶ session (in a cookie) ─▶ ended: locked, idle, too old, crowded out, other key
//! key (typed by hand)  ──exchanged───────▶
//! ```
//!
//! Of both only the BLAKE3 hash is kept: they are 256 random bits, which nobody finds by trying. Which requests a session
//! counts for, and how a cookie is written, is `api::page_session`'s.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::watch;

/// Random bytes of a code, and of a session's secret.
pub const PAGE_SECRET_BYTES: usize = 32;
/// Characters of either: 32 bytes in base64.
const SECRET_CHARS: usize = 43;
/// How long a code can be exchanged.
pub const CODE_LIFE: Duration = Duration::from_secs(10 * 60);
/// Most codes at once; another takes the place of the oldest.
pub const MAX_CODES: usize = 16;
/// A session that nobody uses for so long ends.
pub const SESSION_IDLE: Duration = Duration::from_secs(8 * 60 * 60);
/// A session ends after this long, however it is used.
pub const SESSION_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Most sessions at once; another takes the place of the one that was idle longest.
pub const MAX_SESSIONS: usize = 64;

type Hash = [u8; blake3::OUT_LEN];

/// A code or the secret of a session, to be handed over once. `Debug` does not show it.
pub struct PageSecret(String);

impl std::fmt::Debug for PageSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageSecret(…)")
    }
}

impl PageSecret {
    fn new(random: [u8; PAGE_SECRET_BYTES]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(random))
    }

    /// The secret itself: letters, digits, `-` and `_`.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// A session as a request uses it.
#[derive(Clone, Debug)]
pub struct PageSession {
    /// Its sender goes with the session.
    ended: watch::Receiver<()>,
    /// When it ends at the latest.
    pub until: Instant,
}

impl PageSession {
    /// Comes back when the session has ended, other than by its time.
    pub async fn ended(&mut self) {
        while self.ended.changed().await.is_ok() {}
    }
}

/// All codes and sessions. Both count for the API key that was in force when they were made, and no other.
#[derive(Debug, Default)]
pub struct PageLogins(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first.
    codes: VecDeque<KeptCode>,
    sessions: Vec<KeptSession>,
}

#[derive(Debug)]
struct KeptCode {
    hash: Hash,
    key: Hash,
    until: Instant,
}

#[derive(Debug)]
struct KeptSession {
    hash: Hash,
    key: Hash,
    until: Instant,
    used: Instant,
    ended: watch::Sender<()>,
}

impl PageLogins {
    /// Another code, which can be exchanged for [`CODE_LIFE`] while `key` is the API key.
    #[must_use]
    pub fn code(&self, key: &str, random: [u8; PAGE_SECRET_BYTES], now: Instant) -> PageSecret {
        let code = PageSecret::new(random);
        let mut kept = self.0.lock();
        kept.forget(now);
        if kept.codes.len() >= MAX_CODES {
            kept.codes.pop_front();
        }
        let (hash, key) = (hash(code.expose()), hash(key));
        kept.codes.push_back(KeptCode { hash, key, until: now + CODE_LIFE });
        code
    }

    /// A session for a code, which counts no more after; `None` if it never did, or its time is up.
    #[must_use]
    pub fn exchange(
        &self,
        code: &str,
        key: &str,
        random: [u8; PAGE_SECRET_BYTES],
        now: Instant,
    ) -> Option<PageSecret> {
        let (given, key_hash) = (formed(code)?, hash(key));
        let mut kept = self.0.lock();
        kept.forget(now);
        let at = kept.codes.iter().position(|code| is(&code.hash, &given).into())?;
        let code = kept.codes.remove(at)?;
        bool::from(is(&code.key, &key_hash)).then(|| kept.open(key_hash, random, now))
    }

    /// A session for whoever has shown the key.
    #[must_use]
    pub fn open(&self, key: &str, random: [u8; PAGE_SECRET_BYTES], now: Instant) -> PageSecret {
        let mut kept = self.0.lock();
        kept.forget(now);
        kept.open(hash(key), random, now)
    }

    /// The session whose secret that is, which is used by that; `None` if there is none, or none any more.
    #[must_use]
    pub fn session(&self, secret: &str, key: &str, now: Instant) -> Option<PageSession> {
        let (given, key) = (formed(secret)?, hash(key));
        let mut kept = self.0.lock();
        kept.forget(now);
        // A key that was replaced takes with it whoever logged in by it.
        kept.sessions.retain(|session| is(&session.key, &key).into());
        let found = kept.sessions.iter_mut().find(|session| is(&session.hash, &given).into())?;
        found.used = now;
        Some(PageSession { ended: found.ended.subscribe(), until: found.until })
    }

    /// Ends the session whose secret that is.
    pub fn end(&self, secret: &str) {
        let Some(given) = formed(secret) else { return };
        self.0.lock().sessions.retain(|session| !bool::from(is(&session.hash, &given)));
    }
}

impl Kept {
    fn forget(&mut self, now: Instant) {
        self.codes.retain(|code| now < code.until);
        let is_fresh = |used: Instant| now.saturating_duration_since(used) < SESSION_IDLE;
        self.sessions.retain(|session| now < session.until && is_fresh(session.used));
    }

    fn open(&mut self, key: Hash, random: [u8; PAGE_SECRET_BYTES], now: Instant) -> PageSecret {
        if self.sessions.len() >= MAX_SESSIONS {
            let idlest = self.sessions.iter().enumerate().min_by_key(|(_, session)| session.used);
            if let Some((at, _)) = idlest {
                self.sessions.swap_remove(at);
            }
        }
        let secret = PageSecret::new(random);
        self.sessions.push(KeptSession {
            hash: hash(secret.expose()),
            key,
            until: now + SESSION_LIFE,
            used: now,
            ended: watch::Sender::new(()),
        });
        secret
    }
}

fn hash(text: &str) -> Hash {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// The hash of what was given; `None` if it has not the form of a secret.
fn formed(given: &str) -> Option<Hash> {
    (given.len() == SECRET_CHARS).then(|| hash(given))
}

fn is(one: &Hash, other: &Hash) -> Choice {
    one.ct_eq(other)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KEY: &str = "a-key";

    fn random(number: u8) -> [u8; PAGE_SECRET_BYTES] {
        [number; PAGE_SECRET_BYTES]
    }

    #[test]
    fn a_code_is_exchanged_once_in_its_time_and_for_its_key() {
        let (logins, now) = (PageLogins::default(), Instant::now());
        let code = logins.code(KEY, random(1), now);
        assert_eq!((code.expose().len(), format!("{code:?}")), (43, "PageSecret(…)".to_owned()));
        let exchange = |code: &str, key: &str, now| logins.exchange(code, key, random(2), now);
        for guess in ["", "x", &code.expose()[1..], &PageSecret::new(random(3)).0] {
            assert!(exchange(guess, KEY, now).is_none(), "{guess}");
        }
        let session = exchange(code.expose(), KEY, now).unwrap();
        assert!(exchange(code.expose(), KEY, now).is_none(), "it counts once");
        assert!(logins.session(session.expose(), KEY, now).is_some());
        assert!(logins.session(code.expose(), KEY, now).is_none(), "a code is no session");
        let late = logins.code(KEY, random(4), now);
        assert!(exchange(late.expose(), KEY, now + CODE_LIFE).is_none());
        let other = logins.code(KEY, random(5), now);
        assert!(exchange(other.expose(), "another key", now).is_none());
        assert!(exchange(other.expose(), KEY, now).is_none(), "tried with another key it is gone");
    }

    #[test]
    fn a_session_ends_idle_old_locked_and_with_its_key() {
        let (logins, now) = (PageLogins::default(), Instant::now());
        let holds = |secret: &PageSecret, key: &str, now| logins.session(secret.expose(), key, now);
        let idle = logins.open(KEY, random(1), now);
        assert!(holds(&idle, KEY, now + SESSION_IDLE - Duration::from_secs(1)).is_some());
        assert!(holds(&idle, KEY, now + SESSION_IDLE).is_some(), "it was used meanwhile");
        assert!(holds(&idle, KEY, now + 2 * SESSION_IDLE).is_none());
        let old = logins.open(KEY, random(2), now);
        let mut at = now;
        while at < now + SESSION_LIFE {
            assert!(holds(&old, KEY, at).is_some());
            at += SESSION_IDLE / 2;
        }
        assert!(holds(&old, KEY, now + SESSION_LIFE).is_none());
        let locked = logins.open(KEY, random(3), now);
        let mut seen = holds(&locked, KEY, now).unwrap();
        assert!(seen.ended().now_or_never().is_none());
        logins.end(locked.expose());
        assert!(seen.ended().now_or_never().is_some(), "whoever waits with it is told");
        assert!(holds(&locked, KEY, now).is_none());
        let keyed = logins.open(KEY, random(4), now);
        assert!(holds(&keyed, "another key", now).is_none());
        assert!(holds(&keyed, KEY, now).is_none(), "nor when the key comes back");
    }

    #[test]
    fn there_are_only_so_many_codes_and_sessions() {
        let (logins, now) = (PageLogins::default(), Instant::now());
        let second = |number: u8| now + Duration::from_secs(number.into());
        let codes: Vec<_> =
            (0..=MAX_CODES as u8).map(|number| logins.code(KEY, random(number), now)).collect();
        assert!(logins.exchange(codes[0].expose(), KEY, random(99), now).is_none());
        assert!(logins.exchange(codes[1].expose(), KEY, random(99), now).is_some());
        let sessions: Vec<_> = (0..MAX_SESSIONS as u8)
            .map(|number| logins.open(KEY, random(number), second(number + 1)))
            .collect();
        let until = second(MAX_SESSIONS as u8 + 1);
        assert!(logins.session(sessions[0].expose(), KEY, until).is_some(), "used last");
        let another = logins.open(KEY, random(200), until);
        assert!(logins.session(sessions[1].expose(), KEY, until).is_none(), "idle longest");
        for session in [&sessions[0], &sessions[2], &another] {
            assert!(logins.session(session.expose(), KEY, until).is_some());
        }
        assert_eq!(logins.0.lock().sessions.len(), MAX_SESSIONS);
    }
}
