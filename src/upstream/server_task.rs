//! Task of one server: makes connection attempts, and does all work except calls while connected.
//!
//! Only writer of the server's state ([`crate::state`] contains the diagram). While connected, it runs discovery, sends
//! cancellations and client responses, and renews the token. [`crate::supervisor`] manages all servers.
//!
//! Before each attempt, the server's entry is resolved on a blocking thread, which may take a long time if a keyring
//! prompts its user; only one server at a time asks a keyring.

use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{self, Either, OptionFuture};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_rustls::TlsConnector;

use crate::backoff::{AttemptEnd, Backoff, MAX_DELAY, Pace, STABLE_AFTER};
use crate::config::{Config, Invalid, ProtocolEra, Target};
use crate::connect::{ConnectFailure, ConnectOptions, GOODBYE_LIMIT, ServerConnection, establish};
use crate::discovery::{self, Headers, ListFailure, Partial, ReadTools};
use crate::followed_set;
use crate::handle::{ServerStop, Upstream, WhyStopped};
use crate::handshake::Start;
use crate::listen;
use crate::notifications::NotificationRouter;
use crate::oauth::{self, ChallengeOutcome, Renewal};
use crate::outbox::{ControlEnd, Outbox};
use crate::reaper::Reaper;
use crate::remembered_family::FamilyMemory;
use crate::second_task::{self, FirstConnection, FirstEnded, SecondTask};
use crate::state::{
    Carrier, Control, Discovered, Event, Forbidden, ServerState, Status, Transport, UpstreamState,
};
use crate::stdio::SentFor;
use mcpproxy_catalog::{Catalog, Change};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::line_budget::peer_line;

/// Delay after a failed keyring access, because each access may prompt the user to unlock the keyring.
const KEYRING_RETRY: Duration = Duration::from_secs(30);

/// Reason for a disconnect requested by the operator.
const RESTARTED: &str = "it was restarted by its operator";
/// Reason for a disconnect because of a rejected token.
const TOKEN_REFUSED: &str = "its token was refused";

pub(super) struct ServerTask {
    pub(super) upstream: Arc<Upstream>,
    pub(super) config: Config,
    pub(super) key: u64,
    pub(super) catalog: Arc<Catalog>,
    pub(super) events: Arc<dyn Fn(Event) + Send + Sync>,
    /// Created when the first https server is connected.
    pub(super) tls: Arc<OnceLock<TlsConnector>>,
    pub(super) reaper: Arc<Reaper>,
    /// Permit to ask a keyring.
    pub(super) keyring: Arc<Semaphore>,
    pub(super) generation: u64,
    /// OAuth tokens of the server, if it may have any; `None` before its entry was resolved.
    pub(super) login: Option<oauth::LoginTokens>,
    /// Last failure and the number of consecutive repetitions.
    pub(super) failed: Option<(String, u64)>,
    /// Total size of client responses in progress.
    pub(super) responding_bytes: Arc<AtomicUsize>,
    pub(super) second: Option<SecondTask>,
}

/// Reason for the end of a connection.
enum End {
    Stop(ServerStop),
    Lost(Arc<str>),
    /// The token was rejected.
    Refused,
    /// The operator requested a new connection.
    Restart,
}

type Stopping = watch::Receiver<Option<ServerStop>>;
type Discovery = Pin<Box<dyn Future<Output = Result<Refreshed, ListFailure>> + Send>>;

/// List of tools that has been read and published.
struct Refreshed {
    change: Change,
    partial: Option<Partial>,
}

impl ServerTask {
    pub(super) async fn run(mut self, controls: mpsc::Receiver<Control>, mut stopping: Stopping) {
        match self.keep_connected(controls, &mut stopping).await {
            Ok(()) => {
                let stop = stopped(&mut stopping).await;
                self.stop(stop.why);
                if let Some(login) = &self.login {
                    login.end(stop.deadline).await;
                }
            }
            Err(reason) => {
                self.log_failure(&reason);
                self.step(|state| state.stop(&reason));
            }
        }
    }

    /// Connects and reconnects until stopped. An error is the reason why the entry does not name a server.
    async fn keep_connected(
        &mut self,
        mut controls: mpsc::Receiver<Control>,
        stopping: &mut Stopping,
    ) -> Result<(), String> {
        let mut target: Option<Target> = None;
        let mut backoff = Backoff::new();
        let memory = FamilyMemory::of(&self.upstream.name, &self.config);
        let mut start = Self::remembered(&memory).await;
        // Pending writes of the remembered family; nothing waits for them.
        let mut noting = JoinSet::new();
        let mut is_first = true;
        // Router of the last connection over HTTP.
        let mut router: Option<Arc<NotificationRouter>> = None;
        let mut its_second = self.second.take();
        loop {
            let again = !std::mem::replace(&mut is_first, false);
            if again {
                self.upstream.count_restart();
            }
            self.generation += 1;
            let for_operator = self.upstream.connect_requests.has_at_once(self.generation);
            self.step(|state| match for_operator {
                true => state.begin_requested(self.generation, Instant::now()),
                false => state.begin(self.generation, Instant::now()),
            });
            let mut min_delay = Duration::ZERO;
            let resolved = match &target {
                Some(known) if self.config.named.is_none() => Ok(known.clone()),
                // References may now resolve differently, for example because of a renewed token or an unlocked
                // keyring.
                Some(_) | None => {
                    let read = tokio::select! {
                        biased;
                        _ = stopped(stopping) => return Ok(()),
                        read = self.read() => read,
                    };
                    match read {
                        Ok(next) => {
                            self.adopt(&next, &mut target).await;
                            Ok(next)
                        }
                        Err(NotRead::NoServer(reason)) => return Err(reason),
                        Err(NotRead::NotNow(reason)) => {
                            if self.config.asks_keyring() {
                                min_delay = KEYRING_RETRY;
                            }
                            Err(reason)
                        }
                    }
                }
            };
            // The start time is taken after the keyring prompt, which may take a long time.
            let began = Instant::now();
            let options = ConnectOptions {
                server_log: &self.upstream.server_log,
                key: self.key,
                limit: self.init_limit(),
                tls: &self.tls,
                own_tls: self.upstream.own_tls.as_ref(),
                server_events: &self.upstream.server_events,
                reaper: &self.reaper,
                login: self.login.as_ref(),
                before: router.as_deref(),
            };
            let start_now = match self.config.protocol_era {
                ProtocolEra::Auto => start,
                ProtocolEra::Legacy => Start::Known(ProtocolFamily::Legacy),
                ProtocolEra::Modern => Start::Known(ProtocolFamily::Modern),
            };
            let connecting = async {
                match resolved {
                    Ok(target) => establish(&target, &options, start_now).await,
                    Err(reason) => {
                        Err(ConnectFailure { reason, next: start, starts: 0, throttled: None })
                    }
                }
            };
            let connected = tokio::select! {
                biased;
                _ = stopped(stopping) => None,
                connected = connecting => Some(connected),
            };
            let due = match connected {
                None => return Ok(()),
                Some(Err(ConnectFailure { reason, next, starts, throttled })) => {
                    start = next;
                    let reason = match self.handle_challenge(None).await {
                        ChallengeOutcome::Lacks(notice) => notice.to_string(),
                        ChallengeOutcome::Refused | ChallengeOutcome::Nothing => reason,
                    };
                    let attempt_end = AttemptEnd { began, starts, failed: true };
                    let now = Instant::now();
                    let min_delay = min_delay.max(throttled.flatten().unwrap_or_default());
                    let due = attempt_end.due(now, backoff.wait()).not_before(now + min_delay);
                    self.log_failure(&reason);
                    self.step(|state| match throttled {
                        Some(_) => state.refuse(&reason, due),
                        None => state.fail(&reason, due),
                    });
                    due
                }
                Some(Ok(mut connection)) => {
                    self.upstream.connect_requests.forget_at_once();
                    // The family is reused only for legacy servers, which may react badly to a probe. For a modern
                    // server, the probe is its first regular request anyway.
                    let family = connection.greeting.about.family;
                    if start_now == Start::Probe {
                        self.remember(&mut noting, memory.clone(), family);
                    }
                    start = match family {
                        ProtocolFamily::Legacy => Start::Known(family),
                        ProtocolFamily::Modern => Start::Probe,
                    };
                    let its_router = Arc::clone(&connection.router);
                    let (first_ended, ending) = oneshot::channel();
                    let limit = self.config.init_timeout;
                    let first = FirstConnection {
                        // The second connection has its own router.
                        options: ConnectOptions { limit, before: None, ..options },
                        target: target.as_ref(),
                        family: connection.greeting.about.family,
                        lists_legacy: connection.greeting.lists_legacy,
                        responding_bytes: &self.responding_bytes,
                    };
                    second_task::begin(&self.upstream, first.family, first.lists_legacy);
                    let second =
                        second_task::run(its_second.as_mut(), &self.upstream, first, ending);
                    let served = self.serve(&mut connection, &mut controls, stopping);
                    let ((end, worked), second) =
                        match future::select(Box::pin(served), Box::pin(second)).await {
                            Either::Left((served, second)) => (served, Some(second)),
                            Either::Right(((), served)) => (served.await, None),
                        };
                    let second = OptionFuture::from(second);
                    if worked {
                        self.failed = None;
                    }
                    let reason: Arc<str> = match &end {
                        End::Stop(ServerStop { deadline, why }) => {
                            self.stop(*why);
                            let reason: Arc<str> = why.cut_off().into();
                            connection.fail_calls(Arc::clone(&reason));
                            let deadline = *deadline;
                            let _ = first_ended.send(FirstEnded { deadline, reason });
                            tokio::join!(connection.close(deadline), second);
                            return Ok(());
                        }
                        End::Lost(reason) => Arc::clone(reason),
                        End::Refused => TOKEN_REFUSED.into(),
                        End::Restart => RESTARTED.into(),
                    };
                    // If the connection worked, further calls wait for the next attempt instead of failing.
                    self.step(|state| state.lose(&reason));
                    connection.fail_calls(Arc::clone(&reason));
                    let stable = worked && began.elapsed() >= STABLE_AFTER;
                    if let (true, Some(login)) = (stable, &self.login) {
                        login.reset_refusals();
                    }
                    let renewable = match end {
                        End::Restart => true,
                        End::Refused => self.renewable(&connection),
                        End::Stop(_) | End::Lost(_) => false,
                    };
                    let deadline = tokio::time::Instant::now() + GOODBYE_LIMIT;
                    let _ = first_ended.send(FirstEnded { deadline, reason: Arc::clone(&reason) });
                    tokio::join!(connection.close(deadline), second);
                    router = Some(its_router);
                    if stable {
                        backoff = Backoff::new();
                    }
                    if stable || renewable {
                        continue;
                    }
                    let attempt_end = AttemptEnd { began, starts: 1, failed: !worked };
                    let due = attempt_end.due(Instant::now(), backoff.wait());
                    if !worked {
                        self.log_failure(&reason);
                    }
                    self.step(|state| state.rest(&reason, due));
                    due
                }
            };
            tokio::select! {
                biased;
                _ = stopped(stopping) => return Ok(()),
                called = self.upstream.connect_requests.wait_until_due(self.generation, due) => {
                    if !called {
                        backoff.advance();
                    }
                }
                () = oauth::changed(self.login.as_ref()) => backoff = Backoff::new(),
            }
            // Discards messages about earlier connections.
            while controls.try_recv().is_ok() {}
        }
    }

    /// Time limit for the handshake; longer while a package manager may be installing the server.
    fn init_limit(&self) -> Duration {
        let is_known = self.upstream.state.load().is_discovered();
        if is_known { self.config.init_timeout } else { self.config.first_init_timeout() }
    }

    /// Start mode of the first handshake, as remembered from an earlier process.
    async fn remembered(memory: &FamilyMemory) -> Start {
        let memory = memory.clone();
        let read = tokio::task::spawn_blocking(move || memory.start(SystemTime::now()));
        read.await.unwrap_or(Start::Probe)
    }

    /// Remembers the family of a probed server.
    fn remember(&self, noting: &mut JoinSet<()>, memory: FamilyMemory, family: ProtocolFamily) {
        while noting.try_join_next().is_some() {}
        let upstream = Arc::clone(&self.upstream);
        noting.spawn_blocking(move || {
            if let Err(error) = memory.note(family, SystemTime::now()) {
                let server = &upstream.name;
                peer_line!(warn, upstream.server_log, %server, %error, "its protocol family could not be stored: the server is probed again at the next start");
            }
        });
    }

    /// Resolves the entry. From then on, the resolved values are redacted.
    async fn read(&self) -> Result<Target, NotRead> {
        let (target, secrets) = read_entry(&self.config, &self.keyring).await?;
        self.upstream.server_log.secrets.hold(self.key, secrets);
        Ok(target)
    }

    /// Adopts the resolved entry for the next attempts.
    async fn adopt(&mut self, next: &Target, target: &mut Option<Target>) {
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
        oauth::LoginTokens::of(&self.upstream.server_log, &self.config, target, &self.tls)
    }

    /// Serves a connection until it ends. Also returns whether it ever worked.
    async fn serve(
        &self,
        connection: &mut ServerConnection,
        controls: &mut mpsc::Receiver<Control>,
        stopping: &mut Stopping,
    ) -> (End, bool) {
        let (generation, about) = (self.generation, connection.greeting.about);
        let live = connection.live(generation);
        self.step(|state| state.reach(live, about));
        self.upstream.server_events.reconnected();
        self.upstream.list_faults.clear();
        let mut following = JoinSet::new();
        let upstream = || self.upstream.clone();
        if let (ProtocolFamily::Legacy, listen::Line::Http(http)) = (about.family, &connection.line)
        {
            following.spawn(listen::read_session_stream(upstream(), http.clone()));
        }
        match (about.family, about.offers.resource_updates) {
            (ProtocolFamily::Modern, updates) => {
                let line = connection.line.clone();
                if updates {
                    following.spawn(followed_set::follow_resources(upstream(), line.clone()));
                }
                following.spawn(followed_set::follow_tasks(upstream(), line.clone()));
                following.spawn(listen::follow(upstream(), line, about.offers));
            }
            (ProtocolFamily::Legacy, true) => {
                let limit = self.config.init_timeout;
                following.spawn(listen::keep_subscribed(upstream(), generation, limit));
            }
            (ProtocolFamily::Legacy, false) => {}
        }
        let login = self.login.as_ref();
        let mut renewal = oauth::renewal(login, connection.bearer());
        let mut worked = false;
        // Whether a list was read to its end.
        let mut complete = false;
        let limit = self.config.init_timeout;
        let mut outbox = Outbox::new(&self.upstream.server_log, limit, &self.responding_bytes);
        let mut pace = Pace::default();
        let mut retry = Backoff::new();
        let mut discovery: Option<Discovery> =
            Some(self.discovery(connection, Duration::ZERO, false));
        loop {
            tokio::select! {
                biased;
                stop = stopped(stopping) => return (End::Stop(stop), worked),
                reason = connection.lost() => return (End::Lost(reason), worked),
                discovered = done(&mut discovery) => {
                    discovery = None;
                    let failure = match discovered {
                        // A complete list is not replaced by a partial one.
                        Ok(Refreshed { partial: Some(Partial { failure: Some(failure), .. }), .. })
                            if complete => failure,
                        Ok(Refreshed { change, partial }) => {
                            worked = true;
                            complete |= partial.is_none();
                            let failure = self.discovered(connection, change, partial);
                            match failure {
                                None => retry = Backoff::new(),
                                Some(failure) => {
                                    let after = retry_after(&mut retry, &failure);
                                    discovery = Some(self.discovery(connection, after, complete));
                                }
                            }
                            continue;
                        }
                        Err(failure) => failure,
                    };
                    match self.handle_challenge(Some(connection)).await {
                        ChallengeOutcome::Refused => return (End::Refused, worked),
                        ChallengeOutcome::Lacks(notice) => return (End::Lost(notice), worked),
                        ChallengeOutcome::Nothing => {}
                    }
                    let kept = worked || failure.throttled.is_some();
                    if failure.ends_connection || !kept {
                        return (End::Lost(failure.reason.into()), worked);
                    }
                    self.stale(worked, &failure);
                    let after = retry_after(&mut retry, &failure);
                    discovery = Some(self.discovery(connection, after, complete));
                }
                () = oauth::challenged(login) => {
                    if matches!(self.handle_challenge(Some(connection)).await, ChallengeOutcome::Refused) {
                        return (End::Refused, worked);
                    }
                    if discovery.is_none() {
                        self.notice();
                    }
                }
                Some(control) = controls.recv() => {
                    match outbox.handle(control, generation, &connection.carrier) {
                        Some(ControlEnd::Lost(reason)) => return (End::Lost(reason), worked),
                        Some(ControlEnd::Restart) => return (End::Restart, worked),
                        None => {}
                    }
                }
                () = self.upstream.server_events.tools.notified(), if discovery.is_none() => {
                    let refresh = pace.changed(Instant::now());
                    if refresh.warn {
                        let server = &self.upstream.name;
                        peer_line!(warn, self.upstream.server_log, %server, "tool list changes too often; refresh interval raised to up to {MAX_DELAY:?}");
                    }
                    discovery = Some(self.discovery(connection, refresh.after, complete));
                }
                renewed = &mut renewal => match renewed {
                    Renewal::Bearer(bearer) => {
                        connection.log_in(bearer);
                        let live = connection.live(generation);
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

    /// Handles the server's authentication challenge.
    async fn handle_challenge(&self, connection: Option<&ServerConnection>) -> ChallengeOutcome {
        let bearer = connection.and_then(ServerConnection::bearer);
        match &self.login {
            Some(login) => login.handle_challenge(bearer.as_ref()).await,
            None => ChallengeOutcome::Nothing,
        }
    }

    /// Whether to renew the token with which the connection ended.
    fn renewable(&self, connection: &ServerConnection) -> bool {
        let refused = self.login.as_ref().zip(connection.bearer());
        refused.is_some_and(|(login, bearer)| login.refuse(&bearer))
    }

    /// Missing scopes of a usable login, as text; empty if none are missing.
    fn lacking(&self) -> Arc<str> {
        self.login.as_ref().map(oauth::LoginTokens::notice).unwrap_or_default()
    }

    /// Updates the missing scopes of the server's login while it is connected.
    fn notice(&self) {
        let lacking = self.lacking();
        self.step(|state| state.notice(lacking));
    }

    /// Reads the list of tools after a delay and updates the catalog. A list whose rest may be read later does not
    /// replace a known `complete` list.
    fn discovery(
        &self,
        connection: &ServerConnection,
        after: Duration,
        complete: bool,
    ) -> Discovery {
        let (carrier, greeting) = (connection.carrier.clone(), connection.greeting.clone());
        let (upstream, catalog) = (self.upstream.clone(), self.catalog.clone());
        let limit = self.config.init_timeout;
        Box::pin(async move {
            tokio::time::sleep(after).await;
            // This refresh covers earlier change notifications.
            let _ = upstream.server_events.tools.notified().now_or_never();
            let family = greeting.about.family;
            let events = &upstream.server_events;
            let reported = events.take_tools_report();
            let fetch = |params, max_bytes| {
                carrier.fetch(events, params, family, limit, (max_bytes, SentFor::Nobody))
            };
            let headers = match (&carrier, family) {
                (Carrier::Http(_), ProtocolFamily::Modern) => Headers::Repeat,
                (Carrier::Http(_), ProtocolFamily::Legacy) | (Carrier::Stdio(_), _) => {
                    Headers::Ignore
                }
            };
            let read = discovery::discover(&upstream.server_log, &greeting, headers, fetch).await;
            let read = read.inspect_err(|_| {
                // The next attempt follows.
                if reported {
                    events.tools_changed();
                }
            })?;
            let ReadTools { tools, partial } = read;
            let may_be_read_later = partial.as_ref().is_some_and(|it| it.failure.is_some());
            // The tools of a retired server are not published, because its name belongs to its successor. A partial
            // list does not replace a complete one.
            if upstream.is_retired() || (complete && may_be_read_later) {
                return Ok(Refreshed { change: Change::default(), partial });
            }
            let change = catalog.take_up(&upstream.name, tools).await?;
            if reported && !change.tools_differ() {
                // The server reported a change that the catalog does not detect. Clients are notified anyway, as they
                // would be without the proxy.
                catalog.report_changed();
            }
            Ok(Refreshed { change, partial })
        })
    }

    /// Marks the list of tools as stale; the previous list is kept.
    fn stale(&self, worked: bool, failure: &ListFailure) {
        let reason = &failure.reason;
        let server_log = &self.upstream.server_log;
        peer_line!(warn, server_log, server = %server_log.name, reason, "the list of tools could not be read: the last list is kept, and reading is retried with backoff");
        if worked {
            let fault = format!("{} is stale: {reason}", discovery::METHOD);
            self.report_list(Some(fault));
        } else {
            self.step(|state| state.throttle(reason));
        }
    }

    /// Sets or clears the fault of the list of tools.
    fn report_list(&self, fault: Option<String>) {
        let changed = self.upstream.list_faults.set(discovery::METHOD, fault);
        self.upstream.state.notify();
        if changed && !self.upstream.is_retired() {
            (self.events)(Event::Server(self.upstream.state()));
        }
    }

    /// Reports a list that was read. Returns the reason if its rest may be read later.
    fn discovered(
        &self,
        connection: &ServerConnection,
        change: Change,
        partial: Option<Partial>,
    ) -> Option<ListFailure> {
        let tools = self.catalog.load().tools_of(&self.upstream.name).len();
        let greeting = &connection.greeting;
        let found = Discovered {
            tools,
            protocol_version: greeting.protocol_version.clone(),
            server_info: greeting.server_info.clone(),
            introduced: Arc::clone(&greeting.introduced),
            notice: self.lacking(),
        };
        let server_log = &self.upstream.server_log;
        for name in &change.duplicates {
            peer_line!(warn, server_log, server = %server_log.name, tool = %name, "ignored a duplicate tool");
        }
        for note in &change.noted {
            let (tool, reason) = (server_log.quote(&*note.item), server_log.quote(&*note.reason));
            let action = note.action.as_str();
            peer_line!(warn, server_log, server = %server_log.name, %tool, action, %reason, "nonconforming tool in a list");
        }
        peer_line!(info, server_log, server = %self.upstream.name, tools, "discovered");
        if !self.upstream.is_retired() {
            (self.events)(Event::Catalog { server: self.upstream.name.clone(), change });
        }
        self.step(|state| state.discover(found));
        let fault = partial.as_ref().map(|partial| {
            let reason = &partial.reason;
            peer_line!(warn, server_log, server = %server_log.name, reason, tools, "the list of tools is partial");
            format!("{} is partial: {reason}", discovery::METHOD)
        });
        self.report_list(fault);
        partial.and_then(|partial| partial.failure)
    }

    /// Logs a failure: a new reason immediately, its repetitions at powers of two from the 8th onward.
    fn log_failure(&mut self, reason: &str) {
        let server = &self.upstream.name;
        match &mut self.failed {
            Some((last, times)) if last == reason => {
                *times += 1;
                note(&self.upstream, &format!("still unusable: {reason}"));
                if times.is_power_of_two() && *times > 4 {
                    peer_line!(warn, self.upstream.server_log, %server, times, "the server is still unusable");
                }
            }
            _ => {
                // Also reached for each attempt if the reason contains a duration, because the reasons then differ.
                peer_line!(warn, self.upstream.server_log, %server, reason, "the server is unusable");
                self.failed = Some((reason.to_owned(), 1));
            }
        }
    }

    /// Stops permanently. The shutdown of the proxy is not a failure of the server and is not reported.
    fn stop(&self, why: WhyStopped) {
        match why {
            WhyStopped::ProxyEnds => {
                // A disabled server has no task.
                let _ = self.upstream.state.make(|state| state.stop(why.reason()));
            }
            WhyStopped::Retired => self.step(|state| state.stop(why.reason())),
        }
    }

    /// Makes a transition and reports a change of the visible state.
    fn step(&self, transition: impl FnOnce(&mut UpstreamState) -> Result<(), Forbidden>) {
        match self.upstream.state.make(transition) {
            Ok(true) if !self.upstream.is_retired() => {
                let state = self.upstream.state();
                note(&self.upstream, &noted(&state));
                (self.events)(Event::Server(state));
            }
            Ok(true | false) => {}
            Err(forbidden) => {
                debug_assert!(false, "{forbidden}");
                let server_log = &self.upstream.server_log;
                peer_line!(error, server_log, server = %server_log.name, %forbidden, "ignored an invalid state transition");
            }
        }
    }
}

/// Adds a line to the stored output of a server that has a URL and therefore no output of its own. Never blocks.
fn note(upstream: &Upstream, line: &str) {
    match upstream.transport {
        Transport::StreamableHttp => upstream.server_log.keep_stderr(line.as_bytes(), false),
        Transport::Stdio | Transport::Unknown => {}
    }
}

/// State in one line.
fn noted(state: &ServerState) -> String {
    let ServerState { status, reason, tools, protocol_version, server_info, .. } = state;
    let mut line = status.as_str().to_owned();
    if *status == Status::Connected {
        line += &format!(", tools: {tools}");
        let about = [("MCP ", protocol_version), ("", server_info)];
        let about = about.iter().filter_map(|(kind, it)| Some(format!(", {kind}{}", it.as_ref()?)));
        line.extend(about);
    }
    if !reason.is_empty() {
        line += &format!(": {reason}");
    }
    line
}

/// Delay before a list is read again: the delay of the backoff, or the time that the server asked for if that is
/// longer.
fn retry_after(backoff: &mut Backoff, failure: &ListFailure) -> Duration {
    let delay = backoff.wait().max(failure.throttled.flatten().unwrap_or_default());
    backoff.advance();
    delay
}

/// Waits until the server must end.
async fn stopped(stopping: &mut Stopping) -> ServerStop {
    match stopping.wait_for(Option::is_some).await.map(|stop| *stop) {
        Ok(Some(stop)) => stop,
        // The supervisor was dropped without a shutdown.
        Ok(None) | Err(_) => {
            ServerStop { deadline: tokio::time::Instant::now(), why: WhyStopped::ProxyEnds }
        }
    }
}

/// Waits for the running discovery; never resolves without one.
async fn done(discovery: &mut Option<Discovery>) -> Result<Refreshed, ListFailure> {
    match discovery {
        Some(discovery) => discovery.await,
        None => std::future::pending().await,
    }
}

/// Reason why the entry could not be resolved, in one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotRead {
    /// The entry does not name a server, regardless of its references.
    NoServer(String),
    /// A reference cannot be resolved at the moment.
    NotNow(String),
}

/// Resolves the entry. Also returns its secret values. `keyring` is the permit to ask a keyring.
pub(super) async fn read_entry(
    config: &Config,
    keyring: &Arc<Semaphore>,
) -> Result<(Target, Vec<String>), NotRead> {
    let asking = match config.asks_keyring() {
        // The semaphore is never closed.
        true => Arc::clone(keyring).acquire_owned().await.ok(),
        false => None,
    };
    let config = config.clone();
    let read = on_blocking_thread(asking, move || {
        let target = config.target(&|name| std::env::var(name).ok())?;
        let secrets = config.secrets_of(&target);
        Ok::<_, Invalid>((target, secrets))
    });
    match read.await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(invalid)) if invalid.is_lasting() => Err(NotRead::NoServer(invalid.to_string())),
        Ok(Err(invalid)) => Err(NotRead::NotNow(invalid.to_string())),
        Err(_) => Err(NotRead::NotNow("reading its values failed".to_owned())),
    }
}

/// Runs `read` on a blocking thread. The permit is released when `read` ends, even if its result is no longer awaited,
/// because the keyring may still be prompting.
async fn on_blocking_thread<T: Send + 'static>(
    asking: Option<OwnedSemaphorePermit>,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let run = move || {
        let _asking = asking;
        read()
    };
    tokio::task::spawn_blocking(run).await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use serde_json::json;

    use super::*;

    /// Time limit for any operation in these tests.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn temporary_failures_are_distinguished_from_invalid_entries() {
        let keyring = Arc::new(Semaphore::new(1));
        let with = |value: &str| json!({"command": "x", "env": {"A": value}});
        for (entry, is_lasting) in [
            (json!({}), true),
            (json!({"command": "x", "url": "http://h"}), true),
            (json!({"protocol": "stdio"}), true),
            (json!({"protocol": "http"}), true),
            (with("${env:MCPPROXY_NOT_SET}"), true),
            (with("${input:a}"), true),
            (with("${file:/none"), true),
            (with("${file:/no/such/file}"), false),
            (with("${credential:none}"), false),
            (with("${keyring:no-user}"), false),
        ] {
            let config: Config = serde_json::from_value(entry.clone()).unwrap();
            let why = read_entry(&config, &keyring).await.err().unwrap();
            assert_eq!(matches!(why, NotRead::NoServer(_)), is_lasting, "{entry}: {why:?}");
            assert_eq!(keyring.available_permits(), 1, "{entry}");
        }
    }

    #[tokio::test]
    async fn keyring_permit_is_held_until_the_read_ends_even_if_abandoned() {
        let keyring = Arc::new(Semaphore::new(1));
        let (answer, answered) = mpsc::channel::<()>();
        let asking = Arc::clone(&keyring).try_acquire_owned().unwrap();
        let mut asked = Box::pin(on_blocking_thread(Some(asking), move || answered.recv().is_ok()));
        assert!((&mut asked).now_or_never().is_none(), "it has started");
        // Simulates a server that ends.
        drop(asked);
        assert_eq!(keyring.available_permits(), 0);
        answer.send(()).unwrap();
        let next = tokio::time::timeout(PATIENCE, keyring.acquire()).await;
        assert!(next.expect("the read has ended").is_ok());
    }
}
