//! One request to a server, a tool call or any other: on its way out, whichever transport carries
//! it.
//!
//! Owns the wait it may have to do (for a connection), the one case in which it is sent twice, and how it is sent
//! [again](Upstream::call_again), which others decide. How many go out at a time is [`policy`](crate::policy)'s. What
//! comes back is [`super::answer`].

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::answer::{Answer, AnswerSource, Cancel, DualStreamCall, HttpSource, SendState};
use super::carrier::{Carrier, LiveConnection};
use super::control::Control;
use super::error::{CallError, Cause, Sent};
use super::handle::Upstream;
use super::http::{self, Limits, Pool};
use super::in_use::InUse;
use super::notification_router;
use super::outgoing::CallExtras;
use super::request::{Fields, Params};
use super::request_ids;
use super::stdio;
use crate::catalog::offered::List;
use crate::io::deadline::Allowance;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::Era;
use crate::policy::{Access, Permit};

/// Longest wait for the head of an answer that is heard: beyond every other limit.
const HEAD_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Which attempt at a request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    First,
    /// The other one, on a fresh connection; of a child the one that is younger than this, where that failed.
    Again(Option<u64>),
}

impl Upstream {
    /// Sends what was permitted. `body` is a JSON object: of a tool's call the arguments as the agent wrote them,
    /// which go out byte for byte, but for raw line ends between tokens, which a line-framed transport cannot
    /// carry; of any other request the whole params without `_meta`. What stands `beside` it goes with it.
    ///
    /// `call_timeout` counts from when the call `began` until the first byte of the answer, with
    /// all that comes before it: a place under the limits, a server that is connecting or
    /// away (10 seconds at most), a new session, a second attempt. A message that comes before the
    /// answer begins the wait anew; inside a message no gap may be longer than
    /// [`http::STALL_LIMIT`]. Over HTTP it returns when the head of the answer has come, over stdio
    /// when the request is queued.
    ///
    /// # Errors
    /// [`CallError`], which says whether the request had been sent.
    pub async fn call(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        permit: &Permit,
        body: Bytes,
        beside: CallExtras,
        began: Instant,
    ) -> Result<Answer, CallError> {
        self.attempt(pool, permit, body, beside, began, Attempt::First).await
    }

    /// Sends it once more, on a fresh connection: it failed before any byte of its answer came (CAP-7). `failed` is
    /// the connection over which it did, where that is known.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_again(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        permit: &Permit,
        body: Bytes,
        beside: CallExtras,
        (began, failed): (Instant, Option<u64>),
    ) -> Result<Answer, CallError> {
        self.attempt(pool, permit, body, beside, began, Attempt::Again(failed)).await
    }

    async fn attempt(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        permit: &Permit,
        body: Bytes,
        beside: CallExtras,
        began: Instant,
        attempt: Attempt,
    ) -> Result<Answer, CallError> {
        let CallExtras { meta, members, client_capabilities, trace } = beside;
        let access = permit.access();
        let method = access.method();
        let (what, name, fields) = match access {
            Access::Tool(call) => {
                let name = &call.tool().name.tool;
                let parameter_headers = call.tool().parameter_headers.clone();
                let fields = Fields::Call { arguments: body, members, parameter_headers };
                (name.clone(), Some(name.clone()), fields)
            }
            Access::Resource { uri, .. } => {
                (method.into(), Some(Arc::from(&**uri)), Fields::Object(body))
            }
            Access::Prompt { name, .. } => {
                (method.into(), Some(Arc::from(&**name)), Fields::Object(body))
            }
            Access::Completion { .. } => (method.into(), None, Fields::Object(body)),
        };
        let params = Params { method, name, meta, trace, fields };
        self.request(pool, params, client_capabilities, what, (began, attempt)).await
    }

    /// Asks for a page of one of its lists, on nobody's behalf: `params` is a JSON object. The waits are those of
    /// [`Self::call`], and its errors name the method in the place of the tool.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn list(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        list: List,
        params: Bytes,
        began: Instant,
    ) -> Result<Answer, CallError> {
        let method = list.method();
        let fields = Fields::Object(params);
        let params = Params { method, name: None, meta: None, trace: None, fields };
        let first = (began, Attempt::First);
        self.request(pool, params, ClientCapabilities::default(), method.into(), first).await
    }

    async fn request(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        params: Params,
        client_capabilities: ClientCapabilities,
        what: Arc<str>,
        (began, attempt): (Instant, Attempt),
    ) -> Result<Answer, CallError> {
        let Some(in_use) = InUse::enter(self) else {
            let cause = Cause::NotConnected { reason: self.state.load().reason() };
            return Err(CallError { server: self.name.clone(), tool: what, cause, sent: Sent::No });
        };
        let time = Allowance::since(began, self.call_timeout());
        let sent = async {
            let mut live = self.live(time.until).await.map_err(unsent)?;
            if let (Carrier::Stdio(_), Attempt::Again(Some(failed))) = (&live.link, attempt)
                && live.generation == failed
            {
                live = self.successor(failed, time.until).await.map_err(unsent)?;
            }
            self.send(pool, live, params, client_capabilities, (time, attempt)).await
        };
        match sent.await {
            Ok((source, generation)) => Ok(Answer::new(source, generation, in_use, what)),
            Err((cause, sent)) => {
                Err(CallError { server: self.name.clone(), tool: what, cause, sent })
            }
        }
    }

    /// Sends the request; also tells over which connection.
    async fn send(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<LiveConnection>,
        params: Params,
        client_capabilities: ClientCapabilities,
        (time, attempt): (Allowance, Attempt),
    ) -> Result<(AnswerSource, u64), (Cause, Sent)> {
        let generation = live.generation;
        match &live.link {
            Carrier::Http(_)
                if live.era == Era::Legacy && params.may_be_told(client_capabilities) =>
            {
                let call = self.hear(pool, live, params, client_capabilities, (time, attempt));
                Ok((AnswerSource::DualStream(Box::new(call)), generation))
            }
            Carrier::Http(_) => {
                let over = |live: &LiveConnection| live.generation;
                let id = request_ids::fresh();
                let sent = self.post(pool, live, &params, (id, attempt), time, over).await;
                let (source, generation) = sent?;
                Ok((AnswerSource::Http(source), generation))
            }
            Carrier::Stdio(link) => {
                let line = |id| params.line(id, live.era);
                let sent =
                    stdio::StdioCall::begin(link, line, time, Some(client_capabilities)).await;
                let sent = sent.map(|call| (AnswerSource::Stdio(call), generation));
                if sent.is_ok() || !link.has_ended() {
                    return sent;
                }
                // It ended before anything was sent, and its supervisor is about to say so.
                let again = self.successor(generation, time.until).await.map_err(unsent)?;
                let Carrier::Stdio(link) = &again.link else { return sent };
                let line = |id| params.line(id, again.era);
                let call =
                    stdio::StdioCall::begin(link, line, time, Some(client_capabilities)).await?;
                Ok((AnswerSource::Stdio(call), again.generation))
            }
        }
    }

    /// A call over HTTP that is sent while what is said beside its answer is heard.
    fn hear(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<LiveConnection>,
        params: Params,
        client_capabilities: ClientCapabilities,
        (time, attempt): (Allowance, Attempt),
    ) -> DualStreamCall {
        let (id, send_state) = (request_ids::fresh(), Rc::new(SendState::default()));
        let (sender, messages) = mpsc::channel(notification_router::HEARD_MESSAGES);
        let (upstream, pool, told) = (self.clone(), pool.clone(), send_state.clone());
        let sending = async move {
            let over = |live: &LiveConnection| {
                told.attempt(
                    live.generation,
                    live.router.enter(id, sender.clone(), client_capabilities),
                )
            };
            // How long its head may take is decided where it is heard.
            let time = Allowance::now(HEAD_LIMIT);
            upstream.post(&pool, live, &params, (id, attempt), time, over).await
        };
        DualStreamCall::new(id, send_state, messages, Box::pin(sending), time)
    }

    /// Posts a request, once more if the session was lost. `over` is told each connection that it
    /// is sent over; what it makes is kept while the answer comes.
    async fn post<P>(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<LiveConnection>,
        params: &Params,
        request: (u64, Attempt),
        time: Allowance,
        over: impl Fn(&LiveConnection) -> P,
    ) -> Result<(Box<HttpSource>, P), (Cause, Sent)> {
        let place = over(&live);
        let refused = match self.post_once(pool, &live, params, request, time).await {
            Ok(source) => return Ok((source, place)),
            Err(refused) => refused,
        };
        drop(place);
        if refused.session_unknown {
            // The server knew nothing of the session, so it executed nothing: the one case in
            // which a call is sent twice.
            let again = self.renewed(live.generation, time.until).await.map_err(unsent)?;
            let place = over(&again);
            return match self.post_once(pool, &again, params, request, time).await {
                Ok(source) => Ok((source, place)),
                Err(refused) => Err((refused.cause, refused.sent)),
            };
        }
        if refused.cause.is_of_connections_to_come() {
            self.report(live.generation, refused.cause.to_string());
        }
        Err((refused.cause, refused.sent))
    }

    async fn post_once(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: &LiveConnection,
        params: &Params,
        (id, attempt): (u64, Attempt),
        time: Allowance,
    ) -> Result<Box<HttpSource>, http::HttpRefused> {
        let Carrier::Http(session) = &live.link else {
            let reason = "it is not reached over HTTP any more".into();
            return Err(http::HttpRefused::unsent(Cause::NotConnected { reason }));
        };
        let limits = Limits::of(time);
        // Closing its connection is what cancels a call of a modern server.
        let armed = live.era == Era::Legacy;
        let upstream = self.clone();
        let mut cancel = Cancel::new(upstream, live.generation, id, armed);
        let request = session.post(&params.lines(live.era), params.body(id, live.era));
        let exchanged = match attempt {
            Attempt::First => http::exchange(session, pool, &request, limits).await,
            Attempt::Again(_) => Box::pin(http::fresh(session, &request, limits)).await,
        };
        match exchanged {
            Ok(exchange) => {
                Ok(Box::new(HttpSource::new(exchange, pool.clone(), session.key, cancel)))
            }
            Err(refused) => {
                cancel.failed(&refused.cause, refused.sent);
                Err(refused)
            }
        }
    }

    /// A connection younger than this one, whose session the server does not know any more.
    async fn renewed(&self, generation: u64, until: Instant) -> Result<Arc<LiveConnection>, Cause> {
        if self.state.live().is_some_and(|live| live.generation == generation) {
            self.report(generation, "the server ended the session".to_owned());
        }
        match self.successor(generation, until).await {
            Err(cause @ Cause::StillConnecting { .. }) => Err(cause),
            other => other.map_err(|cause| Cause::SessionLost { reason: cause.to_string().into() }),
        }
    }

    /// Tells the supervisor that a connection is no good. It is told once; more of the same may be
    /// lost.
    fn report(&self, generation: u64, reason: String) {
        let _ = self.control.try_send(Control::Lost { generation, reason: reason.into() });
    }
}

fn unsent(cause: Cause) -> (Cause, Sent) {
    (cause, Sent::No)
}
