//! One request to a server, a tool call or any other: on its way out, whichever transport carries
//! it.
//!
//! Owns the waits it may have to do (for a connection, for a place under `max_concurrent`) and the
//! one case in which it is sent twice. What comes back is [`super::answer`].

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use serde::de::IgnoredAny;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};

use super::answer::{Answer, AnswerSource, Cancel, HttpSource};
use super::attempts::Attempts;
use super::dual_stream::{DualStreamCall, SendState};
use super::error::{CallError, Cause, Sent, Undelivered};
use super::http::{self, Limits, Pool, Session};
use super::notification_router::{self, Changes, NotificationRouter, ServerEvents, Told};
use super::outgoing::CallExtras;
use super::peer::Peer;
use super::request::{Fields, Params};
use super::request_ids;
use super::stdio::ChildLink;
use super::subscriptions::{Followed, Subscriptions};
use super::supervisor::{Control, ServerState};
use crate::catalog::offered::List;
use crate::io::deadline::Allowance;
use crate::mcp::capabilities::{ClientCapabilities, ServerCapabilities};
use crate::mcp::revisions::Era;
use crate::policy::{Access, Permit};
use crate::tool::server_id::ServerId;

/// Longest wait for the head of an answer that is heard: beyond every other limit.
const HEAD_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Longest wait of a client's answer for its way to the server that asked.
pub const RESPOND_WAIT: Duration = Duration::from_secs(5);

/// What stands for an error that cannot be told: JSON-RPC's internal error.
const UNTELLABLE: &[u8] = br#"{"code":-32603,"message":"the server's error holds a secret"}"#;

/// A server, as calls see it. Shared by all workers.
pub struct Upstream {
    pub(super) name: Arc<str>,
    pub(super) peer: Arc<Peer>,
    pub(super) id: ServerId,
    pub(super) call_timeout: Duration,
    /// Permits, and how many there are in all.
    pub(super) slots: Option<(Arc<Semaphore>, usize)>,
    pub(super) live: ArcSwapOption<Live>,
    pub(super) attempts: Attempts,
    pub(super) state: watch::Sender<ServerState>,
    pub(super) control: mpsc::Sender<Control>,
    /// What it said of itself when it was reached last.
    pub(super) about: ArcSwap<About>,
    pub(super) server_events: Arc<ServerEvents>,
    /// Resources whose changes it is to tell of.
    pub(super) subscriptions: watch::Sender<Subscriptions>,
    /// Which of them a modern server's subscription holds.
    pub(super) followed: watch::Sender<Followed>,
}

/// What a server said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) era: Era,
    pub(super) offers: ServerCapabilities,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The present connection to a server.
pub(super) struct Live {
    /// Counts connections, so that a report about an old one is known as such.
    pub(super) generation: u64,
    pub(super) era: Era,
    pub(super) link: Carrier,
    /// The calls over HTTP that can be reached beside their own streams.
    pub(super) router: Arc<NotificationRouter>,
}

/// What carries messages.
#[derive(Clone)]
pub(super) enum Carrier {
    Http(Arc<Session>),
    Stdio(Arc<ChildLink>),
}

impl Upstream {
    /// The server's name in the config.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The time that a call has until its answer begins.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// Its identity, which is that of its name.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// How it is now.
    #[must_use]
    pub fn state(&self) -> ServerState {
        self.state.borrow().clone()
    }

    /// Waits until it was discovered or has failed for the first time.
    pub async fn settled(&self) {
        // The sender lives as long as `self`.
        let _ = self.state.subscribe().wait_for(|state| state.settled).await;
    }

    /// The beginning of its own words, fit to be told: one line, printable, bounded, and without a
    /// value that the config holds as secret.
    #[must_use]
    pub fn quote(&self, words: &[u8]) -> Arc<str> {
        self.peer.quote(words)
    }

    /// A JSON-RPC error of the server without the values that the config holds as secret; `None`
    /// if it holds none. Where one cannot be taken out of the JSON that it stands in, another
    /// error stands for it.
    #[must_use]
    pub fn masked(&self, error: &Bytes) -> Option<Bytes> {
        let masked = match self.peer.secrets.mask(error, false) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(masked) => Bytes::from(masked),
        };
        match serde_json::from_slice::<IgnoredAny>(&masked) {
            Ok(_) => Some(masked),
            Err(_) => Some(Bytes::from_static(UNTELLABLE)),
        }
    }

    /// Whether another line about what it does may be logged. If not, it is counted, and the count
    /// told when its flood is over.
    #[must_use]
    pub fn may_log(&self) -> bool {
        self.peer.may_log()
    }

    /// Which kind of protocol it speaks, or spoke when it was reached last.
    #[must_use]
    pub fn era(&self) -> Era {
        self.about.load().era
    }

    /// What it offers, or offered when it was reached last.
    #[must_use]
    pub fn offers(&self) -> ServerCapabilities {
        self.about.load().offers
    }

    /// Tells when its lists of resources or prompts are to be read again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.server_events.changes.subscribe()
    }

    /// Tells the URIs of resources that have changed, as far as the server was asked to tell.
    #[must_use]
    pub fn updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.server_events.updates.subscribe()
    }

    /// Gives `reader` each log message that names no call, before anything else is done with it.
    /// Called once, at the start; the reader must not block.
    pub fn log_to(&self, reader: impl Fn(&Bytes) -> Told + Send + Sync + 'static) {
        self.server_events.read_by(reader);
    }

    /// Sends a client's answer back to the server that asked. `generation` is that of the
    /// [`Answer`] in which the request came, `id` the request's own id as the server wrote it,
    /// `outcome` the member `"result":…` or `"error":…` as raw JSON. Waits at most
    /// [`RESPOND_WAIT`] for a place in the queue; the sending is not waited for.
    ///
    /// # Errors
    /// [`Undelivered`]: the answer is lost, and whoever gave it may be told.
    pub async fn respond(
        &self,
        generation: u64,
        id: Bytes,
        outcome: Bytes,
    ) -> Result<(), Undelivered> {
        let alive = || self.live.load().as_ref().is_some_and(|live| live.generation == generation);
        if !alive() {
            return Err(Undelivered::Gone);
        }
        let response = Control::Respond { generation, id, outcome };
        match tokio::time::timeout(RESPOND_WAIT, self.control.send(response)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Undelivered::Gone),
            Err(_) => Err(Undelivered::Busy { waited: RESPOND_WAIT }),
        }
    }

    /// Sends what was permitted. `body` is a JSON object: of a tool's call the arguments as the agent wrote them,
    /// which go out byte for byte, but for raw line ends between tokens, which a line-framed transport cannot
    /// carry; of any other request the whole params without `_meta`. What stands `beside` it goes with it.
    ///
    /// `call_timeout` counts from when the call `began` until the first byte of the answer, with
    /// all that comes before it: a place under `max_concurrent`, a server that is connecting or
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
        let CallExtras { meta, members, client_capabilities } = beside;
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
        let params = Params { method, name, meta, fields };
        self.request(pool, params, client_capabilities, what, began).await
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
        let params = Params { method, name: None, meta: None, fields: Fields::Object(params) };
        self.request(pool, params, ClientCapabilities::default(), method.into(), began).await
    }

    async fn request(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        params: Params,
        client_capabilities: ClientCapabilities,
        what: Arc<str>,
        began: Instant,
    ) -> Result<Answer, CallError> {
        let time = Allowance::since(began, self.call_timeout);
        let sent = async {
            let slot = self.slot(time).await.map_err(unsent)?;
            let live = self.live(time.until).await.map_err(unsent)?;
            let (source, generation) =
                self.send(pool, live, params, client_capabilities, time).await?;
            Ok((source, generation, slot))
        };
        match sent.await {
            Ok((source, generation, slot)) => {
                Ok(Answer::new(source, generation, self.clone(), what, slot))
            }
            Err((cause, sent)) => {
                Err(CallError { server: self.name.clone(), tool: what, cause, sent })
            }
        }
    }

    /// Sends the request; also tells over which connection.
    async fn send(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<Live>,
        params: Params,
        client_capabilities: ClientCapabilities,
        time: Allowance,
    ) -> Result<(AnswerSource, u64), (Cause, Sent)> {
        let generation = live.generation;
        match &live.link {
            Carrier::Http(_)
                if live.era == Era::Legacy && params.may_be_told(client_capabilities) =>
            {
                let call = self.hear(pool, live, params, client_capabilities, time);
                Ok((AnswerSource::DualStream(Box::new(call)), generation))
            }
            Carrier::Http(_) => {
                let over = |live: &Live| live.generation;
                let id = request_ids::fresh();
                let (source, generation) = self.post(pool, live, &params, id, time, over).await?;
                Ok((AnswerSource::Http(source), generation))
            }
            Carrier::Stdio(link) => {
                let line = |id| params.line(id, live.era);
                let sent = link.call(line, time, Some(client_capabilities)).await;
                let sent = sent.map(|call| (AnswerSource::Stdio(call), generation));
                if sent.is_ok() || !link.has_ended() {
                    return sent;
                }
                // It ended before anything was sent, and its supervisor is about to say so.
                let again = self.successor(generation, time.until).await.map_err(unsent)?;
                let Carrier::Stdio(link) = &again.link else { return sent };
                let line = |id| params.line(id, again.era);
                let call = link.call(line, time, Some(client_capabilities)).await?;
                Ok((AnswerSource::Stdio(call), again.generation))
            }
        }
    }

    /// A call over HTTP that is sent while what is said beside its answer is heard.
    fn hear(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<Live>,
        params: Params,
        client_capabilities: ClientCapabilities,
        time: Allowance,
    ) -> DualStreamCall {
        let (id, send_state) = (request_ids::fresh(), Rc::new(SendState::default()));
        let (sender, messages) = mpsc::channel(notification_router::HEARD_MESSAGES);
        let (upstream, pool, told) = (self.clone(), pool.clone(), send_state.clone());
        let sending = async move {
            let over = |live: &Live| {
                told.attempt(
                    live.generation,
                    live.router.enter(id, sender.clone(), client_capabilities),
                )
            };
            // How long its head may take is decided where it is heard.
            upstream.post(&pool, live, &params, id, Allowance::now(HEAD_LIMIT), over).await
        };
        DualStreamCall::new(id, send_state, messages, Box::pin(sending), time)
    }

    /// Posts a request, once more if the session was lost. `over` is told each connection that it
    /// is sent over; what it makes is kept while the answer comes.
    async fn post<P>(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: Arc<Live>,
        params: &Params,
        id: u64,
        time: Allowance,
        over: impl Fn(&Live) -> P,
    ) -> Result<(Box<HttpSource>, P), (Cause, Sent)> {
        let place = over(&live);
        let refused = match self.post_once(pool, &live, params, id, time).await {
            Ok(source) => return Ok((source, place)),
            Err(refused) => refused,
        };
        drop(place);
        if refused.session_unknown {
            // The server knew nothing of the session, so it executed nothing: the one case in
            // which a call is sent twice.
            let again = self.renewed(live.generation, time.until).await.map_err(unsent)?;
            let place = over(&again);
            return match self.post_once(pool, &again, params, id, time).await {
                Ok(source) => Ok((source, place)),
                Err(refused) => Err((refused.cause, refused.sent)),
            };
        }
        if let Cause::Connect { .. } = refused.cause {
            self.report(live.generation, refused.cause.to_string());
        }
        Err((refused.cause, refused.sent))
    }

    async fn post_once(
        self: &Arc<Self>,
        pool: &Rc<Pool>,
        live: &Live,
        params: &Params,
        id: u64,
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
        match http::exchange(session, pool, &request, limits).await {
            Ok(exchange) => {
                Ok(Box::new(HttpSource::new(exchange, pool.clone(), session.key, cancel)))
            }
            Err(refused) => {
                cancel.failed(&refused.cause, refused.sent);
                Err(refused)
            }
        }
    }

    async fn slot(&self, time: Allowance) -> Result<Option<OwnedSemaphorePermit>, Cause> {
        let Some((slots, limit)) = &self.slots else { return Ok(None) };
        if let Ok(slot) = slots.clone().try_acquire_owned() {
            return Ok(Some(slot));
        }
        match tokio::time::timeout_at(time.until.into(), slots.clone().acquire_owned()).await {
            Ok(Ok(slot)) => Ok(Some(slot)),
            Ok(Err(_)) | Err(_) => Err(Cause::Busy { limit: *limit, waited: time.whole }),
        }
    }

    /// A connection younger than this one, whose session the server does not know any more.
    async fn renewed(&self, generation: u64, until: Instant) -> Result<Arc<Live>, Cause> {
        if self.live.load().as_ref().is_some_and(|live| live.generation == generation) {
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
