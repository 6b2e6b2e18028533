//! The segments of other nodes, followed from the store into copies of their logs, until the node ends. Decides nothing
//! (`following`); lists, fetches, opens beside the runtime, and writes.
//!
//! ```text
//! data_dir/fleet/index/fleet      the fleet that is followed
//! data_dir/fleet/index/NODE~1     the copy of a node's log (`activity::replica`); a damaged one makes room for NODE~2
//! ```
//!
//! Several nodes have their turn at a time (`TURNS`), who waits longest first: a store that is far away is asked for
//! many nodes at once, and one that does not answer for a node keeps no other from being followed.
//!
//! Bounds: [`MAX_FOLLOWED`] nodes; for each a database of some 10 MB in memory, and on disk what `activity.retention_days` and
//! its siblings allow a log. Of a node that has its turn three segments are fetched at a time, each of at most 64 MiB; of all
//! nodes three (`OPENED`) are open at a time, each of at most 512 MiB (as this program seals, below 32 MiB).

mod fleet_pin;
mod follow_context;
mod followed_chain;
mod index_copy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use self::follow_context::FollowSettings;
use self::follow_context::{FollowContext, LONGEST_WAIT, NotFollowed};
use self::followed_chain::FollowedChain;
use super::bucket::Bucket;
use super::config::NodeName;
use super::fleet_index::{FleetIndex, MAX_FOLLOWED};
use super::joining::{FLEET, FleetObject, NODES};
use crate::os::private;

/// Nodes that have their turn at a time.
const TURNS: usize = 4;
/// Longest wait for turns that are not over when the node ends.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// What follows.
#[derive(Debug)]
pub struct FleetFollower {
    task: JoinHandle<()>,
    ends: watch::Sender<bool>,
}

impl FleetFollower {
    /// Starts to follow what lies in `bucket`, into `index`.
    #[must_use]
    pub fn start(
        settings: FollowSettings,
        bucket: Bucket,
        index: Arc<FleetIndex>,
        runtime: &Handle,
    ) -> Self {
        let (ends, ending) = watch::channel(false);
        let task = runtime.spawn(run(settings, bucket, index, ending));
        Self { task, ends }
    }

    /// Ends, with what is being written; who does not answer is not waited for.
    pub async fn end(self) {
        self.ends.send_replace(true);
        let _ = self.task.await;
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
    let rest = async { while works.next().await.is_some() {} };
    let _ = tokio::time::timeout(ENDS_WITHIN, rest).await;
}

/// Who follows all of them: says what is done next, and keeps what came of it.
struct Driver<'context> {
    context: &'context FollowContext,
    /// When it is looked for nodes next; `None` while it is looked.
    look_at: Option<Instant>,
    fleet: Arc<str>,
    /// Nodes that are not followed yet, and when that is tried.
    found: BTreeMap<Arc<str>, Instant>,
    /// Those that are, and when they have their turn; `None` for one that begins or has its turn.
    chains: BTreeMap<Arc<str>, Option<(Instant, FollowedChain)>>,
    /// So many begin or have their turn.
    busy: usize,
}

/// What was done.
enum Done {
    Looked(Result<FleetSeen, NotFollowed>),
    Began(Arc<str>, Result<FollowedChain, NotFollowed>),
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
        }
    }

    /// Who has the next turn and when, while there is one to have.
    fn next_turn(&self) -> Option<(Instant, &Arc<str>)> {
        let waiting = self.chains.iter();
        let waiting = waiting.filter_map(|(name, chain)| Some((chain.as_ref()?.0, name)));
        let has_room = self.chains.len() < MAX_FOLLOWED;
        let found = self.found.iter().filter(|_| has_room).map(|(name, at)| (*at, name));
        waiting.chain(found).min().filter(|_| self.busy < TURNS)
    }

    /// When there is something to do next, if nothing is done before.
    fn next_at(&self) -> Instant {
        let turn = self.next_turn().map(|(at, _)| at);
        let next = turn.into_iter().chain(self.look_at).min();
        next.unwrap_or_else(|| Instant::now() + LONGEST_WAIT)
    }

    /// What is to be done now beside what is done.
    fn next(&mut self) -> Option<BoxFuture<'context, Done>> {
        let (now, context) = (Instant::now(), self.context);
        if self.look_at.take_if(|at| *at <= now).is_some() {
            return Some(Box::pin(async { Done::Looked(look(context).await) }));
        }
        let name = Arc::clone(self.next_turn().filter(|(at, _)| *at <= now)?.1);
        self.busy += 1;
        self.found.remove(&name);
        match self.chains.entry(Arc::clone(&name)).or_default().take() {
            Some((_, mut chain)) => Some(Box::pin(async move {
                let next = chain.turn(context).await;
                Done::Turn(name, chain, next)
            })),
            None => {
                let fleet = Arc::clone(&self.fleet);
                Some(Box::pin(async move {
                    let began = FollowedChain::begin(context, &fleet, &name).await;
                    Done::Began(name, began)
                }))
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Looked(seen) => self.looked(seen),
            Done::Began(name, began) => {
                self.busy -= 1;
                match began {
                    Ok(chain) => self.waits(name, Instant::now(), chain),
                    Err(error) => {
                        tracing::warn!(node = &*name, %error, "a node cannot be followed");
                        self.context.index.cannot(&name, error.to_string());
                        if self.chains.remove(&name).is_some() {
                            self.found.insert(name, Instant::now() + self.context.look_every());
                        }
                    }
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
                    self.found.insert(name, again);
                }
            }
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
                let new = nodes.into_iter().filter(|name| !self.chains.contains_key(&**name));
                let tried = |name: String| {
                    let at = self.found.get(&*name).copied().unwrap_or_else(Instant::now);
                    (name.into(), at)
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
