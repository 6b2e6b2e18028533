//! One request at a time to the endpoint of `search.embeddings`.
//!
//! The key is sent as a header and shown nowhere; of an answer that is none, nothing is quoted.

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::Full;

use crate::catalog::search::UnitVector;
use crate::embeddings::{EmbeddingsSettings, wire};
use crate::server::outgoing_http::{HttpOrigin, OutgoingConnection};
use crate::upstream::filled_in;

/// Who asks the endpoint.
pub struct EmbeddingsClient {
    endpoint: EmbeddingsEndpoint,
    model: String,
    connection: Option<OutgoingConnection>,
}

/// Where requests go, and what proves who asks.
struct EmbeddingsEndpoint {
    origin: HttpOrigin,
    path: String,
    authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for EmbeddingsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddingsClient").field("model", &self.model).finish_non_exhaustive()
    }
}

impl EmbeddingsClient {
    /// Of the endpoint that the settings name; what the key names is read.
    ///
    /// # Errors
    /// The key cannot be had, or the URL not be used.
    pub async fn of(settings: &EmbeddingsSettings) -> Result<Self, String> {
        let authorization = match settings.api_key.clone() {
            None => None,
            // May read a file.
            Some(key) => Some(
                tokio::task::spawn_blocking(move || authorization(&key))
                    .await
                    .map_err(|error| error.to_string())??,
            ),
        };
        let origin = HttpOrigin::of(&settings.url).await.ok_or("its URL cannot be used")?;
        let path = format!("{}/embeddings", origin.url.path().trim_end_matches('/'));
        let model = settings.model.clone();
        let endpoint = EmbeddingsEndpoint { origin, path, authorization };
        Ok(Self { endpoint, model, connection: None })
    }

    /// The vectors of `texts`, in their order, each of `dimensions` if they are known. How long that may take, the caller
    /// decides: if this is dropped, the next request has a new connection.
    ///
    /// # Errors
    /// Why there are none, without a word of the endpoint's.
    pub async fn vectors(
        &mut self,
        texts: &[impl AsRef<str>],
        dimensions: Option<usize>,
    ) -> Result<Vec<UnitVector>, String> {
        let body = wire::request(&self.model, texts);
        // Put back when its answer was read.
        let kept = self.connection.take();
        let (mut connection, answer) = self.endpoint.post(kept, body).await?;
        if !answer.status().is_success() {
            return Err(format!("it answers {}", answer.status()));
        }
        if connection.is_open() {
            self.connection = Some(connection);
        }
        let (body, count) = (answer.into_body(), texts.len());
        // Many numbers are some milliseconds of work.
        let read = tokio::task::spawn_blocking(move || wire::vectors(&body, count, dimensions));
        read.await.map_err(|error| error.to_string())?.map_err(|bad| bad.to_string())
    }
}

impl EmbeddingsEndpoint {
    /// Posts over the connection there is, or a new one. One that is closed just then is no failure.
    async fn post(
        &self,
        kept: Option<OutgoingConnection>,
        body: Bytes,
    ) -> Result<(OutgoingConnection, http::Response<Bytes>), String> {
        if let Some(mut connection) = kept
            && connection.is_open()
            && let Ok(answer) =
                connection.send(self.request(body.clone())?, wire::MAX_ANSWER_BYTES).await
        {
            return Ok((connection, answer));
        }
        let mut connection = self.origin.connect().await?;
        let answer = connection.send(self.request(body)?, wire::MAX_ANSWER_BYTES).await?;
        Ok((connection, answer))
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::post(&self.path)
            .header(HOST, self.origin.url.authority())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(ACCEPT, HeaderValue::from_static("application/json"))
            .header(USER_AGENT, concat!("mcpproxy/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &self.authorization {
            request = request.header(AUTHORIZATION, key);
        }
        request.body(Full::new(body)).map_err(|_| "the request cannot be sent".to_owned())
    }
}

fn authorization(key: &str) -> Result<HeaderValue, String> {
    const KEY: &str = "search.embeddings.api_key";
    let key = filled_in(key, KEY, &|name: &str| std::env::var(name).ok())?;
    let unusable = |_| format!("{KEY} cannot be sent as a header");
    let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(unusable)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_shown_or_quoted() {
        let value = authorization("s3cret-key").unwrap();
        assert_eq!(value.as_bytes(), b"Bearer s3cret-key");
        assert!(!format!("{value:?}").contains("s3cret"));
        let told = authorization("s3cret\r\nx: y").unwrap_err();
        assert!(told.contains("cannot be sent") && !told.contains("s3cret"), "{told}");
        assert!(authorization("${env:NOT_SET_ANYWHERE_7}").unwrap_err().contains("not set"));
    }
}
