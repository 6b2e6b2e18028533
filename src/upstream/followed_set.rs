//! Streams for a changing set of resources or tasks of a modern server: each changed set needs a new
//! `subscriptions/listen`, since a stream reports what it was opened for.
//!
//! ```text
//! set changes ─▶ opening ── confirmed ──▶ current ── ends ──▶ backoff ─▶ opening
//!                  │  the one before it stays open meanwhile       its keys may have changed unseen
//!                  └─ refused ─▶ the one before it stays; the new keys are tried in halves
//! ```
//!
//! A key that the server refuses is left out until nobody wants it, so that it keeps no other from being followed: a server
//! that has forgotten one task refuses a set with it as a whole.
//!
//! The stream before is closed when the new one is confirmed, so that nothing is missed when the set changes, and what
//! others follow is not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::followed_tasks::FollowedTask;
use crate::handle::Upstream;
use crate::listen::{Line, ListenEnd, ReopenBackoff, run_stream};
use crate::notifications::{Followed, WantedResources};

/// Time for a server to confirm a stream while the set changes.
const CONFIRM_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of times that refused keys are halved before all of them are left out, until the set changes.
const MAX_HALVINGS: u32 = 32;

type Keys = BTreeSet<Arc<str>>;
type Stream = Pin<Box<dyn Future<Output = ListenEnd> + Send>>;

/// Follows the subscribed resources of a modern server, whose clients read them after they have subscribed.
pub(super) async fn follow_resources(upstream: Arc<Upstream>, line: Line) {
    let set = FollowedSet {
        member: "resourceSubscriptions",
        keys: |resources: &WantedResources| resources.wanted.keys().cloned().collect(),
        notifies_of_new: false,
        confirm_limit: CONFIRM_LIMIT,
        open: |params, confirm| stream(&upstream, &line, params, confirm),
        notify: |uri: &str| upstream.server_events.updated(uri),
        publish: |state| drop(upstream.subscriptions.followed.send_replace(state)),
    };
    let wanted = upstream.subscriptions.wanted.subscribe();
    until_retired(&upstream, set.follow(wanted)).await;
}

/// Follows the tasks of a modern server that clients follow. They may have changed before that.
pub(super) async fn follow_tasks(upstream: Arc<Upstream>, line: Line) {
    let set = FollowedSet {
        member: "taskIds",
        keys: |tasks: &BTreeMap<Arc<str>, FollowedTask>| tasks.keys().cloned().collect(),
        notifies_of_new: true,
        confirm_limit: CONFIRM_LIMIT,
        open: |params, confirm| stream(&upstream, &line, params, confirm),
        notify: |task: &str| upstream.server_events.task_changed(task),
        publish: |_| {},
    };
    let wanted = upstream.server_events.tasks.wanted();
    until_retired(&upstream, set.follow(wanted)).await;
}

fn stream(
    upstream: &Arc<Upstream>,
    line: &Line,
    params: String,
    confirm: oneshot::Sender<()>,
) -> Stream {
    let (upstream, line) = (Arc::clone(upstream), line.clone());
    Box::pin(async move {
        let confirmed = || {
            // Fails if nobody waits for it any more.
            let _ = confirm.send(());
        };
        run_stream(&upstream, &line, &params, confirmed).await
    })
}

/// Ends `following` when the server's entry is replaced: the server that takes its place is asked from then on.
async fn until_retired(upstream: &Upstream, following: impl Future<Output = ()>) {
    tokio::select! {
        () = upstream.retired() => {}
        () = following => {}
    }
}

/// A changing set, and the effects of following it.
struct FollowedSet<Of, Open, Notify, Publish> {
    /// Member of the filter with the keys.
    member: &'static str,
    keys: fn(&Of) -> Keys,
    /// Whether a new key may have changed before it was followed.
    notifies_of_new: bool,
    /// Time for the server to confirm a stream; later, a changed set replaces the attempt.
    confirm_limit: Duration,
    /// Opens a stream with these params, which sends its confirmation.
    open: Open,
    /// Notifies followers of a key that it may have changed.
    notify: Notify,
    /// Publishes what is followed.
    publish: Publish,
}

/// A stream for these keys.
struct OpenStream {
    keys: Keys,
    began: Instant,
    /// Completes when the server confirms it; `None` afterwards.
    confirmed: Option<oneshot::Receiver<()>>,
    stream: Stream,
}

/// Progress of a stream.
enum Progress {
    Confirmed,
    Ended(ListenEnd),
}

impl OpenStream {
    /// Waits for the confirmation, then for the end. Cancel-safe.
    async fn progress(&mut self) -> Progress {
        let Some(confirmed) = &mut self.confirmed else {
            return Progress::Ended((&mut self.stream).await);
        };
        let ended = tokio::select! {
            biased;
            Ok(()) = &mut *confirmed => None,
            end = &mut self.stream => Some(end),
        };
        let is_confirmed = ended.is_none() || confirmed.try_recv().is_ok();
        match ended {
            Some(end) if !is_confirmed => Progress::Ended(end),
            ended => {
                self.confirmed = None;
                if let Some(end) = ended {
                    // It ended at once.
                    self.stream = Box::pin(ready(end));
                }
                Progress::Confirmed
            }
        }
    }
}

impl OpenStream {
    /// Its keys that are not those of the `other` one.
    fn keys_beside(&self, other: Option<&Self>) -> Keys {
        match other {
            Some(other) => self.keys.difference(&other.keys).cloned().collect(),
            None => self.keys.clone(),
        }
    }
}

/// Keys that a server refuses, and those of refused sets that wait while others are tried.
#[derive(Debug, Default)]
struct RefusedKeys {
    /// Left out until nobody wants them.
    keys: Keys,
    /// Left out until the next stream is confirmed, or refused for a single key.
    deferred: Keys,
    /// Number of halvings since the set changed.
    halvings: u32,
    /// A refused set without a new key.
    set: Option<Keys>,
}

impl RefusedKeys {
    /// The wanted keys to be followed now.
    fn without(&mut self, wanted: Keys) -> Keys {
        self.keys.retain(|key| wanted.contains(key));
        self.deferred.retain(|key| wanted.contains(key));
        let is_left_out = |key: &Arc<str>| self.keys.contains(key) || self.deferred.contains(key);
        wanted.into_iter().filter(|key| !is_left_out(key)).collect()
    }

    fn confirmed(&mut self) {
        self.deferred.clear();
        self.set = None;
    }

    /// Adds a refused set with these `new` keys. Returns whether nothing of them is left to be tried.
    fn add(&mut self, set: Keys, new: Keys) -> bool {
        if new.is_empty() {
            self.set = Some(set);
        } else if new.len() == 1 || self.halvings == MAX_HALVINGS {
            self.keys.extend(new);
            self.set = None;
            let is_last = self.deferred.is_empty();
            self.deferred.clear();
            return is_last;
        } else {
            self.halvings += 1;
            let half = new.len() / 2;
            self.deferred.extend(new.into_iter().skip(half));
        }
        false
    }
}

async fn progress(stream: &mut Option<OpenStream>) -> Progress {
    match stream {
        Some(stream) => stream.progress().await,
        None => pending().await,
    }
}

async fn elapsed(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

impl<Of, Open, Notify, Publish> FollowedSet<Of, Open, Notify, Publish>
where
    Open: Fn(String, oneshot::Sender<()>) -> Stream,
    Notify: Fn(&str),
    Publish: Fn(Followed),
{
    /// Follows `wanted` until the connection is lost.
    async fn follow(&self, mut wanted: watch::Receiver<Of>) {
        (self.publish)(Followed::None);
        // Changes of these may have been missed, also on the connection before.
        let mut missed = (self.keys)(&wanted.borrow());
        let (mut current, mut opening) = (None::<OpenStream>, None::<OpenStream>);
        let (mut backoff, mut retry_at) = (ReopenBackoff::default(), None);
        let mut refused = RefusedKeys::default();
        loop {
            let now = refused.without((self.keys)(&wanted.borrow_and_update()));
            missed.retain(|key| now.contains(key) || refused.deferred.contains(key));
            if self.notifies_of_new {
                let followed = current.as_ref().map(|it| &it.keys);
                let new = now.iter().filter(|key| followed.is_none_or(|it| !it.contains(*key)));
                missed.extend(new.cloned());
            }
            if now.is_empty() && current.take().is_some() {
                (self.publish)(Followed::None);
            }
            let is_open = now.is_empty() || current.as_ref().is_some_and(|it| it.keys == now);
            let is_useless = |it: &mut OpenStream| {
                let is_late = it.began.elapsed() >= self.confirm_limit;
                is_open || (is_late && it.keys != now)
            };
            if let Some(given_up) = opening.take_if(is_useless) {
                missed.extend(given_up.keys_beside(current.as_ref()));
            }
            if !is_open
                && opening.is_none()
                && retry_at.is_none()
                && refused.set.as_ref() != Some(&now)
            {
                opening = Some(self.open(now.clone()));
            }
            let outdated = opening.as_ref().filter(|it| it.keys != now);
            let replace_at = outdated.map(|it| it.began + self.confirm_limit);
            let (lived, end) = tokio::select! {
                progress = progress(&mut current) => match (current.take(), progress) {
                    (Some(ended), Progress::Ended(end)) => {
                        (self.publish)(Followed::None);
                        missed.extend(ended.keys);
                        refused.set = None;
                        (ended.began.elapsed(), end)
                    }
                    (_, Progress::Confirmed) | (None, _) => continue,
                },
                progress = progress(&mut opening) => match (opening.take(), progress) {
                    (Some(opened), Progress::Confirmed) => {
                        missed.retain(|key| {
                            let is_followed = opened.keys.contains(key);
                            if is_followed {
                                (self.notify)(key);
                            }
                            !is_followed
                        });
                        let keys = opened.keys.iter().cloned().collect();
                        (self.publish)(Followed::Confirmed(keys));
                        current = Some(opened);
                        refused.confirmed();
                        continue;
                    }
                    (Some(failed), Progress::Ended(ListenEnd::Refused)) => {
                        let new = failed.keys_beside(current.as_ref());
                        if refused.add(failed.keys, new) && current.is_none() {
                            (self.publish)(Followed::Refused);
                        }
                        continue;
                    }
                    (Some(failed), Progress::Ended(end)) => {
                        // They may change until the next attempt.
                        missed.extend(failed.keys_beside(current.as_ref()));
                        (failed.began.elapsed(), end)
                    }
                    (None, _) => continue,
                },
                () = elapsed(retry_at) => {
                    retry_at = None;
                    continue;
                }
                () = elapsed(replace_at) => continue,
                changed = wanted.changed() => match changed {
                    Ok(()) => {
                        refused.halvings = 0;
                        continue;
                    }
                    Err(_) => return,
                },
            };
            let asked = match end {
                ListenEnd::Ended(asked) => asked,
                // It was confirmed before.
                ListenEnd::Refused => None,
                ListenEnd::Disconnected => return,
            };
            retry_at = Some(Instant::now() + backoff.delay(lived, asked));
        }
    }

    fn open(&self, keys: Keys) -> OpenStream {
        let (confirm, confirmed) = oneshot::channel();
        let params = json!({"notifications": {self.member: keys}}).to_string();
        let stream = (self.open)(params, confirm);
        OpenStream { keys, began: Instant::now(), confirmed: Some(confirmed), stream }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;

    /// A stream that was opened, as its server sees it.
    struct Opened {
        keys: Vec<String>,
        confirm: oneshot::Sender<()>,
        /// Ends the stream; closed once the proxy has dropped it.
        end: oneshot::Sender<ListenEnd>,
    }

    /// Follows a set until `script` ends, which gets the set, the opened streams and the notified keys.
    async fn following(
        (notifies_of_new, confirm_limit): (bool, Duration),
        script: impl AsyncFnOnce(
            watch::Sender<Keys>,
            mpsc::UnboundedReceiver<Opened>,
            &Mutex<Vec<String>>,
        ),
    ) {
        let wanted = watch::Sender::new(keys(&["a", "b"]));
        let (opened, streams) = mpsc::unbounded_channel();
        let notified = Mutex::<Vec<String>>::default();
        let set = FollowedSet {
            member: "ids",
            keys: Keys::clone,
            notifies_of_new,
            confirm_limit,
            open: |params: String, confirm| -> Stream {
                let params: Value = serde_json::from_str(&params).unwrap();
                let keys = serde_json::from_value(params["notifications"]["ids"].clone()).unwrap();
                let (end, ended) = oneshot::channel();
                opened.send(Opened { keys, confirm, end }).unwrap();
                Box::pin(async { ended.await.unwrap_or(ListenEnd::Disconnected) })
            },
            notify: |key: &str| notified.lock().unwrap().push(key.to_owned()),
            publish: |_| {},
        };
        let receiver = wanted.subscribe();
        tokio::select! {
            () = set.follow(receiver) => panic!("it is followed no longer"),
            () = script(wanted, streams, &notified) => {}
        }
    }

    fn keys(of: &[&str]) -> Keys {
        of.iter().map(|key| Arc::from(*key)).collect()
    }

    fn taken(notified: &Mutex<Vec<String>>) -> Vec<String> {
        std::mem::take(&mut notified.lock().unwrap())
    }

    /// Lets the other side run.
    async fn turn() {
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn pro_43_changed_set_replaces_its_stream_without_a_gap() {
        for (notifies_of_new, of_first, of_new) in
            [(true, vec!["a", "b"], vec!["c"]), (false, vec!["a", "b"], vec![])]
        {
            following((notifies_of_new, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
                let first = streams.recv().await.unwrap();
                assert_eq!(first.keys, ["a", "b"]);
                assert!(taken(notified).is_empty(), "it is not confirmed");
                first.confirm.send(()).unwrap();
                turn().await;
                assert_eq!(taken(notified), of_first);
                wanted.send_replace(keys(&["a", "b", "c"]));
                let second = streams.recv().await.unwrap();
                assert_eq!(second.keys, ["a", "b", "c"]);
                turn().await;
                assert!(!first.end.is_closed(), "the new one is not confirmed");
                second.confirm.send(()).unwrap();
                turn().await;
                assert!(first.end.is_closed());
                assert_eq!(taken(notified), of_new, "the others were followed all the time");
                wanted.send_replace(keys(&["b"]));
                let third = streams.recv().await.unwrap();
                third.confirm.send(()).unwrap();
                turn().await;
                assert!(second.end.is_closed() && taken(notified).is_empty());
                wanted.send_replace(Keys::new());
                turn().await;
                assert!(third.end.is_closed());
            })
            .await;
        }
    }

    #[tokio::test]
    async fn pro_43_keys_without_a_stream_may_have_changed() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let first = streams.recv().await.unwrap();
            first.confirm.send(()).unwrap();
            turn().await;
            taken(notified);
            // It ends while the next one is being opened.
            wanted.send_replace(keys(&["a", "b", "c"]));
            let second = streams.recv().await.unwrap();
            first.end.send(ListenEnd::Ended(None)).unwrap();
            turn().await;
            second.confirm.send(()).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["a", "b", "c"]);
            second.end.send(ListenEnd::Ended(None)).unwrap();
            let third = streams.recv().await.unwrap();
            third.confirm.send(()).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["a", "b", "c"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_refused_key_keeps_no_other_from_being_followed() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let first = streams.recv().await.unwrap();
            first.confirm.send(()).unwrap();
            turn().await;
            taken(notified);
            wanted.send_replace(keys(&["a", "b", "odd"]));
            let refused = streams.recv().await.unwrap();
            refused.end.send(ListenEnd::Refused).unwrap();
            turn().await;
            assert!(!first.end.is_closed() && streams.try_recv().is_err());
            wanted.send_replace(keys(&["a", "b", "c", "odd"]));
            let second = streams.recv().await.unwrap();
            assert_eq!(second.keys, ["a", "b", "c"]);
            second.confirm.send(()).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["c"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_first_set_that_is_refused_is_tried_in_halves() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            wanted.send_replace(keys(&["a", "b", "c", "odd"]));
            let (mut tried, mut standing) = (0, None);
            while tried < 20 {
                turn().await;
                let Ok(opened) = streams.try_recv() else { break };
                tried += 1;
                if opened.keys.contains(&"odd".to_owned()) {
                    opened.end.send(ListenEnd::Refused).unwrap();
                } else {
                    opened.confirm.send(()).unwrap();
                    standing = Some((opened.keys, opened.end));
                }
            }
            let (followed, _end) = standing.unwrap();
            assert_eq!(followed, ["a", "b", "c"], "after {tried} attempts");
            assert_eq!(taken(notified), ["a", "b", "c"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_number_of_attempts_at_a_refused_set_is_limited() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, _| {
            let many: Keys = (0..1024).map(|key| Arc::from(key.to_string())).collect();
            wanted.send_replace(many);
            let mut tried = 0;
            while tried < 1000 {
                turn().await;
                let Ok(opened) = streams.try_recv() else { break };
                tried += 1;
                opened.end.send(ListenEnd::Refused).unwrap();
            }
            assert!((2..=2 * MAX_HALVINGS).contains(&tried), "{tried}");
        })
        .await;
    }

    #[tokio::test]
    async fn pro_13_resource_may_have_changed_during_a_failed_attempt() {
        following((false, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let first = streams.recv().await.unwrap();
            first.confirm.send(()).unwrap();
            turn().await;
            taken(notified);
            wanted.send_replace(keys(&["a", "b", "c"]));
            let failed = streams.recv().await.unwrap();
            failed.end.send(ListenEnd::Ended(Some(Duration::ZERO))).unwrap();
            let second = streams.recv().await.unwrap();
            second.confirm.send(()).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["c"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_unconfirmed_stream_delays_a_changed_set_for_a_limited_time() {
        for (limit, is_replaced) in [(CONFIRM_LIMIT, false), (Duration::from_millis(1), true)] {
            following((true, limit), async |wanted, mut streams, _| {
                let slow = streams.recv().await.unwrap();
                wanted.send_replace(keys(&["c"]));
                if is_replaced {
                    assert_eq!(streams.recv().await.unwrap().keys, ["c"]);
                    assert!(slow.end.is_closed());
                } else {
                    turn().await;
                    assert!(
                        streams.try_recv().is_err(),
                        "toggling a set keeps nobody from following"
                    );
                    slow.confirm.send(()).unwrap();
                    assert_eq!(streams.recv().await.unwrap().keys, ["c"]);
                }
            })
            .await;
        }
    }
}
