//! Establishes and closes an initialized connection to one server.
//!
//! Owns the parts of a connection in addition to its transport: for a child, its process and the tasks on its pipes.
//! [`crate::server_task`] decides when to connect.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;

use crate::config::{ChildCommand, Target};
use crate::endpoint::{Endpoint, OwnTls};
use crate::handshake::{self, Greeting, HandshakeFailure, LifecycleChannel, PipeLifecycle, Start};
use crate::http::Session;
use crate::http_transport::HttpLifecycle;
use crate::listen;
use crate::notifications::{NotificationRouter, ServerEvents};
use crate::oauth::{self, Bearer};
use crate::process::{self, Process, RecentStderr, StderrCause};
use crate::reaper::Reaper;
use crate::server_log::ServerLog;
use crate::state::{Carrier, LiveConnection};
use crate::stdio::{self, ChildLink, LIFECYCLE_MESSAGES};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::tls::system_connector;

/// Time for a graceful close of the protocol session.
pub(super) const GOODBYE_LIMIT: Duration = Duration::from_secs(3);
/// Wait for a child's exit status after its output closed.
const EXIT_WAIT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy)]
pub(super) struct ConnectOptions<'a> {
    pub(super) server_log: &'a Arc<ServerLog>,
    /// Key of the server in the workers' connection pools.
    pub(super) key: u64,
    /// `init_timeout`
    pub(super) limit: Duration,
    /// Created when the first https server is connected.
    pub(super) tls: &'a Arc<OnceLock<TlsConnector>>,
    /// The server's own `tls` section.
    pub(super) own_tls: Option<&'a Arc<OwnTls>>,
    pub(super) server_events: &'a Arc<ServerEvents>,
    /// Ends the child if this process is killed.
    pub(super) reaper: &'a Arc<Reaper>,
    /// OAuth tokens of the server, if it may have any.
    pub(super) login: Option<&'a oauth::LoginTokens>,
    /// Router of the previous HTTP connection, whose calls the server may still be working on.
    pub(super) before: Option<&'a NotificationRouter>,
}

pub(super) struct ConnectFailure {
    pub(super) reason: String,
    /// Start mode of the next attempt.
    pub(super) next: Start,
    /// Number of server starts in the attempt.
    pub(super) starts: u32,
    /// Set if the server rate-limits requests; contains the delay that it requested, if any.
    pub(super) throttled: Option<Option<Duration>>,
}

impl ConnectFailure {
    pub(super) fn new(reason: String) -> Self {
        Self { reason, next: Start::Probe, starts: 1, throttled: None }
    }

    /// Counts one additional start.
    fn again(self) -> Self {
        Self { starts: self.starts + 1, ..self }
    }
}

/// Starts or connects to the server and performs the handshake.
pub(super) async fn establish(
    target: &Target,
    options: &ConnectOptions<'_>,
    start: Start,
) -> Result<ServerConnection, ConnectFailure> {
    let child = match target {
        Target::Http { .. } => return log_in_and_reach(options, target, start).await,
        Target::Stdio(child) => child,
    };
    let again = async |start| {
        let run = run(options, child, start);
        run.await.map_err(|unstarted| unstarted.into_failure().again())
    };
    match run(options, child, start).await {
        // Some servers exit when they receive anything before `initialize`.
        Err(Unstarted::Ended(_)) if start == Start::Probe => {
            again(Start::Known(ProtocolFamily::Legacy)).await
        }
        // A modern server that started slowly received `initialize`; this is not a failure.
        Err(Unstarted::Other(ConnectFailure {
            next: next @ Start::Known(ProtocolFamily::Modern),
            ..
        })) if start == Start::Probe => again(next).await,
        other => other.map_err(Unstarted::into_failure),
    }
}

enum Unstarted {
    /// The server exited or closed its pipes.
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
    options: &ConnectOptions<'_>,
    child: &ChildCommand,
    start: Start,
) -> Result<ServerConnection, Unstarted> {
    let (server_log, limit) = (options.server_log, options.limit);
    let (process, pipes) = Process::start(options.reaper, child)
        .map_err(|reason| Unstarted::Other(ConnectFailure::new(reason)))?;
    let (link, queue) = ChildLink::new(server_log.clone(), options.server_events.clone());
    let (out, inbox) = mpsc::channel(LIFECYCLE_MESSAGES);
    let (lost, losses) = mpsc::channel(1);
    let recent_stderr = RecentStderr::default();
    let mut tasks = JoinSet::new();
    let writing = stdio::write(link.clone(), queue, pipes.stdin);
    let broken = lost.clone();
    let writer = tasks.spawn(async move {
        writing.await;
        let _ = broken.try_send("it closed its input".into());
    });
    let stderr = tokio::spawn(process::drain_stderr(
        server_log.clone(),
        pipes.stderr,
        recent_stderr.clone(),
    ));
    let seed = getrandom::u64().unwrap_or_default();
    let reading = stdio::read(link.clone(), pipes.stdout, out, seed);
    let reader = link.clone();
    tasks.spawn(async move {
        let reason = reading.await;
        reader.end(reason.clone());
        let _ = lost.try_send(reason);
    });
    let mut child = Child { process, recent_stderr, stderr, tasks, writer };
    let mut channel = LifecycleChannel::Pipe(PipeLifecycle::new(link.clone(), inbox, limit));
    match handshake::perform(server_log, &mut channel, limit, start).await {
        Ok(greeting) => Ok(ServerConnection {
            carrier: Carrier::Stdio(link.clone()),
            line: listen::Line::Stdio(link),
            router: Arc::default(),
            greeting,
            losses,
            child: Some(child),
            login: None,
        }),
        Err(HandshakeFailure { reason, throttled: _ }) => {
            let ended = !losses.is_empty();
            let mut reason = if ended { child.explain(reason).await } else { reason };
            if child.recent_stderr.cause().is_none()
                && let Some(line) = link.first_garbage.get()
            {
                reason += &format!("; it wrote a line that is not a JSON-RPC message: {line}");
            }
            child.stop(tokio::time::Instant::now() + GOODBYE_LIMIT).await;
            let next = match &channel {
                LifecycleChannel::Pipe(pipe) if pipe.late => Start::Known(ProtocolFamily::Modern),
                LifecycleChannel::Pipe(_) | LifecycleChannel::Http(_) => Start::Probe,
            };
            Err(if ended {
                Unstarted::Ended(reason)
            } else {
                Unstarted::Other(ConnectFailure { next, ..ConnectFailure::new(reason) })
            })
        }
    }
}

/// Connects with the token of the login, if any. If the server rejects the token, the token is renewed once; the login
/// limits the number of renewals in a row.
async fn log_in_and_reach(
    options: &ConnectOptions<'_>,
    target: &Target,
    start: Start,
) -> Result<ServerConnection, ConnectFailure> {
    let Some(login) = options.login else {
        return reach(options, target, None, start).await.map_err(ConnectFailure::from);
    };
    let first = login.bearer().await.map_err(ConnectFailure::new)?;
    let refused = match reach(options, target, first.as_ref(), start).await {
        Ok(connection) => return Ok(connection),
        Err(refused) if !refused.wants_login => return Err(refused.into()),
        Err(_) => first,
    };
    let Some(refused) = refused else { return Err(ConnectFailure::new(login.no_token())) };
    login.refuse(&refused);
    let second = login.bearer().await.map_err(ConnectFailure::new)?;
    let second = second.ok_or_else(|| ConnectFailure::new(login.no_token()))?;
    match reach(options, target, Some(&second), start).await {
        Err(refused) if refused.wants_login => {
            login.refuse(&second);
            Err(ConnectFailure::new(login.no_token()))
        }
        reached => reached.map_err(ConnectFailure::from),
    }
}

struct Unreached {
    reason: String,
    wants_login: bool,
    throttled: Option<Option<Duration>>,
}

impl From<String> for Unreached {
    fn from(reason: String) -> Self {
        Self { reason, wants_login: false, throttled: None }
    }
}

impl From<Unreached> for ConnectFailure {
    fn from(unreached: Unreached) -> Self {
        Self { throttled: unreached.throttled, ..Self::new(unreached.reason) }
    }
}

async fn reach(
    options: &ConnectOptions<'_>,
    target: &Target,
    bearer: Option<&Bearer>,
    start: Start,
) -> Result<ServerConnection, Unreached> {
    let Target::Http { url, headers, egress, client: _ } = target else {
        return Err("the server is a command".to_owned().into());
    };
    let (tls, server_log) = (options.tls.clone(), options.server_log.clone());
    let own_tls = options.own_tls.cloned();
    let (url, egress) = (url.to_owned(), egress.clone());
    // Reads certificates at the first call.
    let endpoint = tokio::task::spawn_blocking(move || {
        Endpoint::parse(&url, &server_log, &egress, move || match &own_tls {
            None => Ok(tls.get_or_init(system_connector).clone()),
            Some(own) => own
                .connector(SystemTime::now())
                .map_err(|problem| format!("tls.{}: {problem}", problem.key.as_str())),
        })
    })
    .await
    .map_err(|error| error.to_string())??;
    let mut session = Session::new(Arc::new(endpoint), options.key, headers)?;
    if let Some(login) = options.login {
        session.report_challenges_to(login.challenges().clone());
    }
    if let Some(bearer) = bearer {
        session.log_in(bearer.header.clone());
    }
    let limit = options.limit;
    let (lost, losses) = mpsc::channel(1);
    let router = Arc::new(NotificationRouter::after(options.before));
    let recipients = (router.clone(), options.server_events.clone());
    let http = HttpLifecycle::new(session, limit, lost, recipients);
    // Over HTTP a late response to the probe is dropped.
    let mut channel = LifecycleChannel::Http(http.clone());
    let greeting = match handshake::perform(options.server_log, &mut channel, limit, start).await {
        Ok(greeting) => greeting,
        Err(HandshakeFailure { reason, throttled }) => {
            http.close().await;
            return Err(Unreached { reason, wants_login: http.wants_login(), throttled });
        }
    };
    if greeting.about.family == ProtocolFamily::Modern {
        http.set_modern();
    }
    Ok(ServerConnection {
        carrier: Carrier::Http(Arc::new(http.session())),
        login: bearer.cloned().map(|bearer| (http.clone(), bearer)),
        line: listen::Line::Http(http),
        router,
        greeting,
        losses,
        child: None,
    })
}

pub(super) struct ServerConnection {
    pub(super) carrier: Carrier,
    /// Transport for subscriptions to a modern server.
    pub(super) line: listen::Line,
    pub(super) router: Arc<NotificationRouter>,
    pub(super) greeting: Greeting,
    losses: mpsc::Receiver<Arc<str>>,
    child: Option<Child>,
    /// Current token, and the session that uses it.
    login: Option<(Arc<HttpLifecycle>, Bearer)>,
}

impl ServerConnection {
    /// Waits until the connection is lost; returns the reason.
    pub(super) async fn lost(&mut self) -> Arc<str> {
        let Some(reason) = self.losses.recv().await else {
            // None of the remaining tasks could report a loss; failing calls will.
            return std::future::pending().await;
        };
        match &mut self.child {
            Some(child) => child.explain(reason.to_string()).await.into(),
            None => reason,
        }
    }

    /// The connection in the form that calls use.
    pub(super) fn live(&self, generation: u64) -> Arc<LiveConnection> {
        Arc::new(LiveConnection {
            generation,
            family: self.greeting.about.family,
            link: self.carrier.clone(),
            router: Arc::clone(&self.router),
        })
    }

    /// Current token.
    pub(super) fn bearer(&self) -> Option<Bearer> {
        self.login.as_ref().map(|(_, bearer)| bearer.clone())
    }

    /// Replaces the token for further requests.
    pub(super) fn log_in(&mut self, bearer: Bearer) {
        if let Some((http, current)) = &mut self.login {
            self.carrier = Carrier::Http(Arc::new(http.log_in(bearer.header.clone())));
            *current = bearer;
        }
    }

    /// Fails the calls that wait on this connection.
    pub(super) fn fail_calls(&self, reason: Arc<str>) {
        if let Carrier::Stdio(link) = &self.carrier {
            link.end(reason);
        }
    }

    pub(super) async fn close(mut self, deadline: tokio::time::Instant) {
        if let listen::Line::Http(http) = &self.line {
            let limit = deadline.min(tokio::time::Instant::now() + GOODBYE_LIMIT);
            let _ = tokio::time::timeout_at(limit, http.close()).await;
        }
        if let Some(child) = self.child.take() {
            child.stop(deadline).await;
        }
    }
}

struct Child {
    process: Process,
    recent_stderr: RecentStderr,
    stderr: JoinHandle<()>,
    tasks: JoinSet<()>,
    writer: AbortHandle,
}

impl Child {
    /// Adds the exit status, and the stderr line that contains the error, to a reason.
    async fn explain(&mut self, reason: String) -> String {
        let deadline = tokio::time::Instant::now() + EXIT_WAIT;
        let exit = self.process.ended(deadline).await;
        // The child's last output may still be unread.
        if !self.stderr.is_finished() {
            let _ = tokio::time::timeout_at(deadline, &mut self.stderr).await;
        }
        match (exit, self.recent_stderr.cause()) {
            // The error comes first, because tables truncate the end.
            (Some(exit), Some(StderrCause { line, states_error: true })) => {
                format!("{line} ({exit})")
            }
            (exit, Some(StderrCause { line, .. })) => {
                format!("{}; last stderr line: {line}", exit.unwrap_or(reason))
            }
            (exit, None) => exit.unwrap_or(reason),
        }
    }

    async fn stop(mut self, deadline: tokio::time::Instant) {
        // Closes the child's input, which asks the child to exit.
        self.writer.abort();
        self.process.stop(deadline).await;
        self.stderr.abort();
        self.tasks.shutdown().await;
    }
}
