//! The body of a client's request: how large it may be, how long it may take, and why there is none.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::downstream::body::Body;
use crate::downstream::response::plain;

/// Largest request body: 16 MiB.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A client has this long to send a request's body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a request has no body.
#[derive(Debug, thiserror::Error)]
pub enum NoBody {
    /// It did not come within [`BODY_TIMEOUT`].
    #[error("request body did not come within {BODY_TIMEOUT:?}")]
    Late,
    /// It is larger than [`MAX_BODY_BYTES`].
    #[error("request body is larger than {MAX_BODY_BYTES} bytes")]
    TooLarge,
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
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// The answer to a request whose body did not come.
#[must_use]
pub fn no_body(refused: &NoBody) -> Response<Body> {
    plain(refused.status(), &format!("the {refused}"))
}

/// Reads a request's body whole, up to [`MAX_BODY_BYTES`] and within [`BODY_TIMEOUT`].
///
/// # Errors
///
/// [`NoBody`].
pub async fn collect<B>(body: B) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    collect_within(body, MAX_BODY_BYTES).await
}

/// The same, up to `most` bytes.
///
/// # Errors
///
/// [`NoBody`].
pub async fn collect_within<B>(body: B, most: usize) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let collected = Limited::new(body, most).collect();
    match tokio::time::timeout(BODY_TIMEOUT, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(NoBody::TooLarge),
        Ok(Err(error)) => Err(NoBody::Broken(error)),
        Err(_) => Err(NoBody::Late),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[tokio::test]
    async fn a_body_is_taken_whole_up_to_its_bound() {
        let body = |size| Full::new(Bytes::from(vec![b' '; size]));
        assert_eq!(collect(body(MAX_BODY_BYTES)).await.unwrap().len(), MAX_BODY_BYTES);
        let refused = collect(body(MAX_BODY_BYTES + 1)).await.unwrap_err();
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
        let refused = collect(body).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(refused.to_string(), "request body is unreadable: reset");
    }
}
