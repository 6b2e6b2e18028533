//! One task for each server: connect, initialize, discover, and again when it is lost, for ever.
//!
//! Owns the set of servers and their end. Servers share nothing here, so a slow, dead or mute one
//! delays nobody else. What a server's task does is `server_task`'s, what a call does is not
//! known here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use super::answer::{Answer, AnswerPart};
use super::backoff::Wishes;
use super::config::{Config, Target};
pub use super::error::{CallError, Cause, Sent};
pub use super::handle::Upstream;
use super::oauth;
use super::peer::Peer;
use super::reaper::Reaper;
use super::server_task::ServerTask;
use super::state::{StateCell, UpstreamState};
pub use super::status::{Event, ServerState, Status, Transport};
use super::subscriptions::Subscriptions;
use crate::catalog::Catalog;
use crate::secrets::Secrets;
use crate::tool::server_id::{ServerId, ServerIds};

/// A call that has longer has no limit, and none that could be added to a clock.
const MAX_CALL_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Reports and cancellations waiting for a server's task.
const CONTROL_MESSAGES: usize = 256;

/// All servers and their tasks.
pub struct Supervisor {
    servers: HashMap<Arc<str>, Arc<Upstream>>,
    /// In the order of the config.
    order: Vec<Arc<Upstream>>,
    reaper: Arc<Reaper>,
    stop: watch::Sender<Option<tokio::time::Instant>>,
    ids: ServerIds,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.order.iter().map(|upstream| &upstream.name)).finish()
    }
}

impl Supervisor {
    /// Starts a task for each enabled server on `runtime` and returns at once. `secrets` are those
    /// of the whole config; the tokens of logins join them. `events` is called from those tasks
    /// and must not block. `reaper` is for the children.
    pub fn start(
        configs: Vec<(Arc<str>, Config)>,
        reaper: Reaper,
        catalog: Arc<Catalog>,
        secrets: Arc<Secrets>,
        events: impl Fn(Event) + Send + Sync + 'static,
        runtime: &Handle,
    ) -> Self {
        let (stop, stopping) = watch::channel(None);
        let events: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(events);
        let tls = Arc::new(OnceLock::new());
        let reaper = Arc::new(reaper);
        let mut supervisor = Self {
            servers: HashMap::new(),
            order: Vec::new(),
            reaper: Arc::clone(&reaper),
            stop,
            ids: ServerIds::default(),
            tasks: Mutex::default(),
        };
        let mut tasks = Vec::new();
        let mut ids = ServerIds::default();
        for (name, config) in configs {
            let id = ids.assign(&name);
            let (control, controls) = mpsc::channel(CONTROL_MESSAGES);
            let target = config.target(&|name| std::env::var(name).ok());
            let transport = match &target {
                Ok(Target::Stdio { .. }) => Transport::Stdio,
                Ok(Target::Http { .. }) => Transport::StreamableHttp,
                Err(_) => Transport::Unknown,
            };
            let upstream = Arc::new(Upstream {
                peer: Arc::new(Peer::new(name.clone(), secrets.clone())),
                name: name.clone(),
                id,
                transport,
                call_timeout: config.call_timeout.min(MAX_CALL_TIMEOUT),
                state: StateCell::new(UpstreamState::new(config.enabled)),
                wishes: Wishes::default(),
                control,
                server_events: Arc::default(),
                subscriptions: Subscriptions::default(),
            });
            supervisor.servers.insert(name, upstream.clone());
            supervisor.order.push(upstream.clone());
            if !config.enabled {
                continue;
            }
            let mut task = ServerTask {
                login: oauth::LoginTokens::of(&upstream.peer, &config, &target, &tls),
                upstream,
                config,
                key: id.index() as u64,
                catalog: catalog.clone(),
                events: events.clone(),
                tls: tls.clone(),
                reaper: Arc::clone(&reaper),
                generation: 0,
                failed: None,
            };
            let stopping = stopping.clone();
            let peer = task.upstream.peer.clone();
            tasks.push(runtime.spawn(async move {
                let running = async {
                    match target {
                        Ok(target) => task.run(&target, controls, stopping).await,
                        Err(invalid) => task.refuse(&invalid.to_string()),
                    }
                };
                tokio::select! {
                    () = running => {}
                    () = peer.tell_missed() => {}
                }
            }));
        }
        supervisor.ids = ids;
        supervisor.tasks = Mutex::new(tasks);
        supervisor
    }

    /// The server of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.servers.get(name)
    }

    /// The identity of the server of that name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ServerId> {
        self.ids.get(name)
    }

    /// Every server, in the order of the config.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.order.iter()
    }

    /// Has those that are away tried, as far as they may be; nothing is waited for. Whoever lists
    /// what servers offer is told of the change when one is back.
    pub fn nudge(&self) {
        self.order.iter().for_each(|upstream| upstream.nudge());
    }

    /// Every server's state, in the order of the config.
    #[must_use]
    pub fn states(&self) -> Vec<ServerState> {
        self.order.iter().map(|upstream| upstream.state()).collect()
    }

    /// True once every enabled server was discovered or has failed once.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.order.iter().all(|upstream| upstream.state.load().is_settled())
    }

    /// True while an enabled server is connected, and where none is enabled.
    #[must_use]
    pub fn usable(&self) -> bool {
        let mut enabled = self.order.iter().map(|upstream| upstream.state.load().status());
        let mut none = true;
        enabled.any(|status| {
            none &= status == Status::Disabled;
            status == Status::Connected
        }) || none
    }

    /// Ends every connection: children and all that they started are gone when this returns, which
    /// it does not long after `deadline` at the latest.
    pub async fn shutdown(&self, deadline: Instant) {
        self.stop.send_replace(Some(tokio::time::Instant::from_std(deadline)));
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a server's task ended badly");
            }
        }
        self.reaper.end().await;
    }

    /// Kills every child and its group, now: what is left of an ending that is not waited for.
    pub fn kill(&self) {
        self.reaper.kill();
    }
}
