//! Task of a server's second connection: opens it when a call needs it, serves it, and closes it when idle.
//!
//! Runs within the first connection ([`crate::server_task`]) and ends with it. [`crate::second_connection`] contains the state
//! that calls see.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::backoff::STABLE_AFTER;
use crate::config::Target;
use crate::connect::{ConnectFailure, ConnectOptions, GOODBYE_LIMIT, ServerConnection, establish};
use crate::handle::Upstream;
use crate::handshake::Start;
use crate::listen;
use crate::notifications::NotificationRouter;
use crate::oauth::{self, Renewal};
use crate::outbox::{ControlEnd, Outbox};
use crate::second_connection::{SecondConnection, SecondPhase, SecondUse};
use crate::state::{ATTEMPTS, Control, SECOND};
use mcpproxy_protocol::mcp::revisions::{MODERN, ProtocolFamily};
use mcpproxy_runtime::io::line_budget::peer_line;

/// Pause before another attempt after a failed one, if the server listed a legacy revision, or after the early loss of
/// a connection.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Pause before another attempt if the server listed no legacy revision: it probably does not support `initialize`.
const UNLISTED_RETRY_AFTER: Duration = Duration::from_secs(600);

/// State of the task that outlives one connection.
pub(super) struct SecondTask {
    controls: mpsc::Receiver<Control>,
    /// Router of the last connection over HTTP.
    router: Option<Arc<NotificationRouter>>,
    attempts: u32,
}

/// Server as seen by its first connection.
pub(super) struct FirstConnection<'a> {
    pub(super) options: ConnectOptions<'a>,
    /// Resolved entry of the server.
    pub(super) target: Option<&'a Target>,
    pub(super) family: ProtocolFamily,
    /// Whether the server listed a legacy revision.
    pub(super) lists_legacy: bool,
    /// Total size of clients' responses in progress.
    pub(super) responding_bytes: &'a Arc<AtomicUsize>,
}

pub(super) struct FirstEnded {
    pub(super) deadline: tokio::time::Instant,
    pub(super) reason: Arc<str>,
}

enum End {
    Idle,
    Lost(Arc<str>),
    /// The first connection has ended.
    Over(FirstEnded),
}

/// Allows calls to open the second connection, before they can use the first one.
pub(super) fn begin(upstream: &Upstream, family: ProtocolFamily, lists_legacy: bool) {
    if let (Some(second), ProtocolFamily::Modern) = (&upstream.second, family) {
        second.begin(lists_legacy);
    }
}

/// Opens the second connection when a call needs it and closes it when idle, until the first one has ended.
pub(super) async fn run(
    task: Option<&mut SecondTask>,
    upstream: &Arc<Upstream>,
    first: FirstConnection<'_>,
    mut ending: oneshot::Receiver<FirstEnded>,
) {
    match (task, &upstream.second, first.target) {
        (Some(task), Some(second), Some(target)) if first.family == ProtocolFamily::Modern => {
            task.keep(upstream, second, (&first, target), &mut ending).await;
            second.end();
        }
        _ => {
            // A dropped sender also means that the first connection has ended.
            let _ = ending.await;
        }
    }
}

impl SecondTask {
    pub(super) fn new(controls: mpsc::Receiver<Control>) -> Self {
        Self { controls, router: None, attempts: 0 }
    }

    async fn keep(
        &mut self,
        upstream: &Arc<Upstream>,
        second: &SecondConnection,
        (first, target): (&FirstConnection<'_>, &Target),
        ending: &mut oneshot::Receiver<FirstEnded>,
    ) {
        let server_log = &upstream.server_log;
        let server = &server_log.name;
        let listed = first.lists_legacy;
        // Whether the server may report resource changes over the second connection.
        let mut may_report = true;
        loop {
            tokio::select! {
                biased;
                _ = &mut *ending => return,
                () = second.wanted.notified() => {}
                () = needed_for_subscriptions(upstream, second), if may_report => {}
            }
            let began = Instant::now();
            second.publish(SecondPhase::Opening { since: began });
            // Discards messages about earlier connections.
            while self.controls.try_recv().is_ok() {}
            let opened = tokio::select! {
                biased;
                _ = &mut *ending => return,
                opened = self.connect(first, target) => opened,
            };
            let mut connection = match opened {
                Ok(connection) => connection,
                Err(ConnectFailure { reason, throttled, .. }) => {
                    may_report = listed;
                    let remembered = if listed { RETRY_AFTER } else { UNLISTED_RETRY_AFTER };
                    let remembered = remembered.max(throttled.flatten().unwrap_or_default());
                    peer_line!(warn, server_log, %server, reason, "opening a second connection (initialize) failed: calls of all clients use the first one");
                    let until = Instant::now() + remembered;
                    let reason = reason.into();
                    second.publish(SecondPhase::Failed { reason, until, supported: listed });
                    continue;
                }
            };
            peer_line!(info, server_log, %server, "opened a second connection (initialize) for clients that accept server requests");
            may_report = connection.greeting.about.offers.resource_updates;
            self.router = Some(Arc::clone(&connection.router));
            self.attempts = self.attempts.wrapping_add(1);
            let end = self.serve(upstream, second, first, &mut connection, ending).await;
            let goodbye = || tokio::time::Instant::now() + GOODBYE_LIMIT;
            let (reason, deadline, is_over) = match end {
                End::Idle => ("it was idle".into(), goodbye(), false),
                End::Lost(reason) => {
                    // A short-lived connection counts as one that could not be opened.
                    let is_stable = began.elapsed() >= STABLE_AFTER;
                    let rest = if is_stable { Duration::ZERO } else { RETRY_AFTER };
                    let until = Instant::now() + rest;
                    peer_line!(info, server_log, %server, reason = &*reason, "the second connection was lost: a later call opens it again");
                    let shown = Arc::clone(&reason);
                    second.publish(SecondPhase::Failed { reason: shown, until, supported: true });
                    (reason, goodbye(), false)
                }
                End::Over(FirstEnded { deadline, reason }) => {
                    second.end();
                    (reason, deadline, true)
                }
            };
            connection.fail_calls(reason);
            connection.close(deadline).await;
            if is_over {
                return;
            }
        }
    }

    async fn connect(
        &self,
        first: &FirstConnection<'_>,
        target: &Target,
    ) -> Result<ServerConnection, ConnectFailure> {
        let options = ConnectOptions { before: self.router.as_deref(), ..first.options };
        let start = Start::Known(ProtocolFamily::Legacy);
        let connection = establish(target, &options, start).await?;
        if connection.greeting.about.family == ProtocolFamily::Legacy {
            return Ok(connection);
        }
        connection.close(tokio::time::Instant::now() + GOODBYE_LIMIT).await;
        Err(ConnectFailure::new(format!("it answered initialize with {MODERN}")))
    }

    /// Serves an open connection until it ends; an idle connection is closed to calls.
    async fn serve(
        &mut self,
        upstream: &Arc<Upstream>,
        second: &SecondConnection,
        first: &FirstConnection<'_>,
        connection: &mut ServerConnection,
        ending: &mut oneshot::Receiver<FirstEnded>,
    ) -> End {
        let generation =
            (upstream.key << ATTEMPTS) | SECOND | (u64::from(self.attempts) & (SECOND - 1));
        let greeting = &connection.greeting;
        let offers = greeting.about.offers;
        second.opened(connection.live(generation), greeting.protocol_version.clone(), offers);
        let mut following = JoinSet::new();
        let subscribes = offers.resource_updates && !upstream.offers().resource_updates;
        if let Some(second) = upstream.second.as_ref().filter(|_| subscribes) {
            following.spawn(hold_for_subscriptions(Arc::clone(upstream), second.enter()));
            let limit = first.options.limit;
            following.spawn(listen::keep_subscribed(Arc::clone(upstream), generation, limit));
        }
        if let listen::Line::Http(http) = &connection.line {
            following.spawn(listen::read_session_stream(Arc::clone(upstream), Arc::clone(http)));
        }
        let limit = first.options.limit;
        let mut outbox = Outbox::new(&upstream.server_log, limit, first.responding_bytes);
        let mut renewal = oauth::renewal(first.options.login, connection.bearer());
        loop {
            tokio::select! {
                biased;
                ended = &mut *ending => {
                    // The channel closes without a reason if the first connection's task has ended.
                    let now = tokio::time::Instant::now();
                    let default = || FirstEnded { deadline: now, reason: "the proxy is shutting down".into() };
                    return End::Over(ended.unwrap_or_else(|_| default()));
                }
                reason = connection.lost() => return End::Lost(reason),
                Some(control) = self.controls.recv() => {
                    match outbox.handle(control, generation, &connection.carrier) {
                        Some(ControlEnd::Lost(reason)) => return End::Lost(reason),
                        // A restart concerns only the first connection.
                        Some(ControlEnd::Restart) | None => {}
                    }
                }
                renewed = &mut renewal => match renewed {
                    Renewal::Bearer(bearer) => {
                        connection.log_in(bearer);
                        second.renew(connection.live(generation));
                        renewal = oauth::renewal(first.options.login, connection.bearer());
                    }
                    Renewal::Gone(reason) => return End::Lost(reason.into()),
                },
                () = second.closed_when_idle() => return End::Idle,
            }
        }
    }
}

/// Waits until subscribed resources need the second connection because only it reports their changes, and the
/// connection may be opened.
async fn needed_for_subscriptions(upstream: &Upstream, second: &SecondConnection) {
    let mut wanted = upstream.subscriptions.wanted.subscribe();
    let is_needed = !upstream.offers().resource_updates
        && wanted.wait_for(|resources| !resources.wanted.is_empty()).await.is_ok();
    match is_needed {
        true => second.wait_for_retry().await,
        false => std::future::pending().await,
    }
}

/// Prevents the second connection from being idle while resources are subscribed over it. `held` already counts as a
/// use, so that a connection opened for subscriptions is not closed before this task runs.
async fn hold_for_subscriptions(upstream: Arc<Upstream>, held: SecondUse) {
    let Some(second) = &upstream.second else { return };
    let mut wanted = upstream.subscriptions.wanted.subscribe();
    let mut held = Some(held);
    while wanted.wait_for(|resources| resources.wanted.is_empty()).await.is_ok() {
        drop(held.take());
        if wanted.wait_for(|resources| !resources.wanted.is_empty()).await.is_err() {
            return;
        }
        held = Some(second.enter());
    }
}
