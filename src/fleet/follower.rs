//! The segments of other nodes, followed from the store into copies of their logs, until the node ends. Decides nothing
//! (`following`); lists, fetches, opens beside the runtime, and writes.
//!
//! ```text
//! data_dir/fleet/index/fleet      the fleet that is followed
//! data_dir/fleet/index/NODE~1     the copy of a node's log (`activity::replica`); a damaged one makes room for NODE~2
//! ```
//!
//! Several nodes have their turn at a time (`TURNS`), who waits longest first: a store that is far away is asked for
//! many nodes at once, and one that does not answer for a node keeps no other from being followed. Whoever can write into the store
//! can put folders there that are no node's, as many as are listed: chains come before them, and each is tried ever more seldom.
//!
//! Bounds: [`MAX_FOLLOWED`] nodes; for each a database of some 10 MB in memory, and on disk what `activity.retention_days` and
//! its siblings allow a log. Of a node that has its turn three segments are fetched at a time, each of at most 64 MiB; of all
//! nodes three (`OPENED`) are open at a time, each of at most 512 MiB (as this program seals, below 32 MiB).

mod fleet_pin;
mod follow_context;
mod followed_chain;
mod index_copy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use self::follow_context::FollowSettings;
use self::follow_context::{FollowContext, LONGEST_WAIT, NotFollowed};
use self::followed_chain::FollowedChain;
use super::bucket::Bucket;
use super::config::NodeName;
use super::fleet_index::{FleetIndex, MAX_FOLLOWED};
use super::joining::{FLEET, FleetObject, NODES};
use crate::io::background_task::BackgroundTask;
use crate::os::private;

/// Nodes that have their turn at a time.
const TURNS: usize = 4;
/// Longest wait for turns that are not over when the node ends.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// What follows.
#[derive(Debug)]
pub struct FleetFollower(BackgroundTask);

impl FleetFollower {
    /// Starts to follow what lies in `bucket`, into `index`.
    #[must_use]
    pub fn start(
        settings: FollowSettings,
        bucket: Bucket,
        index: Arc<FleetIndex>,
        runtime: &Handle,
    ) -> Self {
        Self(BackgroundTask::start(runtime, |ending| run(settings, bucket, index, ending)))
    }

    /// Ends, with what is being written; who does not answer is not waited for.
    pub async fn end(self) {
        self.0.end_within(ENDS_WITHIN).await;
    }
}

async fn run(
    settings: FollowSettings,
    bucket: Bucket,
    index: Arc<FleetIndex>,
    mut ending: watch::Receiver<bool>,
) {
    let context = FollowContext::new(settings, bucket, index);
    let mut driver = Driver::new(&context);
    let mut works = FuturesUnordered::new();
    loop {
        works.extend(std::iter::from_fn(|| driver.next()));
        tokio::select! {
            Some(done) = works.next() => driver.done(done),
            () = tokio::time::sleep_until(driver.next_at().into()) => {}
            _ = ending.wait_for(|ends| *ends) => break,
        }
    }
    // What is being written is there then; what the store does not answer is asked again after the next start.
    while works.next().await.is_some() {}
}

/// Who follows all of them: says what is done next, and keeps what came of it.
struct Driver<'context> {
    context: &'context FollowContext,
    /// When it is looked for nodes next; `None` while it is looked.
    look_at: Option<Instant>,
    fleet: Arc<str>,
    /// Nodes that are not followed yet.
    found: BTreeMap<Arc<str>, FoundNode>,
    /// Those that are, and when they have their turn; `None` for one that begins or has its turn.
    chains: BTreeMap<Arc<str>, Option<(Instant, FollowedChain)>>,
    /// So many begin or have their turn, and so many of them begin.
    busy: usize,
    beginning: usize,
}

/// A node that is not followed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FoundNode {
    /// When it is tried.
    at: Instant,
    /// How often its claim was no good.
    failures: u32,
}

/// What was done.
enum Done {
    Looked(Result<FleetSeen, NotFollowed>),
    Began(Arc<str>, u32, Result<FollowedChain, NotFollowed>),
    Turn(Arc<str>, FollowedChain, Result<Instant, NotFollowed>),
}

/// What was seen when it was looked for nodes.
struct FleetSeen {
    fleet: String,
    /// Nodes that this one is to follow.
    nodes: Vec<String>,
}

impl<'context> Driver<'context> {
    fn new(context: &'context FollowContext) -> Self {
        Self {
            context,
            look_at: Some(Instant::now()),
            fleet: "".into(),
            found: BTreeMap::new(),
            chains: BTreeMap::new(),
            busy: 0,
            beginning: 0,
        }
    }

    /// Who has the next turn and when, while there is one to have.
    fn next_turn(&self, now: Instant) -> Option<(Instant, &Arc<str>)> {
        if self.busy >= TURNS {
            return None;
        }
        let chains = self.chains.iter();
        let chain = chains.filter_map(|(name, chain)| Some((chain.as_ref()?.0, name))).min();
        match (chain, self.next_found(now)) {
            // A chain comes first, but one turn is left to those that are not followed yet: many chains would keep them from it.
            (Some(chain), Some(found)) if found.0 <= now && chain.0 <= now => {
                Some(if self.beginning == 0 { found } else { chain })
            }
            (chain, found) => chain.into_iter().chain(found).min(),
        }
    }

    /// Which node that is not followed is tried next, and when: of those that could be tried now, who failed least.
    fn next_found(&self, now: Instant) -> Option<(Instant, &Arc<str>)> {
        let has_room = self.chains.len() < MAX_FOLLOWED;
        // One turn is left to the chains, once there are any.
        let is_left = self.beginning + 1 < TURNS || self.chains.len() == self.beginning;
        let found = self.found.iter().filter(|_| has_room && is_left);
        let found = found.map(|(name, node)| (node.at.max(now), node.failures, node.at, name));
        found.min().map(|(_, _, at, name)| (at, name))
    }

    /// When there is something to do next, if nothing is done before.
    fn next_at(&self) -> Instant {
        let now = Instant::now();
        let turn = self.next_turn(now).map(|(at, _)| at);
        let next = turn.into_iter().chain(self.look_at).min();
        next.unwrap_or_else(|| now + LONGEST_WAIT)
    }

    /// What is to be done now beside what is done.
    fn next(&mut self) -> Option<BoxFuture<'context, Done>> {
        let (now, context) = (Instant::now(), self.context);
        if self.look_at.take_if(|at| *at <= now).is_some() {
            return Some(Box::pin(async { Done::Looked(look(context).await) }));
        }
        let name = Arc::clone(self.next_turn(now).filter(|(at, _)| *at <= now)?.1);
        self.busy += 1;
        let failures = self.found.remove(&name).map_or(0, |node| node.failures);
        match self.chains.entry(Arc::clone(&name)).or_default().take() {
            Some((_, mut chain)) => Some(Box::pin(async move {
                let next = chain.turn(context).await;
                Done::Turn(name, chain, next)
            })),
            None => {
                self.beginning += 1;
                let fleet = Arc::clone(&self.fleet);
                Some(Box::pin(async move {
                    let began = FollowedChain::begin(context, &fleet, &name).await;
                    Done::Began(name, failures, began)
                }))
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Looked(seen) => self.looked(seen),
            Done::Began(name, failures, began) => {
                self.busy -= 1;
                self.beginning -= 1;
                match began {
                    Ok(chain) => self.waits(name, Instant::now(), chain),
                    Err(error) => self.not_begun(name, failures, &error),
                }
            }
            Done::Turn(name, chain, next) => {
                self.busy -= 1;
                let again = match next {
                    _ if self.context.index.take_damaged(&name) => {
                        chain.give_up(self.context);
                        Instant::now()
                    }
                    Ok(next) => return self.waits(name, next, chain),
                    Err(error) if error.is_damage() => {
                        chain.give_up(self.context);
                        Instant::now()
                    }
                    // It is opened again, as it is on the disk.
                    Err(error) => {
                        chain.close(self.context);
                        self.context.index.cannot(&name, error.to_string());
                        Instant::now() + self.context.look_every()
                    }
                };
                if self.chains.remove(&name).is_some() {
                    self.found.insert(name, FoundNode { at: again, failures: 0 });
                }
            }
        }
    }

    /// A node could not be followed, whose claim was no good so many times before.
    fn not_begun(&mut self, name: Arc<str>, failures: u32, error: &NotFollowed) {
        // Of names that are nobody's there may be many, and the status has them all.
        if failures == 0 {
            tracing::warn!(node = &*name, %error, "a node cannot be followed");
        } else {
            tracing::debug!(node = &*name, %error, "a node cannot be followed");
        }
        self.context.index.cannot(&name, error.to_string());
        let failures = if error.is_of_claim() { failures.saturating_add(1) } else { failures };
        if self.chains.remove(&name).is_some() {
            let at = Instant::now() + self.context.rest_after(failures);
            self.found.insert(name, FoundNode { at, failures });
        }
    }

    /// A chain waits for its turn, unless nothing of its fleet is followed any more.
    fn waits(&mut self, name: Arc<str>, at: Instant, chain: FollowedChain) {
        if let Some(place) = self.chains.get_mut(&name) {
            *place = Some((at, chain));
        }
    }

    fn looked(&mut self, seen: Result<FleetSeen, NotFollowed>) {
        self.look_at = Some(Instant::now() + self.context.look_every());
        let error = match seen {
            Ok(FleetSeen { fleet, nodes }) => {
                self.fleet = fleet.into();
                let nodes: BTreeSet<_> = nodes.into_iter().collect();
                self.context.index.there_are(|name| nodes.contains(name));
                let new = nodes.into_iter().filter(|name| !self.chains.contains_key(&**name));
                let fresh = FoundNode { at: Instant::now(), failures: 0 };
                let tried = |name: String| {
                    let node = self.found.get(&*name).copied().unwrap_or(fresh);
                    (name.into(), node)
                };
                self.found = new.map(tried).collect();
                let is_full = self.chains.len() >= MAX_FOLLOWED;
                let left = self.found.keys().filter(|_| is_full).map(ToString::to_string);
                self.context.index.set_left(left.collect());
                None
            }
            Err(error) => {
                tracing::warn!(%error, "the fleet's nodes cannot be looked for");
                if matches!(error, NotFollowed::OtherFleet { .. }) {
                    self.found.clear();
                    self.chains.clear();
                }
                Some(error.to_string())
            }
        };
        self.context.index.set_error(error);
    }
}

/// Looks for nodes, in the fleet that was followed from the first.
async fn look(context: &FollowContext) -> Result<FleetSeen, NotFollowed> {
    let FollowContext { settings, bucket, .. } = context;
    let fleet = bucket.get(FLEET).await?;
    let fleet = FleetObject::fleet(&fleet)
        .ok_or_else(|| NotFollowed::Claim(format!("{FLEET} is not what a fleet writes")))?
        .to_string();
    private::folder(&settings.folder)?;
    match fleet_pin::known(&settings.folder)?.map(|known| known.to_string()) {
        Some(known) if known == fleet => {}
        Some(known) => {
            let store = bucket.shown().to_string();
            return Err(NotFollowed::OtherFleet { store, fleet, known });
        }
        None => fleet_pin::set(&settings.folder, &fleet)?,
    }
    let is_ours = |name: &String| {
        *name != settings.own.as_str()
            && settings.role.holds(name)
            && NodeName::parse(name).is_some()
    };
    let nodes = bucket.folders(NODES).await?.into_iter().filter(is_ours).collect();
    Ok(FleetSeen { fleet, nodes })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tempfile::TempDir;

    use super::*;
    use crate::activity::Retention;
    use crate::fleet::config::IndexRole;
    use crate::fleet::joining::claim_key;
    use crate::fleet::node_key::NodeKey;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn context(dir: &TempDir) -> FollowContext {
        let [store, folder] = ["store", "index"].map(|name| dir.path().join(name));
        for made in [&store, &folder] {
            std::fs::create_dir_all(made).unwrap();
        }
        let settings = FollowSettings {
            role: IndexRole::Whole,
            own: NodeName::parse("own").unwrap(),
            folder,
            flush: Duration::from_secs(1),
            retention: Retention { days: 0, max_records: 0, max_size_mb: 0 },
        };
        let bucket = Bucket::open(&format!("file://{}", store.display())).unwrap();
        FollowContext::new(settings, bucket, Arc::new(FleetIndex::new(IndexRole::Whole)))
    }

    fn sees(driver: &mut Driver<'_>, names: &[&str]) {
        let nodes = names.iter().map(|name| (*name).to_owned()).collect();
        driver.looked(Ok(FleetSeen { fleet: ID.to_owned(), nodes }));
        // However long the test takes.
        driver.look_at = None;
    }

    /// Who has the next turn now, and has it from now on.
    fn turn(driver: &mut Driver<'_>) -> Option<Arc<str>> {
        let now = Instant::now();
        let name = Arc::clone(driver.next_turn(now).filter(|(at, _)| *at <= now)?.1);
        drop(driver.next());
        assert!(!driver.found.contains_key(&name), "{name} has its turn");
        Some(name)
    }

    /// What is followed next has no claim.
    fn fails(driver: &mut Driver<'_>) -> Arc<str> {
        let now = Instant::now();
        let failures =
            driver.next_turn(now).and_then(|(_, name)| driver.found.get(name)).unwrap().failures;
        let name = turn(driver).unwrap();
        let error = NotFollowed::Claim("it is not there".to_owned());
        driver.done(Done::Began(Arc::clone(&name), failures, Err(error)));
        name
    }

    fn told(context: &FollowContext) -> Vec<String> {
        context.index.report().not_followed.into_keys().collect()
    }

    #[tokio::test]
    async fn nothing_is_told_or_kept_of_a_node_that_is_not_there_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let context = context(&dir);
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["a", "b"]);
        assert_eq!([fails(&mut driver), fails(&mut driver)].map(|it| it.to_string()), ["a", "b"]);
        assert_eq!(turn(&mut driver), None, "neither is tried again at once");
        assert_eq!(told(&context), ["a", "b"]);
        let rests = driver.found["b"];
        assert_eq!(rests.failures, 1);
        sees(&mut driver, &["b", "c"]);
        assert_eq!(told(&context), ["b"]);
        assert_eq!(driver.found.keys().map(|it| &**it).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(driver.found["b"], rests, "it rests as long as it was to");
        for round in 0..100 {
            sees(&mut driver, &[format!("x{round}").as_str()]);
            fails(&mut driver);
            assert_eq!((told(&context).len(), driver.found.len()), (1, 1), "round {round}");
        }
    }

    #[tokio::test]
    async fn a_claim_that_is_no_good_is_read_ever_more_seldom() {
        let dir = tempfile::tempdir().unwrap();
        let context = context(&dir);
        let every = context.look_every();
        let rests = [0, 1, 2, 3, 4].map(|failures| context.rest_after(failures));
        assert_eq!(rests, [1, 1, 2, 4, 8].map(|times| every * times));
        assert_eq!(context.rest_after(u32::MAX), Duration::from_secs(300));
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["a"]);
        for failures in 1..20 {
            let before = Instant::now();
            fails(&mut driver);
            let node = driver.found.get_mut("a").unwrap();
            assert_eq!(node.failures, failures);
            assert!(node.at >= before + context.rest_after(failures), "{failures} failures");
            node.at = Instant::now();
        }
        // A store that does not answer says nothing of a claim.
        let name = turn(&mut driver).unwrap();
        let before = driver.beginning;
        let late = crate::fleet::bucket::BucketError::Late(every);
        driver.done(Done::Began(name, 0, Err(late.into())));
        assert_eq!((driver.found["a"].failures, driver.beginning), (0, before - 1));
    }

    #[tokio::test]
    async fn chains_come_before_names_that_have_none_and_leave_them_one_turn() {
        let dir = tempfile::tempdir().unwrap();
        let context = context(&dir);
        let key = NodeKey::of_seed(1).verifier(ID, "real").unwrap();
        let claim = format!(r#"{{"format":1,"node":"real","log":"{ID}","key":"{key}"}}"#);
        context.bucket.put(&claim_key("real"), Bytes::from(claim)).await.unwrap();
        let chain = FollowedChain::begin(&context, ID, "real").await.unwrap();
        let mut driver = Driver::new(&context);
        // They wait longer than the chain does.
        sees(&mut driver, &["junk0", "junk1", "junk2", "junk3", "junk4", "new", "real"]);
        driver.found.remove("real");
        for (name, node) in &mut driver.found {
            node.failures = if &**name == "new" { 0 } else { 3 };
        }
        driver.found.get_mut("new").unwrap().at = Instant::now();
        driver.chains.insert("real".into(), Some((Instant::now(), chain)));
        let turns: Vec<_> = std::iter::from_fn(|| turn(&mut driver)).collect();
        let turns: Vec<_> = turns.iter().map(|it| &**it).collect();
        assert_eq!(turns, ["new", "real", "junk0", "junk1"]);

        // While it has nothing to do one turn is left to it.
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["junk0", "junk1", "junk2", "junk3"]);
        driver.chains.insert("real".into(), None);
        assert_eq!(std::iter::from_fn(|| turn(&mut driver)).count(), TURNS - 1);
        // Where nothing is followed they have all.
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["junk0", "junk1", "junk2", "junk3", "junk4"]);
        assert_eq!(std::iter::from_fn(|| turn(&mut driver)).count(), TURNS);
    }
}
