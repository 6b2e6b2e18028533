//! Reply of a call, passed downstream piece by piece within one task, and [`Reaction`], the outcome of a client
//! message.
//!
//! A call is a future polled by downstream, which takes each piece from a one-element slot. Both sides share one
//! task, so no channel, wake-up or lock lies between them, and backpressure means that a side stops polling.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::AnswerMember;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::refusal::Refusal;
use super::render::shown;

/// Piece of a reply, in order.
#[derive(Debug)]
pub enum Piece {
    /// A complete message that precedes the answer, ready for the client.
    Notification(Bytes),
    /// Request that the client must answer; its id was issued by [`Client`].
    ///
    /// [`Client`]: crate::proxy::client::Client
    Request(Bytes),
    /// Keep-alive: the reply becomes a stream if it can.
    Alive,
    /// The complete value of the answer's member; ends the reply.
    Whole(AnswerMember, Splice),
    /// Start of the answer; its value follows as [`Piece::Data`].
    Begin(AnswerMember),
    /// Next bytes of the answer's value.
    Data(Splice),
    /// Refusal in place of an answer; its form depends on the transport.
    Refused(Refusal),
}

/// The reply broke off after its first byte and must not be ended as if complete.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the reply was broken off: {0}")]
pub struct Aborted(pub String);

/// The call's side of a reply.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    shared: Rc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    slot: RefCell<Option<Piece>>,
    /// Set when the client canceled the call, which is about to be dropped.
    canceled: Cell<bool>,
    /// Checks whether the answer can still be stored after its connection broke.
    capacity: RefCell<Option<CapacityCheck>>,
    /// Reason why the answer has no receiver; the call is about to be dropped.
    given_up: RefCell<Option<String>>,
    /// Called when the connection breaks.
    on_broken: RefCell<Option<OnBroken>>,
}

struct OnBroken(Box<dyn FnOnce()>);

impl std::fmt::Debug for OnBroken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnBroken")
    }
}

struct CapacityCheck(Box<FitsRest>);

/// Checks whether the rest of an answer fits.
type FitsRest = dyn Fn(&Splice) -> Result<(), String>;

impl std::fmt::Debug for CapacityCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CapacityCheck")
    }
}

impl Reply {
    /// Puts a piece into the slot and waits until it is taken.
    pub async fn send(&self, piece: Piece) {
        self.put(piece);
        // No waker: the side that takes the piece polls the call again.
        poll_fn(
            |_| if self.shared.slot.borrow().is_some() { Poll::Pending } else { Poll::Ready(()) },
        )
        .await;
    }

    /// Puts the last piece into the slot without waiting.
    pub fn put(&self, piece: Piece) {
        *self.shared.slot.borrow_mut() = Some(piece);
    }

    /// Whether the call is being dropped because its client canceled it.
    pub(crate) fn is_canceled(&self) -> bool {
        self.shared.canceled.get()
    }

    /// Reason why the rest of the answer cannot be delivered after its connection broke; `None` if it can. Reserves
    /// space for a rest that fits.
    pub fn undelivered(&self, rest: &Splice) -> Option<String> {
        let capacity = self.shared.capacity.borrow();
        capacity.as_ref().and_then(|CapacityCheck(capacity)| capacity(rest).err())
    }

    /// Calls `then` once the connection breaks; at once if it is broken already.
    pub(crate) fn when_broken(&self, then: impl FnOnce() + 'static) {
        match self.shared.capacity.borrow().is_some() {
            true => then(),
            false => *self.shared.on_broken.borrow_mut() = Some(OnBroken(Box::new(then))),
        }
    }

    /// Reason why the call is being dropped, if its answer has no receiver.
    pub(crate) fn given_up(&self) -> Option<String> {
        self.shared.given_up.borrow().clone()
    }

    fn take(&self) -> Option<Piece> {
        self.shared.slot.borrow_mut().take()
    }
}

type Call = Pin<Box<dyn Future<Output = Result<(), Aborted>>>>;

/// Maximum size of a call's future in bytes. The compiler constructs one of more than 8 KiB on the stack and copies it.
const MAX_CALL_BYTES: usize = 7 << 10;

/// Downstream's side: a call in progress. Dropping it cancels the call.
pub struct Running {
    call: Option<Call>,
    /// Error of the call, until [`Running::poll_piece`] has returned it.
    aborted: Option<Aborted>,
    reply: Reply,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("ended", &self.call.is_none()).finish_non_exhaustive()
    }
}

impl Running {
    /// Creates the call; it starts at the first poll.
    pub fn new<F>(make: impl FnOnce(Reply) -> F) -> Self
    where
        F: Future<Output = Result<(), Aborted>> + 'static,
    {
        const { assert!(size_of::<F>() <= MAX_CALL_BYTES, "box rare parts of the call's future") };
        let reply = Reply::default();
        // Memory is allocated first, so that the call is constructed in place instead of being copied.
        let call = Box::into_pin(Box::write(Box::new_uninit(), make(reply.clone())));
        Self { call: Some(call), aborted: None, reply }
    }

    /// Next piece; `None` at the end of the reply.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Aborted>>> {
        if let Some(piece) = self.reply.take() {
            return Poll::Ready(Some(Ok(piece)));
        }
        if let Some(call) = self.call.as_mut()
            && let Poll::Ready(ended) = call.as_mut().poll(cx)
        {
            self.call = None;
            self.aborted = ended.err();
        }
        match self.reply.take() {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None if self.call.is_some() => Poll::Pending,
            None => Poll::Ready(self.aborted.take().map(Err)),
        }
    }

    /// Next piece; `None` at the end of the reply.
    pub async fn next(&mut self) -> Option<Result<Piece, Aborted>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Drops the call as canceled by its client, and records it as canceled.
    pub fn cancel(self) {
        self.reply.shared.canceled.set(true);
    }

    /// Marks the connection as broken; `capacity` checks whether the rest of the answer can be stored.
    pub fn answers_to(&self, capacity: impl Fn(&Splice) -> Result<(), String> + 'static) {
        *self.reply.shared.capacity.borrow_mut() = Some(CapacityCheck(Box::new(capacity)));
        let then = self.reply.shared.on_broken.borrow_mut().take();
        if let Some(OnBroken(then)) = then {
            then();
        }
    }

    /// Drops the call because its answer has no receiver, and records this reason.
    pub fn give_up(self, why: String) {
        *self.reply.shared.given_up.borrow_mut() = Some(why);
    }

    /// Work left after the last piece, if any.
    pub fn rest(self) -> Option<Call> {
        self.call
    }
}

/// Outcome of a client's message.
#[derive(Debug)]
pub enum Reaction {
    /// The message was accepted; there is no response.
    Noted,
    /// Complete response with a result.
    Answer(Bytes),
    /// Complete response with an error of this code.
    Error(Code, Bytes),
    /// Cancellation of the request with this raw id.
    Cancel(Bytes),
    /// Subscription to change notifications (MCP 2026-07-28 §Subscriptions).
    Listen {
        /// Raw id for the response.
        id: Bytes,
        filter: NotificationFilter,
    },
    /// An `initialize` request: the response, once a session is open.
    Initialize(Initialize),
    Call {
        /// Raw id for the response.
        id: Bytes,
        running: Running,
    },
}

/// An accepted `initialize`.
#[derive(Debug)]
pub struct Initialize {
    pub version: &'static str,
    pub client_name: String,
    pub client_capabilities: ClientCapabilities,
    pub answer: Bytes,
}

/// Notifications that a client subscribes to (MCP 2026-07-28 §Notification Filter).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationFilter {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tools_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompts_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resources_list_changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_subscriptions: Vec<String>,
    /// Ids of tasks, from the tasks extension.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub task_ids: Vec<String>,
}

impl Reaction {
    pub(crate) fn unknown_method(id: &[u8], method: &str) -> Self {
        Self::error(id, Code::MethodNotFound, &format!("Method not found: {}", shown(method)))
    }

    pub(crate) fn error(id: &[u8], code: Code, text: &str) -> Self {
        Self::Error(code, jsonrpc::error(Some(id), code, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(running: &mut Running) -> Poll<Option<Result<Piece, Aborted>>> {
        running.poll_piece(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn call_waits_until_each_piece_is_taken() {
        let progress = Rc::new(RefCell::new(0));
        let seen = Rc::clone(&progress);
        let mut running = Running::new(|reply| async move {
            reply.send(Piece::Begin(AnswerMember::Result)).await;
            *seen.borrow_mut() += 1;
            reply.send(Piece::Data(Splice::new())).await;
            *seen.borrow_mut() += 1;
            Ok(())
        });
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Ok(Piece::Begin(_))))));
        assert_eq!(
            *progress.borrow(),
            0,
            "the call waits until the piece is taken and the next one polled"
        );
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Ok(Piece::Data(_))))));
        assert_eq!(*progress.borrow(), 1);
        assert!(matches!(poll(&mut running), Poll::Ready(None)));
        assert_eq!(*progress.borrow(), 2);
        assert!(matches!(poll(&mut running), Poll::Ready(None)));
    }

    #[test]
    fn abort_is_delivered_after_the_preceding_pieces() {
        let mut running = Running::new(|reply| async move {
            reply.put(Piece::Begin(AnswerMember::Result));
            Err(Aborted("gone".into()))
        });
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Ok(Piece::Begin(_))))));
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Err(Aborted(_))))));
        assert!(matches!(poll(&mut running), Poll::Ready(None)));
    }
}
