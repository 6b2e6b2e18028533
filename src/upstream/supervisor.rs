//! Supervisor: starts, replaces and stops the servers.
//!
//! Each server has its own task ([`crate::server_task`]), so a slow or unresponsive server does not delay the others.
//!
//! ```text
//! replace(plan) ─┬─ unchanged ─▶ keeps its task, connection and child
//!                ├─ started   ─▶ active at once; calls wait for it as for any that is connecting
//!                └─ missing   ─▶ retired: finishes its calls within their time limit, then ends
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

use crate::backoff::ConnectRequests;
use crate::config::{Config, ProtocolEra};
use crate::endpoint::{OwnTls, TlsReload};
use crate::followed_tasks::FollowedTasksByName;
use crate::handle::{ActiveCalls, CallGuard, CallTimeout, ListFaults, Upstream};
use crate::login_session::{LoginSession, NoLogin, WaitingLogin};
use crate::notifications::{ServerEvents, Subscriptions};
use crate::reaper::{Reaper, WithheldVariables};
use crate::second_connection::SecondConnection;
use crate::second_task::SecondTask;
use crate::server_log::ServerLog;
use crate::server_task::ServerTask;
use crate::state::{ATTEMPTS, CONTROL_MESSAGES, StateCell, UpstreamState};
pub use crate::state::{Event, LoginOutcome, ServerState, Status, Transport};
use crate::stderr_log::StderrLog;
use mcpproxy_catalog::Catalog;
use mcpproxy_policy::tool::{ServerId, ServerIds};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::secrets::Secrets;

/// Maximum number of retired servers that are still finishing calls, or the number retired by one change if that is
/// larger. The next change waits for these servers.
pub(crate) const MAX_RETIRING: usize = 64;
/// Maximum drain time of a retired server, regardless of its `call_timeout`.
pub(crate) const MAX_DRAIN: Duration = Duration::from_secs(3600);
/// Time limit for ending after the last call.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Replacement for an error that cannot be redacted.
const REDACTED_ERROR: &[u8] = br#"{"code":-32603,"message":"the server's error holds a secret"}"#;

pub struct Supervisor {
    in_force: ArcSwap<ServerSet>,
    /// Notified when the set is replaced.
    swaps: watch::Sender<()>,
    /// Servers that finish their calls.
    retiring: Arc<Mutex<Vec<Arc<Upstream>>>>,
    permits: Arc<Semaphore>,
    starter: Starter,
    ids: Mutex<ServerIds>,
    tasks: Mutex<JoinSet<()>>,
    /// Set once all servers were settled; servers added later do not delay readiness.
    settled: AtomicBool,
}

/// Permit for retired servers, released with its last holder.
type RetiringPermit = Arc<OwnedSemaphorePermit>;

#[derive(Default)]
struct ServerSet {
    servers: HashMap<Arc<str>, Arc<Upstream>>,
    /// Servers in config order.
    order: Vec<Arc<Upstream>>,
}

/// Shared dependencies for starting servers.
struct Starter {
    catalog: Arc<Catalog>,
    secrets: Arc<Secrets>,
    events: Arc<dyn Fn(Event) + Send + Sync>,
    /// Created when the first https server is connected.
    tls: Arc<OnceLock<TlsConnector>>,
    reaper: Arc<Reaper>,
    /// Serializes keyring access, so that the user sees only one prompt at a time, and unanswered prompts do not use up
    /// the blocking threads.
    keyring: Arc<Semaphore>,
    stderr: StderrLog,
    runtime: Handle,
    /// Number of servers started so far.
    started: AtomicU64,
    /// Tasks whose changes clients follow.
    followed: FollowedTasksByName,
}

/// Plan for one server of a new config.
#[derive(Debug)]
pub enum ServerPlan {
    /// The server is unchanged except for this `call_timeout`.
    Stays(Duration),
    /// The server is new, or replaces the server with this name.
    Starts(Box<Config>),
}

/// Result of replacing the servers.
#[derive(Debug, Default)]
pub struct ReplacedServers {
    /// Started servers in config order.
    pub started: Vec<Arc<Upstream>>,
    /// Servers that finish their calls.
    pub retired: Vec<Arc<Upstream>>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.in_force.load();
        f.debug_list().entries(set.order.iter().map(|upstream| &upstream.name)).finish()
    }
}

impl Supervisor {
    /// Starts a task for each enabled server on `runtime` and returns immediately. `secrets` contains the secrets of
    /// the whole config; tokens of logins are added. `events` is called from those tasks and must not block.
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
            permits: Arc::new(Semaphore::new(MAX_RETIRING)),
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
                followed: FollowedTasksByName::default(),
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

    /// Replaces the set of servers with `plan`, in its order; missing servers are retired. Waits while [`MAX_RETIRING`]
    /// others drain. Must be called by a single task, on a multi-threaded runtime.
    pub async fn replace(&self, plan: Vec<(Arc<str>, ServerPlan)>) -> ReplacedServers {
        let before = self.in_force.load_full();
        let stays = |upstream: &Arc<Upstream>| {
            plan.iter()
                .any(|(name, plan)| *name == upstream.name && matches!(plan, ServerPlan::Stays(_)))
        };
        let going = before.order.iter().filter(|upstream| !stays(upstream)).count();
        let mut permits = Vec::new();
        // Servers beyond the number of permits share one, because the change must not wait for itself.
        for _ in 0..going.min(MAX_RETIRING) {
            // The semaphore is never closed.
            permits.extend(Arc::clone(&self.permits).acquire_owned().await.ok().map(Arc::new));
        }
        // Checks file permissions, which blocks.
        tokio::task::block_in_place(|| self.put(plan, &permits))
    }

    fn put(
        &self,
        plan: Vec<(Arc<str>, ServerPlan)>,
        permits: &[RetiringPermit],
    ) -> ReplacedServers {
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
                        upstream.continue_count_of(earlier);
                        // Subscriptions are inherited from the earlier server.
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
        for (upstream, permit) in retired.iter().zip(permits.iter().cycle()) {
            self.retire(upstream, Arc::clone(permit));
        }
        self.swaps.send_replace(());
        ReplacedServers { started, retired }
    }

    /// Drains a server and ends it.
    fn retire(&self, upstream: &Arc<Upstream>, permit: RetiringPermit) {
        upstream.retire();
        self.retiring.lock().push(Arc::clone(upstream));
        let (upstream, retiring) = (Arc::clone(upstream), Arc::clone(&self.retiring));
        let mut tasks = self.tasks.lock();
        reap(&mut tasks);
        tasks.spawn_on(
            async move {
                let _place = permit;
                let limit = upstream.call_timeout().min(MAX_DRAIN);
                let mut stop = upstream.stop.subscribe();
                tokio::select! {
                    () = upstream.active_calls.drained() => {}
                    () = tokio::time::sleep(limit) => {
                        let server = &upstream.name;
                        peer_line!(warn, upstream.server_log, %server, "cutting off unfinished calls: their server was removed from the config, or its entry or TLS files have changed");
                    }
                    _ = stop.wait_for(Option::is_some) => {}
                }
                upstream.active_calls.close_now();
                upstream.end_retired(tokio::time::Instant::now() + END_LIMIT);
                upstream.over().await;
                retiring.lock().retain(|it| !Arc::ptr_eq(it, &upstream));
            },
            &self.starter.runtime,
        );
    }

    pub fn get(&self, name: &str) -> Option<Arc<Upstream>> {
        self.in_force.load().servers.get(name).cloned()
    }

    /// Enters a call of the server with this name; the server waits for the call even if it is retired before the call
    /// ends.
    pub fn enter(&self, name: &str) -> Option<CallGuard> {
        let mut upstream = self.get(name)?;
        loop {
            if let Some(active_call) = CallGuard::enter(&upstream) {
                return Some(active_call);
            }
            // The server was closed after its replacement.
            let now = self.get(name)?;
            if Arc::ptr_eq(&now, &upstream) {
                return None;
            }
            upstream = now;
        }
    }

    /// Active or retired server with this name to which this connection belongs.
    pub fn connected_as(&self, name: &str, generation: u64) -> Option<Arc<Upstream>> {
        let is = |upstream: &Arc<Upstream>| upstream.key == generation >> ATTEMPTS;
        let retiring = || {
            let retiring = self.retiring.lock();
            retiring.iter().find(|it| *it.name == *name && is(it)).cloned()
        };
        self.get(name).filter(is).or_else(retiring)
    }

    pub fn id(&self, name: &str) -> Option<ServerId> {
        self.in_force.load().servers.get(name).map(|upstream| upstream.id)
    }

    /// All servers, in config order.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Upstream>> + use<> {
        self.in_force.load().order.clone().into_iter()
    }

    /// Notifies of later replacements of the set.
    pub fn swaps(&self) -> watch::Receiver<()> {
        self.swaps.subscribe()
    }

    #[cfg(test)]
    pub(crate) fn retiring(&self) -> usize {
        self.retiring.lock().len()
    }

    /// Reloads changed files of the servers' own `tls` sections. Returns the servers whose connections must be renewed.
    /// Reports unusable files. Blocks.
    pub fn reload_tls(&self, now: Instant, time: SystemTime) -> Vec<Arc<str>> {
        let mut renewed = Vec::new();
        for upstream in self.iter() {
            let server = &upstream.name;
            match upstream.own_tls.as_ref().map_or(TlsReload::Same, |tls| tls.reload(now, time)) {
                TlsReload::Same => continue,
                TlsReload::Renewed => {
                    peer_line!(info, upstream.server_log, %server, "reloaded the server's TLS files");
                    renewed.push(Arc::clone(server));
                    continue;
                }
                TlsReload::Unusable(problem) => {
                    peer_line!(error, upstream.server_log, %server, %problem, "the server's TLS files are unusable");
                }
                TlsReload::Recovered => {}
            }
            // The reason in the server's state has changed.
            (self.starter.events)(Event::Server(upstream.state()));
        }
        renewed
    }

    /// Replaces the values to redact from server output; the previous values stay secret for some time.
    pub fn keep_secret(&self, values: impl IntoIterator<Item = String>) {
        self.starter.secrets.replace(values);
    }

    /// Withholds these variables from children started after this call.
    pub fn withhold(&self, variables: WithheldVariables) {
        self.starter.reaper.withhold(variables);
    }

    /// Redacts a server's JSON-RPC error; `None` if it contains no secret. If the result is not valid JSON, a
    /// generic error replaces it.
    pub fn masked(&self, error: &Bytes) -> Option<Bytes> {
        let masked = match self.starter.secrets.mask(error, false) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(masked) => Bytes::from(masked),
        };
        match serde_json::from_slice::<IgnoredAny>(&masked) {
            Ok(_) => Some(masked),
            Err(_) => Some(Bytes::from_static(REDACTED_ERROR)),
        }
    }

    /// Starts a login on behalf of `principal` and returns the address to open; also works for a login that is already
    /// running.
    pub async fn log_in(
        &self,
        upstream: &Arc<Upstream>,
        principal: &str,
    ) -> Result<WaitingLogin, NoLogin> {
        if upstream.is_disabled() {
            return Err(NoLogin::Disabled);
        }
        if let Some(unattended) = upstream.login.unattended() {
            return Err(NoLogin::Failed(unattended));
        }
        if upstream.login.claim() {
            let (upstream, events) = (Arc::clone(upstream), Arc::clone(&self.starter.events));
            let principal: Arc<str> = principal.into();
            let mut tasks = self.tasks.lock();
            reap(&mut tasks);
            tasks.spawn_on(
                async move {
                    let report = |outcome| {
                        let server = Arc::clone(&upstream.name);
                        let principal = Arc::clone(&principal);
                        events(Event::Login { server, principal, outcome });
                    };
                    report(LoginOutcome::Began);
                    let canceled = upstream.login_canceled();
                    report(upstream.login.run(&upstream.name, canceled).await);
                },
                &self.starter.runtime,
            );
        }
        upstream.login.address().await
    }

    /// Triggers connection attempts of disconnected servers where the backoff allows it. Does not block.
    pub fn nudge(&self) {
        self.in_force.load().order.iter().for_each(|upstream| upstream.nudge());
    }

    pub fn states(&self) -> Vec<ServerState> {
        self.in_force.load().order.iter().map(|upstream| upstream.state()).collect()
    }

    /// Whether every enabled server was discovered or has failed once. Servers added later do not reset it.
    pub fn settled(&self) -> bool {
        if self.settled.load(Ordering::Relaxed) {
            return true;
        }
        let set = self.in_force.load();
        let settled = set.order.iter().all(|upstream| upstream.state.load().is_settled());
        self.settled.fetch_or(settled, Ordering::Relaxed) || settled
    }

    /// Whether an enabled server is connected, or no server is enabled.
    pub fn usable(&self) -> bool {
        let set = self.in_force.load();
        let mut enabled = set.order.iter().map(|upstream| upstream.state.load().status());
        let mut none = true;
        enabled.any(|status| {
            none &= status == Status::Disabled;
            status == Status::Connected
        }) || none
    }

    /// Directory for [`stderr_log::read`](crate::stderr_log::read).
    pub fn stderr_folder(&self) -> &Path {
        self.starter.stderr.folder()
    }

    /// Closes all connections. When this returns, children and their descendants have ended, at the latest shortly
    /// after `deadline`.
    pub async fn shutdown(&self, deadline: Instant) {
        let deadline = tokio::time::Instant::from_std(deadline);
        let retiring = self.retiring.lock().clone();
        for upstream in self.iter().chain(retiring) {
            upstream.end_with_proxy(deadline);
        }
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while let Some(ended) = tasks.join_next().await {
            log_panic(ended);
        }
        self.starter.reaper.end().await;
        self.starter.stderr.finish().await;
    }

    /// Kills all child process groups immediately, when a shutdown is cut short.
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
        let has_second = config.enabled && config.protocol_era == ProtocolEra::Auto;
        let (second, second_controls) =
            has_second.then(|| SecondConnection::new(config.second_idle_timeout)).unzip();
        let lookup = |name: &str| std::env::var(name).ok();
        if config.enabled {
            for exposed in config.exposed_files(&lookup) {
                let server_log = LinePeer::Server(name);
                peer_line!(warn, server_log, server = %name, "{exposed}");
            }
        }
        let named = config.tls.as_ref().filter(|_| config.enabled && config.may_use_tls());
        let own_tls = named.map(|named| match earlier {
            // The last usable settings stay in force, regardless of the files' current contents.
            Some(earlier) if earlier.has_settings(named) => Arc::clone(earlier),
            Some(_) | None => Arc::new(OwnTls::new(named.clone())),
        });
        let (stop, stopping) = watch::channel(None);
        let upstream = Arc::new(Upstream {
            server_log: Arc::new(
                ServerLog::new(Arc::clone(name), Arc::clone(&self.secrets))
                    .with_stderr_log(self.stderr.of(name)),
            ),
            name: Arc::clone(name),
            id,
            key,
            transport: config.transport(),
            call_timeout: CallTimeout::new(config.call_timeout),
            state: StateCell::new(UpstreamState::new(config.enabled)),
            own_tls,
            connect_requests: ConnectRequests::default(),
            control,
            second,
            server_events: Arc::new(ServerEvents::with(self.followed.of(name))),
            subscriptions: Subscriptions::default(),
            active_calls: ActiveCalls::default(),
            stop,
            life: watch::Sender::default(),
            login: LoginSession::new(&config),
            restarts: AtomicU64::new(0),
            list_faults: ListFaults::default(),
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
            responding_bytes: Arc::default(),
            second: second_controls.map(SecondTask::new),
        };
        let own = Arc::clone(&upstream);
        reap(tasks);
        tasks.spawn_on(
            async move {
                tokio::select! {
                    () = task.run(controls, stopping) => {}
                    () = own.server_log.report_dropped() => {}
                }
                own.server_log.secrets.hold(key, []);
                own.ended();
            },
            &self.runtime,
        );
        upstream
    }
}

/// Removes finished tasks.
fn reap(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.try_join_next() {
        log_panic(ended);
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        peer_line!(error, LinePeer::Part("servers"), %error, "a server's task panicked");
    }
}
