//! One task for each server: connect, initialize, discover, and again when it is lost, for ever.
//!
//! Owns the set of servers, how it is replaced by another while calls are under way, and their end. Servers share nothing
//! here, so a slow, dead or mute one delays nobody else. What a server's task does is `server_task`'s, what a call does
//! is not known here.
//!
//! ```text
//! replace(plan) ─┬─ stays  ─▶ the same task, connection and child
//!                ├─ starts ─▶ in force at once; calls wait for it as for any that is connecting
//!                └─ goes   ─▶ retiring: it finishes its calls, at most their time, and ends
//! ```

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

pub use super::answer::{Answer, AnswerPart};
use super::backoff::Wishes;
use super::child_environment::WithheldVariables;
use super::config::Config;
pub use super::error::{CallError, Cause, Sent};
use super::handle::CallTimeout;
pub use super::handle::Upstream;
use super::in_use::InUse;
use super::log_in::{NoLogin, WaitingLogin};
use super::login_desk::LoginDesk;
use super::peer::Peer;
use super::reaper::Reaper;
use super::server_task::ServerTask;
use super::server_tls::{Looked, OwnTls};
use super::state::{StateCell, UpstreamState};
pub use super::status::{Event, LoginOutcome, ServerState, Status, Transport};
use super::stderr_log::StderrLog;
use super::subscriptions::Subscriptions;
use super::users::Users;
use crate::catalog::Catalog;
use crate::secrets::Secrets;
use crate::tool::server_id::{ServerId, ServerIds};

/// Reports and cancellations waiting for a server's task.
const CONTROL_MESSAGES: usize = 256;
/// Most servers that have been taken out of force and finish their calls, or those of one change if it takes out more. A
/// change beyond that waits for them.
pub const MAX_RETIRING: usize = 64;
/// Longest time that a server which was taken out of force finishes calls, whatever its `call_timeout` is.
pub const MAX_DRAIN: Duration = Duration::from_secs(3600);
/// Time that a server has to end after its last call.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Attempts of one server before those of its successor begin to be counted: 2^32.
pub(super) const ATTEMPTS: u32 = 32;

/// What stands for an error that cannot be told: JSON-RPC's internal error.
const UNTELLABLE: &[u8] = br#"{"code":-32603,"message":"the server's error holds a secret"}"#;

/// All servers and their tasks.
pub struct Supervisor {
    in_force: ArcSwap<ServerSet>,
    /// Marked when there is another set.
    swaps: watch::Sender<()>,
    /// Those that finish their calls.
    retiring: Arc<Mutex<Vec<Arc<Upstream>>>>,
    places: Arc<Semaphore>,
    starter: Starter,
    ids: Mutex<ServerIds>,
    tasks: Mutex<JoinSet<()>>,
    /// True once all had been heard of: one that comes later holds up readiness no more.
    settled: AtomicBool,
}

/// One of [`MAX_RETIRING`], given back when the last who has it ends.
type RetiringPlace = Arc<OwnedSemaphorePermit>;

/// The servers of one moment.
#[derive(Default)]
struct ServerSet {
    servers: HashMap<Arc<str>, Arc<Upstream>>,
    /// In the order of the config.
    order: Vec<Arc<Upstream>>,
}

/// What every server is started with.
struct Starter {
    catalog: Arc<Catalog>,
    secrets: Arc<Secrets>,
    events: Arc<dyn Fn(Event) + Send + Sync>,
    /// Made when the first https server is connected.
    tls: Arc<OnceLock<TlsConnector>>,
    reaper: Arc<Reaper>,
    /// One at a time asks a keyring: its user is asked once, and of many that it does not answer none holds up what else
    /// has to wait for a thread.
    keyring: Arc<Semaphore>,
    stderr: StderrLog,
    runtime: Handle,
    /// How many were started.
    started: AtomicU64,
}

/// What becomes of one server of another config.
#[derive(Debug)]
pub enum ServerPlan {
    /// It stays as it is, but for this `call_timeout`.
    Stays(Duration),
    /// It is new, or takes the place of the one of that name.
    Starts(Box<Config>),
}

/// What a change of the servers came to.
#[derive(Debug, Default)]
pub struct ReplacedServers {
    /// Those that have begun, in the order of the config.
    pub started: Vec<Arc<Upstream>>,
    /// Those that finish their calls.
    pub retired: Vec<Arc<Upstream>>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.in_force.load();
        f.debug_list().entries(set.order.iter().map(|upstream| &upstream.name)).finish()
    }
}

impl Supervisor {
    /// Starts a task for each enabled server on `runtime` and returns at once. `secrets` are those
    /// of the whole config; the tokens of logins join them. `events` is called from those tasks
    /// and must not block. `reaper` is for the children, whose stderr `stderr` keeps.
    pub fn start(
        configs: Vec<(Arc<str>, Config)>,
        reaper: Reaper,
        catalog: Arc<Catalog>,
        secrets: Arc<Secrets>,
        stderr: StderrLog,
        events: impl Fn(Event) + Send + Sync + 'static,
        runtime: &Handle,
    ) -> Self {
        let supervisor = Self {
            in_force: ArcSwap::default(),
            swaps: watch::Sender::default(),
            retiring: Arc::default(),
            places: Arc::new(Semaphore::new(MAX_RETIRING)),
            starter: Starter {
                catalog,
                secrets,
                events: Arc::new(events),
                tls: Arc::default(),
                reaper: Arc::new(reaper),
                keyring: Arc::new(Semaphore::new(1)),
                stderr,
                runtime: runtime.clone(),
                started: AtomicU64::new(0),
            },
            ids: Mutex::default(),
            tasks: Mutex::default(),
            settled: AtomicBool::new(false),
        };
        let plan =
            configs.into_iter().map(|(name, config)| (name, ServerPlan::Starts(config.into())));
        supervisor.put(plan.collect(), &[]);
        supervisor
    }

    /// Puts another list of servers in force, in its order: what is not named in `plan` goes. Waits while
    /// [`MAX_RETIRING`] others finish their calls. To be called by one task alone, of a runtime with several threads.
    pub async fn replace(&self, plan: Vec<(Arc<str>, ServerPlan)>) -> ReplacedServers {
        let before = self.in_force.load_full();
        let stays = |upstream: &Arc<Upstream>| {
            plan.iter()
                .any(|(name, plan)| *name == upstream.name && matches!(plan, ServerPlan::Stays(_)))
        };
        let going = before.order.iter().filter(|upstream| !stays(upstream)).count();
        let mut places = Vec::new();
        // Of more than there are places for several share one: it would wait for itself.
        for _ in 0..going.min(MAX_RETIRING) {
            // It is never closed.
            places.extend(Arc::clone(&self.places).acquire_owned().await.ok().map(Arc::new));
        }
        // The rights of files that servers keep something in are looked at.
        tokio::task::block_in_place(|| self.put(plan, &places))
    }

    fn put(&self, plan: Vec<(Arc<str>, ServerPlan)>, places: &[RetiringPlace]) -> ReplacedServers {
        let before = self.in_force.load_full();
        let mut next = ServerSet::default();
        let mut started = Vec::new();
        for (name, plan) in plan {
            let upstream = match (plan, before.servers.get(&name)) {
                (ServerPlan::Stays(call_timeout), Some(upstream)) => {
                    upstream.call_timeout.set(call_timeout);
                    Arc::clone(upstream)
                }
                (ServerPlan::Stays(_), None) => continue,
                (ServerPlan::Starts(config), earlier) => {
                    let id = self.ids.lock().assign(&name);
                    let mut tasks = self.tasks.lock();
                    let tls = earlier.and_then(|it| it.own_tls.as_ref());
                    let upstream = self.starter.start(&name, id, *config, tls, &mut tasks);
                    if let Some(earlier) = earlier {
                        upstream.succeeds(earlier);
                        // Who wanted to be told of a resource still does.
                        let wanted = earlier.subscriptions();
                        wanted.iter().for_each(|uri| upstream.subscribe(uri, None));
                    }
                    started.push(Arc::clone(&upstream));
                    upstream
                }
            };
            next.servers.insert(name, Arc::clone(&upstream));
            next.order.push(upstream);
        }
        let in_force = |upstream: &Arc<Upstream>| {
            next.servers.get(&upstream.name).is_some_and(|now| Arc::ptr_eq(now, upstream))
        };
        let retired: Vec<_> =
            before.order.iter().filter(|upstream| !in_force(upstream)).cloned().collect();
        self.in_force.store(Arc::new(next));
        for (upstream, place) in retired.iter().zip(places.iter().cycle()) {
            self.retire(upstream, Arc::clone(place));
        }
        self.swaps.send_replace(());
        ReplacedServers { started, retired }
    }

    /// Lets a server finish its calls, and ends it.
    fn retire(&self, upstream: &Arc<Upstream>, place: RetiringPlace) {
        upstream.retire();
        self.retiring.lock().push(Arc::clone(upstream));
        let (upstream, retiring) = (Arc::clone(upstream), Arc::clone(&self.retiring));
        let mut tasks = self.tasks.lock();
        reap(&mut tasks);
        tasks.spawn_on(
            async move {
                let _place = place;
                let limit = upstream.call_timeout().min(MAX_DRAIN);
                let mut stop = upstream.stop.subscribe();
                tokio::select! {
                    () = upstream.users.gone() => {}
                    () = tokio::time::sleep(limit) => {
                        let server = &upstream.name;
                        tracing::warn!(%server, "calls that have not finished are cut off: the config has their server no more, or its entry or the files of its TLS have changed");
                    }
                    _ = stop.wait_for(Option::is_some) => {}
                }
                upstream.users.shut();
                upstream.end_taken_out(tokio::time::Instant::now() + END_LIMIT);
                upstream.over().await;
                retiring.lock().retain(|it| !Arc::ptr_eq(it, &upstream));
            },
            &self.starter.runtime,
        );
    }

    /// The server of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Upstream>> {
        self.in_force.load().servers.get(name).cloned()
    }

    /// The server of that name, with a place for a call: it may be taken out of force, and waits for the call all the
    /// same.
    #[must_use]
    pub fn enter(&self, name: &str) -> Option<InUse> {
        let mut upstream = self.get(name)?;
        loop {
            if let Some(in_use) = InUse::enter(&upstream) {
                return Some(in_use);
            }
            // It was closed after another had taken its place.
            let now = self.get(name)?;
            if Arc::ptr_eq(&now, &upstream) {
                return None;
            }
            upstream = now;
        }
    }

    /// The server of that name whose connection has this number: the one in force, or one that finishes its calls.
    #[must_use]
    pub fn connected_as(&self, name: &str, generation: u64) -> Option<Arc<Upstream>> {
        let is = |upstream: &Arc<Upstream>| upstream.key == generation >> ATTEMPTS;
        let retiring = || {
            let retiring = self.retiring.lock();
            retiring.iter().find(|it| *it.name == *name && is(it)).cloned()
        };
        self.get(name).filter(is).or_else(retiring)
    }

    /// The identity of the server of that name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ServerId> {
        self.in_force.load().servers.get(name).map(|upstream| upstream.id)
    }

    /// Every server, in the order of the config.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Upstream>> + use<> {
        self.in_force.load().order.clone().into_iter()
    }

    /// Tells when there is another set of servers, from now on.
    #[must_use]
    pub fn swaps(&self) -> watch::Receiver<()> {
        self.swaps.subscribe()
    }

    /// How many finish their calls.
    #[must_use]
    pub fn retiring(&self) -> usize {
        self.retiring.lock().len()
    }

    /// Looks at the files of each server's own section `tls`; the names of those whose connections are to be made anew, for
    /// others are in force. What cannot be used is told. Blocks.
    #[must_use]
    pub fn look_at_tls(&self, now: Instant, time: SystemTime) -> Vec<Arc<str>> {
        let mut renewed = Vec::new();
        for upstream in self.iter() {
            let server = &upstream.name;
            match upstream.own_tls.as_ref().map_or(Looked::Same, |tls| tls.look(now, time)) {
                Looked::Same => continue,
                Looked::Renewed => {
                    tracing::info!(%server, "the TLS of a server was renewed");
                    renewed.push(Arc::clone(server));
                    continue;
                }
                Looked::Unusable(problem) => {
                    tracing::error!(%server, %problem, "the files of a server's TLS cannot be used");
                }
                Looked::Mended => {}
            }
            // Why it is as it is, is another now.
            (self.starter.events)(Event::Server(upstream.state()));
        }
        renewed
    }

    /// Values that no server's words may repeat from now on, in the place of those before, which stay secret for a
    /// while.
    pub fn keep_secret(&self, values: impl IntoIterator<Item = String>) {
        self.starter.secrets.replace(values);
    }

    /// Children that are started from now on do not get these of our variables.
    pub fn withhold(&self, variables: WithheldVariables) {
        self.starter.reaper.withhold(variables);
    }

    /// A JSON-RPC error of a server without the values that the config holds as secret; `None`
    /// if it holds none. Where one cannot be taken out of the JSON that it stands in, another
    /// error stands for it.
    #[must_use]
    pub fn masked(&self, error: &Bytes) -> Option<Bytes> {
        let masked = match self.starter.secrets.mask(error, false) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(masked) => Bytes::from(masked),
        };
        match serde_json::from_slice::<IgnoredAny>(&masked) {
            Ok(_) => Some(masked),
            Err(_) => Some(Bytes::from_static(UNTELLABLE)),
        }
    }

    /// Begins a login with a server, on behalf of `principal`, and tells the address to open. One that is under way is told
    /// again.
    ///
    /// # Errors
    /// [`NoLogin`]
    pub async fn log_in(
        &self,
        upstream: &Arc<Upstream>,
        principal: &str,
    ) -> Result<WaitingLogin, NoLogin> {
        if upstream.is_disabled() {
            return Err(NoLogin::Disabled);
        }
        if upstream.takes_login() {
            let (upstream, events) = (Arc::clone(upstream), Arc::clone(&self.starter.events));
            let principal: Arc<str> = principal.into();
            let mut tasks = self.tasks.lock();
            reap(&mut tasks);
            tasks.spawn_on(
                async move {
                    let tell = |outcome| {
                        let server = Arc::clone(&upstream.name);
                        let principal = Arc::clone(&principal);
                        events(Event::Login { server, principal, outcome });
                    };
                    tell(LoginOutcome::Began);
                    tell(upstream.run_login().await);
                },
                &self.starter.runtime,
            );
        }
        upstream.login_address().await
    }

    /// Has those that are away tried, as far as they may be; nothing is waited for. Whoever lists
    /// what servers offer is told of the change when one is back.
    pub fn nudge(&self) {
        self.in_force.load().order.iter().for_each(|upstream| upstream.nudge());
    }

    /// Every server's state, in the order of the config.
    #[must_use]
    pub fn states(&self) -> Vec<ServerState> {
        self.in_force.load().order.iter().map(|upstream| upstream.state()).collect()
    }

    /// True once every enabled server was discovered or has failed once. A server that a change of the config brings does
    /// not make it false again.
    #[must_use]
    pub fn settled(&self) -> bool {
        if self.settled.load(Ordering::Relaxed) {
            return true;
        }
        let set = self.in_force.load();
        let settled = set.order.iter().all(|upstream| upstream.state.load().is_settled());
        self.settled.fetch_or(settled, Ordering::Relaxed) || settled
    }

    /// True while an enabled server is connected, and where none is enabled.
    #[must_use]
    pub fn usable(&self) -> bool {
        let set = self.in_force.load();
        let mut enabled = set.order.iter().map(|upstream| upstream.state.load().status());
        let mut none = true;
        enabled.any(|status| {
            none &= status == Status::Disabled;
            status == Status::Connected
        }) || none
    }

    /// Where what servers say on stderr is kept, for [`stderr_log::read`](super::stderr_log::read).
    #[must_use]
    pub fn stderr_folder(&self) -> &Path {
        self.starter.stderr.folder()
    }

    /// Ends every connection: children and all that they started are gone when this returns, which
    /// it does not long after `deadline` at the latest.
    pub async fn shutdown(&self, deadline: Instant) {
        let deadline = tokio::time::Instant::from_std(deadline);
        let retiring = self.retiring.lock().clone();
        for upstream in self.iter().chain(retiring) {
            upstream.end_with_proxy(deadline);
        }
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while let Some(ended) = tasks.join_next().await {
            tell(ended);
        }
        self.starter.reaper.end().await;
        self.starter.stderr.finish().await;
    }

    /// Kills every child and its group, now: what is left of an ending that is not waited for.
    pub fn kill(&self) {
        self.starter.reaper.kill();
    }
}

impl Starter {
    fn start(
        &self,
        name: &Arc<str>,
        id: ServerId,
        config: Config,
        earlier: Option<&Arc<OwnTls>>,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Upstream> {
        let key = self.started.fetch_add(1, Ordering::Relaxed);
        let (control, controls) = mpsc::channel(CONTROL_MESSAGES);
        let lookup = |name: &str| std::env::var(name).ok();
        if config.enabled {
            for exposed in config.exposed_files(&lookup) {
                tracing::warn!(server = %name, "{exposed}");
            }
        }
        let named = config.tls.as_ref().filter(|_| config.enabled && config.may_use_tls());
        let own_tls = named.map(|named| match earlier {
            // What could be used last stays in force, whatever its files say now.
            Some(earlier) if earlier.is_of(named) => Arc::clone(earlier),
            Some(_) | None => Arc::new(OwnTls::new(named.clone())),
        });
        let (stop, stopping) = watch::channel(None);
        let upstream = Arc::new(Upstream {
            peer: Arc::new(
                Peer::new(Arc::clone(name), Arc::clone(&self.secrets))
                    .keeping(self.stderr.of(name)),
            ),
            name: Arc::clone(name),
            id,
            key,
            transport: config.transport(),
            call_timeout: CallTimeout::new(config.call_timeout),
            state: StateCell::new(UpstreamState::new(config.enabled)),
            own_tls,
            wishes: Wishes::default(),
            control,
            server_events: Arc::default(),
            subscriptions: Subscriptions::default(),
            users: Users::default(),
            stop,
            life: watch::Sender::default(),
            desk: LoginDesk::new(&config),
            restarts: AtomicU64::new(0),
        });
        if !config.enabled {
            upstream.ended();
            return upstream;
        }
        let task = ServerTask {
            login: None,
            upstream: Arc::clone(&upstream),
            config,
            key,
            catalog: Arc::clone(&self.catalog),
            events: Arc::clone(&self.events),
            tls: Arc::clone(&self.tls),
            reaper: Arc::clone(&self.reaper),
            keyring: Arc::clone(&self.keyring),
            generation: key << ATTEMPTS,
            failed: None,
        };
        let own = Arc::clone(&upstream);
        reap(tasks);
        tasks.spawn_on(
            async move {
                tokio::select! {
                    () = task.run(controls, stopping) => {}
                    () = own.peer.tell_missed() => {}
                }
                own.peer.secrets.hold(key, []);
                own.ended();
            },
            &self.runtime,
        );
        upstream
    }
}

/// Takes back tasks that have ended.
fn reap(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.try_join_next() {
        tell(ended);
    }
}

fn tell(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a server's task ended badly");
    }
}
