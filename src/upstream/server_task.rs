//! The task of one server: an attempt, the connection that comes of it, and the next attempt.
//!
//! Owns the server's state and what is done beside the calls while it is connected: discovery,
//! cancellations, the answers of clients, the renewal of its token. All servers together are
//! [`super::supervisor`]'s.
//!
//! ```text
//!            ┌──────────────── attempt failed ────────────────┐
//!            ▼                                                │
//!         Failed ── backoff, or a call ───▶ Connecting ── initialized, tools listed ──▶ Connected
//!                                               ▲                                          │
//! Disabled (for good)                           └──────── connection or session lost ──────┘
//! ```

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::attempts::Ended;
use super::call::{Carrier, Live, Upstream};
use super::config::{Config, Target};
use super::connect::{
    ConnectFailure, ConnectOptions, GOODBYE_LIMIT, ServerConnection, establish, fetch, respond,
};
use super::lifecycle::{self, Headers};
use super::listen;
use super::oauth::{self, Heeded, Renewal};
use super::pace::{Pace, SELDOM};
use super::probe::Start;
use super::reaper::Reaper;
use super::session;
use super::state::Event;
use super::status::Status;
use super::stdio;
use super::subscriptions;
use super::supervisor::Control;
use crate::catalog::{Catalog, Change};
use crate::mcp::revisions::Era;

/// First wait after a failed attempt.
const MIN_BACKOFF: Duration = Duration::from_millis(500);
/// Longest wait between attempts that nobody calls for, before the jitter, which may double it.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A connection that lived this long was a good one: the next attempt is made at once.
const STABLE: Duration = Duration::from_secs(30);
/// Cancellations over HTTP that are being sent at a time; more are lost.
const CANCELLING: usize = 16;
/// Answers of clients that are being sent at a time; more are lost.
const RESPONDING: usize = 64;

/// Why a connection ends whose token is no good any more.
const REFUSED: &str = "its token was refused";

/// The task of one server.
pub(super) struct ServerTask {
    pub(super) upstream: Arc<Upstream>,
    pub(super) config: Config,
    pub(super) key: u64,
    pub(super) catalog: Arc<Catalog>,
    pub(super) events: Arc<dyn Fn(Event) + Send + Sync>,
    /// Made when the first https server is connected.
    pub(super) tls: Arc<OnceLock<TlsConnector>>,
    pub(super) reaper: Arc<Reaper>,
    pub(super) generation: u64,
    /// Its login, where it can have one.
    pub(super) login: Option<oauth::LoginTokens>,
    /// Why it failed last, and how often in a row for that reason.
    pub(super) failed: Option<(String, u64)>,
}

/// Why a connection is over.
enum End {
    Stop(tokio::time::Instant),
    Lost(Arc<str>),
    /// Its token is no good any more.
    Refused,
}

type Stopping = watch::Receiver<Option<tokio::time::Instant>>;
type Discovery = Pin<Box<dyn Future<Output = Result<Change, String>> + Send>>;

impl ServerTask {
    pub(super) async fn run(
        mut self,
        target: &Target,
        mut controls: mpsc::Receiver<Control>,
        mut stopping: Stopping,
    ) {
        let backoff = ExponentialBuilder::new()
            .with_min_delay(MIN_BACKOFF)
            .with_max_delay(MAX_BACKOFF)
            .without_max_times()
            .with_jitter();
        let mut delays = backoff.build();
        let mut delay = None;
        let mut start = Start::Probe;
        loop {
            let began = Instant::now();
            self.generation += 1;
            self.upstream.attempts.begin(self.generation);
            let place = ConnectOptions {
                peer: &self.upstream.peer,
                key: self.key,
                limit: self.config.init_timeout,
                tls: &self.tls,
                server_events: &self.upstream.server_events,
                reaper: &self.reaper,
                login: self.login.as_ref(),
            };
            let connecting = establish(target, &place, start);
            let connected = tokio::select! {
                biased;
                _ = stopped(&mut stopping) => None,
                connected = connecting => Some(connected),
            };
            let (failed, starts) = match connected {
                None => break,
                Some(Err(ConnectFailure { reason, next, starts })) => {
                    start = next;
                    let reason = match self.heed(None).await {
                        Heeded::Lacks(notice) => notice.to_string(),
                        Heeded::Refused | Heeded::Nothing => reason,
                    };
                    (Some(reason), starts)
                }
                Some(Ok(mut connection)) => {
                    // Remembered of a legacy server, which may not like to be probed. A modern one
                    // is probed with what it is asked first anyway.
                    start = match connection.greeting.about.era {
                        era @ Era::Legacy => Start::Known(era),
                        Era::Modern => Start::Probe,
                    };
                    let (end, worked) =
                        self.serve(&mut connection, &mut controls, &mut stopping).await;
                    self.upstream.live.store(None);
                    if worked {
                        self.failed = None;
                    }
                    connection.forsake(match &end {
                        End::Stop(_) => "it was stopped".into(),
                        End::Lost(reason) => reason.clone(),
                        End::Refused => REFUSED.into(),
                    });
                    match end {
                        End::Stop(deadline) => {
                            connection.close(deadline).await;
                            break;
                        }
                        End::Lost(_) | End::Refused => {
                            let reason = match &end {
                                End::Lost(reason) => reason,
                                End::Refused | End::Stop(_) => REFUSED,
                            };
                            // Calls wait for the next attempt, if this connection ever worked.
                            if worked {
                                self.set(Status::Connecting, &format!("reconnecting: {reason}"));
                            }
                            let stable = worked && began.elapsed() >= STABLE;
                            if let (true, Some(login)) = (stable, &self.login) {
                                login.held();
                            }
                            let renewable =
                                matches!(end, End::Refused) && self.renewable(&connection);
                            connection.close(tokio::time::Instant::now() + GOODBYE_LIMIT).await;
                            if stable {
                                (delays, delay) = (backoff.build(), None);
                            }
                            if stable || renewable {
                                continue;
                            }
                            ((!worked).then(|| reason.to_string()), 1)
                        }
                    }
                }
            };
            if let Some(reason) = &failed {
                self.fail(reason);
            }
            let ended = Ended { began, starts, failed: failed.is_some() };
            let wait = *delay.get_or_insert_with(|| delays.next().unwrap_or(MAX_BACKOFF));
            tokio::select! {
                biased;
                _ = stopped(&mut stopping) => break,
                // What calls cause makes no wait longer.
                called = self.upstream.attempts.rest(self.generation, ended, wait) => {
                    if !called {
                        delay = None;
                    }
                }
                () = oauth::changed(self.login.as_ref()) => {
                    (delays, delay) = (backoff.build(), None);
                }
            }
            // Reports about connections that are gone.
            while controls.try_recv().is_ok() {}
        }
        self.upstream.live.store(None);
        self.set(Status::Failed, "the proxy is shutting down");
        self.upstream.attempts.end();
    }

    /// Keeps a connection until it ends; tells whether it ever worked.
    async fn serve(
        &self,
        connection: &mut ServerConnection,
        controls: &mut mpsc::Receiver<Control>,
        stopping: &mut Stopping,
    ) -> (End, bool) {
        let (generation, about) = (self.generation, connection.greeting.about);
        self.upstream.about.store(Arc::new(about));
        self.publish(connection);
        self.upstream.server_events.reconnected();
        let mut following = JoinSet::new();
        let upstream = || self.upstream.clone();
        match (about.era, about.offers.resource_updates) {
            (Era::Modern, updates) => {
                let line = connection.line.clone();
                if updates {
                    following.spawn(listen::follow_resources(upstream(), line.clone()));
                }
                following.spawn(listen::follow(upstream(), line, about.offers));
            }
            (Era::Legacy, true) => {
                let limit = self.config.init_timeout;
                following.spawn(subscriptions::keep(upstream(), generation, limit));
            }
            (Era::Legacy, false) => {}
        }
        let login = self.login.as_ref();
        let mut renewal = oauth::renewal(login, connection.bearer());
        let mut worked = false;
        let mut cancelling = JoinSet::new();
        let mut responding = JoinSet::new();
        let mut pace = Pace::default();
        let mut discovery: Option<Discovery> = Some(self.discovery(connection, Duration::ZERO));
        loop {
            tokio::select! {
                biased;
                deadline = stopped(stopping) => return (End::Stop(deadline), worked),
                reason = connection.lost() => return (End::Lost(reason), worked),
                discovered = done(&mut discovery) => {
                    discovery = None;
                    let reason = match discovered {
                        Ok(change) => {
                            worked = true;
                            self.discovered(connection, change);
                            continue;
                        }
                        // What was known of its tools stays known.
                        Err(reason) => reason.into(),
                    };
                    return match self.heed(Some(connection)).await {
                        Heeded::Refused => (End::Refused, worked),
                        Heeded::Lacks(notice) => (End::Lost(notice), worked),
                        Heeded::Nothing => (End::Lost(reason), worked),
                    };
                }
                () = oauth::challenged(login) => {
                    if matches!(self.heed(Some(connection)).await, Heeded::Refused) {
                        return (End::Refused, worked);
                    }
                    if discovery.is_none() {
                        self.connected();
                    }
                }
                control = controls.recv() => match control {
                    Some(Control::Lost { generation: about, reason }) if about == generation => {
                        return (End::Lost(reason), worked);
                    }
                    Some(Control::Cancel { generation: about, id }) if about == generation => {
                        while cancelling.try_join_next().is_some() {}
                        if let Carrier::Http(session) = &connection.carrier
                            && cancelling.len() < CANCELLING
                        {
                            let session = session.clone();
                            cancelling.spawn(async move {
                                session::notify(&session, stdio::cancelled(id).into()).await;
                            });
                        }
                    }
                    Some(Control::Respond { generation: about, id, outcome })
                        if about == generation =>
                    {
                        self.respond(&connection.carrier, &mut responding, id, outcome);
                    }
                    Some(
                        Control::Lost { .. } | Control::Cancel { .. } | Control::Respond { .. },
                    )
                    | None => {}
                },
                () = self.upstream.server_events.tools.notified(), if discovery.is_none() => {
                    let look = pace.changed(Instant::now());
                    if look.tell {
                        let server = &self.upstream.name;
                        tracing::warn!(%server, "it says all the time that its tools have changed: they are listed ever more seldom, at last every {SELDOM:?}");
                    }
                    discovery = Some(self.discovery(connection, look.after));
                }
                renewed = &mut renewal => match renewed {
                    Renewal::Bearer(bearer) => {
                        connection.log_in(bearer);
                        self.publish(connection);
                        renewal = oauth::renewal(login, connection.bearer());
                        if discovery.is_none() {
                            self.connected();
                        }
                    }
                    Renewal::Gone(reason) => return (End::Lost(reason.into()), worked),
                },
            }
        }
    }

    /// Lets calls use a connection.
    fn publish(&self, connection: &ServerConnection) {
        let live = Live {
            generation: self.generation,
            era: connection.greeting.about.era,
            link: connection.carrier.clone(),
            router: connection.router.clone(),
        };
        self.upstream.live.store(Some(Arc::new(live)));
        self.upstream.attempts.succeed();
    }

    /// Takes up what the server has asked of its login.
    async fn heed(&self, connection: Option<&ServerConnection>) -> Heeded {
        let bearer = connection.and_then(ServerConnection::bearer);
        match &self.login {
            Some(login) => login.heed(bearer.as_ref()).await,
            None => Heeded::Nothing,
        }
    }

    /// Whether the token that a connection ended with is worth renewing.
    fn renewable(&self, connection: &ServerConnection) -> bool {
        let refused = self.login.as_ref().zip(connection.bearer());
        refused.is_some_and(|(login, bearer)| login.refuse(&bearer))
    }

    /// It can be used, though its login may lack something.
    fn connected(&self) {
        let notice = self.login.as_ref().map(oauth::LoginTokens::notice).unwrap_or_default();
        self.set(Status::Connected, &notice);
    }

    /// Sends a client's answer on its way.
    fn respond(&self, carrier: &Carrier, responding: &mut JoinSet<()>, id: Bytes, outcome: Bytes) {
        while responding.try_join_next().is_some() {}
        if responding.len() >= RESPONDING {
            tracing::warn!(server = %self.upstream.name, limit = RESPONDING, "a client's answer is lost: too many are being sent");
            return;
        }
        responding.spawn(respond(carrier.clone(), id, outcome, self.config.init_timeout));
    }

    /// Reads the list of tools and puts it into the catalog.
    fn discovery(&self, connection: &ServerConnection, after: Duration) -> Discovery {
        let (carrier, greeting) = (connection.carrier.clone(), connection.greeting.clone());
        let (upstream, catalog) = (self.upstream.clone(), self.catalog.clone());
        let limit = self.config.init_timeout;
        Box::pin(async move {
            tokio::time::sleep(after).await;
            // What was said until now is heard by this look.
            let _ = upstream.server_events.tools.notified().now_or_never();
            let era = greeting.about.era;
            let fetch = |params, room| fetch(&carrier, params, era, limit, room);
            let headers = match (&carrier, era) {
                (Carrier::Http(_), Era::Modern) => Headers::Repeat,
                (Carrier::Http(_), Era::Legacy) | (Carrier::Stdio(_), _) => Headers::SayNothing,
            };
            let tools = lifecycle::discover(&upstream.peer, &greeting, headers, fetch).await?;
            catalog.take_up(&upstream.name, tools).await
        })
    }

    fn discovered(&self, connection: &ServerConnection, change: Change) {
        let tools = self.catalog.load().tools_of(&self.upstream.name).len();
        let greeting = &connection.greeting;
        self.upstream.state.send_modify(|state| {
            state.tools = tools;
            state.settled = true;
            state.protocol_version.clone_from(&greeting.protocol_version);
            state.server_info.clone_from(&greeting.server_info);
        });
        for name in &change.duplicates {
            if self.upstream.peer.may_log() {
                tracing::warn!(server = %self.upstream.name, tool = %name, "a tool is listed twice; the first counts");
            }
        }
        tracing::info!(server = %self.upstream.name, tools, "discovered");
        (self.events)(Event::Catalog { server: self.upstream.name.clone(), change });
        self.connected();
    }

    /// The same failure is told once, then by its count, ever more seldom.
    pub(super) fn fail(&mut self, reason: &str) {
        let server = &self.upstream.name;
        match &mut self.failed {
            Some((last, times)) if last == reason => {
                *times += 1;
                if times.is_power_of_two() && *times > 4 {
                    tracing::warn!(%server, times, "a server still cannot be used");
                }
            }
            _ => {
                // Reasons that hold a time differ with each attempt that a call causes.
                if self.upstream.peer.may_log() {
                    tracing::warn!(%server, reason, "a server cannot be used");
                }
                self.failed = Some((reason.to_owned(), 1));
            }
        }
        self.set(Status::Failed, reason);
    }

    fn set(&self, status: Status, reason: &str) {
        let changed = self.upstream.state.send_if_modified(|state| {
            let changed = state.status != status || *state.reason != *reason;
            if state.status != status {
                state.since = SystemTime::now();
            }
            state.status = status;
            state.reason = reason.into();
            state.settled |= status == Status::Failed;
            changed
        });
        if changed {
            (self.events)(Event::Server(self.upstream.state()));
        }
    }
}

/// Resolves when the proxy stops, with the deadline for it.
async fn stopped(stopping: &mut Stopping) -> tokio::time::Instant {
    match stopping.wait_for(Option::is_some).await.map(|deadline| *deadline) {
        Ok(Some(deadline)) => deadline,
        // The supervisor was dropped without a shutdown.
        Ok(None) | Err(_) => tokio::time::Instant::now(),
    }
}

/// The discovery's outcome, or never.
async fn done(discovery: &mut Option<Discovery>) -> Result<Change, String> {
    match discovery {
        Some(discovery) => discovery.await,
        None => std::future::pending().await,
    }
}
