//! Follower task: replicates other nodes' segments from the store into local copies of their logs, until shutdown.
//! [`ChainFollower`](crate::chain::follow::ChainFollower) makes the decisions; this module lists, fetches, opens
//! segments on blocking threads, and writes.
//!
//! ```text
//! data_dir/fleet/index/fleet      the fleet that is followed
//! data_dir/fleet/index/NODE~1     the copy of a node's log (`activity::replica`); a damaged one is replaced by NODE~2
//! ```
//!
//! Up to `TURNS` nodes are processed concurrently, the longest waiting first, so that a distant store is queried for
//! several nodes concurrently, and a hanging request does not delay other nodes. Anyone with write access to the
//! store can add stray folders, up to the number that is listed. So known chains have priority, and each stray is
//! retried with backoff.
//!
//! Bounds: [`MAX_FOLLOWED`] nodes, each with a database that takes about 10 MB of memory, and as much disk space as
//! `activity.retention_days` and related settings allow. Per node, three segments are fetched at a time, each at most
//! 64 MiB. In total, three (`OPENED`) are open at a time, each at most 512 MiB (below 32 MiB if sealed by this
//! program).

mod followed_chain;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use mcpproxy_runtime::io::background_task::BackgroundTask;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::os::{private, state_file};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::bucket::Bucket;
use crate::chain::place::{FLEET, FleetObject, NODES, StoreMismatch};
use crate::config::NodeName;
use crate::fleet_logs::{FleetIndex, MAX_FOLLOWED};
use crate::follower::followed_chain::{FollowContext, FollowedChain, LONGEST_WAIT, NotFollowed};
use crate::node_state::FleetId;

pub use crate::follower::followed_chain::FollowSettings;

/// Number of nodes processed concurrently.
const TURNS: usize = 4;
/// Time limit for polls in progress at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct FleetFollower(BackgroundTask);

impl FleetFollower {
    /// Starts to follow the chains in `bucket` into `index`.
    pub fn start(
        settings: FollowSettings,
        bucket: Bucket,
        index: Arc<FleetIndex>,
        runtime: &Handle,
    ) -> Self {
        Self(BackgroundTask::start(runtime, |ending| run(settings, bucket, index, ending)))
    }

    /// Stops after pending writes; pending store requests are abandoned.
    pub async fn end(self) {
        self.0.end_within(SHUTDOWN_LIMIT).await;
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
    // Pending writes finish; pending requests are repeated after the next start.
    while works.next().await.is_some() {}
}

/// Scheduler of all chains: selects the next action and records its outcome.
struct Driver<'context> {
    context: &'context FollowContext,
    /// Time of the next listing of nodes; `None` while listing.
    look_at: Option<Instant>,
    fleet: Arc<str>,
    /// Nodes not followed yet.
    found: BTreeMap<Arc<str>, FoundNode>,
    /// Followed chains with the time of their next turn; `None` while starting or in a turn.
    chains: BTreeMap<Arc<str>, Option<(Instant, FollowedChain)>>,
    /// Number of nodes that are starting or in a turn; `beginning` counts only those that are starting.
    busy: usize,
    beginning: usize,
}

/// Node not followed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FoundNode {
    /// Time of the next attempt.
    at: Instant,
    /// Number of failed attempts because of its claim.
    failures: u32,
}

enum Done {
    Looked(Result<FleetSeen, NotFollowed>),
    Began(Arc<str>, u32, Result<FollowedChain, NotFollowed>),
    Turn(Arc<str>, FollowedChain, Result<Instant, NotFollowed>),
}

/// Result of listing the nodes.
struct FleetSeen {
    fleet: String,
    /// Nodes to follow according to the index role.
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

    /// Next turn and its time, if there is a free slot.
    fn next_turn(&self, now: Instant) -> Option<(Instant, &Arc<str>)> {
        if self.busy >= TURNS {
            return None;
        }
        let chains = self.chains.iter();
        let chain = chains.filter_map(|(name, chain)| Some((chain.as_ref()?.0, name))).min();
        match (chain, self.next_found(now)) {
            // Chains have priority, but one slot is reserved for new nodes, which many chains would otherwise
            // block.
            (Some(chain), Some(found)) if found.0 <= now && chain.0 <= now => {
                Some(if self.beginning == 0 { found } else { chain })
            }
            (chain, found) => chain.into_iter().chain(found).min(),
        }
    }

    /// Next new node to try, and when: of the due ones, the one with the fewest failures.
    fn next_found(&self, now: Instant) -> Option<(Instant, &Arc<str>)> {
        let has_room = self.chains.len() < MAX_FOLLOWED;
        // One slot is reserved for chains, if there are any.
        let is_left = self.beginning + 1 < TURNS || self.chains.len() == self.beginning;
        let found = self.found.iter().filter(|_| has_room && is_left);
        let found = found.map(|(name, node)| (node.at.max(now), node.failures, node.at, name));
        found.min().map(|(_, _, at, name)| (at, name))
    }

    /// Time of the next action.
    fn next_at(&self) -> Instant {
        let now = Instant::now();
        let turn = self.next_turn(now).map(|(at, _)| at);
        let next = turn.into_iter().chain(self.look_at).min();
        next.unwrap_or_else(|| now + LONGEST_WAIT)
    }

    /// Next action to run concurrently.
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
                    // The copy is reopened in its state on disk.
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

    /// Records a failed start, after this many earlier failures because of the claim.
    fn not_begun(&mut self, name: Arc<str>, failures: u32, error: &NotFollowed) {
        // There may be many stray names, and the status lists all of them.
        if failures == 0 {
            peer_line!(warn, LinePeer::Node(&name), node = &*name, %error, "cannot follow a node");
        } else {
            tracing::debug!(node = &*name, %error, "cannot follow a node");
        }
        self.context.index.cannot(&name, error.to_string());
        let failures = if error.is_of_claim() { failures.saturating_add(1) } else { failures };
        if self.chains.remove(&name).is_some() {
            let at = Instant::now() + self.context.rest_after(failures);
            self.found.insert(name, FoundNode { at, failures });
        }
    }

    /// Schedules a chain's next turn, unless it is no longer followed.
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
                peer_line!(warn, LinePeer::Part("fleet store"), %error, "cannot list the fleet's nodes");
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

/// Lists the nodes, provided that the store still contains the pinned fleet.
async fn look(context: &FollowContext) -> Result<FleetSeen, NotFollowed> {
    let FollowContext { settings, bucket, .. } = context;
    let fleet = bucket.find(FLEET).await?;
    let fleet = fleet.ok_or_else(|| NotFollowed::Displaced(StoreMismatch::NoFleet.to_string()))?;
    let fleet = FleetObject::fleet(&fleet)
        .ok_or_else(|| NotFollowed::Claim(format!("{FLEET} is not a valid fleet object")))?
        .to_string();
    private::folder(&settings.folder)?;
    match pinned_fleet(&settings.folder)?.map(|known| known.to_string()) {
        Some(known) if known == fleet => {}
        Some(known) => {
            let store = bucket.shown().to_string();
            return Err(NotFollowed::OtherFleet { store, fleet, known });
        }
        None => pin_fleet(&settings.folder, &fleet)?,
    }
    let is_ours = |name: &String| {
        *name != settings.own.as_str()
            && settings.role.holds(name)
            && NodeName::parse(name).is_some()
    };
    let nodes = bucket.folders(NODES).await?.into_iter().filter(is_ours).collect();
    Ok(FleetSeen { fleet, nodes })
}

const PIN_FILE: &str = "fleet";
/// Maximum size of the pin file in bytes.
const MAX_PIN_BYTES: u64 = 1024;

/// Fleet whose logs are copied into this folder, if any. A file without a valid id is a torn write from before
/// anything was copied.
pub(crate) fn pinned_fleet(folder: &Path) -> io::Result<Option<FleetId>> {
    let path = folder.join(PIN_FILE);
    let bytes = match fs::metadata(&path) {
        Ok(file) if file.len() > MAX_PIN_BYTES => return Ok(None),
        Ok(_) => fs::read(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(std::str::from_utf8(&bytes).ok().and_then(|text| FleetId::parse(text.trim())))
}

/// Pins the fleet durably.
pub(crate) fn pin_fleet(folder: &Path, fleet: &str) -> io::Result<()> {
    state_file::replace(&folder.join(PIN_FILE), fleet.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mcpproxy_activity::Retention;
    use tempfile::TempDir;

    use crate::chain::place::claim_key;
    use crate::config::IndexRole;
    use crate::node_state::NodeKey;

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
            retention: Retention {
                days: 0,
                max_records: 0,
                max_size_mb: 0,
                min_age: Duration::ZERO,
            },
        };
        let bucket = Bucket::open(&format!("file://{}", store.display())).unwrap();
        FollowContext::new(settings, bucket, Arc::new(FleetIndex::new(IndexRole::Whole)))
    }

    fn sees(driver: &mut Driver<'_>, names: &[&str]) {
        let nodes = names.iter().map(|name| (*name).to_owned()).collect();
        driver.looked(Ok(FleetSeen { fleet: ID.to_owned(), nodes }));
        // No listing becomes due, regardless of how long the test takes.
        driver.look_at = None;
    }

    /// Starts the next due turn.
    fn turn(driver: &mut Driver<'_>) -> Option<Arc<str>> {
        let now = Instant::now();
        let name = Arc::clone(driver.next_turn(now).filter(|(at, _)| *at <= now)?.1);
        drop(driver.next());
        assert!(!driver.found.contains_key(&name), "{name} is followed twice at a time");
        Some(name)
    }

    /// Starts the next turn and fails it, because the node has no valid claim.
    fn fails(driver: &mut Driver<'_>) -> Arc<str> {
        let now = Instant::now();
        let failures =
            driver.next_turn(now).and_then(|(_, name)| driver.found.get(name)).unwrap().failures;
        let name = turn(driver).unwrap();
        let error = NotFollowed::Claim("missing".to_owned());
        driver.done(Done::Began(Arc::clone(&name), failures, Err(error)));
        name
    }

    fn reported(context: &FollowContext) -> Vec<String> {
        context.index.report().not_followed.into_keys().collect()
    }

    #[tokio::test]
    async fn removed_node_is_not_reported_or_kept() {
        let dir = tempfile::tempdir().unwrap();
        let context = context(&dir);
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["a", "b"]);
        assert_eq!([fails(&mut driver), fails(&mut driver)].map(|it| it.to_string()), ["a", "b"]);
        assert_eq!(turn(&mut driver), None, "neither is retried at once");
        assert_eq!(reported(&context), ["a", "b"]);
        let rests = driver.found["b"];
        assert_eq!(rests.failures, 1);
        sees(&mut driver, &["b", "c"]);
        assert_eq!(reported(&context), ["b"]);
        assert_eq!(driver.found.keys().map(|it| &**it).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(driver.found["b"], rests, "its backoff is kept");
        for round in 0..100 {
            sees(&mut driver, &[format!("x{round}").as_str()]);
            fails(&mut driver);
            assert_eq!((reported(&context).len(), driver.found.len()), (1, 1), "round {round}");
        }
    }

    #[tokio::test]
    async fn invalid_claim_is_retried_with_backoff() {
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
        // A store error is not a fault of the claim.
        let name = turn(&mut driver).unwrap();
        let before = driver.beginning;
        let late = crate::bucket::BucketError::Late(every);
        driver.done(Done::Began(name, 0, Err(late.into())));
        assert_eq!((driver.found["a"].failures, driver.beginning), (0, before - 1));
    }

    #[tokio::test]
    async fn chains_have_priority_but_one_slot_is_for_new_names() {
        let dir = tempfile::tempdir().unwrap();
        let context = context(&dir);
        let key = NodeKey::of_seed(1).verifier(ID, "real").unwrap();
        let claim = format!(r#"{{"format":1,"node":"real","log":"{ID}","key":"{key}"}}"#);
        context.bucket.put(&claim_key("real"), Bytes::from(claim)).await.unwrap();
        let chain = FollowedChain::begin(&context, ID, "real").await.unwrap();
        let mut driver = Driver::new(&context);
        // The found nodes have waited longer than the chain.
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

        // While the chain is idle one slot is reserved for it.
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["junk0", "junk1", "junk2", "junk3"]);
        driver.chains.insert("real".into(), None);
        assert_eq!(std::iter::from_fn(|| turn(&mut driver)).count(), TURNS - 1);
        // Without chains, new nodes use all slots.
        let mut driver = Driver::new(&context);
        sees(&mut driver, &["junk0", "junk1", "junk2", "junk3", "junk4"]);
        assert_eq!(std::iter::from_fn(|| turn(&mut driver)).count(), TURNS);
    }

    #[test]
    fn torn_pin_is_ignored_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = "0123456789abcdef0123456789abcdef";
        assert_eq!(pinned_fleet(dir.path()).unwrap(), None);
        for torn in [&b""[..], b"0123", b"\xff\xfe", &[0; 32], &[b'a'; 2000]] {
            fs::write(dir.path().join(PIN_FILE), torn).unwrap();
            assert_eq!(pinned_fleet(dir.path()).unwrap(), None, "{torn:?}");
            pin_fleet(dir.path(), fleet).unwrap();
            assert_eq!(pinned_fleet(dir.path()).unwrap(), FleetId::parse(fleet));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
