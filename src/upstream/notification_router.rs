//! Who is told what a server says unasked: the calls over HTTP that can be reached, and whoever
//! follows a server's lists.
//!
//! A child's pipe has its own table of calls; where a message goes is decided in
//! [`super::inbound`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast, mpsc, watch};

use super::inbound::{self, ChangedList, Destination};
use crate::mcp::capabilities::ClientCapabilities;

/// Messages that wait for a call beside its own stream.
pub(super) const HEARD_MESSAGES: usize = 32;
/// Changed resources that wait for a slow follower; it learns that it missed some.
const UPDATES: usize = 256;

/// How often a server's lists have changed, as far as it tells. Of tools the catalog tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// `notifications/resources/list_changed`, and each new connection.
    pub resources: u64,
    /// `notifications/prompts/list_changed`, and each new connection.
    pub prompts: u64,
}

/// What became of a log message that names no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Whoever it is for has it, or does not want it.
    Already,
    /// One client alone uses the server: the call in flight can tell it, if there is but one.
    ByItsCall,
    /// It could be about several clients, or about none.
    Nobody,
}

type Reader = Box<dyn Fn(&Bytes) -> Told + Send + Sync>;

/// What a server tells about its lists, and its log.
pub(super) struct ServerEvents {
    /// Its tools are to be listed again.
    pub(super) tools: Notify,
    pub(super) changes: watch::Sender<Changes>,
    /// The URIs of resources that have changed.
    pub(super) updates: broadcast::Sender<Arc<str>>,
    /// Knows whom a log message can be told outside of a call.
    reader: OnceLock<Reader>,
}

impl fmt::Debug for ServerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerEvents")
            .field("changes", &*self.changes.borrow())
            .finish_non_exhaustive()
    }
}

impl Default for ServerEvents {
    fn default() -> Self {
        Self {
            tools: Notify::new(),
            changes: watch::Sender::default(),
            updates: broadcast::Sender::new(UPDATES),
            reader: OnceLock::new(),
        }
    }
}

impl ServerEvents {
    pub(super) fn changed(&self, list: ChangedList) {
        match list {
            ChangedList::Tools => self.tools.notify_one(),
            ChangedList::Resources => self.changes.send_modify(|changes| changes.resources += 1),
            ChangedList::Prompts => self.changes.send_modify(|changes| changes.prompts += 1),
        }
    }

    /// A new connection: nobody knows what changed meanwhile.
    pub(super) fn reconnected(&self) {
        self.changes.send_modify(|changes| {
            changes.resources += 1;
            changes.prompts += 1;
        });
    }

    /// Who reads the log from now on; the first one does.
    pub(super) fn read_by(&self, reader: impl Fn(&Bytes) -> Told + Send + Sync + 'static) {
        let _ = self.reader.set(Box::new(reader));
    }

    /// A log message that names no call.
    pub(super) fn logged(&self, message: &Bytes) -> Told {
        self.reader.get().map_or(Told::ByItsCall, |reader| reader(message))
    }

    pub(super) fn updated(&self, uri: &str) {
        // Without a follower there is nobody to tell.
        let _ = self.updates.send(uri.into());
    }
}

/// The calls in flight over HTTP that can be reached beside their own streams: those that ask for
/// progress, and those whose clients can be asked. Other calls never come here.
#[derive(Debug, Default)]
pub(super) struct NotificationRouter {
    calls: Mutex<HashMap<u64, Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    sender: mpsc::Sender<Bytes>,
    client_capabilities: ClientCapabilities,
}

/// A call's place, left when dropped.
#[derive(Debug)]
pub(super) struct Registration {
    router: Arc<NotificationRouter>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.router.calls().remove(&self.id);
    }
}

impl NotificationRouter {
    /// Enters a call.
    pub(super) fn enter(
        self: &Arc<Self>,
        id: u64,
        sender: mpsc::Sender<Bytes>,
        client_capabilities: ClientCapabilities,
    ) -> Registration {
        self.calls().insert(id, Waiter { sender, client_capabilities });
        Registration { router: self.clone(), id }
    }

    /// Where a message goes.
    pub(super) fn way(&self, message: &[u8]) -> Destination {
        let calls: Vec<(u64, ClientCapabilities)> =
            self.calls().iter().map(|(id, waiter)| (*id, waiter.client_capabilities)).collect();
        inbound::way(message, calls.into_iter())
    }

    /// Gives a message to a call; false if it has gone or has no room.
    pub(super) fn tell(&self, id: u64, message: Bytes) -> bool {
        self.calls().get(&id).is_some_and(|waiter| waiter.sender.try_send(message).is_ok())
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Waiter>> {
        self.calls.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS: &[u8] = br#"{"id":1,"method":"roots/list"}"#;

    #[test]
    fn a_call_is_reached_until_its_place_is_left() {
        let router = Arc::new(NotificationRouter::default());
        let (sender, mut heard) = mpsc::channel(1);
        let client_capabilities =
            ClientCapabilities { roots: true, ..ClientCapabilities::default() };
        let place = router.enter(7, sender, client_capabilities);
        assert!(matches!(router.way(ASKS), Destination::Call(7, Some(_))));
        assert!(router.tell(7, Bytes::from_static(ASKS)));
        assert!(!router.tell(7, Bytes::new()), "there is no room");
        assert_eq!(heard.try_recv().unwrap(), ASKS);
        drop(place);
        assert!(matches!(router.way(ASKS), Destination::Reply(_)));
        assert!(!router.tell(7, Bytes::new()));
    }

    #[test]
    fn news_are_counted() {
        let server_events = ServerEvents::default();
        let changes = server_events.changes.subscribe();
        server_events.changed(ChangedList::Prompts);
        server_events.reconnected();
        server_events.changed(ChangedList::Tools);
        assert_eq!(*changes.borrow(), Changes { resources: 1, prompts: 2 });
        server_events.updated("file:///a");
        let mut updates = server_events.updates.subscribe();
        server_events.updated("file:///b");
        assert_eq!(&*updates.try_recv().unwrap(), "file:///b");
    }
}
