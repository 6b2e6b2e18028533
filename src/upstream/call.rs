//! Sends requests to a server, over either transport.
//!
//! Owns the wait for a connection (including the reconnect that a call may trigger) and the only automatic resend,
//! which follows a lost session. Retries that a policy allows use [`CallAttempt::Retry`]. Concurrency limits belong to
//! [`policy`](mcpproxy_policy), the response to [`crate::answer`], connection attempts to [`crate::server_task`].

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use crate::answer::{
    Answer, AnswerSource, Cancel, CountedCall, DualStreamCall, HttpSource, SendState, SentCall,
};
use crate::backoff::CONNECT_WAIT;
use crate::error::{CallError, Cause, Human, Sent};
use crate::handle::{CallGuard, Upstream};
use crate::http::{self, Limits, Pool};
use crate::inbound::CallClient;
use crate::outgoing_call::{CallAttempt, OutgoingCall, PermittedCall, repeatable};
use crate::request::Params;
use crate::second_connection::SecondUse;
use crate::state::{Carrier, Control, LiveConnection, Phase, Status, UpstreamState, Waiting};
use crate::stdio::{self, SentFor};
use crate::{notifications, request, second_connection};
use mcpproxy_catalog::listing::List;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::deadline::Allowance;

/// Time limit for the head of a dual-stream call. Longer than every other limit, so that only the call's own deadline
/// has an effect.
const HEAD_LIMIT: Duration = Duration::from_secs(24 * 3600);

struct HttpRequest<'a> {
    params: &'a Params,
    id: u64,
    attempt: CallAttempt,
    /// The client of a call.
    client: Option<CallClient>,
    /// Whether the call is registered for messages of the GET stream.
    is_routed: bool,
}

impl CallGuard {
    /// Sends a permitted request. The guard is held until the response has ended.
    ///
    /// `call_timeout` runs until the first byte of the response and includes admission, waiting for a connection (at most 10 seconds), a
    /// new session and a resend. A message before the response restarts it; within a message no gap may exceed [`http::STALL_LIMIT`].
    /// Returns when the head of the response was received (HTTP; in a session also the first part of its body) or the request is queued
    /// (stdio).
    pub fn call<'a>(
        self,
        pool: &'a Rc<Pool>,
        call: PermittedCall<'a>,
    ) -> impl Future<Output = Result<Answer, CallError>> + use<'a> {
        let began = call.began;
        self.request(pool, OutgoingCall::permitted(call), began)
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn would keep each argument twice")]
    fn request<'a>(
        self,
        pool: &'a Rc<Pool>,
        call: OutgoingCall<'a>,
        began: Instant,
    ) -> impl Future<Output = Result<Answer, CallError>> + use<'a> {
        async move {
            let time = Allowance::since(began, self.call_timeout());
            let label = call.label.clone();
            match self.send(pool, call, time).await {
                Ok(sent) => Ok(Answer::new(sent, self, label)),
                Err((cause, sent)) => {
                    Err(CallError { server: self.name.clone(), tool: label, cause, sent })
                }
            }
        }
    }
}

impl Upstream {
    /// Requests a page of a list on the proxy's own behalf. `params` is a JSON object. Waits like
    /// [`CallGuard::call`]; errors name the method instead of a tool.
    pub async fn list(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        list: List,
        params: Bytes,
        began: Instant,
    ) -> Result<Answer, CallError> {
        let method = list.method();
        let Some(guard) = CallGuard::enter(self) else {
            let cause = Cause::NotConnected { reason: self.state.load().reason() };
            let (server, tool) = (self.name.clone(), method.into());
            return Err(CallError { server, tool, cause, sent: Sent::No });
        };
        guard.request(pool, OutgoingCall::list(method, params), began).await
    }

    /// Waits for a connection and sends the request.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep each argument twice")]
    fn send<'a>(
        self: &'a Arc<Self>,
        pool: &'a Rc<Pool>,
        call: OutgoingCall<'a>,
        time: Allowance,
    ) -> impl Future<Output = Result<SentCall, (Cause, Sent)>> + use<'a> {
        async move {
            let attempt = call.attempt;
            let mut live = self.live(time.until).await.map_err(unsent)?;
            let mut second = None;
            if live.family == ProtocolFamily::Modern
                && let Some((client, access)) = call.client
            {
                let is_asked = client.capabilities != ClientCapabilities::default()
                    && second_connection::serves(access);
                let subscribes =
                    second_connection::subscribes(access) && !self.offers().resource_updates;
                if is_asked || subscribes {
                    // Boxed, because the future is large and rarely needed.
                    let opening = self.second_connection(time.until, call.params.log_level);
                    match Box::pin(opening).await {
                        Some((open, its_use)) => (live, second) = (open, Some(its_use)),
                        None if subscribes => {
                            let reason = "its second connection has ended".into();
                            return Err(unsent(Cause::NotConnected { reason }));
                        }
                        None => {}
                    }
                }
            }
            if let (Carrier::Stdio(_), CallAttempt::Retry(Some(failed))) = (&live.link, attempt)
                && live.generation == failed
            {
                let successor = Box::pin(self.successor(failed, time.until));
                live = successor.await.map_err(unsent)?;
            }
            let connection = |live: &LiveConnection| (live.generation, live.family);
            let (generation, family) = connection(&live);
            let client = call.client(family);
            match &live.link {
                Carrier::Http(_) => {
                    let id = request::fresh_id();
                    if live.family == ProtocolFamily::Legacy
                        && let Some(client) = client
                        && (client.extensions
                            || call.params.may_receive_messages(client.capabilities))
                    {
                        let streams = self.dual_stream(pool, live, (call, client), id, time);
                        let source = AnswerSource::DualStream(Box::new(streams));
                        return Ok(SentCall {
                            source,
                            generation,
                            family,
                            second,
                            repeatable: None,
                        });
                    }
                    let request =
                        HttpRequest { params: &call.params, id, attempt, client, is_routed: false };
                    let (source, (generation, family)) =
                        self.post(pool, live, &request, time, connection).await?;
                    let repeatable = call.repeatable(family);
                    let source = AnswerSource::Http(source);
                    Ok(SentCall { source, generation, family, second, repeatable })
                }
                Carrier::Stdio(link) => {
                    let sent_for = client.map_or(SentFor::Nobody, SentFor::Caller);
                    let line = |id| call.params.line(id, live.family);
                    let sent = stdio::StdioCall::begin(link, line, time, sent_for).await;
                    let failed = match sent {
                        Ok(stdio) => {
                            let repeatable = call.repeatable(family);
                            let source = AnswerSource::Stdio(stdio);
                            return Ok(SentCall { source, generation, family, second, repeatable });
                        }
                        Err(failed) if !link.has_ended() => return Err(failed),
                        Err(failed) => failed,
                    };
                    // The child ended before anything was sent; the server's task is about to reconnect. Boxed, because
                    // this is rare.
                    let successor = Box::pin(self.successor(generation, time.until));
                    let again = successor.await.map_err(unsent)?;
                    let Carrier::Stdio(link) = &again.link else { return Err(failed) };
                    let line = |id| call.params.line(id, again.family);
                    let sent_for = call.client(again.family);
                    let sent_for = sent_for.map_or(SentFor::Nobody, SentFor::Caller);
                    let stdio =
                        Box::pin(stdio::StdioCall::begin(link, line, time, sent_for)).await?;
                    let (generation, family) = connection(&again);
                    let repeatable = call.repeatable(family);
                    let source = AnswerSource::Stdio(stdio);
                    Ok(SentCall { source, generation, family, second, repeatable })
                }
            }
        }
    }

    /// HTTP call that also receives messages of the GET stream.
    fn dual_stream(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<LiveConnection>,
        (call, client): (OutgoingCall<'_>, CallClient),
        id: u64,
        time: Allowance,
    ) -> DualStreamCall {
        let OutgoingCall { params, attempt, is_repeatable, .. } = call;
        let send_state = Rc::new(SendState::new(live.family));
        let (sender, messages) = mpsc::channel(notifications::QUEUED_MESSAGES);
        let (upstream, pool, state) = (self.clone(), pool.clone(), send_state.clone());
        let sending = async move {
            let register = |live: &LiveConnection| {
                let place = live.router.register(id, sender.clone(), client);
                state.attempt(live.generation, live.family, place)
            };
            // The dual-stream call has its own deadline.
            let time = Allowance::now(HEAD_LIMIT);
            let request =
                HttpRequest { params: &params, id, attempt, client: Some(client), is_routed: true };
            let sent = upstream.post(&pool, live, &request, time, register).await?;
            // After a lost session, the server may have been replaced by a modern one.
            if is_repeatable && state.family() == ProtocolFamily::Modern {
                state.repeatable.replace(Some(repeatable(params, client)));
            }
            Ok(sent)
        };
        DualStreamCall::new(id, send_state, messages, Box::pin(sending), time)
    }

    /// Posts a request, and posts it again if the session was lost: a server that does not know the session executed nothing, so this is
    /// the only automatic resend. `register` is called with each connection used; its result is kept while the response is received.
    async fn post<P>(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        mut live: Arc<LiveConnection>,
        outgoing: &HttpRequest<'_>,
        time: Allowance,
        register: impl Fn(&LiveConnection) -> P,
    ) -> Result<(Box<HttpSource>, P), (Cause, Sent)> {
        let HttpRequest { params, id, attempt, client, is_routed } = outgoing;
        let mut is_resent = false;
        loop {
            let Carrier::Http(session) = &live.link else {
                let reason = "it is no longer reached over HTTP".into();
                return Err(unsent(Cause::NotConnected { reason }));
            };
            let place = register(&live);
            let is_legacy = live.family == ProtocolFamily::Legacy;
            // A modern call is canceled by closing its connection, and has no other stream.
            let in_flight = client
                .filter(|_| is_legacy)
                .map(|client| CountedCall::new(&live.router, client.session, *is_routed));
            let mut cancel =
                Cancel::new(self.clone(), (live.generation, *id), is_legacy, in_flight);
            let limits = Limits::of(time);
            let request = session.post(&params.lines(live.family), params.body(*id, live.family));
            let exchanged = match attempt {
                CallAttempt::First => http::exchange(session, pool, &request, limits).await,
                CallAttempt::Retry(_) => Box::pin(http::fresh(session, &request, limits)).await,
            };
            let refused = match exchanged {
                Ok(mut exchange) => match exchange.foreign_error(*id) {
                    Some(refused) => {
                        cancel.failed(&refused.cause, refused.sent);
                        refused
                    }
                    None => {
                        // The check reads the response ahead, so it is made only if the session can be lost.
                        let denied = match is_legacy && !is_resent && session.has_id() {
                            true => exchange.denied_session().await,
                            false => None,
                        };
                        let Some(reason) = denied else {
                            let source =
                                HttpSource::new(exchange, pool.clone(), session.key, cancel);
                            return Ok((Box::new(source), place));
                        };
                        cancel.disarm();
                        http::HttpRefused::session_unknown(reason)
                    }
                },
                Err(refused) => {
                    cancel.failed(&refused.cause, refused.sent);
                    refused
                }
            };
            drop((cancel, place));
            if is_resent || !refused.session_unknown {
                if !is_resent && refused.cause.affects_later_connections() {
                    self.report(live.generation, refused.cause.to_string());
                }
                return Err((refused.cause, refused.sent));
            }
            // Boxed, because it is rarely needed.
            let renewed = Box::pin(self.renewed(live.generation, time.until));
            live = renewed.await.map_err(unsent)?;
            is_resent = true;
        }
    }

    /// Waits for a connection that replaces this one, whose session the server no longer knows.
    async fn renewed(&self, generation: u64, until: Instant) -> Result<Arc<LiveConnection>, Cause> {
        if self.is_live(generation) {
            self.report(generation, "the server ended the session".to_owned());
        }
        match self.successor(generation, until).await {
            Err(cause @ Cause::StillConnecting { .. }) => Err(cause),
            other => other.map_err(|cause| Cause::SessionLost { reason: cause.to_string().into() }),
        }
    }

    /// Reports a broken connection to the server's task. Best effort: repeated reports may be lost.
    fn report(&self, generation: u64, reason: String) {
        let lost = Control::Lost { generation, reason: reason.into() };
        let _ = self.control_of(generation).try_send(lost);
    }
}

fn unsent(cause: Cause) -> (Cause, Sent) {
    (cause, Sent::No)
}

const TENTH: Duration = Duration::from_millis(100);

/// Next step of a call that found no connection.
enum Next {
    Use(Arc<LiveConnection>),
    Fail(Cause),
    /// Wait for a state change, for at most [`CONNECT_WAIT`] from `since`.
    Wait {
        since: Instant,
    },
}

impl Upstream {
    /// Triggers a connection attempt if the server is disconnected and the backoff allows it. Does not block.
    pub(super) fn nudge(&self) {
        if let Phase::Waiting(waiting) = self.state.load().phase()
            && Instant::now() >= waiting.due.earliest
        {
            self.connect_requests.request(waiting.attempt + 1);
        }
    }

    /// Waits until the server is reachable; triggers an attempt as a call would. The error is one line that names the server.
    pub async fn reached(&self, until: Instant) -> Result<(), String> {
        self.live(until).await.map(|_| ()).map_err(|cause| self.named(&cause))
    }

    /// Waits until the server is reachable and its tools are known. The error is one line that names the server.
    pub async fn discovered(&self, until: Instant) -> Result<(), String> {
        self.reached(until).await?;
        let asked = Instant::now();
        let outcome = self.state.wait_for(|state| match state.phase() {
            Phase::Connected { .. } => Some(Ok(())),
            Phase::Waiting(_) | Phase::Stopped | Phase::Disabled => {
                Some(Err(unavailable(state, None)))
            }
            Phase::Discovering { .. } if state.status() == Status::Throttled => {
                Some(Err(unavailable(state, None)))
            }
            Phase::Connecting { .. } | Phase::Discovering { .. } | Phase::Closing { .. } => None,
        });
        let limit = until.min(asked + CONNECT_WAIT);
        let late = |_| Err(Cause::StillConnecting { waited: rounded(asked.elapsed()) });
        let outcome = timeout_at(limit.into(), outcome).await.unwrap_or_else(late);
        outcome.map_err(|cause| self.named(&cause))
    }

    fn named(&self, cause: &Cause) -> String {
        format!("{}: {cause}", self.name)
    }

    /// Returns the live connection. Without one, triggers an attempt (unless one was just made) and waits for it, at most [`CONNECT_WAIT`]
    /// and no longer than until `until`.
    pub(super) async fn live(&self, until: Instant) -> Result<Arc<LiveConnection>, Cause> {
        match self.state.live() {
            Some(live) => Ok(live),
            // Boxed: this rare future is large and would be part of every waiting call.
            None => Box::pin(self.awaited(until)).await,
        }
    }

    /// Opens the second connection, for a call whose client accepts server requests. Takes at most half of the time
    /// until `until`, so that the call can still use the first one. `None` means that the call must use the first one.
    async fn second_connection(
        &self,
        until: Instant,
        log_level: Option<&'static str>,
    ) -> Option<(Arc<LiveConnection>, SecondUse)> {
        let second = self.second.as_ref()?;
        // Counted before the lookup, so that the connection is not closed in between.
        let used = second.enter();
        let now = Instant::now();
        let live = second.open(now + until.saturating_duration_since(now) / 2).await?;
        if let Some(level) = log_level {
            second.lower_level(&live, level, (&self.server_events, &self.server_log)).await;
        }
        Some((live, used))
    }

    /// Opens the second connection for subscriptions of legacy clients, if the first one does not report resource changes. `None` if the
    /// second one does not either. The connection stays open until the value is dropped.
    pub async fn legacy_subscriptions(&self, until: Instant) -> Option<impl Sized + use<>> {
        if self.offers().resource_updates {
            return None;
        }
        let (_, used) = self.second_connection(until, None).await?;
        self.holds_legacy_subscriptions().then_some(used)
    }

    /// Determines whether the server reports resource changes only in the legacy family. If this is unknown, opens the
    /// second connection, with a time limit. A server that lists no legacy revision is assumed not to report resource
    /// changes in the legacy family.
    pub async fn learn_legacy_updates(&self, until: Instant) {
        let (offers, second) = (self.offers(), self.second.as_ref());
        let is_unknown = second.is_some_and(|second| second.legacy_updates().is_none());
        if is_unknown && offers.resources && !offers.resource_updates {
            let _ = self.second_connection(until, None).await;
        }
    }

    /// Whether the second connection is open and accepts subscriptions that the first one does not.
    pub fn holds_legacy_subscriptions(&self) -> bool {
        let second = self.second.as_ref();
        !self.offers().resource_updates && second.is_some_and(|second| second.reports_updates())
    }

    /// Waits for a connection newer than the one of this generation, which has ended or is about to end.
    async fn successor(
        &self,
        generation: u64,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, Cause> {
        match self.second_of(generation) {
            Some(second) => second.successor(generation, until).await,
            None => self.first_successor(generation, until).await,
        }
    }

    /// Waits for a first connection newer than the one of this generation, which has ended or is about to end.
    async fn first_successor(
        &self,
        generation: u64,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, Cause> {
        // Waits until the server's task has removed the old connection.
        let taken = self.state.wait_for(|state| {
            let is_old = state.live().is_some_and(|live| live.generation == generation);
            (!is_old).then_some(())
        });
        let asked = Instant::now();
        let limit = until.min(asked + CONNECT_WAIT);
        if timeout_at(limit.into(), taken).await.is_err() {
            return Err(Cause::StillConnecting { waited: rounded(asked.elapsed()) });
        }
        self.live(until).await
    }

    async fn awaited(&self, until: Instant) -> Result<Arc<LiveConnection>, Cause> {
        let asked = Instant::now();
        // Number of the attempt being awaited.
        let mut awaited = None;
        let mut changes = self.state.changes();
        loop {
            // Marked as seen before the state is read, so that no change is missed.
            changes.borrow_and_update();
            let since = match self.next(asked, &mut awaited) {
                Next::Use(live) => return Ok(live),
                Next::Fail(cause) => return Err(cause),
                Next::Wait { since } => since,
            };
            let limit = until.min(since + CONNECT_WAIT);
            if timeout_at(limit.into(), changes.changed()).await.is_err() {
                return Err(Cause::StillConnecting { waited: rounded(since.elapsed()) });
            }
        }
    }

    fn next(&self, asked: Instant, awaited: &mut Option<u64>) -> Next {
        let state = self.state.load();
        match state.phase() {
            Phase::Discovering { live } | Phase::Connected { live, .. } => Next::Use(live.clone()),
            Phase::Disabled | Phase::Stopped => Next::Fail(unavailable(&state, None)),
            Phase::Closing { .. } => Next::Wait { since: asked },
            Phase::Connecting { attempt, since } => {
                awaited.get_or_insert(*attempt);
                Next::Wait { since: (*since).min(asked) }
            }
            Phase::Waiting(waiting) => {
                if waiting.failed && awaited.is_some_and(|awaited| awaited <= waiting.attempt) {
                    return Next::Fail(unavailable(&state, None));
                }
                if waiting.failed && Instant::now() < waiting.due.earliest {
                    return Next::Fail(unavailable(&state, Some(*waiting)));
                }
                self.connect_requests.request(waiting.attempt + 1);
                *awaited = Some(waiting.attempt + 1);
                Next::Wait { since: asked }
            }
        }
    }
}

/// Reason why there is no connection. If `just` is given, includes when the next attempt is allowed.
fn unavailable(state: &UpstreamState, just: Option<Waiting>) -> Cause {
    let reason = match (state.status(), just) {
        (Status::Disabled, _) => return Cause::Disabled,
        (_, None) => state.reason(),
        (_, Some(waiting)) => {
            let Waiting { due, .. } = waiting;
            let left = due.earliest.min(due.next).saturating_duration_since(Instant::now());
            let again = Human(rounded(left + TENTH));
            format!(
                "{}; a connection was just attempted, the next attempt is in {again}",
                state.reason()
            )
            .into()
        }
    };
    Cause::NotConnected { reason }
}

/// Rounds down to whole seconds, or to tenths below one second; at least 100 ms.
fn rounded(time: Duration) -> Duration {
    let tenths = u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(if tenths < 10 { tenths * 100 } else { tenths / 10 * 1000 })
}
