//! Notifications of upstreams about their lists and resources, on their way to clients.
//!
//! Owns the translation: which change of a server is which change of ours, under which URI clients
//! know a resource, and how often clients are told. A server that tells of changes all the time is
//! handed on ever more seldom ([`Pace`]), and changes of many servers at once are one to clients.
//! Which client receives them, the faces decide.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

use crate::catalog::Notice;
use crate::catalog::exposed;
use crate::proxy::state::Proxy;
use crate::upstream::Upstream;
use crate::upstream::pace::Pace;

/// Clients are told of a list at once, and then not again for so long: whatever changes meanwhile is
/// one change.
const GATHER: Duration = Duration::from_millis(100);

/// Lists that are another than clients were told.
#[derive(Default)]
struct Changed {
    resources: Notify,
    prompts: Notify,
}

/// Follows every upstream for as long as it is polled, those that come later among them.
pub async fn follow(proxy: Arc<Proxy>) {
    let changed = Changed::default();
    tokio::join!(
        each(&proxy, &changed),
        tell_of_tools(&proxy),
        tell(&proxy, Notice::Resources, || changed.resources.notified()),
        tell(&proxy, Notice::Prompts, || changed.prompts.notified()),
    );
}

/// Follows each upstream as long as it is in force.
async fn each(proxy: &Proxy, changed: &Changed) {
    let mut swaps = proxy.upstreams.swaps();
    let mut followed = BTreeSet::new();
    let mut following = FuturesUnordered::new();
    loop {
        swaps.borrow_and_update();
        for upstream in proxy.upstreams.iter() {
            if followed.insert(upstream.key()) {
                following.push(async move {
                    tokio::select! {
                        () = one(&upstream, proxy, changed) => {}
                        () = upstream.retired() => changed.leaves(&upstream),
                    }
                    upstream.key()
                });
            }
        }
        tokio::select! {
            swapped = swaps.changed() => {
                if swapped.is_err() {
                    return;
                }
            }
            Some(ended) = following.next() => {
                // One that is in force for good keeps its number.
                if proxy.upstreams.iter().all(|upstream| upstream.key() != ended) {
                    followed.remove(&ended);
                }
            }
        }
    }
}

impl Changed {
    /// What a server has listed is not listed any more, or by another.
    fn leaves(&self, upstream: &Upstream) {
        let offers = upstream.offers();
        if offers.resources {
            self.resources.notify_one();
        }
        if offers.prompts {
            self.prompts.notify_one();
        }
    }
}

/// Tells clients that a list has changed, whenever it has.
async fn tell<F: Future<Output = ()>>(proxy: &Proxy, notice: Notice, changed: impl Fn() -> F) {
    loop {
        changed().await;
        proxy.catalog.notify(notice.clone());
        tokio::time::sleep(GATHER).await;
    }
}

/// The same of the tools; and of our own, if what they say of the servers is another than before.
async fn tell_of_tools(proxy: &Proxy) {
    let mut told = proxy.overview.of(&proxy.catalog.load());
    loop {
        proxy.catalog.changed().await;
        proxy.catalog.notify(Notice::Tools);
        let now = proxy.overview.of(&proxy.catalog.load());
        if *now != *told {
            proxy.catalog.notify(Notice::OwnTools);
        }
        told = now;
        tokio::time::sleep(GATHER).await;
    }
}

/// One list of a server, and when clients hear that it changed.
#[derive(Default)]
struct List {
    pace: Pace,
    due: Option<tokio::time::Instant>,
}

impl List {
    /// It has changed; whether the operator is to be told that there is no end of that.
    fn changed(&mut self, now: Instant) -> bool {
        if self.due.is_some() {
            return false;
        }
        let look = self.pace.changed(now);
        let after = if look.calm { Duration::ZERO } else { look.after };
        self.due = Some((now + after).into());
        look.tell
    }

    /// Resolves when clients are to hear of it, if they are.
    async fn due(&mut self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
        self.due = None;
    }
}

/// Tells the operator of a server whose lists change all the time, if they are to be told.
fn tell_restless(upstream: &Upstream, which: &'static str, tell: bool) {
    if tell {
        let server = upstream.name();
        tracing::warn!(%server, "it says all the time that its {which} have changed: clients are told ever more seldom");
    }
}

async fn one(upstream: &Upstream, proxy: &Proxy, told: &Changed) {
    let (mut changes, mut updates) = (upstream.changes(), upstream.updates());
    let mut known = *changes.borrow_and_update();
    let mut before = upstream.offers();
    let (mut resources, mut prompts) = (List::default(), List::default());
    loop {
        tokio::select! {
            () = resources.due() => told.resources.notify_one(),
            () = prompts.due() => told.prompts.notify_one(),
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *changes.borrow_and_update();
                let offers = upstream.offers();
                // A server that comes and goes without any changes no list of ours.
                if now.resources != known.resources && (offers.resources || before.resources) {
                    tell_restless(upstream, "resources", resources.changed(Instant::now()));
                }
                if now.prompts != known.prompts && (offers.prompts || before.prompts) {
                    tell_restless(upstream, "prompts", prompts.changed(Instant::now()));
                }
                (known, before) = (now, offers);
                // At each connection: whoever has gone without a word wants nothing any more.
                for uri in upstream.subscriptions() {
                    if !proxy.list_cache.subscribers.any(&exposed::uri(upstream.name(), &uri)) {
                        upstream.unsubscribe(&uri);
                    }
                }
            }
            updated = updates.recv() => match updated {
                Ok(uri) => {
                    let uri = exposed::uri(upstream.name(), &uri);
                    proxy.catalog.notify(Notice::Updated(uri.into()));
                }
                Err(RecvError::Lagged(missed)) => {
                    let server = upstream.name();
                    if upstream.may_log() {
                        tracing::warn!(%server, missed, "updates of resources were told to nobody");
                    }
                }
                Err(RecvError::Closed) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_changes_all_the_time_is_told_of_ever_more_seldom() {
        let (mut list, start) = (List::default(), Instant::now());
        let (mut now, mut told, mut restless) = (start, Vec::new(), 0);
        for _ in 0..10 {
            restless += usize::from(list.changed(now));
            let due = list.due;
            assert!(!list.changed(now), "what comes while it is due is the same change");
            assert_eq!(list.due, due);
            now = list.due.take().expect("clients are to hear of it").into_std();
            told.push((now - start).as_millis());
        }
        let waits: Vec<_> = told.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(told[0], 0, "the first at once");
        assert_eq!(waits[..7], [500, 1000, 2000, 4000, 8000, 16_000, 30_000]);
        assert!(waits[7..].iter().all(|wait| *wait == 30_000), "{waits:?}");
        assert_eq!(restless, 1);
    }
}
