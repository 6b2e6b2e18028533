//! Several messages in one request (MCP 2025-03-26), and their answers in one array. In a fleet each message is answered where it
//! would be alone; where one of them is for a session that is over, nothing is done of any.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, future};
use http::{Response, StatusCode};

use crate::downstream::body::Body;
use crate::downstream::client_connection::Post;
use crate::downstream::forward::{self, PassedOn};
use crate::downstream::in_flight::{Taken, Watched};
use crate::downstream::placing::{self, MessagePlace};
use crate::downstream::response::{invalid_request, json, status};
use crate::downstream::session::Session;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::message::SMALL_MESSAGE_BYTES;
use crate::mcp::revisions::Era;
use crate::proxy::Worker;
use crate::proxy::caller::Channel;
use crate::proxy::dispatch;
use crate::proxy::incoming;
use crate::proxy::incoming::Incoming;
use crate::proxy::reaction::Reaction;
use crate::proxy::render;
use crate::proxy::reply::{Aborted, Piece};

/// Most messages of one batch.
const MAX_BATCH: usize = 64;
/// What is told to all nodes.
const SET_LEVEL: &str = "logging/setLevel";

/// The answer to one message of a batch.
enum Item {
    Ready(Bytes),
    Call(Bytes, Watched),
    /// Another node's.
    PassedOn(PassedOn),
}

/// A message of a batch.
struct BatchMessage {
    text: Bytes,
    /// As it was read, or the error that answers it.
    read: Result<Incoming, Bytes>,
    place: MessagePlace,
}

/// Answers a batch (MCP 2025-03-26): an array of responses, each begun when the one before has
/// ended, so that a batch of large answers needs no more memory than one.
pub(super) async fn many(post: &Post<'_>, session: &Arc<Session>, body: &Bytes) -> Response<Body> {
    let invalid = |text: &str| invalid_request(StatusCode::BAD_REQUEST, None, text);
    if let Err(problem) = incoming::check(post.worker, body) {
        return invalid(&problem);
    }
    let Some(messages) = jsonrpc::batch(body) else { return invalid("Invalid Request: no batch") };
    if messages.is_empty() || messages.len() > MAX_BATCH {
        return invalid(&format!("Invalid Request: a batch holds 1 to {MAX_BATCH} messages"));
    }
    post.sessions.note_use(session);
    let messages = match placed(post, session, messages).await {
        Ok(messages) => messages,
        Err(answer) => return answer,
    };
    let peer = post.peer(session, Channel::Answer);
    let (mut items, mut told) = (VecDeque::new(), Vec::new());
    for BatchMessage { text, mut read, place } in messages {
        // The last of these calls may end long after the arguments of all have gone.
        if body.len() > SMALL_MESSAGE_BYTES
            && let Ok(Incoming::Request(received)) = &mut read
        {
            received.request.copy_id();
        }
        let is_over_with_its_node = matches!(place, MessagePlace::On(_));
        let not_there = if is_over_with_its_node { forward::GONE } else { forward::NOT_ANSWERED };
        let received = match (read, place) {
            (Err(error), _) => {
                items.push_back(Item::Ready(error));
                continue;
            }
            (Ok(incoming), MessagePlace::On(node) | MessagePlace::OnOrHere(node)) => {
                match id_of(incoming) {
                    Some(id) => {
                        let answer = forward::answer_to(post, node, id, not_there, &text);
                        items.push_back(Item::PassedOn(answer));
                    }
                    None => told.push((node, text)),
                }
                continue;
            }
            (
                Ok(Incoming::Response(response)),
                MessagePlace::Here | MessagePlace::NotKnown | MessagePlace::Gone,
            ) => {
                let answered = incoming::respond(post.worker, &session.client, response).await;
                items.extend(answered.err().map(Item::Ready));
                continue;
            }
            (
                Ok(Incoming::Request(received)),
                MessagePlace::Here | MessagePlace::NotKnown | MessagePlace::Gone,
            ) => received,
        };
        let is_level = &*received.request.method == SET_LEVEL;
        match dispatch::dispatch(post.worker, &peer, received) {
            Reaction::Noted => {}
            Reaction::Cancel(id) => {
                if !session.cancel(&id) {
                    forward::tell_all(post, &text, false).await;
                }
            }
            Reaction::Answer(answer) if is_level => {
                forward::tell_all(post, &text, true).await;
                items.push_back(Item::Ready(answer));
            }
            Reaction::Answer(answer) | Reaction::Error(_, answer) => {
                items.push_back(Item::Ready(answer));
            }
            Reaction::Call { id, running } => {
                let call = post.connection.in_flight.watch(session.owner(), &id, running);
                items.push_back(Item::Call(id, call));
            }
            Reaction::Initialize(_) => {
                let text = "Invalid Request: initialize must not be part of a batch";
                items.push_back(Item::Ready(jsonrpc::error(None, Code::InvalidRequest, text)));
            }
            Reaction::Listen { .. } => {}
        }
    }
    // Nothing is said to these, as to any of a batch: the order is free, and none holds up the others.
    future::join_all(told.iter().map(|(node, text)| forward::tell(post, node, text))).await;
    if items.is_empty() {
        return status(StatusCode::ACCEPTED);
    }
    let worker = Rc::clone(post.worker);
    let batch = Batch { worker, items, out: VecDeque::new(), opened: false, begun: false };
    let chunks = futures_util::stream::try_unfold(batch, |mut batch| async move {
        Ok(batch.next().await?.map(|chunk| (chunk, batch)))
    });
    json(StatusCode::OK, Body::Stream(Box::pin(chunks)))
}

/// The messages of a batch, and where each is answered; else the answer to all, if one of them is for what is gone with its node,
/// or may be.
async fn placed(
    post: &Post<'_>,
    session: &Session,
    messages: Vec<Bytes>,
) -> Result<Vec<BatchMessage>, Response<Body>> {
    let mut placed = Vec::with_capacity(messages.len());
    for text in messages {
        let read = incoming::read(post.worker, &text);
        let place = match &read {
            Err(_) => MessagePlace::Here,
            Ok(Incoming::Response(response)) => placing::of_response(post, response),
            // It is refused wherever it is.
            Ok(Incoming::Request(received)) if &*received.request.method == "initialize" => {
                MessagePlace::Here
            }
            Ok(Incoming::Request(received)) => placing::of_request(post, session, received).await,
        };
        match place {
            MessagePlace::Gone => return Err(forward::gone()),
            MessagePlace::NotKnown => return Err(forward::not_known()),
            MessagePlace::Here | MessagePlace::On(_) | MessagePlace::OnOrHere(_) => {}
        }
        placed.push(BatchMessage { text, read, place });
    }
    Ok(placed)
}

/// The raw id of a request that is answered.
fn id_of(incoming: Incoming) -> Option<Bytes> {
    match incoming {
        Incoming::Request(received) => received.request.id,
        Incoming::Response(_) => None,
    }
}

struct Batch {
    worker: Rc<Worker>,
    items: VecDeque<Item>,
    out: VecDeque<Bytes>,
    /// The array has begun.
    opened: bool,
    /// The answer of the first item has begun.
    begun: bool,
}

impl Batch {
    async fn next(&mut self) -> Result<Option<Bytes>, Aborted> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                return Ok(Some(chunk));
            }
            let separator = if self.opened { "," } else { "[" };
            match self.items.front_mut() {
                None if self.opened => {
                    self.opened = false;
                    return Ok(Some(Bytes::from_static(b"]")));
                }
                None => return Ok(None),
                Some(Item::Ready(answer)) => {
                    self.out.extend([Bytes::from_static(separator.as_bytes()), answer.clone()]);
                    self.opened = true;
                    self.items.pop_front();
                }
                Some(Item::PassedOn(parts)) => match parts.next().await {
                    Some(part) if self.begun => self.out.push_back(part?),
                    Some(part) => {
                        self.out.extend([Bytes::from_static(separator.as_bytes()), part?]);
                        self.begun = true;
                    }
                    None => {
                        // An answer has a body.
                        self.opened |= self.begun;
                        self.begun = false;
                        self.items.pop_front();
                    }
                },
                Some(Item::Call(id, call)) => {
                    let first = |head: Bytes| [Bytes::from_static(separator.as_bytes()), head];
                    let over = match call.next().await {
                        Taken::Piece(Piece::Notification(_) | Piece::Request(_) | Piece::Alive) => {
                            false
                        }
                        Taken::Piece(Piece::Begin(member)) => {
                            self.out.extend(first(render::head(id, member)));
                            self.begun = true;
                            false
                        }
                        Taken::Piece(Piece::Data(data)) => {
                            self.out.extend(data);
                            false
                        }
                        Taken::Piece(Piece::Whole(member, value)) => {
                            self.out.extend(first(render::head(id, member)));
                            self.out.extend(value);
                            self.out.push_back(jsonrpc::TAIL);
                            true
                        }
                        Taken::Piece(Piece::Refused(refusal)) => {
                            let answer = refusal.mcp_response(Era::Legacy, id);
                            self.out.extend(first(answer));
                            true
                        }
                        Taken::Over => {
                            self.out.push_back(jsonrpc::TAIL);
                            true
                        }
                        Taken::Broken(aborted) => return Err(aborted),
                        Taken::Cancelled if self.begun => {
                            return Err(Aborted("the client cancelled the call".into()));
                        }
                        Taken::Cancelled => {
                            let text = "the client cancelled the request";
                            self.out.extend(first(jsonrpc::error(Some(id), Code::Internal, text)));
                            true
                        }
                    };
                    if over {
                        (self.opened, self.begun) = (true, false);
                        if let Some(Item::Call(_, call)) = self.items.pop_front()
                            && let Some(rest) = call.rest()
                        {
                            self.worker.defer(rest);
                        }
                    }
                }
            }
        }
    }
}
