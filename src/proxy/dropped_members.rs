//! Warnings of what stays behind, one for each sender and member.
//!
//! A sender that says more than there is says it with every message, and no log is to grow with
//! the messages. Bounded: where there is no room for another name, nothing more is said.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::mcp::shapes::{Left, MemberRefused};

/// Most pairs of a sender and a member that are warned of: in one session, and outside of all.
pub const MAX_TOLD: usize = 1024;

/// What was warned of.
#[derive(Debug, Default)]
pub struct DroppedMembers(Mutex<BTreeSet<(Sender, Box<str>)>>);

/// Who says it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sender {
    Client(Box<str>),
    Server(Box<str>),
}

impl DroppedMembers {
    /// How many pairs it remembers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// True for what `sender` says for the first time.
    fn is_new(&self, sender: Sender, method: &str, what: &str) -> bool {
        let said = format!("{method} {what}").into_boxed_str();
        let mut told = self.0.lock();
        told.len() < MAX_TOLD && told.insert((sender, said))
    }

    /// Warns of members of a message of the client of that name.
    pub fn of_client(&self, client: &str, session: &str, method: &str, left: &Left) {
        for member in left.names() {
            if self.is_new(Sender::Client(client.into()), method, member) {
                tracing::warn!(%client, %session, method, ?member, "a client's member stays behind");
            }
        }
    }

    /// Warns of members of a server's message.
    pub fn of_server(&self, server: &str, method: &str, left: &Left) {
        for member in left.names() {
            if self.is_new(Sender::Server(server.into()), method, member) {
                tracing::warn!(server, method, ?member, "a server's member stays behind");
            }
        }
    }

    /// Warns of a server's message that is not handed on.
    pub fn refused(&self, server: &str, method: &str, why: &MemberRefused) {
        let why = why.to_string();
        if self.is_new(Sender::Server(server.into()), method, &why) {
            tracing::warn!(server, method, ?why, "a server's message is not handed on");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_the_table_is_bounded() {
        let told = DroppedMembers::default();
        let new = |sender: &str, method: &str, what: &str| {
            told.is_new(Sender::Client(sender.into()), method, what)
        };
        assert!(new("a", "m", "x") && !new("a", "m", "x"));
        assert!(new("b", "m", "x") && new("a", "n", "x"));
        assert!(told.is_new(Sender::Server("a".into()), "m", "x"), "no client");
        let fresh = (0..2 * MAX_TOLD).filter(|n| new("a", "m", &n.to_string())).count();
        assert_eq!(fresh, MAX_TOLD - 4);
    }
}
