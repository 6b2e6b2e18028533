//! A reply as the answer to one POST: whole, streamed, or as events if messages come before it.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::downstream::body::{Body, Streamed};
use crate::downstream::in_flight::{Taken, Watched};
use crate::downstream::reply_stream::ReplyStream;
use crate::downstream::response::json;
use crate::downstream::session::Session;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::Era;
use crate::output::AnswerMember;
use crate::proxy::Worker;
use crate::proxy::render;
use crate::proxy::reply::Piece;
use crate::wire::splice::Splice;

/// Turns a reply into an answer: whole if it is complete at once, else streamed; as events if messages come before it.
pub(super) async fn reply(
    worker: &Rc<Worker>,
    id: &Bytes,
    era: Era,
    session: Option<&Arc<Session>>,
    mut call: Watched,
) -> Response<Body> {
    let failed = |text: &str| {
        let error = jsonrpc::error(Some(id), Code::Internal, text);
        json(StatusCode::OK, Body::from(error))
    };
    match call.next().await {
        Taken::Piece(first @ (Piece::Notification(_) | Piece::Request(_) | Piece::Alive)) => {
            ReplyStream::respond(worker, id, era, session, first, call)
        }
        Taken::Piece(Piece::Whole(member, mut splice)) => {
            let status = status_of(era, member, &splice);
            splice.push_front(render::head(id, member));
            splice.push(jsonrpc::TAIL);
            // What is left (judging in warn) is done once the answer is on its way.
            if let Some(rest) = call.rest() {
                worker.defer(rest);
            }
            json(status, Body::from(splice))
        }
        Taken::Piece(Piece::Begin(member)) => {
            let streamed = Streamed::new(call, render::head(id, member), jsonrpc::TAIL);
            json(StatusCode::OK, Body::Call(Box::new(streamed)))
        }
        Taken::Piece(Piece::Refused(refusal)) => {
            json(refusal.kind.mcp_status(), Body::from(refusal.mcp_response(era, id)))
        }
        Taken::Piece(Piece::Data(_)) => failed("Internal error: no head"),
        Taken::Over | Taken::Broken(_) => failed("Internal error: no reply"),
        // A client that cancels expects no answer, but a request over HTTP must have one.
        Taken::Cancelled => failed("the client cancelled the request"),
    }
}

/// The status of an upstream's answer. That the client lacks a capability is an error of the request itself (MCP
/// 2026-07-28 §Error Codes); other errors of an upstream are answers.
fn status_of(era: Era, member: AnswerMember, value: &Splice) -> StatusCode {
    const MISSING_CAPABILITY: i64 = Code::MissingCapability as i64;
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    if (era, member) != (Era::Modern, AnswerMember::Error) {
        return StatusCode::OK;
    }
    // An error that came whole is small, and rare.
    let value: Vec<u8> = value.parts().flatten().copied().collect();
    match serde_json::from_slice(&value) {
        Ok(Error { code: MISSING_CAPABILITY }) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_modern_client_must_declare_first_is_a_bad_request() {
        let status = |era, member, value: &'static str| {
            let mut parts = Splice::new();
            for part in value.as_bytes().chunks(5) {
                parts.push(Bytes::from_static(part));
            }
            status_of(era, member, &parts).as_u16()
        };
        let missing = r#"{"message":"m","code":-32021,"data":{"requiredCapabilities":{}}}"#;
        assert_eq!(status(Era::Modern, AnswerMember::Error, missing), 400);
        assert_eq!(status(Era::Legacy, AnswerMember::Error, missing), 200);
        assert_eq!(status(Era::Modern, AnswerMember::Result, missing), 200);
        assert_eq!(status(Era::Modern, AnswerMember::Error, r#"{"code":-32602}"#), 200);
        assert_eq!(status(Era::Modern, AnswerMember::Error, "7"), 200);
    }
}
