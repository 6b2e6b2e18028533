//! Streams for a changing set of resources or tasks of a modern server. A stream reports only the keys for which it was
//! opened, so each changed set needs a new `subscriptions/listen`.
//!
//! ```text
//! set changes ─▶ opening ── confirmed ──▶ current ── ends ──▶ backoff ─▶ opening
//!                  │  the one before it stays open meanwhile       its keys may have changed unseen
//!                  └─ refused ─▶ the one before it stays; its keys are tried in halves
//! ```
//!
//! A server that has forgotten one task refuses each set that contains it as a whole. A key that is refused alone is
//! excluded until no follower requests it, so that it does not block other keys.
//!
//! The previous stream is closed once the new one is confirmed, so that changes of the set do not cause missed
//! notifications and do not affect other followers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::followed_tasks::FollowedById;
use crate::handle::Upstream;
use crate::listen::{Line, ListenEnd, ReopenBackoff, elapsed, run_stream};
use crate::notifications::{Followed, SUBSCRIPTION_LIMIT, WantedResources};

/// Time limit for a server to confirm a stream while the set changes.
const CONFIRM_LIMIT: Duration = Duration::from_secs(10);
/// Number of refusals after which the next attempt is delayed, as after the end of a stream.
const MAX_REFUSALS: u32 = 32;
/// Number of keys refused alone, without a confirmed stream, after which a server counts as not supporting these
/// streams.
const MAX_ALONE: u32 = 8;

/// Names of the filter's members.
const RESOURCES: &str = "resourceSubscriptions";
const TASKS: &str = "taskIds";

type Keys = BTreeSet<Arc<str>>;
/// Keys that the server agreed to follow; `None` means all requested keys.
type Honored = Option<Keys>;
type Stream = Pin<Box<dyn Future<Output = ListenEnd> + Send>>;

/// Follows the subscribed resources of a modern server. Clients read resources after subscribing, so no notification is
/// sent for a new key.
pub(super) async fn follow_resources(upstream: Arc<Upstream>, line: Line) {
    let set = FollowedSet {
        member: RESOURCES,
        keys: |resources: &WantedResources| resources.wanted.keys().cloned().collect(),
        notifies_of_new: false,
        confirm_limit: CONFIRM_LIMIT,
        open: |params, confirm| stream(&upstream, &line, (RESOURCES, params), confirm),
        notify: |uri: &str| upstream.server_events.updated(uri),
        publish: |state| drop(upstream.subscriptions.followed.send_replace(state)),
    };
    let wanted = upstream.subscriptions.wanted.subscribe();
    until_retired(&upstream, set.follow(wanted)).await;
}

/// Follows the tasks of a modern server that clients follow. A task may have changed before it was followed, so a
/// notification is sent for each new key.
pub(super) async fn follow_tasks(upstream: Arc<Upstream>, line: Line) {
    let set = FollowedSet {
        member: TASKS,
        keys: |tasks: &FollowedById| tasks.keys().cloned().collect(),
        notifies_of_new: true,
        confirm_limit: CONFIRM_LIMIT,
        open: |params, confirm| stream(&upstream, &line, (TASKS, params), confirm),
        notify: |task: &str| upstream.server_events.task_changed(task),
        publish: |_| {},
    };
    let wanted = upstream.server_events.tasks.wanted();
    until_retired(&upstream, set.follow(wanted)).await;
}

fn stream(
    upstream: &Arc<Upstream>,
    line: &Line,
    (member, params): (&'static str, String),
    confirm: oneshot::Sender<Honored>,
) -> Stream {
    let (upstream, line) = (Arc::clone(upstream), line.clone());
    Box::pin(async move {
        let (opened, is_open) = oneshot::channel();
        let confirming = async {
            if let Ok(honored) = is_open.await {
                // Sending fails if nothing awaits the confirmation any more.
                let _ = confirm.send(honored);
            }
            pending::<ListenEnd>().await
        };
        let opened = |acknowledgment: &[u8]| {
            let _ = opened.send(honored_keys(acknowledgment, member));
        };
        tokio::select! {
            end = run_stream(&upstream, &line, &params, opened) => end,
            end = confirming => end,
        }
    })
}

/// Keys in the `member` of an acknowledgment: the keys that the server agreed to follow (MCP 2026-07-28
/// §Subscriptions). `None` if the member is missing.
fn honored_keys(acknowledgment: &[u8], member: &str) -> Honored {
    #[derive(Deserialize)]
    struct Acknowledgment {
        params: Agreed,
    }
    #[derive(Deserialize)]
    struct Agreed {
        notifications: BTreeMap<String, Value>,
    }
    let Acknowledgment { params: Agreed { mut notifications } } =
        serde_json::from_slice(acknowledgment).ok()?;
    let keys = match notifications.remove(member) {
        // The member is not part of the core protocol, so the code of the server that sends acknowledgments may not
        // know it.
        None if member == TASKS => return None,
        keys => keys.unwrap_or_default(),
    };
    let keys = keys.as_array().map(Vec::as_slice).unwrap_or_default();
    Some(keys.iter().filter_map(Value::as_str).map(Arc::from).collect())
}

/// Ends `following` when the server's entry is replaced; from then on, the replacement server reports the changes.
async fn until_retired(upstream: &Upstream, following: impl Future<Output = ()>) {
    tokio::select! {
        () = upstream.retired() => {}
        () = following => {}
    }
}

/// A changing set, and callbacks for following it.
struct FollowedSet<Of, Open, Notify, Publish> {
    /// Member of the filter that holds the keys.
    member: &'static str,
    keys: fn(&Of) -> Keys,
    /// Whether a new key may have changed before it was followed.
    notifies_of_new: bool,
    /// Time limit for the server to confirm a stream; after it, a changed set replaces the attempt.
    confirm_limit: Duration,
    /// Opens a stream with these params, which sends its confirmation.
    open: Open,
    /// Notifies followers of a key that may have changed.
    notify: Notify,
    /// Publishes the followed keys.
    publish: Publish,
}

/// Stream for these keys.
struct OpenStream {
    keys: Keys,
    began: Instant,
    /// Completes when the server confirms the stream; `None` afterwards.
    confirmed: Option<oneshot::Receiver<Honored>>,
    stream: Stream,
}

enum Progress {
    /// The stream is confirmed for its keys, except these.
    Confirmed(Keys),
    Ended(ListenEnd),
}

impl OpenStream {
    /// Waits for the confirmation, then for the end of the stream. Cancel-safe.
    async fn progress(&mut self) -> Progress {
        let Some(confirmed) = &mut self.confirmed else {
            return Progress::Ended((&mut self.stream).await);
        };
        let (honored, ended) = tokio::select! {
            biased;
            Ok(honored) = &mut *confirmed => (honored, None),
            end = &mut self.stream => match confirmed.try_recv() {
                Ok(honored) => (honored, Some(end)),
                Err(_) => return Progress::Ended(end),
            },
        };
        self.confirmed = None;
        if let Some(end) = ended {
            // The stream ended immediately.
            self.stream = Box::pin(ready(end));
        }
        let Some(honored) = honored else { return Progress::Confirmed(Keys::new()) };
        if honored.is_disjoint(&self.keys) {
            return match honored.len() >= self.keys.len() {
                // The server returned as many keys, but in a different spelling, so all keys count as followed.
                true => Progress::Confirmed(Keys::new()),
                false => Progress::Ended(ListenEnd::Refused),
            };
        }
        let all = std::mem::take(&mut self.keys);
        let (followed, others) = all.into_iter().partition(|key| honored.contains(key));
        self.keys = followed;
        Progress::Confirmed(others)
    }

    /// Keys that are not in the `other` set.
    fn keys_beside(&self, other: Option<&Self>) -> Keys {
        match other {
            Some(other) => self.keys.difference(&other.keys).cloned().collect(),
            None => self.keys.clone(),
        }
    }
}

/// Keys refused by the server, and the bisection of refused sets.
#[derive(Debug, Default)]
struct RefusedKeys {
    /// Keys refused alone, which are excluded until no follower requests them.
    keys: Keys,
    /// Keys excluded while the other keys of a refused set are tried.
    held_back: Keys,
    /// Keys of a stream confirmed during the bisection; the refused keys are not among them.
    trusted: Keys,
    /// Number of refusals since the last pause.
    refusals: u32,
    /// Number of keys refused alone before a stream was confirmed; `None` afterwards.
    alone: Option<u32>,
}

/// Next step after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterRefusal {
    TryOthers,
    Pause,
    /// The server does not support these streams.
    GiveUp,
}

impl RefusedKeys {
    fn new() -> Self {
        Self { alone: Some(0), ..Self::default() }
    }

    /// Wanted keys that should be followed now.
    fn without(&mut self, wanted: Keys) -> Keys {
        // A key that was removed and added again has the same text in a new allocation; such a key is tried again.
        let is_wanted = |key: &Arc<str>| wanted.get(key).is_some_and(|it| Arc::ptr_eq(it, key));
        for keys in [&mut self.keys, &mut self.held_back, &mut self.trusted] {
            keys.retain(is_wanted);
        }
        let is_left_out = |key: &Arc<str>| self.keys.contains(key) || self.held_back.contains(key);
        wanted.into_iter().filter(|key| !is_left_out(key)).collect()
    }

    /// Records a confirmed stream for these keys, without the `others`.
    fn confirmed(&mut self, keys: &Keys, others: Keys) {
        self.keys.extend(others);
        self.trusted = if self.held_back.is_empty() { Keys::new() } else { keys.clone() };
        self.held_back.clear();
        self.alone = None;
    }

    /// The server's answers: these keys are confirmed, and the recorded ones are refused.
    fn beside(&self, confirmed: Keys) -> Followed {
        Followed::Answered { confirmed, refused: self.keys.clone() }
    }

    /// Marks the wanted keys as followed. Returns whether held-back keys should be tried now.
    fn settled(&mut self) -> bool {
        self.trusted.clear();
        !std::mem::take(&mut self.held_back).is_empty()
    }

    /// Records the refusal of a set; keys with a `current` stream are tried last.
    fn refused(&mut self, set: &Keys, current: Option<&Keys>) -> AfterRefusal {
        let mut suspects: Vec<_> = set.difference(&self.trusted).cloned().collect();
        suspects.sort_by_key(|key| current.is_some_and(|keys| keys.contains(key)));
        self.refusals += 1;
        match suspects.len() {
            // The server has just accepted all of these keys, so none of them can be the cause.
            0 => {
                self.trusted.clear();
                return AfterRefusal::Pause;
            }
            1 => {
                self.keys.extend(suspects);
                self.held_back.clear();
                if let Some(alone) = &mut self.alone {
                    *alone += 1;
                    if *alone == MAX_ALONE {
                        return AfterRefusal::GiveUp;
                    }
                }
            }
            many => self.held_back.extend(suspects.into_iter().skip(many / 2)),
        }
        if self.refusals < MAX_REFUSALS {
            return AfterRefusal::TryOthers;
        }
        self.refusals = 0;
        AfterRefusal::Pause
    }
}

/// Records since when each key has been waiting for a stream.
fn note_waiting(waiting: &mut BTreeMap<Arc<str>, Instant>, all: &Keys, followed: Option<&Keys>) {
    let waits = |key: &Arc<str>| followed.is_none_or(|followed| !followed.contains(key));
    waiting.retain(|key, _| all.contains(key) && waits(key));
    for key in all.iter().filter(|key| waits(key)) {
        waiting.entry(Arc::clone(key)).or_insert_with(Instant::now);
    }
}

async fn progress(stream: &mut Option<OpenStream>) -> Progress {
    match stream {
        Some(stream) => stream.progress().await,
        None => pending().await,
    }
}

impl<Of, Open, Notify, Publish> FollowedSet<Of, Open, Notify, Publish>
where
    Open: Fn(String, oneshot::Sender<Honored>) -> Stream,
    Notify: Fn(&str),
    Publish: Fn(Followed),
{
    /// Follows `wanted` until the connection is lost or the server turns out not to support it.
    async fn follow(&self, mut wanted: watch::Receiver<Of>) {
        (self.publish)(Followed::None);
        // Keys whose changes may have been missed, including on the previous connection.
        let mut missed = (self.keys)(&wanted.borrow());
        let (mut current, mut opening) = (None::<OpenStream>, None::<OpenStream>);
        let (mut backoff, mut retry_at) = (ReopenBackoff::default(), None);
        let mut refused = RefusedKeys::new();
        // Keys without a stream, each with the time since which it has had none.
        let mut waiting = BTreeMap::<Arc<str>, Instant>::new();
        loop {
            let all = (self.keys)(&wanted.borrow_and_update());
            note_waiting(&mut waiting, &all, current.as_ref().map(|it| &it.keys));
            let now = refused.without(all);
            missed.retain(|key| now.contains(key) || refused.held_back.contains(key));
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
            if is_open && refused.settled() {
                continue;
            }
            if !is_open && opening.is_none() && retry_at.is_none() {
                opening = Some(self.open(now.clone()));
            }
            let outdated = opening.as_ref().filter(|it| it.keys != now);
            let replace_at = outdated.map(|it| it.began + self.confirm_limit);
            let (lived, end) = tokio::select! {
                progress = progress(&mut current) => match (current.take(), progress) {
                    (Some(ended), Progress::Ended(end)) => {
                        (self.publish)(Followed::None);
                        if end == ListenEnd::Refused {
                            refused.trusted.clear();
                            refused.refused(&ended.keys, None);
                        }
                        missed.extend(ended.keys);
                        (ended.began.elapsed(), end)
                    }
                    (_, Progress::Confirmed(_)) | (None, _) => continue,
                },
                progress = progress(&mut opening) => match (opening.take(), progress) {
                    (Some(opened), Progress::Confirmed(others)) => {
                        // Subscribers stop waiting before a confirmation this late, so changes may have been missed.
                        let late = waiting.iter().filter(|(_, at)| at.elapsed() >= SUBSCRIPTION_LIMIT);
                        missed.extend(late.map(|(key, _)| Arc::clone(key)));
                        missed.retain(|key| {
                            let is_followed = opened.keys.contains(key);
                            if is_followed {
                                (self.notify)(key);
                            }
                            !is_followed
                        });
                        refused.confirmed(&opened.keys, others);
                        (self.publish)(refused.beside(opened.keys.clone()));
                        if let Some(before) = current.replace(opened) {
                            // Held-back keys are without a stream for some time.
                            missed.extend(before.keys_beside(current.as_ref()));
                        }
                        continue;
                    }
                    (Some(failed), Progress::Ended(ListenEnd::Refused)) => {
                        missed.extend(failed.keys_beside(current.as_ref()));
                        let before = current.as_ref().map(|it| &it.keys);
                        match refused.refused(&failed.keys, before) {
                            AfterRefusal::TryOthers => {}
                            AfterRefusal::Pause => {
                                let delay = backoff.delay(Duration::ZERO, None);
                                retry_at = Some(Instant::now() + delay);
                            }
                            AfterRefusal::GiveUp => {
                                (self.publish)(Followed::Refused);
                                return;
                            }
                        }
                        let followed = current.as_ref().map(|it| it.keys.clone());
                        (self.publish)(refused.beside(followed.unwrap_or_default()));
                        continue;
                    }
                    (Some(failed), Progress::Ended(end)) => {
                        // The keys may change until the next attempt.
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
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let asked = match end {
                ListenEnd::Ended(asked) => asked,
                // The server refused the stream after it had confirmed it.
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
    use std::cell::RefCell;
    use std::sync::Mutex;

    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;

    /// Opened stream, as its server sees it.
    struct Opened {
        keys: Vec<String>,
        confirm: oneshot::Sender<Honored>,
        /// Ends the stream; the channel closes once the proxy has dropped the stream.
        end: oneshot::Sender<ListenEnd>,
    }

    /// Follows a set until `script` ends. `script` gets the set, the opened streams and the notified keys.
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
            () = set.follow(receiver) => panic!("it is no longer followed"),
            () = script(wanted, streams, &notified) => {}
        }
    }

    thread_local! {
        /// Keys used so far in this test, so that a key that remains in the set keeps its allocation.
        static KNOWN: RefCell<Keys> = RefCell::default();
    }

    fn keys(of: &[&str]) -> Keys {
        KNOWN.with_borrow_mut(|known| {
            let key = |key: &&str| match known.get(*key) {
                Some(known) => Arc::clone(known),
                None => {
                    let key = Arc::from(*key);
                    known.insert(Arc::clone(&key));
                    key
                }
            };
            of.iter().map(key).collect()
        })
    }

    fn taken(notified: &Mutex<Vec<String>>) -> Vec<String> {
        std::mem::take(&mut notified.lock().unwrap())
    }

    /// Yields, so that the other tasks can run.
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
                first.confirm.send(None).unwrap();
                turn().await;
                assert_eq!(taken(notified), of_first);
                wanted.send_replace(keys(&["a", "b", "c"]));
                let second = streams.recv().await.unwrap();
                assert_eq!(second.keys, ["a", "b", "c"]);
                turn().await;
                assert!(!first.end.is_closed(), "the new one is not confirmed");
                second.confirm.send(None).unwrap();
                turn().await;
                assert!(first.end.is_closed());
                assert_eq!(taken(notified), of_new, "the others were followed throughout");
                wanted.send_replace(keys(&["b"]));
                let third = streams.recv().await.unwrap();
                third.confirm.send(None).unwrap();
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
            first.confirm.send(None).unwrap();
            turn().await;
            taken(notified);
            // The stream ends while the next one is being opened.
            wanted.send_replace(keys(&["a", "b", "c"]));
            let second = streams.recv().await.unwrap();
            first.end.send(ListenEnd::Ended(None)).unwrap();
            turn().await;
            second.confirm.send(None).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["a", "b", "c"]);
            second.end.send(ListenEnd::Ended(None)).unwrap();
            let third = streams.recv().await.unwrap();
            third.confirm.send(None).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["a", "b", "c"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_refused_key_does_not_block_other_keys() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let first = streams.recv().await.unwrap();
            first.confirm.send(None).unwrap();
            turn().await;
            taken(notified);
            wanted.send_replace(keys(&["a", "b", "odd"]));
            for expected in [&["a", "b", "odd"][..], &["odd"]] {
                let refused = streams.recv().await.unwrap();
                assert_eq!(refused.keys, expected);
                refused.end.send(ListenEnd::Refused).unwrap();
                turn().await;
            }
            assert!(!first.end.is_closed() && streams.try_recv().is_err());
            wanted.send_replace(keys(&["a", "b", "c", "odd"]));
            let second = streams.recv().await.unwrap();
            assert_eq!(second.keys, ["a", "b", "c"]);
            second.confirm.send(None).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["c"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_only_acknowledged_keys_count_as_followed() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let both = streams.recv().await.unwrap();
            assert_eq!(both.keys, ["a", "b"]);
            both.confirm.send(Some(keys(&["b", "other"]))).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["b"]);
            assert!(!both.end.is_closed() && streams.try_recv().is_err(), "`a` is not asked again");
            wanted.send_replace(keys(&["a", "b", "c"]));
            let next = streams.recv().await.unwrap();
            assert_eq!(next.keys, ["b", "c"]);
            next.confirm.send(Some(Keys::new())).unwrap();
            assert_eq!(streams.recv().await.unwrap().keys, ["c"], "refused as a whole");
            assert!(!both.end.is_closed());
        })
        .await;
    }

    #[tokio::test]
    async fn pro_13_key_that_was_removed_and_added_again_is_requested_again() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, _| {
            let both = streams.recv().await.unwrap();
            both.confirm.send(Some(keys(&["b"]))).unwrap();
            turn().await;
            // The key was removed and added again before the set was read.
            let both = keys(&["b"]).into_iter().chain([Arc::from("a")]).collect();
            wanted.send_replace(both);
            assert_eq!(streams.recv().await.unwrap().keys, ["a", "b"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_13_acknowledgment_in_another_spelling_covers_all_keys() {
        following((true, CONFIRM_LIMIT), async |_wanted, mut streams, notified| {
            let both = streams.recv().await.unwrap();
            both.confirm.send(Some(keys(&["A", "B"]))).unwrap();
            turn().await;
            assert_eq!(taken(notified), ["a", "b"]);
        })
        .await;
    }

    #[test]
    fn pro_13_acknowledgment_names_the_followed_keys() {
        let honored = |acknowledgment: &str| honored_keys(acknowledgment.as_bytes(), RESOURCES);
        let of = |notifications: &str| {
            honored(&format!(
                r#"{{"method":"notifications/subscriptions/acknowledged","params":{{{notifications}}}}}"#
            ))
        };
        assert_eq!(
            of(r#""notifications":{"resourceSubscriptions":["a","b\/c",1]}"#),
            Some(keys(&["a", "b/c"]))
        );
        for none in ["{}", r#"{"toolsListChanged":true}"#, r#"{"resourceSubscriptions":true}"#] {
            assert_eq!(of(&format!("\"notifications\":{none}")), Some(Keys::new()), "{none}");
        }
        for silent in ["", r#""notifications":null"#] {
            assert_eq!(of(silent), None, "{silent}");
        }
        assert_eq!(honored(""), None);
        let tasks = |notifications: &str| {
            honored_keys(
                format!(r#"{{"params":{{"notifications":{notifications}}}}}"#).as_bytes(),
                TASKS,
            )
        };
        assert_eq!(tasks("{}"), None);
        assert_eq!(tasks(r#"{"taskIds":["t"]}"#), Some(keys(&["t"])));
    }

    #[tokio::test]
    async fn pro_43_first_set_that_is_refused_is_tried_in_halves() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            wanted.send_replace(keys(&["a", "b", "c", "odd"]));
            let mut standing = Vec::new();
            let (followed, tried) = served(&mut streams, &mut standing, &["a", "b", "c"]).await;
            assert_eq!(followed, ["a", "b", "c"], "after {tried} attempts");
            let notified: BTreeSet<_> = taken(notified).into_iter().collect();
            assert_eq!(notified.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        })
        .await;
    }

    /// Confirmed stream: its keys, and the sender that ends it, which is kept so that the stream stays open.
    type Opening = (Vec<String>, oneshot::Sender<ListenEnd>);

    /// Confirms only streams for `known` keys, until no further stream is opened. Returns the keys followed at the end
    /// and the number of attempts.
    async fn served(
        streams: &mut mpsc::UnboundedReceiver<Opened>,
        standing: &mut Vec<Opening>,
        known: &[&str],
    ) -> (Vec<String>, u32) {
        let mut tried = 0;
        loop {
            turn().await;
            let Ok(opened) = streams.try_recv() else { break };
            tried += 1;
            assert!(tried < 1000);
            if opened.keys.iter().all(|key| known.contains(&&**key)) {
                // Fails if the stream was abandoned for another set.
                if opened.confirm.send(None).is_ok() {
                    standing.push((opened.keys, opened.end));
                }
            } else {
                let _ = opened.end.send(ListenEnd::Refused);
            }
        }
        (standing.last().map(|it| it.0.clone()).unwrap_or_default(), tried)
    }

    #[tokio::test]
    async fn pro_43_forgotten_task_does_not_block_new_tasks() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let mut standing = Vec::new();
            let all = served(&mut streams, &mut standing, &["a", "b"]).await;
            assert_eq!(all.0, ["a", "b"]);
            taken(notified);
            // The server forgets `a` while its stream is open.
            wanted.send_replace(keys(&["a", "b", "c"]));
            let all = served(&mut streams, &mut standing, &["b", "c"]).await;
            assert_eq!(all.0, ["b", "c"], "after {} attempts", all.1);
            let notified = taken(notified);
            assert!(
                ["b", "c"].iter().all(|key| notified.iter().any(|it| it == key)),
                "{notified:?}"
            );
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_held_back_key_is_tried_after_the_others_were_removed() {
        following((true, CONFIRM_LIMIT), async |wanted, mut streams, _| {
            let both = streams.recv().await.unwrap();
            both.end.send(ListenEnd::Refused).unwrap();
            let first = streams.recv().await.unwrap();
            assert_eq!(first.keys, ["a"]);
            wanted.send_replace(keys(&["b"]));
            assert_eq!(streams.recv().await.unwrap().keys, ["b"]);
        })
        .await;
    }

    #[tokio::test]
    async fn pro_43_stream_refused_after_confirmation_is_bisected_for_the_rejected_key() {
        following((true, CONFIRM_LIMIT), async |_wanted, mut streams, _| {
            // The same order as over a pipe, where a refusal arrives after the confirmation.
            for expected in [&["a", "b"][..], &["a"]] {
                let opened = streams.recv().await.unwrap();
                assert_eq!(opened.keys, expected);
                opened.confirm.send(None).unwrap();
                turn().await;
                if expected.len() > 1 {
                    opened.end.send(ListenEnd::Refused).unwrap();
                } else {
                    let next = streams.recv().await.unwrap();
                    assert_eq!(next.keys, ["a", "b"]);
                    next.end.send(ListenEnd::Refused).unwrap();
                    turn().await;
                    assert!(streams.try_recv().is_err(), "`b` is left out");
                    assert!(!opened.end.is_closed());
                }
            }
        })
        .await;
    }

    #[test]
    fn pro_43_attempts_at_refused_sets_pause_and_finally_stop() {
        let mut refused = RefusedKeys::new();
        let wanted: Keys = (0..64).map(|key| Arc::from(key.to_string())).collect();
        let mut steps = Vec::new();
        while steps.last() != Some(&AfterRefusal::GiveUp) && steps.len() < 1000 {
            let set = refused.without(wanted.clone());
            steps.push(refused.refused(&set, None));
        }
        assert!(steps.len() < 64, "{}", steps.len());
        assert_eq!(refused.keys.len() as u32, MAX_ALONE);
        let mut refused = RefusedKeys::default();
        let steps: Vec<_> =
            (0..MAX_REFUSALS).map(|n| refused.refused(&keys(&[&n.to_string()]), None)).collect();
        assert_eq!(steps.iter().filter(|it| **it == AfterRefusal::Pause).count(), 1);
    }

    #[tokio::test]
    async fn pro_13_resource_may_have_changed_during_a_failed_attempt() {
        following((false, CONFIRM_LIMIT), async |wanted, mut streams, notified| {
            let first = streams.recv().await.unwrap();
            first.confirm.send(None).unwrap();
            turn().await;
            taken(notified);
            wanted.send_replace(keys(&["a", "b", "c"]));
            let failed = streams.recv().await.unwrap();
            failed.end.send(ListenEnd::Ended(Some(Duration::ZERO))).unwrap();
            let second = streams.recv().await.unwrap();
            second.confirm.send(None).unwrap();
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
                    assert!(streams.try_recv().is_err(), "toggling a set does not block followers");
                    slow.confirm.send(None).unwrap();
                    assert_eq!(streams.recv().await.unwrap().keys, ["c"]);
                }
            })
            .await;
        }
    }
}
