//! What an upstream says before its answer, turned into what its client may have.
//!
//! A client receives what belongs to its own calls only: progress under the token it gave, log messages it asked
//! for, and requests it declared that it can answer, under ids of its own. Everything else ends
//! here, members that such a message does not have among them; the values of the others are the
//! server's own bytes, but for a token or an id that is replaced.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::jsonrpc::{Code, Envelope};
use crate::mcp::revisions::{Era, Revision};
use crate::mcp::shapes::{self, Edit, Left};
use crate::proxy::caller::Channel;
use crate::proxy::client::{ActiveCall, Client, Level, Question, ServerQuestion};
use crate::proxy::dropped_members::DroppedMembers;
use crate::proxy::reply::Piece;

/// Where what comes before an answer goes.
pub(super) struct Relay {
    /// Counts as in flight until the answer is through.
    client: Option<(ActiveCall, Channel)>,
    /// The client's own progress token, raw.
    token: Option<Bytes>,
    /// What the client was asked for this call, and may not have answered.
    asked: Vec<u64>,
    /// Something was told before the answer: it is a stream already.
    streams: bool,
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

/// The server that answers.
pub(super) struct Asked<'a> {
    pub(super) server: &'a Arc<str>,
    /// The connection to it.
    pub(super) generation: u64,
    /// What was warned of.
    pub(super) told: &'a DroppedMembers,
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
    pub(super) fn new(client: Option<(ActiveCall, Channel)>, token: Option<Bytes>) -> Self {
        Self { client, token, asked: Vec::new(), streams: false }
    }

    /// Takes a message that came before the answer to the request `id` of `asked`.
    pub(super) fn take(&mut self, message: &Bytes, id: u64, asked: &Asked<'_>) -> Step {
        let step = self.step(message, id, asked);
        self.streams |= matches!(step, Step::Tell(_));
        step
    }

    /// Its client has just used a server.
    pub(super) fn was_active(&self, now: Instant) {
        if let Some((client, _)) = &self.client {
            client.was_active(now);
        }
    }

    fn step(&mut self, message: &Bytes, id: u64, asked: &Asked<'_>) -> Step {
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(message) else {
            return Step::Drop;
        };
        let Some(method) = &envelope.method else { return Step::Drop };
        let params = envelope.params.map(|raw| serde_json::from_str::<Params<'_>>(raw.get()));
        let Ok(params) = params.transpose() else { return Step::Drop };
        match (&**method, envelope.id) {
            ("ping", Some(raw)) => respond(message, raw, Bytes::from_static(b"\"result\":{}")),
            (method, Some(raw)) => self.request(message, method, raw, asked),
            ("notifications/progress", None) => {
                let Some(found) = params.and_then(|params| params.progress_token) else {
                    return Step::Drop;
                };
                match (&self.token, self.channel()) {
                    // It may be another call's, or made up.
                    (Some(ours), Some(client)) if found.get() == id.to_string() => {
                        let ours = std::str::from_utf8(ours).unwrap_or("null");
                        let edits = [("progressToken", Some(ours))];
                        tell(notification(message, client.revision(), &edits, asked))
                    }
                    (Some(_), _) | (None, _) => Step::Drop,
                }
            }
            ("notifications/message", None) => {
                let level = params.and_then(|params| params.level).unwrap_or(Level::Info);
                match &self.client {
                    Some((client, channel)) if client.wants(level) => {
                        match log_message(message, client, asked.server, asked.told) {
                            Some(message) => self.log(message, client, *channel),
                            None => Step::Drop,
                        }
                    }
                    Some(_) | None => Step::Drop,
                }
            }
            ("notifications/cancelled", None) => {
                match params.and_then(|params| params.request_id) {
                    Some(raw) => self.withdraw(message, raw, asked),
                    None => Step::Drop,
                }
            }
            (_, None) => Step::Drop,
        }
    }

    /// Log messages make no stream of an answer that is none, for who did not ask for them: there
    /// are clients that read large answers from JSON only.
    fn log(&self, message: Bytes, client: &Client, channel: Channel) -> Step {
        match channel {
            Channel::Stream if self.streams || client.chose_level() => tell(Some(message)),
            Channel::Stream | Channel::Answer => {
                client.tell_aside(message);
                Step::Drop
            }
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
        asked: &Asked<'_>,
    ) -> Step {
        let refuse_with = |code: Code, text: &str| {
            let error = serde_json::json!({"code": code as i32, "message": text});
            respond(message, raw, Bytes::from(format!("\"error\":{error}")))
        };
        let refuse = |text: &str| refuse_with(Code::MethodNotFound, text);
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
            (Era::Legacy, Channel::Stream) if !client.client_capabilities.grant(method) => {
                return refuse(&format!("{method}: the client did not declare that it can"));
            }
            (Era::Legacy, Channel::Stream) => {}
        }
        let raw_id = message.slice_ref(raw.get().as_bytes());
        let (server, generation) = (Arc::clone(asked.server), asked.generation);
        let question = ServerQuestion { server, method: method.into(), generation, raw_id };
        let Some(id) = client.ask(Question::Server(question)) else {
            return refuse(&format!("{method}: the client has too many requests open"));
        };
        let mut left = Left::default();
        match shapes::message(message, client.revision(), &[], Some(&id.to_string()), &mut left) {
            Ok(sent) => {
                asked.told.of_server(asked.server, method, &left);
                self.asked.push(id);
                Step::Tell(Piece::Request(sent))
            }
            Err(refused) => {
                client.answered(id);
                asked.told.refused(asked.server, method, &refused);
                refuse_with(Code::InvalidParams, &format!("Invalid params: {refused}"))
            }
        }
    }

    /// The upstream does not wait for an answer any more.
    fn withdraw(&mut self, message: &Bytes, raw: &RawValue, asked: &Asked<'_>) -> Step {
        let Some((client, _)) = &self.client else { return Step::Drop };
        let raw_id = raw.get().as_bytes();
        let is_it = |id: &u64| client.is_asked(*id, asked.server, asked.generation, raw_id);
        let Some(at) = self.asked.iter().position(is_it) else { return Step::Drop };
        let id = self.asked.swap_remove(at);
        client.answered(id);
        let edits = [("requestId", Some(&*id.to_string()))];
        tell(notification(message, client.revision(), &edits, asked))
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

fn tell(message: Option<Bytes>) -> Step {
    message.map_or(Step::Drop, |message| Step::Tell(Piece::Notification(message)))
}

fn respond(message: &Bytes, raw: &RawValue, payload: Bytes) -> Step {
    Step::Respond(message.slice_ref(raw.get().as_bytes()), payload)
}

/// A log message in the form that `client` receives; `None` if two readers could read it differently.
pub(super) fn log_message(
    message: &Bytes,
    client: &Client,
    server: &Arc<str>,
    told: &DroppedMembers,
) -> Option<Bytes> {
    notification(message, client.revision(), &[], &Asked { server, generation: 0, told })
}

/// A notification with `edits` to its params; `None` if two readers could read it differently.
fn notification(
    message: &Bytes,
    revision: Revision,
    edits: &[Edit<'_>],
    asked: &Asked<'_>,
) -> Option<Bytes> {
    let mut left = Left::default();
    let sent = shapes::message(message, revision, edits, None, &mut left);
    let method = serde_json::from_slice::<Envelope<'_>>(message).ok()?.method?;
    match sent {
        Ok(sent) => {
            asked.told.of_server(asked.server, &method, &left);
            Some(sent)
        }
        Err(refused) => {
            asked.told.refused(asked.server, &method, &refused);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::capabilities::ClientCapabilities;

    const ALL: ClientCapabilities = ClientCapabilities::ALL;

    fn client(era: Era, client_capabilities: ClientCapabilities) -> Arc<Client> {
        Arc::new(Client::new("s".into(), "ide", "2025-11-25", era, client_capabilities))
    }

    fn relay(client: &Arc<Client>, channel: Channel, token: Option<&'static str>) -> Relay {
        let token = token.map(|token| Bytes::from_static(token.as_bytes()));
        Relay::new(Some((ActiveCall::of(Arc::clone(client)), channel)), token)
    }

    fn take(relay: &mut Relay, message: &Bytes) -> Step {
        let asked =
            Asked { server: &"srv".into(), generation: 1, told: &DroppedMembers::default() };
        relay.take(message, 7, &asked)
    }

    /// What the client gets of a message before the answer to request 7; `None` for nothing.
    fn told(relay: &mut Relay, message: &'static str) -> Option<String> {
        let message = Bytes::from_static(message.as_bytes());
        match take(relay, &message) {
            Step::Tell(Piece::Notification(told) | Piece::Request(told)) => {
                Some(String::from_utf8(told.to_vec()).unwrap())
            }
            Step::Tell(piece) => panic!("{piece:?}"),
            Step::Respond(..) | Step::Drop => None,
        }
    }

    /// What the upstream gets: the id it is told under, and the outcome.
    fn refused(relay: &mut Relay, message: &'static str) -> Option<(Bytes, String)> {
        match take(relay, &Bytes::from_static(message.as_bytes())) {
            Step::Respond(id, outcome) => Some((id, String::from_utf8(outcome.to_vec()).unwrap())),
            Step::Tell(_) | Step::Drop => None,
        }
    }

    #[test]
    fn progress_comes_under_the_clients_own_token_and_of_its_own_call_only() {
        let client = client(Era::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("\"t\\u0031\""));
        let progress = r#"{"method":"notifications/progress","params":{"progress":1.0, "progressToken" : 7 }}"#;
        let expected =
            progress.replace(r#", "progressToken" : 7 "#, r#","progressToken":"t\u0031""#);
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
        assert_eq!(told(&mut ours, ask).unwrap(), r#"{"id":0,"method":"roots/list"}"#);
        assert_eq!(told(&mut ours, ask).unwrap(), r#"{"id":1,"method":"roots/list"}"#);
        let Some(Question::Server(question)) = client.answered(0) else { panic!("not asked") };
        assert_eq!((&*question.server, question.generation), ("srv", 1));
        assert_eq!(question.raw_id, r#""a\"b""#);
        drop(ours);
        assert_eq!(client.answered(1), None, "nobody waits for it any more");
    }

    #[test]
    fn a_message_is_handed_on_with_what_it_has_and_refused_where_readers_differ() {
        let client = client(Era::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("1"));
        client.set_level(Level::Debug);
        for (message, expected) in [
            (
                r#"{"x":1,"result":{},"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"message":"\u0041","y":1,"requestedSchema":{ "Z":1}}}"#,
                r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"message":"\u0041","requestedSchema":{ "Z":1}}}"#,
            ),
            (
                r#"{"method":"notifications/message","params":{"level":"info","data":{ "Level":1},"x":1},"id2":1}"#,
                r#"{"method":"notifications/message","params":{"level":"info","data":{ "Level":1}}}"#,
            ),
            (
                r#"{"method":"notifications/progress","params":{"progressToken":7,"progress":1.0,"x":1}}"#,
                r#"{"method":"notifications/progress","params":{"progressToken":1,"progress":1.0}}"#,
            ),
        ] {
            assert_eq!(told(&mut ours, message).as_deref(), Some(expected));
        }
        for message in [
            r#"{"method":"notifications/message","params":{"level":"info","Level":"debug"}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":7,"ProgressToken":8}}"#,
            r#"{"Method":"x","method":"notifications/progress","params":{"progressToken":7}}"#,
            r#"{"method":"notifications/message","params":{"level":"info","data":1,"data":2}}"#,
        ] {
            assert_eq!(told(&mut ours, message), None, "{message}");
        }
        for (message, why) in [
            (r#"{"id":5,"method":"roots/list","METHOD":"x"}"#, "'METHOD' differs only by case"),
            (
                r#"{"id":5,"method":"elicitation/create","params":{"message":1,"me\u017f\u017fage":2}}"#,
                "differs only by case from 'message'",
            ),
        ] {
            let (id, outcome) = refused(&mut ours, message).unwrap();
            assert!(id == "5" && outcome.contains("-32602") && outcome.contains(why), "{outcome}");
        }
        let Some(Question::Server(asked)) = client.answered(0) else { panic!("not asked") };
        assert_eq!(asked.method, "elicitation/create".into());
        assert_eq!(client.answered(1), None, "who is not asked has nothing to answer");
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
            (
                relay(&client(Era::Legacy, ClientCapabilities::default()), Channel::Stream, None),
                "not declare",
            ),
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
    fn log_messages_nobody_asked_for_make_no_stream() {
        let info = r#"{"method":"notifications/message","params":{"level":"info","data":1}}"#;
        let progress = r#"{"method":"notifications/progress","params":{"progressToken":7}}"#;
        let client = client(Era::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("1"));
        assert_eq!(told(&mut ours, info), None);
        let mut aside = client.listen();
        assert_eq!(told(&mut ours, info), None);
        assert_eq!(aside.try_recv().unwrap(), info);
        assert!(told(&mut ours, progress).is_some());
        assert!(told(&mut ours, info).is_some(), "it is a stream already");
        assert!(aside.try_recv().is_err(), "nothing is told twice");
    }

    #[test]
    fn log_messages_come_from_the_level_that_was_asked_for() {
        let info = r#"{"method":"notifications/message","params":{"level":"info","data":1}}"#;
        let (old, new) = (client(Era::Legacy, ALL), client(Era::Modern, ALL));
        assert!(told(&mut relay(&new, Channel::Stream, None), info).is_none());
        old.set_level(Level::Info);
        assert!(told(&mut relay(&old, Channel::Stream, None), info).is_some());
        assert!(told(&mut relay(&old, Channel::Answer, None), info).is_none());
        new.set_level(Level::Info);
        assert!(told(&mut relay(&new, Channel::Stream, None), info).is_some());
        old.set_level(Level::Notice);
        assert!(told(&mut relay(&old, Channel::Stream, None), info).is_none());
    }
}
