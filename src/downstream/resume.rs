//! Resume of a reply's event stream that broke (`Last-Event-ID`; MCP 2025-11-25 §Resumability).
//!
//! The events are kept in [`replay`](super::replay); the stream of a client's GET goes on in
//! [`get_stream`](super::get_stream). The other side, our taking up a stream of an upstream, is
//! `upstream::http::resume`.

use std::sync::Arc;

use http::Response;

use crate::downstream::body::Body;
use crate::downstream::event_stream::{COMMENT, KEEP_ALIVE, response};
use crate::downstream::replay::{EventId, Next, StreamKind};
use crate::downstream::session::Session;

/// Answers with the events that follow `seen` on a reply's stream; `None` if the stream is not known, or not any more.
pub(super) fn resumed(session: &Arc<Session>, seen: EventId) -> Option<Response<Body>> {
    struct Resumed {
        session: Arc<Session>,
        stream: u64,
        attached: u64,
        after: u64,
    }
    let attached = session.streams.attach(StreamKind::Reply, seen.stream)?;
    let session = Arc::clone(session);
    let state = Resumed { session, stream: seen.stream, attached, after: seen.event };
    Some(response(state, async |state| {
        loop {
            let streams = &state.session.streams;
            let notified = streams.notified();
            match streams.next(state.stream, state.attached, state.after) {
                _ if state.session.has_ended() => return Ok(None),
                Next::Over => return Ok(None),
                Next::Event(number, framed) => {
                    state.after = number;
                    return Ok(Some(framed));
                }
                Next::Wait => {}
            }
            tokio::select! {
                () = notified => {}
                () = tokio::time::sleep(KEEP_ALIVE) => return Ok(Some(COMMENT)),
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::*;
    use crate::downstream::session::tests::alone;

    fn add(session: &Session, stream: u64, text: &'static str) {
        let event = session.streams.number(stream);
        session.streams.keep(stream, event, Bytes::from_static(text.as_bytes()));
    }

    async fn whole(answer: Response<Body>) -> Bytes {
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn who_comes_back_gets_what_followed_until_the_stream_ends() {
        let session = alone();
        let stream = session.streams.begin(StreamKind::Reply);
        ["a", "b", "c"].into_iter().for_each(|text| add(&session, stream, text));
        let seen = EventId { kind: StreamKind::Reply, stream, event: 1 };
        let mut body = resumed(&session, seen).unwrap().into_body();
        for expected in ["b", "c"] {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(frame.parts().flatten().copied().collect::<Vec<_>>(), expected.as_bytes());
        }
        // What comes while it waits comes too.
        let rest = tokio::join!(body.collect(), async {
            add(&session, stream, "d");
            session.streams.finish(stream);
        });
        assert_eq!(rest.0.unwrap().to_bytes(), "d");
    }

    #[tokio::test]
    async fn one_stream_goes_on_once_and_no_longer_than_its_session() {
        let session = alone();
        let stream = session.streams.begin(StreamKind::Reply);
        add(&session, stream, "a");
        let seen = EventId { kind: StreamKind::Reply, stream, event: 0 };
        let first = resumed(&session, seen).unwrap();
        let second = resumed(&session, seen).unwrap();
        assert_eq!(whole(first).await, "", "it went on to the second");
        session.end();
        let whole = tokio::time::timeout(Duration::from_secs(5), whole(second)).await;
        assert_eq!(whole.expect("it ends with its session"), "");
        assert!(resumed(&session, EventId { stream: stream + 1, ..seen }).is_none());
    }
}
