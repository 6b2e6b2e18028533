//! What an upstream says before its answer, turned into what its client may have.
//!
//! A client is told of its own calls only: progress under the token it gave, log messages it asked
//! for, and requests it declared that it can answer, under ids of its own. Everything else ends
//! here. Bytes are kept: only a token or an id is replaced.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::proxy::client::{Client, Level, Question};
use crate::proxy::dispatch::Channel;
use crate::proxy::reply::Piece;
use crate::upstream::{Era, Takes};

/// Where what comes before an answer goes.
pub(super) struct Relay {
    client: Option<(Arc<Client>, Channel)>,
    /// The client's own progress token, raw.
    token: Option<Bytes>,
    /// What the client was asked for this call, and may not have answered.
    asked: Vec<u64>,
}

/// What is to be done about a message.
#[derive(Debug)]
pub(super) enum Step {
    /// The client gets this.
    Tell(Piece),
    /// The upstream gets this `error` or `result` member, under the raw id.
    Respond(Bytes, Bytes),
    /// Nothing.
    Drop,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
    level: Option<Level>,
}

impl Relay {
    /// A relay to `client`, if it can be told anything; `token` is the one its call carried.
    pub(super) fn new(client: Option<(Arc<Client>, Channel)>, token: Option<Bytes>) -> Self {
        Self { client, token, asked: Vec::new() }
    }

    /// Takes a message that came before the answer to the request `id` of `server`.
    pub(super) fn take(
        &mut self,
        message: &Bytes,
        id: u64,
        server: &Arc<str>,
        generation: u64,
    ) -> Step {
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(message) else {
            return Step::Drop;
        };
        let Some(method) = envelope.method else { return Step::Drop };
        let params = envelope.params;
        match (&*method, envelope.id) {
            ("ping", Some(raw)) => respond(message, raw, Bytes::from_static(b"\"result\":{}")),
            (method, Some(raw)) => self.request(message, method, raw, server, generation),
            ("notifications/progress", None) => {
                let Some(found) = params.and_then(|params| params.progress_token) else {
                    return Step::Drop;
                };
                match &self.token {
                    // It may be another call's, or made up.
                    Some(ours) if found.get() == id.to_string() && self.channel().is_some() => {
                        tell(replaced(message, found, ours))
                    }
                    Some(_) | None => Step::Drop,
                }
            }
            ("notifications/message", None) => {
                let level = params.and_then(|params| params.level).unwrap_or(Level::Info);
                match self.channel() {
                    Some(client) if client.wants(level) => tell(message.clone()),
                    Some(_) | None => Step::Drop,
                }
            }
            ("notifications/cancelled", None) => {
                match params.and_then(|params| params.request_id) {
                    Some(raw) => self.withdraw(message, raw, server, generation),
                    None => Step::Drop,
                }
            }
            (_, None) => Step::Drop,
        }
    }

    /// How the client speaks.
    pub(super) fn era(&self) -> Era {
        self.client.as_ref().map_or(Era::Legacy, |(client, _)| client.era)
    }

    /// The client, if something can be sent to it now.
    fn channel(&self) -> Option<&Arc<Client>> {
        match &self.client {
            Some((client, Channel::Stream)) => Some(client),
            Some((_, Channel::Answer)) | None => None,
        }
    }

    fn request(
        &mut self,
        message: &Bytes,
        method: &str,
        raw: &RawValue,
        server: &Arc<str>,
        generation: u64,
    ) -> Step {
        let refuse = |text: &str| {
            let error = serde_json::json!({"code": -32601, "message": text});
            respond(message, raw, Bytes::from(format!("\"error\":{error}")))
        };
        let Some((client, channel)) = &self.client else {
            return refuse(&format!("{method}: this call came from no MCP client"));
        };
        match (client.era, channel) {
            (Era::Modern, _) => {
                return refuse(&format!(
                    "{method}: the client speaks {}, in which servers send no requests",
                    client.version
                ));
            }
            (Era::Legacy, Channel::Answer) => {
                return refuse(&format!("{method}: the client takes no event stream"));
            }
            (Era::Legacy, Channel::Stream) if !can(client.takes, method) => {
                return refuse(&format!("{method}: the client did not declare that it can"));
            }
            (Era::Legacy, Channel::Stream) => {}
        }
        let raw_id = message.slice_ref(raw.get().as_bytes());
        let question = Question { server: Arc::clone(server), generation, raw_id };
        match client.ask(question) {
            Some(id) => {
                self.asked.push(id);
                let id = Bytes::from(id.to_string());
                Step::Tell(Piece::Request(replaced(message, raw, &id)))
            }
            None => refuse(&format!("{method}: the client has too many requests open")),
        }
    }

    /// The upstream does not wait for an answer any more.
    fn withdraw(
        &mut self,
        message: &Bytes,
        raw: &RawValue,
        server: &Arc<str>,
        generation: u64,
    ) -> Step {
        let Some((client, _)) = &self.client else { return Step::Drop };
        let raw_id = message.slice_ref(raw.get().as_bytes());
        let question = Question { server: Arc::clone(server), generation, raw_id };
        let asked = self.asked.iter().position(|id| client.is_asked(*id, &question));
        let Some(at) = asked else { return Step::Drop };
        let id = self.asked.swap_remove(at);
        client.answered(id);
        tell(replaced(message, raw, &Bytes::from(id.to_string())))
    }
}

impl Drop for Relay {
    /// The call is over: what its client was asked is of no use any more.
    fn drop(&mut self) {
        let Some((client, _)) = &self.client else { return };
        for id in self.asked.drain(..) {
            client.answered(id);
        }
    }
}

fn can(takes: Takes, method: &str) -> bool {
    match method {
        "sampling/createMessage" => takes.sampling,
        "elicitation/create" => takes.elicitation,
        "roots/list" => takes.roots,
        _ => false,
    }
}

fn tell(message: Bytes) -> Step {
    Step::Tell(Piece::Notification(message))
}

fn respond(message: &Bytes, raw: &RawValue, payload: Bytes) -> Step {
    Step::Respond(message.slice_ref(raw.get().as_bytes()), payload)
}

/// `message` with `part`, a slice of it, replaced.
fn replaced(message: &Bytes, part: &RawValue, by: &[u8]) -> Bytes {
    let part = part.get().as_bytes();
    let at = part.as_ptr().addr().saturating_sub(message.as_ptr().addr());
    let (before, rest) = message.split_at_checked(at).unwrap_or((message, &[]));
    [before, by, rest.get(part.len()..).unwrap_or_default()].concat().into()
}
