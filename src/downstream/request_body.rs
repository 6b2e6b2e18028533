//! The body of a client's request: how large it may be, how long it may take, and why there is none. What all of them have
//! together is `proxy::body_room`'s.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::downstream::body::Body;
use crate::downstream::response::plain;
use crate::proxy::body_room::{BodyRoom, NoRoom};

/// Largest request body: 16 MiB.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A client has this long to send a request's body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// After how long a body that found no room may come again: those that are under way do not take long.
const COME_AGAIN: Duration = Duration::from_secs(2);

/// Why a request has no body.
#[derive(Debug, thiserror::Error)]
pub enum NoBody {
    /// It did not come within [`BODY_TIMEOUT`].
    #[error("request body did not come within {BODY_TIMEOUT:?}")]
    Late,
    /// It is larger than [`MAX_BODY_BYTES`].
    #[error("request body is larger than {MAX_BODY_BYTES} bytes")]
    TooLarge,
    /// All that are under way have no more room.
    #[error("request body {0}")]
    NoRoom(#[from] NoRoom),
    /// It broke off.
    #[error("request body is unreadable: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl NoBody {
    /// The answer's status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NoRoom(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// When it may come again, where that helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoRoom(_) => Some(COME_AGAIN),
            Self::Late | Self::TooLarge | Self::Broken(_) => None,
        }
    }
}

/// The answer to a request whose body did not come.
#[must_use]
pub fn no_body(refused: &NoBody) -> Response<Body> {
    let mut response = plain(refused.status(), &format!("the {refused}"));
    if let Some(after) = refused.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, after.as_secs().into());
    }
    response
}

/// Reads a request's body whole, up to [`MAX_BODY_BYTES`] and within [`BODY_TIMEOUT`].
///
/// # Errors
///
/// [`NoBody`].
pub async fn collect<B>(body: B, room: BodyRoom<'_>) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    collect_within(body, MAX_BODY_BYTES, room).await
}

/// The same, up to `most` bytes.
///
/// # Errors
///
/// [`NoBody`].
pub async fn collect_within<B>(body: B, most: usize, room: BodyRoom<'_>) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let gathered = gather(Limited::new(body, most), room);
    tokio::time::timeout(BODY_TIMEOUT, gathered).await.unwrap_or(Err(NoBody::Late))
}

async fn gather<B>(body: Limited<B>, mut room: BodyRoom<'_>) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    // Most come in one piece, which is taken as it is. Small pieces would each keep what they were read into.
    let (mut first, mut whole) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => NoBody::TooLarge,
            false => NoBody::Broken(error),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        room.reach(first.len() + whole.len() + data.len()).await?;
        match (first.is_empty(), whole.is_empty()) {
            (true, true) => first = data,
            (false, _) => whole = [&*std::mem::take(&mut first), &*data].concat(),
            (true, false) => whole.extend_from_slice(&data),
        }
    }
    let body = if whole.is_empty() { first } else { Bytes::from(whole) };
    Ok(room.keep(body))
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};

    use super::*;
    use crate::policy::Principal;
    use crate::proxy::body_room::{MAX_BODIES_BYTES, RequestBodies};

    async fn alone<B>(body: B) -> Result<Bytes, NoBody>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let all = RequestBodies::default();
        collect(body, all.room(&Principal::Admin)).await
    }

    #[tokio::test]
    async fn a_body_is_taken_whole_up_to_its_bound() {
        let body = |size| Full::new(Bytes::from(vec![b' '; size]));
        assert_eq!(alone(body(MAX_BODY_BYTES)).await.unwrap().len(), MAX_BODY_BYTES);
        let refused = alone(body(MAX_BODY_BYTES + 1)).await.unwrap_err();
        assert!(matches!(refused, NoBody::TooLarge));
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(no_body(&refused).status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_the_clients_fault() {
        let frames = [
            Ok(http_body::Frame::data(Bytes::from_static(b"{"))),
            Err(std::io::Error::other("reset")),
        ];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let refused = alone(body).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(refused.to_string(), "request body is unreadable: reset");
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_the_same_body() {
        for pieces in [&[][..], &["a"], &["a", "b"], &["", "a", "", "bc", "d"]] {
            let frames = pieces.iter().map(|piece| {
                let data = Bytes::copy_from_slice(piece.as_bytes());
                Ok::<_, std::io::Error>(http_body::Frame::data(data))
            });
            let body = StreamBody::new(futures_util::stream::iter(frames));
            assert_eq!(alone(body).await.unwrap(), pieces.concat());
        }
    }

    #[tokio::test]
    async fn a_body_that_finds_no_room_is_told_to_come_again() {
        let all = RequestBodies::default();
        let body = || Full::new(Bytes::from(vec![b' '; MAX_BODY_BYTES]));
        let mut held = Vec::new();
        let refused = loop {
            match collect(body(), all.room(&Principal::Anonymous)).await {
                Ok(body) => held.push(body),
                Err(refused) => break refused,
            }
        };
        assert!((held.len() * MAX_BODY_BYTES) as u64 <= MAX_BODIES_BYTES, "{}", held.len());
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.to_string().starts_with("request body found no room: "), "{refused}");
        assert!(no_body(&refused).headers().contains_key(RETRY_AFTER));
        assert!(!no_body(&NoBody::Late).headers().contains_key(RETRY_AFTER));
        held.clear();
        collect(body(), all.room(&Principal::Anonymous)).await.unwrap();
    }
}
