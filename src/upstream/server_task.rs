//! The task of one server: an attempt, the connection that comes of it, and the next attempt.
//!
//! Alone makes the transitions of the server's state ([`super::state`], where the diagram is), and
//! does what is done beside the calls while it is connected: discovery, cancellations, the answers
//! of clients, the renewal of its token. All servers together are [`super::supervisor`]'s.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::backoff::{Backoff, Ended, STABLE};
use super::carrier::{Carrier, LiveConnection};
use super::config::{Config, Target};
use super::connect::{ConnectFailure, ConnectOptions, GOODBYE_LIMIT, ServerConnection, establish};
use super::control::Control;
use super::discovery::{self, Headers};
use super::handle::{ServerStop, Upstream, WhyStopped};
use super::http;
use super::listen;
use super::oauth::{self, Heeded, Renewal};
use super::pace::{Pace, SELDOM};
use super::probe::Start;
use super::reaper::Reaper;
use super::request::cancelled;
use super::resubscribe;
use super::state::{Discovered, Forbidden, UpstreamState};
use super::status::Event;
use crate::catalog::{Catalog, Change};
use crate::mcp::revisions::Era;

mod entry_read;

use entry_read::NotRead;

/// Cancellations over HTTP that are being sent at a time; more are lost.
const CANCELLING: usize = 16;
/// Answers of clients that are being sent at a time; more are lost.
const RESPONDING: usize = 64;
/// How long a keyring that was asked in vain for a server is left alone, whoever calls: it may ask its user each time
/// to unlock it.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Why a connection ends that its operator wants another one for.
const RESTARTED: &str = "it was restarted by its operator";
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
    /// Who may ask a keyring.
    pub(super) keyring: Arc<Semaphore>,
    pub(super) generation: u64,
    /// Its login, where it can have one; none before its entry was read.
    pub(super) login: Option<oauth::LoginTokens>,
    /// Why it failed last, and how often in a row for that reason.
    pub(super) failed: Option<(String, u64)>,
}

/// Why a connection is over.
enum End {
    Stop(ServerStop),
    Lost(Arc<str>),
    /// Its token is no good any more.
    Refused,
    /// Its operator wants another connection.
    Restart,
}

type Stopping = watch::Receiver<Option<ServerStop>>;
type Discovery = Pin<Box<dyn Future<Output = Result<Change, String>> + Send>>;

impl ServerTask {
    pub(super) async fn run(mut self, controls: mpsc::Receiver<Control>, mut stopping: Stopping) {
        match self.keep_connected(controls, &mut stopping).await {
            Ok(()) => {
                let stop = stopped(&mut stopping).await;
                self.step(|state| state.stop(stop.why.reason()));
                if let Some(login) = &self.login {
                    login.end(stop.deadline).await;
                }
            }
            Err(reason) => {
                self.tell_failure(&reason);
                self.step(|state| state.stop(&reason));
            }
        }
    }

    /// Connects, and again, until it is told to end.
    ///
    /// # Errors
    /// The entry names no server, for this reason: nothing is tried.
    async fn keep_connected(
        &mut self,
        mut controls: mpsc::Receiver<Control>,
        stopping: &mut Stopping,
    ) -> Result<(), String> {
        let mut target: Option<Target> = None;
        let mut backoff = Backoff::new();
        let mut start = Start::Probe;
        let mut is_first = true;
        loop {
            let again = !std::mem::replace(&mut is_first, false);
            if again {
                self.upstream.begins_again();
            }
            self.generation += 1;
            self.step(|state| state.begin(self.generation, Instant::now()));
            let mut left_alone = Duration::ZERO;
            let readable = match &target {
                Some(known) if self.config.named.is_none() => Ok(known.clone()),
                // What it names may be another by now, or there: a token that was renewed, a keyring that is unlocked.
                Some(_) | None => {
                    let read = tokio::select! {
                        biased;
                        _ = stopped(stopping) => return Ok(()),
                        read = self.read() => read,
                    };
                    match read {
                        Ok(next) => {
                            self.take_over(&next, &mut target).await;
                            Ok(next)
                        }
                        Err(NotRead::NoServer(reason)) => return Err(reason),
                        Err(NotRead::NotNow(reason)) => {
                            if self.config.asks_keyring() {
                                left_alone = ASK_AGAIN;
                            }
                            Err(reason)
                        }
                    }
                }
            };
            // However long a keyring's user has taken.
            let began = Instant::now();
            let place = ConnectOptions {
                peer: &self.upstream.peer,
                key: self.key,
                limit: self.config.init_timeout,
                tls: &self.tls,
                own_tls: self.upstream.own_tls.as_ref(),
                server_events: &self.upstream.server_events,
                reaper: &self.reaper,
                login: self.login.as_ref(),
            };
            let connecting = async {
                match readable {
                    Ok(target) => establish(&target, &place, start).await,
                    Err(reason) => Err(ConnectFailure { reason, next: start, starts: 0 }),
                }
            };
            let connected = tokio::select! {
                biased;
                _ = stopped(stopping) => None,
                connected = connecting => Some(connected),
            };
            let due = match connected {
                None => return Ok(()),
                Some(Err(ConnectFailure { reason, next, starts })) => {
                    start = next;
                    let reason = match self.heed(None).await {
                        Heeded::Lacks(notice) => notice.to_string(),
                        Heeded::Refused | Heeded::Nothing => reason,
                    };
                    let ended = Ended { began, starts, failed: true };
                    let now = Instant::now();
                    let due = ended.due(now, backoff.wait()).not_before(now + left_alone);
                    self.tell_failure(&reason);
                    self.step(|state| state.fail(&reason, due));
                    due
                }
                Some(Ok(mut connection)) => {
                    // Remembered of a legacy server, which may not like to be probed. A modern one
                    // is probed with what it is asked first anyway.
                    start = match connection.greeting.about.era {
                        era @ Era::Legacy => Start::Known(era),
                        Era::Modern => Start::Probe,
                    };
                    let (end, worked) = self.serve(&mut connection, &mut controls, stopping).await;
                    if worked {
                        self.failed = None;
                    }
                    let reason: Arc<str> = match &end {
                        End::Stop(ServerStop { deadline, why }) => {
                            self.step(|state| state.stop(why.reason()));
                            connection.forsake(why.cut_off().into());
                            connection.close(*deadline).await;
                            return Ok(());
                        }
                        End::Lost(reason) => Arc::clone(reason),
                        End::Refused => REFUSED.into(),
                        End::Restart => RESTARTED.into(),
                    };
                    // Calls wait for the next attempt, if this connection ever worked.
                    self.step(|state| state.lose(&reason));
                    connection.forsake(Arc::clone(&reason));
                    let stable = worked && began.elapsed() >= STABLE;
                    if let (true, Some(login)) = (stable, &self.login) {
                        login.held();
                    }
                    let renewable = match end {
                        End::Restart => true,
                        End::Refused => self.renewable(&connection),
                        End::Stop(_) | End::Lost(_) => false,
                    };
                    connection.close(tokio::time::Instant::now() + GOODBYE_LIMIT).await;
                    if stable {
                        backoff = Backoff::new();
                    }
                    if stable || renewable {
                        continue;
                    }
                    let ended = Ended { began, starts: 1, failed: !worked };
                    let due = ended.due(Instant::now(), backoff.wait());
                    if !worked {
                        self.tell_failure(&reason);
                    }
                    self.step(|state| state.rest(&reason, due));
                    due
                }
            };
            tokio::select! {
                biased;
                _ = stopped(stopping) => return Ok(()),
                called = self.upstream.wishes.rest(self.generation, due) => {
                    if !called {
                        backoff.waited();
                    }
                }
                () = oauth::changed(self.login.as_ref()) => backoff = Backoff::new(),
            }
            // Reports about connections that are gone.
            while controls.try_recv().is_ok() {}
        }
    }

    /// Reads what its entry names, which is secret from then on.
    ///
    /// # Errors
    /// [`NotRead`]
    async fn read(&self) -> Result<Target, NotRead> {
        let (target, secrets) = entry_read::read(&self.config, &self.keyring).await?;
        self.upstream.peer.secrets.hold(self.key, secrets);
        Ok(target)
    }

    /// From now on it is this that is connected to.
    async fn take_over(&mut self, next: &Target, target: &mut Option<Target>) {
        if target.as_ref() == Some(next) {
            return;
        }
        if let Some(login) = self.login.take() {
            login.end(tokio::time::Instant::now() + GOODBYE_LIMIT).await;
        }
        self.login = self.login_with(next);
        *target = Some(next.clone());
    }

    fn login_with(&self, target: &Target) -> Option<oauth::LoginTokens> {
        oauth::LoginTokens::of(&self.upstream.peer, &self.config, target, &self.tls)
    }

    /// Keeps a connection until it ends; tells whether it ever worked.
    async fn serve(
        &self,
        connection: &mut ServerConnection,
        controls: &mut mpsc::Receiver<Control>,
        stopping: &mut Stopping,
    ) -> (End, bool) {
        let (generation, about) = (self.generation, connection.greeting.about);
        let live = self.live(connection);
        self.step(|state| state.reach(live, about));
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
                following.spawn(resubscribe::keep(upstream(), generation, limit));
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
                stop = stopped(stopping) => return (End::Stop(stop), worked),
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
                        self.notice();
                    }
                }
                control = controls.recv() => match control {
                    Some(Control::Lost { generation: about, reason }) if about == generation => {
                        return (End::Lost(reason), worked);
                    }
                    Some(Control::Restart { generation: about }) if about == generation => {
                        return (End::Restart, worked);
                    }
                    Some(Control::Cancel { generation: about, id }) if about == generation => {
                        while cancelling.try_join_next().is_some() {}
                        if let Carrier::Http(session) = &connection.carrier
                            && cancelling.len() < CANCELLING
                        {
                            let session = session.clone();
                            cancelling.spawn(async move {
                                http::notify(&session, cancelled(id).into()).await;
                            });
                        }
                    }
                    Some(Control::Respond { generation: about, id, outcome })
                        if about == generation =>
                    {
                        self.respond(&connection.carrier, &mut responding, id, outcome);
                    }
                    Some(
                        Control::Lost { .. }
                        | Control::Restart { .. }
                        | Control::Cancel { .. }
                        | Control::Respond { .. },
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
                        let live = self.live(connection);
                        self.step(|state| state.renew(live));
                        renewal = oauth::renewal(login, connection.bearer());
                        if discovery.is_none() {
                            self.notice();
                        }
                    }
                    Renewal::Gone(reason) => return (End::Lost(reason.into()), worked),
                },
            }
        }
    }

    /// A connection as calls use it.
    fn live(&self, connection: &ServerConnection) -> Arc<LiveConnection> {
        Arc::new(LiveConnection {
            generation: self.generation,
            era: connection.greeting.about.era,
            link: connection.carrier.clone(),
            router: connection.router.clone(),
        })
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

    /// What its login lacks though it can be used; empty if nothing.
    fn lacking(&self) -> Arc<str> {
        self.login.as_ref().map(oauth::LoginTokens::notice).unwrap_or_default()
    }

    /// It is connected, and its login may lack something else than before.
    fn notice(&self) {
        let lacking = self.lacking();
        self.step(|state| state.notice(lacking));
    }

    /// Sends a client's answer on its way.
    fn respond(&self, carrier: &Carrier, responding: &mut JoinSet<()>, id: Bytes, outcome: Bytes) {
        while responding.try_join_next().is_some() {}
        if responding.len() >= RESPONDING {
            tracing::warn!(server = %self.upstream.name, limit = RESPONDING, "a client's answer is lost: too many are being sent");
            return;
        }
        responding.spawn(carrier.clone().respond(id, outcome, self.config.init_timeout));
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
            let fetch = |params, room| carrier.fetch(params, era, limit, room);
            let headers = match (&carrier, era) {
                (Carrier::Http(_), Era::Modern) => Headers::Repeat,
                (Carrier::Http(_), Era::Legacy) | (Carrier::Stdio(_), _) => Headers::SayNothing,
            };
            let tools = discovery::discover(&upstream.peer, &greeting, headers, fetch).await?;
            if upstream.is_retired() {
                // The tools of that name are its successor's.
                return Ok(Change::default());
            }
            catalog.take_up(&upstream.name, tools).await
        })
    }

    fn discovered(&self, connection: &ServerConnection, change: Change) {
        let tools = self.catalog.load().tools_of(&self.upstream.name).len();
        let greeting = &connection.greeting;
        let found = Discovered {
            tools,
            protocol_version: greeting.protocol_version.clone(),
            server_info: greeting.server_info.clone(),
            notice: self.lacking(),
        };
        for name in &change.duplicates {
            if self.upstream.peer.may_log() {
                tracing::warn!(server = %self.upstream.name, tool = %name, "a tool is listed twice; the first counts");
            }
        }
        tracing::info!(server = %self.upstream.name, tools, "discovered");
        if !self.upstream.is_retired() {
            (self.events)(Event::Catalog { server: self.upstream.name.clone(), change });
        }
        self.step(|state| state.discover(found));
    }

    /// Logs why it cannot be used: the same reason once, then its count, ever more seldom.
    fn tell_failure(&mut self, reason: &str) {
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
    }

    /// Makes a transition, and tells of it if what is shown is another now.
    fn step(&self, transition: impl FnOnce(&mut UpstreamState) -> Result<(), Forbidden>) {
        match self.upstream.state.make(transition) {
            Ok(true) if !self.upstream.is_retired() => {
                (self.events)(Event::Server(self.upstream.state()));
            }
            Ok(true | false) => {}
            Err(forbidden) => {
                debug_assert!(false, "{forbidden}");
                tracing::error!(server = %self.upstream.name, %forbidden, "a server's state is as before");
            }
        }
    }
}

/// Resolves when the server has to end.
async fn stopped(stopping: &mut Stopping) -> ServerStop {
    match stopping.wait_for(Option::is_some).await.map(|stop| *stop) {
        Ok(Some(stop)) => stop,
        // The supervisor was dropped without a shutdown.
        Ok(None) | Err(_) => {
            ServerStop { deadline: tokio::time::Instant::now(), why: WhyStopped::ProxyEnds }
        }
    }
}

/// The discovery's outcome, or never.
async fn done(discovery: &mut Option<Discovery>) -> Result<Change, String> {
    match discovery {
        Some(discovery) => discovery.await,
        None => std::future::pending().await,
    }
}
