//! An approval that stands, as the nodes of a fleet tell each other of it. Pure.
//!
//! Its key says when it ends, before its id, so that those that are over are the first by their keys, and can be forgotten
//! everywhere, whether or not they were denied after all.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::answer::{Answerer, Door};
use super::config::MAX_STANDING;

/// Most approvals that stand on a node, those of the whole fleet among them.
pub const MAX_SHARED_LEAVES: usize = 4096;
/// Digits of a time in a key, in milliseconds since 1970: until the year 5138.
const TIME_DIGITS: usize = 14;
/// Most characters of an id.
const MAX_ID: usize = 64;

/// An approval that stands, without what a clock of one process says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLeave {
    /// The id of the approval that it was given for.
    pub of: Box<str>,
    /// `server:tool`
    pub access: Box<str>,
    /// The id of the principal whose calls go out by it.
    pub principal: Box<str>,
    /// The session that it counts for; `None` for any.
    pub session: Option<Box<str>>,
    /// Who gave it.
    pub by: Answerer,
    /// When it ends at the latest, by the clock of the node that gave it.
    pub until: SystemTime,
    /// For how long it was given.
    pub time: Duration,
    /// When this node heard of it first, by its own clock, where that is remembered.
    pub heard: Option<SystemTime>,
    /// What stands for whose and which calls go out by it.
    pub subject: Box<str>,
}

/// The name under which nodes tell each other of one: when it ends, and the approval's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedLeaveKey(Box<str>);

impl SharedLeaveKey {
    /// What stands before the keys of all that end then or later.
    #[must_use]
    pub fn at(time: SystemTime) -> Self {
        Self(format!("{:0TIME_DIGITS$}", millis(time)).into())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    access: Box<str>,
    principal: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Box<str>>,
    by: Box<str>,
    door: &'a str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Box<str>>,
    subject: Box<str>,
    milliseconds: u64,
}

impl SharedLeave {
    /// How much of its time is left, by a clock that may be another one's: never more than it was given for, counted from when it
    /// was heard of.
    #[must_use]
    pub fn left(&self, now: SystemTime) -> Duration {
        let heard = now.duration_since(self.heard.unwrap_or(now)).unwrap_or_default();
        self.by_its_clock(now).min(self.time.saturating_sub(heard))
    }

    /// The same, as the clock says that gave it.
    #[must_use]
    pub fn by_its_clock(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or_default()
    }

    /// Its name.
    #[must_use]
    pub fn key(&self) -> SharedLeaveKey {
        SharedLeaveKey(format!("{:0TIME_DIGITS$}/{}", millis(self.until), self.of).into())
    }

    /// As it is told under its [key](Self::key), by the node of that name.
    #[must_use]
    pub fn write(&self, node: &str) -> String {
        let Self { access, principal, session, by, subject, time, .. } = self.clone();
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (door, came_to) = (by.door.as_str(), by.node.unwrap_or_else(|| node.into()));
        let node = Some(came_to);
        let by = by.principal;
        let written = Written { access, principal, session, by, door, node, subject, milliseconds };
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Reads what was told under that name; `None` where it is none.
    #[must_use]
    pub fn read(key: &str, text: &str) -> Option<Self> {
        let (time, of) = key.split_once('/')?;
        if time.len() != TIME_DIGITS || of.is_empty() || of.len() > MAX_ID {
            return None;
        }
        let until = UNIX_EPOCH + Duration::from_millis(time.parse().ok()?);
        let written: Written<'_> = serde_json::from_str(text).ok()?;
        let Written { access, principal, session, by, door, node, subject, milliseconds } = written;
        let by = Answerer { principal: by, door: Door::of_word(door)?, node };
        let time = Duration::from_millis(milliseconds).min(MAX_STANDING);
        let of = of.into();
        Some(Self { of, access, principal, session, by, until, time, heard: None, subject })
    }
}

fn millis(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave() -> SharedLeave {
        SharedLeave {
            of: "0123456789abcdef-abc0123".into(),
            access: "s:t".into(),
            principal: "token:ci".into(),
            session: Some("x".into()),
            by: Answerer::here("admin", Door::Cli),
            until: UNIX_EPOCH + Duration::from_millis(1_800_000_000_123),
            time: Duration::from_secs(3600),
            heard: None,
            subject: "ab".into(),
        }
    }

    #[test]
    fn what_is_told_is_read_and_those_that_end_first_are_the_first() {
        let leave = leave();
        let key = leave.key();
        let read = SharedLeave::read(key.as_str(), &leave.write("a")).unwrap();
        let by = Answerer { node: Some("a".into()), ..leave.by.clone() };
        assert_eq!(read, SharedLeave { by, ..leave.clone() });
        // Passed on it says the same.
        assert_eq!(SharedLeave::read(key.as_str(), &read.write("b")), Some(read));
        let second = Duration::from_secs(1);
        assert!(SharedLeaveKey::at(leave.until - second) < key);
        assert!(key < SharedLeaveKey::at(leave.until + second));
    }

    #[test]
    fn no_clock_lets_more_of_its_time_be_left_than_it_was_given_for() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let leave = leave();
        // What is left after so many minutes of an hour, by a clock that is so many minutes behind that of the giver.
        let left = |after, behind, heard: Option<u64>| {
            let at = |after| leave.until - minutes(60) + minutes(after) - minutes(behind);
            let leave = SharedLeave { heard: heard.map(at), ..leave.clone() };
            leave.left(at(after)).as_secs() / 60
        };
        assert_eq!((left(0, 0, None), left(20, 0, None), left(20, 0, Some(15))), (60, 40, 40));
        assert_eq!((left(0, 120, None), left(20, 120, None)), (60, 60), "it is heard of");
        assert_eq!((left(20, 120, Some(0)), left(59, 120, Some(0))), (40, 1));
        assert_eq!((left(60, 120, Some(0)), left(90, 120, Some(0))), (0, 0));
        let endless = SharedLeave { time: 9 * MAX_STANDING, ..leave.clone() };
        let read = SharedLeave::read(leave.key().as_str(), &endless.write("a")).unwrap();
        assert_eq!(read.time, MAX_STANDING);
    }

    #[test]
    fn what_is_none_is_not_read() {
        let (leave, text) = (leave(), leave().write("a"));
        for key in ["", "x", "1/x", "00000000000001/", "0000000000000x/x", &"0".repeat(200)] {
            assert_eq!(SharedLeave::read(key, &text), None, "{key}");
        }
        let named = |length| format!("{}/{}", "0".repeat(TIME_DIGITS), "x".repeat(length));
        assert!(SharedLeave::read(&named(MAX_ID), &text).is_some());
        assert_eq!(SharedLeave::read(&named(MAX_ID + 1), &text), None);
        let timeless = text.replace("milliseconds", "hours");
        for odd in ["", "{}", "null", &text.replace("cli", "window"), &timeless] {
            assert_eq!(SharedLeave::read(leave.key().as_str(), odd), None, "{odd}");
        }
    }
}
