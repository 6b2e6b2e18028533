//! What an upstream says before its answer, turned into what its client may have.
//!
//! A client is told of its own calls only: progress under the token it gave, log messages it asked
//! for, and requests it declared that it can answer, under ids of its own. Everything else ends
//! here. Bytes are kept: only a token or an id is replaced.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::span::Span;
use crate::proxy::client::{Client, Level, Question};
use crate::proxy::dispatch::Channel;
use crate::proxy::reply::Piece;
use crate::upstream::Era;
use crate::wire::jsonrpc::Envelope;

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
        let params = envelope.params.map(|raw| serde_json::from_str::<Params<'_>>(raw.get()));
        let Ok(params) = params.transpose() else { return Step::Drop };
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
            (Era::Legacy, Channel::Stream) if !client.takes.grant(method) => {
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

fn tell(message: Bytes) -> Step {
    Step::Tell(Piece::Notification(message))
}

fn respond(message: &Bytes, raw: &RawValue, payload: Bytes) -> Step {
    Step::Respond(message.slice_ref(raw.get().as_bytes()), payload)
}

/// `message` with `part`, a slice of it, replaced.
fn replaced(message: &Bytes, part: &RawValue, by: &[u8]) -> Bytes {
    Span::of(message, part.get().as_bytes()).replaced(message, by).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Takes;

    const ALL: Takes = Takes { sampling: true, elicitation: true, roots: true };

    fn client(era: Era, takes: Takes) -> Arc<Client> {
        Arc::new(Client::new("s".into(), "ide", "2025-11-25", era, takes))
    }

    fn relay(client: &Arc<Client>, channel: Channel, token: Option<&'static str>) -> Relay {
        let token = token.map(|token| Bytes::from_static(token.as_bytes()));
        Relay::new(Some((Arc::clone(client), channel)), token)
    }

    /// What the client gets of a message before the answer to request 7; `None` for nothing.
    fn told(relay: &mut Relay, message: &'static str) -> Option<String> {
        let message = Bytes::from_static(message.as_bytes());
        match relay.take(&message, 7, &"srv".into(), 1) {
            Step::Tell(Piece::Notification(told) | Piece::Request(told)) => {
                Some(String::from_utf8(told.to_vec()).unwrap())
            }
            Step::Tell(piece) => panic!("{piece:?}"),
            Step::Respond(..) | Step::Drop => None,
        }
    }

    /// What the upstream gets: the id it is told under, and the outcome.
    fn refused(relay: &mut Relay, message: &'static str) -> Option<(Bytes, String)> {
        match relay.take(&Bytes::from_static(message.as_bytes()), 7, &"srv".into(), 1) {
            Step::Respond(id, outcome) => Some((id, String::from_utf8(outcome.to_vec()).unwrap())),
            Step::Tell(_) | Step::Drop => None,
        }
    }

    #[test]
    fn progress_comes_under_the_clients_own_token_and_of_its_own_call_only() {
        let client = client(Era::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("\"t\\u0031\""));
        let progress = r#"{"method":"notifications/progress","params":{"progress":1.0, "progressToken" : 7 }}"#;
        let expected = progress.replace(": 7", r#": "t\u0031""#);
        assert_eq!(told(&mut ours, progress), Some(expected));
        for foreign in [
            r#"{"method":"notifications/progress","params":{"progressToken":8}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":"7"}}"#,
            r#"{"method":"notifications/progress","params":{}}"#,
            r#"{"method":"notifications/tools/list_changed"}"#,
            "not JSON",
        ] {
            assert_eq!(told(&mut ours, foreign), None, "{foreign}");
        }
        assert_eq!(told(&mut relay(&client, Channel::Stream, None), progress), None);
        assert_eq!(told(&mut relay(&client, Channel::Answer, Some("1")), progress), None);
        assert_eq!(told(&mut Relay::new(None, None), progress), None);
    }

    #[test]
    fn a_request_gets_an_id_of_the_clients_own_and_is_forgotten_with_its_call() {
        let client = client(Era::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, None);
        let ask = r#"{"id": "a\"b" ,"method":"roots/list"}"#;
        assert_eq!(told(&mut ours, ask).unwrap(), r#"{"id": 0 ,"method":"roots/list"}"#);
        assert_eq!(told(&mut ours, ask).unwrap(), r#"{"id": 1 ,"method":"roots/list"}"#);
        let question = client.answered(0).unwrap();
        assert_eq!((&*question.server, question.generation), ("srv", 1));
        assert_eq!(question.raw_id, r#""a\"b""#);
        drop(ours);
        assert_eq!(client.answered(1), None, "nobody waits for it any more");
    }

    #[test]
    fn a_withdrawn_request_is_cancelled_under_the_clients_id() {
        let client = client(Era::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, None);
        told(&mut ours, r#"{"id":5,"method":"elicitation/create"}"#).unwrap();
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":5}}"#;
        let expected = cancel.replace(":5", ":0");
        assert_eq!(told(&mut ours, cancel), Some(expected));
        assert_eq!(told(&mut ours, cancel), None, "there is nothing left to cancel");
        assert_eq!(client.answered(0), None);
    }

    #[test]
    fn who_cannot_be_asked_is_not_and_the_server_is_told_why() {
        let ask = r#"{"id":5,"method":"sampling/createMessage"}"#;
        let legacy = client(Era::Legacy, ALL);
        for (mut relay, why) in [
            (Relay::new(None, None), "no MCP client"),
            (relay(&client(Era::Modern, ALL), Channel::Stream, None), "servers send no requests"),
            (relay(&legacy, Channel::Answer, None), "takes no event stream"),
            (relay(&client(Era::Legacy, Takes::default()), Channel::Stream, None), "not declare"),
        ] {
            let (id, outcome) = refused(&mut relay, ask).unwrap();
            assert_eq!(id, "5");
            assert!(outcome.starts_with("\"error\":{") && outcome.contains(why), "{outcome}");
        }
        let mut ours = relay(&legacy, Channel::Stream, None);
        assert!(refused(&mut ours, r#"{"id":5,"method":"tools/call"}"#).is_some());
        let pong = refused(&mut ours, r#"{"id":5,"method":"ping"}"#).unwrap();
        assert_eq!(pong.1, r#""result":{}"#);
    }

    #[test]
    fn log_messages_come_from_the_level_that_was_asked_for() {
        let info = r#"{"method":"notifications/message","params":{"level":"info","data":1}}"#;
        let (old, new) = (client(Era::Legacy, ALL), client(Era::Modern, ALL));
        assert!(told(&mut relay(&old, Channel::Stream, None), info).is_some());
        assert!(told(&mut relay(&new, Channel::Stream, None), info).is_none());
        new.set_level(Level::Info);
        assert!(told(&mut relay(&new, Channel::Stream, None), info).is_some());
        old.set_level(Level::Notice);
        assert!(told(&mut relay(&old, Channel::Stream, None), info).is_none());
    }
}
