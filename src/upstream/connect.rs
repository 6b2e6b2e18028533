//! An initialized connection to one server: making it, and ending it.
//!
//! Owns what belongs to a connection besides the carrier of its messages: the running lifecycle,
//! and for a child its process and the tasks on its pipes. When to connect is the supervisor's
//! decision.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;

use super::carrier::Carrier;
use super::config::Target;
use super::endpoint::{Endpoint, tls_connector};
use super::http::Session;
use super::http_transport::{self, HttpTransport};
use super::lifecycle::{self, Greeting, PipeTransport, Service};
use super::listen;
use super::notification_router::{NotificationRouter, ServerEvents};
use super::oauth::{self, Bearer};
use super::peer::Peer;
use super::probe::{Probed, Start};
use super::process::{self, LastWords, Process};
use super::reaper::Reaper;
use super::server_tls::OwnTls;
use super::stdio::{self, ChildLink, LIFECYCLE_MESSAGES};
use crate::mcp::revisions::Era;

/// Time the lifecycle has to say goodbye.
pub(super) const GOODBYE_LIMIT: Duration = Duration::from_secs(3);
/// Time to learn how a child ended once its output closed.
const EXIT_WAIT: Duration = Duration::from_millis(500);

/// What a connection is made with.
pub(super) struct ConnectOptions<'a> {
    pub(super) peer: &'a Arc<Peer>,
    /// Tells HTTP servers apart in the workers' pools.
    pub(super) key: u64,
    /// `init_timeout`
    pub(super) limit: Duration,
    /// Made when the first https server is connected.
    pub(super) tls: &'a Arc<OnceLock<TlsConnector>>,
    /// What its own section `tls` says.
    pub(super) own_tls: Option<&'a Arc<OwnTls>>,
    pub(super) server_events: &'a Arc<ServerEvents>,
    /// Ends a child should we be killed.
    pub(super) reaper: &'a Arc<Reaper>,
    /// Its login, where it can have one.
    pub(super) login: Option<&'a oauth::LoginTokens>,
}

/// Why there is no connection.
pub(super) struct ConnectFailure {
    /// In one line.
    pub(super) reason: String,
    /// How to begin the next time.
    pub(super) next: Start,
    /// How often the server was started for it.
    pub(super) starts: u32,
}

impl ConnectFailure {
    fn new(reason: String) -> Self {
        Self { reason, next: Start::Probe, starts: 1 }
    }

    /// The server had been started once before.
    fn again(self) -> Self {
        Self { starts: self.starts + 1, ..self }
    }
}

/// Starts or reaches the server and leads the handshake with it.
pub(super) async fn establish(
    target: &Target,
    place: &ConnectOptions<'_>,
    start: Start,
) -> Result<ServerConnection, ConnectFailure> {
    let (command, args, env, cwd) = match target {
        Target::Http { url, headers } => {
            return log_in_and_reach(place, url, headers, start).await;
        }
        Target::Stdio { command, args, env, cwd } => (command, args, env, cwd.as_deref()),
    };
    let again = async |start| {
        let run = run(place, command, args, env, cwd, start);
        run.await.map_err(|unstarted| unstarted.into_failure().again())
    };
    match run(place, command, args, env, cwd, start).await {
        // There are servers that end when they are asked anything before `initialize`.
        Err(Unstarted::Ended(_)) if start == Start::Probe => again(Start::Known(Era::Legacy)).await,
        // It started slowly, and was initialized though it is modern: nothing is wrong with it.
        Err(Unstarted::Other(ConnectFailure {
            next: next @ Start::Known(Era::Modern), ..
        })) if start == Start::Probe => again(next).await,
        other => other.map_err(Unstarted::into_failure),
    }
}

/// How a child failed to become a server.
enum Unstarted {
    /// It ended or closed its pipes.
    Ended(String),
    Other(ConnectFailure),
}

impl Unstarted {
    fn into_failure(self) -> ConnectFailure {
        match self {
            Self::Ended(reason) => ConnectFailure::new(reason),
            Self::Other(failure) => failure,
        }
    }
}

async fn run(
    place: &ConnectOptions<'_>,
    command: &str,
    args: &[String],
    env: &[(String, String)],
    cwd: Option<&Path>,
    start: Start,
) -> Result<ServerConnection, Unstarted> {
    let (peer, limit) = (place.peer, place.limit);
    let (process, pipes) = Process::start(place.reaper, command, args, env, cwd)
        .map_err(|reason| Unstarted::Other(ConnectFailure::new(reason)))?;
    let (link, queue) = ChildLink::new(peer.clone(), place.server_events.clone());
    let (out, inbox) = mpsc::channel(LIFECYCLE_MESSAGES);
    let (lost, losses) = mpsc::channel(1);
    let last_words = LastWords::default();
    let mut tasks = JoinSet::new();
    let writing = stdio::write(link.clone(), queue, pipes.stdin);
    let broken = lost.clone();
    let writer = tasks.spawn(async move {
        writing.await;
        let _ = broken.try_send("it closed its input".into());
    });
    let stderr =
        tokio::spawn(process::drain_stderr(peer.clone(), pipes.stderr, last_words.clone()));
    let seed = getrandom::u64().unwrap_or_default();
    let reading = stdio::read(link.clone(), pipes.stdout, out, seed);
    let reader = link.clone();
    tasks.spawn(async move {
        let reason = reading.await;
        reader.end(reason.clone());
        let _ = lost.try_send(reason);
    });
    let mut child = Child { process, last_words, stderr, tasks, writer };
    let late = Arc::new(AtomicBool::new(false));
    let pipe = PipeTransport { link: link.clone(), inbox, limit };
    let transport = Probed::new(pipe, limit, start, late.clone());
    match lifecycle::initialize(peer, transport, limit, start).await {
        Ok((service, greeting)) => Ok(ServerConnection {
            carrier: Carrier::Stdio(link.clone()),
            line: listen::Line::Stdio(link),
            router: Arc::default(),
            service: Some(service),
            greeting,
            losses,
            child: Some(child),
            login: None,
        }),
        Err(reason) => {
            let ended = !losses.is_empty();
            let reason = if ended { child.explain(reason).await } else { reason };
            child.stop(tokio::time::Instant::now() + GOODBYE_LIMIT).await;
            let next = match late.load(Ordering::Relaxed) {
                true => Start::Known(Era::Modern),
                false => Start::Probe,
            };
            Err(if ended {
                Unstarted::Ended(reason)
            } else {
                Unstarted::Other(ConnectFailure { next, ..ConnectFailure::new(reason) })
            })
        }
    }
}

/// Reaches the server with the token of its login, if there is one. A token that is refused is
/// renewed once; how often in a row that may be is the login's to say.
async fn log_in_and_reach(
    place: &ConnectOptions<'_>,
    url: &str,
    headers: &[(String, String)],
    start: Start,
) -> Result<ServerConnection, ConnectFailure> {
    let Some(login) = place.login else {
        return reach(place, url, headers, None, start).await.map_err(ConnectFailure::from);
    };
    let first = login.bearer().await.map_err(ConnectFailure::new)?;
    let refused = match reach(place, url, headers, first.as_ref(), start).await {
        Ok(connection) => return Ok(connection),
        Err(refused) if !refused.wants_login => return Err(refused.into()),
        Err(_) => first,
    };
    let needs_login = || oauth::needs_login(&place.peer.name);
    let Some(refused) = refused else { return Err(ConnectFailure::new(needs_login())) };
    login.refuse(&refused);
    let second = login.bearer().await.map_err(ConnectFailure::new)?;
    let second = second.ok_or_else(|| ConnectFailure::new(needs_login()))?;
    match reach(place, url, headers, Some(&second), start).await {
        Err(refused) if refused.wants_login => {
            login.refuse(&second);
            Err(ConnectFailure::new(needs_login()))
        }
        reached => reached.map_err(ConnectFailure::from),
    }
}

/// Why a server could not be reached.
struct Unreached {
    reason: String,
    wants_login: bool,
}

impl From<String> for Unreached {
    fn from(reason: String) -> Self {
        Self { reason, wants_login: false }
    }
}

impl From<Unreached> for ConnectFailure {
    fn from(unreached: Unreached) -> Self {
        Self::new(unreached.reason)
    }
}

async fn reach(
    place: &ConnectOptions<'_>,
    url: &str,
    headers: &[(String, String)],
    bearer: Option<&Bearer>,
    start: Start,
) -> Result<ServerConnection, Unreached> {
    let (tls, peer) = (place.tls.clone(), place.peer.clone());
    let own_tls = place.own_tls.cloned();
    let url = url.to_owned();
    // Reads certificates the first time.
    let endpoint = tokio::task::spawn_blocking(move || {
        Endpoint::parse(&url, &peer, || match own_tls {
            None => Ok(tls.get_or_init(tls_connector).clone()),
            Some(own) => own
                .connector(SystemTime::now())
                .map_err(|problem| format!("tls.{}: {problem}", problem.key.as_str())),
        })
    })
    .await
    .map_err(|error| error.to_string())??;
    let mut session = Session::new(Arc::new(endpoint), place.key, headers)?;
    if let Some(login) = place.login {
        session.heard_by(login.asked().clone());
    }
    if let Some(bearer) = bearer {
        session.log_in(bearer.header.clone());
    }
    let limit = place.limit;
    let (lost, losses) = mpsc::channel(1);
    let router = Arc::new(NotificationRouter::default());
    let told = (router.clone(), place.server_events.clone());
    let (transport, shared) = HttpTransport::new(session, limit, lost, told);
    // Over HTTP an answer that comes late has nobody to come to.
    let transport = Probed::new(transport, limit, start, Arc::default());
    let (service, greeting) = lifecycle::initialize(place.peer, transport, limit, start)
        .await
        .map_err(|reason| Unreached { reason, wants_login: shared.wants_login() })?;
    if greeting.about.era == Era::Modern {
        shared.set_modern();
    }
    Ok(ServerConnection {
        carrier: Carrier::Http(Arc::new(shared.session())),
        login: bearer.cloned().map(|bearer| (shared.clone(), bearer)),
        line: listen::Line::Http(shared),
        router,
        service: Some(service),
        greeting,
        losses,
        child: None,
    })
}

/// An initialized connection.
pub(super) struct ServerConnection {
    pub(super) carrier: Carrier,
    /// How changes are listened for, of a modern server.
    pub(super) line: listen::Line,
    pub(super) router: Arc<NotificationRouter>,
    service: Option<Service>,
    pub(super) greeting: Greeting,
    losses: mpsc::Receiver<Arc<str>>,
    child: Option<Child>,
    /// The token it goes with, and whose session to tell of another.
    login: Option<(Arc<http_transport::Shared>, Bearer)>,
}

impl ServerConnection {
    /// Waits until the connection is lost; why it was.
    pub(super) async fn lost(&mut self) -> Arc<str> {
        let Some(reason) = self.losses.recv().await else {
            // Nobody is left to report a loss: calls will.
            return std::future::pending().await;
        };
        match &mut self.child {
            Some(child) => child.explain(reason.to_string()).await.into(),
            None => reason,
        }
    }

    /// The token it goes with.
    pub(super) fn bearer(&self) -> Option<Bearer> {
        self.login.as_ref().map(|(_, bearer)| bearer.clone())
    }

    /// Goes on with another token: what is under way keeps the one it went out with.
    pub(super) fn log_in(&mut self, bearer: Bearer) {
        if let Some((shared, current)) = &mut self.login {
            self.carrier = Carrier::Http(Arc::new(shared.log_in(bearer.header.clone())));
            *current = bearer;
        }
    }

    /// Tells the calls that wait for this connection that it is over.
    pub(super) fn forsake(&self, reason: Arc<str>) {
        if let Carrier::Stdio(link) = &self.carrier {
            link.end(reason);
        }
    }

    pub(super) async fn close(mut self, deadline: tokio::time::Instant) {
        if let Some(mut service) = self.service.take() {
            let limit =
                GOODBYE_LIMIT.min(deadline.saturating_duration_since(tokio::time::Instant::now()));
            let _ = service.close_with_timeout(limit).await;
        }
        if let Some(child) = self.child.take() {
            child.stop(deadline).await;
        }
    }
}

/// A child and the tasks on its pipes.
struct Child {
    process: Process,
    last_words: LastWords,
    stderr: JoinHandle<()>,
    tasks: JoinSet<()>,
    writer: AbortHandle,
}

impl Child {
    /// Adds to a reason how the process ended and what it said last.
    async fn explain(&mut self, reason: String) -> String {
        let deadline = tokio::time::Instant::now() + EXIT_WAIT;
        let exit = self.process.ended(deadline).await;
        // What it said before it ended may not have been read yet.
        if !self.stderr.is_finished() {
            let _ = tokio::time::timeout_at(deadline, &mut self.stderr).await;
        }
        let words = self.last_words.lock().clone();
        let reason = exit.unwrap_or(reason);
        if words.is_empty() { reason } else { format!("{reason}; its last words: {words}") }
    }

    async fn stop(mut self, deadline: tokio::time::Instant) {
        // Closes the child's input, which asks it to end.
        self.writer.abort();
        self.process.stop(deadline).await;
        self.stderr.abort();
        self.tasks.shutdown().await;
    }
}
