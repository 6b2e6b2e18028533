//! Whether the node that a request was made to still lives, with the start that it was made to: looked at for as long as its
//! answer is waited for, since one that has lost its power, or its way to here, closes no connection.
//!
//! It is found out from what requests to nodes go by ([`LivingNodes`]): whoever says nothing to the store is dead to both, and
//! while the store is away nobody dies.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::living_nodes::{LivingNodes, NodeState};
use super::peer_wire::PeerSender;

/// How often it is looked at, while nothing comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A connection on which nothing comes is tried after so long, and then as often,
const TRY_EVERY: Duration = Duration::from_secs(10);
/// this many times, before it is given up.
#[cfg(not(windows))]
const TRIES: u32 = 3;
/// What was sent and is not acknowledged for so long ends a connection.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// The start of a node that something was asked of.
#[derive(Debug)]
pub(super) struct PeerLife {
    living: Arc<ArcSwap<LivingNodes>>,
    of: PeerSender,
    /// When it is looked at next; `None` before something was waited for.
    look: Option<Pin<Box<Sleep>>>,
}

impl PeerLife {
    pub(super) fn new(living: Arc<ArcSwap<LivingNodes>>, of: PeerSender) -> Self {
        Self { living, of, look: None }
    }

    fn goes_on(&self) -> bool {
        let living = self.living.load();
        living.get(self.of.node.as_str()).is_some_and(|view| {
            let has_boot = view.heartbeat.as_ref().is_some_and(|it| it.boot == self.of.boot);
            // Of two processes with one name each is seen in turn.
            view.state == NodeState::Living && (has_boot || view.twice)
        })
    }

    /// Ready once it lives no more.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let look = self.look.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_EVERY)));
            ready!(look.as_mut().poll(cx));
            look.as_mut().reset(Instant::now() + LOOK_EVERY);
            if !self.goes_on() {
                return Poll::Ready(());
            }
        }
    }

    /// Why there is no answer then.
    pub(super) fn end_words() -> String {
        "it lives no more, or was started anew".to_owned()
    }
}

/// Has the system find out that nobody is at the other end any more: of a node that the store hears and this one does not.
pub(super) fn ends_when_unheard(tcp: &TcpStream) {
    let socket = SockRef::from(tcp);
    let tries = TcpKeepalive::new().with_time(TRY_EVERY).with_interval(TRY_EVERY);
    #[cfg(not(windows))]
    let tries = tries.with_retries(TRIES);
    let _ = socket.set_tcp_keepalive(&tries);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::config::NodeName;
    use crate::fleet::heartbeat::tests::example;
    use crate::fleet::heartbeat::{BootId, Heartbeat};
    use crate::fleet::living_nodes::{BeatRead, NodeWatch};

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    /// What a node sees that reads these heartbeats of `a`, one a second.
    fn seen(beats: impl IntoIterator<Item = Option<BeatRead>>) -> LivingNodes {
        let mut watch = NodeWatch::new(name("me"), BootId([9; 16]));
        watch.there_are([name("a")]);
        for (at, beat) in beats.into_iter().enumerate() {
            watch.sees(&name("a"), beat, (at as u64 * 1_000, 1_000_000_000), true);
        }
        watch.snapshot(None)
    }

    fn beat(boot: u8, number: u64) -> Option<BeatRead> {
        Some(Ok(Heartbeat { boot: BootId([boot; 16]), ..example(boot, number, 1_000_000_000) }))
    }

    #[tokio::test]
    async fn whoever_was_asked_is_waited_for_as_long_as_it_lives_with_that_start() {
        let lives = || seen([beat(1, 1), beat(1, 2)]);
        let last = Heartbeat { stopping: true, ..example(1, 3, 1_000_000_000) };
        let stopped = seen([beat(1, 1), beat(1, 2), Some(Ok(last))]);
        let silent = seen([beat(1, 1), beat(1, 2)].into_iter().chain(vec![None; 9]));
        let anew = seen([beat(1, 1), beat(1, 2), beat(2, 1)]);
        let twice = seen([beat(1, 1), beat(1, 2), beat(2, 1), beat(1, 3), beat(2, 2)]);
        for (what, now, goes_on) in [
            ("lives", lives(), true),
            ("away", lives().unseen("no store".into()), true),
            ("twice", twice, true),
            ("silent", silent, false),
            ("stopped", stopped, false),
            ("anew", anew, false),
            ("gone", LivingNodes::default(), false),
        ] {
            let of = PeerSender { node: name("a"), boot: BootId([1; 16]) };
            let mut life = PeerLife::new(Arc::new(ArcSwap::from_pointee(now)), of);
            assert_eq!(life.goes_on(), goes_on, "{what}");
            if !goes_on {
                std::future::poll_fn(|cx| life.poll_end(cx)).await;
            }
        }
    }
}
